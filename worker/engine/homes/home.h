/* Homes: where this rank's slices rest between their uses. A home is a row of functions; a struct
 * home is one array at such a place, as weights, gradients, masters, or one state of the optimizer.
 * A strategy says which home each array has (struct residence), and the job's section `offload` may
 * choose another one. On the device (device.c) an array lies in the plan, bring returns its address, and
 * back does nothing. In the host's memory (host.c) and in files (nvme.c) it rests outside of the device's
 * memory; both share windows.c.
 *
 * Whatever reads or writes a slice brings it first and gives it back afterwards:
 *
 *     void *x = home_bring(part, bytes, HOME_CHANGE, stream);
 *     ...                                      work on x, enqueued on `stream`
 *     home_back(part, bytes, stream);
 *
 * What a caller does:
 *   - It uses the address only in work of `stream` that is enqueued between the two calls, or on the
 *     host after that stream was waited for. Another stream brings for itself.
 *   - It gives back the same bytes before it brings others of this array, but for several that
 *     together have no more than the bytes that it named while planning, and are HOME_PIECES_MOST at most.
 *   - It says the use. HOME_READ leaves the bytes as they are. HOME_WRITE writes all of them: what
 *     is there before is arbitrary. HOME_CHANGE reads and writes. HOME_SPEND reads them for the last
 *     time and may write over them: what is brought after that is arbitrary until they are written.
 *   - It orders its own streams as if the array lay in device memory. A home may add waits, and
 *     takes none away.
 *
 * What a home does:
 *   - bring and back enqueue and return. Neither waits for a device or a disk, and neither fails: an
 *     error becomes the stream's (dt_stream_fail_with), the address is valid all the same, and the
 *     step ends as with any failed stream.
 *   - What is brought has the bytes that the last back of them left, whatever streams the two were
 *     called for.
 *   - It allocates all memory through the plan, before the first step.
 *
 * A home outside of device memory has room on the device for two or three portions, and streams, or
 * a thread with a ring, of its own. Its bring starts the transfer in as soon as room is free, and
 * lets the caller's stream wait for it. Its back lets the transfer out wait for the caller's stream,
 * and frees the room when it is over. Nothing else is needed for an update in which all of this goes
 * on at once, since the host enqueues far ahead of the device:
 *
 *   in        | portion 0 | portion 1 | portion 2 (room of 0 is free) | ...
 *   compute               | update 0  | update 1  | update 2          | publish weights
 *   out                               | portion 0 | portion 1         | ...
 *
 * A checkpoint, a start and an export bring pieces on the compute stream like everything else, after
 * trainer_settle: there is no second way to the bytes. When a transfer out fails later, the stream
 * of the next bring fails, so no checkpoint is made of bytes that were lost. */
#ifndef DT_WORKER_ENGINE_HOMES_HOME_H
#define DT_WORKER_ENGINE_HOMES_HOME_H

#include "worker/engine/plan.h"
#include "worker/job/job.h"

/* Pieces of one array that are brought at a time, at most; and the least bytes of one. */
enum { HOME_PIECES_MOST = 64, HOME_PIECE_BYTES = 128 };
/* Elements that an update brings of an array outside of the device's memory, unless the job says it. */
enum { HOME_PORTION = 2 << 20 };

/* What homes outside of the device's memory need to know. */
struct home_settings {
    const struct job_offload *job;
    bool own_memory;      /* the device has memory of its own */
    size_t portion_bytes; /* of an array that an update brings at a time; stripes of files are as long */
    int buffers;          /* such portions that have room on the device */
    bool whole_pages;     /* pieces begin and end at multiples of 4096 bytes, and so does a portion */
    bool reads_ahead;     /* what follows a portion is read before it is asked for */
    bool overlaps_reads, overlaps_writes; /* with work on what came before */
};

enum home_use { HOME_READ, HOME_WRITE, HOME_CHANGE, HOME_SPEND };

struct home {
    const struct home_ops *ops;
    int piece;                            /* of the plan: the array, or room for what is brought of it */
    int host_piece;                       /* of the plan: pinned memory of the host */
    const struct home_settings *settings; /* null: the row needs none */
    const char *what;                     /* the array, for messages */
    size_t size_bytes, most_bytes;
    void *state; /* the row's own */
};

struct home_ops {
    const char *name;
    /* Most elements of each array that an update brings at a time, a multiple of 64; 0: all of them. */
    int64_t portion;
    /* Adds the memory of an array of size_bytes to the plan: what is not given back yet has at most
     * most_bytes. memory: what the device works on must be of this kind. */
    void (*plan)(struct home *h, struct plan *p, enum plan_purpose purpose, enum plan_memory memory, size_t size_bytes,
                 size_t most_bytes);
    /* The plan is open. The array is zeros. */
    int (*open)(struct home *h, struct world *w, const struct plan *p, struct dt_error *err);
    void *(*bring)(struct home *h, size_t at, size_t size_bytes, enum home_use use, struct dt_stream *user);
    void (*back)(struct home *h, size_t at, size_t size_bytes, struct dt_stream *after);
    /* Bytes that will be brought soon to be read come in from now on, if there is room for them; null: they are
     * where they are used. */
    void (*ahead)(struct home *h, size_t at, size_t size_bytes);
    /* Forgets what is on the device; nothing may be brought at that time. Returns room for most_bytes that `user`
     * may use as it likes until something is brought; null: the array lies there. */
    void *(*empty)(struct home *h, struct dt_stream *user);
    void (*close)(struct home *h); /* harmless without open; streams have run dry */
};

/* The home of each array of a strategy. The device computes with whole weights and whole
 * gradients in place, so these are on the device whatever stands here. */
struct residence {
    const struct home_ops *weights, *grads, *masters, *states;
};

/* residence.c */
/* Where arrays rest whose strategy says `row`, as the job wishes it. Host memory beside a device that
 * computes in the host's memory is the device's own. */
void residence_choose(struct residence *out, const struct residence *row, const struct job_offload *job,
                      bool own_memory);
/* Where activations rest that live from forward to backward. */
const struct home_ops *residence_activations(const struct job_offload *job, bool own_memory);
/* Settings of an array's home. parameters: weights that are gathered. They borrow `job`. */
void residence_settings(struct home_settings *out, const struct job_offload *job, bool own_memory, bool parameters);
/* What the job asks of its homes and cannot get, before anything is opened, by `ranks` of this host whose
 * plans are as p: folders that can be written, with space, and memory of the host beside a device with its own. */
int residence_check(const struct plan *p, const struct job_offload *job, int ranks, bool own_memory,
                    struct dt_error *err);
/* Bytes per second that writing and then reading a few megabytes took in offload.nvme_path; 0: unknown, as where
 * a folder is missing. */
double residence_rate(const struct plan *p, const struct job_offload *job, const char **engine);
/* One line: where state rests, and how long a step's bytes take at the rate of a short write and read there;
 * nothing where nothing is offloaded. */
void residence_words(const struct plan *p, const struct job_offload *job, int ranks, bool own_memory,
                     struct dt_text *out);

/* An array from byte `at` on. */
struct home_part {
    struct home *home;
    size_t at;
};

static inline void *home_bring(struct home_part x, size_t size_bytes, enum home_use use, struct dt_stream *user)
{
    return x.home->ops->bring(x.home, x.at, size_bytes, use, user);
}

static inline void home_back(struct home_part x, size_t size_bytes, struct dt_stream *after)
{
    x.home->ops->back(x.home, x.at, size_bytes, after);
}

/* Harmless on a zeroed home, and twice. */
static inline void home_close(struct home *h)
{
    if (h->ops != NULL) {
        h->ops->close(h);
    }
    *h = (struct home){0};
}

extern const struct home_ops home_device, home_host, home_nvme;
/* The address of an open array whose home is the device. */
void *home_device_at(const struct home *h);

#endif
