/* The tables of filters and methods. */
#include "worker/data/templates/rows.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- texts ---- */

static struct value strip_by(struct run *r, struct value v, int sides, struct value by)
{
    bool given = row_given(by) && by.kind != NONE;
    v = to_text(r, v);
    struct value set = given ? row_needs_text(r, by) : v;
    /* each character is looked for in the set */
    bool goes_on = work(r, given ? (1 + v.text.size / 16) * (set.text.size / 16) : 0);
    return goes_on ? strip(v, sides, given ? &set : NULL) : v;
}

ROW_FN(do_strip)
{
    UNUSED;
    return strip_by(r, v, STRIP_LEFT | STRIP_RIGHT, arg[0]);
}

ROW_FN(do_lstrip)
{
    UNUSED;
    return strip_by(r, v, STRIP_LEFT, arg[0]);
}

ROW_FN(do_rstrip)
{
    UNUSED;
    return strip_by(r, v, STRIP_RIGHT, arg[0]);
}

ROW_FN(do_upper)
{
    UNUSED;
    v = to_text(r, v);
    return r->failed ? v : change_case(r, v, CASE_UPPER);
}

ROW_FN(do_lower)
{
    UNUSED;
    v = to_text(r, v);
    return r->failed ? v : change_case(r, v, CASE_LOWER);
}

ROW_FN(do_title)
{
    UNUSED;
    return change_case(r, v, CASE_TITLE);
}

ROW_FN(filter_title)
{
    UNUSED;
    v = to_text(r, v);
    return r->failed ? v : change_case(r, v, CASE_WORDS);
}

ROW_FN(do_capitalize)
{
    UNUSED;
    v = to_text(r, v);
    return r->failed ? v : change_case(r, v, CASE_FIRST);
}

ROW_FN(do_startswith)
{
    UNUSED;
    struct value with = row_needs_text(r, arg[0]);
    return boolean(v.text.size >= with.text.size && memcmp(v.text.at, with.text.at, with.text.size) == 0);
}

ROW_FN(do_endswith)
{
    UNUSED;
    struct value with = row_needs_text(r, arg[0]);
    return boolean(v.text.size >= with.text.size &&
                   memcmp(v.text.at + v.text.size - with.text.size, with.text.at, with.text.size) == 0);
}

/* The next place of `what` at or behind `at`; the end: there is none. */
static size_t find(struct value v, size_t at, struct value what)
{
    const char *found = memmem(v.text.at + at, v.text.size - at, what.text.at, what.text.size);
    return found != NULL ? (size_t)(found - v.text.at) : v.text.size;
}

ROW_FN(do_replace)
{
    UNUSED;
    struct dt_text out;
    v = to_text(r, v);
    struct value old = row_needs_text(r, arg[0]), with = row_needs_text(r, arg[1]);
    int64_t most = row_whole(r, arg[2], -1);
    size_t at = 0;
    dt_text_init(&out);
    for (int64_t n = 0; !r->failed && n != most && work(r, 1 + with.text.size / 16); n++) {
        size_t next = old.text.size > 0 ? find(v, at, old) : at;
        if (old.text.size > 0 && next == v.text.size) {
            break;
        }
        dt_text_add(&out, v.text.at + at, next - at);
        dt_text_add(&out, with.text.at, with.text.size);
        at = next + old.text.size;
        if (old.text.size == 0) { /* before each character, and at the end */
            uint32_t code;
            size_t size = at < v.text.size ? character(v.text.at + at, v.text.size - at, &code) : 0;
            dt_text_add(&out, v.text.at + at, size);
            at += size;
            if (size == 0) {
                break;
            }
        }
    }
    if (!r->failed) {
        dt_text_add(&out, v.text.at + at, v.text.size - at);
        v = text_copy(r, dt_text_str(&out), out.size);
    }
    dt_text_clear(&out);
    return v;
}

/* Appends to a list that grows by doubling. */
static void append(struct run *r, struct value *l, struct value v)
{
    int64_t count = l->list->count;
    if ((count & (count - 1)) == 0) {
        struct value *at = take(r, (size_t)(count > 0 ? 2 * count : 1) * sizeof *at);
        if (at == NULL) {
            return;
        }
        if (count > 0) {
            memcpy(at, l->list->at, (size_t)count * sizeof *at);
        }
        l->list->at = at;
    }
    l->list->at[l->list->count++] = v;
}

ROW_FN(do_split)
{
    UNUSED;
    struct value out = list_of(r, LIST, 0), rest = v;
    bool by_space = !row_given(arg[0]) || arg[0].kind == NONE;
    struct value by = by_space ? v : row_needs_text(r, arg[0]);
    int64_t most = row_whole(r, arg[1], -1);
    if (!r->failed && !by_space && by.text.size == 0) {
        return fail(r, "split: by an empty text");
    }
    while (!r->failed) {
        size_t at = 0;
        uint32_t code;
        rest = by_space ? strip(rest, STRIP_LEFT, NULL) : rest;
        if (by_space && rest.text.size == 0) {
            break;
        }
        if (most >= 0 && out.list->count >= most) {
            append(r, &out, by_space ? strip(rest, STRIP_RIGHT, NULL) : rest);
            break;
        }
        while (by_space && at < rest.text.size) {
            size_t n = character(rest.text.at + at, rest.text.size - at, &code);
            if (strip(text_of(rest.text.at + at, n), STRIP_LEFT, NULL).text.size == 0) {
                break;
            }
            at += n;
        }
        at = by_space ? at : find(rest, 0, by);
        append(r, &out, text_of(rest.text.at, at));
        if (at == rest.text.size) {
            break;
        }
        at += by_space ? 0 : by.text.size;
        rest = text_of(rest.text.at + at, rest.text.size - at);
    }
    return out;
}

/* ---- dicts ---- */

ROW_FN(do_items)
{
    UNUSED;
    if (v.kind != DICT && v.kind != UNDEFINED) {
        return fail(r, "items: of %s", kind_name(v));
    }
    struct value out = list_of(r, LIST, v.kind == DICT ? v.dict->count : 0);
    for (int64_t i = 0; !r->failed && i < out.list->count; i++) {
        out.list->at[i] = list_of(r, TUPLE, 2);
        if (!r->failed) {
            out.list->at[i].list->at[0] = v.dict->at[i].key;
            out.list->at[i].list->at[1] = v.dict->at[i].value;
        }
    }
    return out;
}

ROW_FN(do_keys)
{
    UNUSED;
    return to_list(r, v);
}

ROW_FN(do_values)
{
    UNUSED;
    struct value out = list_of(r, LIST, v.dict->count);
    for (int64_t i = 0; !r->failed && i < v.dict->count; i++) {
        out.list->at[i] = v.dict->at[i].value;
    }
    return out;
}

ROW_FN(do_get)
{
    UNUSED;
    const struct value *found = arg[0].kind == TEXT && work(r, (size_t)v.dict->count)
                                    ? dict_get(v.dict, arg[0].text.at, arg[0].text.size)
                                    : NULL;
    return found != NULL ? *found : row_given(arg[1]) ? arg[1] : none_of();
}

static struct value generator(struct value v)
{
    v.kind = v.kind == LIST ? GENERATOR : v.kind;
    return v;
}

ROW_FN(filter_items)
{
    return generator(do_items(r, v, arg, raw));
}

static struct value sorted(struct run *r, struct value l, int64_t key, bool backwards, bool case_matters);

ROW_FN(do_dictsort)
{
    UNUSED;
    return v.kind == DICT ? sorted(r, do_items(r, v, arg, raw), 0, false, false)
                          : fail(r, "dictsort: of %s", kind_name(v));
}

/* ---- lists ---- */

ROW_FN(do_length)
{
    UNUSED;
    if (v.kind == TEXT) {
        return integer(text_length(v));
    }
    if (v.kind == GENERATOR) {
        return fail(r, "a generator has no length; put list before it");
    }
    v = to_list(r, v);
    return r->failed ? v : integer(v.list->count);
}

ROW_FN(do_list)
{
    UNUSED;
    v = to_list(r, v);
    return r->failed ? v : (struct value){.kind = LIST, .list = v.list};
}

ROW_FN(do_join)
{
    UNUSED;
    struct value by = row_given(arg[0]) ? to_text(r, arg[0]) : text_of("", 0), l = to_list(r, v);
    struct dt_text out;
    dt_text_init(&out);
    for (int64_t i = 0; !r->failed && i < l.list->count; i++) {
        struct value one = to_text(r, l.list->at[i]);
        dt_text_add(&out, by.text.at, i > 0 && !r->failed ? by.text.size : 0);
        dt_text_add(&out, one.text.at, r->failed ? 0 : one.text.size);
        (void)work(r, 1 + (by.text.size + one.text.size) / 16);
    }
    v = r->failed ? undefined("", 0) : text_copy(r, dt_text_str(&out), out.size);
    dt_text_clear(&out);
    return v;
}

static struct value end_of(struct run *r, struct value v, bool last)
{
    if (v.kind == GENERATOR) {
        bool has = !last && v.list->count > 0;
        v.list->count -= has;
        return last  ? fail(r, "a generator has no last element; put list before it")
               : has ? *v.list->at++
                     : undefined("", 0);
    }
    v = to_list(r, v);
    return r->failed || v.list->count == 0 ? undefined("", 0) : v.list->at[last ? v.list->count - 1 : 0];
}

ROW_FN(do_first)
{
    UNUSED;
    return end_of(r, v, false);
}

ROW_FN(do_last)
{
    UNUSED;
    return end_of(r, v, true);
}

ROW_FN(do_reverse)
{
    UNUSED;
    struct value l = to_list(r, v), out = r->failed ? l : list_of(r, LIST, l.list->count);
    for (int64_t i = 0; !r->failed && i < l.list->count; i++) {
        out.list->at[i] = l.list->at[l.list->count - 1 - i];
    }
    const struct value none[ARGUMENTS] = {{.kind = UNDEFINED}};
    return r->failed || v.kind != TEXT ? generator(out) : do_join(r, out, none, raw);
}

/* Merges two sorted halves: equal ones stay in their order. key: of a tuple, -1: the value itself. */
static void merge(struct run *r, struct value *at, struct value *keys, int64_t count, struct value *spare,
                  bool backwards)
{
    int64_t half = count / 2, i = 0, j = half;
    if (count < 2 || !work(r, (size_t)count)) {
        return;
    }
    merge(r, at, keys, half, spare, backwards);
    merge(r, at + half, keys + half, count - half, spare, backwards);
    for (int64_t k = 0; k < count; k++) {
        int order = i < half && j < count ? compare(r, keys[i], keys[j]) : 0;
        bool left = j >= count || (i < half && (backwards ? order >= 0 : order <= 0));
        int64_t from = left ? i++ : j++;
        spare[2 * k] = at[from];
        spare[2 * k + 1] = keys[from];
    }
    for (int64_t k = 0; k < count; k++) {
        at[k] = spare[2 * k];
        keys[k] = spare[2 * k + 1];
    }
}

static struct value sorted(struct run *r, struct value l, int64_t key, bool backwards, bool case_matters)
{
    int64_t count = r->failed ? 0 : l.list->count;
    struct value out = list_of(r, LIST, count), keys = list_of(r, LIST, count), spare = list_of(r, LIST, 2 * count);
    for (int64_t i = 0; !r->failed && i < count; i++) {
        struct value one = l.list->at[i], by = key < 0 ? one : one.list->at[key];
        out.list->at[i] = one;
        keys.list->at[i] = by.kind == TEXT && !case_matters ? change_case(r, by, CASE_LOWER) : by;
    }
    if (!r->failed) {
        merge(r, out.list->at, keys.list->at, count, spare.list->at, backwards);
    }
    return out;
}

ROW_FN(do_sort)
{
    UNUSED;
    return sorted(r, to_list(r, v), -1, is_true(arg[0]), is_true(arg[1]));
}

/* ---- filters that call others ---- */

/* "a.b" of a value. */
static struct value path_of(struct run *r, struct value v, struct value path)
{
    while (work(r, 1)) {
        const char *dot = memchr(path.text.at, '.', path.text.size);
        size_t size = dot != NULL ? (size_t)(dot - path.text.at) : path.text.size;
        char digits[16] = "";
        (void)snprintf(digits, sizeof digits, "%.*s", (int)(size < 9 ? size : 0), path.text.at);
        bool number = *digits != 0 && digits[strspn(digits, "0123456789")] == 0;
        v = item_of(r, v, number ? integer(atoi(digits)) : text_of(path.text.at, size));
        if (dot == NULL) {
            break;
        }
        path = text_of(dot + 1, path.text.size - size - 1);
    }
    return v;
}

/* Arguments behind the first `skip`, and the name of what they are for. */
static struct arguments behind(const struct arguments *a, int skip)
{
    return (struct arguments){a->at + skip, a->names + skip, a->count - skip, a->by_position - skip};
}

/* A name in the template's texts, NUL-terminated. */
static const char *name_in(struct run *r, const struct arguments *a, int at, const char *otherwise)
{
    if (at >= a->by_position) {
        return otherwise;
    }
    struct value v = row_needs_text(r, a->at[at]);
    char *copy = r->failed ? NULL : take(r, v.text.size + 1);
    return copy != NULL ? memcpy(copy, v.text.at, v.text.size) : "";
}

ROW_FN(do_map)
{
    UNUSED;
    struct value path = undefined(NULL, 0), missing = path, l = to_list(r, v), out = list_of(r, LIST, 0);
    for (int i = 0; i < raw->count && raw->by_position == 0; i++) {
        bool is_path = strcmp(raw->names[i], "attribute") == 0;
        if (!is_path && strcmp(raw->names[i], "default") != 0) {
            return fail(r, "map: argument %s is not supported", raw->names[i]);
        }
        *(is_path ? &path : &missing) = raw->at[i];
    }
    const char *name = raw->by_position > 0 ? name_in(r, raw, 0, "") : NULL;
    if (!r->failed && name == NULL && path.kind != TEXT) {
        return fail(r, "map: needs a filter or an attribute");
    }
    if (!r->failed && name != NULL && !filter_exists(name)) {
        return fail(r, "filter %s is not supported", name);
    }
    struct arguments rest = name != NULL ? behind(raw, 1) : *raw;
    for (int64_t i = 0; !r->failed && i < l.list->count; i++) {
        struct value one = name != NULL ? call_filter(r, name, l.list->at[i], &rest) : path_of(r, l.list->at[i], path);
        append(r, &out, one.kind == UNDEFINED && name == NULL && row_given(missing) ? missing : one);
    }
    return generator(out);
}

static struct value select_by(struct run *r, struct value v, const struct arguments *a, bool attribute, bool keep)
{
    struct value l = to_list(r, v), out = list_of(r, LIST, 0);
    const char *path = attribute ? name_in(r, a, 0, NULL) : "", *test = name_in(r, a, attribute, NULL);
    if (path == NULL || a->count > a->by_position) {
        return fail(r, "select: needs arguments without names, of which selectattr has an attribute");
    }
    if (!r->failed && test != NULL && !test_exists(test)) {
        return fail(r, "test %s is not supported", test);
    }
    struct arguments rest = test != NULL ? behind(a, attribute + 1) : *a;
    for (int64_t i = 0; !r->failed && i < l.list->count; i++) {
        struct value one = l.list->at[i], by = attribute ? path_of(r, one, text_of(path, strlen(path))) : one;
        if ((test != NULL ? call_test(r, test, by, &rest) : is_true(by)) == keep && !r->failed) {
            append(r, &out, one);
        }
    }
    return generator(out);
}

ROW_FN(do_select)
{
    UNUSED;
    return select_by(r, v, raw, false, true);
}

ROW_FN(do_reject)
{
    UNUSED;
    return select_by(r, v, raw, false, false);
}

ROW_FN(do_selectattr)
{
    UNUSED;
    return select_by(r, v, raw, true, true);
}

ROW_FN(do_rejectattr)
{
    UNUSED;
    return select_by(r, v, raw, true, false);
}

/* ---- others ---- */

ROW_FN(do_string)
{
    UNUSED;
    return to_text(r, v);
}

ROW_FN(do_default)
{
    UNUSED;
    bool missing = v.kind == UNDEFINED || (row_given(arg[1]) && is_true(arg[1]) && !is_true(v));
    return !missing ? v : row_given(arg[0]) ? arg[0] : text_of("", 0);
}

/* A text as a number; false: it is none. */
static bool read_number(struct value v, bool is_whole, int64_t *i, double *f)
{
    char digits[64];
    struct value text = strip(v, STRIP_LEFT | STRIP_RIGHT, NULL);
    (void)snprintf(digits, sizeof digits, "%.*s", (int)(text.text.size < 63 ? text.text.size : 0), text.text.at);
    char *end = digits;
    errno = 0;
    if (is_whole) {
        *i = strtoll(digits, &end, 10);
    } else if (strpbrk(digits, "xXpP") == NULL) {
        *f = strtod(digits, &end);
    }
    return end != digits && *end == 0 && errno == 0;
}

static struct value number_of_undefined(struct run *r, struct value v)
{
    return fail(r, "%.*s is undefined", (int)v.text.size, v.text.at);
}

ROW_FN(do_int)
{
    UNUSED;
    if (v.kind == UNDEFINED) {
        return number_of_undefined(r, v);
    }
    int64_t i = 0;
    double f = v.kind == FLOAT ? v.f : NAN;
    if (v.kind == INTEGER || v.kind == BOOLEAN) {
        return integer(v.kind == INTEGER ? v.i : v.yes);
    }
    if (v.kind == TEXT && read_number(v, true, &i, &f)) {
        return integer(i);
    }
    bool good = v.kind == FLOAT || (v.kind == TEXT && read_number(v, false, &i, &f));
    return good && fabs(f) < 9.2e18 ? integer((int64_t)f) : row_given(arg[0]) ? arg[0] : integer(0);
}

ROW_FN(do_float)
{
    UNUSED;
    if (v.kind == UNDEFINED) {
        return number_of_undefined(r, v);
    }
    int64_t i;
    double f = v.kind == FLOAT ? v.f : v.kind == INTEGER ? (double)v.i : v.kind == BOOLEAN ? v.yes : 0;
    bool good =
        v.kind == FLOAT || v.kind == INTEGER || v.kind == BOOLEAN || (v.kind == TEXT && read_number(v, false, &i, &f));
    return good || !row_given(arg[0]) ? (struct value){.kind = FLOAT, .f = good ? f : 0} : arg[0];
}

ROW_FN(do_tojson)
{
    UNUSED;
    struct json_form form = {
        .ascii = is_true(arg[1]), .sorted = is_true(arg[2]), .indent = (int)row_whole(r, arg[0], -1)};
    form.indent = form.indent > 64 ? 64 : form.indent;
    form.item = form.indent >= 0 ? "," : ", ";
    form.key = ": ";
    if (row_given(arg[3]) && arg[3].kind != NONE) {
        struct value pair = to_list(r, arg[3]);
        if (r->failed || pair.list->count != 2) {
            return fail(r, "tojson: separators are two texts");
        }
        form.item = row_text(r, pair.list->at[0]);
        form.key = row_text(r, pair.list->at[1]);
    }
    struct dt_text out;
    dt_text_init(&out);
    to_json(r, v, &form, 0, &out);
    v = r->failed ? undefined("", 0) : text_copy(r, dt_text_str(&out), out.size);
    dt_text_clear(&out);
    return v;
}

static const struct row filters[] = {
    {"tojson", do_tojson, 4, {"indent", "ensure_ascii", "sort_keys", "separators"}},
    {"trim", do_strip, 1, {"chars"}},
    {"length", do_length, 0, {0}},
    {"count", do_length, 0, {0}},
    {"string", do_string, 0, {0}},
    {"items", filter_items, 0, {0}},
    {"dictsort", do_dictsort, 0, {0}},
    {"list", do_list, 0, {0}},
    {"join", do_join, 1, {"d"}},
    {"map", do_map, -1, {0}},
    {"selectattr", do_selectattr, -1, {0}},
    {"rejectattr", do_rejectattr, -1, {0}},
    {"select", do_select, -1, {0}},
    {"reject", do_reject, -1, {0}},
    {"first", do_first, 0, {0}},
    {"last", do_last, 0, {0}},
    {"reverse", do_reverse, 0, {0}},
    {"sort", do_sort, 2, {"reverse", "case_sensitive"}},
    {"default", do_default, 2, {"default_value", "boolean"}},
    {"d", do_default, 2, {"default_value", "boolean"}},
    {"replace", do_replace, 3, {"old", "new", "count"}},
    {"upper", do_upper, 0, {0}},
    {"lower", do_lower, 0, {0}},
    {"title", filter_title, 0, {0}},
    {"capitalize", do_capitalize, 0, {0}},
    {"int", do_int, 1, {"default"}},
    {"float", do_float, 1, {"default"}},
    {"safe", do_string, 0, {0}},
};
static const struct row text_methods[] = {
    {"strip", do_strip, 1, {0}},           {"lstrip", do_lstrip, 1, {0}},
    {"rstrip", do_rstrip, 1, {0}},         {"split", do_split, 2, {"sep", "maxsplit"}},
    {"startswith", do_startswith, 1, {0}}, {"endswith", do_endswith, 1, {0}},
    {"upper", do_upper, 0, {0}},           {"lower", do_lower, 0, {0}},
    {"title", do_title, 0, {0}},           {"capitalize", do_capitalize, 0, {0}},
    {"replace", do_replace, 3, {0}},
};
static const struct row dict_methods[] = {
    {"items", do_items, 0, {0}}, {"keys", do_keys, 0, {0}}, {"values", do_values, 0, {0}}, {"get", do_get, 2, {0}}};

bool filter_exists(const char *name)
{
    return FIND(filters, name) != NULL;
}

struct value call_filter(struct run *r, const char *name, struct value v, const struct arguments *a)
{
    return row_call(r, FIND(filters, name), v, a);
}

bool method_exists(const char *name)
{
    return FIND(text_methods, name) != NULL || FIND(dict_methods, name) != NULL;
}

struct value call_method(struct run *r, struct value self, const char *name, const struct arguments *a)
{
    const struct row *row = self.kind == TEXT   ? FIND(text_methods, name)
                            : self.kind == DICT ? FIND(dict_methods, name)
                                                : NULL;
    return row != NULL ? row_call(r, row, self, a) : fail(r, "%s has no method %s", kind_name(self), name);
}
