/* One agent's part in the job: it follows a leader, leads, or seeks one. The leader owns the
 * coordinator (coordinator.h) and feeds it what all nodes say; a small council of agents holds
 * the state that a next leader needs. Pure: what happened comes in with the time, what is to be
 * done goes out through hooks; no clock, no socket, so that whole clusters can be simulated.
 *
 * Why one round trains at a time. A round begins only after a quorum of the council of the round
 * before, and all of its own council, hold its record (dynamic voting: Jajodia and Mutchler,
 * 1990; joint quorums as in Raft, 2014, section 6). A leader that does not hear a quorum for
 * lease_s ends its workers; a follower that does not hear its leader for lease_s does the same;
 * they elect only after dead_s > lease_s of silence, or when the leader's kernel said that it is
 * gone. Who is gone for certain does not count in a quorum, if nothing is lost with it: each
 * agent of a council tells the others that it is linked with of every record before it keeps it,
 * whoever brought it, and its newest record when a link comes up, so the end of the link comes
 * after all that it knew. A round that was prepared and did not begin is prepared anew with
 * other hosts, by the council before it. Who is elected with the record of a round that may have
 * begun elsewhere first has a quorum of both councils keep it in its own term; then the next
 * round needs that one's council.
 *
 * A term belongs to who asked for it, so no two agents lead in the same one.
 *
 * What the links must do. One link per peer, messages in order; only a BEAT and its answer may
 * overtake others that wait. After its handshake (ids and peer_info of both, fresh keys) it
 * calls member_up; each whole message that can be decoded, and that member_check lets through,
 * goes to member_message; other bytes close the link. A new link from a peer that has one
 * replaces the old one, member_down(MEMBER_LOST) of the old one first. Its end: MEMBER_ENDED
 * only when the stream ended properly (end of file) after everything that came was handed over,
 * and no goodbye of the link was seen; then the peer's kernel closed it because the process is
 * gone. Resets, timeouts and refused connections say nothing: MEMBER_LOST. A reset of a link
 * whose port refuses then is MEMBER_RESET, and says that the process is gone if it ran on this
 * machine: between two machines a packet filter can answer for it. So whoever closes a link and
 * lives on (hook drop, a link replaced) says goodbye on the link first, which is not
 * MESSAGE_BYE: that one comes from member_leave, means that the agent ends, and must be flushed,
 * as every FINISH before it, before the process exits. member_down always names the id that the
 * link had, however late it is called. Hook connect may be called for a peer that is being
 * connected already, and must reach whoever listens at the address now: another id than expected
 * is welcome. Call member_tick when it asked to be called, and after anything else that
 * happened. Two runs of one name. Who holds the endpoint and remembers nothing may be new, or
 * take the place of one whose survivors train on: whoever leads them calls the endpoint every
 * beat_s, so before a first round of fewer than all, or with somebody who was led before, it
 * waits for MEMBER_ALONE beats, and longer while somebody of another run is there. Cut off from
 * them it cannot know: then two runs may train, until two leaders hear of each other. One of
 * both yields (member_rival.c). The agent that binds the endpoint calls member_lead, all others
 * member_seek; then each gives EVENT_JOIN with the world size of its node. */
#ifndef DT_LAUNCHER_ROUNDS_MEMBER_H
#define DT_LAUNCHER_ROUNDS_MEMBER_H

#include "launcher/rounds/message.h"

struct member_options {
    struct coordinator_options rounds;
    double beat_s, lease_s, dead_s, retry_s; /* 1, 10, 15, 0.5 */
    double witness_s;                        /* a leader whose witness did not answer for so long
                                              * ends its round; 0: there is no witness */
    struct peer_info self;                   /* id and addresses; order: the node rank, or -1:
                                              * given by the leader */
    int preference;                          /* without a node rank: the one that this host would
                                              * like in its first round; -1: none */
    bool closed_ok;                          /* the workers need no connections between any two
                                              * hosts, as far as we know */
    uint64_t nonce[2];                       /* random; names the run if this agent leads first */
/* a digest that ends with such a line is that of a host that cannot take part */
#define MEMBER_FAILED_CHECK "the check of the job failed with exit code "
/* how a line begins that says what is run, where the run has a name that other jobs may have as
 * well */
#define MEMBER_UNNAMED "job without --rdzv_id: "
    char digest[MESSAGE_TEXT_BYTES]; /* what must be the same on all nodes: lines of "name value" */
};

struct member_hooks { /* none may call the member again */
    void *user;
    /* over the link to peer; lost when there is none */
    void (*send)(void *user, uint64_t peer, const struct message *m);
    /* For our own node: START (sizes of the hosts in `why`, "8(x3),4"; "": too long), END, STOP,
     * FINISH (code), REFUSE (code, text in `why`). record: the state with START. */
    void (*act)(void *user, const struct action *a, const struct record *record, const char *why);
    void (*connect)(void *user, const struct peer_info *to); /* make a link if there is none;
                                                              * null: to the endpoint */
    /* We lead a round that begins, with our own node or without: its workers find their store
     * here. Before anybody is told to start. May be null. */
    void (*serve)(void *user, int world_size);
    void (*drop)(void *user, uint64_t peer);   /* close the link; member_down is not called for
                                                * it */
    void (*say)(void *user, const char *line); /* news for people */
    /* Try to connect to where it listens; member_knocked is called from the loop. May be null. */
    void (*knock)(void *user, const struct peer_info *at);
};

enum member_end {
    MEMBER_LOST,  /* the link is gone, the peer may live */
    MEMBER_ENDED, /* its kernel ended the link in order, the process is gone: everything that it
                   * said was heard */
    MEMBER_RESET  /* the same as MEMBER_LOST, unless the peer is of this machine: the process is
                   * gone, but its last words may be lost */
};
enum member_role { MEMBER_SEEKING, MEMBER_FOLLOWING, MEMBER_LEADING, MEMBER_OVER };
enum member_door { DOOR_UNKNOWN, DOOR_ASKED, DOOR_OPEN, DOOR_CLOSED };
struct member_peer { /* somebody at the other end of a link */
    uint64_t id;
    double heard_s;  /* anything came from it */
    bool suspect;    /* that was long ago, and has been said */
    bool left;       /* it said goodbye */
    bool leave_told; /* that it leaves, when it was asked to */
    bool told;       /* its newest record came; it tells us of each later one */
    bool same_run;   /* that record was of our run */
    bool counts_us;  /* it may lead by a record that has our vote in its quorums: it hears of
                      * each newer one that we keep, while its link lasts */
    bool elsewhere;  /* it was of another run of this name, which has begun and may go on */
    bool rival_told; /* that it leads that one was said */
    double stamp;    /* newest of its stamps */
    double lease_s;  /* newest of our stamps that it echoed: when we led it for certain */
    bool joined;     /* a node of ours, when leading */
    int seek_count;  /* of its JOIN: another one with the same count is the same wish */
    bool returned;   /* was in the record's round, and waits again */
    int node;        /* its number at the coordinator */
    struct peer_info info;
    enum member_door door; /* whether it takes connections, when that was asked */
    bool door_told;
    double spare_since_s; /* it waits beside a round that has no place for it; 0: it does not, or
                           * that has not been seen */
    double held_until_s;  /* it came back too often: not taken in before; 0: it may be */
    uint64_t apart;       /* it was left out because it and this one cannot reach each other; 0:
                           * it was not */
    uint64_t acked_term;
    int acked_round;
    bool acked_finished;
};
enum { MEMBER_TERM_BITS = 32 }; /* of a term, that say who asked for it; above them it is counted */
enum {
    MEMBER_ALONE = 6
}; /* an attempt to connect, whose packets were lost, is made again
    * after 4 s at most */
enum { MEMBER_DEAD = 64, MEMBER_FENCES = 64, MEMBER_PAST = 4, MEMBER_REACH = 16, MEMBER_GHOSTS = 2 * MESSAGE_COUNCIL };
struct member_ghost { /* of a link that ended: its peer still counts on us until its lease is
                       * over */
    uint64_t id;
    double lease_s;
};
struct member_pair { /* of followers in a round that is to begin */
    uint64_t low, high;
    bool reached;
};
struct member_cause { /* why a round ended, for people */
    int round;
    bool said; /* to people, by us */
    bool past; /* of a run that we gave up */
    struct cause cause;
    char text[1024]; /* for people, with what comes of it */
};
struct member_past {
    struct record record;
    uint64_t promised;
};
struct member_dead { /* somebody who certainly is gone, or left in order */
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
/* of a leader: numbers for the coordinator */
struct member_nodes {
    uint64_t ids[COORDINATOR_MAX_NODES]; /* who has the number */
    int unused[COORDINATOR_MAX_NODES], unused_count, next;
    uint64_t order_ids[4 * COORDINATOR_MAX_NODES]; /* who had this order last */
    int start_of[COORDINATOR_MAX_NODES];           /* where its START is held back, if that is
                                                    * there */
    struct member_return returns[64];              /* a ring */
    int return_count;
};
struct member {
    struct member_options options;
    struct member_hooks hooks;
    double now_s;
    bool firm_order; /* our order is the node rank that somebody chose */
    int last_round;  /* that our node was in */
    int seek_count;  /* how often we were without a leader */
    int told_count;  /* hosts that came, while our check of the job has failed */
    uint64_t look_count;
    enum member_role role;
    struct record record;
    uint64_t told_term; /* newest record that we acknowledged, and told the others of before */
    int told_round;
    bool told_finished;
    bool verdict;                         /* our record's: the run is over, and a quorum kept
                                           * that */
    struct member_past past[MEMBER_PAST]; /* of runs that we gave up */
    int past_count;
    bool holds_endpoint; /* whoever comes asks us first */
    uint64_t run_count;  /* runs that we began */
    uint64_t promised;   /* newest term that we gave another our vote for */
    uint64_t campaigned; /* newest term that we asked for ourselves: not binding */
    uint64_t leader;     /* followed; 0: nobody */
    uint64_t leader_term;
    struct peer_info leader_info; /* from its beats */
    double leader_heard_s;        /* its newest beat came */
    double lease_s;               /* newest of our stamps that it echoed: until then it counts on
                                   * us */
    double echo_s;                /* the same under this leader in this term; 0: none yet */
    double leader_stamp;
    uint64_t joined;   /* leader that has our JOIN */
    bool waiting;      /* our node waits for a round */
    int stop_code;     /* somebody asked it to stop: each new leader is told; 0: nobody did */
    bool stop_saved;   /* its workers have saved before */
    struct event join; /* what it said last */
    char join_role[COORDINATOR_ROLE_BYTES];
    bool spare;                /* the round runs without us */
    char wait_text[256];       /* for whom the next round waits; of the leader */
    double workers_until_s;    /* ours may live until then; 0: no limit */
    bool workers_left;         /* they are of a round whose leader we lost: no other one lets
                                * them live longer */
    struct member_cause cause; /* of the newest round that ended */
    double seek_since_s, retry_at_s, campaign_at_s;
    double vote_after_s; /* before that, the leader we lost may still lead */
    bool lost_silent;    /* we have not heard of it for dead_s by then */
    uint64_t campaign;   /* term asked for; 0: none */
    uint64_t votes[2 * MESSAGE_COUNCIL];
    int vote_count;
    bool votes_silent;                    /* so has everybody who voted for us, and we ourselves */
    struct member_dead dead[MEMBER_DEAD]; /* ring */
    int dead_count;
    struct member_peer *peers;
    int peer_count, peer_capacity;
    int *slots; /* hash table of ids: place in `peers` plus 1; 0: free */
    int slot_count;
    struct peer_info witness; /* in the council of the rounds to come; id 0: none */
    bool clear_told;          /* the witness heard that nothing of the run runs any more */
    bool unclear;             /* of a host that we lost after the verdict nobody knows when its
                               * workers are gone */
    /* leading */
    double witness_heard_s; /* when it followed us for certain */
    struct coordinator *coordinator;
    struct actions *actions;
    double wake_s, beat_at_s, call_at_s;
    double due_s, awake_s; /* when member_tick wanted to be called; when something was called
                            * much later, as this process slept */
    double slept_s;        /* for so long */
    bool sleep_told;       /* that it did, to people who would hear of lost hosts else */
    double others_since_s; /* somebody of another run was here first; 0: nobody yet */
    bool strays;           /* somebody followed another run's leader, perhaps we ourselves, and
                            * may not know whether that run has begun */
    struct member_nodes *nodes;
    bool preparing;     /* the record waits for its acknowledgements */
    bool inherited;     /* so does that with which we were elected, of a round that may have
                         * begun: no other one does before */
    double finish_at_s; /* elected when the job was over: until then those who seek hear the
                         * verdict; 0: not so */
    bool fenced;        /* a round waits for the fences */
    struct member_fence fences[MEMBER_FENCES];
    int fence_count;
    double fence_until_s;                      /* for those we know nothing of */
    bool leader_fenced;                        /* the workers of whoever led the round before are
                                                * gone for certain */
    struct member_ghost ghosts[MEMBER_GHOSTS]; /* a ring */
    int ghost_count;
    bool reaching; /* the round waits until all its hosts have reached each other */
    double reach_since_s;
    struct member_pair pairs[MEMBER_REACH * (MEMBER_REACH - 1) / 2];
    int pair_count;
    char sizes[MESSAGE_TEXT_BYTES]; /* workers of each host of the round, in order: "8(x3),4" */
    struct action *starts;          /* held back until then */
    int start_count, start_capacity;
};

/* Copies options and hooks. */
void member_init(struct member *m, const struct member_options *options, const struct member_hooks *hooks);
void member_clear(struct member *m);
/* This agent holds the endpoint: it is the first leader, and begins another run when nothing is
 * left of the one it was in. Otherwise it seeks. */
void member_lead(struct member *m, double now_s);
void member_seek(struct member *m, double now_s);
/* This agent holds the endpoint from now on: it leads if nothing has begun that it knows of. */
void member_hold(struct member *m, double now_s);
/* Who is in every council from now on, without leading or workers (witness.h): a peer like all
 * others otherwise. */
void member_witness(struct member *m, const struct peer_info *witness);
/* The record with which the next member_lead begins. */
void member_first_record(const struct member *m, struct record *out);
/* Whether this agent's process is gone for certain. */
bool member_is_dead(const struct member *m, uint64_t id);
/* What our own node has to say (EVENT_JOIN when it waits for a round, EVENT_FAILED, ...); `node`
 * is ignored. */
void member_event(struct member *m, const struct event *e, double now_s);
/* A link to `peer` is up; is down. */
void member_up(struct member *m, const struct peer_info *peer, double now_s);
void member_down(struct member *m, uint64_t peer, enum member_end end, double now_s);
/* Whether a decoded message fits what only we know: how many workers our node has, what we have
 * said ourselves. One that does not is not for member_message. The error says why. */
int member_check(const struct member *m, const struct message *in, double now_s, struct dt_error *err);
void member_message(struct member *m, uint64_t peer, const struct message *in, double now_s);
/* What hooks.knock found: whether the peer takes connections. */
void member_knocked(struct member *m, uint64_t peer, bool open, double now_s);
/* Time has passed. Returns when to call again at the latest. */
double member_tick(struct member *m, double now_s);
/* Nothing of a run that is over runs any more, as far as its leader knows: each host said so, or
 * is gone. Its own workers are gone when the role is MEMBER_OVER. */
bool member_is_clear(struct member *m);
/* After the verdict, when our own workers are gone: the witness hears it when nothing runs any
 * more. False: a host that we led may still run something and is to be waited for; ask again
 * when something was heard. */
bool member_end_run(struct member *m, double now_s);
/* Says goodbye to everybody: this agent ends. */
void member_leave(struct member *m);
/* Until when workers of this host may live, whatever happens to this process; 0: no limit. To be
 * asked after each call above. */
double member_workers_until(struct member *m, double now_s);
/* Appends "; not heard from: ..." of whoever was in the newest round and is not here; of a job
 * with node ranks, whichever of them is not here. Nothing where nobody is known to be missing. */
void member_missing(const struct member *m, struct dt_text *out);
/* Why the round ended, or null: not known here. */
const struct member_cause *member_cause(const struct member *m, int round);
/* Whether we lead, and a quorum knew it within lease_s: nobody else does. */
bool member_leads(const struct member *m, double now_s);
/* Our leader's addresses, or null while seeking. */
const struct peer_info *member_leader(const struct member *m);
/* Appends, for `dtrun --status`, members of a JSON object: "role", "term". */
void member_status(const struct member *m, struct dt_text *out);
/* Appends the hosts as far as this agent knows them (at most 1024), each a JSON object that
 * begins with its "id", and a newline; a witness has none. */
void member_hosts(const struct member *m, double now_s, struct dt_text *out);
/* Somebody at the other end of a link, or null. */
struct member_peer *member_find(const struct member *m, uint64_t id);

#endif
