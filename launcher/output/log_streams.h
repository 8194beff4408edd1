/* The streams of logs.c: what is read of them, when reading pauses, and what the console gets. */
#ifndef DT_LAUNCHER_OUTPUT_LOG_STREAMS_H
#define DT_LAUNCHER_OUTPUT_LOG_STREAMS_H

#include "launcher/output/log_lines.h"
#include "launcher/output/log_rate.h"
#include "launcher/output/log_writer.h"
#include "launcher/output/logs.h"

struct stream {
    uv_pipe_t pipe;
    struct logs *l;
    int local_rank, which; /* which: 0 stdout, 1 stderr */
    int child_fd;          /* the worker's end of the pipe, until logs_spawned */
    /* state of the handle; orphan: its close callback frees the stream */
    bool open, closed, orphan;
    bool shown; /* copied to the console */
    struct log_sink *file;
    char *prefix;
    struct log_lines lines;
    size_t printed;   /* bytes of the unfinished line that are on the console already */
    double waiting_s; /* since when other bytes of this line wait; 0: none do */
    struct dt_text tail;
    double last_s;
    struct log_rate rate;
};

struct worker {
    char *dir, *error_file;
    struct stream *streams[2]; /* null: the worker inherits ours */
};

struct logs {
    uv_loop_t *loop;
    uv_timer_t *timer;
    const struct options *o;
    /* the folder made by default, which is removed if it stays empty; or null */
    char *base;
    char *dir, *attempt_dir; /* null for /dev/null */
    struct log_writer *files;
    /* one file per output for all workers of --ranks_filter, of this attempt */
    struct log_sink *filtered[2];
    bool terminal[2], same_console, colours;
    /* the stream whose unfinished line is on that output (slot 0 for both when they are one
     * console) */
    struct stream *partial[2];
    struct worker *workers;
    int worker_count, first_rank, group_rank, world_size;
    char host[256];
    bool paused, dropping, warned;
    /* lines that the console missed: all, and those already reported */
    size_t dropped_count, reported_count;
    struct dt_text scratch;
    char buffer[65536];
};

/* Reads the worker's end of the pipe at fd, which is the stream's from now on. Returns libuv's code, 0
 * when all is well; a handle that was begun is closed by log_streams_drain. */
int log_stream_begin(struct stream *s, int fd);
/* Of a stream whose handle has closed. */
void log_stream_free(struct stream *s);
/* Reads what is left in a worker's pipes. last: ends an unfinished line and closes, even if another
 * process still holds the other end. */
void log_streams_drain(struct logs *l, int local_rank, bool last);
/* Says once that a file could not be written. */
void log_streams_check(struct logs *l);
/* A line of ours among those of the workers. */
void log_streams_tell(const char *text);

#endif
