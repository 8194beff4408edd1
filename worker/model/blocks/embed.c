/* Embedding: x = wte[ids] + wpe[position]. The first block: it has no input and no branch. wte
 * is tied to the head, whose backward comes first, so this one adds to it (b->adds). */
#include "worker/model/blocks/blocks.h"

enum { WTE, WPE };

static int declare(struct block *b, const struct model_spec *m, struct dt_error *err)
{
    (void)err;
    block_tensor(b, "transformer.wte.weight", (int64_t[]){m->vocabulary, m->channels}, 2, INIT_NORMAL, m->init_std);
    block_tensor(b, "transformer.wpe.weight", (int64_t[]){m->positions, m->channels}, 2, INIT_NORMAL, m->init_std);
    return 0;
}

static void forward(const struct block *b, const struct pass *p)
{
    if (p->phase == PASS_RECOMPUTE) {
        return;
    }
    const struct model_spec *m = b->spec;
    int64_t row_count = p->batch->batch_size * p->batch->sequence_length;
    p->kernels->embedding(p->stream, &(struct dt_embedding_args){.out = p->y_residual,
                                                                 .tokens = block_at(b, p->weights, WTE, m->type),
                                                                 .positions = block_at(b, p->weights, WPE, m->type),
                                                                 .ids = p->batch->ids,
                                                                 .row_count = row_count,
                                                                 .position_count = p->batch->sequence_length,
                                                                 .col_count = m->channels,
                                                                 .type = m->type});
}

static void backward(const struct block *b, const struct pass *p)
{
    const struct model_spec *m = b->spec;
    int64_t row_count = p->batch->batch_size * p->batch->sequence_length;
    p->kernels->embedding_backward(
        p->stream, &(struct dt_embedding_backward_args){.dtokens = block_at(b, p->grads, WTE, grad_type(b, p)),
                                                        .dy = p->dy,
                                                        .ids = p->batch->ids,
                                                        .row_count = row_count,
                                                        .vocab_count = m->vocabulary,
                                                        .col_count = m->channels,
                                                        .accumulate = p->accumulate || b->adds[WTE],
                                                        .type = m->type,
                                                        .grad_type = grad_type(b, p)});
    p->kernels->position_backward(
        p->stream, &(struct dt_position_backward_args){.dpositions = block_at(b, p->grads, WPE, grad_type(b, p)),
                                                       .dy = p->dy,
                                                       .row_count = row_count,
                                                       .position_count = p->batch->sequence_length,
                                                       .table_count = m->positions,
                                                       .col_count = m->channels,
                                                       .accumulate = p->accumulate || b->adds[WPE],
                                                       .type = m->type,
                                                       .grad_type = grad_type(b, p)});
}

const struct block_ops block_embed = {.name = "embed", .declare = declare, .forward = forward, .backward = backward};
