/* Arithmetic functions of nvcc for the host's compiler. Fast variants are exact here, and nothing
 * is contracted. */
#ifndef DT_TESTS_SOFTGPU_INTRINSICS_H
#define DT_TESTS_SOFTGPU_INTRINSICS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* glibc uses these names */
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __tanhf(x) tanhf(x)

#define SOFTGPU_MIN_MAX(type)                                                                                          \
    static inline type min(type a, type b)                                                                             \
    {                                                                                                                  \
        return b < a ? b : a;                                                                                          \
    }                                                                                                                  \
    static inline type max(type a, type b)                                                                             \
    {                                                                                                                  \
        return a < b ? b : a;                                                                                          \
    }
SOFTGPU_MIN_MAX(int)
SOFTGPU_MIN_MAX(unsigned)
SOFTGPU_MIN_MAX(long)
SOFTGPU_MIN_MAX(unsigned long)
SOFTGPU_MIN_MAX(long long)
SOFTGPU_MIN_MAX(unsigned long long)
static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}
static inline double min(double a, double b)
{
    return fmin(a, b);
}
static inline double max(double a, double b)
{
    return fmax(a, b);
}

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __saturatef(float x)
{
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline float __frsqrt_rn(float x)
{
    return (float)(1.0 / sqrt((double)x));
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline double __dadd_rn(double a, double b)
{
    return a + b;
}
static inline double __dsub_rn(double a, double b)
{
    return a - b;
}
static inline double __dmul_rn(double a, double b)
{
    return a * b;
}
static inline double __ddiv_rn(double a, double b)
{
    return a / b;
}
static inline double __dsqrt_rn(double x)
{
    return sqrt(x);
}
static inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}

template <typename TO, typename FROM> static inline TO softgpu_bits(FROM x)
{
    static_assert(sizeof(TO) == sizeof(FROM), "same size");
    TO out;
    memcpy(&out, &x, sizeof out);
    return out;
}
static inline int __float_as_int(float x)
{
    return softgpu_bits<int>(x);
}
static inline unsigned __float_as_uint(float x)
{
    return softgpu_bits<unsigned>(x);
}
static inline float __int_as_float(int x)
{
    return softgpu_bits<float>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return softgpu_bits<float>(x);
}
static inline long long __double_as_longlong(double x)
{
    return softgpu_bits<long long>(x);
}
static inline double __longlong_as_double(long long x)
{
    return softgpu_bits<double>(x);
}
static inline int __double2hiint(double x)
{
    return (int)(softgpu_bits<uint64_t>(x) >> 32);
}
static inline int __double2loint(double x)
{
    return (int)(uint32_t)softgpu_bits<uint64_t>(x);
}
static inline int __float2int_rn(float x)
{
    return (int)nearbyintf(x);
}
static inline int __float2int_rd(float x)
{
    return (int)floorf(x);
}
static inline float __int2float_rn(int x)
{
    return (float)x;
}
static inline float __double2float_rn(double x)
{
    return (float)x;
}
static inline long long __double2ll_rn(double x)
{
    return (long long)nearbyint(x);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
static inline int __clzll(long long x)
{
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline int __mulhi(int a, int b)
{
    return (int)((int64_t)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline long long __mul64hi(long long a, long long b)
{
    return (long long)((__int128)a * b >> 64);
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s)
{
    uint64_t all = (uint64_t)b << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        out |= (unsigned)(all >> (s >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    }
    return out;
}

#endif
