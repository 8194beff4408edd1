/* Strategies that a job registers under "strategies", as Lightning's registry: a name for another
 * strategy with options. */
#ifndef DT_WORKER_JOB_DIALECTS_REGISTERED_H
#define DT_WORKER_JOB_DIALECTS_REGISTERED_H

#include "worker/job/dialects/dialect.h"

/* Checks all of them. The one that training.strategy names gives its options to the job's keys, and
 * its base to training.strategy; an option that differs from a key of the job is a problem. Call it
 * before the rules of dialects. */
void registered_apply(struct dialect_use *u);
/* All names, and null behind the last one, in the arena. */
const char *const *registered_names(const struct dt_config *c, struct dt_arena *arena);
/* A line for each: name, base, description. */
void registered_list(const struct dt_config *c, struct dt_text *out);

#endif
