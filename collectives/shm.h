/* Internals of the shared-memory backend: the layout of a communicator's segment, and three
 * files: shm.c (the collectives), shm_wait.c (steps: arriving, waiting, finding missing ranks),
 * shm_segment.c (memory).
 *
 *   segment   header | slot of rank 0 | slot of rank 1 | ...
 *                    | bounce of rank 0 | bounce of rank 1 | ...
 *
 * A step is a barrier: each rank adds 1 to header.arrived and waits until it has reached size *
 * (number of the step). All ranks take the same steps, since the first step of a collective
 * compares what each of them is about to do. */
#ifndef DT_COLLECTIVES_SHM_H
#define DT_COLLECTIVES_SHM_H

#include "collectives/comm.h"

#include <stdalign.h>

#define SHM_MAGIC 0x314d4853u
/* Up to this size each rank reads all inputs, which takes one step instead of two. */
#define SHM_SMALL_BYTES ((size_t)16384)
#define SHM_BOUNCE_BYTES ((size_t)1024 * 1024) /* for buffers outside the arenas */
#define SHM_BLOCK_BYTES ((size_t)16384)        /* summed at a time, then stored to all ranks */
#define SHM_NAME_WORDS 6
#define SHM_CPU_WORDS 16
#define SHM_ARENAS_MAX 64
#define SHM_LOOK_S 0.05 /* how often a waiting rank checks its peers and its orders */

/* The place of a buffer: arena `arena` of the communicator `level` parents up; level -1: the bounce
 * buffer. */
struct shm_place {
    int32_t level, arena;
    uint64_t offset;
};

/* A rank's buffers of one collective. */
struct shm_places {
    struct shm_place in, out;
};

/* The operation that a rank is about to do. Peers read the first cache line. A rank has two of these
 * and uses them in turn, because a peer may still read the last one. */
struct shm_what {
    alignas(64) uint64_t digest; /* hash of everything that must be the same on all ranks */
    struct shm_places at;
    /* atomic from here on: messages read these while they change */
    alignas(64) _Atomic int64_t count;
    _Atomic uint32_t kind, op, type;
    _Atomic int32_t root;
    _Atomic uint64_t name[SHM_NAME_WORDS];
};

enum shm_left { SHM_HERE, SHM_CLOSED, SHM_ORDERED };

struct shm_slot {
    alignas(64) _Atomic int32_t joined; /* 1: pid and cpus are written */
    int32_t pid;
    uint64_t cpus[SHM_CPU_WORDS]; /* CPUs that the rank may run on */
    /* the last step that the rank has reached; only for messages, since `arrived` decides */
    alignas(64) _Atomic uint32_t step;
    _Atomic uint32_t left;  /* enum shm_left: why the rank arrives no more */
    _Atomic int64_t number; /* the collective that the rank is in */
    /* the number shown in messages: the outer communicator's, if there is one */
    _Atomic int64_t shown;
    struct shm_what what[2];
    alignas(64) char small[2][SHM_SMALL_BYTES];
};

struct shm_header {
    alignas(64) _Atomic uint32_t arrived; /* also the futex word */
    alignas(64) _Atomic uint32_t sleepers;
    /* 1: being written; 2: the first failure of all ranks is below */
    alignas(64) _Atomic uint32_t failed;
    int32_t failed_rank, failed_status; /* failed_rank: a rank of the job */
    struct dt_blame failed_blame;
    char failed_text[400];
};

/* The first page of each shared file. */
struct shm_front {
    uint32_t magic;
    uint64_t nonce, size_bytes;
};

struct shm_made; /* shm_segment.c: a mapping in the process that made the file */

/* A shared file, mapped. */
struct shm_map {
    struct shm_front *front;
    char *base; /* after the front page */
    size_t size_bytes;
    /* the mapping of the process that made the file, which its threads share; null: a mapping of
     * our own */
    struct shm_made *made;
};

struct shm_arena {
    struct shm_map map;
    size_t stride; /* bytes from one rank's part to the next rank's */
};

struct shm {
    struct shm_map map;
    int fd;    /* of the segment, until all ranks have mapped it; else -1 */
    bool open; /* all ranks have opened it */
    struct shm_header *header;
    char *slots, *bounces;
    int *pidfds; /* -1: the same process, or none could be opened; written by open only */
    int arena_count;
    struct shm_arena arenas[SHM_ARENAS_MAX];
    uint32_t step;
    /* longest time to spin before sleeping: the limit, and the current value by experience */
    double spin_s, spin_now_s;
    uint32_t wait_count;
    struct shm_places *places; /* one per rank, for the collective in progress */
    const void **in;
};

/* Describes a collective, for messages. */
struct shm_call {
    const char *what, *name; /* "all_reduce", "grads 3" */
    int64_t number;
    double timeout_s;
};

static inline struct shm_slot *shm_slot(const struct shm *s, int rank)
{
    return (struct shm_slot *)(void *)(s->slots + (size_t)rank * sizeof(struct shm_slot));
}

/* Adds one value to the hash of what a rank is about to do. */
static inline uint64_t shm_mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ (h >> 29);
}

/* The rank number that messages show. */
static inline int shm_shown(const struct dt_comm *c, int rank)
{
    return c->shown != NULL ? c->shown[rank] : rank;
}

/* shm.c */
/* For a backend that runs this one inside: publishes what this rank is about to do in `outer`,
 * takes a step, compares. */
int shm_begin(struct dt_comm *c, const struct dt_collective *outer, const struct shm_call *call, struct dt_error *err);

/* shm_wait.c */
/* Arrives at the next step and waits for all ranks. Errors name the missing ranks. */
int shm_step(struct dt_comm *c, const struct shm_call *call, struct dt_error *err);
/* Fails if a rank is lost or has failed. For dt_comm_poll. */
int shm_look(struct dt_comm *c, struct dt_error *err);
/* Tells the other ranks why this one fails, and wakes them. The first failure of all ranks is
 * kept. */
void shm_fail(struct dt_comm *c, const struct dt_error *why);
void shm_wake(struct shm *s);

/* shm_segment.c */
int shm_offer(struct dt_comm *c, char ticket[DT_COMM_TICKET_BYTES], struct dt_error *err);
int shm_open_segment(struct dt_comm *c, const char *ticket, struct dt_error *err);
void shm_close(struct dt_comm *c);
/* Makes a zeroed shared file and maps it. The ticket says where it is. The caller closes *fd once
 * all ranks have mapped the file. */
int shm_map_make(struct shm_map *m, size_t size_bytes, int *fd, char ticket[DT_COMM_TICKET_BYTES],
                 struct dt_error *err);
/* Maps the file of `size_bytes` that a ticket names. Anybody may have written the ticket. It is
 * accepted only if it names a file of this user and of that size, made by shm_map_make. DT_INVALID:
 * the ticket is malformed or false; DT_PEER: the file is gone. */
int shm_map_take(struct shm_map *m, const char *ticket, size_t size_bytes, struct dt_error *err);
void shm_map_drop(struct shm_map *m);
/* Number of cores that the given CPUs and the cgroup's quota allow; at least 1. */
int shm_core_count(const uint64_t cpus[SHM_CPU_WORDS]);

#endif
