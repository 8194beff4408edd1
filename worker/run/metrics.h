/* What a run tells: metrics.jsonl (one object per logged step), events.jsonl, lines on stderr,
 * and logs/rank-N.log. Only rank 0 writes the first three; on the other ranks those calls do
 * nothing. A metrics file that cannot be written costs one warning, never the run. */
#ifndef DT_WORKER_RUN_METRICS_H
#define DT_WORKER_RUN_METRICS_H

#include "base/text.h"
#include "worker/engine/step_sums.h"
#include "worker/engine/gpu_watch.h"

#include <stdbool.h>
#include <stdint.h>

struct metrics_step {
    int64_t step, total_steps; /* done so far */
    double epoch;
    int64_t tokens;      /* since the start of the run */
    int64_t targets;     /* of this step, all ranks */
    int64_t blank_steps; /* since the start of the run: without any target */
    double loss, grad_norm, lr, step_s, tokens_per_s;
    double mfu; /* share of all ranks' peak; not finite: unknown */
    double memory_bytes;
    int round;
};

struct metrics {
    bool active, quiet, terminal, line_open, warned, log_ready;
    char *path, *events_path, *logs_dir, *log_path; /* of the output folder; the first two only
                                                     * on rank 0 */
    double begin_s, shown_s, val_loss;
    int64_t begin_step;
    struct gpu_watch *gpu; /* null: nothing is said of a GPU */
    struct dt_text line;
};

/* quiet: nothing on stderr (tests). dir null: no files. */
void metrics_open(struct metrics *m, const char *dir, int rank, bool quiet);
void metrics_close(struct metrics *m);
/* log: also one line in metrics.jsonl and, without a terminal, on stderr. */
void metrics_step(struct metrics *m, const struct metrics_step *x, bool log);
void metrics_val(struct metrics *m, const struct metrics_step *x, double val_loss);
/* One object in events.jsonl: {"event": name, ...}; `fields` is JSON members without braces, or
 * "". */
void metrics_event(struct metrics *m, const char *name, const char *fields);
/* A plain line on rank 0's stderr and in every rank's log; metrics_log: only in the log. */
void metrics_say(struct metrics *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void metrics_log(struct metrics *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Takes out of metrics.jsonl what comes after `step`, where the run goes on, and a last line
 * that a kill cut short. *evaluated: it holds an evaluation of `step`. */
int metrics_cut(struct metrics *m, int64_t step, bool *evaluated, struct dt_error *err);
/* Resident memory of this process now, in bytes. */
double metrics_memory(void);

#endif
