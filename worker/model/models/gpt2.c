/* GPT-2 with the keys, blocks and tensor names of Hugging Face. Settings that change the arithmetic and
 * are not supported are refused by name. */
#include "worker/model/models/gpt2.h"

#include "worker/model/blocks/blocks.h"
#include "worker/model/model.h"
#include "worker/model/models/family_keys.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct dt_rule channels = {.type = DT_RULE_INTEGER, .min = 1, .max = 1048576};
static const struct dt_rule width_or_null = {.type = DT_RULE_INTEGER, .min = 1, .max = 4194304, .null = true};
static const struct dt_rule longest = {.type = DT_RULE_INTEGER, .min = 1, .max = 4194304};

#define AT(member) offsetof(struct gpt2, member)
static const struct dt_field fields[] = {
    {"n_layer", "12", "number of layers", AT(n_layer), &layers},
    {"n_head", "12", "attention heads per layer", AT(n_head), &layers},
    {"n_embd", "768", "width of the residual stream", AT(n_embd), &channels},
    {"n_positions", "1024", "longest sequence the model knows", AT(n_positions), &longest},
    {"vocab_size", "50257", "number of token ids", AT(vocab_size), &vocabulary},
    {"n_inner", "null", "width of the feed-forward layer; 4 * n_embd when null", AT(n_inner), &width_or_null},
    {"layer_norm_epsilon", "1e-05", "added to the variance in layer norms", AT(layer_norm_epsilon), &from_0},
    {"initializer_range", "0.02", "standard deviation of initial weights", AT(initializer_range), &from_0},
    {"attn_pdrop", "0", "dropout of attention weights", AT(attn_pdrop), &dropout},
    {"embd_pdrop", "0", "dropout of embeddings", AT(embd_pdrop), &dropout},
    {"resid_pdrop", "0", "dropout of what layers add", AT(resid_pdrop), &dropout},
    {"tie_word_embeddings", "true", "the head is the embedding", AT(tie_word_embeddings), &flag},
    {"pad_token_id", "null", "id that rows of sequence_classification are padded with", AT(pad_token_id), &id_or_null},
    SEQUENCE_HEAD(struct gpt2),
    {0},
};
#undef AT
static const struct model_dropout dropouts[] = {{"attn_pdrop", 0.1}, {"embd_pdrop", 0.1}, {"resid_pdrop", 0.1}, {0}};
static const struct model_key keys[] = {{"num_hidden_layers", "n_layer"}, {"num_attention_heads", "n_head"},
                                        {"hidden_size", "n_embd"},        {"max_position_embeddings", "n_positions"},
                                        {"n_ctx", "n_positions"},         {0}};
static const char *const spelled[] = {"pad_token_id", "num_labels", "problem_type", "task", NULL};

static int check(const void *sizes, const char **key, struct dt_error *err)
{
    const struct gpt2 *m = sizes;
    if (m->n_embd % m->n_head != 0) {
        *key = "n_head";
        return dt_fail(err, DT_INVALID,
                       "n_embd %" PRId64 " cannot be split among n_head %" PRId64 " heads; choose a multiple",
                       m->n_embd, m->n_head);
    }
    if (m->vocab_size > ((int64_t)1 << 40) / m->n_embd) {
        *key = "vocab_size";
        return dt_fail(err, DT_INVALID, "vocab_size %" PRId64 " times n_embd %" PRId64 " is more than 2^40 weights",
                       m->vocab_size, m->n_embd);
    }
    *key = "pad_token_id";
    if (m->head.task == DECODER_SEQUENCES && m->pad_token_id >= m->vocab_size) {
        return dt_fail(err, DT_INVALID, "pad_token_id %" PRId64 " is not below vocab_size %" PRId64, m->pad_token_id,
                       m->vocab_size);
    }
    return sequence_head_check(&m->head, m->pad_token_id, key, err);
}

static void settle(void *sizes)
{
    struct gpt2 *m = sizes;
    m->n_inner = m->n_inner > 0 ? m->n_inner : 4 * m->n_embd;
}

/* The root unit holds what no layer owns (embeddings, final norm, head). Each layer has a unit. */
static int build(struct chain *c, struct dt_error *err)
{
    struct gpt2 settled = *(const struct gpt2 *)c->spec.sizes;
    settle(&settled);
    const struct gpt2 *m = &settled;
    const struct embed embed = {.tokens = "transformer.wte.weight",
                                .positions = "transformer.wpe.weight",
                                .vocabulary = m->vocab_size,
                                .channels = m->n_embd,
                                .position_count = m->n_positions,
                                .padding_id = -1,
                                .position_ids = c->spec.documents,
                                .dropout = m->embd_pdrop,
                                .init_std = m->initializer_range};
    const struct gpt_layer layer = {.layers = m->n_layer,
                                    .heads = m->n_head,
                                    .channels = m->n_embd,
                                    .inner = m->n_inner,
                                    .norm_epsilon = m->layer_norm_epsilon,
                                    .init_std = m->initializer_range,
                                    .attention_dropout = m->attn_pdrop,
                                    .residual_dropout = m->resid_pdrop};
    const struct lm_head head = {.norm_weight = "transformer.ln_f.weight",
                                 .norm_bias = "transformer.ln_f.bias",
                                 .table = m->tie_word_embeddings ? embed.tokens : "lm_head.weight",
                                 .vocabulary = m->vocab_size,
                                 .channels = m->n_embd,
                                 .norm_epsilon = m->layer_norm_epsilon,
                                 .rule = {.init = INIT_NORMAL, .init_std = m->initializer_range}};
    bool sequences = m->head.task == DECODER_SEQUENCES && !c->spec.hidden;
    c->batch = sequences ? sequence_head_batch(&c->spec, &m->head, m->vocab_size, m->pad_token_id)
                         : batch_tokens(c->spec.batch_size, c->spec.sequence_length, m->vocab_size, "vocab_size");
    if (c->spec.documents && !sequences) {
        batch_add_documents(&c->batch);
    }
    int root = chain_unit(c, "root", ROLE_TRAINED);
    if (chain_add(c, &block_embed, root, -1, &embed, sizeof embed, err) != 0) {
        return -1;
    }
    for (int i = 0; i < m->n_layer; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "transformer.h.%d", i);
        if (chain_add(c, &block_gpt_layer, chain_unit(c, name, ROLE_TRAINED), i, &layer, sizeof layer, err) != 0) {
            return -1;
        }
    }
    return sequences ? sequence_head_add(c, root, &head, &m->head, err)
                     : chain_add(c, block_of_head(c), root, -1, &head, sizeof head, err);
}

/* Ignores the buffers of old files, attn.bias and attn.masked_bias. Files of the model without its head
 * have no prefix. */
static bool canonical_name(const char *file_name, char *out, size_t out_bytes)
{
    if (dt_text_ends_with(file_name, ".attn.bias") || dt_text_ends_with(file_name, ".attn.masked_bias")) {
        return false;
    }
    bool whole = strncmp(file_name, "transformer.", 12) == 0 || strcmp(file_name, "lm_head.weight") == 0 ||
                 sequence_head_named(file_name);
    (void)snprintf(out, out_bytes, "%s%s", whole ? "" : "transformer.", file_name);
    return true;
}

/* Refuses `key` if it is present with another value than `wanted`. */
static int check_flag(const cJSON *config, const char *key, bool wanted, struct dt_error *err)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(config, key);
    if (v != NULL && !cJSON_IsNull(v) && (!cJSON_IsBool(v) || cJSON_IsTrue(v) != wanted)) {
        return dt_fail(err, DT_INVALID, "%s: only %s is supported", key, wanted ? "true" : "false");
    }
    return 0;
}

static int check_config(const cJSON *config, struct dt_error *err)
{
    const cJSON *function = cJSON_GetObjectItemCaseSensitive(config, "activation_function");
    if (function != NULL && !cJSON_IsNull(function) &&
        (!cJSON_IsString(function) ||
         (strcmp(function->valuestring, "gelu_new") != 0 && strcmp(function->valuestring, "gelu_pytorch_tanh") != 0))) {
        return dt_fail(err, DT_INVALID, "activation_function: only \"gelu_new\" is supported");
    }
    return check_flag(config, "scale_attn_weights", true, err) != 0 ||
                   check_flag(config, "scale_attn_by_inverse_layer_idx", false, err) != 0 ||
                   check_flag(config, "add_cross_attention", false, err) != 0
               ? -1
               : 0;
}

static void put_head(const void *sizes, void (*put)(void *to, const char *key, const char *json), void *to)
{
    const struct gpt2 *m = sizes;
    sequence_head_put(&m->head, put, to);
    family_put_id("pad_token_id", m->pad_token_id, put, to);
}

static void put_config(const void *sizes, void (*put)(void *to, const char *key, const char *json), void *to)
{
    const struct gpt2 *m = sizes;
    char positions[32];
    /* the library's default id, in GPT-2's vocabulary, which may be padded to a multiple of 128 */
    const char *end_token = m->vocab_size >= 50257 && m->vocab_size <= 50304 ? "50256" : "null";
    (void)snprintf(positions, sizeof positions, "%" PRId64, m->n_positions);
    put(to, "activation_function", "\"gelu_new\"");
    put(to, "bos_token_id", end_token);
    put(to, "eos_token_id", end_token);
    put(to, "n_ctx", positions);
    sequence_head_put(&m->head, put, to);
    if (m->pad_token_id >= 0) {
        family_put_id("pad_token_id", m->pad_token_id, put, to);
    }
}

static int flatten(cJSON *config, struct dt_error *err)
{
    (void)err;
    const cJSON *padding = cJSON_GetObjectItemCaseSensitive(config, "pad_token_id");
    bool sequences = sequence_head_flatten(config);
    if (!sequences && cJSON_IsNumber(padding) && padding->valuedouble < 0) { /* means nothing without classes */
        cJSON_DeleteItemFromObjectCaseSensitive(config, "pad_token_id");
    }
    return 0;
}

static const char *class_of(const void *sizes)
{
    return ((const struct gpt2 *)sizes)->head.task == DECODER_SEQUENCES ? "GPT2ForSequenceClassification"
                                                                        : "GPT2LMHeadModel";
}

/* 6 operations per weight of a product, of which an embedding that is not the head is none, and the causal
 * half of attention. */
static double flops(const struct chain *c)
{
    const struct gpt2 *m = c->spec.sizes;
    bool apart = !m->tie_word_embeddings || m->head.task == DECODER_SEQUENCES; /* a table that is only looked up */
    int64_t tables = m->n_positions + (apart ? m->vocab_size : 0);
    return 6.0 * (double)(c->parameter_count - tables * m->n_embd) +
           6.0 * (double)(m->n_layer * m->n_embd * c->spec.sequence_length);
}

const struct model_ops model_gpt2 = {.name = "gpt2",
                                     .class_of = class_of,
                                     .head_keys = sequence_head_keys,
                                     .is_head = sequence_head_named,
                                     .put_head = put_head,
                                     .smaller = "model.n_layer, model.n_embd) or data.sequence_length",
                                     .fields = fields,
                                     .sizes_bytes = sizeof(struct gpt2),
                                     .dropouts = dropouts,
                                     .keys = keys,
                                     .spelled = spelled,
                                     .settle = settle,
                                     .positions = "n_positions",
                                     .documents = true,
                                     .check = check,
                                     .build = build,
                                     .flops = flops,
                                     .canonical_name = canonical_name,
                                     .tied = {"tie_word_embeddings", "lm_head.weight", "transformer.wte.weight"},
                                     .check_config = check_config,
                                     .flatten_config = flatten,
                                     .put_config = put_config};
