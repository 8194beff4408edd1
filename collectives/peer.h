/* Inside of the backend "peer": peer.c (memory and collectives) and peer_look.c (who is lost,
 * and letting streams go). */
#ifndef DT_COLLECTIVES_PEER_H
#define DT_COLLECTIVES_PEER_H

#include "collectives/comm.h"

#include <stdalign.h>

enum { PEER_ARENAS_MAX = 16, PEER_RING = 64, PEER_TEXT_WORDS = 12, PEER_TEXT_BYTES = 8 * PEER_TEXT_WORDS };

struct peer_said { /* what a rank does; written by it, read by whoever comes later */
    _Atomic int64_t number;
    _Atomic uint64_t digest;
    _Atomic uint64_t text[PEER_TEXT_WORDS]; /* may be read while it changes; then the number has
                                             * changed too */
};

struct peer_side { /* one rank's part of the shared host memory */
    alignas(64) uint32_t ready;
    alignas(64) uint32_t done;
    _Atomic uint32_t drained;  /* nothing of it runs on a stream any more */
    _Atomic uint32_t released; /* it has let all streams go: what they compute from now on is
                                * nothing */
    alignas(64) struct peer_said said[PEER_RING];
};

struct peer_arena {
    char **base; /* of each rank, as this one reaches it */
    size_t size_bytes;
};

struct peer {
    struct dt_comm *control;
    struct peer_side **sides;                  /* by rank */
    struct peer_side *pinned;                  /* where they begin */
    struct peer_arena arenas[PEER_ARENAS_MAX]; /* the first holds the stages */
    int arena_count;
    _Atomic uint32_t step;      /* written by the thread that starts collectives */
    const void **in[PEER_RING]; /* inputs of the last sums, which a stream may not have read yet */
    uint32_t in_step[PEER_RING];
    uint32_t sum_count;
    bool opened;
    /* peer_look.c; the lock is of what follows: any thread may poll */
    pthread_mutex_t lock;
    uint32_t seen_ready; /* for the clock: the last step this rank's stream was seen to reach,
                          * and when */
    double seen_s;
    pthread_t releaser;
    bool releasing;
    _Atomic bool closing;
};

static inline uint32_t peer_word(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Rows of dt_comm_peer. */
int peer_poll(struct dt_comm *c, struct dt_error *err);
void peer_abort(struct dt_comm *c);
void peer_tell(struct dt_comm *c, const struct dt_error *why);
bool peer_waits(struct dt_comm *c);
/* The clock of collectives begins. */
void peer_look_open(struct peer *p);
/* Nothing runs on a stream any more: nobody needs to be let go. */
void peer_look_close(struct peer *p);

#endif
