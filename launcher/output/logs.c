/* Streams of the workers between pipe, file and console.
 *
 *   worker --pipe--> loop: take() --> files thread --> attempt_N/RANK/stdout.log
 *                           |------> console thread --> [role0]:line
 *                           '------> tail, for the report
 *
 * log_streams.c has the loop's part, log_writer.c the threads, log_lines.c the lines, log_tree.c the
 * folders. */
#include "launcher/output/logs.h"

#include "base/file.h"
#include "launcher/output/console.h"
#include "launcher/output/log_streams.h"
#include "launcher/output/log_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- attempts ---- */

void logs_finish(struct logs *l, int local_rank)
{
    log_streams_drain(l, local_rank, false);
}

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
        log_streams_tell(text);
        l->warned = true;
    }
    free(path);
    return fd < 0 ? NULL : log_writer_sink(l->files, fd, true);
}

static void end_attempt(struct logs *l)
{
    for (int i = 0; i < l->worker_count; i++) {
        log_streams_drain(l, i, true);
        for (int k = 0; k < 2; k++) {
            struct stream *s = l->workers[i].streams[k];
            if (s != NULL && s->closed) {
                log_stream_free(s);
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
        log_streams_tell(text);
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
    w->streams[which] = s;
    int failed = log_stream_begin(s, ends[0]);
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
        log_streams_tell(dt_text_str(&l->scratch));
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
    log_streams_check(l);
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
