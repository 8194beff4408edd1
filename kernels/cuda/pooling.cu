/* One row of each sequence, or the mean of its rows; and their gradients. */
#include "kernels/cuda/vector.cuh"

namespace
{

enum { UNROLL = 4, WARPS = 8, GRID_MOST = 65535 };

/* ---- means ---- */

/* Number of set masks among `count`; the block has 256 threads. `part` is shared memory for the warps'
 * numbers. */
DT_FN int set_masks(const int32_t *mask, int64_t count, int *part)
{
    int set = 0;
    for (int64_t t = threadIdx.x; t < count; t += 256) {
        set += mask[t] != 0;
    }
    set = warp_sum(set);
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = set;
    }
    __syncthreads();
    set = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        set += part[w];
    }
    return set;
}

template <typename T> struct mean {
    T *out;
    const T *x;
    const int32_t *mask;
    int64_t batch, positions, cols;
};

/* Block (i, b): columns from i * 32 * W on of sequence b. Warp w adds the positions w, w + 8, ...;
 * then the eight sums are added in order. */
template <typename T, int W> __global__ void __launch_bounds__(256) mean_columns(mean<T> m)
{
    DT_SHARED(float, sums, [WARPS][W * 32]);
    DT_SHARED(int, part, [WARPS]);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t col = ((int64_t)blockIdx.x * 32 + lane) * W;
    for (int64_t b = blockIdx.y; b < m.batch; b += gridDim.y) {
        const int32_t *mask = m.mask != NULL ? m.mask + b * m.positions : NULL;
        float total[W];
#pragma unroll
        for (int k = 0; k < W; k++) {
            total[k] = 0;
        }
        for (int64_t t = warp; t < m.positions && col < m.cols; t += UNROLL * WARPS) {
            pack<T, W> p[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int64_t row = t + u * WARPS;
                p[u].clear();
                if (row < m.positions && (mask == NULL || mask[row] != 0)) {
                    p[u].load(m.x + (b * m.positions + row) * m.cols + col);
                }
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                float x[W];
                p[u].get(x);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    total[k] += x[k];
                }
            }
        }
#pragma unroll
        for (int k = 0; k < W; k++) {
            sums[warp][k * 32 + lane] = total[k];
        }
        int set = mask != NULL ? set_masks(mask, m.positions, part) : (int)m.positions;
        __syncthreads();
        for (int i = threadIdx.x; i < W * 32; i += 256) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                sum += sums[w][i % W * 32 + i / W];
            }
            int64_t at = (int64_t)blockIdx.x * 32 * W + i;
            if (at < m.cols) {
                m.out[b * m.cols + at] = narrow<T>(sum / (float)(set > 0 ? set : 1));
            }
        }
        __syncthreads();
    }
}

template <typename T> struct spreading {
    T *dx;
    const T *dout;
    const int32_t *mask;
    int64_t batch, positions, cols;
};

/* Block (i, b): columns from i * 32 * W on of sequence b; each warp writes every eighth row. */
template <typename T, int W> __global__ void __launch_bounds__(256) spread_columns(spreading<T> m)
{
    DT_SHARED(int, part, [WARPS]);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t col = ((int64_t)blockIdx.x * 32 + lane) * W;
    for (int64_t b = blockIdx.y; b < m.batch; b += gridDim.y) {
        const int32_t *mask = m.mask != NULL ? m.mask + b * m.positions : NULL;
        int set = mask != NULL ? set_masks(mask, m.positions, part) : (int)m.positions;
        pack<T, W> row, none;
        none.clear();
        row.clear();
        if (col < m.cols) {
            row.load(m.dout + b * m.cols + col);
        }
        float d[W];
        row.get(d);
#pragma unroll
        for (int k = 0; k < W; k++) {
            d[k] = d[k] / (float)(set > 0 ? set : 1);
        }
        row.set(d);
        for (int64_t t = (int64_t)blockIdx.z * WARPS + warp; t < m.positions && col < m.cols; t += gridDim.z * WARPS) {
            pack<T, W> own = mask == NULL || mask[t] != 0 ? row : none;
            own.store(m.dx + (b * m.positions + t) * m.cols + col);
        }
        __syncthreads();
    }
}

static unsigned within(int64_t most, int64_t n)
{
    return (unsigned)(n < most ? n : most);
}

template <typename T> void masked_mean(const struct dt_cuda_launch *l, const struct dt_masked_mean_args *a)
{
    const int W = 16 / (int)sizeof(T);
    mean<T> m = {(T *)a->out, (const T *)a->x, a->mask, a->batch, a->positions, a->col_count};
    unsigned sequences = within(GRID_MOST, a->batch);
    if (aligned16(m.x) && m.cols % W == 0) {
        dim3 grid((unsigned)parts_of(m.cols, 32 * W), sequences);
        DT_LAUNCH((mean_columns<T, W>), grid, 256, 0, (cudaStream_t)l->native, m);
    } else {
        dim3 grid((unsigned)parts_of(m.cols, 32), sequences);
        DT_LAUNCH((mean_columns<T, 1>), grid, 256, 0, (cudaStream_t)l->native, m);
    }
}

template <typename T>
void masked_mean_backward(const struct dt_cuda_launch *l, const struct dt_masked_mean_backward_args *a)
{
    const int W = 16 / (int)sizeof(T);
    spreading<T> m = {(T *)a->dx, (const T *)a->dout, a->mask, a->batch, a->positions, a->col_count};
    unsigned sequences = within(GRID_MOST, a->batch), parts = within(64, parts_of(a->positions, 16 * WARPS));
    if (aligned16(m.dx) && aligned16(m.dout) && m.cols % W == 0) {
        dim3 grid((unsigned)parts_of(m.cols, 32 * W), sequences, parts);
        DT_LAUNCH((spread_columns<T, W>), grid, 256, 0, (cudaStream_t)l->native, m);
    } else {
        dim3 grid((unsigned)parts_of(m.cols, 32), sequences, parts);
        DT_LAUNCH((spread_columns<T, 1>), grid, 256, 0, (cudaStream_t)l->native, m);
    }
}

/* ---- single rows ---- */

template <typename T> struct moving {
    T *to;
    const T *from;
    const int32_t *rows;
    int64_t count, cols, step;
    bool puts; /* row i goes to rows[i], else it comes from there */
};

/* One warp per row. */
template <typename T, int W> __global__ void __launch_bounds__(256) move_rows(moving<T> m)
{
    int lane = threadIdx.x % 32;
    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < m.count; i += (int64_t)gridDim.x * WARPS) {
        int64_t other = m.rows != NULL ? m.rows[i] : i * m.step;
        if (other < 0 && m.puts) {
            continue;
        }
        const T *from = m.from + (m.puts ? i : other) * m.cols;
        T *to = m.to + (m.puts ? other : i) * m.cols;
        for (int64_t c = lane * W; c < m.cols; c += UNROLL * 32 * W) {
            pack<T, W> p[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                p[u].clear();
                if (c + u * 32 * W < m.cols && other >= 0) {
                    p[u].load(from + c + u * 32 * W);
                }
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                if (c + u * 32 * W < m.cols) {
                    p[u].store(to + c + u * 32 * W);
                }
            }
        }
    }
}

template <typename T> void move(const struct dt_cuda_launch *l, const moving<T> &m)
{
    const int W = 16 / (int)sizeof(T);
    unsigned grid = walkers(l, parts_of(m.count, WARPS), 64);
    if (m.count <= 0) {
        return;
    }
    if (aligned16(m.to) && aligned16(m.from) && m.cols % W == 0) {
        DT_LAUNCH((move_rows<T, W>), grid, 256, 0, (cudaStream_t)l->native, m);
    } else {
        DT_LAUNCH((move_rows<T, 1>), grid, 256, 0, (cudaStream_t)l->native, m);
    }
}

template <typename T> void take_rows(const struct dt_cuda_launch *l, const struct dt_take_rows_args *a)
{
    move<T>(l, {(T *)a->out, (const T *)a->x, a->rows, a->row_count, a->col_count, a->step, false});
}

template <typename T>
void take_rows_backward(const struct dt_cuda_launch *l, const struct dt_take_rows_backward_args *a)
{
    (void)cudaMemsetAsync(a->dx, 0, (size_t)(a->source_count * a->col_count) * sizeof(T), (cudaStream_t)l->native);
    move<T>(l, {(T *)a->dx, (const T *)a->dout, a->rows, a->row_count, a->col_count, a->step, true});
}

} // namespace

/* The row of a kernel, where `empty` says that there is nothing to do. */
DT_CUDA_ROW(masked_mean, a->batch <= 0 || a->col_count <= 0)
DT_CUDA_ROW(masked_mean_backward, a->batch <= 0 || a->positions <= 0 || a->col_count <= 0)
DT_CUDA_ROW(take_rows, a->row_count <= 0 || a->col_count <= 0)
DT_CUDA_ROW(take_rows_backward, a->source_count <= 0 || a->col_count <= 0)
