/* Decoders are a list of steps; Sequence is flattened. Tokens go through the steps one by one. A step
 * that makes one token of all (Fuse, ByteLevel) hands it on in parts where the steps behind it can work
 * on parts, and keeps it whole otherwise. */
#include "worker/data/tokenizers/decoder.h"
#include "worker/data/tokenizers/bpe.h"
#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/decode_words.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS_MOST = 32 };

enum kind { SPACES, BYTE_LEVEL, WORD_PIECE, METASPACE, SUFFIX, REPLACE, BYTE_FALLBACK, FUSE, STRIP, CTC };

struct step {
    enum kind kind;
    char *text, *second;     /* prefix, suffix, content, pad token; word delimiter */
    struct pattern *pattern; /* of REPLACE */
    int64_t start, stop;     /* of STRIP */
    bool cleanup;
    bool prepends; /* of METASPACE: the first token has the mark of the beginning */
    bool parts;    /* FUSE, BYTE_LEVEL: hands its token on in parts; STRIP: gets one token in parts */
};

struct decoder {
    int count;
    struct step steps[STEPS_MOST];
};

struct stage {
    int64_t tokens; /* so far */
    struct dt_text held, made;
    bool holds;
    int64_t stripped; /* of STRIP that gets one token in parts: -1: the beginning is over */
};

struct decoding {
    const struct decoder *d;
    struct stage stages[STEPS_MOST];
    struct dt_text *out;
};

static void push(struct decoding *s, int at, const char *token, size_t size);

/* ---- the steps ---- */

/* Appends bytes as text: what is not UTF-8 becomes U+FFFD, one for each part that no character can
 * begin with. Returns the bytes taken: without `last`, those of a cut character at the end stay. */
static size_t add_bytes(struct dt_text *out, const char *bytes, size_t size, bool last)
{
    size_t at = 0;
    while (at < size) {
        size_t valid = utf8_valid(bytes + at, size - at);
        dt_text_add(out, bytes + at, valid);
        at += valid;
        if (at == size) {
            break;
        }
        size_t bad = utf8_invalid(bytes + at, size - at);
        if (bad == size - at && !last && utf8_begins(bytes + at, bad)) {
            break;
        }
        dt_text_puts(out, "\xef\xbf\xbd");
        at += bad;
    }
    return at;
}

static void decode_byte_level(struct decoding *s, int at, const char *token, size_t size)
{
    struct stage *g = &s->stages[at];
    size_t before = g->held.size, n;
    for (size_t i = 0; i < size; i += n) {
        int byte = byte_level_byte(utf8_read(token + i, &n));
        char c = (char)byte;
        if (byte < 0) { /* then the whole token stands for itself */
            g->held.size = before;
            dt_text_add(&g->held, token, size);
            break;
        }
        dt_text_add(&g->held, &c, 1);
    }
    if (!s->d->steps[at].parts) {
        return;
    }
    dt_text_reset(&g->made);
    size_t taken = add_bytes(&g->made, g->held.data, g->held.size, false);
    memmove(g->held.data, g->held.data + taken, g->held.size - taken);
    g->held.size -= taken;
    push(s, at + 1, dt_text_str(&g->made), g->made.size);
}

static void end_byte_level(struct decoding *s, int at)
{
    struct stage *g = &s->stages[at];
    dt_text_reset(&g->made);
    (void)add_bytes(&g->made, g->held.data, g->held.size, true);
    push(s, at + 1, dt_text_str(&g->made), g->made.size);
}

static void decode_metaspace(struct decoding *s, int at, const char *token, size_t size)
{
    const struct step *p = &s->d->steps[at];
    struct stage *g = &s->stages[at];
    dt_text_reset(&g->made);
    words_replace(&g->made, token, size, p->text, g->tokens == 0 && p->prepends ? "" : " ");
    push(s, at + 1, dt_text_str(&g->made), g->made.size);
}

static void decode_word_piece(struct decoding *s, int at, const char *token, size_t size)
{
    const struct step *p = &s->d->steps[at];
    struct stage *g = &s->stages[at];
    size_t n = strlen(p->text);
    dt_text_reset(&g->made);
    if (g->tokens > 0) {
        bool glued = size >= n && memcmp(token, p->text, n) == 0;
        dt_text_puts(&g->made, glued ? "" : " ");
        token += glued ? n : 0;
        size -= glued ? n : 0;
    }
    dt_text_add(&g->made, token, size);
    if (p->cleanup) {
        words_clean_up(&g->made);
    }
    push(s, at + 1, dt_text_str(&g->made), g->made.size);
}

/* The last token is another case, so each waits for the next. */
static void decode_suffix(struct decoding *s, int at, const char *token, size_t size, bool last)
{
    struct stage *g = &s->stages[at];
    if (g->holds) {
        dt_text_reset(&g->made);
        words_replace(&g->made, g->held.data, g->held.size, s->d->steps[at].text, last ? "" : " ");
        push(s, at + 1, dt_text_str(&g->made), g->made.size);
    }
    dt_text_reset(&g->held);
    dt_text_add(&g->held, token, size);
    g->holds = !last;
}

static void decode_replace(struct decoding *s, int at, const char *token, size_t size)
{
    const struct step *p = &s->d->steps[at];
    struct stage *g = &s->stages[at];
    struct pattern_search search = {.pattern = p->pattern, .text = token, .size = size};
    size_t begin, end, done = 0;
    struct dt_error err; /* a token that the pattern cannot search stays as it is */
    dt_text_reset(&g->made);
    while (pattern_next(&search, &begin, &end, &err) == 1) {
        dt_text_add(&g->made, token + done, begin - done);
        dt_text_puts(&g->made, p->text);
        done = end;
    }
    dt_text_add(&g->made, token + done, size - done);
    push(s, at + 1, dt_text_str(&g->made), g->made.size);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* The byte of <0xE2>; -1: the token is another. Like the library, takes <0x+E>, too. */
static int byte_of(const char *token, size_t size)
{
    if (size != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>') {
        return -1;
    }
    int high = token[3] == '+' ? 0 : hex_digit(token[3]), low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* A run of bytes is text as a whole, or each of them U+FFFD. */
static void end_run(struct decoding *s, int at)
{
    struct stage *g = &s->stages[at];
    size_t count = g->held.size;
    if (count == 0) {
        return;
    }
    dt_text_reset(&g->made);
    dt_text_add(&g->made, g->held.data, count);
    dt_text_reset(&g->held);
    if (utf8_valid(g->made.data, count) == count) {
        push(s, at + 1, dt_text_str(&g->made), count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        push(s, at + 1, "\xef\xbf\xbd", 3);
    }
}

static void decode_byte_fallback(struct decoding *s, int at, const char *token, size_t size)
{
    int byte = byte_of(token, size);
    char c = (char)byte;
    if (byte >= 0) {
        dt_text_add(&s->stages[at].held, &c, 1);
        return;
    }
    end_run(s, at);
    push(s, at + 1, token, size);
}

/* Strips a token, or the parts of one, which has only a beginning to strip. */
static void decode_strip(struct decoding *s, int at, const char *token, size_t size)
{
    const struct step *p = &s->d->steps[at];
    struct stage *g = &s->stages[at];
    size_t n = strlen(p->text);
    int64_t done = p->parts ? g->stripped : 0;
    while (done >= 0 && done < p->start && size >= n && memcmp(token, p->text, n) == 0) {
        token += n;
        size -= n;
        done++;
    }
    g->stripped = size > 0 ? -1 : done;
    for (int64_t i = 0; i < p->stop && size >= n && memcmp(token + size - n, p->text, n) == 0; i++) {
        size -= n;
    }
    push(s, at + 1, token, size);
}

/* Repeated tokens are one; then the pad token is nothing. */
static void decode_ctc(struct decoding *s, int at, const char *token, size_t size)
{
    const struct step *p = &s->d->steps[at];
    struct stage *g = &s->stages[at];
    if (g->tokens > 0 && g->held.size == size && memcmp(dt_text_str(&g->held), token, size) == 0) {
        return;
    }
    dt_text_reset(&g->held);
    dt_text_add(&g->held, token, size);
    dt_text_reset(&g->made);
    words_replace(&g->made, token, size, p->text, "");
    if (p->cleanup) {
        words_clean_up(&g->made);
        struct dt_text spaced;
        dt_text_init(&spaced);
        words_replace(&spaced, dt_text_str(&g->made), g->made.size, p->second, " ");
        dt_text_clear(&g->made);
        g->made = spaced;
    }
    if (g->made.size > 0) {
        push(s, at + 1, dt_text_str(&g->made), g->made.size);
    }
}

static void push(struct decoding *s, int at, const char *token, size_t size)
{
    if (at >= s->d->count) {
        dt_text_add(s->out, token, size);
        return;
    }
    const struct step *p = &s->d->steps[at];
    struct stage *g = &s->stages[at];
    switch (p->kind) {
    case SPACES:
        dt_text_puts(s->out, g->tokens > 0 ? " " : "");
        dt_text_add(s->out, token, size);
        break;
    case BYTE_LEVEL:
        decode_byte_level(s, at, token, size);
        break;
    case WORD_PIECE:
        decode_word_piece(s, at, token, size);
        break;
    case METASPACE:
        decode_metaspace(s, at, token, size);
        break;
    case SUFFIX:
        decode_suffix(s, at, token, size, false);
        break;
    case REPLACE:
        decode_replace(s, at, token, size);
        break;
    case BYTE_FALLBACK:
        decode_byte_fallback(s, at, token, size);
        break;
    case FUSE:
        if (p->parts) {
            push(s, at + 1, token, size);
        } else {
            dt_text_add(&g->held, token, size);
        }
        break;
    case STRIP:
        decode_strip(s, at, token, size);
        break;
    case CTC:
        decode_ctc(s, at, token, size);
        break;
    }
    g->tokens++;
}

/* ---- streams ---- */

struct decoding *decoding_open(const struct decoder *d)
{
    static const struct decoder spaces = {.count = 1, .steps = {{.kind = SPACES}}};
    struct decoding *s = dt_alloc(sizeof *s);
    s->d = d != NULL ? d : &spaces;
    return s;
}

void decoding_add(struct decoding *s, const char *token, size_t size, struct dt_text *out)
{
    s->out = out;
    push(s, 0, token, size);
}

void decoding_end(struct decoding *s, struct dt_text *out)
{
    s->out = out;
    for (int i = 0; i < s->d->count; i++) {
        const struct step *p = &s->d->steps[i];
        struct stage *g = &s->stages[i];
        if (p->kind == BYTE_LEVEL) {
            end_byte_level(s, i);
        } else if (p->kind == SUFFIX) {
            decode_suffix(s, i, "", 0, true);
        } else if (p->kind == BYTE_FALLBACK) {
            end_run(s, i);
        } else if (p->kind == FUSE && !p->parts) {
            push(s, i + 1, dt_text_str(&g->held), g->held.size);
        }
        dt_text_reset(&g->held);
        g->tokens = g->stripped = 0;
    }
}

void decoding_close(struct decoding *s)
{
    for (int i = 0; s != NULL && i < STEPS_MOST; i++) {
        dt_text_clear(&s->stages[i].held);
        dt_text_clear(&s->stages[i].made);
    }
    free(s);
}

/* ---- opening ---- */

static int read_text(const cJSON *json, const char *key, char **out, struct dt_error *err)
{
    const char *text;
    if (part_text(json, key, NULL, &text, err) != 0) {
        return -1;
    }
    if (text == NULL) {
        return dt_fail(err, DT_INVALID, "%s: missing", key);
    }
    *out = dt_strdup(text);
    return 0;
}

static int read_character(const cJSON *json, const char *key, char **out, struct dt_error *err)
{
    size_t n = 0;
    if (read_text(json, key, out, err) != 0) {
        return -1;
    }
    if (**out != 0) {
        (void)utf8_read(*out, &n);
    }
    return n > 0 && strlen(*out) == n ? 0 : dt_fail(err, DT_INVALID, "%s: must be one character", key);
}

static int open_nothing(struct step *s, const cJSON *json, struct dt_error *err)
{
    (void)s;
    (void)json;
    (void)err;
    return 0;
}

static int open_word_piece(struct step *s, const cJSON *json, struct dt_error *err)
{
    return read_text(json, "prefix", &s->text, err) != 0 ? -1 : part_bool(json, "cleanup", -1, &s->cleanup, err);
}

static int open_metaspace(struct step *s, const cJSON *json, struct dt_error *err)
{
    const char *scheme;
    if (read_character(json, "replacement", &s->text, err) != 0 ||
        part_text(json, "prepend_scheme", "always", &scheme, err) != 0) {
        return -1;
    }
    s->prepends = strcmp(scheme, "never") != 0;
    if (s->prepends && strcmp(scheme, "first") != 0 && strcmp(scheme, "always") != 0) {
        return dt_fail(err, DT_INVALID, "prepend_scheme: %s; there are always, first, never", scheme);
    }
    if (s->prepends && cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(json, "add_prefix_space"))) {
        return dt_fail(err, DT_INVALID, "add_prefix_space: false, but prepend_scheme is not \"never\"");
    }
    return 0;
}

static int open_suffix(struct step *s, const cJSON *json, struct dt_error *err)
{
    if (read_text(json, "suffix", &s->text, err) != 0) {
        return -1;
    }
    return *s->text != 0 ? 0 : dt_fail(err, DT_INVALID, "suffix: empty");
}

static int open_replace(struct step *s, const cJSON *json, struct dt_error *err)
{
    if (read_text(json, "content", &s->text, err) != 0) {
        return -1;
    }
    return pattern_open(&s->pattern, cJSON_GetObjectItemCaseSensitive(json, "pattern"), err) == 0
               ? 0
               : dt_wrap(err, "pattern");
}

static int open_strip(struct step *s, const cJSON *json, struct dt_error *err)
{
    if (read_character(json, "content", &s->text, err) != 0 ||
        part_integer(json, "start", -1, INT32_MAX, &s->start, err) != 0) {
        return -1;
    }
    return part_integer(json, "stop", -1, INT32_MAX, &s->stop, err);
}

static int open_ctc(struct step *s, const cJSON *json, struct dt_error *err)
{
    return read_text(json, "pad_token", &s->text, err) != 0 ||
                   read_text(json, "word_delimiter_token", &s->second, err) != 0
               ? -1
               : part_bool(json, "cleanup", -1, &s->cleanup, err);
}

static const struct {
    const char *type;
    enum kind kind;
    int (*open)(struct step *s, const cJSON *json, struct dt_error *err);
} types[] = {
    {"ByteLevel", BYTE_LEVEL, open_nothing},
    {"WordPiece", WORD_PIECE, open_word_piece},
    {"Metaspace", METASPACE, open_metaspace},
    {"BPEDecoder", SUFFIX, open_suffix},
    {"Replace", REPLACE, open_replace},
    {"ByteFallback", BYTE_FALLBACK, open_nothing},
    {"Fuse", FUSE, open_nothing},
    {"Strip", STRIP, open_strip},
    {"CTC", CTC, open_ctc},
};

static int open_part(struct decoder *d, const cJSON *json, int depth, struct dt_error *err);

static int open_sequence(struct decoder *d, const cJSON *json, int depth, struct dt_error *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "decoders"), *j;
    int place = 0;
    if (!cJSON_IsArray(list) || depth == 8) {
        return dt_fail(err, DT_INVALID,
                       depth == 8 ? "sequences are nested too deeply" : "decoders: missing, or not a list");
    }
    cJSON_ArrayForEach(j, list)
    {
        if (open_part(d, j, depth + 1, err) != 0) {
            return dt_wrap(err, "decoders[%d]", place);
        }
        place++;
    }
    return 0;
}

static int open_part(struct decoder *d, const cJSON *json, int depth, struct dt_error *err)
{
    const char *type = part_type(json, err);
    if (type == NULL) {
        return -1;
    }
    if (strcmp(type, "Sequence") == 0) {
        return open_sequence(d, json, depth, err);
    }
    if (d->count == STEPS_MOST) {
        return dt_fail(err, DT_INVALID, "more than %d decoders", STEPS_MOST);
    }
    struct dt_text known;
    dt_text_init(&known);
    struct dt_list list = {.text = &known};
    int rc = 1;
    for (size_t i = 0; i < sizeof types / sizeof *types && rc == 1; i++) {
        dt_list_add(&list, "%s", types[i].type);
        if (strcmp(type, types[i].type) == 0) {
            struct step *s = &d->steps[d->count++];
            s->kind = types[i].kind;
            rc = types[i].open(s, json, err);
        }
    }
    if (rc == 1) {
        rc = dt_fail(err, DT_INVALID, "type: %s is not supported; there are %s, Sequence", type, dt_text_str(&known));
    }
    dt_text_clear(&known);
    return rc;
}

/* The first step that makes one token of all may hand it on in parts if only beginnings are stripped
 * behind it. */
static void find_parts(struct decoder *d)
{
    int fuse = 0;
    while (fuse < d->count && d->steps[fuse].kind != FUSE && d->steps[fuse].kind != BYTE_LEVEL) {
        fuse++;
    }
    for (int i = fuse + 1; i < d->count; i++) {
        if (d->steps[i].kind != STRIP || d->steps[i].stop > 0) {
            return;
        }
    }
    for (int i = fuse; i < d->count; i++) {
        d->steps[i].parts = true;
    }
}

int decoder_open(struct decoder **out, const cJSON *json, struct dt_error *err)
{
    *out = NULL;
    if (json == NULL || cJSON_IsNull(json)) {
        return 0;
    }
    struct decoder *d = dt_alloc(sizeof *d);
    if (open_part(d, json, 0, err) != 0) {
        decoder_close(d);
        return -1;
    }
    find_parts(d);
    *out = d;
    return 0;
}

static bool has_step(const struct decoder *d, enum kind kind)
{
    int i = 0;
    while (d != NULL && i < d->count && d->steps[i].kind != kind) {
        i++;
    }
    return d != NULL && i < d->count;
}

int64_t decoder_token_bytes(const struct decoder *d, const char *token, size_t size)
{
    static const char mark[] = "\xe2\x96\x81"; /* U+2581, a space */
    int64_t bytes = 0;
    if (has_step(d, BYTE_LEVEL)) {
        for (size_t i = 0, n; i < size; i += n) {
            bytes += byte_level_byte(utf8_read(token + i, &n)) >= 0 ? 1 : (int64_t)n;
        }
        return bytes;
    }
    if (!has_step(d, METASPACE) && !has_step(d, REPLACE)) {
        return -1;
    }
    if (has_step(d, BYTE_FALLBACK) && size == 6 && memcmp(token, "<0x", 3) == 0 && token[5] == '>') {
        return 1;
    }
    for (size_t i = 0, n; i < size; i += n) {
        (void)utf8_read(token + i, &n);
        bytes += n == 3 && memcmp(token + i, mark, 3) == 0 ? 1 : (int64_t)n;
    }
    return bytes;
}

void decoder_close(struct decoder *d)
{
    for (int i = 0; d != NULL && i < d->count; i++) {
        free(d->steps[i].text);
        free(d->steps[i].second);
        pattern_close(d->steps[i].pattern);
    }
    free(d);
}
