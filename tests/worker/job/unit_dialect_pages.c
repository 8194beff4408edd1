/* covers: worker/job/dialects */
/* Examples as the documentation of DeepSpeed, accelerate, Transformers and Lightning has them: each is taken, or refused
 * with what stands there and the nearest thing that works. */
#include "tests/lib/job_files.h"
#include "worker/job/dialects/dialect.h"

/* ---- DeepSpeed ---- */

static void test_deepspeed(void **state)
{
    (void)state;
    same_job("ds.json", "{\"train_batch_size\": 4, \"zero_optimization\": true}", 1,
             "{\"training\": {\"batch_size_per_gpu\": 4, \"strategy\": \"zero1\", \"max_grad_norm\": 0}}", NULL);
    same_job("ds.json", "{\"train_batch_size\": 4, \"zero_optimization\": false}", 1,
             "{\"training\": {\"batch_size_per_gpu\": 4, \"strategy\": \"zero0\", \"max_grad_norm\": 0}}", NULL);
    refused("ds.json", "{\"train_batch_size\": 4, \"zero_optimization\": \"auto\"}", 1,
            "ds.json:1:46: zero_optimization: is \"auto\"; give an object, { \"key\": value, ... }\n");
    refused("ds.json",
            "{\"train_batch_size\": -8, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9]}}}", 1,
            "ds.json:1:2: train_batch_size: is -8; give a whole number of at least 1\n"
            "ds.json:1:67: optimizer.params.betas: is [0.9]; give two numbers, such as [0.9, 0.999]\n");
    refused("ds.json",
            "{\"train_batch_size\": \"8\", \"zero_optimization\": {\"aio\": {\"block_size\": 8192}, \"lr\": 1}}", 1,
            "ds.json:1:2: train_batch_size: is \"8\"; give a whole number of at least 1\n"
            "ds.json:1:49: zero_optimization.aio: belongs at the top of the file, as aio; move it there\n"
            "ds.json:1:78: zero_optimization.lr: belongs at optimizer.params.lr; move it there\n");
    refused("ds.json",
            "{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"FusedAdam\"}, \"scheduler\": {\"type\": "
            "\"CosineAnnealingLR\", \"params\": {\"T_max\": 5}}}",
            1,
            "ds.json:1:39: optimizer.type: is \"FusedAdam\": there are Adam, AdamW, SGD, Lion, Lamb, Adagrad and Muon; "
            "write one of them\n"
            "ds.json:1:75: scheduler.type: CosineAnnealingLR: there are WarmupLR, WarmupDecayLR, WarmupCosineLR, "
            "LRRangeTest and OneCycle; write one of them, or remove the block and write training.lr_scheduler_type\n");
}

/* A name that nobody knows, longer than any line. */
static void test_long_name(void **state)
{
    (void)state;
    char text[4096], longest[2049] = {0};
    memset(longest, 'k', sizeof longest - 1);
    (void)snprintf(text, sizeof text, "{\"train_batch_size\": 4, \"%s\": 1}", longest);
    longest[120] = 0;
    char inert[256];
    (void)snprintf(inert, sizeof inert, "%s... (DeepSpeed ignores it, too)", longest);
    same_job("ds.json", text, 1, "{\"training\": {\"batch_size_per_gpu\": 4, \"max_grad_norm\": 0}}", inert);
}

/* Comments as hjson has them, by which DeepSpeed reads its files. */
static void test_comments(void **state)
{
    (void)state;
    same_job(
        "ds.json", "# a file\n{\"train_batch_size\": 4, # of all\n \"steps_per_print\": 7, # last\n}\n# end", 1,
        "{\"training\": {\"batch_size_per_gpu\": 4, \"max_grad_norm\": 0}, \"logging\": {\"log_every_n_steps\": 7}}",
        NULL);
    refused("ds.json", "{\"train_batch_size\": 4, // four\n \"gradient_clipping\": NaN}", 1,
            "ds.json:2:23: \"NaN\" is not a JSON value; words are true, false and null, strings have quotes\n");
    refused("own.json", "{\"training\": {}, # mine\n}", 1, "own.json:1:18: comments are not part of JSON; remove it\n");
}

/* ---- accelerate ---- */

static void test_accelerate(void **state)
{
    (void)state;
    same_job(
        "a.yaml",
        "distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2}\n"
        "parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 2\n"
        "  parallelism_config_tp_size: 1\n  parallelism_config_cp_size: 1\n"
        "  parallelism_config_cp_comm_strategy: allgather\n  parallelism_config_cp_backend: torch\n"
        "  parallelism_config_sp_size: 1\n  parallelism_config_sp_backend: deepspeed\n",
        4,
        "{\"training\": {\"strategy\": \"hybrid_shard\", \"precision\": \"bf16-mixed\"}, \"fsdp\": {\"device_mesh\": "
        "[2, 2]}}",
        NULL);
    same_job("a.yaml",
             "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\nipex_config: {ipex: true}\nmpirun_config:\n"
             "  mpirun_ccl: '1'\n  mpirun_hostfile: hosts\n",
             2, "{\"training\": {\"strategy\": \"ddp\", \"device\": \"cpu\"}}", "ipex_config, mpirun_config");
    same_job("a.yaml",
             "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {zero_stage: 3, zero3_init_flag: true,\n"
             "  deepspeed_moe_layer_cls_names: MixtralSparseMoeBlock}\n",
             2, "{\"training\": {\"strategy\": \"zero3\"}}", "deepspeed_config.deepspeed_moe_layer_cls_names");
    refused("a.yaml",
            "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: fp8\nfp8_config: {backend: TE}\n", 2,
            "a.yaml:3:1: mixed_precision: is \"fp8\": fp8 is not supported; write bf16\n");
}

/* ---- Transformers ---- */

static void test_transformers(void **state)
{
    (void)state;
    same_job(
        "t.yaml",
        "eval_strategy: steps\neval_steps: 100\neval_delay: 1000\nseed: 7\ndata_seed: 7\nsave_strategy: 'no'\n"
        "max_steps: 2000\npredict_with_generate: false\ngeneration_max_length: 20\nsortish_sampler: false\n",
        1,
        "{\"training\": {\"batch_size_per_gpu\": 8, \"eval_every_n_steps\": 100, \"eval_delay\": 1000, \"seed\": 7, "
        "\"max_steps\": 2000, \"loss_normalization\": \"global_tokens\"}, \"checkpointing\": {\"save_every_n_steps\": "
        "0, \"keep_last_n\": 0}, \"logging\": "
        "{\"log_every_n_steps\": 500}}",
        NULL);
    refused("t.yaml",
            "per_device_train_batch_size: 1\neval_strategy: steps\neval_steps: 0.25\neval_delay: 10\ndata_seed: 1\n", 1,
            "t.yaml:4:1: eval_delay: counts steps, and eval_steps is a share; write a number of steps there\n"
            "t.yaml:5:1: data_seed: the order of samples follows training.seed, which is 42; remove it\n");
    refused("t.yaml",
            "per_device_train_batch_size: 1\nnum_train_epochs: 1\ndataset_name: a/b\ndataset_train_split: x\npacking: "
            "true\n"
            "packing_strategy: bfd\npadding_free: true\n",
            1,
            "t.yaml:3:1: dataset_name: data of fine-tuning are not there yet; remove it, and give data.train\n"
            "t.yaml:5:1: packing: is true: texts are packed anyway, and data.document_mask keeps documents apart; "
            "remove it\n"
            "t.yaml:7:1: padding_free: is true: not there yet; remove it\n");
}

/* ---- Lightning ---- */

#define EVALUATED "\"eval_every_n_epochs\": 1, \"num_sanity_val_steps\": 2, \"max_grad_norm\": 0"
#define KEPT "\"checkpointing\": {\"save_every_n_epochs\": 1, \"keep_last_n\": 1}"

static void strategy(const char *class, const char *arguments, int world, const char *training, const char *more,
                     const char *inert)
{
    char text[2048], ours[2048];
    (void)snprintf(
        text, sizeof text,
        "trainer:\n  max_epochs: 2\n  strategy:\n    class_path: lightning.pytorch.strategies.%s\n    init_args:\n%s",
        class, arguments);
    (void)snprintf(ours, sizeof ours, "{\"training\": {\"num_epochs\": 2, " EVALUATED ", %s}, %s" KEPT "}", training,
                   more);
    same_job("l.yaml", text, world, ours, inert);
}

static void test_fsdp_strategy(void **state)
{
    (void)state;
    strategy("FSDPStrategy",
             "      sharding_strategy: HYBRID_SHARD\n      device_mesh: [2, 2]\n      timeout: {minutes: 30}\n"
             "      process_group_backend: nccl\n      ignored_modules: null\n"
             "      auto_wrap_policy: [transformers.models.gpt2.modeling_gpt2.GPT2Block]\n"
             "      activation_checkpointing_policy: [transformers.models.gpt2.modeling_gpt2.GPT2Block]\n"
             "      cpu_offload: {class_path: torch.distributed.fsdp.CPUOffload, init_args: {offload_params: false}}\n"
             "      mixed_precision:\n        class_path: torch.distributed.fsdp.MixedPrecision\n"
             "        init_args: {param_dtype: torch.bfloat16, reduce_dtype: torch.float32, buffer_dtype: null}\n",
             4, "\"strategy\": \"hybrid_shard\", \"collective_timeout\": 1800, \"precision\": \"bf16-mixed\"",
             "\"fsdp\": {\"device_mesh\": [2, 2]}, \"activation_checkpointing\": {\"enabled\": true}, "
             "\"mixed_precision\": {\"reduce_dtype\": \"fp32\"}, ",
             "trainer.strategy.init_args.process_group_backend");
    strategy("FSDPStrategy",
             "      auto_wrap_policy:\n        class_path: torch.distributed.fsdp.wrap.ModuleWrapPolicy\n"
             "        init_args: {module_classes: [GPT2Block]}\n      activation_checkpointing: GPT2Block\n      "
             "timeout: 0:30:00\n",
             2, "\"strategy\": \"fsdp\", \"collective_timeout\": 1800",
             "\"activation_checkpointing\": {\"enabled\": true}, ", NULL);
    refused(
        "l.yaml",
        "trainer:\n  max_epochs: 2\n  strategy:\n    class_path: FSDPStrategy\n    init_args:\n"
        "      auto_wrap_policy: [torch.nn.TransformerEncoderLayer]\n      ignored_modules: [x]\n      timeout: soon\n"
        "      activation_checkpointing_policy: [my.Layer]\n      mixed_precision: {class_path: M, init_args: {x: "
        "1}}\n",
        2,
        "l.yaml:6:7: trainer.strategy.init_args.auto_wrap_policy: the layers of gpt2 are GPT2Block; write that, or "
        "remove it\n"
        "l.yaml:7:7: trainer.strategy.init_args.ignored_modules: every layer is a unit; remove it\n"
        "l.yaml:8:7: trainer.strategy.init_args.timeout: is \"soon\"; give seconds, \"0:30:00\", or an object of days, "
        "hours, minutes, seconds\n"
        "l.yaml:9:7: trainer.strategy.init_args.activation_checkpointing_policy: the layers of gpt2 are GPT2Block; "
        "write "
        "that, or remove it\n"
        "l.yaml:10:52: trainer.strategy.init_args.mixed_precision.init_args.x: has no counterpart here; remove it\n");
    refused("l.yaml",
            "trainer:\n  max_epochs: 2\n  strategy:\n    class_path: FSDPStrategy\n    init_args:\n"
            "      auto_wrap_policy: torch.distributed.fsdp.wrap.always_wrap_policy\n",
            2,
            "l.yaml:6:7: trainer.strategy.init_args.auto_wrap_policy: is "
            "\"torch.distributed.fsdp.wrap.always_wrap_policy\"; "
            "give a list of the classes of layers\n");
}

static void test_other_strategies(void **state)
{
    (void)state;
    strategy("DDPStrategy", "      timeout: {minutes: 30}\n      bucket_cap_mb: 50\n", 2,
             "\"strategy\": \"ddp\", \"collective_timeout\": 1800", "\"ddp\": {\"bucket_cap_mb\": 50}, ", NULL);
    strategy("DeepSpeedStrategy", "      stage: 3\n      cpu_checkpointing: true\n", 2, "\"strategy\": \"zero3\"", "",
             "trainer.strategy.init_args.cpu_checkpointing (layers are computed again where "
             "activation_checkpointing.enabled "
             "says so)");
}

/* The first of both limits ends the run. */
static void test_limits(void **state)
{
    (void)state;
    same_job("l.yaml", "trainer: {max_epochs: 2, max_steps: 70}\n", 1,
             "{\"training\": {\"max_steps\": 70, \"epoch_limit\": 2, " EVALUATED "}, " KEPT "}", NULL);
    refused("l.yaml", "trainer: {max_epochs: 2.5, max_steps: 70}\n", 1,
            "l.yaml:1:23: trainer.max_epochs: is 2.5; give a whole number from 0 to 1000000\n");
    refused("l.yaml", "trainer: {max_steps: 70, min_steps: 5000}\n", 1,
            "l.yaml:1:26: trainer.min_steps: 5000 is more than training.max_steps 70 (l.yaml:1:11); lower it\n");
    refused("l.yaml", "trainer: {max_epochs: 2, min_epochs: 3}\n", 1,
            "l.yaml:1:26: trainer.min_epochs: 3 is more than training.num_epochs 2 (l.yaml:1:11); lower it\n");
}

/* ---- files beside each other ---- */

static void beside(const char *name, const char *config, const char *message)
{
    struct job job;
    const char *wrong = open_as_job(&job, name, config, 1);
    assert_non_null(wrong);
    assert_string_equal(wrong, message);
}

static void test_two_of_one_system(void **state)
{
    (void)state;
    write_file("a.yaml", "trainer: {max_epochs: 2}\n");
    write_file("b.yaml", "trainer: {max_epochs: 3}\n");
    beside("a.yaml", "b.yaml",
           "b.yaml: a file of Lightning, whose keys stand in a.yaml already; give them in one file\n");
    write_file("j.json", "{\"training\": {\"batch_size_per_gpu\": 2}, \"deepspeed\": {\"gradient_clipping\": 2}}");
    write_file("d.json", "{\"train_batch_size\": 2}");
    beside("j.json", "d.json",
           "d.json: a file of DeepSpeed, whose keys stand in j.json:1:41 already; give them in one file\n");
}

/* A file that is not there says nothing, also none of its system's defaults. */
static void test_missing_file(void **state)
{
    (void)state;
    refused("t.json", "{\"per_device_train_batch_size\": 1, \"deepspeed\": \"none.json\"}", 1,
            "t.json:1:36: deepspeed: none.json: No such file or directory\n");
}

/* Job files of PyTorch scripts: DDP's and FSDP's names in sections of a job. */
static void test_scripts(void **state)
{
    (void)state;
    same_job(
        "s.json",
        "{\"training\": {\"model_name\": \"gpt2\", \"max_length\": 64, \"batch_size_per_gpu\": 16, "
        "\"gradient_accumulation_steps\": 4, \"learning_rate\": 2e-5, \"num_epochs\": 3, \"warmup_ratio\": 0.1, "
        "\"weight_decay\": 0.01, \"max_grad_norm\": 1.0}, \"distributed\": {\"backend\": \"nccl\", "
        "\"find_unused_parameters\": false, \"gradient_as_bucket_view\": true, \"static_graph\": false, "
        "\"bucket_cap_mb\": 10}, \"checkpointing\": {\"save_every_n_steps\": 1000, \"checkpoint_dir\": \"c\", "
        "\"keep_last_n\": 3, \"full_state\": true}, \"logging\": {\"log_every_n_steps\": 100, "
        "\"use_tensorboard\": true, "
        "\"use_wandb\": false}, \"use_amp\": true}",
        1,
        "{\"data\": {\"sequence_length\": 64}, \"training\": {\"batch_size_per_gpu\": 16, "
        "\"gradient_accumulation_steps\": 4, \"learning_rate\": 2e-5, \"num_epochs\": 3, \"warmup_ratio\": 0.1, "
        "\"weight_decay\": 0.01, \"max_grad_norm\": 1.0, \"precision\": \"16-mixed\"}, \"ddp\": "
        "{\"bucket_cap_mb\": 10}, "
        "\"checkpointing\": {\"save_every_n_steps\": 1000, \"checkpoint_dir\": \"c\", \"keep_last_n\": 3}, "
        "\"logging\": {\"log_every_n_steps\": 100}}",
        "distributed.backend, logging.use_tensorboard (the numbers are in metrics.jsonl, and with logging.csv in a "
        "table)");
    refused(
        "s.json",
        "{\"training\": {\"model_name\": \"bert\", \"max_steps\": 1, \"use_amp\": 2}, \"distributed\": {\"port\": 1}}",
        1,
        "s.json:1:15: training.model_name: is \"bert\", but model.name is \"gpt2\" (--set model.name=gpt2); say it in "
        "one "
        "place\n"
        "s.json:1:53: training.use_amp: is 2; give one of: true, false\n"
        "s.json:1:84: distributed.port: unknown key; remove it\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scripts),       cmocka_unit_test(test_deepspeed),
        cmocka_unit_test(test_comments),      cmocka_unit_test(test_long_name),
        cmocka_unit_test(test_accelerate),    cmocka_unit_test(test_transformers),
        cmocka_unit_test(test_fsdp_strategy), cmocka_unit_test(test_other_strategies),
        cmocka_unit_test(test_limits),        cmocka_unit_test(test_two_of_one_system),
        cmocka_unit_test(test_missing_file),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
