/* See the header. */
#include "cmd/dtdata/records.h"

#include "base/scan.h"
#include "cmd/dtdata/utf8.h"
#include "worker/data/tokenizers/characters.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct walk {
    const struct record_form *form;
    enum source_kind kind;
    const struct record_columns *columns;
    struct tally *tally;
    record_sink *sink;
    void *context;
    char where[512];
    struct dt_text clean; /* the line with U+FFFD */
    struct dt_text found; /* the text of a JSON record */
    struct csv_fields fields;
};

const char *record_option(const struct record_form *form, enum record_option option)
{
    static const char *const names[][2] = {
        [RECORD_TEXT] = {"--text_key", "data.text_key"},
        [RECORD_PAIR] = {"--text_pair_column", "data.text_pair_key"},
        [RECORD_LABEL] = {"--label_column", "data.label_key"},
        [RECORD_REPLACE] = {"--encoding_errors replace", "data.encoding_errors \"replace\""},
        [RECORD_FORMAT] = {"--format", "data.format"},
        [RECORD_LENGTH] = {"--max_length", "data.sequence_length"},
        [RECORD_PROGRAM] = {"dtdata", "train"}};
    return names[option][form->job];
}

int record_columns_find(struct record_columns *c, const struct record_form *form, enum source_kind kind,
                        const char *path, const struct dt_text *header, struct dt_error *err)
{
    struct csv_fields fields = {0};
    struct dt_text names;
    dt_text_init(&names);
    struct dt_list list = {.text = &names, .most = 20};
    const char *wanted[] = {form->text_key, form->pair_key, form->label_key};
    size_t *place[] = {&c->text, &c->pair, &c->label};
    bool found[3] = {false};
    int result = csv_split(source_csv_form(kind), dt_text_str(header), header->size, &fields, err);
    result = result != 0 ? dt_wrap(err, "%s:1", path) : 0;
    *c = (struct record_columns){.count = fields.count};
    for (size_t i = 0; result == 0 && i < fields.count; i++) {
        size_t size;
        const char *name = csv_field(&fields, i, &size);
        for (int w = 0; w < 3 && result == 0; w++) {
            if (wanted[w] != NULL && strlen(wanted[w]) == size && memcmp(wanted[w], name, size) == 0) {
                result = found[w] ? dt_fail(err, DT_INVALID, "%s:1: two columns are named %s", path, wanted[w]) : 0;
                *place[w] = i;
                found[w] = true;
            }
        }
        if (size > 0) { /* columns that are not wanted may lack a name, or share one */
            dt_list_add(&list, "%.*s", (int)(size < 60 ? size : 60), name);
        }
    }
    for (int w = 0; result == 0 && w < 3; w++) {
        if (wanted[w] != NULL && !found[w]) {
            result = dt_fail(err, DT_INVALID, "%s:1: no column \"%s\" (there are %s); name it with %s", path, wanted[w],
                             dt_text_str(&names),
                             w == 0 && !form->job ? "--text_column"
                                                  : record_option(form, (enum record_option)(RECORD_TEXT + w)));
        }
    }
    dt_text_clear(&names);
    csv_fields_clear(&fields);
    return result;
}

/* A broken record: skipped, or an error. */
static int broken(struct walk *w, struct dt_error *err)
{
    if (!w->form->skip || err->status != DT_INVALID) {
        return -1;
    }
    tally_add(w->tally, TALLY_BROKEN, 1, err->text);
    return 0;
}

static int too_long(struct walk *w, bool json, struct dt_error *err)
{
    (void)dt_fail(err, DT_INVALID,
                  json ? "%s: longer than %zu bytes (16 MiB), the most that a JSON record may have; cut its text into "
                         "several records"
                       : "%s: a record of more than %zu bytes (16 MiB)",
                  w->where, DT_SCAN_BYTES);
    return broken(w, err);
}

/* 1: the line can be taken, with U+FFFD if that is wanted; 0: it was skipped. */
static int take_utf8(struct walk *w, const char **line, size_t *size, struct dt_error *err)
{
    size_t valid = utf8_valid(*line, *size);
    if (valid == *size) {
        return 1;
    }
    if (!w->form->replace) {
        (void)dt_fail(err, DT_INVALID,
                      "%s: byte %zu (0x%02x) is not UTF-8; convert the file (iconv -f ENCODING -t UTF-8), or give "
                      "%s",
                      w->where, valid + 1, (unsigned char)(*line)[valid], record_option(w->form, RECORD_REPLACE));
        return broken(w, err);
    }
    dt_text_reset(&w->clean);
    char *where = dt_format("%s: byte %zu", w->where, valid + 1);
    tally_add(w->tally, TALLY_REPLACED, utf8_replace(*line, *size, &w->clean), where);
    free(where);
    *line = dt_text_str(&w->clean);
    *size = w->clean.size;
    return 1;
}

static int give(struct walk *w, const struct record *r, struct dt_error *err)
{
    return w->sink(w->context, r, err) == 0 ? 0 : broken(w, err);
}

/* A record of which only the text is wanted. */
static int text_of_json(struct walk *w, const char *line, size_t size, struct dt_error *err)
{
    enum dt_scan_found state;
    if (dt_scan_record(line, size, w->where, w->form->text_key, &w->found, &state, err) != 0) {
        return broken(w, err);
    }
    if (state == DT_SCAN_NONE) {
        (void)dt_fail(err, DT_INVALID, "%s: no string under \"%s\"; name the key with %s", w->where, w->form->text_key,
                      record_option(w->form, RECORD_TEXT));
        return broken(w, err);
    }
    if (state == DT_SCAN_NO_TEXT) {
        tally_add(w->tally, TALLY_NO_TEXT, 1, w->where);
        return 0;
    }
    const struct record r = {.text = dt_text_str(&w->found), .text_size = w->found.size, .where = w->where};
    return give(w, &r, err);
}

static int string_of(const struct walk *w, const cJSON *tree, const char *key, enum record_option option,
                     const char **out, size_t *size, struct dt_error *err)
{
    if (key == NULL) {
        return 0;
    }
    *out = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, key));
    if (*out == NULL) {
        return dt_fail(err, DT_INVALID, "%s: no string under \"%s\"; name the key with %s", w->where, key,
                       record_option(w->form, option));
    }
    *size = strlen(*out); /* a scanned text has no NUL */
    return 0;
}

/* The label of a JSON record; *printed: memory that the caller frees. */
static int label_of(const struct walk *w, const cJSON *tree, struct record *r, char **printed, struct dt_error *err)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(tree, w->form->label_key);
    if (cJSON_IsNumber(v) && !w->form->regression && fabs(v->valuedouble) >= 9007199254740992.0) {
        return dt_fail(err, DT_INVALID,
                       "%s: the label is a number beyond 2^53, where two are read as one; write it as a text",
                       w->where);
    }
    bool zero = cJSON_IsNumber(v) && v->valuedouble == 0; /* -0.0 is the class 0 */
    *printed = zero ? dt_strdup("0") : cJSON_IsNumber(v) || cJSON_IsBool(v) ? cJSON_PrintUnformatted(v) : NULL;
    r->label = *printed != NULL ? *printed : cJSON_GetStringValue(v);
    if (r->label == NULL) {
        return dt_fail(err, DT_INVALID, "%s: no label under \"%s\"; name the key with %s", w->where, w->form->label_key,
                       record_option(w->form, RECORD_LABEL));
    }
    r->label_size = strlen(r->label);
    return 0;
}

static int row_of_json(struct walk *w, const char *line, size_t size, struct dt_error *err)
{
    struct record r = {.where = w->where};
    char *printed = NULL;
    cJSON *tree = dt_scan_parse_others(line, size, w->where, err);
    int result = tree == NULL || string_of(w, tree, w->form->text_key, RECORD_TEXT, &r.text, &r.text_size, err) != 0 ||
                         string_of(w, tree, w->form->pair_key, RECORD_PAIR, &r.pair, &r.pair_size, err) != 0 ||
                         label_of(w, tree, &r, &printed, err) != 0
                     ? broken(w, err)
                     : give(w, &r, err);
    cJSON_Delete(tree);
    free(printed);
    return result;
}

static int json_line(struct walk *w, const char *line, size_t size, struct dt_error *err)
{
    const char *other;
    size_t mark = dt_text_mark(line, size, &other);
    if (mark > 0) { /* of a file that was put behind another one */
        tally_add(w->tally, TALLY_MARKS, 1, w->where);
        line += mark;
        size -= mark;
    }
    if (strspn(line, " \t\r\n") >= size) { /* the block ends with NUL */
        return 0;
    }
    if (w->form->replace && take_utf8(w, &line, &size, err) < 0) {
        return -1;
    }
    return w->form->label_key == NULL && w->form->pair_key == NULL ? text_of_json(w, line, size, err)
                                                                   : row_of_json(w, line, size, err);
}

static int csv_record(struct walk *w, const char *line, size_t size, struct dt_error *err)
{
    const struct record_columns *c = w->columns;
    if (size == 0 || (size == 1 && line[0] == '\n') || (size == 2 && line[0] == '\r' && line[1] == '\n')) {
        return 0;
    }
    int taken = take_utf8(w, &line, &size, err);
    if (taken <= 0) {
        return taken;
    }
    if (csv_split(source_csv_form(w->kind), line, size, &w->fields, err) != 0) {
        (void)dt_wrap(err, "%s", w->where);
        return broken(w, err);
    }
    if (w->fields.count != c->count) {
        (void)dt_fail(err, DT_INVALID, "%s: %zu field%s, the header has %zu", w->where, w->fields.count,
                      w->fields.count == 1 ? "" : "s", c->count);
        return broken(w, err);
    }
    struct record r = {.where = w->where};
    r.text = csv_field(&w->fields, c->text, &r.text_size);
    r.pair = w->form->pair_key != NULL ? csv_field(&w->fields, c->pair, &r.pair_size) : NULL;
    r.label = w->form->label_key != NULL ? csv_field(&w->fields, c->label, &r.label_size) : NULL;
    return give(w, &r, err);
}

int records_of(const struct record_form *form, enum source_kind kind, const char *path,
               const struct record_columns *columns, const struct text_block *b, struct tally *tally, record_sink *sink,
               void *context, struct dt_error *err)
{
    static const struct csv_form lines = {'\n', false};
    struct walk *w = dt_alloc(sizeof *w);
    *w =
        (struct walk){.form = form, .kind = kind, .columns = columns, .tally = tally, .sink = sink, .context = context};
    bool json = kind == SOURCE_JSONL || kind == SOURCE_JSON;
    const struct csv_form *ends = json ? &lines : source_csv_form(kind);
    long long line = b->begin.line;
    int result = 0;
    if (b->too_long) {
        (void)snprintf(w->where, sizeof w->where, json ? "%s: record %lld" : "%s:%lld", path, line + 1);
        result = too_long(w, json, err);
    }
    for (size_t at = 0; at < b->size && result == 0;) {
        size_t size = csv_first_end(ends, b->text + at, b->size - at);
        (void)snprintf(w->where, sizeof w->where, json ? "%s: record %lld" : "%s:%lld", path, line + 1);
        if (size > DT_SCAN_BYTES + 1) {
            result = too_long(w, json, err);
        } else {
            result = (json ? json_line : csv_record)(w, b->text + at, size, err);
        }
        for (size_t i = 0; i < size; i++) {
            line += b->text[at + i] == '\n';
        }
        at += size;
    }
    dt_text_clear(&w->clean);
    dt_text_clear(&w->found);
    csv_fields_clear(&w->fields);
    free(w);
    return result;
}
