/* Runs a chain whole, for tests: one device, all units in memory, forward and backward as a
 * trainer of one rank does them. */
#ifndef DT_TESTS_LIB_MODEL_RUN_H
#define DT_TESTS_LIB_MODEL_RUN_H

#include "worker/model/chain.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RUN_UNITS_MAX = 16, RUN_BLOCKS_MAX = 16, RUN_BUFFERS_MAX = 160 };

struct model_run {
    struct dt_device device;
    struct dt_stream *stream;
    struct chain chain;
    enum dt_dtype type;
    void *weights[RUN_UNITS_MAX], *grads[RUN_UNITS_MAX], *m[RUN_UNITS_MAX], *v[RUN_UNITS_MAX];
    void *kept[RUN_BLOCKS_MAX], *saved[RUN_BLOCKS_MAX], *again, *scratch, *residual, *branch, *dx;
    int32_t *ids, *labels;
    double *loss_sum, *norm, *clip;
    int64_t *limbs;
    struct {
        void *p;
        size_t size_bytes;
    } buffers[RUN_BUFFERS_MAX];
    int buffer_count;
};

static inline void *run_alloc(struct model_run *r, size_t size_bytes)
{
    struct dt_error err;
    void *p;
    assert_true(r->buffer_count < RUN_BUFFERS_MAX);
    size_bytes = size_bytes > 0 ? size_bytes : 64;
    if (dt_device_alloc(&r->device, DT_MEMORY_DEVICE, size_bytes, &p, &err) != 0) {
        fail_msg("%s", err.text);
    }
    r->buffers[r->buffer_count].p = p;
    r->buffers[r->buffer_count++].size_bytes = size_bytes;
    return p;
}

/* spec->type is set from the device. */
static inline void run_open(struct model_run *r, const char *device, struct model_spec spec)
{
    struct dt_error err;
    memset(r, 0, sizeof *r);
    if (dt_device_open(&r->device, device, &(struct dt_device_options){.streams = DT_STREAMS_INLINE}, &err) != 0 ||
        dt_stream_open(&r->device, 0, &r->stream, &err) != 0) {
        fail_msg("%s", err.text);
    }
    spec.type = r->type = r->device.real;
    if (chain_open(&r->chain, &spec, 1, &err) != 0) {
        fail_msg("%s", err.text);
    }
    size_t e = dt_dtype_size(spec.type), rows = (size_t)(spec.batch_size * spec.sequence_length),
           pair = rows * (size_t)spec.channels * e;
    assert_true(r->chain.unit_count <= RUN_UNITS_MAX && r->chain.block_count <= RUN_BLOCKS_MAX);
    for (int u = 0; u < r->chain.unit_count; u++) {
        size_t n = (size_t)r->chain.units[u].numel * e;
        r->weights[u] = run_alloc(r, n);
        r->grads[u] = run_alloc(r, n);
        r->m[u] = run_alloc(r, n);
        r->v[u] = run_alloc(r, n);
    }
    size_t scratch = 0, again = 0;
    for (int i = 0; i < r->chain.block_count; i++) {
        const struct block *b = &r->chain.blocks[i];
        r->kept[i] = run_alloc(r, b->kept_bytes);
        r->saved[i] = run_alloc(r, b->saved_bytes);
        scratch = b->scratch_bytes > scratch ? b->scratch_bytes : scratch;
        again = b->again_bytes > again ? b->again_bytes : again;
    }
    r->scratch = run_alloc(r, scratch);
    r->again = run_alloc(r, again);
    r->residual = run_alloc(r, pair);
    r->branch = run_alloc(r, pair);
    r->dx = run_alloc(r, pair);
    r->ids = run_alloc(r, rows * sizeof(int32_t));
    r->labels = run_alloc(r, rows * sizeof(int32_t));
    r->loss_sum = run_alloc(r, sizeof(double));
    r->norm = run_alloc(r, sizeof(double));
    r->clip = run_alloc(r, sizeof(double));
    r->limbs = run_alloc(r, 64 * sizeof(int64_t));
}

static inline void run_finish(struct model_run *r)
{
    struct dt_error err;
    if (dt_stream_finish(r->stream, 60, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

static inline void run_close(struct model_run *r)
{
    dt_stream_close(r->stream);
    for (int i = 0; i < r->buffer_count; i++) {
        dt_device_free(&r->device, DT_MEMORY_DEVICE, r->buffers[i].p, r->buffers[i].size_bytes);
    }
    chain_close(&r->chain);
    dt_device_close(&r->device);
}

/* Element i of a buffer of the run's type. */
static inline double run_get(const struct model_run *r, const void *p, int64_t i)
{
    return r->type == DT_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}
static inline void run_set(const struct model_run *r, void *p, int64_t i, double value)
{
    if (r->type == DT_F64) {
        ((double *)p)[i] = value;
    } else {
        ((float *)p)[i] = (float)value;
    }
}

static inline int run_tensor(const struct model_run *r, const char *name)
{
    for (int i = 0; i < r->chain.tensor_count; i++) {
        if (strcmp(r->chain.tensors[i].name, name) == 0) {
            return i;
        }
    }
    fail_msg("no tensor %s", name);
    return -1;
}
/* Element e of tensor t in per-unit buffers. */
static inline double run_value(const struct model_run *r, void *const *units, int t, int64_t e)
{
    const struct tensor *x = &r->chain.tensors[t];
    return run_get(r, units[x->unit], x->offset + e);
}

static inline struct batch run_batch(const struct model_run *r)
{
    const struct model_spec *s = &r->chain.spec;
    return (struct batch){
        .ids = r->ids, .labels = r->labels, .batch_size = s->batch_size, .sequence_length = s->sequence_length};
}

static inline void *run_residual(const struct model_run *r, int block)
{
    return r->chain.blocks[block].residual_saved ? r->saved[block] : r->residual;
}

/* One micro-batch; nothing but what is said to live on does. Returns the sum of the losses. */
static inline double run_train(struct model_run *r, bool accumulate, double loss_scale)
{
    struct batch batch = run_batch(r);
    const struct chain *c = &r->chain;
    *r->loss_sum = 0;
    struct pass p = {.stream = r->stream,
                     .kernels = r->device.kernels,
                     .batch = &batch,
                     .again = r->again,
                     .scratch = r->scratch,
                     .loss_scale = loss_scale,
                     .loss_sum = r->loss_sum,
                     .accumulate = accumulate};
    for (int i = 0; i < c->block_count; i++) {
        const struct block *b = &c->blocks[i];
        p.phase = PASS_FORWARD;
        p.weights = r->weights[b->unit];
        p.x_residual = i > 0 ? run_residual(r, i - 1) : NULL;
        p.x_branch = i > 0 && c->blocks[i - 1].branch_out ? r->branch : NULL;
        p.y_residual = run_residual(r, i);
        p.y_branch = r->branch;
        p.kept = r->kept[i];
        p.saved = r->saved[i];
        b->ops->forward(b, &p);
        run_finish(r);
        memset(r->again, 0xff, b->again_bytes);
        memset(r->scratch, 0xff, b->scratch_bytes);
    }
    p.x_residual = p.x_branch = NULL;
    p.y_residual = p.y_branch = NULL;
    for (int i = c->block_count - 1; i >= 0; i--) {
        const struct block *b = &c->blocks[i];
        p.weights = r->weights[b->unit];
        p.grads = r->grads[b->unit];
        p.kept = r->kept[i];
        p.saved = r->saved[i];
        p.dy = i < c->block_count - 1 ? r->dx : NULL;
        p.dx = i > 0 ? r->dx : NULL;
        if (b->again_bytes > 0) {
            p.phase = PASS_RECOMPUTE;
            b->ops->forward(b, &p);
            run_finish(r);
            memset(r->scratch, 0xff, b->scratch_bytes);
        }
        p.phase = PASS_BACKWARD;
        b->ops->backward(b, &p);
    }
    run_finish(r);
    return *r->loss_sum;
}

/* Forward for evaluation: one set of kept, saved, scratch for all blocks would do. Returns the
 * sum of the losses. */
static inline double run_eval(struct model_run *r)
{
    struct batch batch = run_batch(r);
    const struct chain *c = &r->chain;
    *r->loss_sum = 0;
    for (int i = 0; i < c->block_count; i++) {
        const struct block *b = &c->blocks[i];
        struct pass p = {.phase = PASS_EVAL,
                         .stream = r->stream,
                         .kernels = r->device.kernels,
                         .batch = &batch,
                         .again = r->again,
                         .scratch = r->scratch,
                         .loss_scale = 1,
                         .loss_sum = r->loss_sum,
                         .weights = r->weights[b->unit],
                         .x_residual = i > 0 ? run_residual(r, i - 1) : NULL,
                         .x_branch = i > 0 && c->blocks[i - 1].branch_out ? r->branch : NULL,
                         .y_residual = run_residual(r, i),
                         .y_branch = r->branch,
                         .kept = r->kept[i],
                         .saved = r->saved[i]};
        b->ops->forward(b, &p);
    }
    run_finish(r);
    return *r->loss_sum;
}

/* Global norm of the gradients times `scale`; clip factor for max_norm left in r->clip. */
static inline double run_norm(struct model_run *r, double scale, double max_norm)
{
    const struct dt_kernels *k = r->device.kernels;
    k->fill(r->stream, &(struct dt_fill_args){.x = r->limbs, .count = 64, .type = DT_I64});
    for (int u = 0; u < r->chain.unit_count; u++) {
        k->norm_sum(r->stream,
                    &(struct dt_norm_sum_args){
                        .limbs = r->limbs, .x = r->grads[u], .count = r->chain.units[u].numel, .type = r->type});
    }
    k->norm_finish(r->stream,
                   &(struct dt_norm_finish_args){
                       .norm = r->norm, .clip = r->clip, .limbs = r->limbs, .scale = scale, .max_norm = max_norm});
    run_finish(r);
    return *r->norm;
}

/* AdamW with decay on tensors of two and more dimensions. step counts from 1. */
static inline void run_adamw(struct model_run *r, int64_t step, double lr, double beta2, double weight_decay,
                             double grad_scale, bool clip)
{
    for (int i = 0; i < r->chain.tensor_count; i++) {
        const struct tensor *t = &r->chain.tensors[i];
        size_t at = (size_t)t->offset * dt_dtype_size(r->type);
        r->device.kernels->adamw(r->stream, &(struct dt_adamw_args){.w = (char *)r->weights[t->unit] + at,
                                                                    .m = (char *)r->m[t->unit] + at,
                                                                    .v = (char *)r->v[t->unit] + at,
                                                                    .grad = (char *)r->grads[t->unit] + at,
                                                                    .clip = clip ? r->clip : NULL,
                                                                    .count = t->numel,
                                                                    .step = step,
                                                                    .lr = lr,
                                                                    .beta1 = 0.9,
                                                                    .beta2 = beta2,
                                                                    .eps = 1e-8,
                                                                    .weight_decay = t->decay ? weight_decay : 0,
                                                                    .grad_scale = grad_scale,
                                                                    .type = r->type});
    }
    run_finish(r);
}

#endif
