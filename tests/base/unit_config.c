/* covers: base/config.c base/config_parse.c base/config_schema.c base/config_unknown.c base/config_value.c base/config_format.c */
/* Field tables: every rule, defaults, --set, places, unknown keys, all problems at once, formats
 * and schema. */
#include "base/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

struct box {
    bool flag;
    int64_t count, maybe, pair[2];
    struct dt_integers list;
    struct dt_strings texts;
    double rate;
    const char *word, *kind;
    int mode, wish;
};

static const struct dt_rule boolean = {.type = DT_RULE_BOOL};
static const struct dt_rule count = {.type = DT_RULE_INTEGER, .min = 1, .max = 1e10};
static const struct dt_rule maybe = {.type = DT_RULE_INTEGER, .max = 9, .null = true, .null_value = -1};
#define ONES "1, 1, 1, 1, 1, 1, 1, 1, "
static const struct dt_rule list = {.type = DT_RULE_INTEGERS, .min = 1, .max = 9};
static const struct dt_rule strings = {.type = DT_RULE_STRINGS, .null = true};
static const struct dt_rule pair = {.type = DT_RULE_PAIR, .min = 1, .max = 9, .null = true};
static const struct dt_rule rate = {.type = DT_RULE_NUMBER, .open_min = true, .max = 1, .open_max = true};
static const struct dt_rule word = {.type = DT_RULE_STRING, .null = true};
static const struct dt_rule kind = {.type = DT_RULE_CHOICE, .choices = "small|large", .later = "huge"};
static const struct dt_rule mode = {.type = DT_RULE_ENUM, .choices = "slow|fast"};
static const struct dt_rule wish = {.type = DT_RULE_ENUM, .choices = "auto|true|false"};

static const struct dt_field fields[] = {
    {"flag", "true", "a flag", offsetof(struct box, flag), &boolean},
    {"count", NULL, "how many", offsetof(struct box, count), &count},
    {"maybe", "null", "perhaps", offsetof(struct box, maybe), &maybe},
    {"pair", "null", "two", offsetof(struct box, pair), &pair},
    {"rate", "0.1", "how fast", offsetof(struct box, rate), &rate},
    {"word", "null", "text", offsetof(struct box, word), &word},
    {"kind", "\"small\"", "size", offsetof(struct box, kind), &kind},
    {"mode", "\"fast\"", "speed", offsetof(struct box, mode), &mode},
    {"wish", "\"auto\"", "or not", offsetof(struct box, wish), &wish},
    {"list", "[1, 2]", "some", offsetof(struct box, list), &list},
    {"texts", "null", "words", offsetof(struct box, texts), &strings},
    {0},
};
static const struct dt_config_hint hints[] = {
    {"box.old", "here it is box.count"}, {"later", "not there yet; remove it"}, {0}};

static struct dt_arena arena;

/* Reads `text` with up to one --set; returns problems (the caller frees) and fills in the box. */
static char *read_box(const char *text, const char *set, struct box *box)
{
    struct dt_config *c = NULL;
    struct dt_error err = {0};
    struct dt_text problems;
    dt_text_init(&problems);
    *box = (struct box){0};
    if (dt_config_open_text(&c, "f", text, strlen(text), &arena, &err) != 0) {
        dt_text_puts(&problems, err.text);
        return problems.data;
    }
    if (set != NULL && dt_config_set(c, set, NULL, &err) != 0) {
        dt_text_puts(&problems, err.text);
        (void)dt_config_close(c, NULL, NULL);
        return problems.data;
    }
    dt_config_hints(c, hints);
    (void)dt_config_read(c, "box", fields, box);
    dt_text_puts(&problems, "");
    int result = dt_config_close(c, &problems, &err);
    assert_int_equal(result, problems.size > 0 ? -1 : 0);
    return problems.data;
}

static void expect(const char *text, const char *set, const char *problems)
{
    struct box box;
    char *got = read_box(text, set, &box);
    assert_string_equal(got, problems);
    free(got);
}

static void test_values(void **state)
{
    (void)state;
    struct box b;
    char *got = read_box("{\"box\": {\"flag\": false, \"count\": 1e9, \"maybe\": 3, \"pair\": [2, 3], \"rate\": 0.25, "
                         "\"word\": \"w\", \"kind\": "
                         "\"LARGE\", \"mode\": \"slow\"}}",
                         NULL, &b);
    assert_string_equal(got, "");
    free(got);
    assert_false(b.flag);
    assert_int_equal(b.count, 1000000000);
    assert_int_equal(b.maybe, 3);
    assert_int_equal(b.pair[1], 3);
    assert_true(b.list.count == 2 && b.list.of[1] == 2);
    assert_true(b.rate == 0.25);
    assert_string_equal(b.word, "w");
    assert_string_equal(b.kind, "large");
    assert_int_equal(b.mode, 0);
    got = read_box("{\"box\": {\"count\": 4, \"rate\": \"auto\", \"flag\": \"auto\"}}", NULL, &b);
    assert_string_equal(got, "");
    free(got);
    assert_true(b.flag);
    assert_int_equal(b.maybe, -1);
    assert_int_equal(b.pair[0], 0);
    assert_true(b.rate == 0.1);
    assert_null(b.word);
    assert_int_equal(b.mode, 1);
}

static void test_wrong_values(void **state)
{
    (void)state;
    expect("{\"box\": {\"count\": 0}}", NULL, "f:1:19: box.count: is 0; give a whole number from 1 to 10000000000\n");
    expect("{\"box\": {\"count\": 1.5}}", NULL,
           "f:1:19: box.count: is 1.5; give a whole number from 1 to 10000000000\n");
    expect("{\"box\": {\"count\": \"auto\"}}", NULL,
           "f:1:19: box.count: is \"auto\"; give a whole number from 1 to 10000000000\n");
    expect("{\"box\": {\"count\": null}}", NULL,
           "f:1:19: box.count: is null; give a whole number from 1 to 10000000000\n");
    expect("{\"box\": {\"count\": 1, \"rate\": 0}}", NULL,
           "f:1:30: box.rate: is 0; give a number above 0 and below 1\n");
    expect("{\"box\": {\"count\": 1, \"flag\": 1}}", NULL, "f:1:30: box.flag: is 1; give true or false\n");
    expect("{\"box\": {\"count\": 1, \"word\": \"\"}}", NULL,
           "f:1:30: box.word: is \"\"; give a string that is not empty, or null\n");
    expect("{\"box\": {\"count\": 1, \"kind\": \"tiny\"}}", NULL,
           "f:1:30: box.kind: is \"tiny\"; give one of: small, large\n");
    expect("{\"box\": {\"count\": 1, \"kind\": \"huge\"}}", NULL,
           "f:1:30: box.kind: is \"huge\", which is not there yet; give one of: small, large\n");
    expect("{\"box\": {\"count\": 1, \"pair\": [1]}}", NULL,
           "f:1:30: box.pair: is [1]; give a list of two whole numbers from 1 to 9, or null\n");
    expect("{\"box\": {\"count\": 1, \"list\": [1, 10]}}", NULL,
           "f:1:30: box.list: is [1, 10]; give a list of 1 to 32 whole numbers from 1 to 9\n");
    expect("{\"box\": {\"count\": 1, \"list\": [" ONES ONES ONES ONES "1]}}", NULL,
           "f:1:30: box.list: is a list; give a list of 1 to 32 whole numbers from 1 to 9\n");
    expect("{\"box\": {\"count\": 1, \"list\": []}}", NULL,
           "f:1:30: box.list: is []; give a list of 1 to 32 whole numbers from 1 to 9\n");
    expect("{\"box\": 3}", NULL,
           "f:1:9: box: is 3; give an object, { \"key\": value, ... }\nf: box.count: missing; add it (how many)\n");
    expect("{}", NULL, "f: box.count: missing; add it (how many)\n");
    expect("[]", NULL, "f:1:1: expected an object, { \"key\": value, ... }");
    expect("{", NULL, "f:1:2: the text ends here; expected a key in double quotes");
}

static void test_unknown(void **state)
{
    (void)state;
    expect("{\"box\": {\"count\": 1, \"flagg\": true}}", NULL, "f:1:22: box.flagg: unknown key; did you mean flag?\n");
    expect("{\"bxo\": {\"count\": 1, \"flagg\": true}, \"box\": {\"count\": 1}}", NULL,
           "f:1:2: bxo: unknown key; did you mean box?\n");
    expect("{\"box\": {\"count\": 1}, \"rate\": 1}", NULL, "f:1:23: rate: unknown key; did you mean box.rate?\n");
    expect("{\"box\": {\"count\": 1}, \"box.count\": 1}", NULL, "f:1:23: \"box.count\": unknown key; remove it\n");
    expect("{\"box\": {\"count\": 1}, \"elephant\": {\"a\": {\"b\": 1}}}", NULL,
           "f:1:23: elephant: unknown key; remove it\n");
    expect("{\"box\": {\"count\": 1, \"old\": 1}, \"later\": {\"enabled\": true}}", NULL,
           "f:1:22: box.old: here it is box.count\nf:1:33: later: not there yet; remove it\n");
    expect("{\"box\": {\"count\": 1, \"old\": false}, \"later\": {\"enabled\": false, \"x\": 1}}", NULL, "");
    expect("{\n \"box\": {\"x\": 1,\n  \"mode\": 1,\n \"count\": -1}}", NULL,
           "f:2:10: box.x: unknown key; remove it\nf:3:11: box.mode: is 1; give one of: slow, fast\nf:4:11: box.count: "
           "is -1; give a whole number "
           "from 1 to 10000000000\n");
}

static void test_set(void **state)
{
    (void)state;
    struct box b;
    char *got = read_box("{\"box\": {\"count\": 0}}", "box.count=7", &b);
    assert_string_equal(got, "");
    free(got);
    assert_int_equal(b.count, 7);
    got = read_box("{\"box\": {\"count\": 1}}", "box.word=a=b c", &b);
    assert_string_equal(got, "");
    free(got);
    assert_string_equal(b.word, "a=b c");
    got = read_box("{\"box\": {\"count\": 1, \"rate\": 0.5}}", "box={\"count\": 2}", &b);
    assert_string_equal(got, "");
    free(got);
    assert_int_equal(b.count, 2);
    assert_true(b.rate == 0.1);
    got = read_box("{}", "box.count=3", &b);
    assert_string_equal(got, "");
    free(got);
    assert_int_equal(b.count, 3);
    expect("{}", "box.count=x", "--set box.count=x: box.count: is \"x\"; give a whole number from 1 to 10000000000\n");
    expect("{\"box\": {\"count\": 1}}", "box.cuont=2",
           "--set box.cuont=2: box.cuont: unknown key; did you mean count?\n");
    expect("{}", "box.count", "--set box.count: not of the form key=value; write for example --set training.seed=7");
    expect("{}", "=1", "--set =1: not of the form key=value; write for example --set training.seed=7");
    expect("{}", "a..b=1", "--set a..b=1: not of the form key=value; write for example --set training.seed=7");
    expect("{\"box\": 1}", "box.count=1", "--set box.count=1: box is not a section (f:1:2)");
    expect("{}", "box={\"count\": }", "--set box={\"count\": }:1:11: unexpected \"}\"; expected a value");
}

static void test_where(void **state)
{
    (void)state;
    struct dt_config *c = NULL;
    struct dt_error err = {0};
    struct box box;
    const char *text = "{\n  \"box\": {\n    \"count\": 5, \"word\": null}}";
    assert_int_equal(dt_config_open_text(&c, "f", text, strlen(text), &arena, &err), 0);
    assert_int_equal(dt_config_set(c, "box.rate=0.5", "--rate", &err), 0);
    assert_int_equal(dt_config_read(c, "box", fields, &box), 0);
    assert_string_equal(dt_config_where(c, "box.count"), "f:3:5");
    assert_string_equal(dt_config_source(c, "box.rate"), "--rate 0.5");
    assert_null(dt_config_where(c, "box.word"));
    assert_string_equal(dt_config_source(c, "box.word"), "default");
    dt_config_derived(c, "box.word", "the moon");
    assert_string_equal(dt_config_source(c, "box.word"), "the moon");
    dt_config_problem(c, "box.rate", "second");
    dt_config_problem(c, "box.count", "first %d", 1);
    struct dt_text problems;
    dt_text_init(&problems);
    assert_int_equal(dt_config_close(c, &problems, &err), -1);
    assert_string_equal(err.text, "f: 2 problems");
    assert_string_equal(problems.data, "f:3:5: box.count: first 1\n--rate 0.5: box.rate: second\n");
    dt_text_clear(&problems);
}

/* A choice that is named true or false is JSON's. */
static void test_literals(void **state)
{
    (void)state;
    struct box box;
    static const char *const texts[] = {"{\"box\": {\"count\": 1}}", "{\"box\": {\"count\": 1, \"wish\": true}}",
                                        "{\"box\": {\"count\": 1, \"wish\": false}}"};
    for (int i = 0; i < 3; i++) {
        char *got = read_box(texts[i], NULL, &box);
        assert_string_equal(got, "");
        assert_int_equal(box.wish, i);
        free(got);
    }
    char *got = read_box(texts[0], "box.wish=true", &box);
    assert_int_equal(box.wish, 1);
    free(got);
    expect("{\"box\": {\"count\": 1, \"wish\": 1}}", NULL, "f:1:30: box.wish: is 1; give one of: auto, true, false\n");
    expect("{\"box\": {\"count\": 1, \"mode\": true}}", NULL, "f:1:30: box.mode: is true; give one of: slow, fast\n");
}

/* A number and a list of one are the same; a fraction is no whole number. */
static void test_numbers(void **state)
{
    (void)state;
    static const struct dt_rule rule = {.type = DT_RULE_NUMBERS, .max = 9, .null = true},
                                whole = {.type = DT_RULE_NUMBERS, .min = 1, .max = 9, .whole = true};
    static const struct dt_field table[] = {
        {"a", "null", "", 0, &rule}, {"b", "[1, 2]", "", sizeof(struct dt_numbers), &whole}, {0}};
    struct dt_numbers in[2] = {{1, {0.5}}, {2, {3, 4}}};
    struct dt_text text;
    dt_text_init(&text);
    dt_config_format(&table[0], in, &text);
    dt_text_puts(&text, " ");
    dt_config_format(&table[1], in, &text);
    assert_string_equal(dt_text_str(&text), "0.5 [3, 4]");
    const struct {
        const char *json;
        int problems, counts[2];
    } cases[] = {{"{\"a\": 0.25, \"b\": 7}", 0, {1, 1}},
                 {"{\"a\": [0.25, 9], \"b\": [7]}", 0, {2, 1}},
                 {"{\"a\": null}", 0, {0, 2}},
                 {"{\"a\": 10}", 1, {0, 2}},
                 {"{\"a\": []}", 1, {0, 2}},
                 {"{\"a\": [1, 2, 3, 4, 5]}", 1, {0, 2}},
                 {"{\"a\": [1, \"2\"]}", 1, {0, 2}},
                 {"{\"b\": 1.5}", 1, {0, 2}},
                 {"{\"b\": null}", 1, {0, 2}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dt_config *c = NULL;
        struct dt_arena own;
        struct dt_numbers out[2] = {{0}};
        dt_arena_init(&own);
        assert_int_equal(dt_config_open_text(&c, "f", cases[i].json, strlen(cases[i].json), &own, NULL), 0);
        assert_int_equal(dt_config_read(c, "", table, out), cases[i].problems);
        dt_text_reset(&text);
        (void)dt_config_close(c, &text, NULL);
        assert_true(cases[i].problems == 0 || strstr(text.data, "number or a list of up to 4, from") != NULL);
        assert_int_equal(out[0].count, cases[i].counts[0]);
        assert_int_equal(out[1].count, cases[i].counts[1]);
        dt_arena_clear(&own);
    }
    dt_text_clear(&text);
}

/* A string and a list of one are the same; an empty string, an empty list and a number are refused. */
static void test_strings(void **state)
{
    (void)state;
    struct box b;
    char *got = read_box("{\"box\": {\"count\": 1, \"texts\": [\"a, b\", \"auto\"]}}", NULL, &b);
    assert_string_equal(got, "");
    free(got);
    assert_int_equal(b.texts.count, 2);
    assert_string_equal(b.texts.of[0], "a, b");
    assert_string_equal(b.texts.of[1], "auto");
    struct dt_text t;
    dt_text_init(&t);
    dt_config_format(&fields[10], &b, &t);
    assert_string_equal(t.data, "[\"a, b\", \"auto\"]");
    dt_text_clear(&t);
    got = read_box("{\"box\": {\"count\": 1}}", "box.texts=auto", &b);
    assert_string_equal(got, "");
    free(got);
    assert_true(b.texts.count == 1 && strcmp(b.texts.of[0], "auto") == 0);
#define WANTED "; give a string that is not empty, or a list of such strings, or null\n"
    expect("{\"box\": {\"count\": 1, \"texts\": []}}", NULL, "f:1:31: box.texts: is []" WANTED);
    expect("{\"box\": {\"count\": 1, \"texts\": [\"a\", \"\"]}}", NULL, "f:1:31: box.texts: is [\"a\", \"\"]" WANTED);
    expect("{\"box\": {\"count\": 1, \"texts\": [\"a\", 5]}}", NULL, "f:1:31: box.texts: is [\"a\", 5]" WANTED);
    expect("{\"box\": {\"count\": 1, \"texts\": \"\"}}", NULL, "f:1:31: box.texts: is \"\"" WANTED);
#undef WANTED
}

static void test_format(void **state)
{
    (void)state;
    struct box box = {.flag = true,
                      .count = 5,
                      .maybe = -1,
                      .pair = {1, 2},
                      .rate = 0.1,
                      .kind = "small",
                      .mode = 1,
                      .wish = 2,
                      .list = {2, {3, 4}}};
    struct dt_text t;
    dt_text_init(&t);
    for (const struct dt_field *f = fields; f->key != NULL; f++) {
        dt_config_format(f, &box, &t);
        dt_text_puts(&t, " ");
    }
    assert_string_equal(t.data, "true 5 null [1, 2] 0.1 null \"small\" \"fast\" false [3, 4] null ");
    dt_text_reset(&t);
    box.rate = 0.1 + 1e-16 * 3;
    dt_config_format(&fields[4], &box, &t);
    assert_true(strtod(t.data, NULL) == box.rate);
    dt_text_reset(&t);
    dt_config_schema(fields, 0, &t);
    assert_non_null(strstr(t.data, "\"count\": {\"type\": [\"integer\"], \"minimum\": 1, \"maximum\": 10000000000, "
                                   "\"description\": \"how many\"}"));
    assert_non_null(strstr(
        t.data, "\"mode\": {\"enum\": [\"slow\", \"fast\"], \"default\": \"fast\", \"description\": \"speed\"}"));
    assert_non_null(strstr(
        t.data, "\"wish\": {\"enum\": [\"auto\", true, false], \"default\": \"auto\", \"description\": \"or not\"}"));
    dt_text_clear(&t);
}

/* What does not fit: named, and nothing is built from it. */
static void test_limits(void **state)
{
    (void)state;
    struct dt_text t;
    dt_text_init(&t);
    dt_text_puts(&t, "{\"box\": [0");
    for (int i = 0; i < 20000; i++) {
        dt_text_puts(&t, ",0");
    }
    dt_text_puts(&t, "]}");
    expect(t.data, NULL, "f: 20003 values; a configuration has at most 20000");
    dt_text_reset(&t);
    dt_text_puts(&t, "{\"box\": {\"count\": 1");
    for (int i = 0; i < 500; i++) {
        dt_text_printf(&t, ", \"unknown%d\": 1", i);
    }
    dt_text_puts(&t, "}}");
    struct box box;
    char *got = read_box(t.data, NULL, &box);
    size_t lines = 0;
    for (const char *p = got; *p != 0; p++) {
        lines += *p == '\n';
    }
    assert_int_equal(lines, 100); /* enough to see what is wrong */
    free(got);
    dt_text_clear(&t);
}

int main(void)
{
    dt_arena_init(&arena);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),  cmocka_unit_test(test_values),  cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_unknown),  cmocka_unit_test(test_set),     cmocka_unit_test(test_where),
        cmocka_unit_test(test_literals), cmocka_unit_test(test_strings), cmocka_unit_test(test_format),
        cmocka_unit_test(test_limits),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dt_arena_clear(&arena);
    return failed;
}
