#ifndef DT_WORKER_JOB_DIALECTS_LIGHTNING_DDP_H
#define DT_WORKER_JOB_DIALECTS_LIGHTNING_DDP_H

#include "worker/job/dialects/dialect.h"

#include <cjson/cJSON.h>

/* Gives what DDPStrategy's init_args, an object or null, say to the keys of ddp, power_sgd and local_sgd. path: of
 * the strategy. */
void lightning_ddp_arguments(struct dialect_use *u, const char *path, const cJSON *args);

#endif
