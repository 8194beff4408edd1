/* Rules of the table of Hugging Face whose functions have files of their own. */
#ifndef DT_WORKER_JOB_DIALECTS_TRANSFORMERS_H
#define DT_WORKER_JOB_DIALECTS_TRANSFORMERS_H

#include "worker/job/dialects/dialect.h"

/* A number, or a problem. */
bool transformers_number(struct dialect_use *u, const char *path, const struct cJSON *value, double *out);

/* transformers_schedule.c */
dialect_fn transformers_schedule, transformers_warmup, transformers_least, transformers_cycles, transformers_monitor,
    transformers_no_stable;
/* transformers_optimizer.c */
dialect_fn transformers_optimizer, transformers_beta1, transformers_beta2, transformers_epsilon;

#endif
