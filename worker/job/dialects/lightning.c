/* Lightning: the file of its command line (seed_everything, trainer, optimizer, ...), and its
 * Trainer's flags, below `trainer` there or at the top of a file of Hydra. */
#include "worker/job/dialects/dialect.h"
#include "worker/job/dialects/lightning_ddp.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The class of { class_path: a.b.Name }, or of "a.b.Name"; without the package. "" for others. */
static const char *class_of(const cJSON *value)
{
    const cJSON *path = cJSON_IsObject(value) ? cJSON_GetObjectItemCaseSensitive(value, "class_path") : value;
    path = path == NULL ? cJSON_GetObjectItemCaseSensitive(value, "_target_") : path;
    const char *name = cJSON_IsString(path) ? path->valuestring : "", *dot = strrchr(name, '.');
    return dot != NULL ? dot + 1 : name;
}

static const cJSON *argument(const cJSON *object, const char *name)
{
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(object, "init_args");
    return cJSON_GetObjectItemCaseSensitive(all != NULL ? all : object, name);
}

static bool in_list(const char *const *names, const char *name)
{
    while (*names != NULL && strcmp(*names, name) != 0) {
        names++;
    }
    return *names != NULL;
}

/* ---- the command line's file ---- */

/* A module of Python's. */
static void python(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const cJSON *module = cJSON_IsObject(value) && cJSON_GetObjectItemCaseSensitive(value, "class_path") == NULL &&
                                  value->child != NULL && cJSON_IsObject(value->child)
                              ? value->child
                              : value;
    const cJSON *class = cJSON_IsObject(module) ? cJSON_GetObjectItemCaseSensitive(module, "class_path") : NULL;
    dt_config_problem(u->c, path, "%.80s is Python; %s",
                      cJSON_IsString(class) ? class->valuestring : "what stands here",
                      strcmp(r->from, "model") == 0 ? "name a model of ours (model.name in the job, or --set)"
                                                    : "give files (data.train in the job, or --set)");
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

/* A class of torch.optim with its arguments, which PyTorch has defaults for. */
static void optimizer(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    static const struct {
        const char *class, *name;
        double rate, decay;
    } all[] = {{"AdamW", "adamw", 1e-3, 0.01},
               {"Adam", "adam", 1e-3, 0},
               {"SGD", "sgd", 1e-3, 0},
               {"Adagrad", "adagrad", 1e-2, 0}};
    static const char *const moved[][2] = {
        {"lr", "training.learning_rate"},     {"weight_decay", "training.weight_decay"},
        {"eps", "training.adam_epsilon"},     {"momentum", "optimizer.momentum"},
        {"dampening", "optimizer.dampening"}, {"nesterov", "optimizer.nesterov"},
        {"amsgrad", "training.adam_amsgrad"}};
    static const char *const speed[] = {"foreach", "fused", "capturable", "differentiable", NULL};
    const char *class = class_of(value);
    size_t row = 0;
    while (row < sizeof all / sizeof all[0] && strcmp(all[row].class, class) != 0) {
        row++;
    }
    if (row == sizeof all / sizeof all[0]) {
        dt_config_problem(u->c, path, "%.60s: there are torch.optim.AdamW, Adam, SGD and Adagrad; write one of them",
                          class);
        return;
    }
    dialect_give(u, path, r->to, cJSON_CreateString(all[row].name));
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(value, "init_args");
    for (const cJSON *a = cJSON_IsObject(args) ? args->child : NULL; a != NULL; a = a->next) {
        const char *key = dt_arena_printf(u->arena, "%s.init_args.%s", path, a->string), *to = NULL;
        double number;
        for (size_t i = 0; i < sizeof moved / sizeof moved[0]; i++) {
            to = strcmp(moved[i][0], a->string) == 0 ? moved[i][1] : to;
        }
        if (to != NULL) {
            dialect_give(u, key, to,
                         dt_config_number(a, &number) ? cJSON_CreateNumber(number) : cJSON_Duplicate(a, true));
        } else if (strcmp(a->string, "betas") == 0 && cJSON_GetArraySize(a) == 2) {
            dialect_give(u, key, "training.adam_beta1", cJSON_Duplicate(cJSON_GetArrayItem(a, 0), true));
            dialect_give(u, key, "training.adam_beta2", cJSON_Duplicate(cJSON_GetArrayItem(a, 1), true));
        } else if (!in_list(speed, a->string) && !dt_config_off(a)) {
            dt_config_problem(u->c, key, "not there yet for %s; remove it", class);
        }
    }
    if (argument(value, "lr") == NULL && dt_config_value(u->c, "training.learning_rate") == NULL) {
        dialect_give(u, path, "training.learning_rate", cJSON_CreateNumber(all[row].rate));
    }
    if (argument(value, "weight_decay") == NULL && all[row].decay > 0 &&
        dt_config_value(u->c, "training.weight_decay") == NULL) {
        dialect_give(u, path, "training.weight_decay", cJSON_CreateNumber(all[row].decay));
    }
}

/* torch.optim.lr_scheduler's. A run without one has a constant rate there. */
static void scheduler(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    static const char *const later[] = {
        "ReduceLROnPlateau",           "StepLR", "ExponentialLR", "OneCycleLR", "MultiStepLR",
        "CosineAnnealingWarmRestarts", NULL};
    const char *class = class_of(value);
    if (strcmp(class, "ConstantLR") == 0) {
        dialect_give(u, path, r->to, cJSON_CreateString("constant"));
    } else if (strcmp(class, "CosineAnnealingLR") == 0) {
        dialect_give(u, path, r->to, cJSON_CreateString("cosine"));
    } else if (in_list(later, class)) {
        dt_config_problem(u->c, path, "%s is not there yet; write CosineAnnealingLR, or training.lr_scheduler_type",
                          class);
    } else {
        dt_config_problem(u->c, path, "%.60s: there is CosineAnnealingLR; write that, or training.lr_scheduler_type",
                          class);
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
    MOVE("ckpt_path", "checkpointing.resume"),
    FUNCTION("model", NULL, python, "refused: a class of Python; name a model of ours"),
    FUNCTION("data", NULL, python, "refused: a class of Python; give `data.train`"),
    FUNCTION("optimizer", "optimizer.name", optimizer,
             "`optimizer.name` and its numbers: torch.optim.AdamW, Adam, SGD, Adagrad; others are refused"),
    FUNCTION("lr_scheduler", "training.lr_scheduler_type", scheduler,
             "`training.lr_scheduler_type`: CosineAnnealingLR = `cosine`, ConstantLR = `constant`; others are refused"),
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
        dt_config_problem(u->c, path, "give a number of devices, -1, \"auto\", or a list of their indices");
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
        dt_config_problem(u->c, path, "give a whole number of nodes");
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
    const char *class = class_of(value), *name = NULL;
    if (cJSON_IsString(value)) {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
        return;
    }
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        name = strcmp(class, classes[i].class) == 0 ? classes[i].name : name;
    }
    const cJSON *stage = argument(value, "stage");
    if (name == NULL) {
        dt_config_problem(
            u->c, path,
            "%.60s: there are DDPStrategy, FSDPStrategy, DeepSpeedStrategy and SingleDeviceStrategy; write "
            "one of them, or a name of train --list-strategies",
            class);
        return;
    }
    if (cJSON_IsNumber(stage) && strcmp(name, "zero2") == 0) {
        name = dt_arena_printf(u->arena, "zero%d", (int)stage->valuedouble);
        dt_config_pass(u->c, dt_arena_printf(u->arena, "%s.init_args.stage", path));
    }
    if (strcmp(name, "ddp") == 0) {
        lightning_ddp_arguments(u, path, cJSON_GetObjectItemCaseSensitive(value, "init_args"));
    }
    if (strcmp(name, "fsdp") != 0 || argument(value, "sharding_strategy") == NULL) {
        dialect_give(u, path, r->to, cJSON_CreateString(name));
    }
    dt_config_pass(u->c, dt_arena_printf(u->arena, "%s.class_path", path));
}

/* True for the numbers that mean "all" where a fraction is meant: 1.0 is all, 1 is one batch. YAML
 * keeps how a number was written; JSON does not, and 1 there could be either. */
static bool is_all(const cJSON *value)
{
    return cJSON_IsNumber(value) && value->valuedouble == 1 && value->valuestring != NULL &&
           strpbrk(value->valuestring, ".eE") != NULL;
}

static void limit(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (is_all(value)) {
        return;
    }
    double number = 0;
    bool good = dt_config_number(value, &number);
    if (r->to != NULL && good && number >= 2 && number == floor(number)) {
        dialect_give(u, path, r->to, cJSON_CreateNumber(number));
    } else if (r->to != NULL && good && number == 1 && value->valuestring != NULL) {
        dialect_give(u, path, r->to, cJSON_CreateNumber(1));
    } else if (good && number == 1 && value->valuestring == NULL) {
        dt_config_problem(u->c, path,
                          "is 1, one batch, or 1.0, all of them, which JSON does not tell apart; remove it for all");
    } else {
        dt_config_problem(u->c, path, "a part of the batches is not there yet; %s",
                          r->to != NULL ? "give a number of batches" : "remove it, or write max_steps");
    }
}

/* Batches between evaluations; ours are steps. */
static void check_interval(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 0, micro_steps = 1;
    (void)dt_config_number(dt_config_value(u->c, dialect_path(u, "accumulate_grad_batches")), &micro_steps);
    if (is_all(value) || (cJSON_IsNumber(value) && value->valuedouble == 1 && value->valuestring == NULL)) {
        return;
    }
    if (!dt_config_number(value, &number) || number < 1 || number != floor(number) || fmod(number, micro_steps) != 0) {
        dt_config_problem(
            u->c, path,
            "a part of an epoch is not there yet; give a number of batches%s, or training.eval_every_n_steps",
            micro_steps != 1 ? ", a multiple of accumulate_grad_batches" : "");
        return;
    }
    dialect_give(u, path, r->to, cJSON_CreateNumber(number / micro_steps));
}

/* 0 and less are off. */
static void clip(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 0;
    bool good = dt_config_number(value, &number);
    dialect_give(u, path, r->to, good ? cJSON_CreateNumber(number > 0 ? number : 0) : cJSON_Duplicate(value, true));
}

/* How many micro-steps; by epochs it is an object. */
static void accumulate(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (cJSON_IsObject(value)) {
        dt_config_problem(u->c, path, "a schedule over epochs is not there yet; give one number");
        return;
    }
    dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
}

static void logger(struct dialect_use *u, const char *path, const cJSON *value)
{
    const char *class = class_of(value);
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

static void model_checkpoint(struct dialect_use *u, const char *path, const cJSON *value)
{
    const cJSON *steps = argument(value, "every_n_train_steps"), *folder = argument(value, "dirpath"),
                *monitor = argument(value, "monitor"), *most = argument(value, "save_top_k");
    if (cJSON_IsNumber(steps)) {
        dialect_give(u, path, "checkpointing.save_every_n_steps", cJSON_Duplicate(steps, true));
    }
    if (cJSON_IsString(folder)) {
        dialect_give(u, path, "checkpointing.checkpoint_dir", cJSON_Duplicate(folder, true));
    }
    if (cJSON_IsNumber(most) && most->valuedouble == -1) {
        dialect_give(u, path, "checkpointing.keep_last_n", cJSON_CreateNumber(0));
    } else if (cJSON_IsString(monitor)) {
        dt_config_problem(u->c, path,
                          "ModelCheckpoint with monitor is not there yet; remove monitor, and "
                          "checkpointing.keep_last_n says how many are kept");
    }
}

static void callbacks(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    static const char *const always[] = {"LearningRateMonitor", "ModelSummary",    "RichModelSummary",
                                         "RichProgressBar",     "TQDMProgressBar", NULL};
    (void)r;
    for (const cJSON *v = cJSON_IsArray(value) ? value->child : value; v != NULL;
         v = cJSON_IsArray(value) ? v->next : NULL) {
        const char *class = class_of(v);
        if (strcmp(class, "ModelCheckpoint") == 0) {
            model_checkpoint(u, path, v);
        } else if (strcmp(class, "EarlyStopping") == 0) {
            dt_config_problem(u->c, path, "EarlyStopping is not there yet; remove it");
        } else if (strcmp(class, "GradientAccumulationScheduler") == 0) {
            dt_config_problem(u->c, path, "a schedule over epochs is not there yet; write accumulate_grad_batches");
        } else if (strcmp(class, "StochasticWeightAveraging") == 0 || strcmp(class, "WeightAveraging") == 0) {
            dt_config_problem(u->c, path, "averages of weights are not there yet; remove it");
        } else if (!in_list(always, class)) {
            dialect_inert(u, path,
                          dt_arena_printf(u->arena, "%.60s is Python", *class != 0 ? class : "what stands there"));
        }
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

/* Neither limit means 1000 epochs; no limit, one. */
static void trainer_defaults(struct dialect_use *u)
{
    bool steps = dt_config_value(u->c, "training.max_steps") != NULL,
         epochs = dt_config_value(u->c, "training.num_epochs") != NULL,
         is_trainer =
             strcmp(u->place, "lightning.trainer") == 0 || dt_config_value(u->c, dialect_path(u, "_target_")) != NULL;
    if (is_trainer && !steps && !epochs) {
        dt_config_move(u->c, u->place, "training.num_epochs", cJSON_CreateNumber(1000));
    }
    if (is_trainer && dt_config_value(u->c, "training.max_grad_norm") == NULL) {
        dt_config_move(u->c, u->place, "training.max_grad_norm", cJSON_CreateNumber(0));
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
    FUNCTION("strategy", "training.strategy", strategy,
             "`training.strategy`; FSDPStrategy, DDPStrategy, DeepSpeedStrategy with their arguments"),
    WORDS("precision", "training.precision", PRECISIONS),
    MOVE("max_epochs", "training.num_epochs"),
    MOVE("max_steps", "training.max_steps"),
    SILENT("min_epochs", "nothing stops earlier"),
    SILENT("min_steps", "nothing stops earlier"),
    REFUSE("max_time", LATER),
    FUNCTION("accumulate_grad_batches", "training.gradient_accumulation_steps", accumulate,
             "`training.gradient_accumulation_steps`; a schedule over epochs is refused"),
    FUNCTION("gradient_clip_val", "training.max_grad_norm", clip, "`training.max_grad_norm`; 0 where it is not given"),
    WORDS("gradient_clip_algorithm", NULL, "norm=|value=!" LATER),
    FUNCTION("limit_train_batches", NULL, limit, "1.0 is taken; others are refused"),
    FUNCTION("limit_val_batches", "training.eval_batches", limit,
             "`training.eval_batches`; 1.0 is all; shares are refused"),
    SILENT("limit_test_batches", "nothing is tested"),
    SILENT("limit_predict_batches", "nothing is predicted"),
    WORDS("overfit_batches", NULL, "0=|*=!" LATER),
    WORDS("fast_dev_run", NULL, "false=|0=|*=!not there yet; write max_steps"),
    FUNCTION("val_check_interval", "training.eval_every_n_steps", check_interval,
             "`training.eval_every_n_steps`, a number of batches; shares are refused, but 1.0"),
    WORDS("check_val_every_n_epoch", NULL, "1=|*=!not there yet; write val_check_interval"),
    SILENT("num_sanity_val_steps", "what can be wrong is checked before the first step"),
    MOVE("log_every_n_steps", "logging.log_every_n_steps"),
    WORDS("deterministic", "training.deterministic", "true=true|false=false|warn=~results repeat anyway"),
    SILENT("benchmark", "kernels are chosen by measurement once"),
    WORDS("detect_anomaly", NULL, "false=|true=~a norm that is not finite ends the run"),
    WORDS("sync_batchnorm", "training.sync_batch_norm", "true=true|false=false"),
    WORDS("use_distributed_sampler", NULL, "true=|false=!each rank reads its own samples; write true"),
    WORDS("reload_dataloaders_every_n_epochs", NULL, "0=|*=~files are read as they are"),
    MOVE("default_root_dir", "output_dir"),
    WORDS("profiler", NULL, "*=~logging.timeline_steps writes what streams do"),
    WORDS("barebones", NULL, "false=|true=~nothing optional costs time"),
    SILENT("inference_mode", "evaluation keeps nothing for backward"),
    WORDS("enable_checkpointing", NULL, "true=|false=~checkpointing.save_every_n_steps 0 saves at the end alone"),
    SILENT("enable_progress_bar", SHOWN),
    SILENT("enable_model_summary", "--plan has it"),
    FUNCTION("logger", NULL, loggers,
             "CSVLogger: `logging.csv`; others have no effect: `metrics.jsonl` has the numbers"),
    FUNCTION(
        "callbacks", NULL, callbacks,
        "ModelCheckpoint: `checkpointing`; EarlyStopping is refused; progress bars, summaries and monitors are taken; "
        "others have no effect"),
    REFUSE("plugins", "plugins of Python are not loaded; remove it"),

    /* of Lightning 1.x */
    FUNCTION("gpus", "training.device", gpus, "`training.device` = `cuda`, and as devices"),
    FUNCTION("num_processes", NULL, devices, "as devices"),
    WORDS("checkpoint_callback", NULL, "true=|false=~checkpointing.save_every_n_steps 0 saves at the end alone"),
    SILENT("progress_bar_refresh_rate", SHOWN),
    SILENT("weights_summary", "--plan has it"),
    WORDS("replace_sampler_ddp", NULL, "true=|false=!each rank reads its own samples; write true"),
    WORDS("terminate_on_nan", NULL, "false=|true=~a norm that is not finite ends the run"),
    MOVE("resume_from_checkpoint", "checkpointing.resume"),
    WORDS("reload_dataloaders_every_epoch", NULL, "false=|true=~files are read as they are"),
    WORDS("auto_scale_batch_size", NULL, "false=|*=!not there yet; train --plan says what fits"),
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

const struct dialect dialect_lightning = {.name = "Lightning",
                                          .section = "lightning",
                                          .places = command_places,
                                          .marks = "trainer|seed_everything|_target_|max_epochs|accelerator|devices",
                                          .rules = command_rules,
                                          .defaults = command_defaults};
const struct dialect dialect_trainer = {
    .name = "Lightning's Trainer", .places = trainer_places, .rules = trainer_rules, .defaults = trainer_defaults};
