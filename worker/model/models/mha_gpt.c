/* A GPT made of PyTorch's modules. Positions are learned, norms come first, attention is
 * nn.MultiheadAttention (one packed tensor for queries, keys and values), the MLP has the exact GELU,
 * and the head has its own table and no bias. Tensors have the names that such a program gives them.
 * With causal and shift_labels false nothing is masked, and position t is judged by label t. */
#include "worker/model/models/mha_gpt.h"

#include "worker/model/blocks/encoder.h"
#include "worker/model/model.h"
#include "worker/model/models/family_keys.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct dt_rule deviation_or_null = {.type = DT_RULE_NUMBER, .max = 1e30, .null = true, .null_value = -1};

#define AT(member) offsetof(struct mha_gpt, member)
static const struct dt_field fields[] = {
    {"vocab_size", "32000", "number of token ids", AT(vocab_size), &vocabulary},
    {"hidden_size", "4096", "width of the residual stream; the feed-forward layer has four times as much",
     AT(hidden_size), &width},
    {"num_hidden_layers", "32", "number of layers", AT(num_hidden_layers), &layers},
    {"num_attention_heads", "32", "attention heads per layer", AT(num_attention_heads), &layers},
    {"max_position_embeddings", "2048", "longest sequence the model knows", AT(max_position_embeddings), &length},
    {"layer_norm_eps", "1e-05", "added to the variance in norms", AT(layer_norm_eps), &from_0},
    {"causal", "true", "tokens see none behind them", AT(causal), &flag},
    {"shift_labels", "true", "a position is judged by the label of the next one; false: by its own", AT(shift_labels),
     &flag},
    {"initializer_range", "null",
     "standard deviation of all initial values but those of norms; null: as PyTorch's modules begin",
     AT(initializer_range), &deviation_or_null},
    {0},
};
#undef AT

static int check(const void *sizes, const char **key, struct dt_error *err)
{
    const struct mha_gpt *m = sizes;
    int64_t head = m->hidden_size / m->num_attention_heads;
    *key = "num_attention_heads";
    if (m->hidden_size % m->num_attention_heads != 0) {
        return dt_fail(err, DT_INVALID,
                       "hidden_size %" PRId64 " cannot be split among num_attention_heads %" PRId64
                       "; choose a multiple",
                       m->hidden_size, m->num_attention_heads);
    }
    if (head > 256) {
        return dt_fail(err, DT_INVALID, "num_attention_heads %" PRId64 ": a head has %" PRId64 " values; at most 256",
                       m->num_attention_heads, head);
    }
    *key = "hidden_size";
    int64_t most = ((int64_t)1 << 40) / m->hidden_size;
    if (m->vocab_size > most || m->max_position_embeddings > most || 4 * m->hidden_size > most) {
        return dt_fail(err, DT_INVALID, "a table of hidden_size %" PRId64 " columns has more than 2^40 weights",
                       m->hidden_size);
    }
    return 0;
}

/* ---- first values ---- */

/* The first values where initializer_range is null: between -bound and bound. */
static struct tensor_rule begins(const struct mha_gpt *m, double bound)
{
    return m->initializer_range < 0 ? (struct tensor_rule){.init = INIT_UNIFORM, .init_bound = bound}
                                    : (struct tensor_rule){.init = INIT_NORMAL, .init_std = m->initializer_range};
}

/* nn.Linear: weights and biases have one bound. */
static struct linear_rule linear_begins(const struct mha_gpt *m, int64_t in)
{
    struct tensor_rule rule = begins(m, 1 / sqrt((double)in));
    return (struct linear_rule){.weight = rule, .bias = rule};
}

/* The maps of nn.MultiheadAttention, whose biases begin as zeros. */
static struct linear_rule attention_begins(const struct mha_gpt *m, double bound)
{
    return (struct linear_rule){.weight = begins(m, bound), .bias = begins(m, 0)};
}

/* ---- the chain ---- */

static const struct encoder_names names = {.layer = "layers.%d.",
                                           .qkv = {"attention.in_proj_"},
                                           .output = "attention.out_proj",
                                           .attention_norm = "norm1",
                                           .mlp_norm = "norm2",
                                           .up = "mlp.0",
                                           .down = "mlp.2"};

static struct encoder_layer layer_of(const struct mha_gpt *m)
{
    int64_t c = m->hidden_size;
    return (struct encoder_layer){.names = &names,
                                  .channels = c,
                                  .inner = 4 * c,
                                  .heads = m->num_attention_heads,
                                  .norms_first = true,
                                  .norm_bias = true,
                                  .attention_bias = true,
                                  .mlp_bias = true,
                                  .activation = DT_ACT_GELU_ERF,
                                  .norm_epsilon = m->layer_norm_eps,
                                  .causal = m->causal,
                                  .qkv_rule =
                                      attention_begins(m, sqrt(6.0 / (double)(c + 3 * c))), /* Xavier's, of (3C, C) */
                                  .output_rule = attention_begins(m, 1 / sqrt((double)c)),
                                  .up_rule = linear_begins(m, c),
                                  .down_rule = linear_begins(m, 4 * c)};
}

/* The root unit holds embeddings, final norm and head. Each layer has a unit. */
static int build(struct chain *c, struct dt_error *err)
{
    const struct mha_gpt *m = c->spec.sizes;
    const struct embed embed = {.tokens = "embedding.weight",
                                .positions = "pos_embedding.weight",
                                .vocabulary = m->vocab_size,
                                .channels = m->hidden_size,
                                .position_count = m->max_position_embeddings,
                                .padding_id = -1,
                                .init_std = m->initializer_range < 0 ? 1 : m->initializer_range};
    const struct encoder_layer layer = layer_of(m);
    const struct lm_head head = {.norm_weight = "norm.weight",
                                 .norm_bias = "norm.bias",
                                 .table = "head.weight",
                                 .vocabulary = m->vocab_size,
                                 .channels = m->hidden_size,
                                 .norm_epsilon = m->layer_norm_eps,
                                 .rule = linear_begins(m, m->hidden_size).weight};
    c->batch = batch_tokens(c->spec.batch_size, c->spec.sequence_length, m->vocab_size, "vocab_size");
    c->batch.field[batch_targets(&c->batch)].shifted = m->shift_labels;
    c->batch.field[batch_find(&c->batch, "input_ids")].causal = m->causal;
    int root = chain_unit(c, "root", ROLE_TRAINED);
    if (chain_add(c, &block_embed, root, -1, &embed, sizeof embed, err) != 0) {
        return -1;
    }
    for (int i = 0; i < m->num_hidden_layers; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "layers.%d", i);
        if (chain_add(c, &block_encoder_layer, chain_unit(c, name, ROLE_TRAINED), i, &layer, sizeof layer, err) != 0) {
            return -1;
        }
    }
    return chain_add(c, block_of_head(c), root, -1, &head, sizeof head, err);
}

/* 6 operations per weight of a product, and attention's, of which a causal one computes half. */
static double flops(const struct chain *c)
{
    const struct mha_gpt *m = c->spec.sizes;
    double tables = (double)((m->vocab_size + m->max_position_embeddings) * m->hidden_size);
    return 6.0 * ((double)c->parameter_count - tables) +
           (m->causal ? 6.0 : 12.0) * (double)(m->num_hidden_layers * m->hidden_size * c->spec.sequence_length);
}

/* ---- config.json ---- */

static bool canonical_name(const char *file_name, char *out, size_t out_bytes)
{
    (void)snprintf(out, out_bytes, "%s", file_name);
    return true;
}

static int check_config(const cJSON *config, struct dt_error *err)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(config, "tie_word_embeddings"))
               ? dt_fail(err, DT_INVALID, "tie_word_embeddings: only false is supported")
               : 0;
}

static void put_config(const void *sizes, void (*put)(void *to, const char *key, const char *json), void *to)
{
    (void)sizes;
    put(to, "tie_word_embeddings", "false");
}

const struct model_ops model_mha_gpt = {.name = "mha-gpt",
                                        .architecture = "MhaGptForCausalLM",
                                        .smaller =
                                            "model.num_hidden_layers, model.hidden_size) or data.sequence_length",
                                        .fields = fields,
                                        .sizes_bytes = sizeof(struct mha_gpt),
                                        .positions = "max_position_embeddings",
                                        .check = check,
                                        .build = build,
                                        .flops = flops,
                                        .canonical_name = canonical_name,
                                        .tied = {.head = "head.weight"},
                                        .check_config = check_config,
                                        .put_config = put_config};
