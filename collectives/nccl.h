/* Internals of the NCCL backend, shared by four files: nccl.c (opening, memory, the collectives),
 * nccl_agree.c (versions), nccl_watch.c (which rank is in which collective, deadlines, mistakes),
 * nccl_stop.c (calls that do not block, leaving).
 *
 *   hosts     control: a communicator of host memory (shm on one host, tcp between hosts). Tells
 *             who is gone, tells all ranks the failure of one, carries small facts.
 *   devices   main, gather: NCCL's communicators of the same ranks. Gathers use the second one
 *             where DTRUN_NCCL_ZERO_CTA=1 asks for gathers that take no multiprocessors.
 *
 * Calls on a handle are made under `lock`, because two threads make them: the owner of the
 * communicator, and the thread that watches peers (watch.c) and asks for its state. The watcher
 * never waits for the lock: versions up to 2.22 launch in the calling thread, which may block in
 * a full queue of the driver. No call of NCCL blocks: after each one we poll the communicator's
 * state, the control and the deadline. A thread of its own stops a communicator that has failed,
 * so the thread that noticed the failure goes on at once, whatever NCCL does. */
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
/* NCCL_BEGINS: the thread that ends the communicator has not set its device yet. NCCL_LEFT: the
 * communicator cannot be ended while the process lives. */
enum nccl_rest { NCCL_GOES_ON, NCCL_BEGINS, NCCL_AT_REST, NCCL_LEFT };
#define NCCL_LOOK_S 0.02

/* The call that a rank enqueues on its stream. The rank writes it; the others of its host read it. */
struct nccl_notice {
    _Atomic uint32_t number;
    _Atomic uint64_t digest;
    /* may be read while it changes; then `number` has changed too */
    _Atomic uint64_t text[NCCL_TEXT_WORDS];
};

/* one rank's part of the memory that the ranks of a host share */
struct nccl_side {
    alignas(64) uint32_t ready; /* written by the rank's stream: the collective it has reached */
    /* written by the rank's stream: the last collective it has finished */
    alignas(64) uint32_t done;
    alignas(64) struct nccl_notice notices[NCCL_RING];
};

struct nccl_arena {
    void *base;
    size_t size_bytes;
    bool of_nccl; /* memory of ncclMemAlloc */
};

struct nccl {
    const struct dt_nccl *lib;
    struct dt_comm *control;
    nccl_comm handles[NCCL_HANDLES];
    /* of calls on the handles; a launch may hold it for as long as the driver's queue is full */
    pthread_mutex_t lock;
    /* a thread stops or has stopped the communicator: no other thread may call NCCL */
    _Atomic bool dead;
    /* guards `why` and seen_*; never held during a call */
    pthread_mutex_t facts_lock;
    struct dt_error why; /* the first failure; status DT_OK: none */
    struct dt_device *device;
    char device_name[160]; /* for messages; a broken device may no longer tell its name */
    _Atomic bool stopping;
    /* enum nccl_rest: the state of the thread that stops or ends the communicator */
    _Atomic int rest;
    bool control_open, opened; /* opened: open has succeeded */
    bool joined;               /* in the parent's list of groups */
    bool splitting;            /* the parent's split may still set handles here */
    /* NCCL does not return from ending a group, which may still use the arenas */
    bool left;
    /* DT_NCCL_*, those that all ranks have; ZERO_CTAS only if all want it, too */
    unsigned features;
    struct nccl_arena arenas[NCCL_ARENAS_MAX];
    int arena_count;
    void *windows[NCCL_ARENAS_MAX * 4][2]; /* nccl_comm, nccl_window */
    /* written, at any time, by a split that leaves this rank out */
    nccl_comm none;
    void *scratch; /* device memory for a barrier */
    /* the groups whose parent this is, which use its arenas; the next group of the same parent */
    struct dt_comm *groups, *next_group;
    uint32_t step;
    /* nccl_watch.c */
    struct nccl_side *sides; /* of this host's ranks: side_count of them, side_stride bytes apart */
    size_t side_stride;
    int side_count, own_side;
    const int *side_ranks;          /* null: side i is rank i */
    uint32_t seen_done, seen_ready; /* guarded by facts_lock */
    double seen_s;
};

/* nccl.c */
/* Runs a collective on host memory by the control. Waits until all ranks take part, at most
 * open_timeout_s. */
int nccl_hosts_run(struct dt_comm *c, enum dt_coll kind, const char *name, const void *in, void *out, size_t size_bytes,
                   struct dt_error *err);

/* nccl_agree.c */
/* Loads NCCL: sets lib and features. All ranks call it alike, once `control` is open. -1 with the
 * same text on all ranks: one has no NCCL (with its status; the text names the rank and, of
 * several, its host), or another version than rank 0 (DT_INVALID; the text names both). */
int nccl_agree(struct dt_comm *c, struct dt_error *err);
/* For an error that all ranks have because of rank `rank`: notes that rank as its source. */
void nccl_heard(const struct dt_comm *c, int rank, struct dt_error *err);

/* nccl_watch.c */
int nccl_watch_open(struct dt_comm *c, struct dt_error *err);
void nccl_watch_close(struct dt_comm *c);
/* Publishes what this rank is about to enqueue as collective n->step. Compares it with what other
 * ranks of this host have published for the same number. */
int nccl_publish(struct dt_comm *c, const struct dt_collective *x, struct dt_error *err);
void nccl_mark(struct dt_comm *c, struct dt_stream *s, bool done);
/* True while this rank's stream is inside a collective. */
bool nccl_waits(struct dt_comm *c);
/* Fails with DT_TIMEOUT when this rank's stream has stood in a collective for timeout_s. The text
 * names the missing ranks. */
int nccl_check_clock(struct dt_comm *c, struct dt_error *err);
/* Appends where this rank's stream stands: ", in all_reduce grads 3 of 100 F32 (number 118)".
 * Appends nothing outside of a collective. */
struct dt_text;
void nccl_describe(struct dt_comm *c, struct dt_text *out);

/* nccl_stop.c */
/* Call it after a call on c's handle `which` that returned rc: waits until NCCL has completed that
 * call. `what`: the function's name, for messages. A failure is told to all ranks. */
int nccl_settle(struct dt_comm *c, enum nccl_which which, int rc, double timeout_s, const char *what,
                struct dt_error *err);
/* 0, or -1 with the first failure, or with DT_STOPPED if c was stopped without one. */
int nccl_first(struct nccl *n, struct dt_error *err);
/* 0, or -1 with the failure that NCCL reports. */
int nccl_look(struct dt_comm *c, struct dt_error *err);
/* Keeps the first failure, tells the other ranks, stops NCCL. err becomes the first failure.
 * Returns -1. */
int nccl_give_up(struct dt_comm *c, struct dt_error *err);
void nccl_stop(struct dt_comm *c);
/* Waits until a communicator that is being stopped uses nothing any more. False: not within the
 * time that closing may take. */
bool nccl_await_rest(struct dt_comm *c);
/* Ends NCCL's communicators, in good order or stopped. False: NCCL does not return, and memory that
 * it uses must not be freed. */
bool nccl_end(struct dt_comm *c);

#endif
