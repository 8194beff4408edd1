/* Optimizers over slices, and the exact sum of squares. Each element's update is the same
 * operations in a full vector and in a tail, so that no result depends on where a slice begins
 * or ends. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"
#include "kernels/exact.h"
#include "kernels/stochastic.h"

#define PART 32768 /* elements of one part; a multiple of 64 */

struct adamw {
    const struct dt_adamw_args *args;
    float factor, beta1, beta2, keep, rate, correction2, eps;
    uint32_t counter; /* of the first element, where moments are rounded stochastically */
};

INLINE void adamw_typed(const struct adamw *c, int64_t begin, int64_t end, enum dt_dtype grad, enum dt_dtype moment)
{
    const struct dt_adamw_args *a = c->args;
    float *w = a->w;
    const void *from = a->grad;
    void *m = a->m, *v = a->v, *copy = a->w_bf16;
    const uvec counter = (uvec)vec_index() + c->counter;
    const float factor = c->factor, keep = c->keep;
    const vec rate = vec_all(c->rate), correction2 = vec_all(c->correction2), eps = vec_all(c->eps);
    const vec beta1 = vec_all(c->beta1), beta2 = vec_all(c->beta2), rest2 = vec_all(1.0F - c->beta2);
    for (int64_t i = begin; i < end; i += VEC) {
        int64_t n = end - i;
        vec g = vec_get(from, i, n, grad) * factor;
        vec mi = vec_get(m, i, n, moment), vi = vec_get(v, i, n, moment), wi = vec_load_n(w + i, n);
        mi = vec_fma(mi - g, beta1, g); /* beta1 m + (1 - beta1) g */
        vi = vec_fma(vi, beta2, g * g * rest2);
        vec step = mi / vec_fma(vec_sqrt(vi), correction2, eps);
        wi = vec_fma(step, rate, wi * keep);
        if (moment == DT_BF16) {
            uvec random = counter + (uint32_t)i;
            DT_SCRAMBLE(random);
            mi = vec_stochastic(mi, random & 0xffff);
            vi = vec_stochastic(vi, random >> 16);
        }
        vec_put(m, i, mi, n, moment);
        vec_put(v, i, vi, n, moment);
        vec_store_n(w + i, wi, n);
        if (copy != NULL) {
            vec_put(copy, i, wi, n, DT_BF16);
        }
    }
}

static void adamw_part(void *context, int64_t part)
{
    const struct adamw *c = context;
    int64_t begin = part * PART, end = min64(c->args->count, begin + PART);
    bool half = c->args->grad_type == DT_BF16;
    if (c->args->moment_type == DT_BF16) {
        half ? adamw_typed(c, begin, end, DT_BF16, DT_BF16) : adamw_typed(c, begin, end, DT_F32, DT_BF16);
    } else {
        half ? adamw_typed(c, begin, end, DT_BF16, DT_F32) : adamw_typed(c, begin, end, DT_F32, DT_F32);
    }
}

static int adamw_now(struct dt_pool *pool, struct dt_adamw_args *a, struct dt_error *err)
{
    (void)err;
    double step = (double)a->step;
    struct adamw c = {.args = a,
                      .factor = (float)(a->grad_scale * (a->clip != NULL ? *a->clip : 1.0)),
                      .beta1 = (float)a->beta1,
                      .beta2 = (float)a->beta2,
                      .keep = (float)(1.0 - a->lr * a->weight_decay),
                      .rate = (float)(-a->lr / (1.0 - pow(a->beta1, step))),
                      .correction2 = (float)(1.0 / sqrt(1.0 - pow(a->beta2, step))),
                      .eps = (float)a->eps,
                      .counter = dt_stochastic_counter(a->seed, a->step, a->unit, a->first)};
    dt_pool_run(pool, parts_of(a->count, PART), adamw_part, &c);
    return 0;
}
DT_ISA_KERNEL_F32(adamw)

void ISA(dt_adamw_many)(struct dt_stream *s, const struct dt_adamw_many_args *a)
{
    for (int i = 0; i < a->count; i++) {
        ISA(dt_adamw)(s, &a->each[i]);
    }
}

struct sgd {
    const struct dt_sgd_args *args;
    float factor, decay, momentum, rate;
};

INLINE void sgd_typed(const struct sgd *c, int64_t begin, int64_t end, enum dt_dtype grad)
{
    const struct dt_sgd_args *a = c->args;
    float *w = a->w, *buffer = a->momentum_buffer;
    for (int64_t i = begin; i < end; i += VEC) {
        int64_t n = end - i;
        vec wi = vec_load_n(w + i, n);
        vec g = vec_fma(wi, vec_all(c->decay), vec_get(a->grad, i, n, grad) * c->factor);
        if (buffer != NULL) {
            vec b = a->step == 1 ? g : vec_fma(vec_load_n(buffer + i, n), vec_all(c->momentum), g);
            vec_store_n(buffer + i, b, n);
            g = a->nesterov ? vec_fma(b, vec_all(c->momentum), g) : b;
        }
        wi = vec_fma(g, vec_all(c->rate), wi);
        vec_store_n(w + i, wi, n);
        if (a->w_bf16 != NULL) {
            vec_put(a->w_bf16, i, wi, n, DT_BF16);
        }
    }
}

static void sgd_part(void *context, int64_t part)
{
    const struct sgd *c = context;
    int64_t begin = part * PART, end = min64(c->args->count, begin + PART);
    if (c->args->grad_type == DT_BF16) {
        sgd_typed(c, begin, end, DT_BF16);
    } else {
        sgd_typed(c, begin, end, DT_F32);
    }
}

static int sgd_now(struct dt_pool *pool, struct dt_sgd_args *a, struct dt_error *err)
{
    (void)err;
    struct sgd c = {.args = a,
                    .factor = (float)(a->grad_scale * (a->clip != NULL ? *a->clip : 1.0)),
                    .decay = (float)a->weight_decay,
                    .momentum = (float)a->momentum,
                    .rate = (float)-a->lr};
    dt_pool_run(pool, parts_of(a->count, PART), sgd_part, &c);
    return 0;
}
DT_ISA_KERNEL_F32(sgd)

/* Squares of floats are exact in double; eight sums over a block of 64, then a fixed tree, as in
 * the twin. */
typedef double lanes __attribute__((vector_size(64)));
typedef float half_lanes __attribute__((vector_size(32)));

static double block_sum(const float *x)
{
    lanes sum = {0};
    for (int j = 0; j < 64; j += 8) {
        half_lanes f;
        memcpy(&f, x + j, sizeof f);
        lanes d = __builtin_convertvector(f, lanes);
        sum += d * d;
    }
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

static void norm_part(void *context, int64_t part)
{
    const struct dt_norm_sum_args *a = context;
    int64_t limbs[DT_EXACT_LIMBS] = {0};
    for (int64_t i = part * PART; i < min64(a->count, (part + 1) * PART); i += 64) {
        int64_t n = min64(64, a->count - i);
        if (n == 64 && a->type == DT_F32) {
            dt_exact_add(limbs, block_sum((const float *)a->x + i));
            continue;
        }
        float block[64] = {0};
        if (a->type == DT_BF16) {
            vec_fetch(block, a->x, i, n, DT_BF16);
        } else {
            vec_fetch(block, a->x, i, n, DT_F32);
        }
        dt_exact_add(limbs, block_sum(block));
    }
    for (int i = 0; i < DT_EXACT_LIMBS; i++) {
        __atomic_fetch_add(&a->limbs[i], limbs[i], __ATOMIC_RELAXED); /* integers: any order */
    }
}

static int norm_sum_now(struct dt_pool *pool, struct dt_norm_sum_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->count, PART), norm_part, a);
    return 0;
}
DT_ISA_KERNEL(norm_sum)
