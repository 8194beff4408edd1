/* Products and attention, where arithmetic decides: of the sizes that a layer of a transformer
 * has. */
#include "cmd/bench/products.h"

#include "kernels/attention.h"
#include "kernels/cost.h"

void bench_choose(struct bench *b, const struct dt_matmul_args *a)
{
    const struct dt_device_plans *plans = b->d->ops->plans;
    struct dt_matmul_args each[3] = {*a, *a, *a}; /* the parts first, as in worker/engine/matmul_shapes.c */
    struct dt_error why, err = {0};
    int measured;
    each[0].epilogue = DT_EPILOGUE_NONE;
    each[1].accumulate = a->epilogue == DT_EPILOGUE_GELU_BACKWARD;
    if (plans != NULL) {
        (void)bench_ok(
            b, plans->choose(b->s, each, a->epilogue != DT_EPILOGUE_NONE ? 3 : 1, NULL, NULL, &measured, &why, &err),
            &err);
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
        bench_choose(b, &a);
    }
    return dt_cost_matmul(&a).flops;
}

/* The first map of an MLP, (rows, cols) by (cols, 4 cols): forward, the gradient of its input,
 * that of its weights. */
static double map(struct bench *b, bool go, enum dt_epilogue epilogue)
{
    int64_t wide = 4 * b->cols;
    bool gelu = epilogue == DT_EPILOGUE_GELU;
    struct dt_matmul_args a = {.c = bench_buffer(b, 2, b->rows * wide, b->type),
                               .a = bench_buffer(b, 0, b->rows * b->cols, b->type),
                               .b = bench_buffer(b, 1, b->cols * wide, b->type),
                               .bias = gelu ? bench_buffer(b, 4, wide, b->type) : NULL,
                               .aux = gelu ? bench_buffer(b, 5, b->rows * wide, b->type) : NULL,
                               .m = b->rows,
                               .n = wide,
                               .k = b->cols,
                               .epilogue = epilogue};
    return product(b, go, a);
}

static double map_dw(struct bench *b, bool go, enum dt_epilogue epilogue)
{
    int64_t wide = 4 * b->cols;
    struct dt_matmul_args a = {.c = bench_buffer(b, 3, b->cols * wide, DT_F32),
                               .a = bench_buffer(b, 0, b->rows * b->cols, b->type),
                               .b = bench_buffer(b, 2, b->rows * wide, b->type),
                               .bias_gradient = epilogue != DT_EPILOGUE_NONE ? bench_buffer(b, 4, wide, DT_F32) : NULL,
                               .m = b->cols,
                               .n = wide,
                               .k = b->rows,
                               .a_transposed = true,
                               .epilogue = epilogue};
    return product(b, go, a);
}

double bench_matmul(struct bench *b, bool go)
{
    return map(b, go, DT_EPILOGUE_NONE);
}

double bench_matmul_gelu(struct bench *b, bool go)
{
    return map(b, go, DT_EPILOGUE_GELU);
}

double bench_matmul_dx(struct bench *b, bool go)
{
    int64_t wide = 4 * b->cols;
    struct dt_matmul_args a = {.c = bench_buffer(b, 0, b->rows * b->cols, b->type),
                               .a = bench_buffer(b, 2, b->rows * wide, b->type),
                               .b = bench_buffer(b, 1, b->cols * wide, b->type),
                               .m = b->rows,
                               .n = b->cols,
                               .k = wide,
                               .b_transposed = true};
    return product(b, go, a);
}

/* The gradient of the second map's input, (rows, cols) by (cols, 4 cols), through GELU. */
double bench_matmul_dx_gelu(struct bench *b, bool go)
{
    int64_t wide = 4 * b->cols;
    struct dt_matmul_args a = {.c = bench_buffer(b, 2, b->rows * wide, b->type),
                               .a = bench_buffer(b, 0, b->rows * b->cols, b->type),
                               .b = bench_buffer(b, 1, b->cols * wide, b->type),
                               .aux = bench_buffer(b, 5, b->rows * wide, b->type),
                               .bias_gradient = bench_buffer(b, 4, wide, b->type),
                               .m = b->rows,
                               .n = wide,
                               .k = b->cols,
                               .b_transposed = true,
                               .epilogue = DT_EPILOGUE_GELU_BACKWARD};
    return product(b, go, a);
}

double bench_matmul_dw(struct bench *b, bool go)
{
    return map_dw(b, go, DT_EPILOGUE_NONE);
}

double bench_matmul_dw_bias(struct bench *b, bool go)
{
    return map_dw(b, go, DT_EPILOGUE_BIAS_BACKWARD);
}

/* The attention shape of (rows, cols), as many whole samples as rows hold. */
static struct dt_attention_shape shape_of(const struct bench *b)
{
    int64_t positions = b->rows < b->positions ? b->rows : b->positions;
    struct dt_attention_shape n = {.queries = positions, .keys = positions, .causal = true, .type = b->type};
    n.head_size = b->head > 0 ? b->head : b->cols % 64 == 0 ? 64 : b->cols;
    n.batch = b->rows / positions;
    n.heads = b->cols / n.head_size;
    return n;
}

/* Causal. As at the start of a run it is measured first if it was not yet, and its plan says by
 * what it is computed. */
double bench_attention(struct bench *b, bool go)
{
    const struct dt_attention_shape n = shape_of(b);
    const struct dt_device_plans *plans = b->d->ops->plans;
    struct dt_error why, err = {0};
    int measured;
    const void *qkv = bench_buffer(b, 0, 3 * b->rows * b->cols, b->type);
    struct dt_attention_args a = {.shape = n,
                                  .out = bench_buffer(b, 1, b->rows * b->cols, b->type),
                                  .lse = bench_buffer(b, 2, b->rows * n.heads, DT_F32),
                                  .q = qkv,
                                  .k = dt_attention_part(&n, qkv, 1),
                                  .v = dt_attention_part(&n, qkv, 2)};
    if (go) {
        b->k->attention(b->s, &a);
    } else if (plans != NULL) {
        const struct dt_attention_list all = {.forward = &a, .forward_count = 1};
        (void)bench_ok(b, plans->choose_attention(b->s, &all, NULL, NULL, &measured, &why, &err), &err);
        (void)bench_ok(b, plans->attention(b->d, &a, &b->by, &err), &err);
    }
    return dt_cost_attention(&a).flops;
}

/* Elements that a layer has to spare, or, where that is more, what the scores of one sequence
 * take; and behind them the log-sum-exp's sums and a little. */
static int64_t backward_work(const struct bench *b, const struct dt_attention_shape *n)
{
    int64_t positions = (n->keys + 127) / 128 * 128, layer = 2 * b->rows * b->cols,
            sequence = n->heads * positions * positions;
    return (layer > sequence ? layer : sequence) + 2 * b->rows * n->heads + 8192;
}

double bench_attention_backward(struct bench *b, bool go)
{
    const struct dt_attention_shape n = shape_of(b);
    int64_t work = backward_work(b, &n);
    const struct dt_device_plans *plans = b->d->ops->plans;
    struct dt_error why, err = {0};
    int measured;
    const void *qkv = bench_buffer(b, 0, 3 * b->rows * b->cols, b->type);
    void *dqkv = bench_buffer(b, 4, 3 * b->rows * b->cols, b->type);
    struct dt_attention_backward_args a = {.shape = n,
                                           .dq = dqkv,
                                           .dk = dt_attention_part(&n, dqkv, 1),
                                           .dv = dt_attention_part(&n, dqkv, 2),
                                           .work = bench_buffer(b, 5, work, b->type),
                                           .work_bytes = (size_t)work * dt_dtype_size(b->type),
                                           .dout = bench_buffer(b, 3, b->rows * b->cols, b->type),
                                           .out = bench_buffer(b, 1, b->rows * b->cols, b->type),
                                           .q = qkv,
                                           .k = dt_attention_part(&n, qkv, 1),
                                           .v = dt_attention_part(&n, qkv, 2),
                                           .lse = bench_buffer(b, 2, b->rows * n.heads, DT_F32)};
    if (go) {
        b->k->attention_backward(b->s, &a);
    } else if (plans != NULL) {
        const struct dt_attention_list all = {.backward = &a, .backward_count = 1};
        (void)bench_ok(b, plans->choose_attention(b->s, &all, NULL, NULL, &measured, &why, &err), &err);
        (void)bench_ok(b, plans->attention_backward(b->d, &a, &b->by, &err), &err);
    }
    return dt_cost_attention_backward(&a).flops;
}
