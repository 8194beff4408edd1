/* Runs a whole chain for tests: one device, all units in memory, forward and backward as a trainer
 * with one rank does them. */
#ifndef DT_TESTS_LIB_MODEL_RUN_H
#define DT_TESTS_LIB_MODEL_RUN_H

#include "worker/model/chain_walk.h"

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
    void *kept[RUN_BLOCKS_MAX];
    struct chain_walk walk;
    bool accumulate;
    struct batch batch;
    int32_t *ids, *labels; /* ids and labels of a model of tokens */
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

static inline void run_finish(struct model_run *r)
{
    struct dt_error err;
    if (dt_stream_finish(r->stream, 60, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

/* Frozen units have no gradients. */
static inline bool run_enter(const struct chain_walk *w, const struct block *b, struct pass *p)
{
    const struct model_run *r = w->context;
    for (int k = 0; k < b->unit_count; k++) {
        bool frozen = w->chain->units[b->units[k]].role == ROLE_FROZEN;
        p->weights[k] = r->weights[b->units[k]];
        p->grads[k] = p->phase == PASS_BACKWARD && !frozen ? r->grads[b->units[k]] : NULL;
        p->accumulate[k] = r->accumulate;
    }
    return true;
}

/* Clears the memory of a call, except tensors that PASS_RECOMPUTE restores for backward. */
static inline void run_call(const struct chain_walk *w, const struct block *b, const struct pass *p)
{
    chain_call(b, p);
    run_finish(w->context);
    memset(w->scratch, 0xff, b->bytes[PLACE_CALL]);
    if (p->phase != PASS_RECOMPUTE) {
        memset(w->again, 0xff, b->bytes[PLACE_AGAIN]);
    }
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
    size_t e = dt_dtype_size(spec.type);
    assert_true(r->chain.unit_count <= RUN_UNITS_MAX && r->chain.block_count <= RUN_BLOCKS_MAX);
    for (int u = 0; u < r->chain.unit_count; u++) {
        size_t n = (size_t)r->chain.units[u].numel * e;
        r->weights[u] = run_alloc(r, n);
        r->grads[u] = run_alloc(r, n);
        r->m[u] = run_alloc(r, n);
        r->v[u] = run_alloc(r, n);
    }
    const struct chain *c = &r->chain;
    static const struct walk_hooks hooks = {.enter = run_enter, .run = run_call};
    for (int i = 0; i < c->block_count; i++) {
        r->kept[i] = run_alloc(r, c->blocks[i].bytes[PLACE_KEPT]);
    }
    r->walk = (struct chain_walk){.chain = c,
                                  .stream = r->stream,
                                  .kernels = r->device.kernels,
                                  .kept = r->kept,
                                  .again = run_alloc(r, chain_most(c, PLACE_AGAIN)),
                                  .scratch = run_alloc(r, chain_most(c, PLACE_CALL)),
                                  .buffers = run_alloc(r, (size_t)chain_buffers(c) * e),
                                  .hooks = &hooks,
                                  .context = r};
    init_unit(c, -1, 1, 0, chain_buffers(c), spec.type, r->walk.buffers);
    for (int i = 0; i < 2; i++) {
        r->walk.y[i] = run_alloc(r, c->slot_bytes[i]);
        r->walk.y_branch[i] = run_alloc(r, c->branch_bytes[i]);
        r->walk.gradient[i] = run_alloc(r, c->slot_bytes[i]);
    }
    r->batch = (struct batch){.layout = &c->batch, .samples = spec.batch_size, .length = spec.sequence_length};
    for (int k = 0; k < c->batch.count; k++) {
        r->batch.at[k] = run_alloc(r, (size_t)batch_elements(&c->batch, k) * dt_dtype_size(c->batch.field[k].type));
    }
    int ids = batch_find(&c->batch, "input_ids"), labels = batch_find(&c->batch, "labels");
    r->ids = ids >= 0 ? r->batch.at[ids] : NULL;
    r->labels = labels >= 0 ? r->batch.at[labels] : NULL;
    r->loss_sum = run_alloc(r, sizeof(double));
    r->norm = run_alloc(r, sizeof(double));
    r->clip = run_alloc(r, sizeof(double));
    r->limbs = run_alloc(r, 64 * sizeof(int64_t));
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

/* Element i of a buffer in the run's type. */
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

/* Runs one micro-batch. Only memory that is declared to live on survives. Returns the sum of the
 * losses. */
static inline double run_train(struct model_run *r, bool accumulate, double loss_scale)
{
    const struct walk_loss loss = {.scale = loss_scale, .sum = r->loss_sum};
    *r->loss_sum = 0;
    r->accumulate = accumulate;
    chain_forward(&r->walk, PASS_FORWARD, &r->batch, &loss);
    chain_backward(&r->walk, &r->batch, &loss);
    run_finish(r);
    return *r->loss_sum;
}

/* Runs forward for evaluation. Returns the sum of the losses. */
static inline double run_eval(struct model_run *r)
{
    *r->loss_sum = 0;
    chain_forward(&r->walk, PASS_EVAL, &r->batch, &(struct walk_loss){.scale = 1, .sum = r->loss_sum});
    run_finish(r);
    return *r->loss_sum;
}

/* Returns the global norm of the gradients times `scale`, and leaves the clip factor for max_norm
 * in r->clip. */
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

/* AdamW with decay on tensors of at least two dimensions. step counts from 1. */
static inline void run_adamw(struct model_run *r, int64_t step, double lr, double beta2, double weight_decay,
                             double grad_scale, bool clip)
{
    for (int i = 0; i < r->chain.tensor_count; i++) {
        const struct tensor *t = &r->chain.tensors[i];
        size_t at = (size_t)t->offset * dt_dtype_size(r->type);
        const struct dt_update_slice slice = {.w = (char *)r->weights[t->unit] + at,
                                              .state = {(char *)r->m[t->unit] + at, (char *)r->v[t->unit] + at},
                                              .grad = (char *)r->grads[t->unit] + at,
                                              .count = t->numel,
                                              .weight_decay = t->decay ? weight_decay : 0};
        r->device.kernels->adamw_many(r->stream,
                                      &(struct dt_update_args){.slices = &slice,
                                                               .slice_count = 1,
                                                               .clip = clip ? r->clip : NULL,
                                                               .step = step,
                                                               .lr = lr,
                                                               .grad_scale = grad_scale,
                                                               .numbers = {.beta1 = 0.9, .beta2 = beta2, .eps = 1e-8},
                                                               .type = r->type});
    }
    run_finish(r);
}

#endif
