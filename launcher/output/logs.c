/* Streams of the workers between pipe, file and console.
 *
 *   worker --pipe--> loop: take() --> files thread --> attempt_N/RANK/stdout.log
 *                           |------> console thread --> [role0]:line
 *                           '------> tail, for the report
 *
 * When the files fall behind, the pipes are not read until the files have caught up: workers
 * wait as for any slow file. The same holds for the console while somebody reads it. A console
 * that has stood still for STALL_S gets no more lines until it reads again; then it is told how
 * many it missed. log_writer.c has the threads, log_lines.c the lines, log_tree.c the folders. */
#include "launcher/output/logs.h"

#include "base/clock.h"
#include "base/file.h"
#include "launcher/output/console.h"
#include "launcher/output/log_lines.h"
#include "launcher/output/log_rate.h"
#include "launcher/output/log_tree.h"
#include "launcher/output/log_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

struct stream {
    uv_pipe_t pipe;
    struct logs *l;
    int local_rank, which; /* which: 0 stdout, 1 stderr */
    int child_fd;          /* the worker's end of the pipe, until logs_spawned */
    /* state of the handle; orphan: its close callback frees the stream */
    bool open, closed, orphan;
    bool shown; /* copied to the console */
    struct log_sink *file;
    char *prefix;
    struct log_lines lines;
    size_t printed;   /* bytes of the unfinished line that are on the console already */
    double waiting_s; /* since when other bytes of this line wait; 0: none do */
    struct dt_text tail;
    double last_s;
    struct log_rate rate;
};

struct worker {
    char *dir, *error_file;
    struct stream *streams[2]; /* null: the worker inherits ours */
};

struct logs {
    uv_loop_t *loop;
    uv_timer_t *timer;
    const struct options *o;
    /* the folder made by default, which is removed if it stays empty; or null */
    char *base;
    char *dir, *attempt_dir; /* null for /dev/null */
    struct log_writer *files;
    /* one file per output for all workers of --ranks_filter, of this attempt */
    struct log_sink *filtered[2];
    bool terminal[2], same_console, colours;
    /* the stream whose unfinished line is on that output (slot 0 for both when they are one
     * console) */
    struct stream *partial[2];
    struct worker *workers;
    int worker_count, first_rank, group_rank, world_size;
    char host[256];
    bool paused, dropping, warned;
    /* lines that the console missed: all, and those already reported */
    size_t dropped_count, reported_count;
    struct dt_text scratch;
    char buffer[65536];
};

/* ---- console ---- */

static void tell(const char *text)
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
    tell(text);
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

static void check_files(struct logs *l)
{
    int error = l->warned ? 0 : log_writer_losses(l->files).error;
    if (error != 0) {
        char text[1024];
        (void)snprintf(text, sizeof text, "dtrun: %.700s: %s; the job goes on, lost output is counted\n", l->dir,
                       strerror(error));
        tell(text);
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
    check_files(l);
    balance(l);
    if (!waiting && !l->paused) {
        (void)uv_timer_stop(l->timer);
    }
}

/* ---- reading ---- */

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
        tell(text);
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

static void free_stream(struct stream *s)
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
        free_stream(s);
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
    check_files(l);
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

/* Reads what is left in a worker's pipes. last: ends an unfinished line and closes, even if another
 * process still holds the other end. */
static void drain(struct logs *l, int local_rank, bool last)
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
    check_files(l);
}

void logs_finish(struct logs *l, int local_rank)
{
    drain(l, local_rank, false);
}

/* ---- attempts ---- */

/* Opens a file of an attempt. Null on failure: the job goes on without the file, after one
 * warning. */
static struct log_sink *open_file(struct logs *l, const char *folder, const char *name)
{
    char *path = dt_format("%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 && !l->warned) {
        char text[1024];
        (void)snprintf(text, sizeof text, "dtrun: %.700s: %s; the job goes on without this file\n", path,
                       strerror(errno));
        tell(text);
        l->warned = true;
    }
    free(path);
    return fd < 0 ? NULL : log_writer_sink(l->files, fd, true);
}

static void end_attempt(struct logs *l)
{
    for (int i = 0; i < l->worker_count; i++) {
        drain(l, i, true);
        for (int k = 0; k < 2; k++) {
            struct stream *s = l->workers[i].streams[k];
            if (s != NULL && s->closed) {
                free_stream(s);
            } else if (s != NULL) {
                s->orphan = true;
            }
        }
        if (l->base != NULL && l->workers[i].dir != NULL) {
            (void)rmdir(l->workers[i].dir); /* works only on an empty folder */
        }
        free(l->workers[i].dir);
        free(l->workers[i].error_file);
    }
    for (int k = 0; k < 2; k++) {
        if (l->filtered[k] != NULL) {
            log_writer_end(l->files, l->filtered[k]);
            l->filtered[k] = NULL;
        }
    }
    if (l->base != NULL && l->attempt_dir != NULL) {
        (void)rmdir(l->attempt_dir);
    }
    free(l->attempt_dir);
    free(l->workers);
    l->attempt_dir = NULL;
    l->workers = NULL;
    l->worker_count = 0;
    l->paused = false;
}

int logs_attempt(struct logs *l, int restart_count, int local_world_size, int first_rank, int group_rank,
                 int world_size, struct dt_error *err)
{
    end_attempt(l);
    l->workers = dt_alloc((size_t)local_world_size * sizeof *l->workers);
    l->worker_count = local_world_size;
    l->first_rank = first_rank;
    l->group_rank = group_rank;
    l->world_size = world_size;
    if (l->dir == NULL) {
        return 0;
    }
    l->attempt_dir = log_tree_attempt(l->dir, restart_count, err);
    bool failed = l->attempt_dir == NULL;
    for (int i = 0; i < local_world_size && !failed; i++) {
        struct worker *w = &l->workers[i];
        w->dir = dt_format("%s/%d", l->attempt_dir, i);
        if (mkdir(w->dir, 0755) != 0) {
            (void)dt_fail_errno(err, "%s: cannot make the folder", w->dir);
            free(w->dir);
            w->dir = NULL;
            failed = true;
        } else {
            w->error_file = dt_format("%s/error.json", w->dir);
        }
    }
    if (failed && !l->warned) { /* most likely a full disk, which must not stop a job */
        char text[1024];
        (void)snprintf(text, sizeof text, "dtrun: %.700s; the job goes on without log files\n", err->text);
        tell(text);
        l->warned = true;
    }
    if (!failed && l->o->output.stdout_filters != NULL) {
        l->filtered[0] = open_file(l, l->attempt_dir, "filtered_stdout.log");
    }
    if (!failed && l->o->output.stderr_filters != NULL) {
        l->filtered[1] = open_file(l, l->attempt_dir, "filtered_stderr.log");
    }
    return 0;
}

static char *make_prefix(const struct logs *l, int local_rank)
{
    const char *template =
        l->o->output.prefix_template != NULL ? l->o->output.prefix_template : "[${role_name}${local_rank}]:";
    return log_prefix(template, l->o->world.role, l->host,
                      (const int[]){local_rank, l->first_rank + local_rank, l->group_rank, l->world_size});
}

static int open_stream(struct logs *l, int local_rank, int which, bool file, bool shown, struct dt_error *err)
{
    static const char *const names[] = {"stdout.log", "stderr.log"};
    struct worker *w = &l->workers[local_rank];
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return dt_fail_errno(err, "pipe for the output of local rank %d", local_rank);
    }
    struct stream *s = dt_alloc(sizeof *s);
    s->l = l;
    s->local_rank = local_rank;
    s->which = which;
    s->shown = shown;
    s->child_fd = ends[1];
    s->prefix = make_prefix(l, local_rank);
    s->pipe.data = s;
    int failed = uv_pipe_init(l->loop, &s->pipe, 0);
    s->open = failed == 0;
    w->streams[which] = s;
    if (failed == 0 && (failed = uv_pipe_open(&s->pipe, ends[0])) != 0) {
        (void)close(ends[0]);
    }
    if (failed == 0 && !l->paused) {
        failed = uv_read_start((uv_stream_t *)&s->pipe, on_alloc, on_read);
    }
    if (failed != 0) {
        return dt_fail(err, DT_IO, "pipe for the output of local rank %d: %s", local_rank, uv_strerror(failed));
    }
    s->file = file && w->dir != NULL ? open_file(l, w->dir, names[which]) : NULL;
    return 0;
}

/* Whether --ranks_filter includes this global rank. */
static bool is_wanted(const struct options *o, int rank)
{
    bool wanted = o->output.rank_count == 0;
    for (int i = 0; i < o->output.rank_count; i++) {
        wanted = wanted || o->output.ranks[i] == rank;
    }
    return wanted;
}

int logs_streams(struct logs *l, int local_rank, int fds[2], struct dt_error *err)
{
    const struct options *o = l->o;
    bool shown = o->output.shown[local_rank] && is_wanted(o, l->first_rank + local_rank);
    for (int which = 0; which < 2; which++) {
        int bit = which == 0 ? OPTIONS_STDOUT : OPTIONS_STDERR;
        bool tee = (o->output.tee[local_rank] & bit) != 0;
        /* as for torchrun, /dev/null turns redirects off */
        bool file = tee || (l->dir != NULL && (o->output.redirects[local_rank] & bit) != 0);
        fds[which] = -1;
        if (!file && shown) {
            continue;
        }
        if (open_stream(l, local_rank, which, file, tee && shown, err) != 0) {
            return -1;
        }
        fds[which] = l->workers[local_rank].streams[which]->child_fd;
    }
    return 0;
}

/* ---- open, ask, close ---- */

static bool keeps_streams(const struct options *o)
{
    for (int i = 0; i < o->world.nproc; i++) {
        if (o->output.redirects[i] != 0 || o->output.tee[i] != 0) {
            return true;
        }
    }
    return false;
}

/* Makes the run's folder. None is made for /dev/null, nor when the default folder cannot be made
 * and the user asked for no logs; then a warning tells. */
static int open_tree(struct logs *l, struct dt_error *err)
{
    const struct options *o = l->o;
    bool named = o->output.log_dir != NULL && o->output.log_dir[0] != '\0';
    bool asked = named || keeps_streams(o) || o->output.stdout_filters != NULL || o->output.stderr_filters != NULL;
    if (named && strcmp(o->output.log_dir, "/dev/null") == 0) {
        return 0;
    }
    l->dir = log_tree_open(o->output.log_dir, o->rdzv.run_id, &l->base, err);
    if (l->dir == NULL && asked) {
        return -1;
    }
    if (l->dir == NULL) {
        console_say("dtrun: %s; the job goes on without log files and error files\n", err->text);
        l->warned = true;
    }
    return 0;
}

int logs_open(struct logs **out, uv_loop_t *loop, const struct options *o, struct dt_error *err)
{
    struct logs *l = dt_alloc(sizeof *l);
    l->loop = loop;
    l->o = o;
    l->files = log_writer_open(err);
    if (l->files == NULL || open_tree(l, err) != 0) {
        if (l->files != NULL) {
            (void)log_writer_close(l->files, 1);
        }
        free(l->base);
        free(l);
        return -1;
    }
    l->timer = dt_alloc(sizeof *l->timer);
    l->timer->data = l;
    (void)uv_timer_init(loop, l->timer);
    l->colours = console_wants_colours();
    l->terminal[0] = console_is_terminal(0);
    l->terminal[1] = console_is_terminal(1);
    l->same_console = console_is_one();
    if (gethostname(l->host, sizeof l->host - 1) == 0) {
        l->host[strcspn(l->host, ".")] = '\0';
    }
    if (l->base != NULL && logs_has_files(l)) { /* the user cannot guess a default folder */
        dt_text_printf(&l->scratch, "dtrun: logs are in %s\n", l->dir);
        tell(dt_text_str(&l->scratch));
    }
    *out = l;
    return 0;
}

const char *logs_dir(const struct logs *l)
{
    return l->dir;
}

bool logs_has_files(const struct logs *l)
{
    return l->dir != NULL && keeps_streams(l->o);
}

bool logs_unasked(const struct logs *l)
{
    return l->base != NULL && !logs_has_files(l);
}

const char *logs_worker_dir(const struct logs *l, int local_rank)
{
    return l->workers[local_rank].dir;
}

const char *logs_error_file(const struct logs *l, int local_rank)
{
    const char *path = l->workers[local_rank].error_file;
    return path != NULL ? path : "";
}

double logs_last_output_s(const struct logs *l, int local_rank)
{
    double last_s = 0;
    for (int i = 0; i < 2; i++) {
        const struct stream *s = l->workers[local_rank].streams[i];
        last_s = s != NULL && s->last_s > last_s ? s->last_s : last_s;
    }
    return last_s;
}

int logs_tail(const struct logs *l, int local_rank, int line_count, struct dt_text *out)
{
    const struct stream *found = NULL;
    if (local_rank < 0 || local_rank >= l->worker_count || line_count < 1) {
        return 0;
    }
    for (int i = 1; i >= 0 && found == NULL; i--) {
        const struct stream *s = l->workers[local_rank].streams[i];
        if (s != NULL && s->tail.size > 0 && strspn(s->tail.data, " \t\r\n") < s->tail.size) {
            found = s;
        }
    }
    if (found == NULL) {
        return 0;
    }
    return log_last_lines(&found->tail, line_count, out);
}

void logs_flush(struct logs *l, double timeout_s)
{
    (void)log_writer_flush(l->files, timeout_s);
    check_files(l);
}

static void on_timer_closed(uv_handle_t *handle)
{
    free(handle);
}

void logs_close(struct logs *l, double timeout_s, struct dt_text *lost)
{
    end_attempt(l);
    struct log_losses files = log_writer_close(l->files, timeout_s);
    console_missed(l->dropped_count - l->reported_count, l->dir);
    if (lost != NULL && files.bytes > 0) {
        dt_text_printf(lost, "dtrun: %s: %zu lines (%zu bytes) of output were lost: %s\n", l->dir, files.line_count,
                       files.bytes, files.error != 0 ? strerror(files.error) : "the disk did not take them in time");
    }
    if (l->base != NULL && rmdir(l->dir) == 0) {
        (void)rmdir(l->base);
    }
    (void)uv_timer_stop(l->timer);
    uv_close((uv_handle_t *)l->timer, on_timer_closed);
    dt_text_clear(&l->scratch);
    free(l->dir);
    free(l->base);
    free(l);
}
