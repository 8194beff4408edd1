/* A job on this host from its options to its exit code: opens everything it needs, runs the loop
 * (job.c), closes everything, and asks the scheduler to run the job again. */
#include "launcher/job/run.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "launcher/output/console.h"
#include "launcher/options/env.h"
#include "launcher/workers/guard.h"
#include "launcher/job/plan.h"
#include "launcher/job/requeue.h"
#include "launcher/job/job.h"
#include "launcher/options/rendezvous.h"

#include <ctype.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* a stopped worker without a limit of its own, as during a save, counts as lost after this time */
#define STOPPED_S 60.0

/* one per process; static because the tables of a thousand nodes do not belong on the stack */
static struct job the_job;

static double output_of(void *user, int local_rank)
{
    const struct job *job = user;
    return logs_last_output_s(job->logs, local_rank);
}

/* --metrics_endpoint. An observer must not stop a job: if the endpoint fails, a line says so and
 * the job goes on. */
static void open_metrics(struct job *job)
{
    const struct options *o = job->o;
    struct exporter_options m = {.host = o->metrics_host,
                                 .port = o->metrics_port,
                                 .range = dt_ports_but(o->port_lo, o->port_hi, o->master_port),
                                 .describe = job_metrics,
                                 .user = job};
    struct dt_error err;
    if (o->metrics_host == NULL) {
        return;
    }
    if (exporter_open(&job->metrics, &job->loop, &m, &err) != 0) {
        console_say("dtrun: warning: %s: %s; the job goes on without it\n", options_source(o, OPTION_metrics_endpoint),
                    err.text);
    } else if (o->metrics_port == 0) { /* nobody could guess it */
        console_say("dtrun: metrics of host %s at %s\n", job->failures.host, exporter_url(job->metrics));
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
    bool first = o->here.node_rank == 0 && o->local_first == 0 && (!o->rdzv->by_rank || o->node_rank == 0);
    if ((!counted && !hosts && !is_from_outside(o, OPTION_nproc_per_node)) || !first || o->leashed) {
        return;
    }
    struct dt_text text;
    dt_text_init(&text);
    env_choices(o, &text);
    console_say("dtrun: %s\n", dt_text_str(&text));
    dt_text_clear(&text);
}

static int open_all(struct job *job, struct dt_error *err)
{
    job_open_timers(job);
    if (job_watch_signals(job, err) != 0) {
        return -1;
    }
    job->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (job->null_fd < 0) {
        (void)dt_fail_errno(err, "/dev/null, which is the workers' standard input");
        err->status = DT_INVALID; /* another try finds it no more than this one */
        return -1;
    }
    if (job->output_dir != NULL && dt_file_mkdirs(job->output_dir, err) != 0) {
        err->status = DT_INVALID; /* nothing was started, and another try finds the same */
        return dt_wrap(err, "output_dir");
    }
    if (logs_open(&job->logs, &job->loop, job->o, err) != 0) {
        return -1;
    }
    struct hosts_hooks hooks = job_hosts_hooks(job);
    if (hosts_open(&job->hosts, &job->loop, job->o, &hooks, err) != 0) {
        return -1;
    }
    if (job->o->leash_key) {
        leash_forget_key(job->o->key_file);
    }
    if (job->output_dir != NULL) {
        job->events_path = dt_format("%s/events.jsonl", job->output_dir);
    } else if (logs_dir(job->logs) != NULL) {
        job->events_path = dt_format("%s/events.jsonl", logs_dir(job->logs));
    }
    job_starts_open(job);
    struct dt_error hidden;
    if (status_open(&job->status, &job->loop, job->o->run_id, job_status, job, &hidden) != 0) {
        console_say("dtrun: warning: --status will not find this job: %s\n", hidden.text);
    } else {
        status_set_prepare(job->status, job_status_ask);
    }
    open_metrics(job);
    job->watching.options = (struct watch_options){.pages = job->agent.options.bundled,
                                                   .limit_s = job->o->hang_timeout_s,
                                                   .stopped_s = STOPPED_S / job->o->time_scale,
                                                   .output_s = output_of,
                                                   .user = job};
    if (job_watchdog_open(job, err) != 0) {
        return -1;
    }
    if (job->watching.options.pages || job->watching.options.limit_s > 0 || job->watching.options.deaf_s > 0) {
        double step_s = job->o->hang_timeout_s > 0 && job->o->hang_timeout_s < 4 ? job->o->hang_timeout_s / 4 : 1;
        job->watching.options.look_s = step_s;
        (void)uv_timer_start(&job->timer.watch, job->timer.watch.timer_cb, 1000, (uint64_t)(step_s * 1e3) + 1);
    }
    return 0;
}

static void close_handle(uv_handle_t *handle, void *user)
{
    struct job *job = user;
    bool ours = handle == (uv_handle_t *)&job->signals.poll || handle->data == job;
    if (ours && !uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

static void close_all(struct job *job)
{
    struct dt_text lost;
    dt_text_init(&lost);
    if (job->hosts != NULL && job->workers.running_count == 0) {
        hosts_await_others(job->hosts);
    }
    if (job->status != NULL) {
        status_close(job->status);
        job->status = NULL; /* answers of other hosts may still come */
    }
    if (job->metrics != NULL) {
        exporter_close(job->metrics);
    }
    if (job->watching.timers != NULL) {
        timer_file_close(job->watching.timers);
    }
    ras_close(job->watching.ras);
    if (job->logs != NULL) {
        bool unasked = job->events_path != NULL && job->output_dir == NULL && logs_unasked(job->logs);
        if (unasked && !job->said.failure) {
            (void)unlink(job->events_path); /* nobody looks for it, and the folder goes when it is
                                           * empty */
        } else if (unasked && job->said.record_lost[0] != '\0') {
            console_say("dtrun: the record of the failure could not be written: %s\n", job->said.record_lost);
        } else if (unasked) { /* nobody could guess it */
            console_say("dtrun: the record of the failure is %s\n", job->events_path);
        }
        logs_close(job->logs, 5, &lost);
    }
    if (job->leash.user != NULL) {
        leash_close(&job->leash);
    }
    hosts_close(job->hosts);
    uv_walk(&job->loop, close_handle, job);
    (void)uv_run(&job->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&job->loop);
    hosts_free(job->hosts);
    console_write(dt_text_str(&lost), lost.size);
    dt_text_clear(&lost);
    failures_clear(&job->failures);
    workers_close(&job->workers);
    if (job->signals.fd >= 0) {
        (void)close(job->signals.fd);
    }
    if (job->null_fd >= 0) {
        (void)close(job->null_fd);
    }
    free(job->output_dir);
    free(job->events_path);
    free(job->entry_point);
    free(job->bindings);
}

static int run_all(const struct options *o, char *const *env)
{
    struct job *job = &the_job;
    struct dt_error err;
    *job = (struct job){.o = o,
                        .env = env,
                        .signals = {.fd = -1},
                        .null_fd = -1,
                        .code = DT_EXIT_TEMPORARY,
                        .begin_s = dt_now_s(),
                        .failures = {.root = -1}};
    job->stop.scheduled = strcmp(o->here.name, "none") != 0;
    job->is_train = o->bundled == BUNDLED_TRAIN;
    say_choices(o);
    if (job_open_signals(job, &err) != 0 || workers_open(&job->workers, o->nproc, o->nnodes_min - 1, &err) != 0) {
        console_say("dtrun: %s\n", err.text);
        return err.status == DT_INVALID ? DT_EXIT_USAGE : DT_EXIT_TEMPORARY;
    }
    if (job->is_train) {
        int code = plan_run(o, &job->workers, env, job->signals.fd, &job->output_dir, &job->on_gpus);
        if (code >= 0) {
            workers_close(&job->workers);
            job_tell_failed_check(o, code, job->signals.fd);
            return code;
        }
    }
    int refused = job_numa_open(job);
    if (refused >= 0) {
        job_tell_failed_check(o, refused, job->signals.fd);
        free(job->bindings);
        workers_close(&job->workers);
        free(job->output_dir);
        return refused;
    }
    agent_init(&job->agent, &(struct agent_options){.bundled = o->bundled,
                                                    .exit_code_worker = o->exit_code_worker,
                                                    .permanent_codes = o->permanent_codes,
                                                    .permanent_code_count = o->permanent_code_count});
    int failed = uv_loop_init(&job->loop);
    if (failed != 0) {
        console_say("dtrun: event loop: %s\n", uv_strerror(failed));
        free(job->bindings);
        workers_close(&job->workers);
        free(job->output_dir);
        return DT_EXIT_TEMPORARY;
    }
    failures_begin(&job->failures);
    if (open_all(job, &err) == 0) {
        if (env_sets_omp(o, env) && !o->bundled) {
            console_say("%s\n", env_omp_warning());
        }
        job_join(job);
        if (!job->exiting) {
            (void)uv_run(&job->loop, UV_RUN_DEFAULT);
        }
        job_say_end(job);
        job_torch_end(job);
        job_event(job, "end", "\"code\":%d,\"rounds\":%d,\"restarts\":%d", job->code, job->round.place.round,
                  hosts_view(job->hosts).restarts_used);
    } else {
        console_say("dtrun: %s\n", err.text);
        job->code = err.status == DT_INVALID ? DT_EXIT_USAGE : DT_EXIT_TEMPORARY;
        if (job->hosts == NULL) { /* a folder, or what else only this host lacks */
            job_tell_failed_check(o, job->code, job->signals.fd);
        }
    }
    close_all(job);
    /* the others go on, perhaps in the same job of the scheduler */
    bool asks = job->stop.left ? o->here.node_count <= 1 : job->round.place.group_rank == 0;
    bool warned =
        job->is_train && job->round.place.round == 0 && (job->code == 128 + SIGUSR1 || job->code == 128 + SIGUSR2);
    if (warned) { /* while it waited for hosts: nothing was to be saved, and the same command
                   * continues */
        job->stop.signal = job->code - 128;
        job->code = DT_EXIT_STOPPED;
        asks = o->here.node_rank == 0;
    }
    if (job->code == DT_EXIT_STOPPED && asks && requeue_wanted(o, job->stop.signal)) {
        if (requeue_ask(o, env, &err) != 0) {
            console_say("dtrun: %s\n", err.text);
        } else {
            console_say("dtrun: asked %s to run job %s again (--requeue)\n", o->here.name, o->here.requeue.id);
        }
    }
    return job->code == DT_EXIT_STOPPED ? o->requeue_exit_code : job->code;
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
