/* The order of exits tells little about causes. A crashing worker may take seconds to write its
 * traceback, while its peers, which only lost the connection, end at once. So nothing is decided
 * before all workers have ended. */
#include "launcher/job/failures.h"

#include "base/cgroup.h"
#include "base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A number of our memory control group, or of the first one above it that has it; -1: not known. */
static double group_number(const char *two, const char *one, const char *key)
{
    struct dt_cgroup folders[DT_CGROUP_MAX];
    double found = -1;
    int count = dt_cgroup_folders("memory", folders);
    for (int i = 0; i < count && found < 0; i++) {
        found = dt_cgroup_number(&folders[i], two, one, key);
    }
    return found;
}

static long long oom_kills(void)
{
    return (long long)group_number("memory.events", "memory.oom_control", "oom_kill ");
}

double failures_memory_limit_bytes(void)
{
    return dt_cgroup_least("memory", "memory.max", "memory.limit_in_bytes");
}

void failures_begin(struct failures *f)
{
    for (int i = 0; i < f->count; i++) {
        report_failure_clear(&f->list[i]);
    }
    f->count = 0;
    f->root = -1;
    f->step = f->saved_step = f->snapshot_step = f->begun_step = -1;
    f->oom_before = oom_kills();
    if (f->host[0] == 0 && gethostname(f->host, sizeof f->host - 1) != 0) {
        (void)snprintf(f->host, sizeof f->host, "localhost");
    }
}

void failures_clear(struct failures *f)
{
    for (int i = 0; i < f->count; i++) {
        report_failure_clear(&f->list[i]);
    }
    free(f->list);
    *f = (struct failures){.root = -1};
}

/* Whether the kernel ended it at the limit of CPU time that it got from us; then says so in
 * `out`. */
static bool is_cpu_limit(const struct worker *one, int code, char *out, size_t size)
{
    struct rlimit limit;
    char name[32];
    if ((code != -SIGKILL && code != -SIGXCPU) || getrlimit(RLIMIT_CPU, &limit) != 0 ||
        limit.rlim_cur == RLIM_INFINITY ||
        one->cpu_s < 0.85 * (double)limit.rlim_cur - 0.25) { /* the limit is counted in ticks,
                                                              * which say more of whoever is
                                                              * often interrupted */
        return false;
    }
    (void)snprintf(out, size,
                   "killed by signal %d (%s) after %.0f s of CPU time, where a process may use %llu s (ulimit -t)",
                   -code, report_signal_name(-code, name, sizeof name), one->cpu_s, (unsigned long long)limit.rlim_cur);
    return true;
}

/* Writes a note if it can say more than the exit code, and whether the cause was memory. note: from
 * the part of dtrun that ended the worker. own: the worker's own error, on its page. */
static void write_note(const struct failures *f, const struct worker *one, const char *note, const struct dt_error *own,
                       struct report_failure *x)
{
    char signal_name[32], *out = x->note;
    size_t size = sizeof x->note;
    long long step = (long long)x->step;
    int code = x->exit_code;
    if (note != NULL && note[0] != 0) {
        (void)snprintf(out, size, "%s", note);
    } else if (own->text[0] != 0) {
        (void)snprintf(out, size, "%s", own->text);
        x->status = own->status;
        x->blame = own->blame;
        x->digest = own->digest;
    } else if (code == -SIGKILL && !x->stopped_by_us && f->oom_before >= 0 && oom_kills() > f->oom_before) {
        double limit = failures_memory_limit_bytes();
        double peak = group_number("memory.peak", "memory.max_usage_in_bytes", "");
        char limit_text[32] = "unknown", peak_text[32] = "unknown";
        x->out_of_memory = true;
        (void)snprintf(
            out, size,
            "killed by the kernel, out of memory (limit %s of the control group, peak %s); use less memory per rank",
            limit > 0 ? dt_text_bytes(limit, limit_text, sizeof limit_text) : limit_text,
            peak > 0 ? dt_text_bytes(peak, peak_text, sizeof peak_text) : peak_text);
    } else if (!x->stopped_by_us && is_cpu_limit(one, code, out, size)) {
        return;
    } else if (code < 0 && step >= 0) {
        (void)snprintf(out, size, "killed by signal %d (%s) at step %lld", -code,
                       report_signal_name(-code, signal_name, sizeof signal_name), step);
    }
}

void failures_add(struct failures *f, const struct worker *one, int local_rank, int rank, bool ended_by_us,
                  const char *note)
{
    if (f->count == f->capacity) {
        f->capacity = f->capacity > 0 ? 2 * f->capacity : 8;
        f->list = dt_realloc(f->list, (size_t)f->capacity * sizeof *f->list);
    }
    struct report_failure *x = &f->list[f->count++];
    struct dt_page_look page;
    dt_page_read(one->page, 0, &page);
    report_failure_init(x);
    x->local_rank = local_rank;
    x->rank = rank;
    x->pid = one->pid;
    x->exit_code = workers_code(one->status);
    x->wall_s = dt_wall_s();
    x->stopped_by_us = ended_by_us;
    x->step = page.step;
    (void)snprintf(x->host, sizeof x->host, "%s", f->host);
    write_note(f, one, note, &page.cause, x);
    x->digest = x->digest != 0 ? x->digest : dt_digest(x->note);
}

void failures_progress(struct failures *f, const struct workers *w)
{
    int64_t snapshot = w->snapshot_fd >= 0 ? INT64_MAX : -1, begun = w->count > 0 ? INT64_MAX : -1;
    for (int i = 0; i < w->count; i++) {
        struct dt_page_look page;
        dt_page_read(w->list[i].page, 0, &page);
        snapshot = page.snapshot_step < snapshot ? page.snapshot_step : snapshot;
        begun = page.begun_step < begun ? page.begun_step : begun;
        f->step = page.step > f->step ? page.step : f->step;
        f->saved_step = page.saved_step > f->saved_step ? page.saved_step : f->saved_step;
    }
    f->snapshot_step = snapshot > f->snapshot_step ? snapshot : f->snapshot_step;
    f->begun_step = begun > f->begun_step ? begun : f->begun_step;
}

void failures_say_from(const struct failures *f, bool others, struct dt_text *out)
{
    bool snapshot = f->snapshot_step > f->saved_step;
    int64_t from = snapshot ? f->snapshot_step : f->saved_step;
    if (from >= 0) {
        dt_text_printf(out, " from %sstep %lld%s", snapshot && others ? "about " : "", (long long)from,
                       f->begun_step > from ? " or later" : "");
    }
}

static bool is_named(const struct report_failure *x)
{
    return x->blame.fault == DT_FAULT_FAILED;
}

/* Whether the worker gave its own reason, and not only that it was told to end. */
static bool has_own_words(const struct report_failure *x)
{
    return x->note[0] != '\0' && x->blame.told == DT_TOLD_NOT && x->status != DT_STOPPED;
}

/* All ranks may end with the error of one rank, in the same words. If that rank is here, it is the
 * cause and the others only followed, even if it ended last and was told to end by then. If it is
 * on another host, its followers' error is all that is known here. */
static void follow(struct failures *f, struct report_failure *x)
{
    int named = x->exit_code != DT_EXIT_TEMPORARY && is_named(x) && x->blame.rank != x->rank ? x->blame.rank : -1;
    x->follows = -1;
    for (int i = 0; named >= 0 && i < f->count; i++) {
        struct report_failure *cause = &f->list[i];
        if (cause->rank == named) {
            if (cause->stopped_by_us) {
                cause->stopped_by_us = false;
                cause->exit_code = x->exit_code; /* its own would have been the same, had it not
                                                  * been told to end */
                (void)snprintf(cause->note, sizeof cause->note, "%s", x->note);
                cause->blame = (struct dt_blame){0};
                cause->digest = x->digest;
            }
            x->stopped_by_us = true;
            (void)snprintf(x->note, sizeof x->note, "failed because rank %d did", named);
            x->blame = (struct dt_blame){0};
            x->status = DT_STOPPED;
            x->digest = dt_digest(x->note);
            return;
        }
    }
    x->follows = named;
}

/* A rank that only lost another rank is not the cause if that rank is here, too, and gives its own
 * reason, for example that its GPU failed. That rank may take longer to end. */
static void yield(struct failures *f, struct report_failure *x)
{
    int lost = x->exit_code == DT_EXIT_TEMPORARY && x->blame.fault == DT_FAULT_LOST && x->blame.rank != x->rank
                   ? x->blame.rank
                   : -1;
    for (int i = 0; lost >= 0 && i < f->count; i++) {
        struct report_failure *cause = &f->list[i];
        if (cause->rank == lost && cause->exit_code == DT_EXIT_TEMPORARY && has_own_words(cause) &&
            cause->blame.fault == DT_FAULT_OWN) {
            cause->stopped_by_us = false;
            x->stopped_by_us = true;
        }
    }
}

/* Whether a rank of ours told others the error in `heard`. Then it failed by itself. */
static bool own_up(struct failures *f, const struct dt_blame *heard)
{
    for (int i = 0; heard->told != DT_TOLD_NOT && i < f->count; i++) {
        struct report_failure *x = &f->list[i];
        if (x->rank == heard->teller && has_own_words(x)) {
            x->stopped_by_us = false; /* it was on its way out when it was told to end */
            return true;
        }
    }
    return false;
}

bool failures_own_up(struct failures *f, const struct cause *cause)
{
    return cause != NULL && own_up(f, &cause->blame);
}

/* A rank that was told of the error by another rank of ours is not the cause. */
static void give_back(struct failures *f, struct report_failure *x)
{
    x->stopped_by_us = own_up(f, &x->blame) || x->stopped_by_us;
}

void failures_settle(struct failures *f, const char *(*error_file)(void *user, int local_rank), void *user,
                     bool bundled)
{
    bool other_cause = false;
    for (int i = 0; bundled && i < f->count; i++) {
        follow(f, &f->list[i]);
        yield(f, &f->list[i]);
        give_back(f, &f->list[i]);
    }
    for (int i = 0; i < f->count; i++) {
        struct report_failure *x = &f->list[i];
        if (x->error_file == NULL) {
            report_read_error_file(x, error_file(user, x->local_rank));
        }
        if (x->stopped_by_us && x->exit_code > 0 && x->message != NULL) {
            x->stopped_by_us = false; /* it was on its way out already, with a traceback of its
                                       * own */
        }
        other_cause = other_cause || (!x->stopped_by_us && x->exit_code != DT_EXIT_TEMPORARY);
    }
    for (int i = 0; i < f->count; i++) {
        struct report_failure *x = &f->list[i];
        if (bundled && other_cause && x->exit_code == DT_EXIT_TEMPORARY) {
            x->stopped_by_us = true; /* it lost the peer that failed */
        }
    }
    f->root = report_root(f->list, f->count);
}

void failures_keep_own(struct failures *f)
{
    int kept = 0;
    for (int i = 0; i < f->count; i++) {
        if (f->list[i].stopped_by_us) {
            report_failure_clear(&f->list[i]);
        } else {
            f->list[kept++] = f->list[i];
        }
    }
    f->count = kept;
    f->root = report_root(f->list, kept);
}
