/* Rank 0 says which ranks are slow, with host and process, as the judge of pace.h finds from the
 * times that came with a step. Each rank tells the store once where it is. Rank 0 asks the store
 * only when it has something to say. */
#include "worker/run/observers/observer.h"

#include "base/clock.h"
#include "worker/engine/pace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ASK_S 2.0 /* it was told before the first step, so it is there or never comes */

enum { LINES = 4 }; /* of one look; a whole host is one line */

struct place { /* of a rank */
    char host[128];
    int local_rank, pid; /* pid 0: unknown */
};

struct stragglers { /* of rank 0 */
    struct pace_judge judge;
    struct pace_news *news; /* room for one per rank */
};

static bool stragglers_open(struct observer *o)
{
    const struct world *w = o->all->world;
    if (w->size > 1 && w->rank == 0) {
        struct stragglers *x = o->state = dt_alloc(sizeof *x);
        pace_judge_open(&x->judge, w->size);
        x->news = dt_alloc((size_t)w->size * sizeof *x->news);
    }
    return w->size > 1; /* one rank is slower than nobody */
}

static void stragglers_close(struct observer *o)
{
    struct stragglers *x = o->state;
    if (x != NULL) {
        pace_judge_close(&x->judge);
        free(x->news);
        free(x);
    }
}

static void tell_place(const struct world *w)
{
    struct dt_error ignored; /* a lost store shows where it matters */
    char host[128] = "", key[32];
    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(key, sizeof key, "where/%d", w->rank);
    char *value = dt_format("%d %d %s", w->local_rank, (int)getpid(), host);
    (void)dt_store_set(w->store, key, value, strlen(value), &ignored);
    free(value);
}

static struct place place_of(const struct world *w, int rank)
{
    struct place p = {.host = "?"};
    struct dt_error ignored;
    struct dt_text value;
    char key[32];
    const char *keys[] = {key};
    bool there = false;
    (void)snprintf(key, sizeof key, "where/%d", rank);
    dt_text_init(&value);
    if (dt_store_check(w->store, keys, 1, &there, &ignored) == 0 && there &&
        dt_store_get(w->store, key, &value, ASK_S, &ignored) == 0) {
        char host[128];
        int local_rank, pid;
        if (sscanf(dt_text_str(&value), "%d %d %127[ -~]", &local_rank, &pid, host) == 3) {
            p.local_rank = local_rank;
            p.pid = pid;
            (void)snprintf(p.host, sizeof p.host, "%s", host);
        }
    }
    dt_text_clear(&value);
    return p;
}

/* "12.3 of 4.5 ms": its own, and the median. */
static void add_ms(struct dt_text *out, double mean_s, double median_s)
{
    dt_text_printf(out, "%.3g of %.3g ms", mean_s * 1e3, median_s * 1e3);
}

static void add_ratio(struct dt_text *out, const struct pace_news *n)
{
    if (isfinite(n->ratio)) {
        dt_text_printf(out, "%.1f times the median", n->ratio);
    } else {
        dt_text_puts(out, "takes time that others do not need");
    }
}

static const char *advice_for(enum pace_phase phase)
{
    switch (phase) {
    case PACE_DATA:
        return "look at the disk or file system that it reads from";
    case PACE_COMPUTE:
        return "look at what else runs there, at limits and temperature";
    case PACE_COMMUNICATION:
        return "look at its network";
    case PACE_PHASES:
        break;
    }
    return "";
}

static void describe(const struct pace_news *n, struct dt_text *out)
{
    int steps = PACE_BLOCK * PACE_BLOCKS;
    if (n->over) {
        dt_text_puts(out, "no longer slow: ");
        add_ratio(out, n);
        dt_text_puts(out, " (");
        add_ms(out, n->own_s, n->median_own_s);
        dt_text_printf(out, " a step) over the last %d steps", steps);
        return;
    }
    dt_text_printf(out, "slow: %s ", pace_phase_name(n->phase));
    add_ratio(out, n);
    dt_text_puts(out, " (");
    add_ms(out, n->mean_s[n->phase], n->median_s[n->phase]);
    dt_text_puts(out, " a step;");
    for (int i = 0, shown = 0; i < PACE_PHASES; i++) {
        if (i != (int)n->phase) {
            dt_text_printf(out, "%s %s ", shown++ > 0 ? "," : "", pace_phase_name((enum pace_phase)i));
            add_ms(out, n->mean_s[i], n->median_s[i]);
        }
    }
    dt_text_printf(out, ") over the last %d steps; the others wait for it: %s", steps, advice_for(n->phase));
}

/* Ranks of one host, first to last, that share a line; n is the slowest of them. */
static void say(struct observer *o, const struct pace_news *n, const struct place *p, int first, int last)
{
    struct dt_text line;
    dt_text_init(&line);
    dt_text_printf(&line, "host %s ", p->host);
    if (first < last) {
        dt_text_printf(&line, "ranks %d-%d: ", first, last);
    } else if (p->pid != 0) {
        dt_text_printf(&line, "rank %d (local %d, pid %d): ", first, p->local_rank, p->pid);
    } else {
        dt_text_printf(&line, "rank %d: ", first);
    }
    describe(n, &line);
    observers_say(o->all, "train: %s", dt_text_str(&line));
    dt_text_clear(&line);
}

static void record(struct observer *o, const struct report *r, const struct pace_news *n, const struct place *p)
{
    struct dt_text fields;
    dt_text_init(&fields);
    dt_text_printf(&fields, "\"step\": %lld, \"round\": %d, \"rank\": %d, \"local_rank\": %d, \"pid\": %d, \"host\": ",
                   (long long)r->step, r->round, n->rank, p->local_rank, p->pid);
    dt_text_json(&fields, p->host, strlen(p->host));
    if (!n->over) {
        dt_text_printf(&fields, ", \"phase\": \"%s\"", pace_phase_name(n->phase));
    }
    for (int i = 0; i < PACE_PHASES; i++) {
        const char *name = pace_phase_name((enum pace_phase)i);
        dt_text_printf(&fields, ", \"%s_s\": %.6f, \"%s_median_s\": %.6f", name, n->mean_s[i], name, n->median_s[i]);
    }
    observers_event(o->all, n->over ? "slow_over" : "slow", dt_text_str(&fields));
    dt_text_clear(&fields);
}

static void judge(struct observer *o, const struct report *r)
{
    struct stragglers *x = o->state;
    const struct world *w = o->all->world;
    const struct pace_news *news = x->news;
    int count = pace_judge_add(&x->judge, r->pace, dt_now_s(), x->news), lines = 0;
    for (int i = 0; i < count;) {
        struct place p = place_of(w, news[i].rank), shown = p, next = p;
        int worst = i, from = i;
        do {
            record(o, r, &news[i], &next);
            if (news[i].ratio > news[worst].ratio) {
                worst = i;
                shown = next;
            }
            if (++i < count) {
                next = place_of(w, news[i].rank);
            }
        } while (i < count && news[i].rank == news[i - 1].rank + 1 && news[i].over == news[from].over &&
                 strcmp(next.host, p.host) == 0);
        if (++lines <= LINES) {
            say(o, &news[worst], &shown, news[from].rank, news[i - 1].rank);
        }
    }
    if (lines > LINES) {
        observers_say(o->all, "train: and %d more slow ranks or groups of ranks; they are in events.jsonl",
                      lines - LINES);
    }
}

static void stragglers_report(struct observer *o, const struct report *r, enum moment moment)
{
    if (moment == MOMENT_START) {
        tell_place(o->all->world);
    } else if (moment == MOMENT_STEP && r->pace != NULL && o->state != NULL) {
        judge(o, r);
    }
}

const struct observer_ops observer_stragglers = {
    .name = "stragglers", .open = stragglers_open, .report = stragglers_report, .close = stragglers_close};
