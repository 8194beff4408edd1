/* What is said when a worker failed: the error file it left, which failure came first, the cause
 * line, torchrun's block, our own error file for a launcher above us, and events.jsonl. Text in,
 * text out; the caller prints. */
#ifndef DT_LAUNCHER_OUTPUT_REPORT_H
#define DT_LAUNCHER_OUTPUT_REPORT_H

#include "base/error.h"
#include "base/text.h"
#include "launcher/output/cause.h"

#include <stdbool.h>
#include <sys/types.h>

struct report_failure {
    int local_rank, rank;
    pid_t pid;
    int exit_code;      /* negative: killed by that signal */
    double wall_s;      /* when the launcher noticed */
    bool stopped_by_us; /* a peer that we ended: never the first cause */
    bool out_of_memory; /* the kernel killed it for memory */
    int follows;        /* it ended with the words of this rank, which has not ended here; -1:
                         * with its own */
    int64_t step;       /* in which it ended; -1: before the first, or unknown */
    char host[256];
    enum dt_status status; /* of a note from the page; else DT_OK */
    struct dt_blame blame; /* of the note */
    uint32_t digest;       /* of what happened, as struct cause has it */
    /* cause in words when somebody knows better than the code: the page's note, "out of memory ...",
     * "no pulse for 60.0 s in all_reduce 17"; empty otherwise */
    char note[512];
    /* filled in by report_read_error_file */
    char *error_file;   /* path, or null: the worker wrote none (or one we could not use) */
    char *message;      /* or null */
    char *callstack;    /* or null */
    double file_time_s; /* timestamp in the file, 0 without */
    double written_s;   /* when it was written last; 0: nobody knows to the fraction of a second */
    char *raw;          /* the file's text, for the parent's error file */
};

void report_failure_init(struct report_failure *f);
void report_failure_clear(struct report_failure *f);
/* Reads what the worker wrote (at most 1 MiB, both of PyTorch's forms). A missing or empty file
 * is no error: nothing is filled in. A file that is no such JSON is kept as plain text in
 * `message`, control characters made harmless later; never fails. path may be null or "". */
void report_read_error_file(struct report_failure *f, const char *path);
/* Index of the first cause: the earliest time among those we did not stop ourselves (file time
 * where there is one, in whole seconds; on a tie by when the file was written, or the end
 * noticed; then the earlier recorded). -1 when count is 0. */
int report_root(const struct report_failure *f, int count);
/* "SIGKILL" for 9, "SIGRTMIN+1" ..., "signal 99". */
const char *report_signal_name(int number, char *buffer, size_t size);

/* The failure as other hosts are told it. */
void report_to_cause(const struct report_failure *f, enum cause_kind kind, struct cause *out);
/* The cause line, without newline: "dtrun: host b rank 5 (local 1, pid 4242): killed by signal 9
 * (SIGKILL); 3 other ranks stopped because of it". The caller may append "; restarting (1 of 3
 * used)". */
void report_cause(const struct report_failure *f, int count, int root, struct dt_text *out);

struct report_context {
    const char *title;            /* the script as given */
    const char *tail;             /* the root's last lines, or null */
    const char *log_dir;          /* where its full log is, or null */
    const char *continue_command; /* or null */
    int restarts_used, restarts_max;
    const char *no_restart; /* an option that forbade a restart after the root's exit code, or
                             * null */
};
/* The whole report: cause line, torchrun's block ("train.py FAILED", Failures, Root Cause), last
 * lines, where the log is, how to go on. */
void report_write(const struct report_failure *f, int count, int root, const struct report_context *c,
                  struct dt_text *out);
/* Writes the root's error file for the launcher that started us (our own
 * TORCHELASTIC_ERROR_FILE), with "errorCode" added; one is made up from the cause when the
 * worker left none. parent_path null or "": nothing to do. */
int report_write_parent(const char *parent_path, const struct report_failure *f, struct dt_error *err);

/* One line of events.jsonl: {"time":"...","event":"round", ...fields}. `fields` is the inside of
 * a JSON object (null or "": none); build it with dt_text_json for strings. path null: nothing.
 * One O_APPEND write. */
int report_event(const char *path, const char *event, const char *fields, struct dt_error *err);
/* The fields of a failure for report_event:
 * "rank":5,"local_rank":1,"pid":...,"exit_code":-9,"host":"b","cause":"..." */
void report_event_failure(const struct report_failure *f, struct dt_text *out);

#endif
