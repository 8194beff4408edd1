/* Whether a stream floods: how much came in each second, and when to say so. Pure. */
#ifndef DT_LAUNCHER_OUTPUT_LOG_RATE_H
#define DT_LAUNCHER_OUTPUT_LOG_RATE_H

#include <stdbool.h>
#include <stddef.h>

struct log_rate { /* all zero to begin with */
    double since_s, told_s;
    size_t bytes, line_count;
};

/* Takes note of what came at now_s (monotonic). True once a minute at most, after a second of a
 * flood: `out` says then "41.2 MiB and 1023000 lines a second". */
bool log_rate_add(struct log_rate *r, const char *data, size_t size, double now_s, char *out, size_t out_bytes);

#endif
