/* The loader: a thread that reads the samples of the next two steps into host memory, so that a step
 * waits neither for the disk nor for decoding.
 *
 *   loader   | read 2 | read 3 |        | read 4 |
 *   host     step 0 | step 1        | step 2        | ...     (takes what was read, and lets it go)
 *
 * There are two slots, used in turn. A slot is the loader's from trainer_loader_release to
 * trainer_loader_take. What the loader reads depends on the place in the data alone, so bits are those
 * of reading in the step. Where reading had to wait for the disk, the kernel is also told what the
 * steps behind them read. */
#include "worker/engine/trainer.h"

#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>

#define WAIT_SLICE_S 0.1
enum { SLOTS = 2 };
/* Steps that are asked for ahead; for how many steps, after reading had to wait for the disk, at
 * first and at most. */
enum { EXPECTED_STEPS = 2, COLD_STEPS = 64, COLD_MOST = 1 << 20 };

struct micro { /* where a micro-step takes its samples */
    int64_t epoch, position;
};

struct trainer_loader {
    const struct trainer *t;
    struct batch shape; /* of a micro-batch: sizes and layout */
    struct trainer_slot slot[SLOTS];
    struct micro *micro; /* of the step that is read */
    /* Of the loader's thread while it reads: where the next step's samples begin. For `cold` steps more
     * the disk is asked for samples before they are read; after the next wait for the disk, for
     * `cold_span` steps. */
    int64_t epoch, position, cold, cold_span;
    /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t next, end, wanted; /* the step that is read next; steps of the run; the latest that was asked for */
    bool held, reading, ends;
    bool failed; /* step `next` cannot be read; why */
    struct dt_error why;
    pthread_t thread;
    bool runs;
};

/* ---- reading ---- */

/* Micro-steps of a whole step in the epoch that is read. */
static int64_t full_step(const struct trainer_loader *l)
{
    const struct job_training *j = &l->t->job->training;
    return j->accumulation_schedule.count > 0 ? job_accumulation(j, l->epoch) : l->t->micro_steps;
}

/* Of so many samples; training.limit_train_batches counts batches of the first start. */
static int64_t limited_rows(const struct trainer *t, int64_t rows)
{
    int64_t first = t->run.horizon.of.micro_batch, batch = t->job->training.batch_size_per_gpu * t->size;
    return horizon_rows(&t->job->training, rows, first > 0 ? first : batch);
}

int64_t trainer_rows(const struct trainer *t)
{
    int64_t all = t->feeds.train.sample_count, batch = t->job->training.batch_size_per_gpu * t->size,
            rows = limited_rows(t, all);
    if (rows < all) {
        return rows;
    }
    return t->job->training.uneven_inputs == UNEVEN_JOIN ? (rows + batch - 1) / batch * batch : rows;
}

/* The rows that the loader takes of an epoch: at least a batch of all ranks, which may have become larger than
 * what is left of an epoch. */
static int64_t rows_to_read(const struct trainer *t)
{
    int64_t rows = trainer_rows(t), batch = t->job->training.batch_size_per_gpu * t->size;
    return rows > batch ? rows : batch;
}

void trainer_limit_epochs(struct trainer *t)
{
    const struct job_training *j = &t->job->training;
    int64_t all = t->feeds.train.sample_count, rows = trainer_rows(t);
    t->feeds.order.epoch_samples = rows < all && rows > 0 ? rows : 0;
    t->feeds.order.repeats = j->overfit_batches > 0;
    for (int i = 0; j->overfit_batches > 0 && i < t->feeds.val_count; i++) {
        struct trainer_val *v = &t->feeds.val[i];
        int64_t count = limited_rows(t, v->data.sample_count);
        v->order.sample_count = count > 0 ? count : 1;
    }
}

/* Decides where the next step's micro-steps take their samples; returns how many there are. The
 * rest of an epoch that fills no micro-batch of all ranks is left out, or filled up with rows that have no
 * target (trainer_rows); what is left of a step at
 * its end is up to partial_accumulation. */
static int64_t place_micro_steps(struct trainer_loader *l)
{
    const struct trainer *t = l->t;
    enum partial_accumulation partial = t->job->training.partial_accumulation;
    int64_t samples = t->job->training.batch_size_per_gpu * t->size;
    int64_t room = (rows_to_read(t) - l->position) / samples, n = 0, full = full_step(l);
    if (room <= 0 || (room < full && partial == PARTIAL_DROP)) {
        l->epoch++;
        l->position = 0;
        room = rows_to_read(t) / samples;
        full = full_step(l);
    }
    while (n < full) {
        if (room == 0) {
            if (partial != PARTIAL_CARRY) {
                break;
            }
            l->epoch++;
            l->position = 0;
            room = rows_to_read(t) / samples;
        }
        l->micro[n++] = (struct micro){.epoch = l->epoch, .position = l->position};
        l->position += samples;
        room--;
    }
    return n;
}

static long disk_reads(void)
{
    struct rusage use;
    return getrusage(RUSAGE_THREAD, &use) == 0 ? use.ru_majflt : 0;
}

/* Of the next steps: what memory has not got of them is on its way when they are read, all of it
 * at once, not page by page. */
static void expect_next(const struct trainer_loader *l)
{
    const struct trainer *t = l->t;
    int64_t samples = t->job->training.batch_size_per_gpu * t->micro_steps;
    int64_t left = data_expect(&t->feeds.train, &t->feeds.order, l->epoch, l->position, t->rank, t->size,
                               EXPECTED_STEPS * samples);
    (void)data_expect(&t->feeds.train, &t->feeds.order, l->epoch + 1, 0, t->rank, t->size, left);
}

/* True if this rank has a target in the step. */
static bool has_targets(const struct trainer_slot *s)
{
    bool has = false;
    for (int64_t j = 0; j < s->count && !has; j++) {
        has = s->valid[j] > 0;
    }
    return has;
}

/* Finds out which targets are missing in this step. Every rank knows it by itself. Where samples must
 * be read for it, only a rank without any target looks at those of the others: it alone can be in a
 * step without targets. */
static void look_for_blanks(const struct trainer_loader *l, struct trainer_slot *s)
{
    const struct trainer *t = l->t;
    int64_t micro_batches = 0, blank = 0;
    s->blank_rank = -1;
    bool looks = data_may_be_blank(&t->feeds.train) && !(batch_has_documents(&t->chain.batch) && has_targets(s));
    for (int64_t j = 0; j < s->count && looks; j++) {
        for (int r = 0; r < t->size; r++, micro_batches++) {
            if (data_blank(&t->feeds.train, &t->feeds.order, l->micro[j].epoch, l->micro[j].position, r, t->size,
                           t->job->training.batch_size_per_gpu)) {
                s->blank_rank = s->blank_rank < 0 || r < s->blank_rank ? r : s->blank_rank;
                blank++;
            }
        }
    }
    s->blank = blank > 0 && blank == micro_batches;
}

struct batch trainer_batch_in(const struct batch *shape, char *host)
{
    struct batch b = *shape;
    for (int k = 0; k < b.layout->count; k++) {
        b.at[k] = host + batch_offset(b.layout, k);
    }
    return b;
}

/* Reads the next step's batches. */
static int read_step(struct trainer_loader *l, struct trainer_slot *s, struct dt_error *err)
{
    const struct trainer *t = l->t;
    size_t batch_bytes = batch_offset(l->shape.layout, l->shape.layout->count);
    long before = disk_reads();
    s->from_epoch = l->epoch;
    s->from_position = l->position;
    s->count = place_micro_steps(l);
    s->epoch = l->epoch;
    s->position = l->position;
    s->active = 0;
    for (int64_t j = 0; j < s->count; j++) {
        int64_t left = t->feeds.train.sample_count - l->micro[j].position;
        s->active += left < t->size ? left : t->size;
        struct batch b = trainer_batch_in(&l->shape, s->host + (size_t)j * batch_bytes);
        if (data_batch(&t->feeds.train, &t->feeds.order, l->micro[j].epoch, l->micro[j].position, t->rank, t->size, &b,
                       err) != 0) {
            return dt_wrap(err, "data.train");
        }
        s->valid[j] = b.weight;
        s->length[j] = b.length;
    }
    look_for_blanks(l, s);
    if (disk_reads() > before && l->cold < l->cold_span) {
        /* What was asked for waits for nothing, so it would be forgotten again and again: longer
         * each time. */
        l->cold = l->cold_span;
        l->cold_span *= l->cold_span < COLD_MOST ? 2 : 1;
    } else if (l->cold > 0) {
        l->cold--;
    }
    if (l->cold > 0) {
        expect_next(l);
    }
    return 0;
}

/* Reads into the slot of the next step. Under the lock, which is let go meanwhile. */
static void read_next(struct trainer_loader *l)
{
    struct trainer_slot *s = &l->slot[l->next % SLOTS];
    l->reading = true;
    (void)pthread_mutex_unlock(&l->lock);
    int rc = read_step(l, s, &l->why);
    (void)pthread_mutex_lock(&l->lock);
    l->reading = false;
    l->failed = rc != 0;
    if (rc == 0) {
        s->step = l->next++;
        s->state = SLOT_FULL;
    }
    (void)pthread_cond_broadcast(&l->changed);
}

static bool has_work(const struct trainer_loader *l)
{
    return !l->held && !l->failed && l->slot[l->next % SLOTS].state == SLOT_EMPTY &&
           (l->next < l->end || l->next <= l->wanted);
}

static void *run(void *loader)
{
    struct trainer_loader *l = loader;
    (void)pthread_mutex_lock(&l->lock);
    while (!l->ends) {
        if (has_work(l)) {
            read_next(l);
        } else {
            (void)pthread_cond_wait(&l->changed, &l->lock);
        }
    }
    (void)pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- for the step ---- */

void trainer_loader_open(struct trainer *t, char *host, size_t step_bytes)
{
    struct trainer_loader *l = t->feeds.loader = dt_arena_alloc(&t->arena, sizeof *l);
    pthread_condattr_t clock;
    *l = (struct trainer_loader){.t = t, .shape = t->stepper.shape, .held = true, .wanted = -1};
    l->micro = dt_arena_alloc(&t->arena, (size_t)t->micro_steps * sizeof *l->micro);
    for (int i = 0; i < SLOTS; i++) {
        l->slot[i].host = host + (size_t)i * step_bytes;
        l->slot[i].valid = dt_arena_alloc(&t->arena, (size_t)t->micro_steps * sizeof *l->slot[i].valid);
        l->slot[i].length = dt_arena_alloc(&t->arena, (size_t)t->micro_steps * sizeof *l->slot[i].length);
    }
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&l->changed, &clock);
    (void)pthread_condattr_destroy(&clock);
}

void trainer_loader_close(struct trainer *t)
{
    struct trainer_loader *l = t->feeds.loader;
    if (l == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&l->lock);
    l->ends = true;
    (void)pthread_cond_broadcast(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
    if (l->runs) {
        (void)pthread_join(l->thread, NULL);
    }
    (void)pthread_cond_destroy(&l->changed);
    (void)pthread_mutex_destroy(&l->lock);
    t->feeds.loader = NULL;
}

/* Stops reading: waits until the step that is being read is there. Under the lock. */
static void hold(struct trainer_loader *l)
{
    l->held = true;
    while (l->reading) {
        (void)pthread_cond_wait(&l->changed, &l->lock);
    }
}

void trainer_loader_restart(struct trainer *t)
{
    struct trainer_loader *l = t->feeds.loader;
    (void)pthread_mutex_lock(&l->lock);
    hold(l);
    for (int i = 0; i < SLOTS; i++) {
        l->slot[i].state = SLOT_EMPTY;
    }
    l->next = t->run.step;
    l->end = t->run.total_steps;
    l->wanted = -1;
    l->epoch = t->run.epoch;
    l->position = t->run.position;
    l->cold = 0;
    l->cold_span = COLD_STEPS;
    l->held = l->failed = false;
    /* without a thread steps read themselves */
    l->runs = l->runs || pthread_create(&l->thread, NULL, run, l) == 0;
    (void)pthread_cond_broadcast(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
}

int trainer_loader_take(struct trainer *t, int64_t step, struct trainer_slot **out, struct dt_error *err)
{
    struct trainer_loader *l = t->feeds.loader;
    struct trainer_slot *s = *out = &l->slot[step % SLOTS];
    double begin_s = dt_now_s();
    int rc = 0;
    (void)pthread_mutex_lock(&l->lock);
    l->held = false;
    l->wanted = step;
    (void)pthread_cond_broadcast(&l->changed);
    while (rc == 0 && (s->state != SLOT_FULL || s->step != step)) {
        if (l->failed) {
            *err = l->why;
            rc = -1;
        } else if (!l->runs) {
            read_next(l);
        } else {
            struct timespec until = dt_timespec(dt_now_s() + WAIT_SLICE_S);
            if (pthread_cond_timedwait(&l->changed, &l->lock, &until) == ETIMEDOUT) {
                (void)pthread_mutex_unlock(&l->lock);
                rc = trainer_look(t, "batch", begin_s, err);
                (void)pthread_mutex_lock(&l->lock);
            }
        }
    }
    s->state = rc == 0 ? SLOT_TAKEN : s->state;
    (void)pthread_mutex_unlock(&l->lock);
    return rc;
}

void trainer_loader_release(struct trainer *t, int64_t step)
{
    struct trainer_loader *l = t->feeds.loader;
    struct trainer_slot *s = &l->slot[step % SLOTS];
    (void)pthread_mutex_lock(&l->lock);
    if (s->state == SLOT_TAKEN && s->step == step) {
        s->state = SLOT_EMPTY;
        (void)pthread_cond_broadcast(&l->changed);
    }
    (void)pthread_mutex_unlock(&l->lock);
}

char *trainer_loader_borrow(struct trainer *t, int64_t step)
{
    struct trainer_loader *l = t->feeds.loader;
    struct trainer_slot *s = &l->slot[step % SLOTS];
    (void)pthread_mutex_lock(&l->lock);
    hold(l);
    if (s->state == SLOT_FULL) { /* it is read again, and what failed behind it */
        s->state = SLOT_EMPTY;
        l->failed = false;
        l->next = s->step;
        l->epoch = s->from_epoch;
        l->position = s->from_position;
    }
    (void)pthread_mutex_unlock(&l->lock);
    return s->host;
}
