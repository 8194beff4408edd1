/* What torchrun's variables ask to watch: timers that workers set themselves, and variables that
 * have no effect here. Also NCCL's report about workers that hang. */
#include "launcher/job/job.h"
#include "launcher/output/console.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* a hanging worker lives at most so much longer while NCCL is asked; ranks that do not answer NCCL
 * use up some of that */
#define RAS_S 4.0

struct worker *job_worker_of(struct job *job, pid_t pid)
{
    pid_t leader = getsid(pid);
    for (int i = 0; i < job->workers.count; i++) {
        struct worker *one = &job->workers.list[i];
        if (one->running && one->pid > 0 && (one->pid == pid || one->pid == leader)) {
            return one;
        }
    }
    return NULL;
}

static bool is_ours(void *user, pid_t pid)
{
    return job_worker_of(user, pid) != NULL;
}

static void on_expired(void *user, pid_t pid, int signal, const char *scope)
{
    struct job *job = user;
    struct worker *one = job_worker_of(job, pid);
    char name[32], words[sizeof one->note];
    const char *after = signal > 0 ? report_signal_name(signal, name, sizeof name) : "no signal was wanted";
    (void)snprintf(words, sizeof words, "watchdog timer %.100s is over: %s", scope, after);
    dt_text_make_harmless(words, false);
    if (one->pid == pid && signal > 0) {
        /* the cause line if the worker ends of it */
        (void)snprintf(one->note, sizeof one->note, "%s", words);
        return;
    }
    int i = (int)(one - job->workers.list);
    console_say("dtrun: host %s rank %d (local %d, pid %d): %s\n", job->failures.host, job->round.place.rank + i, i,
                (int)pid, words);
}

static void on_nccl(void *user)
{
    job_hung_end(user);
}

bool job_ask_nccl(struct job *job)
{
    /* ranks of other hosts have time limits, too */
    double share_s = job->watching.options.limit_s > 0 ? fmax(job->watching.options.limit_s / 8, 1) : RAS_S;
    job->watching.ras = ras_open(&job->loop, &(struct ras_options){.address = options_getenv(job->env, "NCCL_RAS_ADDR"),
                                                                   .limit_s = fmin(share_s, RAS_S),
                                                                   .user = job,
                                                                   .is_ours = is_ours,
                                                                   .done = on_nccl});
    return job->watching.ras != NULL;
}

void job_say_nccl(struct job *job)
{
    struct dt_text lines, text;
    dt_text_init(&lines);
    dt_text_init(&text);
    ras_text(job->watching.ras, "  ", &lines);
    if (lines.size > 0) {
        console_say("dtrun: host %s: what NCCL's ranks say of themselves (RAS):\n%s", job->failures.host,
                    dt_text_str(&lines));
        ras_text(job->watching.ras, NULL, &text);
        dt_text_reset(&lines);
        dt_text_json(&lines, text.data, text.size);
        job_event(job, "nccl_status", "\"round\":%d,\"text\":%s", job->round.place.round, dt_text_str(&lines));
    }
    dt_text_clear(&lines);
    dt_text_clear(&text);
}

int job_watchdog_open(struct job *job, struct dt_error *err)
{
    double seconds;
    const char *enabled = options_getenv(job->env, "TORCHELASTIC_ENABLE_FILE_TIMER");
    const char *deaf = options_getenv(job->env, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT");
    if (deaf != NULL && dt_parse_double(deaf, &seconds) && seconds > 0) {
        job->watching.options.deaf_s = seconds / job->o->time_scale;
    }
    if (options_getenv(job->env, "TORCHELASTIC_HEALTH_CHECK_PORT") != NULL) {
        console_say("dtrun: TORCHELASTIC_HEALTH_CHECK_PORT: has no effect, as in torchrun's public version; ask with "
                    "dtrun --status\n");
    }
    if (enabled == NULL || strcmp(enabled, "1") != 0) {
        return 0;
    }
    struct timer_file_hooks hooks = {.user = job, .is_ours = is_ours, .expired = on_expired};
    return timer_file_open(&job->watching.timers, &job->loop, options_getenv(job->env, "TORCHELASTIC_TIMER_FILE"),
                           &hooks, err);
}
