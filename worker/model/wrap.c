/* See the header. Layers that share a unit lie in it one after the other, in registration order, so all that
 * follows (offsets, which block uses which units) is computed again from the tensors. */
#include "worker/model/wrap.h"

#include "worker/model/chain.h"

#include <assert.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, ROLES = 2 };

struct wrapping {
    struct chain *c;
    const struct wrap_policy *policy;
    int *group;            /* of each of the model's units: the first unit of those that become one */
    bool *joined;          /* a group of units that do not lie side by side */
    bool *small, *all;     /* tensors that stay whole; groups of which all tensors do */
    int (*made_of)[ROLES]; /* new unit of each group, trained and frozen; -1: none yet */
    int persistent[ROLES];
    struct unit *made;
    int count;
};

static bool is_layer(const struct chain *c, int unit)
{
    const struct unit *u = &c->units[unit];
    return !u->shared && u->first_use >= 0 && c->blocks[u->first_use].layer >= 0;
}

/* The unit that has what belongs to no layer. */
static int root_of(const struct chain *c)
{
    for (int u = 0; u < c->unit_count; u++) {
        if (!is_layer(c, u)) {
            return u;
        }
    }
    return 0;
}

static bool is_named(const struct dt_strings *globs, const char *name)
{
    bool named = false;
    for (int i = 0; i < globs->count && !named; i++) {
        named = fnmatch(globs->of[i], name, 0) == 0;
    }
    return named;
}

static bool is_chosen(const struct wrap_policy *p, const char *name)
{
    return p->layers.count == 0 || is_named(&p->layers, name);
}

/* Each glob names a layer. */
static int check_layers(const struct chain *c, const struct dt_strings *globs, struct dt_error *err)
{
    for (int i = 0; i < globs->count; i++) {
        const struct dt_strings one = {1, &globs->of[i]};
        const char *first = NULL, *last = NULL;
        bool found = false;
        for (int u = 0; u < c->unit_count && !found; u++) {
            if (is_layer(c, u)) {
                found = is_named(&one, c->units[u].name);
                first = first != NULL ? first : c->units[u].name;
                last = c->units[u].name;
            }
        }
        if (!found) {
            return dt_fail(err, DT_INVALID,
                           first != NULL ? "fsdp.wrap_layers: %s: no layer has such a name; they are %s to %s, and * "
                                           "stands for any characters"
                                         : "fsdp.wrap_layers: %s: %s has no layers; remove it",
                           globs->of[i], first != NULL ? first : c->spec.name, last);
        }
    }
    return 0;
}

static void freeze(struct chain *c, const struct dt_strings *globs)
{
    for (int i = 0; i < c->tensor_count; i++) {
        struct tensor *t = &c->tensors[i];
        t->rule.role = t->unit >= 0 && is_named(globs, t->name) ? ROLE_FROZEN : t->rule.role;
    }
}

static void group_units(struct wrapping *w)
{
    const struct chain *c = w->c;
    const struct wrap_policy *p = w->policy;
    int root = root_of(c), open = -1;
    int64_t layers = 0, parameters = 0;
    for (int u = 0; u < c->unit_count; u++) {
        w->group[u] = u;
        if (p->whole || (is_layer(c, u) && !is_chosen(p, c->units[u].name))) {
            w->group[u] = root;
            w->joined[root] = true;
        } else if (is_layer(c, u)) {
            if (open < 0 || (layers >= p->layers_per_unit && parameters >= p->min_params)) {
                open = u;
                layers = parameters = 0;
            }
            w->group[u] = open;
            layers++;
            parameters += c->units[u].used;
        }
    }
}

/* Ten times the hidden size, as Hugging Face's "auto". */
static int64_t most_small(const struct wrapping *w)
{
    int64_t width = 0;
    for (int i = 0; i < w->c->block_count && w->policy->small == WRAP_AUTO; i++) {
        const struct flow *in = &w->c->blocks[i].in;
        int64_t own = w->c->blocks[i].layer >= 0 && in->dims > 0 && in->dims < 4 ? in->shape[in->dims - 1] : 0;
        width = own > width ? own : width;
    }
    return w->policy->small == WRAP_AUTO ? 10 * width : w->policy->small;
}

/* Tensors of the model's unit u that may leave it (vectors), or all. Returns how many elements they have, 0 if
 * one of them is not small: products that take several tensors at once find them side by side, all or none. */
static int64_t small_elements(const struct wrapping *w, int u, bool vectors, int64_t most)
{
    int64_t sum = 0;
    for (int i = 0; i < w->c->tensor_count; i++) {
        const struct tensor *t = &w->c->tensors[i];
        if (t->unit == u && (!vectors || t->dims < 2)) {
            if (t->numel > most) {
                return 0;
            }
            sum += t->numel;
        }
    }
    return sum;
}

/* One unit of the model after the other, as long as there is room below small_total. */
static void find_small(struct wrapping *w)
{
    const struct chain *c = w->c;
    int64_t most = most_small(w), room = w->policy->small_total;
    for (int u = 0; u < c->unit_count; u++) {
        w->all[u] = true;
    }
    for (int u = 0; u < c->unit_count && most > 0; u++) {
        int64_t all = small_elements(w, u, false, most), vectors = small_elements(w, u, true, most);
        int64_t taken = all > 0 && all <= room ? all : vectors <= room ? vectors : 0;
        for (int i = 0; i < c->tensor_count && taken > 0; i++) {
            w->small[i] |= c->tensors[i].unit == u && (taken == all || c->tensors[i].dims < 2);
        }
        room -= taken;
    }
    for (int i = 0; i < c->tensor_count; i++) {
        int unit = c->tensors[i].unit;
        if (unit >= 0) {
            w->all[w->group[unit]] &= w->small[i];
        }
    }
}

static int make(struct wrapping *w, const char *name, enum role role, bool shared, bool persistent)
{
    w->made[w->count] = (struct unit){
        .name = name, .role = role, .first_use = -1, .last_use = -1, .shared = shared, .persistent = persistent};
    return w->count++;
}

/* The new unit of a tensor. */
static int unit_for(struct wrapping *w, const struct tensor *t, bool small)
{
    struct chain *c = w->c;
    int group = w->group[t->unit], role = t->rule.role == ROLE_FROZEN;
    bool apart = small && !w->all[group];
    int *made = apart ? &w->persistent[role] : &w->made_of[group][role];
    if (*made < 0) {
        *made = make(w, apart ? "persistent" : c->units[group].name, t->rule.role,
                     apart || c->units[group].shared || w->joined[group], small);
    }
    w->made[*made].discarded |= role == 1 && c->units[t->unit].role == ROLE_TRAINED;
    return *made;
}

/* Units in the order of their first tensors; those of tensors that stay whole come last. */
static void place_tensors(struct wrapping *w)
{
    struct chain *c = w->c;
    for (int apart = 0; apart < 2; apart++) {
        for (int i = 0; i < c->tensor_count; i++) {
            const struct tensor *t = &c->tensors[i];
            if (t->unit >= 0 && (w->small[i] && !w->all[w->group[t->unit]]) == apart) {
                (void)unit_for(w, t, w->small[i]);
            }
        }
    }
    for (int i = 0; i < c->tensor_count; i++) {
        struct tensor *t = &c->tensors[i];
        if (t->unit < 0) {
            continue;
        }
        t->unit = unit_for(w, t, w->small[i]);
        struct unit *u = &w->made[t->unit];
        t->offset = (u->used + ALIGN - 1) / ALIGN * ALIGN;
        u->used = t->offset + t->numel;
        u->tensor_count++;
    }
}

static int use(struct block *b, int unit, struct unit *u)
{
    u->first_use = u->first_use < 0 ? b->index : u->first_use;
    u->last_use = b->index;
    for (int k = 0; k < b->unit_count; k++) {
        if (b->units[k] == unit) {
            return k;
        }
    }
    assert(b->unit_count < BLOCK_UNITS_MAX); /* its own and the root, trained or not; small ones of both */
    b->units[b->unit_count] = unit;
    return b->unit_count++;
}

static void place_blocks(struct wrapping *w)
{
    struct chain *c = w->c;
    for (int i = 0; i < c->block_count; i++) {
        struct block *b = &c->blocks[i];
        const int *made = w->made_of[w->group[b->unit]];
        b->unit_count = 0;
        for (int k = 0; k < b->tensor_count; k++) {
            const struct tensor *t = &c->tensors[b->tensors[k]];
            b->offsets[k] = t->offset;
            b->unit_of[k] = t->unit < 0 ? -1 : use(b, t->unit, &w->made[t->unit]);
        }
        b->unit = made[0] >= 0 ? made[0] : made[1] >= 0 ? made[1] : b->unit_count > 0 ? b->units[0] : 0;
    }
}

static bool as_the_model(const struct wrap_policy *p)
{
    return !p->whole && p->layers_per_unit <= 1 && p->min_params == 0 && p->layers.count == 0 && p->small == 0 &&
           p->frozen.count == 0;
}

int chain_wrap(struct chain *c, struct dt_error *err)
{
    size_t units = (size_t)c->unit_count;
    if (as_the_model(&c->spec.wrap) || units == 0) {
        return 0;
    }
    if (check_layers(c, &c->spec.wrap.layers, err) != 0) {
        return -1;
    }
    struct wrapping w = {.c = c,
                         .policy = &c->spec.wrap,
                         .group = dt_alloc(units * sizeof *w.group),
                         .joined = dt_alloc(units),
                         .small = dt_alloc((size_t)c->tensor_count + 1),
                         .all = dt_alloc(units),
                         .made_of = dt_alloc(units * sizeof *w.made_of),
                         .persistent = {-1, -1},
                         .made = dt_alloc((ROLES * units + ROLES) * sizeof *w.made)};
    memset(w.made_of, -1, units * sizeof *w.made_of);
    freeze(c, &w.policy->frozen);
    group_units(&w);
    find_small(&w);
    place_tensors(&w);
    place_blocks(&w);
    free(c->units);
    c->units = w.made;
    c->unit_count = w.count;
    free(w.group);
    free(w.joined);
    free(w.small);
    free(w.all);
    free(w.made_of);
    return 0;
}
