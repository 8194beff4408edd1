/* The table of math kernels: one row and one struct of arguments per kernel. Every kernel enqueues
 * on its stream and copies its struct; memory that the struct points to must live until the kernel
 * has run. Pointers are device memory. Matrices are row-major and tight unless a leading dimension
 * is given. `type` is the type of the void pointers: F32, BF16 or F16, F64 on "twin64". Scalars are
 * double and rounded once.
 *
 * 16 bits are for tensors that flow: weights, activations, their gradients. Arithmetic is F32 and
 * rounds once at the end. With 16 bits, mean, rstd and lse are F32. Sums that are kept (weight
 * gradients, the product that adds to them) have a type of their own, F32 or `type`, in `grad_type`
 * or `c_type`; these are read only if `type` has 16 bits. Results depend neither on the number of
 * threads nor on where in memory a slice begins.
 *
 * Letters: B batch, T positions, C channels, H heads, D = C / H, V vocabulary; rows are usually B *
 * T. */
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
/* out = in, rounded to nearest even; among F32, F64, BF16, F16, and from I64, I32, U16, U8 to I32,
 * I64. In place only if both types are equal. */
struct dt_cast_args {
    void *out;
    const void *in;
    int64_t count;
    enum dt_dtype out_type, in_type;
};
/* x = in * factor (times *device_factor if given): the product of both factors is rounded once,
 * then one multiplication. in null: x itself. */
struct dt_scale_args {
    void *x;
    const void *in;
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
    enum dt_dtype b_type; /* for type F32: F32, BF16 or F16 */
};                        /* out = a + b; out may be a or b */

/* out = op over `in_count` buffers: pairs of neighbours, level by level; an odd last one moves up
 * (the canonical tree). `in`, an array in host memory, must live until the kernel has run. out may
 * be one of the inputs. Types F32, F64, BF16, F16 (summed in F32, rounded once), I64, I32. */
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
 * An epilogue belongs to a product. Row `matmul` has none; dt_matmul_epilogue does all of them.
 * With y the product as above, c and b tight:
 *   GELU             aux (m, n) = y, c = gelu(y); bias is given. With aux_only c is not read
 *                    afterwards; it may still be overwritten
 *   GELU_BACKWARD    c = y gelu'(aux), never added to; bias_gradient (n) = the sum over the rows of c
 *   BIAS_BACKWARD    c = y; bias_gradient (n) = the sum over the rows of b, which is not transposed
 *   BIAS_BACKWARD_A  c = y; bias_gradient (m) = the sum over the rows of a, which is transposed and tight
 * With accumulate, bias_gradient is added to.
 *
 * busy_sms: number of a GPU's multiprocessors that other work (collectives) may take meanwhile.
 * The product is planned for the rest. This changes how sums are cut, so bits depend on it. */
enum dt_epilogue {
    DT_EPILOGUE_NONE,
    DT_EPILOGUE_GELU,
    DT_EPILOGUE_GELU_BACKWARD,
    DT_EPILOGUE_BIAS_BACKWARD,
    DT_EPILOGUE_BIAS_BACKWARD_A
};
struct dt_matmul_args {
    void *c;
    const void *a, *b, *bias;
    int64_t m, n, k, lda, ldb, ldc;
    bool a_transposed, b_transposed, accumulate;
    enum dt_dtype type, c_type; /* of a, b, bias, aux; of c if type is BF16 */
    enum dt_epilogue epilogue;
    bool aux_only;
    void *aux, *bias_gradient;
    enum dt_dtype grad_type; /* of bias_gradient if type is BF16 */
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
 * (residual_out may be null). residual_out may be residual or branch. beta may be null. mean, rstd
 * (rows) are saved for backward. */
struct dt_layernorm_args {
    void *y, *residual_out, *mean, *rstd;
    const void *residual, *branch, *gamma, *beta;
    int64_t row_count, col_count;
    double eps;
    enum dt_dtype type;
};
/* dx = gradient through the norm [+ dresidual, the gradient that reaches the residual sum
 * directly]; x is the forward's sum. dx may be dresidual. dgamma and dbeta (cols) may be null, dbeta
 * alone too; they are added to when accumulate is set. */
struct dt_layernorm_backward_args {
    void *dx, *dgamma, *dbeta;
    const void *dy, *x, *gamma, *mean, *rstd, *dresidual;
    int64_t row_count, col_count;
    bool accumulate;
    enum dt_dtype type, grad_type; /* grad_type: of dgamma, dbeta */
};

/* sum = residual + branch_scale * branch; y = sum * rstd * (weight_offset + weight), where rstd = 1 /
 * sqrt(mean of squares + eps). branch null: sum = residual. residual_out (the sum) may be null,
 * residual or branch; y may be residual if residual_out is null. rstd (rows) is saved for backward.
 *
 * Norms of heads: with heads > 0, row r is head r % heads of position r / heads; its col_count
 * values begin at (r / heads) * ld + r % heads * col_count, in `residual` with ld x_ld, in `y` with
 * y_ld. There is no branch then. heads 0: rows are tight. */
struct dt_rmsnorm_args {
    void *y, *residual_out, *rstd;
    const void *residual, *branch, *weight;
    int64_t row_count, col_count, heads, x_ld, y_ld;
    double eps, branch_scale /* 0: 1 */, weight_offset;
    enum dt_dtype type;
};
/* dx = gradient through the norm [+ dresidual]; x is the forward's sum (with x_ld). dx may be dy or
 * dresidual. dy, dx have y_ld. dweight (cols) may be null; it is added to when accumulate is set. */
struct dt_rmsnorm_backward_args {
    void *dx, *dweight;
    const void *dy, *x, *weight, *rstd, *dresidual;
    int64_t row_count, col_count, heads, x_ld, y_ld;
    double weight_offset;
    bool accumulate;
    enum dt_dtype type, grad_type; /* grad_type: of dweight */
};

/* y = f(x). GELU is the tanh form, GELU_ERF is x * Phi(x), SILU is x * sigmoid(x). y may be x. */
enum dt_activation { DT_ACT_GELU, DT_ACT_RELU, DT_ACT_TANH, DT_ACT_GELU_ERF, DT_ACT_SILU };
struct dt_activation_args {
    void *y;
    const void *x;
    int64_t count;
    enum dt_activation kind;
    enum dt_dtype type;
};
/* dx = dy * f'(x), where x is the value before the activation; dx may be dy. dbias (col_count),
 * if given, = [dbias +] the sum over the rows of dx (count / col_count, col_count), like
 * column_sum. */
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

/* y (rows, cols) = f(gate) * up. gate and up have ld elements between rows (0: cols), y is tight. */
struct dt_gate_args {
    void *y;
    const void *gate, *up;
    int64_t row_count, col_count, ld;
    enum dt_activation kind;
    enum dt_dtype type;
};
/* dgate = dy * up * f'(gate); dup = dy * f(gate), both with ld; they may be gate and up. y, if given,
 * becomes f(gate) * up again; it may be dy. dy and y are tight. */
struct dt_gate_backward_args {
    void *dgate, *dup, *y;
    const void *dy, *gate, *up;
    int64_t row_count, col_count, ld;
    enum dt_activation kind;
    enum dt_dtype type;
};

/* Turns pairs of each head in place. Row r has `heads` heads of head_size values, from x + r *
 * stride on. With c, s = cos and sin of the row's position: (x[j], x[j + width / 2]) becomes (x[j] c -
 * x[j + width / 2] s, x[j + width / 2] c + x[j] s) for j < width / 2; the rest of a head stays.
 * inverse: by -s, which is the backward. table (positions, width): width / 2 cosines, then as many
 * sines, of dt_dtype_wide(type). The row's position is positions[r], or first_position + r %
 * position_count if positions is null. */
struct dt_rope_args {
    void *x;
    const void *table;
    const int32_t *positions;
    int64_t row_count, position_count, first_position, heads, head_size, width, stride;
    bool inverse;
    enum dt_dtype type;
};

/* x = in * mask / (1 - rate); mask is 0 with probability rate. Row r (of col_count values) belongs to
 * sample r / rows_per_sample. The mask is a function of seed, site, samples[sample] and the
 * element's place within the sample (kernels/dropout.h), so any number of ranks has the same. x may
 * be in. */
struct dt_dropout_args {
    void *x;
    const void *in;
    const int64_t *samples; /* device memory: the number of each sample in the whole training */
    int64_t row_count, rows_per_sample, col_count;
    double rate;
    uint64_t seed, site;
    enum dt_dtype type;
};

/* The arguments that forward and backward of attention share. In q, position i of batch entry b
 * begins at (b * queries + i) * q_stride; in k and v, position j at (b * key_capacity + j) *
 * kv_stride. Query i stands at key position i + keys - queries. Head h reads kv head h / (H / KV).
 *
 * With i and j as key positions, query i sees key j if all of these hold. causal: j <= i. window >
 * 0: |i - j| < window. segments (B, keys), if given: segments[j] >= 0, and segments[j] equals the
 * query's segment, where a negative one counts as 0. So a padded batch has -1 for padding and 0 for
 * the rest, and packed documents have 0, 1, 2, ... A query that sees no key gives 0, has lse -inf,
 * and adds no gradient.
 *
 * s = scale * q k; with softcap > 0, s = softcap * tanh(scale * q k / softcap). Dropout acts on
 * the probabilities: its mask is that of kernels/dropout.h, by head, query's position and key. */
struct dt_attention_shape {
    int64_t batch, queries, keys, heads, kv_heads /* 0: heads */, head_size;
    int64_t key_capacity;                    /* positions of each batch entry in k and v; 0: keys */
    int64_t q_stride, kv_stride, out_stride; /* elements between positions; 0: (H + 2 KV) D, twice, and H D */
    double scale /* 0: 1 / sqrt(D) */, softcap;
    bool causal;
    int64_t window;
    const int32_t *segments;
    double dropout; /* rate */
    uint64_t seed, site;
    const int64_t *samples; /* where dropout > 0: as in dt_dropout_args */
    enum dt_dtype type;
};

/* out (B, queries, H, D) = softmax(s) v. lse (B, H, queries): log of the sum of exponentials of s, of
 * dt_dtype_wide(type); backward needs nothing else that forward computes. lse null: not wanted. */
struct dt_attention_args {
    struct dt_attention_shape shape;
    void *out, *lse;
    const void *q, *k, *v;
};
/* queries is keys. dq, dk and dv have the strides of q, k and v, and are overwritten; they may not be
 * q, k, v. dout has out's stride. work: memory that the kernel may use for speed, or null. */
struct dt_attention_backward_args {
    struct dt_attention_shape shape;
    void *dq, *dk, *dv, *work;
    const void *dout, *out, *q, *k, *v, *lse;
    size_t work_bytes;
};

/* out (rows, C) = tokens[ids[row]] * scale + positions[p] + types[type_ids[row]], where p is
 * position_ids[row], or first_position + row % position_count. Null tables are left out; type_ids
 * null: all 0. The loader has checked the ids. */
struct dt_embedding_args {
    void *out;
    const void *tokens, *positions, *types;       /* (V, C), (table, C), (kinds, C) */
    const int32_t *ids, *position_ids, *type_ids; /* rows */
    int64_t row_count, position_count, first_position, col_count;
    double scale; /* 0: 1 */
    enum dt_dtype type;
};
/* dtokens (vocab, C): rows of dy with the same id are added in row order, times scale. Rows with
 * skipped_id are not added if skips is set (the padding row has no gradient). Without accumulate the
 * whole table is cleared first. It also serves tables of positions and types. Where the table has at
 * most 8 rows and dy at least 256 times as many, a GPU adds in another order, which the shape
 * decides. */
struct dt_embedding_backward_args {
    void *dtokens;
    const void *dy;
    const int32_t *ids;
    int64_t row_count, vocab_count, col_count;
    int32_t skipped_id;
    bool skips;
    double scale; /* 0: 1 */
    bool accumulate;
    enum dt_dtype type, grad_type; /* of dy; of dtokens */
};
/* dpositions (table_count, C): row t is the sum over B of dy (B, position_count, C). Rows beyond
 * position_count become 0 unless accumulate is set */
struct dt_position_backward_args {
    void *dpositions;
    const void *dy;
    int64_t row_count, position_count, table_count, col_count;
    bool accumulate;
    enum dt_dtype type, grad_type; /* of dy; of dpositions */
};

/* out (B, C) = mean over T of those x (B, T, C) whose mask (B, T) is not 0; null: of all. out is 0
 * where no mask is set. Rows of x without a mask are not read. */
struct dt_masked_mean_args {
    void *out;
    const void *x;
    const int32_t *mask;
    int64_t batch, positions, col_count;
    enum dt_dtype type;
};
/* dx (B, T, C) = dout (B, C) / number of the sequence's masks where the mask is set, else 0. */
struct dt_masked_mean_backward_args {
    void *dx;
    const void *dout;
    const int32_t *mask;
    int64_t batch, positions, col_count;
    enum dt_dtype type;
};

/* out (n, C) = x[rows[i]]; rows null: x[i * step], as for the first token of each sequence of `step`
 * positions. A row below 0 gives zeros. */
struct dt_take_rows_args {
    void *out;
    const void *x;
    const int32_t *rows;
    int64_t row_count, col_count, step;
    enum dt_dtype type;
};
/* dx (source_count, C) = 0, but for dx[rows[i]] (or dx[i * step]) = dout[i]. No row may come twice;
 * those below 0 may, and are left out. */
struct dt_take_rows_backward_args {
    void *dx;
    const void *dout;
    const int32_t *rows;
    int64_t row_count, source_count, col_count, step;
    enum dt_dtype type;
};

/* Softmax cross entropy of z (rows, cols), where z = logits * scale, and with softcap > 0 softcap *
 * tanh(logits * scale / softcap). With with_grad, logits become their gradient, (softmax - onehot) *
 * grad_scale * dz/dlogits, and 0 for ignored rows. row_loss (rows): each row's loss, 0 if ignored. If given:
 * *loss_sum += the rows' losses in order (on a GPU: sums of 32 rows each, in order); *valid_count
 * += rows that are not ignored; *correct_count += rows whose first maximum is the target. Clear
 * these (fill) before the first chunk. A target is DT_IGNORE_INDEX or in [0, cols); any other value
 * fails the stream. ld: elements between rows, 0: tight. The gap between two rows may be
 * overwritten. */
struct dt_cross_entropy_args {
    void *logits;
    const int32_t *targets;
    double *row_loss, *loss_sum;
    int64_t *valid_count, *correct_count;
    int64_t row_count, col_count, ld;
    double grad_scale, scale /* 0: 1 */, softcap;
    bool with_grad;
    enum dt_dtype type;
};

/* Windows that slide over images (B, H, W, C), whose channels come last. Window (oy, ox) of an image
 * covers size x size pixels; its first one is (oy stride - padding, ox stride - padding). */
struct dt_windows {
    int64_t batch, height, width, channels, out_height, out_width, size, stride, padding;
};
/* out (B * out_height * out_width, C * size * size): row r holds the pixels of window r, 0 outside of
 * the image; first all of channel 0, row by row, as a convolution's weights (out, C, size, size) have
 * them. So a convolution is a product of out with its weights. planar: x is (B, C, H, W) of x_type,
 * F32 or type. */
struct dt_unfold_args {
    void *out;
    const void *x;
    struct dt_windows windows;
    bool planar;
    enum dt_dtype type, x_type;
};
/* The backward of unfold: each pixel of dx (B, H, W, C) is the sum of its copies in dout, row by row
 * of the window; added to with accumulate. */
struct dt_fold_args {
    void *dx;
    const void *dout;
    struct dt_windows windows;
    bool accumulate;
    enum dt_dtype type;
};
/* Convolutions (kernels/convolution.h) of x (B, H, W, C) with weights (out, C, size, size), as PyTorch
 * has them: y (B, out_height, out_width, out), and gradients by that of y, dy. planar: x is (B, C, H, W)
 * of x_type, F32 or type. work: dt_convolution_work bytes for this call; at_once:
 * dt_convolution_at_once. busy_sms as in dt_matmul_args. */
struct dt_convolution_args {
    void *y;
    const void *x, *weights;
    void *work;
    struct dt_windows windows;
    int64_t out, at_once;
    bool planar;
    enum dt_dtype type, x_type;
    int busy_sms;
};
/* dx = [dx +] the gradient of x, whose channels come last. */
struct dt_convolution_input_args {
    void *dx;
    const void *dy, *weights;
    void *work;
    struct dt_windows windows;
    int64_t out, at_once;
    bool accumulate;
    enum dt_dtype type;
    int busy_sms;
};
/* dweights = [dweights +] the gradient of the weights, of grad_type. */
struct dt_convolution_weights_args {
    void *dweights;
    const void *dy, *x;
    void *work;
    struct dt_windows windows;
    int64_t out, at_once;
    bool planar, accumulate;
    enum dt_dtype type, x_type, grad_type;
    int busy_sms;
};
/* y (B, out_height, out_width, C) = the largest value of each window; at: its number in the window,
 * the first one of equal values. Each window has a pixel of the image. */
struct dt_max_pool_args {
    void *y;
    uint8_t *at;
    const void *x;
    struct dt_windows windows;
    enum dt_dtype type;
};
struct dt_max_pool_backward_args {
    void *dx;
    const void *dy;
    const uint8_t *at;
    struct dt_windows windows;
    enum dt_dtype type;
};

/* Batch norm of x (rows, C) in steps, so that statistics and gradients of several ranks can meet in
 * between. Moments, statistics, running values and sums have dt_dtype_wide(type).
 *
 * batch_moments: moments (2 C + 1) = mean of each column, its sum of squared deviations, and the number
 * of rows. */
struct dt_batch_moments_args {
    void *moments;
    const void *x;
    int64_t row_count, col_count;
    enum dt_dtype type;
};
/* statistics (2 C + 1) = mean of each column, 1 / sqrt(variance + eps), and the number of rows, of
 * `parts` moments that follow each other; they are merged in order. If running_mean (C) is given,
 * running = (1 - momentum) running + momentum batch, where running_var takes the unbiased variance, and
 * *tracked += 1; without rows nothing changes. moments null: the statistics are the running ones. */
struct dt_batch_merge_args {
    void *statistics, *running_mean, *running_var, *tracked;
    const void *moments;
    int64_t parts, col_count;
    double eps, momentum;
    enum dt_dtype type;
};
/* y = (x - mean) * rstd * gamma + beta [+ residual]; with relu, 0 where that is negative. y may be x or
 * residual. */
struct dt_batch_norm_args {
    void *y;
    const void *x, *statistics, *gamma, *beta, *residual;
    int64_t row_count, col_count;
    bool relu;
    enum dt_dtype type;
};
/* The first step of backward. dz = dy, or 0 where y, the output of a ReLU, is not positive; dz may be
 * dy; y null: dz is dy and is not written. sums (2 C): of dz, and of dz * (x - mean), over the rows.
 * dgamma (C) = [dgamma +] the second sum * rstd, dbeta (C) = [dbeta +] the first one; may be null. */
struct dt_batch_norm_sums_args {
    void *dz, *sums, *dgamma, *dbeta;
    const void *dy, *y, *x, *statistics;
    int64_t row_count, col_count;
    bool accumulate;
    enum dt_dtype type, grad_type; /* grad_type: of dgamma, dbeta */
};
/* The second step: with sums a and b over the rows of all ranks, whose number n is in `statistics`,
 * dx = gamma * rstd * (dz - a / n - (x - mean) * rstd^2 * b / n). dx may be dz. */
struct dt_batch_norm_backward_args {
    void *dx;
    const void *dz, *x, *statistics, *sums, *gamma;
    int64_t row_count, col_count;
    enum dt_dtype type;
};

/* The loss of logits z (rows, cols) that are to be the numbers y (rows, cols). A row's loss is the
 * mean over its columns of
 *
 *   DT_LOSS_SQUARED  (z - y)^2, as torch.nn.MSELoss
 *   DT_LOSS_BINARY   max(z, 0) - z y + log(1 + exp(-|z|)), as torch.nn.BCEWithLogitsLoss
 *
 * A row whose first label is NaN has no target: its loss and gradient are 0. With with_grad, logits
 * become their gradient, times grad_scale. row_loss (rows) and *loss_sum are as in cross_entropy. */
enum dt_loss { DT_LOSS_SQUARED, DT_LOSS_BINARY };
struct dt_label_loss_args {
    void *logits;
    const float *labels;
    double *row_loss, *loss_sum;
    int64_t row_count, col_count;
    double grad_scale;
    enum dt_loss kind;
    bool with_grad;
    enum dt_dtype type;
};

/* An optimizer's step over slices of weights: one call, and on a GPU one launch, for all slices. g
 * = grad * (grad_scale * *clip), then at most clip_value either way if that is above 0, and `step` counts from 1. State in BF16 is updated in F32, then w
 * by that; then the state is rounded stochastically (kernels/stochastic.h), by bits that depend on
 * seed, step, unit and the element's number there. The rows:
 *
 *   adamw_many  as torch.optim.AdamW: w decays by lr * weight_decay. state: first and second moment; with a
 *               third one, the largest second moment so far, as with amsgrad
 *   adam_many   as torch.optim.Adam: weight_decay * w is added to g. state: as adamw_many
 *   sgd_many    as torch.optim.SGD: weight_decay * w is added to g. state: the momentum buffer,
 *               which is g on step 1; null: without momentum
 *   lion_many   Lion (Chen et al., 2023): w -= lr * (sign(beta1 m + (1 - beta1) g) + weight_decay
 *               w), then m = beta2 m + (1 - beta2) g. state: m
 *   adagrad_many  as torch.optim.Adagrad: weight_decay * w is added to g, lr is divided by 1 + (step
 *               - 1) lr_decay. state: the sum of squares, which is `initial` before step 1
 *   lamb_many   LAMB (You et al., 2019) up to its trust ratio: grad becomes the direction of adamw_many
 *               plus weight_decay * w, and w stays. state: first and second moment. What follows are
 *               norm_sum of w and of the direction, trust_ratio, and sgd_many with the ratio as clip
 *   muon_many   Muon (Jordan, 2024) up to the orthogonalisation: m = momentum m + (1 - momentum) g, grad
 *               becomes m, or with Nesterov's momentum, momentum m + (1 - momentum) g; w stays. state: m */
enum { DT_STATES_MAX = 3 };
struct dt_update_slice {
    void *w, *state[DT_STATES_MAX];
    void *w_low; /* where given, gets w rounded to low_type */
    const void *grad;
    int64_t count;
    double weight_decay;
    int64_t unit, first; /* where state_type is BF16: number of the unit; of the slice's first element in it */
};
struct dt_update_numbers { /* each row reads those of its formula */
    double beta1, beta2, eps, momentum, dampening, lr_decay, initial, min_coeff, max_coeff;
    bool nesterov, amsgrad;
    int uncorrected; /* of AdamW, Adam, LAMB. 1: the moments' bias towards 0 stays */
    /* Numbers of muon_many. rest_lr: the rate of tensors that go by AdamW, 0: the same; adjust: enum muon_adjust */
    int64_t ns_steps;
    double rest_lr;
    int adjust;
};
struct dt_update_args {
    const struct dt_update_slice *slices; /* read before the call returns */
    int slice_count;
    const double *clip;  /* device memory, or null for 1 */
    const int32_t *skip; /* device memory, or null: where it is not 0, nothing changes */
    int64_t step;
    double lr, grad_scale, clip_value;
    struct dt_update_numbers numbers;
    uint64_t seed; /* where state_type is BF16 */
    /* of w: F32, F64; or BF16, F16, which have no masters: w is rounded to the nearest even, so an update
     * below half of its last place is lost. The others count unless type is F64. */
    enum dt_dtype type;
    enum dt_dtype grad_type;  /* F32, BF16 or F16; no mixture of BF16 and F16 in w, w_low and grad */
    enum dt_dtype state_type; /* F32, or BF16 */
    enum dt_dtype low_type;   /* of w_low: BF16 or F16 */
};
/* The rows of optimizers share one struct, so that one pointer can stand for any of them. */
#define dt_adamw_many_args dt_update_args
#define dt_adam_many_args dt_update_args
#define dt_sgd_many_args dt_update_args
#define dt_lion_many_args dt_update_args
#define dt_adagrad_many_args dt_update_args
#define dt_lamb_many_args dt_update_args
#define dt_muon_many_args dt_update_args

/* Adds the squares of x to an exact accumulator (kernels/exact.h): fp64 sums of 64 elements in
 * fixed order, then integers. Slices begin at multiples of 64 of the flat unit. Clear the
 * accumulator first (fill, I64, DT_EXACT_LIMBS). all_reduce it as an I64 sum. */
struct dt_norm_sum_args {
    int64_t *limbs;
    const void *x;
    int64_t count;
    enum dt_dtype type;
};
/* norm = sqrt(sum) * scale; clip = min(1, max_norm / (norm + 1e-6)), 1 if max_norm <= 0; nonfinite
 * = 1 if a square was not finite (then norm is inf or nan and clip 0); factor = scale * clip. If
 * denominator is given, scale is divided by *denominator, or 0 if that is not positive. Any output may be
 * null. */
struct dt_norm_finish_args {
    double *norm, *clip, *factor;
    int32_t *nonfinite;
    const int64_t *limbs, *denominator;
    double scale, max_norm;
};
/* LAMB's ratios: ratio[i] = |w| / |u|, at least min_coeff and at most max_coeff; 1 if one of the norms is 0.
 * limbs: of tensor i the exact sum of the squares of w, then that of u. */
struct dt_trust_ratio_args {
    double *ratio;
    const int64_t *limbs; /* (count, 2, DT_EXACT_LIMBS) */
    int64_t count;
    double min_coeff, max_coeff;
};
/* Adds x (count), or x[i] / divisors[i] (0 if that divisor is 0), to an exact accumulator. It is
 * for losses, which rounding may put just below zero, so negative values count as 0. *bad_count +=
 * values that are not finite. One all_reduce then makes the same sum on every rank. */
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
    /* An optional shortcut: a product with its epilogue in one pass. False: the device cannot do
     * it, or not faster than in two passes, and nothing was done. Null: it never can. */
    bool (*matmul_epilogue)(struct dt_stream *s, const struct dt_matmul_args *a);
    /* Convolutions without unfolded images (kernels/convolution.h). False: not of this shape, and
     * nothing was done. Null: never. */
#define CONVOLUTION(name) bool (*name)(struct dt_stream * s, const struct dt_##name##_args *a);
#include "kernels/convolutions.def"
};

/* A product with its epilogue: by k's row matmul_epilogue, or in two passes. dt_matmul_parts:
 * always in two passes. */
void dt_matmul_epilogue(const struct dt_kernels *k, struct dt_stream *s, const struct dt_matmul_args *a);
void dt_matmul_parts(const struct dt_kernels *k, struct dt_stream *s, const struct dt_matmul_args *a);

/* The plain-C table for DT_F32, DT_F64, DT_BF16 or DT_F16; null for any other type. Those of 16 bits
 * also take F32 in scale, add, norm_sum and the optimizers. */
const struct dt_kernels *dt_kernels_twin(enum dt_dtype type);
/* The table of the CPU: DTRUN_CPU=plain|avx2|avx512, otherwise the best that this CPU can run.
 * DT_INVALID for one that it cannot run. */
const struct dt_kernels *dt_kernels_cpu(struct dt_error *err);
/* By name ("plain", "avx2", "avx512"); null if this CPU cannot run it. */
const struct dt_kernels *dt_kernels_cpu_named(const char *name);

/* For collectives on the CPU: the rows of the same names, run at once in the calling thread. */
void dt_cpu_sum_slices(const struct dt_sum_slices_args *a);
void dt_cpu_cast(const struct dt_cast_args *a);
/* For values of BF16 or F16, by the vectors of this CPU, with the same bits on all CPUs; out may be an
 * operand of its type. Sums are F32, and rounded once if they become 16 bits. */
struct dt_cpu_half {
    void (*widen)(float *out, const uint16_t *in, int64_t count);
    void (*narrow)(uint16_t *out, const float *in, int64_t count);
    void (*add)(uint16_t *out, const uint16_t *a, const uint16_t *b, int64_t count);
    void (*add_wide)(float *out, const uint16_t *a, const uint16_t *b, int64_t count);
};
const struct dt_cpu_half *dt_cpu_half(enum dt_dtype type);

#endif
