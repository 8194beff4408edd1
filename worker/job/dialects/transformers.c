/* Hugging Face's TrainingArguments, with names of programs around it: TRL, LLaMA-Factory, axolotl,
 * fms-hf-tuning. */
#include "worker/job/dialects/transformers.h"

#include "base/file.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

bool transformers_number(struct dialect_use *u, const char *path, const cJSON *value, double *out)
{
    bool good = dt_config_number(value, out);
    if (!good) {
        dialect_wrong(u, path, "a number");
    }
    return good;
}

/* A folder; what a hub holds is for other programs to fetch. */
static void folder(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const char *name = cJSON_IsString(value) ? value->valuestring : NULL;
    if (name != NULL && !dt_file_exists(name)) {
        if (dt_config_value(u->c, r->to) == NULL) {
            dt_config_problem(u->c, path,
                              "%.100s is no folder here, and nothing is fetched; run: hf download %.100s --local-dir "
                              "DIR, then add --set %s=DIR",
                              name, name, r->to);
        }
        return;
    }
    dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
}

/* The order of samples follows the one seed that there is. */
static void data_seed(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    const cJSON *seed = dt_config_value(u->c, "training.seed"),
                *theirs = dt_config_value(u->c, dialect_path(u, "seed"));
    double number = 42, other; /* the default of both */
    (void)(dt_config_number(seed, &number) || dt_config_number(theirs, &number));
    if (!dt_config_number(value, &other) || other != number) {
        dt_config_problem(u->c, path, "the order of samples follows training.seed, which is %g; remove it", number);
    }
}

/* Seconds; people write 180000000 for "never". */
static void timeout(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    enum { YEAR = 31536000 };
    double number = 0;
    if (transformers_number(u, path, value, &number)) {
        dialect_give(u, path, r->to, cJSON_CreateNumber(number > YEAR ? 0 : number));
    }
}

/* true: the newest checkpoint; a path: that one; false: begin anew. */
static void resume(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    dialect_give(u, path, r->to,
                 cJSON_IsBool(value) ? cJSON_CreateString(cJSON_IsTrue(value) ? "auto" : "never")
                                     : cJSON_Duplicate(value, true));
}

/* One word of fsdp: "full_shard auto_wrap". False: it is none. */
static bool fsdp_word(struct dialect_use *u, const char *path, const char *word)
{
    static const char *const strategies[] = {"full_shard",   "shard_grad_op",      "no_shard",
                                             "hybrid_shard", "hybrid_shard_zero2", NULL};
    for (int i = 0; strategies[i] != NULL; i++) {
        if (strcasecmp(strategies[i], word) == 0) {
            dialect_give(u, path, "training.strategy", cJSON_CreateString(strategies[i]));
            return true;
        }
    }
    if (strcasecmp(word, "offload") == 0) {
        dialect_give(u, path, "offload.parameters", cJSON_CreateString("cpu"));
        dialect_give(u, path, "offload.optimizer", cJSON_CreateString("cpu"));
        return true;
    }
    return strcasecmp(word, "auto_wrap") == 0; /* each layer is a unit */
}

static void fsdp_words(struct dialect_use *u, const char *path, const char *text)
{
    for (const char *p = text; *p != 0;) {
        p += strspn(p, " ,");
        size_t size = strcspn(p, " ,");
        const char *word = dt_arena_printf(u->arena, "%.*s", (int)size, p);
        if (size > 0 && !fsdp_word(u, path, word)) {
            dt_config_problem(u->c, path,
                              "%.60s is none of full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2, "
                              "offload, auto_wrap",
                              word);
        }
        p += size;
    }
}

static void fsdp(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    for (const cJSON *v = cJSON_IsArray(value) ? value->child : NULL; v != NULL; v = v->next) {
        fsdp_words(u, path, cJSON_IsString(v) ? v->valuestring : "");
    }
    if (cJSON_IsString(value)) {
        fsdp_words(u, path, value->valuestring);
    } else if (!cJSON_IsArray(value) && !cJSON_IsBool(value)) {
        dialect_wrong(u, path, "words, \"full_shard auto_wrap\", a list of them, or true");
    }
}

static void sampling(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    bool in_order = cJSON_IsString(value) && strcasecmp(value->valuestring, "sequential") == 0;
    const struct dialect_rule words =
        WORDS(r->from, in_order ? "data.shuffle" : r->to, "random=|sequential=false|group_by_length=true");
    dialect_words(u, &words, path, value);
}

/* Programs that draw curves elsewhere. */
static void report_to(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    const cJSON *one = cJSON_IsArray(value) ? value->child : value;
    if (cJSON_IsString(one) && strcasecmp(one->valuestring, "none") != 0) {
        dialect_inert(u, path, "the numbers are in metrics.jsonl, and with logging.csv in a table");
    }
}

static bool is_empty(const cJSON *value)
{
    return cJSON_IsArray(value) ? value->child == NULL : cJSON_IsString(value) && *value->valuestring == 0;
}

static void debug(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    if (!is_empty(value)) {
        dialect_inert(u, path, "a norm that is not finite names its tensor");
    }
}

/* Of fairscale, before FSDP. */
static void sharded(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    if (!is_empty(value) && !dt_config_off(value)) {
        dt_config_problem(u->c, path, "fairscale is not supported; write fsdp");
    }
}

/* Its members are of another table. */
static void block(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)u;
    (void)r;
    (void)path;
    (void)value;
}

/* null clips nothing; axolotl leaves out what is null. */
static void clip(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    bool axolotl = dialect_says(u, "micro_batch_size") || dialect_says(u, "num_epochs");
    if (value != NULL || !axolotl) {
        dialect_give(u, path, r->to, value != NULL ? cJSON_Duplicate(value, true) : cJSON_CreateNumber(0));
    }
}

#define LOSS "training.loss_normalization"
#define TOKENS "average_tokens_across_devices"

/* dialects_rank_mean looks at false again, once the batch is known. */
static void tokens(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const struct dialect_rule words = WORDS(r->from, r->to, "true=global_tokens|false=local_mean");
    dialect_words(u, &words, path, value);
}

/* Sharding that is switched on and says no more. */
static void defaults(struct dialect_use *u)
{
    transformers_eval_default(u);
    const cJSON *on = dt_config_value(u->c, dialect_path(u, "fsdp")),
                *block = dt_config_value(u->c, dialect_path(u, "fsdp_config"));
    bool empty = cJSON_IsArray(on) ? on->child == NULL : cJSON_IsString(on) ? *on->valuestring == 0 : !cJSON_IsTrue(on);
    if (dt_config_value(u->c, "training.strategy") == NULL && (!empty || (on == NULL && cJSON_IsObject(block)))) {
        dt_config_move(u->c, dialect_path(u, on != NULL ? "fsdp" : "fsdp_config"), "training.strategy",
                       cJSON_CreateString("full_shard"));
    }
}

#define LATER "not there yet; remove it"
#define TUNING "data of fine-tuning are not there yet; remove it, and give data.train"
#define ADAPTER "adapters are not there yet; remove it"
#define WORKERS "a thread reads ahead"
#define SPEED "speed alone"
#define HUB "nothing is uploaded"
#define WANDB "the numbers are in metrics.jsonl"
#define COUNTED "always reported"
#define BY_STEPS "lines come by logging_steps"
#define WHOLE_LAYER "a layer is not split over ranks; write 1, and fsdp or deepspeed shards its weights"
#define SCHEDULES                                                                                                      \
    "`training.lr_scheduler_type` by the same name; cosine_with_min_lr is `cosine`, warmup_stable_decay with a "       \
    "linear "                                                                                                          \
    "decay_type `warmup_stable_decay_linear`; cosine_warmup_with_min_lr and greedy are refused"
#define OPTIMIZERS                                                                                                     \
    "`optimizer.name`: adamw_torch, adamw_torch_fused, adamw_hf, adamw_apex_fused and paged_adamw_32bit = `adamw`, "   \
    "sgd = `sgd`, adagrad = `adagrad`, lion_32bit and paged_lion_32bit = `lion`, muon = `muon`; others are refused"
#define LEAST "`training.min_lr_ratio`, as a share of learning_rate"
#define FOR_PLATEAU(name) MOVE("lr_scheduler_kwargs." name, "scheduler." name)

static const struct dialect_rule rules[] = {
    MOVE_OR("per_device_train_batch_size", "training.batch_size_per_gpu", "8"),
    MOVE("per_gpu_train_batch_size", "training.batch_size_per_gpu"),
    MOVE("micro_batch_size", "training.batch_size_per_gpu"),
    SILENT("per_device_eval_batch_size", "evaluation counts each sample once, in batches of training's size"),
    SILENT("per_gpu_eval_batch_size", "evaluation counts each sample once, in batches of training's size"),
    SILENT("eval_batch_size", "evaluation counts each sample once, in batches of training's size"),
    MOVE("gradient_accumulation_steps", "training.gradient_accumulation_steps"),
    MOVE("num_train_epochs", "training.num_epochs"),
    MOVE("num_epochs", "training.num_epochs"),
    MOVE("max_steps", "training.max_steps"),
    MOVE("learning_rate", "training.learning_rate"),
    MOVE("weight_decay", "training.weight_decay"),
    FUNCTION("adam_beta1", "training.adam_beta1", transformers_beta1,
             "`training.adam_beta1`; of lion `optimizer.beta1`; of sgd and adagrad no effect"),
    FUNCTION("adam_beta2", "training.adam_beta2", transformers_beta2,
             "`training.adam_beta2`; of lion `optimizer.beta2`; of sgd and adagrad no effect"),
    FUNCTION("adam_epsilon", "training.adam_epsilon", transformers_epsilon,
             "`training.adam_epsilon`; of lion, sgd and adagrad no effect"),
    {.from = "max_grad_norm",
     .to = "training.max_grad_norm",
     .how = DIALECT_FUNCTION,
     .fn = clip,
     .text = "`training.max_grad_norm`; null is 0, but of axolotl",
     .sees_null = true},
    FUNCTION("lr_scheduler_type", "training.lr_scheduler_type", transformers_schedule, SCHEDULES),
    FUNCTION("lr_scheduler", "training.lr_scheduler_type", transformers_schedule, SCHEDULES),
    MOVE("lr_scheduler_kwargs.min_lr_rate", "training.min_lr_ratio"),
    MOVE("lr_scheduler_kwargs.min_lr_ratio", "training.min_lr_ratio"),
    FUNCTION("lr_scheduler_kwargs.min_lr", "training.min_lr_ratio", transformers_least,
             LEAST "; of reduce_lr_on_plateau `scheduler.min_lr`"),
    FUNCTION("lr_scheduler_kwargs.lr_end", "training.min_lr_ratio", transformers_least,
             LEAST "; 1e-7 where polynomial does not say it"),
    MOVE("lr_scheduler_kwargs.power", "training.lr_power"),
    FUNCTION("lr_scheduler_kwargs.num_cycles", "scheduler.num_cycles", transformers_cycles,
             "`scheduler.num_cycles` of cosine_with_restarts; others fall as half a wave, 0.5"),
    MOVE("lr_scheduler_kwargs.timescale", "scheduler.timescale"),
    MOVE("lr_scheduler_kwargs.num_decay_steps", "scheduler.num_decay_steps"),
    FUNCTION_OF(OUTCOME_REFUSED, "lr_scheduler_kwargs.num_stable_steps", NULL, transformers_no_stable,
                "refused: the rate stays for what warm-up and num_decay_steps leave"),
    SILENT("lr_scheduler_kwargs.decay_type", "cosine and linear; belongs to warmup_stable_decay"),
    SILENT("lr_scheduler_kwargs.warmup_type", "linear; belongs to warmup_stable_decay"),
    FOR_PLATEAU("mode"),
    FOR_PLATEAU("factor"),
    FOR_PLATEAU("patience"),
    FOR_PLATEAU("threshold"),
    FOR_PLATEAU("threshold_mode"),
    FOR_PLATEAU("cooldown"),
    FOR_PLATEAU("eps"),
    FUNCTION("warmup_ratio", "training.warmup_ratio", transformers_warmup,
             "`training.warmup_ratio`; of constant and reduce_lr_on_plateau no effect"),
    FUNCTION(
        "warmup_steps", "training.warmup_steps", transformers_warmup,
        "`training.warmup_steps`; below 1 `training.warmup_ratio`; of constant and reduce_lr_on_plateau no effect"),
    FUNCTION("optim", "optimizer.name", transformers_optimizer, OPTIMIZERS),
    FUNCTION("optimizer", "optimizer.name", transformers_optimizer, OPTIMIZERS),
    WORDS("use_muon", "optimizer.name", "false=|true=muon"),
    REFUSE("optim_args", "write the numbers under optimizer"),
    REFUSE("optim_target_modules", "it belongs to GaLore and APOLLO, which are not there; remove it"),
    WORDS("half_precision_backend", NULL, "auto=|cuda_amp=|cpu_amp=|apex=~weights are kept in fp32 anyway"),
    WORDS("fp16_backend", NULL, "auto=|amp=|apex=~weights are kept in fp32 anyway"),
    WORDS("fp16_opt_level", NULL, "O1=|*=~counts with apex alone"),
    WORDS("adafactor", NULL, "false=|true=!not there yet; write optim adamw_torch"),
    WORDS("bf16", "training.precision", "true=bf16-mixed|false=|auto=bf16-mixed|full=bf16-true"),
    WORDS("fp16", "training.precision", "true=16-mixed|false="),
    WORDS("tf32", "training.matmul_precision", "true=high|false="),
    WORDS("bf16_full_eval", NULL, "false=|true=!evaluation has the precision of training; remove it"),
    WORDS("fp16_full_eval", NULL, "false=|true=!evaluation has the precision of training; remove it"),
    WORDS("torch_dtype", NULL, "auto=|float32=|bfloat16=~masters are kept in fp32|float16=~masters are kept in fp32"),
    WORDS("dtype", NULL, "auto=|float32=|bfloat16=~masters are kept in fp32|float16=~masters are kept in fp32"),
    WORDS("gradient_checkpointing", "activation_checkpointing.enabled", "true=true|false=false"),
    SILENT("gradient_checkpointing_kwargs", "there is one way to compute again"),
    WORDS("activation_offloading", "offload.activations", "true=cpu|false=|legacy=cpu|disk=nvme"),
    WORDS("activation_checkpointing", "activation_checkpointing.enabled", "true=true|false=false"),
    SILENT("activation_checkpointing_kwargs", "there is one way to compute again"),
    SILENT("use_cache", "counts in generation alone, which keeps keys and values"),
    SILENT("torch_empty_cache_steps", "memory is planned as a whole"),
    {.from = "logging_steps",
     .to = "logging.log_every_n_steps",
     .how = DIALECT_FUNCTION,
     .fn = transformers_logging,
     .text = "`logging.log_every_n_steps`; a share is one of max_steps",
     .fallback = "500"},
    WORDS("logging_strategy", NULL, "steps=|epoch=~" BY_STEPS "|no=~" BY_STEPS "|false=~" BY_STEPS),
    WORDS("logging_first_step", NULL, "false=|true=~" BY_STEPS),
    SILENT("logging_nan_inf_filter", "a loss that is not finite is shown"),
    INERT("logging_dir", "logs are in the run's folder"),
    WORDS("eval_strategy", "training.eval_every_n_epochs", "steps=|no=|false=|epoch=1"),
    WORDS("evaluation_strategy", "training.eval_every_n_epochs", "steps=|no=|false=|epoch=1"),
    FUNCTION("eval_steps", "training.eval_every_n_steps", transformers_eval_steps,
             "`training.eval_every_n_steps`; a share is one of max_steps, or of the epochs: "
             "`training.eval_every_n_epochs`; logging_steps where eval_strategy steps does not say it"),
    FUNCTION("eval_delay", "training.eval_delay", transformers_eval_delay,
             "`training.eval_delay`: steps, or epochs where eval_strategy is epoch"),
    WORDS("eval_on_start", "training.num_sanity_val_steps", "false=|true=-1"),
    FUNCTION("evals_per_epoch", "training.eval_every_n_epochs", transformers_per_epoch,
             "`training.eval_every_n_epochs`: 4 is 0.25"),
    SILENT("eval_accumulation_steps", "nothing of evaluation is kept"),
    SILENT("do_train", "--evaluate alone trains nothing"),
    SILENT("do_eval", "data.val decides"),
    SILENT("do_predict", "train --generate does"),
    WORDS("val_set_size", NULL, "0=|*=!no share of the data is split off; give data.val"),
    FUNCTION(
        "save_strategy", "checkpointing.save_every_n_epochs", transformers_save_strategy,
        "steps: save_steps; epoch: `checkpointing.save_every_n_epochs` is 1; best: `checkpointing.save_top_k` is 1; "
        "no and false: the end alone saves"),
    {.from = "save_steps",
     .to = "checkpointing.save_every_n_steps",
     .how = DIALECT_FUNCTION,
     .fn = transformers_save_steps,
     .text = "`checkpointing.save_every_n_steps`; a share is one of max_steps, or of the epochs: "
             "`checkpointing.save_every_n_epochs`",
     .fallback = "500"},
    FUNCTION("saves_per_epoch", "checkpointing.save_every_n_epochs", transformers_per_epoch,
             "`checkpointing.save_every_n_epochs`: 4 is 0.25"),
    {.from = "save_total_limit",
     .to = "checkpointing.keep_last_n",
     .how = DIALECT_FUNCTION,
     .fn = transformers_total_limit,
     .text = "`checkpointing.keep_last_n`; one less beside load_best_model_at_end, which keeps the best",
     .fallback = "0"},
    WORDS("save_only_model", NULL, "false=|true=~checkpoints hold all state, and model/ the weights"),
    SILENT("save_safetensors", "there is no other format"),
    SILENT("save_on_each_node", "a shared folder holds one copy"),
    FUNCTION("load_best_model_at_end", "checkpointing.load_best_model_at_end", transformers_load_best,
             "`checkpointing.load_best_model_at_end`, and `save_top_k` is 1; an evaluation that is the best saves"),
    FUNCTION("metric_for_best_model", "scheduler.monitor", transformers_metric,
             "`checkpointing.monitor` of load_best_model_at_end and save_strategy best, `early_stopping.monitor`, "
             "`scheduler.monitor` of reduce_lr_on_plateau: loss, accuracy, f1, pearson, with or without eval_"),
    FUNCTION("greater_is_better", "checkpointing.mode", transformers_greater,
             "`checkpointing.mode`, `early_stopping.mode`: true is max, false is min"),
    FUNCTION("early_stopping_patience", "early_stopping.patience", transformers_patience,
             "`early_stopping.patience`, as EarlyStoppingCallback; of metric_for_best_model, or the loss"),
    FUNCTION("early_stopping_threshold", "early_stopping.min_delta", transformers_threshold,
             "`early_stopping.min_delta`, and `early_stopping.compare_with_best` is true"),
    MOVE("output_dir", "output_dir"),
    INERT("run_name", "the folder's name is the run's"),
    WORDS("overwrite_output_dir", NULL, "false=|true=~a run goes on from its newest checkpoint; --fresh begins anew"),
    FUNCTION("resume_from_checkpoint", "checkpointing.resume", resume,
             "`checkpointing.resume`: true = `auto`, false = `never`, or a path"),
    WORDS("ignore_data_skip", NULL, "false=|true=!a run goes on with the sample where it stopped; remove it"),
    MOVE("seed", "training.seed"),
    FUNCTION_OF(OUTCOME_REFUSED, "data_seed", NULL, data_seed, "that of seed is taken; others are refused"),
    WORDS("full_determinism", "training.deterministic", "true=true|false=false"),
    MOVE("max_seq_length", "data.sequence_length"),
    MOVE("max_length", "data.sequence_length"),
    MOVE("cutoff_len", "data.sequence_length"),
    MOVE("sequence_len", "data.sequence_length"),
    WORDS("packing", NULL,
          "false=|true=!texts are packed anyway, and data.document_mask keeps documents apart; remove it"),
    WORDS("eval_packing", NULL, "false=|true=!" LATER),
    SILENT("packing_strategy", "counts with packing alone"),
    WORDS("padding_free", NULL, "false=|true=!" LATER),
    SILENT("pad_to_multiple_of", "a batch has the length of its longest row"),
    WORDS("sample_packing", NULL, "false=|true=!" LATER),
    WORDS("pad_to_sequence_len", NULL, "false=|true=!" LATER),
    REFUSE("chat_template", TUNING),
    REFUSE("template", TUNING),
    REFUSE("dataset", TUNING),
    REFUSE("datasets", TUNING),
    REFUSE("dataset_name", TUNING),
    REFUSE("dataset_config", TUNING),
    SILENT("dataset_train_split", "goes with dataset_name"),
    SILENT("dataset_test_split", "goes with dataset_name"),
    REFUSE("dataset_kwargs", TUNING),
    REFUSE("eos_token", TUNING),
    REFUSE("pad_token", TUNING),
    REFUSE("chat_template_path", TUNING),
    WORDS("completion_only_loss", NULL, "false=|true=!" TUNING),
    WORDS("assistant_only_loss", NULL, "false=|true=!" TUNING),
    WORDS("loss_type", NULL, "nll=|*=!" LATER),
    SILENT("shuffle_dataset", "`data.shuffle` says it"),
    REFUSE("model_init_kwargs", "write the keys of model in the job"),
    WORDS("sortish_sampler", NULL, "false=|true=!write group_by_length"),
    WORDS("predict_with_generate", NULL,
          "false=|true=~evaluation counts the loss; logging.sample_every_n_steps shows text"),
    SILENT("generation_max_length", "counts with predict_with_generate alone"),
    SILENT("generation_num_beams", "counts with predict_with_generate alone"),
    SILENT("generation_config", "counts with predict_with_generate alone"),
    REFUSE("dataset_dir", TUNING),
    REFUSE("dataset_mixture", TUNING),
    REFUSE("eval_dataset", TUNING),
    REFUSE("val_size", TUNING),
    REFUSE("test_datasets", TUNING),
    REFUSE("dataset_text_field", TUNING),
    REFUSE("training_data_path", TUNING),
    REFUSE("validation_data_path", TUNING),
    REFUSE("response_template", TUNING),
    REFUSE("special_tokens", TUNING),
    REFUSE("max_samples", TUNING),
    WORDS("train_on_inputs", NULL, "true=|false=!" TUNING),
    INERT("dataset_prepared_path", "shards of texts are kept in data.cache_dir"),
    WORDS("stage", NULL, "pt=|*=!" TUNING),
    WORDS("finetuning_type", NULL, "full=|*=!" ADAPTER),
    REFUSE("adapter", ADAPTER),
    WORDS("use_peft", NULL, "false=|true=!" ADAPTER),
    REFUSE("lora_r", ADAPTER),
    REFUSE("lora_alpha", ADAPTER),
    REFUSE("lora_dropout", ADAPTER),
    REFUSE("lora_target", ADAPTER),
    REFUSE("lora_target_modules", ADAPTER),
    WORDS("load_in_8bit", NULL, "false=|true=!" LATER),
    WORDS("load_in_4bit", NULL, "false=|true=!" LATER),
    WORDS("label_smoothing_factor", NULL, "0=|*=!" LATER),
    REFUSE("neftune_noise_alpha", LATER),
    {.from = TOKENS,
     .to = LOSS,
     .how = DIALECT_FUNCTION,
     .fn = tokens,
     .text = "`training.loss_normalization`: true is `global_tokens`; false is `local_mean`, and refused with "
             "accumulation on several ranks; heads that take means themselves (classes of tokens, masked words but "
             "ModernBERT's) stay `local_mean`",
     .fallback = "\"global_tokens\""},
    FUNCTION("fsdp", "training.strategy", fsdp,
             "`training.strategy`: full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2; auto_wrap is "
             "taken; offload: `offload.parameters` and `offload.optimizer` are cpu"),
    {.from = "fsdp_config", .how = DIALECT_FUNCTION, .fn = block, .text = "FSDP's block", .shallow = true},
    {.from = "deepspeed", .how = DIALECT_FUNCTION, .fn = block, .text = "DeepSpeed's configuration", .shallow = true},
    REFUSE("parallelism_config",
           "write fsdp.device_mesh in the job, beside hybrid_shard; a layer is not split over ranks"),
    WORDS("fsdp_min_num_params", NULL, "0=|*=!write it in fsdp_config, as min_num_params"),
    REFUSE("fsdp_transformer_layer_cls_to_wrap", "write it in fsdp_config"),
    FUNCTION_OF(OUTCOME_REFUSED, "sharded_ddp", NULL, sharded, "refused: write fsdp; empty it says nothing"),
    FUNCTION("ddp_timeout", "training.collective_timeout", timeout,
             "`training.collective_timeout`; more than a year is for ever"),
    WORDS("ddp_find_unused_parameters", NULL, "false=|true=~these models use all their parameters"),
    MOVE("ddp_bucket_cap_mb", "ddp.bucket_cap_mb"),
    WORDS("ddp_broadcast_buffers", "training.broadcast_buffers", "true=true|false=false"),
    INERT("ddp_backend", "`training.collectives` says how ranks talk"),
    SILENT("local_rank", "comes from dtrun"),
    WORDS("use_cpu", "training.device", "true=cpu|false="),
    WORDS("no_cuda", "training.device", "true=cpu|false="),
    SILENT("dataloader_num_workers", WORKERS),
    SILENT("dataloader_pin_memory", WORKERS),
    SILENT("dataloader_persistent_workers", WORKERS),
    SILENT("dataloader_prefetch_factor", WORKERS),
    WORDS("dataloader_drop_last", NULL, "true=|false=~an epoch has whole micro-batches alone"),
    SILENT("preprocessing_num_workers", WORKERS),
    SILENT("dataset_num_proc", WORKERS),
    SILENT("dataset_processes", WORKERS),
    SILENT("overwrite_cache", "shards of texts are made anew when texts change"),
    SILENT("remove_unused_columns", "the model's alone are read"),
    FUNCTION("train_sampling_strategy", "data.group_by_length", sampling,
             "random is taken; sequential: `data.shuffle` is false; group_by_length: `data.group_by_length` is true"),
    WORDS("group_by_length", "data.group_by_length", "true=true|false=false"),
    SILENT("length_column_name", "lengths are known"),
    SILENT("include_tokens_per_second", COUNTED),
    SILENT("include_num_input_tokens_seen", COUNTED),
    SILENT("plot_loss", "metrics.jsonl has the numbers"),
    SILENT("prediction_loss_only", "evaluation counts what the model has"),
    SILENT("disable_tqdm", "lines come by steps"),
    SILENT("log_level", "DTRUN_LOG says what is logged"),
    SILENT("log_level_replica", "DTRUN_LOG says what is logged"),
    SILENT("log_on_each_node", "one rank writes lines"),
    FUNCTION("report_to", NULL, report_to, "none is taken; others have no effect: `metrics.jsonl` has the numbers"),
    INERT("wandb_project", WANDB),
    INERT("wandb_entity", WANDB),
    INERT("wandb_watch", WANDB),
    INERT("wandb_name", WANDB),
    INERT("wandb_run_id", WANDB),
    INERT("wandb_log_model", WANDB),
    WORDS("push_to_hub", NULL, "false=|true=~" HUB),
    SILENT("hub_model_id", HUB),
    SILENT("hub_strategy", HUB),
    SILENT("hub_token", HUB),
    SILENT("hub_private_repo", HUB),
    SILENT("push_to_hub_model_id", HUB),
    SILENT("push_to_hub_organization", HUB),
    SILENT("push_to_hub_token", HUB),
    FUNCTION("model_name_or_path", "model.load", folder, "`model.load`: a folder"),
    FUNCTION("base_model", "model.load", folder, "`model.load`: a folder"),
    FUNCTION("tokenizer_name_or_path", "data.tokenizer", folder, "`data.tokenizer`: a folder"),
    SILENT("model_revision", "a folder has one"),
    WORDS("trust_remote_code", NULL, "false=|true=~no code of a model is run"),
    SILENT("attn_implementation", SPEED),
    SILENT("use_flash_attn", SPEED),
    SILENT("flash_attention", SPEED),
    SILENT("flash_attn", SPEED),
    SILENT("use_liger_kernel", SPEED),
    SILENT("liger_rope", SPEED),
    SILENT("liger_rms_norm", SPEED),
    SILENT("liger_glu_activation", SPEED),
    SILENT("liger_layer_norm", SPEED),
    SILENT("liger_fused_linear_cross_entropy", SPEED),
    INERT("plugins", "plugins of Python are not loaded"),
    WORDS("torch_compile", NULL, "false=|true=~nothing is compiled while it trains"),
    WORDS("auto_find_batch_size", NULL,
          "false=|true=!train --plan --find_batch_size says the largest; write it into the job"),
    INERT("torch_compile_backend", "nothing is compiled while it trains"),
    INERT("torch_compile_mode", "nothing is compiled while it trains"),
    WORDS("torchdynamo", NULL, "*=~nothing is compiled while it trains"),
    SILENT("liger_kernel_config", SPEED),
    INERT("project", WANDB),
    INERT("trackio_space_id", WANDB),
    INERT("trackio_bucket_id", WANDB),
    INERT("trackio_static_space_id", WANDB),
    SILENT("eval_do_concat_batches", "evaluation counts what the model has"),
    SILENT("eval_use_gather_object", "evaluation counts what the model has"),
    SILENT("include_for_metrics", "evaluation counts what the model has"),
    SILENT("batch_eval_metrics", "evaluation counts what the model has"),
    SILENT("include_inputs_for_metrics", "evaluation counts what the model has"),
    WORDS("enable_jit_checkpoint", NULL, "false=|true=~a run that is told to stop saves anyway"),
    SILENT("hub_always_push", HUB),
    SILENT("hub_revision", HUB),
    WORDS("restore_callback_states_from_checkpoint", NULL, "false=|true=~checkpoints hold all state"),
    WORDS("accelerator_config.split_batches", NULL,
          "false=|true=!batches are per rank; write false, and per_device_train_batch_size divided by the ranks"),
    SILENT("accelerator_config.dispatch_batches", "each rank reads its own samples"),
    SILENT("accelerator_config.even_batches", "evaluation counts each sample once"),
    SILENT("accelerator_config.use_seedable_sampler", "orders follow training.seed"),
    SILENT("accelerator_config.non_blocking", "copies run beside training"),
    SILENT("accelerator_config.use_configured_state", "counts in Python alone"),
    REFUSE("accelerator_config.gradient_accumulation_kwargs", "write gradient_accumulation_steps"),
    WORDS("split_batches", NULL,
          "false=|true=!batches are per rank; write false, and per_device_train_batch_size divided by the ranks"),
    SILENT("dispatch_batches", "each rank reads its own samples"),
    WORDS("use_legacy_prediction_loop", NULL, "false=|true=~there is one loop"),
    INERT("xpu_backend", "`training.collectives` says how ranks talk"),
    SILENT("dataloader_multiprocessing_context", WORKERS),
    SILENT("dataloader_in_order", WORKERS),
    SILENT("label_names", "the model has names of its own"),
    WORDS("ddp_static_graph", NULL, "false=|true=~these models use all their parameters, in one order"),
    FUNCTION_OF(OUTCOME_NO_EFFECT, "debug", NULL, debug, "no effect: a norm that is not finite names its tensor"),
    WORDS("jit_mode_eval", NULL, "false=|true=~nothing is compiled while it trains"),
    WORDS("use_ipex", NULL, "false=|true=~oneDNN computes on CPUs"),
    WORDS("use_mps_device", NULL, "false=|true=!Apple's GPUs are not supported; remove it"),
    SILENT("ray_scope", "counts in a search for hyperparameters alone"),
    SILENT("past_index", "counts with models that keep a state"),
    SILENT("mp_parameters", "counts with SageMaker alone"),
    SILENT("tpu_num_cores", "counts on TPUs alone"),
    WORDS("tpu_metrics_debug", NULL, "false=|true=~counts on TPUs alone"),
    SILENT("skip_memory_metrics", "`--plan` has memory by purpose"),
    /* LLaMA-Factory */
    SILENT("enable_liger_kernel", SPEED),
    WORDS("use_unsloth", NULL, "false=|true=~speed alone"),
    WORDS("use_unsloth_gc", NULL, "false=|true=~there is one way to compute again"),
    WORDS("pure_bf16", "training.precision", "false=|true=bf16-true"),
    WORDS("upcast_layernorm", NULL, "false=|true=~norms are computed in fp32 anyway"),
    WORDS("disable_gradient_checkpointing", "activation_checkpointing.enabled", "false=|true=false"),
    WORDS("neat_packing", NULL, "false=|true=!" LATER),
    WORDS("mask_history", NULL, "false=|true=!" TUNING),
    WORDS("streaming", NULL, "false=|true=~" WORKERS),
    REFUSE("tokenized_path", TUNING),
    WORDS("split_special_tokens", NULL, "false=|true=!" LATER),
    WORDS("resize_vocab", NULL, "false=|true=!" LATER),
    REFUSE("rope_scaling", "write model.rope_type in the job"),
    WORDS("compute_accuracy", NULL, "false=|true=~evaluation counts what the model has"),
    WORDS("use_swanlab", NULL, "false=|true=~" WANDB),
    SILENT("include_effective_tokens_per_second", COUNTED),
    SILENT("low_cpu_mem_usage", "memory is planned as a whole"),
    SILENT("use_fast_tokenizer", "there is one"),
    SILENT("cache_dir", "nothing is fetched"),
    /* axolotl */
    SILENT("xformers_attention", SPEED),
    SILENT("sdp_attention", SPEED),
    SILENT("eager_attention", SPEED),
    SILENT("flex_attention", SPEED),
    SILENT("flash_attn_cross_entropy", SPEED),
    SILENT("flash_attn_rms_norm", SPEED),
    SILENT("flash_attn_fuse_qkv", SPEED),
    SILENT("flash_attn_fuse_mlp", SPEED),
    WORDS("s2_attention", NULL, "false=|true=!" LATER),
    WORDS("eval_sample_packing", NULL, "false=|true=!" LATER),
    SILENT("eval_table_size", "evaluation counts what the model has"),
    SILENT("eval_max_new_tokens", "evaluation counts what the model has"),
    MOVE("cosine_min_lr_ratio", "training.min_lr_ratio"),
    REFUSE("cosine_constant_lr_ratio", LATER),
    REFUSE("loss_watchdog_threshold", "here it is training.loss_guard_factor, in medians; write that, and remove it"),
    SILENT("loss_watchdog_patience", "counts with loss_watchdog_threshold alone"),
    WORDS("auto_resume_from_checkpoints", "checkpointing.resume", "true=auto|false="),
    WORDS("save_first_step", NULL, "false=|true=~saves come by save_steps"),
    SILENT("shuffle_merged_datasets", "`data.shuffle` says it"),
    REFUSE("pretraining_dataset", TUNING),
    REFUSE("rl", TUNING),
    REFUSE("lora_model_dir", ADAPTER),
    REFUSE("lora_target_linear", ADAPTER),
    REFUSE("lora_modules_to_save", ADAPTER),
    REFUSE("lora_fan_in_fan_out", ADAPTER),
    REFUSE("unfrozen_parameters", "training.freeze names the tensors that stay; write that, and remove it"),
    WORDS("sequence_parallel_degree", NULL, "1=|*=!" WHOLE_LAYER),
    WORDS("context_parallel_size", NULL, "1=|*=!" WHOLE_LAYER),
    WORDS("tensor_parallel_size", NULL, "1=|*=!" WHOLE_LAYER),
    WORDS("fsdp_version", NULL, "2=|1=!write it in fsdp_config, as version"),
    SILENT("model_type", "the folder's class decides"),
    SILENT("tokenizer_type", "the folder's files decide"),
    SILENT("is_llama_derived_model", "the folder's class decides"),
    SILENT("is_mistral_derived_model", "the folder's class decides"),
    SILENT("strict", "unknown keys are refused anyway"),
    INERT("wandb_mode", WANDB),
    WORDS("use_mlflow", NULL, "false=|true=~" WANDB),
    WORDS("resize_token_embeddings_to_32x", NULL, "false=|true=~tables are padded as they are read"),
    SILENT("hf_use_auth_token", HUB),
    {0},
};

static const char *const places[] = {"transformers", NULL};

const struct dialect dialect_transformers = {
    .name = "Hugging Face",
    .section = "transformers",
    .places = places,
    .marks = "per_device_train_batch_size|micro_batch_size|num_train_epochs|model_name_or_path|base_model|"
             "learning_rate|fsdp|accelerate_launch_args|per_device_eval_batch_size|lr_scheduler_type|"
             "gradient_checkpointing|logging_steps|save_steps|eval_strategy|warmup_ratio|num_epochs",
    .autos = "|tf32|attn_implementation|flash_attn|flash_attention|" /* of axolotl and LLaMA-Factory */
             "run_name|output_dir|hub_model_id|",                    /* names */
    .rules = rules,
    .defaults = defaults};

bool dialects_own_mean(struct dt_config *c, const char *class)
{
    static const char *const classes[] = {"BertForMaskedLM",
                                          "BertForTokenClassification",
                                          "RobertaForMaskedLM",
                                          "RobertaForTokenClassification",
                                          "DistilBertForMaskedLM",
                                          "DistilBertForTokenClassification",
                                          "ModernBertForTokenClassification"};
    const char *from = dt_config_where(c, "model.load") != NULL ? "model.load" : "model.name";
    bool own = false;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        own |= strcmp(classes[i], class) == 0;
    }
    /* a key of the job's own has its own name */
    own = own && dt_config_where(c, LOSS) != NULL && strcmp(dt_config_name(c, LOSS), LOSS) != 0;
    if (own) {
        dt_config_move(c, from, LOSS, cJSON_CreateString("local_mean"));
        dt_config_pass(c, LOSS);
    }
    return own;
}

bool dialects_rank_mean(struct dt_config *c, int64_t micro_steps, int world)
{
    bool means = micro_steps > 1 && strcmp(dt_config_name(c, LOSS), TOKENS) == 0;
    if (means && world > 1) {
        dt_config_problem(c, LOSS,
                          "with accumulation a rank's mean is over each micro-batch here, not over all; write true, or "
                          "gradient_accumulation_steps 1");
    } else if (means) {
        dt_config_move(c, LOSS, LOSS, cJSON_CreateString("global_tokens"));
        dt_config_pass(c, LOSS);
    }
    return means;
}
