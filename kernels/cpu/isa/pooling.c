/* One row of each sequence, or the mean of its rows; and their gradients. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"

#define COLUMNS 64 /* columns of one part of a mean */
#define ROW_BLOCK                                                                                                      \
    32 /* rows that are summed before their sum is added to the total; rows of one part
                      * of the other kernels */

/* ---- means ---- */

/* Number of set masks among `count`. */
static int64_t set_masks(const int32_t *mask, int64_t count)
{
    int64_t set = mask == NULL ? count : 0;
    for (int64_t i = 0; i < count && mask != NULL; i++) {
        set += mask[i] != 0;
    }
    return set;
}

/* Columns [from, from + n), at most COLUMNS, of sequence b. */
INLINE void mean_columns(const struct dt_masked_mean_args *a, int64_t b, int64_t from, int64_t n, enum dt_dtype type)
{
    int64_t T = a->positions, cols = a->col_count;
    const int32_t *mask = a->mask != NULL ? a->mask + b * T : NULL;
    int64_t set = set_masks(mask, T);
    const vec count = vec_all((float)(set > 0 ? set : 1));
    vec total[COLUMNS / VEC] = {{0}};
    for (int64_t t = 0; t < T; t += ROW_BLOCK) {
        vec sum[COLUMNS / VEC] = {{0}};
        for (int64_t r = t; r < min64(T, t + ROW_BLOCK); r++) {
            if (mask != NULL && mask[r] == 0) {
                continue;
            }
#pragma GCC unroll 16
            for (int v = 0; v < COLUMNS / VEC; v++) {
                if (v * VEC < n) {
                    sum[v] += vec_get(a->x, (b * T + r) * cols + from + v * VEC, n - v * VEC, type);
                }
            }
        }
        for (int v = 0; v < COLUMNS / VEC; v++) {
            total[v] += sum[v];
        }
    }
    for (int v = 0; v * VEC < n; v++) {
        vec_put(a->out, b * cols + from + v * VEC, total[v] / count, n - v * VEC, type);
    }
}

static void masked_mean_part(void *context, int64_t part)
{
    const struct dt_masked_mean_args *a = context;
    int64_t stripes = parts_of(a->col_count, COLUMNS), b = part / stripes, from = part % stripes * COLUMNS;
    int64_t n = min64(COLUMNS, a->col_count - from);
    bool half = DT_IS_HALF(a->type);
    if (n == COLUMNS) { /* whole cache lines, so take all columns of the part at once */
        half ? mean_columns(a, b, from, COLUMNS, DT_HALF) : mean_columns(a, b, from, COLUMNS, DT_F32);
    } else {
        half ? mean_columns(a, b, from, n, DT_HALF) : mean_columns(a, b, from, n, DT_F32);
    }
}

static int masked_mean_now(struct dt_pool *pool, struct dt_masked_mean_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, a->batch * parts_of(a->col_count, COLUMNS), masked_mean_part, a);
    return 0;
}
DT_ISA_KERNEL(masked_mean)

/* Rows [begin, end) of sequence b. All rows with a mask are the same. */
INLINE void spread(const struct dt_masked_mean_backward_args *a, int64_t b, int64_t begin, int64_t end,
                   enum dt_dtype type)
{
    int64_t T = a->positions, cols = a->col_count;
    size_t size = (size_t)cols * dt_dtype_size(type);
    const int32_t *mask = a->mask != NULL ? a->mask + b * T : NULL;
    int64_t set = set_masks(mask, T);
    const vec count = vec_all((float)(set > 0 ? set : 1));
    void *row = dt_cpu_work(DT_WORK_KERNEL, size);
    for (int64_t j = 0; j < cols; j += VEC) {
        vec_put(row, j, vec_get(a->dout, b * cols + j, cols - j, type) / count, cols - j, type);
    }
    for (int64_t t = begin; t < end; t++) {
        char *to = (char *)a->dx + (size_t)(b * T + t) * size;
        if (mask == NULL || mask[t] != 0) {
            memcpy(to, row, size);
        } else {
            memset(to, 0, size);
        }
    }
}

static void spread_part(void *context, int64_t part)
{
    const struct dt_masked_mean_backward_args *a = context;
    int64_t blocks = parts_of(a->positions, ROW_BLOCK), b = part / blocks, begin = part % blocks * ROW_BLOCK;
    int64_t end = min64(a->positions, begin + ROW_BLOCK);
    if (DT_IS_HALF(a->type)) {
        spread(a, b, begin, end, DT_HALF);
    } else {
        spread(a, b, begin, end, DT_F32);
    }
}

static int masked_mean_backward_now(struct dt_pool *pool, struct dt_masked_mean_backward_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, a->batch * parts_of(a->positions, ROW_BLOCK), spread_part, a);
    return 0;
}
DT_ISA_KERNEL(masked_mean_backward)

/* ---- single rows ---- */

static void take_part(void *context, int64_t part)
{
    const struct dt_take_rows_args *a = context;
    size_t size = (size_t)a->col_count * dt_dtype_size(a->type);
    for (int64_t i = part * ROW_BLOCK; i < min64(a->row_count, (part + 1) * ROW_BLOCK); i++) {
        int64_t from = a->rows != NULL ? a->rows[i] : i * a->step;
        char *out = (char *)a->out + (size_t)i * size;
        if (from >= 0) {
            memcpy(out, (const char *)a->x + (size_t)from * size, size);
        } else {
            memset(out, 0, size);
        }
    }
}

static int take_rows_now(struct dt_pool *pool, struct dt_take_rows_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->row_count, ROW_BLOCK), take_part, a);
    return 0;
}
DT_ISA_KERNEL(take_rows)

static void clear_part(void *context, int64_t part)
{
    const struct dt_take_rows_backward_args *a = context;
    size_t size = (size_t)a->col_count * dt_dtype_size(a->type);
    int64_t begin = part * ROW_BLOCK, end = min64(a->source_count, begin + ROW_BLOCK);
    memset((char *)a->dx + (size_t)begin * size, 0, (size_t)(end - begin) * size);
}

static void put_part(void *context, int64_t part)
{
    const struct dt_take_rows_backward_args *a = context;
    size_t size = (size_t)a->col_count * dt_dtype_size(a->type);
    for (int64_t i = part * ROW_BLOCK; i < min64(a->row_count, (part + 1) * ROW_BLOCK); i++) {
        int64_t to = a->rows != NULL ? a->rows[i] : i * a->step;
        if (to >= 0) {
            memcpy((char *)a->dx + (size_t)to * size, (const char *)a->dout + (size_t)i * size, size);
        }
    }
}

static int take_rows_backward_now(struct dt_pool *pool, struct dt_take_rows_backward_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->source_count, ROW_BLOCK), clear_part, a);
    dt_pool_run(pool, parts_of(a->row_count, ROW_BLOCK), put_part, a);
    return 0;
}
DT_ISA_KERNEL(take_rows_backward)
