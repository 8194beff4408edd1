#include "worker/data/tokenizers/sentencepiece.h"

#include "base/text.h"
#include "worker/data/tokenizers/characters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PIECES = 1 << 22 };

/* ---- protocol buffers ---- */

struct reader {
    const unsigned char *at, *end;
};

/* One field of a message. */
struct field {
    uint64_t number;
    uint64_t value;             /* of a varint, or the bits of a fixed number */
    const unsigned char *bytes; /* of text, bytes or a message; null: a number */
    size_t size;
};

static bool read_varint(struct reader *r, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64 && r->at < r->end; shift += 7) {
        unsigned char byte = *r->at++;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            return true;
        }
    }
    return false;
}

static bool read_fixed(struct reader *r, size_t size, uint64_t *value)
{
    if ((size_t)(r->end - r->at) < size) {
        return false;
    }
    *value = 0;
    for (size_t i = 0; i < size; i++) {
        *value |= (uint64_t)r->at[i] << (8 * i);
    }
    r->at += size;
    return true;
}

/* 1, 0 at the end, -1: damaged. */
static int read_field(struct reader *r, struct field *f)
{
    enum { VARINT, FIXED64, BYTES, FIXED32 = 5 };
    uint64_t key = 0;
    *f = (struct field){0};
    if (r->at == r->end) {
        return 0;
    }
    if (!read_varint(r, &key)) {
        return -1;
    }
    f->number = key >> 3;
    switch (key & 7) {
    case VARINT:
        return read_varint(r, &f->value) ? 1 : -1;
    case FIXED64:
        return read_fixed(r, 8, &f->value) ? 1 : -1;
    case FIXED32:
        return read_fixed(r, 4, &f->value) ? 1 : -1;
    case BYTES:
        if (!read_varint(r, &f->value) || f->value > (uint64_t)(r->end - r->at)) {
            return -1;
        }
        f->bytes = r->at;
        f->size = (size_t)f->value;
        r->at += f->size;
        return 1;
    default:
        return -1;
    }
}

/* Calls `take` for each field of a message. */
static int read_message(struct sentencepiece *m, const unsigned char *bytes, size_t size,
                        int (*take)(struct sentencepiece *m, const struct field *f, struct dt_error *err),
                        struct dt_error *err)
{
    struct reader r = {bytes, bytes + size};
    struct field f;
    int found = 0;
    while ((found = read_field(&r, &f)) > 0) {
        if (take(m, &f, err) != 0) {
            return -1;
        }
    }
    return found == 0 ? 0
                      : dt_fail(err, DT_INVALID, "damaged %zu bytes before the end of a message of %zu",
                                (size_t)(r.end - r.at), size);
}

/* ---- the messages of sentencepiece_model.proto ---- */

static int take_piece_field(struct sentencepiece *m, const struct field *f, struct dt_error *err)
{
    struct sentence_piece *p = &m->pieces[m->count - 1];
    uint32_t bits = (uint32_t)f->value;
    if (f->number == 1 && f->bytes != NULL) {
        p->text = (const char *)f->bytes;
        p->size = f->size;
    } else if (f->number == 2 && f->bytes == NULL) {
        memcpy(&p->score, &bits, sizeof bits);
    } else if (f->number == 3 && f->bytes == NULL) {
        if (f->value < PIECE_NORMAL || f->value > PIECE_BYTE) {
            return dt_fail(err, DT_INVALID, "type %llu; there are 1 to 6", (unsigned long long)f->value);
        }
        p->type = (enum piece_type)f->value;
    }
    return 0;
}

static int take_piece(struct sentencepiece *m, const struct field *f, struct dt_error *err)
{
    if (m->count == MOST_PIECES) {
        return dt_fail(err, DT_INVALID, "more than %d pieces", MOST_PIECES);
    }
    if (m->count == m->capacity) {
        m->capacity = m->capacity > 0 ? 2 * m->capacity : 1024;
        m->pieces = dt_realloc(m->pieces, m->capacity * sizeof *m->pieces);
    }
    m->pieces[m->count++] = (struct sentence_piece){.text = "", .type = PIECE_NORMAL};
    const struct sentence_piece *p = &m->pieces[m->count - 1];
    if (read_message(m, f->bytes, f->size, take_piece_field, err) != 0) {
        return dt_wrap(err, "piece %zu", m->count - 1);
    }
    if (p->size == 0 || memchr(p->text, 0, p->size) != NULL || utf8_valid(p->text, p->size) != p->size) {
        return dt_fail(err, DT_INVALID, "piece %zu: empty, with NUL or not UTF-8", m->count - 1);
    }
    return isfinite(p->score) ? 0 : dt_fail(err, DT_INVALID, "piece %zu: a score that is no number", m->count - 1);
}

static int take_trainer_field(struct sentencepiece *m, const struct field *f, struct dt_error *err)
{
    int64_t id = (int32_t)(uint32_t)f->value;
    switch (f->bytes == NULL ? f->number : 0) {
    case 3:
        if (f->value < SENTENCEPIECE_UNIGRAM || f->value > SENTENCEPIECE_CHAR) {
            return dt_fail(err, DT_INVALID, "trainer_spec.model_type: %llu; there are 1 to 4",
                           (unsigned long long)f->value);
        }
        m->model = (int)f->value;
        break;
    case 24:
        m->suffix = f->value != 0;
        break;
    case 35:
        m->byte_fallback = f->value != 0;
        break;
    case 40:
        m->unknown = id;
        break;
    case 41:
        m->begin = id;
        break;
    case 42:
        m->end = id;
        break;
    default:
        break;
    }
    return 0;
}

static int take_normalizer_field(struct sentencepiece *m, const struct field *f, struct dt_error *err)
{
    (void)err;
    if (f->number == 2 && f->bytes != NULL) {
        m->charsmap = f->size > 0 ? (const char *)f->bytes : NULL;
        m->charsmap_size = f->size;
    } else if (f->number == 3 && f->bytes == NULL) {
        m->dummy_prefix = f->value != 0;
    } else if (f->number == 4 && f->bytes == NULL) {
        m->remove_extra_whitespaces = f->value != 0;
    } else if (f->number == 5 && f->bytes == NULL) {
        m->escape_whitespaces = f->value != 0;
    }
    return 0;
}

static int take_model_field(struct sentencepiece *m, const struct field *f, struct dt_error *err)
{
    switch (f->bytes != NULL ? f->number : 0) {
    case 1:
        return take_piece(m, f, err);
    case 2:
        return read_message(m, f->bytes, f->size, take_trainer_field, err);
    case 3:
        return read_message(m, f->bytes, f->size, take_normalizer_field, err);
    default:
        return 0;
    }
}

int sentencepiece_read(struct sentencepiece *out, const void *bytes, size_t size, struct dt_error *err)
{
    struct sentencepiece m = {.model = SENTENCEPIECE_UNIGRAM,
                              .dummy_prefix = true,
                              .remove_extra_whitespaces = true,
                              .escape_whitespaces = true,
                              .begin = 1,
                              .end = 2};
    int result = read_message(&m, bytes, size, take_model_field, err);
    if (result == 0 && m.count == 0) {
        result = dt_fail(err, DT_INVALID, "no pieces; this is not a model of SentencePiece");
    }
    if (result == 0 && (m.unknown < 0 || (size_t)m.unknown >= m.count)) {
        result = dt_fail(err, DT_INVALID, "trainer_spec.unk_id: %lld, but there are %zu pieces", (long long)m.unknown,
                         m.count);
    }
    if (result != 0) {
        sentencepiece_clear(&m);
        return -1;
    }
    m.begin = m.begin >= 0 && (size_t)m.begin < m.count ? m.begin : -1;
    m.end = m.end >= 0 && (size_t)m.end < m.count ? m.end : -1;
    *out = m;
    return 0;
}

void sentencepiece_clear(struct sentencepiece *m)
{
    free(m->pieces);
    *m = (struct sentencepiece){0};
}
