/* See the header. */
#include "cmd/dtdata/output.h"

#include "worker/data/shards_set.h"

static bool has_pairs(const struct work_form *f)
{
    return f->records.pair_key != NULL && f->coder->tokenizer != NULL;
}

static int open_side(struct output *o, enum side s, const struct output_options *x, struct dt_error *err)
{
    const struct work_form *f = o->form;
    const int complete = o->progress->side[s].complete;
    if (f->labels != NULL) {
        return row_writer_open(&o->rows[s], x->dir, progress_prefix[s], f->coder, f->labels, has_pairs(f),
                               x->shard_tokens, x->overwrite, err) != 0
                   ? -1
                   : row_writer_resume(o->rows[s], complete, err);
    }
    const struct shard_form form = {.tokenizer = f->coder->name,
                                    .tokenizer_path = f->coder->path,
                                    .tokenizer_hash = f->coder->hash,
                                    .document_end = f->coder->end,
                                    .vocabulary = f->coder->vocabulary,
                                    .shard_tokens = x->shard_tokens};
    return shard_writer_open(&o->shards[s], x->dir, progress_prefix[s], &form, x->overwrite, err) != 0
               ? -1
               : shard_writer_resume(o->shards[s], complete, err);
}

int output_open(struct output *o, const struct work_form *form, const struct output_options *options,
                struct progress *p, struct dt_error *err)
{
    *o = (struct output){.form = form, .progress = p};
    for (int s = 0; s < SIDES; s++) {
        o->now[s] = p->side[s];
        o->now[s].given = 0;
        o->before[s] = o->now[s].tally;
        o->skip[s] = p->side[s].given;
        if (open_side(o, (enum side)s, options, err) != 0) {
            return -1;
        }
    }
    return 0;
}

static int complete_of(const struct output *o, enum side s)
{
    return o->shards[s] != NULL ? shard_writer_complete(o->shards[s])
           : o->rows[s] != NULL ? row_writer_complete(o->rows[s])
                                : 0;
}

bool output_has_complete(const struct output *o)
{
    return complete_of(o, SIDE_TRAIN) + complete_of(o, SIDE_VAL) > 0;
}

/* Notes that a shard of the side is complete, if one is. */
static int note(struct output *o, enum side s, struct dt_error *err)
{
    struct progress_side *saved = &o->progress->side[s];
    if (complete_of(o, s) == saved->complete) {
        return 0;
    }
    *saved = o->now[s];
    saved->complete = complete_of(o, s);
    saved->tally = o->before[s];
    return progress_save(o->progress, err);
}

/* The part of `count` that an earlier run has written. */
static int64_t skip(struct output *o, enum side s, int64_t count)
{
    int64_t n = o->skip[s] < count ? o->skip[s] : count;
    o->skip[s] -= n;
    o->now[s].given += n;
    return n;
}

static int take_ids(struct output *o, enum side s, const struct item *i, struct dt_error *err)
{
    struct shard_writer *w = o->shards[s];
    if (i->block.first && o->skip[s] == 0) {
        shard_writer_source(w, o->form->corpus->files[i->file].path);
    }
    int64_t count = (int64_t)i->ids.count;
    for (int64_t at = skip(o, s, count), n; at < count; at += n) {
        n = shard_writer_room(w) < count - at ? shard_writer_room(w) : count - at;
        if (shard_writer_add(w, i->ids.ids + at, (size_t)n, err) != 0) {
            return -1;
        }
        o->now[s].given += n;
        if (note(o, s, err) != 0) {
            return -1;
        }
    }
    return 0;
}

static int take_rows(struct output *o, enum side s, const struct item *i, struct dt_error *err)
{
    const struct row_list *l = &i->rows[s];
    for (int64_t at = skip(o, s, (int64_t)l->count); at < (int64_t)l->count; at++) {
        if (row_writer_add(o->rows[s], l, (size_t)at, err) != 0) {
            return -1;
        }
        o->now[s].given++;
        if (note(o, s, err) != 0) {
            return -1;
        }
    }
    return 0;
}

int output_take(struct output *o, const struct item *i, struct dt_error *err)
{
    if (i->failed) {
        *err = i->err;
        return -1;
    }
    bool rows = o->form->labels != NULL;
    enum side of_tally = rows ? SIDE_TRAIN : work_side(o->form, i->file);
    for (int s = 0; s < SIDES; s++) {
        if (!i->needed[s]) {
            continue;
        }
        /* a run can go on at this block, unless its ids depend on the one before */
        if (!i->block.joined) {
            o->now[s].file = i->file;
            o->now[s].at = i->block.begin;
            o->now[s].given = 0;
            o->before[s] = o->now[s].tally;
        }
        if ((rows ? take_rows : take_ids)(o, (enum side)s, i, err) != 0) {
            return -1;
        }
    }
    if (i->needed[of_tally]) {
        tally_join(&o->now[of_tally].tally, &i->tally);
    }
    return 0;
}

static struct shard_set *set_of(const struct output *o, enum side s)
{
    return o->rows[s] != NULL ? row_writer_set(o->rows[s]) : shard_writer_set(o->shards[s]);
}

/* Gives the files of both sides their names, or none of them. */
static int name_all(struct output *o, struct dt_error *err)
{
    struct progress *p = o->progress;
    struct dt_error ignored;
    int named = 0;
    for (int s = 0; s < SIDES; s++) {
        p->side[s].shards = set_of(o, (enum side)s)->count;
    }
    p->naming = NAMING_BEGUN;
    p->rows = o->form->labels != NULL;
    int result = progress_save(p, err);
    while (result == 0 && named < SIDES) {
        result = shard_set_name(set_of(o, (enum side)named), err);
        named += result == 0;
    }
    p->naming = NAMING_DONE;
    result = result == 0 ? progress_save(p, err) : result;
    if (result != 0) {
        while (named-- > 0) {
            (void)shard_set_unname(set_of(o, (enum side)named), &ignored);
        }
        p->naming = NAMING_NONE;
        (void)progress_save(p, &ignored);
        return -1;
    }
    for (int s = 0; s < SIDES && result == 0; s++) {
        result = shard_set_settle(set_of(o, (enum side)s), err);
    }
    p->naming = result == 0 ? NAMING_NONE : NAMING_DONE; /* what is left is for the next run */
    return result;
}

int output_commit(struct output *o, bool val, struct dt_error *err)
{
    const struct corpus *c = o->form->corpus;
    for (int s = 0; s < SIDES; s++) {
        if (output_count(o, (enum side)s) == 0 && (s == SIDE_TRAIN || val)) {
            tally_say(&o->now[s].tally, &o->form->records); /* why there is none */
            return dt_fail(err, DT_INVALID, "%s%s: no text for %s: what was read is empty; give other files",
                           c->files[0].path, c->count > 1 ? " and others" : "", progress_prefix[s]);
        }
    }
    for (int s = 0; s < SIDES; s++) {
        if ((o->rows[s] != NULL ? row_writer_finish(o->rows[s], err) : shard_writer_finish(o->shards[s], err)) != 0) {
            return -1;
        }
    }
    return name_all(o, err);
}

int64_t output_count(const struct output *o, enum side s)
{
    return o->rows[s] != NULL ? row_writer_rows(o->rows[s]) : shard_writer_tokens(o->shards[s]);
}

int output_shards(const struct output *o, enum side s)
{
    return o->rows[s] != NULL ? row_writer_files(o->rows[s]) : shard_writer_shards(o->shards[s]);
}

void output_close(struct output *o, bool keep)
{
    for (int s = 0; s < SIDES; s++) {
        shard_writer_close(o->shards[s], keep);
        row_writer_close(o->rows[s], keep);
    }
    *o = (struct output){0};
}
