/* AdamW and SGD over slices: one pass over weights, state and gradient, with the clip factor
 * read from device memory and the BF16 copy written alongside. The operations are those of the
 * CPU, one by one, so the weights have its bits, and so have moments that are rounded
 * stochastically. */
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

/* G: type of the gradient; S: of the moments. */
template <typename G, typename S> struct adamw {
    float *w;
    S *m, *v;
    bf16 *copy;
    const G *grad;
    const double *clip;
    double grad_scale;
    float beta1, beta2, keep, rate, correction2, eps;
    float factor;
    uint32_t counter; /* of the first element, where moments are rounded stochastically */
    enum { HALF = sizeof(S) < sizeof(float) };
    template <int W> struct held {
        pack<float, W> w;
        pack<S, W> m, v;
        pack<G, W> g;
    };

    DT_METHOD bool begin()
    {
        factor = (float)(grad_scale * (clip != NULL ? *clip : 1.0));
        return true;
    }
    template <int W> DT_METHOD void load(held<W> &h, int64_t i)
    {
        h.g.load(grad + i);
        h.m.load(m + i);
        h.v.load(v + i);
        h.w.load(w + i);
    }
    template <int W> DT_METHOD void finish(held<W> &h, int64_t i)
    {
        float g[W], mi[W], vi[W], wi[W];
        h.g.get(g);
        h.m.get(mi);
        h.v.get(vi);
        h.w.get(wi);
#pragma unroll
        for (int k = 0; k < W; k++) {
            float x = g[k] * factor;
            mi[k] = fmaf(mi[k] - x, beta1, x); /* beta1 m + (1 - beta1) g */
            vi[k] = fmaf(vi[k], beta2, x * x * (1.0F - beta2));
            float step = mi[k] / fmaf(sqrtf(vi[k]), correction2, eps);
            wi[k] = fmaf(step, rate, wi[k] * keep);
            if (HALF) {
                uint32_t random = counter + (uint32_t)(i + k);
                DT_SCRAMBLE(random);
                mi[k] = stochastic(mi[k], random & 0xffff);
                vi[k] = stochastic(vi[k], random >> 16);
            }
        }
        h.m.set(mi);
        h.v.set(vi);
        h.w.set(wi);
        h.m.store(m + i);
        h.v.store(v + i);
        h.w.store(w + i);
        if (copy != NULL) {
            pack<bf16, W> c;
            c.set(wi);
            c.store(copy + i);
        }
    }
};

template <typename G> struct sgd {
    float *w, *buffer;
    bf16 *copy;
    const G *grad;
    const double *clip;
    double grad_scale;
    float decay, momentum, rate;
    bool first, nesterov;
    float factor;
    template <int W> struct held {
        pack<float, W> w, b;
        pack<G, W> g;
    };

    DT_METHOD bool begin()
    {
        factor = (float)(grad_scale * (clip != NULL ? *clip : 1.0));
        return true;
    }
    template <int W> DT_METHOD void load(held<W> &h, int64_t i)
    {
        h.g.load(grad + i);
        h.w.load(w + i);
        h.b.clear();
        if (buffer != NULL && !first) {
            h.b.load(buffer + i);
        }
    }
    template <int W> DT_METHOD void finish(held<W> &h, int64_t i)
    {
        float g[W], bi[W], wi[W];
        h.g.get(g);
        h.b.get(bi);
        h.w.get(wi);
#pragma unroll
        for (int k = 0; k < W; k++) {
            float x = fmaf(wi[k], decay, g[k] * factor);
            if (buffer != NULL) {
                bi[k] = first ? x : fmaf(bi[k], momentum, x);
                x = nesterov ? fmaf(bi[k], momentum, x) : bi[k];
            }
            wi[k] = fmaf(x, rate, wi[k]);
        }
        if (buffer != NULL) {
            h.b.set(bi);
            h.b.store(buffer + i);
        }
        h.w.set(wi);
        h.w.store(w + i);
        if (copy != NULL) {
            pack<bf16, W> c;
            c.set(wi);
            c.store(copy + i);
        }
    }
};

template <typename G, typename S> adamw<G, S> adamw_of(const struct dt_adamw_args *a)
{
    double step = (double)a->step;
    adamw<G, S> f = {(float *)a->w,
                     (S *)a->m,
                     (S *)a->v,
                     (bf16 *)a->w_bf16,
                     (const G *)a->grad,
                     a->clip,
                     a->grad_scale,
                     0,
                     0,
                     0,
                     0,
                     0,
                     0,
                     0,
                     0};
    f.beta1 = (float)a->beta1;
    f.beta2 = (float)a->beta2;
    f.keep = (float)(1.0 - a->lr * a->weight_decay);
    f.rate = (float)(-a->lr / (1.0 - pow(a->beta1, step)));
    f.correction2 = (float)(1.0 / sqrt(1.0 - pow(a->beta2, step)));
    f.eps = (float)a->eps;
    f.counter = f.HALF ? dt_stochastic_counter(a->seed, a->step, a->unit, a->first) : 0;
    return f;
}

template <typename G, typename S> bool aligned(const adamw<G, S> &f)
{
    return aligned16(f.w) && aligned16(f.m) && aligned16(f.v) && aligned16(f.grad) && aligned16(f.copy);
}

template <typename G, typename S> void run_adamw(const struct dt_cuda_launch *l, const struct dt_adamw_args *a)
{
    adamw<G, S> f = adamw_of<G, S>(a);
    launch_elements<4, 2>(l, f, a->count, aligned(f));
}

/* ---- many slices, one launch ---- */

/* Slices that follow each other in all their buffers (and in their unit, where that counts) are
 * one run, cut where weight decay changes. The tables fit into the 4 KB of arguments that every
 * device takes: 36 layers in one launch; what is more goes by a further one. */
enum { TILE = 256 * 4 * 2 };

template <typename G, typename S> struct run {
    float *w;
    S *m, *v;
    bf16 *copy;
    const G *grad;
    uint16_t first_cut, tail; /* tail: elements after the last whole group */
    uint32_t first_tile;
};
template <typename G, typename S> struct runs {
    enum { RUNS = 40, HALF = adamw<G, S>::HALF, CUTS = HALF ? 470 : 480 };
    run<G, S> all[RUNS];
    uint32_t counters[HALF ? RUNS : 1]; /* of the runs' first elements */
    uint32_t ends[CUTS];                /* of the slices, in groups of four elements from their
                                         * run's start; the top bit: with the second of the two
                                         * factors */
    int run_count, cut_count;
    uint32_t tile_count;
    float keep[2];
};
static_assert(sizeof(runs<float, float>) + sizeof(adamw<float, float>) <= 4096, "arguments of a kernel");
static_assert(sizeof(runs<float, bf16>) + sizeof(adamw<float, bf16>) <= 4096, "arguments of a kernel");

/* The last of `all` whose first_tile is not beyond `tile`. */
template <typename G, typename S> DT_FN int run_of(const runs<G, S> &r, uint32_t tile)
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
template <typename G, typename S> DT_FN int cut_of(const runs<G, S> &r, int low, int high, uint32_t group)
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

template <typename G, typename S> __global__ void __launch_bounds__(256) adamw_runs(adamw<G, S> f, runs<G, S> r)
{
    (void)f.begin();
    for (uint32_t tile = blockIdx.x; tile < r.tile_count; tile += gridDim.x) {
        int at = run_of(r, tile), low = r.all[at].first_cut,
            high = (at + 1 < r.run_count ? r.all[at + 1].first_cut : r.cut_count) - 1;
        uint32_t groups = r.ends[high] & INT32_MAX, group = (tile - r.all[at].first_tile) * (TILE / 4) + threadIdx.x;
        f.w = r.all[at].w;
        f.m = r.all[at].m;
        f.v = r.all[at].v;
        f.copy = r.all[at].copy;
        f.grad = r.all[at].grad;
        f.counter = r.counters[f.HALF ? at : 0];
        typename adamw<G, S>::template held<4> h[2];
#pragma unroll
        for (uint32_t u = 0; u < 2; u++) {
            if (group + u * 256 < groups) {
                f.template load<4>(h[u], (int64_t)(group + u * 256) * 4);
            }
        }
#pragma unroll
        for (uint32_t u = 0; u < 2; u++) {
            if (group + u * 256 < groups) {
                f.keep = r.keep[r.ends[cut_of(r, low, high, group + u * 256)] >> 31];
                f.template finish<4>(h[u], (int64_t)(group + u * 256) * 4);
            }
        }
        if (tile - r.all[at].first_tile == groups / (TILE / 4) && threadIdx.x < r.all[at].tail) {
            typename adamw<G, S>::template held<1> last;
            int64_t i = (int64_t)groups * 4 + threadIdx.x;
            f.keep = r.keep[r.ends[high] >> 31];
            f.template load<1>(last, i);
            f.template finish<1>(last, i);
        }
    }
}

template <typename G, typename S> void put_runs(const struct dt_cuda_launch *l, const adamw<G, S> &f, runs<G, S> *r)
{
    if (r->tile_count > 0) {
        DT_LAUNCH((adamw_runs<G, S>), walkers(l, r->tile_count, 64), 256, 0, (cudaStream_t)l->native, f, *r);
    }
    r->run_count = r->cut_count = 0;
    r->tile_count = 0;
}

/* Adds a slice to the tables; false when it does not fit any more. */
template <typename G, typename S> bool add_slice(runs<G, S> *r, const adamw<G, S> &f, int64_t count)
{
    run<G, S> *last = r->run_count > 0 ? &r->all[r->run_count - 1] : NULL;
    int64_t before = last != NULL ? (int64_t)(r->ends[r->cut_count - 1] & INT32_MAX) * 4 : 0;
    bool follows = last != NULL && last->tail == 0 && f.w == last->w + before && f.m == last->m + before &&
                   f.v == last->v + before && f.grad == last->grad + before &&
                   (f.copy == NULL ? last->copy == NULL : f.copy == last->copy + before) &&
                   (!f.HALF || f.counter == r->counters[r->run_count - 1] + (uint32_t)before);
    before = follows ? before : 0;
    int factor = r->cut_count == 0 || f.keep == r->keep[0] ? 0 : 1;
    bool second = false;
    for (int i = 0; i < r->cut_count; i++) {
        second = second || r->ends[i] >> 31 != 0;
    }
    if (r->cut_count == r->CUTS || (!follows && r->run_count == r->RUNS) || before + count > INT32_MAX ||
        (factor == 1 && second && f.keep != r->keep[1])) {
        return false;
    }
    if (!follows) {
        r->counters[f.HALF ? r->run_count : 0] = f.counter;
        r->all[r->run_count++] = {f.w, f.m, f.v, f.copy, f.grad, (uint16_t)r->cut_count, 0, r->tile_count};
    }
    last = &r->all[r->run_count - 1];
    last->tail = (uint16_t)(count % 4);
    r->keep[factor] = f.keep;
    r->ends[r->cut_count++] = (uint32_t)((before + count) / 4) | (uint32_t)factor << 31;
    r->tile_count = last->first_tile + (uint32_t)parts_of(before + count, TILE);
    return true;
}

template <typename G, typename S>
void run_many(const struct dt_cuda_launch *l, const struct dt_adamw_args *each, int count)
{
    adamw<G, S> same = adamw_of<G, S>(each);
    runs<G, S> r;
    memset(&r, 0, sizeof r);
    for (int i = 0; i < count; i++) {
        adamw<G, S> f = adamw_of<G, S>(&each[i]);
        if (each[i].count <= 0) {
            continue;
        }
        bool added = aligned(f) && add_slice(&r, f, each[i].count);
        if (!added && aligned(f)) {
            put_runs(l, same, &r);
            added = add_slice(&r, f, each[i].count);
        }
        if (!added) {
            run_adamw<G, S>(l, &each[i]);
        }
    }
    put_runs(l, same, &r);
}

/* `count` calls in as few launches as they allow, or one. */
template <typename G> void run_typed(const struct dt_cuda_launch *l, const struct dt_adamw_args *each, int count)
{
    if (each->moment_type == DT_BF16) {
        count == 1 ? run_adamw<G, bf16>(l, each) : run_many<G, bf16>(l, each, count);
    } else {
        count == 1 ? run_adamw<G, float>(l, each) : run_many<G, float>(l, each, count);
    }
}

template <typename G> void run_sgd(const struct dt_cuda_launch *l, const struct dt_sgd_args *a)
{
    sgd<G> f = {(float *)a->w,
                (float *)a->momentum_buffer,
                (bf16 *)a->w_bf16,
                (const G *)a->grad,
                a->clip,
                a->grad_scale,
                (float)a->weight_decay,
                (float)a->momentum,
                (float)-a->lr,
                a->step == 1,
                a->nesterov,
                0};
    bool aligned = aligned16(f.w) && aligned16(f.buffer) && aligned16(f.grad) && aligned16(f.copy);
    launch_elements<4, 2>(l, f, a->count, aligned);
}

} // namespace

extern "C" void dt_cuda_adamw_many(struct dt_stream *s, const struct dt_adamw_many_args *a)
{
    struct dt_cuda_launch l;
    const struct dt_adamw_args *each = a->each;
    if (a->count <= 0 || !dt_cuda_begin(s, &l)) {
        return;
    }
    bool made = each->type == DT_F32 && (each->moment_type == DT_F32 || each->moment_type == DT_BF16);
    if (made && each->grad_type == DT_F32) {
        run_typed<float>(&l, each, a->count);
    } else if (made && each->grad_type == DT_BF16) {
        run_typed<bf16>(&l, each, a->count);
    } else {
        dt_stream_fail(s, DT_INTERNAL, "adamw: types %s, %s, %s are not made", dt_dtype_name(each->type),
                       dt_dtype_name(each->grad_type), dt_dtype_name(each->moment_type));
    }
    dt_cuda_end(s, "adamw");
}

extern "C" void dt_cuda_adamw(struct dt_stream *s, const struct dt_adamw_args *a)
{
    const struct dt_adamw_many_args one = {a, 1};
    dt_cuda_adamw_many(s, &one);
}

extern "C" void dt_cuda_sgd(struct dt_stream *s, const struct dt_sgd_args *a)
{
    struct dt_cuda_launch l;
    if (!dt_cuda_begin(s, &l)) {
        return;
    }
    if (a->type == DT_F32 && a->grad_type == DT_F32) {
        run_sgd<float>(&l, a);
    } else if (a->type == DT_F32 && a->grad_type == DT_BF16) {
        run_sgd<bf16>(&l, a);
    } else {
        dt_stream_fail(s, DT_INTERNAL, "sgd: types %s, %s are not made", dt_dtype_name(a->type),
                       dt_dtype_name(a->grad_type));
    }
    dt_cuda_end(s, "sgd");
}
