/* Lightning's callbacks. They stand in a list, or in an object of Hydra's; the ones that have counterparts here are
 * read as sections of their own: trainer.callbacks.EarlyStopping.patience. */
#include "worker/job/dialects/lightning.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <string.h>

/* ---- what is monitored ---- */

/* The word that Lightning's callbacks see, which a module of Python has chosen, as one of ours: "val/acc" is
 * val_accuracy. Others stay as they are, for the job to refuse. */
static const char *monitor_of(const char *theirs, struct dt_arena *arena)
{
    static const char *const sets[] = {"val_", "valid_", "validation_", "eval_", "dev_"};
    static const struct {
        const char *theirs, *ours;
    } values[] = {{"loss", "val_loss"},         {"loss_epoch", "val_loss"},   {"loss_dataloader_idx_0", "val_loss"},
                  {"acc", "val_accuracy"},      {"accuracy", "val_accuracy"}, {"f1", "val_f1_macro"},
                  {"f1_macro", "val_f1_macro"}, {"pearson", "val_pearson"}};
    char *word = dt_arena_strdup(arena, theirs);
    for (char *p = word; *p != 0; p++) {
        *p = *p == '/' || *p == '-' ? '_' : (char)tolower((unsigned char)*p);
    }
    const char *value = strcmp(word, "loss") == 0 ? word : NULL;
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        size_t size = strlen(sets[i]);
        value = strncmp(word, sets[i], size) == 0 ? word + size : value;
    }
    for (size_t i = 0; value != NULL && i < sizeof values / sizeof values[0]; i++) {
        if (strcmp(values[i].theirs, value) == 0) {
            return values[i].ours;
        }
    }
    return theirs;
}

void lightning_monitor(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    dialect_give(u, path, r->to,
                 cJSON_IsString(value) ? cJSON_CreateString(monitor_of(value->valuestring, u->arena))
                                       : cJSON_Duplicate(value, true));
}

/* ---- EarlyStopping ---- */

/* At the end of an epoch the last evaluation is looked at: the same where each epoch has one. */
static void epoch_end(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    const cJSON *epochs = dt_config_value(u->c, "training.eval_every_n_epochs");
    bool by_steps = dt_config_value(u->c, "training.eval_every_n_steps") != NULL,
         once = epochs == NULL || (cJSON_IsNumber(epochs) && epochs->valuedouble == 1);
    if (cJSON_IsTrue(value) && (by_steps || !once)) {
        dt_config_problem(u->c, path,
                          "each evaluation is looked at once, and epochs do not end with one each; remove it");
    } else if (!cJSON_IsBool(value)) {
        dialect_wrong(u, path, "true or false");
    }
}

#define MONITOR "by our words: val/loss and valid_loss are val_loss, val_acc is val_accuracy, val/f1 is val_f1_macro"
static const struct dialect_rule stopping_rules[] = {
    FUNCTION("monitor", "early_stopping.monitor", lightning_monitor, "`early_stopping.monitor`, " MONITOR),
    MOVE_OR("mode", "early_stopping.mode", "\"min\""),
    MOVE("patience", "early_stopping.patience"),
    MOVE("min_delta", "early_stopping.min_delta"),
    MOVE("check_finite", "early_stopping.check_finite"),
    MOVE("stopping_threshold", "early_stopping.stopping_threshold"),
    MOVE("divergence_threshold", "early_stopping.divergence_threshold"),
    WORDS("strict", NULL, "true=|false=~what no evaluation has is refused before the run begins"),
    FUNCTION("check_on_train_epoch_end", NULL, epoch_end, "taken where each epoch has one evaluation, or false"),
    SILENT("verbose", "the end of a run is said"),
    SILENT("log_rank_zero_only", "one rank writes lines"),
    {0},
};

/* ---- ModelCheckpoint ---- */

/* save_top_k; 1 where it is not given. */
static double top_k(const struct dialect_use *u)
{
    double number = 1;
    return dt_config_number(dt_config_value(u->c, dialect_path(u, "save_top_k")), &number) ? number : 1;
}

static bool keeps_best(const struct dialect_use *u)
{
    return dialect_says(u, "monitor") && top_k(u) > 0;
}

static void best_monitor(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (keeps_best(u)) {
        lightning_monitor(u, r, path, value);
    }
}

static void best_mode(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (keeps_best(u)) {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    }
}

/* How many are kept: the best by a monitor, otherwise the newest. */
static void kept(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 0;
    if (!dt_config_number(value, &number) || number < -1 || (number > 1 && !dialect_says(u, "monitor"))) {
        if (number > 1) {
            dt_config_problem(u->c, path, "nothing says which are the best; give monitor, such as val_loss");
        } else {
            dialect_wrong(u, path, "a number of checkpoints, or -1 for all");
        }
    } else if (number == 0) {
        dialect_give(u, path, "checkpointing.save_every_n_steps", cJSON_CreateNumber(0));
    } else if (number == -1) {
        dialect_give(u, path, "checkpointing.keep_last_n", cJSON_CreateNumber(0));
    } else if (keeps_best(u)) {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    }
}

/* 0: not so. */
static void interval(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 1;
    if (!dt_config_number(value, &number) || number != 0) {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    }
}

static void time_interval(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double seconds = lightning_seconds(value);
    if (seconds > 0) {
        dialect_give(u, path, r->to, cJSON_CreateNumber(seconds));
    } else {
        dialect_wrong(u, path, "a time: an object of weeks, days, hours, minutes, seconds, or \"H:MM:SS\"");
    }
}

static void fall_back(struct dialect_use *u, const char *to, cJSON *value)
{
    if (dt_config_value(u->c, to) == NULL) {
        dt_config_move(u->c, u->place, to, value);
    } else {
        cJSON_Delete(value);
    }
}

#define BY_STEPS "checkpointing.save_every_n_steps"
#define BY_EPOCHS "checkpointing.save_every_n_epochs"

/* Lightning takes steps or epochs. */
static void check_intervals(struct dialect_use *u)
{
    double steps = 0, epochs = 0;
    const char *path = dialect_path(u, "every_n_epochs");
    (void)dt_config_number(dt_config_value(u->c, dialect_path(u, "every_n_train_steps")), &steps);
    (void)dt_config_number(dt_config_value(u->c, path), &epochs);
    if (steps > 0 && epochs > 0) {
        dt_config_problem(u->c, path, "every_n_train_steps is given, too, and Lightning takes one of them; remove one");
    }
}

/* Where no interval is given each epoch saves. The newest is kept beside the best, so that a run can go on. */
static void checkpoint_defaults(struct dialect_use *u)
{
    check_intervals(u);
    bool said = dialect_says(u, "every_n_train_steps") || dialect_says(u, "every_n_epochs") ||
                dialect_says(u, "train_time_interval") || top_k(u) == 0;
    if (keeps_best(u)) {
        fall_back(u, "checkpointing.save_top_k", cJSON_CreateNumber(1));
        fall_back(u, "checkpointing.mode", cJSON_CreateString("min"));
    }
    if (dt_config_value(u->c, BY_STEPS) == NULL && dt_config_value(u->c, BY_EPOCHS) == NULL) {
        fall_back(u, said ? BY_STEPS : BY_EPOCHS, cJSON_CreateNumber(said ? 0 : 1)); /* an interval of 0 switches off */
    }
}

#define NAMED "a checkpoint is named by its step"
static const struct dialect_rule checkpoint_rules[] = {
    MOVE("dirpath", "checkpointing.checkpoint_dir"),
    FUNCTION("monitor", "checkpointing.monitor", best_monitor, "`checkpointing.monitor`, " MONITOR),
    FUNCTION("mode", "checkpointing.mode", best_mode, "`checkpointing.mode`; min where it is not given"),
    FUNCTION("save_top_k", "checkpointing.save_top_k", kept,
             "`checkpointing.save_top_k` beside a monitor; -1 is `checkpointing.keep_last_n` 0, and 0 saves at the end "
             "alone; 1 where it is not given"),
    FUNCTION("every_n_train_steps", "checkpointing.save_every_n_steps", interval, "`checkpointing.save_every_n_steps`"),
    FUNCTION("every_n_epochs", "checkpointing.save_every_n_epochs", interval,
             "`checkpointing.save_every_n_epochs`; 1 where no interval is given; refused beside every_n_train_steps"),
    FUNCTION("train_time_interval", "checkpointing.save_every_n_seconds", time_interval,
             "`checkpointing.save_every_n_seconds`: an object of weeks, days, hours, minutes, seconds, or H:MM:SS"),
    SILENT("save_last", "the newest checkpoint is always kept"),
    WORDS("save_weights_only", NULL, "false=|true=~checkpoints hold all state, and model/ the weights"),
    WORDS("save_on_exception", NULL, "false=|true=~a run that fails goes on from its newest checkpoint"),
    SILENT("save_on_train_epoch_end", "the evaluation that ends an epoch comes first"),
    INERT("filename", NAMED),
    SILENT("auto_insert_metric_name", NAMED),
    SILENT("enable_version_counter", NAMED),
    SILENT("verbose", "saves are in events.jsonl"),
    {0},
};

/* ---- Timer ---- */

static const struct dialect_rule timer_rules[] = {
    FUNCTION("duration", "training.max_time", lightning_time,
             "`training.max_time`: DD:HH:MM:SS, or an object of weeks, days, hours, minutes, seconds"),
    WORDS("interval", NULL, "step=|epoch=!a run ends after a step; write step"),
    SILENT("verbose", "the end of a run is said"),
    {0},
};

/* ---- the list ---- */

/* The arguments of a class as a section; a second ModelCheckpoint is one, too. */
static void unfold(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const char *class = r->from;
    const cJSON *given = cJSON_GetObjectItemCaseSensitive(value, "init_args");
    const char *section = dt_arena_printf(u->arena, "%s.%s", path, class);
    if (dt_config_value(u->c, section) != NULL && strcmp(class, "ModelCheckpoint") == 0) {
        section = dt_arena_printf(u->arena, "%s2", section);
    }
    if (dt_config_value(u->c, section) != NULL) {
        dt_config_problem(u->c, path, "%s stands there more often than a job can have it; remove one", class);
        return;
    }
    if (given != NULL && !cJSON_IsObject(given) && !cJSON_IsNull(given)) {
        dt_config_problem(u->c, path, "%s: init_args: give an object of the arguments by name", class);
        return;
    }
    cJSON *arguments = cJSON_Duplicate(given != NULL ? given : value, true);
    if (!cJSON_IsObject(arguments)) { /* a name alone */
        cJSON_Delete(arguments);
        arguments = cJSON_CreateObject();
    }
    cJSON_DeleteItemFromObjectCaseSensitive(arguments, "class_path");
    cJSON_DeleteItemFromObjectCaseSensitive(arguments, "_target_");
    dt_config_unfold(u->c, path, section, arguments);
}

static void accumulation(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const cJSON *steps = lightning_argument(value, "scheduling");
    if (cJSON_IsObject(steps)) {
        dialect_give(u, path, r->to, cJSON_Duplicate(steps, true));
    } else {
        dt_config_problem(u->c, path, "GradientAccumulationScheduler needs scheduling, {0: 1, 4: 2}; add it");
    }
}

#define AVERAGES "averages of weights are not there yet; remove it"
#define OWN_TABLE "as its own table says"
#define FROZEN "what is frozen stays so; remove it, training.freeze names tensors"
#define PROGRESS "lines come by steps"
static const struct dialect_rule classes[] = {
    FUNCTION("EarlyStopping", NULL, unfold, OWN_TABLE),
    FUNCTION("ModelCheckpoint", NULL, unfold, OWN_TABLE),
    FUNCTION("Timer", NULL, unfold, OWN_TABLE),
    FUNCTION("GradientAccumulationScheduler", "training.gradient_accumulation_steps", accumulation,
             "`training.gradient_accumulation_steps` by epochs: its scheduling"),
    SILENT("LearningRateMonitor", "metrics.jsonl has the rate"),
    SILENT("ThroughputMonitor", "metrics.jsonl has the rate of tokens and samples"),
    SILENT("ModelSummary", "--plan has it"),
    SILENT("RichModelSummary", "--plan has it"),
    SILENT("ProgressBar", PROGRESS),
    SILENT("RichProgressBar", PROGRESS),
    SILENT("TQDMProgressBar", PROGRESS),
    INERT("DeviceStatsMonitor", "metrics.jsonl has memory, and what a GPU does"),
    INERT("OnExceptionCheckpoint", "a run that fails goes on from its newest checkpoint"),
    INERT("BasePredictionWriter", "nothing is predicted"),
    REFUSE("StochasticWeightAveraging", AVERAGES),
    REFUSE("WeightAveraging", AVERAGES),
    REFUSE("EMAWeightAveraging", AVERAGES),
    REFUSE("BatchSizeFinder", "no batch size is searched for; remove it, train --plan says what fits"),
    REFUSE("LearningRateFinder", "no rate is searched for; remove it, lr_scheduler_type lrrangetest sweeps over rates"),
    REFUSE("SpikeDetection", "here it is training.loss_guard_factor, or skip_update_lossz; write that, and remove it"),
    REFUSE("ModelPruning", "weights are not pruned; remove it"),
    REFUSE("BackboneFinetuning", FROZEN),
    REFUSE("BaseFinetuning", FROZEN),
    {0},
};

static void callback(struct dialect_use *u, const char *path, const cJSON *value)
{
    const char *class = lightning_class(value);
    const struct dialect_rule *r = classes;
    while (r->from != NULL && strcmp(r->from, class) != 0) {
        r++;
    }
    if (r->from == NULL) {
        dialect_inert(u, path, dt_arena_printf(u->arena, "%.60s is Python", *class != 0 ? class : "what stands there"));
    } else if (r->how == DIALECT_FUNCTION) {
        r->fn(u, r, path, value);
    } else if (r->how == DIALECT_REFUSE) {
        dt_config_problem(u->c, path, "%s: %s", class, r->text);
    } else if (r->how == DIALECT_INERT) {
        dialect_inert(u, path, dt_arena_printf(u->arena, "%s: %s", class, r->text));
    }
}

void lightning_callbacks(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    dt_config_pass(u->c, path);
    bool many = cJSON_IsArray(value) || (cJSON_IsObject(value) && *lightning_class(value) == 0);
    for (const cJSON *v = many ? value->child : value; v != NULL; v = many ? v->next : NULL) {
        if (!cJSON_IsNull(v)) { /* Hydra's way to take one out */
            callback(u, path, v);
        }
    }
}

#define PLACES(name)                                                                                                   \
    {                                                                                                                  \
        "lightning.trainer.callbacks." name, "lightning.callbacks." name, NULL                                         \
    }
static const char *const stopping_places[] = PLACES("EarlyStopping"), *const timer_places[] = PLACES("Timer"),
                         *const checkpoint_places[] = {"lightning.trainer.callbacks.ModelCheckpoint",
                                                       "lightning.callbacks.ModelCheckpoint",
                                                       "lightning.trainer.callbacks.ModelCheckpoint2",
                                                       "lightning.callbacks.ModelCheckpoint2", NULL};
static const char *const nowhere[] = {"lightning.trainer.callbacks[]", NULL}; /* no key: their names are values */
const struct dialect dialect_callbacks = {.name = "Lightning's callback", .places = nowhere, .rules = classes};
const struct dialect dialect_early_stopping = {
    .name = "Lightning's EarlyStopping", .places = stopping_places, .rules = stopping_rules};
const struct dialect dialect_model_checkpoint = {.name = "Lightning's ModelCheckpoint",
                                                 .places = checkpoint_places,
                                                 .rules = checkpoint_rules,
                                                 .defaults = checkpoint_defaults};
const struct dialect dialect_timer = {.name = "Lightning's Timer", .places = timer_places, .rules = timer_rules};
