/* The last block: residual sum, final norm, logits with the embedding's table (tied), loss.
 * Training does all of it in backward, by chunks of rows: logits, loss, gradient in place, dX
 * and dW of the chunk; the full logits never exist. Chunks are as large as CHUNK_BYTES allows: each of them reads the whole (V, C) table
 * twice and adds to its gradient, which costs more than staying in a cache gains (V 50257, C
 * 384, 1024 rows: a step takes 2.67 s with chunks of 64 rows, 2.33 s with 256, 2.14 s with 512).
 * On a GPU chunks are of 8192 rows, whole waves of a product, within 1 GiB; and a row of logits
 * begins at a multiple of 64 elements, so that products of a vocabulary such as 50257 are read
 * and written 16 bytes at a time. Letters: R = B * T rows, C channels, V vocabulary, P the
 * elements from row to row of logits. */
#include "worker/model/blocks/blocks.h"

enum { LNF_W, LNF_B, WTE };
enum {
    CHUNK_BYTES = 128 << 20,
    CHUNK_ROWS_LEAST = 64,
    GPU_CHUNK_BYTES = 1 << 30,
    GPU_CHUNK_ROWS = 8192,
    GPU_ROWS = 256 /* a chunk is a multiple of it */
};

/* Its memory, in the order of its declaration: the sum of the pair (R, C); the norm's output, then
 * its gradient, chunk by chunk (R, C); logits (chunk, P); mean and 1/deviation (R); losses of rows
 * (chunk). */
enum { SUM, NORM, LOGITS, MEAN, RSTD, ROW_LOSS };

static int64_t pitch(const struct block *b)
{
    const struct gpt_shape *m = b->args;
    return b->spec->own_memory ? (m->vocabulary + 63) / 64 * 64 : m->vocabulary;
}

/* Rows per chunk: a multiple of 64 (on a GPU 256) that divides the rows evenly; a function of
 * the shape alone. */
static int64_t chunk_rows(const struct block *b, int64_t rows)
{
    int64_t step = b->spec->own_memory ? GPU_ROWS : CHUNK_ROWS_LEAST,
            bytes = b->spec->own_memory ? GPU_CHUNK_BYTES : CHUNK_BYTES;
    int64_t most = bytes / (pitch(b) * (int64_t)dt_dtype_size(b->spec->type)) / step * step;
    most = b->spec->own_memory && most > GPU_CHUNK_ROWS ? GPU_CHUNK_ROWS : most;
    most = most < step ? step : most;
    int64_t count = (rows + most - 1) / most;
    int64_t even = ((rows + count - 1) / count + step - 1) / step * step;
    return even < rows ? even : rows;
}

static int declare(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct gpt_shape *m = b->args;
    enum dt_dtype type = b->spec->type, wide = dt_dtype_wide(type);
    int64_t rows = most_rows(b), chunk = chunk_rows(b, rows);
    const struct tensor_rule one = {.init = INIT_ONE}, zero = {.init = INIT_ZERO},
                             table = {.init = INIT_NORMAL, .init_std = m->init_std};
    block_tensor(b, "transformer.ln_f.weight", (int64_t[]){m->channels}, 1, &one);
    block_tensor(b, "transformer.ln_f.bias", (int64_t[]){m->channels}, 1, &zero);
    block_tensor(b, "transformer.wte.weight", (int64_t[]){m->vocabulary, m->channels}, 2, &table);
    block_memory(b, "sum", LIFE_BACKWARD, RECOMPUTE_NEVER, rows * m->channels, type);
    block_memory(b, "norm", LIFE_CALL, 0, rows * m->channels, type);
    block_memory(b, "logits", LIFE_CALL, 0, chunk * pitch(b), type);
    block_memory(b, "mean", LIFE_CALL, 0, rows, wide);
    block_memory(b, "rstd", LIFE_CALL, 0, rows, wide);
    block_memory(b, "row losses", LIFE_CALL, 0, chunk, DT_F64);
    (void)block_field(b, "labels");
    b->in = stream_flow(b, m->channels, true);
    return 0;
}

static const int32_t *labels_of(const struct pass *p)
{
    return p->batch->at[batch_find(p->batch->layout, "labels")];
}

/* The norm of the pair's sum, which is kept. */
static void norm(const struct block *b, const struct pass *p)
{
    const struct gpt_shape *m = b->args;
    p->kernels->layernorm(p->stream, &(struct dt_layernorm_args){.y = pass_memory(b, p, NORM),
                                                                 .residual_out = pass_memory(b, p, SUM),
                                                                 .mean = pass_memory(b, p, MEAN),
                                                                 .rstd = pass_memory(b, p, RSTD),
                                                                 .residual = p->x,
                                                                 .branch = p->x_branch,
                                                                 .gamma = pass_weight(b, p, LNF_W),
                                                                 .beta = pass_weight(b, p, LNF_B),
                                                                 .row_count = row_count(p),
                                                                 .col_count = m->channels,
                                                                 .eps = m->norm_epsilon,
                                                                 .type = b->spec->type});
}

/* Row `row` of the norm's output. */
static void *norm_at(const struct block *b, const struct pass *p, int64_t row)
{
    const struct gpt_shape *m = b->args;
    return (char *)pass_memory(b, p, NORM) + row * m->channels * (int64_t)dt_dtype_size(b->spec->type);
}

/* Logits and loss of `count` rows from `first` on; logits become their gradient when training. */
static void loss(const struct block *b, const struct pass *p, int64_t first, int64_t count, bool with_grad)
{
    const struct gpt_shape *m = b->args;
    const void *x = norm_at(b, p, first);
    p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = pass_memory(b, p, LOGITS),
                                                           .a = x,
                                                           .b = pass_weight(b, p, WTE),
                                                           .m = count,
                                                           .n = m->vocabulary,
                                                           .k = m->channels,
                                                           .ldc = pitch(b),
                                                           .b_transposed = true,
                                                           .type = b->spec->type,
                                                           .c_type = b->spec->type,
                                                           .busy_sms = p->busy_sms});
    p->kernels->cross_entropy(p->stream, &(struct dt_cross_entropy_args){.logits = pass_memory(b, p, LOGITS),
                                                                         .targets = labels_of(p) + first,
                                                                         .row_loss = pass_memory(b, p, ROW_LOSS),
                                                                         .loss_sum = p->loss_sum,
                                                                         .row_count = count,
                                                                         .col_count = m->vocabulary,
                                                                         .ld = pitch(b),
                                                                         .grad_scale = p->loss_scale,
                                                                         .with_grad = with_grad,
                                                                         .type = b->spec->type});
}

static void forward(const struct block *b, const struct pass *p)
{
    const struct gpt_shape *m = b->args;
    int64_t rows = row_count(p), chunk = chunk_rows(b, rows);
    norm(b, p);
    if (p->logits != NULL) {
        const void *x = norm_at(b, p, p->logits_row);
        p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = p->logits,
                                                               .a = x,
                                                               .b = pass_weight(b, p, WTE),
                                                               .m = 1,
                                                               .n = m->vocabulary,
                                                               .k = m->channels,
                                                               .b_transposed = true,
                                                               .type = b->spec->type,
                                                               .c_type = b->spec->type,
                                                               .busy_sms = p->busy_sms});
        return;
    }
    for (int64_t first = 0; first < rows; first += chunk) {
        loss(b, p, first, chunk < rows - first ? chunk : rows - first, false);
    }
}

static void backward(const struct block *b, const struct pass *p)
{
    const struct gpt_shape *m = b->args;
    int64_t rows = row_count(p), chunk = chunk_rows(b, rows);
    norm(b, p);
    for (int64_t first = 0; first < rows; first += chunk) {
        int64_t count = chunk < rows - first ? chunk : rows - first;
        void *x = norm_at(b, p, first);
        loss(b, p, first, count, true);
        p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = pass_grad(b, p, WTE),
                                                               .a = pass_memory(b, p, LOGITS),
                                                               .b = x,
                                                               .m = m->vocabulary,
                                                               .n = m->channels,
                                                               .k = count,
                                                               .lda = pitch(b),
                                                               .a_transposed = true,
                                                               .accumulate = pass_adds(b, p, WTE) || first > 0,
                                                               .type = b->spec->type,
                                                               .c_type = pass_grad_type(b, p),
                                                               .busy_sms = p->busy_sms});
        p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = x,
                                                               .a = pass_memory(b, p, LOGITS),
                                                               .b = pass_weight(b, p, WTE),
                                                               .m = count,
                                                               .n = m->channels,
                                                               .k = m->vocabulary,
                                                               .lda = pitch(b),
                                                               .type = b->spec->type,
                                                               .c_type = b->spec->type,
                                                               .busy_sms = p->busy_sms});
    }
    p->kernels->layernorm_backward(p->stream, &(struct dt_layernorm_backward_args){.dx = p->dx,
                                                                                   .dgamma = pass_grad(b, p, LNF_W),
                                                                                   .dbeta = pass_grad(b, p, LNF_B),
                                                                                   .dy = pass_memory(b, p, NORM),
                                                                                   .x = pass_memory(b, p, SUM),
                                                                                   .gamma = pass_weight(b, p, LNF_W),
                                                                                   .mean = pass_memory(b, p, MEAN),
                                                                                   .rstd = pass_memory(b, p, RSTD),
                                                                                   .row_count = rows,
                                                                                   .col_count = m->channels,
                                                                                   .accumulate = pass_adds(b, p, LNF_W),
                                                                                   .type = b->spec->type,
                                                                                   .grad_type = pass_grad_type(b, p)});
}

const struct block_ops block_lm_head = {
    .name = "lm_head", .declare = declare, .forward = forward, .backward = backward};
