/* Windows over images: unfolding for convolutions and its backward, and the largest values. A thread
 * makes one element of the output. Sums are F32, in the order of the pixels of a window. */
#include "kernels/cuda/vector.cuh"

namespace
{

/* The window in which pixel `at` has place k of its side; -1: there is none. */
DT_FN int64_t window_at(int64_t at, int64_t k, const dt_windows &w, int64_t count)
{
    int64_t first = at + w.padding - k;
    return first >= 0 && first % w.stride == 0 && first / w.stride < count ? first / w.stride : -1;
}

/* Place of pixel (b, y, x) of the images; -1: it is outside. */
DT_FN int64_t pixel_at(const dt_windows &w, int64_t b, int64_t y, int64_t x)
{
    return y >= 0 && y < w.height && x >= 0 && x < w.width ? (b * w.height + y) * w.width + x : -1;
}

template <typename T, typename X>
__global__ void __launch_bounds__(256) unfold_pixels(T *out, const X *x, dt_windows w, bool planar, int64_t count)
{
    int64_t all = w.size * w.size, columns = w.channels * all, plane = w.height * w.width;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < count; i += (int64_t)gridDim.x * 256) {
        int64_t r = i / columns, column = i % columns, c = column / all, k = column % all;
        int64_t line = r / w.out_width, b = line / w.out_height;
        int64_t at = pixel_at(w, b, line % w.out_height * w.stride - w.padding + k / w.size,
                              r % w.out_width * w.stride - w.padding + k % w.size);
        float value = 0;
        if (at >= 0) {
            value = widen<X>(x[planar ? (b * w.channels + c) * plane + at % plane : at * w.channels + c]);
        }
        out[i] = narrow<T>(value);
    }
}

template <typename T>
__global__ void __launch_bounds__(256) fold_pixels(T *dx, const T *dout, dt_windows w, bool accumulate, int64_t count)
{
    int64_t all = w.size * w.size;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < count; i += (int64_t)gridDim.x * 256) {
        int64_t c = i % w.channels, pixel = i / w.channels, x = pixel % w.width, line = pixel / w.width;
        int64_t y = line % w.height, b = line / w.height;
        float sum = 0;
        for (int64_t k = 0; k < all; k++) {
            int64_t oy = window_at(y, k / w.size, w, w.out_height), ox = window_at(x, k % w.size, w, w.out_width);
            if (oy >= 0 && ox >= 0) {
                sum += widen<T>(dout[(((b * w.out_height + oy) * w.out_width + ox) * w.channels + c) * all + k]);
            }
        }
        dx[i] = narrow<T>(accumulate ? sum + widen<T>(dx[i]) : sum);
    }
}

template <typename T>
__global__ void __launch_bounds__(256) pool_pixels(T *y, uint8_t *at, const T *x, dt_windows w, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < count; i += (int64_t)gridDim.x * 256) {
        int64_t c = i % w.channels, r = i / w.channels, line = r / w.out_width;
        float best = 0;
        int place = -1;
        for (int k = 0; k < w.size * w.size; k++) {
            int64_t from = pixel_at(w, line / w.out_height, line % w.out_height * w.stride - w.padding + k / w.size,
                                    r % w.out_width * w.stride - w.padding + k % w.size);
            float value = from >= 0 ? widen<T>(x[from * w.channels + c]) : 0;
            if (from >= 0 && (place < 0 || value > best || value != value)) {
                best = value;
                place = k;
            }
        }
        y[i] = narrow<T>(best);
        at[i] = (uint8_t)place;
    }
}

template <typename T>
__global__ void __launch_bounds__(256) spread_pixels(T *dx, const T *dy, const uint8_t *at, dt_windows w, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < count; i += (int64_t)gridDim.x * 256) {
        int64_t c = i % w.channels, pixel = i / w.channels, line = pixel / w.width;
        float sum = 0;
        for (int k = 0; k < w.size * w.size; k++) {
            int64_t oy = window_at(line % w.height, k / w.size, w, w.out_height),
                    ox = window_at(pixel % w.width, k % w.size, w, w.out_width);
            int64_t from = ((line / w.height * w.out_height + oy) * w.out_width + ox) * w.channels + c;
            if (oy >= 0 && ox >= 0 && at[from] == k) {
                sum += widen<T>(dy[from]);
            }
        }
        dx[i] = narrow<T>(sum);
    }
}

static int64_t pixels_of(const dt_windows &w)
{
    return w.batch * w.height * w.width * w.channels;
}

static int64_t outputs_of(const dt_windows &w)
{
    return w.batch * w.out_height * w.out_width * w.channels;
}

static unsigned grid_of(const struct dt_cuda_launch *l, int64_t count)
{
    return walkers(l, parts_of(count, 256), 64);
}

template <typename T> void unfold(const struct dt_cuda_launch *l, const struct dt_unfold_args *a)
{
    const dt_windows &w = a->windows;
    int64_t count = outputs_of(w) * w.size * w.size;
    if (a->x_type == DT_F32) {
        DT_LAUNCH((unfold_pixels<T, float>), grid_of(l, count), 256, 0, (cudaStream_t)l->native, (T *)a->out,
                  (const float *)a->x, w, a->planar, count);
    } else {
        DT_LAUNCH((unfold_pixels<T, T>), grid_of(l, count), 256, 0, (cudaStream_t)l->native, (T *)a->out,
                  (const T *)a->x, w, a->planar, count);
    }
}

template <typename T> void fold(const struct dt_cuda_launch *l, const struct dt_fold_args *a)
{
    int64_t count = pixels_of(a->windows);
    DT_LAUNCH((fold_pixels<T>), grid_of(l, count), 256, 0, (cudaStream_t)l->native, (T *)a->dx, (const T *)a->dout,
              a->windows, a->accumulate, count);
}

template <typename T> void max_pool(const struct dt_cuda_launch *l, const struct dt_max_pool_args *a)
{
    int64_t count = outputs_of(a->windows);
    DT_LAUNCH((pool_pixels<T>), grid_of(l, count), 256, 0, (cudaStream_t)l->native, (T *)a->y, a->at, (const T *)a->x,
              a->windows, count);
}

template <typename T> void max_pool_backward(const struct dt_cuda_launch *l, const struct dt_max_pool_backward_args *a)
{
    int64_t count = pixels_of(a->windows);
    DT_LAUNCH((spread_pixels<T>), grid_of(l, count), 256, 0, (cudaStream_t)l->native, (T *)a->dx, (const T *)a->dy,
              a->at, a->windows, count);
}

} // namespace

DT_CUDA_ROW(unfold, pixels_of(a->windows) <= 0 || outputs_of(a->windows) <= 0)
DT_CUDA_ROW(fold, pixels_of(a->windows) <= 0 || outputs_of(a->windows) <= 0)
DT_CUDA_ROW(max_pool, pixels_of(a->windows) <= 0 || outputs_of(a->windows) <= 0)
DT_CUDA_ROW(max_pool_backward, pixels_of(a->windows) <= 0 || outputs_of(a->windows) <= 0)
