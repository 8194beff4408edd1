/* One request per connection, as HTTP allows (RFC 9112, "Connection: close"), because a reader of
 * metrics asks only every few seconds. Bodies of requests, and methods other than GET and HEAD, are
 * not read. So an HTTP library would save nothing, but would cost each start of dtrun its loading
 * time. */
#include "launcher/query/exporter.h"

#include "base/clock.h"
#include "base/log.h"
#include "collectives/net.h"
#include "launcher/net/request_server.h"
#include "launcher/net/endpoint.h"
#include "launcher/net/lookup.h"
#include "launcher/net/strangers.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PLACES = 128, REQUEST_BYTES = 8192, METHOD_BYTES = 16 };
#define FRESH_S 0.25 /* requests within this time get the same text */
#define GIVES_WAY_S 0.25
#define SLOW_S 5.0
#define LOOKUP_S 2.0 /* look-up of the host's name */

struct exporter {
    struct exporter_options options;
    struct request_server *server;
    struct request_answer *answer; /* the newest answer, or null */
    double answer_s;
    struct strangers strangers;
    char url[320];
};

/* ---- the answer ---- */

static struct request_answer *make(const char *status, const char *type, const char *more, const struct dt_text *body)
{
    struct request_answer *a = request_answer_make();
    dt_text_printf(&a->text, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%sConnection: close\r\n\r\n",
                   status, type, body->size, more);
    dt_text_add(&a->text, body->data, body->size);
    return a;
}

static struct request_answer *refuse(const char *status, const char *more, const char *why)
{
    struct dt_text body;
    dt_text_init(&body);
    dt_text_printf(&body, "%s\n", why);
    struct request_answer *a = make(status, "text/plain; charset=utf-8", more, &body);
    dt_text_clear(&body);
    return a;
}

/* The caller must release the answer. */
static struct request_answer *describe(struct exporter *m)
{
    static const char type[] = "text/plain; version=0.0.4; charset=utf-8";
    if (m->answer == NULL || dt_now_s() - m->answer_s > FRESH_S) {
        struct dt_text body;
        dt_text_init(&body);
        m->options.describe(m->options.user, &body);
        request_answer_release(m->answer);
        m->answer = make("200 OK", type, "", &body);
        m->answer_s = dt_now_s(); /* the time after `describe`, however long that took */
        dt_text_clear(&body);
    }
    m->answer->users++;
    return m->answer;
}

/* Returns the answer to HEAD: the headers of `whole`, which is released. */
static struct request_answer *head_of(struct request_answer *whole)
{
    struct request_answer *head = request_answer_make();
    const char *body = strstr(dt_text_str(&whole->text), "\r\n\r\n") + 4;
    dt_text_add(&head->text, whole->text.data, (size_t)(body - whole->text.data));
    request_answer_release(whole);
    return head;
}

/* ---- the request ---- */

/* Drops a connection that does not speak HTTP. Logs at most one line per host and minute. */
static enum request_verdict drop(struct exporter *m, int fd, const char *what)
{
    struct sockaddr_storage from = {0};
    socklen_t size = sizeof from;
    char name[LOOKUP_NAME_BYTES], more[STRANGERS_MORE_BYTES];
    if (getpeername(fd, (struct sockaddr *)&from, &size) == 0 &&
        strangers_refused(&m->strangers, (struct sockaddr *)&from, dt_now_s(), more)) {
        dt_log(DT_LOG_WARN, "metrics", "connection from %s dropped: %s%s",
               lookup_name((struct sockaddr *)&from, name, sizeof name), what, more);
    }
    return REQUEST_DROP;
}

/* Size of the request up to the empty line after its headers; 0: that line has not arrived. */
static size_t head_size(const char *request, size_t size)
{
    for (const char *p = request; (p = memchr(p, '\n', size - (size_t)(p - request))) != NULL; p++) {
        size_t left = size - (size_t)(p - request);
        size_t end = left > 1 && p[1] == '\n' ? 2 : left > 2 && p[1] == '\r' && p[2] == '\n' ? 3 : 0;
        if (end > 0) {
            return (size_t)(p - request) + end;
        }
    }
    return 0;
}

struct word {
    const char *text;
    size_t size;
};

static bool is_word(struct word w, const char *text)
{
    return w.size == strlen(text) && memcmp(w.text, text, w.size) == 0;
}

static bool starts(struct word w, const char *text)
{
    size_t n = strlen(text);
    return w.size >= n && memcmp(w.text, text, n) == 0;
}

/* Returns the text up to `end`, or to the end of *rest. *rest then begins behind it. */
static struct word take_word(struct word *rest, char end)
{
    const char *found = memchr(rest->text, end, rest->size);
    struct word w = {rest->text, found != NULL ? (size_t)(found - rest->text) : rest->size};
    size_t gone = w.size + (found != NULL);
    *rest = (struct word){rest->text + gone, rest->size - gone};
    return w;
}

/* Whether the request begins with capital letters and a space, as far as it has arrived. */
static bool may_be_http(struct word request)
{
    size_t n = 0;
    while (n < request.size && n < METHOD_BYTES && isupper((unsigned char)request.text[n])) {
        n++;
    }
    return n == request.size || (n > 0 && request.text[n] == ' ');
}

enum exporter_request exporter_read(const char *request, size_t size)
{
    struct word rest = {request, size};
    /* some clients send an empty line after their last request (RFC 9112, 2.2) */
    while (starts(rest, "\r\n")) {
        rest = (struct word){rest.text + 2, rest.size - 2};
    }
    if (!may_be_http(rest) && !is_word(rest, "\r")) {
        return EXPORTER_GARBAGE;
    }
    if (head_size(rest.text, rest.size) == 0) {
        return EXPORTER_MORE;
    }
    struct word line = take_word(&rest, '\n');
    struct word method = take_word(&line, ' '), target = take_word(&line, ' '), path = take_word(&target, '?');
    if (!starts(line, "HTTP/1.")) {
        return EXPORTER_GARBAGE;
    }
    if (starts(path, "http://")) { /* the form of a request to a proxy */
        path = (struct word){path.text + 7, path.size - 7};
        const char *slash = memchr(path.text, '/', path.size);
        path = slash != NULL ? (struct word){slash, path.size - (size_t)(slash - path.text)} : (struct word){"/", 1};
    }
    bool get = is_word(method, "GET"), head = is_word(method, "HEAD");
    if (!get && !head) {
        return EXPORTER_OTHER_METHOD;
    }
    bool found = is_word(path, "/metrics");
    return get ? (found ? EXPORTER_GET : EXPORTER_GET_NOTHING) : found ? EXPORTER_HEAD : EXPORTER_HEAD_NOTHING;
}

static enum request_verdict take(void *user, int fd, const char *request, size_t size, struct request_answer **answer)
{
    struct exporter *m = user;
    enum exporter_request what = exporter_read(request, size);
    switch (what) {
    case EXPORTER_MORE:
        return size < REQUEST_BYTES ? REQUEST_MORE : drop(m, fd, "sends a request without end");
    case EXPORTER_GARBAGE:
        return drop(m, fd, "does not speak HTTP/1.1");
    case EXPORTER_OTHER_METHOD:
        *answer = refuse("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "only GET and HEAD");
        break;
    case EXPORTER_GET_NOTHING:
    case EXPORTER_HEAD_NOTHING:
        *answer = refuse("404 Not Found", "", "there is /metrics only");
        break;
    default:
        *answer = describe(m);
    }
    if (what == EXPORTER_HEAD || what == EXPORTER_HEAD_NOTHING) {
        *answer = head_of(*answer);
    }
    return REQUEST_ANSWER;
}

/* ---- open, close ---- */

/* Opens a socket on the host's address, at the port or one of the range. The look-up has a time
 * limit, so that a silent name server does not delay the job. */
static int listen_at(const struct exporter_options *o, int *fd, int *port, struct dt_error *err)
{
    struct lookup_list list;
    char host[LOOKUP_NAME_BYTES], owner[128];
    if (lookup_within(o->host, 0, LOOKUP_S, NULL, &list, err) != 0) {
        return -1;
    }
    int best = 0; /* prefer IPv4 for a name such as localhost, because others expect it there */
    for (int i = list.count - 1; i >= 0; i--) {
        best = list.addresses[i].ss_family == AF_INET ? i : best;
    }
    (void)lookup_host((struct sockaddr *)&list.addresses[best], host, sizeof host);
    struct dt_net net = {.fd = -1};
    int rc = o->port == 0 ? dt_net_listen_within(&net, host, &o->range, 0, NULL, port, err)
                          : dt_net_listen(&net, host, o->port, 0, NULL, port, err);
    if (rc != 0 && o->port > 0 && err->status == DT_IO && endpoint_port_owner(o->port, owner, sizeof owner)) {
        return dt_fail(err, DT_IO, "port %d: already in use by %s", o->port, owner);
    }
    *fd = net.fd;
    return rc;
}

int exporter_open(struct exporter **out, uv_loop_t *loop, const struct exporter_options *options, struct dt_error *err)
{
    int fd = -1, port = 0;
    char at[288];
    if (listen_at(options, &fd, &port, err) != 0) {
        return -1;
    }
    struct exporter *m = dt_alloc(sizeof *m);
    m->options = *options;
    struct request_server_options a = {.places = PLACES,
                                       .request_bytes = REQUEST_BYTES,
                                       .timeout_s = SLOW_S,
                                       .evict_after_s = GIVES_WAY_S,
                                       .take = take,
                                       .user = m};
    if (request_server_open(&m->server, loop, fd, &a, err) != 0) {
        (void)close(fd);
        free(m);
        return -1;
    }
    (void)snprintf(m->url, sizeof m->url, "http://%s/metrics", dt_net_name(options->host, port, at, sizeof at));
    *out = m;
    return 0;
}

const char *exporter_url(const struct exporter *m)
{
    return m->url;
}

void exporter_close(struct exporter *m)
{
    request_server_close(m->server);
    request_answer_release(m->answer);
    free(m);
}

/* ---- text ---- */

void exporter_head(struct dt_text *out, const char *name, const char *type, const char *help)
{
    dt_text_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Writes the value like JSON. JSON knows more escapes than the format; characters that need those
 * become '?'. */
void exporter_label(struct dt_text *out, const char *value)
{
    char *plain = dt_strdup(value);
    dt_text_make_harmless(plain, true);
    dt_text_json(out, plain, strlen(plain));
    free(plain);
}

void exporter_value(struct dt_text *out, double value)
{
    if (isnan(value)) {
        dt_text_puts(out, " NaN\n");
    } else if (isinf(value)) {
        dt_text_puts(out, value > 0 ? " +Inf\n" : " -Inf\n");
    } else {
        char shortest[40];
        (void)snprintf(shortest, sizeof shortest, "%.15g", value);
        bool exact = strtod(shortest, NULL) == value;
        dt_text_printf(out, exact ? " %.15g\n" : " %.17g\n", value);
    }
}
