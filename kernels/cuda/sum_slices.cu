/* Sums (maxima, minima) of several buffers in the order of the canonical tree, with the bits of the
 * CPU. The pointers are passed as kernel arguments, so the host's array is not needed later. Up to
 * 16 buffers are combined in registers, level by level. More buffers are combined in groups of 16,
 * which are subtrees of the same tree; the results of the groups go on a stack with one place per
 * level. */
#include "kernels/cuda/vector.cuh"

namespace
{

enum {
    GROUP = 16,
    FEW = 4,
    MOST = 480,
    LEVELS = 5
}; /* MOST: by the 4 KB of arguments that any kernel may have; 30 groups */

template <int N> struct sources {
    const void *in[N];
};

/* Like on the CPU: a nan stays, on either side. */
template <typename T> DT_FN T join(int op, T x, T y)
{
    if (op == DT_OP_SUM) {
        return x + y;
    }
    bool first = op == DT_OP_MAX ? x > y : x < y;
    return first || x != x ? x : y;
}
template <> DT_METHOD int64_t join<int64_t>(int op, int64_t x, int64_t y)
{
    if (op == DT_OP_SUM) {
        return (int64_t)((uint64_t)x + (uint64_t)y);
    }
    return (op == DT_OP_MAX ? x > y : x < y) ? x : y;
}
template <> DT_METHOD int32_t join<int32_t>(int op, int32_t x, int32_t y)
{
    if (op == DT_OP_SUM) {
        return (int32_t)((uint32_t)x + (uint32_t)y);
    }
    return (op == DT_OP_MAX ? x > y : x < y) ? x : y;
}

/* One level of the tree over the first WIDTH places, then the levels above it. A template, because
 * the compiler must know every index. */
template <typename wide, int W, int CAP, int WIDTH> struct levels {
    static DT_METHOD void run(wide (&x)[CAP][W], int count, int op)
    {
#pragma unroll
        for (int b = 0; b < WIDTH; b += 2) {
            if (b < count) { /* an odd last one moves up */
#pragma unroll
                for (int k = 0; k < W; k++) {
                    x[b / 2][k] = b + 1 < count ? join(op, x[b][k], x[b + 1][k]) : x[b][k];
                }
            }
        }
        levels<wide, W, CAP, WIDTH / 2>::run(x, (count + 1) / 2, op);
    }
};
template <typename wide, int W, int CAP> struct levels<wide, W, CAP, 1> {
    static DT_METHOD void run(wide (&)[CAP][W], int, int)
    {
    }
};

/* Combines W elements, from i on, of `count` <= CAP buffers into x[0]. */
template <typename T, int W, int CAP>
DT_FN void join_group(typename wide_of<T>::type (&x)[CAP][W], const void *const *in, int count, int op, int64_t i)
{
    pack<T, W> p[CAP];
#pragma unroll
    for (int b = 0; b < CAP; b++) {
        if (b < count) {
            p[b].load((const T *)in[b] + i);
        }
    }
#pragma unroll
    for (int b = 0; b < CAP; b++) {
        if (b < count) {
            p[b].get(x[b]);
        }
    }
    levels<typename wide_of<T>::type, W, CAP, CAP>::run(x, count, op);
}

template <typename T, int W, int CAP> DT_FN void join_at(T *out, const sources<CAP> &from, int count, int op, int64_t i)
{
    typename wide_of<T>::type x[CAP][W];
    join_group<T, W, CAP>(x, from.in, count, op, i);
    pack<T, W> p;
    p.set(x[0]);
    p.store(out + i);
}

template <typename T, int W, int CAP>
__global__ void __launch_bounds__(256)
    join_few(T *out, sources<CAP> from, int count, int op, int64_t n, int64_t vectors)
{
    int64_t first = blockIdx.x * 256 + threadIdx.x, step = (int64_t)gridDim.x * 256;
    for (int64_t v = first; v < vectors; v += step) {
        join_at<T, W, CAP>(out, from, count, op, v * W);
    }
    for (int64_t i = vectors * W + first; i < n; i += step) {
        join_at<T, 1, CAP>(out, from, count, op, i);
    }
}

template <typename T>
__global__ void __launch_bounds__(256) join_many(T *out, sources<MOST> from, int count, int op, int64_t n)
{
    typedef typename wide_of<T>::type wide;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (int64_t)gridDim.x * 256) {
        /* stack[l] holds the result of 2^l groups, if bit l of the number of groups is set */
        wide stack[LEVELS];
        int groups = 0;
        for (int b = 0; b < count; b += GROUP, groups++) {
            wide x[GROUP][1];
            join_group<T, 1, GROUP>(x, from.in + b, count - b < GROUP ? count - b : GROUP, op, i);
            wide sum = x[0][0];
            int level = 0;
            for (; (groups >> level & 1) != 0; level++) {
                sum = join(op, stack[level], sum);
            }
            stack[level] = sum;
        }
        int level = 0;
        while ((groups >> level & 1) == 0) {
            level++;
        }
        wide sum = stack[level];
        for (level++; groups >> level != 0; level++) {
            sum = (groups >> level & 1) != 0 ? join(op, stack[level], sum) : sum;
        }
        out[i] = narrow<T>(sum);
    }
}

template <typename T, int W, int CAP>
void launch_few(const struct dt_cuda_launch *l, const struct dt_sum_slices_args *a)
{
    sources<CAP> from = {};
    bool aligned = aligned16(a->out);
    for (int b = 0; b < a->in_count; b++) {
        from.in[b] = a->in[b];
        aligned = aligned && aligned16(a->in[b]);
    }
    int64_t vectors = aligned ? a->count / W : 0;
    unsigned grid = walkers(l, parts_of(aligned ? parts_of(a->count, W) : a->count, 256), 64);
    DT_LAUNCH((join_few<T, W, CAP>), grid, 256, 0, (cudaStream_t)l->native, (T *)a->out, from, a->in_count, (int)a->op,
              a->count, vectors);
}

template <typename T> void launch(const struct dt_cuda_launch *l, const struct dt_sum_slices_args *a)
{
    if (a->in_count <= FEW) {
        launch_few<T, 16 / (int)sizeof(T), FEW>(l, a);
    } else if (a->in_count <= GROUP) {
        launch_few<T, (sizeof(T) > 4 ? 2 : 4), GROUP>(l, a);
    } else {
        sources<MOST> from = {};
        memcpy(from.in, a->in, (size_t)a->in_count * sizeof *a->in);
        unsigned grid = walkers(l, parts_of(a->count, 256), 64);
        DT_LAUNCH((join_many<T>), grid, 256, 0, (cudaStream_t)l->native, (T *)a->out, from, a->in_count, (int)a->op,
                  a->count);
    }
}

} // namespace

extern "C" void dt_cuda_sum_slices(struct dt_stream *s, const struct dt_sum_slices_args *a)
{
    struct dt_cuda_launch l;
    if (a->count <= 0 || !dt_cuda_begin(s, &l)) {
        return;
    }
    if (a->in_count < 1 || a->in_count > MOST) {
        dt_stream_fail(s, DT_INVALID, "sum of %d slices: a device takes 1 to %d", a->in_count, MOST);
        return;
    }
    switch (a->type) {
    case DT_F32:
        launch<float>(&l, a);
        break;
    case DT_F64:
        launch<double>(&l, a);
        break;
    case DT_BF16:
        launch<bf16>(&l, a);
        break;
    case DT_F16:
        launch<f16>(&l, a);
        break;
    case DT_I64:
        launch<int64_t>(&l, a);
        break;
    case DT_I32:
        launch<int32_t>(&l, a);
        break;
    default:
        dt_stream_fail(s, DT_INTERNAL, "sum_slices: type %s is not made", dt_dtype_name(a->type));
    }
    dt_cuda_end(s, "sum_slices");
}
