/* covers: base/yaml.c */
/* YAML as PyYAML reads it: words, places, aliases, and what is refused. */
#include "base/yaml.h"

#include <cjson/cJSON.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MOST = 2000 };

/* The tree as JSON, or what is wrong. The caller frees it. */
static char *read_text(const char *text, size_t size, struct dt_scan *out)
{
    struct dt_error err = {0};
    cJSON *tree = dt_yaml_parse(text, size, "f.yaml", MOST, out, &err);
    char *printed = tree != NULL ? cJSON_PrintUnformatted(tree) : strdup(err.text);
    cJSON_Delete(tree);
    return printed;
}

static void reads(const char *text, const char *json)
{
    char *printed = read_text(text, strlen(text), NULL);
    assert_string_equal(printed, json);
    free(printed);
}

/* Each as PyYAML's safe_load has it (6.0). */
static void test_words(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"a: yes", "true"},
        {"a: No", "false"},
        {"a: on", "true"},
        {"a: OFF", "false"},
        {"a: nO", "\"nO\""},
        {"a: 'NO'", "\"NO\""},
        {"a: y", "\"y\""},
        {"a: ~", "null"},
        {"a:", "null"},
        {"a: Null", "null"},
        {"a: \"\"", "\"\""},
        {"a: 10_000", "10000"},
        {"a: 0x1f", "31"},
        {"a: 010", "8"},
        {"a: 08", "\"08\""},
        {"a: 0b11", "3"},
        {"a: -7", "-7"},
        {"a: +7", "7"},
        {"a: 1:30", "90"},
        {"a: 1:30:01.5", "5401.5"},
        {"a: 1:75", "\"1:75\""},
        {"a: 00:01:00:00", "\"00:01:00:00\""},
        {"a: 1e-4", "\"1e-4\""},
        {"a: 1.0e5", "\"1.0e5\""},
        {"a: 1.e-4", "0.0001"},
        {"a: 2.0e-05", "2e-05"},
        {"a: \"1e-4\"", "\"1e-4\""},
        {"a: .5", "0.5"},
        {"a: 5.", "5"},
        {"a: 1_0.5_0", "10.5"},
        {"a: _1", "\"_1\""},
        {"a: .", "\".\""},
        {"a: 1.2.3", "\"1.2.3\""},
        {"a: 2024-01-01", "\"2024-01-01\""},
        {"a: =", "\"=\""},
        {"a: |\n  x\n  y\n", "\"x\\ny\\n\""},
        {"a: 'it''s'", "\"it's\""},
        {"a: \"\\u00e9\"", "\"\xc3\xa9\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char json[128];
        (void)snprintf(json, sizeof json, "{\"a\":%s}", cases[i][1]);
        reads(cases[i][0], json);
    }
    reads("on: 1\n5: 2\n", "{\"on\":1,\"5\":2}"); /* keys are words */
    reads("# a comment\n{a: [1, {b: 2}], \"c\": x, }", "{\"a\":[1,{\"b\":2}],\"c\":\"x\"}");
    reads("%YAML 1.1\n---\na: 1\n...\n", "{\"a\":1}");
    reads("a: 1\r\nb: 2\r\n", "{\"a\":1,\"b\":2}");
    reads("\xef\xbb\xbf# a comment\na: 1\n", "{\"a\":1}"); /* as Windows' editors begin a file */
    reads("- 1\n- a: 2\n", "[1,{\"a\":2}]");
}

/* 1.0 and 1 are one number, written in two ways. */
static void test_spelling(void **state)
{
    (void)state;
    cJSON *tree = dt_yaml_parse("[1.0, 1]", 8, "f", MOST, NULL, NULL);
    assert_string_equal(tree->child->valuestring, "1.0");
    assert_string_equal(tree->child->next->valuestring, "1");
    assert_true(cJSON_Compare(tree->child, tree->child->next, true));
    cJSON_Delete(tree);
}

static void test_places(void **state)
{
    (void)state;
    static const char text[] = "a: 1\nb:\n  - x\n  -  {c: 2}\n\xc3\xa9: z\n";
    static const struct dt_scan_place wanted[] = {{1, 1, 1, 1}, {1, 4, 1, 1},  {3, 3, 2, 1}, {3, 5, 3, 5},
                                                  {4, 6, 4, 6}, {4, 10, 4, 7}, {5, 4, 5, 1}};
    struct dt_scan scan = {0};
    free(read_text(text, strlen(text), &scan));
    assert_int_equal(scan.count, sizeof wanted / sizeof wanted[0]);
    for (size_t i = 0; i < scan.count; i++) {
        assert_int_equal(scan.places[i].line, wanted[i].line);
        assert_int_equal(scan.places[i].column, wanted[i].column);
        assert_int_equal(scan.places[i].key_line, wanted[i].key_line);
        assert_int_equal(scan.places[i].key_column, wanted[i].key_column);
    }
    dt_scan_clear(&scan);
}

static void test_aliases(void **state)
{
    (void)state;
    reads("a: &x {b: [1, 2]}\nc: *x\n", "{\"a\":{\"b\":[1,2]},\"c\":{\"b\":[1,2]}}");
    reads("base: &x {b: 1, c: 2}\nown:\n  <<: *x\n  c: 3\n", "{\"base\":{\"b\":1,\"c\":2},\"own\":{\"c\":3,\"b\":1}}");
    reads("p: &p {b: 1}\nq: &q {b: 2, c: 3}\nown: {<<: [*p, *q], d: 4}\n",
          "{\"p\":{\"b\":1},\"q\":{\"b\":2,\"c\":3},\"own\":{\"d\":4,\"b\":1,\"c\":3}}");
    reads("p: &p {b: 1}\nq: &q {<<: *p, c: 2}\nown: {<<: *q}\n",
          "{\"p\":{\"b\":1},\"q\":{\"c\":2,\"b\":1},\"own\":{\"c\":2,\"b\":1}}");
    reads("a: *x\n", "f.yaml:1:4: *x: no anchor of that name ends before it");
    reads("a: &x [*x]\n", "f.yaml:1:8: *x: no anchor of that name ends before it");
    reads("x: &x {<<: [{a: 1}, {a: 2, b: 2}]}\nown: {<<: *x}\n", "{\"x\":{\"a\":1,\"b\":2},\"own\":{\"a\":1,\"b\":2}}");
    reads("own: {<<: [[{a: 1}]]}\n", "f.yaml:1:12: << takes an object, or a list of them");
    reads("a: {<<: 5}\n", "f.yaml:1:9: << takes an object, or a list of them");
    struct dt_text bomb;
    dt_text_init(&bomb);
    dt_text_puts(&bomb, "a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 9; i++) {
        dt_text_printf(&bomb, "a%d: &a%d [", i, i);
        for (int k = 0; k < 9; k++) {
            dt_text_printf(&bomb, "%s*a%d", k > 0 ? ", " : "", i - 1);
        }
        dt_text_puts(&bomb, "]\n");
    }
    reads(bomb.data, "f.yaml:1:16: more than 2000 values once aliases are followed");
    dt_text_reset(&bomb);
    dt_text_puts(&bomb, "a0: &a0 {k: 1}\n"); /* one value, which merges look at 2^29 times */
    for (int i = 1; i < 30; i++) {
        dt_text_printf(&bomb, "a%d: &a%d {<<: [*a%d, *a%d]}\n", i, i, i - 1, i - 1);
    }
    reads(bomb.data, "f.yaml:3:14: more than 2000 values once aliases are followed");
    dt_text_clear(&bomb);
}

static void test_refused(void **state)
{
    (void)state;
    reads("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: a: the key stands twice, here and in line 1; remove one");
    reads("a: !Loader {b: 1}\n", "f.yaml:1:4: the tag !Loader is not followed; write the value itself");
    reads("a: !!python/object:os.system x\n",
          "f.yaml:1:4: the tag tag:yaml.org,2002:python/object:os.system is not followed; write the value itself");
    reads("!!x k: 1\n", "f.yaml:1:1: the tag tag:yaml.org,2002:x is not followed; write the value itself");
    reads("a: 1\n---\nb: 2\n", "f.yaml:2:1: a second document begins; a file has one");
    reads("? [a]\n: 1\n", "f.yaml:1:3: a key must be a word");
    reads("a: .inf\n", "f.yaml:1:4: .inf is not a finite number");
    reads("a: 9007199254740993\n",
          "f.yaml:1:4: 9007199254740993 is beyond 2^53 and cannot be kept exactly; write it as a string");
    reads("", "f.yaml: empty; expected keys and values");
    reads("# only this\n", "f.yaml: empty; expected keys and values");
    reads("a: \"x\\0y\"\n", "f.yaml:1:4: NUL in a string");
    reads("a: [1\n", "f.yaml:2:1: not YAML: while parsing a flow sequence, did not find expected ',' or ']'");
    reads("a:\n\t- 1\n",
          "f.yaml:2:1: not YAML: while scanning for the next token, found character that cannot start any token");
    char *wrong = read_text("a: \xff", 4, NULL);
    assert_non_null(strstr(wrong, "f.yaml: byte 3: "));
    free(wrong);
    struct dt_text deep;
    dt_text_init(&deep);
    for (int i = 0; i < 70; i++) {
        dt_text_puts(&deep, "[");
    }
    reads(deep.data, "f.yaml:1:65: nested deeper than 64 levels");
    dt_text_reset(&deep);
    for (int i = 0; i < 2100; i++) {
        dt_text_puts(&deep, "- 1\n");
    }
    reads(deep.data, "f.yaml:2000:3: too many values for a configuration");
    dt_text_clear(&deep);
    assert_true(dt_yaml_is_name("a/b.yaml") && dt_yaml_is_name("b.YML"));
    assert_false(dt_yaml_is_name("b.json") || dt_yaml_is_name("yaml"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),   cmocka_unit_test(test_spelling), cmocka_unit_test(test_places),
        cmocka_unit_test(test_aliases), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
