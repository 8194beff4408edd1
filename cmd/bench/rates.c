#include "cmd/bench/rates.h"

#include "cmd/bench/products.h"
#include "kernels/timer.h"

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
    b->lead = c->p;
    b->lead_bytes = c->half_bytes;
}

void bench_copying_close(struct bench *b, struct bench_copying *c)
{
    dt_device_free(b->d, DT_MEMORY_DEVICE, c->p, 2 * c->half_bytes);
    c->p = b->lead = NULL;
}

/* The bytes of a square operand in the widest type that is asked for. */
static size_t square_bytes(const struct bench_squaring *q)
{
    return (size_t)(3 * q->side * q->side) * sizeof(float);
}

void bench_squaring_open(struct bench *b, struct bench_squaring *q, int64_t side)
{
    q->side = side;
    q->p = b->failed ? NULL : bench_allocate(b, DT_MEMORY_DEVICE, square_bytes(q));
}

static struct dt_matmul_args square_args(const struct bench *b, const struct bench_squaring *q)
{
    size_t bytes_each = (size_t)(q->side * q->side) * dt_dtype_size(b->type);
    return (struct dt_matmul_args){.c = q->p,
                                   .a = q->p + bytes_each,
                                   .b = q->p + 2 * bytes_each,
                                   .m = q->side,
                                   .n = q->side,
                                   .k = q->side,
                                   .type = b->type,
                                   .c_type = b->type};
}

void bench_squaring_fill(struct bench *b, struct bench_squaring *q)
{
    struct dt_matmul_args a = square_args(b, q);
    bench_fill_random(b, q->p, 3 * q->side * q->side, b->type);
    bench_choose(b, &a); /* a floor on a plan that was not measured would be too high */
}

void bench_squaring_close(struct bench *b, struct bench_squaring *q)
{
    dt_device_free(b->d, DT_MEMORY_DEVICE, q->p, square_bytes(q));
    q->p = NULL;
}

#define LAUNCH_S 8e-6       /* at most, of the host for one call */
#define COPIED_PER_S 4.5e12 /* bytes read and written; no GPU is faster today */
enum { AHEAD_MOST = 200 };

void bench_begin(struct bench *b, int calls)
{
    struct dt_error err = {0};
    double copy_s = 2.0 * (double)b->lead_bytes / COPIED_PER_S, ahead = copy_s > 0 ? calls * LAUNCH_S / copy_s : 0;
    if (b->timer == NULL && !bench_ok(b, dt_timer_open(b->d, &b->timer, &err), &err)) {
        return;
    }
    for (int i = 0; is_gpu(b->d) && b->lead != NULL && i < ahead && i < AHEAD_MOST; i++) {
        dt_stream_copy(b->s, b->lead, b->lead + b->lead_bytes, b->lead_bytes);
    }
    dt_timer_begin(b->timer, b->s);
}

double bench_finish(struct bench *b, int calls)
{
    struct dt_error err = {0};
    if (b->timer == NULL) {
        return 0;
    }
    dt_timer_end(b->timer, b->s);
    (void)bench_ok(b, dt_stream_finish(b->s, 600, &err), &err);
    return dt_timer_s(b->timer) / calls;
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
    bench_begin(b, calls);
    for (int i = 0; i < calls; i++) {
        dt_stream_copy(b->s, c->p, c->p + c->half_bytes, c->half_bytes);
    }
    return bench_finish(b, calls) * 1e6 / bytes_of(c);
}

double bench_square_us(struct bench *b, const struct bench_squaring *q, int calls)
{
    struct dt_matmul_args a = square_args(b, q);
    bench_begin(b, calls);
    for (int i = 0; i < calls; i++) {
        b->k->matmul(b->s, &a);
    }
    return bench_finish(b, calls) * 1e6 / flops_of(q);
}
