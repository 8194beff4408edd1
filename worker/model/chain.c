/* Builds chains: gives each named tensor a place in a flat unit. It does not know what blocks
 * compute; a model's build says which blocks there are. A tensor gets its offset when it is
 * declared, so a unit that several blocks share (tied embeddings and the final norm) is laid out in
 * registration order like any other. */
#include "worker/model/chain.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { ALIGN = 64 /* elements */, MEMORY_ALIGN = 128 /* bytes, as those of BF16 */ };

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Makes room for one more element of an array that grows by doubling. */
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

int chain_unit(struct chain *c, const char *name, enum role role)
{
    assert(role != ROLE_BUFFER);
    c->units = grow(c->units, c->unit_count, sizeof *c->units);
    c->units[c->unit_count] =
        (struct unit){.name = dt_arena_strdup(&c->arena, name), .role = role, .first_use = -1, .last_use = -1};
    return c->unit_count++;
}

/* The index in by_name of a tensor of that name, or of the free place for it. A hash table, because
 * models of a thousand layers have 12 000 names, and a plan that does not fit is tried in some
 * sixty ways. */
static int place_of(const struct chain *c, const char *name)
{
    size_t at = (size_t)XXH3_64bits(name, strlen(name)) & ((size_t)c->place_count - 1);
    while (c->by_name[at] != 0 && strcmp(c->tensors[c->by_name[at] - 1].name, name) != 0) {
        at = (at + 1) & ((size_t)c->place_count - 1);
    }
    return (int)at;
}

/* Index of a tensor by name, or -1. */
static int find_tensor(const struct chain *c, const char *name)
{
    return c->place_count > 0 ? c->by_name[place_of(c, name)] - 1 : -1;
}

/* Adds the newest tensor to by_name. */
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

/* Keeps the first mistake that a model or block makes. chain_add reports it. */
static void __attribute__((format(printf, 2, 3))) mistake(struct chain *c, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (c->problem.status == DT_OK) {
        (void)dt_fail(&c->problem, DT_INTERNAL, "model %s: %s", c->spec.name, text);
    }
}

static struct tensor *new_tensor(struct chain *c, int unit, const char *name, const int64_t *shape, int dims,
                                 const struct tensor_rule *rule)
{
    c->tensors = grow(c->tensors, c->tensor_count, sizeof *c->tensors);
    struct tensor *t = &c->tensors[c->tensor_count++];
    *t = (struct tensor){.name = dt_arena_strdup(&c->arena, name),
                         .dims = dims,
                         .numel = 1,
                         .rule = *rule,
                         .decay = dims >= 2,
                         .unit = rule->role == ROLE_BUFFER ? -1 : unit};
    for (int i = 0; i < dims; i++) {
        t->shape[i] = shape[i];
        t->numel *= shape[i];
    }
    note_name(c);
    if (t->unit < 0) {
        if (c->constant_count > 0) {
            mistake(c, "buffer %s is declared after a constant", name);
        }
        t->offset = t->declared.offset = round_up(c->buffer_count, ALIGN);
        t->declared.unit = -1;
        c->buffer_count = t->offset + t->numel;
        return t;
    }
    struct unit *u = &c->units[unit];
    if (u->role != rule->role) {
        mistake(c, "tensor %s is %s, and its unit %s is not", name, rule->role == ROLE_FROZEN ? "frozen" : "trained",
                u->name);
    }
    t->offset = t->declared.offset = round_up(u->used, ALIGN);
    t->declared.unit = unit;
    u->used = t->offset + t->numel;
    u->tensor_count++;
    c->parameter_count += t->numel;
    return t;
}

/* The index of a unit among the block's units; adds it if it is new. */
static int use_unit(struct block *b, int unit)
{
    for (int i = 0; i < b->unit_count; i++) {
        if (b->units[i] == unit) {
            return i;
        }
    }
    struct unit *u = &b->chain->units[unit];
    assert(b->unit_count < BLOCK_UNITS_MAX);
    u->shared = u->first_use >= 0;
    u->first_use = u->shared ? u->first_use : b->index;
    u->last_use = b->index;
    b->units[b->unit_count] = unit;
    return b->unit_count++;
}

int block_tensor_in(struct block *b, int unit, const char *name, const int64_t *shape, int dims,
                    const struct tensor_rule *rule)
{
    struct chain *c = b->chain;
    assert(b->tensor_count < BLOCK_TENSORS_MAX && dims >= 0 && dims <= TENSOR_DIMS_MAX);
    int at = find_tensor(c, name);
    const struct tensor *t = at >= 0 ? &c->tensors[at] : new_tensor(c, unit, name, shape, dims, rule);
    if (t->dims != dims || (dims > 0 && memcmp(t->shape, shape, (size_t)dims * sizeof *shape) != 0)) {
        mistake(c, "tied tensor %s has two shapes", name);
    } else if (t->rule.role != rule->role) {
        mistake(c, "tied tensor %s has two roles", name);
    }
    b->tensors[b->tensor_count] = (int)(t - c->tensors);
    b->offsets[b->tensor_count] = t->offset;
    b->unit_of[b->tensor_count] = t->unit >= 0 ? use_unit(b, t->unit) : -1;
    return b->tensor_count++;
}

int block_tensor(struct block *b, const char *name, const int64_t *shape, int dims, const struct tensor_rule *rule)
{
    return block_tensor_in(b, b->unit, name, shape, dims, rule);
}

int block_memory(struct block *b, const char *name, enum life life, int again_from, int64_t count, enum dt_dtype type)
{
    assert(b->memory_count < BLOCK_MEMORY_MAX);
    enum memory_place place = life == LIFE_CALL                 ? PLACE_CALL
                              : life == LIFE_CACHE              ? PLACE_CACHE
                              : (int)b->recompute >= again_from ? PLACE_AGAIN
                                                                : PLACE_KEPT;
    size_t size_bytes = ((size_t)count * dt_dtype_size(type) + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
    b->chain->recomputes |= life == LIFE_BACKWARD && again_from < RECOMPUTE_NEVER;
    b->memory[b->memory_count] =
        (struct block_memory){.name = name, .place = place, .offset = b->bytes[place], .size_bytes = size_bytes};
    b->bytes[place] += size_bytes;
    return b->memory_count++;
}

int block_constant(struct block *b, const char *name, int64_t numel,
                   void (*fill)(const void *args, int64_t first, int64_t count, double *out), const void *args,
                   size_t args_bytes)
{
    struct chain *c = b->chain;
    int at = 0;
    while (at < c->constant_count && strcmp(c->constants[at].name, name) != 0) {
        at++;
    }
    if (at == c->constant_count) {
        void *own = dt_arena_alloc(&c->arena, args_bytes + 1);
        memcpy(own, args, args_bytes);
        int64_t offset = round_up(chain_buffers(c), ALIGN);
        c->constants = grow(c->constants, c->constant_count, sizeof *c->constants);
        c->constants[c->constant_count++] = (struct constant){
            .name = dt_arena_strdup(&c->arena, name), .numel = numel, .offset = offset, .fill = fill, .args = own};
    } else if (c->constants[at].numel != numel) {
        mistake(c, "constant %s has two sizes", name);
    }
    assert(b->constant_count < BLOCK_CONSTANTS_MAX);
    b->constants[b->constant_count] = c->constants[at].offset;
    return b->constant_count++;
}

int64_t chain_buffers(const struct chain *c)
{
    const struct constant *last = c->constant_count > 0 ? &c->constants[c->constant_count - 1] : NULL;
    return last != NULL ? last->offset + last->numel : c->buffer_count;
}

int block_field(struct block *b, const char *name)
{
    int at = batch_find(&b->chain->batch, name);
    if (at < 0) {
        mistake(b->chain, "block %s reads %s, which a batch does not have", b->ops->name, name);
    }
    b->takes_batch = true;
    return at;
}

void block_numbers(struct block *b)
{
    if (batch_numbers(&b->chain->batch) < 0) {
        assert(b->chain->batch.count < BATCH_FIELDS_MAX);
        batch_add_numbers(&b->chain->batch, b->spec->batch_size);
    }
}

static void put_flow(const struct flow *f, char *out, size_t out_bytes)
{
    int at = snprintf(out, out_bytes, "%s of %s (", f->pair ? "a pair" : "one", dt_dtype_name(f->type));
    for (int d = 0; d < f->dims; d++) {
        at += snprintf(out + at, out_bytes - (size_t)at, "%s%lld", d > 0 ? ", " : "", (long long)f->shape[d]);
    }
    (void)snprintf(out + at, out_bytes - (size_t)at, ")");
}

/* Checks that a block's input is the previous block's output. A missing branch is allowed. */
static void check_flow(const struct block *b)
{
    static const struct flow nothing;
    const struct flow *from = b->index > 0 ? &b[-1].out : &nothing, *to = &b->in;
    bool fits = from->dims == to->dims && memcmp(from->shape, to->shape, sizeof to->shape) == 0 &&
                (to->dims == 0 || from->type == to->type) && (!from->pair || to->pair);
    char given[128], taken[128];
    if (!fits) {
        put_flow(from, given, sizeof given);
        put_flow(to, taken, sizeof taken);
        mistake(b->chain, "block %d, %s, takes %s, and before it %s gives %s", b->index, b->ops->name, taken,
                b->index > 0 ? b[-1].ops->name : "the batch", given);
    }
}

static size_t flow_bytes(const struct flow *f)
{
    int64_t count = f->dims > 0 ? 1 : 0;
    for (int d = 0; d < f->dims; d++) {
        count *= f->shape[d];
    }
    return (size_t)count * dt_dtype_size(f->type);
}

static void check_input(const struct block *b)
{
    if (b->reads_x && (b->index == 0 || b[-1].y_memory < 0)) {
        mistake(b->chain, "block %d, %s, reads its input in backward, and the block before it does not keep it",
                b->index, b->ops->name);
    }
}

/* Chooses the slot of the output: that of the input for a block in place, the other one
 * otherwise. */
static void place_output(struct chain *c, struct block *b)
{
    size_t bytes = flow_bytes(&b->out);
    b->slot = b->index == 0 ? 0 : b->in_place ? b[-1].slot : 1 - b[-1].slot;
    c->slot_bytes[b->slot] = bytes > c->slot_bytes[b->slot] ? bytes : c->slot_bytes[b->slot];
    if (b->out.pair) {
        c->branch_bytes[b->slot] = bytes > c->branch_bytes[b->slot] ? bytes : c->branch_bytes[b->slot];
    }
}

int chain_add(struct chain *c, const struct block_ops *ops, int unit, int layer, const void *args, size_t args_bytes,
              struct dt_error *err)
{
    c->blocks = grow(c->blocks, c->block_count, sizeof *c->blocks);
    struct block *b = &c->blocks[c->block_count];
    void *own = dt_arena_alloc(&c->arena, args_bytes + 1);
    memcpy(own, args, args_bytes);
    *b = (struct block){.ops = ops,
                        .chain = c,
                        .spec = &c->spec,
                        .args = own,
                        .index = c->block_count,
                        .layer = layer,
                        .unit = unit,
                        .y_memory = -1,
                        .logits_memory = -1};
    bool chosen = layer >= 0 && layer % (c->spec.recompute_every > 0 ? c->spec.recompute_every : 1) == 0;
    b->recompute = chosen ? c->spec.recompute : RECOMPUTE_CHEAP;
    c->block_count++;
    if (ops->declare(b, err) != 0) {
        return dt_wrap(err, "model %s", c->spec.name);
    }
    check_flow(b);
    check_input(b);
    place_output(c, b);
    if (c->problem.status != DT_OK) {
        *err = c->problem;
        return -1;
    }
    return 0;
}

/* Marks tensors to whose gradient a block's backward adds, because a later block writes it
 * first. */
static void mark_adds(struct chain *c)
{
    bool *later = dt_alloc((size_t)c->tensor_count + 1);
    for (int i = c->block_count - 1; i >= 0; i--) {
        struct block *b = &c->blocks[i];
        for (int k = 0; k < b->tensor_count; k++) {
            b->adds[k] = later[b->tensors[k]];
        }
        for (int k = 0; k < b->tensor_count; k++) {
            later[b->tensors[k]] = true;
        }
    }
    free(later);
}

static int check_size(const char *name, int64_t value, int64_t least, int64_t most, struct dt_error *err)
{
    if (value < least || value > most) {
        return dt_fail(err, DT_INVALID, "model: %s: %lld is not between %lld and %lld", name, (long long)value,
                       (long long)least, (long long)most);
    }
    return 0;
}

/* Checks each value by its rule, whoever set it. So no product of sizes reaches 2^63. */
static int check_sizes(const struct model_ops *ops, const void *sizes, struct dt_error *err)
{
    for (const struct dt_field *f = ops->fields; f->key != NULL; f++) {
        if (f->rule->type == DT_RULE_INTEGER) {
            int64_t value = model_integer(ops, sizes, f->key);
            if (!(f->rule->null && value == f->rule->null_value) &&
                check_size(f->key, value, (int64_t)f->rule->min, (int64_t)f->rule->max, err) != 0) {
                return -1;
            }
        }
    }
    const char *key;
    return ops->check == NULL || ops->check(sizes, &key, err) == 0 ? 0 : dt_wrap(err, "model");
}

static int check_spec(const struct model_ops *ops, const struct model_spec *m, struct dt_error *err)
{
    const int64_t most = 1 << 24;
    if (check_sizes(ops, m->sizes, err) != 0 || check_size("batch size", m->batch_size, 1, 1 << 20, err) != 0 ||
        check_size("sequence length", m->sequence_length, 1, most, err) != 0 ||
        check_size("cache length", m->cache_length, 0, most, err) != 0) {
        return -1;
    }
    int64_t positions = ops->positions != NULL ? model_integer(ops, m->sizes, ops->positions) : 1,
            longest = m->cache_length > m->sequence_length ? m->cache_length : m->sequence_length;
    if (longest > positions) {
        return dt_fail(err, DT_INVALID,
                       "model: sequence length %lld is more than %s %lld; shorten sequences or raise %s",
                       (long long)longest, ops->positions != NULL ? ops->positions : "one sample's",
                       (long long)positions, ops->positions != NULL ? ops->positions : "none");
    }
    if (m->type != DT_F32 && m->type != DT_F64 && !dt_dtype_half(m->type)) {
        return dt_fail(err, DT_INVALID, "model: compute type %s: only F32, BF16 and F16 (F64 in tests)",
                       dt_dtype_name(m->type));
    }
    return 0;
}

int chain_open_as(struct chain *c, const struct model_ops *ops, const struct model_spec *spec, int shards,
                  struct dt_error *err)
{
    assert(shards >= 1);
    *c = (struct chain){.spec = *spec, .shards = shards};
    dt_arena_init(&c->arena);
    void *sizes = dt_arena_alloc(&c->arena, ops->sizes_bytes);
    memcpy(sizes, spec->sizes, ops->sizes_bytes);
    c->spec.name = ops->name;
    c->spec.sizes = sizes;
    if (check_spec(ops, &c->spec, err) != 0) {
        chain_close(c);
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
    if (chain_wrap(c, err) != 0) {
        chain_close(c);
        return -1;
    }
    mark_adds(c);
    for (int i = 0; i < c->unit_count; i++) {
        c->units[i].numel = round_up(c->units[i].used, (int64_t)shards * ALIGN);
    }
    return 0;
}

int chain_open(struct chain *c, const struct model_spec *spec, int shards, struct dt_error *err)
{
    const struct model_ops *ops = spec->name != NULL ? model_find(spec->name) : NULL;
    if (ops == NULL) {
        *c = (struct chain){.spec = *spec};
        struct dt_text names;
        dt_text_init(&names);
        model_list(&names);
        (void)dt_fail(err, DT_INVALID, "model: unknown name \"%s\"; there are: %s",
                      spec->name != NULL ? spec->name : "", dt_text_str(&names));
        dt_text_clear(&names);
        return -1;
    }
    return chain_open_as(c, ops, spec, shards, err);
}

void chain_close(struct chain *c)
{
    free(c->blocks);
    free(c->units);
    free(c->tensors);
    free(c->constants);
    free(c->by_name);
    dt_arena_clear(&c->arena);
    *c = (struct chain){.blocks = NULL};
}

bool span_of(int64_t offset, int64_t numel, int64_t first, int64_t count, struct span *out)
{
    int64_t begin = offset > first ? offset : first, end = offset + numel;
    end = end < first + count ? end : first + count;
    *out = (struct span){.at = begin - first, .first = begin - offset, .count = end - begin};
    return end > begin;
}

bool tensor_span(const struct tensor *t, int64_t first, int64_t count, struct span *out)
{
    bool here = span_of(t->offset, t->numel, first, count, out);
    out->tensor = t;
    return here;
}

/* ---- for the passes of blocks ---- */

const void *pass_weight(const struct block *b, const struct pass *p, int i)
{
    assert(i >= 0 && i < b->tensor_count && b->unit_of[i] >= 0);
    return (const char *)p->weights[b->unit_of[i]] + b->offsets[i] * (int64_t)dt_dtype_size(b->spec->type);
}

void *pass_grad(const struct block *b, const struct pass *p, int i)
{
    assert(i >= 0 && i < b->tensor_count && b->unit_of[i] >= 0);
    char *unit = p->grads[b->unit_of[i]];
    return unit != NULL ? unit + b->offsets[i] * (int64_t)dt_dtype_size(pass_grad_type(b, p)) : NULL;
}

bool block_trains(const struct block *b, int i)
{
    return b->chain->tensors[b->tensors[i]].rule.role == ROLE_TRAINED;
}

bool pass_adds(const struct block *b, const struct pass *p, int i)
{
    return p->accumulate[b->unit_of[i]] || b->adds[i];
}

void *pass_buffer(const struct block *b, const struct pass *p, int i)
{
    assert(i >= 0 && i < b->tensor_count && b->unit_of[i] < 0);
    return (char *)p->buffers + b->offsets[i] * (int64_t)dt_dtype_size(dt_dtype_wide(b->spec->type));
}

const void *pass_constant(const struct block *b, const struct pass *p, int i)
{
    assert(i >= 0 && i < b->constant_count);
    return (const char *)p->buffers + b->constants[i] * (int64_t)dt_dtype_size(dt_dtype_wide(b->spec->type));
}

enum dt_dtype pass_grad_type(const struct block *b, const struct pass *p)
{
    return dt_dtype_half(b->spec->type) ? p->grad_type : b->spec->type;
}

void *pass_memory(const struct block *b, const struct pass *p, int number)
{
    assert(number >= 0 && number < b->memory_count);
    const struct block_memory *m = &b->memory[number];
    return m->size_bytes > 0 ? (char *)p->memory[m->place] + m->offset : NULL;
}
