/* Runs the chain's forward: the same blocks as in training, with a cache of keys and values. A prompt is
 * computed alone, in pieces; then all rows of a batch advance together, one id each. So most of the time the
 * weights are read once for a whole batch. */
#include "worker/run/generate.h"

#include "kernels/device.h"
#include "kernels/kernels.h"
#include "worker/engine/world.h"
#include "worker/model/chain_walk.h"

#include <stdlib.h>
#include <string.h>

#define PASS_TIMEOUT_S 600

enum { PIECE_ROWS = 512, PIECE_LEAST = 16 }; /* rows of a full batch; positions of a prompt's piece */

struct generator {
    const struct generate_options *options;
    struct generate_row *rows; /* all of them */
    int64_t row_count;
    struct dt_device device;
    struct dt_stream *stream;
    struct chain chain;
    struct chain_walk walk;
    void *memory, **kept, **caches; /* kept: of each block, one and the same */
    size_t memory_bytes;
    bool own_memory; /* allocated here */
    char **units;
    float *logits; /* (batch_size, V) */
    uint64_t *keys;
    int32_t *positions;
    int64_t capacity, limit; /* ids that a row sees at most; that it may have */
    struct batch batch;
    struct batch_past *past;
    int64_t *logits_rows;
};

/* A row on its way. It sees its ids from `from` on; `kept` of them are in the cache. */
struct speaker {
    int64_t row, slot, from, kept;
    bool over;
};

/* ---- what is asked for ---- */

/* Refuses a model whose targets are no tokens, or not the next ones, or whose blocks, opened with a
 * cache, have none, because a token sees those behind it. */
static int check_writes(const struct model_ops *model, const struct chain *c, struct dt_error *err)
{
    int targets = batch_targets(&c->batch);
    if (model->positions == NULL || targets < 0 || !c->batch.field[targets].from_ids) {
        return dt_fail(err, DT_INVALID, "the model is a %s, which writes no text", model->name);
    }
    bool shifted = c->batch.field[targets].shifted;
    return shifted && chain_most(c, PLACE_CACHE) > 0
               ? 0
               : dt_fail(err, DT_INVALID, "the model is a %s with %s false, which writes no text", model->name,
                         shifted ? "causal" : "shift_labels");
}

static int64_t vocabulary_of(const struct chain *c)
{
    return c->batch.field[batch_find(&c->batch, "input_ids")].below;
}

static struct model_spec spec_of(const struct model_source *source, int64_t batch_size, int64_t length)
{
    return (struct model_spec){.name = source->model->name,
                               .sizes = source->sizes.bytes,
                               .batch_size = batch_size,
                               .sequence_length = length,
                               .recompute = RECOMPUTE_CHEAP,
                               .type = DT_F32};
}

int generate_limits(const struct model_source *source, int64_t *vocabulary, int64_t *positions, struct dt_error *err)
{
    const struct model_ops *model = source->model;
    struct model_spec spec = spec_of(source, 1, 1);
    struct chain c = {0};
    spec.cache_length = 1;
    int rc = chain_open(&c, &spec, 1, err) == 0 ? check_writes(model, &c, err) : -1;
    if (rc == 0) {
        *vocabulary = vocabulary_of(&c);
        *positions = model_integer(model, source->sizes.bytes, model->positions);
    }
    chain_close(&c);
    return rc;
}

static int check_row(const struct generate_row *r, int64_t number, int64_t vocabulary, int64_t limit,
                     int64_t max_length, struct dt_error *err)
{
    if (r->prompt_count < 1) {
        return dt_fail(err, DT_INVALID, "prompt %lld is empty; give at least one id", (long long)number + 1);
    }
    if (r->prompt_count > limit) {
        return dt_fail(err, DT_INVALID, "prompt %lld has %lld ids, and the model %lld positions; shorten it",
                       (long long)number + 1, (long long)r->prompt_count, (long long)limit);
    }
    if (max_length > 0 && r->prompt_count >= max_length) {
        return dt_fail(err, DT_INVALID,
                       "prompt %lld has %lld ids, and max_length of generation_config.json is %lld, prompt included; "
                       "give generation.max_new_tokens",
                       (long long)number + 1, (long long)r->prompt_count, (long long)max_length);
    }
    for (int64_t i = 0; i < r->prompt_count; i++) {
        if (r->ids[i] < 0 || r->ids[i] >= vocabulary) {
            return dt_fail(err, DT_INVALID, "prompt %lld has id %d; the model knows 0 to %lld", (long long)number + 1,
                           r->ids[i], (long long)vocabulary - 1);
        }
    }
    return 0;
}

/* ---- memory ---- */

static size_t round_up(size_t size_bytes)
{
    return (size_bytes + 63) / 64 * 64;
}

/* Hands out the next piece of the memory; before there is any, counts what is needed. */
static void *take(struct generator *g, size_t *at, size_t size_bytes)
{
    void *piece = g->memory != NULL ? (char *)g->memory + *at : NULL;
    *at += round_up(size_bytes);
    return piece;
}

/* Gives each thing its place; returns the bytes of all. */
static size_t place_all(struct generator *g)
{
    const struct chain *c = &g->chain;
    struct chain_walk *w = &g->walk;
    size_t at = 0;
    for (int u = 0; u < c->unit_count; u++) {
        g->units[u] = take(g, &at, (size_t)c->units[u].numel * sizeof(float));
    }
    w->buffers = take(g, &at, (size_t)chain_buffers(c) * sizeof(float));
    for (int i = 0; i < 2; i++) {
        w->y[i] = take(g, &at, c->slot_bytes[i]);
        w->y_branch[i] = take(g, &at, c->branch_bytes[i]);
    }
    void *kept = take(g, &at, chain_most(c, PLACE_KEPT));
    for (int i = 0; i < c->block_count; i++) {
        g->kept[i] = kept;
        g->caches[i] = take(g, &at, c->blocks[i].bytes[PLACE_CACHE]);
    }
    w->again = take(g, &at, chain_most(c, PLACE_AGAIN));
    w->scratch = take(g, &at, chain_most(c, PLACE_CALL));
    for (int k = 0; k < c->batch.count; k++) {
        g->batch.at[k] = take(g, &at, (size_t)batch_elements(&c->batch, k) * dt_dtype_size(c->batch.field[k].type));
    }
    g->positions = take(g, &at, (size_t)(c->spec.batch_size * c->spec.sequence_length) * sizeof *g->positions);
    g->logits = take(g, &at, (size_t)(c->spec.batch_size * vocabulary_of(c)) * sizeof(float));
    g->keys = take(g, &at, (size_t)vocabulary_of(c) * sizeof *g->keys);
    return at;
}

static bool enter(const struct chain_walk *w, const struct block *b, struct pass *p)
{
    const struct generator *g = w->context;
    for (int k = 0; k < b->unit_count; k++) {
        p->weights[k] = g->units[b->units[k]];
    }
    return true;
}

/* The lists of what lies in the memory, and the bytes of that. */
static void measure(struct generator *g)
{
    const struct chain *c = &g->chain;
    g->units = dt_alloc((size_t)c->unit_count * sizeof *g->units);
    g->kept = dt_alloc((size_t)c->block_count * sizeof *g->kept);
    g->caches = dt_alloc((size_t)c->block_count * sizeof *g->caches);
    g->past = dt_alloc((size_t)c->spec.batch_size * sizeof *g->past);
    g->logits_rows = dt_alloc((size_t)c->spec.batch_size * sizeof *g->logits_rows);
    g->batch.layout = &c->batch;
    g->memory_bytes = place_all(g);
}

int generator_open(struct generator *g, void *memory, struct dt_error *err)
{
    static const struct walk_hooks hooks = {.enter = enter};
    const struct chain *c = &g->chain;
    int threads = g->options->threads;
    const struct dt_device_options device = {.thread_count = threads > 0 ? threads : world_cores(),
                                             .local_rank_count = 1};
    if (dt_device_open(&g->device, "cpu", &device, err) != 0 || dt_stream_open(&g->device, 0, &g->stream, err) != 0) {
        return -1;
    }
    g->memory = memory;
    g->own_memory = memory == NULL;
    if (g->own_memory && dt_device_alloc(&g->device, DT_MEMORY_DEVICE, g->memory_bytes, &g->memory, err) != 0) {
        return -1;
    }
    bool caches = c->spec.cache_length > 0;
    (void)place_all(g);
    g->walk.chain = c;
    g->walk.stream = g->stream;
    g->walk.kernels = g->device.kernels;
    g->walk.kept = g->kept;
    g->walk.caches = caches ? g->caches : NULL;
    g->walk.hooks = &hooks;
    g->walk.context = g;
    g->batch.past = caches ? g->past : NULL;
    g->batch.positions = caches ? g->positions : NULL;
    init_unit(c, -1, 0, 0, chain_buffers(c), DT_F32, g->walk.buffers);
    return 0;
}

int generator_read(struct generator *g, const struct model_source *source, struct dt_error *err)
{
    return model_source_read(source, &g->chain, g->units, g->walk.buffers, err);
}

size_t generator_bytes(const struct generator *g)
{
    return g->memory_bytes;
}

const struct chain *generator_chain(const struct generator *g)
{
    return &g->chain;
}

float *generator_unit(struct generator *g, int unit)
{
    return (float *)(void *)g->units[unit];
}

void generator_close(struct generator *g)
{
    if (g == NULL) {
        return;
    }
    if (g->memory != NULL && g->own_memory) {
        dt_device_free(&g->device, DT_MEMORY_DEVICE, g->memory, g->memory_bytes);
    }
    free(g->units);
    free(g->kept);
    free(g->caches);
    free(g->past);
    free(g->logits_rows);
    chain_close(&g->chain);
    dt_stream_close(g->stream);
    dt_device_close(&g->device);
    free(g);
}

/* ---- ids ---- */

/* Ids that the row sees and that are not computed yet. */
static int64_t left_of(const struct generator *g, const struct speaker *s)
{
    return g->rows[s->row].count - s->from - s->kept;
}

/* Computes the next `length` ids of each of these rows, and the logits behind them. */
static int compute(struct generator *g, struct speaker *const *speakers, int64_t count, int64_t length,
                   struct dt_error *err)
{
    int32_t *ids = g->batch.at[batch_find(g->batch.layout, "input_ids")];
    for (int64_t i = 0; i < count; i++) {
        struct speaker *s = speakers[i];
        for (int64_t t = 0; t < length; t++) {
            ids[i * length + t] = g->rows[s->row].ids[s->from + s->kept + t];
            g->positions[i * length + t] = (int32_t)(s->kept + t);
        }
        g->past[i] = (struct batch_past){.slot = s->slot, .length = s->kept};
        g->logits_rows[i] = (i + 1) * length - 1;
        s->kept += g->walk.caches != NULL ? length : 0;
    }
    g->batch.samples = count;
    g->batch.length = length;
    const struct walk_loss asked = {.logits = g->logits, .logits_rows = g->logits_rows, .logits_count = count};
    chain_forward(&g->walk, PASS_EVAL, &g->batch, &asked);
    return dt_stream_finish(g->stream, PASS_TIMEOUT_S, err);
}

static bool stops_at(const struct generate_options *o, int32_t id)
{
    bool found = false;
    for (int i = 0; i < o->stop_count; i++) {
        found = found || o->stops[i] == id;
    }
    return found;
}

/* Sets whether the row is over, and why. */
static void judge(const struct generator *g, struct speaker *s, bool stopped)
{
    struct generate_row *r = &g->rows[s->row];
    bool enough = r->count - r->prompt_count >= g->options->max_new_tokens ||
                  (g->options->max_length > 0 && r->count >= g->options->max_length);
    s->over = stopped || enough || r->count >= g->limit;
    r->end = stopped ? GENERATE_STOPPED : enough ? GENERATE_LENGTH : GENERATE_POSITIONS;
}

/* A full context loses its older half. */
static void forget(const struct generator *g, struct speaker *s)
{
    int64_t count = g->rows[s->row].count;
    if (count - s->from > g->capacity) {
        s->from = count - (g->capacity + 1) / 2;
        s->kept = 0;
    }
}

/* Appends an id to the row, by its logits, which change. */
static int choose(struct generator *g, struct speaker *s, float *logits, struct dt_error *err)
{
    const struct generate_options *o = g->options;
    struct generate_row *r = &g->rows[s->row];
    int64_t vocabulary = vocabulary_of(&g->chain);
    int64_t n = sampling_keep(&o->sampling, logits, vocabulary, r->ids, r->count, g->keys);
    if (n == 0) {
        return dt_fail(err, DT_INVALID, "the model's logits are no numbers; its weights are broken");
    }
    double u = sampling_uniform(o->seed, s->row, r->count);
    r->ids[r->count++] = sampling_draw(g->keys + vocabulary - n, n, u);
    if (o->tell != NULL && !o->tell(o->context, s->row, r->ids[r->count - 1])) {
        return dt_fail(err, DT_STOPPED, "told to stop");
    }
    judge(g, s, stops_at(o, r->ids[r->count - 1]));
    forget(g, s);
    return 0;
}

/* Gives a row its next id: computes what is left of it, piece by piece. */
static int advance_alone(struct generator *g, struct speaker *s, struct dt_error *err)
{
    int64_t piece = g->chain.spec.sequence_length, left = left_of(g, s);
    while (left > 0) {
        int64_t length = left < piece ? left : piece;
        if (compute(g, &s, 1, length, err) != 0) {
            return -1;
        }
        left -= length;
    }
    return choose(g, s, g->logits, err);
}

static int advance_together(struct generator *g, struct speaker *const *speakers, int64_t count, struct dt_error *err)
{
    int rc = compute(g, speakers, count, 1, err);
    for (int64_t i = 0; i < count && rc == 0; i++) {
        rc = choose(g, speakers[i], g->logits + i * vocabulary_of(&g->chain), err);
    }
    return rc;
}

/* Rows [first, first + count), until all are over. */
static int generate_batch(struct generator *g, int64_t first, int64_t count, struct dt_error *err)
{
    struct speaker *all = dt_alloc((size_t)count * sizeof *all), **ready = dt_alloc((size_t)count * sizeof *ready);
    bool more = true;
    int rc = 0;
    for (int64_t i = 0; i < count; i++) {
        all[i] = (struct speaker){.row = first + i, .slot = i};
        judge(g, &all[i], false);
        forget(g, &all[i]);
    }
    while (rc == 0 && more) {
        int64_t ready_count = 0;
        more = false;
        for (int64_t i = 0; i < count && rc == 0; i++) {
            bool together = left_of(g, &all[i]) == 1 && !g->options->recomputes;
            if (all[i].over) {
                continue;
            }
            more = true;
            if (together) {
                ready[ready_count++] = &all[i];
            } else {
                rc = advance_alone(g, &all[i], err);
            }
        }
        if (rc == 0 && ready_count > 0) {
            rc = advance_together(g, ready, ready_count, err);
        }
    }
    free(ready);
    free(all);
    return rc;
}

/* The chain for these rows: a cache for the longest one, and a piece of a prompt. */
static int open_chain(struct generator *g, const struct model_source *source, const struct wrap_policy *wrap,
                      int shards, struct dt_error *err)
{
    const struct generate_options *o = g->options;
    int64_t batch_size = g->row_count < o->batch_size ? g->row_count : o->batch_size, longest = 1;
    for (int64_t i = 0; i < g->row_count; i++) {
        int64_t wanted = g->rows[i].prompt_count + o->max_new_tokens;
        longest = wanted > longest ? wanted : longest;
    }
    g->capacity = longest < g->capacity ? longest : g->capacity;
    int64_t piece = PIECE_ROWS / batch_size > PIECE_LEAST ? PIECE_ROWS / batch_size : PIECE_LEAST;
    piece = piece < g->capacity && !o->recomputes ? piece : g->capacity;
    struct model_spec spec = spec_of(source, o->recomputes ? 1 : batch_size, piece);
    spec.cache_length = o->recomputes ? 0 : g->capacity;
    spec.wrap = wrap != NULL ? *wrap : spec.wrap;
    return chain_open(&g->chain, &spec, shards, err);
}

int generator_prepare(struct generator **out, const struct model_source *source, const struct generate_options *options,
                      struct generate_row *rows, int64_t row_count, const struct wrap_policy *wrap, int shards,
                      struct dt_error *err)
{
    struct generator *g = *out = dt_alloc(sizeof *g);
    *g = (struct generator){.options = options, .rows = rows, .row_count = row_count};
    int64_t vocabulary, positions;
    if (generate_limits(source, &vocabulary, &positions, err) != 0) {
        return -1;
    }
    g->capacity = options->window > 0 && options->window < positions ? options->window : positions;
    g->limit = options->window > 0 ? INT64_MAX : positions;
    for (int64_t i = 0; i < row_count; i++) {
        if (check_row(&rows[i], i, vocabulary, g->limit, options->max_length, err) != 0) {
            return -1;
        }
        rows[i].ids =
            dt_realloc(rows[i].ids, (size_t)(rows[i].prompt_count + options->max_new_tokens) * sizeof(int32_t));
    }
    if (open_chain(g, source, wrap, shards, err) != 0) {
        return -1;
    }
    measure(g);
    return 0;
}

int generator_run(struct generator *g, struct dt_error *err)
{
    int64_t most = g->options->batch_size;
    int rc = 0;
    for (int64_t i = 0; i < g->row_count; i++) {
        g->rows[i].count = g->rows[i].prompt_count;
    }
    for (int64_t first = 0; first < g->row_count && rc == 0; first += most) {
        int64_t left = g->row_count - first;
        rc = generate_batch(g, first, left < most ? left : most, err);
    }
    return rc;
}

int generate_rows(const struct model_source *source, const struct generate_options *options, struct generate_row *rows,
                  int64_t row_count, struct dt_error *err)
{
    struct generator *g = NULL;
    int rc = generator_prepare(&g, source, options, rows, row_count, NULL, 1, err);
    rc = rc == 0 ? generator_open(g, NULL, err) : rc;
    rc = rc == 0 ? generator_read(g, source, err) : rc;
    rc = rc == 0 ? generator_run(g, err) : rc;
    generator_close(g);
    return rc;
}
