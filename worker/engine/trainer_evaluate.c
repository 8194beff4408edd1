/* Evaluation: each sample of a set once, whatever the number of ranks. Sums of the losses and counts of what
 * was right are added up over ranks; the last batch's rows beyond the set count for nothing. */
#include "worker/engine/text_bytes.h"
#include "worker/engine/trainer.h"

#include <math.h>
#include <string.h>

/* Copies what the tally needs to the host, where it is once the host has waited: the losses of a batch's
 * positions; otherwise its logits, which are in the last block's memory of the call, and its targets. */
static void take_results(struct trainer *t, const struct trainer_val *v, const struct batch *b)
{
    if (v->choices.n != NULL) {
        dt_stream_copy(t->world->compute, plan_at(&t->memory.plan, t->memory.eval_host),
                       plan_at(&t->memory.plan, t->memory.eval_rows),
                       (size_t)batch_elements(b->layout, batch_targets(b->layout)) * sizeof(double));
        return;
    }
    const struct block *last = &t->chain.blocks[t->chain.block_count - 1];
    const struct block_memory *m = &last->memory[last->logits_memory];
    int targets = batch_targets(b->layout);
    char *host = plan_at(&t->memory.plan, t->memory.eval_host);
    dt_stream_copy(t->world->compute, host, (char *)t->stepper.walk.scratch + m->offset, m->size_bytes);
    dt_stream_copy(t->world->compute, host + m->size_bytes, b->at[targets],
                   (size_t)batch_elements(b->layout, targets) * sizeof(int32_t));
}

/* The integers that an evaluation adds up on each rank beside the loss; null: there are none. */
static int64_t *tally_of(struct trainer *t, struct trainer_val *v, int64_t *size)
{
    const struct class_counts *classes = &t->stepper.classes;
    const struct number_sums *numbers = &t->stepper.numbers;
    const struct choice_scores *choices = &v->choices;
    *size = classes->n != NULL   ? class_counts_size(classes)
            : numbers->n != NULL ? number_sums_size(numbers)
                                 : choices->samples;
    return classes->n != NULL ? classes->n : numbers->n != NULL ? numbers->n : choices->n;
}

/* Adds what take_results has taken of the batch that begins at position `first`. */
static void add_results(struct trainer *t, struct trainer_val *v, const struct batch *b, int64_t first)
{
    const struct block *last = &t->chain.blocks[t->chain.block_count - 1];
    const char *host = plan_at(&t->memory.plan, t->memory.eval_host);
    if (v->choices.n != NULL) {
        choice_scores_add(&v->choices, (const double *)(const void *)host, b->samples, b->length, first, t->rank,
                          t->size);
        return;
    }
    const void *targets = host + last->memory[last->logits_memory].size_bytes;
    int field = batch_targets(b->layout);
    if (last->numbers) {
        number_sums_add(&t->stepper.numbers, host, t->chain.spec.type, targets, b->layout->field[field].type,
                        b->samples);
    } else if (last->several) {
        class_counts_add_several(&t->stepper.classes, host, t->chain.spec.type, targets, b->layout->field[field].type,
                                 b->samples);
    } else {
        class_counts_add(&t->stepper.classes, host, t->chain.spec.type, targets, batch_used(b, field));
    }
}

/* As a rule in one piece. */
int trainer_sum_counts(struct trainer *t, int64_t *tally, int64_t size, const char *what, struct dt_error *err)
{
    int64_t most = step_sums_room(&t->step_sums);
    for (int64_t at = 0, n; at < size; at += n) {
        n = size - at < most ? size - at : most;
        const int64_t *sums = step_sums_start_counts(&t->step_sums, tally + at, n);
        dt_event_record(t->stepper.done, t->world->compute);
        if (trainer_wait(t, t->stepper.done, what, err) != 0) {
            return -1;
        }
        memcpy(tally + at, sums, (size_t)n * sizeof *sums);
    }
    return 0;
}

/* Next tokens of a tokenizer whose file the data know: all ranks say the same of that. */
static bool asks_text_bytes(const struct trainer_val *v)
{
    const struct data_source *s = &v->data;
    return s->choices == NULL && s->tokenizer_hash != 0 && s->targets >= 0 && s->layout.field[s->targets].shifted;
}

/* Bytes of text that all ranks' targets stand for; 0: a rank does not know. */
static int sum_text_bytes(struct trainer *t, const struct trainer_val *v, int64_t *out, struct dt_error *err)
{
    int64_t sums[2] = {v->text_bytes, !text_bytes_known(v->bytes)};
    if (trainer_sum_counts(t, sums, 2, "evaluation", err) != 0) {
        return -1;
    }
    *out = sums[1] == 0 ? sums[0] : 0;
    return 0;
}

/* As many of all batches as the trial before a run or training.eval_batches takes; at least one. */
static int64_t batches_of(const struct trainer *t, int64_t all)
{
    double job = t->job->training.eval_batches;
    int64_t limit = t->run.eval_limit > 0 ? t->run.eval_limit : (int64_t)(job < 1 ? job * (double)all : job);
    limit = limit < 1 && job > 0 ? 1 : limit;
    return limit > 0 && limit < all ? limit : all;
}

int trainer_evaluate(struct trainer *t, struct trainer_val *v, struct trainer_evaluation *out, struct dt_error *err)
{
    int64_t tally_size, *tally = tally_of(t, v, &tally_size);
    struct world *w = t->world;
    int64_t batch_size = t->job->training.batch_size_per_gpu, samples = batch_size * t->size;
    const int64_t all = (v->order.sample_count + samples - 1) / samples, count = batches_of(t, all);
    int64_t valid = 0;
    int turn = 0;
    *out = (struct trainer_evaluation){.loss = NAN, .pearson = NAN};
    if (tally != NULL) {
        memset(tally, 0, (size_t)tally_size * sizeof *tally);
    }
    if (asks_text_bytes(v) && v->bytes == NULL) {
        v->bytes = text_bytes_open(&v->data, t->job->data.tokenizer, t->job->model.load);
    }
    v->text_bytes = 0;
    timeline_step(t->stepper.timeline, 0);
    strategy_send_buffers(&t->strategy, t->stepper.walk.buffers, t->chain.buffer_count);
    w->device->kernels->fill(w->compute, &(struct dt_fill_args){.x = t->stepper.loss_sum, .count = 1, .type = DT_F64});
    for (int64_t i = 0; i < count; i++) {
        const struct batch *batch = trainer_batch_eval(t, v, i, err);
        if (batch == NULL) {
            return -1;
        }
        valid += batch->weight;
        t->stepper.at = (struct trainer_at){0, 1};
        t->stepper.shape.length = batch->length;
        trainer_mark(t, DT_PHASE_EVAL, i);
        const struct walk_loss loss = {.sum = t->stepper.loss_sum,
                                       .row_loss = plan_at(&t->memory.plan, t->memory.eval_rows)};
        chain_forward(&t->stepper.walk, PASS_EVAL, batch, &loss);
        if (tally != NULL && !t->lost) {
            take_results(t, v, batch);
        }
        /* The sums so far, of all ranks: the last are the result. With them travel votes to
         * stop, or a stop would wait for the end of a long evaluation. The next batch lies where
         * this one does, so the host waits. */
        turn = step_sums_start_sum(&t->step_sums,
                                   &(struct step_sums_input){.loss_sum = t->stepper.loss_sum,
                                                             .valid_count = &valid,
                                                             .micro_steps = 1,
                                                             .votes = observers_vote(&t->observers) & VOTE_STOP});
        dt_event_record(t->stepper.done, w->compute);
        if (trainer_wait(t, t->stepper.done, "evaluation", err) != 0) {
            return -1;
        }
        if (step_sums_read(&t->step_sums, turn)->votes != 0 && i + 1 < count) {
            t->run.votes |= VOTE_STOP;
            return 0;
        }
        if (tally != NULL) {
            add_results(t, v, batch, i * samples);
        }
    }
    const struct step_sums_result *r = count > 0 ? step_sums_read(&t->step_sums, turn) : NULL;
    out->targets = r != NULL ? r->valid_count : 0;
    out->loss = out->targets > 0 ? r->loss : NAN;
    if (asks_text_bytes(v) && sum_text_bytes(t, v, &out->text_bytes, err) != 0) {
        return -1;
    }
    if (tally != NULL && trainer_sum_counts(t, tally, tally_size, "evaluation", err) != 0) {
        return -1;
    }
    if (t->stepper.classes.n != NULL) {
        out->classes = class_counts_report(&t->stepper.classes, v->f1);
    } else if (v->choices.n != NULL) {
        out->choices = choice_scores_report(&v->choices, count == all ? v->order.sample_count : count * samples);
    } else if (tally != NULL) {
        out->pearson = number_sums_pearson(&t->stepper.numbers);
    }
    return 0;
}
