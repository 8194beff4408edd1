/* A gradient that is not finite ends the run: which tensors have one, and the first rank that holds one. All
 * ranks see it in the step's norm and come here together, so they say the same. Gradients lie as the step has
 * left them, unless the host has put in the next one already, or an optimizer has written its direction there. */
#include "worker/engine/trainer.h"

#include <math.h>
#include <stdlib.h>

enum { NAMES_SHOWN = 5, SCANNED = 65536 /* elements that are looked at together */ };

static bool is_finite(const void *x, enum dt_dtype type, int64_t i)
{
    if (type == DT_F32) {
        return isfinite(((const float *)x)[i]);
    }
    if (type == DT_F64) {
        return isfinite(((const double *)x)[i]);
    }
    uint16_t ones = type == DT_F16 ? 0x7c00 : 0x7f80;
    return (((const uint16_t *)x)[i] & ones) != ones;
}

/* Elements [first, first + count) of the unit, which lie in host memory. bad: of each tensor. */
static void look_at(const struct trainer *t, int unit, const void *x, int64_t first, int64_t count, int64_t *bad)
{
    const struct chain *c = &t->chain;
    for (int k = 0; k < c->tensor_count; k++) {
        const struct tensor *tensor = &c->tensors[k];
        int64_t begin = tensor->offset > first ? tensor->offset : first;
        int64_t end = tensor->offset + tensor->numel < first + count ? tensor->offset + tensor->numel : first + count;
        bool kept = tensor->unit == unit && (t->strategy.precision.scaler != NULL ||
                                             optimizer_group_of(&t->optimizer, tensor)->row->reach == REACH_ELEMENT);
        for (int64_t i = begin; kept && bad[k] == 0 && i < end; i++) {
            bad[k] = !is_finite(x, t->strategy.precision.sums, i - first);
        }
    }
}

/* This rank's gradients, as the last step has left them. */
static int look_at_all(struct trainer *t, int64_t *bad, struct dt_error *err)
{
    struct strategy *s = &t->strategy;
    size_t size = dt_dtype_size(s->precision.sums);
    int64_t most = s->portion < SCANNED ? s->portion : SCANNED;
    void *room = dt_alloc((size_t)most * size);
    int rc = 0;
    for (int u = 0; u < t->chain.unit_count && rc == 0; u++) {
        int64_t first, owned;
        strategy_owned(s, u, &first, &owned);
        for (int64_t at = 0, n; strategy_trains(s, u) && at < owned && rc == 0; at += n) {
            n = owned - at < most ? owned - at : most;
            struct home_part part = s->grads->slice(s, u);
            part.at += (size_t)at * size;
            dt_stream_copy(t->world->compute, room, home_bring(part, (size_t)n * size, HOME_READ, t->world->compute),
                           (size_t)n * size);
            home_back(part, (size_t)n * size, t->world->compute);
            rc = trainer_settle(t, "gradients", err);
            look_at(t, u, room, first + at, rc == 0 ? n : 0, bad);
        }
    }
    free(room);
    return rc;
}

/* "; not finite: a, b and 3 more"; nothing if it cannot be known. *rank: the first that holds one. */
static int name_all(struct trainer *t, struct dt_text *out, int *rank, struct dt_error *err)
{
    int tensors = t->chain.tensor_count, named = 0;
    int64_t *bad = dt_alloc((size_t)(tensors + t->size) * sizeof *bad);
    int rc = look_at_all(t, bad, err);
    for (int k = 0; k < tensors; k++) {
        bad[tensors + t->rank] |= bad[k];
    }
    rc = rc == 0 ? trainer_sum_counts(t, bad, tensors + t->size, "gradients", err) : rc;
    for (int k = 0; k < tensors && rc == 0; k++) {
        if (bad[k] > 0 && named++ < NAMES_SHOWN) {
            dt_text_printf(out, "%s%s", named > 1 ? ", " : "; not finite: ", t->chain.tensors[k].name);
        }
    }
    if (named > NAMES_SHOWN) {
        dt_text_printf(out, " and %d more", named - NAMES_SHOWN);
    }
    for (int r = t->size - 1; r >= 0 && rc == 0; r--) {
        *rank = bad[tensors + r] > 0 ? r : *rank;
    }
    free(bad);
    return rc;
}

int trainer_gradient_broken(struct trainer *t, const char *what, const char *advice, struct dt_error *err)
{
    struct dt_text names;
    dt_text_init(&names);
    int rank = t->rank;
    bool kept = t->stepper.begun <= t->run.step + 1;
    int rc = kept ? name_all(t, &names, &rank, err) : 0;
    if (rc == 0) {
        (void)dt_fail(err, DT_INVALID, "step %lld: a gradient is not finite%s; %s%s", (long long)t->run.step + 1, what,
                      advice, dt_text_str(&names));
        (void)dt_blame(err, DT_FAULT_FAILED, rank);
    }
    dt_text_clear(&names);
    return -1;
}
