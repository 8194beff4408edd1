/* Values for measuring: a hash of the element's number, so nothing has to be copied to the
 * device. */
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/vector.cuh"

namespace
{

template <typename T> __global__ void __launch_bounds__(256) random_values(T *x, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < count; i += (int64_t)gridDim.x * 256) {
        uint32_t h = (uint32_t)i * 2654435761U + (uint32_t)(i >> 32);
        h = (h ^ h >> 15) * 2246822519U;
        h = (h ^ h >> 13) * 3266489917U;
        h ^= h >> 16;
        x[i] = narrow<T>(((float)(h >> 8) + 0.5F) * 0x1p-23F - 1.0F);
    }
}

} // namespace

extern "C" void dt_cuda_random(const struct dt_cuda_launch *l, void *x, int64_t count, enum dt_dtype type)
{
    unsigned grid = walkers(l, parts_of(count, 256), 16);
    if (count > 0) {
        (void)for_type(type, [&](auto t) {
            typedef typename decltype(t)::type T;
            DT_LAUNCH((random_values<T>), grid, 256, 0, (cudaStream_t)l->native, (T *)x, count);
        });
    }
}
