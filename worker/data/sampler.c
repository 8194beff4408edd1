/* The order of samples: a Feistel network over the smallest even number of bits that holds all
 * samples; results outside walk on until they are inside (cycle walking, fewer than four tries
 * on average), which keeps it a permutation. No memory, any position at once: that is what makes
 * resuming in the middle of an epoch, on another number of ranks, cost nothing. */
#include "worker/data/data.h"

#include "base/mix.h"

#include <assert.h>

enum {
    ROUNDS = 6,
    HALF_BITS_MIN = 4
}; /* halves of a bit or two would reach few of the
    * permutations */

int64_t sampler_at(const struct sampler *s, int64_t epoch, int64_t position)
{
    assert(position >= 0 && position < s->sample_count);
    if (!s->shuffle || s->sample_count < 2) {
        return position;
    }
    uint64_t count = (uint64_t)s->sample_count, x = (uint64_t)position;
    int bits = 64 - __builtin_clzll(count - 1);
    int half = (bits + 1) / 2 > HALF_BITS_MIN ? (bits + 1) / 2 : HALF_BITS_MIN;
    uint64_t mask = ((uint64_t)1 << half) - 1, key = dt_mix64(dt_mix64(s->seed) ^ (uint64_t)epoch);
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ (dt_mix64(key + (round << 40) + right) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= count);
    return (int64_t)x;
}
