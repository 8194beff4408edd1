/* Runs the chain's forward up to the last hidden states (spec.hidden) for rows of like lengths, and pools them on the
 * host. Rows are padded behind their ids: an encoder's mask hides that, and a decoder's token sees none behind it. A
 * model that has neither gets rows of one length. */
#include "worker/run/embed.h"

#include "kernels/device.h"
#include "kernels/kernels.h"
#include "worker/engine/world.h"
#include "worker/model/chain_walk.h"
#include "worker/model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PASS_TIMEOUT_S 600

enum { BATCH_TOKENS = 8192 }; /* of a batch with its padding, unless one text has more */

struct embedder {
    const struct embed_options *options;
    struct dt_device device;
    struct dt_stream *stream;
    struct chain chain;
    struct chain_walk walk;
    struct batch batch;
    void *memory, **kept; /* kept: of each block, one and the same */
    size_t memory_bytes;
    char **units;
    float *hidden; /* (tokens of a batch, channels) */
    int64_t channels, longest, vocabulary, batch_tokens;
    bool pads; /* rows of a batch may have different lengths */
};

/* ---- opening ---- */

static bool enter(const struct chain_walk *w, const struct block *b, struct pass *p)
{
    const struct embedder *e = w->context;
    for (int k = 0; k < b->unit_count; k++) {
        p->weights[k] = e->units[b->units[k]];
    }
    return true;
}

static struct model_spec spec_of(const struct model_source *source, int64_t batch_size, int64_t length)
{
    return (struct model_spec){.name = source->model->name,
                               .sizes = source->sizes.bytes,
                               .batch_size = batch_size,
                               .sequence_length = length,
                               .hidden = true,
                               .recompute = RECOMPUTE_CHEAP,
                               .type = DT_F32};
}

/* Positions of a text: those of the model, without those before the first token. */
static int64_t positions_of(const struct model_source *s, const struct batch_layout *l)
{
    int64_t positions = model_integer(s->model, s->sizes.bytes, s->model->positions);
    int ids = batch_find(l, "position_ids");
    return ids >= 0 && l->field[ids].derive != NULL ? positions - l->field[ids].number - 1 : positions;
}

/* What the model allows; then the chain for it. */
static int open_chain(struct embedder *e, const struct model_source *source, struct dt_error *err)
{
    if (source->model->positions == NULL) {
        return dt_fail(err, DT_INVALID, "the model is a %s, which reads no text", source->model->name);
    }
    struct model_spec spec = spec_of(source, 1, 1);
    if (chain_open(&e->chain, &spec, 1, err) != 0) {
        return -1;
    }
    int ids = batch_find(&e->chain.batch, "input_ids");
    int64_t positions = positions_of(source, &e->chain.batch), wished = e->options->max_length;
    e->vocabulary = e->chain.batch.field[ids].below;
    e->pads = batch_is_causal(&e->chain.batch) || batch_find(&e->chain.batch, "attention_mask") >= 0;
    e->channels = e->chain.blocks[e->chain.block_count - 1].in.shape[2];
    e->longest = wished > 0 && wished < positions ? wished : positions;
    spec.batch_size = BATCH_TOKENS / e->longest > 1 ? BATCH_TOKENS / e->longest : 1;
    spec.sequence_length = e->longest;
    e->batch_tokens =
        spec.batch_size * e->longest; /* memory is by rows, so a batch may have more and shorter samples */
    chain_close(&e->chain);
    e->chain = (struct chain){0};
    return chain_open(&e->chain, &spec, 1, err);
}

/* Hands out the next piece of the memory; before there is any, counts what is needed. */
static void *take(struct embedder *e, size_t *at, size_t size_bytes)
{
    void *piece = e->memory != NULL ? (char *)e->memory + *at : NULL;
    *at += (size_bytes + 63) / 64 * 64;
    return piece;
}

/* Gives each thing its place; returns the bytes of all. */
static size_t place_all(struct embedder *e)
{
    const struct chain *c = &e->chain;
    struct chain_walk *w = &e->walk;
    size_t at = 0;
    for (int u = 0; u < c->unit_count; u++) {
        e->units[u] = take(e, &at, (size_t)c->units[u].numel * sizeof(float));
    }
    w->buffers = take(e, &at, (size_t)chain_buffers(c) * sizeof(float));
    for (int i = 0; i < 2; i++) {
        w->y[i] = take(e, &at, c->slot_bytes[i]);
        w->y_branch[i] = take(e, &at, c->branch_bytes[i]);
    }
    void *kept = take(e, &at, chain_most(c, PLACE_KEPT));
    for (int i = 0; i < c->block_count; i++) {
        e->kept[i] = kept;
    }
    w->again = take(e, &at, chain_most(c, PLACE_AGAIN));
    w->scratch = take(e, &at, chain_most(c, PLACE_CALL));
    for (int k = 0; k < c->batch.count; k++) {
        e->batch.at[k] = take(e, &at, (size_t)e->batch_tokens * sizeof(int32_t));
    }
    e->hidden = take(e, &at, (size_t)(e->batch_tokens * e->channels) * sizeof(float));
    return at;
}

static int open_memory(struct embedder *e, struct dt_error *err)
{
    static const struct walk_hooks hooks = {.enter = enter};
    const struct chain *c = &e->chain;
    int threads = e->options->threads;
    const struct dt_device_options device = {.thread_count = threads > 0 ? threads : world_cores(),
                                             .local_rank_count = 1};
    e->units = dt_alloc((size_t)c->unit_count * sizeof *e->units);
    e->kept = dt_alloc((size_t)c->block_count * sizeof *e->kept);
    e->memory_bytes = place_all(e);
    if (dt_device_open(&e->device, "cpu", &device, err) != 0 || dt_stream_open(&e->device, 0, &e->stream, err) != 0 ||
        dt_device_alloc(&e->device, DT_MEMORY_DEVICE, e->memory_bytes, &e->memory, err) != 0) {
        return -1;
    }
    (void)place_all(e);
    e->batch.layout = &c->batch;
    e->walk.chain = c;
    e->walk.stream = e->stream;
    e->walk.kernels = e->device.kernels;
    e->walk.kept = e->kept;
    e->walk.hooks = &hooks;
    e->walk.context = e;
    return 0;
}

int embedder_open(struct embedder **out, const struct model_source *source, const struct embed_options *options,
                  struct dt_error *err)
{
    struct embedder *e = *out = dt_alloc(sizeof *e);
    *e = (struct embedder){.options = options};
    if (open_chain(e, source, err) != 0 || open_memory(e, err) != 0) {
        return -1;
    }
    return model_source_read(source, &e->chain, e->units, e->walk.buffers, err);
}

int64_t embedder_width(const struct embedder *e)
{
    int kinds = 0;
    for (int i = 0; i < POOLED_KINDS; i++) {
        kinds += e->options->pools[i];
    }
    return kinds * e->channels;
}

int64_t embedder_longest(const struct embedder *e)
{
    return e->longest;
}

int64_t embedder_vocabulary(const struct embedder *e)
{
    return e->vocabulary;
}

void embedder_close(struct embedder *e)
{
    if (e == NULL) {
        return;
    }
    if (e->memory != NULL) {
        dt_device_free(&e->device, DT_MEMORY_DEVICE, e->memory, e->memory_bytes);
    }
    free(e->units);
    free(e->kept);
    chain_close(&e->chain);
    dt_stream_close(e->stream);
    dt_device_close(&e->device);
    free(e);
}

/* ---- batches ---- */

/* Fills the fields of sample i, of e->batch.length positions. Padding has the id that the model knows for it, since
 * positions may follow from ids; otherwise 0. */
static void put_row(struct embedder *e, int64_t i, const struct embed_row *r)
{
    const struct batch_layout *l = e->batch.layout;
    int64_t length = e->batch.length;
    int mask = batch_find(l, "attention_mask"), types = batch_find(l, "token_type_ids"),
        positions = batch_find(l, "position_ids");
    int32_t padding = positions >= 0 ? (int32_t)l->field[positions].number : 0;
    int32_t *ids = (int32_t *)e->batch.at[batch_find(l, "input_ids")] + i * length;
    for (int64_t t = 0; t < length; t++) {
        bool is = t < r->count;
        ids[t] = is ? r->ids[t] : padding;
        if (mask >= 0) {
            ((int32_t *)e->batch.at[mask])[i * length + t] = is;
        }
        if (types >= 0) {
            bool second = is && r->types != NULL && r->types[t] < l->field[types].below;
            ((int32_t *)e->batch.at[types])[i * length + t] = second ? r->types[t] : 0;
        }
    }
    for (int k = 0; k < l->count; k++) {
        const struct batch_field *f = &l->field[k];
        if (f->derive != NULL) {
            f->derive((const int32_t *)e->batch.at[f->from] + i * length, length, f->number,
                      (int32_t *)e->batch.at[k] + i * length);
        }
    }
}

/* out (channels) = one vector of the hidden states of `count` tokens. Sums are F64. */
static void pool(enum pooling_kind kind, const float *hidden, int64_t count, int64_t channels, float *out)
{
    double weights = kind == POOLED_ROOT       ? sqrt((double)count)
                     : kind == POOLED_WEIGHTED ? (double)count * (double)(count + 1) / 2
                                               : (double)count;
    const float *one = hidden + (kind == POOLED_LAST ? count - 1 : 0) * channels;
    for (int64_t c = 0; c < channels; c++) {
        double sum = 0;
        float most = hidden[c];
        for (int64_t t = 0; t < count && kind != POOLED_CLS && kind != POOLED_LAST; t++) {
            float x = hidden[t * channels + c];
            most = x > most ? x : most;
            sum += (double)x * (double)(kind == POOLED_WEIGHTED ? t + 1 : 1);
        }
        out[c] = kind == POOLED_CLS || kind == POOLED_LAST ? one[c]
                 : kind == POOLED_MAX                      ? most
                                                           : (float)(sum / weights);
    }
}

static void finish_row(const struct embedder *e, const float *hidden, const struct embed_row *r)
{
    int64_t at = 0;
    double squares = 0;
    for (int kind = 0; kind < POOLED_KINDS; kind++) {
        if (e->options->pools[kind]) {
            pool((enum pooling_kind)kind, hidden, r->count, e->channels, r->vector + at);
            at += e->channels;
        }
    }
    for (int64_t i = 0; i < at && e->options->normalize; i++) {
        squares += (double)r->vector[i] * (double)r->vector[i];
    }
    double length = sqrt(squares) > 1e-12 ? sqrt(squares) : 1e-12; /* the library's least */
    for (int64_t i = 0; i < at && e->options->normalize; i++) {
        r->vector[i] = (float)((double)r->vector[i] / length);
    }
}

/* Computes these rows, of which none is longer than `length`. */
static int run_batch(struct embedder *e, const struct embed_row *const *rows, int64_t count, int64_t length,
                     struct dt_error *err)
{
    e->batch.samples = count;
    e->batch.length = length;
    for (int64_t i = 0; i < count; i++) {
        put_row(e, i, rows[i]);
    }
    const struct walk_loss asked = {.logits = e->hidden};
    chain_forward(&e->walk, PASS_EVAL, &e->batch, &asked);
    if (dt_stream_finish(e->stream, PASS_TIMEOUT_S, err) != 0) {
        return -1;
    }
    for (int64_t i = 0; i < count; i++) {
        finish_row(e, e->hidden + i * length * e->channels, rows[i]);
    }
    return 0;
}

/* The longest rows come first, so that one that is too large for the memory says so at once. */
static int by_length(const void *a, const void *b)
{
    const struct embed_row *x = *(const struct embed_row *const *)a, *y = *(const struct embed_row *const *)b;
    return x->count != y->count ? (x->count < y->count) - (x->count > y->count) : (x > y) - (x < y);
}

static int check_row(const struct embedder *e, const struct embed_row *r, int64_t number, struct dt_error *err)
{
    if (r->count < 1 || r->count > e->longest) {
        return dt_fail(err, DT_INVALID, "text %lld has %lld ids; there is room for 1 to %lld", (long long)number,
                       (long long)r->count, (long long)e->longest);
    }
    for (int64_t i = 0; i < r->count; i++) {
        if (r->ids[i] < 0 || r->ids[i] >= e->vocabulary) {
            return dt_fail(err, DT_INVALID, "text %lld has id %d; the model knows 0 to %lld", (long long)number,
                           r->ids[i], (long long)e->vocabulary - 1);
        }
    }
    return 0;
}

int embedder_run(struct embedder *e, const struct embed_row *rows, int64_t count, int64_t first, struct dt_error *err)
{
    const struct embed_row **sorted = dt_alloc((size_t)(count + 1) * sizeof *sorted);
    int rc = 0;
    for (int64_t i = 0; i < count && rc == 0; i++) {
        sorted[i] = &rows[i];
        rc = check_row(e, &rows[i], first + i + 1, err);
    }
    if (rc == 0) {
        qsort(sorted, (size_t)count, sizeof *sorted, by_length);
    }
    for (int64_t at = 0, n; at < count && rc == 0; at += n) {
        int64_t length = sorted[at]->count, most = e->batch_tokens / length;
        most = most < e->options->batch_size ? most : e->options->batch_size;
        for (n = 1; n < most && at + n < count && (e->pads || sorted[at + n]->count == length);) {
            n++;
        }
        rc = run_batch(e, sorted + at, n, length, err);
    }
    free(sorted);
    return rc;
}
