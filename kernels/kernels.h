/* The table of math kernels: one row per kernel, one struct of arguments each.
 *
 * Every kernel enqueues on its stream and copies its struct; memory it points to must live until
 * it has run. Pointers are device memory. Matrices are row-major and tight unless a leading
 * dimension is given. `type` is the type of the void pointers: F32 or BF16, F64 on "twin64".
 * Scalars are double and rounded once. BF16 is for what flows: weights, activations, their
 * gradients. Arithmetic is F32 and rounds once at the end; mean, rstd and lse are F32 then; sums
 * that live on (weight gradients, the product that adds to them) have a type of their own, F32
 * or BF16, in `grad_type` or `c_type`, which nobody reads unless `type` is BF16. Results do not
 * depend on the number of threads, nor on where in memory a slice begins. Letters: B batch, T
 * positions, C channels, H heads, D = C / H, V vocabulary; rows are usually B * T. */
/* clang-format off: a row a struct */
#ifndef DT_KERNELS_KERNELS_H
#define DT_KERNELS_KERNELS_H

#include "base/dtype.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stdint.h>

#define DT_IGNORE_INDEX (-100)

struct dt_fill_args {
    void *x;
    int64_t count;
    double value;
    enum dt_dtype type;
}; /* any type */
/* out = in, rounded to nearest even; among F32, F64, BF16, F16, and from I64, I32, U16, U8 to
 * I32, I64. In place only when equal. */
struct dt_cast_args {
    void *out;
    const void *in;
    int64_t count;
    enum dt_dtype out_type, in_type;
};
/* x *= factor (times *device_factor where given): one rounding of the product of both, one
 * multiplication */
struct dt_scale_args {
    void *x;
    const double *device_factor;
    int64_t count;
    double factor;
    enum dt_dtype type;
};
struct dt_add_args {
    void *out;
    const void *a, *b;
    int64_t count;
    enum dt_dtype type;   /* of a and out */
    enum dt_dtype b_type; /* where type is F32: F32, or BF16 */
};                        /* out = a + b; out may be a or b */

/* out = op over `in_count` buffers, neighbours pairwise, level by level, an odd last one moves
 * up (the canonical tree). `in`, an array in host memory, must live until it ran; out may be one
 * of them. Types F32, F64, BF16, F16 (summed in F32, rounded once), I64, I32. */
enum dt_op { DT_OP_SUM, DT_OP_MAX, DT_OP_MIN };
struct dt_sum_slices_args {
    void *out;
    const void *const *in;
    int in_count;
    enum dt_op op;
    int64_t count;
    enum dt_dtype type;
};

/* c (m, n) = op(a) op(b) [+ bias (n)] [+ c]: op(a) is (m, k), stored (k, m) when a_transposed;
 * op(b) is (k, n), stored (n, k) when b_transposed. Leading dimensions count elements between
 * stored rows; 0 means tight. Bias only without accumulate.
 *
 * What belongs to a product is its epilogue: row `matmul` knows none, dt_matmul_epilogue does
 * all. With y the product as above, c and b tight:
 *   GELU           aux (m, n) = y, c = gelu(y); bias is given. With aux_only nobody reads c, which may be overwritten all the same
 *   GELU_BACKWARD  c = y gelu'(aux), never added to; bias_gradient (n) = the sum over the rows of c
 *   BIAS_BACKWARD  c = y; bias_gradient (n) = the sum over the rows of b, which is not transposed
 * With accumulate, bias_gradient is added to.
 *
 * busy_sms: so many of a GPU's multiprocessors others may take meanwhile (collectives), and the
 * product is planned for the rest. It changes how sums are cut, so bits depend on it. */
enum dt_epilogue { DT_EPILOGUE_NONE, DT_EPILOGUE_GELU, DT_EPILOGUE_GELU_BACKWARD, DT_EPILOGUE_BIAS_BACKWARD };
struct dt_matmul_args {
    void *c;
    const void *a, *b, *bias;
    int64_t m, n, k, lda, ldb, ldc;
    bool a_transposed, b_transposed, accumulate;
    enum dt_dtype type, c_type; /* of a, b, bias, aux; of c where type is BF16 */
    enum dt_epilogue epilogue;
    bool aux_only;
    void *aux, *bias_gradient;
    enum dt_dtype grad_type; /* of bias_gradient where type is BF16 */
    int busy_sms;
};
/* out (cols) = [out +] sum over rows of x (rows, cols): bias gradients */
struct dt_column_sum_args {
    void *out;
    const void *x;
    int64_t row_count, col_count;
    bool accumulate;
    enum dt_dtype type, grad_type; /* of x; of out */
};

/* sum = residual + branch; y = (sum - mean) * rstd * gamma + beta. branch null: sum = residual
 * (residual_out may be null). residual_out may be residual or branch. mean, rstd (rows) are
 * saved for backward. */
struct dt_layernorm_args {
    void *y, *residual_out, *mean, *rstd;
    const void *residual, *branch, *gamma, *beta;
    int64_t row_count, col_count;
    double eps;
    enum dt_dtype type;
};
/* dx = gradient through the norm [+ dresidual, the gradient that reached the residual sum from
 * above]; x is the forward's sum. dx may be dresidual. dgamma, dbeta (cols), both or neither,
 * are added to when accumulate is set. */
struct dt_layernorm_backward_args {
    void *dx, *dgamma, *dbeta;
    const void *dy, *x, *gamma, *mean, *rstd, *dresidual;
    int64_t row_count, col_count;
    bool accumulate;
    enum dt_dtype type, grad_type; /* grad_type: of dgamma, dbeta */
};

/* y = f(x); GELU is the tanh form. y may be x. */
enum dt_activation { DT_ACT_GELU, DT_ACT_RELU, DT_ACT_TANH };
struct dt_activation_args {
    void *y;
    const void *x;
    int64_t count;
    enum dt_activation kind;
    enum dt_dtype type;
};
/* dx = dy * f'(x), x before the activation; dx may be dy. dbias (col_count), where given, =
 * [dbias +] the sum over the rows of dx (count / col_count, col_count), as column_sum has it. */
struct dt_activation_backward_args {
    void *dx;
    const void *dy, *x;
    int64_t count;
    enum dt_activation kind;
    enum dt_dtype type;
    void *dbias;
    int64_t col_count;
    bool accumulate;
    enum dt_dtype grad_type; /* of dbias */
};

/* out (B, T, H*D) = softmax(q k^T * scale, causal) v. qkv (B, T, (H + 2 KV) * D): q of all
 * heads, then k, then v; head h reads kv head h / (H / KV). lse (B, H, T): log of the sum of
 * exponentials, all that backward keeps. scale 0: 1 / sqrt(D). */
struct dt_attention_args {
    void *out, *lse;
    const void *qkv;
    int64_t batch, positions, heads, kv_heads /* 0: heads */, head_size;
    double scale;
    bool causal;
    enum dt_dtype type;
};
struct dt_attention_backward_args { /* dqkv is overwritten; it may not be qkv. work: memory that
                                     * may be used meanwhile, for speed; or null */
    void *dqkv, *work;
    const void *dout, *out, *qkv, *lse;
    size_t work_bytes;
    int64_t batch, positions, heads, kv_heads, head_size;
    double scale;
    bool causal;
    enum dt_dtype type;
};

/* out (rows, C) = tokens[ids[row]] + positions[row % position_count]; positions null: without.
 * Ids were checked by the loader. */
struct dt_embedding_args {
    void *out;
    const void *tokens, *positions; /* (V, C), (position_count, C) */
    const int32_t *ids;             /* rows */
    int64_t row_count, position_count, col_count;
    enum dt_dtype type;
};
/* dtokens (vocab, C): rows with the same id are added in row order. Overwriting clears the whole
 * table first. */
struct dt_embedding_backward_args {
    void *dtokens;
    const void *dy;
    const int32_t *ids;
    int64_t row_count, vocab_count, col_count;
    bool accumulate;
    enum dt_dtype type, grad_type; /* of dy; of dtokens */
};
/* dpositions (table_count, C): row t is the sum over B of dy (B, position_count, C); rows beyond
 * position_count become 0 unless accumulate */
struct dt_position_backward_args {
    void *dpositions;
    const void *dy;
    int64_t row_count, position_count, table_count, col_count;
    bool accumulate;
    enum dt_dtype type, grad_type; /* of dy; of dpositions */
};

/* Softmax cross entropy of logits (rows, cols); with_grad: logits become (softmax - onehot) *
 * grad_scale, 0 for ignored rows. row_loss (rows): each row's loss, 0 if ignored. Where given,
 * *loss_sum += the rows in order (on a GPU the sums of 32 rows each, in order), *valid_count +=
 * rows that count, *correct_count += rows whose first maximum is the target: clear them (fill)
 * before the first chunk. A target is DT_IGNORE_INDEX or in [0, cols); anything else fails the
 * stream. ld: elements between rows, 0: tight; what lies between two rows may be overwritten. */
struct dt_cross_entropy_args {
    void *logits;
    const int32_t *targets;
    double *row_loss, *loss_sum;
    int64_t *valid_count, *correct_count;
    int64_t row_count, col_count, ld;
    double grad_scale;
    bool with_grad;
    enum dt_dtype type;
};

/* AdamW over one slice, as torch.optim.AdamW: g = grad * (grad_scale * *clip); weights decay by
 * lr * weight_decay; step counts from 1. Moments in BF16 are updated in F32, w by that, and then
 * rounded stochastically (kernels/stochastic.h), by bits that depend on seed, step, unit and the
 * element's number there. */
struct dt_adamw_args {
    void *w, *m, *v;
    void *w_bf16; /* where given, gets w rounded to BF16 */
    const void *grad;
    const double *clip; /* device memory, or null for 1 */
    int64_t count, step;
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    uint64_t seed;             /* this and the next two: where moment_type is BF16 */
    int64_t unit, first;       /* number of the unit; of the slice's first element in it */
    enum dt_dtype type;        /* of w, m, v: F32 or F64 */
    enum dt_dtype grad_type;   /* where type is F32: F32, or BF16 */
    enum dt_dtype moment_type; /* of m and v, where type is F32: F32, or BF16 */
};
/* adamw of `count` slices, in one launch on a GPU. They may differ in memory, count, weight_decay,
 * unit and first; for the rest the first one speaks. `each` is read before the call returns. */
struct dt_adamw_many_args {
    const struct dt_adamw_args *each;
    int count;
};
/* As torch.optim.SGD (dampening 0); momentum_buffer null: without. On step 1 the buffer is g. */
struct dt_sgd_args {
    void *w, *momentum_buffer;
    void *w_bf16;
    const void *grad;
    const double *clip;
    int64_t count, step;
    double lr, momentum, weight_decay, grad_scale;
    bool nesterov;
    enum dt_dtype type, grad_type; /* as adamw's */
};

/* Adds the squares of x into an exact accumulator (kernels/exact.h): fp64 sums of 64 elements
 * from x on in fixed order, then integers. Slices begin at multiples of 64 of the flat unit.
 * Clear the accumulator (fill, I64, DT_EXACT_LIMBS) first; all_reduce it as I64 sum. */
struct dt_norm_sum_args {
    int64_t *limbs;
    const void *x;
    int64_t count;
    enum dt_dtype type;
};
/* norm = sqrt(sum) * scale; clip = min(1, max_norm / (norm + 1e-6)), 1 when max_norm <= 0;
 * nonfinite = 1 when a square was not finite (then norm is inf or nan and clip 0); factor =
 * scale * clip. Where denominator is given, scale is 1 / *denominator, or 0 where that is not
 * positive. Any output may be null. */
struct dt_norm_finish_args {
    double *norm, *clip, *factor;
    int32_t *nonfinite;
    const int64_t *limbs, *denominator;
    double scale, max_norm;
};
/* Adds x (count), or x[i] / divisors[i] and 0 where that divisor is 0, into an exact
 * accumulator: losses, which rounding may put just below zero; what is negative counts as 0.
 * *bad_count += values that are not finite. One all_reduce then makes the same sum on every
 * rank. */
struct dt_exact_sum_args {
    int64_t *limbs, *bad_count;
    const double *x;
    const int64_t *divisors; /* may be null */
    int64_t count;
};

struct dt_kernels {
    const char *name; /* "avx512", "twin64" */
#define KERNEL(name, types) void (*name)(struct dt_stream * s, const struct dt_##name##_args *a);
#include "kernels/rows.def"
    /* No kernel but a shortcut: a product with its epilogue in one pass. False: the device cannot
     * do it, or not faster than one after the other, and nothing was done. Null: it never can. */
    bool (*matmul_epilogue)(struct dt_stream *s, const struct dt_matmul_args *a);
};

/* A product with its epilogue: by k's row matmul_epilogue, or one after the other.
 * dt_matmul_parts: always one after the other. */
void dt_matmul_epilogue(const struct dt_kernels *k, struct dt_stream *s, const struct dt_matmul_args *a);
void dt_matmul_parts(const struct dt_kernels *k, struct dt_stream *s, const struct dt_matmul_args *a);

/* The plain-C table for DT_F32, DT_F64 or DT_BF16 (any other type: null). That for BF16 also
 * takes F32 in scale, add, norm_sum and the optimizers. */
const struct dt_kernels *dt_kernels_twin(enum dt_dtype type);
/* The table of the CPU: DTRUN_CPU=plain|avx2|avx512, otherwise the best this CPU runs.
 * DT_INVALID for a name it cannot run. */
const struct dt_kernels *dt_kernels_cpu(struct dt_error *err);
/* By name ("plain", "avx2", "avx512"); null if this CPU cannot run it. */
const struct dt_kernels *dt_kernels_cpu_named(const char *name);

/* For collectives on the CPU, straight in the calling thread: as the rows of the same name. */
void dt_cpu_sum_slices(const struct dt_sum_slices_args *a);
void dt_cpu_cast(const struct dt_cast_args *a);
/* By this CPU's vectors, the same bits on all of them; out may be an operand of its type. Sums
 * are F32, rounded once where they become BF16. */
struct dt_cpu_half {
    void (*widen)(float *out, const uint16_t *in, int64_t count);
    void (*narrow)(uint16_t *out, const float *in, int64_t count);
    void (*add)(uint16_t *out, const uint16_t *a, const uint16_t *b, int64_t count);
    void (*add_wide)(float *out, const uint16_t *a, const uint16_t *b, int64_t count);
};
const struct dt_cpu_half *dt_cpu_half(void);

#endif
