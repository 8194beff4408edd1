/* Ranks as threads of one program: a whole training run per case, within milliseconds. */
#ifndef DT_TESTS_LIB_RANKS_H
#define DT_TESTS_LIB_RANKS_H

#include "tests/lib/folder.h"
#include "worker/run/trainer.h"
#include "worker/model/models/gpt2.h"

enum { RANKS_MAX = 8, RANKS_STEPS_MAX = 64 };

struct ranks_options {
    const char *device; /* null: "cpu" */
    bool files;         /* write checkpoints and an output folder as in a real run */
    int stop_after;     /* rank `stop_rank` is asked to stop after this step; 0: never */
    int stop_rank;
    int poison_step, poison_rank;            /* this rank's weights become NaN after that step
                                              * (0: never) */
    int flip_step, flip_rank;                /* a bit of the first weight that it keeps of the last unit
                                              * changes after that step (0: never) */
    bool evaluate;                           /* after each step, on data.val */
    void (*on_step)(int rank, int64_t step); /* called after a step; may be null */
    /* Each rank as an observer: every moment but words and events, and its votes while `step` is
     * the last one that was reported to it; may be null. */
    void (*on_moment)(int rank, const struct report *r, enum moment moment);
    unsigned (*vote)(int rank, int64_t step);
    bool trace; /* keep rank 0's trace of the last step */
    int round;
    const char *hosts; /* one letter per rank: the host it is on; null: all on one */
};

struct ranks_outcome {
    int rc[RANKS_MAX], exit_code[RANKS_MAX];
    struct dt_error err[RANKS_MAX];
    int step_count; /* counted by rank 0 */
    int64_t last_step;
    int64_t ahead;   /* most steps of rank 0 that were enqueued when the results of one came */
    int read_before; /* how often the following batches had been read, too */
    double loss[RANKS_STEPS_MAX], norm[RANKS_STEPS_MAX], lr[RANKS_STEPS_MAX];
    bool finished_before;
    float *weights; /* all tensors in registration order; freed by ranks_clear */
    double *exact;  /* the same in double */
    int64_t weight_count;
    uint64_t hash; /* hash of the weights' bits */
    /* DT_STATES_MAX states of all tensors, in the order of weights; freed by ranks_clear */
    float *moments;
    uint64_t moments_hash; /* hash of their bits */
    int tensor_count;
    struct {
        char name[64];
        int64_t first, numel; /* place in weights */
    } tensors[64];
    double val_loss;     /* from the last evaluation, on rank 0 */
    int64_t collectives; /* collectives of all kinds that rank 0 started after the first step */
    int64_t collectives_of[DT_COLL_COUNT], bytes_of[DT_COLL_COUNT];
    char trace[4096];                 /* "G1 F1 ..." */
    size_t bytes[PLAN_PURPOSE_COUNT]; /* planned by rank 0 */
};

/* folder_setup, then shards of llm.c tokens in that folder: train.bin (96 samples) and val.bin
 * (13). Use folder_teardown with it. */
int ranks_setup(void **state);

/* A tiny GPT-2 job with all values filled in: 2 layers, 16 channels, 40 tokens. It trains on
 * train.bin in `folder` and writes to run/ there. The caller clears job->arena. */
/* The GPT-2 section of the job. */
struct gpt2 *ranks_model(struct job *job);
void ranks_job(struct job *job);
/* The job's optimizer becomes Muon, with AdamW of the same numbers for the rest. */
void ranks_muon(struct job *job);
/* Trains with `size` threads. */
void ranks_train(const struct job *job, int size, const struct ranks_options *o, struct ranks_outcome *out);
void ranks_clear(struct ranks_outcome *out);

#endif
