/* The FIFO is open for reading and writing. So there is no end of file when the last worker closes
 * it, and workers always find a reader. A line has at most PIPE_BUF bytes, which the kernel writes
 * as a whole. Times are wall clock times, because the workers' library sends those. */
#include "launcher/workers/timer_file.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* READS: of PIPE_BUF bytes, per wake-up of the loop */
enum { TIMERS = 4096, SCOPE_BYTES = 128, LOOK_MS = 100, FIRST_TIMERS = 16, READS = 4 };

struct timer {
    pid_t pid;
    int signal;
    double wall_s;
    char scope[SCOPE_BYTES];
};

struct timer_file {
    struct timer_file_hooks hooks;
    uv_poll_t poll;
    uv_timer_t look;
    int fd, handles;
    char *path;
    struct timer *timers;
    int count, capacity;
    size_t held; /* bytes of an unfinished line */
    bool skipping;
    char line[PIPE_BUF + 1];
};

static int find(const struct timer_file *t, pid_t pid, const char *scope)
{
    for (int i = 0; i < t->count; i++) {
        if (t->timers[i].pid == pid && strcmp(t->timers[i].scope, scope) == 0) {
            return i;
        }
    }
    return -1;
}

static void take_request(struct timer_file *t, const struct timer *request)
{
    int i = find(t, request->pid, request->scope);
    if (request->wall_s < 0) { /* the worker released the timer */
        if (i >= 0) {
            t->timers[i] = t->timers[--t->count];
        }
        return;
    }
    if (i < 0 && t->count == TIMERS) {
        dt_log(DT_LOG_WARN, "timer", "more than %d timers; those of pid %d are not watched", TIMERS, (int)request->pid);
        return;
    }
    if (i < 0 && t->count == t->capacity) {
        t->capacity = t->capacity > 0 ? 2 * t->capacity : FIRST_TIMERS;
        t->timers = dt_realloc(t->timers, (size_t)t->capacity * sizeof *t->timers);
    }
    t->timers[i >= 0 ? i : t->count++] = *request;
    if (!uv_is_active((uv_handle_t *)&t->look)) {
        (void)uv_timer_start(&t->look, t->look.timer_cb, LOOK_MS, LOOK_MS);
    }
}

static void take_line(struct timer_file *t)
{
    cJSON *json = cJSON_ParseWithLength(t->line, t->held);
    const cJSON *pid = cJSON_GetObjectItemCaseSensitive(json, "pid"),
                *scope = cJSON_GetObjectItemCaseSensitive(json, "scope_id");
    const cJSON *at = cJSON_GetObjectItemCaseSensitive(json, "expiration_time"),
                *number = cJSON_GetObjectItemCaseSensitive(json, "signal");
    bool whole = cJSON_IsNumber(pid) && cJSON_IsString(scope) && cJSON_IsNumber(at) && cJSON_IsNumber(number);
    if (whole && pid->valuedouble >= 2 && pid->valuedouble <= INT_MAX && isfinite(at->valuedouble)) {
        struct timer request = {.pid = (pid_t)pid->valuedouble, .wall_s = at->valuedouble};
        request.signal = number->valuedouble >= 1 && number->valuedouble < NSIG ? (int)number->valuedouble : 0;
        (void)snprintf(request.scope, sizeof request.scope, "%s", scope->valuestring);
        take_request(t, &request);
    } else {
        dt_log(DT_LOG_WARN, "timer", "%s: a line that is no request for a timer", t->path);
    }
    cJSON_Delete(json);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct timer_file *t = poll->data;
    char buffer[PIPE_BUF];
    ssize_t n;
    (void)status;
    (void)events;
    /* the rest after other handles of the loop */
    for (int reads = 0; reads < READS && (n = read(t->fd, buffer, sizeof buffer)) > 0; reads++) {
        for (ssize_t i = 0; i < n; i++) {
            if (buffer[i] != '\n' && t->held < PIPE_BUF) {
                t->line[t->held++] = buffer[i];
            } else if (buffer[i] != '\n') {
                t->skipping = true;
            } else {
                if (!t->skipping && t->held > 0) {
                    take_line(t);
                }
                t->held = 0;
                t->skipping = false;
            }
        }
    }
}

/* The timer of pid that expired first and requests a signal; otherwise any expired timer; -1:
 * none. */
static int first_over(const struct timer_file *t, pid_t pid, double now_s)
{
    int best = -1;
    for (int i = 0; i < t->count; i++) {
        const struct timer *x = &t->timers[i];
        if (x->pid != pid || x->wall_s > now_s) {
            continue;
        }
        bool better =
            best < 0 || (x->signal > 0 && (t->timers[best].signal == 0 || x->wall_s < t->timers[best].wall_s));
        best = better ? i : best;
    }
    return best;
}

static void forget(struct timer_file *t, pid_t pid)
{
    for (int i = 0; i < t->count;) {
        if (t->timers[i].pid == pid) {
            t->timers[i] = t->timers[--t->count];
        } else {
            i++;
        }
    }
}

static void on_look(uv_timer_t *timer)
{
    struct timer_file *t = timer->data;
    double now_s = dt_wall_s();
    for (int i = 0; i < t->count; i++) {
        if (t->timers[i].wall_s > now_s) {
            continue;
        }
        struct timer over = t->timers[first_over(t, t->timers[i].pid, now_s)];
        bool ours = t->hooks.is_ours(t->hooks.user, over.pid);
        forget(t, over.pid);
        if (ours) {
            t->hooks.expired(t->hooks.user, over.pid, over.signal, over.scope);
            if (over.signal > 0) {
                (void)kill(over.pid, over.signal);
            }
        }
        i = -1; /* the list has changed, so start again */
    }
    if (t->count == 0) {
        (void)uv_timer_stop(timer);
    }
}

static char *random_path(void)
{
    unsigned char b[16] = {0};
    const char *temporary = getenv("TMPDIR");
    (void)getrandom(b, sizeof b, 0);
    return dt_format("%s/watchdog_timer_%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                     temporary != NULL && temporary[0] != '\0' ? temporary : "/tmp", b[0], b[1], b[2], b[3], b[4], b[5],
                     b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* Whether fd is our FIFO: in a folder that others may write to, the name could belong to another
 * file by now. */
static bool is_our_fifo(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 0077) == 0;
}

int timer_file_open(struct timer_file **out, uv_loop_t *loop, const char *path, const struct timer_file_hooks *hooks,
                    struct dt_error *err)
{
    struct stat st;
    char *own = path != NULL ? dt_strdup(path) : random_path();
    int fd = -1;
    if (lstat(own, &st) == 0 && !S_ISFIFO(st.st_mode)) {
        (void)dt_fail(err, DT_INVALID,
                      "TORCHELASTIC_TIMER_FILE: %s: is there and is no FIFO; remove it, or name another", own);
    } else if ((unlink(own) != 0 && errno != ENOENT) || mkfifo(own, 0600) != 0 ||
               (fd = open(own, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW)) < 0) {
        (void)dt_fail_errno(err, "TORCHELASTIC_TIMER_FILE: %s", own);
        err->status = DT_INVALID; /* another try would fail in the same way */
    } else if (!is_our_fifo(fd)) {
        (void)dt_fail(err, DT_INVALID,
                      "TORCHELASTIC_TIMER_FILE: %s: was exchanged by somebody else; name one in a folder of your own",
                      own);
        (void)close(fd);
        fd = -1;
    }
    if (fd < 0) {
        free(own);
        return -1;
    }
    struct timer_file *t = dt_alloc(sizeof *t);
    t->hooks = *hooks;
    t->fd = fd;
    t->path = own;
    t->handles = 2;
    (void)uv_poll_init(loop, &t->poll, fd);
    (void)uv_timer_init(loop, &t->look);
    t->poll.data = t->look.data = t;
    t->look.timer_cb = on_look;
    (void)uv_poll_start(&t->poll, UV_READABLE, on_readable);
    *out = t;
    return 0;
}

const char *timer_file_path(const struct timer_file *t)
{
    return t->path;
}

void timer_file_reset(struct timer_file *t)
{
    char old[PIPE_BUF];
    /* written by the workers of the old round, which are gone */
    while (read(t->fd, old, sizeof old) > 0) {
    }
    t->count = 0;
    t->held = 0;
    t->skipping = false;
}

static void on_closed(uv_handle_t *handle)
{
    struct timer_file *t = handle->data;
    if (--t->handles == 0) {
        (void)close(t->fd);
        free(t->timers);
        free(t->path);
        free(t);
    }
}

void timer_file_close(struct timer_file *t)
{
    (void)unlink(t->path);
    uv_close((uv_handle_t *)&t->poll, on_closed);
    uv_close((uv_handle_t *)&t->look, on_closed);
}
