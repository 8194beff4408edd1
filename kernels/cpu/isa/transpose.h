/* VEC vectors of VEC words, transposed in registers. */
#ifndef DT_KERNELS_CPU_ISA_TRANSPOSE_H
#define DT_KERNELS_CPU_ISA_TRANSPOSE_H

#include "kernels/cpu/isa/vec.h"

/* Exchanges lanes of two vectors, so that VEC vectors are transposed after exchanges of 1, 2, 4, ... */
#define LOW(p, d) (((p) & (d)) != 0 ? VEC + (p) - (d) : (p))
#define HIGH(p, d) (((p) & (d)) != 0 ? VEC + (p) : (p) + (d))
#define LANES4(f, p, d) f(p, d), f(p + 1, d), f(p + 2, d), f(p + 3, d)
#if VEC == 16
#define LANES(f, d) LANES4(f, 0, d), LANES4(f, 4, d), LANES4(f, 8, d), LANES4(f, 12, d)
#elif VEC == 8
#define LANES(f, d) LANES4(f, 0, d), LANES4(f, 4, d)
#else
#define LANES(f, d) LANES4(f, 0, d)
#endif
#define EXCHANGE(d)                                                                                                    \
    for (int i = 0; i < VEC; i++) {                                                                                    \
        if ((i & (d)) == 0) {                                                                                          \
            vec a = y[i], b = y[i + (d)];                                                                              \
            y[i] = __builtin_shuffle(a, b, (ivec){LANES(LOW, d)});                                                     \
            y[i + (d)] = __builtin_shuffle(a, b, (ivec){LANES(HIGH, d)});                                              \
        }                                                                                                              \
    }

INLINE void transpose_vectors(vec y[VEC])
{
#pragma GCC unroll 16
    EXCHANGE(1)
#pragma GCC unroll 16
    EXCHANGE(2)
#if VEC >= 8
#pragma GCC unroll 16
    EXCHANGE(4)
#endif
#if VEC >= 16
#pragma GCC unroll 16
    EXCHANGE(8)
#endif
}

#endif
