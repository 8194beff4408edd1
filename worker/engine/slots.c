/* Slots: where whole weights and gradients of a unit are as long as they are whole. */
#include "worker/engine/strategy.h"

#include <string.h>

static bool same_layout(const struct chain *c, int a, int b)
{
    if (c->units[a].used != c->units[b].used || c->units[a].tensor_count != c->units[b].tensor_count) {
        return false;
    }
    int i = 0, j = 0; /* tensors of a unit follow each other in registration order */
    for (;; i++, j++) {
        while (i < c->tensor_count && c->tensors[i].unit != a) {
            i++;
        }
        while (j < c->tensor_count && c->tensors[j].unit != b) {
            j++;
        }
        if (i >= c->tensor_count || j >= c->tensor_count) {
            return i >= c->tensor_count && j >= c->tensor_count;
        }
        if (c->tensors[i].offset != c->tensors[j].offset || c->tensors[i].numel != c->tensors[j].numel) {
            return false;
        }
    }
}

/* Assigns slots to units and adds their memory. Blocks take turns with sets of slots, so that the next
 * ones' units have room while one computes; a set has a slot for each unit of a block. */
void slots_plan(struct strategy *s, struct slots *x, struct plan *p, enum plan_purpose purpose, int sets,
                enum dt_dtype type)
{
    const struct chain *c = s->chain;
    bool grads = purpose == PLAN_GRADIENT_SLOTS;
    int units = c->unit_count;
    x->of = dt_arena_alloc(&s->arena, (size_t)units * sizeof *x->of);
    x->slot = dt_arena_alloc(&s->arena, (size_t)units * sizeof *x->slot);
    x->first = dt_arena_alloc(&s->arena, (size_t)units * sizeof *x->first);
    int64_t *size = dt_arena_alloc(&s->arena, (size_t)units * sizeof *size);
    int(*of_set)[BLOCK_UNITS_MAX] = dt_arena_alloc(&s->arena, (size_t)sets * sizeof *of_set);
    int(*until)[BLOCK_UNITS_MAX] = dt_arena_alloc(&s->arena, (size_t)sets * sizeof *until); /* the last use of a place's
                                                                                             * unit */
    int turn = sets - 1, block = -1;
    memset(of_set, -1, (size_t)sets * sizeof *of_set);
    memset(until, -1, (size_t)sets * sizeof *until);
    x->count = 0;
    x->type_size = dt_dtype_size(type);
    for (int u = 0; u < units; u++) {
        const struct unit *unit = &c->units[u];
        if (grads && !strategy_trains(s, u)) {
            x->of[u] = -1;
            continue;
        }
        int own = -1, *i = &own;
        if (!unit->shared && (grads || (!unit->persistent && !s->live.kept[u]))) {
            turn = unit->first_use == block ? turn : (turn + 1) % sets;
            block = unit->first_use;
            int place = 0;
            while (place + 1 < BLOCK_UNITS_MAX && until[turn][place] >= block) {
                place++;
            }
            until[turn][place] = unit->last_use;
            i = &of_set[turn][place];
        }
        if (*i < 0) {
            *i = x->count++;
            x->slot[*i].first = u;
        } else if (!same_layout(c, x->slot[*i].first, u)) {
            x->slot[*i].mixed = true;
        }
        x->of[u] = *i;
        x->slot[*i].unit = -1;
        size[*i] = unit->numel > size[*i] ? unit->numel : size[*i];
    }
    for (int i = 0; i < x->count; i++) {
        x->first[i] = x->total;
        x->total += size[i];
    }
    x->piece = plan_add(p, purpose, PLAN_PEERS, (size_t)x->total * x->type_size);
}

int slots_open(struct strategy *s, struct slots *x, const struct plan *p, struct dt_error *err)
{
    char *base = plan_at(p, x->piece);
    for (int i = 0; i < x->count; i++) {
        x->slot[i].data = base + (size_t)x->first[i] * x->type_size;
        if (dt_event_open(s->world->device, &x->slot[i].filled, err) != 0 ||
            dt_event_open(s->world->device, &x->slot[i].freed, err) != 0) {
            return -1;
        }
    }
    return 0;
}

void slots_close(struct slots *x)
{
    for (int i = 0; i < x->count; i++) {
        dt_event_close(x->slot[i].filled);
        dt_event_close(x->slot[i].freed);
        x->slot[i].filled = x->slot[i].freed = NULL;
    }
}
