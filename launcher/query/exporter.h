/* The metrics endpoint: who sends GET /metrics over HTTP is given the job's numbers as text of
 * Prometheus' exposition format. It shows, it takes nothing, and it never holds up the job: what
 * request_server.h bounds, and the text is made at most four times a second, however many ask. */
#ifndef DT_LAUNCHER_QUERY_EXPORTER_H
#define DT_LAUNCHER_QUERY_EXPORTER_H

#include "base/error.h"
#include "base/text.h"
#include "collectives/net.h"

#include <uv.h>

struct exporter;

struct exporter_options {
    const char *host;
    int port;
    struct dt_ports range; /* port 0: the first free one of it, or any */
    /* Appends the text. Called from the loop. */
    void (*describe)(void *user, struct dt_text *out);
    void *user;
};

/* On failure the text names who has the port. */
int exporter_open(struct exporter **out, uv_loop_t *loop, const struct exporter_options *options, struct dt_error *err);
/* "http://127.0.0.1:9400/metrics", which lives as long as m. */
const char *exporter_url(const struct exporter *m);
/* Frees m; run the loop until its handles are closed. */
void exporter_close(struct exporter *m);

/* What has come of a request means; pure. */
enum exporter_request {
    EXPORTER_MORE,    /* not its whole head yet */
    EXPORTER_GARBAGE, /* no HTTP/1.x */
    EXPORTER_OTHER_METHOD,
    EXPORTER_GET,
    EXPORTER_GET_NOTHING, /* of another path */
    EXPORTER_HEAD,
    EXPORTER_HEAD_NOTHING
};
enum exporter_request exporter_read(const char *request, size_t size);

/* ---- text of the exposition format, version 0.0.4 ---- */

/* "# HELP" and "# TYPE" of a metric, before its first value; type: gauge or counter. */
void exporter_head(struct dt_text *out, const char *name, const char *type, const char *help);
/* A label's value with quotes: backslash, quote and line end escaped, what is no UTF-8 replaced. */
void exporter_label(struct dt_text *out, const char *value);
/* The value as the format spells it (NaN, +Inf), and the end of the line. */
void exporter_value(struct dt_text *out, double value);

#endif
