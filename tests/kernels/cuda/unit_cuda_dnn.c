/* covers: kernels/cuda/dnn.c kernels/cuda/attention.c */
/* Attention by cuDNN on the software GPU: our descriptors as a library takes them apart, both
 * passes against plain loops in double, batches that go by parts, and everything that makes it
 * step aside: no library, an old one, a part of it missing, a shape or an address that it does
 * not take. On a real GPU the
 * numbers alone.   run: timeout 200 */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/dnn.h"
#include "tests/lib/attention_shape.h"
#include "tests/lib/child.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

int softgpu_dnn_executions(void) __attribute__((weak)); /* graphs that cuDNN ran, plans that it
                                                         * made; on a real GPU nobody counts them */
int softgpu_dnn_plans(void) __attribute__((weak));

enum { EDGE_BYTES = 264 }; /* around work memory, so that it lies beside any alignment */
static bool plain_wanted;  /* DTRUN_ATTENTION=plain */

struct gpu {
    struct dt_device d;
    struct dt_stream *s;
    struct attention_shape n;
    char *host[TENSORS]; /* pinned */
    char *device[TENSORS];
    size_t bytes[TENSORS];
    size_t off;                         /* bytes by which all tensors lie beside their alignment */
    char *work, *edges;                 /* work memory between two edges; pinned: what these hold */
    size_t work_bytes;                  /* without the edges */
    int executions;                     /* that were seen before the call that is looked at */
    int64_t calls[2][DT_ATTENTION_BYS]; /* the same of calls */
};

static float value_of(uint64_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    return (float)((double)(x * 0xbf58476d1ce4e5b9u >> 40) / (double)(1 << 23) - 1.0);
}

static uint16_t bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double wide(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static void *allocate(struct gpu *g, enum dt_memory kind, size_t size_bytes)
{
    struct dt_error err = {0};
    void *p = NULL;
    if (dt_device_alloc(&g->d, kind, size_bytes, &p, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return p;
}

static void gpu_open(struct gpu *g, struct attention_shape n, size_t off, size_t work_bytes, bool deterministic)
{
    struct dt_error err = {0};
    memset(g, 0, sizeof *g);
    g->n = n;
    g->off = off;
    g->work_bytes = work_bytes;
    if (dt_device_open(&g->d, "cuda", &(struct dt_device_options){.attention = deterministic ? "own" : NULL}, &err) !=
            0 ||
        dt_stream_open(&g->d, 0, &g->s, &err) != 0) {
        fail_msg("%s", err.text);
    }
    for (int i = 0; i < TENSORS; i++) {
        g->bytes[i] = attention_bytes(&n, (enum attention_tensor)i);
        g->host[i] = allocate(g, DT_MEMORY_PINNED, g->bytes[i] + off);
        g->device[i] = allocate(g, DT_MEMORY_DEVICE, g->bytes[i] + off);
        memset(g->host[i], 0xff, g->bytes[i] + off); /* a NaN where nothing is written */
        if (i == QKV || i == DOUT) {
            for (size_t k = 0; k < g->bytes[i] / 2; k++) {
                ((uint16_t *)(void *)(g->host[i] + off))[k] = bf16(value_of(k + (size_t)i * 1000003));
            }
        }
        dt_stream_copy(g->s, g->device[i], g->host[i], g->bytes[i] + off);
    }
    g->edges = allocate(g, DT_MEMORY_PINNED, 2 * EDGE_BYTES);
    g->work = allocate(g, DT_MEMORY_DEVICE, work_bytes + 2 * EDGE_BYTES);
    memset(g->edges, 0xff, 2 * EDGE_BYTES);
    dt_stream_copy(g->s, g->work, g->edges, EDGE_BYTES);
    dt_stream_copy(g->s, g->work + EDGE_BYTES + work_bytes, g->edges + EDGE_BYTES, EDGE_BYTES);
}

static void gpu_close(struct gpu *g)
{
    dt_stream_close(g->s);
    for (int i = 0; i < TENSORS; i++) {
        dt_device_free(&g->d, DT_MEMORY_PINNED, g->host[i], g->bytes[i] + g->off);
        dt_device_free(&g->d, DT_MEMORY_DEVICE, g->device[i], g->bytes[i] + g->off);
    }
    dt_device_free(&g->d, DT_MEMORY_PINNED, g->edges, 2 * EDGE_BYTES);
    dt_device_free(&g->d, DT_MEMORY_DEVICE, g->work, g->work_bytes + 2 * EDGE_BYTES);
    dt_device_close(&g->d);
}

/* Both calls, of the tensors that lie `off` bytes beside their alignment. */
static void gpu_calls(const struct gpu *g, struct dt_attention_args *forward,
                      struct dt_attention_backward_args *backward)
{
    char *tensors[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        tensors[i] = g->device[i] + g->off;
    }
    *forward = attention_args(&g->n, tensors);
    *backward = attention_backward_args(&g->n, tensors);
    backward->work = g->work + EDGE_BYTES;
    backward->work_bytes = g->work_bytes;
}

/* Both passes, and what they wrote back on the host. The stream's failure, or 0. */
static int gpu_run(struct gpu *g, struct dt_error *err)
{
    struct dt_attention_args forward;
    struct dt_attention_backward_args backward;
    gpu_calls(g, &forward, &backward);
    g->d.kernels->attention(g->s, &forward);
    g->d.kernels->attention_backward(g->s, &backward);
    for (int i = OUT; i <= DQKV; i++) {
        dt_stream_copy(g->s, g->host[i], g->device[i], g->bytes[i] + g->off);
    }
    dt_stream_copy(g->s, g->edges, g->work, EDGE_BYTES);
    dt_stream_copy(g->s, g->edges + EDGE_BYTES, g->work + EDGE_BYTES + g->work_bytes, EDGE_BYTES);
    return dt_stream_finish(g->s, 60, err);
}

/* ---- by what it was computed ---- */

/* Executions of graphs by cuDNN, in each pass; 0: it had no part in it. */
struct dnn_part {
    int forward, backward;
};
static const struct dnn_part both = {1, 1}, none = {0, 0};

enum { SETTINGS = 2 };
struct variant {
    struct {
        const char *name, *value;
    } settings[SETTINGS]; /* variables of the process */
    struct attention_shape n;
    size_t off, work_bytes;
    bool deterministic;
    struct dnn_part part;
};

static void count(struct gpu *g)
{
    g->executions = softgpu_dnn_executions != NULL ? softgpu_dnn_executions() : 0;
    for (int by = 0; by < DT_ATTENTION_BYS; by++) {
        g->calls[0][by] = dt_cuda_attention_calls((enum dt_attention_by)by, false);
        g->calls[1][by] = dt_cuda_attention_calls((enum dt_attention_by)by, true);
    }
}

/* Since count: one call of each pass, by cuDNN where it has a part, and no execution more than
 * it has. */
static void check_counts(const struct gpu *g, struct dnn_part expected)
{
    const struct dt_attention_shape shape = attention_common(&g->n);
    for (int by = 0; by < DT_ATTENTION_BYS; by++) {
        for (int backward = 0; backward < 2; backward++) {
            bool dnn = (backward ? expected.backward : expected.forward) > 0;
            int64_t calls = dt_cuda_attention_calls((enum dt_attention_by)by, backward) - g->calls[backward][by];
            bool flash = dt_cuda_attention_flash_can(&shape) && g->off % 16 == 0;
            enum dt_attention_by other = flash && !plain_wanted ? DT_ATTENTION_BY_FLASH : DT_ATTENTION_BY_PLAIN;
            if (calls != (by == (int)(dnn ? DT_ATTENTION_BY_CUDNN : other))) {
                fail_msg("%s: %lld calls by %d", backward ? "backward" : "forward", (long long)calls, by);
            }
        }
    }
    if (softgpu_dnn_executions != NULL) {
        assert_int_equal(softgpu_dnn_executions() - g->executions, expected.forward + expected.backward);
    }
}

/* What a real GPU does of it: a batch need not go by parts there, and on 10.x backward is not
 * cuDNN's. */
static struct dnn_part here(const struct gpu *g, struct dnn_part wanted)
{
    if (softgpu_dnn_executions == NULL && dt_cuda_capability(&g->d) / 10 == 10) {
        wanted.backward = 0;
    }
    return wanted;
}

/* ---- the same by plain loops ---- */

struct reference {
    double *out, *lse, *dqkv;
    double out_most, dqkv_most; /* the largest of them */
};

static void reference_of(const struct gpu *g, struct reference *r)
{
    const struct attention_shape *n = &g->n;
    const uint16_t *qkv = (const void *)(g->host[QKV] + g->off), *dout = (const void *)(g->host[DOUT] + g->off);
    int64_t t = n->positions, d = n->head_size, row = attention_row(n), out_row = n->heads * d,
            kv_heads = attention_kv_heads(n);
    double scale = n->scale != 0 ? n->scale : 1 / sqrt((double)d), *p = calloc((size_t)t, sizeof *p),
           *ds = calloc((size_t)t, sizeof *ds);
    r->out = calloc((size_t)(n->batch * t * out_row), sizeof *r->out);
    r->lse = calloc((size_t)(n->batch * n->heads * t), sizeof *r->lse);
    r->dqkv = calloc((size_t)(n->batch * t * row), sizeof *r->dqkv);
    for (int64_t i = 0; i < n->batch * n->heads * t; i++) {
        int64_t b = i / t / n->heads, h = i / t % n->heads, q = i % t, kv = h / (n->heads / kv_heads),
                keys = n->causal ? q + 1 : t;
        const uint16_t *base = qkv + b * t * row;
        int64_t at_q = q * row + h * d, at_k = (n->heads + kv) * d, at_v = at_k + kv_heads * d,
                at_out = (b * t + q) * out_row + h * d;
        double most = -INFINITY, sum = 0, own = 0;
        for (int64_t k = 0; k < keys; k++) {
            p[k] = 0;
            for (int64_t c = 0; c < d; c++) {
                p[k] += scale * wide(base[at_q + c]) * wide(base[k * row + at_k + c]);
            }
            most = p[k] > most ? p[k] : most;
        }
        for (int64_t k = 0; k < keys; k++) {
            p[k] = exp(p[k] - most);
            sum += p[k];
        }
        r->lse[i] = most + log(sum);
        for (int64_t k = 0; k < keys; k++) {
            p[k] /= sum;
            ds[k] = 0;
            for (int64_t c = 0; c < d; c++) {
                r->out[at_out + c] += p[k] * wide(base[k * row + at_v + c]);
                ds[k] += wide(dout[at_out + c]) * wide(base[k * row + at_v + c]);
            }
            own += p[k] * ds[k];
        }
        double *grad = r->dqkv + b * t * row;
        for (int64_t k = 0; k < keys; k++) {
            double change = scale * p[k] * (ds[k] - own);
            for (int64_t c = 0; c < d; c++) {
                grad[at_q + c] += change * wide(base[k * row + at_k + c]);
                grad[k * row + at_k + c] += change * wide(base[at_q + c]);
                grad[k * row + at_v + c] += p[k] * wide(dout[at_out + c]);
            }
        }
    }
    for (int64_t i = 0; i < n->batch * t * row; i++) {
        r->dqkv_most = fmax(r->dqkv_most, fabs(r->dqkv[i]));
        r->out_most = i < n->batch * t * out_row ? fmax(r->out_most, fabs(r->out[i])) : r->out_most;
    }
    free(p);
    free(ds);
}

/* Of the largest value: rounding of weights, output and gradients to 8 bits each, of inputs that
 * cancel. Nothing else is let through: a mask that is one key off, or a head that reads its
 * neighbour's keys, is a hundred times as far away. */
static const double bound = 0.02;

static void check_result(const struct gpu *g)
{
    struct reference r = {0};
    const struct attention_shape *n = &g->n;
    int64_t rows = n->batch * n->positions;
    reference_of(g, &r);
    for (int64_t i = 0; i < rows * n->heads * n->head_size; i++) {
        double got = wide(((const uint16_t *)(const void *)(g->host[OUT] + g->off))[i]);
        if (!(fabs(got - r.out[i]) <= bound * r.out_most)) {
            fail_msg("out[%lld]: %g instead of %g", (long long)i, got, r.out[i]);
        }
    }
    for (int64_t i = 0; i < rows * n->heads; i++) {
        double got = (double)((const float *)(const void *)(g->host[LSE] + g->off))[i];
        if (!(fabs(got - r.lse[i]) <= 1e-4)) {
            fail_msg("lse[%lld]: %g instead of %g", (long long)i, got, r.lse[i]);
        }
    }
    for (int64_t i = 0; i < rows * attention_row(n); i++) {
        double got = wide(((const uint16_t *)(const void *)(g->host[DQKV] + g->off))[i]);
        if (!(fabs(got - r.dqkv[i]) <= bound * r.dqkv_most)) {
            fail_msg("dqkv[%lld]: %g instead of %g", (long long)i, got, r.dqkv[i]);
        }
    }
    free(r.out);
    free(r.lse);
    free(r.dqkv);
}

/* Twice on one device. */
static void run_and_check(const struct variant *v)
{
    struct gpu g;
    struct dt_error err = {0};
    gpu_open(&g, v->n, v->off, v->work_bytes, v->deterministic);
    for (int i = 0; i < 2; i++) {
        count(&g);
        if (gpu_run(&g, &err) != 0) {
            fail_msg("%s", err.text);
        }
        check_result(&g);
        check_counts(&g, here(&g, v->part));
        for (int k = 0; k < 2 * EDGE_BYTES; k++) {
            assert_int_equal(g.edges[k], (char)0xff);
        }
    }
    gpu_close(&g);
}

static const struct attention_shape common = {2, 33, 2, 16, 0, true, 0, 1};

static void test_shapes(void **unused)
{
    (void)unused;
    static const struct attention_shape shapes[] = {{2, 33, 2, 16, 0, true, 0, 1},   {3, 64, 3, 8, 0, true, 0, 1},
                                                    {1, 65, 4, 32, 2, false, 0, 1},  {2, 40, 6, 24, 1, true, 0, 1},
                                                    {4, 5, 1, 64, 0, true, 0, 1},    {1, 130, 2, 128, 0, true, 0, 1},
                                                    {2, 40, 2, 16, 0, true, 0.3, 1}, {2, 2, 2, 8, 0, false, 0, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        run_and_check(&(struct variant){.n = shapes[i], .part = both});
    }
}

/* What it does not take is computed all the same. */
static void test_left_to_others(void **unused)
{
    (void)unused;
    static const struct attention_shape shapes[] = {
        {2, 20, 2, 20, 0, true, 0, 1}, /* a head size that is no multiple of 8 */
        {1, 9, 1, 136, 0, true, 0, 1}, /* too large */
        {3, 1, 2, 16, 0, true, 0, 1},  /* one position */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        run_and_check(&(struct variant){.n = shapes[i], .part = none});
    }
    /* addresses beside their alignment */
    run_and_check(&(struct variant){.n = common, .off = 8, .part = none});
    run_and_check(&(struct variant){.n = common, .deterministic = true, .part = none});
}

/* The same addresses again: the same bits, and a shape's plan and packs are found again. */
static void test_again(void **unused)
{
    (void)unused;
    struct gpu g;
    struct dt_error err = {0};
    gpu_open(&g, common, 0, 0, false);
    assert_int_equal(gpu_run(&g, &err), 0);
    char *first = malloc(g.bytes[DQKV]);
    memcpy(first, g.host[DQKV], g.bytes[DQKV]);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gpu_run(&g, &err), 0);
        assert_memory_equal(first, g.host[DQKV], g.bytes[DQKV]);
    }
    check_result(&g);
    free(first);
    gpu_close(&g);
}

/* Plans that were made before are those of the calls, wherever their memory lies. */
static void test_ready(void **unused)
{
    (void)unused;
    static const size_t work[] = {0, (size_t)40 << 20};
    for (int i = 0; i < 2; i++) {
        struct gpu g;
        struct dt_error err = {0};
        struct dt_attention_args forward;
        struct dt_attention_backward_args backward;
        const char *by = "", *by_backward = "";
        gpu_open(&g, common, 0, work[i], false);
        gpu_calls(&g, &forward, &backward);
        backward.work = (char *)backward.work + 40;
        int before = softgpu_dnn_plans();
        assert_int_equal(g.d.ops->plans->attention(&g.d, &forward, &by, &err), 0);
        assert_int_equal(g.d.ops->plans->attention_backward(&g.d, &backward, &by_backward, &err), 0);
        assert_string_equal(by, "cuDNN");
        assert_string_equal(by_backward, "cuDNN");
        assert_int_equal(softgpu_dnn_plans() - before, 2);
        assert_int_equal(gpu_run(&g, &err), 0);
        assert_int_equal(softgpu_dnn_plans() - before, 2);
        gpu_close(&g);
        gpu_open(&g, common, 0, work[i], true);
        assert_int_equal(g.d.ops->plans->attention(&g.d, &forward, &by, &err), 0);
        assert_int_equal(g.d.ops->plans->attention_backward(&g.d, &backward, &by_backward, &err), 0);
        assert_string_equal(by, "kernels of our own on tensor cores");
        assert_string_equal(by_backward, by);
        gpu_close(&g);
    }
}

/* ---- in a process of its own, as what is loaded is loaded for good ---- */

static struct variant variant;

static void set_variables(void)
{
    for (int i = 0; i < SETTINGS && variant.settings[i].name != NULL; i++) {
        (void)setenv(variant.settings[i].name, variant.settings[i].value, 1);
    }
    plain_wanted = strcmp(variant.settings[0].value, "plain") == 0;
}

static int run_variant(void)
{
    set_variables();
    run_and_check(&variant);
    return 0;
}

/* The line is said once, whatever is called how often, or not at all where it is null. */
static void expect(struct variant v, const char *line)
{
    char text[CHILD_TEXT];
    variant = v;
    int code = child_run(run_variant, text);
    if (code != 0) {
        fail_msg("%s=%s: %d: %s", v.settings[0].name, v.settings[0].value, code, text);
    }
    char *found = line != NULL ? strstr(text, line) : NULL;
    if (line != NULL ? found == NULL || strstr(found + 1, "cuDNN") != NULL : strstr(text, "cuDNN") != NULL) {
        fail_msg("%s=%s says: %s", v.settings[0].name, v.settings[0].value, text);
    }
}

static void test_parts(void **unused)
{
    (void)unused;
    struct attention_shape four = common;
    four.batch = 4;
    four.positions = 32;
    /* one sequence at a time */
    expect((struct variant){{{"SOFTGPU_CUDNN", "work 20"}}, four, .part = {4, 4}}, NULL);
    expect((struct variant){{{"SOFTGPU_CUDNN", "work 10"}}, four, .part = {2, 2}}, NULL);
    four.positions = 33;
    four.heads = 1; /* a sequence's log-sum-exp ends beside any alignment */
    expect((struct variant){{{"SOFTGPU_CUDNN", "work 20"}}, four, .part = none},
           "wants more work memory than there is; 33 positions, 1 heads of size 16 run on kernels of our own");
}

/* Work memory of the caller, larger than the stream's 32 MiB: forward has none, so where an
 * engine wants 40 MiB for a sequence it is left to others. */
static void test_callers_work(void **unused)
{
    (void)unused;
    const char *line =
        "wants more work memory than there is; 32 positions, 2 heads of size 16 run on kernels of our own";
    static const struct {
        size_t mib;
        int parts;
    } cases[] = {{45, 4}, {90, 2}, {200, 1}};
    struct attention_shape four = common;
    four.batch = 4;
    four.positions = 32;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect(
            (struct variant){
                {{"SOFTGPU_CUDNN", "work 40"}}, four, .work_bytes = cases[i].mib << 20, .part = {0, cases[i].parts}},
            line);
    }
    /* the stream's is larger */
    expect((struct variant){{{"SOFTGPU_CUDNN", "work 20"}}, four, .work_bytes = (size_t)20 << 20, .part = {4, 4}},
           NULL);
}

static int ask_for_wide(void)
{
    struct gpu g;
    struct dt_error err = {0};
    struct dt_attention_args forward;
    struct dt_attention_backward_args backward;
    const char *by = "", *by_backward = "";
    gpu_open(&g, variant.n, 0, variant.work_bytes, false);
    gpu_calls(&g, &forward, &backward);
    assert_int_equal(g.d.ops->plans->attention(&g.d, &forward, &by, &err), 0);
    assert_int_equal(g.d.ops->plans->attention_backward(&g.d, &backward, &by_backward, &err), 0);
    (void)fprintf(stderr, "%s, %s", by, by_backward);
    gpu_close(&g);
    return 0;
}

/* A sequence whose scores alone are too many for the stream's work memory, which is known before
 * the library is asked, and not for the caller's. */
static void test_does_not_fit(void **unused)
{
    (void)unused;
    char text[CHILD_TEXT];
    variant = (struct variant){.n = {1, 2, 2100, 8, 0, true, 0, 1}};
    assert_int_equal(child_run(ask_for_wide, text), 0);
    assert_non_null(strstr(text, "cuDNN: the scores of a sequence do not fit into 32 MiB of work memory; 2 positions, "
                                 "2100 heads of size 8, backward, "
                                 "run on kernels of our own\n"));
    assert_non_null(strstr(text, "\ncuDNN, kernels of our own on tensor cores"));
    variant.work_bytes = (size_t)40 << 20;
    assert_int_equal(child_run(ask_for_wide, text), 0);
    assert_string_equal(text, "cuDNN, cuDNN");
}

static void test_no_library(void **unused)
{
    (void)unused;
    expect((struct variant){{{"DTRUN_CUDNN", "/nowhere/libcudnn.so.9"}}, common, .part = none},
           "cuDNN: DTRUN_CUDNN=/nowhere/libcudnn.so.9: no such library; attention runs on kernels of our own");
    expect((struct variant){{{"SOFTGPU_CUDNN", "91000"}}, common, .part = none},
           "cuDNN: version 9.10.0 is here, 9.16 is the least; attention runs on kernels of our own");
    expect((struct variant){{{"SOFTGPU_CUDNN", "create 1008"}}, common, .part = none},
           "cuDNN: cannot be started: CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED; attention runs on kernels of our own");
    expect((struct variant){{{"SOFTGPU_CUDNN", "engines 0"}}, common, .part = none},
           "cuDNN: has no engine without NVRTC, and libnvrtc.so.99 is not here; 33 positions, 2 heads of size 16 run "
           "on kernels of our own");
}

/* The variable counts more than what the device is opened with. */
static void test_wishes(void **unused)
{
    (void)unused;
    static const struct attention_shape grouped = {1, 40, 6, 24, 2, true, 0, 1};
    expect((struct variant){{{"DTRUN_ATTENTION", "own"}}, common, .part = none}, NULL);
    expect((struct variant){{{"DTRUN_ATTENTION", "plain"}}, common, .part = none}, NULL);
    expect((struct variant){{{"DTRUN_ATTENTION", "ordered"}}, common, .part = both}, NULL);
    expect((struct variant){{{"DTRUN_ATTENTION", "cudnn"}}, common, .part = both}, NULL);
    expect((struct variant){{{"DTRUN_ATTENTION", "cudnn"}}, common, .deterministic = true, .part = both}, NULL);
    expect((struct variant){{{"DTRUN_ATTENTION", "fast"}}, common, .part = both}, NULL);
    expect((struct variant){{{"DTRUN_ATTENTION", "fast"}}, grouped, .part = both}, NULL);
}

/* Where its backward has no order. */
static void test_no_order(void **unused)
{
    (void)unused;
    expect((struct variant){{{"SOFTGPU_CAPABILITY", "103"}}, common, .part = {1, 0}},
           "cuDNN: sums in no order on compute capability 10.3; 33 positions, 2 heads of size 16, backward, run on "
           "kernels of our own");
    expect((struct variant){{{"SOFTGPU_CAPABILITY", "100"}, {"DTRUN_ATTENTION", "fast"}}, common, .part = both}, NULL);
    expect((struct variant){{{"SOFTGPU_CAPABILITY", "80"}}, common, .part = both}, NULL);
}

static int open_with_a_wrong_wish(void)
{
    struct dt_device d;
    struct dt_error err = {0};
    (void)setenv("DTRUN_ATTENTION", "quick", 1);
    int rc = dt_device_open(&d, "cuda", NULL, &err);
    (void)fprintf(stderr, "%d %s", (int)err.status, err.text);
    return rc == 0 ? 1 : 0;
}

/* Both ways to see it: before the first call, and by it. */
static int run_broken(void)
{
    struct gpu g;
    struct dt_error early = {0}, err = {0};
    struct dt_attention_args forward;
    struct dt_attention_backward_args backward;
    const char *by;
    set_variables();
    gpu_open(&g, common, 0, 0, false);
    gpu_calls(&g, &forward, &backward);
    int ready = g.d.ops->plans->attention(&g.d, &forward, &by, &early), rc = gpu_run(&g, &err);
    (void)fprintf(stderr, "%d %s", (int)err.status, err.text);
    gpu_close(&g);
    return rc == 0 || (ready == 0) != (strncmp(variant.settings[0].value, "execute", 7) == 0) ||
           (ready != 0 && strcmp(early.text, err.text) != 0);
}

/* A library that breaks down is no reason to go on with its next engine, or without it: another
 * start, or another rank, would have other bits. What it does not take is one. */
static void test_breakdowns(void **unused)
{
    (void)unused;
    static const char *const all[] = {"create 1001", "create 4003", "graph 4000", "heuristics 4003",
                                      "plan 4001",   "plan 4004",   "plan 5001",  "execute 5000"};
    char text[CHILD_TEXT], expected[200];
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        variant = (struct variant){.settings = {{"SOFTGPU_CUDNN", all[i]}}};
        int code = child_run(run_broken, text), status = atoi(strchr(all[i], ' '));
        (void)snprintf(expected, sizeof expected,
                       "%d attention: cuDNN: CUDNN_STATUS_%s (status %d); DTRUN_ATTENTION=own leaves it out", DT_IO,
                       status == 5000 ? "EXECUTION_FAILED" : "OTHER", status);
        if (code != 0 || strcmp(text, expected) != 0) {
            fail_msg("%s: %d: %s", all[i], code, text);
        }
    }
    /* the second engine */
    expect((struct variant){{{"SOFTGPU_CUDNN", "plan 3000"}}, common, .part = both}, NULL);
    expect((struct variant){{{"SOFTGPU_CUDNN", "heuristics 3000"}}, common, .part = both}, NULL);
    expect((struct variant){{{"SOFTGPU_CUDNN", "graph 3001"}}, common, .part = none},
           "cuDNN: refuses the graph: CUDNN_STATUS_OTHER (status 3001): a graph; 33 positions, 2 heads of size 16 run "
           "on kernels of our own");
}

static void test_a_wrong_wish(void **unused)
{
    (void)unused;
    char text[CHILD_TEXT], expected[200];
    assert_int_equal(child_run(open_with_a_wrong_wish, text), 0);
    (void)snprintf(expected, sizeof expected,
                   "%d DTRUN_ATTENTION=quick: not known; use ordered, cudnn, fast, own or plain", DT_INVALID);
    assert_string_equal(text, expected);
}

int main(void)
{
    const struct CMUnitTest on_a_gpu[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_left_to_others),
                                          cmocka_unit_test(test_again)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),          cmocka_unit_test(test_callers_work), cmocka_unit_test(test_does_not_fit),
        cmocka_unit_test(test_no_library),     cmocka_unit_test(test_wishes),       cmocka_unit_test(test_no_order),
        cmocka_unit_test(test_breakdowns),     cmocka_unit_test(test_a_wrong_wish), cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_left_to_others), cmocka_unit_test(test_again),        cmocka_unit_test(test_ready),
    };
    struct dt_error err = {0};
    if (softgpu_dnn_executions == NULL && dt_dnn_load(&err) == NULL) {
        print_message("skipped: %s\n", err.text);
        return 0;
    }
    return softgpu_dnn_executions == NULL ? cmocka_run_group_tests(on_a_gpu, NULL, NULL)
                                          : cmocka_run_group_tests(tests, NULL, NULL);
}
