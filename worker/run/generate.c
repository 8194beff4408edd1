/* Runs the chain's forward on the last T tokens for each new one: the same blocks as in
 * training, no second copy of the model and no cache, so a few hundred tokens of a small model
 * take a second or two. */
#include "worker/run/generate.h"

#include "kernels/device.h"
#include "kernels/kernels.h"
#include "worker/model/chain_walk.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sampler_state {
    struct dt_device device;
    struct dt_stream *stream;
    struct chain chain;
    struct chain_walk walk;
    void *memory, **kept; /* kept: of each block, one and the same */
    size_t memory_bytes;
    char **units;
    float *logits;
    struct batch batch;
};

/* Model and sizes from the checkpoint's config.json, T from the job that trained it. */
static int read_spec(const struct checkpoint *c, struct model_spec *spec, struct model_sizes *sizes,
                     struct dt_error *err)
{
    const struct checkpoint_state *s = checkpoint_get_state(c);
    cJSON *config = cJSON_Parse(s->model_config), *job = cJSON_Parse(s->job);
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(config, "model_type");
    const struct model_ops *model = cJSON_IsString(name) ? model_find(name->valuestring) : NULL;
    const cJSON *t = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(job, "data"), "sequence_length");
    int result = -1;
    *spec = (struct model_spec){.sizes = sizes->bytes, .batch_size = 1, .recompute = RECOMPUTE_CHEAP, .type = DT_F32};
    if (model == NULL) {
        (void)dt_fail(err, DT_INVALID, "the checkpoint names no model that can be run");
    } else if (model->positions == NULL) {
        (void)dt_fail(err, DT_INVALID, "the model is a %s, which writes no text", model->name);
    } else {
        spec->name = model->name;
        result = model_read_config(model, config, sizes->bytes, err);
    }
    if (result == 0) {
        int64_t positions = model_integer(model, sizes->bytes, model->positions);
        spec->sequence_length = cJSON_IsNumber(t) && t->valuedouble >= 1 && t->valuedouble <= (double)positions
                                    ? (int64_t)t->valuedouble
                                    : positions;
    }
    cJSON_Delete(job);
    cJSON_Delete(config);
    return result;
}

/* Tokens that the model knows. */
static int64_t vocabulary_of(const struct sampler_state *s)
{
    return s->chain.batch.field[batch_find(&s->chain.batch, "input_ids")].below;
}

/* Only a model whose targets are the next tokens writes text. */
static int check_writes(const struct sampler_state *s, struct dt_error *err)
{
    int targets = batch_targets(&s->chain.batch);
    return targets >= 0 && s->chain.batch.field[targets].shifted
               ? 0
               : dt_fail(err, DT_INVALID, "the model is a %s, which writes no text", s->chain.spec.name);
}

/* The prompt is bytes, and so is what is written. */
static int check_prompt(const struct sampler_state *s, const char *prompt, size_t size, struct dt_error *err)
{
    int64_t vocabulary = vocabulary_of(s);
    if (vocabulary > 256) {
        return dt_fail(err, DT_INVALID, "the model has %lld tokens; sampling knows byte tokens only, not there yet",
                       (long long)vocabulary);
    }
    if (size == 0) {
        return dt_fail(err, DT_INVALID, "the prompt is empty; give at least one character");
    }
    for (size_t i = 0; i < size; i++) {
        if ((uint8_t)prompt[i] >= vocabulary) {
            return dt_fail(err, DT_INVALID, "the prompt holds byte %d; the model knows %lld tokens", (uint8_t)prompt[i],
                           (long long)vocabulary);
        }
    }
    return 0;
}

static size_t round_up(size_t size_bytes)
{
    return (size_bytes + 63) / 64 * 64;
}

/* Hands out the next piece of the state's memory; before there is any, counts what is needed. */
static void *take(struct sampler_state *s, size_t *at, size_t size_bytes)
{
    void *piece = s->memory != NULL ? (char *)s->memory + *at : NULL;
    *at += round_up(size_bytes);
    return piece;
}

/* Gives each thing its place; returns the bytes of all. */
static size_t place_all(struct sampler_state *s)
{
    const struct chain *c = &s->chain;
    struct chain_walk *w = &s->walk;
    size_t at = 0;
    for (int u = 0; u < c->unit_count; u++) {
        s->units[u] = take(s, &at, (size_t)c->units[u].numel * sizeof(float));
    }
    w->buffers = take(s, &at, (size_t)chain_buffers(c) * sizeof(float));
    for (int i = 0; i < 2; i++) {
        w->y[i] = take(s, &at, c->slot_bytes[i]);
        w->y_branch[i] = take(s, &at, c->branch_bytes[i]);
    }
    void *kept = take(s, &at, chain_most(c, PLACE_KEPT));
    for (int i = 0; i < c->block_count; i++) {
        s->kept[i] = kept;
    }
    w->again = take(s, &at, chain_most(c, PLACE_AGAIN));
    w->scratch = take(s, &at, chain_most(c, PLACE_CALL));
    for (int k = 0; k < c->batch.count; k++) {
        s->batch.at[k] = take(s, &at, (size_t)batch_elements(&c->batch, k) * dt_dtype_size(c->batch.field[k].type));
    }
    s->logits = take(s, &at, (size_t)vocabulary_of(s) * sizeof(float));
    return at;
}

static bool enter(const struct chain_walk *w, const struct block *b, struct pass *p)
{
    const struct sampler_state *s = w->context;
    for (int k = 0; k < b->unit_count; k++) {
        p->weights[k] = s->units[b->units[k]];
    }
    return true;
}

/* All but the chain, which is open. */
static int open_state(struct sampler_state *s, struct checkpoint *c, struct dt_error *err)
{
    static const struct walk_hooks hooks = {.enter = enter};
    if (dt_device_open(&s->device, "cpu", NULL, err) != 0 || dt_stream_open(&s->device, 0, &s->stream, err) != 0) {
        return -1;
    }
    s->units = dt_alloc((size_t)s->chain.unit_count * sizeof *s->units);
    s->kept = dt_alloc((size_t)s->chain.block_count * sizeof *s->kept);
    s->batch = (struct batch){.layout = &s->chain.batch, .samples = 1};
    s->walk = (struct chain_walk){.chain = &s->chain,
                                  .stream = s->stream,
                                  .kernels = s->device.kernels,
                                  .kept = s->kept,
                                  .hooks = &hooks,
                                  .context = s};
    s->memory_bytes = place_all(s);
    if (dt_device_alloc(&s->device, DT_MEMORY_DEVICE, s->memory_bytes, &s->memory, err) != 0) {
        return -1;
    }
    (void)place_all(s);
    init_unit(&s->chain, -1, 0, 0, chain_buffers(&s->chain), DT_F32, s->walk.buffers);
    for (int i = 0; i < s->chain.tensor_count; i++) {
        const struct tensor *t = &s->chain.tensors[i];
        float *at = (float *)(t->unit >= 0 ? (void *)s->units[t->unit] : s->walk.buffers) + t->offset;
        if (checkpoint_read(c, "weight", t->name, t->numel, 0, t->numel, at, err) != 0) {
            return -1;
        }
    }
    return 0;
}

static void close_state(struct sampler_state *s)
{
    if (s->memory != NULL) {
        dt_device_free(&s->device, DT_MEMORY_DEVICE, s->memory, s->memory_bytes);
    }
    free(s->units);
    free(s->kept);
    chain_close(&s->chain);
    dt_stream_close(s->stream);
    dt_device_close(&s->device);
}

/* Logits after the last of `count` tokens. */
static int forward(struct sampler_state *s, const uint8_t *tokens, int64_t count, struct dt_error *err)
{
    int32_t *ids = s->batch.at[batch_find(s->batch.layout, "input_ids")];
    for (int64_t i = 0; i < count; i++) {
        ids[i] = tokens[i];
    }
    s->batch.length = count;
    chain_forward(&s->walk, PASS_EVAL, &s->batch, &(struct walk_loss){.logits = s->logits, .logits_row = count - 1});
    return dt_stream_finish(s->stream, 600, err);
}

/* One of `count` tokens, with probability softmax(logits / temperature). */
static int pick(const float *logits, int64_t count, double temperature, uint64_t *random)
{
    int best = 0;
    for (int i = 1; i < count; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    if (temperature <= 0) {
        return best;
    }
    double weights[256], sum = 0;
    for (int i = 0; i < count; i++) {
        sum += weights[i] = exp((double)(logits[i] - logits[best]) / temperature);
    }
    *random = *random * 6364136223846793005ull + 1442695040888963407ull;
    double at = (double)(*random >> 11) * 0x1p-53 * sum;
    for (int i = 0; i < count; i++) {
        at -= weights[i];
        if (at < 0) {
            return i;
        }
    }
    return best;
}

int generate_text(struct checkpoint *c, const struct generate_options *options, struct dt_text *out,
                  struct dt_error *err)
{
    struct model_spec spec;
    struct model_sizes sizes;
    struct sampler_state s = {0};
    if (read_spec(c, &spec, &sizes, err) != 0) {
        return -1;
    }
    size_t start = out->size;
    dt_text_puts(out, options->prompt);
    uint64_t random = options->seed * 2 + 1;
    int result = chain_open(&s.chain, &spec, 1, err);
    result = result == 0 ? check_writes(&s, err) : result;
    result = result == 0 ? check_prompt(&s, dt_text_str(out) + start, out->size - start, err) : result;
    result = result == 0 ? open_state(&s, c, err) : result;
    for (int i = 0; result == 0 && i < options->token_count; i++) {
        int64_t length = (int64_t)(out->size - start),
                count = length < spec.sequence_length ? length : spec.sequence_length;
        result = forward(&s, (const uint8_t *)out->data + out->size - count, count, err);
        if (result == 0) {
            char byte = (char)pick(s.logits, vocabulary_of(&s), options->temperature, &random);
            dt_text_add(out, &byte, 1);
        }
    }
    close_state(&s);
    return result;
}
