/* Embedding: s = scale * tokens[ids] + positions[p] + types[type_ids], and x = s, or norm(s), with
 * elements dropped. As the first block it has no input and no branch. If the tokens' table is the
 * head's, too, whose backward comes first, this block adds to its gradient (pass_adds). */
#include "worker/model/blocks/blocks.h"
#include "worker/model/blocks/drop.h"
#include "worker/model/blocks/layernorm.h"

/* Memory: s (R, C), x (R, C), statistics (R) of a norm; of one call: the gradient of s. With a norm,
 * backward leaves the gradient of its output in the place of x. */
enum { SUM, NORM, MEAN, RSTD, DSUM };

struct tensors {
    int tokens, positions, types; /* -1: none */
    struct layernorm norm;
};

static struct tensors walk_tensors(const struct block *b, struct block *declared)
{
    const struct embed *m = b->args;
    struct naming n = {.block = declared};
    struct tensors t = {.positions = -1, .types = -1};
    struct tensor_rule plain = {.init = INIT_NORMAL, .init_std = m->init_std, .init_cut = m->init_cut}, padded = plain;
    padded.has_zero_row = m->padding_id >= 0 && !m->random_padding;
    padded.zero_row = m->padding_id;
    t.tokens = name_tensor(&n, m->tokens, "", (int64_t[]){m->vocabulary, m->channels}, 2, &padded);
    if (m->positions != NULL) {
        t.positions = name_tensor(&n, m->positions, "", (int64_t[]){m->position_count, m->channels}, 2,
                                  m->position_ids ? &padded : &plain);
    }
    if (m->types != NULL) {
        t.types = name_tensor(&n, m->types, "", (int64_t[]){m->type_count, m->channels}, 2, &plain);
    }
    if (m->norm != NULL) {
        t.norm = layernorm_name(&n, m->norm, m->channels, m->norm_bias, m->norm_epsilon);
    }
    return t;
}

static int declare(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct embed *m = b->args;
    enum dt_dtype type = b->spec->type;
    int64_t rows = m->norm != NULL ? most_rows(b) : 0;
    (void)walk_tensors(b, b);
    (void)block_field(b, "input_ids");
    if (m->position_ids) {
        (void)block_field(b, "position_ids");
    }
    if (m->types != NULL) {
        (void)block_field(b, "token_type_ids");
    }
    block_memory(b, "sum", LIFE_BACKWARD, RECOMPUTE_NEVER, rows * m->channels, type);
    block_memory(b, "norm", LIFE_BACKWARD, RECOMPUTE_NEVER, rows * m->channels, type);
    block_memory(b, "mean", LIFE_BACKWARD, RECOMPUTE_NEVER, rows, dt_dtype_wide(type));
    block_memory(b, "rstd", LIFE_BACKWARD, RECOMPUTE_NEVER, rows, dt_dtype_wide(type));
    block_memory(b, "gradient", LIFE_CALL, 0, m->norm != NULL || m->dropout > 0 ? most_rows(b) * m->channels : 0, type);
    drop_declare(b, m->dropout);
    b->out = stream_flow(b, m->channels, false);
    b->y_memory = m->norm != NULL ? NORM : -1;
    return 0;
}

static const int32_t *field_of(const struct pass *p, const char *name)
{
    return p->batch->at[batch_find(p->batch->layout, name)];
}

static void forward(const struct block *b, const struct pass *p)
{
    if (p->phase == PASS_RECOMPUTE) {
        return;
    }
    const struct embed *m = b->args;
    struct tensors t = walk_tensors(b, NULL);
    struct normed to = {.y = p->y, .mean = pass_memory(b, p, MEAN), .rstd = pass_memory(b, p, RSTD)};
    void *sum = m->norm != NULL ? pass_memory(b, p, SUM) : p->y;
    p->kernels->embedding(
        p->stream,
        &(struct dt_embedding_args){.out = sum,
                                    .tokens = pass_weight(b, p, t.tokens),
                                    .positions = t.positions >= 0 ? pass_weight(b, p, t.positions) : NULL,
                                    .types = t.types >= 0 ? pass_weight(b, p, t.types) : NULL,
                                    .ids = field_of(p, "input_ids"),
                                    .position_ids = m->position_ids ? field_of(p, "position_ids") : p->batch->positions,
                                    .type_ids = t.types >= 0 ? field_of(p, "token_type_ids") : NULL,
                                    .row_count = row_count(p),
                                    .position_count = p->batch->length,
                                    .col_count = m->channels,
                                    .scale = m->scale,
                                    .type = b->spec->type});
    if (m->norm != NULL) {
        layernorm_forward(b, p, &t.norm, row_count(p), sum, NULL, &to);
    }
    (void)drop(b, p, m->dropout, 0, p->y, p->y, row_count(p), m->channels);
}

/* The gradient of a table of `count` rows, of which each row of dy has used ids[row]. padded: the
 * padding row gets none. */
static void table_backward(const struct block *b, const struct pass *p, int table, const int32_t *ids, int64_t count,
                           bool padded, double scale, const void *dy)
{
    const struct embed *m = b->args;
    p->kernels->embedding_backward(p->stream,
                                   &(struct dt_embedding_backward_args){.dtokens = pass_grad(b, p, table),
                                                                        .dy = dy,
                                                                        .ids = ids,
                                                                        .row_count = row_count(p),
                                                                        .vocab_count = count,
                                                                        .col_count = m->channels,
                                                                        .skipped_id = (int32_t)m->padding_id,
                                                                        .skips = padded && m->padding_id >= 0,
                                                                        .scale = scale,
                                                                        .accumulate = pass_adds(b, p, table),
                                                                        .type = b->spec->type,
                                                                        .grad_type = pass_grad_type(b, p)});
}

static void positions_backward(const struct block *b, const struct pass *p, int table, const void *dy)
{
    const struct embed *m = b->args;
    if (m->position_ids) {
        table_backward(b, p, table, field_of(p, "position_ids"), m->position_count, true, 1, dy);
        return;
    }
    p->kernels->position_backward(p->stream, &(struct dt_position_backward_args){.dpositions = pass_grad(b, p, table),
                                                                                 .dy = dy,
                                                                                 .row_count = row_count(p),
                                                                                 .position_count = p->batch->length,
                                                                                 .table_count = m->position_count,
                                                                                 .col_count = m->channels,
                                                                                 .accumulate = pass_adds(b, p, table),
                                                                                 .type = b->spec->type,
                                                                                 .grad_type = pass_grad_type(b, p)});
}

static void backward(const struct block *b, const struct pass *p)
{
    const struct embed *m = b->args;
    struct tensors t = walk_tensors(b, NULL);
    void *dropped = pass_memory(b, p, m->norm != NULL ? NORM : DSUM);
    const void *dy = drop(b, p, m->dropout, 0, dropped, p->dy, row_count(p), m->channels);
    if (m->norm != NULL) {
        struct normed from = {
            .sum = pass_memory(b, p, SUM), .mean = pass_memory(b, p, MEAN), .rstd = pass_memory(b, p, RSTD)};
        layernorm_backward(b, p, &t.norm, row_count(p), &from, pass_memory(b, p, DSUM), dy, NULL);
        dy = pass_memory(b, p, DSUM);
    }
    table_backward(b, p, t.tokens, field_of(p, "input_ids"), m->vocabulary, true, m->scale, dy);
    if (t.positions >= 0) {
        positions_backward(b, p, t.positions, dy);
    }
    if (t.types >= 0) {
        table_backward(b, p, t.types, field_of(p, "token_type_ids"), m->type_count, false, 1, dy);
    }
}

const struct block_ops block_embed = {.name = "embed", .declare = declare, .forward = forward, .backward = backward};
