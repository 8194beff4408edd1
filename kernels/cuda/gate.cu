/* Gated activations: y = f(gate) * up, and backward. Every tensor is read once and written once;
 * all of a vector's inputs are read before its results are written, so gradients may be their
 * inputs. */
#include "kernels/cuda/activation.cuh"

namespace
{

/* The places of gate and up for element i of y, i below 2^32: rows of cols elements, with a gap
 * between them. */
struct rows_apart {
    uint32_t cols;
    int64_t gap;

    DT_METHOD int64_t at(int64_t i) const
    {
        return gap == 0 ? i : i + (int64_t)((uint32_t)i / cols) * gap;
    }
};

template <typename T, int KIND> struct gating {
    T *y;
    const T *gate, *up;
    rows_apart rows;
    template <int W> struct held {
        pack<T, W> gate, up;
    };

    DT_METHOD bool begin()
    {
        return true;
    }
    template <int W> DT_METHOD void load(held<W> &h, int64_t i)
    {
        int64_t at = rows.at(i);
        h.gate.load(gate + at);
        h.up.load(up + at);
    }
    template <int W> DT_METHOD void finish(held<W> &h, int64_t i)
    {
        float x[W], u[W];
        h.gate.get(x);
        h.up.get(u);
#pragma unroll
        for (int k = 0; k < W; k++) {
            x[k] = activation_value<T, KIND>(x[k]) * u[k];
        }
        h.gate.set(x);
        h.gate.store(y + i);
    }
};

template <typename T, int KIND> struct gating_backward {
    T *dgate, *dup, *y; /* y may be null */
    const T *dy, *gate, *up;
    rows_apart rows;
    template <int W> struct held {
        pack<T, W> dy, gate, up;
        int64_t at;
    };

    DT_METHOD bool begin()
    {
        return true;
    }
    template <int W> DT_METHOD void load(held<W> &h, int64_t i)
    {
        h.at = rows.at(i);
        h.dy.load(dy + i);
        h.gate.load(gate + h.at);
        h.up.load(up + h.at);
    }
    template <int W> DT_METHOD void finish(held<W> &h, int64_t i)
    {
        float d[W], x[W], u[W], value[W];
        h.dy.get(d);
        h.gate.get(x);
        h.up.get(u);
#pragma unroll
        for (int k = 0; k < W; k++) {
            value[k] = activation_value<T, KIND>(x[k]);
            x[k] = d[k] * u[k] * activation_slope<T, KIND>(x[k]);
            d[k] *= value[k];
            value[k] *= u[k];
        }
        h.gate.set(x);
        h.gate.store(dgate + h.at);
        h.up.set(d);
        h.up.store(dup + h.at);
        if (y != NULL) {
            h.dy.set(value);
            h.dy.store(y + i);
        }
    }
};

template <typename A> rows_apart rows_of(const A *a)
{
    rows_apart rows = {(uint32_t)a->col_count, a->ld != 0 ? a->ld - a->col_count : 0};
    return rows;
}

/* True if a vector of W elements lies in one row, and rows begin on a multiple of it. */
template <int W> bool even(const rows_apart &rows)
{
    return rows.gap == 0 || (rows.cols % W == 0 && rows.gap % W == 0);
}

/* Rows whose elements have numbers of 32 bits, because divisions of these are several times as
 * fast; a multiple of 16 keeps the alignment. */
int64_t rows_of_launch(int64_t cols)
{
    int64_t rows = (int64_t)UINT32_MAX / cols / 16 * 16;
    return rows > 0 ? rows : 1;
}

template <typename T, int KIND> void forward(const struct dt_cuda_launch *l, const struct dt_gate_args *a)
{
    const int W = 16 / (int)sizeof(T);
    gating<T, KIND> f = {(T *)a->y, (const T *)a->gate, (const T *)a->up, rows_of(a)};
    bool aligned = aligned16(f.y) && aligned16(f.gate) && aligned16(f.up) && even<W>(f.rows);
    int64_t rows = rows_of_launch(a->col_count), ld = a->col_count + f.rows.gap;
    for (int64_t left = a->row_count; left > 0; left -= rows) {
        launch_elements<W, 2>(l, f, (left < rows ? left : rows) * a->col_count, aligned);
        f.y += rows * a->col_count;
        f.gate += rows * ld;
        f.up += rows * ld;
    }
}

template <typename T, int KIND> void backward(const struct dt_cuda_launch *l, const struct dt_gate_backward_args *a)
{
    const int W = 16 / (int)sizeof(T);
    gating_backward<T, KIND> f = {(T *)a->dgate,      (T *)a->dup,      (T *)a->y, (const T *)a->dy,
                                  (const T *)a->gate, (const T *)a->up, rows_of(a)};
    bool aligned = aligned16(f.dgate) && aligned16(f.dup) && aligned16(f.y) && aligned16(f.dy) && aligned16(f.gate) &&
                   aligned16(f.up) && even<W>(f.rows);
    int64_t rows = rows_of_launch(a->col_count), ld = a->col_count + f.rows.gap;
    for (int64_t left = a->row_count; left > 0; left -= rows) {
        launch_elements<W, 1>(l, f, (left < rows ? left : rows) * a->col_count, aligned);
        f.dy += rows * a->col_count;
        f.y = f.y != NULL ? f.y + rows * a->col_count : NULL;
        f.gate += rows * ld;
        f.up += rows * ld;
        f.dgate += rows * ld;
        f.dup += rows * ld;
    }
}

template <typename T> void gate(const struct dt_cuda_launch *l, const struct dt_gate_args *a)
{
    DT_FOR_KIND(a->kind, forward, T, l, a)
}

template <typename T> void gate_backward(const struct dt_cuda_launch *l, const struct dt_gate_backward_args *a)
{
    DT_FOR_KIND(a->kind, backward, T, l, a)
}

} // namespace

DT_CUDA_ROW(gate, false)
DT_CUDA_ROW(gate_backward, false)
