#include "kernels/bench_rates.h"

#include "base/clock.h"

#include <string.h>

static bool is_gpu(const struct dt_device *d)
{
    return strcmp(d->ops->name, "cuda") == 0;
}

double bench_enough_us(const struct dt_device *d)
{
    return is_gpu(d) ? 2e4 : 2e3;
}

long bench_copy_mib(const struct dt_device *d)
{
    return is_gpu(d) ? 256 : 64;
}

long bench_square_side(const struct dt_device *d)
{
    return is_gpu(d) ? 8192 : 512;
}

void bench_copying_open(struct bench *b, struct bench_copying *c, long block_mib)
{
    c->half_bytes = (size_t)block_mib << 20;
    c->p = b->failed ? NULL : bench_allocate(b, DT_MEMORY_DEVICE, 2 * c->half_bytes);
}

void bench_copying_close(struct bench *b, struct bench_copying *c)
{
    dt_device_free(b->d, DT_MEMORY_DEVICE, c->p, 2 * c->half_bytes);
    c->p = NULL;
}

/* Of the widest type that is asked for. */
static size_t square_bytes(const struct bench_squaring *q)
{
    return (size_t)(3 * q->side * q->side) * sizeof(float);
}

void bench_squaring_open(struct bench *b, struct bench_squaring *q, int64_t side)
{
    q->side = side;
    q->p = b->failed ? NULL : bench_allocate(b, DT_MEMORY_DEVICE, square_bytes(q));
}

void bench_squaring_fill(struct bench *b, struct bench_squaring *q)
{
    bench_fill_random(b, q->p, 3 * q->side * q->side, b->type);
}

void bench_squaring_close(struct bench *b, struct bench_squaring *q)
{
    dt_device_free(b->d, DT_MEMORY_DEVICE, q->p, square_bytes(q));
    q->p = NULL;
}

double bench_finish(struct bench *b, double begin_s, int calls)
{
    struct dt_error err = {0};
    (void)bench_ok(b, dt_stream_finish(b->s, 600, &err), &err);
    return (dt_now_s() - begin_s) / calls;
}

int bench_calls(double us, double enough_us)
{
    double calls = enough_us / (us > 0.1 ? us : 0.1);
    return calls < 1 ? 1 : calls > 1000 ? 1000 : (int)calls;
}

static double bytes_of(const struct bench_copying *c)
{
    return 2.0 * (double)c->half_bytes;
}

static double flops_of(const struct bench_squaring *q)
{
    return 2.0 * (double)q->side * (double)q->side * (double)q->side;
}

int bench_copy_calls(struct bench *b, const struct bench_copying *c, double enough_us)
{
    (void)bench_copy_us(b, c, 1);
    return bench_calls(bench_copy_us(b, c, 1) * bytes_of(c), enough_us);
}

int bench_square_calls(struct bench *b, const struct bench_squaring *q, double enough_us)
{
    (void)bench_square_us(b, q, 1);
    return bench_calls(bench_square_us(b, q, 1) * flops_of(q), enough_us);
}

double bench_copy_us(struct bench *b, const struct bench_copying *c, int calls)
{
    double begin_s = dt_now_s();
    for (int i = 0; i < calls; i++) {
        dt_stream_copy(b->s, c->p, c->p + c->half_bytes, c->half_bytes);
    }
    return bench_finish(b, begin_s, calls) * 1e6 / bytes_of(c);
}

double bench_square_us(struct bench *b, const struct bench_squaring *q, int calls)
{
    size_t bytes_each = (size_t)(q->side * q->side) * dt_dtype_size(b->type);
    struct dt_matmul_args a = {.c = q->p, .a = q->p + bytes_each, .b = q->p + 2 * bytes_each, .type = b->type, .c_type = b->type};
    a.m = a.n = a.k = q->side;
    double begin_s = dt_now_s();
    for (int i = 0; i < calls; i++) {
        b->k->matmul(b->s, &a);
    }
    return bench_finish(b, begin_s, calls) * 1e6 / flops_of(q);
}
