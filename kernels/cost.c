/* One function per kernel. A tensor that is updated in place or added to counts twice: it is read
 * and written. */
#include "kernels/cost.h"

#include "kernels/attention.h"

#include "kernels/exact.h"

static double size_of(enum dt_dtype type)
{
    return (double)dt_dtype_size(type);
}

/* Bytes of one element of a sum or gradient: its own type, where `type` has 16 bits. */
static double own_size(enum dt_dtype type, enum dt_dtype own)
{
    return size_of(dt_dtype_half(type) ? own : type);
}

/* Bytes of one element of statistics. */
static double wide_size(enum dt_dtype type)
{
    return size_of(dt_dtype_wide(type));
}

/* How often a result moves: once when it is overwritten, twice when it is added to. */
static double times(bool accumulate)
{
    return accumulate ? 2 : 1;
}

static struct dt_cost moved(double bytes)
{
    return (struct dt_cost){.bytes = bytes};
}

struct dt_cost dt_cost_fill(const struct dt_fill_args *a)
{
    return moved((double)a->count * size_of(a->type));
}

struct dt_cost dt_cost_cast(const struct dt_cast_args *a)
{
    return moved((double)a->count * (size_of(a->out_type) + size_of(a->in_type)));
}

struct dt_cost dt_cost_scale(const struct dt_scale_args *a)
{
    return moved(2.0 * (double)a->count * size_of(a->type));
}

struct dt_cost dt_cost_add(const struct dt_add_args *a)
{
    return moved((double)a->count * (2.0 * size_of(a->type) + size_of(a->type == DT_F32 ? a->b_type : a->type)));
}

struct dt_cost dt_cost_sum_slices(const struct dt_sum_slices_args *a)
{
    return moved((double)(a->in_count + 1) * (double)a->count * size_of(a->type));
}

struct dt_cost dt_cost_matmul(const struct dt_matmul_args *a)
{
    double m = (double)a->m, n = (double)a->n, k = (double)a->k, type = size_of(a->type);
    bool gelu = a->epilogue == DT_EPILOGUE_GELU, gelu_backward = a->epilogue == DT_EPILOGUE_GELU_BACKWARD;
    double bytes = (m * k + k * n) * type;
    if (!gelu || !a->aux_only) {
        bytes += m * n * own_size(a->type, a->c_type) * times(a->accumulate && !gelu_backward);
    }
    if (gelu || gelu_backward) {
        bytes += m * n * type;
    }
    if (a->bias != NULL) {
        bytes += n * type;
    }
    bool of_a = a->epilogue == DT_EPILOGUE_BIAS_BACKWARD_A;
    if (gelu_backward || of_a || a->epilogue == DT_EPILOGUE_BIAS_BACKWARD) {
        bytes += (of_a ? m : n) * own_size(a->type, a->grad_type) * times(a->accumulate);
    }
    return (struct dt_cost){.bytes = bytes, .flops = 2.0 * m * n * k};
}

struct dt_cost dt_cost_column_sum(const struct dt_column_sum_args *a)
{
    double cols = (double)a->col_count;
    return moved((double)a->row_count * cols * size_of(a->type) +
                 cols * own_size(a->type, a->grad_type) * times(a->accumulate));
}

struct dt_cost dt_cost_layernorm(const struct dt_layernorm_args *a)
{
    double rows = (double)a->row_count, cols = (double)a->col_count;
    double tensors = 2.0 + (a->branch != NULL) + (a->residual_out != NULL), vectors = 1.0 + (a->beta != NULL);
    return moved((tensors * rows * cols + vectors * cols) * size_of(a->type) + 2.0 * rows * wide_size(a->type));
}

struct dt_cost dt_cost_layernorm_backward(const struct dt_layernorm_backward_args *a)
{
    double rows = (double)a->row_count, cols = (double)a->col_count;
    double tensors = 3.0 + (a->dresidual != NULL),
           sums = times(a->accumulate) * ((a->dgamma != NULL) + (a->dbeta != NULL));
    return moved((tensors * rows * cols + cols) * size_of(a->type) + 2.0 * rows * wide_size(a->type) +
                 sums * cols * own_size(a->type, a->grad_type));
}

struct dt_cost dt_cost_rmsnorm(const struct dt_rmsnorm_args *a)
{
    double rows = (double)a->row_count, cols = (double)a->col_count;
    double tensors = 2.0 + (a->branch != NULL) + (a->residual_out != NULL);
    return moved((tensors * rows * cols + cols) * size_of(a->type) + rows * wide_size(a->type));
}

struct dt_cost dt_cost_rmsnorm_backward(const struct dt_rmsnorm_backward_args *a)
{
    double rows = (double)a->row_count, cols = (double)a->col_count;
    double tensors = 3.0 + (a->dresidual != NULL), sums = a->dweight != NULL ? times(a->accumulate) : 0;
    return moved((tensors * rows * cols + cols) * size_of(a->type) + rows * wide_size(a->type) +
                 sums * cols * own_size(a->type, a->grad_type));
}

struct dt_cost dt_cost_activation(const struct dt_activation_args *a)
{
    return moved(2.0 * (double)a->count * size_of(a->type));
}

struct dt_cost dt_cost_activation_backward(const struct dt_activation_backward_args *a)
{
    double sums = a->dbias != NULL ? (double)a->col_count * own_size(a->type, a->grad_type) * times(a->accumulate) : 0;
    return moved(3.0 * (double)a->count * size_of(a->type) + sums);
}

struct dt_cost dt_cost_gate(const struct dt_gate_args *a)
{
    return moved(3.0 * (double)a->row_count * (double)a->col_count * size_of(a->type));
}

struct dt_cost dt_cost_gate_backward(const struct dt_gate_backward_args *a)
{
    double tensors = 5.0 + (a->y != NULL);
    return moved(tensors * (double)a->row_count * (double)a->col_count * size_of(a->type));
}

struct dt_cost dt_cost_rope(const struct dt_rope_args *a)
{
    double rows = (double)a->row_count, positions = (double)(a->positions != NULL ? a->row_count : a->position_count);
    return moved(2.0 * rows * (double)(a->heads * a->width) * size_of(a->type) +
                 positions * (double)a->width * wide_size(a->type));
}

struct dt_cost dt_cost_dropout(const struct dt_dropout_args *a)
{
    return moved(2.0 * (double)a->row_count * (double)a->col_count * size_of(a->type));
}

/* Parts of attention's cost. wide: elements of q, and of each tensor of its size. narrow: elements
 * of k, and of v. product: operations of one product of shape (queries, keys). stats: bytes of lse. */
struct attention {
    double wide, narrow, product, stats;
};

/* Pairs of a query and a key of one batch entry and head that `causal` and `window` leave. Half of a
 * square counts as half of its pairs. */
static double pairs_of(const struct dt_attention_shape *s)
{
    double pairs = (double)s->queries * (double)s->keys, past = (double)(s->keys - s->queries);
    if (s->window > 0 && s->window < s->keys) {
        pairs = 0;
        for (int64_t i = s->keys - s->queries; i < s->keys; i++) {
            pairs += (double)(dt_attention_end(s, i) - dt_attention_first(s, i));
        }
    } else if (s->causal) {
        pairs = (double)s->queries * (past + (double)s->queries / 2.0);
    }
    return pairs;
}

static struct attention attention_of(const struct dt_attention_shape *shape)
{
    const struct dt_attention_shape s = dt_attention_filled(shape);
    double rows = (double)(s.batch * s.queries);
    return (struct attention){.wide = rows * (double)(s.heads * s.head_size),
                              .narrow = (double)(s.batch * s.keys) * (double)(s.kv_heads * s.head_size),
                              .product = 2.0 * (double)(s.batch * s.heads * s.head_size) * pairs_of(&s),
                              .stats = rows * (double)s.heads * wide_size(s.type)};
}

struct dt_cost dt_cost_attention(const struct dt_attention_args *a)
{
    struct attention n = attention_of(&a->shape);
    return (struct dt_cost){.bytes = (2.0 * n.wide + 2.0 * n.narrow) * size_of(a->shape.type) +
                                     (a->lse != NULL ? n.stats : 0.0),
                            .flops = 2.0 * n.product};
}

/* Reads q, k, v, out, dout and lse, writes dq, dk and dv, and computes the scores again. */
struct dt_cost dt_cost_attention_backward(const struct dt_attention_backward_args *a)
{
    struct attention n = attention_of(&a->shape);
    return (struct dt_cost){.bytes = (4.0 * n.wide + 4.0 * n.narrow) * size_of(a->shape.type) + n.stats,
                            .flops = 5.0 * n.product};
}

struct dt_cost dt_cost_embedding(const struct dt_embedding_args *a)
{
    double rows = (double)a->row_count, table = a->positions != NULL ? (double)a->position_count : 0;
    table += a->types != NULL ? 1.0 : 0.0;
    return moved((2.0 * rows + table) * (double)a->col_count * size_of(a->type) + rows * (double)sizeof *a->ids);
}

struct dt_cost dt_cost_embedding_backward(const struct dt_embedding_backward_args *a)
{
    double rows = (double)a->row_count, vocab = (double)a->vocab_count, cols = (double)a->col_count;
    double touched = rows < vocab ? rows : vocab;
    return moved(rows * cols * size_of(a->type) +
                 (a->accumulate ? 2.0 * touched : vocab) * cols * own_size(a->type, a->grad_type) +
                 rows * (double)sizeof *a->ids);
}

struct dt_cost dt_cost_position_backward(const struct dt_position_backward_args *a)
{
    double cols = (double)a->col_count,
           table = a->accumulate ? 2.0 * (double)a->position_count : (double)a->table_count;
    return moved((double)a->row_count * cols * size_of(a->type) + table * cols * own_size(a->type, a->grad_type));
}

/* Bytes of the masks of a mean. */
static double mask_size(const int32_t *mask, int64_t batch, int64_t positions)
{
    return mask != NULL ? (double)(batch * positions) * (double)sizeof *mask : 0;
}

struct dt_cost dt_cost_masked_mean(const struct dt_masked_mean_args *a)
{
    return moved((double)(a->batch * (a->positions + 1) * a->col_count) * size_of(a->type) +
                 mask_size(a->mask, a->batch, a->positions));
}

struct dt_cost dt_cost_masked_mean_backward(const struct dt_masked_mean_backward_args *a)
{
    return moved((double)(a->batch * (a->positions + 1) * a->col_count) * size_of(a->type) +
                 mask_size(a->mask, a->batch, a->positions));
}

struct dt_cost dt_cost_take_rows(const struct dt_take_rows_args *a)
{
    return moved(2.0 * (double)(a->row_count * a->col_count) * size_of(a->type));
}

struct dt_cost dt_cost_take_rows_backward(const struct dt_take_rows_backward_args *a)
{
    return moved((double)((a->row_count + a->source_count) * a->col_count) * size_of(a->type));
}

/* Elements of the images, and of what a window each gives. */
static double pixels(const struct dt_windows *w)
{
    return (double)w->batch * (double)w->height * (double)w->width * (double)w->channels;
}

static double outputs(const struct dt_windows *w)
{
    return (double)w->batch * (double)w->out_height * (double)w->out_width * (double)w->channels;
}

struct dt_cost dt_cost_unfold(const struct dt_unfold_args *a)
{
    double window = (double)(a->windows.size * a->windows.size);
    return moved(outputs(&a->windows) * window * size_of(a->type) + pixels(&a->windows) * size_of(a->x_type));
}

struct dt_cost dt_cost_fold(const struct dt_fold_args *a)
{
    double window = (double)(a->windows.size * a->windows.size);
    return moved((outputs(&a->windows) * window + pixels(&a->windows) * times(a->accumulate)) * size_of(a->type));
}

/* Values of a convolution's output, and of its weights. */
static double convolved(const struct dt_windows *w, int64_t out)
{
    return (double)w->batch * (double)w->out_height * (double)w->out_width * (double)out;
}

static double weights(const struct dt_windows *w, int64_t out)
{
    return (double)out * (double)w->channels * (double)(w->size * w->size);
}

/* Operations as a sum over windows takes them. */
static double convolution_flops(const struct dt_windows *w, int64_t out)
{
    return 2.0 * convolved(w, out) * (double)(w->channels * w->size * w->size);
}

struct dt_cost dt_cost_convolution(const struct dt_convolution_args *a)
{
    const struct dt_windows *w = &a->windows;
    double bytes = pixels(w) * size_of(a->x_type) + (convolved(w, a->out) + weights(w, a->out)) * size_of(a->type);
    return (struct dt_cost){.bytes = bytes, .flops = convolution_flops(w, a->out)};
}

struct dt_cost dt_cost_convolution_input(const struct dt_convolution_input_args *a)
{
    const struct dt_windows *w = &a->windows;
    double values = pixels(w) * times(a->accumulate) + convolved(w, a->out) + weights(w, a->out);
    return (struct dt_cost){.bytes = values * size_of(a->type), .flops = convolution_flops(w, a->out)};
}

struct dt_cost dt_cost_convolution_weights(const struct dt_convolution_weights_args *a)
{
    const struct dt_windows *w = &a->windows;
    double bytes = pixels(w) * size_of(a->x_type) + convolved(w, a->out) * size_of(a->type) +
                   weights(w, a->out) * own_size(a->type, a->grad_type) * times(a->accumulate);
    return (struct dt_cost){.bytes = bytes, .flops = convolution_flops(w, a->out)};
}

struct dt_cost dt_cost_max_pool(const struct dt_max_pool_args *a)
{
    return moved((pixels(&a->windows) + outputs(&a->windows)) * size_of(a->type) + outputs(&a->windows));
}

struct dt_cost dt_cost_max_pool_backward(const struct dt_max_pool_backward_args *a)
{
    return moved((pixels(&a->windows) + outputs(&a->windows)) * size_of(a->type) + outputs(&a->windows));
}

struct dt_cost dt_cost_batch_moments(const struct dt_batch_moments_args *a)
{
    double cols = (double)a->col_count;
    return moved((double)a->row_count * cols * size_of(a->type) + (2 * cols + 1) * wide_size(a->type));
}

struct dt_cost dt_cost_batch_merge(const struct dt_batch_merge_args *a)
{
    double cols = (double)a->col_count, parts = a->moments != NULL ? (double)a->parts : 0;
    double running = a->running_mean == NULL ? 0 : a->moments == NULL ? 2 * cols : 4 * cols + 2;
    return moved(((parts + 1) * (2 * cols + 1) + running) * wide_size(a->type));
}

struct dt_cost dt_cost_batch_norm(const struct dt_batch_norm_args *a)
{
    double cols = (double)a->col_count, tensors = 2.0 + (a->residual != NULL);
    return moved((tensors * (double)a->row_count * cols + 2 * cols) * size_of(a->type) + 2 * cols * wide_size(a->type));
}

struct dt_cost dt_cost_batch_norm_sums(const struct dt_batch_norm_sums_args *a)
{
    double cols = (double)a->col_count, tensors = a->y != NULL ? 4.0 : 2.0;
    double grads = times(a->accumulate) * ((a->dgamma != NULL) + (a->dbeta != NULL));
    return moved(tensors * (double)a->row_count * cols * size_of(a->type) + 4 * cols * wide_size(a->type) +
                 grads * cols * own_size(a->type, a->grad_type));
}

struct dt_cost dt_cost_batch_norm_backward(const struct dt_batch_norm_backward_args *a)
{
    double cols = (double)a->col_count;
    return moved((3 * (double)a->row_count * cols + cols) * size_of(a->type) + 4 * cols * wide_size(a->type));
}

struct dt_cost dt_cost_cross_entropy(const struct dt_cross_entropy_args *a)
{
    return moved(times(a->with_grad) * (double)a->row_count * (double)a->col_count * size_of(a->type));
}

struct dt_cost dt_cost_label_loss(const struct dt_label_loss_args *a)
{
    return moved((double)(a->row_count * a->col_count) * (times(a->with_grad) * size_of(a->type) + size_of(DT_F32)));
}

/* w and each state are read and written, the gradient is read, the low copy is written. */
static struct dt_cost update_cost(const struct dt_update_args *a)
{
    bool wide = a->type == DT_F64; /* the other types are not read */
    double grad = size_of(wide ? a->type : a->grad_type), state = size_of(wide ? a->type : a->state_type), bytes = 0;
    for (int i = 0; i < a->slice_count; i++) {
        const struct dt_update_slice *s = &a->slices[i];
        int states = 0;
        for (int k = 0; k < DT_STATES_MAX; k++) {
            states += s->state[k] != NULL;
        }
        double copy = s->w_low != NULL ? size_of(a->low_type) : 0;
        bytes += (double)s->count * (2.0 * size_of(a->type) + 2.0 * states * state + copy + grad);
    }
    return moved(bytes);
}

struct dt_cost dt_cost_adamw_many(const struct dt_update_args *a)
{
    return update_cost(a);
}

struct dt_cost dt_cost_adam_many(const struct dt_update_args *a)
{
    return update_cost(a);
}

struct dt_cost dt_cost_sgd_many(const struct dt_update_args *a)
{
    return update_cost(a);
}

struct dt_cost dt_cost_lion_many(const struct dt_update_args *a)
{
    return update_cost(a);
}

struct dt_cost dt_cost_adagrad_many(const struct dt_update_args *a)
{
    return update_cost(a);
}

/* w is read alone, the gradient is written, too. */
static struct dt_cost direction_cost(const struct dt_update_args *a)
{
    double bytes = 0, w = size_of(a->type), grad = a->type == DT_F32 ? size_of(a->grad_type) : w;
    for (int i = 0; i < a->slice_count; i++) {
        bytes += (double)a->slices[i].count * (grad - w);
    }
    struct dt_cost x = update_cost(a);
    x.bytes += bytes;
    return x;
}

struct dt_cost dt_cost_lamb_many(const struct dt_update_args *a)
{
    return direction_cost(a);
}

struct dt_cost dt_cost_muon_many(const struct dt_update_args *a)
{
    return direction_cost(a);
}

struct dt_cost dt_cost_norm_sum(const struct dt_norm_sum_args *a)
{
    return moved((double)a->count * size_of(a->type));
}

struct dt_cost dt_cost_norm_finish(const struct dt_norm_finish_args *a)
{
    double out = (double)((a->norm != NULL) + (a->clip != NULL) + (a->factor != NULL));
    return moved((DT_EXACT_LIMBS + out) * sizeof(double));
}

struct dt_cost dt_cost_trust_ratio(const struct dt_trust_ratio_args *a)
{
    return moved((double)a->count * (2 * DT_EXACT_LIMBS + 1) * sizeof(double));
}

struct dt_cost dt_cost_exact_sum(const struct dt_exact_sum_args *a)
{
    return moved((double)a->count * (double)(sizeof *a->x + (a->divisors != NULL ? sizeof *a->divisors : 0)));
}
