/* Every kernel, by the bytes that it must move or, where arithmetic decides (bench_products.c),
 * by the operations that it must do: each row of `kernels` below is a function that makes the
 * call, and says how many (cost.h). The floor is the time in which a copy moves as many bytes,
 * or a square product does as many operations; these are timed in turns with the kernel, all by
 * the device's clock. Calls follow each other without a wait, so many that what the host needs
 * to start the first does not count. */
#include "cmd/bench/kernels.h"

#include "base/bench.h"
#include "cmd/bench/buffers.h"
#include "cmd/bench/decoders.h"
#include "cmd/bench/encoders.h"
#include "cmd/bench/images.h"
#include "cmd/bench/products.h"
#include "cmd/bench/rates.h"
#include "kernels/cost.h"
#include "kernels/exact.h"
#include "kernels/timer.h"

#include <stdio.h>
#include <string.h>

enum { REPEATS_MOST = 101, TENSORS = 148 /* of GPT-2 124M */ };

/* ---- kernels that memory decides: each makes its buffers and its arguments ---- */

/* Calls the kernel when `go`; the bytes that it must move. */
#define CALL(kernel, b, go, args) ((go) ? (b)->k->kernel((b)->s, args) : (void)0, dt_cost_##kernel(args).bytes)

static double fill(struct bench *b, bool go)
{
    struct dt_fill_args a = {bench_buffer(b, 0, b->rows * b->cols, b->type), b->rows * b->cols, 0.25, b->type};
    return CALL(fill, b, go, &a);
}

static double cast(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    enum dt_dtype from = b->type == DT_F32 ? DT_BF16 : DT_F32;
    struct dt_cast_args a = {bench_buffer(b, 0, n, b->type), bench_buffer(b, 1, n, from), n, b->type, from};
    return CALL(cast, b, go, &a);
}

static double scale(struct bench *b, bool go)
{
    struct dt_scale_args a = {
        .x = bench_buffer(b, 0, b->rows * b->cols, b->type), .count = b->rows * b->cols, .factor = -1, .type = b->type};
    return CALL(scale, b, go, &a);
}

static double add(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    struct dt_add_args a = {bench_buffer(b, 0, n, b->type),
                            bench_buffer(b, 1, n, b->type),
                            bench_buffer(b, 2, n, b->type),
                            n,
                            b->type,
                            b->type};
    return CALL(add, b, go, &a);
}

static double sum_slices(struct bench *b, bool go)
{
    static const void *in[4]; /* lives until the kernel ran */
    int64_t n = b->rows * b->cols;
    for (int i = 0; i < 4; i++) {
        in[i] = bench_buffer(b, i, n, b->type);
    }
    struct dt_sum_slices_args a = {bench_buffer(b, 4, n, b->type), in, 4, DT_OP_SUM, n, b->type};
    return CALL(sum_slices, b, go, &a);
}

static double column_sum(struct bench *b, bool go)
{
    struct dt_column_sum_args a = {.out = bench_buffer(b, 0, b->cols, DT_F32),
                                   .x = bench_buffer(b, 1, b->rows * b->cols, b->type),
                                   .row_count = b->rows,
                                   .col_count = b->cols,
                                   .type = b->type,
                                   .grad_type = DT_F32};
    return CALL(column_sum, b, go, &a);
}

static double layernorm(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    struct dt_layernorm_args a = {.y = bench_buffer(b, 0, n, b->type),
                                  .residual_out = bench_buffer(b, 1, n, b->type),
                                  .mean = bench_buffer(b, 2, b->rows, DT_F32),
                                  .rstd = bench_buffer(b, 3, b->rows, DT_F32),
                                  .residual = bench_buffer(b, 4, n, b->type),
                                  .branch = bench_buffer(b, 5, n, b->type),
                                  .gamma = bench_buffer(b, 6, b->cols, b->type),
                                  .beta = bench_buffer(b, 7, b->cols, b->type),
                                  .row_count = b->rows,
                                  .col_count = b->cols,
                                  .eps = 1e-5,
                                  .type = b->type};
    return CALL(layernorm, b, go, &a);
}

static double layernorm_backward(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    struct dt_layernorm_backward_args a = {.dx = bench_buffer(b, 0, n, b->type),
                                           .dgamma = bench_buffer(b, 1, b->cols, DT_F32),
                                           .dbeta = bench_buffer(b, 2, b->cols, DT_F32),
                                           .dy = bench_buffer(b, 3, n, b->type),
                                           .x = bench_buffer(b, 4, n, b->type),
                                           .gamma = bench_buffer(b, 5, b->cols, b->type),
                                           .mean = bench_buffer(b, 6, b->rows, DT_F32),
                                           .rstd = bench_buffer(b, 7, b->rows, DT_F32),
                                           .dresidual = bench_buffer(b, 8, n, b->type),
                                           .row_count = b->rows,
                                           .col_count = b->cols,
                                           .type = b->type,
                                           .grad_type = DT_F32};
    return CALL(layernorm_backward, b, go, &a);
}

static double activation(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    struct dt_activation_args a = {bench_buffer(b, 0, n, b->type), bench_buffer(b, 1, n, b->type), n, DT_ACT_GELU,
                                   b->type};
    return CALL(activation, b, go, &a);
}

static double activation_backward(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    struct dt_activation_backward_args a = {.dx = bench_buffer(b, 0, n, b->type),
                                            .dy = bench_buffer(b, 1, n, b->type),
                                            .x = bench_buffer(b, 2, n, b->type),
                                            .count = n,
                                            .kind = DT_ACT_GELU,
                                            .type = b->type,
                                            .dbias = bench_buffer(b, 3, b->cols, DT_F32),
                                            .col_count = b->cols,
                                            .grad_type = DT_F32};
    return CALL(activation_backward, b, go, &a);
}

static double embedding(struct bench *b, bool go)
{
    struct dt_embedding_args a = {.out = bench_buffer(b, 0, b->rows * b->cols, b->type),
                                  .tokens = bench_buffer(b, 1, b->vocabulary * b->cols, b->type),
                                  .positions = bench_buffer(b, 2, BENCH_POSITIONS * b->cols, b->type),
                                  .ids = bench_ids(b, 3, b->rows, b->vocabulary),
                                  .row_count = b->rows,
                                  .position_count = BENCH_POSITIONS,
                                  .col_count = b->cols,
                                  .type = b->type};
    return CALL(embedding, b, go, &a);
}

static double embedding_backward(struct bench *b, bool go)
{
    struct dt_embedding_backward_args a = {.dtokens = bench_buffer(b, 0, b->vocabulary * b->cols, DT_F32),
                                           .dy = bench_buffer(b, 1, b->rows * b->cols, b->type),
                                           .ids = bench_ids(b, 2, b->rows, b->vocabulary),
                                           .row_count = b->rows,
                                           .vocab_count = b->vocabulary,
                                           .col_count = b->cols,
                                           .accumulate = true,
                                           .type = b->type,
                                           .grad_type = DT_F32};
    return CALL(embedding_backward, b, go, &a);
}

static double position_backward(struct bench *b, bool go)
{
    struct dt_position_backward_args a = {.dpositions = bench_buffer(b, 0, BENCH_POSITIONS * b->cols, DT_F32),
                                          .dy = bench_buffer(b, 1, b->rows * b->cols, b->type),
                                          .row_count = b->rows,
                                          .position_count = BENCH_POSITIONS,
                                          .table_count = BENCH_POSITIONS,
                                          .col_count = b->cols,
                                          .type = b->type,
                                          .grad_type = DT_F32};
    return CALL(position_backward, b, go, &a);
}

static struct dt_cross_entropy_args entropy_args(struct bench *b)
{
    return (struct dt_cross_entropy_args){.logits = bench_buffer(b, 0, b->loss_rows * b->vocabulary, b->type),
                                          .targets = bench_ids(b, 1, b->loss_rows, b->vocabulary),
                                          .row_loss = bench_buffer(b, 2, b->loss_rows, DT_F64),
                                          .loss_sum = bench_buffer(b, 3, 1, DT_F64),
                                          .row_count = b->loss_rows,
                                          .col_count = b->vocabulary,
                                          .grad_scale = 1.0 / 1024,
                                          .with_grad = true,
                                          .type = b->type};
}

static double cross_entropy(struct bench *b, bool go)
{
    struct dt_cross_entropy_args a = entropy_args(b);
    return CALL(cross_entropy, b, go, &a);
}

static double cross_entropy_capped(struct bench *b, bool go)
{
    struct dt_cross_entropy_args a = entropy_args(b);
    a.softcap = 30;
    return CALL(cross_entropy, b, go, &a);
}

/* The weights as one slice. States are of type `state`. */
static struct dt_update_slice slice_of(struct bench *b, int states, enum dt_dtype state)
{
    bool half = b->type == DT_BF16; /* then the gradient is, too, and the weights' copy is
                                     * written */
    struct dt_update_slice x = {.w = bench_buffer(b, 0, b->parameters, DT_F32),
                                .w_low = half ? bench_buffer(b, 3, b->parameters, DT_BF16) : NULL,
                                .grad = bench_buffer(b, 4, b->parameters, b->type),
                                .count = b->parameters,
                                .weight_decay = 0.1};
    for (int k = 0; k < states; k++) {
        x.state[k] = bench_buffer(b, 1 + k, b->parameters, state);
    }
    return x;
}

static struct dt_update_args update_args(struct bench *b, const struct dt_update_slice *slices, int count,
                                         enum dt_dtype state)
{
    return (struct dt_update_args){
        .slices = slices,
        .slice_count = count,
        .step = 10,
        .lr = 1e-3,
        .grad_scale = 0.5,
        .numbers = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .momentum = 0.9},
        .type = DT_F32,
        .grad_type = b->type,
        .state_type = state,
    };
}

static double adamw(struct bench *b, bool go)
{
    const struct dt_update_slice x = slice_of(b, 2, DT_F32);
    const struct dt_update_args a = update_args(b, &x, 1, DT_F32);
    return CALL(adamw_many, b, go, &a);
}

/* Fewer bytes, and a hash per element for the random bits of its moments. */
static double adamw_bf16_moments(struct bench *b, bool go)
{
    const struct dt_update_slice x = slice_of(b, 2, DT_BF16);
    const struct dt_update_args a = update_args(b, &x, 1, DT_BF16);
    return CALL(adamw_many, b, go, &a);
}

/* The same memory as tensors of a model, of which every other one decays. */
static double adamw_many(struct bench *b, bool go)
{
    static struct dt_update_slice each[TENSORS];
    const struct dt_update_slice x = slice_of(b, 2, DT_F32);
    size_t grad_size = dt_dtype_size(b->type);
    int64_t part = b->parameters / TENSORS / 64 * 64, first = 0;
    int count = 0;
    for (; first < b->parameters; first += each[count++].count) {
        bool last = part == 0 || count == TENSORS - 1;
        each[count] = x;
        each[count].w = (float *)x.w + first;
        each[count].state[0] = (float *)x.state[0] + first;
        each[count].state[1] = (float *)x.state[1] + first;
        each[count].w_low = x.w_low != NULL ? (uint16_t *)x.w_low + first : NULL;
        each[count].grad = (const char *)x.grad + (size_t)first * grad_size;
        each[count].weight_decay = count % 2 == 0 ? x.weight_decay : 0;
        each[count].count = last ? b->parameters - first : part;
    }
    const struct dt_update_args a = update_args(b, each, count, DT_F32);
    return CALL(adamw_many, b, go, &a);
}

static double adam(struct bench *b, bool go)
{
    const struct dt_update_slice x = slice_of(b, 2, DT_F32);
    const struct dt_update_args a = update_args(b, &x, 1, DT_F32);
    return CALL(adam_many, b, go, &a);
}

static double sgd(struct bench *b, bool go)
{
    const struct dt_update_slice x = slice_of(b, 1, DT_F32);
    const struct dt_update_args a = update_args(b, &x, 1, DT_F32);
    return CALL(sgd_many, b, go, &a);
}

static double lion(struct bench *b, bool go)
{
    const struct dt_update_slice x = slice_of(b, 1, DT_F32);
    const struct dt_update_args a = update_args(b, &x, 1, DT_F32);
    return CALL(lion_many, b, go, &a);
}

static double adagrad(struct bench *b, bool go)
{
    const struct dt_update_slice x = slice_of(b, 1, DT_F32);
    const struct dt_update_args a = update_args(b, &x, 1, DT_F32);
    return CALL(adagrad_many, b, go, &a);
}

static double lamb(struct bench *b, bool go)
{
    const struct dt_update_slice x = slice_of(b, 2, DT_F32);
    const struct dt_update_args a = update_args(b, &x, 1, DT_F32);
    return CALL(lamb_many, b, go, &a);
}

static double muon(struct bench *b, bool go)
{
    const struct dt_update_slice x = slice_of(b, 1, DT_F32);
    const struct dt_update_args a = update_args(b, &x, 1, DT_F32);
    return CALL(muon_many, b, go, &a);
}

static double norm_sum(struct bench *b, bool go)
{
    struct dt_norm_sum_args a = {bench_buffer(b, 0, DT_EXACT_LIMBS, DT_I64), bench_buffer(b, 1, b->parameters, b->type),
                                 b->parameters, b->type};
    return CALL(norm_sum, b, go, &a);
}

static double norm_finish(struct bench *b, bool go)
{
    struct dt_norm_finish_args a = {.norm = bench_buffer(b, 0, 1, DT_F64),
                                    .limbs = bench_buffer(b, 1, DT_EXACT_LIMBS, DT_I64),
                                    .scale = 1,
                                    .max_norm = 1};
    return CALL(norm_finish, b, go, &a);
}

static double trust_ratio(struct bench *b, bool go)
{
    struct dt_trust_ratio_args a = {.ratio = bench_buffer(b, 0, TENSORS, DT_F64),
                                    .limbs = bench_buffer(b, 1, TENSORS * 2 * DT_EXACT_LIMBS, DT_I64),
                                    .count = TENSORS,
                                    .min_coeff = 0.01,
                                    .max_coeff = 10};
    return CALL(trust_ratio, b, go, &a);
}

static double exact_sum(struct bench *b, bool go)
{
    struct dt_exact_sum_args a = {.limbs = bench_buffer(b, 0, DT_EXACT_LIMBS, DT_I64),
                                  .bad_count = bench_buffer(b, 1, 1, DT_I64),
                                  .x = bench_buffer(b, 2, b->loss_rows, DT_F64),
                                  .count = b->loss_rows};
    return CALL(exact_sum, b, go, &a);
}

enum shape { ELEMENTS, LOSS, PARAMETERS, ARITHMETIC, ONE };
static const struct {
    const char *name;
    double (*run)(struct bench *b, bool go);
    enum shape shape;
} kernels[] = {
    {"fill", fill, ELEMENTS},
    {"cast", cast, ELEMENTS},
    {"scale", scale, ELEMENTS},
    {"add", add, ELEMENTS},
    {"sum_slices", sum_slices, ELEMENTS},
    {"column_sum", column_sum, ELEMENTS},
    {"layernorm", layernorm, ELEMENTS},
    {"layernorm_backward", layernorm_backward, ELEMENTS},
    {"activation", activation, ELEMENTS},
    {"activation_backward", activation_backward, ELEMENTS},
    {"rmsnorm", bench_rmsnorm, ELEMENTS},
    {"rmsnorm_backward", bench_rmsnorm_backward, ELEMENTS},
    {"rmsnorm_heads", bench_rmsnorm_heads, ELEMENTS},
    {"rmsnorm_heads_backward", bench_rmsnorm_heads_backward, ELEMENTS},
    {"gelu_erf", bench_gelu_erf, ELEMENTS},
    {"silu", bench_silu, ELEMENTS},
    {"gate", bench_gate, ELEMENTS},
    {"gate_backward", bench_gate_backward, ELEMENTS},
    {"rope", bench_rope, ELEMENTS},
    {"embedding", embedding, ELEMENTS},
    {"embedding_tables", bench_embedding_tables, ELEMENTS},
    {"embedding_backward", embedding_backward, ELEMENTS},
    {"embedding_backward_types", bench_embedding_backward_types, ELEMENTS},
    {"position_backward", position_backward, ELEMENTS},
    {"dropout", bench_dropout, ELEMENTS},
    {"masked_mean", bench_masked_mean, ELEMENTS},
    {"masked_mean_backward", bench_masked_mean_backward, ELEMENTS},
    {"take_rows", bench_take_rows, ELEMENTS},
    {"take_rows_backward", bench_take_rows_backward, ELEMENTS},
    {"unfold", bench_unfold, ELEMENTS},
    {"fold", bench_fold, ELEMENTS},
    {"max_pool", bench_max_pool, ELEMENTS},
    {"max_pool_backward", bench_max_pool_backward, ELEMENTS},
    {"batch_moments", bench_batch_moments, ELEMENTS},
    {"batch_merge", bench_batch_merge, ELEMENTS},
    {"batch_norm", bench_batch_norm, ELEMENTS},
    {"batch_norm_sums", bench_batch_norm_sums, ELEMENTS},
    {"batch_norm_backward", bench_batch_norm_backward, ELEMENTS},
    {"cross_entropy", cross_entropy, LOSS},
    {"cross_entropy_capped", cross_entropy_capped, LOSS},
    {"label_loss", bench_label_loss, LOSS},
    {"adamw", adamw, PARAMETERS},
    {"adamw_many", adamw_many, PARAMETERS},
    {"adamw_bf16_moments", adamw_bf16_moments, PARAMETERS},
    {"adam", adam, PARAMETERS},
    {"sgd", sgd, PARAMETERS},
    {"lion", lion, PARAMETERS},
    {"adagrad", adagrad, PARAMETERS},
    {"lamb", lamb, PARAMETERS},
    {"muon", muon, PARAMETERS},
    {"norm_sum", norm_sum, PARAMETERS},
    {"norm_finish", norm_finish, ONE},
    {"exact_sum", exact_sum, ONE},
    {"trust_ratio", trust_ratio, ONE},
    {"matmul", bench_matmul, ARITHMETIC},
    {"matmul_gelu", bench_matmul_gelu, ARITHMETIC},
    {"matmul_dx", bench_matmul_dx, ARITHMETIC},
    {"matmul_dx_gelu", bench_matmul_dx_gelu, ARITHMETIC},
    {"matmul_dw", bench_matmul_dw, ARITHMETIC},
    {"matmul_dw_bias", bench_matmul_dw_bias, ARITHMETIC},
    {"convolution", bench_convolution, ARITHMETIC},
    {"convolution_input", bench_convolution_input, ARITHMETIC},
    {"convolution_weights", bench_convolution_weights, ARITHMETIC},
    {"attention", bench_attention, ARITHMETIC},
    {"attention_backward", bench_attention_backward, ARITHMETIC},
};

/* ---- timing ---- */

/* Microseconds of one call. */
static double time_kernel(struct bench *b, size_t kernel, int calls)
{
    bench_begin(b, calls);
    for (int i = 0; i < calls; i++) {
        (void)kernels[kernel].run(b, true);
    }
    return bench_finish(b, calls) * 1e6;
}

static void name_shape(const struct bench *b, enum shape shape, char *out, size_t size)
{
    switch (shape) {
    case PARAMETERS:
        (void)snprintf(out, size, "%lld", (long long)b->parameters);
        break;
    case ONE:
        (void)snprintf(out, size, "%lld", (long long)b->loss_rows);
        break;
    case LOSS:
        (void)snprintf(out, size, "%lldx%lld", (long long)b->loss_rows, (long long)b->vocabulary);
        break;
    case ELEMENTS:
    case ARITHMETIC:
        (void)snprintf(out, size, "%lldx%lld", (long long)b->rows, (long long)b->cols);
    }
}

static void measure(struct bench *b, size_t kernel, const struct bench_copying *c, const struct bench_squaring *q,
                    int repeats, double enough_us)
{
    char name[128], shape[48];
    struct dt_device_place place = {.name = ""};
    double samples[REPEATS_MOST], floors[REPEATS_MOST];
    double work = kernels[kernel].run(b, false); /* bytes, or operations */
    bool arithmetic = kernels[kernel].shape == ARITHMETIC;
    int warm = dt_device_timer(b->d) != NULL ? 10 : 1; /* the first call touches memory and loads
                                                        * code; clocks of a GPU take some more */
    (void)time_kernel(b, kernel, warm);
    int calls = bench_calls(time_kernel(b, kernel, warm), enough_us);
    int floor_calls = arithmetic ? bench_square_calls(b, q, enough_us) : bench_copy_calls(b, c, enough_us);
    for (int i = 0; i < repeats && !b->failed; i++) {
        samples[i] = time_kernel(b, kernel, calls);
        floors[i] = work * (arithmetic ? bench_square_us(b, q, floor_calls) : bench_copy_us(b, c, floor_calls));
    }
    if (!b->failed) {
        (void)dt_device_place(b->d->ops->name, b->d->options.index, &place);
        name_shape(b, kernels[kernel].shape, shape, sizeof shape);
        (void)snprintf(name, sizeof name, "%s %s %s %s", b->k->name, bench_dtype_name(b->type), kernels[kernel].name,
                       shape);
        struct dt_bench_case line = {.bench = "kernels",
                                     .name = name,
                                     .unit = "us",
                                     .bytes = arithmetic ? 0 : work,
                                     .flops = arithmetic ? work : 0,
                                     .floor = dt_bench_median(floors, (size_t)repeats),
                                     .device = place.name[0] != '\0' ? place.name : NULL,
                                     .by = b->by};
        dt_bench_print(&line, samples, (size_t)repeats);
    }
    bench_clear(b);
}

static int find_kernel(const char *wanted)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (strcmp(kernels[i].name, wanted) == 0) {
            return (int)i;
        }
    }
    return -1;
}

int bench_kernels(int argc, char **argv)
{
    struct dt_device opened = {0};
    struct bench b = {.name = "kernels", .d = &opened};
    struct dt_error err = {0};
    const char *device = dt_bench_option(argc, argv, "device", "cpu"),
               *dtype = dt_bench_option(argc, argv, "dtype", "");
    const char *wanted = dt_bench_option(argc, argv, "kernel", "");
    bool gpu = strcmp(device, "cuda") == 0;
    int repeats = (int)dt_bench_number(argc, argv, "repeats", gpu ? 50 : 15),
        one = *wanted != '\0' ? find_kernel(wanted) : -1;
    if (*wanted != '\0' && one < 0) {
        (void)fprintf(stderr, "bench: kernels: --kernel: %s: no such kernel\n", wanted);
        return DT_EXIT_USAGE;
    }
    if (bench_check_dtype(dtype, &err) != 0) {
        (void)fprintf(stderr, "bench: kernels: %s\n", err.text);
        return DT_EXIT_USAGE;
    }
    b.rows = dt_bench_number(argc, argv, "rows", gpu ? 65536 : 4096);
    b.cols = dt_bench_number(argc, argv, "cols", 768);
    b.vocabulary = dt_bench_number(argc, argv, "vocab", gpu ? 50304 : 8192);
    b.loss_rows = b.rows / 8 > 0 ? b.rows / 8 : 1;
    b.parameters = dt_bench_number(argc, argv, "parameters", gpu ? 124000000 : 8000000);
    b.positions = dt_bench_number(argc, argv, "positions", BENCH_POSITIONS);
    b.head = dt_bench_number(argc, argv, "head", 0);
    if (b.head > 0 && b.cols % b.head != 0) {
        (void)fprintf(stderr, "bench: kernels: --head: %lld: must divide --cols=%lld\n", (long long)b.head,
                      (long long)b.cols);
        return DT_EXIT_USAGE;
    }
    struct dt_device_options o = {.thread_count = (int)dt_bench_number(argc, argv, "threads", 1),
                                  .streams = DT_STREAMS_INLINE};
    if (dt_device_open(b.d, device, &o, &err) != 0) {
        (void)fprintf(stderr, "bench kernels: %s\n", err.text);
        return DT_EXIT_USAGE;
    }
    if (bench_check_device(b.d, device, &err) != 0) {
        (void)fprintf(stderr, "bench: kernels: %s\n", err.text);
        dt_device_close(b.d);
        return DT_EXIT_USAGE;
    }
    b.k = b.d->kernels;
    struct bench_copying copying = {0};
    struct bench_squaring squaring = {0};
    if (bench_ok(&b, dt_stream_open(b.d, 0, &b.s, &err), &err)) {
        bench_open_random(&b);
        bench_copying_open(&b, &copying, dt_bench_number(argc, argv, "copy", bench_copy_mib(b.d)));
        bench_squaring_open(&b, &squaring, dt_bench_number(argc, argv, "square", bench_square_side(b.d)));
    }
    for (int t = 0; t < 2 && !b.failed; t++) {
        b.type = t == 0 ? DT_F32 : DT_BF16;
        if (!bench_wants(dtype, b.type)) {
            continue;
        }
        bench_squaring_fill(&b, &squaring);
        for (size_t i = 0; i < sizeof kernels / sizeof *kernels && !b.failed; i++) {
            if (one < 0 || (int)i == one) {
                measure(&b, i, &copying, &squaring, repeats, bench_enough_us(b.d));
            }
        }
    }
    bench_clear(&b);
    bench_copying_close(&b, &copying);
    bench_squaring_close(&b, &squaring);
    bench_close_random(&b);
    dt_stream_close(b.s);
    dt_device_close(b.d);
    return b.failed ? DT_EXIT_FAILED : DT_EXIT_DONE;
}
