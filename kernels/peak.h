/* The highest rate of products that a GPU's maker states. */
#ifndef DT_KERNELS_PEAK_H
#define DT_KERNELS_PEAK_H

#include "base/dtype.h"

/* FLOP/s of dense products of this type on an NVIDIA GPU with this name (the driver's) and
 * compute capability: BF16 by tensor cores with sums in F32, F32 without tensor cores. sm_count:
 * multiprocessors of our part, if MIG divides the GPU. For a GPU that is not in the table, the
 * rate is estimated from its multiprocessors at clock_hz, its highest clock. 0: unknown. Pure
 * function. */
double dt_peak_flops(const char *name, int major, int minor, int sm_count, double clock_hz, enum dt_dtype type);

#endif
