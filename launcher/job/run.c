/* Everything happens on one loop in one thread. Signals come through a descriptor, with the
 * sender's pid, so a signal that a scheduler sends to each of our processes is not mistaken for
 * an insisting user. Child exits are a signal too: nothing polls.
 *
 *     SIGCHLD ─▶ reap ─▶ agent_step ─▶ todo: order, signal, kill, spawn, exit
 *                            │  ▲
 *                 hosts_tell ▼  │ start, end, stop, verdict: hooks.act
 *                             hosts
 */
#include "launcher/job/run.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "launcher/output/console.h"
#include "launcher/options/env.h"
#include "launcher/workers/guard.h"
#include "launcher/job/plan.h"
#include "launcher/job/requeue.h"
#include "launcher/job/run_parts.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* the first news of a failure waits so long for the round to be over and its cause known */
#define SETTLE_S 0.1
/* a stopped worker that may be silent for ever, as in a save, is lost after this */
#define STOPPED_S 60.0

static struct run run; /* one per process; tables of a thousand nodes are no guest of the stack */

void run_post(struct run *r, enum agent_event event, int value)
{
    assert(r->queued - r->taken < QUEUE);
    r->queue[r->queued % QUEUE].event = event;
    r->queue[r->queued++ % QUEUE].value = value;
}

static double output_of(void *user, int local_rank)
{
    const struct run *r = user;
    return logs_last_output_s(r->logs, local_rank);
}

/* ---- events out of processes ---- */

static void worker_ended(struct run *r, int i, bool ended_by_us)
{
    const struct worker *one = &r->workers.list[i];
    int code = workers_code(one->status);
    if (code == -SIGKILL && !r->killed && !guard_workers_overdue()) {
        ended_by_us = false; /* we sent none: somebody else did while the round was being ended,
                              * perhaps because of just that */
    }
    logs_finish(r->logs, i);
    dt_log(DT_LOG_INFO, "agent", "round %d local %d pid %d ended with %d", r->place.round, i, (int)one->pid, code);
    if (code == 0) {
        if (!uv_is_active((uv_handle_t *)&r->barrier)) {
            (void)uv_timer_start(&r->barrier, r->barrier.timer_cb, (uint64_t)(r->o->exit_barrier_s * 1e3) + 1, 0);
        }
        run_post(r, AGENT_ON_WORKER_OK, 0);
    } else if (r->agent.options.bundled && code == DT_EXIT_STOPPED) {
        run_post(r, AGENT_ON_WORKER_75, 0);
    } else {
        if (!one->blamed) { /* a silent one has been recorded when it was named */
            failures_add(&r->failures, one, i, r->place.rank + i, ended_by_us,
                         code < 0 && one->note[0] != 0 ? one->note : NULL);
        }
        if (!ended_by_us && !uv_is_active((uv_handle_t *)&r->news)) {
            (void)uv_timer_start(&r->news, r->news.timer_cb, (uint64_t)(SETTLE_S * 1e3), 0);
        }
        run_post(r, AGENT_ON_WORKER_BAD, code);
    }
    run_drain(r);
}

/* Takes all exits before the first is handled: what ended before we said anything did so on its
 * own. */
void run_reap(struct run *r)
{
    bool was_ending = r->ending || guard_workers_overdue();
    r->reaping = true;
    bool *ended = dt_alloc((size_t)r->workers.count * sizeof *ended);
    int rank, status;
    pid_t pid;
    do {
        rank = workers_reap(&r->workers, &pid, &status);
        if (rank >= 0) {
            ended[rank] = true;
        }
    } while (pid > 0);
    for (int i = 0; i < r->workers.count; i++) {
        if (ended[i]) {
            worker_ended(r, i, was_ending);
        }
    }
    free(ended);
    r->reaping = false;
    run_drain(r);
}

/* The round has ended when no worker runs and nothing that they started is left. */
static void check_gone(struct run *r)
{
    bool over = r->agent.state == AGENT_RUNNING || r->agent.state == AGENT_STOPPING;
    if (!over || r->reaping || r->workers.running_count > 0 || r->gone_posted) {
        return;
    }
    if (run_await_left(r)) {
        return;
    }
    (void)uv_timer_stop(&r->sweep);
    (void)uv_timer_stop(&r->grace);
    (void)uv_timer_stop(&r->patience);
    (void)uv_timer_stop(&r->news);
    (void)uv_timer_stop(&r->barrier);
    r->gone_posted = true;
    run_starts_say(r);
    failures_progress(&r->failures, &r->workers);
    run_post(r, AGENT_ON_GONE, 0);
}

/* ---- what the agent wants ---- */

/* From now on workers end because they were told to; what they save from now on is new. */
static void begin_ending(struct run *r)
{
    if (!r->ending) {
        r->ending = true;
        failures_progress(&r->failures, &r->workers);
        r->saved_before = r->failures.saved_step;
    }
}

static void end_workers(struct run *r, int n)
{
    begin_ending(r);
    workers_signal(&r->workers, n);
    workers_signal(&r->workers, SIGCONT); /* a stopped one takes no TERM */
}

static void kill_all(struct run *r)
{
    begin_ending(r);
    workers_signal(&r->workers, SIGKILL);
    (void)guard_kill_descendants();
    if (!r->killed) {
        r->killed = true;
        run_start_grace(r, RUN_STUCK_S);
    }
}

static void order_stop(struct run *r)
{
    if (r->is_train) {
        begin_ending(r);
        workers_order(&r->workers, DT_ORDER_STOP);
        workers_signal(&r->workers, SIGCONT); /* a stopped one could not save, and the others
                                               * would wait for it */
    } else {
        end_workers(r, r->agent.signal);
    }
}

static void exit_job(struct run *r)
{
    run_say_late(r);
    r->code = r->agent.code;
    if (r->code != DT_EXIT_DONE && r->code != DT_EXIT_STOPPED) {
        run_say_elsewhere(r);
    }
    r->exiting = true;
    uv_stop(&r->loop);
}

static void do_one(struct run *r, enum agent_do what)
{
    struct event e = {.round = r->place.round,
                      .local_world_size = r->o->nproc,
                      .order = r->o->node_rank,
                      .role = r->o->role,
                      .failure = r->agent.failure,
                      .code = r->agent.failure_code};
    struct cause cause;
    switch (what) {
    case AGENT_DO_SPAWN:
        run_spawn(r);
        return;
    case AGENT_DO_ORDER_STOP:
        order_stop(r);
        return;
    case AGENT_DO_ORDER_ABORT:
        begin_ending(r);
        workers_order(&r->workers, DT_ORDER_ABORT);
        return;
    case AGENT_DO_TERM:
        end_workers(r, r->agent.signal);
        return;
    case AGENT_DO_KILL:
        kill_all(r);
        return;
    case AGENT_DO_GRACE:
        if (!uv_is_active((uv_handle_t *)&r->grace)) {
            run_start_grace(r, run_grace_s(r));
        }
        return;
    case AGENT_DO_EXIT:
        exit_job(r);
        return;
    case AGENT_DO_TELL_JOIN:
        r->join_s = dt_now_s();
        e.kind = EVENT_JOIN;
        break;
    case AGENT_DO_TELL_FAILED:
        r->told_failed = true;
        e.kind = EVENT_FAILED;
        failures_progress(&r->failures, &r->workers);
        run_first_failure(r, &e, &cause);
        e.step = r->failures.step;
        e.saved_step = r->failures.saved_step;
        break;
    case AGENT_DO_TELL_DONE:
        e.kind = EVENT_DONE;
        break;
    case AGENT_DO_TELL_STOPPED:
        e.kind = EVENT_STOPPED;
        break;
    case AGENT_DO_TELL_STOP:
        e.kind = EVENT_STOP;
        e.code = r->wish != 0 ? 128 + r->wish : r->agent.code;
        e.saved = agent_has_saved(&r->agent);
        break;
    case AGENT_DO_TELL_KILL:
        e.kind = EVENT_STOP;
        e.code = COORDINATOR_KILL;
        break;
    }
    hosts_tell(r->hosts, &e);
    /* whoever was told may be gone, and a round would begin without it */
    if (what == AGENT_DO_TELL_JOIN && r->wish != 0 && !r->exiting) {
        e.kind = EVENT_STOP;
        e.code = 128 + r->wish;
        e.saved = agent_has_saved(&r->agent);
        hosts_tell(r->hosts, &e);
    }
}

/* A worker failed by itself while the round was being ended because of others: they may only
 * have lost it, or end with its words, so its cause counts more. */
static void tell_late_failure(struct run *r)
{
    struct event e = {
        .kind = EVENT_FAILED, .round = r->place.round, .code = DT_EXIT_FAILED, .step = -1, .saved_step = -1};
    if (r->told_failed || r->agent.stop_wanted || r->agent.verdict || r->failures.count == 0) {
        return;
    }
    struct cause cause;
    bool told_others = failures_own_up(&r->failures, hosts_cause(r->hosts, r->place.round).cause);
    run_first_failure(r, &e, &cause);
    if ((!e.weak || told_others) && !r->failures.list[r->failures.root].stopped_by_us) {
        hosts_tell(r->hosts, &e);
    }
}

void run_drain(struct run *r)
{
    if (r->draining) {
        return;
    }
    r->draining = true;
    do {
        while (r->taken < r->queued && !r->exiting) {
            int at = r->taken++ % QUEUE;
            bool gone = r->queue[at].event == AGENT_ON_GONE;
            agent_step(&r->agent, r->queue[at].event, r->queue[at].value);
            dt_log(DT_LOG_DEBUG, "agent", "event %d value %d state %s", (int)r->queue[at].event, r->queue[at].value,
                   agent_state_name(r->agent.state));
            if (gone) {
                tell_late_failure(r);
                run_say_cause(r);
            }
            for (int i = 0; i < r->agent.do_count; i++) {
                do_one(r, r->agent.todo[i]);
            }
        }
        check_gone(r);
    } while (r->taken < r->queued && !r->exiting);
    r->draining = false;
}

/* ---- what hosts answer ---- */

static void on_act(void *user, const struct action *a, const struct hosts_meeting *meeting)
{
    struct run *r = user;
    switch (a->kind) {
    case ACTION_START:
        r->place = a->place;
        r->meeting = *meeting;
        run_post(r, AGENT_ON_START, 0);
        break;
    case ACTION_END:
        run_say_lost(r);
        if (r->agent.state == AGENT_FINISHING) {
            run_say_elsewhere(r);
        }
        run_post(r, AGENT_ON_END, 0);
        break;
    case ACTION_STOP:
        r->stop_signal = a->code == COORDINATOR_KILL ? r->stop_signal : a->code > 128 ? a->code - 128 : 0;
        run_post(r, AGENT_ON_STOP, a->code);
        break;
    case ACTION_PAUSE:
        run_say_pause(r);
        run_post(r, AGENT_ON_PAUSE, a->code);
        break;
    case ACTION_LEAVE:
        r->left = true;
        r->alone = hosts_view(r->hosts).alone;
        r->stop_signal = a->code > 128 ? a->code - 128 : 0;
        run_post(r, AGENT_ON_LEAVE, a->code);
        break;
    case ACTION_FINISH:
    case ACTION_REFUSE:
        run_post(r, AGENT_ON_VERDICT, a->code);
        break;
    }
}

static void on_settle(void *user)
{
    run_drain(user);
}

/* ---- begin and end ---- */

/* --metrics_endpoint. What only looks on costs no job: without it a line, and the job goes on. */
static void open_metrics(struct run *r)
{
    const struct options *o = r->o;
    struct exporter_options m = {.host = o->metrics_host,
                                 .port = o->metrics_port,
                                 .range = dt_ports_but(o->port_lo, o->port_hi, o->master_port),
                                 .describe = run_metrics,
                                 .user = r};
    struct dt_error err;
    if (o->metrics_host == NULL) {
        return;
    }
    if (exporter_open(&r->metrics, &r->loop, &m, &err) != 0) {
        console_say("dtrun: warning: %s: %s; the job goes on without it\n", options_source(o, OPTION_metrics_endpoint),
                    err.text);
    } else if (o->metrics_port == 0) { /* nobody could guess it */
        console_say("dtrun: metrics of host %s at %s\n", r->failures.host, exporter_url(r->metrics));
    }
}

static bool is_from_outside(const struct options *o, enum option option)
{
    const char *source = options_source(o, option);
    return strcmp(source, "default") != 0 && source[0] != '-';
}

/* Sizes that were not all typed: what the surroundings said, or did not say, as a variable that
 * was set for nothing leaves one worker. Of several hosts the first one says it, where they are
 * numbered; with --hostfile they have their sizes from there. */
static void say_choices(const struct options *o)
{
    bool counted = !isdigit((unsigned char)o->nproc_text[0]),
         typed = options_source(o, OPTION_nproc_per_node)[0] == '-';
    bool hosts = is_from_outside(o, OPTION_nnodes) && (o->nnodes_max > 1 || !typed);
    bool first =
        o->here.node_rank == 0 && o->local_first == 0 && (strcmp(o->rdzv_backend, "static") != 0 || o->node_rank == 0);
    if ((!counted && !hosts && !is_from_outside(o, OPTION_nproc_per_node)) || !first || o->leashed) {
        return;
    }
    struct dt_text text;
    dt_text_init(&text);
    env_choices(o, &text);
    console_say("dtrun: %s\n", dt_text_str(&text));
    dt_text_clear(&text);
}

static int open_all(struct run *r, struct dt_error *err)
{
    run_open_timers(r);
    if (run_watch_signals(r, err) != 0) {
        return -1;
    }
    r->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (r->null_fd < 0) {
        (void)dt_fail_errno(err, "/dev/null, which is the workers' standard input");
        err->status = DT_INVALID; /* another try finds it no more than this one */
        return -1;
    }
    if (r->output_dir != NULL && dt_file_mkdirs(r->output_dir, err) != 0) {
        err->status = DT_INVALID; /* nothing was started, and another try finds the same */
        return dt_wrap(err, "output_dir");
    }
    if (logs_open(&r->logs, &r->loop, r->o, err) != 0) {
        return -1;
    }
    if (hosts_open(&r->hosts, &r->loop, r->o,
                   &(struct hosts_hooks){.user = r,
                                         .act = on_act,
                                         .settle = on_settle,
                                         .rows = run_status_rows,
                                         .gathered = run_status_gathered},
                   err) != 0) {
        return -1;
    }
    if (r->o->leash_key) {
        leash_forget_key(r->o->key_file);
    }
    if (r->output_dir != NULL) {
        r->events_path = dt_format("%s/events.jsonl", r->output_dir);
    } else if (logs_dir(r->logs) != NULL) {
        r->events_path = dt_format("%s/events.jsonl", logs_dir(r->logs));
    }
    run_starts_open(r);
    struct dt_error hidden;
    if (status_open(&r->status, &r->loop, r->o->run_id, run_status, r, &hidden) != 0) {
        console_say("dtrun: warning: --status will not find this job: %s\n", hidden.text);
    } else {
        status_set_prepare(r->status, run_status_ask);
    }
    open_metrics(r);
    r->watch_options = (struct watch_options){.pages = r->agent.options.bundled,
                                              .limit_s = r->o->hang_timeout_s,
                                              .stopped_s = STOPPED_S / r->o->time_scale,
                                              .output_s = output_of,
                                              .user = r};
    if (run_watchdog_open(r, err) != 0) {
        return -1;
    }
    if (r->watch_options.pages || r->watch_options.limit_s > 0 || r->watch_options.deaf_s > 0) {
        double step_s = r->o->hang_timeout_s > 0 && r->o->hang_timeout_s < 4 ? r->o->hang_timeout_s / 4 : 1;
        r->watch_options.look_s = step_s;
        (void)uv_timer_start(&r->watch, r->watch.timer_cb, 1000, (uint64_t)(step_s * 1e3) + 1);
    }
    return 0;
}

static void close_handle(uv_handle_t *handle, void *user)
{
    struct run *r = user;
    bool ours = handle == (uv_handle_t *)&r->signals || handle->data == r;
    if (ours && !uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

static void close_all(struct run *r)
{
    struct dt_text lost;
    dt_text_init(&lost);
    if (r->hosts != NULL && r->workers.running_count == 0) {
        hosts_await_others(r->hosts);
    }
    if (r->status != NULL) {
        status_close(r->status);
        r->status = NULL; /* answers of other hosts may still come */
    }
    if (r->metrics != NULL) {
        exporter_close(r->metrics);
    }
    if (r->timers != NULL) {
        timer_file_close(r->timers);
    }
    ras_close(r->ras);
    if (r->logs != NULL) {
        bool unasked = r->events_path != NULL && r->output_dir == NULL && logs_unasked(r->logs);
        if (unasked && !r->failure_told) {
            (void)unlink(r->events_path); /* nobody looks for it, and the folder goes when it is
                                           * empty */
        } else if (unasked && r->record_lost[0] != '\0') {
            console_say("dtrun: the record of the failure could not be written: %s\n", r->record_lost);
        } else if (unasked) { /* nobody could guess it */
            console_say("dtrun: the record of the failure is %s\n", r->events_path);
        }
        logs_close(r->logs, 5, &lost);
    }
    if (r->leash.user != NULL) {
        leash_close(&r->leash);
    }
    hosts_close(r->hosts);
    uv_walk(&r->loop, close_handle, r);
    (void)uv_run(&r->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&r->loop);
    hosts_free(r->hosts);
    console_write(dt_text_str(&lost), lost.size);
    dt_text_clear(&lost);
    failures_clear(&r->failures);
    workers_close(&r->workers);
    if (r->signal_fd >= 0) {
        (void)close(r->signal_fd);
    }
    if (r->null_fd >= 0) {
        (void)close(r->null_fd);
    }
    free(r->output_dir);
    free(r->events_path);
    free(r->entry_point);
    free(r->bindings);
}

static int run_all(const struct options *o, char *const *env)
{
    struct run *r = &run;
    struct dt_error err;
    *r = (struct run){.o = o,
                      .env = env,
                      .signal_fd = -1,
                      .null_fd = -1,
                      .code = DT_EXIT_TEMPORARY,
                      .begin_s = dt_now_s(),
                      .failures = {.root = -1}};
    r->scheduled = strcmp(o->here.name, "none") != 0;
    r->is_train = o->bundled && strcmp(o->program, "train") == 0;
    say_choices(o);
    if (run_open_signals(r, &err) != 0 || workers_open(&r->workers, o->nproc, o->nnodes_min - 1, &err) != 0) {
        console_say("dtrun: %s\n", err.text);
        return err.status == DT_INVALID ? DT_EXIT_USAGE : DT_EXIT_TEMPORARY;
    }
    if (r->is_train) {
        int code = plan_run(o, &r->workers, env, r->signal_fd, &r->output_dir, &r->on_gpus);
        if (code >= 0) {
            workers_close(&r->workers);
            run_tell_failed_check(o, code, r->signal_fd);
            return code;
        }
    }
    int refused = run_numa_open(r);
    if (refused >= 0) {
        run_tell_failed_check(o, refused, r->signal_fd);
        free(r->bindings);
        workers_close(&r->workers);
        free(r->output_dir);
        return refused;
    }
    agent_init(&r->agent, &(struct agent_options){.bundled = o->bundled,
                                                  .exit_code_worker = o->exit_code_worker,
                                                  .permanent_codes = o->permanent_codes,
                                                  .permanent_code_count = o->permanent_code_count});
    int failed = uv_loop_init(&r->loop);
    if (failed != 0) {
        console_say("dtrun: event loop: %s\n", uv_strerror(failed));
        free(r->bindings);
        workers_close(&r->workers);
        free(r->output_dir);
        return DT_EXIT_TEMPORARY;
    }
    failures_begin(&r->failures);
    if (open_all(r, &err) == 0) {
        if (env_sets_omp(o, env) && !o->bundled) {
            console_say("%s\n", env_omp_warning());
        }
        do_one(r, AGENT_DO_TELL_JOIN);
        run_drain(r);
        if (!r->exiting) {
            (void)uv_run(&r->loop, UV_RUN_DEFAULT);
        }
        run_say_end(r);
        run_torch_end(r);
        run_event(r, "end", "\"code\":%d,\"rounds\":%d,\"restarts\":%d", r->code, r->place.round,
                  hosts_view(r->hosts).restarts_used);
    } else {
        console_say("dtrun: %s\n", err.text);
        r->code = err.status == DT_INVALID ? DT_EXIT_USAGE : DT_EXIT_TEMPORARY;
        if (r->hosts == NULL) { /* a folder, or what else only this host lacks */
            run_tell_failed_check(o, r->code, r->signal_fd);
        }
    }
    close_all(r);
    /* the others go on, perhaps in the same job of the scheduler */
    bool asks = r->left ? o->here.node_count <= 1 : r->place.group_rank == 0;
    bool warned = r->is_train && r->place.round == 0 && (r->code == 128 + SIGUSR1 || r->code == 128 + SIGUSR2);
    if (warned) { /* while it waited for hosts: nothing was to be saved, and the same command
                   * continues */
        r->stop_signal = r->code - 128;
        r->code = DT_EXIT_STOPPED;
        asks = o->here.node_rank == 0;
    }
    if (r->code == DT_EXIT_STOPPED && asks && requeue_wanted(o, r->stop_signal)) {
        if (requeue_ask(o, env, &err) != 0) {
            console_say("dtrun: %s\n", err.text);
        } else {
            console_say("dtrun: asked %s to run job %s again (--requeue)\n", o->here.name, o->here.requeue.id);
        }
    }
    return r->code == DT_EXIT_STOPPED ? o->requeue_exit_code : r->code;
}

int run_job(const struct options *o, char *const *env)
{
    struct dt_error err;
    if (console_open(1, 2, &err) != 0) {
        console_say("dtrun: %s\n", err.text);
        return DT_EXIT_TEMPORARY;
    }
    int code = run_all(o, env);
    console_close(CONSOLE_STALL_S);
    return code;
}
