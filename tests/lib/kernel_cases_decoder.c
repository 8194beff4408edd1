/* Cases of the kernels that decoders have: RMSNorm, gated activations, rotary positions. The last
 * number of a shape is the variant: which tensors are given, and which are the same memory. */
#include "tests/lib/kernel_cases.h"

/* Element i of a buffer whose type flows. */
static void *element(const struct case_run *r, int b, int64_t i)
{
    return (char *)case_at(r, b) + (size_t)i * dt_dtype_size(r->type);
}

/* ---- RMSNorm: rows, cols, heads, gap between positions of x, of y, variant ----
 * Variants:
 * 0: the branch is added, times 0.75, and the sum is kept; dx is the gradient from above;
 * 1: the weight counts from 1; dweight is added to;
 * 2: y is the residual, dx is dy, no dweight;
 * 3: all tensors apart, and the gradient from above is added. */
enum { Y, SUM, DY, RSTD, RESIDUAL, BRANCH, WEIGHT, ABOVE, DWEIGHT };

struct rms {
    int64_t x_ld, y_ld, x_count, y_count;
};

static struct rms rms_of(const int64_t *n)
{
    int64_t heads = n[2] > 0 ? n[2] : 1, positions = (n[0] + heads - 1) / heads;
    struct rms x = {heads * n[1] + n[3], heads * n[1] + n[4], 0, 0};
    x.x_count = positions * x.x_ld;
    x.y_count = positions * x.y_ld;
    return x;
}

void case_make_rmsnorm(const int64_t *n)
{
    struct rms x = rms_of(n);
    case_make(Y, x.y_count, 1, 0);
    case_make(SUM, n[0] * n[1], 1, 0);
    case_make(DY, x.y_count, 1, 0);
    case_make_of(STAT, RSTD, n[0], 1, 0);
    case_make(RESIDUAL, x.x_count, 2, 0.25);
    case_make(BRANCH, n[0] * n[1], 1, 0);
    case_make(WEIGHT, n[1], 1, n[5] == 1 ? 0 : 1);
    case_make(ABOVE, x.y_count, 1, 0);
    case_make_of(GRAD, DWEIGHT, n[1], 1, 0);
}

void case_run_rmsnorm(const struct case_run *r)
{
    const int64_t *n = r->n;
    struct rms x = rms_of(n);
    r->k->rmsnorm(r->s, &(struct dt_rmsnorm_args){.y = case_at(r, n[5] == 2 ? RESIDUAL : Y),
                                                  .residual_out = n[5] == 0 ? case_at(r, SUM) : NULL,
                                                  .rstd = case_at(r, RSTD),
                                                  .residual = case_at(r, RESIDUAL),
                                                  .branch = n[2] == 0 && n[5] != 1 ? case_at(r, BRANCH) : NULL,
                                                  .weight = case_at(r, WEIGHT),
                                                  .row_count = n[0],
                                                  .col_count = n[1],
                                                  .heads = n[2],
                                                  .x_ld = x.x_ld,
                                                  .y_ld = x.y_ld,
                                                  .eps = 1e-6,
                                                  .branch_scale = n[5] == 0 ? 0.75 : 0,
                                                  .weight_offset = n[5] == 1,
                                                  .type = r->type});
}

void case_run_rmsnorm_backward(const struct case_run *r)
{
    const int64_t *n = r->n;
    struct rms x = rms_of(n);
    case_run_rmsnorm(r);
    r->k->rmsnorm_backward(
        r->s, &(struct dt_rmsnorm_backward_args){.dx = case_at(r, n[5] == 0   ? ABOVE
                                                                  : n[5] == 2 ? DY
                                                                              : Y),
                                                 .dweight = n[5] == 2 ? NULL : case_at(r, DWEIGHT),
                                                 .dy = case_at(r, DY),
                                                 .x = case_at(r, n[2] == 0 && n[5] == 0 ? SUM : RESIDUAL),
                                                 .weight = case_at(r, WEIGHT),
                                                 .rstd = case_at(r, RSTD),
                                                 .dresidual = n[5] == 0 || n[5] == 3 ? case_at(r, ABOVE) : NULL,
                                                 .row_count = n[0],
                                                 .col_count = n[1],
                                                 .heads = n[2],
                                                 .x_ld = x.x_ld,
                                                 .y_ld = x.y_ld,
                                                 .weight_offset = n[5] == 1,
                                                 .accumulate = n[5] == 1,
                                                 .type = r->type,
                                                 .grad_type = r->grad});
}

/* ---- gate: rows, cols, layout, kind, variant ----
 * Layout 0: gate and up are tight; otherwise a row holds both, and `layout - 1` elements more.
 * Variants: 0: all tensors apart; 1: gradients in place of their inputs, y in place of dy; 2: no
 * y. */
enum { INPUTS, GRADIENTS, PRODUCT, DPRODUCT, AGAIN };

void case_make_gate(const int64_t *n)
{
    int64_t ld = n[2] == 0 ? 2 * n[1] : 2 * n[1] + n[2] - 1;
    case_make(INPUTS, n[0] * ld, 4, 0);
    case_make(GRADIENTS, n[0] * ld, 1, 0);
    case_make(PRODUCT, n[0] * n[1], 1, 0);
    case_make(DPRODUCT, n[0] * n[1], 1, 0);
    case_make(AGAIN, n[0] * n[1], 1, 0);
}

void case_run_gate(const struct case_run *r)
{
    const int64_t *n = r->n;
    int64_t up = n[2] == 0 ? n[0] * n[1] : n[1], ld = n[2] == 0 ? 0 : 2 * n[1] + n[2] - 1;
    int to = n[4] == 1 ? INPUTS : GRADIENTS;
    r->k->gate(r->s, &(struct dt_gate_args){.y = case_at(r, PRODUCT),
                                            .gate = element(r, INPUTS, 0),
                                            .up = element(r, INPUTS, up),
                                            .row_count = n[0],
                                            .col_count = n[1],
                                            .ld = ld,
                                            .kind = (enum dt_activation)n[3],
                                            .type = r->type});
    r->k->gate_backward(
        r->s, &(struct dt_gate_backward_args){.dgate = element(r, to, 0),
                                              .dup = element(r, to, up),
                                              .y = n[4] == 2 ? NULL : case_at(r, n[4] == 1 ? DPRODUCT : AGAIN),
                                              .dy = case_at(r, DPRODUCT),
                                              .gate = element(r, INPUTS, 0),
                                              .up = element(r, INPUTS, up),
                                              .row_count = n[0],
                                              .col_count = n[1],
                                              .ld = ld,
                                              .kind = (enum dt_activation)n[3],
                                              .type = r->type});
}

/* ---- rope: rows, heads, head size, width, gap between rows, variant ----
 * Variants: bit 0: inverse; bit 1: each row has a position of its own. */
enum { TURNED, TABLE, POSITIONS = 7, FIRST_POSITION = 2, TABLE_ROWS = POSITIONS + FIRST_POSITION };

void case_make_rope(const int64_t *n)
{
    case_make(TURNED, n[0] * (n[1] * n[2] + n[4]), 2, 0);
    case_make_of(STAT, TABLE, TABLE_ROWS * n[3], 1, 0);
    case_make_ids(case_side.ids, n[0], TABLE_ROWS);
}

void case_run_rope(const struct case_run *r)
{
    const int64_t *n = r->n;
    r->k->rope(r->s, &(struct dt_rope_args){.x = case_at(r, TURNED),
                                            .table = case_at(r, TABLE),
                                            .positions = (n[5] & 2) != 0 ? case_side_of(r)->ids : NULL,
                                            .row_count = n[0],
                                            .position_count = POSITIONS,
                                            .first_position = FIRST_POSITION,
                                            .heads = n[1],
                                            .head_size = n[2],
                                            .width = n[3],
                                            .stride = n[1] * n[2] + n[4],
                                            .inverse = (n[5] & 1) != 0,
                                            .type = r->type});
}
