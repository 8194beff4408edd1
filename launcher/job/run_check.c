/* A host that cannot take part: the check of the job failed here (another file lies at that
 * path, a folder may not be written). It has said why; the others would wait for it until
 * --join_timeout. So it comes to the endpoint like a host that wants in, with a digest that fits
 * nobody's and says what happened, and goes when that is known there, or nobody came for some
 * seconds. */
#include "base/clock.h"
#include "launcher/output/console.h"
#include "launcher/job/run_parts.h"

#include <math.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define TELL_S 10.0
#define SAY_S 2.0 /* a person waits for the prompt */

struct check {
    uv_loop_t loop;
    uv_poll_t signals;
    uv_timer_t over, line;
    int signal_fd;
    struct hosts *hosts;
};

/* A refusal. Nothing else comes with such a digest, but an end counts, too. */
static void on_act(void *user, const struct action *a, const struct hosts_meeting *meeting)
{
    struct check *c = user;
    (void)a, (void)meeting;
    uv_stop(&c->loop);
}

static void on_settle(void *user)
{
    (void)user;
}

static void on_over(uv_timer_t *timer)
{
    uv_stop(timer->loop);
}

static void on_line(uv_timer_t *timer)
{
    (void)timer;
    console_say("dtrun: waiting some seconds more for other hosts, to tell them that this one cannot take part\n");
}

static void on_signals(uv_poll_t *handle, int status, int events)
{
    struct check *c = handle->data;
    struct signalfd_siginfo info;
    (void)status, (void)events;
    while (read(c->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo != SIGCHLD && info.ssi_signo != SIGCONT && info.ssi_signo != SIGTSTP) {
            uv_stop(&c->loop);
        }
    }
}

static void close_handle(uv_handle_t *handle, void *user)
{
    struct check *c = user;
    bool ours =
        handle == (uv_handle_t *)&c->signals || handle == (uv_handle_t *)&c->over || handle == (uv_handle_t *)&c->line;
    if (ours && !uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

void run_tell_failed_check(const struct options *o, int code, int signal_fd)
{
    struct check c = {.signal_fd = signal_fd};
    struct options told = *o;
    struct dt_error hidden; /* whatever keeps us from the others, they will find out by
                             * themselves */
    if (o->nnodes_max <= 1 || code <= 0 || code > 128 || uv_loop_init(&c.loop) != 0) {
        return;
    }
    told.check_code = code;
    told.join_timeout_s = 2 * TELL_S;
    (void)uv_timer_init(&c.loop, &c.over);
    (void)uv_timer_init(&c.loop, &c.line);
    (void)uv_timer_start(&c.over, on_over, (uint64_t)(TELL_S / o->time_scale * 1e3) + 1, 0);
    (void)uv_timer_start(&c.line, on_line, (uint64_t)(SAY_S / o->time_scale * 1e3) + 1, 0);
    (void)uv_poll_init(&c.loop, &c.signals, signal_fd);
    c.signals.data = &c;
    (void)uv_poll_start(&c.signals, UV_READABLE, on_signals);
    if (hosts_open(&c.hosts, &c.loop, &told, &(struct hosts_hooks){.user = &c, .act = on_act, .settle = on_settle},
                   &hidden) == 0) {
        hosts_tell(
            c.hosts,
            &(struct event){.kind = EVENT_JOIN, .local_world_size = o->nproc, .order = o->node_rank, .role = o->role});
        (void)uv_run(&c.loop, UV_RUN_DEFAULT);
    }
    hosts_close(c.hosts);
    uv_walk(&c.loop, close_handle, &c);
    (void)uv_run(&c.loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&c.loop);
    hosts_free(c.hosts);
}
