/* Products of F32 with few rows, as generating has them: b is read once and in order, since memory decides how long
 * it takes. An element is summed as in gemm.c. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/isa/transpose.h"

#define FEW DT_FEW_ROWS
#define COLUMNS 1024 /* columns whose sums of few rows stay in the L1 cache */

/* Sums of `rows` rows of x over `steps` rows of b, added to those in `sums`, for n columns. */
INLINE void add_steps(int rows, int steps, int64_t n, const float *x, int64_t x_row, const float *b, int64_t b_row,
                      float *sums)
{
    vec xs[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int l = 0; l < steps; l++) {
            xs[i][l] = vec_all(x[i * x_row + l]);
        }
    }
    for (int64_t j = 0; j < n; j += VEC) {
        vec sum[4];
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            sum[i] = vec_load(sums + i * COLUMNS + j);
        }
#pragma GCC unroll 4
        for (int l = 0; l < steps; l++) {
            vec y = vec_load_n(b + l * b_row + j, n - j);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) {
                sum[i] = vec_fma(xs[i][l], y, sum[i]);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            vec_store(sums + i * COLUMNS + j, sum[i]);
        }
    }
}

/* Stores the sums of n columns from j on over a block of k that begins at l. */
static void few_finish(const struct dt_gemm *g, int64_t l, int64_t j, int64_t n, const float *sums, int64_t sums_row)
{
    const float *bias = g->bias != NULL && l == 0 ? g->bias + j : NULL;
    bool add = g->accumulate || l > 0;
    for (int64_t i = 0; i < g->m; i++, sums += sums_row) {
        float *c = g->c + i * g->ldc + j;
        for (int64_t o = 0; o < n; o++) {
            float v = bias != NULL ? sums[o] + bias[o] : sums[o];
            c[o] = add ? v + c[o] : v;
        }
    }
}

/* A block of kc rows of b, whose columns are contiguous: they are read in the order of memory, and the
 * sums wait in the L1 cache. */
static void few_straight(const struct dt_gemm *g, int64_t l0, int64_t kc, const float *x, float *sums)
{
    for (int64_t j = 0; j < g->n; j += COLUMNS) {
        int64_t n = min64(COLUMNS, g->n - j);
        memset(sums, 0, (size_t)(g->m * COLUMNS) * sizeof(float));
        int64_t l = 0;
        for (; l + 4 <= kc; l += 4) {
            const float *b = g->b + (l0 + l) * g->b_row + j;
            int64_t i = 0;
            for (; i + 2 <= g->m; i += 2) {
                add_steps(2, 4, n, x + i * kc + l, kc, b, g->b_row, sums + i * COLUMNS);
            }
            if (i < g->m) {
                add_steps(1, 4, n, x + i * kc + l, kc, b, g->b_row, sums + i * COLUMNS);
            }
        }
        for (; l < kc; l++) {
            for (int64_t i = 0; i < g->m; i++) {
                add_steps(1, 1, n, x + i * kc + l, kc, g->b + (l0 + l) * g->b_row + j, g->b_row, sums + i * COLUMNS);
            }
        }
        few_finish(g, l0, j, n, sums, COLUMNS);
    }
}

/* VEC columns of b, each contiguous in memory: column o begins at from[o]; x has kc elements per row. The
 * columns at `soon` are fetched into the cache. */
INLINE void few_columns(int rows, int64_t kc, const float *x, const float *const from[VEC], int64_t soon, float *sums)
{
    vec sum[4];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        sum[i] = (vec){0};
    }
    int64_t l = 0;
    for (; l + VEC <= kc; l += VEC) {
        vec y[VEC];
#pragma GCC unroll 16
        for (int o = 0; o < VEC; o++) {
            y[o] = vec_load(from[o] + l);
            if (soon != 0 && (VEC == 16 || l % 16 == 0)) {
                __builtin_prefetch(from[o] + soon + l, 0, 2);
            }
        }
        transpose_vectors(y);
#pragma GCC unroll 16
        for (int o = 0; o < VEC; o++) {
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) {
                sum[i] = vec_fma(vec_all(x[i * kc + l + o]), y[o], sum[i]);
            }
        }
    }
    for (; l < kc; l++) {
        float y[VEC];
        for (int o = 0; o < VEC; o++) {
            y[o] = from[o][l];
        }
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            sum[i] = vec_fma(vec_all(x[i * kc + l]), vec_load(y), sum[i]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        vec_store(sums + i * VEC, sum[i]);
    }
}

/* The product with a transposed b for few rows. */
static void few_transposed(const struct dt_gemm *g, int64_t step, const float *x)
{
    float sums[FEW * VEC];
    for (int64_t j = 0; j < g->n; j += VEC) {
        int64_t n = min64(VEC, g->n - j), soon = j + 2 * VEC <= g->n ? VEC * g->b_col : 0;
        for (int64_t l = 0; l < g->k; l += step) {
            int64_t kc = min64(step, g->k - l), i = 0;
            const float *from[VEC], *rows = x + l * g->m;
            for (int o = 0; o < VEC; o++) { /* columns beyond the last are the last once more */
                from[o] = g->b + (j + min64(o, n - 1)) * g->b_col + l;
            }
            for (; i + 4 <= g->m; i += 4) {
                few_columns(4, kc, rows + i * kc, from, soon, sums + i * VEC);
            }
            for (; i + 2 <= g->m; i += 2) {
                few_columns(2, kc, rows + i * kc, from, soon, sums + i * VEC);
            }
            for (; i < g->m; i++) {
                few_columns(1, kc, rows + i * kc, from, soon, sums + i * VEC);
            }
            few_finish(g, l, j, n, sums, VEC);
        }
    }
}

void ISA_BASE(dt_gemm_few)(const struct dt_gemm *g, int64_t step)
{
    float *x = dt_cpu_work(DT_WORK_MATMUL, (size_t)(g->m * g->k + FEW * COLUMNS) * sizeof(float));
    for (int64_t l = 0; l < g->k; l += step) { /* a's rows, block by block of k */
        for (int64_t i = 0, kc = min64(step, g->k - l); i < g->m; i++) {
            for (int64_t o = 0; o < kc; o++) {
                x[l * g->m + i * kc + o] = g->a[i * g->a_row + (l + o) * g->a_col];
            }
        }
    }
    if (g->b_col != 1) {
        few_transposed(g, step, x);
        return;
    }
    for (int64_t l = 0; l < g->k; l += step) {
        few_straight(g, l, min64(step, g->k - l), x + l * g->m, x + g->m * g->k);
    }
}
