/* fill, cast, scale, add. Memory bounds their speed. The bits are those of the CPU, but for the
 * payload of a nan. */
#include "kernels/cuda/vector.cuh"

namespace
{

/* ---- fill ---- */

template <typename T> struct filling {
    T *x;
    T value;
    template <int W> struct held {
    };

    DT_METHOD bool begin()
    {
        return true;
    }
    template <int W> DT_METHOD void load(held<W> &, int64_t)
    {
    }
    template <int W> DT_METHOD void finish(held<W> &, int64_t i)
    {
        pack<T, W> p;
        T t[W];
#pragma unroll
        for (int k = 0; k < W; k++) {
            t[k] = value;
        }
        memcpy(p.c, t, sizeof t);
        p.store(x + i);
    }
};

template <typename T> void fill(const struct dt_cuda_launch *l, const struct dt_fill_args *a, T value)
{
    filling<T> f = {(T *)a->x, value};
    launch_elements<16 / (int)sizeof(T), 4>(l, f, a->count, aligned16(a->x));
}

/* ---- cast ---- */

/* Rounds to odd: a second rounding to fewer than 22 bits then gives what one rounding of x
 * would. */
DT_FN float narrow_to_odd(double x)
{
    float f = (float)x;
    if ((double)f != x && fabsf(f) <= 3.402823466e38F) {
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        if (fabs((double)f) > fabs(x)) {
            bits--; /* toward zero */
        }
        bits |= 1;
        memcpy(&f, &bits, sizeof f);
    }
    return f;
}

template <typename T> DT_FN T number(T x)
{
    return x;
}
DT_FN float number(bf16 x)
{
    return __bfloat162float(x);
}
DT_FN float number(f16 x)
{
    return __half2float(x);
}

template <typename O, typename N> DT_FN void put(O *to, N x)
{
    *to = (O)x;
}
DT_FN void put(bf16 *to, float x)
{
    *to = __float2bfloat16_rn(x);
}
DT_FN void put(bf16 *to, double x)
{
    *to = __float2bfloat16_rn(narrow_to_odd(x));
}
DT_FN void put(f16 *to, float x)
{
    *to = __float2half_rn(x);
}
DT_FN void put(f16 *to, double x)
{
    *to = __float2half_rn(narrow_to_odd(x));
}

template <typename O, typename I> struct casting {
    O *out;
    const I *in;
    template <int W> struct held {
        pack<I, W> x;
    };

    DT_METHOD bool begin()
    {
        return true;
    }
    template <int W> DT_METHOD void load(held<W> &h, int64_t i)
    {
        h.x.load(in + i);
    }
    template <int W> DT_METHOD void finish(held<W> &h, int64_t i)
    {
        I from[W];
        O to[W];
        pack<O, W> y;
        memcpy(from, h.x.c, sizeof from);
#pragma unroll
        for (int k = 0; k < W; k++) {
            put(&to[k], number(from[k]));
        }
        memcpy(y.c, to, sizeof to);
        y.store(out + i);
    }
};

template <typename O, typename I> bool cast(const struct dt_cuda_launch *l, const struct dt_cast_args *a)
{
    casting<O, I> f = {(O *)a->out, (const I *)a->in};
    const int widest = sizeof(O) > sizeof(I) ? sizeof(O) : sizeof(I);
    launch_elements<16 / widest, 4>(l, f, a->count, aligned16(a->out) && aligned16(a->in));
    return true;
}

template <typename O> bool cast_float(const struct dt_cuda_launch *l, const struct dt_cast_args *a)
{
    switch (a->in_type) {
    case DT_F32:
        return cast<O, float>(l, a);
    case DT_F64:
        return cast<O, double>(l, a);
    case DT_BF16:
        return cast<O, bf16>(l, a);
    case DT_F16:
        return cast<O, f16>(l, a);
    default:
        return false;
    }
}

template <typename O> bool cast_integer(const struct dt_cuda_launch *l, const struct dt_cast_args *a)
{
    switch (a->in_type) {
    case DT_I64:
        return cast<O, int64_t>(l, a);
    case DT_I32:
        return cast<O, int32_t>(l, a);
    case DT_U16:
        return cast<O, uint16_t>(l, a);
    case DT_U8:
        return cast<O, uint8_t>(l, a);
    default:
        return false;
    }
}

bool cast_any(const struct dt_cuda_launch *l, const struct dt_cast_args *a)
{
    switch (a->out_type) {
    case DT_F32:
        return cast_float<float>(l, a);
    case DT_F64:
        return cast_float<double>(l, a);
    case DT_BF16:
        return cast_float<bf16>(l, a);
    case DT_F16:
        return cast_float<f16>(l, a);
    case DT_I64:
        return cast_integer<int64_t>(l, a);
    case DT_I32:
        return cast_integer<int32_t>(l, a);
    default:
        return false;
    }
}

/* ---- scale, add ---- */

template <typename T> struct scaling {
    T *x;
    const T *in;
    const double *device_factor;
    double host_factor;
    float factor;
    template <int W> struct held {
        pack<T, W> x;
    };

    DT_METHOD bool begin()
    {
        factor = (float)(host_factor * (device_factor != NULL ? *device_factor : 1.0));
        return factor != 1.0F || in != x;
    }
    template <int W> DT_METHOD void load(held<W> &h, int64_t i)
    {
        h.x.load(in + i);
    }
    template <int W> DT_METHOD void finish(held<W> &h, int64_t i)
    {
        float v[W];
        h.x.get(v);
#pragma unroll
        for (int k = 0; k < W; k++) {
            v[k] *= factor;
        }
        h.x.set(v);
        h.x.store(x + i);
    }
};

template <typename T> void scale(const struct dt_cuda_launch *l, const struct dt_scale_args *a)
{
    scaling<T> f = {(T *)a->x, (const T *)(a->in != NULL ? a->in : a->x), a->device_factor, a->factor, 0};
    launch_elements<16 / (int)sizeof(T), 4>(l, f, a->count, aligned16(f.x) && aligned16(f.in));
}

template <typename A, typename B> struct adding {
    A *out;
    const A *a;
    const B *b;
    template <int W> struct held {
        pack<A, W> a;
        pack<B, W> b;
    };

    DT_METHOD bool begin()
    {
        return true;
    }
    template <int W> DT_METHOD void load(held<W> &h, int64_t i)
    {
        h.a.load(a + i);
        h.b.load(b + i);
    }
    template <int W> DT_METHOD void finish(held<W> &h, int64_t i)
    {
        float x[W], y[W];
        h.a.get(x);
        h.b.get(y);
#pragma unroll
        for (int k = 0; k < W; k++) {
            x[k] += y[k];
        }
        h.a.set(x);
        h.a.store(out + i);
    }
};

template <typename A, typename B> void add_of(const struct dt_cuda_launch *l, const struct dt_add_args *a)
{
    adding<A, B> f = {(A *)a->out, (const A *)a->a, (const B *)a->b};
    launch_elements<16 / (int)sizeof(A), 2>(l, f, a->count, aligned16(a->out) && aligned16(a->a) && aligned16(a->b));
}

template <typename T> void add(const struct dt_cuda_launch *l, const struct dt_add_args *a)
{
    if constexpr (sizeof(T) == 2) {
        add_of<T, T>(l, a);
    } else if (a->b_type == DT_F32) {
        add_of<T, T>(l, a);
    } else {
        a->b_type == DT_F16 ? add_of<T, f16>(l, a) : add_of<T, bf16>(l, a);
    }
}

} // namespace

extern "C" void dt_cuda_fill(struct dt_stream *s, const struct dt_fill_args *a)
{
    struct dt_cuda_launch l;
    if (a->count <= 0 || !dt_cuda_begin(s, &l)) {
        return;
    }
    if (a->value == 0 && !signbit(a->value)) {
        (void)cudaMemsetAsync(a->x, 0, (size_t)a->count * dt_dtype_size(a->type), (cudaStream_t)l.native);
        dt_cuda_end(s, "fill");
        return;
    }
    switch (a->type) {
    case DT_F32:
        fill<float>(&l, a, (float)a->value);
        break;
    case DT_F64:
        fill<double>(&l, a, a->value);
        break;
    case DT_BF16:
        fill<bf16>(&l, a, __float2bfloat16_rn((float)a->value));
        break;
    case DT_F16:
        fill<f16>(&l, a, __float2half_rn((float)a->value));
        break;
    case DT_I64:
        fill<int64_t>(&l, a, (int64_t)a->value);
        break;
    case DT_I32:
        fill<int32_t>(&l, a, (int32_t)a->value);
        break;
    case DT_U16:
        fill<uint16_t>(&l, a, (uint16_t)a->value);
        break;
    case DT_U8:
        fill<uint8_t>(&l, a, (uint8_t)a->value);
        break;
    default:
        dt_stream_fail(s, DT_INTERNAL, "fill: type %d", (int)a->type);
    }
    dt_cuda_end(s, "fill");
}

extern "C" void dt_cuda_cast(struct dt_stream *s, const struct dt_cast_args *a)
{
    struct dt_cuda_launch l;
    if (a->count <= 0 || !dt_cuda_begin(s, &l)) {
        return;
    }
    if (a->out_type == a->in_type) {
        if (a->out != a->in) {
            size_t size_bytes = (size_t)a->count * dt_dtype_size(a->in_type);
            (void)cudaMemcpyAsync(a->out, a->in, size_bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)l.native);
        }
    } else if (!cast_any(&l, a)) {
        dt_stream_fail(s, DT_INTERNAL, "cast: %s to %s is not made", dt_dtype_name(a->in_type),
                       dt_dtype_name(a->out_type));
    }
    dt_cuda_end(s, "cast");
}

DT_CUDA_ROW(scale, false)
DT_CUDA_ROW(add, false)
