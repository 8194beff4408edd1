/* Observers: whatever wants to know what happens in a run (engine/report.h). An observer is a row
 * in observers.c and a file here.
 *
 *   stragglers.c   judges the ranks' times, and names the slow ones
 *   page.c         the page that the agent reads: results, how long the pulse may stand still; its
 *                  order to stop is a vote
 *   memory.c       the event "memory": what was planned beside what is used
 *   metrics.c      metrics.jsonl
 *   csv.c          the same numbers of steps as a table, if logging.csv says so
 *   events.c       events.jsonl
 *   console.c      lines for people: stderr of rank 0, logs/rank-N.log of every rank
 *   timeline_file.c  timeline-rank-N.json, once the steps in it are over */
#ifndef DT_WORKER_RUN_OBSERVERS_OBSERVER_H
#define DT_WORKER_RUN_OBSERVERS_OBSERVER_H

#include "worker/engine/report.h"

struct observers_options {
    bool quiet;    /* nothing on stderr (tests) */
    bool no_files; /* nothing in the output folder */
    /* Nothing is trained: data.val is evaluated once, with the weights of this checkpoint, or with "" those
     * that the run begins with. no_files is set. Null: a run. */
    const char *evaluate;
    const struct observer_ops *last; /* one more, behind the rows of the table; null: none */
    void *context;                   /* its state when it is opened */
};

/* Opens all rows of the table. observers_close (report.h) closes them. */
void observers_open(struct observers *all, const struct job *job, struct world *w, const struct observers_options *o);

/* ---- for rows that write lines ---- */

/* Appends the line to a file of the output folder. Of all files that cannot be written, the first
 * costs a warning. */
void observer_append(struct observer *o, const char *path, const struct dt_text *line);
/* Takes out of a file of lines those that `keep` (0 is the first line) refuses, and a last line that a kill
 * cut short. A file that is missing or not ours to read stays. */
int observer_keep_lines(const char *path, bool (*keep)(void *context, const char *line, int64_t number), void *context,
                        struct dt_error *err);
/* A number of a logged step. */
struct step_number {
    const char *key;
    double value;  /* not finite: not known */
    bool whole;    /* written without a fraction */
    bool may_lack; /* where it is not known, metrics.jsonl has not even the key */
};
enum { STEP_NUMBERS = 20 };
void observer_step_numbers(struct observer *o, const struct report *r, struct step_number out[STEP_NUMBERS]);
/* Appends the numbers of an evaluation as JSON members: , "val_loss": 1.25, ... */
void observer_add_evaluation(struct dt_text *out, const struct report *r);
/* "time": now, as a JSON member. */
void observer_add_time(struct dt_text *out);

extern const struct observer_ops observer_stragglers, observer_page, observer_memory, observer_metrics, observer_csv,
    observer_events, observer_time, observer_console, observer_timeline_file;

#endif
