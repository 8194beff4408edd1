/* One row per key of the job file: JSON text of the default, one line of help, where it goes,
 * what is allowed. The reader, the printed configuration, the saved job and the JSON Schema all
 * come from these tables. */
#include "worker/job/job_fields.h"

#include "worker/model/model.h"
#include "worker/model/presets.h"
#include "worker/model/refused.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

/* a microsecond each, and the run takes eleven days: nobody wants more */
#define STEPS 1e12
#define EPOCHS 1e6               /* times 9e12 samples: the sum still is an int64_t */
#define LARGE 1e30               /* still a float */
#define EXACT 9007199254740992.0 /* 2^53: beyond it whole numbers are not exact */

static const struct dt_rule names_or_null = {.type = DT_RULE_NAMES, .null = true};
static const struct dt_rule boolean = {.type = DT_RULE_BOOL};
static const struct dt_rule string = {.type = DT_RULE_STRING};
static const struct dt_rule string_or_null = {.type = DT_RULE_STRING, .null = true};
static const struct dt_rule sources = {.type = DT_RULE_SOURCES};
static const struct dt_rule sets_or_null = {.type = DT_RULE_SETS, .null = true};
static const struct dt_rule strings_or_null = {.type = DT_RULE_STRINGS, .null = true};
static const struct dt_rule new_tokens = {
    .type = DT_RULE_INTEGER, .min = 1, .max = 1000000, .null = true, .null_value = -1};
static const struct dt_rule top_k = {.type = DT_RULE_INTEGER, .min = 0, .max = STEPS, .null = true, .null_value = -1};
static const struct dt_rule temperature = {.type = DT_RULE_NUMBER, .max = 1000, .null = true, .null_value = -1};
static const struct dt_rule share_or_null = {.type = DT_RULE_NUMBER, .max = 1, .null = true, .null_value = -1};
static const struct dt_rule penalty = {
    .type = DT_RULE_NUMBER, .open_min = true, .max = 100, .null = true, .null_value = -1};
static const struct dt_rule flag_or_null = {
    .type = DT_RULE_ENUM, .choices = "false|true", .null = true, .null_value = -1};
static const struct dt_rule seed = {.type = DT_RULE_INTEGER, .min = 0, .max = EXACT};
static const struct dt_rule steps = {.type = DT_RULE_INTEGER, .min = 0, .max = STEPS};
static const struct dt_rule interval = {.type = DT_RULE_INTEGER, .min = 1, .max = STEPS};
static const struct dt_rule steps_or_minus_1 = {.type = DT_RULE_INTEGER, .min = -1, .max = STEPS};
static const struct dt_rule eval_batches = {.type = DT_RULE_NUMBER, .max = STEPS};
static const struct dt_rule kept = {.type = DT_RULE_INTEGER, .min = 0, .max = 1000000};
static const struct dt_rule batches = {.type = DT_RULE_NUMBER, .max = STEPS};
static const struct dt_rule batches_or_null = {
    .type = DT_RULE_NUMBER, .open_min = true, .max = STEPS, .null = true, .null_value = -1};
static const struct dt_rule epoch_limit = {.type = DT_RULE_INTEGER, .max = EPOCHS};
static const struct dt_rule epochs = {.type = DT_RULE_NUMBER, .max = EPOCHS};
static const struct dt_rule small = {.type = DT_RULE_INTEGER, .min = 1, .max = 65536};
static const struct dt_rule small_or_object = {.type = DT_RULE_INTEGER, .min = 1, .max = 65536, .object = true};
static const struct dt_rule stairs = {.type = DT_RULE_INTEGERS, .min = 0, .max = 1000000, .null = true};
static const struct dt_rule tokens = {.type = DT_RULE_INTEGER, .min = 0, .max = 9e15};
static const struct dt_rule layers = {.type = DT_RULE_INTEGER, .min = 1, .max = 10000};
static const struct dt_rule length_or_null = {.type = DT_RULE_INTEGER, .min = 1, .max = 4194304, .null = true};
static const struct dt_rule threads = {.type = DT_RULE_INTEGER, .min = 0, .max = 1024};
static const struct dt_rule id_or_null = {
    .type = DT_RULE_INTEGER, .min = 0, .max = 16777215, .null = true, .null_value = -1};
static const struct dt_rule sampler_order = {.type = DT_RULE_ENUM, .choices = "permutation|distributed"};
static const struct dt_rule mesh = {.type = DT_RULE_PAIR, .min = 1, .max = 1048576, .null = true};
static const struct dt_rule pair = {.type = DT_RULE_PAIR, .min = 1, .max = STEPS, .null = true};
static const struct dt_rule from_0 = {.type = DT_RULE_NUMBER, .max = LARGE};
static const struct dt_rule fraction = {.type = DT_RULE_NUMBER, .max = 1};
static const struct dt_rule power = {.type = DT_RULE_NUMBER, .open_min = true, .max = 100};
static const struct dt_rule seconds = {.type = DT_RULE_NUMBER, .max = 31536000};
static const struct dt_rule format = {.type = DT_RULE_CHOICE,
                                      .choices = "auto|tokens|nanogpt|rows|tensors|multiple_choice|"
                                                 "imagefolder|idx|cifar10|cifar100|text|jsonl|json|csv|tsv",
                                      .later = "synthetic"};
static const struct dt_rule encoding_errors = {.type = DT_RULE_ENUM, .choices = "refuse|replace"};
static const struct dt_rule bad_record = {.type = DT_RULE_ENUM, .choices = "refuse|skip"};
static const struct dt_rule bad_image = {.type = DT_RULE_ENUM, .choices = "refuse|skip"};
static const struct dt_rule image_size = {.type = DT_RULE_NUMBERS, .min = 1, .max = 8192, .whole = true, .null = true};
static const struct dt_rule padding = {.type = DT_RULE_INTEGER, .min = 0, .max = 4096};
static const struct dt_rule area_range = {.type = DT_RULE_NUMBERS, .open_min = true, .max = 1};
static const struct dt_rule ratio_range = {.type = DT_RULE_NUMBERS, .open_min = true, .max = 1000};
static const struct dt_rule means = {.type = DT_RULE_NUMBERS, .min = -1000, .max = 1000, .null = true};
static const struct dt_rule deviations = {.type = DT_RULE_NUMBERS, .open_min = true, .max = 1000, .null = true};
static const struct dt_rule model_name = {.type = DT_RULE_CHOICE,
                                          .list = "train --list-models",
                                          .explain = refused_name,
                                          .meant = preset_meant,
                                          .later = "gpt",
                                          .null = true,
                                          .choices = &"" MODELS(MODEL_NAME)
#define PRESET(name, family, config) "|" name
#include "worker/model/presets.def"
                                                         [1]};
static const struct dt_rule optimizer_name = {.type = DT_RULE_CHOICE,
                                              .choices = OPTIMIZER_NAMES,
                                              .later = "adafactor|rmsprop|adadelta|onebitadam|"
                                                       "zerooneadam|onebitlamb"};
/* Lightning's, for other machines. */
static bool explain_strategy(const char *word, struct dt_text *out)
{
    static const char *const starts[] = {"xla", "single_xla", "tpu", "hpu", "single_hpu", "ipu"};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        if (strncasecmp(word, starts[i], strlen(starts[i])) == 0) {
            dt_text_puts(out, "ranks compute on CPUs or CUDA GPUs; the nearest is ddp");
            return true;
        }
    }
    return false;
}

static const struct dt_rule strategy = {
    .type = DT_RULE_CHOICE,
    .list = "train --list-strategies",
    .explain = explain_strategy,
    .open = true,
    .choices = "auto|single_device|single|ddp|local_sgd|zero0|no_shard|zero1|zero2|zero3|full_shard|"
               "shard_grad_op|hybrid_shard|hybrid_shard_zero2|_hybrid_shard_zero2|fsdp|"
               "fsdp_full_shard|fsdp_shard_grad_op|fsdp_no_shard|fsdp_hybrid_shard|"
               "deepspeed|deepspeed_stage_0|deepspeed_stage_1|deepspeed_stage_2|"
               "deepspeed_stage_3|zero_stage_0|zero_stage_1|zero_stage_2|zero_"
               "stage_3|ddp_find_unused_parameters_false|ddp_find_unused_parameters_true|"
               "ddp_spawn|ddp_spawn_find_unused_parameters_false|"
               "ddp_spawn_find_unused_parameters_true|ddp_fork|"
               "ddp_fork_find_unused_parameters_false|"
               "ddp_fork_find_unused_parameters_true|ddp_notebook|"
               "ddp_notebook_find_unused_parameters_false|"
               "ddp_notebook_find_unused_parameters_true|fsdp_cpu_offload|"
               "deepspeed_stage_1_offload|deepspeed_stage_2_offload|"
               "deepspeed_stage_3_offload|deepspeed_stage_3_offload_nvme|"
               "zero2_offload|zero3_offload"};
static const struct dt_rule scheduler = {
    .type = DT_RULE_CHOICE,
    .choices = "constant|constant_with_warmup|linear|cosine|cosine_with_restarts|"
               "polynomial|inverse_sqrt|warmup_stable_decay|warmup_stable_decay_linear|"
               "step|multi_step|exponential|cosine_annealing|cosine_warm_restarts|linear_lr|"
               "constant_lr|polynomial_lr|reduce_lr_on_plateau|one_cycle|"
               "warmuplr|warmuplr_linear|warmupdecaylr|warmupdecaylr_linear|"
               "warmupcosinelr|warmupcosinelr_linear|lrrangetest|onecycle"};
static const struct dt_rule export_dtype = {.type = DT_RULE_CHOICE,
                                            .choices = "float32|bfloat16|float16|fp32|bf16|fp16"};
static const struct dt_rule device = {.type = DT_RULE_CHOICE, .choices = "auto|cpu|cuda|gpu"};
static const struct dt_rule attention = {.type = DT_RULE_CHOICE, .choices = "auto|fast|ordered|own"};
static const struct dt_rule collectives = {.type = DT_RULE_CHOICE, .choices = "auto|nccl|peer"};
static const struct dt_rule multiprocessors = {.type = DT_RULE_INTEGER, .min = 0, .max = 64};
static const struct dt_rule precision = {
    .type = DT_RULE_CHOICE,
    .choices = "32-true|32|fp32|bf16-mixed|bf16|bf16-true|16-mixed|16|fp16|16-true|64-true|64",
    .later = "transformer-engine|transformer-engine-float16"};
static const struct dt_rule element = {
    .type = DT_RULE_CHOICE, .null = true, .choices = "fp32|float32|bf16|bfloat16|fp16|float16"};
static const struct dt_rule accumulator = {.type = DT_RULE_CHOICE,
                                           .choices = "fp32|float32|bf16|bfloat16|fp16|float16"};
static const struct dt_rule scaler = {.type = DT_RULE_CHOICE, .choices = "auto|torch|deepspeed"};
static const struct dt_rule scale_power = {.type = DT_RULE_INTEGER, .min = 0, .max = 126};
static const struct dt_rule least_scale = {
    .type = DT_RULE_NUMBER, .open_min = true, .max = LARGE, .null = true, .null_value = -1};
static const struct dt_rule growth = {.type = DT_RULE_NUMBER, .min = 1, .max = 65536};
static const struct dt_rule backoff = {.type = DT_RULE_NUMBER, .open_min = true, .max = 1};
static const struct dt_rule state_element = {
    .type = DT_RULE_CHOICE, .choices = "fp32|float32|bf16|bfloat16", .later = "fp16|float16|fp8|int8|uint8"};
static const struct dt_rule clip_algorithm = {.type = DT_RULE_ENUM, .choices = "norm|value"};
static const struct dt_rule guard_action = {.type = DT_RULE_ENUM, .choices = "skip|stop|rollback"};
static const struct dt_rule guard_rollbacks = {.type = DT_RULE_INTEGER, .min = 1, .max = 1000000};
static const struct dt_rule top_checkpoints = {.type = DT_RULE_INTEGER, .min = 0, .max = 64};
static const struct dt_rule mode = {.type = DT_RULE_ENUM, .choices = "auto|min|max"};
static const struct dt_rule guard_window = {.type = DT_RULE_INTEGER, .min = 2, .max = 65536};
static const struct dt_rule groups = {.type = DT_RULE_OBJECTS, .null = true};
static const struct dt_rule normalization = {.type = DT_RULE_ENUM, .choices = "local_mean|global_tokens"};
static const struct dt_rule accumulate = {.type = DT_RULE_ENUM, .choices = "auto|every_micro_step|boundary"};
static const struct dt_rule graphs = {.type = DT_RULE_ENUM, .choices = "auto|true|false|layers"};

/* The third of torch.set_float32_matmul_precision. */
static bool explain_medium(const char *word, struct dt_text *out)
{
    bool medium = strcmp(word, "medium") == 0;
    if (medium) {
        dt_text_puts(out, "products of F32 are not computed in BF16; the nearest is high (TF32)");
    }
    return medium;
}

static const struct dt_rule matmul_precision = {
    .type = DT_RULE_ENUM, .choices = "highest|high", .explain = explain_medium};
static const struct dt_rule partial = {.type = DT_RULE_ENUM, .choices = "step|carry|drop"};
static const struct dt_rule uneven = {.type = DT_RULE_ENUM, .choices = "drop|join|strict"};
static const struct dt_rule prefetch = {
    .type = DT_RULE_ENUM, .choices = "BACKWARD_PRE|BACKWARD_POST|none", .null = true, .null_value = PREFETCH_NONE};
static const struct dt_rule level = {.type = DT_RULE_ENUM, .choices = JOB_RECOMPUTE_WORDS, .later = "attention"};
static const struct dt_rule wrap_by = {
    .type = DT_RULE_ENUM, .choices = "transformer_based|size_based|none", .later = "custom"};
static const struct dt_rule elements = {.type = DT_RULE_INTEGER, .max = 9e15};
static const struct dt_rule elements_or_null = {.type = DT_RULE_INTEGER, .max = 9e15, .null = true, .null_value = -1};
static const struct dt_rule ranks_or_null = {.type = DT_RULE_INTEGER, .min = 1, .max = 1048576, .null = true};
static const struct dt_rule globs = {.type = DT_RULE_STRINGS, .null = true};

static const struct dt_rule offload_to = {.type = DT_RULE_ENUM, .choices = "none|cpu|nvme"};
static const struct dt_rule offload_engine = {.type = DT_RULE_ENUM, .choices = "auto|io_uring|threads"};
static const struct dt_rule portion = {.type = DT_RULE_INTEGER, .min = 2048, .max = 1 << 30};
static const struct dt_rule buffers = {.type = DT_RULE_INTEGER, .min = 2, .max = 64};
static const struct dt_rule block_size = {.type = DT_RULE_INTEGER, .min = 4096, .max = 1 << 30};
static const struct dt_rule queue_depth = {.type = DT_RULE_INTEGER, .min = 1, .max = 64};

static const struct dt_field top_fields[] = {
    {"output_dir", "null", "folder for checkpoints, metrics and logs; runs/NAME of the job file when null",
     offsetof(struct job, output_dir), &string_or_null},
    {0},
};

#define AT(member) offsetof(struct job_model, member)
static const struct dt_field model_fields[] = {
    {"name", "null", "which model, or which preset; from config.json when `load` is given", AT(name), &model_name},
    {"load", "null", "Hugging Face folder with config.json and safetensors to begin with", AT(load), &string_or_null},
    {0},
};
#undef AT
#define AT(member) offsetof(struct job_data, member)
static const struct dt_field data_fields[] = {
    {"train", NULL, "path or glob of shards or texts to train on, or a list of them with weights", AT(train), &sources},
    {"val", "null", "path or glob of shards or texts for evaluation, a list of them, or several sets by name", AT(val),
     &sets_or_null},
    {"format", "\"auto\"",
     "tokens: llm.c or Megatron shards; nanogpt: ids without a header; rows: labelled rows; tensors: safetensors with "
     "what the model reads; multiple_choice: JSON lines of data.val; "
     "images: imagefolder, idx, cifar10, cifar100; texts: text, jsonl, json, csv, tsv",
     AT(format), &format},
    {"tokenizer", "null", "tokenizer.json or its folder, or a name; as the shards say when null", AT(tokenizer),
     &string_or_null},
    {"sequence_length", "null", "tokens per sample; model.n_positions when null", AT(sequence_length), &length_or_null},
    {"shuffle", "true", "new order of samples in each epoch", AT(shuffle), &boolean},
    {"sampler", "\"permutation\"",
     "order of samples; distributed: that of PyTorch's DistributedSampler, for 8 bytes a sample", AT(sampler),
     &sampler_order},
    {"group_by_length", "null",
     "samples of like length in one batch; when null: labelled rows that are shuffled by sampler permutation",
     AT(group_by_length), &flag_or_null},
    {"pad_to_multiple_of", "8", "a batch is padded to its longest sample, and up to a multiple of this",
     AT(pad_to_multiple_of), &small},
    {"document_mask", "false", "positions and attention begin anew in each document of a sample", AT(document_mask),
     &boolean},
    {"document_end", "null", "document_mask: the id that ends each document; as the shards say when null",
     AT(document_end), &id_or_null},
    {"on_bad_image", "\"refuse\"", "an image that cannot be decoded ends the run, or is skipped and counted",
     AT(on_bad_image), &bad_image},
    {"text_key", "\"text\"", "texts: where the text is in records", AT(text_key), &string},
    {"text_pair_key", "null", "texts: where a second text is in labelled records", AT(text_pair_key), &string_or_null},
    {"label_key", "null", "texts: where the label is in records, for models that classify", AT(label_key),
     &string_or_null},
    {"end_token", "null", "texts: what ends each document; eos_token of tokenizer_config.json when null", AT(end_token),
     &string_or_null},
    {"encoding_errors", "\"refuse\"", "texts: what is not UTF-8 ends the run, or is replaced by U+FFFD and counted",
     AT(encoding_errors), &encoding_errors},
    {"on_bad_record", "\"refuse\"", "texts: a broken record ends the run, or is skipped and counted", AT(on_bad_record),
     &bad_record},
    {"cache_dir", "null",
     "texts: where their shards go; $XDG_CACHE_HOME/dtrun/texts, or ~/.cache/dtrun/texts, when null", AT(cache_dir),
     &string_or_null},
    {0},
};
#undef AT
#define AT(member) offsetof(struct job_transforms, member)
static const struct dt_field transform_fields[] = {
    {"resize", "null", "size of the shorter side, or [height, width]", AT(resize), &image_size},
    {"center_crop", "null", "size of the middle part that is taken", AT(center_crop), &image_size},
    {"random_crop", "null", "training: size of a part at a random place, instead of center_crop", AT(random_crop),
     &image_size},
    {"padding", "0", "random_crop: black pixels around the image before it", AT(padding), &padding},
    {"random_resized_crop", "null", "training: size to which a random part is resized, instead of resize and crops",
     AT(random_resized_crop), &image_size},
    {"scale", "[0.08, 1]", "random_resized_crop: the part's least and largest share of the area", AT(scale),
     &area_range},
    {"ratio", "[0.75, 1.3333333333333333]", "random_resized_crop: the part's least and largest width / height",
     AT(ratio), &ratio_range},
    {"random_horizontal_flip", "0", "training: probability that an image is mirrored", AT(random_horizontal_flip),
     &fraction},
    {"mean", "null", "what is subtracted from pixels of 0 to 1: one number, or one per channel", AT(mean), &means},
    {"std", "null", "what they are divided by after that: one number, or one per channel", AT(std), &deviations},
    {0},
};
#undef AT
#define AT(member) offsetof(struct job_training, member)
static const struct dt_field training_fields[] = {
    {"strategy", "\"auto\"", "where weights, gradients and optimizer state live", AT(strategy), &strategy},
    {"batch_size_per_gpu", "8", "samples per rank in one micro-step", AT(batch_size_per_gpu), &small},
    {"gradient_accumulation_steps", "1",
     "micro-steps per optimizer step; an object of epochs and numbers, {\"0\": 1, \"4\": 2}: from that epoch on",
     AT(gradient_accumulation_steps), &small_or_object},
    {"accumulation_schedule", "null", "the same object as pairs of epoch and number, [0, 1, 4, 2]",
     AT(accumulation_schedule), &stairs},
    {"train_batch_tokens", "0",
     "tokens of an optimizer step on all ranks; gives the samples or micro-steps that are not given; 0: as these say",
     AT(train_batch_tokens), &tokens},
    {"max_tokens", "0", "tokens of the whole run; 0: by max_steps or num_epochs", AT(max_tokens), &tokens},
    {"max_steps", "-1", "optimizer steps; -1: by num_epochs", AT(max_steps), &steps_or_minus_1},
    {"num_epochs", "0", "passes over the data; 0: by max_steps; 3 when neither is given", AT(num_epochs), &epochs},
    {"epoch_limit", "0",
     "with max_steps or max_tokens: the run ends after so many epochs if these end later; 0: no limit", AT(epoch_limit),
     &epoch_limit},
    {"learning_rate", "5e-05", "highest learning rate", AT(learning_rate), &from_0},
    {"lr_scheduler_type", "\"linear\"", "course of the learning rate after the warm-up", AT(lr_scheduler_type),
     &scheduler},
    {"warmup_steps", "-1", "steps of the warm-up; -1: by warmup_ratio", AT(warmup_steps), &steps_or_minus_1},
    {"warmup_ratio", "0", "share of all steps that are warm-up", AT(warmup_ratio), &fraction},
    {"min_lr_ratio", "0", "share of learning_rate that is left at the end", AT(min_lr_ratio), &fraction},
    {"lr_power", "1", "polynomial, polynomial_lr: of the share of steps that is left", AT(lr_power), &power},
    {"decay_ratio", "0.1", "warmup_stable_decay: share of all steps, the last ones, in which the rate falls",
     AT(decay_ratio), &fraction},
    {"weight_decay", "0", "of matrices; adamw, lion: decoupled; others: added to the gradient", AT(weight_decay),
     &from_0},
    {"max_grad_norm", "1", "gradients are scaled down to this norm; 0: never", AT(max_grad_norm), &from_0},
    {"gradient_clip_algorithm", "\"norm\"", "norm: by max_grad_norm; value: each element, by gradient_clip_value",
     AT(clip_algorithm), &clip_algorithm},
    {"gradient_clip_value", "0", "value: elements of gradients are cut to this, either way", AT(clip_value), &from_0},
    {"skip_update_lossz", "0",
     "a step is skipped whose loss is so many standard deviations above the mean of the last ones, as llm.c; 0: none",
     AT(skip_loss_z), &from_0},
    {"skip_update_gradz", "0", "the same of the gradient's norm", AT(skip_grad_z), &from_0},
    {"loss_guard_factor", "0",
     "a step whose loss is so many times the median of the last ones is what loss_guard_action says; 0: none",
     AT(guard_factor), &from_0},
    {"loss_guard_window", "128", "how many steps skip_update_* and loss_guard_factor look back; before, all pass",
     AT(guard_window), &guard_window},
    {"loss_guard_action", "\"skip\"",
     "skip: the step changes nothing; stop: the run ends before it; rollback: what changed since the last checkpoint "
     "is "
     "undone, too",
     AT(guard_action), &guard_action},
    {"loss_guard_rollbacks", "3", "how often loss_guard_action rollback goes back before the run ends",
     AT(guard_rollbacks), &guard_rollbacks},
    {"seed", "42", "of initial weights and the order of samples", AT(seed), &seed},
    {"limit_train_batches", "null",
     "batches of each rank that are used of an epoch, or below 1 a share of them; 1 is one batch; null: all",
     AT(limit_train_batches), &batches_or_null},
    {"overfit_batches", "0",
     "the same first batches in each epoch, not shuffled, and as many in an evaluation, counted likewise; 0: no",
     AT(overfit_batches), &batches},
    {"eval_every_n_steps", "0", "steps between evaluations on data.val; 0: only at the end", AT(eval_every_n_steps),
     &steps},
    {"check_replicas_every_n_steps", "0",
     "steps between comparisons of what several ranks hold alike, weights and optimizer state, bit by bit; 0: never",
     AT(check_replicas_every_n_steps), &steps},
    {"eval_batches", "0", "batches per evaluation, or below 1 a share of them; 0: all", AT(eval_batches),
     &eval_batches},
    {"eval_every_n_epochs", "0", "epochs between evaluations, also parts of one (0.25); 0: by eval_every_n_steps",
     AT(eval_every_n_epochs), &epochs},
    {"eval_delay", "0", "steps, or with eval_every_n_epochs epochs, before which nothing is evaluated but at the end",
     AT(eval_delay), &epochs},
    {"num_sanity_val_steps", "0", "batches of each set that a new run evaluates before its first step; -1: all",
     AT(num_sanity_val_steps), &steps_or_minus_1},
    {"min_steps", "0", "steps before which early_stopping and max_time end nothing", AT(min_steps), &steps},
    {"min_epochs", "0", "epochs before which they end nothing", AT(min_epochs), &epochs},
    {"max_time", "null", "a run that has trained for so long ends: \"DD:HH:MM:SS\", over all its starts", AT(max_time),
     &string_or_null},
    {"fast_dev_run", "0",
     "a trial of so many steps and as many batches of evaluation, which reads and writes no checkpoint; 0: no trial",
     AT(fast_dev_run), &steps},
    {"loss_normalization", "\"local_mean\"", "mean of the ranks' means, or mean over all tokens",
     AT(loss_normalization), &normalization},
    {"deterministic", "false",
     "on GPUs products are computed as the library proposes first, not as was measured once, attention by kernels of "
     "ours, and "
     "ranks sum in one order (by peer, not nccl); CPUs repeat bit by bit anyway",
     AT(deterministic), &boolean},
    {"attention", "\"auto\"",
     "on GPUs, in BF16 and for convolutions: own: kernels of ours; ordered: these or cuDNN, as was measured once, in "
     "an order; fast: "
     "backward "
     "may add up in no order, so bits need not repeat; auto: ordered; with deterministic only own",
     AT(attention), &attention},
    {"device", "\"auto\"", "where to compute; auto: on GPUs where there are some", AT(device), &device},
    {"share_gpu", "false", "several ranks may compute on one GPU", AT(share_gpu), &boolean},
    {"collectives", "\"auto\"",
     "how GPUs reach each other; auto: nccl where each rank has a GPU and NCCL is here, otherwise peer (one host)",
     AT(collectives), &collectives},
    {"collective_sms", "0",
     "multiprocessors that a collective by nccl may take, products beside it are planned for the others; 0: as NCCL "
     "chooses, products for all",
     AT(collective_sms), &multiprocessors},
    {"broadcast_buffers", "true", "each step begins with rank 0's running statistics on all ranks",
     AT(broadcast_buffers), &boolean},
    {"sync_batch_norm", "false", "batch norms take their statistics over the samples of all ranks", AT(sync_batch_norm),
     &boolean},
    {"cuda_graphs", "\"auto\"",
     "on GPUs a layer's kernels, and with one rank those of a micro-step, are launched as one CUDA graph; layers: of a "
     "layer in any case; auto: if a step is measured to be faster so",
     AT(cuda_graphs), &graphs},
    {"precision", "\"32-true\"",
     "bf16-mixed: BF16 weights, activations and gradients; fp32 masters, moments and statistics. 16-mixed: F16, with a "
     "loss scale (loss_scaling). bf16-true, 16-true: without masters. 64-true: all in fp64, on a CPU",
     AT(precision), &precision},
    {"matmul_precision", "\"highest\"",
     "of products of F32 on GPUs, as torch.set_float32_matmul_precision; high: operands are rounded to TF32",
     AT(matmul_precision), &matmul_precision},
    {"optimizer_state_dtype", "\"fp32\"",
     "of the optimizer's state; bf16: half the memory, rounded stochastically; weights of 16 bits without masters have "
     "bf16 unless it is given",
     AT(optimizer_state_dtype), &state_element},
    {"grad_accum_dtype", "\"fp32\"",
     "of gradients while they add up over micro-steps; the type of a 16-bit run: half the memory, rounded each time",
     AT(grad_accum_dtype), &accumulator},
    {"freeze", "null", "names of tensors (globs) that keep their values", AT(freeze), &globs},
    {"step_timeout", "0", "seconds one step may take; 0: any", AT(step_timeout_s), &seconds},
    {"collective_timeout", "600", "seconds to wait for other ranks; 0: for ever", AT(collective_timeout_s), &seconds},
    {"accumulate_sync", "\"auto\"", "when gradients are reduced under accumulation", AT(accumulate_sync), &accumulate},
    {"partial_accumulation", "\"step\"", "what becomes of an incomplete accumulation at the end of an epoch",
     AT(partial_accumulation), &partial},
    {"uneven_inputs", "\"drop\"",
     "samples at the end of an epoch that fill no batch of all ranks: left out; join: computed by the ranks that have "
     "some, while the others take part in what is sent; strict: an error before the first step",
     AT(uneven_inputs), &uneven},
    {"divide_by_initial_world_size", "true",
     "join with local_mean: ranks without samples count in the mean over ranks, as in PyTorch; false: they do not",
     AT(divide_by_initial_world_size), &boolean},
    {"threads", "0", "CPU threads per rank; 0: cores this process may use / local ranks", AT(threads), &threads},
    {0},
};
#undef AT
static const struct dt_field optimizer_fields[] = {
    {"name", "\"adamw\"", "which optimizer", offsetof(struct job_optimizer, name), &optimizer_name},
    {"groups", "null",
     "tensors by name: a list of {\"params\": glob or globs, \"learning_rate\" or \"lr_scale\", \"weight_decay\", "
     "\"betas\", \"eps\", \"momentum\", \"optimizer\"}; the first that names a tensor has it",
     offsetof(struct job_optimizer, groups_text), &groups},
    {0},
};
#define AT(member) offsetof(struct job_fsdp, member)
static const struct dt_field fsdp_fields[] = {
    {"device_mesh", "null", "[replicas, shards] of hybrid strategies; one shard group per host when null",
     AT(device_mesh), &mesh},
    {"reshard_after_forward", "null",
     "ranks over which weights are sliced from forward to backward, which gathers from fewer then: a divisor of those "
     "of the shard group; null: all of them",
     AT(reshard_after_forward), &ranks_or_null},
    {"backward_prefetch", "\"BACKWARD_PRE\"", "when the weights of the next backward are fetched",
     AT(backward_prefetch), &prefetch},
    {"forward_prefetch", "false", "fetch the next weights before this forward", AT(forward_prefetch), &boolean},
    {"limit_all_gathers", "true", "as in FSDP jobs; gathers wait for planned room whatever it says",
     AT(limit_all_gathers), &boolean},
    {"auto_wrap_policy", "\"transformer_based\"",
     "what is gathered and freed at a time: layers, layers side by side with min_num_params, or all at once (none)",
     AT(auto_wrap_policy), &wrap_by},
    {"layers_per_unit", "1", "transformer_based: layers that are gathered and freed together", AT(layers_per_unit),
     &layers},
    {"min_num_params", "100000000", "size_based: a unit takes layers until it has so many parameters",
     AT(min_num_params), &elements},
    {"wrap_layers", "null",
     "names of layers (globs) that are units; the others stay with the embedding, which is whole from forward to "
     "backward",
     AT(wrap_layers), &globs},
    {"prefetch_bucket_size", "null",
     "parameters that are gathered ahead of their use, in forward and backward; 0: none; null: the next layer, as "
     "forward_prefetch and backward_prefetch say",
     AT(prefetch_bucket_size), &elements_or_null},
    {"max_live_parameters", "null",
     "gathered parameters beyond which nothing is gathered ahead or kept for its next use", AT(max_live_parameters),
     &elements_or_null},
    {"max_reuse_distance", "0",
     "a layer is kept from forward to backward if fewer parameters than these are used between", AT(max_reuse_distance),
     &elements},
    {"param_persistence_threshold", "0",
     "tensors of at most so many elements stay whole on each rank, gathered once a step; null: ten times the model's "
     "width",
     AT(param_persistence_threshold), &elements_or_null},
    {"model_persistence_threshold", "null", "all of these together, divided by the ranks of a shard group, at most",
     AT(model_persistence_threshold), &elements_or_null},
    {"overlap_comm", "true",
     "sliced gradients are reduced while backward goes on; false: room for one layer's instead of two",
     AT(overlap_comm), &boolean},
    {0},
};
#undef AT
static const struct dt_field mixed_fields[] = {
    {"reduce_dtype", "null", "of gradients while they are reduced; as training.precision when null",
     offsetof(struct job_mixed, reduce_dtype), &element},
    {"buffer_dtype", "null", "as in FSDP jobs; these models have no buffers", offsetof(struct job_mixed, buffer_dtype),
     &element},
    {0},
};
#define AT(member) offsetof(struct scaler_settings, member)
static const struct dt_field scaling_fields[] = {
    {"algorithm", "\"auto\"",
     "how the scale follows overflows: as torch.amp.GradScaler, or as DeepSpeed's fp16 block; auto: deepspeed for the "
     "zero strategies, otherwise torch",
     AT(algorithm), &scaler},
    {"loss_scale", "0", "a scale that stays; 0: it follows overflows", AT(loss_scale), &from_0},
    {"initial_scale_power", "16", "it begins at 2 to this power", AT(initial_scale_power), &scale_power},
    {"growth_interval", "2000", "torch: good steps in a row before the scale grows", AT(growth_interval), &interval},
    {"growth_factor", "2", "torch: by which it grows then", AT(growth_factor), &growth},
    {"backoff_factor", "0.5", "torch: its factor after each overflow", AT(backoff_factor), &backoff},
    {"loss_scale_window", "1000", "deepspeed: steps without overflow before it doubles", AT(loss_scale_window),
     &interval},
    {"hysteresis", "2", "deepspeed: overflows before it is halved", AT(hysteresis), &interval},
    {"consecutive_hysteresis", "false", "deepspeed: a good step takes back what hysteresis has counted",
     AT(consecutive_hysteresis), &boolean},
    {"min_loss_scale", "null",
     "an overflow at this scale ends the run; when null 1 for deepspeed, and the least float for torch",
     AT(min_loss_scale), &least_scale},
    {0},
};
#undef AT
static const struct dt_field recompute_fields[] = {
    {"enabled", "false", "compute activations again in backward instead of keeping them",
     offsetof(struct job_recompute, enabled), &boolean},
    {"checkpoint_every_n_layers", "1", "every how many layers", offsetof(struct job_recompute, every_n_layers),
     &layers},
    {"level", "\"block\"",
     "what is computed again; auto: as little as the GPU's memory allows; full means block, selective means cheap; "
     "while not enabled none or cheap (norms and the activation), as a GPU's memory allows, and cheap on a CPU",
     offsetof(struct job_recompute, level), &level},
    {0},
};
#define AT(member) offsetof(struct job_offload, member)
static const struct dt_field offload_fields[] = {
    {"optimizer", "\"none\"",
     "where the optimizer's state and fp32 masters rest: none (the device), cpu (its host's memory), nvme (files)",
     AT(optimizer), &offload_to},
    {"parameters", "\"none\"", "where slices of the weights rest, of strategies that slice them", AT(parameters),
     &offload_to},
    {"activations", "\"none\"", "where rests what layers keep from forward to backward (activation_checkpointing)",
     AT(activations), &offload_to},
    {"ratio", "1", "share of the optimizer's state that is offloaded, by whole units", AT(ratio), &fraction},
    {"nvme_path", "null", "folder for the files, or a list of folders on several disks", AT(nvme_path),
     &strings_or_null},
    {"portion", "2097152", "elements of each array that an update brings at a time", AT(portion), &portion},
    {"buffer_count", "4", "portions of each array that have room on the device", AT(buffer_count), &buffers},
    {"pipeline_read", "true", "a portion is read while the one before it is computed with", AT(pipeline_read),
     &boolean},
    {"pipeline_write", "true", "a portion is written while the next ones are read and computed with",
     AT(pipeline_write), &boolean},
    {"engine", "\"auto\"", "files: how blocks are moved; auto: io_uring where it is to be had, otherwise threads",
     AT(engine), &offload_engine},
    {"block_size", "1048576", "files: bytes of a request, a multiple of 4096", AT(block_size), &block_size},
    {"queue_depth", "8", "files: requests at a time of each worker", AT(queue_depth), &queue_depth},
    {"intra_op_parallelism", "1", "files: workers that share one transfer", AT(intra_op_parallelism), &queue_depth},
    {"single_submit", "false", "io_uring: requests are submitted one by one", AT(single_submit), &boolean},
    {"overlap_events", "true", "io_uring: new requests are submitted while others are under way", AT(overlap_events),
     &boolean},
    {0},
};
#undef AT
#define AT(member) offsetof(struct job_checkpointing, member)
static const struct dt_field checkpointing_fields[] = {
    {"save_every_n_steps", "1000", "steps between checkpoints; 0: only at the end", AT(save_every_n_steps), &steps},
    {"save_every_n_epochs", "0",
     "epochs between checkpoints, also parts of one (0.25); save_every_n_steps is then 0 unless it is given; 0: by "
     "steps",
     AT(save_every_n_epochs), &epochs},
    {"save_every_n_seconds", "0",
     "seconds of training between checkpoints, by rank 0's clock; save_every_n_steps is then 0 unless it is given; 0: "
     "by no clock",
     AT(save_every_n_seconds), &seconds},
    {"keep_last_n", "3", "how many to keep; 0: all", AT(keep_last_n), &kept},
    {"resume", "\"auto\"", "auto, never, or the checkpoint to begin with: its folder, or its name in this run",
     AT(resume), &string},
    {"accept", "null", "keys that may differ from those of the checkpoint; its optimizer's state and counters are kept",
     AT(accept), &names_or_null},
    {"override", "null", "another name of accept", AT(override), &names_or_null},
    {"checkpoint_dir", "null", "output_dir/checkpoints when null", AT(checkpoint_dir), &string_or_null},
    {"asynchronous", "false",
     "training stands still only while what is saved is copied to host memory, and goes on while it is written",
     AT(beside), &boolean},
    {"skip_when_saving", "false",
     "asynchronous: a save that falls due while one is being written is left out, unless it is one of the best; false: "
     "it waits",
     AT(skips), &boolean},
    {"save_timeout", "600", "seconds a save may take; 0: any", AT(save_timeout_s), &seconds},
    {"snapshot_every_n_steps", "0",
     "steps between copies of the state in host memory, from which the job goes on when a worker dies; 0: "
     "none",
     AT(snapshot_every_n_steps), &steps},
    {"save_top_k", "0", "the best checkpoints to keep beside the newest; an evaluation that is one of them saves",
     AT(save_top_k), &top_checkpoints},
    {"monitor", "null", "save_top_k: by which value of an evaluation; val_loss when null", AT(monitor),
     &string_or_null},
    {"mode", "\"auto\"", "save_top_k: which value is better; auto: min of a loss, otherwise max", AT(mode), &mode},
    {"load_best_model_at_end", "false", "save_top_k: the folder model/ is the best checkpoint, not the last",
     AT(load_best), &boolean},
    {0},
};
#undef AT
#define AT(member) offsetof(struct job_logging, member)
static const struct dt_field logging_fields[] = {
    {"log_every_n_steps", "50", "steps between lines on the console and in metrics.jsonl", AT(log_every_n_steps),
     &interval},
    {"csv", "false", "the numbers of each logged step also as a table, metrics.csv in output_dir", AT(csv), &boolean},
    {"csv_path", "null", "the table's file; output_dir/metrics.csv when null", AT(csv_path), &string_or_null},
    {"timeline_steps", "null",
     "[first, count]: each rank writes what its streams did in these steps to timeline-rank-N.json in output_dir, for "
     "Perfetto",
     AT(timeline_steps), &pair},
    {"sample_every_n_steps", "0", "steps between samples, which continue the prompts of generation; 0: none",
     AT(sample_every_n_steps), &steps},
    {0},
};
#undef AT
#define AT(member) offsetof(struct job_generation, member)
static const struct dt_field generation_fields[] = {
    {"max_new_tokens", "null", "most ids behind a prompt; generation_config.json's when null, otherwise 256",
     AT(max_new_tokens), &new_tokens},
    {"do_sample", "null",
     "draw each id; false: the likeliest one; null: true beside one of the next four keys, otherwise as in "
     "generation_config.json",
     AT(do_sample), &flag_or_null},
    {"temperature", "null", "logits are divided by it; 0: the likeliest id; 1 when null here and there",
     AT(temperature), &temperature},
    {"top_k", "null", "ids that are left, the likeliest ones; 0: all", AT(top_k), &top_k},
    {"top_p", "null", "the likeliest ids are left whose likelihoods sum up to this", AT(top_p), &share_or_null},
    {"min_p", "null", "ids are left that are at least as likely as this share of the likeliest", AT(min_p),
     &share_or_null},
    {"repetition_penalty", "null", "logits of ids that the row has already are divided by it (multiplied below 0)",
     AT(repetition_penalty), &penalty},
    {"seed", "42", "of the draws", AT(seed), &seed},
    {"prompt", "null", "texts to continue", AT(prompt), &strings_or_null},
    {"prompt_ids", "null", "ids to continue, \"5,17,3\"; \"@FILE\": one prompt on each line of a file", AT(prompt_ids),
     &strings_or_null},
    {0},
};
#undef AT

#define AT(member) offsetof(struct job_export, member)
static const struct dt_field export_fields[] = {
    {"dtype", "\"float32\"", "type of the weights in model/", AT(dtype), &export_dtype},
    {"max_shard_size", "\"5GB\"", "most of them in a file: 5GB, 200MB, ... or bytes", AT(max_shard_size), &string},
    {0},
};
#undef AT

const struct job_section job_sections[JOB_SECTION_COUNT + 1] = {
    [JOB_TOP] = {"", "the job", top_fields, 0},
    [JOB_MODEL] = {"model", "what is trained", model_fields, offsetof(struct job, model)},
    [JOB_DATA] = {"data", "on what", data_fields, offsetof(struct job, data)},
    [JOB_TRANSFORMS] = {"transforms", "what is done to images", transform_fields, offsetof(struct job, transforms)},
    [JOB_TRAINING] = {"training", "how", training_fields, offsetof(struct job, training)},
    [JOB_OPTIMIZER] = {"optimizer", "what updates the weights", optimizer_fields, offsetof(struct job, optimizer)},
    [JOB_SCHEDULER] = {"scheduler", "numbers of single schedules", job_scheduler_fields,
                       offsetof(struct job, training.scheduler)},
    [JOB_DDP] = {"ddp", "details of ddp", job_ddp_fields, offsetof(struct job, ddp)},
    [JOB_POWER_SGD] = {"power_sgd", "ddp.comm_hook power_sgd", job_power_sgd_fields, offsetof(struct job, power_sgd)},
    [JOB_LOCAL_SGD] = {"local_sgd", "the strategy local_sgd, and ddp.comm_hook post_local_sgd", job_local_sgd_fields,
                       offsetof(struct job, local_sgd)},
    [JOB_FSDP] = {"fsdp", "details of the sharded strategies", fsdp_fields, offsetof(struct job, fsdp)},
    [JOB_MIXED] = {"mixed_precision", "FSDP's block", mixed_fields, offsetof(struct job, mixed)},
    [JOB_SCALING] = {"loss_scaling", "the scale of the loss, where fp16 is computed with", scaling_fields,
                     offsetof(struct job, loss_scaling)},
    [JOB_RECOMPUTE] = {"activation_checkpointing", "memory for time", recompute_fields,
                       offsetof(struct job, recompute)},
    [JOB_OFFLOAD] = {"offload", "where state rests that need not be on the device", offload_fields,
                     offsetof(struct job, offload)},
    [JOB_CHECKPOINTING] = {"checkpointing", "what is saved, and when", checkpointing_fields,
                           offsetof(struct job, checkpointing)},
    [JOB_STOPPING] = {"early_stopping", "when a run ends before its last step", job_stopping_fields,
                      offsetof(struct job, stopping)},
    [JOB_LOGGING] = {"logging", "what is said", logging_fields, offsetof(struct job, logging)},
    [JOB_EXPORT] = {"export", "the Hugging Face folder that a run leaves", export_fields, offsetof(struct job, export)},
    [JOB_GENERATION] = {"generation", "what is generated, and how ids are chosen", generation_fields,
                        offsetof(struct job, generation)},
    [JOB_SECTION_COUNT] = {0},
};
