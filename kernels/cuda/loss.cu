/* Softmax cross entropy with its gradient in place. A block takes a row, reads it once and writes
 * it once. The row is kept in shared memory in its own type (50304 bf16 are 100 KB, so two blocks
 * share a multiprocessor). The block's next row arrives in its place while the gradient is written.
 * The rest of a wider row is kept in registers (128256 bf16: 226 KB and 25 registers). Only what is
 * wider still (146000 bf16, 73000 fp32) is read again. Then one block adds the losses: sums of 32
 * rows, then these in order. So the sum does not depend on how rows are cut into chunks of a
 * multiple of 32. */
#include "kernels/cuda/vector.cuh"

namespace
{

template <typename T> struct entropy {
    T *logits;
    const int32_t *targets;
    double *row_loss;
    int64_t *correct_count;
    int64_t rows;
    /* whole: cols, rounded down to what a thread takes at once; the rest of a row is handled
     * separately */
    int ld, cols, whole;
    int held;          /* columns kept in shared memory, also a multiple of that */
    double grad_scale; /* times `scale` */
    bool with_grad;
    float scale, cap, inner; /* of z; cap 0: none; inner: scale / cap */
};

/* z, the value of a logit in the softmax. Without SHAPED, z is the logit itself. */
template <bool SHAPED> struct shape {
    float scale, cap, inner;
    DT_METHOD float z(float x) const
    {
        return !SHAPED ? x : cap > 0 ? cap * tanhf(x * inner) : x * scale;
    }
    /* dz/dlogit / scale */
    DT_METHOD float slope(float z) const
    {
        float t = SHAPED && cap > 0 ? z / cap : 0;
        return 1.0f - t * t;
    }
};

/* One row as its threads see it: pieces of W columns in shared memory, then REGS in registers,
 * then in global memory. Each thread takes the same pieces in each pass, so it needs no other
 * thread's. */
template <typename T, int W, int REGS, int THREADS> struct row_parts {
    T *x, *shared;
    int whole, left, held;
    pack<T, W> own[REGS > 0 ? REGS : 1];

    /* Begins to bring columns from c on of a row to shared memory. */
    DT_METHOD void bring(const T *row, int c)
    {
        if (sizeof(T) * W == 16) {
            dt_cp_async16(shared + c, row + c);
        } else {
            pack<T, W> p;
            p.load(row + c);
            p.store(shared + c);
        }
    }

    /* brought: what shared memory holds of the row is on its way there already */
    DT_METHOD void load(bool brought)
    {
        for (int c = threadIdx.x * W; !brought && c < held; c += THREADS * W) {
            bring(x, c);
        }
#pragma unroll
        for (int r = 0; r < REGS; r++) {
            int c = held + (r * THREADS + threadIdx.x) * W;
            own[r].clear();
            if (c < whole) {
                own[r].load(x + c);
            }
        }
        arrive();
    }
    DT_METHOD static void arrive()
    {
        dt_cp_commit();
        dt_cp_wait<0>();
    }

    /* Calls f(a piece, its first column). If f returns true, the piece as f leaves it goes to global
     * memory. next: unless null, a row that takes the place of this one in shared memory: f has a
     * piece of this row in registers when that of the next begins to arrive. (Unrolled further, the
     * wide form would not fit 64 registers.) */
    template <typename F> DT_METHOD void each(F &f, const T *next = NULL)
    {
#pragma unroll(REGS > 0 ? 1 : 4)
        for (int c = threadIdx.x * W; c < held; c += THREADS * W) {
            pack<T, W> p;
            p.load(shared + c);
            piece(f, p, c);
            if (next != NULL) {
                bring(next, c);
            }
        }
#pragma unroll
        for (int r = 0; r < REGS; r++) {
            int c = held + (r * THREADS + threadIdx.x) * W;
            if (c < whole) {
                piece(f, own[r], c);
            }
        }
#pragma unroll(REGS > 0 ? 1 : 4)
        for (int c = held + (REGS * THREADS + threadIdx.x) * W; c < whole; c += THREADS * W) {
            pack<T, W> p;
            p.load(x + c);
            piece(f, p, c);
        }
        /* elements after the last column count as minus infinity */
        if (W > 1 && left > 0 && threadIdx.x == THREADS - 1) {
            pack<T, W> p;
            float v[W];
            p.load(x + whole);
            p.get(v);
#pragma unroll
            for (int k = 0; k < W; k++) {
                v[k] = k < left ? v[k] : -INFINITY;
            }
            p.set(v);
            piece(f, p, whole);
        }
    }
    template <typename F> DT_METHOD void piece(F &f, pack<T, W> p, int c)
    {
        if (f(p, c)) {
            p.store_global(x + c);
        }
    }
};

template <typename T, int W> struct find_top {
    greatest<T, W> top;
    DT_METHOD bool operator()(pack<T, W> &p, int)
    {
        top.add(p);
        return false;
    }
};

/* Looks for the first column that has the maximum. */
template <typename T, int W> struct find_first {
    float top;
    int first;
    DT_METHOD bool operator()(pack<T, W> &p, int c)
    {
        float v[W];
        p.get(v);
#pragma unroll
        for (int k = 0; k < W; k++) {
            first = v[k] == top && c + k < first ? c + k : first;
        }
        return false;
    }
};

template <typename T, int W, bool SHAPED> struct add_exponentials {
    exponentials<T> power;
    float sum;
    shape<SHAPED> with;
    int cols;
    DT_METHOD bool operator()(pack<T, W> &p, int c)
    {
        float v[W];
        p.get(v);
#pragma unroll
        for (int k = 0; k < W; k++) {
            /* minus infinity behind the last column would become the cap */
            sum += !SHAPED || c + k < cols ? power.of(with.z(v[k])) : 0;
        }
        return false;
    }
};

template <typename T, int W, bool SHAPED> struct put_gradient {
    exponentials<T> power;
    float factor, scale;
    int target;
    shape<SHAPED> with;
    DT_METHOD bool operator()(pack<T, W> &p, int c)
    {
        float v[W], z[W];
        p.get(v);
#pragma unroll
        for (int k = 0; k < W; k++) {
            z[k] = with.z(v[k]);
            v[k] = power.of(z[k]) * factor;
        }
        if ((unsigned)(target - c) < (unsigned)W) { /* one piece of a row */
#pragma unroll
            for (int k = 0; k < W; k++) {
                v[k] -= c + k == target ? scale : 0;
            }
        }
#pragma unroll
        for (int k = 0; k < W; k++) {
            v[k] = SHAPED ? v[k] * with.slope(z[k]) : v[k];
        }
        p.set(v);
        return true;
    }
};

template <typename T, int W, int REGS, int THREADS, bool SHAPED>
__global__ void __launch_bounds__(THREADS, REGS > 0 ? 1 : 2) entropy_rows(entropy<T> e)
{
    DT_SHARED_DYNAMIC(T, shared);
    DT_SHARED(float, part, [2][THREADS / 32]);
    DT_SHARED(int, first_part, [THREADS / 32]);
    row_parts<T, W, REGS, THREADS> x;
    x.shared = shared;
    x.whole = e.whole;
    x.left = e.cols - e.whole;
    x.held = e.held;
    bool brought = false;
    int next_target = blockIdx.x < e.rows ? e.targets[blockIdx.x] : 0;
    for (int64_t row = blockIdx.x, next; row < e.rows; row = next) {
        next = row + gridDim.x;
        x.x = e.logits + row * (int64_t)e.ld;
        int target = next_target;
        next_target = next < e.rows ? e.targets[next] : 0;
        /* ignored; entropy_sums finds out whether that is allowed */
        if (target < 0 || target >= e.cols) {
            x.arrive();
            brought = false;
            for (int c = threadIdx.x * W; e.with_grad && c < e.cols; c += THREADS * W) {
                pack<T, W> p;
                p.clear();
                p.store(x.x + c);
            }
            if (threadIdx.x == 0) {
                e.row_loss[row] = 0;
            }
            continue;
        }
        /* read it before any thread writes: there are barriers in between */
        float at_target = threadIdx.x == 0 ? widen<T>(x.x[target]) : 0;
        x.load(brought);
        find_top<T, W> find;
        find.top.clear();
        x.each(find);
        const shape<SHAPED> with = {e.scale, e.cap, e.inner};
        float top = group_max<THREADS>(find.top.value(), part[0]);
        add_exponentials<T, W, SHAPED> sum;
        sum.power.from(with.z(top));
        sum.sum = 0;
        sum.with = with;
        sum.cols = e.cols;
        x.each(sum);
        float total = group_sum<THREADS>(sum.sum, part[1]);
        bool right = false;
        if (e.correct_count != NULL) {
            find_first<T, W> find_it = {top, INT32_MAX};
            x.each(find_it);
            right = group_min<THREADS>(find_it.first, first_part) == target;
        }
        if (threadIdx.x == 0) {
            e.row_loss[row] = log((double)total) + (sum.power.exact() - (double)with.z(at_target));
            if (right) {
                /* an integer, so the order does not matter */
                atomicAdd((unsigned long long *)e.correct_count, 1ULL);
            }
        }
        brought = e.with_grad && next < e.rows;
        if (e.with_grad) {
            put_gradient<T, W, SHAPED> gradient = {sum.power, (float)(e.grad_scale / (double)total),
                                                   (float)e.grad_scale, target, with};
            x.each(gradient, brought ? e.logits + next * (int64_t)e.ld : NULL);
        }
    }
}

enum { SUMS_THREADS = 1024, SUMS_KEPT = 4096 };

/* One block. Its warps add 32 rows each, then these sums are added in order. It also counts, and
 * finds the first invalid target. targets: null for losses that have none. */
__global__ void __launch_bounds__(SUMS_THREADS)
    entropy_sums(const double *row_loss, const int32_t *targets, double *loss_sum, int64_t *valid_count, int64_t rows,
                 int64_t cols, struct dt_cuda_fault *fault)
{
    DT_SHARED(double, sums, [SUMS_KEPT]);
    DT_SHARED(unsigned long long, valid, [1]);
    DT_SHARED(unsigned long long, bad, [1]);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        valid[0] = 0;
        bad[0] = (unsigned long long)rows;
    }
    __syncthreads();
    int count = 0;
    double total = threadIdx.x == 0 && loss_sum != NULL ? *loss_sum : 0;
    for (int64_t base = 0; base < rows; base += SUMS_KEPT * 32) {
        int64_t left = (rows - base + 31) / 32;
        int blocks = left < SUMS_KEPT ? (int)left : (int)SUMS_KEPT;
        for (int b = warp; b < blocks; b += SUMS_THREADS / 32) {
            int64_t row = base + (int64_t)b * 32 + lane;
            int target = row >= rows ? DT_IGNORE_INDEX : targets != NULL ? targets[row] : 0;
            double loss = warp_sum(row < rows ? row_loss[row] : 0);
            count += target != DT_IGNORE_INDEX;
            if (target != DT_IGNORE_INDEX && (target < 0 || target >= cols)) {
                atomicMin(&bad[0], (unsigned long long)row);
            }
            if (lane == 0) {
                sums[b] = loss;
            }
        }
        __syncthreads();
        for (int b = 0; threadIdx.x == 0 && b < blocks; b++) {
            total += sums[b];
        }
        __syncthreads();
    }
    count = warp_sum(count);
    if (lane == 0) {
        atomicAdd(&valid[0], (unsigned long long)count);
    }
    __syncthreads();
    if (threadIdx.x != 0) {
        return;
    }
    if (loss_sum != NULL) {
        *loss_sum = total;
    }
    if (valid_count != NULL) {
        *valid_count += (int64_t)valid[0];
    }
    if (bad[0] < (unsigned long long)rows && fault->kind == DT_CUDA_NO_FAULT) {
        fault->row = (int64_t)bad[0];
        fault->value = targets[bad[0]];
        fault->limit = cols;
        __threadfence_system();
        *(volatile int32_t *)&fault->kind = DT_CUDA_BAD_TARGET;
    }
}

enum { NARROW_THREADS = 512, WIDE_THREADS = 768, WIDE_REGS = 5, STATIC_BYTES = 1024, COLS_MOST = 1 << 30 };
enum { LABEL_THREADS = 256 };

template <typename T, int W, bool SHAPED> void launch(const struct dt_cuda_launch *l, entropy<T> e)
{
    int room = (l->shared_bytes - STATIC_BYTES) / (int)sizeof(T) / W * W;
    e.whole = e.cols / W * W;
    if (e.whole <= room || W == 1) {
        e.held = e.whole < room ? e.whole : room;
        size_t shared_bytes = ((size_t)e.held * sizeof(T) + 15) / 16 * 16;
        /* several rows a block, so that all but its first arrive while the one before is computed */
        unsigned grid = walkers(l, e.rows, 4);
        DT_LAUNCH((entropy_rows<T, W, 0, NARROW_THREADS, SHAPED>), grid, NARROW_THREADS, shared_bytes,
                  (cudaStream_t)l->native, e);
        return;
    }
    if constexpr (W > 1) {
        e.held = room;
        unsigned grid = walkers(l, e.rows, 1);
        DT_LAUNCH((entropy_rows<T, W, WIDE_REGS, WIDE_THREADS, SHAPED>), grid, WIDE_THREADS, (size_t)room * sizeof(T),
                  (cudaStream_t)l->native, e);
    }
}

template <typename T, int W> void launch_shape(const struct dt_cuda_launch *l, const entropy<T> &e)
{
    if (e.scale != 1.0f || e.cap > 0) {
        launch<T, W, true>(l, e);
    } else {
        launch<T, W, false>(l, e);
    }
}

template <typename T> void cross_entropy(const struct dt_cuda_launch *l, const struct dt_cross_entropy_args *a)
{
    double scale = a->scale != 0 ? a->scale : 1.0, cap = a->softcap > 0 ? a->softcap : 0;
    entropy<T> e = {(T *)a->logits,
                    a->targets,
                    a->row_loss,
                    a->correct_count,
                    a->row_count,
                    (int)(a->ld != 0 ? a->ld : a->col_count),
                    (int)a->col_count,
                    0,
                    0,
                    a->grad_scale * scale,
                    a->with_grad,
                    (float)scale,
                    (float)cap,
                    (float)(cap > 0 ? scale / cap : 0)};
    const int W = 16 / (int)sizeof(T);
    if (aligned16(e.logits) && e.ld % W == 0) {
        launch_shape<T, W>(l, e);
    } else {
        launch_shape<T, 1>(l, e);
    }
    DT_LAUNCH((entropy_sums), 1, SUMS_THREADS, 0, (cudaStream_t)l->native, a->row_loss, a->targets, a->loss_sum,
              a->valid_count, a->row_count, a->col_count, l->fault);
}

template <typename T> struct labelled {
    T *logits;
    const float *labels;
    double *row_loss;
    int64_t rows, cols;
    double grad_scale;
    enum dt_loss kind;
    bool with_grad;
};

/* A warp takes a row. */
template <typename T> __global__ void __launch_bounds__(LABEL_THREADS) label_losses(labelled<T> m)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t warps = (int64_t)gridDim.x * (LABEL_THREADS / 32);
    for (int64_t row = (int64_t)blockIdx.x * (LABEL_THREADS / 32) + warp; row < m.rows; row += warps) {
        T *z = m.logits + row * m.cols;
        const float *y = m.labels + row * m.cols;
        bool target = !isnan(y[0]);
        double sum = 0;
        for (int64_t j = lane; j < m.cols; j += 32) {
            double x = (double)widen(z[j]), label = (double)y[j], loss, slope;
            if (m.kind == DT_LOSS_SQUARED) {
                slope = 2 * (x - label);
                loss = (x - label) * (x - label);
            } else {
                slope = 1 / (1 + exp(-x)) - label;
                loss = fmax(x, 0.0) - x * label + log1p(exp(-fabs(x)));
            }
            sum += target ? loss : 0;
            if (m.with_grad) {
                z[j] = narrow<T>(target ? (float)(slope * m.grad_scale / (double)m.cols) : 0.0f);
            }
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            m.row_loss[row] = sum / (double)m.cols;
        }
    }
}

template <typename T> void label_loss(const struct dt_cuda_launch *l, const struct dt_label_loss_args *a)
{
    labelled<T> m = {(T *)a->logits, a->labels,     a->row_loss, a->row_count,
                     a->col_count,   a->grad_scale, a->kind,     a->with_grad};
    DT_LAUNCH((label_losses<T>), walkers(l, (a->row_count + LABEL_THREADS / 32 - 1) / (LABEL_THREADS / 32), 8),
              LABEL_THREADS, 0, (cudaStream_t)l->native, m);
    const int32_t *no_targets = NULL;
    int64_t *no_count = NULL;
    DT_LAUNCH((entropy_sums), 1, SUMS_THREADS, 0, (cudaStream_t)l->native, a->row_loss, no_targets, a->loss_sum,
              no_count, a->row_count, a->col_count, l->fault);
}

template <typename T, int W, int REGS, int THREADS> cudaError_t open_one(int shared_bytes)
{
    cudaError_t rc = cudaFuncSetAttribute((const void *)entropy_rows<T, W, REGS, THREADS, false>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes - STATIC_BYTES);
    return rc == cudaSuccess
               ? cudaFuncSetAttribute((const void *)entropy_rows<T, W, REGS, THREADS, true>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes - STATIC_BYTES)
               : rc;
}

template <typename T> cudaError_t open_type(int shared_bytes)
{
    const int W = 16 / (int)sizeof(T);
    cudaError_t rc = open_one<T, W, 0, NARROW_THREADS>(shared_bytes);
    rc = rc == cudaSuccess ? open_one<T, 1, 0, NARROW_THREADS>(shared_bytes) : rc;
    return rc == cudaSuccess ? open_one<T, W, WIDE_REGS, WIDE_THREADS>(shared_bytes) : rc;
}

bool too_wide(struct dt_stream *s, const struct dt_cross_entropy_args *a)
{
    bool wide = a->col_count > COLS_MOST || a->ld > COLS_MOST;
    if (wide) {
        dt_stream_fail(s, DT_INVALID, "cross_entropy: %lld columns: a device takes %d", (long long)a->col_count,
                       (int)COLS_MOST);
    }
    return wide;
}

} // namespace

extern "C" int dt_cuda_kernels_open(int shared_bytes, struct dt_error *err)
{
    cudaError_t rc = open_type<float>(shared_bytes);
    rc = rc == cudaSuccess ? open_type<bf16>(shared_bytes) : rc;
    rc = rc == cudaSuccess ? open_type<f16>(shared_bytes) : rc;
    return rc == cudaSuccess ? 0
                             : dt_fail(err, DT_INTERNAL, "device cuda: %d bytes of shared memory: %s", shared_bytes,
                                       cudaGetErrorString(rc));
}

DT_CUDA_ROW(cross_entropy, a->row_count <= 0 || too_wide(s, a))
DT_CUDA_ROW(label_loss, a->row_count <= 0)
