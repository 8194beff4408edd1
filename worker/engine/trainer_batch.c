/* Batches: where a step's micro-steps take their samples, and their way to the device. Where a
 * device has memory of its own, the next step's are read while this one computes, and a stream
 * of their own copies them: two sets of buffers, used in turn, and nobody waits but for what is
 * not there yet.
 *
 *   host      | step 0 | read 1 | step 1 | read 2 | ...        (puts work in, and reads)
 *   copy      | 0 |      | 1 |             | 2: when step 0 has used its own |
 *   compute       | step 0            | step 1             | step 2
 *
 * A CPU reads when a step begins, as its cores have nothing else to do meanwhile. Where that
 * waits for the disk, the kernel is told what the next steps read. */
#include "worker/engine/trainer.h"

#include "base/clock.h"

#include <sys/resource.h>

#define NOW 0.0
/* Steps that are asked for ahead; for how many steps, after reading had to wait for the disk, at
 * first and at most. */
enum { EXPECTED_STEPS = 2, COLD_STEPS = 64, COLD_MOST = 1 << 20 };

int trainer_batch_open(struct trainer *t, struct dt_error *err)
{
    struct dt_device *d = t->world->device;
    const struct batch_layout *layout = &t->chain.batch;
    size_t batch_bytes = batch_offset(layout, layout->count), of_step = (size_t)t->micro_steps * batch_bytes;
    char *device = plan_at(&t->memory.plan, t->memory.batch), *host = plan_at(&t->memory.plan, t->memory.host_batch);
    if (!d->host_memory && dt_stream_open(d, -1, &t->feeds.copy, err) != 0) { /* for copies alone */
        return -1;
    }
    t->stepper.ahead = d->host_memory ? 0 : 1;
    int numbers = batch_numbers(layout);
    if (numbers >= 0) {
        t->stepper.shape.at[numbers] = plan_at(&t->memory.plan, t->memory.numbers);
    }
    for (int i = 0; i < 2; i++) {
        struct trainer_feed *f = &t->feeds.feed[i];
        f->host = host + (size_t)i * of_step;
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
        if (t->feeds.copy != NULL && (dt_event_open(d, &f->copied, err) != 0 || dt_event_open(d, &f->used, err) != 0)) {
            return -1;
        }
    }
    return 0;
}

void trainer_batch_close(struct trainer *t)
{
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
    t->feeds.read_epoch = t->run.epoch;
    t->feeds.read_position = t->run.position;
    t->feeds.feed[0].full = t->feeds.feed[1].full = false;
    t->feeds.cold = 0;
    t->feeds.cold_span = COLD_STEPS;
}

/* Decides where the next step's micro-steps take their samples; returns how many there are. The
 * rest of an epoch that fills no micro-batch of all ranks is left out; what is left of a step at
 * its end is up to partial_accumulation. */
static int64_t place_micro_steps(struct trainer *t)
{
    enum partial_accumulation partial = t->job->training.partial_accumulation;
    int64_t samples = t->job->training.batch_size_per_gpu * t->size;
    int64_t room = (t->feeds.train.sample_count - t->feeds.read_position) / samples, n = 0;
    if (room <= 0 || (room < t->micro_steps && partial == PARTIAL_DROP)) {
        t->feeds.read_epoch++;
        t->feeds.read_position = 0;
        room = t->feeds.train.sample_count / samples;
    }
    while (n < t->micro_steps) {
        if (room == 0) {
            if (partial != PARTIAL_CARRY) {
                break;
            }
            t->feeds.read_epoch++;
            t->feeds.read_position = 0;
            room = t->feeds.train.sample_count / samples;
        }
        t->feeds.micro[n++] = (struct trainer_micro){.epoch = t->feeds.read_epoch, .position = t->feeds.read_position};
        t->feeds.read_position += samples;
        room--;
    }
    return n;
}

/* The loader fills host memory, one copy in stream order brings all fields to the device. */
static int read_batch(struct trainer *t, struct trainer_feed *f, const struct data_source *from,
                      const struct sampler *order, const struct trainer_micro *at, int64_t j, struct dt_stream *stream,
                      struct dt_error *err)
{
    struct batch *b = &f->batches[j], in_host = *b;
    size_t batch_bytes = batch_offset(b->layout, b->layout->count);
    for (int k = 0; k < b->layout->count; k++) {
        in_host.at[k] = f->host + (size_t)j * batch_bytes + batch_offset(b->layout, k);
    }
    if (data_batch(from, order, at->epoch, at->position, t->rank, t->size, &in_host, err) != 0) {
        return dt_wrap(err, from == &t->feeds.val ? "data.val" : "data.train");
    }
    b->weight = f->valid[j] = in_host.weight;
    int span = timeline_begin(t->stepper.timeline, t->feeds.copy != NULL ? TIMELINE_COPY : TIMELINE_COMPUTE, stream,
                              "batch", NULL);
    dt_stream_copy(stream, f->device + (size_t)j * batch_bytes, f->host + (size_t)j * batch_bytes, batch_bytes);
    timeline_end(t->stepper.timeline, span, stream);
    return 0;
}

static long disk_reads(void)
{
    struct rusage use;
    return getrusage(RUSAGE_THREAD, &use) == 0 ? use.ru_majflt : 0;
}

/* Of the next steps: what memory has not got of them is on its way when they are read, all of it
 * at once, not page by page. */
static void expect_next(struct trainer *t)
{
    int64_t samples = t->job->training.batch_size_per_gpu * t->micro_steps;
    int64_t left = data_expect(&t->feeds.train, &t->feeds.order, t->feeds.read_epoch, t->feeds.read_position, t->rank,
                               t->size, EXPECTED_STEPS * samples);
    (void)data_expect(&t->feeds.train, &t->feeds.order, t->feeds.read_epoch + 1, 0, t->rank, t->size, left);
}

/* Which targets are missing in this step, of which every rank knows by itself. */
static void look_for_blanks(const struct trainer *t, struct trainer_feed *f)
{
    int64_t micro_batches = 0, blank = 0;
    f->blank_rank = -1;
    for (int64_t j = 0; j < f->count && t->feeds.train.blank_count > 0; j++) {
        for (int r = 0; r < t->size; r++, micro_batches++) {
            const struct trainer_micro *at = &t->feeds.micro[j];
            if (data_blank(&t->feeds.train, &t->feeds.order, at->epoch, at->position, r, t->size,
                           t->job->training.batch_size_per_gpu)) {
                f->blank_rank = f->blank_rank < 0 || r < f->blank_rank ? r : f->blank_rank;
                blank++;
            }
        }
    }
    f->blank = blank > 0 && blank == micro_batches;
}

/* Reads the next step's batches. */
static int fill(struct trainer *t, struct trainer_feed *f, struct dt_error *err)
{
    struct dt_stream *stream = t->feeds.copy != NULL ? t->feeds.copy : t->world->compute;
    double begin_s = dt_now_s();
    if (t->feeds.copy != NULL) {
        if (trainer_wait(t, f->copied, "batch", err) != 0) { /* the last one left the host's
                                                              * buffer long ago */
            return -1;
        }
        dt_event_wait(f->used, t->feeds.copy);
    }
    long before = disk_reads();
    f->count = place_micro_steps(t);
    f->epoch = t->feeds.read_epoch;
    f->position = t->feeds.read_position;
    look_for_blanks(t, f);
    for (int64_t j = 0; j < f->count; j++) {
        if (read_batch(t, f, &t->feeds.train, &t->feeds.order, &t->feeds.micro[j], j, stream, err) != 0) {
            return -1;
        }
    }
    if (t->feeds.copy != NULL) {
        dt_event_record(f->copied, t->feeds.copy);
    }
    if (disk_reads() > before && t->feeds.cold < t->feeds.cold_span) {
        /* What was asked for waits for nothing, so it would be forgotten again and again: longer
         * each time. */
        t->feeds.cold = t->feeds.cold_span;
        t->feeds.cold_span *= t->feeds.cold_span < COLD_MOST ? 2 : 1;
    } else if (t->feeds.cold > 0) {
        t->feeds.cold--;
    }
    if (t->feeds.cold > 0) {
        expect_next(t);
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

struct batch *trainer_batch_eval(struct trainer *t, int64_t i, struct dt_error *err)
{
    struct trainer_feed *f = &t->feeds.feed[(t->stepper.begun + 1) % 2]; /* the other one may hold the next
                                                             * step's already */
    int64_t samples = t->job->training.batch_size_per_gpu * t->size;
    int rc = read_batch(t, f, &t->feeds.val, &t->feeds.val_order, &(struct trainer_micro){.position = i * samples}, 0,
                        t->world->compute, err);
    return rc == 0 ? &f->batches[0] : NULL;
}
