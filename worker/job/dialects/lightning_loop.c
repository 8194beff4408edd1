/* Flags of Lightning's Trainer that say how long it trains, how much of the data it takes, when it evaluates and when
 * it saves. */
#include "worker/job/dialects/lightning.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVERY_EPOCH "training.eval_every_n_epochs"
#define EVERY_STEP "training.eval_every_n_steps"

/* ---- durations ---- */

/* The arguments of Python's timedelta. Below 0: there is none, or another one. */
static double timedelta_seconds(const cJSON *value)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"weeks", 604800}, {"days", 86400},        {"hours", 3600},       {"minutes", 60},
                 {"seconds", 1},    {"milliseconds", 1e-3}, {"microseconds", 1e-6}};
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(value, "init_args"), *a;
    double sum = 0, number;
    args = args != NULL ? args : value;
    if (!cJSON_IsObject(args)) {
        return -1;
    }
    cJSON_ArrayForEach(a, args)
    {
        double unit = 0;
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            unit = strcmp(a->string, units[i].name) == 0 ? units[i].seconds : unit;
        }
        bool class = strcmp(a->string, "class_path") == 0 || strcmp(a->string, "_target_") == 0;
        if (!class && (unit == 0 || !dt_config_number(a, &number))) {
            return -1;
        }
        sum += class ? 0 : unit * number;
    }
    return sum;
}

/* "1 day, 2:30:00", as YAML has a timedelta, or "2:30:00". */
static double printed_seconds(const char *text)
{
    static const struct {
        const char *behind, *plural; /* the number */
        double seconds;
    } parts[] = {{" day, ", " days, ", 86400}, {":", ":", 3600}, {":", ":", 60}, {"", "", 1}};
    double sum = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char *end;
        double number = (double)strtol(text, &end, 10);
        size_t one = strlen(parts[i].behind), many = strlen(parts[i].plural);
        bool single = strncmp(end, parts[i].behind, one) == 0;
        if (i == 0 && *end == ':') {
            continue; /* no days */
        }
        if (end == text || (!single && strncmp(end, parts[i].plural, many) != 0)) {
            return -1;
        }
        sum += number * parts[i].seconds;
        text = end + (single ? one : many);
    }
    return *text == '\0' ? sum : -1;
}

double lightning_seconds(const cJSON *value)
{
    double number = 0;
    /* 1:00:00 without quotes is a number of YAML, which keeps how it is written */
    bool text = value != NULL && value->valuestring != NULL && strchr(value->valuestring, ':') != NULL;
    return cJSON_IsObject(value)              ? timedelta_seconds(value)
           : text                             ? printed_seconds(value->valuestring)
           : dt_config_number(value, &number) ? number
                                              : -1;
}

void lightning_time(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    /* 1:00:00:00 without quotes is a number of YAML, which keeps how it is written */
    bool text = cJSON_IsString(value) || (cJSON_IsNumber(value) && value->valuestring != NULL);
    double seconds = cJSON_IsObject(value) ? timedelta_seconds(value) : text ? printed_seconds(value->valuestring) : -1;
    if (seconds > 0 && seconds < 1e9) {
        int64_t s = (int64_t)ceil(seconds);
        dialect_give(u, path, r->to,
                     cJSON_CreateString(dt_arena_printf(u->arena, "%02" PRId64 ":%02d:%02d:%02d", s / 86400,
                                                        (int)(s / 3600 % 24), (int)(s / 60 % 60), (int)(s % 60))));
    } else if (text && strchr(value->valuestring, ':') != NULL) { /* the job reads DD:HH:MM:SS */
        dialect_give(u, path, r->to, cJSON_CreateString(value->valuestring));
    } else {
        dialect_wrong(u, path, "a time: \"DD:HH:MM:SS\", or an object of weeks, days, hours, minutes, seconds");
    }
}

/* ---- how long ---- */

/* -1: no limit, by the other one. */
static double limit_of(const struct dialect_use *u, const char *key)
{
    double number = -1;
    return dt_config_number(dt_config_value(u->c, dialect_path(u, key)), &number) ? number : -1;
}

/* Beside max_steps Lightning ends at the first of both. */
void lightning_max_epochs(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    bool trial = dt_config_value(u->c, "training.fast_dev_run") != NULL; /* its rule comes first */
    bool both = limit_of(u, "max_steps") > 0 && limit_of(u, "max_epochs") > 0 && !trial;
    if (limit_of(u, "max_epochs") != -1 || !(cJSON_IsNumber(value) || cJSON_IsString(value))) {
        dialect_give(u, path, both ? "training.epoch_limit" : r->to, cJSON_Duplicate(value, true));
    }
}

void lightning_max_steps(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (limit_of(u, "max_steps") != -1) {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    }
}

/* Lightning then trains one whole epoch, too. */
void lightning_min_steps(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double steps = limit_of(u, "min_steps");
    dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    if (steps > 0 && !dialect_says(u, "min_epochs") && dt_config_value(u->c, "training.min_epochs") == NULL) {
        dialect_give(u, path, "training.min_epochs", cJSON_CreateNumber(1));
    }
}

/* true: one batch. */
void lightning_dev_run(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = cJSON_IsTrue(value) ? 1 : 0;
    if (!cJSON_IsBool(value) && (!dt_config_number(value, &number) || number < 0 || number != floor(number))) {
        dialect_wrong(u, path, "true, false, or a number of batches");
    } else if (number > 0) {
        dialect_give(u, path, r->to, cJSON_CreateNumber(number));
    }
}

/* ---- how much ---- */

/* 1.0 is all, and 1 is one: how a number is written counts. */
static bool is_all(const cJSON *value)
{
    return cJSON_IsNumber(value) && value->valuedouble == 1 && value->valuestring != NULL &&
           strpbrk(value->valuestring, ".eE") != NULL;
}

static bool is_off(const struct dialect_use *u, const char *key)
{
    double number = 1;
    return dt_config_number(dt_config_value(u->c, dialect_path(u, key)), &number) && number == 0;
}

void lightning_limit(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    bool training = strcmp(r->from, "limit_train_batches") == 0, overfits = strcmp(r->from, "overfit_batches") == 0;
    double number = 0, other = 0;
    bool good =
        dt_config_number(value, &number) && number >= 0 && (number <= 1 || number == floor(number)) && number <= 1e12;
    (void)dt_config_number(dt_config_value(u->c, dialect_path(u, "overfit_batches")), &other);
    if (!good) {
        dialect_wrong(u, path, "a number of batches, or a share of them up to 1.0");
    } else if (!overfits && other > 0) {
        dialect_inert(u, path, "overfit_batches says how many");
    } else if (overfits && is_all(value)) {
        dt_config_problem(u->c, path, "1.0 trains on all batches, in one order; write data.shuffle false in the job");
    } else if (number == 0 && training) {
        dt_config_problem(u->c, path, "0 trains nothing; remove it, or evaluate with train --evaluate");
    } else if (number == 0 && !overfits && dt_config_value(u->c, "data.val") != NULL) {
        dialect_inert(u, "data.val", "limit_val_batches 0 evaluates nothing");
        dt_config_pass(u->c, "data.val");
        dt_config_move(u->c, path, "data.val", cJSON_CreateNull());
    } else if (number > 0 && !is_all(value)) {
        dialect_give(u, path, r->to, cJSON_CreateNumber(number));
    }
}

/* ---- when it evaluates ---- */

/* Is there anything to evaluate on? A job that is only converted may get it later. */
static bool evaluates(const struct dialect_use *u)
{
    return (u->converts || dt_config_value(u->c, "data.val") != NULL) && !is_off(u, "limit_val_batches");
}

/* Gives an interval; Lightning evaluates nothing where there are no batches for it. */
static void give_interval(struct dialect_use *u, const char *path, const char *to, double number)
{
    if (evaluates(u)) {
        dialect_give(u, path, to, cJSON_CreateNumber(number));
    } else {
        dialect_inert(u, path, "there is no data.val");
    }
}

static double epochs_between(const struct dialect_use *u)
{
    double number = 1;
    return dt_config_number(dt_config_value(u->c, dialect_path(u, "check_val_every_n_epoch")), &number) ? number : 1;
}

/* Batches between evaluations, where our interval is of steps; or a share of an epoch. */
void lightning_interval(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 0, micro_steps = 1;
    const cJSON *accumulated = dt_config_value(u->c, dialect_path(u, "accumulate_grad_batches"));
    (void)dt_config_number(accumulated, &micro_steps);
    if (is_all(value)) {
        return;
    }
    if (cJSON_IsObject(value) || (cJSON_IsString(value) && strchr(value->valuestring, ':') != NULL) ||
        (cJSON_IsNumber(value) && value->valuestring != NULL && strchr(value->valuestring, ':') != NULL)) {
        dt_config_problem(u->c, path,
                          "evaluations do not follow a clock; give a number of batches, or a share of an epoch");
        return;
    }
    bool good = dt_config_number(value, &number) && number > 0 && (number < 1 || number == floor(number));
    if (good && epochs_between(u) > 1) {
        dt_config_problem(
            u->c, path, "counts within each epoch, and check_val_every_n_epoch leaves epochs out; remove one of them");
    } else if (good && number < 1) {
        give_interval(u, path, EVERY_EPOCH, number);
    } else if (good && cJSON_IsObject(accumulated)) {
        dt_config_problem(u->c, path,
                          "batches of a step change with accumulate_grad_batches; give a share of an epoch");
    } else if (good && fmod(number, micro_steps) == 0) {
        give_interval(u, path, r->to, number / micro_steps);
    } else if (good) {
        dt_config_problem(u->c, path, "steps have %g batches each; give a multiple of that, or a share of an epoch",
                          micro_steps);
    } else {
        dialect_wrong(u, path, "a number of batches, or a share of an epoch up to 1.0");
    }
}

/* 1 is what holds where nothing says when. */
void lightning_epoch_interval(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const cJSON *batches = dt_config_value(u->c, dialect_path(u, "val_check_interval"));
    double number = 0;
    if (!dt_config_number(value, &number) || number < 1 || number != floor(number)) {
        dialect_wrong(u, path, "a whole number of epochs");
    } else if (number > 1 && (batches == NULL || is_all(batches))) {
        give_interval(u, path, r->to, number);
    }
}

/* -1: all. */
void lightning_sanity(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (evaluates(u)) {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    }
}

/* ---- what holds where the file says nothing ---- */

/* False: the keys of the Trainer stand elsewhere. */
static bool is_trainer(const struct dialect_use *u)
{
    return strcmp(u->place, "lightning.trainer") == 0 || dt_config_value(u->c, "lightning.trainer") == NULL;
}

static void fall_back(struct dialect_use *u, const char *to, cJSON *value)
{
    if (dt_config_value(u->c, to) == NULL) {
        dt_config_move(u->c, u->place, to, value);
    } else {
        cJSON_Delete(value);
    }
}

/* Lightning trains 1000 epochs unless something ends it, and without an end where only a time does. */
static void default_length(struct dialect_use *u)
{
    bool timed = dt_config_value(u->c, "training.max_time") != NULL, given = false;
    static const char *const keys[] = {"max_steps", "num_epochs", "max_tokens", "fast_dev_run"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        given |= dt_config_value(u->c, dt_arena_printf(u->arena, "training.%s", keys[i])) != NULL;
    }
    if (!given && dialect_says(u, "max_epochs") && !timed) {
        dt_config_problem(u->c, dialect_path(u, "max_epochs"),
                          "-1 has no end, which the rate follows; give max_steps, max_epochs, or max_time");
    }
    if (!given) {
        fall_back(u, "training.num_epochs", cJSON_CreateNumber(timed ? 1e6 : 1000));
    }
}

/* A job that is only converted gets its data later, or at least what its callbacks and its rate look at. */
static bool gets_val(const struct dialect_use *u)
{
    const char *schedule = cJSON_GetStringValue(dt_config_value(u->c, "training.lr_scheduler_type"));
    return u->converts &&
           (dt_config_value(u->c, "data.train") == NULL || dt_config_value(u->c, "early_stopping.monitor") != NULL ||
            dt_config_value(u->c, "checkpointing.save_top_k") != NULL ||
            (schedule != NULL && strcmp(schedule, "reduce_lr_on_plateau") == 0));
}

void lightning_defaults(struct dialect_use *u)
{
    static const char saves[] = "checkpointing.save_every_n_steps", by_epoch[] = "checkpointing.save_every_n_epochs";
    if (!is_trainer(u)) {
        return;
    }
    bool bare = cJSON_IsTrue(dt_config_value(u->c, dialect_path(u, "barebones")));
    default_length(u);
    fall_back(u, "training.max_grad_norm", cJSON_CreateNumber(0));
    if (bare) {
        fall_back(u, saves, cJSON_CreateNumber(0));
    }
    if (dt_config_value(u->c, saves) == NULL && dt_config_value(u->c, by_epoch) == NULL) {
        fall_back(u, by_epoch, cJSON_CreateNumber(1));
    }
    fall_back(u, "checkpointing.keep_last_n", cJSON_CreateNumber(1));
    if ((dt_config_value(u->c, "data.val") == NULL && !gets_val(u)) || is_off(u, "limit_val_batches")) {
        return;
    }
    if (dt_config_value(u->c, EVERY_STEP) == NULL && dt_config_value(u->c, EVERY_EPOCH) == NULL) {
        fall_back(u, EVERY_EPOCH, cJSON_CreateNumber(1));
    }
    fall_back(u, "training.num_sanity_val_steps", cJSON_CreateNumber(bare ? 0 : 2));
}
