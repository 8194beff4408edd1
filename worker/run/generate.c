/* Runs the chain's forward on the last T tokens for each new one: the same blocks as in
 * training, no second copy of the model and no cache, so a few hundred tokens of a small model
 * take a second or two. */
#include "worker/run/generate.h"

#include "kernels/device.h"
#include "kernels/kernels.h"
#include "worker/model/chain.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sampler_state {
    struct dt_device device;
    struct dt_stream *stream;
    struct chain chain;
    void *memory;
    size_t memory_bytes;
    char **units;
    char *pair[2][2], *kept, *saved, *scratch;
    float *logits;
    int32_t *ids, *labels;
};

/* Model sizes from the checkpoint's config.json, T from the job that trained it. */
static int read_spec(const struct checkpoint *c, struct model_spec *spec, struct dt_error *err)
{
    const struct checkpoint_state *s = checkpoint_get_state(c);
    cJSON *config = cJSON_Parse(s->model_config), *job = cJSON_Parse(s->job);
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(config, "model_type");
    const struct model_ops *model = cJSON_IsString(name) ? model_find(name->valuestring) : NULL;
    const cJSON *t = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(job, "data"), "sequence_length");
    int result = -1;
    *spec = (struct model_spec){.batch_size = 1, .recompute = RECOMPUTE_CHEAP, .type = DT_F32};
    if (model == NULL) {
        (void)dt_fail(err, DT_INVALID, "the checkpoint names no model that can be run");
    } else {
        spec->name = model->name;
        result = model->read_config(config, spec, err);
    }
    if (result == 0) {
        spec->sequence_length = cJSON_IsNumber(t) && t->valuedouble >= 1 && t->valuedouble <= (double)spec->positions
                                    ? (int64_t)t->valuedouble
                                    : spec->positions;
        if (spec->vocabulary > 256) {
            result =
                dt_fail(err, DT_INVALID, "the model has %lld tokens; sampling knows byte tokens only, not there yet",
                        (long long)spec->vocabulary);
        }
    }
    cJSON_Delete(job);
    cJSON_Delete(config);
    return result;
}

static size_t round_up(size_t size_bytes)
{
    return (size_bytes + 63) / 64 * 64;
}

static int open_state(struct sampler_state *s, struct checkpoint *c, const struct model_spec *spec,
                      struct dt_error *err)
{
    if (dt_device_open(&s->device, "cpu", NULL, err) != 0 || dt_stream_open(&s->device, 0, &s->stream, err) != 0 ||
        chain_open(&s->chain, spec, 1, err) != 0) {
        return -1;
    }
    size_t pair = round_up((size_t)(spec->sequence_length * spec->channels) * sizeof(float)), kept = 0, saved = 0,
           scratch = 0, weights = 0;
    for (int i = 0; i < s->chain.block_count; i++) {
        const struct block *b = &s->chain.blocks[i];
        kept = b->kept_bytes > kept ? b->kept_bytes : kept;
        saved = b->saved_bytes > saved ? b->saved_bytes : saved;
        scratch = b->scratch_bytes > scratch ? b->scratch_bytes : scratch;
    }
    for (int u = 0; u < s->chain.unit_count; u++) {
        weights += round_up((size_t)s->chain.units[u].numel * sizeof(float));
    }
    size_t ids = round_up((size_t)spec->sequence_length * sizeof(int32_t)),
           logits = round_up((size_t)spec->vocabulary * sizeof(float));
    s->memory_bytes = weights + 4 * pair + round_up(kept) + round_up(saved) + round_up(scratch) + 2 * ids + logits;
    if (dt_device_alloc(&s->device, DT_MEMORY_DEVICE, s->memory_bytes, &s->memory, err) != 0) {
        return -1;
    }
    char *p = s->memory;
    s->units = dt_alloc((size_t)s->chain.unit_count * sizeof *s->units);
    for (int u = 0; u < s->chain.unit_count; u++) {
        s->units[u] = p;
        p += round_up((size_t)s->chain.units[u].numel * sizeof(float));
    }
    for (int i = 0; i < 4; i++) {
        s->pair[i / 2][i % 2] = p;
        p += pair;
    }
    s->kept = p;
    s->saved = s->kept + round_up(kept);
    s->scratch = s->saved + round_up(saved);
    s->ids = (int32_t *)(void *)(s->scratch + round_up(scratch));
    s->labels = s->ids + ids / sizeof(int32_t);
    s->logits = (float *)(void *)((char *)s->labels + ids);
    for (int i = 0; i < s->chain.tensor_count; i++) {
        const struct tensor *t = &s->chain.tensors[i];
        float *at = (float *)(void *)s->units[t->unit] + t->offset;
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
    chain_close(&s->chain);
    dt_stream_close(s->stream);
    dt_device_close(&s->device);
}

/* Logits after the last of `count` tokens. */
static int forward(struct sampler_state *s, const uint8_t *tokens, int64_t count, struct dt_error *err)
{
    for (int64_t i = 0; i < count; i++) {
        s->ids[i] = tokens[i];
        s->labels[i] = DT_IGNORE_INDEX;
    }
    struct batch batch = {.ids = s->ids, .labels = s->labels, .batch_size = 1, .sequence_length = count};
    struct pass p = {.phase = PASS_EVAL,
                     .stream = s->stream,
                     .kernels = s->device.kernels,
                     .batch = &batch,
                     .kept = s->kept,
                     .saved = s->saved,
                     .scratch = s->scratch,
                     .logits = s->logits,
                     .logits_row = count - 1};
    for (int i = 0; i < s->chain.block_count; i++) {
        const struct block *b = &s->chain.blocks[i];
        const struct block *before = i > 0 ? b - 1 : NULL;
        p.weights = s->units[b->unit];
        p.x_residual = before != NULL ? s->pair[(i + 1) % 2][0] : NULL;
        p.x_branch = before != NULL && before->branch_out ? s->pair[(i + 1) % 2][1] : NULL;
        p.y_residual = s->pair[i % 2][0];
        p.y_branch = s->pair[i % 2][1];
        b->ops->forward(b, &p);
    }
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
    if (read_spec(c, &spec, err) != 0) {
        return -1;
    }
    size_t start = out->size;
    dt_text_puts(out, options->prompt);
    if (out->size == start) {
        return dt_fail(err, DT_INVALID, "the prompt is empty; give at least one character");
    }
    for (size_t i = start; i < out->size; i++) {
        if ((uint8_t)out->data[i] >= spec.vocabulary) {
            return dt_fail(err, DT_INVALID, "the prompt holds byte %d; the model knows %lld tokens",
                           (uint8_t)out->data[i], (long long)spec.vocabulary);
        }
    }
    struct sampler_state s = {0};
    uint64_t random = options->seed * 2 + 1;
    int result = open_state(&s, c, &spec, err);
    for (int i = 0; result == 0 && i < options->token_count; i++) {
        int64_t length = (int64_t)(out->size - start),
                count = length < spec.sequence_length ? length : spec.sequence_length;
        result = forward(&s, (const uint8_t *)out->data + out->size - count, count, err);
        if (result == 0) {
            char byte = (char)pick(s.logits, spec.vocabulary, options->temperature, &random);
            dt_text_add(out, &byte, 1);
        }
    }
    close_state(&s);
    return result;
}
