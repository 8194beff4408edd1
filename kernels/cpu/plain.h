/* Kernels without a fast path of their own: the same for the twins and for the CPU table. */
#ifndef DT_KERNELS_CPU_PLAIN_H
#define DT_KERNELS_CPU_PLAIN_H

#include "kernels/kernels.h"

#define DT_PLAIN_any(name) void dt_plain_##name(struct dt_stream *s, const struct dt_##name##_args *a);
#define DT_PLAIN_flows(name)
#define DT_PLAIN_masters(name)
#define KERNEL(name, types) DT_PLAIN_##types(name)
#include "kernels/rows.def"

/* Parts of cross_entropy that its versions share: targets in range; losses and valid rows summed
 * in row order. */
int dt_plain_check_targets(const struct dt_cross_entropy_args *a, struct dt_error *err);
void dt_plain_sum_losses(const struct dt_cross_entropy_args *a);

/* For each id in [0, vocab_count) a list of its rows in order: first[id] (vocab_count), then
 * next[row] (row_count); -1 ends it. */
void dt_plain_rows_of_ids(const int32_t *ids, int64_t row_count, int64_t vocab_count, int64_t *next, int64_t *first);

#endif
