/* --event_log_handler=console: prints torchrun's events, one JSON object per line on stderr, in
 * torchrun's spelling, because some sites parse them. Our own events are in events.jsonl, whatever
 * this option is. */
#include "base/clock.h"
#include "launcher/job/job.h"
#include "launcher/options/rendezvous.h"
#include "launcher/output/console.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct torch_event {
    const char *state;
    const struct worker *worker; /* null: an event of the agent */
    int local_rank;
    bool joined;        /* the agent knows its ranks */
    double duration_ms; /* negative: none */
    bool failed;        /* exit_code, worker_pid and raw_error are set */
    int exit_code;
    const char *raw_error; /* JSON, or null */
};

static void add_member(struct dt_text *out, const char *name, const char *value)
{
    dt_text_printf(out, ", \"%s\": ", name);
    if (value != NULL) {
        dt_text_json(out, value, strlen(value));
    } else {
        dt_text_puts(out, "null");
    }
}

static void add_number(struct dt_text *out, const char *name, bool known, int value)
{
    dt_text_printf(out, known ? ", \"%s\": %d" : ", \"%s\": null", name, value);
}

/* The member "metadata" inside of metadata is JSON in a string. */
static void add_inside(const struct job *job, const struct torch_event *e, struct dt_text *out)
{
    struct dt_text inside;
    dt_text_init(&inside);
    const char *name = job->entry_point != NULL ? job->entry_point : job->o->program;
    const char *slash = strrchr(name, '/');
    if (e->joined) {
        dt_text_printf(&inside, "{\"group_world_size\": %d", job->round.place.group_world_size);
    } else {
        dt_text_puts(&inside, "{\"group_world_size\": null");
    }
    add_member(&inside, "entry_point", slash != NULL ? slash + 1 : name);
    if (e->worker != NULL) {
        dt_text_printf(&inside, ", \"local_rank\": [%d], \"role_rank\": [%d], \"role_world_size\": [%d]", e->local_rank,
                       job->round.place.role_rank + e->local_rank, job->round.place.role_world_size);
        dt_text_printf(&inside,
                       e->failed ? ", \"exit_code\": [%d], \"worker_pid\": [%d]"
                                 : ", \"exit_code\": [null], \"worker_pid\": [null]",
                       e->exit_code, (int)e->worker->pid);
    }
    dt_text_puts(&inside, "}");
    add_member(out, "metadata", dt_text_str(&inside));
    dt_text_clear(&inside);
}

static void say(const struct job *job, const struct torch_event *e)
{
    struct dt_text line;
    char pid[16];
    bool ended = strcmp(e->state, "START") != 0 && e->duration_ms < 0;
    dt_text_init(&line);
    dt_text_printf(&line,
                   "{\"name\": \"torchelastic.worker.status.%s\", \"source\": \"%s\", \"timestamp\": 0, \"metadata\": "
                   "{\"run_id\": ",
                   e->state, e->worker != NULL ? "WORKER" : "AGENT");
    dt_text_json(&line, job->o->run_id, strlen(job->o->run_id));
    add_number(&line, "global_rank", e->worker != NULL, job->round.place.rank + e->local_rank);
    add_number(&line, "group_rank", e->joined, job->round.place.group_rank);
    (void)snprintf(pid, sizeof pid, "%d", e->worker != NULL ? (int)e->worker->pid : 0);
    add_member(&line, "worker_id", e->worker != NULL ? pid : NULL);
    add_member(&line, "role", job->o->role);
    add_member(&line, "hostname", job->failures.host);
    add_member(&line, "state", e->state);
    add_number(&line, "total_run_time", true, ended ? (int)(dt_now_s() - job->begin_s) : 0);
    add_member(&line, "rdzv_backend", job->o->rdzv->name);
    add_member(&line, "raw_error", e->raw_error);
    add_inside(job, e, &line);
    add_number(&line, "agent_restarts", true, job->round.place.restarts_used);
    if (e->duration_ms >= 0) {
        dt_text_printf(&line, ", \"duration_ms\": %.3f}}\n", e->duration_ms);
    } else {
        dt_text_puts(&line, ", \"duration_ms\": null}}\n");
    }
    console_write(line.data, line.size);
    dt_text_clear(&line);
}

void job_torch_round(struct job *job)
{
    if (!job->o->torch_events) {
        return;
    }
    /* torchrun does not know the agent's ranks before the first round */
    bool again = job->torch_rounds++ > 0;
    say(job, &(struct torch_event){
                 .state = "RENDEZVOUS", .joined = again, .duration_ms = fmax(0, (dt_now_s() - job->join_s) * 1e3)});
    say(job, &(struct torch_event){.state = "ASSIGN_WORKER_RANKS", .joined = again, .duration_ms = 0});
    for (int i = 0; i < job->round.place.local_world_size; i++) {
        say(job,
            &(struct torch_event){
                .state = "START", .worker = &job->workers.list[i], .local_rank = i, .joined = true, .duration_ms = -1});
    }
}

/* The failure of this local rank; null: none. */
static const struct report_failure *failure_of(const struct job *job, int local_rank)
{
    for (int i = 0; i < job->failures.count; i++) {
        if (job->failures.list[i].local_rank == local_rank) {
            return &job->failures.list[i];
        }
    }
    return NULL;
}

void job_torch_end(const struct job *job)
{
    if (!job->o->torch_events || job->torch_rounds == 0) {
        return;
    }
    if (job->stop.wish != 0) {
        say(job, &(struct torch_event){
                     .state = "FAILED", .joined = true, .duration_ms = -1, .raw_error = "stopped by a signal"});
        return;
    }
    for (int i = 0; i < job->round.place.local_world_size; i++) {
        const struct report_failure *f = failure_of(job, i);
        struct torch_event e = {.worker = &job->workers.list[i], .local_rank = i, .joined = true, .duration_ms = -1};
        e.state = f != NULL ? "FAILED" : job->code == 0 ? "SUCCEEDED" : "TERMINATED";
        if (f != NULL) {
            e.failed = true;
            e.exit_code = f->exit_code;
            e.raw_error = f->raw != NULL ? f->raw : "{\"message\": \"<NONE>\"}";
        }
        say(job, &e);
    }
    /* the end of the agent */
    say(job, &(struct torch_event){.state = "SUCCEEDED", .joined = true, .duration_ms = -1});
}
