/* The end of a step in one small all_reduce of integers: loss and global gradient norm as exact
 * sums (kernels/exact.h), valid targets, votes, and which ranks saw a loss that is not
 * finite. From it every rank computes, with the same bits, the loss, the norm and the one factor
 * that gradients are multiplied by: 1/(ranks * micro-steps) or 1/valid targets, times the clip.
 *
 * Kernels do all of it in stream order. What the host knows goes there by a copy, and the sums
 * come back by one, so the optimizer finds its factor on the device and no stream ever waits for
 * the host. */
#ifndef DT_WORKER_ENGINE_STEP_SUMS_H
#define DT_WORKER_ENGINE_STEP_SUMS_H

#include "worker/engine/pace.h"
#include "worker/engine/strategy.h"

enum { STEP_SUMS_RIDERS = PACE_PHASES };

/* What a rank may wish for. All ranks hear which of these any of them voted for. */
enum vote { VOTE_STOP = 1, VOTE_SAVE = 2, VOTE_EVALUATE = 4 };

/* read by the start */
struct step_sums_input {
    const double *loss_sum;     /* device memory, until the step has run: one per micro-step */
    const int64_t *valid_count; /* one per micro-step */
    int64_t micro_steps;
    int64_t active;    /* micro-batches of all ranks that means are taken over; 0: all */
    double max_norm;   /* 0: no clipping */
    double loss_scale; /* by which gradients are too large; 0: 1 */
    enum loss_normalization normalization;
    const int64_t *riders; /* STEP_SUMS_RIDERS numbers of this rank that all ranks get; on all of them
                            * or on none: null */
    unsigned votes;        /* of this rank, enum vote */
};

struct step_sums_result {
    double loss;      /* as loss_normalization says */
    double grad_norm; /* before clipping, of the averaged gradient; where ranks go apart the root of the mean
                       * of their squares */
    int64_t valid_count;
    unsigned votes; /* of any rank */
    int bad_rank;   /* the first rank with a loss that is not finite, or -1 */
    bool norm_finite;
};

struct step_sums {
    struct strategy *strategy;
    int64_t micro_steps; /* at most */
    int piece_words, piece_local, piece_said, piece_heard;
    int64_t *words, *divisors; /* on the device: what travels; valid counts per micro-step */
    int64_t *apart;            /* on the device: the limbs of this rank's own norm, where ranks go apart */
    double *factor;            /* on the device: what the optimizer multiplies gradients by */
    int32_t *overflow;         /* on the device: 1 if a gradient of any rank is not finite, otherwise 0 */
    struct step_sums_turn {    /* two, in turn: one may be under way while the results of the
                                * other are read */
        int64_t *said, *heard; /* on the host: words and divisors before, words after the sum
                                * over ranks */
        struct step_sums_input input;
        double share; /* strategy.gradient_share of the step */
        bool apart;   /* each rank has a norm of its own */
        struct step_sums_result result;
    } turns[2];
    int turn; /* of the last start */
};

/* micro_steps: the most of a step. */
void step_sums_plan(struct step_sums *c, struct strategy *s, int64_t micro_steps, struct plan *p);
void step_sums_open(struct step_sums *c, const struct plan *p);
/* A step begins, before its first gradients are summed over ranks: its norm is nothing yet. */
void step_sums_begin(struct step_sums *c);
/* The gradients of these units are summed, in the order of strategy_sums' stream: it adds their
 * squares, while compute goes on. */
void step_sums_add(struct step_sums *c, struct unit_range units);
/* Enqueues on the compute stream: the all_reduce, c->factor, c->overflow. All reductions have landed there,
 * and step_sums_add had all units since step_sums_begin. Returns the turn, for step_sums_read: results stay
 * until the next start but one, which must not come before the host has waited for this one. */
int step_sums_start(struct step_sums *c, const struct step_sums_input *input);
/* Evaluation: only the sum of losses and valid counts over all ranks; the result's loss is their
 * quotient. */
int step_sums_start_sum(struct step_sums *c, const struct step_sums_input *input);
/* Evaluation: enqueues on the compute stream the sums over all ranks of integers, `count` of at most
 * step_sums_room. Returns where they will be, in host memory, until the next start but one. */
const int64_t *step_sums_start_counts(struct step_sums *c, const int64_t *counts, int64_t count);
int64_t step_sums_room(const struct step_sums *c);
/* After the host has waited for the compute stream: what came out. */
const struct step_sums_result *step_sums_read(struct step_sums *c, int turn);
/* Then: the riders of all ranks, by rank. */
const int64_t *step_sums_riders(const struct step_sums *c, int turn);

#endif
