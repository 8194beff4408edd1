/* The products, attention and convolutions of a job, found by a walk over the chain with kernels that do
 * nothing but write down what is asked of them. */
#include "worker/engine/matmul_shapes.h"

#include "kernels/convolution.h"
#include "worker/model/chain_walk.h"

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
           (a->epilogue != DT_EPILOGUE_GELU_BACKWARD || a->accumulate == b->accumulate) &&
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

/* The parts of an epilogue come first: it is compared with the time that they take. A sum for a bias that is added to may
 * be apart from GELU's gradient, and that is one way for a sum that is not, too. */
static bool collect_epilogue(struct dt_stream *s, const struct dt_matmul_args *a)
{
    dt_matmul_parts(&((struct collector *)s)->kernels, s, a);
    if (a->epilogue == DT_EPILOGUE_GELU_BACKWARD) {
        struct dt_matmul_args adding = *a;
        adding.accumulate = true;
        collect(s, &adding);
    }
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

/* Convolutions of the same key (kernels/cuda/convolution_plan.h). Their parts are collected as well: these
 * compute what a library does not. */
static bool same_windows(const struct dt_windows *a, const struct dt_windows *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static bool collect_convolution(struct dt_stream *s, const struct dt_convolution_args *a)
{
    struct matmul_shapes *p = ((struct collector *)s)->to;
    dt_convolution_parts(&((struct collector *)s)->kernels, s, a);
    for (int i = 0; i < p->convolution_count; i++) {
        const struct dt_convolution_args *b = &p->convolution[i];
        if (same_windows(&a->windows, &b->windows) && a->out == b->out && a->planar == b->planar &&
            a->type == b->type && a->x_type == b->x_type) {
            return true;
        }
    }
    p->convolution = grown(p->convolution, p->convolution_count, &p->convolution_capacity, sizeof *a);
    p->convolution[p->convolution_count++] = *a;
    return true;
}

static bool collect_convolution_input(struct dt_stream *s, const struct dt_convolution_input_args *a)
{
    struct matmul_shapes *p = ((struct collector *)s)->to;
    dt_convolution_input_parts(&((struct collector *)s)->kernels, s, a);
    for (int i = 0; i < p->convolution_input_count; i++) {
        const struct dt_convolution_input_args *b = &p->convolution_input[i];
        if (same_windows(&a->windows, &b->windows) && a->out == b->out && a->accumulate == b->accumulate &&
            a->type == b->type) {
            return true;
        }
    }
    p->convolution_input =
        grown(p->convolution_input, p->convolution_input_count, &p->convolution_input_capacity, sizeof *a);
    p->convolution_input[p->convolution_input_count++] = *a;
    return true;
}

static bool collect_convolution_weights(struct dt_stream *s, const struct dt_convolution_weights_args *a)
{
    struct matmul_shapes *p = ((struct collector *)s)->to;
    dt_convolution_weights_parts(&((struct collector *)s)->kernels, s, a);
    for (int i = 0; i < p->convolution_weights_count; i++) {
        const struct dt_convolution_weights_args *b = &p->convolution_weights[i];
        if (same_windows(&a->windows, &b->windows) && a->out == b->out && a->planar == b->planar &&
            a->type == b->type && a->x_type == b->x_type && a->grad_type == b->grad_type) {
            return true;
        }
    }
    p->convolution_weights =
        grown(p->convolution_weights, p->convolution_weights_count, &p->convolution_weights_capacity, sizeof *a);
    p->convolution_weights[p->convolution_weights_count++] = *a;
    return true;
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
                          .kernels = {
                              .name = "collecting",
#define KERNEL(row, types) .row = skip_##row,
#include "kernels/rows.def"
                              .matmul_epilogue = collect_epilogue,
#define CONVOLUTION(row) .row = collect_##row,
#include "kernels/convolutions.def"
                          }};
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
    free(p->convolution);
    free(p->convolution_input);
    free(p->convolution_weights);
    memset(p, 0, sizeof *p);
}
