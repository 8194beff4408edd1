/* metrics.jsonl: one object for each logged step and each evaluation. Rank 0 writes it. */
#include "worker/run/trainer.h"

#include "base/file.h"
#include "base/gpu/nvml.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Of this rank's GPU, a second old at most. */
static void add_gpu(struct dt_text *t, struct gpu_watch *watch)
{
    struct gpu_sample s;
    char why[160];
    if (!gpu_watch_sample(watch, &s)) {
        return;
    }
    const struct {
        const char *key;
        double value;
    } all[] = {{"gpu_busy", s.busy},
               {"gpu_memory_bytes", s.memory_bytes},
               {"gpu_clock_mhz", s.clock_mhz},
               {"gpu_temperature", s.temperature},
               {"gpu_power_w", s.power_w}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].value >= 0) {
            number(t, all[i].key, all[i].value);
        }
    }
    dt_text_puts(t, ", \"gpu_slowed_by\": ");
    (void)dt_nvml_throttle_text(s.throttle, false, why, sizeof why);
    dt_text_json(t, why, strlen(why));
}

static void add_step(struct dt_text *t, const struct report *r, struct world *w)
{
    number(t, "epoch", r->epoch);
    dt_text_printf(t, ", \"%s\": %lld", r->sequences ? "tokens" : "samples", (long long)r->tokens);
    dt_text_printf(t, ", \"targets\": %lld", (long long)r->targets);
    if (r->blank_steps > 0) {
        dt_text_printf(t, ", \"steps_without_targets\": %lld", (long long)r->blank_steps);
    }
    number(t, "loss", r->loss);
    number(t, "grad_norm", r->grad_norm);
    number(t, "lr", r->lr);
    number(t, "step_s", r->step_s);
    number(t, r->sequences ? "tokens_per_s" : "samples_per_s", r->tokens_per_s);
    number(t, "mfu", r->mfu);
    add_gpu(t, w->gpu);
    dt_text_printf(t, ", \"loss_scale\": 1, \"memory_bytes\": %.0f", trainer_memory(r->of));
}

static void metrics_report(struct observer *o, const struct report *r, enum moment moment)
{
    struct metrics *m = o->state;
    if (moment != MOMENT_EVALUATION && !(moment == MOMENT_STEP && r->logged)) {
        return;
    }
    dt_text_reset(&m->line);
    dt_text_printf(&m->line, "{\"step\": %lld", (long long)r->step);
    if (moment == MOMENT_STEP) {
        add_step(&m->line, r, o->all->world);
    } else {
        number(&m->line, "val_loss", r->val_loss);
    }
    dt_text_printf(&m->line, ", \"round\": %d, ", r->round);
    observer_add_time(&m->line);
    dt_text_puts(&m->line, "}");
    observer_append(o, m->path, &m->line);
}

/* Takes out the lines of later steps, and a last line that a kill cut short. */
static int metrics_rewind(struct observer *o, int64_t step, bool *evaluated, struct dt_error *err)
{
    const struct metrics *m = o->state;
    if (!dt_file_exists(m->path)) {
        return 0;
    }
    int fd = dt_file_open_own(m->path, O_RDONLY, err);
    if (fd < 0) { /* a file that is not ours to read stays; the first line that it does not take says so */
        return err->status == DT_INVALID ? 0 : -1;
    }
    FILE *f = fdopen(fd, "r");
    if (!f) {
        (void)close(fd);
        return dt_fail_errno(err, "%s", m->path);
    }
    struct dt_text kept;
    dt_text_init(&kept);
    char *line = NULL;
    size_t room = 0;
    ssize_t size;
    bool changed = false;
    while ((size = getline(&line, &room, f)) > 0) {
        long long at;
        bool of_step = sscanf(line, "{\"step\": %lld", &at) == 1;
        if (line[size - 1] == '\n' && (!of_step || at <= step)) {
            dt_text_add(&kept, line, (size_t)size);
            *evaluated |= of_step && at == step && strstr(line, "\"val_loss\":") != NULL;
        } else {
            changed = true;
        }
    }
    free(line);
    fclose(f);
    int rc = changed ? dt_file_write(m->path, dt_text_str(&kept), kept.size, err) : 0;
    dt_text_clear(&kept);
    return rc;
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
