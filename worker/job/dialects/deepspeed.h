/* Rules of DeepSpeed's table whose functions have files of their own. */
#ifndef DT_WORKER_JOB_DIALECTS_DEEPSPEED_H
#define DT_WORKER_JOB_DIALECTS_DEEPSPEED_H

#include "worker/job/dialects/dialect.h"

/* deepspeed_schedule.c */
dialect_fn deepspeed_scheduler, deepspeed_rate, deepspeed_most, deepspeed_least, deepspeed_total_steps;
/* deepspeed_batch.c */
dialect_fn deepspeed_batch;
/* A job that is only converted keeps the key as it is, at its top: what it comes to depends on the number of ranks. */
void deepspeed_keep(struct dialect_use *u, const char *path, const char *key, const struct cJSON *value);
/* deepspeed.c */
dialect_fn deepspeed_kept_on_host;
/* deepspeed_elasticity.c */
dialect_fn deepspeed_elasticity;

#endif
