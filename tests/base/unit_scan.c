/* covers: base/scan.c base/text.c base/scan_member.c */
/* The strict pre-scan: what is refused, where, and that the places are those of the values. */
#include "base/scan.h"
#include "base/text.h"

#include <cjson/cJSON.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void refused(const char *text, const char *message)
{
    struct dt_error err = {0};
    assert_int_equal(dt_scan(text, strlen(text), "f", NULL, &err), -1);
    assert_string_equal(err.text, message);
    assert_int_equal(err.status, DT_INVALID);
}

static void accepted(const char *text)
{
    struct dt_error err = {0};
    if (dt_scan(text, strlen(text), "f", NULL, &err) != 0) {
        fail_msg("%s: %s", text, err.text);
    }
}

static void test_grammar(void **state)
{
    (void)state;
    accepted("{}");
    accepted(" [ 1 , -0.5e-3, \"\\u00e9\\ud83d\\ude00\", true, false, null, {\"a\": [[], {}]} ] \r\n");
    accepted("9007199254740992");
    accepted("-9007199254740992");
    accepted("1e9");
    accepted("0.0");
    accepted("0e-999");
    accepted("{\"a\": {\"b\": 1}, \"b\": {\"b\": 1}}");
    refused("", "f:1:1: empty; expected a JSON value");
    refused(" \n ", "f:2:2: empty; expected a JSON value");
    refused("{\"a\": 1,}", "f:1:9: a comma before \"}\"; remove the comma");
    refused("[1,]", "f:1:4: a comma before \"]\"; remove the comma");
    refused("[1 2]", "f:1:4: unexpected \"2\"; expected \",\" or \"]\"");
    refused("{\"a\" 1}", "f:1:6: unexpected \"1\"; expected \":\" after a key");
    refused("{a: 1}", "f:1:2: unexpected \"a\"; expected a key in double quotes");
    refused("{'a': 1}", "f:1:2: expected a key in double quotes; JSON strings have double quotes");
    refused("{\"a\": 1", "f:1:8: the text ends here; expected \",\" or \"}\"");
    refused("[", "f:1:2: the text ends here; expected a value");
    refused("{} x", "f:1:4: unexpected \"x\"; expected the end of the text");
    refused("True", "f:1:1: \"True\" is not a JSON value; words are true, false and null, strings have quotes");
    refused("[NaN]", "f:1:2: \"NaN\" is not a JSON value; words are true, false and null, strings have quotes");
    refused("{} // no", "f:1:4: comments are not part of JSON; remove it");
    refused("# no\n{}", "f:1:1: comments are not part of JSON; remove it");
    refused("[1}", "f:1:3: unexpected \"}\"; expected \",\" or \"]\"");
}

static void test_numbers(void **state)
{
    (void)state;
    refused("1e999", "f:1:1: 1e999 is too large for a double");
    refused("[1,\n 1e-999]", "f:2:2: 1e-999 is too small for a double");
    refused("9007199254740993",
            "f:1:1: 9007199254740993 is beyond 2^53 and cannot be kept exactly; write it as a string");
    refused("-9007199254740994",
            "f:1:1: -9007199254740994 is beyond 2^53 and cannot be kept exactly; write it as a string");
    refused("01", "f:1:1: numbers do not begin with 0");
    refused("1.", "f:1:1: a number needs digits after its point");
    refused("1e+", "f:1:1: a number needs digits after its exponent sign");
    refused("-", "f:1:2: the text ends here; expected a digit after the minus sign");
    refused("+1", "f:1:1: unexpected \"+\"; expected a value");
    refused(".5", "f:1:1: unexpected \".\"; expected a value");
    refused("0x10", "f:1:2: unexpected \"x\"; expected the end of the text");
}

static void test_strings(void **state)
{
    (void)state;
    refused("\"a", "f:1:1: the string does not end; a closing quote is missing");
    refused("[\"a\n\"]", "f:1:2: the string does not end on its line; a closing quote is missing");
    refused("\"\\x\"", "f:1:3: unknown escape; JSON knows \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX");
    refused("\"\\u12g4\"", "f:1:4: \\u needs four hexadecimal digits");
    refused("\"\\ud83d\"", "f:1:3: \\ud83d is half of a surrogate pair");
    refused("\"\\ude00\"", "f:1:3: \\ude00 is half of a surrogate pair");
    refused("\"\\ud83d\\u0041\"", "f:1:3: \\ud83d is half of a surrogate pair");
    refused("\"\\u0000\"", "f:1:3: \\u0000 is not allowed in strings");
    refused("\"\t\"", "f:1:2: control character 0x09 in a string; write \\u0009");
    refused("\"\xc3\x28\"", "f:1:2: byte 0xc3 is not valid UTF-8");
    refused("\"\xed\xa0\x80\"", "f:1:2: byte 0xed is not valid UTF-8");
    refused("\"\xc0\x80\"", "f:1:2: byte 0xc0 is not valid UTF-8");
    refused("\xef\xbb\xbf{}", "f:1:1: begins with a byte order mark; save it as UTF-8 without one");
    refused("\xff\xfe{", "f:1:1: looks like UTF-16; save it as UTF-8");
    refused("[\"\xc3\xa9\", x]",
            /* columns are characters */
            "f:1:7: \"x\" is not a JSON value; words are true, false and null, strings have quotes");
    struct dt_error err = {0};
    assert_int_equal(dt_scan("{\0}", 3, "f", NULL, &err), -1);
    assert_string_equal(err.text, "f:1:2: NUL byte; expected a key in double quotes");
    assert_int_equal(dt_scan("\"\0\"", 3, "f", NULL, &err), -1);
    assert_string_equal(err.text, "f:1:2: NUL byte in a string");
}

static void test_members(void **state)
{
    (void)state;
    static const struct {
        const char *text, *members;
    } rows[] = {
        {"{}", ""},
        {" {\n\"a\" : 1e-05 ,\"b\":\"x,}\\\"{\" ,\r\n\"\\u0063\":[1,{\"a\":\"]\"}] , \"d\":{\"e\":{}} }\n",
         "a=1e-05;b=\"x,}\\\"{\";\\u0063=[1,{\"a\":\"]\"}];d={\"e\":{}};"},
        {"{\"n\":1000000000000000019884624838656,\"z\":null}", "n=1000000000000000019884624838656;z=null;"},
        {"[1]", ""},
        {"7", ""},
        {"", ""},
        {"{\"", ""}, /* not checked before; still within the text */
        {"{\"a\":", ""},
        {"{\"a\":\"\\", "a=\"\\;"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct dt_text found;
        struct dt_scan_span key, value;
        size_t at = 0;
        dt_text_init(&found);
        while (dt_scan_member(rows[i].text, strlen(rows[i].text), &at, &key, &value)) {
            dt_text_printf(&found, "%.*s=%.*s;", (int)key.size, key.at, (int)value.size, value.at);
        }
        assert_string_equal(dt_text_str(&found), rows[i].members);
        dt_text_clear(&found);
    }
}

/* A file of others may have numbers that we do not keep; all else is as strict. */
static void test_others(void **state)
{
    (void)state;
    static const char good[] = "{\"a\": 1000000000000000019884624838656, \"b\": 1e999, \"c\": 1}",
                      bad[] = "{\"a\": \"\\ud83d\"}";
    struct dt_error err = {0};
    cJSON *tree = dt_scan_parse_others(good, sizeof good - 1, "f", &err);
    assert_non_null(tree);
    assert_true(cJSON_GetObjectItemCaseSensitive(tree, "c")->valuedouble == 1);
    cJSON_Delete(tree);
    assert_null(dt_scan_parse_others(bad, sizeof bad - 1, "f", &err));
    assert_string_equal(err.text, "f:1:9: \\ud83d is half of a surrogate pair");
}

static void test_duplicates(void **state)
{
    (void)state;
    refused("{\"a\": 1,\n \"b\": 2, \"a\": 3}", "f:2:10: a: the key stands twice in one object");
    refused("{\"a\": 1, \"\\u0061\": 3}", "f:1:10: a: the key stands twice in one object");
    refused("{\"\": 1, \"\": 3}", "f:1:9: : the key stands twice in one object");
    struct dt_text t; /* many keys, so that the table grows; the last is a duplicate */
    dt_text_init(&t);
    dt_text_puts(&t, "{");
    for (int i = 0; i < 5000; i++) {
        dt_text_printf(&t, "\"k%d\": {\"k\": %d},", i, i);
    }
    dt_text_puts(&t, "\"k77\": 0}");
    struct dt_error err = {0};
    assert_int_equal(dt_scan(t.data, t.size, "f", NULL, &err), -1);
    assert_non_null(strstr(err.text, ": k77: the key stands twice in one object"));
    dt_text_clear(&t);
}

static void test_limits(void **state)
{
    (void)state;
    struct dt_text t;
    struct dt_error err = {0};
    dt_text_init(&t);
    for (int i = 0; i < 100000; i++) {
        dt_text_puts(&t, "[");
    }
    assert_int_equal(dt_scan(t.data, t.size, "f", NULL, &err), -1);
    assert_string_equal(err.text, "f:1:65: nested deeper than 64 levels");
    dt_text_reset(&t);
    dt_text_puts(&t, "[0");
    for (size_t i = 0; i < DT_SCAN_VALUES; i++) {
        dt_text_puts(&t, ",0");
    }
    dt_text_puts(&t, "]");
    assert_int_equal(dt_scan(t.data, t.size, "f", NULL, &err), -1);
    assert_non_null(strstr(err.text, "more than 200000 values, the limit"));
    struct dt_text record, text; /* a record of text may have more beside its text */
    dt_text_init(&record);
    dt_text_init(&text);
    dt_text_printf(&record, "{\"ids\": %s, \"text\": \"a\"}", dt_text_str(&t));
    enum dt_scan_found found;
    assert_int_equal(dt_scan_record(record.data, record.size, "f", "text", &text, &found, &err), 0);
    assert_string_equal(dt_text_str(&text), "a");
    dt_text_clear(&record);
    dt_text_clear(&text);
    dt_text_clear(&t);
    char *big = dt_alloc(DT_SCAN_BYTES + 1);
    assert_int_equal(dt_scan(big, DT_SCAN_BYTES + 1, "f", NULL, &err), -1);
    assert_string_equal(err.text, "f: larger than the limit of 16777216 bytes");
    free(big);
}

static void test_places(void **state)
{
    (void)state;
    const char *text = "{\n  \"a\": [1,\n   {\"b\": 2}],\n  \"\xc3\xa9\" : \"x\" }";
    static const struct dt_scan_place want[] = {{1, 1, 1, 1}, {2, 8, 2, 3},  {2, 9, 2, 9},
                                                {3, 4, 3, 4}, {3, 10, 3, 5}, {4, 9, 4, 3}};
    struct dt_scan scan = {0};
    struct dt_error err = {0};
    cJSON *tree = dt_scan_parse(text, strlen(text), "f", &scan, &err);
    assert_non_null(tree);
    assert_int_equal(scan.count, sizeof want / sizeof want[0]);
    for (size_t i = 0; i < scan.count; i++) {
        assert_int_equal(scan.places[i].line, want[i].line);
        assert_int_equal(scan.places[i].column, want[i].column);
        assert_int_equal(scan.places[i].key_line, want[i].key_line);
        assert_int_equal(scan.places[i].key_column, want[i].key_column);
    }
    cJSON_Delete(tree);
    dt_scan_clear(&scan);
}

static void test_written(void **state)
{
    (void)state;
    const char *text = "{\"1.5\": [1.0, \"2 \\\" 3\", -2E3], \"b\": {\"c\": 4, \"d\": [], \"e\": null}, \"f\": 1e-5\n}";
    struct dt_error err = {0};
    cJSON *tree = dt_scan_parse(text, strlen(text), "f", NULL, &err);
    assert_non_null(tree);
    dt_scan_numbers(tree, text, strlen(text));
    const cJSON *list = tree->child, *object = list->next;
    assert_string_equal(list->child->valuestring, "1.0");
    assert_string_equal(list->child->next->valuestring, "2 \" 3");
    assert_string_equal(list->child->next->next->valuestring, "-2E3");
    assert_string_equal(object->child->valuestring, "4");
    assert_string_equal(object->next->valuestring, "1e-5");
    cJSON_Delete(tree);
    tree = cJSON_Parse("7");
    dt_scan_numbers(tree, "7", 1);
    assert_string_equal(tree->valuestring, "7");
    cJSON_Delete(tree);
    dt_scan_numbers(NULL, "", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grammar), cmocka_unit_test(test_numbers), cmocka_unit_test(test_strings),
        cmocka_unit_test(test_members), cmocka_unit_test(test_others),  cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_limits),  cmocka_unit_test(test_places),  cmocka_unit_test(test_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
