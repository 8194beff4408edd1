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

template <typename G> void run_adamw(const struct dt_cuda_launch *l, const struct dt_adamw_args *a)
{
    double step = (double)a->step;
    adamw<G> f = {(float *)a->w, (float *)a->m, (float *)a->v, (bf16 *)a->w_bf16, (const G *)a->grad, a->clip, a->grad_scale, 0, 0, 0, 0, 0, 0, 0};
    f.beta1 = (float)a->beta1;
    f.beta2 = (float)a->beta2;
    f.keep = (float)(1.0 - a->lr * a->weight_decay);
    f.rate = (float)(-a->lr / (1.0 - pow(a->beta1, step)));
    f.correction2 = (float)(1.0 / sqrt(1.0 - pow(a->beta2, step)));
    f.eps = (float)a->eps;
    bool aligned = aligned16(f.w) && aligned16(f.m) && aligned16(f.v) && aligned16(f.grad) && aligned16(f.copy);
    launch_elements<4, 2>(l, f, a->count, aligned);
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
