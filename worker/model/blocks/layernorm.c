/* See the header. */
#include "worker/model/blocks/layernorm.h"

struct layernorm layernorm_name(struct naming *n, const char *name, int64_t channels, bool biased, double epsilon)
{
    const struct tensor_rule one = {.init = INIT_ONE}, zero = {.init = INIT_ZERO};
    struct layernorm l = {.channels = channels, .epsilon = epsilon, .bias = -1};
    l.weight = name_tensor(n, name, ".weight", &channels, 1, &one);
    if (biased) {
        l.bias = name_tensor(n, name, ".bias", &channels, 1, &zero);
    }
    return l;
}

void layernorm_forward(const struct block *b, const struct pass *p, const struct layernorm *l, int64_t rows,
                       const void *residual, const void *branch, const struct normed *to)
{
    p->kernels->layernorm(p->stream,
                          &(struct dt_layernorm_args){.y = to->y,
                                                      .residual_out = to->sum,
                                                      .mean = to->mean,
                                                      .rstd = to->rstd,
                                                      .residual = residual,
                                                      .branch = branch,
                                                      .gamma = pass_weight(b, p, l->weight),
                                                      .beta = l->bias >= 0 ? pass_weight(b, p, l->bias) : NULL,
                                                      .row_count = rows,
                                                      .col_count = l->channels,
                                                      .eps = l->epsilon,
                                                      .type = b->spec->type});
}

void layernorm_backward(const struct block *b, const struct pass *p, const struct layernorm *l, int64_t rows,
                        const struct normed *from, void *dx, const void *dy, const void *dresidual)
{
    p->kernels->layernorm_backward(
        p->stream, &(struct dt_layernorm_backward_args){.dx = dx,
                                                        .dgamma = pass_grad(b, p, l->weight),
                                                        .dbeta = l->bias >= 0 ? pass_grad(b, p, l->bias) : NULL,
                                                        .dy = dy,
                                                        .x = from->sum,
                                                        .gamma = pass_weight(b, p, l->weight),
                                                        .mean = from->mean,
                                                        .rstd = from->rstd,
                                                        .dresidual = dresidual,
                                                        .row_count = rows,
                                                        .col_count = l->channels,
                                                        .accumulate = pass_adds(b, p, l->weight),
                                                        .type = b->spec->type,
                                                        .grad_type = pass_grad_type(b, p)});
}
