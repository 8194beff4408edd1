/* What the files of attention by cuDNN share: a shape's plan, all plans of a device, and what
 * the plan file has of them. */
#ifndef DT_KERNELS_CUDA_ATTENTION_PLAN_H
#define DT_KERNELS_CUDA_ATTENTION_PLAN_H

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_graph.h"
#include "kernels/cuda/dnn_plan.h"
#include "kernels/cuda/plan_file.h"

enum { ATTENTION_PACKS = 512, ATTENTION_ALIGNMENT = 256 /* of work memory */ };

/* What a plan depends on, besides its device. Compared whole: nothing lies between its members. */
struct attention_key {
    int64_t batch, positions, heads, kv_heads, head_size;
    int64_t room;                   /* bytes of work memory */
    int64_t causal, backward, sums; /* 0 or 1 */
    double scale;
};

/* What was measured to be fastest: so many sequences at a time, by this engine. */
struct attention_choice {
    int64_t part;
    struct dt_dnn_config config;
};

/* attention_file.c: the plan file of attention: struct attention_key and attention_choice */
extern const struct dt_plan_kind attention_plans;

struct attention_pack;
struct attention_plan {
    struct attention_plan *next;
    struct attention_key key;
    bool usable;
    int failed;   /* the library's status where it broke down: nothing is computed then */
    int64_t part; /* sequences at a time; key.batch is a multiple of it */
    struct dt_dnn_graph graph;
    void *config, *executable;
    float scale, hidden, one; /* read by the library when it executes */
    struct attention_pack *packs[ATTENTION_PACKS];
    int pack_count;
};

struct attention_cache {
    struct attention_cache *next;
    struct dt_device *device;
    const struct dt_dnn *api; /* null: not here, or it does not work here; that was said */
    void *handle;
    int failed;
    bool said; /* that a shape is refused */
    struct dt_plan_file *file;
    struct attention_plan *plans;
};

/* A pass: addresses of the first part, and how many bytes each tensor goes on by per sequence. */
struct attention_job {
    void *addresses[DT_ATTENTION_UIDS];
    int64_t steps[DT_ATTENTION_UIDS];
    void *work;
};

/* attention_dnn.c */
/* The cache of a device, made when it is first asked for, with the lock of all held until
 * attention_cache_leave. */
struct attention_cache *attention_cache_enter(struct dt_device *d);
void attention_cache_leave(void);
/* Forgets the plans that were made, not the file: nothing may be on its way. */
void attention_cache_forget(struct attention_cache *c);

struct attention_key attention_forward_key(const struct dt_attention_args *a);
/* *callers: its work memory is the caller's, not the stream's. */
struct attention_key attention_backward_key(const struct dt_attention_backward_args *a, bool sums, bool *callers);
/* Does the library take it at all? */
bool attention_can(const struct attention_key *k, enum dt_dtype type);
/* The job of a call, without work memory; false: its tensors are not aligned. */
bool attention_forward_job(const struct attention_key *k, const struct dt_attention_args *a, struct attention_job *out);
bool attention_backward_job(const struct attention_key *k, const struct dt_attention_backward_args *a,
                            struct attention_job *out);

/* The largest part of the batch, a divisor of it and no more than `most`, whose work should fit;
 * 0: not even one sequence, or no order is to be had here. */
int64_t attention_part(const struct attention_cache *c, const struct attention_key *k, int64_t most);
/* Work memory that is not the engine's, before the engine's. */
size_t attention_own_bytes(const struct attention_key *k, int64_t part);
/* A plan without an engine: its graph is finished. The library's status, and in err what was
 * refused. */
int attention_plan_begin(const struct attention_cache *c, struct attention_plan *p, const struct attention_key *k,
                         int64_t part, struct dt_error *err);
/* Puts the parts of a job into the stream, by p->executable. The library's status. */
int attention_plan_run(const struct dt_cuda_launch *l, const struct attention_cache *c, struct attention_plan *p,
                       struct attention_job *j);
void attention_plan_clear(const struct dt_dnn *api, struct attention_plan *p);

#endif
