/* Rotary positions: turns pairs in place. A thread has pairs of one head, so that a warp reads and
 * writes whole lines; a row's cosines and sines come from the L1 cache for all heads but the
 * first. */
#include "kernels/cuda/vector.cuh"

namespace
{

/* Element i of the loop is pair i % half of head i / half. N: uint32_t where that is enough for all
 * of these numbers, because its divisions are several times as fast. */
template <typename T, typename N> struct turning {
    T *x;
    const float *table;
    const int32_t *positions;
    int64_t stride, first_position, width, head_size;
    N half, heads, position_count;
    float sign;
    template <int W> struct held {
        pack<T, W> first, second;
        pack<float, W> cosine, sine;
        int64_t at;
    };

    DT_METHOD bool begin()
    {
        return true;
    }
    template <int W> DT_METHOD void load(held<W> &h, int64_t i)
    {
        N all = (N)i, head = all / half, j = all - head * half, row = head / heads;
        int64_t position = positions != NULL ? positions[row] : first_position + (int64_t)(row % position_count);
        const float *turn = table + position * width + (int64_t)j;
        h.at = (int64_t)row * stride + (int64_t)(head - row * heads) * head_size + (int64_t)j;
        h.first.load(x + h.at);
        h.second.load(x + h.at + (int64_t)half);
        h.cosine.load(turn);
        h.sine.load(turn + half);
    }
    template <int W> DT_METHOD void finish(held<W> &h, int64_t)
    {
        float a[W], b[W], c[W], s[W];
        h.first.get(a);
        h.second.get(b);
        h.cosine.get(c);
        h.sine.get(s);
#pragma unroll
        for (int k = 0; k < W; k++) {
            float turn = s[k] * sign, first = fmaf(a[k], c[k], -(b[k] * turn));
            b[k] = fmaf(b[k], c[k], a[k] * turn);
            a[k] = first;
        }
        h.first.set(a);
        h.first.store(x + h.at);
        h.second.set(b);
        h.second.store(x + h.at + (int64_t)half);
    }
};

template <typename T, typename N> void launch(const struct dt_cuda_launch *l, const struct dt_rope_args *a)
{
    const int W = 16 / (int)sizeof(T);
    int64_t half = a->width / 2;
    turning<T, N> f = {(T *)a->x,
                       (const float *)a->table,
                       a->positions,
                       a->stride,
                       a->first_position,
                       a->width,
                       a->head_size,
                       (N)half,
                       (N)a->heads,
                       (N)a->position_count,
                       a->inverse ? -1.0F : 1.0F};
    bool aligned = aligned16(f.x) && aligned16(f.table) && half % W == 0 && a->width == 2 * half &&
                   a->head_size % W == 0 && a->stride % W == 0;
    launch_elements<W, 1>(l, f, a->row_count * a->heads * half, aligned);
}

template <typename T> void rope(const struct dt_cuda_launch *l, const struct dt_rope_args *a)
{
    int64_t most = a->row_count * a->heads * (a->width / 2);
    if ((most | a->position_count) >> 32 == 0) {
        launch<T, uint32_t>(l, a);
    } else {
        launch<T, uint64_t>(l, a);
    }
}

} // namespace

DT_CUDA_ROW(rope, false)
