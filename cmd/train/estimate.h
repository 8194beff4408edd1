/* train --plan --gpus N: what a job would take on GPUs that are elsewhere. */
#ifndef DT_CMD_TRAIN_ESTIMATE_H
#define DT_CMD_TRAIN_ESTIMATE_H

#include "base/error.h"
#include "kernels/peak.h"
#include "worker/job/job.h"

struct train_estimate { /* the options; 0, null: not given */
    int gpus, gpus_per_node;
    int64_t disk_bytes_per_s;              /* of a host's disks; 0: what a short test measures here */
    const char *gpu;                       /* name of a data sheet */
    const char *strategies;                /* "all", or names between commas; null: the job's own */
    const struct job_arguments *arguments; /* of the job: it is read anew for each strategy that it registers */
};

/* Ranks on a host: gpus_per_node, or 8, or all if they are fewer. */
int train_estimate_local(const struct train_estimate *o);
/* The data sheet of the options' GPU. DT_INVALID: there is none, or gpus does not go into whole hosts. */
int train_estimate_gpu(const struct train_estimate *o, struct dt_gpu_sheet *out, struct dt_error *err);
/* Prints bytes of a GPU, messages, bytes sent, time and rate of each strategy, and which to take; json: as
 * one object. DT_INVALID: an unknown GPU or strategy; DT_NO_MEMORY: no strategy fits, with what to change. */
int train_estimate(const struct train_estimate *o, const struct job *job, bool json, struct dt_error *err);

#endif
