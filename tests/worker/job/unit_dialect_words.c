/* covers: worker/job/dialects */
/* Words of Hugging Face and Lightning: schedules, optimizers, clipping, accumulation, precision. */
#include "tests/lib/job_files.h"

#define HF                                                                                                             \
    "\"logging\": {\"log_every_n_steps\": 500}, \"checkpointing\": {\"save_every_n_steps\": 500, \"keep_last_n\": 0}"

/* Text of TrainingArguments, and of the section `training` and others in our keys. */
static void same_arguments(const char *text, const char *training, const char *more, const char *inert)
{
    char ours[1024];
    (void)snprintf(ours, sizeof ours, "{\"training\": {\"loss_normalization\": \"global_tokens\", %s}%s%s, " HF "}",
                   training, *more != 0 ? ", " : "", more);
    same_job("t.yaml", text, 1, ours, inert);
}

static void test_schedules(void **state)
{
    (void)state;
    same_arguments(
        "num_train_epochs: 1\nlr_scheduler_type: cosine_with_restarts\nlr_scheduler_kwargs: {num_cycles: 3}\n",
        "\"num_epochs\": 1, \"lr_scheduler_type\": \"cosine_with_restarts\"", "\"scheduler\": {\"num_cycles\": 3}",
        NULL);
    same_arguments(
        "num_train_epochs: 1\nlearning_rate: 1e-4\nlr_scheduler_type: polynomial\n"
        "lr_scheduler_kwargs: {power: 2}\nwarmup_steps: 5\n",
        "\"num_epochs\": 1, \"learning_rate\": 1e-4, \"lr_scheduler_type\": \"polynomial\", \"lr_power\": 2, "
        "\"min_lr_ratio\": 0.0009999999999999998, \"warmup_steps\": 5", /* lr_end is 1e-7 */
        "", NULL);
    same_arguments("num_train_epochs: 1\nlearning_rate: 1e-4\nlr_scheduler_type: polynomial\n"
                   "lr_scheduler_kwargs: {lr_end: 5.0e-05}\n",
                   "\"num_epochs\": 1, \"learning_rate\": 1e-4, \"lr_scheduler_type\": \"polynomial\", "
                   "\"min_lr_ratio\": 0.5",
                   "", NULL);
    same_arguments("num_train_epochs: 1\nlr_scheduler_type: inverse_sqrt\nwarmup_steps: 5\nlr_scheduler_kwargs: "
                   "{timescale: 50}\n",
                   "\"num_epochs\": 1, \"lr_scheduler_type\": \"inverse_sqrt\", \"warmup_steps\": 5",
                   "\"scheduler\": {\"timescale\": 50}", NULL);
    same_arguments(
        "num_train_epochs: 1\nlr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs:\n"
        "  {num_decay_steps: 50, decay_type: linear, min_lr_ratio: 0.1, warmup_type: linear, num_cycles: 0.5}\n",
        "\"num_epochs\": 1, \"lr_scheduler_type\": \"warmup_stable_decay_linear\", \"min_lr_ratio\": 0.1",
        "\"scheduler\": {\"num_decay_steps\": 50}", NULL);
    same_arguments("num_train_epochs: 1\nlr_scheduler_type: constant_with_warmup\nwarmup_ratio: 0.1\n",
                   "\"num_epochs\": 1, \"lr_scheduler_type\": \"constant_with_warmup\", \"warmup_ratio\": 0.1", "",
                   NULL);
    same_arguments("num_train_epochs: 1\nlr_scheduler_type: constant\nwarmup_ratio: 0.1\n",
                   "\"num_epochs\": 1, \"lr_scheduler_type\": \"constant\"", "",
                   "warmup_ratio (this lr_scheduler_type has no warm-up in Transformers, either)");
    same_arguments(
        "num_train_epochs: 1\nlr_scheduler_type: reduce_lr_on_plateau\nlr_scheduler_kwargs:\n"
        "  {factor: 0.5, patience: 2, mode: max, min_lr: 1.0e-06, threshold: 0.1, threshold_mode: abs, cooldown: "
        "1, eps: 0}\nmetric_for_best_model: eval_accuracy\neval_steps: 7\nwarmup_steps: 3\n",
        "\"num_epochs\": 1, \"lr_scheduler_type\": \"reduce_lr_on_plateau\", \"eval_every_n_steps\": 7",
        "\"scheduler\": {\"factor\": 0.5, \"patience\": 2, \"mode\": \"max\", \"min_lr\": 1e-6, \"threshold\": "
        "0.1, \"threshold_mode\": \"abs\", \"cooldown\": 1, \"eps\": 0, \"monitor\": \"val_accuracy\"}",
        "warmup_steps (this lr_scheduler_type has no warm-up in Transformers, either)");
    same_arguments("num_train_epochs: 1\nmax_grad_norm: null\n", "\"num_epochs\": 1, \"max_grad_norm\": 0", "", NULL);
    same_arguments("num_epochs: 1\nmax_grad_norm:\n", "\"num_epochs\": 1", "", NULL); /* axolotl's default */
    refused(
        "t.yaml",
        "learning_rate: 1e-4\nlr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs:\n  decay_type: 1-sqrt\n"
        "  warmup_type: cosine\n  num_stable_steps: 5\n  num_cycles: 1\n  unknown: 1\n",
        1,
        "t.yaml:2:1: lr_scheduler_type: warmup_stable_decay needs lr_scheduler_kwargs.num_decay_steps, as in "
        "Transformers; add it, or training.decay_ratio to the job\n"
        "t.yaml:4:3: lr_scheduler_kwargs.decay_type: is 1-sqrt: there are cosine and linear; write one of them\n"
        "t.yaml:5:3: lr_scheduler_kwargs.warmup_type: is cosine: a warm-up is a line here; write linear\n"
        "t.yaml:6:3: lr_scheduler_kwargs.num_stable_steps: the rate stays for what warm-up and num_decay_steps leave; "
        "remove it\n"
        "t.yaml:7:3: lr_scheduler_kwargs.num_cycles: falls as half a wave, 0.5; write that, or lr_scheduler_type "
        "cosine_with_restarts\n"
        "t.yaml:8:3: lr_scheduler_kwargs.unknown: unknown key; remove it\n");
    refused(
        "t.yaml", "learning_rate: 1e-4\nlr_scheduler_type: cosine_with_min_lr\n", 1,
        "t.yaml:2:1: lr_scheduler_type: cosine_with_min_lr needs min_lr or min_lr_rate in lr_scheduler_kwargs, as in "
        "Transformers; add one, or write cosine\n");
    refused("t.yaml", "learning_rate: 1e-4\nlr_scheduler_type: cosine_warmup_with_min_lr\n", 1,
            "t.yaml:2:1: lr_scheduler_type: is \"cosine_warmup_with_min_lr\": its warm-up begins above 0; write "
            "cosine_with_min_lr\n");
    refused("t.yaml", "learning_rate: 1e-4\nlr_scheduler_type: cosine\nlr_scheduler_kwargs: {gamma: 1, power: 3}\n", 1,
            "t.yaml:3:23: lr_scheduler_kwargs.gamma: unknown key; did you mean scheduler.gamma?\n"
            "t.yaml:3:33: lr_scheduler_kwargs.power: belongs to polynomial, polynomial_lr, and "
            "training.lr_scheduler_type is cosine (t.yaml:2:1); remove it\n");
}

static void test_optimizers(void **state)
{
    (void)state;
    same_arguments("num_train_epochs: 1\noptim: lion_32bit\nadam_beta1: 0.95\n", "\"num_epochs\": 1",
                   "\"optimizer\": {\"name\": \"lion\", \"beta1\": 0.95, \"beta2\": 0.999}", NULL);
    same_arguments("num_train_epochs: 1\noptim: sgd\nadam_beta1: 0.95\nadam_epsilon: 1e-9\n", "\"num_epochs\": 1",
                   "\"optimizer\": {\"name\": \"sgd\"}",
                   "adam_beta1 (this optim has no such number), adam_epsilon (this optim has no such number)");
    same_arguments("num_train_epochs: 1\noptim: paged_adamw_32bit\nadam_beta2: 0.95\n",
                   "\"num_epochs\": 1, \"adam_beta2\": 0.95", "\"optimizer\": {\"name\": \"adamw\"}",
                   "optim (nothing is paged; offload.optimizer cpu keeps the state in host memory)");
    same_arguments("num_train_epochs: 1\nfp16: true\nfp16_opt_level: O1\nhalf_precision_backend: auto\n",
                   "\"num_epochs\": 1, \"precision\": \"16-mixed\"", "", NULL);
    same_arguments("num_train_epochs: 1\ntrain_sampling_strategy: sequential\n", "\"num_epochs\": 1",
                   "\"data\": {\"shuffle\": false}", NULL);
    refused("t.yaml", "learning_rate: 1e-4\noptim: adamw_bnb_8bit\nfp16: true\nbf16: true\n", 1,
            "t.yaml:2:1: optim: is \"adamw_bnb_8bit\": state of so few bits is not there yet; write adamw_torch, and "
            "training.optimizer_state_dtype bf16 in the job\n"
            "t.yaml:3:1: fp16: is true, but bf16 is true (t.yaml:4:1); say it in one place\n");
}

#define TRAINER "trainer: {max_epochs: 8}\n"
#define SAVED "\"checkpointing\": {\"save_every_n_epochs\": 1, \"keep_last_n\": 1}, "
#define TRAINED_BY SAVED "\"training\": {\"num_epochs\": 8, \"max_grad_norm\": 0, \"num_sanity_val_steps\": 2"
#define TRAINED TRAINED_BY ", \"eval_every_n_epochs\": 1"

/* A scheduler of Lightning's command line, and ours, which counts epochs. */
static void same_scheduler(const char *theirs, const char *training, const char *numbers)
{
    char text[512], ours[512];
    (void)snprintf(text, sizeof text, TRAINER "lr_scheduler:\n  class_path: torch.optim.lr_scheduler.%s\n", theirs);
    (void)snprintf(ours, sizeof ours, "{" TRAINED ", %s}, \"scheduler\": {\"interval\": \"epoch\"%s}}", training,
                   numbers);
    same_job("l.yaml", text, 1, ours, NULL);
}

static void test_lightning_schedules(void **state)
{
    (void)state;
    same_scheduler("StepLR\n  init_args: {step_size: 3, gamma: 0.5, last_epoch: -1}", "\"lr_scheduler_type\": \"step\"",
                   ", \"step_size\": 3, \"gamma\": 0.5");
    same_scheduler("MultiStepLR\n  init_args: {milestones: [2, 5]}", "\"lr_scheduler_type\": \"multi_step\"",
                   ", \"milestones\": [2, 5]");
    same_scheduler("ExponentialLR\n  init_args: {gamma: 0.9}", "\"lr_scheduler_type\": \"exponential\"",
                   ", \"gamma\": 0.9");
    same_scheduler("CosineAnnealingLR\n  init_args: {T_max: 8, eta_min: 1e-6}",
                   "\"lr_scheduler_type\": \"cosine_annealing\"", ", \"T_max\": 8, \"eta_min\": 1e-6");
    same_scheduler("CosineAnnealingWarmRestarts\n  init_args: {T_0: 2, T_mult: 2}",
                   "\"lr_scheduler_type\": \"cosine_warm_restarts\"", ", \"T_0\": 2, \"T_mult\": 2");
    same_scheduler("LinearLR\n  init_args: {start_factor: 0.5, total_iters: 4}", "\"lr_scheduler_type\": \"linear_lr\"",
                   ", \"start_factor\": 0.5, \"total_iters\": 4");
    same_scheduler("ConstantLR\n  init_args: {factor: 0.5}", "\"lr_scheduler_type\": \"constant_lr\"",
                   ", \"start_factor\": 0.5");
    same_scheduler("PolynomialLR\n  init_args: {power: 2, total_iters: 8}",
                   "\"lr_scheduler_type\": \"polynomial_lr\", \"lr_power\": 2", ", \"total_iters\": 8");
    same_scheduler("OneCycleLR\n  init_args: {max_lr: 0.01, total_steps: 8, pct_start: 0.25, three_phase: true}",
                   "\"lr_scheduler_type\": \"one_cycle\", \"learning_rate\": 0.01",
                   ", \"pct_start\": 0.25, \"three_phase\": true");
    same_job(
        "l.yaml",
        "trainer: {max_epochs: 8, val_check_interval: 5}\noptimizer: {class_path: torch.optim.SGD, init_args: {lr: "
        "0.1, momentum: 0.9}}\nlr_scheduler:\n  class_path: ReduceLROnPlateau\n  init_args: {monitor: val/loss, "
        "patience: 3}\n",
        1,
        "{" TRAINED_BY ", \"learning_rate\": 0.1, \"lr_scheduler_type\": \"reduce_lr_on_plateau\", "
        "\"eval_every_n_steps\": 5}, \"optimizer\": {\"name\": \"sgd\", \"momentum\": 0.9}, \"scheduler\": "
        "{\"patience\": 3, \"monitor\": \"val_loss\"}}",
        NULL);
    same_job("l.yaml",
             TRAINER
             "optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1, momentum: 0.9}}\n"
             "lr_scheduler: {class_path: OneCycleLR, init_args: {max_lr: 0.5, epochs: 4, steps_per_epoch: 2}}\n",
             1,
             "{" TRAINED ", \"learning_rate\": 0.5, \"lr_scheduler_type\": \"one_cycle\"}, \"optimizer\": {\"name\": "
             "\"sgd\", \"momentum\": 0.9}, \"scheduler\": {\"interval\": \"epoch\"}}",
             "optimizer.init_args.lr (OneCycleLR's max_lr counts)");
    refused(
        "l.yaml", TRAINER "lr_scheduler: {class_path: OneCycleLR, init_args: {max_lr: 0.5, total_steps: 9}}\n", 1,
        "l.yaml:2:1: lr_scheduler: OneCycleLR ends after 9 epochs, as Lightning counts, and here with the run; write "
        "trainer.max_epochs 9\n");
    refused("l.yaml", TRAINER "lr_scheduler: {class_path: StepLR, init_args: {step_size: 2, gama: 1, last_epoch: 3}}\n",
            1,
            "l.yaml:2:62: lr_scheduler.init_args.gama: StepLR has no such number here; remove it\n"
            "l.yaml:2:71: lr_scheduler.init_args.last_epoch: StepLR has no such number here; remove it\n");
    refused(
        "l.yaml", TRAINER "lr_scheduler: {class_path: CyclicLR}\n", 1,
        "l.yaml:2:1: lr_scheduler: CyclicLR: there are StepLR, MultiStepLR, ExponentialLR, CosineAnnealingLR, "
        "CosineAnnealingWarmRestarts, LinearLR, ConstantLR, PolynomialLR, OneCycleLR and ReduceLROnPlateau; write one "
        "of them, or training.lr_scheduler_type\n");
}

#define STRATEGY(class, args)                                                                                          \
    "trainer: {max_epochs: 8, strategy: {class_path: lightning.pytorch.strategies." class ", init_args: {" args "}}}"  \
                                                                                          "\n"

/* Arguments of a class stand in init_args, in dict_kwargs, or, as Hydra has them, beside the class. */
static void test_lightning_arguments(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "{_target_: torch.optim.AdamW, _partial_: true, lr: 0.1, weight_decay: 0.3}",
        "{class_path: torch.optim.AdamW, lr: 0.1, weight_decay: 0.3}",
        "{class_path: torch.optim.AdamW, init_args: {lr: 0.1}, dict_kwargs: {weight_decay: 0.3}}",
        "{class_path: torch.optim.AdamW, init_args: null, dict_kwargs: {lr: 0.1, weight_decay: 0.3}}"};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        char text[256];
        (void)snprintf(text, sizeof text, TRAINER "optimizer: %s\n", ways[i]);
        same_job("l.yaml", text, 1,
                 "{" TRAINED ", \"learning_rate\": 0.1, \"weight_decay\": 0.3, \"lr_scheduler_type\": \"constant\"}}",
                 NULL);
    }
    same_job("l.yaml",
             TRAINER "optimizer: {_target_: torch.optim.SGD, lr: 0.1}\n"
                     "lr_scheduler: {_target_: torch.optim.lr_scheduler.LinearLR, start_factor: 0.5, total_iters: 4}\n",
             1,
             "{" TRAINED ", \"learning_rate\": 0.1, \"lr_scheduler_type\": \"linear_lr\"}, \"optimizer\": {\"name\": "
             "\"sgd\"}, \"scheduler\": {\"interval\": \"epoch\", \"start_factor\": 0.5, \"total_iters\": 4}}",
             NULL);
    same_job("l.yaml",
             STRATEGY("FSDPStrategy", "mixed_precision: {_target_: torch.distributed.fsdp.MixedPrecision, param_dtype: "
                                      "torch.bfloat16, reduce_dtype: torch.float32}"),
             2,
             "{" TRAINED ", \"strategy\": \"fsdp\", \"precision\": \"bf16-mixed\"}, \"mixed_precision\": "
             "{\"reduce_dtype\": \"fp32\"}}",
             NULL);
    same_job("l.yaml",
             STRATEGY("DDPStrategy", "ddp_comm_hook: powerSGD_hook, ddp_comm_state: {_target_: PowerSGDState, "
                                     "process_group: null, matrix_approximation_rank: 4}"),
             2,
             "{" TRAINED ", \"strategy\": \"ddp\"}, \"ddp\": {\"comm_hook\": \"power_sgd\"}, \"power_sgd\": "
             "{\"matrix_approximation_rank\": 4}}",
             NULL);
    same_job("l.yaml", TRAINER "optimizer: {_target_: torch.optim.Adam, lr: 0.1, decoupled_weight_decay: true}\n", 1,
             "{" TRAINED ", \"learning_rate\": 0.1, \"lr_scheduler_type\": \"constant\"}, \"optimizer\": {\"name\": "
             "\"adamw\"}}",
             NULL);
    same_job("l.yaml", TRAINER "optimizer: {_target_: torch.optim.Adam, lr: 0.1, decoupled_weight_decay: false}\n", 1,
             "{" TRAINED ", \"learning_rate\": 0.1, \"lr_scheduler_type\": \"constant\"}, \"optimizer\": {\"name\": "
             "\"adam\"}}",
             NULL);
    refused("l.yaml", TRAINER "optimizer: {_target_: lion_pytorch.Lion, lr: 0.1, decoupled_weight_decay: true}\n", 1,
            "l.yaml:2:51: optimizer.decoupled_weight_decay: not there yet for Lion; remove it\n");
    refused("l.yaml",
            TRAINER "optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}, weight_decay: 0.3}\n"
                    "lr_scheduler: {_target_: StepLR, step_size: 2, gama: 1, dict_kwargs: 3}\n",
            1,
            "l.yaml:2:64: optimizer.weight_decay: stands beside init_args; move it there\n"
            "l.yaml:3:48: lr_scheduler.gama: StepLR has no such number here; remove it\n"
            "l.yaml:3:57: lr_scheduler.dict_kwargs: give an object of the arguments by name\n");
}

static void test_lightning_flags(void **state)
{
    (void)state;
    same_job("l.yaml", "trainer: {max_epochs: 8, accumulate_grad_batches: {0: 8, 4: 4}}\n", 1,
             "{" TRAINED ", \"gradient_accumulation_steps\": {\"0\": 8, \"4\": 4}}}", NULL);
    same_job("l.yaml",
             "trainer:\n  max_epochs: 8\n  callbacks:\n    class_path: GradientAccumulationScheduler\n    init_args: "
             "{scheduling: {4: 2}}\n",
             1, "{" TRAINED ", \"gradient_accumulation_steps\": {\"4\": 2}}}", NULL);
    same_job("l.yaml", "trainer: {max_epochs: 8, gradient_clip_val: 0.5, gradient_clip_algorithm: value}\n", 1,
             "{" TRAINED ", \"gradient_clip_algorithm\": \"value\", \"gradient_clip_value\": 0.5}}", NULL);
    same_job("l.yaml", "trainer: {max_epochs: 8, gradient_clip_val: 0, gradient_clip_algorithm: value}\n", 1,
             "{" TRAINED "}}", NULL);
    same_job("l.yaml", "trainer: {max_epochs: 8, fast_dev_run: 3}\n", 1, "{" TRAINED ", \"fast_dev_run\": 3}}", NULL);
    static const char *const precisions[][2] = {
        {"32", "32-true"},  {"32-true", "32-true"},   {"bf16", "bf16-mixed"},     {"bf16-mixed", "bf16-mixed"},
        {"16", "16-mixed"}, {"16-mixed", "16-mixed"}, {"bf16-true", "bf16-true"}, {"16-true", "16-true"},
        {"64", "64-true"},  {"64-true", "64-true"}};
    for (size_t i = 0; i < sizeof precisions / sizeof precisions[0]; i++) {
        char text[96], ours[256];
        (void)snprintf(text, sizeof text, "trainer: {max_epochs: 8, precision: %s}\n", precisions[i][0]);
        (void)snprintf(ours, sizeof ours, "{" TRAINED ", \"precision\": \"%s\"}}", precisions[i][1]);
        same_job("l.yaml", text, 1, ours, NULL);
    }
    refused(
        "l.yaml",
        "trainer: {max_epochs: 8, accumulate_grad_batches: {0: 8}, val_check_interval: 10, precision: "
        "transformer-engine}\n",
        1,
        "l.yaml:1:59: trainer.val_check_interval: batches of a step change with accumulate_grad_batches; give a share "
        "of an epoch\n"
        "l.yaml:1:83: trainer.precision: is \"transformer-engine\": Transformer Engine is not supported; write "
        "bf16-mixed\n");
}

static void test_lightning_strategies(void **state)
{
    (void)state;
    same_job("l.yaml",
             STRATEGY("DDPStrategy", "bucket_cap_mb: 10, broadcast_buffers: false, find_unused_parameters: true, "
                                     "gradient_as_bucket_view: true, timeout: 90, process_group_backend: gloo"),
             2,
             "{" TRAINED ", \"strategy\": \"ddp\", \"broadcast_buffers\": false, \"collective_timeout\": 90}, \"ddp\": "
             "{\"bucket_cap_mb\": 10}}",
             "trainer.strategy.init_args.find_unused_parameters (these models use all their parameters), "
             "trainer.strategy.init_args.process_group_backend");
    same_job("l.yaml",
             "trainer: {max_epochs: 8, strategy: {class_path: DDPStrategy, init_args: {broadcast_buffers: false}, "
             "dict_kwargs: {bucket_cap_mb: 10, find_unused_parameters: true}}}\n",
             2, "{" TRAINED ", \"strategy\": \"ddp\", \"broadcast_buffers\": false}, \"ddp\": {\"bucket_cap_mb\": 10}}",
             "trainer.strategy.dict_kwargs.find_unused_parameters (these models use all their parameters)");
    same_job("l.yaml",
             STRATEGY("DeepSpeedStrategy",
                      "stage: 3, offload_optimizer: true, offload_parameters: true, offload_params_device: "
                      "nvme, nvme_path: /disk, queue_depth: 16, pin_memory: true"),
             2,
             "{" TRAINED ", \"strategy\": \"zero3\"}, \"offload\": {\"optimizer\": \"cpu\", \"parameters\": \"nvme\", "
             "\"nvme_path\": \"/disk\", \"queue_depth\": 16}}",
             "trainer.strategy.init_args.pin_memory");
    write_file("inner.json", "{\"zero_optimization\": {\"stage\": 1}, \"gradient_clipping\": 0.25}");
    same_job("l.yaml", STRATEGY("DeepSpeedStrategy", "stage: 1, config: inner.json"), 2,
             "{" SAVED "\"training\": {\"num_epochs\": 8, \"eval_every_n_epochs\": 1, \"num_sanity_val_steps\": 2, "
             "\"max_grad_norm\": 0.25, \"strategy\": \"zero1\"}}",
             NULL);
    refused("l.yaml", STRATEGY("DDPStrategy", "bucket_cap: 10, sharding_strategy: FULL_SHARD"), 2,
            "l.yaml:1:103: trainer.strategy.init_args.bucket_cap: unknown key; did you mean bucket_cap_mb?\n"
            "l.yaml:1:119: trainer.strategy.init_args.sharding_strategy: unknown key; did you mean "
            "fsdp.sharding_strategy?\n");
    refused("l.yaml", STRATEGY("DeepSpeedStrategy", "stage: 2, config: inner.json"), 2,
            "inner.json:1:24: zero_optimization.stage: is 1, but trainer.strategy is an object (l.yaml:1:26); say it "
            "in one "
            "place\n");
}

static void test_auto(void **state)
{
    (void)state;
    same_arguments("num_train_epochs: 1\nbf16: auto\ntf32: auto\nflash_attn: auto\n",
                   "\"num_epochs\": 1, \"precision\": \"bf16-mixed\"", "", NULL);
    refused("t.yaml", "per_device_train_batch_size: auto\nlearning_rate: auto\nmax_grad_norm: auto\nfp16: auto\n", 1,
            "t.yaml:1:1: per_device_train_batch_size: \"auto\" means nothing here; give a value, or remove it\n"
            "t.yaml:2:1: learning_rate: \"auto\" means nothing here; give a value, or remove it\n"
            "t.yaml:3:1: max_grad_norm: \"auto\" means nothing here; give a value, or remove it\n"
            "t.yaml:4:1: fp16: \"auto\" means nothing here; give a value, or remove it\n");
}

static void test_loss(void **state)
{
    (void)state;
    static const struct {
        const char *text, *sets[2];
        int world;
        enum loss_normalization loss;
    } cases[] = {
        {"num_epochs: 1\n", {"model.name=gpt2", "training.seed=1"}, 2, LOSS_GLOBAL_TOKENS},
        {"num_epochs: 1\naverage_tokens_across_devices: false\n",
         {"model.name=gpt2", "training.seed=1"},
         2,
         LOSS_LOCAL_MEAN},
        {"gradient_accumulation_steps: 2\naverage_tokens_across_devices: false\nnum_epochs: 1\n",
         {"model.name=gpt2", "training.seed=1"},
         1,
         LOSS_GLOBAL_TOKENS},
        {"num_epochs: 1\n", {"model.name=bert", "model.task=masked_lm"}, 2, LOSS_LOCAL_MEAN},
        {"gradient_accumulation_steps: 2\naverage_tokens_across_devices: false\nnum_epochs: 1\n",
         {"model.name=bert", "model.task=masked_lm"},
         2,
         LOSS_LOCAL_MEAN},
        {"deepspeed: d.json\naverage_tokens_across_devices: false\nper_device_train_batch_size: 2\n",
         {"model.name=gpt2", "training.seed=1"},
         1,
         LOSS_GLOBAL_TOKENS},
        {"num_epochs: 1\n", {"model.name=bert", "model.task=sequence_classification"}, 2, LOSS_GLOBAL_TOKENS},
        {"num_epochs: 1\n", {"model.name=modernbert", "model.task=masked_lm"}, 2, LOSS_GLOBAL_TOKENS},
        {"num_epochs: 1\n", {"model.name=modernbert", "model.task=token_classification"}, 2, LOSS_LOCAL_MEAN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *sets[] = {cases[i].sets[0], cases[i].sets[1], "data.train=x", "output_dir=o"};
        write_file("d.json", "{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2}");
        write_file("t.yaml", cases[i].text);
        struct job job;
        struct dt_error err = {0};
        struct job_arguments args = {.path = path_of("t.yaml"), .set = sets, .set_count = 4, .world = cases[i].world};
        if (job_open(&job, &args, NULL, &err) != 0) {
            fail_msg("%s %s: %s", cases[i].text, sets[1], err.text);
        }
        assert_int_equal(job.training.loss_normalization, cases[i].loss);
        job_close(&job);
    }
    refused("t.yaml", "gradient_accumulation_steps: 2\naverage_tokens_across_devices: false\nnum_epochs: 1\n", 2,
            "t.yaml:2:1: average_tokens_across_devices: with accumulation a rank's mean is over each micro-batch here, "
            "not over all; write true, or gradient_accumulation_steps 1\n");
    refused("t.yaml", "deepspeed: d.json\naverage_tokens_across_devices: false\nper_device_train_batch_size: 2\n", 2,
            "t.yaml:2:1: average_tokens_across_devices: with accumulation a rank's mean is over each micro-batch here, "
            "not over all; write true, or gradient_accumulation_steps 1\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_auto),
                                       cmocka_unit_test(test_loss),
                                       cmocka_unit_test(test_schedules),
                                       cmocka_unit_test(test_optimizers),
                                       cmocka_unit_test(test_lightning_schedules),
                                       cmocka_unit_test(test_lightning_arguments),
                                       cmocka_unit_test(test_lightning_strategies),
                                       cmocka_unit_test(test_lightning_flags)};
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
