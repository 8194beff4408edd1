/* Exact sums of doubles in fixed point. A value's 53 bits are split over at most three limbs,
 * without carries. A limb is a signed 64-bit integer of which one value uses 32 bits, so 2^31
 * values fit before carries must be resolved. */
#include "kernels/exact.h"

#include <math.h>
#include <string.h>

#define OVERFLOW_COUNT DT_EXACT_LIMB_COUNT
#define NAN_COUNT (DT_EXACT_LIMB_COUNT + 1)

void dt_exact_add(int64_t *limbs, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7ff);
    uint64_t mantissa = bits & 0xfffffffffffffULL;
    if (exponent == 0x7ff) {
        limbs[OVERFLOW_COUNT]++;
        limbs[NAN_COUNT] += mantissa != 0;
        return;
    }
    if (exponent == 0) {
        return; /* 0, or a subnormal, which is far below the lowest limb */
    }
    mantissa |= 1ULL << 52;
    /* weight of the mantissa's last bit, in bits above the lowest limb's lowest bit */
    int low = exponent - 1075 - DT_EXACT_LOW;
    if (low < 0) {
        if (low <= -53) {
            return;
        }
        mantissa >>= -low;
        low = 0;
    }
    int limb = low / 32;
    if (limb + 2 >= DT_EXACT_LIMB_COUNT) {
        limbs[OVERFLOW_COUNT]++;
        return;
    }
    unsigned __int128 wide = (unsigned __int128)mantissa << (low % 32);
    limbs[limb] += (int64_t)(wide & UINT32_MAX);
    limbs[limb + 1] += (int64_t)(wide >> 32 & UINT32_MAX);
    limbs[limb + 2] += (int64_t)(wide >> 64);
}

void dt_exact_merge(int64_t *a, const int64_t *b)
{
    for (int i = 0; i < DT_EXACT_LIMBS; i++) {
        a[i] += b[i];
    }
}

bool dt_exact_finite(const int64_t *limbs)
{
    return limbs[OVERFLOW_COUNT] == 0;
}

double dt_exact_get(const int64_t *limbs)
{
    if (!dt_exact_finite(limbs)) {
        return limbs[NAN_COUNT] != 0 ? NAN : INFINITY;
    }
    /* Resolve carries: digits of 32 bits, with two more on top for the overflow. */
    uint32_t digit[DT_EXACT_LIMB_COUNT + 2];
    uint64_t carry = 0;
    for (int i = 0; i < DT_EXACT_LIMB_COUNT; i++) {
        unsigned __int128 sum = (unsigned __int128)(uint64_t)limbs[i] + carry;
        digit[i] = (uint32_t)sum;
        carry = (uint64_t)(sum >> 32);
    }
    digit[DT_EXACT_LIMB_COUNT] = (uint32_t)carry;
    digit[DT_EXACT_LIMB_COUNT + 1] = (uint32_t)(carry >> 32);
    int top = DT_EXACT_LIMB_COUNT + 1;
    while (top >= 0 && digit[top] == 0) {
        top--;
    }
    if (top < 0) {
        return 0;
    }
    /* Take the highest 96 bits, and set the last bit if anything below is not zero. Then one
     * rounding to double is exact. */
    unsigned __int128 head = 0;
    for (int i = top; i > top - 3; i--) {
        head = head << 32 | (i >= 0 ? digit[i] : 0);
    }
    for (int i = top - 3; i >= 0; i--) {
        if (digit[i] != 0) {
            head |= 1;
            break;
        }
    }
    return ldexp((double)head, 32 * (top - 2) + DT_EXACT_LOW);
}
