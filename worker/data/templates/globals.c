/* The table of functions, and tests ("x is odd"). */
#include "worker/data/templates/rows.h"

#include <stdlib.h>
#include <string.h>

enum { RANGE_MOST = 100000 };

/* ---- tests ---- */

static bool odd(struct run *r, struct value v)
{
    return (row_whole(r, v, 0) & 1) != 0;
}

bool test_exists(const char *name)
{
    static const char *const names[] = {"defined", "undefined",   "none",  "true",    "false",    "boolean",  "string",
                                        "number",  "integer",     "float", "mapping", "sequence", "iterable", "odd",
                                        "even",    "divisibleby", "eq",    "equalto", "ne",       "in"};
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        found = found || strcmp(names[i], name) == 0;
    }
    return found;
}

bool call_test(struct run *r, const char *name, struct value v, const struct arguments *a)
{
    static const char *const kinds[] = {
        [UNDEFINED] = "undefined", [NONE] = "none",   [BOOLEAN] = "boolean", [INTEGER] = "integer",
        [FLOAT] = "float",         [TEXT] = "string", [DICT] = "mapping",    [FUNCTION] = NULL};
    static const char *const with_one[] = {"divisibleby", "eq", "equalto", "ne", "in"};
    int at = -1;
    for (int i = 0; i < 5; i++) {
        at = strcmp(with_one[i], name) == 0 ? i : at;
    }
    if (a->count != (at >= 0)) {
        (void)fail(r, "test %s: %d arguments", name, a->count);
        return false;
    }
    bool parity = strcmp(name, "odd") == 0 || strcmp(name, "even") == 0;
    if ((parity || at == 0) && v.kind == NONE) {
        (void)fail(r, "needs an integer, not %s", kind_name(v));
        return false;
    }
    if (at == 0) {
        int64_t by = row_whole(r, a->at[0], 1), x = row_whole(r, v, 0);
        return by == 0 ? (fail(r, "division by zero"), false) : by == -1 || x % by == 0;
    }
    if (at > 0) {
        return at == 4 ? contains(r, a->at[0], v) : equal(r, v, a->at[0]) == (at != 3);
    }
    for (int k = 0; k <= FUNCTION; k++) {
        if (kinds[k] != NULL && strcmp(kinds[k], name) == 0) {
            return (int)v.kind == k;
        }
    }
    if (parity) {
        return odd(r, v) == (*name == 'o');
    }
    if (strcmp(name, "true") == 0 || strcmp(name, "false") == 0) {
        return v.kind == BOOLEAN && v.yes == (*name == 't');
    }
    if (strcmp(name, "number") == 0) {
        return v.kind == BOOLEAN || v.kind == INTEGER || v.kind == FLOAT;
    }
    return strcmp(name, "defined") == 0 ? v.kind != UNDEFINED
           : v.kind == GENERATOR
               ? strcmp(name, "iterable") == 0
               : v.kind == TEXT || v.kind == LIST || v.kind == TUPLE || v.kind == DICT || v.kind == UNDEFINED;
}

/* ---- functions ---- */

ROW_FN(do_range)
{
    UNUSED;
    int64_t first = row_given(arg[1]) ? row_whole(r, arg[0], 0) : 0, end = row_whole(r, arg[row_given(arg[1])], 0),
            by = row_whole(r, arg[2], 1);
    __int128 count = by > 0   ? ((__int128)end - first + by - 1) / by
                     : by < 0 ? ((__int128)first - end - by - 1) / -by
                              : 0;
    if (by == 0 || count > RANGE_MOST) {
        return fail(r, "range: more than %d numbers, or a step of 0", RANGE_MOST);
    }
    struct value out = list_of(r, LIST, count > 0 ? (int64_t)count : 0);
    for (int64_t i = 0; !r->failed && i < out.list->count; i++) {
        out.list->at[i] = integer((int64_t)(first + (__int128)i * by));
    }
    return out;
}

ROW_FN(do_namespace)
{
    UNUSED;
    struct value out = {.kind = NAMESPACE, .dict = take(r, sizeof *out.dict)};
    for (int i = 0; !r->failed && i < raw->count; i++) {
        if (raw->names[i] == NULL) {
            return fail(r, "namespace: needs names");
        }
        dict_set(r, out.dict, text_of(raw->names[i], strlen(raw->names[i])), raw->at[i]);
    }
    return out;
}

ROW_FN(do_raise)
{
    UNUSED;
    struct value words = to_text(r, arg[0]);
    if (!r->failed) {
        (void)dt_fail(r->err, DT_INVALID, "%.*s", (int)(words.text.size < 4096 ? words.text.size : 4096),
                      words.text.at);
        r->failed = true;
    }
    return undefined("", 0);
}

ROW_FN(do_strftime)
{
    UNUSED;
    static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                         "July",    "August",   "September", "October", "November", "December"},
                             *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                              "Thursday", "Friday", "Saturday"};
    const struct tm *t = r->now;
    const char *form = row_text(r, arg[0]);
    struct dt_text out;
    dt_text_init(&out);
    for (; *form != 0 && !r->failed; form++) {
        int hour = t->tm_hour % 12 == 0 ? 12 : t->tm_hour % 12;
        const struct {
            char letter;
            const char *name;
            int width, number;
        } parts[] = {{'Y', NULL, 4, t->tm_year + 1900},
                     {'m', NULL, 2, t->tm_mon + 1},
                     {'d', NULL, 2, t->tm_mday},
                     {'B', months[t->tm_mon], 0, 0},
                     {'b', months[t->tm_mon], 3, 0},
                     {'A', days[t->tm_wday], 0, 0},
                     {'a', days[t->tm_wday], 3, 0},
                     {'j', NULL, 3, t->tm_yday + 1},
                     {'y', NULL, 2, t->tm_year % 100},
                     {'H', NULL, 2, t->tm_hour},
                     {'M', NULL, 2, t->tm_min},
                     {'S', NULL, 2, t->tm_sec},
                     {'p', t->tm_hour < 12 ? "AM" : "PM", 0, 0},
                     {'I', NULL, 2, hour},
                     {'%', "%", 0, 0}};
        size_t i = 0, count = sizeof parts / sizeof parts[0];
        if (*form != '%') {
            dt_text_add(&out, form, 1);
            continue;
        }
        form++;
        while (i < count && parts[i].letter != *form) {
            i++;
        }
        if (i == count) {
            (void)fail(r, "strftime %%%.1s is not supported", form);
            break;
        }
        if (parts[i].name == NULL) {
            dt_text_printf(&out, "%0*d", parts[i].width, parts[i].number);
        } else {
            dt_text_printf(&out, "%.*s", parts[i].width > 0 ? parts[i].width : 16, parts[i].name);
        }
    }
    v = r->failed ? undefined("", 0) : text_copy(r, dt_text_str(&out), out.size);
    dt_text_clear(&out);
    return v;
}

static const struct row functions[] = {{"range", do_range, 3, {0}},
                                       {"namespace", do_namespace, -1, {0}},
                                       {"raise_exception", do_raise, 1, {"message"}},
                                       {"strftime_now", do_strftime, 1, {"format"}}};

bool function_exists(const char *name)
{
    return FIND(functions, name) != NULL;
}

struct value call_function(struct run *r, const char *name, const struct arguments *a)
{
    return row_call(r, FIND(functions, name), undefined("", 0), a);
}
