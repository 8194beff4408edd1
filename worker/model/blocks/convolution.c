/* See the header. */
#include "worker/model/blocks/convolution.h"

#include "kernels/convolution.h"

#include <math.h>
#include <stdio.h>

enum { WEIGHT, GAMMA, BETA, RUNNING_MEAN, RUNNING_VAR, TRACKED, TENSORS };
enum { Z, STATISTICS, MEMORIES };

/* ---- sizes ---- */

static int64_t windows_along(const struct conv *c, int64_t length)
{
    return (length + 2 * (c->size / 2) - c->size) / c->stride + 1;
}

int64_t conv_height(const struct conv *c)
{
    return windows_along(c, c->height);
}

int64_t conv_width(const struct conv *c)
{
    return windows_along(c, c->width);
}

int64_t conv_outputs(const struct conv *c, int64_t samples)
{
    return samples * conv_height(c) * conv_width(c) * c->out;
}

static int64_t rows_of(const struct conv *c, int64_t samples)
{
    return samples * conv_height(c) * conv_width(c);
}

/* Values below a window. */
static int64_t columns_of(const struct conv *c)
{
    return c->in * c->size * c->size;
}

double conv_flops(const struct conv *c)
{
    return 6.0 * (double)conv_outputs(c, 1) * (double)columns_of(c);
}

static struct dt_windows windows_of(const struct conv *c, int64_t samples)
{
    return (struct dt_windows){.batch = samples,
                               .height = c->height,
                               .width = c->width,
                               .channels = c->in,
                               .out_height = conv_height(c),
                               .out_width = conv_width(c),
                               .size = c->size,
                               .stride = c->stride,
                               .padding = c->size / 2};
}

/* Samples that a device without convolutions of its own unfolds at a time. */
static int64_t at_once(const struct block *b, const struct conv *c)
{
    const struct dt_windows w = windows_of(c, b->spec->batch_size);
    return dt_convolution_at_once(&w, c->planar, b->spec->type, b->spec->own_memory);
}

struct flow image_flow(const struct block *b, int64_t height, int64_t width, int64_t channels)
{
    return (struct flow){.dims = 4, .shape = {b->spec->batch_size, height, width, channels}, .type = b->spec->type};
}

/* ---- declaring ---- */

static void declare_tensor(struct block *b, const struct conv *c, const char *end, const int64_t *shape, int dims,
                           const struct tensor_rule *rule)
{
    char name[CONV_NAME_MAX + 64];
    (void)snprintf(name, sizeof name, "%s.%s", c->name, end);
    (void)block_tensor(b, name, shape, dims, rule);
}

void conv_declare(struct block *b, const struct conv *c)
{
    const int64_t weights[] = {c->out, c->in, c->size, c->size};
    const struct tensor_rule one = {.init = INIT_ONE}, zero = {.init = INIT_ZERO};
    const struct tensor_rule variance = {.role = ROLE_BUFFER, .init = INIT_ONE}, buffer = {.role = ROLE_BUFFER};
    const struct tensor_rule normal = {.init = INIT_NORMAL,
                                       .init_std = sqrt(2.0 / (double)(c->out * c->size * c->size))};
    declare_tensor(b, c, "convolution.weight", weights, 4, &normal);
    declare_tensor(b, c, "normalization.weight", &c->out, 1, &one);
    declare_tensor(b, c, "normalization.bias", &c->out, 1, &zero);
    declare_tensor(b, c, "normalization.running_mean", &c->out, 1, &buffer);
    declare_tensor(b, c, "normalization.running_var", &c->out, 1, &variance);
    declare_tensor(b, c, "normalization.num_batches_tracked", NULL, 0, &buffer);
    block_memory(b, "convolution", LIFE_BACKWARD, RECOMPUTE_BLOCK, conv_outputs(c, b->spec->batch_size), b->spec->type);
    block_memory(b, "statistics", LIFE_BACKWARD, RECOMPUTE_NEVER, 2 * c->out + 1, dt_dtype_wide(b->spec->type));
}

static int64_t more(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

struct conv_calls conv_declare_calls(struct block *b, const struct conv *convs, int count)
{
    enum dt_dtype type = b->spec->type, wide = dt_dtype_wide(type);
    int64_t work = 0, out = 0;
    for (int i = 0; i < count; i++) {
        const struct dt_windows w = windows_of(&convs[i], b->spec->batch_size);
        work = more(work, dt_convolution_work(&w, convs[i].out, convs[i].planar, type, b->spec->own_memory));
        out = more(out, convs[i].out);
    }
    int64_t records = b->spec->norm_ranks > 1 ? b->spec->norm_ranks + 1 : 1;
    struct conv_calls m;
    m.work = block_memory(b, "work of convolutions", LIFE_CALL, 0, work, DT_U8);
    m.moments = block_memory(b, "moments", LIFE_CALL, 0, records * (2 * out + 1), wide);
    m.sums = block_memory(b, "sums", LIFE_CALL, 0, 2 * out, wide);
    return m;
}

/* ---- forward ---- */

static void multiply(const struct block *b, const struct pass *p, const struct conv *c, int i,
                     const struct conv_calls *m, const void *x)
{
    enum dt_dtype type = b->spec->type;
    dt_convolution(p->kernels, p->stream,
                   &(struct dt_convolution_args){.y = pass_memory(b, p, MEMORIES * i + Z),
                                                 .x = x,
                                                 .weights = pass_weight(b, p, TENSORS * i + WEIGHT),
                                                 .work = pass_memory(b, p, m->work),
                                                 .windows = windows_of(c, p->batch->samples),
                                                 .out = c->out,
                                                 .at_once = at_once(b, c),
                                                 .planar = c->planar,
                                                 .type = type,
                                                 .x_type = c->planar ? DT_F32 : type,
                                                 .busy_sms = p->busy_sms});
}

/* Moments of z over this rank's samples, or, by turns, of each rank's. Returns how many there are. A
 * sample counts whether or not it has a target. */
static int64_t take_moments(const struct block *b, const struct pass *p, const struct conv *c, int i, void **moments)
{
    enum dt_dtype wide = dt_dtype_wide(b->spec->type);
    int64_t record = 2 * c->out + 1;
    void *own = *moments;
    p->kernels->batch_moments(p->stream, &(struct dt_batch_moments_args){.moments = own,
                                                                         .x = pass_memory(b, p, MEMORIES * i + Z),
                                                                         .row_count = rows_of(c, p->batch->samples),
                                                                         .col_count = c->out,
                                                                         .type = b->spec->type});
    if (p->peers == NULL) {
        return 1;
    }
    *moments = (char *)own + (size_t)record * dt_dtype_size(wide);
    p->peers->gather(p->peers, own, *moments, record, wide);
    return p->peers->count;
}

static void take_statistics(const struct block *b, const struct pass *p, const struct conv *c, int i,
                            const struct conv_calls *m)
{
    bool eval = p->phase == PASS_EVAL, moves = eval || p->batch->weight > 0 || p->peers != NULL;
    void *moments = eval ? NULL : pass_memory(b, p, m->moments);
    int64_t parts = eval ? 0 : take_moments(b, p, c, i, &moments);
    p->kernels->batch_merge(p->stream, &(struct dt_batch_merge_args){
                                           .statistics = pass_memory(b, p, MEMORIES * i + STATISTICS),
                                           .running_mean = moves ? pass_buffer(b, p, TENSORS * i + RUNNING_MEAN) : NULL,
                                           .running_var = moves ? pass_buffer(b, p, TENSORS * i + RUNNING_VAR) : NULL,
                                           .tracked = moves ? pass_buffer(b, p, TENSORS * i + TRACKED) : NULL,
                                           .moments = moments,
                                           .parts = parts,
                                           .col_count = c->out,
                                           .eps = c->eps,
                                           .momentum = c->momentum,
                                           .type = b->spec->type});
}

void conv_forward(const struct block *b, const struct pass *p, const struct conv *c, int i, const struct conv_calls *m,
                  void *y, const void *x, const void *residual, bool relu)
{
    bool again = p->phase == PASS_RECOMPUTE;
    if (!again || b->recompute == RECOMPUTE_BLOCK) {
        multiply(b, p, c, i, m, x);
    }
    if (!again) {
        take_statistics(b, p, c, i, m);
    }
    if (y == NULL) {
        return;
    }
    p->kernels->batch_norm(p->stream,
                           &(struct dt_batch_norm_args){.y = y,
                                                        .x = pass_memory(b, p, MEMORIES * i + Z),
                                                        .statistics = pass_memory(b, p, MEMORIES * i + STATISTICS),
                                                        .gamma = pass_weight(b, p, TENSORS * i + GAMMA),
                                                        .beta = pass_weight(b, p, TENSORS * i + BETA),
                                                        .residual = residual,
                                                        .row_count = rows_of(c, p->batch->samples),
                                                        .col_count = c->out,
                                                        .relu = relu,
                                                        .type = b->spec->type});
}

/* ---- backward ---- */

void conv_norm_backward(const struct block *b, const struct pass *p, const struct conv *c, int i,
                        const struct conv_calls *m, void *to, void *dz, const void *dy, const void *y)
{
    const void *z = pass_memory(b, p, MEMORIES * i + Z), *statistics = pass_memory(b, p, MEMORIES * i + STATISTICS);
    void *sums = pass_memory(b, p, m->sums);
    p->kernels->batch_norm_sums(p->stream,
                                &(struct dt_batch_norm_sums_args){.dz = dz,
                                                                  .sums = sums,
                                                                  .dgamma = pass_grad(b, p, TENSORS * i + GAMMA),
                                                                  .dbeta = pass_grad(b, p, TENSORS * i + BETA),
                                                                  .dy = dy,
                                                                  .y = y,
                                                                  .x = z,
                                                                  .statistics = statistics,
                                                                  .row_count = rows_of(c, p->batch->samples),
                                                                  .col_count = c->out,
                                                                  .accumulate = pass_adds(b, p, TENSORS * i + GAMMA),
                                                                  .type = b->spec->type,
                                                                  .grad_type = pass_grad_type(b, p)});
    if (p->peers != NULL) {
        p->peers->sum(p->peers, sums, 2 * c->out, dt_dtype_wide(b->spec->type));
    }
    p->kernels->batch_norm_backward(
        p->stream, &(struct dt_batch_norm_backward_args){.dx = to,
                                                         .dz = y != NULL ? dz : dy,
                                                         .x = z,
                                                         .statistics = statistics,
                                                         .sums = sums,
                                                         .gamma = pass_weight(b, p, TENSORS * i + GAMMA),
                                                         .row_count = rows_of(c, p->batch->samples),
                                                         .col_count = c->out,
                                                         .type = b->spec->type});
}

void conv_weight_backward(const struct block *b, const struct pass *p, const struct conv *c, int i,
                          const struct conv_calls *m, const void *dy, const void *x)
{
    enum dt_dtype type = b->spec->type;
    void *grad = pass_grad(b, p, TENSORS * i + WEIGHT);
    if (grad == NULL) {
        return;
    }
    dt_convolution_weights(p->kernels, p->stream,
                           &(struct dt_convolution_weights_args){.dweights = grad,
                                                                 .dy = dy,
                                                                 .x = x,
                                                                 .work = pass_memory(b, p, m->work),
                                                                 .windows = windows_of(c, p->batch->samples),
                                                                 .out = c->out,
                                                                 .at_once = at_once(b, c),
                                                                 .planar = c->planar,
                                                                 .accumulate = pass_adds(b, p, TENSORS * i + WEIGHT),
                                                                 .type = type,
                                                                 .x_type = c->planar ? DT_F32 : type,
                                                                 .grad_type = pass_grad_type(b, p),
                                                                 .busy_sms = p->busy_sms});
}

void conv_input_backward(const struct block *b, const struct pass *p, const struct conv *c, int i,
                         const struct conv_calls *m, void *dx, const void *dy, bool adds)
{
    dt_convolution_input(p->kernels, p->stream,
                         &(struct dt_convolution_input_args){.dx = dx,
                                                             .dy = dy,
                                                             .weights = pass_weight(b, p, TENSORS * i + WEIGHT),
                                                             .work = pass_memory(b, p, m->work),
                                                             .windows = windows_of(c, p->batch->samples),
                                                             .out = c->out,
                                                             .at_once = at_once(b, c),
                                                             .accumulate = adds,
                                                             .type = b->spec->type,
                                                             .busy_sms = p->busy_sms});
}
