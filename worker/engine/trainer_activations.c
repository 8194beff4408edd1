/* offload.activations: what a block keeps from forward to backward rests in a home outside of the device's
 * memory, all blocks' one behind the other. The device has room for three blocks: one that is computed with, its
 * neighbour, and one on its way.
 *
 *   forward     block 0 | block 1 | block 2 | ...        backward    block 2 | block 1        | block 0
 *   out                 | 0       | 1       | 2          in                  | 0 (1 is there) |
 *
 * A block comes back while backward of the one behind it runs. The last block keeps nothing over forward, and the
 * blocks before it are still there when backward begins. The room is used anew from its start in each micro-step, so
 * a block's addresses are the same in each, as CUDA graphs need it. */
#include "worker/engine/trainer.h"

enum { PAGE = 4096 }; /* parts of files begin at whole pages */

static size_t kept_bytes(const struct block *b)
{
    return (b->bytes[PLACE_KEPT] + PAGE - 1) / PAGE * PAGE;
}

static bool rests(const struct trainer *t, int block)
{
    return t->activations.home.ops != NULL && block >= 0 && block + 1 < t->chain.block_count &&
           kept_bytes(&t->chain.blocks[block]) > 0;
}

bool activations_rest(const struct trainer *t)
{
    return t->activations.home.ops != NULL;
}

void activations_plan(struct trainer *t)
{
    struct trainer_activations *a = &t->activations;
    const struct job_offload *job = &t->job->offload;
    const struct chain *c = &t->chain;
    const struct home_ops *ops = residence_activations(job, c->spec.own_memory);
    size_t total = 0, most = 0;
    *a = (struct trainer_activations){.at = dt_arena_alloc(&t->arena, (size_t)c->block_count * sizeof *a->at),
                                      .here = dt_arena_alloc(&t->arena, (size_t)c->block_count * sizeof *a->here)};
    a->home.ops = ops != &home_device && !t->job->evaluates ? ops : NULL;
    t->memory.kept = dt_arena_alloc(&t->arena, (size_t)c->block_count * sizeof *t->memory.kept);
    for (int i = 0; i < c->block_count; i++) {
        size_t own = rests(t, i) ? kept_bytes(&c->blocks[i]) : 0;
        t->memory.kept[i] =
            plan_add(&t->memory.plan, PLAN_ACTIVATIONS, PLAN_LOCAL, rests(t, i) ? 0 : c->blocks[i].bytes[PLACE_KEPT]);
        a->at[i] = total;
        total += own;
        most = own > most ? own : most;
    }
    if (total == 0) {
        a->home.ops = NULL;
    }
    if (a->home.ops != NULL) {
        residence_settings(&a->settings, job, c->spec.own_memory, false);
        a->settings.portion_bytes = most;
        a->settings.buffers = 2; /* beside two blocks that are brought */
        a->settings.whole_pages = true;
        a->settings.reads_ahead = false;
        a->home.settings = &a->settings;
        double moved_bytes = t->memory.plan.moved_bytes;
        ops->plan(&a->home, &t->memory.plan, PLAN_ACTIVATIONS, PLAN_LOCAL, total, 2 * most);
        t->memory.plan.moved_bytes += (double)(t->micro_steps - 1) * (t->memory.plan.moved_bytes - moved_bytes);
    }
}

int activations_open(struct trainer *t, struct dt_error *err)
{
    struct trainer_activations *a = &t->activations;
    a->held = -1;
    return activations_rest(t) ? a->home.ops->open(&a->home, t->world, &t->memory.plan, err) : 0;
}

void activations_close(struct trainer *t)
{
    home_close(&t->activations.home);
}

static void bring(struct trainer *t, int block, enum home_use use)
{
    struct trainer_activations *a = &t->activations;
    if (rests(t, block) && !a->here[block]) {
        a->kept[block] = home_bring((struct home_part){&a->home, a->at[block]}, kept_bytes(&t->chain.blocks[block]),
                                    use, t->world->compute);
        a->here[block] = true;
    }
}

static void give_back(struct trainer *t, int block)
{
    struct trainer_activations *a = &t->activations;
    if (rests(t, block) && a->here[block]) {
        home_back((struct home_part){&a->home, a->at[block]}, kept_bytes(&t->chain.blocks[block]), t->world->compute);
        a->here[block] = false;
    }
}

/* In evaluation nothing is kept: one piece of memory serves all blocks. */
static void begin(struct trainer *t)
{
    struct trainer_activations *a = &t->activations;
    void *room = a->home.ops->empty(&a->home, t->world->compute);
    for (int i = 0; i < t->chain.block_count; i++) {
        a->kept[i] = rests(t, i) ? room : a->kept[i];
    }
}

void activations_bring(struct trainer *t, const struct block *b, enum pass_phase phase)
{
    struct trainer_activations *a = &t->activations;
    int next = b->index - 1;
    if (!activations_rest(t)) {
        return;
    }
    if (phase != PASS_RECOMPUTE) {
        if (b->index == 0) {
            begin(t);
        }
        if (phase == PASS_FORWARD) {
            bring(t, b->index, HOME_WRITE);
        }
        return;
    }
    give_back(t, a->held);
    a->held = -1;
    bring(t, b->index, HOME_SPEND); /* backward writes gradients over what a block has kept */
    if (b->index > 0 && (b->index + 1 == t->chain.block_count || b->reads_x) && b[-1].y_memory >= 0) {
        bring(t, b->index - 1, HOME_SPEND);
    }
    while (next >= 0 && (!rests(t, next) || a->here[next])) {
        next--;
    }
    if (next >= 0) {
        a->home.ops->ahead(&a->home, a->at[next], kept_bytes(&t->chain.blocks[next]));
    }
}

/* Memory that holds a block's output stays until the next block has read it. */
void activations_back(struct trainer *t, const struct block *b, enum pass_phase phase)
{
    struct trainer_activations *a = &t->activations;
    if (!activations_rest(t) || phase == PASS_EVAL) {
        return;
    }
    if (phase == PASS_FORWARD) {
        give_back(t, a->held);
        a->held = b->y_memory >= 0 ? b->index : -1;
    }
    if (a->held != b->index) {
        give_back(t, b->index);
    }
}
