/* Products of BF16 matrices in the calling thread: by oneDNN, or block by block as floats by the
 * F32 product. Which one is faster on this CPU is measured at the first use, since flags do not
 * tell (a CPU may have the dot product and do it slower than fma): there is a factor of two or
 * more between both wherever it was tried, so that all processes of a host choose alike.
 * DTRUN_BF16 chooses for hosts that differ. The one file that knows how oneDNN's versions 2 and
 * 3 describe a product. */
#include "base/clock.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/half.h"

#include <dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- oneDNN: a primitive per shape, compiled at its first use and kept ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t matrix; /* a pointer */
typedef const_dnnl_memory_desc_t matrix_in;
#define IN(m) (m)

static dnnl_status_t describe(matrix *to, dnnl_dims_t dims, dnnl_dims_t strides, dnnl_data_type_t type)
{
    return dnnl_memory_desc_create_with_strides(to, 2, dims, type, strides);
}

static dnnl_status_t add_to_c(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0F, 0, dnnl_data_type_undef);
}
#else
typedef dnnl_memory_desc_t matrix; /* the thing itself */
typedef const dnnl_memory_desc_t *matrix_in;
#define IN(m) (&(m))

static dnnl_status_t describe(matrix *to, dnnl_dims_t dims, dnnl_dims_t strides, dnnl_data_type_t type)
{
    return dnnl_memory_desc_init_by_strides(to, 2, dims, type, strides);
}

static dnnl_status_t add_to_c(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0F);
}
#endif

/* All that distinguishes a primitive from another. */
struct key {
    int64_t m, n, k, a_row, a_col, b_row, b_col, ldc;
    int64_t bias, accumulate, c_is_f32;
};

struct product {
    struct key key;
    struct product *next;
    dnnl_primitive_t primitive; /* null: the library cannot do it */
    dnnl_primitive_desc_t described;
    matrix a, b, bias, c;
    size_t scratch_bytes;
};

#define BUCKETS 64

static struct {
    pthread_mutex_t lock;
    dnnl_engine_t engine;
    struct product *products[BUCKETS]; /* a bucket's list only grows, at its head */
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

static dnnl_status_t describe_matrices(struct product *p)
{
    const struct key *k = &p->key;
    dnnl_dims_t a = {k->m, k->k}, b = {k->k, k->n}, c = {k->m, k->n}, bias = {1, k->n};
    dnnl_dims_t a_steps = {k->a_row, k->a_col}, b_steps = {k->b_row, k->b_col}, c_steps = {k->ldc, 1},
                bias_steps = {k->n, 1};
    dnnl_status_t s = describe(&p->a, a, a_steps, dnnl_bf16);
    s = s != dnnl_success ? s : describe(&p->b, b, b_steps, dnnl_bf16);
    s = s != dnnl_success ? s : describe(&p->c, c, c_steps, k->c_is_f32 ? dnnl_f32 : dnnl_bf16);
    return s != dnnl_success ? s : describe(&p->bias, bias, bias_steps, dnnl_bf16);
}

static dnnl_status_t describe_product(struct product *p, dnnl_primitive_attr_t attr)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_matmul_primitive_desc_create(&p->described, library.engine, p->a, p->b, p->key.bias ? p->bias : NULL,
                                             p->c, attr);
#else
    dnnl_matmul_desc_t d;
    dnnl_status_t s = dnnl_matmul_desc_init(&d, &p->a, &p->b, p->key.bias ? &p->bias : NULL, &p->c);
    return s != dnnl_success ? s : dnnl_primitive_desc_create(&p->described, &d, attr, library.engine, NULL);
#endif
}

/* The library's scratch memory is ours, so that the loop allocates none of it. */
static dnnl_status_t compile(struct product *p)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t s = library.engine != NULL ? dnnl_success : dnnl_engine_create(&library.engine, dnnl_cpu, 0);
    s = s != dnnl_success ? s : describe_matrices(p);
    s = s != dnnl_success ? s : dnnl_primitive_attr_create(&attr);
    s = s != dnnl_success ? s : dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (p->key.accumulate) {
        s = s != dnnl_success ? s : dnnl_post_ops_create(&ops);
        s = s != dnnl_success ? s : add_to_c(ops);
        s = s != dnnl_success ? s : dnnl_primitive_attr_set_post_ops(attr, ops);
    }
    s = s != dnnl_success ? s : describe_product(p, attr);
    s = s != dnnl_success ? s : dnnl_primitive_create(&p->primitive, p->described);
    if (s == dnnl_success) {
        p->scratch_bytes =
            dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(p->described, dnnl_query_scratchpad_md, 0));
    }
    dnnl_post_ops_destroy(ops);
    dnnl_primitive_attr_destroy(attr);
    return s;
}

static struct product *search(struct product *list, const struct key *key)
{
    while (list != NULL && memcmp(&list->key, key, sizeof *key) != 0) {
        list = list->next;
    }
    return list;
}

static const struct product *product_of(const struct dt_gemm_bf16 *g)
{
    struct key key = {.m = g->m,
                      .n = g->n,
                      .k = g->k,
                      .a_row = g->a_row,
                      .a_col = g->a_col,
                      .b_row = g->b_row,
                      .b_col = g->b_col,
                      .ldc = g->ldc,
                      .bias = g->bias != NULL,
                      .accumulate = g->accumulate,
                      .c_is_f32 = g->c_is_f32};
    struct product **bucket =
        &library.products[(uint64_t)(key.m * 31 + key.n * 17 + key.k * 7 + key.a_col + key.b_col) % BUCKETS];
    struct product *p = search(__atomic_load_n(bucket, __ATOMIC_ACQUIRE), &key);
    if (p != NULL) {
        return p;
    }
    pthread_mutex_lock(&library.lock);
    p = search(*bucket, &key);
    if (p == NULL) {
        p = calloc(1, sizeof *p);
        if (p == NULL) {
            abort(); /* a few hundred bytes: nothing else would work either */
        }
        p->key = key;
        if (compile(p) != dnnl_success) {
            p->primitive = NULL;
        }
        p->next = *bucket;
        __atomic_store_n(bucket, p, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&library.lock);
    return p;
}

static dnnl_status_t run_product(const struct product *p, const struct dt_gemm_bf16 *g)
{
    const struct {
        int what;
        matrix_in shape;
        const void *at;
    } tensors[] = {{DNNL_ARG_SRC, IN(p->a), g->a},
                   {DNNL_ARG_WEIGHTS, IN(p->b), g->b},
                   {DNNL_ARG_DST, IN(p->c), g->c},
                   {DNNL_ARG_SCRATCHPAD, dnnl_primitive_desc_query_md(p->described, dnnl_query_scratchpad_md, 0),
                    dt_cpu_work(DT_WORK_MATMUL, p->scratch_bytes + 64)},
                   {DNNL_ARG_BIAS, IN(p->bias), g->bias}};
    dnnl_exec_arg_t args[5] = {{0}};
    dnnl_stream_t stream = NULL;
    dnnl_status_t s = dnnl_stream_create(&stream, library.engine, dnnl_stream_default_flags);
    int count = 0;
    for (; count < (g->bias != NULL ? 5 : 4) && s == dnnl_success; count++) {
        void *at;
        memcpy(&at, &tensors[count].at, sizeof at); /* the library takes what it only reads
                                                     * without const, too */
        args[count].arg = tensors[count].what;
        s = dnnl_memory_create(&args[count].memory, tensors[count].shape, library.engine, at);
    }
    s = s != dnnl_success ? s : dnnl_primitive_execute(p->primitive, stream, count, args);
    s = s != dnnl_success ? s : dnnl_stream_wait(stream);
    for (int i = 0; i < count; i++) {
        dnnl_memory_destroy(args[i].memory);
    }
    dnnl_stream_destroy(stream);
    return s;
}

/* False: the library does not do it. */
static bool try_library(const struct dt_gemm_bf16 *g)
{
    dt_gemm_one_thread();
    const struct product *p = product_of(g);
    return p->primitive != NULL && run_product(p, g) == dnnl_success;
}

/* ---- as floats ---- */

#define BLOCK 512 /* of n and k: blocks of a, b and c together stay in the L2 cache */

/* The block of a matrix whose element (i, l) lies at x[i * row + l * col], as floats: tight, and
 * in the same order. */
static void widen(float *to, const uint16_t *x, int64_t row, int64_t col, int64_t rows, int64_t cols)
{
    bool turned = col != 1;
    int64_t outer = turned ? cols : rows, inner = turned ? rows : cols, step = turned ? col : row;
    for (int64_t i = 0; i < outer; i++) {
        for (int64_t l = 0; l < inner; l++) {
            to[i * inner + l] = dt_from_bf16(x[i * step + l]);
        }
    }
}

/* Columns [from, from + cols) of the result: to c, with what is added to it. */
static void finish_block(const struct dt_gemm_bf16 *g, const float *sum, int64_t from, int64_t cols)
{
    for (int64_t i = 0; i < g->m; i++) {
        const float *x = sum + i * cols;
        float *wide = (float *)g->c + i * g->ldc + from;
        uint16_t *half = (uint16_t *)g->c + i * g->ldc + from;
        for (int64_t j = 0; j < cols; j++) {
            float v = x[j];
            v = g->bias != NULL ? v + dt_from_bf16(g->bias[from + j]) : v;
            if (g->c_is_f32) {
                wide[j] = g->accumulate ? wide[j] + v : v;
            } else {
                half[j] = dt_to_bf16(g->accumulate ? dt_from_bf16(half[j]) + v : v);
            }
        }
    }
}

static void gemm_as_floats(const struct dt_gemm_bf16 *g, void (*gemm)(const struct dt_gemm *g))
{
    int64_t k_most = g->k < BLOCK ? g->k : BLOCK, n_most = g->n < BLOCK ? g->n : BLOCK;
    float *a = dt_cpu_work(DT_WORK_KERNEL, (size_t)(g->m * k_most + k_most * n_most + g->m * n_most) * sizeof(float));
    float *b = a + g->m * k_most, *c = b + k_most * n_most;
    for (int64_t j = 0; j < g->n; j += BLOCK) {
        int64_t cols = g->n - j < BLOCK ? g->n - j : BLOCK;
        memset(c, 0, (size_t)(g->m * cols) * sizeof(float));
        for (int64_t l = 0; l < g->k; l += BLOCK) {
            int64_t depth = g->k - l < BLOCK ? g->k - l : BLOCK;
            widen(a, g->a + l * g->a_col, g->a_row, g->a_col, g->m, depth);
            widen(b, g->b + l * g->b_row + j * g->b_col, g->b_row, g->b_col, depth, cols);
            gemm(&(struct dt_gemm){.c = c,
                                   .a = a,
                                   .b = b,
                                   .m = g->m,
                                   .n = cols,
                                   .k = depth,
                                   .a_row = g->a_col != 1 ? 1 : depth,
                                   .a_col = g->a_col != 1 ? g->m : 1,
                                   .b_row = g->b_col != 1 ? 1 : cols,
                                   .b_col = g->b_col != 1 ? depth : 1,
                                   .ldc = cols,
                                   .accumulate = l > 0});
        }
        finish_block(g, c, j, cols);
    }
}

void dt_gemm_bf16_plain(const struct dt_gemm_bf16 *g)
{
    gemm_as_floats(g, dt_gemm_plain);
}

/* ---- the choice ---- */

#define TRIALS 5

static bool library_is_faster;
static struct dt_error choice_error; /* status DT_OK: none */
static pthread_once_t choice_once = PTHREAD_ONCE_INIT;

/* Both in turns on a product of 50 MFLOP, the best of each: a few milliseconds, and a disturbed
 * one does not count. */
static void measure(void)
{
    enum { M = 128, N = 384, K = 512 };
    uint16_t *x = calloc(M * K + K * N + M * N, sizeof *x);
    if (x == NULL) {
        return;
    }
    for (int i = 0; i < M * K + K * N; i++) {
        x[i] = dt_to_bf16((float)(i % 13 - 6));
    }
    struct dt_gemm_bf16 g = {.c = x + M * K + K * N,
                             .a = x,
                             .b = x + M * K,
                             .m = M,
                             .n = N,
                             .k = K,
                             .a_row = K,
                             .a_col = 1,
                             .b_row = N,
                             .b_col = 1,
                             .ldc = N};
    double best[2] = {1e9, 1e9};
    bool works = true;
    for (int i = 0; i <= TRIALS && works; i++) { /* the first round compiles */
        double begin_s = dt_now_s();
        works = try_library(&g);
        double middle_s = dt_now_s();
        gemm_as_floats(&g, dt_gemm_onednn);
        double end_s = dt_now_s();
        if (i > 0) {
            best[0] = middle_s - begin_s < best[0] ? middle_s - begin_s : best[0];
            best[1] = end_s - middle_s < best[1] ? end_s - middle_s : best[1];
        }
    }
    library_is_faster = works && best[0] < best[1];
    free(x);
}

static void choose(void)
{
    const char *wanted = getenv("DTRUN_BF16");
    if (wanted == NULL || *wanted == '\0') {
        measure();
    } else if (strcmp(wanted, "onednn") == 0) {
        library_is_faster = true;
    } else if (strcmp(wanted, "f32") != 0) {
        (void)dt_fail(&choice_error, DT_INVALID, "DTRUN_BF16=%s: not known; use onednn or f32", wanted);
    }
}

int dt_gemm_bf16_choose(struct dt_error *err)
{
    pthread_once(&choice_once, choose);
    if (choice_error.status != DT_OK) {
        *err = choice_error;
        return -1;
    }
    return 0;
}

void dt_gemm_bf16_onednn(const struct dt_gemm_bf16 *g)
{
    if (g->k == 0 || !library_is_faster || !try_library(g)) {
        gemm_as_floats(g, dt_gemm_onednn);
    }
}
