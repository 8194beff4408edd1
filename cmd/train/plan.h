/* train --plan, and what every start checks. */
#ifndef DT_CMD_TRAIN_PLAN_H
#define DT_CMD_TRAIN_PLAN_H

#include "base/error.h"
#include "kernels/device.h"
#include "worker/job/job.h"

#include <stdbool.h>

struct train_plan {
    int ranks;
    bool prints; /* also what is known otherwise; json: as one object */
    bool json;
    bool evaluates; /* a checkpoint alone: nothing is written */
};

struct train_room { /* the memory that a plan has, and who shares it */
    int ranks, local_size;
    const char *device;
    enum dt_dtype type;  /* what the device computes with */
    bool on_gpu;         /* the memory is a GPU's, and each rank has one; otherwise the host's */
    double device_bytes; /* of a GPU; not positive: not known */
};

/* A variable of the environment that is a number of ranks, 1 to 2^20; otherwise fallback. */
int train_env_number(const char *name, int fallback);
/* The room of a job on this machine. prints: nobody is about to start it, so the machine may lack the device. */
int train_find_room(const struct job *job, int ranks, bool prints, struct train_room *out, struct dt_error *err);
/* The device_bytes of trainer_prepare. */
double train_device_bytes(const struct train_room *room);
/* All that can be known to fail before anything is started, by its own error. */
int train_plan(const struct job *job, const struct train_plan *o, struct dt_error *err);

#endif
