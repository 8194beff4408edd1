/* Lines for people: on rank 0's stderr, and in logs/rank-N.log of every rank. Rank 0 also shows how
 * far the run is: a line per logged step, or on a terminal one line that is replaced. */
#include "worker/run/observers/observer.h"

#include "base/clock.h"
#include "base/crash.h"
#include "base/file.h"
#include "worker/run/prompt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define SHOWN_S 0.1 /* a terminal sees at most ten lines a second */

struct console {
    bool active; /* on rank 0: stderr, and steps */
    bool quiet, terminal;
    bool line_open;            /* the terminal's line is one that the next one replaces */
    bool log_ready;            /* the folder of the log is there */
    char *logs_dir, *log_path; /* null: no files */
    int64_t begin_step;        /* rates count from the end of the first step, which is slower; -1: no
                                * step yet */
    double begin_s, shown_s;
    double val_loss; /* of the last evaluation, of the first set; NaN: none yet */
    struct dt_text line;
};

static bool console_open(struct observer *o)
{
    struct console *c = o->state = dt_alloc(sizeof *c);
    int rank = o->all->world->rank;
    c->active = rank == 0;
    c->quiet = o->all->quiet;
    c->terminal = !c->quiet && isatty(STDERR_FILENO);
    c->begin_step = -1;
    c->val_loss = NAN;
    dt_text_init(&c->line);
    if (o->all->files) {
        c->logs_dir = dt_format("%s/logs", o->all->job->output_dir);
        c->log_path = dt_format("%s/rank-%d.log", c->logs_dir, rank);
        dt_crash_log(c->log_path);
    }
    return true;
}

static void console_close(struct observer *o)
{
    struct console *c = o->state;
    if (c->line_open) {
        (void)!write(STDERR_FILENO, "\n", 1);
    }
    dt_crash_log(NULL);
    free(c->log_path);
    free(c->logs_dir);
    dt_text_clear(&c->line);
    free(c);
}

/* The line goes to this rank's log. A log that cannot be written is no reason to say anything. */
static void log_line(struct console *c)
{
    struct dt_error err;
    if (c->log_path && (c->log_ready || dt_file_mkdirs(c->logs_dir, &err) == 0)) {
        c->log_ready = true;
        (void)dt_file_append_line(c->log_path, dt_text_str(&c->line), c->line.size, &err);
    }
}

/* Bytes of a line that fit the terminal as it is now: one that wraps could not be replaced. The
 * line is ASCII. */
static int fitting(const struct dt_text *line)
{
    struct winsize w;
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 1;
    return known && line->size >= w.ws_col ? w.ws_col - 1 : (int)line->size;
}

/* Shows the line on stderr. On a terminal it replaces the line before, and stays only if `stay`. */
static void show(struct console *c, bool stay)
{
    if (c->quiet) {
        return;
    }
    if (c->terminal) {
        dprintf(STDERR_FILENO, "\r\033[K%.*s%s", stay ? (int)c->line.size : fitting(&c->line), dt_text_str(&c->line),
                stay ? "\n" : "");
        c->line_open = !stay;
    } else {
        dprintf(STDERR_FILENO, "%s\n", dt_text_str(&c->line));
    }
}

/* "loss 5.1234", or "loss none" where there was no target; "loss nan" where there were some. */
static void add_loss(struct dt_text *t, double loss, bool targets)
{
    if (isfinite(loss) || targets) {
        dt_text_printf(t, "loss %.4f", isnan(loss) ? (double)NAN : loss);
    } else {
        dt_text_puts(t, "loss none");
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
static void write_progress(struct console *c, const struct report *r)
{
    double now = dt_now_s(), rate = 0;
    if (r->step > c->begin_step && now > c->begin_s) {
        rate = (double)(r->step - c->begin_step) / (now - c->begin_s);
    }
    dt_text_reset(&c->line);
    dt_text_printf(&c->line, "step %lld/%lld %lld%% ", (long long)r->step, (long long)r->total_steps,
                   (long long)(r->total_steps > 0 ? 100 * r->step / r->total_steps : 100));
    add_loss(&c->line, r->loss, false);
    if (isfinite(c->val_loss)) {
        dt_text_printf(&c->line, " val %.4f", c->val_loss);
    }
    dt_text_printf(&c->line, " lr %.1e %.0f %s/s", r->lr, r->tokens_per_s, r->sequences ? "tokens" : "samples");
    if (rate > 0 && r->total_steps > r->step) {
        dt_text_puts(&c->line, " left ");
        add_duration(&c->line, (double)(r->total_steps - r->step) / rate);
    }
}

static void say_step(struct console *c, const struct report *r)
{
    if (c->begin_step < 0) {
        c->begin_step = r->step;
        c->begin_s = dt_now_s();
    }
    bool last = r->step >= r->total_steps, soon = c->terminal && dt_now_s() - c->shown_s < SHOWN_S;
    if ((c->terminal || r->logged) && (!soon || last)) {
        c->shown_s = dt_now_s();
        write_progress(c, r);
        if (r->logged) {
            log_line(c);
        }
        show(c, !c->terminal);
    }
}

/* On a terminal the line of the next step shows it. */
static void say_evaluation(struct console *c, const struct report *r, const char *first_set)
{
    if (r->set == NULL || strcmp(r->set, first_set) == 0) {
        c->val_loss = r->val_loss;
    }
    if (!c->terminal) {
        dt_text_reset(&c->line);
        dt_text_printf(&c->line, r->total_steps > 0 ? "step %lld/%lld " : "step %lld ", (long long)r->step,
                       (long long)r->total_steps);
        dt_text_printf(&c->line, "val %s%s", r->set != NULL ? r->set : "", r->set != NULL ? " " : "");
        add_loss(&c->line, r->val_loss, r->val_targets > 0);
        if (isfinite(r->perplexity)) {
            dt_text_printf(&c->line, " perplexity %.4g", r->perplexity);
        }
        if (isfinite(r->bits_per_byte)) {
            dt_text_printf(&c->line, " bits/byte %.4g", r->bits_per_byte);
        }
        if (isfinite(r->pearson)) {
            dt_text_printf(&c->line, " pearson %.4f", r->pearson);
        }
        if (r->choices != NULL) {
            dt_text_printf(&c->line, " acc %.4f acc_norm %.4f", r->choices->accuracy, r->choices->by_characters);
        }
        if (r->classes != NULL && isfinite(r->classes->accuracy)) {
            dt_text_printf(&c->line, " accuracy %.4f f1 %.4f", r->classes->accuracy, r->classes->f1_macro);
        }
        log_line(c);
        show(c, true);
    }
}

/* step 40/200 sample 1 "text", or the new ids */
static void say_samples(struct console *c, const struct report *r)
{
    struct dt_text text;
    dt_text_init(&text);
    for (int64_t i = 0; i < r->sample_count; i++) {
        const struct generate_row *row = &r->samples[i];
        dt_text_reset(&c->line);
        dt_text_printf(&c->line, "step %lld/%lld sample %lld ", (long long)r->step, (long long)r->total_steps,
                       (long long)i + 1);
        if (row->is_text) {
            dt_text_reset(&text);
            prompt_show_text(r->tokenizer, row->ids, row->count, &text);
            dt_text_json(&c->line, text.data, text.size);
        } else {
            prompt_show_ids(row->ids + row->prompt_count, row->count - row->prompt_count, &c->line);
        }
        log_line(c);
        show(c, true);
    }
    dt_text_clear(&text);
}

static void say_words(struct console *c, const char *words, bool on_stderr)
{
    dt_text_reset(&c->line);
    dt_text_puts(&c->line, words);
    log_line(c);
    if (on_stderr) {
        show(c, true);
    }
}

static void console_report(struct observer *o, const struct report *r, enum moment moment)
{
    struct console *c = o->state;
    if (moment == MOMENT_SAID || moment == MOMENT_NOTED) {
        say_words(c, r->words, c->active && moment == MOMENT_SAID);
    } else if (moment == MOMENT_STEP && c->active) {
        say_step(c, r);
    } else if (moment == MOMENT_EVALUATION && c->active) {
        say_evaluation(c, r, o->all->job->data.val.count > 0 ? o->all->job->data.val.of[0].name : NULL);
    } else if (moment == MOMENT_SAMPLES) {
        say_samples(c, r);
    }
}

const struct observer_ops observer_console = {
    .name = "console", .open = console_open, .report = console_report, .close = console_close};
