/* train --plan, and what every start checks. */
#ifndef DT_CMD_TRAIN_PLAN_H
#define DT_CMD_TRAIN_PLAN_H

#include "base/error.h"
#include "worker/job/job.h"

#include <stdbool.h>

struct train_plan {
    int ranks;
    bool prints; /* also what is known otherwise; json: as one object */
    bool json;
    bool evaluates; /* a checkpoint alone: nothing is written */
};

/* A variable of the environment that is a number of ranks, 1 to 2^20; otherwise fallback. */
int train_env_number(const char *name, int fallback);
/* All that can be known to fail before anything is started, by its own error. */
int train_plan(const struct job *job, const struct train_plan *o, struct dt_error *err);

#endif
