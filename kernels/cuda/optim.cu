/* AdamW and SGD over slices: one pass over weights, state and gradient, with the clip factor read from device memory and the BF16 copy written
 * alongside. The operations are those of the CPU, one by one, so the weights have its bits. */
#include "kernels/cuda/vector.cuh"

namespace
{

template <typename G> struct adamw {
    float *w, *m, *v;
    bf16 *copy;
    const G *grad;
    const double *clip;
    double grad_scale;
    float beta1, beta2, keep, rate, correction2, eps;
    float factor;
    template <int W> struct held {
        pack<float, W> w, m, v;
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

template <typename G> adamw<G> adamw_of(const struct dt_adamw_args *a)
{
    double step = (double)a->step;
    adamw<G> f = {(float *)a->w, (float *)a->m, (float *)a->v, (bf16 *)a->w_bf16, (const G *)a->grad, a->clip, a->grad_scale, 0, 0, 0, 0, 0, 0, 0};
    f.beta1 = (float)a->beta1;
    f.beta2 = (float)a->beta2;
    f.keep = (float)(1.0 - a->lr * a->weight_decay);
    f.rate = (float)(-a->lr / (1.0 - pow(a->beta1, step)));
    f.correction2 = (float)(1.0 / sqrt(1.0 - pow(a->beta2, step)));
    f.eps = (float)a->eps;
    return f;
}

template <typename G> bool aligned(const adamw<G> &f)
{
    return aligned16(f.w) && aligned16(f.m) && aligned16(f.v) && aligned16(f.grad) && aligned16(f.copy);
}

template <typename G> void run_adamw(const struct dt_cuda_launch *l, const struct dt_adamw_args *a)
{
    adamw<G> f = adamw_of<G>(a);
    launch_elements<4, 2>(l, f, a->count, aligned(f));
}

/* ---- many slices, one launch ---- */

/* Slices that follow each other in all their buffers are one run (those of a unit are), cut where weight decay changes. Both tables fit into the 4 KB of
 * arguments that every device takes: 36 layers in one launch; what is more goes by a further one. */
enum { RUNS = 40, CUTS = 480, TILE = 256 * 4 * 2 };

template <typename G> struct run {
    float *w, *m, *v;
    bf16 *copy;
    const G *grad;
    uint16_t first_cut, tail; /* tail: elements after the last whole group */
    uint32_t first_tile;
};
template <typename G> struct runs {
    run<G> all[RUNS];
    uint32_t ends[CUTS]; /* of the slices, in groups of four elements from their run's start; the top bit: with the second of the two factors */
    int run_count, cut_count;
    uint32_t tile_count;
    float keep[2];
};
static_assert(sizeof(runs<float>) + sizeof(adamw<float>) <= 4096, "arguments of a kernel");

/* The last of `all` whose first_tile is not beyond `tile`. */
template <typename G> DT_FN int run_of(const runs<G> &r, uint32_t tile)
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
template <typename G> DT_FN int cut_of(const runs<G> &r, int low, int high, uint32_t group)
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

template <typename G> __global__ void __launch_bounds__(256) adamw_runs(adamw<G> f, runs<G> r)
{
    (void)f.begin();
    for (uint32_t tile = blockIdx.x; tile < r.tile_count; tile += gridDim.x) {
        int at = run_of(r, tile), low = r.all[at].first_cut, high = (at + 1 < r.run_count ? r.all[at + 1].first_cut : r.cut_count) - 1;
        uint32_t groups = r.ends[high] & INT32_MAX, group = (tile - r.all[at].first_tile) * (TILE / 4) + threadIdx.x;
        f.w = r.all[at].w;
        f.m = r.all[at].m;
        f.v = r.all[at].v;
        f.copy = r.all[at].copy;
        f.grad = r.all[at].grad;
        typename adamw<G>::template held<4> h[2];
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
            typename adamw<G>::template held<1> last;
            int64_t i = (int64_t)groups * 4 + threadIdx.x;
            f.keep = r.keep[r.ends[high] >> 31];
            f.template load<1>(last, i);
            f.template finish<1>(last, i);
        }
    }
}

template <typename G> void put_runs(const struct dt_cuda_launch *l, const adamw<G> &f, runs<G> *r)
{
    if (r->tile_count > 0) {
        DT_LAUNCH((adamw_runs<G>), walkers(l, r->tile_count, 64), 256, 0, (cudaStream_t)l->native, f, *r);
    }
    r->run_count = r->cut_count = 0;
    r->tile_count = 0;
}

/* Adds a slice to the tables; false when it does not fit any more. */
template <typename G> bool add_slice(runs<G> *r, const adamw<G> &f, int64_t count)
{
    run<G> *last = r->run_count > 0 ? &r->all[r->run_count - 1] : NULL;
    int64_t before = last != NULL ? (int64_t)(r->ends[r->cut_count - 1] & INT32_MAX) * 4 : 0;
    bool follows = last != NULL && last->tail == 0 && f.w == last->w + before && f.m == last->m + before && f.v == last->v + before &&
                   f.grad == last->grad + before && (f.copy == NULL ? last->copy == NULL : f.copy == last->copy + before);
    before = follows ? before : 0;
    int factor = r->cut_count == 0 || f.keep == r->keep[0] ? 0 : 1;
    bool second = false;
    for (int i = 0; i < r->cut_count; i++) {
        second = second || r->ends[i] >> 31 != 0;
    }
    if (r->cut_count == CUTS || (!follows && r->run_count == RUNS) || before + count > INT32_MAX || (factor == 1 && second && f.keep != r->keep[1])) {
        return false;
    }
    if (!follows) {
        r->all[r->run_count++] = {f.w, f.m, f.v, f.copy, f.grad, (uint16_t)r->cut_count, 0, r->tile_count};
    }
    last = &r->all[r->run_count - 1];
    last->tail = (uint16_t)(count % 4);
    r->keep[factor] = f.keep;
    r->ends[r->cut_count++] = (uint32_t)((before + count) / 4) | (uint32_t)factor << 31;
    r->tile_count = last->first_tile + (uint32_t)parts_of(before + count, TILE);
    return true;
}

template <typename G> void run_many(const struct dt_cuda_launch *l, const struct dt_adamw_args *each, int count)
{
    adamw<G> same = adamw_of<G>(each);
    runs<G> r;
    memset(&r, 0, sizeof r);
    for (int i = 0; i < count; i++) {
        adamw<G> f = adamw_of<G>(&each[i]);
        if (each[i].count <= 0) {
            continue;
        }
        bool added = aligned(f) && add_slice(&r, f, each[i].count);
        if (!added && aligned(f)) {
            put_runs(l, same, &r);
            added = add_slice(&r, f, each[i].count);
        }
        if (!added) {
            run_adamw<G>(l, &each[i]);
        }
    }
    put_runs(l, same, &r);
}

template <typename G> void run_sgd(const struct dt_cuda_launch *l, const struct dt_sgd_args *a)
{
    sgd<G> f = {(float *)a->w,          (float *)a->momentum_buffer, (bf16 *)a->w_bf16, (const G *)a->grad, a->clip,     a->grad_scale,
                (float)a->weight_decay, (float)a->momentum,          (float)-a->lr,     a->step == 1,       a->nesterov, 0};
    bool aligned = aligned16(f.w) && aligned16(f.buffer) && aligned16(f.grad) && aligned16(f.copy);
    launch_elements<4, 2>(l, f, a->count, aligned);
}

} // namespace

extern "C" void dt_cuda_adamw(struct dt_stream *s, const struct dt_adamw_args *a)
{
    struct dt_cuda_launch l;
    if (!dt_cuda_begin(s, &l)) {
        return;
    }
    if (a->type == DT_F32 && a->grad_type == DT_F32) {
        run_adamw<float>(&l, a);
    } else if (a->type == DT_F32 && a->grad_type == DT_BF16) {
        run_adamw<bf16>(&l, a);
    } else {
        dt_stream_fail(s, DT_INTERNAL, "adamw: types %s, %s are not made", dt_dtype_name(a->type), dt_dtype_name(a->grad_type));
    }
    dt_cuda_end(s, "adamw");
}

extern "C" void dt_cuda_adamw_many(struct dt_stream *s, const struct dt_adamw_args *each, int count)
{
    struct dt_cuda_launch l;
    if (count <= 0 || !dt_cuda_begin(s, &l)) {
        return;
    }
    if (each->type == DT_F32 && each->grad_type == DT_F32) {
        run_many<float>(&l, each, count);
    } else if (each->type == DT_F32 && each->grad_type == DT_BF16) {
        run_many<bf16>(&l, each, count);
    } else {
        dt_stream_fail(s, DT_INVALID, "adamw: types %s, %s are not made", dt_dtype_name(each->type), dt_dtype_name(each->grad_type));
    }
    dt_cuda_end(s, "adamw");
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
        dt_stream_fail(s, DT_INTERNAL, "sgd: types %s, %s are not made", dt_dtype_name(a->type), dt_dtype_name(a->grad_type));
    }
    dt_cuda_end(s, "sgd");
}
