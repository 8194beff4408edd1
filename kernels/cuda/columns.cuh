/* Sums over rows, in an order that depends on the shape alone: blocks of rows give partial sums
 * in the stream's work memory, and a second kernel adds these in order. A source is a struct
 * that says what is summed:
 *   enum { SUMS }                   values per column: 1, or 2 for two outputs
 *   load<W>(held, row, column)      W columns of one row
 *   get(x, held, row)               their SUMS * W values */
#ifndef DT_KERNELS_CUDA_COLUMNS_CUH
#define DT_KERNELS_CUDA_COLUMNS_CUH

#include "kernels/cuda/vector.cuh"

enum { COLUMNS_MOST = 1 << 22 }; /* then one row of two partial sums fits the work memory */
enum { FINISH_WARPS = 32, FINISH_UNROLL = 16 };
enum { COLUMN_WARPS = 8, COLUMN_UNROLL = 4, COLUMN_BLOCKS = 528 /* four blocks for each multiprocessor of an H100 */ };

/* The source whose sums are those of x (rows, cols). */
template <typename T> struct column_values {
    enum { SUMS = 1 };
    const T *x;
    int64_t cols;
    template <int W> struct held {
        pack<T, W> x;
    };

    template <int W> DT_METHOD void load(held<W> &h, int64_t row, int64_t col) const
    {
        h.x.load(x + row * cols + col);
    }
    template <int W> DT_METHOD void get(float (&to)[1][W], const held<W> &h, int64_t) const
    {
        h.x.get(to[0]);
    }
};

/* Block (i, p): columns from i * 32 * W on, rows of part p. partial: (parts, SUMS, cols). */
template <typename S, int W>
__global__ void __launch_bounds__(256)
    column_partials(float *partial, S from, int64_t rows, int64_t cols, int64_t rows_per_part)
{
    DT_SHARED(float, sums, [COLUMN_WARPS][S::SUMS * W * 32]);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t col = ((int64_t)blockIdx.x * 32 + lane) * W;
    int64_t row = blockIdx.y * rows_per_part + warp, end = (blockIdx.y + 1) * rows_per_part;
    end = end < rows ? end : rows;
    float total[S::SUMS][W];
#pragma unroll
    for (int v = 0; v < S::SUMS; v++) {
#pragma unroll
        for (int k = 0; k < W; k++) {
            total[v][k] = 0;
        }
    }
    for (; col < cols && row < end; row += COLUMN_UNROLL * COLUMN_WARPS) {
        typename S::template held<W> h[COLUMN_UNROLL];
#pragma unroll
        for (int u = 0; u < COLUMN_UNROLL; u++) {
            if (row + u * COLUMN_WARPS < end) {
                from.load(h[u], row + u * COLUMN_WARPS, col);
            }
        }
#pragma unroll
        for (int u = 0; u < COLUMN_UNROLL; u++) {
            if (row + u * COLUMN_WARPS < end) {
                float x[S::SUMS][W];
                from.get(x, h[u], row + u * COLUMN_WARPS);
#pragma unroll
                for (int v = 0; v < S::SUMS; v++) {
#pragma unroll
                    for (int k = 0; k < W; k++) {
                        total[v][k] += x[v][k];
                    }
                }
            }
        }
    }
#pragma unroll
    for (int v = 0; v < S::SUMS; v++) {
#pragma unroll
        for (int k = 0; k < W; k++) {
            sums[warp][(v * W + k) * 32 + lane] = total[v][k];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < S::SUMS * W * 32; i += 256) {
        int v = i / (32 * W), c = i % (32 * W);
        float sum = 0;
#pragma unroll
        for (int w = 0; w < COLUMN_WARPS; w++) {
            sum += sums[w][v * W * 32 + c % W * 32 + c / W];
        }
        int64_t at = (int64_t)blockIdx.x * 32 * W + c;
        if (at < cols) {
            partial[(blockIdx.y * S::SUMS + v) * cols + at] = sum;
        }
    }
}

/* out[j] = [out[j] +] the sum of partial[p][j] over p, with 32 columns a block. Warp w adds the
 * parts w, w + 32, ...; then the 32 sums are added in order. The parts are in the cache, so what
 * takes time is how often a warp waits for them: once for 512 parts. Block (i, v): columns from 32 i
 * on of output v; partial: (parts, outputs, cols). */
template <typename T>
__global__ void __launch_bounds__(32 * FINISH_WARPS)
    column_finish(T *out0, T *out1, const float *partial, int64_t cols, int parts, bool accumulate)
{
    DT_SHARED(float, sums, [FINISH_WARPS][32]);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t col = (int64_t)blockIdx.x * 32 + lane, stride = cols * gridDim.y;
    T *out = blockIdx.y == 0 ? out0 : out1;
    float total = 0, sum = accumulate && warp == 0 && col < cols ? widen<T>(out[col]) : 0;
    const float *x = partial + warp * stride + blockIdx.y * cols + col;
    const int64_t step = stride * FINISH_WARPS;
    for (int p = warp; col < cols && p < parts; p += FINISH_UNROLL * FINISH_WARPS) {
        float v[FINISH_UNROLL];
#pragma unroll
        for (int u = 0; u < FINISH_UNROLL; u++, x += step) {
            v[u] = 0;
            if (p + u * FINISH_WARPS < parts) {
                v[u] = *x;
            }
        }
#pragma unroll
        for (int u = 0; u < FINISH_UNROLL; u++) {
            total += v[u];
        }
    }
    sums[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && col < cols) {
#pragma unroll
        for (int w = 0; w < FINISH_WARPS; w++) {
            sum += sums[w][lane];
        }
        out[col] = narrow<T>(sum);
    }
}

/* Adds up `parts` partial sums of (outputs, cols) into out0 and, if given, out1, both of this type:
 * F32, BF16 or F16. */
static inline void finish_columns(const struct dt_cuda_launch *l, void *out0, void *out1, const float *partial,
                                  int64_t cols, int parts, bool accumulate, enum dt_dtype type)
{
    dim3 grid((unsigned)parts_of(cols, 32), out1 != NULL ? 2 : 1);
    (void)for_type(type, [&](auto t) {
        typedef typename decltype(t)::type T;
        DT_LAUNCH((column_finish<T>), grid, 32 * FINISH_WARPS, 0, (cudaStream_t)l->native, (T *)out0, (T *)out1,
                  partial, cols, parts, accumulate);
    });
}

/* Runs both kernels. There are at most COLUMN_BLOCKS blocks of partial sums, and one more row: with
 * 2 sums of 8 columns a lane, 1.1 MB and 2 rows. */
template <typename S, int W>
static void sum_columns(const struct dt_cuda_launch *l, const S &from, void *out0, void *out1, int64_t rows,
                        int64_t cols, bool accumulate, enum dt_dtype type)
{
    int64_t tiles = parts_of(cols, 32 * W), parts = COLUMN_BLOCKS / tiles;
    int64_t most = parts_of(rows, 2 * COLUMN_UNROLL * COLUMN_WARPS);
    parts = parts < most ? parts : most;
    parts = parts > 1 ? parts : 1;
    int64_t rows_per_part = parts_of(rows, parts);
    dim3 grid((unsigned)tiles, (unsigned)parts);
    DT_LAUNCH((column_partials<S, W>), grid, 256, 0, (cudaStream_t)l->native, (float *)l->work, from, rows, cols,
              rows_per_part);
    finish_columns(l, out0, out1, (const float *)l->work, cols, (int)parts, accumulate, type);
}

#endif
