/* covers: collectives/store_table.c collectives/store_entry.c collectives/store_waits.c */
/* The store's state: values, counters, queues, waiters, limits. */
#include "collectives/store_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct person {
    struct dt_store_waiter waiter;
    int told;
};

static void on_ready(struct dt_store_waiter *w)
{
    ((struct person *)w->user)->told++;
}

static struct dt_bytes b(const char *s)
{
    return (struct dt_bytes){s, strlen(s)};
}

static bool park(struct dt_store_table *t, struct person *p, const char *first, const char *second)
{
    p->waiter.ready = on_ready;
    p->waiter.user = p;
    struct dt_bytes keys[2] = {b(first), b(second != NULL ? second : "")};
    return dt_store_table_wait(t, &p->waiter, keys, second != NULL ? 2 : 1);
}

static void set(struct dt_store_table *t, const char *key, const char *value)
{
    assert_int_equal(0, dt_store_table_set(t, b(key), b(value), NULL));
}

static void expect(const struct dt_store_table *t, const char *key, const char *value)
{
    struct dt_bytes got = {NULL, 0};
    bool there = dt_store_table_get(t, b(key), &got);
    assert_int_equal(value != NULL, there);
    if (value != NULL) {
        assert_int_equal(strlen(value), got.size);
        assert_memory_equal(value, got.size > 0 ? got.data : "", got.size);
    }
}

static void values(void **state)
{
    (void)state;
    struct dt_store_table *t = dt_store_table_open(NULL);
    expect(t, "k", NULL);
    set(t, "k", "value");
    set(t, "", "of the empty key");
    set(t, "e", "");
    expect(t, "k", "value");
    expect(t, "", "of the empty key");
    expect(t, "e", "");
    set(t, "k", "a much longer value than the first one");
    set(t, "k", "v");
    expect(t, "k", "v");
    assert_int_equal(0, dt_store_table_append(t, b("k"), b("w"), NULL));
    assert_int_equal(0, dt_store_table_append(t, b("new"), b("xyz"), NULL));
    expect(t, "k", "vw");
    expect(t, "new", "xyz");
    assert_int_equal(4, dt_store_table_key_count(t));
    assert_true(dt_store_table_delete(t, b("k")));
    assert_false(dt_store_table_delete(t, b("k")));
    expect(t, "k", NULL);
    assert_int_equal(3, dt_store_table_key_count(t));
    dt_store_table_reset(t);
    assert_int_equal(0, dt_store_table_key_count(t));
    assert_int_equal(0, dt_store_table_bytes(t));
    dt_store_table_close(t);
}

static void many_keys_and_no_leftovers(void **state)
{
    (void)state;
    struct dt_store_table *t = dt_store_table_open(NULL);
    char key[32], value[32];
    for (int i = 0; i < 20000; i++) {
        (void)snprintf(key, sizeof key, "key%d", i);
        (void)snprintf(value, sizeof value, "%d", i * 7);
        set(t, key, value);
    }
    for (int i = 0; i < 20000; i++) {
        (void)snprintf(key, sizeof key, "key%d", i);
        (void)snprintf(value, sizeof value, "%d", i * 7);
        expect(t, key, value);
        assert_true(dt_store_table_delete(t, b(key)));
    }
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(0, dt_store_table_append(t, b("log"), b("0123456789"), NULL));
    }
    assert_true(dt_store_table_bytes(t) >= 10000 && dt_store_table_bytes(t) <= 24000);
    assert_true(dt_store_table_delete(t, b("log")));
    assert_int_equal(0, dt_store_table_bytes(t));
    dt_store_table_close(t);
}

static void add(void **state)
{
    (void)state;
    static const struct {
        const char *before;
        int64_t delta, total; /* total INT64_MIN and after null: refused */
        const char *after;
    } rows[] = {
        {NULL, 1, 1, "1"},
        {"40", -42, -2, "-2"},
        {" 12abc", 1, 13, "13"},
        {"+5", 0, 5, "5"},
        {"\t-7", 7, 0, "0"},
        {"9223372036854775807", 1, INT64_MIN, "-9223372036854775808"},
        {"-9223372036854775808", 0, INT64_MIN, "-9223372036854775808"},
        {"", 1, 0, NULL},
        {"abc", 1, 0, NULL},
        {"- 1", 1, 0, NULL},
        {"9223372036854775808", 1, 0, NULL},
        {"-9223372036854775809", 1, 0, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dt_store_table *t = dt_store_table_open(NULL);
        struct dt_error err = {0};
        int64_t total = 99;
        if (rows[i].before != NULL) {
            set(t, "n", rows[i].before);
        }
        int rc = dt_store_table_add(t, b("n"), rows[i].delta, &total, &err);
        assert_int_equal(rows[i].after != NULL ? 0 : -1, rc);
        if (rc == 0) {
            assert_int_equal(rows[i].total, total);
            expect(t, "n", rows[i].after);
        } else {
            assert_int_equal(DT_INVALID, err.status);
            assert_non_null(strstr(err.text, "'n'"));
            expect(t, "n", rows[i].before);
        }
        dt_store_table_close(t);
    }
}

static void compare_set(void **state)
{
    (void)state;
    struct dt_store_table *t = dt_store_table_open(NULL);
    static const struct {
        const char *key, *expected, *desired, *reply, *after;
    } rows[] = {
        {"c", "", "v1", "v1", "v1"},       {"c", "v1", "v2", "v2", "v2"},    {"c", "bad", "v3", "v2", "v2"},
        {"c", "", "v3", "v2", "v2"},       {"missing", "x", "y", "x", NULL}, {"e", "", "", "", ""},
        {"e", "", "full", "full", "full"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dt_bytes now = {NULL, 0};
        assert_int_equal(
            0, dt_store_table_compare_set(t, b(rows[i].key), b(rows[i].expected), b(rows[i].desired), &now, NULL));
        assert_int_equal(strlen(rows[i].reply), now.size);
        assert_memory_equal(rows[i].reply, now.size > 0 ? now.data : "", now.size);
        expect(t, rows[i].key, rows[i].after);
    }
    struct person p = {0};
    struct dt_bytes now;
    assert_false(park(t, &p, "missing", NULL));
    assert_int_equal(0, dt_store_table_compare_set(t, b("missing"), b("x"), b("y"), &now, NULL));
    assert_int_equal(0, p.told); /* nothing was stored */
    assert_int_equal(0, dt_store_table_compare_set(t, b("missing"), b(""), b("y"), &now, NULL));
    assert_int_equal(1, p.told);
    dt_store_table_close(t);
}

static void waiting(void **state)
{
    (void)state;
    struct dt_store_table *t = dt_store_table_open(NULL);
    struct person p = {0}, q = {0}, r = {0}, other = {0};
    set(t, "there", "1");
    assert_true(park(t, &p, "there", NULL));
    assert_true(dt_store_table_wait(t, &p.waiter, NULL, 0));
    assert_false(park(t, &p, "a", "b"));
    assert_false(park(t, &q, "b", "there"));
    assert_false(park(t, &r, "c", "c")); /* named twice, counts once */
    set(t, "b", "1");
    assert_int_equal(0, p.told);
    assert_int_equal(1, q.told);
    assert_true(dt_store_table_delete(t, b("b"))); /* b was there: it need not be there at the
                                                    * end */
    set(t, "a", "1");
    assert_int_equal(1, p.told);
    set(t, "c", "1");
    assert_int_equal(1, r.told);
    /* add, append wake; a second wait replaces the first; cancel forgets */
    int64_t total = 0;
    assert_false(park(t, &p, "n", NULL));
    assert_int_equal(0, dt_store_table_add(t, b("n"), 0, &total, NULL));
    assert_int_equal(2, p.told);
    assert_false(park(t, &p, "x", NULL));
    assert_false(park(t, &p, "y", NULL));
    set(t, "x", "1");
    assert_int_equal(2, p.told);
    assert_int_equal(0, dt_store_table_append(t, b("y"), b("1"), NULL));
    assert_int_equal(3, p.told);
    assert_false(park(t, &p, "z", "zz"));
    dt_store_table_cancel(t, &p.waiter);
    dt_store_table_cancel(t, &p.waiter);
    set(t, "z", "1");
    set(t, "zz", "1");
    assert_int_equal(3, p.told);
    /* waits leave nothing behind, and reset forgets them */
    dt_store_table_reset(t);
    assert_false(park(t, &p, "u", "v"));
    size_t one = dt_store_table_bytes(t);
    assert_false(park(t, &other, "u", "v")); /* the second one takes room, too */
    assert_true(dt_store_table_bytes(t) > one);
    dt_store_table_cancel(t, &other.waiter);
    assert_int_equal(one, dt_store_table_bytes(t));
    dt_store_table_cancel(t, &p.waiter);
    assert_int_equal(0, dt_store_table_bytes(t));
    assert_false(park(t, &p, "u", "v"));
    dt_store_table_reset(t);
    set(t, "u", "1");
    set(t, "v", "1");
    assert_int_equal(3, p.told);
    dt_store_table_close(t);
}

static void push(struct dt_store_table *t, const char *key, const char *value)
{
    assert_int_equal(0, dt_store_table_push(t, b(key), b(value), NULL));
}

static void queues(void **state)
{
    (void)state;
    struct dt_store_table *t = dt_store_table_open(NULL);
    struct dt_text out;
    dt_text_init(&out);
    assert_int_equal(0, dt_store_table_pop(t, b("q"), &out));
    push(t, "q", "ab");
    push(t, "q", "");
    struct dt_bytes q = b("q");
    assert_true(dt_store_table_check(t, &q, 1));
    assert_int_equal(0, dt_store_table_key_count(t));
    expect(t, "q", NULL);
    assert_int_equal(2, dt_store_table_queue_length(t, q));
    assert_int_equal(2, dt_store_table_pop(t, q, &out));
    assert_string_equal("ab", dt_text_str(&out));
    assert_int_equal(1, dt_store_table_pop(t, q, &out));
    assert_int_equal(0, dt_store_table_pop(t, q, &out));
    assert_int_equal(0, dt_store_table_bytes(t));

    /* one push wakes one: the longest waiter whose wait is complete with it */
    struct person first = {0}, second = {0}, third = {0};
    assert_false(park(t, &first, "q", "other"));
    assert_false(park(t, &second, "q", NULL));
    assert_false(park(t, &third, "q", NULL));
    push(t, "q", "1");
    assert_int_equal(0, first.told);
    assert_int_equal(1, second.told);
    assert_int_equal(0, third.told);
    set(t, "other", "1"); /* q is not empty yet: first is served too */
    assert_int_equal(1, first.told);
    push(t, "q", "2");
    assert_int_equal(1, third.told);
    /* a wait over two queues: the second push completes it */
    struct person both = {0};
    assert_false(park(t, &both, "q1", "q2"));
    push(t, "q1", "x");
    assert_int_equal(0, both.told);
    push(t, "q2", "x");
    assert_int_equal(1, both.told);
    dt_text_clear(&out);
    dt_store_table_close(t);
}

static void barrier(void **state)
{
    (void)state;
    struct dt_store_table *t = dt_store_table_open(NULL);
    struct person p[3] = {0}, other = {0};
    bool passed = true;
    assert_false(park(t, &other, "b", NULL)); /* waits for the key; only the last arrival ends
                                               * that */
    for (int i = 0; i < 3; i++) {
        p[i].waiter.ready = on_ready;
        p[i].waiter.user = &p[i];
        assert_int_equal(0, dt_store_table_barrier(t, &p[i].waiter, b("b"), 3, &passed, NULL));
        assert_int_equal(i == 2, passed);
        assert_int_equal(i == 2, p[0].told + p[1].told == 2);
        assert_int_equal(i == 2, other.told);
    }
    assert_int_equal(0, p[2].told); /* the last one is answered at once */
    expect(t, "b", "3");
    assert_int_equal(0, dt_store_table_barrier(t, &p[0].waiter, b("b"), 3, &passed, NULL));
    assert_true(passed);
    set(t, "text", "x");
    assert_int_equal(-1, dt_store_table_barrier(t, &p[0].waiter, b("text"), 3, &passed, NULL));
    assert_int_equal(0, dt_store_table_barrier(t, &p[0].waiter, b("half"), 2, &passed, NULL));
    set(t, "half", "x"); /* a set of the key releases its waiters */
    assert_int_equal(2, p[0].told);
    dt_store_table_close(t);
}

static void limits(void **state)
{
    (void)state;
    struct dt_store_limits l = {.key_bytes = 4, .value_bytes = 8, .total_bytes = 2000};
    struct dt_store_table *t = dt_store_table_open(&l);
    struct dt_error err = {0};
    set(t, "1234", "12345678");
    assert_int_equal(-1, dt_store_table_set(t, b("12345"), b(""), &err));
    assert_int_equal(DT_INVALID, err.status);
    assert_int_equal(-1, dt_store_table_set(t, b("k"), b("123456789"), &err));
    assert_int_equal(-1, dt_store_table_push(t, b("k"), b("123456789"), &err));
    for (int i = 0; i < 4; i++) { /* appends may grow beyond one value */
        assert_int_equal(0, dt_store_table_append(t, b("a"), b("12345678"), &err));
    }
    expect(t, "a", "12345678123456781234567812345678");
    int rc = 0;
    for (int i = 0; i < 1000 && rc == 0; i++) {
        rc = dt_store_table_append(t, b("a"), b("12345678"), &err);
        assert_true(dt_store_table_bytes(t) <= 2000);
    }
    assert_int_equal(-1, rc);
    assert_int_equal(DT_NO_MEMORY, err.status);
    rc = 0;
    for (int i = 0; i < 1000 && rc == 0; i++) {
        rc = dt_store_table_push(t, b("q"), b("12345678"), &err);
    }
    assert_int_equal(-1, rc);
    assert_int_equal(DT_NO_MEMORY, err.status);
    assert_true(dt_store_table_delete(t, b("a")));
    set(t, "b", "1");
    dt_store_table_close(t);
}

static void count_waiter(void *user, const struct dt_store_waiter *w, struct dt_bytes key)
{
    (void)w;
    *(size_t *)user += key.size;
}

static void who_waits(void **state)
{
    (void)state;
    struct dt_store_table *t = dt_store_table_open(NULL);
    struct person p[3] = {0};
    size_t bytes = 0;
    set(t, "there", "");
    assert_false(park(t, &p[0], "there", "key")); /* names what is missing */
    assert_false(park(t, &p[1], "key", NULL));
    assert_false(park(t, &p[2], "key", NULL));
    dt_store_table_cancel(t, &p[1].waiter);
    dt_store_table_each_waiter(t, count_waiter, &bytes);
    assert_int_equal(6, bytes);
    dt_store_table_close(t);
}

/* What an answer has taken stays as it is: values are replaced, grow behind it, shrink, and go. */
static void shared_values_stay(void **state)
{
    (void)state;
    struct dt_store_table *t = dt_store_table_open(NULL);
    struct dt_bytes got = {NULL, 0}, grown = {NULL, 0};
    set(t, "k", "first");
    set(t, "g", "1234567890");
    size_t before = dt_store_table_bytes(t);
    assert_true(dt_store_table_get(t, b("k"), &got));
    struct dt_store_value *one = dt_store_table_share(got), *two = dt_store_table_share(got);
    assert_false(dt_store_value_is_left(one));
    set(t, "k", "other"); /* of the same size */
    assert_true(dt_store_value_is_left(one));
    assert_memory_equal("first", got.data, 5);
    expect(t, "k", "other");
    assert_int_equal(before, dt_store_table_bytes(t));
    assert_int_equal(5, dt_store_table_left_bytes(t));
    dt_store_table_unshare(t, one);
    assert_memory_equal("first", got.data, 5);
    dt_store_table_unshare(t, two);
    assert_int_equal(0, dt_store_table_left_bytes(t));
    for (int i = 0; i < 2; i++) { /* the first time it moves, the second time there is room
                                   * behind it */
        assert_true(dt_store_table_get(t, b("g"), &grown));
        one = dt_store_table_share(grown);
        assert_int_equal(0, dt_store_table_append(t, b("g"), b("abc"), NULL));
        assert_memory_equal(i == 0 ? "1234567890" : "1234567890abc", grown.data, grown.size);
        assert_int_equal(i == 0, dt_store_value_is_left(one));
        dt_store_table_unshare(t, one);
    }
    expect(t, "g", "1234567890abcabc");
    assert_true(dt_store_table_get(t, b("g"), &grown));
    one = dt_store_table_share(grown);
    assert_true(dt_store_table_delete(t, b("g")));
    assert_memory_equal("1234567890abcabc", grown.data, grown.size);
    dt_store_table_unshare(t, one);
    assert_true(dt_store_table_delete(t, b("k")));
    assert_int_equal(0, dt_store_table_bytes(t) + dt_store_table_left_bytes(t));
    dt_store_table_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),    cmocka_unit_test(many_keys_and_no_leftovers),
        cmocka_unit_test(add),       cmocka_unit_test(compare_set),
        cmocka_unit_test(waiting),   cmocka_unit_test(queues),
        cmocka_unit_test(barrier),   cmocka_unit_test(limits),
        cmocka_unit_test(who_waits), cmocka_unit_test(shared_values_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
