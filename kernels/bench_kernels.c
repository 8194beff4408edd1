/* Every kernel, by the bytes that it must move or, where arithmetic decides (products, attention), by the operations that it must do: each row of `kernels` below is
 * a function that says how many, and makes the call. The floor is the time in which a copy moves as many bytes, or a square product does as many operations;
 * these are timed in turns with the kernel. Calls follow each other without a wait, so many that what the host needs to start the first does not count. */
#include "kernels/bench_kernels.h"

#include "base/bench.h"
#include "base/clock.h"
#include "kernels/device.h"
#include "kernels/exact.h"
#include "kernels/kernels.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFERS = 10, BLOCK = 1 << 20, REPEATS_MOST = 101, POSITIONS = 1024 };

struct buffer {
    void *p;
    size_t size_bytes;
};

struct bench {
    struct dt_device d;
    struct dt_stream *s;
    const struct dt_kernels *k;
    enum dt_dtype type; /* of what flows; gradients are F32 */
    int64_t rows, cols, vocabulary, loss_rows, parameters;
    struct buffer buffers[BUFFERS];
    float *random;    /* pinned, BLOCK values in (0, 1) */
    int32_t *numbers; /* pinned, BLOCK positive numbers */
    void *staging;    /* on the device, BLOCK floats */
    bool failed;
};

/* ---- memory ---- */

static bool ok(struct bench *b, int rc, const struct dt_error *err)
{
    if (rc != 0 && !b->failed) {
        (void)fprintf(stderr, "bench kernels: %s\n", err->text);
    }
    b->failed = b->failed || rc != 0;
    return !b->failed;
}

static void *allocate(struct bench *b, enum dt_memory kind, size_t size_bytes)
{
    struct dt_error err = {0};
    void *p = NULL;
    return ok(b, dt_device_alloc(&b->d, kind, size_bytes, &p, &err), &err) ? p : NULL;
}

/* Buffer `at` of a case, made when it is first asked for: never zeros, which some machines move and multiply faster. */
static void *buffer(struct bench *b, int at, int64_t count, enum dt_dtype type)
{
    struct buffer *x = &b->buffers[at];
    if (x->p != NULL || b->failed) {
        return x->p;
    }
    size_t size = dt_dtype_size(type);
    x->size_bytes = (size_t)count * size;
    x->p = allocate(b, DT_MEMORY_DEVICE, x->size_bytes);
    for (int64_t i = 0; i < count && x->p != NULL; i += BLOCK) {
        int64_t n = count - i < BLOCK ? count - i : BLOCK;
        char *to = (char *)x->p + (size_t)i * size;
        if (type == DT_F32 || type == DT_BF16) {
            dt_stream_copy(b->s, b->staging, b->random, (size_t)n * sizeof(float));
            b->k->cast(b->s, &(struct dt_cast_args){to, b->staging, n, type, DT_F32});
        } else {
            b->k->fill(b->s, &(struct dt_fill_args){to, n, 0, type});
        }
    }
    return x->p;
}

/* Ids below `limit`, in no order. */
static int32_t *ids(struct bench *b, int at, int64_t count, int64_t limit)
{
    bool made = b->buffers[at].p != NULL;
    int32_t *p = buffer(b, at, count, DT_I32);
    for (int64_t i = 0; i < BLOCK && !made; i++) {
        b->numbers[i] = (int32_t)((double)b->random[i] * (double)limit);
    }
    for (int64_t i = 0; i < count && p != NULL && !made; i += BLOCK) {
        int64_t n = count - i < BLOCK ? count - i : BLOCK;
        dt_stream_copy(b->s, p + i, b->numbers, (size_t)n * sizeof *p);
    }
    return p;
}

static void clear(struct bench *b)
{
    for (int i = 0; i < BUFFERS; i++) {
        dt_device_free(&b->d, DT_MEMORY_DEVICE, b->buffers[i].p, b->buffers[i].size_bytes);
        b->buffers[i] = (struct buffer){0};
    }
}

/* ---- the kernels: each makes its buffers, calls when `go`, and gives the bytes that must move ---- */

static double bytes(const struct bench *b, double count)
{
    return count * (double)dt_dtype_size(b->type);
}

static double fill(struct bench *b, bool go)
{
    struct dt_fill_args a = {buffer(b, 0, b->rows * b->cols, b->type), b->rows * b->cols, 0.25, b->type};
    if (go) {
        b->k->fill(b->s, &a);
    }
    return bytes(b, (double)a.count);
}

static double cast(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    enum dt_dtype from = b->type == DT_F32 ? DT_BF16 : DT_F32;
    struct dt_cast_args a = {buffer(b, 0, n, b->type), buffer(b, 1, n, from), n, b->type, from};
    if (go) {
        b->k->cast(b->s, &a);
    }
    return 6.0 * (double)n;
}

static double scale(struct bench *b, bool go)
{
    struct dt_scale_args a = {.x = buffer(b, 0, b->rows * b->cols, b->type), .count = b->rows * b->cols, .factor = -1, .type = b->type};
    if (go) {
        b->k->scale(b->s, &a);
    }
    return bytes(b, 2.0 * (double)a.count);
}

static double add(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    struct dt_add_args a = {buffer(b, 0, n, b->type), buffer(b, 1, n, b->type), buffer(b, 2, n, b->type), n, b->type, b->type};
    if (go) {
        b->k->add(b->s, &a);
    }
    return bytes(b, 3.0 * (double)n);
}

static double sum_slices(struct bench *b, bool go)
{
    static const void *in[4]; /* lives until the kernel ran */
    int64_t n = b->rows * b->cols;
    for (int i = 0; i < 4; i++) {
        in[i] = buffer(b, i, n, b->type);
    }
    struct dt_sum_slices_args a = {buffer(b, 4, n, b->type), in, 4, DT_OP_SUM, n, b->type};
    if (go) {
        b->k->sum_slices(b->s, &a);
    }
    return bytes(b, 5.0 * (double)n);
}

static double column_sum(struct bench *b, bool go)
{
    struct dt_column_sum_args a = {.out = buffer(b, 0, b->cols, DT_F32),
                                   .x = buffer(b, 1, b->rows * b->cols, b->type),
                                   .row_count = b->rows,
                                   .col_count = b->cols,
                                   .type = b->type,
                                   .grad_type = DT_F32};
    if (go) {
        b->k->column_sum(b->s, &a);
    }
    return bytes(b, (double)(b->rows * b->cols)) + 4.0 * (double)b->cols;
}

static double layernorm(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    struct dt_layernorm_args a = {.y = buffer(b, 0, n, b->type),
                                  .residual_out = buffer(b, 1, n, b->type),
                                  .mean = buffer(b, 2, b->rows, DT_F32),
                                  .rstd = buffer(b, 3, b->rows, DT_F32),
                                  .residual = buffer(b, 4, n, b->type),
                                  .branch = buffer(b, 5, n, b->type),
                                  .gamma = buffer(b, 6, b->cols, b->type),
                                  .beta = buffer(b, 7, b->cols, b->type),
                                  .row_count = b->rows,
                                  .col_count = b->cols,
                                  .eps = 1e-5,
                                  .type = b->type};
    if (go) {
        b->k->layernorm(b->s, &a);
    }
    return bytes(b, 4.0 * (double)n + 2.0 * (double)b->cols) + 8.0 * (double)b->rows;
}

static double layernorm_backward(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    struct dt_layernorm_backward_args a = {.dx = buffer(b, 0, n, b->type),
                                           .dgamma = buffer(b, 1, b->cols, DT_F32),
                                           .dbeta = buffer(b, 2, b->cols, DT_F32),
                                           .dy = buffer(b, 3, n, b->type),
                                           .x = buffer(b, 4, n, b->type),
                                           .gamma = buffer(b, 5, b->cols, b->type),
                                           .mean = buffer(b, 6, b->rows, DT_F32),
                                           .rstd = buffer(b, 7, b->rows, DT_F32),
                                           .dresidual = buffer(b, 8, n, b->type),
                                           .row_count = b->rows,
                                           .col_count = b->cols,
                                           .type = b->type,
                                           .grad_type = DT_F32};
    if (go) {
        b->k->layernorm_backward(b->s, &a);
    }
    return bytes(b, 4.0 * (double)n + (double)b->cols) + 8.0 * (double)(b->rows + b->cols);
}

static double activation(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    struct dt_activation_args a = {buffer(b, 0, n, b->type), buffer(b, 1, n, b->type), n, DT_ACT_GELU, b->type};
    if (go) {
        b->k->activation(b->s, &a);
    }
    return bytes(b, 2.0 * (double)n);
}

static double activation_backward(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    struct dt_activation_backward_args a = {.dx = buffer(b, 0, n, b->type),
                                            .dy = buffer(b, 1, n, b->type),
                                            .x = buffer(b, 2, n, b->type),
                                            .count = n,
                                            .kind = DT_ACT_GELU,
                                            .type = b->type,
                                            .dbias = buffer(b, 3, b->cols, DT_F32),
                                            .col_count = b->cols,
                                            .grad_type = DT_F32};
    if (go) {
        b->k->activation_backward(b->s, &a);
    }
    return bytes(b, 3.0 * (double)n) + 4.0 * (double)b->cols;
}

static double embedding(struct bench *b, bool go)
{
    struct dt_embedding_args a = {buffer(b, 0, b->rows * b->cols, b->type),
                                  buffer(b, 1, b->vocabulary * b->cols, b->type),
                                  buffer(b, 2, POSITIONS * b->cols, b->type),
                                  ids(b, 3, b->rows, b->vocabulary),
                                  b->rows,
                                  POSITIONS,
                                  b->cols,
                                  b->type};
    if (go) {
        b->k->embedding(b->s, &a);
    }
    return bytes(b, (double)b->cols * (2.0 * (double)b->rows + POSITIONS)) + 4.0 * (double)b->rows;
}

static double embedding_backward(struct bench *b, bool go)
{
    struct dt_embedding_backward_args a = {.dtokens = buffer(b, 0, b->vocabulary * b->cols, DT_F32),
                                           .dy = buffer(b, 1, b->rows * b->cols, b->type),
                                           .ids = ids(b, 2, b->rows, b->vocabulary),
                                           .row_count = b->rows,
                                           .vocab_count = b->vocabulary,
                                           .col_count = b->cols,
                                           .accumulate = true,
                                           .type = b->type,
                                           .grad_type = DT_F32};
    if (go) {
        b->k->embedding_backward(b->s, &a);
    }
    int64_t touched = b->rows < b->vocabulary ? b->rows : b->vocabulary; /* at most: rows of the table, read and written */
    return bytes(b, (double)(b->rows * b->cols)) + 8.0 * (double)(touched * b->cols) + 4.0 * (double)b->rows;
}

static double position_backward(struct bench *b, bool go)
{
    struct dt_position_backward_args a = {.dpositions = buffer(b, 0, POSITIONS * b->cols, DT_F32),
                                          .dy = buffer(b, 1, b->rows * b->cols, b->type),
                                          .row_count = b->rows,
                                          .position_count = POSITIONS,
                                          .table_count = POSITIONS,
                                          .col_count = b->cols,
                                          .type = b->type,
                                          .grad_type = DT_F32};
    if (go) {
        b->k->position_backward(b->s, &a);
    }
    return bytes(b, (double)(b->rows * b->cols)) + 4.0 * (double)(POSITIONS * b->cols);
}

static double cross_entropy(struct bench *b, bool go)
{
    struct dt_cross_entropy_args a = {.logits = buffer(b, 0, b->loss_rows * b->vocabulary, b->type),
                                      .targets = ids(b, 1, b->loss_rows, b->vocabulary),
                                      .row_loss = buffer(b, 2, b->loss_rows, DT_F64),
                                      .loss_sum = buffer(b, 3, 1, DT_F64),
                                      .row_count = b->loss_rows,
                                      .col_count = b->vocabulary,
                                      .grad_scale = 1.0 / 1024,
                                      .with_grad = true,
                                      .type = b->type};
    if (go) {
        b->k->cross_entropy(b->s, &a);
    }
    return bytes(b, 2.0 * (double)(b->loss_rows * b->vocabulary));
}

static double adamw(struct bench *b, bool go)
{
    bool half = b->type == DT_BF16; /* then the gradient is, too, and the weights' copy is written */
    struct dt_adamw_args a = {.w = buffer(b, 0, b->parameters, DT_F32),
                              .m = buffer(b, 1, b->parameters, DT_F32),
                              .v = buffer(b, 2, b->parameters, DT_F32),
                              .w_bf16 = half ? buffer(b, 3, b->parameters, DT_BF16) : NULL,
                              .grad = buffer(b, 4, b->parameters, b->type),
                              .count = b->parameters,
                              .step = 10,
                              .lr = 1e-3,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .weight_decay = 0.1,
                              .grad_scale = 0.5,
                              .type = DT_F32,
                              .grad_type = b->type};
    if (go) {
        b->k->adamw(b->s, &a);
    }
    return 28.0 * (double)b->parameters; /* fp32: 24 and 4; bf16: 24, 2 and 2 */
}

static double sgd(struct bench *b, bool go)
{
    bool half = b->type == DT_BF16;
    struct dt_sgd_args a = {.w = buffer(b, 0, b->parameters, DT_F32),
                            .momentum_buffer = buffer(b, 1, b->parameters, DT_F32),
                            .w_bf16 = half ? buffer(b, 2, b->parameters, DT_BF16) : NULL,
                            .grad = buffer(b, 3, b->parameters, b->type),
                            .count = b->parameters,
                            .step = 10,
                            .lr = 1e-3,
                            .momentum = 0.9,
                            .grad_scale = 0.5,
                            .type = DT_F32,
                            .grad_type = b->type};
    if (go) {
        b->k->sgd(b->s, &a);
    }
    return 20.0 * (double)b->parameters;
}

static double norm_sum(struct bench *b, bool go)
{
    struct dt_norm_sum_args a = {buffer(b, 0, DT_EXACT_LIMBS, DT_I64), buffer(b, 1, b->parameters, b->type), b->parameters, b->type};
    if (go) {
        b->k->norm_sum(b->s, &a);
    }
    return bytes(b, (double)b->parameters);
}

static double norm_finish(struct bench *b, bool go)
{
    struct dt_norm_finish_args a = {.norm = buffer(b, 0, 1, DT_F64), .limbs = buffer(b, 1, DT_EXACT_LIMBS, DT_I64), .scale = 1, .max_norm = 1};
    if (go) {
        b->k->norm_finish(b->s, &a);
    }
    return 8.0 * (DT_EXACT_LIMBS + 1);
}

static double exact_sum(struct bench *b, bool go)
{
    struct dt_exact_sum_args a = {.limbs = buffer(b, 0, DT_EXACT_LIMBS, DT_I64),
                                  .bad_count = buffer(b, 1, 1, DT_I64),
                                  .x = buffer(b, 2, b->loss_rows, DT_F64),
                                  .count = b->loss_rows};
    if (go) {
        b->k->exact_sum(b->s, &a);
    }
    return 8.0 * (double)b->loss_rows;
}

/* ---- where arithmetic decides: these give operations ---- */

/* As at the start of a run: what computes a product, and one with its epilogue, is measured if it was not yet. */
static void choose(struct bench *b, const struct dt_matmul_args *a)
{
    const struct dt_device_plans *plans = b->d.ops->plans;
    struct dt_matmul_args each[2] = {*a, *a};
    struct dt_error why, err = {0};
    int measured;
    each[0].epilogue = DT_EPILOGUE_NONE;
    if (plans != NULL) {
        (void)ok(b, plans->choose(b->s, each, a->epilogue != DT_EPILOGUE_NONE ? 2 : 1, NULL, NULL, &measured, &why, &err), &err);
    }
}

/* One product, of type and epilogue; operations. */
static double product(struct bench *b, bool go, struct dt_matmul_args a)
{
    a.type = b->type;
    a.c_type = a.grad_type = a.a_transposed ? DT_F32 : b->type;
    if (go) {
        dt_matmul_epilogue(b->k, b->s, &a);
    } else {
        choose(b, &a);
    }
    return 2.0 * (double)a.m * (double)a.n * (double)a.k;
}

/* The first map of an MLP, (rows, cols) by (cols, 4 cols): forward, the gradient of its input, that of its weights. */
static double map(struct bench *b, bool go, enum dt_epilogue epilogue)
{
    int64_t wide = 4 * b->cols;
    bool gelu = epilogue == DT_EPILOGUE_GELU;
    struct dt_matmul_args a = {.c = buffer(b, 2, b->rows * wide, b->type),
                               .a = buffer(b, 0, b->rows * b->cols, b->type),
                               .b = buffer(b, 1, b->cols * wide, b->type),
                               .bias = gelu ? buffer(b, 4, wide, b->type) : NULL,
                               .aux = gelu ? buffer(b, 5, b->rows * wide, b->type) : NULL,
                               .m = b->rows,
                               .n = wide,
                               .k = b->cols,
                               .epilogue = epilogue};
    return product(b, go, a);
}

static double map_dw(struct bench *b, bool go, enum dt_epilogue epilogue)
{
    int64_t wide = 4 * b->cols;
    struct dt_matmul_args a = {.c = buffer(b, 3, b->cols * wide, DT_F32),
                               .a = buffer(b, 0, b->rows * b->cols, b->type),
                               .b = buffer(b, 2, b->rows * wide, b->type),
                               .bias_gradient = epilogue != DT_EPILOGUE_NONE ? buffer(b, 4, wide, DT_F32) : NULL,
                               .m = b->cols,
                               .n = wide,
                               .k = b->rows,
                               .a_transposed = true,
                               .epilogue = epilogue};
    return product(b, go, a);
}

static double matmul(struct bench *b, bool go)
{
    return map(b, go, DT_EPILOGUE_NONE);
}

static double matmul_gelu(struct bench *b, bool go)
{
    return map(b, go, DT_EPILOGUE_GELU);
}

static double matmul_dx(struct bench *b, bool go)
{
    int64_t wide = 4 * b->cols;
    struct dt_matmul_args a = {.c = buffer(b, 0, b->rows * b->cols, b->type),
                               .a = buffer(b, 2, b->rows * wide, b->type),
                               .b = buffer(b, 1, b->cols * wide, b->type),
                               .m = b->rows,
                               .n = b->cols,
                               .k = wide,
                               .b_transposed = true};
    return product(b, go, a);
}

/* Of the second map, (rows, 4 cols) by (4 cols, cols), through gelu. */
static double matmul_dx_gelu(struct bench *b, bool go)
{
    int64_t wide = 4 * b->cols;
    struct dt_matmul_args a = {.c = buffer(b, 2, b->rows * wide, b->type),
                               .a = buffer(b, 0, b->rows * b->cols, b->type),
                               .b = buffer(b, 1, b->cols * wide, b->type),
                               .aux = buffer(b, 5, b->rows * wide, b->type),
                               .bias_gradient = buffer(b, 4, wide, b->type),
                               .m = b->rows,
                               .n = wide,
                               .k = b->cols,
                               .b_transposed = true,
                               .epilogue = DT_EPILOGUE_GELU_BACKWARD};
    return product(b, go, a);
}

static double matmul_dw(struct bench *b, bool go)
{
    return map_dw(b, go, DT_EPILOGUE_NONE);
}

static double matmul_dw_bias(struct bench *b, bool go)
{
    return map_dw(b, go, DT_EPILOGUE_BIAS_BACKWARD);
}

/* Causal: half of each square. Forward two products, backward five; heads of 64 where the columns allow it. */
static double attend(struct bench *b, bool go, bool back)
{
    int64_t t = b->rows < POSITIONS ? b->rows : POSITIONS, batch = b->rows / t, heads = b->cols % 64 == 0 ? b->cols / 64 : 1, d = b->cols / heads;
    void *qkv = buffer(b, 0, 3 * b->rows * b->cols, b->type), *out = buffer(b, 1, b->rows * b->cols, b->type);
    void *lse = buffer(b, 2, b->rows * heads, DT_F32), *dout = buffer(b, 3, b->rows * b->cols, b->type);
    void *dqkv = back ? buffer(b, 4, 3 * b->rows * b->cols, b->type) : NULL;
    void *work = back ? buffer(b, 5, 2 * b->rows * b->cols, b->type) : NULL; /* as much as a layer has to spare */
    if (go && back) {
        b->k->attention_backward(b->s, &(struct dt_attention_backward_args){.dqkv = dqkv,
                                                                            .work = work,
                                                                            .work_bytes = (size_t)(2 * b->rows * b->cols) * dt_dtype_size(b->type),
                                                                            .dout = dout,
                                                                            .out = out,
                                                                            .qkv = qkv,
                                                                            .lse = lse,
                                                                            .batch = batch,
                                                                            .positions = t,
                                                                            .heads = heads,
                                                                            .head_size = d,
                                                                            .causal = true,
                                                                            .type = b->type});
    } else if (go) {
        b->k->attention(
            b->s,
            &(struct dt_attention_args){
                .out = out, .lse = lse, .qkv = qkv, .batch = batch, .positions = t, .heads = heads, .head_size = d, .causal = true, .type = b->type});
    }
    return (back ? 5.0 : 2.0) * (double)batch * (double)t * (double)t * (double)b->cols;
}

static double attention(struct bench *b, bool go)
{
    return attend(b, go, false);
}

static double attention_backward(struct bench *b, bool go)
{
    return attend(b, go, true);
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
    {"embedding", embedding, ELEMENTS},
    {"embedding_backward", embedding_backward, ELEMENTS},
    {"position_backward", position_backward, ELEMENTS},
    {"cross_entropy", cross_entropy, LOSS},
    {"adamw", adamw, PARAMETERS},
    {"sgd", sgd, PARAMETERS},
    {"norm_sum", norm_sum, PARAMETERS},
    {"norm_finish", norm_finish, ONE},
    {"exact_sum", exact_sum, ONE},
    {"matmul", matmul, ARITHMETIC},
    {"matmul_gelu", matmul_gelu, ARITHMETIC},
    {"matmul_dx", matmul_dx, ARITHMETIC},
    {"matmul_dx_gelu", matmul_dx_gelu, ARITHMETIC},
    {"matmul_dw", matmul_dw, ARITHMETIC},
    {"matmul_dw_bias", matmul_dw_bias, ARITHMETIC},
    {"attention", attention, ARITHMETIC},
    {"attention_backward", attention_backward, ARITHMETIC},
};

/* ---- timing ---- */

static double finish(struct bench *b, double begin_s, int calls)
{
    struct dt_error err = {0};
    (void)ok(b, dt_stream_finish(b->s, 600, &err), &err);
    return (dt_now_s() - begin_s) / calls;
}

/* Microseconds of one call. */
static double time_kernel(struct bench *b, size_t kernel, int calls)
{
    double begin_s = dt_now_s();
    for (int i = 0; i < calls; i++) {
        (void)kernels[kernel].run(b, true);
    }
    return finish(b, begin_s, calls) * 1e6;
}

struct copying {
    char *p;
    size_t half_bytes;
};

/* Microseconds in which a copy moves, in and out, as many bytes as the kernel. */
static double time_copy(struct bench *b, const struct copying *c, double moved, int calls)
{
    double begin_s = dt_now_s();
    for (int i = 0; i < calls; i++) {
        dt_stream_copy(b->s, c->p, c->p + c->half_bytes, c->half_bytes);
    }
    return finish(b, begin_s, calls) * 1e6 * moved / (2.0 * (double)c->half_bytes);
}

/* A square product, whose rate is what arithmetic is compared with. */
struct squaring {
    char *p; /* three matrices */
    int64_t side;
};

static double square_flops(const struct squaring *q)
{
    return 2.0 * (double)q->side * (double)q->side * (double)q->side;
}

/* Microseconds in which square products do as many operations as the kernel. */
static double time_square(struct bench *b, const struct squaring *q, double flops, int calls)
{
    size_t bytes_each = (size_t)(q->side * q->side) * dt_dtype_size(b->type);
    struct dt_matmul_args a = {.c = q->p, .a = q->p + bytes_each, .b = q->p + 2 * bytes_each, .type = b->type, .c_type = b->type};
    a.m = a.n = a.k = q->side;
    double begin_s = dt_now_s();
    for (int i = 0; i < calls; i++) {
        b->k->matmul(b->s, &a);
    }
    return finish(b, begin_s, calls) * 1e6 * flops / square_flops(q);
}

static int calls_of(double us, double enough_us)
{
    double calls = enough_us / (us > 0.1 ? us : 0.1);
    return calls < 1 ? 1 : calls > 1000 ? 1000 : (int)calls;
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

static void measure(struct bench *b, size_t kernel, const struct copying *c, const struct squaring *q, int repeats, double enough_us)
{
    char name[128], shape[48];
    double samples[REPEATS_MOST], floors[REPEATS_MOST];
    double work = kernels[kernel].run(b, false); /* bytes, or operations */
    bool arithmetic = kernels[kernel].shape == ARITHMETIC;
    (void)time_kernel(b, kernel, 1); /* the first one touches memory and loads code */
    int calls = calls_of(time_kernel(b, kernel, 1), enough_us);
    if (arithmetic) {
        (void)time_square(b, q, work, 1);
    }
    int floor_calls = calls_of(arithmetic ? time_square(b, q, square_flops(q), 1) : time_copy(b, c, 2.0 * (double)c->half_bytes, 1), enough_us);
    for (int i = 0; i < repeats && !b->failed; i++) {
        samples[i] = time_kernel(b, kernel, calls);
        floors[i] = arithmetic ? time_square(b, q, work, floor_calls) : time_copy(b, c, work, floor_calls);
    }
    if (!b->failed) {
        name_shape(b, kernels[kernel].shape, shape, sizeof shape);
        (void)snprintf(name, sizeof name, "%s %s %s %s", b->k->name, b->type == DT_F32 ? "fp32" : "bf16", kernels[kernel].name, shape);
        struct dt_bench_case line = {.bench = "kernels",
                                     .name = name,
                                     .unit = "us",
                                     .bytes = arithmetic ? 0 : work,
                                     .flops = arithmetic ? work : 0,
                                     .floor = dt_bench_median(floors, (size_t)repeats)};
        dt_bench_print(&line, samples, (size_t)repeats);
    }
    clear(b);
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

/* What the host hands to the device: random floats, and a place for them there. */
static void make_random(struct bench *b)
{
    b->random = allocate(b, DT_MEMORY_PINNED, BLOCK * sizeof(float));
    b->numbers = allocate(b, DT_MEMORY_PINNED, BLOCK * sizeof(int32_t));
    b->staging = allocate(b, DT_MEMORY_DEVICE, BLOCK * sizeof(float));
    uint64_t state = 88172645463325252ULL;
    for (int i = 0; i < BLOCK && !b->failed; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b->random[i] = ((float)(state >> 41) + 0.5F) / 8388608.0F;
    }
}

/* Random numbers of the type at hand in the three matrices. */
static void fill_square(struct bench *b, const struct squaring *q)
{
    int64_t count = 3 * q->side * q->side;
    for (int64_t i = 0; i < count && !b->failed; i += BLOCK) {
        int64_t n = count - i < BLOCK ? count - i : BLOCK;
        dt_stream_copy(b->s, b->staging, b->random, (size_t)n * sizeof(float));
        b->k->cast(b->s, &(struct dt_cast_args){q->p + (size_t)i * dt_dtype_size(b->type), b->staging, n, b->type, DT_F32});
    }
}

int bench_kernels(int argc, char **argv)
{
    struct bench b = {0};
    struct dt_error err = {0};
    const char *device = dt_bench_option(argc, argv, "device", "cpu"), *dtype = dt_bench_option(argc, argv, "dtype", "");
    const char *wanted = dt_bench_option(argc, argv, "kernel", "");
    bool gpu = strcmp(device, "cuda") == 0;
    int repeats = (int)dt_bench_number(argc, argv, "repeats", gpu ? 50 : 15), one = *wanted != '\0' ? find_kernel(wanted) : -1;
    if (*wanted != '\0' && one < 0) {
        (void)fprintf(stderr, "bench: kernels: --kernel: %s: no such kernel\n", wanted);
        return DT_EXIT_USAGE;
    }
    if (*dtype != '\0' && strcmp(dtype, "fp32") != 0 && strcmp(dtype, "bf16") != 0) {
        (void)fprintf(stderr, "bench: kernels: --dtype: %s: must be fp32 or bf16\n", dtype);
        return DT_EXIT_USAGE;
    }
    b.rows = dt_bench_number(argc, argv, "rows", gpu ? 65536 : 4096);
    b.cols = dt_bench_number(argc, argv, "cols", 768);
    b.vocabulary = dt_bench_number(argc, argv, "vocab", gpu ? 50304 : 8192);
    b.loss_rows = b.rows / 8 > 0 ? b.rows / 8 : 1;
    b.parameters = dt_bench_number(argc, argv, "parameters", gpu ? 124000000 : 8000000);
    struct dt_device_options o = {.thread_count = (int)dt_bench_number(argc, argv, "threads", 1), .streams = DT_STREAMS_INLINE};
    if (dt_device_open(&b.d, device, &o, &err) != 0) {
        (void)fprintf(stderr, "bench kernels: %s\n", err.text);
        return DT_EXIT_USAGE;
    }
    b.k = b.d.kernels;
    struct copying copying = {.half_bytes = (size_t)(gpu ? 256 : 64) << 20};
    if (ok(&b, dt_stream_open(&b.d, 0, &b.s, &err), &err)) {
        make_random(&b);
        copying.p = allocate(&b, DT_MEMORY_DEVICE, 2 * copying.half_bytes);
    }
    struct squaring squaring = {.side = gpu ? 8192 : 512};
    size_t square_count = (size_t)(3 * squaring.side * squaring.side);
    squaring.p = b.failed ? NULL : allocate(&b, DT_MEMORY_DEVICE, square_count * sizeof(float));
    for (int t = 0; t < 2 && !b.failed; t++) {
        b.type = t == 0 ? DT_F32 : DT_BF16;
        fill_square(&b, &squaring);
        for (size_t i = 0; i < sizeof kernels / sizeof *kernels && !b.failed; i++) {
            bool asked = (one < 0 || (int)i == one) && (*dtype == '\0' || strcmp(dtype, t == 0 ? "fp32" : "bf16") == 0);
            if (asked) {
                measure(&b, i, &copying, &squaring, repeats, gpu ? 2e4 : 2e3);
            }
        }
    }
    clear(&b);
    dt_device_free(&b.d, DT_MEMORY_DEVICE, copying.p, 2 * copying.half_bytes);
    dt_device_free(&b.d, DT_MEMORY_DEVICE, squaring.p, square_count * sizeof(float));
    dt_device_free(&b.d, DT_MEMORY_DEVICE, b.staging, BLOCK * sizeof(float));
    dt_device_free(&b.d, DT_MEMORY_PINNED, b.random, BLOCK * sizeof(float));
    dt_device_free(&b.d, DT_MEMORY_PINNED, b.numbers, BLOCK * sizeof(int32_t));
    dt_stream_close(b.s);
    dt_device_close(&b.d);
    return b.failed ? DT_EXIT_FAILED : DT_EXIT_DONE;
}
