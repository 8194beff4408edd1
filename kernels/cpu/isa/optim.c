/* Optimizers over slices, and the exact sum of squares. Each element's update is the same operations in a full vector and in a
 * tail, so that no result depends on where a slice begins or ends. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"
#include "kernels/exact.h"

#define PART 32768 /* elements of one part; a multiple of 64 */

struct adamw {
    const struct dt_adamw_args *args;
    float factor, beta1, beta2, keep, rate, correction2, eps;
};

static void adamw_part(void *context, int64_t part)
{
    const struct adamw *c = context;
    const struct dt_adamw_args *a = c->args;
    int64_t n = min64(PART, a->count - part * PART);
    float *w = (float *)a->w + part * PART, *m = (float *)a->m + part * PART, *v = (float *)a->v + part * PART;
    const float *grad = (const float *)a->grad + part * PART;
    const vec beta1 = vec_all(c->beta1), beta2 = vec_all(c->beta2), rest2 = vec_all(1.0F - c->beta2);
    for (int64_t i = 0; i < n; i += VEC) {
        vec g = vec_load_n(grad + i, n - i) * c->factor;
        vec mi = vec_load_n(m + i, n - i), vi = vec_load_n(v + i, n - i), wi = vec_load_n(w + i, n - i);
        mi = vec_fma(mi - g, beta1, g); /* beta1 m + (1 - beta1) g */
        vi = vec_fma(vi, beta2, g * g * rest2);
        vec step = mi / vec_fma(vec_sqrt(vi), vec_all(c->correction2), vec_all(c->eps));
        wi = vec_fma(step, vec_all(c->rate), wi * c->keep);
        vec_store_n(m + i, mi, n - i);
        vec_store_n(v + i, vi, n - i);
        vec_store_n(w + i, wi, n - i);
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
                      .eps = (float)a->eps};
    dt_pool_run(pool, parts_of(a->count, PART), adamw_part, &c);
    return 0;
}
DT_ISA_KERNEL(adamw)

struct sgd {
    const struct dt_sgd_args *args;
    float factor, decay, momentum, rate;
};

static void sgd_part(void *context, int64_t part)
{
    const struct sgd *c = context;
    const struct dt_sgd_args *a = c->args;
    int64_t n = min64(PART, a->count - part * PART);
    float *w = (float *)a->w + part * PART, *buffer = a->momentum_buffer != NULL ? (float *)a->momentum_buffer + part * PART : NULL;
    const float *grad = (const float *)a->grad + part * PART;
    for (int64_t i = 0; i < n; i += VEC) {
        vec wi = vec_load_n(w + i, n - i);
        vec g = vec_fma(wi, vec_all(c->decay), vec_load_n(grad + i, n - i) * c->factor);
        if (buffer != NULL) {
            vec b = a->step == 1 ? g : vec_fma(vec_load_n(buffer + i, n - i), vec_all(c->momentum), g);
            vec_store_n(buffer + i, b, n - i);
            g = a->nesterov ? vec_fma(b, vec_all(c->momentum), g) : b;
        }
        vec_store_n(w + i, vec_fma(g, vec_all(c->rate), wi), n - i);
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
DT_ISA_KERNEL(sgd)

/* Squares of floats are exact in double; eight sums over a block of 64, then a fixed tree, as in the twin. */
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
    const float *x = a->x;
    int64_t limbs[DT_EXACT_LIMBS] = {0};
    for (int64_t i = part * PART; i < min64(a->count, (part + 1) * PART); i += 64) {
        if (i + 64 <= a->count) {
            dt_exact_add(limbs, block_sum(x + i));
        } else {
            float last[64] = {0};
            memcpy(last, x + i, (size_t)(a->count - i) * sizeof(float));
            dt_exact_add(limbs, block_sum(last));
        }
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
