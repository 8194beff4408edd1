/* See the header. */
#include "cmd/dtdata/source.h"

#include "base/scan.h"
#include "base/text.h"
#include "cmd/dtdata/json_array.h"
#include "cmd/dtdata/unpack.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LOOK_BYTES = 8192 };

struct source {
    struct unpack *in;
    char *path;
    enum source_kind kind;
    source_cut *cut;
    const void *context;
    struct source_place at; /* of `rest` */
    bool begun, ended;
    bool joined; /* the next block is */
    bool given;  /* the next block is not the file's first */
    bool marked; /* the mark of the file belongs to the next block */
    char *rest;  /* read, and not yet in a block */
    size_t size, capacity;
    struct dt_text header;
    struct json_array array; /* of SOURCE_JSON */
};

/* True for a name with that end, in small or capital letters, also with .gz or .zst behind. */
static bool has_end(const char *path, const char *end)
{
    size_t size = strlen(path) - unpack_end(path), n = strlen(end);
    return size >= n && strncasecmp(path + size - n, end, n) == 0;
}

enum source_kind source_kind(const char *path)
{
    static const struct {
        const char *end;
        enum source_kind kind;
    } rows[] = {{".jsonl", SOURCE_JSONL}, {".ndjson", SOURCE_JSONL}, {".csv", SOURCE_CSV}, {".tsv", SOURCE_TSV}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (has_end(path, rows[i].end)) {
            return rows[i].kind;
        }
    }
    return SOURCE_TEXT;
}

bool source_is_array(const char *path)
{
    struct dt_error ignored;
    struct unpack *in;
    char head[LOOK_BYTES];
    const char *other;
    size_t size = 0;
    if (!has_end(path, ".json") || unpack_open(&in, path, &ignored) != 0) {
        return false;
    }
    size = unpack_read(in, (unsigned char *)head, sizeof head - 1, &size, &ignored) == 0 ? size : 0;
    unpack_close(in);
    head[size] = 0;
    const char *at = head + dt_text_mark(head, size, &other);
    at += strspn(at, " \t\r\n");
    return *at == '[' && at[1 + strspn(at + 1, " \t\r\n")] == '{';
}

const struct csv_form *source_csv_form(enum source_kind kind)
{
    static const struct csv_form csv = {',', true}, tsv = {'\t', false};
    return kind == SOURCE_TSV ? &tsv : &csv;
}

void block_clear(struct text_block *b)
{
    free(b->text);
    *b = (struct text_block){0};
}

int source_open(struct source **out, const char *path, enum source_kind kind, source_cut *cut, const void *context,
                struct dt_error *err)
{
    struct source *s = dt_alloc(sizeof *s);
    if (unpack_open(&s->in, path, err) != 0) {
        free(s);
        return -1;
    }
    s->path = dt_strdup(path);
    s->kind = kind == SOURCE_AUTO ? source_kind(path) : kind;
    s->cut = cut;
    s->context = context;
    *out = s;
    return 0;
}

/* Reads on until `rest` has `least` bytes, or the file ends. */
static int fill(struct source *s, size_t least, struct dt_error *err)
{
    static const size_t piece = 1 << 16;
    while (s->size < least && !s->ended) {
        size_t room = least - s->size > piece ? least - s->size : piece, got = 0;
        if (s->capacity < s->size + room + 1) { /* one more ends the text of a block */
            s->capacity = s->size + room + 1;
            s->rest = dt_realloc(s->rest, s->capacity);
        }
        if (unpack_read(s->in, (unsigned char *)s->rest + s->size, room, &got, err) != 0) {
            return -1;
        }
        if (s->kind == SOURCE_JSON && (json_array_lines(&s->array, s->rest + s->size, got, s->path, err) != 0 ||
                                       (got == 0 && json_array_end(&s->array, s->path, err) != 0))) {
            return -1;
        }
        s->size += got;
        s->ended = got == 0;
    }
    return 0;
}

/* Counts what is taken from the beginning of `rest`. Only places of records are told by line. */
static void pass(struct source *s, size_t size)
{
    const char *at = s->rest, *end = at + size;
    while (s->kind != SOURCE_TEXT && (at = memchr(at, '\n', (size_t)(end - at))) != NULL) {
        s->at.line++;
        at++;
    }
    s->at.offset += (int64_t)size;
    s->size -= size;
}

static void drop(struct source *s, size_t size)
{
    if (size > 0) {
        pass(s, size);
        memmove(s->rest, s->rest + size, s->size);
    }
}

/* Hands over the beginning of `rest` as the text of a block, in its memory; what follows moves to the block's. */
static void hand_over(struct source *s, struct text_block *b, size_t size)
{
    char *text = s->rest, *spare = b->text;
    size_t capacity = s->capacity, spare_capacity = b->capacity;
    pass(s, size);
    if (spare_capacity < s->size + 1) {
        spare_capacity = s->size + 1 > SOURCE_BLOCK_BYTES + 1 ? s->size + 1 : SOURCE_BLOCK_BYTES + 1;
        spare = dt_realloc(spare, spare_capacity);
    }
    memcpy(spare, text + size, s->size);
    s->rest = spare;
    s->capacity = spare_capacity;
    text[size] = 0;
    b->text = text;
    b->capacity = capacity;
    b->size = size;
}

/* The first bytes of the file: its byte order mark goes, and a NUL makes it binary. */
static int begin(struct source *s, struct dt_error *err)
{
    const char *other;
    if (fill(s, LOOK_BYTES, err) != 0) {
        return -1;
    }
    size_t mark = dt_text_mark(s->rest, s->size, &other);
    if (other != NULL) {
        return dt_fail(err, DT_INVALID, "%s: begins with the byte order mark of %s; convert it: iconv -f %s -t UTF-8",
                       s->path, other, other);
    }
    if (memchr(s->rest, 0, s->size < LOOK_BYTES ? s->size : LOOK_BYTES) != NULL) {
        return dt_fail(err, DT_INVALID, "%s: binary, not text: a NUL among its first bytes", s->path);
    }
    s->marked = mark > 0;
    drop(s, mark);
    s->begun = true;
    return 0;
}

/* The end of the whole records in the first `size` bytes of `rest`; 0: not even one is there. */
static size_t records_end(const struct source *s, size_t size)
{
    static const struct csv_form lines = {'\n', false};
    bool csv = s->kind == SOURCE_CSV || s->kind == SOURCE_TSV;
    return csv_last_end(csv ? source_csv_form(s->kind) : &lines, s->rest, size);
}

/* Reads whole records until there are about `least` bytes of them; *end: where they end, 0: the first of them is
 * longer than DT_SCAN_BYTES. The end depends on the begin alone, and not on what has been read: a run that goes on
 * at this begin must find the same blocks. */
static int fill_records(struct source *s, size_t least, size_t *end, struct dt_error *err)
{
    *end = 0;
    for (size_t want = least; *end == 0; want *= 2) {
        if (fill(s, want, err) != 0) {
            return -1;
        }
        if (s->ended && s->size < want) {
            *end = s->size;
            return 0;
        }
        *end = records_end(s, s->size < want ? s->size : want);
        if (*end == 0 && want > DT_SCAN_BYTES) { /* of a quote that is never closed the line is one record */
            bool csv = s->kind == SOURCE_CSV || s->kind == SOURCE_TSV;
            const char *lf = csv ? memchr(s->rest, '\n', DT_SCAN_BYTES) : NULL;
            *end = lf != NULL ? (size_t)(lf - s->rest) + 1 : 0;
            return 0;
        }
    }
    return 0;
}

/* Drops the record that begins `rest`, up to the end of its line. */
static int drop_record(struct source *s, struct dt_error *err)
{
    const char *lf = NULL;
    while (lf == NULL) {
        if (fill(s, 1, err) != 0) {
            return -1;
        }
        if (s->size == 0) {
            return 0;
        }
        lf = memchr(s->rest, '\n', s->size);
        drop(s, lf != NULL ? (size_t)(lf - s->rest) + 1 : s->size);
    }
    return 0;
}

/* The first line that is not empty. */
static int read_header(struct source *s, struct dt_error *err)
{
    size_t end, blank;
    do {
        if (fill_records(s, SOURCE_BLOCK_BYTES, &end, err) != 0) {
            return -1;
        }
        for (blank = 0; blank < end && (s->rest[blank] == '\n' || s->rest[blank] == '\r');) {
            blank++;
        }
        drop(s, blank);
        end -= blank;
    } while (blank > 0 && end == 0);
    if (end == 0 && s->size > 0) {
        return dt_fail(err, DT_INVALID, "%s:1: a header of more than %zu bytes", s->path, DT_SCAN_BYTES);
    }
    end = csv_first_end(source_csv_form(s->kind), s->rest, end);
    const char *cr = end > 0 ? memchr(s->rest, '\r', end) : NULL;
    if (cr != NULL && memchr(s->rest, '"', end) == NULL && (size_t)(cr - s->rest) + 1 < end && cr[1] != '\n') {
        return dt_fail(err, DT_INVALID,
                       "%s:1: a CR within the header: lines must end with LF or CRLF; convert it: "
                       "tr '\\r' '\\n'",
                       s->path);
    }
    dt_text_add(&s->header, s->rest, end);
    drop(s, end);
    return 0;
}

static int begin_all(struct source *s, struct dt_error *err)
{
    if (s->begun) {
        return 0;
    }
    bool csv = s->kind == SOURCE_CSV || s->kind == SOURCE_TSV;
    return begin(s, err) != 0 || (csv && read_header(s, err) != 0) ? -1 : 0;
}

int source_seek(struct source *s, const struct source_place *to, struct dt_error *err)
{
    if (to->offset == 0) {
        return 0;
    }
    if (begin_all(s, err) != 0) {
        return -1;
    }
    struct unpack *in;
    if (unpack_open(&in, s->path, err) != 0) {
        return -1;
    }
    unpack_close(s->in);
    s->in = in;
    s->at = *to;
    s->array = json_array_resume();
    s->ended = s->marked = s->joined = false;
    s->given = true;
    s->size = 0;
    return unpack_skip(s->in, to->offset, err);
}

/* The place before which a text may be cut between any two characters, at or before `size`. A byte that continues
 * none begins a character; four bytes that continue one cannot all belong to it. */
static size_t character_cut(const char *text, size_t size)
{
    for (size_t back = 1; back <= 4 && back < size; back++) {
        if (((unsigned char)text[size - back] & 0xc0) != 0x80) {
            return size - back;
        }
    }
    return size;
}

/* *open: the end is no place for a cut; then no later one is, either. */
static int text_end(struct source *s, size_t *end, bool *open, struct dt_error *err)
{
    if (fill(s, SOURCE_BLOCK_BYTES, err) != 0) {
        return -1;
    }
    size_t size = s->size < SOURCE_BLOCK_BYTES ? s->size : SOURCE_BLOCK_BYTES;
    if (s->ended && size == s->size) {
        *end = size;
        return 0;
    }
    /* behind a block that is open the places are not known: a token may reach over its end */
    *end = s->cut != NULL && !s->joined ? s->cut(s->context, s->rest, size) : 0;
    *open = s->cut != NULL && *end == 0;
    *end = *end > 0 ? *end : character_cut(s->rest, size);
    return 0;
}

int source_next(struct source *s, struct text_block *b, struct dt_error *err)
{
    size_t end = 0;
    bool first = !s->given, open = false;
    if (begin_all(s, err) != 0) {
        return -1;
    }
    if (s->ended && s->size == 0 && !first) {
        return 0;
    }
    int result =
        s->kind == SOURCE_TEXT ? text_end(s, &end, &open, err) : fill_records(s, SOURCE_BLOCK_BYTES, &end, err);
    if (result != 0) {
        return -1;
    }
    b->begin = s->at;
    b->too_long = s->kind != SOURCE_TEXT && end == 0 && s->size > 0;
    if (b->too_long && drop_record(s, err) != 0) {
        return -1;
    }
    b->first = first;
    s->given = true;
    b->joined = s->joined;
    b->open = s->joined = open;
    b->marked = s->marked;
    s->marked = false;
    hand_over(s, b, end);
    /* the last block must be known as it: look whether more follows */
    result = fill(s, 1, err);
    b->last = s->ended && s->size == 0;
    return result == 0 ? 1 : -1;
}

const struct dt_text *source_header(const struct source *s)
{
    return &s->header;
}

void source_close(struct source *s)
{
    if (s == NULL) {
        return;
    }
    unpack_close(s->in);
    free(s->rest);
    dt_text_clear(&s->header);
    free(s->path);
    free(s);
}
