/* Samples during training (logging.sample_every_n_steps): rank 0 continues the job's prompts on its CPU in
 * fp32, as train --generate does from a checkpoint of the same step. All ranks send it the weights that
 * they would save, unit by unit, and wait for it. No number of the training is touched. */
#include "worker/run/trainer.h"

#include "kernels/kernels.h"
#include "worker/engine/pinned_window.h"
#include "worker/run/prompt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Elements of a unit that all ranks together send at a time, about. */
enum { GATHERED = 1 << 20, ALIGNED = 64 };

struct trainer_samples {
    struct model_source source;
    struct generate_options options;
    struct dt_text ignored; /* keys of generation_config.json that are not computed */
    struct prompts prompts;
    struct generator *generator; /* rank 0; else null */
    int memory, gathered;        /* pieces of the plan: the generator's memory; room for one gather */
    int64_t portion;             /* elements that each rank sends at a time; 0: rank 0 has all of them */
};

/* ---- before the run ---- */

/* Shows a pulse for each new id. False: this rank is told to stop. */
static bool tell(void *context, int64_t row, int32_t id)
{
    const struct trainer *t = context;
    (void)row;
    (void)id;
    dt_page_pulse(t->world->page);
    return atomic_load(&t->world->page->order) == DT_ORDER_NONE;
}

static int64_t portion_of(const struct trainer *t)
{
    int64_t most = 0, room = GATHERED / t->shards / ALIGNED * ALIGNED;
    for (int u = 0; u < t->chain.unit_count; u++) {
        int64_t share = t->chain.units[u].numel / t->shards;
        most = share > most ? share : most;
    }
    room = room > ALIGNED ? room : ALIGNED;
    return t->strategy.optimizer == PART_WHOLE ? 0 : most < room ? most : room;
}

/* Settings, prompts, and the generator that is to continue them. */
static int prepare_generator(struct trainer *t, struct trainer_samples *s, struct dt_error *err)
{
    const struct job_generation *job = &t->job->generation;
    if (model_source_of_job(&s->source, t->job, err) != 0 ||
        generate_settings(&s->source, job, &s->options, &s->ignored, err) != 0) {
        return dt_wrap(err, "model.load");
    }
    if (trainer_document_end(t) >= 0) {
        s->options.stops[0] = (int32_t)trainer_document_end(t);
        s->options.stop_count = 1;
    }
    s->options.threads = (int)t->job->training.threads;
    s->options.tell = tell;
    s->options.context = t;
    if (prompts_add_job(&s->prompts, &s->source, job, err) != 0) {
        return -1;
    }
    return generator_prepare(&s->generator, &s->source, &s->options, s->prompts.rows, s->prompts.count,
                             &t->chain.spec.wrap, t->shards, err);
}

int trainer_plan_samples(struct trainer *t, struct dt_error *err)
{
    const struct job *job = t->job;
    if (job->logging.sample_every_n_steps == 0) {
        return 0;
    }
    int targets = batch_targets(&t->chain.batch);
    if (job->model.ops->positions == NULL || targets < 0 || !t->chain.batch.field[targets].shifted) {
        return dt_fail(err, DT_INVALID,
                       "logging.sample_every_n_steps: the model is a %s, which writes no text; remove it",
                       job->model.ops->name);
    }
    if (job->generation.prompt.count + job->generation.prompt_ids.count == 0) {
        return dt_fail(err, DT_INVALID,
                       "logging.sample_every_n_steps: no prompt; give generation.prompt or generation.prompt_ids");
    }
    struct trainer_samples *s = t->samples = dt_alloc(sizeof *s);
    dt_text_init(&s->ignored);
    s->portion = portion_of(t);
    const struct precision *p = &t->strategy.precision;
    size_t size = dt_dtype_size(p->masters), low = dt_dtype_size(p->compute); /* of what is frozen */
    s->gathered = plan_add(&t->memory.plan, PLAN_COMMUNICATION, PLAN_PEERS,
                           (size_t)(s->portion * t->shards) * (size > low ? size : low));
    if (t->rank != 0) {
        return 0;
    }
    if (prepare_generator(t, s, err) != 0) {
        return dt_wrap(err, "logging.sample_every_n_steps");
    }
    t->memory.samples_bytes = generator_bytes(s->generator);
    s->memory = plan_add(&t->memory.plan, PLAN_STAGING, PLAN_PINNED, t->memory.samples_bytes);
    return 0;
}

int trainer_open_samples(struct trainer *t, struct dt_error *err)
{
    struct trainer_samples *s = t->samples;
    if (s == NULL || s->generator == NULL) {
        return 0;
    }
    if (s->ignored.size > 0 && t->world->round <= 1) {
        observers_say(&t->observers, "train: samples: generation_config.json: not computed: %s",
                      dt_text_str(&s->ignored));
    }
    return generator_open(s->generator, plan_at(&t->memory.plan, s->memory), err);
}

void trainer_close_samples(struct trainer *t)
{
    struct trainer_samples *s = t->samples;
    if (s != NULL) {
        generator_close(s->generator);
        prompts_clear(&s->prompts);
        model_source_close(&s->source);
        dt_text_clear(&s->ignored);
        free(s);
        t->samples = NULL;
    }
}

/* ---- weights ---- */

/* Elements [at, at + count) of this rank's part of a unit, or with `portion` of each rank's part, the parts
 * one behind the other: on the device, once the gathering stream has come that far. */
static const char *gather(struct trainer *t, int unit, int64_t at, int64_t count, enum dt_dtype type)
{
    struct trainer_samples *s = t->samples;
    struct dt_stream *stream = t->world->gathering;
    size_t size_bytes = (size_t)count * dt_dtype_size(type);
    struct home_part mine = optimizer_weights(&t->optimizer, unit, at);
    const char *here = home_bring(mine, size_bytes, HOME_READ, stream);
    if (s->portion > 0) {
        char *all = plan_at(&t->memory.plan, s->gathered), *own = all + (size_t)t->strategy.shard_rank * size_bytes;
        dt_stream_copy(stream, own, here, size_bytes);
        strategy_gather(&t->strategy, unit, t->world->gather, own, all, count, type, "gather weights for samples");
        here = all;
    }
    home_back(mine, size_bytes, stream);
    return here;
}

/* The unit's weights as a checkpoint would have them, as F32; `to` is null on all ranks but 0. */
static int collect(struct trainer *t, struct pinned_window *window, int unit, float *to, struct dt_error *err)
{
    const struct precision *p = &t->strategy.precision;
    const enum dt_dtype type = strategy_trains(&t->strategy, unit) ? p->masters : p->compute;
    const int64_t size = (int64_t)dt_dtype_size(type), portion = t->samples->portion;
    const int parts = portion > 0 ? t->shards : 1;
    int64_t first, owned, most = portion > 0 ? portion : PINNED_WINDOW_BYTES / size;
    strategy_owned(&t->strategy, unit, &first, &owned);
    for (int64_t at = 0, count; at < owned; at += count) {
        count = most < owned - at ? most : owned - at;
        const char *here = gather(t, unit, at, count, type);
        dt_event_record(t->stepper.done, t->world->gathering);
        if (trainer_wait(t, t->stepper.done, "samples", err) != 0) {
            return -1;
        }
        dt_page_pulse(t->world->page);
        for (int r = 0; r < parts && to != NULL; r++) {
            const void *values;
            if (pinned_window_look(window, here + r * count * size, (size_t)(count * size), &values, err) != 0) {
                return -1;
            }
            float *out = to + r * owned + at;
            if (type == DT_F32) {
                memcpy(out, values, (size_t)(count * size));
            } else {
                dt_cpu_cast(&(struct dt_cast_args){out, values, count, DT_F32, type});
            }
        }
    }
    return 0;
}

static int collect_all(struct trainer *t, struct dt_error *err)
{
    struct generator *g = t->samples->generator;
    struct pinned_window window = {0};
    bool takes_part = g != NULL || (t->samples->portion > 0 && strategy_counts(&t->strategy));
    int rc = g != NULL ? pinned_window_open(&window, t->world->device, t->world->gathering, err) : 0;
    for (int u = 0; u < t->chain.unit_count && takes_part && rc == 0; u++) {
        rc = collect(t, &window, u, g != NULL ? generator_unit(g, u) : NULL, err);
    }
    pinned_window_close(&window);
    return rc;
}

/* ---- samples ---- */

/* Rank 0. Samples that cannot be made cost a warning: the training does not depend on them. */
static void make(struct trainer *t)
{
    struct trainer_samples *s = t->samples;
    struct dt_error why;
    if (generator_run(s->generator, &why) == 0) {
        const struct report r = {.of = t,
                                 .step = t->run.step,
                                 .total_steps = t->run.total_steps,
                                 .round = t->world->round,
                                 .samples = s->prompts.rows,
                                 .sample_count = s->prompts.count,
                                 .tokenizer = s->prompts.tokenizer};
        observers_report(&t->observers, &r, MOMENT_SAMPLES);
    } else if (why.status != DT_STOPPED) {
        observers_say(&t->observers, "train: warning: samples of step %lld: %s; training goes on",
                      (long long)t->run.step, why.text);
    }
}

int trainer_sample(struct trainer *t, struct dt_error *err)
{
    char key[64];
    struct dt_text nothing;
    if (trainer_settle(t, "samples", err) != 0) {
        return -1;
    }
    timeline_step(t->stepper.timeline, 0);
    dt_page_phase(t->world->page, DT_PHASE_EVAL);
    if (collect_all(t, err) != 0) {
        return -1;
    }
    if (t->rank == 0) {
        make(t);
    }
    /* The others would wait in the next step's first collective, and count as hung. */
    (void)snprintf(key, sizeof key, "train/sampled/%lld", (long long)t->run.step);
    dt_text_init(&nothing);
    int rc = trainer_share(t, key, &nothing, NULL, INFINITY, err);
    dt_text_clear(&nothing);
    return rc;
}
