/* Dropout. The elements of a sample lie together, so a part of fixed length is cut where a sample
 * ends. */
#include "kernels/dropout.h"

#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"

#define PART 32768 /* elements of one part */

/* Elements [begin, end), all of one sample; `place` is that of the first within the sample. */
INLINE void drop(const struct dt_dropout_args *a, int64_t begin, int64_t end, int64_t place, uint64_t key,
                 enum dt_dtype type)
{
    void *x = a->x;
    const void *in = a->in;
    const vec factor = vec_all((float)(1.0 / (1.0 - a->rate))), none = {0};
    const uvec high = (uint32_t)(key >> 32) - (uvec){0}, limit = dt_dropout_limit(a->rate) - (uvec){0};
    uvec counter = (uint32_t)key + (uint32_t)place + (uvec)vec_index();
    for (int64_t i = begin; i < end; i += VEC, counter += VEC) {
        uvec bits = counter;
        DT_SCRAMBLE(bits);
        vec kept = vec_pick((bits ^ high) >= limit, vec_get(in, i, end - i, type) * factor, none);
        vec_put(x, i, kept, end - i, type);
    }
}

static void dropout_part(void *context, int64_t part)
{
    const struct dt_dropout_args *a = context;
    int64_t sample_size = a->rows_per_sample * a->col_count;
    int64_t begin = part * PART, end = min64(a->row_count * a->col_count, begin + PART);
    while (begin < end) {
        int64_t sample = begin / sample_size, stop = min64(end, (sample + 1) * sample_size);
        uint64_t key = dt_dropout_key(a->seed, a->site, a->samples[sample]);
        if (DT_IS_HALF(a->type)) {
            drop(a, begin, stop, begin - sample * sample_size, key, DT_HALF);
        } else {
            drop(a, begin, stop, begin - sample * sample_size, key, DT_F32);
        }
        begin = stop;
    }
}

static int dropout_now(struct dt_pool *pool, struct dt_dropout_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->row_count * a->col_count, PART), dropout_part, a);
    return 0;
}
DT_ISA_KERNEL(dropout)
