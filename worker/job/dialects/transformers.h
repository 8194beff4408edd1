/* Rules of the table of Hugging Face whose functions have files of their own. */
#ifndef DT_WORKER_JOB_DIALECTS_TRANSFORMERS_H
#define DT_WORKER_JOB_DIALECTS_TRANSFORMERS_H

#include "worker/job/dialects/dialect.h"

/* A number, or a problem. */
bool transformers_number(struct dialect_use *u, const char *path, const struct cJSON *value, double *out);

/* transformers_schedule.c */
dialect_fn transformers_schedule, transformers_warmup, transformers_least, transformers_cycles, transformers_no_stable;
/* Is the rate that of a plateau? */
bool transformers_has_plateau(const struct dialect_use *u);
/* transformers_events.c */
dialect_fn transformers_logging, transformers_save_steps, transformers_eval_steps, transformers_eval_delay,
    transformers_per_epoch, transformers_save_strategy, transformers_load_best, transformers_total_limit,
    transformers_metric, transformers_greater, transformers_patience, transformers_threshold;
/* Evaluations by steps that eval_steps does not count are those of logging_steps. */
void transformers_eval_default(struct dialect_use *u);
/* transformers_optimizer.c */
dialect_fn transformers_optimizer, transformers_beta1, transformers_beta2, transformers_epsilon;

#endif
