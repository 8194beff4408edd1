/* Texts and ids that come in parts.
 *
 * A text is held until there is a place where it may be cut: where the pieces of both parts are those
 * of the whole, whatever follows. Such places are before a space behind another character, and, for
 * most pre-tokenizers, behind a line feed (pretokenizer_cuts), in the text that the normalizer makes; they
 * must lie outside of added tokens, so the end of the text, where a token may still grow, is never cut. */
#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/own.h"

#include <stdlib.h>
#include <string.h>

enum { HELD_FIRST = 64 << 10, CUT_WINDOW = 4 << 10 };

struct tokenizer_stream {
    const struct tokenizer *tokenizer;
    struct tokenizer_scratch *scratch;
    struct dt_text held;
    size_t wanted; /* look for a cut when so much is held */
    uint64_t done; /* bytes of the text that were encoded */
};

/* Normalizers that make of both sides of such a place what they make of the whole, and leave a space as it is. */
static bool normalizer_cuts(const cJSON *json)
{
    static const char *const types[] = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"};
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(json, "type"), *j;
    if (json == NULL || cJSON_IsNull(json)) {
        return true;
    }
    for (size_t i = 0; cJSON_IsString(type) && i < sizeof types / sizeof *types; i++) {
        if (strcmp(type->valuestring, types[i]) == 0) {
            return true;
        }
    }
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "Sequence") != 0) {
        return false;
    }
    cJSON_ArrayForEach(j, cJSON_GetObjectItemCaseSensitive(json, "normalizers"))
    {
        if (!normalizer_cuts(j)) {
            return false;
        }
    }
    return true;
}

/* The first or last character that the normalizer makes of one; a space where it leaves nothing. What stands around
 * the character may change that, but not whether it is white space, nor whether it is a '/'. */
static uint32_t normal_end(const struct tokenizer *t, const char *character, size_t size, bool last)
{
    size_t n;
    uint32_t c = utf8_read(character, &n);
    if (t->normalizer == NULL || (c > ' ' && c < 0x7f)) {
        return c;
    }
    struct dt_text normal;
    dt_text_init(&normal);
    bool any = normalizer_apply(t->normalizer, character, size, &normal, NULL) == 0 && normal.size > 0;
    c = !any ? ' ' : last ? utf8_read_back(normal.data, normal.size, &n) : utf8_read(normal.data, &n);
    dt_text_clear(&normal);
    return c;
}

enum pretokenizer_cuts stream_cuts(const struct tokenizer *t, const cJSON *normalizer)
{
    enum pretokenizer_cuts cuts = pretokenizer_cuts(t->pretokenizer);
    /* tokens of normalised text have no known place in the raw one */
    if ((t->normalizer != NULL && added_tokens_any(t->added, true)) || !normalizer_cuts(normalizer)) {
        return CUTS_NEVER;
    }
    return cuts == CUTS_LINES && normal_end(t, "\n", 1, false) != '\n' ? CUTS_SPACES : cuts;
}

struct tokenizer_stream *tokenizer_stream_open(const struct tokenizer *t, struct tokenizer_scratch *s)
{
    struct tokenizer_stream *r = dt_alloc(sizeof *r);
    *r = (struct tokenizer_stream){.tokenizer = t, .scratch = s, .wanted = HELD_FIRST};
    return r;
}

void tokenizer_stream_close(struct tokenizer_stream *r)
{
    if (r != NULL) {
        dt_text_clear(&r->held);
        free(r);
    }
}

void tokenizer_stream_begin(struct tokenizer_stream *r, uint64_t from)
{
    r->done = from;
}

static bool is_space(uint32_t c)
{
    return (character_flags(c) & IS_SPACE) != 0;
}

static bool is_space_before(const struct tokenizer *t, const char *text, size_t at)
{
    size_t n;
    (void)utf8_read_back(text, at, &n);
    return is_space(normal_end(t, text + at - n, n, true));
}

/* True if the pieces of text[0 .. at) and of the rest are those of the whole; at: at least 1. */
static bool may_cut(const struct tokenizer *t, const char *text, size_t at)
{
    size_t n;
    if (t->cuts == CUTS_WHITE) {
        return text[at] == ' ' || text[at - 1] == '\n';
    }
    if (text[at] == ' ') {
        return !is_space_before(t, text, at);
    }
    if (t->cuts != CUTS_LINES || text[at - 1] != '\n' || at == 1 || is_space_before(t, text, at - 1)) {
        return false;
    }
    (void)utf8_read(text + at, &n);
    uint32_t next = normal_end(t, text + at, n, false);
    return !is_space(next) && next != '/'; /* o200k takes a '/' with the line feed */
}

/* The last place to cut at from `from` (excluded) to `limit`; 0: none. A token that begins before `from` is not seen,
 * but it ends before the first place that is looked at. Any token counts that stands there, also one that a longer
 * one before it would hide: so a search may begin anywhere. */
static size_t last_cut(const struct tokenizer *t, const char *text, size_t size, size_t from, size_t limit)
{
    size_t cut = 0, reached = from > 0 ? from + added_tokens_longest(t->added) + 1 : 0, n;
    for (size_t at = from; at <= limit && at < size; at += n) {
        size_t end = added_tokens_end_at(t->added, text, size, at);
        if (at > reached && end == 0 && may_cut(t, text, at)) {
            cut = at;
        }
        reached = end > reached ? end : reached;
        (void)utf8_read(text + at, &n);
    }
    return cut;
}

size_t tokenizer_cut(const struct tokenizer *t, const char *text, size_t size)
{
    size_t keep = added_tokens_longest(t->added) + 16, cut = 0, from = size;
    if (t->cuts == CUTS_NEVER || size <= keep) {
        return 0;
    }
    /* a place near the end is enough: look at more only where there is none */
    for (size_t window = 2 * keep + CUT_WINDOW; cut == 0 && from > 0; window *= 2) {
        for (from = window < size ? size - window : 0; from > 0 && ((unsigned char)text[from] & 0xc0) == 0x80;) {
            from--;
        }
        size_t valid = from + utf8_valid(text + from, size - from);
        if (valid + utf8_cut(text, size) < size) {
            return 0;
        }
        cut = valid > keep ? last_cut(t, text, valid, from, valid - keep) : 0;
    }
    return cut;
}

/* Encodes what no later part can change. */
static int encode_held(struct tokenizer_stream *r, struct token_ids *out, struct dt_error *err)
{
    const struct tokenizer *t = r->tokenizer;
    const char *text = r->held.data;
    size_t size = r->held.size, valid = utf8_valid(text, size);
    if (valid + utf8_cut(text, size) < size) {
        size = 0; /* not UTF-8: all of it, which says so */
    } else {
        size = tokenizer_cut(t, text, size);
        if (size == 0) {
            r->wanted = 2 * r->held.size;
            return 0;
        }
    }
    size_t part = size > 0 ? size : r->held.size;
    if (tokenizer_encode_part(t, r->scratch, text, part, r->done, out, err) != 0) {
        return -1;
    }
    r->done += part;
    memmove(r->held.data, r->held.data + part, r->held.size - part);
    r->held.size -= part;
    r->wanted = HELD_FIRST > 2 * r->held.size ? HELD_FIRST : 2 * r->held.size;
    return 0;
}

int tokenizer_stream_add(struct tokenizer_stream *r, const char *text, size_t size, struct token_ids *out,
                         struct dt_error *err)
{
    while (size > 0) {
        size_t n = size;
        if (r->tokenizer->cuts != CUTS_NEVER && n > HELD_FIRST) {
            n = HELD_FIRST;
        }
        dt_text_add(&r->held, text, n);
        text += n;
        size -= n;
        if (r->tokenizer->cuts != CUTS_NEVER && r->held.size >= r->wanted && encode_held(r, out, err) != 0) {
            return -1;
        }
    }
    return 0;
}

int tokenizer_stream_end(struct tokenizer_stream *r, struct token_ids *out, struct dt_error *err)
{
    int rc = tokenizer_encode_part(r->tokenizer, r->scratch, dt_text_str(&r->held), r->held.size, r->done, out, err);
    dt_text_reset(&r->held);
    r->done = 0;
    r->wanted = HELD_FIRST;
    return rc;
}

/* ---- ids to text ---- */

struct tokenizer_decoder {
    const struct tokenizer *tokenizer;
    bool skip_special;
    struct decoding *decoding;
};

struct tokenizer_decoder *tokenizer_decoder_open(const struct tokenizer *t, bool skip_special)
{
    struct tokenizer_decoder *d = dt_alloc(sizeof *d);
    *d =
        (struct tokenizer_decoder){.tokenizer = t, .skip_special = skip_special, .decoding = decoding_open(t->decoder)};
    return d;
}

void tokenizer_decoder_add(struct tokenizer_decoder *d, int32_t id, struct dt_text *out)
{
    size_t size;
    const char *token = added_tokens_shown(d->tokenizer->added, id, &size);
    token = token != NULL ? token : vocabulary_token(d->tokenizer->vocabulary, id, &size);
    if (token != NULL && !(d->skip_special && added_tokens_skipped(d->tokenizer->added, id))) {
        decoding_add(d->decoding, token, size, out);
    }
}

void tokenizer_decoder_end(struct tokenizer_decoder *d, struct dt_text *out)
{
    decoding_end(d->decoding, out);
}

void tokenizer_decoder_close(struct tokenizer_decoder *d)
{
    if (d != NULL) {
        decoding_close(d->decoding);
        free(d);
    }
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                      struct dt_text *out)
{
    struct tokenizer_decoder *d = tokenizer_decoder_open(t, skip_special);
    for (size_t i = 0; i < count; i++) {
        tokenizer_decoder_add(d, ids[i], out);
    }
    tokenizer_decoder_end(d, out);
    tokenizer_decoder_close(d);
}
