/* Attention by cuDNN on the software GPU: our descriptors as a library takes them apart, both passes against plain loops in double, batches that go by parts,
 * and everything that makes it step aside: no library, an old one, a part of it missing, a shape or an address that it does not take. On a real GPU the
 * numbers alone.   run: timeout 200 */
#include "base/dtype.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/dnn.h"
#include "tests/unit/support/child.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(__has_include)
#if __has_include(<cudnn_backend.h>)
#include <cudnn_backend.h>
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
SAME(DT_DNN_SUCCESS, CUDNN_STATUS_SUCCESS);
SAME(DT_DNN_SUBLIBRARY_LOADING_FAILED, CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED);
SAME(DT_DNN_BAD_PARAM, CUDNN_STATUS_BAD_PARAM);
SAME(DT_DNN_NOT_SUPPORTED, CUDNN_STATUS_NOT_SUPPORTED);
SAME(DT_DNN_FLOAT, CUDNN_DATA_FLOAT);
SAME(DT_DNN_INT32, CUDNN_DATA_INT32);
SAME(DT_DNN_BFLOAT16, CUDNN_DATA_BFLOAT16);
SAME(DT_DNN_BOOLEAN, CUDNN_DATA_BOOLEAN);
SAME(DT_DNN_POINTWISE, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
SAME(DT_DNN_ENGINECFG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
SAME(DT_DNN_ENGINEHEUR, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
SAME(DT_DNN_EXECUTION_PLAN, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
SAME(DT_DNN_OPERATION_POINTWISE, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
SAME(DT_DNN_OPERATIONGRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
SAME(DT_DNN_VARIANT_PACK, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
SAME(DT_DNN_TENSOR, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
SAME(DT_DNN_MATMUL, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
SAME(DT_DNN_OPERATION_MATMUL, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
SAME(DT_DNN_REDUCTION, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
SAME(DT_DNN_OPERATION_REDUCTION, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
SAME(DT_DNN_OPERATION_RESHAPE, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
SAME(DT_DNN_DEVICEPROP, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
SAME(DT_DNN_POINTWISE_MODE, CUDNN_ATTR_POINTWISE_MODE);
SAME(DT_DNN_POINTWISE_MATH_PREC, CUDNN_ATTR_POINTWISE_MATH_PREC);
SAME(DT_DNN_POINTWISE_AXIS, CUDNN_ATTR_POINTWISE_AXIS);
SAME(DT_DNN_ENGINEHEUR_MODE, CUDNN_ATTR_ENGINEHEUR_MODE);
SAME(DT_DNN_ENGINEHEUR_OPERATION_GRAPH, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
SAME(DT_DNN_ENGINEHEUR_RESULTS, CUDNN_ATTR_ENGINEHEUR_RESULTS);
SAME(DT_DNN_ENGINEHEUR_DEVICEPROP, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
SAME(DT_DNN_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
SAME(DT_DNN_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
SAME(DT_DNN_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
SAME(DT_DNN_EXECUTION_PLAN_DEVICEPROP, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
SAME(DT_DNN_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
SAME(DT_DNN_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
SAME(DT_DNN_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
SAME(DT_DNN_OPERATION_POINTWISE_YDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
SAME(DT_DNN_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
SAME(DT_DNN_OPERATIONGRAPH_HANDLE, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
SAME(DT_DNN_OPERATIONGRAPH_OPS, CUDNN_ATTR_OPERATIONGRAPH_OPS);
SAME(DT_DNN_TENSOR_BYTE_ALIGNMENT, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
SAME(DT_DNN_TENSOR_DATA_TYPE, CUDNN_ATTR_TENSOR_DATA_TYPE);
SAME(DT_DNN_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_DIMENSIONS);
SAME(DT_DNN_TENSOR_STRIDES, CUDNN_ATTR_TENSOR_STRIDES);
SAME(DT_DNN_TENSOR_UNIQUE_ID, CUDNN_ATTR_TENSOR_UNIQUE_ID);
SAME(DT_DNN_TENSOR_IS_VIRTUAL, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
SAME(DT_DNN_TENSOR_IS_BY_VALUE, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
SAME(DT_DNN_VARIANT_PACK_UNIQUE_IDS, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
SAME(DT_DNN_VARIANT_PACK_DATA_POINTERS, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
SAME(DT_DNN_VARIANT_PACK_WORKSPACE, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
SAME(DT_DNN_MATMUL_COMP_TYPE, CUDNN_ATTR_MATMUL_COMP_TYPE);
SAME(DT_DNN_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
SAME(DT_DNN_OPERATION_MATMUL_BDESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
SAME(DT_DNN_OPERATION_MATMUL_CDESC, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
SAME(DT_DNN_OPERATION_MATMUL_DESC, CUDNN_ATTR_OPERATION_MATMUL_DESC);
SAME(DT_DNN_REDUCTION_OPERATOR, CUDNN_ATTR_REDUCTION_OPERATOR);
SAME(DT_DNN_REDUCTION_COMP_TYPE, CUDNN_ATTR_REDUCTION_COMP_TYPE);
SAME(DT_DNN_OPERATION_REDUCTION_XDESC, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
SAME(DT_DNN_OPERATION_REDUCTION_YDESC, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
SAME(DT_DNN_OPERATION_REDUCTION_DESC, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
SAME(DT_DNN_OPERATION_RESHAPE_XDESC, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
SAME(DT_DNN_OPERATION_RESHAPE_YDESC, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
SAME(DT_DNN_DEVICEPROP_JSON_REPRESENTATION, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
SAME(DT_DNN_TYPE_HANDLE, CUDNN_TYPE_HANDLE);
SAME(DT_DNN_TYPE_DATA_TYPE, CUDNN_TYPE_DATA_TYPE);
SAME(DT_DNN_TYPE_BOOLEAN, CUDNN_TYPE_BOOLEAN);
SAME(DT_DNN_TYPE_INT64, CUDNN_TYPE_INT64);
SAME(DT_DNN_TYPE_VOID_PTR, CUDNN_TYPE_VOID_PTR);
SAME(DT_DNN_TYPE_HEUR_MODE, CUDNN_TYPE_HEUR_MODE);
SAME(DT_DNN_TYPE_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE);
SAME(DT_DNN_TYPE_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR);
SAME(DT_DNN_TYPE_REDUCTION, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
SAME(DT_DNN_TYPE_CHAR, CUDNN_TYPE_CHAR);
SAME(DT_DNN_ADD, CUDNN_POINTWISE_ADD);
SAME(DT_DNN_MUL, CUDNN_POINTWISE_MUL);
SAME(DT_DNN_DIV, CUDNN_POINTWISE_DIV);
SAME(DT_DNN_SUB, CUDNN_POINTWISE_SUB);
SAME(DT_DNN_EXP, CUDNN_POINTWISE_EXP);
SAME(DT_DNN_LOG, CUDNN_POINTWISE_LOG);
SAME(DT_DNN_IDENTITY, CUDNN_POINTWISE_IDENTITY);
SAME(DT_DNN_CMP_GE, CUDNN_POINTWISE_CMP_GE);
SAME(DT_DNN_GEN_INDEX, CUDNN_POINTWISE_GEN_INDEX);
SAME(DT_DNN_BINARY_SELECT, CUDNN_POINTWISE_BINARY_SELECT);
SAME(DT_DNN_SUM, CUDNN_REDUCE_TENSOR_ADD);
SAME(DT_DNN_MAX, CUDNN_REDUCE_TENSOR_MAX);
SAME(DT_DNN_HEUR_A, CUDNN_HEUR_MODE_A);
SAME(DT_DNN_HEUR_FALLBACK, CUDNN_HEUR_MODE_FALLBACK);
#endif
#endif

struct shape {
    int64_t batch, positions, heads, kv_heads, head_size;
    bool causal;
};

int softgpu_dnn_executions(void) __attribute__((weak)); /* graphs that cuDNN ran; on a real GPU nobody counts them */

enum { QKV, OUT, LSE, DOUT, DQKV, WORK, BUFFERS };

struct gpu {
    struct dt_device d;
    struct dt_stream *s;
    struct shape n;
    char *host[BUFFERS]; /* pinned */
    char *device[BUFFERS];
    size_t bytes[BUFFERS];
    size_t off; /* bytes by which all tensors lie beside their alignment */
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

static void gpu_open(struct gpu *g, struct shape n, size_t off)
{
    struct dt_error err = {0};
    int64_t rows = n.batch * n.positions;
    memset(g, 0, sizeof *g);
    g->n = n;
    g->off = off;
    g->bytes[QKV] = g->bytes[DQKV] = (size_t)(rows * (n.heads + 2 * n.kv_heads) * n.head_size) * 2;
    g->bytes[OUT] = g->bytes[DOUT] = (size_t)(rows * n.heads * n.head_size) * 2;
    g->bytes[LSE] = (size_t)(rows * n.heads) * 4;
    g->bytes[WORK] = 1000;
    if (dt_device_open(&g->d, "cuda", NULL, &err) != 0 || dt_stream_open(&g->d, 0, &g->s, &err) != 0) {
        fail_msg("%s", err.text);
    }
    for (int i = 0; i < BUFFERS; i++) {
        void *host = NULL, *device = NULL;
        assert_int_equal(dt_device_alloc(&g->d, DT_MEMORY_PINNED, g->bytes[i] + off, &host, &err), 0);
        assert_int_equal(dt_device_alloc(&g->d, DT_MEMORY_DEVICE, g->bytes[i] + off, &device, &err), 0);
        g->host[i] = host;
        g->device[i] = device;
        memset(g->host[i], 0xff, g->bytes[i] + off); /* a NaN where nothing is written */
        if (i == QKV || i == DOUT) {
            for (size_t k = 0; k < g->bytes[i] / 2; k++) {
                ((uint16_t *)(void *)(g->host[i] + off))[k] = bf16(value_of(k + (size_t)i * 1000003));
            }
        }
        dt_stream_copy(g->s, g->device[i], g->host[i], g->bytes[i] + off);
    }
}

static void gpu_close(struct gpu *g)
{
    dt_stream_close(g->s);
    for (int i = 0; i < BUFFERS; i++) {
        dt_device_free(&g->d, DT_MEMORY_PINNED, g->host[i], g->bytes[i] + g->off);
        dt_device_free(&g->d, DT_MEMORY_DEVICE, g->device[i], g->bytes[i] + g->off);
    }
    dt_device_close(&g->d);
}

/* Both passes, and what they wrote back on the host. The stream's failure, or 0. */
static int gpu_run(struct gpu *g, struct dt_error *err)
{
    const struct shape *n = &g->n;
    size_t off = g->off;
    g->d.kernels->attention(g->s, &(struct dt_attention_args){.out = g->device[OUT] + off,
                                                              .lse = g->device[LSE] + off,
                                                              .qkv = g->device[QKV] + off,
                                                              .batch = n->batch,
                                                              .positions = n->positions,
                                                              .heads = n->heads,
                                                              .kv_heads = n->kv_heads,
                                                              .head_size = n->head_size,
                                                              .causal = n->causal,
                                                              .type = DT_BF16});
    g->d.kernels->attention_backward(g->s, &(struct dt_attention_backward_args){.dqkv = g->device[DQKV] + off,
                                                                                .work = g->device[WORK],
                                                                                .work_bytes = g->bytes[WORK],
                                                                                .dout = g->device[DOUT] + off,
                                                                                .out = g->device[OUT] + off,
                                                                                .qkv = g->device[QKV] + off,
                                                                                .lse = g->device[LSE] + off,
                                                                                .batch = n->batch,
                                                                                .positions = n->positions,
                                                                                .heads = n->heads,
                                                                                .kv_heads = n->kv_heads,
                                                                                .head_size = n->head_size,
                                                                                .causal = n->causal,
                                                                                .type = DT_BF16});
    for (int i = OUT; i <= DQKV; i++) {
        dt_stream_copy(g->s, g->host[i], g->device[i], g->bytes[i] + off);
    }
    return dt_stream_finish(g->s, 60, err);
}

/* ---- the same by plain loops ---- */

struct reference {
    double *out, *lse, *dqkv;
    double out_most, dqkv_most; /* the largest of them */
};

static void reference_of(const struct gpu *g, struct reference *r)
{
    const struct shape *n = &g->n;
    const uint16_t *qkv = (const void *)(g->host[QKV] + g->off), *dout = (const void *)(g->host[DOUT] + g->off);
    int64_t t = n->positions, d = n->head_size, row = (n->heads + 2 * n->kv_heads) * d, out_row = n->heads * d;
    double scale = 1 / sqrt((double)d), *p = calloc((size_t)t, sizeof *p), *ds = calloc((size_t)t, sizeof *ds);
    r->out = calloc((size_t)(n->batch * t * out_row), sizeof *r->out);
    r->lse = calloc((size_t)(n->batch * n->heads * t), sizeof *r->lse);
    r->dqkv = calloc((size_t)(n->batch * t * row), sizeof *r->dqkv);
    for (int64_t i = 0; i < n->batch * n->heads * t; i++) {
        int64_t b = i / t / n->heads, h = i / t % n->heads, q = i % t, kv = h / (n->heads / n->kv_heads), keys = n->causal ? q + 1 : t;
        const uint16_t *base = qkv + b * t * row;
        int64_t at_q = q * row + h * d, at_k = (n->heads + kv) * d, at_v = at_k + n->kv_heads * d, at_out = (b * t + q) * out_row + h * d;
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

/* Of the largest value: rounding of weights, output and gradients to 8 bits each, of inputs that cancel. Nothing else is let through: a mask that is one
 * key off, or a head that reads its neighbour's keys, is a hundred times as far away. */
static const double bound = 0.02;

static void check_result(const struct gpu *g)
{
    struct reference r = {0};
    const struct shape *n = &g->n;
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
    for (int64_t i = 0; i < rows * (n->heads + 2 * n->kv_heads) * n->head_size; i++) {
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
static void run_and_check(struct shape n, size_t off, int executions)
{
    struct gpu g;
    struct dt_error err = {0};
    gpu_open(&g, n, off);
    for (int i = 0; i < 2; i++) {
        int before = softgpu_dnn_executions != NULL ? softgpu_dnn_executions() : -1;
        if (gpu_run(&g, &err) != 0) {
            fail_msg("%s", err.text);
        }
        check_result(&g);
        assert_true(before < 0 || softgpu_dnn_executions() - before == executions);
    }
    gpu_close(&g);
}

static const struct shape common = {2, 33, 2, 2, 16, true};

static void test_shapes(void **unused)
{
    (void)unused;
    static const struct shape shapes[] = {{2, 33, 2, 2, 16, true}, {3, 64, 3, 3, 8, true},    {1, 65, 4, 2, 32, false}, {2, 40, 6, 1, 24, true},
                                          {4, 5, 1, 1, 64, true},  {1, 130, 2, 2, 128, true}, {2, 2, 2, 2, 8, false}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        run_and_check(shapes[i], 0, 2);
    }
}

/* What it does not take is computed all the same. */
static void test_left_to_others(void **unused)
{
    (void)unused;
    run_and_check((struct shape){2, 20, 2, 2, 20, true}, 0, 0); /* a head size that is no multiple of 8 */
    run_and_check((struct shape){1, 9, 1, 1, 136, true}, 0, 0); /* too large */
    run_and_check((struct shape){3, 1, 2, 2, 16, true}, 0, 0);  /* one position */
    run_and_check(common, 8, 0);                                /* addresses beside their alignment */
}

/* The same addresses again: the same bits, and a shape's plan and packs are found again. */
static void test_again(void **unused)
{
    (void)unused;
    struct gpu g;
    struct dt_error err = {0};
    gpu_open(&g, common, 0);
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

/* ---- in a process of its own, as what is loaded is loaded for good ---- */

static struct {
    const char *name, *value;
    struct shape n;
    int executions;
} variant;

static int run_variant(void)
{
    (void)setenv(variant.name, variant.value, 1);
    run_and_check(variant.n, 0, variant.executions);
    return 0;
}

/* The line is said once, whatever is called how often, or not at all where it is null. */
static void expect(const char *name, const char *value, struct shape n, int executions, const char *line)
{
    char text[CHILD_TEXT];
    variant.name = name;
    variant.value = value;
    variant.n = n;
    variant.executions = executions;
    int code = child_run(run_variant, text);
    if (code != 0) {
        fail_msg("%s=%s: %d: %s", name, value, code, text);
    }
    char *found = line != NULL ? strstr(text, line) : NULL;
    if (line != NULL ? found == NULL || strstr(found + 1, "cuDNN") != NULL : strstr(text, "cuDNN") != NULL) {
        fail_msg("%s=%s says: %s", name, value, text);
    }
}

static void test_parts(void **unused)
{
    (void)unused;
    struct shape four = common;
    four.batch = 4;
    four.positions = 32;
    expect("SOFTGPU_CUDNN", "work 20", four, 8, NULL); /* one sequence at a time */
    expect("SOFTGPU_CUDNN", "work 10", four, 4, NULL); /* two */
    four.positions = 33;
    four.heads = four.kv_heads = 1; /* a sequence's log-sum-exp ends beside any alignment */
    expect("SOFTGPU_CUDNN", "work 20", four, 0, "wants more work memory than there is; 33 positions, 1 heads of size 16 run on kernels of our own");
}

static void test_no_library(void **unused)
{
    (void)unused;
    expect("DTRUN_CUDNN", "/nowhere/libcudnn.so.9", common, 0,
           "cuDNN: DTRUN_CUDNN=/nowhere/libcudnn.so.9: no such library; attention runs on kernels of our own");
    expect("SOFTGPU_CUDNN", "91000", common, 0, "cuDNN: version 9.10.0 is here, 9.16 is the least; attention runs on kernels of our own");
    expect("SOFTGPU_CUDNN", "part", common, 0,
           "cuDNN: cannot be started: CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED; attention runs on kernels of our own");
}

static void test_wishes(void **unused)
{
    (void)unused;
    expect("DTRUN_ATTENTION", "own", common, 0, NULL);
    expect("DTRUN_ATTENTION", "plain", common, 0, NULL);
    expect("DTRUN_ATTENTION", "cudnn", common, 2, NULL);
    expect("DTRUN_ATTENTION", "fast", common, 2, NULL);
    expect("DTRUN_ATTENTION", "fast", (struct shape){1, 40, 6, 2, 24, true}, 2, NULL);
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

/* A library that breaks down is no reason to go on with other bits. */
static int run_broken(void)
{
    struct gpu g;
    struct dt_error err = {0};
    (void)setenv("SOFTGPU_CUDNN", "broken", 1);
    gpu_open(&g, common, 0);
    int rc = gpu_run(&g, &err);
    (void)fprintf(stderr, "%d %s", (int)err.status, err.text);
    gpu_close(&g);
    return rc == 0 ? 1 : 0;
}

static void test_failures(void **unused)
{
    (void)unused;
    char text[CHILD_TEXT], expected[200];
    assert_int_equal(child_run(open_with_a_wrong_wish, text), 0);
    (void)snprintf(expected, sizeof expected, "%d DTRUN_ATTENTION=quick: not known; use cudnn, fast, own or plain", DT_INVALID);
    assert_string_equal(text, expected);
    assert_int_equal(child_run(run_broken, text), 0);
    (void)snprintf(expected, sizeof expected, "%d attention: cuDNN: CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER (status 5001)", DT_IO);
    assert_string_equal(text, expected);
}

int main(void)
{
    const struct CMUnitTest on_a_gpu[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_left_to_others), cmocka_unit_test(test_again)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),  cmocka_unit_test(test_no_library),     cmocka_unit_test(test_wishes), cmocka_unit_test(test_failures),
        cmocka_unit_test(test_shapes), cmocka_unit_test(test_left_to_others), cmocka_unit_test(test_again),
    };
    if (softgpu_dnn_executions == NULL) {
        return cmocka_run_group_tests(on_a_gpu, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
