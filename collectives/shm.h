/* Inside of the shared-memory backend: what lies in the segment of a communicator, and the three
 * files that share it: shm.c (the collectives), shm_wait.c (steps: arriving, waiting, who is
 * missing), shm_segment.c (memory).
 *
 *   segment   header | slot of rank 0 | slot of rank 1 | ... | bounce of rank 0 | bounce of rank 1 | ...
 *
 * A step is a barrier: everybody adds 1 to header.arrived and waits until it has reached size *
 * (number of the step). All ranks take the same steps, since the first step of a collective
 * compares what each of them is about to do. */
#ifndef DT_COLLECTIVES_SHM_H
#define DT_COLLECTIVES_SHM_H

#include "collectives/comm.h"

#include <stdalign.h>

#define SHM_MAGIC 0x314d4853u
/* up to here everybody reads everything: one step instead of two */
#define SHM_SMALL_BYTES ((size_t)16384)
#define SHM_BOUNCE_BYTES ((size_t)1024 * 1024) /* buffers outside the arenas pass through here */
#define SHM_BLOCK_BYTES ((size_t)16384)        /* summed at a time, then stored to all */
#define SHM_NAME_WORDS 6
#define SHM_CPU_WORDS 16
#define SHM_ARENAS_MAX 64
#define SHM_LOOK_S 0.05 /* how often a waiting rank looks after its peers and its orders */

/* Where a buffer is: arena `arena` of the communicator `level` parents up, or in the bounce
 * buffer (level -1). */
struct shm_place {
    int32_t level, arena;
    uint64_t offset;
};

/* A rank's buffers of one collective. */
struct shm_places {
    struct shm_place in, out;
};

/* What a rank is about to do; the first line is what its peers need. Two, used in turn: a peer
 * may still read the last one. */
struct shm_what {
    alignas(64) uint64_t digest; /* of everything that must be alike */
    struct shm_places at;
    alignas(64) _Atomic int64_t count; /* atomic from here on: also read for messages, while it
                                        * changes */
    _Atomic uint32_t kind, op, type;
    _Atomic int32_t root;
    _Atomic uint64_t name[SHM_NAME_WORDS];
};

enum shm_left { SHM_HERE, SHM_CLOSED, SHM_ORDERED };

struct shm_slot {
    alignas(64) _Atomic int32_t joined; /* 1: the next members are written */
    int32_t pid;
    uint64_t cpus[SHM_CPU_WORDS];      /* it may run on */
    alignas(64) _Atomic uint32_t step; /* the last one it arrived at; for messages only, arrived
                                        * is what counts */
    _Atomic uint32_t left;             /* enum shm_left: it will not come any more */
    _Atomic int64_t number;            /* collective it is in */
    _Atomic int64_t shown;             /* the number that messages give it: an outer
                                        * communicator's own, where there is one */
    struct shm_what what[2];
    alignas(64) char small[2][SHM_SMALL_BYTES];
};

struct shm_header {
    alignas(64) _Atomic uint32_t arrived; /* also the futex */
    alignas(64) _Atomic uint32_t sleepers;
    alignas(64) _Atomic uint32_t failed; /* 1: being written, 2: the first failure of any rank is
                                          * below */
    int32_t failed_rank, failed_status;  /* the rank is the job's */
    struct dt_blame failed_blame;
    char failed_text[400];
};

/* The first page of each shared file. */
struct shm_front {
    uint32_t magic;
    uint64_t nonce, size_bytes;
};

struct shm_made; /* shm_segment.c: a mapping of the process that made the file */

/* A shared file, mapped. */
struct shm_map {
    struct shm_front *front;
    char *base; /* after the front page */
    size_t size_bytes;
    struct shm_made *made; /* the maker's mapping is used, others of its threads may use it too;
                            * null: one of our own */
};

struct shm_arena {
    struct shm_map map;
    size_t stride; /* bytes from one rank's part to the next one's */
};

struct shm {
    struct shm_map map;
    int fd;    /* of the segment, until everybody has it; else -1 */
    bool open; /* everybody was there */
    struct shm_header *header;
    char *slots, *bounces;
    int *pidfds; /* -1: the same process, or not to be had; written in open only */
    int arena_count;
    struct shm_arena arenas[SHM_ARENAS_MAX];
    uint32_t step;
    double spin_s, spin_now_s; /* how long to spin before sleeping: at most, and as experience
                                * goes */
    uint32_t wait_count;
    struct shm_places *places; /* room for one collective, per rank */
    const void **in;
};

/* The collective this rank is in, for messages. */
struct shm_call {
    const char *what, *name; /* "all_reduce", "grads 3" */
    int64_t number;
    double timeout_s;
};

static inline struct shm_slot *shm_slot(const struct shm *s, int rank)
{
    return (struct shm_slot *)(void *)(s->slots + (size_t)rank * sizeof(struct shm_slot));
}

/* One more value in the digest of what a rank is about to do. */
static inline uint64_t shm_mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ (h >> 29);
}

/* What messages call a rank. */
static inline int shm_shown(const struct dt_comm *c, int rank)
{
    return c->shown != NULL ? c->shown[rank] : rank;
}

/* shm.c */
/* For a backend with this one inside: says what this rank is about to do in `outer`, takes a
 * step, compares. */
int shm_begin(struct dt_comm *c, const struct dt_collective *outer, const struct shm_call *call, struct dt_error *err);

/* shm_wait.c */
/* Arrives at the next step and waits for all. Errors name those who are missing. */
int shm_step(struct dt_comm *c, const struct shm_call *call, struct dt_error *err);
/* Is somebody lost, or has somebody failed? For dt_comm_poll. */
int shm_look(struct dt_comm *c, struct dt_error *err);
/* Tells the others why this rank fails (the first of all is kept) and wakes them. */
void shm_fail(struct dt_comm *c, const struct dt_error *why);
void shm_wake(struct shm *s);

/* shm_segment.c */
int shm_offer(struct dt_comm *c, char ticket[DT_COMM_TICKET_BYTES], struct dt_error *err);
int shm_open_segment(struct dt_comm *c, const char *ticket, struct dt_error *err);
void shm_close(struct dt_comm *c);
/* Makes a zeroed shared file and maps it; the ticket says where it is. The caller closes *fd
 * when all have it. */
int shm_map_make(struct shm_map *m, size_t size_bytes, int *fd, char ticket[DT_COMM_TICKET_BYTES],
                 struct dt_error *err);
/* Maps the file of `size_bytes` that a ticket names. The ticket may be anybody's words: it is
 * taken only when it names a file that shm_map_make has made, of this user and of that size.
 * DT_INVALID: it says something else, or lies; DT_PEER: the file is not there any more. */
int shm_map_take(struct shm_map *m, const char *ticket, size_t size_bytes, struct dt_error *err);
void shm_map_drop(struct shm_map *m);
/* Cores that the given CPUs and the cgroup's quota allow; at least 1. */
int shm_core_count(const uint64_t cpus[SHM_CPU_WORDS]);

#endif
