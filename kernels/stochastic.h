/* Random bits of stochastic rounding. F32 becomes BF16 by adding 16 random bits below those that
 * BF16 keeps, and cutting off the rest. So the mean of many roundings is the value, and a value
 * that BF16 holds stays the same. An element's bits are a function of the seed, the step, the unit
 * and the element's number there, and of nothing else: no rank, slice, vector or device.
 *
 * Each element has a counter, one more than that of the element before (modulo 2^32). DT_SCRAMBLE
 * turns it into 32 bits: the lower 16 for AdamW's first moment, the upper 16 for the second. */
#ifndef DT_KERNELS_STOCHASTIC_H
#define DT_KERNELS_STOCHASTIC_H

#include "base/mix.h"

#include <stdint.h>

/* Turns x, a uint32_t or a vector of them, into 32 random bits: the 32-bit permutation with two
 * multiplications and the least known bias (github.com/skeeto/hash-prospector, Chris Wellons's
 * search, constants found by TheIronBorn). */
#define DT_SCRAMBLE(x)                                                                                                 \
    do {                                                                                                               \
        (x) ^= (x) >> 16;                                                                                              \
        (x) *= 0x21f0aaadU;                                                                                            \
        (x) ^= (x) >> 15;                                                                                              \
        (x) *= 0xd35a2d97U;                                                                                            \
        (x) ^= (x) >> 15;                                                                                              \
    } while (0)

/* The counter of an element. */
static inline uint32_t dt_stochastic_counter(uint64_t seed, int64_t step, int64_t unit, int64_t element)
{
    return (uint32_t)(dt_mix64(dt_mix64(dt_mix64(seed) + (uint64_t)step) + (uint64_t)unit) >> 32) + (uint32_t)element;
}

#endif
