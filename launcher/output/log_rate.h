/* Measures how much comes in a stream each second, and tells when to warn about a flood. Pure. */
#ifndef DT_LAUNCHER_OUTPUT_LOG_RATE_H
#define DT_LAUNCHER_OUTPUT_LOG_RATE_H

#include <stdbool.h>
#include <stddef.h>

struct log_rate { /* all zeros at first */
    double since_s, told_s;
    size_t bytes, line_count;
};

/* Counts bytes that came at now_s (monotonic). Returns true after a second of a flood, at most once
 * a minute; `out` then says "41.2 MiB and 1023000 lines a second". */
bool log_rate_add(struct log_rate *r, const char *data, size_t size, double now_s, char *out, size_t out_bytes);

#endif
