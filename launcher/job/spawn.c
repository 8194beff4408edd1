/* Starts the workers of a round: their environment, and what the agent prepares before. */
#include "launcher/output/console.h"
#include "launcher/options/env.h"
#include "launcher/workers/guard.h"
#include "launcher/workers/process.h"
#include "launcher/job/job.h"

#include "base/log.h"
#include "collectives/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BACKLOG 4096 /* the queue length that the store requests from the kernel */

/* Whether the terminal's input belongs to another job of the shell, as after `dtrun ... &`. The
 * kernel would not stop a worker that reads it, because workers have other sessions. */
static bool is_for_another_job(int terminal)
{
    pid_t reader = tcgetpgrp(terminal);
    return reader >= 0 && reader != guard_group();
}

static int spawn_one(struct job *job, int i, struct dt_arena *arena, struct dt_error *err)
{
    const struct options *o = job->o;
    const struct place *p = &job->round.place;
    struct spawn s = {0};
    char *path, **argv, **envp;
    char page[64], snapshots[64];
    int fds[2] = {-1, -1};
    /* the scheduler started an agent per worker */
    bool shared = o->world.local_total > 0, numbered = o->world.host_count > 0;
    (void)snprintf(page, sizeof page, "/proc/%d/fd/%d", (int)getpid(), job->workers.list[i].page_fd);
    (void)snprintf(snapshots, sizeof snapshots, "/proc/%d/fd/%d", (int)getpid(), job->workers.snapshot_fd);
    struct env_worker w = {.round = p->round,
                           .launch = job->round.meeting.launch,
                           .restart_count = p->restarts_used,
                           .local_rank = o->world.local_first + i,
                           .local_world_size = shared ? o->world.local_total : p->local_world_size,
                           .rank = p->rank + i,
                           .world_size = p->world_size,
                           .group_rank = numbered ? o->world.host_number : p->group_rank,
                           .group_world_size = numbered ? o->world.host_count : p->group_world_size,
                           .role_rank = p->role_rank + i,
                           .role_world_size = p->role_world_size,
                           .master_addr = job->round.meeting.master_addr,
                           .local_addr = hosts_view(job->hosts).address,
                           .master_port = job->round.meeting.master_port,
                           .use_agent_store = true,
                           .page = page,
                           .snapshots = job->workers.snapshot_fd >= 0 ? snapshots : NULL,
                           .error_file = logs_error_file(job->logs, i),
                           .timer_file = job->watching.timers != NULL ? timer_file_path(job->watching.timers) : NULL,
                           .log_dir = logs_worker_dir(job->logs, i),
                           .sizes = shared ? NULL : job->round.meeting.sizes,
                           .output_dir = job->output_dir,
                           .cpu_sharers = job->bindings != NULL && !shared ? job->bindings[i].sharers : 0};
    if (env_command(o, w.local_rank, job->env, arena, &path, &argv, err) != 0 ||
        env_build(o, &w, job->env, arena, &envp, err) != 0 || logs_streams(job->logs, i, fds, err) != 0) {
        return -1;
    }
    if (job->entry_point == NULL) {
        job->entry_point = dt_strdup(argv[0]);
        dt_log(DT_LOG_INFO, "agent", "program %s", path);
    }
    s.path = path;
    s.argv = argv;
    s.envp = envp;
    s.cpus = job->bindings != NULL ? &job->bindings[i].cpus : NULL;
    bool reads = (o->output.stdin_rank == OPTIONS_STDIN_ALL || o->output.stdin_rank == w.rank) &&
                 !is_for_another_job(STDIN_FILENO);
    s.stdin_fd = reads ? -1 : job->null_fd;
    s.stdout_fd = fds[0];
    s.stderr_fd = fds[1];
    int result = workers_spawn(&job->workers, i, &s, err);
    logs_spawned(job->logs, i);
    return result;
}

/* Warns that the kernel queues fewer connections at the worker store than will come at once. The
 * other connections try again a second later, or are refused. */
static void say_short_backlog(struct job *job)
{
    char text[32];
    dt_proc_read("/proc/sys/net/core/somaxconn", text, sizeof text);
    long most = strtol(text, NULL, 10);
    if (most <= 0 || most >= BACKLOG || most >= job->round.place.world_size || job->said.backlog) {
        return;
    }
    bool port = job->round.meeting.master_port == store_server_port(hosts_store(job->hosts));
    if (port && (job->round.place.group_rank == 0 || dt_net_is_here(job->round.meeting.master_addr))) {
        job->said.backlog = true;
        console_say("dtrun: warning: net.core.somaxconn is %ld, and %d workers connect to this host at once, which may "
                    "take seconds: sysctl "
                    "net.core.somaxconn=%d\n",
                    most, job->round.place.world_size, BACKLOG);
    }
}

/* Workers that were started already end because of this failure. If there are none, there is no
 * event worth a record. */
static void say_no_start(struct job *job, const char *cause)
{
    struct dt_text fields;
    dt_text_init(&fields);
    console_say("dtrun: %s\n", cause);
    (void)snprintf(job->round.no_start, sizeof job->round.no_start, "host %s: %s", job->failures.host, cause);
    dt_text_puts(&fields, "\"host\":");
    dt_text_json(&fields, job->failures.host, strlen(job->failures.host));
    dt_text_puts(&fields, ",\"cause\":");
    dt_text_json(&fields, cause, strlen(cause));
    job_event(job, "failure", "\"round\":%d,%s", job->round.place.round, dt_text_str(&fields));
    job->said.failure = job->said.failure || job->workers.running_count > 0;
    dt_text_clear(&fields);
}

void job_spawn(struct job *job)
{
    const struct place *p = &job->round.place;
    struct dt_error err;
    struct dt_arena arena;
    int result = 0;
    job_say_late(job);
    failures_begin(&job->failures);
    if (job->watching.timers != NULL) {
        timer_file_reset(job->watching.timers);
    }
    say_short_backlog(job);
    if (workers_begin(&job->workers, p->round, &err) != 0 ||
        logs_attempt(job->logs, p->restarts_used, p->local_world_size, p->rank, p->group_rank, p->world_size, &err) !=
            0) {
        result = -1;
    }
    for (int i = 0; result == 0 && i < p->local_world_size; i++) {
        dt_arena_init(&arena);
        result = spawn_one(job, i, &arena, &err);
        dt_arena_clear(&arena);
    }
    if (result != 0) {
        say_no_start(job, err.text);
        job_post(job, AGENT_ON_NO_START,
                 err.status == DT_INVALID || err.status == DT_NOT_FOUND ? DT_EXIT_USAGE : DT_EXIT_TEMPORARY);
        return;
    }
    dt_log(DT_LOG_INFO, "agent", "round %d node %d of %d ranks %d restarts %d port %d", p->round, p->group_rank,
           p->group_world_size, p->world_size, p->restarts_used, store_server_port(hosts_store(job->hosts)));
    job_torch_round(job);
    job_event(job, "round", "\"round\":%d,\"nodes\":%d,\"world_size\":%d,\"restarts\":%d", p->round,
              p->group_world_size, p->world_size, p->restarts_used);
}
