/* The chain of an encoder: embeddings, layers and head, from the family's row and the sizes. */
#include "worker/model/models/encoder_family.h"

#include "worker/model/blocks/dense.h"
#include "worker/model/models/family_keys.h"
#include "worker/model/models/sequence_head.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

bool encoder_slides(const struct encoder *m, int64_t i)
{
    return m->layer_types.count > 0 ? m->layer_types.of[i] == 1 : i % m->global_attn_every_n_layers != 0;
}

enum encoder_problem encoder_problem(const struct encoder *m)
{
    if (m->task != ENCODER_SEQUENCES) {
        return PROBLEM_CLASS;
    }
    return problem_of(m->problem_type, m->num_labels);
}

int64_t encoder_longest(const struct encoder_family *f, const struct encoder *m)
{
    return m->max_position_embeddings - (f->position_ids ? m->pad_token_id + 1 : 0);
}

/* DistilBERT's is no key. */
static double epsilon_of(const struct encoder_family *f, const struct encoder *m)
{
    return f->norm_epsilon > 0 ? f->norm_epsilon : m->norm_epsilon;
}

static struct linear_rule normal(const struct encoder_family *f, const struct encoder *m, double std)
{
    return (struct linear_rule){
        .weight = {.init = INIT_NORMAL, .init_std = std, .init_cut = f->modern ? m->initializer_cutoff_factor : 0}};
}

/* The deviation of maps whose output is added to the residual stream, and of the map in the head. */
static double out_deviation(const struct encoder_family *f, const struct encoder *m)
{
    return f->modern ? m->initializer_range / sqrt(2.0 * (double)m->num_hidden_layers) : m->initializer_range;
}

static struct encoder_layer layer_of(const struct encoder_family *f, const struct encoder *m, int64_t i)
{
    bool sliding = f->modern && encoder_slides(m, i);
    int64_t head = m->hidden_size / m->num_attention_heads;
    return (struct encoder_layer){
        .names = &f->layer,
        .channels = m->hidden_size,
        .inner = m->intermediate_size,
        .heads = m->num_attention_heads,
        .norms_first = f->modern,
        .plain_input = f->modern && i == 0,
        .gated = f->modern,
        .norm_bias = !f->modern || m->norm_bias,
        .attention_bias = !f->modern || m->attention_bias,
        .mlp_bias = !f->modern || m->mlp_bias,
        .activation = family_activation(m->hidden_act),
        .norm_epsilon = epsilon_of(f, m),
        .attention_dropout = m->attention_dropout,
        .output_dropout = f->modern         ? m->attention_dropout
                          : f->drops_output ? m->hidden_dropout
                                            : 0,
        .inner_dropout = m->mlp_dropout,
        .down_dropout = m->hidden_dropout,
        .window = sliding ? m->local_attention / 2 + 1 : 0,
        .turns = f->modern,
        .rope_name = sliding ? "rope_local" : "rope",
        .rope = {.width = head, .denominator = head, .theta = sliding ? m->local_rope_theta : m->global_rope_theta},
        .qkv_rule = normal(f, m, m->initializer_range),
        .output_rule = normal(f, m, out_deviation(f, m)),
        .up_rule = normal(f, m, m->initializer_range),
        .down_rule = normal(f, m, out_deviation(f, m))};
}

static void add_fields(const struct encoder_family *f, struct chain *c)
{
    const struct encoder *m = c->spec.sizes;
    int64_t samples = c->spec.batch_size, positions = c->spec.sequence_length;
    bool tokens = m->task != ENCODER_SEQUENCES, masked = m->task == ENCODER_MASKED;
    c->batch = (struct batch_layout){.count = 0};
    batch_add_encoder(&c->batch, samples, positions, m->vocab_size, f->types != NULL ? m->type_vocab_size : 0);
    if (f->position_ids) {
        batch_add_positions(&c->batch, m->pad_token_id);
    }
    const struct batch_field of_tokens = {.name = "labels",
                                          .type = DT_I32,
                                          .dims = 2,
                                          .most = {samples, positions},
                                          .targets = true,
                                          .value = masked ? "id" : "class",
                                          .values = masked ? "ids" : "classes",
                                          .below = masked ? m->vocab_size : m->num_labels,
                                          .below_key = masked ? "vocab_size" : "num_labels"};
    c->batch.field[c->batch.count++] = tokens ? of_tokens : sequence_labels(samples, m->num_labels, encoder_problem(m));
}

static int add_embeddings(const struct encoder_family *f, struct chain *c, int root, struct dt_error *err)
{
    const struct encoder *m = c->spec.sizes;
    const char *const parts[] = {f->tokens, f->positions, f->types, f->norm};
    char *names[4];
    for (int i = 0; i < 4; i++) {
        names[i] = parts[i] != NULL ? dt_arena_printf(&c->arena, "%s%s", f->prefix, parts[i]) : NULL;
    }
    const struct embed embed = {.tokens = names[0],
                                .positions = names[1],
                                .types = names[2],
                                .norm = names[3],
                                .norm_bias = !f->modern || m->norm_bias,
                                .norm_epsilon = epsilon_of(f, m),
                                .vocabulary = m->vocab_size,
                                .channels = m->hidden_size,
                                .position_count = m->max_position_embeddings,
                                .type_count = m->type_vocab_size,
                                .position_ids = f->position_ids,
                                .padding_id = m->pad_token_id,
                                .random_padding = f->modern,
                                .dropout = f->modern ? m->embedding_dropout : m->hidden_dropout,
                                .init_std = m->initializer_range,
                                .init_cut = normal(f, m, 0).weight.init_cut};
    return chain_add(c, &block_embed, root, -1, &embed, sizeof embed, err);
}

/* RoBERTa has GELU there, whatever its layers have. */
static enum dt_activation masked_activation(const struct encoder_family *f, const struct encoder *m)
{
    return f->position_ids ? DT_ACT_GELU_ERF : family_activation(m->hidden_act);
}

/* The logits of all tokens: the map and norm before them are the family's. Where the table is one of its own,
 * so is its bias, and Transformers keeps the other one. */
static int add_masked_head(const struct encoder_family *f, struct chain *c, int root, struct dt_error *err)
{
    const struct encoder *m = c->spec.sizes;
    bool norm_bias = !f->modern || m->norm_bias, bias = !f->modern || m->decoder_bias,
         two_biases = !m->tie_word_embeddings && f->masked.table_bias != NULL;
    const struct lm_head head = {
        .norm_weight = dt_arena_printf(&c->arena, "%s.weight", f->masked.norm),
        .norm_bias = norm_bias ? dt_arena_printf(&c->arena, "%s.bias", f->masked.norm) : NULL,
        .centred = true,
        .table = m->tie_word_embeddings ? dt_arena_printf(&c->arena, "%s%s", f->prefix, f->tokens) : f->masked.table,
        .bias = two_biases ? f->masked.table_bias
                : bias     ? f->masked.bias
                           : NULL,
        .spare_bias = two_biases ? f->masked.bias : NULL,
        .vocabulary = m->vocab_size,
        .channels = m->hidden_size,
        .norm_epsilon = epsilon_of(f, m),
        .rule = normal(f, m, out_deviation(f, m)).weight};
    return chain_add(c, &block_lm_head, root, -1, &head, sizeof head, err);
}

/* The rate of dropout before the classifier. */
static double class_dropout(const struct encoder_family *f, const struct encoder *m)
{
    bool own = m->classifier_dropout >= 0 && !(f->head_dropout && m->task == ENCODER_TOKENS);
    return own ? m->classifier_dropout : m->hidden_dropout;
}

/* The block in a head's place where hidden states are asked for. */
static int add_hidden(const struct encoder_family *f, struct chain *c, int root, struct dt_error *err)
{
    const struct encoder *m = c->spec.sizes;
    const struct lm_head last = {.norm_weight = f->modern ? "model.final_norm.weight" : NULL,
                                 .norm_bias = f->modern && m->norm_bias ? "model.final_norm.bias" : NULL,
                                 .centred = true,
                                 .channels = m->hidden_size,
                                 .norm_epsilon = epsilon_of(f, m)};
    return chain_add(c, &block_hidden, root, -1, &last, sizeof last, err);
}

static int add_head(const struct encoder_family *f, struct chain *c, int root, struct dt_error *err)
{
    const struct encoder *m = c->spec.sizes;
    if (c->spec.hidden) {
        return add_hidden(f, c, root, err);
    }
    bool tokens = m->task == ENCODER_TOKENS, masked = m->task == ENCODER_MASKED;
    const struct pooler pooler = {.norm = f->modern ? "model.final_norm" : NULL,
                                  .norm_bias = m->norm_bias,
                                  .dense_bias = !f->modern || m->classifier_bias,
                                  .norm_epsilon = epsilon_of(f, m),
                                  .pooling = tokens || masked             ? POOL_NONE
                                             : m->classifier_pooling == 1 ? POOL_MEAN
                                                                          : POOL_FIRST,
                                  .dropout = f->drops_pooled && !tokens && !masked ? class_dropout(f, m) : 0,
                                  .dense = masked ? f->masked.dense : f->dense,
                                  .activation = f->modern ? family_activation(m->classifier_activation)
                                                : masked  ? masked_activation(f, m)
                                                          : f->pooled,
                                  .channels = m->hidden_size,
                                  .rule = normal(f, m, out_deviation(f, m))};
    const struct class_head head = {
        .norm = f->modern ? "head.norm" : NULL,
        .norm_bias = m->norm_bias,
        .norm_epsilon = epsilon_of(f, m),
        .name = tokens ? f->token_head : f->sequence_head,
        .channels = m->hidden_size,
        .classes = m->num_labels,
        .dropout = class_dropout(f, m),
        .per_position = tokens,
        .numbers = encoder_problem(m) != PROBLEM_CLASS,
        .loss = encoder_problem(m) == PROBLEM_CLASSES ? DT_LOSS_BINARY : DT_LOSS_SQUARED,
        .rule = normal(f, m, f->modern ? 1 / sqrt((double)m->hidden_size) : m->initializer_range)};
    /* token classifiers of all but ModernBERT read the last layer itself */
    if ((f->modern || !tokens) && chain_add(c, &block_pooler, root, -1, &pooler, sizeof pooler, err) != 0) {
        return -1;
    }
    if (masked) {
        return add_masked_head(f, c, root, err);
    }
    return chain_add(c, &block_class_head, root, -1, &head, sizeof head, err);
}

int encoder_build(const struct encoder_family *f, struct chain *c, struct dt_error *err)
{
    const struct encoder *m = c->spec.sizes;
    if (c->spec.sequence_length > encoder_longest(f, m)) {
        return dt_fail(err, DT_INVALID,
                       "model: sequence length %" PRId64 " is more than %" PRId64
                       ", the positions behind pad_token_id; set data.sequence_length to %" PRId64 " or less",
                       c->spec.sequence_length, encoder_longest(f, m), encoder_longest(f, m));
    }
    add_fields(f, c);
    int root = chain_unit(c, "root", ROLE_TRAINED);
    if (add_embeddings(f, c, root, err) != 0) {
        return -1;
    }
    for (int i = 0; i < m->num_hidden_layers; i++) {
        const struct encoder_layer layer = layer_of(f, m, i);
        char name[64];
        int size = snprintf(name, sizeof name, f->layer.layer, i);
        name[size - 1] = 0; /* without the point at its end */
        if (chain_add(c, &block_encoder_layer, chain_unit(c, name, ROLE_TRAINED), i, &layer, sizeof layer, err) != 0) {
            return -1;
        }
    }
    return add_head(f, c, root, err);
}

double encoder_flops(const struct chain *c)
{
    const struct encoder *m = c->spec.sizes;
    double tables = (double)((m->vocab_size + m->type_vocab_size) * m->hidden_size);
    for (int i = 0; i < c->tensor_count; i++) {
        bool positions = strstr(c->tensors[i].name, "position_embeddings") != NULL;
        tables += positions ? (double)c->tensors[i].numel : 0;
    }
    return 6.0 * ((double)c->parameter_count - tables) +
           12.0 * (double)(m->num_hidden_layers * m->hidden_size * c->spec.sequence_length);
}
