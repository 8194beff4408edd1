/* What a job says about its rounds: cause lines, the report, the last word after a stop,
 * events.jsonl. */
#include "launcher/job/run_parts.h"

#include "base/clock.h"
#include "base/log.h"
#include "launcher/output/console.h"
#include "launcher/output/report.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LATE_MS 1000 /* for the host of the first cause to be heard of */

void run_event(struct run *r, const char *what, const char *fmt, ...)
{
    struct dt_text fields;
    struct dt_error err;
    va_list args;
    dt_text_init(&fields);
    va_start(args, fmt);
    dt_text_vprintf(&fields, fmt, args);
    va_end(args);
    bool failed = report_event(r->events_path, what, dt_text_str(&fields), &err) != 0;
    if (failed) {
        dt_log(DT_LOG_INFO, "agent", "events: %s", err.text);
    }
    if (strcmp(what, "failure") == 0) {
        (void)snprintf(r->record_lost, sizeof r->record_lost, "%s", failed ? err.text : "");
    }
    dt_text_clear(&fields);
}

static const char *error_file_of(void *user, int local_rank)
{
    const struct run *r = user;
    return logs_error_file(r->logs, local_rank);
}

/* The verdict is there, or on its way from the host that leads. */
static bool is_end(const struct run *r)
{
    return r->agent.verdict || r->oom_again || r->agent.failure != FAILURE_PLAIN || r->cause_used > r->o->max_restarts;
}

/* As far as is known: the verdict may be on its way. */
static bool is_permanent(const struct run *r)
{
    return r->oom_again || r->agent.failure != FAILURE_PLAIN ||
           (r->agent.verdict && r->agent.code == DT_EXIT_PERMANENT);
}

/* A worker that only says what happened to others: it lost its peers, or ended with the words of
 * one on another host, or with what it was told. */
static bool is_weak(const struct run *r, const struct report_failure *root)
{
    return r->agent.options.bundled &&
           (root->exit_code == DT_EXIT_TEMPORARY || root->follows >= 0 || root->blame.told != DT_TOLD_NOT);
}

/* A rank of ours that has not ended yet is the cause of this failure, in whose words it ended. */
static void name_the_cause(const struct run *r, struct report_failure *x)
{
    int local_rank = x->follows - r->place.rank;
    if (x->follows >= 0 && local_rank >= 0 && local_rank < r->workers.count) {
        x->rank = x->follows;
        x->local_rank = local_rank;
        x->pid = r->workers.list[local_rank].pid;
        x->follows = -1;
    }
}

/* The coordinator counts for all hosts; this is for our own words, which may be said before its
 * verdict is here. */
static void note_memory(struct run *r, const struct report_failure *root)
{
    r->oom_again = root->out_of_memory && r->oom_seen && r->oom_step == root->step && r->is_train;
    if (root->out_of_memory) {
        r->oom_seen = true;
        r->oom_step = root->step;
    }
}

/* The option that keeps the job from another try after this failure, or null where it has none
 * left anyway. */
static const char *forbids_restart(const struct run *r, const struct report_failure *root)
{
    for (int i = 0; i < r->o->permanent_code_count && r->agent.failure == FAILURE_PERMANENT && r->o->max_restarts > 0;
         i++) {
        if (r->o->permanent_codes[i] == root->exit_code) {
            return "--permanent_exit_codes";
        }
    }
    return NULL;
}

void run_first_failure(struct run *r, struct event *e, struct cause *out)
{
    struct failures *f = &r->failures;
    e->cause = out;
    if (f->count == 0) {
        *out = (struct cause){.kind = r->no_start[0] != '\0' ? CAUSE_FAILED : CAUSE_NONE,
                              .rank = -1,
                              .step = -1,
                              .digest = dt_digest(r->no_start),
                              .whole = true};
        (void)snprintf(out->words, sizeof out->words, "%s", r->no_start);
        return;
    }
    failures_settle(f, error_file_of, r, r->agent.options.bundled);
    struct report_failure root = f->list[f->root]; /* borrows its texts */
    name_the_cause(r, &root);
    e->weak = is_weak(r, &root);
    e->out_of_memory = root.out_of_memory;
    e->at_step = root.step;
    if (r->told_failed) { /* once a round */
        note_memory(r, &root);
    }
    report_to_cause(&root, e->weak ? CAUSE_PEER : CAUSE_FAILED, out);
}

/* The same words for whoever reads events.jsonl. */
static void note_elsewhere(struct run *r, int round, const char *cause)
{
    struct dt_text text;
    dt_text_init(&text);
    dt_text_json(&text, cause, strlen(cause));
    run_event(r, "ended_elsewhere", "\"round\":%d,\"cause\":%s", round, dt_text_str(&text));
    dt_text_clear(&text);
    r->elsewhere_round = round;
}

/* Why a round ended that did so because of others; what it meant for the workers here, when none
 * of them failed or was killed, the caller knows. */
static void write_elsewhere(struct run *r, const char *cause, const char *here, bool failed)
{
    int used = hosts_view(r->hosts).restarts_used;
    struct dt_text line;
    dt_text_init(&line);
    dt_text_printf(&line, "dtrun: %s; %s", cause, here);
    if (failed && !is_end(r)) {
        dt_text_printf(&line, "; restarting (%d of %d used)", r->cause_used, r->o->max_restarts);
    } else if (failed && r->agent.verdict && !is_permanent(r) && r->o->max_restarts > 0 && used >= r->o->max_restarts) {
        dt_text_printf(&line, "; no restart left (%d of %d used)", used, r->o->max_restarts);
    }
    console_say("%s\n", dt_text_str(&line));
    dt_text_clear(&line);
    note_elsewhere(r, r->cause_round, cause);
}

/* A round that did not end because of a worker of this host: the first cause is elsewhere.
 * False: it is not. A worker here that merely lost its peers is the cause only when nobody else
 * says more for a while. */
static bool say_cause_elsewhere(struct run *r)
{
    const struct failures *f = &r->failures;
    /* null: all ended with 0 when they were told to end */
    const struct report_failure *root = f->count > 0 ? &f->list[f->root] : NULL;
    bool own_weak = root != NULL && is_weak(r, root), told = root == NULL || root->stopped_by_us;
    if (!hosts_view(r->hosts).others) {
        return root == NULL; /* nobody failed */
    }
    if (!told && !own_weak) {
        return false;
    }
    struct hosts_cause cause = hosts_cause(r->hosts, r->cause_round);
    if (r->lost_round == r->cause_round || cause.said) {
        return true;
    }
    /* else it is by the rank that has told ours */
    bool weak = cause.weak && (told || root->blame.told == DT_TOLD_NOT || cause_is_heard(cause.cause));
    /* somebody asked for it: run_say_end */
    if (told && cause.text == NULL && r->agent.stop_wanted) {
        return true;
    }
    if ((cause.text == NULL || weak) && !r->cause_due) { /* whoever knows more speaks up soon */
        r->cause_late = true;
        r->cause_seen = false;
        (void)uv_timer_start(&r->late, r->late.timer_cb, LATE_MS, 0);
        return true;
    }
    if (!told && (cause.text == NULL || weak)) {
        return false;
    }
    char here[320];
    int count = root != NULL ? f->count : r->workers.count;
    (void)snprintf(here, sizeof here, "because of it %d worker%s stopped at host %s", count, count == 1 ? "" : "s",
                   f->host);
    write_elsewhere(r, cause.text != NULL ? cause.text : "the round ended elsewhere", here, cause.failed);
    return true;
}

void run_say_elsewhere(struct run *r)
{
    bool own = r->failures.count > 0 || r->no_start[0] != '\0' || r->wish != 0 || r->left;
    int round = r->place.round;
    struct hosts_cause cause = hosts_cause(r->hosts, round);
    if (own || round == 0 || r->elsewhere_round == round || r->lost_round == round || cause.said) {
        return;
    }
    char here[320];
    if (cause.text != NULL) {
        struct hosts_view view = hosts_view(r->hosts);
        r->cause_round = round;
        r->cause_used = cause.failed ? view.restarts_after_failure : view.restarts_used;
        (void)snprintf(here, sizeof here, "the worker%s at host %s had ended with exit code 0",
                       r->workers.count == 1 ? "" : "s", r->failures.host);
        write_elsewhere(r, cause.text, here, cause.failed);
    }
}

/* Of failures that another try might have survived. */
static void say_why_permanent(const struct run *r, struct dt_text *out)
{
    const struct report_failure *root = &r->failures.list[r->failures.root];
    bool permanent = r->agent.code == DT_EXIT_PERMANENT && r->agent.failure == FAILURE_PLAIN &&
                     hosts_view(r->hosts).no_progress < COORDINATOR_NO_PROGRESS;
    if (root->out_of_memory && (permanent || r->oom_again)) {
        char where[48] = "before the first step", limit[32] = "unknown";
        double bytes = failures_memory_limit_bytes();
        if (root->step >= 0) {
            (void)snprintf(where, sizeof where, "at step %lld", (long long)root->step);
        }
        dt_text_printf(out,
                       "dtrun: out of memory for the second time %s: another try would fail the same way; lower "
                       "training.batch_size_per_gpu, set "
                       "activation_checkpointing.enabled, or raise the limit of the control group (%s)\n",
                       where, bytes > 0 ? dt_text_bytes(bytes, limit, sizeof limit) : limit);
    }
}

/* What a failed round ends with: one cause line, and what happens next. */
void run_say_cause(struct run *r)
{
    struct failures *f = &r->failures;
    struct dt_text line;
    /* with 0, but only because they were told to */
    bool ended_elsewhere = r->ending && r->no_start[0] == '\0';
    if ((f->count == 0 && !ended_elsewhere) || r->wish != 0) {
        return;
    }
    if (!r->cause_due) {
        r->cause_round = r->place.round;
        r->cause_used = hosts_view(r->hosts).restarts_after_failure;
    }
    if (f->count > 0) {
        failures_settle(f, error_file_of, r, r->agent.options.bundled);
        if (r->no_start[0] != '\0') {
            failures_keep_own(f);
            if (f->count == 0) {
                return; /* run_spawn has said why */
            }
        }
    }
    if (say_cause_elsewhere(r)) {
        return;
    }
    dt_text_init(&line);
    logs_flush(r->logs, 1);
    if (is_end(r)) {
        struct dt_text tail;
        dt_text_init(&tail);
        (void)logs_tail(r->logs, f->list[f->root].local_rank, 20, &tail);
        struct report_context c = {
            .title = r->o->program,
            .tail = tail.size > 0 ? dt_text_str(&tail) : NULL,
            .log_dir = logs_has_files(r->logs) ? logs_worker_dir(r->logs, f->list[f->root].local_rank) : NULL,
            .restarts_used = hosts_view(r->hosts).restarts_used,
            .restarts_max = is_permanent(r) ? 0 : r->o->max_restarts,
            .no_restart = forbids_restart(r, &f->list[f->root])};
        report_write(f->list, f->count, f->root, &c, &line);
        if (r->o->entry != OPTIONS_ENTRY_PROGRAM && r->entry_point != NULL &&
            strstr(dt_text_str(&line), "No module named") != NULL) {
            dt_text_printf(&line, "dtrun: the interpreter was %s; PYTHON_EXEC names another\n", r->entry_point);
        }
        dt_text_clear(&tail);
        if (line.size > 0 && line.data[line.size - 1] != '\n') {
            dt_text_puts(&line, "\n");
        }
        struct dt_error err;
        if (report_write_parent(options_getenv(r->env, "TORCHELASTIC_ERROR_FILE"), &f->list[f->root], &err) != 0) {
            dt_text_printf(&line, "dtrun: %s\n", err.text);
        }
        say_why_permanent(r, &line);
    } else {
        report_cause(f->list, f->count, f->root, &line);
        dt_text_printf(&line, "; restarting (%d of %d used)", r->cause_used, r->o->max_restarts);
        if (f->saved_step >= 0) {
            dt_text_printf(&line, " from step %lld", (long long)f->saved_step);
        }
        dt_text_puts(&line, "\n");
    }
    console_write(dt_text_str(&line), line.size);
    dt_text_reset(&line);
    report_event_failure(&f->list[f->root], &line);
    run_event(r, "failure", "\"round\":%d,%s", r->cause_round, dt_text_str(&line));
    r->failure_told = true;
    dt_text_clear(&line);
}

void run_say_lost(struct run *r)
{
    struct hosts_cause cause = hosts_cause(r->hosts, r->place.round);
    int count = r->workers.running_count;
    if (cause.text == NULL || cause.failed || r->wish != 0 || r->lost_round == r->place.round) {
        return;
    }
    /* a worker failed, and what it had started is still ending */
    if (count == 0 && r->left_since_s > 0 && r->failures.count > 0) {
        console_say("dtrun: %s\n", cause.text);
    }
    if (count == 0) {
        return;
    }
    r->lost_round = r->place.round;
    console_say("dtrun: %s; because of it %d worker%s at host %s\n", cause.text, count, count == 1 ? " ends" : "s end",
                r->failures.host);
    note_elsewhere(r, r->place.round, cause.text);
}

/* "rank 3", "ranks 0, 1, ..." */
static void add_running(const struct run *r, struct dt_text *out)
{
    enum { NAMED = 8 };
    int named = 0;
    dt_text_puts(out, r->workers.running_count == 1 ? "rank " : "ranks ");
    for (int i = 0; i < r->workers.count && named < NAMED; i++) {
        if (r->workers.list[i].running) {
            dt_text_printf(out, "%s%d", named++ > 0 ? ", " : "", r->place.rank + i);
        }
    }
    dt_text_puts(out, r->workers.running_count > named ? ", ..." : "");
}

void run_say_waiting(const struct run *r)
{
    struct dt_text ranks;
    dt_text_init(&ranks);
    add_running(r, &ranks);
    console_say("dtrun: host %s: %d of %d workers ended with exit code 0, the first %g s ago; waiting for %s\n",
                r->failures.host, r->workers.count - r->workers.running_count, r->workers.count, r->o->exit_barrier_s,
                dt_text_str(&ranks));
    dt_text_clear(&ranks);
}

static bool is_at_terminal(const struct run *r)
{
    return r->wish == SIGINT && isatty(2);
}

void run_say_ending(const struct run *r)
{
    double now_s = dt_now_s(), left_s = r->grace_end_s > now_s ? r->grace_end_s - now_s : 0;
    struct dt_text ranks;
    dt_text_init(&ranks);
    bool workers_run = r->workers.running_count > 0, told = workers_run || r->agent.state != AGENT_RUNNING;
    if (workers_run) {
        add_running(r, &ranks);
    } else {
        dt_text_puts(&ranks, "what the workers had started, ");
        run_add_left(&ranks);
        dt_text_puts(&ranks, ",");
    }
    console_say("dtrun: host %s: waiting %.0f s for %s to %s; %.0f s left, then %s%s\n", r->failures.host,
                now_s - (workers_run ? r->ending_since_s : r->left_since_s), dt_text_str(&ranks),
                workers_run && r->is_train && r->agent.stop_wanted ? "save and end" : "end", left_s,
                r->killed ? "they are given up"
                : told    ? "KILL (--shutdown_timeout)"
                          : "TERM (--shutdown_timeout)",
                is_at_terminal(r) && !r->killed ? "; Ctrl-C again kills now" : "");
    dt_text_clear(&ranks);
}

void run_say_first_seen(const struct run *r)
{
    const struct failures *f = &r->failures;
    struct dt_text line;
    if (f->count == 0 || f->list[f->root].stopped_by_us) { /* nothing was: it was told to end */
        return;
    }
    dt_text_init(&line);
    report_cause(&f->list[f->root], 1, 0, &line);
    console_say("%s (first seen); waiting up to %g s for the other hosts to say why\n", dt_text_str(&line),
                r->o->dead_after_s);
    dt_text_clear(&line);
}

void run_say_late(struct run *r)
{
    if (r->cause_late) {
        r->cause_late = false;
        (void)uv_timer_stop(&r->late);
        r->cause_due = true;
        run_say_cause(r);
        r->cause_due = false;
    }
}

void run_say_pause(struct run *r)
{
    const char *cause = hosts_cause(r->hosts, r->place.round).text;
    if (cause != NULL) {
        r->lost_round = r->place.round;
        console_say("dtrun: %s\n", cause);
        note_elsewhere(r, r->place.round, cause);
    }
}

/* The number is the leader's; other hosts may have heard of it. */
static void say_no_progress(const struct run *r)
{
    struct hosts_view view = hosts_view(r->hosts);
    char where[48] = "to no step at all";
    if (!r->is_train || r->code != DT_EXIT_PERMANENT || r->agent.failure != FAILURE_PLAIN ||
        view.no_progress < COORDINATOR_NO_PROGRESS) {
        return;
    }
    if (view.best_step >= 0) {
        (void)snprintf(where, sizeof where, "no further than step %lld", (long long)view.best_step);
    }
    console_say("dtrun: no progress: %d restarts came %s; another try would fail the same way\n", view.no_progress,
                where);
}

/* The job was stopped by a signal that came to another host, which is told by its end alone
 * where nothing ran. 0: it was not. */
static int stopped_elsewhere(const struct run *r)
{
    /* what a failed job's exit code is */
    bool others_choose = r->o->exit_code_worker || r->o->permanent_code_count > 0;
    int number = r->code - 128;
    if (!hosts_view(r->hosts).others || r->wish != 0 || r->guard_gone) {
        return 0;
    }
    if (r->stop_signal != 0 && (r->code == DT_EXIT_STOPPED || number == r->stop_signal)) {
        return r->stop_signal;
    }
    bool after_failure = hosts_cause(r->hosts, r->place.round).failed;
    return number > 0 && number < 65 && !(after_failure && others_choose) ? number : 0;
}

/* What a stop leaves that does not end with "state saved": a worker may have been killed after
 * the save, or in it. All ranks save together, so what one of them knows to be complete is, and
 * before all are in it nothing is. */
static const char *what_stays(const struct run *r, char *out, size_t out_bytes)
{
    long long saving = -1;
    for (int i = 0; i < r->workers.count; i++) {
        struct dt_page_look page;
        dt_page_read(r->workers.list[i].page, 0, &page);
        saving = page.phase == DT_PHASE_SAVE ? page.step : saving;
    }
    if (r->failures.saved_step > r->saved_before) {
        (void)snprintf(out, out_bytes, "step %lld is saved", (long long)r->failures.saved_step);
    } else if (saving >= 0) {
        (void)snprintf(out, out_bytes, "the save of step %lld was cut off: dtckpt list shows whether it is complete",
                       saving);
    } else {
        (void)snprintf(out, out_bytes, "nothing new was saved");
    }
    return out;
}

/* Workers of two hosts failed at about the same time, and ours was said: the job ends because of
 * the first one, by whoever leads. The same words about another rank would explain nothing. */
static void say_first(const struct run *r)
{
    const struct failures *f = &r->failures;
    bool own_said = r->failure_told && r->cause_round == r->place.round && f->count > 0 && r->code != DT_EXIT_DONE;
    struct hosts_cause cause = hosts_cause(r->hosts, r->cause_round);
    if (!own_said || !cause.failed || cause.weak) {
        return;
    }
    struct cause own;
    report_to_cause(&f->list[f->root], CAUSE_FAILED, &own);
    if (!cause_alike(&own, cause.cause)) {
        console_say("dtrun: the first failure of the job: %s\n", cause.text);
    }
}

void run_say_end(const struct run *r)
{
    char stays[128];
    char signal_name[32], name[64];
    int elsewhere = stopped_elsewhere(r), number = r->wish != 0 ? r->wish : elsewhere;
    const char *known = number != 0 ? sigabbrev_np(number) : NULL; /* not of the real-time ones */
    (void)snprintf(signal_name, sizeof signal_name, "signal %d", number);
    (void)snprintf(name, sizeof name, "%s%s",
                   number == 0     ? "a stop request"
                   : known != NULL ? known
                                   : signal_name,
                   elsewhere != 0 ? " at another host" : "");
    say_first(r);
    say_no_progress(r);
    if (r->place.round == 0 && r->code == DT_EXIT_DONE) {
        console_say("dtrun: the job of run id %s is done; this host was a spare all the time and ran nothing\n",
                    r->o->run_id);
    } else if (r->guard_gone) {
        console_say(
            "dtrun: the guard is gone, the process that was started first (killed?): all workers have been ended\n");
    } else if (r->left && !r->alone) {
        console_say("dtrun: left because of %s: %s; the others go on, and the same command joins them again\n", name,
                    r->code == DT_EXIT_STOPPED ? "state saved"
                    : r->is_train              ? what_stays(r, stays, sizeof stays)
                                               : "the workers here have ended");
    } else if (r->code == DT_EXIT_STOPPED) {
        console_say("dtrun: stopped by %s: state saved%s; the same command continues\n", name,
                    r->failures.saved_step >= 0 ? "" : " by the program");
    } else if (r->code > 128 && number != 0 && r->place.round == 0) {
        console_say("dtrun: stopped by %s: no worker had been started\n", name);
    } else if (r->code > 128 && number != 0) {
        console_say("dtrun: stopped by %s: all workers have ended%s%s\n", name, r->is_train ? "; " : "",
                    r->is_train ? what_stays(r, stays, sizeof stays) : "");
    }
}
