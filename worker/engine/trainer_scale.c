/* The loss scale of F16 in the step: what the loss is multiplied by, what becomes of it after a step, and
 * which gradients are not finite when it cannot fall any further. The rules are in scaler.c. The host does
 * not run ahead of the device here (trainer_batch_open), so a step is computed with the scale that all steps
 * before it lead to. Whether weights move, the device decides by itself (step_sums.overflow). */
#include "worker/engine/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_SHOWN = 5, SCANNED = 65536 /* elements that are looked at together */ };

double trainer_scale(const struct trainer *t)
{
    return t->strategy.precision.scaler != NULL ? t->run.scaler.scale : 1;
}

/* The largest power of two of at most x >= 1. */
static double power_below(double x)
{
    return exp2(floor(log2(x)));
}

/* The factor that FSDP divides by before it sums over ranks: the root of their number, about. */
static double before_sum(int ranks)
{
    int f = 1;
    while (ranks % f == 0 && ranks / f > f) {
        f *= 2;
    }
    return f;
}

/* A sum over targets, micro-steps and ranks would be larger than its mean, and F16 ends at 65504. So the
 * loss is divided by powers of two near these numbers, which is undone without rounding: by the targets of
 * a batch where losses are summed over them, and where F16 travels by the micro-steps and before_sum. */
double trainer_gradient_scale(const struct trainer *t, double loss_scale, int64_t micro_steps)
{
    const struct precision *p = &t->strategy.precision;
    const struct batch_layout *layout = &t->chain.batch;
    if (p->scaler == NULL && p->wire != DT_F16) {
        return 1;
    }
    if (t->job->training.loss_normalization == LOSS_GLOBAL_TOKENS) {
        loss_scale /= power_below((double)batch_elements(layout, batch_targets(layout)));
    }
    bool means = t->strategy.hook.row != NULL && t->strategy.hook.row->means; /* divided already */
    double sums = means ? 1 : before_sum(t->size);
    return p->wire == DT_F16 ? loss_scale / power_below((double)micro_steps) / sums : loss_scale;
}

double trainer_rate(const struct trainer *t, int64_t samples)
{
    return horizon_rate(&t->run.horizon, &t->run.schedule, samples - t->run.scaler.skipped_samples);
}

void trainer_scale_resume(struct trainer *t, const struct scaler_state *saved)
{
    const struct scaler_settings *s = &t->job->loss_scaling;
    struct scaler_state first = scaler_begin(s);
    if (saved->scale > 0) { /* also of a run that goes on without a scale: its schedule stood still */
        t->run.scaler = *saved;
    }
    if (t->strategy.precision.scaler != NULL && (saved->scale <= 0 || s->loss_scale > 0)) {
        t->run.scaler.scale = first.scale;
    }
    if (saved->scale > 0 && t->run.scaler.hysteresis > s->hysteresis) {
        t->run.scaler.hysteresis = s->hysteresis;
    }
}

/* ---- which gradients are not finite ---- */

struct names {
    struct dt_text *out;
    int count;
    const char *last;
};

static void add_name(struct names *n, const char *name)
{
    if (n->last == name) {
        return;
    }
    n->last = name;
    if (n->count++ < NAMES_SHOWN) {
        dt_text_printf(n->out, "%s%s", n->count > 1 ? ", " : "", name);
    }
}

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

/* Elements [first, first + count) of the unit, which lie in host memory. */
static void look_at(struct trainer *t, int unit, const void *x, int64_t first, int64_t count, struct names *n)
{
    const struct chain *c = &t->chain;
    for (int k = 0; k < c->tensor_count; k++) {
        const struct tensor *tensor = &c->tensors[k];
        int64_t begin = tensor->offset > first ? tensor->offset : first;
        int64_t end = tensor->offset + tensor->numel < first + count ? tensor->offset + tensor->numel : first + count;
        for (int64_t i = begin; tensor->unit == unit && i < end; i++) {
            if (!is_finite(x, t->strategy.precision.sums, i - first)) {
                add_name(n, tensor->name);
                break;
            }
        }
    }
}

/* Names of this rank's gradients, "a, b and 3 more", as the last step has left them. */
static int name_gradients(struct trainer *t, struct dt_text *out, struct dt_error *err)
{
    struct strategy *s = &t->strategy;
    size_t size = dt_dtype_size(s->precision.sums);
    int64_t most = s->portion < SCANNED ? s->portion : SCANNED;
    struct names names = {.out = out};
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
            look_at(t, u, room, first + at, rc == 0 ? n : 0, &names);
        }
    }
    if (names.count > NAMES_SHOWN) {
        dt_text_printf(out, " and %d more", names.count - NAMES_SHOWN);
    }
    free(room);
    return rc;
}

static int at_least(struct trainer *t, double scale, struct dt_error *err)
{
    struct dt_text names;
    dt_text_init(&names);
    int rc = name_gradients(t, &names, err);
    if (rc == 0) {
        (void)dt_fail(
            err, DT_INVALID,
            "step %lld: a gradient is not finite, and the loss scale is at its least, %g; lower "
            "training.learning_rate, write training.precision \"bf16-mixed\", or look at the data; not finite: "
            "%s",
            (long long)t->run.step + 1, scale, names.size > 0 ? dt_text_str(&names) : "other ranks' gradients");
        (void)dt_blame(err, DT_FAULT_FAILED, t->rank);
    }
    dt_text_clear(&names);
    return -1;
}

int trainer_scale_judge(struct trainer *t, const struct trainer_pending *p, bool overflow, struct dt_error *err)
{
    struct scaler_state *x = &t->run.scaler;
    bool goes_on = scaler_judge(t->strategy.precision.scaler, &t->job->loss_scaling, x, overflow);
    if (!overflow) {
        return 0;
    }
    t->optimizer.steps--;
    x->skipped_samples += p->samples - t->run.horizon.samples;
    if (!goes_on) {
        return at_least(t, x->scale, err);
    }
    if (x->skipped == 1) {
        observers_say(
            &t->observers,
            "train: step %lld: a gradient is beyond fp16 at loss scale %g: the weights stay as they are, in all "
            "such steps; the scale is %g now",
            (long long)t->run.step + 1, p->loss_scale, x->scale);
    } else {
        observers_note(&t->observers, "train: step %lld: skipped at loss scale %g, now %g", (long long)t->run.step + 1,
                       p->loss_scale, x->scale);
    }
    return 0;
}
