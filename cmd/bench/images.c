#include "cmd/bench/images.h"

#include "kernels/convolution.h"
#include "kernels/cost.h"

enum { SIDE = 32, WINDOW = 3 };

/* Calls the convolution when `go`, otherwise chooses what computes it, as at the start of a run; its operations.
 * Its plan says by what it is computed. */
#define CONVOLVE(name, b, go, args, list)                                                                              \
    ((go) ? dt_##name((b)->k, (b)->s, args) : choose(b, &(struct dt_convolution_list)list), dt_cost_##name(args).flops)
#define LIST(...)                                                                                                      \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

static void choose(struct bench *b, const struct dt_convolution_list *all)
{
    const struct dt_device_plans *plans = b->d->ops->plans;
    struct dt_error why, err = {0};
    int measured;
    if (plans != NULL) {
        (void)bench_ok(b, plans->choose_convolutions(b->s, all, NULL, NULL, &measured, &why, &err), &err);
        (void)bench_ok(b, plans->convolutions(b->d, all, NULL, NULL, &b->by, &err), &err);
    }
}

/* Calls the kernel when `go`; the bytes that it must move. */
#define CALL(kernel, b, go, args) ((go) ? (b)->k->kernel((b)->s, args) : (void)0, dt_cost_##kernel(args).bytes)

/* Images of 32 x 32, or one of fewer lines; with a stride of 2 for pooling. Convolutions make nine
 * values of each pixel, so they have a ninth of the rows. */
static struct dt_windows windows_of(const struct bench *b, int64_t rows, int64_t stride)
{
    int64_t side = rows < SIDE * SIDE ? 1 : SIDE, batch = rows / side / side > 0 ? rows / side / side : 1;
    return (struct dt_windows){.batch = batch,
                               .height = side,
                               .width = side,
                               .channels = b->cols,
                               .out_height = (side - 1) / stride + 1,
                               .out_width = (side - 1) / stride + 1,
                               .size = WINDOW,
                               .stride = stride,
                               .padding = 1};
}

static int64_t pixels_of(const struct dt_windows *w)
{
    return w->batch * w->height * w->width * w->channels;
}

static int64_t outputs_of(const struct dt_windows *w)
{
    return w->batch * w->out_height * w->out_width * w->channels;
}

static bool own_memory(const struct bench *b)
{
    return !b->d->host_memory;
}

double bench_unfold(struct bench *b, bool go)
{
    struct dt_windows w = windows_of(b, b->rows / WINDOW / WINDOW, 1);
    struct dt_unfold_args a = {.out = bench_buffer(b, 0, outputs_of(&w) * WINDOW * WINDOW, b->type),
                               .x = bench_buffer(b, 1, pixels_of(&w), b->type),
                               .windows = w,
                               .type = b->type,
                               .x_type = b->type};
    return CALL(unfold, b, go, &a);
}

double bench_fold(struct bench *b, bool go)
{
    struct dt_windows w = windows_of(b, b->rows / WINDOW / WINDOW, 1);
    struct dt_fold_args a = {.dx = bench_buffer(b, 0, pixels_of(&w), b->type),
                             .dout = bench_buffer(b, 1, outputs_of(&w) * WINDOW * WINDOW, b->type),
                             .windows = w,
                             .type = b->type};
    return CALL(fold, b, go, &a);
}

/* Number of weights of (cols, cols, 3, 3). */
static int64_t weights_of(const struct bench *b)
{
    return b->cols * b->cols * WINDOW * WINDOW;
}

static void *work_of(struct bench *b, const struct dt_windows *w)
{
    return bench_buffer(b, 3, dt_convolution_work(w, b->cols, false, b->type, own_memory(b)), DT_U8);
}

static int64_t at_once(const struct bench *b, const struct dt_windows *w)
{
    return dt_convolution_at_once(w, false, b->type, own_memory(b));
}

double bench_convolution(struct bench *b, bool go)
{
    struct dt_windows w = windows_of(b, b->rows, 1);
    struct dt_convolution_args a = {.y = bench_buffer(b, 0, outputs_of(&w), b->type),
                                    .x = bench_buffer(b, 1, pixels_of(&w), b->type),
                                    .weights = bench_buffer(b, 2, weights_of(b), b->type),
                                    .work = work_of(b, &w),
                                    .windows = w,
                                    .out = b->cols,
                                    .at_once = at_once(b, &w),
                                    .type = b->type,
                                    .x_type = b->type};
    return CONVOLVE(convolution, b, go, &a, LIST(.forward = &a, .forward_count = 1));
}

double bench_convolution_input(struct bench *b, bool go)
{
    struct dt_windows w = windows_of(b, b->rows, 1);
    struct dt_convolution_input_args a = {.dx = bench_buffer(b, 0, pixels_of(&w), b->type),
                                          .dy = bench_buffer(b, 1, outputs_of(&w), b->type),
                                          .weights = bench_buffer(b, 2, weights_of(b), b->type),
                                          .work = work_of(b, &w),
                                          .windows = w,
                                          .out = b->cols,
                                          .at_once = at_once(b, &w),
                                          .type = b->type};
    return CONVOLVE(convolution_input, b, go, &a, LIST(.input = &a, .input_count = 1));
}

double bench_convolution_weights(struct bench *b, bool go)
{
    struct dt_windows w = windows_of(b, b->rows, 1);
    struct dt_convolution_weights_args a = {.dweights = bench_buffer(b, 2, weights_of(b), DT_F32),
                                            .dy = bench_buffer(b, 0, outputs_of(&w), b->type),
                                            .x = bench_buffer(b, 1, pixels_of(&w), b->type),
                                            .work = work_of(b, &w),
                                            .windows = w,
                                            .out = b->cols,
                                            .at_once = at_once(b, &w),
                                            .type = b->type,
                                            .x_type = b->type,
                                            .grad_type = DT_F32};
    return CONVOLVE(convolution_weights, b, go, &a, LIST(.weights = &a, .weights_count = 1));
}

double bench_max_pool(struct bench *b, bool go)
{
    struct dt_windows w = windows_of(b, b->rows, 2);
    struct dt_max_pool_args a = {.y = bench_buffer(b, 0, outputs_of(&w), b->type),
                                 .at = bench_buffer(b, 1, outputs_of(&w), DT_U8),
                                 .x = bench_buffer(b, 2, pixels_of(&w), b->type),
                                 .windows = w,
                                 .type = b->type};
    return CALL(max_pool, b, go, &a);
}

double bench_max_pool_backward(struct bench *b, bool go)
{
    struct dt_windows w = windows_of(b, b->rows, 2);
    struct dt_max_pool_backward_args a = {.dx = bench_buffer(b, 0, pixels_of(&w), b->type),
                                          .dy = bench_buffer(b, 1, outputs_of(&w), b->type),
                                          .at = bench_buffer(b, 2, outputs_of(&w), DT_U8),
                                          .windows = w,
                                          .type = b->type};
    return CALL(max_pool_backward, b, go, &a);
}

double bench_batch_moments(struct bench *b, bool go)
{
    struct dt_batch_moments_args a = {.moments = bench_buffer(b, 0, 2 * b->cols + 1, DT_F32),
                                      .x = bench_buffer(b, 1, b->rows * b->cols, b->type),
                                      .row_count = b->rows,
                                      .col_count = b->cols,
                                      .type = b->type};
    return CALL(batch_moments, b, go, &a);
}

double bench_batch_merge(struct bench *b, bool go)
{
    struct dt_batch_merge_args a = {.statistics = bench_buffer(b, 0, 2 * b->cols + 1, DT_F32),
                                    .running_mean = bench_buffer(b, 1, b->cols, DT_F32),
                                    .running_var = bench_buffer(b, 2, b->cols, DT_F32),
                                    .tracked = bench_buffer(b, 3, 1, DT_F32),
                                    .moments = bench_buffer(b, 4, 2 * b->cols + 1, DT_F32),
                                    .parts = 1,
                                    .col_count = b->cols,
                                    .eps = 1e-5,
                                    .momentum = 0.1,
                                    .type = b->type};
    return CALL(batch_merge, b, go, &a);
}

double bench_batch_norm(struct bench *b, bool go)
{
    struct dt_batch_norm_args a = {.y = bench_buffer(b, 0, b->rows * b->cols, b->type),
                                   .x = bench_buffer(b, 1, b->rows * b->cols, b->type),
                                   .statistics = bench_buffer(b, 2, 2 * b->cols + 1, DT_F32),
                                   .gamma = bench_buffer(b, 3, b->cols, b->type),
                                   .beta = bench_buffer(b, 4, b->cols, b->type),
                                   .residual = bench_buffer(b, 5, b->rows * b->cols, b->type),
                                   .row_count = b->rows,
                                   .col_count = b->cols,
                                   .relu = true,
                                   .type = b->type};
    return CALL(batch_norm, b, go, &a);
}

double bench_batch_norm_sums(struct bench *b, bool go)
{
    struct dt_batch_norm_sums_args a = {.dz = bench_buffer(b, 0, b->rows * b->cols, b->type),
                                        .sums = bench_buffer(b, 1, 2 * b->cols, DT_F32),
                                        .dgamma = bench_buffer(b, 2, b->cols, DT_F32),
                                        .dbeta = bench_buffer(b, 3, b->cols, DT_F32),
                                        .dy = bench_buffer(b, 4, b->rows * b->cols, b->type),
                                        .y = bench_buffer(b, 5, b->rows * b->cols, b->type),
                                        .x = bench_buffer(b, 6, b->rows * b->cols, b->type),
                                        .statistics = bench_buffer(b, 7, 2 * b->cols + 1, DT_F32),
                                        .row_count = b->rows,
                                        .col_count = b->cols,
                                        .type = b->type,
                                        .grad_type = DT_F32};
    return CALL(batch_norm_sums, b, go, &a);
}

double bench_batch_norm_backward(struct bench *b, bool go)
{
    struct dt_batch_norm_backward_args a = {.dx = bench_buffer(b, 0, b->rows * b->cols, b->type),
                                            .dz = bench_buffer(b, 1, b->rows * b->cols, b->type),
                                            .x = bench_buffer(b, 2, b->rows * b->cols, b->type),
                                            .statistics = bench_buffer(b, 3, 2 * b->cols + 1, DT_F32),
                                            .sums = bench_buffer(b, 4, 2 * b->cols, DT_F32),
                                            .gamma = bench_buffer(b, 5, b->cols, b->type),
                                            .row_count = b->rows,
                                            .col_count = b->cols,
                                            .type = b->type};
    return CALL(batch_norm_backward, b, go, &a);
}
