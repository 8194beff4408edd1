/* See the header. */
#include "worker/model/chain_walk.h"

void chain_call(const struct block *b, const struct pass *p)
{
    (p->phase == PASS_BACKWARD ? b->ops->backward : b->ops->forward)(b, p);
}

size_t chain_most(const struct chain *c, enum memory_place place)
{
    size_t most = 0;
    for (int i = 0; i < c->block_count; i++) {
        most = c->blocks[i].bytes[place] > most ? c->blocks[i].bytes[place] : most;
    }
    return most;
}

static struct pass new_pass(const struct chain_walk *w, const struct block *b, enum pass_phase phase,
                            const struct batch *batch)
{
    return (struct pass){.phase = phase,
                         .stream = w->stream,
                         .kernels = w->kernels,
                         .batch = batch,
                         .buffers = w->buffers,
                         .peers = w->peers,
                         .grad_type = w->grad_type,
                         .memory = {[PLACE_KEPT] = w->kept[b->index],
                                    [PLACE_AGAIN] = w->again,
                                    [PLACE_CALL] = w->scratch,
                                    [PLACE_CACHE] = w->caches != NULL ? w->caches[b->index] : NULL}};
}

/* The memory of the block's y. Evaluation keeps nothing, so it always uses a slot. */
static void *y_of(const struct chain_walk *w, const struct block *b, bool eval)
{
    struct pass p = {.memory = {[PLACE_KEPT] = w->kept[b->index]}};
    return b->y_memory >= 0 && !eval ? pass_memory(b, &p, b->y_memory) : w->y[b->slot];
}

/* Sets the input: the output of the previous block. */
static void set_input(const struct chain_walk *w, const struct block *b, struct pass *p)
{
    if (b->index > 0) {
        const struct block *before = b - 1;
        p->x = y_of(w, before, p->phase == PASS_EVAL);
        p->x_branch = before->out.pair ? w->y_branch[before->slot] : NULL;
    }
}

static void set_loss(const struct walk_loss *loss, struct pass *p)
{
    p->loss_scale = loss->scale;
    p->loss_sum = loss->sum;
    p->logits = loss->logits;
    p->logits_rows = loss->logits_rows;
    p->logits_count = loss->logits_count;
    p->row_loss = loss->row_loss;
}

static void run(const struct chain_walk *w, const struct block *b, const struct pass *p)
{
    if (w->hooks->run != NULL) {
        w->hooks->run(w, b, p);
    } else {
        chain_call(b, p);
    }
}

static void keep(const struct chain_walk *w, const struct block *b, enum pass_phase phase)
{
    if (w->hooks->keep != NULL) {
        w->hooks->keep(w, b, phase);
    }
}

static void leave(const struct chain_walk *w, const struct block *b, const struct pass *p)
{
    if (w->hooks->leave != NULL) {
        w->hooks->leave(w, b, p);
    }
}

void chain_forward(const struct chain_walk *w, enum pass_phase phase, const struct batch *batch,
                   const struct walk_loss *loss)
{
    const struct chain *c = w->chain;
    int count = phase == PASS_EVAL ? c->block_count : c->block_count - 1;
    for (int i = 0; i < count; i++) {
        const struct block *b = &c->blocks[i];
        keep(w, b, phase);
        struct pass p = new_pass(w, b, phase, batch);
        if (i + 1 < c->block_count) {
            p.y = y_of(w, b, phase == PASS_EVAL);
            p.y_branch = b->out.pair ? w->y_branch[b->slot] : NULL;
        } else {
            set_loss(loss, &p);
        }
        set_input(w, b, &p);
        if (!w->hooks->enter(w, b, &p)) {
            return;
        }
        run(w, b, &p);
        leave(w, b, &p);
    }
}

void chain_backward(const struct chain_walk *w, const struct batch *batch, const struct walk_loss *loss)
{
    const struct chain *c = w->chain;
    for (int i = c->block_count - 1; i >= 0; i--) {
        const struct block *b = &c->blocks[i];
        keep(w, b, PASS_RECOMPUTE);
        struct pass p = new_pass(w, b, PASS_RECOMPUTE, batch);
        bool last = i + 1 == c->block_count;
        if (last || b->reads_x) {
            set_input(w, b, &p);
        }
        if (!w->hooks->enter(w, b, &p)) {
            return;
        }
        if (b->bytes[PLACE_AGAIN] > 0) {
            run(w, b, &p);
        }
        p.phase = PASS_BACKWARD;
        p.dx = i > 0 ? w->gradient[(b - 1)->slot] : NULL;
        if (last) {
            set_loss(loss, &p);
        } else {
            p.dy = w->gradient[b->slot];
        }
        if (!w->hooks->enter(w, b, &p)) {
            return;
        }
        run(w, b, &p);
        leave(w, b, &p);
    }
}
