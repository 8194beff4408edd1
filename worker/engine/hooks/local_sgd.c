/* Local SGD: ranks go their own ways and meet every period steps, when their weights become the mean of all.
 * Sums over ranks have the canonical tree's order, so all ranks have the same bits then. */
#include "worker/engine/hooks/hooks.h"

#include "worker/engine/optimizer.h"

bool local_sgd_falls_due(const struct strategy *s)
{
    const struct hook *h = &s->hook;
    return h->apart && (h->step - h->job->local_sgd.warmup_steps) % h->job->local_sgd.period == 0;
}

/* On the communication stream: x becomes its mean over ranks. */
static void average(struct strategy *s, int unit, void *x, int64_t count, enum dt_dtype type, const char *name)
{
    struct world *w = s->world;
    strategy_start(s, unit, w->comm, DT_ALL_REDUCE, type, x, x, count, name);
    w->device->kernels->scale(w->communication,
                              &(struct dt_scale_args){.x = x, .count = count, .factor = 1.0 / s->size, .type = type});
}

/* All of a unit, which rests on the device: strategies that average have no other home (job_hooks.c). */
static void *at(struct home_part part)
{
    return (char *)home_device_at(part.home) + part.at;
}

static void average_unit(struct strategy *s, struct optimizer *o, int u, bool weights, bool states)
{
    const struct precision *p = &s->precision;
    int64_t count = s->chain->units[u].numel;
    if (weights) {
        void *w = at(optimizer_weights(o, u, 0));
        average(s, u, w, count, p->masters, "average weights");
        if (precision_mixed(p)) {
            s->world->device->kernels->cast(
                s->world->communication,
                &(struct dt_cast_args){at(s->weights->slice(s, u)), w, count, p->compute, p->masters});
        }
    }
    for (int k = 0; states && k < optimizer_unit_states(o, u); k++) {
        average(s, u, at(optimizer_state(o, k, u, 0)), count, p->states, "average optimizer state");
    }
}

void local_sgd_average(struct strategy *s, struct optimizer *o, bool weights, bool states)
{
    struct world *w = s->world;
    dt_event_record(s->demand, w->compute);
    dt_event_wait(s->demand, w->communication);
    for (int u = 0; u < s->chain->unit_count; u++) {
        if (strategy_trains(s, u)) {
            average_unit(s, o, u, weights, states);
        }
    }
    strategy_land(s);
}
