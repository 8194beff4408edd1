/* A product and then its epilogue, by other kernels of the table, which every device has. */
#include "kernels/kernels.h"

static void gelu(const struct dt_kernels *k, struct dt_stream *s, const struct dt_matmul_args *a)
{
    if (!a->aux_only) {
        k->activation(s, &(struct dt_activation_args){
                             .y = a->c, .x = a->aux, .count = a->m * a->n, .kind = DT_ACT_GELU, .type = a->type});
    }
}

static void gelu_backward(const struct dt_kernels *k, struct dt_stream *s, const struct dt_matmul_args *a)
{
    k->activation_backward(s, &(struct dt_activation_backward_args){.dx = a->c,
                                                                    .dy = a->c,
                                                                    .x = a->aux,
                                                                    .count = a->m * a->n,
                                                                    .kind = DT_ACT_GELU,
                                                                    .type = a->type,
                                                                    .dbias = a->bias_gradient,
                                                                    .col_count = a->n,
                                                                    .accumulate = a->accumulate,
                                                                    .grad_type = a->grad_type});
}

/* dy: operand a or b, with `columns` columns. */
static void bias_backward(const struct dt_kernels *k, struct dt_stream *s, const struct dt_matmul_args *a,
                          const void *dy, int64_t columns)
{
    k->column_sum(s, &(struct dt_column_sum_args){.out = a->bias_gradient,
                                                  .x = dy,
                                                  .row_count = a->k,
                                                  .col_count = columns,
                                                  .accumulate = a->accumulate,
                                                  .type = a->type,
                                                  .grad_type = a->grad_type});
}

void dt_matmul_parts(const struct dt_kernels *k, struct dt_stream *s, const struct dt_matmul_args *a)
{
    struct dt_matmul_args product = *a;
    product.epilogue = DT_EPILOGUE_NONE;
    product.c = a->epilogue == DT_EPILOGUE_GELU ? a->aux : a->c;
    product.accumulate = a->accumulate && a->epilogue != DT_EPILOGUE_GELU_BACKWARD;
    product.aux = product.bias_gradient = NULL;
    k->matmul(s, &product);
    switch (a->epilogue) {
    case DT_EPILOGUE_GELU:
        return gelu(k, s, a);
    case DT_EPILOGUE_GELU_BACKWARD:
        return gelu_backward(k, s, a);
    case DT_EPILOGUE_BIAS_BACKWARD:
        return bias_backward(k, s, a, a->b, a->n);
    case DT_EPILOGUE_BIAS_BACKWARD_A:
        return bias_backward(k, s, a, a->a, a->m);
    case DT_EPILOGUE_NONE:
        return;
    }
}

void dt_matmul_epilogue(const struct dt_kernels *k, struct dt_stream *s, const struct dt_matmul_args *a)
{
    if (k->matmul_epilogue == NULL || !k->matmul_epilogue(s, a)) {
        dt_matmul_parts(k, s, a);
    }
}
