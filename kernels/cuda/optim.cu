/* Optimizers over slices: one pass over weights, state and gradient, with the clip factor read from
 * device memory and the 16-bit copy written alongside. The operations are those of the CPU, one by
 * one, so the weights have its bits, and so has state that is rounded stochastically. */
#include "kernels/cuda/vector.cuh"
#include "kernels/stochastic.h"

namespace
{

/* x rounded stochastically to what BF16 holds: `random` (below 2^16) goes to what is cut off. A
 * nan stays one. */
DT_FN float stochastic(float x, uint32_t random)
{
    return x == x ? __uint_as_float((__float_as_uint(x) + random) & 0xffff0000U) : x;
}

/* Rules: an element's step from w and g, with its state. decay: of the weights, in the rule's own
 * way. */
/* N: 3 with amsgrad, otherwise 2. */
template <int N> struct adamw {
    enum { STATES = N, DIRECTION = 0 }; /* DIRECTION: what step gives goes to the gradient, and w stays */
    float beta1, beta2, rate, correction2, eps;
    static float decay_of(const struct dt_update_args *a, double weight_decay)
    {
        return (float)(1.0 - a->lr * weight_decay);
    }
    DT_METHOD float direction(float g, float *state)
    {
        state[0] = fmaf(state[0] - g, beta1, g); /* beta1 m + (1 - beta1) g */
        state[1] = fmaf(state[1], beta2, g * g * (1.0F - beta2));
        float second = state[1];
        if (N > 2) {
            state[2] = state[1] > state[2] ? state[1] : state[2];
            second = state[2];
        }
        return state[0] / fmaf(sqrtf(second), correction2, eps);
    }
    DT_METHOD float step(float w, float g, float *state, float decay)
    {
        return fmaf(direction(g, state), rate, w * decay);
    }
};

template <int N> void set(adamw<N> *r, const struct dt_update_args *a)
{
    const struct dt_update_numbers *x = &a->numbers;
    double step = (double)a->step;
    bool corrected = x->uncorrected == 0;
    *r = {(float)x->beta1, (float)x->beta2, (float)(-a->lr / (corrected ? 1.0 - pow(x->beta1, step) : 1.0)),
          corrected ? (float)(1.0 / sqrt(1.0 - pow(x->beta2, step))) : 1.0F, (float)x->eps};
}

/* AdamW's moments of a gradient that the decay was added to. */
template <int N> struct adam : adamw<N> {
    static float decay_of(const struct dt_update_args *a, double weight_decay)
    {
        (void)a;
        return (float)weight_decay;
    }
    DT_METHOD float step(float w, float g, float *state, float decay)
    {
        return fmaf(this->direction(fmaf(w, decay, g), state), this->rate, w);
    }
};

template <int N> void set(adam<N> *r, const struct dt_update_args *a)
{
    set(static_cast<adamw<N> *>(r), a);
}

/* AdamW's direction, with a share of the weight. */
struct lamb : adam<2> {
    enum { DIRECTION = 1 };
    DT_METHOD float step(float w, float g, float *state, float decay)
    {
        return fmaf(direction(g, state), rate, w * decay);
    }
};

void set(lamb *r, const struct dt_update_args *a)
{
    set(static_cast<adamw<2> *>(r), a);
    r->rate = a->numbers.uncorrected != 0 ? 1.0F : (float)(1.0 / (1.0 - pow(a->numbers.beta1, (double)a->step)));
}

/* N: 1 with momentum, 0 without. */
template <int N> struct sgd {
    enum { STATES = N, DIRECTION = 0 };
    float momentum, rest, rate;
    bool first, nesterov;
    static float decay_of(const struct dt_update_args *a, double weight_decay)
    {
        (void)a;
        return (float)weight_decay;
    }
    DT_METHOD float step(float w, float g, float *state, float decay)
    {
        g = fmaf(w, decay, g);
        if (N > 0) {
            state[0] = first ? g : fmaf(state[0], momentum, g * rest);
            g = nesterov ? fmaf(state[0], momentum, g) : state[0];
        }
        return fmaf(g, rate, w);
    }
};

template <int N> void set(sgd<N> *r, const struct dt_update_args *a)
{
    *r = {(float)a->numbers.momentum, (float)(1.0 - a->numbers.dampening), (float)-a->lr, a->step == 1,
          a->numbers.nesterov};
}

struct lion {
    enum { STATES = 1, DIRECTION = 0 };
    float beta1, beta2, rate;
    static float decay_of(const struct dt_update_args *a, double weight_decay)
    {
        return (float)(1.0 - a->lr * weight_decay);
    }
    DT_METHOD float step(float w, float g, float *state, float decay)
    {
        float way = fmaf(state[0] - g, beta1, g);
        state[0] = fmaf(state[0] - g, beta2, g);
        return fmaf(way > 0 ? 1.0F : way < 0 ? -1.0F : 0.0F, rate, w * decay);
    }
};

void set(lion *r, const struct dt_update_args *a)
{
    *r = {(float)a->numbers.beta1, (float)a->numbers.beta2, (float)-a->lr};
}

struct muon {
    enum { STATES = 1, DIRECTION = 1 };
    float momentum;
    bool nesterov;
    static float decay_of(const struct dt_update_args *a, double weight_decay)
    {
        (void)a;
        return (float)weight_decay;
    }
    DT_METHOD float step(float w, float g, float *state, float decay)
    {
        (void)w;
        (void)decay;
        state[0] = fmaf(state[0] - g, momentum, g); /* momentum m + (1 - momentum) g */
        return nesterov ? fmaf(state[0] - g, momentum, g) : state[0];
    }
};

void set(muon *r, const struct dt_update_args *a)
{
    *r = {(float)a->numbers.momentum, a->numbers.nesterov};
}

struct adagrad {
    enum { STATES = 1, DIRECTION = 0 };
    /* begin: the sum before the first step; below 0: the state has it */
    float begin, rate, eps;
    static float decay_of(const struct dt_update_args *a, double weight_decay)
    {
        (void)a;
        return (float)weight_decay;
    }
    DT_METHOD float step(float w, float g, float *state, float decay)
    {
        g = fmaf(w, decay, g);
        state[0] = fmaf(g, g, begin >= 0 ? begin : state[0]);
        return fmaf(g / (sqrtf(state[0]) + eps), rate, w);
    }
};

void set(adagrad *r, const struct dt_update_args *a)
{
    const struct dt_update_numbers *x = &a->numbers;
    *r = {a->step == 1 ? (float)x->initial : -1.0F, (float)(-a->lr / (1.0 + (double)(a->step - 1) * x->lr_decay)),
          (float)x->eps};
}

/* Values of 16 bits, all of a call BF16 or all F16. */
template <int W> DT_FN void from_half(float (&x)[W], const pack<uint16_t, W> &p, bool is_f16)
{
    is_f16 ? unpack<f16, W>(x, p.c) : unpack<bf16, W>(x, p.c);
}
template <int W> DT_FN void to_half(pack<uint16_t, W> &p, const float (&x)[W], bool is_f16)
{
    is_f16 ? pack_up<f16, W>(p.c, x) : pack_up<bf16, W>(p.c, x);
}

/* R: the rule; G: type of the gradient, float or uint16_t for 16 bits; S: of the state. */
template <typename R, typename G, typename S> struct update {
    enum { STATES = R::STATES, HELD = STATES > 0 ? STATES : 1, HALF = STATES > 0 && sizeof(S) < sizeof(float) };
    void *w; /* F32 or, without masters, 16 bits */
    S *state[HELD];
    uint16_t *copy;
    const G *grad;
    const double *clip;
    const int32_t *skip;
    double grad_scale;
    R rule;
    float decay;
    float factor, limit;
    bool low, is_f16; /* the weights have 16 bits; 16 bits are F16 */
    uint32_t counter; /* of the first element, where state is rounded stochastically */
    template <int W> struct held {
        pack<float, W> w; /* or, in its first half, 16 bits */
        pack<S, W> state[HELD];
        pack<G, W> g;
    };

    DT_METHOD bool begin()
    {
        factor = (float)(grad_scale * (clip != NULL ? *clip : 1.0));
        return skip == NULL || *skip == 0;
    }
    template <int W> DT_METHOD void load(held<W> &h, int64_t i)
    {
        h.g.load(grad + i);
#pragma unroll
        for (int s = 0; s < STATES; s++) {
            h.state[s].load(state[s] + i);
        }
        if (low) {
            pack<uint16_t, W> half;
            half.load((uint16_t *)w + i);
            h.w.clear();
            memcpy(&h.w, &half, sizeof half);
        } else {
            h.w.load((float *)w + i);
        }
    }
    template <int W> DT_METHOD void put_low(uint16_t *to, const float (&x)[W]) const
    {
        pack<uint16_t, W> p;
        to_half<W>(p, x, is_f16);
        p.store(to);
    }
    template <int W> DT_METHOD void finish(held<W> &h, int64_t i)
    {
        float g[W], si[HELD][W], wi[W];
        if constexpr (sizeof(G) == 2) {
            from_half<W>(g, h.g, is_f16);
        } else {
            h.g.get(g);
        }
#pragma unroll
        for (int s = 0; s < STATES; s++) {
            h.state[s].get(si[s]);
        }
        if (low) {
            pack<uint16_t, W> half;
            memcpy(&half, &h.w, sizeof half);
            from_half<W>(wi, half, is_f16);
        } else {
            h.w.get(wi);
        }
#pragma unroll
        for (int k = 0; k < W; k++) {
            float own[HELD];
#pragma unroll
            for (int s = 0; s < STATES; s++) {
                own[s] = si[s][k];
            }
            float x = g[k] * factor;
            x = x > limit ? limit : x < -limit ? -limit : x;
            wi[k] = rule.step(wi[k], x, own, decay);
            uint32_t random = counter + (uint32_t)(i + k);
            if (HALF) {
                DT_SCRAMBLE(random);
            }
#pragma unroll
            for (int s = 0; s < STATES; s++) {
                if (HALF && s == 2) {
                    DT_SCRAMBLE(random);
                }
                si[s][k] = HALF ? stochastic(own[s], random >> 16 * (s % 2) & 0xffff) : own[s];
            }
        }
#pragma unroll
        for (int s = 0; s < STATES; s++) {
            h.state[s].set(si[s]);
            h.state[s].store(state[s] + i);
        }
        if (R::DIRECTION) {
            if constexpr (sizeof(G) == 2) {
                put_low<W>((uint16_t *)grad + i, wi);
            } else {
                h.g.set(wi);
                h.g.store((G *)grad + i);
            }
            return;
        }
        if (low) {
            put_low<W>((uint16_t *)w + i, wi);
        } else {
            h.w.set(wi);
            h.w.store((float *)w + i);
        }
        if (copy != NULL) {
            put_low<W>(copy + i, wi);
        }
    }
};

template <typename R, typename G, typename S>
update<R, G, S> update_of(const struct dt_update_args *a, const struct dt_update_slice *x)
{
    update<R, G, S> f;
    memset((void *)&f, 0, sizeof f);
    f.w = x->w;
    for (int s = 0; s < f.STATES; s++) {
        f.state[s] = (S *)x->state[s];
    }
    f.copy = (uint16_t *)x->w_low;
    f.low = dt_dtype_half(a->type);
    f.is_f16 = (f.low ? a->type : dt_dtype_half(a->grad_type) ? a->grad_type : a->low_type) == DT_F16;
    f.grad = (const G *)x->grad;
    f.clip = a->clip;
    f.skip = a->skip;
    f.grad_scale = a->grad_scale;
    f.limit = a->clip_value > 0 ? (float)a->clip_value : INFINITY;
    set(&f.rule, a);
    f.decay = R::decay_of(a, x->weight_decay);
    f.counter = f.HALF ? dt_stochastic_counter(a->seed, a->step, x->unit, x->first) : 0;
    return f;
}

template <typename R, typename G, typename S> bool aligned(const update<R, G, S> &f)
{
    bool all = aligned16(f.w) && aligned16(f.grad) && aligned16(f.copy);
    for (int s = 0; s < f.STATES; s++) {
        all = all && aligned16(f.state[s]);
    }
    return all;
}

template <typename R, typename G, typename S>
void run_one(const struct dt_cuda_launch *l, const struct dt_update_args *a, const struct dt_update_slice *x)
{
    update<R, G, S> f = update_of<R, G, S>(a, x);
    launch_elements<4, 2>(l, f, x->count, aligned(f));
}

/* ---- many slices, one launch ---- */

/* Slices that follow each other in all their buffers (and in their unit, where that counts) are
 * one run, cut where weight decay changes. The tables fit into the 4 KB of arguments that every
 * device takes: 36 layers in one launch; what is more goes by a further one. */
enum { TILE = 256 * 4 * 2 };

template <typename F> struct run {
    decltype(F::w) w;
    decltype(F::state) state;
    decltype(F::copy) copy;
    decltype(F::grad) grad;
    uint16_t first_cut, tail; /* tail: elements after the last whole group */
    uint32_t first_tile;
};
template <typename F> struct runs {
    enum { RUNS = F::STATES > 2 ? 32 : 40, HALF = F::HALF, CUTS = HALF ? 466 : 476 };
    run<F> all[RUNS];
    uint32_t counters[HALF ? RUNS : 1]; /* of the runs' first elements */
    uint32_t ends[CUTS];                /* of the slices, in groups of four elements from their
                                         * run's start; the top bit: with the second of the two
                                         * decays */
    int run_count, cut_count;
    uint32_t tile_count;
    float decay[2];
};
template <typename F> constexpr bool fits = sizeof(runs<F>) + sizeof(F) <= 4096;
static_assert(fits<update<adamw<2>, float, float>> && fits<update<adamw<3>, float, float>> &&
                  fits<update<adamw<2>, float, bf16>> && fits<update<adamw<3>, float, bf16>>,
              "arguments of a kernel");

/* The last of `all` whose first_tile is not beyond `tile`. */
template <typename F> DT_FN int run_of(const runs<F> &r, uint32_t tile)
{
    int low = 0, high = r.run_count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (r.all[middle].first_tile <= tile) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/* The first slice of [low, high] whose end lies beyond `group`. */
template <typename F> DT_FN int cut_of(const runs<F> &r, int low, int high, uint32_t group)
{
    while (low < high) {
        int middle = (low + high) / 2;
        if ((r.ends[middle] & INT32_MAX) > group) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

template <typename F> __global__ void __launch_bounds__(256) update_runs(F f, runs<F> r)
{
    if (!f.begin()) {
        return;
    }
    for (uint32_t tile = blockIdx.x; tile < r.tile_count; tile += gridDim.x) {
        int at = run_of(r, tile), low = r.all[at].first_cut,
            high = (at + 1 < r.run_count ? r.all[at + 1].first_cut : r.cut_count) - 1;
        uint32_t groups = r.ends[high] & INT32_MAX, group = (tile - r.all[at].first_tile) * (TILE / 4) + threadIdx.x;
        f.w = r.all[at].w;
#pragma unroll
        for (int s = 0; s < F::STATES; s++) {
            f.state[s] = r.all[at].state[s];
        }
        f.copy = r.all[at].copy;
        f.grad = r.all[at].grad;
        f.counter = r.counters[f.HALF ? at : 0];
        typename F::template held<4> h[2];
#pragma unroll
        for (uint32_t u = 0; u < 2; u++) {
            if (group + u * 256 < groups) {
                f.template load<4>(h[u], (int64_t)(group + u * 256) * 4);
            }
        }
#pragma unroll
        for (uint32_t u = 0; u < 2; u++) {
            if (group + u * 256 < groups) {
                f.decay = r.decay[r.ends[cut_of(r, low, high, group + u * 256)] >> 31];
                f.template finish<4>(h[u], (int64_t)(group + u * 256) * 4);
            }
        }
        if (tile - r.all[at].first_tile == groups / (TILE / 4) && threadIdx.x < r.all[at].tail) {
            typename F::template held<1> last;
            int64_t i = (int64_t)groups * 4 + threadIdx.x;
            f.decay = r.decay[r.ends[high] >> 31];
            f.template load<1>(last, i);
            f.template finish<1>(last, i);
        }
    }
}

template <typename F> void put_runs(const struct dt_cuda_launch *l, const F &f, runs<F> *r)
{
    if (r->tile_count > 0) {
        DT_LAUNCH((update_runs<F>), walkers(l, r->tile_count, 64), 256, 0, (cudaStream_t)l->native, f, *r);
    }
    r->run_count = r->cut_count = 0;
    r->tile_count = 0;
}

/* Does f go on, in all its buffers, `before` elements after the start of the last run? */
template <typename F> bool follows_in(const runs<F> *r, const F &f, int64_t before)
{
    const run<F> *last = &r->all[r->run_count - 1];
    bool follows = last->tail == 0 && (char *)f.w == (char *)last->w + before * (f.low ? 2 : 4) &&
                   f.grad == last->grad + before &&
                   (f.copy == NULL ? last->copy == NULL : f.copy == last->copy + before) &&
                   (!f.HALF || f.counter == r->counters[r->run_count - 1] + (uint32_t)before);
    for (int s = 0; s < F::STATES; s++) {
        follows = follows && f.state[s] == last->state[s] + before;
    }
    return follows;
}

/* Adds a slice to the tables; false when it does not fit any more. */
template <typename F> bool add_slice(runs<F> *r, const F &f, int64_t count)
{
    int64_t before = r->run_count > 0 ? (int64_t)(r->ends[r->cut_count - 1] & INT32_MAX) * 4 : 0;
    bool follows = r->run_count > 0 && follows_in(r, f, before);
    before = follows ? before : 0;
    int decay = r->cut_count == 0 || f.decay == r->decay[0] ? 0 : 1;
    bool second = false;
    for (int i = 0; i < r->cut_count; i++) {
        second = second || r->ends[i] >> 31 != 0;
    }
    if (r->cut_count == r->CUTS || (!follows && r->run_count == r->RUNS) || before + count > INT32_MAX ||
        (decay == 1 && second && f.decay != r->decay[1])) {
        return false;
    }
    if (!follows) {
        run<F> *next = &r->all[r->run_count];
        r->counters[f.HALF ? r->run_count : 0] = f.counter;
        next->w = f.w;
        memcpy(next->state, f.state, sizeof f.state);
        next->copy = f.copy;
        next->grad = f.grad;
        next->first_cut = (uint16_t)r->cut_count;
        next->first_tile = r->tile_count;
        r->run_count++;
    }
    run<F> *last = &r->all[r->run_count - 1];
    last->tail = (uint16_t)(count % 4);
    r->decay[decay] = f.decay;
    r->ends[r->cut_count++] = (uint32_t)((before + count) / 4) | (uint32_t)decay << 31;
    r->tile_count = last->first_tile + (uint32_t)parts_of(before + count, TILE);
    return true;
}

/* The slices in as few launches as they allow, or one. */
template <typename R, typename G, typename S>
void run_all(const struct dt_cuda_launch *l, const struct dt_update_args *a)
{
    if (a->slice_count == 1) {
        run_one<R, G, S>(l, a, a->slices);
        return;
    }
    update<R, G, S> same = update_of<R, G, S>(a, a->slices);
    runs<update<R, G, S>> r;
    memset((void *)&r, 0, sizeof r);
    for (int i = 0; i < a->slice_count; i++) {
        const struct dt_update_slice *x = &a->slices[i];
        update<R, G, S> f = update_of<R, G, S>(a, x);
        if (x->count <= 0) {
            continue;
        }
        bool added = aligned(f) && add_slice(&r, f, x->count);
        if (!added && aligned(f)) {
            put_runs(l, same, &r);
            added = add_slice(&r, f, x->count);
        }
        if (!added) {
            run_one<R, G, S>(l, a, x);
        }
    }
    put_runs(l, same, &r);
}

/* No mixture of BF16 and F16 in weights, copies and gradients. */
bool types_fit(const struct dt_update_args *a)
{
    bool low = dt_dtype_half(a->type), half = dt_dtype_half(a->grad_type);
    return (a->type == DT_F32 || low) && (a->grad_type == DT_F32 || half) &&
           (!low || !half || a->grad_type == a->type) && (a->state_type == DT_F32 || a->state_type == DT_BF16);
}

template <typename R> void run_rule(struct dt_stream *s, const struct dt_update_args *a, const char *what)
{
    struct dt_cuda_launch l;
    if (a->slice_count <= 0 || !dt_cuda_begin(s, &l)) {
        return;
    }
    bool half = a->grad_type != DT_F32, half_state = a->state_type == DT_BF16 && R::STATES > 0;
    if (!types_fit(a)) {
        dt_stream_fail(s, DT_INTERNAL, "%s: types %s, %s, %s are not made", what, dt_dtype_name(a->type),
                       dt_dtype_name(a->grad_type), dt_dtype_name(a->state_type));
    } else if (half_state) {
        half ? run_all<R, uint16_t, bf16>(&l, a) : run_all<R, float, bf16>(&l, a);
    } else {
        half ? run_all<R, uint16_t, float>(&l, a) : run_all<R, float, float>(&l, a);
    }
    dt_cuda_end(s, what);
}

bool third_state(const struct dt_update_args *a)
{
    return a->slice_count > 0 && a->slices[0].state[2] != NULL;
}

} // namespace

extern "C" void dt_cuda_adamw_many(struct dt_stream *s, const struct dt_update_args *a)
{
    third_state(a) ? run_rule<adamw<3>>(s, a, "adamw") : run_rule<adamw<2>>(s, a, "adamw");
}

extern "C" void dt_cuda_adam_many(struct dt_stream *s, const struct dt_update_args *a)
{
    third_state(a) ? run_rule<adam<3>>(s, a, "adam") : run_rule<adam<2>>(s, a, "adam");
}

extern "C" void dt_cuda_sgd_many(struct dt_stream *s, const struct dt_update_args *a)
{
    if (a->slice_count > 0 && a->slices[0].state[0] != NULL) {
        run_rule<sgd<1>>(s, a, "sgd");
    } else {
        run_rule<sgd<0>>(s, a, "sgd");
    }
}

extern "C" void dt_cuda_lion_many(struct dt_stream *s, const struct dt_update_args *a)
{
    run_rule<lion>(s, a, "lion");
}

extern "C" void dt_cuda_adagrad_many(struct dt_stream *s, const struct dt_update_args *a)
{
    run_rule<adagrad>(s, a, "adagrad");
}

extern "C" void dt_cuda_lamb_many(struct dt_stream *s, const struct dt_update_args *a)
{
    run_rule<lamb>(s, a, "lamb");
}

extern "C" void dt_cuda_muon_many(struct dt_stream *s, const struct dt_update_args *a)
{
    run_rule<muon>(s, a, "muon");
}
