/* Jobs that benches train, other than GPT-2 by its size: small ones of each kind of model, which
 * tests/peers/step.py has, too, and the job of a file. Their samples are random. */
#ifndef DT_CMD_BENCH_JOBS_H
#define DT_CMD_BENCH_JOBS_H

#include "worker/job/job.h"

struct bench_job {
    const char *name;     /* "bert" */
    const char *sections; /* members of a job, data.train and all that is usual left out */
    const char *rate;     /* key in metrics.jsonl, and the unit: "tokens_per_s", "tokens/s" */
    const char *unit;
    const char *peer, *peer_size; /* --model and --size of tests/peers/step.py */
};

/* Null: there is none of that name. */
const struct bench_job *bench_job_find(const char *name);
/* "llama, bert, ..." */
const char *bench_job_names(void);
/* Reads a job file whose data.train becomes folder/train.safetensors, with more settings ("KEY=VALUE",
 * null at the end), and writes that file: as many random samples as `steps` steps of `ranks` ranks read,
 * of the fields that the model needs. What is wrong in the file goes to stderr. The caller closes the
 * job, also after an error. */
int bench_job_open(struct job *job, const char *path, const char *const *settings, const char *folder, long steps,
                   long ranks, struct dt_error *err);

#endif
