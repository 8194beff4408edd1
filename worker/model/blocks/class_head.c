/* The last block of a classifier: logits = n W^T + b, where n = norm(x) with elements dropped, then
 * cross entropy, for each sample or for each of its positions; or, of a sample, the loss of several
 * numbers. In training, backward does all of it.
 *
 * Letters: Q rows of x, B or B * T. */
#include "worker/model/blocks/blocks.h"
#include "worker/model/blocks/dense.h"
#include "worker/model/blocks/drop.h"
#include "worker/model/blocks/layernorm.h"
#include "worker/model/blocks/linear.h"

/* Memory of one call: n, then its gradient (Q, C), and statistics (Q); logits, then
 * their gradient (Q, classes); losses of rows (Q); sums of columns (classes). */
enum { NORM, MEAN, RSTD, LOGITS, ROW_LOSS, SUMS };

struct tensors {
    struct layernorm norm;
    struct linear map;
};

static struct tensors walk_tensors(const struct block *b, struct block *declared)
{
    const struct class_head *m = b->args;
    struct naming n = {.block = declared};
    struct tensors t = {.norm = {.weight = -1}};
    if (m->norm != NULL) {
        t.norm = layernorm_name(&n, m->norm, m->channels, m->norm_bias, m->norm_epsilon);
    }
    t.map = linear_name(&n, &m->name, &m->classes, 1, m->channels, !m->unbiased, &m->rule);
    t.map.of_samples = !m->per_position;
    return t;
}

static int declare(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct class_head *m = b->args;
    enum dt_dtype type = b->spec->type, wide = dt_dtype_wide(type);
    int64_t rows = m->per_position ? most_rows(b) : b->spec->batch_size;
    bool norm = m->norm != NULL;
    (void)walk_tensors(b, b);
    (void)block_field(b, "labels");
    drop_declare(b, m->dropout);
    block_memory(b, "norm", LIFE_CALL, 0, norm || m->dropout > 0 ? rows * m->channels : 0, type);
    block_memory(b, "mean", LIFE_CALL, 0, norm ? rows : 0, wide);
    block_memory(b, "rstd", LIFE_CALL, 0, norm ? rows : 0, wide);
    int logits = block_memory(b, "logits", LIFE_CALL, 0, rows * m->classes, type);
    b->numbers = m->numbers && m->loss == DT_LOSS_SQUARED;
    b->several = m->numbers && !b->numbers;
    b->logits_memory = logits;
    b->classes = m->classes;
    block_memory(b, "row losses", LIFE_CALL, 0, rows, DT_F64);
    block_memory(b, "sums", LIFE_CALL, 0, m->classes, wide);
    b->in = m->per_position ? stream_flow(b, m->channels, false)
                            : (struct flow){.dims = 2, .shape = {b->spec->batch_size, m->channels}, .type = type};
    return 0;
}

static int64_t rows_of(const struct block *b, const struct pass *p)
{
    const struct class_head *m = b->args;
    return m->per_position ? row_count(p) : p->batch->samples;
}

/* Computes the loss. with_grad: logits become their gradient. Returns what the map reads. */
static const void *loss(const struct block *b, const struct pass *p, const struct tensors *t, bool with_grad)
{
    const struct class_head *m = b->args;
    const void *x = p->x;
    if (m->norm != NULL) {
        struct normed to = {
            .y = pass_memory(b, p, NORM), .mean = pass_memory(b, p, MEAN), .rstd = pass_memory(b, p, RSTD)};
        layernorm_forward(b, p, &t->norm, rows_of(b, p), p->x, NULL, &to);
        x = to.y;
    }
    x = drop(b, p, m->dropout, 0, pass_memory(b, p, NORM), x, rows_of(b, p), m->channels);
    linear_forward(b, p, &t->map, pass_memory(b, p, LOGITS), 0, x);
    const void *labels = p->batch->at[batch_find(p->batch->layout, "labels")];
    if (m->numbers) {
        p->kernels->label_loss(p->stream, &(struct dt_label_loss_args){.logits = pass_memory(b, p, LOGITS),
                                                                       .labels = labels,
                                                                       .row_loss = pass_memory(b, p, ROW_LOSS),
                                                                       .loss_sum = p->loss_sum,
                                                                       .row_count = rows_of(b, p),
                                                                       .col_count = m->classes,
                                                                       .grad_scale = p->loss_scale,
                                                                       .kind = m->loss,
                                                                       .with_grad = with_grad,
                                                                       .type = b->spec->type});
        return x;
    }
    p->kernels->cross_entropy(p->stream, &(struct dt_cross_entropy_args){.logits = pass_memory(b, p, LOGITS),
                                                                         .targets = labels,
                                                                         .row_loss = pass_memory(b, p, ROW_LOSS),
                                                                         .loss_sum = p->loss_sum,
                                                                         .row_count = rows_of(b, p),
                                                                         .col_count = m->classes,
                                                                         .ld = m->classes,
                                                                         .grad_scale = p->loss_scale,
                                                                         .with_grad = with_grad,
                                                                         .type = b->spec->type});
    return x;
}

static void forward(const struct block *b, const struct pass *p)
{
    struct tensors t = walk_tensors(b, NULL);
    (void)loss(b, p, &t, false);
}

static void backward(const struct block *b, const struct pass *p)
{
    const struct class_head *m = b->args;
    struct tensors t = walk_tensors(b, NULL);
    const void *x = loss(b, p, &t, true);
    void *dlogits = pass_memory(b, p, LOGITS), *dx = m->norm != NULL ? pass_memory(b, p, NORM) : p->dx;
    linear_weight_backward(b, p, &t.map, dlogits, x, pass_memory(b, p, SUMS));
    linear_input_backward(b, p, &t.map, dx, dlogits);
    (void)drop(b, p, m->dropout, 0, dx, dx, rows_of(b, p), m->channels);
    if (m->norm != NULL) {
        struct normed from = {
            .sum = (void *)(uintptr_t)p->x, .mean = pass_memory(b, p, MEAN), .rstd = pass_memory(b, p, RSTD)};
        layernorm_backward(b, p, &t.norm, rows_of(b, p), &from, p->dx, dx, NULL);
    }
}

const struct block_ops block_class_head = {
    .name = "class_head", .declare = declare, .forward = forward, .backward = backward};
