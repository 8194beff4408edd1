/* Cases of the kernels of images: windows and batch norm. */
#include "kernels/convolution.h"
#include "tests/lib/kernel_cases.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { PLANAR = 1, ADDS = 2 };

/* B, H, W, C, then size, stride and padding as decimal digits, and flags */
static struct dt_windows windows_of(const int64_t *n)
{
    int64_t size = n[4] / 100, stride = n[4] / 10 % 10, padding = n[4] % 10;
    return (struct dt_windows){.batch = n[0],
                               .height = n[1],
                               .width = n[2],
                               .channels = n[3],
                               .out_height = (n[1] + 2 * padding - size) / stride + 1,
                               .out_width = (n[2] + 2 * padding - size) / stride + 1,
                               .size = size,
                               .stride = stride,
                               .padding = padding};
}

static int64_t pixels_of(const struct dt_windows *w)
{
    return w->batch * w->height * w->width * w->channels;
}

static int64_t outputs_of(const struct dt_windows *w)
{
    return w->batch * w->out_height * w->out_width * w->channels;
}

void case_make_windows(const int64_t *n)
{
    struct dt_windows w = windows_of(n);
    case_make(0, outputs_of(&w) * w.size * w.size, 1, 0);
    case_make_of((n[5] & PLANAR) != 0 ? STAT : FLOWS, 1, pixels_of(&w), 1, 0);
    case_make(2, pixels_of(&w), 1, 0);
    case_make(3, outputs_of(&w) * w.size * w.size, 1, 0);
}

void case_run_windows(const struct case_run *r)
{
    bool planar = (r->n[5] & PLANAR) != 0;
    r->k->unfold(r->s, &(struct dt_unfold_args){.out = case_at(r, 0),
                                                .x = case_at(r, 1),
                                                .windows = windows_of(r->n),
                                                .planar = planar,
                                                .type = r->type,
                                                .x_type = planar ? dt_dtype_wide(r->type) : r->type});
    r->k->fold(r->s, &(struct dt_fold_args){.dx = case_at(r, 2),
                                            .dout = case_at(r, 3),
                                            .windows = windows_of(r->n),
                                            .accumulate = (r->n[5] & ADDS) != 0,
                                            .type = r->type});
}

/* A convolution and both gradients, as the windows above; n[5]: flags, samples that are unfolded at a
 * time (0: as many as the library says) << 4, channels of the output << 8. */
static int64_t outputs_at(const int64_t *n)
{
    return n[5] >> 8;
}

static int64_t values_of(const int64_t *n)
{
    struct dt_windows w = windows_of(n);
    return w.batch * w.out_height * w.out_width * outputs_at(n);
}

void case_make_convolution(const int64_t *n)
{
    struct dt_windows w = windows_of(n);
    int64_t weights = outputs_at(n) * w.channels * w.size * w.size;
    case_make(0, values_of(n), 1, 0);
    case_make_of((n[5] & PLANAR) != 0 ? STAT : FLOWS, 1, pixels_of(&w), 1, 0);
    /* outputs are about 1, gradients of images 1/10, so that an absolute bound means something */
    case_make(2, weights, 1.0 / ((double)w.size * sqrt((double)w.channels)), 0);
    case_make(3, values_of(n), 0.1, 0);
    case_make(4, pixels_of(&w), 1, 0);
    case_make_of(GRAD, 5, weights, 1, 0);
}

static void run_gradients(const struct case_run *r, const struct dt_convolution_args *a)
{
    bool adds = (r->n[5] & ADDS) != 0;
    dt_convolution_weights(r->k, r->s,
                           &(struct dt_convolution_weights_args){.dweights = case_at(r, 5),
                                                                 .dy = case_at(r, 3),
                                                                 .x = a->x,
                                                                 .work = a->work,
                                                                 .windows = a->windows,
                                                                 .out = a->out,
                                                                 .at_once = a->at_once,
                                                                 .planar = a->planar,
                                                                 .accumulate = adds,
                                                                 .type = a->type,
                                                                 .x_type = a->x_type,
                                                                 .grad_type = r->grad});
    if (!a->planar) {
        dt_convolution_input(r->k, r->s,
                             &(struct dt_convolution_input_args){.dx = case_at(r, 4),
                                                                 .dy = case_at(r, 3),
                                                                 .weights = a->weights,
                                                                 .work = a->work,
                                                                 .windows = a->windows,
                                                                 .out = a->out,
                                                                 .at_once = a->at_once,
                                                                 .accumulate = adds,
                                                                 .type = a->type});
    }
}

/* Work memory has exactly the bytes that a call may use, and no number that anybody could count on. */
void case_run_convolution(const struct case_run *r)
{
    struct dt_windows w = windows_of(r->n);
    bool planar = (r->n[5] & PLANAR) != 0, device = r->on != NULL;
    int64_t pieces = r->n[5] >> 4 & 15, bytes = dt_convolution_work(&w, outputs_at(r->n), planar, r->type, device);
    bytes += pieces == 0 ? 0 : outputs_at(r->n) * w.channels * w.size * w.size * 4 + 256;
    void *work;
    struct dt_error err;
    int opened = dt_device_alloc(r->s->device, DT_MEMORY_DEVICE, (size_t)bytes + 1, &work, &err);
    assert(opened == 0);
    if (!device) {
        memset(work, 0xff, (size_t)bytes);
    }
    const struct dt_convolution_args a = {.y = case_at(r, 0),
                                          .x = case_at(r, 1),
                                          .weights = case_at(r, 2),
                                          .work = work,
                                          .windows = w,
                                          .out = outputs_at(r->n),
                                          .at_once = pieces != 0 ? pieces
                                                                 : dt_convolution_at_once(&w, planar, r->type, device),
                                          .planar = planar,
                                          .type = r->type,
                                          .x_type = planar ? dt_dtype_wide(r->type) : r->type};
    dt_convolution(r->k, r->s, &a);
    run_gradients(r, &a);
    int ended = dt_stream_finish(r->s, 600, &err);
    dt_device_free(r->s->device, DT_MEMORY_DEVICE, work, (size_t)bytes + 1);
    assert(ended == 0);
    (void)opened;
    (void)ended;
}

void case_make_pool(const int64_t *n)
{
    struct dt_windows w = windows_of(n);
    assert(outputs_of(&w) <= (int64_t)sizeof case_side.ids);
    case_make(0, outputs_of(&w), 1, 0);
    case_make(1, pixels_of(&w), 1, 0);
    case_make(2, pixels_of(&w), 1, 0);
    case_make(3, outputs_of(&w), 1, 0);
}

void case_run_pool(const struct case_run *r)
{
    uint8_t *places = (uint8_t *)case_side_of(r)->ids;
    struct dt_windows w = windows_of(r->n);
    r->k->max_pool(r->s, &(struct dt_max_pool_args){
                             .y = case_at(r, 0), .at = places, .x = case_at(r, 1), .windows = w, .type = r->type});
    r->k->max_pool_backward(r->s,
                            &(struct dt_max_pool_backward_args){
                                .dx = case_at(r, 2), .dy = case_at(r, 3), .at = places, .windows = w, .type = r->type});
}

enum { RELU = 1, GRADIENTS_ADD = 2, APART = 4, RUNNING = 8, RESIDUAL = 16, SHIFTED = 32 };

/* rows, C, parts whose moments are merged, flags */
void case_make_batch_norm(const int64_t *n)
{
    int64_t all = n[0] * n[1], C = n[1];
    case_make(0, all, 1, 0);
    case_make(1, all, 1, (n[3] & SHIFTED) != 0 ? 30 : 0.5);
    case_make_of(STAT, 2, n[2] * (2 * C + 1), 1, 0);
    case_make_of(STAT, 3, 2 * C + 1, 1, 0);
    case_make_of(STAT, 4, 2 * C + 1, 0.5, 1.5);
    case_make(5, 2 * C, 1, 0.5);
    case_make(6, all, 1, 0);
    case_make_of(GRAD, 7, 2 * C, 1, 0);
    case_make_of(STAT, 8, 2 * C, 1, 0);
    case_make(9, all, 1, 0);
}

/* Element i of buffer b, of the kind's type in this run. */
static void *element(const struct case_run *r, int b, int64_t i)
{
    enum dt_dtype type = r->type == DT_F64                                    ? DT_F64
                         : case_buf[b].kind == STAT                           ? DT_F32
                         : case_buf[b].kind == GRAD && dt_dtype_half(r->type) ? r->grad
                                                                              : r->type;
    return (char *)case_at(r, b) + (size_t)i * dt_dtype_size(type);
}

void case_run_batch_norm(const struct case_run *r)
{
    int64_t rows = r->n[0], C = r->n[1], parts = r->n[2], flags = r->n[3];
    bool relu = (flags & RELU) != 0;
    for (int64_t p = 0; p < parts; p++) { /* the last part takes the rest, and may have it all */
        int64_t each = rows / parts / 3, first = p * each, count = p + 1 == parts ? rows - first : each;
        r->k->batch_moments(r->s, &(struct dt_batch_moments_args){.moments = element(r, 2, p * (2 * C + 1)),
                                                                  .x = element(r, 1, first * C),
                                                                  .row_count = count,
                                                                  .col_count = C,
                                                                  .type = r->type});
    }
    r->k->batch_merge(r->s, &(struct dt_batch_merge_args){.statistics = case_at(r, 3),
                                                          .running_mean = element(r, 4, 0),
                                                          .running_var = element(r, 4, C),
                                                          .tracked = element(r, 4, 2 * C),
                                                          .moments = (flags & RUNNING) != 0 ? NULL : case_at(r, 2),
                                                          .parts = parts,
                                                          .col_count = C,
                                                          .eps = 1e-5,
                                                          .momentum = 0.1,
                                                          .type = r->type});
    r->k->batch_norm(r->s, &(struct dt_batch_norm_args){.y = case_at(r, 0),
                                                        .x = case_at(r, 1),
                                                        .statistics = case_at(r, 3),
                                                        .gamma = element(r, 5, 0),
                                                        .beta = element(r, 5, C),
                                                        .residual = (flags & RESIDUAL) != 0 ? case_at(r, 6) : NULL,
                                                        .row_count = rows,
                                                        .col_count = C,
                                                        .relu = relu,
                                                        .type = r->type});
    r->k->batch_norm_sums(r->s, &(struct dt_batch_norm_sums_args){.dz = case_at(r, 9),
                                                                  .sums = case_at(r, 8),
                                                                  .dgamma = element(r, 7, 0),
                                                                  .dbeta = element(r, 7, C),
                                                                  .dy = case_at(r, 6),
                                                                  .y = relu ? case_at(r, 0) : NULL,
                                                                  .x = case_at(r, 1),
                                                                  .statistics = case_at(r, 3),
                                                                  .row_count = rows,
                                                                  .col_count = C,
                                                                  .accumulate = (flags & GRADIENTS_ADD) != 0,
                                                                  .type = r->type,
                                                                  .grad_type = r->grad});
    r->k->batch_norm_backward(
        r->s, &(struct dt_batch_norm_backward_args){.dx = case_at(r, (flags & APART) != 0 ? 0 : 9),
                                                    .dz = case_at(r, relu || (flags & APART) == 0 ? 9 : 6),
                                                    .x = case_at(r, 1),
                                                    .statistics = case_at(r, 3),
                                                    .sums = case_at(r, 8),
                                                    .gamma = case_at(r, 5),
                                                    .row_count = rows,
                                                    .col_count = C,
                                                    .type = r->type});
}
