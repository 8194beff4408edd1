/* Saves beside training (checkpointing.beside): a thread copies this rank's slices to host memory, writes them and
 * agrees with the other ranks', while steps go on:
 *
 *   training   | small copies | forward | backward | waits for "copied" | update | forward ...
 *   the thread |              | weights, optimizer's state  -> copied   | writes, agrees ...
 *
 * What an update alone changes is copied by the thread, on a stream of its own. Buffers and the state of a
 * communication hook change earlier, and what rests outside of the device's memory comes in through room that
 * updates use: training stands still until these are copied. */
#include "worker/run/trainer_save.h"

#include "base/clock.h"
#include "kernels/kernels.h"
#include "worker/engine/pinned_window.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STORE_TIMEOUT_S 60.0
#define COPY_TIMEOUT_S 600.0
enum { ALIGN_BYTES = 64 };

struct save_beside {
    /* What agreement uses of a trainer, with a client of the store and a page that are the thread's own:
     * signs of life are those of the training. */
    struct trainer side;
    struct world world;
    struct dt_page page;
    struct checkpoint_state state;
    struct save_slices slices; /* their data: the copy */
    char **copies;             /* of each slice */
    struct trainer *training;
    struct dt_stream *stream; /* of the thread's copies */
    struct checkpoint_reader reader;
    double *steps; /* what the state has of the last steps, which the next one changes */
    float *floats; /* CHECKPOINT_PIECE: elements of the copy that are not F32 */
    double begin_s, pause_s;
    pthread_t thread;
    _Atomic bool done;
    bool lost; /* the device failed, not the disk */
    int rc;
    struct dt_error err;
};

static size_t copy_bytes(const struct save_slices *x, int i)
{
    size_t size = (size_t)x->slice[i].count * dt_dtype_size(x->from[i].type);
    return (size + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

void trainer_plan_saves(struct trainer *t)
{
    struct save_slices all;
    size_t size_bytes = 0;
    if (!t->job->checkpointing.beside || t->job->evaluates) {
        return;
    }
    save_list_slices(t, SAVE_CHECKPOINT, NULL, &all);
    for (int i = 0; i < all.count; i++) {
        size_bytes += copy_bytes(&all, i);
    }
    t->memory.copy = plan_add(&t->memory.plan, PLAN_STAGING, PLAN_PINNED, size_bytes);
    save_free_slices(&all);
}

/* ---- the copy ---- */

static bool changes_in_update(const struct save_source *from)
{
    return from->part.home != NULL && from->part.home->ops == &home_device;
}

/* Enqueues the copy of a slice. */
static void copy_slice(struct dt_stream *stream, const struct save_source *from, int64_t count, char *to)
{
    size_t size_bytes = (size_t)count * dt_dtype_size(from->type);
    for (size_t at = 0, n; at < size_bytes; at += n) {
        struct home_part part = {from->part.home, from->part.at + at};
        n = size_bytes - at < PINNED_WINDOW_BYTES ? size_bytes - at : PINNED_WINDOW_BYTES;
        const char *here =
            part.home != NULL ? home_bring(part, n, HOME_READ, stream) : (const char *)from->base + part.at;
        dt_stream_copy(stream, to + at, here, n);
        if (part.home != NULL) {
            home_back(part, n, stream);
        }
    }
}

/* Enqueues the copies of those slices that an update alone changes, or of the others. */
static void copy_slices(const struct save_beside *b, bool updated, struct dt_stream *stream)
{
    for (int i = 0; i < b->slices.count; i++) {
        if (changes_in_update(&b->slices.from[i]) == updated) {
            copy_slice(stream, &b->slices.from[i], b->slices.slice[i].count, b->copies[i]);
        }
    }
}

/* This rank's slices, and where in the plan's memory each is copied to. */
static void list_copies(struct save_beside *b)
{
    struct trainer *t = b->training;
    char *to = plan_at(&t->memory.plan, t->memory.copy);
    save_list_slices(t, SAVE_CHECKPOINT, &b->reader, &b->slices);
    b->copies = dt_alloc((size_t)b->slices.count * sizeof *b->copies);
    for (int i = 0; i < b->slices.count; i++) {
        b->copies[i] = to;
        to += copy_bytes(&b->slices, i);
    }
}

static void copy_steps(struct save_beside *b)
{
    struct outlier_steps *x = &b->state.outliers;
    if (x->kept > 0) {
        size_t size_bytes = (size_t)x->kept * sizeof *b->steps;
        b->steps = dt_alloc(2 * size_bytes);
        x->loss = memcpy(b->steps, x->loss, size_bytes);
        x->norm = memcpy(b->steps + x->kept, x->norm, size_bytes);
    }
}

/* Elements of the copy as F32. A round that is over leaves the file unfinished: the next one waits for this rank. */
static int read_copy(void *context, const void *at, int64_t first, int64_t count, const float **out,
                     struct dt_error *err)
{
    struct save_beside *b = context;
    const struct save_source *from = at;
    const void *values = b->copies[from - b->slices.from] + (size_t)first * dt_dtype_size(from->type);
    if (atomic_load(&b->training->world->page->order) == DT_ORDER_ABORT) {
        return dt_fail(err, DT_STOPPED, "the round was ended");
    }
    *out = values;
    if (from->type != DT_F32) {
        dt_cpu_cast(&(struct dt_cast_args){b->floats, values, count, DT_F32, from->type});
        *out = b->floats;
    }
    return 0;
}

/* ---- the thread ---- */

static void *write_copy(void *context)
{
    struct save_beside *b = context;
    struct dt_text entry;
    struct dt_error why;
    dt_text_init(&entry);
    copy_slices(b, true, b->stream);
    b->lost = dt_stream_finish(b->stream, COPY_TIMEOUT_S, &b->err) != 0;
    atomic_store(&b->training->stepper.copying, false);
    if (b->lost) { /* nobody hears of it as of a disk: this rank ends, and with it the round */
        b->rc = -1;
    } else {
        bool written = checkpoint_write_slices(b->side.job->checkpointing.checkpoint_dir, &b->state, b->side.rank,
                                               b->side.size, b->slices.slice, b->slices.count, &entry, &why) == 0;
        b->rc = save_agree(&b->side, &b->state, &entry, written ? NULL : &why, &b->err);
    }
    dt_text_clear(&entry);
    atomic_store(&b->done, true);
    return NULL;
}

static void free_beside(struct trainer *t)
{
    struct save_beside *b = t->saver.beside;
    save_free_slices(&b->slices);
    dt_store_close(b->world.store);
    dt_stream_close(b->stream);
    free(b->copies);
    free(b->steps);
    free(b->floats);
    free(b);
    t->saver.beside = NULL;
}

static int start(struct trainer *t, struct save_beside *b, struct dt_error *err)
{
    b->world = *t->world;
    b->world.page = &b->page;
    b->world.store = NULL;
    b->side = (struct trainer){.job = t->job,
                               .world = &b->world,
                               .rank = t->rank,
                               .size = t->size,
                               .memory = t->memory,
                               .saver = {.tries = ++t->saver.tries, .named_step = t->saver.named_step}};
    if (t->world->store != NULL && dt_store_clone(t->world->store, &b->world.store, STORE_TIMEOUT_S, err) != 0) {
        return -1;
    }
    t->stepper.copy_wait_s = 0;
    atomic_store(&t->stepper.copying, true);
    int rc = pthread_create(&b->thread, NULL, write_copy, b);
    if (rc != 0) {
        atomic_store(&t->stepper.copying, false);
        errno = rc;
        return dt_fail_errno(err, "cannot start the thread that saves");
    }
    return 0;
}

int trainer_save_begin(struct trainer *t, struct dt_error *err)
{
    if (trainer_settle(t, "save", err) != 0) {
        return -1;
    }
    struct save_beside *b = dt_alloc(sizeof *b);
    memset(b, 0, sizeof *b);
    t->saver.beside = b;
    b->training = t;
    b->begin_s = dt_now_s();
    atomic_store(&t->world->page->save_begin_s, b->begin_s);
    atomic_store(&t->world->page->begun_step, t->run.step);
    b->state = save_state(t);
    copy_steps(b);
    b->floats = dt_alloc(CHECKPOINT_PIECE * sizeof *b->floats);
    b->reader = (struct checkpoint_reader){.read = read_copy, .context = b};
    list_copies(b);
    copy_slices(b, false, t->world->compute);
    dt_event_record(t->stepper.done, t->world->compute);
    if (trainer_wait(t, t->stepper.done, "save", err) != 0 ||
        dt_stream_open(t->world->device, -1, &b->stream, err) != 0 || start(t, b, err) != 0) {
        free_beside(t);
        return -1;
    }
    b->pause_s = dt_now_s() - b->begin_s;
    return 0;
}

bool trainer_save_runs(const struct trainer *t)
{
    return t->saver.beside != NULL && !atomic_load(&t->saver.beside->done);
}

int64_t trainer_save_step(const struct trainer *t)
{
    return t->saver.beside->state.step;
}

int trainer_save_end(struct trainer *t, struct dt_error *err)
{
    struct save_beside *b = t->saver.beside;
    while (!atomic_load(&b->done)) {
        dt_page_pulse(t->world->page);
        dt_sleep_s(0.001);
    }
    (void)pthread_join(b->thread, NULL);
    int rc = b->rc;
    *err = b->err;
    t->lost = t->lost || b->lost;
    if (rc == 0) {
        save_done(t, b->state.step, b->begin_s, b->pause_s + t->stepper.copy_wait_s);
    }
    free_beside(t);
    return rc;
}
