/* Homes: where this rank's slices rest between their uses. A home is a row of functions; a struct
 * home is one array at such a place, as weights, gradients, masters, or one state of the optimizer.
 * A strategy says which home each array has (struct residence). The device is the only home so far
 * (device.c): its arrays lie in the plan, bring returns their address, and back does nothing.
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
 *     together have no more than the bytes that it named while planning.
 *   - It says the use. HOME_READ leaves the bytes as they are. HOME_WRITE writes all of them: what
 *     is there before is arbitrary. HOME_CHANGE reads and writes.
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

enum home_use { HOME_READ, HOME_WRITE, HOME_CHANGE };

struct home {
    const struct home_ops *ops;
    int piece;   /* of the plan: the array, or room for what is brought of it */
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
    void (*close)(struct home *h); /* harmless without open; streams have run dry */
};

/* The home of each array of a strategy. The device computes with whole weights and whole
 * gradients in place, so these are on the device whatever stands here. */
struct residence {
    const struct home_ops *weights, *grads, *masters, *states;
};

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

extern const struct home_ops home_device;
/* The address of an open array whose home is the device. */
void *home_device_at(const struct home *h);

#endif
