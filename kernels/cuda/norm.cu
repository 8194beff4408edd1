/* Residual sum with LayerNorm or RMSNorm, forward: one set of kernels, in which CENTERS is true
 * for LayerNorm; RMSNorm takes no mean away. A row stays in the registers of its threads (part of
 * a warp or a warp for narrow rows, a block for wide ones), so every tensor is read once and
 * written once. Beyond 8192 columns a block walks over its row three times. The residual sum is
 * rounded to its type before mean and variance are taken, because backward and recomputation start
 * from the rounded sum and must see the same row. */
#include "kernels/cuda/norm.cuh"

namespace
{

/* A norm's tensors. LayerNorm has no heads, scale and offset; RMSNorm has no mean and bias. */
template <typename T> struct norm {
    T *y, *sum;
    float *mean, *rstd;
    const T *residual, *branch, *weight, *bias;
    int64_t rows;
    int cols;
    float eps, branch_scale, weight_offset;
    norm_rows_at in, out; /* of residual, of y */
};

/* y = (x - mean) rstd weight + bias, or x rstd (offset + weight) */
template <typename T, int W, bool CENTERS>
DT_FN void put_normed(T *y, const float (&x)[W], float mean, float rstd, const norm<T> &n, int col)
{
    pack<T, W> p;
    float v[W], shift[W];
    p.load(n.weight + col);
    p.get(v);
    if (CENTERS && n.bias != NULL) {
        pack<T, W> b;
        b.load(n.bias + col);
        b.get(shift);
    }
#pragma unroll
    for (int k = 0; k < W; k++) {
        if (CENTERS) {
            v[k] = fmaf((x[k] - mean) * rstd, v[k], n.bias != NULL ? shift[k] : 0);
        } else {
            v[k] = x[k] * rstd * (n.weight_offset + v[k]);
        }
    }
    p.set(v);
    p.store(y);
}

/* x += branch, times its scale */
template <int W, bool CENTERS> DT_FN void add_branch(float (&x)[W], const float (&branch)[W], float scale)
{
#pragma unroll
    for (int k = 0; k < W; k++) {
        x[k] = CENTERS ? x[k] + branch[k] : fmaf(scale, branch[k], x[k]);
    }
}

/* LANES threads per row, each with PACKS times W elements. */
template <typename T, int W, int PACKS, int LANES, bool CENTERS>
__global__ void __launch_bounds__(LANES <= 32 ? 128 : LANES, CENTERS       ? 0
                                                             : LANES <= 32 ? 4
                                                                           : 512 / LANES) norm_rows(norm<T> n)
{
    DT_SHARED(float, part, [2][LANES <= 32 ? 1 : LANES / 32]);
    const int ROWS = LANES <= 32 ? 128 / LANES : 1;
    int lane = threadIdx.x % LANES, turn = 0;
    for (int64_t next = (int64_t)blockIdx.x * ROWS + threadIdx.x / LANES; first_of_warp<LANES>(next) < n.rows;
         next += (int64_t)gridDim.x * ROWS, turn ^= 1) {
        /* groups of the last warp beyond the last row only take part in the sums; they read nothing (y may be residual)
           and write nothing */
        bool live = LANES >= 32 || next < n.rows;
        int64_t row = live ? next : n.rows - 1, kept = row * (int64_t)n.cols;
        int64_t from = CENTERS ? kept : n.in.at(row, n.cols), to = CENTERS ? kept : n.out.at(row, n.cols);
        pack<T, W> r[PACKS], b[PACKS];
        float x[PACKS][W], total = 0, squares = 0;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int col = (p * LANES + lane) * W;
            r[p].clear();
            if (col < n.cols && live) {
                r[p].load(n.residual + from + col);
            }
        }
        if (n.branch != NULL) {
#pragma unroll
            for (int p = 0; p < PACKS; p++) {
                int col = (p * LANES + lane) * W;
                b[p].clear();
                if (col < n.cols && live) {
                    b[p].load(n.branch + kept + col);
                }
            }
#pragma unroll
            for (int p = 0; p < PACKS; p++) {
                float add[W];
                r[p].get(x[p]);
                b[p].get(add);
                add_branch<W, CENTERS>(x[p], add, n.branch_scale);
                r[p].set(x[p]); /* set() rounds */
            }
        }
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int col = (p * LANES + lane) * W;
            if (n.sum != NULL && col < n.cols && live) {
                r[p].store(n.sum + kept + col);
            }
            r[p].get(x[p]);
#pragma unroll
            for (int k = 0; k < W; k++) {
                if (CENTERS) {
                    total += x[p][k];
                } else {
                    squares = fmaf(x[p][k], x[p][k], squares); /* 0 behind the end */
                }
            }
        }
        float mean = CENTERS ? group_sum<LANES>(total, part[0]) / (float)n.cols : 0;
#pragma unroll
        for (int p = 0; p < PACKS && CENTERS; p++) {
#pragma unroll
            for (int k = 0; k < W; k++) {
                float d = (p * LANES + lane) * W < n.cols ? x[p][k] - mean : 0;
                squares = fmaf(d, d, squares);
            }
        }
        float rstd = 1.0F / sqrtf(group_sum<LANES>(squares, part[CENTERS ? 1 : turn]) / (float)n.cols + n.eps);
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int col = (p * LANES + lane) * W;
            if (col < n.cols && live) {
                put_normed<T, W, CENTERS>(n.y + to + col, x[p], mean, rstd, n, col);
            }
        }
        if (lane == 0 && live) {
            if (CENTERS) {
                n.mean[row] = mean;
            }
            n.rstd[row] = rstd;
        }
    }
}

/* Rows too wide for registers: one block each, which reads the row again. */
template <typename T, int W, bool CENTERS> __global__ void __launch_bounds__(512, CENTERS ? 0 : 2) norm_wide(norm<T> n)
{
    DT_SHARED(float, part, [2][16]);
    int turn = 0;
    for (int64_t row = blockIdx.x; row < n.rows; row += gridDim.x, turn ^= 1) {
        int64_t tight = row * (int64_t)n.cols;
        const T *from = n.residual + (CENTERS ? tight : n.in.at(row, n.cols)),
                *branch = n.branch != NULL ? n.branch + tight : NULL;
        T *y = n.y + (CENTERS ? tight : n.out.at(row, n.cols));
        /* y holds the sum for now, if the caller does not ask for the sum */
        T *kept = n.sum != NULL ? n.sum + tight : y;
        float total = 0, squares = 0;
        for (int col = threadIdx.x * W; col < n.cols; col += 512 * W) {
            pack<T, W> r, b;
            float x[W], add[W];
            r.load(from + col);
            if (branch != NULL) {
                b.load(branch + col);
                r.get(x);
                b.get(add);
                add_branch<W, CENTERS>(x, add, n.branch_scale);
                r.set(x);
            }
            r.store(kept + col);
            r.get(x);
#pragma unroll
            for (int k = 0; k < W; k++) {
                if (CENTERS) {
                    total += x[k];
                } else {
                    squares = fmaf(x[k], x[k], squares);
                }
            }
        }
        float mean = CENTERS ? group_sum<512>(total, part[0]) / (float)n.cols : 0;
        /* each thread reads only what it has written itself */
        for (int col = threadIdx.x * W; col < n.cols && CENTERS; col += 512 * W) {
            pack<T, W> r;
            float x[W];
            r.load(kept + col);
            r.get(x);
#pragma unroll
            for (int k = 0; k < W; k++) {
                float d = x[k] - mean;
                squares = fmaf(d, d, squares);
            }
        }
        float rstd = 1.0F / sqrtf(group_sum<512>(squares, part[CENTERS ? 1 : turn]) / (float)n.cols + n.eps);
        for (int col = threadIdx.x * W; col < n.cols; col += 512 * W) {
            pack<T, W> r;
            float x[W];
            r.load(kept + col);
            r.get(x);
            put_normed<T, W, CENTERS>(y + col, x, mean, rstd, n, col);
        }
        if (threadIdx.x == 0) {
            if (CENTERS) {
                n.mean[row] = mean;
            }
            n.rstd[row] = rstd;
        }
    }
}

template <typename T, int W, int EACH, int LANES, bool CENTERS>
void launch_rows(const struct dt_cuda_launch *l, const norm<T> &n)
{
    const int threads = LANES <= 32 ? 128 : LANES;
    unsigned grid = walkers(l, parts_of(n.rows, threads / LANES), 8192 / threads);
    DT_LAUNCH((norm_rows<T, W, EACH / W, LANES, CENTERS>), grid, threads, 0, (cudaStream_t)l->native, n);
}

/* More than 2048 columns. Element by element, as where rows are not aligned, so many do not fit registers. */
template <typename T, int W, bool CENTERS> void launch_wide(const struct dt_cuda_launch *l, const norm<T> &n)
{
    if constexpr (W > 1) {
        if (n.cols <= 4096) {
            launch_rows<T, W, 32, 128, CENTERS>(l, n);
            return;
        }
        if (n.cols <= 8192) {
            launch_rows<T, W, 32, 256, CENTERS>(l, n);
            return;
        }
    }
    DT_LAUNCH((norm_wide<T, W, CENTERS>), walkers(l, n.rows, 16), 512, 0, (cudaStream_t)l->native, n);
}

template <typename T, int W, bool CENTERS> void launch(const struct dt_cuda_launch *l, const norm<T> &n)
{
    if (n.cols <= 64) { /* heads */
        launch_rows<T, W, 8, 8, CENTERS>(l, n);
    } else if (n.cols <= 128) {
        launch_rows<T, W, 8, 16, CENTERS>(l, n);
    } else if (n.cols <= 256) {
        launch_rows<T, W, 8, 32, CENTERS>(l, n);
    } else if (n.cols <= 512) {
        launch_rows<T, W, 16, 32, CENTERS>(l, n);
    } else if (n.cols <= 768) {
        launch_rows<T, W, 24, 32, CENTERS>(l, n);
    } else if (n.cols <= 1024) {
        launch_rows<T, W, 32, 32, CENTERS>(l, n);
    } else if (n.cols <= 2048) {
        launch_rows<T, W, 16, 128, CENTERS>(l, n);
    } else {
        launch_wide<T, W, CENTERS>(l, n);
    }
}

template <typename T, bool CENTERS> void launch_norm(const struct dt_cuda_launch *l, const norm<T> &n)
{
    const int W = 16 / (int)sizeof(T);
    bool aligned = aligned16(n.y) && aligned16(n.sum) && aligned16(n.residual) && aligned16(n.branch) &&
                   aligned16(n.weight) && aligned16(n.bias) && n.in.ld % W == 0 && n.out.ld % W == 0;
    if (aligned && n.cols % W == 0) {
        launch<T, W, CENTERS>(l, n);
    } else {
        launch<T, 1, CENTERS>(l, n);
    }
}

template <typename T> void layernorm(const struct dt_cuda_launch *l, const struct dt_layernorm_args *a)
{
    norm<T> n = {(T *)a->y,
                 (T *)a->residual_out,
                 (float *)a->mean,
                 (float *)a->rstd,
                 (const T *)a->residual,
                 (const T *)a->branch,
                 (const T *)a->gamma,
                 (const T *)a->beta,
                 a->row_count,
                 (int)a->col_count,
                 (float)a->eps,
                 1,
                 0,
                 {0, 0},
                 {0, 0}};
    launch_norm<T, true>(l, n);
}

template <typename T> void rmsnorm(const struct dt_cuda_launch *l, const struct dt_rmsnorm_args *a)
{
    norm<T> n = {(T *)a->y,
                 (T *)a->residual_out,
                 NULL,
                 (float *)a->rstd,
                 (const T *)a->residual,
                 (const T *)a->branch,
                 (const T *)a->weight,
                 NULL,
                 a->row_count,
                 (int)a->col_count,
                 (float)a->eps,
                 a->branch_scale != 0 ? (float)a->branch_scale : 1.0F,
                 (float)a->weight_offset,
                 norm_rows_of(a->heads, a->x_ld),
                 norm_rows_of(a->heads, a->y_ld)};
    launch_norm<T, false>(l, n);
}

} // namespace

DT_CUDA_ROW(layernorm, a->row_count <= 0)
DT_CUDA_ROW(rmsnorm, a->row_count <= 0 || !norm_rows_fit(s, "rmsnorm", a->heads, a->row_count))
