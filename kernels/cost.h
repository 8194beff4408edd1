/* What a call of a kernel costs at least, by its arguments alone: the bytes that must move in
 * and out of memory, each tensor once, and the operations of products and attention. Where
 * memory decides, operations are not counted (0). What only the data know (how many rows of a
 * table the ids name) counts with the most that it can be. Pure. */
#ifndef DT_KERNELS_COST_H
#define DT_KERNELS_COST_H

#include "kernels/kernels.h"

struct dt_cost {
    double bytes, flops;
};

#define KERNEL(name, types) struct dt_cost dt_cost_##name(const struct dt_##name##_args *a);
#include "kernels/rows.def"

#endif
