/* A worker's bytes as lines to read. Pure, no files. */
#ifndef DT_LAUNCHER_OUTPUT_LOG_LINES_H
#define DT_LAUNCHER_OUTPUT_LOG_LINES_H

#include "base/text.h"

enum { LOG_LINE_BYTES = 65536 }; /* longer lines are cut on the console; files hold all bytes */

/* Collects bytes into lines. A line ends at a newline or at a carriage return, neither of which is
 * part of the line. Progress bars use carriage returns, which could hide a prefix. Empty lines made
 * by carriage returns are left out. */
struct log_lines {
    struct dt_text line; /* bytes of the unfinished line */
    bool cut;            /* the line was cut, and the rest of it is skipped */
    bool after_return;
};
typedef void log_line_fn(void *context, const char *line, size_t size);
void log_lines_feed(struct log_lines *l, const char *data, size_t size, log_line_fn *each, void *context);
/* Passes on the unfinished line, if any. */
void log_lines_end(struct log_lines *l, log_line_fn *each, void *context);
void log_lines_clear(struct log_lines *l);

/* Makes the prefix of a worker's lines. template may hold ${role_name}, ${hostname}, ${local_rank},
 * ${rank}, ${group_rank} and ${world_size}; the last four are in `numbers`. The caller frees the
 * prefix. */
char *log_prefix(const char *template, const char *role, const char *host, const int numbers[4]);
/* Appends the bytes in a form that is harmless for a terminal: control characters become visible
 * (^G, <9b>), bytes that are no UTF-8 become <ff>, tabs stay. Colours stay with `colours`, and are
 * ended after the text; else they are left out. */
void log_safe(struct dt_text *out, const char *data, size_t size, bool colours);
/* Appends the last lines of tail, at most line_count lines of at most 2000 bytes each, harmless and
 * each with a newline. Empty lines at the end are left out. Returns the number of lines. */
int log_last_lines(const struct dt_text *tail, int line_count, struct dt_text *out);

#endif
