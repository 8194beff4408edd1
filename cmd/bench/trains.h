/* Parts that benches of whole training runs share: a job with random samples, a program that is run and waited for, and
 * numbers of its metrics.jsonl. */
#ifndef DT_CMD_BENCH_TRAINS_H
#define DT_CMD_BENCH_TRAINS_H

#include "cmd/bench/jobs.h"

enum { BENCH_VOCABULARY = 65, BENCH_STEPS_MOST = 500 };

struct bench_shape { /* of a GPT-2, and its batch */
    long layers, channels, heads, positions, batch;
};

/* Writes folder/job.json and random samples beside it. `model`: null is a GPT-2 of shape s. `most_ranks` ranks read
 * as many samples as there are. */
int bench_write_job(const char *folder, const struct bench_shape *s, const struct bench_job *model, long steps,
                    long most_ranks, struct dt_error *err);
/* Runs a command; its standard output goes to `out`, the rest nowhere. most_mib: the peak memory of
 * its largest process. False: it failed. */
bool bench_program(char *const *argv, const char *out, double *most_mib);
/* Median of the values of a key in a JSON-lines file, the first `skip` left out; negative when
 * there are none. */
double bench_median_of(const char *path, const char *key, int skip);

#endif
