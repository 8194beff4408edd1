/* A thread that writes: a bounded memory of blocks for files or for the console, so that the
 * loop never waits for a disk or a terminal. The owner asks for the size of what is waiting and
 * decides itself whether to read on, to hold back or to drop. */
#ifndef DT_LAUNCHER_OUTPUT_LOG_WRITER_H
#define DT_LAUNCHER_OUTPUT_LOG_WRITER_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct log_writer;
struct log_sink; /* one file or one side of the console */

/* What could not be written. error: errno of the first failure that was not a closed pipe, 0 for
 * none. */
struct log_losses {
    size_t line_count, bytes;
    int error;
    bool closed; /* somebody closed the other end: everything since then is gone, silently */
};

/* Null when there is no thread to be had. */
struct log_writer *log_writer_open(struct dt_error *err);
/* A sink over fd. own: log_writer_end closes it. */
struct log_sink *log_writer_sink(struct log_writer *w, int fd, bool own);
/* Copies the pieces to the end of the queue, together. */
void log_writer_put(struct log_writer *w, struct log_sink *s, const void *data, size_t size);
/* The sink ends after what is queued for it; the pointer is invalid from now on. */
void log_writer_end(struct log_writer *w, struct log_sink *s);
/* Bytes that wait. */
size_t log_writer_size(struct log_writer *w);
/* Seconds since something could last be written while something waits; 0 when nothing does. */
double log_writer_stalled_s(struct log_writer *w);
struct log_losses log_writer_losses(struct log_writer *w);
/* Waits until all is written, at most timeout_s; true when it is. */
bool log_writer_flush(struct log_writer *w, double timeout_s);
/* Waits as flush does, then ends the thread and frees. A thread that hangs in a write is left
 * alone with its memory; what it held counts as lost. Returns the losses. */
struct log_losses log_writer_close(struct log_writer *w, double timeout_s);

#endif
