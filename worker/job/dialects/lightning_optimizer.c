/* Lightning's `optimizer` and `lr_scheduler`: classes of torch.optim with their arguments, and which
 * optimizer, schedule and numbers of ours these are. */
#include "worker/job/dialects/lightning.h"

#include <cjson/cJSON.h>
#include <string.h>

/* An argument of a class, and our key for it. */
struct moved {
    const char *theirs, *ours;
};

static const char *key_of(const struct moved *rows, const char *name)
{
    while (rows->theirs != NULL && strcmp(rows->theirs, name) != 0) {
        rows++;
    }
    return rows->ours;
}

/* "lr: 1e-4" is a word in YAML, and a number to PyTorch. */
static cJSON *number_or_as_it_is(const cJSON *value)
{
    double number;
    return cJSON_IsString(value) && dt_config_number(value, &number) ? cJSON_CreateNumber(number)
                                                                     : cJSON_Duplicate(value, true);
}

static void give_default(struct dialect_use *u, const char *path, const char *to, double value)
{
    if (dt_config_value(u->c, to) == NULL) {
        dialect_give(u, path, to, cJSON_CreateNumber(value));
    }
}

/* ---- optimizers ---- */

#define OF_ALL                                                                                                         \
    {"lr", "training.learning_rate"},                                                                                  \
    {                                                                                                                  \
        "weight_decay", "training.weight_decay"                                                                        \
    }
static const struct moved adam[] = {OF_ALL,
                                    {"eps", "training.adam_epsilon"},
                                    {"beta1", "training.adam_beta1"},
                                    {"beta2", "training.adam_beta2"},
                                    {"amsgrad", "training.adam_amsgrad"},
                                    {0}};
static const struct moved sgd[] = {OF_ALL,
                                   {"momentum", "optimizer.momentum"},
                                   {"dampening", "optimizer.dampening"},
                                   {"nesterov", "optimizer.nesterov"},
                                   {0}};
static const struct moved adagrad[] = {OF_ALL,
                                       {"eps", "optimizer.eps"},
                                       {"lr_decay", "optimizer.lr_decay"},
                                       {"initial_accumulator_value", "optimizer.initial_accumulator_value"},
                                       {0}};
static const struct moved lion[] = {OF_ALL, {"beta1", "optimizer.beta1"}, {"beta2", "optimizer.beta2"}, {0}};

static const struct optimizer_class {
    const char *class, *name;
    double rate, decay; /* defaults of PyTorch, of Lion those of lion_pytorch */
    const struct moved *moved;
} optimizers[] = {{"AdamW", "adamw", 1e-3, 0.01, adam},
                  {"Adam", "adam", 1e-3, 0, adam},
                  {"SGD", "sgd", 1e-3, 0, sgd},
                  {"Adagrad", "adagrad", 1e-2, 0, adagrad},
                  {"Lion", "lion", 1e-4, 0, lion}};
enum { OPTIMIZERS = sizeof optimizers / sizeof optimizers[0] };

/* OneCycleLR takes the rate over, from its max_lr. */
static bool is_rate_of_cycle(const struct dialect_use *u)
{
    const cJSON *scheduler = dt_config_value(u->c, dialect_path(u, "lr_scheduler"));
    return strcmp(lightning_class(scheduler), "OneCycleLR") == 0 && lightning_argument(scheduler, "max_lr") != NULL;
}

static bool is_torch_adam(const struct optimizer_class *o)
{
    return strcmp(o->class, "Adam") == 0;
}

static void optimizer_argument(struct dialect_use *u, const void *of, const char *key, const cJSON *a)
{
    const struct optimizer_class *o = of;
    static const char speed[] = "|foreach|fused|capturable|differentiable|";
    const char *to = key_of(o->moved, a->string), *first = key_of(o->moved, "beta1"),
               *second = key_of(o->moved, "beta2");
    if (strcmp(a->string, "lr") == 0 && is_rate_of_cycle(u)) {
        dialect_inert(u, key, "OneCycleLR's max_lr counts");
    } else if (to != NULL && strncmp(a->string, "beta", 4) != 0) {
        dialect_give(u, key, to, number_or_as_it_is(a));
    } else if (strcmp(a->string, "betas") == 0 && first != NULL && cJSON_GetArraySize(a) == 2) {
        dialect_give(u, key, first, cJSON_Duplicate(cJSON_GetArrayItem(a, 0), true));
        dialect_give(u, key, second, cJSON_Duplicate(cJSON_GetArrayItem(a, 1), true));
    } else if (is_torch_adam(o) && strcmp(a->string, "decoupled_weight_decay") == 0 && cJSON_IsBool(a)) {
        return; /* it names the optimizer */
    } else if (strstr(speed, dt_arena_printf(u->arena, "|%s|", a->string)) == NULL && !dt_config_off(a)) {
        dt_config_problem(u->c, key, "not there yet for %s; remove it", o->class);
    }
}

void lightning_optimizer(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const char *class = lightning_class(value);
    const struct optimizer_class *o = optimizers;
    while (o < optimizers + OPTIMIZERS && strcmp(o->class, class) != 0) {
        o++;
    }
    if (o == optimizers + OPTIMIZERS) {
        dt_config_problem(u->c, path,
                          "%.60s: there are torch.optim.AdamW, Adam, SGD, Adagrad, and Lion; write one of them", class);
        return;
    }
    bool decoupled = is_torch_adam(o) && cJSON_IsTrue(lightning_argument(value, "decoupled_weight_decay"));
    dialect_give(u, path, r->to, cJSON_CreateString(decoupled ? "adamw" : o->name));
    lightning_arguments(u, path, value, optimizer_argument, o);
    if (lightning_argument(value, "lr") == NULL && !is_rate_of_cycle(u)) {
        give_default(u, path, "training.learning_rate", o->rate);
    }
    if (lightning_argument(value, "weight_decay") == NULL && o->decay > 0) {
        give_default(u, path, "training.weight_decay", o->decay);
    }
}

/* ---- schedulers ---- */

static const struct moved step_lr[] = {{"step_size", "scheduler.step_size"}, {"gamma", "scheduler.gamma"}, {0}};
static const struct moved multi_step[] = {{"milestones", "scheduler.milestones"}, {"gamma", "scheduler.gamma"}, {0}};
static const struct moved exponential[] = {{"gamma", "scheduler.gamma"}, {0}};
static const struct moved annealing[] = {{"T_max", "scheduler.T_max"}, {"eta_min", "scheduler.eta_min"}, {0}};
static const struct moved restarts[] = {
    {"T_0", "scheduler.T_0"}, {"T_mult", "scheduler.T_mult"}, {"eta_min", "scheduler.eta_min"}, {0}};
static const struct moved linear[] = {{"start_factor", "scheduler.start_factor"},
                                      {"end_factor", "scheduler.end_factor"},
                                      {"total_iters", "scheduler.total_iters"},
                                      {0}};
static const struct moved constant[] = {
    {"factor", "scheduler.start_factor"}, {"total_iters", "scheduler.total_iters"}, {0}};
static const struct moved polynomial[] = {
    {"total_iters", "scheduler.total_iters"}, {"power", "training.lr_power"}, {0}};
static const struct moved one_cycle[] = {{"max_lr", "training.learning_rate"},
                                         {"pct_start", "scheduler.pct_start"},
                                         {"anneal_strategy", "scheduler.anneal_strategy"},
                                         {"cycle_momentum", "scheduler.cycle_momentum"},
                                         {"base_momentum", "scheduler.base_momentum"},
                                         {"max_momentum", "scheduler.max_momentum"},
                                         {"div_factor", "scheduler.div_factor"},
                                         {"final_div_factor", "scheduler.final_div_factor"},
                                         {"three_phase", "scheduler.three_phase"},
                                         {"total_steps", NULL},
                                         {"epochs", NULL},
                                         {"steps_per_epoch", NULL},
                                         {0}};
static const struct moved plateau[] = {{"mode", "scheduler.mode"},
                                       {"factor", "scheduler.factor"},
                                       {"patience", "scheduler.patience"},
                                       {"threshold", "scheduler.threshold"},
                                       {"threshold_mode", "scheduler.threshold_mode"},
                                       {"cooldown", "scheduler.cooldown"},
                                       {"min_lr", "scheduler.min_lr"},
                                       {"eps", "scheduler.eps"},
                                       {"monitor", "scheduler.monitor"},
                                       {0}};

static const struct scheduler_class {
    const char *class, *type;
    const struct moved *moved;
} schedulers[] = {{"StepLR", "step", step_lr},
                  {"MultiStepLR", "multi_step", multi_step},
                  {"ExponentialLR", "exponential", exponential},
                  {"CosineAnnealingLR", "cosine_annealing", annealing},
                  {"CosineAnnealingWarmRestarts", "cosine_warm_restarts", restarts},
                  {"LinearLR", "linear_lr", linear},
                  {"ConstantLR", "constant_lr", constant},
                  {"PolynomialLR", "polynomial_lr", polynomial},
                  {"OneCycleLR", "one_cycle", one_cycle},
                  {"ReduceLROnPlateau", "reduce_lr_on_plateau", plateau}};
enum { SCHEDULERS = sizeof schedulers / sizeof schedulers[0] };

/* Lightning steps a scheduler once an epoch; ours ends with the run. */
static void check_cycle(struct dialect_use *u, const char *path, const cJSON *value)
{
    double epochs = 1, per = 1, all = 0, run = 0;
    bool given = dt_config_number(lightning_argument(value, "total_steps"), &all);
    if (!given && dt_config_number(lightning_argument(value, "epochs"), &epochs) &&
        dt_config_number(lightning_argument(value, "steps_per_epoch"), &per)) {
        all = epochs * per;
        given = true;
    }
    bool known = dt_config_number(dt_config_value(u->c, dialect_path(u, "trainer.max_epochs")), &run) && run > 0;
    if (!given) {
        dt_config_problem(u->c, path, "OneCycleLR needs total_steps, the epochs of the run; add it");
    } else if (!known || run != all) {
        dt_config_problem(u->c, path,
                          "OneCycleLR ends after %g epochs, as Lightning counts, and here with the run; write "
                          "trainer.max_epochs %g",
                          all, all);
    }
}

static void scheduler_argument(struct dialect_use *u, const void *of, const char *key, const cJSON *a)
{
    const struct scheduler_class *s = of;
    const char *to = key_of(s->moved, a->string);
    bool length = strcmp(a->string, "total_steps") == 0 || strcmp(a->string, "epochs") == 0 ||
                  strcmp(a->string, "steps_per_epoch") == 0;
    double number = 0;
    if (s->moved == plateau && strcmp(a->string, "monitor") == 0) {
        const struct dialect_rule rule = {.to = "scheduler.monitor"};
        lightning_monitor(u, &rule, key, a);
    } else if (to != NULL) {
        dialect_give(u, key, to, number_or_as_it_is(a));
    } else if (strcmp(a->string, "last_epoch") == 0 && dt_config_number(a, &number) && number == -1) {
        return;
    } else if (!(s->moved == one_cycle && length) && strcmp(a->string, "verbose") != 0) {
        dt_config_problem(u->c, key, "%s has no such number here; remove it", s->class);
    }
}

void lightning_scheduler(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const char *class = lightning_class(value);
    const struct scheduler_class *s = schedulers;
    while (s < schedulers + SCHEDULERS && strcmp(s->class, class) != 0) {
        s++;
    }
    if (s == schedulers + SCHEDULERS) {
        dt_config_problem(u->c, path,
                          "%.60s: there are StepLR, MultiStepLR, ExponentialLR, CosineAnnealingLR, "
                          "CosineAnnealingWarmRestarts, LinearLR, ConstantLR, PolynomialLR, OneCycleLR and "
                          "ReduceLROnPlateau; write one of them, or training.lr_scheduler_type",
                          class);
        return;
    }
    dialect_give(u, path, r->to, cJSON_CreateString(s->type));
    if (s->moved != plateau) {
        dialect_give(u, path, "scheduler.interval", cJSON_CreateString("epoch"));
    }
    lightning_arguments(u, path, value, scheduler_argument, s);
    if (s->moved == one_cycle) {
        check_cycle(u, path, value);
    }
}
