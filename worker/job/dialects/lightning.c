/* Lightning: the file of its command line (seed_everything, trainer, optimizer, ...), and its
 * Trainer's flags, below `trainer` there or at the top of a file of Hydra. */
#include "worker/job/dialects/lightning.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *lightning_class(const cJSON *value)
{
    const cJSON *path = cJSON_IsObject(value) ? cJSON_GetObjectItemCaseSensitive(value, "class_path") : value;
    path = path == NULL ? cJSON_GetObjectItemCaseSensitive(value, "_target_") : path;
    const char *name = cJSON_IsString(path) ? path->valuestring : "", *dot = strrchr(name, '.');
    return dot != NULL ? dot + 1 : name;
}

const cJSON *lightning_argument(const cJSON *object, const char *name)
{
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(object, "init_args"),
                *more = cJSON_GetObjectItemCaseSensitive(object, "dict_kwargs"),
                *value = cJSON_GetObjectItemCaseSensitive(all != NULL ? all : object, name);
    return value != NULL ? value : cJSON_GetObjectItemCaseSensitive(more, name);
}

void lightning_arguments(struct dialect_use *u, const char *path, const cJSON *value, lightning_reader *read,
                         const void *of)
{
    static const char blocks[] = "|init_args|dict_kwargs|",
                      words[] = "|class_path|_target_|_partial_|_recursive_|_convert_|";
    bool beside = cJSON_GetObjectItemCaseSensitive(value, "init_args") == NULL;
    for (const cJSON *m = cJSON_IsObject(value) ? value->child : NULL; m != NULL; m = m->next) {
        const char *key = dt_arena_printf(u->arena, "%s.%s", path, m->string),
                   *word = dt_arena_printf(u->arena, "|%s|", m->string);
        if (strstr(blocks, word) != NULL) {
            for (const cJSON *a = cJSON_IsObject(m) ? m->child : NULL; a != NULL; a = a->next) {
                read(u, of, dt_arena_printf(u->arena, "%s.%s", key, a->string), a);
            }
            if (!cJSON_IsObject(m) && !cJSON_IsNull(m)) {
                dt_config_problem(u->c, key, "give an object of the arguments by name");
            }
        } else if (strstr(words, word) == NULL && beside) {
            read(u, of, key, m);
        } else if (strstr(words, word) == NULL) {
            dt_config_problem(u->c, key, "stands beside init_args; move it there");
        }
    }
}

/* ---- the command line's file ---- */

/* A module of Python's, in whose place the job may name a model or data. */
static void python(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const cJSON *module = cJSON_IsObject(value) && cJSON_GetObjectItemCaseSensitive(value, "class_path") == NULL &&
                                  value->child != NULL && cJSON_IsObject(value->child)
                              ? value->child
                              : value;
    const cJSON *class = cJSON_IsObject(module) ? cJSON_GetObjectItemCaseSensitive(module, "class_path") : NULL;
    const char *name = cJSON_IsString(class) ? class->valuestring : "what stands here";
    bool is_model = strcmp(r->from, "model") == 0,
         named = is_model ? dt_config_value(u->c, "model.name") != NULL || dt_config_value(u->c, "model.load") != NULL
                          : dt_config_value(u->c, "data.train") != NULL;
    if (named) {
        dialect_inert(u, path,
                      dt_arena_printf(u->arena, "%.80s is Python; %s", name,
                                      is_model ? "the job names the model" : "data.train has the data"));
    } else {
        dt_config_problem(u->c, path, "%.80s is Python; %s", name,
                          is_model ? "name a model of ours (model.name in the job, or --set)"
                                   : "give files (data.train in the job, or --set)");
    }
}

/* true: PL_GLOBAL_SEED, or 0. */
static void seed(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const char *given = getenv("PL_GLOBAL_SEED");
    if (cJSON_IsTrue(value)) {
        dialect_give(u, path, r->to, cJSON_CreateNumber(given != NULL ? strtod(given, NULL) : 0));
    } else if (!cJSON_IsFalse(value)) {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    }
}

/* A path; the newest is what a run goes on from anyway. */
static void resume(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const char *word = cJSON_IsString(value) ? value->valuestring : "";
    if (strcmp(word, "best") == 0) {
        dt_config_problem(u->c, path,
                          "a run goes on from its newest checkpoint; write last, or the folder of the best");
    } else if (strcmp(word, "last") == 0 || strcmp(word, "hpc") == 0) {
        dialect_give(u, path, r->to, cJSON_CreateString("auto"));
    } else {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    }
}

static void command_defaults(struct dialect_use *u)
{
    const char *path = dialect_path(u, "optimizer");
    if (dt_config_value(u->c, path) != NULL && dt_config_value(u->c, "training.lr_scheduler_type") == NULL &&
        dt_config_value(u->c, dialect_path(u, "lr_scheduler")) == NULL) {
        dt_config_move(u->c, path, "training.lr_scheduler_type", cJSON_CreateString("constant"));
    }
}

static const struct dialect_rule command_rules[] = {
    FUNCTION("seed_everything", "training.seed", seed, "`training.seed`; true = PL_GLOBAL_SEED, or 0"),
    FUNCTION("ckpt_path", "checkpointing.resume", resume, "`checkpointing.resume`: last and hpc are `auto`, or a path"),
    SILENT("weights_only", "a checkpoint holds no programs"),
    SILENT("validate", "the keys of `fit` count"),
    SILENT("test", "the keys of `fit` count"),
    SILENT("predict", "the keys of `fit` count"),
    FUNCTION_OF(OUTCOME_REFUSED, "model", NULL, python,
                "a class of Python: refused unless the job names a model; then no effect"),
    FUNCTION_OF(OUTCOME_REFUSED, "data", NULL, python,
                "a class of Python: refused unless the job has `data.train`; then no effect"),
    FUNCTION("optimizer", "optimizer.name", lightning_optimizer,
             "`optimizer.name` and its numbers: torch.optim.AdamW, Adam, SGD, Adagrad, and Lion; Adam with "
             "decoupled_weight_decay is `adamw`; others are refused"),
    FUNCTION(
        "lr_scheduler", "training.lr_scheduler_type", lightning_scheduler,
        "`training.lr_scheduler_type` and `scheduler`, which counts epochs: StepLR = `step`, MultiStepLR = "
        "`multi_step`, ExponentialLR = `exponential`, CosineAnnealingLR = `cosine_annealing`, "
        "CosineAnnealingWarmRestarts = `cosine_warm_restarts`, LinearLR = `linear_lr`, ConstantLR = `constant_lr`, "
        "PolynomialLR = `polynomial_lr`, OneCycleLR = `one_cycle`, ReduceLROnPlateau = `reduce_lr_on_plateau`; "
        "others are refused"),
    {0},
};

/* ---- the Trainer ---- */

/* Lightning 1.x had strategies among the accelerators. */
static void accelerator(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const struct dialect_rule words =
        WORDS(r->from, r->to,
              "auto=auto|cpu=cpu|gpu=cuda|cuda=cuda|mps=!Apple's GPUs are not supported; write cpu|tpu=!TPUs are not "
              "supported; write gpu|hpu=!HPUs are not supported; write gpu");
    if (cJSON_IsString(value) &&
        (strncmp(value->valuestring, "ddp", 3) == 0 || strcmp(value->valuestring, "dp") == 0)) {
        dialect_give(u, path, "training.strategy", cJSON_CreateString("ddp"));
        return;
    }
    dialect_words(u, &words, path, value);
}

/* How many devices are named; 0: as many as there are; -1: unreadable. */
static int64_t count_devices(const cJSON *value)
{
    double number = 0;
    if (cJSON_IsArray(value)) {
        return cJSON_GetArraySize(value);
    }
    if (cJSON_IsString(value) && strchr(value->valuestring, ',') != NULL) { /* "0,2": indices */
        int64_t count = 0;
        for (const char *p = value->valuestring; *p != 0; p += *p == ',') {
            size_t size = strcspn(p, ",");
            count += size > 0;
            p += size;
        }
        return count;
    }
    if (cJSON_IsString(value) && strcasecmp(value->valuestring, "auto") == 0) {
        return 0;
    }
    bool good = dt_config_number(value, &number) && number >= -1 && number <= 1e6 && number == floor(number);
    return !good ? -1 : number < 1 ? 0 : (int64_t)number;
}

/* devices * num_nodes must be the ranks that there are. */
static void devices(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    double nodes = 1;
    int64_t count = count_devices(value);
    (void)dt_config_number(dt_config_value(u->c, dialect_path(u, "num_nodes")), &nodes);
    if (count < 0) {
        dialect_wrong(u, path, "a number of devices, -1, \"auto\", or a list of their indices");
    } else if (count > 0 && !u->converts && (double)count * nodes != u->world) {
        dt_config_problem(u->c, path,
                          "%" PRId64 " device%s * %g node%s, and there %s %d rank%s; start them with dtrun --nnodes=%g "
                          "--nproc_per_node=%" PRId64,
                          count, count == 1 ? "" : "s", nodes, nodes == 1 ? "" : "s", u->world == 1 ? "is" : "are",
                          u->world, u->world == 1 ? "" : "s", nodes, count);
    }
}

static void nodes(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    double number = 0;
    if (!dt_config_number(value, &number) || number < 1 || number != floor(number)) {
        dialect_wrong(u, path, "a whole number of nodes");
    } else if (!u->converts && u->world % (int64_t)number != 0) {
        dt_config_problem(u->c, path, "is %g, which does not divide %d rank%s", number, u->world,
                          u->world == 1 ? "" : "s");
    }
}

/* A name, or a class with arguments; FSDP's arguments are read as its block. */
static void strategy(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    static const struct {
        const char *class, *name;
    } classes[] = {{"DDPStrategy", "ddp"},
                   {"FSDPStrategy", "fsdp"},
                   {"DeepSpeedStrategy", "zero2"},
                   {"SingleDeviceStrategy", "single_device"}};
    const char *class = lightning_class(value), *name = NULL;
    if (cJSON_IsString(value)) {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
        dt_config_pass(u->c, path);
        return;
    }
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        name = strcmp(class, classes[i].class) == 0 ? classes[i].name : name;
    }
    const cJSON *stage = lightning_argument(value, "stage");
    if (name == NULL) {
        dt_config_problem(
            u->c, path,
            "%.60s: there are DDPStrategy, FSDPStrategy, DeepSpeedStrategy and SingleDeviceStrategy; write "
            "one of them, or a name of train --list-strategies",
            class);
        dt_config_pass(u->c, path);
        return;
    }
    if (cJSON_IsNumber(stage) && strcmp(name, "zero2") == 0) {
        name = dt_arena_printf(u->arena, "zero%d", (int)stage->valuedouble);
        dt_config_pass(u->c, dt_arena_printf(u->arena, "%s.init_args.stage", path));
    }
    if (strcmp(name, "fsdp") != 0 || lightning_argument(value, "sharding_strategy") == NULL) {
        dialect_give(u, path, r->to, cJSON_CreateString(name));
    }
    dt_config_pass(u->c, dt_arena_printf(u->arena, "%s.class_path", path));
}

static bool clips_values(const struct dialect_use *u)
{
    const char *word = cJSON_GetStringValue(dt_config_value(u->c, dialect_path(u, "gradient_clip_algorithm")));
    return word != NULL && strcmp(word, "value") == 0;
}

/* 0 and less are off. By the algorithm it is a norm, or a value. */
static void clip(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 0;
    bool good = dt_config_number(value, &number);
    if (!clips_values(u)) {
        dialect_give(u, path, r->to, good ? cJSON_CreateNumber(number > 0 ? number : 0) : cJSON_Duplicate(value, true));
    } else if (!good || number > 0) {
        dialect_give(u, path, "training.gradient_clip_algorithm", cJSON_CreateString("value"));
        dialect_give(u, path, "training.gradient_clip_value", cJSON_Duplicate(value, true));
    }
}

static void log_interval(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 1;
    if (dt_config_number(value, &number) && number == 0) {
        dialect_inert(u, path, "lines come by steps");
    } else {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    }
}

static void logger(struct dialect_use *u, const char *path, const cJSON *value)
{
    const char *class = lightning_class(value);
    if (strcmp(class, "CSVLogger") == 0) {
        dialect_give(u, path, "logging.csv", cJSON_CreateBool(true));
    } else if (!cJSON_IsBool(value)) {
        dialect_inert(
            u, path,
            dt_arena_printf(u->arena, "%.60s; metrics.jsonl has the numbers", *class != 0 ? class : "a logger"));
    }
}

static void loggers(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    for (const cJSON *v = cJSON_IsArray(value) ? value->child : NULL; v != NULL; v = v->next) {
        logger(u, path, v);
    }
    if (!cJSON_IsArray(value)) {
        logger(u, path, value);
    }
}

/* Lightning 1.x: a number of GPUs, or which. */
static void gpus(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (count_devices(value) != 0 || (cJSON_IsNumber(value) && value->valuedouble < 0)) {
        dialect_give(u, path, r->to, cJSON_CreateString("cuda"));
        devices(u, r, path, value);
    }
}

#define LATER "not there yet; remove it"
#define PRECISIONS                                                                                                     \
    "32-true=32-true|32=32-true|bf16-mixed=bf16-mixed|bf16=bf16-mixed|16-mixed=16-mixed|16=16-mixed|"                  \
    "bf16-true=bf16-true|16-true=16-true|64-true=64-true|64=64-true|transformer-engine=!Transformer Engine is not "    \
    "supported; write bf16-mixed|transformer-engine-float16=!Transformer Engine is not supported; write bf16-mixed"
#define SHOWN "lines come by steps"
#define TPUS "TPUs are not supported; remove it"

static const struct dialect_rule trainer_rules[] = {
    SILENT("_target_", "names the Trainer"),
    FUNCTION(
        "accelerator", "training.device", accelerator,
        "`training.device`: auto, cpu, gpu and cuda = `cuda`; ddp of Lightning 1 is a strategy; others are refused"),
    FUNCTION("devices", NULL, devices, "devices * num_nodes must be the ranks that there are"),
    FUNCTION("num_nodes", NULL, nodes, "devices * num_nodes must be the ranks that there are"),
    {.from = "strategy",
     .to = "training.strategy",
     .how = DIALECT_FUNCTION,
     .fn = strategy,
     .text = "`training.strategy`; FSDPStrategy, DDPStrategy, DeepSpeedStrategy with their arguments",
     .shallow = true},
    WORDS("precision", "training.precision", PRECISIONS),
    FUNCTION("fast_dev_run", "training.fast_dev_run", lightning_dev_run,
             "`training.fast_dev_run`; true = 1; nothing is saved"),
    FUNCTION("max_time", "training.max_time", lightning_time,
             "`training.max_time`: DD:HH:MM:SS, or an object of weeks, days, hours, minutes, seconds"),
    FUNCTION(
        "max_epochs", "training.num_epochs", lightning_max_epochs,
        "`training.num_epochs`, beside max_steps `training.epoch_limit`; 1000 where nothing ends the run; -1 beside "
        "max_steps or max_time"),
    FUNCTION("max_steps", "training.max_steps", lightning_max_steps,
             "`training.max_steps`; of both the first ends the run"),
    MOVE("min_epochs", "training.min_epochs"),
    FUNCTION("min_steps", "training.min_steps", lightning_min_steps,
             "`training.min_steps`; without min_epochs `training.min_epochs` is 1"),
    MOVE("accumulate_grad_batches", "training.gradient_accumulation_steps"),
    FUNCTION(
        "gradient_clip_val", "training.max_grad_norm", clip,
        "`training.max_grad_norm`; 0 where it is not given; of the algorithm value `training.gradient_clip_value`"),
    WORDS("gradient_clip_algorithm", NULL, "norm=|value="),
    FUNCTION("limit_train_batches", "training.limit_train_batches", lightning_limit,
             "`training.limit_train_batches`: a number, or a share of them; 1.0 is all, and 0 is refused"),
    FUNCTION("limit_val_batches", "training.eval_batches", lightning_limit,
             "`training.eval_batches`: a number, or a share of them; 1.0 is all; 0: as if there were no data.val"),
    SILENT("limit_test_batches", "nothing is tested"),
    SILENT("limit_predict_batches", "nothing is predicted"),
    FUNCTION("overfit_batches", "training.overfit_batches", lightning_limit,
             "`training.overfit_batches`: a number, or a share of them; limits beside it have no effect"),
    FUNCTION("val_check_interval", "training.eval_every_n_steps", lightning_interval,
             "`training.eval_every_n_steps`, a number of batches, counted over epochs; a share of an epoch is "
             "`training.eval_every_n_epochs`; a time is refused"),
    FUNCTION("check_val_every_n_epoch", "training.eval_every_n_epochs", lightning_epoch_interval,
             "`training.eval_every_n_epochs`; 1 where nothing says it and there is data.val"),
    FUNCTION("num_sanity_val_steps", "training.num_sanity_val_steps", lightning_sanity,
             "`training.num_sanity_val_steps`; 2 where it is not given and there is data.val"),
    FUNCTION("log_every_n_steps", "logging.log_every_n_steps", log_interval,
             "`logging.log_every_n_steps`; 0 has no effect: lines come by steps"),
    WORDS("deterministic", "training.deterministic", "true=true|false=false|warn=~results repeat anyway"),
    SILENT("benchmark", "kernels are chosen by measurement once"),
    WORDS("detect_anomaly", NULL, "false=|true=~a norm that is not finite ends the run"),
    WORDS("sync_batchnorm", "training.sync_batch_norm", "true=true|false=false"),
    WORDS("use_distributed_sampler", NULL, "true=|false=!each rank reads its own samples; write true"),
    WORDS("reload_dataloaders_every_n_epochs", NULL, "0=|*=~files are read as they are"),
    MOVE("default_root_dir", "output_dir"),
    WORDS("profiler", NULL, "*=~logging.timeline_steps writes what streams do"),
    SILENT("barebones", "nothing optional costs time; true saves at the end alone, and tries no evaluation"),
    SILENT("enable_autolog_hparams", "the checkpoints hold the job"),
    INERT("model_registry", "nothing is uploaded"),
    SILENT("inference_mode", "evaluation keeps nothing for backward"),
    WORDS("enable_checkpointing", "checkpointing.save_every_n_steps", "true=|false=0"),
    SILENT("enable_progress_bar", SHOWN),
    SILENT("enable_model_summary", "--plan has it"),
    FUNCTION("logger", NULL, loggers,
             "CSVLogger: `logging.csv`; others have no effect: `metrics.jsonl` has the numbers"),
    {.from = "callbacks",
     .how = DIALECT_FUNCTION,
     .fn = lightning_callbacks,
     .text = "EarlyStopping, ModelCheckpoint, Timer, GradientAccumulationScheduler; progress bars, summaries and "
             "monitors are taken; averages of weights, finders, pruning and unfreezing are refused; others have no "
             "effect",
     .shallow = true},
    REFUSE("plugins", "plugins of Python are not loaded; remove it"),

    /* of Lightning 1.x */
    FUNCTION("gpus", "training.device", gpus, "`training.device` = `cuda`, and as devices"),
    FUNCTION("num_processes", NULL, devices, "as devices"),
    WORDS("checkpoint_callback", "checkpointing.save_every_n_steps", "true=|false=0"),
    SILENT("progress_bar_refresh_rate", SHOWN),
    SILENT("weights_summary", "--plan has it"),
    WORDS("replace_sampler_ddp", NULL, "true=|false=!each rank reads its own samples; write true"),
    WORDS("terminate_on_nan", NULL, "false=|true=~a norm that is not finite ends the run"),
    FUNCTION("resume_from_checkpoint", "checkpointing.resume", resume, "as ckpt_path"),
    WORDS("reload_dataloaders_every_epoch", NULL, "false=|true=~files are read as they are"),
    WORDS("auto_scale_batch_size", NULL,
          "false=|*=!train --plan --find_batch_size says the largest; write it into the job"),
    WORDS("auto_lr_find", NULL, "false=|*=!not there yet; give a rate"),
    SILENT("track_grad_norm", "metrics.jsonl has the norm"),
    MOVE("weights_save_path", "checkpointing.checkpoint_dir"),
    REFUSE("tpu_cores", TPUS),
    REFUSE("ipus", "IPUs are not supported; remove it"),
    REFUSE("truncated_bptt_steps", LATER),
    WORDS("amp_backend", NULL, "native=|apex=!apex is not supported; write native"),
    WORDS("process_position", NULL, "0=|*=~there are no bars"),
    INERT("log_gpu_memory", "metrics.jsonl has memory"),
    WORDS("flush_logs_every_n_steps", NULL, "100=|*=~each line is written at once"),
    WORDS("prepare_data_per_node", NULL, "true=|false=~data are prepared once for each folder"),
    WORDS("move_metrics_to_cpu", NULL, "false=|true=~they are there"),
    WORDS("auto_select_gpus", NULL, "false=|true=~ranks take GPUs by their order"),
    WORDS("amp_level", NULL, "O2=|*=~precision says it"),
    {0},
};

static const char *const command_places[] = {"lightning", NULL};
static const char *const trainer_places[] = {"lightning.trainer", "lightning", NULL};

const struct dialect dialect_lightning = {
    .name = "Lightning",
    .section = "lightning",
    .places = command_places,
    .wrapper = "lightning.fit",
    .marks = "trainer|fit.trainer|fit.model|fit.data|seed_everything|_target_|max_epochs|accelerator|devices|callbacks|"
             "max_time|"
             "fast_dev_run|val_check_interval|check_val_every_n_epoch|limit_train_batches|"
             "limit_val_batches|overfit_batches|gradient_clip_val|accumulate_grad_batches",
    .rules = command_rules,
    .defaults = command_defaults};
const struct dialect dialect_trainer = {
    .name = "Lightning's Trainer", .places = trainer_places, .rules = trainer_rules, .defaults = lightning_defaults};
