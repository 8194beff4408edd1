/* covers: kernels/cuda/attention.c */
/* run: computes */
/* Each implementation of attention on the GPU against sums in double, element by element, with
 * the bound that its roundings allow; the same bits in every
 * schedule of threads, and for a sequence alone as for one of several; nothing written beside a tensor.   run: timeout 400
 *
 * Bounds: BF16 keeps 8 bits, so a rounding is wrong by HALF of what is rounded. Weights are
 * rounded before they meet values, gradients of scores before they meet queries and keys, and
 * results once. What is computed in float in between is wrong by FLOAT of the sum of magnitudes. */
#include "kernels/cuda/attention_plan.h"
#include "kernels/device.h"
#include "tests/lib/attention_shape.h"
#include "tests/lib/kernel_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ORDERS = 3, EDGE_BYTES = 256 };
static const double HALF = 0x1p-8, FLOAT = 0x1p-14;

struct implementation {
    const char *name;
    bool (*can)(const struct attention_shape *x);
    void (*forward)(const struct dt_cuda_launch *l, const struct dt_attention_args *a);
    void (*backward)(const struct dt_cuda_launch *l, const struct dt_attention_backward_args *a);
};

static bool plain_can(const struct attention_shape *x)
{
    const struct dt_attention_shape s = attention_common(x);
    return dt_cuda_attention_plain_can(&s);
}

static bool flash_can(const struct attention_shape *x)
{
    const struct dt_attention_shape s = attention_common(x);
    return dt_cuda_attention_flash_can(&s);
}

static const struct implementation flash = {"flash", flash_can, dt_cuda_attention_flash,
                                            dt_cuda_attention_backward_flash},
                                   plain = {"plain", plain_can, dt_cuda_attention_plain,
                                            dt_cuda_attention_backward_plain};

/* ---- tensors ---- */

static const char *const names[TENSORS] = {"qkv", "out", "lse", "dout", "dqkv"};

static double value(const void *tensor, int64_t i)
{
    uint32_t bits = (uint32_t)((const uint16_t *)tensor)[i] << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* Random numbers in (-size, size), as BF16. */
static void fill_with(uint16_t *to, int64_t count, double size, uint64_t *seed)
{
    for (int64_t i = 0; i < count; i++) {
        *seed = *seed * 6364136223846793005U + 1442695040888963407U;
        float f = (float)(((double)(*seed >> 11) * 0x1p-52 - 1) * size);
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        to[i] = (uint16_t)(bits >> 16);
    }
}

/* The tensors of a shape in the host's memory: inputs made, the others left alone. */
static void make(const struct attention_shape *x, void **host)
{
    uint64_t seed = 88172645463325252U;
    for (int t = 0; t < TENSORS; t++) {
        host[t] = malloc(attention_bytes(x, t));
        assert_non_null(host[t]);
    }
    fill_with(host[QKV], attention_count(x, QKV), 1, &seed);
    fill_with(host[DOUT], attention_count(x, DOUT), 1, &seed);
    /* queries and keys larger */
    int64_t row = attention_row(x), values_at = (x->heads + attention_kv_heads(x)) * x->head_size;
    for (int64_t r = 0; r < x->batch * x->positions; r++) {
        fill_with((uint16_t *)host[QKV] + r * row, values_at, x->size, &seed);
    }
}

static void drop(void **host)
{
    for (int t = 0; t < TENSORS; t++) {
        free(host[t]);
    }
}

/* ---- the device ---- */

struct gpu {
    struct dt_device d;
    struct dt_stream *s;
};

static void gpu_open(struct gpu *g, int order)
{
    char text[8];
    (void)snprintf(text, sizeof text, "%d", order);
    (void)setenv("SOFTGPU_ORDER", text, 1);
    case_open(&g->d, "cuda", 1, &g->s);
}

static void gpu_close(struct gpu *g)
{
    case_close(&g->d, g->s);
}

static void gpu_finish(struct gpu *g)
{
    struct dt_error err = {0};
    if (dt_stream_finish(g->s, 200, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

static char *allocate(struct gpu *g, enum dt_memory kind, size_t size_bytes)
{
    struct dt_error err = {0};
    void *p = NULL;
    if (dt_device_alloc(&g->d, kind, size_bytes, &p, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return p;
}

/* Forward and backward; out, lse and dqkv come back to the host. Around each tensor lie edges
 * that must stay. */
static void run(struct gpu *g, const struct implementation *i, const struct attention_shape *x, void **host)
{
    char *device[TENSORS], *pinned[TENSORS];
    size_t size[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        size[t] = attention_bytes(x, t) + 2 * EDGE_BYTES;
        device[t] = allocate(g, DT_MEMORY_DEVICE, size[t]);
        pinned[t] = allocate(g, DT_MEMORY_PINNED, size[t]);
        memset(pinned[t], 0xff, size[t]); /* no number */
        if (t == QKV || t == DOUT) {
            memcpy(pinned[t] + EDGE_BYTES, host[t], attention_bytes(x, t));
        }
        dt_stream_copy(g->s, device[t], pinned[t], size[t]);
        device[t] += EDGE_BYTES;
    }
    struct dt_cuda_launch l;
    assert_true(dt_cuda_begin(g->s, &l));
    struct dt_attention_args forward = attention_args(x, device);
    struct dt_attention_backward_args backward = attention_backward_args(x, device);
    i->forward(&l, &forward);
    i->backward(&l, &backward);
    dt_cuda_end(g->s, i->name);
    for (int t = 0; t < TENSORS; t++) {
        dt_stream_copy(g->s, pinned[t], device[t] - EDGE_BYTES, size[t]);
    }
    gpu_finish(g);
    for (int t = 0; t < TENSORS; t++) {
        for (size_t b = 0; b < EDGE_BYTES; b++) {
            if (pinned[t][b] != (char)0xff || pinned[t][size[t] - 1 - b] != (char)0xff) {
                fail_msg("%s: written beside %s", i->name, names[t]);
            }
        }
        memcpy(host[t], pinned[t] + EDGE_BYTES, attention_bytes(x, t));
        dt_device_free(&g->d, DT_MEMORY_DEVICE, device[t] - EDGE_BYTES, size[t]);
        dt_device_free(&g->d, DT_MEMORY_PINNED, pinned[t], size[t]);
    }
}

/* ---- in double ---- */

/* Expected, and by how much it may be off; of one sequence. delta comes from `out` as the kernel
 * gave it: its rounding is no error of backward. */
struct expected {
    double *x[TENSORS], *off[TENSORS];
};

static void add(struct expected *e, enum attention_tensor t, int64_t at, double x, double off)
{
    e->x[t][at] += x;
    e->off[t][at] += off;
}

struct head {
    int64_t q, k, v, o; /* where the head's first row is */
    int64_t row, out_row, size;
    double scale;
};

static void expect_row(struct expected *e, const struct attention_shape *x, void *const *host, const struct head *h,
                       int64_t i, double *p)
{
    const void *qkv = host[QKV], *out = host[OUT], *dout = host[DOUT];
    int64_t keys = x->causal ? i + 1 : x->positions, D = h->size;
    double most = -INFINITY, total = 0, delta = 0, delta_off = 0;
    for (int64_t j = 0; j < keys; j++) {
        p[j] = 0;
        for (int64_t d = 0; d < D; d++) {
            p[j] += value(qkv, h->q + i * h->row + d) * value(qkv, h->k + j * h->row + d) * h->scale;
        }
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j < keys; j++) {
        total += exp(p[j] - most);
    }
    for (int64_t d = 0; d < D; d++) {
        double x_out = value(dout, h->o + i * h->out_row + d) * value(out, h->o + i * h->out_row + d);
        delta += x_out;
        delta_off += fabs(x_out);
    }
    int64_t at_lse = h->o / D * x->positions + i;
    add(e, LSE, at_lse, most + log(total), 4e-6 * (1 + fabs(most)));
    for (int64_t j = 0; j < keys; j++) {
        double weight = exp(p[j] - most) / total, change = 0, change_off = 0;
        for (int64_t d = 0; d < D; d++) {
            double v = value(qkv, h->v + j * h->row + d), o = value(dout, h->o + i * h->out_row + d);
            add(e, OUT, h->o + i * h->out_row + d, weight * v, (HALF + FLOAT) * fabs(weight * v));
            add(e, DQKV, h->v + j * h->row + d, weight * o, (HALF + FLOAT) * fabs(weight * o));
            change += v * o;
            change_off += fabs(v * o);
        }
        change_off = weight * h->scale * FLOAT / 4 * (change_off + delta_off);
        change = weight * h->scale * (change - delta);
        change_off += (HALF + FLOAT) * fabs(change);
        for (int64_t d = 0; d < D; d++) {
            double q = value(qkv, h->q + i * h->row + d), k = value(qkv, h->k + j * h->row + d);
            add(e, DQKV, h->q + i * h->row + d, change * k, change_off * fabs(k));
            add(e, DQKV, h->k + j * h->row + d, change * q, change_off * fabs(q));
        }
    }
}

/* Compares sequence b of `host`. */
static void check_sequence(const struct implementation *i, const struct attention_shape *x, void *const *host,
                           int64_t b)
{
    struct attention_shape one = *x;
    one.batch = 1;
    struct expected e;
    void *own[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        e.x[t] = calloc((size_t)attention_count(&one, t), sizeof(double));
        e.off[t] = calloc((size_t)attention_count(&one, t), sizeof(double));
        own[t] = (char *)host[t] + (size_t)b * attention_bytes(&one, t);
    }
    double *p = malloc((size_t)x->positions * sizeof *p);
    for (int64_t h = 0; h < x->heads; h++) {
        int64_t D = x->head_size, kv = h / (x->heads / attention_kv_heads(x));
        struct head head = {
            .q = h * D, .k = (x->heads + kv) * D, .v = (x->heads + attention_kv_heads(x) + kv) * D, .o = h * D};
        head.row = attention_row(x);
        head.out_row = x->heads * D;
        head.size = D;
        head.scale = x->scale != 0 ? x->scale : 1 / sqrt((double)D);
        for (int64_t t = 0; t < x->positions; t++) {
            expect_row(&e, &one, own, &head, t, p);
        }
    }
    for (int t = 0; t < TENSORS; t++) {
        for (int64_t at = 0; (t == OUT || t == LSE || t == DQKV) && at < attention_count(&one, t); at++) {
            double got = t == LSE ? (double)((float *)own[t])[at] : value(own[t], at), want = e.x[t][at];
            double bound = e.off[t][at] + (t == LSE ? 0 : HALF * fabs(want) + 1e-30);
            if (!(fabs(got - want) <= bound)) {
                fail_msg("%s (%lld, %lld, %lld, %lld, %lld)%s: sequence %lld: %s[%lld] is %.9g, not %.9g: off by %g, "
                         "may be %g",
                         i->name, (long long)x->batch, (long long)x->positions, (long long)x->heads,
                         (long long)x->head_size, (long long)x->kv_heads, x->causal ? " causal" : "", (long long)b,
                         names[t], (long long)at, got, want, fabs(got - want), bound);
            }
        }
    }
    for (int t = 0; t < TENSORS; t++) {
        free(e.x[t]);
        free(e.off[t]);
    }
    free(p);
}

static void same(const struct attention_shape *x, void *const *a, void *const *b, const char *what)
{
    for (int t = 0; t < TENSORS; t++) {
        size_t size = attention_bytes(x, t);
        for (size_t i = 0; i < size; i++) {
            if (((char *)a[t])[i] != ((char *)b[t])[i]) {
                fail_msg("(%lld, %lld, %lld, %lld, %lld): %s: other bits in %s, byte %zu", (long long)x->batch,
                         (long long)x->positions, (long long)x->heads, (long long)x->head_size, (long long)x->kv_heads,
                         what, names[t], i);
            }
        }
    }
}

/* ---- tests ---- */

static void check(struct gpu *gpus, const struct implementation *i, const struct attention_shape *x, int orders)
{
    void *first[TENSORS], *again[TENSORS];
    assert_true(i->can(x));
    make(x, first);
    run(&gpus[1], i, x, first); /* one warp runs ahead: the order that shows most */
    for (int64_t b = 0; b < x->batch; b++) {
        check_sequence(i, x, first, b);
    }
    for (int o = 0; o < (getenv("DTRUN_GPU") != NULL ? 1 : orders); o++) { /* a real one has no orders */
        make(x, again);
        run(&gpus[o], i, x, again);
        same(x, first, again, "another order of threads");
        drop(again);
    }
    drop(first);
}

static void open_all(struct gpu *gpus)
{
    for (int o = 0; o < ORDERS; o++) {
        gpu_open(&gpus[o], o);
    }
}

static void close_all(struct gpu *gpus)
{
    for (int o = 0; o < ORDERS; o++) {
        gpu_close(&gpus[o]);
    }
}

static void test_lengths(void **unused)
{
    (void)unused;
    static const int64_t lengths[] = {1, 17, 48, 63, 64, 65, 127, 128, 129, 200};
    struct gpu gpus[ORDERS];
    open_all(gpus);
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
        for (int causal = 0; causal < 2; causal++) {
#ifdef DT_SANITIZED
            if ((n + (size_t)causal) % 3 != 1) {
                continue;
            }
#endif
            check(gpus, &flash, &(struct attention_shape){1, lengths[n], 1, 64, 0, causal != 0, 0, 1.5},
                  lengths[n] < 100 ? ORDERS : 1);
        }
    }
    close_all(gpus);
}

static void test_head_sizes(void **unused)
{
    (void)unused;
    static const int64_t sizes[] = {8, 16, 32, 40, 80, 96, 128};
    struct gpu gpus[ORDERS];
    open_all(gpus);
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
        check(gpus, &flash, &(struct attention_shape){1, 150, 1, sizes[n], 0, n % 2 == 0, 0, 1.5}, 1);
        check(gpus, &flash, &(struct attention_shape){1, 70, 2, sizes[n], 0, n % 2 != 0, 0, 1.5}, ORDERS);
    }
    close_all(gpus);
}

/* Key heads that several query heads read; a scale of one's own; weights of which one is nearly
 * all; a long sequence. */
static void test_other_shapes(void **unused)
{
    (void)unused;
    static const struct attention_shape shapes[] = {
        {1, 100, 4, 64, 2, true, 0, 1.5},  {1, 100, 3, 32, 1, false, 0, 1.5}, {1, 70, 4, 128, 1, true, 0, 1.5},
        {1, 90, 1, 64, 0, true, 0.3, 1.5}, {1, 90, 1, 64, 0, false, 0, 8},    {1, 150, 1, 64, 0, true, 1, 6},
    };
    struct gpu gpus[ORDERS];
    open_all(gpus);
    for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++) {
        check(gpus, &flash, &shapes[n], ORDERS);
    }
#ifndef DT_SANITIZED
    check(gpus, &flash, &(struct attention_shape){1, 1024, 1, 64, 0, true, 0, 1.5}, 0);
#endif
    close_all(gpus);
}

static void test_plain(void **unused)
{
    (void)unused;
    static const struct attention_shape shapes[] = {{1, 1, 1, 1, 0, true, 0, 1},
                                                    {1, 130, 1, 20, 0, true, 0, 1.5},
                                                    {1, 70, 4, 72, 2, false, 0, 1.5},
                                                    {1, 65, 1, 200, 0, true, 0, 1.5}};
    struct gpu gpus[ORDERS];
    open_all(gpus);
    for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++) {
        check(gpus, &plain, &shapes[n], ORDERS);
    }
    close_all(gpus);
}

/* How a batch is cut between micro-steps and ranks must not show. */
static void test_a_sequence_alone(void **unused)
{
    (void)unused;
    static const struct implementation *const all[] = {&flash, &plain};
    struct attention_shape x = {3, 70, 2, 32, 1, true, 0, 1.5}, one = x;
    one.batch = 1;
    struct gpu g;
    gpu_open(&g, 2);
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++) {
        void *three[TENSORS], *alone[TENSORS];
        make(&x, three);
        run(&g, all[n], &x, three);
        for (int64_t b = 0; b < x.batch; b++) {
            void *part[TENSORS];
            make(&one, alone);
            for (int t = 0; t < TENSORS; t++) {
                part[t] = (char *)three[t] + (size_t)b * attention_bytes(&one, t);
            }
            memcpy(alone[QKV], part[QKV], attention_bytes(&one, QKV));
            memcpy(alone[DOUT], part[DOUT], attention_bytes(&one, DOUT));
            run(&g, all[n], &one, alone);
            same(&one, part, alone, "a sequence alone");
            drop(alone);
        }
        drop(three);
    }
    gpu_close(&g);
}

/* What is not finite must not become finite: a diverging run has to be noticed. */
static void test_a_nan_stays(void **unused)
{
    (void)unused;
    struct attention_shape x = {1, 70, 1, 64, 0, true, 0, 1};
    struct gpu g;
    void *host[TENSORS];
    gpu_open(&g, 1);
    make(&x, host);
    ((uint16_t *)host[QKV])[40 * attention_row(&x) + 3] = 0x7fc0; /* in a query */
    run(&g, &flash, &x, host);
    for (int64_t t = 0; t < x.positions; t++) {
        assert_int_equal(isnan(value(host[OUT], t * 64)), t == 40);
        assert_int_equal(isnan((double)((float *)host[LSE])[t]), t == 40);
        assert_int_equal(isnan(value(host[DQKV], t * attention_row(&x))), t == 40);
        assert_true(t > 40 || isnan(value(host[DQKV], t * attention_row(&x) + 64)));
    }
    drop(host);
    gpu_close(&g);
}

/* Which shapes the tensor cores take. */
static void test_what_flash_can(void **unused)
{
    (void)unused;
    for (int64_t d = 8; d <= 128; d += 8) {
        assert_true(flash_can(&(struct attention_shape){1, 1024, 12, d, 0, true, 0, 1}));
    }
    struct dt_attention_shape floats = attention_common(&(struct attention_shape){1, 1024, 12, 64, 0, true, 0, 1});
    floats.type = DT_F32;
    assert_false(dt_cuda_attention_flash_can(&floats));
    assert_false(flash_can(&(struct attention_shape){1, 1024, 12, 12, 0, true, 0, 1}));
    assert_false(flash_can(&(struct attention_shape){1, 1024, 12, 136, 0, true, 0, 1}));
    /* the largest score would be the smallest */
    assert_false(flash_can(&(struct attention_shape){1, 1024, 12, 64, 0, true, -1, 1}));
    assert_true(flash_can(&(struct attention_shape){1, 131072, 32, 128, 0, true, 0, 1}));
    assert_false(flash_can(&(struct attention_shape){1, 262144, 32, 128, 0, true, 0, 1})); /* offsets of 32 bits */
}

/* A shape with what only the general kernel computes. cuDNN's graph describes none of it either. */
static void test_what_is_left_to_plain(void **unused)
{
    (void)unused;
    static const int32_t segments[64];
    const struct dt_attention_shape simple = attention_common(&(struct attention_shape){1, 64, 2, 64, 0, true, 0, 1});
    struct dt_attention_shape each[] = {simple, simple, simple, simple, simple};
    each[0].window = 8;
    each[1].segments = segments;
    each[2].softcap = 50;
    each[3].dropout = 0.1;
    each[4].queries = 1;
    assert_true(dt_cuda_attention_flash_can(&simple) && attention_can(&simple));
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        assert_true(dt_cuda_attention_plain_can(&each[i]));
        assert_false(dt_cuda_attention_flash_can(&each[i]));
        assert_false(attention_can(&each[i]));
    }
    struct dt_attention_shape spread = simple; /* rows that are longer than q, k and v */
    spread.q_stride = spread.kv_stride = 512;
    assert_true(dt_cuda_attention_flash_can(&spread));
    assert_false(attention_can(&spread));
    spread.kv_stride = 500; /* not every row begins on 16 bytes */
    assert_false(dt_cuda_attention_flash_can(&spread));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_flash_can),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_head_sizes),
        cmocka_unit_test(test_other_shapes),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_a_nan_stays),
        cmocka_unit_test(test_a_sequence_alone),
        cmocka_unit_test(test_what_is_left_to_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
