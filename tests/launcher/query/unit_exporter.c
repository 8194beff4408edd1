/* covers: launcher/query/exporter.c */
/* The metrics endpoint over real sockets: requests in pieces and of other kinds, readers that
 * are slow, many readers, and the text's spelling. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "collectives/net.h"
#include "launcher/query/exporter.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LONG_TEXT = 8 << 20, SLOW = 200, READERS = 1000 };
#define PATIENCE_S 60.0

static struct test {
    uv_loop_t loop;
    struct exporter *exporter;
    size_t text_bytes; /* of each answer */
    int described;
    int port;
} t;

static void describe(void *user, struct dt_text *out)
{
    struct test *x = user;
    x->described++;
    for (size_t i = 0; i < x->text_bytes; i += 16) {
        dt_text_puts(out, "0123456789abcde\n");
    }
}

static int open_at(int port, int lo, int hi, struct dt_error *err)
{
    struct exporter_options o = {
        .host = "127.0.0.1", .port = port, .range = {lo, hi, 0}, .describe = describe, .user = &t};
    return exporter_open(&t.exporter, &t.loop, &o, err);
}

static int set_up(void **state)
{
    struct dt_error err;
    (void)state;
    memset(&t, 0, sizeof t);
    t.text_bytes = 16;
    if (uv_loop_init(&t.loop) != 0 || open_at(0, 0, 0, &err) != 0) {
        return -1;
    }
    return sscanf(exporter_url(t.exporter), "http://127.0.0.1:%d/metrics", &t.port) == 1 ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    exporter_close(t.exporter);
    return uv_run(&t.loop, UV_RUN_DEFAULT) == 0 && uv_loop_close(&t.loop) == 0 ? 0 : -1;
}

static int connect_now(void)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)t.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    /* the kernel's queue takes it */
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void turn(int times)
{
    for (int i = 0; i < times; i++) {
        (void)uv_run(&t.loop, UV_RUN_NOWAIT);
    }
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Turns the loop until the other side has closed. *reset: it did so with a reset. */
static size_t read_all(int fd, char *out, size_t out_bytes, bool *reset)
{
    double until_s = dt_now_s() + PATIENCE_S;
    size_t size = 0;
    *reset = false;
    for (;;) {
        char sink[65536];
        bool room = size + 1 < out_bytes;
        ssize_t n = recv(fd, room ? out + size : sink, room ? out_bytes - 1 - size : sizeof sink, 0);
        if (n > 0) {
            size += (size_t)n;
            continue;
        }
        *reset = n < 0 && errno == ECONNRESET;
        if (n == 0 || *reset) {
            break;
        }
        assert_true(dt_now_s() < until_s);
        turn(1);
    }
    out[size < out_bytes ? size : out_bytes - 1] = '\0';
    return size;
}

static const char *ask(const char *request)
{
    static char answer[4096];
    bool reset;
    int fd = connect_now();
    say(fd, request);
    (void)read_all(fd, answer, sizeof answer, &reset);
    (void)close(fd);
    return answer;
}

static const char ok[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: "
                         "16\r\nConnection: close\r\n\r\n";

static void requests(void **state)
{
    char whole[256];
    (void)state;
    (void)snprintf(whole, sizeof whole, "%s0123456789abcde\n", ok);
    assert_string_equal(ask("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"), whole);
    assert_string_equal(ask("GET /metrics HTTP/1.0\n\n"), whole);
    /* the second one is not read */
    assert_string_equal(ask("GET /metrics?name=x HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n"), whole);
    assert_string_equal(ask("HEAD /metrics HTTP/1.1\r\n\r\n"), ok);
    assert_int_equal(t.described, 1); /* all within a quarter of a second, HEAD, too */
    assert_non_null(
        strstr(ask("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), "HTTP/1.1 405 Method Not Allowed\r\n"));
    assert_non_null(strstr(ask("POST /metrics HTTP/1.1\r\n\r\n"), "\r\nAllow: GET, HEAD\r\n"));
    assert_non_null(strstr(ask("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found\r\n"));
    assert_string_equal(ask("\r\n\r\nGET http://a.b:1/metrics HTTP/1.1\r\n\r\n"), whole);
    assert_non_null(strstr(ask("GET http://a.b HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found\r\n"));
    assert_null(strstr(ask("HEAD /x HTTP/1.1\r\n\r\n"), "there is"));
    assert_non_null(strstr(ask("GET /metricsx HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found\r\n"));
    assert_non_null(strstr(ask("GET /metrics/ HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found\r\n"));
}

static int lines;
static void count_line(const char *line, size_t size)
{
    (void)size;
    lines += strstr(line, "metrics: connection from 127.0.0.1:") != NULL;
}

static void what_is_no_request_is_dropped(void **state)
{
    static const char *const garbage[] = {"\x16\x03\x01\x02",
                                          "SSH-2.0-x\r\n",
                                          "GET\r\n\r\n",
                                          "GET /metrics\r\n\r\n",
                                          "GET /metrics HTTP/2\r\n\r\n",
                                          "get /metrics HTTP/1.1\r\n\r\n"};
    (void)state;
    dt_log_to(count_line);
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        assert_string_equal(ask(garbage[i]), "");
    }
    char *longest = dt_alloc(20001);
    memset(longest, 'A', 20000);
    memcpy(longest, "GET /", 5);
    assert_string_equal(ask(longest), "");
    free(longest);
    int fd = connect_now(); /* says nothing and goes */
    turn(5);
    (void)close(fd);
    turn(5);
    assert_int_equal(t.described, 0);
    assert_int_equal(lines, 1); /* of each host one a minute */
    dt_log_to(NULL);
}

static void a_request_may_come_in_pieces(void **state)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    char answer[512];
    bool reset;
    (void)state;
    int fd = connect_now();
    for (size_t i = 0; request[i] != '\0'; i++) {
        assert_int_equal(send(fd, &request[i], 1, MSG_NOSIGNAL), 1);
        turn(2);
    }
    assert_int_equal(shutdown(fd, SHUT_WR), 0); /* has nothing more to say, and still reads */
    assert_int_equal(read_all(fd, answer, sizeof answer, &reset), sizeof ok - 1 + 16);
    assert_false(reset);
    (void)close(fd);
}

/* What lies unread in the socket when it is closed would take the answer back. */
static void an_answer_arrives_though_more_was_sent(void **state)
{
    char *body = dt_alloc(300001), answer[512];
    bool reset;
    (void)state;
    memset(body, 'x', 300000);
    int fd = connect_now();
    say(fd, "GET /metrics HTTP/1.1\r\n\r\n");
    (void)send(fd, body, 300000, MSG_NOSIGNAL);
    assert_int_equal(read_all(fd, answer, sizeof answer, &reset), sizeof ok - 1 + 16);
    assert_false(reset);
    (void)close(fd);
    free(body);
}

/* A thousand connect before any is looked at, most ask and never read their long answers: who
 * asks behind them is answered. */
static void slow_readers_hold_up_nobody(void **state)
{
    static char answer[4096];
    int slow[SLOW];
    bool reset;
    (void)state;
    t.text_bytes = LONG_TEXT;
    for (int i = 0; i < SLOW; i++) {
        slow[i] = connect_now();
        if (i % 2 == 0) {
            say(slow[i], "GET /metrics HTTP/1.1\r\n\r\n");
        }
    }
    double from_s = dt_now_s();
    int fd = connect_now();
    say(fd, "GET /metrics HTTP/1.1\r\n\r\n");
    size_t size = read_all(fd, answer, sizeof answer, &reset);
    assert_true(size > LONG_TEXT);
    assert_true(dt_now_s() - from_s < PATIENCE_S);
    assert_true(t.described < 20); /* the same text for many: not 8 MiB for each */
    (void)close(fd);
    for (int i = 0; i < SLOW; i++) {
        (void)close(slow[i]);
    }
}

static void a_thousand_readers(void **state)
{
    static char answer[512];
    static int fds[READERS];
    bool reset;
    (void)state;
    for (int i = 0; i < READERS; i++) {
        fds[i] = connect_now();
        say(fds[i], "GET /metrics HTTP/1.1\r\n\r\n");
    }
    for (int i = 0; i < READERS; i++) {
        assert_int_equal(read_all(fds[i], answer, sizeof answer, &reset), sizeof ok - 1 + 16);
        (void)close(fds[i]);
    }
    assert_true(t.described < READERS / 2);
}

/* However many others come and go meanwhile. */
static void one_that_sends_nothing_is_dropped(void **state)
{
    char byte;
    (void)state;
    int fd = connect_now();
    double from_s = dt_now_s();
    while (recv(fd, &byte, 1, 0) < 0 && errno == EAGAIN) {
        assert_true(dt_now_s() - from_s < PATIENCE_S);
        (void)ask("GET /x HTTP/1.1\r\n\r\n");
        dt_sleep_s(0.02);
    }
    assert_true(dt_now_s() - from_s > 4);
    (void)close(fd);
}

static void ports(void **state)
{
    struct dt_error err;
    char owner[64];
    struct exporter *first = t.exporter;
    (void)state;
    (void)snprintf(owner, sizeof owner, "already in use by pid %d (", (int)getpid());
    assert_int_equal(open_at(t.port, 0, 0, &err), -1);
    assert_non_null(strstr(err.text, owner));
    assert_int_equal(open_at(0, t.port, t.port, &err), -1);
    assert_non_null(strstr(err.text, "no free port in "));
    assert_ptr_equal(t.exporter, first);
    assert_int_equal(open_at(0, t.port, t.port + 50 < 65535 ? t.port + 50 : 65535, &err), 0);
    exporter_close(t.exporter);
    t.exporter = first;
}

static void spelling(void **state)
{
    struct dt_text text;
    (void)state;
    dt_text_init(&text);
    exporter_label(&text, "a\"b\\c\nd\te\x80\xc3\xb6\xe2\x80\xae"); /* no escapes but these three */
    assert_string_equal(dt_text_str(&text), "\"a\\\"b\\\\c\\nd?e?\xc3\xb6???\"");
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, " 0\n"},
                 {-1, " -1\n"},
                 {0.1, " 0.1\n"},
                 {1e9 + 1, " 1000000001\n"},
                 {9007199254740991.0, " 9007199254740991\n"},
                 {1.0 / 3, " 0.33333333333333331\n"},
                 {NAN, " NaN\n"},
                 {INFINITY, " +Inf\n"},
                 {-INFINITY, " -Inf\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_text_reset(&text);
        exporter_value(&text, cases[i].value);
        assert_string_equal(dt_text_str(&text), cases[i].text);
    }
    dt_text_reset(&text);
    exporter_head(&text, "a_total", "counter", "What it is.");
    assert_string_equal(dt_text_str(&text), "# HELP a_total What it is.\n# TYPE a_total counter\n");
    dt_text_clear(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(requests, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_no_request_is_dropped, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_request_may_come_in_pieces, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_answer_arrives_though_more_was_sent, set_up, tear_down),
        cmocka_unit_test_setup_teardown(slow_readers_hold_up_nobody, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_thousand_readers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_that_sends_nothing_is_dropped, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ports, set_up, tear_down),
        cmocka_unit_test(spelling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
