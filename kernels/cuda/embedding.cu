/* Embeddings forward, and the gradient of the position table. Both read and write in order, so
 * memory bounds their speed. */
#include "kernels/cuda/vector.cuh"

namespace
{

template <typename T> struct lookup {
    T *out;
    const T *tokens, *positions, *types;
    const int32_t *ids, *position_ids, *type_ids;
    int64_t rows, position_count, first_position, cols;
    float scale;
};

/* The row of the table of positions. */
template <bool PLAIN, typename T> DT_FN int64_t position_of(const lookup<T> &e, int64_t row)
{
    return !PLAIN && e.position_ids != NULL ? e.position_ids[row] : e.first_position + row % e.position_count;
}

template <int W, typename T> DT_FN void add_to(float (&x)[W], const pack<T, W> &p)
{
    float add[W];
    p.get(add);
#pragma unroll
    for (int k = 0; k < W; k++) {
        x[k] += add[k];
    }
}

enum { UNROLL = 4 };

/* One warp per row. PLAIN: tokens and positions in order are all. */
template <typename T, int W, bool PLAIN> __global__ void __launch_bounds__(256, 4) embed_rows(lookup<T> e)
{
    int lane = threadIdx.x % 32;
    for (int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x / 32; row < e.rows; row += (int64_t)gridDim.x * 8) {
        const T *token = e.tokens + e.ids[row] * e.cols;
        const T *position = e.positions != NULL ? e.positions + position_of<PLAIN>(e, row) * e.cols : NULL;
        const T *type =
            !PLAIN && e.types != NULL ? e.types + (e.type_ids != NULL ? e.type_ids[row] : 0) * e.cols : NULL;
        T *out = e.out + row * e.cols;
        for (int64_t c = lane * W; c < e.cols; c += UNROLL * 32 * W) {
            pack<T, W> t[UNROLL], p[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int64_t col = c + u * 32 * W;
                if (col < e.cols) {
                    t[u].load(token + col);
                    if (position != NULL) {
                        p[u].load(position + col);
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int64_t col = c + u * 32 * W;
                if (col < e.cols) {
                    float x[W];
                    t[u].get(x);
#pragma unroll
                    for (int k = 0; k < W; k++) {
                        x[k] *= PLAIN ? 1.0f : e.scale;
                    }
                    if (type != NULL) { /* one of few rows, which the cache has */
                        pack<T, W> add;
                        add.load(type + col);
                        add_to<W>(x, add);
                    }
                    if (position != NULL) {
                        add_to<W>(x, p[u]);
                    }
                    t[u].set(x);
                    t[u].store_global(out + col);
                }
            }
        }
    }
}

template <typename T, typename G> struct positions {
    G *out;
    const T *dy;
    int64_t rows, position_count, table_count, cols;
    bool accumulate;
};

/* One warp per W * 32 columns of one position. It adds the batch in order. */
template <typename T, typename G, int W> __global__ void __launch_bounds__(256) position_sums(positions<T, G> e)
{
    int64_t col = ((int64_t)blockIdx.x * 32 + threadIdx.x % 32) * W, step = e.position_count * e.cols;
    for (int64_t t = (int64_t)blockIdx.y * 8 + threadIdx.x / 32; t < e.table_count && col < e.cols;
         t += (int64_t)gridDim.y * 8) {
        float sum[W];
#pragma unroll
        for (int k = 0; k < W; k++) {
            sum[k] = 0;
        }
        const T *from = e.dy + t * e.cols + col, *end = e.dy + e.rows * e.cols;
        for (; t < e.position_count && from < end; from += UNROLL * step) {
            pack<T, W> p[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                if (from + u * step < end) {
                    p[u].load(from + u * step);
                }
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                if (from + u * step < end) {
                    float x[W];
                    p[u].get(x);
#pragma unroll
                    for (int k = 0; k < W; k++) {
                        sum[k] += x[k];
                    }
                }
            }
        }
        pack<G, W> out;
        if (e.accumulate) {
            float before[W];
            out.load(e.out + t * e.cols + col);
            out.get(before);
#pragma unroll
            for (int k = 0; k < W; k++) {
                sum[k] += before[k];
            }
        }
        out.set(sum);
        out.store(e.out + t * e.cols + col);
    }
}

template <typename T, int W> void launch_embed(const struct dt_cuda_launch *l, const lookup<T> &e)
{
    unsigned grid = walkers(l, parts_of(e.rows, 8), 64);
    if (e.types == NULL && e.position_ids == NULL && e.scale == 1.0f) {
        DT_LAUNCH((embed_rows<T, W, true>), grid, 256, 0, (cudaStream_t)l->native, e);
    } else {
        DT_LAUNCH((embed_rows<T, W, false>), grid, 256, 0, (cudaStream_t)l->native, e);
    }
}

template <typename T> void embedding(const struct dt_cuda_launch *l, const struct dt_embedding_args *a)
{
    lookup<T> e = {(T *)a->out,
                   (const T *)a->tokens,
                   (const T *)a->positions,
                   (const T *)a->types,
                   a->ids,
                   a->position_ids,
                   a->type_ids,
                   a->row_count,
                   a->position_count,
                   a->first_position,
                   a->col_count,
                   (float)(a->scale != 0 ? a->scale : 1.0)};
    const int W = 16 / (int)sizeof(T);
    bool wide = aligned16(e.out) && aligned16(e.tokens) && aligned16(e.positions) && aligned16(e.types);
    if (wide && e.cols % W == 0) {
        launch_embed<T, W>(l, e);
    } else {
        launch_embed<T, 1>(l, e);
    }
}

template <typename T, typename G, int W> void launch_positions(const struct dt_cuda_launch *l, const positions<T, G> &e)
{
    int64_t tiles = parts_of(e.cols, 32 * W);
    dim3 grid((unsigned)tiles, walkers(l, parts_of(e.table_count, 8), tiles < 16 ? 16 : 1));
    DT_LAUNCH((position_sums<T, G, W>), grid, 256, 0, (cudaStream_t)l->native, e);
}

template <typename T, typename G>
void backward_of(const struct dt_cuda_launch *l, const struct dt_position_backward_args *a)
{
    positions<T, G> e = {(G *)a->dpositions, (const T *)a->dy, a->row_count, a->position_count,
                         a->table_count,     a->col_count,     a->accumulate};
    const int W = 16 / (int)sizeof(T);
    if (aligned16(e.out) && aligned16(e.dy) && e.cols % W == 0) {
        launch_positions<T, G, W>(l, e);
    } else {
        launch_positions<T, G, 1>(l, e);
    }
}

template <typename T>
void position_backward(const struct dt_cuda_launch *l, const struct dt_position_backward_args *a, enum dt_dtype sums)
{
    sums == DT_F32 ? backward_of<T, float>(l, a) : backward_of<T, T>(l, a);
}

} // namespace

DT_CUDA_ROW(embedding, a->row_count <= 0)
DT_CUDA_SUMS_ROW(position_backward, a->grad_type, a->table_count <= 0)
