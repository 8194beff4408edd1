/* GPT-2 as Hugging Face writes it: blocks, tensor names, config.json. Dropout is not done; its
 * probabilities are read, so that they come out again. Settings that change the arithmetic and
 * that we do not have are refused by name. */
#include "worker/model/blocks/blocks.h"
#include "worker/model/model.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Root: what no layer owns (embeddings, final norm, tied head); one unit per layer. */
static int build(struct chain *c, struct dt_error *err)
{
    const struct model_spec *m = &c->spec;
    const struct gpt_shape shape = {.layers = m->layers,
                                    .heads = m->heads,
                                    .channels = m->channels,
                                    .positions = m->positions,
                                    .vocabulary = m->vocabulary,
                                    .inner = m->inner,
                                    .norm_epsilon = m->norm_epsilon,
                                    .init_std = m->init_std};
    c->batch = batch_tokens(m->batch_size, m->sequence_length, m->vocabulary, "vocab_size");
    int root = chain_unit(c, "root", ROLE_TRAINED);
    if (chain_add(c, &block_embed, root, -1, &shape, sizeof shape, err) != 0) {
        return -1;
    }
    for (int i = 0; i < m->layers; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "transformer.h.%d", i);
        if (chain_add(c, &block_gpt_layer, chain_unit(c, name, ROLE_TRAINED), i, &shape, sizeof shape, err) != 0) {
            return -1;
        }
    }
    return chain_add(c, &block_lm_head, root, -1, &shape, sizeof shape, err);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Buffers of old files, attn.bias and attn.masked_bias, are ignored; the tied head is the
 * embedding. */
static bool canonical_name(const char *file_name, char *out, size_t out_bytes)
{
    if (ends_with(file_name, ".attn.bias") || ends_with(file_name, ".attn.masked_bias")) {
        return false;
    }
    if (strcmp(file_name, "lm_head.weight") == 0) {
        (void)snprintf(out, out_bytes, "transformer.wte.weight");
        return true;
    }
    const char *prefix = strncmp(file_name, "transformer.", 12) == 0 ? "" : "transformer.";
    (void)snprintf(out, out_bytes, "%s%s", prefix, file_name);
    return true;
}

/* A whole number under `key`, or under `other` (older spelling, may be null); absent or null:
 * fallback. */
static int read_size(const cJSON *config, const char *key, const char *other, int64_t fallback, int64_t *out,
                     struct dt_error *err)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(config, key);
    if ((v == NULL || cJSON_IsNull(v)) && other != NULL) {
        v = cJSON_GetObjectItemCaseSensitive(config, other);
    }
    if (v == NULL || cJSON_IsNull(v)) {
        *out = fallback;
        return 0;
    }
    double value = cJSON_IsNumber(v) ? v->valuedouble : -1;
    if (!(value >= 1 && value <= 2147483647.0) || value != floor(value)) {
        return dt_fail(err, DT_INVALID, "%s: must be a whole number of at least 1", key);
    }
    *out = (int64_t)value;
    return 0;
}

static int read_real(const cJSON *config, const char *key, double fallback, double *out, struct dt_error *err)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(config, key);
    *out = fallback;
    if (v != NULL && !cJSON_IsNull(v)) {
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble <= 1e6)) {
            return dt_fail(err, DT_INVALID, "%s: must be a number of at least 0", key);
        }
        *out = v->valuedouble;
    }
    return 0;
}

/* Refuses `key` when it is there and is not `wanted`. */
static int check_flag(const cJSON *config, const char *key, bool wanted, struct dt_error *err)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(config, key);
    if (v != NULL && !cJSON_IsNull(v) && (!cJSON_IsBool(v) || cJSON_IsTrue(v) != wanted)) {
        return dt_fail(err, DT_INVALID, "%s: only %s is supported", key, wanted ? "true" : "false");
    }
    return 0;
}

static int read_config(const cJSON *config, struct model_spec *spec, struct dt_error *err)
{
    struct model_spec m = *spec;
    const cJSON *activation = cJSON_GetObjectItemCaseSensitive(config, "activation_function");
    if (activation != NULL && !cJSON_IsNull(activation) &&
        (!cJSON_IsString(activation) || (strcmp(activation->valuestring, "gelu_new") != 0 &&
                                         strcmp(activation->valuestring, "gelu_pytorch_tanh") != 0))) {
        return dt_fail(err, DT_INVALID, "activation_function: only \"gelu_new\" is supported");
    }
    if (check_flag(config, "tie_word_embeddings", true, err) != 0 ||
        check_flag(config, "scale_attn_weights", true, err) != 0 ||
        check_flag(config, "scale_attn_by_inverse_layer_idx", false, err) != 0 ||
        check_flag(config, "add_cross_attention", false, err) != 0) {
        return -1;
    }
    if (read_size(config, "n_layer", "num_hidden_layers", 12, &m.layers, err) != 0 ||
        read_size(config, "n_head", "num_attention_heads", 12, &m.heads, err) != 0 ||
        read_size(config, "n_embd", "hidden_size", 768, &m.channels, err) != 0 ||
        read_size(config, "n_positions", "n_ctx", 1024, &m.positions, err) != 0 ||
        read_size(config, "vocab_size", NULL, 50257, &m.vocabulary, err) != 0 ||
        read_size(config, "n_inner", NULL, 4 * m.channels, &m.inner, err) != 0 ||
        read_real(config, "layer_norm_epsilon", 1e-5, &m.norm_epsilon, err) != 0 ||
        read_real(config, "initializer_range", 0.02, &m.init_std, err) != 0 ||
        read_real(config, "attn_pdrop", 0, &m.attn_pdrop, err) != 0 ||
        read_real(config, "embd_pdrop", 0, &m.embd_pdrop, err) != 0 ||
        read_real(config, "resid_pdrop", 0, &m.resid_pdrop, err) != 0) {
        return -1;
    }
    *spec = m;
    return 0;
}

/* Shortest decimal that reads back as the same double. */
static void put_real(struct dt_text *out, double x)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, x);
        double back;
        if (dt_parse_double(text, &back) && back == x) {
            break;
        }
    }
    dt_text_puts(out, text);
}

/* One that is a number with a point in the library's files also where it is whole. */
static void put_probability(struct dt_text *out, const char *key, double x)
{
    dt_text_printf(out, "  \"%s\": ", key);
    if (x > 0) {
        put_real(out, x);
    } else {
        dt_text_puts(out, "0.0");
    }
    dt_text_puts(out, ",\n");
}

static void write_config(const struct model_spec *m, struct dt_text *out)
{
    dt_text_puts(
        out, "{\n  \"activation_function\": \"gelu_new\",\n  \"architectures\": [\n    \"GPT2LMHeadModel\"\n  ],\n");
    put_probability(out, "attn_pdrop", m->attn_pdrop);
    /* the library's default is outside of small vocabularies */
    const char *end_token = m->vocabulary > 50256 ? "50256" : "null";
    dt_text_printf(out, "  \"bos_token_id\": %s,\n  \"dtype\": \"float32\",\n", end_token);
    put_probability(out, "embd_pdrop", m->embd_pdrop);
    dt_text_printf(out, "  \"eos_token_id\": %s,\n  \"initializer_range\": ", end_token);
    put_real(out, m->init_std);
    dt_text_puts(out, ",\n  \"layer_norm_epsilon\": ");
    put_real(out, m->norm_epsilon);
    dt_text_printf(out,
                   ",\n  \"model_type\": \"gpt2\",\n  \"n_ctx\": %lld,\n  \"n_embd\": %lld,\n  \"n_head\": %lld,\n",
                   (long long)m->positions, (long long)m->channels, (long long)m->heads);
    if (m->inner == 4 * m->channels) {
        dt_text_puts(out, "  \"n_inner\": null,\n");
    } else {
        dt_text_printf(out, "  \"n_inner\": %lld,\n", (long long)m->inner);
    }
    dt_text_printf(out, "  \"n_layer\": %lld,\n  \"n_positions\": %lld,\n", (long long)m->layers,
                   (long long)m->positions);
    put_probability(out, "resid_pdrop", m->resid_pdrop);
    dt_text_printf(out,
                   "  \"tie_word_embeddings\": true,\n  \"torch_dtype\": \"float32\",\n  \"vocab_size\": %lld\n}\n",
                   (long long)m->vocabulary);
}

const struct model_ops model_gpt2 = {.name = "gpt2",
                                     .architecture = "GPT2LMHeadModel",
                                     .build = build,
                                     .canonical_name = canonical_name,
                                     .read_config = read_config,
                                     .write_config = write_config};
