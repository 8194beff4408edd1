/* When Hugging Face's Trainer logs, evaluates and saves, which checkpoint is the best, and early stopping. */
#include "worker/job/dialects/transformers.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#define BY_STEPS "checkpointing.save_every_n_steps"
#define BY_EPOCHS "checkpointing.save_every_n_epochs"

static bool key_is(const struct dialect_use *u, const char *key, const char *word)
{
    return dialect_is_word(dt_config_value(u->c, dialect_path(u, key)), word);
}

static double number_of(const struct dialect_use *u, const char *path)
{
    double number = 0;
    return dt_config_number(dt_config_value(u->c, path), &number) ? number : 0;
}

/* ---- intervals ---- */

/* Epochs of the run; Transformers has 3 where nothing says them. */
static double run_epochs(const struct dialect_use *u)
{
    const char *const paths[] = {dialect_path(u, "num_train_epochs"), dialect_path(u, "num_epochs"),
                                 "training.num_epochs"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        double number = number_of(u, paths[i]);
        if (number > 0) {
            return number;
        }
    }
    return 3;
}

/* Steps between two events, or below 1 a share of all steps: of max_steps, otherwise of the run's epochs. */
static void interval(struct dialect_use *u, const char *path, const cJSON *value, const char *steps, const char *epochs)
{
    double number = 0, most = number_of(u, dialect_path(u, "max_steps"));
    most = most > 0 ? most : number_of(u, "training.max_steps");
    if (!transformers_number(u, path, value, &number)) {
        return;
    }
    if (number <= 0 || number >= 1) {
        dialect_give(u, path, steps, cJSON_CreateNumber(number));
    } else if (most > 0) {
        dialect_give(u, path, steps, cJSON_CreateNumber(ceil(most * number)));
    } else if (epochs != NULL) {
        dialect_give(u, path, epochs, cJSON_CreateNumber(run_epochs(u) * number));
        if (strcmp(steps, BY_STEPS) == 0) {
            dialect_give(u, path, steps, cJSON_CreateNumber(0));
        }
    } else {
        dt_config_problem(u->c, path, "a share of all steps, which max_steps alone says; give a number of steps");
    }
}

void transformers_logging(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    interval(u, path, value, r->to, NULL);
}

/* Of no use where nothing is evaluated or saved by steps. */
static bool by_steps(const struct dialect_use *u, const char *key, const char *old)
{
    const cJSON *value = dt_config_value(u->c, dialect_path(u, key));
    value = value == NULL && old != NULL ? dt_config_value(u->c, dialect_path(u, old)) : value;
    return value == NULL || dialect_is_word(value, "steps");
}

void transformers_save_steps(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (by_steps(u, "save_strategy", NULL)) {
        interval(u, path, value, r->to, BY_EPOCHS);
    }
}

void transformers_eval_steps(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 0;
    bool none = dt_config_number(value, &number) && number == 0; /* logging_steps counts then */
    if (!none && by_steps(u, "eval_strategy", "evaluation_strategy")) {
        interval(u, path, value, r->to, "training.eval_every_n_epochs");
    }
}

void transformers_eval_delay(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double steps = number_of(u, dialect_path(u, "eval_steps")), delay = 0;
    if (dt_config_number(value, &delay) && delay > 0 && steps > 0 && steps < 1 &&
        by_steps(u, "eval_strategy", "evaluation_strategy")) {
        dt_config_problem(u->c, path, "counts steps, and eval_steps is a share; write a number of steps there");
    } else {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    }
}

void transformers_eval_default(struct dialect_use *u)
{
    const char *key = key_is(u, "eval_strategy", "steps")         ? "eval_strategy"
                      : key_is(u, "evaluation_strategy", "steps") ? "evaluation_strategy"
                                                                  : NULL;
    if (key == NULL || number_of(u, dialect_path(u, "eval_steps")) > 0 ||
        dt_config_value(u->c, "training.eval_every_n_steps") != NULL ||
        dt_config_value(u->c, "training.eval_every_n_epochs") != NULL) {
        return;
    }
    const cJSON *lines = dt_config_value(u->c, dialect_path(u, "logging_steps"));
    cJSON *steps = lines == NULL ? cJSON_CreateNumber(500) : NULL;
    interval(u, dialect_path(u, key), lines != NULL ? lines : steps, "training.eval_every_n_steps",
             "training.eval_every_n_epochs");
    cJSON_Delete(steps);
}

/* axolotl: so many in each epoch. */
void transformers_per_epoch(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 0;
    if (!transformers_number(u, path, value, &number) || number == 0) {
        return;
    }
    if (number < 0 || number != floor(number)) {
        dialect_wrong(u, path, "a whole number");
        return;
    }
    dialect_give(u, path, r->to, cJSON_CreateNumber(1 / number));
    if (strcmp(r->to, BY_EPOCHS) == 0) {
        dialect_give(u, path, BY_STEPS, cJSON_CreateNumber(0));
    }
}

/* ---- the best checkpoint ---- */

static bool is_true(const struct dialect_use *u, const char *key)
{
    return cJSON_IsTrue(dt_config_value(u->c, dialect_path(u, key))) || key_is(u, key, "true");
}

static bool keeps_best(const struct dialect_use *u)
{
    return is_true(u, "load_best_model_at_end") || key_is(u, "save_strategy", "best");
}

static bool stops_early(const struct dialect_use *u)
{
    return dialect_says(u, "early_stopping_patience");
}

void transformers_save_strategy(struct dialect_use *u, const struct dialect_rule *r, const char *path,
                                const cJSON *value)
{
    const struct dialect_rule words = WORDS(r->from, BY_STEPS, "steps=|no=0|false=0|epoch=0|best=0");
    dialect_words(u, &words, path, value);
    if (key_is(u, r->from, "epoch")) {
        dialect_give(u, path, BY_EPOCHS, cJSON_CreateNumber(1));
    } else if (key_is(u, r->from, "best")) {
        dialect_give(u, path, "checkpointing.save_top_k", cJSON_CreateNumber(1));
    }
}

void transformers_load_best(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const struct dialect_rule words = WORDS(r->from, r->to, "true=true|false=");
    dialect_words(u, &words, path, value);
    if (is_true(u, r->from)) {
        dialect_give(u, path, "checkpointing.save_top_k", cJSON_CreateNumber(1));
    }
}

/* Among so many is the best, where one is kept. */
void transformers_total_limit(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 0;
    if (transformers_number(u, path, value, &number)) {
        double newest = is_true(u, "load_best_model_at_end") && number > 1 ? number - 1 : number;
        dialect_give(u, path, r->to, cJSON_CreateNumber(newest));
    }
}

/* "loss", "eval_accuracy": a value of evaluations by our word. Others stay, for the job to refuse. */
void transformers_metric(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    static const struct {
        const char *theirs, *ours;
    } words[] = {{"loss", "val_loss"},   {"accuracy", "val_accuracy"}, {"acc", "val_accuracy"},
                 {"f1", "val_f1_macro"}, {"f1_macro", "val_f1_macro"}, {"pearson", "val_pearson"}};
    const char *word = cJSON_IsString(value) ? value->valuestring : "", *ours = word;
    const char *name = strncmp(word, "eval_", 5) == 0 ? word + 5 : word;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        ours = strcmp(words[i].theirs, name) == 0 ? words[i].ours : ours;
    }
    if (ours == word && name > word) { /* of a named set: eval_NAME_loss */
        ours = dt_arena_printf(u->arena, "val_%s", name);
    }
    const char *const keys[] = {transformers_has_plateau(u) ? r->to : NULL,
                                keeps_best(u) ? "checkpointing.monitor" : NULL,
                                stops_early(u) ? "early_stopping.monitor" : NULL};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (keys[i] != NULL) {
            dialect_give(u, path, keys[i], cJSON_CreateString(ours));
        }
    }
}

void transformers_greater(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    static const char words[] = "true=max|false=min";
    const struct dialect_rule best = WORDS(r->from, "checkpointing.mode", words),
                              stop = WORDS(r->from, "early_stopping.mode", words);
    if (keeps_best(u)) {
        dialect_words(u, &best, path, value);
    }
    if (stops_early(u)) {
        dialect_words(u, &stop, path, value);
    }
}

/* ---- early stopping ---- */

/* EarlyStoppingCallback's; a value that is not finite is no better one there. */
void transformers_patience(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    if (dt_config_value(u->c, "early_stopping.check_finite") == NULL) {
        dialect_give(u, path, "early_stopping.check_finite", cJSON_CreateBool(false));
    }
    if (!dialect_says(u, "metric_for_best_model")) {
        dialect_give(u, path, "early_stopping.monitor", cJSON_CreateString("val_loss"));
    }
}

/* The best value moves with each better one there, however little it is better. */
void transformers_threshold(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    if (stops_early(u)) {
        dialect_give(u, path, "early_stopping.compare_with_best", cJSON_CreateBool(true));
    }
}
