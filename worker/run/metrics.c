/* Lines out. All text goes through one buffer that is reused, so a logged step allocates nothing
 * once it has grown. */
#include "worker/run/metrics.h"

#include "base/clock.h"
#include "base/crash.h"
#include "base/file.h"
#include "base/log.h"
#include "base/gpu/nvml.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void metrics_open(struct metrics *m, const char *dir, int rank, bool quiet)
{
    memset(m, 0, sizeof *m);
    m->active = rank == 0;
    m->quiet = quiet;
    m->terminal = !quiet && isatty(STDERR_FILENO);
    m->begin_step = -1;
    m->val_loss = NAN;
    dt_text_init(&m->line);
    if (dir) {
        m->logs_dir = dt_format("%s/logs", dir);
        m->log_path = dt_format("%s/rank-%d.log", m->logs_dir, rank);
        dt_crash_log(m->log_path);
    }
    if (m->active && dir) {
        m->path = dt_format("%s/metrics.jsonl", dir);
        m->events_path = dt_format("%s/events.jsonl", dir);
    }
}

void metrics_close(struct metrics *m)
{
    if (m->line_open) {
        (void)!write(STDERR_FILENO, "\n", 1);
    }
    free(m->path);
    free(m->events_path);
    dt_crash_log(NULL);
    free(m->log_path);
    free(m->logs_dir);
    dt_text_clear(&m->line);
    memset(m, 0, sizeof *m);
}

static void append(struct metrics *m, const char *path)
{
    struct dt_error err;
    if (path && dt_file_append_line(path, dt_text_str(&m->line), m->line.size, &err) != 0 && !m->warned) {
        m->warned = true;
        dt_log(DT_LOG_WARN, "metrics", "%s; training goes on without these lines", err.text);
    }
}

/* m->line goes to this rank's log; a log that cannot be written is no reason to say anything. */
static void log_line(struct metrics *m)
{
    struct dt_error err;
    if (m->log_path && (m->log_ready || dt_file_mkdirs(m->logs_dir, &err) == 0)) {
        m->log_ready = true;
        (void)dt_file_append_line(m->log_path, dt_text_str(&m->line), m->line.size, &err);
    }
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

static void add_time(struct dt_text *t)
{
    char when[32];
    dt_wall_text(dt_wall_s(), when, sizeof when);
    dt_text_printf(t, "\"time\": \"%s\"", when);
}

/* Bytes of a line that fit the terminal as it is now: one that wraps could not be replaced. The
 * line is ASCII. */
static int fitting(const struct dt_text *line)
{
    struct winsize w;
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 1;
    return known && line->size >= w.ws_col ? w.ws_col - 1 : (int)line->size;
}

/* Shows m->line on stderr: on a terminal it replaces the line before unless `stay`. */
static void show(struct metrics *m, bool stay)
{
    if (m->quiet) {
        return;
    }
    if (m->terminal) {
        dprintf(STDERR_FILENO, "\r\033[K%.*s%s", stay ? (int)m->line.size : fitting(&m->line), dt_text_str(&m->line),
                stay ? "\n" : "");
        m->line_open = !stay;
    } else {
        dprintf(STDERR_FILENO, "%s\n", dt_text_str(&m->line));
    }
}

/* "loss 5.1234", or "loss none" where there was no target. */
static void add_loss(struct dt_text *t, const char *name, double loss)
{
    if (isfinite(loss)) {
        dt_text_printf(t, "%s %.4f", name, loss);
    } else {
        dt_text_printf(t, "%s none", name);
    }
}

static void add_duration(struct dt_text *t, double seconds)
{
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600) {
        dt_text_printf(t, "%lld:%02lld:%02lld", (long long)(s / 3600), (long long)(s / 60 % 60), (long long)(s % 60));
    } else {
        dt_text_printf(t, "%lld:%02lld", (long long)(s / 60), (long long)(s % 60));
    }
}

/* step 40/200 20% loss 5.1234 val 5.2000 lr 1.0e-04 12345 tokens/s left 1:23 */
static void progress(struct metrics *m, const struct metrics_step *x)
{
    double now = dt_now_s(), rate = 0;
    if (x->step > m->begin_step && now > m->begin_s) {
        rate = (double)(x->step - m->begin_step) / (now - m->begin_s);
    }
    dt_text_reset(&m->line);
    dt_text_printf(&m->line, "step %lld/%lld %lld%% ", (long long)x->step, (long long)x->total_steps,
                   (long long)(x->total_steps > 0 ? 100 * x->step / x->total_steps : 100));
    add_loss(&m->line, "loss", x->loss);
    if (isfinite(m->val_loss)) {
        dt_text_printf(&m->line, " val %.4f", m->val_loss);
    }
    dt_text_printf(&m->line, " lr %.1e %.0f tokens/s", x->lr, x->tokens_per_s);
    if (rate > 0 && x->total_steps > x->step) {
        dt_text_puts(&m->line, " left ");
        add_duration(&m->line, (double)(x->total_steps - x->step) / rate);
    }
}

void metrics_step(struct metrics *m, const struct metrics_step *x, bool log)
{
    if (!m->active) {
        return;
    }
    if (m->begin_step < 0) { /* the first step is slower: rates count from its end */
        m->begin_step = x->step;
        m->begin_s = dt_now_s();
    }
    if (log) {
        struct dt_text *t = &m->line;
        dt_text_reset(t);
        dt_text_printf(t, "{\"step\": %lld", (long long)x->step);
        number(t, "epoch", x->epoch);
        dt_text_printf(t, ", \"tokens\": %lld", (long long)x->tokens);
        dt_text_printf(t, ", \"targets\": %lld", (long long)x->targets);
        if (x->blank_steps > 0) {
            dt_text_printf(t, ", \"steps_without_targets\": %lld", (long long)x->blank_steps);
        }
        number(t, "loss", x->loss);
        number(t, "grad_norm", x->grad_norm);
        number(t, "lr", x->lr);
        number(t, "step_s", x->step_s);
        number(t, "tokens_per_s", x->tokens_per_s);
        number(t, "mfu", x->mfu);
        add_gpu(t, m->gpu);
        dt_text_printf(t, ", \"loss_scale\": 1, \"memory_bytes\": %.0f, \"round\": %d, ", x->memory_bytes, x->round);
        add_time(t);
        dt_text_puts(t, "}");
        append(m, m->path);
    }
    bool last = x->step >= x->total_steps, soon = m->terminal && dt_now_s() - m->shown_s < 0.1;
    if ((m->terminal || log) && (!soon || last)) { /* a terminal sees at most ten lines a second */
        m->shown_s = dt_now_s();
        progress(m, x);
        if (log) {
            log_line(m);
        }
        show(m, !m->terminal);
    }
}

void metrics_val(struct metrics *m, const struct metrics_step *x, double val_loss)
{
    if (!m->active) {
        return;
    }
    m->val_loss = val_loss;
    dt_text_reset(&m->line);
    dt_text_printf(&m->line, "{\"step\": %lld", (long long)x->step);
    number(&m->line, "val_loss", val_loss);
    dt_text_printf(&m->line, ", \"round\": %d, ", x->round);
    add_time(&m->line);
    dt_text_puts(&m->line, "}");
    append(m, m->path);
    if (!m->terminal) {
        struct dt_text loss;
        dt_text_init(&loss);
        add_loss(&loss, "val loss", val_loss);
        metrics_say(m, "step %lld/%lld %s", (long long)x->step, (long long)x->total_steps, dt_text_str(&loss));
        dt_text_clear(&loss);
    }
}

void metrics_event(struct metrics *m, const char *name, const char *fields)
{
    if (!m->active || !m->events_path) {
        return;
    }
    dt_text_reset(&m->line);
    dt_text_puts(&m->line, "{");
    add_time(&m->line);
    dt_text_puts(&m->line, ", \"event\": ");
    dt_text_json(&m->line, name, strlen(name));
    dt_text_printf(&m->line, "%s%s}", *fields ? ", " : "", fields);
    append(m, m->events_path);
}

/* One line of words: paths and names are in it, so it is made visible. */
static void put_words(struct metrics *m, const char *fmt, va_list args)
{
    struct dt_text words;
    dt_text_init(&words);
    dt_text_vprintf(&words, fmt, args);
    dt_text_reset(&m->line);
    dt_text_add_visible(&m->line, dt_text_str(&words), words.size, false);
    dt_text_clear(&words);
}

void metrics_say(struct metrics *m, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    put_words(m, fmt, args);
    va_end(args);
    log_line(m);
    if (m->active) {
        show(m, true);
    }
}

void metrics_log(struct metrics *m, const char *fmt, ...)
{
    if (!m->log_path) {
        return;
    }
    va_list args;
    va_start(args, fmt);
    put_words(m, fmt, args);
    va_end(args);
    log_line(m);
}

int metrics_cut(struct metrics *m, int64_t step, bool *evaluated, struct dt_error *err)
{
    *evaluated = false;
    if (!m->path || !dt_file_exists(m->path)) {
        return 0;
    }
    int fd = dt_file_open_own(m->path, O_RDONLY, err);
    if (fd < 0) {
        return err->status == DT_INVALID ? 0 : -1; /* not ours to read; the first line that it
                                                    * does not take says so */
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

double metrics_memory(void)
{
    long long pages = 0, all = 0;
    char text[128];
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return sscanf(text, "%lld %lld", &all, &pages) == 2 ? (double)pages * (double)sysconf(_SC_PAGESIZE) : 0;
}
