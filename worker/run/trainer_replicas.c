/* training.check_replicas_every_n_steps: ranks that should hold the same weights and state compare hashes
 * of them. A bit that a memory has lost, or a device that computes wrongly, shows in no loss for a long
 * time, and meanwhile it goes into every checkpoint. */
#include "worker/run/trainer.h"

#include "worker/engine/pinned_window.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct checking {
    struct trainer *t;
    struct pinned_window window;
    XXH3_state_t *hash;
    int64_t *words; /* a hash of each rank */
};

/* Do further ranks hold this rank's masters and state, too? */
static bool state_is_replicated(const struct strategy *s)
{
    return s->optimizer == PART_WHOLE || s->replicas > 1;
}

static bool weights_are_replicated(const struct strategy *s)
{
    return s->weights == &weights_whole || s->replicas > 1;
}

static int add_elements(struct checking *c, struct home_part part, int64_t count, enum dt_dtype type,
                        struct dt_error *err)
{
    struct world *w = c->t->world;
    size_t size_bytes = (size_t)count * dt_dtype_size(type);
    for (size_t at = 0, n; at < size_bytes; at += n) {
        struct home_part piece = {part.home, part.at + at};
        const void *bytes;
        n = size_bytes - at < PINNED_WINDOW_BYTES ? size_bytes - at : PINNED_WINDOW_BYTES;
        int rc = pinned_window_look(&c->window, home_bring(piece, n, HOME_READ, w->compute), n, &bytes, err);
        if (rc == 0) {
            (void)XXH3_64bits_update(c->hash, bytes, n);
        }
        home_back(piece, n, w->compute);
        if (rc != 0) {
            return -1;
        }
        dt_page_pulse(w->page);
    }
    return 0;
}

/* The hash of what this rank holds of a tensor that other ranks hold as well. */
static int hash_tensor(struct checking *c, const struct tensor *x, uint64_t *out, struct dt_error *err)
{
    struct strategy *s = &c->t->strategy;
    struct optimizer *o = &c->t->optimizer;
    const struct precision *types = &s->precision;
    int64_t first, count;
    struct span span;
    (void)XXH3_64bits_reset(c->hash);
    struct home_part weights = strategy_resident(s, x->unit, &first, &count);
    if (tensor_span(x, first, count, &span)) {
        weights.at += (size_t)span.at * dt_dtype_size(types->compute);
        if (add_elements(c, weights, span.count, types->compute, err) != 0) {
            return -1;
        }
    }
    strategy_owned(s, x->unit, &first, &count);
    if (strategy_trains(s, x->unit) && state_is_replicated(s) && tensor_span(x, first, count, &span)) {
        const struct optimizer_group *g = optimizer_group_of(o, x);
        int rc = precision_mixed(types)
                     ? add_elements(c, optimizer_weights(o, x->unit, span.at), span.count, types->masters, err)
                     : 0;
        for (int k = 0; k < g->states && rc == 0; k++) {
            rc = add_elements(c, optimizer_state(o, k, x->unit, span.at), span.count, types->states, err);
        }
        if (rc != 0) {
            return -1;
        }
    }
    *out = XXH3_64bits_digest(c->hash);
    return 0;
}

/* Every rank tells its hash. *odd: the first rank whose hash fewest of the ranks that should have the
 * same share with it, if not all have the same; otherwise -1. The same on all ranks. */
static int compare(struct checking *c, uint64_t hash, int *odd, struct dt_error *err)
{
    const struct trainer *t = c->t;
    int step = t->strategy.replicas > 1 ? t->shards : 1; /* ranks of a shard group hold different slices */
    memset(c->words, 0, (size_t)t->size * sizeof *c->words);
    memcpy(&c->words[t->rank], &hash, sizeof hash); /* the sum over ranks has each rank's word */
    if (trainer_sum_counts(c->t, c->words, t->size, "comparison of replicas", err) != 0) {
        return -1;
    }
    int fewest = t->size / step;
    *odd = -1;
    for (int r = 0; r < t->size; r++) {
        int same = 0;
        for (int other = r % step; other < t->size; other += step) {
            same += c->words[other] == c->words[r];
        }
        if (same < fewest) {
            fewest = same;
            *odd = r;
        }
    }
    return 0;
}

static int fail_odd(const struct checking *c, const struct tensor *x, int odd, struct dt_error *err)
{
    const struct trainer *t = c->t;
    int step = t->strategy.replicas > 1 ? t->shards : 1, same = 0;
    char since[64] = "";
    for (int r = odd % step; r < t->size; r += step) {
        same += c->words[r] == c->words[odd];
    }
    if (t->run.replicas_step > 0) {
        (void)snprintf(since, sizeof since, "; at step %lld all were equal", (long long)t->run.replicas_step);
    }
    (void)dt_fail(err, DT_IO,
                  "step %lld: rank %d holds another %s than %s%s: a memory or a device has changed bits, and later "
                  "checkpoints hold them",
                  (long long)t->run.step, odd, x->name,
                  2 * same < t->size / step ? "the other ranks" : "half of the ranks", since);
    return dt_blame(err, DT_FAULT_FAILED, odd);
}

/* Hashes of all tensors first, as one number; only if these differ, tensor by tensor. */
static int check(struct checking *c, uint64_t *hashes, struct dt_error *err)
{
    const struct chain *chain = &c->t->chain;
    int odd, count = chain->tensor_count;
    for (int i = 0; i < count; i++) {
        hashes[i] = 0;
        if (chain->tensors[i].unit >= 0 && hash_tensor(c, &chain->tensors[i], &hashes[i], err) != 0) {
            return -1;
        }
    }
    if (compare(c, XXH3_64bits(hashes, (size_t)count * sizeof *hashes), &odd, err) != 0) {
        return -1;
    }
    for (int i = 0; i < count && odd >= 0; i++) {
        int here;
        if (compare(c, hashes[i], &here, err) != 0) {
            return -1;
        }
        if (here >= 0) {
            return fail_odd(c, &chain->tensors[i], here, err);
        }
    }
    return 0;
}

int trainer_check_replicas(struct trainer *t, struct dt_error *err)
{
    struct checking c = {.t = t};
    if (!weights_are_replicated(&t->strategy) || t->strategy.alone) {
        if (t->run.replicas_step == 0) {
            observers_say(&t->observers,
                          "train: training.check_replicas_every_n_steps: no two ranks hold the same here");
        }
        t->run.replicas_step = t->run.step;
        return 0;
    }
    if (trainer_settle(t, "comparison of replicas", err) != 0) { /* weights may still be on their way */
        return -1;
    }
    uint64_t *hashes = dt_alloc((size_t)t->chain.tensor_count * sizeof *hashes);
    c.words = dt_alloc((size_t)t->size * sizeof *c.words);
    c.hash = XXH3_createState();
    int rc = c.hash == NULL ? dt_fail(err, DT_NO_MEMORY, "no memory for a hash")
                            : pinned_window_open(&c.window, t->world->device, t->world->compute, err);
    rc = rc == 0 ? check(&c, hashes, err) : rc;
    t->run.replicas_step = t->run.step;
    pinned_window_close(&c.window);
    (void)XXH3_freeState(c.hash);
    free(c.words);
    free(hashes);
    return rc;
}
