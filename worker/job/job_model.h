/* The model's dimensions from a Hugging Face folder (`model.load`). */
#ifndef DT_WORKER_JOB_JOB_MODEL_H
#define DT_WORKER_JOB_JOB_MODEL_H

#include "base/config.h"
#include "worker/job/job.h"

/* After name and load were read: finds the model and reads its keys. With `load` the sizes are
 * those of config.json; notes a problem where the job says something else or the file asks for what
 * we do not compute. Returns the number of problems. */
int job_model_load(struct job *job, const struct job_arguments *args, struct dt_config *c);

#endif
