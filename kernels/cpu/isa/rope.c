/* Rotary positions: turns the pairs (x[j], x[j + width / 2]) of each head in place. Rows are cut
 * into parts; a row's cosines and sines stay in the L1 cache for all of its heads. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"

#define PART 32768 /* elements of one part, in whole rows */

INLINE void turn_row(const struct dt_rope_args *a, int64_t row, enum dt_dtype type)
{
    int64_t half = a->width / 2;
    int64_t position = a->positions != NULL ? a->positions[row] : a->first_position + row % a->position_count;
    const float *cosines = (const float *)a->table + position * a->width, *sines = cosines + half;
    const vec sign = vec_all(a->inverse ? -1.0F : 1.0F);
    void *x = a->x;
    for (int64_t head = 0; head < a->heads; head++) {
        int64_t at = row * a->stride + head * a->head_size;
        for (int64_t j = 0; j < half; j += VEC) {
            int64_t n = half - j;
            vec c = vec_load_n(cosines + j, n), s = vec_load_n(sines + j, n) * sign;
            vec first = vec_get(x, at + j, n, type), second = vec_get(x, at + half + j, n, type);
            vec_put(x, at + j, vec_fma(first, c, -(second * s)), n, type);
            vec_put(x, at + half + j, vec_fma(second, c, first * s), n, type);
        }
    }
}

static int64_t rows_of_part(const struct dt_rope_args *a)
{
    int64_t rows = PART / (a->heads * a->head_size + 1);
    return rows > 1 ? rows : 1;
}

static void rope_part(void *context, int64_t part)
{
    const struct dt_rope_args *a = context;
    int64_t rows = rows_of_part(a);
    for (int64_t row = part * rows; row < min64(a->row_count, (part + 1) * rows); row++) {
        if (DT_IS_HALF(a->type)) {
            turn_row(a, row, DT_HALF);
        } else {
            turn_row(a, row, DT_F32);
        }
    }
}

static int rope_now(struct dt_pool *pool, struct dt_rope_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->row_count, rows_of_part(a)), rope_part, a);
    return 0;
}
DT_ISA_KERNEL(rope)
