/* Attention on tensor cores, bf16, forward. A block takes 128 queries of a head and walks over the
 * keys with a running maximum and sum (Dao: FlashAttention-2, 2023), so no score is ever stored in
 * memory. Keys come in ascending order, and each query has its own sums. So a row's bits are always
 * the same and depend neither on the batch nor on other rows.
 *
 * A warp has 32 queries: each piece of keys or values that it reads from shared memory serves two
 * products of 16 rows. With fewer, tensor cores would wait for shared memory. Values are loaded
 * while the warp multiplies queries and keys, and the next keys while it does the rest. Two blocks
 * of 4 warps share a multiprocessor, so that one multiplies while the other takes exponentials: at
 * most 255 registers, and 32 KiB (D = 64) to 64 KiB (D = 128) of shared memory. Any length is
 * allowed: missing rows are zeros, and are masked or not written. Head sizes between the kernels'
 * are padded with columns of zeros. */
#include "kernels/cuda/attention_flash.cuh"

namespace
{

enum { WARPS = 4, MT = 2, ROWS = WARPS * MT * 16 };

/* Keys of a tile: as many as the registers allow. */
template <int D> struct tile_of {
    enum { KEYS = D <= 64 ? 64 : D <= 96 ? 48 : 32 };
};

/* The running maximum and sum of a query's row. A lane has two rows of each product, and four lanes
 * share each row. */
struct running {
    /* of the scores before scaling; total: this lane's part of the sum */
    float most[MT][2], total[MT][2];
};

/* Turns scores into weights 2^(factor (score - most)), and rescales `sum` to the new maximum. */
template <int NT, int OT>
DT_FN void softmax(float (&c)[MT][NT][4], struct running &r, float (&sum)[MT][OT][4], float factor)
{
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = r.most[m][half];
#pragma unroll
            for (int n = 0; n < NT; n++) {
                most = fmaxf(most, fmaxf(c[m][n][2 * half], c[m][n][2 * half + 1]));
            }
            most = fmaxf(most, __shfl_xor_sync(DT_WARP, most, 1));
            most = fmaxf(most, __shfl_xor_sync(DT_WARP, most, 2));
            float shrink = dt_exp2((r.most[m][half] - most) * factor), shift = most * factor, total = 0.0f;
            r.most[m][half] = most;
#pragma unroll
            for (int n = 0; n < NT; n++) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    c[m][n][i] = dt_exp2(fmaf(c[m][n][i], factor, -shift));
                    total += c[m][n][i];
                }
            }
            r.total[m][half] = fmaf(r.total[m][half], shrink, total);
#pragma unroll
            for (int n = 0; n < OT; n++) {
                sum[m][n][2 * half] *= shrink;
                sum[m][n][2 * half + 1] *= shrink;
            }
        }
    }
}

template <int D>
__global__ void __launch_bounds__(WARPS * 32)
    flash_forward(bf16 *out, float *lse, const bf16 *q, const bf16 *k, const bf16 *v, struct shape s)
{
    enum { KEYS = tile_of<D>::KEYS };
    DT_SHARED_DYNAMIC(bf16, shared);
    int q_step = (int)s.q_row, step = (int)s.kv_row;
    bf16 *query_tile = shared, *key_tile = query_tile + ROWS * D, *value_tile = key_tile + KEYS * D;
    /* row: the warp's first row in the tile */
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * MT * 16;
    int head = (int)blockIdx.y, kv = head / (s.heads / s.kv_heads), T = (int)s.positions;
    /* start blocks with the most keys first */
    int first = ((int)gridDim.x - 1 - (int)blockIdx.x) * ROWS;
    int64_t batch = blockIdx.z;
    int64_t at_key = batch * s.capacity * s.kv_row + kv * s.head_size;
    const bf16 *keys = k + at_key, *values = v + at_key;
    mma_copy<ROWS, D, WARPS * 32>(query_tile, q + batch * s.positions * s.q_row + head * s.head_size, q_step, first, T,
                                  s.head_size);
    dt_cp_commit();
    mma_copy<KEYS, D, WARPS * 32>(key_tile, keys, step, 0, T, s.head_size);
    dt_cp_commit();
    dt_cp_wait<1>();
    __syncthreads(); /* the queries are loaded */

    mma_rows<MT, D, (D <= 64)> queries;
    queries.begin(query_tile, row);
    struct running r;
    float sum[MT][D / 8][4], factor = s.scale * 1.44269504f; /* log2 e */
    mma_clear(sum);
#pragma unroll
    for (int m = 0; m < MT; m++) {
        r.most[m][0] = r.most[m][1] = -INFINITY;
        r.total[m][0] = r.total[m][1] = 0.0f;
    }
    /* last: the last query of the warp */
    int end = s.causal && first + ROWS < T ? first + ROWS : T, last = first + row + MT * 16 - 1;
    for (int begin = 0; begin < end; begin += KEYS) {
        bool seen = !s.causal || begin <= last;
        float c[MT][KEYS / 8][4];
        dt_cp_wait<0>();
        __syncthreads(); /* the keys are loaded; no warp reads the old values any more */
        mma_copy<KEYS, D, WARPS * 32>(value_tile, values, step, begin, T, s.head_size);
        dt_cp_commit();
        if (seen) {
            mma_product_of_rows<MT, KEYS / 8, D>(c, queries, key_tile, 0);
        }
        dt_cp_wait<0>();
        __syncthreads(); /* the values are loaded; no warp reads these keys any more */
        if (begin + KEYS < end) {
            mma_copy<KEYS, D, WARPS * 32>(key_tile, keys, step, begin + KEYS, T, s.head_size);
            dt_cp_commit();
        }
        if (seen) {
            uint32_t weights[KEYS / 16][MT][4];
            if (begin + KEYS > (s.causal ? first + row + 1 : T)) {
                hide_keys(c, (s.causal ? first + row + lane / 4 + 1 : T) - begin, s.causal);
            }
            softmax(c, r, sum, factor);
            mma_round(weights, c);
            mma_add_product<MT, KEYS / 16, D>(sum, weights, value_tile, 0);
        }
    }

    float inverse[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = r.total[m][half];
            total += __shfl_xor_sync(DT_WARP, total, 1);
            total += __shfl_xor_sync(DT_WARP, total, 2);
            inverse[m][half] = 1.0f / total;
            int t = first + row + 16 * m + 8 * half + lane / 4;
            /* the logarithm of the number by which the weights were divided, with the same
             * rounding */
            if (lane % 4 == 0 && t < T && lse != nullptr) {
                lse[(batch * s.heads + head) * s.positions + t] =
                    fmaf(r.most[m][half] * factor, 0.693147181f, logf(total));
            }
        }
    }
    /* by `heads`, not by out_row: that would cost registers, and out's rows are tight here */
    mma_store<MT, D>(out + (batch * s.positions * s.heads + head) * s.head_size, (int64_t)s.heads * s.head_size,
                     first + row, T, s.head_size, query_tile, row, sum, inverse);
}

template <int D> void forward(const struct dt_cuda_launch *l, const struct dt_attention_args *a, const struct shape &s)
{
    size_t bytes = (size_t)(ROWS + 2 * tile_of<D>::KEYS) * D * sizeof(bf16);
    if (allow<flash_forward<D>>(bytes)) {
        DT_LAUNCH((flash_forward<D>),
                  dim3((unsigned)parts_of(s.positions, ROWS), (unsigned)s.heads, (unsigned)a->shape.batch), WARPS * 32,
                  bytes, (cudaStream_t)l->native, (bf16 *)a->out, (float *)a->lse, (const bf16 *)a->q,
                  (const bf16 *)a->k, (const bf16 *)a->v, s);
    }
}

} // namespace

bool dt_cuda_attention_flash_can(const struct dt_attention_shape *shape)
{
    const struct dt_attention_shape s = dt_attention_filled(shape);
    int64_t longest = s.q_stride > s.kv_stride ? s.q_stride : s.kv_stride;
    longest = longest > s.heads * s.head_size ? longest : s.heads * s.head_size;
    return s.type == DT_BF16 && s.head_size % 8 == 0 && s.head_size <= 128 && s.scale >= 0.0 &&
           dt_attention_is_simple(&s) && s.out_stride == s.heads * s.head_size && (s.q_stride | s.kv_stride) % 8 == 0 &&
           s.keys * longest <= INT32_MAX && dt_cuda_attention_plain_can(&s);
}

void dt_cuda_attention_flash(const struct dt_cuda_launch *l, const struct dt_attention_args *a)
{
    struct shape s = shape_of(&a->shape);
    forward_parts(a, [&](const struct dt_attention_args *part) {
        with_head_size(s, [&](auto size) { forward<decltype(size)::value>(l, part, s); });
    });
}
