/* The rates that kernels are compared with, measured in the same run: bytes of a copy,
 * operations of a square product. */
#ifndef DT_CMD_BENCH_RATES_H
#define DT_CMD_BENCH_RATES_H

#include "cmd/bench/buffers.h"

#include <stddef.h>
#include <stdint.h>

struct bench_copying {
    char *p; /* two blocks */
    size_t half_bytes;
};
struct bench_squaring {
    char *p; /* three matrices */
    int64_t side;
};

/* What is usual on a device: how long calls that follow each other are measured at a time, MiB
 * of a block, side of a product. */
double bench_enough_us(const struct dt_device *d);
long bench_copy_mib(const struct dt_device *d);
long bench_square_side(const struct dt_device *d);

/* The stream is open; failures are bench_ok's. Closing frees what there is. */
void bench_copying_open(struct bench *b, struct bench_copying *c, long block_mib);
void bench_copying_close(struct bench *b, struct bench_copying *c);
void bench_squaring_open(struct bench *b, struct bench_squaring *q, int64_t side);
/* Random numbers of b->type, which products have from then on. bench_open_random comes before. */
void bench_squaring_fill(struct bench *b, struct bench_squaring *q);
void bench_squaring_close(struct bench *b, struct bench_squaring *q);

/* Of what is put into the stream between the two: seconds of one of `calls` calls, by the
 * device's clock. On a GPU copies go ahead while the host puts them in, so that short kernels
 * follow each other without a gap. */
void bench_begin(struct bench *b, int calls);
double bench_finish(struct bench *b, int calls);
/* The number of calls of `us` microseconds each that are enough to be measured. */
int bench_calls(double us, double enough_us);
/* The same of copies and of products, after the first one. */
int bench_copy_calls(struct bench *b, const struct bench_copying *c, double enough_us);
int bench_square_calls(struct bench *b, const struct bench_squaring *q, double enough_us);
/* Microseconds per byte, moved in or out; per operation. */
double bench_copy_us(struct bench *b, const struct bench_copying *c, int calls);
double bench_square_us(struct bench *b, const struct bench_squaring *q, int calls);

#endif
