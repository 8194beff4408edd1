/* See the header. */
#include "worker/model/blocks/linear.h"

#include <assert.h>

#include "base/text.h"
#include "worker/model/blocks/blocks.h"

/* The end of the name of a map's weight or bias, behind the map's name. */
static const char *end_of(const char *name, const char *end)
{
    return dt_text_ends_with(name, "_") ? end + 1 : end;
}

struct linear linear_name(struct naming *n, const char *const *names, const int64_t *out, int count, int64_t in,
                          bool biased, const struct linear_rule *rule)
{
    struct linear l = {.count = count, .in = in};
    for (int i = 0; i < count; i++) {
        l.out[i] = out[i];
        l.weight[i] = name_tensor(n, names[i], end_of(names[i], ".weight"), (int64_t[]){out[i], in}, 2, &rule->weight);
        l.bias[i] = LINEAR_NONE;
    }
    for (int i = 0; i < count && biased; i++) {
        l.bias[i] = name_tensor(n, names[i], end_of(names[i], ".bias"), &out[i], 1, &rule->bias);
    }
    return l;
}

static int64_t rows_of(const struct pass *p, const struct linear *l)
{
    return l->of_samples ? p->batch->samples : row_count(p);
}

int64_t linear_columns(const struct linear *l)
{
    int64_t columns = 0;
    for (int i = 0; i < l->count; i++) {
        columns += l->out[i];
    }
    return columns;
}

/* True if tensor `next` begins where tensor `first` with numel elements ends, as the model has put them. What
 * lies side by side there still does, unless one of the two is frozen (model/wrap.c). */
static bool follows(const struct block *b, int first, int64_t numel, int next)
{
    const struct tensor *x = &b->chain->tensors[b->tensors[first]], *y = &b->chain->tensors[b->tensors[next]];
    bool behind = x->declared.unit == y->declared.unit && x->declared.offset + numel == y->declared.offset;
    bool still = x->unit == y->unit && x->offset + numel == y->offset;
    assert(!behind || still || x->rule.role != y->rule.role);
    return behind && still && b->adds[first] == b->adds[next];
}

/* A run of maps that are one product: maps [first, first + count) with `out` columns, from column
 * `at` on. */
struct run {
    int first, count;
    int64_t at, out;
};

/* The run behind r (begin with a zeroed one); false after the last. */
static bool next_run(const struct block *b, const struct linear *l, struct run *r)
{
    *r = (struct run){.first = r->first + r->count, .at = r->at + r->out};
    for (int i = r->first; i < l->count; i++) {
        const int *w = l->weight, *bias = l->bias;
        if (i > r->first) {
            bool same = (bias[i] == LINEAR_NONE) == (bias[i - 1] == LINEAR_NONE) &&
                        follows(b, w[i - 1], l->out[i - 1] * l->in, w[i]) &&
                        (bias[i] == LINEAR_NONE || follows(b, bias[i - 1], l->out[i - 1], bias[i]));
            if (!same) {
                break;
            }
        }
        r->count++;
        r->out += l->out[i];
    }
    return r->count > 0;
}

static void *at_column(const struct block *b, const void *x, int64_t column)
{
    return (char *)(uintptr_t)x + column * (int64_t)dt_dtype_size(b->spec->type);
}

void linear_forward(const struct block *b, const struct pass *p, const struct linear *l, void *y, int64_t ldy,
                    const void *x)
{
    enum dt_dtype type = b->spec->type;
    for (struct run r = {0}; next_run(b, l, &r);) {
        int bias = l->bias[r.first];
        p->kernels->matmul(p->stream,
                           &(struct dt_matmul_args){.c = at_column(b, y, r.at),
                                                    .a = x,
                                                    .b = pass_weight(b, p, l->weight[r.first]),
                                                    .bias = bias != LINEAR_NONE ? pass_weight(b, p, bias) : NULL,
                                                    .m = rows_of(p, l),
                                                    .n = r.out,
                                                    .k = l->in,
                                                    .ldc = ldy != 0 ? ldy : linear_columns(l),
                                                    .b_transposed = true,
                                                    .type = type,
                                                    .c_type = type,
                                                    .busy_sms = p->busy_sms});
    }
}

/* The sums of dy's columns into `sums`, and from there to each bias. */
static void bias_backward(const struct block *b, const struct pass *p, const struct linear *l, const void *dy,
                          void *sums)
{
    enum dt_dtype grads = pass_grad_type(b, p);
    p->kernels->column_sum(p->stream, &(struct dt_column_sum_args){.out = sums,
                                                                   .x = dy,
                                                                   .row_count = rows_of(p, l),
                                                                   .col_count = linear_columns(l),
                                                                   .type = b->spec->type,
                                                                   .grad_type = grads});
    for (int i = 0, at = 0; i < l->count; at += (int)l->out[i++]) {
        if (l->bias[i] == LINEAR_NONE) {
            continue;
        }
        void *part = (char *)sums + (size_t)at * dt_dtype_size(grads), *to = pass_grad(b, p, l->bias[i]);
        if (pass_adds(b, p, l->bias[i])) {
            p->kernels->add(p->stream, &(struct dt_add_args){to, to, part, l->out[i], grads, grads});
        } else {
            p->kernels->cast(p->stream, &(struct dt_cast_args){to, part, l->out[i], grads, grads});
        }
    }
}

void linear_weight_backward(const struct block *b, const struct pass *p, const struct linear *l, const void *dy,
                            const void *x, void *sums)
{
    enum dt_dtype grads = pass_grad_type(b, p);
    if (pass_grad(b, p, l->weight[0]) == NULL) {
        return;
    }
    bool biased = false;
    for (int i = 0; i < l->count; i++) {
        biased = biased || l->bias[i] != LINEAR_NONE;
    }
    struct run whole = {0};
    (void)next_run(b, l, &whole);
    bool adds = pass_adds(b, p, l->weight[0]);
    /* one product, which may sum the rows of dy, too */
    bool at_once = biased && whole.count == l->count && pass_adds(b, p, l->bias[0]) == adds;
    if (biased && !at_once) {
        bias_backward(b, p, l, dy, sums);
    }
    for (struct run r = {0}; next_run(b, l, &r);) {
        if (!block_trains(b, l->weight[r.first]) && !(at_once && block_trains(b, l->bias[0]))) {
            continue;
        }
        struct dt_matmul_args product = {.c = pass_grad(b, p, l->weight[r.first]),
                                         .a = at_column(b, dy, r.at),
                                         .b = x,
                                         .m = r.out,
                                         .n = l->in,
                                         .k = rows_of(p, l),
                                         .lda = linear_columns(l),
                                         .a_transposed = true,
                                         .accumulate = pass_adds(b, p, l->weight[r.first]),
                                         .type = b->spec->type,
                                         .c_type = grads,
                                         .busy_sms = p->busy_sms};
        if (at_once) {
            product.epilogue = DT_EPILOGUE_BIAS_BACKWARD_A;
            product.bias_gradient = pass_grad(b, p, l->bias[0]);
            product.grad_type = grads;
            dt_matmul_epilogue(p->kernels, p->stream, &product);
        } else {
            p->kernels->matmul(p->stream, &product);
        }
    }
}

static void input_backward(const struct block *b, const struct pass *p, const struct linear *l, void *dx,
                           const void *dy, bool adds)
{
    enum dt_dtype type = b->spec->type;
    for (struct run r = {0}; next_run(b, l, &r);) {
        p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = dx,
                                                               .a = at_column(b, dy, r.at),
                                                               .b = pass_weight(b, p, l->weight[r.first]),
                                                               .m = rows_of(p, l),
                                                               .n = l->in,
                                                               .k = r.out,
                                                               .lda = linear_columns(l),
                                                               .accumulate = adds || r.first > 0,
                                                               .type = type,
                                                               .c_type = type,
                                                               .busy_sms = p->busy_sms});
    }
}

void linear_input_backward(const struct block *b, const struct pass *p, const struct linear *l, void *dx,
                           const void *dy)
{
    input_backward(b, p, l, dx, dy, false);
}

void linear_input_backward_add(const struct block *b, const struct pass *p, const struct linear *l, void *dx,
                               const void *dy)
{
    input_backward(b, p, l, dx, dy, true);
}
