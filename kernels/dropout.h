/* The random bits of dropout. An element's bit is a function of the seed, the site (which dropout of
 * the model), the sample's number in the whole training, and the element's place within the sample.
 * So forward, recomputation and backward have the same mask, and so does any number of ranks.
 *
 * A sample has a key of 64 bits. Element i: DT_SCRAMBLE of (low half + i), then xor with the high
 * half. The element is kept if these 32 bits are at least dt_dropout_limit. Attention has a key per
 * row of the probabilities, dt_dropout_row_key, and i is the key's position. */
#ifndef DT_KERNELS_DROPOUT_H
#define DT_KERNELS_DROPOUT_H

#include "kernels/stochastic.h"

DT_ANYWHERE static inline uint64_t dt_dropout_key(uint64_t seed, uint64_t site, int64_t sample)
{
    return dt_mix64(dt_mix64(dt_mix64(seed) + site) + (uint64_t)sample);
}

DT_ANYWHERE static inline uint64_t dt_dropout_row_key(uint64_t sample_key, int64_t head, int64_t query)
{
    return dt_mix64(sample_key + ((uint64_t)head << 32) + (uint64_t)query);
}

/* rate in [0, 1). */
DT_ANYWHERE static inline uint32_t dt_dropout_limit(double rate)
{
    return (uint32_t)(rate * 4294967296.0);
}

/* True if element `at` is kept. */
DT_ANYWHERE static inline int dt_dropout_keeps(uint64_t key, int64_t at, uint32_t limit)
{
    uint32_t x = (uint32_t)key + (uint32_t)at;
    DT_SCRAMBLE(x);
    return (x ^ (uint32_t)(key >> 32)) >= limit;
}

#endif
