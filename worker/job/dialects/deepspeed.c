/* DeepSpeed's configuration, one row per key. docs/training.md has this table for users
 * (tests/worker/job/unit_dialects.c keeps it the same). */
#include "worker/job/dialects/dialect.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* DeepSpeed's names of optimizers. Adam is AdamW unless adam_w_mode is false (below). */
static const char *optimizer_name(const cJSON *type)
{
    static const char *const names[][2] = {{"Adam", "adamw"}, {"AdamW", "adamw"}, {"SGD", "sgd"},
                                           {"Lion", "lion"},  {"Lamb", "lamb"},   {"Adagrad", "adagrad"}};
    for (size_t i = 0; cJSON_IsString(type) && i < sizeof names / sizeof names[0]; i++) {
        if (strcasecmp(type->valuestring, names[i][0]) == 0) {
            return names[i][1];
        }
    }
    return NULL;
}

static bool is_type(const struct dialect_use *u, const char *ours)
{
    const char *name = optimizer_name(dt_config_value(u->c, dialect_path(u, "optimizer.type")));
    return name != NULL && strcmp(name, ours) == 0;
}

/* DeepSpeed's default of Lion's second beta is not that of the paper, which is ours. */
static void optimizer(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const char *name = optimizer_name(value);
    if (name == NULL) {
        dt_config_problem(u->c, path, "is \"%.40s\": not there yet; write AdamW, SGD, Lion, Lamb or Adagrad",
                          cJSON_IsString(value) ? value->valuestring : "");
        return;
    }
    if (strcasecmp(value->valuestring, "Adam") == 0 &&
        cJSON_IsFalse(dt_config_value(u->c, dialect_path(u, "optimizer.params.adam_w_mode")))) {
        name = "adam";
    }
    dialect_give(u, path, r->to, cJSON_CreateString(name));
    if (is_type(u, "lion") && !dialect_says(u, "optimizer.params.betas") &&
        dt_config_where(u->c, "optimizer.beta2") == NULL) {
        dialect_give(u, path, "optimizer.beta2", cJSON_CreateNumber(0.999));
    }
}

/* [0.9, 0.999]: one key of ours each. */
static void betas(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    const cJSON *first = cJSON_IsArray(value) ? value->child : NULL, *second = first != NULL ? first->next : NULL;
    if (!cJSON_IsNumber(first) || !cJSON_IsNumber(second) || second->next != NULL) {
        dt_config_problem(u->c, path, "give two numbers, such as [0.9, 0.999]");
        return;
    }
    bool own = is_type(u, "lion") || is_type(u, "lamb");
    dialect_give(u, path, own ? "optimizer.beta1" : "training.adam_beta1", cJSON_CreateNumber(first->valuedouble));
    dialect_give(u, path, own ? "optimizer.beta2" : "training.adam_beta2", cJSON_CreateNumber(second->valuedouble));
}

static void eps(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    bool own = is_type(u, "lamb") || is_type(u, "adagrad");
    dialect_give(u, path, own ? "optimizer.eps" : r->to, cJSON_Duplicate(value, true));
}

/* The warm-up is logarithmic unless warmup_type says otherwise. */
static void scheduler(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const char *type = cJSON_IsString(value) ? value->valuestring : "";
    bool decays = strcmp(type, "WarmupDecayLR") == 0, falls = strcmp(type, "WarmupCosineLR") == 0;
    if (!decays && !falls && strcmp(type, "WarmupLR") != 0) {
        dt_config_problem(
            u->c, path,
            "there are WarmupLR, WarmupDecayLR and WarmupCosineLR; write one of them, or remove the block "
            "and write training.lr_scheduler_type");
        return;
    }
    const cJSON *peak = dt_config_value(u->c, dialect_path(u, "scheduler.params.warmup_max_lr")),
                *rise = dt_config_value(u->c, dialect_path(u, "scheduler.params.warmup_type"));
    if (decays && peak == NULL) {
        dt_config_problem(u->c, path,
                          "warmup_max_lr is missing, which DeepSpeed takes as 0.001 whatever the "
                          "optimizer's lr is; add it, or \"auto\" for training.learning_rate");
        return;
    }
    bool linear = cJSON_IsString(rise) && strcmp(rise->valuestring, "linear") == 0;
    char name[64];
    (void)snprintf(name, sizeof name, "%s%s",
                   decays  ? "warmupdecaylr"
                   : falls ? "warmupcosinelr"
                           : "warmuplr",
                   linear ? "_linear" : "");
    dialect_give(u, path, r->to, cJSON_CreateString(name));
    if (falls && !dialect_says(u, "scheduler.params.cos_min_ratio") &&
        dt_config_where(u->c, "training.min_lr_ratio") == NULL) {
        dialect_give(u, path, "training.min_lr_ratio", cJSON_CreateNumber(0.0001)); /* DeepSpeed's default */
    }
}

/* The other schedulers know no such number. */
static void cosine_least(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const cJSON *type = dt_config_value(u->c, dialect_path(u, "scheduler.type"));
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "WarmupCosineLR") != 0) {
        dt_config_problem(u->c, path, "belongs to WarmupCosineLR; remove it");
        return;
    }
    dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
}

/* Here a schedule ends where the run does. */
static void total_steps(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const cJSON *epochs = dt_config_value(u->c, "training.num_epochs"), *steps = dt_config_value(u->c, r->to);
    if (cJSON_IsNumber(epochs) && epochs->valuedouble > 0 && steps == NULL) {
        dt_config_problem(u->c, path,
                          "the schedule ends with the run, which training.num_epochs (%s) says; write \"auto\"",
                          dt_config_source(u->c, "training.num_epochs"));
        return;
    }
    dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
}

/* One factor of the batch. */
struct factor {
    const char *key;
    int64_t value;
    bool given, wrong;
};

static struct factor factor_of(const struct dialect_use *u, const char *key)
{
    const cJSON *value = dt_config_value(u->c, key);
    struct factor f = {.key = key, .value = 1, .given = value != NULL && !dialect_is_auto(value)};
    f.wrong = f.given && !(cJSON_IsNumber(value) && value->valuedouble >= 1 && value->valuedouble <= 65536 &&
                           value->valuedouble == floor(value->valuedouble));
    f.value = f.given && !f.wrong ? (int64_t)value->valuedouble : 1;
    return f;
}

static void show_factor(const struct dialect_use *u, const struct factor *f, struct dt_text *out)
{
    dt_text_printf(out, "%s %" PRId64 " (%s), ", f->given ? dt_config_name(u->c, f->key) : f->key, f->value,
                   f->given ? dt_config_source(u->c, f->key) : "derived");
}

/* train_batch_size = samples of a micro-step * micro-steps * ranks. What is not given is derived as
 * DeepSpeed does; the division must leave nothing. */
static void batch(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    struct factor micro = factor_of(u, "training.batch_size_per_gpu"),
                  steps = factor_of(u, "training.gradient_accumulation_steps");
    if (!cJSON_IsNumber(value) || value->valuedouble < 1 || value->valuedouble != floor(value->valuedouble) ||
        value->valuedouble > 1e15) {
        dt_config_problem(u->c, path, "give a whole number of at least 1");
        return;
    }
    if (micro.wrong || steps.wrong) {
        return; /* which is said where they are read */
    }
    int64_t total = (int64_t)value->valuedouble, unit = micro.value * steps.value * u->world;
    if (!micro.given) {
        micro.value = total / u->world / steps.value;
    } else if (!steps.given) {
        steps.value = total / micro.value / u->world;
    }
    if (micro.value * steps.value * u->world != total) {
        int64_t below = micro.given && steps.given ? unit : total / unit * unit, above = below + unit;
        struct dt_text why;
        dt_text_init(&why);
        dt_text_printf(&why, "%" PRId64 " != %" PRId64 " * %" PRId64 " * %d: ", total, micro.value, steps.value,
                       u->world);
        show_factor(u, &micro, &why);
        show_factor(u, &steps, &why);
        dt_text_printf(&why, "%d rank%s; write %" PRId64, u->world, u->world == 1 ? "" : "s",
                       below > 0 ? below : above);
        if (below > 0 && !(micro.given && steps.given)) {
            dt_text_printf(&why, " or %" PRId64, above);
        }
        dt_config_problem(u->c, path, "%s, or remove one of them", dt_text_str(&why));
        dt_text_clear(&why);
        return;
    }
    if (!micro.given) {
        dialect_give(u, path, micro.key, cJSON_CreateNumber((double)micro.value));
    }
    if (!steps.given) {
        dialect_give(u, path, steps.key, cJSON_CreateNumber((double)steps.value));
    }
}

#define LATER "not there yet; remove it"
#define ALWAYS "done anyway"
#define OWN_SIZES "messages have sizes of their own"
#define OWN_ORDER "each layer is fetched and freed in its turn"
#define FP16 "not there yet; remove it, or write training.precision \"bf16-mixed\""

static const struct dialect_rule rules[] = {
    MOVE("train_micro_batch_size_per_gpu", "training.batch_size_per_gpu"),
    MOVE("gradient_accumulation_steps", "training.gradient_accumulation_steps"),
    FUNCTION("train_batch_size", "training.batch_size_per_gpu", batch,
             "samples per micro-step * micro-steps * ranks; gives the one of them that is missing, and is checked"),
    MOVE_OR("gradient_clipping", "training.max_grad_norm", "0"),
    MOVE("steps_per_print", "logging.log_every_n_steps"),

    FUNCTION(
        "optimizer.type", "optimizer.name", optimizer,
        "`optimizer.name`: AdamW and Adam = `adamw`, Adam without adam_w_mode = `adam`, SGD = `sgd`, Lion = `lion`, "
        "Lamb = `lamb`, Adagrad = `adagrad`; others are refused"),
    MOVE_OR("optimizer.params.lr", "training.learning_rate", "0.001"),
    FUNCTION("optimizer.params.betas", "training.adam_beta1", betas,
             "`training.adam_beta1` and `adam_beta2`; of Lion and Lamb `optimizer.beta1` and `beta2`"),
    FUNCTION("optimizer.params.eps", "training.adam_epsilon", eps,
             "`training.adam_epsilon`; of Lamb and Adagrad `optimizer.eps`"),
    MOVE("optimizer.params.max_coeff", "optimizer.max_coeff"),
    MOVE("optimizer.params.min_coeff", "optimizer.min_coeff"),
    MOVE("optimizer.params.weight_decay", "training.weight_decay"),
    MOVE("optimizer.params.momentum", "optimizer.momentum"),
    MOVE("optimizer.params.dampening", "optimizer.dampening"),
    MOVE("optimizer.params.nesterov", "optimizer.nesterov"),
    WORDS("optimizer.params.adam_w_mode", NULL, "true=|false="),
    WORDS("optimizer.params.bias_correction", NULL, "true=|false=!not there yet; remove it"),
    WORDS("optimizer.params.amsgrad", NULL, "false=|true=!not there yet; remove it"),
    INERT("optimizer.params.torch_adam", "the formula is the same"),
    INERT("optimizer.params.fused", "the update is one kernel"),
    REFUSE("optimizer.params.max_grad_norm", "write gradient_clipping"),

    FUNCTION("scheduler.type", "training.lr_scheduler_type", scheduler,
             "`training.lr_scheduler_type`: WarmupLR = `warmuplr`, WarmupDecayLR = `warmupdecaylr`, "
             "WarmupCosineLR = `warmupcosinelr`, with `_linear` by warmup_type; others are refused"),
    MOVE_OR("scheduler.params.warmup_num_steps", "training.warmup_steps", "1000"),
    MOVE("scheduler.params.warmup_max_lr", "training.learning_rate"),
    WORDS("scheduler.params.warmup_min_lr", NULL, "0=|*=!the warm-up begins at 0; write 0"),
    WORDS("scheduler.params.warmup_min_ratio", NULL, "0=|*=!the warm-up begins at 0; write 0"),
    FUNCTION("scheduler.params.cos_min_ratio", "training.min_lr_ratio", cosine_least,
             "`training.min_lr_ratio`; 0.0001 where WarmupCosineLR does not say it"),
    WORDS("scheduler.params.warmup_type", NULL, "log=|linear="),
    FUNCTION("scheduler.params.total_num_steps", "training.max_steps", total_steps,
             "`training.max_steps`: the schedule ends with the run"),

    WORDS("bf16.enabled", "training.precision", "true=bf16-mixed|false="),
    REFUSE("bf16.immediate_grad_update", LATER),
    REFUSE("bf16.check_grad_overflow", "not there yet; remove it, a norm that is not finite ends the run as it is"),
    REFUSE("bf16.bf16_master_weights_and_grads", "not there yet; remove it, masters are fp32"),
    REFUSE("bf16.bf16_optimizer_states",
           "DeepSpeed's name; here it is training.optimizer_state_dtype \"bf16\", beside fp32 masters"),
    WORDS("bfloat16.enabled", "training.precision", "true=bf16-mixed|false="),
    REFUSE("fp16", FP16),
    REFUSE("amp", FP16),
    WORDS("communication_data_type", "mixed_precision.reduce_dtype",
          "fp32=fp32|bf16=bf16|bfp16=bf16|fp16=!not there yet; write bf16"),
    WORDS("data_types.grad_accum_dtype", NULL, "fp32=|*=!gradients add up in fp32; write fp32"),

    WORDS("zero_optimization.stage", "training.strategy", "0=zero0|1=zero1|2=zero2|3=zero3"),
    INERT("zero_optimization.overlap_comm", ALWAYS),
    INERT("zero_optimization.contiguous_gradients", ALWAYS),
    INERT("zero_optimization.reduce_scatter", ALWAYS),
    INERT("zero_optimization.allgather_partitions", ALWAYS),
    INERT("zero_optimization.reduce_bucket_size", OWN_SIZES),
    INERT("zero_optimization.allgather_bucket_size", OWN_SIZES),
    INERT("zero_optimization.use_multi_rank_bucket_allreduce", OWN_SIZES),
    INERT("zero_optimization.sub_group_size", "the update needs no tiles"),
    INERT("zero_optimization.round_robin_gradients", "results are the same"),
    INERT("zero_optimization.ignore_unused_parameters", "these models use all their parameters"),
    INERT("zero_optimization.load_from_fp32_weights", "checkpoints hold fp32 weights"),
    INERT("zero_optimization.elastic_checkpoint", "checkpoints load on any number of ranks"),
    INERT("zero_optimization.legacy_stage1", "there is one stage 1"),
    INERT("zero_optimization.stage3_prefetch_bucket_size", OWN_ORDER),
    INERT("zero_optimization.stage3_param_persistence_threshold", OWN_ORDER),
    INERT("zero_optimization.stage3_model_persistence_threshold", OWN_ORDER),
    INERT("zero_optimization.stage3_max_live_parameters", OWN_ORDER),
    INERT("zero_optimization.stage3_max_reuse_distance", OWN_ORDER),
    INERT("zero_optimization.stage3_gather_16bit_weights_on_model_save", "`model/` is whole, in fp32"),
    INERT("zero_optimization.stage3_gather_fp16_weights_on_model_save", "`model/` is whole, in fp32"),
    REFUSE("zero_optimization.offload_optimizer", LATER),
    REFUSE("zero_optimization.offload_param", LATER),
    REFUSE("zero_optimization.cpu_offload", LATER),
    REFUSE("zero_optimization.cpu_offload_param", LATER),
    REFUSE("zero_optimization.zero_quantized_weights", LATER),
    REFUSE("zero_optimization.zero_quantized_gradients", LATER),
    WORDS("zero_optimization.zero_hpz_partition_size", NULL,
          "1=|*=!training.strategy \"hybrid_shard\" shards within a host; write that"),

    INERT("activation_checkpointing.partition_activations", "a layer is not split over ranks"),
    INERT("activation_checkpointing.contiguous_memory_optimization", "memory is planned as a whole"),
    INERT("activation_checkpointing.synchronize_checkpoint_boundary", "nothing needs it"),
    REFUSE("activation_checkpointing.cpu_checkpointing", LATER),
    REFUSE("activation_checkpointing.number_checkpoints", "write activation_checkpointing.checkpoint_every_n_layers"),
    REFUSE("activation_checkpointing.profile", LATER),

    INERT("wall_clock_breakdown", "`metrics.jsonl` has each step's time, `logging.timeline_steps` more"),
    INERT("zero_allow_untested_optimizer", "every optimizer goes with every stage"),
    INERT("zero_force_ds_cpu_optimizer", "there is nothing else"),
    INERT("disable_allgather", OWN_SIZES),
    INERT("checkpoint", "checkpoints load on any number of ranks"),
    WORDS("gradient_predivide_factor", NULL, "1=|*=!gradients are summed, then divided once; write 1"),
    REFUSE("prescale_gradients", "gradients are summed, then divided once; remove it"),
    REFUSE("sparse_gradients", LATER),
    REFUSE("memory_breakdown", "train --plan prints memory by purpose; remove it"),
    REFUSE("dump_state", "train --print-config prints the job; remove it"),
    REFUSE("elasticity", "not there yet; train_batch_size is kept on any number of ranks that divide it; remove it"),
    REFUSE("aio", LATER),
    REFUSE("autotuning", LATER),
    REFUSE("comms_logger", LATER),
    REFUSE("compression_training", LATER),
    MOVE("csv_monitor.enabled", "logging.csv"),
    INERT("csv_monitor.output_path", "`metrics.csv` is in the run's folder, or where `logging.csv_path` says"),
    INERT("csv_monitor.job_name", "`metrics.csv` is in the run's folder, or where `logging.csv_path` says"),
    REFUSE("curriculum_learning", LATER),
    REFUSE("data_efficiency", LATER),
    REFUSE("flops_profiler", LATER),
    REFUSE("progressive_layer_drop", LATER),
    REFUSE("sparse_attention", LATER),
    REFUSE("tensorboard", LATER),
    REFUSE("wandb", LATER),
    {0},
};

const struct dialect dialect_deepspeed = {
    .name = "DeepSpeed", .section = "deepspeed", .family = "deepspeed", .rules = rules};
