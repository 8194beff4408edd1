/* Optimizers over slices, and the exact sum of squares. Each element's update is the same
 * operations in a full vector and in a tail, so that no result depends on where a slice begins
 * or ends. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"
#include "kernels/exact.h"
#include "kernels/stochastic.h"

#define PART 32768 /* elements of one part; a multiple of 64 */

/* The update of one slice: its numbers, rounded once. */
struct update {
    const struct dt_update_call *call;
    float factor, rate; /* of the gradient; of the step, negative */
    float limit;        /* of a gradient's element, either way */
    float decay;        /* AdamW, Lion: what is left of a weight; others: what of it is added */
    float beta1, beta2, correction2, eps, momentum, rest, initial;
    bool first, nesterov;
    uint32_t counter; /* of the first element, where state is rounded stochastically */
};

/* The direction of a step of AdamW and Adam. states: 3 with amsgrad. */
INLINE vec moments(const struct update *u, vec g, vec *state, int states)
{
    state[0] = vec_fma(state[0] - g, vec_all(u->beta1), g); /* beta1 m + (1 - beta1) g */
    state[1] = vec_fma(state[1], vec_all(u->beta2), g * g * vec_all(1.0F - u->beta2));
    state[2] = vec_max(state[2], state[1]);
    return state[0] / vec_fma(vec_sqrt(state[states - 1]), vec_all(u->correction2), vec_all(u->eps));
}

INLINE vec adamw(const struct update *u, vec w, vec g, vec *state, int states)
{
    return vec_fma(moments(u, g, state, states), vec_all(u->rate), w * u->decay);
}

INLINE vec adam(const struct update *u, vec w, vec g, vec *state, int states)
{
    return vec_fma(moments(u, vec_fma(w, vec_all(u->decay), g), state, states), vec_all(u->rate), w);
}

INLINE vec sgd(const struct update *u, vec w, vec g, vec *state, int states)
{
    g = vec_fma(w, vec_all(u->decay), g);
    if (states > 0) {
        state[0] = u->first ? g : vec_fma(state[0], vec_all(u->momentum), g * u->rest);
        g = u->nesterov ? vec_fma(state[0], vec_all(u->momentum), g) : state[0];
    }
    return vec_fma(g, vec_all(u->rate), w);
}

INLINE vec muon(const struct update *u, vec g, vec *state)
{
    state[0] = vec_fma(state[0] - g, vec_all(u->momentum), g); /* momentum m + (1 - momentum) g */
    return u->nesterov ? vec_fma(state[0] - g, vec_all(u->momentum), g) : state[0];
}

INLINE vec lion(const struct update *u, vec w, vec g, vec *state)
{
    vec way = vec_fma(state[0] - g, vec_all(u->beta1), g);
    vec sign = (vec)(((way > 0) & (ivec)vec_all(1)) | ((way < 0) & (ivec)vec_all(-1)));
    state[0] = vec_fma(state[0] - g, vec_all(u->beta2), g);
    return vec_fma(sign, vec_all(u->rate), w * u->decay);
}

INLINE vec adagrad(const struct update *u, vec w, vec g, vec *state)
{
    g = vec_fma(w, vec_all(u->decay), g);
    state[0] = vec_fma(g, g, u->first ? vec_all(u->initial) : state[0]);
    return vec_fma(g / (vec_sqrt(state[0]) + u->eps), vec_all(u->rate), w);
}

INLINE vec updated(const struct update *u, vec w, vec g, vec *state, enum dt_update kind, int states)
{
    switch (kind) {
    case DT_UPDATE_ADAMW:
    case DT_UPDATE_LAMB: /* with the weight's share in the direction for what is left of it */
        return adamw(u, w, g, state, states);
    case DT_UPDATE_ADAM:
        return adam(u, w, g, state, states);
    case DT_UPDATE_SGD:
        return sgd(u, w, g, state, states);
    case DT_UPDATE_LION:
        return lion(u, w, g, state);
    case DT_UPDATE_ADAGRAD:
        return adagrad(u, w, g, state);
    case DT_UPDATE_MUON:
        return muon(u, g, state);
    }
    return w;
}

INLINE void update_typed(const struct update *c, int64_t begin, int64_t end, enum dt_update kind, int states,
                         enum dt_dtype grad, enum dt_dtype type)
{
    const struct update u = *c;
    const struct dt_update_slice x = c->call->slice;
    const uvec counter = (uvec)vec_index() + u.counter;
    const bool low = c->call->all.type != DT_F32;
    for (int64_t i = begin; i < end; i += VEC) {
        int64_t n = end - i;
        vec g = vec_get(x.grad, i, n, grad) * u.factor,
            w = low ? vec_load_half_n((const uint16_t *)x.w + i, n) : vec_load_n((const float *)x.w + i, n);
        g = vec_min(vec_all(u.limit), vec_max(vec_all(-u.limit), g)); /* nan stays */
        vec state[DT_STATES_MAX] = {{0}};
        for (int k = 0; k < states; k++) {
            state[k] = vec_get(x.state[k], i, n, type);
        }
        w = updated(&u, w, g, state, kind, states);
        if (states > 0 && type == DT_BF16) {
            uvec random = counter + (uint32_t)i;
            DT_SCRAMBLE(random);
            for (int k = 0; k < states; k++) { /* one half each of the 32 bits */
                if (k == 2) {
                    DT_SCRAMBLE(random);
                }
                state[k] = vec_stochastic(state[k], random >> 16 * (k % 2) & 0xffff);
            }
        }
        for (int k = 0; k < states; k++) {
            vec_put(x.state[k], i, state[k], n, type);
        }
        if (kind == DT_UPDATE_LAMB || kind == DT_UPDATE_MUON) { /* the direction */
            vec_put((void *)(uintptr_t)x.grad, i, w, n, grad);
            continue;
        }
        if (!low) {
            vec_store_n((float *)x.w + i, w, n);
        }
        if (low || x.w_low != NULL) {
            vec_store_half_n((uint16_t *)(low ? x.w : x.w_low) + i, w, n);
        }
    }
}

INLINE void update_by_types(const struct update *c, int64_t begin, int64_t end, enum dt_update kind, int states)
{
    bool half = c->call->all.grad_type == DT_HALF;
    if (states > 0 && c->call->all.state_type == DT_BF16) {
        half ? update_typed(c, begin, end, kind, states, DT_HALF, DT_BF16)
             : update_typed(c, begin, end, kind, states, DT_F32, DT_BF16);
    } else {
        half ? update_typed(c, begin, end, kind, states, DT_HALF, DT_F32)
             : update_typed(c, begin, end, kind, states, DT_F32, DT_F32);
    }
}

static void update_part(void *context, int64_t part)
{
    const struct update *c = context;
    int64_t begin = part * PART, end = min64(c->call->slice.count, begin + PART);
    switch (c->call->kind) {
    case DT_UPDATE_ADAMW:
        c->call->slice.state[2] != NULL ? update_by_types(c, begin, end, DT_UPDATE_ADAMW, 3)
                                        : update_by_types(c, begin, end, DT_UPDATE_ADAMW, 2);
        break;
    case DT_UPDATE_ADAM:
        c->call->slice.state[2] != NULL ? update_by_types(c, begin, end, DT_UPDATE_ADAM, 3)
                                        : update_by_types(c, begin, end, DT_UPDATE_ADAM, 2);
        break;
    case DT_UPDATE_SGD:
        c->call->slice.state[0] != NULL ? update_by_types(c, begin, end, DT_UPDATE_SGD, 1)
                                        : update_by_types(c, begin, end, DT_UPDATE_SGD, 0);
        break;
    case DT_UPDATE_LION:
        update_by_types(c, begin, end, DT_UPDATE_LION, 1);
        break;
    case DT_UPDATE_ADAGRAD:
        update_by_types(c, begin, end, DT_UPDATE_ADAGRAD, 1);
        break;
    case DT_UPDATE_LAMB:
        update_by_types(c, begin, end, DT_UPDATE_LAMB, 2);
        break;
    case DT_UPDATE_MUON:
        update_by_types(c, begin, end, DT_UPDATE_MUON, 1);
        break;
    }
}

static double rate_of(const struct dt_update_args *a, enum dt_update kind)
{
    const struct dt_update_numbers *x = &a->numbers;
    double step = (double)a->step, correction = x->uncorrected != 0 ? 1.0 : 1.0 - pow(x->beta1, step);
    switch (kind) {
    case DT_UPDATE_ADAMW:
    case DT_UPDATE_ADAM:
        return a->lr / correction;
    case DT_UPDATE_ADAGRAD:
        return a->lr / (1.0 + (step - 1.0) * x->lr_decay);
    case DT_UPDATE_LAMB:
        return -1.0 / correction;
    case DT_UPDATE_SGD:
    case DT_UPDATE_LION:
    case DT_UPDATE_MUON:
        break;
    }
    return a->lr;
}

static int run_update(struct dt_stream *s, void *args, struct dt_error *err)
{
    const struct dt_update_call *call = args;
    const struct dt_update_args *a = &call->all;
    const struct dt_update_numbers *x = &a->numbers;
    if (a->type != DT_F32 && a->type != DT_HALF) {
        return dt_fail(err, DT_INTERNAL, "optimizer: type %s is not made", dt_dtype_name(a->type));
    }
    if (a->skip != NULL && *a->skip != 0) {
        return 0;
    }
    bool decoupled = call->kind == DT_UPDATE_ADAMW || call->kind == DT_UPDATE_LION;
    double step = (double)a->step;
    struct update u = {.call = call,
                       .factor = (float)(a->grad_scale * (a->clip != NULL ? *a->clip : 1.0)),
                       .limit = a->clip_value > 0 ? (float)a->clip_value : INFINITY,
                       .rate = (float)-rate_of(a, call->kind),
                       .decay = (float)(decoupled ? 1.0 - a->lr * call->slice.weight_decay : call->slice.weight_decay),
                       .beta1 = (float)x->beta1,
                       .beta2 = (float)x->beta2,
                       .correction2 = x->uncorrected != 0 ? 1.0F : (float)(1.0 / sqrt(1.0 - pow(x->beta2, step))),
                       .eps = (float)x->eps,
                       .momentum = (float)x->momentum,
                       .rest = (float)(1.0 - x->dampening),
                       .initial = (float)x->initial,
                       .first = a->step == 1,
                       .nesterov = x->nesterov,
                       .counter = dt_stochastic_counter(a->seed, a->step, call->slice.unit, call->slice.first)};
    dt_pool_run(dt_cpu_pool(s), parts_of(call->slice.count, PART), update_part, &u);
    return 0;
}

/* Defines a row. In the copy for F32 and BF16, calls with a tensor of F16 go to the other copy. */
#ifdef DT_FOR_F16
#define UPDATE(row, kind)                                                                                              \
    void ISA(row)(struct dt_stream * s, const struct dt_update_args *a)                                                \
    {                                                                                                                  \
        dt_update_each(s, run_update, kind, a);                                                                        \
    }
#else
#define UPDATE(row, kind)                                                                                              \
    void ISA(row)(struct dt_stream * s, const struct dt_update_args *a)                                                \
    {                                                                                                                  \
        bool f16 = a->type == DT_F16 || a->grad_type == DT_F16 || a->low_type == DT_F16;                               \
        f16 ? ISA_F16(row)(s, a) : dt_update_each(s, run_update, kind, a);                                             \
    }
#endif
UPDATE(dt_adamw_many, DT_UPDATE_ADAMW)
UPDATE(dt_adam_many, DT_UPDATE_ADAM)
UPDATE(dt_sgd_many, DT_UPDATE_SGD)
UPDATE(dt_lion_many, DT_UPDATE_LION)
UPDATE(dt_adagrad_many, DT_UPDATE_ADAGRAD)
UPDATE(dt_lamb_many, DT_UPDATE_LAMB)
UPDATE(dt_muon_many, DT_UPDATE_MUON)

/* Squares of floats are exact in double; eight sums over a block of 64, then a fixed tree, as in
 * the twin. */
typedef double lanes __attribute__((vector_size(64)));
typedef float half_lanes __attribute__((vector_size(32)));
typedef uint16_t bits16 __attribute__((vector_size(16)));
typedef uint32_t bits32 __attribute__((vector_size(32)));

/* The sum of the squares of elements i to i + 63, of F32, BF16 or F16. */
INLINE double block_sum(const void *x, int64_t i, enum dt_dtype type)
{
    lanes sum = {0};
    for (int64_t j = i; j < i + 64; j += 8) {
        half_lanes f;
        if (dt_dtype_half(type)) {
            bits16 h;
            memcpy(&h, (const uint16_t *)x + j, sizeof h);
            bits32 bits = __builtin_convertvector(h, bits32), rest = (bits & 0x7fff) << 13;
            if (type == DT_F16) { /* the sign does not count; an exponent of ones stays one */
                bits32 top = (bits32)(rest >= 0x0f800000);
                f = (half_lanes)rest * 0x1p112F;
                f = (half_lanes)((top & (rest | 0x7f800000)) | (~top & (bits32)f));
            } else {
                f = (half_lanes)(bits << 16);
            }
        } else {
            memcpy(&f, (const float *)x + j, sizeof f);
        }
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
        if (n == 64) {
            dt_exact_add(limbs, DT_IS_HALF(a->type) ? block_sum(a->x, i, DT_HALF) : block_sum(a->x, i, DT_F32));
            continue;
        }
        float block[64] = {0};
        if (DT_IS_HALF(a->type)) {
            vec_fetch(block, a->x, i, n, DT_HALF);
        } else {
            vec_fetch(block, a->x, i, n, DT_F32);
        }
        dt_exact_add(limbs, block_sum(block, 0, DT_F32));
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
