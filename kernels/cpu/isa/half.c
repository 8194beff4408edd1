/* Converts BF16 to float and back, and adds two, for casts and collectives, in the calling thread.
 * The result may be any of the operands. */
#include "kernels/cpu/isa/isa.h"

static void widen(float *out, const uint16_t *in, int64_t count)
{
    vec_fetch(out, in, 0, count, DT_HALF);
}

static void narrow(uint16_t *out, const float *in, int64_t count)
{
    vec_keep(out, 0, in, count, DT_HALF);
}

static void add(uint16_t *out, const uint16_t *a, const uint16_t *b, int64_t count)
{
    for (int64_t i = 0; i < count; i += VEC) {
        vec_store_half_n(out + i, vec_load_half_n(a + i, count - i) + vec_load_half_n(b + i, count - i), count - i);
    }
}

static void add_wide(float *out, const uint16_t *a, const uint16_t *b, int64_t count)
{
    for (int64_t i = 0; i < count; i += VEC) {
        vec_store_n(out + i, vec_load_half_n(a + i, count - i) + vec_load_half_n(b + i, count - i), count - i);
    }
}

const struct dt_cpu_half ISA(dt_cpu_half) = {widen, narrow, add, add_wide};
