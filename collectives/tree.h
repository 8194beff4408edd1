/* The canonical tree: the one order in which contributions of ranks are combined. It starts with
 * the ranks in order. Each level adds neighbours, (0+1), (2+3), ...; an odd last one moves up
 * unchanged; this repeats until one is left. The result does not depend on how a buffer is cut into
 * slices or buckets.
 *
 * A node of the tree stands for the ranks below it. A host that holds all ranks of a node may sum
 * them alone: the sums of nodes combine to the same bits. */
#ifndef DT_COLLECTIVES_TREE_H
#define DT_COLLECTIVES_TREE_H

#include "collectives/comm.h"

/* A node of the tree: ranks first .. first + count - 1. */
struct dt_tree_part {
    int first, count;
};

/* True for types that can be reduced: F32, F64, BF16, F16, I64. */
bool dt_tree_can(enum dt_dtype type);
/* out = in[0] op in[1] op ... in tree order, over in_count >= 1 buffers of `count` elements;
 * in_count is at most 65536. out may be one of the inputs; otherwise it does not overlap them. BF16
 * and F16 are summed in float and rounded once. I64 sums wrap around. */
void dt_tree_reduce(void *out, const void *const *in, int in_count, enum dt_reduction op, enum dt_dtype type,
                    int64_t count);
/* Lists the largest nodes of the tree over `size` ranks that lie within ranks first .. first +
 * count - 1, in rank order. Returns their number, at most 2 * 17. For a host that holds several
 * runs of ranks, call it once per run. */
#define DT_TREE_PARTS_MAX 34
int dt_tree_parts(int size, int first, int count, struct dt_tree_part *out);
/* The sum of one node with in_count ranks below it, to be merged later. Like dt_tree_reduce, but
 * 16-bit inputs give an F32 sum. */
void dt_tree_partial(void *out, const void *const *in, int in_count, enum dt_reduction op, enum dt_dtype type,
                     int64_t count);
/* Combines sums of nodes, which together cover ranks 0 .. size - 1 in order, to the sum that
 * dt_tree_reduce gives. in[i] is the sum of parts[i] by dt_tree_partial, or for a single rank its
 * input. out is as for dt_tree_reduce. */
void dt_tree_merge(void *out, const void *const *in, const struct dt_tree_part *parts, int size, enum dt_reduction op,
                   enum dt_dtype type, int64_t count);

#endif
