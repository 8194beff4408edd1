/* Streams of the workers between pipe, file and console. When the files fall behind, the pipes are
 * not read until the files have caught up: workers wait as for any slow file. The same holds for the
 * console while somebody reads it. A console that has stood still for STALL_S gets no more lines
 * until it reads again; then it is told how many it missed. */
#include "launcher/output/log_streams.h"

#include "base/clock.h"
#include "launcher/output/console.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FILES_HIGH = 16 << 20,
    CONSOLE_HIGH = 4 << 20,
    LOW = 1 << 20,
    TAIL_BYTES = 16384,
    FINISH_BYTES = 2 << 20,
    TICK_MS = 20
};
/* a console that takes nothing for so long no longer slows the workers down */
#define STALL_S 2.0
#define PARTIAL_S 0.2 /* an unfinished line is shown after so long */

/* ---- console ---- */

void log_streams_tell(const char *text)
{
    console_write(text, strlen(text));
}

static bool may_show(struct logs *l)
{
    if (!l->dropping) {
        return true;
    }
    if (console_size() > LOW) {
        return false;
    }
    char text[128];
    (void)snprintf(text, sizeof text, "dtrun: %zu lines are missing here; the console did not read\n",
                   l->dropped_count - l->reported_count);
    l->reported_count = l->dropped_count;
    l->dropping = false;
    log_streams_tell(text);
    return true;
}

/* Shows a line, or a piece of an unfinished one. */
static void show(struct stream *s, const char *text, size_t size, bool ended)
{
    struct logs *l = s->l;
    struct stream **partial = &l->partial[l->same_console ? 0 : s->which];
    if (!may_show(l)) {
        l->dropped_count += ended;
        return;
    }
    dt_text_reset(&l->scratch);
    if (*partial != NULL && *partial != s) {
        dt_text_puts(&l->scratch, "\n");
    }
    if (*partial != s) {
        dt_text_puts(&l->scratch, s->prefix);
    }
    if (l->terminal[s->which]) {
        log_safe(&l->scratch, text, size, l->colours);
    } else {
        dt_text_add(&l->scratch, text, size);
    }
    if (ended) {
        dt_text_puts(&l->scratch, "\n");
    }
    *partial = ended ? NULL : s;
    console_put(s->which, l->scratch.data, l->scratch.size);
}

static bool contains_any(const char *line, size_t size, char **filters)
{
    for (; filters != NULL && *filters != NULL; filters++) {
        if (memmem(line, size, *filters, strlen(*filters)) != NULL) {
            return true;
        }
    }
    return false;
}

static void on_line(void *context, const char *line, size_t size)
{
    struct stream *s = context;
    struct logs *l = s->l;
    if (l->filtered[s->which] != NULL &&
        contains_any(line, size, s->which == 0 ? l->o->output.stdout_filters : l->o->output.stderr_filters)) {
        dt_text_reset(&l->scratch);
        dt_text_puts(&l->scratch, s->prefix);
        dt_text_add(&l->scratch, line, size);
        dt_text_puts(&l->scratch, "\n");
        log_writer_put(l->files, l->filtered[s->which], l->scratch.data, l->scratch.size);
    }
    show(s, line + s->printed, size - s->printed, true);
    s->printed = 0;
    s->waiting_s = 0;
}

/* ---- pausing, unfinished lines, warnings ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out)
{
    struct stream *s = handle->data;
    (void)suggested;
    *out = uv_buf_init(s->l->buffer, sizeof s->l->buffer);
}
static void on_read(uv_stream_t *handle, ssize_t n, const uv_buf_t *buffer);
static void on_tick(uv_timer_t *timer);

static void start_timer(struct logs *l)
{
    if (!uv_is_active((uv_handle_t *)l->timer)) {
        (void)uv_timer_start(l->timer, on_tick, TICK_MS, TICK_MS);
    }
}

/* Stops or resumes reading of all pipes. */
static void set_paused(struct logs *l, bool paused)
{
    l->paused = paused;
    for (int i = 0; i < 2 * l->worker_count; i++) {
        struct stream *s = l->workers[i / 2].streams[i % 2];
        if (s != NULL && s->open && paused) {
            (void)uv_read_stop((uv_stream_t *)&s->pipe);
        } else if (s != NULL && s->open) {
            (void)uv_read_start((uv_stream_t *)&s->pipe, on_alloc, on_read);
        }
    }
    if (paused) {
        start_timer(l);
    }
}

static bool console_stalled(const struct logs *l)
{
    return console_stalled_s() > STALL_S / l->o->time_scale;
}

/* Decides after each queued piece, and as time passes: pause, drop, or go on. */
static void balance(struct logs *l)
{
    size_t waiting = console_size();
    if (!l->dropping && waiting > (l->paused ? LOW : CONSOLE_HIGH) && console_stalled(l)) {
        l->dropping = true;
    }
    bool console_full = !l->dropping && waiting > (l->paused ? LOW : CONSOLE_HIGH);
    bool files_full = log_writer_size(l->files) > (l->paused ? LOW : FILES_HIGH);
    if ((console_full || files_full) != l->paused) {
        set_paused(l, !l->paused);
    }
}

void log_streams_check(struct logs *l)
{
    int error = l->warned ? 0 : log_writer_losses(l->files).error;
    if (error != 0) {
        char text[1024];
        (void)snprintf(text, sizeof text, "dtrun: %.700s: %s; the job goes on, lost output is counted\n", l->dir,
                       strerror(error));
        log_streams_tell(text);
        l->warned = true;
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct logs *l = timer->data;
    double now_s = dt_now_s();
    bool waiting = false;
    for (int i = 0; i < 2 * l->worker_count; i++) {
        struct stream *s = l->workers[i / 2].streams[i % 2];
        if (s == NULL || s->waiting_s == 0) {
            continue;
        }
        if (now_s - s->waiting_s >= PARTIAL_S) {
            show(s, s->lines.line.data + s->printed, s->lines.line.size - s->printed, false);
            s->printed = s->lines.line.size;
            s->waiting_s = 0;
        } else {
            waiting = true;
        }
    }
    log_streams_check(l);
    balance(l);
    if (!waiting && !l->paused) {
        (void)uv_timer_stop(l->timer);
    }
}

/* ---- reading ---- */

int log_stream_begin(struct stream *s, int fd)
{
    s->pipe.data = s;
    int failed = uv_pipe_init(s->l->loop, &s->pipe, 0);
    s->open = failed == 0;
    if (failed == 0 && (failed = uv_pipe_open(&s->pipe, fd)) != 0) {
        (void)close(fd);
    }
    return failed == 0 && !s->l->paused ? uv_read_start((uv_stream_t *)&s->pipe, on_alloc, on_read) : failed;
}

static void add_tail(struct dt_text *tail, const char *data, size_t size)
{
    if (size > TAIL_BYTES) {
        data += size - TAIL_BYTES;
        size = TAIL_BYTES;
    }
    if (tail->size + size > (size_t)2 * TAIL_BYTES) {
        size_t kept = TAIL_BYTES;
        memmove(tail->data, tail->data + tail->size - kept, kept);
        tail->size = kept;
    }
    dt_text_add(tail, data, size);
}

static void take(struct stream *s, const char *data, size_t size)
{
    struct logs *l = s->l;
    s->last_s = dt_now_s();
    add_tail(&s->tail, data, size);
    char words[96];
    if (log_rate_add(&s->rate, data, size, s->last_s, words, sizeof words)) {
        char text[192];
        (void)snprintf(text, sizeof text, "dtrun: rank %d (local %d) floods its %s: %s\n",
                       l->first_rank + s->local_rank, s->local_rank, s->which == 0 ? "stdout" : "stderr", words);
        log_streams_tell(text);
    }
    if (s->file != NULL) {
        log_writer_put(l->files, s->file, data, size);
    }
    if (s->shown) {
        log_lines_feed(&s->lines, data, size, on_line, s);
        if (s->lines.line.size > s->printed && s->waiting_s == 0) {
            s->waiting_s = s->last_s;
            start_timer(l);
        }
    }
}

void log_stream_free(struct stream *s)
{
    free(s->prefix);
    log_lines_clear(&s->lines);
    dt_text_clear(&s->tail);
    free(s);
}

static void on_closed(uv_handle_t *handle)
{
    struct stream *s = handle->data;
    s->closed = true;
    if (s->orphan) {
        log_stream_free(s);
    }
}

static void end_stream(struct stream *s)
{
    struct logs *l = s->l;
    if (!s->open) {
        return;
    }
    s->open = false;
    if (s->shown) {
        log_lines_end(&s->lines, on_line, s);
    }
    for (int i = 0; i < 2; i++) {
        l->partial[i] = l->partial[i] == s ? NULL : l->partial[i];
    }
    if (s->file != NULL) {
        log_writer_end(l->files, s->file);
        s->file = NULL;
    }
    uv_close((uv_handle_t *)&s->pipe, on_closed);
}

static void on_read(uv_stream_t *handle, ssize_t n, const uv_buf_t *buffer)
{
    struct stream *s = handle->data;
    struct logs *l = s->l;
    if (n > 0) {
        take(s, buffer->base, (size_t)n);
        balance(l);
    } else if (n < 0) {
        end_stream(s);
    }
    log_streams_check(l);
}

void logs_spawned(struct logs *l, int local_rank)
{
    for (int i = 0; i < 2; i++) {
        struct stream *s = l->workers[local_rank].streams[i];
        if (s != NULL && s->child_fd >= 0) {
            (void)close(s->child_fd);
            s->child_fd = -1;
        }
    }
}

void log_streams_drain(struct logs *l, int local_rank, bool last)
{
    if (local_rank < 0 || local_rank >= l->worker_count) {
        return;
    }
    logs_spawned(l, local_rank);
    for (int i = 0; i < 2; i++) {
        struct stream *s = l->workers[local_rank].streams[i];
        uv_os_fd_t fd = -1;
        if (s == NULL || !s->open) {
            continue;
        }
        ssize_t n = -1;
        (void)uv_fileno((uv_handle_t *)&s->pipe, &fd);
        for (size_t total = 0; fd >= 0 && total < FINISH_BYTES;) {
            n = read(fd, l->buffer, sizeof l->buffer);
            if (n < 0 && errno == EINTR) {
                continue;
            }
            if (n <= 0) {
                break;
            }
            take(s, l->buffer, (size_t)n);
            total += (size_t)n;
        }
        if (last || n == 0) {
            end_stream(s);
        }
    }
    log_streams_check(l);
}
