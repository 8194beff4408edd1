/* gpt-neox: its own names beside DeepSpeed's keys. Such a file is only converted. */
#include "worker/job/dialects/dialect.h"

#include <cjson/cJSON.h>
#include <string.h>

/* Steps between saves; the other way of saving has no steps. */
static void factor(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (cJSON_IsNumber(value)) {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    } else {
        dialect_wrong(u, path, "a number of steps");
    }
}

/* The least rate is a number there, and a share here. */
static void least_rate(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double least = 0, rate = 0;
    if (dt_config_number(value, &least) && dt_config_number(dt_config_value(u->c, "neox.optimizer.params.lr"), &rate) &&
        least >= 0 && rate >= least) {
        dialect_give(u, path, r->to, cJSON_CreateNumber(rate > 0 ? least / rate : 0));
    } else {
        dt_config_problem(u->c, path, "must lie between 0 and optimizer.params.lr");
    }
}

/* The schedule ends with the run. */
static void decay_steps(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double decay = 0, run = 0;
    (void)r;
    if (!dt_config_number(value, &decay) || !dt_config_number(dt_config_value(u->c, "training.max_steps"), &run) ||
        decay != run) {
        dt_config_problem(u->c, path, "the schedule ends with the run; write the number of train_iters, or remove it");
    }
}

/* Names in lists of lists, with how often they repeat: [[["global", "flash"], 6]] or [[["global"], "all"]]. */
static bool is_global(const cJSON *value)
{
    static const char *const words[] = {"global", "flash", "all"};
    bool good = cJSON_IsArray(value) || cJSON_IsNumber(value);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        good |= dialect_is_word(value, words[i]);
    }
    for (const cJSON *v = cJSON_IsArray(value) ? value->child : NULL; v != NULL; v = v->next) {
        good &= is_global(v);
    }
    return good;
}

static void attention(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    if (!is_global(value)) {
        dt_config_problem(u->c, path, "gpt2's layers look at all positions; write global for each layer, or remove it");
    }
}

/* The models of gpt-neox are nearest to gpt2, whose keys the rules give. DeepSpeed's scheduler may say the warm-up. */
static void defaults(struct dialect_use *u)
{
    if (dt_config_value(u->c, "model.name") == NULL) {
        dt_config_move(u->c, u->place, "model.name", cJSON_CreateString("gpt2"));
    }
    if (dt_config_value(u->c, "training.warmup_ratio") == NULL &&
        dt_config_value(u->c, "training.warmup_steps") == NULL) {
        dt_config_move(u->c, u->place, "training.warmup_ratio", cJSON_CreateNumber(0.01));
    }
}

#define SPLIT "1=|0=|*=!beyond scope: a layer is not split over ranks; write 1, and FSDP or ZeRO shards its weights"
#define KERNEL "kernels are chosen by measurement"

static const struct dialect_rule rules[] = {
    MOVE("num_layers", "model.n_layer"),
    MOVE("hidden_size", "model.n_embd"),
    MOVE("num_attention_heads", "model.n_head"),
    MOVE("max_position_embeddings", "model.n_positions"),
    MOVE("seq_length", "data.sequence_length"),
    MOVE("train_iters", "training.max_steps"),
    WORDS("lr_decay_style", "training.lr_scheduler_type",
          "cosine=cosine|linear=linear|constant=constant_with_warmup|exponential=!not there yet; write cosine"),
    FUNCTION("min_lr", "training.min_lr_ratio", least_rate, "`training.min_lr_ratio`, as a share of the rate"),
    MOVE("warmup", "training.warmup_ratio"),
    FUNCTION("lr_decay_iters", NULL, decay_steps,
             "taken where it is train_iters; others are refused: the schedule ends with the run"),
    MOVE_OR("weight_decay", "training.weight_decay", "0.01"),
    MOVE_OR("attention_dropout", "model.attn_pdrop", "0.1"),
    MOVE_OR("hidden_dropout", "model.resid_pdrop", "0.1"),
    MOVE_OR("hidden_dropout", "model.embd_pdrop", "0.1"),
    WORDS("checkpoint_activations", "activation_checkpointing.enabled", "true=true|false=false"),
    MOVE("checkpoint_num_layers", "activation_checkpointing.checkpoint_every_n_layers"),
    INERT("partition_activations", "a layer is not split over ranks"),
    INERT("synchronize_each_layer", "nothing needs it"),
    FUNCTION("checkpoint_factor", "checkpointing.save_every_n_steps", factor, "`checkpointing.save_every_n_steps`"),
    FUNCTION("save_interval", "checkpointing.save_every_n_steps", factor, "`checkpointing.save_every_n_steps`"),
    MOVE("keep_last_n_checkpoints", "checkpointing.keep_last_n"),
    MOVE("eval_interval", "training.eval_every_n_steps"),
    MOVE("eval_iters", "training.eval_batches"),
    MOVE("log_interval", "logging.log_every_n_steps"),
    MOVE("data_path", "data.train"),
    MOVE("train_data_paths", "data.train"),
    MOVE("valid_data_paths", "data.val"),
    SILENT("data_impl", "the format is found"),
    WORDS("pipe_parallel_size", NULL, SPLIT),
    WORDS("model_parallel_size", NULL, SPLIT),
    WORDS("num_experts", NULL, "1=|0=|*=!beyond scope: layers of experts; write 1"),
    SILENT("moe_expert_parallel_size", "counts with experts alone"),
    SILENT("moe_deepspeed_expert_parallel_size", "counts with experts alone"),
    WORDS("norm", NULL, "layernorm=|*=!gpt2 has layernorm"),
    WORDS("pos_emb", NULL, "learned=|*=!gpt2 has learned positions; the nearest with rotary ones is llama"),
    WORDS("no_weight_tying", NULL, "false=|true=!gpt2 ties its head; remove it"),
    SILENT("scaled_upper_triang_masked_softmax_fusion", KERNEL),
    SILENT("bias_gelu_fusion", KERNEL),
    SILENT("rope_fusion", KERNEL),
    FUNCTION("attention_config", NULL, attention,
             "global and flash are taken; others are refused: gpt2's layers look at all positions"),
    {0},
};

static const char *const places[] = {"neox", NULL};

const struct dialect dialect_neox = {
    .name = "gpt-neox", .section = "neox", .places = places, .hyphens = true, .rules = rules, .defaults = defaults};

/* Keys of DeepSpeed whose defaults are others in gpt-neox: this table stands behind DeepSpeed's, so it falls back
 * first. */
static const struct dialect_rule deepspeed_rules[] = {MOVE_OR("gradient_clipping", "training.max_grad_norm", "1"), {0}};

const struct dialect dialect_neox_deepspeed = {
    .name = "DeepSpeed within gpt-neox", .places = places, .rules = deepspeed_rules};
