/* Internals of the backend "peer": peer.c (memory and collectives) and peer_look.c (finding lost
 * ranks, releasing streams). */
#ifndef DT_COLLECTIVES_PEER_H
#define DT_COLLECTIVES_PEER_H

#include "collectives/comm.h"

#include <stdalign.h>

enum { PEER_ARENAS_MAX = 16, PEER_RING = 64, PEER_TEXT_WORDS = 12, PEER_TEXT_BYTES = 8 * PEER_TEXT_WORDS };

struct peer_notice { /* what a rank does; written by the rank, read by ranks that come later */
    _Atomic int64_t number;
    _Atomic uint64_t digest;
    /* may be read while it changes; then `number` has changed too */
    _Atomic uint64_t text[PEER_TEXT_WORDS];
};

struct peer_side { /* one rank's part of the shared host memory */
    alignas(64) uint32_t ready;
    alignas(64) uint32_t done;
    _Atomic uint32_t drained; /* this rank has no work left on any stream */
    /* this rank has released its streams: their results are invalid from now on */
    _Atomic uint32_t released;
    alignas(64) struct peer_notice notices[PEER_RING];
};

struct peer_arena {
    char **base; /* of each rank, in this rank's address space */
    size_t size_bytes;
};

struct peer {
    struct dt_comm *control;
    struct peer_side **sides;                  /* by rank */
    struct peer_side *pinned;                  /* start of the pinned memory of all sides */
    struct peer_arena arenas[PEER_ARENAS_MAX]; /* the first holds the stages */
    int arena_count;
    /* number of the last step; written by the thread that starts collectives */
    _Atomic uint32_t step;
    const void **in[PEER_RING]; /* inputs of the last sums, which a stream may not have read yet */
    uint32_t in_step[PEER_RING];
    uint32_t sum_count;
    bool opened;
    /* peer_look.c; `lock` guards the members below, because any thread may poll */
    pthread_mutex_t lock;
    /* for the timeout: the last step that this rank's stream was seen to reach, and the time */
    uint32_t seen_ready;
    double seen_s;
    pthread_t releaser;
    bool releasing;
    _Atomic bool closing;
};

static inline uint32_t peer_word(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Functions of the row dt_comm_peer. */
int peer_poll(struct dt_comm *c, struct dt_error *err);
void peer_abort(struct dt_comm *c);
void peer_tell(struct dt_comm *c, const struct dt_error *why);
bool peer_waits(struct dt_comm *c);
/* Starts the clock of the timeout. */
void peer_look_open(struct peer *p);
/* Call it when nothing runs on a stream any more. Ends the thread that releases streams. */
void peer_look_close(struct peer *p);

#endif
