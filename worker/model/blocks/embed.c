/* Embedding: x = scale * tokens[ids] + positions[t]. As the first block it has no input and no
 * branch. If the tokens' table is the head's, too, whose backward comes first, this block adds to its
 * gradient (pass_adds). */
#include "worker/model/blocks/blocks.h"

enum { TOKENS, POSITIONS };

static int declare(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct embed *m = b->args;
    struct tensor_rule rule = {
        .init = INIT_NORMAL, .init_std = m->init_std, .has_zero_row = m->padding_id >= 0, .zero_row = m->padding_id};
    block_tensor(b, m->tokens, (int64_t[]){m->vocabulary, m->channels}, 2, &rule);
    rule.has_zero_row = false;
    if (m->positions != NULL) {
        block_tensor(b, m->positions, (int64_t[]){m->position_count, m->channels}, 2, &rule);
    }
    (void)block_field(b, "input_ids");
    b->out = stream_flow(b, m->channels, false);
    return 0;
}

static const int32_t *ids_of(const struct pass *p)
{
    return p->batch->at[batch_find(p->batch->layout, "input_ids")];
}

static void forward(const struct block *b, const struct pass *p)
{
    if (p->phase == PASS_RECOMPUTE) {
        return;
    }
    const struct embed *m = b->args;
    p->kernels->embedding(
        p->stream, &(struct dt_embedding_args){.out = p->y,
                                               .tokens = pass_weight(b, p, TOKENS),
                                               .positions = m->positions != NULL ? pass_weight(b, p, POSITIONS) : NULL,
                                               .ids = ids_of(p),
                                               .row_count = row_count(p),
                                               .position_count = p->batch->length,
                                               .col_count = m->channels,
                                               .scale = m->scale,
                                               .type = b->spec->type});
}

static void backward(const struct block *b, const struct pass *p)
{
    const struct embed *m = b->args;
    p->kernels->embedding_backward(p->stream,
                                   &(struct dt_embedding_backward_args){.dtokens = pass_grad(b, p, TOKENS),
                                                                        .dy = p->dy,
                                                                        .ids = ids_of(p),
                                                                        .row_count = row_count(p),
                                                                        .vocab_count = m->vocabulary,
                                                                        .col_count = m->channels,
                                                                        .skipped_id = (int32_t)m->padding_id,
                                                                        .skips = m->padding_id >= 0,
                                                                        .scale = m->scale,
                                                                        .accumulate = pass_adds(b, p, TOKENS),
                                                                        .type = b->spec->type,
                                                                        .grad_type = pass_grad_type(b, p)});
    if (m->positions == NULL) {
        return;
    }
    p->kernels->position_backward(p->stream,
                                  &(struct dt_position_backward_args){.dpositions = pass_grad(b, p, POSITIONS),
                                                                      .dy = p->dy,
                                                                      .row_count = row_count(p),
                                                                      .position_count = p->batch->length,
                                                                      .table_count = m->position_count,
                                                                      .col_count = m->channels,
                                                                      .accumulate = pass_adds(b, p, POSITIONS),
                                                                      .type = b->spec->type,
                                                                      .grad_type = pass_grad_type(b, p)});
}

const struct block_ops block_embed = {.name = "embed", .declare = declare, .forward = forward, .backward = backward};
