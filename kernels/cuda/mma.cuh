/* Products of bf16 tiles in shared memory by tensor cores, with sums in fp32. A warp computes 16 MT
 * rows. A lane's part of a result is c[MT][NT][4]. With lane = 4 g + t: c[m][n][0] and [1] are row
 * 16m+g, columns 8n+2t and 8n+2t+1; c[m][n][2] and [3] are the same columns of row 16m+g+8.
 *
 * A tile has COLS columns (a multiple of 32). Its rows are stored one after the other. The pieces
 * of 16 bytes of a row are permuted by row, so that eight rows of one column, which ldmatrix reads
 * at once, are in different banks. All sums have a fixed order: k ascending. */
#ifndef DT_KERNELS_CUDA_MMA_CUH
#define DT_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/vector.cuh"

template <int COLS> struct mma_tile {
    static_assert(COLS % 32 == 0, "a multiple of 32 columns");
    /* Rows of 128 bytes all begin in the same bank: 8 places for 8 rows. Of rows of 64 or 192 bytes
     * every second one does: 4 places. */
    enum { PIECES = COLS / 8, SHIFT = COLS % 64 == 0 ? 0 : 1, MASK = COLS % 64 == 0 ? 7 : 3 };

    static DT_METHOD int turn(int row)
    {
        return (row >> SHIFT) & MASK;
    }
    /* Index of the first element of a row's piece. */
    static DT_METHOD int at(int row, int piece)
    {
        return row * COLS + (piece ^ turn(row)) * 8;
    }
    /* The same for row base + row and piece 2 pair + half, with base a multiple of 8. The part that
     * depends on the lane is separate from the loop counters. */
    static DT_METHOD int at(int base, int row, int pair, int half)
    {
        return (base + row) * COLS + (2 * pair & ~MASK) * 8 + ((2 * pair & MASK) ^ (half ^ turn(row))) * 8;
    }
};

/* Loads rows first .. first + ROWS of a matrix, whose rows are `step` elements apart, into a tile.
 * Rows from `end` on, and columns from `cols` (a multiple of 8) on, become zero. All THREADS
 * threads of the block call it. The data has arrived after the dt_cp_wait that covers the commit,
 * and a barrier. The matrix has fewer than 2^31 elements: offsets of 32 bits leave registers for
 * the products. */
template <int ROWS, int COLS, int THREADS>
DT_FN void mma_copy(bf16 *tile, const bf16 *from, int step, int first, int end, int cols)
{
    typedef mma_tile<COLS> t;
    /* threads per row; rows at a time */
    enum { LINE = t::PIECES <= 4 ? 4 : t::PIECES <= 8 ? 8 : 16, EACH = THREADS / LINE };
    static_assert((int)t::PIECES <= (int)LINE && ROWS % EACH == 0, "whole rows");
    int row = (int)threadIdx.x / LINE, piece = (int)threadIdx.x % LINE;
    if (piece < t::PIECES) {
        int left = piece * 8 < cols ? end - first - row : 0;
        int offset = (first + row) * step + piece * 8;
#pragma unroll
        for (int i = 0; i < ROWS; i += EACH) {
            dt_cp_async16_zero(tile + t::at(i + row, piece), i < left ? from + offset + i * step : from,
                               i < left ? 16 : 0);
        }
    }
}

/* The left operand, 16 x 16: rows from `row` on, columns 16 k .. */
template <int COLS> DT_FN void mma_left(uint32_t *a, const bf16 *tile, int row, int k)
{
    int lane = (int)threadIdx.x % 32;
    dt_ldmatrix_x4<false>(a, tile + mma_tile<COLS>::at(row, lane & 15, k, lane >> 4));
}

/* The right operand, twice 16 x 8, from a tile that holds its columns as rows: rows from `row` on,
 * columns 16 k .. */
template <int COLS> DT_FN void mma_right_of_rows(uint32_t *b, const bf16 *tile, int row, int k)
{
    int lane = (int)threadIdx.x % 32;
    dt_ldmatrix_x4<false>(b, tile + mma_tile<COLS>::at(row, (lane & 7) + (lane >> 4) * 8, k, (lane >> 3) & 1));
}

/* The right operand, twice 16 x 8, from a tile that is not transposed: rows from `row` on, columns
 * 16 n .. */
template <int COLS> DT_FN void mma_right(uint32_t *b, const bf16 *tile, int row, int n)
{
    int lane = (int)threadIdx.x % 32;
    dt_ldmatrix_x4<true>(b, tile + mma_tile<COLS>::at(row, lane & 15, n, lane >> 4));
}

/* A warp's rows of a tile as left operand: kept in registers, or read again for each product. */
template <int MT, int COLS, bool KEPT> struct mma_rows;
template <int MT, int COLS> struct mma_rows<MT, COLS, true> {
    enum { UNROLL = COLS / 16 };
    uint32_t a[COLS / 16][MT][4];

    DT_METHOD void begin(const bf16 *tile, int row)
    {
#pragma unroll
        for (int k = 0; k < COLS / 16; k++) {
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_left<COLS>(a[k][m], tile, row + 16 * m, k);
            }
        }
    }
    DT_METHOD void get(uint32_t (&to)[MT][4], int k) const
    {
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                to[m][i] = a[k][m][i];
            }
        }
    }
};
template <int MT, int COLS> struct mma_rows<MT, COLS, false> {
    enum {
        UNROLL = COLS > 96 ? 4 : COLS / 16
    }; /* unrolled by 8, ptxas would keep more operands ready than there are registers */
    const bf16 *tile;
    int row;

    DT_METHOD void begin(const bf16 *from, int first)
    {
        tile = from;
        row = first;
    }
    DT_METHOD void get(uint32_t (&to)[MT][4], int k) const
    {
#pragma unroll
        for (int m = 0; m < MT; m++) {
            mma_left<COLS>(to[m], tile, row + 16 * m, k);
        }
    }
};

template <int MT, int NT> DT_FN void mma_clear(float (&c)[MT][NT][4])
{
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                c[m][n][i] = 0.0f;
            }
        }
    }
}

/* c = left x (rows `row` .. row + 8 NT of the tile)^T, over all columns */
template <int MT, int NT, int COLS, typename L>
DT_FN void mma_product_of_rows(float (&c)[MT][NT][4], const L &left, const bf16 *tile, int row)
{
    mma_clear(c);
#pragma unroll(L::UNROLL)
    for (int k = 0; k < COLS / 16; k++) {
        uint32_t a[MT][4];
        left.get(a, k);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t b[4];
            mma_right_of_rows<COLS>(b, tile, row + 8 * n, k);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                dt_mma_bf16(c[m][n], a[m], b);
                dt_mma_bf16(c[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* Rounds a result to bf16, as left operand of the next product. */
template <int MT, int NT> DT_FN void mma_round(uint32_t (&a)[NT / 2][MT][4], const float (&c)[MT][NT][4])
{
#pragma unroll
    for (int k = 0; k < NT / 2; k++) {
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                dt_bf162 pair =
                    __floats2bfloat162_rn(c[m][2 * k + i / 2][i % 2 * 2], c[m][2 * k + i / 2][i % 2 * 2 + 1]);
                memcpy(&a[k][m][i], &pair, sizeof pair);
            }
        }
    }
}

/* c += left (16 KT columns) x rows `row` .. row + 16 KT of the tile */
template <int MT, int KT, int COLS>
DT_FN void mma_add_product(float (&c)[MT][COLS / 8][4], const uint32_t (&left)[KT][MT][4], const bf16 *tile, int row)
{
#pragma unroll
    for (int k = 0; k < KT; k++) {
#pragma unroll
        for (int n = 0; n < COLS / 8; n += 2) {
            uint32_t b[4];
            mma_right<COLS>(b, tile, row + 16 * k, n / 2);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                dt_mma_bf16(c[m][n], left[k][m], b);
                dt_mma_bf16(c[m][n + 1], left[k][m], b + 2);
            }
        }
    }
}

/* Stores a warp's result times factor[m][0 or 1] (row 16m+g, 16m+g+8), rounded, to rows first .. of
 * a matrix (to: its row 0; rows are `step` elements apart), but only rows below `end` and columns
 * below `cols`. The data goes through rows `row` .. of a tile that no other warp uses any more, so
 * that each lane writes 16 bytes at once. */
template <int MT, int COLS>
DT_FN void mma_store(bf16 *to, int64_t step, int first, int end, int cols, bf16 *tile, int row,
                     const float (&c)[MT][COLS / 8][4], const float (&factor)[MT][2])
{
    typedef mma_tile<COLS> t;
    int lane = (int)threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < COLS / 8; n++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                dt_bf162 pair =
                    __floats2bfloat162_rn(c[m][n][2 * half] * factor[m][half], c[m][n][2 * half + 1] * factor[m][half]);
                *(dt_bf162 *)(tile + t::at(row + 16 * m + 8 * half + lane / 4, n) + lane % 4 * 2) = pair;
            }
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * MT * t::PIECES; i += 32) {
        int r = i / t::PIECES, piece = i % t::PIECES;
        if (first + r < end && piece * 8 < cols) {
            *(uint4 *)(to + (first + r) * step + piece * 8) = *(const uint4 *)(tile + t::at(row + r, piece));
        }
    }
}

#endif
