/* covers: worker/data/templates/parse.c worker/data/templates/tokens.c worker/data/templates/expressions.c worker/data/templates/render.c worker/data/templates/values.c worker/data/templates/filters.c worker/data/templates/globals.c worker/data/templates/rows.c worker/data/templates/case.c */
/* Templates render what jinja2 rendered once (tests/golden/finetune/jinja.json), conversations what
 * transformers made of them (chat.json), to the byte; what is not supported is refused by its name, and work is
 * bounded. */
#include "tests/lib/golden.h"

#include "base/file.h"
#include "worker/data/templates/template.h"

#include <cjson/cJSON.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define AT "tests/golden/finetune/"

/* 2026-11-26, a Thursday */
static const struct tm day = {.tm_year = 126, .tm_mon = 10, .tm_mday = 26, .tm_wday = 4, .tm_yday = 329};

static const cJSON *member(const cJSON *of, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(of, key);
}

/* 0: rendered into out. */
static int render(const char *source, const cJSON *variables, struct dt_text *out, struct dt_error *err)
{
    struct template *t = NULL;
    int rc = template_open(&t, "t", source, strlen(source), err);
    rc = rc == 0 ? template_render(t, variables, &day, out, err) : rc;
    template_close(t);
    return rc;
}

static bool check_case(const cJSON *contexts, const cJSON *c)
{
    const cJSON *variables = member(c, "c"), *out = member(c, "out"), *refused = member(c, "refused"),
                *says = member(c, "says");
    struct dt_text text;
    struct dt_error err = {.text = ""};
    dt_text_init(&text);
    variables = refused != NULL             ? member(contexts, "m")
                : cJSON_IsString(variables) ? member(contexts, variables->valuestring)
                                            : variables;
    int rc = render(member(c, "t")->valuestring, variables, &text, &err);
    bool good = rc != 0;
    if (out != NULL) {
        good = rc == 0 && strcmp(out->valuestring, dt_text_str(&text)) == 0;
    } else if (refused != NULL) {
        good = rc != 0 && strstr(err.text, refused->valuestring) != NULL;
    } else if (strcmp(member(c, "error")->valuestring, "raised") == 0) {
        good = rc != 0 && strcmp(err.text, says->valuestring) == 0;
    }
    if (!good) {
        print_error("%s\n  gives %d %s %s\n  not   %s\n", member(c, "t")->valuestring, rc, dt_text_str(&text), err.text,
                    out != NULL       ? out->valuestring
                    : refused != NULL ? refused->valuestring
                                      : says->valuestring);
    }
    dt_text_clear(&text);
    return good;
}

static void test_jinja(void **state)
{
    (void)state;
    cJSON *json = golden_json(AT "jinja.json");
    const cJSON *c;
    int count = 0, bad = 0;
    cJSON_ArrayForEach(c, member(json, "cases"))
    {
        bad += !check_case(member(json, "contexts"), c);
        count++;
    }
    cJSON_Delete(json);
    assert_int_equal(bad, 0);
    assert_true(count > 250);
}

/* The text of a row; rows with a tail begin with the text of the row before. */
static bool check_row(const cJSON *family, const struct template *t, const cJSON *conversation, const cJSON *row,
                      struct dt_text *plain)
{
    const cJSON *text = member(row, "text"), *tail = member(row, "tail"), *error = member(row, "error"), *one;
    bool gen = cJSON_IsTrue(member(row, "gen"));
    struct dt_text out, wanted;
    struct dt_error err = {.text = ""};
    dt_text_init(&out);
    dt_text_init(&wanted);
    cJSON *variables = cJSON_Duplicate(member(family, "variables"), true);
    const cJSON *sets[] = {conversation, member(conversation, "variables")};
    for (int i = 0; i < 2; i++) {
        cJSON_ArrayForEach(one, sets[i])
        {
            cJSON_DeleteItemFromObjectCaseSensitive(variables, one->string);
            cJSON_AddItemToObject(variables, one->string, cJSON_Duplicate(one, true));
        }
    }
    cJSON_ArrayForEach(one, member(variables, "messages"))
    {
        if (cJSON_IsNull(member(one, "content"))) { /* transformers drops it */
            cJSON_DeleteItemFromObjectCaseSensitive((cJSON *)(uintptr_t)one, "content");
        }
    }
    static const char *const absent[] = {"tools", "documents"};
    for (int i = 0; i < 2; i++) {
        if (member(variables, absent[i]) == NULL) {
            (void)cJSON_AddNullToObject(variables, absent[i]);
        }
    }
    (void)cJSON_AddBoolToObject(variables, "add_generation_prompt", gen);
    int rc = template_render(t, variables, &day, &out, &err);
    if (tail != NULL) {
        dt_text_add(&wanted, dt_text_str(plain), plain->size);
    }
    dt_text_puts(&wanted, tail != NULL ? tail->valuestring : text != NULL ? text->valuestring : "");
    bool good = error == NULL ? rc == 0 && strcmp(dt_text_str(&out), dt_text_str(&wanted)) == 0
                : strcmp(error->valuestring, "raised") == 0
                    ? rc != 0 && strcmp(err.text, member(row, "says")->valuestring) == 0
                    : rc != 0;
    if (!good) {
        print_error("%s %d:\n%s\n%s\n  not\n%s\n", member(row, "c")->valuestring, gen, dt_text_str(&out), err.text,
                    dt_text_str(&wanted));
    }
    if (!gen) {
        dt_text_reset(plain);
        dt_text_add(plain, dt_text_str(&out), out.size);
    }
    cJSON_Delete(variables);
    dt_text_clear(&out);
    dt_text_clear(&wanted);
    return good;
}

static void test_conversations(void **state)
{
    (void)state;
    cJSON *json = golden_json(AT "chat.json");
    const cJSON *family, *row;
    int count = 0, bad = 0;
    cJSON_ArrayForEach(family, member(json, "families"))
    {
        struct template *t;
        struct dt_text source, plain;
        struct dt_error err = {.text = ""};
        char path[256];
        (void)snprintf(path, sizeof path, AT "templates/%s", member(family, "template")->valuestring);
        dt_text_init(&source);
        dt_text_init(&plain);
        assert_int_equal(dt_file_read(path, 1 << 20, &source, &err), 0);
        if (template_open(&t, path, dt_text_str(&source), source.size, &err) != 0) {
            fail_msg("%s", err.text);
        }
        cJSON_ArrayForEach(row, member(family, "rows"))
        {
            bad += !check_row(family, t, member(member(json, "conversations"), member(row, "c")->valuestring), row,
                              &plain);
            count++;
        }
        template_close(t);
        dt_text_clear(&source);
        dt_text_clear(&plain);
    }
    cJSON_Delete(json);
    assert_int_equal(bad, 0);
    assert_true(count > 200);
}

/* Texts that ask for too much, and part of the error. */
static void test_bounds(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "deep"},
        {"{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}", "steps"},
        {"{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "MiB"},
        {"{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}", "steps"},
        {"{% set ns = namespace(l=[]) %}{% for i in range(9000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | tojson "
         "}}",
         "deep"},
        {"{% set ns = namespace(l=[], m=[]) %}{% for i in range(9000) %}{% set ns.l = [ns.l] %}{% set ns.m = [ns.m] "
         "%}{% endfor %}{{ ns.l == ns.m }}",
         "deep"},
        {"{% set ns = namespace(l=[0]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | "
         "tojson | length }}",
         "MiB"},
        {"{% set s = 'abcdefgh' %}{% for i in range(99999) %}{% for j in range(99) %}{{ s }}{% endfor %}{% endfor %}",
         "1"},
        {"{{ [3, 1] | map('map', 'map') | list }}", "elements"},
        {"{{ 'x' | replace('', 'yyyyyyyyyyyyyyyy' ~ 'x' * 2) }}", "repeated text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dt_text out;
        struct dt_error err = {.text = ""};
        dt_text_init(&out);
        assert_int_equal(render(cases[i][0], NULL, &out, &err), -1);
        if (strstr(err.text, cases[i][1]) == NULL) {
            fail_msg("%s: %s", cases[i][0], err.text);
        }
        assert_int_equal(out.size, 0);
        dt_text_clear(&out);
    }
}

/* Brackets, signs, blocks and chains that are nested thousands deep. */
static void test_deep_sources(void **state)
{
    (void)state;
    static const char *const parts[][3] = {{"{{ ", "(", ""},
                                           {"{{ ", "[", ""},
                                           {"{{ ", "- ", "1 }}"},
                                           {"{{ ", "not ", "1 }}"},
                                           {"{{ 1", " + 1", " }}"},
                                           {"{{ x", ".x", " }}"},
                                           {"{{ x", "|string", " }}"},
                                           {"", "{% if 1 %}", ""},
                                           {"{% if 0 %}", "{% elif 0 %}", "{% endif %}"},
                                           {"", "{% for i in [1] %}", ""},
                                           {"{{ 1", " if 1", " }}"},
                                           {"{{ 1", " if 1 else 1", " }}"},
                                           {"{{ {'a': ", "{'a': ", ""},
                                           {"{{ x", "[x", ""},
                                           {"{{ x", "(x", ""},
                                           {"{{ 1", " is defined and 1", " }}"},
                                           {"{{ 1", " < 1", " }}"},
                                           {"{{ 'a'", " ~ 'a'", " }}"},
                                           {"", "{% set x %}", ""},
                                           {"", "{% macro f() %}", ""}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        struct dt_text source, out;
        struct dt_error err;
        dt_text_init(&source);
        dt_text_init(&out);
        dt_text_puts(&source, parts[i][0]);
        for (int n = 0; n < 20000; n++) {
            dt_text_puts(&source, parts[i][1]);
        }
        dt_text_puts(&source, parts[i][2]);
        (void)render(dt_text_str(&source), NULL, &out, &err);
        dt_text_clear(&source);
        dt_text_clear(&out);
    }
}

/* Templates that would take memory, stack or hours without many steps of their own. */
static void test_hostile(void **state)
{
    (void)state;
    static const struct {
        const char *begin, *again;
        int times;
        const char *end, *error;
    } cases[] = {
        {"{% set ns = namespace(s='x') %}{% for i in range(18) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ (ns.s",
         " ~ ns.s", 2000, ") | length }}", "steps"},
        {"{% set ns = namespace(l=[1]) %}{% for i in range(40000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | "
         "map('map'",
         ", 'map'", 39000, ") | list | length }}", "deep"},
        {"{% set ns = namespace(s='x', t='y') %}{% for i in range(20) %}{% set ns.s = ns.s + ns.s %}{% set ns.t = ns.t "
         "+ "
         "ns.t %}{% endfor %}{{ ns.s.strip(ns.t ~ 'x') }}",
         "", 0, "", "steps"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dt_text source, out;
        struct dt_error err = {.text = ""};
        dt_text_init(&source);
        dt_text_init(&out);
        dt_text_puts(&source, cases[i].begin);
        for (int n = 0; n < cases[i].times; n++) {
            dt_text_puts(&source, cases[i].again);
        }
        dt_text_puts(&source, cases[i].end);
        assert_int_equal(render(dt_text_str(&source), NULL, &out, &err), -1);
        if (strstr(err.text, cases[i].error) == NULL) {
            fail_msg("%s: %s", cases[i].begin, err.text);
        }
        dt_text_clear(&source);
        dt_text_clear(&out);
    }
}

/* A run whose steps end among the comparisons that sort keys; every number of keys ends it elsewhere. */
static void test_sorted_keys_end(void **state)
{
    (void)state;
    for (int keys = 90; keys < 110; keys++) {
        struct dt_text out;
        struct dt_error err = {.text = ""};
        dt_text_init(&out);
        cJSON *variables = cJSON_CreateObject(), *d = cJSON_AddObjectToObject(variables, "d");
        for (int i = 0; i < keys; i++) {
            char name[64];
            (void)snprintf(name, sizeof name, "a key of more than sixteen bytes %d", i);
            (void)cJSON_AddNumberToObject(d, name, i);
        }
        assert_int_equal(render("{% for i in range(99999) %}{{ d | tojson(sort_keys=true) | length }}{% endfor %}",
                                variables, &out, &err),
                         -1);
        assert_non_null(strstr(err.text, "steps"));
        cJSON_Delete(variables);
        dt_text_clear(&out);
    }
}

/* At the edges of numbers, bytes and depth, where a template is right. */
static void test_edges(void **state)
{
    (void)state;
    static const char nul[] = "a{\0b{{ 1 }}";
    static const char *const cases[][2] = {
        {"{{ range(-9223372036854775807, 9223372036854775807, 4611686018427387904) | list | tojson }}",
         "[-9223372036854775807, -4611686018427387903, 1, 4611686018427387905]"},
        {"{% macro f(n, k) %}{% if n > 0 %}{% if k == 'x' %}{{ k }}{% endif %}{{ f(n - 1, k) }}{% endif %}{% endmacro "
         "%}{{ f(60, 'x') | length }}",
         "60"},
        {"{{ ' a '.lstrip(none) }}|{{ ' a '.rstrip(none) }}", "a | a"},
        {"{{ 5 | safe | tojson }}", "\"5\""},
        /* generators are true, even without elements, and are read once */
        {"{% if [] | map('upper') %}m{% endif %}{% if {} | items %}i{% endif %}{% if [] | reverse %}r{% endif %}",
         "mir"},
        {"{% set g = [1, 2] | select %}{{ g is iterable }} {{ g is sequence }} {{ g | join }} {{ g | join }}",
         "True False 12 "},
        {"{% set g = [1, 2, 3, 4] | select %}{{ 2 in g }} {{ g | first }} {{ g | list | tojson }}", "True 3 [4]"},
        /* the else of a loop also runs where each iteration ended by break or continue */
        {"{% for i in [1, 2] %}{% continue %}{% else %}a{% endfor %}{% for i in [1] %}{% break %}{% else %}b{% endfor "
         "%}{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{% else %}c{% endfor %}",
         "ab"},
    };
    static const char *const errors[] = {
        "{{ none is even }}",          "{{ none is divisibleby 3 }}", "{{ u | int }}",     "{{ u | float(1) }}",
        "{{ [1] | select | length }}", "{{ [1] | select | last }}",   "{{ [1] | select }}"};
    struct dt_text out;
    struct dt_error err = {.text = ""};
    dt_text_init(&out);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_text_reset(&out);
        if (render(cases[i][0], NULL, &out, &err) != 0) {
            fail_msg("%s: %s", cases[i][0], err.text);
        }
        assert_string_equal(dt_text_str(&out), cases[i][1]);
    }
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        assert_int_equal(render(errors[i], NULL, &out, &err), -1);
    }
    struct template *t = NULL;
    dt_text_reset(&out);
    assert_int_equal(template_open(&t, "t", nul, sizeof nul - 1, &err), 0);
    assert_int_equal(template_render(t, NULL, &day, &out, &err), 0);
    assert_int_equal(out.size, 5);
    assert_memory_equal(dt_text_str(&out), "a{\0b1", 5);
    template_close(t);
    dt_text_clear(&out);
}

/* Errors name the line. */
static void test_lines(void **state)
{
    (void)state;
    struct dt_text out;
    struct dt_error err;
    dt_text_init(&out);
    assert_int_equal(render("a\r\nb\n{{ 1 | nofilter }}", NULL, &out, &err), -1);
    assert_string_equal(err.text, "t:3: filter nofilter is not supported");
    assert_int_equal(render("a\n{% for i in [1] %}\n{{ i < 'a' }}\n{% endfor %}", NULL, &out, &err), -1);
    assert_string_equal(err.text, "t:3: an integer and a text have no order");
    assert_int_equal(render("{{ '\xff' }}", NULL, &out, &err), -1);
    assert_string_equal(err.text, "t:1: is not UTF-8");
    dt_text_clear(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_jinja),   cmocka_unit_test(test_conversations),
                                       cmocka_unit_test(test_bounds),  cmocka_unit_test(test_deep_sources),
                                       cmocka_unit_test(test_hostile), cmocka_unit_test(test_sorted_keys_end),
                                       cmocka_unit_test(test_edges),   cmocka_unit_test(test_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
