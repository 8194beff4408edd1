/* Hugging Face's TrainingArguments, with names of programs around it: TRL, LLaMA-Factory, axolotl,
 * fms-hf-tuning. */
#include "worker/job/dialects/dialect.h"

#include "base/file.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* A number, or a problem. */
static bool number_of(struct dialect_use *u, const char *path, const cJSON *value, double *out)
{
    bool good = dt_config_number(value, out);
    if (!good) {
        dt_config_problem(u->c, path, "give a number");
    }
    return good;
}

/* Below 1 it is a share of all steps. */
static void warmup_steps(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 0;
    if (number_of(u, path, value, &number)) {
        bool share = number > 0 && number < 1;
        dialect_give(u, path, share ? "training.warmup_ratio" : r->to, cJSON_CreateNumber(number));
    }
}

/* Steps between two events; below 1 a share of all steps, which are not known here. */
static void interval(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 0;
    if (!number_of(u, path, value, &number)) {
        return;
    }
    if (number > 0 && number < 1) {
        dt_config_problem(u->c, path, "a share of all steps is not there yet; give a number of steps");
        return;
    }
    dialect_give(u, path, r->to, cJSON_CreateNumber(number));
}

/* Of no use where nothing is evaluated or saved by steps. */
static bool by_steps(const struct dialect_use *u, const char *key, const char *old)
{
    const cJSON *value = dt_config_value(u->c, dialect_path(u, key));
    value = value == NULL && old != NULL ? dt_config_value(u->c, dialect_path(u, old)) : value;
    return value == NULL || (cJSON_IsString(value) && strcasecmp(value->valuestring, "steps") == 0);
}

static void save_steps(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (by_steps(u, "save_strategy", NULL)) {
        interval(u, r, path, value);
    }
}

static void eval_steps(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (by_steps(u, "eval_strategy", "evaluation_strategy")) {
        interval(u, r, path, value);
    }
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

/* The least rate as a number; ours is a share. */
static void least_rate(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double least = 0, rate = 5e-5;
    (void)dt_config_number(dt_config_value(u->c, "training.learning_rate"), &rate);
    if (number_of(u, path, value, &least)) {
        if (least < 0 || rate <= 0 || least > rate) {
            dt_config_problem(u->c, path, "must lie between 0 and the learning rate, %g", rate);
            return;
        }
        dialect_give(u, path, r->to, cJSON_CreateNumber(least / rate));
    }
}

/* Seconds; people write 180000000 for "never". */
static void timeout(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    enum { YEAR = 31536000 };
    double number = 0;
    if (number_of(u, path, value, &number)) {
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
        dt_config_problem(u->c, path, "give words, \"full_shard auto_wrap\", a list of them, or true");
    }
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

/* Sharding that is switched on and says no more. */
static void defaults(struct dialect_use *u)
{
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
#define SCHEDULES                                                                                                      \
    "linear=linear|cosine=cosine|constant=constant|constant_with_warmup=constant_with_warmup|polynomial=polynomial|"   \
    "inverse_sqrt=inverse_sqrt|warmup_stable_decay=warmup_stable_decay|cosine_with_min_lr=cosine|"                     \
    "cosine_with_restarts=cosine_with_restarts|reduce_lr_on_plateau=reduce_lr_on_plateau|*=!there are linear, "        \
    "cosine, "                                                                                                         \
    "cosine_with_min_lr, constant, constant_with_warmup, polynomial, inverse_sqrt and warmup_stable_decay; write one " \
    "of them"
#define OPTIMIZERS                                                                                                     \
    "adamw_torch=adamw|adamw_torch_fused=adamw|adamw_hf=adamw|adamw_apex_fused=adamw|adamw_torch_4bit=!state of 4 "    \
    "bits is not there yet; write adamw_torch|sgd=sgd|adagrad=adagrad|lion_32bit=lion|lion=lion|*=!there are "         \
    "adamw_torch, adamw_torch_fused, sgd, adagrad and lion_32bit; write one of them"
#define EPOCHS "not there yet; give a number of steps"

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
    MOVE("adam_beta1", "training.adam_beta1"),
    MOVE("adam_beta2", "training.adam_beta2"),
    MOVE("adam_epsilon", "training.adam_epsilon"),
    MOVE("max_grad_norm", "training.max_grad_norm"),
    WORDS("lr_scheduler_type", "training.lr_scheduler_type", SCHEDULES),
    WORDS("lr_scheduler", "training.lr_scheduler_type", SCHEDULES),
    MOVE("lr_scheduler_kwargs.min_lr_rate", "training.min_lr_ratio"),
    FUNCTION("lr_scheduler_kwargs.min_lr", "training.min_lr_ratio", least_rate,
             "`training.min_lr_ratio`, as a share of learning_rate"),
    FUNCTION("lr_scheduler_kwargs.lr_end", "training.min_lr_ratio", least_rate,
             "`training.min_lr_ratio`, as a share of learning_rate"),
    MOVE("lr_scheduler_kwargs.power", "training.lr_power"),
    MOVE("warmup_ratio", "training.warmup_ratio"),
    FUNCTION("warmup_steps", "training.warmup_steps", warmup_steps,
             "`training.warmup_steps`; below 1 `training.warmup_ratio`"),
    WORDS("optim", "optimizer.name", OPTIMIZERS),
    WORDS("optimizer", "optimizer.name", OPTIMIZERS),
    REFUSE("optim_args", "write the numbers under optimizer"),
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
    {.from = "logging_steps",
     .to = "logging.log_every_n_steps",
     .how = DIALECT_FUNCTION,
     .fn = interval,
     .text = "`logging.log_every_n_steps`; a share is refused",
     .fallback = "500"},
    WORDS("logging_strategy", NULL, "steps=|*=!lines come by steps; write steps"),
    SILENT("logging_first_step", "metrics.jsonl has each step"),
    SILENT("logging_nan_inf_filter", "a loss that is not finite is shown"),
    INERT("logging_dir", "logs are in the run's folder"),
    WORDS("eval_strategy", NULL, "steps=|no=|false=|epoch=!" EPOCHS " (eval_steps)"),
    WORDS("evaluation_strategy", NULL, "steps=|no=|false=|epoch=!" EPOCHS " (eval_steps)"),
    FUNCTION("eval_steps", "training.eval_every_n_steps", eval_steps, "`training.eval_every_n_steps`"),
    WORDS("eval_delay", NULL, "0=|*=!" LATER),
    WORDS("eval_on_start", NULL, "false=|true=!" LATER),
    WORDS("evals_per_epoch", NULL, "0=|*=!" EPOCHS " (eval_steps)"),
    SILENT("eval_accumulation_steps", "nothing of evaluation is kept"),
    SILENT("do_train", "--evaluate alone trains nothing"),
    SILENT("do_eval", "data.val decides"),
    SILENT("do_predict", "train --generate does"),
    WORDS("val_set_size", NULL, "0=|*=!no share of the data is split off; give data.val"),
    WORDS("save_strategy", "checkpointing.save_every_n_steps",
          "steps=|no=0|false=0|epoch=!" EPOCHS " (save_steps)|best=!not there yet; write steps"),
    {.from = "save_steps",
     .to = "checkpointing.save_every_n_steps",
     .how = DIALECT_FUNCTION,
     .fn = save_steps,
     .text = "`checkpointing.save_every_n_steps`; a share is refused",
     .fallback = "500"},
    WORDS("saves_per_epoch", NULL, "0=|*=!" EPOCHS " (save_steps)"),
    MOVE_OR("save_total_limit", "checkpointing.keep_last_n", "0"),
    WORDS("save_only_model", NULL, "false=|true=!not there yet; remove it, model/ has the weights"),
    SILENT("save_safetensors", "there is no other format"),
    SILENT("save_on_each_node", "a shared folder holds one copy"),
    WORDS("load_best_model_at_end", NULL, "false=|true=!" LATER),
    SILENT("metric_for_best_model", "counts with load_best_model_at_end alone"),
    SILENT("greater_is_better", "counts with load_best_model_at_end alone"),
    REFUSE("early_stopping_patience", LATER),
    MOVE("output_dir", "output_dir"),
    INERT("run_name", "the folder's name is the run's"),
    WORDS("overwrite_output_dir", NULL, "false=|true=~a run goes on from its newest checkpoint; --fresh begins anew"),
    FUNCTION("resume_from_checkpoint", "checkpointing.resume", resume,
             "`checkpointing.resume`: true = `auto`, false = `never`, or a path"),
    WORDS("ignore_data_skip", NULL, "false=|true=!a run goes on with the sample where it stopped; remove it"),
    MOVE("seed", "training.seed"),
    REFUSE("data_seed", "the order of samples follows training.seed; remove it"),
    WORDS("full_determinism", "training.deterministic", "true=true|false=false"),
    MOVE("max_seq_length", "data.sequence_length"),
    MOVE("max_length", "data.sequence_length"),
    MOVE("cutoff_len", "data.sequence_length"),
    MOVE("sequence_len", "data.sequence_length"),
    WORDS("packing", NULL, "false=|true=!" LATER),
    WORDS("sample_packing", NULL, "false=|true=!" LATER),
    WORDS("pad_to_sequence_len", NULL, "false=|true=!" LATER),
    REFUSE("chat_template", TUNING),
    REFUSE("template", TUNING),
    REFUSE("dataset", TUNING),
    REFUSE("datasets", TUNING),
    REFUSE("dataset_name", TUNING),
    REFUSE("dataset_config", TUNING),
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
    WORDS("average_tokens_across_devices", "training.loss_normalization", "true=global_tokens|false=local_mean"),
    FUNCTION("fsdp", "training.strategy", fsdp,
             "`training.strategy`: full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2; auto_wrap is "
             "taken; offload: `offload.parameters` and `offload.optimizer` are cpu"),
    REFUSE("fsdp_min_num_params", "write it in fsdp_config, as min_num_params"),
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
    WORDS("dataloader_drop_last", NULL, "false=|true=!" LATER),
    SILENT("preprocessing_num_workers", WORKERS),
    SILENT("dataset_num_proc", WORKERS),
    SILENT("dataset_processes", WORKERS),
    SILENT("overwrite_cache", "shards of texts are made anew when texts change"),
    SILENT("remove_unused_columns", "the model's alone are read"),
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
    WORDS("auto_find_batch_size", NULL, "false=|true=!not there yet; train --plan says what fits"),
    SILENT("skip_memory_metrics", "`--plan` has memory by purpose"),
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
    .rules = rules,
    .defaults = defaults};
