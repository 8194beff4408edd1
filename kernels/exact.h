/* Exact sums of doubles: 22 limbs of 32 bits in int64. Adding gives the same bits in any order and
 * any slicing, also by an integer all_reduce over up to 2^20 ranks and 2^30 blocks. Carries are
 * resolved only when the sum is read. Fixed point: limb i has weight 2^(32 i + DT_EXACT_LOW), so
 * the limbs span 2^-352 to 2^352. Larger values count as overflow, and smaller bits are cut off. */
#ifndef DT_KERNELS_EXACT_H
#define DT_KERNELS_EXACT_H

#include <stdbool.h>
#include <stdint.h>

#define DT_EXACT_LIMB_COUNT 22
#define DT_EXACT_LOW (-352)
/* Length of the array: the limbs, then two counters: values that were not finite or too large, and
 * nans among these. */
#define DT_EXACT_LIMBS 24

/* Adds v >= 0. nan and inf are counted. */
void dt_exact_add(int64_t *limbs, double v);
/* Adds b into a. */
void dt_exact_merge(int64_t *a, const int64_t *b);
/* The sum, rounded once to nearest even; inf or nan if one was added. */
double dt_exact_get(const int64_t *limbs);
bool dt_exact_finite(const int64_t *limbs);

#endif
