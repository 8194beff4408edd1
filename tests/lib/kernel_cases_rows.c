/* Cases of dropout, of the embedding's other tables, of means over positions, and of single rows. */
#include "tests/lib/kernel_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* rows, rows of a sample, cols, rate in thousandths. No element is near zero, so a wrong mask is
 * seen. */
void case_make_dropout(const int64_t *n)
{
    for (int b = 0; b < 3; b++) {
        case_make(b, n[0] * n[2], 1, 3);
    }
    for (int64_t i = 0; i < n[0]; i++) {
        case_side.samples[i] = ((int64_t)5 << 32) + 1000 * i;
    }
}

void case_run_dropout(const struct case_run *r)
{
    struct dt_dropout_args a = {.x = case_at(r, 1),
                                .in = case_at(r, 0),
                                .samples = case_side_of(r)->samples,
                                .row_count = r->n[0],
                                .rows_per_sample = r->n[1],
                                .col_count = r->n[2],
                                .rate = (double)r->n[3] / 1000,
                                .seed = 42,
                                .site = 7,
                                .type = r->type};
    r->k->dropout(r->s, &a);
    a.x = case_at(r, 2); /* in place, at another site */
    a.in = a.x;
    a.site = 8;
    r->k->dropout(r->s, &a);
}

/* rows, T, C, V, kinds, flags: accumulate (1), positions by id and a first type for all (2), no
 * positions (4) */
void case_make_tables(const int64_t *n)
{
    case_make(0, n[0] * n[2], 1, 0);
    case_make(1, n[3] * n[2], 1, 0);       /* tokens */
    case_make(2, (n[1] + 3) * n[2], 1, 0); /* positions */
    case_make(3, n[0] * n[2], 1, 0);       /* dy */
    case_make_of(GRAD, 4, n[3] * n[2], 1, 0);
    case_make_of(GRAD, 5, (n[1] + 3) * n[2], 1, 0);
    case_make(6, n[4] * n[2], 1, 0); /* types */
    case_make_of(GRAD, 7, n[4] * n[2], 1, 0);
    case_make_ids(case_side.ids, n[0], n[3]);
    case_make_ids(case_side.positions, n[0], n[1] + 3);
    case_make_ids(case_side.kinds, n[0], n[4]);
}

void case_run_tables(const struct case_run *r)
{
    const int64_t *n = r->n;
    const struct case_side *side = case_side_of(r);
    bool by_id = (n[5] & 2) != 0;
    r->k->embedding(r->s, &(struct dt_embedding_args){.out = case_at(r, 0),
                                                      .tokens = case_at(r, 1),
                                                      .positions = (n[5] & 4) != 0 ? NULL : case_at(r, 2),
                                                      .types = case_at(r, 6),
                                                      .ids = side->ids,
                                                      .position_ids = by_id ? side->positions : NULL,
                                                      .type_ids = by_id ? NULL : side->kinds,
                                                      .row_count = n[0],
                                                      .position_count = n[1],
                                                      .first_position = 2,
                                                      .col_count = n[2],
                                                      .scale = 1.75,
                                                      .type = r->type});
    struct dt_embedding_backward_args back = {.dtokens = case_at(r, 4),
                                              .dy = case_at(r, 3),
                                              .ids = side->ids,
                                              .row_count = n[0],
                                              .vocab_count = n[3],
                                              .col_count = n[2],
                                              .skipped_id = (int32_t)n[3] / 2,
                                              .skips = true,
                                              .scale = 1.75,
                                              .accumulate = (n[5] & 1) != 0,
                                              .type = r->type,
                                              .grad_type = r->grad};
    r->k->embedding_backward(r->s, &back);
    back.skips = false;
    back.scale = 0;
    back.dtokens = case_at(r, 5);
    back.ids = side->positions;
    back.vocab_count = n[1] + 3;
    r->k->embedding_backward(r->s, &back);
    back.dtokens = case_at(r, 7);
    back.ids = side->kinds;
    back.vocab_count = n[4];
    r->k->embedding_backward(r->s, &back);
}

/* B, T, C, with masks; the last sequence then has none that is set */
void case_make_mean(const int64_t *n)
{
    case_make(0, n[0] * n[2], 1, 0);
    case_make(1, n[0] * n[1] * n[2], 1, 0);
    case_make(2, n[0] * n[1] * n[2], 1, 0);
    case_make(3, n[0] * n[2], 4, 0);
    case_make_ids(case_side.ids, n[0] * n[1], 2);
    for (int64_t i = (n[0] - 1) * n[1]; i < n[0] * n[1]; i++) {
        case_side.ids[i] = 0;
    }
}

void case_run_mean(const struct case_run *r)
{
    const int64_t *n = r->n;
    const int32_t *mask = n[3] != 0 ? case_side_of(r)->ids : NULL;
    r->k->masked_mean(r->s, &(struct dt_masked_mean_args){.out = case_at(r, 0),
                                                          .x = case_at(r, 1),
                                                          .mask = mask,
                                                          .batch = n[0],
                                                          .positions = n[1],
                                                          .col_count = n[2],
                                                          .type = r->type});
    r->k->masked_mean_backward(r->s, &(struct dt_masked_mean_backward_args){.dx = case_at(r, 2),
                                                                            .dout = case_at(r, 3),
                                                                            .mask = mask,
                                                                            .batch = n[0],
                                                                            .positions = n[1],
                                                                            .col_count = n[2],
                                                                            .type = r->type});
}

/* rows taken, step, C, by number: one of each step, or none */
void case_make_take(const int64_t *n)
{
    case_make(0, n[0] * n[2], 1, 0);
    case_make(1, n[0] * n[1] * n[2], 1, 0);
    case_make(2, n[0] * n[1] * n[2], 1, 0);
    case_make(3, n[0] * n[2], 1, 0);
    case_make_ids(case_side.ids, n[0], n[1]);
    for (int64_t i = 0; i < n[0]; i++) {
        case_side.ids[i] = i % 5 == 3 ? -1 : (int32_t)(i * n[1]) + case_side.ids[i];
    }
}

void case_run_take(const struct case_run *r)
{
    const int64_t *n = r->n;
    const int32_t *rows = n[3] != 0 ? case_side_of(r)->ids : NULL;
    r->k->take_rows(r->s, &(struct dt_take_rows_args){.out = case_at(r, 0),
                                                      .x = case_at(r, 1),
                                                      .rows = rows,
                                                      .row_count = n[0],
                                                      .col_count = n[2],
                                                      .step = n[1],
                                                      .type = r->type});
    r->k->take_rows_backward(r->s, &(struct dt_take_rows_backward_args){.dx = case_at(r, 2),
                                                                        .dout = case_at(r, 3),
                                                                        .rows = rows,
                                                                        .row_count = n[0],
                                                                        .source_count = n[0] * n[1],
                                                                        .col_count = n[2],
                                                                        .step = n[1],
                                                                        .type = r->type});
}

/* rows, columns, with gradient, kind; at most CASE_ROWS labels. Some rows have no target. */
void case_make_labels(const int64_t *n)
{
    case_make(0, n[0] * n[1], 3, 0);
    case_make_of(STAT, 1, n[0] + 3, 1, 0); /* losses, their sum, counts */
    for (int64_t i = 0; i < n[0] * n[1]; i++) {
        double y = 0.37 * (double)(i * 7 % 23) - 4;
        case_side.labels[i] = (float)(n[3] == DT_LOSS_BINARY ? y > 0 : y);
    }
    for (int64_t row = 3; row < n[0]; row += 5) {
        case_side.labels[row * n[1]] = NAN;
    }
}

void case_run_labels(const struct case_run *r)
{
    const int64_t *n = r->n;
    struct case_side *side = case_side_of(r);
    r->k->label_loss(r->s, &(struct dt_label_loss_args){.logits = case_at(r, 0),
                                                        .labels = side->labels,
                                                        .row_loss = side->losses,
                                                        .loss_sum = &side->loss_sum,
                                                        .row_count = n[0],
                                                        .col_count = n[1],
                                                        .grad_scale = 0.25,
                                                        .kind = (enum dt_loss)n[3],
                                                        .with_grad = n[2] != 0,
                                                        .type = r->type});
}
