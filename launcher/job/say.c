/* What a job prints about its rounds: cause lines, the report, the last line after a stop,
 * events.jsonl. */
#include "launcher/job/job.h"

#include "base/clock.h"
#include "base/log.h"
#include "launcher/output/console.h"
#include "launcher/output/report.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LATE_MS 1000 /* how long to wait for the host of the first cause */

void job_event(struct job *job, const char *what, const char *fmt, ...)
{
    struct dt_text fields;
    struct dt_error err;
    va_list args;
    dt_text_init(&fields);
    va_start(args, fmt);
    dt_text_vprintf(&fields, fmt, args);
    va_end(args);
    bool failed = report_event(job->events_path, what, dt_text_str(&fields), &err) != 0;
    if (failed) {
        dt_log(DT_LOG_INFO, "agent", "events: %s", err.text);
    }
    if (strcmp(what, "failure") == 0) {
        (void)snprintf(job->said.record_lost, sizeof job->said.record_lost, "%s", failed ? err.text : "");
    }
    dt_text_clear(&fields);
}

static const char *error_file_of(void *user, int local_rank)
{
    const struct job *job = user;
    return logs_error_file(job->logs, local_rank);
}

/* Whether the verdict is there, or on its way from the leader's host. */
static bool is_end(const struct job *job)
{
    return job->agent.verdict || job->oom.again || job->agent.failure != FAILURE_PLAIN ||
           job->cause.used > job->o->restarts.most;
}

/* Whether no restart will follow, as far as is known: the verdict may be on its way. */
static bool is_permanent(const struct job *job)
{
    return job->oom.again || job->agent.failure != FAILURE_PLAIN ||
           (job->agent.verdict && job->agent.code == DT_EXIT_PERMANENT);
}

/* Whether a worker only reports the failure of others: it lost its peers, or ended with the error
 * of a worker on another host, or with an error that others told it. */
static bool is_weak(const struct job *job, const struct report_failure *root)
{
    return job->agent.options.bundled &&
           (root->exit_code == DT_EXIT_TEMPORARY || root->follows >= 0 || root->blame.told != DT_TOLD_NOT);
}

/* If a rank of ours that has not ended yet is the cause of this failure, which ended with that
 * rank's error, names that rank. */
static void name_the_cause(const struct job *job, struct report_failure *x)
{
    int local_rank = x->follows - job->round.place.rank;
    if (x->follows >= 0 && local_rank >= 0 && local_rank < job->workers.count) {
        x->rank = x->follows;
        x->local_rank = local_rank;
        x->pid = job->workers.list[local_rank].pid;
        x->follows = -1;
    }
}

/* The coordinator counts for all hosts. This count is for our own text, which may be printed before
 * the coordinator's verdict is here. */
static void note_memory(struct job *job, const struct report_failure *root)
{
    job->oom.again = root->out_of_memory && job->oom.seen && job->oom.step == root->step && job->is_train;
    if (root->out_of_memory) {
        job->oom.seen = true;
        job->oom.step = root->step;
    }
}

/* The option that prevents a restart after this failure; null: no restart is left anyway. */
static const char *forbids_restart(const struct job *job, const struct report_failure *root)
{
    for (int i = 0; i < job->o->restarts.permanent_code_count && job->agent.failure == FAILURE_PERMANENT &&
                    job->o->restarts.most > 0;
         i++) {
        if (job->o->restarts.permanent_codes[i] == root->exit_code) {
            return "--permanent_exit_codes";
        }
    }
    return NULL;
}

void job_first_failure(struct job *job, struct event *e, struct cause *out)
{
    struct failures *f = &job->failures;
    e->cause = out;
    if (f->count == 0) {
        const char *no_start = job->round.no_start;
        *out = (struct cause){.kind = no_start[0] != '\0' ? CAUSE_FAILED : CAUSE_NONE,
                              .rank = -1,
                              .step = -1,
                              .digest = dt_digest(no_start),
                              .whole = true};
        (void)snprintf(out->words, sizeof out->words, "%s", no_start);
        return;
    }
    failures_settle(f, error_file_of, job, job->agent.options.bundled);
    struct report_failure root = f->list[f->root]; /* borrows its strings */
    name_the_cause(job, &root);
    e->weak = is_weak(job, &root);
    e->out_of_memory = root.out_of_memory;
    e->at_step = root.step;
    if (job->round.told_failed) { /* once a round */
        note_memory(job, &root);
    }
    report_to_cause(&root, e->weak ? CAUSE_PEER : CAUSE_FAILED, out);
}

/* Writes the same text to events.jsonl. */
static void note_elsewhere(struct job *job, int round, const char *cause)
{
    struct dt_text text;
    dt_text_init(&text);
    dt_text_json(&text, cause, strlen(cause));
    job_event(job, "ended_elsewhere", "\"round\":%d,\"cause\":%s", round, dt_text_str(&text));
    dt_text_clear(&text);
    job->said.elsewhere_round = round;
}

/* Prints why a round ended because of other hosts. here: what it meant for the workers here, if
 * none of them failed or was killed; the caller knows. */
static void write_elsewhere(struct job *job, const char *cause, const char *here, bool failed)
{
    int used = hosts_view(job->hosts).restarts_used;
    struct dt_text line;
    dt_text_init(&line);
    dt_text_printf(&line, "dtrun: %s; %s", cause, here);
    if (failed && !is_end(job)) {
        dt_text_printf(&line, "; restarting (%d of %d used)", job->cause.used, job->o->restarts.most);
    } else if (failed && job->agent.verdict && !is_permanent(job) && job->o->restarts.most > 0 &&
               used >= job->o->restarts.most) {
        dt_text_printf(&line, "; no restart left (%d of %d used)", used, job->o->restarts.most);
    }
    console_say("%s\n", dt_text_str(&line));
    dt_text_clear(&line);
    note_elsewhere(job, job->cause.round, cause);
}

/* Handles a round that did not end because of a worker of this host: the first cause is elsewhere.
 * Returns false if it is here. A worker here that only lost its peers counts as the cause only if
 * no other host reports more for a while. */
static bool say_cause_elsewhere(struct job *job)
{
    const struct failures *f = &job->failures;
    /* null: all ended with 0 after they were told to end */
    const struct report_failure *root = f->count > 0 ? &f->list[f->root] : NULL;
    bool own_weak = root != NULL && is_weak(job, root), told = root == NULL || root->stopped_by_us;
    if (!hosts_view(job->hosts).others) {
        return root == NULL; /* no worker failed */
    }
    if (!told && !own_weak) {
        return false;
    }
    struct hosts_cause cause = hosts_cause(job->hosts, job->cause.round);
    if (job->said.lost_round == job->cause.round || cause.said) {
        return true;
    }
    /* else it is by the rank that has told ours */
    bool weak = cause.weak && (told || root->blame.told == DT_TOLD_NOT || cause_is_heard(cause.cause));
    /* somebody asked for it: job_say_end */
    if (told && cause.text == NULL && job->agent.stop_wanted) {
        return true;
    }
    /* a host that knows more will report soon */
    if ((cause.text == NULL || weak) && !job->cause.due) {
        job->cause.late = true;
        job->cause.seen = false;
        (void)uv_timer_start(&job->timer.late, job->timer.late.timer_cb, LATE_MS, 0);
        return true;
    }
    if (!told && (cause.text == NULL || weak)) {
        return false;
    }
    char here[320];
    int count = root != NULL ? f->count : job->workers.count;
    (void)snprintf(here, sizeof here, "because of it %d worker%s stopped at host %s", count, count == 1 ? "" : "s",
                   f->host);
    write_elsewhere(job, cause.text != NULL ? cause.text : "the round ended elsewhere", here, cause.failed);
    return true;
}

void job_say_elsewhere(struct job *job)
{
    bool own = job->failures.count > 0 || job->round.no_start[0] != '\0' || job->stop.wish != 0 || job->stop.left;
    int round = job->round.place.round;
    struct hosts_cause cause = hosts_cause(job->hosts, round);
    if (own || round == 0 || job->said.elsewhere_round == round || job->said.lost_round == round || cause.said) {
        return;
    }
    char here[320];
    if (cause.text != NULL) {
        struct hosts_view view = hosts_view(job->hosts);
        job->cause.round = round;
        job->cause.used = cause.failed ? view.restarts_after_failure : view.restarts_used;
        (void)snprintf(here, sizeof here, "the worker%s at host %s had ended with exit code 0",
                       job->workers.count == 1 ? "" : "s", job->failures.host);
        write_elsewhere(job, cause.text, here, cause.failed);
    }
}

/* For failures that another try might have survived. */
static void say_why_permanent(const struct job *job, struct dt_text *out)
{
    const struct report_failure *root = &job->failures.list[job->failures.root];
    bool permanent = job->agent.code == DT_EXIT_PERMANENT && job->agent.failure == FAILURE_PLAIN &&
                     hosts_view(job->hosts).no_progress < COORDINATOR_NO_PROGRESS;
    if (root->out_of_memory && (permanent || job->oom.again)) {
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

/* Prints the end of a failed round: one cause line, and what happens next. */
void job_say_cause(struct job *job)
{
    struct failures *f = &job->failures;
    struct dt_text line;
    /* with 0, but only because they were told to */
    bool ended_elsewhere = job->round.ending && job->round.no_start[0] == '\0';
    if ((f->count == 0 && !ended_elsewhere) || job->stop.wish != 0) {
        return;
    }
    if (!job->cause.due) {
        job->cause.round = job->round.place.round;
        job->cause.used = hosts_view(job->hosts).restarts_after_failure;
    }
    if (f->count > 0) {
        failures_settle(f, error_file_of, job, job->agent.options.bundled);
        if (job->round.no_start[0] != '\0') {
            failures_keep_own(f);
            if (f->count == 0) {
                return; /* job_spawn printed the reason */
            }
        }
    }
    if (say_cause_elsewhere(job)) {
        return;
    }
    dt_text_init(&line);
    logs_flush(job->logs, 1);
    if (is_end(job)) {
        struct dt_text tail;
        dt_text_init(&tail);
        (void)logs_tail(job->logs, f->list[f->root].local_rank, 20, &tail);
        struct report_context c = {
            .title = job->o->program.name,
            .tail = tail.size > 0 ? dt_text_str(&tail) : NULL,
            .log_dir = logs_has_files(job->logs) ? logs_worker_dir(job->logs, f->list[f->root].local_rank) : NULL,
            .restarts_used = hosts_view(job->hosts).restarts_used,
            .restarts_max = is_permanent(job) ? 0 : job->o->restarts.most,
            .no_restart = forbids_restart(job, &f->list[f->root])};
        report_write(f->list, f->count, f->root, &c, &line);
        if (job->o->program.entry != OPTIONS_ENTRY_PROGRAM && job->entry_point != NULL &&
            strstr(dt_text_str(&line), "No module named") != NULL) {
            dt_text_printf(&line, "dtrun: the interpreter was %s; PYTHON_EXEC names another\n", job->entry_point);
        }
        dt_text_clear(&tail);
        if (line.size > 0 && line.data[line.size - 1] != '\n') {
            dt_text_puts(&line, "\n");
        }
        struct dt_error err;
        if (report_write_parent(options_getenv(job->env, "TORCHELASTIC_ERROR_FILE"), &f->list[f->root], &err) != 0) {
            dt_text_printf(&line, "dtrun: %s\n", err.text);
        }
        say_why_permanent(job, &line);
    } else {
        report_cause(f->list, f->count, f->root, &line);
        dt_text_printf(&line, "; restarting (%d of %d used)", job->cause.used, job->o->restarts.most);
        failures_say_from(f, job->round.place.group_world_size > 1, &line);
        dt_text_puts(&line, "\n");
    }
    console_write(dt_text_str(&line), line.size);
    dt_text_reset(&line);
    report_event_failure(&f->list[f->root], &line);
    job_event(job, "failure", "\"round\":%d,%s", job->cause.round, dt_text_str(&line));
    job->said.failure = true;
    dt_text_clear(&line);
}

void job_say_lost(struct job *job)
{
    struct hosts_cause cause = hosts_cause(job->hosts, job->round.place.round);
    int count = job->workers.running_count;
    if (cause.text == NULL || cause.failed || job->stop.wish != 0 || job->said.lost_round == job->round.place.round) {
        return;
    }
    /* a worker failed, and processes that it started are still ending */
    if (count == 0 && job->round.left_since_s > 0 && job->failures.count > 0) {
        console_say("dtrun: %s\n", cause.text);
    }
    if (count == 0) {
        return;
    }
    job->said.lost_round = job->round.place.round;
    console_say("dtrun: %s; because of it %d worker%s at host %s\n", cause.text, count, count == 1 ? " ends" : "s end",
                job->failures.host);
    note_elsewhere(job, job->round.place.round, cause.text);
}

/* "rank 3", "ranks 0, 1, ..." */
static void add_running(const struct job *job, struct dt_text *out)
{
    enum { NAMED = 8 };
    struct dt_list ranks = {.text = out, .most = NAMED};
    dt_text_puts(out, job->workers.running_count == 1 ? "rank " : "ranks ");
    for (int i = 0; i < job->workers.count; i++) {
        if (job->workers.list[i].running) {
            dt_list_add(&ranks, "%d", job->round.place.rank + i);
        }
    }
}

void job_say_waiting(const struct job *job)
{
    struct dt_text ranks;
    dt_text_init(&ranks);
    add_running(job, &ranks);
    console_say("dtrun: host %s: %d of %d workers ended with exit code 0, the first %g s ago; waiting for %s\n",
                job->failures.host, job->workers.count - job->workers.running_count, job->workers.count,
                job->o->stop.exit_barrier_s, dt_text_str(&ranks));
    dt_text_clear(&ranks);
}

static bool is_at_terminal(const struct job *job)
{
    return job->stop.wish == SIGINT && isatty(2);
}

void job_say_ending(const struct job *job)
{
    double now_s = dt_now_s(), left_s = job->round.grace_end_s > now_s ? job->round.grace_end_s - now_s : 0;
    struct dt_text ranks;
    dt_text_init(&ranks);
    bool workers_run = job->workers.running_count > 0, told = workers_run || job->agent.state != AGENT_RUNNING;
    if (workers_run) {
        add_running(job, &ranks);
    } else {
        dt_text_puts(&ranks, "what the workers had started, ");
        job_add_left(&ranks);
        dt_text_puts(&ranks, ",");
    }
    console_say("dtrun: host %s: waiting %.0f s for %s to %s; %.0f s left, then %s%s\n", job->failures.host,
                now_s - (workers_run ? job->round.ending_since_s : job->round.left_since_s), dt_text_str(&ranks),
                workers_run && job->is_train && job->agent.stop_wanted ? "save and end" : "end", left_s,
                job->round.killed ? "they are given up"
                : told            ? "KILL (--shutdown_timeout)"
                                  : "TERM (--shutdown_timeout)",
                is_at_terminal(job) && !job->round.killed ? "; Ctrl-C again kills now" : "");
    dt_text_clear(&ranks);
}

void job_say_first_seen(const struct job *job)
{
    const struct failures *f = &job->failures;
    struct dt_text line;
    if (f->count == 0 || f->list[f->root].stopped_by_us) { /* nothing was: it was told to end */
        return;
    }
    dt_text_init(&line);
    report_cause(&f->list[f->root], 1, 0, &line);
    console_say("%s (first seen); waiting up to %g s for the other hosts to say why\n", dt_text_str(&line),
                job->o->rdzv.dead_after_s);
    dt_text_clear(&line);
}

void job_say_late(struct job *job)
{
    if (job->cause.late) {
        job->cause.late = false;
        (void)uv_timer_stop(&job->timer.late);
        job->cause.due = true;
        job_say_cause(job);
        job->cause.due = false;
    }
}

void job_say_pause(struct job *job)
{
    const char *cause = hosts_cause(job->hosts, job->round.place.round).text;
    if (cause != NULL) {
        job->said.lost_round = job->round.place.round;
        console_say("dtrun: %s\n", cause);
        note_elsewhere(job, job->round.place.round, cause);
    }
}

/* The leader counts this number; other hosts may have received it. */
static void say_no_progress(const struct job *job)
{
    struct hosts_view view = hosts_view(job->hosts);
    char where[48] = "to no step at all";
    if (!job->is_train || job->code != DT_EXIT_PERMANENT || job->agent.failure != FAILURE_PLAIN ||
        view.no_progress < COORDINATOR_NO_PROGRESS) {
        return;
    }
    if (view.best_step >= 0) {
        (void)snprintf(where, sizeof where, "no further than step %lld", (long long)view.best_step);
    }
    console_say("dtrun: no progress: %d restarts came %s; another try would fail the same way\n", view.no_progress,
                where);
}

/* The signal to another host that stopped the job; 0: none. A host without workers only sees it in
 * the job's exit code. */
static int stopped_elsewhere(const struct job *job)
{
    /* what a failed job's exit code is */
    bool others_choose = job->o->stop.exit_code_worker || job->o->restarts.permanent_code_count > 0;
    int number = job->code - 128;
    if (!hosts_view(job->hosts).others || job->stop.wish != 0 || job->stop.guard_gone) {
        return 0;
    }
    if (job->stop.signal != 0 && (job->code == DT_EXIT_STOPPED || number == job->stop.signal)) {
        return job->stop.signal;
    }
    bool after_failure = hosts_cause(job->hosts, job->round.place.round).failed;
    return number > 0 && number < 65 && !(after_failure && others_choose) ? number : 0;
}

/* Describes what a stop leaves that did not end with "state saved": a worker may have been killed
 * after the save, or during it. All ranks save together. So a checkpoint that one of them knows to
 * be complete is complete, and there is none before all ranks have begun to save. */
static const char *what_stays(const struct job *job, char *out, size_t out_bytes)
{
    long long saving = -1;
    for (int i = 0; i < job->workers.count; i++) {
        struct dt_page_look page;
        dt_page_read(job->workers.list[i].page, 0, &page);
        saving = page.phase == DT_PHASE_SAVE ? page.step : saving;
    }
    if (job->failures.saved_step > job->stop.saved_before) {
        (void)snprintf(out, out_bytes, "step %lld is saved", (long long)job->failures.saved_step);
    } else if (saving >= 0) {
        (void)snprintf(out, out_bytes, "the save of step %lld was cut off: dtckpt list shows whether it is complete",
                       saving);
    } else {
        (void)snprintf(out, out_bytes, "nothing new was saved");
    }
    return out;
}

/* Workers of two hosts failed at about the same time, and our failure was printed. But the job ends
 * because of the first failure, as the leader decides. The same error with another rank would
 * explain nothing. */
static void say_first(const struct job *job)
{
    const struct failures *f = &job->failures;
    bool own_said =
        job->said.failure && job->cause.round == job->round.place.round && f->count > 0 && job->code != DT_EXIT_DONE;
    struct hosts_cause cause = hosts_cause(job->hosts, job->cause.round);
    if (!own_said || !cause.failed || cause.weak) {
        return;
    }
    struct cause own;
    report_to_cause(&f->list[f->root], CAUSE_FAILED, &own);
    if (!cause_alike(&own, cause.cause)) {
        console_say("dtrun: the first failure of the job: %s\n", cause.text);
    }
}

void job_say_end(const struct job *job)
{
    char stays[128];
    char signal_name[32], name[64];
    int elsewhere = stopped_elsewhere(job), number = job->stop.wish != 0 ? job->stop.wish : elsewhere;
    const char *known = number != 0 ? sigabbrev_np(number) : NULL; /* not of the real-time ones */
    (void)snprintf(signal_name, sizeof signal_name, "signal %d", number);
    (void)snprintf(name, sizeof name, "%s%s",
                   number == 0     ? "a stop request"
                   : known != NULL ? known
                                   : signal_name,
                   elsewhere != 0 ? " at another host" : "");
    say_first(job);
    say_no_progress(job);
    if (job->round.place.round == 0 && job->code == DT_EXIT_DONE) {
        console_say("dtrun: the job of run id %s is done; this host was a spare all the time and ran nothing\n",
                    job->o->rdzv.run_id);
    } else if (job->stop.guard_gone) {
        console_say(
            "dtrun: the guard is gone, the process that was started first (killed?): all workers have been ended\n");
    } else if (job->stop.left && !job->stop.alone) {
        console_say("dtrun: left because of %s: %s; the others go on, and the same command joins them again\n", name,
                    job->code == DT_EXIT_STOPPED ? "state saved"
                    : job->is_train              ? what_stays(job, stays, sizeof stays)
                                                 : "the workers here have ended");
    } else if (job->code == DT_EXIT_STOPPED) {
        console_say("dtrun: stopped by %s: state saved%s; the same command continues\n", name,
                    job->failures.saved_step >= 0 ? "" : " by the program");
    } else if (job->code > 128 && number != 0 && job->round.place.round == 0) {
        console_say("dtrun: stopped by %s: no worker had been started\n", name);
    } else if (job->code > 128 && number != 0) {
        console_say("dtrun: stopped by %s: all workers have ended%s%s\n", name, job->is_train ? "; " : "",
                    job->is_train ? what_stays(job, stays, sizeof stays) : "");
    }
}
