/* Post-processors. Each adds special tokens to parts (a text, or the two of a pair), and may set the
 * types of tokens. So all of a file are worked out when it is opened: what is kept is one list of
 * items for a single text, and one for a pair. */
#include "worker/data/tokenizers/parts.h"

#include <stdlib.h>
#include <string.h>

enum { ITEM_SPECIAL = -1, ITEM_A = 0, ITEM_B = 1, MOST_TYPE = 255 };

struct item {
    int which;  /* ITEM_... */
    int32_t id; /* of a special token */
    uint8_t type;
};

struct part {
    struct item *at;
    size_t count, capacity;
};

/* The parts that the post-processors so far have made of a text or a pair. */
struct form {
    struct part *parts;
    size_t count;
    size_t added; /* special tokens, as truncation counts them */
    bool pair;
};

struct postprocessor {
    struct form forms[2]; /* of a single text, of a pair */
};

/* ---- parts ---- */

static void part_add(struct part *p, struct item item)
{
    if (p->count == p->capacity) {
        p->capacity = p->capacity > 0 ? 2 * p->capacity : 4;
        p->at = dt_realloc(p->at, p->capacity * sizeof *p->at);
    }
    p->at[p->count++] = item;
}

static void part_add_special(struct part *p, int32_t id, uint8_t type)
{
    part_add(p, (struct item){ITEM_SPECIAL, id, type});
}

/* Appends the items of `from`. type: the one that they get; -1: they keep theirs. */
static void part_append(struct part *p, const struct part *from, int type)
{
    for (size_t i = 0; i < from->count; i++) {
        struct item item = from->at[i];
        item.type = type >= 0 ? (uint8_t)type : item.type;
        part_add(p, item);
    }
}

static void form_clear(struct form *f)
{
    for (size_t i = 0; i < f->count; i++) {
        free(f->parts[i].at);
    }
    free(f->parts);
    *f = (struct form){0};
}

static struct form form_open(size_t parts)
{
    return (struct form){.parts = dt_alloc((parts + 1) * sizeof(struct part)), .count = parts};
}

/* Puts `next` in the place of `f`. */
static void form_replace(struct form *f, struct form next)
{
    next.added += f->added;
    next.pair = f->pair;
    form_clear(f);
    *f = next;
}

/* ---- BertProcessing, RobertaProcessing ---- */

static int read_id(const cJSON *json, const char *key, int32_t *id, struct dt_error *err)
{
    double n = cJSON_IsNumber(json) ? json->valuedouble : -1;
    if (!(n >= 0 && n <= INT32_MAX) || n != (double)(int32_t)n) {
        return dt_fail(err, DT_INVALID, "%s: not an id; must be a whole number from 0 on", key);
    }
    *id = (int32_t)n;
    return 0;
}

/* "sep": ["[SEP]", 102] */
static int read_token(const cJSON *json, const char *key, int32_t *id, struct dt_error *err)
{
    const cJSON *pair = cJSON_GetObjectItemCaseSensitive(json, key);
    if (!cJSON_IsArray(pair) || cJSON_GetArraySize(pair) != 2 || !cJSON_IsString(pair->child)) {
        return dt_fail(err, DT_INVALID, "%s: must be a token and its id", key);
    }
    return read_id(pair->child->next, key, id, err);
}

static int apply_bert(struct form *f, const cJSON *json, struct dt_error *err)
{
    int32_t cls = 0, sep = 0;
    if (read_token(json, "cls", &cls, err) != 0 || read_token(json, "sep", &sep, err) != 0) {
        return -1;
    }
    struct form next = form_open(f->count);
    for (size_t i = 0; i < f->count; i++) {
        if (i == 0) {
            part_add_special(&next.parts[i], cls, 0);
        }
        part_append(&next.parts[i], &f->parts[i], -1);
        part_add_special(&next.parts[i], sep, i > 0);
    }
    next.added = f->pair ? 3 : 2;
    form_replace(f, next);
    return 0;
}

static int apply_roberta(struct form *f, const cJSON *json, struct dt_error *err)
{
    int32_t cls = 0, sep = 0;
    bool ignored = false; /* these two change offsets alone */
    if (read_token(json, "cls", &cls, err) != 0 || read_token(json, "sep", &sep, err) != 0 ||
        part_bool(json, "trim_offsets", -1, &ignored, err) != 0 ||
        part_bool(json, "add_prefix_space", -1, &ignored, err) != 0) {
        return -1;
    }
    struct form next = form_open(f->count);
    for (size_t i = 0; i < f->count; i++) {
        part_add_special(&next.parts[i], i == 0 ? cls : sep, 0);
        part_append(&next.parts[i], &f->parts[i], 0);
        part_add_special(&next.parts[i], sep, 0);
    }
    next.added = f->pair ? 4 : 2;
    form_replace(f, next);
    return 0;
}

/* ---- TemplateProcessing ---- */

static int add_special(struct part *p, const cJSON *specials, const char *name, int64_t type, struct dt_error *err)
{
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(specials, name), "ids");
    const cJSON *one = NULL;
    if (!cJSON_IsArray(ids)) {
        char shown[64];
        return dt_fail(err, DT_INVALID, "special_tokens: has no ids of %s, which the template uses",
                       dt_text_excerpt(name, strlen(name), shown, sizeof shown));
    }
    cJSON_ArrayForEach(one, ids)
    {
        int32_t id = 0;
        if (read_id(one, "special_tokens.ids", &id, err) != 0) {
            return -1;
        }
        part_add_special(p, id, (uint8_t)type);
    }
    return 0;
}

/* One piece of a template: {"Sequence": {"id": "A", "type_id": 0}} or {"SpecialToken": ...}. */
static int apply_piece(struct form *next, const struct form *f, const cJSON *piece, const cJSON *specials,
                       struct dt_error *err)
{
    const cJSON *sequence = cJSON_GetObjectItemCaseSensitive(piece, "Sequence"),
                *special = cJSON_GetObjectItemCaseSensitive(piece, "SpecialToken");
    const cJSON *one = sequence != NULL ? sequence : special;
    struct part *p = &next->parts[next->count++];
    const char *id = NULL;
    int64_t type = 0;
    if (one == NULL) {
        return dt_fail(err, DT_INVALID, "neither a Sequence nor a SpecialToken");
    }
    if (part_text(one, "id", NULL, &id, err) != 0 || part_integer(one, "type_id", -1, MOST_TYPE, &type, err) != 0) {
        return -1;
    }
    if (sequence == NULL) {
        size_t before = p->count;
        if (add_special(p, specials, id != NULL ? id : "", type, err) != 0) {
            return -1;
        }
        next->added += p->count - before;
        return 0;
    }
    size_t which = id != NULL && strcmp(id, "B") == 0;
    if (id == NULL || (which == 0 && strcmp(id, "A") != 0)) {
        return dt_fail(err, DT_INVALID, "id: must be A or B");
    }
    if (which >= f->count) {
        return dt_fail(err, DT_INVALID, "id: B, but a single text has no second part; use A");
    }
    part_append(p, &f->parts[which], (int)type);
    return 0;
}

static int apply_template(struct form *f, const cJSON *json, struct dt_error *err)
{
    const char *key = f->count > 1 ? "pair" : "single"; /* as many parts as there are now */
    const cJSON *template = cJSON_GetObjectItemCaseSensitive(json, key), *piece = NULL;
    const cJSON *specials = cJSON_GetObjectItemCaseSensitive(json, "special_tokens");
    if (!cJSON_IsArray(template)) {
        return dt_fail(err, DT_INVALID, "%s: %s; must be a list of pieces", key,
                       template == NULL ? "missing" : "not a list");
    }
    if (f->count > 2) {
        return dt_fail(err, DT_INVALID, "a TemplateProcessing after another of %zu pieces; leave one of them out",
                       f->count);
    }
    struct form next = form_open((size_t)cJSON_GetArraySize(template));
    next.count = 0;
    cJSON_ArrayForEach(piece, template)
    {
        if (apply_piece(&next, f, piece, specials, err) != 0) {
            (void)dt_wrap(err, "%s[%zu]", key, next.count - 1);
            form_clear(&next);
            return -1;
        }
    }
    form_replace(f, next);
    return 0;
}

/* ---- the types ---- */

static int apply_one(struct form *f, const cJSON *json, struct dt_error *err);

static int apply_sequence(struct form *f, const cJSON *json, struct dt_error *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "processors"), *one = NULL;
    int at = 0;
    if (!cJSON_IsArray(list)) {
        return dt_fail(err, DT_INVALID, "processors: %s; must be a list", list == NULL ? "missing" : "not a list");
    }
    cJSON_ArrayForEach(one, list)
    {
        if (apply_one(f, one, err) != 0) {
            return dt_wrap(err, "processors[%d]", at);
        }
        at++;
    }
    return 0;
}

static int apply_byte_level(struct form *f, const cJSON *json, struct dt_error *err)
{
    (void)f;
    (void)json;
    (void)err;
    return 0; /* offsets alone */
}

static int apply_one(struct form *f, const cJSON *json, struct dt_error *err)
{
    static const struct {
        const char *type;
        int (*apply)(struct form *f, const cJSON *json, struct dt_error *err);
    } rows[] = {
        {"TemplateProcessing", apply_template}, {"BertProcessing", apply_bert}, {"RobertaProcessing", apply_roberta},
        {"ByteLevel", apply_byte_level},        {"Sequence", apply_sequence},
    };
    const char *type = part_type(json, err);
    if (type == NULL) {
        return -1;
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(type, rows[i].type) == 0) {
            return rows[i].apply(f, json, err);
        }
    }
    char shown[64];
    return dt_fail(
        err, DT_INVALID,
        "type: %s is not supported; there are TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel, "
        "Sequence",
        dt_text_excerpt(type, strlen(type), shown, sizeof shown));
}

/* Makes the form of a text (count 1) or of a pair. */
static int make_form(struct form *f, size_t count, const cJSON *json, struct dt_error *err)
{
    *f = form_open(count);
    f->pair = count > 1;
    for (size_t i = 0; i < count; i++) {
        part_add(&f->parts[i], (struct item){(int)i, 0, (uint8_t)i});
    }
    return apply_one(f, json, err);
}

int postprocessor_open(struct postprocessor **out, const cJSON *json, struct dt_error *err)
{
    if (json == NULL || cJSON_IsNull(json)) {
        *out = NULL;
        return 0;
    }
    struct postprocessor *p = dt_alloc(sizeof *p);
    if (make_form(&p->forms[0], 1, json, err) != 0 || make_form(&p->forms[1], 2, json, err) != 0) {
        postprocessor_close(p);
        return -1;
    }
    *out = p;
    return 0;
}

size_t postprocessor_added(const struct postprocessor *p, bool pair)
{
    return p != NULL ? p->forms[pair].added : 0;
}

/* ---- application ---- */

static void sequence_reserve(struct token_sequence *q, size_t count)
{
    if (count > q->ids.capacity) {
        q->ids.ids = dt_realloc(q->ids.ids, count * sizeof *q->ids.ids);
        q->ids.capacity = count;
    }
    if (count > q->capacity) {
        q->types = dt_realloc(q->types, count);
        q->mask = dt_realloc(q->mask, count);
        q->capacity = count;
    }
}

static void sequence_add(struct token_sequence *q, const int32_t *ids, size_t count, uint8_t type)
{
    size_t before = q->ids.count;
    if (count == 0) {
        return;
    }
    if (before + count > q->ids.capacity || before + count > q->capacity) {
        sequence_reserve(q, 2 * (before + count));
    }
    memcpy(q->ids.ids + before, ids, count * sizeof *ids);
    memset(q->types + before, type, count);
    memset(q->mask + before, 1, count);
    q->ids.count = before + count;
}

void postprocessor_apply(const struct postprocessor *p, const struct token_ids *a, const struct token_ids *b,
                         struct token_sequence *out)
{
    out->ids.count = 0;
    if (p == NULL) {
        sequence_add(out, a->ids, a->count, 0);
        if (b != NULL) {
            sequence_add(out, b->ids, b->count, 1);
        }
        return;
    }
    const struct form *f = &p->forms[b != NULL];
    for (size_t i = 0; i < f->count; i++) {
        for (size_t k = 0; k < f->parts[i].count; k++) {
            const struct item *item = &f->parts[i].at[k];
            const struct token_ids *text = item->which == ITEM_B ? b : a;
            if (item->which == ITEM_SPECIAL) {
                sequence_add(out, &item->id, 1, item->type);
            } else {
                sequence_add(out, text->ids, text->count, item->type);
            }
        }
    }
}

void postprocessor_close(struct postprocessor *p)
{
    if (p != NULL) {
        form_clear(&p->forms[0]);
        form_clear(&p->forms[1]);
        free(p);
    }
}
