/* Inside of the backend over NCCL, and the four files that share it: nccl.c (opening, memory,
 * the collectives), nccl_agree.c (versions), nccl_watch.c (who is where in which collective,
 * deadlines, mistakes), nccl_stop.c (calls that do not block, leaving).
 *
 *   hosts     control: a communicator of host memory (shm on one host, tcp between hosts): who is gone, what one fails with all are told, small facts
 *   devices   main, gather: NCCL's communicators of the same ranks; gathers go by the second one where DTRUN_NCCL_ZERO_CTA=1 asks for gathers that take no multiprocessors
 *
 * Calls on a handle are made under `lock`: besides the thread that owns the communicator, the
 * one that looks after peers (watch.c) asks for its state; it never waits for the lock, since
 * versions up to 2.22 launch in the calling thread, which may sit in a full queue of the driver.
 * No call of NCCL blocks: each one is followed by looks at the communicator's state, at the
 * control, at the deadline. A communicator that has failed is stopped by a thread of its own, so
 * that whoever noticed goes on at once, whatever NCCL does. */
#ifndef DT_COLLECTIVES_NCCL_H
#define DT_COLLECTIVES_NCCL_H

#include "collectives/comm.h"
#include "collectives/nccl_load.h"

#include <stdalign.h>

enum {
    NCCL_ARENAS_MAX = 16,
    NCCL_RING = 64,
    NCCL_TEXT_WORDS = 12,
    NCCL_TEXT_BYTES = 8 * NCCL_TEXT_WORDS,
    NCCL_HANDLES = 2
};
enum nccl_which { NCCL_MAIN, NCCL_GATHER };
/* begins: a thread that ends it has not taken the device yet; left: it cannot be ended while the
 * process lives */
enum nccl_rest { NCCL_GOES_ON, NCCL_BEGINS, NCCL_AT_REST, NCCL_LEFT };
#define NCCL_LOOK_S 0.02

struct nccl_said { /* what a rank puts into its stream; written by it, read by others of its host */
    _Atomic uint32_t number;
    _Atomic uint64_t digest;
    _Atomic uint64_t text[NCCL_TEXT_WORDS]; /* may be read while it changes; then the number has
                                             * changed too */
};

/* one rank's part of the memory that ranks of a host share */
struct nccl_side {
    alignas(64) uint32_t ready; /* written by its stream: the collective that it has come to */
    alignas(64) uint32_t done;  /* and the one that it has come through */
    alignas(64) struct nccl_said said[NCCL_RING];
};

struct nccl_arena {
    void *base;
    size_t size_bytes;
    bool of_nccl; /* by ncclMemAlloc */
};

struct nccl {
    const struct dt_nccl *lib;
    struct dt_comm *control;
    nccl_comm handles[NCCL_HANDLES];
    pthread_mutex_t lock;       /* of calls on the handles; a launch may hold it for as long as
                                 * the driver's queue is full */
    _Atomic bool dead;          /* a thread stops or has stopped it: nobody else calls NCCL */
    pthread_mutex_t facts_lock; /* never held over a call: of the following three and of seen_* */
    struct dt_error why;        /* the first failure; status DT_OK: none */
    struct dt_device *device;
    char device_name[160]; /* as messages name it; a device that is broken may not tell any more */
    _Atomic bool stopping;
    _Atomic int rest;          /* enum nccl_rest, of the thread that stops or ends it */
    bool control_open, opened; /* opened: all of it */
    bool joined;               /* it stands in its parent's list of groups */
    bool splitting;            /* the parent's split may still set handles here */
    bool left;                 /* a group of it is stuck inside NCCL, and may use the arenas */
    unsigned features;         /* DT_NCCL_*, those that all ranks have; of ZERO_CTAS also: and
                                * want */
    struct nccl_arena arenas[NCCL_ARENAS_MAX];
    int arena_count;
    void *windows[NCCL_ARENAS_MAX * 4][2]; /* nccl_comm, nccl_window */
    nccl_comm none;                        /* where a split of which this rank is no part would
                                            * put its communicator, at any time */
    void *scratch;                         /* device memory for a barrier */
    struct dt_comm *groups, *next_group;   /* whose parent this one is; they use its arenas */
    uint32_t step;
    /* nccl_watch.c */
    struct nccl_side *sides; /* of this host's ranks, side_count of them, side_stride bytes apart */
    size_t side_stride;
    int side_count, own_side;
    const int *side_ranks;          /* null: side i is rank i */
    uint32_t seen_done, seen_ready; /* under the facts' lock */
    double seen_s;
};

/* nccl.c */
/* A collective of host memory, by the hosts' communicator; until all have taken part,
 * open_timeout_s at most. */
int nccl_hosts_run(struct dt_comm *c, enum dt_coll kind, const char *name, const void *in, void *out, size_t size_bytes,
                   struct dt_error *err);

/* nccl_agree.c */
/* Loads NCCL: sets lib and features. All ranks call it alike, when `control` is open; -1 with
 * the same text on all where one has no NCCL (its status; the text names rank and, of several,
 * host), or another version than rank 0 (DT_INVALID, with both). */
int nccl_agree(struct dt_comm *c, struct dt_error *err);
/* An error that all ranks have because of one: notes whose words they are. */
void nccl_heard(const struct dt_comm *c, int rank, struct dt_error *err);

/* nccl_watch.c */
int nccl_watch_open(struct dt_comm *c, struct dt_error *err);
void nccl_watch_close(struct dt_comm *c);
/* Says what this rank is about to put into its stream as its collective n->step, and compares it
 * with those of this host that have come already. */
int nccl_say(struct dt_comm *c, const struct dt_collective *x, struct dt_error *err);
void nccl_mark(struct dt_comm *c, struct dt_stream *s, bool done);
/* This rank's stream stands in a collective for longer than allowed: who is missing? */
bool nccl_waits(struct dt_comm *c);
int nccl_check_clock(struct dt_comm *c, struct dt_error *err);
/* "reduce unit 4 (number 118), missing: rank 3, last in ...": where this rank stands. */
struct dt_text;
void nccl_describe(struct dt_comm *c, struct dt_text *out);

/* nccl_stop.c */
/* After a call on c's handle `which` that returned rc: waits until it is through. `what`: the
 * function, for messages. A failure is everybody's. */
int nccl_settle(struct dt_comm *c, enum nccl_which which, int rc, double timeout_s, const char *what,
                struct dt_error *err);
/* 0, or -1 with the first failure, or with DT_STOPPED when it was stopped without one. */
int nccl_first(struct nccl *n, struct dt_error *err);
/* Is NCCL well? 0, or -1 with what it says. */
int nccl_look(struct dt_comm *c, struct dt_error *err);
/* Keeps the first failure, tells the others, stops NCCL; err gets the first one. -1. */
int nccl_give_up(struct dt_comm *c, struct dt_error *err);
void nccl_stop(struct dt_comm *c);
/* One that is being stopped uses nothing any more. False: not within the time that closing may
 * take. */
bool nccl_await_rest(struct dt_comm *c);
/* Ends NCCL's communicators, in good order or stopped. False: it does not come back, and nothing
 * that it uses may be freed. */
bool nccl_end(struct dt_comm *c);

#endif
