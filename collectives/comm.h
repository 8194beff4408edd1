/* Communicators: a group of ranks that call the same collectives in the same order. dt_comm_start
 * gives every collective a number, counts and watches it, then hands it to the backend: "solo" (one
 * rank), "shm" (ranks of one host, as processes or as threads of one process), "tcp" (ranks of
 * several hosts; shm within each host), "peer" (ranks whose devices reach each other's memory),
 * "nccl" (ranks with a GPU each). Sums are taken in canonical-tree order (tree.h), so their bits do
 * not depend on size, offset or bucket layout. The exception is "nccl": see nccl.c.
 *
 * Use: one thread of a rank calls open, split, alloc, start and close. Any thread may call abort
 * and poll. Collectives of one communicator go to one stream at a time. The first failure is
 * kept: collectives started later do nothing, and their streams carry the failure. Other
 * communicators of the same ranks are independent. But on a device with memory of its own, a
 * communicator and its groups fail together: a thread watches the peers (watch.h) and releases
 * the streams of all of them. dt_comm_beside tells whether two of them may run on such a device
 * at once, on two streams. */
#ifndef DT_COLLECTIVES_COMM_H
#define DT_COLLECTIVES_COMM_H

#include "base/dtype.h"
#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm_watch;
struct dt_comm;
struct dt_device;
struct dt_page;
struct dt_store;
struct dt_stream;

enum dt_coll { DT_ALL_REDUCE, DT_REDUCE_SCATTER, DT_ALL_GATHER, DT_BROADCAST, DT_BARRIER, DT_COLL_COUNT };
enum dt_reduction { DT_SUM, DT_MAX, DT_MIN, DT_REDUCTION_COUNT };

/* One collective. `in` and `out` may be the same buffer (for reduce_scatter: out = in + rank *
 * count elements, for all_gather: in = out + rank * count elements). Otherwise they do not overlap.
 * Buffers inside the arenas of dt_comm_alloc are used in place. Others are copied through a small
 * internal buffer.
 *   all_reduce      in, out: count elements; any of sum, max, min
 *   reduce_scatter  in: size * count elements, out: count elements, those of slice `rank`
 *   all_gather      in: count elements, out: size * count elements
 *   broadcast       in of rank `root` (not read elsewhere), out: count elements
 *   barrier         nothing else is read
 * Types to reduce: F32, F64, BF16 and F16 (summed in float, rounded once), I64. all_gather and broadcast
 * take all types. A NaN among the values of max or min may be lost; sums keep it. */
struct dt_collective {
    enum dt_coll kind;
    enum dt_reduction op;
    /* purpose, "reduce unit 4"; shown in messages and compared between ranks; null: "" */
    const char *name;
    const void *in;
    void *out;
    /* elements: of one rank's slice for reduce_scatter and all_gather, else of the whole buffer; 0
     * is allowed */
    int64_t count;
    enum dt_dtype type;
    int root;
};

/* Collectives started so far, by kind. Bytes are those of the whole buffer: count elements for
 * all_reduce and broadcast, size * count for reduce_scatter and all_gather. Written by
 * dt_comm_start. */
struct dt_comm_stats {
    int64_t count[DT_COLL_COUNT];
    int64_t bytes[DT_COLL_COUNT];
};

struct dt_comm_options {
    /* "solo", "shm", "tcp", "peer" or "nccl". Null: "solo" for one rank. Null and a device with
     * memory of its own: "nccl" when host is set, otherwise "peer". Null and host memory: "tcp"
     * when host is set, otherwise "shm". */
    const char *backend;
    /* key of this rank's host, without blanks, at most 63 bytes; ranks with the same key share
     * memory; may be null */
    const char *host;
    /* used in messages and store keys; null: "world". Communicators opened on one store need
     * different names */
    const char *name;
    int rank, size;
    struct dt_store *store; /* used by open only; may be null for one rank */
    /* the current collective is shown there, and its orders are obeyed; may be null */
    struct dt_page *page;
    struct dt_device *device; /* the device whose memory holds the buffers; null: host memory */
    /* longest time of one collective, from its start on this rank until all ranks take part; 0:
     * 600 */
    double timeout_s;
    double open_timeout_s; /* the same for open, split and alloc; 0: 300 */
    /* nccl: most multiprocessors that a collective may take; 0: NCCL chooses */
    int sm_limit;
};

/* A ticket: text that tells the other ranks where to find what one rank has made for a
 * communicator. It travels through the store, or through the parent communicator. */
#define DT_COMM_TICKET_BYTES 256

struct dt_comm_ops {
    const char *name;
    /* every rank makes a ticket, and open gets all of them: size * DT_COMM_TICKET_BYTES bytes, in
     * rank order */
    bool all_offer;
    /* Called on rank 0 only, or on every rank with all_offer. Makes what the other ranks need and
     * writes into the ticket where it is. */
    int (*offer)(struct dt_comm *c, char ticket[DT_COMM_TICKET_BYTES], struct dt_error *err);
    /* Called on all ranks with rank 0's ticket; returns when all ranks are there. For a group,
     * c->parent and c->members are set. */
    int (*open)(struct dt_comm *c, const char *ticket, struct dt_error *err);
    int (*alloc)(struct dt_comm *c, size_t size_bytes, void **out, struct dt_error *err);
    /* Runs one collective in the calling thread. Returns when it is done or c->stopped is set. */
    int (*run)(struct dt_comm *c, const struct dt_collective *x, int64_t number, double timeout_s,
               struct dt_error *err);
    int (*poll)(struct dt_comm *c, struct dt_error *err);
    void (*abort)(struct dt_comm *c);
    void (*close)(struct dt_comm *c); /* also closes a communicator whose open failed */
    /* For backends of device memory; null: `run` is called in stream order. Enqueues one collective
     * on s and waits for no rank. */
    int (*start)(struct dt_comm *c, const struct dt_collective *x, int64_t number, struct dt_stream *s,
                 struct dt_error *err);
    /* For such backends: tells whether a stream now waits for peers. Null: unknown. */
    bool (*waits)(struct dt_comm *c);
    /* Tells all other ranks why this one fails. The first failure of all ranks is kept. Called by
     * watch.c, and by backends that run this one inside. Null for one rank. */
    void (*tell)(struct dt_comm *c, const struct dt_error *why);
    /* Called on all ranks of parent before the groups are opened. group: this rank's, or null if
     * its group has one rank or it has none. May be null. */
    int (*split)(struct dt_comm *parent, struct dt_comm *group, int color, struct dt_error *err);
    int (*sms)(const struct dt_comm *c, enum dt_coll kind); /* dt_comm_sms; null: 0 */
    bool (*beside)(const struct dt_comm *c);                /* dt_comm_beside; null: false */
    /* connections and buffers are made with the first collective of each kind: dt_comm_connect */
    bool connects_late;
};

struct dt_comm {
    int rank, size;
    char name[32];
    const struct dt_comm_ops *ops;
    void *state; /* owned by the backend */
    struct dt_comm *parent;
    int *members; /* the parent's rank of each rank; null without parent */
    /* the number that messages give each rank when this one runs inside another communicator; else
     * null */
    int *shown;
    struct dt_store *store;   /* only while it is being opened; null for a group */
    struct dt_device *device; /* the device whose memory alloc gives; null: host memory */
    char host[64];
    struct dt_page *page;
    /* the thread that watches the peers, for backends with `start`; else null */
    struct comm_watch *watch;
    double timeout_s, open_timeout_s;
    int sm_limit;
    int64_t number; /* of the last collective started, counted from 1 */
    struct dt_comm_stats stats;
    _Atomic int stopped;  /* 1: abort was called; 2: the first failure is in `error` */
    pthread_mutex_t lock; /* guards error */
    struct dt_error error;
};

const char *dt_coll_name(enum dt_coll kind);         /* "all_reduce" */
const char *dt_reduction_name(enum dt_reduction op); /* "sum" */

/* Opens a communicator. All `size` ranks call it alike. Errors: DT_TIMEOUT naming the missing
 * ranks, DT_PEER, DT_STOPPED when the page orders an abort, DT_INVALID for an unknown backend. */
int dt_comm_open(struct dt_comm **out, const struct dt_comm_options *o, struct dt_error *err);
/* Makes groups. All ranks of `parent` call it alike. Ranks with the same color (>= 0) form one
 * group, in the order of their ranks. With a negative color *out is null. The parent's arenas serve
 * its groups. Close groups before their parent. */
int dt_comm_split(struct dt_comm *parent, int color, const char *name, struct dt_comm **out, struct dt_error *err);
/* *out: zeroed memory that peers reach, aligned to 4096 bytes, valid until c is closed. All ranks
 * call it alike with the same size. */
int dt_comm_alloc(struct dt_comm *c, size_t size_bytes, void **out, struct dt_error *err);
/* Enqueues one collective on s. x is copied; the buffers and the text of name are borrowed until
 * the collective is done. With s null it runs on host memory before this returns. Failures go to
 * the stream and to dt_comm_poll. */
void dt_comm_start(struct dt_comm *c, const struct dt_collective *x, struct dt_stream *s);
/* Runs two collectives of each of these kinds (bits 1 << enum dt_coll) on s, on memory of its own:
 * one of one element, one of `bytes` in all. Waits for them. Backends make connections and buffers
 * with the first collectives of a kind; afterwards the device's free memory is what remains for the
 * job. All ranks call it alike. Returns at once for backends that make nothing then. DT_NO_MEMORY:
 * the buffers found no room. */
int dt_comm_connect(struct dt_comm *c, unsigned kinds, size_t bytes, struct dt_stream *s, struct dt_error *err);
/* Most multiprocessors that a collective of this kind may take from computation beside it. 0: none,
 * or there is no bound. Constant while c is open. */
int dt_comm_sms(const struct dt_comm *c, enum dt_coll kind);
/* True if collectives of c and of its groups may run side by side, on a stream for each. All ranks
 * of c must then start them in the same order from one thread. The same on all ranks, and constant
 * while c is open. If false, use one stream for all of them, or ranks may wait for each other for
 * ever. */
bool dt_comm_beside(const struct dt_comm *c);
/* 0, or -1 with the first failure of this communicator, or with DT_PEER when a peer is gone. Does
 * not wait. Call it while waiting for a stream. */
int dt_comm_poll(struct dt_comm *c, struct dt_error *err);
/* The job's rank number of the communicator's rank `rank`, for naming the rank to blame. */
int dt_comm_job_rank(const struct dt_comm *c, int rank);
/* 0, or -1 with the cause if c has failed or was aborted. Reads only what this rank knows already,
 * so loops may call it. */
int dt_comm_stopped(struct dt_comm *c, struct dt_error *err);
/* Releases streams that wait in c, here and on the other ranks. Afterwards c can only be closed. */
void dt_comm_abort(struct dt_comm *c);
/* No stream may still run a collective of c. If one may, call abort and wait for the stream first.
 * Null is allowed. */
void dt_comm_close(struct dt_comm *c);

#endif
