/* Where a round goes on that began with snapshots: at the newest one of which each rank has what it needs in the
 * memory of its host, or at one that other ranks keep alike, which then send it. Each rank says what it could go
 * on from, rank 0 chooses for all. In the search for where to begin a snapshot stands for a path:
 * "#ROUND:STEP/FILE/ROOT", with the step of the newest checkpoint on disk, -1 for none, and the first of the ranks
 * that send it, -1 where nobody needs it. */
#include "worker/run/trainer.h"

#include "worker/engine/pinned_window.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define HEAD_KEY "train/resume/head"

static bool wants(const struct trainer *t)
{
    return t->job->checkpointing.snapshot_every_n_steps > 0 && t->world->round > 1;
}

/* ---- which one ---- */

/* Does a checkpoint of this host's parts have all that this rank reads of a snapshot? */
static bool has_own(struct trainer *t, const struct checkpoint *c)
{
    struct strategy *s = &t->strategy;
    bool has = true;
    for (int i = 0; i < t->chain.tensor_count && has; i++) {
        const struct tensor *x = &t->chain.tensors[i];
        int64_t first = 0, count = t->chain.buffer_count;
        struct span span;
        trainer_kept_range(t, x->unit, &first, &count);
        if (!tensor_span(x, first, count, &span)) {
            continue;
        }
        has = checkpoint_holds(c, "weight", x->name, span.first, span.count);
        const struct optimizer_group *g = x->unit >= 0 ? optimizer_group_of(&t->optimizer, x) : NULL;
        for (int k = 0; g != NULL && strategy_trains(s, x->unit) && k < g->states && has; k++) {
            has = checkpoint_holds(c, g->row->state[k], x->name, span.first, span.count);
        }
    }
    return has;
}

/* Does a communication hook keep what differs from rank to rank? */
static bool hook_keeps(const struct trainer *t)
{
    struct hook_state x;
    return hook_state_at(&t->strategy, 0, &x);
}

static bool can_go_on(struct trainer *t, const struct snapshot_part *part)
{
    struct checkpoint *c = NULL;
    bool same = part->ranks == t->size && part->first == t->rank - t->local_rank && part->count == t->local_size;
    if (hook_keeps(t) && part->ranks == t->size && !same) {
        return false; /* its errors are those of another rank */
    }
    bool can = snapshots_checkpoint(t->saver.snapshots, &part->id, &c, NULL) == 0 && has_own(t, c);
    checkpoint_close(c);
    return can;
}

static void look(struct trainer *t)
{
    struct snapshot_part parts[2];
    struct snapshot_offer *offer = t->saver.offer = dt_alloc(sizeof *offer);
    int count = t->saver.snapshots != NULL ? snapshots_list(t->saver.snapshots, parts) : 0;
    for (int i = 0; i < count; i++) {
        if (can_go_on(t, &parts[i])) {
            offer->of[offer->count++] = parts[i].id;
        }
    }
}

int trainer_offer_snapshots(struct trainer *t, struct dt_error *err)
{
    struct dt_text text;
    char key[64];
    if (!wants(t)) {
        return 0;
    }
    look(t);
    if (t->rank == 0) {
        return 0;
    }
    dt_text_init(&text);
    dt_text_puts(&text, "=");
    snapshots_say(t->saver.offer, &text);
    (void)snprintf(key, sizeof key, "train/snapshots/%d", t->rank);
    int rc = dt_store_set(t->world->store, key, text.data, text.size, err);
    dt_text_clear(&text);
    return rc;
}

static int hear_offers(struct trainer *t, struct snapshot_offer *out, struct dt_error *err)
{
    struct dt_text text;
    char key[64];
    int rc = 0;
    dt_text_init(&text);
    out[0] = *t->saver.offer;
    for (int r = 1; r < t->size && rc == 0; r++) {
        (void)snprintf(key, sizeof key, "train/snapshots/%d", r);
        rc = trainer_await(t, key, &text, FOR_EVER_S, err);
        if (rc == 0 && (text.size == 0 || !snapshots_hear(dt_text_str(&text) + 1, &out[r]))) {
            rc = dt_fail(err, DT_INTERNAL, "%s: \"%.80s\" is no list of snapshots", key, dt_text_str(&text));
        }
        rc = rc == 0 ? 0 : dt_wrap(err, "rank 0 waits for rank %d", r);
    }
    dt_text_clear(&text);
    return rc;
}

/* Ranks side by side that together keep all of the state, as each other such group does. */
static int group_size(const struct trainer *t)
{
    const struct strategy *s = &t->strategy;
    return hook_keeps(t) ? t->size : s->optimizer == PART_WHOLE ? 1 : t->shards;
}

int trainer_propose_snapshot(struct trainer *t, int64_t file_step, struct dt_text *out, struct dt_error *err)
{
    struct snapshot_id id;
    int root, missing;
    if (!wants(t)) {
        return 0;
    }
    struct snapshot_offer *offers = dt_alloc((size_t)t->size * sizeof *offers);
    if (hear_offers(t, offers, err) != 0) {
        free(offers);
        return -1;
    }
    if (!snapshots_choose(offers, t->size, group_size(t), &id, &root, &missing)) {
        char whose[96] = "no host has one that serves its ranks as they are now";
        if (missing >= 0) {
            (void)snprintf(whose, sizeof whose,
                           "the host of rank %d lacks the newest, and no group of ranks has all of it", missing);
        }
        observers_say(&t->observers, "train: no snapshot is whole: %s; %s", whose,
                      file_step >= 0 ? "a checkpoint is gone on from" : "the run begins again");
    } else if (id.step >= file_step) {
        dt_text_printf(out, "#%" PRId64 ":%" PRId64 "/%" PRId64 "/%d", id.round, id.step, file_step, root);
    }
    free(offers);
    return 0;
}

bool trainer_is_snapshot(const char *path, struct saved_snapshot *out)
{
    return path != NULL && sscanf(path, "#%" SCNd64 ":%" SCNd64 "/%" SCNd64 "/%d", &out->id.round, &out->id.step,
                                  &out->file_step, &out->root) == 4;
}

/* ---- opening it ---- */

bool trainer_has_snapshot(const struct trainer *t, const struct saved_snapshot *x)
{
    const struct snapshot_offer *offer = t->saver.offer;
    bool has = false;
    for (int i = 0; offer != NULL && i < offer->count; i++) {
        has = has || (offer->of[i].round == x->id.round && offer->of[i].step == x->id.step);
    }
    return has && t->saver.snapshots != NULL;
}

/* All ranks go on from one state: of what the hosts wrote, seconds of training may differ. */
static int share_head(struct trainer *t, const struct saved_snapshot *x, struct dt_text *head, struct dt_error *err)
{
    struct dt_text said;
    int teller = x->root >= 0 ? x->root : 0, rc;
    dt_text_init(&said);
    if (t->rank == teller) {
        rc = snapshots_head(t->saver.snapshots, &x->id, head, err);
        dt_text_puts(&said, "=");
        dt_text_add(&said, dt_text_str(head), head->size);
        if (rc != 0) {
            trainer_tell_failure(&said, err);
        }
        struct dt_error why;
        if (dt_store_set(t->world->store, HEAD_KEY, said.data, said.size, rc == 0 ? err : &why) != 0) {
            rc = -1;
        }
    } else if ((rc = trainer_await(t, HEAD_KEY, &said, FOR_EVER_S, err)) == 0 &&
               (rc = trainer_hear(dt_text_str(&said), err)) == 0) {
        dt_text_add(head, said.data + 1, said.size - 1);
    }
    dt_text_clear(&said);
    return rc == 0 || t->rank == teller ? rc : dt_wrap(err, "rank %d waits for rank %d", t->rank, teller);
}

int trainer_check_snapshot(struct trainer *t, const struct saved_snapshot *x, struct dt_error *err)
{
    if (!trainer_has_snapshot(t, x)) {
        return x->root >= 0 ? 0
                            : dt_fail(err, DT_NOT_FOUND, "snapshot of step %" PRId64 ": rank %d does not have it",
                                      x->id.step, t->rank);
    }
    if (snapshots_checkpoint(t->saver.snapshots, &x->id, &t->saver.opened, err) != 0) {
        return -1;
    }
    checkpoint_progress(t->saver.opened, trainer_pulse, t->world->page);
    return checkpoint_verify_part(t->saver.opened, t->local_rank, t->local_size, err);
}

int trainer_open_snapshot(struct trainer *t, const struct saved_snapshot *x, struct checkpoint **data,
                          struct checkpoint **state, struct dt_error *err)
{
    struct dt_text head;
    *data = *state = t->saver.opened; /* what was compared is not compared again */
    t->saver.opened = NULL;
    if (t->world->node_count <= 1 && x->root < 0) {
        return 0; /* each rank has the one that all wrote */
    }
    dt_text_init(&head);
    int rc = share_head(t, x, &head, err) == 0 ? snapshots_state(&x->id, &head, state, err) : -1;
    if (rc != 0) {
        checkpoint_close(*data);
    }
    dt_text_clear(&head);
    return rc;
}

/* ---- sending what other ranks lack ---- */

/* Whose ranks keep the same, and which of them sends. */
struct sending {
    struct trainer *t;
    struct dt_comm *comm;
    int root;
};

/* Elements of an array, in pieces: those of the sender reach all others. */
static void send_part(const struct sending *x, struct home_part part, int64_t count, enum dt_dtype type)
{
    struct world *w = x->t->world;
    int64_t size = (int64_t)dt_dtype_size(type), most = PINNED_WINDOW_BYTES / size;
    for (int64_t done = 0, n; done < count; done += n) {
        n = count - done < most ? count - done : most;
        void *at = home_bring(part, (size_t)(n * size), x->comm->rank == x->root ? HOME_READ : HOME_WRITE, w->compute);
        strategy_send(&x->t->strategy, x->comm, x->root, "a snapshot", at, n, type);
        home_back(part, (size_t)(n * size), w->compute);
        part.at += (size_t)(n * size);
        dt_page_pulse(w->page);
    }
}

static void send_tensor(const struct sending *x, const struct tensor *tensor)
{
    struct trainer *t = x->t;
    const struct precision *p = &t->strategy.precision;
    int64_t first, count, at_first = 0, at_count;
    struct span span;
    struct home_part part = strategy_resident(&t->strategy, tensor->unit, &first, &count);
    if (tensor_span(tensor, first, count, &span)) {
        part.at += (size_t)span.at * t->strategy.type_size;
        send_part(x, part, span.count, p->compute);
    }
    strategy_owned(&t->strategy, tensor->unit, &at_first, &at_count);
    if (!strategy_trains(&t->strategy, tensor->unit) || !tensor_span(tensor, at_first, at_count, &span)) {
        return;
    }
    if (precision_mixed(p)) {
        send_part(x, optimizer_weights(&t->optimizer, tensor->unit, span.at), span.count, p->masters);
    }
    const struct optimizer_group *g = optimizer_group_of(&t->optimizer, tensor);
    for (int k = 0; k < g->states; k++) {
        send_part(x, optimizer_state(&t->optimizer, k, tensor->unit, span.at), span.count, p->states);
    }
}

int trainer_spread_snapshot(struct trainer *t, const char *path, struct dt_error *err)
{
    struct saved_snapshot saved;
    struct strategy *s = &t->strategy;
    if (!trainer_is_snapshot(path, &saved) || t->size == 1) {
        return 0;
    }
    int from = saved.root >= 0 ? saved.root : 0;
    if (saved.root >= 0) {
        bool all = s->optimizer == PART_WHOLE;
        const struct sending x = {t, all ? t->world->comm : t->world->replica, all ? from : from / t->shards};
        for (int i = 0; i < t->chain.tensor_count; i++) {
            if (t->chain.tensors[i].unit >= 0) {
                send_tensor(&x, &t->chain.tensors[i]);
            }
        }
        observers_say(&t->observers, "train: ranks that lack the snapshot of step %" PRId64 " take that of rank %d",
                      saved.id.step, from);
    }
    if (t->chain.buffer_count > 0 && (t->world->node_count > 1 || saved.root >= 0)) {
        strategy_send(s, t->world->comm, from, "buffers", t->stepper.walk.buffers, t->chain.buffer_count,
                      s->precision.buffers);
    }
    s->weights->publish(s); /* each rank has read what it updates */
    return trainer_settle(t, "snapshot", err);
}

void trainer_keep_snapshot(struct trainer *t, const char *path)
{
    struct saved_snapshot saved;
    bool is = trainer_is_snapshot(path, &saved);
    checkpoint_close(t->saver.opened); /* null, unless a rank found it damaged */
    t->saver.opened = NULL;
    if (t->saver.snapshots != NULL) {
        snapshots_keep(t->saver.snapshots, is ? &saved.id : NULL);
        atomic_store(&t->world->page->snapshot_step, is ? saved.id.step : -1);
    }
}
