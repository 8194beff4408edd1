/* What products a GPU could do at most, as its maker states it. */
#ifndef DT_KERNELS_PEAK_H
#define DT_KERNELS_PEAK_H

#include "base/dtype.h"

/* FLOP/s of products of this type (F32, BF16) of a GPU of NVIDIA's with this name (the driver's)
 * and compute capability; dense ones, BF16 with sums in F32 by tensor cores, F32 without them.
 * Pure. sm_count: of the part that is ours, where MIG cut it. Of a GPU that the table lacks: by
 * its multiprocessors at clock_hz, the highest it can have. 0: not known. */
double dt_peak_flops(const char *name, int major, int minor, int sm_count, double clock_hz, enum dt_dtype type);

#endif
