/* Ranks as threads of one program: a whole training run per case, in milliseconds. */
#ifndef DT_TESTS_LIB_RANKS_H
#define DT_TESTS_LIB_RANKS_H

#include "tests/lib/folder.h"
#include "worker/run/trainer.h"

enum { RANKS_MAX = 8, RANKS_STEPS_MAX = 64 };

struct ranks_options {
    const char *device; /* null: "cpu" */
    bool files;         /* checkpoints and the output folder as in a real run */
    int stop_after;     /* rank `stop_rank` is asked to stop after this step; 0: never */
    int stop_rank;
    int poison_step, poison_rank;            /* this rank's weights become NaN after that step
                                              * (0: never) */
    bool evaluate;                           /* after each step, on data.val */
    void (*on_step)(int rank, int64_t step); /* more to do after a step; may be null */
    bool trace;                              /* keep rank 0's trace of the last step */
    int round;
    const char *hosts; /* one letter per rank: the host it is on; null: all on one */
};

struct ranks_outcome {
    int rc[RANKS_MAX], exit_code[RANKS_MAX];
    struct dt_error err[RANKS_MAX];
    int step_count; /* seen by rank 0 */
    int64_t last_step;
    int64_t ahead;   /* the most steps of rank 0 that were in when the results of one came */
    int read_before; /* how many of these times the batches after them were read too */
    double loss[RANKS_STEPS_MAX], norm[RANKS_STEPS_MAX], lr[RANKS_STEPS_MAX];
    bool finished_before;
    float *weights; /* all tensors in registration order; freed by ranks_clear */
    double *exact;  /* the same as double */
    int64_t weight_count;
    uint64_t hash;         /* of the weights' bits */
    float *moments;        /* both of all tensors, in the order of weights; freed by ranks_clear */
    uint64_t moments_hash; /* of their bits */
    int tensor_count;
    struct {
        char name[64];
        int64_t first, numel; /* in weights */
    } tensors[64];
    double val_loss;     /* by the last evaluation of `evaluate`, on rank 0 */
    int64_t collectives; /* started by rank 0 during the steps after the first, all kinds */
    int64_t collectives_of[DT_COLL_COUNT];
    char trace[4096];                 /* "G1 F1 ..." */
    size_t bytes[PLAN_PURPOSE_COUNT]; /* planned by rank 0 */
};

/* folder_setup, and in that folder shards of llm.c tokens: train.bin (96 samples) and val.bin
 * (13). folder_teardown belongs to it. */
int ranks_setup(void **state);

/* A tiny GPT-2 with everything filled in: 2 layers, 16 channels, 40 tokens; it trains on
 * train.bin in `folder` and writes to run/ there. The caller clears job->arena. */
void ranks_job(struct job *job);
/* Trains on `size` threads. */
void ranks_train(const struct job *job, int size, const struct ranks_options *o, struct ranks_outcome *out);
void ranks_clear(struct ranks_outcome *out);

#endif
