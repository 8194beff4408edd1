/* Shared by the norms: where their rows are, and rows that have part of a warp. */
#ifndef DT_KERNELS_CUDA_NORM_CUH
#define DT_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/vector.cuh"

/* Norms of heads: row r is head r % heads of position r / heads, with ld elements between
 * positions. heads 0: rows are tight. With heads, r is below 2^32, because a division of 32 bits
 * is several times as fast. */
struct norm_rows_at {
    uint32_t heads;
    int64_t ld;

    DT_METHOD int64_t at(int64_t row, int cols) const
    {
        if (heads == 0) {
            return row * cols;
        }
        uint32_t position = (uint32_t)row / heads, head = (uint32_t)row - position * heads;
        return (int64_t)position * ld + (int64_t)head * cols;
    }
};

static inline norm_rows_at norm_rows_of(int64_t heads, int64_t ld)
{
    norm_rows_at at = {(uint32_t)heads, heads > 0 ? ld : 0};
    return at;
}

/* False, and the stream has failed, if there are too many rows of heads. */
static inline bool norm_rows_fit(struct dt_stream *s, const char *kernel, int64_t heads, int64_t rows)
{
    if (heads > 0 && rows > (int64_t)UINT32_MAX) {
        dt_stream_fail(s, DT_INVALID, "%s: %lld rows of heads: a device takes %lld", kernel, (long long)rows,
                       (long long)UINT32_MAX);
        return false;
    }
    return true;
}

/* The row of a warp's first thread, where LANES threads have a row each: all lanes of a warp take
 * as many turns. */
template <int LANES> DT_FN int64_t first_of_warp(int64_t row)
{
    return LANES >= 32 ? row : row - threadIdx.x % 32 / LANES;
}

#endif
