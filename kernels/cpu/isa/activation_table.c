/* Activations of BF16 by table: there are 2^16 inputs. The entries are what the vectors of
 * activation.h give, so results have the same bits with a table and without. */
#include "kernels/cpu/isa/activation.h"

#if DT_BY_TABLE
#include <pthread.h>

INLINE void fill_kind(struct activation_table *t, enum dt_activation kind)
{
    for (int64_t i = 0; i < DT_TABLE_ENTRIES; i += VEC) {
        vec x = (vec)(((uvec)vec_index() + (uint32_t)i) << 16);
        vec value = activation_value(kind, x), slope = activation_slope(kind, x);
        for (int l = 0; l < VEC; l++) {
            t->both[i + l][0] = value[l];
            t->both[i + l][1] = slope[l];
        }
        vec_store_half_n(t->rounded + i, value, VEC);
    }
}

static void fill(struct activation_table *t, enum dt_activation kind)
{
    switch (kind) {
    case DT_ACT_GELU:
        fill_kind(t, DT_ACT_GELU);
        break;
    case DT_ACT_GELU_ERF:
        fill_kind(t, DT_ACT_GELU_ERF);
        break;
    case DT_ACT_SILU:
        fill_kind(t, DT_ACT_SILU);
        break;
    case DT_ACT_TANH:
        fill_kind(t, DT_ACT_TANH);
        break;
    case DT_ACT_RELU:
        break; /* has no table */
    }
}

const struct activation_table *ISA(dt_activation_table)(enum dt_activation kind)
{
    static struct activation_table tables[DT_ACT_SILU + 1];
    static bool filled[DT_ACT_SILU + 1];
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    if (!__atomic_load_n(&filled[kind], __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&mutex);
        if (!filled[kind]) {
            fill(&tables[kind], kind);
            __atomic_store_n(&filled[kind], true, __ATOMIC_RELEASE);
        }
        pthread_mutex_unlock(&mutex);
    }
    return &tables[kind];
}
#endif
