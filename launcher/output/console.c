/* Each output has its own writer, so that an output which nobody reads does not hold up the other.
 * If both outputs are the same, they share one writer. */
#include "launcher/output/console.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "launcher/output/log_writer.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* own lines are dropped above this; workers' lines are dropped long before */
#define OWN_BYTES ((size_t)16 << 20)
/* longest wait for an own line to be written, while the output is being read */
#define MOMENT_S 0.05
/* no waiting for so long after a wait that reached this limit, so that waits do not add up */
#define REST_S 1.0
#define LOOK_S 0.1
#define PIECE_BYTES ((size_t)4096)

static struct {
    pthread_mutex_t lock;          /* protects all that own lines touch */
    struct log_writer *writers[2]; /* null: not open, or without threads */
    struct log_sink *sinks[2];
    int fds[2];
    bool alone;          /* open, without threads */
    struct dt_text held; /* own lines that wait, without threads */
    double taken_s;      /* when a byte of `held` could last be written */
    size_t unsaid;       /* own lines dropped since the last one that was queued */
    size_t dropped;      /* all dropped lines that nothing else reports */
    char *where;         /* folder of the missed lines, or null */
    bool lost;           /* closed while nobody read standard error */
    double rest_s;       /* own lines do not wait before this time */
} console = {.lock = PTHREAD_MUTEX_INITIALIZER, .fds = {1, 2}};

int console_open(int out_fd, int err_fd, struct dt_error *err)
{
    struct stat out;
    struct stat error;
    const int fds[2] = {out_fd, err_fd};
    bool one = fstat(out_fd, &out) == 0 && fstat(err_fd, &error) == 0 && out.st_dev == error.st_dev &&
               out.st_ino == error.st_ino;
    struct log_writer *first = log_writer_open(err), *second = first == NULL || one ? first : log_writer_open(err);
    if (second == NULL) {
        if (first != NULL) {
            (void)log_writer_close(first, 0);
        }
        return -1;
    }
    (void)pthread_mutex_lock(&console.lock);
    console.writers[0] = first;
    console.writers[1] = second;
    for (int i = 0; i < 2; i++) {
        console.fds[i] = fds[i];
        console.sinks[i] = log_writer_sink(console.writers[i], fds[i], false);
    }
    console.unsaid = console.dropped = 0;
    console.lost = false;
    console.rest_s = 0;
    (void)pthread_mutex_unlock(&console.lock);
    dt_log_to(console_write);
    return 0;
}

void console_open_alone(void)
{
    (void)pthread_mutex_lock(&console.lock);
    console.alone = true;
    dt_text_init(&console.held);
    (void)pthread_mutex_unlock(&console.lock);
    dt_log_to(console_write);
}

static size_t count_lines(const char *text, size_t size)
{
    size_t count = 0;
    for (size_t i = 0; i < size; i++) {
        count += text[i] == '\n';
    }
    return count;
}

/* Called with the lock held. */
static void wait_a_moment(struct log_writer *w)
{
    double now_s = dt_now_s();
    if (now_s >= console.rest_s && !log_writer_flush(w, MOMENT_S)) {
        console.rest_s = now_s + REST_S;
    }
}

/* Called with the lock held. */
static void put_own(const char *text, size_t size)
{
    struct log_writer *w = console.writers[1], *other = console.writers[0];
    bool stalled = log_writer_stalled_s(w) > MOMENT_S;
    if (log_writer_size(w) > OWN_BYTES) {
        console.unsaid += count_lines(text, size);
        return;
    }
    if (console.unsaid > 0) {
        char line[128];
        int length = snprintf(line, sizeof line,
                              "dtrun: %zu of the launcher's own lines are missing here; the console did not read\n",
                              console.unsaid);
        console.unsaid = 0;
        log_writer_put(w, console.sinks[1], line, (size_t)length);
    }
    /* a reader of both outputs sees the lines in order */
    if (other != w && log_writer_stalled_s(other) < MOMENT_S) {
        wait_a_moment(other);
    }
    log_writer_put(w, console.sinks[1], text, size);
    if (!stalled) {
        wait_a_moment(w);
    }
}

/* A write() that does not block: EAGAIN where it would. O_NONBLOCK would also change the descriptor
 * for the processes that share it. */
static ssize_t write_now(int fd, const char *text, size_t size)
{
    ssize_t n = send(fd, text, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0 || errno != ENOTSOCK) {
        return n;
    }
    struct stat st;
    struct iovec part = {.iov_base = (void *)text, .iov_len = size};
    /* other processes write to the same pipe, so the room that poll saw may be gone */
    if (fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode)) {
        n = pwritev2(fd, &part, 1, -1, RWF_NOWAIT);
        if (n >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS)) {
            return n;
        }
    }
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (poll(&p, 1, 0) <= 0) {
        errno = EAGAIN;
        return -1;
    }
    return write(fd, text, size < PIECE_BYTES ? size : PIECE_BYTES);
}

/* Writes as much as possible without blocking. Text that can never be written is dropped. */
static size_t write_some(const char *text, size_t size)
{
    size_t at = 0;
    while (at < size) {
        ssize_t n = write_now(console.fds[1], text + at, size - at);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return n < 0 && errno == EAGAIN ? at : size;
        }
        at += (size_t)n;
    }
    return at;
}

/* Called with the lock held. */
static void write_held(void)
{
    struct dt_text *t = &console.held;
    size_t n = write_some(dt_text_str(t), t->size);
    if (n > 0) {
        memmove(t->data, t->data + n, t->size - n);
        t->size -= n;
        console.taken_s = dt_now_s();
    }
}

void console_write(const char *text, size_t size)
{
    (void)pthread_mutex_lock(&console.lock);
    if (console.writers[1] != NULL) {
        put_own(text, size);
    } else if (console.alone && console.held.size > OWN_BYTES) {
        console.dropped += count_lines(text, size);
    } else if (console.alone) {
        dt_text_add(&console.held, text, size);
        write_held();
    } else if (console.lost) {
        (void)write_some(text, size);
    } else {
        (void)dt_file_write_all(console.fds[1], text, size, "stderr", NULL);
    }
    (void)pthread_mutex_unlock(&console.lock);
}

bool console_turn(void)
{
    (void)pthread_mutex_lock(&console.lock);
    write_held();
    bool waits = console.held.size > 0;
    (void)pthread_mutex_unlock(&console.lock);
    return waits;
}

void console_say(const char *fmt, ...)
{
    struct dt_text text;
    va_list args;
    dt_text_init(&text);
    va_start(args, fmt);
    dt_text_vprintf(&text, fmt, args);
    va_end(args);
    console_write(dt_text_str(&text), text.size);
    dt_text_clear(&text);
}

int console_fd(int side)
{
    return console.fds[side];
}

bool console_is_terminal(int side)
{
    return isatty(console.fds[side]) == 1;
}

bool console_wants_colours(void)
{
    const char *plain = getenv("NO_COLOR"), *kind = getenv("TERM");
    return (plain == NULL || plain[0] == '\0') && (kind == NULL || strcmp(kind, "dumb") != 0);
}

bool console_is_one(void)
{
    return console.writers[0] == console.writers[1];
}

void console_put(int side, const void *data, size_t size)
{
    log_writer_put(console.writers[side], console.sinks[side], data, size);
}

size_t console_size(void)
{
    return log_writer_size(console.writers[0]) + (console_is_one() ? 0 : log_writer_size(console.writers[1]));
}

double console_stalled_s(void)
{
    double a_s = log_writer_stalled_s(console.writers[0]), b_s = log_writer_stalled_s(console.writers[1]);
    return a_s > b_s ? a_s : b_s;
}

void console_missed(size_t count, const char *where)
{
    console.dropped += count;
    free(console.where);
    console.where = where != NULL ? dt_strdup(where) : NULL;
}

/* Unread bytes in a pipe or terminal. A change shows that somebody reads, even so slowly that a
 * writer gets no room yet. */
static int unread(int fd)
{
    int bytes = 0;
    return ioctl(fd, TIOCOUTQ, &bytes) == 0 || ioctl(fd, FIONREAD, &bytes) == 0 ? bytes : 0;
}

/* Whether the user insists on the end: INT or TERM is pending. */
static bool is_insisted(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 && (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1);
}

/* Waits a little for the output's queue; true when it is empty. *stalled_s: seconds since the last
 * successful write. */
static bool wait_side(int side, double *stalled_s)
{
    if (!console.alone) {
        bool done = log_writer_flush(console.writers[side], LOOK_S);
        *stalled_s = log_writer_stalled_s(console.writers[side]);
        return done;
    }
    struct pollfd p = {.fd = console.fds[side], .events = POLLOUT};
    bool done = !console_turn();
    if (!done) {
        (void)poll(&p, 1, (int)dt_milliseconds(LOOK_S));
    }
    *stalled_s = dt_now_s() - console.taken_s;
    return done;
}

/* Waits as long as somebody reads the output. */
static void settle(int side, double begin_s, double stall_s)
{
    int before = unread(console.fds[side]);
    double read_s = begin_s, stalled_s;
    while (!wait_side(side, &stalled_s)) {
        double now_s = dt_now_s();
        int now = unread(console.fds[side]);
        if (now != before || stalled_s < LOOK_S) {
            read_s = now_s;
        }
        before = now;
        if (now_s - read_s > stall_s || (is_insisted() && now_s - begin_s > stall_s)) {
            break;
        }
    }
}

/* Ends an output, and adds its losses to `sum`. Called with the lock held. */
static void end_side(int side, struct log_losses *sum)
{
    struct log_losses l = {.line_count = count_lines(dt_text_str(&console.held), console.held.size),
                           .bytes = console.held.size};
    if (!console.alone) {
        l = log_writer_close(console.writers[side], 0);
        console.writers[side] = NULL;
    }
    sum->line_count += l.line_count;
    sum->error = sum->error != 0 ? sum->error : l.error;
    sum->closed = sum->closed || l.closed;
    console.lost = side == 1 && l.bytes > 0 && l.error == 0;
}

static void say_losses(const struct log_losses *losses)
{
    size_t missed = console.dropped + losses->line_count;
    bool one = missed == 1;
    if (missed > 0 && !losses->closed) {
        console_say("dtrun: %zu line%s not shown%s%s%s%s\n", missed, one ? " was" : "s were",
                    losses->error != 0 ? ": " : "; the console did not read",
                    losses->error != 0 ? strerror(losses->error) : "",
                    console.where == NULL ? ""
                    : one                 ? "; it is in "
                                          : "; they are in ",
                    console.where != NULL ? console.where : "");
    }
}

void console_close(double stall_s)
{
    struct log_losses losses = {0};
    double begin_s = dt_now_s();
    if (console.writers[0] == NULL && !console.alone) {
        return;
    }
    int first = console_is_one() ? 1 : 0;
    for (int i = first; i < 2; i++) {
        settle(i, begin_s, stall_s);
    }
    (void)pthread_mutex_lock(&console.lock);
    for (int i = first; i < 2; i++) {
        end_side(i, &losses);
    }
    console.dropped += console.unsaid;
    console.writers[0] = NULL;
    console.alone = false;
    dt_text_clear(&console.held);
    (void)pthread_mutex_unlock(&console.lock);
    say_losses(&losses);
    console_missed(0, NULL);
    console.fds[0] = 1;
    console.fds[1] = 2;
}
