/* Batch norm in steps: sums over rows by columns.cuh, so in an order that the shape decides. */
#include "kernels/cuda/columns.cuh"
#include "kernels/moments.h"

namespace
{

enum { CHANNELS_MOST = COLUMNS_MOST / 4 };

/* ---- moments ---- */

/* The sums of x - mean and of its square. */
template <typename T> struct deviations {
    enum { SUMS = 2 };
    const T *x;
    const float *mean;
    int64_t cols;
    template <int W> struct held {
        pack<T, W> x;
        int64_t col;
    };

    template <int W> DT_METHOD void load(held<W> &h, int64_t row, int64_t col) const
    {
        h.x.load(x + row * cols + col);
        h.col = col;
    }
    template <int W> DT_METHOD void get(float (&to)[2][W], const held<W> &h, int64_t) const
    {
        h.x.get(to[0]);
#pragma unroll
        for (int k = 0; k < W; k++) {
            to[0][k] -= mean[h.col + k];
            to[1][k] = to[0][k] * to[0][k];
        }
    }
};

/* Sums become means. */
__global__ void __launch_bounds__(256) divide_sums(float *moments, int64_t cols, float rows)
{
    for (int64_t c = (int64_t)blockIdx.x * 256 + threadIdx.x; c < cols; c += (int64_t)gridDim.x * 256) {
        moments[c] = moments[c] / rows;
    }
}

/* Takes what rounding left out of the means: rests are the sums of x - mean. The thread of column 0 also
 * writes the number of rows. */
__global__ void __launch_bounds__(256) correct_means(float *moments, const float *rests, int64_t cols, float rows)
{
    for (int64_t c = (int64_t)blockIdx.x * 256 + threadIdx.x; c < cols; c += (int64_t)gridDim.x * 256) {
        moments[c] += rests[c] / rows;
        moments[cols + c] -= rests[c] * (rests[c] / rows);
        if (c == 0) {
            moments[2 * cols] = rows;
        }
    }
}

static unsigned grid_of(const struct dt_cuda_launch *l, int64_t count)
{
    return walkers(l, parts_of(count, 256), 64);
}

/* The rests lie at the end of the work memory, behind the partial sums. */
template <typename T, int W>
void moments_by(const struct dt_cuda_launch *l, const struct dt_batch_moments_args *a, float *moments)
{
    int64_t rows = a->row_count, cols = a->col_count;
    float *rests = (float *)((char *)l->work + DT_CUDA_WORK_BYTES) - cols;
    column_values<T> plain = {(const T *)a->x, cols};
    deviations<T> centred = {(const T *)a->x, moments, cols};
    sum_columns<column_values<T>, W>(l, plain, moments, NULL, rows, cols, false, DT_F32);
    DT_LAUNCH((divide_sums), grid_of(l, cols), 256, 0, (cudaStream_t)l->native, moments, cols, (float)rows);
    sum_columns<deviations<T>, W>(l, centred, rests, moments + cols, rows, cols, false, DT_F32);
    DT_LAUNCH((correct_means), grid_of(l, cols), 256, 0, (cudaStream_t)l->native, moments, rests, cols, (float)rows);
}

template <typename T> void batch_moments(const struct dt_cuda_launch *l, const struct dt_batch_moments_args *a)
{
    const int W = 16 / (int)sizeof(T);
    if (aligned16(a->x) && a->col_count % W == 0) {
        moments_by<T, W>(l, a, (float *)a->moments);
    } else {
        moments_by<T, 1>(l, a, (float *)a->moments);
    }
}

struct merging {
    float *statistics, *running_mean, *running_var, *tracked;
    const float *moments;
    int64_t parts, cols;
    double eps, momentum;
};

DT_FN void move_running(float *running, double momentum, double batch)
{
    *running = (float)((1 - momentum) * (double)*running + momentum * batch);
}

/* A thread per column. The one of column 0 also writes the number of rows and of batches. */
__global__ void __launch_bounds__(256) merge_columns(merging m)
{
    for (int64_t c = (int64_t)blockIdx.x * 256 + threadIdx.x; c < m.cols; c += (int64_t)gridDim.x * 256) {
        double mean = 0, squares = 0, rows = 0;
        for (int64_t p = 0; m.moments != NULL && p < m.parts; p++) {
            const float *part = m.moments + p * (2 * m.cols + 1);
            dt_moments_add(&mean, &squares, &rows, part[c], part[m.cols + c], part[2 * m.cols]);
        }
        bool moves = m.moments != NULL && m.running_mean != NULL && rows > 0;
        double variance = m.moments == NULL ? (double)m.running_var[c] : rows > 0 ? squares / rows : 0;
        m.statistics[c] = m.moments == NULL ? m.running_mean[c] : (float)mean;
        m.statistics[m.cols + c] = (float)(1.0 / sqrt(variance + m.eps));
        if (moves) {
            move_running(&m.running_mean[c], m.momentum, mean);
            move_running(&m.running_var[c], m.momentum, squares / (rows > 1 ? rows - 1 : 1));
        }
        if (c == 0) {
            m.statistics[2 * m.cols] = (float)rows;
            if (moves) {
                *m.tracked += 1;
            }
        }
    }
}

/* ---- the norm ---- */

template <typename T> struct norming {
    T *y;
    const T *x, *gamma, *beta, *residual;
    const float *mean;
    int64_t cols, vectors;
    bool relu;
};

template <typename T, int W> __global__ void __launch_bounds__(256) norm_elements(norming<T> m)
{
    const float *rstd = m.mean + m.cols;
    for (int64_t t = (int64_t)blockIdx.x * 256 + threadIdx.x; t < m.vectors; t += (int64_t)gridDim.x * 256) {
        int64_t i = t * W, c = i % m.cols;
        pack<T, W> p, q;
        float x[W], more[W];
        p.load(m.x + i);
        p.get(x);
        q.clear();
        if (m.residual != NULL) {
            q.load(m.residual + i);
        }
        q.get(more);
#pragma unroll
        for (int k = 0; k < W; k++) {
            float factor = rstd[c + k] * widen<T>(m.gamma[c + k]);
            float v = fmaf(x[k] - m.mean[c + k], factor, widen<T>(m.beta[c + k])) + more[k];
            x[k] = m.relu && v < 0 ? 0 : v;
        }
        p.set(x);
        p.store(m.y + i);
    }
}

template <typename T> void batch_norm(const struct dt_cuda_launch *l, const struct dt_batch_norm_args *a)
{
    const int W = 16 / (int)sizeof(T);
    int64_t count = a->row_count * a->col_count;
    norming<T> m = {(T *)a->y,
                    (const T *)a->x,
                    (const T *)a->gamma,
                    (const T *)a->beta,
                    (const T *)a->residual,
                    (const float *)a->statistics,
                    a->col_count,
                    count,
                    a->relu};
    if (aligned16(m.y) && aligned16(m.x) && (m.residual == NULL || aligned16(m.residual)) && m.cols % W == 0) {
        m.vectors = count / W;
        DT_LAUNCH((norm_elements<T, W>), grid_of(l, m.vectors), 256, 0, (cudaStream_t)l->native, m);
    } else {
        DT_LAUNCH((norm_elements<T, 1>), grid_of(l, m.vectors), 256, 0, (cudaStream_t)l->native, m);
    }
}

/* ---- its gradients ---- */

/* Sums of dz and of dz * (x - mean); writes dz where there is a ReLU. */
template <typename T> struct slopes {
    enum { SUMS = 2 };
    T *dz;
    const T *dy, *y, *x;
    const float *mean;
    int64_t cols;
    template <int W> struct held {
        pack<T, W> dy, y, x;
        int64_t col;
    };

    template <int W> DT_METHOD void load(held<W> &h, int64_t row, int64_t col) const
    {
        h.dy.load(dy + row * cols + col);
        h.x.load(x + row * cols + col);
        if (y != NULL) {
            h.y.load(y + row * cols + col);
        }
        h.col = col;
    }
    template <int W> DT_METHOD void get(float (&to)[2][W], const held<W> &h, int64_t row) const
    {
        float value[W], v[W];
        h.dy.get(to[0]);
        h.x.get(value);
        if (y != NULL) {
            h.y.get(v);
#pragma unroll
            for (int k = 0; k < W; k++) {
                to[0][k] = v[k] > 0 ? to[0][k] : 0;
            }
            pack<T, W> out;
            out.set(to[0]);
            out.store(dz + row * cols + h.col);
        }
#pragma unroll
        for (int k = 0; k < W; k++) {
            to[1][k] = to[0][k] * (value[k] - mean[h.col + k]);
        }
    }
};

/* dgamma and dbeta from the sums; null: not wanted. */
template <typename T>
__global__ void __launch_bounds__(256)
    put_gradients(T *dgamma, T *dbeta, const float *sums, const float *rstd, int64_t cols, bool accumulate)
{
    for (int64_t c = (int64_t)blockIdx.x * 256 + threadIdx.x; c < cols; c += (int64_t)gridDim.x * 256) {
        if (dgamma != NULL) {
            dgamma[c] = narrow<T>((accumulate ? widen<T>(dgamma[c]) : 0) + sums[cols + c] * rstd[c]);
        }
        if (dbeta != NULL) {
            dbeta[c] = narrow<T>((accumulate ? widen<T>(dbeta[c]) : 0) + sums[c]);
        }
    }
}

template <typename T, typename G>
void gradients(const struct dt_cuda_launch *l, const struct dt_batch_norm_sums_args *a)
{
    DT_LAUNCH((put_gradients<G>), grid_of(l, a->col_count), 256, 0, (cudaStream_t)l->native, (G *)a->dgamma,
              (G *)a->dbeta, (const float *)a->sums, (const float *)a->statistics + a->col_count, a->col_count,
              a->accumulate);
}

template <typename T>
void batch_norm_sums(const struct dt_cuda_launch *l, const struct dt_batch_norm_sums_args *a, enum dt_dtype grads)
{
    const int W = 16 / (int)sizeof(T);
    int64_t C = a->col_count;
    float *sums = (float *)a->sums;
    slopes<T> from = {(T *)a->dz, (const T *)a->dy, (const T *)a->y, (const T *)a->x, (const float *)a->statistics, C};
    bool aligned = aligned16(a->dy) && aligned16(a->x) && (a->y == NULL || (aligned16(a->y) && aligned16(a->dz)));
    if (aligned && C % W == 0) {
        sum_columns<slopes<T>, W>(l, from, sums, sums + C, a->row_count, C, false, DT_F32);
    } else {
        sum_columns<slopes<T>, 1>(l, from, sums, sums + C, a->row_count, C, false, DT_F32);
    }
    grads == DT_F32 ? gradients<T, float>(l, a) : gradients<T, T>(l, a);
}

template <typename T> struct slanting {
    T *dx;
    const T *dz, *x, *gamma;
    const float *mean, *sums;
    int64_t cols, vectors;
};

template <typename T, int W> __global__ void __launch_bounds__(256) slant_elements(slanting<T> m)
{
    const float *rstd = m.mean + m.cols;
    float rows = m.mean[2 * m.cols], share = 1.0F / (rows > 0 ? rows : 1);
    for (int64_t t = (int64_t)blockIdx.x * 256 + threadIdx.x; t < m.vectors; t += (int64_t)gridDim.x * 256) {
        int64_t i = t * W, c = i % m.cols;
        pack<T, W> p, q;
        float x[W], dz[W];
        p.load(m.x + i);
        p.get(x);
        q.load(m.dz + i);
        q.get(dz);
#pragma unroll
        for (int k = 0; k < W; k++) {
            float s = rstd[c + k], d = x[k] - m.mean[c + k];
            float through = m.sums[c + k] + d * s * s * m.sums[m.cols + c + k];
            x[k] = widen<T>(m.gamma[c + k]) * s * fmaf(-through, share, dz[k]);
        }
        p.set(x);
        p.store(m.dx + i);
    }
}

template <typename T>
void batch_norm_backward(const struct dt_cuda_launch *l, const struct dt_batch_norm_backward_args *a)
{
    const int W = 16 / (int)sizeof(T);
    int64_t count = a->row_count * a->col_count;
    slanting<T> m = {(T *)a->dx,
                     (const T *)a->dz,
                     (const T *)a->x,
                     (const T *)a->gamma,
                     (const float *)a->statistics,
                     (const float *)a->sums,
                     a->col_count,
                     count};
    if (aligned16(m.dx) && aligned16(m.dz) && aligned16(m.x) && m.cols % W == 0) {
        m.vectors = count / W;
        DT_LAUNCH((slant_elements<T, W>), grid_of(l, m.vectors), 256, 0, (cudaStream_t)l->native, m);
    } else {
        DT_LAUNCH((slant_elements<T, 1>), grid_of(l, m.vectors), 256, 0, (cudaStream_t)l->native, m);
    }
}

bool too_wide(struct dt_stream *s, const char *name, int64_t cols)
{
    if (cols > CHANNELS_MOST) {
        dt_stream_fail(s, DT_INVALID, "%s: %lld columns: a device takes %d", name, (long long)cols, (int)CHANNELS_MOST);
    }
    return cols > CHANNELS_MOST;
}

} // namespace

DT_CUDA_ROW(batch_moments, a->row_count <= 0 || a->col_count <= 0 || too_wide(s, "batch_moments", a->col_count))
DT_CUDA_ROW(batch_norm, a->row_count <= 0 || a->col_count <= 0 || too_wide(s, "batch_norm", a->col_count))
DT_CUDA_SUMS_ROW(batch_norm_sums, a->grad_type,
                 a->row_count <= 0 || a->col_count <= 0 || too_wide(s, "batch_norm_sums", a->col_count))
DT_CUDA_ROW(batch_norm_backward,
            a->row_count <= 0 || a->col_count <= 0 || too_wide(s, "batch_norm_backward", a->col_count))

extern "C" void dt_cuda_batch_merge(struct dt_stream *s, const struct dt_batch_merge_args *a)
{
    struct dt_cuda_launch l;
    if (a->col_count <= 0 || !dt_cuda_begin(s, &l)) {
        return;
    }
    merging m = {(float *)a->statistics,
                 (float *)a->running_mean,
                 (float *)a->running_var,
                 (float *)a->tracked,
                 (const float *)a->moments,
                 a->parts,
                 a->col_count,
                 a->eps,
                 a->momentum};
    DT_LAUNCH((merge_columns), grid_of(&l, a->col_count), 256, 0, (cudaStream_t)l.native, m);
    dt_cuda_end(s, "batch_merge");
}
