#include "launcher/workers/ras.h"

#include "launcher/net/endpoint.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { PORT = 28028, TRIES = 8, ANSWER_BYTES = 1 << 20, FIRST_LINES = 10, LINES = 60, LINE_BYTES = 200 };

struct attempt { /* one connection */
    struct ras *ras;
    uv_tcp_t socket;
    uv_connect_t connecting;
    uv_write_t greeting, asking;
    bool ended;
};

struct ras {
    struct ras_options options;
    struct attempt attempts[TRIES];
    struct attempt *chosen; /* the first attempt that received a greeting */
    uv_timer_t timer;
    int handles;
    bool over, whole;
    char question[64];
    struct dt_text answer;
    char buffer[4096];
};

static void release(struct ras *r)
{
    if (--r->handles == 0) {
        dt_text_clear(&r->answer);
        free(r);
    }
}

static void on_attempt_closed(uv_handle_t *handle)
{
    release(((struct attempt *)handle->data)->ras);
}

static void on_timer_closed(uv_handle_t *handle)
{
    release(handle->data);
}

/* r must not be used after `done`, which may close it. */
static void end(struct ras *r, bool whole)
{
    if (r->over) {
        return;
    }
    r->over = true;
    r->whole = whole;
    (void)uv_timer_stop(&r->timer);
    for (int i = 0; i < TRIES; i++) {
        (void)uv_read_stop((uv_stream_t *)&r->attempts[i].socket);
    }
    r->options.done(r->options.user);
}

static void on_time(uv_timer_t *timer)
{
    end(timer->data, false);
}

static void end_attempt(struct attempt *a)
{
    struct ras *r = a->ras;
    bool any = false;
    a->ended = true;
    (void)uv_read_stop((uv_stream_t *)&a->socket);
    for (int i = 0; i < TRIES; i++) {
        any = any || !r->attempts[i].ended;
    }
    if (!any || r->chosen == a) {
        end(r, false);
    }
}

static void on_written(uv_write_t *request, int status)
{
    if (status != 0 && status != UV_ECANCELED) {
        end_attempt(request->data);
    }
}

static int put(struct attempt *a, uv_write_t *request, const char *text)
{
    uv_buf_t buffer = uv_buf_init((char *)(uintptr_t)text, (unsigned)strlen(text));
    return uv_write(request, (uv_stream_t *)&a->socket, &buffer, 1, on_written);
}

static void on_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *out)
{
    struct ras *r = ((struct attempt *)handle->data)->ras;
    (void)suggested;
    *out = uv_buf_init(r->buffer, sizeof r->buffer);
}

static bool begins(const char *data, size_t size, const char *with)
{
    return size >= strlen(with) && strncasecmp(data, with, strlen(with)) == 0;
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer)
{
    struct attempt *a = stream->data;
    struct ras *r = a->ras;
    if (n < 0 && r->chosen == a) {
        end(r, n == UV_EOF);
    } else if (n < 0) {
        end_attempt(a);
    } else if (n > 0 && r->chosen == NULL) {
        r->chosen = begins(buffer->base, (size_t)n, "server protocol ") ? a : NULL;
        if (r->chosen == NULL || put(a, &a->asking, r->question) != 0) {
            end_attempt(a);
        }
    } else if (n > 0 && r->chosen == a) {
        dt_text_add(&r->answer, buffer->base, (size_t)n);
        if (r->answer.size > ANSWER_BYTES) {
            end(r, true); /* the part that has arrived is the answer */
        }
    }
}

static void on_connect(uv_connect_t *request, int status)
{
    struct attempt *a = request->data;
    if (a->ras->over) {
        return;
    }
    if (status != 0 || put(a, &a->greeting, "client protocol 2\n") != 0 ||
        uv_read_start((uv_stream_t *)&a->socket, on_buffer, on_read) != 0) {
        end_attempt(a);
    }
}

struct ras *ras_open(uv_loop_t *loop, const struct ras_options *options)
{
    const char *colon = options->address != NULL ? strrchr(options->address, ':') : NULL;
    int port = colon != NULL ? atoi(colon + 1) : PORT,
        patience_s = options->limit_s > 2 ? (int)options->limit_s - 1 : 1;
    struct sockaddr_storage to;
    if (port < 1 || port > 65535 || !endpoint_listeners_are(port, options->is_ours, options->user, &to)) {
        return NULL;
    }
    struct ras *r = dt_alloc(sizeof *r);
    r->options = *options;
    r->handles = 1 + TRIES;
    dt_text_init(&r->answer);
    /* the time that RAS gives ranks to answer it */
    (void)snprintf(r->question, sizeof r->question, "timeout %d\nverbose status\n", patience_s);
    uv_update_time(loop);
    (void)uv_timer_init(loop, &r->timer);
    r->timer.data = r;
    bool any = false;
    for (int i = 0; i < TRIES; i++) {
        struct attempt *a = &r->attempts[i];
        a->ras = r;
        (void)uv_tcp_init(loop, &a->socket);
        a->socket.data = a->connecting.data = a->greeting.data = a->asking.data = a;
        a->ended = uv_tcp_connect(&a->connecting, &a->socket, (const struct sockaddr *)&to, on_connect) != 0;
        any = any || !a->ended;
    }
    (void)uv_timer_start(&r->timer, on_time, any ? (uint64_t)(options->limit_s * 1e3) + 1 : 0, 0);
    return r;
}

/* Whether the line is blank, a ruler, or the reply to `timeout`. */
static bool is_empty(const char *line, size_t size)
{
    size_t words = 0;
    for (size_t i = 0; i < size; i++) {
        words += !isspace((unsigned char)line[i]) && line[i] != '=';
    }
    return words == 0 || (size == 2 && memcmp(line, "OK", 2) == 0);
}

/* Finds the next line with words from *at on. Returns false if there is none. */
static bool next_line(const struct ras *r, size_t *at, const char **line, size_t *size)
{
    while (*at < r->answer.size) {
        *line = r->answer.data + *at;
        const char *newline = memchr(*line, '\n', r->answer.size - *at);
        *size = newline != NULL ? (size_t)(newline - *line) : r->answer.size - *at;
        *at += *size + 1;
        if (!is_empty(*line, *size)) {
            return true;
        }
    }
    return false;
}

static void add_line(const char *line, size_t size, const char *indent, struct dt_text *out)
{
    dt_text_puts(out, indent);
    for (size_t i = 0; i < size && i < LINE_BYTES; i++) {
        char c = isspace((unsigned char)line[i]) ? ' ' : isprint((unsigned char)line[i]) ? line[i] : '?';
        dt_text_add(out, &c, 1);
    }
    dt_text_puts(out, "\n");
}

void ras_text(const struct ras *r, const char *indent, struct dt_text *out)
{
    const char *line;
    size_t at = 0, size;
    if (r == NULL || !next_line(r, &at, &line, &size) || !begins(line, size, "NCCL version ")) {
        return;
    }
    if (indent == NULL) {
        dt_text_add(out, r->answer.data, r->answer.size);
        return;
    }
    int count = 0, number = 0;
    for (at = 0; next_line(r, &at, &line, &size);) {
        count++;
    }
    for (at = 0; next_line(r, &at, &line, &size); number++) {
        if (number < FIRST_LINES || number >= count - (LINES - FIRST_LINES)) {
            add_line(line, size, indent, out);
        } else if (number == FIRST_LINES) {
            dt_text_printf(out, "%s... %d more lines\n", indent, count - LINES);
        }
    }
    if (!r->whole) {
        dt_text_printf(out, "%s(the rest did not come in time)\n", indent);
    }
}

void ras_close(struct ras *r)
{
    if (r != NULL) {
        r->over = true;
        for (int i = 0; i < TRIES; i++) {
            uv_close((uv_handle_t *)&r->attempts[i].socket, on_attempt_closed);
        }
        uv_close((uv_handle_t *)&r->timer, on_timer_closed);
    }
}
