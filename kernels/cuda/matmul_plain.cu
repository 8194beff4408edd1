/* The product without a library: tiles of 64 x 64 in shared memory, 4 x 4 fp32 sums per thread, k
 * in order. So an element's bits depend only on its row of a, its column of b, and k. Any layout,
 * size and alignment. It does not use tensor cores: cublasLt does. */
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/vector.cuh"

namespace
{

enum { TILE = 64, DEPTH = 16, THREADS = 256, PER_THREAD = 4 };

struct product {
    int64_t m, n, k, lda, ldb, ldc;
    bool a_transposed, b_transposed, accumulate;
};

/* Element (row, l) of op(x), where x is stored (rows, k) or, transposed, (k, rows); 0 outside. */
template <typename T>
__device__ __forceinline__ float element(const T *x, int64_t row, int64_t l, int64_t rows, int64_t k, int64_t ld,
                                         bool transposed)
{
    if (row >= rows || l >= k) {
        return 0.0f;
    }
    return widen(transposed ? x[l * ld + row] : x[row * ld + l]);
}

template <typename T, typename C>
__global__ void __launch_bounds__(THREADS) matmul_plain(C *c, const T *a, const T *b, const T *bias, struct product p)
{
    DT_SHARED(float, as, [DEPTH][TILE + 4]);
    DT_SHARED(float, bs, [DEPTH][TILE + 4]);
    int thread = (int)threadIdx.x, tx = thread % 16, ty = thread / 16;
    int64_t row0 = (int64_t)blockIdx.y * TILE, col0 = (int64_t)blockIdx.x * TILE;
    float sum[PER_THREAD][PER_THREAD] = {};
    for (int64_t l0 = 0; l0 < p.k; l0 += DEPTH) {
        for (int i = thread; i < TILE * DEPTH; i += THREADS) {
            /* neighbours in memory go to neighbouring threads */
            int row = p.a_transposed ? i % TILE : i / DEPTH, l = p.a_transposed ? i / TILE : i % DEPTH;
            as[l][row] = element(a, row0 + row, l0 + l, p.m, p.k, p.lda, p.a_transposed);
            int col = p.b_transposed ? i / DEPTH : i % TILE, q = p.b_transposed ? i % DEPTH : i / TILE;
            bs[q][col] = element(b, col0 + col, l0 + q, p.n, p.k, p.ldb, !p.b_transposed);
        }
        __syncthreads();
        for (int l = 0; l < DEPTH; l++) {
            float x[PER_THREAD], y[PER_THREAD];
            for (int i = 0; i < PER_THREAD; i++) {
                x[i] = as[l][ty * PER_THREAD + i];
                y[i] = bs[l][tx * PER_THREAD + i];
            }
            for (int i = 0; i < PER_THREAD; i++) {
                for (int j = 0; j < PER_THREAD; j++) {
                    sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
                }
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < PER_THREAD; i++) {
        for (int j = 0; j < PER_THREAD; j++) {
            int64_t row = row0 + ty * PER_THREAD + i, col = col0 + tx * PER_THREAD + j;
            if (row < p.m && col < p.n) {
                C *at = &c[row * p.ldc + col];
                float x = sum[i][j] + (bias != nullptr ? widen(bias[col]) : 0.0f);
                *at = narrow<C>(p.accumulate ? widen(*at) + x : x);
            }
        }
    }
}

template <typename T, typename C>
void launch(const struct dt_cuda_launch *l, const struct dt_matmul_args *a, const struct product &p)
{
    dim3 grid((unsigned)((a->n + TILE - 1) / TILE), (unsigned)((a->m + TILE - 1) / TILE));
    DT_LAUNCH((matmul_plain<T, C>), grid, THREADS, 0, (cudaStream_t)l->native, (C *)a->c, (const T *)a->a,
              (const T *)a->b, (const T *)a->bias, p);
}

} // namespace

void dt_cuda_matmul_plain(const struct dt_cuda_launch *l, const struct dt_matmul_args *a)
{
    const int64_t most = (int64_t)TILE * 65535; /* most rows of one grid */
    for (int64_t row = 0; row < a->m; row += most) {
        struct dt_matmul_key key = dt_matmul_key_of(a, false);
        struct dt_matmul_args part = *a;
        size_t size = dt_dtype_size(a->type), c_size = dt_dtype_size((enum dt_dtype)key.c_type);
        part.m = a->m - row < most ? a->m - row : most;
        part.a = (const char *)a->a + (size_t)(a->a_transposed ? row : row * key.lda) * size;
        part.c = (char *)a->c + (size_t)(row * key.ldc) * c_size;
        struct product p = {part.m,          a->n,         a->k, key.lda, key.ldb, key.ldc, a->a_transposed,
                            a->b_transposed, a->accumulate};
        (void)for_type(a->type, [&](auto t) {
            typedef typename decltype(t)::type T;
            key.c_type == DT_F32 ? launch<T, float>(l, &part, p) : launch<T, T>(l, &part, p);
        });
    }
}
