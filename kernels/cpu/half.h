/* 16-bit floats as bits: BF16 (the upper half of a float) and F16. Rounding goes to the nearest
 * even, a nan stays a nan. */
#ifndef DT_KERNELS_CPU_HALF_H
#define DT_KERNELS_CPU_HALF_H

#include "base/dtype.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float dt_from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint16_t dt_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(f != f ? (bits >> 16 | 0x40) : rounded);
}

/* Rounds stochastically: adds `random` (below 2^16) to the bits that are cut off. */
static inline uint16_t dt_to_bf16_stochastic(float f, uint32_t random)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return f != f ? dt_to_bf16(f) : (uint16_t)((bits + random) >> 16);
}

static inline float dt_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    uint32_t bits = rest << 13;
    float f;
    if (rest >= 0x7c00) {
        bits |= 0x7f800000;
    } else if (rest >= 0x400) {
        bits += (127 - 15) << 23;
    } else {
        f = (float)rest * 0x1p-24F;
        memcpy(&bits, &f, sizeof bits);
    }
    bits |= sign;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Element i of an array of F64, F32, BF16 or F16. */
static inline double dt_value_at(const void *values, enum dt_dtype type, int64_t i)
{
    return type == DT_F64    ? ((const double *)values)[i]
           : type == DT_BF16 ? (double)dt_from_bf16(((const uint16_t *)values)[i])
           : type == DT_F16  ? (double)dt_from_f16(((const uint16_t *)values)[i])
                             : (double)((const float *)values)[i];
}

static inline uint16_t dt_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) {
        return (uint16_t)(sign | 0x7e00);
    }
    if (bits >= 0x477ff000) { /* 65520 or more: rounds to 65536, which F16 lacks */
        return (uint16_t)(sign | 0x7c00);
    }
    /* below 2^-14: adding 0.5 leaves the rounded bits of the subnormal at the end */
    if (bits < 0x38800000) {
        float shifted;
        memcpy(&shifted, &bits, sizeof shifted);
        shifted += 0.5F;
        memcpy(&bits, &shifted, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)(sign | ((bits - ((127U - 15U) << 23)) >> 13));
}

/* Rounds to odd: a second rounding to fewer than 22 bits then gives what one rounding of x
 * would. */
static inline float dt_narrow_to_odd(double x)
{
    float f = (float)x;
    if ((double)f != x && isfinite(f)) {
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        if (fabs((double)f) > fabs(x)) {
            bits--; /* toward zero */
        }
        bits |= 1;
        memcpy(&f, &bits, sizeof f);
    }
    return f;
}

#endif
