/* Rules of Lightning's tables whose functions have files of their own. */
#ifndef DT_WORKER_JOB_DIALECTS_LIGHTNING_H
#define DT_WORKER_JOB_DIALECTS_LIGHTNING_H

#include "worker/job/dialects/dialect.h"

/* The class of { class_path: a.b.Name }, or of "a.b.Name"; without the package. "" for others. */
const char *lightning_class(const struct cJSON *value);
/* An argument of such a class, or null. */
const struct cJSON *lightning_argument(const struct cJSON *object, const char *name);
/* Reads an argument that stands at `path`; `of` is what lightning_arguments got. */
typedef void lightning_reader(struct dialect_use *u, const void *of, const char *path, const struct cJSON *argument);
/* Reads each argument of the class at `path`: those of init_args and dict_kwargs; without init_args those beside the
 * class. */
void lightning_arguments(struct dialect_use *u, const char *path, const struct cJSON *value, lightning_reader *read,
                         const void *of);

/* lightning_optimizer.c */
dialect_fn lightning_optimizer, lightning_scheduler;
/* lightning_callbacks.c */
dialect_fn lightning_callbacks, lightning_monitor;
/* fsdp.c */
dialect_fn lightning_recompute;
/* lightning_loop.c */
/* Seconds of a timedelta: a number, "1 day, 2:30:00", or an object of its arguments. Below 0: it is none. */
double lightning_seconds(const struct cJSON *value);
dialect_fn lightning_time, lightning_max_epochs, lightning_max_steps, lightning_min_steps, lightning_dev_run,
    lightning_limit, lightning_interval, lightning_epoch_interval, lightning_sanity;
void lightning_defaults(struct dialect_use *u);

#endif
