/* The log: one line per event on stderr (or in a file, or to the function of dt_log_to): time,
 * level, rank, module, text. Thread-safe; each line is one write. */
#ifndef DT_BASE_LOG_H
#define DT_BASE_LOG_H

#include <stddef.h>

enum dt_log_level { DT_LOG_ERROR, DT_LOG_WARN, DT_LOG_INFO, DT_LOG_DEBUG };

/* Sets the level (default warn, or DTRUN_LOG=error|warn|info|debug), the rank to show (-1: none),
 * and the descriptor (default 2). */
void dt_log_open(enum dt_log_level level, int rank, int fd);
/* Sends lines to this function instead, from any thread; null: to the descriptor again. */
void dt_log_to(void (*write)(const char *line, size_t size));
enum dt_log_level dt_log_level(void);
/* -1 for an unknown name. */
int dt_log_parse(const char *name, enum dt_log_level *out);
/* Logs one line. Values follow their names after a space: dt_log(DT_LOG_INFO, "agent", "round %d
 * nodes %d", ...). Keeps errno. */
void dt_log(enum dt_log_level level, const char *module, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
