/* The loss scale of F16 in the step: what the loss is multiplied by, what becomes of it after a step. The rules are in scaler.c. The host does
 * not run ahead of the device here (trainer_batch_open), so a step is computed with the scale that all steps
 * before it lead to. Whether weights move, the device decides by itself (step_sums.overflow). */
#include "worker/engine/trainer.h"

#include <math.h>
#include <stdio.h>

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

/* The scale cannot fall any further. */
static int at_least(struct trainer *t, double scale, struct dt_error *err)
{
    char what[128];
    (void)snprintf(what, sizeof what, ", and the loss scale is at its least, %.15g", scale);
    return trainer_gradient_broken(
        t, what, "lower training.learning_rate, write training.precision \"bf16-mixed\", or look at the data", err);
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
            "train: step %lld: a gradient is beyond fp16 at loss scale %.15g: the weights stay as they are, in all "
            "such steps; the scale is %.15g now",
            (long long)t->run.step + 1, p->loss_scale, x->scale);
    } else {
        observers_note(&t->observers, "train: step %lld: skipped at loss scale %.15g, now %.15g",
                       (long long)t->run.step + 1, p->loss_scale, x->scale);
    }
    return 0;
}
