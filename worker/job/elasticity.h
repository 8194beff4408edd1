/* DeepSpeed's elasticity: one global batch that can be divided among as many numbers of ranks as
 * possible. Pure; formulas of deepspeed/elasticity. */
#ifndef DT_WORKER_JOB_ELASTICITY_H
#define DT_WORKER_JOB_ELASTICITY_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { ELASTIC_MICRO_MAX = 32 };
struct elastic_config {
    int64_t max_batch;
    int64_t micro[ELASTIC_MICRO_MAX]; /* samples of a micro-step, as they may be */
    int micro_count;
    int64_t min_gpus, max_gpus;
    bool prefer_larger;
    double version;                    /* 0.1, 0.2 */
    int64_t gpus_per_node, model_size; /* 0.2 */
};

struct elastic_batch {
    int64_t batch;  /* samples of a step */
    int64_t *ranks; /* numbers of ranks that it runs on, ascending; the caller frees them */
    int64_t count;
    int64_t micro; /* of the ranks that were asked for; 0: these are not among them */
};

/* The batch, and its split among `ranks`. DT_INVALID: no batch, with why. */
int elastic_solve(const struct elastic_config *c, int64_t ranks, struct elastic_batch *out, struct dt_error *err);

#endif
