/* LayerNorm backward: dx = rstd (g - mean(g) - h mean(g h)) + dresidual, with g = dy gamma, h =
 * (x - mean) rstd; and the sums of dy h and dy over the rows, for gamma and beta. All tensors
 * are read once. A row stays in the registers of its threads, which keep the two sums of their
 * columns over all their rows. The number of blocks, and so the order of these sums, depends on
 * the shape alone. */
#include "kernels/cuda/columns.cuh"

namespace
{

template <typename T> struct backward {
    T *dx;
    float *partial; /* (blocks, 2, cols); null: dgamma and dbeta are not wanted */
    const T *dy, *x, *gamma, *above;
    const float *mean, *rstd;
    int64_t rows;
    int cols;
};

/* threads of all blocks together: 512 for each multiprocessor of an H100 */
enum { THREADS = 67584 };

/* Two group_sums at once; `part` as there. */
template <int LANES> DT_FN void group_sums(float *a, float *b, float (*part)[2])
{
    *a = warp_sum(*a);
    *b = warp_sum(*b);
    if (LANES == 32) {
        return;
    }
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32][0] = *a;
        part[threadIdx.x / 32][1] = *b;
    }
    __syncthreads();
    *a = part[0][0];
    *b = part[0][1];
#pragma unroll
    for (int i = 1; i < LANES / 32; i++) {
        *a += part[i][0];
        *b += part[i][1];
    }
}

/* dx of W columns; g and h as above; m and d are the two means */
template <typename T, int W>
DT_FN void put_dx(T *dx, const float (&dy)[W], const float (&x)[W], const float (&gamma)[W], const pack<T, W> &above,
                  bool adds, float mean, float rstd, float m, float d)
{
    pack<T, W> out;
    float v[W], add[W];
    above.get(add);
#pragma unroll
    for (int k = 0; k < W; k++) {
        v[k] = fmaf((x[k] - mean) * rstd, -d, dy[k] * gamma[k] - m);
        v[k] = adds ? fmaf(v[k], rstd, add[k]) : v[k] * rstd;
    }
    out.set(v);
    out.store(dx);
}

/* LANES threads per row, each with PACKS times W elements; several rows at once if a row takes a
 * warp. */
template <typename T, int W, int PACKS, int LANES>
__global__ void __launch_bounds__(LANES == 32 ? 256 : LANES, LANES == 32 ? 2 : 512 / LANES) backward_rows(backward<T> n)
{
    const int EACH = PACKS * W, ROWS = LANES == 32 ? 8 : 1;
    DT_SHARED(float, part, [2][LANES / 32][2]);
    DT_SHARED(float, sums, [LANES == 32 ? 2 * EACH * 32 : 1]);
    int lane = threadIdx.x % LANES, turn = 0;
    float dgamma[PACKS][W], dbeta[PACKS][W];
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
#pragma unroll
        for (int k = 0; k < W; k++) {
            dgamma[p][k] = dbeta[p][k] = 0;
        }
    }
    for (int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / LANES; row < n.rows;
         row += (int64_t)gridDim.x * ROWS, turn ^= 1) {
        int64_t at = row * (int64_t)n.cols;
        pack<T, W> dy[PACKS], x[PACKS], above[PACKS];
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int col = (p * LANES + lane) * W;
            dy[p].clear();
            x[p].clear();
            above[p].clear();
            if (col < n.cols) {
                dy[p].load(n.dy + at + col);
                x[p].load(n.x + at + col);
                if (n.above != NULL) {
                    above[p].load(n.above + at + col);
                }
            }
        }
        float mean = n.mean[row], rstd = n.rstd[row], sum = 0, dot = 0;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int col = (p * LANES + lane) * W;
            if (col < n.cols) {
                pack<T, W> g;
                float y[W], v[W], gamma[W];
                g.load(n.gamma + col);
                g.get(gamma);
                dy[p].get(y);
                x[p].get(v);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    float h = (v[k] - mean) * rstd;
                    dgamma[p][k] = fmaf(y[k], h, dgamma[p][k]);
                    dbeta[p][k] += y[k];
                    sum += y[k] * gamma[k];
                    dot = fmaf(y[k] * gamma[k], h, dot);
                }
            }
        }
        group_sums<LANES>(&sum, &dot, part[turn]);
        sum /= (float)n.cols;
        dot /= (float)n.cols;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int col = (p * LANES + lane) * W;
            if (col < n.cols) {
                pack<T, W> g;
                float y[W], v[W], gamma[W];
                g.load(n.gamma + col);
                g.get(gamma);
                dy[p].get(y);
                x[p].get(v);
                put_dx<T, W>(n.dx + at + col, y, v, gamma, above[p], n.above != NULL, mean, rstd, sum, dot);
            }
        }
    }
    if (n.partial == NULL) {
        return;
    }
    if (LANES == 32) { /* add the warps one after the other */
        for (int w = 0; w < ROWS; w++) {
            if (threadIdx.x / 32 == (unsigned)w) {
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    float *g = &sums[i * 32 + lane], *b = &sums[(EACH + i) * 32 + lane];
                    *g = (w > 0 ? *g : 0) + dgamma[i / W][i % W];
                    *b = (w > 0 ? *b : 0) + dbeta[i / W][i % W];
                }
            }
            __syncthreads();
        }
        if (threadIdx.x >= 32) {
            return;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            dgamma[i / W][i % W] = sums[i * 32 + lane];
            dbeta[i / W][i % W] = sums[(EACH + i) * 32 + lane];
        }
    }
    float *out = n.partial + (int64_t)blockIdx.x * 2 * n.cols;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int col = (p * LANES + lane) * W;
        if (col < n.cols) {
            pack<float, W> v;
            v.set(dgamma[p]);
            v.store(out + col);
            v.set(dbeta[p]);
            v.store(out + n.cols + col);
        }
    }
}

/* Rows too wide for registers: a block computes dx and reads its row twice; the kernels of
 * columns.cuh compute the sums. */
template <typename T, int W> __global__ void __launch_bounds__(512) backward_wide(backward<T> n)
{
    DT_SHARED(float, part, [2][16][2]);
    int turn = 0;
    for (int64_t row = blockIdx.x; row < n.rows; row += gridDim.x, turn ^= 1) {
        int64_t at = row * (int64_t)n.cols;
        float mean = n.mean[row], rstd = n.rstd[row], sum = 0, dot = 0;
        for (int col = threadIdx.x * W; col < n.cols; col += 512 * W) {
            pack<T, W> p;
            float y[W], v[W], gamma[W];
            p.load(n.dy + at + col);
            p.get(y);
            p.load(n.x + at + col);
            p.get(v);
            p.load(n.gamma + col);
            p.get(gamma);
#pragma unroll
            for (int k = 0; k < W; k++) {
                sum += y[k] * gamma[k];
                dot = fmaf(y[k] * gamma[k], (v[k] - mean) * rstd, dot);
            }
        }
        group_sums<512>(&sum, &dot, part[turn]);
        sum /= (float)n.cols;
        dot /= (float)n.cols;
        for (int col = threadIdx.x * W; col < n.cols; col += 512 * W) {
            pack<T, W> p, above;
            float y[W], v[W], gamma[W];
            p.load(n.dy + at + col);
            p.get(y);
            p.load(n.x + at + col);
            p.get(v);
            p.load(n.gamma + col);
            p.get(gamma);
            above.clear();
            if (n.above != NULL) {
                above.load(n.above + at + col);
            }
            put_dx<T, W>(n.dx + at + col, y, v, gamma, above, n.above != NULL, mean, rstd, sum, dot);
        }
    }
}

/* The values that are summed for gamma and beta */
template <typename T> struct products {
    enum { SUMS = 2 };
    const T *dy, *x;
    const float *mean, *rstd;
    int64_t cols;
    template <int W> struct held {
        pack<T, W> dy, x;
    };

    template <int W> DT_METHOD void load(held<W> &h, int64_t row, int64_t col) const
    {
        h.dy.load(dy + row * cols + col);
        h.x.load(x + row * cols + col);
    }
    template <int W> DT_METHOD void get(float (&to)[2][W], const held<W> &h, int64_t row) const
    {
        h.x.get(to[0]);
        h.dy.get(to[1]);
#pragma unroll
        for (int k = 0; k < W; k++) {
            to[0][k] = to[1][k] * ((to[0][k] - mean[row]) * rstd[row]);
        }
    }
};

template <typename T, int W, int EACH, int LANES> int launch_rows(const struct dt_cuda_launch *l, const backward<T> &n)
{
    const int threads = LANES == 32 ? 256 : LANES;
    int64_t work = parts_of(n.rows, threads / LANES);
    /* one block even without rows: the sums are zeros then */
    unsigned grid = (unsigned)(work < 1 ? 1 : work < THREADS / threads ? work : THREADS / threads);
    DT_LAUNCH((backward_rows<T, W, EACH / W, LANES>), grid, threads, 0, (cudaStream_t)l->native, n);
    return (int)grid;
}

/* Returns the number of partial sums: at most 264 rows of 1536 floats, 528 of 4096, 264 of 8192 or
 * 132 of 16384, which is 8.7 MB. */
template <typename T, int W> int launch(const struct dt_cuda_launch *l, const backward<T> &n)
{
    /* most columns of a lane: three rows and two sums of them are in registers */
    const int most = W == 8 ? 24 : 16;
    if (n.cols <= 256) {
        return launch_rows<T, W, 8, 32>(l, n);
    }
    if (n.cols <= 512) {
        return launch_rows<T, W, 16, 32>(l, n);
    }
    if (n.cols <= 32 * most) {
        return launch_rows<T, W, most, 32>(l, n);
    }
    if (n.cols <= 1024) {
        return launch_rows<T, W, 8, 128>(l, n);
    }
    if (n.cols <= 2048) {
        return launch_rows<T, W, 16, 128>(l, n);
    }
    if (n.cols <= 4096) {
        return launch_rows<T, W, 16, 256>(l, n);
    }
    return launch_rows<T, W, 16, 512>(l, n);
}

template <typename T, int W>
void launch_all(const struct dt_cuda_launch *l, backward<T> n, const struct dt_layernorm_backward_args *a,
                enum dt_dtype type)
{
    if (n.cols <= 8192) {
        n.partial = a->dgamma != NULL ? (float *)l->work : NULL;
        int parts = launch<T, W>(l, n);
        if (n.partial != NULL) {
            finish_columns(l, a->dgamma, a->dbeta, n.partial, n.cols, parts, a->accumulate, type);
        }
        return;
    }
    if (a->dgamma != NULL) { /* before dx, because dx may overwrite dy */
        products<T> from = {n.dy, n.x, n.mean, n.rstd, n.cols};
        sum_columns<products<T>, W>(l, from, a->dgamma, a->dbeta, n.rows, n.cols, a->accumulate, type);
    }
    unsigned grid = walkers(l, n.rows, 16);
    DT_LAUNCH((backward_wide<T, W>), grid, 512, 0, (cudaStream_t)l->native, n);
}

template <typename T>
void run(const struct dt_cuda_launch *l, const struct dt_layernorm_backward_args *a, enum dt_dtype type)
{
    backward<T> n = {(T *)a->dx,
                     NULL,
                     (const T *)a->dy,
                     (const T *)a->x,
                     (const T *)a->gamma,
                     (const T *)a->dresidual,
                     (const float *)a->mean,
                     (const float *)a->rstd,
                     a->row_count,
                     (int)a->col_count};
    const int W = 16 / (int)sizeof(T);
    if (aligned16(n.dx) && aligned16(n.dy) && aligned16(n.x) && aligned16(n.gamma) && aligned16(n.above) &&
        n.cols % W == 0) {
        launch_all<T, W>(l, n, a, type);
    } else {
        launch_all<T, 1>(l, n, a, type);
    }
}

} // namespace

extern "C" void dt_cuda_layernorm_backward(struct dt_stream *s, const struct dt_layernorm_backward_args *a)
{
    struct dt_cuda_launch l;
    if (!dt_cuda_begin(s, &l)) {
        return;
    }
    if (a->col_count > COLUMNS_MOST) {
        dt_stream_fail(s, DT_INVALID, "layernorm_backward: %lld columns: a device takes %d", (long long)a->col_count,
                       (int)COLUMNS_MOST);
    } else if (a->type == DT_F32) {
        run<float>(&l, a, DT_F32);
    } else if (a->type == DT_BF16 && (a->grad_type == DT_F32 || a->grad_type == DT_BF16)) {
        run<bf16>(&l, a, a->grad_type);
    } else {
        dt_stream_fail(s, DT_INTERNAL, "layernorm_backward: types %s, %s are not made", dt_dtype_name(a->type),
                       dt_dtype_name(a->grad_type));
    }
    dt_cuda_end(s, "layernorm_backward");
}
