/* Input comes in two phases. The opening records are read before the event loop exists. Later
 * records are read by the loop while the job runs. */
#include "launcher/ssh/leash.h"

#include "base/clock.h"
#include "base/file.h"
#include "launcher/options/exports.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* limit of one record; the kernel allows 128 KiB for an environment variable */
#define RECORD_BYTES ((size_t)1 << 20)
#define OPEN_S 60.0
#define SIGN_MS 2000 /* longest wait for an output that is full */

static char sign_text[LEASH_SIGN_BYTES];

/* Reads byte by byte, so that bytes after the record stay for leash_watch. out: RECORD_BYTES bytes.
 * The buffer never moves, so a key has no second copy in memory. */
static int read_record(int fd, double end_s, char *out, struct dt_error *err)
{
    for (size_t size = 0; size < RECORD_BYTES;) {
        double left_s = end_s - dt_now_s();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = left_s > 0 ? poll(&p, 1, (int)dt_milliseconds(left_s)) : 0;
        if (ready == 0) {
            return dt_fail(err, DT_TIMEOUT, "--leash: the launching host did not say all within %g s", OPEN_S);
        }
        ssize_t n = ready > 0 ? read(fd, out + size, 1) : -1;
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
            continue;
        }
        if (n <= 0) {
            return dt_fail(err, DT_INVALID,
                           "--leash: is for agents that --hostfile starts; its input ended before the job began");
        }
        if (out[size++] == '\0') {
            return 0;
        }
    }
    return dt_fail(err, DT_INVALID, "--leash: a record of more than %zu bytes", RECORD_BYTES);
}

/* Puts the key into an anonymous file of memory, so that no folder ever holds it. */
static int keep_key(const char *key, char path[64], struct dt_error *err)
{
    int fd = memfd_create("dtrun-key", MFD_CLOEXEC);
    if (fd < 0 || fchmod(fd, 0600) != 0) {
        return dt_fail_errno(err, "--leash: key");
    }
    (void)snprintf(path, 64, "/proc/self/fd/%d", fd);
    return dt_file_write_all(fd, key, strlen(key), "key", err);
}

void leash_forget_key(const char *key_path)
{
    (void)truncate(key_path, 0);
}

int leash_open(int *fd, char key_path[64], struct dt_error *err)
{
    double end_s = dt_now_s() + OPEN_S;
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    key_path[0] = '\0';
    *fd = fcntl(0, F_DUPFD_CLOEXEC, 3);
    if (*fd < 0 || nothing < 0 || dup2(nothing, 0) < 0) {
        return dt_fail_errno(err, "--leash: standard input");
    }
    (void)close(nothing);
    /* the system maps only the pages that the longest record touches */
    char *text = dt_alloc(RECORD_BYTES);
    int result;
    bool go = false;
    while (!go && (result = read_record(*fd, end_s, text, err)) == 0) {
        go = strcmp(text, "go") == 0;
        if (strncmp(text, "key ", 4) == 0) {
            result = keep_key(text + 4, key_path, err);
        } else if (strncmp(text, "env ", 4) == 0 && exports_is_variable(text + 4)) {
            result = putenv(dt_strdup(text + 4)) == 0 ? 0 : dt_fail_errno(err, "--leash: environment");
        } else if (strncmp(text, "sign ", 5) == 0) {
            (void)snprintf(sign_text, sizeof sign_text, "%s", text + 5);
        }
        explicit_bzero(text, strlen(text));
        if (result != 0) {
            break;
        }
    }
    free(text);
    return result;
}

/* One of the two outputs is enough, and perhaps nobody reads either any more. The line is shorter
 * than PIPE_BUF, so a pipe takes it whole or not at all. */
void leash_sign(int code)
{
    char line[128];
    int size = snprintf(line, sizeof line, LEASH_SIGN "%s %d\n", sign_text, code);
    for (int fd = 1; fd <= 2 && sign_text[0] != '\0'; fd++) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (poll(&p, 1, SIGN_MS) > 0 && write(fd, line, (size_t)size) < 0) {
            continue;
        }
    }
}

static void gone(struct leash *l, const char *cause)
{
    (void)uv_poll_stop(&l->input);
    (void)uv_timer_stop(&l->silence);
    l->gone(l->user, cause);
}

/* libuv runs timers before it reads input. After this host itself has slept, records may be
 * waiting: read these before the launching host is given up. */
static void on_silence(uv_timer_t *timer)
{
    struct leash *l = timer->data;
    struct pollfd input = {.fd = l->fd, .events = POLLIN};
    if (poll(&input, 1, 0) > 0) {
        (void)uv_timer_start(timer, on_silence, l->silence_ms, 0);
    } else {
        gone(l, "nothing was heard of it");
    }
}

static void on_input(uv_poll_t *handle, int status, int events)
{
    struct leash *l = handle->data;
    char part[4096];
    ssize_t n = status == 0 && (events & UV_READABLE) != 0 ? read(l->fd, part, sizeof part) : -1;
    if (n < 0 && status == 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    if (n <= 0) {
        gone(l, "its connection has ended");
        return;
    }
    (void)uv_timer_start(&l->silence, on_silence, l->silence_ms, 0);
    for (ssize_t i = 0; i < n; i++) {
        dt_text_add(&l->text, &part[i], 1);
        if (part[i] != '\0' && l->text.size < 256) {
            continue;
        }
        if (part[i] == '\0' && strncmp(l->text.data, "signal ", 7) == 0) {
            l->signal(l->user, atoi(l->text.data + 7));
        }
        dt_text_reset(&l->text);
    }
}

int leash_watch(struct leash *l, uv_loop_t *loop, int fd, double silence_s, struct dt_error *err)
{
    l->fd = fd;
    l->silence_ms = dt_milliseconds(silence_s);
    dt_text_init(&l->text);
    int rc = uv_poll_init(loop, &l->input, fd);
    if (rc != 0) {
        l->user = NULL;
        return dt_fail(err, DT_IO, "--leash: standard input: %s", uv_strerror(rc));
    }
    (void)uv_timer_init(loop, &l->silence);
    l->input.data = l->silence.data = l;
    (void)uv_poll_start(&l->input, UV_READABLE, on_input);
    (void)uv_timer_start(&l->silence, on_silence, l->silence_ms, 0);
    return 0;
}

void leash_close(struct leash *l)
{
    uv_close((uv_handle_t *)&l->input, NULL);
    uv_close((uv_handle_t *)&l->silence, NULL);
    dt_text_clear(&l->text);
}

void leash_put(struct dt_text *out, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    dt_text_vprintf(out, fmt, args);
    va_end(args);
    dt_text_add(out, "", 1);
}
