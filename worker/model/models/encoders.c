/* BERT and the families near it, which give classes to sequences or tokens: one encoder layer with
 * switches (encoders_chain.c), and for each family a row of what differs, its keys with their
 * defaults, and its tensor names, all as Hugging Face's library has them. Old and new spellings of
 * config.json are read. */
#include "worker/model/models/encoder_family.h"
#include "worker/model/models/family_keys.h"
#include "worker/model/models/rope_section.h"
#include "worker/model/models/sequence_head.h"

#include "worker/model/model.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* BERT's names, which RoBERTa has, too. */
#define BERT_NAMES(start)                                                                                              \
    .tokens = "embeddings.word_embeddings.weight", .positions = "embeddings.position_embeddings.weight",               \
    .types = "embeddings.token_type_embeddings.weight", .norm = "embeddings.LayerNorm",                                \
    .layer = {.layer = start "encoder.layer.%d.",                                                                      \
              .qkv = {"attention.self.query", "attention.self.key", "attention.self.value"},                           \
              .output = "attention.output.dense",                                                                      \
              .attention_norm = "attention.output.LayerNorm",                                                          \
              .up = "intermediate.dense",                                                                              \
              .down = "output.dense",                                                                                  \
              .mlp_norm = "output.LayerNorm"}

/* ---- keys ---- */

static const struct dt_rule types = {.type = DT_RULE_INTEGER, .min = 1, .max = 65536};
static const struct dt_rule id = {.type = DT_RULE_INTEGER, .min = 0, .max = 16777216};
static const struct dt_rule dropout_or_null = {
    .type = DT_RULE_NUMBER, .max = 1, .open_max = true, .null = true, .null_value = -1};
static const struct dt_rule pooling = {.type = DT_RULE_ENUM, .choices = "cls|mean"};
static const struct dt_rule task = {.type = DT_RULE_ENUM,
                                    .choices = "sequence_classification|token_classification|masked_lm"};

#define AT(member) offsetof(struct encoder, member)
#define SIZES(vocab, size, hidden, inner_key, inner, layer_key, layer_count, head_key, head_count, positions, act)     \
    {"vocab_size", vocab, "number of token ids", AT(vocab_size), &vocabulary},                                         \
        {size, hidden, "width of the residual stream", AT(hidden_size), &width},                                       \
        {inner_key, inner, "width of the feed-forward layer", AT(intermediate_size), &width},                          \
        {layer_key, layer_count, "number of layers", AT(num_hidden_layers), &layers},                                  \
        {head_key, head_count, "attention heads per layer", AT(num_attention_heads), &layers},                         \
        {"max_position_embeddings", positions, "longest sequence the model knows", AT(max_position_embeddings),        \
         &length},                                                                                                     \
        {act, "\"gelu\"", "activation of the feed-forward layer", AT(hidden_act), &activation},                        \
        {"initializer_range", "0.02", "standard deviation of initial weights", AT(initializer_range), &from_0},        \
        {"num_labels", "2", "number of classes", AT(num_labels), &label_rule},                                         \
        {"problem_type", "null", PROBLEM_HELP, AT(problem_type), &problem_rule},                                       \
    {                                                                                                                  \
        "task", "\"sequence_classification\"", "what gets a class: each sequence or token; masked_lm: labels are ids", \
            AT(task), &task                                                                                            \
    }
#define TIED                                                                                                           \
    {                                                                                                                  \
        "tie_word_embeddings", "true", "masked_lm: the head is the embedding", AT(tie_word_embeddings), &flag          \
    }
#define PADDING(fallback, rule)                                                                                        \
    {                                                                                                                  \
        "pad_token_id", fallback, "id whose embedding gets no gradient", AT(pad_token_id), rule                        \
    }
#define BERT_SIZES(vocab)                                                                                              \
    SIZES(vocab, "hidden_size", "768", "intermediate_size", "3072", "num_hidden_layers", "12", "num_attention_heads",  \
          "12", "512", "hidden_act"),                                                                                  \
        {"type_vocab_size", "2", "number of token types", AT(type_vocab_size), &types},                                \
        {"layer_norm_eps", "1e-12", "added to the variance in norms", AT(norm_epsilon), &from_0},                      \
        {"hidden_dropout_prob", "0", "dropout of embeddings and of what layers add", AT(hidden_dropout), &dropout},    \
        {"attention_probs_dropout_prob", "0", "dropout of attention weights", AT(attention_dropout), &dropout},        \
    {                                                                                                                  \
        "classifier_dropout", "null", "dropout before the classifier; hidden_dropout_prob when null",                  \
            AT(classifier_dropout), &dropout_or_null                                                                   \
    }

static const struct dt_field bert_fields[] = {BERT_SIZES("30522"), PADDING("0", &id_or_null), TIED, {0}};
static const struct dt_field roberta_fields[] = {BERT_SIZES("50265"), PADDING("1", &id), TIED, {0}};
static const struct dt_field distilbert_fields[] = {
    SIZES("30522", "dim", "768", "hidden_dim", "3072", "n_layers", "6", "n_heads", "12", "512", "activation"),
    PADDING("0", &id_or_null),
    {"dropout", "0", "dropout of embeddings and of what layers add", AT(hidden_dropout), &dropout},
    {"attention_dropout", "0", "dropout of attention weights", AT(attention_dropout), &dropout},
    {"seq_classif_dropout", "0", "dropout before the classifier", AT(classifier_dropout), &dropout},
    TIED,
    {0}};
static const struct dt_field modernbert_fields[] = {
    SIZES("50368", "hidden_size", "768", "intermediate_size", "1152", "num_hidden_layers", "22", "num_attention_heads",
          "12", "8192", "hidden_activation"),
    PADDING("50283", &id_or_null),
    {"norm_eps", "1e-05", "added to the variance in norms", AT(norm_epsilon), &from_0},
    {"norm_bias", "false", "norms have biases", AT(norm_bias), &flag},
    {"attention_bias", "false", "the maps of attention have biases", AT(attention_bias), &flag},
    {"mlp_bias", "false", "the maps of the feed-forward layer have biases", AT(mlp_bias), &flag},
    {"classifier_bias", "false", "the map before the classifier has a bias", AT(classifier_bias), &flag},
    {"decoder_bias", "true", "masked_lm: logits have a bias", AT(decoder_bias), &flag},
    {"classifier_pooling", "\"cls\"", "what the classifier reads: the first token, or the mean of all",
     AT(classifier_pooling), &pooling},
    {"classifier_activation", "\"gelu\"", "activation before the classifier", AT(classifier_activation), &activation},
    {"local_attention", "128", "tokens that a token sees in layers with a window: half on each side",
     AT(local_attention), &length},
    {"layer_types", "null", "which layers have a window; by global_attn_every_n_layers when null", AT(layer_types),
     &kinds},
    {"global_attn_every_n_layers", "3", "each layer of this number has no window", AT(global_attn_every_n_layers),
     &layers},
    {"global_rope_theta", "160000", "base of the rotary frequencies", AT(global_rope_theta), &above_0},
    {"local_rope_theta", "10000", "base of the rotary frequencies in layers with a window", AT(local_rope_theta),
     &above_0},
    {"initializer_cutoff_factor", "2", "initial weights lie within so many deviations", AT(initializer_cutoff_factor),
     &above_0},
    {"embedding_dropout", "0", "dropout of embeddings", AT(embedding_dropout), &dropout},
    {"attention_dropout", "0", "dropout of attention weights", AT(attention_dropout), &dropout},
    {"mlp_dropout", "0", "dropout in the feed-forward layer", AT(mlp_dropout), &dropout},
    {"classifier_dropout", "0", "dropout before the classifier", AT(classifier_dropout), &dropout},
    TIED,
    {0}};

static const struct model_dropout bert_dropouts[] = {
    {"hidden_dropout_prob", 0.1}, {"attention_probs_dropout_prob", 0.1}, {"classifier_dropout", -1}, {0}};
static const struct model_dropout distilbert_dropouts[] = {
    {"dropout", 0.1}, {"attention_dropout", 0.1}, {"seq_classif_dropout", 0.2}, {0}};
static const struct model_dropout modernbert_dropouts[] = {
    {"embedding_dropout", 0}, {"attention_dropout", 0}, {"mlp_dropout", 0}, {"classifier_dropout", 0}, {0}};
static const char *const spelled[] = {
    "num_labels",        "problem_type",     "task", "layer_types", "global_attn_every_n_layers",
    "global_rope_theta", "local_rope_theta", NULL};
static const char *const head_keys[] = {"num_labels", "problem_type", "task", NULL};
static const struct model_key distilbert_keys[] = {
    {"hidden_size", "dim"}, {"num_attention_heads", "n_heads"}, {"num_hidden_layers", "n_layers"}, {0}};
#define roberta_dropouts bert_dropouts
static const struct model_alias roberta_aliases[] = {{"xlm-roberta", "XLMRoberta"}, {"camembert", "Camembert"}, {0}};

/* ---- checks ---- */

static int check_layers(const struct encoder *m, const char **key, struct dt_error *err)
{
    *key = "num_attention_heads";
    if (m->hidden_size / m->num_attention_heads % 2 != 0) {
        return dt_fail(err, DT_INVALID,
                       "num_attention_heads %" PRId64 ": a head has %" PRId64
                       " values, and only an even number can turn",
                       m->num_attention_heads, m->hidden_size / m->num_attention_heads);
    }
    *key = "layer_types";
    if (m->layer_types.count > 0 && m->layer_types.count != m->num_hidden_layers) {
        return dt_fail(err, DT_INVALID, "layer_types lists %d layers, and num_hidden_layers is %" PRId64,
                       m->layer_types.count, m->num_hidden_layers);
    }
    return 0;
}

static int check(const struct encoder_family *f, const void *sizes, const char **key, struct dt_error *err)
{
    const struct encoder *m = sizes;
    *key = f->heads_key;
    if (m->hidden_size % m->num_attention_heads != 0) {
        return dt_fail(err, DT_INVALID, "%s %" PRId64 " cannot be split among %s %" PRId64 "; choose a multiple",
                       f->size_key, m->hidden_size, f->heads_key, m->num_attention_heads);
    }
    if (m->hidden_size / m->num_attention_heads > 256) {
        return dt_fail(err, DT_INVALID, "%s %" PRId64 ": a head has %" PRId64 " values; at most 256", f->heads_key,
                       m->num_attention_heads, m->hidden_size / m->num_attention_heads);
    }
    *key = "vocab_size";
    if (m->vocab_size > ((int64_t)1 << 40) / m->hidden_size ||
        m->max_position_embeddings > ((int64_t)1 << 40) / m->hidden_size ||
        m->intermediate_size > ((int64_t)1 << 40) / m->hidden_size) {
        return dt_fail(err, DT_INVALID, "a table of %s %" PRId64 " columns has more than 2^40 weights", f->size_key,
                       m->hidden_size);
    }
    *key = "pad_token_id";
    if (m->pad_token_id >= m->vocab_size) {
        return dt_fail(err, DT_INVALID, "pad_token_id %" PRId64 " is not below vocab_size %" PRId64, m->pad_token_id,
                       m->vocab_size);
    }
    *key = "max_position_embeddings";
    if (encoder_longest(f, m) < 1) {
        return dt_fail(err, DT_INVALID,
                       "max_position_embeddings %" PRId64 ": positions begin behind pad_token_id %" PRId64
                       ", so there is none for a token",
                       m->max_position_embeddings, m->pad_token_id);
    }
    *key = "problem_type";
    if (m->task != ENCODER_SEQUENCES && (m->problem_type == PROBLEM_NUMBERS || m->problem_type == PROBLEM_CLASSES)) {
        return dt_fail(err, DT_INVALID,
                       "problem_type: each token has one class; numbers, or several classes, are for "
                       "task \"sequence_classification\"");
    }
    *key = "num_labels";
    if (m->num_labels == 1 && m->task != ENCODER_MASKED && encoder_problem(m) == PROBLEM_CLASS) {
        return dt_fail(err, DT_INVALID, "num_labels 1: with one class there is nothing to learn; give 2 or more");
    }
    return f->modern ? check_layers(m, key, err) : 0;
}

/* ---- names and config.json ---- */

static bool begins_with(const char *s, const char *begin)
{
    return strncmp(s, begin, strlen(begin)) == 0;
}

static bool begins_with_one(const char *s, const char *const *begins)
{
    for (int i = 0; i < ENCODER_NAMES_MAX && begins[i] != NULL; i++) {
        if (begins_with(s, begins[i])) {
            return true;
        }
    }
    return false;
}

/* Files of the model without its head have no prefix. The oldest files call the parts of a norm
 * gamma and beta. */
static bool canonical_name(const struct encoder_family *f, const char *file_name, char *out, size_t out_bytes)
{
    bool whole = begins_with(file_name, f->prefix) || begins_with_one(file_name, f->heads);
    if (dt_text_ends_with(file_name, "position_ids")) {
        return false;
    }
    int size = (int)strlen(file_name);
    bool gamma = dt_text_ends_with(file_name, "LayerNorm.gamma"), beta = dt_text_ends_with(file_name, "LayerNorm.beta");
    size -= gamma ? 5 : beta ? 4 : 0;
    (void)snprintf(out, out_bytes, "%s%.*s%s", whole ? "" : f->prefix, size, file_name,
                   gamma  ? "weight"
                   : beta ? "bias"
                          : "");
    return true;
}

static int refuse_true(const cJSON *config, const char *key, struct dt_error *err)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(config, key))
               ? dt_fail(err, DT_INVALID, "%s: only false is supported", key)
               : 0;
}

/* Refuses a text other than `only`. */
static int refuse_other(const cJSON *config, const char *key, const char *only, struct dt_error *err)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(config, key);
    return cJSON_IsString(value) && strcmp(value->valuestring, only) != 0
               ? dt_fail(err, DT_INVALID, "%s: \"%s\" is not there yet; only \"%s\" is supported", key,
                         value->valuestring, only)
               : 0;
}

static int check_config(const cJSON *config, struct dt_error *err)
{
    return refuse_true(config, "is_decoder", err) != 0 || refuse_true(config, "add_cross_attention", err) != 0 ||
                   refuse_true(config, "sinusoidal_pos_embds", err) != 0 ||
                   refuse_other(config, "position_embedding_type", "absolute", err) != 0
               ? -1
               : 0;
}

/* rope_parameters (since Transformers 5) has a section for each kind of layers. */
static int flatten_rope(cJSON *config, const cJSON *sections, const char *kind, const char *key, struct dt_error *err)
{
    const cJSON *section;
    if (rope_open_section(sections, kind, &section, err) != 0) {
        return dt_wrap(err, "rope_parameters");
    }
    const cJSON *theta = cJSON_GetObjectItemCaseSensitive(section, "rope_theta");
    if (cJSON_IsNumber(theta)) {
        family_set(config, key, cJSON_Duplicate(theta, true));
    }
    return refuse_other(section, "rope_type", "default", err) != 0 || refuse_other(section, "type", "default", err) != 0
               ? dt_wrap(err, "rope_parameters: %s", kind)
               : 0;
}

static int flatten_ropes(cJSON *config, struct dt_error *err)
{
    const cJSON *now, *old;
    if (rope_open_section(config, "rope_parameters", &now, err) != 0 ||
        rope_open_section(config, "rope_scaling", &old, err) != 0) {
        return -1;
    }
    if (old != NULL) {
        return dt_fail(err, DT_INVALID, "rope_scaling: only null is supported; rotary frequencies are not scaled here");
    }
    if (now != NULL && cJSON_GetObjectItemCaseSensitive(now, "full_attention") == NULL &&
        cJSON_GetObjectItemCaseSensitive(now, "sliding_attention") == NULL) {
        return dt_fail(err, DT_INVALID,
                       "rope_parameters: this model has a section for each kind of layers, "
                       "full_attention and sliding_attention; put the members there");
    }
    return flatten_rope(config, now, "full_attention", "global_rope_theta", err) != 0
               ? -1
               : flatten_rope(config, now, "sliding_attention", "local_rope_theta", err);
}

/* Classes are counted by their names; the class of the model says what gets them. */
static int flatten_config(const struct encoder_family *f, cJSON *config, struct dt_error *err)
{
    const cJSON *class = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(config, "architectures"), 0);
    family_count_labels(config);
    const char *name = cJSON_IsString(class) ? class->valuestring : "";
    family_set(config, "task",
               cJSON_CreateString(dt_text_ends_with(name, "ForTokenClassification") ? "token_classification"
                                  : dt_text_ends_with(name, "ForMaskedLM")          ? "masked_lm"
                                                                                    : "sequence_classification"));
    return f->modern ? flatten_ropes(config, err) : 0;
}

static void put_labels(const void *sizes, void (*put)(void *to, const char *key, const char *json), void *to)
{
    family_put_labels(((const struct encoder *)sizes)->num_labels, put, to);
    put(to, "problem_type", problem_texts[((const struct encoder *)sizes)->problem_type]);
}

static void put_layers(const struct encoder *m, void (*put)(void *to, const char *key, const char *json), void *to)
{
    struct dt_text text;
    dt_text_init(&text);
    for (int64_t i = 0; i < m->num_hidden_layers; i++) {
        dt_text_printf(&text, "%s\n    \"%s_attention\"", i > 0 ? "," : "[", encoder_slides(m, i) ? "sliding" : "full");
    }
    dt_text_puts(&text, "\n  ]");
    put(to, "layer_types", dt_text_str(&text));
    dt_text_clear(&text);
    dt_text_init(&text);
    const char *const kind[] = {"full", "sliding"};
    const double theta[] = {m->global_rope_theta, m->local_rope_theta};
    for (int i = 0; i < 2; i++) {
        dt_text_printf(&text,
                       "%s\n    \"%s_attention\": {\n      \"rope_theta\": %.17g,\n      \"rope_type\": "
                       "\"default\"\n    }",
                       i > 0 ? "," : "{", kind[i], theta[i]);
    }
    dt_text_puts(&text, "\n  }");
    put(to, "rope_parameters", dt_text_str(&text));
    dt_text_clear(&text);
}

static void put_config(const struct encoder_family *f, const void *sizes,
                       void (*put)(void *to, const char *key, const char *json), void *to)
{
    /* the library's default ids of ModernBERT, which a smaller vocabulary has not */
    static const char *const ids[] = {"bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"};
    enum { LARGEST = 50282 };
    put_labels(sizes, put, to);
    if (f->modern) {
        put_layers(sizes, put, to);
    }
    for (int i = 0; i < 4 && f->modern && ((const struct encoder *)sizes)->vocab_size <= LARGEST; i++) {
        put(to, ids[i], "null");
    }
}

/* True for tensors behind the last layer: those of this head, or of another. */
static bool in_head(const struct encoder_family *f, const char *name)
{
    return begins_with_one(name, f->heads) || strstr(name, ".pooler.") != NULL;
}

/* ---- the families ---- */

static const struct encoder_family bert_family = {
    .prefix = "bert.",
    .heads = {"classifier.", "cls.", "qa_outputs."},
    BERT_NAMES("bert."),
    .masked = {"cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias",
               "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"},
    .dense = "bert.pooler.dense",
    .sequence_head = "classifier",
    .token_head = "classifier",
    .pooled = DT_ACT_TANH,
    .drops_output = true,
    .heads_key = "num_attention_heads",
    .size_key = "hidden_size",
};
static const struct encoder_family roberta_family = {
    .prefix = "roberta.",
    .heads = {"classifier.", "lm_head.", "qa_outputs."},
    BERT_NAMES("roberta."),
    .masked = {"lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder.weight", "lm_head.decoder.bias"},
    .dense = "classifier.dense",
    .sequence_head = "classifier.out_proj",
    .token_head = "classifier",
    .pooled = DT_ACT_TANH,
    .position_ids = true,
    .drops_output = true,
    .drops_pooled = true,
    .heads_key = "num_attention_heads",
    .size_key = "hidden_size",
};
static const struct encoder_family distilbert_family = {
    .prefix = "distilbert.",
    .heads = {"pre_classifier.", "classifier.", "vocab_", "qa_outputs."},
    .masked = {"vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector.weight"},
    .tokens = "embeddings.word_embeddings.weight",
    .positions = "embeddings.position_embeddings.weight",
    .norm = "embeddings.LayerNorm",
    .layer = {.layer = "distilbert.transformer.layer.%d.",
              .qkv = {"attention.q_lin", "attention.k_lin", "attention.v_lin"},
              .output = "attention.out_lin",
              .attention_norm = "sa_layer_norm",
              .up = "ffn.lin1",
              .down = "ffn.lin2",
              .mlp_norm = "output_layer_norm"},
    .dense = "pre_classifier",
    .sequence_head = "classifier",
    .token_head = "classifier",
    .pooled = DT_ACT_RELU,
    .norm_epsilon = 1e-12,
    .head_dropout = true,
    .heads_key = "n_heads",
    .size_key = "dim",
};
static const struct encoder_family modernbert_family = {
    .prefix = "model.",
    .heads = {"head.", "classifier.", "decoder.", "qa_outputs."},
    .masked = {"head.dense", "head.norm", "decoder.bias", "decoder.weight"},
    .tokens = "embeddings.tok_embeddings.weight",
    .norm = "embeddings.norm",
    .layer = {.layer = "model.layers.%d.",
              .qkv = {"attn.Wqkv"},
              .output = "attn.Wo",
              .attention_norm = "attn_norm",
              .up = "mlp.Wi",
              .down = "mlp.Wo",
              .mlp_norm = "mlp_norm"},
    .dense = "head.dense",
    .sequence_head = "classifier",
    .token_head = "classifier",
    .modern = true,
    .heads_key = "num_attention_heads",
    .size_key = "hidden_size",
};

#define FAMILY(model, class, size, ...)                                                                                \
    static int model##_check(const void *sizes, const char **key, struct dt_error *err)                                \
    {                                                                                                                  \
        return check(&model##_family, sizes, key, err);                                                                \
    }                                                                                                                  \
    static int model##_build(struct chain *c, struct dt_error *err)                                                    \
    {                                                                                                                  \
        return encoder_build(&model##_family, c, err);                                                                 \
    }                                                                                                                  \
    static int model##_flatten(cJSON *config, struct dt_error *err)                                                    \
    {                                                                                                                  \
        return flatten_config(&model##_family, config, err);                                                           \
    }                                                                                                                  \
    static void model##_put(const void *sizes, void (*put)(void *to, const char *key, const char *json), void *to)     \
    {                                                                                                                  \
        put_config(&model##_family, sizes, put, to);                                                                   \
    }                                                                                                                  \
    static bool model##_is_head(const char *name)                                                                      \
    {                                                                                                                  \
        return in_head(&model##_family, name);                                                                         \
    }                                                                                                                  \
    static bool model##_name(const char *file_name, char *out, size_t out_bytes)                                       \
    {                                                                                                                  \
        return canonical_name(&model##_family, file_name, out, out_bytes);                                             \
    }                                                                                                                  \
    static const char *model##_class(const void *sizes)                                                                \
    {                                                                                                                  \
        static const char *const classes[] = {class "ForSequenceClassification", class "ForTokenClassification",       \
                                              class "ForMaskedLM"};                                                    \
        return classes[((const struct encoder *)sizes)->task];                                                         \
    }                                                                                                                  \
    const struct model_ops model_##model = {.name = #model,                                                            \
                                            .class_of = model##_class,                                                 \
                                            .smaller = "model." size ") or data.sequence_length",                      \
                                            .fields = model##_fields,                                                  \
                                            .sizes_bytes = sizeof(struct encoder),                                     \
                                            .dropouts = model##_dropouts,                                              \
                                            .head_keys = head_keys,                                                    \
                                            .is_head = model##_is_head,                                                \
                                            .put_head = put_labels,                                                    \
                                            .spelled = spelled,                                                        \
                                            .positions = "max_position_embeddings",                                    \
                                            .check = model##_check,                                                    \
                                            .build = model##_build,                                                    \
                                            .flops = encoder_flops,                                                    \
                                            .canonical_name = model##_name,                                            \
                                            .check_config = check_config,                                              \
                                            .flatten_config = model##_flatten,                                         \
                                            .put_config = model##_put,                                                 \
                                            __VA_ARGS__};

#define HEAD(...) .tied = {"tie_word_embeddings", __VA_ARGS__}

FAMILY(bert, "Bert", "num_hidden_layers, model.hidden_size",
       HEAD("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.bias",
            "cls.predictions.bias"))
FAMILY(roberta, "Roberta", "num_hidden_layers, model.hidden_size", .aliases = roberta_aliases,
       HEAD("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.bias",
            "lm_head.bias"))
FAMILY(distilbert, "DistilBert", "n_layers, model.dim", .keys = distilbert_keys,
       HEAD("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"))
FAMILY(modernbert, "ModernBert", "num_hidden_layers, model.hidden_size",
       HEAD("decoder.weight", "model.embeddings.tok_embeddings.weight"))
