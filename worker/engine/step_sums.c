/* Words of the all_reduce: [norm limbs][loss limbs][valid][votes][one per rank: losses that are
 * not finite][riders of each rank, if any]. The norm's are added to from the step's first
 * reduction on; what the host says goes behind them. */
#include "worker/engine/step_sums.h"

#include "kernels/exact.h"

#include <math.h>
#include <string.h>

enum { AT_NORM = 0, AT_LOSS = DT_EXACT_LIMBS, AT_VALID = 2 * DT_EXACT_LIMBS, AT_VOTES, AT_RANKS };

/* Each vote has its own bits of the word, in which ranks are counted: their sum over ranks never
 * reaches the next one's. */
enum { VOTES = 3, VOTE_BITS = 21 };

static int64_t count_votes(unsigned votes)
{
    int64_t word = 0;
    for (int i = 0; i < VOTES; i++) {
        word |= (int64_t)(votes >> i & 1) << i * VOTE_BITS;
    }
    return word;
}

static unsigned votes_of_any(int64_t word)
{
    unsigned votes = 0;
    for (int i = 0; i < VOTES; i++) {
        votes |= (unsigned)((word >> i * VOTE_BITS & ((1 << VOTE_BITS) - 1)) != 0) << i;
    }
    return votes;
}

static int64_t word_count(const struct strategy *s, bool riders)
{
    return AT_RANKS + s->size * (riders ? 1 + STEP_SUMS_RIDERS : 1);
}

void step_sums_plan(struct step_sums *c, struct strategy *s, int64_t micro_steps, struct plan *p)
{
    memset(c, 0, sizeof *c);
    c->strategy = s;
    c->micro_steps = micro_steps;
    size_t words = (size_t)word_count(s, true) * sizeof(int64_t), divisors = (size_t)micro_steps * sizeof(int64_t);
    c->piece_words = plan_add(p, PLAN_COMMUNICATION, PLAN_PEERS, words);
    size_t local = divisors + sizeof(double) + sizeof(int64_t);
    local += s->hook.row != NULL && s->hook.row->local ? DT_EXACT_LIMBS * sizeof(int64_t) : 0;
    c->piece_local = plan_add(p, PLAN_COMMUNICATION, PLAN_LOCAL, local);
    c->piece_said = plan_add(p, PLAN_STAGING, PLAN_PINNED, 2 * (words + divisors));
    c->piece_heard = plan_add(p, PLAN_STAGING, PLAN_PINNED, 2 * words);
}

void step_sums_open(struct step_sums *c, const struct plan *p)
{
    c->words = plan_at(p, c->piece_words);
    c->divisors = plan_at(p, c->piece_local);
    c->factor = (double *)(void *)(c->divisors + c->micro_steps);
    c->overflow = (int32_t *)(void *)(c->factor + 1);
    c->apart = (int64_t *)(void *)(c->factor + 2);
    int64_t *said = plan_at(p, c->piece_said), *heard = plan_at(p, c->piece_heard),
            words = word_count(c->strategy, true);
    for (int i = 0; i < 2; i++) {
        c->turns[i].said = said + i * (words + c->micro_steps);
        c->turns[i].heard = heard + i * words;
    }
}

/* What this rank's host knows, and zeros for what kernels add to. The stream has read what was
 * said two turns before: the host has waited for that one. */
static void say(struct step_sums *c, const struct step_sums_input *in)
{
    const struct strategy *s = c->strategy;
    struct dt_stream *stream = s->world->compute;
    int64_t words = word_count(s, in->riders != NULL);
    c->turn = 1 - c->turn;
    struct step_sums_turn *x = &c->turns[c->turn];
    x->input = *in;
    x->share = s->gradient_share;
    x->apart = s->hook.apart;
    memset(x->said, 0, (size_t)words * sizeof *x->said);
    memcpy(x->said + words, in->valid_count, (size_t)in->micro_steps * sizeof *x->said);
    for (int64_t j = 0; j < in->micro_steps; j++) {
        x->said[AT_VALID] += in->valid_count[j];
    }
    x->said[AT_VOTES] = count_votes(in->votes);
    if (in->riders != NULL) {
        memcpy(x->said + word_count(s, false) + s->world->rank * STEP_SUMS_RIDERS, in->riders,
               STEP_SUMS_RIDERS * sizeof *in->riders);
    }
    dt_stream_copy(stream, c->words + AT_LOSS, x->said + AT_LOSS, (size_t)(words - AT_LOSS) * sizeof *x->said);
    dt_stream_copy(stream, c->divisors, x->said + words, (size_t)in->micro_steps * sizeof *x->said);
}

static double ranks_and_micro_steps(const struct step_sums *c, const struct step_sums_input *in)
{
    return (double)(in->active > 0 ? in->active : c->strategy->size * in->micro_steps);
}

/* What reduced gradients are multiplied by, but for the valid targets of GLOBAL_TOKENS. */
static double gradient_scale(const struct step_sums *c, const struct step_sums_turn *x)
{
    const struct step_sums_input *in = &x->input;
    double mean = x->share / (in->normalization == LOSS_GLOBAL_TOKENS ? 1.0 : ranks_and_micro_steps(c, in));
    return in->loss_scale > 0 ? mean / in->loss_scale : mean;
}

/* Sums the first `words` words over all ranks, and copies them to what the turn has heard. */
static void reduce_words(struct step_sums *c, int64_t words)
{
    struct strategy *s = c->strategy;
    struct world *w = s->world;
    if (!s->alone) { /* collectives of a communicator stay on one stream */
        dt_event_record(s->demand, w->compute);
        dt_event_wait(s->demand, w->communication);
        int span = timeline_begin(s->timeline, TIMELINE_COMMUNICATION, w->communication, "step sums", NULL);
        dt_comm_start(w->comm,
                      &(struct dt_collective){.kind = DT_ALL_REDUCE,
                                              .op = DT_SUM,
                                              .name = "step sums",
                                              .in = c->words,
                                              .out = c->words,
                                              .count = words,
                                              .type = DT_I64},
                      w->communication);
        timeline_end(s->timeline, span, w->communication);
        strategy_land(s);
    }
    dt_stream_copy(w->compute, c->turns[c->turn].heard, c->words, (size_t)words * sizeof *c->words);
}

static void sum_over_ranks(struct step_sums *c)
{
    struct strategy *s = c->strategy;
    struct world *w = s->world;
    const struct step_sums_input *in = &c->turns[c->turn].input;
    int64_t words = word_count(s, in->riders != NULL);
    bool local_mean = in->normalization == LOSS_LOCAL_MEAN;
    w->device->kernels->exact_sum(w->compute, &(struct dt_exact_sum_args){.limbs = c->words + AT_LOSS,
                                                                          .bad_count = c->words + AT_RANKS + w->rank,
                                                                          .x = in->loss_sum,
                                                                          .divisors = local_mean ? c->divisors : NULL,
                                                                          .count = in->micro_steps});
    reduce_words(c, words);
}

void step_sums_begin(struct step_sums *c)
{
    struct world *w = c->strategy->world;
    w->device->kernels->fill(w->compute,
                             &(struct dt_fill_args){.x = c->words + AT_NORM, .count = DT_EXACT_LIMBS, .type = DT_I64});
}

void step_sums_add(struct step_sums *c, struct unit_range units)
{
    struct strategy *s = c->strategy;
    bool apart = s->hook.apart;
    for (int u = units.first; u < units.first + units.count && (apart || strategy_counts(s)); u++) {
        if (!strategy_trains(s, u)) {
            continue;
        }
        int64_t owned, share, count;
        strategy_owned(s, u, &owned, &count);
        if (apart) { /* all of them are this rank's own */
            share = owned;
        } else {
            strategy_share(s, u, &share, &count);
        }
        struct dt_stream *stream = strategy_sums(s);
        struct home_part g = s->grads->slice(s, u);
        size_t size = dt_dtype_size(s->precision.sums), size_bytes = (size_t)count * size;
        g.at += (size_t)(share - owned) * size;
        s->world->device->kernels->norm_sum(
            stream, &(struct dt_norm_sum_args){.limbs = c->words + AT_NORM,
                                               .x = home_bring(g, size_bytes, HOME_READ, stream),
                                               .count = count,
                                               .type = s->precision.sums});
        home_back(g, size_bytes, stream);
    }
}

int step_sums_start(struct step_sums *c, const struct step_sums_input *input)
{
    struct world *w = c->strategy->world;
    say(c, input);
    const struct step_sums_turn *x = &c->turns[c->turn];
    if (x->apart) {
        dt_stream_copy(w->compute, c->apart, c->words + AT_NORM, DT_EXACT_LIMBS * sizeof *c->apart);
    }
    sum_over_ranks(c);
    struct dt_norm_finish_args all = {.factor = c->factor,
                                      .nonfinite = c->overflow,
                                      .limbs = c->words + AT_NORM,
                                      .denominator =
                                          input->normalization == LOSS_GLOBAL_TOKENS ? c->words + AT_VALID : NULL,
                                      .scale = gradient_scale(c, x),
                                      .max_norm = input->max_norm};
    w->device->kernels->norm_finish(w->compute, &all);
    if (x->apart) { /* clipped by its own norm, and skipped by all or none */
        all.limbs = c->apart;
        all.nonfinite = NULL;
        w->device->kernels->norm_finish(w->compute, &all);
    }
    return c->turn;
}

int step_sums_start_sum(struct step_sums *c, const struct step_sums_input *input)
{
    struct step_sums_input in = *input;
    in.normalization = LOSS_GLOBAL_TOKENS;
    step_sums_begin(c); /* or what a step left there would grow with each sum over ranks */
    say(c, &in);
    sum_over_ranks(c);
    return c->turn;
}

int64_t step_sums_room(const struct step_sums *c)
{
    return word_count(c->strategy, true);
}

const int64_t *step_sums_start_counts(struct step_sums *c, const int64_t *counts, int64_t count)
{
    c->turn = 1 - c->turn;
    struct step_sums_turn *x = &c->turns[c->turn];
    memcpy(x->said, counts, (size_t)count * sizeof *counts);
    dt_stream_copy(c->strategy->world->compute, c->words, x->said, (size_t)count * sizeof *counts);
    reduce_words(c, count);
    return x->heard;
}

const struct step_sums_result *step_sums_read(struct step_sums *c, int turn)
{
    struct step_sums_turn *x = &c->turns[turn];
    const struct step_sums_input *in = &x->input;
    struct step_sums_result *r = &x->result;
    *r = (struct step_sums_result){
        .valid_count = x->heard[AT_VALID], .votes = votes_of_any(x->heard[AT_VOTES]), .bad_rank = -1};
    for (int i = c->strategy->size - 1; i >= 0; i--) {
        r->bad_rank = x->heard[AT_RANKS + i] != 0 ? i : r->bad_rank;
    }
    double scale = 1.0 / ranks_and_micro_steps(c, in), gradients = gradient_scale(c, x);
    if (in->normalization == LOSS_GLOBAL_TOKENS) {
        scale = r->valid_count > 0 ? 1.0 / (double)r->valid_count : 0;
        gradients = r->valid_count > 0 ? gradients / (double)r->valid_count : 0;
    }
    r->loss = dt_exact_get(x->heard + AT_LOSS) * scale;
    r->norm_finite = dt_exact_finite(x->heard + AT_NORM);
    r->grad_norm = sqrt(dt_exact_get(x->heard + AT_NORM) / (x->apart ? c->strategy->size : 1)) * gradients;
    return r;
}

const int64_t *step_sums_riders(const struct step_sums *c, int turn)
{
    return c->turns[turn].heard + word_count(c->strategy, false);
}
