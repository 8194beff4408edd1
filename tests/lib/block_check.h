/* Compares the backward of one block of a chain with finite differences of its forward, in double. */
#ifndef DT_TESTS_LIB_BLOCK_CHECK_H
#define DT_TESTS_LIB_BLOCK_CHECK_H

#include "tests/lib/model_run.h"

static uint64_t random_state;
/* The phase whose function is differentiated: PASS_FORWARD where blocks take statistics of the batch. */
static enum pass_phase check_phase = PASS_EVAL;
static double check_step = 1e-5; /* smaller where the function bends more */

/* Uniform in [-1, 1). */
static inline double noise(void)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(int32_t)(random_state >> 32) / 2147483648.0;
}

struct bench { /* one block alone */
    struct model_run *run;
    const struct block *block;
    void *x, *x_branch, *y, *y_branch, *dy, *dx;
    int64_t x_count, y_count; /* elements of the input, and of the output */
    double loss_scale;
};

static inline int64_t flow_count(const struct flow *f)
{
    int64_t count = f->dims > 0 ? 1 : 0;
    for (int d = 0; d < f->dims; d++) {
        count *= f->shape[d];
    }
    return count;
}

static inline void *noisy(struct model_run *r, int64_t count)
{
    void *x = run_alloc(r, (size_t)count * sizeof(double));
    for (int64_t e = 0; e < count; e++) {
        run_set(r, x, e, noise());
    }
    return x;
}

static inline void bench_open(struct bench *b, struct model_run *r, int block)
{
    const struct block *x = &r->chain.blocks[block];
    *b = (struct bench){
        .run = r, .block = x, .x_count = flow_count(&x->in), .y_count = flow_count(&x->out), .loss_scale = 0.37};
    b->x = noisy(r, b->x_count);
    b->x_branch = x->in.pair ? noisy(r, b->x_count) : NULL;
    b->y = noisy(r, b->y_count);
    b->y_branch = x->out.pair ? noisy(r, b->y_count) : NULL;
    b->dy = noisy(r, b->y_count);
    b->dx = noisy(r, b->x_count);
}

static inline struct pass bench_pass(const struct bench *b, enum pass_phase phase)
{
    struct model_run *r = b->run;
    int i = b->block->index, last = r->chain.block_count - 1;
    bool back = phase == PASS_BACKWARD, loss = i == last, input = i > 0 && (!back || loss || b->block->reads_x);
    struct pass p = {.phase = phase,
                     .stream = r->stream,
                     .kernels = r->device.kernels,
                     .batch = &r->batch,
                     .x = input ? b->x : NULL,
                     .x_branch = input ? b->x_branch : NULL,
                     .y = back || loss ? NULL : b->y,
                     .y_branch = back ? NULL : b->y_branch,
                     .dy = back && !loss ? b->dy : NULL,
                     .dx = back && i > 0 ? b->dx : NULL,
                     .buffers = r->walk.buffers,
                     .memory = {r->kept[i], r->walk.again, r->walk.scratch},
                     .loss_scale = b->loss_scale,
                     .loss_sum = r->loss_sum};
    p.y = phase == PASS_FORWARD && b->block->y_memory >= 0 ? pass_memory(b->block, &p, b->block->y_memory) : p.y;
    r->accumulate = false;
    (void)run_enter(&r->walk, b->block, &p);
    return p;
}

/* The function that backward differentiates: the scaled loss, or the output pair's sum times dy. With
 * dropout, which evaluation does not have, it is what training computes. */
static inline double objective(struct bench *b)
{
    bool drops = batch_numbers(b->run->batch.layout) >= 0, last = b->block->index + 1 == b->run->chain.block_count;
    struct pass p = bench_pass(b, drops ? PASS_FORWARD : last ? PASS_EVAL : check_phase);
    p.y = p.y != NULL ? b->y : NULL;
    *b->run->loss_sum = 0;
    b->block->ops->forward(b->block, &p);
    run_finish(b->run);
    if (b->block->index == b->run->chain.block_count - 1) {
        return *b->run->loss_sum * b->loss_scale;
    }
    double sum = 0;
    for (int64_t e = 0; e < b->y_count; e++) {
        double y = run_get(b->run, p.y, e) + (b->block->out.pair ? run_get(b->run, b->y_branch, e) : 0);
        sum += y * run_get(b->run, b->dy, e);
    }
    return sum;
}

/* Central difference with respect to one element against what backward says. */
static inline void check_element(struct bench *b, double *x, double got, const char *what, int64_t e)
{
    const double step = check_step, at = *x;
    *x = at + step;
    double up = objective(b);
    *x = at - step;
    double down = objective(b);
    *x = at;
    double expected = (up - down) / (2 * step);
    if (!(fabs(got - expected) <= 2e-8 * (1 + fabs(expected)))) {
        fail_msg("%s %s: %s[%lld]: backward %.12g, finite difference %.12g", b->run->chain.spec.name,
                 b->block->ops->name, what, (long long)e, got, expected);
    }
}

static inline void check_block(struct model_run *r, int index)
{
    struct bench b;
    bench_open(&b, r, index);
    struct pass p = bench_pass(&b, PASS_FORWARD);
    if (p.y != NULL) { /* the last block begins with backward */
        b.block->ops->forward(b.block, &p);
    }
    if (b.block->bytes[PLACE_AGAIN] > 0) {
        p.phase = PASS_RECOMPUTE;
        b.block->ops->forward(b.block, &p);
    }
    p = bench_pass(&b, PASS_BACKWARD);
    for (int i = 0; i < b.block->tensor_count; i++) { /* tied: what a later block left is kept
                                                       * and added to */
        const struct tensor *t = &r->chain.tensors[b.block->tensors[i]];
        for (int64_t e = 0; e < t->numel && t->unit >= 0; e++) {
            ((double *)r->grads[t->unit])[t->offset + e] = b.block->adds[i] ? 10 : NAN;
        }
    }
    b.block->ops->backward(b.block, &p);
    run_finish(r);
    for (int i = 0; i < b.block->tensor_count; i++) {
        const struct tensor *t = &r->chain.tensors[b.block->tensors[i]];
        if (t->unit < 0) { /* a buffer has no gradient */
            continue;
        }
        double *w = (double *)r->weights[t->unit] + t->offset, *g = (double *)r->grads[t->unit] + t->offset;
        for (int64_t e = 0; e<t->numel; e += t->numel> 40 ? 7 : 1) {
            check_element(&b, &w[e], g[e] - (b.block->adds[i] ? 10 : 0), t->name, e);
        }
    }
    for (int64_t e = 0; e < b.x_count; e += 5) {
        check_element(&b, (double *)b.x + e, ((double *)b.dx)[e], "x", e);
        if (b.x_branch != NULL) {
            check_element(&b, (double *)b.x_branch + e, ((double *)b.dx)[e], "x_branch", e);
        }
    }
}

#endif
