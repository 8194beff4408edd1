/* The queue is a list of blocks. Small pieces for one sink are joined in one block, so a million
 * lines a second cost few writes. The thread takes the first block and writes it, outside the lock,
 * in pieces of at most a pipe's atomic size. Every written piece counts as progress. */
#include "launcher/output/log_writer.h"

#include "base/clock.h"
#include "base/text.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK_BYTES = 32768, PIECE_BYTES = 4096 };

struct log_sink {
    int fd;
    bool own, closed; /* closed: a write failed with EPIPE */
};

struct block {
    struct block *next;
    struct log_sink *sink;
    size_t size;
    bool end; /* the sink ends after these data */
    char data[BLOCK_BYTES];
};

struct log_writer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* there is work, or work has been done */
    struct block *first, *last;
    struct log_sink *sinks[2]; /* sinks that are not owned; freed with the writer */
    size_t sink_count;
    size_t waiting_bytes; /* includes the block being written */
    bool busy;            /* the thread is writing a block */
    bool stop;            /* end once the queue is empty */
    bool abandoned;       /* the owner has gone: the thread frees everything when it is done */
    double progress_s;
    struct log_losses losses;
};

/* Ends a sink. Returns 0, or the error of a delayed write. */
static int end_sink(struct log_sink *s)
{
    int error = s->own && close(s->fd) != 0 && errno != EINTR ? errno : 0;
    free(s);
    return error;
}

static void destroy(struct log_writer *w)
{
    while (w->first != NULL) {
        struct block *b = w->first;
        w->first = b->next;
        if (b->end) {
            end_sink(b->sink);
        }
        free(b);
    }
    for (size_t i = 0; i < w->sink_count; i++) {
        free(w->sinks[i]);
    }
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}

static size_t count_lines(const char *data, size_t size)
{
    size_t count = 0;
    for (const char *end = data + size; (data = memchr(data, '\n', (size_t)(end - data))) != NULL; data++) {
        count++;
    }
    return count;
}

/* Writes one piece. Returns the number of bytes written; after an error that will last, 0 with
 * *error set. */
static size_t write_piece(int fd, const char *data, size_t size, int *error)
{
    for (;;) {
        ssize_t n = write(fd, data, size);
        if (n > 0) {
            return (size_t)n;
        }
        /* another process that shares the console made it non-blocking */
        if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            (void)poll(&p, 1, 1000);
        } else if (n == 0 || errno != EINTR) {
            *error = n == 0 ? EIO : errno;
            return 0;
        }
    }
}

/* Cuts at a line's end, so that other writers' lines in the same pipe come between whole lines. */
static size_t next_piece(const char *data, size_t size)
{
    const char *last = size > PIECE_BYTES ? memrchr(data, '\n', PIECE_BYTES) : NULL;
    return last != NULL ? (size_t)(last + 1 - data) : size < PIECE_BYTES ? size : PIECE_BYTES;
}

static void write_block(struct log_writer *w, struct block *b)
{
    size_t at = 0;
    int error = 0;
    bool closed = b->sink->closed, abandoned = false;
    while (at < b->size && error == 0 && !closed && !abandoned) {
        size_t n = next_piece(b->data + at, b->size - at);
        n = write_piece(b->sink->fd, b->data + at, n, &error);
        at += n;
        (void)pthread_mutex_lock(&w->lock);
        w->progress_s = dt_now_s();
        w->waiting_bytes -= n;
        abandoned = w->abandoned;
        (void)pthread_mutex_unlock(&w->lock);
    }
    b->sink->closed = closed || error == EPIPE;
    int late = b->end ? end_sink(b->sink) : 0;
    error = error != 0 ? error : late;
    (void)pthread_mutex_lock(&w->lock);
    w->waiting_bytes -= b->size - at;
    if (error == EPIPE) {
        w->losses.closed = true;
    } else if (error != 0) {
        w->losses.error = w->losses.error == 0 ? error : w->losses.error;
        w->losses.bytes += b->size - at;
        w->losses.line_count += count_lines(b->data + at, b->size - at);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

static void *run(void *argument)
{
    struct log_writer *w = argument;
    (void)pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->first == NULL && !w->stop) {
            (void)pthread_cond_wait(&w->changed, &w->lock);
        }
        if (w->first == NULL || w->abandoned) {
            break;
        }
        struct block *b = w->first;
        w->first = b->next;
        if (w->first == NULL) {
            w->last = NULL;
        }
        w->busy = true;
        (void)pthread_mutex_unlock(&w->lock);
        write_block(w, b);
        free(b);
        (void)pthread_mutex_lock(&w->lock);
        w->busy = false;
        (void)pthread_cond_broadcast(&w->changed);
    }
    bool abandoned = w->abandoned;
    (void)pthread_mutex_unlock(&w->lock);
    if (abandoned) {
        destroy(w);
    }
    return NULL;
}

/* Explains why no thread can be started, and what to change. The library also says EAGAIN when the
 * thread's stack does not fit. */
static void explain(int code, struct dt_error *err)
{
    struct rlimit space;
    bool limited = getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY;
    (void)dt_fail(err, DT_NO_MEMORY, "cannot start a thread for output: %s; %s", strerror(code),
                  limited ? "raise the limit of address space (ulimit -v)"
                          : "look at ulimit -u and the limit of the control group");
}

struct log_writer *log_writer_open(struct dt_error *err)
{
    struct log_writer *w = dt_alloc(sizeof *w);
    pthread_condattr_t attributes;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&w->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    /* Only the loop's thread handles signals. A closed pipe is seen as EPIPE. */
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&w->thread, NULL, run, w);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        destroy(w);
        explain(failed, err);
        return NULL;
    }
    return w;
}

struct log_sink *log_writer_sink(struct log_writer *w, int fd, bool own)
{
    struct log_sink *s = dt_alloc(sizeof *s);
    s->fd = fd;
    s->own = own;
    if (!own && w->sink_count < 2) {
        w->sinks[w->sink_count++] = s;
    }
    return s;
}

/* The block at the end of the queue, for this sink and with so much room; a new one if need be.
 * Called with the lock held. */
static struct block *last_block(struct log_writer *w, struct log_sink *s, size_t room)
{
    if (w->last == NULL || w->last->sink != s || w->last->size + room > BLOCK_BYTES || w->last->end) {
        struct block *b = malloc(sizeof *b);
        if (b == NULL) {
            abort();
        }
        b->next = NULL;
        b->sink = s;
        b->size = 0;
        b->end = false;
        if (w->first == NULL && !w->busy) {
            w->progress_s = dt_now_s();
        }
        *(w->last != NULL ? &w->last->next : &w->first) = b;
        w->last = b;
        (void)pthread_cond_broadcast(&w->changed);
    }
    return w->last;
}

void log_writer_put(struct log_writer *w, struct log_sink *s, const void *data, size_t size)
{
    const char *p = data;
    (void)pthread_mutex_lock(&w->lock);
    w->waiting_bytes += size;
    while (size > 0) {
        struct block *b = last_block(w, s, size <= PIECE_BYTES ? size : 1);
        size_t n = BLOCK_BYTES - b->size < size ? BLOCK_BYTES - b->size : size;
        memcpy(b->data + b->size, p, n);
        b->size += n;
        p += n;
        size -= n;
    }
    (void)pthread_mutex_unlock(&w->lock);
}

void log_writer_end(struct log_writer *w, struct log_sink *s)
{
    (void)pthread_mutex_lock(&w->lock);
    last_block(w, s, 0)->end = true;
    (void)pthread_mutex_unlock(&w->lock);
}

size_t log_writer_size(struct log_writer *w)
{
    (void)pthread_mutex_lock(&w->lock);
    size_t size = w->waiting_bytes;
    (void)pthread_mutex_unlock(&w->lock);
    return size;
}

double log_writer_stalled_s(struct log_writer *w)
{
    (void)pthread_mutex_lock(&w->lock);
    double stalled_s = w->waiting_bytes > 0 ? dt_now_s() - w->progress_s : 0;
    (void)pthread_mutex_unlock(&w->lock);
    return stalled_s;
}

struct log_losses log_writer_losses(struct log_writer *w)
{
    (void)pthread_mutex_lock(&w->lock);
    struct log_losses losses = w->losses;
    (void)pthread_mutex_unlock(&w->lock);
    return losses;
}

/* Called with the lock held. */
static bool wait_empty(struct log_writer *w, double timeout_s)
{
    struct timespec until = dt_timespec(dt_now_s() + timeout_s);
    while (w->first != NULL || w->busy) {
        if (pthread_cond_timedwait(&w->changed, &w->lock, &until) == ETIMEDOUT) {
            return w->first == NULL && !w->busy;
        }
    }
    return true;
}

bool log_writer_flush(struct log_writer *w, double timeout_s)
{
    (void)pthread_mutex_lock(&w->lock);
    bool empty = wait_empty(w, timeout_s);
    (void)pthread_mutex_unlock(&w->lock);
    return empty;
}

struct log_losses log_writer_close(struct log_writer *w, double timeout_s)
{
    (void)pthread_mutex_lock(&w->lock);
    bool empty = wait_empty(w, timeout_s);
    struct log_losses losses = w->losses;
    if (!empty) {
        losses.bytes += w->waiting_bytes;
        for (struct block *b = w->first; b != NULL; b = b->next) {
            losses.line_count += count_lines(b->data, b->size);
        }
        /* the thread may hang in write() for ever, so it keeps its memory and frees it when write()
         * returns */
        w->abandoned = true;
    }
    w->stop = true;
    (void)pthread_cond_broadcast(&w->changed);
    pthread_t thread = w->thread;
    (void)pthread_mutex_unlock(&w->lock);
    if (empty) {
        (void)pthread_join(thread, NULL);
        destroy(w);
    } else {
        (void)pthread_detach(thread);
    }
    return losses;
}
