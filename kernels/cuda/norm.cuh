/* Shared by the norms: where their rows are, and rows that have part of a warp. */
#ifndef DT_KERNELS_CUDA_NORM_CUH
#define DT_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/vector.cuh"

/* Norms of heads: row r is head r % heads of position r / heads, with ld elements between positions.
 * heads 0: rows are tight. */
struct norm_rows_at {
    int64_t heads, ld;

    DT_METHOD int64_t at(int64_t row, int cols) const
    {
        if (heads == 0) {
            return row * cols;
        }
        /* a division of 32 bits is several times as fast */
        int64_t position = row >> 32 == 0 ? (int64_t)((uint32_t)row / (uint32_t)heads) : row / heads;
        return position * ld + (row - position * heads) * cols;
    }
};

/* The row of a warp's first thread, where LANES threads have a row each: all lanes of a warp take as
 * many turns. */
template <int LANES> DT_FN int64_t first_of_warp(int64_t row)
{
    return LANES >= 32 ? row : row - threadIdx.x % 32 / LANES;
}

#endif
