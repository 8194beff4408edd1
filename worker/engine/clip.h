/* The end of a step in one small all_reduce of integers: loss and global gradient norm as exact
 * sums (kernels/exact.h), valid targets, stop wishes, and which ranks saw a loss that is not
 * finite. From it every rank computes, with the same bits, the loss, the norm and the one factor
 * that gradients are multiplied by: 1/(ranks * micro-steps) or 1/valid targets, times the clip.
 *
 * Kernels do all of it in stream order. What the host knows goes there by a copy, and the sums
 * come back by one, so the optimizer finds its factor on the device and no stream ever waits for
 * the host. */
#ifndef DT_WORKER_ENGINE_CLIP_H
#define DT_WORKER_ENGINE_CLIP_H

#include "worker/run/pace.h"
#include "worker/engine/strategy.h"

enum { CLIP_RIDERS = PACE_PHASES };

/* read by the start */
struct clip_input {
    const double *loss_sum;     /* device memory, until the step has run: one per micro-step */
    const int64_t *valid_count; /* one per micro-step */
    int64_t micro_steps;
    double max_norm; /* 0: no clipping */
    enum loss_normalization normalization;
    const int64_t *riders; /* CLIP_RIDERS numbers of this rank that all ranks get; on all of them
                            * or on none: null */
    bool stop;             /* this rank was asked to stop */
};

struct clip_result {
    double loss;      /* as loss_normalization says */
    double grad_norm; /* before clipping, of the averaged gradient */
    int64_t valid_count;
    int64_t stop_count; /* ranks that wish to stop */
    int bad_rank;       /* the first rank with a loss that is not finite, or -1 */
    bool norm_finite;
};

struct clip {
    struct strategy *strategy;
    int64_t micro_steps; /* at most */
    int piece_words, piece_local, piece_said, piece_heard;
    int64_t *words, *divisors; /* on the device: what travels; valid counts per micro-step */
    double *factor;            /* on the device: what the optimizer multiplies gradients by */
    struct clip_turn {         /* two, in turn: one may be under way while the results of the
                                * other are read */
        int64_t *said, *heard; /* on the host: words and divisors before, words after the sum
                                * over ranks */
        struct clip_input input;
        struct clip_result result;
    } turns[2];
    int turn; /* of the last start */
};

/* micro_steps: the most of a step. */
void clip_plan(struct clip *c, struct strategy *s, int64_t micro_steps, struct plan *p);
void clip_open(struct clip *c, const struct plan *p);
/* A step begins, before its first gradients are summed over ranks: its norm is nothing yet. */
void clip_begin(struct clip *c);
/* The gradients of these units are summed, in the order of strategy_sums' stream: it adds their
 * squares, while compute goes on. */
void clip_add(struct clip *c, struct unit_range units);
/* Enqueues on the compute stream: the all_reduce, c->factor. All reductions have landed there,
 * and clip_add had all units since clip_begin. Returns the turn, for clip_read: results stay
 * until the next start but one, which must not come before the host has waited for this one. */
int clip_start(struct clip *c, const struct clip_input *input);
/* Evaluation: only the sum of losses and valid counts over all ranks; the result's loss is their
 * quotient. */
int clip_start_sum(struct clip *c, const struct clip_input *input);
/* After the host has waited for the compute stream: what came out. */
const struct clip_result *clip_read(struct clip *c, int turn);
/* Then: the riders of all ranks, by rank. */
const int64_t *clip_riders(const struct clip *c, int turn);

#endif
