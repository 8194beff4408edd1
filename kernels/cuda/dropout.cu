/* Dropout: the mask of the CPU, and its bits. A block takes elements of one sample, so each thread
 * makes the sample's key once. */
#include "kernels/cuda/vector.cuh"
#include "kernels/dropout.h"

namespace
{

enum { UNROLL = 4, SAMPLES_MOST = 65535 /* that a grid holds; then blocks walk */ };

template <typename T> struct dropping {
    T *x;
    const T *in;
    const int64_t *samples;
    uint64_t seed, site;
    int64_t count, sample_size;
    uint32_t limit;
    float factor;
};

/* Elements at + k (k < W) of the call, place + k of their sample. */
template <typename T, int W>
DT_FN void drop(const dropping<T> &d, const pack<T, W> &in, int64_t at, uint32_t place, uint64_t key)
{
    pack<T, W> out;
    float x[W];
    in.get(x);
#pragma unroll
    for (int k = 0; k < W; k++) {
        x[k] = dt_dropout_keeps(key, place + k, d.limit) ? x[k] * d.factor : 0.0f;
    }
    out.set(x);
    out.store(d.x + at);
}

/* Grid: (pieces of a sample, samples). */
template <typename T, int W> __global__ void __launch_bounds__(256) drop_elements(dropping<T> d)
{
    const int64_t tile = 256 * UNROLL * W;
    for (int64_t sample = blockIdx.y; sample * d.sample_size < d.count; sample += gridDim.y) {
        int64_t first = sample * d.sample_size;
        int64_t size = d.count - first < d.sample_size ? d.count - first : d.sample_size;
        uint64_t key = dt_dropout_key(d.seed, d.site, d.samples[sample]);
        for (int64_t place = blockIdx.x * tile + threadIdx.x * W; place < size; place += gridDim.x * tile) {
            pack<T, W> in[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                if (place + u * 256 * W < size) {
                    in[u].load(d.in + first + place + u * 256 * W);
                }
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                if (place + u * 256 * W < size) {
                    drop<T, W>(d, in[u], first + place + u * 256 * W, (uint32_t)place + u * 256 * W, key);
                }
            }
        }
    }
}

template <typename T, int W> void launch(const struct dt_cuda_launch *l, const dropping<T> &d)
{
    int64_t samples = parts_of(d.count, d.sample_size), pieces = parts_of(d.sample_size, 256 * UNROLL * W);
    samples = samples < SAMPLES_MOST ? samples : (int64_t)SAMPLES_MOST;
    dim3 grid(walkers(l, pieces, 64), (unsigned)samples);
    DT_LAUNCH((drop_elements<T, W>), grid, 256, 0, (cudaStream_t)l->native, d);
}

template <typename T> void dropout(const struct dt_cuda_launch *l, const struct dt_dropout_args *a)
{
    const int W = 16 / (int)sizeof(T);
    dropping<T> d = {(T *)a->x,
                     (const T *)a->in,
                     a->samples,
                     a->seed,
                     a->site,
                     a->row_count * a->col_count,
                     a->rows_per_sample * a->col_count,
                     dt_dropout_limit(a->rate),
                     (float)(1.0 / (1.0 - a->rate))};
    if (aligned16(d.x) && aligned16(d.in) && d.sample_size % W == 0 && d.count % W == 0) {
        launch<T, W>(l, d);
    } else {
        launch<T, 1>(l, d);
    }
}

} // namespace

DT_CUDA_ROW(dropout, a->row_count <= 0 || a->col_count <= 0)
