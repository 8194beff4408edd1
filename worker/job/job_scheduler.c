/* The section `scheduler`: numbers of single schedules, named as the systems name them that the
 * schedules are of. A key's help begins with the schedules that read it, and others refuse it. */
#include "worker/job/job_fields.h"

#include "worker/engine/schedules/plateau.h"

#include <stddef.h>
#include <string.h>

#define STEPS 1e12
#define LARGE 1e30

static const struct dt_rule boolean = {.type = DT_RULE_BOOL};
static const struct dt_rule rate = {.type = DT_RULE_NUMBER, .max = LARGE};
static const struct dt_rule rate_or_null = {.type = DT_RULE_NUMBER, .max = LARGE, .null = true, .null_value = -1};
static const struct dt_rule share = {.type = DT_RULE_NUMBER, .max = 1};
static const struct dt_rule within_1 = {.type = DT_RULE_NUMBER, .open_min = true, .max = 1, .open_max = true};
static const struct dt_rule factor = {.type = DT_RULE_NUMBER, .open_min = true, .max = 1};
static const struct dt_rule divisor = {.type = DT_RULE_NUMBER, .open_min = true, .max = LARGE};
static const struct dt_rule steps_or_null = {.type = DT_RULE_INTEGER, .min = 1, .max = STEPS, .null = true};
static const struct dt_rule interval = {.type = DT_RULE_INTEGER, .min = 1, .max = STEPS};
static const struct dt_rule count = {.type = DT_RULE_INTEGER, .min = 0, .max = STEPS};
static const struct dt_rule count_or_null = {
    .type = DT_RULE_INTEGER, .min = 0, .max = STEPS, .null = true, .null_value = -1};
static const struct dt_rule milestones = {.type = DT_RULE_INTEGERS, .min = 0, .max = STEPS, .null = true};
static const struct dt_rule unit = {.type = DT_RULE_ENUM, .choices = "step|epoch"};
static const struct dt_rule anneal = {.type = DT_RULE_ENUM, .choices = "cos|linear"};
static const struct dt_rule mode = {.type = DT_RULE_ENUM, .choices = "min|max"};
static const struct dt_rule threshold_mode = {.type = DT_RULE_ENUM, .choices = "rel|abs"};
static const struct dt_rule monitor = {.type = DT_RULE_CHOICE, .choices = PLATEAU_MONITORS};

#define AT(member) offsetof(struct schedule_numbers, member)
const struct dt_field job_scheduler_fields[] = {
    {"gamma", "0.1", "step, multi_step, exponential: what the rate is multiplied by", AT(gamma), &factor},
    {"step_size", "null", "step: steps between two cuts", AT(step_size), &steps_or_null},
    {"milestones", "null", "multi_step: the steps of the cuts", AT(milestones), &milestones},
    {"interval", "\"step\"",
     "all: what is counted; epoch: the rate changes between epochs alone, and step_size, milestones and the like are "
     "epochs, as Lightning has it",
     AT(interval), &unit},
    {"num_cycles", "1", "cosine_with_restarts: half waves", AT(num_cycles), &interval},
    {"timescale", "null",
     "inverse_sqrt: steps in which the rate falls by the root of 2; as many as of warm-up when null", AT(timescale),
     &steps_or_null},
    {"num_decay_steps", "null", "warmup_stable_decay: the last steps, in which the rate falls; decay_ratio when null",
     AT(num_decay_steps), &steps_or_null},
    {"T_max", "null", "cosine_annealing: steps of half a wave, after which the rate rises again", AT(T_max),
     &steps_or_null},
    {"T_0", "null", "cosine_warm_restarts: steps until the first restart", AT(T_0), &steps_or_null},
    {"T_mult", "1", "cosine_warm_restarts: how many times as long it is until the next one", AT(T_mult), &interval},
    {"eta_min", "0", "cosine_annealing, cosine_warm_restarts: the least rate", AT(eta_min), &rate},
    {"start_factor", "0.3333333333333333", "linear_lr, constant_lr: share of learning_rate at the beginning",
     AT(start_factor), &factor},
    {"end_factor", "1", "linear_lr: share of learning_rate at the end", AT(end_factor), &share},
    {"total_iters", "5", "linear_lr, constant_lr, polynomial_lr: steps until the end", AT(total_iters), &interval},
    {"monitor", "\"val_loss\"", "reduce_lr_on_plateau: what of an evaluation has to get better", AT(monitor), &monitor},
    {"mode", "\"min\"", "reduce_lr_on_plateau: whether a lower or a higher value is better", AT(mode), &mode},
    {"factor", "0.1", "reduce_lr_on_plateau: what the rate is multiplied by", AT(factor), &within_1},
    {"patience", "10", "reduce_lr_on_plateau: evaluations in a row that may be no better", AT(patience), &count},
    {"threshold", "0.0001", "reduce_lr_on_plateau: what is no more than this is not better", AT(threshold), &rate},
    {"threshold_mode", "\"rel\"", "reduce_lr_on_plateau: threshold is a share of the best value, or a difference",
     AT(threshold_mode), &threshold_mode},
    {"cooldown", "0", "reduce_lr_on_plateau: evaluations after a cut that do not count", AT(cooldown), &count},
    {"min_lr", "0", "reduce_lr_on_plateau: the least rate", AT(min_lr), &rate},
    {"eps", "1e-08", "reduce_lr_on_plateau: a cut by no more than this is not made", AT(eps), &rate},
    {"pct_start", "0.3", "one_cycle: share of all steps in which the rate rises", AT(pct_start), &share},
    {"anneal_strategy", "\"cos\"", "one_cycle: shape of rise and fall", AT(anneal_strategy), &anneal},
    {"div_factor", "25", "one_cycle: the first rate is learning_rate over this", AT(div_factor), &divisor},
    {"final_div_factor", "10000", "one_cycle: the last rate is the first one over this", AT(final_div_factor),
     &divisor},
    {"three_phase", "false", "one_cycle: falls to the first rate as long as it has risen, then to the last one",
     AT(three_phase), &boolean},
    {"cycle_momentum", "true", "one_cycle, onecycle: momentum moves against the rate", AT(cycle_momentum), &boolean},
    {"base_momentum", "0.85", "one_cycle: momentum at the highest rate", AT(base_momentum), &within_1},
    {"max_momentum", "0.95", "one_cycle: momentum at the first and last rate", AT(max_momentum), &within_1},
    {"cycle_min_lr", "null", "onecycle: the rate before and after the cycle", AT(cycle_min_lr), &rate_or_null},
    {"cycle_max_lr", "null", "onecycle: the highest rate; training.learning_rate when null", AT(cycle_max_lr),
     &rate_or_null},
    {"cycle_first_step_size", "2000", "onecycle: steps of the rise", AT(cycle_first_step_size), &interval},
    {"cycle_second_step_size", "null", "onecycle: steps of the fall; as of the rise when null",
     AT(cycle_second_step_size), &count_or_null},
    {"cycle_first_stair_count", "0", "onecycle: stairs of the rise; 0: a line", AT(cycle_first_stair_count), &count},
    {"cycle_second_stair_count", "null", "onecycle: stairs of the fall; as of the rise when null",
     AT(cycle_second_stair_count), &count_or_null},
    {"decay_lr_rate", "0", "onecycle: after the cycle the rate is divided by 1 + this * steps / decay_step_size",
     AT(decay_lr_rate), &rate},
    {"decay_step_size", "0", "onecycle: steps of that decay; 0: there is none", AT(decay_step_size), &count},
    {"cycle_min_mom", "0.8", "onecycle: momentum at the highest rate", AT(cycle_min_mom), &within_1},
    {"cycle_max_mom", "0.9", "onecycle: momentum at the lowest rate", AT(cycle_max_mom), &within_1},
    {"decay_mom_rate", "0", "onecycle: after the cycle momentum is multiplied by 1 + this * steps / decay_step_size",
     AT(decay_mom_rate), &rate},
    {"warmup_min_lr", "0", "warmuplr, warmupdecaylr: where the warm-up begins and the fall ends", AT(warmup_min_lr),
     &rate},
    {"warmup_min_ratio", "0", "warmupcosinelr: share of learning_rate where the warm-up begins", AT(warmup_min_ratio),
     &share},
    {"lr_range_test_min_lr", "0.001", "lrrangetest: the first rate", AT(lr_range_test_min_lr), &rate},
    {"lr_range_test_step_size", "2000", "lrrangetest: steps in which it grows by lr_range_test_step_rate of itself",
     AT(lr_range_test_step_size), &interval},
    {"lr_range_test_step_rate", "1", "lrrangetest: growth", AT(lr_range_test_step_rate), &rate},
    {"lr_range_test_staircase", "false", "lrrangetest: grows at once, after these steps", AT(lr_range_test_staircase),
     &boolean},
    {0},
};
#undef AT

#define TYPE_KEY "training.lr_scheduler_type"

/* The schedules that begin the help: "step, multi_step" of "step, multi_step: ...". A schedule's name
 * may go on, as warmuplr_linear. */
static bool reads(const char *owners, size_t size, const char *type)
{
    if (size == 3 && strncmp(owners, "all", size) == 0) {
        return true;
    }
    for (const char *p = owners; p < owners + size;) {
        size_t name = strcspn(p, ",:");
        if (strncmp(p, type, name) == 0 && (type[name] == 0 || type[name] == '_')) {
            return true;
        }
        p += name + strspn(p + name, ", :");
    }
    return false;
}

/* Numbers of one schedule say nothing to the others; a saved job has them all, with their defaults. */
static void check_owner(struct job *job, struct dt_config *c, const char *section, const struct dt_field *f,
                        const void *in)
{
    const char *type = job->training.lr_scheduler_type;
    size_t owners = strcspn(f->help, ":");
    const char *key = dt_arena_printf(&job->arena, "%s.%s", section, f->key);
    struct dt_text value;
    if (reads(f->help, owners, type) || dt_config_where(c, key) == NULL) {
        return;
    }
    dt_text_init(&value);
    dt_config_format(f, in, &value);
    if (strcmp(dt_text_str(&value), f->fallback) != 0) {
        dt_config_problem(c, key, "belongs to %.*s, and " TYPE_KEY " is %s (%s); remove it", (int)owners, f->help, type,
                          dt_config_source(c, TYPE_KEY));
    }
    dt_text_clear(&value);
}

static void check_needs(struct job *job, struct dt_config *c)
{
    const struct job_training *t = &job->training;
    const char *type = t->lr_scheduler_type;
    const struct {
        const char *type, *key, *text;
        bool missing;
    } all[] = {
        {"step", "scheduler.step_size", "is missing, which step needs; give the steps between two cuts",
         t->scheduler.step_size == 0},
        {"multi_step", "scheduler.milestones", "is missing, which multi_step needs; give the steps of the cuts",
         t->scheduler.milestones.count == 0},
        {"exponential", "scheduler.gamma", "is missing, which exponential needs; give what a step multiplies by",
         dt_config_where(c, "scheduler.gamma") == NULL},
        {"cosine_annealing", "scheduler.T_max",
         "is missing, which cosine_annealing needs; give the steps of half a wave, or write cosine",
         t->scheduler.T_max == 0},
        {"cosine_warm_restarts", "scheduler.T_0",
         "is missing, which cosine_warm_restarts needs; give the steps until the first restart", t->scheduler.T_0 == 0},
        {"onecycle", "scheduler.cycle_min_lr",
         "is missing, which onecycle, DeepSpeed's, needs; give it, or write one_cycle for PyTorch's",
         t->scheduler.cycle_min_lr < 0},
        {"reduce_lr_on_plateau", TYPE_KEY, "reduce_lr_on_plateau looks at evaluations; give data.val",
         job->data.val.count == 0},
        {"reduce_lr_on_plateau", TYPE_KEY,
         "reduce_lr_on_plateau looks at evaluations; give training.eval_every_n_steps",
         job->data.val.count > 0 && t->eval_every_n_steps == 0 && t->eval_every_n_epochs == 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].missing && strcmp(all[i].type, type) == 0) {
            dt_config_problem(c, all[i].key, "%s", all[i].text);
        }
    }
}

/* A schedule that moves momentum needs an optimizer that has some. */
static void check_momentum(struct job *job, struct dt_config *c)
{
    const struct job_training *t = &job->training;
    const struct schedule s = {.type = t->lr_scheduler_type, .numbers = t->scheduler};
    const struct dt_update_numbers *n = &job->optimizer.numbers;
    if (schedule_moves_momentum(&s) && n->momentum == 0 && n->beta1 == 0) {
        dt_config_problem(c, "scheduler.cycle_momentum",
                          "%s has no momentum to move (optimizer.name is %s, %s); write false, or another optimizer",
                          strcmp(job->optimizer.name, "sgd") == 0 ? "sgd without optimizer.momentum"
                                                                  : job->optimizer.name,
                          job->optimizer.name, dt_config_source(c, "optimizer.name"));
    }
}

void job_check_schedule(struct job *job, struct dt_config *c)
{
    const struct job_training *t = &job->training;
    const char *type = t->lr_scheduler_type;
    for (const struct dt_field *f = job_sections[JOB_TRAINING].fields; f->key != NULL; f++) {
        if (strcmp(f->key, "lr_power") == 0 || strcmp(f->key, "decay_ratio") == 0) {
            check_owner(job, c, "training", f, t);
        }
    }
    for (const struct dt_field *f = job_scheduler_fields; f->key != NULL; f++) {
        check_owner(job, c, "scheduler", f, &t->scheduler);
    }
    if (!schedule_warms_up(type) && (t->warmup_steps > 0 || t->warmup_ratio > 0)) {
        dt_config_problem(c, TYPE_KEY,
                          strcmp(type, "constant") == 0
                              ? "%s has no warm-up; write constant_with_warmup"
                              : "%s has no warm-up; remove training.warmup_steps and warmup_ratio",
                          type);
    }
    if (!schedule_has_least(type) && t->min_lr_ratio > 0) {
        dt_config_problem(c, "training.min_lr_ratio", "%s (%s) has no rate that it falls to; remove it", type,
                          dt_config_source(c, TYPE_KEY));
    }
    if (t->scheduler.interval == INTERVAL_EPOCH && (t->warmup_steps > 0 || t->warmup_ratio > 0)) {
        dt_config_problem(c, "scheduler.interval",
                          "a warm-up counts steps; remove training.warmup_steps and warmup_ratio, or write step");
    }
    check_needs(job, c);
    check_momentum(job, c);
}
