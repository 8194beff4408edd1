/* Batches on their way from the loader (trainer_loader.c) to the device. Where a device has memory of
 * its own, the next step's are copied while this one computes, by a stream of their own: two sets of
 * buffers, used in turn, and nobody waits but for what is not there yet.
 *
 *   host      | step 0 | take 1 | step 1 | take 2 | ...        (puts work in, and takes what was read)
 *   copy      | 0 |      | 1 |             | 2: when step 0 has used its own |
 *   compute       | step 0            | step 1             | step 2
 *
 * A CPU takes a step's batches when the step begins. */
#include "worker/engine/text_bytes.h"
#include "worker/engine/trainer.h"

#include "base/clock.h"

#define NOW 0.0

int trainer_batch_open(struct trainer *t, struct dt_error *err)
{
    struct dt_device *d = t->world->device;
    const struct batch_layout *layout = &t->chain.batch;
    size_t batch_bytes = batch_offset(layout, layout->count), of_step = (size_t)t->micro_steps * batch_bytes;
    char *device = plan_at(&t->memory.plan, t->memory.batch), *host = plan_at(&t->memory.plan, t->memory.host_batch);
    if (!d->host_memory && dt_stream_open(d, -1, &t->feeds.copy, err) != 0) { /* for copies alone */
        return -1;
    }
    /* The loss scale of a step follows from the step before, so the host waits for that. */
    t->stepper.ahead = d->host_memory || t->strategy.precision.scaler != NULL ? 0 : 1;
    sampler_use(&t->feeds.order, plan_at(&t->memory.plan, t->memory.order));
    int numbers = batch_numbers(layout);
    if (numbers >= 0) {
        t->stepper.shape.at[numbers] = plan_at(&t->memory.plan, t->memory.numbers);
    }
    trainer_loader_open(t, host, of_step);
    for (int i = 0; i < 2; i++) {
        struct trainer_feed *f = &t->feeds.feed[i];
        f->device = device + (size_t)i * of_step;
        f->valid = dt_arena_alloc(&t->arena, (size_t)t->micro_steps * sizeof *f->valid);
        f->batches = dt_arena_alloc(&t->arena, (size_t)t->micro_steps * sizeof *f->batches);
        for (int64_t j = 0; j < t->micro_steps; j++) { /* the fields of a micro-step side by side */
            f->batches[j] = t->stepper.shape;
            for (int k = 0; k < layout->count; k++) {
                f->batches[j].at[k] = k == numbers ? t->stepper.shape.at[k]
                                                   : f->device + (size_t)j * batch_bytes + batch_offset(layout, k);
            }
        }
        if (dt_event_open(d, &f->copied, err) != 0 || (t->feeds.copy != NULL && dt_event_open(d, &f->used, err) != 0)) {
            return -1;
        }
    }
    return 0;
}

void trainer_batch_close(struct trainer *t)
{
    trainer_loader_close(t);
    if (t->feeds.copy != NULL) {
        dt_stream_close(t->feeds.copy);
        t->feeds.copy = NULL;
    }
    for (int i = 0; i < 2; i++) {
        dt_event_close(t->feeds.feed[i].copied);
        dt_event_close(t->feeds.feed[i].used);
        t->feeds.feed[i].copied = t->feeds.feed[i].used = NULL;
    }
}

void trainer_batch_restart(struct trainer *t)
{
    t->stepper.begun = t->run.step;
    t->stepper.begun_samples = t->run.horizon.samples;
    t->feeds.feed[0].full = t->feeds.feed[1].full = false;
    trainer_loader_restart(t);
}

/* One copy in stream order brings all fields of a micro-batch to the device. */
static void copy_batch(struct trainer *t, struct trainer_feed *f, const char *host, int64_t j, struct dt_stream *stream)
{
    size_t batch_bytes = batch_offset(&t->chain.batch, t->chain.batch.count);
    int span = timeline_begin(t->stepper.timeline, t->feeds.copy != NULL ? TIMELINE_COPY : TIMELINE_COMPUTE, stream,
                              "batch", NULL);
    dt_stream_copy(stream, f->device + (size_t)j * batch_bytes, host + (size_t)j * batch_bytes, batch_bytes);
    timeline_end(t->stepper.timeline, span, stream);
}

/* Waits until the batches of a step have left the host's memory, which is the loader's then. */
static int let_go(struct trainer *t, int64_t step, struct dt_error *err)
{
    if (trainer_wait(t, t->feeds.feed[step % 2].copied, "batch", err) != 0) {
        return -1;
    }
    trainer_loader_release(t, step);
    return 0;
}

/* Takes the next step's batches from the loader. The host waits for the copy only where it takes no
 * time: of a device with memory of its own it lets the step before go, which was copied long ago. */
static int fill(struct trainer *t, struct trainer_feed *f, struct dt_error *err)
{
    struct dt_stream *stream = t->feeds.copy != NULL ? t->feeds.copy : t->world->compute;
    struct trainer_slot *s;
    int64_t step = t->stepper.begun;
    double begin_s = dt_now_s();
    if (t->feeds.copy != NULL) {
        if (step > 0 && let_go(t, step - 1, err) != 0) {
            return -1;
        }
        dt_event_wait(f->used, t->feeds.copy);
    }
    if (trainer_loader_take(t, step, &s, err) != 0) {
        return -1;
    }
    f->count = s->count;
    f->epoch = s->epoch;
    f->position = s->position;
    f->active = s->active;
    f->blank = s->blank;
    f->blank_rank = s->blank_rank;
    for (int64_t j = 0; j < f->count; j++) {
        f->batches[j].weight = f->valid[j] = s->valid[j];
        f->batches[j].length = s->length[j];
        copy_batch(t, f, s->host, j, stream);
    }
    dt_event_record(f->copied, stream);
    if (t->feeds.copy == NULL && let_go(t, step, err) != 0) {
        return -1;
    }
    f->data_s = dt_now_s() - begin_s;
    f->full = true;
    return 0;
}

int trainer_batch_take(struct trainer *t, struct trainer_feed **out, struct dt_error *err)
{
    struct trainer_feed *f = &t->feeds.feed[t->stepper.begun % 2];
    if (!f->full && fill(t, f, err) != 0) {
        return -1;
    }
    if (t->feeds.copy != NULL) {
        dt_event_wait(f->copied, t->world->compute);
    }
    f->full = false;
    *out = f;
    return 0;
}

/* One place for all micro-steps: so a layer's calls have the same arguments in each, as CUDA graphs
 * need it. */
void trainer_batch_number(struct trainer *t, const struct trainer_feed *f, int64_t j)
{
    const struct batch_layout *layout = &t->chain.batch;
    int numbers = batch_numbers(layout);
    if (numbers >= 0) {
        size_t at = (size_t)j * batch_offset(layout, layout->count) + batch_offset(layout, numbers);
        dt_stream_copy(t->world->compute, t->stepper.shape.at[numbers], f->device + at,
                       (size_t)batch_elements(layout, numbers) * sizeof(int64_t));
    }
}

void trainer_batch_used(struct trainer *t, struct trainer_feed *f)
{
    if (t->feeds.copy != NULL) {
        dt_event_record(f->used, t->world->compute);
    }
}

int trainer_batch_prepare(struct trainer *t, struct dt_event *busy, struct dt_error *err)
{
    struct trainer_feed *f = &t->feeds.feed[t->stepper.begun % 2];
    struct dt_error ignored;
    if (fill(t, f, err) != 0) {
        return -1;
    }
    if (dt_event_sync(busy, NOW, &ignored) != 0) { /* the device had work all the time: nobody
                                                    * waited for the batch */
        f->data_s = 0;
    }
    return 0;
}

struct batch *trainer_batch_eval(struct trainer *t, struct trainer_val *v, int64_t i, struct dt_error *err)
{
    /* the other feed may hold the next step's batches already */
    struct trainer_feed *f = &t->feeds.feed[(t->stepper.begun + 1) % 2];
    char *host = trainer_loader_borrow(t, t->stepper.begun + 1);
    struct batch *b = &f->batches[0], in_host = trainer_batch_in(b, host);
    int64_t first = i * t->job->training.batch_size_per_gpu * t->size;
    if (data_batch(&v->data, &v->order, 0, first, t->rank, t->size, &in_host, err) != 0) {
        (void)dt_wrap(err, "%s", v->key);
        return NULL;
    }
    b->weight = in_host.weight;
    b->length = in_host.length;
    if (v->bytes != NULL) {
        v->text_bytes += text_bytes_count(v->bytes, &v->data, &in_host);
    }
    copy_batch(t, f, host, 0, t->world->compute);
    return b;
}
