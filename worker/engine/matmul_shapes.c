/* The products and attention of a job, found by a walk over the chain with kernels that do
 * nothing but write down what is asked of them. */
#include "worker/engine/matmul_shapes.h"

#include "base/clock.h"
#include "worker/model/chain_walk.h"
#include "worker/run/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a table of kernels that only collects ---- */

struct collector {
    struct dt_stream stream;   /* first: it is what the kernels are given */
    struct dt_kernels kernels; /* write down products and attention, and do nothing else */
    struct matmul_shapes *to;
};

static bool same(const struct dt_matmul_args *a, const struct dt_matmul_args *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb && a->ldc == b->ldc &&
           a->a_transposed == b->a_transposed && a->b_transposed == b->b_transposed && a->type == b->type &&
           a->c_type == b->c_type && (a->bias != NULL) == (b->bias != NULL) && a->epilogue == b->epilogue &&
           a->grad_type == b->grad_type && a->busy_sms == b->busy_sms;
}

/* An array with room for one more. */
static void *grown(void *each, int count, int *capacity, size_t size)
{
    if (count < *capacity) {
        return each;
    }
    *capacity = 2 * *capacity + 16;
    return dt_realloc(each, (size_t)*capacity * size);
}

static void collect(struct dt_stream *s, const struct dt_matmul_args *a)
{
    struct matmul_shapes *p = ((struct collector *)s)->to;
    for (int i = 0; i < p->count; i++) {
        if (same(&p->each[i], a)) {
            return;
        }
    }
    p->each = grown(p->each, p->count, &p->capacity, sizeof *a);
    p->each[p->count++] = *a;
}

/* Its parts first: what they take is what it is compared with. */
static bool collect_epilogue(struct dt_stream *s, const struct dt_matmul_args *a)
{
    dt_matmul_parts(&((struct collector *)s)->kernels, s, a);
    if (a->epilogue != DT_EPILOGUE_NONE) {
        collect(s, a);
    }
    return true;
}

static bool same_attention(const struct dt_attention_shape *a, const struct dt_attention_shape *b)
{
    return a->batch == b->batch && a->queries == b->queries && a->keys == b->keys && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->head_size == b->head_size && a->key_capacity == b->key_capacity &&
           a->q_stride == b->q_stride && a->kv_stride == b->kv_stride && a->out_stride == b->out_stride &&
           a->scale == b->scale && a->softcap == b->softcap && a->causal == b->causal && a->window == b->window &&
           (a->segments == NULL) == (b->segments == NULL) && a->dropout == b->dropout && a->type == b->type;
}

static void collect_attention(struct dt_stream *s, const struct dt_attention_args *a)
{
    struct matmul_shapes *p = ((struct collector *)s)->to;
    for (int i = 0; i < p->attention_count; i++) {
        if (same_attention(&p->attention[i].shape, &a->shape)) {
            return;
        }
    }
    p->attention = grown(p->attention, p->attention_count, &p->attention_capacity, sizeof *a);
    p->attention[p->attention_count++] = *a;
}

static void collect_attention_backward(struct dt_stream *s, const struct dt_attention_backward_args *a)
{
    struct matmul_shapes *p = ((struct collector *)s)->to;
    for (int i = 0; i < p->attention_backward_count; i++) {
        const struct dt_attention_backward_args *b = &p->attention_backward[i];
        if (same_attention(&b->shape, &a->shape) && a->work_bytes == b->work_bytes) {
            return;
        }
    }
    p->attention_backward =
        grown(p->attention_backward, p->attention_backward_count, &p->attention_backward_capacity, sizeof *a);
    p->attention_backward[p->attention_backward_count++] = *a;
}

#define KERNEL(name, types)                                                                                            \
    static void skip_##name(struct dt_stream *s, const struct dt_##name##_args *a)                                     \
    {                                                                                                                  \
        (void)s;                                                                                                       \
        (void)a;                                                                                                       \
    }
#include "kernels/rows.def"

static struct collector collector_to(struct matmul_shapes *to)
{
    struct collector c = {.to = to,
                          .kernels = {.name = "collecting",
#define KERNEL(row, types) .row = skip_##row,
#include "kernels/rows.def"
                                      .matmul_epilogue = collect_epilogue}};
    c.kernels.matmul = collect;
    c.kernels.attention = collect_attention;
    c.kernels.attention_backward = collect_attention_backward;
    return c;
}

/* Addresses that nobody reads or writes: blocks add to them, and products keep their alignment. */
static void *nowhere(int at)
{
    return (void *)((uintptr_t)(at + 1) << 40);
}

static bool enter(const struct chain_walk *w, const struct block *b, struct pass *p)
{
    const struct matmul_shapes_beside *beside = w->context;
    p->busy_sms = b->index + 1 == w->chain->block_count ? beside->last[p->phase] : beside->blocks[p->phase];
    for (int k = 0; k < b->unit_count; k++) {
        p->weights[k] = nowhere(k);
        p->grads[k] = p->phase == PASS_BACKWARD ? nowhere(BLOCK_UNITS_MAX + k) : NULL;
    }
    return true;
}

void matmul_shapes_add(struct matmul_shapes *to, const struct chain *c, enum dt_dtype grad_type,
                       const struct matmul_shapes_beside *beside)
{
    static const struct matmul_shapes_beside nothing;
    static const struct walk_hooks hooks = {.enter = enter};
    enum { OTHERS = 2 * BLOCK_UNITS_MAX };
    struct collector collector = collector_to(to);
    struct batch batch = {
        .layout = &c->batch, .samples = c->spec.batch_size, .length = c->spec.sequence_length, .weight = 1};
    for (int k = 0; k < c->batch.count; k++) {
        batch.at[k] = nowhere(OTHERS + k);
    }
    void **kept = dt_alloc((size_t)c->block_count * sizeof *kept);
    for (int i = 0; i < c->block_count; i++) {
        kept[i] = nowhere(OTHERS + 8);
    }
    const struct chain_walk walk = {.chain = c,
                                    .stream = &collector.stream,
                                    .kernels = &collector.kernels,
                                    .grad_type = grad_type,
                                    .y = {nowhere(OTHERS + 9), nowhere(OTHERS + 10)},
                                    .y_branch = {nowhere(OTHERS + 11), nowhere(OTHERS + 12)},
                                    .gradient = {nowhere(OTHERS + 13), nowhere(OTHERS + 14)},
                                    .kept = kept,
                                    .again = nowhere(OTHERS + 15),
                                    .scratch = nowhere(OTHERS + 16),
                                    .buffers = nowhere(OTHERS + 17),
                                    .hooks = &hooks,
                                    .context = (void *)(uintptr_t)(beside != NULL ? beside : &nothing)};
    const struct walk_loss loss = {.scale = 1, .sum = nowhere(OTHERS + 18)};
    chain_forward(&walk, PASS_FORWARD, &batch, &loss);
    chain_backward(&walk, &batch, &loss);
    chain_forward(&walk, PASS_EVAL, &batch, &loss);
    free(kept);
}

void matmul_shapes_clear(struct matmul_shapes *p)
{
    free(p->each);
    free(p->attention);
    free(p->attention_backward);
    memset(p, 0, sizeof *p);
}

/* ---- choosing ---- */

static void tick(void *context)
{
    dt_page_pulse(((struct world *)context)->page);
}

/* Rank 0: measures what is new. */
static int choose(struct trainer *t, const struct matmul_shapes *all, struct dt_error *err)
{
    struct world *w = t->world;
    struct dt_error why;
    int measured = 0;
    double begin_s = dt_now_s();
    if (w->device->ops->plans->choose(w->compute, all->each, all->count, tick, w, &measured, &why, err) != 0) {
        return -1;
    }
    if (why.status != DT_OK) {
        observers_say(&t->observers, "train: products are not measured: %s", why.text);
    } else if (measured > 0) {
        observers_say(&t->observers, "train: %d of %d products measured in %.1f s, once for this kind of GPU", measured,
                      all->count, dt_now_s() - begin_s);
    }
    return 0;
}

/* All ranks compute products as rank 0 chose. */
static int choose_together(struct trainer *t, const struct matmul_shapes *all, struct dt_error *err)
{
    struct world *w = t->world;
    const struct dt_device_plans *plans = w->device->ops->plans;
    struct dt_text text;
    struct dt_error failure;
    dt_text_init(&text);
    bool failed = t->rank == 0 && choose(t, all, &failure) != 0;
    if (t->rank == 0 && !failed) {
        plans->tell(w->device, all->each, all->count, &text);
    }
    int rc = trainer_share(t, "train/products", &text, failed ? &failure : NULL, INFINITY, err);
    /* rank 0 too: what its file says of other products nobody else has */
    if (rc == 0 && !plans->take(w->device, dt_text_str(&text), t->rank != 0 && w->local_rank == 0)) {
        observers_note(
            &t->observers,
            "train: rank %d has another GPU, driver or cublasLt than rank 0: products are computed by its own plans",
            t->rank);
    }
    dt_text_clear(&text);
    return rc;
}

/* The same of attention. */
static int choose_attention(struct trainer *t, const struct dt_attention_list *all, struct dt_error *err)
{
    struct world *w = t->world;
    struct dt_error why;
    int measured = 0;
    double begin_s = dt_now_s();
    if (w->device->ops->plans->choose_attention(w->compute, all, tick, w, &measured, &why, err) != 0) {
        return -1;
    }
    if (why.status != DT_OK) {
        observers_say(&t->observers, "train: attention is not measured: %s", why.text);
    } else if (measured > 0) {
        observers_say(&t->observers, "train: attention measured in %.1f s, once for this kind of GPU",
                      dt_now_s() - begin_s);
    }
    return 0;
}

static int choose_attention_together(struct trainer *t, const struct matmul_shapes *of, struct dt_error *err)
{
    struct world *w = t->world;
    const struct dt_device_plans *plans = w->device->ops->plans;
    const struct dt_attention_list all = {of->attention, of->attention_count, of->attention_backward,
                                          of->attention_backward_count};
    struct dt_text text;
    struct dt_error failure;
    dt_text_init(&text);
    bool failed = t->rank == 0 && choose_attention(t, &all, &failure) != 0;
    if (t->rank == 0 && !failed) {
        plans->tell_attention(w->device, &all, &text);
    }
    int rc = trainer_share(t, "train/attention", &text, failed ? &failure : NULL, INFINITY, err);
    if (rc == 0 && text.size > 0 &&
        !plans->take_attention(w->device, dt_text_str(&text), t->rank != 0 && w->local_rank == 0)) {
        observers_note(
            &t->observers,
            "train: rank %d has another GPU, driver or cuDNN than rank 0: attention is computed by its own plans",
            t->rank);
    }
    dt_text_clear(&text);
    return rc;
}

/* Each rank for itself: plans, and what attention needs beside memory. */
static int make_ready(struct trainer *t, const struct matmul_shapes *all, struct dt_error *err)
{
    struct world *w = t->world;
    const struct dt_device_plans *plans = w->device->ops->plans;
    const char *forward = "nothing", *backward = "nothing";
    double begin_s = dt_now_s();
    if (plans->ready(w->compute, all->each, all->count, tick, w, err) != 0) {
        return -1;
    }
    observers_note(&t->observers, "train: %d products ready after %.1f s", all->count, dt_now_s() - begin_s);
    begin_s = dt_now_s();
    for (int i = 0; i < all->attention_count; i++) {
        if (plans->attention(w->device, &all->attention[i], &forward, err) != 0) {
            return -1;
        }
        tick(w);
    }
    for (int i = 0; i < all->attention_backward_count; i++) {
        if (plans->attention_backward(w->device, &all->attention_backward[i], &backward, err) != 0) {
            return -1;
        }
        tick(w);
    }
    if (all->attention_count > 0) {
        observers_note(&t->observers, "train: attention by %s, backward by %s: ready after %.1f s", forward, backward,
                       dt_now_s() - begin_s);
    }
    return 0;
}

/* Those of a step's micro-steps: collectives run beside some of them only. */
static void collect_all(const struct trainer *t, struct matmul_shapes *all)
{
    memset(all, 0, sizeof *all);
    for (int i = 0; i < 4; i++) {
        bool first = i % 2 == 0, last = i / 2 == 0;
        struct matmul_shapes_beside beside;
        for (int phase = PASS_FORWARD; phase <= PASS_EVAL; phase++) {
            beside.blocks[phase] =
                strategy_busy_sms(&t->strategy, t->world, (enum pass_phase)phase, false, first, last);
            beside.last[phase] = strategy_busy_sms(&t->strategy, t->world, (enum pass_phase)phase, true, first, last);
        }
        if ((first && last) || t->micro_steps > 1) {
            matmul_shapes_add(all, &t->chain, t->strategy.precision.grads, &beside);
        }
    }
}

int trainer_choose_plans(struct trainer *t, struct world *w, struct dt_error *err)
{
    const struct dt_device_plans *plans = w->device->ops->plans;
    struct matmul_shapes all;
    int rc = 0;
    t->world = w;
    if (plans == NULL) {
        return 0;
    }
    collect_all(t, &all);
    if (t->job->training.deterministic) {
        plans->none(w->device);
    } else {
        rc = choose_together(t, &all, err);
        rc = rc == 0 && all.attention_count > 0 ? choose_attention_together(t, &all, err) : rc;
    }
    rc = rc == 0 ? make_ready(t, &all, err) : rc;
    matmul_shapes_clear(&all);
    return rc;
}
