/* A round's workers are started: with what surroundings, and what of the agent is made ready
 * before. */
#include "launcher/output/console.h"
#include "launcher/options/env.h"
#include "launcher/workers/guard.h"
#include "launcher/workers/process.h"
#include "launcher/job/run_parts.h"

#include "base/log.h"
#include "collectives/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BACKLOG 4096 /* what the store asks the kernel for */

/* Whether what is typed at this terminal is for another job of the shell, as after `dtrun ...
 * &`. The kernel stops no worker that reads it: they have sessions of their own. */
static bool is_for_another_job(int terminal)
{
    pid_t reader = tcgetpgrp(terminal);
    return reader >= 0 && reader != guard_group();
}

static int spawn_one(struct run *r, int i, struct dt_arena *arena, struct dt_error *err)
{
    const struct options *o = r->o;
    const struct place *p = &r->place;
    struct spawn s = {0};
    char *path, **argv, **envp;
    char page[64];
    int fds[2] = {-1, -1};
    /* the scheduler started an agent per worker */
    bool shared = o->local_total > 0, numbered = o->host_count > 0;
    (void)snprintf(page, sizeof page, "/proc/%d/fd/%d", (int)getpid(), r->workers.list[i].page_fd);
    struct env_worker w = {.round = p->round,
                           .launch = r->meeting.launch,
                           .restart_count = p->restarts_used,
                           .local_rank = o->local_first + i,
                           .local_world_size = shared ? o->local_total : p->local_world_size,
                           .rank = p->rank + i,
                           .world_size = p->world_size,
                           .group_rank = numbered ? o->host_number : p->group_rank,
                           .group_world_size = numbered ? o->host_count : p->group_world_size,
                           .role_rank = p->role_rank + i,
                           .role_world_size = p->role_world_size,
                           .master_addr = r->meeting.master_addr,
                           .local_addr = hosts_view(r->hosts).address,
                           .master_port = r->meeting.master_port,
                           .use_agent_store = true,
                           .page = page,
                           .error_file = logs_error_file(r->logs, i),
                           .timer_file = r->timers != NULL ? timer_file_path(r->timers) : NULL,
                           .log_dir = logs_worker_dir(r->logs, i),
                           .sizes = shared ? NULL : r->meeting.sizes,
                           .output_dir = r->output_dir,
                           .cpu_sharers = r->bindings != NULL && !shared ? r->bindings[i].sharers : 0};
    if (env_command(o, w.local_rank, r->env, arena, &path, &argv, err) != 0 ||
        env_build(o, &w, r->env, arena, &envp, err) != 0 || logs_streams(r->logs, i, fds, err) != 0) {
        return -1;
    }
    if (r->entry_point == NULL) {
        r->entry_point = dt_strdup(argv[0]);
        dt_log(DT_LOG_INFO, "agent", "program %s", path);
    }
    s.path = path;
    s.argv = argv;
    s.envp = envp;
    s.cpus = r->bindings != NULL ? &r->bindings[i].cpus : NULL;
    bool reads = (o->stdin_rank == OPTIONS_STDIN_ALL || o->stdin_rank == w.rank) && !is_for_another_job(STDIN_FILENO);
    s.stdin_fd = reads ? -1 : r->null_fd;
    s.stdout_fd = fds[0];
    s.stderr_fd = fds[1];
    int result = workers_spawn(&r->workers, i, &s, err);
    logs_spawned(r->logs, i);
    return result;
}

/* The kernel lets fewer connections wait at the worker store than will come at once: the others
 * try again a second later, or are refused. */
static void say_short_backlog(struct run *r)
{
    char text[32];
    process_read("/proc/sys/net/core/somaxconn", text, sizeof text);
    long most = strtol(text, NULL, 10);
    if (most <= 0 || most >= BACKLOG || most >= r->place.world_size || r->backlog_said) {
        return;
    }
    bool port = r->meeting.master_port == store_server_port(hosts_store(r->hosts));
    if (port && (r->place.group_rank == 0 || dt_net_is_here(r->meeting.master_addr))) {
        r->backlog_said = true;
        console_say("dtrun: warning: net.core.somaxconn is %ld, and %d workers connect to this host at once, which may "
                    "take seconds: sysctl "
                    "net.core.somaxconn=%d\n",
                    most, r->place.world_size, BACKLOG);
    }
}

/* Those that were started meanwhile end for it. Where there are none, nothing has happened that
 * a record would be kept for. */
static void say_no_start(struct run *r, const char *cause)
{
    struct dt_text fields;
    dt_text_init(&fields);
    console_say("dtrun: %s\n", cause);
    (void)snprintf(r->no_start, sizeof r->no_start, "host %s: %s", r->failures.host, cause);
    dt_text_puts(&fields, "\"host\":");
    dt_text_json(&fields, r->failures.host, strlen(r->failures.host));
    dt_text_puts(&fields, ",\"cause\":");
    dt_text_json(&fields, cause, strlen(cause));
    run_event(r, "failure", "\"round\":%d,%s", r->place.round, dt_text_str(&fields));
    r->failure_told = r->failure_told || r->workers.running_count > 0;
    dt_text_clear(&fields);
}

void run_spawn(struct run *r)
{
    const struct place *p = &r->place;
    struct dt_error err;
    struct dt_arena arena;
    int result = 0;
    r->ending = r->gone_posted = r->killed = r->left_told = false;
    r->left_since_s = 0;
    r->no_start[0] = '\0';
    run_say_late(r);
    r->told_failed = false;
    failures_begin(&r->failures);
    if (r->timers != NULL) {
        timer_file_reset(r->timers);
    }
    say_short_backlog(r);
    if (workers_begin(&r->workers, p->round, &err) != 0 ||
        logs_attempt(r->logs, p->restarts_used, p->local_world_size, p->rank, p->group_rank, p->world_size, &err) !=
            0) {
        result = -1;
    }
    for (int i = 0; result == 0 && i < p->local_world_size; i++) {
        dt_arena_init(&arena);
        result = spawn_one(r, i, &arena, &err);
        dt_arena_clear(&arena);
    }
    if (result != 0) {
        say_no_start(r, err.text);
        run_post(r, AGENT_ON_NO_START,
                 err.status == DT_INVALID || err.status == DT_NOT_FOUND ? DT_EXIT_USAGE : DT_EXIT_TEMPORARY);
        return;
    }
    dt_log(DT_LOG_INFO, "agent", "round %d node %d of %d ranks %d restarts %d port %d", p->round, p->group_rank,
           p->group_world_size, p->world_size, p->restarts_used, store_server_port(hosts_store(r->hosts)));
    run_torch_round(r);
    run_event(r, "round", "\"round\":%d,\"nodes\":%d,\"world_size\":%d,\"restarts\":%d", p->round, p->group_world_size,
              p->world_size, p->restarts_used);
}
