/* covers: collectives/wire.c */
/* The wire: a captured exchange answered byte for byte however the stream is cut; encoding and
 * parsing of every query; refusals. */
#include "collectives/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What a PyTorch client sent (>) and what its server answered (<), as captured. */
static const struct {
    const char *from, *hex;
} exchange[] = {
    /* clang-format off */
    {">", "00 ce f7 85 3c"}, /* VALIDATE */
    {">", "0d 66 0c 00 00"}, /* PING 3174 */
    {"<", "66 0c 00 00"},
    {">", "04 05 00 00 00 00 00 00 00 69 6e 69 74 2f 01 00 00 00 00 00 00 00"}, /* ADD 'init/' +1 */
    {"<", "01 00 00 00 00 00 00 00"},
    {">", "01 02 00 00 00 00 00 00 00 2f 6b 05 00 00 00 00 00 00 00 76 61 6c 75 65"}, /* SET '/k' 'value' */
    {">", "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b"}, /* WAIT ['/k'] */
    {"<", "00"}, /* STOP_WAITING */
    {">", "03 02 00 00 00 00 00 00 00 2f 6b"}, /* GET '/k' */
    {"<", "05 00 00 00 00 00 00 00 76 61 6c 75 65"}, /* 'value' */
    {">", "04 04 00 00 00 00 00 00 00 2f 63 74 72 01 00 00 00 00 00 00 00"}, /* ADD '/ctr' +1 */
    {"<", "01 00 00 00 00 00 00 00"},
    {">", "04 04 00 00 00 00 00 00 00 2f 63 74 72 29 00 00 00 00 00 00 00"}, /* ADD '/ctr' +41 */
    {"<", "2a 00 00 00 00 00 00 00"}, /* 42 */
    {">", "04 04 00 00 00 00 00 00 00 2f 63 74 72 fe ff ff ff ff ff ff ff"}, /* ADD '/ctr' -2 */
    {"<", "28 00 00 00 00 00 00 00"}, /* 40, stored as the text '40' */
    {">", "05 02 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 2f 6e 6f 70 65 02 00 00 00 00 00 00 00 2f"
          " 6b"}, /* CHECK ['/nope','/k'] */
    {"<", "01"}, /* NOT_READY */
    {">", "02 02 00 00 00 00 00 00 00 2f 63 00 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 76"
          " 31"}, /* COMPARE_SET '/c' '' to 'v1' */
    {"<", "02 00 00 00 00 00 00 00 76 31"}, /* created: 'v1' */
    {">", "02 02 00 00 00 00 00 00 00 2f 63 02 00 00 00 00 00 00 00 76 31 02 00 00 00 00 00 00 00 76"
          " 32"}, /* COMPARE_SET '/c' 'v1' to 'v2' */
    {"<", "02 00 00 00 00 00 00 00 76 32"}, /* replaced: 'v2' */
    {">", "02 02 00 00 00 00 00 00 00 2f 63 03 00 00 00 00 00 00 00 62 61 64 02 00 00 00 00 00 00 00 76"
          " 33"}, /* COMPARE_SET '/c' 'bad' to 'v3' */
    {"<", "02 00 00 00 00 00 00 00 76 32"}, /* refused, current is 'v2' */
    {">", "02 08 00 00 00 00 00 00 00 2f 6d 69 73 73 69 6e 67 01 00 00 00 00 00 00 00 78 01 00 00 00 00 00"
          " 00 00 79"}, /* COMPARE_SET '/missing' 'x' to 'y' */
    {"<", "01 00 00 00 00 00 00 00 78"}, /* nothing stored, echo of 'x' */
    {">", "09 02 00 00 00 00 00 00 00 2f 61 03 00 00 00 00 00 00 00 66 6f 6f"}, /* APPEND '/a' 'foo' */
    {">", "0b 02 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 2f 6d 31 01 00 00 00 00 00 00 00 78 03 00 00"
          " 00 00 00 00 00 2f 6d 32 02 00 00 00 00 00 00 00 79 79"}, /* MULTI_SET m1=x m2=yy */
    {">", "06 02 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 2f 6d 31 03 00 00 00 00 00 00 00 2f 6d 32"}, /* WAIT [m1,m2] */
    {"<", "00"},
    {">", "0a 02 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 2f 6d 31 03 00 00 00 00 00 00 00 2f 6d"
          " 32"}, /* MULTI_GET [m1,m2] */
    {"<", "01 00 00 00 00 00 00 00 78 02 00 00 00 00 00 00 00 79 79"}, /* 'x' 'yy', no count */
    {">", "07"}, /* GETNUMKEYS */
    {"<", "07 00 00 00 00 00 00 00"},
    {">", "08 02 00 00 00 00 00 00 00 2f 6b"}, /* DELETE_KEY '/k' */
    {"<", "01 00 00 00 00 00 00 00"},
    {">", "06 01 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00 2f 6e 65 76 65 72"}, /* WAIT ['/never'], never answered */
    {">", "0c"}, /* CANCEL_WAIT */
    {"<", "01"}, /* WAIT_CANCELED */
    {">", "01 0e 00 00 00 00 00 00 00 2f 69 6e 6e 65 72 2f 6f 75 74 65 72 2f 6b 01 00 00 00 00 00 00 00"
          " 76"}, /* SET '/inner/outer/k' 'v' */
    {">", "0e 02 00 00 00 00 00 00 00 2f 71 02 00 00 00 00 00 00 00 61 62"}, /* QUEUE_PUSH '/q' 'ab' */
    {">", "10 02 00 00 00 00 00 00 00 2f 71"}, /* QUEUE_LEN */
    {"<", "01 00 00 00 00 00 00 00"},
    {">", "0f 02 00 00 00 00 00 00 00 2f 71"}, /* QUEUE_POP */
    {"<", "01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 61 62"}, /* length 1, then 'ab' */
    {">", "0f 02 00 00 00 00 00 00 00 2f 71"}, /* QUEUE_POP again */
    {"<", "00 00 00 00 00 00 00 00"}, /* empty, nothing follows */
    /* clang-format on */
};

static void add_hex(struct dt_text *out, const char *hex)
{
    for (const char *p = hex; *p != '\0'; p += *p == ' ' ? 1 : 2) {
        if (*p != ' ') {
            char byte[3] = {p[0], p[1], '\0'};
            dt_wire_put_u8(out, (uint8_t)strtoul(byte, NULL, 16));
        }
    }
}

static void on_ready(struct dt_store_waiter *w)
{
    dt_wire_put_u8(w->user, DT_WIRE_STOP_WAITING);
}

/* A server's side without the server. */
struct session {
    struct dt_store_table *table;
    struct dt_wire_parser parser;
    struct dt_store_waiter waiter;
    struct dt_wire_output out; /* all text, unless a test wants it otherwise */
    struct dt_error err;
    int requests;
};

static void session_open(struct session *s, const struct dt_store_limits *limits)
{
    *s = (struct session){0};
    s->table = dt_store_table_open(limits);
    dt_wire_parser_init(&s->parser, limits);
    s->waiter = (struct dt_store_waiter){.ready = on_ready, .user = &s->out.text};
    s->out.copy_bytes = SIZE_MAX;
}

static void session_close(struct session *s)
{
    dt_store_table_cancel(s->table, &s->waiter);
    dt_wire_parser_clear(&s->parser);
    dt_wire_output_clear(&s->out, s->table);
    dt_store_table_close(s->table);
}

static int feed(struct session *s, const void *data, size_t size)
{
    /* a copy of exactly this size: reading beyond it or keeping pointers to it shows under a
     * sanitizer */
    void *copy = malloc(size > 0 ? size : 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    struct dt_wire_request r;
    int rc;
    dt_wire_feed(&s->parser, copy, size);
    while ((rc = dt_wire_next(&s->parser, &r, &s->err)) == 1) {
        s->requests++;
        rc = dt_wire_answer(s->table, &s->waiter, &r, &s->out, &s->err);
        if (rc != 0) {
            break;
        }
    }
    free(copy);
    return rc;
}

static void make_exchange(struct dt_text *in, struct dt_text *out)
{
    dt_text_init(in);
    dt_text_init(out);
    for (size_t i = 0; i < sizeof exchange / sizeof *exchange; i++) {
        add_hex(exchange[i].from[0] == '>' ? in : out, exchange[i].hex);
    }
}

static void expect_answers(const struct session *s, const struct dt_text *out)
{
    assert_int_equal(out->size, s->out.text.size);
    assert_memory_equal(out->data, s->out.text.data, out->size);
}

static void captured_exchange(void **state)
{
    (void)state;
    struct dt_text in, out;
    struct session s;
    make_exchange(&in, &out);
    for (size_t step = 1; step <= in.size; step++) { /* pieces of every size */
        session_open(&s, NULL);
        for (size_t at = 0; at < in.size; at += step) {
            assert_int_equal(0, feed(&s, in.data + at, at + step < in.size ? step : in.size - at));
        }
        expect_answers(&s, &out);
        session_close(&s);
    }
    for (size_t cut = 0; cut <= in.size; cut++) { /* two pieces, cut anywhere */
        session_open(&s, NULL);
        assert_int_equal(0, feed(&s, in.data, cut));
        assert_int_equal(0, feed(&s, in.data + cut, in.size - cut));
        expect_answers(&s, &out);
        session_close(&s);
    }
    unsigned seed = 1;
    for (int round = 0; round < 200; round++) { /* random pieces */
        session_open(&s, NULL);
        for (size_t at = 0, step; at < in.size; at += step) {
            seed = seed * 1103515245u + 12345u;
            step = 1 + (seed >> 16) % 40;
            step = at + step < in.size ? step : in.size - at;
            assert_int_equal(0, feed(&s, in.data + at, step));
        }
        expect_answers(&s, &out);
        session_close(&s);
    }
    dt_text_clear(&in);
    dt_text_clear(&out);
}

static struct dt_bytes b(const char *s)
{
    return (struct dt_bytes){s, strlen(s)};
}

static bool same(struct dt_bytes x, struct dt_bytes y)
{
    return x.size == y.size && (x.size == 0 || memcmp(x.data, y.data, x.size) == 0);
}

static const char validate[] = "\x00\xce\xf7\x85\x3c";

/* What put_request writes, the parser reads: all members of all queries. */
static void every_query_round_trip(void **state)
{
    (void)state;
    struct dt_bytes keys[3] = {b("one"), b(""), b("three")}, values[3] = {b(""), b("zwei"), b("3")};
    for (int query = 1; query < DT_WIRE_QUERY_COUNT; query++) {
        struct dt_wire_request in = {.query = (enum dt_wire_query)query,
                                     .word = 0xdeadbeef,
                                     .number = 5,
                                     .key = b("key"),
                                     .value = b("value"),
                                     .desired = b("desired"),
                                     .count = 3,
                                     .keys = keys,
                                     .values = values};
        struct dt_wire_request out = {0};
        struct dt_wire_parser p;
        struct dt_text text;
        dt_text_init(&text);
        dt_text_add(&text, validate, 5);
        dt_wire_put_request(&text, &in);
        dt_wire_parser_init(&p, NULL);
        dt_wire_feed(&p, text.data, text.size);
        assert_int_equal(1, dt_wire_next(&p, &out, NULL));
        assert_int_equal(DT_WIRE_VALIDATE, out.query);
        assert_int_equal(1, dt_wire_next(&p, &out, NULL));
        assert_int_equal(query, out.query);
        assert_true(out.word == 0 || out.word == in.word);
        assert_true(out.number == 0 || out.number == in.number);
        assert_true(out.key.size == 0 || same(out.key, in.key));
        assert_true(out.value.size == 0 || same(out.value, in.value));
        assert_true(out.desired.size == 0 || same(out.desired, in.desired));
        assert_true(out.count == 0 || out.count == 3);
        for (size_t i = 0; i < out.count; i++) {
            assert_true(same(out.keys[i], keys[i]));
            assert_true(out.values == NULL || same(out.values[i], values[i]));
        }
        assert_int_equal(query == DT_WIRE_MULTI_SET, out.values != NULL);
        assert_int_equal(0, dt_wire_next(&p, &out, NULL));
        dt_wire_parser_clear(&p);
        dt_text_clear(&text);
    }
}

static void refuses(const struct dt_store_limits *limits, const char *hex, const char *part_of_text)
{
    struct dt_text in;
    dt_text_init(&in);
    add_hex(&in, hex);
    for (int bytewise = 0; bytewise < 2; bytewise++) {
        struct session s;
        session_open(&s, limits);
        int rc = 0;
        for (size_t at = 0; at < in.size && rc == 0; at += bytewise ? 1 : in.size) {
            rc = feed(&s, in.data + at, bytewise ? 1 : in.size);
        }
        assert_int_equal(-1, rc);
        if (strstr(s.err.text, part_of_text) == NULL) {
            fail_msg("'%s' does not say '%s'", s.err.text, part_of_text);
        }
        session_close(&s);
    }
    dt_text_clear(&in);
}

static void bad_input(void **state)
{
    (void)state;
    const struct dt_store_limits small = {.key_bytes = 4, .value_bytes = 8, .key_count = 3, .request_bytes = 64};
    refuses(NULL, "47 45 54 20 2f", "byte 0x47"); /* GET / */
    refuses(NULL, "0d 01 00 00 00", "byte 0x0d");
    refuses(NULL, "00 ce f7 85 3d", "magic");
    refuses(NULL, "00 ce f7 85 3c 00 ce f7 85 3c", "second VALIDATE");
    refuses(NULL, "00 ce f7 85 3c 13", "code 19");
    refuses(NULL, "00 ce f7 85 3c ff", "code 255");
    refuses(NULL, "00 ce f7 85 3c 03 01 20 00 00 00 00 00 00", "key of 8193");
    refuses(NULL, "00 ce f7 85 3c 03 ff ff ff ff ff ff ff ff", "key of");
    refuses(NULL, "00 ce f7 85 3c 03 00 00 00 00 00 00 00 80", "key of 9223372036854775808");
    refuses(NULL, "00 ce f7 85 3c 01 01 00 00 00 00 00 00 00 6b 01 00 80 00 00 00 00 00", "value of 8388609");
    refuses(NULL, "00 ce f7 85 3c 06 01 00 02 00 00 00 00 00", "131073 keys");
    refuses(NULL, "00 ce f7 85 3c 0b ff ff ff ff ff ff ff ff", "keys");
    refuses(&small, "00 ce f7 85 3c 03 05 00 00 00 00 00 00 00", "at most 4");
    refuses(&small,
            "00 ce f7 85 3c 0b 03 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 08 00 00 00 00 00 00 00 31 32 33 34 35 "
            "36 37 38"
            "00 00 00 00 00 00 00 00 08 00 00 00 00 00 00 00 31 32 33 34 35 36 37 38 00 00 00 00 00 00 00 00",
            "more than 64 bytes");
    refuses(NULL, "00 ce f7 85 3c 12 01 00 00 00 00 00 00 00 62 00 00 00 00 00 00 00 00", "BARRIER of 0 callers");
    refuses(NULL, "00 ce f7 85 3c 12 01 00 00 00 00 00 00 00 62 ff ff ff ff ff ff ff ff", "BARRIER of -1 callers");
    refuses(NULL, "00 ce f7 85 3c 12 01 00 00 00 00 00 00 00 62 00 00 00 80 00 00 00 00",
            "BARRIER of 2147483648 callers");
    /* add to what is no number */
    refuses(NULL,
            "00 ce f7 85 3c 01 01 00 00 00 00 00 00 00 6b 01 00 00 00 00 00 00 00 78 04 01 00 00 00 00 00 00 00 6b"
            "01 00 00 00 00 00 00 00",
            "not a number");
}

/* The limits are inclusive, and a request with as many keys as there may be is parsed piece by
 * piece in linear time. */
static void at_the_limits(void **state)
{
    (void)state;
    struct session s;
    struct dt_text in;
    char *long_key = malloc(8193), *long_value = calloc(1, 8 << 20);
    assert_true(long_key != NULL && long_value != NULL);
    memset(long_key, 'k', 8192);
    long_key[8192] = '\0';
    session_open(&s, NULL);
    dt_text_init(&in);
    dt_text_add(&in, validate, 5);
    dt_wire_put_request(
        &in, &(struct dt_wire_request){.query = DT_WIRE_SET, .key = b(long_key), .value = {long_value, 8 << 20}});
    dt_wire_put_request(&in, &(struct dt_wire_request){
                                 .query = DT_WIRE_QUEUE_PUSH, .key = b(long_key), .value = {long_value, 8 << 20}});
    struct dt_bytes *keys = malloc(131072 * sizeof *keys);
    assert_non_null(keys);
    for (size_t i = 0; i < 131072; i++) {
        keys[i] = b("k");
    }
    dt_wire_put_request(&in, &(struct dt_wire_request){.query = DT_WIRE_WAIT, .count = 131072, .keys = keys});
    dt_wire_put_request(&in, &(struct dt_wire_request){.query = DT_WIRE_SET, .key = b("k"), .value = b("v")});
    dt_wire_put_request(&in, &(struct dt_wire_request){.query = DT_WIRE_MULTI_GET, .count = 2, .keys = keys});
    for (size_t at = 0; at < in.size; at += 1440) {
        assert_int_equal(0, feed(&s, in.data + at, in.size - at < 1440 ? in.size - at : 1440));
    }
    assert_int_equal(6, s.requests);
    assert_int_equal(1 + 2 * 9, s.out.text.size);
    assert_int_equal(DT_WIRE_STOP_WAITING, s.out.text.data[0]);
    assert_true(dt_wire_parser_held(&s.parser) < 1 << 20); /* big buffers do not stay */
    session_close(&s);
    dt_text_clear(&in);
    free(keys);
    free(long_key);
    free(long_value);
}

static void lists_and_barriers(void **state)
{
    (void)state;
    struct session s, other;
    struct dt_text in;
    dt_text_init(&in);
    session_open(&s, NULL);
    session_open(&other, NULL);
    dt_store_table_close(other.table);
    other.table = s.table;
    assert_int_equal(0, feed(&s, validate, 5));
    assert_int_equal(0, feed(&other, validate, 5));
    /* SET /k, LIST_KEYS */
    add_hex(&in, "01 02 00 00 00 00 00 00 00 2f 6b 00 00 00 00 00 00 00 00 11");
    assert_int_equal(0, feed(&s, in.data, in.size));
    assert_int_equal(8 + 8 + 2, s.out.text.size);
    assert_int_equal(1, dt_wire_read_i64(s.out.text.data));
    assert_memory_equal("/k", s.out.text.data + 16, 2);
    dt_text_reset(&in);
    dt_text_reset(&s.out.text);
    add_hex(&in, "12 02 00 00 00 00 00 00 00 2f 62 02 00 00 00 00 00 00 00"); /* BARRIER /b of 2 */
    assert_int_equal(0, feed(&s, in.data, in.size));
    assert_int_equal(0, s.out.text.size);
    assert_int_equal(0, feed(&other, in.data, in.size));
    assert_int_equal(1, s.out.text.size);
    assert_int_equal(1, other.out.text.size);
    other.table = dt_store_table_open(NULL);
    session_close(&other);
    session_close(&s);
    dt_text_clear(&in);
}

/* ---- answers that share values with the table ---- */

enum { VALUES = 7 };

static void put(struct session *s, const char *key, const char *bytes, size_t size)
{
    assert_int_equal(0, dt_store_table_set(s->table, b(key), (struct dt_bytes){bytes, size}, NULL));
}

/* Takes what is to be sent in pieces of changing size, until there is no more. */
static void drain(struct session *s, struct dt_text *into, size_t turns)
{
    unsigned seed = 7;
    while (dt_wire_output_unsent(&s->out) > 0 && turns-- > 0) {
        struct iovec pieces[3];
        size_t size = 1 + (seed = seed * 1103515245u + 12345u) % 300000, sum = 0;
        int count = dt_wire_output_gather(&s->out, pieces, 3, size);
        assert_true(count > 0);
        for (int i = 0; i < count; i++) {
            dt_text_add(into, pieces[i].iov_base, pieces[i].iov_len);
            sum += pieces[i].iov_len;
        }
        assert_true(sum > 0 && sum <= size);
        dt_wire_output_sent(&s->out, s->table, sum);
    }
}

/* The bytes are those of an answer that was copied at once, whatever becomes of the keys while
 * it is sent, and nothing stays behind. */
static void answers_share_large_values(void **state)
{
    (void)state;
    static const char *const names[VALUES] = {"none", "empty", "small", "middle", "large", "huge", "grown"};
    static const size_t sizes[VALUES] = {0, 0, 10, 300, 70000, 8 << 20, 100000};
    struct dt_bytes keys[2 * VALUES];
    char *bytes = malloc(8 << 20);
    struct dt_text in;
    dt_text_init(&in);
    for (size_t i = 0; i < 8 << 20; i++) {
        bytes[i] = (char)(i * 7 + i / 256);
    }
    for (int i = 0; i < 2 * VALUES; i++) {
        keys[i] = b(names[i % VALUES]);
    }
    dt_wire_put_request(&in, &(struct dt_wire_request){.query = DT_WIRE_MULTI_GET, .count = 2 * VALUES, .keys = keys});
    dt_wire_put_request(&in, &(struct dt_wire_request){.query = DT_WIRE_GET, .key = b("huge")});
    dt_wire_put_request(&in, &(struct dt_wire_request){.query = DT_WIRE_KEY_COUNT});
    dt_wire_put_request(&in,
                        &(struct dt_wire_request){
                            .query = DT_WIRE_COMPARE_SET, .key = b("large"), .value = b("other"), .desired = b("x")});
    for (size_t turns = 0; turns < 40; turns += 1 + turns / 4) {
        struct session copied, s;
        struct dt_text got;
        struct session *both[] = {&copied, &s};
        dt_text_init(&got);
        for (int k = 0; k < 2; k++) {
            session_open(both[k], NULL);
            both[k]->out.copy_bytes = k == 0 ? SIZE_MAX : 0;
            assert_int_equal(0, feed(both[k], validate, 5));
            for (int i = 1; i < VALUES; i++) {
                put(both[k], names[i], bytes, sizes[i]);
            }
            /* its memory is twice as large now */
            assert_int_equal(0, dt_store_table_append(both[k]->table, b("grown"), b("!"), NULL));
            assert_int_equal(0, feed(both[k], in.data, in.size));
        }
        assert_true(dt_wire_output_held(&s.out) < 200000);
        assert_int_equal(dt_wire_output_unsent(&copied.out), dt_wire_output_unsent(&s.out));
        drain(&s, &got, turns);
        assert_int_equal(0, dt_store_table_left_bytes(s.table));
        put(&s, "huge", "", 0); /* smaller, the same size, larger, gone */
        put(&s, "large", bytes + 1, sizes[4]);
        assert_int_equal(0, dt_store_table_append(s.table, b("grown"), (struct dt_bytes){bytes, 99999}, NULL));
        assert_true(dt_store_table_left_bytes(s.table) <= 8 << 21);
        assert_true(dt_store_table_delete(s.table, b("middle")));
        assert_int_equal(0, dt_store_table_append(s.table, b("grown"), (struct dt_bytes){bytes, 1 << 20}, NULL));
        assert_true(dt_wire_output_left(&s.out) > 0 && dt_store_table_left_bytes(s.table) > 0);
        drain(&s, &got, SIZE_MAX);
        assert_int_equal(copied.out.text.size, got.size);
        assert_memory_equal(copied.out.text.data, got.data, got.size);
        assert_int_equal(0, dt_store_table_left_bytes(s.table));
        assert_true(dt_wire_output_held(&s.out) <= 4096);
        assert_int_equal(0, feed(&s, in.data, in.size)); /* one that is never sent */
        session_close(&copied);
        session_close(&s);
        dt_text_clear(&got);
    }
    dt_text_clear(&in);
    free(bytes);
}

/* A value may grow beyond any answer, and a short request may name many. */
static void answers_have_a_bound(void **state)
{
    (void)state;
    const struct dt_store_limits small = {.value_bytes = 1000, .request_bytes = 4096};
    char *bytes = calloc(1, 1000);
    struct dt_bytes keys[] = {b("a"), b("a"), b("a"), b("a"), b("a")};
    const struct dt_wire_request asked[] = {
        {.query = DT_WIRE_GET, .key = b("long")},
        {.query = DT_WIRE_COMPARE_SET, .key = b("long"), .value = b("x"), .desired = b("y")},
        {.query = DT_WIRE_MULTI_GET, .count = 5, .keys = keys}};
    for (size_t i = 0; i < 3; i++) {
        struct session s;
        struct dt_error err = {0};
        session_open(&s, &small);
        s.out.copy_bytes = i % 2 == 0 ? SIZE_MAX : 1;
        put(&s, "a", bytes, 1000);
        for (int k = 0; k < 5; k++) {
            assert_int_equal(0, dt_store_table_append(s.table, b("long"), (struct dt_bytes){bytes, 1000}, NULL));
        }
        dt_wire_put_u8(&s.out.text, 7); /* of the answer before */
        assert_int_equal(-1, dt_wire_answer(s.table, &s.waiter, &asked[i], &s.out, &err));
        assert_non_null(strstr(err.text, "with an answer of more than 4096 bytes"));
        assert_int_equal(1, dt_wire_output_unsent(&s.out));
        session_close(&s);
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captured_exchange),
        cmocka_unit_test(every_query_round_trip),
        cmocka_unit_test(bad_input),
        cmocka_unit_test(at_the_limits),
        cmocka_unit_test(lists_and_barriers),
        cmocka_unit_test(answers_share_large_values),
        cmocka_unit_test(answers_have_a_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
