/* Weights that are whole at a time: a plan of one micro-step, from the job's numbers and the order of blocks
 * alone. Forward visits the blocks but the last one, backward all of them from the other end.
 *
 *   ahead   blocks whose weights are asked for when one is entered; slots have room for them
 *   kept    units that stay from forward to backward, each in a slot of its own
 *   sets    of slots, which the other units take in turn
 *
 * What is kept or gathered ahead stays below max_live_parameters; what a block needs is gathered in any case. */
#include "worker/engine/strategy.h"

struct wrap_policy strategy_wrap(const struct strategy_row *row, const struct job *job, int shards)
{
    const struct job_fsdp *f = &job->fsdp;
    struct wrap_policy p = {.whole = f->auto_wrap_policy == WRAP_WHOLE,
                            .layers_per_unit = f->auto_wrap_policy == WRAP_BY_LAYER ? f->layers_per_unit : 0,
                            .min_params = f->auto_wrap_policy == WRAP_BY_SIZE ? f->min_num_params : 0,
                            .layers = f->wrap_layers,
                            .frozen = job->training.freeze};
    if (row->weights == &weights_sliced) {
        p.small = f->param_persistence_threshold;
        p.small_total = f->model_persistence_threshold < 0 ? INT64_MAX : f->model_persistence_threshold / shards;
    }
    return p;
}

static bool uses(const struct block *b, int unit)
{
    bool found = false;
    for (int k = 0; k < b->unit_count; k++) {
        found = found || b->units[k] == unit;
    }
    return found;
}

enum which { ALL, COMING, TURNING }; /* those gathered for a block; those that take a slot in turn */

/* Elements of the block's units, without those that `but` uses, too (may be null). */
static int64_t elements_of(const struct strategy *s, const struct block *b, enum which which, const struct block *but)
{
    int64_t sum = 0;
    for (int k = 0; k < b->unit_count; k++) {
        const struct unit *u = &s->chain->units[b->units[k]];
        bool stands = u->shared || u->persistent || (which == TURNING && s->live.kept[b->units[k]]);
        bool counts = which == ALL || (!stands && (but == NULL || !uses(but, b->units[k])));
        sum += counts ? u->used : 0;
    }
    return sum;
}

/* Elements that are used after the unit's last block in forward and before the same one in backward. */
static int64_t reuse_distance(const struct strategy *s, const struct unit *u)
{
    const struct chain *c = s->chain;
    int64_t sum = 0;
    for (int i = u->last_use + 1; i < c->block_count; i++) {
        sum += elements_of(s, &c->blocks[i], ALL, NULL) * (i + 1 < c->block_count ? 2 : 1);
    }
    return sum;
}

/* Units with slots of their own whatever the job says, and the largest block besides. */
static int64_t least_live(const struct strategy *s)
{
    const struct chain *c = s->chain;
    int64_t sum = 0, most = 0;
    for (int u = 0; u < c->unit_count; u++) {
        sum += c->units[u].shared || c->units[u].persistent ? c->units[u].used : 0;
    }
    for (int i = 0; i < c->block_count; i++) {
        int64_t own = elements_of(s, &c->blocks[i], COMING, NULL);
        most = own > most ? own : most;
    }
    return sum + most;
}

/* Backward meets the last ones first, so they are kept first. Returns what is live with them. */
static int64_t choose_kept(struct strategy *s, const struct job_fsdp *f, int64_t live)
{
    const struct chain *c = s->chain;
    for (int u = c->unit_count - 1; u >= 0; u--) {
        const struct unit *x = &c->units[u];
        bool near = f->max_reuse_distance > 0 && reuse_distance(s, x) < f->max_reuse_distance &&
                    (f->max_live_parameters < 0 || live + x->used <= f->max_live_parameters);
        if (!x->shared && !x->persistent && !s->alone && (s->keep_after_forward || near)) {
            s->live.kept[u] = true;
            live += x->used;
        }
    }
    return live;
}

/* Blocks behind block i, or before it in backward, that are gathered ahead; *sets: turns that they take. */
static int look_ahead(const struct strategy *s, const struct job_fsdp *f, int64_t live, int i, bool back, int *sets)
{
    const struct chain *c = s->chain;
    const struct block *before = &c->blocks[i];
    int64_t bucket = f->prefetch_bucket_size, ahead = 0;
    int64_t room = f->max_live_parameters < 0 ? INT64_MAX : f->max_live_parameters - live;
    int count = 0, step = back ? -1 : 1;
    *sets = 0;
    for (int j = i + step; j >= 0 && j < c->block_count; j += step) {
        const struct block *b = &c->blocks[j];
        int64_t own = elements_of(s, b, back ? TURNING : COMING, before);
        bool full = bucket < 0 ? ahead > 0 : ahead >= bucket;
        if (own > 0 && (full || ahead + own > room)) {
            break;
        }
        *sets += elements_of(s, b, TURNING, before) > 0;
        ahead += own;
        count++;
        before = own > 0 ? b : before;
    }
    return count;
}

void strategy_plan_live(struct strategy *s, const struct job_fsdp *f)
{
    const struct chain *c = s->chain;
    bool numbers = f->prefetch_bucket_size >= 0 || f->max_live_parameters >= 0;
    s->live.kept = dt_arena_alloc(&s->arena, (size_t)c->unit_count * sizeof *s->live.kept);
    s->live.ahead = dt_arena_alloc(&s->arena, (size_t)c->block_count * sizeof *s->live.ahead);
    if (f->prefetch_bucket_size >= 0) {
        s->forward_prefetch = f->prefetch_bucket_size > 0;
        s->prefetch = f->prefetch_bucket_size > 0 ? PREFETCH_PRE : PREFETCH_NONE;
    }
    s->live.sets = numbers ? 1 : 2;
    int64_t live = choose_kept(s, f, least_live(s));
    for (int i = 0; i < c->block_count; i++) {
        for (int back = 0; back < 2; back++) {
            int sets;
            s->live.ahead[i][back] = look_ahead(s, f, live, i, back, &sets);
            s->live.sets = sets + 1 > s->live.sets ? sets + 1 : s->live.sets;
        }
    }
    s->live.grad_sets = f->overlap_comm ? 2 : 1;
    int last = c->block_count - 1;
    s->live.turns = s->live.sets > 1 || last < 0 || elements_of(s, &c->blocks[last], TURNING, NULL) == 0;
}

bool strategy_stays(const struct strategy *s, const struct block *b, int unit)
{
    bool last = b->index + 2 == s->chain->block_count && s->live.turns;
    return s->live.kept[unit] || s->chain->units[unit].shared || last;
}
