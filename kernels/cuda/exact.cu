/* The global norm: squares go into an exact accumulator (kernels/exact.h), then root, clip factor
 * and verdict follow. Losses go into another accumulator. Eight threads share a block of 64
 * elements, like the eight sums of the CPU, so each block has the same fp64 sum. Integer sums do
 * not depend on their order, so the accumulator has the CPU's bits. */
#include "kernels/cuda/vector.cuh"
#include "kernels/exact.h"

namespace
{

enum { OVERFLOW_COUNT = DT_EXACT_LIMB_COUNT, NAN_COUNT = DT_EXACT_LIMB_COUNT + 1 };

DT_FN void add_limb(int64_t *limbs, int at, int64_t x)
{
    atomicAdd((unsigned long long *)&limbs[at], (unsigned long long)x);
}

/* The sum of one thread before it is added to the accumulator: four neighbouring limbs. A value
 * takes three limbs. Nearly all values begin in the same limb or, if their range crosses a border,
 * in one of two. */
struct window {
    int limb; /* negative: empty */
    int64_t sum[4];

    DT_METHOD void clear(int at)
    {
        limb = at;
        sum[0] = sum[1] = sum[2] = sum[3] = 0;
    }

    DT_METHOD void flush(int64_t *limbs)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (sum[i] != 0) {
                add_limb(limbs, limb + i, sum[i]);
            }
        }
    }

    /* flush by all threads of a warp: those with the highest limb add up first, since 64-bit atomics
     * on one address of shared memory wait for each other. */
    DT_METHOD void flush_warp(int64_t *limbs)
    {
        int highest = limb;
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) {
            int other = __shfl_xor_sync(DT_WARP, highest, o);
            highest = other > highest ? other : highest;
        }
        if (limb != highest) {
            flush(limbs);
            clear(highest);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum[i] = warp_sum(sum[i]);
        }
        if (threadIdx.x % 32 == 0) {
            flush(limbs);
        }
    }

    /* Like dt_exact_add. */
    DT_METHOD void add(int64_t *limbs, double v)
    {
        uint64_t bits;
        memcpy(&bits, &v, sizeof bits);
        int exponent = (int)(bits >> 52 & 0x7ff);
        uint64_t mantissa = bits & 0xfffffffffffffULL;
        if (exponent == 0x7ff) {
            add_limb(limbs, OVERFLOW_COUNT, 1);
            add_limb(limbs, NAN_COUNT, mantissa != 0);
            return;
        }
        int low = exponent - 1075 - DT_EXACT_LOW;
        if (exponent == 0 || low <= -53) {
            return;
        }
        mantissa |= 1ULL << 52;
        if (low < 0) {
            mantissa >>= -low;
            low = 0;
        }
        int at = low / 32, shift = low % 32;
        if (at + 2 >= DT_EXACT_LIMB_COUNT) {
            add_limb(limbs, OVERFLOW_COUNT, 1);
            return;
        }
        if (limb < 0 || at < limb || at > limb + 1) {
            flush(limbs);
            clear(at);
        }
        /* the low 64 bits of the shifted mantissa */
        uint64_t lower = mantissa << shift;
        /* 53 bits shifted by at most 11 fit 64 bits */
        uint64_t upper = shift > 11 ? mantissa >> (64 - shift) : 0;
        bool next = at != limb;
        sum[0] += next ? 0 : (int64_t)(lower & 0xffffffffULL);
        sum[1] += (int64_t)(next ? lower & 0xffffffffULL : lower >> 32);
        sum[2] += (int64_t)(next ? lower >> 32 : upper);
        sum[3] += next ? (int64_t)upper : 0;
    }
};

/* blocks of 64 that eight threads take together, so that each ends with the sum of one */
enum { TURNS = 8 };

/* Eight neighbouring threads share a block of 64. Thread l of them has elements l, l + 8, ... */
template <typename T> __global__ void __launch_bounds__(256) square_sums(int64_t *limbs, const T *x, int64_t count)
{
    DT_SHARED(int64_t, own, [DT_EXACT_LIMBS]);
    for (int i = threadIdx.x; i < DT_EXACT_LIMBS; i += 256) {
        own[i] = 0;
    }
    __syncthreads();
    struct window w;
    w.clear(-1);
    int lane = threadIdx.x % 8, group = threadIdx.x / 8;
    int64_t blocks = (count + 63) / 64;
    for (int64_t base = (int64_t)blockIdx.x * 32 * TURNS; base < blocks; base += (int64_t)gridDim.x * 32 * TURNS) {
        double mine = 0;
        bool has = false;
#pragma unroll
        for (int u = 0; u < TURNS; u++) {
            int64_t block = base + u * 32 + group, at = block * 64 + lane;
            float v[8];
#pragma unroll
            for (int k = 0; k < 8; k++) {
                v[k] = at + k * 8 < count ? widen<T>(x[at + k * 8]) : 0;
            }
            double sum = 0;
#pragma unroll
            for (int k = 0; k < 8; k++) {
                sum += (double)v[k] * (double)v[k];
            }
#pragma unroll
            for (int o = 4; o > 0; o >>= 1) { /* ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)) */
                sum += __shfl_xor_sync(DT_WARP, sum, o);
            }
            if (u == lane) {
                mine = sum;
                has = block < blocks;
            }
        }
        if (has) {
            w.add(limbs, mine); /* a value outside of the window goes to the accumulator at once */
        }
    }
    w.flush_warp(own);
    __syncthreads();
    for (int i = threadIdx.x; i < DT_EXACT_LIMBS; i += 256) {
        if (own[i] != 0) {
            add_limb(limbs, i, own[i]);
        }
    }
}

/* dt_exact_get in 64-bit arithmetic: the sum, rounded once to nearest even. */
DT_FN double exact_get(const int64_t *limbs)
{
    uint32_t digit[DT_EXACT_LIMB_COUNT + 2];
    int64_t carry = 0; /* limbs are never negative */
    for (int i = 0; i < DT_EXACT_LIMB_COUNT; i++) {
        uint64_t low = (uint64_t)limbs[i] & 0xffffffffULL, sum = low + ((uint64_t)carry & 0xffffffffULL);
        digit[i] = (uint32_t)sum;
        carry = (int64_t)(((uint64_t)limbs[i] >> 32) + ((uint64_t)carry >> 32) + (sum >> 32));
    }
    digit[DT_EXACT_LIMB_COUNT] = (uint32_t)carry;
    digit[DT_EXACT_LIMB_COUNT + 1] = (uint32_t)((uint64_t)carry >> 32);
    int top = DT_EXACT_LIMB_COUNT + 1;
    while (top >= 0 && digit[top] == 0) {
        top--;
    }
    if (top < 0) {
        return 0;
    }
    /* Take the highest 64 bits of three digits, and set the last bit if anything below is not zero.
     * Then one rounding is exact. */
    uint32_t third = top >= 2 ? digit[top - 2] : 0;
    uint64_t head = (uint64_t)digit[top] << 32 | (top >= 1 ? digit[top - 1] : 0);
    int shift = 0;
    while ((head >> 63) == 0) {
        head = head << 1 | third >> 31;
        third <<= 1;
        shift++;
    }
    bool rest = third != 0;
    for (int i = top - 3; i >= 0; i--) {
        rest = rest || digit[i] != 0;
    }
    return ldexp((double)(head | (rest ? 1 : 0)), 32 * (top - 1) - shift + DT_EXACT_LOW);
}

__global__ void norm_finish(struct dt_norm_finish_args a)
{
    double scale = a.denominator == NULL ? a.scale : *a.denominator > 0 ? a.scale / (double)*a.denominator : 0.0;
    bool finite = a.limbs[OVERFLOW_COUNT] == 0;
    double sum = finite ? exact_get(a.limbs) : a.limbs[NAN_COUNT] != 0 ? (double)NAN : (double)INFINITY;
    double norm = sqrt(sum) * scale, clip = a.max_norm > 0 ? a.max_norm / (norm + 1e-6) : 1.0;
    clip = !finite ? 0.0 : clip < 1.0 ? clip : 1.0;
    if (a.norm != NULL) {
        *a.norm = norm;
    }
    if (a.clip != NULL) {
        *a.clip = clip;
    }
    if (a.factor != NULL) {
        *a.factor = scale * clip;
    }
    if (a.nonfinite != NULL) {
        *a.nonfinite = !finite;
    }
}

__global__ void trust_ratio(struct dt_trust_ratio_args a)
{
    int64_t i = blockIdx.x;
    const int64_t *limbs = a.limbs + 2 * i * DT_EXACT_LIMBS;
    double norm[2];
    for (int k = 0; k < 2; k++) {
        const int64_t *x = limbs + k * DT_EXACT_LIMBS;
        norm[k] = sqrt(x[OVERFLOW_COUNT] == 0 ? exact_get(x) : x[NAN_COUNT] != 0 ? (double)NAN : (double)INFINITY);
    }
    double ratio = norm[0] / norm[1];
    ratio = ratio < a.min_coeff ? a.min_coeff : ratio > a.max_coeff ? a.max_coeff : ratio;
    a.ratio[i] = norm[0] > 0 && norm[1] > 0 ? ratio : 1;
}

/* For few losses: one block. */
__global__ void __launch_bounds__(256) exact_sum(struct dt_exact_sum_args a)
{
    struct window w;
    w.clear(-1);
    for (int64_t i = threadIdx.x; i < a.count; i += 256) {
        double x = a.divisors == NULL ? a.x[i] : a.divisors[i] != 0 ? a.x[i] / (double)a.divisors[i] : 0.0;
        if (!isfinite(x)) {
            add_limb(a.bad_count, 0, 1);
        }
        w.add(a.limbs, x < 0 ? 0 : x);
    }
    w.flush(a.limbs);
}

template <typename T> void norm_sum(const struct dt_cuda_launch *l, const struct dt_norm_sum_args *a)
{
    unsigned grid = walkers(l, parts_of(a->count, 64 * 32 * TURNS), 5);
    DT_LAUNCH((square_sums<T>), grid, 256, 0, (cudaStream_t)l->native, a->limbs, (const T *)a->x, a->count);
}

} // namespace

DT_CUDA_ROW(norm_sum, a->count <= 0)

extern "C" void dt_cuda_norm_finish(struct dt_stream *s, const struct dt_norm_finish_args *a)
{
    struct dt_cuda_launch l;
    if (!dt_cuda_begin(s, &l)) {
        return;
    }
    DT_LAUNCH((norm_finish), 1, 1, 0, (cudaStream_t)l.native, *a);
    dt_cuda_end(s, "norm_finish");
}

extern "C" void dt_cuda_exact_sum(struct dt_stream *s, const struct dt_exact_sum_args *a)
{
    struct dt_cuda_launch l;
    if (a->count <= 0 || !dt_cuda_begin(s, &l)) {
        return;
    }
    DT_LAUNCH((exact_sum), 1, 256, 0, (cudaStream_t)l.native, *a);
    dt_cuda_end(s, "exact_sum");
}

extern "C" void dt_cuda_trust_ratio(struct dt_stream *s, const struct dt_trust_ratio_args *a)
{
    struct dt_cuda_launch l;
    if (a->count <= 0 || !dt_cuda_begin(s, &l)) {
        return;
    }
    DT_LAUNCH((trust_ratio), (unsigned)a->count, 1, 0, (cudaStream_t)l.native, *a);
    dt_cuda_end(s, "trust_ratio");
}
