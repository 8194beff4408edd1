/* Gradient of the token table. Rows with the same id are added in row order, without atomics on
 * floats; in F32 the bits are those of the CPU. The rows are sorted by id on the device: a stable
 * radix sort of digits up to 9 bits (counts per tile, their prefix sums, placing). Then each id's
 * rows lie together in order, and one warp per id adds them up. Work memory holds ids and rows
 * twice, and the counts. More than CHUNK rows are processed in chunks, of which all but the first
 * accumulate. Letters: N rows, D digits (number of values of one), M tiles.
 *
 * One warp for half of all rows would be slow. A table of few rows, as of types, is made of sums of
 * columns instead, two of its rows in each pass over dy. */
#include "kernels/cuda/columns.cuh"

namespace
{

enum { CHUNK = 1 << 20, TILE = 2048, DIGIT_BITS = 9, DIGITS = 1 << DIGIT_BITS, WARPS = 8 };

struct sorting {
    const int32_t *ids_in, *rows_in; /* N; rows_in null: 0, 1, 2, ... */
    int32_t *ids_out, *rows_out;
    int32_t *counts; /* (D, M): first the counts, then the place of the first row */
    int n, tiles, shift, digits;
};

DT_FN int digit_of(const sorting &s, int32_t id)
{
    return (int)((uint32_t)id >> s.shift) & (s.digits - 1);
}

__global__ void __launch_bounds__(256) count_digits(sorting s)
{
    DT_SHARED(int32_t, count, [DIGITS]);
    for (int d = threadIdx.x; d < s.digits; d += 256) {
        count[d] = 0;
    }
    __syncthreads();
    int from = blockIdx.x * TILE, end = from + TILE < s.n ? from + TILE : s.n;
    for (int i = from + threadIdx.x; i < end; i += 256) {
        atomicAdd(&count[digit_of(s, s.ids_in[i])], 1);
    }
    __syncthreads();
    for (int d = threadIdx.x; d < s.digits; d += 256) {
        s.counts[d * s.tiles + blockIdx.x] = count[d];
    }
}

/* Exclusive prefix sums, in one block. */
__global__ void __launch_bounds__(1024) running_sums(int32_t *x, int n)
{
    DT_SHARED(int32_t, part, [32]);
    int each = (n + 1023) / 1024, from = threadIdx.x * each, end = from + each < n ? from + each : n, sum = 0;
    for (int i = from; i < end; i++) {
        sum += x[i];
    }
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, before = sum;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        int y = __shfl_up_sync(DT_WARP, before, o);
        before += lane >= o ? y : 0;
    }
    if (lane == 31) {
        part[warp] = before;
    }
    __syncthreads();
    before -= sum;
    for (int w = 0; w < warp; w++) {
        before += part[w];
    }
    for (int i = from; i < end; i++) {
        int own = x[i];
        x[i] = before;
        before += own;
    }
}

/* Places the rows of one tile, 256 at a time and in order. A row's rank among rows with the same
 * digit is its rank within its warp, after those of earlier warps and earlier rows. */
__global__ void __launch_bounds__(256) place_rows(sorting s)
{
    DT_SHARED(int32_t, next, [DIGITS]);
    DT_SHARED(int32_t, begin, [WARPS][DIGITS]);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int d = threadIdx.x; d < s.digits; d += 256) {
        next[d] = s.counts[d * s.tiles + blockIdx.x];
    }
    int from = blockIdx.x * TILE, end = from + TILE < s.n ? from + TILE : s.n;
    for (int base = from; base < end; base += 256) {
        for (int i = threadIdx.x; i < WARPS * s.digits; i += 256) {
            begin[i / s.digits][i % s.digits] = 0;
        }
        __syncthreads();
        int i = base + threadIdx.x;
        bool valid = i < end;
        int32_t id = valid ? s.ids_in[i] : 0;
        int32_t row = !valid ? 0 : s.rows_in != NULL ? s.rows_in[i] : i;
        int digit = digit_of(s, id);
        uint32_t same = __ballot_sync(DT_WARP, valid);
        for (int b = 1; b < s.digits; b <<= 1) {
            uint32_t vote = __ballot_sync(DT_WARP, (digit & b) != 0);
            same &= (digit & b) != 0 ? vote : ~vote;
        }
        int rank = __popc(same & ((1U << lane) - 1));
        if (valid && rank == 0) {
            begin[warp][digit] = __popc(same);
        }
        __syncthreads();
        for (int d = threadIdx.x; d < s.digits; d += 256) {
            int32_t at = next[d];
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                int32_t count = begin[w][d];
                begin[w][d] = at;
                at += count;
            }
            next[d] = at;
        }
        __syncthreads();
        if (valid) {
            int at = begin[warp][digit] + rank;
            s.ids_out[at] = id;
            s.rows_out[at] = row;
        }
        __syncthreads();
    }
}

template <typename T, typename G> struct adding {
    G *table;
    const T *dy;
    const int32_t *ids, *rows; /* sorted by id */
    int cols, n;
    int64_t skipped; /* an id, or -1 */
    float scale;
};

enum { UNROLL = 8 };

/* One warp at each place. If an id begins there, the warp adds up W * 32 columns of all its
 * rows. */
template <typename T, typename G, int W> __global__ void __launch_bounds__(256, 3) add_rows(adding<T, G> a)
{
    int at = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (at >= a.n || (at > 0 && a.ids[at - 1] == a.ids[at])) {
        return;
    }
    int32_t id = a.ids[at];
    if (id == a.skipped) {
        return;
    }
    for (int c = blockIdx.y * 32 * W; c < a.cols; c += gridDim.y * 32 * W) {
        int col = c + lane * W;
        bool inside = col < a.cols;
        pack<G, W> out;
        float sum[W];
        out.clear();
        if (inside) {
            out.load(a.table + (int64_t)id * a.cols + col);
        }
        out.get(sum);
        for (int i = at, found = 32; found == 32; i += 32) {
            bool same = i + lane < a.n && a.ids[i + lane] == id;
            int32_t row = same ? a.rows[i + lane] : 0;
            found = __popc(__ballot_sync(DT_WARP, same)); /* they are neighbours */
            for (int k = 0; k < found; k += UNROLL) {
                pack<T, W> p[UNROLL];
#pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    int from = __shfl_sync(DT_WARP, row, (k + u) & 31);
                    if (inside && k + u < found) {
                        p[u].load(a.dy + (int64_t)from * a.cols + col);
                    }
                }
#pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    if (inside && k + u < found) {
                        float x[W];
                        p[u].get(x);
#pragma unroll
                        for (int j = 0; j < W; j++) {
                            sum[j] += x[j] * a.scale;
                        }
                    }
                }
            }
        }
        if (inside) {
            out.set(sum);
            out.store(a.table + (int64_t)id * a.cols + col);
        }
    }
}

/* The beginnings of the parts of the work memory. */
struct work {
    int32_t *ids[2], *rows[2], *counts;
};

/* Sorts n ids below `limit`. Returns the half of the work memory that has the result. */
int sort_ids(const struct dt_cuda_launch *l, const struct work *w, const int32_t *ids, int n, int64_t limit)
{
    int bits = 1;
    while (bits < 31 && ((int64_t)1 << bits) < limit) {
        bits++;
    }
    int passes = (bits + DIGIT_BITS - 1) / DIGIT_BITS, each = (bits + passes - 1) / passes, to = 0;
    for (int p = 0; p < passes; p++, to ^= 1) {
        sorting s = {p == 0 ? ids : w->ids[to ^ 1],
                     p == 0 ? NULL : w->rows[to ^ 1],
                     w->ids[to],
                     w->rows[to],
                     w->counts,
                     n,
                     (int)parts_of(n, TILE),
                     p * each,
                     1 << each};
        DT_LAUNCH((count_digits), s.tiles, 256, 0, (cudaStream_t)l->native, s);
        DT_LAUNCH((running_sums), 1, 1024, 0, (cudaStream_t)l->native, s.counts, s.digits * s.tiles);
        DT_LAUNCH((place_rows), s.tiles, 256, 0, (cudaStream_t)l->native, s);
    }
    return to ^ 1;
}

/* Rows id and id + 1 of the table, as sums of columns. */
template <typename T, int N> struct rows_of_ids {
    enum { SUMS = N };
    const T *dy;
    const int32_t *ids;
    int64_t cols, id, skipped;
    float scale;
    template <int W> struct held {
        pack<T, W> x;
        int own; /* which of the sums the row belongs to */
    };

    template <int W> DT_METHOD void load(held<W> &h, int64_t row, int64_t col) const
    {
        int64_t found = ids[row];
        h.own = found == skipped ? -1 : (int)(found - id);
        h.x.load(dy + row * cols + col);
    }
    template <int W> DT_METHOD void get(float (&to)[N][W], const held<W> &h, int64_t) const
    {
        float x[W];
        h.x.get(x);
#pragma unroll
        for (int v = 0; v < N; v++) {
#pragma unroll
            for (int k = 0; k < W; k++) {
                to[v][k] = h.own == v ? x[k] * scale : 0;
            }
        }
    }
};

template <typename T, typename G, int N>
void sum_ids(const struct dt_cuda_launch *l, const struct dt_embedding_backward_args *a, int64_t id)
{
    const int W = 16 / (int)sizeof(T);
    rows_of_ids<T, N> from = {(const T *)a->dy,
                              a->ids,
                              a->col_count,
                              id,
                              a->skips ? a->skipped_id : -1,
                              (float)(a->scale != 0 ? a->scale : 1)};
    G *out = (G *)a->dtokens + id * a->col_count;
    enum dt_dtype type = sizeof(G) == 4 ? DT_F32 : a->type;
    if (aligned16(a->dy) && a->col_count % W == 0) {
        sum_columns<rows_of_ids<T, N>, W>(l, from, out, N == 2 ? out + a->col_count : NULL, a->row_count, a->col_count,
                                          a->accumulate, type);
    } else {
        sum_columns<rows_of_ids<T, N>, 1>(l, from, out, N == 2 ? out + a->col_count : NULL, a->row_count, a->col_count,
                                          a->accumulate, type);
    }
}

enum { SMALL_TABLE = 8, SMALL_SHARE = 256 }; /* rows; how many times as many dy has at least */

template <typename T, typename G>
void run_small(const struct dt_cuda_launch *l, const struct dt_embedding_backward_args *a)
{
    for (int64_t id = 0; id < a->vocab_count; id += 2) {
        if (id + 1 < a->vocab_count) {
            sum_ids<T, G, 2>(l, a, id);
        } else {
            sum_ids<T, G, 1>(l, a, id);
        }
    }
}

template <typename T, typename G> void run(const struct dt_cuda_launch *l, const struct dt_embedding_backward_args *a)
{
    if (a->vocab_count <= SMALL_TABLE && a->row_count >= SMALL_SHARE * a->vocab_count && a->col_count <= COLUMNS_MOST) {
        run_small<T, G>(l, a);
        return;
    }
    struct work w;
    int32_t *at = (int32_t *)l->work;
    for (int i = 0; i < 2; i++) {
        w.ids[i] = at + (2 * i) * CHUNK;
        w.rows[i] = at + (2 * i + 1) * CHUNK;
    }
    w.counts = at + 4 * CHUNK; /* 512 digits times 512 tiles: 1 MB, after 16 MB */
    if (!a->accumulate) {
        (void)cudaMemsetAsync(a->dtokens, 0, (size_t)(a->vocab_count * a->col_count) * sizeof(G),
                              (cudaStream_t)l->native);
    }
    const int W = 16 / (int)sizeof(T);
    bool wide = aligned16(a->dtokens) && aligned16(a->dy) && a->col_count % W == 0;
    for (int64_t first = 0; first < a->row_count; first += CHUNK) {
        int n = (int)(a->row_count - first < CHUNK ? a->row_count - first : (int64_t)CHUNK);
        int half = sort_ids(l, &w, a->ids + first, n, a->vocab_count);
        adding<T, G> f = {(G *)a->dtokens,
                          (const T *)a->dy + first * a->col_count,
                          w.ids[half],
                          w.rows[half],
                          (int)a->col_count,
                          n,
                          a->skips ? a->skipped_id : -1,
                          (float)(a->scale != 0 ? a->scale : 1)};
        dim3 grid((unsigned)parts_of(n, WARPS), (unsigned)parts_of(a->col_count, 32 * (wide ? W : 1)));
        grid.y = grid.y < 65535 ? grid.y : 65535;
        if (wide) {
            DT_LAUNCH((add_rows<T, G, W>), grid, 256, 0, (cudaStream_t)l->native, f);
        } else {
            DT_LAUNCH((add_rows<T, G, 1>), grid, 256, 0, (cudaStream_t)l->native, f);
        }
    }
}

template <typename T>
void embedding_backward(const struct dt_cuda_launch *l, const struct dt_embedding_backward_args *a, enum dt_dtype sums)
{
    sums == DT_F32 ? run<T, float>(l, a) : run<T, T>(l, a);
}

} // namespace

DT_CUDA_SUMS_ROW(embedding_backward, a->grad_type, false)
