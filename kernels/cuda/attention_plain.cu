/* Attention without tensor cores, with all that a shape can ask for: for fp32, for head sizes and
 * masks that the fast kernels lack, and as the reference for those. A warp takes EACH rows: rows of queries in the forward pass and for dq, rows
 * of keys for dk and dv. Each of its lanes first takes one key (or query) of a tile of 32, then a
 * few channels of the sums. What the lanes read of the tile serves all rows of the warp. Every sum
 * has a fixed order, and no two warps write the same element, so the bits are always the same.
 * not hot: shapes that must be fast have kernels of their own. */
#include "kernels/cuda/attention.cuh"

namespace
{

enum { WARPS = 4, EACH = 4, ROWS = WARPS * EACH, TILE = 32, HEAD_MAX = 256 };

/* Loads `count` rows from `first` on, each head_size long and `step` apart in memory, into shared
 * memory. Rows from `end` on become zero. A warp reads row by row. */
template <typename T>
__device__ __forceinline__ void load_rows(float *to, int pitch, const T *from, int64_t step, int64_t first, int64_t end,
                                          int count, int head_size)
{
    for (int row = (int)threadIdx.x / 32; row < count; row += WARPS) {
        for (int d = (int)threadIdx.x % 32; d < head_size; d += 32) {
            to[row * pitch + d] = first + row < end ? widen(from[(first + row) * step + d]) : 0.0f;
        }
    }
}

/* out[r] = dot product of row r of x (rows are head_size apart) and y */
__device__ __forceinline__ void dots(float (&out)[EACH], const float *x, const float *y, int head_size)
{
    for (int r = 0; r < EACH; r++) {
        out[r] = 0.0f;
    }
#pragma unroll 4
    for (int d = 0; d < head_size; d++) {
        float own = y[d];
        for (int r = 0; r < EACH; r++) {
            out[r] = fmaf(x[r * head_size + d], own, out[r]);
        }
    }
}

/* sum[r][c] += sum over lanes, in order, of x[r] of the lane times row[lane][our channel c] */
template <int CHANNELS>
__device__ __forceinline__ void add_rows(float (&sum)[EACH][CHANNELS], const float (&x)[EACH], const float *rows,
                                         int pitch, int lane, int head_size)
{
    for (int j = 0; j < TILE; j++) {
        float factor[EACH];
        for (int r = 0; r < EACH; r++) {
            factor[r] = __shfl_sync(0xffffffffu, x[r], j);
        }
        for (int c = 0; c < CHANNELS; c++) {
            float own = lane + 32 * c < head_size ? rows[j * pitch + lane + 32 * c] : 0.0f;
            for (int r = 0; r < EACH; r++) {
                sum[r][c] = fmaf(factor[r], own, sum[r][c]);
            }
        }
    }
}

/* True if the query at key position `at` sees the key. */
__device__ __forceinline__ bool sees(const struct shape &s, int64_t batch, int64_t at, int64_t key)
{
    if (key >= s.positions || at >= s.positions || (s.causal && key > at) ||
        (s.window > 0 && (key <= at - s.window || key >= at + s.window))) {
        return false;
    }
    if (s.segments == nullptr) {
        return true;
    }
    const int32_t *segments = s.segments + batch * s.positions;
    return segments[key] == (segments[at] > 0 ? segments[at] : 0);
}

/* The score of a product q k. *slope: what it changes by, relative to scale * q k. */
__device__ __forceinline__ float score_of(const struct shape &s, float product, float *slope)
{
    float score = s.scale * product;
    *slope = 1.0f;
    if (s.softcap > 0.0f) {
        float t = tanhf(score / s.softcap);
        score = s.softcap * t;
        *slope = 1.0f - t * t;
    }
    return score;
}

/* The factor of dropout on a probability: 0, or s.kept. */
__device__ __forceinline__ float kept_of(const struct shape &s, int64_t batch, int head, int64_t at, int64_t key)
{
    if (!s.drops) {
        return 1.0f;
    }
    uint64_t row = dt_dropout_row_key(dt_dropout_key(s.seed, s.site, s.samples[batch]), head, at);
    return dt_dropout_keeps(row, key, s.limit) ? s.kept : 0.0f;
}

/* The first key, or query, of the tile from which a block begins to look at them; `first` is the
 * block's first row, as a key position, and looks_back that it sees what comes before. */
__device__ __forceinline__ int64_t begin_of(const struct shape &s, int64_t first, bool looks_back)
{
    int64_t begin = !looks_back ? first : s.window > 0 ? first - s.window + 1 : 0;
    return begin > 0 ? begin / TILE * TILE : 0;
}

__device__ __forceinline__ int64_t end_of(const struct shape &s, int64_t first, bool looks_ahead)
{
    int64_t end = !looks_ahead ? first + ROWS : s.window > 0 ? first + ROWS - 1 + s.window : s.positions;
    return end < s.positions ? end : s.positions;
}

/* Shared memory holds keys and values (or queries and gradients) of a tile, then the block's own
 * rows, or two of each. */
__device__ __forceinline__ int pitch_of(int head_size)
{
    return head_size + 1; /* odd, so lanes that read one row each use different banks */
}

template <typename T, int CHANNELS>
__global__ void __launch_bounds__(WARPS * 32)
    attention_forward(T *out, float *lse, const T *q, const T *k, const T *v, struct shape s)
{
    DT_SHARED_DYNAMIC(float, shared);
    int pitch = pitch_of(s.head_size), warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *tile = shared, *block = shared + TILE * pitch, *query = block + warp * EACH * s.head_size;
    int head = (int)blockIdx.y, kv = head / (s.heads / s.kv_heads);
    int64_t first = (int64_t)blockIdx.x * ROWS, own = first + warp * EACH, batch = blockIdx.z;
    int64_t at_key = batch * s.capacity * s.kv_row + kv * s.head_size,
            at_q = batch * s.queries * s.q_row + head * s.head_size;
    const T *keys = k + at_key, *values = v + at_key;
    load_rows(block, s.head_size, q + at_q, s.q_row, first, s.queries, ROWS, s.head_size);
    float most[EACH], total[EACH] = {}, sum[EACH][CHANNELS] = {};
    for (int r = 0; r < EACH; r++) {
        most[r] = -INFINITY;
    }
    int64_t past = s.positions - s.queries, end = end_of(s, first + past, !s.causal);
    for (int64_t begin = begin_of(s, first + past, true); begin < end; begin += TILE) {
        float weight[EACH];
        __syncthreads();
        load_rows(tile, pitch, keys, s.kv_row, begin, s.positions, TILE, s.head_size);
        __syncthreads();
        dots(weight, query, tile + lane * pitch, s.head_size);
        for (int r = 0; r < EACH; r++) {
            int64_t key = begin + lane, at = own + r + past;
            float slope, score = sees(s, batch, at, key) ? score_of(s, weight[r], &slope) : -INFINITY;
            float higher = fmaxf(most[r], warp_max(score)),
                  shrink = most[r] > -INFINITY ? expf(most[r] - higher) : 0.0f;
            weight[r] = score > -INFINITY ? expf(score - higher) : 0.0f;
            total[r] = total[r] * shrink + warp_sum(weight[r]);
            most[r] = higher;
            weight[r] *= kept_of(s, batch, head, at, key);
            for (int c = 0; c < CHANNELS; c++) {
                sum[r][c] *= shrink;
            }
        }
        __syncthreads();
        load_rows(tile, pitch, values, s.kv_row, begin, s.positions, TILE, s.head_size);
        __syncthreads();
        add_rows<CHANNELS>(sum, weight, tile, pitch, lane, s.head_size);
    }
    for (int r = 0; r < EACH && own + r < s.queries; r++) {
        int64_t t = own + r;
        for (int c = 0; c < CHANNELS; c++) {
            int d = lane + 32 * c;
            if (d < s.head_size) {
                out[(batch * s.queries + t) * s.out_row + head * s.head_size + d] =
                    narrow<T>(total[r] == 0.0f ? 0.0f : sum[r][c] / total[r]);
            }
        }
        if (lane == 0 && lse != nullptr) {
            lse[(batch * s.heads + head) * s.queries + t] = most[r] + logf(total[r]);
        }
    }
}

/* dq of rows of queries, and delta = sum of dout * out, which dk and dv also need. */
template <typename T, int CHANNELS>
__global__ void __launch_bounds__(WARPS * 32)
    attention_backward_queries(T *dq, float *delta, const T *dout, const T *out, const T *q, const T *k, const T *v,
                               const float *lse, struct shape s)
{
    DT_SHARED_DYNAMIC(float, shared);
    int pitch = pitch_of(s.head_size), warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *key_tile = shared, *value_tile = shared + TILE * pitch, *block = shared + 2 * TILE * pitch,
          *block_above = block + ROWS * s.head_size;
    float *query = block + warp * EACH * s.head_size, *above = block_above + warp * EACH * s.head_size;
    int head = (int)blockIdx.y, kv = head / (s.heads / s.kv_heads);
    int64_t first = (int64_t)blockIdx.x * ROWS, own = first + warp * EACH, batch = blockIdx.z;
    int64_t at_key = batch * s.capacity * s.kv_row + kv * s.head_size,
            at_q = batch * s.positions * s.q_row + head * s.head_size;
    const T *keys = k + at_key, *values = v + at_key;
    int64_t out_step = s.out_row, at = batch * s.positions * out_step + head * s.head_size;
    int64_t at_row = (batch * s.heads + head) * s.positions;
    load_rows(block, s.head_size, q + at_q, s.q_row, first, s.positions, ROWS, s.head_size);
    load_rows(block_above, s.head_size, dout + at, out_step, first, s.positions, ROWS, s.head_size);
    __syncthreads();
    float less[EACH], log_sum[EACH], sum[EACH][CHANNELS] = {};
    for (int r = 0; r < EACH; r++) {
        bool here = own + r < s.positions;
        less[r] = 0.0f;
        for (int d = lane; d < s.head_size; d += 32) {
            less[r] =
                here ? fmaf(above[r * s.head_size + d], widen(out[at + (own + r) * out_step + d]), less[r]) : 0.0f;
        }
        less[r] = warp_sum(less[r]);
        log_sum[r] = here ? lse[at_row + own + r] : 0.0f;
    }
    int64_t end = end_of(s, first, !s.causal);
    for (int64_t begin = begin_of(s, first, true); begin < end; begin += TILE) {
        float weight[EACH], change[EACH];
        __syncthreads();
        load_rows(key_tile, pitch, keys, s.kv_row, begin, s.positions, TILE, s.head_size);
        load_rows(value_tile, pitch, values, s.kv_row, begin, s.positions, TILE, s.head_size);
        __syncthreads();
        dots(weight, query, key_tile + lane * pitch, s.head_size);
        dots(change, above, value_tile + lane * pitch, s.head_size);
        for (int r = 0; r < EACH; r++) {
            int64_t key = begin + lane, t = own + r;
            bool seen = sees(s, batch, t, key);
            float slope, score = score_of(s, weight[r], &slope);
            weight[r] = seen ? expf(score - log_sum[r]) : 0.0f;
            change[r] =
                seen ? weight[r] * (change[r] * kept_of(s, batch, head, t, key) - less[r]) * s.scale * slope : 0.0f;
        }
        add_rows<CHANNELS>(sum, change, key_tile, pitch, lane, s.head_size);
    }
    for (int r = 0; r < EACH && own + r < s.positions; r++) {
        int64_t t = own + r;
        for (int c = 0; c < CHANNELS; c++) {
            int d = lane + 32 * c;
            if (d < s.head_size) {
                dq[at_q + t * s.q_row + d] = narrow<T>(sum[r][c]);
            }
        }
        if (lane == 0) {
            delta[at_row + t] = less[r];
        }
    }
}

/* dk and dv of rows of keys: the sum over all query heads of the group, and over the queries that
 * see the key. */
template <typename T, int CHANNELS>
__global__ void __launch_bounds__(WARPS * 32)
    attention_backward_keys(T *dk, T *dv, const float *delta, const T *dout, const T *q, const T *k, const T *v,
                            const float *lse, struct shape s)
{
    DT_SHARED_DYNAMIC(float, shared);
    int pitch = pitch_of(s.head_size), warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *query_tile = shared, *above_tile = shared + TILE * pitch, *block = shared + 2 * TILE * pitch,
          *block_values = block + ROWS * s.head_size;
    float *key = block + warp * EACH * s.head_size, *value = block_values + warp * EACH * s.head_size;
    int kv = (int)blockIdx.y, group = s.heads / s.kv_heads;
    int64_t first = (int64_t)blockIdx.x * ROWS, own = first + warp * EACH, batch = blockIdx.z;
    const T *queries = q + batch * s.positions * s.q_row;
    int64_t at_key = batch * s.capacity * s.kv_row + kv * s.head_size;
    load_rows(block, s.head_size, k + at_key, s.kv_row, first, s.positions, ROWS, s.head_size);
    load_rows(block_values, s.head_size, v + at_key, s.kv_row, first, s.positions, ROWS, s.head_size);
    float key_sum[EACH][CHANNELS] = {}, value_sum[EACH][CHANNELS] = {};
    for (int head = kv * group; head < (kv + 1) * group; head++) {
        const T *aboves = dout + batch * s.positions * s.out_row + head * s.head_size;
        int64_t at_row = (batch * s.heads + head) * s.positions;
        for (int64_t begin = begin_of(s, first, !s.causal), end = end_of(s, first, true); begin < end; begin += TILE) {
            float weight[EACH], change[EACH];
            __syncthreads();
            load_rows(query_tile, pitch, queries + head * s.head_size, s.q_row, begin, s.positions, TILE, s.head_size);
            load_rows(above_tile, pitch, aboves, s.out_row, begin, s.positions, TILE, s.head_size);
            __syncthreads();
            dots(weight, key, query_tile + lane * pitch, s.head_size);
            dots(change, value, above_tile + lane * pitch, s.head_size);
            int64_t query = begin + lane;
            float log_sum = query < s.positions ? lse[at_row + query] : 0.0f,
                  less = query < s.positions ? delta[at_row + query] : 0.0f;
            for (int r = 0; r < EACH; r++) {
                int64_t t = own + r;
                bool seen = sees(s, batch, query, t);
                float slope, score = score_of(s, weight[r], &slope);
                float kept = seen ? kept_of(s, batch, head, query, t) : 0.0f;
                weight[r] = seen ? expf(score - log_sum) : 0.0f;
                change[r] = seen ? weight[r] * (change[r] * kept - less) * s.scale * slope : 0.0f;
                weight[r] *= kept;
            }
            add_rows<CHANNELS>(value_sum, weight, above_tile, pitch, lane, s.head_size);
            add_rows<CHANNELS>(key_sum, change, query_tile, pitch, lane, s.head_size);
        }
    }
    for (int r = 0; r < EACH && own + r < s.positions; r++) {
        int64_t to = at_key + (own + r) * s.kv_row + lane;
        for (int c = 0; c < CHANNELS; c++) {
            if (lane + 32 * c < s.head_size) {
                dk[to + 32 * c] = narrow<T>(key_sum[r][c]);
                dv[to + 32 * c] = narrow<T>(value_sum[r][c]);
            }
        }
    }
}

size_t shared_bytes(int tiles, int rows, int head_size)
{
    return ((size_t)tiles * TILE * (size_t)(head_size + 1) + (size_t)rows * ROWS * (size_t)head_size) * sizeof(float);
}

unsigned blocks(int64_t rows)
{
    return (unsigned)((rows + ROWS - 1) / ROWS);
}

template <typename T, int CHANNELS>
void forward(const struct dt_cuda_launch *l, const struct dt_attention_args *a, const struct shape &s)
{
    size_t bytes = shared_bytes(1, 1, s.head_size);
    if (allow<attention_forward<T, CHANNELS>>(bytes)) {
        DT_LAUNCH((attention_forward<T, CHANNELS>),
                  dim3(blocks(s.queries), (unsigned)s.heads, (unsigned)a->shape.batch), WARPS * 32, bytes,
                  (cudaStream_t)l->native, (T *)a->out, (float *)a->lse, (const T *)a->q, (const T *)a->k,
                  (const T *)a->v, s);
    }
}

template <typename T, int CHANNELS>
void backward(const struct dt_cuda_launch *l, const struct dt_attention_backward_args *a, const struct shape &s)
{
    size_t bytes = shared_bytes(2, 2, s.head_size);
    float *delta = (float *)l->work;
    if (allow<attention_backward_queries<T, CHANNELS>>(bytes) && allow<attention_backward_keys<T, CHANNELS>>(bytes)) {
        DT_LAUNCH((attention_backward_queries<T, CHANNELS>),
                  dim3(blocks(s.queries), (unsigned)s.heads, (unsigned)a->shape.batch), WARPS * 32, bytes,
                  (cudaStream_t)l->native, (T *)a->dq, delta, (const T *)a->dout, (const T *)a->out, (const T *)a->q,
                  (const T *)a->k, (const T *)a->v, (const float *)a->lse, s);
        DT_LAUNCH((attention_backward_keys<T, CHANNELS>),
                  dim3(blocks(s.positions), (unsigned)s.kv_heads, (unsigned)a->shape.batch), WARPS * 32, bytes,
                  (cudaStream_t)l->native, (T *)a->dk, (T *)a->dv, (const float *)delta, (const T *)a->dout,
                  (const T *)a->q, (const T *)a->k, (const T *)a->v, (const float *)a->lse, s);
    }
}

template <typename T>
void forward_of(const struct dt_cuda_launch *l, const struct dt_attention_args *a, const struct shape &s)
{
    if (s.head_size <= 64) {
        forward<T, 2>(l, a, s);
    } else if (s.head_size <= 128) {
        forward<T, 4>(l, a, s);
    } else {
        forward<T, 8>(l, a, s);
    }
}

template <typename T>
void backward_of(const struct dt_cuda_launch *l, const struct dt_attention_backward_args *a, const struct shape &s)
{
    if (s.head_size <= 64) {
        backward<T, 2>(l, a, s);
    } else if (s.head_size <= 128) {
        backward<T, 4>(l, a, s);
    } else {
        backward<T, 8>(l, a, s);
    }
}

} // namespace

bool dt_cuda_attention_plain_can(const struct dt_attention_shape *shape)
{
    const struct dt_attention_shape s = dt_attention_filled(shape);
    return s.head_size >= 1 && s.head_size <= HEAD_MAX && s.heads <= 65535 && s.heads % s.kv_heads == 0 &&
           (size_t)(s.queries * s.heads) * sizeof(float) <= DT_CUDA_WORK_BYTES;
}

void dt_cuda_attention_plain(const struct dt_cuda_launch *l, const struct dt_attention_args *a)
{
    forward_parts(a, [&](const struct dt_attention_args *part) {
        struct shape s = shape_of(&part->shape);
        (void)for_type(a->shape.type, [&](auto t) { forward_of<typename decltype(t)::type>(l, part, s); });
    });
}

void dt_cuda_attention_backward_plain(const struct dt_cuda_launch *l, const struct dt_attention_backward_args *a)
{
    backward_parts(a, [&](const struct dt_attention_backward_args *part) {
        struct shape s = shape_of(&part->shape);
        (void)for_type(a->shape.type, [&](auto t) { backward_of<typename decltype(t)::type>(l, part, s); });
    });
}
