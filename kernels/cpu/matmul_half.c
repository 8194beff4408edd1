/* Products of BF16 and F16 matrices in the calling thread: as floats, block by block, by the F32
 * product, or BF16 by our own dot products or oneDNN's AMX where the CPU has them; of few rows, which reading
 * b decides, by oneDNN in both cases. A CPU may have such instructions and execute them slower than fma, so the
 * first use measures both. All ranks of a job must choose the same, or their bits differ: time is that of the
 * thread, and the instructions stay unless they are clearly slower. They differ from fma by a factor of 1.7 or
 * more on every CPU tried so far. DTRUN_BF16 sets the choice where hosts differ. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/half.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- as floats ---- */

#define BLOCK 512 /* most of n and k: blocks of a, b and c together stay in the L2 cache */

/* Converts a block of a matrix to floats, tight and in the same order. Element (i, l) is x[i * row
 * + l * col]. */
static void widen(float *to, const uint16_t *x, int64_t row, int64_t col, int64_t rows, int64_t cols,
                  enum dt_dtype type)
{
    bool turned = col != 1;
    int64_t outer = turned ? cols : rows, inner = turned ? rows : cols, step = turned ? col : row;
    for (int64_t i = 0; i < outer; i++) {
        dt_cpu_half(type)->widen(to + i * inner, x + i * step, inner);
    }
}

/* Stores columns [from, from + cols) of the result to c, with the bias or the old c added. */
static void finish_block(const struct dt_gemm_half *g, float *sum, int64_t from, int64_t cols)
{
    const struct dt_cpu_half *half = dt_cpu_half(g->type);
    float bias[BLOCK], old[BLOCK];
    if (g->bias != NULL) {
        half->widen(bias, g->bias + from, cols);
    }
    for (int64_t i = 0; i < g->m; i++) {
        float *x = sum + i * cols, *wide = (float *)g->c + i * g->ldc + from;
        uint16_t *low = (uint16_t *)g->c + i * g->ldc + from;
        if (g->accumulate && !g->c_is_f32) {
            half->widen(old, low, cols);
        }
        const float *before = g->c_is_f32 ? wide : old;
        for (int64_t j = 0; j < cols; j++) {
            float v = g->bias != NULL ? x[j] + bias[j] : x[j];
            x[j] = g->accumulate ? before[j] + v : v;
        }
        if (g->c_is_f32) {
            memcpy(wide, x, (size_t)cols * sizeof *x);
        } else {
            half->narrow(low, x, cols);
        }
    }
}

void dt_gemm_half_floats(const struct dt_gemm_half *g, dt_gemm_f32 *f32)
{
    int64_t k_most = g->k < BLOCK ? g->k : BLOCK, n_most = g->n < BLOCK ? g->n : BLOCK;
    float *a = dt_cpu_work(DT_WORK_KERNEL, (size_t)(g->m * k_most + k_most * n_most + g->m * n_most) * sizeof(float));
    float *b = a + g->m * k_most, *c = b + k_most * n_most;
    for (int64_t j = 0; j < g->n; j += BLOCK) {
        int64_t cols = g->n - j < BLOCK ? g->n - j : BLOCK;
        memset(c, 0, (size_t)(g->m * cols) * sizeof(float));
        for (int64_t l = 0; l < g->k; l += BLOCK) {
            int64_t depth = g->k - l < BLOCK ? g->k - l : BLOCK;
            widen(a, g->a + l * g->a_col, g->a_row, g->a_col, g->m, depth, g->type);
            widen(b, g->b + l * g->b_row + j * g->b_col, g->b_row, g->b_col, depth, cols, g->type);
            f32(&(struct dt_gemm){.c = c,
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

/* ---- the choice ---- */

#define TRIALS 5
#define CLEARLY 1.3

static dt_gemm_f32 *_Atomic measured_f32; /* one for each process: that of its instruction set */
static struct dt_bf16_ways ways;
static struct dt_error choice_error; /* status DT_OK: no error */
static pthread_once_t choice_once = PTHREAD_ONCE_INIT;

static double thread_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool run_dots(const struct dt_gemm_half *g)
{
    dt_gemm_dots(g);
    return true;
}

/* Times `run` and the product as floats in turns, on 50 MFLOP. Takes the best time of each, so that a disturbed
 * round does not count. This takes a few milliseconds. */
static bool is_fast(bool (*run)(const struct dt_gemm_half *g))
{
    enum { M = 128, N = 384, K = 512 };
    uint16_t *x = calloc(M * K + K * N + M * N, sizeof *x);
    if (x == NULL) {
        return false;
    }
    for (int i = 0; i < M * K + K * N; i++) {
        x[i] = dt_to_bf16((float)(i % 13 - 6));
    }
    struct dt_gemm_half g = {.c = x + M * K + K * N,
                             .a = x,
                             .b = x + M * K,
                             .m = M,
                             .n = N,
                             .k = K,
                             .a_row = K,
                             .a_col = 1,
                             .b_row = N,
                             .b_col = 1,
                             .ldc = N,
                             .type = DT_BF16};
    double best[2] = {1e9, 1e9};
    bool works = true;
    for (int i = 0; i <= TRIALS && works; i++) { /* round 0 does not count: oneDNN compiles then */
        double begin_s = thread_s();
        works = run(&g);
        double middle_s = thread_s();
        dt_gemm_half_floats(&g, measured_f32);
        double end_s = thread_s();
        if (i > 0) {
            best[0] = middle_s - begin_s < best[0] ? middle_s - begin_s : best[0];
            best[1] = end_s - middle_s < best[1] ? end_s - middle_s : best[1];
        }
    }
    free(x);
    return works && best[0] < CLEARLY * best[1];
}

static void choose(void)
{
    const char *wanted = getenv("DTRUN_BF16");
    if (wanted == NULL || *wanted == '\0') {
        ways.dots = dt_gemm_has_dots() && is_fast(run_dots);
        ways.onednn = dt_onednn_has_amx() && is_fast(dt_onednn_gemm_bf16);
    } else if (strcmp(wanted, "onednn") == 0) {
        ways.onednn = true;
    } else if (strcmp(wanted, "dots") == 0 && dt_gemm_has_dots()) {
        ways.dots = true;
    } else if (strcmp(wanted, "dots") == 0) {
        (void)dt_fail(&choice_error, DT_INVALID, "DTRUN_BF16=dots: needs a CPU with AVX512-BF16, and its kernels");
    } else if (strcmp(wanted, "f32") != 0) {
        (void)dt_fail(&choice_error, DT_INVALID, "DTRUN_BF16=%s: not known; use onednn, dots or f32", wanted);
    }
}

const struct dt_bf16_ways *dt_bf16_ways(dt_gemm_f32 *f32, struct dt_error *err)
{
    measured_f32 = f32;
    pthread_once(&choice_once, choose);
    if (choice_error.status != DT_OK) {
        *err = choice_error;
        return NULL;
    }
    return &ways;
}

void dt_gemm_bf16_faster(const struct dt_gemm_half *g, dt_gemm_f32 *f32)
{
    bool bf16 = g->k > 0 && g->type == DT_BF16;
    if (bf16 && ways.dots && !ways.onednn && !g->few) {
        dt_gemm_dots(g);
    } else if (!bf16 || !(ways.dots || ways.onednn) || !dt_onednn_gemm_bf16(g)) {
        dt_gemm_half_floats(g, f32);
    }
}
