/* The witness of a run: a member of every council that never leads and has no workers. Its memory
 * lies under two keys of a store with compare-and-put (etcd). Every agent acts for the witness: it
 * reads both keys and lets the pure function below decide, as a follower would (member.h). It
 * stores the outcome if the keys did not change meanwhile, and only then hands the replies to its
 * own member. The store is also the meeting place: an agent that finds it empty begins the run, and
 * all others find the council there.
 *
 * - state: struct message_witness. A different id means a different memory.
 * - beat: the leader that the witness follows. Each put of it is a sign of life. A candidate for
 *   the witness's vote must have seen the same beat for dead_s by its own clock, or know that this
 *   leader's process is gone. No clock of the store counts.
 *
 * While the store is away nothing ends: the agents are a quorum without the witness, or the last
 * agent leads. But each new round waits until the witness keeps its record. A leader that the
 * witness did not answer for witness_s (member.h) ends its round, because another run may begin
 * after abandoned_s without a sign of life.
 *
 * When another run may begin before abandoned_s:
 * - The run is over, and its leader knows that no host has workers any more (member_is_clear): at
 *   once. Otherwise linger_s and dead_s later.
 * - No round has begun: after dead_s of silence.
 * - The leader that began the round has been gone for 2 dead_s, and in that time no agent gave a
 *   sign of life. Workers live only under that leader: workers of other hosts end within dead_s of
 *   its last message, its own workers end with it, and no other round begins without a newer record
 *   here. The leader is gone when no process on its machine listens at its port any more (the
 *   socket of a stopped process still answers). An agent on that machine marks the leader as gone
 *   in the state, for all others. An agent that has a link with a host of that council leaves the
 *   run to that host.
 *
 * The leader rewrites a store that lost its data or has an older copy of them. */
#ifndef DT_LAUNCHER_ROUNDS_WITNESS_H
#define DT_LAUNCHER_ROUNDS_WITNESS_H

#include "launcher/rounds/member.h"

enum { WITNESS_S = 16, WITNESS_ABANDONED = 20 }; /* witness_s and abandoned_s in units of dead_s */

struct witness_answer {
    bool put_state, put_beat; /* these must be stored before the replies count */
    struct message_witness next;
    int reply_count;
    struct message replies[MESSAGE_COUNCIL];
};

/* Decides how the witness answers a message of agent `from`. leaderless: for certain no agent leads
 * the witness (see above). */
void witness_step(const struct message_witness *w, bool leaderless, uint64_t from, const struct message *in,
                  struct witness_answer *out);
/* Appends the bytes to store; reads them. */
void witness_encode(const struct message_witness *w, struct dt_text *out);
int witness_decode(struct message_witness *w, const void *bytes, size_t size, struct dt_error *err);
/* The witness as other agents know it. */
struct peer_info witness_info(uint64_t id);

/* ---- an agent's end: the same for etcd and for simulated stores ---- */

struct witness_call { /* read both keys; to put, first compare both revisions */
    bool put_state, put_beat;
    int64_t state_revision, beat_revision; /* 0: the key is not there */
    const struct dt_text *state, *beat;
    bool last; /* the run is over: the store may drop this after some time */
};
struct witness_result {
    bool failed; /* no answer */
    /* the put was done, at `revision`; otherwise the next fields hold the content of the store */
    bool put;
    int64_t revision;
    int64_t state_revision, beat_revision; /* 0: the key is not there */
    const struct dt_text *state, *beat;
};

struct witness_options {
    double dead_s, abandoned_s, linger_s, beat_every_s;
    void *user;
    /* One call at a time. witness_answered follows, but not from within `call`. */
    void (*call)(void *user, const struct witness_call *call);
    void (*say)(void *user, const char *line);
    /* Checks whether a process still listens at the port of this agent of our machine. If none
     * does, call witness_refused from the loop. */
    void (*probe_port)(void *user, const struct peer_info *at);
};

struct witness_end {
    struct witness_options options;
    struct member *member;
    bool deciding;  /* an answer is being handled; messages of the member wait meanwhile */
    bool busy;      /* a call is under way */
    bool up;        /* the member has a link with the witness */
    bool asked;     /* the member asked for the witness */
    bool stored;    /* `now` is what the store has, or had at its latest answer */
    bool beginning; /* the call under way begins a run */
    bool rewriting; /* the call under way rewrites this run */
    bool loss_told; /* people were told that the store lost the run */
    bool doubtful;  /* people were told that the state cannot be read */
    struct message_witness now;
    uint64_t leader;     /* the leader in the newest beat */
    uint64_t gone;       /* a leader of our machine that is gone */
    double gone_since_s; /* since when, as far as we know */
    int64_t state_revision, beat_revision;
    double state_since_s, beat_since_s; /* since when we see them unchanged, by our clock */
    double answered_s;
    double beaten_s; /* our newest stored beat: its stamp, term and so on */
    uint64_t beaten_term;
    int beaten_round;
    bool beaten_committed;
    /* Messages of our member that wait for an answer, the newest of each kind. */
    bool waits[MESSAGE_KIND_COUNT];
    struct message *messages;
    struct message *served; /* the message that the call under way is for; kind 0: none */
    struct witness_answer *answer;
    struct dt_text state, beat;
};

void witness_open(struct witness_end *e, struct member *member, const struct witness_options *options);
void witness_clear(struct witness_end *e);
/* For the member's hooks: whether `peer` is the witness; send it a message; make a link with it or
 * look who is there; close the link. */
bool witness_is(const struct witness_end *e, uint64_t peer);
void witness_send(struct witness_end *e, const struct message *m);
void witness_ask(struct witness_end *e);
void witness_drop(struct witness_end *e);
/* Call it every dead_s / 5. A follower that may vote reads the beat, so that it knows the beat's
 * age when its leader falls silent. */
void witness_tick(struct witness_end *e, double now_s);
/* Handles the answer to a call. Calls the member. */
void witness_answered(struct witness_end *e, const struct witness_result *result, double now_s);
/* The port of this agent, at an address of this machine, refused a connection: no process listens
 * there. */
void witness_refused(struct witness_end *e, uint64_t agent, double now_s);
/* When another run may begin here without a sign of life; 0: this agent does not wait for that. */
double witness_free_at(const struct witness_end *e);

#endif
