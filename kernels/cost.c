/* One function per kernel. What is read and written in place moves twice; what is added to, too. */
#include "kernels/cost.h"

#include "kernels/exact.h"

static double size_of(enum dt_dtype type)
{
    return (double)dt_dtype_size(type);
}

/* Of what has a type of its own where `type` is BF16: sums, gradients. */
static double own_size(enum dt_dtype type, enum dt_dtype own)
{
    return size_of(type == DT_BF16 ? own : type);
}

/* Of means and the like. */
static double wide_size(enum dt_dtype type)
{
    return size_of(dt_dtype_wide(type));
}

/* Of what is overwritten, or added to. */
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
    if (gelu_backward || a->epilogue == DT_EPILOGUE_BIAS_BACKWARD) {
        bytes += n * own_size(a->type, a->grad_type) * times(a->accumulate);
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
    double tensors = 2.0 + (a->branch != NULL) + (a->residual_out != NULL);
    return moved((tensors * rows * cols + 2.0 * cols) * size_of(a->type) + 2.0 * rows * wide_size(a->type));
}

struct dt_cost dt_cost_layernorm_backward(const struct dt_layernorm_backward_args *a)
{
    double rows = (double)a->row_count, cols = (double)a->col_count;
    double tensors = 3.0 + (a->dresidual != NULL), sums = a->dgamma != NULL ? 2.0 * times(a->accumulate) : 0;
    return moved((tensors * rows * cols + cols) * size_of(a->type) + 2.0 * rows * wide_size(a->type) +
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

/* Of attention: `rows` times all its heads, of q and what is as large; of k and of v; operations
 * of one product of (T, T). */
struct attention {
    double rows, wide, narrow, product;
};

static struct attention attention_of(int64_t batch, int64_t positions, int64_t heads, int64_t kv_heads,
                                     int64_t head_size, bool causal)
{
    struct attention n = {.rows = (double)(batch * positions)};
    n.wide = n.rows * (double)(heads * head_size);
    n.narrow = n.rows * (double)((kv_heads > 0 ? kv_heads : heads) * head_size);
    n.product = (causal ? 1.0 : 2.0) * n.wide * (double)positions; /* causal: half of each square */
    return n;
}

struct dt_cost dt_cost_attention(const struct dt_attention_args *a)
{
    struct attention n = attention_of(a->batch, a->positions, a->heads, a->kv_heads, a->head_size, a->causal);
    return (struct dt_cost){.bytes = (2.0 * n.wide + 2.0 * n.narrow) * size_of(a->type) +
                                     n.rows * (double)a->heads * wide_size(a->type),
                            .flops = 2.0 * n.product};
}

/* Reads qkv, out, dout and lse, writes dqkv; the scores are made again. */
struct dt_cost dt_cost_attention_backward(const struct dt_attention_backward_args *a)
{
    struct attention n = attention_of(a->batch, a->positions, a->heads, a->kv_heads, a->head_size, a->causal);
    return (struct dt_cost){.bytes = (4.0 * n.wide + 4.0 * n.narrow) * size_of(a->type) +
                                     n.rows * (double)a->heads * wide_size(a->type),
                            .flops = 5.0 * n.product};
}

struct dt_cost dt_cost_embedding(const struct dt_embedding_args *a)
{
    double rows = (double)a->row_count, table = a->positions != NULL ? (double)a->position_count : 0;
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

struct dt_cost dt_cost_cross_entropy(const struct dt_cross_entropy_args *a)
{
    return moved(times(a->with_grad) * (double)a->row_count * (double)a->col_count * size_of(a->type));
}

static double optimizer_grad_size(enum dt_dtype type, enum dt_dtype grad_type)
{
    return size_of(type == DT_F32 ? grad_type : type);
}

struct dt_cost dt_cost_adamw(const struct dt_adamw_args *a)
{
    double copy = a->w_bf16 != NULL ? size_of(DT_BF16) : 0;
    double moments = 4.0 * size_of(a->type == DT_F32 ? a->moment_type : a->type);
    return moved((double)a->count *
                 (2.0 * size_of(a->type) + moments + copy + optimizer_grad_size(a->type, a->grad_type)));
}

struct dt_cost dt_cost_adamw_many(const struct dt_adamw_many_args *a)
{
    struct dt_adamw_args all = a->count > 0 ? a->each[0] : (struct dt_adamw_args){.count = 0};
    for (int i = 1; i < a->count; i++) {
        all.count += a->each[i].count;
    }
    return dt_cost_adamw(&all);
}

struct dt_cost dt_cost_sgd(const struct dt_sgd_args *a)
{
    double copy = a->w_bf16 != NULL ? size_of(DT_BF16) : 0, states = a->momentum_buffer != NULL ? 4.0 : 2.0;
    return moved((double)a->count * (states * size_of(a->type) + copy + optimizer_grad_size(a->type, a->grad_type)));
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

struct dt_cost dt_cost_exact_sum(const struct dt_exact_sum_args *a)
{
    return moved((double)a->count * (double)(sizeof *a->x + (a->divisors != NULL ? sizeof *a->divisors : 0)));
}
