/* The witness of a run: a member of every council that never leads and has no workers. What it
 * remembers lies in a store that compares and puts at once (etcd) under two keys, and every
 * agent plays it: reads both, lets the pure step below decide as a follower would (member.h),
 * stores what came of it if nobody changed anything meanwhile, and only then takes the replies
 * for its own member. It is the meeting place as well: whoever finds nothing there begins the
 * run, and all others find its council.
 *
 * - state: the witness's id (another id has another memory), the newest term that it gave its
 *   vote for, its record.
 * - beat: whom it follows; a put of it is a sign of life. Who asks for its vote must have seen
 *   the same beat for dead_s by its own clock, or know that
 *   this leader's process is gone: no clock of the store counts.
 *
 * With the store away nothing ends: agents are a quorum without it, or the last one leads. But
 * each new round waits until the witness keeps its record, and a leader that it did not answer
 * for witness_s (member.h) ends its round, because after forsaken_s without a sign of life
 * another run may begin.
 *
 * When another run may begin before that:
 * - The run is over, and its leader knows that no host runs anything any more (member_is_clear):
 *   at once. Else linger_s and dead_s later.
 * - No round has begun: after dead_s of silence.
 * - The leader that began the round is gone for 2 dead_s, and so long nobody gave a sign of
 *   life. Workers live under that leader only: those of other hosts end
 *   within dead_s of its last word, its own with it, and no other round begins without a newer record here. It is gone when on its machine, where its agent
 *   listened, nobody listens any more (a socket that a stopped process has still answers). Who is on that machine marks it in the state, for all others.
 *   Who is linked with a host of that council leaves the run to it.
 * A store that lost what it kept, or has an older copy of it, is written anew by whoever leads. */
#ifndef DT_LAUNCHER_ROUNDS_WITNESS_H
#define DT_LAUNCHER_ROUNDS_WITNESS_H

#include "launcher/rounds/member.h"

enum { WITNESS_S = 16, WITNESS_FORSAKEN = 20 }; /* the two times above, in units of dead_s */

struct witness_answer {
    bool put_state, put_beat; /* what must be stored before the replies count */
    struct message_witness next;
    int reply_count;
    struct message replies[MESSAGE_COUNCIL];
};

/* What the witness does with a message of agent `from`. unled: nobody leads it for certain
 * (above). */
void witness_step(const struct message_witness *w, bool unled, uint64_t from, const struct message *in,
                  struct witness_answer *out);
/* Appends the bytes to keep. */
void witness_encode(const struct message_witness *w, struct dt_text *out);
int witness_decode(struct message_witness *w, const void *bytes, size_t size, struct dt_error *err);
/* What others know it as. */
struct peer_info witness_info(uint64_t id);

/* ---- an agent's end: the same for etcd and for simulated stores ---- */

struct witness_call { /* read both keys; with a put: compare both revisions first */
    bool put_state, put_beat;
    int64_t state_revision, beat_revision; /* 0: it is not there */
    const struct dt_text *state, *beat;
    bool last; /* the run is over: what is put may vanish after some time */
};
struct witness_result {
    bool failed, put; /* failed: no answer; put: it was done, at `revision`. Else what is there: */
    int64_t revision;
    int64_t state_revision, beat_revision; /* 0: it is not there */
    const struct dt_text *state, *beat;
};

struct witness_options {
    double dead_s, forsaken_s, linger_s, beat_every_s;
    void *user;
    void (*call)(void *user, const struct witness_call *call); /* one at a time; witness_answered
                                                                * follows, not from within */
    void (*say)(void *user, const char *line);
    /* Whether nobody listens any more where this agent of our machine did; witness_refused is
     * called from the loop if so. */
    void (*knock)(void *user, const struct peer_info *at);
};

struct witness_end {
    struct witness_options options;
    struct member *member;
    bool deciding;                /* an answer is looked at: what the member says meanwhile waits */
    bool busy, up, asked, stored; /* busy: a call is under way; stored: `now` is known to be what
                                   * the store has, or had at its newest answer */
    bool beginning, mending;      /* the call under way begins a run; writes this one anew */
    bool loss_told;               /* said that the store lost it */
    bool doubtful;                /* said that the state is none of ours */
    struct message_witness now;
    uint64_t leader; /* of the newest beat */
    uint64_t gone;   /* a leader of our machine that is gone, seen so first at: */
    double gone_since_s;
    int64_t state_revision, beat_revision;
    double state_since_s, beat_since_s; /* seen unchanged since; our time */
    double answered_s;
    double beaten_s; /* our newest beat that was put */
    uint64_t beaten_term;
    int beaten_round;
    bool beaten_committed;
    bool waits[MESSAGE_KIND_COUNT]; /* messages of our member that are not answered yet: the
                                     * newest of each kind */
    struct message *messages;
    struct message *served; /* what the call under way is for; kind 0: nothing */
    struct witness_answer *answer;
    struct dt_text state, beat;
};

void witness_open(struct witness_end *e, struct member *member, const struct witness_options *options);
void witness_clear(struct witness_end *e);
/* The member's hooks: whether `peer` is the witness, and what it is told; make a link with it or
 * ask who is there; close it. */
bool witness_is(const struct witness_end *e, uint64_t peer);
void witness_send(struct witness_end *e, const struct message *m);
void witness_ask(struct witness_end *e);
void witness_drop(struct witness_end *e);
/* Time has passed; to be called every dead_s / 5. A follower that may elect looks at the beat,
 * so that it knows how old it is when its leader is silent. */
void witness_tick(struct witness_end *e, double now_s);
/* What became of the call. Calls the member. */
void witness_answered(struct witness_end *e, const struct witness_result *result, double now_s);
/* Nobody listens where this agent did: its port refused, at an address of this machine. */
void witness_refused(struct witness_end *e, uint64_t agent, double now_s);
/* Until another run may begin here if nobody gives a sign of life; 0: that is not what we wait
 * for. */
double witness_free_at(const struct witness_end *e);

#endif
