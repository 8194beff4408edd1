/* The table of kernels of one instruction set. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/plain.h"

extern const struct dt_kernels ISA(dt_kernels_table);
const struct dt_kernels ISA(dt_kernels_table) = {
    .name = DT_ISA_TEXT(DT_ISA),
    .fill = dt_plain_fill,
    .cast = dt_plain_cast,
    .scale = ISA(dt_scale),
    .add = ISA(dt_add),
    .sum_slices = dt_plain_sum_slices,
#if VEC > 4
    .matmul = dt_matmul_onednn,
#else
    .matmul = dt_matmul_plain,
#endif
    .column_sum = ISA(dt_column_sum),
    .layernorm = ISA(dt_layernorm),
    .layernorm_backward = ISA(dt_layernorm_backward),
    .activation = ISA(dt_activation),
    .activation_backward = ISA(dt_activation_backward),
    .attention = ISA(dt_attention),
    .attention_backward = ISA(dt_attention_backward),
    .embedding = ISA(dt_embedding),
    .embedding_backward = ISA(dt_embedding_backward),
    .position_backward = ISA(dt_position_backward),
    .cross_entropy = ISA(dt_cross_entropy),
    .adamw = ISA(dt_adamw),
    .adamw_many = ISA(dt_adamw_many),
    .sgd = ISA(dt_sgd),
    .norm_sum = ISA(dt_norm_sum),
    .norm_finish = dt_plain_norm_finish,
    .exact_sum = dt_plain_exact_sum,
};
