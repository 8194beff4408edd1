/* The messages between agents, as structs and as bytes. No I/O. Decoding has limits: bytes from a
 * stranger give DT_INVALID, and never take more memory than a message may have.
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
    /* most agents in a council, which keeps the record and elects leaders */
    MESSAGE_COUNCIL = 7,
    MESSAGE_TEXT_BYTES = 2048,  /* refusal texts, digests */
    MESSAGE_BODY_BYTES = 12288, /* the lines of one MESSAGE_STATUS */
    MESSAGE_MAX_BYTES = 16384,  /* an encoded message */
    MESSAGE_LOCAL_MAX = 4096,   /* workers of one host */
    /* limit of rounds, restarts and other counts: no job gets that far, and one more still fits an
     * int */
    MESSAGE_COUNT_MAX = 1000000000
};
/* limit of steps and orders: JSON holds them as whole numbers, too */
#define MESSAGE_STEP_MAX ((int64_t)1 << 53)

/* one agent, for others */
struct peer_info {
    uint64_t id;      /* random, per process; 0: no agent */
    int64_t order;    /* decides group ranks; -1: no leader has given one yet */
    int port;         /* where it listens; 0: nowhere (the witness, witness.h) */
    char host[64];    /* the host's name, for people */
    char address[64]; /* other agents connect to this address; numeric */
    int pid;
    uint64_t machine; /* identifies its machine (machine.h); 0: unknown */
};

/* The state that a new leader needs to continue the run. The council keeps it; all members know
 * it. */
struct record {
    uint64_t nonce[2]; /* names this run: another run may have the same --rdzv_id */
    uint64_t term;     /* grows with each leader */
    uint64_t leader;   /* id of the leader */
    int round;
    struct run_history history;
    int64_t next_order;
    bool finished; /* the run is over, with exit code `code` */
    /* a quorum keeps this record. Until then elections also need a quorum of the previous
     * council. */
    bool committed;
    int code;
    int members;    /* number of nodes in the round */
    bool leader_in; /* the leader's node is in the round */
    int council_count, before_count;
    struct peer_info council[MESSAGE_COUNCIL];
    struct peer_info before[MESSAGE_COUNCIL]; /* council and leader of the previous round */
    uint64_t before_leader;
};

/* Each kind but BYE has a member of its name in struct message. */
enum message_kind {
    MESSAGE_JOIN = 1, /* to any agent: the sender's node wants to be in a round */
    MESSAGE_REFUSE,   /* the receiver cannot be in a round */
    MESSAGE_REDIRECT, /* ask this agent instead */
    MESSAGE_PREPARE,  /* from the leader, or an elected agent: keep this record */
    MESSAGE_ACK,      /* the sender keeps the record of a PREPARE */
    MESSAGE_EVENT,    /* to the leader: an event of the sender's node */
    MESSAGE_ACTION,   /* from the leader: an action for the receiver's node */
    MESSAGE_BEAT,     /* from the leader, every beat_s: the sender leads */
    MESSAGE_BEAT_ACK, /* answer to a BEAT */
    MESSAGE_VOTE_ASK, /* asks for a vote in the message's term */
    MESSAGE_VOTE,     /* answer to a VOTE_ASK */
    /* the sender's newest record, to other agents that keep records, so that no record is lost with
     * an agent that dies */
    MESSAGE_KEEP,
    MESSAGE_BYE,   /* the sender ends in good order: do not count it any more */
    MESSAGE_PROBE, /* from the leader: connect to this agent */
    MESSAGE_REACH, /* to the leader: the sender has a link with that agent */
    MESSAGE_CAUSE, /* from the leader: why a round ended */
    /* from the leader: our run ends in favour of another run of the same name; join the leader of
     * that run */
    MESSAGE_YIELD,
    /* asks for the state of the receiver's workers; the leader passes the question on */
    MESSAGE_STATUS_ASK,
    MESSAGE_STATUS,  /* answer to a STATUS_ASK, in parts */
    MESSAGE_WITNESS, /* never sent; a store keeps it for the witness (witness.h) */
    MESSAGE_KIND_COUNT
};

struct message_join {
    struct peer_info info; /* the sender */
    bool order_binds;      /* info.order is a node rank from the user or a scheduler */
    int local_world_size;
    char role[COORDINATOR_ROLE_BYTES];
    uint64_t nonce[2]; /* the sender's run; 0 0: none yet */
    int last_round;    /* the last round that the sender's node was in */
    /* settings that must be the same on all hosts: lines of "name value" */
    char digest[MESSAGE_TEXT_BYTES];
    double stamp;   /* the sender's clock, as in a beat */
    int seek_count; /* how many times the sender has looked for a leader */
    /* node rank that the host prefers if the leader gives ranks; -1: none */
    int preference;
    double clock_s; /* the sender's time of day, for people */
};

struct message_refuse {
    bool finished; /* the run `nonce` is over, with exit code `code` */
    uint64_t nonce[2];
    int code;
    char text[MESSAGE_TEXT_BYTES];
};

struct message_prepare {
    struct record record;
    bool clear; /* to a witness: the run is over, and none of its workers is left */
};

struct message_ack { /* its message has the record's term */
    int round;
    bool finished;
};

struct message_event {
    struct event event; /* without its pointers; message_event_of restores them */
    char role[COORDINATOR_ROLE_BYTES];
    struct cause cause; /* CAUSE_NONE: the event has no cause */
};

struct message_action {
    struct action action;           /* node is not sent */
    struct record record;           /* START: the record of the round */
    int64_t order;                  /* START: the receiver's order from now on */
    char sizes[MESSAGE_TEXT_BYTES]; /* START: workers per host, "8(x3),4"; "": too long */
};

/* stamp: the sender's clock now. echo: the newest stamp that the sender got from the receiver. A
 * lease runs from a stamp that came back, so it needs no common clock. */
struct message_beat {
    struct peer_info info; /* the leader */
    uint64_t nonce[2];     /* the leader's run */
    int round;             /* the leader's newest round */
    bool committed;        /* a quorum keeps the record of that round */
    bool spare;            /* the round has no place for the receiver */
    /* hosts that the sender leads for certain; 0: its run ends, or it may not lead */
    int hosts;
    char wait_text[MESSAGE_TEXT_BYTES]; /* for people: what the next round waits for */
    double stamp, echo;
};

struct message_beat_ack {
    double stamp, echo;
};

struct message_vote_ask { /* the message's term is the term to lead in */
    struct record record; /* the sender's newest record */
    bool decisive;        /* this one vote elects the sender */
};

struct message_vote {
    bool yes;
    bool silent;          /* the voter heard nothing of the previous leader for dead_s */
    struct record record; /* the voter's newest record */
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
    uint64_t number, asker; /* number of the question; the agent that asks */
};

struct message_status {
    uint64_t number, asker; /* as in the question */
    struct peer_info info;  /* the agent that answers */
    bool of_hosts;          /* lines about the leader's hosts; else about the sender's workers */
    int part;               /* 0, 1, ... */
    bool last;
    struct field_body lines; /* JSON objects, each with a newline */
};

struct message_witness {
    uint64_t id, promised; /* promised: the newest term in which the witness gave its vote */
    /* pid 0 in the council entry of its leader: that agent is gone for certain */
    struct record record;
    bool clear; /* the run is over, and none of its workers is left */
};

struct message {
    enum message_kind kind;
    uint64_t term; /* term of the sender's record, unless the kind says otherwise */
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

/* Whether a is newer than b. All agents that keep records must decide this alike. */
bool record_newer(const struct record *a, const struct record *b);
/* Whether an agent votes for the sender of `ask`, a MESSAGE_VOTE_ASK. The agent keeps the record
 * `own`, has promised its vote for the term `promised`, and follows no leader. */
bool record_grants(uint64_t promised, const struct record *own, const struct message *ask);
/* Whether the agent is the witness of a council (witness.h): it listens at no port. */
bool peer_is_witness(const struct peer_info *p);

/* Fills *m with a MESSAGE_EVENT of *e. Strings are truncated to fit, and the cause is copied. */
void message_set_event(struct message *m, const struct event *e);
/* Returns the event of a MESSAGE_EVENT. Its role and its cause point into *m. */
struct event message_event_of(const struct message *m);

/* Appends the encoding to out. */
void message_encode(const struct message *m, struct dt_text *out);
/* Decodes exactly one message of `size` bytes. Its strings are then terminated and harmless for a
 * terminal. Its values are such as an agent may send: the place and the record of a START fit each
 * other and name a leader; an agent to connect to has a port. A body in *m points into `bytes`. The
 * error names the field. */
int message_decode(struct message *m, const void *bytes, size_t size, struct dt_error *err);
/* "unknown" for a number that is no kind. */
const char *message_name(enum message_kind kind);
/* The fields of a kind, with offsets in struct message. */
const struct field *message_fields(enum message_kind kind);

#endif
