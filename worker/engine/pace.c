/* The medians are taken per block, so a step that is longer for all (longer sequences, a busy
 * machine) makes nobody slow. */
#include "worker/engine/pace.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLOW_RATIO 1.5
#define CALM_RATIO 1.25 /* below it, it is not slow; in between it stays what it was */
#define SLOW_S 0.005    /* a step: less is the scheduler's noise */
#define SLOW_SHARE 0.1  /* of the step: less is worth nobody's time */
#define AGAIN_RATIO 2.0 /* so much worse or better is news */
#define AGAIN_S 60.0    /* but not more often than this */
#define REMIND_S 3600.0

const char *pace_phase_name(enum pace_phase phase)
{
    switch (phase) {
    case PACE_DATA:
        return "data";
    case PACE_COMPUTE:
        return "compute";
    case PACE_COMMUNICATION:
        return "communication";
    case PACE_PHASES:
        break;
    }
    return "unknown";
}

/* ---- one rank's clock ---- */

void pace_skip(struct pace_clock *c, double now_s, double waited_s)
{
    c->from_s = now_s;
    c->waited_s = waited_s;
}

bool pace_step(struct pace_clock *c, double begin_s, double data_s, double now_s, double waited_s)
{
    double from_s = c->from_s > 0 ? c->from_s : begin_s, peers_s = waited_s - c->waited_s;
    c->sums_s[PACE_DATA] += data_s;
    c->sums_s[PACE_COMMUNICATION] += peers_s;
    c->sums_s[PACE_COMPUTE] += fmax(0, now_s - from_s - data_s - peers_s);
    pace_skip(c, now_s, waited_s);
    if (++c->step_count < PACE_BLOCK) {
        return false;
    }
    for (int i = 0; i < PACE_PHASES; i++) {
        c->block_ns[i] = (int64_t)(c->sums_s[i] * 1e9);
        c->sums_s[i] = 0;
    }
    c->step_count = 0;
    return true;
}

/* ---- the judge ---- */

void pace_judge_open(struct pace_judge *j, int size)
{
    *j = (struct pace_judge){.size = size};
    j->times = dt_alloc((size_t)size * PACE_BLOCKS * sizeof *j->times);
    j->scratch = dt_alloc((size_t)size * sizeof *j->scratch);
    j->ranks = dt_alloc((size_t)size * sizeof *j->ranks);
}

void pace_judge_close(struct pace_judge *j)
{
    free(j->times);
    free(j->scratch);
    free(j->ranks);
    memset(j, 0, sizeof *j);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The lower median of j->scratch, which it sorts. */
static double median(struct pace_judge *j)
{
    qsort(j->scratch, (size_t)j->size, sizeof *j->scratch, ascending);
    return j->scratch[(j->size - 1) / 2];
}

static const int64_t *times_of(const struct pace_judge *j, int block, int rank)
{
    return j->times[block * j->size + rank];
}

static double own_s(const struct pace_judge *j, int block, int rank)
{
    const int64_t *ns = times_of(j, block, rank);
    return (double)(ns[PACE_DATA] + ns[PACE_COMPUTE]) * 1e-9;
}

/* at one rank, over the window; seconds of all its steps */
struct look {
    double own_s, median_s;             /* all blocks */
    double worst_own_s, worst_median_s; /* of the block in which it lost most */
    double total_s;
};

static struct look look_at(const struct pace_judge *j, int rank)
{
    struct look x = {.worst_own_s = -INFINITY};
    for (int b = 0; b < PACE_BLOCKS; b++) {
        double own = own_s(j, b, rank);
        x.own_s += own;
        x.median_s += j->medians[b];
        x.total_s += own + (double)times_of(j, b, rank)[PACE_COMMUNICATION] * 1e-9;
        if (own - j->medians[b] > x.worst_own_s - x.worst_median_s) {
            x.worst_own_s = own;
            x.worst_median_s = j->medians[b];
        }
    }
    return x;
}

/* Slow also without its worst block. */
static bool is_slow(const struct look *x)
{
    double own = x->own_s - x->worst_own_s, measure = x->median_s - x->worst_median_s, lost = own - measure;
    double steps = PACE_BLOCK * (PACE_BLOCKS - 1);
    return own >= SLOW_RATIO * measure && lost >= SLOW_S * steps &&
           lost >= SLOW_SHARE * x->total_s * (PACE_BLOCKS - 1) / PACE_BLOCKS;
}

static bool is_calm(const struct look *x)
{
    return x->own_s < CALM_RATIO * x->median_s || x->own_s - x->median_s < SLOW_S / 2 * PACE_BLOCK * PACE_BLOCKS;
}

static double mean_s(const struct pace_judge *j, int rank, int phase)
{
    int64_t ns = 0;
    for (int b = 0; b < PACE_BLOCKS; b++) {
        ns += times_of(j, b, rank)[phase];
    }
    return (double)ns * 1e-9 / (PACE_BLOCK * PACE_BLOCKS);
}

static void describe(struct pace_judge *j, const struct look *x, int rank, struct pace_news *out)
{
    *out = (struct pace_news){.rank = rank,
                              .own_s = x->own_s / (PACE_BLOCK * PACE_BLOCKS),
                              .median_own_s = x->median_s / (PACE_BLOCK * PACE_BLOCKS)};
    for (int phase = 0; phase < PACE_PHASES; phase++) {
        for (int r = 0; r < j->size; r++) {
            j->scratch[r] = mean_s(j, r, phase);
        }
        out->mean_s[phase] = j->scratch[rank];
        out->median_s[phase] = median(j);
    }
    double data_s = out->mean_s[PACE_DATA] - out->median_s[PACE_DATA],
           compute_s = out->mean_s[PACE_COMPUTE] - out->median_s[PACE_COMPUTE];
    out->phase = data_s > compute_s ? PACE_DATA : PACE_COMPUTE;
    out->ratio = out->mean_s[out->phase] / out->median_s[out->phase];
}

/* Whether a rank that is slow, and was said to be, is to be said so again. */
static bool is_news(const struct pace_state *s, const struct pace_news *n, double now_s)
{
    double ratio = n->own_s / n->median_own_s;
    bool changed = n->phase != s->phase || ratio >= AGAIN_RATIO * s->ratio || ratio <= s->ratio / AGAIN_RATIO;
    return now_s - s->said_s >= (changed ? AGAIN_S : REMIND_S);
}

/* True: there is something to say. */
static bool judge(struct pace_judge *j, int rank, double now_s, struct pace_news *out)
{
    struct pace_state *s = &j->ranks[rank];
    struct look x = look_at(j, rank);
    if (is_slow(&x)) {
        s->calm = 0;
        describe(j, &x, rank, out);
        if (s->slow && !is_news(s, out, now_s)) {
            return false;
        }
        *s = (struct pace_state){
            .slow = true, .phase = out->phase, .ratio = out->own_s / out->median_own_s, .said_s = now_s};
        return true;
    }
    s->calm = is_calm(&x) ? s->calm + 1 : 0;
    if (!s->slow || s->calm < PACE_BLOCKS) {
        return false;
    }
    *s = (struct pace_state){.slow = false};
    describe(j, &x, rank, out);
    out->over = true;
    out->ratio = out->own_s / out->median_own_s;
    return true;
}

int pace_judge_add(struct pace_judge *j, const int64_t *table, double now_s, struct pace_news *news)
{
    int count = 0, block = (int)(j->block_count++ % PACE_BLOCKS);
    memcpy(j->times[block * j->size], table, (size_t)j->size * sizeof *j->times);
    for (int r = 0; r < j->size; r++) {
        j->scratch[r] = own_s(j, block, r);
    }
    j->medians[block] = median(j);
    for (int r = 0; r < j->size && j->block_count >= PACE_BLOCKS; r++) {
        count += judge(j, r, now_s, &news[count]);
    }
    return count;
}
