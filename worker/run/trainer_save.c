/* Saves: each rank writes the shares of named tensors that it owns, and rank 0 makes the checkpoint
 * complete. Ranks agree through the store; no collective is needed, so a save cannot hang in one. */
#include "worker/run/trainer_save.h"

#include "base/clock.h"
#include "kernels/kernels.h"
#include "worker/checkpoints/snapshot.h"
#include "worker/engine/pinned_window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGREE_TIMEOUT_S 600.0
enum { ALIGNED = 64 }; /* elements: as slices of units are */

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
    const struct save_source *from = at;
    size_t size = dt_dtype_size(from->type), size_bytes = (size_t)count * size;
    struct home_part part = {from->part.home, from->part.at + (size_t)first * size};
    const void *here = (const char *)from->base + part.at, *values;
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

static struct checkpoint_slice *add_slice(struct save_slices *to, const struct tensor *x, const char *purpose,
                                          const struct span *span, struct home_part part, enum dt_dtype type)
{
    struct save_source *from = &to->from[to->count];
    struct checkpoint_slice *y = &to->slice[to->count++];
    *from = (struct save_source){.part = part, .type = type};
    *y = (struct checkpoint_slice){.name = x->name,
                                   .purpose = purpose,
                                   .role = x->rule.role,
                                   .dims = x->dims,
                                   .numel = x->numel,
                                   .first = span->first,
                                   .count = span->count,
                                   .data = from,
                                   .reader = to->reader};
    memcpy(y->shape, x->shape, sizeof y->shape);
    return y;
}

/* What the communication hook keeps: the first rank has what is the same on all. */
static void list_hook_states(struct trainer *t, bool first_rank, struct save_slices *out)
{
    struct hook_state x;
    for (int i = 0; hook_state_at(&t->strategy, i, &x); i++) {
        const struct span span = {.tensor = x.tensor, .count = x.count};
        if (x.count > 0 && (x.error || first_rank)) {
            (void)add_slice(out, x.tensor, x.error ? out->error : CHECKPOINT_COMM_Q, &span, (struct home_part){NULL, 0},
                            x.type);
            out->from[out->count - 1].base = x.data;
        }
    }
}

/* What this rank saves of a unit: of a checkpoint its share of the world's; of a snapshot its share of what the
 * ranks of this host keep that keep the same as it does. */
static void saved_range(struct trainer *t, enum save_for what, int unit, int64_t *first, int64_t *count)
{
    struct strategy *s = &t->strategy;
    if (what == SAVE_CHECKPOINT) {
        strategy_share(s, unit, first, count);
        return;
    }
    trainer_kept_range(t, unit, first, count);
    bool whole = *count == s->chain->units[unit].numel;
    int sharers = 1, before = 0; /* this rank is one of them */
    for (int r = t->rank - t->local_rank, i = 0; i < t->local_size; i++, r++) {
        bool same = r != t->rank && (whole || r % s->shards == s->shard_rank);
        before += same && r < t->rank;
        sharers += same;
    }
    int64_t each = (*count + sharers - 1) / sharers;
    each = (each + ALIGNED - 1) / ALIGNED * ALIGNED;
    int64_t at = each * before < *count ? each * before : *count;
    *first += at;
    *count = *count - at < each ? *count - at : each;
}

/* This rank's shares of all tensors: weights, and of those that are trained the optimizer's state;
 * the first rank has all buffers. */
void save_list_slices(struct trainer *t, enum save_for what, const struct checkpoint_reader *reader,
                      struct save_slices *out)
{
    struct strategy *s = &t->strategy;
    struct optimizer *o = &t->optimizer;
    const struct precision *types = &s->precision;
    bool first_rank = what == SAVE_CHECKPOINT ? t->rank == 0 : t->local_rank == 0;
    size_t most = (size_t)((1 + DT_STATES_MAX + 2) * t->chain.tensor_count + 1);
    *out = (struct save_slices){
        .slice = dt_alloc(most * sizeof *out->slice), .from = dt_alloc(most * sizeof *out->from), .reader = reader};
    (void)snprintf(out->error, sizeof out->error, CHECKPOINT_COMM_ERROR "%d", t->rank);
    for (int i = 0; i < t->chain.tensor_count && (what == SAVE_SNAPSHOT || strategy_counts(s)); i++) {
        const struct tensor *x = &t->chain.tensors[i];
        int64_t first, count, owned_first, owned_count;
        struct span span;
        if (x->unit < 0) {
            if (first_rank && tensor_span(x, 0, t->chain.buffer_count, &span)) {
                struct home_part at = {.at = (size_t)x->offset * dt_dtype_size(types->buffers)};
                (void)add_slice(out, x, "weight", &span, at, types->buffers);
                out->from[out->count - 1].base = t->stepper.walk.buffers;
            }
            continue;
        }
        saved_range(t, what, x->unit, &first, &count);
        strategy_owned(s, x->unit, &owned_first, &owned_count);
        if (!tensor_span(x, first, count, &span)) {
            continue;
        }
        bool trained = strategy_trains(s, x->unit);
        int64_t at = span.at + first - owned_first; /* from the start of the owned part; below it of what is frozen */
        const struct optimizer_group *g = optimizer_group_of(o, x);
        add_slice(out, x, "weight", &span, optimizer_weights(o, x->unit, at), trained ? types->masters : types->compute)
            ->states = g->state_names;
        for (int k = 0; k < g->states && trained; k++) {
            (void)add_slice(out, x, g->row->state[k], &span, optimizer_state(o, k, x->unit, at), types->states);
        }
    }
    list_hook_states(t, first_rank, out);
}

void save_free_slices(struct save_slices *x)
{
    free(x->from);
    free(x->slice);
    *x = (struct save_slices){.count = 0};
}

/* This rank's file, whose entry of the manifest is appended to `entry`; or its part of a snapshot (entry null).
 * A device that fails meanwhile sets t->lost: that is no refusal of the disk, to be tried again later. */
static int write_slices(struct trainer *t, const struct checkpoint_state *state, struct dt_text *entry,
                        struct dt_error *err)
{
    struct saving saving = {.t = t, .reader = {.read = read_piece, .context = &saving}};
    const struct precision *p = &t->strategy.precision;
    bool wide = p->masters == DT_F32 && p->compute == DT_F32 && p->states == DT_F32 && p->buffers == DT_F32 &&
                p->wire == DT_F32;
    struct save_slices all;
    save_list_slices(t, entry == NULL ? SAVE_SNAPSHOT : SAVE_CHECKPOINT, &saving.reader, &all);
    int rc = pinned_window_open(&saving.window, t->world->device, t->world->compute, err);
    saving.failed = rc != 0;
    saving.floats = !wide ? dt_alloc(CHECKPOINT_PIECE * sizeof *saving.floats) : NULL;
    if (rc == 0) {
        rc = entry == NULL ? snapshots_write(t->saver.snapshots, state, t->rank, t->size, t->local_size, all.slice,
                                             all.count, err)
                           : checkpoint_write_slices(t->job->checkpointing.checkpoint_dir, state, t->rank, t->size,
                                                     all.slice, all.count, entry, err);
        give_back(&saving);
    }
    pinned_window_close(&saving.window);
    free(saving.floats);
    save_free_slices(&all);
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
        struct best_list best = state->best;
        best_trim(&best, job->save_top_k, job->mode);
        struct checkpoint_keep keep = {
            .last_n = (int)job->keep_last_n, .named_step = t->saver.named_step, .best = &best};
        rc = checkpoint_commit(job->checkpoint_dir, state, entries, t->size, &keep, err);
    }
    for (int r = 1; r < t->size; r++) {
        dt_text_clear(&texts[r]);
    }
    free(texts);
    free(entries);
    return rc;
}

/* A file that stands in the way of a save, or a folder that was moved away under it, may be as it was
 * at the next save: the error becomes one of I/O, which may pass. */
static void soften(struct dt_error *why)
{
    why->status = why->status == DT_INVALID || why->status == DT_NOT_FOUND ? DT_IO : why->status;
}

struct checkpoint_state save_state(const struct trainer *t)
{
    return (struct checkpoint_state){.step = t->run.step,
                                     .epoch = t->run.epoch,
                                     .position = t->run.position,
                                     .tokens = t->run.tokens,
                                     .blank_steps = t->run.blank_steps,
                                     .optimizer_steps = t->optimizer.steps,
                                     .horizon = trainer_horizon(t),
                                     .scaler = t->run.scaler,
                                     .outliers = outliers_steps(&t->stepper.outliers),
                                     .plateau = t->run.plateau,
                                     .stopper = t->run.stopper,
                                     .best = t->run.best,
                                     .trained_s =
                                         t->run.trained_s + (t->run.begin_s > 0 ? dt_now_s() - t->run.begin_s : 0),
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
}

int save_agree(struct trainer *t, const struct checkpoint_state *state, struct dt_text *entry,
               const struct dt_error *failure, struct dt_error *err)
{
    struct dt_text verdict;
    struct dt_error why;
    bool refused = false;
    char key[64];
    int rc = 0;
    dt_text_init(&verdict);
    if (failure != NULL) {
        why = *failure;
        soften(&why);
        trainer_tell_failure(entry, &why);
    }
    if (t->rank == 0) {
        refused = commit(t, state, entry, &why) != 0;
        if (refused) {
            soften(&why);
            checkpoint_discard(t->job->checkpointing.checkpoint_dir, state);
        } else { /* complete, whether or not the others live to hear of it: the next round begins
                  * there */
            atomic_store(&t->world->page->saved_step, state->step);
        }
    } else {
        (void)snprintf(key, sizeof key, "train/save/%lld/%d", (long long)t->saver.tries, t->rank);
        rc = dt_store_set(t->world->store, key, dt_text_str(entry), entry->size, err);
    }
    if (rc == 0) {
        (void)snprintf(key, sizeof key, "train/saved/%lld", (long long)t->saver.tries);
        /* Rank 0 waits for each of the others in turn, and then writes. */
        rc = trainer_share(t, key, &verdict, refused ? &why : NULL, t->size * save_timeout_s(t) + AGREE_TIMEOUT_S, err);
    }
    dt_text_clear(&verdict);
    return rc;
}

void save_done(struct trainer *t, int64_t step, double begin_s, double pause_s)
{
    t->saver.saved_step = step;
    t->saver.elsewhere = false;
    free(t->saver.saved_path);
    t->saver.saved_path = checkpoint_path(t->job->checkpointing.checkpoint_dir, step);
    atomic_store(&t->world->page->saved_step, step);
    const struct report saved = {.of = t,
                                 .step = step,
                                 .total_steps = t->run.total_steps,
                                 .round = t->world->round,
                                 .save_s = dt_now_s() - begin_s,
                                 .pause_s = pause_s};
    observers_report(&t->observers, &saved, MOMENT_SAVED);
}

int save_snapshot(struct trainer *t, struct dt_error *err)
{
    struct checkpoint_state state = save_state(t);
    if (t->saver.beside != NULL) { /* its folder is not there yet, and may never be */
        best_remove(&state.best, trainer_save_step(t));
    }
    return write_slices(t, &state, NULL, err);
}

int trainer_save(struct trainer *t, struct dt_error *err)
{
    struct dt_text entry;
    struct dt_error why;
    int rc = 0;
    if (trainer_settle(t, "save", err) != 0) {
        return -1;
    }
    double begin_s = dt_now_s();
    struct checkpoint_state state = save_state(t);
    dt_text_init(&entry);
    atomic_store(&t->world->page->save_begin_s, begin_s);
    atomic_store(&t->world->page->begun_step, t->run.step);
    t->saver.tries++;
    bool written = write_slices(t, &state, &entry, &why) == 0;
    if (t->lost) { /* nobody hears of it as of a disk: this rank ends, and with it the round */
        *err = why;
        rc = -1;
    } else {
        rc = save_agree(t, &state, &entry, written ? NULL : &why, err);
    }
    if (rc == 0) {
        save_done(t, state.step, begin_s, dt_now_s() - begin_s);
    }
    dt_page_pulse(t->world->page);
    dt_text_clear(&entry);
    return rc;
}
