/* The order of samples: a Feistel network over the smallest even number of bits that can number all
 * samples. A result outside of the samples goes through the network again until it is inside (cycle
 * walking, fewer than four passes on average), so the map stays a permutation. It needs no memory
 * and computes any position directly. So resuming in the middle of an epoch, with any number of
 * ranks, costs nothing. */
#include "worker/data/data.h"

#include "base/mix.h"

#include <assert.h>

enum { ROUNDS = 6, HALF_BITS_MIN = 4 }; /* with halves of one or two bits, few of all
                                         * permutations could occur */

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
