/* LayerNorm backward: dx = rstd (g - mean(g) - h mean(g h)) + dresidual, with g = dy weight, h =
 * (x - mean) rstd; and the sums of dy h and dy over the rows, for weight and bias. RMSNorm
 * (CENTERS is false): h = x rstd, without mean(g), and without a bias. All tensors are read once. A
 * row stays in the registers of its threads, which keep the sums of their columns over all their
 * rows. The number of blocks, and so the order of these sums, depends on the shape alone. */
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/norm.cuh"

namespace
{

template <typename T> struct backward {
    T *dx;
    float *partial; /* (blocks, sums, cols); null: the sums are not wanted */
    const T *dy, *x, *weight, *above;
    const float *mean, *rstd;
    int64_t rows;
    int cols, sums; /* sums: 2 with the bias, or 1 */
    float weight_offset;
    norm_rows_at in, out; /* of x; of dy, dx and above */
};

/* threads of all blocks together: 512 for each multiprocessor of an H100 */
enum { THREADS = 67584 };

/* Two group_sums at once; `part` as there. */
template <int LANES> DT_FN void group_sums(float *a, float *b, float (*part)[2])
{
    *a = lanes_sum<(LANES < 32 ? LANES : 32)>(*a);
    *b = lanes_sum<(LANES < 32 ? LANES : 32)>(*b);
    if (LANES <= 32) {
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

/* W columns of a row: dy, h, and the weight with its offset */
template <typename T, int W, bool CENTERS> struct columns {
    float dy[W], h[W], weight[W];

    DT_METHOD void get(const pack<T, W> &y, const pack<T, W> &x, const pack<T, W> &w, const backward<T> &n, float mean,
                       float rstd)
    {
        y.get(dy);
        x.get(h);
        w.get(weight);
#pragma unroll
        for (int k = 0; k < W; k++) {
            h[k] = (CENTERS ? h[k] - mean : h[k]) * rstd;
            weight[k] = CENTERS ? weight[k] : n.weight_offset + weight[k];
        }
    }
    /* adds to the row's sums of g and g h */
    DT_METHOD void add(float *sum, float *dot) const
    {
#pragma unroll
        for (int k = 0; k < W; k++) {
            float g = dy[k] * weight[k];
            *sum += CENTERS ? g : 0;
            *dot = fmaf(g, h[k], *dot);
        }
    }
    /* dx, of the row's means m of g and d of g h */
    DT_METHOD void put(T *dx, const pack<T, W> &above, bool adds, float rstd, float m, float d) const
    {
        pack<T, W> out;
        float v[W], add[W];
        above.get(add);
#pragma unroll
        for (int k = 0; k < W; k++) {
            float g = dy[k] * weight[k];
            v[k] = fmaf(h[k], -d, CENTERS ? g - m : g);
            v[k] = adds ? fmaf(v[k], rstd, add[k]) : v[k] * rstd;
        }
        out.set(v);
        out.store(dx);
    }
};

/* LANES threads per row, each with PACKS times W elements; several rows at once if a row takes a
 * warp or less. */
template <typename T, int W, int PACKS, int LANES, bool CENTERS>
__global__ void __launch_bounds__(LANES <= 32 ? 256 : LANES, LANES <= 32 ? 2 : 512 / LANES) backward_rows(backward<T> n)
{
    const int EACH = PACKS * W, ROWS = LANES <= 32 ? 256 / LANES : 1, SUMS = CENTERS ? 2 : 1;
    DT_SHARED(float, part, [2][LANES <= 32 ? 1 : LANES / 32][2]);
    DT_SHARED(float, sums, [LANES <= 32 ? SUMS * EACH * 32 : 1]);
    int lane = threadIdx.x % LANES, turn = 0;
    float total[SUMS][PACKS][W]; /* for weight, bias */
#pragma unroll
    for (int i = 0; i < SUMS * EACH; i++) {
        total[i / EACH][i % EACH / W][i % W] = 0;
    }
    for (int64_t next = (int64_t)blockIdx.x * ROWS + threadIdx.x / LANES; first_of_warp<LANES>(next) < n.rows;
         next += (int64_t)gridDim.x * ROWS, turn ^= 1) {
        /* groups of the last warp beyond the last row have zeros, and write nothing */
        bool live = LANES >= 32 || next < n.rows;
        int64_t row = live ? next : n.rows - 1, tight = row * (int64_t)n.cols;
        int64_t from = CENTERS ? tight : n.in.at(row, n.cols), at = CENTERS ? tight : n.out.at(row, n.cols);
        pack<T, W> dy[PACKS], x[PACKS], above[PACKS];
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int col = (p * LANES + lane) * W;
            dy[p].clear();
            x[p].clear();
            above[p].clear();
            if (col < n.cols && live) {
                dy[p].load(n.dy + at + col);
                x[p].load(n.x + from + col);
                if (n.above != NULL) {
                    above[p].load(n.above + at + col);
                }
            }
        }
        float mean = CENTERS ? n.mean[row] : 0, rstd = n.rstd[row], sum = 0, dot = 0;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int col = (p * LANES + lane) * W;
            if (col < n.cols) {
                pack<T, W> w;
                columns<T, W, CENTERS> c;
                w.load(n.weight + col);
                c.get(dy[p], x[p], w, n, mean, rstd);
                c.add(&sum, &dot);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    total[0][p][k] = fmaf(c.dy[k], c.h[k], total[0][p][k]);
                    if (CENTERS) {
                        total[SUMS - 1][p][k] += c.dy[k];
                    }
                }
            }
        }
        if (CENTERS) {
            group_sums<LANES>(&sum, &dot, part[turn]);
        } else {
            dot = group_sum<LANES>(dot, part[turn][0]);
        }
        sum /= (float)n.cols;
        dot /= (float)n.cols;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int col = (p * LANES + lane) * W;
            if (col < n.cols && live) {
                pack<T, W> w;
                columns<T, W, CENTERS> c;
                w.load(n.weight + col);
                c.get(dy[p], x[p], w, n, mean, rstd);
                c.put(n.dx + at + col, above[p], n.above != NULL, rstd, sum, dot);
            }
        }
    }
    if (n.partial == NULL) {
        return;
    }
    if (LANES <= 32) { /* add the groups of a warp, then the warps one after the other */
#pragma unroll
        for (int i = 0; i < SUMS * EACH; i++) {
            float *t = &total[i / EACH][i % EACH / W][i % W];
#pragma unroll
            for (int o = 16; o >= LANES; o >>= 1) {
                *t += __shfl_xor_sync(DT_WARP, *t, o);
            }
        }
        for (int w = 0; w < 8; w++) {
            if (threadIdx.x / 32 == (unsigned)w) {
#pragma unroll
                for (int i = 0; i < SUMS * EACH; i++) {
                    float *s = &sums[i * 32 + threadIdx.x % 32];
                    *s = (w > 0 ? *s : 0) + total[i / EACH][i % EACH / W][i % W];
                }
            }
            __syncthreads();
        }
        if (threadIdx.x >= LANES) {
            return;
        }
#pragma unroll
        for (int i = 0; i < SUMS * EACH; i++) {
            total[i / EACH][i % EACH / W][i % W] = sums[i * 32 + lane];
        }
    }
    float *out = n.partial + (int64_t)blockIdx.x * n.sums * n.cols;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int col = (p * LANES + lane) * W;
        if (col < n.cols) {
            pack<float, W> v;
            v.set(total[0][p]);
            v.store(out + col);
            if (CENTERS && n.sums == 2) {
                v.set(total[SUMS - 1][p]);
                v.store(out + n.cols + col);
            }
        }
    }
}

/* Rows too wide for registers: a block computes dx and reads its row twice; the kernels of
 * columns.cuh compute the sums. */
template <typename T, int W, bool CENTERS> __global__ void __launch_bounds__(512) backward_wide(backward<T> n)
{
    DT_SHARED(float, part, [2][16][2]);
    int turn = 0;
    for (int64_t row = blockIdx.x; row < n.rows; row += gridDim.x, turn ^= 1) {
        int64_t tight = row * (int64_t)n.cols;
        int64_t from = CENTERS ? tight : n.in.at(row, n.cols), at = CENTERS ? tight : n.out.at(row, n.cols);
        float mean = CENTERS ? n.mean[row] : 0, rstd = n.rstd[row], sum = 0, dot = 0;
        for (int col = threadIdx.x * W; col < n.cols; col += 512 * W) {
            pack<T, W> dy, x, w;
            columns<T, W, CENTERS> c;
            dy.load(n.dy + at + col);
            x.load(n.x + from + col);
            w.load(n.weight + col);
            c.get(dy, x, w, n, mean, rstd);
            c.add(&sum, &dot);
        }
        if (CENTERS) {
            group_sums<512>(&sum, &dot, part[turn]);
        } else {
            dot = group_sum<512>(dot, part[turn][0]);
        }
        sum /= (float)n.cols;
        dot /= (float)n.cols;
        for (int col = threadIdx.x * W; col < n.cols; col += 512 * W) {
            pack<T, W> dy, x, w, above;
            columns<T, W, CENTERS> c;
            dy.load(n.dy + at + col);
            x.load(n.x + from + col);
            w.load(n.weight + col);
            above.clear();
            if (n.above != NULL) {
                above.load(n.above + at + col);
            }
            c.get(dy, x, w, n, mean, rstd);
            c.put(n.dx + at + col, above, n.above != NULL, rstd, sum, dot);
        }
    }
}

/* The values that are summed for weight and, with COUNT 2, bias */
template <typename T, bool CENTERS, int COUNT> struct products {
    enum { SUMS = COUNT };
    backward<T> n;
    template <int W> struct held {
        pack<T, W> dy, x;
    };

    template <int W> DT_METHOD void load(held<W> &h, int64_t row, int64_t col) const
    {
        h.dy.load(n.dy + (CENTERS ? row * n.cols : n.out.at(row, n.cols)) + col);
        h.x.load(n.x + (CENTERS ? row * n.cols : n.in.at(row, n.cols)) + col);
    }
    template <int W> DT_METHOD void get(float (&to)[COUNT][W], const held<W> &h, int64_t row) const
    {
        float dy[W];
        h.x.get(to[0]);
        h.dy.get(dy);
#pragma unroll
        for (int k = 0; k < W; k++) {
            to[0][k] = dy[k] * ((CENTERS ? to[0][k] - n.mean[row] : to[0][k]) * n.rstd[row]);
            if (COUNT == 2) {
                to[COUNT - 1][k] = dy[k];
            }
        }
    }
};

template <typename T, int W, int EACH, int LANES, bool CENTERS>
int launch_rows(const struct dt_cuda_launch *l, const backward<T> &n)
{
    const int threads = LANES <= 32 ? 256 : LANES;
    int64_t work = parts_of(n.rows, threads / LANES);
    /* one block even without rows: the sums are zeros then */
    unsigned grid = (unsigned)(work < 1 ? 1 : work < THREADS / threads ? work : THREADS / threads);
    DT_LAUNCH((backward_rows<T, W, EACH / W, LANES, CENTERS>), grid, threads, 0, (cudaStream_t)l->native, n);
    return (int)grid;
}

/* Returns the number of partial sums: at most 264 rows of 1536 floats, 528 of 4096, 264 of 8192 or
 * 132 of 16384, which is 8.7 MB. */
template <typename T, int W, bool CENTERS> int launch(const struct dt_cuda_launch *l, const backward<T> &n)
{
    /* most columns of a lane: three rows and two sums of them are in registers */
    const int most = W == 8 ? 24 : 16;
    if constexpr (!CENTERS) { /* heads */
        if (n.cols <= 64) {
            return launch_rows<T, W, 8, 8, CENTERS>(l, n);
        }
        if (n.cols <= 128) {
            return launch_rows<T, W, 8, 16, CENTERS>(l, n);
        }
    }
    if (n.cols <= 256) {
        return launch_rows<T, W, 8, 32, CENTERS>(l, n);
    }
    if (n.cols <= 512) {
        return launch_rows<T, W, 16, 32, CENTERS>(l, n);
    }
    if (n.cols <= 32 * most) {
        return launch_rows<T, W, most, 32, CENTERS>(l, n);
    }
    if (n.cols <= 1024) {
        return launch_rows<T, W, 8, 128, CENTERS>(l, n);
    }
    if (n.cols <= 2048) {
        return launch_rows<T, W, 16, 128, CENTERS>(l, n);
    }
    if (n.cols <= 4096) {
        return launch_rows<T, W, 16, 256, CENTERS>(l, n);
    }
    return launch_rows<T, W, 16, 512, CENTERS>(l, n);
}

/* The gradients that the sums become; bias null: the norm has none. */
struct gradients {
    void *weight, *bias;
    bool accumulate;
    enum dt_dtype type;
};

template <typename T, int W, bool CENTERS>
void launch_all(const struct dt_cuda_launch *l, backward<T> n, const gradients &g)
{
    if (n.cols <= 8192) {
        n.partial = g.weight != NULL ? (float *)l->work : NULL;
        int parts = launch<T, W, CENTERS>(l, n);
        if (n.partial != NULL) {
            finish_columns(l, g.weight, g.bias, n.partial, n.cols, parts, g.accumulate, g.type);
        }
        return;
    }
    if (g.weight != NULL) { /* before dx, because dx may overwrite dy */
        if (CENTERS && g.bias != NULL) {
            products<T, CENTERS, CENTERS ? 2 : 1> from = {n};
            sum_columns<products<T, CENTERS, CENTERS ? 2 : 1>, W>(l, from, g.weight, g.bias, n.rows, n.cols,
                                                                  g.accumulate, g.type);
        } else {
            products<T, CENTERS, 1> from = {n};
            sum_columns<products<T, CENTERS, 1>, W>(l, from, g.weight, NULL, n.rows, n.cols, g.accumulate, g.type);
        }
    }
    unsigned grid = walkers(l, n.rows, 16);
    DT_LAUNCH((backward_wide<T, W, CENTERS>), grid, 512, 0, (cudaStream_t)l->native, n);
}

template <typename T, bool CENTERS>
void launch_norm(const struct dt_cuda_launch *l, const backward<T> &n, const gradients &g)
{
    const int W = 16 / (int)sizeof(T);
    if (aligned16(n.dx) && aligned16(n.dy) && aligned16(n.x) && aligned16(n.weight) && aligned16(n.above) &&
        n.cols % W == 0 && n.in.ld % W == 0 && n.out.ld % W == 0) {
        launch_all<T, W, CENTERS>(l, n, g);
    } else {
        launch_all<T, 1, CENTERS>(l, n, g);
    }
}

template <typename T>
void layernorm_backward(const struct dt_cuda_launch *l, const struct dt_layernorm_backward_args *a, enum dt_dtype type)
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
                     (int)a->col_count,
                     a->dbeta != NULL ? 2 : 1,
                     0,
                     {0, 0},
                     {0, 0}};
    gradients g = {a->dgamma, a->dbeta, a->accumulate, type};
    launch_norm<T, true>(l, n, g);
}

template <typename T>
void rmsnorm_backward(const struct dt_cuda_launch *l, const struct dt_rmsnorm_backward_args *a, enum dt_dtype type)
{
    backward<T> n = {(T *)a->dx,
                     NULL,
                     (const T *)a->dy,
                     (const T *)a->x,
                     (const T *)a->weight,
                     (const T *)a->dresidual,
                     NULL,
                     (const float *)a->rstd,
                     a->row_count,
                     (int)a->col_count,
                     1,
                     (float)a->weight_offset,
                     norm_rows_of(a->heads, a->x_ld),
                     norm_rows_of(a->heads, a->y_ld)};
    gradients g = {a->dweight, NULL, a->accumulate, type};
    launch_norm<T, false>(l, n, g);
}

bool too_wide(struct dt_stream *s, const char *kernel, int64_t cols)
{
    if (cols > COLUMNS_MOST) {
        dt_stream_fail(s, DT_INVALID, "%s: %lld columns: a device takes %d", kernel, (long long)cols,
                       (int)COLUMNS_MOST);
    }
    return cols > COLUMNS_MOST;
}

} // namespace

DT_CUDA_SUMS_ROW(layernorm_backward, a->grad_type, too_wide(s, "layernorm_backward", a->col_count))
DT_CUDA_SUMS_ROW(rmsnorm_backward, a->grad_type,
                 too_wide(s, "rmsnorm_backward", a->col_count) ||
                     !norm_rows_fit(s, "rmsnorm_backward", a->heads, a->row_count))
