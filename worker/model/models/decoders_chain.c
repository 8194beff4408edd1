/* The chain of a decoder: embedding, layers and head, from the family's row and the sizes. */
#include "worker/model/models/decoder_family.h"

#include "worker/model/models/family_keys.h"

#include <math.h>
#include <stdio.h>

int64_t decoder_kv_heads(const struct decoder *m)
{
    return m->num_key_value_heads > 0 ? m->num_key_value_heads : m->num_attention_heads;
}

int64_t decoder_head_size(const struct decoder_family *f, const struct decoder *m)
{
    return m->head_dim > 0 ? m->head_dim : f->head_dim > 0 ? f->head_dim : m->hidden_size / m->num_attention_heads;
}

bool decoder_turns(const struct decoder *m, int64_t i)
{
    return m->no_rope_layers.count > 0     ? m->no_rope_layers.of[i] == 1
           : m->no_rope_layer_interval > 0 ? (i + 1) % m->no_rope_layer_interval != 0
                                           : true;
}

bool decoder_slides(const struct decoder_family *f, const struct decoder *m, int64_t i)
{
    if (m->layer_types.count > 0) {
        return m->layer_types.of[i] == 1;
    }
    switch (f->window) {
    case WINDOW_NONE:
        break;
    case WINDOW_ALL:
        return m->sliding_window > 0;
    case WINDOW_LAST:
        return m->use_sliding_window && m->sliding_window > 0 && i >= m->max_window_layers;
    case WINDOW_EVEN:
        return i % 2 == 0;
    case WINDOW_PATTERN:
        return (i + 1) % m->sliding_window_pattern != 0;
    case WINDOW_NO_ROPE:
        return m->use_sliding_window && m->sliding_window > 0 && !decoder_turns(m, i);
    }
    return false;
}

int64_t decoder_window(const struct decoder_family *f, const struct decoder *m)
{
    return f->window == WINDOW_LAST && !m->use_sliding_window ? 0 : m->sliding_window;
}

struct rope decoder_rope(const struct decoder_family *f, const struct decoder *m, bool local)
{
    int64_t head = decoder_head_size(f, m);
    double part = m->partial_rotary_factor > 0 ? m->partial_rotary_factor : 1;
    int64_t turned = (int64_t)((double)head * part), original = m->rope_original_max_position_embeddings > 0
                                                                    ? m->rope_original_max_position_embeddings
                                                                    : m->max_position_embeddings;
    struct rope r = {.type = local ? ROPE_DEFAULT : (enum rope_type)m->rope_type,
                     .width = 2 * ((turned + 1) / 2),
                     .denominator = turned,
                     .theta = local ? m->rope_local_base_freq : m->rope_theta,
                     .factor = m->rope_factor,
                     .low_freq_factor = m->rope_low_freq_factor,
                     .high_freq_factor = m->rope_high_freq_factor,
                     .original_positions = (double)original,
                     .beta_fast = m->rope_beta_fast,
                     .beta_slow = m->rope_beta_slow,
                     .attention_factor = m->rope_attention_factor,
                     .mscale = m->rope_mscale,
                     .mscale_all = m->rope_mscale_all_dim,
                     .truncate = m->rope_truncate};
    return r;
}

static double or_1(double x)
{
    return x != 0 ? x : 1;
}

static struct decoder_layer layer_of(const struct decoder_family *f, const struct decoder *m, int64_t i)
{
    bool sliding = decoder_slides(f, m, i), local = f->local_rope && sliding;
    double score = m->query_pre_attn_scalar > 0 ? 1 / sqrt(m->query_pre_attn_scalar) : m->attention_multiplier;
    return (struct decoder_layer){.channels = m->hidden_size,
                                  .inner = m->intermediate_size,
                                  .heads = m->num_attention_heads,
                                  .kv_heads = decoder_kv_heads(m),
                                  .head_size = decoder_head_size(f, m),
                                  .norms = f->norms,
                                  .qk_norm = f->qk_norm,
                                  .norm_epsilon = m->rms_norm_eps,
                                  .weight_offset = f->weight_offset,
                                  .qkv_bias = f->qkv_bias || (f->biased && m->attention_bias),
                                  .o_bias = f->biased && m->attention_bias,
                                  .mlp_bias = m->mlp_bias,
                                  .fused = f->fused,
                                  .activation = family_activation(m->hidden_act),
                                  .window = sliding ? decoder_window(f, m) : 0,
                                  .score_scale = score,
                                  .score_cap = m->attn_logit_softcapping,
                                  .attention_dropout = m->attention_dropout,
                                  .residual_dropout = m->resid_pdrop,
                                  .residual_scale = or_1(m->residual_multiplier),
                                  .turns = decoder_turns(m, i),
                                  .rope_name = local ? "rope_local" : "rope",
                                  .rope = decoder_rope(f, m, local),
                                  .init_std = m->initializer_range};
}

int decoder_build(const struct decoder_family *f, struct chain *c, struct dt_error *err)
{
    const struct decoder *m = c->spec.sizes;
    const struct embed embed = {.tokens = "model.embed_tokens.weight",
                                .vocabulary = m->vocab_size,
                                .channels = m->hidden_size,
                                /* the library computes the root in F32 */
                                .scale = f->scaled_embedding ? (double)sqrtf((float)m->hidden_size)
                                                             : or_1(m->embedding_multiplier),
                                .padding_id = m->pad_token_id,
                                .init_std = m->initializer_range};
    const struct lm_head head = {.norm_weight = "model.norm.weight",
                                 .table = m->tie_word_embeddings ? embed.tokens : "lm_head.weight",
                                 .vocabulary = m->vocab_size,
                                 .channels = m->hidden_size,
                                 .norm_epsilon = m->rms_norm_eps,
                                 .weight_offset = f->weight_offset,
                                 .branch_scale = or_1(m->residual_multiplier),
                                 .logit_scale = 1 / or_1(m->logits_scaling),
                                 .logit_cap = m->final_logit_softcapping,
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
    for (int i = 0; i < m->num_hidden_layers; i++) {
        struct decoder_layer layer = layer_of(f, m, i);
        char name[64];
        (void)snprintf(name, sizeof name, "model.layers.%d", i);
        if (chain_add(c, &block_decoder_layer, chain_unit(c, name, ROLE_TRAINED), i, &layer, sizeof layer, err) != 0) {
            return -1;
        }
    }
    return sequences ? sequence_head_add(c, root, &head, &m->head, err)
                     : chain_add(c, block_of_head(c), root, -1, &head, sizeof head, err);
}

double decoder_flops(const struct chain *c)
{
    const struct decoder *m = c->spec.sizes;
    double products = (double)c->parameter_count;
    bool apart = !m->tie_word_embeddings || m->head.task == DECODER_SEQUENCES; /* a table that is only looked up */
    products -= apart ? (double)(m->vocab_size * m->hidden_size) : 0;
    const struct decoder_layer *layer = c->blocks[1].args;
    return 6.0 * products +
           6.0 * (double)(m->num_hidden_layers * layer->heads * layer->head_size * c->spec.sequence_length);
}
