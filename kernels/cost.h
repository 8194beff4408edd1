/* The least cost of a kernel call, by its arguments alone: the bytes that must move in and out of
 * memory, each tensor once, and the operations of products and attention. Kernels bound by memory
 * count no operations (0). A number that depends on the data (how many rows of a table the ids
 * name) counts with its maximum. Pure functions. */
#ifndef DT_KERNELS_COST_H
#define DT_KERNELS_COST_H

#include "kernels/kernels.h"

struct dt_cost {
    double bytes, flops;
};

#define KERNEL(name, types) struct dt_cost dt_cost_##name(const struct dt_##name##_args *a);
#include "kernels/rows.def"
#define CONVOLUTION(name) struct dt_cost dt_cost_##name(const struct dt_##name##_args *a);
#include "kernels/convolutions.def"

#endif
