/* Arguments of Lightning's DDPStrategy, DeepSpeedStrategy and FSDPStrategy; what FSDP has itself of the last one's is
 * FSDP's block. */
#include "worker/job/dialects/deepspeed.h"
#include "worker/job/dialects/lightning.h"

#include <cjson/cJSON.h>
#include <string.h>

static bool is_class(const struct dialect_use *u, const char *class)
{
    return strcmp(lightning_class(dt_config_value(u->c, "lightning.trainer.strategy")), class) == 0;
}

static bool is_ddp(const struct dialect_use *u)
{
    return is_class(u, "DDPStrategy");
}

static bool is_fsdp(const struct dialect_use *u)
{
    return is_class(u, "FSDPStrategy");
}

static bool is_deepspeed(const struct dialect_use *u)
{
    return is_class(u, "DeepSpeedStrategy");
}

#define PYTHON "counts in Python alone"
#define BACKEND "`training.collectives` says how ranks talk"

/* Python's timedelta; a number is of seconds. */
static void timeout(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = lightning_seconds(value);
    if (number >= 0) {
        dialect_give(u, path, r->to, cJSON_CreateNumber(number));
    } else {
        dialect_wrong(u, path, "seconds, \"0:30:00\", or an object of days, hours, minutes, seconds");
    }
}

/* "torch.distributed. ... .default_hooks.fp16_compress_hook": the job's rule knows the function's own name. */
static void function(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const char *dot = cJSON_IsString(value) ? strrchr(value->valuestring, '.') : NULL;
    if (!cJSON_IsNull(value)) {
        dialect_give(u, path, r->to, dot != NULL ? cJSON_CreateString(dot + 1) : cJSON_Duplicate(value, true));
    }
}

static void state_argument(struct dialect_use *u, const void *of, const char *key, const cJSON *a)
{
    static const char *const numbers[] = {
        "matrix_approximation_rank", "start_powerSGD_iter", "min_compression_rate", "use_error_feedback", "warm_start",
        "orthogonalization_epsilon", "random_seed"};
    (void)of;
    const char *to = strcmp(a->string, "start_localSGD_iter") == 0 ? "local_sgd.warmup_steps" : NULL;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        to = strcmp(a->string, numbers[i]) == 0 ? dt_arena_printf(u->arena, "power_sgd.%s", numbers[i]) : to;
    }
    if (to != NULL && !cJSON_IsNull(a)) {
        dialect_give(u, key, to, cJSON_Duplicate(a, true));
    } else if (!cJSON_IsNull(a)) {
        dt_config_problem(u->c, key, "has no counterpart here; remove it");
    }
}

/* Arguments of PowerSGDState and PostLocalSGDState. Groups of processes are made here. */
static void hook_state(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    lightning_arguments(u, path, value, state_argument, NULL);
}

static const struct dialect_rule ddp_rules[] = {
    FUNCTION("ddp_comm_hook", "ddp.comm_hook", function, "`ddp.comm_hook`: the function's own name"),
    FUNCTION("ddp_comm_wrapper", "ddp.comm_wrapper", function, "`ddp.comm_wrapper`: the function's own name"),
    FUNCTION("ddp_comm_state", "power_sgd", hook_state,
             "`power_sgd`, and start_localSGD_iter = `local_sgd.warmup_steps`"),
    MOVE("model_averaging_period", "local_sgd.period"),
    WORDS("find_unused_parameters", NULL, "false=|true=~these models use all their parameters"),
    WORDS("static_graph", NULL, "false=|true=~the order of layers is fixed"),
    WORDS("gradient_as_bucket_view", NULL, "true=|false=~gradients lie in buckets anyway"),
    MOVE("bucket_cap_mb", "ddp.bucket_cap_mb"),
    WORDS("broadcast_buffers", "training.broadcast_buffers", "true=true|false=false"),
    INERT("process_group_backend", BACKEND),
    FUNCTION("timeout", "training.collective_timeout", timeout, "`training.collective_timeout`, in seconds"),
    INERT("start_method", "dtrun starts the ranks"),
    SILENT("accelerator", PYTHON),
    SILENT("parallel_devices", PYTHON),
    SILENT("cluster_environment", PYTHON),
    SILENT("checkpoint_io", PYTHON),
    SILENT("precision_plugin", PYTHON),
    {0},
};

/* true: to the host, unless offload_..._device says another place. */
static void offload(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const char *device = cJSON_GetStringValue(
        dt_config_value(u->c, dialect_path(u, strcmp(r->from, "offload_optimizer") == 0 ? "offload_optimizer_device"
                                                                                        : "offload_params_device")));
    if (cJSON_IsTrue(value)) {
        dialect_give(u, path, r->to, cJSON_CreateString(device != NULL ? device : "cpu"));
    } else if (!cJSON_IsFalse(value)) {
        dialect_wrong(u, path, "true or false");
    }
}

#define OWN_SIZES "messages have sizes of their own"

static const struct dialect_rule deepspeed_rules[] = {
    WORDS("zero_optimization", NULL, "true=|false=!write stage 0, or DDPStrategy"),
    SILENT("stage", "names the strategy"),
    FUNCTION("offload_optimizer", "offload.optimizer", offload,
             "`offload.optimizer`: the place of offload_optimizer_device"),
    FUNCTION("offload_parameters", "offload.parameters", offload,
             "`offload.parameters`: the place of offload_params_device"),
    WORDS("offload_optimizer_device", NULL, "cpu=|nvme=|none="),
    WORDS("offload_params_device", NULL, "cpu=|nvme=|none="),
    WORDS("remote_device", NULL, "cpu=|nvme=|none="),
    MOVE("nvme_path", "offload.nvme_path"),
    MOVE("optimizer_buffer_count", "offload.buffer_count"),
    MOVE("block_size", "offload.block_size"),
    MOVE("queue_depth", "offload.queue_depth"),
    MOVE("single_submit", "offload.single_submit"),
    MOVE("overlap_events", "offload.overlap_events"),
    MOVE("thread_count", "offload.intra_op_parallelism"),
    INERT("params_buffer_count", "`offload.buffer_count` is for all arrays"),
    INERT("params_buffer_size", "the plan has room for the largest slice"),
    INERT("max_in_cpu", "with nvme the files have all of it"),
    INERT("pin_memory", "host memory that is copied from and to is pinned anyway"),
    INERT("sub_group_size", "the update needs no tiles"),
    WORDS("contiguous_gradients", NULL, "true=|false=~done anyway"),
    WORDS("overlap_comm", NULL, "true=|false=~done anyway"),
    WORDS("allgather_partitions", NULL, "true=|false=~done anyway"),
    WORDS("reduce_scatter", NULL, "true=|false=~done anyway"),
    INERT("allgather_bucket_size", OWN_SIZES),
    INERT("reduce_bucket_size", OWN_SIZES),
    SILENT("zero_allow_untested_optimizer", "every optimizer goes with every stage"),
    MOVE("logging_batch_size_per_gpu", "training.batch_size_per_gpu"),
    SILENT("logging_level", "DTRUN_LOG says what is logged"),
    MOVE("loss_scale", "loss_scaling.loss_scale"),
    MOVE("initial_scale_power", "loss_scaling.initial_scale_power"),
    MOVE("loss_scale_window", "loss_scaling.loss_scale_window"),
    MOVE("hysteresis", "loss_scaling.hysteresis"),
    MOVE("min_loss_scale", "loss_scaling.min_loss_scale"),
    INERT("partition_activations", "a layer is not split over ranks"),
    FUNCTION("cpu_checkpointing", "offload.activations", deepspeed_kept_on_host,
             "true is `cpu`, where `activation_checkpointing.enabled` is true"),
    INERT("contiguous_memory_optimization", "memory is planned as a whole"),
    INERT("synchronize_checkpoint_boundary", "nothing needs it"),
    INERT("load_full_weights", "each rank reads its own slices"),
    SILENT("exclude_frozen_parameters", "frozen weights are in checkpoints once"),
    INERT("process_group_backend", BACKEND),
    FUNCTION("timeout", "training.collective_timeout", timeout, "`training.collective_timeout`, in seconds"),
    SILENT("accelerator", PYTHON),
    SILENT("parallel_devices", PYTHON),
    SILENT("cluster_environment", PYTHON),
    SILENT("precision_plugin", PYTHON),
    {0},
};

static void precision_argument(struct dialect_use *u, const void *of, const char *key, const cJSON *a)
{
    static const struct dialect_rule rules[] = {
        WORDS("param_dtype", "training.precision",
              "float32=32-true|bfloat16=bf16-mixed|float16=16-mixed|torch.float32=32-true|torch.bfloat16=bf16-mixed|"
              "torch.float16=16-mixed"),
        WORDS("reduce_dtype", "mixed_precision.reduce_dtype",
              "float32=fp32|bfloat16=bf16|float16=fp16|torch.float32=fp32|torch.bfloat16=bf16|torch.float16=fp16"),
        WORDS("buffer_dtype", "mixed_precision.buffer_dtype",
              "float32=fp32|bfloat16=bf16|float16=fp16|torch.float32=fp32|torch.bfloat16=bf16|torch.float16=fp16"),
        SILENT("keep_low_precision_grads", ""),
        SILENT("cast_forward_inputs", ""),
        SILENT("cast_root_forward_inputs", ""),
        {0},
    };
    (void)of;
    const struct dialect_rule *rule = rules;
    while (rule->from != NULL && strcmp(rule->from, a->string) != 0) {
        rule++;
    }
    if (rule->from == NULL) {
        dt_config_problem(u->c, key, "has no counterpart here; remove it");
    } else if (rule->how == DIALECT_WORDS && !cJSON_IsNull(a)) {
        dialect_words(u, rule, key, a);
    }
}

/* A class with arguments, torch.distributed.fsdp.MixedPrecision, whose types may be "torch.bfloat16". */
static void mixed_precision(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    lightning_arguments(u, path, value, precision_argument, NULL);
}

static const struct dialect_rule fsdp_rules[] = {
    FUNCTION("activation_checkpointing_policy", "activation_checkpointing.enabled", lightning_recompute,
             "`activation_checkpointing.enabled`: a list of classes is true, and must name the model's layer"),
    FUNCTION("mixed_precision", "training.precision", mixed_precision,
             "`training.precision` by param_dtype, `mixed_precision.reduce_dtype`, `mixed_precision.buffer_dtype`"),
    MOVE("device_mesh", "fsdp.device_mesh"),
    INERT("process_group_backend", BACKEND),
    FUNCTION("timeout", "training.collective_timeout", timeout, "`training.collective_timeout`, in seconds"),
    SILENT("param_init_fn", PYTHON),
    SILENT("device_id", PYTHON),
    SILENT("accelerator", PYTHON),
    SILENT("parallel_devices", PYTHON),
    SILENT("cluster_environment", PYTHON),
    SILENT("checkpoint_io", PYTHON),
    SILENT("precision_plugin", PYTHON),
    {0},
};

/* dict_kwargs: how the command line's files say arguments that a class only passes on. */
static const char *const places[] = {"lightning.trainer.strategy.init_args", "lightning.trainer.strategy.dict_kwargs",
                                     NULL};

const struct dialect dialect_ddp_strategy = {
    .name = "Lightning's DDPStrategy", .places = places, .rules = ddp_rules, .counts = is_ddp};
const struct dialect dialect_deepspeed_strategy = {
    .name = "Lightning's DeepSpeedStrategy", .places = places, .rules = deepspeed_rules, .counts = is_deepspeed};
const struct dialect dialect_fsdp_strategy = {
    .name = "Lightning's FSDPStrategy", .places = places, .rules = fsdp_rules, .counts = is_fsdp};
