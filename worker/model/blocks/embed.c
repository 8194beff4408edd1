/* Embedding: x = wte[ids] + wpe[position]. The first block: it has no input and no branch. wte
 * is tied to the head, whose backward comes first, so this one adds to it (pass_adds). */
#include "worker/model/blocks/blocks.h"

enum { WTE, WPE };

static int declare(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct gpt_shape *m = b->args;
    const struct tensor_rule rule = {.init = INIT_NORMAL, .init_std = m->init_std};
    block_tensor(b, "transformer.wte.weight", (int64_t[]){m->vocabulary, m->channels}, 2, &rule);
    block_tensor(b, "transformer.wpe.weight", (int64_t[]){m->positions, m->channels}, 2, &rule);
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
    const struct gpt_shape *m = b->args;
    p->kernels->embedding(p->stream, &(struct dt_embedding_args){.out = p->y,
                                                                 .tokens = pass_weight(b, p, WTE),
                                                                 .positions = pass_weight(b, p, WPE),
                                                                 .ids = ids_of(p),
                                                                 .row_count = row_count(p),
                                                                 .position_count = p->batch->length,
                                                                 .col_count = m->channels,
                                                                 .type = b->spec->type});
}

static void backward(const struct block *b, const struct pass *p)
{
    const struct gpt_shape *m = b->args;
    p->kernels->embedding_backward(p->stream, &(struct dt_embedding_backward_args){.dtokens = pass_grad(b, p, WTE),
                                                                                   .dy = p->dy,
                                                                                   .ids = ids_of(p),
                                                                                   .row_count = row_count(p),
                                                                                   .vocab_count = m->vocabulary,
                                                                                   .col_count = m->channels,
                                                                                   .accumulate = pass_adds(b, p, WTE),
                                                                                   .type = b->spec->type,
                                                                                   .grad_type = pass_grad_type(b, p)});
    p->kernels->position_backward(p->stream, &(struct dt_position_backward_args){.dpositions = pass_grad(b, p, WPE),
                                                                                 .dy = p->dy,
                                                                                 .row_count = row_count(p),
                                                                                 .position_count = p->batch->length,
                                                                                 .table_count = m->positions,
                                                                                 .col_count = m->channels,
                                                                                 .accumulate = pass_adds(b, p, WPE),
                                                                                 .type = b->spec->type,
                                                                                 .grad_type = pass_grad_type(b, p)});
}

const struct block_ops block_embed = {.name = "embed", .declare = declare, .forward = forward, .backward = backward};
