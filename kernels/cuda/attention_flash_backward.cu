/* Attention on tensor cores, bf16, backward. Weights are computed again from the saved log-sum-exp.
 * One kernel has a block per tile of queries, for dq (and for delta, the sum of dout * out of each
 * row). Another has a block per tile of keys, for dk and dv. So two of seven products are computed
 * twice, but no two blocks add to the same element. There are no atomics and no order among blocks,
 * and the bits are always the same and do not depend on the batch.
 *
 * The second kernel computes transposed scores (keys x queries), so a warp's registers already hold
 * the left operand of its next product, and only inputs are in shared memory. While the kernel
 * works on a tile, it loads the next one into the other half of the buffer. Two blocks of 4 warps
 * share a multiprocessor: at most 255 registers, and 64 KiB (D = 64, D = 128) to 72 KiB (D = 96) of
 * shared memory. Any length is allowed, as in forward: missing rows are zeros with a log-sum-exp of
 * infinity, so their weights are 0. */
#include "kernels/cuda/attention_flash.cuh"

namespace
{

enum { WARPS = 4, THREADS = WARPS * 32, PART = 32 /* columns that a warp works on at a time */, NT = PART / 8 };
#define LOG2E 1.44269504f

/* ---- dq ---- */

template <int D> struct query_tiles {
    enum {
        MT = D <= 96 ? 2 : 1,
        ROWS = WARPS * MT * 16,
        KEYS = D <= 64 ? 64 : 32,
        SHARED = (2 * ROWS + 4 * KEYS) * D * (int)sizeof(bf16)
    };
};

/* Computes delta of a warp's rows. `above` has dout as left operand; `out` is read in place. All
 * four lanes of a row get the whole sum. */
template <int MT, int D, typename L>
DT_FN void delta_of(float (&delta)[MT][2], const L &above, const bf16 *out, int step, int first, int end, int cols)
{
    int row = (int)threadIdx.x % 32 / 4, column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < MT; m++) {
        delta[m][0] = delta[m][1] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[MT][4];
        above.get(a, k);
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int t = first + 16 * m + i % 2 * 8 + row, d = 16 * k + i / 2 * 8 + column;
                uint32_t o = t < end && d < cols ? *(const uint32_t *)(out + t * step + d) : 0;
                float sum = delta[m][i % 2];
                sum = fmaf(__uint_as_float(a[m][i] << 16), __uint_as_float(o << 16), sum);
                delta[m][i % 2] = fmaf(__uint_as_float(a[m][i] & 0xffff0000U), __uint_as_float(o & 0xffff0000U), sum);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            delta[m][half] += __shfl_xor_sync(DT_WARP, delta[m][half], 1);
            delta[m][half] += __shfl_xor_sync(DT_WARP, delta[m][half], 2);
        }
    }
}

/* c: scores become weights. above: products of dout and values become gradients of the scaled
 * scores. lse is in powers of two. */
template <int MT>
DT_FN void change_queries(float (&above)[MT][NT][4], const float (&c)[MT][NT][4], const float (&lse)[MT][2],
                          const float (&delta)[MT][2], float factor)
{
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float weight = dt_exp2(fmaf(c[m][n][i], factor, -lse[m][i / 2]));
                above[m][n][i] = weight * (above[m][n][i] - delta[m][i / 2]);
            }
        }
    }
}

template <int D>
__global__ void __launch_bounds__(THREADS)
    flash_backward_queries(bf16 *dq, float *delta_out, const bf16 *dout, const bf16 *out, const bf16 *q_rows,
                           const bf16 *k_rows, const bf16 *v_rows, const float *lse, struct shape s)
{
    typedef query_tiles<D> q;
    enum { MT = q::MT };
    DT_SHARED_DYNAMIC(bf16, shared);
    bf16 *query_tile = shared, *above_tile = query_tile + q::ROWS * D, *key_tiles = above_tile + q::ROWS * D,
         *value_tiles = key_tiles + 2 * q::KEYS * D;
    int q_step = (int)s.q_row, step = (int)s.kv_row, out_step = (int)s.out_row, T = (int)s.positions;
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * MT * 16;
    int head = (int)blockIdx.y, kv = head / (s.heads / s.kv_heads),
        first = ((int)gridDim.x - 1 - (int)blockIdx.x) * q::ROWS;
    int64_t batch = blockIdx.z, at_out = batch * s.positions * s.out_row + head * s.head_size,
            at_q = batch * s.positions * s.q_row + head * s.head_size,
            at_key = batch * s.capacity * s.kv_row + kv * s.head_size, at_row = (batch * s.heads + head) * s.positions;
    const bf16 *keys = k_rows + at_key, *values = v_rows + at_key;
    mma_copy<q::ROWS, D, THREADS>(query_tile, q_rows + at_q, q_step, first, T, s.head_size);
    mma_copy<q::ROWS, D, THREADS>(above_tile, dout + at_out, out_step, first, T, s.head_size);
    dt_cp_commit();
    mma_copy<q::KEYS, D, THREADS>(key_tiles, keys, step, 0, T, s.head_size);
    mma_copy<q::KEYS, D, THREADS>(value_tiles, values, step, 0, T, s.head_size);
    dt_cp_commit();
    dt_cp_wait<1>();
    __syncthreads(); /* queries and gradients are loaded */

    mma_rows<MT, D, (D != 96)> queries, above;
    queries.begin(query_tile, row);
    above.begin(above_tile, row);
    float delta[MT][2], log_sum[MT][2], sum[MT][D / 8][4], factor = s.scale * LOG2E;
    delta_of<MT, D>(delta, above, out + at_out, out_step, first + row, T, s.head_size);
    mma_clear(sum);
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int t = first + row + 16 * m + 8 * half + lane / 4;
            log_sum[m][half] = t < T ? lse[at_row + t] * LOG2E : INFINITY;
            if (lane % 4 == 0 && t < T) {
                delta_out[at_row + t] = delta[m][half];
            }
        }
    }
    int end = s.causal && first + q::ROWS < T ? first + q::ROWS : T, last = first + row + MT * 16 - 1, buffer = 0;
    for (int begin = 0; begin < end; begin += q::KEYS, buffer ^= 1) {
        dt_cp_wait<0>();
        __syncthreads(); /* this tile is loaded; no warp reads the previous one any more */
        if (begin + q::KEYS < end) {
            mma_copy<q::KEYS, D, THREADS>(key_tiles + (buffer ^ 1) * q::KEYS * D, keys, step, begin + q::KEYS, T,
                                          s.head_size);
            mma_copy<q::KEYS, D, THREADS>(value_tiles + (buffer ^ 1) * q::KEYS * D, values, step, begin + q::KEYS, T,
                                          s.head_size);
            dt_cp_commit();
        }
        for (int part = 0; part < q::KEYS && (!s.causal || begin + part <= last); part += PART) {
            const bf16 *tile = key_tiles + (buffer * q::KEYS + part) * D;
            float c[MT][NT][4], change[MT][NT][4];
            uint32_t rounded_change[NT / 2][MT][4];
            mma_product_of_rows<MT, NT, D>(c, queries, tile, 0);
            if (begin + part + PART > (s.causal ? first + row + 1 : T)) {
                hide_keys(c, (s.causal ? first + row + lane / 4 + 1 : T) - begin - part, s.causal);
            }
            mma_product_of_rows<MT, NT, D>(change, above, value_tiles + (buffer * q::KEYS + part) * D, 0);
            change_queries(change, c, log_sum, delta, factor);
            mma_round(rounded_change, change);
            mma_add_product<MT, NT / 2, D>(sum, rounded_change, tile, 0);
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
        delta[m][0] = delta[m][1] = s.scale;
    }
    mma_store<MT, D>(dq + at_q, q_step, first + row, T, s.head_size, query_tile, row, sum, delta);
}

/* ---- dk, dv ---- */

/* A warp has two sums of D columns for its rows of keys. */
template <int D> struct key_tiles {
    enum { MT = D <= 64 ? 2 : 1, ROWS = WARPS * MT * 16, QUERIES = D <= 64 ? 64 : 32 };
    enum { SHARED = (2 * ROWS + 4 * QUERIES) * D * (int)sizeof(bf16) + 4 * QUERIES * (int)sizeof(float) };
};

/* Like change_queries, with keys as rows and queries as columns; lse and delta are by column. c
 * becomes weights. */
template <int MT>
DT_FN void change_keys(float (&above)[MT][NT][4], float (&c)[MT][NT][4], const float *lse, const float *delta,
                       float factor)
{
    int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float2 shift = *(const float2 *)(lse + 8 * n + column), less = *(const float2 *)(delta + 8 * n + column);
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                c[m][n][i] = dt_exp2(fmaf(c[m][n][i], factor, -(i % 2 != 0 ? shift.y : shift.x)));
                above[m][n][i] = c[m][n][i] * (above[m][n][i] - (i % 2 != 0 ? less.y : less.x));
            }
        }
    }
}

/* Hides keys that come after a query. The lane's first row is `ahead` keys after the first
 * column. */
template <int MT> DT_FN void hide_queries(float (&c)[MT][NT][4], int ahead)
{
    int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                c[m][n][i] = 8 * n + column + i % 2 >= ahead + 16 * m + i / 2 * 8 ? c[m][n][i] : -INFINITY;
            }
        }
    }
}

/* The tensors of one sequence from which a block of keys reads the queries. */
struct query_source {
    const bf16 *q, *dout;
    const float *lse, *delta;
};

/* Starts loading a tile of queries and their gradients. Returns this thread's share of the
 * statistics, also still being loaded: threads 0 .. QUERIES have one log-sum-exp each, in powers of
 * two; the next QUERIES threads have one delta each. */
template <int D>
DT_FN float fetch(bf16 *query_tile, bf16 *above_tile, const struct query_source &from, const struct shape &s, int head,
                  int begin)
{
    enum { QUERIES = key_tiles<D>::QUERIES };
    int T = (int)s.positions, own = begin + (int)threadIdx.x % QUERIES;
    mma_copy<QUERIES, D, THREADS>(query_tile, from.q + head * s.head_size, (int)s.q_row, begin, T, s.head_size);
    mma_copy<QUERIES, D, THREADS>(above_tile, from.dout + head * s.head_size, (int)s.out_row, begin, T, s.head_size);
    dt_cp_commit();
    if ((int)threadIdx.x < QUERIES) {
        return own < T ? from.lse[head * T + own] * LOG2E : INFINITY;
    }
    return own < T && (int)threadIdx.x < 2 * QUERIES ? from.delta[head * T + own] : 0.0f;
}

template <int D>
__global__ void __launch_bounds__(THREADS)
    flash_backward_keys(bf16 *dk, bf16 *dv, const float *delta, const bf16 *dout, const bf16 *q_rows,
                        const bf16 *k_rows, const bf16 *v_rows, const float *lse, struct shape s)
{
    typedef key_tiles<D> k;
    enum { MT = k::MT, QUERIES = k::QUERIES, TILE = QUERIES * D };
    DT_SHARED_DYNAMIC(bf16, shared);
    bf16 *key_tile = shared, *value_tile = key_tile + k::ROWS * D, *query_tiles = value_tile + k::ROWS * D,
         *above_tiles = query_tiles + 2 * TILE;
    /* for the queries of each buffer: log-sum-exps, then deltas */
    float *statistics = (float *)(above_tiles + 2 * TILE);
    int step = (int)s.kv_row, T = (int)s.positions, lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * MT * 16;
    int kv = (int)blockIdx.y, group = s.heads / s.kv_heads, first = (int)blockIdx.x * k::ROWS;
    int64_t batch = blockIdx.z, at_key = batch * s.capacity * s.kv_row + kv * s.head_size;
    struct query_source from = {q_rows + batch * s.positions * s.q_row, dout + batch * s.positions * s.out_row,
                                lse + batch * s.heads * s.positions, delta + batch * s.heads * s.positions};
    /* earlier queries see none of these keys */
    int start = s.causal ? first / QUERIES * QUERIES : 0;
    mma_copy<k::ROWS, D, THREADS>(key_tile, k_rows + at_key, step, first, T, s.head_size);
    mma_copy<k::ROWS, D, THREADS>(value_tile, v_rows + at_key, step, first, T, s.head_size);
    float held = fetch<D>(query_tiles, above_tiles, from, s, kv * group, start);

    mma_rows<MT, D, false> keys, values;
    keys.begin(key_tile, row);
    values.begin(value_tile, row);
    float key_sum[MT][D / 8][4], value_sum[MT][D / 8][4], factor = s.scale * LOG2E;
    mma_clear(key_sum);
    mma_clear(value_sum);
    int buffer = 0;
    for (int head = kv * group, begin = start; head < (kv + 1) * group; buffer ^= 1) {
        int next_begin = begin + QUERIES < T ? begin + QUERIES : start,
            next_head = begin + QUERIES < T ? head : head + 1;
        if ((int)threadIdx.x < 2 * QUERIES) {
            statistics[buffer * 2 * QUERIES + (int)threadIdx.x] = held;
        }
        dt_cp_wait<0>();
        __syncthreads(); /* this tile is loaded; no warp reads the previous one any more */
        if (next_head < (kv + 1) * group) {
            held = fetch<D>(query_tiles + (buffer ^ 1) * TILE, above_tiles + (buffer ^ 1) * TILE, from, s, next_head,
                            next_begin);
        }
        for (int part = 0; part < QUERIES && begin + part < T; part += PART) {
            if (s.causal && begin + part + PART <= first + row) {
                continue; /* all these queries come before the warp's keys */
            }
            const bf16 *query_part = query_tiles + buffer * TILE + part * D,
                       *above_part = above_tiles + buffer * TILE + part * D;
            const float *log_sums = statistics + buffer * 2 * QUERIES + part;
            float c[MT][NT][4], change[MT][NT][4];
            uint32_t rounded[NT / 2][MT][4];
            mma_product_of_rows<MT, NT, D>(c, keys, query_part, 0);
            if (s.causal && begin + part < first + row + MT * 16 - 1) {
                hide_queries(c, first + row + lane / 4 - begin - part);
            }
            mma_product_of_rows<MT, NT, D>(change, values, above_part, 0);
            change_keys(change, c, log_sums, log_sums + QUERIES, factor);
            mma_round(rounded, c);
            mma_add_product<MT, NT / 2, D>(value_sum, rounded, above_part, 0);
            mma_round(rounded, change);
            mma_add_product<MT, NT / 2, D>(key_sum, rounded, query_part, 0);
        }
        head = next_head;
        begin = next_begin;
    }
    float scales[MT][2], ones[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        scales[m][0] = scales[m][1] = s.scale;
        ones[m][0] = ones[m][1] = 1.0f;
    }
    mma_store<MT, D>(dk + at_key, step, first + row, T, s.head_size, key_tile, row, key_sum, scales);
    mma_store<MT, D>(dv + at_key, step, first + row, T, s.head_size, value_tile, row, value_sum, ones);
}

template <int D>
void backward(const struct dt_cuda_launch *l, const struct dt_attention_backward_args *a, const struct shape &s)
{
    typedef query_tiles<D> q;
    typedef key_tiles<D> k;
    float *delta = (float *)l->work;
    if (allow<flash_backward_queries<D>>(q::SHARED) && allow<flash_backward_keys<D>>(k::SHARED)) {
        DT_LAUNCH((flash_backward_queries<D>),
                  dim3((unsigned)parts_of(s.positions, q::ROWS), (unsigned)s.heads, (unsigned)a->shape.batch), THREADS,
                  q::SHARED, (cudaStream_t)l->native, (bf16 *)a->dq, delta, (const bf16 *)a->dout, (const bf16 *)a->out,
                  (const bf16 *)a->q, (const bf16 *)a->k, (const bf16 *)a->v, (const float *)a->lse, s);
        DT_LAUNCH((flash_backward_keys<D>),
                  dim3((unsigned)parts_of(s.positions, k::ROWS), (unsigned)s.kv_heads, (unsigned)a->shape.batch),
                  THREADS, k::SHARED, (cudaStream_t)l->native, (bf16 *)a->dk, (bf16 *)a->dv, (const float *)delta,
                  (const bf16 *)a->dout, (const bf16 *)a->q, (const bf16 *)a->k, (const bf16 *)a->v,
                  (const float *)a->lse, s);
    }
}

} // namespace

void dt_cuda_attention_backward_flash(const struct dt_cuda_launch *l, const struct dt_attention_backward_args *a)
{
    struct shape s = shape_of(&a->shape);
    backward_parts(a, [&](const struct dt_attention_backward_args *part) {
        with_head_size(s, [&](auto size) { backward<decltype(size)::value>(l, part, s); });
    });
}
