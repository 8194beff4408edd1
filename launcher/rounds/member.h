/* One agent's part in the job: it seeks a leader, follows one, or leads. The leader owns the
 * coordinator (coordinator.h) and feeds it the events of all nodes; a small council of agents keeps
 * the record that the next leader needs. Pure: events and the time come in, what is to be done goes
 * out through hooks. No clock and no socket, so whole clusters can be simulated.
 *
 * Why one round trains at a time:
 * - A round begins only after all of its own council, and a quorum of the council of the round
 *   before, keep its record (dynamic voting: Jajodia and Mutchler, 1990; joint quorums as in Raft,
 *   2014, section 6).
 * - A leader that does not hear a quorum for lease_s ends its workers; a follower that does not
 *   hear its leader for lease_s does the same. An election needs dead_s > lease_s of silence, or
 *   the word of the leader's kernel that the leader is gone.
 * - An agent that is gone for certain does not count in a quorum, if no record is lost with it.
 *   None is: each agent of a council tells the others that it is linked with of every record before
 *   it keeps the record, and of its newest record when a link comes up. So the end of the link
 *   comes after all that the agent knew.
 * - A round that was prepared and did not begin is prepared anew with other hosts, by the council
 *   before it. A leader that was elected with the record of a round that may have begun elsewhere
 *   first has a quorum of both councils keep that record in its own term; then the next round needs
 *   a quorum of that round's council.
 * - A term belongs to the agent that asked for it, so no two agents lead in the same term.
 *
 * What the links must do:
 * - There is one link per peer, with messages in order; only a BEAT and its answer may overtake
 *   other messages that wait.
 * - After its handshake (ids and peer_info of both, fresh keys) a link calls member_up. Each whole
 *   message that can be decoded, and that member_check lets through, goes to member_message; other
 *   bytes close the link. A new link from a peer that has one replaces the old link;
 *   member_down(MEMBER_LOST) of the old link comes first.
 * - The end of a link is MEMBER_ENDED only when the stream ended properly (end of file) after
 *   everything that came was handed over, and no goodbye of the link was seen: then the peer's
 *   kernel closed it because the process is gone. Resets, timeouts and refused connections say
 *   nothing: MEMBER_LOST. A reset of a link whose port refuses connections then is MEMBER_RESET:
 *   the process is gone if it ran on this machine; between two machines a packet filter can answer
 *   for it. So an agent that closes a link and lives on (hook drop, a link replaced) says goodbye
 *   on the link first. That is not MESSAGE_BYE, which comes from member_leave and means that the
 *   agent ends; MESSAGE_BYE and every FINISH before it must be flushed before the process exits.
 * - member_down names the id that the link had, however late it is called.
 * - Hook connect may be called for a peer that is being connected already. It must reach the agent
 *   that listens at the address now; another id than expected is welcome.
 * Call member_tick when it asked for it, and after anything else that happened.
 *
 * Two runs of one name. An agent that holds the endpoint and remembers nothing may be new, or may
 * take the place of an agent whose survivors train on. The survivors' leader calls the endpoint
 * every beat_s. So before a first round of fewer than all hosts, or with a host that was led
 * before, the new agent waits for MEMBER_ALONE beats, and longer while an agent of another run is
 * here. If the network cuts it off from the survivors it cannot know of them: then two runs may
 * train, until their leaders hear of each other and one yields (member_rival.c).
 *
 * The agent that binds the endpoint calls member_lead, all others call member_seek; then each gives
 * EVENT_JOIN with the world size of its node. */
#ifndef DT_LAUNCHER_ROUNDS_MEMBER_H
#define DT_LAUNCHER_ROUNDS_MEMBER_H

#include "launcher/rounds/message.h"

/* the start of the last line of a digest whose host cannot take part */
#define MEMBER_FAILED_CHECK "the check of the job failed with exit code "
/* the start of the line that says what is run, where other jobs may have the same run id */
#define MEMBER_UNNAMED "job without --rdzv_id: "

struct member_options {
    struct coordinator_options rounds;
    double beat_s, lease_s, dead_s, retry_s; /* 1, 10, 15, 0.5 */
    /* A leader whose witness did not answer for so long ends its round; 0: there is no witness. */
    double witness_s;
    struct peer_info self; /* id and addresses; order: the node rank, or -1: the leader gives it */
    /* The node rank that this host would like in its first round, where the leader gives ranks;
     * -1: none. */
    int preference;
    bool closed_ok;                  /* as far as known, workers need no connections between any two hosts */
    uint64_t nonce[2];               /* random; names the run if this agent leads first */
    char digest[MESSAGE_TEXT_BYTES]; /* what must be the same on all nodes: lines of "name value" */
};

struct member_hooks { /* none may call the member again */
    void *user;
    /* Over the link to peer; the message is lost when there is none. */
    void (*send)(void *user, uint64_t peer, const struct message *m);
    /* For our own node: START (`why`: sizes of the hosts, "8(x3),4"; "": too long), END, STOP,
     * FINISH (code), REFUSE (code; `why`: the text). record: the state with START. */
    void (*act)(void *user, const struct action *a, const struct record *record, const char *why);
    /* Make a link if there is none. to: null is the endpoint. */
    void (*connect)(void *user, const struct peer_info *to);
    /* We lead a round that begins, with our own node or without: its workers find their store on
     * this host. Called before any node is told to start. May be null. */
    void (*serve)(void *user, int world_size);
    /* Close the link; member_down is not called for it. */
    void (*drop)(void *user, uint64_t peer);
    /* News for people. */
    void (*say)(void *user, const char *line);
    /* Try to connect to the port where `at` listens; then call member_knocked from the loop. May be
     * null. */
    void (*knock)(void *user, const struct peer_info *at);
};

enum member_end {
    MEMBER_LOST,  /* the link is gone, the peer may live */
    MEMBER_ENDED, /* the peer's kernel ended the link in order: the process is gone, and everything
                   * that it said was heard */
    MEMBER_RESET  /* as MEMBER_LOST, unless the peer ran on this machine: then the process is gone,
                   * but its last words may be lost */
};
enum member_role { MEMBER_SEEKING, MEMBER_FOLLOWING, MEMBER_LEADING, MEMBER_OVER };
enum { MEMBER_ROLE_COUNT = MEMBER_OVER + 1 };
enum member_door { DOOR_UNKNOWN, DOOR_ASKED, DOOR_OPEN, DOOR_CLOSED };
struct member_peer { /* the agent at the other end of a link */
    uint64_t id;
    double heard_s;  /* its newest message came */
    bool suspect;    /* that was long ago, and people have heard so */
    bool left;       /* it said goodbye */
    bool leave_told; /* people have heard that it leaves because it was asked to stop */
    bool told;       /* its newest record came; it tells us of each later one */
    bool same_run;   /* that record was of our run */
    bool counts_us;  /* it may lead by a record that has our vote in its quorums: it hears of each
                      * newer record that we keep, while its link lasts */
    bool elsewhere;  /* it was of another run of this name, which has begun and may go on */
    bool rival_told; /* people have heard that it leads that run */
    double stamp;    /* newest of its stamps */
    double lease_s;  /* newest of our stamps that it echoed: we led it for certain then */
    bool joined;     /* a node of ours, when we lead */
    int seek_count;  /* of its JOIN: another JOIN with the same count is the same wish */
    bool returned;   /* was in the record's round, and waits again */
    int node;        /* its number at the coordinator */
    struct peer_info info;
    enum member_door door; /* whether it takes connections, as far as we asked */
    bool door_told;
    double spare_since_s; /* it waits beside a round that has no place for it; 0: not known to */
    double held_until_s;  /* it came back too often, and gets no place before; 0: it may get one */
    uint64_t apart;       /* it was left out because it and this agent cannot reach each other;
                           * 0: it was not */
    uint64_t acked_term;  /* the record that it acknowledged */
    int acked_round;
    bool acked_finished;
};
enum {
    MEMBER_TERM_BITS = 32, /* the low bits of a term say who asked for it, the high bits count */
    MEMBER_ALONE = 6,      /* beats: an attempt to connect whose packets were lost is made again
                            * after 4 s at most */
    MEMBER_DEAD = 64,
    MEMBER_FENCES = 64,
    MEMBER_PAST = 4,
    MEMBER_REACH = 16,
    MEMBER_GHOSTS = 2 * MESSAGE_COUNCIL
};
struct member_ghost { /* of a link that ended: its peer counts on us until its lease is over */
    uint64_t id;
    double lease_s;
};
struct member_pair { /* followers in a round that is to begin */
    uint64_t low, high;
    bool reached;
};
struct member_cause { /* why a round ended, for people */
    int round;
    bool said; /* we have said it to people */
    bool past; /* of a run that we gave up */
    struct cause cause;
    char text[1024]; /* for people, with what comes of it */
};
struct member_past {
    struct record record;
    uint64_t promised;
};
struct member_dead { /* an agent that is gone for certain, or left in order */
    uint64_t id;
    bool told; /* its link ended after all that it had to say: we know every record that it kept */
};
struct member_fence { /* a node that was lost, but whose workers may still run */
    uint64_t id;
    double until_s;
};
struct member_return { /* a host whose agent was lost, and came back */
    char host[64], address[64];
    bool away;
    int count;
    double at_s[3]; /* newest returns, a ring */
    double held_until_s;
};
/* The nodes of a leader: each has a small number at the coordinator. */
struct member_nodes {
    uint64_t ids[COORDINATOR_MAX_NODES]; /* the agent that has the number */
    int unused[COORDINATOR_MAX_NODES], unused_count, next;
    uint64_t order_ids[4 * COORDINATOR_MAX_NODES]; /* the last agent that had this order */
    int start_of[COORDINATOR_MAX_NODES];           /* place of the node's START in `starts`, if it
                                                    * is held back */
    struct member_return returns[64];              /* a ring */
    int return_count;
};

/* What binds this agent beside its record, whoever leads. */
struct member_kept {
    uint64_t promised;   /* newest term that this agent gave another one its vote for */
    uint64_t campaigned; /* newest term that it asked votes for; not binding */
    struct {             /* the newest record that it told the others of before it kept it */
        uint64_t term;
        int round;
        bool finished;
    } told;
    bool verdict;                         /* the run of the record is over, and a quorum keeps
                                           * that */
    struct member_past past[MEMBER_PAST]; /* of runs that it gave up */
    int past_count;
    uint64_t run_count; /* runs that it began */
};

/* Our own node and its workers. */
struct member_node {
    bool firm_order;   /* its order is a node rank that somebody chose */
    bool waiting;      /* it waits for a round */
    struct event join; /* its newest EVENT_JOIN */
    char join_role[COORDINATOR_ROLE_BYTES];
    int last_round;         /* the last round that it was in */
    int stop_code;          /* it was asked to stop, and each new leader hears so; 0: it was not */
    bool stop_saved;        /* its workers have saved before */
    bool spare;             /* the round runs without it */
    char wait_text[256];    /* what the next round waits for, in the leader's words */
    int seek_count;         /* how often we were without a leader */
    double retry_at_s;      /* ask for a place in a round again */
    double workers_until_s; /* its workers may live until then; 0: no limit */
    bool workers_left;      /* its workers are of a round whose leader we lost: no other leader lets
                             * them live longer */
    int told_count;         /* hosts that came while our check of the job has failed */
};

/* Without a leader. A new search assigns it anew. */
struct member_seeking {
    double since_s;
    double vote_after_s;  /* the leader that we lost may still lead before that */
    bool lost_silent;     /* we have not heard of that leader for dead_s by then */
    double campaign_at_s; /* ask for votes again */
    uint64_t term;        /* we ask for votes in this term; 0: we do not */
    uint64_t votes[2 * MESSAGE_COUNCIL];
    int vote_count;
    bool votes_silent; /* neither the voters nor we heard of the leader before for dead_s */
};

/* With a leader. A new leader, or a new term of the same one, assigns it anew. */
struct member_following {
    uint64_t leader; /* 0: nobody */
    uint64_t term;
    uint64_t joined; /* the leader that has our JOIN */
    double heard_s;  /* its newest beat came */
    double stamp;    /* newest of its stamps */
    double echo_s;   /* newest of our stamps that it echoed in this term; 0: none yet */
    double lease_s;  /* the same, at first the time when we began to follow: until lease_s after it
                      * the leader counts on us */
};

/* A term as the leader. Its begin and its end assign it anew. */
struct member_leading {
    struct coordinator *coordinator; /* null: we do not lead. Also there when the run is over */
    struct actions *actions;
    struct member_nodes *nodes;
    double wake_s;         /* the coordinator's next tick; 0: none */
    double beat_at_s;      /* next beat */
    double call_at_s;      /* next call of the endpoint */
    double finish_at_s;    /* elected when the job was over: until then seekers hear the verdict;
                            * 0: not so */
    double others_since_s; /* an agent of another run was here first; 0: none yet */

    bool preparing; /* the record waits for its acknowledgements */
    bool inherited; /* so does the record that we were elected with, whose round may have begun: no
                     * other round begins before */

    /* The STARTs of a round, held back until it may begin. */
    struct action *starts;
    int start_count, start_capacity;
    char sizes[MESSAGE_TEXT_BYTES]; /* workers of each host, in order: "8(x3),4" */

    /* Fences: the round waits until the workers of lost nodes are gone. */
    bool fenced;
    struct member_fence fences[MEMBER_FENCES];
    int fence_count;
    double fence_until_s; /* for nodes that we know nothing of */
    bool leader_fenced;   /* workers of the node that led the round before are gone for certain */

    /* The round waits until all its hosts have reached each other. */
    bool reaching;
    double reach_since_s;
    struct member_pair pairs[MEMBER_REACH * (MEMBER_REACH - 1) / 2];
    int pair_count;

    struct member_ghost ghosts[MEMBER_GHOSTS]; /* a ring */
    int ghost_count;
};

/* The witness in the council of the rounds to come. */
struct member_witness {
    struct peer_info info; /* id 0: there is none */
    double heard_s;        /* it followed us for certain */
    bool clear_told;       /* it heard that nothing of the run runs any more */
    bool unclear;          /* after the verdict we lost a host, and nobody knows when its workers
                            * are gone */
};

/* How late this process was called: it may have been stopped, or its machine asleep. */
struct member_sleep {
    double due_s;   /* member_tick wanted to be called then */
    double awake_s; /* something was called, much later than that */
    double slept_s;
    bool told; /* people have heard of it */
};

struct member {
    struct member_options options;
    struct member_hooks hooks;
    double now_s;
    enum member_role role;
    struct record record;
    struct member_kept kept;
    struct member_node node;
    struct member_seeking seeking;
    struct member_following following;
    struct member_leading leading;
    struct member_witness witness;
    struct member_sleep sleep;
    struct member_cause cause;    /* of the newest round that ended */
    struct peer_info leader_info; /* from the newest beat of any leader */
    bool holds_endpoint;          /* newcomers ask us first */
    /* An agent followed another run's leader, perhaps we ourselves, and may not know whether that
     * run has begun. */
    bool strays;
    uint64_t look_count; /* agents of the council that we looked for */

    struct member_dead dead[MEMBER_DEAD]; /* a ring */
    int dead_count;
    struct member_peer *peers;
    int peer_count, peer_capacity;
    int *slots; /* hash table of ids: place in `peers` plus 1; 0: free */
    int slot_count;
};

/* Copies options and hooks. */
void member_init(struct member *m, const struct member_options *options, const struct member_hooks *hooks);
void member_clear(struct member *m);
/* This agent holds the endpoint: it is the first leader, and begins another run when nothing is
 * left of the run it was in. Otherwise call member_seek. */
void member_lead(struct member *m, double now_s);
void member_seek(struct member *m, double now_s);
/* This agent holds the endpoint from now on: it leads if it knows of no run that has begun. */
void member_hold(struct member *m, double now_s);
/* This witness (witness.h) is in every council from now on. It never leads and has no workers;
 * otherwise it is a peer like all others. */
void member_witness(struct member *m, const struct peer_info *witness);
/* The record with which the next member_lead begins. */
void member_first_record(const struct member *m, struct record *out);
/* Whether this agent's process is gone for certain. */
bool member_is_dead(const struct member *m, uint64_t id);
/* An event of our own node (EVENT_JOIN when it waits for a round, EVENT_FAILED, ...); `node` is
 * ignored. */
void member_event(struct member *m, const struct event *e, double now_s);
/* A link to `peer` is up; is down. */
void member_up(struct member *m, const struct peer_info *peer, double now_s);
void member_down(struct member *m, uint64_t peer, enum member_end end, double now_s);
/* 0: a decoded message fits what only this agent knows: how many workers its node has, what it has
 * said itself. Otherwise the message is not for member_message, and the error says why. */
int member_check(const struct member *m, const struct message *in, double now_s, struct dt_error *err);
void member_message(struct member *m, uint64_t peer, const struct message *in, double now_s);
/* The answer to hooks.knock: whether the peer takes connections. */
void member_knocked(struct member *m, uint64_t peer, bool open, double now_s);
/* Time has passed. Returns when to call again at the latest. */
double member_tick(struct member *m, double now_s);
/* As far as the leader knows, nothing of a run that is over runs any more: each host said so, or is
 * gone. Its own workers are gone when the role is MEMBER_OVER. */
bool member_is_clear(struct member *m);
/* After the verdict, when our own workers are gone: the witness hears when nothing runs any more.
 * False: a host that we led may still run something; ask again when a message came. */
bool member_end_run(struct member *m, double now_s);
/* Says goodbye to everybody: this agent ends. */
void member_leave(struct member *m);
/* Until when workers of this host may live, whatever happens to this process; 0: no limit. Ask
 * after each call above. */
double member_workers_until(struct member *m, double now_s);
/* Appends "; not heard from: " and the hosts of the newest round that are not here; in a job with
 * node ranks the ranks that are not here. Nothing where no host is known to be missing. */
void member_missing(const struct member *m, struct dt_text *out);
/* Why the round ended, or null: not known here. */
const struct member_cause *member_cause(const struct member *m, int round);
/* Whether we lead, and a quorum knew it within lease_s: then no other agent leads. */
bool member_leads(const struct member *m, double now_s);
/* Our leader's addresses, or null while seeking. */
const struct peer_info *member_leader(const struct member *m);
/* Appends members of a JSON object for `dtrun --status`: "role", "term". */
void member_status(const struct member *m, struct dt_text *out);
/* Appends the hosts as far as this agent knows them (at most 1024), a line each: a JSON object that
 * begins with its "id". A witness has no id. */
void member_hosts(const struct member *m, double now_s, struct dt_text *out);
/* The agent at the other end of a link, or null. */
struct member_peer *member_find(const struct member *m, uint64_t id);

#endif
