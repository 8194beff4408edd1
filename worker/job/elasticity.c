#include "worker/job/elasticity.h"

#include <stdlib.h>
#include <string.h>

/* Numbers with many divisors. */
static const int64_t composite[] = {1,      2,      4,      6,      12,     24,     36,     48,    60,    120,
                                    180,    240,    360,    720,    840,    1260,   1680,   2520,  5040,  7560,
                                    10080,  15120,  20160,  25200,  27720,  45360,  50400,  55440, 83160, 110880,
                                    166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720};
enum { COMPOSITES = sizeof composite / sizeof composite[0] };

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void add(struct elastic_batch *b, int64_t ranks, const struct elastic_config *c)
{
    if (ranks < c->min_gpus || ranks > c->max_gpus) {
        return;
    }
    if ((b->count & (b->count - 1)) == 0) { /* full at each power of two */
        size_t room = b->count > 0 ? 2 * (size_t)b->count : 1;
        int64_t *more = realloc(b->ranks, room * sizeof *more);
        if (more == NULL) {
            abort();
        }
        b->ranks = more;
    }
    b->ranks[b->count++] = ranks;
}

/* All numbers of ranks for which a micro-step of the list divides the batch. */
static struct elastic_batch ranks_of(const struct elastic_config *c, int64_t batch)
{
    struct elastic_batch b = {.batch = batch};
    for (int i = 0; i < c->micro_count; i++) {
        int64_t most = batch % c->micro[i] == 0 ? batch / c->micro[i] : 0;
        for (int64_t d = 1; d * d <= most; d++) {
            if (most % d == 0) {
                add(&b, d, c);
                add(&b, most / d, c);
            }
        }
    }
    if (b.count > 0) {
        qsort(b.ranks, (size_t)b.count, sizeof *b.ranks, ascending);
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < b.count; i++) {
        if (i == 0 || b.ranks[i] != b.ranks[kept - 1]) {
            b.ranks[kept++] = b.ranks[i];
        }
    }
    b.count = kept;
    return b;
}

/* The largest batch of a base: times the largest number of the list above that fits. */
static int64_t candidate(int64_t base, int64_t most)
{
    int i = COMPOSITES - 1;
    while (i > 0 && composite[i] > most / base) {
        i--;
    }
    return base * composite[i];
}

static int64_t divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : divisor(b, a % b);
}

/* The least common multiple of the micro-steps; above `most`: most + 1. */
static int64_t multiple(const struct elastic_config *c, int64_t most)
{
    int64_t all = 1;
    for (int i = 0; i < c->micro_count && all <= most; i++) {
        int64_t other = c->micro[i] / divisor(all, c->micro[i]);
        all = other > most / all ? most + 1 : all * other;
    }
    return all;
}

static bool wins(const struct elastic_config *c, const struct elastic_batch *x, const struct elastic_batch *best)
{
    bool preferred = c->prefer_larger ? x->batch > best->batch : x->batch < best->batch;
    return x->count > best->count || (x->count == best->count && x->count > 0 && preferred);
}

static struct elastic_batch best_of(const struct elastic_config *c)
{
    struct elastic_batch best = {0};
    for (int i = 0; i <= c->micro_count; i++) {
        int64_t base = i < c->micro_count ? c->micro[i] : multiple(c, c->max_batch);
        if (base > c->max_batch) {
            continue;
        }
        struct elastic_batch x = ranks_of(c, candidate(base, c->max_batch));
        bool better = wins(c, &x, &best);
        free(better ? best.ranks : x.ranks);
        best = better ? x : best;
    }
    return best;
}

static bool holds(const struct elastic_batch *b, int64_t ranks)
{
    return b->count > 0 && bsearch(&ranks, b->ranks, (size_t)b->count, sizeof ranks, ascending) != NULL;
}

/* 0.2: no batch of the list fits these ranks: the largest (or smallest) that does, for them alone. */
static void fit(const struct elastic_config *c, int64_t ranks, struct elastic_batch *out)
{
    int64_t found = 0;
    for (int i = 0; i < c->micro_count; i++) {
        int64_t per = c->micro[i] * ranks, batch = c->max_batch / per * per;
        bool better = c->prefer_larger ? batch > found : found == 0 || batch < found;
        found = batch > 0 && better ? batch : found;
    }
    if (found > 0) {
        free(out->ranks);
        *out = (struct elastic_batch){.batch = found};
        struct elastic_config one = {.min_gpus = ranks, .max_gpus = ranks};
        add(out, ranks, &one);
    }
}

/* The largest micro-step that divides a rank's share, or the first one of the list. */
static int64_t micro_of(const struct elastic_config *c, int64_t share, bool largest)
{
    int64_t found = 0;
    for (int i = 0; i < c->micro_count; i++) {
        int64_t m = c->micro[i];
        found = share % m == 0 && (found == 0 || (largest && m > found)) ? m : found;
    }
    return found;
}

int elastic_solve(const struct elastic_config *c, int64_t ranks, struct elastic_batch *out, struct dt_error *err)
{
    bool by_node = c->version >= 0.2;
    int64_t per_node = by_node ? c->gpus_per_node / c->model_size : 1;
    for (int i = 0; i < c->micro_count; i++) {
        if (c->micro[i] > c->max_batch) {
            return dt_fail(err, DT_INVALID, "micro_batch_sizes: %lld is more than max_train_batch_size %lld; lower it",
                           (long long)c->micro[i], (long long)c->max_batch);
        }
    }
    struct elastic_config nodes = *c;
    if (by_node) { /* whole nodes, each of which is as one rank */
        nodes.max_batch /= per_node;
        nodes.min_gpus = c->min_gpus / c->gpus_per_node;
        nodes.max_gpus = c->max_gpus / c->gpus_per_node;
        nodes.max_gpus = nodes.max_gpus > 0 ? nodes.max_gpus : nodes.max_batch;
    }
    *out = best_of(&nodes);
    out->batch *= per_node;
    for (int64_t i = 0; i < out->count; i++) {
        out->ranks[i] *= per_node;
    }
    if (by_node && !holds(out, ranks)) {
        fit(c, ranks, out);
    }
    if (out->count == 0) {
        free(out->ranks);
        *out = (struct elastic_batch){0};
        return dt_fail(err, DT_INVALID, "no batch up to max_train_batch_size %lld runs on %lld to %lld ranks",
                       (long long)c->max_batch, (long long)c->min_gpus, (long long)c->max_gpus);
    }
    out->micro = holds(out, ranks) ? micro_of(c, out->batch / ranks, !by_node || c->prefer_larger) : 0;
    return 0;
}
