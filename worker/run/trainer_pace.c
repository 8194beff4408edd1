/* The straggler report: what the judge of pace.h finds is said by rank 0, with the host and
 * process that it is about. Where a rank is, it has told the store once; nobody asks before
 * there is something to say. */
#include "base/clock.h"
#include "base/text.h"
#include "worker/run/trainer.h"

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

void trainer_pace_open(struct trainer *t)
{
    struct dt_error ignored; /* a lost store shows where it matters */
    char host[128] = "", key[32];
    t->pace = (struct pace_clock){0};
    if (t->size == 1) {
        return;
    }
    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(key, sizeof key, "where/%d", t->rank);
    char *value = dt_format("%d %d %s", t->world->local_rank, (int)getpid(), host);
    (void)dt_store_set(t->world->store, key, value, strlen(value), &ignored);
    free(value);
    if (t->rank == 0) {
        pace_judge_open(&t->judge, t->size);
        t->pace_news = dt_alloc((size_t)t->size * sizeof *t->pace_news);
    }
}

void trainer_pace_close(struct trainer *t)
{
    pace_judge_close(&t->judge);
    free(t->pace_news);
    t->pace_news = NULL;
}

void trainer_pace_keep(struct trainer *t, double begin_s, double data_s, double now_s)
{
    struct dt_page *page = t->world->page;
    bool complete = pace_step(&t->pace, begin_s, data_s, now_s, dt_stream_waited_s(t->world->compute));
    t->pace_due = t->pace_due || (complete && t->size > 1); /* one rank is slower than nobody */
    if (complete) {
        atomic_store(&page->data_s, (double)t->pace.block_ns[PACE_DATA] * 1e-9 / PACE_BLOCK);
        atomic_store(&page->compute_s, (double)t->pace.block_ns[PACE_COMPUTE] * 1e-9 / PACE_BLOCK);
        atomic_store(&page->communication_s, (double)t->pace.block_ns[PACE_COMMUNICATION] * 1e-9 / PACE_BLOCK);
    }
}

static struct place place_of(struct trainer *t, int rank)
{
    struct place p = {.host = "?"};
    struct dt_error ignored;
    struct dt_text value;
    char key[32];
    const char *keys[] = {key};
    bool there = false;
    (void)snprintf(key, sizeof key, "where/%d", rank);
    dt_text_init(&value);
    if (dt_store_check(t->world->store, keys, 1, &there, &ignored) == 0 && there &&
        dt_store_get(t->world->store, key, &value, ASK_S, &ignored) == 0) {
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
static void say(struct trainer *t, const struct pace_news *n, const struct place *p, int first, int last)
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
    metrics_say(&t->metrics, "train: %s", dt_text_str(&line));
    dt_text_clear(&line);
}

static void record(struct trainer *t, const struct pace_news *n, const struct place *p)
{
    struct dt_text fields;
    dt_text_init(&fields);
    dt_text_printf(&fields, "\"step\": %lld, \"round\": %d, \"rank\": %d, \"local_rank\": %d, \"pid\": %d, \"host\": ",
                   (long long)t->step, t->world->round, n->rank, p->local_rank, p->pid);
    dt_text_json(&fields, p->host, strlen(p->host));
    if (!n->over) {
        dt_text_printf(&fields, ", \"phase\": \"%s\"", pace_phase_name(n->phase));
    }
    for (int i = 0; i < PACE_PHASES; i++) {
        const char *name = pace_phase_name((enum pace_phase)i);
        dt_text_printf(&fields, ", \"%s_s\": %.6f, \"%s_median_s\": %.6f", name, n->mean_s[i], name, n->median_s[i]);
    }
    metrics_event(&t->metrics, n->over ? "slow_over" : "slow", dt_text_str(&fields));
    dt_text_clear(&fields);
}

void trainer_pace(struct trainer *t, const int64_t *table)
{
    if (table == NULL || t->rank != 0) {
        return;
    }
    const struct pace_news *news = t->pace_news;
    int count = pace_judge_add(&t->judge, table, dt_now_s(), t->pace_news), lines = 0;
    for (int i = 0; i < count;) {
        struct place p = place_of(t, news[i].rank), shown = p, next = p;
        int worst = i, from = i;
        do {
            record(t, &news[i], &next);
            if (news[i].ratio > news[worst].ratio) {
                worst = i;
                shown = next;
            }
            if (++i < count) {
                next = place_of(t, news[i].rank);
            }
        } while (i < count && news[i].rank == news[i - 1].rank + 1 && news[i].over == news[from].over &&
                 strcmp(next.host, p.host) == 0);
        if (++lines <= LINES) {
            say(t, &news[worst], &shown, news[from].rank, news[i - 1].rank);
        }
    }
    if (lines > LINES) {
        metrics_say(&t->metrics, "train: and %d more slow ranks or groups of ranks; they are in events.jsonl",
                    lines - LINES);
    }
}
