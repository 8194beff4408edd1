/* Values: what they are in Python. */
#include "worker/data/templates/own.h"

#include "worker/data/tokenizers/unicode.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 10000000, JSON_DEPTH = 200, BYTES_PER_STEP = 16 };
#define MEMORY_BYTES ((size_t)256 << 20)
#define OUT_BYTES ((size_t)16 << 20)

struct value fail(struct run *r, const char *fmt, ...)
{
    char words[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    if (!r->failed) {
        (void)dt_fail(r->err, DT_INVALID, "%s:%d: %s", r->t->name, r->line, words);
        r->failed = true;
    }
    return undefined("", 0);
}

bool work(struct run *r, size_t amount)
{
    r->steps += (int64_t)amount;
    if (r->steps > STEPS) {
        (void)fail(r, "takes more than %d steps", STEPS);
    }
    return !r->failed;
}

void *take(struct run *r, size_t size_bytes)
{
    r->used_bytes += size_bytes;
    if (!r->failed && (size_bytes > MEMORY_BYTES || r->used_bytes > MEMORY_BYTES)) {
        (void)fail(r, "takes more than %zu MiB", MEMORY_BYTES >> 20);
    }
    (void)work(r, 1 + size_bytes / BYTES_PER_STEP);
    return r->failed ? NULL : dt_arena_alloc(&r->arena, size_bytes > 0 ? size_bytes : 1);
}

struct value text_of(const char *at, size_t size)
{
    return (struct value){.kind = TEXT, .text = {at, size}};
}

struct value text_copy(struct run *r, const char *at, size_t size)
{
    char *copy = take(r, size);
    if (copy == NULL) {
        return undefined("", 0);
    }
    memcpy(copy, at, size);
    return text_of(copy, size);
}

struct value boolean(bool yes)
{
    return (struct value){.kind = BOOLEAN, .yes = yes};
}

struct value integer(int64_t i)
{
    return (struct value){.kind = INTEGER, .i = i};
}

struct value none_of(void)
{
    return (struct value){.kind = NONE};
}

struct value undefined(const char *name, size_t size)
{
    return (struct value){.kind = UNDEFINED, .text = {name, size}};
}

struct value list_of(struct run *r, enum kind kind, int64_t count)
{
    struct list *l = take(r, sizeof *l);
    struct value *at = l != NULL ? take(r, (size_t)count * sizeof *at) : NULL;
    if (at == NULL) {
        return undefined("", 0);
    }
    *l = (struct list){at, count};
    return (struct value){.kind = kind, .list = l};
}

void dict_set(struct run *r, struct dict *d, struct value key, struct value v)
{
    for (int64_t i = 0; i < d->count && work(r, 1); i++) {
        if (equal(r, d->at[i].key, key)) {
            d->at[i].value = v;
            return;
        }
    }
    if (d->count == d->capacity) {
        int64_t capacity = d->capacity > 0 ? 2 * d->capacity : 4;
        struct entry *at = take(r, (size_t)capacity * sizeof *at);
        if (at == NULL) {
            return;
        }
        if (d->count > 0) {
            memcpy(at, d->at, (size_t)d->count * sizeof *at);
        }
        d->at = at;
        d->capacity = capacity;
    }
    if (!r->failed) {
        d->at[d->count++] = (struct entry){key, v};
    }
}

const struct value *dict_get(const struct dict *d, const char *key, size_t size)
{
    for (int64_t i = 0; i < d->count; i++) {
        if (d->at[i].key.text.size == size && memcmp(d->at[i].key.text.at, key, size) == 0) {
            return &d->at[i].value;
        }
    }
    return NULL;
}

/* A text of JSON, which must be UTF-8. */
static struct value json_text(struct run *r, const char *text)
{
    size_t size = strlen(text);
    for (size_t i = 0, n; i < size; i += n) {
        n = dt_text_character(text + i, size - i);
        if (n == 0) {
            return fail(r, "a variable is not UTF-8");
        }
    }
    return text_copy(r, text, size);
}

struct value from_json(struct run *r, const cJSON *json)
{
    const cJSON *one;
    struct value v = none_of();
    if (cJSON_IsString(json)) {
        return json_text(r, json->valuestring);
    }
    if (cJSON_IsBool(json)) {
        return boolean(cJSON_IsTrue(json));
    }
    if (cJSON_IsNumber(json)) {
        double x = json->valuedouble;
        return x == floor(x) && fabs(x) <= 9007199254740992.0 ? integer((int64_t)x)
                                                              : (struct value){.kind = FLOAT, .f = x};
    }
    if (++r->depth > JSON_DEPTH) {
        return fail(r, "a variable is nested more than %d deep", JSON_DEPTH);
    }
    if (cJSON_IsArray(json)) {
        v = list_of(r, LIST, cJSON_GetArraySize(json));
        int64_t i = 0;
        cJSON_ArrayForEach(one, json)
        {
            struct value item = from_json(r, one);
            if (!r->failed) {
                v.list->at[i++] = item;
            }
        }
    } else if (cJSON_IsObject(json)) {
        v = (struct value){.kind = DICT, .dict = take(r, sizeof *v.dict)};
        cJSON_ArrayForEach(one, json)
        {
            struct value key = json_text(r, one->string), item = from_json(r, one);
            if (!r->failed) {
                dict_set(r, v.dict, key, item);
            }
        }
    }
    r->depth--;
    return r->failed ? undefined("", 0) : v;
}

const char *kind_name(struct value v)
{
    static const char *const names[] = {[UNDEFINED] = "what is undefined",
                                        [NONE] = "none",
                                        [BOOLEAN] = "a boolean",
                                        [INTEGER] = "an integer",
                                        [FLOAT] = "a float",
                                        [TEXT] = "a text",
                                        [LIST] = "a list",
                                        [TUPLE] = "a list",
                                        [GENERATOR] = "a generator",
                                        [DICT] = "a dict",
                                        [NAMESPACE] = "a namespace",
                                        [LOOP] = "a loop",
                                        [MACRO] = "a macro",
                                        [METHOD] = "a method",
                                        [FUNCTION] = "a function"};
    return names[v.kind];
}

bool is_true(struct value v)
{
    switch (v.kind) {
    case UNDEFINED:
    case NONE:
        return false;
    case BOOLEAN:
        return v.yes;
    case INTEGER:
        return v.i != 0;
    case FLOAT:
        return v.f != 0;
    case TEXT:
        return v.text.size > 0;
    case LIST:
    case TUPLE:
        return v.list->count > 0;
    case DICT:
        return v.dict->count > 0;
    case GENERATOR:
    case NAMESPACE:
    case LOOP:
    case MACRO:
    case METHOD:
    case FUNCTION:
        return true;
    }
    return false;
}

static bool is_number(struct value v)
{
    return v.kind == BOOLEAN || v.kind == INTEGER || v.kind == FLOAT;
}

static double number_of(struct value v)
{
    return v.kind == FLOAT ? v.f : v.kind == BOOLEAN ? v.yes : (double)v.i;
}

static bool equal_lists(struct run *r, const struct list *a, const struct list *b)
{
    bool same = a->count == b->count;
    for (int64_t i = 0; same && i < a->count; i++) {
        same = equal(r, a->at[i], b->at[i]);
    }
    return same;
}

static bool equal_dicts(struct run *r, const struct dict *a, const struct dict *b)
{
    bool same = a->count == b->count;
    for (int64_t i = 0; same && i < a->count; i++) {
        const struct value *other = dict_get(b, a->at[i].key.text.at, a->at[i].key.text.size);
        same = work(r, (size_t)b->count) && other != NULL && equal(r, a->at[i].value, *other);
    }
    return same;
}

bool equal(struct run *r, struct value a, struct value b)
{
    if (!work(r, 1)) {
        return false;
    }
    if (is_number(a) && is_number(b)) {
        bool whole = a.kind != FLOAT && b.kind != FLOAT;
        return whole ? (a.kind == BOOLEAN ? a.yes : a.i) == (b.kind == BOOLEAN ? b.yes : b.i)
                     : number_of(a) == number_of(b);
    }
    if (a.kind != b.kind) {
        return false;
    }
    bool same = false;
    if (++r->depth > RUN_DEPTH) {
        (void)fail(r, "nested more than %d deep", RUN_DEPTH);
    } else if (a.kind == TEXT) {
        same = a.text.size == b.text.size && work(r, a.text.size / BYTES_PER_STEP) &&
               memcmp(a.text.at, b.text.at, a.text.size) == 0;
    } else if (a.kind == LIST || a.kind == TUPLE) {
        same = equal_lists(r, a.list, b.list);
    } else if (a.kind == DICT) {
        same = equal_dicts(r, a.dict, b.dict);
    } else {
        same = a.kind == UNDEFINED || a.kind == NONE || a.dict == b.dict;
    }
    r->depth--;
    return same;
}

int compare(struct run *r, struct value a, struct value b)
{
    if (is_number(a) && is_number(b)) {
        double x = number_of(a), y = number_of(b);
        if (a.kind == INTEGER && b.kind == INTEGER) {
            return a.i < b.i ? -1 : a.i > b.i;
        }
        return x < y ? -1 : x > y;
    }
    if (a.kind != TEXT || b.kind != TEXT) {
        (void)fail(r, "%s and %s have no order", kind_name(a), kind_name(b));
        return 0;
    }
    size_t n = a.text.size < b.text.size ? a.text.size : b.text.size;
    int order = work(r, n / BYTES_PER_STEP) ? memcmp(a.text.at, b.text.at, n) : 0; /* UTF-8 keeps the order */
    return order != 0 ? order : a.text.size < b.text.size ? -1 : a.text.size > b.text.size;
}

bool contains(struct run *r, struct value all, struct value one)
{
    if (all.kind == TEXT) {
        if (one.kind != TEXT) {
            (void)fail(r, "%s in a text", kind_name(one));
            return false;
        }
        return work(r, (all.text.size + one.text.size) / BYTES_PER_STEP) &&
               (one.text.size == 0 || memmem(all.text.at, all.text.size, one.text.at, one.text.size) != NULL);
    }
    if (all.kind != LIST && all.kind != TUPLE && all.kind != GENERATOR && all.kind != DICT && all.kind != UNDEFINED) {
        (void)fail(r, "in: %s holds nothing", kind_name(all));
        return false;
    }
    struct value items = to_list(r, all);
    bool found = false;
    int64_t i = 0;
    for (; !r->failed && !found && i < items.list->count; i++) {
        found = equal(r, items.list->at[i], one);
    }
    if (all.kind == GENERATOR && !r->failed) { /* it is read up to there */
        *all.list = (struct list){items.list->at + i, items.list->count - i};
    }
    return found;
}

/* A float as Python's repr: the shortest digits that give it back. */
static void put_float(double x, bool json, struct dt_text *out)
{
    char digits[40], text[64];
    if (!isfinite(x)) {
        dt_text_puts(out, isnan(x) ? (json ? "NaN" : "nan")
                          : x > 0  ? (json ? "Infinity" : "inf")
                                   : (json ? "-Infinity" : "-inf"));
        return;
    }
    int precision = 0;
    do {
        (void)snprintf(digits, sizeof digits, "%.*e", precision, x);
    } while (strtod(digits, NULL) != x && ++precision < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        char *e = strchr(digits, 'e');
        dt_text_printf(out, "%.*se%c%02d", (int)(e - digits), digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = precision - exponent;
    (void)snprintf(text, sizeof text, "%.*f", decimals > 0 ? decimals : 0, x);
    dt_text_printf(out, "%s%s", text, decimals > 0 ? "" : ".0");
}

struct value to_text(struct run *r, struct value v)
{
    char number[32];
    struct dt_text text;
    switch (v.kind) {
    case TEXT:
        return v;
    case UNDEFINED:
        return text_of("", 0);
    case NONE:
        return text_of("None", 4);
    case BOOLEAN:
        return v.yes ? text_of("True", 4) : text_of("False", 5);
    case INTEGER:
        (void)snprintf(number, sizeof number, "%lld", (long long)v.i);
        return text_copy(r, number, strlen(number));
    case FLOAT:
        dt_text_init(&text);
        put_float(v.f, false, &text);
        v = text_copy(r, text.data, text.size);
        dt_text_clear(&text);
        return v;
    case LIST:
    case TUPLE:
    case GENERATOR:
    case DICT:
    case NAMESPACE:
    case LOOP:
    case MACRO:
    case METHOD:
    case FUNCTION:
        break;
    }
    return fail(r, "text of %s is not supported; content in parts has come to a template for texts, or tojson lacks",
                kind_name(v));
}

struct value to_list(struct run *r, struct value v)
{
    struct value out = undefined("", 0);
    int64_t i = 0;
    switch (v.kind) {
    case LIST:
    case TUPLE:
        return v;
    case GENERATOR:
        out = list_of(r, LIST, 0);
        if (!r->failed) {
            *out.list = *v.list;
            v.list->count = 0;
        }
        return out;
    case UNDEFINED:
        return list_of(r, LIST, 0);
    case DICT:
        out = list_of(r, LIST, v.dict->count);
        for (; !r->failed && i < v.dict->count; i++) {
            out.list->at[i] = v.dict->at[i].key;
        }
        return out;
    case TEXT:
        out = list_of(r, LIST, text_length(v));
        for (size_t at = 0, n; !r->failed && at < v.text.size; at += n) {
            uint32_t code;
            n = character(v.text.at + at, v.text.size - at, &code);
            out.list->at[i++] = text_of(v.text.at + at, n);
        }
        return out;
    case NONE:
    case BOOLEAN:
    case INTEGER:
    case FLOAT:
    case NAMESPACE:
    case LOOP:
    case MACRO:
    case METHOD:
    case FUNCTION:
        break;
    }
    return fail(r, "%s has no elements", kind_name(v));
}

/* ---- texts ---- */

size_t character(const char *at, size_t size, uint32_t *code)
{
    const unsigned char *s = (const unsigned char *)at;
    size_t n = dt_text_character(at, size);
    n = n > 0 ? n : 1;
    *code = n == 1 ? s[0] : s[0] & (0x7fU >> n);
    for (size_t i = 1; i < n; i++) {
        *code = *code << 6 | (s[i] & 0x3f);
    }
    return n;
}

int64_t text_length(struct value v)
{
    int64_t count = 0;
    for (size_t i = 0; i < v.text.size; i++) {
        count += (v.text.at[i] & 0xc0) != 0x80;
    }
    return count;
}

struct value text_part(struct value v, int64_t from, int64_t to)
{
    size_t begin = v.text.size, end = v.text.size;
    int64_t count = 0;
    for (size_t i = 0; i < v.text.size; i++) {
        if ((v.text.at[i] & 0xc0) != 0x80) {
            begin = count == from ? i : begin;
            end = count == to ? i : end;
            count++;
        }
    }
    return text_of(v.text.at + begin, end > begin ? end - begin : 0);
}

static bool strips(const char *at, size_t size, const struct value *set)
{
    uint32_t code;
    (void)character(at, size, &code);
    return set == NULL ? unicode_is_space(code) : memmem(set->text.at, set->text.size, at, size) != NULL;
}

struct value strip(struct value v, int sides, const struct value *set)
{
    const char *at = v.text.at, *end = at + v.text.size;
    for (uint32_t code; (sides & STRIP_LEFT) && at < end;) {
        size_t n = character(at, (size_t)(end - at), &code);
        if (!strips(at, n, set)) {
            break;
        }
        at += n;
    }
    while ((sides & STRIP_RIGHT) && end > at) {
        const char *last = end - 1;
        while (last > at && (*last & 0xc0) == 0x80) {
            last--;
        }
        if (!strips(last, (size_t)(end - last), set)) {
            break;
        }
        end = last;
    }
    return text_of(at, (size_t)(end - at));
}

/* ---- JSON as Python's json.dumps ---- */

static void put_json_text(struct value v, bool ascii, struct dt_text *out)
{
    static const char names[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    dt_text_puts(out, "\"");
    for (size_t i = 0, n; i < v.text.size; i += n) {
        uint32_t code;
        n = character(v.text.at + i, v.text.size - i, &code);
        const char *known = code > 0 && code < 0x80 ? strchr(names, (int)code) : NULL;
        if (known != NULL) {
            dt_text_printf(out, "\\%c", letters[known - names]);
        } else if (code < 0x20 || (ascii && code >= 0x7f && code < 0x10000 && code != 0x7f)) {
            dt_text_printf(out, "\\u%04x", code);
        } else if (ascii && code >= 0x10000) {
            dt_text_printf(out, "\\u%04x\\u%04x", 0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff));
        } else {
            dt_text_add(out, v.text.at + i, n);
        }
    }
    dt_text_puts(out, "\"");
}

static void new_line(const struct json_form *form, int level, struct dt_text *out)
{
    if (form->indent >= 0) {
        dt_text_printf(out, "\n%*s", level * form->indent, "");
    }
}

static const struct entry *next_key(struct run *r, const struct dict *d, const struct entry *after)
{
    const struct entry *best = NULL;
    for (int64_t i = 0; i < d->count; i++) {
        const struct entry *e = &d->at[i];
        bool later = after == NULL || compare(r, e->key, after->key) > 0;
        best = later && (best == NULL || compare(r, e->key, best->key) < 0) ? e : best;
    }
    return best;
}

static void to_json_members(struct run *r, struct value v, const struct json_form *form, int level, struct dt_text *out)
{
    bool is_dict = v.kind == DICT;
    int64_t count = is_dict ? v.dict->count : v.list->count;
    const struct entry *e = NULL;
    dt_text_puts(out, is_dict ? "{" : "[");
    for (int64_t i = 0; i < count && !r->failed; i++) {
        dt_text_puts(out, i > 0 ? form->item : "");
        new_line(form, level + 1, out);
        if (is_dict) {
            e = !work(r, form->sorted ? (size_t)count : 1) ? NULL
                : form->sorted                             ? next_key(r, v.dict, e)
                                                           : &v.dict->at[i];
            if (e == NULL) { /* the run has failed, maybe among comparisons */
                break;
            }
            put_json_text(e->key, form->ascii, out);
            dt_text_puts(out, form->key);
        }
        to_json(r, is_dict ? e->value : v.list->at[i], form, level + 1, out);
    }
    if (count > 0) {
        new_line(form, level, out);
    }
    dt_text_puts(out, is_dict ? "}" : "]");
}

void to_json(struct run *r, struct value v, const struct json_form *form, int level, struct dt_text *out)
{
    size_t size = v.kind == TEXT ? v.text.size : 0;
    if (!work(r, 1 + size / BYTES_PER_STEP) || out->size + size > OUT_BYTES || level > JSON_DEPTH) {
        (void)fail(r, "tojson: more than %zu MiB, or nested more than %d deep", OUT_BYTES >> 20, JSON_DEPTH);
    } else if (v.kind == TEXT) {
        put_json_text(v, form->ascii, out);
    } else if (v.kind == NONE || v.kind == BOOLEAN) {
        dt_text_puts(out, v.kind == NONE ? "null" : v.yes ? "true" : "false");
    } else if (v.kind == INTEGER) {
        dt_text_printf(out, "%lld", (long long)v.i);
    } else if (v.kind == FLOAT) {
        put_float(v.f, true, out);
    } else if (v.kind == LIST || v.kind == TUPLE || v.kind == DICT) {
        to_json_members(r, v, form, level, out);
    } else {
        (void)fail(r, "tojson: %s has no JSON", kind_name(v));
    }
}
