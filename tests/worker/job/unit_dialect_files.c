/* covers: worker/job/dialects worker/job/convert.c base/config.c base/scan_member.c */
/* Files of other systems as jobs, beside a job, and within each other; what --convert and --explain
 * say of them; strategies that a job registers. */
#include "tests/lib/job_files.h"
#include "worker/job/convert.h"
#include "worker/job/dialects/dialect.h"
#include "worker/job/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define NOT_TRAINED "\"checkpointing\": {\"save_every_n_steps\": 500, \"keep_last_n\": 0}"

/* ---- DeepSpeed ---- */

static void test_deepspeed(void **state)
{
    (void)state;
    same_job(
        "ds.json",
        "{ // \"train_batch_size\" is derived, \xc3\xa9\r\n  \"train_micro_batch_size_per_gpu\": 3, /* two\r\n"
        "  lines */ \"_comment\": \"x\", \"comment\": {\"a\": 1}, \"//\": 2,\r\n"
        "  \"zero_optimization\": {\"stage\": 3, \"max_live_parameters\": 1e9,},\r\n"
        "  \"cuda_visible_devices\": 0, \"log\": {\"steps_per_print\": 5},\r\n  \"optimizer\": {\"params\": {\"lr\": "
        "\"auto\", \"max_grad_norm\": 2}}, \"gradient_clipping\": 2, \"tensor_parallel\": {\"autotp_size\": 1},\r\n"
        "  \"curriculum_learning\": {\"enabled\": false}, \"compression_training\": {\"a\": {\"enabled\": false}}\r\n}",
        1,
        "{\"training\": {\"batch_size_per_gpu\": 3, \"strategy\": \"zero3\", \"max_grad_norm\": 2}, "
        "\"fsdp\": {\"max_live_parameters\": 1000000000}}",
        "optimizer.params.max_grad_norm (gradient_clipping says it), compression_training, tensor_parallel, "
        "curriculum_learning, cuda_visible_devices (DeepSpeed ignores it, "
        "too), log (DeepSpeed ignores it, too; steps_per_print belongs at the top level)");
    same_job("ds.json",
             "{\"train_micro_batch_size_per_gpu\": 8, \"zero_optimization\": {\"stage\": 3, "
             "\"stage3_param_persistence_threshold\": \"auto\", "
             "\"stage3_prefetch_bucket_size\": \"auto\", \"stage3_model_persistence_threshold\": 1e14, "
             "\"stage3_max_reuse_distance\": 1e8, \"overlap_comm\": false, \"sub_group_size\": 1e9}}",
             1,
             "{\"training\": {\"strategy\": \"zero3\", \"max_grad_norm\": 0}, \"fsdp\": {\"overlap_comm\": false, "
             "\"param_persistence_threshold\": null, \"model_persistence_threshold\": 1e14, \"max_reuse_distance\": "
             "100000000}}",
             "zero_optimization.sub_group_size");
    same_job("ds.json", /* of other stages they say nothing */
             "{\"train_micro_batch_size_per_gpu\": 8, \"zero_optimization\": {\"stage\": 2, "
             "\"stage3_param_persistence_threshold\": \"auto\", "
             "\"stage3_max_reuse_distance\": 1e8}}",
             1, "{\"training\": {\"strategy\": \"zero2\", \"max_grad_norm\": 0}}", NULL);
    refused(
        "ds.json",
        "{\"train_batch_size\": 1,\n \"Steps_per_print\": 2, \"zero-optimization\": {}, \"fp16 \": 1,\n"
        " \"zero_optimization\": {\"stage\": [0, 1], \"stage3_max_live_parameters\": \"auto\", \"zenflow\": {\"a\": "
        "1}},"
        "\n \"compression_training\": {\"a\": {\"b\": {\"enabled\": true}}}, \"tensor_parallel\": {\"autotp_size\": "
        "2},\n"
        " \"prescale_gradients\": true, \"amp\": {\"enabled\": true, \"opt_level\": \"O3\"},\n"
        " \"torch_autocast\": {\"enabled\": true, \"dtype\": \"float32\"}}",
        1,
        "ds.json:2:2: Steps_per_print: unknown key; did you mean steps_per_print?\n"
        "ds.json:2:24: zero-optimization: unknown key; did you mean zero_optimization?\n"
        "ds.json:2:49: fp16 : unknown key; did you mean fp16?\n"
        "ds.json:3:24: zero_optimization.stage: is a list, of which DeepSpeed's autotuning would choose; write one of "
        "0, 1, 2, 3\n"
        "ds.json:3:41: zero_optimization.stage3_max_live_parameters: \"auto\" means nothing here; give a number, or "
        "remove it\n"
        "ds.json:3:79: zero_optimization.zenflow: beyond scope; remove it\n"
        "ds.json:4:2: compression_training: beyond scope: models are not compressed while they train; remove it\n"
        "ds.json:4:59: tensor_parallel: beyond scope: a layer is not split over ranks; write autotp_size 1, stage 3 "
        "shards its weights\n"
        "ds.json:5:30: amp: opt_level O3 has no fp32 masters; write O1 or O2\n"
        "ds.json:6:38: torch_autocast.dtype: is \"float32\"; give bfloat16 or float16\n");
    refused(
        "ds.json",
        "{\"zero_optimization\": {\"stage\": 3, \"stage3_max_reuse_distance\": 1, \"max_reuse_distance\": 2}, "
        "\"train_batch_size\": 1}",
        1,
        "ds.json:1:36: zero_optimization.stage3_max_reuse_distance: zero_optimization.max_reuse_distance says another "
        "value (ds.json:1:68); say it in one place\n");
    refused(
        "ds.json", "{\"zero_optimization\": {\"stage\": 2}, \"prescale_gradients\": true, \"train_batch_size\": 1}", 1,
        "ds.json:1:37: prescale_gradients: DeepSpeed does not take it with reduce_scatter at stage 2; remove one of "
        "them\n");
    refused("ds.json", "{\"train_micro_batch_size_per_gpu\": \"auto\"}", 1,
            "ds.json:1:2: train_micro_batch_size_per_gpu: is \"auto\", and nothing says the batch; add "
            "training.batch_size_per_gpu to the job\n");
    refused("ds.json", "{\n \"train_batch_size\": MY_BATCH_SIZE,\n}", 1,
            "ds.json:2:22: not JSON: looks like a template, fill in MY_BATCH_SIZE\n");
    refused("own.json", "{\"training\": {}, // mine\n}", 1,
            "own.json:1:18: comments are not part of JSON; remove it\n");
}

/* ---- accelerate ---- */

/* DeepSpeed's defaults say nothing of a run that is not in fp16. */
static void test_idle_scale(void **state)
{
    (void)state;
    static const struct {
        const char *fp16, *more;
        double least;
    } cases[] = {{"\"auto\"", "", -1},
                 {"false", "", -1},
                 {"true", "", 1},
                 {"\"auto\"", ", \"training\": {\"precision\": 16}", 1},
                 {"\"auto\"", ", \"training\": {\"precision\": \"fp16\"}", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        struct job job;
        (void)snprintf(text, sizeof text,
                       "{\"train_micro_batch_size_per_gpu\": 8, \"fp16\": {\"enabled\": %s, \"loss_scale\": 0, "
                       "\"loss_scale_window\": 1000, \"initial_scale_power\": 16, \"hysteresis\": 2, "
                       "\"min_loss_scale\": 1}%s}",
                       cases[i].fp16, cases[i].more);
        write_file("ds.json", text);
        opened(&job, "ds.json", NULL, 1);
        assert_null(job.idle_keys);
        assert_true(job.loss_scaling.min_loss_scale == cases[i].least);
        job_close(&job);
    }
    struct job job;
    write_file("ds.json", "{\"train_micro_batch_size_per_gpu\": 8, \"fp16\": {\"enabled\": \"auto\", "
                          "\"min_loss_scale\": 2}}");
    opened(&job, "ds.json", NULL, 1);
    assert_string_equal(job.idle_keys, "fp16.min_loss_scale (goes with training.precision 16-mixed or 16-true)");
    job_close(&job);
}

static void test_accelerate(void **state)
{
    (void)state;
    same_job(
        "a.yaml",
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\ndowncast_bf16: 'no'\nfsdp_config:\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_sharding_strategy: 2\n"
        "  fsdp_backward_prefetch_policy: BACKWARD_POST\n  fsdp_forward_prefetch: true\n  fsdp_offload_params: false\n"
        "  fsdp_transformer_layer_cls_to_wrap: GPT2Block\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
        "machine_rank: 0\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 4\ntpu_env: []\nuse_cpu: true\n",
        4,
        "{\"training\": {\"strategy\": \"shard_grad_op\", \"precision\": \"bf16-mixed\", \"device\": \"cpu\"}, "
        "\"fsdp\": {\"backward_prefetch\": \"BACKWARD_POST\", \"forward_prefetch\": true}}",
        NULL);
    same_job("a.yml",
             "distributed_type: NO\nmixed_precision: no\nnum_processes: 1\nmegatron_lm_config: {}\n"
             "fsdp_config: {fsdp_offload_params: true}\ndeepspeed_config: {}\n",
             1, "{\"training\": {\"strategy\": \"single_device\", \"precision\": \"32-true\"}}",
             "fsdp_config (distributed_type is not FSDP)");
    same_job("a.yaml", "distributed_type: MULTI_CPU\nnum_processes: -1\ndynamo_backend: INDUCTOR\n", 3,
             "{\"training\": {\"strategy\": \"ddp\"}}", "dynamo_backend (nothing is compiled while it trains)");
    same_job(
        "a.yaml",
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}\nnum_processes: 4\n"
        "parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 2\n"
        "  parallelism_config_tp_size: 1\n",
        4, "{\"training\": {\"strategy\": \"hybrid_shard\"}, \"fsdp\": {\"device_mesh\": [2, 2]}}", NULL);
    same_job(
        "a.yaml",
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, gradient_clipping: 0.5, zero3_init_flag: true,"
        " gradient_accumulation_steps: 2, offload_param_device: none}\n",
        2, "{\"training\": {\"strategy\": \"zero3\", \"max_grad_norm\": 0.5, \"gradient_accumulation_steps\": 2}}",
        NULL);
    write_file("inner.json", "{\"zero_optimization\": {\"stage\": 1}, \"gradient_clipping\": 3, "
                             "\"train_micro_batch_size_per_gpu\": 8}");
    same_job("a.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: inner.json\n", 2,
             "{\"training\": {\"strategy\": \"zero1\", \"max_grad_norm\": 3}}", NULL);
    refused("a.yaml",
            "num_processes: 3\nnum_machines: 2\nunknown_key: 1\nmixed_precision: fp8\nmachine_rank: 1\n"
            "compute_environment: AMAZON_SAGEMAKER\n",
            1,
            "a.yaml:1:1: num_processes: 3 is not a multiple of num_machines 2\n"
            "a.yaml:3:1: unknown_key: unknown key; remove it\n"
            "a.yaml:4:1: mixed_precision: is \"fp8\": fp8 is not supported; write bf16\n"
            "a.yaml:6:1: compute_environment: is \"AMAZON_SAGEMAKER\": SageMaker is not supported; write "
            "LOCAL_MACHINE, and "
            "start dtrun there\n"
            "a.yaml: accelerate.distributed_type: missing; add one of NO, MULTI_GPU, MULTI_CPU, FSDP, DEEPSPEED\n");
    refused("a.yaml", "distributed_type: MULTI_GPU\nnum_processes: 4\nnum_machines: 2\n", 2,
            "a.yaml:2:1: num_processes: is 4, and there are 2 ranks; start them with dtrun --nnodes=2 "
            "--nproc_per_node=2\n");
    refused(
        "a.yaml",
        "distributed_type: FSDP\nfsdp_config: {fsdp_reshard_after_forward: true, fsdp_unknown: 1, "
        "fsdp_transformer_layer_cls_to_wrap: 'A,B'}\nparallelism_config: {parallelism_config_tp_size: 2}\n",
        1,
        "a.yaml:2:15: fsdp_config.fsdp_reshard_after_forward: of fsdp_version 1 it is the name of a strategy, "
        "FULL_SHARD; with true or false write fsdp_version 2\n"
        "a.yaml:2:49: fsdp_config.fsdp_unknown: unknown key; remove it\n"
        "a.yaml:2:66: fsdp_config.fsdp_transformer_layer_cls_to_wrap: the layers of gpt2 are GPT2Block; write that, or "
        "remove it\n"
        "a.yaml:3:22: parallelism_config.parallelism_config_tp_size: is 2: a layer is not split over ranks; write 1, "
        "and FSDP shards its weights\n");
    refused("a.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: missing.json\n", 1,
            "a.yaml:3:3: deepspeed_config.deepspeed_config_file: missing.json: No such file or directory\n");
    refused(
        "a.yaml", "distributed_type: MEGATRON_LM\nmegatron_lm_config: {a: 1}\n", 1,
        "a.yaml:1:1: distributed_type: is \"MEGATRON_LM\": tensor and pipeline parallelism are beyond scope; the "
        "nearest is FSDP\na.yaml:2:1: megatron_lm_config: tensor and pipeline parallelism are beyond scope; remove it, "
        "the nearest is FSDP\n");
}

/* ---- FSDP's blocks ---- */

static void test_blocks(void **state)
{
    (void)state;
    same_job("f.json",
             "{\"fsdp_auto_wrap_policy\": \"SIZE_BASED_WRAP\", \"fsdp_forward_prefetch\": \"True\", "
             "\"fsdp_offload_params\": "
             "\"False\", \"activation_checkpointing\": true, \"_note\": {\"a\": 1}}",
             2,
             "{\"training\": {\"strategy\": \"full_shard\"}, \"fsdp\": {\"forward_prefetch\": true, "
             "\"auto_wrap_policy\": \"size_based\"}, \"activation_checkpointing\": {\"enabled\": true}}",
             NULL);
    same_job("f.json", "{\"fsdp_sharding_strategy\": 1, \"fsdp_min_num_params\": 2000, \"limit_all_gathers\": true}", 2,
             "{\"training\": {\"strategy\": \"full_shard\"}, "
             "\"fsdp\": {\"auto_wrap_policy\": \"size_based\", \"min_num_params\": 2000}}",
             NULL);
    same_job("f.json", "{\"fsdp_auto_wrap_policy\": \"NO_WRAP\", \"fsdp_min_num_params\": 0}", 2,
             "{\"training\": {\"strategy\": \"full_shard\"}, \"fsdp\": {\"auto_wrap_policy\": \"none\"}}", NULL);
    same_job("f.json", "{\"fsdp_version\": 2, \"reshard_after_forward\": 2}", 4,
             "{\"training\": {\"strategy\": \"full_shard\"}, \"fsdp\": {\"reshard_after_forward\": 2}}", NULL);
    same_job("f.json", "{\"fsdp_version\": \"1\", \"reshard_after_forward\": \"HYBRID_SHARD\"}", 2,
             "{\"training\": {\"strategy\": \"hybrid_shard\"}}", NULL);
    refused(
        "f.json",
        "{\"fsdp_version\": 2, \"reshard_after_forward\": \"FULL_SHARD\", \"xla\": true, \"state_dict_type\": 2}", 1,
        "f.json:1:21: reshard_after_forward: of fsdp_version 2 it is true, false, or a number of ranks; with names of "
        "strategies write 1 "
        "there\nf.json:1:60: xla: is true: XLA is not supported; remove it, and ranks compute on CPUs or CUDA GPUs\n"
        "f.json:1:73: state_dict_type: is 2: its slices load on one number of ranks only; write 3\n");
}

/* ---- Hugging Face ---- */

static void test_training_arguments(void **state)
{
    (void)state;
    same_job(
        "t.yaml",
        "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nlearning_rate: 2e-5\nweight_decay: 1.e-2\n"
        "num_train_epochs: 1\nmax_steps: -1\nlr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: "
        "5e-6}\n"
        "warmup_steps: 0.25\noptim: adamw_torch_fused\nbf16: true\nfp16: false\ntf32: true\ntorch_dtype: bfloat16\n"
        "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\nlogging_steps: 1.0\n"
        "eval_strategy: 'no'\neval_steps: 7\nsave_strategy: steps\nsave_steps: 50\nsave_total_limit: 2\nseed: 7\n"
        "fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_backward_prefetch: NO_PREFETCH}\nmax_seq_length: 512\n"
        "ddp_timeout: 180000000\nreport_to: [wandb]\npush_to_hub: true\nhub_model_id: a/b\nwandb_project:\n"
        "resume_from_checkpoint: false\n",
        2,
        "{\"training\": {\"batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, \"learning_rate\": 2e-5, "
        "\"weight_decay\": 0.01, \"num_epochs\": 1, \"max_steps\": -1, \"lr_scheduler_type\": \"cosine\", "
        "\"min_lr_ratio\": 0.25, \"warmup_ratio\": 0.25, \"precision\": \"bf16-mixed\", \"matmul_precision\": "
        "\"high\", \"seed\": 7, \"strategy\": \"full_shard\", \"collective_timeout\": 0, \"loss_normalization\": "
        "\"global_tokens\"}, \"fsdp\": "
        "{\"backward_prefetch\": \"none\"}, \"activation_checkpointing\": {\"enabled\": true}, \"logging\": "
        "{\"log_every_n_steps\": 1}, \"checkpointing\": {\"save_every_n_steps\": 50, \"keep_last_n\": 2, \"resume\": "
        "\"never\"}, \"data\": {\"sequence_length\": 512}}",
        "torch_dtype (masters are kept in fp32), report_to (the numbers are in metrics.jsonl, and with logging.csv in "
        "a table), push_to_hub (nothing is uploaded)");
    refused("t.yaml",
            "num_train_epochs: 1\nfsdp: full_shard\nfsdp_config: {transformer_layer_cls_to_wrap: [GPT2Block, Foo]}\n",
            1,
            "t.yaml:3:15: fsdp_config.transformer_layer_cls_to_wrap: the units of gpt2 are its layers, GPT2Block; "
            "write that alone\n");
    struct job job; /* nothing else tells whose file it is */
    write_file("d.json", "{\"elasticity\": {\"enabled\": true, \"max_train_batch_size\": 24, \"micro_batch_sizes\": "
                         "[2, 3]}}");
    write_file("j.json", "{\"training\": {\"seed\": 1}}");
    opened(&job, "j.json", "d.json", 1);
    job_close(&job);
    /* what the file leaves out is as there */
    same_job("t.json", "{\"num_train_epochs\": 2}", 1,
             "{\"training\": {\"num_epochs\": 2, \"loss_normalization\": \"global_tokens\"}, \"logging\": "
             "{\"log_every_n_steps\": 500}, " NOT_TRAINED "}",
             NULL);
    same_job("t.json", "{\"micro_batch_size\": 3, \"save_strategy\": \"no\", \"bf16\": \"auto\"}", 1,
             "{\"training\": {\"batch_size_per_gpu\": 3, \"precision\": \"bf16-mixed\", \"loss_normalization\": "
             "\"global_tokens\"}, \"logging\": "
             "{\"log_every_n_steps\": 500}, \"checkpointing\": {\"save_every_n_steps\": 0, \"keep_last_n\": 0}}",
             NULL);
    write_file("inner.json", "{\"train_micro_batch_size_per_gpu\": \"auto\", \"zero_optimization\": {\"stage\": 2}, "
                             "\"gradient_clipping\": \"auto\", \"steps_per_print\": 9}");
    same_job("t.yaml", "per_device_train_batch_size: 5\nmax_grad_norm: 0.5\ndeepspeed: inner.json\n", 2,
             "{\"training\": {\"batch_size_per_gpu\": 5, \"strategy\": \"zero2\", \"max_grad_norm\": 0.5, "
             "\"loss_normalization\": \"global_tokens\"}, \"logging\": "
             "{\"log_every_n_steps\": 9}, " NOT_TRAINED "}",
             NULL);
    same_job("t.json", "{\"num_train_epochs\": 2, \"deepspeed\": {\"zero_optimization\": {\"stage\": 1}}}", 2,
             "{\"training\": {\"num_epochs\": 2, \"strategy\": \"zero1\", \"max_grad_norm\": 0, "
             "\"loss_normalization\": \"global_tokens\"}, \"logging\": "
             "{\"log_every_n_steps\": 500}, " NOT_TRAINED "}",
             NULL);
    refused(
        "t.yaml",
        "model_name_or_path: some/model\nlearning_rate: fast\nlogging_steps: 0.1\neval_strategy: some\noptim: galore\n"
        "fsdp: full_shard offload other\npacking: true\nlearning_rat: 1\nwarmup_steps: many\nlr_scheduler_kwargs: "
        "{min_lr: "
        "1}\n",
        2,
        "t.yaml:1:1: model_name_or_path: some/model is no folder here, and nothing is fetched; run: hf download "
        "some/model "
        "--local-dir DIR, then add --set model.load=DIR\n"
        "t.yaml:2:16: learning_rate: is \"fast\"; give a number from 0 to 1e+30\n"
        "t.yaml:3:1: logging_steps: a share of all steps, which max_steps alone says; give a number of steps\n"
        "t.yaml:4:1: eval_strategy: is \"some\"; give one of: steps, no, false, epoch\n"
        "t.yaml:5:1: optim: is \"galore\": there are adamw_torch, adamw_torch_fused, sgd, adagrad, lion_32bit "
        "and muon; write one of them\n"
        "t.yaml:6:1: fsdp: other is none of full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2, "
        "offload, auto_wrap\n"
        "t.yaml:7:1: packing: is true: texts are packed anyway, and data.document_mask keeps documents apart; remove "
        "it\n"
        "t.yaml:8:1: learning_rat: unknown key; did you mean learning_rate?\n"
        "t.yaml:9:1: warmup_steps: is \"many\"; give a number\n"
        "t.yaml:10:23: lr_scheduler_kwargs.min_lr: must lie between 0 and the learning rate, 5e-05\n");
    refused("t.json",
            "{\"learning_rate\": 1e-3, \"accelerate_launch_args\": {\"use_fsdp\": true, \"config_file\": \"x\", "
            "\"fsdp_backward_prefetch_policy\": \"TRANSFORMER_BASED_WRAP\"}}",
            1,
            "t.json:1:90: accelerate_launch_args.fsdp_backward_prefetch_policy: is \"TRANSFORMER_BASED_WRAP\"; give "
            "one of: "
            "BACKWARD_PRE, BACKWARD_POST, NO_PREFETCH\n");
    refused("t.json", "{\"gradient_checkpointing\": true, \"fsdp_config\": {\"activation_checkpointing\": false}}", 1,
            "t.json:1:50: fsdp_config.activation_checkpointing: is false, but gradient_checkpointing is true "
            "(t.json:1:2); say "
            "it in one place\n");
}

/* ---- Lightning ---- */

/* what Lightning does where a file says nothing */
#define EACH_EPOCH "\"checkpointing\": {\"save_every_n_epochs\": 1, \"keep_last_n\": 1}, "
#define EVALUATED "\"eval_every_n_epochs\": 1, \"num_sanity_val_steps\": 2"

static void test_lightning(void **state)
{
    (void)state;
    same_job(
        "l.yaml",
        "seed_everything: 3\nckpt_path: null\ntrainer:\n  accelerator: cpu\n  devices: 2\n  num_nodes: 1\n"
        "  strategy: deepspeed_stage_2\n  precision: bf16\n  max_epochs: 4\n  accumulate_grad_batches: 2\n"
        "  gradient_clip_val: 0.5\n  val_check_interval: 10\n  limit_val_batches: 6\n  limit_train_batches: 1.0\n"
        "  log_every_n_steps: 5\n  sync_batchnorm: true\n  fast_dev_run: false\n  max_time: null\n"
        "  callbacks:\n    - class_path: RichProgressBar\n    - class_path: a.b.Mine\n"
        "    - class_path: lightning.pytorch.callbacks.ModelCheckpoint\n      init_args: {every_n_train_steps: 20, "
        "save_top_k: -1}\n  logger:\n    class_path: CSVLogger\n"
        "optimizer:\n  class_path: torch.optim.Adam\n  init_args: {lr: 1.e-4, betas: [0.8, 0.9], fused: true}\n"
        "lr_scheduler: {class_path: CosineAnnealingLR, init_args: {T_max: 4}}\n",
        2,
        "{\"training\": {\"seed\": 3, \"device\": \"cpu\", \"strategy\": \"deepspeed_stage_2\", \"precision\": "
        "\"bf16-mixed\", "
        "\"num_epochs\": 4, \"gradient_accumulation_steps\": 2, \"max_grad_norm\": 0.5, \"eval_batches\": 6, "
        "\"sync_batch_norm\": true, \"learning_rate\": 1e-4, \"adam_beta1\": 0.8, \"adam_beta2\": 0.9, "
        "\"eval_every_n_steps\": 5, \"num_sanity_val_steps\": 2, \"lr_scheduler_type\": "
        "\"cosine_annealing\"}, \"scheduler\": {\"interval\": \"epoch\", \"T_max\": 4}, \"optimizer\": {\"name\": "
        "\"adam\"}, "
        "\"logging\": {\"log_every_n_steps\": 5, \"csv\": true}, \"checkpointing\": {\"save_every_n_steps\": 20, "
        "\"keep_last_n\": 0}}",
        "trainer.callbacks (Mine is Python)");
    same_job("l.yaml", "fit:\n  seed_everything: 3\n  trainer:\n    max_steps: 5\n    gradient_clip_val: 1\n", 1,
             "{" EACH_EPOCH "\"training\": {" EVALUATED ", \"seed\": 3, \"max_steps\": 5, \"max_grad_norm\": 1}}",
             NULL);
    refused("l.yaml", "fit:\n  trainer: {max_step: 5}\n", 1,
            "l.yaml:2:13: fit.trainer.max_step: unknown key; did you mean max_steps?\n");
    refused("l.yaml", "fit:\n  trainer: {max_steps: 5}\ntrainer: {max_steps: 6}\n", 1,
            "l.yaml:2:3: fit.trainer: stands outside of fit, too; give it once\n");
    same_job("l.yaml",
             "_target_: pytorch_lightning.Trainer\ngpus: null\nmax_steps: null\nprecision: 32\nprocess_position: 1\n",
             1,
             "{" EACH_EPOCH "\"training\": {" EVALUATED
             ", \"num_epochs\": 1000, \"max_grad_norm\": 0, \"precision\": \"32-true\"}}",
             "process_position (there are no bars)");
    same_job("l.yaml",
             "trainer:\n  max_steps: 5\n  devices: [0, 1]\n  strategy:\n    class_path: "
             "lightning.pytorch.strategies.FSDPStrategy\n"
             "    init_args: {sharding_strategy: SHARD_GRAD_OP}\n",
             2,
             "{" EACH_EPOCH "\"training\": {" EVALUATED
             ", \"max_steps\": 5, \"strategy\": \"shard_grad_op\", \"max_grad_norm\": 0}}",
             NULL);
    same_job("l.yaml",
             "trainer:\n  max_steps: 5\n  strategy:\n    class_path: lightning.pytorch.strategies.DDPStrategy\n"
             "    init_args:\n      ddp_comm_hook: "
             "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.powerSGD_hook\n"
             "      ddp_comm_wrapper: torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_wrapper\n"
             "      ddp_comm_state:\n        class_path: PowerSGDState\n        init_args: {process_group: null, "
             "matrix_approximation_rank: 4, start_powerSGD_iter: 50}\n"
             "      model_averaging_period: 3\n      find_unused_parameters: true\n      bucket_cap_mb: 10\n",
             2,
             "{" EACH_EPOCH "\"training\": {" EVALUATED
             ", \"max_steps\": 5, \"strategy\": \"ddp\", \"max_grad_norm\": 0}, \"ddp\": {\"comm_hook\": "
             "\"power_sgd\", \"comm_wrapper\": \"bf16_compress\", "
             "\"bucket_cap_mb\": 10}, \"power_sgd\": {\"matrix_approximation_rank\": 4, \"start_powerSGD_iter\": 50}, "
             "\"local_sgd\": {\"period\": 3}}",
             "trainer.strategy.init_args.find_unused_parameters (these models use all their parameters)");
    refused("l.yaml",
            "seed_everything: true\nmodel:\n  class_path: a.Net\ndata:\n  x: {class_path: b.Data}\n  y: ???\ntrainer:\n"
            "  devices: 4\n  num_nodes: 2\n  limit_train_batches: 1.5\n  max_time: 60\n  callbacks: [{class_path: "
            "EarlyStopping}]\n  strategy: {class_path: a.Own}\n  plugins: [x]\n  max_epoch: 3\n  lr: 1\noptimizer: "
            "{class_path: "
            "a.Prodigy}\n",
            2,
            "l.yaml:6:3: data.y: is ???, Hydra's word for a value that must be given; give it\n"
            "l.yaml:8:3: trainer.devices: 4 devices * 2 nodes, and there are 2 ranks; start them with dtrun --nnodes=2 "
            "--nproc_per_node=4\n"
            "l.yaml:10:3: trainer.limit_train_batches: is 1.5; give a number of batches, or a share of them up to 1.0\n"
            "l.yaml:11:3: trainer.max_time: is 60; give a time: \"DD:HH:MM:SS\", or an object of weeks, days, hours, "
            "minutes, "
            "seconds\n"
            "l.yaml:12:3: trainer.callbacks.EarlyStopping: nothing is watched; give early_stopping.monitor, such as "
            "val_loss\n"
            "l.yaml:13:3: trainer.strategy: Own: there are DDPStrategy, FSDPStrategy, DeepSpeedStrategy and "
            "SingleDeviceStrategy; write one of them, or a name of train --list-strategies\n"
            "l.yaml:14:3: trainer.plugins: plugins of Python are not loaded; remove it\n"
            "l.yaml:15:3: trainer.max_epoch: unknown key; did you mean max_epochs?\n"
            "l.yaml:16:3: trainer.lr: unknown key; remove it\n"
            "l.yaml:17:1: optimizer: Prodigy: there are torch.optim.AdamW, Adam, SGD, Adagrad, and Lion; write one of "
            "them\n");
}

/* ---- several files ---- */

static void test_beside(void **state)
{
    (void)state;
    struct job job;
    write_file("job.json", "{\"training\": {\"batch_size_per_gpu\": 4}}");
    write_file("a.yaml", "distributed_type: MULTI_CPU\nmixed_precision: bf16\n");
    opened(&job, "job.json", "a.yaml", 2);
    assert_string_equal(job.training.strategy, "ddp");
    assert_string_equal(job.training.precision, "bf16-mixed");
    job_close(&job);
    write_file("other.json", "{\"training\": {}}");
    assert_string_equal(open_as_job(&job, "job.json", "other.json", 1),
                        "other.json: beside a job file --config takes a file of DeepSpeed, Hugging Face, accelerate or "
                        "Lightning\n");
    write_file("job.yaml", "training:\n  learning_rate: 2e-5\n  precision: fp32\n"); /* ours, in YAML */
    assert_string_equal(
        open_as_job(&job, "job.yaml", "a.yaml", 2),
        "a.yaml:2:1: mixed_precision: is \"bf16\", but training.precision is \"fp32\" (job.yaml:3:3); say it "
        "in one place\n");
    opened(&job, "job.yaml", NULL, 1);
    assert_true(job.training.learning_rate == 2e-5);
    assert_string_equal(job.name, "job");
    job_close(&job);
    refused("n.json", "{\"num-layers\": 2, \"hidden_size\": 4, \"zero_optimization\": {\"stage\": 1}}", 1,
            "n.json: a gpt-neox file; take over its DeepSpeed part with train --convert\n");
}

/* ---- convert, explain ---- */

static void converts(const char *name, const char *text, const char *job, const char *wanted_notes)
{
    struct dt_text out, notes;
    struct dt_error err = {0};
    struct job_arguments args = {.path = path_of(name)};
    struct job again;
    write_file(name, text);
    dt_text_init(&out);
    dt_text_init(&notes);
    assert_int_equal(job_convert(&args, &out, &notes, &err), 0);
    assert_string_equal(dt_text_str(&out), job);
    char *said = strdup(plain(dt_text_str(&notes))), *names = strstr(said, "model.name ("), *end;
    if (names != NULL && (end = strchr(names, ')')) != NULL) { /* all models, which grow */
        memcpy(names + 12, "NAMES", 5);
        memmove(names + 17, end, strlen(end) + 1);
    }
    assert_string_equal(said, wanted_notes);
    free(said);
    write_file("converted.json", out.data);
    opened(&again, "converted.json", NULL, 1);
    job_close(&again);
    dt_text_clear(&out);
    dt_text_clear(&notes);
}

/* What does not map, and what is missing, are lines; the rest is a job. */
static void test_convert(void **state)
{
    (void)state;
    converts("t.json",
             "{\"distributed_type\": \"FSDP\", \"num_processes\": 8, \"mixed_precision\": \"bf16\", \"fsdp_config\": "
             "{\"fsdp_forward_prefetch\": \"yes\", \"fsdp_sharding_strategy\": 2}, \"commands\": \"x\"}",
             "{\n  \"training\": {\n    \"strategy\": \"shard_grad_op\",\n    \"precision\": \"bf16-mixed\"\n  }\n}\n",
             "t.json:1:93: fsdp_config.fsdp_forward_prefetch: is \"yes\"; give one of: true, false\n"
             "t.json: data.train: missing; add it (path or glob of shards or texts to train on, or a list of them with "
             "weights)\nt.json: model.name: missing; give model.name (NAMES) or model.load (a Hugging Face "
             "folder)\ncommands (dtrun's matter): no effect\n");
}

/* The batch of all ranks stays that: it is not cut for the one rank that converts. */
static void test_convert_batch(void **state)
{
    (void)state;
    static const char missing[] =
        "d.json: data.train: missing; add it (path or glob of shards or texts to train on, or a list of them with "
        "weights)\nd.json: model.name: missing; give model.name (NAMES) or model.load (a Hugging Face folder)\n";
    converts("d.json", "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 8, \"gradient_clipping\": 1}",
             "{\n  \"training\": {\n    \"batch_size_per_gpu\": 8,\n    \"max_grad_norm\": 1\n  },\n  "
             "\"train_batch_size\": 64\n}\n",
             missing);
    converts("d.json",
             "{\"zero_optimization\": {\"stage\": 1}, \"elasticity\": {\"enabled\": true, \"max_gpus\": 8, "
             "\"max_train_batch_size\": 48, \"micro_batch_sizes\": [2, 4, 6], \"version\": 0.1}}",
             "{\n  \"training\": {\n    \"strategy\": \"zero1\",\n    \"max_grad_norm\": 0\n  },\n  \"elasticity\": "
             "{\"enabled\":true,\"max_gpus\":8,\"max_train_batch_size\":48,\"micro_batch_sizes\":[2,4,6],"
             "\"version\":0.1}\n}\n",
             missing);
}

/* The evaluations that Lightning makes of itself are in the job, as its data come later; not where the data are there,
 * and data.val is not. */
#define MISSING                                                                                                        \
    "l.yaml: data.train: missing; add it (path or glob of shards or texts to train on, or a list of them with "        \
    "weights)\nl.yaml: model.name: missing; give model.name (NAMES) or model.load (a Hugging Face folder)\n"
static void test_convert_evaluations(void **state)
{
    (void)state;
    static const char *const says[] = {"", "  check_val_every_n_epoch: 1\n  val_check_interval: 1.0\n"};
    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++) {
        char text[256];
        (void)snprintf(text, sizeof text, "trainer:\n  max_epochs: 2\n%s", says[i]);
        converts("l.yaml", text,
                 "{\n  \"training\": {\n    \"num_epochs\": 2,\n    \"max_grad_norm\": 0,\n"
                 "    \"eval_every_n_epochs\": 1,\n    \"num_sanity_val_steps\": 2\n  },\n"
                 "  \"checkpointing\": {\n    \"save_every_n_epochs\": 1,\n    \"keep_last_n\": 1\n  }\n}\n",
                 "l.yaml:1:1: trainer: there is nothing to evaluate on; give data.val\n" MISSING);
    }
    converts("l.yaml", "trainer: {max_epochs: 2, limit_val_batches: 0}\n",
             "{\n  \"training\": {\n    \"num_epochs\": 2,\n    \"max_grad_norm\": 0\n  },\n"
             "  \"checkpointing\": {\n    \"save_every_n_epochs\": 1,\n    \"keep_last_n\": 1\n  }\n}\n",
             MISSING);
    converts("l.yaml",
             "trainer: {max_epochs: 2}\noptimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}\nlr_scheduler: "
             "{class_path: lightning.pytorch.cli.ReduceLROnPlateau, init_args: {monitor: val_loss}}\n",
             "{\n  \"training\": {\n    \"num_epochs\": 2,\n    \"learning_rate\": 0.1,\n"
             "    \"lr_scheduler_type\": \"reduce_lr_on_plateau\",\n    \"max_grad_norm\": 0,\n"
             "    \"eval_every_n_epochs\": 1,\n    \"num_sanity_val_steps\": 2\n  },\n"
             "  \"optimizer\": {\n    \"name\": \"sgd\"\n  },\n  \"scheduler\": {\n    \"monitor\": \"val_loss\"\n"
             "  },\n  \"checkpointing\": {\n    \"save_every_n_epochs\": 1,\n    \"keep_last_n\": 1\n  }\n}\n",
             "l.yaml:1:1: trainer: there is nothing to evaluate on; give data.val\n"
             "l.yaml:3:1: lr_scheduler: reduce_lr_on_plateau looks at evaluations; give data.val\n" MISSING);
}

static void test_convert_neox(void **state)
{
    (void)state;
    converts(
        "n.yml",
        "# gpt-neox\n{\n \"num-layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 2, \"seq-length\": 128,\n"
        " \"max_position_embeddings\": 128, \"train-iters\": 10, \"lr-decay-style\": \"cosine\", \"min_lr\": 1.0e-5,\n"
        " \"warmup\": 0.01, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 1.0e-4}}, \"pipe-parallel-size\": "
        "2,\n"
        " \"checkpoint-factor\": 5, \"data-path\": \"shards\", \"gpt_j_residual\": true,\n}\n",
        "{\n  \"model\": {\n    \"name\": \"gpt2\",\n    \"n_layer\": 2,\n    \"n_head\": 2,\n    \"n_embd\": 64,\n"
        "    \"n_positions\": 128,\n    \"attn_pdrop\": 0.1,\n    \"embd_pdrop\": 0.1,\n    \"resid_pdrop\": 0.1\n  "
        "},\n"
        "  \"data\": {\n    \"train\": \"shards\",\n    \"sequence_length\": 128\n  "
        "},\n"
        "  \"training\": {\n    \"max_steps\": 10,\n    \"learning_rate\": 0.0001,\n    \"lr_scheduler_type\": "
        "\"cosine\",\n    \"warmup_ratio\": 0.01,\n    \"min_lr_ratio\": 0.1,\n    \"weight_decay\": 0.01,\n    "
        "\"max_grad_norm\": 1\n  },\n"
        "  \"optimizer\": {\n    \"name\": \"adamw\"\n  },\n  \"checkpointing\": {\n    \"save_every_n_steps\": 5\n"
        "  }\n}\n",
        "n.yml:5:75: pipe-parallel-size: is 2: beyond scope: a layer is not split over ranks; write 1, and FSDP or "
        "ZeRO "
        "shards its weights\ngpt_j_residual (there is no such key here): no effect\n");
}

/* A short file of gpt-neox with these keys: a part of the job, and the lines beside it. */
static void converts_neox(const char *keys, const char *job, const char *wanted_notes)
{
    char text[512];
    struct dt_text out, notes;
    struct dt_error err = {0};
    struct job_arguments args = {.path = path_of("n.yml")};
    (void)snprintf(text, sizeof text, "{\"num-layers\": 2, \"train-iters\": 10, \"data-path\": \"x\",\n%s}\n", keys);
    write_file("n.yml", text);
    dt_text_init(&out);
    dt_text_init(&notes);
    assert_int_equal(job_convert(&args, &out, &notes, &err), 0);
    assert_string_equal(plain(dt_text_str(&notes)), wanted_notes);
    if (strstr(dt_text_str(&out), job) == NULL) {
        fail_msg("%s is not in %s", job, out.data);
    }
    dt_text_clear(&out);
    dt_text_clear(&notes);
}

static void test_convert_neox_decay(void **state)
{
    (void)state;
    converts_neox("\"lr-decay-iters\": 10", "\"max_steps\": 10", "");
    converts_neox("\"lr-decay-iters\": 320000", "\"max_steps\": 10",
                  "n.yml:2:1: lr-decay-iters: the schedule ends with the run; write the number of train_iters, or "
                  "remove it\n");
}

static void test_convert_neox_attention(void **state)
{
    (void)state;
    static const char *const taken[] = {"[[[\"global\"], 2]]", "[[[\"flash\"], \"all\"]]", "[\"global\", \"flash\"]"},
                             *const others[] = {"[[[\"global\", \"local\"], 1]]", "[[[\"sparse_fixed\"], \"all\"]]",
                                                "[[[\"global\"], 1], [[\"gmlp\"], 1]]", "\"local\""};
    char keys[128];
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        (void)snprintf(keys, sizeof keys, "\"attention-config\": %s", taken[i]);
        converts_neox(keys, "\"n_layer\": 2", "");
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        (void)snprintf(keys, sizeof keys, "\"attention-config\": %s", others[i]);
        converts_neox(
            keys, "\"n_layer\": 2",
            "n.yml:2:1: attention-config: gpt2's layers look at all positions; write global for each layer, or "
            "remove it\n");
    }
}

/* A key that a file does not say has gpt-neox's default, not DeepSpeed's. */
static void test_convert_neox_defaults(void **state)
{
    (void)state;
    converts_neox("\"zero_optimization\": {\"stage\": 1}", "\"warmup_ratio\": 0.01,\n", "");
    converts_neox("\"zero_optimization\": {\"stage\": 1}", "\"weight_decay\": 0.01,\n    \"max_grad_norm\": 1\n", "");
    converts_neox("\"zero_optimization\": {\"stage\": 1}",
                  "\"attn_pdrop\": 0.1,\n    \"embd_pdrop\": 0.1,\n    \"resid_pdrop\": 0.1\n", "");
    converts_neox("\"gradient_clipping\": 0.5, \"weight-decay\": 0, \"warmup\": 0.1",
                  "\"warmup_ratio\": 0.1,\n    \"weight_decay\": 0,\n    \"max_grad_norm\": 0.5\n", "");
    converts_neox("\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 3}}",
                  "\"warmup_steps\": 3,\n    \"weight_decay\": 0.01,\n", "");
    converts_neox("\"attention-dropout\": 0, \"hidden-dropout\": 0.2",
                  "\"attn_pdrop\": 0,\n    \"embd_pdrop\": 0.2,\n    \"resid_pdrop\": 0.2\n", "");
}

static void explains(const char *key, const char *part)
{
    struct dt_text out;
    dt_text_init(&out);
    if (!dialects_explain(key, &out)) {
        fail_msg("%s", out.data);
    }
    if (strstr(dt_text_str(&out), part) == NULL) {
        fail_msg("%s: %s", key, out.data);
    }
    dt_text_clear(&out);
}

static void test_explain(void **state)
{
    (void)state;
    struct dt_text all; /* a whole key is that of one system */
    dt_text_init(&all);
    assert_true(dialects_explain("zero_optimization.stage", &all));
    assert_null(strstr(dt_text_str(&all), "Lightning"));
    dt_text_clear(&all);
    explains("training.uneven_inputs", "one of: drop, join,\n    strict; default: \"drop\"");
    explains("training.strategy", "see train\n    --list-strategies; default: \"auto\"");
    explains("training.learning_rate",
             "training.learning_rate (a key of the job)\n    highest learning rate; default: 5e-05\n");
    explains("learning_rate", "learning_rate (Hugging Face)\n    training.learning_rate\n");
    explains("zero_optimization.stage", "zero_optimization.stage (DeepSpeed)\n    training.strategy: 0 = zero0");
    explains("deepspeed.zero_optimization.stage", "(DeepSpeed)");
    explains("Timer", "Timer (Lightning's callback)\n    as its own table says\nTimer (a class of Lightning)\n    its "
                      "arguments: duration, interval, verbose\n");
    explains("DDPStrategy", "DDPStrategy (a class of Lightning)\n    its arguments: ddp_comm_hook, ddp_comm_wrapper");
    explains("zero_optimization", "zero_optimization (a block of DeepSpeed)\n    its keys: stage, overlap_comm");
    explains("offload_param",
             "zero_optimization.offload_param (a block of DeepSpeed)\n    its keys: device, nvme_path");
    explains("aio", "aio (a block of DeepSpeed)\n    its keys: block_size, queue_depth");
    explains("trainer", "trainer (Lightning's Trainer's keys)\n    _target_, accelerator, devices");
    explains("deepspeed", "deepspeed (DeepSpeed's keys, or the file that has them)\n    elasticity,");
    explains("tensorboard.output_path", "tensorboard (DeepSpeed)\n    no effect");
    explains("train-iters", "train_iters (gpt-neox)");
    explains("hybrid_shard", "hybrid_shard (a value of training.strategy)");
    explains("WarmupLR", "warmuplr (a value of training.lr_scheduler_type)");
    explains("WeightAveraging",
             "WeightAveraging (Lightning's callback)\n    refused: averages of weights are not there "
             "yet; remove it\n");
    explains("EarlyStopping.divergence_threshold", "divergence_threshold (Lightning's EarlyStopping)\n    "
                                                   "early_stopping.divergence_threshold\n");
    explains(
        "trainer.max_epochs",
        "max_epochs (Lightning's Trainer)\n    training.num_epochs, beside max_steps training.epoch_limit; 1000 where\n"
        "    nothing ends the run; -1 beside max_steps or max_time\n");
    explains("fsdp_offload_params",
             "offload_params (FSDP's block)\n    true: offload.parameters and offload.optimizer are cpu");
    explains("distributed_type", "distributed_type (accelerate)\n    training.strategy: NO = single_device");
    explains("model.n_layer", "model.n_layer (a key of the job)\n    number of layers");
    explains("strategies", "names for strategies");
    static const char *const wrong[][2] = {
        {"lerning_rate", "did you mean learning_rate?"},
        {"gradiant_clipping", "did you mean gradient_clipping?"},
        {"model.n_lay", "did you mean model.n_layer?"},
        {"zero_optimization.stag", "did you mean zero_optimization.stage?"},
        {"stage3_prefetch_buket_size", "did you mean zero_optimization.stage3_prefetch_bucket_size?"},
        {"ZERO_OPTIMIZATION.STAGE", "did you mean zero_optimization.stage?"},
        {"fp32.stage", "no key of the job"},
        {"", "names no key; give one"},
        {"nothing_like_it_at_all", "no key of the job, nor of a system that is known here"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct dt_text out;
        dt_text_init(&out);
        assert_false(dialects_explain(wrong[i][0], &out));
        assert_non_null(strstr(dt_text_str(&out), wrong[i][1]));
        dt_text_clear(&out);
    }

    static const char *const guesses[][2] = {{"lerning_rate", "learning_rate?"},
                                             {"gas", "gradient_accumulation_steps?"},
                                             {"wd", "weight_decay?"},
                                             {"zzz", "that is known here"}};
    for (size_t i = 0; i < sizeof guesses / sizeof guesses[0]; i++) {
        struct dt_text out;
        dt_text_init(&out);
        assert_false(dialects_explain(guesses[i][0], &out));
        if (!dt_text_ends_with(dt_text_str(&out), guesses[i][1])) {
            fail_msg("%s", dt_text_str(&out));
        }
        dt_text_clear(&out);
    }
}

/* ---- strategies of the job ---- */

#define MINE                                                                                                           \
    "\"strategies\": {\"mine\": {\"base\": \"hybrid_shard\", \"description\": \"two by two\", \"fsdp\": "              \
    "{\"device_mesh\": "                                                                                               \
    "[2, 2]}}, \"upon\": {\"base\": \"MINE\", \"fsdp\": {\"forward_prefetch\": true}, \"activation_checkpointing\": "  \
    "{\"enabled\": true}}}"

static void test_registered(void **state)
{
    (void)state;
    same_job(
        "s.json", "{" MINE ", \"training\": {\"strategy\": \"upon\"}}", 4,
        "{\"training\": {\"strategy\": \"hybrid_shard\"}, \"fsdp\": {\"device_mesh\": [2, 2], \"forward_prefetch\": "
        "true}, \"activation_checkpointing\": {\"enabled\": true}}",
        NULL);
    same_job("s.json", "{" MINE ", \"training\": {\"strategy\": \"zero1\"}}", 4,
             "{\"training\": {\"strategy\": \"zero1\"}}", NULL);
    same_job("s.json", "{\"training\": {\"strategy\": \"ddp_notebook_find_unused_parameters_true\"}}", 4,
             "{\"training\": {\"strategy\": \"ddp_notebook_find_unused_parameters_true\"}}",
             "training.strategy (ddp; dtrun starts the ranks, not an interpreter)");
    struct dt_text out;
    struct dt_error err = {0};
    dt_text_init(&out);
    assert_int_equal(job_list_strategies(path_of("s.json"), &out, &err), 0);
    assert_string_equal(dt_text_str(&out), "");
    write_file("s.json", "{" MINE "}");
    assert_int_equal(job_list_strategies(path_of("s.json"), &out, &err), 0);
    assert_string_equal(dt_text_str(&out), "mine\n    hybrid_shard: two by two\nupon\n    MINE\n");
    dt_text_clear(&out);
    refused("s.json", "{" MINE ", \"training\": {\"strategy\": \"mine\"}, \"fsdp\": {\"device_mesh\": [4, 1]}}", 4,
            "s.json:1:88: strategies.mine.fsdp.device_mesh: is [2, 2], but fsdp.device_mesh is [4, 1] (s.json:1:266); "
            "say it "
            "in one place\n");
    refused(
        "s.json",
        "{\"strategies\": {\"zero2\": {\"base\": \"ddp\"}, \"a\": {\"base\": \"b\"}, \"b\": {\"base\": \"a\"}, \"c\": "
        "{}, "
        "\"d\": {\"base\": \"none\", \"model\": {}, \"fsdp\": {\"x\": 1}, \"training\": {\"strategy\": \"ddp\"}}, "
        "\"e\": 5},\n"
        "\"training\": {\"strategy\": \"a\"}}",
        1,
        "s.json:1:17: strategies.zero2: is the name of a strategy that is there; take another one\n"
        "s.json:1:49: strategies.a.base: more than 8 strategies upon each other, or a circle\n"
        "s.json:1:83: strategies.c: has no base; add the strategy that it is, \"base\": \"zero2\"\n"
        "s.json:1:98: strategies.d.base: is none: neither a strategy nor registered here; see train --list-strategies\n"
        "s.json:1:114: strategies.d.model: there are base, description, and sections of the job that say how it is "
        "trained, such as \"fsdp\": { \"forward_prefetch\": true }\n"
        "s.json:1:136: strategies.d.fsdp.x: fsdp has no such key for a strategy\n"
        "s.json:1:158: strategies.d.training.strategy: training has no such key for a strategy\n"
        "s.json:1:179: strategies.e: give an object, { \"base\": \"zero2\", \"description\": \"...\", ... }\n");
    refused("s.json", "{\"training\": {\"strategy\": \"hpu_parallel\"}}", 1,
            "s.json:1:27: training.strategy: is \"hpu_parallel\", which is not supported: ranks compute on CPUs or "
            "CUDA GPUs; "
            "the nearest is ddp; see train --list-strategies\n");
    refused("s.json",
            "{\"strategies\": {\"a\": {\"base\": \"zeroo3\"}, \"b\": {\"base\": \"a\"}, \"c\": {\"base\": \"none\"}}, "
            "\"training\": {\"strategy\": \"b\"}}",
            1,
            "s.json:1:31: strategies.a.base: is \"zeroo3\"; did you mean zero3? All of them: see train "
            "--list-strategies\n"
            "s.json:1:68: strategies.c.base: is none: neither a strategy nor registered here; see train "
            "--list-strategies\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deepspeed),
        cmocka_unit_test(test_idle_scale),
        cmocka_unit_test(test_accelerate),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_training_arguments),
        cmocka_unit_test(test_lightning),
        cmocka_unit_test(test_beside),
        cmocka_unit_test(test_convert),
        cmocka_unit_test(test_convert_batch),
        cmocka_unit_test(test_convert_neox),
        cmocka_unit_test(test_convert_neox_decay),
        cmocka_unit_test(test_convert_neox_attention),
        cmocka_unit_test(test_convert_neox_defaults),
        cmocka_unit_test(test_explain),
        cmocka_unit_test(test_convert_evaluations),
        cmocka_unit_test(test_registered),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
