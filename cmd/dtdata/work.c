/* See the header. */
#include "cmd/dtdata/work.h"

#include "cmd/dtdata/utf8.h"
#include "worker/data/tokenizers/characters.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* The memory of one thread. */
struct hand {
    struct tokenizer_scratch *scratch; /* null: bytes */
    struct token_sequence sequence;
    struct dt_text clean;
    struct token_ids ids;
    struct hand *next;
};

/* Blocks that are joined. */
struct strand {
    struct hand *hand;
    struct tokenizer_stream *stream;
};

struct work {
    const struct work_form *form;
    pthread_mutex_t lock;     /* of `idle` */
    struct hand *idle;        /* hands that no thread uses */
    struct strand *from, *to; /* goes on from the round before, to the next round */
};

void item_clear(struct item *i)
{
    block_clear(&i->block);
    token_ids_clear(&i->ids);
    row_list_clear(&i->rows[SIDE_TRAIN]);
    row_list_clear(&i->rows[SIDE_VAL]);
}

enum source_kind work_kind(const struct work_form *form, size_t file)
{
    return form->format != SOURCE_AUTO ? form->format : form->corpus->files[file].kind;
}

enum side work_side(const struct work_form *form, size_t file)
{
    return form->corpus->files[file].held_out ? SIDE_VAL : SIDE_TRAIN;
}

struct work *work_open(const struct work_form *form)
{
    struct work *w = dt_alloc(sizeof *w);
    w->form = form;
    (void)pthread_mutex_init(&w->lock, NULL);
    return w;
}

static struct hand *take_hand(struct work *w)
{
    (void)pthread_mutex_lock(&w->lock);
    struct hand *h = w->idle;
    w->idle = h != NULL ? h->next : NULL;
    (void)pthread_mutex_unlock(&w->lock);
    if (h == NULL) {
        const struct tokenizer *t = w->form->coder->tokenizer;
        h = dt_alloc(sizeof *h);
        h->scratch = t != NULL ? tokenizer_scratch_open(t) : NULL;
    }
    return h;
}

static void give_hand(struct work *w, struct hand *h)
{
    (void)pthread_mutex_lock(&w->lock);
    h->next = w->idle;
    w->idle = h;
    (void)pthread_mutex_unlock(&w->lock);
}

static void close_strand(struct work *w, struct strand *s)
{
    if (s != NULL) {
        tokenizer_stream_close(s->stream);
        give_hand(w, s->hand);
        free(s);
    }
}

/* ---- texts ---- */

/* The text of a block as UTF-8: as it is, or in h->clean. */
static int take_utf8(const struct work_form *f, struct item *i, struct hand *h, const char **text, size_t *size)
{
    const char *path = f->corpus->files[i->file].path;
    *text = i->block.text;
    *size = i->block.size;
    size_t valid = f->any_bytes ? *size : utf8_valid(*text, *size);
    if (valid == *size) {
        return 0;
    }
    long long at = i->block.begin.offset + (long long)valid;
    if (!f->records.replace) {
        return dt_fail(&i->err, DT_INVALID,
                       "%s: byte %lld (0x%02x) is not UTF-8; convert the file (iconv -f ENCODING -t UTF-8), or give "
                       "%s",
                       path, at, (unsigned char)(*text)[valid], record_option(&f->records, RECORD_REPLACE));
    }
    char where[512];
    (void)snprintf(where, sizeof where, "%s: byte %lld", path, at);
    dt_text_reset(&h->clean);
    tally_add(&i->tally, TALLY_REPLACED, utf8_replace(*text, *size, &h->clean), where);
    *text = dt_text_str(&h->clean);
    *size = h->clean.size;
    return 0;
}

/* The block of a text by itself, or as part of a strand. */
static int do_text(const struct work_form *f, struct item *i, struct hand *h, struct tokenizer_stream *stream)
{
    const char *text = i->block.text;
    size_t size = i->block.size;
    uint64_t from = i->block.first ? 0 : (uint64_t)i->block.begin.offset; /* a byte order mark is no text */
    /* a tokenizer looks whether the text is UTF-8 before it takes any of it: why it is not is asked for afterwards */
    bool alone = stream == NULL && f->coder->tokenizer != NULL;
    int result = alone ? coder_encode_part(f->coder, h->scratch, text, size, from, &i->ids, &i->err) : -1;
    if (result != 0) {
        if (take_utf8(f, i, h, &text, &size) != 0) {
            return -1;
        }
        if (!alone || text != i->block.text) {
            result = stream != NULL ? tokenizer_stream_add(stream, text, size, &i->ids, &i->err)
                                    : coder_encode_part(f->coder, h->scratch, text, size, from, &i->ids, &i->err);
        }
    }
    if (result == 0 && stream != NULL && !i->block.open) {
        result = tokenizer_stream_end(stream, &i->ids, &i->err);
    }
    if (result != 0) {
        return dt_wrap(&i->err, "%s", f->corpus->files[i->file].path);
    }
    /* a pipe may turn out to be empty */
    if (i->block.last && (i->block.size > 0 || !i->block.first)) {
        token_ids_add(&i->ids, f->coder->end);
    }
    return 0;
}

/* ---- records ---- */

struct target {
    const struct work_form *form;
    struct item *item;
    struct hand *hand;
};

static int add_document(void *context, const struct record *r, struct dt_error *err)
{
    const struct target *t = context;
    struct item *i = t->item;
    if (r->text_size == 0 && t->form->coder->tokenizer != NULL) {
        tally_add(&i->tally, TALLY_EMPTY, 1, r->where);
        return 0;
    }
    size_t before = i->ids.count;
    if (coder_encode(t->form->coder, t->hand->scratch, r->text, r->text_size, &i->ids, err) != 0) {
        i->ids.count = before;
        return dt_wrap(err, "%s", r->where);
    }
    token_ids_add(&i->ids, t->form->coder->end);
    return 0;
}

/* The side of a row: rows of the same text go to the same. */
static enum side side_of_row(const struct work_form *f, const struct record *r)
{
    if (f->val <= 0) {
        return SIDE_TRAIN;
    }
    uint64_t hash = XXH3_64bits_withSeed(r->pair, r->pair_size, XXH3_64bits(r->text, r->text_size));
    return (double)(hash >> 11) / 9007199254740992.0 < f->val ? SIDE_VAL : SIDE_TRAIN;
}

/* The ids of a row, truncated, in the hand's sequence or list. The form's max_length takes the place of that of
 * tokenizer.json. */
static int encode_row(const struct target *t, const struct record *r, const int32_t **ids, const uint8_t **types,
                      size_t *count, struct dt_error *err)
{
    const struct work_form *f = t->form;
    struct hand *h = t->hand;
    bool cut = false;
    *types = NULL;
    if (f->coder->tokenizer == NULL) {
        h->ids.count = 0;
        (void)coder_encode(f->coder, NULL, r->text, r->text_size, &h->ids, err);
        *ids = h->ids.ids;
        cut = f->max_length > 0 && (int64_t)h->ids.count > f->max_length;
        *count = cut ? (size_t)f->max_length : h->ids.count;
    } else {
        if (tokenizer_encode_pair(f->coder->tokenizer, h->scratch, r->text, r->text_size, r->pair, r->pair_size,
                                  f->max_length, &h->sequence, err) != 0) {
            return -1;
        }
        cut = h->sequence.cut;
        *ids = h->sequence.ids.ids;
        *types = r->pair != NULL ? h->sequence.types : NULL;
        *count = h->sequence.ids.count;
    }
    if (cut) {
        tally_add(&t->item->tally, TALLY_TRUNCATED, 1, r->where);
    }
    return 0;
}

static int add_row(void *context, const struct record *r, struct dt_error *err)
{
    const struct target *t = context;
    double label = 0;
    const int32_t *ids;
    const uint8_t *types;
    size_t count;
    if (labels_value(t->form->labels, r->label, r->label_size, &label, err) != 0) {
        return dt_wrap(err, "%s", r->where);
    }
    enum side side = side_of_row(t->form, r);
    if (!t->item->needed[side]) {
        return 0;
    }
    if (encode_row(t, r, &ids, &types, &count, err) != 0) {
        return dt_wrap(err, "%s", r->where);
    }
    if (count == 0) { /* no text, and no special tokens: nothing that a model could judge */
        tally_add(&t->item->tally, TALLY_EMPTY, 1, r->where);
        return 0;
    }
    row_list_add(&t->item->rows[side], ids, types, count, label);
    return 0;
}

static int do_records(const struct work_form *f, struct item *i, struct hand *h)
{
    struct target t = {f, i, h};
    return records_of(&f->records, i->kind, f->corpus->files[i->file].path, &i->columns, &i->block, &i->tally,
                      f->labels != NULL ? add_row : add_document, &t, &i->err);
}

/* ---- items ---- */

static void begin_item(const struct work_form *f, struct item *i)
{
    i->ids.count = 0;
    row_list_reset(&i->rows[SIDE_TRAIN]);
    row_list_reset(&i->rows[SIDE_VAL]);
    memset(&i->tally, 0, sizeof i->tally);
    if (i->block.marked) {
        tally_add(&i->tally, TALLY_MARKS, 1, f->corpus->files[i->file].path);
    }
}

/* Blocks of a text that are joined, in order. */
static void do_strand(struct work *w, struct item *items, size_t count)
{
    struct strand *s = w->from;
    if (items[0].block.joined) {
        w->from = NULL;
    } else {
        s = dt_alloc(sizeof *s);
        s->hand = take_hand(w);
        s->stream = tokenizer_stream_open(w->form->coder->tokenizer, s->hand->scratch);
        tokenizer_stream_begin(s->stream, items[0].block.first ? 0 : (uint64_t)items[0].block.begin.offset);
    }
    for (size_t i = 0; i < count; i++) {
        begin_item(w->form, &items[i]);
        items[i].failed = do_text(w->form, &items[i], s->hand, s->stream) != 0;
        if (items[i].failed) {
            break;
        }
    }
    if (items[count - 1].block.open) {
        w->to = s;
    } else {
        close_strand(w, s);
    }
}

void work_do(struct work *w, struct item *items, size_t count)
{
    if (items[0].failed) { /* by the reader */
        return;
    }
    if (items[0].block.joined || items[0].block.open) {
        do_strand(w, items, count);
        return;
    }
    struct hand *h = take_hand(w);
    for (size_t i = 0; i < count; i++) {
        begin_item(w->form, &items[i]);
        items[i].failed = (items[i].kind == SOURCE_TEXT ? do_text(w->form, &items[i], h, NULL)
                                                        : do_records(w->form, &items[i], h)) != 0;
    }
    give_hand(w, h);
}

void work_round(struct work *w)
{
    close_strand(w, w->from);
    w->from = w->to;
    w->to = NULL;
}

void work_close(struct work *w)
{
    if (w == NULL) {
        return;
    }
    close_strand(w, w->from);
    close_strand(w, w->to);
    while (w->idle != NULL) {
        struct hand *h = w->idle;
        w->idle = h->next;
        tokenizer_scratch_close(h->scratch);
        token_sequence_clear(&h->sequence);
        token_ids_clear(&h->ids);
        dt_text_clear(&h->clean);
        free(h);
    }
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}
