/* Rules of Lightning's tables whose functions have files of their own. */
#ifndef DT_WORKER_JOB_DIALECTS_LIGHTNING_H
#define DT_WORKER_JOB_DIALECTS_LIGHTNING_H

#include "worker/job/dialects/dialect.h"

/* The class of { class_path: a.b.Name }, or of "a.b.Name"; without the package. "" for others. */
const char *lightning_class(const struct cJSON *value);
/* An argument of such a class, or null. */
const struct cJSON *lightning_argument(const struct cJSON *object, const char *name);

/* lightning_optimizer.c */
dialect_fn lightning_optimizer, lightning_scheduler;

#endif
