/* The things that benchmarks of kernels work on: a device, a stream, the shapes, and buffers
 * that are made when a case asks for them. */
#ifndef DT_CMD_BENCH_BUFFERS_H
#define DT_CMD_BENCH_BUFFERS_H

#include "kernels/device.h"
#include "kernels/kernels.h"

#include <stdint.h>

enum { BENCH_BUFFERS = 10, BENCH_POSITIONS = 1024 };

struct bench {
    const char *name; /* "kernels", for messages */
    struct dt_device *d;
    struct dt_stream *s;
    const struct dt_kernels *k;
    enum dt_dtype type; /* of what flows; gradients are F32 */
    int64_t rows, cols, vocabulary, loss_rows, parameters;
    int64_t positions, head; /* of attention; head 0: 64 where the columns allow that */
    const char *by;          /* what computes the case, where there are several; null: not known */
    struct {
        void *p;
        size_t size_bytes;
    } buffers[BENCH_BUFFERS];
    float *random;          /* pinned, one block of values in (0, 1) */
    int32_t *numbers;       /* pinned, as many positive numbers */
    void *staging;          /* on the device, as many floats */
    struct dt_timer *timer; /* of bench_begin, which opens it */
    char *lead;             /* two blocks that are copied ahead of what is timed; null: nothing
                             * is */
    size_t lead_bytes;      /* of one */
    bool failed;            /* said on stderr; nothing more is done */
};

/* True while nothing has failed, this call (rc, err) included. The text of the first failure
 * goes to stderr. */
bool bench_ok(struct bench *b, int rc, const struct dt_error *err);
/* --dtype is "fp32", "bf16" or "", which means both; the open device's kernels know both types. */
int bench_check_dtype(const char *dtype, struct dt_error *err);
int bench_check_device(const struct dt_device *d, const char *name, struct dt_error *err);
/* Is the type, F32 or BF16, asked for? */
bool bench_wants(const char *dtype, enum dt_dtype type);
const char *bench_dtype_name(enum dt_dtype type);
/* Memory of the open device, for dt_device_free; null when there is none, which bench_ok heard. */
void *bench_allocate(struct bench *b, enum dt_memory kind, size_t size_bytes);

/* Makes a block of random floats on the host, and room for it on the device. The stream is open.
 * Closing frees what there is, the timer too. */
void bench_open_random(struct bench *b);
void bench_close_random(struct bench *b);
/* Queues random numbers in (0, 1) of type F32 or BF16 into `count` elements at `to` on the
 * device. */
void bench_fill_random(struct bench *b, void *to, int64_t count, enum dt_dtype type);

/* Buffer `at` of a case, `count` elements on the device, made when it is first asked for and
 * kept until bench_clear. Floats are random, never zeros, which some machines move and multiply
 * faster; other types are zeros. Null when it failed. */
void *bench_buffer(struct bench *b, int at, int64_t count, enum dt_dtype type);
/* The same with ids below `limit`, in no order; one such buffer per case. */
int32_t *bench_ids(struct bench *b, int at, int64_t count, int64_t limit);
void bench_clear(struct bench *b);

#endif
