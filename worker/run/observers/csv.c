/* metrics.csv, or logging.csv_path: one row for each logged step, with the numbers that metrics.jsonl has of
 * it; a number that is not known is an empty cell. Evaluations are in metrics.jsonl alone. Rank 0 writes it. */
#include "worker/run/trainer.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct csv {
    char *path;
    bool begun;          /* the header is there */
    struct dt_text line; /* reused, so a logged step allocates nothing once it has grown */
};

/* As in the list of observer_step_numbers. */
static const char header[] =
    "step,epoch,tokens,targets,steps_without_targets,outlier_steps,loss,grad_norm,lr,step_s,data_wait_s,"
    "tokens_per_s,mfu,gpu_busy,gpu_memory_bytes,gpu_clock_mhz,gpu_temperature,gpu_power_w,loss_scale,steps_skipped,"
    "memory_bytes,round,time\n";

/* Reads the beginning of a file. *size is 0 if there is no file. */
static int read_begin(const char *path, char *begin, size_t *size, struct dt_error *err)
{
    *size = 0;
    int fd = dt_file_exists(path) ? dt_file_open_own(path, O_RDONLY, err) : -2;
    if (fd < 0) {
        return fd == -2 ? 0 : -1;
    }
    ssize_t got = pread(fd, begin, sizeof header - 1, 0);
    (void)close(fd);
    *size = got > 0 ? (size_t)got : 0;
    return got < 0 ? dt_fail_errno(err, "%s", path) : 0;
}

/* A file that is not a table of these columns (another program's, or of another version) stays as it is. */
static bool csv_open(struct observer *o)
{
    const struct job *job = o->all->job;
    if (o->all->world->rank != 0 || !o->all->files || !job->logging.csv) {
        return false;
    }
    char *path = job->logging.csv_path != NULL ? dt_format("%s", job->logging.csv_path)
                                               : dt_format("%s/metrics.csv", job->output_dir);
    char begin[sizeof header];
    size_t size;
    struct dt_error err;
    int rc = read_begin(path, begin, &size, &err);
    if (rc == 0 && memcmp(begin, header, size) != 0) {
        rc = dt_fail(&err, DT_INVALID,
                     "%s: its first line is not the header of these rows; move it away, or give another "
                     "logging.csv_path",
                     path);
    }
    if (rc != 0) {
        dt_log(DT_LOG_WARN, "metrics", "%s; training goes on without these lines", err.text);
        free(path);
        return false;
    }
    struct csv *c = o->state = dt_alloc(sizeof *c);
    *c = (struct csv){.path = path};
    dt_text_init(&c->line);
    return true;
}

static void begin_table(struct observer *o)
{
    struct csv *c = o->state;
    char begin[sizeof header];
    size_t size;
    struct dt_error err;
    if (read_begin(c->path, begin, &size, &err) == 0 && size == 0) {
        dt_text_reset(&c->line);
        dt_text_add(&c->line, header, sizeof header - 2); /* the end of a line is added */
        observer_append(o, c->path, &c->line);
    }
    c->begun = true;
}

static void csv_report(struct observer *o, const struct report *r, enum moment moment)
{
    struct csv *c = o->state;
    if (moment != MOMENT_STEP || !r->logged) {
        return;
    }
    if (!c->begun) {
        begin_table(o);
    }
    struct step_number all[STEP_NUMBERS];
    char when[32];
    observer_step_numbers(o, r, all);
    dt_text_reset(&c->line);
    dt_text_printf(&c->line, "%lld", (long long)r->step);
    for (int i = 0; i < STEP_NUMBERS; i++) {
        if (isfinite(all[i].value)) {
            dt_text_printf(&c->line, all[i].whole ? ",%.0f" : ",%.9g", all[i].value);
        } else {
            dt_text_puts(&c->line, ",");
        }
    }
    dt_wall_text(dt_wall_s(), when, sizeof when);
    dt_text_printf(&c->line, ",%d,%s", r->round, when);
    observer_append(o, c->path, &c->line);
}

static bool is_of_before(void *context, const char *line, int64_t number)
{
    return number == 0 || strtoll(line, NULL, 10) <= *(const int64_t *)context;
}

static int csv_rewind(struct observer *o, int64_t step, bool *evaluated, struct dt_error *err)
{
    (void)evaluated;
    const struct csv *c = o->state;
    return observer_keep_lines(c->path, is_of_before, &step, err);
}

static void csv_close(struct observer *o)
{
    struct csv *c = o->state;
    free(c->path);
    dt_text_clear(&c->line);
    free(c);
}

const struct observer_ops observer_csv = {
    .name = "csv", .open = csv_open, .report = csv_report, .rewind = csv_rewind, .close = csv_close};
