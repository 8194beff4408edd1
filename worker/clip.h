/* The end of a step in one small all_reduce of integers: loss and global gradient norm as exact sums (kernels/exact.h), valid
 * targets, stop wishes, and which ranks saw a loss that is not finite. From it every rank computes, with the same bits, the loss, the
 * norm and the one factor that gradients are multiplied by: 1/(ranks * micro-steps) or 1/valid targets, times the clip. */
#ifndef DT_WORKER_CLIP_H
#define DT_WORKER_CLIP_H

#include "worker/pace.h"
#include "worker/strategy.h"

enum { CLIP_RIDERS = PACE_PHASES };

struct clip_input {             /* lives until the step has run */
    const double *loss_sum;     /* device memory: one per micro-step */
    const int64_t *valid_count; /* one per micro-step */
    int64_t micro_steps;
    double max_norm; /* 0: no clipping */
    enum loss_normalization normalization;
    const int64_t *riders; /* CLIP_RIDERS numbers of this rank that all ranks get; on all of them or on none: null */
    bool stop;             /* this rank was asked to stop */
};

struct clip_result {
    double loss;      /* as loss_normalization says */
    double grad_norm; /* before clipping, of the averaged gradient */
    double factor;    /* on summed gradients; read by the optimizer */
    int64_t valid_count;
    int64_t stop_count; /* ranks that wish to stop */
    int bad_rank;       /* the first rank with a loss that is not finite, or -1 */
    bool norm_finite;
};

struct clip {
    struct strategy *strategy;
    int piece, piece_result;
    int64_t *words;
    struct clip_result *result; /* device memory that the host reads after the step */
    struct clip_input input;
};

void clip_plan(struct clip *c, struct strategy *s, struct plan *p);
void clip_open(struct clip *c, const struct plan *p);
/* Enqueues on the compute stream: norm, the all_reduce, c->result. All reductions have landed there. */
void clip_start(struct clip *c, const struct clip_input *input);
/* After the step: the riders of all ranks, by rank; until the next start. */
const int64_t *clip_riders(const struct clip *c);
/* Evaluation: only the sum of losses and valid counts over all ranks; c->result->loss is their quotient. */
void clip_start_sum(struct clip *c, const struct clip_input *input);

#endif
