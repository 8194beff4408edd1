/* From text to ids: added tokens are cut out, the rest is normalised, added tokens are searched in the
 * normalised text, its rest is split into pieces, and the model encodes each piece. */
#include "worker/data/tokenizers/bpe.h"
#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/own.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Bytes that ids grow by when there is no place for more. */
void token_ids_add(struct token_ids *l, int32_t id)
{
    if (l->count == l->capacity) {
        l->capacity = l->capacity == 0 ? 64 : 2 * l->capacity;
        l->ids = dt_realloc(l->ids, l->capacity * sizeof *l->ids);
    }
    l->ids[l->count++] = id;
}

void token_ids_clear(struct token_ids *l)
{
    free(l->ids);
    *l = (struct token_ids){0};
}

void token_sequence_clear(struct token_sequence *q)
{
    token_ids_clear(&q->ids);
    free(q->types);
    free(q->mask);
    *q = (struct token_sequence){0};
}

struct tokenizer_scratch *tokenizer_scratch_open(const struct tokenizer *t)
{
    struct tokenizer_scratch *s = dt_alloc(sizeof *s);
    s->tokenizer = t;
    s->model = t->ops->scratch_open != NULL ? t->ops->scratch_open(t->model) : NULL;
    return s;
}

void tokenizer_scratch_close(struct tokenizer_scratch *s)
{
    if (s == NULL) {
        return;
    }
    if (s->model != NULL) {
        s->tokenizer->ops->scratch_close(s->model);
    }
    pre_tokens_clear(&s->pre_tokens);
    dt_text_clear(&s->normal);
    dt_text_clear(&s->spare);
    token_ids_clear(&s->first);
    token_ids_clear(&s->second);
    token_sequence_clear(&s->sequence);
    piece_cache_close(s->cache);
    free(s);
}

static void reserve_ids(struct token_ids *l, size_t more)
{
    if (l->capacity - l->count < more) {
        l->capacity = l->count + more > 2 * l->capacity ? l->count + more : 2 * l->capacity;
        l->ids = dt_realloc(l->ids, l->capacity * sizeof *l->ids);
    }
}

/* At most PIECE_CACHE_GROUP pieces of a text. */
static int encode_pieces(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size,
                         const struct piece *pieces, size_t count, struct token_ids *out, struct dt_error *err)
{
    const size_t room = PIECE_CACHE_GROUP * PIECE_IDS_MOST;
    struct piece_key keys[PIECE_CACHE_GROUP];
    if (s->cache == NULL) {
        s->cache = piece_cache_open();
    }
    piece_cache_keys(s->cache, text, size, pieces, count, keys);
    reserve_ids(out, room);
    for (size_t i = 0; i < count; i++) {
        const char *piece = text + pieces[i].begin;
        bool is_short = keys[i].slot != NULL;
        if (is_short ? piece_slot_get(&keys[i], out) : piece_long_get(s->cache, &keys[i], piece, out)) {
            continue;
        }
        size_t before = out->count;
        int rc = t->bytes ? bpe_encode_bytes(t->model, s->model, piece, keys[i].size, out, err)
                          : t->ops->encode(t->model, s->model, piece, keys[i].size, out, err);
        if (rc != 0) {
            return -1;
        }
        if (is_short) {
            piece_slot_set(&keys[i], out->ids + before, out->count - before);
        } else {
            piece_long_set(s->cache, &keys[i], piece, out->ids + before, out->count - before);
        }
        reserve_ids(out, room);
    }
    return 0;
}

/* Takes each piece; `out` is null where pieces are handed over. */
struct taker {
    struct token_ids *out;
    tokenizer_piece *each;
    void *context;
};

/* The pieces of a scanner, 64 at a time: a text needs no list of all of them. */
static int take_scanned(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size,
                        const struct taker *k, struct dt_error *err)
{
    struct piece pieces[PIECE_CACHE_GROUP];
    for (size_t at = 0; at < size;) {
        size_t count = t->scan(text, size, at, pieces, PIECE_CACHE_GROUP);
        if (k->out != NULL && encode_pieces(t, s, text, size, pieces, count, k->out, err) != 0) {
            return -1;
        }
        for (size_t i = 0; i < count && k->out == NULL; i++) {
            dt_text_reset(&s->spare);
            byte_level_map(text + pieces[i].begin, pieces[i].end - pieces[i].begin, &s->spare);
            k->each(k->context, s->spare.data, s->spare.size);
        }
        at = pieces[count - 1].end;
    }
    return 0;
}

static int take_pieces(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size,
                       bool at_start, const struct taker *k, struct dt_error *err)
{
    if (t->scan != NULL && (t->bytes || k->out == NULL)) {
        return take_scanned(t, s, text, size, k, err);
    }
    struct pre_tokens *w = &s->pre_tokens;
    if (pretokenizer_apply(t->pretokenizer, w, text, size, at_start, t->bytes && k->out != NULL, err) != 0) {
        return -1;
    }
    const struct piece *pieces = w->pieces.at;
    for (size_t i = 0; i < w->pieces.count && k->out == NULL; i++) {
        k->each(k->context, w->text + pieces[i].begin, pieces[i].end - pieces[i].begin);
    }
    for (size_t i = 0; i < w->pieces.count && k->out != NULL; i += PIECE_CACHE_GROUP) {
        size_t left = w->pieces.count - i, count = left < PIECE_CACHE_GROUP ? left : PIECE_CACHE_GROUP;
        if (encode_pieces(t, s, w->text, w->size, pieces + i, count, k->out, err) != 0) {
            return -1;
        }
    }
    return 0;
}

/* True if the normaliser has removed the first character: the text then no longer begins where the
 * whole text does, which Metaspace's scheme "first" asks for. */
static bool lost_first(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size)
{
    size_t n;
    (void)utf8_read(text, &n);
    dt_text_reset(&s->spare);
    return normalizer_apply(t->normalizer, text + n, size - n, &s->spare, NULL) == 0 &&
           s->spare.size == s->normal.size && memcmp(s->spare.data, s->normal.data, s->spare.size) == 0;
}

/* A part of the text without added tokens of the raw text. */
static int take_plain(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size,
                      bool at_start, const struct taker *k, struct dt_error *err)
{
    if (t->normalizer != NULL && size > 0) {
        dt_text_reset(&s->normal);
        if (normalizer_apply(t->normalizer, text, size, &s->normal, err) != 0) {
            return -1;
        }
        if (s->normal.size == 0) {
            return 0;
        }
        at_start = at_start && !(pretokenizer_asks_start(t->pretokenizer) && lost_first(t, s, text, size));
        text = s->normal.data;
        size = s->normal.size;
    }
    struct added_match m = {0};
    size_t done = 0;
    while (added_tokens_any(t->added, true) && added_tokens_next(t->added, true, text, size, &m)) {
        if (m.begin > done && take_pieces(t, s, text + done, m.begin - done, at_start && done == 0, k, err) != 0) {
            return -1;
        }
        if (k->out != NULL) {
            token_ids_add(k->out, m.id);
        }
        done = m.end;
    }
    return size > done ? take_pieces(t, s, text + done, size - done, at_start && done == 0, k, err) : 0;
}

static int take_text(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size,
                     uint64_t from, const struct taker *k, struct dt_error *err)
{
    size_t valid = utf8_valid(text, size);
    if (valid < size) {
        return dt_fail(err, DT_INVALID, "byte %" PRIu64 " of the text (0x%02x) is not valid UTF-8", from + valid,
                       (unsigned char)text[valid]);
    }
    struct added_match m = {0};
    size_t done = 0;
    while (added_tokens_next(t->added, false, text, size, &m)) {
        if (m.begin > done && take_plain(t, s, text + done, m.begin - done, from + done == 0, k, err) != 0) {
            return -1;
        }
        if (k->out != NULL) {
            token_ids_add(k->out, m.id);
        }
        done = m.end;
    }
    return size > done ? take_plain(t, s, text + done, size - done, from + done == 0, k, err) : 0;
}

int tokenizer_encode_part(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size,
                          uint64_t from, struct token_ids *out, struct dt_error *err)
{
    const struct taker k = {.out = out};
    return take_text(t, s, text, size, from, &k, err);
}

int tokenizer_pieces(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size,
                     tokenizer_piece *each, void *context, struct dt_error *err)
{
    const struct taker k = {.each = each, .context = context};
    return take_text(t, s, text, size, 0, &k, err);
}

int tokenizer_encode(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size,
                     bool special, struct token_ids *out, struct dt_error *err)
{
    if (!special || t->postprocessor == NULL) {
        return tokenizer_encode_part(t, s, text, size, 0, out, err);
    }
    s->first.count = 0;
    if (tokenizer_encode_part(t, s, text, size, 0, &s->first, err) != 0) {
        return -1;
    }
    postprocessor_apply(t->postprocessor, &s->first, NULL, &s->sequence);
    for (size_t i = 0; i < s->sequence.ids.count; i++) {
        token_ids_add(out, s->sequence.ids.ids[i]);
    }
    return 0;
}

int tokenizer_encode_pair(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size,
                          const char *second, size_t second_size, int64_t max_length, struct token_sequence *out,
                          struct dt_error *err)
{
    struct token_ids *b = second != NULL ? &s->second : NULL;
    struct truncation truncation = t->truncation;
    s->first.count = s->second.count = 0;
    if (tokenizer_encode_part(t, s, text, size, 0, &s->first, err) != 0) {
        return second != NULL ? dt_wrap(err, "first text") : -1;
    }
    if (b != NULL && tokenizer_encode_part(t, s, second, second_size, 0, b, err) != 0) {
        return dt_wrap(err, "second text");
    }
    if (max_length > 0) {
        truncation.given = true;
        truncation.max_length = max_length;
        truncation.strategy = LONGEST_FIRST;
        truncation.stride = 0;
    }
    size_t added = postprocessor_added(t->postprocessor, b != NULL);
    size_t whole = s->first.count + s->second.count;
    if (truncation.given && truncation_apply(&truncation, added, &s->first, b, err) != 0) {
        return -1;
    }
    out->cut = s->first.count + s->second.count < whole;
    postprocessor_apply(t->postprocessor, &s->first, b, out);
    return 0;
}

void tokenizer_pad(const struct tokenizer *t, struct token_sequence *batch, size_t count)
{
    if (t->padding.given) {
        padding_apply(&t->padding, batch, count);
    }
}
