/* Shared by the files of attention by cuDNN: the plan of a shape, all plans of a device, and their
 * representation in the plan file. */
#ifndef DT_KERNELS_CUDA_ATTENTION_PLAN_H
#define DT_KERNELS_CUDA_ATTENTION_PLAN_H

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_graph.h"
#include "kernels/cuda/dnn_cache.h"
#include "kernels/cuda/dnn_packs.h"

enum { ATTENTION_ALIGNMENT = 256 /* of work memory */ };

/* Everything that a plan depends on, besides its device. Compared as bytes: there is no padding
 * between its members. */
struct attention_key {
    int64_t batch, positions, heads, kv_heads, head_size;
    int64_t room; /* bytes of work memory */
    /* 0 or 1. sums: backward may add up in no order. own: kernels of our own may compute it, too. f16: else BF16. */
    int64_t causal, backward, sums, own, f16;
    double scale;
};

/* The fastest way that was measured: this number of sequences at a time, by this engine. part 0:
 * kernels of our own. sums: by the graph of backward that adds up in no order. */
struct attention_choice {
    int64_t part, sums;
    struct dt_dnn_config config;
};

/* attention_file.c: the plan file of attention: struct attention_key and attention_choice */
extern const struct dt_plan_kind attention_plans;

struct attention_plan {
    struct attention_plan *next;
    struct attention_key wanted; /* what it was made for */
    struct attention_key key;    /* the same, but sums: of its graph */
    bool usable;
    int failed;   /* the library's status if it broke down; then nothing is computed */
    int64_t part; /* sequences at a time, a divisor of key.batch */
    struct dt_dnn_graph graph;
    void *config, *executable;
    float scale, hidden, one; /* the library reads these when it executes the plan */
    struct dt_dnn_packs packs;
};

/* The operands of a pass: addresses for the first part, and for each tensor the bytes from one
 * sequence to the next. */
struct attention_job {
    void *addresses[DT_ATTENTION_UIDS];
    int64_t steps[DT_ATTENTION_UIDS];
    void *work;
};

/* attention_dnn.c */
extern struct dt_dnn_caches attention_caches;

struct attention_key attention_forward_key(const struct dt_attention_args *a, enum dt_attention_way way);
/* *callers: the pass uses the caller's work memory, not the stream's. */
struct attention_key attention_backward_key(const struct dt_attention_backward_args *a, enum dt_attention_way way,
                                            bool *callers);
/* False: the library does not take such a shape, or its graph does not describe it. */
bool attention_can(const struct dt_attention_shape *s);
/* The operands of a call, without work memory. False: its tensors are not aligned, or
 * there is no lse. */
bool attention_forward_job(const struct attention_key *k, const struct dt_attention_args *a, struct attention_job *out);
bool attention_backward_job(const struct attention_key *k, const struct dt_attention_backward_args *a,
                            struct attention_job *out);

/* The largest part of the batch, a divisor of it and at most `most`, whose work memory should fit.
 * 0: not even one sequence fits, or sums have no fixed order on this device. */
int64_t attention_part(const struct dt_dnn_cache *c, const struct attention_key *k, int64_t most);
/* Bytes of work memory that precede the engine's own. */
size_t attention_own_bytes(const struct attention_key *k, int64_t part);
/* Makes a plan without an engine: only its graph is finished. Returns the library's status; err
 * says what was refused. */
int attention_plan_begin(const struct dt_dnn_cache *c, struct attention_plan *p, const struct attention_key *k,
                         int64_t part, struct dt_error *err);
/* Enqueues the parts of a job, by p->executable. Returns the library's status. */
int attention_plan_run(const struct dt_cuda_launch *l, const struct dt_dnn_cache *c, struct attention_plan *p,
                       struct attention_job *j);
void attention_plan_clear(const struct dt_dnn *api, struct attention_plan *p);

#endif
