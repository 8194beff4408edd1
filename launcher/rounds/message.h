/* What agents say to each other, as structs and as bytes. No I/O. Every decoder has limits: a
 * stranger's bytes give DT_INVALID, never more memory than a message may take. */
#ifndef DT_LAUNCHER_ROUNDS_MESSAGE_H
#define DT_LAUNCHER_ROUNDS_MESSAGE_H

#include "base/error.h"
#include "base/text.h"
#include "launcher/output/cause.h"
#include "launcher/rounds/coordinator.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MESSAGE_COUNCIL = 7,           /* agents that hold the state; elections and quorums are
                                    * theirs */
    MESSAGE_TEXT_BYTES = 2048,     /* refusal texts, digests */
    MESSAGE_BODY_BYTES = 12288,    /* of an answer about workers */
    MESSAGE_MAX_BYTES = 16384,     /* an encoded message */
    MESSAGE_LOCAL_MAX = 4096,      /* workers of one host */
    MESSAGE_COUNT_MAX = 1000000000 /* rounds, restarts and the like: no job comes there, and one
                                    * more is a number still */
};
#define MESSAGE_STEP_MAX ((int64_t)1 << 53)  /* steps and orders: whole numbers in JSON, too */
#define MESSAGE_TERM_MAX ((uint64_t)1 << 63) /* there is a later one */
#define MESSAGE_TIME_MAX 1e12                /* seconds */

/* one agent */
struct peer_info {
    uint64_t id;      /* random, per process; 0: nobody */
    int64_t order;    /* decides group ranks; -1: not yet given */
    int port;         /* where it listens */
    char host[64];    /* its name, for messages */
    char address[64]; /* numeric, where others reach it */
    int pid;
    uint64_t machine; /* machine.h: where it runs; 0: nobody knows */
};

/* The shared state: what a new leader needs to go on. Held by the council, known to all members. */
struct record {
    uint64_t nonce[2]; /* of this run: agents of another run with the same name are refused */
    uint64_t term;     /* grows with each leader */
    uint64_t leader;   /* id */
    int round, restarts_used, no_progress;
    int64_t best_step, best_saved, next_order, oom_step;
    bool oom_seen;
    bool finished, committed; /* committed: a quorum holds it; before that, elections need the
                               * council before as well */
    int code;                 /* when finished */
    int members;              /* nodes of the round */
    bool leader_in;           /* the leader's node is one of them */
    int council_count, before_count;
    struct peer_info council[MESSAGE_COUNCIL], before[MESSAGE_COUNCIL];
    uint64_t before_leader;
};

enum message_kind {
    MESSAGE_JOIN = 1,   /* I want in: info (its order binds if granted), local_world_size, role,
                         * digest, nonce (0 0: first time), round that I was in last, stamp,
                         * preference, count: how often I was without a leader, wall_s: what my
                         * clock says, for people */
    MESSAGE_REFUSE,     /* you cannot: code, text; finished: the run of nonce is over, with code */
    MESSAGE_REDIRECT,   /* ask this one: info */
    MESSAGE_PREPARE,    /* keep this record; to a witness, granted: nothing of the run, which is
                         * over, runs any more */
    MESSAGE_ACK,        /* I keep the record of term, round (and finished) */
    MESSAGE_EVENT,      /* to the leader: event of my node; text: why */
    MESSAGE_ACTION,     /* from the leader: action for your node; START carries the record, and
                         * in text how many workers each host has: "8(x3),4" */
    MESSAGE_BEAT,       /* from the leader: I am here; info, term, round (granted: it is
                         * committed), stamp, echo; the next round waits for `text`; count -1:
                         * you are a spare; members: hosts that I lead for certain, 0: my run
                         * ends, or I may not lead any more */
    MESSAGE_BEAT_ACK,   /* stamp, echo */
    MESSAGE_VOTE_ASK,   /* may I lead term `term`? with my record's term and round; granted: if a
                         * witness (witness.h) says yes, I do */
    MESSAGE_VOTE,       /* yes (granted) or no; count 1: it heard nothing of the leader before
                         * for dead_s; the voter's record comes along */
    MESSAGE_KEEP,       /* the newest record that I know; between agents that keep it: nothing is
                         * lost with one that dies; info: who I am */
    MESSAGE_BYE,        /* I am leaving in order: do not count me any more */
    MESSAGE_PROBE,      /* from the leader: get a link with `info` */
    MESSAGE_REACH,      /* to the leader: I have a link with info.id */
    MESSAGE_CAUSE,      /* from the leader: why `round` ended: cause */
    MESSAGE_YIELD,      /* from the leader: our run is over, another one of the same name goes
                         * on; info leads it: join there */
    MESSAGE_STATUS_ASK, /* what do your workers do? nonce: number of the question, id of who
                         * asks; the leader passes it on */
    MESSAGE_STATUS,     /* nonce: as asked; info: who answers; body: part `count` of JSON lines, of
                         * workers, or (granted) of the leader's hosts; finished: the last part */
    MESSAGE_KIND_COUNT
};

struct message {
    enum message_kind kind;
    uint64_t term;
    int round;
    bool granted, finished;
    int code, local_world_size, count, members;
    double wall_s;
    int preference;     /* node rank that the host would like, where the order of hosts is given
                         * by the leader; -1: none */
    double stamp, echo; /* the sender's clock now; the newest stamp it has from the receiver:
                         * leases without a common clock */
    uint64_t nonce[2];
    struct peer_info info;
    struct record record;
    struct event event;   /* role points into `role`, and cause to `cause`, after decoding */
    struct cause cause;   /* of an event, and of a CAUSE */
    struct action action; /* node is not sent */
    char role[COORDINATOR_ROLE_BYTES];
    char text[MESSAGE_TEXT_BYTES];
    const char *body; /* not copied: while decoding, it points into the bytes */
    size_t body_size;
};

/* What all who keep records decide alike. */
bool record_newer(const struct record *a, const struct record *b);
/* Whether who keeps `own`, has promised its vote for this term and follows nobody gives it to
 * whoever sent `ask`. */
bool record_grants(uint64_t promised, const struct record *own, const struct message *ask);
/* It listens nowhere: the witness of a council (witness.h), not an agent. */
bool peer_is_witness(const struct peer_info *p);

/* Appends the encoding to out. */
void message_encode(const struct message *m, struct dt_text *out);
/* Exactly one message of `size` bytes. Strings are terminated and harmless for a terminal,
 * numbers are those that some agent may send: a START's place and record fit each other and name
 * a leader, who is to be connected to listens somewhere. The error names the field. */
int message_decode(struct message *m, const void *bytes, size_t size, struct dt_error *err);
const char *message_name(enum message_kind kind);

#endif
