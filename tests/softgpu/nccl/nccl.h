/* Shared by the files of the fake NCCL: a communicator as one process knows it, and the memory in
 * which its ranks meet.
 *
 * The fake is a library of its own, libnccl.so.2, which tests name in DTRUN_NCCL. It runs on the
 * streams of the software GPU that the program is linked with. Ranks are processes. Like the real
 * one it does not block: joining, splitting, registering and ending go on in a thread while the
 * state is "in progress". Since 2.23 this also holds for enqueueing a collective; before, the call
 * itself enqueues it and may block. A collective is an entry of the stream, where it waits for the
 * other ranks. An aborted collective leaves garbage in its result. With CTA_ZERO an abort does not
 * end it. Nor does an abort end kernels over symmetric windows before 2.29.7, which never check
 * for one.
 *
 * Kernels of two communicators run on a device at the same time only with
 * NCCL_LAUNCH_ORDER_IMPLICIT=1 (2.26), in the order in which the host enqueued them. Otherwise the
 * program ends, because the real ones may wait for each other for ever.
 *
 * Environment variables:
 *   SOFTGPU_NCCL_VERSION  22907; or one per RANK: "22907,22903"
 *   SOFTGPU_NCCL_LOG      a file: one line per call that creates or changes something
 *   SOFTGPU_NCCL_EVENTS   a file: one line per begin and end of a collective on the device
 *   SOFTGPU_NCCL_QUEUE    so many collectives fit into the driver's queue, and the next one waits
 *                         until one has completed; 0: any number
 *   SOFTGPU_NCCL_FAULT    a list of WHAT@RANK[:NUMBER]. NUMBER counts collectives from 1, or calls
 *   SOFTGPU_NCCL_FAULT_RESTART  faults only in workers with this TORCHELASTIC_RESTART_COUNT
 *
 * Faults (WHAT):
 *   init-hang     the rank never joins
 *   init-error    joining fails
 *   init-full     there is no memory for joining
 *   hang          the rank's collective never ends, nor does that of its peers
 *   error         the same, and the communicator reports ncclRemoteError
 *   late-error    the same as error, 0.3 s later
 *   echo          the communicator reports ncclRemoteError, and a moment later the next rank dies
 *   abort-hang    ncclCommAbort does not return
 *   revoke-hang   a revoked communicator never becomes idle
 *   destroy-hang  ncclCommDestroy does not return
 *   no-memory     ncclMemAlloc fails
 *   window        the window is refused
 *   window-error  registering the window fails, which is found later
 *   split-late    the new communicator is in progress for a while after the split has completed
 *   launch-hang   the rank's collective is not enqueued until the communicator is stopped
 *   late-sums     the rank's ReduceScatter passes nothing on until a later AllGather of that rank
 *                 has completed, for at most 0.5 s */
#ifndef DT_TESTS_SOFTGPU_NCCL_NCCL_H
#define DT_TESTS_SOFTGPU_NCCL_NCCL_H

#include "collectives/nccl_abi.h"
#include "tests/softgpu/executor.h"
#include "tests/softgpu/runtime.h"

#include <pthread.h>
#include <stdint.h>

#ifndef NCCL_FAKE_VERSION
#define NCCL_FAKE_VERSION 22907
#endif

enum { RANKS_MAX = 16, CHUNK_BYTES = 256 << 10, WINDOWS_MAX = 64 };
#define COMM_MAGIC 0x6e63636c636f6d6du
#define SEGMENT_MAGIC 0x6e63636c7365676du

struct what { /* all ranks must do the same */
    uint64_t count, bytes;
    int kind, type, op, root;
};

struct part { /* one rank's */
    alignas(64) uint32_t joined;
    int pid, version;
    uint64_t device; /* which one, of which host */
    alignas(64) uint32_t step;
    struct what what;
    /* number of its latest collective, which the next members describe */
    alignas(64) uint32_t split;
    int color, key, maker_pid, maker_fd;
    uint32_t made; /* number of the split for which it created a segment */
    uint64_t inode;
    alignas(64) uint32_t windows; /* number of windows that it began to register */
};

struct segment {
    uint64_t magic;
    uint32_t size;
    struct part parts[RANKS_MAX];
    alignas(4096) unsigned char bounce[RANKS_MAX][CHUNK_BYTES];
};

struct id { /* inside of struct nccl_id */
    uint64_t magic, inode;
    int pid, fd;
};

struct comm {
    uint64_t magic;
    int rank, size, world_rank, device;
    struct id id;
    struct segment *segment;
    uint32_t state;   /* the result of ncclCommGetAsyncError */
    uint32_t stopped; /* aborted or revoked: waiting threads leave */
    uint32_t asked;   /* a caller got ncclRemoteError */
    bool revoked, finalized;
    uint32_t pending; /* number of collectives in streams */
    uint32_t split_count, window_count, step;
    int collectives;
    void *buffers; /* allocated at the first collective: SOFTGPU_NCCL_BUFFERS_MB */
    pthread_t thread;
    bool threaded;
    char name[32];
    struct nccl_config config;
    /* of a split under way */
    struct comm *child, **child_out;
    int color, key;
    struct entry *next; /* the collective that c's thread enqueues */
    struct window_task {
        void *base, **out;
        size_t size_bytes;
    } window; /* being registered */
    struct {
        const unsigned char *base;
        size_t size_bytes;
    } windows[WINDOWS_MAX]; /* registered windows, all symmetric, in the first window_count
                             * places */
};

/* segment.cc */
/* set while this thread runs a task: a wait in it continues even if c was stopped */
extern __thread bool nothing_ends;
struct segment *segment_make(int size, struct id *id);
struct segment *segment_open(const struct id *id);
/* Waits until *word >= value; false when c was stopped before. */
bool meet_at(const struct comm *c, const uint32_t *word, uint32_t value);
/* Called by all ranks: sets this rank's word at the given offset of its part, and waits until the
 * words of the others have reached the value. */
bool meet_all(struct comm *c, size_t word, uint32_t value);
/* A barrier of all ranks. */
bool meet(struct comm *c);

/* nccl.cc */
bool fault(const char *what, int rank, int number);
void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void event(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
struct comm *comm_of(nccl_comm c, const char *function);
void set_state(struct comm *c, int state);
/* c has failed for this reason and can do nothing more; returns the result. */
int failed(struct comm *c, int result, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int state_of(struct comm *c);
/* Returns false if c was in another state, which stays: the error of a running collective. */
bool change_state(struct comm *c, int from, int to);
/* Runs fn(c) in c's thread. begin: mark c as in progress, whatever its state was. */
void run_beside(struct comm *c, void *(*fn)(void *));
void begin(struct comm *c, void *(*fn)(void *));
/* The last thread of c has ended. */
void settle(struct comm *c);
int own_version(void);

#endif
