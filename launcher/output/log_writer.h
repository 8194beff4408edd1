/* A thread that writes blocks of memory to files or to the console, so that the loop never waits
 * for a disk or a terminal. The owner reads the size of the queue, and decides whether to read on,
 * to pause or to drop. */
#ifndef DT_LAUNCHER_OUTPUT_LOG_WRITER_H
#define DT_LAUNCHER_OUTPUT_LOG_WRITER_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct log_writer;
struct log_sink; /* one file, or one output of the console */

/* What could not be written. error: errno of the first failure other than a closed pipe; 0 for
 * none. */
struct log_losses {
    size_t line_count, bytes;
    int error;
    bool closed; /* the reader closed its end: everything since then was dropped silently */
};

/* Null when no thread can be started. */
struct log_writer *log_writer_open(struct dt_error *err);
/* Makes a sink over fd. own: log_writer_end closes fd. */
struct log_sink *log_writer_sink(struct log_writer *w, int fd, bool own);
/* Copies the data to the end of the queue. */
void log_writer_put(struct log_writer *w, struct log_sink *s, const void *data, size_t size);
/* Ends the sink once its data are written. The pointer is invalid from now on. */
void log_writer_end(struct log_writer *w, struct log_sink *s);
/* Bytes in the queue. */
size_t log_writer_size(struct log_writer *w);
/* Seconds since the last successful write, while bytes wait; 0 when none wait. */
double log_writer_stalled_s(struct log_writer *w);
struct log_losses log_writer_losses(struct log_writer *w);
/* Waits at most timeout_s until all is written; true when it is. */
bool log_writer_flush(struct log_writer *w, double timeout_s);
/* Flushes, then ends the thread and frees. A thread that hangs in a write keeps its memory, and its
 * bytes count as lost. Returns the losses. */
struct log_losses log_writer_close(struct log_writer *w, double timeout_s);

#endif
