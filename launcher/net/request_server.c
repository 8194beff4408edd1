/* When all places are taken, one more connection waits in libuv and the others in the kernel's
 * queue. After an answer the connection is shut down for writing and read until the peer closes: if
 * a socket is closed with unread bytes, TCP sends a reset and the peer may lose the answer. */
#include "launcher/net/request_server.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CHECK_MS = 250, BACKLOG = 1024 };

union stream {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_pipe_t pipe;
    uv_tcp_t tcp;
};

struct connection {
    union stream u; /* first member: both have the same address */
    uv_write_t write;
    uv_shutdown_t shutdown;
    struct request_server *owner; /* null: a free place */
    char *request;                /* slice of the server's `requests`, of options.request_bytes */
    size_t size;
    double since_s;
    /* complete: the request is there; waits: for request_server_ready; answered: the answer is
     * written; ended: the peer has closed */
    bool complete, waits, answered, ended;
    struct request_answer *answer;
};

struct request_server {
    union stream listener;
    uv_timer_t timer;
    struct request_server_options options;
    bool is_tcp;
    bool waiting; /* a connection waits for a free place */
    bool closing;
    int handles; /* handles not closed yet */
    char *requests;
    struct connection *list;
};

struct request_answer *request_answer_make(void)
{
    struct request_answer *a = dt_alloc(sizeof *a);
    dt_text_init(&a->text);
    a->users = 1;
    return a;
}

void request_answer_release(struct request_answer *a)
{
    if (a != NULL && --a->users == 0) {
        dt_text_clear(&a->text);
        free(a);
    }
}

static void on_connection(uv_stream_t *listener, int result);

static void closed(struct request_server *a)
{
    if (--a->handles == 0 && a->closing) {
        free(a->list);
        free(a->requests);
        free(a);
    }
}

static void on_closed(uv_handle_t *handle)
{
    closed(handle->data);
}

static void on_connection_closed(uv_handle_t *handle)
{
    struct connection *x = (struct connection *)handle;
    struct request_server *a = x->owner;
    request_answer_release(x->answer);
    x->owner = NULL;
    if (a->waiting && !a->closing) {
        a->waiting = false;
        on_connection(&a->listener.stream, 0);
    }
    closed(a);
}

static void end(struct connection *x)
{
    if (!uv_is_closing(&x->u.handle)) {
        uv_close(&x->u.handle, on_connection_closed);
    }
}

/* ---- the answer ---- */

static void on_shutdown(uv_shutdown_t *shutdown, int result)
{
    struct connection *x = shutdown->data;
    if (result != 0 || x->ended) {
        end(x);
    }
}

static void on_written(uv_write_t *write, int result)
{
    struct connection *x = write->data;
    x->answered = true;
    x->shutdown.data = x;
    if (result != 0 || uv_shutdown(&x->shutdown, &x->u.stream, on_shutdown) != 0) {
        end(x);
    }
}

/* Takes over the answer. */
static void send_answer(struct connection *x, struct request_answer *answer)
{
    uv_buf_t buffer = uv_buf_init(answer->text.data, (unsigned)answer->text.size);
    x->waits = false;
    x->answer = answer;
    x->write.data = x;
    if (uv_write(&x->write, &x->u.stream, &buffer, 1, on_written) != 0) {
        end(x);
    }
}

bool request_server_waits(const struct request_server *a)
{
    bool any = false;
    for (int i = 0; i < a->options.places; i++) {
        any = any || (a->list[i].owner != NULL && a->list[i].waits && !uv_is_closing(&a->list[i].u.handle));
    }
    return any;
}

void request_server_ready(struct request_server *a, struct request_answer *answer)
{
    for (int i = 0; i < a->options.places; i++) {
        struct connection *x = &a->list[i];
        if (x->owner != NULL && x->waits && !uv_is_closing(&x->u.handle)) {
            answer->users++;
            send_answer(x, answer);
        }
    }
    request_answer_release(answer);
}

/* ---- the request ---- */

static void give_buffer(uv_handle_t *handle, size_t wanted, uv_buf_t *out)
{
    struct connection *x = (struct connection *)handle;
    size_t used = x->complete ? 0 : x->size; /* bytes after the request are ignored */
    (void)wanted;
    *out = uv_buf_init(x->request + used, (unsigned)(x->owner->options.request_bytes - used));
}

/* libuv reports a full buffer as an error (UV_ENOBUFS). */
static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buffer)
{
    struct connection *x = (struct connection *)stream;
    const struct request_server_options *o = &x->owner->options;
    struct request_answer *answer = NULL;
    uv_os_fd_t fd = -1;
    (void)buffer;
    x->ended = x->ended || size < 0;
    if (size < 0 && (!x->complete || x->answered || size != UV_EOF)) {
        end(x);
    }
    if (size <= 0 || x->complete) {
        return;
    }
    x->size += (size_t)size;
    (void)uv_fileno(&x->u.handle, &fd);
    enum request_verdict take = o->take(o->user, fd, x->request, x->size, &answer);
    x->complete = take != REQUEST_MORE;
    x->waits = take == REQUEST_LATER;
    if (take == REQUEST_DROP) {
        end(x);
    } else if (take == REQUEST_ANSWER) {
        send_answer(x, answer);
    }
}

/* ---- connections ---- */

/* Returns a free place, or null: then the oldest connection is closed if it is old enough. */
static struct connection *find_place(struct request_server *a)
{
    struct connection *oldest = NULL;
    for (int i = 0; i < a->options.places; i++) {
        struct connection *x = &a->list[i];
        if (x->owner == NULL) {
            return x;
        }
        if (!uv_is_closing(&x->u.handle) && (oldest == NULL || x->since_s < oldest->since_s)) {
            oldest = x;
        }
    }
    if (oldest != NULL && a->options.evict_after_s > 0 && dt_now_s() - oldest->since_s > a->options.evict_after_s) {
        end(oldest);
    }
    return NULL;
}

static int open_stream(union stream *u, uv_loop_t *loop, bool is_tcp)
{
    return is_tcp ? uv_tcp_init(loop, &u->tcp) : uv_pipe_init(loop, &u->pipe, 0);
}

static void on_check(uv_timer_t *timer)
{
    struct request_server *a = timer->data;
    bool any = false;
    for (int i = 0; i < a->options.places; i++) {
        struct connection *x = &a->list[i];
        if (x->owner != NULL && dt_now_s() - x->since_s > a->options.timeout_s) {
            end(x);
        }
        any = any || x->owner != NULL;
    }
    if (a->waiting) {
        (void)find_place(a); /* may close the oldest connection */
    }
    if (!any) {
        (void)uv_timer_stop(timer);
    }
}

static void on_connection(uv_stream_t *listener, int result)
{
    struct request_server *a = listener->data;
    struct connection *x = result == 0 ? find_place(a) : NULL;
    if (x == NULL) {
        a->waiting = result == 0;
        return;
    }
    *x = (struct connection){
        .owner = a, .since_s = dt_now_s(), .request = a->requests + (size_t)(x - a->list) * a->options.request_bytes};
    if (open_stream(&x->u, listener->loop, a->is_tcp) != 0) {
        x->owner = NULL;
        a->waiting = true;
        return;
    }
    a->handles++;
    if (uv_accept(listener, &x->u.stream) != 0) {
        end(x);
        return;
    }
    /* a timer that is restarted for each connection would never fire */
    if (!uv_is_active((uv_handle_t *)&a->timer)) {
        (void)uv_timer_start(&a->timer, on_check, CHECK_MS, CHECK_MS);
    }
    (void)uv_read_start(&x->u.stream, give_buffer, on_read);
}

/* ---- open, close ---- */

int request_server_open(struct request_server **out, uv_loop_t *loop, int fd,
                        const struct request_server_options *options, struct dt_error *err)
{
    struct sockaddr_storage at = {0};
    socklen_t size = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &size) != 0) {
        return dt_fail_errno(err, "listening socket");
    }
    struct request_server *a = dt_alloc(sizeof *a);
    a->options = *options;
    a->is_tcp = at.ss_family != AF_UNIX;
    a->list = dt_alloc((size_t)options->places * sizeof *a->list);
    a->requests = dt_alloc((size_t)options->places * options->request_bytes);
    (void)uv_timer_init(loop, &a->timer);
    (void)open_stream(&a->listener, loop, a->is_tcp);
    a->listener.handle.data = a->timer.data = a;
    a->handles = 2;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* the caller keeps fd if this fails */
    int rc = own < 0 ? -errno : a->is_tcp ? uv_tcp_open(&a->listener.tcp, own) : uv_pipe_open(&a->listener.pipe, own);
    if (rc != 0 && own >= 0) {
        (void)close(own);
    }
    rc = rc == 0 ? uv_listen(&a->listener.stream, BACKLOG, on_connection) : rc;
    if (rc != 0) {
        request_server_close(a);
        return dt_fail(err, DT_IO, "listen: %s", uv_strerror(rc));
    }
    (void)close(fd);
    *out = a;
    return 0;
}

void request_server_close(struct request_server *a)
{
    a->closing = true;
    for (int i = 0; i < a->options.places; i++) {
        if (a->list[i].owner != NULL) {
            end(&a->list[i]);
        }
    }
    uv_close((uv_handle_t *)&a->timer, on_closed);
    uv_close(&a->listener.handle, on_closed);
}
