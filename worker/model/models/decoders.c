/* Llama and the families near it: one decoder layer with switches (decoders_chain.c), and for
 * each family a row of what differs, its keys with their defaults, and its tensor names, all as
 * Hugging Face's library has them. Old and new spellings of config.json are read. */
#include "worker/model/models/decoder_family.h"

#include "worker/model/model.h"
#include "worker/model/models/family_keys.h"
#include "worker/model/models/rope_section.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- keys ---- */

static const struct dt_rule heads_or_null = {.type = DT_RULE_INTEGER, .min = 1, .max = 10000, .null = true};
static const struct dt_rule head_or_null = {.type = DT_RULE_INTEGER, .min = 1, .max = 256, .null = true};
static const struct dt_rule window = {.type = DT_RULE_INTEGER, .min = 0, .max = 16777216, .null = true};
static const struct dt_rule cap = {.type = DT_RULE_NUMBER, .max = 1e30, .null = true};
static const struct dt_rule count = {.type = DT_RULE_INTEGER, .min = 0, .max = 10000};
static const struct dt_rule positions_or_null = {.type = DT_RULE_INTEGER, .min = 1, .max = 16777216, .null = true};
static const struct dt_rule share = {.type = DT_RULE_NUMBER, .open_min = true, .max = 1};
static const struct dt_rule rope = {.type = DT_RULE_ENUM, .choices = ROPE_TYPES};
static const struct dt_rule zeros = {.type = DT_RULE_KINDS, .choices = "0|1", .null = true};

#define AT(member) offsetof(struct decoder, member)
#define SIZES(vocab, hidden, inner, layer_count, head_count, kv, positions, pad)                                       \
    {"vocab_size", vocab, "number of token ids", AT(vocab_size), &vocabulary},                                         \
        {"hidden_size", hidden, "width of the residual stream", AT(hidden_size), &width},                              \
        {"intermediate_size", inner, "width of the feed-forward layer", AT(intermediate_size), &width},                \
        {"num_hidden_layers", layer_count, "number of layers", AT(num_hidden_layers), &layers},                        \
        {"num_attention_heads", head_count, "attention heads per layer", AT(num_attention_heads), &layers},            \
        {"num_key_value_heads", kv, "heads of keys and values; num_attention_heads when null",                         \
         AT(num_key_value_heads), &heads_or_null},                                                                     \
        {"head_dim", "null", "values of a head", AT(head_dim), &head_or_null},                                         \
        {"max_position_embeddings", positions, "longest sequence the model knows", AT(max_position_embeddings),        \
         &length},                                                                                                     \
        {"pad_token_id", pad, "id whose embedding gets no gradient", AT(pad_token_id), &id_or_null},                   \
        {"initializer_range", "0.02", "standard deviation of initial weights", AT(initializer_range), &from_0},        \
    {                                                                                                                  \
        "attention_dropout", "0", "dropout of attention weights", AT(attention_dropout), &dropout                      \
    }
#define NUMBERS(eps, theta, tied)                                                                                      \
    {"rms_norm_eps", eps, "added to the mean square in norms", AT(rms_norm_eps), &from_0},                             \
        {"tie_word_embeddings", tied, "the head is the embedding", AT(tie_word_embeddings), &flag},                    \
        {"rope_theta", theta, "base of the rotary frequencies", AT(rope_theta), &above_0},                             \
        {"rope_type", "\"default\"", "scaling of the rotary frequencies", AT(rope_type), &rope},                       \
        {"rope_factor", "1", "by which longer sequences are scaled", AT(rope_factor), &above_0},                       \
        {"rope_low_freq_factor", "1", "llama3: shortest wavelength that is scaled", AT(rope_low_freq_factor),          \
         &above_0},                                                                                                    \
        {"rope_high_freq_factor", "4", "llama3: longest wavelength that is not scaled", AT(rope_high_freq_factor),     \
         &above_0},                                                                                                    \
        {"rope_original_max_position_embeddings", "null",                                                              \
         "llama3, yarn: length that the model was trained with; max_position_embeddings when null",                    \
         AT(rope_original_max_position_embeddings), &positions_or_null},                                               \
        {"rope_beta_fast", "32", "yarn: turns above which frequencies stay", AT(rope_beta_fast), &above_0},            \
        {"rope_beta_slow", "1", "yarn: turns below which frequencies are scaled", AT(rope_beta_slow), &above_0},       \
        {"rope_attention_factor", "0", "yarn: factor of cosines and sines; by the scaling when 0",                     \
         AT(rope_attention_factor), &from_0},                                                                          \
        {"rope_mscale", "0", "yarn: part of that factor", AT(rope_mscale), &from_0},                                   \
        {"rope_mscale_all_dim", "0", "yarn: part of that factor", AT(rope_mscale_all_dim), &from_0},                   \
        {"rope_truncate", "true", "yarn: bounds are whole pairs", AT(rope_truncate), &flag},                           \
        SEQUENCE_HEAD(struct decoder)
#define ACTIVATION(key, fallback)                                                                                      \
    {                                                                                                                  \
        key, fallback, "activation of the feed-forward layer", AT(hidden_act), &activation                             \
    }
#define ATTENTION_BIAS                                                                                                 \
    {                                                                                                                  \
        "attention_bias", "false", "the maps of attention have biases", AT(attention_bias), &flag                      \
    }
#define MLP_BIAS                                                                                                       \
    {                                                                                                                  \
        "mlp_bias", "false", "the maps of the feed-forward layer have biases", AT(mlp_bias), &flag                     \
    }
#define WINDOW(fallback)                                                                                               \
    {"sliding_window", fallback, "keys that a query sees in layers with a window; 0 or null: all", AT(sliding_window), \
     &window},                                                                                                         \
    {                                                                                                                  \
        "layer_types", "null", "which layers have a window; by the model's rule when null", AT(layer_types), &kinds    \
    }
#define USE_WINDOW                                                                                                     \
    {                                                                                                                  \
        "use_sliding_window", "false", "layers have a window at all", AT(use_sliding_window), &flag                    \
    }

static const struct dt_field llama_fields[] = {SIZES("32000", "4096", "11008", "32", "32", "null", "2048", "null"),
                                               NUMBERS("1e-06", "10000", "false"),
                                               ACTIVATION("hidden_act", "\"silu\""),
                                               ATTENTION_BIAS,
                                               MLP_BIAS,
                                               {0}};
static const struct dt_field qwen2_fields[] = {
    SIZES("151936", "4096", "22016", "32", "32", "32", "32768", "null"),
    NUMBERS("1e-06", "10000", "false"),
    ACTIVATION("hidden_act", "\"silu\""),
    WINDOW("4096"),
    USE_WINDOW,
    {"max_window_layers", "28", "first layer with a window", AT(max_window_layers), &count},
    {0}};
static const struct dt_field qwen3_fields[] = {
    SIZES("151936", "4096", "22016", "32", "32", "32", "32768", "null"),
    NUMBERS("1e-06", "10000", "false"),
    ACTIVATION("hidden_act", "\"silu\""),
    ATTENTION_BIAS,
    WINDOW("4096"),
    USE_WINDOW,
    {"max_window_layers", "28", "first layer with a window", AT(max_window_layers), &count},
    {0}};
static const struct dt_field mistral_fields[] = {SIZES("32000", "4096", "14336", "32", "32", "8", "131072", "null"),
                                                 NUMBERS("1e-06", "10000", "false"),
                                                 ACTIVATION("hidden_act", "\"silu\""),
                                                 WINDOW("4096"),
                                                 {0}};
#define GEMMA                                                                                                          \
    ACTIVATION("hidden_activation", "\"gelu_pytorch_tanh\""), ATTENTION_BIAS, WINDOW("4096"),                          \
    {                                                                                                                  \
        "query_pre_attn_scalar", "256", "scores are divided by its root", AT(query_pre_attn_scalar), &above_0          \
    }
static const struct dt_field gemma2_fields[] = {
    SIZES("256000", "2304", "9216", "26", "8", "4", "8192", "0"),
    NUMBERS("1e-06", "10000", "true"),
    GEMMA,
    {"attn_logit_softcapping", "50", "bound of the scores; 0 or null: none", AT(attn_logit_softcapping), &cap},
    {"final_logit_softcapping", "30", "bound of the logits; 0 or null: none", AT(final_logit_softcapping), &cap},
    {0}};
static const struct dt_field gemma3_text_fields[] = {
    SIZES("262208", "2304", "9216", "26", "8", "4", "131072", "0"),
    NUMBERS("1e-06", "1000000", "true"),
    GEMMA,
    {"final_logit_softcapping", "0", "bound of the logits; 0 or null: none", AT(final_logit_softcapping), &cap},
    {"rope_local_base_freq", "10000", "base of the rotary frequencies in layers with a window",
     AT(rope_local_base_freq), &above_0},
    {"sliding_window_pattern", "6", "each layer of this number has no window", AT(sliding_window_pattern), &layers},
    {0}};
static const struct dt_field smollm3_fields[] = {
    SIZES("128256", "2048", "11008", "36", "16", "4", "32768", "128004"),
    NUMBERS("1e-06", "2000000", "true"),
    ACTIVATION("hidden_act", "\"silu\""),
    ATTENTION_BIAS,
    MLP_BIAS,
    WINDOW("0"),
    USE_WINDOW,
    {"no_rope_layer_interval", "4", "each layer of this number does not turn", AT(no_rope_layer_interval), &layers},
    {"no_rope_layers", "null", "1: the layer turns; by no_rope_layer_interval when null", AT(no_rope_layers), &zeros},
    {0}};
static const struct dt_field phi3_fields[] = {
    SIZES("32064", "3072", "8192", "32", "32", "null", "4096", "32000"),
    NUMBERS("1e-05", "10000", "false"),
    ACTIVATION("hidden_act", "\"silu\""),
    WINDOW("0"),
    {"partial_rotary_factor", "1", "share of a head that turns", AT(partial_rotary_factor), &share},
    {"resid_pdrop", "0", "dropout of what layers add", AT(resid_pdrop), &dropout},
    {0}};
static const struct dt_field olmo2_fields[] = {SIZES("50304", "4096", "11008", "32", "32", "null", "2048", "1"),
                                               NUMBERS("1e-05", "10000", "false"),
                                               ACTIVATION("hidden_act", "\"silu\""),
                                               ATTENTION_BIAS,
                                               {0}};
static const struct dt_field granite_fields[] = {
    SIZES("32000", "4096", "11008", "32", "32", "null", "2048", "null"),
    NUMBERS("1e-06", "10000", "false"),
    ACTIVATION("hidden_act", "\"silu\""),
    ATTENTION_BIAS,
    MLP_BIAS,
    {"attention_multiplier", "1", "factor of the scores", AT(attention_multiplier), &above_0},
    {"embedding_multiplier", "1", "factor of the embeddings", AT(embedding_multiplier), &above_0},
    {"residual_multiplier", "1", "factor of what layers add", AT(residual_multiplier), &above_0},
    {"logits_scaling", "1", "the logits are divided by it", AT(logits_scaling), &above_0},
    {0}};

static const struct model_dropout dropouts[] = {{"attention_dropout", 0}, {"resid_pdrop", 0}, {0}};
static const char *const spelled[] = {"num_key_value_heads",
                                      "head_dim",
                                      "layer_types",
                                      "no_rope_layers",
                                      "sliding_window",
                                      "query_pre_attn_scalar",
                                      "attn_logit_softcapping",
                                      "final_logit_softcapping",
                                      "rope_theta",
                                      "rope_local_base_freq",
                                      "rope_type",
                                      "rope_factor",
                                      "rope_low_freq_factor",
                                      "rope_high_freq_factor",
                                      "rope_original_max_position_embeddings",
                                      "rope_beta_fast",
                                      "rope_beta_slow",
                                      "rope_attention_factor",
                                      "rope_mscale",
                                      "rope_mscale_all_dim",
                                      "rope_truncate",
                                      "num_labels",
                                      "problem_type",
                                      "task",
                                      NULL};

/* Null and what null stands for are the same model. */
static void settle(const struct decoder_family *f, void *sizes)
{
    struct decoder *m = sizes;
    int64_t layers_listed = m->num_hidden_layers <= DT_KINDS_MAX ? m->num_hidden_layers : 0;
    struct dt_kinds sliding = {.count = (int)layers_listed}, turning = sliding;
    for (int64_t i = 0; i < layers_listed && f->window != WINDOW_NONE; i++) {
        sliding.of[i] = m->layer_types.count == 0 || i < m->layer_types.count ? decoder_slides(f, m, i) : 0;
        turning.of[i] = m->no_rope_layers.count == 0 || i < m->no_rope_layers.count ? decoder_turns(m, i) : 0;
    }
    m->num_key_value_heads = decoder_kv_heads(m);
    m->head_dim = decoder_head_size(f, m);
    m->rope_original_max_position_embeddings = m->rope_original_max_position_embeddings > 0
                                                   ? m->rope_original_max_position_embeddings
                                                   : m->max_position_embeddings;
    m->layer_types = m->layer_types.count == 0 ? sliding : m->layer_types;
    m->no_rope_layers = m->no_rope_layers.count == 0 ? turning : m->no_rope_layers;
}

/* ---- checks ---- */

static int check_heads(const struct decoder_family *f, const struct decoder *m, const char **key, struct dt_error *err)
{
    *key = "num_key_value_heads";
    if (m->num_attention_heads % decoder_kv_heads(m) != 0) {
        return dt_fail(err, DT_INVALID,
                       "num_attention_heads %" PRId64 " is no multiple of num_key_value_heads %" PRId64,
                       m->num_attention_heads, decoder_kv_heads(m));
    }
    *key = "num_attention_heads";
    if (m->head_dim == 0 && f->head_dim == 0 && m->hidden_size % m->num_attention_heads != 0) {
        return dt_fail(err, DT_INVALID,
                       "hidden_size %" PRId64 " cannot be split among num_attention_heads %" PRId64
                       "; choose a multiple, or give head_dim",
                       m->hidden_size, m->num_attention_heads);
    }
    *key = "head_dim";
    struct rope r = decoder_rope(f, m, false);
    if (r.width > decoder_head_size(f, m) || r.width < 2) {
        return dt_fail(err, DT_INVALID,
                       "head_dim %" PRId64 ": %" PRId64 " values of a head would turn; use an even one",
                       decoder_head_size(f, m), r.width);
    }
    if (decoder_head_size(f, m) > 256) {
        return dt_fail(err, DT_INVALID, "head_dim %" PRId64 " is more than 256", decoder_head_size(f, m));
    }
    return 0;
}

static int check_layers(const struct decoder_family *f, const struct decoder *m, const char **key, struct dt_error *err)
{
    *key = "layer_types";
    if (m->layer_types.count > 0 && m->layer_types.count != m->num_hidden_layers) {
        return dt_fail(err, DT_INVALID, "layer_types lists %d layers, and num_hidden_layers is %" PRId64,
                       m->layer_types.count, m->num_hidden_layers);
    }
    for (int64_t i = 0; i < m->num_hidden_layers; i++) {
        if (f->one_kind && decoder_slides(f, m, i) != decoder_slides(f, m, 0)) {
            return dt_fail(err, DT_INVALID,
                           "layer_types: this model has no layers of both kinds; remove it, sliding_window is for all");
        }
        if (decoder_slides(f, m, i) && decoder_window(f, m) <= 0) {
            return dt_fail(err, DT_INVALID, "layer %" PRId64 " has sliding_attention, and there is no window: %s", i,
                           f->window == WINDOW_LAST && !m->use_sliding_window ? "use_sliding_window is false"
                                                                              : "give sliding_window");
        }
    }
    *key = "no_rope_layers";
    if (m->no_rope_layers.count > 0 && m->no_rope_layers.count != m->num_hidden_layers) {
        return dt_fail(err, DT_INVALID, "no_rope_layers lists %d layers, and num_hidden_layers is %" PRId64,
                       m->no_rope_layers.count, m->num_hidden_layers);
    }
    return 0;
}

static int check(const struct decoder_family *f, const void *sizes, const char **key, struct dt_error *err)
{
    const struct decoder *m = sizes;
    if (check_heads(f, m, key, err) != 0 || check_layers(f, m, key, err) != 0) {
        return -1;
    }
    *key = "vocab_size";
    if (m->vocab_size > ((int64_t)1 << 40) / m->hidden_size ||
        m->intermediate_size > ((int64_t)1 << 40) / m->hidden_size) {
        return dt_fail(err, DT_INVALID,
                       "vocab_size or intermediate_size times hidden_size %" PRId64 " is more than 2^40 weights",
                       m->hidden_size);
    }
    *key = "pad_token_id";
    if (m->pad_token_id >= m->vocab_size) {
        return dt_fail(err, DT_INVALID, "pad_token_id %" PRId64 " is not below vocab_size %" PRId64, m->pad_token_id,
                       m->vocab_size);
    }
    if (sequence_head_check(&m->head, m->pad_token_id, key, err) != 0) {
        return -1;
    }
    *key = "query_pre_attn_scalar";
    if (m->query_pre_attn_scalar != floor(m->query_pre_attn_scalar)) {
        return dt_fail(err, DT_INVALID,
                       "query_pre_attn_scalar %g: Transformers loads no model with it; give a whole number",
                       m->query_pre_attn_scalar);
    }
    *key = "rope_type";
    if (f->only_default_rope && m->rope_type != ROPE_DEFAULT) {
        return dt_fail(err, DT_INVALID, "rope_type: this model knows only \"default\"");
    }
    return 0;
}

/* ---- names and config.json ---- */

/* Ignores the buffers of old files. Files of the model without its head have no prefix. */
static bool canonical_name(const char *file_name, char *out, size_t out_bytes)
{
    if (dt_text_ends_with(file_name, "rotary_emb.inv_freq")) {
        return false;
    }
    bool whole = strncmp(file_name, "model.", 6) == 0 || strncmp(file_name, "lm_head.", 8) == 0 ||
                 sequence_head_named(file_name);
    (void)snprintf(out, out_bytes, "%s%s", whole ? "" : "model.", file_name);
    return true;
}

/* A number, or null for 0. Transformers refuses a whole number for a key that it declares as a float,
 * and the reverse: `whole` is what it declares. */
static void put_or_null(void (*put)(void *to, const char *key, const char *json), void *to, const char *key, double x,
                        bool whole)
{
    char text[40];
    (void)snprintf(text, sizeof text, "%.17g%s", x, !whole && x == floor(x) && fabs(x) < 1e15 ? ".0" : "");
    put(to, key, x != 0 ? text : "null");
}

/* A model whose layers are all of one kind has no list of them in the library: there, a Mistral with one
 * is the class Ministral, which needs a window. */
static void put_layers(const struct decoder_family *f, const struct decoder *m,
                       void (*put)(void *to, const char *key, const char *json), void *to)
{
    struct dt_text list;
    int64_t sliding = 0;
    dt_text_init(&list);
    for (int64_t i = 0; i < m->num_hidden_layers; i++) {
        bool slides = decoder_slides(f, m, i);
        sliding += slides;
        dt_text_printf(&list, "%s\n    \"%s_attention\"", i > 0 ? "," : "[", slides ? "sliding" : "full");
    }
    dt_text_puts(&list, "\n  ]");
    bool one_kind = f->window == WINDOW_ALL && (sliding == 0 || sliding == m->num_hidden_layers);
    if (!one_kind) {
        put(to, "layer_types", dt_text_str(&list));
    }
    dt_text_clear(&list);
    /* the library's Gemmas want a number, whether a layer has a window or not */
    bool unused = f->scaled_embedding && m->sliding_window == 0;
    put_or_null(put, to, "sliding_window",
                one_kind && sliding == 0 ? 0
                : unused                 ? 4096
                                         : (double)m->sliding_window,
                true);
}

static void put_head(const void *sizes, void (*put)(void *to, const char *key, const char *json), void *to)
{
    const struct decoder *m = sizes;
    sequence_head_put(&m->head, put, to);
    family_put_id("pad_token_id", m->pad_token_id, put, to);
}

static void put_config(const struct decoder_family *f, const void *sizes,
                       void (*put)(void *to, const char *key, const char *json), void *to)
{
    const struct decoder *m = sizes;
    char text[32], *section = rope_section(m);
    (void)snprintf(text, sizeof text, "%" PRId64, decoder_kv_heads(m));
    put(to, "num_key_value_heads", text);
    (void)snprintf(text, sizeof text, "%" PRId64, decoder_head_size(f, m));
    put(to, "head_dim", text);
    put(to, "bos_token_id", "null");
    put(to, "eos_token_id", "null");
    sequence_head_put(&m->head, put, to);
    if (f->window != WINDOW_NONE) {
        put_layers(f, m, put, to);
    }
    if (f->local_rope) {
        struct dt_text both;
        dt_text_init(&both);
        dt_text_printf(&both,
                       "{\n    \"full_attention\": %s,\n    \"sliding_attention\": {\n    \"rope_type\": \"default\"",
                       section);
        rope_put_number(&both, "rope_theta", m->rope_local_base_freq);
        dt_text_puts(&both, "\n  }\n  }");
        put(to, "rope_parameters", dt_text_str(&both));
        dt_text_clear(&both);
    } else {
        put(to, "rope_parameters", section);
    }
    if (m->query_pre_attn_scalar > 0) {
        put_or_null(put, to, "query_pre_attn_scalar", m->query_pre_attn_scalar, true);
        put_or_null(put, to, "attn_logit_softcapping", m->attn_logit_softcapping, false);
        put_or_null(put, to, "final_logit_softcapping", m->final_logit_softcapping, false);
    }
    if (f->window == WINDOW_NO_ROPE) {
        struct dt_text list;
        dt_text_init(&list);
        for (int64_t i = 0; i < m->num_hidden_layers; i++) {
            dt_text_printf(&list, "%s\n    %d", i > 0 ? "," : "[", decoder_turns(m, i) ? 1 : 0);
        }
        dt_text_puts(&list, "\n  ]");
        put(to, "no_rope_layers", dt_text_str(&list));
        dt_text_clear(&list);
    }
    free(section);
}

/* An id below 0 counts from the end of the vocabulary, as PyTorch's padding_idx does. It ends no sequence. */
static void count_padding(cJSON *config, bool sequences)
{
    const cJSON *padding = cJSON_GetObjectItemCaseSensitive(config, "pad_token_id"),
                *ids = cJSON_GetObjectItemCaseSensitive(config, "vocab_size");
    if (!sequences && cJSON_IsNumber(padding) && cJSON_IsNumber(ids) && padding->valuedouble < 0 &&
        padding->valuedouble >= -ids->valuedouble) {
        family_set(config, "pad_token_id", cJSON_CreateNumber(ids->valuedouble + padding->valuedouble));
    }
}

static void note_export(const struct decoder_family *f, const void *sizes, struct dt_text *out)
{
    const struct decoder *m = sizes;
    int64_t before = m->rope_original_max_position_embeddings > 0 ? m->rope_original_max_position_embeddings
                                                                  : m->max_position_embeddings;
    struct dt_list notes = {.text = out};
    if (f->whole_heads && m->hidden_size % m->num_attention_heads != 0) {
        dt_list_add(&notes,
                    "Transformers will refuse this model: hidden_size %" PRId64
                    " is no multiple of num_attention_heads %" PRId64 ", whatever head_dim is",
                    m->hidden_size, m->num_attention_heads);
    }
    if (f->only_tokens && m->head.task == DECODER_SEQUENCES) {
        dt_list_add(&notes, "Transformers has no class of this model for sequences");
    }
    if (m->rope_type == ROPE_LLAMA3 && before >= m->max_position_embeddings) {
        dt_list_add(&notes,
                    "Transformers will warn of this model: rope_type llama3 is for more positions than "
                    "model.rope_original_max_position_embeddings (%" PRId64
                    "), and model.max_position_embeddings is %" PRId64 "; its numbers are the same",
                    before, m->max_position_embeddings);
    }
}

/* ---- the families ---- */

#define TIED                                                                                                           \
    {                                                                                                                  \
        "tie_word_embeddings", "lm_head.weight", "model.embed_tokens.weight"                                           \
    }
#define FAMILY(model, class, classes, ...)                                                                             \
    static const struct decoder_family model##_family = {__VA_ARGS__};                                                 \
    static int model##_check(const void *sizes, const char **key, struct dt_error *err)                                \
    {                                                                                                                  \
        return check(&model##_family, sizes, key, err);                                                                \
    }                                                                                                                  \
    static int model##_flatten(cJSON *config, struct dt_error *err)                                                    \
    {                                                                                                                  \
        count_padding(config, sequence_head_flatten(config));                                                          \
        return rope_flatten(&model##_family, config, err);                                                             \
    }                                                                                                                  \
    static void model##_settle(void *sizes)                                                                            \
    {                                                                                                                  \
        settle(&model##_family, sizes);                                                                                \
    }                                                                                                                  \
    static int model##_build(struct chain *c, struct dt_error *err)                                                    \
    {                                                                                                                  \
        return decoder_build(&model##_family, c, err);                                                                 \
    }                                                                                                                  \
    static void model##_put(const void *sizes, void (*put)(void *to, const char *key, const char *json), void *to)     \
    {                                                                                                                  \
        put_config(&model##_family, sizes, put, to);                                                                   \
    }                                                                                                                  \
    static const char *model##_class(const void *sizes)                                                                \
    {                                                                                                                  \
        return ((const struct decoder *)sizes)->head.task == DECODER_SEQUENCES ? classes : class;                      \
    }                                                                                                                  \
    static void model##_note(const void *sizes, struct dt_text *out)                                                   \
    {                                                                                                                  \
        note_export(&model##_family, sizes, out);                                                                      \
    }                                                                                                                  \
    const struct model_ops model_##model = {.name = #model,                                                            \
                                            .class_of = model##_class,                                                 \
                                            .head_keys = sequence_head_keys,                                           \
                                            .is_head = sequence_head_named,                                            \
                                            .put_head = put_head,                                                      \
                                            .smaller =                                                                 \
                                                "model.num_hidden_layers, model.hidden_size) or data.sequence_length", \
                                            .fields = model##_fields,                                                  \
                                            .sizes_bytes = sizeof(struct decoder),                                     \
                                            .dropouts = dropouts,                                                      \
                                            .spelled = spelled,                                                        \
                                            .positions = "max_position_embeddings",                                    \
                                            .documents = true,                                                         \
                                            .check = model##_check,                                                    \
                                            .settle = model##_settle,                                                  \
                                            .build = model##_build,                                                    \
                                            .flops = decoder_flops,                                                    \
                                            .canonical_name = canonical_name,                                          \
                                            .tied = TIED,                                                              \
                                            .flatten_config = model##_flatten,                                         \
                                            .note_export = model##_note,                                               \
                                            .put_config = model##_put};

FAMILY(llama, "LlamaForCausalLM", "LlamaForSequenceClassification", .biased = true, .whole_heads = true)
FAMILY(qwen2, "Qwen2ForCausalLM", "Qwen2ForSequenceClassification", .qkv_bias = true, .window = WINDOW_LAST)
FAMILY(qwen3, "Qwen3ForCausalLM", "Qwen3ForSequenceClassification", .biased = true, .qk_norm = QK_NORM_HEADS,
       .head_dim = 128, .window = WINDOW_LAST)
FAMILY(mistral, "MistralForCausalLM", "MistralForSequenceClassification", .window = WINDOW_ALL)
FAMILY(gemma2, "Gemma2ForCausalLM", "Gemma2ForSequenceClassification", .whole_heads = true, .biased = true,
       .norms = NORM_BOTH, .weight_offset = 1, .head_dim = 256, .window = WINDOW_EVEN, .scaled_embedding = true)
FAMILY(gemma3_text, "Gemma3ForCausalLM", "Gemma3TextForSequenceClassification", .whole_heads = true, .biased = true,
       .norms = NORM_BOTH, .qk_norm = QK_NORM_HEADS, .weight_offset = 1, .head_dim = 256, .window = WINDOW_PATTERN,
       .local_rope = true, .scaled_embedding = true)
FAMILY(smollm3, "SmolLM3ForCausalLM", "SmolLM3ForSequenceClassification", .biased = true, .window = WINDOW_NO_ROPE)
FAMILY(phi3, "Phi3ForCausalLM", "Phi3ForSequenceClassification", .fused = true, .one_kind = true, .window = WINDOW_ALL,
       .only_default_rope = true)
FAMILY(olmo2, "Olmo2ForCausalLM", "Olmo2ForSequenceClassification", .biased = true, .norms = NORM_AFTER,
       .qk_norm = QK_NORM_ALL)
FAMILY(granite, "GraniteForCausalLM", "GraniteForSequenceClassification", .biased = true, .only_tokens = true)
