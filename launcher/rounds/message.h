/* The messages between agents, as structs and as bytes. No I/O. Decoding has limits: a stranger's
 * bytes give DT_INVALID, and never take more memory than a message may have.
 *
 * A new kind of message is a struct here, a row in message.c, and a handler in member.c. */
#ifndef DT_LAUNCHER_ROUNDS_MESSAGE_H
#define DT_LAUNCHER_ROUNDS_MESSAGE_H

#include "base/error.h"
#include "base/text.h"
#include "launcher/output/cause.h"
#include "launcher/rounds/coordinator.h"
#include "launcher/rounds/fields.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MESSAGE_COUNCIL = 7,        /* agents that hold the state; elections and quorums are theirs */
    MESSAGE_TEXT_BYTES = 2048,  /* refusal texts, digests */
    MESSAGE_BODY_BYTES = 12288, /* the lines of one MESSAGE_STATUS */
    MESSAGE_MAX_BYTES = 16384,  /* an encoded message */
    MESSAGE_LOCAL_MAX = 4096,   /* workers of one host */
    /* rounds, restarts and the like: no job gets that far, and one more still fits an int */
    MESSAGE_COUNT_MAX = 1000000000
};
#define MESSAGE_STEP_MAX                                                                                               \
    ((int64_t)1 << 53) /* steps and orders: JSON holds them as whole
                                             * numbers, too */

/* one agent */
struct peer_info {
    uint64_t id;      /* random, per process; 0: nobody */
    int64_t order;    /* decides group ranks; -1: no leader has given one yet */
    int port;         /* it listens here; 0: it listens nowhere (the witness, witness.h) */
    char host[64];    /* the host's name, for people */
    char address[64]; /* other agents connect to this address; numeric */
    int pid;
    uint64_t machine; /* the machine it runs on (machine.h); 0: unknown */
};

/* The state that a new leader needs to go on. The council keeps it; all members know it. */
struct record {
    uint64_t nonce[2]; /* names this run: another run may have the same --rdzv_id */
    uint64_t term;     /* grows with each leader */
    uint64_t leader;   /* id */
    int round, restarts_used, no_progress;
    int64_t best_step, best_saved, next_order, oom_step;
    bool oom_seen;
    bool finished;  /* the run is over, with exit code `code` */
    bool committed; /* a quorum keeps this record; until then elections need a quorum of the
                     * council before, too */
    int code;
    int members;    /* nodes of the round */
    bool leader_in; /* the leader's node is one of them */
    int council_count, before_count;
    struct peer_info council[MESSAGE_COUNCIL];
    struct peer_info before[MESSAGE_COUNCIL]; /* the council of the round before, and its leader */
    uint64_t before_leader;
};

/* Each kind but the last has a struct of its name in struct message. */
enum message_kind {
    MESSAGE_JOIN = 1,   /* to anybody: my node wants to be in a round */
    MESSAGE_REFUSE,     /* you cannot be in a round */
    MESSAGE_REDIRECT,   /* ask this agent */
    MESSAGE_PREPARE,    /* from the leader, or who was elected: keep this record */
    MESSAGE_ACK,        /* I keep that record */
    MESSAGE_EVENT,      /* to the leader: something happened at my node */
    MESSAGE_ACTION,     /* from the leader: do this at your node */
    MESSAGE_BEAT,       /* from the leader, every beat_s: I lead */
    MESSAGE_BEAT_ACK,   /* its answer */
    MESSAGE_VOTE_ASK,   /* may I lead in this term? */
    MESSAGE_VOTE,       /* the answer */
    MESSAGE_KEEP,       /* the newest record that I know, to agents that keep records too: so no
                         * record is lost with an agent that dies */
    MESSAGE_BYE,        /* I leave in order: do not count me any more */
    MESSAGE_PROBE,      /* from the leader: connect to this agent */
    MESSAGE_REACH,      /* to the leader: I have a link with that agent */
    MESSAGE_CAUSE,      /* from the leader: why a round ended */
    MESSAGE_YIELD,      /* from the leader: our run ends for another run of the same name; join the
                         * leader of that one */
    MESSAGE_STATUS_ASK, /* what do your workers do? The leader passes the question on */
    MESSAGE_STATUS,     /* an answer, in parts */
    MESSAGE_WITNESS,    /* never sent: a store keeps this for the witness (witness.h) */
    MESSAGE_KIND_COUNT
};

struct message_join {
    struct peer_info info; /* the sender */
    bool order_binds;      /* info.order is a node rank that somebody chose */
    int local_world_size;
    char role[COORDINATOR_ROLE_BYTES];
    uint64_t nonce[2];               /* the run that the sender was in; 0 0: none */
    int last_round;                  /* the last round that its node was in */
    char digest[MESSAGE_TEXT_BYTES]; /* what must be the same on all hosts: lines of "name value" */
    double stamp;                    /* the sender's clock, as in a beat */
    int seek_count;                  /* how often the sender was without a leader */
    int preference;                  /* node rank that the host would like where the leader gives
                                      * ranks; -1: none */
    double clock_s;                  /* the sender's time of day, for people */
};

struct message_refuse {
    bool finished; /* the run `nonce` is over, with exit code `code` */
    uint64_t nonce[2];
    int code;
    char text[MESSAGE_TEXT_BYTES];
};

struct message_prepare {
    struct record record;
    bool clear; /* to a witness: the run is over, and none of its workers runs any more */
};

struct message_ack { /* with the record's term */
    int round;
    bool finished;
};

struct message_event {
    struct event event; /* without its pointers: message_event_of gives it with them */
    char role[COORDINATOR_ROLE_BYTES];
    struct cause cause; /* CAUSE_NONE: the event has none */
};

struct message_action {
    struct action action;           /* node is not sent */
    struct record record;           /* START: of the round */
    int64_t order;                  /* START: the receiver's, from now on */
    char sizes[MESSAGE_TEXT_BYTES]; /* START: workers of each host, "8(x3),4"; "": too long */
};

/* stamp: the sender's clock now. echo: the newest stamp that the sender has of the receiver. So a
 * lease needs no common clock: it runs from a stamp that came back. */
struct message_beat {
    struct peer_info info;              /* the leader */
    uint64_t nonce[2];                  /* its run */
    int round;                          /* its newest round, */
    bool committed;                     /* which a quorum keeps */
    bool spare;                         /* the round has no place for the receiver */
    int hosts;                          /* hosts that the sender leads for certain; 0: its run ends, or it may
                            * not lead */
    char wait_text[MESSAGE_TEXT_BYTES]; /* what the next round waits for, for people */
    double stamp, echo;
};

struct message_beat_ack {
    double stamp, echo;
};

struct message_vote_ask { /* for the message's term */
    struct record record; /* the sender's newest */
    bool decisive;        /* with this one vote the sender is elected */
};

struct message_vote {
    bool yes;
    bool silent;          /* the voter heard nothing of the leader before for dead_s */
    struct record record; /* the voter's newest */
};

struct message_keep {
    struct peer_info info; /* the sender */
    struct record record;
};

struct message_reach {
    uint64_t id;
};

struct message_cause {
    int round;
    struct cause cause;
};

struct message_status_ask {
    uint64_t number, asker; /* of the question; the agent that wants to know */
};

struct message_status {
    uint64_t number, asker; /* of the question */
    struct peer_info info;  /* the agent that answers */
    bool of_hosts;          /* lines about the leader's hosts; else about the sender's workers */
    int part;               /* 0, 1, ... */
    bool last;
    struct field_body lines; /* JSON objects, each with a newline */
};

struct message_witness {
    uint64_t id, promised; /* promised: the newest term that it gave its vote for */
    struct record record;  /* its leader's pid in the council is 0: that agent is gone for
                            * certain */
    bool clear;            /* the run is over, and none of its workers runs any more */
};

struct message {
    enum message_kind kind;
    uint64_t term; /* of the sender's record, or as the kind says */
    union {
        struct message_join join;
        struct message_refuse refuse;
        struct peer_info redirect;
        struct message_prepare prepare;
        struct message_ack ack;
        struct message_event event;
        struct message_action action;
        struct message_beat beat;
        struct message_beat_ack beat_ack;
        struct message_vote_ask vote_ask;
        struct message_vote vote;
        struct message_keep keep;
        struct peer_info probe;
        struct message_reach reach;
        struct message_cause cause;
        struct peer_info yield;
        struct message_status_ask status_ask;
        struct message_status status;
        struct message_witness witness;
    };
};

/* What all agents that keep records decide alike: a is newer than b. */
bool record_newer(const struct record *a, const struct record *b);
/* Whether an agent gives its vote: it keeps `own`, has promised its vote for the term `promised`,
 * and follows nobody. ask: a MESSAGE_VOTE_ASK. */
bool record_grants(uint64_t promised, const struct record *own, const struct message *ask);
/* The agent listens nowhere: it is the witness of a council (witness.h). */
bool peer_is_witness(const struct peer_info *p);

/* A MESSAGE_EVENT of *e. Strings are copied as far as they fit, and the cause is copied. */
void message_set_event(struct message *m, const struct event *e);
/* The event of a MESSAGE_EVENT; its role and its cause are those of *m. */
struct event message_event_of(const struct message *m);

/* Appends the encoding to out. */
void message_encode(const struct message *m, struct dt_text *out);
/* Reads exactly one message of `size` bytes. Then its strings are terminated and harmless for a
 * terminal, and its values are such as some agent may send: the place and the record of a START fit
 * each other and name a leader; an agent to connect to listens somewhere. A body of *m points into
 * bytes. The error names the field. */
int message_decode(struct message *m, const void *bytes, size_t size, struct dt_error *err);
/* "unknown" for what is no kind. */
const char *message_name(enum message_kind kind);
/* The fields of a kind, of struct message. */
const struct field *message_fields(enum message_kind kind);

#endif
