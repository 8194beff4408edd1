/* metrics.jsonl: one object for each logged step, each evaluation, and the samples of a step. Rank 0 writes it. */
#include "worker/run/prompt.h"
#include "worker/run/trainer.h"

#include "base/gpu/nvml.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct metrics {
    char *path;
    struct dt_text line; /* reused, so a logged step allocates nothing once it has grown */
};

static bool metrics_open(struct observer *o)
{
    if (o->all->world->rank != 0 || !o->all->files) {
        return false;
    }
    struct metrics *m = o->state = dt_alloc(sizeof *m);
    m->path = dt_format("%s/metrics.jsonl", o->all->job->output_dir);
    dt_text_init(&m->line);
    return true;
}

/* JSON has no NaN. */
static void number(struct dt_text *t, const char *key, double value)
{
    if (isfinite(value)) {
        dt_text_printf(t, ", \"%s\": %.9g", key, value);
    } else {
        dt_text_printf(t, ", \"%s\": null", key);
    }
}

/* Adds the reasons why this rank's GPU runs below its clock, if there are any. */
static void add_gpu(struct dt_text *t, struct gpu_watch *watch)
{
    struct gpu_sample s;
    char why[160];
    if (!gpu_watch_sample(watch, &s)) {
        return;
    }
    dt_text_puts(t, ", \"gpu_slowed_by\": ");
    (void)dt_nvml_throttle_text(s.throttle, false, why, sizeof why);
    dt_text_json(t, why, strlen(why));
}

void observer_step_numbers(struct observer *o, const struct report *r, struct step_number out[STEP_NUMBERS])
{
    struct gpu_sample s; /* of this rank's GPU, a second old at most; below 0: not known */
    bool gpu = gpu_watch_sample(o->all->world->gpu, &s);
    const struct step_number all[STEP_NUMBERS] = {
        {"epoch", r->epoch, false, false},
        {r->sequences ? "tokens" : "samples", (double)r->tokens, true, false},
        {"targets", (double)r->targets, true, false},
        {"steps_without_targets", r->blank_steps > 0 ? (double)r->blank_steps : NAN, true, true},
        {"outlier_steps", r->outlier_steps > 0 ? (double)r->outlier_steps : NAN, true, true},
        {"loss", r->loss, false, false},
        {"grad_norm", r->grad_norm, false, false},
        {"lr", r->lr, false, false},
        {"step_s", r->step_s, false, false},
        {"data_wait_s", r->data_wait_s, false, false},
        {r->sequences ? "tokens_per_s" : "samples_per_s", r->tokens_per_s, false, false},
        {"mfu", r->mfu, false, false},
        {"gpu_busy", gpu && s.busy >= 0 ? s.busy : NAN, false, true},
        {"gpu_memory_bytes", gpu && s.memory_bytes >= 0 ? s.memory_bytes : NAN, false, true},
        {"gpu_clock_mhz", gpu && s.clock_mhz >= 0 ? s.clock_mhz : NAN, false, true},
        {"gpu_temperature", gpu && s.temperature >= 0 ? s.temperature : NAN, false, true},
        {"gpu_power_w", gpu && s.power_w >= 0 ? s.power_w : NAN, false, true},
        {"loss_scale", r->loss_scale, floor(r->loss_scale) == r->loss_scale, false}, /* 2^32 has ten digits */
        {"steps_skipped", r->skipped_steps > 0 ? (double)r->skipped_steps : NAN, true, true},
        {"memory_bytes", r->memory_bytes, true, false},
    };
    memcpy(out, all, sizeof all);
}

static void add_step(struct observer *o, const struct report *r)
{
    struct dt_text *t = &((struct metrics *)o->state)->line;
    struct step_number all[STEP_NUMBERS];
    observer_step_numbers(o, r, all);
    for (int i = 0; i < STEP_NUMBERS; i++) {
        if (all[i].whole && isfinite(all[i].value)) {
            dt_text_printf(t, ", \"%s\": %.0f", all[i].key, all[i].value);
        } else if (!all[i].may_lack || isfinite(all[i].value)) {
            number(t, all[i].key, all[i].value);
        }
    }
    add_gpu(t, o->all->world->gpu);
}

/* , "val_loss": 1.25, or , "val_SET_loss": 1.25 */
static void set_number(struct dt_text *t, const char *set, const char *key, double value)
{
    char name[DT_SET_NAME_MAX + 32];
    (void)snprintf(name, sizeof name, "val_%s%s%s", set != NULL ? set : "", set != NULL ? "_" : "", key);
    number(t, name, value);
}

static void set_number_if_known(struct dt_text *t, const char *set, const char *key, double value)
{
    if (isfinite(value)) {
        set_number(t, set, key, value);
    }
}

void observer_add_evaluation(struct dt_text *t, const struct report *r)
{
    const struct class_report *c = r->classes;
    const char *set = r->set;
    set_number(t, set, "loss", r->val_loss);
    set_number_if_known(t, set, "perplexity", r->perplexity);
    set_number_if_known(t, set, "bits_per_byte", r->bits_per_byte);
    set_number_if_known(t, set, "pearson", r->pearson);
    if (r->choices != NULL) {
        set_number(t, set, "acc", r->choices->accuracy);
        set_number(t, set, "acc_norm", r->choices->by_characters);
        set_number(t, set, "acc_bytes", r->choices->by_bytes);
        set_number(t, set, "items", (double)r->choices->items);
    }
    if (c == NULL || !isfinite(c->accuracy)) {
        return;
    }
    set_number(t, set, "accuracy", c->accuracy);
    set_number_if_known(t, set, "accuracy_top5", c->top5);
    set_number(t, set, "f1_macro", c->f1_macro);
    set_number_if_known(t, set, "f1_micro", c->f1_micro);
    dt_text_printf(t, ", \"val_%s%sf1\": [", set != NULL ? set : "", set != NULL ? "_" : "");
    for (int64_t k = 0; k < c->classes; k++) {
        dt_text_printf(t, "%s%.9g", k > 0 ? ", " : "", c->f1[k]);
    }
    dt_text_puts(t, "]");
}

static void add_samples(struct dt_text *t, const struct report *r)
{
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(t, ", \"samples\": [");
    for (int64_t i = 0; i < r->sample_count; i++) {
        const struct generate_row *row = &r->samples[i];
        dt_text_puts(t, i > 0 ? ", {" : "{");
        prompt_show_json(i, row, t);
        if (row->is_text) {
            dt_text_reset(&text);
            prompt_show_text(r->tokenizer, row->ids, row->count, &text);
            dt_text_puts(t, ", \"text\": ");
            dt_text_json(t, text.data, text.size);
        }
        dt_text_puts(t, "}");
    }
    dt_text_puts(t, "]");
    dt_text_clear(&text);
}

static void metrics_report(struct observer *o, const struct report *r, enum moment moment)
{
    struct metrics *m = o->state;
    if (moment != MOMENT_EVALUATION && moment != MOMENT_SAMPLES && !(moment == MOMENT_STEP && r->logged)) {
        return;
    }
    dt_text_reset(&m->line);
    dt_text_printf(&m->line, "{\"step\": %lld", (long long)r->step);
    if (moment == MOMENT_STEP) {
        add_step(o, r);
    } else if (moment == MOMENT_SAMPLES) {
        add_samples(&m->line, r);
    } else {
        observer_add_evaluation(&m->line, r);
    }
    dt_text_printf(&m->line, ", \"round\": %d, ", r->round);
    observer_add_time(&m->line);
    dt_text_puts(&m->line, "}");
    observer_append(o, m->path, &m->line);
}

struct rewinding {
    int64_t step;
    const char *last; /* the key of the last set's loss: an evaluation writes it last */
    bool *evaluated;
};

static bool is_of_before(void *context, const char *line, int64_t number)
{
    (void)number;
    const struct rewinding *w = context;
    long long at;
    bool of_step = sscanf(line, "{\"step\": %lld", &at) == 1;
    *w->evaluated |= of_step && at == w->step && strstr(line, w->last) != NULL;
    return !of_step || at <= w->step;
}

static int metrics_rewind(struct observer *o, int64_t step, bool *evaluated, struct dt_error *err)
{
    const struct metrics *m = o->state;
    const struct dt_sets *val = &o->all->job->data.val;
    const char *set = val->count > 0 ? val->of[val->count - 1].name : NULL;
    char last[DT_SET_NAME_MAX + 16];
    (void)snprintf(last, sizeof last, "\"val_%s%sloss\":", set != NULL ? set : "", set != NULL ? "_" : "");
    return observer_keep_lines(m->path, is_of_before, &(struct rewinding){step, last, evaluated}, err);
}

static void metrics_close(struct observer *o)
{
    struct metrics *m = o->state;
    free(m->path);
    dt_text_clear(&m->line);
    free(m);
}

const struct observer_ops observer_metrics = {.name = "metrics",
                                              .open = metrics_open,
                                              .report = metrics_report,
                                              .rewind = metrics_rewind,
                                              .close = metrics_close};
