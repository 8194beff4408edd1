/* A step on GPUs that are elsewhere: the trainer's own code enqueues it on a simulated GPU
 * (kernels/simulated.h), with collectives that only count and take time. So messages and bytes are those
 * of a run, and the time has the overlap that the strategy makes. */
#ifndef DT_WORKER_ENGINE_SIMULATION_H
#define DT_WORKER_ENGINE_SIMULATION_H

#include "kernels/peak.h"
#include "worker/engine/trainer.h"

struct simulation {
    double step_s;                   /* of a step that follows others, of local SGD on average */
    double kernels_s;                /* of it, kernels compute; for the rest the compute stream waits */
    double flops;                    /* of products, with what is computed again */
    int64_t messages[DT_COLL_COUNT]; /* of a step, and the bytes of their whole buffers: struct dt_comm_stats */
    int64_t bytes[DT_COLL_COUNT];
    double sent_bytes, across_bytes; /* of a rank by rings, in all; of these, to other hosts */
    double moved_bytes;              /* from and to files */
};

/* Simulates steps of rank 0 of a trainer that trainer_prepare has prepared, with local_size ranks on each
 * host, and closes it. */
int trainer_simulate(struct trainer *t, const struct dt_gpu_sheet *gpu, int local_size, struct simulation *out,
                     struct dt_error *err);

#endif
