/* Attention without tensor cores, for fp32, for head sizes that the fast kernels do not have, and as their reference. A warp takes one row:
 * of queries in the forward pass and for dq, of keys for dk and dv. Its lanes take one key (or query) each of a tile of 32, then each a few
 * channels of the sum. Every sum has a fixed order and no two warps write the same element, so the bits are the same always.
 * not hot: what is to be fast has a kernel of its own. */
#include "kernels/cuda/attention.cuh"

namespace
{

enum { WARPS = 4, TILE = 32, HEAD_MAX = 256 };

/* `count` rows from `first` on, each head_size long and `step` apart in memory, into shared memory; rows beyond `end` become zero. */
template <typename T>
__device__ __forceinline__ void load_rows(float *to, int pitch, const T *from, int64_t step, int64_t first, int64_t end, int count, int head_size)
{
    for (int i = (int)threadIdx.x; i < count * head_size; i += WARPS * 32) {
        int row = i / head_size, d = i % head_size;
        to[row * pitch + d] = first + row < end ? widen(from[(first + row) * step + d]) : 0.0f;
    }
}

__device__ __forceinline__ float dot(const float *x, const float *y, int head_size)
{
    float sum = 0.0f;
    for (int d = 0; d < head_size; d++) {
        sum = fmaf(x[d], y[d], sum);
    }
    return sum;
}

/* sum[r] += x of each lane times row[lane][lane's channel r], lane after lane */
template <int CHANNELS> __device__ __forceinline__ void add_rows(float *sum, float x, const float *rows, int pitch, int lane, int head_size)
{
    for (int j = 0; j < TILE; j++) {
        float factor = __shfl_sync(0xffffffffu, x, j);
        for (int r = 0; r < CHANNELS; r++) {
            int d = lane + 32 * r;
            sum[r] = d < head_size ? fmaf(factor, rows[j * pitch + d], sum[r]) : 0.0f;
        }
    }
}

/* Shared: keys and values (or queries and gradients) of a tile, then one or two rows per warp. */
__device__ __forceinline__ int pitch_of(int head_size)
{
    return head_size + 1; /* lanes that read a row each meet different banks */
}

template <typename T, int CHANNELS> __global__ void __launch_bounds__(WARPS * 32) attention_forward(T *out, float *lse, const T *qkv, struct shape s)
{
    DT_SHARED_DYNAMIC(float, shared);
    int pitch = pitch_of(s.head_size), warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *tile = shared, *query = shared + TILE * pitch + warp * s.head_size;
    int head = (int)blockIdx.y, kv = head / (s.heads / s.kv_heads);
    int64_t first = (int64_t)blockIdx.x * WARPS, t = first + warp, batch = blockIdx.z;
    const T *rows = qkv + batch * s.positions * s.row;
    const T *keys = rows + (s.heads + kv) * s.head_size, *values = rows + (s.heads + s.kv_heads + kv) * s.head_size;
    for (int d = lane; d < s.head_size; d += 32) {
        query[d] = t < s.positions ? widen(rows[t * s.row + head * s.head_size + d]) : 0.0f;
    }
    float most = -INFINITY, total = 0.0f, sum[CHANNELS] = {};
    int64_t end = s.causal && first + WARPS < s.positions ? first + WARPS : s.positions;
    for (int64_t begin = 0; begin < end; begin += TILE) {
        __syncthreads();
        load_rows(tile, pitch, keys, s.row, begin, s.positions, TILE, s.head_size);
        __syncthreads();
        int64_t key = begin + lane;
        bool seen = key < s.positions && t < s.positions && (!s.causal || key <= t);
        float score = seen ? s.scale * dot(query, tile + lane * pitch, s.head_size) : -INFINITY;
        float higher = fmaxf(most, warp_max(score));
        float weight = score > -INFINITY ? expf(score - higher) : 0.0f, shrink = most > -INFINITY ? expf(most - higher) : 0.0f;
        total = total * shrink + warp_sum(weight);
        most = higher;
        for (int r = 0; r < CHANNELS; r++) {
            sum[r] *= shrink;
        }
        __syncthreads();
        load_rows(tile, pitch, values, s.row, begin, s.positions, TILE, s.head_size);
        __syncthreads();
        add_rows<CHANNELS>(sum, weight, tile, pitch, lane, s.head_size);
    }
    if (t < s.positions) {
        for (int r = 0; r < CHANNELS; r++) {
            int d = lane + 32 * r;
            if (d < s.head_size) {
                out[((batch * s.positions + t) * s.heads + head) * s.head_size + d] = narrow<T>(sum[r] / total);
            }
        }
        if (lane == 0) {
            lse[(batch * s.heads + head) * s.positions + t] = most + logf(total);
        }
    }
}

/* dq of a row of queries, and delta = sum of dout * out, which dk and dv need as well. */
template <typename T, int CHANNELS>
__global__ void __launch_bounds__(WARPS * 32)
    attention_backward_queries(T *dqkv, float *delta, const T *dout, const T *out, const T *qkv, const float *lse, struct shape s)
{
    DT_SHARED_DYNAMIC(float, shared);
    int pitch = pitch_of(s.head_size), warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *key_tile = shared, *value_tile = shared + TILE * pitch, *query = shared + 2 * TILE * pitch + 2 * warp * s.head_size;
    float *above = query + s.head_size;
    int head = (int)blockIdx.y, kv = head / (s.heads / s.kv_heads);
    int64_t first = (int64_t)blockIdx.x * WARPS, t = first + warp, batch = blockIdx.z;
    const T *rows = qkv + batch * s.positions * s.row;
    const T *keys = rows + (s.heads + kv) * s.head_size, *values = rows + (s.heads + s.kv_heads + kv) * s.head_size;
    int64_t at = ((batch * s.positions + t) * s.heads + head) * s.head_size, at_row = (batch * s.heads + head) * s.positions + t;
    bool here = t < s.positions;
    float own = 0.0f;
    for (int d = lane; d < s.head_size; d += 32) {
        query[d] = here ? widen(rows[t * s.row + head * s.head_size + d]) : 0.0f;
        above[d] = here ? widen(dout[at + d]) : 0.0f;
        own = here ? fmaf(above[d], widen(out[at + d]), own) : 0.0f;
    }
    own = warp_sum(own);
    float log_sum = here ? lse[at_row] : 0.0f, sum[CHANNELS] = {};
    int64_t end = s.causal && first + WARPS < s.positions ? first + WARPS : s.positions;
    for (int64_t begin = 0; begin < end; begin += TILE) {
        __syncthreads();
        load_rows(key_tile, pitch, keys, s.row, begin, s.positions, TILE, s.head_size);
        load_rows(value_tile, pitch, values, s.row, begin, s.positions, TILE, s.head_size);
        __syncthreads();
        int64_t key = begin + lane;
        bool seen = here && key < s.positions && (!s.causal || key <= t);
        float weight = seen ? expf(s.scale * dot(query, key_tile + lane * pitch, s.head_size) - log_sum) : 0.0f;
        float change = seen ? weight * (dot(above, value_tile + lane * pitch, s.head_size) - own) * s.scale : 0.0f;
        add_rows<CHANNELS>(sum, change, key_tile, pitch, lane, s.head_size);
    }
    if (here) {
        for (int r = 0; r < CHANNELS; r++) {
            int d = lane + 32 * r;
            if (d < s.head_size) {
                dqkv[(batch * s.positions + t) * s.row + head * s.head_size + d] = narrow<T>(sum[r]);
            }
        }
        if (lane == 0) {
            delta[at_row] = own;
        }
    }
}

/* dk and dv of a row of keys: over all query heads of its group, each over the queries that see it. */
template <typename T, int CHANNELS>
__global__ void __launch_bounds__(WARPS * 32)
    attention_backward_keys(T *dqkv, const float *delta, const T *dout, const T *qkv, const float *lse, struct shape s)
{
    DT_SHARED_DYNAMIC(float, shared);
    int pitch = pitch_of(s.head_size), warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *query_tile = shared, *above_tile = shared + TILE * pitch, *key = shared + 2 * TILE * pitch + 2 * warp * s.head_size;
    float *value = key + s.head_size;
    int kv = (int)blockIdx.y, group = s.heads / s.kv_heads;
    int64_t first = (int64_t)blockIdx.x * WARPS, t = first + warp, batch = blockIdx.z;
    const T *rows = qkv + batch * s.positions * s.row;
    int64_t at_key = t * s.row + (s.heads + kv) * s.head_size, at_value = at_key + s.kv_heads * s.head_size;
    bool here = t < s.positions;
    for (int d = lane; d < s.head_size; d += 32) {
        key[d] = here ? widen(rows[at_key + d]) : 0.0f;
        value[d] = here ? widen(rows[at_value + d]) : 0.0f;
    }
    float key_sum[CHANNELS] = {}, value_sum[CHANNELS] = {};
    for (int head = kv * group; head < (kv + 1) * group; head++) {
        const T *aboves = dout + (batch * s.positions * s.heads + head) * s.head_size;
        int64_t at_row = (batch * s.heads + head) * s.positions;
        for (int64_t begin = s.causal ? first / TILE * TILE : 0; begin < s.positions; begin += TILE) {
            __syncthreads();
            load_rows(query_tile, pitch, rows + head * s.head_size, s.row, begin, s.positions, TILE, s.head_size);
            load_rows(above_tile, pitch, aboves, (int64_t)s.heads * s.head_size, begin, s.positions, TILE, s.head_size);
            __syncthreads();
            int64_t query = begin + lane;
            bool seen = here && query < s.positions && (!s.causal || t <= query);
            float weight = seen ? expf(s.scale * dot(query_tile + lane * pitch, key, s.head_size) - lse[at_row + query]) : 0.0f;
            float change = seen ? weight * (dot(above_tile + lane * pitch, value, s.head_size) - delta[at_row + query]) * s.scale : 0.0f;
            add_rows<CHANNELS>(value_sum, weight, above_tile, pitch, lane, s.head_size);
            add_rows<CHANNELS>(key_sum, change, query_tile, pitch, lane, s.head_size);
        }
    }
    for (int r = 0; here && r < CHANNELS; r++) {
        int d = lane + 32 * r;
        if (d < s.head_size) {
            dqkv[batch * s.positions * s.row + at_key + d] = narrow<T>(key_sum[r]);
            dqkv[batch * s.positions * s.row + at_value + d] = narrow<T>(value_sum[r]);
        }
    }
}

size_t shared_bytes(int tiles, int rows, int head_size)
{
    return ((size_t)tiles * TILE * (size_t)(head_size + 1) + (size_t)rows * WARPS * (size_t)head_size) * sizeof(float);
}

unsigned blocks(int64_t rows)
{
    return (unsigned)((rows + WARPS - 1) / WARPS);
}

template <typename T, int CHANNELS> void forward(const struct dt_cuda_launch *l, const struct dt_attention_args *a, const struct shape &s)
{
    size_t bytes = shared_bytes(1, 1, s.head_size);
    if (allow(attention_forward<T, CHANNELS>, bytes)) {
        DT_LAUNCH((attention_forward<T, CHANNELS>), dim3(blocks(s.positions), (unsigned)s.heads, (unsigned)a->batch), WARPS * 32, bytes,
                  (cudaStream_t)l->native, (T *)a->out, (float *)a->lse, (const T *)a->qkv, s);
    }
}

template <typename T, int CHANNELS> void backward(const struct dt_cuda_launch *l, const struct dt_attention_backward_args *a, const struct shape &s)
{
    size_t bytes = shared_bytes(2, 2, s.head_size);
    float *delta = (float *)l->work;
    if (allow(attention_backward_queries<T, CHANNELS>, bytes) && allow(attention_backward_keys<T, CHANNELS>, bytes)) {
        DT_LAUNCH((attention_backward_queries<T, CHANNELS>), dim3(blocks(s.positions), (unsigned)s.heads, (unsigned)a->batch), WARPS * 32, bytes,
                  (cudaStream_t)l->native, (T *)a->dqkv, delta, (const T *)a->dout, (const T *)a->out, (const T *)a->qkv, (const float *)a->lse, s);
        DT_LAUNCH((attention_backward_keys<T, CHANNELS>), dim3(blocks(s.positions), (unsigned)s.kv_heads, (unsigned)a->batch), WARPS * 32, bytes,
                  (cudaStream_t)l->native, (T *)a->dqkv, (const float *)delta, (const T *)a->dout, (const T *)a->qkv, (const float *)a->lse, s);
    }
}

template <typename T> void forward_of(const struct dt_cuda_launch *l, const struct dt_attention_args *a, const struct shape &s)
{
    if (s.head_size <= 64) {
        forward<T, 2>(l, a, s);
    } else if (s.head_size <= 128) {
        forward<T, 4>(l, a, s);
    } else {
        forward<T, 8>(l, a, s);
    }
}

template <typename T> void backward_of(const struct dt_cuda_launch *l, const struct dt_attention_backward_args *a, const struct shape &s)
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

bool dt_cuda_attention_plain_can(int64_t positions, int64_t heads, int64_t head_size)
{
    return head_size >= 1 && head_size <= HEAD_MAX && heads <= 65535 && (size_t)(positions * heads) * sizeof(float) <= DT_CUDA_WORK_BYTES;
}

void dt_cuda_attention_plain(const struct dt_cuda_launch *l, const struct dt_attention_args *a)
{
    struct shape s = shape_of(a);
    forward_parts(a, s, [&](const struct dt_attention_args *part) {
        if (a->type == DT_F32) {
            forward_of<float>(l, part, s);
        } else {
            forward_of<dt_bf16>(l, part, s);
        }
    });
}

void dt_cuda_attention_backward_plain(const struct dt_cuda_launch *l, const struct dt_attention_backward_args *a)
{
    struct shape s = shape_of(a);
    backward_parts(a, s, [&](const struct dt_attention_backward_args *part) {
        if (a->type == DT_F32) {
            backward_of<float>(l, part, s);
        } else {
            backward_of<dt_bf16>(l, part, s);
        }
    });
}
