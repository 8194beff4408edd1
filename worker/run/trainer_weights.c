/* Weights at the beginning of a run: from the seed, a Hugging Face folder, or a checkpoint. Everything
 * is expressed in logical elements of named tensors, so any strategy and world size reads what any
 * other wrote: a rank loads exactly what it keeps. */
#include "worker/run/trainer.h"

#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"
#include "worker/checkpoints/hf.h"
#include "worker/engine/pinned_window.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLEAR_LIMIT_S 60.0 /* of memory that is filled with zeros */
#define FOR_EVER_S 1e9

/* Brings values in host memory to device address `to`, as `type`. They may lie in the window for
 * it. */
static int put(struct pinned_window *window, void *to, enum dt_dtype type, const void *values, enum dt_dtype from,
               int64_t count, struct dt_error *err)
{
    dt_cpu_cast(&(struct dt_cast_args){pinned_window_place(window, to), values, count, type, from});
    return pinned_window_put(window, to, (size_t)count * dt_dtype_size(type), err);
}

/* Brings what is to be written, by the host where it writes in place: then it waits for the stream. */
static int bring_to_write(struct pinned_window *window, struct home_part part, size_t size_bytes, void **to,
                          struct dt_error *err)
{
    *to = home_bring(part, size_bytes, HOME_WRITE, window->stream);
    return window->window != NULL ? 0 : dt_stream_finish(window->stream, FOR_EVER_S, err);
}

/* Brings weights [first, first + count) of unit u, all of them resident, to device address `to`, where
 * they are computed with, and to the masters of those that are updated here. */
static int put_weights(struct trainer *t, struct pinned_window *window, int u, int64_t first, int64_t count, void *to,
                       const void *values, enum dt_dtype from, struct dt_error *err)
{
    struct strategy *s = &t->strategy;
    if (put(window, to, s->precision.compute, values, from, count, err) != 0) {
        return -1;
    }
    int64_t owned, owned_count;
    strategy_owned(s, u, &owned, &owned_count);
    int64_t begin = first > owned ? first : owned,
            end = first + count < owned + owned_count ? first + count : owned + owned_count;
    if (!precision_mixed(&s->precision) || begin >= end || !strategy_trains(s, u)) {
        return 0;
    }
    struct home_part masters = optimizer_weights(&t->optimizer, u, begin - owned);
    size_t size_bytes = (size_t)(end - begin) * dt_dtype_size(s->precision.masters);
    void *at;
    int rc = bring_to_write(window, masters, size_bytes, &at, err);
    rc = rc == 0 ? put(window, at, s->precision.masters,
                       (const char *)values + (size_t)(begin - first) * dt_dtype_size(from), from, end - begin, err)
                 : rc;
    home_back(masters, size_bytes, window->stream);
    return rc;
}

/* The type in which values are made or read, before they are rounded to what they are kept as. */
static enum dt_dtype type_made(const struct trainer *t)
{
    return dt_dtype_wide(t->strategy.precision.masters);
}

enum { DRAWN_AT_ONCE = 1 << 16 }; /* elements that a thread draws before it takes the next ones */

/* Initial weights [first, first + count) of unit u, which threads draw in parts. */
struct drawing {
    const struct trainer *t;
    int u;
    int64_t first, count;
    void *out;
};

static void draw_part(void *drawing, int64_t part)
{
    const struct drawing *d = drawing;
    enum dt_dtype type = type_made(d->t);
    int64_t at = part * DRAWN_AT_ONCE, n = d->count - at < DRAWN_AT_ONCE ? d->count - at : DRAWN_AT_ONCE;
    init_unit(&d->t->chain, d->u, (uint64_t)d->t->job->training.seed, d->first + at, n, type,
              (char *)d->out + (size_t)at * dt_dtype_size(type));
}

enum { /* elements that a thread reads before it takes the next ones */
       READ_AT_ONCE = 1 << 18,
       ROUNDED_AT_ONCE = 1 << 15 /* if they are rounded then: they stay in the cache */
};

/* Weights [first, first + count) of unit u of a folder, which threads read in parts. */
struct loading {
    const struct hf *hf;
    int u;
    int64_t first, count, at_once;
    enum dt_dtype type;
    void *out;
    atomic_bool failed;
};

static void load_part(void *loading, int64_t part)
{
    struct loading *r = loading;
    int64_t at = part * r->at_once, n = r->count - at < r->at_once ? r->count - at : r->at_once;
    if (hf_read_unit(r->hf, r->u, r->first + at, n, r->type, (char *)r->out + (size_t)at * dt_dtype_size(r->type),
                     NULL) != 0) {
        atomic_store(&r->failed, true);
    }
}

static int load_weights(struct loading *r, struct dt_pool *pool, struct dt_error *err)
{
    dt_pool_run(pool, (r->count + r->at_once - 1) / r->at_once, load_part, r);
    /* once more, to say what is wrong first, whichever thread found it */
    return atomic_load(&r->failed) ? hf_read_unit(r->hf, r->u, r->first, r->count, r->type, r->out, err) : 0;
}

/* Initial or given weights of what is resident of unit u, piece by piece: made where they stay,
 * or in `room` (PINNED_WINDOW_BYTES) if they are rounded then. */
static int fill_unit(struct trainer *t, struct pinned_window *window, const struct hf *hf, int u, void *room,
                     struct dt_pool *pool, struct dt_error *err)
{
    struct strategy *s = &t->strategy;
    int64_t first, count, most = (int64_t)(PINNED_WINDOW_BYTES / dt_dtype_size(type_made(t)));
    struct home_part part = strategy_resident(s, u, &first, &count);
    int rc = 0;
    for (int64_t done = 0, n; done < count && rc == 0; done += n) {
        n = count - done < most ? count - done : most;
        size_t size_bytes = (size_t)n * s->type_size;
        void *to;
        rc = bring_to_write(window, part, size_bytes, &to, err);
        void *values = room != NULL ? room : pinned_window_place(window, to);
        if (rc == 0 && hf == NULL) {
            struct drawing d = {t, u, first + done, n, values};
            dt_pool_run(pool, (n + DRAWN_AT_ONCE - 1) / DRAWN_AT_ONCE, draw_part, &d);
        } else if (rc == 0) {
            struct loading l = {.hf = hf, .u = u, .first = first + done, .count = n, .type = type_made(t)};
            l.at_once = room != NULL ? ROUNDED_AT_ONCE : READ_AT_ONCE;
            l.out = values;
            rc = load_weights(&l, pool, err);
        }
        rc = rc == 0 ? put_weights(t, window, u, first + done, n, to, values, type_made(t), err) : rc;
        home_back(part, size_bytes, window->stream);
        part.at += size_bytes;
        dt_page_pulse(t->world->page);
    }
    return rc;
}

/* Initial or given values of the buffers, and the constants behind them, from element `first` on, in
 * pieces as well. */
static int fill_buffers(struct trainer *t, struct pinned_window *window, const struct hf *hf, int64_t first,
                        struct dt_error *err)
{
    enum dt_dtype real = t->strategy.precision.buffers;
    int64_t stored = t->chain.buffer_count, all = chain_buffers(&t->chain),
            most = (int64_t)(PINNED_WINDOW_BYTES / dt_dtype_size(real));
    for (int64_t n; first < all; first += n) {
        bool given = hf != NULL && first < stored;
        int64_t left = (given ? stored : all) - first;
        n = left < most ? left : most;
        char *at = (char *)t->stepper.walk.buffers + (size_t)first * dt_dtype_size(real);
        void *values = pinned_window_place(window, at);
        if (!given) {
            init_unit(&t->chain, -1, (uint64_t)t->job->training.seed, first, n, real, values);
        } else if (hf_read_unit(hf, -1, first, n, real, values, err) != 0) {
            return -1;
        }
        if (put(window, at, real, values, real, n, err) != 0) {
            return -1;
        }
    }
    return 0;
}

/* The key, or option, that names the folder. */
static const char *load_key(const struct trainer *t)
{
    return t->job->evaluates ? "--evaluate" : "model.load";
}

/* Gives first values to the tensors of the head that the folder lacks, and names them in a line, and
 * those of other heads that are not used. */
static void begin_head(struct trainer *t, struct hf *hf)
{
    struct dt_text names;
    dt_text_init(&names);
    hf_begin_head(hf, (uint64_t)t->job->training.seed, &names);
    if (names.size > 0 && t->rank == 0) {
        observers_say(&t->observers, "train: %s: %s: does not have %s; they begin anew", load_key(t),
                      t->job->model.load, dt_text_str(&names));
    }
    if (*hf_unused(hf) != '\0' && t->rank == 0) {
        observers_say(&t->observers, "train: %s: %s: not used, since they are of another head: %s", load_key(t),
                      t->job->model.load, hf_unused(hf));
    }
    dt_text_clear(&names);
}

int trainer_check_weights(const struct trainer *t, struct dt_error *err)
{
    struct hf *hf = NULL;
    if (t->job->model.load != NULL && hf_open(&hf, t->job->model.load, &t->chain, err) != 0) {
        return dt_wrap(err, "%s", load_key(t));
    }
    hf_close(hf);
    return 0;
}

bool trainer_began_broken(const struct trainer *t, struct dt_error *err)
{
    struct hf *hf = NULL;
    struct dt_error why;
    bool loaded =
             t->run.step == 0 && t->job->model.load != NULL && hf_open(&hf, t->job->model.load, &t->chain, &why) == 0,
         broken = loaded && hf_not_finite(hf, &why);
    hf_close(hf);
    if (broken) {
        (void)dt_wrap(&why, "%s", load_key(t));
        why.blame = err->blame;
        *err = why;
    }
    return broken;
}

int trainer_init_weights(struct trainer *t, struct dt_error *err)
{
    struct hf *hf = NULL;
    struct pinned_window window = {0};
    if (t->job->model.load && hf_open(&hf, t->job->model.load, &t->chain, err) != 0) {
        return dt_wrap(err, "%s", load_key(t));
    }
    if (hf != NULL) {
        begin_head(t, hf);
    }
    void *room = t->strategy.precision.compute != type_made(t) ? dt_alloc(PINNED_WINDOW_BYTES) : NULL;
    struct dt_pool *pool = NULL;
    int rc = dt_pool_open(&pool, t->world->threads, err);
    rc = rc == 0 ? pinned_window_open(&window, t->world->device, t->world->compute, err) : rc;
    for (int u = 0; u < t->chain.unit_count && rc == 0; u++) {
        rc = fill_unit(t, &window, hf, u, room, pool, err);
    }
    rc = rc == 0 ? fill_buffers(t, &window, hf, 0, err) : rc;
    pinned_window_close(&window);
    dt_pool_close(pool);
    free(room);
    hf_close(hf);
    return rc;
}

/* A checkpoint on its way to the memory of this rank. */
struct reading {
    struct checkpoint *checkpoint;
    struct pinned_window window;
    float *wide; /* PINNED_WINDOW_BYTES, where weights or state are not F32 */
    bool weights_only;
    /* A snapshot: of what is updated by other ranks it has nothing. They publish it. */
    bool kept_alone;
};

void trainer_kept_range(struct trainer *t, int unit, int64_t *first, int64_t *count)
{
    if (unit >= 0 && strategy_trains(&t->strategy, unit)) {
        strategy_owned(&t->strategy, unit, first, count);
    } else if (unit >= 0) {
        (void)strategy_resident(&t->strategy, unit, first, count);
    }
}

/* Most elements of a type that are read at a time. */
static int64_t most_of(const struct reading *r, enum dt_dtype type)
{
    size_t size = dt_dtype_size(type);
    return (int64_t)(PINNED_WINDOW_BYTES / (size > sizeof *r->wide ? size : sizeof *r->wide));
}

/* Reads elements [done, done + count) of a span into elements of type `type` at device address `to`, to the
 * nearest: what was saved is what is there again. */
static int read_piece_of(struct reading *r, const char *purpose, const struct span *s, int64_t done, int64_t count,
                         void *to, enum dt_dtype type, struct dt_error *err)
{
    const struct tensor *x = s->tensor;
    float *read = type == DT_F32 ? pinned_window_place(&r->window, to) : r->wide;
    return checkpoint_read(r->checkpoint, purpose, x->name, x->numel, s->first + done, count, read, err) != 0
               ? -1
               : put(&r->window, to, type, read, DT_F32, count, err);
}

/* Reads one span of the weights of unit u, counted from element `from` on. */
static int read_weights(struct trainer *t, struct reading *r, int u, const struct span *s, int64_t from,
                        struct dt_error *err)
{
    const struct tensor *x = s->tensor;
    int64_t first, count, most = (int64_t)(PINNED_WINDOW_BYTES / dt_dtype_size(type_made(t)));
    struct home_part part = strategy_resident(&t->strategy, u, &first, &count);
    int rc = 0;
    part.at += (size_t)(from + s->at - first) * t->strategy.type_size;
    for (int64_t done = 0, n; done < s->count && rc == 0; done += n) {
        n = s->count - done < most ? s->count - done : most;
        size_t size_bytes = (size_t)n * t->strategy.type_size;
        void *to;
        rc = bring_to_write(&r->window, part, size_bytes, &to, err);
        float *read = t->strategy.precision.compute == DT_F32 ? pinned_window_place(&r->window, to) : r->wide;
        rc = rc != 0 ? rc : checkpoint_read(r->checkpoint, "weight", x->name, x->numel, s->first + done, n, read, err);
        rc = rc == 0 ? put_weights(t, &r->window, u, from + s->at + done, n, to, read, DT_F32, err) : rc;
        home_back(part, size_bytes, r->window.stream);
        part.at += size_bytes;
    }
    return rc;
}

/* Reads what the optimizer keeps of one span of the owned part. */
static int read_states(struct trainer *t, struct reading *r, const struct span *s, struct dt_error *err)
{
    const struct optimizer_group *g = optimizer_group_of(&t->optimizer, s->tensor);
    enum dt_dtype type = t->strategy.precision.states;
    int rc = 0;
    for (int k = 0; k < g->states; k++) {
        for (int64_t done = 0, n, most = most_of(r, type); done < s->count && rc == 0; done += n) {
            n = s->count - done < most ? s->count - done : most;
            struct home_part part = optimizer_state(&t->optimizer, k, s->tensor->unit, s->at + done);
            size_t size_bytes = (size_t)n * dt_dtype_size(type);
            void *to;
            rc = bring_to_write(&r->window, part, size_bytes, &to, err);
            rc = rc != 0 ? rc : read_piece_of(r, g->row->state[k], s, done, n, to, type, err);
            home_back(part, size_bytes, r->window.stream);
        }
    }
    return rc;
}

static int read_unit(struct trainer *t, struct reading *r, int u, struct dt_error *err)
{
    struct strategy *s = &t->strategy;
    int64_t first, count, owned_first, owned_count;
    (void)strategy_resident(s, u, &first, &count);
    if (r->kept_alone) {
        trainer_kept_range(t, u, &first, &count);
    }
    strategy_owned(s, u, &owned_first, &owned_count);
    for (int i = 0; i < t->chain.tensor_count; i++) {
        const struct tensor *x = &t->chain.tensors[i];
        struct span span;
        if (x->unit != u) {
            continue;
        }
        if (tensor_span(x, first, count, &span) && read_weights(t, r, u, &span, first, err) != 0) {
            return -1;
        }
        if (!r->weights_only && strategy_trains(s, u) && tensor_span(x, owned_first, owned_count, &span) &&
            read_states(t, r, &span, err) != 0) {
            return -1;
        }
    }
    return 0;
}

static int read_buffers(struct trainer *t, struct reading *r, struct dt_error *err)
{
    enum dt_dtype type = t->strategy.precision.buffers;
    int rc = 0;
    for (int i = 0; i < t->chain.tensor_count; i++) {
        struct span span;
        if (t->chain.tensors[i].unit >= 0 || !tensor_span(&t->chain.tensors[i], 0, t->chain.buffer_count, &span)) {
            continue;
        }
        for (int64_t done = 0, n, most = most_of(r, type); done < span.count && rc == 0; done += n) {
            n = span.count - done < most ? span.count - done : most;
            char *to = (char *)t->stepper.walk.buffers + (size_t)(span.at + done) * dt_dtype_size(type);
            rc = read_piece_of(r, "weight", &span, done, n, to, type, err);
        }
    }
    return rc;
}

static const char *hook_purpose(const struct trainer *t, const struct hook_state *x, char out[32])
{
    (void)snprintf(out, 32, x->error ? CHECKPOINT_COMM_ERROR "%d" : CHECKPOINT_COMM_Q, t->rank);
    return out;
}

/* Gradients, and with them a hook's errors, are sums over the micro-steps of a full step, and with global_tokens over
 * their samples. Returns what saved errors are multiplied by to be those of this job's steps. */
static double error_factor(struct trainer *t, const struct checkpoint_state *saved)
{
    const struct job_training *is = &t->job->training;
    struct job_training was = *is;
    job_read_training(saved->job != NULL ? saved->job : "{}", &t->arena, &was);
    int64_t micro_steps = was.gradient_accumulation_steps;
    double samples = is->loss_normalization == LOSS_GLOBAL_TOKENS
                         ? (double)is->batch_size_per_gpu / (double)was.batch_size_per_gpu
                         : 1;
    return samples * trainer_gradient_scale(t, 1, t->micro_steps) * (double)t->micro_steps /
           (trainer_gradient_scale(t, 1, micro_steps) * (double)micro_steps);
}

/* What the communication hook kept, if this checkpoint has it for this rank of as many ranks. Otherwise the hook
 * begins anew, which is said where something is lost. All ranks find the same. */
static int read_hook_states(struct trainer *t, struct reading *r, struct dt_error *err)
{
    const struct checkpoint_state *saved = checkpoint_get_state(r->checkpoint);
    bool any = false, all = saved->ranks == t->size;
    char purpose[32];
    struct hook_state x;
    hook_state_loaded(&t->strategy, true); /* so that it says what it would keep */
    for (int i = 0; hook_state_at(&t->strategy, i, &x); i++) {
        bool has = checkpoint_has(r->checkpoint, hook_purpose(t, &x, purpose), x.tensor->name, x.count);
        any = any || has;
        all = all && (has || x.count == 0);
    }
    double factor = any && all ? error_factor(t, saved) : 1;
    /* the hook has cleared its memory on that stream, and reading waits for no stream */
    if (any && all && dt_stream_finish(t->world->communication, CLEAR_LIMIT_S, err) != 0) {
        return -1;
    }
    for (int i = 0; any && all && hook_state_at(&t->strategy, i, &x); i++) {
        const struct span span = {.tensor = x.tensor, .count = x.count};
        for (int64_t done = 0, n, most = most_of(r, x.type); done < x.count; done += n) {
            n = x.count - done < most ? x.count - done : most;
            char *to = (char *)x.data + (size_t)done * dt_dtype_size(x.type);
            if (read_piece_of(r, hook_purpose(t, &x, purpose), &span, done, n, to, x.type, err) != 0) {
                return -1;
            }
        }
        if (x.error && x.count > 0 && factor != 1) {
            t->world->device->kernels->scale(
                t->world->compute,
                &(struct dt_scale_args){.x = x.data, .count = x.count, .factor = factor, .type = x.type});
        }
    }
    hook_state_loaded(&t->strategy, any && all);
    if (t->rank == 0 && any && !all) {
        observers_say(&t->observers,
                      "train: the checkpoint's errors of power_sgd are of %d ranks%s: here they begin as zeros",
                      saved->ranks, saved->ranks == t->size ? " and other matrices" : "");
    }
    return 0;
}

enum what { ALL, WEIGHTS, SNAPSHOT };

/* Reads weights and buffers, and the optimizer's state if it is wanted. */
static int read_all(struct trainer *t, struct checkpoint *c, enum what what, struct dt_error *err)
{
    bool weights_only = what == WEIGHTS;
    const struct precision *p = &t->strategy.precision;
    bool wide = p->compute != DT_F32 || p->states != DT_F32 || p->wire != DT_F32;
    struct reading r = {.checkpoint = c,
                        .wide = wide ? dt_alloc(PINNED_WINDOW_BYTES) : NULL,
                        .weights_only = weights_only,
                        .kept_alone = what == SNAPSHOT};
    checkpoint_progress(c, trainer_pulse, t->world->page);
    int rc = pinned_window_open(&r.window, t->world->device, t->world->compute, err);
    for (int u = 0; u < t->chain.unit_count && rc == 0; u++) {
        rc = read_unit(t, &r, u, err);
        dt_page_pulse(t->world->page);
    }
    rc = rc == 0 ? read_buffers(t, &r, err) : rc;
    rc = rc == 0 && !weights_only ? read_hook_states(t, &r, err) : rc;
    rc = rc == 0 ? fill_buffers(t, &r.window, NULL, t->chain.buffer_count, err) : rc;
    pinned_window_close(&r.window);
    free(r.wide);
    return rc;
}

/* What is computed beside the weights, on a rank that gets these from others. */
static int fill_constants(struct trainer *t, struct dt_error *err)
{
    struct pinned_window window = {0};
    int rc = pinned_window_open(&window, t->world->device, t->world->compute, err);
    rc = rc == 0 ? fill_buffers(t, &window, NULL, t->chain.buffer_count, err) : rc;
    pinned_window_close(&window);
    return rc;
}

int trainer_check_model(const struct job *job, const char *path, struct dt_error *err)
{
    struct checkpoint *c = NULL;
    if (checkpoint_open(&c, path, err) != 0) {
        return -1;
    }
    const char *saved = checkpoint_get_state(c)->job;
    int rc = saved != NULL && job->text != NULL ? job_compare_model(saved, job->text, err) : 0;
    checkpoint_close(c);
    return rc == 0 ? 0 : dt_wrap(err, "%s", path);
}

int trainer_load_weights(struct trainer *t, const char *path, struct dt_error *err)
{
    struct checkpoint *c = NULL;
    if (checkpoint_open(&c, path, err) != 0) {
        return -1;
    }
    int rc = read_all(t, c, WEIGHTS, err);
    t->run.step = checkpoint_get_state(c)->step;
    checkpoint_close(c);
    return rc == 0 ? 0 : dt_wrap(err, "%s", path);
}

int trainer_load_state(struct trainer *t, const char *path, int64_t *samples, struct dt_error *err)
{
    struct checkpoint *c = NULL;
    if (checkpoint_open(&c, path, err) != 0) {
        return -1;
    }
    int rc = read_all(t, c, ALL, err);
    t->optimizer.steps = checkpoint_get_state(c)->optimizer_steps;
    *samples = checkpoint_get_state(c)->horizon.samples;
    checkpoint_close(c);
    return rc == 0 ? 0 : dt_wrap(err, "%s", path);
}

/* The checkpoint that the run has on disk, having gone on from `path`. Of a snapshot without one the path is
 * where it would be: beside it are the files that the run began with. */
static void note_file(struct trainer *t, const char *path)
{
    struct saved_snapshot x;
    free(t->saver.saved_path);
    if (trainer_is_snapshot(path, &x)) {
        t->saver.saved_step = x.file_step;
        t->saver.saved_path =
            checkpoint_path(t->job->checkpointing.checkpoint_dir, x.file_step >= 0 ? x.file_step : x.id.step);
    } else {
        t->saver.saved_step = t->run.step;
        t->saver.saved_path = dt_strdup(path);
    }
    atomic_store(&t->world->page->saved_step, t->saver.saved_step);
}

/* optimizer.groups that were accepted: each tensor is still updated by the optimizer whose state was saved. */
static int check_groups(const struct trainer *t, const struct checkpoint *c, const struct job_changes *changes,
                        struct dt_error *err)
{
    bool changed = false;
    for (int i = 0; i < changes->count; i++) {
        changed |= strcmp(changes->list[i].key, "optimizer.groups") == 0;
    }
    for (int i = 0; changed && i < t->chain.tensor_count; i++) {
        const struct tensor *x = &t->chain.tensors[i];
        bool trained = x->unit >= 0 && strategy_trains(&t->strategy, x->unit);
        const struct optimizer_group *g = trained ? optimizer_group_of(&t->optimizer, x) : NULL;
        for (int k = 0; g != NULL && k < g->states; k++) {
            if (!checkpoint_holds(c, g->row->state[k], x->name, 0, x->numel)) {
                return dt_fail(
                    err, DT_INVALID,
                    "%s: optimizer.groups: %s goes by %s now, and the saved state is of another optimizer; "
                    "give it its old one, or begin anew with --fresh or another output_dir" JOB_WEIGHTS_ALONE,
                    checkpoint_get_path(c), x->name, g->row->name);
            }
        }
    }
    return 0;
}

int trainer_load(struct trainer *t, const char *path, struct job_changes *changes, struct dt_error *err)
{
    struct checkpoint *c = NULL, *of = NULL; /* what is read, and the state */
    struct saved_snapshot x;
    bool snapshot = trainer_is_snapshot(path, &x);
    if (snapshot ? trainer_open_snapshot(t, &x, &c, &of, err) != 0 : checkpoint_open(&c, path, err) != 0) {
        return -1;
    }
    of = snapshot ? of : c;
    const struct checkpoint_state *state = checkpoint_get_state(of);
    int rc = trainer_check_saved(t, state, checkpoint_get_path(of), changes, err);
    rc = rc == 0 && !snapshot ? check_groups(t, c, changes, err) : rc;
    if (rc == 0) {
        rc = c != NULL ? read_all(t, c, snapshot ? SNAPSHOT : ALL, err) : fill_constants(t, err);
    }
    if (rc == 0) {
        trainer_take_place(t, state, changes);
        note_file(t, path);
        trainer_set_config(t, state->model_config);
        t->saver.rewritten = state->horizon.of.micro_batch == 0;
        t->optimizer.steps = state->optimizer_steps;
        t->run.blank_steps = state->blank_steps;
        atomic_store(&t->world->page->step, t->run.step);
    }
    checkpoint_close(of != c ? of : NULL);
    checkpoint_close(c);
    return rc;
}
