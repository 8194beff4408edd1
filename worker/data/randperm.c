/* See the header. */
#include "worker/data/randperm.h"

#include <assert.h>

enum { STATE = 624, MIDDLE = 397 };

void mt19937_seed(struct mt19937 *g, uint64_t seed)
{
    g->state[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < STATE; i++) {
        g->state[i] = 1812433253u * (g->state[i - 1] ^ g->state[i - 1] >> 30) + i;
    }
    g->next = STATE;
}

static void refill(struct mt19937 *g)
{
    uint32_t *s = g->state;
    for (int i = 0; i < STATE; i++) {
        uint32_t y = (s[i] & 0x80000000u) | (s[(i + 1) % STATE] & 0x7fffffffu);
        s[i] = s[(i + MIDDLE) % STATE] ^ y >> 1 ^ ((y & 1) != 0 ? 0x9908b0dfu : 0);
    }
    g->next = 0;
}

uint32_t mt19937_next(struct mt19937 *g)
{
    if (g->next == STATE) {
        refill(g);
    }
    uint32_t y = g->state[g->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

void randperm(struct mt19937 *g, int64_t count, uint32_t *out)
{
    assert(count >= 0 && count <= RANDPERM_MOST);
    for (int64_t i = 0; i < count; i++) {
        out[i] = (uint32_t)i;
    }
    for (int64_t i = 0; i + 1 < count; i++) {
        int64_t other = i + mt19937_next(g) % (count - i);
        uint32_t value = out[i];
        out[i] = out[other];
        out[other] = value;
    }
}
