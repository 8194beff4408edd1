/* See the header. */
#include "worker/model/blocks/drop.h"

enum { SITES = 16 }; /* of a block, at most */

void drop_declare(struct block *b, double rate)
{
    if (rate > 0) {
        block_numbers(b);
    }
}

static bool acts(const struct pass *p, double rate)
{
    return rate > 0 && p->phase != PASS_EVAL;
}

static uint64_t site_of(const struct block *b, int site)
{
    return (uint64_t)(b->index * SITES + site);
}

static const int64_t *numbers_of(const struct pass *p)
{
    return p->batch->at[batch_numbers(p->batch->layout)];
}

const void *drop(const struct block *b, const struct pass *p, double rate, int site, void *to, const void *x,
                 int64_t rows, int64_t cols)
{
    if (!acts(p, rate)) {
        return x;
    }
    p->kernels->dropout(p->stream, &(struct dt_dropout_args){.x = to,
                                                             .in = x,
                                                             .samples = numbers_of(p),
                                                             .row_count = rows,
                                                             .rows_per_sample = rows / p->batch->samples,
                                                             .col_count = cols,
                                                             .rate = rate,
                                                             .seed = b->spec->seed,
                                                             .site = site_of(b, site),
                                                             .type = b->spec->type});
    return to;
}

void drop_attention(const struct block *b, const struct pass *p, double rate, int site, struct dt_attention_shape *s)
{
    if (acts(p, rate)) {
        s->dropout = rate;
        s->seed = b->spec->seed;
        s->site = site_of(b, site);
        s->samples = numbers_of(p);
    }
}
