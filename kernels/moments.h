/* Merging moments of batch norm, for CPUs, twins and CUDA (Chan, Golub and LeVeque, 1979). */
#ifndef DT_KERNELS_MOMENTS_H
#define DT_KERNELS_MOMENTS_H

#include "base/mix.h"

/* Adds a part of `count` values, with its mean and its sum of squared deviations, to moments of
 * *n values. */
DT_ANYWHERE static inline void dt_moments_add(double *mean, double *squares, double *n, double part_mean,
                                              double part_squares, double count)
{
    double all = *n + count, difference = part_mean - *mean;
    if (count > 0) {
        *mean += difference * (count / all);
        *squares += part_squares + difference * difference * (*n * (count / all));
        *n = all;
    }
}

#endif
