/* Communicators: a group of ranks that call the same collectives in the same order.
 * dt_comm_start gives every collective a number, counts and watches it, then hands it to the
 * backend: "solo" (one rank), "shm" (ranks of one host, as processes or as threads of one),
 * "tcp" (ranks of several hosts; those of one host by shm), "peer" (ranks whose devices reach
 * each other's memory), "nccl" (ranks with a GPU each). Sums are in canonical-tree order
 * (tree.h), so that they have the same bits for every size, offset and bucket layout; not so by
 * "nccl": nccl.c.
 *
 * Use: one thread of a rank calls open, split, alloc, start, close; abort and poll may be called
 * from any thread. Collectives of one communicator go to one stream at a time. The first failure
 * stays: whatever is started later does nothing, and the stream it was started on carries the
 * failure. Other communicators of the same ranks are independent, but on a device with memory of
 * its own a communicator and its groups fail together: there a thread looks after the peers
 * (watch.h), and lets all streams go. Whether two of them may be on such a device at once, on
 * two streams: dt_comm_beside. */
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
 * count elements, for all_gather in = out + rank * count elements), otherwise they do not
 * overlap. Buffers inside the arenas of dt_comm_alloc are used where they are; others are copied
 * through a small buffer inside.
 *   all_reduce      in, out: count elements; any of sum, max, min
 *   reduce_scatter  in: size * count elements, out: count elements, those of slice `rank`
 *   all_gather      in: count elements, out: size * count elements
 *   broadcast       in of rank `root` (not read elsewhere), out: count elements
 *   barrier         nothing else is read
 * Types to reduce: F32, F64, BF16 (summed in float, rounded once), I64. all_gather and broadcast
 * take all types. A NaN among the values of max or min may be lost; sums keep it. */
struct dt_collective {
    enum dt_coll kind;
    enum dt_reduction op;
    const char *name; /* what it is for, "reduce unit 4"; for messages, and compared between
                       * ranks; null: "" */
    const void *in;
    void *out;
    int64_t count; /* elements of one rank's slice for reduce_scatter and all_gather, of the
                    * whole otherwise; 0 is allowed */
    enum dt_dtype type;
    int root;
};

/* What was started, by kind. Bytes are those of the whole buffer: count elements for all_reduce
 * and broadcast, size * count for reduce_scatter and all_gather. Written by dt_comm_start. */
struct dt_comm_stats {
    int64_t count[DT_COLL_COUNT];
    int64_t bytes[DT_COLL_COUNT];
};

struct dt_comm_options {
    const char *backend; /* "solo", "shm", "tcp", "peer", "nccl"; null: solo for one rank; with a
                          * device that has memory of its own nccl when host is set, otherwise
                          * peer; with host memory tcp when host is set, otherwise shm */
    const char *host;    /* key of the host this rank is on, without blanks, at most 63 bytes: ranks
                          * with the same one share memory; may be null */
    const char *name;    /* in messages and store keys; null: "world". Two communicators opened on
                          * one store differ in it */
    int rank, size;
    struct dt_store *store;   /* used in open only; may be null for one rank */
    struct dt_page *page;     /* orders are obeyed and the collective is shown there; may be null */
    struct dt_device *device; /* where buffers are; null: host memory */
    double timeout_s;         /* one collective, from its start on this rank until all take part;
                               * 0: 600 */
    double open_timeout_s;    /* open, split, alloc; 0: 300 */
    int sm_limit;             /* nccl: multiprocessors that a collective may take; 0: as the
                               * library chooses */
};

/* How the others find what rank 0 of a communicator has made: text that travels through the
 * store, or through the parent. */
#define DT_COMM_TICKET_BYTES 256

struct dt_comm_ops {
    const char *name;
    bool all_offer; /* every rank makes a ticket, and open gets all of them: size times
                     * DT_COMM_TICKET_BYTES, in rank order */
    /* Rank 0 only, without all_offer: makes what the others need, says in ticket where it is. */
    int (*offer)(struct dt_comm *c, char ticket[DT_COMM_TICKET_BYTES], struct dt_error *err);
    /* All ranks, with rank 0's ticket; done when all are there. c->parent and c->members are set
     * for a group. */
    int (*open)(struct dt_comm *c, const char *ticket, struct dt_error *err);
    int (*alloc)(struct dt_comm *c, size_t size_bytes, void **out, struct dt_error *err);
    /* Runs one collective in the calling thread until it is done or c->stopped is set. */
    int (*run)(struct dt_comm *c, const struct dt_collective *x, int64_t number, double timeout_s,
               struct dt_error *err);
    int (*poll)(struct dt_comm *c, struct dt_error *err);
    void (*abort)(struct dt_comm *c);
    void (*close)(struct dt_comm *c); /* also of a half-open one */
    /* Backends of device memory; null: `run` is called in stream order. Enqueues one collective
     * on s; waits for nobody. */
    int (*start)(struct dt_comm *c, const struct dt_collective *x, int64_t number, struct dt_stream *s,
                 struct dt_error *err);
    /* Of such backends: has a stream come to where it waits for peers? Null: it cannot say. */
    bool (*waits)(struct dt_comm *c);
    /* Tells all other ranks why this one fails; the first of all is kept. For watch.c, and for
     * backends that work with this one inside; null for one rank. */
    void (*tell)(struct dt_comm *c, const struct dt_error *why);
    /* All ranks of parent, before the groups are opened; group: this rank's, or null where that
     * has one rank or none. May be null. */
    int (*split)(struct dt_comm *parent, struct dt_comm *group, int color, struct dt_error *err);
    int (*sms)(const struct dt_comm *c, enum dt_coll kind); /* dt_comm_sms; null: 0 */
    bool (*beside)(const struct dt_comm *c);                /* dt_comm_beside; null: false */
    bool connects_late;                                     /* what a kind of collective needs is
                                                             * made with the first one:
                                                             * dt_comm_connect */
};

struct dt_comm {
    int rank, size;
    char name[32];
    const struct dt_comm_ops *ops;
    void *state; /* the backend's */
    struct dt_comm *parent;
    int *members;             /* rank in parent of each rank here; null without parent */
    int *shown;               /* what messages call the ranks here, when this one works inside
                               * another; else null */
    struct dt_store *store;   /* while it is opened; null for a group */
    struct dt_device *device; /* whose memory alloc gives; null: the host's */
    char host[64];
    struct dt_page *page;
    struct comm_watch *watch; /* of backends with `start`: who looks after the peers; else null */
    double timeout_s, open_timeout_s;
    int sm_limit;
    int64_t number; /* of the last collective started; 1, 2, ... */
    struct dt_comm_stats stats;
    _Atomic int stopped;  /* 1: abort was called, 2: the first failure is in `error` */
    pthread_mutex_t lock; /* guards error */
    struct dt_error error;
};

const char *dt_coll_name(enum dt_coll kind);         /* "all_reduce" */
const char *dt_reduction_name(enum dt_reduction op); /* "sum" */

/* Opens a communicator; all `size` ranks call it alike. Errors: DT_TIMEOUT naming the missing
 * ranks, DT_PEER, DT_STOPPED when the page orders to abort, DT_INVALID for an unknown backend. */
int dt_comm_open(struct dt_comm **out, const struct dt_comm_options *o, struct dt_error *err);
/* Groups: all ranks of `parent` call it alike; those with the same color (>= 0) form one, in the
 * order of their ranks. With a negative color *out is null. The parent's arenas serve its
 * groups. Close groups before their parent. */
int dt_comm_split(struct dt_comm *parent, int color, const char *name, struct dt_comm **out, struct dt_error *err);
/* Zeroed memory that peers reach, aligned to 4096 bytes, which lives as long as c. All ranks
 * call it alike with the same size. */
int dt_comm_alloc(struct dt_comm *c, size_t size_bytes, void **out, struct dt_error *err);
/* Enqueues one collective on s (x is copied, buffers and name's text are borrowed until it is
 * done); null: runs it before it returns, on host memory. Failures go to the stream and to
 * dt_comm_poll. */
void dt_comm_start(struct dt_comm *c, const struct dt_collective *x, struct dt_stream *s);
/* Makes what the backend would make with its first collectives, connections and their buffers,
 * so that what is free of the device's memory afterwards is what is left: runs collectives of
 * these kinds (bits 1 << enum dt_coll) on s, of one element and of `bytes` in all, on memory of
 * its own, and waits. All ranks call it alike. Backends that make nothing then return at once.
 * DT_NO_MEMORY: it found no room. */
int dt_comm_connect(struct dt_comm *c, unsigned kinds, size_t bytes, struct dt_stream *s, struct dt_error *err);
/* Multiprocessors of the device that a collective of this kind may take from what computes
 * beside it, at most; 0: none, or nothing bounds them. The same as long as c is open. */
int dt_comm_sms(const struct dt_comm *c, enum dt_coll kind);
/* May collectives of c and of its groups run beside each other, on a stream for each, if all
 * ranks of c start them in the same order from one thread? The same on all ranks, as long as c
 * is open. Otherwise those of all of them belong on one stream, or ranks may wait for each other
 * for good. */
bool dt_comm_beside(const struct dt_comm *c);
/* Is everything well? -1 with the first failure of this communicator, or with DT_PEER when a
 * peer is gone. Does not wait. Ask it while waiting for a stream. */
int dt_comm_poll(struct dt_comm *c, struct dt_error *err);
/* What the job calls the communicator's rank `rank`: who is to blame for a failure. */
int dt_comm_job_rank(const struct dt_comm *c, int rank);
/* Has it failed or was it aborted, as far as is known? -1 with why. Looks at nobody: for loops. */
int dt_comm_stopped(struct dt_comm *c, struct dt_error *err);
/* Frees streams that wait in c, here and on the other ranks; c can only be closed afterwards. */
void dt_comm_abort(struct dt_comm *c);
/* Nothing of c may be running on a stream (call abort and wait for the stream first if something
 * may). Null is allowed. */
void dt_comm_close(struct dt_comm *c);

#endif
