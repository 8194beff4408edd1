#ifndef DT_KERNELS_CUDA_TIMER_H
#define DT_KERNELS_CUDA_TIMER_H

#include "kernels/timer.h"

extern const struct dt_timer_ops dt_cuda_timer;

#endif
