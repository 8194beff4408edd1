/* Activations and their gradients, with sums of the gradient's columns if these are asked for. */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/columns.cuh"

namespace
{

template <typename T, int KIND> struct activating {
    T *y;
    const T *x;
    template <int W> struct held {
        pack<T, W> x;
    };

    DT_METHOD bool begin()
    {
        return true;
    }
    template <int W> DT_METHOD void load(held<W> &h, int64_t i)
    {
        h.x.load(x + i);
    }
    template <int W> DT_METHOD void finish(held<W> &h, int64_t i)
    {
        float v[W];
        h.x.get(v);
#pragma unroll
        for (int k = 0; k < W; k++) {
            v[k] = activation_value<T, KIND>(v[k]);
        }
        h.x.set(v);
        h.x.store(y + i);
    }
};

template <typename T, int KIND> struct slanting {
    T *dx;
    const T *dy, *x;
    template <int W> struct held {
        pack<T, W> dy, x;
    };

    DT_METHOD bool begin()
    {
        return true;
    }
    template <int W> DT_METHOD void load(held<W> &h, int64_t i)
    {
        h.dy.load(dy + i);
        h.x.load(x + i);
    }
    template <int W> DT_METHOD void finish(held<W> &h, int64_t i)
    {
        float g[W], v[W];
        h.dy.get(g);
        h.x.get(v);
#pragma unroll
        for (int k = 0; k < W; k++) {
            g[k] *= activation_slope<T, KIND>(v[k]);
        }
        h.dy.set(g);
        h.dy.store(dx + i);
    }
};

template <typename T, int KIND> void forward(const struct dt_cuda_launch *l, const struct dt_activation_args *a)
{
    activating<T, KIND> f = {(T *)a->y, (const T *)a->x};
    launch_elements<16 / (int)sizeof(T), 4>(l, f, a->count, aligned16(a->y) && aligned16(a->x));
}

/* The same, row by row, for the sums of columns, which add up the values that were written. Each
 * element is read before it is written, by one thread. */
template <typename T, int KIND> struct slanting_columns {
    enum { SUMS = 1 };
    slanting<T, KIND> f;
    int64_t cols;
    template <int W> struct held {
        typename slanting<T, KIND>::template held<W> h;
        int64_t at;
    };

    template <int W> DT_METHOD void load(held<W> &h, int64_t row, int64_t col)
    {
        h.at = row * cols + col;
        f.template load<W>(h.h, h.at);
    }
    template <int W> DT_METHOD void get(float (&to)[1][W], held<W> &h, int64_t)
    {
        f.template finish<W>(h.h, h.at);
        h.h.dy.get(to[0]);
    }
};

template <typename T, int KIND>
void backward_with_sums(const struct dt_cuda_launch *l, const slanting<T, KIND> &f,
                        const struct dt_activation_backward_args *a, bool aligned, enum dt_dtype grads)
{
    const int W = 16 / (int)sizeof(T);
    slanting_columns<T, KIND> from = {f, a->col_count};
    int64_t rows = a->count / a->col_count;
    if (aligned && a->col_count % W == 0) {
        sum_columns<slanting_columns<T, KIND>, W>(l, from, a->dbias, NULL, rows, a->col_count, a->accumulate, grads);
    } else {
        sum_columns<slanting_columns<T, KIND>, 1>(l, from, a->dbias, NULL, rows, a->col_count, a->accumulate, grads);
    }
}

template <typename T, int KIND>
void backward(const struct dt_cuda_launch *l, const struct dt_activation_backward_args *a, enum dt_dtype grads)
{
    slanting<T, KIND> f = {(T *)a->dx, (const T *)a->dy, (const T *)a->x};
    bool aligned = aligned16(a->dx) && aligned16(a->dy) && aligned16(a->x);
    if (a->dbias != NULL) {
        backward_with_sums<T, KIND>(l, f, a, aligned, grads);
    } else {
        launch_elements<16 / (int)sizeof(T), 2>(l, f, a->count, aligned);
    }
}

template <typename T> void activation(const struct dt_cuda_launch *l, const struct dt_activation_args *a)
{
    DT_FOR_KIND(a->kind, forward, T, l, a)
}

template <typename T>
void activation_backward(const struct dt_cuda_launch *l, const struct dt_activation_backward_args *a,
                         enum dt_dtype grads)
{
    DT_FOR_KIND(a->kind, backward, T, l, a, grads)
}

bool ragged(struct dt_stream *s, const struct dt_activation_backward_args *a)
{
    bool bad = a->dbias != NULL && (a->col_count < 1 || a->col_count > COLUMNS_MOST || a->count % a->col_count != 0);
    if (bad) {
        dt_stream_fail(s, DT_INVALID, "activation_backward: %lld elements in rows of %lld", (long long)a->count,
                       (long long)a->col_count);
    }
    return bad;
}

} // namespace

DT_CUDA_ROW(activation, false)
DT_CUDA_SUMS_ROW(activation_backward, a->dbias != NULL ? a->grad_type : DT_F32, ragged(s, a))
