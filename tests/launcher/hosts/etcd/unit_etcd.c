/* covers: launcher/hosts/etcd/etcd.c */
/* The client of etcd against a server that the test plays: what it asks, what it makes of
 * answers and errors, whom it asks next. */
#include "launcher/hosts/etcd/etcd.h"

#include "base/clock.h"
#include "base/file.h"

#include <dlfcn.h>
#include <netdb.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#if __has_include(<curl/curl.h>)
#include <curl/curl.h>

#define READ_ANSWER                                                                                                    \
    "{\"header\":{\"revision\":\"7\"},\"succeeded\":true,\"responses\":[{\"response_range\":{\"kvs\":[{\"key\":\"YQ==" \
    "\","                                                                                                              \
    "\"mod_revision\":\"5\",\"version\":\"1\",\"value\":\"AAEC/"                                                       \
    "w==\"}],\"count\":\"1\"}},{\"response_range\":{\"header\":{}}}]}"
#define OLD_TOKEN "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}"

/* A server that gives one answer after the other. */
enum { ANSWERS = 8 };
static struct {
    uv_loop_t loop;
    uv_tcp_t listener;
    struct {
        int status;
        const char *body; /* null: no answer */
    } answers[ANSWERS];
    int answer_count, asked;
    char requests[ANSWERS][4096];
    int port;
} server;

struct visitor {
    uv_tcp_t tcp;
    uv_write_t write;
    char in[8192], *out;
    size_t size;
};

static void on_gone(uv_handle_t *handle)
{
    free(((struct visitor *)handle->data)->out);
    free(handle->data);
}

static void give(uv_handle_t *handle, size_t size, uv_buf_t *buffer)
{
    struct visitor *v = handle->data;
    (void)size;
    *buffer = uv_buf_init(v->in + v->size, (unsigned)(sizeof v->in - 1 - v->size));
}

static void answer(struct visitor *v)
{
    if (server.asked < ANSWERS) {
        (void)snprintf(server.requests[server.asked], sizeof server.requests[0], "%s", v->in);
    }
    int i = server.asked++;
    assert_true(i < server.answer_count);
    v->size = 0;
    if (server.answers[i].body == NULL) {
        return;
    }
    free(v->out);
    v->out = dt_format("HTTP/1.1 %d x\r\nContent-Length: %zu\r\n\r\n%s", server.answers[i].status,
                       strlen(server.answers[i].body), server.answers[i].body);
    uv_buf_t buffer = uv_buf_init(v->out, (unsigned)strlen(v->out));
    (void)uv_write(&v->write, (uv_stream_t *)&v->tcp, &buffer, 1, NULL);
}

static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buffer)
{
    struct visitor *v = stream->data;
    (void)buffer;
    if (size < 0) {
        uv_close((uv_handle_t *)stream, on_gone);
        return;
    }
    v->size += (size_t)size;
    v->in[v->size] = '\0';
    const char *body = strstr(v->in, "\r\n\r\n"), *length = strstr(v->in, "Content-Length: ");
    if (body != NULL && length != NULL && strlen(body + 4) >= (size_t)atoi(length + 16)) {
        answer(v);
    }
}

static void on_visitor(uv_stream_t *listener, int status)
{
    struct visitor *v = dt_alloc(sizeof *v);
    assert_int_equal(status, 0);
    (void)uv_tcp_init(&server.loop, &v->tcp);
    v->tcp.data = v;
    assert_int_equal(uv_accept(listener, (uv_stream_t *)&v->tcp), 0);
    (void)uv_read_start((uv_stream_t *)&v->tcp, give, on_read);
}

static int set_up(void **state)
{
    struct sockaddr_in a;
    struct sockaddr_storage at;
    int size = sizeof at;
    (void)state;
    memset(&server, 0, sizeof server);
    (void)uv_loop_init(&server.loop);
    (void)uv_tcp_init(&server.loop, &server.listener);
    (void)uv_ip4_addr("127.0.0.1", 0, &a);
    assert_int_equal(uv_tcp_bind(&server.listener, (struct sockaddr *)&a, 0), 0);
    assert_int_equal(uv_listen((uv_stream_t *)&server.listener, 8, on_visitor), 0);
    (void)uv_tcp_getsockname(&server.listener, (struct sockaddr *)&at, &size);
    server.port = ntohs(((struct sockaddr_in *)&at)->sin_port);
    return 0;
}

static void close_any(uv_handle_t *handle, void *user)
{
    (void)user;
    if (!uv_is_closing(handle)) {
        uv_close(handle, handle == (uv_handle_t *)&server.listener ? NULL : on_gone);
    }
}

static void tear_down(struct etcd *e)
{
    etcd_close(e);
    (void)uv_run(&server.loop, UV_RUN_NOWAIT); /* its own handles first */
    uv_walk(&server.loop, close_any, NULL);
    (void)uv_run(&server.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&server.loop), 0);
}

static void will_answer(int status, const char *body)
{
    server.answers[server.answer_count].status = status;
    server.answers[server.answer_count++].body = body;
}

static struct etcd *open_at(const struct etcd_options *options)
{
    struct etcd_options o = *options;
    struct dt_error err;
    struct etcd *e;
    if (o.endpoint_count == 0) {
        o.endpoint_count = 1;
        o.endpoints[0].host = "127.0.0.1";
        o.endpoints[0].port = server.port;
    }
    if (o.timeout_s <= 0) {
        o.timeout_s = 60;
    }
    if (etcd_open(&e, &server.loop, &o, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return e;
}

static struct {
    bool done, failed;
    struct dt_error err;
    struct etcd_result result; /* without the bytes */
    char bytes[64];
    size_t size;
} got;

static void on_done(void *user, const struct etcd_result *result, const struct dt_error *err)
{
    (void)user;
    assert_false(got.done);
    got.done = true;
    got.failed = result == NULL;
    if (result != NULL) {
        got.result = *result;
        got.size = result->values[0].bytes.size;
        assert_true(got.size <= sizeof got.bytes);
        memcpy(got.bytes, dt_text_str(&result->values[0].bytes), got.size);
    } else {
        got.err = *err;
    }
}

static void wait_for(struct etcd *e)
{
    while (etcd_is_busy(e)) {
        (void)uv_run(&server.loop, UV_RUN_ONCE);
    }
    assert_true(got.done);
}

static void read_keys(struct etcd *e)
{
    memset(&got, 0, sizeof got);
    etcd_txn(e, &(struct etcd_txn){.key_count = 2, .keys = {{.key = "a"}, {.key = "b"}}}, on_done, NULL);
    wait_for(e);
}

static void reads(void **state)
{
    (void)state;
    struct etcd *e = open_at(&(struct etcd_options){0});
    will_answer(200, READ_ANSWER);
    read_keys(e);
    assert_false(got.failed);
    assert_true(got.result.succeeded && got.result.values[0].found && !got.result.values[1].found);
    assert_int_equal(got.result.revision, 7);
    assert_int_equal(got.result.values[0].revision, 5);
    assert_int_equal(got.size, 4);
    assert_memory_equal(got.bytes, "\0\1\2\xff", 4);
    assert_non_null(strstr(server.requests[0], "POST /v3/kv/txn "));
    assert_non_null(
        strstr(server.requests[0],
               "\"success\":[{\"requestRange\":{\"key\":\"YQ==\"}},{\"requestRange\":{\"key\":\"Yg==\"}}]"));
    tear_down(e);
}

static void compares_and_puts(void **state)
{
    (void)state;
    struct etcd *e = open_at(&(struct etcd_options){0});
    will_answer(200, "{\"header\":{\"revision\":\"9\"},\"succeeded\":true,\"responses\":[{\"response_put\":{}},{"
                     "\"response_put\":{}}]}");
    will_answer(200, "{\"header\":{\"revision\":\"12\"},\"responses\":[{\"response_range\":{\"kvs\":[{\"mod_revision\":"
                     "\"11\"}]}},{\"response_range\":{}}]}");
    for (int i = 0; i < 2; i++) {
        memset(&got, 0, sizeof got);
        etcd_txn(e,
                 &(struct etcd_txn){.key_count = 2,
                                    .keys = {{.key = "a", .compare = true, .revision = 5, .put = "xyz", .put_bytes = 3},
                                             {.key = "b", .compare = true, .put = "", .put_bytes = 0}},
                                    .lease = 1234567890123456789},
                 on_done, NULL);
        wait_for(e);
        assert_false(got.failed);
        assert_int_equal(got.result.succeeded, i == 0);
        assert_int_equal(got.result.revision, i == 0 ? 9 : 12);
    }
    assert_int_equal(got.result.values[0].revision, 11);
    assert_true(got.result.values[0].found && got.size == 0);
    assert_non_null(
        strstr(server.requests[0], "{\"target\":\"MOD\",\"result\":\"EQUAL\",\"modRevision\":\"5\",\"key\":\"YQ==\"}"));
    assert_non_null(strstr(server.requests[0], "\"modRevision\":\"0\",\"key\":\"Yg==\"}"));
    assert_non_null(strstr(server.requests[0],
                           "{\"requestPut\":{\"key\":\"YQ==\",\"value\":\"eHl6\",\"lease\":\"1234567890123456789\"}}"));
    assert_non_null(strstr(server.requests[0], "\"failure\":[{\"requestRange\":{\"key\":\"YQ==\"}}"));
    tear_down(e);
}

static void grants(void **state)
{
    (void)state;
    struct etcd *e = open_at(&(struct etcd_options){0});
    will_answer(200, "{\"header\":{},\"ID\":\"7587862072907233302\",\"TTL\":\"3\"}");
    memset(&got, 0, sizeof got);
    etcd_grant(e, 2.2, on_done, NULL);
    wait_for(e);
    assert_false(got.failed);
    assert_true(got.result.lease == 7587862072907233302);
    assert_non_null(strstr(server.requests[0], "{\"TTL\":3}"));
    tear_down(e);
}

static void errors_carry_the_server_s_words(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *body;
        enum dt_status expected;
        const char *text;
    } rows[] = {
        {400, "{\"error\":\"etcdserver: user name is empty\",\"code\":3}", DT_INVALID,
         "user name is empty; name and password come from --rdzv_conf=user_file=FILE"},
        {403, "{\"error\":\"etcdserver: permission denied\",\"code\":7}", DT_INVALID, "permission denied"},
        {429, "{\"error\":\"etcdserver: mvcc: database space exceeded\",\"code\":8}", DT_IO,
         "database space exceeded; compact"},
        {503, "{\"error\":\"etcdserver: request timed out\",\"code\":14}", DT_IO, "request timed out"},
        {404, "404 page not found\n", DT_INVALID,
         "HTTP status 404: 404 page not found; nothing serves etcd's version 3"},
        {502, "<html>bad gateway", DT_IO, "HTTP status 502: <html>bad gateway"},
        {502,
         "\x1b[2J\x9b"
         "31mbad",
         DT_IO, "HTTP status 502: \\x1b[2J\\x9b31mbad"}, /* it is read on a terminal */
        {503, "{\"error\":\"\\u001b[2Jbad\",\"code\":14}", DT_IO, ": \\x1b[2Jbad"},
        {200, "\x1b[2J", DT_INVALID, "none of etcd's: \\x1b[2J"},
        {200, "hello", DT_INVALID, "none of etcd's"},
        {200, "{\"header\":{\"revision\":\"7\"},\"succeeded\":true}", DT_INVALID, "none of etcd's"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct etcd *e = open_at(&(struct etcd_options){0});
        will_answer(rows[i].status, rows[i].body);
        read_keys(e);
        assert_true(got.failed);
        if (got.err.status != rows[i].expected || strstr(got.err.text, rows[i].text) == NULL ||
            strstr(got.err.text, "etcd 127.0.0.1 port ") == NULL) {
            fail_msg("row %zu: status %d: %s", i, (int)got.err.status, got.err.text);
        }
        tear_down(e);
        (void)set_up(NULL);
    }
    tear_down(open_at(&(struct etcd_options){0}));
}

static void an_answer_without_end_is_cut(void **state)
{
    (void)state;
    struct etcd *e = open_at(&(struct etcd_options){0});
    char *large = dt_alloc(2 * ETCD_ANSWER_BYTES);
    memset(large, ' ', 2 * ETCD_ANSWER_BYTES - 1);
    will_answer(200, large);
    read_keys(e);
    assert_true(got.failed);
    assert_int_equal(got.err.status, DT_IO);
    tear_down(e);
    free(large);
}

static void goes_to_the_next_endpoint(void **state)
{
    (void)state;
    struct etcd *e = open_at(
        &(struct etcd_options){.endpoint_count = 2, .endpoints = {{"127.0.0.1", 1}, {"127.0.0.1", server.port}}});
    will_answer(200, READ_ANSWER);
    read_keys(e);
    assert_true(got.failed);
    assert_int_equal(got.err.status, DT_IO);
    assert_non_null(strstr(got.err.text, "etcd 127.0.0.1 port 1: "));
    read_keys(e);
    assert_false(got.failed);
    tear_down(e);
}

static void silence_has_an_end(void **state)
{
    (void)state;
    struct etcd *e = open_at(&(struct etcd_options){.timeout_s = 0.2});
    will_answer(0, NULL);
    read_keys(e);
    assert_true(got.failed);
    assert_int_equal(got.err.status, DT_TIMEOUT);
    tear_down(e);
}

/* In libcurl's place of the system's: a name server that is silent about one name until it is
 * let go, or for 10 s. */
#define SILENT_NAME "silent.invalid"
static atomic_bool name_asked, name_let_go, name_answered;

int getaddrinfo(const char *restrict host, const char *restrict service, const struct addrinfo *restrict hints,
                struct addrinfo **restrict found)
{
    if (host == NULL || strcmp(host, SILENT_NAME) != 0) {
        int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
        *(void **)&next = dlsym(RTLD_NEXT, "getaddrinfo");
        return next(host, service, hints, found);
    }
    name_asked = true;
    for (double end_s = dt_now_s() + 10; !name_let_go && dt_now_s() < end_s;) {
        dt_sleep_s(0.01);
    }
    name_answered = true;
    return EAI_NONAME;
}

/* The loop has more to do than to wait for it: agents that say nothing for long count as dead. */
static void a_silent_name_server_holds_nobody_up(void **state)
{
    (void)state;
    if (LIBCURL_VERSION_NUM < 0x075700) {
        print_message("skip: libcurl before 7.87 waits for it\n");
        skip();
    }
    struct etcd *e = open_at(&(struct etcd_options){
        .endpoint_count = 2, .endpoints = {{SILENT_NAME, server.port}, {"127.0.0.1", server.port}}, .timeout_s = 0.2});
    will_answer(200, READ_ANSWER);
    read_keys(e);
    assert_true(name_asked);
    assert_false(name_answered);
    assert_true(got.failed);
    assert_int_equal(got.err.status, DT_TIMEOUT);
    read_keys(e);
    assert_false(got.failed);
    tear_down(e);
    assert_false(name_answered);
    (void)set_up(NULL);
    name_asked = false;
    e = open_at(&(struct etcd_options){.endpoint_count = 1, .endpoints = {{SILENT_NAME, server.port}}});
    memset(&got, 0, sizeof got);
    etcd_grant(e, 1, on_done, NULL);
    while (!name_asked) {
        (void)uv_run(&server.loop, UV_RUN_NOWAIT);
    }
    tear_down(e);
    assert_false(name_answered || got.done);
    name_let_go = true;
    while (!name_answered) {
        dt_sleep_s(0.01);
    }
}

static void closes_amid_a_call(void **state)
{
    (void)state;
    struct etcd *e = open_at(&(struct etcd_options){0});
    will_answer(0, NULL);
    memset(&got, 0, sizeof got);
    etcd_grant(e, 1, on_done, NULL);
    while (server.asked == 0) {
        (void)uv_run(&server.loop, UV_RUN_ONCE);
    }
    tear_down(e);
    assert_false(got.done);
}

static void proves_who_it_is_again_when_its_token_is_old(void **state)
{
    (void)state;
    char path[] = "/tmp/test-etcd-XXXXXX";
    struct dt_error err;
    struct etcd *e;
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd,
                                 "\xef\xbb\xbf"
                                 "ann:se:cret\n",
                                 15) == 15);
    (void)close(fd);
    e = open_at(&(struct etcd_options){.user_file = path});
    will_answer(200, "{\"token\":\"first\"}");
    will_answer(200, READ_ANSWER);
    will_answer(401, OLD_TOKEN);
    will_answer(200, "{\"token\":\"second\"}");
    will_answer(200, READ_ANSWER);
    will_answer(401, OLD_TOKEN);
    will_answer(400, "{\"error\":\"etcdserver: authentication failed, invalid user ID or password\",\"code\":3}");
    read_keys(e);
    assert_false(got.failed);
    assert_non_null(strstr(server.requests[0], "POST /v3/auth/authenticate "));
    assert_non_null(strstr(server.requests[0], "{\"name\":\"ann\",\"password\":\"se:cret\"}"));
    assert_non_null(strstr(server.requests[1], "Authorization: first\r\n"));
    read_keys(e);
    assert_false(got.failed);
    assert_non_null(strstr(server.requests[4], "Authorization: second\r\n"));
    read_keys(e);
    assert_true(got.failed);
    assert_int_equal(got.err.status, DT_INVALID);
    assert_non_null(strstr(got.err.text, "invalid user ID or password"));
    tear_down(e);
    (void)set_up(NULL);
    assert_int_equal(chmod(path, 0644), 0);
    struct etcd_options o = {.endpoint_count = 1, .endpoints = {{"127.0.0.1", 1}}, .user_file = path};
    assert_int_equal(etcd_open(&e, &server.loop, &o, &err), -1);
    assert_non_null(strstr(err.text, "chmod 600"));
    (void)unlink(path);
    tear_down(open_at(&(struct etcd_options){0}));
}

static struct etcd *open_as_ann(void)
{
    char path[] = "/tmp/test-etcd-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "ann:secret\n", 11) == 11);
    (void)close(fd);
    struct etcd *e = open_at(&(struct etcd_options){.user_file = path});
    (void)unlink(path);
    return e;
}

/* It becomes a line of our requests. */
static void a_token_is_one_line(void **state)
{
    (void)state;
    struct etcd *e = open_as_ann();
    will_answer(200, "{\"token\":\"first\\r\\nX-Other: line\"}");
    read_keys(e);
    assert_true(got.failed);
    assert_non_null(strstr(got.err.text, "no token in its answer"));
    tear_down(e);
}

/* Each change of a user or a role makes a signed token (--auth-token=jwt) too old. */
static void and_when_its_users_were_changed(void **state)
{
    (void)state;
    struct etcd *e = open_as_ann();
    will_answer(200, "{\"token\":\"first\"}");
    will_answer(400, "{\"error\":\"etcdserver: revision of auth store is old\",\"code\":3}");
    will_answer(200, "{\"token\":\"second\"}");
    will_answer(200, READ_ANSWER);
    read_keys(e);
    assert_false(got.failed);
    assert_non_null(strstr(server.requests[3], "Authorization: second\r\n"));
    tear_down(e);
}

/* Members that do not agree about tokens are no reason to ask without end. */
static void a_token_that_is_never_taken_is_an_error(void **state)
{
    (void)state;
    struct etcd *e = open_as_ann();
    for (int i = 0; i < 2; i++) {
        will_answer(200, "{\"token\":\"new\"}");
        will_answer(401, OLD_TOKEN);
    }
    read_keys(e);
    assert_true(got.failed);
    assert_int_equal(got.err.status, DT_INVALID);
    assert_non_null(strstr(got.err.text, "invalid auth token"));
    will_answer(401, OLD_TOKEN);
    will_answer(200, "{\"token\":\"newer\"}");
    will_answer(200, READ_ANSWER);
    read_keys(e); /* and the next call begins anew */
    assert_false(got.failed);
    tear_down(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(reads, set_up),
        cmocka_unit_test_setup(compares_and_puts, set_up),
        cmocka_unit_test_setup(grants, set_up),
        cmocka_unit_test_setup(errors_carry_the_server_s_words, set_up),
        cmocka_unit_test_setup(an_answer_without_end_is_cut, set_up),
        cmocka_unit_test_setup(goes_to_the_next_endpoint, set_up),
        cmocka_unit_test_setup(silence_has_an_end, set_up),
        cmocka_unit_test_setup(a_silent_name_server_holds_nobody_up, set_up),
        cmocka_unit_test_setup(closes_amid_a_call, set_up),
        cmocka_unit_test_setup(proves_who_it_is_again_when_its_token_is_old, set_up),
        cmocka_unit_test_setup(a_token_is_one_line, set_up),
        cmocka_unit_test_setup(and_when_its_users_were_changed, set_up),
        cmocka_unit_test_setup(a_token_that_is_never_taken_is_an_error, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else
static void needs_libcurl(void **state)
{
    (void)state;
    print_message("skip: built without libcurl\n");
    skip();
}
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(needs_libcurl)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
