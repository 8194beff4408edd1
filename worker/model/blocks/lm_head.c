/* The last block: residual sum, final norm, logits with the embedding's table (tied), loss.
 * Training does all of it in backward, by chunks of rows: logits, loss, gradient in place, dX
 * and dW of the chunk; the full logits never exist. Its PASS_FORWARD only keeps the sum of the
 * pair. Chunks are as large as CHUNK_BYTES allows: each of them reads the whole (V, C) table
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

struct scratch {
    void *norm;        /* (R, C): the norm's output, then its gradient, chunk by chunk */
    void *logits;      /* (chunk, P) */
    void *mean, *rstd; /* (R) */
    double *row_loss;  /* (chunk) */
};

static int64_t pitch(const struct model_spec *m)
{
    return m->own_memory ? (m->vocabulary + 63) / 64 * 64 : m->vocabulary;
}

/* Rows per chunk: a multiple of 64 (on a GPU 256) that divides the rows evenly; a function of
 * the shape alone. */
static int64_t chunk_rows(const struct model_spec *m, int64_t rows)
{
    int64_t step = m->own_memory ? GPU_ROWS : CHUNK_ROWS_LEAST, bytes = m->own_memory ? GPU_CHUNK_BYTES : CHUNK_BYTES;
    int64_t most = bytes / (pitch(m) * (int64_t)dt_dtype_size(m->type)) / step * step;
    most = m->own_memory && most > GPU_CHUNK_ROWS ? GPU_CHUNK_ROWS : most;
    most = most < step ? step : most;
    int64_t count = (rows + most - 1) / most;
    int64_t even = ((rows + count - 1) / count + step - 1) / step * step;
    return even < rows ? even : rows;
}

static size_t cut_scratch(const struct model_spec *m, int64_t rows, void *base, struct scratch *out)
{
    struct cutter c = {.base = base};
    size_t e = dt_dtype_size(m->type);
    int64_t chunk = chunk_rows(m, rows);
    out->norm = cut(&c, rows * m->channels, e);
    out->logits = cut(&c, chunk * pitch(m), e);
    out->mean = cut(&c, rows, dt_dtype_size(dt_dtype_wide(m->type)));
    out->rstd = cut(&c, rows, dt_dtype_size(dt_dtype_wide(m->type)));
    out->row_loss = cut(&c, chunk, sizeof(double));
    return c.used;
}

static int declare(struct block *b, const struct model_spec *m, struct dt_error *err)
{
    (void)err;
    block_tensor(b, "transformer.ln_f.weight", (int64_t[]){m->channels}, 1, INIT_ONE, 0);
    block_tensor(b, "transformer.ln_f.bias", (int64_t[]){m->channels}, 1, INIT_ZERO, 0);
    block_tensor(b, "transformer.wte.weight", (int64_t[]){m->vocabulary, m->channels}, 2, INIT_NORMAL, m->init_std);
    int64_t rows = m->batch_size * m->sequence_length;
    struct scratch scratch;
    b->kept_bytes = ((size_t)(rows * m->channels) * dt_dtype_size(m->type) + 63) / 64 * 64;
    b->scratch_bytes = cut_scratch(m, rows, NULL, &scratch);
    return 0;
}

static int64_t row_count(const struct pass *p)
{
    return p->batch->batch_size * p->batch->sequence_length;
}

/* scratch.norm = norm of the sum; the sum goes to (or comes from) kept. */
static void norm(const struct block *b, const struct pass *p, const struct scratch *s)
{
    const struct model_spec *m = b->spec;
    bool given = p->x_residual != NULL;
    p->kernels->layernorm(p->stream, &(struct dt_layernorm_args){.y = s->norm,
                                                                 .residual_out = given ? p->kept : NULL,
                                                                 .mean = s->mean,
                                                                 .rstd = s->rstd,
                                                                 .residual = given ? p->x_residual : p->kept,
                                                                 .branch = given ? p->x_branch : NULL,
                                                                 .gamma = block_at(b, p->weights, LNF_W, m->type),
                                                                 .beta = block_at(b, p->weights, LNF_B, m->type),
                                                                 .row_count = row_count(p),
                                                                 .col_count = m->channels,
                                                                 .eps = m->norm_epsilon,
                                                                 .type = m->type});
}

/* Logits and loss of `count` rows from `first` on; logits become their gradient when training. */
static void loss(const struct block *b, const struct pass *p, const struct scratch *s, int64_t first, int64_t count,
                 bool with_grad)
{
    const struct model_spec *m = b->spec;
    const void *x = (const char *)s->norm + first * m->channels * (int64_t)dt_dtype_size(m->type);
    p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = s->logits,
                                                           .a = x,
                                                           .b = block_at(b, p->weights, WTE, m->type),
                                                           .m = count,
                                                           .n = m->vocabulary,
                                                           .k = m->channels,
                                                           .ldc = pitch(m),
                                                           .b_transposed = true,
                                                           .type = m->type,
                                                           .c_type = m->type,
                                                           .busy_sms = p->busy_sms});
    p->kernels->cross_entropy(p->stream, &(struct dt_cross_entropy_args){.logits = s->logits,
                                                                         .targets = p->batch->labels + first,
                                                                         .row_loss = s->row_loss,
                                                                         .loss_sum = p->loss_sum,
                                                                         .row_count = count,
                                                                         .col_count = m->vocabulary,
                                                                         .ld = pitch(m),
                                                                         .grad_scale = p->loss_scale,
                                                                         .with_grad = with_grad,
                                                                         .type = m->type});
}

static void forward(const struct block *b, const struct pass *p)
{
    if (p->phase == PASS_RECOMPUTE) {
        return;
    }
    const struct model_spec *m = b->spec;
    int64_t rows = row_count(p), chunk = chunk_rows(m, rows);
    struct scratch s;
    (void)cut_scratch(m, rows, p->scratch, &s);
    norm(b, p, &s);
    if (p->phase == PASS_EVAL && p->logits != NULL) {
        const void *x = (const char *)s.norm + p->logits_row * m->channels * (int64_t)dt_dtype_size(m->type);
        p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = p->logits,
                                                               .a = x,
                                                               .b = block_at(b, p->weights, WTE, m->type),
                                                               .m = 1,
                                                               .n = m->vocabulary,
                                                               .k = m->channels,
                                                               .b_transposed = true,
                                                               .type = m->type,
                                                               .c_type = m->type,
                                                               .busy_sms = p->busy_sms});
        return;
    }
    for (int64_t first = 0; p->phase == PASS_EVAL && first < rows; first += chunk) {
        loss(b, p, &s, first, chunk < rows - first ? chunk : rows - first, false);
    }
}

static void backward(const struct block *b, const struct pass *p)
{
    const struct model_spec *m = b->spec;
    int64_t rows = row_count(p), chunk = chunk_rows(m, rows);
    struct scratch s;
    (void)cut_scratch(m, rows, p->scratch, &s);
    norm(b, p, &s);
    for (int64_t first = 0; first < rows; first += chunk) {
        int64_t count = chunk < rows - first ? chunk : rows - first;
        void *x = (char *)s.norm + first * m->channels * (int64_t)dt_dtype_size(m->type);
        loss(b, p, &s, first, count, true);
        p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = block_at(b, p->grads, WTE, grad_type(b, p)),
                                                               .a = s.logits,
                                                               .b = x,
                                                               .m = m->vocabulary,
                                                               .n = m->channels,
                                                               .k = count,
                                                               .lda = pitch(m),
                                                               .a_transposed = true,
                                                               .accumulate = p->accumulate || b->adds[WTE] || first > 0,
                                                               .type = m->type,
                                                               .c_type = grad_type(b, p),
                                                               .busy_sms = p->busy_sms});
        p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = x,
                                                               .a = s.logits,
                                                               .b = block_at(b, p->weights, WTE, m->type),
                                                               .m = count,
                                                               .n = m->channels,
                                                               .k = m->vocabulary,
                                                               .lda = pitch(m),
                                                               .type = m->type,
                                                               .c_type = m->type,
                                                               .busy_sms = p->busy_sms});
    }
    p->kernels->layernorm_backward(
        p->stream, &(struct dt_layernorm_backward_args){.dx = p->dx,
                                                        .dgamma = block_at(b, p->grads, LNF_W, grad_type(b, p)),
                                                        .dbeta = block_at(b, p->grads, LNF_B, grad_type(b, p)),
                                                        .dy = s.norm,
                                                        .x = p->kept,
                                                        .gamma = block_at(b, p->weights, LNF_W, m->type),
                                                        .mean = s.mean,
                                                        .rstd = s.rstd,
                                                        .row_count = rows,
                                                        .col_count = m->channels,
                                                        .accumulate = p->accumulate || b->adds[LNF_W],
                                                        .type = m->type,
                                                        .grad_type = grad_type(b, p)});
}

const struct block_ops block_lm_head = {
    .name = "lm_head", .declare = declare, .forward = forward, .backward = backward};
