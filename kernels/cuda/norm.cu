/* Residual sum and LayerNorm, forward. A row stays in the registers of its threads (a warp for
 * narrow rows, a block for wide ones), so every tensor is read once and written once. Beyond 8192
 * columns a block walks over its row three times. The residual sum is rounded to its type before
 * mean and variance are taken, because backward and recomputation start from the rounded sum and
 * must see the same row. */
#include "kernels/cuda/vector.cuh"

namespace
{

template <typename T> struct norm {
    T *y, *sum;
    float *mean, *rstd;
    const T *residual, *branch, *gamma, *beta;
    int64_t rows;
    int cols;
    float eps;
};

template <typename T, int W>
DT_FN void put_normed(T *y, const float (&x)[W], float mean, float rstd, const T *gamma, const T *beta)
{
    pack<T, W> g, b;
    float v[W], shift[W];
    g.load(gamma);
    b.load(beta);
    g.get(v);
    b.get(shift);
#pragma unroll
    for (int k = 0; k < W; k++) {
        v[k] = fmaf((x[k] - mean) * rstd, v[k], shift[k]);
    }
    g.set(v);
    g.store(y);
}

/* LANES threads per row, each with PACKS times W elements. */
template <typename T, int W, int PACKS, int LANES>
__global__ void __launch_bounds__(LANES == 32 ? 128 : LANES) norm_rows(norm<T> n)
{
    DT_SHARED(float, part, [2][LANES / 32]);
    const int ROWS = LANES == 32 ? 4 : 1;
    int lane = threadIdx.x % LANES;
    for (int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / LANES; row < n.rows;
         row += (int64_t)gridDim.x * ROWS) {
        int64_t at = row * (int64_t)n.cols;
        pack<T, W> r[PACKS], b[PACKS];
        float x[PACKS][W], total = 0, squares = 0;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int col = (p * LANES + lane) * W;
            r[p].clear();
            if (col < n.cols) {
                r[p].load(n.residual + at + col);
            }
        }
        if (n.branch != NULL) {
#pragma unroll
            for (int p = 0; p < PACKS; p++) {
                int col = (p * LANES + lane) * W;
                b[p].clear();
                if (col < n.cols) {
                    b[p].load(n.branch + at + col);
                }
            }
#pragma unroll
            for (int p = 0; p < PACKS; p++) {
                float add[W];
                r[p].get(x[p]);
                b[p].get(add);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    x[p][k] += add[k];
                }
                r[p].set(x[p]); /* set() rounds */
            }
        }
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int col = (p * LANES + lane) * W;
            if (n.sum != NULL && col < n.cols) {
                r[p].store(n.sum + at + col);
            }
            r[p].get(x[p]);
#pragma unroll
            for (int k = 0; k < W; k++) {
                total += x[p][k];
            }
        }
        float mean = group_sum<LANES>(total, part[0]) / (float)n.cols;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
#pragma unroll
            for (int k = 0; k < W; k++) {
                float d = (p * LANES + lane) * W < n.cols ? x[p][k] - mean : 0;
                squares = fmaf(d, d, squares);
            }
        }
        float rstd = 1.0F / sqrtf(group_sum<LANES>(squares, part[1]) / (float)n.cols + n.eps);
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int col = (p * LANES + lane) * W;
            if (col < n.cols) {
                put_normed<T, W>(n.y + at + col, x[p], mean, rstd, n.gamma + col, n.beta + col);
            }
        }
        if (lane == 0) {
            n.mean[row] = mean;
            n.rstd[row] = rstd;
        }
    }
}

/* Rows too wide for registers: one block each, which reads the row again. */
template <typename T, int W> __global__ void __launch_bounds__(512) norm_wide(norm<T> n)
{
    DT_SHARED(float, part, [2][16]);
    for (int64_t row = blockIdx.x; row < n.rows; row += gridDim.x) {
        const T *from = n.residual + row * (int64_t)n.cols,
                *branch = n.branch != NULL ? n.branch + row * (int64_t)n.cols : NULL;
        /* y holds the sum for now, if the caller does not ask for the sum */
        T *kept = n.sum != NULL ? n.sum + row * (int64_t)n.cols : n.y + row * (int64_t)n.cols;
        float total = 0, squares = 0;
        for (int col = threadIdx.x * W; col < n.cols; col += 512 * W) {
            pack<T, W> r, b;
            float x[W], add[W];
            r.load(from + col);
            if (branch != NULL) {
                b.load(branch + col);
                r.get(x);
                b.get(add);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    x[k] += add[k];
                }
                r.set(x);
            }
            r.store(kept + col);
            r.get(x);
#pragma unroll
            for (int k = 0; k < W; k++) {
                total += x[k];
            }
        }
        float mean = group_sum<512>(total, part[0]) / (float)n.cols;
        /* each thread reads only what it has written itself */
        for (int col = threadIdx.x * W; col < n.cols; col += 512 * W) {
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
        float rstd = 1.0F / sqrtf(group_sum<512>(squares, part[1]) / (float)n.cols + n.eps);
        for (int col = threadIdx.x * W; col < n.cols; col += 512 * W) {
            pack<T, W> r;
            float x[W];
            r.load(kept + col);
            r.get(x);
            put_normed<T, W>(n.y + row * (int64_t)n.cols + col, x, mean, rstd, n.gamma + col, n.beta + col);
        }
        if (threadIdx.x == 0) {
            n.mean[row] = mean;
            n.rstd[row] = rstd;
        }
    }
}

template <typename T, int W, int EACH, int LANES> void launch_rows(const struct dt_cuda_launch *l, const norm<T> &n)
{
    const int threads = LANES == 32 ? 128 : LANES;
    unsigned grid = walkers(l, parts_of(n.rows, threads / LANES), 8192 / threads);
    DT_LAUNCH((norm_rows<T, W, EACH / W, LANES>), grid, threads, 0, (cudaStream_t)l->native, n);
}

template <typename T, int W> void launch(const struct dt_cuda_launch *l, const norm<T> &n)
{
    if (n.cols <= 256) {
        launch_rows<T, W, 8, 32>(l, n);
    } else if (n.cols <= 512) {
        launch_rows<T, W, 16, 32>(l, n);
    } else if (n.cols <= 768) {
        launch_rows<T, W, 24, 32>(l, n);
    } else if (n.cols <= 1024) {
        launch_rows<T, W, 32, 32>(l, n);
    } else if (n.cols <= 2048) {
        launch_rows<T, W, 16, 128>(l, n);
    } else if (n.cols <= 4096) {
        launch_rows<T, W, 32, 128>(l, n);
    } else if (n.cols <= 8192) {
        launch_rows<T, W, 32, 256>(l, n);
    } else {
        unsigned grid = walkers(l, n.rows, 16);
        DT_LAUNCH((norm_wide<T, W>), grid, 512, 0, (cudaStream_t)l->native, n);
    }
}

template <typename T> void forward(const struct dt_cuda_launch *l, const struct dt_layernorm_args *a)
{
    norm<T> n = {(T *)a->y,           (T *)a->residual_out,   (float *)a->mean,
                 (float *)a->rstd,    (const T *)a->residual, (const T *)a->branch,
                 (const T *)a->gamma, (const T *)a->beta,     a->row_count,
                 (int)a->col_count,   (float)a->eps};
    bool aligned = aligned16(n.y) && aligned16(n.sum) && aligned16(n.residual) && aligned16(n.branch) &&
                   aligned16(n.gamma) && aligned16(n.beta);
    const int W = 16 / (int)sizeof(T);
    if (aligned && n.cols % W == 0) {
        launch<T, W>(l, n);
    } else {
        launch<T, 1>(l, n);
    }
}

} // namespace

extern "C" void dt_cuda_layernorm(struct dt_stream *s, const struct dt_layernorm_args *a)
{
    struct dt_cuda_launch l;
    if (a->row_count <= 0 || !dt_cuda_begin(s, &l)) {
        return;
    }
    if (a->type == DT_F32) {
        forward<float>(&l, a);
    } else if (a->type == DT_BF16) {
        forward<bf16>(&l, a);
    } else {
        dt_stream_fail(s, DT_INTERNAL, "layernorm: type %s is not made", dt_dtype_name(a->type));
    }
    dt_cuda_end(s, "layernorm");
}
