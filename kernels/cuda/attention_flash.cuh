/* Shared by both passes on tensor cores: which scores a row sees, and the head sizes that kernels
 * exist for. */
#ifndef DT_KERNELS_CUDA_ATTENTION_FLASH_CUH
#define DT_KERNELS_CUDA_ATTENTION_FLASH_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

#include <type_traits>

namespace
{

/* Sets the scores of keys that a row does not see to -infinity. The lane's first row sees `seen`
 * keys of the tile, and each row below it `per_row` more. */
template <int MT, int NT> DT_FN void hide_keys(float (&c)[MT][NT][4], int seen, int per_row)
{
    int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int limit = seen + per_row * (16 * m + i / 2 * 8);
                c[m][n][i] = 8 * n + column + i % 2 < limit ? c[m][n][i] : -INFINITY;
            }
        }
    }
}

/* Calls go(std::integral_constant<int, D>) with the kernel's D for this head size, which is padded
 * with columns of zeros. */
template <typename F> void with_head_size(const struct shape &s, F go)
{
    if (s.head_size <= 32) {
        go(std::integral_constant<int, 32>());
    } else if (s.head_size <= 64) {
        go(std::integral_constant<int, 64>());
    } else if (s.head_size <= 96) {
        go(std::integral_constant<int, 96>());
    } else {
        go(std::integral_constant<int, 128>());
    }
}

} // namespace

#endif
