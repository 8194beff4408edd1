/* The last block: residual sum, final norm, logits by a table (the embedding's, or its own), loss. In
 * training, backward does all of it in chunks of rows: logits, loss, gradient in place, dX and dW
 * of the chunk. So the full logits never exist.
 *
 * Chunks are as large as CHUNK_BYTES allows. Each chunk reads the whole (V, C) table twice and adds
 * to its gradient, which costs more than smaller chunks gain by staying in a cache (V 50257, C 384,
 * 1024 rows: a step takes 2.67 s with chunks of 64 rows, 2.33 s with 256, 2.14 s with 512). On a
 * GPU chunks have 8192 rows, whole waves of a product, within 1 GiB, or a quarter of all rows within
 * 4 GiB if that is more: so the table's gradient is added up, and rounded, four times at most, and
 * the logits stay a small part of what the layers keep of as many rows. A row of logits begins at a
 * multiple of 64 elements there, so that products of a vocabulary like 50257 read and write 16
 * bytes at a time.
 *
 * Letters: R = B * T rows, C channels, V vocabulary, P elements from one row of logits to the
 * next. */
#include "worker/model/blocks/blocks.h"

/* Then the table and the logits' bias, whose numbers depend on what is there (table_of, bias_of). */
enum { NORM_W, NORM_B };
enum {
    CHUNK_BYTES = 128 << 20,
    CHUNK_ROWS_LEAST = 64,
    GPU_CHUNK_BYTES = 1 << 30,
    GPU_CHUNK_ROWS = 8192,
    GPU_CHUNKS = 4, /* of many rows, within GPU_CHUNKS * GPU_CHUNK_BYTES */
    GPU_ROWS = 256  /* a chunk is a multiple of this */
};

/* Memory in the order of its declaration: the sum of the pair (R, C); the norm's output, replaced
 * by its gradient chunk by chunk (R, C); logits (chunk, P); mean and 1/deviation (R); losses of
 * rows (chunk); the sum of a chunk's gradients (P), for a bias. */
enum { SUM, NORM, LOGITS, MEAN, RSTD, ROW_LOSS, BIAS_SUM };

static bool is_rms(const struct block *b)
{
    const struct lm_head *m = b->args;
    return m->norm_bias == NULL && !m->centred;
}

static int table_of(const struct block *b)
{
    const struct lm_head *m = b->args;
    return m->norm_bias != NULL ? NORM_B + 1 : NORM_B;
}

static int bias_of(const struct block *b)
{
    return table_of(b) + 1;
}

static int64_t pitch(const struct block *b)
{
    const struct lm_head *m = b->args;
    return b->spec->own_memory ? (m->vocabulary + 63) / 64 * 64 : m->vocabulary;
}

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* Rows of a chunk that divides `rows` evenly: a multiple of 64 (on a GPU 256). A function of the shape
 * alone. */
static int64_t even_rows(const struct block *b, int64_t rows)
{
    bool gpu = b->spec->own_memory;
    int64_t step = gpu ? GPU_ROWS : CHUNK_ROWS_LEAST, row_bytes = pitch(b) * (int64_t)dt_dtype_size(b->spec->type);
    int64_t most = (gpu ? GPU_CHUNK_BYTES : CHUNK_BYTES) / row_bytes;
    if (gpu) {
        int64_t part =
            least((rows / GPU_CHUNKS + step - 1) / step * step, (int64_t)GPU_CHUNKS * GPU_CHUNK_BYTES / row_bytes);
        most = least(most, GPU_CHUNK_ROWS);
        most = part > most ? part : most;
    }
    most = most < step ? step : most / step * step;
    int64_t count = (rows + most - 1) / most;
    return least(((rows + count - 1) / count + step - 1) / step * step, rows);
}

/* Rows per chunk of a pass over `rows`: never more than a full batch has, whose chunk is the room. */
static int64_t chunk_rows(const struct block *b, int64_t rows)
{
    return least(even_rows(b, rows), even_rows(b, most_rows(b)));
}

static int declare(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct lm_head *m = b->args;
    enum dt_dtype type = b->spec->type, wide = dt_dtype_wide(type);
    int64_t rows = most_rows(b), chunk = chunk_rows(b, rows);
    const struct tensor_rule one = {.init = m->weight_offset != 0 ? INIT_ZERO : INIT_ONE}, zero = {.init = INIT_ZERO},
                             spare = {.role = ROLE_BUFFER, .init = INIT_ZERO};
    block_tensor(b, m->norm_weight, &m->channels, 1, &one);
    if (m->norm_bias != NULL) {
        block_tensor(b, m->norm_bias, &m->channels, 1, &zero);
    }
    block_tensor(b, m->table, (int64_t[]){m->vocabulary, m->channels}, 2, &m->rule);
    if (m->bias != NULL) {
        block_tensor(b, m->bias, &m->vocabulary, 1, &zero);
    }
    if (m->spare_bias != NULL) {
        block_tensor(b, m->spare_bias, &m->vocabulary, 1, &spare);
    }
    block_memory(b, "sum", LIFE_BACKWARD, RECOMPUTE_NEVER, rows * m->channels, type);
    block_memory(b, "norm", LIFE_CALL, 0, rows * m->channels, type);
    block_memory(b, "logits", LIFE_CALL, 0, chunk * pitch(b), type);
    block_memory(b, "mean", LIFE_CALL, 0, is_rms(b) ? 0 : rows, wide);
    block_memory(b, "rstd", LIFE_CALL, 0, rows, wide);
    block_memory(b, "row losses", LIFE_CALL, 0, chunk, DT_F64);
    block_memory(b, "bias sum", LIFE_CALL, 0, m->bias != NULL ? pitch(b) : 0, wide);
    (void)block_field(b, "labels");
    b->in = stream_flow(b, m->channels, true);
    return 0;
}

static const int32_t *labels_of(const struct pass *p)
{
    return p->batch->at[batch_find(p->batch->layout, "labels")];
}

/* The norm of the pair's sum; the sum is kept for backward. */
static void norm(const struct block *b, const struct pass *p)
{
    const struct lm_head *m = b->args;
    if (is_rms(b)) {
        p->kernels->rmsnorm(p->stream, &(struct dt_rmsnorm_args){.y = pass_memory(b, p, NORM),
                                                                 .residual_out = pass_memory(b, p, SUM),
                                                                 .rstd = pass_memory(b, p, RSTD),
                                                                 .residual = p->x,
                                                                 .branch = p->x_branch,
                                                                 .weight = pass_weight(b, p, NORM_W),
                                                                 .row_count = row_count(p),
                                                                 .col_count = m->channels,
                                                                 .eps = m->norm_epsilon,
                                                                 .branch_scale = m->branch_scale,
                                                                 .weight_offset = m->weight_offset,
                                                                 .type = b->spec->type});
        return;
    }
    p->kernels->layernorm(p->stream,
                          &(struct dt_layernorm_args){.y = pass_memory(b, p, NORM),
                                                      .residual_out = pass_memory(b, p, SUM),
                                                      .mean = pass_memory(b, p, MEAN),
                                                      .rstd = pass_memory(b, p, RSTD),
                                                      .residual = p->x,
                                                      .branch = p->x_branch,
                                                      .gamma = pass_weight(b, p, NORM_W),
                                                      .beta = m->norm_bias != NULL ? pass_weight(b, p, NORM_B) : NULL,
                                                      .row_count = row_count(p),
                                                      .col_count = m->channels,
                                                      .eps = m->norm_epsilon,
                                                      .type = b->spec->type});
}

/* Row `row` of the norm's output. */
static void *norm_at(const struct block *b, const struct pass *p, int64_t row)
{
    const struct lm_head *m = b->args;
    return (char *)pass_memory(b, p, NORM) + row * m->channels * (int64_t)dt_dtype_size(b->spec->type);
}

/* to (count, ld) = the logits of `count` rows of the norm's output, from `first` on. */
static void logits_of(const struct block *b, const struct pass *p, void *to, int64_t ld, int64_t first, int64_t count)
{
    const struct lm_head *m = b->args;
    p->kernels->matmul(p->stream,
                       &(struct dt_matmul_args){.c = to,
                                                .a = norm_at(b, p, first),
                                                .b = pass_weight(b, p, table_of(b)),
                                                .bias = m->bias != NULL ? pass_weight(b, p, bias_of(b)) : NULL,
                                                .m = count,
                                                .n = m->vocabulary,
                                                .k = m->channels,
                                                .ldc = ld,
                                                .b_transposed = true,
                                                .type = b->spec->type,
                                                .c_type = b->spec->type,
                                                .busy_sms = p->busy_sms});
}

/* Logits and loss of `count` rows, from `first` on. with_grad: logits become their gradient. */
static void loss(const struct block *b, const struct pass *p, int64_t first, int64_t count, bool with_grad)
{
    const struct lm_head *m = b->args;
    double *row_loss = p->row_loss != NULL ? p->row_loss + first : pass_memory(b, p, ROW_LOSS);
    logits_of(b, p, pass_memory(b, p, LOGITS), pitch(b), first, count);
    p->kernels->cross_entropy(p->stream, &(struct dt_cross_entropy_args){.logits = pass_memory(b, p, LOGITS),
                                                                         .targets = labels_of(p) + first,
                                                                         .row_loss = row_loss,
                                                                         .loss_sum = p->loss_sum,
                                                                         .row_count = count,
                                                                         .col_count = m->vocabulary,
                                                                         .ld = pitch(b),
                                                                         .grad_scale = p->loss_scale,
                                                                         .scale = m->logit_scale,
                                                                         .softcap = m->logit_cap,
                                                                         .with_grad = with_grad,
                                                                         .type = b->spec->type});
}

/* Scales and caps the logits that were asked for. */
static void finish_logits(const struct block *b, const struct pass *p)
{
    const struct lm_head *m = b->args;
    double cap = m->logit_cap, scale = m->logit_scale != 0 ? m->logit_scale : 1;
    int64_t count = p->logits_count * m->vocabulary;
    struct dt_scale_args factor = {
        .x = p->logits, .count = count, .factor = cap > 0 ? scale / cap : scale, .type = b->spec->type};
    if (factor.factor != 1) {
        p->kernels->scale(p->stream, &factor);
    }
    if (cap > 0) {
        p->kernels->activation(
            p->stream, &(struct dt_activation_args){
                           .y = p->logits, .x = p->logits, .count = count, .kind = DT_ACT_TANH, .type = b->spec->type});
        factor.factor = cap;
        p->kernels->scale(p->stream, &factor);
    }
}

/* Rows that follow each other are one product, which reads the table once. */
static void asked_logits(const struct block *b, const struct pass *p)
{
    const struct lm_head *m = b->args;
    size_t row_bytes = (size_t)m->vocabulary * dt_dtype_size(b->spec->type);
    for (int64_t i = 0, n; i < p->logits_count; i += n) {
        n = 1;
        while (i + n < p->logits_count && p->logits_rows[i + n] == p->logits_rows[i] + n) {
            n++;
        }
        logits_of(b, p, (char *)p->logits + (size_t)i * row_bytes, 0, p->logits_rows[i], n);
    }
    finish_logits(b, p);
}

static void forward(const struct block *b, const struct pass *p)
{
    int64_t rows = row_count(p), chunk = chunk_rows(b, rows);
    norm(b, p);
    if (p->logits != NULL) {
        asked_logits(b, p);
        return;
    }
    for (int64_t first = 0; first < rows; first += chunk) {
        loss(b, p, first, chunk < rows - first ? chunk : rows - first, false);
    }
}

/* dx from the gradient of the norm's output, which is in NORM. */
static void norm_backward(const struct block *b, const struct pass *p)
{
    const struct lm_head *m = b->args;
    if (is_rms(b)) {
        p->kernels->rmsnorm_backward(p->stream,
                                     &(struct dt_rmsnorm_backward_args){.dx = p->dx,
                                                                        .dweight = pass_grad(b, p, NORM_W),
                                                                        .dy = pass_memory(b, p, NORM),
                                                                        .x = pass_memory(b, p, SUM),
                                                                        .weight = pass_weight(b, p, NORM_W),
                                                                        .rstd = pass_memory(b, p, RSTD),
                                                                        .row_count = row_count(p),
                                                                        .col_count = m->channels,
                                                                        .weight_offset = m->weight_offset,
                                                                        .accumulate = pass_adds(b, p, NORM_W),
                                                                        .type = b->spec->type,
                                                                        .grad_type = pass_grad_type(b, p)});
        return;
    }
    p->kernels->layernorm_backward(
        p->stream, &(struct dt_layernorm_backward_args){.dx = p->dx,
                                                        .dgamma = pass_grad(b, p, NORM_W),
                                                        .dbeta = m->norm_bias != NULL ? pass_grad(b, p, NORM_B) : NULL,
                                                        .dy = pass_memory(b, p, NORM),
                                                        .x = pass_memory(b, p, SUM),
                                                        .gamma = pass_weight(b, p, NORM_W),
                                                        .mean = pass_memory(b, p, MEAN),
                                                        .rstd = pass_memory(b, p, RSTD),
                                                        .row_count = row_count(p),
                                                        .col_count = m->channels,
                                                        .accumulate = pass_adds(b, p, NORM_W),
                                                        .type = b->spec->type,
                                                        .grad_type = pass_grad_type(b, p)});
}

/* Adds up the gradient of `count` rows of logits for the bias. The rows have gaps on a GPU, so the sum
 * has them, too. */
static void bias_backward(const struct block *b, const struct pass *p, int64_t count, bool first)
{
    const struct lm_head *m = b->args;
    void *bias = pass_grad(b, p, bias_of(b)), *sum = pass_memory(b, p, BIAS_SUM);
    enum dt_dtype grads = pass_grad_type(b, p);
    if (bias == NULL) {
        return;
    }
    p->kernels->column_sum(p->stream, &(struct dt_column_sum_args){.out = sum,
                                                                   .x = pass_memory(b, p, LOGITS),
                                                                   .row_count = count,
                                                                   .col_count = pitch(b),
                                                                   .type = b->spec->type,
                                                                   .grad_type = grads});
    if (first && !pass_adds(b, p, bias_of(b))) {
        p->kernels->cast(p->stream, &(struct dt_cast_args){bias, sum, m->vocabulary, grads, grads});
    } else {
        p->kernels->add(p->stream, &(struct dt_add_args){bias, bias, sum, m->vocabulary, grads, grads});
    }
}

static void backward(const struct block *b, const struct pass *p)
{
    const struct lm_head *m = b->args;
    int64_t rows = row_count(p), chunk = chunk_rows(b, rows);
    norm(b, p);
    for (int64_t first = 0; first < rows; first += chunk) {
        int64_t count = chunk < rows - first ? chunk : rows - first;
        void *x = norm_at(b, p, first);
        loss(b, p, first, count, true);
        if (m->bias != NULL) {
            bias_backward(b, p, count, first == 0);
        }
        p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = pass_grad(b, p, table_of(b)),
                                                               .a = pass_memory(b, p, LOGITS),
                                                               .b = x,
                                                               .m = m->vocabulary,
                                                               .n = m->channels,
                                                               .k = count,
                                                               .lda = pitch(b),
                                                               .a_transposed = true,
                                                               .accumulate = pass_adds(b, p, table_of(b)) || first > 0,
                                                               .type = b->spec->type,
                                                               .c_type = pass_grad_type(b, p),
                                                               .busy_sms = p->busy_sms});
        p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = x,
                                                               .a = pass_memory(b, p, LOGITS),
                                                               .b = pass_weight(b, p, table_of(b)),
                                                               .m = count,
                                                               .n = m->channels,
                                                               .k = m->vocabulary,
                                                               .lda = pitch(b),
                                                               .type = b->spec->type,
                                                               .c_type = b->spec->type,
                                                               .busy_sms = p->busy_sms});
    }
    norm_backward(b, p);
}

const struct block_ops block_lm_head = {
    .name = "lm_head", .declare = declare, .forward = forward, .backward = backward};
