/* Pre-tokenizers are a list of steps; Sequence is flattened. A step splits each piece of the text, and
 * ByteLevel and Metaspace also write a new text. Empty pieces are left out. */
#include "worker/data/tokenizers/pretokenizer.h"
#include "worker/data/tokenizers/bpe.h"
#include "worker/data/tokenizers/characters.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS_MOST = 64, SCANNED = 64 };

struct split_match {
    size_t begin, end;
    bool match;
};

enum kind { SPLITTER, SCAN, SPLIT, PREFIX_SPACE, MAP_BYTES, METASPACE };
enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };
enum scheme { ALWAYS, FIRST, NEVER };

struct step {
    enum kind kind;
    const struct splitter_ops *ops; /* of SPLITTER */
    void *state;
    scanner_function *scan;  /* of SCAN */
    struct pattern *pattern; /* of SPLIT */
    enum behavior behavior;
    bool invert;
    char replacement[5]; /* of METASPACE */
    enum scheme scheme;
    bool split, cuts, local; /* cuts: there is always a cut before a space; local: none depends on it */
};

struct pretokenizer {
    int count;
    struct step steps[STEPS_MOST];
};

/* ---- applying ---- */

void pieces_add(struct pieces *p, size_t begin, size_t end)
{
    if (p->count == p->capacity) {
        p->capacity = p->capacity == 0 ? 256 : 2 * p->capacity;
        p->at = dt_realloc(p->at, p->capacity * sizeof *p->at);
    }
    p->at[p->count++] = (struct piece){begin, end};
}

static void add_piece(struct pre_tokens *w, size_t begin, size_t end)
{
    if (end > begin) {
        pieces_add(&w->spare, begin, end);
    }
}

static void use_spare(struct pre_tokens *w)
{
    struct pieces old = w->pieces;
    w->pieces = w->spare;
    w->spare = old;
    w->spare.count = 0;
}

static void split_by_ops(const struct step *s, struct pre_tokens *w, struct piece p)
{
    size_t first = w->spare.count, kept;
    s->ops->split(s->state, w->text + p.begin, p.end - p.begin, &w->spare);
    kept = first;
    for (size_t i = first; i < w->spare.count; i++) {
        struct piece k = w->spare.at[i];
        if (k.end > k.begin) {
            w->spare.at[kept++] = (struct piece){k.begin + p.begin, k.end + p.begin};
        }
    }
    w->spare.count = kept;
}

static void split_by_scanner(const struct step *s, struct pre_tokens *w, struct piece p)
{
    const char *text = w->text + p.begin;
    size_t size = p.end - p.begin;
    struct piece found[SCANNED];
    for (size_t at = 0; at < size;) {
        size_t count = s->scan(text, size, at, found, SCANNED);
        for (size_t i = 0; i < count; i++) {
            pieces_add(&w->spare, p.begin + found[i].begin, p.begin + found[i].end);
        }
        at = found[count - 1].end;
    }
}

static void add_match(struct pre_tokens *w, size_t *count, size_t begin, size_t end, bool match)
{
    if (*count == w->match_capacity) {
        w->match_capacity = w->match_capacity == 0 ? 64 : 2 * w->match_capacity;
        w->matches = dt_realloc(w->matches, w->match_capacity * sizeof *w->matches);
    }
    w->matches[(*count)++] = (struct split_match){begin, end, match};
}

/* Joins matches with their neighbours. The pieces are those of the library, also where matches are
 * empty. */
static void add_joined(const struct step *s, struct pre_tokens *w, size_t count)
{
    bool previous = false, backward = s->behavior == MERGED_WITH_NEXT;
    size_t first = w->spare.count;
    for (size_t i = 0; i < count; i++) {
        const struct split_match *m = &w->matches[backward ? count - 1 - i : i];
        bool any = w->spare.count > first;
        struct piece *last = any ? &w->spare.at[w->spare.count - 1] : NULL;
        bool joins = any && (s->behavior == CONTIGUOUS ? m->match == previous : m->match && !previous);
        if (joins && backward) {
            last->begin = m->begin;
        } else if (joins) {
            last->end = m->end;
        } else {
            pieces_add(&w->spare, m->begin, m->end);
        }
        previous = m->match;
    }
    size_t kept = first;
    for (size_t i = first; i < w->spare.count; i++) {
        if (w->spare.at[i].end > w->spare.at[i].begin) {
            w->spare.at[kept++] = w->spare.at[i];
        }
    }
    w->spare.count = kept;
    for (size_t i = first, k = kept; backward && i + 1 < k; i++, k--) {
        struct piece p = w->spare.at[i];
        w->spare.at[i] = w->spare.at[k - 1];
        w->spare.at[k - 1] = p;
    }
}

static int split_by_pattern(const struct step *s, struct pre_tokens *w, struct piece p, struct dt_error *err)
{
    struct pattern_search search = {.pattern = s->pattern, .text = w->text + p.begin, .size = p.end - p.begin};
    size_t begin, end, at = 0, count = 0;
    int rc;
    while ((rc = pattern_next(&search, &begin, &end, err)) == 1) {
        if (begin > at) {
            add_match(w, &count, p.begin + at, p.begin + begin, s->invert);
        }
        add_match(w, &count, p.begin + begin, p.begin + end, !s->invert);
        at = end;
    }
    if (rc < 0) {
        return -1;
    }
    if (p.begin + at < p.end) {
        add_match(w, &count, p.begin + at, p.end, s->invert);
    }
    if (s->behavior == REMOVED || s->behavior == ISOLATED) {
        for (size_t i = 0; i < count; i++) {
            if (s->behavior == ISOLATED || !w->matches[i].match) {
                add_piece(w, w->matches[i].begin, w->matches[i].end);
            }
        }
        return 0;
    }
    add_joined(s, w, count);
    return 0;
}

static struct dt_text *new_text(struct pre_tokens *w)
{
    struct dt_text *t = &w->texts[w->text == w->texts[0].data];
    dt_text_reset(t);
    w->at_start = w->at_start && w->pieces.count > 0 && w->pieces.at[0].begin == 0;
    return t;
}

static void use_text(struct pre_tokens *w, const struct dt_text *t)
{
    w->text = dt_text_str(t);
    w->size = t->size;
}

static void write_spaces(struct pre_tokens *w)
{
    struct dt_text *t = new_text(w);
    for (size_t i = 0; i < w->pieces.count; i++) {
        struct piece p = w->pieces.at[i];
        size_t begin = t->size;
        dt_text_add(t, " ", w->text[p.begin] != ' ');
        dt_text_add(t, w->text + p.begin, p.end - p.begin);
        pieces_add(&w->spare, begin, t->size);
    }
    use_text(w, t);
}

static void write_bytes(struct pre_tokens *w)
{
    struct dt_text *t = new_text(w);
    for (size_t i = 0; i < w->pieces.count; i++) {
        size_t begin = t->size;
        byte_level_map(w->text + w->pieces.at[i].begin, w->pieces.at[i].end - w->pieces.at[i].begin, t);
        pieces_add(&w->spare, begin, t->size);
    }
    use_text(w, t);
}

/* Adds the text from `begin` on as one piece, or as pieces that begin with the replacement. */
static void add_marked(const struct step *s, struct pre_tokens *w, const struct dt_text *t, size_t begin)
{
    size_t n = strlen(s->replacement);
    for (size_t at = begin; s->split && at < t->size;) {
        const char *found = memmem(t->data + at, t->size - at, s->replacement, n);
        if (found == NULL) {
            break;
        }
        size_t next = (size_t)(found - t->data);
        add_piece(w, begin, next);
        begin = next;
        at = next + n;
    }
    add_piece(w, begin, t->size);
}

static void write_metaspace(const struct step *s, struct pre_tokens *w)
{
    bool at_start = w->at_start;
    struct dt_text *t = new_text(w);
    size_t n = strlen(s->replacement);
    for (size_t i = 0; i < w->pieces.count; i++) {
        struct piece p = w->pieces.at[i];
        const char *piece = w->text + p.begin, *end = w->text + p.end;
        bool marked = *piece == ' ' || ((size_t)(end - piece) >= n && memcmp(piece, s->replacement, n) == 0);
        size_t begin = t->size;
        if (!marked && (s->scheme == ALWAYS || (s->scheme == FIRST && at_start && p.begin == 0))) {
            dt_text_puts(t, s->replacement);
        }
        while (piece < end) {
            const char *space = memchr(piece, ' ', (size_t)(end - piece));
            dt_text_add(t, piece, (size_t)((space != NULL ? space : end) - piece));
            dt_text_puts(t, space != NULL ? s->replacement : "");
            piece = space != NULL ? space + 1 : end;
        }
        add_marked(s, w, t, begin);
    }
    use_text(w, t);
}

static int apply_step(const struct step *s, struct pre_tokens *w, struct dt_error *err)
{
    if (s->kind == PREFIX_SPACE) {
        write_spaces(w);
    } else if (s->kind == MAP_BYTES) {
        write_bytes(w);
    } else if (s->kind == METASPACE) {
        write_metaspace(s, w);
    } else {
        for (size_t i = 0; i < w->pieces.count; i++) {
            if (s->kind == SPLITTER) {
                split_by_ops(s, w, w->pieces.at[i]);
            } else if (s->kind == SCAN) {
                split_by_scanner(s, w, w->pieces.at[i]);
            } else if (split_by_pattern(s, w, w->pieces.at[i], err) != 0) {
                return -1;
            }
        }
    }
    use_spare(w);
    return 0;
}

int pretokenizer_apply(const struct pretokenizer *p, struct pre_tokens *w, const char *text, size_t size, bool at_start,
                       bool bytes, struct dt_error *err)
{
    w->text = text;
    w->size = size;
    w->at_start = at_start;
    w->pieces.count = w->spare.count = 0;
    if (size > 0) {
        pieces_add(&w->pieces, 0, size);
    }
    int count = p == NULL ? 0 : p->count - (bytes ? 1 : 0);
    for (int i = 0; i < count; i++) {
        if (apply_step(&p->steps[i], w, err) != 0) {
            return -1;
        }
    }
    return 0;
}

void pre_tokens_clear(struct pre_tokens *w)
{
    free(w->pieces.at);
    free(w->spare.at);
    free(w->matches);
    dt_text_clear(&w->texts[0]);
    dt_text_clear(&w->texts[1]);
    *w = (struct pre_tokens){0};
}

/* ---- opening ---- */

static const struct splitter_ops *const splitters[] = {
    &splitter_bert,   &splitter_whitespace,     &splitter_whitespace_split, &splitter_punctuation,
    &splitter_digits, &splitter_char_delimiter, &splitter_fixed_length,
};

static int add_step(struct pretokenizer *p, struct step step, struct dt_error *err)
{
    if (p->count == STEPS_MOST) {
        return dt_fail(err, DT_INVALID, "more than %d pre-tokenizers", STEPS_MOST);
    }
    p->steps[p->count++] = step;
    return 0;
}

static int open_byte_level(struct pretokenizer *p, const cJSON *json, struct dt_error *err)
{
    bool prefix, regex;
    if (part_bool(json, "add_prefix_space", -1, &prefix, err) != 0 ||
        part_bool(json, "use_regex", 1, &regex, err) != 0 ||
        (prefix && add_step(p, (struct step){.kind = PREFIX_SPACE, .local = true}, err) != 0)) {
        return -1;
    }
    struct step scan = {.kind = SCAN, .scan = scanner_find(scanner_gpt2_regex), .cuts = true, .local = true};
    if (regex && add_step(p, scan, err) != 0) {
        return -1;
    }
    return add_step(p, (struct step){.kind = MAP_BYTES, .local = true}, err);
}

static int read_choice(const cJSON *json, const char *key, const char *const *names, int count, int *out,
                       struct dt_error *err)
{
    const cJSON *m = cJSON_GetObjectItemCaseSensitive(json, key);
    struct dt_text known;
    dt_text_init(&known);
    struct dt_list list = {.text = &known};
    for (int i = 0; i < count; i++) {
        if (cJSON_IsString(m) && strcmp(m->valuestring, names[i]) == 0) {
            *out = i;
            dt_text_clear(&known);
            return 0;
        }
        dt_list_add(&list, "%s", names[i]);
    }
    int rc = dt_fail(err, DT_INVALID, "%s: %s; there are %s", key,
                     cJSON_IsString(m) ? m->valuestring : "missing, or not a text", dt_text_str(&known));
    dt_text_clear(&known);
    return rc;
}

static int open_split(struct pretokenizer *p, const cJSON *json, struct dt_error *err)
{
    static const char *const behaviors[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                            "Contiguous"};
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(json, "pattern");
    const cJSON *regex = cJSON_GetObjectItemCaseSensitive(pattern, "Regex");
    struct step s = {.kind = SPLIT};
    int behavior = ISOLATED;
    if (part_bool(json, "invert", -1, &s.invert, err) != 0 ||
        read_choice(json, "behavior", behaviors, 5, &behavior, err) != 0) {
        return -1;
    }
    s.behavior = (enum behavior)behavior;
    /* a scanner's pieces cover the text: all are matches */
    bool matches = (s.behavior == ISOLATED) || (s.behavior == REMOVED && s.invert);
    s.scan = matches && cJSON_IsString(regex) ? scanner_find(regex->valuestring) : NULL;
    if (s.scan != NULL) {
        s.kind = SCAN;
        s.cuts = s.local = true;
    } else if (pattern_open(&s.pattern, pattern, err) != 0) {
        return dt_wrap(err, "pattern");
    }
    if (add_step(p, s, err) != 0) {
        pattern_close(s.pattern);
        return -1;
    }
    return 0;
}

static int open_metaspace(struct pretokenizer *p, const cJSON *json, struct dt_error *err)
{
    static const char *const schemes[] = {"always", "first", "never"};
    const cJSON *old = cJSON_GetObjectItemCaseSensitive(json, "add_prefix_space");
    const char *replacement;
    size_t n = 0;
    int scheme = ALWAYS;
    struct step s = {.kind = METASPACE};
    if (part_text(json, "replacement", "", &replacement, err) != 0 || part_bool(json, "split", 1, &s.split, err) != 0) {
        return -1;
    }
    if (*replacement != 0) {
        (void)utf8_read(replacement, &n);
    }
    if (n == 0 || strlen(replacement) != n) {
        return dt_fail(err, DT_INVALID, "replacement: must be one character");
    }
    if (cJSON_GetObjectItemCaseSensitive(json, "prepend_scheme") != NULL &&
        read_choice(json, "prepend_scheme", schemes, 3, &scheme, err) != 0) {
        return -1;
    }
    if (cJSON_IsFalse(old) && scheme != NEVER) {
        return dt_fail(err, DT_INVALID, "add_prefix_space: false, but prepend_scheme is not \"never\"");
    }
    memcpy(s.replacement, replacement, n);
    s.scheme = (enum scheme)scheme;
    s.cuts = s.local = s.split;
    return add_step(p, s, err);
}

static int open_splitter(struct pretokenizer *p, const struct splitter_ops *ops, const cJSON *json,
                         struct dt_error *err)
{
    struct step s = {.kind = SPLITTER, .ops = ops};
    s.cuts = ops == &splitter_bert || ops == &splitter_whitespace || ops == &splitter_whitespace_split;
    s.local = s.cuts || ops == &splitter_digits;
    if (ops->open(&s.state, json, err) != 0) {
        return -1;
    }
    if (add_step(p, s, err) != 0) {
        if (ops->close != NULL) {
            ops->close(s.state);
        }
        return -1;
    }
    return 0;
}

static int open_part(struct pretokenizer *p, const cJSON *json, int depth, struct dt_error *err);

static int open_sequence(struct pretokenizer *p, const cJSON *json, int depth, struct dt_error *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "pretokenizers"), *j;
    int place = 0;
    if (!cJSON_IsArray(list) || depth == 8) {
        return dt_fail(err, DT_INVALID,
                       depth == 8 ? "sequences are nested too deeply" : "pretokenizers: missing, or not a list");
    }
    cJSON_ArrayForEach(j, list)
    {
        if (open_part(p, j, depth + 1, err) != 0) {
            return dt_wrap(err, "pretokenizers[%d]", place);
        }
        place++;
    }
    return 0;
}

static int open_part(struct pretokenizer *p, const cJSON *json, int depth, struct dt_error *err)
{
    static const struct {
        const char *type;
        int (*open)(struct pretokenizer *p, const cJSON *json, struct dt_error *err);
    } own[] = {{"ByteLevel", open_byte_level}, {"Split", open_split}, {"Metaspace", open_metaspace}};
    const char *type = part_type(json, err);
    if (type == NULL) {
        return -1;
    }
    if (strcmp(type, "Sequence") == 0) {
        return open_sequence(p, json, depth, err);
    }
    struct dt_text known;
    dt_text_init(&known);
    struct dt_list list = {.text = &known};
    int rc = 1;
    for (size_t i = 0; i < sizeof own / sizeof *own && rc == 1; i++) {
        dt_list_add(&list, "%s", own[i].type);
        rc = strcmp(type, own[i].type) == 0 ? own[i].open(p, json, err) : 1;
    }
    for (size_t i = 0; i < sizeof splitters / sizeof *splitters && rc == 1; i++) {
        dt_list_add(&list, "%s", splitters[i]->type);
        rc = strcmp(type, splitters[i]->type) == 0 ? open_splitter(p, splitters[i], json, err) : 1;
    }
    if (rc == 1) {
        rc = dt_fail(err, DT_INVALID, "type: %s is not supported; there are %s, Sequence", type, dt_text_str(&known));
    }
    dt_text_clear(&known);
    return rc;
}

/* Digits, each by itself, and GPT-2's pattern are one scanner. */
static bool is_single_digits(const struct step *s)
{
    struct pieces pieces = {0};
    if (s->kind != SPLITTER || s->ops != &splitter_digits) {
        return false;
    }
    s->ops->split(s->state, "12", 2, &pieces);
    free(pieces.at);
    return pieces.count == 2;
}

static void close_step(struct step *s)
{
    if (s->kind == SPLITTER && s->ops->close != NULL) {
        s->ops->close(s->state);
    }
    pattern_close(s->pattern);
}

static void join_digits(struct pretokenizer *p)
{
    for (int i = 0; i + 1 < p->count; i++) {
        if (is_single_digits(&p->steps[i]) && p->steps[i + 1].scan == scanner_gpt2) {
            close_step(&p->steps[i]);
            memmove(p->steps + i, p->steps + i + 1, (size_t)(p->count - i - 1) * sizeof *p->steps);
            p->steps[i].scan = scanner_digits_gpt2;
            p->count--;
        }
    }
}

int pretokenizer_open(struct pretokenizer **out, const cJSON *json, struct dt_error *err)
{
    *out = NULL;
    if (json == NULL || cJSON_IsNull(json)) {
        return 0;
    }
    struct pretokenizer *p = dt_alloc(sizeof *p);
    characters_open();
    if (open_part(p, json, 0, err) != 0) {
        pretokenizer_close(p);
        return -1;
    }
    join_digits(p);
    *out = p;
    return 0;
}

void pretokenizer_close(struct pretokenizer *p)
{
    for (int i = 0; p != NULL && i < p->count; i++) {
        close_step(&p->steps[i]);
    }
    free(p);
}

bool pretokenizer_maps(const struct pretokenizer *p)
{
    return p != NULL && p->count > 0 && p->steps[p->count - 1].kind == MAP_BYTES;
}

scanner_function *pretokenizer_scanner(const struct pretokenizer *p)
{
    bool only = p != NULL && p->count == 2 && p->steps[0].kind == SCAN && p->steps[1].kind == MAP_BYTES;
    return only ? p->steps[0].scan : NULL;
}

bool pretokenizer_asks_start(const struct pretokenizer *p)
{
    for (int i = 0; p != NULL && i < p->count; i++) {
        if (p->steps[i].kind == METASPACE && p->steps[i].scheme == FIRST) {
            return true;
        }
    }
    return false;
}

enum pretokenizer_cuts pretokenizer_cuts(const struct pretokenizer *p)
{
    enum pretokenizer_cuts cuts = CUTS_NEVER; /* of the first step that cuts: the others see its pieces */
    bool lines = true;
    for (int i = 0; p != NULL && i < p->count; i++) {
        const struct step *s = &p->steps[i];
        if (!s->local || (cuts == CUTS_NEVER && s->kind == MAP_BYTES)) { /* no space is left behind MAP_BYTES */
            return CUTS_NEVER;
        }
        cuts = cuts != CUTS_NEVER || !s->cuts ? cuts : s->kind == SPLITTER ? CUTS_WHITE : CUTS_LINES;
        lines = lines && s->kind != METASPACE && s->kind != PREFIX_SPACE;
    }
    return cuts == CUTS_LINES && !lines ? CUTS_SPACES : cuts;
}
