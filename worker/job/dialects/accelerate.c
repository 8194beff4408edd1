/* accelerate's configuration, as `accelerate config` writes it: which machines, and a block of FSDP
 * or DeepSpeed. */
#include "worker/job/dialects/dialect.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <string.h>

/* A block of another kind than the file's: accelerate does not read it. */
static void skip_block(struct dialect_use *u, const char *key, const char *kind)
{
    const char *path = dialect_path(u, key);
    const cJSON *block = dt_config_value(u->c, path);
    if (cJSON_IsObject(block) && block->child != NULL) {
        dialect_inert(u, path, dt_arena_printf(u->arena, "distributed_type is not %s", kind));
    }
    dt_config_pass(u->c, path);
}

/* What the file is about. The launcher's numbers are compared with the ranks that are there. */
static void distributed(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    static const char words[] =
        "NO=single_device|false=single_device|MULTI_GPU=ddp|MULTI_CPU=ddp|FSDP=fsdp|DEEPSPEED=deepspeed|"
        "MEGATRON_LM=!tensor and pipeline parallelism are beyond scope; the nearest is FSDP|"
        "XLA=!XLA is not supported; the nearest is FSDP|TPU=!TPUs are not supported; the nearest is FSDP|"
        "MULTI_XPU=!XPUs are not supported; the nearest is MULTI_CPU|MULTI_NPU=!NPUs are not supported; the nearest "
        "is MULTI_CPU|MULTI_HPU=!HPUs are not supported; the nearest is MULTI_CPU|TP=!tensor parallelism is beyond "
        "scope; the nearest is FSDP";
    const struct dialect_rule kinds = WORDS(r->from, r->to, words);
    bool fsdp = dialect_is_word(value, "FSDP"), deepspeed = dialect_is_word(value, "DEEPSPEED");
    if (!fsdp) {
        skip_block(u, "fsdp_config", "FSDP");
    }
    if (!deepspeed) {
        skip_block(u, "deepspeed_config", "DEEPSPEED");
    }
    if ((cJSON_IsFalse(value) || dialect_is_word(value, "NO")) && u->world > 1 && !u->converts) {
        dt_config_problem(u->c, path, "is NO, one process, and there are %d ranks; write MULTI_GPU, or start one",
                          u->world);
    } else if (!fsdp && !deepspeed) {
        dialect_words(u, &kinds, path, value);
    }
}

/* FSDP and DEEPSPEED, where their blocks leave the strategy open, are these. */
static void defaults(struct dialect_use *u)
{
    const char *path = dialect_path(u, "distributed_type");
    const cJSON *kind = dt_config_value(u->c, path), *ours = dt_config_value(u->c, "training.strategy");
    if (kind == NULL && strcmp(u->place, "accelerate") == 0) {
        dt_config_problem(u->c, path, "missing; add one of NO, MULTI_GPU, MULTI_CPU, FSDP, DEEPSPEED");
    } else if (ours == NULL && (dialect_is_word(kind, "FSDP") || dialect_is_word(kind, "DEEPSPEED"))) {
        /* a block without a stage means 2, a file without one 0 */
        bool file = dt_config_value(u->c, dialect_path(u, "deepspeed_config.deepspeed_config_file")) != NULL;
        dt_config_move(u->c, path, "training.strategy",
                       cJSON_CreateString(dialect_is_word(kind, "FSDP") ? "full_shard"
                                          : file                        ? "zero0"
                                                                        : "zero2"));
    }
}

/* The whole number at a key, or `fallback`. */
static int64_t number_at(const struct dialect_use *u, const char *key, int64_t fallback)
{
    double number = 0;
    bool given = dt_config_number(dt_config_value(u->c, dialect_path(u, key)), &number);
    return given && number >= 1 && number <= 1e9 ? (int64_t)number : fallback;
}

/* num_processes counts all machines. */
static void processes(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    double number = 0;
    int64_t machines = number_at(u, "num_machines", 1), all = 0;
    if (!dt_config_number(value, &number) || number != (double)(int64_t)number || number < -1 || number > 1e9) {
        dialect_wrong(u, path, "a whole number of processes");
        return;
    }
    all = (int64_t)number;
    if (all < 1) {
        return; /* as many as are there */
    }
    if (all % machines != 0) {
        dt_config_problem(u->c, path, "%" PRId64 " is not a multiple of num_machines %" PRId64, all, machines);
    } else if (all != u->world && !u->converts) {
        dt_config_problem(u->c, path,
                          "is %" PRId64 ", and there %s %d rank%s; start them with dtrun --nnodes=%" PRId64
                          " --nproc_per_node=%" PRId64,
                          all, u->world == 1 ? "is" : "are", u->world, u->world == 1 ? "" : "s", machines,
                          all / machines);
    }
}

/* Replicas times shards; what else divides the ranks is beyond scope above 1. */
static void mesh(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)value;
    int64_t replicas = number_at(u, "parallelism_config.parallelism_config_dp_replicate_size", 1),
            shards = number_at(u, "parallelism_config.parallelism_config_dp_shard_size", 1),
            others = number_at(u, "parallelism_config.parallelism_config_tp_size", 1) *
                     number_at(u, "parallelism_config.parallelism_config_cp_size", 1);
    if (others > 1) {
        return; /* which is said there */
    }
    if (replicas * shards != u->world && !u->converts) {
        dt_config_problem(u->c, path, "%" PRId64 " replicas * %" PRId64 " shards are not %d rank%s", replicas, shards,
                          u->world, u->world == 1 ? "" : "s");
    } else if (replicas > 1 && shards > 1) {
        const double sizes[2] = {(double)replicas, (double)shards};
        dialect_give(u, path, r->to, cJSON_CreateDoubleArray(sizes, 2));
        bool kept = cJSON_IsFalse(dt_config_value(u->c, dialect_path(u, "fsdp_config.fsdp_reshard_after_forward")));
        dialect_give(u, path, "training.strategy", cJSON_CreateString(kept ? "hybrid_shard_zero2" : "hybrid_shard"));
    } else if (replicas > 1) {
        dialect_give(u, path, "training.strategy", cJSON_CreateString("ddp"));
    }
}

/* Empty, as the tool writes it, it says nothing. */
static void megatron(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    if (!cJSON_IsObject(value) || value->child != NULL) {
        dt_config_problem(u->c, path,
                          "tensor and pipeline parallelism are beyond scope; remove it, the nearest is FSDP");
    }
}

#define LAUNCHER "dtrun's matter"
#define TPU "TPUs are not supported"
#define SPLIT "!a layer is not split over ranks; write 1, and FSDP shards its weights"

static const struct dialect_rule rules[] = {
    FUNCTION("distributed_type", "training.strategy", distributed,
             "`training.strategy`: NO = `single_device`, MULTI_GPU and MULTI_CPU = `ddp`, FSDP and DEEPSPEED = as "
             "their block says; others are refused"),
    FUNCTION("num_processes", NULL, processes, "must be the number of ranks, `--nproc_per_node` * `--nnodes`"),
    SILENT("num_machines", "divides num_processes; `--nnodes`"),
    WORDS("machine_rank", NULL, "0=|*=~ranks of hosts come from dtrun"),
    SILENT("main_process_ip", "`--master_addr`"),
    SILENT("main_process_port", "`--master_port`"),
    SILENT("rdzv_backend", "`--rdzv_backend`"),
    WORDS("mixed_precision", "training.precision",
          "no=32-true|false=32-true|fp16=16-mixed|bf16=bf16-mixed|fp8=!fp8 is not supported; write bf16"),
    WORDS("compute_environment", NULL,
          "LOCAL_MACHINE=|AMAZON_SAGEMAKER=!SageMaker is not supported; write LOCAL_MACHINE, and start dtrun there"),
    WORDS("use_cpu", "training.device", "false=|true=cpu"),
    SILENT("debug", "collectives that do not match are found anyway"),
    WORDS("enable_cpu_affinity", NULL, "false=|true=~ranks are bound to cores by dtrun"),
    SILENT("same_network", LAUNCHER),
    SILENT("main_training_function", LAUNCHER),
    WORDS("downcast_bf16", NULL, "no=|false=|true=!" TPU "; write no|yes=!" TPU "; write no"),
    WORDS("dynamo_backend", NULL, "no=|false=|*=~nothing is compiled while it trains"),
    INERT("dynamo_config", "nothing is compiled while it trains"),
    WORDS("tpu_use_cluster", NULL, "false=|true=!" TPU "; write false"),
    WORDS("tpu_use_sudo", NULL, "false=|true=!" TPU "; write false"),
    SILENT("tpu_env", "counts on TPUs alone"),
    SILENT("tpu_name", "counts on TPUs alone"),
    SILENT("tpu_zone", "counts on TPUs alone"),
    SILENT("tpu_vm", "counts on TPUs alone"),
    INERT("command_file", LAUNCHER),
    INERT("ipex_config", "oneDNN computes on CPUs"),
    INERT("mpirun_config", "dtrun starts the ranks; `--hostfile` names the hosts"),
    SILENT("fp8_config", "counts with fp8 alone"),
    INERT("commands", LAUNCHER),
    INERT("gpu_ids", "`CUDA_VISIBLE_DEVICES` says which GPUs"),
    INERT("max_restarts", "`--max_restarts` of dtrun"),
    FUNCTION_OF(OUTCOME_REFUSED, "megatron_lm_config", NULL, megatron, "refused: beyond scope; empty it says nothing"),
    WORDS("deepspeed_config.zero_stage", "training.strategy", "0=zero0|1=zero1|2=zero2|3=zero3"),
    MOVE("deepspeed_config.gradient_accumulation_steps", "training.gradient_accumulation_steps"),
    MOVE("deepspeed_config.gradient_clipping", "training.max_grad_norm"),
    WORDS("deepspeed_config.offload_optimizer_device", "offload.optimizer", "none=none|cpu=cpu|nvme=nvme"),
    WORDS("deepspeed_config.offload_param_device", "offload.parameters", "none=none|cpu=cpu|nvme=nvme"),
    MOVE("deepspeed_config.offload_optimizer_nvme_path", "offload.nvme_path"),
    MOVE("deepspeed_config.offload_param_nvme_path", "offload.nvme_path"),
    SILENT("deepspeed_config.zero3_save_16bit_model", "`model/` is whole, in the type of `export.dtype`"),
    SILENT("deepspeed_config.zero3_init_flag", "weights are created in slices"),
    SILENT("deepspeed_config.deepspeed_multinode_launcher", LAUNCHER),
    SILENT("deepspeed_config.deepspeed_hostfile", "`--hostfile` of dtrun"),
    INERT("deepspeed_config.deepspeed_inclusion_filter", "`--hostfile` of dtrun names the hosts"),
    INERT("deepspeed_config.deepspeed_exclusion_filter", "`--hostfile` of dtrun names the hosts"),
    INERT("deepspeed_config.deepspeed_moe_layer_cls_names", "a layer is a unit"),
    FUNCTION("parallelism_config.parallelism_config_dp_replicate_size", "fsdp.device_mesh", mesh,
             "`fsdp.device_mesh`: replicas and shards, of `hybrid_shard`"),
    SILENT("parallelism_config.parallelism_config_dp_shard_size", "beside dp_replicate_size"),
    WORDS("parallelism_config.parallelism_config_tp_size", NULL, "1=|*=" SPLIT),
    WORDS("parallelism_config.parallelism_config_cp_size", NULL, "1=|*=" SPLIT),
    WORDS("parallelism_config.parallelism_config_sp_size", NULL, "1=|*=" SPLIT),
    SILENT("parallelism_config.parallelism_config_cp_backend", "counts with cp_size alone"),
    SILENT("parallelism_config.parallelism_config_cp_comm_strategy", "counts with cp_size alone"),
    SILENT("parallelism_config.parallelism_config_sp_backend", "counts with sp_size alone"),
    SILENT("parallelism_config.parallelism_config_sp_seq_length", "counts with sp_size alone"),
    SILENT("parallelism_config.parallelism_config_sp_seq_length_is_variable", "counts with sp_size alone"),
    SILENT("parallelism_config.parallelism_config_sp_attn_implementation", "counts with sp_size alone"),
    {0},
};

/* Also its options by name, as a job of fms-hf-tuning has them. */
static const struct dialect_rule launch_rules[] = {
    SILENT("use_fsdp", "the block's keys say it"),
    INERT("env", "the environment is dtrun's matter"),
    INERT("config_file", "give the file by `--config`"),
    INERT("dynamo_use_dynamic", "nothing is compiled while it trains"),
    SILENT("num_machines", "`--nnodes`"),
    SILENT("machine_rank", "`--node_rank`"),
    SILENT("main_process_ip", "`--master_addr`"),
    SILENT("main_process_port", "`--master_port`"),
    SILENT("rdzv_backend", "`--rdzv_backend`"),
    FUNCTION("num_processes", NULL, processes, "must be the number of ranks"),
    WORDS("mixed_precision", "training.precision", "no=32-true|false=32-true|fp16=16-mixed|bf16=bf16-mixed"),
    {0},
};

static const char *const places[] = {"accelerate", NULL};
static const char *const launch_places[] = {"transformers.accelerate_launch_args", NULL};

const struct dialect dialect_accelerate = {.name = "accelerate",
                                           .section = "accelerate",
                                           .places = places,
                                           .marks = "distributed_type|compute_environment|num_processes",
                                           .rules = rules,
                                           .defaults = defaults};
const struct dialect dialect_launch = {.name = "accelerate launch", .places = launch_places, .rules = launch_rules};
