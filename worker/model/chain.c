/* Builds chains: names of tensors become places in flat units. Knows nothing of what blocks
 * compute; the table of models says which blocks there are. Offsets are given out when the last
 * block was declared, so a unit that several blocks share (tied embeddings and the final norm)
 * is laid out in registration order like any other. */
#include "worker/model/chain.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { ALIGN = 64 }; /* elements */

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Room for one more element of an array that grows by doubling. */
static void *grow(void *array, int count, size_t element_bytes)
{
    if (count >= 8 && (count & (count - 1)) != 0) {
        return array;
    }
    if (count > 0 && count < 8) {
        return array;
    }
    return dt_realloc(array, (size_t)(count < 8 ? 8 : 2 * count) * element_bytes);
}

int chain_unit(struct chain *c, const char *name)
{
    c->units = grow(c->units, c->unit_count, sizeof *c->units);
    c->units[c->unit_count] = (struct unit){.name = dt_arena_strdup(&c->arena, name), .first_use = -1, .last_use = -1};
    return c->unit_count++;
}

/* Where in by_name a tensor of that name is, or would be. Models of a thousand layers have 12
 * 000 names, and a plan that does not fit is tried in some sixty ways. */
static int place_of(const struct chain *c, const char *name)
{
    size_t at = (size_t)XXH3_64bits(name, strlen(name)) & ((size_t)c->place_count - 1);
    while (c->by_name[at] != 0 && strcmp(c->tensors[c->by_name[at] - 1].name, name) != 0) {
        at = (at + 1) & ((size_t)c->place_count - 1);
    }
    return (int)at;
}

/* The index of a tensor, or -1. */
static int find_tensor(const struct chain *c, const char *name)
{
    return c->place_count > 0 ? c->by_name[place_of(c, name)] - 1 : -1;
}

/* The newest one can be found from now on. */
static void note_name(struct chain *c)
{
    if (2 * c->tensor_count > c->place_count) {
        c->place_count = c->place_count > 0 ? 2 * c->place_count : 64;
        free(c->by_name);
        c->by_name = dt_alloc((size_t)c->place_count * sizeof *c->by_name);
        for (int i = 0; i < c->tensor_count; i++) {
            c->by_name[place_of(c, c->tensors[i].name)] = i + 1;
        }
    } else {
        c->by_name[place_of(c, c->tensors[c->tensor_count - 1].name)] = c->tensor_count;
    }
}

/* Fails (later, in chain_add) when a name comes back with another shape or in another unit. */
static void check_tied(struct block *b, const struct tensor *t, const int64_t *shape, int dims)
{
    struct chain *c = b->chain;
    if (c->problem.status != DT_OK) {
        return;
    }
    if (t->unit != b->unit) {
        (void)dt_fail(&c->problem, DT_INTERNAL,
                      "model %s: tied tensor %s is used in unit %s and in unit %s; put both uses in one unit",
                      c->spec.name, t->name, c->units[t->unit].name, c->units[b->unit].name);
    } else if (t->dims != dims || memcmp(t->shape, shape, (size_t)dims * sizeof *shape) != 0) {
        (void)dt_fail(&c->problem, DT_INTERNAL, "model %s: tied tensor %s has two shapes", c->spec.name, t->name);
    }
}

int block_tensor(struct block *b, const char *name, const int64_t *shape, int dims, enum init_kind init,
                 double init_std)
{
    struct chain *c = b->chain;
    assert(b->tensor_count < BLOCK_TENSORS_MAX && dims >= 1 && dims <= TENSOR_DIMS_MAX);
    int at = find_tensor(c, name);
    if (at >= 0) {
        check_tied(b, &c->tensors[at], shape, dims);
    } else {
        at = c->tensor_count;
        c->tensors = grow(c->tensors, c->tensor_count, sizeof *c->tensors);
        c->tensor_count++;
        struct tensor *t = &c->tensors[at];
        *t = (struct tensor){.name = dt_arena_strdup(&c->arena, name),
                             .dims = dims,
                             .numel = 1,
                             .init = init,
                             .init_std = init_std,
                             .decay = dims >= 2,
                             .unit = b->unit};
        for (int i = 0; i < dims; i++) {
            t->shape[i] = shape[i];
            t->numel *= shape[i];
        }
        struct unit *u = &c->units[b->unit];
        t->offset = round_up(u->used, ALIGN);
        u->used = t->offset + t->numel;
        u->tensor_count++;
        c->parameter_count += t->numel;
        note_name(c);
    }
    b->tensors[b->tensor_count] = at;
    b->offsets[b->tensor_count] = c->tensors[at].offset;
    return b->tensor_count++;
}

int chain_add(struct chain *c, const struct block_ops *ops, int unit, int layer, struct dt_error *err)
{
    c->blocks = grow(c->blocks, c->block_count, sizeof *c->blocks);
    struct block *b = &c->blocks[c->block_count];
    *b =
        (struct block){.ops = ops, .chain = c, .spec = &c->spec, .index = c->block_count, .layer = layer, .unit = unit};
    bool chosen = layer >= 0 && layer % (c->spec.recompute_every > 0 ? c->spec.recompute_every : 1) == 0;
    b->recompute = chosen ? c->spec.recompute : RECOMPUTE_CHEAP;
    c->block_count++;
    struct unit *u = &c->units[unit];
    u->shared = u->first_use >= 0;
    u->first_use = u->shared ? u->first_use : b->index;
    u->last_use = b->index;
    if (ops->declare(b, &c->spec, err) != 0) {
        return dt_wrap(err, "model %s", c->spec.name);
    }
    if (c->problem.status != DT_OK) {
        *err = c->problem;
        return -1;
    }
    return 0;
}

/* A block's backward adds to what a later block has written. */
static void mark_adds(struct chain *c)
{
    for (int i = 0; i < c->block_count; i++) {
        struct block *b = &c->blocks[i];
        for (int j = i + 1; j < c->block_count; j++) {
            const struct block *later = &c->blocks[j];
            for (int k = 0; later->unit == b->unit && k < b->tensor_count * later->tensor_count; k++) {
                int mine = k / later->tensor_count;
                b->adds[mine] = b->adds[mine] || b->tensors[mine] == later->tensors[k % later->tensor_count];
            }
        }
    }
}

static int check_size(const char *name, int64_t value, int64_t most, struct dt_error *err)
{
    if (value < 1 || value > most) {
        return dt_fail(err, DT_INVALID, "model: %s: %lld is not between 1 and %lld", name, (long long)value,
                       (long long)most);
    }
    return 0;
}

/* Bounds that keep every product below 2^63; what makes sense for one model only is checked by
 * its blocks. */
static int check_spec(const struct model_spec *m, struct dt_error *err)
{
    const int64_t most = 1 << 24;
    if (check_size("n_layer", m->layers, 100000, err) != 0 || check_size("n_head", m->heads, most, err) != 0 ||
        check_size("n_embd", m->channels, most, err) != 0 || check_size("n_positions", m->positions, most, err) != 0 ||
        check_size("vocab_size", m->vocabulary, 1 << 30, err) != 0 || check_size("n_inner", m->inner, most, err) != 0 ||
        check_size("batch size", m->batch_size, 1 << 20, err) != 0 ||
        check_size("sequence length", m->sequence_length, most, err) != 0) {
        return -1;
    }
    if (m->channels % m->heads != 0) {
        return dt_fail(err, DT_INVALID, "model: n_embd %lld is not a multiple of n_head %lld", (long long)m->channels,
                       (long long)m->heads);
    }
    if (m->sequence_length > m->positions) {
        return dt_fail(
            err, DT_INVALID,
            "model: sequence length %lld is more than n_positions %lld; shorten sequences or raise n_positions",
            (long long)m->sequence_length, (long long)m->positions);
    }
    if (m->type != DT_F32 && m->type != DT_F64 && m->type != DT_BF16) {
        return dt_fail(err, DT_INVALID, "model: compute type %s: only F32 and BF16 (F64 in tests)",
                       dt_dtype_name(m->type));
    }
    return 0;
}

int chain_open(struct chain *c, const struct model_spec *spec, int shards, struct dt_error *err)
{
    assert(shards >= 1);
    *c = (struct chain){.spec = *spec, .shards = shards};
    dt_arena_init(&c->arena);
    const struct model_ops *ops = spec->name != NULL ? model_find(spec->name) : NULL;
    if (ops == NULL) {
        return dt_fail(err, DT_INVALID, "model: unknown name \"%s\"; there are: %s",
                       spec->name != NULL ? spec->name : "", model_names());
    }
    c->spec.name = ops->name;
    if (check_spec(spec, err) != 0) {
        return -1;
    }
    struct dt_error problem = {.status = DT_OK};
    if (ops->build(c, &problem) != 0) {
        if (err != NULL) {
            *err = problem;
        }
        chain_close(c);
        return -1;
    }
    mark_adds(c);
    for (int i = 0; i < c->unit_count; i++) {
        c->units[i].numel = round_up(c->units[i].used, (int64_t)shards * ALIGN);
    }
    return 0;
}

void chain_close(struct chain *c)
{
    free(c->blocks);
    free(c->units);
    free(c->tensors);
    free(c->by_name);
    dt_arena_clear(&c->arena);
    *c = (struct chain){.blocks = NULL};
}

void *block_at(const struct block *b, const void *flat, int i, enum dt_dtype type)
{
    assert(i >= 0 && i < b->tensor_count);
    return (char *)(uintptr_t)flat + b->offsets[i] * (int64_t)dt_dtype_size(type);
}
