/* Weights at the beginning, checkpoints in between, the output folder. Everything is expressed
 * in logical elements of named tensors, so any strategy and world size reads what any other
 * wrote: a rank loads exactly what it keeps. Ranks agree through the store; no collective is
 * needed, so a save cannot hang in one. */
#include "worker/run/trainer.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "kernels/kernels.h"
#include "worker/checkpoints/checkpoint_export.h"
#include "worker/checkpoints/course.h"
#include "worker/checkpoints/hf.h"
#include "worker/engine/pinned_window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define AGREE_TIMEOUT_S 600.0
#define FOR_EVER_S 1e9

static void pulse(void *page)
{
    dt_page_pulse(page);
}

/* ---- weights ---- */

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

/* Initial or given weights of what is resident of unit u, piece by piece: made where they stay,
 * or in `room` (PINNED_WINDOW_BYTES) if they are rounded then. */
static int fill_unit(struct trainer *t, struct pinned_window *window, const struct hf *hf, int u, void *room,
                     struct dt_error *err)
{
    struct strategy *s = &t->strategy;
    int64_t first, count, most = (int64_t)(PINNED_WINDOW_BYTES / dt_dtype_size(s->precision.masters));
    struct home_part part = strategy_resident(s, u, &first, &count);
    int rc = 0;
    for (int64_t done = 0, n; done < count && rc == 0; done += n) {
        n = count - done < most ? count - done : most;
        size_t size_bytes = (size_t)n * s->type_size;
        void *to;
        rc = bring_to_write(window, part, size_bytes, &to, err);
        void *values = room != NULL ? room : pinned_window_place(window, to);
        if (rc == 0 && hf == NULL) {
            init_unit(&t->chain, u, (uint64_t)t->job->training.seed, first + done, n, s->precision.masters, values);
        } else if (rc == 0) {
            rc = hf_read_unit(hf, u, first + done, n, s->precision.masters, values, err);
        }
        rc = rc == 0 ? put_weights(t, window, u, first + done, n, to, values, s->precision.masters, err) : rc;
        home_back(part, size_bytes, window->stream);
        part.at += size_bytes;
        dt_page_pulse(t->world->page);
    }
    return rc;
}

/* The constants behind the buffers, in pieces as well. */
static int fill_constants(struct trainer *t, struct pinned_window *window, struct dt_error *err)
{
    enum dt_dtype real = t->strategy.precision.buffers;
    int64_t end = chain_buffers(&t->chain), most = (int64_t)(PINNED_WINDOW_BYTES / dt_dtype_size(real));
    for (int64_t done = t->chain.buffer_count, n; done < end; done += n) {
        n = end - done < most ? end - done : most;
        char *at = (char *)t->stepper.walk.buffers + (size_t)done * dt_dtype_size(real);
        void *values = pinned_window_place(window, at);
        init_unit(&t->chain, -1, 0, done, n, real, values);
        if (put(window, at, real, values, real, n, err) != 0) {
            return -1;
        }
    }
    return 0;
}

/* The same of all buffers, in pieces as well. */
static int fill_buffers(struct trainer *t, struct pinned_window *window, const struct hf *hf, struct dt_error *err)
{
    enum dt_dtype real = t->strategy.precision.buffers;
    int64_t count = t->chain.buffer_count, most = (int64_t)(PINNED_WINDOW_BYTES / dt_dtype_size(real));
    for (int64_t done = 0, n; done < count; done += n) {
        n = count - done < most ? count - done : most;
        char *at = (char *)t->stepper.walk.buffers + (size_t)done * dt_dtype_size(real);
        void *values = pinned_window_place(window, at);
        if (hf == NULL) {
            init_unit(&t->chain, -1, (uint64_t)t->job->training.seed, done, n, real, values);
        } else if (hf_read_unit(hf, -1, done, n, real, values, err) != 0) {
            return -1;
        }
        if (put(window, at, real, values, real, n, err) != 0) {
            return -1;
        }
    }
    return 0;
}

/* Gives first values to the tensors of the head that the folder lacks, and names them in a line. */
static void begin_head(struct trainer *t, struct hf *hf)
{
    struct dt_text names;
    dt_text_init(&names);
    hf_begin_head(hf, (uint64_t)t->job->training.seed, &names);
    if (names.size > 0 && t->rank == 0) {
        observers_say(&t->observers, "train: model.load: %s: does not have %s; they begin anew", t->job->model.load,
                      dt_text_str(&names));
    }
    dt_text_clear(&names);
}

int trainer_init_weights(struct trainer *t, struct dt_error *err)
{
    struct hf *hf = NULL;
    struct pinned_window window = {0};
    if (t->job->model.load && hf_open(&hf, t->job->model.load, &t->chain, err) != 0) {
        return dt_wrap(err, "model.load");
    }
    if (hf != NULL) {
        begin_head(t, hf);
    }
    void *room = precision_mixed(&t->strategy.precision) ? dt_alloc(PINNED_WINDOW_BYTES) : NULL;
    int rc = pinned_window_open(&window, t->world->device, t->world->compute, err);
    for (int u = 0; u < t->chain.unit_count && rc == 0; u++) {
        rc = fill_unit(t, &window, hf, u, room, err);
    }
    rc = rc == 0 ? fill_buffers(t, &window, hf, err) : rc;
    rc = rc == 0 ? fill_constants(t, &window, err) : rc;
    pinned_window_close(&window);
    free(room);
    hf_close(hf);
    return rc;
}

/* Calls back for each piece of a tensor inside [first, first + count) of its unit. */
struct span {
    const struct tensor *tensor;
    int64_t at, first, count; /* at: elements from the start of the range; first: in the tensor */
};

static bool cut(const struct tensor *x, int64_t first, int64_t count, struct span *out)
{
    int64_t begin = x->offset > first ? x->offset : first, end = x->offset + x->numel;
    end = end < first + count ? end : first + count;
    *out = (struct span){.tensor = x, .at = begin - first, .first = begin - x->offset, .count = end - begin};
    return end > begin;
}

/* What a checkpoint is read with. */
struct reading {
    struct checkpoint *checkpoint;
    struct pinned_window window;
    float *wide; /* PINNED_WINDOW_BYTES, where weights or state are not F32 */
};

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

/* Reads one span of the resident weights of unit u. */
static int read_weights(struct trainer *t, struct reading *r, int u, const struct span *s, struct dt_error *err)
{
    const struct tensor *x = s->tensor;
    int64_t first, count, most = (int64_t)(PINNED_WINDOW_BYTES / dt_dtype_size(t->strategy.precision.masters));
    struct home_part part = strategy_resident(&t->strategy, u, &first, &count);
    int rc = 0;
    part.at += (size_t)s->at * t->strategy.type_size;
    for (int64_t done = 0, n; done < s->count && rc == 0; done += n) {
        n = s->count - done < most ? s->count - done : most;
        size_t size_bytes = (size_t)n * t->strategy.type_size;
        void *to;
        rc = bring_to_write(&r->window, part, size_bytes, &to, err);
        float *read = t->strategy.precision.compute == DT_F32 ? pinned_window_place(&r->window, to) : r->wide;
        rc = rc != 0 ? rc : checkpoint_read(r->checkpoint, "weight", x->name, x->numel, s->first + done, n, read, err);
        rc = rc == 0 ? put_weights(t, &r->window, u, first + s->at + done, n, to, read, DT_F32, err) : rc;
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
    strategy_owned(s, u, &owned_first, &owned_count);
    for (int i = 0; i < t->chain.tensor_count; i++) {
        const struct tensor *x = &t->chain.tensors[i];
        struct span span;
        if (x->unit != u) {
            continue;
        }
        if (cut(x, first, count, &span) && read_weights(t, r, u, &span, err) != 0) {
            return -1;
        }
        if (strategy_trains(s, u) && cut(x, owned_first, owned_count, &span) && read_states(t, r, &span, err) != 0) {
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
        if (t->chain.tensors[i].unit >= 0 || !cut(&t->chain.tensors[i], 0, t->chain.buffer_count, &span)) {
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

int trainer_load(struct trainer *t, const char *path, struct job_changes *changes, struct dt_error *err)
{
    struct reading r = {0};
    struct checkpoint *c = NULL;
    if (checkpoint_open(&c, path, err) != 0) {
        return -1;
    }
    r.checkpoint = c;
    checkpoint_progress(c, pulse, t->world->page);
    const struct checkpoint_state *state = checkpoint_get_state(c);
    int rc = trainer_check_saved(t, state, path, changes, err);
    if (rc == 0) {
        r.wide = t->strategy.precision.compute != DT_F32 || t->strategy.precision.states != DT_F32
                     ? dt_alloc(PINNED_WINDOW_BYTES)
                     : NULL;
        rc = pinned_window_open(&r.window, t->world->device, t->world->compute, err);
    }
    for (int u = 0; u < t->chain.unit_count && rc == 0; u++) {
        rc = read_unit(t, &r, u, err);
        dt_page_pulse(t->world->page);
    }
    rc = rc == 0 ? read_buffers(t, &r, err) : rc;
    rc = rc == 0 ? fill_constants(t, &r.window, err) : rc;
    if (rc == 0) {
        trainer_take_place(t, state, changes);
        t->saver.saved_step = t->run.step;
        free(t->saver.saved_path);
        t->saver.saved_path = dt_strdup(path);
        trainer_set_config(t, state->model_config);
        t->saver.rewritten = state->horizon.of.micro_batch == 0;
        t->optimizer.steps = state->optimizer_steps;
        t->run.blank_steps = state->step > state->optimizer_steps ? state->step - state->optimizer_steps : 0;
        atomic_store(&t->world->page->step, t->run.step);
        atomic_store(&t->world->page->saved_step, t->run.step);
    }
    pinned_window_close(&r.window);
    free(r.wide);
    checkpoint_close(c);
    return rc;
}

/* ---- save ---- */

/* State on its way from its home to a file: through the window, and as F32. */
struct saving {
    struct trainer *t;
    struct checkpoint_reader reader;
    struct pinned_window window;
    float *floats;            /* CHECKPOINT_PIECE, where the state is not all F32 */
    struct home_part brought; /* the piece that is being written; home null: none */
    size_t brought_bytes;
    bool failed; /* the device, not the disk */
};
/* The memory from which a slice is saved. */
struct saved {
    struct home_part part; /* home null: `at` is bytes from t->stepper.walk.buffers */
    enum dt_dtype type;
};
_Static_assert((size_t)CHECKPOINT_PIECE * sizeof(double) <= PINNED_WINDOW_BYTES,
               "a piece goes through the window at once");

static void give_back(struct saving *x)
{
    if (x->brought.home != NULL) {
        home_back(x->brought, x->brought_bytes, x->window.stream);
        x->brought.home = NULL;
    }
}

static int read_piece(void *context, const void *at, int64_t first, int64_t count, const float **out,
                      struct dt_error *err)
{
    struct saving *x = context;
    const struct saved *from = at;
    size_t size = dt_dtype_size(from->type), size_bytes = (size_t)count * size;
    struct home_part part = {from->part.home, from->part.at + (size_t)first * size};
    const void *here = (const char *)x->t->stepper.walk.buffers + part.at, *values;
    give_back(x); /* the piece before was written */
    if (part.home != NULL) {
        here = home_bring(part, size_bytes, HOME_READ, x->window.stream);
        x->brought = part;
        x->brought_bytes = size_bytes;
    }
    if (pinned_window_look(&x->window, here, size_bytes, &values, err) != 0) {
        x->failed = true;
        return -1;
    }
    dt_page_pulse(x->t->world->page);
    *out = values;
    if (from->type != DT_F32) {
        dt_cpu_cast(&(struct dt_cast_args){x->floats, values, count, DT_F32, from->type});
        *out = x->floats;
    }
    return 0;
}

/* All slices of this rank so far, and what each is read from. */
struct slices {
    struct checkpoint_slice *slice;
    struct saved *from;
    int count;
};

static void add_slice(struct saving *saving, struct slices *to, const struct tensor *x, const char *purpose,
                      const struct span *span, struct home_part part, enum dt_dtype type)
{
    struct saved *from = &to->from[to->count];
    struct checkpoint_slice *y = &to->slice[to->count++];
    *from = (struct saved){part, type};
    *y = (struct checkpoint_slice){.name = x->name,
                                   .purpose = purpose,
                                   .role = x->rule.role,
                                   .dims = x->dims,
                                   .numel = x->numel,
                                   .first = span->first,
                                   .count = span->count,
                                   .data = from,
                                   .reader = &saving->reader};
    memcpy(y->shape, x->shape, sizeof y->shape);
}

/* This rank's shares of all tensors: weights, and of those that are trained the optimizer's state;
 * rank 0 has all buffers. */
static void list_slices(struct saving *saving, struct slices *out)
{
    struct trainer *t = saving->t;
    struct strategy *s = &t->strategy;
    struct optimizer *o = &t->optimizer;
    const struct precision *types = &s->precision;
    for (int i = 0; i < t->chain.tensor_count && strategy_counts(s); i++) {
        const struct tensor *x = &t->chain.tensors[i];
        int64_t first, count, owned_first, owned_count;
        struct span span;
        if (x->unit < 0) {
            if (t->rank == 0 && cut(x, 0, t->chain.buffer_count, &span)) {
                struct home_part at = {.at = (size_t)x->offset * dt_dtype_size(types->buffers)};
                add_slice(saving, out, x, "weight", &span, at, types->buffers);
            }
            continue;
        }
        strategy_share(s, x->unit, &first, &count);
        strategy_owned(s, x->unit, &owned_first, &owned_count);
        if (!cut(x, first, count, &span)) {
            continue;
        }
        bool trained = strategy_trains(s, x->unit);
        int64_t at = span.at + first - owned_first; /* from the start of the owned part */
        add_slice(saving, out, x, "weight", &span, optimizer_weights(o, x->unit, at),
                  trained ? types->masters : types->compute);
        const struct optimizer_group *g = optimizer_group_of(o, x);
        for (int k = 0; k < g->states && trained; k++) {
            add_slice(saving, out, x, g->row->state[k], &span, optimizer_state(o, k, x->unit, at), types->states);
        }
    }
}

/* This rank's file. A device that fails meanwhile sets t->lost: that is no refusal of the disk,
 * to be tried again later. */
static int write_slices(struct trainer *t, const struct checkpoint_state *state, struct dt_text *entry,
                        struct dt_error *err)
{
    struct saving saving = {.t = t, .reader = {.read = read_piece, .context = &saving}};
    const struct precision *p = &t->strategy.precision;
    bool wide = p->masters == DT_F32 && p->compute == DT_F32 && p->states == DT_F32 && p->buffers == DT_F32;
    size_t most = (size_t)((1 + DT_STATES_MAX) * t->chain.tensor_count + 1);
    struct slices all = {.slice = dt_alloc(most * sizeof *all.slice), .from = dt_alloc(most * sizeof *all.from)};
    list_slices(&saving, &all);
    int rc = pinned_window_open(&saving.window, t->world->device, t->world->compute, err);
    saving.failed = rc != 0;
    saving.floats = !wide ? dt_alloc(CHECKPOINT_PIECE * sizeof *saving.floats) : NULL;
    if (rc == 0) {
        rc = checkpoint_write_slices(t->job->checkpointing.checkpoint_dir, state, t->rank, t->size, all.slice,
                                     all.count, entry, err);
        give_back(&saving);
    }
    pinned_window_close(&saving.window);
    free(saving.floats);
    free(all.from);
    free(all.slice);
    t->lost = saving.failed;
    return rc;
}

static double save_timeout_s(const struct trainer *t)
{
    double limit_s = t->job->checkpointing.save_timeout_s;
    return limit_s > 0 ? limit_s : FOR_EVER_S;
}

/* Rank 0: waits for everybody's entry, then makes the checkpoint complete. */
static int commit(struct trainer *t, const struct checkpoint_state *state, struct dt_text *own, struct dt_error *err)
{
    const struct job_checkpointing *job = &t->job->checkpointing;
    struct dt_text *texts = dt_alloc((size_t)t->size * sizeof *texts);
    const char **entries = dt_alloc((size_t)t->size * sizeof *entries);
    int rc = 0;
    entries[0] = dt_text_str(own);
    for (int r = 1; r < t->size; r++) {
        char key[64];
        snprintf(key, sizeof key, "train/save/%lld/%d", (long long)t->saver.tries, r);
        dt_text_init(&texts[r]);
        if (rc == 0 && trainer_await(t, key, &texts[r], save_timeout_s(t), err) != 0) {
            rc = dt_wrap(err, "checkpoint of step %lld: rank %d", (long long)state->step, r);
        }
        entries[r] = dt_text_str(&texts[r]);
        if (rc == 0) {
            (void)dt_store_delete(t->world->store, key, NULL, NULL);
        }
        dt_page_pulse(t->world->page);
    }
    for (int r = 0; r < t->size && rc == 0; r++) {
        rc = trainer_hear(entries[r], err);
        trainer_name_rank(rc == 0 ? -1 : r, err);
    }
    if (rc == 0) {
        struct checkpoint_keep keep = {.last_n = (int)job->keep_last_n, .named_step = t->saver.named_step};
        rc = checkpoint_commit(job->checkpoint_dir, state, entries, t->size, &keep, err);
    }
    for (int r = 1; r < t->size; r++) {
        dt_text_clear(&texts[r]);
    }
    free(texts);
    free(entries);
    return rc;
}

/* What stands in the way of a save, or was moved away under it, may be as it was at the next
 * one. */
static void soften(struct dt_error *why)
{
    why->status = why->status == DT_INVALID || why->status == DT_NOT_FOUND ? DT_IO : why->status;
}

int trainer_save(struct trainer *t, struct dt_error *err)
{
    if (trainer_settle(t, "save", err) != 0) {
        return -1;
    }
    struct dt_text entry, verdict;
    dt_text_init(&entry);
    dt_text_init(&verdict);
    struct checkpoint_state state = {.step = t->run.step,
                                     .epoch = t->run.epoch,
                                     .position = t->run.position,
                                     .tokens = t->run.tokens,
                                     .optimizer_steps = t->optimizer.steps,
                                     .horizon = trainer_horizon(t),
                                     .seed = t->job->training.seed,
                                     .data_hash = t->feeds.train.hash,
                                     .data = t->feeds.train.files,
                                     .data_count = t->feeds.train.file_count,
                                     .tokenizer = t->feeds.train.tokenizer,
                                     .job = t->job->text ? t->job->text : "{}",
                                     .model_config = t->saver.model_config,
                                     .ranks = t->size,
                                     .round = t->world->round,
                                     .run_id = t->world->run_id,
                                     .launch = t->world->launch};
    struct dt_error why;
    double begin_s = dt_now_s();
    atomic_store(&t->world->page->save_begin_s, begin_s);
    char key[64];
    snprintf(key, sizeof key, "train/save/%lld/%d", (long long)++t->saver.tries, t->rank);
    int rc = 0;
    bool refused = false;
    if (write_slices(t, &state, &entry, &why) != 0) {
        soften(&why);
        trainer_tell_failure(&entry, &why);
    }
    if (t->lost) { /* nobody hears of it as of a disk: this rank ends, and with it the round */
        *err = why;
        rc = -1;
    } else if (t->rank == 0) {
        refused = commit(t, &state, &entry, &why) != 0;
        if (refused) {
            soften(&why);
            checkpoint_discard(t->job->checkpointing.checkpoint_dir, &state);
        } else { /* complete, whether or not the others live to hear of it: the next round begins
                  * there */
            atomic_store(&t->world->page->saved_step, t->run.step);
        }
    } else {
        rc = dt_store_set(t->world->store, key, dt_text_str(&entry), entry.size, err);
    }
    if (rc == 0) {
        snprintf(key, sizeof key, "train/saved/%lld", (long long)t->saver.tries);
        /* Rank 0 waits for each of the others in turn, and then writes. */
        rc = trainer_share(t, key, &verdict, refused ? &why : NULL, t->size * save_timeout_s(t) + AGREE_TIMEOUT_S, err);
    }
    if (rc == 0) {
        t->saver.saved_step = t->run.step;
        free(t->saver.saved_path);
        t->saver.saved_path = checkpoint_path(t->job->checkpointing.checkpoint_dir, t->run.step);
        atomic_store(&t->world->page->saved_step, t->run.step);
        const struct report saved = {.of = t,
                                     .step = t->run.step,
                                     .total_steps = t->run.total_steps,
                                     .round = t->world->round,
                                     .save_s = dt_now_s() - begin_s};
        observers_report(&t->observers, &saved, MOMENT_SAVED);
    }
    dt_page_pulse(t->world->page);
    dt_text_clear(&entry);
    dt_text_clear(&verdict);
    return rc;
}

/* ---- room on the disk ---- */

double trainer_checkpoint_bytes(const struct trainer *t)
{
    double header = 256, sums = 24.0 / (1 << 20); /* per slice in header and manifest; per byte
                                                   * in the manifest */
    int each = 1 + optimizer_row_states(t->job->optimizer.row, &t->job->optimizer.numbers);
    double data = (double)each * sizeof(float) * (double)t->chain.parameter_count;
    return data * (1 + sums) + header * each * t->chain.tensor_count * (t->shards > 1 ? 2 : 1) + 4096.0 * t->size;
}

/* Days of work may lie in what is set aside, so it stays; each start says what that costs and
 * how to be rid of it. */
static double say_aside(struct trainer *t)
{
    struct dt_text remove;
    double bytes;
    char text[32];
    dt_text_init(&remove);
    char *model = dt_format("%s/model", t->job->output_dir);
    int count = course_aside(t->job->checkpointing.checkpoint_dir, model, &bytes, &remove);
    free(model);
    if (count > 0 && t->world->round <= 1) {
        observers_say(
            &t->observers,
            "train: %s: %d folder%s of earlier courses %s set aside and take%s %s; what you do not need goes with: %s",
            t->job->checkpointing.checkpoint_dir, count, count == 1 ? "" : "s", count == 1 ? "is" : "are",
            count == 1 ? "s" : "", dt_text_bytes(bytes, text, sizeof text), dt_text_str(&remove));
    }
    dt_text_clear(&remove);
    return bytes;
}

void trainer_check_disk(struct trainer *t)
{
    const struct job_checkpointing *job = &t->job->checkpointing;
    if (t->rank != 0) {
        return;
    }
    double aside_bytes = say_aside(t);
    int64_t left = t->run.total_steps - t->run.step, every = job->save_every_n_steps,
            saves = every > 0 ? (left + every - 1) / every : left > 0;
    int64_t *steps = NULL;
    int there = 0;
    double free_bytes = dt_file_free_bytes(job->checkpoint_dir);
    if (saves <= 0 || free_bytes < 0 || checkpoint_steps(job->checkpoint_dir, &steps, &there, NULL) != 0) {
        return;
    }
    int whole = 0;
    for (int i = 0; i < there; i++) {
        char *path = checkpoint_path(job->checkpoint_dir, steps[i]);
        whole += checkpoint_looks_whole(path);
        free(path);
    }
    free(steps);
    if (job->keep_last_n > 0) { /* the new one is complete before the oldest goes */
        int64_t more = job->keep_last_n + 1 - whole;
        saves = saves < more ? saves : more;
        saves = saves > 1 ? saves : 1;
    }
    double one = trainer_checkpoint_bytes(t), need = one * (double)saves;
    char one_text[32], need_text[32], free_text[32], aside_text[32], aside[64] = "";
    if (aside_bytes > 0) {
        (void)snprintf(aside, sizeof aside, " (%s set aside)",
                       dt_text_bytes(aside_bytes, aside_text, sizeof aside_text));
    }
    if (need > free_bytes) {
        observers_say(&t->observers,
                      "train: warning: %s: %s free%s, but %lld more checkpoint%s of %s need%s %s; make room, or lower "
                      "checkpointing.keep_last_n",
                      job->checkpoint_dir, dt_text_bytes(free_bytes, free_text, sizeof free_text), aside,
                      (long long)saves, saves == 1 ? "" : "s", dt_text_bytes(one, one_text, sizeof one_text),
                      saves == 1 ? "s" : "", dt_text_bytes(need, need_text, sizeof need_text));
    }
}

int trainer_export(struct trainer *t, struct dt_error *err)
{
    char *folder = dt_format("%s/model", t->job->output_dir);
    struct checkpoint *c = NULL;
    struct dt_text notes;
    dt_text_init(&notes);
    int rc = checkpoint_open(&c, t->saver.saved_path, err);
    if (rc == 0) {
        checkpoint_progress(c, pulse, t->world->page);
        if (t->run.finished_before && checkpoint_is_exported(c, folder)) {
            goto out;
        }
        rc = checkpoint_export(c, folder, &notes, err);
    }
    if (rc == 0 && notes.size > 0) {
        observers_say(&t->observers, "train: %s", dt_text_str(&notes));
    }
    if (rc == 0) {
        observers_event(&t->observers, "export", "");
    } else if (trainer_disk_refused(err)) { /* nothing is lost, and another round would find the
                                             * same disk */
        (void)dt_wrap(err, "the model is not exported (%s is complete; dtckpt export writes it where there is room)",
                      t->saver.saved_path);
        err->status = DT_INVALID;
    } else {
        (void)dt_wrap(err, "export of the model");
    }
out:
    dt_text_clear(&notes);
    checkpoint_close(c);
    free(folder);
    return rc;
}

/* ---- the output folder ---- */

static void write_env(const struct trainer *t, struct dt_text *out)
{
    char host[256] = "", when[32];
    (void)gethostname(host, sizeof host - 1);
    dt_wall_text(dt_wall_s(), when, sizeof when);
    const char *text = t->job->text ? t->job->text : "";
    dt_text_printf(out, "{\n  \"version\": \"%s\",\n  \"time\": \"%s\",\n  \"host\": ", DT_VERSION, when);
    dt_text_json(out, host, strlen(host));
    dt_text_printf(out,
                   ",\n  \"ranks\": %d,\n  \"nodes\": %d,\n  \"round\": %d,\n  \"device\": \"%s\",\n  \"kernels\": "
                   "\"%s\",\n  \"threads\": %d,\n",
                   t->size, t->world->node_count, t->world->round, t->world->device->ops->name,
                   t->world->device->kernels->name, t->world->threads);
    dt_text_printf(out, "  \"job_hash\": \"%016llx\",\n  \"data_hash\": \"%016llx\"\n}\n",
                   (unsigned long long)XXH3_64bits(text, strlen(text)), (unsigned long long)t->feeds.train.hash);
}

int trainer_write_folder(struct trainer *t, struct dt_error *err)
{
    if (t->rank != 0) {
        return 0;
    }
    const char *dir = t->job->output_dir;
    char *logs = dt_format("%s/logs", dir), *job = dt_format("%s/job.json", dir), *env = dt_format("%s/env.json", dir);
    struct dt_text text;
    dt_text_init(&text);
    bool stays = t->run.finished_before && dt_file_exists(job);
    int rc = dt_file_mkdirs(logs, err);
    static const char *const names[] = {"job.json", "env.json", "metrics.jsonl", NULL};
    dt_file_remove_cut(dir, names);
    if (rc == 0 && !stays && t->job->text) {
        rc = dt_file_write(job, t->job->text, strlen(t->job->text), err);
    }
    write_env(t, &text);
    if (rc == 0 && !stays) {
        rc = dt_file_write(env, text.data, text.size, err);
    }
    dt_text_clear(&text);
    free(logs);
    free(job);
    free(env);
    return rc == 0 ? 0 : dt_wrap(err, "output_dir");
}
