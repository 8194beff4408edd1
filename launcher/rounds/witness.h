/* The witness of a run: a member of every council that never leads and has no workers. Its memory
 * lies in a store that compares and puts at once (etcd), under two keys. Every agent plays it: the
 * agent reads both keys, lets the pure step below decide as a follower would (member.h), stores the
 * outcome if nobody changed the keys meanwhile, and only then takes the replies for its own member.
 * The store is the meeting place as well: an agent that finds nothing there begins the run, and all
 * others find its council.
 *
 * - state: struct message_witness. Another id is another memory.
 * - beat: the leader that the witness follows; a put of it is a sign of life. A candidate for its
 *   vote must have seen the same beat for dead_s by its own clock, or know that this leader's
 *   process is gone: no clock of the store counts.
 *
 * While the store is away nothing ends: agents are a quorum without the witness, or the last one
 * leads. But each new round waits until the witness keeps its record, and a leader that the witness
 * did not answer for witness_s (member.h) ends its round, because after forsaken_s without a sign
 * of life another run may begin.
 *
 * When another run may begin before that:
 * - The run is over, and its leader knows that no host runs anything any more (member_is_clear): at
 *   once. Otherwise linger_s and dead_s later.
 * - No round has begun: after dead_s of silence.
 * - The leader that began the round has been gone for 2 dead_s, and in that time no agent gave a
 *   sign of life. Workers live under that leader only: workers of other hosts end within dead_s of
 *   its last word, its own workers end with it, and no other round begins without a newer record
 *   here. The leader is gone when on its machine nobody listens at its port any more (the socket of
 *   a stopped process still answers). An agent on that machine marks it in the state, for all
 *   others. An agent that is linked with a host of that council leaves the run to that host.
 *
 * A store that lost its data, or has an older copy of them, is written anew by the leader. */
#ifndef DT_LAUNCHER_ROUNDS_WITNESS_H
#define DT_LAUNCHER_ROUNDS_WITNESS_H

#include "launcher/rounds/member.h"

enum { WITNESS_S = 16, WITNESS_FORSAKEN = 20 }; /* witness_s and forsaken_s in units of dead_s */

struct witness_answer {
    bool put_state, put_beat; /* what must be stored before the replies count */
    struct message_witness next;
    int reply_count;
    struct message replies[MESSAGE_COUNCIL];
};

/* What the witness does with a message of agent `from`. unled: for certain no agent leads it
 * (above). */
void witness_step(const struct message_witness *w, bool unled, uint64_t from, const struct message *in,
                  struct witness_answer *out);
/* Appends the bytes to keep; reads them. */
void witness_encode(const struct message_witness *w, struct dt_text *out);
int witness_decode(struct message_witness *w, const void *bytes, size_t size, struct dt_error *err);
/* The witness as others know it. */
struct peer_info witness_info(uint64_t id);

/* ---- an agent's end: the same for etcd and for simulated stores ---- */

struct witness_call { /* read both keys; with a put: compare both revisions first */
    bool put_state, put_beat;
    int64_t state_revision, beat_revision; /* 0: it is not there */
    const struct dt_text *state, *beat;
    bool last; /* the run is over: the store may drop this after some time */
};
struct witness_result {
    bool failed; /* no answer */
    bool put;    /* the put was done, at `revision`; else what the store has: */
    int64_t revision;
    int64_t state_revision, beat_revision; /* 0: it is not there */
    const struct dt_text *state, *beat;
};

struct witness_options {
    double dead_s, forsaken_s, linger_s, beat_every_s;
    void *user;
    /* One call at a time; witness_answered follows, not from within. */
    void (*call)(void *user, const struct witness_call *call);
    void (*say)(void *user, const char *line);
    /* Looks whether anybody still listens at the port of this agent of our machine. If nobody does,
     * call witness_refused from the loop. */
    void (*knock)(void *user, const struct peer_info *at);
};

struct witness_end {
    struct witness_options options;
    struct member *member;
    bool deciding;  /* an answer is looked at: messages of the member wait meanwhile */
    bool busy;      /* a call is under way */
    bool up;        /* the member has a link with the witness */
    bool asked;     /* the member asked for the witness */
    bool stored;    /* `now` is what the store has, or had at its newest answer */
    bool beginning; /* the call under way begins a run */
    bool mending;   /* the call under way writes this run anew */
    bool loss_told; /* people have heard that the store lost the run */
    bool doubtful;  /* people have heard that the state cannot be read */
    struct message_witness now;
    uint64_t leader;     /* of the newest beat */
    uint64_t gone;       /* a leader of our machine that is gone, */
    double gone_since_s; /* since then as far as we know */
    int64_t state_revision, beat_revision;
    double state_since_s, beat_since_s; /* seen unchanged since; our time */
    double answered_s;
    double beaten_s; /* stamp of our newest beat that was put, and what it said */
    uint64_t beaten_term;
    int beaten_round;
    bool beaten_committed;
    /* Messages of our member that are not answered yet, the newest of each kind. */
    bool waits[MESSAGE_KIND_COUNT];
    struct message *messages;
    struct message *served; /* the message that the call under way is for; kind 0: none */
    struct witness_answer *answer;
    struct dt_text state, beat;
};

void witness_open(struct witness_end *e, struct member *member, const struct witness_options *options);
void witness_clear(struct witness_end *e);
/* For the member's hooks. Whether `peer` is the witness; a message for it; make a link with it or
 * look who is there; close the link. */
bool witness_is(const struct witness_end *e, uint64_t peer);
void witness_send(struct witness_end *e, const struct message *m);
void witness_ask(struct witness_end *e);
void witness_drop(struct witness_end *e);
/* Call it every dead_s / 5. A follower that may vote looks at the beat, so that it knows how old
 * the beat is when its leader falls silent. */
void witness_tick(struct witness_end *e, double now_s);
/* The answer to a call. Calls the member. */
void witness_answered(struct witness_end *e, const struct witness_result *result, double now_s);
/* The port of this agent, at an address of this machine, refused: nobody listens there. */
void witness_refused(struct witness_end *e, uint64_t agent, double now_s);
/* When another run may begin here if nobody gives a sign of life; 0: we do not wait for that. */
double witness_free_at(const struct witness_end *e);

#endif
