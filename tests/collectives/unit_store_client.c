/* covers: collectives/store.c launcher/store/store_server.c */
/* The store client against the server on a loop in a thread, and against a table of this
 * process: the same calls, the same results. Waits, deadlines, orders, resets, bad and silent
 * peers, connections handed over, many clients. */
#include "base/clock.h"
#include "base/log.h"
#include "collectives/net.h"
#include "collectives/store.h"
#include "collectives/wire.h"
#include "launcher/store/store_server.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <netinet/in.h>

#include <cmocka.h>

static const double long_s = 60; /* for what must happen; never used up when all is well */

/* ---- a server on a loop in a thread ---- */

enum command { COMMAND_NONE, COMMAND_RESET, COMMAND_STATS, COMMAND_CLOSE };

struct host {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t done;
    uv_loop_t loop;
    uv_async_t wake;
    struct store_server *server;
    struct store_server_options options;
    enum command command;
    struct dt_text stats;
    int port;
    bool closed, took;
};

static bool on_take(void *user, int fd, const void *first, size_t size, const char *from)
{
    struct host *h = user;
    struct dt_net net = {.fd = fd};
    bool mine = size == 5 && memcmp(first, "hello", 5) == 0 && strchr(from, ':') != NULL;
    h->took = mine;
    if (mine) {
        (void)dt_net_write(&net, "welcome", 7, dt_now_s() + long_s, NULL);
        (void)close(fd);
    }
    return mine;
}

static void on_closed(void *user)
{
    ((struct host *)user)->closed = true;
}

static void on_wake(uv_async_t *async)
{
    struct host *h = async->data;
    (void)pthread_mutex_lock(&h->lock);
    switch (h->command) {
    case COMMAND_RESET:
        store_server_reset(h->server);
        break;
    case COMMAND_STATS:
        dt_text_reset(&h->stats);
        store_server_stats(h->server, &h->stats);
        break;
    case COMMAND_CLOSE:
        store_server_close(h->server, on_closed, h);
        uv_close((uv_handle_t *)&h->wake, NULL);
        break;
    case COMMAND_NONE:
        break;
    }
    h->command = COMMAND_NONE;
    (void)pthread_cond_broadcast(&h->done);
    (void)pthread_mutex_unlock(&h->lock);
}

static void *run_loop(void *arg)
{
    struct host *h = arg;
    (void)uv_run(&h->loop, UV_RUN_DEFAULT);
    return NULL;
}

static void host_open(struct host *h, struct store_server_options options)
{
    memset(h, 0, sizeof *h);
    h->options = options;
    h->options.host = "127.0.0.1";
    h->options.take = on_take;
    h->options.user = h;
    struct dt_error err = {0};
    (void)pthread_mutex_init(&h->lock, NULL);
    (void)pthread_cond_init(&h->done, NULL);
    assert_int_equal(0, uv_loop_init(&h->loop));
    assert_int_equal(0, uv_async_init(&h->loop, &h->wake, on_wake));
    h->wake.data = h;
    if (store_server_open(&h->server, &h->loop, &h->options, &err) != 0) {
        fail_msg("%s", err.text);
    }
    h->port = store_server_port(h->server);
    assert_int_equal(0, pthread_create(&h->thread, NULL, run_loop, h));
}

static void host_do(struct host *h, enum command command)
{
    (void)pthread_mutex_lock(&h->lock);
    h->command = command;
    (void)uv_async_send(&h->wake);
    while (h->command != COMMAND_NONE) {
        (void)pthread_cond_wait(&h->done, &h->lock);
    }
    (void)pthread_mutex_unlock(&h->lock);
}

static void host_close(struct host *h)
{
    host_do(h, COMMAND_CLOSE);
    (void)pthread_join(h->thread, NULL);
    assert_true(h->closed);
    assert_int_equal(0, uv_loop_close(&h->loop));
    dt_text_clear(&h->stats);
}

static struct dt_store *connect_to(const struct host *h, struct dt_page *page)
{
    struct dt_store *s = NULL;
    struct dt_error err = {0};
    if (dt_store_open(&s, "127.0.0.1", h->port, long_s, page, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return s;
}

/* ---- the same calls over a socket and on a table ---- */

static void expect_get(struct dt_store *s, const char *key, const char *value)
{
    struct dt_text out;
    struct dt_error err = {0};
    dt_text_init(&out);
    dt_text_puts(&out, "old");
    if (dt_store_get(s, key, &out, long_s, &err) != 0) {
        fail_msg("%s", err.text);
    }
    assert_string_equal(value, dt_text_str(&out));
    dt_text_clear(&out);
}

static void every_call(struct dt_store *s)
{
    struct dt_error err = {0};
    struct dt_text out[2];
    int64_t number = 0;
    bool yes = false;
    dt_text_init(&out[0]);
    dt_text_init(&out[1]);
    assert_int_equal(0, dt_store_ping(s, &err));
    assert_int_equal(0, dt_store_set(s, "k", "value", 5, &err));
    expect_get(s, "k", "value");
    assert_int_equal(0, dt_store_set(s, "empty", NULL, 0, &err));
    expect_get(s, "empty", "");
    assert_int_equal(0, dt_store_append(s, "k", "+", 1, &err));
    expect_get(s, "k", "value+");
    assert_int_equal(0, dt_store_add(s, "n", 40, &number, &err));
    assert_int_equal(0, dt_store_add(s, "n", -42, &number, &err));
    assert_int_equal(-2, number);
    expect_get(s, "n", "-2");
    const char *keys[] = {"k", "n"}, *missing[] = {"k", "absent"};
    assert_int_equal(0, dt_store_check(s, keys, 2, &yes, &err));
    assert_true(yes);
    assert_int_equal(0, dt_store_check(s, missing, 2, &yes, &err));
    assert_false(yes);
    assert_int_equal(0, dt_store_wait(s, keys, 2, long_s, &err));
    assert_int_equal(0, dt_store_multi_get(s, keys, 2, out, long_s, &err));
    assert_string_equal("value+", dt_text_str(&out[0]));
    assert_string_equal("-2", dt_text_str(&out[1]));
    const char *names[] = {"m1", "m2"};
    const void *values[] = {"x", "yy"};
    const size_t sizes[] = {1, 2};
    assert_int_equal(0, dt_store_multi_set(s, names, values, sizes, 2, &err));
    expect_get(s, "m2", "yy");
    assert_int_equal(0, dt_store_compare_set(s, "c", NULL, 0, "v1", 2, &out[0], &err));
    assert_string_equal("v1", dt_text_str(&out[0]));
    assert_int_equal(0, dt_store_compare_set(s, "c", "bad", 3, "v2", 2, &out[0], &err));
    assert_string_equal("v1", dt_text_str(&out[0]));
    assert_int_equal(0, dt_store_key_count(s, &number, &err));
    assert_int_equal(6, number);
    assert_int_equal(0, dt_store_delete(s, "m1", &yes, &err));
    assert_true(yes);
    assert_int_equal(0, dt_store_delete(s, "m1", &yes, &err));
    assert_false(yes);
    assert_int_equal(0, dt_store_push(s, "q", "first", 5, &err));
    assert_int_equal(0, dt_store_push(s, "q", "", 0, &err));
    assert_int_equal(0, dt_store_queue_length(s, "q", &number, &err));
    assert_int_equal(2, number);
    assert_int_equal(0, dt_store_pop(s, "q", &out[0], long_s, &err));
    assert_string_equal("first", dt_text_str(&out[0]));
    assert_int_equal(0, dt_store_pop(s, "q", &out[0], long_s, &err));
    assert_string_equal("", dt_text_str(&out[0]));
    assert_int_equal(0, dt_store_barrier(s, "alone", 1, long_s, &err));
    /* timeouts: named, and the client goes on afterwards */
    assert_int_equal(-1, dt_store_get(s, "absent", &out[0], 0.01, &err));
    assert_int_equal(DT_TIMEOUT, err.status);
    assert_non_null(strstr(err.text, "'absent'"));
    assert_int_equal(-1, dt_store_wait(s, missing, 2, 0.01, &err));
    assert_non_null(strstr(err.text, "(and 1 more)"));
    assert_int_equal(-1, dt_store_pop(s, "q", &out[0], 0.01, &err));
    assert_int_equal(-1, dt_store_barrier(s, "never", 2, 0.01, &err));
    assert_int_equal(DT_TIMEOUT, err.status);
    assert_int_equal(-1, dt_store_wait(s, missing, 2, 0, &err));
    expect_get(s, "k", "value+");
    /* a value of megabytes, both ways */
    size_t size = 3 << 20;
    char *big = malloc(size);
    assert_non_null(big);
    for (size_t i = 0; i < size; i++) {
        big[i] = (char)(i * 31 >> 3);
    }
    assert_int_equal(0, dt_store_set(s, "big", big, size, &err));
    assert_int_equal(0, dt_store_get(s, "big", &out[0], long_s, &err));
    assert_int_equal(size, out[0].size);
    assert_memory_equal(big, out[0].data, size);
    free(big);
    dt_text_clear(&out[0]);
    dt_text_clear(&out[1]);
}

static void calls_over_a_socket(void **state)
{
    (void)state;
    struct host h;
    host_open(&h, (struct store_server_options){0});
    struct dt_store *s = connect_to(&h, NULL);
    every_call(s);
    struct dt_error err = {0};
    assert_int_equal(-1, dt_store_add(s, "k", 1, NULL, &err)); /* "value+" is no number: the
                                                                * server drops us */
    assert_int_equal(DT_PEER, err.status);
    assert_int_equal(-1, dt_store_ping(s, &err)); /* and the client says so from then on */
    assert_int_equal(DT_PEER, err.status);
    dt_store_close(s);
    host_close(&h);
}

static void calls_on_a_table(void **state)
{
    (void)state;
    struct dt_store_local *local = dt_store_local_open();
    struct dt_store *s = NULL;
    struct dt_error err = {0};
    assert_int_equal(0, dt_store_open_local(&s, local, NULL, NULL));
    every_call(s);
    assert_int_equal(-1, dt_store_add(s, "k", 1, NULL, &err));
    assert_int_equal(DT_INVALID, err.status);
    expect_get(s, "k", "value+");
    dt_store_close(s);
    dt_store_local_close(local);
}

/* ---- several clients ---- */

struct rank {
    pthread_t thread;
    struct dt_store *store;
    int rank, world_size;
    bool failed;
    struct dt_error err;
};

/* Everybody says who it is, waits for all, counts, meets at a barrier, and takes its element
 * from a queue that the last rank fills. */
static void *act(void *arg)
{
    struct rank *r = arg;
    char key[32], value[32];
    struct dt_text out;
    dt_text_init(&out);
    (void)snprintf(key, sizeof key, "rank/%d", r->rank);
    (void)snprintf(value, sizeof value, "%d", r->rank * r->rank);
    int rc = dt_store_set(r->store, key, value, strlen(value), &r->err);
    for (int other = r->world_size - 1; other >= 0 && rc == 0; other--) {
        (void)snprintf(key, sizeof key, "rank/%d", other);
        rc = dt_store_get(r->store, key, &out, long_s, &r->err);
        r->failed = r->failed || atoi(dt_text_str(&out)) != other * other;
    }
    for (int i = 0; i < 20 && rc == 0; i++) {
        rc = dt_store_add(r->store, "count", 1, NULL, &r->err);
    }
    rc = rc == 0 ? dt_store_barrier(r->store, "barrier", r->world_size, long_s, &r->err) : rc;
    int64_t total = 0;
    rc = rc == 0 ? dt_store_add(r->store, "count", 0, &total, &r->err) : rc;
    r->failed = r->failed || total != 20 * r->world_size;
    for (int i = 0; i < r->world_size && rc == 0 && r->rank == r->world_size - 1; i++) {
        rc = dt_store_push(r->store, "queue", &(char){(char)i}, 1, &r->err);
    }
    rc = rc == 0 ? dt_store_pop(r->store, "queue", &out, long_s, &r->err) : rc;
    r->failed = r->failed || rc != 0 || out.size != 1;
    dt_text_clear(&out);
    return NULL;
}

static void act_together(struct dt_store *first, int world_size)
{
    struct rank ranks[16] = {0};
    for (int i = 0; i < world_size; i++) {
        struct dt_error err = {0};
        ranks[i] = (struct rank){.rank = i, .world_size = world_size, .store = first};
        if (i > 0 && dt_store_clone(first, &ranks[i].store, long_s, &err) != 0) {
            fail_msg("%s", err.text);
        }
    }
    for (int i = 0; i < world_size; i++) {
        assert_int_equal(0, pthread_create(&ranks[i].thread, NULL, act, &ranks[i]));
    }
    for (int i = 0; i < world_size; i++) {
        (void)pthread_join(ranks[i].thread, NULL);
    }
    for (int i = 0; i < world_size; i++) {
        if (ranks[i].failed) {
            fail_msg("rank %d: %s", i, ranks[i].err.text);
        }
        dt_store_close(ranks[i].store);
    }
}

static void ranks_as_threads(void **state)
{
    (void)state;
    struct host h;
    host_open(&h, (struct store_server_options){0});
    act_together(connect_to(&h, NULL), 8);
    host_close(&h);
    struct dt_store_local *local = dt_store_local_open();
    struct dt_store *s = NULL;
    assert_int_equal(0, dt_store_open_local(&s, local, NULL, NULL));
    act_together(s, 16);
    dt_store_local_close(local);
}

static void *wait_for_never(void *arg)
{
    struct rank *r = arg;
    const char *key = "never";
    r->failed = dt_store_wait(r->store, &key, 1, long_s, &r->err) != 0;
    return NULL;
}

/* Waits until the server (or nobody, on a table) shows a parked wait. */
static void await_text(struct host *h, const char *text)
{
    for (double end_s = dt_now_s() + long_s; dt_now_s() < end_s; dt_sleep_s(0.005)) {
        host_do(h, COMMAND_STATS);
        if (strstr(dt_text_str(&h->stats), text) != NULL) {
            return;
        }
    }
    fail_msg("'%s' never showed in %s", text, dt_text_str(&h->stats));
}

static void order_ends_a_wait(void **state)
{
    (void)state;
    struct host h;
    struct dt_page page = {0}; /* only the order is looked at */
    host_open(&h, (struct store_server_options){0});
    struct rank r = {.store = connect_to(&h, &page)};
    assert_int_equal(0, pthread_create(&r.thread, NULL, wait_for_never, &r));
    await_text(&h, "\"key\":\"never\"");
    atomic_store(&page.order, DT_ORDER_ABORT);
    (void)pthread_join(r.thread, NULL);
    assert_true(r.failed);
    assert_int_equal(DT_STOPPED, r.err.status);
    dt_store_close(r.store);

    struct dt_store_local *local = dt_store_local_open();
    assert_int_equal(0, dt_store_open_local(&r.store, local, &page, NULL));
    (void)wait_for_never(&r);
    assert_int_equal(DT_STOPPED, r.err.status);
    dt_store_close(r.store);
    dt_store_local_close(local);
    struct dt_store *none = NULL;
    assert_int_equal(-1, dt_store_open(&none, "127.0.0.1", h.port, long_s, &page, &r.err));
    assert_int_equal(DT_STOPPED, r.err.status);
    host_close(&h);
}

static void reset_begins_a_new_round(void **state)
{
    (void)state;
    struct host h;
    host_open(&h, (struct store_server_options){0});
    struct rank r = {.store = connect_to(&h, NULL)};
    assert_int_equal(0, dt_store_set(r.store, "old", "1", 1, NULL));
    assert_int_equal(0, pthread_create(&r.thread, NULL, wait_for_never, &r));
    await_text(&h, "\"key\":\"never\"");
    host_do(&h, COMMAND_RESET);
    (void)pthread_join(r.thread, NULL);
    assert_true(r.failed);
    assert_int_equal(DT_PEER, r.err.status);
    assert_non_null(strstr(r.err.text, "closed by the other side"));
    dt_store_close(r.store);
    int64_t count = -1;
    r.store = connect_to(&h, NULL);
    assert_int_equal(0, dt_store_key_count(r.store, &count, NULL));
    assert_int_equal(0, count);
    host_do(&h, COMMAND_STATS);
    assert_non_null(strstr(dt_text_str(&h.stats), "\"rounds\":1,"));
    dt_store_close(r.store);
    host_close(&h);
}

/* ---- raw connections ---- */

static struct dt_net raw(const struct host *h)
{
    struct dt_net n = {.fd = -1};
    struct dt_error err = {0};
    if (dt_net_connect(&n, "127.0.0.1", h->port, dt_now_s() + long_s, NULL, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return n;
}

static void expect_dropped(struct dt_net *n)
{
    char byte;
    struct dt_error err = {0};
    assert_int_equal(-1, dt_net_read(n, &byte, 1, dt_now_s() + long_s, &err));
    assert_int_equal(DT_PEER, err.status);
    dt_net_close(n);
}

static void bad_peers_are_dropped(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
    } rows[] = {
        {"GET / HTTP/1.0\r\n\r\n", 18},
        {"\x00\xce\xf7\x85\x3d", 5},
        {"\x00\xce\xf7\x85\x3c\x00", 6},
        {"\x00\xce\xf7\x85\x3c\x7f", 6},
        {"\x00\xce\xf7\x85\x3c\x03\xff\xff\xff\xff\xff\xff\xff\x7f", 14},
        {"\x16\x03\x01", 3},
    };
    struct host h;
    host_open(&h, (struct store_server_options){0});
    struct dt_store *good = connect_to(&h, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dt_net n = raw(&h);
        assert_int_equal(0, dt_net_write(&n, rows[i].bytes, rows[i].size, dt_now_s() + long_s, NULL));
        expect_dropped(&n);
    }
    struct dt_net n = raw(&h); /* half a request, then gone: discarded */
    assert_int_equal(0, dt_net_write(&n, "\x00\xce\xf7\x85\x3c\x01\x01\x00", 8, dt_now_s() + long_s, NULL));
    dt_net_close(&n);
    assert_int_equal(0, dt_store_ping(good, NULL));
    int64_t count = -1;
    assert_int_equal(0, dt_store_key_count(good, &count, NULL));
    assert_int_equal(0, count);
    dt_store_close(good);
    host_close(&h);
}

static void silent_peers_are_dropped(void **state)
{
    (void)state;
    struct host h;
    host_open(&h, (struct store_server_options){.hello_s = 0.05});
    struct dt_store *good = connect_to(&h, NULL);
    struct dt_net silent = raw(&h), half = raw(&h);
    assert_int_equal(0, dt_net_write(&half, "\x00\xce", 2, dt_now_s() + long_s, NULL));
    expect_dropped(&silent);
    expect_dropped(&half);
    assert_int_equal(0, dt_store_ping(good, NULL)); /* idle after its handshake is fine */
    dt_store_close(good);
    host_close(&h);
}

static bool is_open(const struct dt_net *n)
{
    char byte;
    return recv(n->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

/* Whoever says something finds a place as long as somebody says nothing; the newest of those go
 * first. */
static void above_the_limit_the_newest_silent_one_goes(void **state)
{
    (void)state;
    struct host h;
    host_open(&h, (struct store_server_options){.client_count = 4});
    struct dt_store *good[4];
    struct dt_net silent[3];
    good[0] = connect_to(&h, NULL);
    for (int i = 0; i < 3; i++) {
        silent[i] = raw(&h);
    }
    await_text(&h, "\"clients\":4,");
    for (int i = 1; i < 4; i++) {
        good[i] = connect_to(&h, NULL);
        expect_dropped(&silent[3 - i]);
        for (int k = 0; k < 3 - i; k++) {
            assert_true(is_open(&silent[k]));
        }
    }
    struct dt_net late[2] = {raw(&h), raw(&h)}; /* one place is left for whoever may have
                                                 * something to say */
    expect_dropped(&late[0]);
    assert_true(is_open(&late[1]));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(0, dt_store_ping(good[i], NULL));
        dt_store_close(good[i]);
    }
    dt_net_close(&late[1]);
    host_close(&h);
}

/* A client that says that it is process `pid`, and has been answered. */
static struct dt_net greet(const struct host *h, uint32_t pid)
{
    struct dt_net n = raw(h);
    struct dt_text hello;
    char pong[4];
    dt_text_init(&hello);
    dt_wire_put_request(&hello, &(struct dt_wire_request){.query = DT_WIRE_VALIDATE, .word = DT_WIRE_MAGIC});
    dt_wire_put_request(&hello, &(struct dt_wire_request){.query = DT_WIRE_PING, .word = pid});
    assert_int_equal(0, dt_net_write(&n, hello.data, hello.size, dt_now_s() + long_s, NULL));
    assert_int_equal(0, dt_net_read(&n, pong, 4, dt_now_s() + long_s, NULL));
    dt_text_clear(&hello);
    return n;
}

/* A process that takes all places loses its own, whether it came first or last. */
static void whoever_has_most_makes_room(void **state)
{
    (void)state;
    enum { PLACES = 8, GOOD = 4, HOG = 2 * PLACES };
    struct host h;
    struct dt_net hog[HOG], good[GOOD];
    host_open(&h, (struct store_server_options){.client_count = PLACES});
    for (int i = 0; i < HOG + GOOD; i++) { /* two of the others come first, two when all places
                                            * are taken */
        bool is_good = i < 2 || i >= HOG + 2;
        *(is_good ? &good[i < 2 ? i : i - HOG] : &hog[i - 2]) = greet(&h, is_good ? 1000 + (uint32_t)i / 2 : 7);
    }
    int alive = 0;
    for (int i = 0; i < HOG; i++) {
        alive += is_open(&hog[i]);
        dt_net_close(&hog[i]);
    }
    assert_int_equal(PLACES - GOOD, alive);
    for (int i = 0; i < GOOD; i++) {
        assert_true(is_open(&good[i]));
        dt_net_close(&good[i]);
    }
    host_close(&h);
}

/* Asks for megabytes again and again without reading them. */
static void slow_readers_are_dropped(void **state)
{
    (void)state;
    struct host h;
    host_open(&h, (struct store_server_options){.output_bytes = 16 << 20});
    struct dt_store *good = connect_to(&h, NULL);
    char *big = calloc(1, 4 << 20);
    assert_non_null(big);
    assert_int_equal(0, dt_store_set(good, "big", big, 4 << 20, NULL));
    assert_int_equal(0, dt_store_ping(good, NULL));
    struct dt_net slow = raw(&h);
    struct dt_text ask;
    dt_text_init(&ask);
    dt_wire_put_request(&ask, &(struct dt_wire_request){.query = DT_WIRE_VALIDATE, .word = DT_WIRE_MAGIC});
    for (int i = 0; i < 64; i++) {
        dt_wire_put_request(&ask, &(struct dt_wire_request){.query = DT_WIRE_GET, .key = {"big", 3}});
    }
    assert_int_equal(0, dt_net_write(&slow, ask.data, ask.size, dt_now_s() + long_s, NULL));
    await_text(&h, "\"dropped\":1,");
    assert_int_equal(0, dt_store_ping(good, NULL)); /* others do not notice */
    dt_text_clear(&ask);
    free(big);
    dt_net_close(&slow);
    dt_store_close(good);
    host_close(&h);
}

/* Of a value, more than sockets take at once: its client reads none of it for now. */
static struct dt_net ask_for_much(const struct host *h, const char *key)
{
    struct dt_net n = raw(h);
    struct dt_text ask;
    struct dt_bytes keys[30];
    dt_text_init(&ask);
    for (int i = 0; i < 30; i++) {
        keys[i] = (struct dt_bytes){key, strlen(key)};
    }
    dt_wire_put_request(&ask, &(struct dt_wire_request){.query = DT_WIRE_VALIDATE, .word = DT_WIRE_MAGIC});
    dt_wire_put_request(&ask, &(struct dt_wire_request){.query = DT_WIRE_MULTI_GET, .count = 30, .keys = keys});
    assert_int_equal(0, dt_net_write(&n, ask.data, ask.size, dt_now_s() + long_s, NULL));
    dt_text_clear(&ask);
    return n;
}

/* All clients together may cost 8 MiB. Answers of values that are there cost nothing; those that
 * were replaced meanwhile do, until one that reads nothing goes. */
static void unread_answers_have_one_bound(void **state)
{
    (void)state;
    enum { CLIENTS = 20, SIZE = 1 << 20 };
    struct host h;
    struct dt_net nets[CLIENTS];
    char *big = malloc(SIZE), *got = malloc(SIZE), asked[32];
    assert_true(big != NULL && got != NULL);
    host_open(&h, (struct store_server_options){.limits = {.total_bytes = 8 << 20}});
    struct dt_store *good = connect_to(&h, NULL);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < CLIENTS; i++) {
            if (i == 0 || round == 1) {
                memset(big, i, SIZE);
                assert_int_equal(0, dt_store_set(good, "big", big, SIZE, NULL));
                assert_int_equal(0, dt_store_ping(good, NULL));
            }
            nets[i] = ask_for_much(&h, "big");
            (void)snprintf(asked, sizeof asked, "\"MULTI_GET\":%d,", round * CLIENTS + i + 1);
            await_text(&h, asked);
        }
        host_do(&h, COMMAND_STATS);
        const char *dropped = strstr(dt_text_str(&h.stats), "\"dropped\":");
        int count = atoi(dropped + 10);
        assert_true(round == 0 ? count == 0 : count >= CLIENTS - 7 && count < CLIENTS);
        for (int i = 0; i < CLIENTS; i++) {
            for (int k = 0; k < 30 && round == 0; k++) { /* who reads has it all, and in order */
                char length[8];
                assert_int_equal(0, dt_net_read(&nets[i], length, 8, dt_now_s() + long_s, NULL));
                assert_int_equal(SIZE, dt_wire_read_i64(length));
                assert_int_equal(0, dt_net_read(&nets[i], got, SIZE, dt_now_s() + long_s, NULL));
                assert_memory_equal(big, got, SIZE);
            }
            dt_net_close(&nets[i]);
        }
        assert_int_equal(0, dt_store_ping(good, NULL));
    }
    dt_store_close(good);
    host_close(&h);
    free(big);
    free(got);
}

static void other_links_are_handed_over(void **state)
{
    (void)state;
    struct host h;
    host_open(&h, (struct store_server_options){0});
    struct dt_net n = raw(&h);
    char answer[7];
    assert_int_equal(0, dt_net_write(&n, "hello", 5, dt_now_s() + long_s, NULL));
    assert_int_equal(0, dt_net_read(&n, answer, 7, dt_now_s() + long_s, NULL));
    assert_memory_equal("welcome", answer, 7);
    expect_dropped(&n); /* our taker closed it; the server's own copy is closed too */
    host_do(&h, COMMAND_STATS);
    assert_non_null(strstr(dt_text_str(&h.stats), "\"taken\":1,"));
    host_close(&h);
}

static void connect_fails_in_words(void **state)
{
    (void)state;
    struct dt_net listener = {.fd = -1};
    struct dt_store *s = NULL;
    struct dt_error err = {0};
    int port = 0;
    /* bound, but closed again: nobody is there */
    assert_int_equal(0, dt_net_listen(&listener, "127.0.0.1", 0, 1, NULL, &port, &err));
    dt_net_close(&listener);
    assert_int_equal(-1, dt_store_open(&s, "127.0.0.1", port, 0.05, NULL, &err));
    assert_int_equal(DT_TIMEOUT, err.status);
    assert_non_null(strstr(err.text, "127.0.0.1:"));
    assert_non_null(strstr(err.text, "refused"));
    assert_int_equal(-1, dt_store_open(&s, "127.0.0.1", 0, 0.05, NULL, &err));
    assert_int_equal(DT_INVALID, err.status);
    /* somebody listens but never answers */
    assert_int_equal(0, dt_net_listen(&listener, "127.0.0.1", 0, 8, NULL, &port, &err));
    assert_int_equal(-1, dt_store_open(&s, "127.0.0.1", port, 0.05, NULL, &err));
    assert_int_equal(DT_TIMEOUT, err.status);
    dt_net_close(&listener);
}

struct early {
    int port;
    bool failed;
    struct dt_error err;
};

static void *connect_early(void *arg)
{
    struct early *e = arg;
    struct dt_store *s = NULL;
    e->failed = dt_store_open(&s, "127.0.0.1", e->port, long_s, NULL, &e->err) != 0;
    dt_store_close(s);
    return NULL;
}

/* Clients may come before the server. The port is kept for us by a socket that is bound and does
 * not listen: connects are refused. */
static void connect_tries_until_somebody_listens(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int on = 1, holder = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(holder >= 0);
    assert_int_equal(0, setsockopt(holder, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    assert_int_equal(0, bind(holder, (struct sockaddr *)&at, size));
    assert_int_equal(0, getsockname(holder, (struct sockaddr *)&at, &size));
    struct early e = {.port = ntohs(at.sin_port)};
    pthread_t thread;
    assert_int_equal(0, pthread_create(&thread, NULL, connect_early, &e));
    dt_sleep_s(0.05); /* most likely it has been refused by now; nothing depends on it */
    struct host h;
    host_open(&h, (struct store_server_options){.port = e.port});
    (void)pthread_join(thread, NULL);
    if (e.failed) {
        fail_msg("%s", e.err.text);
    }
    host_close(&h);
    (void)close(holder);
}

static void many_connections(void **state)
{
    (void)state;
    enum { count = 400 };
    struct host h;
    struct dt_net nets[count];
    struct dt_text hello;
    host_open(&h, (struct store_server_options){0});
    dt_text_init(&hello);
    struct dt_bytes key = {"go", 2};
    dt_wire_put_request(&hello, &(struct dt_wire_request){.query = DT_WIRE_VALIDATE, .word = DT_WIRE_MAGIC});
    dt_wire_put_request(&hello, &(struct dt_wire_request){.query = DT_WIRE_WAIT, .count = 1, .keys = &key});
    for (int i = 0; i < count; i++) {
        nets[i] = raw(&h);
        assert_int_equal(0, dt_net_write(&nets[i], hello.data, hello.size, dt_now_s() + long_s, NULL));
    }
    struct dt_store *s = connect_to(&h, NULL);
    await_text(&h, "\"WAIT\":400");
    assert_int_equal(0, dt_store_set(s, "go", "1", 1, NULL));
    for (int i = 0; i < count; i++) {
        char byte = 1;
        assert_int_equal(0, dt_net_read(&nets[i], &byte, 1, dt_now_s() + long_s, NULL));
        assert_int_equal(0, byte);
        dt_net_close(&nets[i]);
    }
    dt_text_clear(&hello);
    dt_store_close(s);
    host_close(&h);
}

int main(void)
{
    dt_log_open(DT_LOG_ERROR, -1, 2); /* the drops are what is tested */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_over_a_socket),
        cmocka_unit_test(calls_on_a_table),
        cmocka_unit_test(ranks_as_threads),
        cmocka_unit_test(order_ends_a_wait),
        cmocka_unit_test(reset_begins_a_new_round),
        cmocka_unit_test(bad_peers_are_dropped),
        cmocka_unit_test(silent_peers_are_dropped),
        cmocka_unit_test(above_the_limit_the_newest_silent_one_goes),
        cmocka_unit_test(whoever_has_most_makes_room),
        cmocka_unit_test(slow_readers_are_dropped),
        cmocka_unit_test(unread_answers_have_one_bound),
        cmocka_unit_test(other_links_are_handed_over),
        cmocka_unit_test(connect_fails_in_words),
        cmocka_unit_test(connect_tries_until_somebody_listens),
        cmocka_unit_test(many_connections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
