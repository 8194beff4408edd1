/* The metrics endpoint: GET /metrics over HTTP returns the job's numbers in Prometheus' exposition
 * format. The endpoint is read-only and never delays the job: request_server.h limits its clients,
 * and the text is made at most four times a second, however many clients ask. */
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
    struct dt_ports range; /* used when port is 0: the first free port of the range, or any port */
    /* Appends the text. Called from the loop. */
    void (*describe)(void *user, struct dt_text *out);
    void *user;
};

/* If the port is taken, the error names its owner. */
int exporter_open(struct exporter **out, uv_loop_t *loop, const struct exporter_options *options, struct dt_error *err);
/* "http://127.0.0.1:9400/metrics". The string lives as long as m. */
const char *exporter_url(const struct exporter *m);
/* Frees m; run the loop until its handles are closed. */
void exporter_close(struct exporter *m);

/* Classifies the part of a request that has arrived; pure. */
enum exporter_request {
    EXPORTER_MORE,    /* its headers are not complete yet */
    EXPORTER_GARBAGE, /* not HTTP/1.x */
    EXPORTER_OTHER_METHOD,
    EXPORTER_GET,
    EXPORTER_GET_NOTHING, /* another path than /metrics */
    EXPORTER_HEAD,
    EXPORTER_HEAD_NOTHING
};
enum exporter_request exporter_read(const char *request, size_t size);

/* ---- text of the exposition format, version 0.0.4 ---- */

/* Appends "# HELP" and "# TYPE" of a metric; call it before the metric's first value. type: gauge
 * or counter. */
void exporter_head(struct dt_text *out, const char *name, const char *type, const char *help);
/* Appends a label's value in quotes. Escapes backslash, quote and newline; replaces invalid
 * UTF-8. */
void exporter_label(struct dt_text *out, const char *value);
/* Appends the value as the format writes it (NaN, +Inf), and a newline. */
void exporter_value(struct dt_text *out, double value);

#endif
