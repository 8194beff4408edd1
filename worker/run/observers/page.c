/* The page that the agent reads while this rank computes: the last results, and how long the pulse
 * may stand still before the rank counts as hung. The agent's order to stop is a vote. (Step, phase
 * and pulse are signs of life, which trainer_step.c writes in stream order.) */
#include "worker/run/observers/observer.h"

#include <math.h>
#include <stdlib.h>

#define START_LIMIT_S 600.0
#define FOR_EVER_S 1e9
#define STEP_LIMIT_S 60.0
/* A lone rank looks at its clock itself and says where it is; the agent, which looks too, leaves it
 * the first word. */
#define OWN_WORD_S 1.0

struct page {
    double longest_step_s;
};

static bool page_open(struct observer *o)
{
    o->state = dt_alloc(sizeof(struct page));
    return true;
}

static void page_close(struct observer *o)
{
    free(o->state);
}

/* Tells the agent how long the pulse may stand still: training.step_timeout, otherwise by the
 * longest step so far. */
static void set_pulse_limit(struct observer *o, double at_least_s)
{
    const struct page *p = o->state;
    const struct world *w = o->all->world;
    double limit_s = o->all->job->training.step_timeout_s;
    if (limit_s > 0) {
        limit_s += w->size == 1 ? OWN_WORD_S : 0;
    } else {
        limit_s = p->longest_step_s > 0 ? fmax(STEP_LIMIT_S, 5 * p->longest_step_s) : START_LIMIT_S;
    }
    limit_s = fmax(limit_s, at_least_s);
    atomic_store(&w->page->pulse_limit_ms, (uint32_t)fmin(limit_s * 1e3, 4e9));
    dt_page_pulse(w->page);
}

static void show_step(struct dt_page *page, const struct report *r)
{
    if (r->targets > 0) { /* otherwise the last ones stand */
        atomic_store(&page->loss, r->loss);
        atomic_store(&page->grad_norm, r->grad_norm);
    }
    atomic_store(&page->lr, r->lr);
    atomic_store(&page->tokens_per_s, r->sequences ? r->tokens_per_s : -1);
    atomic_store(&page->samples_per_s, r->sequences ? -1 : r->tokens_per_s);
    atomic_store(&page->learned_step, r->step);
}

static void page_report(struct observer *o, const struct report *r, enum moment moment)
{
    struct page *p = o->state;
    struct dt_page *page = o->all->world->page;
    double save_s = o->all->job->checkpointing.save_timeout_s;
    switch (moment) {
    case MOMENT_READING: /* who reads shows a pulse */
    case MOMENT_START:
    case MOMENT_SAVE_OVER:
        set_pulse_limit(o, 0);
        break;
    case MOMENT_STEP:
        p->longest_step_s = fmax(p->longest_step_s, r->step_s);
        set_pulse_limit(o, 0);
        show_step(page, r);
        break;
    case MOMENT_SAVING:
        dt_page_phase(page, DT_PHASE_SAVE);
        set_pulse_limit(o, save_s > 0 ? fmax(START_LIMIT_S, save_s) : FOR_EVER_S);
        break;
    case MOMENT_SAVED:
        atomic_store(&page->save_s, r->save_s);
        break;
    case MOMENT_CLOSING:
        set_pulse_limit(o, START_LIMIT_S);
        break;
    default:
        break;
    }
}

static unsigned page_vote(struct observer *o)
{
    return atomic_load(&o->all->world->page->order) == DT_ORDER_STOP ? VOTE_STOP : 0;
}

const struct observer_ops observer_page = {
    .name = "page", .open = page_open, .report = page_report, .vote = page_vote, .close = page_close};
