/* Bytes of a worker as lines for people: pure, no files. */
#ifndef DT_LAUNCHER_OUTPUT_LOG_LINES_H
#define DT_LAUNCHER_OUTPUT_LOG_LINES_H

#include "base/text.h"

enum { LOG_LINE_BYTES = 65536 }; /* longer lines are cut on the console; files hold all bytes */

/* Collects bytes into lines. A line ends at a newline, or at a carriage return (progress bars;
 * it could hide a prefix), which are not part of it. Empty lines made by carriage returns are
 * left out. */
struct log_lines {
    struct dt_text line; /* what came since the last end */
    bool cut;            /* the rest of this line is skipped */
    bool after_return;
};
typedef void log_line_fn(void *context, const char *line, size_t size);
void log_lines_feed(struct log_lines *l, const char *data, size_t size, log_line_fn *each, void *context);
/* The unfinished line, if any. */
void log_lines_end(struct log_lines *l, log_line_fn *each, void *context);
void log_lines_clear(struct log_lines *l);

/* The prefix of a worker's lines: template with ${role_name}, ${hostname}, ${local_rank},
 * ${rank}, ${group_rank} and ${world_size}, the last four as in `numbers`. The caller frees. */
char *log_prefix(const char *template, const char *role, const char *host, const int numbers[4]);
/* Appends the bytes harmless for a terminal: control characters visible (^G, <9b>), bytes that
 * are no UTF-8 as <ff>. Tabs stay. Colours stay with `colours` (and are ended after it), and are
 * left out otherwise. */
void log_safe(struct dt_text *out, const char *data, size_t size, bool colours);
/* Appends the last lines of tail (at most line_count, each at most 2000 bytes), harmless and
 * each with a newline; empty ones at the end are left out. Returns their number. */
int log_last_lines(const struct dt_text *tail, int line_count, struct dt_text *out);

#endif
