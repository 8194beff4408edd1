/* Rules for the loss scale: strategies differ in the systems that users know them from. */
#include "worker/engine/scaler.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* torch.amp.GradScaler keeps its scale as a float. It has no least scale: there it falls to 0 and stays
 * there, and here training ends. */
static bool judge_torch(const struct scaler_settings *s, double least, struct scaler_state *x, bool overflow)
{
    if (overflow) {
        double lower = (float)(x->scale * s->backoff_factor);
        x->good = 0;
        if (lower == 0 || lower < least) {
            return false;
        }
        x->scale = lower;
        return true;
    }
    if (++x->good == s->growth_interval) {
        float higher = (float)(x->scale * s->growth_factor);
        x->scale = isfinite(higher) ? (double)higher : x->scale;
        x->good = 0;
    }
    return true;
}

/* deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler */
static bool judge_deepspeed(const struct scaler_settings *s, double least, struct scaler_state *x, bool overflow)
{
    if (overflow) {
        if (s->hysteresis == 1 || x->hysteresis == 1) {
            if (x->scale <= least) {
                return false;
            }
            x->scale = fmax(x->scale / 2, least);
        } else {
            x->hysteresis--;
        }
        x->last = x->seen;
        return true;
    }
    int64_t stable = x->seen - x->last - 1;
    bool grows = stable > 0 && stable % s->loss_scale_window == 0;
    if (s->consecutive_hysteresis || grows) {
        x->hysteresis = s->hysteresis;
    }
    if (grows && isfinite((float)(x->scale * 2))) {
        x->scale *= 2;
    }
    return true;
}

const struct scaler_row *scaler_find(const char *name)
{
    static const struct scaler_row rows[] = {{"torch", 0, judge_torch}, {"deepspeed", 1, judge_deepspeed}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

struct scaler_state scaler_begin(const struct scaler_settings *s)
{
    return (struct scaler_state){.scale = s->loss_scale > 0 ? s->loss_scale : ldexp(1, (int)s->initial_scale_power),
                                 .last = -1,
                                 .hysteresis = s->hysteresis};
}

bool scaler_judge(const struct scaler_row *row, const struct scaler_settings *s, struct scaler_state *x, bool overflow)
{
    bool goes_on =
        s->loss_scale > 0 || row->judge(s, s->min_loss_scale >= 0 ? s->min_loss_scale : row->least, x, overflow);
    x->seen++;
    x->skipped += overflow;
    return goes_on;
}
