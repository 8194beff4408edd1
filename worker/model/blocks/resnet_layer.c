/* The stem, the residual layers and the mean over an image of a ResNet (He et al., 2015). Backward reads
 * what each convolution gives, before and behind its norm: the next convolution reads the latter. The last
 * one of a layer is the next layer's input and always kept. PASS_RECOMPUTE makes the others behind their
 * norms, and with RECOMPUTE_BLOCK also all before them. */
#include "worker/model/blocks/resnet_layer.h"

/* ---- sizes ---- */

enum { POOL_SIZE = 3, POOL_STRIDE = 2, POOL_PADDING = 1 };

static int64_t pooled(const struct resnet_layer *a, int64_t length)
{
    return a->pools ? (length + 2 * POOL_PADDING - POOL_SIZE) / POOL_STRIDE + 1 : length;
}

int64_t resnet_height(const struct resnet_layer *a)
{
    return pooled(a, conv_height(&a->convs[a->count - 1]));
}

int64_t resnet_width(const struct resnet_layer *a)
{
    return pooled(a, conv_width(&a->convs[a->count - 1]));
}

double resnet_layer_flops(const struct resnet_layer *a)
{
    double flops = 0;
    for (int i = 0; i < a->count + a->shortcut; i++) {
        flops += conv_flops(&a->convs[i]);
    }
    return flops;
}

static struct flow flow_out(const struct block *b)
{
    const struct resnet_layer *a = b->args;
    return image_flow(b, resnet_height(a), resnet_width(a), a->convs[a->count - 1].out);
}

/* ---- a layer ---- */

/* Numbers of its memory: y of each convolution on the main path, from `y` on; of one call: gradients of
 * the output, and of what lies in between. */
struct layer_memory {
    int y, sum, main, other;
    struct conv_calls calls;
};

/* The walk by which a layer declares its memory (declared) and finds it again. */
static struct layer_memory layer_memory(const struct block *b, struct block *declared)
{
    const struct resnet_layer *a = b->args;
    enum dt_dtype type = b->spec->type;
    int64_t samples = b->spec->batch_size, most = 0;
    int convs = a->count + a->shortcut;
    struct layer_memory m = {.y = 2 * convs};
    m.calls = (struct conv_calls){m.y + a->count, m.y + a->count + 1, m.y + a->count + 2};
    m.sum = m.calls.sums + 1;
    m.main = m.sum + 1;
    m.other = m.main + 1;
    for (int i = 0; i < convs; i++) {
        int64_t out = conv_outputs(&a->convs[i], samples);
        most = out > most ? out : most;
    }
    for (int i = 0; i < a->count && declared != NULL; i++) {
        block_memory(declared, "y", LIFE_BACKWARD, i + 1 < a->count ? RECOMPUTE_CHEAP : RECOMPUTE_NEVER,
                     conv_outputs(&a->convs[i], samples), type);
    }
    if (declared != NULL) {
        (void)conv_declare_calls(declared, a->convs, convs);
        int64_t out = conv_outputs(&a->convs[a->count - 1], samples);
        block_memory(declared, "gradient of the sum", LIFE_CALL, 0, a->shortcut ? out : 0, type);
        block_memory(declared, "gradients", LIFE_CALL, 0, most, type);
        block_memory(declared, "more gradients", LIFE_CALL, 0, most, type);
    }
    return m;
}

static int declare_layer(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct resnet_layer *a = b->args;
    for (int i = 0; i < a->count + a->shortcut; i++) {
        conv_declare(b, &a->convs[i]);
    }
    struct layer_memory m = layer_memory(b, b);
    b->in = image_flow(b, a->convs[0].height, a->convs[0].width, a->convs[0].in);
    b->out = flow_out(b);
    b->y_memory = m.y + a->count - 1;
    b->reads_x = true;
    return 0;
}

static void forward_layer(const struct block *b, const struct pass *p)
{
    const struct resnet_layer *a = b->args;
    struct layer_memory m = layer_memory(b, NULL);
    bool again = p->phase == PASS_RECOMPUTE;
    const void *x = p->x, *residual = p->x;
    if (a->shortcut) {
        void *y = again ? NULL : pass_memory(b, p, m.main);
        conv_forward(b, p, &a->convs[a->count], a->count, &m.calls, y, p->x, NULL, false);
        residual = y;
    }
    for (int i = 0; i < a->count; i++) {
        bool last = i + 1 == a->count;
        void *y = !last ? pass_memory(b, p, m.y + i) : again ? NULL : p->y;
        conv_forward(b, p, &a->convs[i], i, &m.calls, y, x, last ? residual : NULL, true);
        x = y;
    }
}

/* The gradient of the sum is that of both paths. Without a convolution in the shortcut it is the
 * beginning of dx. */
static void backward_layer(const struct block *b, const struct pass *p)
{
    const struct resnet_layer *a = b->args;
    struct layer_memory m = layer_memory(b, NULL);
    int last = a->count - 1;
    void *sum = a->shortcut ? pass_memory(b, p, m.sum) : p->dx;
    void *main = pass_memory(b, p, m.main), *other = pass_memory(b, p, m.other);
    conv_norm_backward(b, p, &a->convs[last], last, &m.calls, main, sum, p->dy, pass_memory(b, p, m.y + last));
    if (a->shortcut) {
        const struct conv *c = &a->convs[a->count];
        conv_norm_backward(b, p, c, a->count, &m.calls, other, other, sum, NULL);
        conv_weight_backward(b, p, c, a->count, &m.calls, other, p->x);
        conv_input_backward(b, p, c, a->count, &m.calls, p->dx, other, false);
    }
    for (int i = last; i > 0; i--) {
        const void *x = pass_memory(b, p, m.y + i - 1);
        conv_weight_backward(b, p, &a->convs[i], i, &m.calls, main, x);
        conv_input_backward(b, p, &a->convs[i], i, &m.calls, other, main, false);
        conv_norm_backward(b, p, &a->convs[i - 1], i - 1, &m.calls, main, other, other, x);
    }
    conv_weight_backward(b, p, &a->convs[0], 0, &m.calls, main, p->x);
    conv_input_backward(b, p, &a->convs[0], 0, &m.calls, p->dx, main, true);
}

const struct block_ops block_resnet_layer = {
    .name = "resnet_layer", .declare = declare_layer, .forward = forward_layer, .backward = backward_layer};

/* ---- the stem ---- */

/* Memory behind that of the convolution: its y, places of the largest values and these values where it
 * pools; of one call: dz. */
enum { Y = 2, PLACES, POOLED, WORK, MOMENTS, SUMS, DZ };
static const struct conv_calls stem_calls = {WORK, MOMENTS, SUMS};

static struct dt_windows pool_windows(const struct resnet_layer *a, int64_t samples)
{
    const struct conv *c = &a->convs[0];
    return (struct dt_windows){.batch = samples,
                               .height = conv_height(c),
                               .width = conv_width(c),
                               .channels = c->out,
                               .out_height = resnet_height(a),
                               .out_width = resnet_width(a),
                               .size = POOL_SIZE,
                               .stride = POOL_STRIDE,
                               .padding = POOL_PADDING};
}

static int declare_stem(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct resnet_layer *a = b->args;
    const struct conv *c = &a->convs[0];
    enum dt_dtype type = b->spec->type;
    int64_t samples = b->spec->batch_size, out = conv_outputs(c, samples);
    int64_t values = a->pools ? samples * resnet_height(a) * resnet_width(a) * c->out : 0;
    (void)block_field(b, "pixel_values");
    conv_declare(b, c);
    block_memory(b, "y", LIFE_BACKWARD, a->pools ? RECOMPUTE_CHEAP : RECOMPUTE_NEVER, out, type);
    block_memory(b, "places", LIFE_BACKWARD, RECOMPUTE_NEVER, values, DT_U8);
    block_memory(b, "largest", LIFE_BACKWARD, RECOMPUTE_NEVER, values, type);
    (void)conv_declare_calls(b, c, 1);
    block_memory(b, "dz", LIFE_CALL, 0, out, type);
    b->out = flow_out(b);
    b->y_memory = a->pools ? POOLED : Y;
    return 0;
}

static const void *pixels(const struct pass *p)
{
    return p->batch->at[batch_find(p->batch->layout, "pixel_values")];
}

static void forward_stem(const struct block *b, const struct pass *p)
{
    const struct resnet_layer *a = b->args;
    void *y = a->pools ? pass_memory(b, p, Y) : p->y;
    conv_forward(b, p, &a->convs[0], 0, &stem_calls, y, pixels(p), NULL, true);
    if (a->pools && p->phase != PASS_RECOMPUTE) {
        p->kernels->max_pool(p->stream, &(struct dt_max_pool_args){.y = p->y,
                                                                   .at = pass_memory(b, p, PLACES),
                                                                   .x = y,
                                                                   .windows = pool_windows(a, p->batch->samples),
                                                                   .type = b->spec->type});
    }
}

static void backward_stem(const struct block *b, const struct pass *p)
{
    const struct resnet_layer *a = b->args;
    const void *dy = p->dy;
    void *dz = pass_memory(b, p, DZ);
    if (a->pools) {
        p->kernels->max_pool_backward(p->stream,
                                      &(struct dt_max_pool_backward_args){.dx = dz,
                                                                          .dy = p->dy,
                                                                          .at = pass_memory(b, p, PLACES),
                                                                          .windows = pool_windows(a, p->batch->samples),
                                                                          .type = b->spec->type});
        dy = dz;
    }
    conv_norm_backward(b, p, &a->convs[0], 0, &stem_calls, dz, dz, dy, pass_memory(b, p, Y));
    conv_weight_backward(b, p, &a->convs[0], 0, &stem_calls, dz, pixels(p));
}

const struct block_ops block_resnet_stem = {
    .name = "resnet_stem", .declare = declare_stem, .forward = forward_stem, .backward = backward_stem};

/* ---- the mean over an image ---- */

static int declare_pool(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct resnet_pool *a = b->args;
    b->in = image_flow(b, a->height, a->width, a->channels);
    b->out = (struct flow){.dims = 2, .shape = {b->spec->batch_size, a->channels}, .type = b->spec->type};
    return 0;
}

static void forward_pool(const struct block *b, const struct pass *p)
{
    const struct resnet_pool *a = b->args;
    p->kernels->masked_mean(p->stream, &(struct dt_masked_mean_args){.out = p->y,
                                                                     .x = p->x,
                                                                     .batch = p->batch->samples,
                                                                     .positions = a->height * a->width,
                                                                     .col_count = a->channels,
                                                                     .type = b->spec->type});
}

static void backward_pool(const struct block *b, const struct pass *p)
{
    const struct resnet_pool *a = b->args;
    p->kernels->masked_mean_backward(p->stream,
                                     &(struct dt_masked_mean_backward_args){.dx = p->dx,
                                                                            .dout = p->dy,
                                                                            .batch = p->batch->samples,
                                                                            .positions = a->height * a->width,
                                                                            .col_count = a->channels,
                                                                            .type = b->spec->type});
}

const struct block_ops block_resnet_pool = {
    .name = "resnet_pool", .declare = declare_pool, .forward = forward_pool, .backward = backward_pool};
