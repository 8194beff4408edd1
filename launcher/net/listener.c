/* See listener.h. */
#include "launcher/net/listener.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* connections per wake-up; then other handles of the loop have their turn */
enum { at_once = 256 };
static const double line_s = 10;
static const double pause_s = 0.005; /* sleep when no file is free, else the loop would spin */

int listener_next(struct listener *l)
{
    for (;;) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0 || (errno != EINTR && errno != ECONNABORTED)) {
            return fd;
        }
    }
}

static void keep_spare(struct listener *l)
{
    if (l->spare_fd < 0) {
        l->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
}

/* Frees the spare file, and accepts and closes each waiting connection with it. If another thread
 * or process takes the file first, the connections keep waiting. */
static void refuse_all(struct listener *l)
{
    int fd;
    if (l->spare_fd < 0) {
        dt_sleep_s(pause_s);
        return;
    }
    (void)close(l->spare_fd);
    l->spare_fd = -1;
    while ((fd = listener_next(l)) >= 0) {
        (void)close(fd);
    }
    keep_spare(l);
}

static void on_ready(uv_poll_t *handle, int status, int events)
{
    struct listener *l = (struct listener *)handle;
    (void)status;
    (void)events;
    keep_spare(l);
    for (int i = 0; i < at_once; i++) {
        int fd = listener_next(l);
        if (fd >= 0) {
            l->connected(l->user, fd);
            continue;
        }
        int code = errno;
        if (code == EAGAIN || code == EWOULDBLOCK) {
            return;
        }
        if (dt_now_s() - l->warned_s > line_s) {
            l->warned_s = dt_now_s();
            dt_log(DT_LOG_WARN, "store", "accept: %s", strerror(code));
        }
        if (code == EMFILE || code == ENFILE) {
            refuse_all(l);
        }
        return;
    }
}

int listener_open(struct listener *l, uv_loop_t *loop, int fd, int backlog, void (*connected)(void *user, int fd),
                  void *user, struct dt_error *err)
{
    *l = (struct listener){.fd = fd, .spare_fd = -1, .warned_s = -line_s, .connected = connected, .user = user};
    if (listen(fd, backlog) != 0) {
        return dt_fail_errno(err, "listen");
    }
    int rc = uv_poll_init(loop, &l->handle, fd);
    if (rc != 0) {
        return dt_fail(err, DT_IO, "listen: %s", uv_strerror(rc));
    }
    (void)uv_poll_start(&l->handle, UV_READABLE, on_ready); /* cannot fail for a handle that is
                                                             * not closing */
    keep_spare(l);
    return 0;
}

static void on_closed(uv_handle_t *handle)
{
    struct listener *l = (struct listener *)handle;
    l->closed(l->user);
}

void listener_close(struct listener *l, void (*closed)(void *user))
{
    l->closed = closed;
    uv_close((uv_handle_t *)&l->handle, on_closed);
    (void)close(l->fd);
    if (l->spare_fd >= 0) {
        (void)close(l->spare_fd);
    }
}
