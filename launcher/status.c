/* The socket is made under a passing name and renamed when it listens, so whoever finds PID-RANDOM.sock and is refused knows that its agent is
 * gone: the file may be removed. */
#include "launcher/status.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { ASKERS = 8, SWEEP_FILES = 64, CHECK_MS = 1000 };
#define LONGEST_NAME "4194304-0123456789ab.sock" /* of a socket here: PID-RANDOM.sock */
#define SLOW_S 5.0                               /* one that has not asked, or not read its answer, after this */

struct asker {
    uv_pipe_t pipe;
    uv_write_t write;
    struct status *status; /* null: free */
    char request[STATUS_REQUEST_BYTES];
    size_t request_size;
    struct dt_text answer;
    double since_s;
    bool waiting; /* for status_ready */
};

struct status {
    uv_pipe_t listener;
    uv_timer_t timer;
    const char *run_id;
    status_describe *describe;
    status_prepare *prepare; /* or null */
    void *user;
    char *path;
    int handles;  /* not closed yet */
    bool waiting; /* one more than ASKERS has come; libuv holds it and those behind it */
    bool closing;
    struct asker askers[ASKERS];
};

/* ---- folders ---- */

char *status_folder(int index)
{
    const char *own = getenv("DTRUN_RUNTIME_DIR"), *session = getenv("XDG_RUNTIME_DIR");
    if (own != NULL && own[0] != '\0') {
        return index == 0 ? dt_strdup(own) : NULL;
    }
    bool has_session = session != NULL && session[0] == '/';
    if (index == 0 && has_session) {
        return dt_format("%s/dtrun", session);
    }
    return index == (has_session ? 1 : 0) ? dt_format("/tmp/dtrun-%u", (unsigned)geteuid()) : NULL;
}

int status_folder_check(const char *path, bool make, struct dt_error *err)
{
    struct stat st;
    size_t limit = sizeof((struct sockaddr_un *)0)->sun_path - sizeof "/new-" LONGEST_NAME;
    if (strlen(path) > limit) {
        return dt_fail(err, DT_INVALID, "%s: %zu bytes are too many for the folder of a socket, at most %zu; set DTRUN_RUNTIME_DIR to a shorter one",
                       path, strlen(path), limit);
    }
    if (make && mkdir(path, 0700) != 0 && errno != EEXIST) {
        return dt_fail_errno(err, "%s: cannot make the folder", path);
    }
    if (lstat(path, &st) != 0) {
        return dt_fail_errno(err, "%s", path);
    }
    if (!S_ISDIR(st.st_mode)) {
        return dt_fail(err, DT_INVALID, "%s: is no folder", path);
    }
    if (st.st_uid != geteuid() || (st.st_mode & 077) != 0) {
        return dt_fail(err, DT_INVALID, "%s: belongs to user %u, mode %03o; must be ours alone (0700)", path, (unsigned)st.st_uid,
                       (unsigned)st.st_mode & 0777);
    }
    return 0;
}

bool status_is_socket(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && name[0] >= '1' && name[0] <= '9' && strcmp(name + n - 5, ".sock") == 0;
}

static int address_of(const char *path, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof out->sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    (void)strcpy(out->sun_path, path);
    return 0;
}

int status_connect(const char *path, bool *stale)
{
    struct sockaddr_un at;
    *stale = false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && address_of(path, &at) == 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0) {
        return fd;
    }
    int cause = errno;
    *stale = fd >= 0 && cause == ECONNREFUSED;
    if (fd >= 0) {
        (void)close(fd);
    }
    errno = cause;
    return -1;
}

/* Removes what killed agents have left; a few per start are enough. */
static void sweep(const char *folder)
{
    DIR *d = opendir(folder);
    int looked = 0;
    for (struct dirent *e; d != NULL && looked < SWEEP_FILES && (e = readdir(d)) != NULL;) {
        if (!status_is_socket(e->d_name)) {
            continue;
        }
        bool stale;
        char *path = dt_format("%s/%s", folder, e->d_name);
        int fd = status_connect(path, &stale);
        if (fd >= 0) {
            (void)close(fd);
        } else if (stale) {
            (void)unlink(path);
        }
        free(path);
        looked++;
    }
    if (d != NULL) {
        (void)closedir(d);
    }
}

/* A listening socket in the folder; *path is the caller's. */
static int listen_in(const char *folder, char **path, struct dt_error *err)
{
    unsigned char random[6] = {0};
    struct sockaddr_un at;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        return dt_fail_errno(err, "random numbers");
    }
    char *name = dt_format("%d-%02x%02x%02x%02x%02x%02x.sock", (int)getpid(), random[0], random[1], random[2], random[3], random[4], random[5]);
    char *made = dt_format("%s/new-%s", folder, name);
    *path = dt_format("%s/%s", folder, name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool bound = fd >= 0 && address_of(made, &at) == 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    if (!bound || listen(fd, ASKERS) != 0 || rename(made, *path) != 0) {
        (void)dt_fail_errno(err, "%s", made);
        if (bound) {
            (void)unlink(made);
        }
        if (fd >= 0) {
            (void)close(fd);
        }
        free(*path);
        *path = NULL;
        fd = -1;
    }
    free(made);
    free(name);
    return fd;
}

/* ---- those who ask ---- */

static void on_connection(uv_stream_t *listener, int result);

static void on_closed(uv_handle_t *handle)
{
    struct status *s = handle->data;
    for (int i = 0; i < ASKERS; i++) {
        struct asker *a = &s->askers[i];
        if (handle == (uv_handle_t *)&a->pipe) {
            dt_text_clear(&a->answer);
            a->status = NULL;
        }
    }
    if (--s->handles == 0 && s->closing) {
        free(s);
    } else if (s->waiting && !s->closing) {
        s->waiting = false;
        on_connection((uv_stream_t *)&s->listener, 0);
    }
}

static void end_asker(struct asker *a)
{
    if (!uv_is_closing((uv_handle_t *)&a->pipe)) {
        uv_close((uv_handle_t *)&a->pipe, on_closed);
    }
}

static void on_written(uv_write_t *write, int result)
{
    struct asker *a = write->data;
    (void)result;
    end_asker(a);
}

static void on_check(uv_timer_t *timer)
{
    struct status *s = timer->data;
    bool any = false;
    for (int i = 0; i < ASKERS; i++) {
        if (s->askers[i].status != NULL && dt_now_s() - s->askers[i].since_s > SLOW_S) {
            end_asker(&s->askers[i]);
        }
        any = any || s->askers[i].status != NULL;
    }
    if (!any) {
        (void)uv_timer_stop(timer);
    }
}

/* Our user's processes and root's come this far, by the folder's mode; this is for a folder whose mode was changed. */
static bool may_ask(const uv_pipe_t *pipe)
{
    uv_os_fd_t fd;
    struct ucred who;
    socklen_t size = sizeof who;
    return uv_fileno((const uv_handle_t *)pipe, &fd) == 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
           (who.uid == geteuid() || who.uid == 0);
}

static void send_answer(struct asker *a)
{
    dt_text_puts(&a->answer, "\n");
    uv_buf_t buffer = uv_buf_init(a->answer.data, (unsigned)a->answer.size);
    a->write.data = a;
    if (uv_write(&a->write, (uv_stream_t *)&a->pipe, &buffer, 1, on_written) != 0) {
        end_asker(a);
    }
}

static void answer(struct asker *a)
{
    a->status->describe(a->status->user, &a->answer);
    send_answer(a);
}

/* A whole line, without its end. False: it is none of ours. */
static bool take_request(struct asker *a, const char *line)
{
    struct status *s = a->status;
    static const char word[] = "status";
    size_t n = sizeof word - 1;
    if (strncmp(line, word, n) != 0 || (line[n] != '\0' && line[n] != ' ')) {
        return false;
    }
    if (line[n] == ' ' && strcmp(line + n + 1, s->run_id) != 0) {
        dt_text_puts(&a->answer, "{\"format\":1,\"run_id\":");
        dt_text_json(&a->answer, s->run_id, strlen(s->run_id));
        dt_text_puts(&a->answer, "}");
        send_answer(a);
        return true;
    }
    a->waiting = s->prepare != NULL && s->prepare(s->user);
    if (!a->waiting) {
        answer(a);
    }
    return true;
}

static struct asker *asker_of(const uv_stream_t *pipe)
{
    struct status *s = pipe->data;
    for (int i = 0; i < ASKERS; i++) {
        if (pipe == (uv_stream_t *)&s->askers[i].pipe) {
            return &s->askers[i];
        }
    }
    return NULL; /* not reached: every pipe is an asker's */
}

static void give_buffer(uv_handle_t *pipe, size_t wanted, uv_buf_t *out)
{
    struct asker *a = asker_of((uv_stream_t *)pipe);
    (void)wanted;
    *out = uv_buf_init(a->request + a->request_size, (unsigned)(sizeof a->request - a->request_size));
}

/* The end of the stream before a line is one who only wanted to know whether somebody listens; a full buffer gives an error (UV_ENOBUFS). */
static void on_request(uv_stream_t *pipe, ssize_t size, const uv_buf_t *buffer)
{
    struct asker *a = asker_of(pipe);
    (void)buffer;
    if (size == 0) {
        return;
    }
    a->request_size += size > 0 ? (size_t)size : 0;
    char *end = size > 0 ? memchr(a->request, '\n', a->request_size) : NULL;
    if (end != NULL) {
        *end = '\0';
        (void)uv_read_stop(pipe);
    }
    if (size < 0 || (end != NULL && !take_request(a, a->request))) {
        end_asker(a);
    }
}

static void on_connection(uv_stream_t *listener, int result)
{
    struct status *s = listener->data;
    struct asker *a = NULL;
    for (int i = 0; result == 0 && i < ASKERS && a == NULL; i++) {
        a = s->askers[i].status == NULL ? &s->askers[i] : NULL;
    }
    if (a == NULL) {
        s->waiting = result == 0;
        return;
    }
    *a = (struct asker){.status = s, .since_s = dt_now_s()};
    (void)uv_pipe_init(listener->loop, &a->pipe, 0);
    a->pipe.data = s;
    s->handles++;
    if (uv_accept(listener, (uv_stream_t *)&a->pipe) != 0 || !may_ask(&a->pipe)) {
        end_asker(a);
        return;
    }
    (void)uv_timer_start(&s->timer, on_check, CHECK_MS, CHECK_MS);
    (void)uv_read_start((uv_stream_t *)&a->pipe, give_buffer, on_request);
}

void status_ready(struct status *s)
{
    for (int i = 0; i < ASKERS; i++) {
        struct asker *a = &s->askers[i];
        if (a->status != NULL && a->waiting && !uv_is_closing((uv_handle_t *)&a->pipe)) {
            a->waiting = false;
            answer(a);
        }
    }
}

void status_set_prepare(struct status *s, status_prepare *prepare)
{
    s->prepare = prepare;
}

/* ---- open, close ---- */

int status_open(struct status **out, uv_loop_t *loop, const char *run_id, status_describe *describe, void *user, struct dt_error *err)
{
    int fd = -1;
    char *path = NULL;
    for (int i = 0; fd < 0; i++) {
        char *folder = status_folder(i);
        if (folder == NULL) {
            return -1; /* err says why not the last one */
        }
        if (status_folder_check(folder, true, err) == 0) {
            sweep(folder);
            fd = listen_in(folder, &path, err);
        }
        free(folder);
    }
    struct status *s = dt_alloc(sizeof *s);
    s->run_id = run_id;
    s->describe = describe;
    s->user = user;
    s->path = path;
    (void)uv_pipe_init(loop, &s->listener, 0);
    (void)uv_timer_init(loop, &s->timer);
    s->listener.data = s->timer.data = s;
    s->handles = 2;
    int rc = uv_pipe_open(&s->listener, fd);
    if (rc != 0) {
        (void)close(fd);
    }
    rc = rc == 0 ? uv_listen((uv_stream_t *)&s->listener, ASKERS, on_connection) : rc;
    if (rc != 0) {
        (void)dt_fail(err, DT_IO, "%s: %s", path, uv_strerror(rc));
        status_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

void status_close(struct status *s)
{
    s->closing = true;
    (void)unlink(s->path);
    free(s->path);
    for (int i = 0; i < ASKERS; i++) {
        if (s->askers[i].status != NULL) {
            end_asker(&s->askers[i]);
        }
    }
    uv_close((uv_handle_t *)&s->timer, on_closed);
    uv_close((uv_handle_t *)&s->listener, on_closed);
}
