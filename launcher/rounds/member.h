/* One agent's part in the job: it seeks a leader, follows one, or leads. The leader owns the
 * coordinator (coordinator.h) and feeds it the events of all nodes. A small council of agents keeps
 * the record that the next leader needs. The code is pure: events and the time come in, and actions
 * go out through hooks. There is no clock and no socket, so tests can simulate whole clusters.
 *
 * Why only one round trains at a time:
 * - A round begins only after all members of its own council, and a quorum of the previous round's
 *   council, keep its record (dynamic voting: Jajodia and Mutchler, 1990; joint quorums as in Raft,
 *   2014, section 6).
 * - A leader that does not hear a quorum for lease_s ends its workers. A follower that does not
 *   hear its leader for lease_s does the same. An election needs dead_s > lease_s of silence, or
 *   proof by the leader's kernel that the leader is gone.
 * - An agent that is gone for certain does not count in a quorum if no record is lost with it. None
 *   is lost: before an agent of a council keeps a record, it sends the record to the agents of the
 *   council that it has links with. When a link comes up, it sends its newest record. So the end of
 *   the link comes after everything that the agent knew.
 * - If a round was prepared and did not begin, the previous council prepares it anew with other
 *   hosts. A leader may be elected with the record of a round that may have begun elsewhere. This
 *   leader first has a quorum of both councils keep that record in its own term. The next round
 *   then needs a quorum of that round's council.
 * - A term belongs to the agent that asked for it, so no two agents lead in the same term.
 *
 * What the links must do:
 * - There is one link per peer, with messages in order. Only a BEAT and its answer may overtake
 *   other messages that wait.
 * - After its handshake (ids and peer_info of both ends, fresh keys) a link calls member_up. Each
 *   whole message that decodes and that member_check accepts goes to member_message. Other bytes
 *   close the link. A new link from a peer that has one replaces the old link;
 *   member_down(MEMBER_LOST) of the old link comes first.
 * - A link ends with MEMBER_ENDED only if the stream ended properly (end of file), all received
 *   messages were handed over, and the link carried no goodbye. Then the peer's kernel closed the
 *   link because the process is gone. Resets, timeouts and refused connections prove nothing:
 *   MEMBER_LOST. A reset after which the peer's port refuses connections is MEMBER_RESET: the
 *   process is gone if it ran on this machine. Between two machines a packet filter can send such
 *   answers.
 * - Therefore an agent that closes a link and lives on (hook drop, a replaced link) first says
 *   goodbye on the link. This goodbye is not MESSAGE_BYE, which comes from member_leave and means
 *   that the agent ends. MESSAGE_BYE and every FINISH before it must be flushed before the process
 *   exits.
 * - member_down names the id that the link had, however late it is called.
 * - Hook connect may be called for a peer that is being connected already. It must reach the agent
 *   that listens at the address now, even if its id is another than expected.
 * Call member_tick when it asked for it, and after any other call.
 *
 * Two runs of one name. An agent that holds the endpoint and remembers nothing may be new, or may
 * take the place of an agent whose surviving hosts train on. The leader of the survivors connects
 * to the endpoint every beat_s. So the new agent waits for MEMBER_ALONE beats before a first round
 * of fewer than all hosts, or with a host that was led before. It waits longer while an agent of
 * another run is here. If the network separates the new agent from the survivors, it cannot know of
 * them. Then two runs may train until their leaders hear of each other and one yields
 * (member_rival.c).
 *
 * The agent that binds the endpoint calls member_lead; all others call member_seek. Then each gives
 * EVENT_JOIN with the world size of its node. */
#ifndef DT_LAUNCHER_ROUNDS_MEMBER_H
#define DT_LAUNCHER_ROUNDS_MEMBER_H

#include "launcher/rounds/message.h"

/* start of the last line of a digest, on a host whose check of the job failed */
#define MEMBER_FAILED_CHECK "the check of the job failed with exit code "
/* start of the digest's line about the program, if other jobs may have the same run id */
#define MEMBER_UNNAMED "job without --rdzv_id: "

struct member_options {
    struct coordinator_options rounds;
    double beat_s, lease_s, dead_s, retry_s; /* defaults: 1, 10, 15, 0.5 */
    /* A leader whose witness did not answer for so long ends its round; 0: no witness. */
    double witness_s;
    /* id and addresses; order: the node rank, or -1 if the leader gives it */
    struct peer_info self;
    /* Node rank that this host prefers in its first round if the leader gives ranks; -1: none. */
    int preference;
    /* workers do not need a connection between every two hosts, as far as we know */
    bool closed_ok;
    uint64_t nonce[2]; /* random; names the run if this agent is its first leader */
    /* settings that must be the same on all nodes: lines of "name value" */
    char digest[MESSAGE_TEXT_BYTES];
};

struct member_hooks { /* a hook must not call the member */
    void *user;
    /* Sends over the link to the peer. Without a link the message is lost. */
    void (*send)(void *user, uint64_t peer, const struct message *m);
    /* Carries out an action on our own node. START: `why` holds the sizes of the hosts, "8(x3),4"
     * ("": too long). REFUSE: `why` holds the reason for people. record: the state at a START. */
    void (*act)(void *user, const struct action *a, const struct record *record, const char *why);
    /* Makes a link if there is none. to: null means the endpoint. */
    void (*connect)(void *user, const struct peer_info *to);
    /* We lead a round that is about to begin, with our own node or without. The workers of the
     * round find their store on this host. Called before any node is told to start. May be null. */
    void (*serve)(void *user, int world_size);
    /* Closes the link; member_down is not called for it. */
    void (*drop)(void *user, uint64_t peer);
    /* Prints a line for people. */
    void (*say)(void *user, const char *line);
    /* Tries to connect to the port where `at` listens; member_port_probed follows from the loop.
     * May be null. */
    void (*probe_port)(void *user, const struct peer_info *at);
};

enum member_end {
    MEMBER_LOST, /* the link is gone; the peer may live */
    /* the peer's kernel closed the link properly: the process is gone, and all its messages were
     * received */
    MEMBER_ENDED,
    /* like MEMBER_LOST, unless the peer ran on this machine. Then the process is gone, but its last
     * messages may be lost. */
    MEMBER_RESET
};
enum member_role { MEMBER_SEEKING, MEMBER_FOLLOWING, MEMBER_LEADING, MEMBER_OVER };
enum { MEMBER_ROLE_COUNT = MEMBER_OVER + 1 };
enum member_port_state { MEMBER_PORT_UNKNOWN, MEMBER_PORT_PROBING, MEMBER_PORT_OPEN, MEMBER_PORT_CLOSED };
struct member_peer { /* the agent at the other end of a link */
    uint64_t id;
    double heard_s;  /* when its newest message came */
    bool suspect;    /* it was silent for long, and people were told */
    bool left;       /* it sent BYE */
    bool leave_told; /* people were told that it leaves because it was asked to stop */
    bool told;       /* its newest record came; it sends us each later one */
    bool same_run;   /* that record is of our run */
    /* it may lead by a record that counts our vote, so it gets each newer record that we keep while
     * its link lasts */
    bool counts_us;
    bool in_other_run; /* it belongs to another run of this name, which has begun and may go on */
    bool rival_told;   /* people were told that it leads that run */
    double stamp;      /* the newest stamp that it sent */
    /* newest of our stamps that it echoed: it followed us for certain at that time */
    double lease_s;
    bool joined;    /* while we lead: its node is one of ours */
    int seek_count; /* of its JOIN; another JOIN with the same count repeats the request */
    bool returned;  /* it was in the record's round, and waits again */
    int node;       /* its node's number at the coordinator; -1: none */
    struct peer_info info;
    enum member_port_state port_state; /* whether it takes connections, as far as we tried */
    bool port_told;
    /* since when it waits beside a round that has no place for it; 0: it does not */
    double spare_since_s;
    double held_until_s; /* it came back too often and gets no place before; 0: no limit */
    /* the agent that it cannot reach, for which it was excluded; 0: it is not excluded */
    uint64_t cannot_reach;
    uint64_t acked_term; /* the record that it acknowledged last */
    int acked_round;
    bool acked_finished;
};
enum {
    /* the low bits of a term identify the agent that asked for it; the high bits count */
    MEMBER_TERM_BITS = 32,
    MEMBER_ALONE = 6, /* in beats: TCP repeats a lost attempt to connect within 4 s */
    MEMBER_DEAD = 64,
    MEMBER_FENCES = 64,
    MEMBER_PAST = 4,
    MEMBER_REACH = 16,
    MEMBER_GHOSTS = 2 * MESSAGE_COUNCIL
};
/* lease of a link that ended: its peer counts on us until the lease is over */
struct member_ghost {
    uint64_t id;
    double lease_s;
};
struct member_pair { /* two followers in the next round */
    uint64_t low, high;
    bool reached;
};
struct member_cause { /* why a round ended, for people */
    int round;
    bool said; /* people were told */
    bool past; /* it belongs to a run that we gave up */
    struct cause cause;
    char text[1024]; /* for people, with the consequences */
};
struct member_past {
    struct record record;
    uint64_t promised;
};
struct member_dead { /* an agent that is gone for certain, or sent BYE */
    uint64_t id;
    bool told; /* its link ended after its last message, so we know every record that it kept */
};
struct member_fence { /* a lost node whose workers may still run */
    uint64_t id;
    double until_s;
};
struct member_return { /* a host whose agent was lost and came back */
    char host[64], address[64];
    bool away;
    int count;
    double at_s[3]; /* times of the newest returns; a ring */
    double held_until_s;
};
/* The nodes of a leader. Each has a small number at the coordinator. */
struct member_nodes {
    uint64_t ids[COORDINATOR_MAX_NODES]; /* the agent with each node number */
    int unused[COORDINATOR_MAX_NODES], unused_count, next;
    uint64_t order_ids[4 * COORDINATOR_MAX_NODES]; /* the last agent with each order */
    /* index of the node's START in `starts`, if it is held back */
    int start_of[COORDINATOR_MAX_NODES];
    struct member_return returns[64]; /* a ring */
    int return_count;
};

/* What binds this agent besides its record, whoever leads. */
struct member_kept {
    uint64_t promised;   /* newest term in which this agent gave another agent its vote */
    uint64_t campaigned; /* newest term in which it asked for votes; not binding */
    struct {             /* the newest record that it sent to the others before it kept it */
        uint64_t term;
        int round;
        bool finished;
    } told;
    /* the run of the record is over, and a quorum keeps that fact */
    bool verdict;
    struct member_past past[MEMBER_PAST]; /* kept for runs that it gave up */
    int past_count;
    uint64_t run_count; /* number of runs that it began */
};

/* Our own node and its workers. */
struct member_node {
    bool firm_order;   /* its order is a node rank from the user or a scheduler */
    bool waiting;      /* it waits for a round */
    struct event join; /* its newest EVENT_JOIN */
    char join_role[COORDINATOR_ROLE_BYTES];
    int last_round; /* the last round that it was in */
    /* it was asked to stop with this code, and each new leader is told; 0: it was not asked */
    int stop_code;
    bool stop_saved;        /* its workers have saved and are gone */
    bool spare;             /* the round runs without it */
    char wait_text[256];    /* from the leader: what the next round waits for */
    int seek_count;         /* number of searches for a leader */
    double retry_at_s;      /* when to ask again for a place in a round */
    double workers_until_s; /* until when its workers may live; 0: no limit */
    /* its workers belong to a round whose leader we lost; no other leader extends their time */
    bool workers_left;
    int told_count; /* hosts that we told that our check of the job failed */
};

/* State without a leader. A new search resets it. */
struct member_seeking {
    double since_s;
    double vote_after_s;  /* the lost leader may still lead before this time */
    bool lost_silent;     /* by then we have heard nothing of that leader for dead_s */
    double campaign_at_s; /* when to ask for votes again */
    uint64_t term;        /* the term in which we ask for votes; 0: we do not ask */
    uint64_t votes[2 * MESSAGE_COUNCIL];
    int vote_count;
    bool votes_silent; /* neither the voters nor we heard of the previous leader for dead_s */
};

/* State with a leader. A new leader, or a new term of the same leader, resets it. */
struct member_following {
    uint64_t leader; /* 0: none */
    uint64_t term;
    uint64_t joined; /* the leader to which we sent our JOIN */
    double heard_s;  /* when its newest beat came */
    double stamp;    /* the newest stamp that it sent */
    double echo_s;   /* newest of our stamps that it echoed in this term; 0: none yet */
    /* like echo_s, but at first the time when we began to follow. The leader counts on us until
     * lease_s after it. */
    double lease_s;
};

/* State of a term as the leader. The term's begin and end reset it. */
struct member_leading {
    struct coordinator *coordinator; /* null: we do not lead. Still there when the run is over */
    struct actions *actions;
    struct member_nodes *nodes;
    double wake_s;    /* time of the coordinator's next tick; 0: none */
    double beat_at_s; /* time of the next beat */
    double call_at_s; /* time of the next connection to the endpoint */
    /* we were elected after the job was over; until then agents that seek a leader get the verdict.
     * 0: not so */
    double finish_at_s;
    double others_since_s; /* since when an agent of another run is here; 0: none came */

    bool preparing; /* we wait for acknowledgements of the record */
    /* we wait for acknowledgements of the record with which we were elected. Its round may have
     * begun, so no other round begins before. */
    bool inherited;

    /* START actions of a round, held back until the round may begin. */
    struct action *starts;
    int start_count, start_capacity;
    char sizes[MESSAGE_TEXT_BYTES]; /* workers per host, in order: "8(x3),4" */

    /* Fences: the next round waits until the workers of lost nodes are gone. */
    bool fenced;
    struct member_fence fences[MEMBER_FENCES];
    int fence_count;
    double fence_until_s; /* for nodes of which we know nothing */
    bool leader_fenced;   /* the workers of the previous leader's node are gone for certain */

    /* The next round waits until all its hosts have reached each other. */
    bool reaching;
    double reach_since_s;
    struct member_pair pairs[MEMBER_REACH * (MEMBER_REACH - 1) / 2];
    int pair_count;

    struct member_ghost ghosts[MEMBER_GHOSTS]; /* a ring */
    int ghost_count;
};

/* The witness in the councils of future rounds. */
struct member_witness {
    struct peer_info info; /* id 0: no witness */
    double heard_s;        /* when it followed us for certain */
    bool clear_told;       /* it was told that nothing of the run is left */
    /* we lost a host after the verdict, and do not know when its workers are gone */
    bool unclear;
};

/* Whether this process was called much later than it asked: it was stopped, or its machine
 * slept. */
struct member_sleep {
    double due_s;   /* when member_tick asked to be called */
    double awake_s; /* when a call came much later than that */
    double slept_s;
    bool told; /* people were told */
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
    struct member_cause cause;    /* why the newest round ended */
    struct peer_info leader_info; /* from the newest beat of any leader */
    bool holds_endpoint;          /* newcomers connect to us first */
    /* An agent, perhaps this one, followed the leader of another run. It may not know whether that
     * run has begun. */
    bool other_run_seen;
    uint64_t look_count; /* counts the agents of the council that we looked for */

    struct member_dead dead[MEMBER_DEAD]; /* a ring */
    int dead_count;
    struct member_peer *peers;
    int peer_count, peer_capacity;
    int *slots; /* hash table: id to index in `peers` plus 1; 0: free */
    int slot_count;
};

/* Copies options and hooks. */
void member_init(struct member *m, const struct member_options *options, const struct member_hooks *hooks);
void member_clear(struct member *m);
/* This agent holds the endpoint. It is the first leader, and begins another run when nothing is
 * left of its former run. An agent without the endpoint calls member_seek. */
void member_lead(struct member *m, double now_s);
void member_seek(struct member *m, double now_s);
/* This agent holds the endpoint from now on. It leads if it knows of no run that has begun. */
void member_hold(struct member *m, double now_s);
/* Puts this witness (witness.h) into every council from now on. A witness never leads and has no
 * workers; otherwise it is a peer like all others. */
void member_witness(struct member *m, const struct peer_info *witness);
/* The record with which the next member_lead begins. */
void member_first_record(const struct member *m, struct record *out);
/* Whether this agent's process is gone for certain. */
bool member_is_dead(const struct member *m, uint64_t id);
/* Reports an event of our own node (EVENT_JOIN when it waits for a round, EVENT_FAILED, ...).
 * `node` is ignored. */
void member_event(struct member *m, const struct event *e, double now_s);
/* Reports that a link to the peer came up, or went down. */
void member_up(struct member *m, const struct peer_info *peer, double now_s);
void member_down(struct member *m, uint64_t peer, enum member_end end, double now_s);
/* Returns 0 if a decoded message fits what only this agent knows: the number of its workers, and
 * the stamps that it sent. Otherwise the error gives the reason, and the message must not go to
 * member_message. */
int member_check(const struct member *m, const struct message *in, double now_s, struct dt_error *err);
void member_message(struct member *m, uint64_t peer, const struct message *in, double now_s);
/* Reports the result of hooks.probe_port: whether the peer takes connections. */
void member_port_probed(struct member *m, uint64_t peer, bool open, double now_s);
/* Call it when time has passed. Returns the latest time of the next call. */
double member_tick(struct member *m, double now_s);
/* Whether nothing of a finished run is left, as far as the leader knows: each host said so, or is
 * gone. The leader's own workers are gone in the role MEMBER_OVER. */
bool member_is_clear(struct member *m);
/* Call it after the verdict, when our own workers are gone. It tells the witness when nothing of
 * the run is left. Returns false while a host that we led may still have workers; call it again
 * after the next message. */
bool member_end_run(struct member *m, double now_s);
/* Sends BYE to all peers: this agent ends. */
void member_leave(struct member *m);
/* Until when workers of this host may live, whatever happens to this process; 0: no limit. Read it
 * after each call above. */
double member_workers_until(struct member *m, double now_s);
/* Appends "; not heard from: " and the missing hosts of the newest round, or the missing ranks in a
 * job with node ranks. Appends nothing if no host is known to be missing. */
void member_missing(const struct member *m, struct dt_text *out);
/* Why the round ended; null: not known here. */
const struct member_cause *member_cause(const struct member *m, int round);
/* Whether we lead, and a quorum confirmed that within lease_s. Then no other agent leads. */
bool member_leads(const struct member *m, double now_s);
/* Our leader's addresses; null while we seek one. */
const struct peer_info *member_leader(const struct member *m);
/* Appends members of a JSON object for `dtrun --status`: "role", "term". */
void member_status(const struct member *m, struct dt_text *out);
/* Appends the hosts that this agent knows (at most 1024), one line each: a JSON object that begins
 * with its "id". A witness has no id. */
void member_hosts(const struct member *m, double now_s, struct dt_text *out);
/* The agent at the other end of a link; null: no link. */
struct member_peer *member_find(const struct member *m, uint64_t id);

#endif
