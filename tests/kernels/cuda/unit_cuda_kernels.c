/* covers: kernels/cuda kernels/exact.h kernels/normal.h */
/* run: computes */
/* Kernels of the GPU (those of kernels/cuda, here on the software GPU, in three schedules of its
 * threads): every case of the CPU's kernels and the shapes at which the GPU's change their way,
 * in F32, BF16 and F16, against the twins; the same bits in every schedule; the CPU's bits where they
 * are
 * promised; nothing written beside a buffer; bad targets.   run: timeout 1200 */
#include "kernels/cuda/cuda.h"
#include "kernels/exact.h"
#include "tests/lib/kernel_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ORDERS = 3, EDGE_BYTES = 256 };
#ifdef __SANITIZE_THREAD__
enum {
    ELEMENTS_MOST = 10000
}; /* with the sanitizer for threads each barrier of a block costs
    * the square of its threads */
#elif defined DT_SANITIZED
enum { ELEMENTS_MOST = 200000 }; /* of shapes beside those of all kernels */
#endif

/* Shapes at which kernels on the GPU change their way; `slack` where many rows are added up in
 * F32. */
static const struct {
    const char *name;
    double slack;
    int64_t shapes[20][CASE_SHAPE];
} more[] = {
    {"add, scale", 1, {{8 * 256 * 4 + 5}, {64 * 64}, {600001}}},
    {"column_sum", 3, {{300, 1608, 0}, {1, 8, 1}, {2100, 40, 1}, {70, 3000, 0}}},
    {"layernorm",
     1,
     {{9, 256, 0},
      {9, 264, 0},
      {6, 768, 0},
      {5, 1000, 1},
      {3, 1024, 0},
      {70, 1600, 0},
      {2, 2048, 1},
      {2, 3001, 0},
      {2, 4096, 0},
      {40, 4104, 0},
      {2, 8192, 0},
      {20, 8200, 0},
      {2, 9001, 1},
      {9, 264, 0, 1},
      {9, 64, 0},
      {30, 128, 1, 1},
      {3, 9001, 1, 1}}},
    {"layernorm_backward",
     3,
     {{30, 256, 0},
      {9, 264, 1},
      {2200, 24, 0},
      {20, 768, 0},
      {19, 776, 1},
      {560, 776, 0},
      {5, 1000, 0},
      {3, 1600, 0},
      {3, 2048, 0},
      {270, 2056, 1},
      {2, 3001, 0},
      {2, 4096, 0},
      {140, 4104, 0},
      {2, 8192, 1},
      {70, 8200, 0},
      {3, 9001, 1},
      {9, 264, 1, 1},
      {20, 8200, 0, 1}}},
    {"rmsnorm",
     1,
     {{9, 256},
      {70, 264, 2, 8, 0, 1},
      {300, 64, 3, 64, 128},
      {133, 128, 7, 8, 8, 2},
      {6, 768},
      {3, 1024, 0, 0, 0, 1},
      {7, 1600},
      {2, 3001},
      {2, 4096},
      {5, 4104, 2, 8, 16, 1},
      {2, 8192},
      {20, 8200},
      {5, 8200, 2, 8, 16, 1},
      {2, 9001, 0, 0, 0, 2}}},
    {"rmsnorm_backward",
     3,
     {{30, 256},
      {2200, 24, 0, 0, 0, 1},
      {9000, 8, 3, 8, 0, 3},
      {333, 64, 3, 64, 128},
      {133, 128, 7, 8, 8, 2},
      {133, 128, 7, 8, 0, 1},
      {20, 768},
      {19, 776, 0, 0, 0, 1},
      {5, 1000, 0, 0, 0, 3},
      {3, 1600},
      {7, 2048, 2, 8, 16, 1},
      {2, 3001},
      {140, 4104, 0, 0, 0, 2},
      {2, 8192, 0, 0, 0, 1},
      {70, 8200},
      {5, 8200, 2, 8, 16, 1},
      {3, 9001, 0, 0, 0, 2}}},
    {"gate", 1, {{70, 264, 9, 4}, {30, 1000, 1, 4, 1}, {300, 2000, 0, 3, 2}}},
    {"rope", 1, {{600, 12, 64, 64, 128, 2}, {2000, 3, 32, 16, 8, 1}}},
    {"embedding", 50, {{5000, 50, 8, 1000, 1}, {4200, 70, 4, 70001, 0}, {500, 25, 3, 2, 0}, {100, 10, 1032, 3, 1}}},
    {"embedding of few rows",
     1,
     {{5000, 50, 8, 2, 4, 1}, {2500, 25, 3, 2, 1, 0}, {2100, 70, 264, 8, 2, 2}, {700, 70, 1032, 1, 2, 0}}},
    {"dropout", 1, {{12, 4, 1024, 100}, {3, 1, 40007, 500}, {16, 16, 4099, 300}, {8000, 1, 2, 400}}},
    {"masked_mean", 3, {{3, 300, 264, 1}, {2, 700, 8, 1}, {40, 9, 8, 1}, {2, 150, 520, 0}}},
    {"take_rows", 1, {{3, 20, 4104, 1}, {2000, 4, 8, 0}}},
    {"unfold, fold", 1, {{2, 20, 18, 8, 321, 2}, {1, 33, 20, 3, 723, 1}}},
    {"max_pool", 1, {{2, 30, 22, 16, 321, 0}}},
    {"batch_norm",
     3,
     {{2100, 40, 1, 1}, {300, 264, 2, 1 | 4 | 16}, {3000, 8, 3, 1 | 2}, {70, 1032, 1, 0}, {600, 33, 1, 1 | 8}}},
    {"cross_entropy with scale and cap",
     1,
     {{3, 50304, 1, 0, 50, 0},
      {1, 50257, 1, 0, 0, 30},
      {2, 50257, 1, 47, 80, 0},
      {2, 128255, 1, 1, 60, 30},
      {2, 60000, 0, 0, 0, 5},
      {1, 170000, 1, 0, 150, 20},
      {100, 8, 1, 0, 70, 10}}},
    {"cross_entropy",
     1,
     {{3, 50304, 1},
      {1, 50257, 1},
      {2, 50257, 1, 47},
      {2, 128255, 1, 1},
      {2, 170001, 1, 7},
      {2, 57856, 0},
      {2, 60000, 1},
      {1, 90000, 1},
      {2, 128256, 1},
      {1, 170000, 1},
      {1, 151937, 1},
      {30, 9000, 1},
      {12, 70000, 1},
      {2100, 8, 1}}},
    {"optimizers", 1, {{256 * 4 * 2 + 3, 2, 1, 0}, {64, 3, 0, 0}, {256 * 4 * 2 + 3, 2, 1, 1}}},
};

struct gpu {
    struct dt_device d;
    struct dt_stream *s;
};

static void gpu_open(struct gpu *g, int order)
{
    /* no bit may know of them, and few let a block walk over many rows */
    static const char *const processors[ORDERS] = {"132", "1", "3"};
    char text[8];
    (void)snprintf(text, sizeof text, "%d", order);
    (void)setenv("SOFTGPU_ORDER", text, 1);
    (void)setenv("SOFTGPU_SM", processors[order], 1);
    case_open(&g->d, "cuda", 1, &g->s);
}

static void gpu_close(struct gpu *g)
{
    case_close(&g->d, g->s);
}

static void gpu_finish(struct gpu *g)
{
    struct dt_error err = {0};
    if (dt_stream_finish(g->s, 600, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

/* size_bytes of the device that begin `shift` bytes behind a multiple of 256, with the host's
 * bytes in it and edges around it. */
struct mirror {
    char *block, *pinned, *p;
    size_t size_bytes, block_bytes;
};

static void mirror_open(struct gpu *g, struct mirror *m, const void *from, size_t size_bytes, size_t shift)
{
    struct dt_error err = {0};
    void *block, *pinned;
    m->size_bytes = size_bytes;
    m->block_bytes = size_bytes + 2 * EDGE_BYTES + shift;
    if (dt_device_alloc(&g->d, DT_MEMORY_DEVICE, m->block_bytes, &block, &err) != 0 ||
        dt_device_alloc(&g->d, DT_MEMORY_PINNED, m->block_bytes, &pinned, &err) != 0) {
        fail_msg("%s", err.text);
    }
    m->block = block;
    m->pinned = pinned;
    m->p = m->block + EDGE_BYTES + shift;
    memset(m->pinned, 0xa5, m->block_bytes);
    memcpy(m->pinned + (m->p - m->block), from, size_bytes);
    dt_stream_copy(g->s, m->block, m->pinned, m->block_bytes);
}

/* Reads it back to `to` (unless null) and frees it. */
static void mirror_close(struct gpu *g, struct mirror *m, void *to, const char *who)
{
    size_t before = (size_t)(m->p - m->block);
    dt_stream_copy(g->s, m->pinned, m->block, m->block_bytes);
    gpu_finish(g);
    for (size_t i = 0; i < m->block_bytes; i++) {
        if ((i < before || i >= before + m->size_bytes) && (unsigned char)m->pinned[i] != 0xa5) {
            fail_msg("%s: byte %lld of %zu is written", who, (long long)i - (long long)before, m->size_bytes);
        }
    }
    if (to != NULL) {
        memcpy(to, m->pinned + before, m->size_bytes);
    }
    dt_device_free(&g->d, DT_MEMORY_DEVICE, m->block, m->block_bytes);
    dt_device_free(&g->d, DT_MEMORY_PINNED, m->pinned, m->block_bytes);
}

/* Runs a case on the GPU; the buffers begin `shift` elements behind a multiple of 16 bytes. */
static void run_on_gpu(struct gpu *g, const struct kernel_case *c, const int64_t *n, const struct case_mode *m,
                       int shift)
{
    struct mirror mirrors[CASE_BUFFERS], side;
    void *on[CASE_BUFFERS] = {0};
    case_reset_typed(m);
    for (int b = 0; b < CASE_BUFFERS; b++) {
        if (case_buf[b].count > 0) {
            size_t size = dt_dtype_size(case_type_in(m, &case_buf[b]));
            mirror_open(g, &mirrors[b], case_buf[b].x, (size_t)case_buf[b].count * size, (size_t)shift * size);
            on[b] = mirrors[b].p;
        }
    }
    mirror_open(g, &side, &case_side, sizeof case_side, 0);
    struct case_run r = {g->s, g->d.kernels, m->type, n, m->grad, on, (struct case_side *)(void *)side.p};
    c->run(&r);
    for (int b = 0; b < CASE_BUFFERS; b++) {
        if (case_buf[b].count > 0) {
            mirror_close(g, &mirrors[b], case_buf[b].x, c->name);
        }
    }
    mirror_close(g, &side, &case_side, c->name);
    if (c->after != NULL) {
        c->after(&r);
    }
}

static void keep(void **kept, const struct case_mode *m)
{
    for (int b = 0; b < CASE_BUFFERS; b++) {
        size_t size = (size_t)case_buf[b].count * dt_dtype_size(case_type_in(m, &case_buf[b]));
        kept[b] = malloc(size + 1);
        if (case_buf[b].count > 0) {
            memcpy(kept[b], case_buf[b].x, size);
        }
    }
}

static void same(void *const *kept, const struct kernel_case *c, const int64_t *n, const struct case_mode *m,
                 const char *who)
{
    for (int b = 0; b < CASE_BUFFERS; b++) {
        size_t size = dt_dtype_size(case_type_in(m, &case_buf[b]));
        for (int64_t i = 0; i < case_buf[b].count; i++) {
            if (memcmp((char *)case_buf[b].x + (size_t)i * size, (char *)kept[b] + (size_t)i * size, size) != 0) {
                fail_msg("%s %s (%lld, %lld, %lld): %s: other bits in buffer %d [%lld]", c->name, m->name,
                         (long long)n[0], (long long)n[1], (long long)n[2], who, b, (long long)i);
            }
        }
    }
}

static void drop(void **kept)
{
    for (int b = 0; b < CASE_BUFFERS; b++) {
        free(kept[b]);
    }
}

/* A shape in every mode, with buffers on a multiple of 16 bytes and beside one, in `schedules` of the
 * threads: other ones for each shape and mode. The short form leaves out, by turns from shape to
 * shape, one of the two modes of BF16 and of F16, the buffers beside in some of the others, and a third
 * schedule.
 * DTRUN_ALL=1 and a real GPU leave out nothing; a real one has no schedules to choose. */
static void check_shape(struct gpu *gpus, const struct kernel_case *c, const int64_t *n, double slack)
{
    static int turn, shape;
    bool real = getenv("DTRUN_GPU") != NULL, all = real || getenv("DTRUN_ALL") != NULL;
    int count = all && !real ? ORDERS : 2;
    shape++;
    for (int mode = 0; mode < CASE_MODES; mode++) {
        const struct case_mode *m = &case_modes[mode];
        if (!all && (mode == 1 + shape % 2 || mode == 4 - shape % 2)) {
            continue;
        }
        case_reference(c, n, m);
        for (int shift = 0; shift < (all || (mode > 0) == (shape / 2 % 2 != 0) ? 2 : 1); shift++, turn++) {
            void *first[CASE_BUFFERS];
            for (int i = 0; i < (shift == 0 || all ? count : 1); i++) {
                char who[64];
                int order = (turn + i) % ORDERS;
                (void)snprintf(who, sizeof who, "cuda, order %d, shift %d,", order, shift);
                run_on_gpu(&gpus[order], c, n, m, shift);
                case_compare(c, n, m, who, slack);
                if (i == 0) {
                    keep(first, m);
                } else {
                    same(first, c, n, m, "another order of threads");
                }
            }
            drop(first);
        }
        case_clear();
    }
}

static const struct kernel_case *case_named(const char *name)
{
    for (size_t c = 0; c < kernel_case_count; c++) {
        if (strcmp(kernel_cases[c].name, name) == 0) {
            return &kernel_cases[c];
        }
    }
    fail_msg("no case is called %s", name);
    return NULL;
}

static void test_cases(void **unused)
{
    (void)unused;
    struct gpu gpus[ORDERS];
    for (int o = 0; o < ORDERS; o++) {
        gpu_open(&gpus[o], o);
    }
    for (size_t c = 0; c < kernel_case_count; c++) {
        for (int i = 0; i < CASE_SHAPES && kernel_cases[c].shapes[i][0] != 0; i++) {
            check_shape(gpus, &kernel_cases[c], kernel_cases[c].shapes[i], 1);
        }
    }
    for (int o = 0; o < ORDERS; o++) {
        gpu_close(&gpus[o]);
    }
}

static void test_more_shapes(void **unused)
{
    (void)unused;
    struct gpu gpus[ORDERS];
    for (int o = 0; o < ORDERS; o++) {
        gpu_open(&gpus[o], o);
    }
    for (size_t c = 0; c < sizeof more / sizeof more[0]; c++) {
        for (int i = 0; i < 20 && more[c].shapes[i][0] != 0; i++) {
#ifdef DT_SANITIZED
            if (more[c].shapes[i][1] > 10000 || more[c].shapes[i][0] * (1 + more[c].shapes[i][1]) > ELEMENTS_MOST) {
                continue;
            }
#endif
            check_shape(gpus, case_named(more[c].name), more[c].shapes[i], more[c].slack);
        }
    }
    for (int o = 0; o < ORDERS; o++) {
        gpu_close(&gpus[o]);
    }
}

static void check_bits(struct gpu *g, const struct kernel_case *c, const int64_t *n, const struct dt_kernels *k)
{
    for (size_t m = 0; m < CASE_MODES; m++) {
        void *kept[CASE_BUFFERS];
        case_seed(17);
        c->make(n);
        case_reset_typed(&case_modes[m]);
        case_run_host(c, n, &case_modes[m], "cpu", 1, k);
        keep(kept, &case_modes[m]);
        run_on_gpu(g, c, n, &case_modes[m], 0);
        same(kept, c, n, &case_modes[m], "not the CPU's");
        drop(kept);
        case_clear();
    }
}

/* Where each element comes from the same few operations on every device, it has the same bits:
 * those of a CPU that has fused multiply-add. */
static void test_bits_of_the_cpu(void **unused)
{
    (void)unused;
    static const char *const names[] = {"add, scale",
                                        "embedding",
                                        "embedding with all tables",
                                        "dropout",
                                        "take_rows",
                                        "unfold, fold",
                                        "max_pool",
                                        "optimizers",
                                        "adamw_many",
                                        "adamw_many with BF16 moments",
                                        "adamw_many without masters",
                                        "adam_many",
                                        "sgd_many",
                                        "lion_many",
                                        "adagrad_many",
                                        "lamb_many",
                                        "muon_many",
                                        "amsgrad"};
    const struct dt_kernels *k = dt_kernels_cpu_named("avx2");
    if (k == NULL) {
        skip();
    }
    struct gpu g;
    gpu_open(&g, 2);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct kernel_case *c = case_named(names[i]);
        for (int shape = 0; shape < CASE_SHAPES && c->shapes[shape][0] != 0; shape++) {
            check_bits(&g, c, c->shapes[shape], k);
        }
        for (size_t j = 0; j < sizeof more / sizeof more[0]; j++) {
            for (int shape = 0; strcmp(more[j].name, names[i]) == 0 && more[j].shapes[shape][0] != 0; shape++) {
                check_bits(&g, c, more[j].shapes[shape], k);
            }
        }
    }
    gpu_close(&g);
}

/* ---- the exact accumulator ---- */

struct verdict {
    double norm, clip, factor;
    int32_t nonfinite;
};

static void finish_norm(struct gpu *g, const int64_t *limbs, const int64_t *denominator, double max_norm,
                        struct verdict *out)
{
    struct mirror l, d, v;
    mirror_open(g, &l, limbs, DT_EXACT_LIMBS * sizeof *limbs, 0);
    mirror_open(g, &d, denominator != NULL ? denominator : limbs, sizeof *denominator, 0);
    mirror_open(g, &v, out, sizeof *out, 0);
    struct verdict *on = (struct verdict *)(void *)v.p;
    g->d.kernels->norm_finish(
        g->s, &(struct dt_norm_finish_args){.norm = &on->norm,
                                            .clip = &on->clip,
                                            .factor = &on->factor,
                                            .nonfinite = &on->nonfinite,
                                            .limbs = (int64_t *)(void *)l.p,
                                            .denominator = denominator != NULL ? (int64_t *)(void *)d.p : NULL,
                                            .scale = 0.5,
                                            .max_norm = max_norm});
    mirror_close(g, &l, NULL, "norm_finish");
    mirror_close(g, &d, NULL, "norm_finish");
    mirror_close(g, &v, out, "norm_finish");
}

static void expect_norm(struct gpu *g, struct dt_stream *cpu, const int64_t *limbs, const int64_t *denominator,
                        double max_norm)
{
    struct verdict got, expect;
    memset(&got, 0, sizeof got);
    memset(&expect, 0, sizeof expect);
    finish_norm(g, limbs, denominator, max_norm, &got);
    dt_kernels_twin(DT_F32)->norm_finish(cpu, &(struct dt_norm_finish_args){.norm = &expect.norm,
                                                                            .clip = &expect.clip,
                                                                            .factor = &expect.factor,
                                                                            .nonfinite = &expect.nonfinite,
                                                                            .limbs = limbs,
                                                                            .denominator = denominator,
                                                                            .scale = 0.5,
                                                                            .max_norm = max_norm});
    assert_true(got.norm == expect.norm || (got.norm != got.norm && expect.norm != expect.norm));
    assert_true(got.clip == expect.clip && got.nonfinite == expect.nonfinite);
    assert_true(got.factor == expect.factor || (got.factor != got.factor && expect.factor != expect.factor));
}

/* Between the two limits, at either, and 1 where a norm is 0: the bits of the CPU. */
static void test_trust_ratio(void **state)
{
    (void)state;
    static const double squares[][2] = {{4, 7}, {0, 1}, {1, 0}, {1e8, 1e-8}, {1e-12, 9}, {3, 2}};
    enum { COUNT = sizeof squares / sizeof squares[0] };
    int64_t limbs[COUNT * 2 * DT_EXACT_LIMBS] = {0};
    double got[COUNT] = {0}, want[COUNT] = {0};
    for (int i = 0; i < COUNT * 2; i++) {
        dt_exact_add(&limbs[i * DT_EXACT_LIMBS], squares[i / 2][i % 2]);
    }
    struct gpu g;
    struct dt_device d;
    struct dt_stream *cpu = NULL;
    struct mirror l, r;
    gpu_open(&g, 2);
    case_open(&d, "cpu", 1, &cpu);
    mirror_open(&g, &l, limbs, sizeof limbs, 0);
    mirror_open(&g, &r, got, sizeof got, 0);
    struct dt_trust_ratio_args a = {.ratio = want, .limbs = limbs, .count = COUNT, .min_coeff = 0.01, .max_coeff = 10};
    d.kernels->trust_ratio(cpu, &a);
    a.ratio = (double *)(void *)r.p;
    a.limbs = (int64_t *)(void *)l.p;
    g.d.kernels->trust_ratio(g.s, &a);
    mirror_close(&g, &l, NULL, "trust_ratio");
    mirror_close(&g, &r, got, "trust_ratio");
    assert_memory_equal(got, want, sizeof want);
    assert_true(got[0] == sqrt(4) / sqrt(7) && got[1] == 1 && got[2] == 1 && got[3] == 10 && got[4] == 0.01);
    case_close(&d, cpu);
    gpu_close(&g);
}

/* Adds the squares of x on the GPU, in two slices, to limbs. */
static void square(struct gpu *g, int64_t *limbs, const void *x, int64_t count, int64_t cut, enum dt_dtype type)
{
    struct mirror l, m;
    size_t size = dt_dtype_size(type);
    mirror_open(g, &l, limbs, DT_EXACT_LIMBS * sizeof *limbs, 0);
    mirror_open(g, &m, x, (size_t)count * size, 0);
    int64_t *on = (int64_t *)(void *)l.p;
    g->d.kernels->norm_sum(g->s, &(struct dt_norm_sum_args){on, m.p + (size_t)cut * size, count - cut, type});
    g->d.kernels->norm_sum(g->s, &(struct dt_norm_sum_args){on, m.p, cut, type});
    mirror_close(g, &m, NULL, "norm_sum");
    mirror_close(g, &l, limbs, "norm_sum");
}

static void test_norm(void **unused)
{
    (void)unused;
    enum { TOTAL = 66011, CUT = 64 * 301 };
    static float x[TOTAL];
    static uint16_t half[TOTAL];
    struct dt_device host;
    struct dt_stream *cpu = NULL;
    case_open(&host, "cpu", 1, &cpu);
    for (int order = 0; order < ORDERS; order++) {
        struct gpu g;
        gpu_open(&g, order);
        for (int spread = 0; spread < 3; spread++) { /* squares within one limb, across two, over
                                                      * all of them and beyond */
            int64_t got[DT_EXACT_LIMBS] = {0}, expect[DT_EXACT_LIMBS] = {0};
            case_seed(9);
            for (int i = 0; i < TOTAL; i++) {
                double far = spread == 0 ? 0 : spread == 1 ? 12 * case_uniform() : 126 * case_uniform();
                x[i] = (float)ldexp(case_uniform(), (int)far);
            }
            dt_kernels_twin(DT_F32)->norm_sum(cpu, &(struct dt_norm_sum_args){expect, x, TOTAL, DT_F32});
            square(&g, got, x, TOTAL, CUT, DT_F32);
            assert_memory_equal(got, expect, sizeof expect);
            expect_norm(&g, cpu, got, NULL, 1.0);
            dt_cpu_cast(&(struct dt_cast_args){half, x, TOTAL, DT_BF16, DT_F32});
            memset(got, 0, sizeof got);
            memset(expect, 0, sizeof expect);
            dt_kernels_twin(DT_BF16)->norm_sum(cpu, &(struct dt_norm_sum_args){expect, half, TOTAL, DT_BF16});
            square(&g, got, half, TOTAL, CUT, DT_BF16);
            assert_memory_equal(got, expect, sizeof expect);
            int64_t tokens = 1000, none = 0;
            expect_norm(&g, cpu, got, &tokens, 0);
            expect_norm(&g, cpu, got, &none, 1e-3);
            for (int bad = 0; bad < 2; bad++) {
                float wrong[70] = {[3] = bad == 0 ? INFINITY : NAN};
                square(&g, got, wrong, 70, 64, DT_F32);
                dt_kernels_twin(DT_F32)->norm_sum(cpu, &(struct dt_norm_sum_args){expect, wrong, 70, DT_F32});
                assert_memory_equal(got, expect, sizeof expect);
                expect_norm(&g, cpu, got, NULL, 1.0);
            }
        }
        int64_t nothing[DT_EXACT_LIMBS] = {0},
                sparse[DT_EXACT_LIMBS] = {[0] = 1, [7] = INT64_C(0x123456789abcdef), [8] = 5};
        expect_norm(&g, cpu, nothing, NULL, 1.0);
        expect_norm(&g, cpu, sparse, NULL, 1.0);
        gpu_close(&g);
    }
    case_close(&host, cpu);
}

static void test_exact_sum(void **unused)
{
    (void)unused;
    enum { COUNT = 700 };
    static double x[COUNT];
    static int64_t divisors[COUNT];
    struct dt_device host;
    struct dt_stream *cpu = NULL;
    struct gpu g;
    case_open(&host, "cpu", 1, &cpu);
    gpu_open(&g, 2);
    for (int with = 0; with < 2; with++) {
        int64_t got[DT_EXACT_LIMBS + 1] = {0}, expect[DT_EXACT_LIMBS + 1] = {0};
        for (int i = 0; i < COUNT; i++) {
            x[i] = ldexp(case_uniform() + 0.9, (int)(40 * case_uniform()));
            divisors[i] = i % 9;
        }
        x[17] = NAN;
        x[300] = INFINITY;
        x[301] = -INFINITY;
        dt_kernels_twin(DT_F32)->exact_sum(cpu, &(struct dt_exact_sum_args){.limbs = expect,
                                                                            .bad_count = &expect[DT_EXACT_LIMBS],
                                                                            .x = x,
                                                                            .divisors = with != 0 ? divisors : NULL,
                                                                            .count = COUNT});
        struct mirror l, v, d;
        mirror_open(&g, &l, got, sizeof got, 0);
        mirror_open(&g, &v, x, sizeof x, 0);
        mirror_open(&g, &d, divisors, sizeof divisors, 0);
        int64_t *on = (int64_t *)(void *)l.p;
        g.d.kernels->exact_sum(g.s, &(struct dt_exact_sum_args){.limbs = on,
                                                                .bad_count = &on[DT_EXACT_LIMBS],
                                                                .x = (double *)(void *)v.p,
                                                                .divisors = with != 0 ? (int64_t *)(void *)d.p : NULL,
                                                                .count = COUNT});
        mirror_close(&g, &v, NULL, "exact_sum");
        mirror_close(&g, &d, NULL, "exact_sum");
        mirror_close(&g, &l, got, "exact_sum");
        assert_memory_equal(got, expect, sizeof expect);
    }
    gpu_close(&g);
    case_close(&host, cpu);
}

/* ---- bytes in, bytes out: the CPU's ---- */

/* A random float, half or integer of the type. */
static void random_bytes(void *to, int64_t count, enum dt_dtype type)
{
    for (int64_t i = 0; i < count; i++) {
        double x = case_uniform() * exp(6 * case_uniform());
        int64_t whole = (int64_t)(case_uniform() * 1e6);
        switch (type) {
        case DT_I64:
            ((int64_t *)to)[i] = whole * 100003;
            break;
        case DT_I32:
            ((int32_t *)to)[i] = (int32_t)(whole * 1009);
            break;
        case DT_U16:
            ((uint16_t *)to)[i] = (uint16_t)whole;
            break;
        case DT_U8:
            ((uint8_t *)to)[i] = (uint8_t)whole;
            break;
        default:
            dt_cpu_cast(&(struct dt_cast_args){(char *)to + (size_t)i * dt_dtype_size(type), &x, 1, type, DT_F64});
        }
    }
}

static void test_sum_slices(void **unused)
{
    (void)unused;
    enum { MOST = 67, COUNT = 1237 };
    static const int counts[] = {1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 33, 48, 67};
    static const enum dt_dtype types[] = {DT_F32, DT_F64, DT_BF16, DT_F16, DT_I64, DT_I32};
    static double in[MOST][COUNT], expect[COUNT], got[COUNT];
    struct gpu g;
    gpu_open(&g, 1);
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        size_t size = dt_dtype_size(types[t]);
        struct mirror mirrors[MOST];
        for (int p = 0; p < MOST; p++) {
            random_bytes(in[p], COUNT, types[t]);
            mirror_open(&g, &mirrors[p], in[p], COUNT * size, p == 5 ? size : 0);
        }
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            for (int op = DT_OP_SUM; op <= DT_OP_MIN; op++) {
                const void *host[MOST], *device[MOST];
                struct mirror out;
                for (int p = 0; p < MOST; p++) {
                    host[p] = in[p];
                    device[p] = mirrors[p].p;
                }
                mirror_open(&g, &out, in[0], COUNT * size, 0);
                device[0] = out.p; /* out may be one of them */
                dt_cpu_sum_slices(
                    &(struct dt_sum_slices_args){expect, host, counts[c], (enum dt_op)op, COUNT, types[t]});
                g.d.kernels->sum_slices(
                    g.s, &(struct dt_sum_slices_args){out.p, device, counts[c], (enum dt_op)op, COUNT, types[t]});
                memset(device, 0xff, sizeof device); /* the kernel has its own copy */
                mirror_close(&g, &out, got, "sum_slices");
                if (memcmp(got, expect, COUNT * size) != 0) {
                    fail_msg("%s of %d slices, operation %d: not the CPU's bits", dt_dtype_name(types[t]), counts[c],
                             op);
                }
            }
        }
        for (int p = 0; p < MOST; p++) {
            mirror_close(&g, &mirrors[p], NULL, "sum_slices");
        }
    }
    const void *too_many[500] = {0};
    g.d.kernels->sum_slices(g.s, &(struct dt_sum_slices_args){NULL, too_many, 500, DT_OP_SUM, 1, DT_F32});
    struct dt_error err = {0};
    assert_true(dt_stream_failed(g.s, &err));
    assert_int_equal(err.status, DT_INVALID);
    dt_stream_close(g.s);
    dt_device_close(&g.d);
}

static bool is_nan(const void *x, enum dt_dtype type)
{
    double d;
    dt_cpu_cast(&(struct dt_cast_args){&d, x, 1, DT_F64, type});
    return d != d;
}

static void test_cast(void **unused)
{
    (void)unused;
    enum { COUNT = 65536 + 7 };
    static const enum dt_dtype floats[] = {DT_F32, DT_F64, DT_BF16, DT_F16},
                               integers[] = {DT_I64, DT_I32, DT_U16, DT_U8};
    static uint64_t in[COUNT], expect[COUNT], got[COUNT];
    struct gpu g;
    gpu_open(&g, 1);
    for (int kind = 0; kind < 2; kind++) {
        for (int f = 0; f < 4; f++) {
            for (int t = 0; t < (kind == 0 ? 4 : 2); t++) {
                enum dt_dtype from = kind == 0 ? floats[f] : integers[f], to = kind == 0 ? floats[t] : integers[t];
                size_t from_bytes = dt_dtype_size(from), to_bytes = dt_dtype_size(to);
                struct mirror i, o;
                random_bytes(in, COUNT, from);
                for (int b = 0; b < 65536 && from_bytes == 2; b++) {
                    ((uint16_t *)in)[b] = (uint16_t)b; /* all of them */
                }
                /* halfway between two BF16 or F16, and beside it */
                for (int b = 0; b < 4096 && from == DT_F64; b++) {
                    double x = 1 + (b / 3 % 2048 + 0.5) / (b % 2 == 0 ? 128 : 1024);
                    ((double *)in)[b] = b % 3 == 0 ? x : nextafter(x, b % 3 == 1 ? 0 : 9);
                }
                mirror_open(&g, &i, in, COUNT * from_bytes, 0);
                mirror_open(&g, &o, expect, COUNT * to_bytes, f == 1 ? to_bytes : 0);
                dt_cpu_cast(&(struct dt_cast_args){expect, in, COUNT, to, from});
                g.d.kernels->cast(g.s, &(struct dt_cast_args){o.p, i.p, COUNT, to, from});
                mirror_close(&g, &i, NULL, "cast");
                mirror_close(&g, &o, got, "cast");
                for (int b = 0; b < COUNT; b++) {
                    const char *e = (const char *)expect + (size_t)b * to_bytes,
                               *x = (const char *)got + (size_t)b * to_bytes;
                    if (memcmp(e, x, to_bytes) != 0 && !(kind == 0 && is_nan(e, to) && is_nan(x, to))) {
                        fail_msg("%s to %s: element %d is not the CPU's", dt_dtype_name(from), dt_dtype_name(to), b);
                    }
                }
            }
        }
    }
    gpu_close(&g);
}

static void test_fill(void **unused)
{
    (void)unused;
    enum { COUNT = 5003 };
    static const double values[] = {0, 3, -0.0, 200.25};
    static uint64_t expect[COUNT], got[COUNT];
    struct gpu g;
    gpu_open(&g, 2);
    struct dt_device host;
    struct dt_stream *cpu = NULL;
    case_open(&host, "cpu", 1, &cpu);
    for (int t = 0; t < DT_DTYPE_COUNT; t++) {
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            for (int shift = 0; shift < 2; shift++) {
                size_t size = dt_dtype_size((enum dt_dtype)t);
                struct mirror m;
                memset(expect, 0x77, sizeof expect);
                mirror_open(&g, &m, expect, COUNT * size, (size_t)shift * size);
                dt_kernels_twin(DT_F32)->fill(cpu,
                                              &(struct dt_fill_args){expect, COUNT - 2, values[v], (enum dt_dtype)t});
                g.d.kernels->fill(g.s, &(struct dt_fill_args){m.p, COUNT - 2, values[v], (enum dt_dtype)t});
                mirror_close(&g, &m, got, "fill");
                assert_memory_equal(got, expect, COUNT * size);
            }
        }
    }
    case_close(&host, cpu);
    gpu_close(&g);
}

/* ---- launches ---- */

extern uint64_t softgpu_launch_count __attribute__((weak)); /* not on a real GPU */

/* The update of a model of 36 layers is one launch, whatever decays. */
typedef void update_fn(struct dt_stream *s, const struct dt_update_args *a);

static void check_launches(update_fn *update, int states, enum dt_dtype moment)
{
    enum { UNITS = 37, TENSORS = 9, PART = 64, COUNT = UNITS * TENSORS * PART };
    static float zeros[COUNT];
    static struct dt_update_slice each[UNITS * TENSORS];
    struct gpu g;
    struct mirror w[UNITS], rest[2], grad;
    gpu_open(&g, 0);
    mirror_open(&g, &rest[0], zeros, sizeof zeros, 0);
    mirror_open(&g, &rest[1], zeros, sizeof zeros, 0);
    mirror_open(&g, &grad, zeros, sizeof zeros, 0);
    for (int u = 0; u < UNITS; u++) {
        mirror_open(&g, &w[u], zeros, TENSORS * PART * sizeof *zeros, 0);
        for (int t = 0; t < TENSORS; t++) {
            int at = u * TENSORS + t;
            each[at] = (struct dt_update_slice){.w = (float *)(void *)w[u].p + t * PART,
                                                .grad = (float *)(void *)grad.p + at * PART,
                                                .count = PART,
                                                .weight_decay = t % 2,
                                                .unit = u,
                                                .first = t * PART};
            for (int k = 0; k < states; k++) {
                each[at].state[k] = rest[k].p + (size_t)at * PART * dt_dtype_size(moment);
            }
        }
    }
    uint64_t before = softgpu_launch_count;
    update(g.s, &(struct dt_update_args){.slices = each,
                                         .slice_count = UNITS * TENSORS,
                                         .step = 1,
                                         .grad_scale = 1,
                                         .numbers = {.beta1 = 0.9, .beta2 = 0.9, .eps = 1, .momentum = 0.9},
                                         .type = DT_F32,
                                         .grad_type = DT_F32,
                                         .state_type = moment});
    assert_int_equal(softgpu_launch_count - before, 1);
    for (int u = 0; u < UNITS; u++) {
        mirror_close(&g, &w[u], NULL, "adamw_many");
    }
    mirror_close(&g, &rest[0], NULL, "adamw_many");
    mirror_close(&g, &rest[1], NULL, "adamw_many");
    mirror_close(&g, &grad, NULL, "adamw_many");
    gpu_close(&g);
}

static void test_one_launch(void **unused)
{
    (void)unused;
    if (&softgpu_launch_count == NULL) {
        skip();
    }
    for (int half = 0; half < 2; half++) {
        check_launches(dt_cuda_adamw_many, 2, half ? DT_BF16 : DT_F32);
        check_launches(dt_cuda_sgd_many, 1, half ? DT_BF16 : DT_F32);
        check_launches(dt_cuda_lion_many, 1, half ? DT_BF16 : DT_F32);
        check_launches(dt_cuda_adam_many, 2, half ? DT_BF16 : DT_F32);
        check_launches(dt_cuda_adagrad_many, 1, half ? DT_BF16 : DT_F32);
    }
    check_launches(dt_cuda_sgd_many, 0, DT_F32);
}

/* Gradients of weights of a norm without rows are zero. */
static void test_norm_without_rows(void **unused)
{
    (void)unused;
    enum { COLS = 776 };
    static const int64_t widths[] = {24, COLS};
    struct gpu g;
    gpu_open(&g, 1);
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        float got[2 * COLS];
        struct mirror m;
        memset(got, 0x3f, sizeof got);
        mirror_open(&g, &m, got, sizeof got, 0);
        g.d.kernels->layernorm_backward(g.s, &(struct dt_layernorm_backward_args){.dx = m.p,
                                                                                  .dgamma = m.p,
                                                                                  .dbeta = (float *)(void *)m.p + COLS,
                                                                                  .dy = m.p,
                                                                                  .x = m.p,
                                                                                  .gamma = m.p,
                                                                                  .mean = m.p,
                                                                                  .rstd = m.p,
                                                                                  .col_count = widths[i],
                                                                                  .type = DT_F32});
        mirror_close(&g, &m, got, "layernorm_backward");
        for (int64_t c = 0; c < widths[i]; c++) {
            assert_true(got[c] == 0 && got[COLS + c] == 0);
        }
    }
    gpu_close(&g);
}

/* ---- bad input, and two streams ---- */

/* The device finds a target that is none; whoever asks about the stream afterwards hears of the
 * first such row. */
static void test_bad_target(void **unused)
{
    (void)unused;
    enum { ROWS = 100, COLS = 16 };
    static float logits[ROWS * COLS];
    for (int order = 0; order < ORDERS; order++) {
        struct gpu g;
        gpu_open(&g, order);
        struct mirror l, side;
        memset(&case_side, 0, sizeof case_side);
        case_side.ids[1] = DT_IGNORE_INDEX;
        case_side.ids[71] = 16;
        case_side.ids[73] = -1;
        mirror_open(&g, &l, logits, sizeof logits, 0);
        mirror_open(&g, &side, &case_side, sizeof case_side, 0);
        struct case_side *on = (struct case_side *)(void *)side.p;
        g.d.kernels->cross_entropy(g.s, &(struct dt_cross_entropy_args){.logits = l.p,
                                                                        .targets = on->ids,
                                                                        .row_loss = on->losses,
                                                                        .loss_sum = &on->loss_sum,
                                                                        .valid_count = &on->valid,
                                                                        .row_count = ROWS,
                                                                        .col_count = COLS,
                                                                        .type = DT_F32});
        struct dt_error err = {0};
        assert_int_equal(dt_stream_finish(g.s, 60, &err), -1);
        assert_int_equal(err.status, DT_INVALID);
        assert_string_equal(err.text, "loss: row 71: target 16 is outside of 0..15");
        dt_device_free(&g.d, DT_MEMORY_DEVICE, l.block, l.block_bytes);
        dt_device_free(&g.d, DT_MEMORY_PINNED, l.pinned, l.block_bytes);
        dt_device_free(&g.d, DT_MEMORY_DEVICE, side.block, side.block_bytes);
        dt_device_free(&g.d, DT_MEMORY_PINNED, side.pinned, side.block_bytes);
        dt_stream_close(g.s);
        dt_device_close(&g.d);
    }
}

/* A NaN or an infinity among a row's logits makes its loss NaN, in the first column as in the last
 * ones, which no vector holds; minus infinity (a logit that is masked) does not; rows beside it do
 * not know of it. */
static void test_loss_of_nan(void **unused)
{
    (void)unused;
    enum { ROWS = 40, COLS = 1003, LD = 1008 };
    static float wide[ROWS * LD];
    static uint16_t low[ROWS * LD];
    for (int i = 0; i < ROWS * LD; i++) {
        wide[i] = (float)(i % 7);
    }
    for (int row = 0; row < ROWS; row += 4) {
        int at[] = {0, 512, COLS - 1, 17};
        wide[row * LD + at[row / 4 % 4]] = row % 3 == 0 ? NAN : row % 3 == 1 ? INFINITY : -INFINITY;
    }
    for (int i = 0; i < ROWS * LD; i++) {
        uint32_t bits;
        memcpy(&bits, &wide[i], sizeof bits);
        low[i] = (uint16_t)(bits >> 16);
    }
    for (int turn = 0; turn < 2 * ORDERS; turn++) {
        bool f32 = turn % 2 == 0;
        struct gpu g;
        gpu_open(&g, turn / 2);
        struct mirror l, side;
        memset(&case_side, 0, sizeof case_side);
        for (int row = 0; row < ROWS; row++) {
            case_side.ids[row] = 5;
        }
        mirror_open(&g, &l, f32 ? (void *)wide : (void *)low, f32 ? sizeof wide : sizeof low, 0);
        mirror_open(&g, &side, &case_side, sizeof case_side, 0);
        struct case_side *on = (struct case_side *)(void *)side.p;
        g.d.kernels->cross_entropy(g.s, &(struct dt_cross_entropy_args){.logits = l.p,
                                                                        .targets = on->ids,
                                                                        .row_loss = on->losses,
                                                                        .loss_sum = &on->loss_sum,
                                                                        .row_count = ROWS,
                                                                        .col_count = COLS,
                                                                        .ld = LD,
                                                                        .grad_scale = 1,
                                                                        .with_grad = true,
                                                                        .type = f32 ? DT_F32 : DT_BF16});
        mirror_close(&g, &l, NULL, "cross_entropy");
        mirror_close(&g, &side, &case_side, "cross_entropy");
        for (int row = 0; row < ROWS; row++) {
            bool bad = row % 4 == 0 && row % 3 != 2;
            if (isnan(case_side.losses[row]) != bad || (!bad && !isfinite(case_side.losses[row]))) {
                fail_msg("%s: row %d has the loss %g", f32 ? "fp32" : "bf16", row, case_side.losses[row]);
            }
        }
        assert_true(isnan(case_side.loss_sum));
        gpu_close(&g);
    }
}

/* Kernels that need memory for partial sums have it to themselves, on each stream. */
static void test_two_streams(void **unused)
{
    (void)unused;
    enum { ROWS = 600, COLS = 512, TURNS = 10 };
    static float x[2][ROWS * COLS], got[TURNS][COLS], expect[2][COLS];
    struct gpu g[2];
    struct mirror in[2], out[2][TURNS];
    gpu_open(&g[0], 0);
    g[1].d = g[0].d;
    assert_int_equal(dt_stream_open(&g[0].d, 0, &g[1].s, NULL), 0);
    for (int i = 0; i < 2; i++) {
        random_bytes(x[i], ROWS * COLS, DT_F32);
        for (int c = 0; c < COLS; c++) {
            double sum = 0;
            for (int r = 0; r < ROWS; r++) {
                sum += (double)x[i][r * COLS + c];
            }
            expect[i][c] = (float)sum;
        }
        mirror_open(&g[i], &in[i], x[i], sizeof x[i], 0);
        for (int t = 0; t < TURNS; t++) {
            mirror_open(&g[i], &out[i][t], got[t], sizeof got[t], 0);
        }
    }
    for (int t = 0; t < 2 * TURNS; t++) {
        g[t % 2].d.kernels->column_sum(g[t % 2].s, &(struct dt_column_sum_args){out[t % 2][t / 2].p, in[t % 2].p, ROWS,
                                                                                COLS, false, DT_F32, DT_F32});
    }
    for (int i = 0; i < 2; i++) {
        for (int t = 0; t < TURNS; t++) {
            mirror_close(&g[i], &out[i][t], got[t], "column_sum");
            for (int c = 0; c < COLS; c++) {
                assert_true(fabs((double)got[t][c] - (double)expect[i][c]) < 1e-3 * (1 + fabs((double)expect[i][c])));
            }
        }
        mirror_close(&g[i], &in[i], NULL, "column_sum");
    }
    dt_stream_close(g[1].s);
    gpu_close(&g[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_more_shapes),
        cmocka_unit_test(test_bits_of_the_cpu),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_exact_sum),
        cmocka_unit_test(test_sum_slices),
        cmocka_unit_test(test_cast),
        cmocka_unit_test(test_fill),
        cmocka_unit_test(test_bad_target),
        cmocka_unit_test(test_loss_of_nan),
        cmocka_unit_test(test_two_streams),
        cmocka_unit_test(test_one_launch),
        cmocka_unit_test(test_trust_ratio),
        cmocka_unit_test(test_norm_without_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
