/* Words of the all_reduce: [loss limbs][norm limbs][valid][stop][one per rank: losses that are not finite][riders of each rank, if any].
 * The two host parts run as calls of the compute stream, so nothing waits in between. */
#include "worker/clip.h"

#include "kernels/exact.h"

#include <math.h>
#include <string.h>

enum { AT_LOSS = 0, AT_NORM = DT_EXACT_LIMBS, AT_VALID = 2 * DT_EXACT_LIMBS, AT_STOP, AT_RANKS };

static int64_t word_count(const struct strategy *s, bool riders)
{
    return AT_RANKS + s->size * (riders ? 1 + CLIP_RIDERS : 1);
}

void clip_plan(struct clip *c, struct strategy *s, struct plan *p)
{
    memset(c, 0, sizeof *c);
    c->strategy = s;
    c->piece = plan_add(p, PLAN_COMMUNICATION, PLAN_PEERS, (size_t)word_count(s, true) * sizeof(int64_t));
    c->piece_result = plan_add(p, PLAN_COMMUNICATION, PLAN_LOCAL, sizeof *c->result);
}

void clip_open(struct clip *c, const struct plan *p)
{
    c->words = plan_at(p, c->piece);
    c->result = plan_at(p, c->piece_result);
}

/* Adds what this rank knows to the words. */
static int fill_words(struct dt_stream *stream, void *args, struct dt_error *err)
{
    (void)stream;
    (void)err;
    struct clip *c = *(struct clip **)args;
    const struct clip_input *in = &c->input;
    const struct strategy *s = c->strategy;
    for (int64_t j = 0; j < in->micro_steps; j++) {
        double loss = in->loss_sum[j];
        if (in->normalization == LOSS_LOCAL_MEAN) {
            loss = in->valid_count[j] > 0 ? loss / (double)in->valid_count[j] : 0;
        }
        if (!isfinite(loss)) {
            c->words[AT_RANKS + s->world->rank]++;
        }
        dt_exact_add(c->words + AT_LOSS, loss < 0 ? 0 : loss); /* rounding may put a loss of zero just below it */
        c->words[AT_VALID] += in->valid_count[j];
    }
    c->words[AT_STOP] += in->stop;
    for (int i = 0; in->riders && i < CLIP_RIDERS; i++) {
        c->words[word_count(s, false) + s->world->rank * CLIP_RIDERS + i] = in->riders[i];
    }
    return 0;
}

/* Computes the result from the sums of all ranks. */
static int finish(struct dt_stream *stream, void *args, struct dt_error *err)
{
    (void)stream;
    (void)err;
    struct clip *c = *(struct clip **)args;
    const struct clip_input *in = &c->input;
    const struct strategy *s = c->strategy;
    struct clip_result *r = c->result;
    r->valid_count = c->words[AT_VALID];
    r->stop_count = c->words[AT_STOP];
    r->bad_rank = -1;
    for (int i = s->size - 1; i >= 0; i--) {
        if (c->words[AT_RANKS + i] != 0) {
            r->bad_rank = i;
        }
    }
    double scale = 1.0 / (double)(s->size * in->micro_steps);
    if (in->normalization == LOSS_GLOBAL_TOKENS) {
        scale = r->valid_count > 0 ? 1.0 / (double)r->valid_count : 0;
    }
    r->loss = dt_exact_get(c->words + AT_LOSS) * scale;
    r->norm_finite = dt_exact_finite(c->words + AT_NORM);
    r->grad_norm = sqrt(dt_exact_get(c->words + AT_NORM)) * scale;
    r->factor = scale;
    if (in->max_norm > 0) {
        r->factor = scale * fmin(1, in->max_norm / (r->grad_norm + 1e-6));
    }
    return 0;
}

static void clear(struct clip *c)
{
    struct world *w = c->strategy->world;
    w->device->kernels->fill(w->compute, &(struct dt_fill_args){.x = c->words, .count = word_count(c->strategy, c->input.riders), .type = DT_I64});
}

static void sum_and_finish(struct clip *c)
{
    struct world *w = c->strategy->world;
    struct dt_stream *s = w->compute;
    dt_stream_call(s, fill_words, &c, sizeof c);
    if (!c->strategy->alone) { /* collectives of a communicator stay on one stream */
        dt_event_record(c->strategy->demand, s);
        dt_event_wait(c->strategy->demand, w->communication);
        dt_comm_start(w->comm,
                      &(struct dt_collective){.kind = DT_ALL_REDUCE,
                                              .op = DT_SUM,
                                              .name = "step sums",
                                              .in = c->words,
                                              .out = c->words,
                                              .count = word_count(c->strategy, c->input.riders),
                                              .type = DT_I64},
                      w->communication);
        strategy_land(c->strategy);
    }
    dt_stream_call(s, finish, &c, sizeof c);
}

void clip_start(struct clip *c, const struct clip_input *input)
{
    struct strategy *s = c->strategy;
    struct world *w = s->world;
    c->input = *input;
    clear(c);
    for (int u = 0; u < s->chain->unit_count && strategy_counts(s); u++) {
        int64_t owned, share, count;
        strategy_owned(s, u, &owned, &count);
        strategy_share(s, u, &share, &count);
        const char *g = (const char *)s->grads->slice(s, u) + (size_t)(share - owned) * s->type_size;
        w->device->kernels->norm_sum(w->compute, &(struct dt_norm_sum_args){.limbs = c->words + AT_NORM, .x = g, .count = count, .type = s->type});
    }
    sum_and_finish(c);
}

const int64_t *clip_riders(const struct clip *c)
{
    return c->words + word_count(c->strategy, false);
}

void clip_start_sum(struct clip *c, const struct clip_input *input)
{
    c->input = *input;
    c->input.normalization = LOSS_GLOBAL_TOKENS;
    clear(c);
    sum_and_finish(c);
}
