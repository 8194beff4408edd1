/* What torchrun watches when its variables ask for it: timers that workers set themselves, and
 * the variables that have no effect here. And what NCCL says of workers that hang. */
#include "launcher/job/job.h"
#include "launcher/output/console.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* a worker that hangs lives so much longer, at most, while NCCL is asked; ranks that do not
 * answer it take some of that */
#define RAS_S 4.0

struct worker *run_worker_of(struct run *r, pid_t pid)
{
    pid_t leader = getsid(pid);
    for (int i = 0; i < r->workers.count; i++) {
        struct worker *one = &r->workers.list[i];
        if (one->running && one->pid > 0 && (one->pid == pid || one->pid == leader)) {
            return one;
        }
    }
    return NULL;
}

static bool is_ours(void *user, pid_t pid)
{
    return run_worker_of(user, pid) != NULL;
}

static void on_expired(void *user, pid_t pid, int signal, const char *scope)
{
    struct run *r = user;
    struct worker *one = run_worker_of(r, pid);
    char name[32], words[sizeof one->note];
    const char *after = signal > 0 ? report_signal_name(signal, name, sizeof name) : "no signal was wanted";
    (void)snprintf(words, sizeof words, "watchdog timer %.100s is over: %s", scope, after);
    dt_text_make_harmless(words, false);
    if (one->pid == pid && signal > 0) {
        /* the cause line, should it end of it */
        (void)snprintf(one->note, sizeof one->note, "%s", words);
        return;
    }
    int i = (int)(one - r->workers.list);
    console_say("dtrun: host %s rank %d (local %d, pid %d): %s\n", r->failures.host, r->place.rank + i, i, (int)pid,
                words);
}

static void on_nccl(void *user)
{
    run_hung_end(user);
}

bool run_ask_nccl(struct run *r)
{
    /* ranks of other hosts lose patience, too */
    double share_s = r->watch_options.limit_s > 0 ? fmax(r->watch_options.limit_s / 8, 1) : RAS_S;
    r->ras = ras_open(&r->loop, &(struct ras_options){.address = options_getenv(r->env, "NCCL_RAS_ADDR"),
                                                      .limit_s = fmin(share_s, RAS_S),
                                                      .user = r,
                                                      .is_ours = is_ours,
                                                      .done = on_nccl});
    return r->ras != NULL;
}

void run_say_nccl(struct run *r)
{
    struct dt_text lines, text;
    dt_text_init(&lines);
    dt_text_init(&text);
    ras_text(r->ras, "  ", &lines);
    if (lines.size > 0) {
        console_say("dtrun: host %s: what NCCL's ranks say of themselves (RAS):\n%s", r->failures.host,
                    dt_text_str(&lines));
        ras_text(r->ras, NULL, &text);
        dt_text_reset(&lines);
        dt_text_json(&lines, text.data, text.size);
        run_event(r, "nccl_status", "\"round\":%d,\"text\":%s", r->place.round, dt_text_str(&lines));
    }
    dt_text_clear(&lines);
    dt_text_clear(&text);
}

int run_watchdog_open(struct run *r, struct dt_error *err)
{
    double seconds;
    const char *enabled = options_getenv(r->env, "TORCHELASTIC_ENABLE_FILE_TIMER");
    const char *deaf = options_getenv(r->env, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT");
    if (deaf != NULL && dt_parse_double(deaf, &seconds) && seconds > 0) {
        r->watch_options.deaf_s = seconds / r->o->time_scale;
    }
    if (options_getenv(r->env, "TORCHELASTIC_HEALTH_CHECK_PORT") != NULL) {
        console_say("dtrun: TORCHELASTIC_HEALTH_CHECK_PORT: has no effect, as in torchrun's public version; ask with "
                    "dtrun --status\n");
    }
    if (enabled == NULL || strcmp(enabled, "1") != 0) {
        return 0;
    }
    struct timer_file_hooks hooks = {.user = r, .is_ours = is_ours, .expired = on_expired};
    return timer_file_open(&r->timers, &r->loop, options_getenv(r->env, "TORCHELASTIC_TIMER_FILE"), &hooks, err);
}
