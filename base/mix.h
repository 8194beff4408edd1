/* A pseudorandom function of a number, the same on all machines. */
#ifndef DT_BASE_MIX_H
#define DT_BASE_MIX_H

#include <stdint.h>

/* Before functions that a GPU's code calls, too. */
#ifdef __CUDACC__
#define DT_ANYWHERE __host__ __device__
#else
#define DT_ANYWHERE
#endif

/* The finaliser of splitmix64 (Steele, Lea and Flood 2014; constants by David Stafford), after one
 * step of its state. */
DT_ANYWHERE static inline uint64_t dt_mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

#endif
