/* covers: launcher/store collectives/store.c collectives/wire.c */
/* The store under many clients that are killed, cut off and half open: what it answered must be
 * linearizable key by key, no wait may be lost, and nothing of a request that never came whole
 * may show. Each epoch has keys of its own, and its histories are checked at its end.
 * DTRUN_STORE_OPS=N runs whole epochs until N operations were answered, DTRUN_SEED=S begins at
 * seed S. run: timeout 300 */
#include "base/clock.h"
#include "base/text.h"
#include "collectives/net.h"
#include "collectives/wire.h"
#include "cmd/bench/store_servers.h"
#include "tests/lib/linear.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <cmocka.h>

enum { CLIENTS = 16, KEYS = 12, TURNS = 24, BATCH = 4, OPS_MOST = 4096, HALF_OPEN = 8, SHORT_OPS = 30000 };
static const double long_s = 60;
static const size_t budget = 4000000;

struct client {
    int number;
    uint64_t random;
    struct dt_net net, half_open[HALF_OPEN];
    int half_open_count;
    int64_t last; /* a value seen lately, of whichever key */
    int64_t made; /* values so far */
    struct linear_op ops[OPS_MOST];
    size_t op_count, unsettled; /* operations from `unsettled` on may still lack an answer */
};

static struct {
    struct bench_server server;
    uint64_t seed;
    int epoch;
    bool over; /* written by client 0 alone, between two barriers: all leave after the same epoch */
    pthread_barrier_t line;
    atomic_int busy, waiting[KEYS], failed;
    atomic_llong answered, killed, waits;
    struct client clients[CLIENTS];
} soak;

static long long setting(const char *name, long long fallback)
{
    const char *text = getenv(name);
    return text != NULL ? atoll(text) : fallback;
}

static uint64_t draw(struct client *c, uint64_t below)
{
    uint64_t x = c->random += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % below;
}

static int64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void fail_soak(const struct client *c, const char *what)
{
    printf("client %d, epoch %d, seed %llu: %s\n", c->number, soak.epoch, (unsigned long long)soak.seed, what);
    atomic_store(&soak.failed, 1);
}

/* ---- connections ---- */

static void join(struct client *c)
{
    static const unsigned char hello[] = {0x00, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 1, 2, 3, 4};
    char nonce[4];
    if (dt_net_connect(&c->net, "127.0.0.1", soak.server.port, dt_now_s() + long_s, NULL, NULL) != 0 ||
        dt_net_write(&c->net, hello, sizeof hello, dt_now_s() + long_s, NULL) != 0 ||
        dt_net_read(&c->net, nonce, sizeof nonce, dt_now_s() + long_s, NULL) != 0 || memcmp(nonce, hello + 6, 4) != 0) {
        fail_soak(c, "no connection");
    }
}

/* Whatever has no answer yet will have none: reads are forgotten, changes may have come about or
 * not. */
static void lose_answers(struct client *c)
{
    size_t kept = c->unsettled;
    for (size_t i = c->unsettled; i < c->op_count; i++) {
        enum linear_kind kind = c->ops[i].kind;
        if (kind != LINEAR_GET && kind != LINEAR_CHECK && kind != LINEAR_WAIT) {
            c->ops[kept++] = c->ops[i];
        }
    }
    c->op_count = c->unsettled = kept;
    atomic_fetch_add(&soak.killed, 1);
}

/* The connection ends as that of a killed process: what lies unread is lost, the other side sees
 * a reset, or an end. */
static void die(struct client *c)
{
    if (draw(c, 2) == 0) {
        (void)setsockopt(c->net.fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
    }
    dt_net_close(&c->net);
    lose_answers(c);
    join(c);
}

static void put(struct client *c, const void *data, size_t size)
{
    size_t cut = draw(c, 8) == 0 ? draw(c, size + 1) : 0;
    if (dt_net_write(&c->net, data, cut, dt_now_s() + long_s, NULL) != 0) {
        fail_soak(c, "the server closed a connection");
    }
    if (cut > 0) {
        dt_sleep_s(1e-6);
    }
    if (dt_net_write(&c->net, (const char *)data + cut, size - cut, dt_now_s() + long_s, NULL) != 0) {
        fail_soak(c, "the server closed a connection");
    }
}

static bool get(struct client *c, void *data, size_t size)
{
    if (dt_net_read(&c->net, data, size, dt_now_s() + long_s, NULL) == 0) {
        return true;
    }
    fail_soak(c, "no answer");
    return false;
}

/* ---- operations ---- */

/* Everything up to here was answered, for the server works through a connection in order. */
static void settle(struct client *c, size_t until)
{
    int64_t end = now_ns();
    for (; c->unsettled < until; c->unsettled++) {
        c->ops[c->unsettled].end = end;
        atomic_fetch_add(&soak.answered, 1);
    }
}

static size_t name_key(int key, char *out, size_t out_bytes)
{
    return (size_t)snprintf(out, out_bytes, "/soak/%d/%d", soak.epoch, key);
}

static size_t put_number(int64_t number, char *out, size_t out_bytes)
{
    return number == LINEAR_NOTHING ? 0 : (size_t)snprintf(out, out_bytes, "%lld", (long long)number);
}

static void encode(const struct linear_op *o, struct dt_text *out)
{
    static const enum dt_wire_query queries[] = {DT_WIRE_SET,   DT_WIRE_ADD,  DT_WIRE_COMPARE_SET, DT_WIRE_GET,
                                                 DT_WIRE_CHECK, DT_WIRE_WAIT, DT_WIRE_DELETE};
    char name[64], value[32], expected[32];
    struct dt_bytes key = {name, name_key(o->key, name, sizeof name)};
    struct dt_wire_request r = {.query = queries[o->kind], .key = key, .keys = &key, .count = 1, .number = o->value};
    r.value = (struct dt_bytes){value, put_number(o->value, value, sizeof value)};
    if (o->kind == LINEAR_COMPARE_SET) {
        r.desired = r.value;
        r.value = (struct dt_bytes){expected, put_number(o->expected, expected, sizeof expected)};
    }
    dt_wire_put_request(out, &r);
}

/* The next operation on a key: values are never the same twice, so that an answer says whose
 * they are. */
static struct linear_op *begin_op(struct client *c, enum linear_kind kind, int key)
{
    struct linear_op *o = &c->ops[c->op_count++];
    /* adds do not lead from one to another */
    int64_t fresh = ((int64_t)(c->number + 1) << 56) + (++c->made << 24);
    *o = (struct linear_op){.kind = kind, .key = key, .end = LINEAR_NEVER};
    o->value = kind == LINEAR_ADD ? (int64_t)(draw(c, 1000) + 1) : fresh;
    o->expected = draw(c, 3) == 0 ? LINEAR_NOTHING : c->last;
    return o;
}

static int64_t read_value(struct client *c)
{
    char size_bytes[8], text[32] = "";
    if (!get(c, size_bytes, 8)) {
        return LINEAR_NOTHING;
    }
    int64_t size = dt_wire_read_i64(size_bytes);
    if (size < 0 || size >= (int64_t)sizeof text) {
        fail_soak(c, "a value of impossible length");
        return LINEAR_NOTHING;
    }
    return size > 0 && get(c, text, (size_t)size) ? atoll(text) : LINEAR_NOTHING;
}

static void read_answer(struct client *c, struct linear_op *o)
{
    char bytes[8] = {0};
    switch (o->kind) {
    case LINEAR_SET:
        return; /* has none: the next one's says that it is done */
    case LINEAR_ADD:
    case LINEAR_DELETE:
        o->answer = get(c, bytes, 8) ? dt_wire_read_i64(bytes) : 0;
        break;
    case LINEAR_CHECK:
        o->answer = get(c, bytes, 1) && bytes[0] == DT_WIRE_READY;
        break;
    case LINEAR_WAIT:
        (void)get(c, bytes, 1);
        break;
    default:
        o->answer = read_value(c);
        c->last = o->answer != LINEAR_NOTHING ? o->answer : c->last;
    }
    settle(c, (size_t)(o - c->ops) + 1);
}

static enum linear_kind draw_kind(struct client *c)
{
    static const enum linear_kind kinds[] = {
        LINEAR_SET, LINEAR_SET, LINEAR_ADD,   LINEAR_ADD,    LINEAR_COMPARE_SET, LINEAR_COMPARE_SET, LINEAR_GET,
        LINEAR_GET, LINEAR_GET, LINEAR_CHECK, LINEAR_DELETE, LINEAR_COMPARE_SET, LINEAR_GET};
    return kinds[draw(c, sizeof kinds / sizeof *kinds)];
}

/* Some requests in one segment, then their answers; or the client dies before these. */
static void run_batch(struct client *c)
{
    size_t first = c->op_count, count = 1 + draw(c, BATCH);
    struct dt_text out;
    dt_text_init(&out);
    for (size_t i = 0; i < count; i++) {
        encode(begin_op(c, draw_kind(c), (int)draw(c, KEYS)), &out);
    }
    for (size_t i = first; i < c->op_count; i++) {
        c->ops[i].start = now_ns();
    }
    put(c, out.data, out.size);
    if (draw(c, 48) == 0) {
        die(c);
    } else {
        for (size_t i = first; i < first + count; i++) {
            read_answer(c, &c->ops[i]);
        }
    }
    dt_text_clear(&out);
}

/* A request that is cut: then the connection ends, or stays open and silent. It must leave no
 * trace. */
static void run_half(struct client *c)
{
    struct dt_text out;
    dt_text_init(&out);
    encode(begin_op(c, draw(c, 2) == 0 ? LINEAR_SET : LINEAR_ADD, (int)draw(c, KEYS)), &out);
    c->op_count--;
    put(c, out.data, out.size - 1 - draw(c, 8));
    dt_text_clear(&out);
    if (draw(c, 2) == 0 && c->half_open_count < HALF_OPEN) {
        c->half_open[c->half_open_count++] = c->net;
        lose_answers(c);
        join(c);
    } else {
        die(c);
    }
}

static void run_wait(struct client *c, bool patient)
{
    struct dt_text out;
    struct linear_op *o = begin_op(c, LINEAR_WAIT, (int)draw(c, KEYS));
    char byte = 0;
    dt_text_init(&out);
    encode(o, &out);
    o->start = now_ns();
    if (patient) {
        atomic_fetch_add(&soak.waiting[o->key], 1);
    }
    put(c, out.data, out.size);
    dt_text_clear(&out);
    if (patient) {
        read_answer(c, o);
        atomic_fetch_sub(&soak.waiting[o->key], 1);
        atomic_fetch_add(&soak.waits, 1);
        return;
    }
    struct pollfd ready = {.fd = c->net.fd, .events = POLLIN};
    (void)poll(&ready, 1, (int)draw(c, 3));
    if (draw(c, 8) == 0) {
        die(c);
        return;
    }
    put(c, &(char){DT_WIRE_CANCEL_WAIT}, 1);
    if (get(c, &byte, 1) && byte == DT_WIRE_STOP_WAITING) {
        settle(c, c->op_count);
        (void)get(c, &byte, 1);
    } else { /* it was not over: nothing is known of it */
        c->op_count--;
        settle(c, c->op_count);
    }
    if (byte != DT_WIRE_WAIT_CANCELED) {
        fail_soak(c, "CANCEL_WAIT was not answered");
    }
}

static void ping(struct client *c)
{
    char bytes[5] = {DT_WIRE_PING, 1, 2, 3, 4};
    put(c, bytes, 5);
    if (get(c, bytes, 4)) {
        settle(c, c->op_count);
    }
}

static void run_alone(struct client *c, enum linear_kind kind, int key)
{
    struct dt_text out;
    struct linear_op *o = begin_op(c, kind, key);
    dt_text_init(&out);
    encode(o, &out);
    o->start = now_ns();
    put(c, out.data, out.size);
    dt_text_clear(&out);
    if (kind == LINEAR_SET) {
        ping(c);
    } else {
        read_answer(c, o);
    }
}

/* Client 0, until all others are done: who waits for a key that is absent is given it, once. A
 * key that is there has told its waiters. */
static void free_waiters(struct client *c)
{
    atomic_fetch_sub(&soak.busy, 1);
    while (atomic_load(&soak.busy) > 0 && !atomic_load(&soak.failed)) {
        for (int k = 0; k < KEYS && c->op_count + 2 < OPS_MOST; k++) {
            if (atomic_load(&soak.waiting[k]) == 0) {
                continue;
            }
            run_alone(c, LINEAR_CHECK, k);
            bool absent = c->ops[c->op_count - 1].answer == 0;
            c->unsettled = --c->op_count; /* so many checks would say nothing new */
            if (absent) {
                run_alone(c, LINEAR_SET, k);
            }
        }
        dt_sleep_s(0.0005);
    }
}

static void run_epoch(struct client *c)
{
    c->op_count = c->unsettled = 0;
    for (int turn = 0; turn < TURNS && !atomic_load(&soak.failed); turn++) {
        uint64_t what = draw(c, 64);
        if (what < 2) {
            run_half(c);
        } else if (what < 12) {
            run_wait(c, what < 7 && c->number > 0);
        } else {
            run_batch(c);
        }
    }
    if (!atomic_load(&soak.failed)) {
        ping(c);
    }
    if (c->number == 0) {
        free_waiters(c);
    } else {
        atomic_fetch_sub(&soak.busy, 1);
    }
    while (c->half_open_count > 0) {
        dt_net_close(&c->half_open[--c->half_open_count]);
    }
}

/* ---- epochs ---- */

static void check_epoch(void)
{
    static struct linear_op ops[CLIENTS * OPS_MOST];
    for (int k = 0; k < KEYS; k++) {
        size_t count = 0;
        for (int i = 0; i < CLIENTS; i++) {
            for (size_t j = 0; j < soak.clients[i].op_count; j++) {
                if (soak.clients[i].ops[j].key == k) {
                    ops[count++] = soak.clients[i].ops[j];
                }
            }
        }
        enum linear_verdict verdict = linear_check(ops, count, budget);
        if (verdict != LINEAR_YES) {
            printf("epoch %d, key %d, seed %llu: %s\n", soak.epoch, k, (unsigned long long)soak.seed,
                   verdict == LINEAR_NO ? "no order explains these answers" : "too many orders to decide");
            linear_print(ops, count);
            atomic_store(&soak.failed, 1);
        }
    }
}

static void *run_client(void *user)
{
    struct client *c = user;
    long long most = setting("DTRUN_STORE_OPS", SHORT_OPS);
    join(c);
    while (!soak.over) {
        run_epoch(c);
        (void)pthread_barrier_wait(&soak.line);
        if (c->number == 0) {
            if (!atomic_load(&soak.failed)) {
                check_epoch();
            }
            soak.epoch++;
            soak.over = atomic_load(&soak.failed) || atomic_load(&soak.answered) >= most;
            atomic_store(&soak.busy, CLIENTS);
        }
        (void)pthread_barrier_wait(&soak.line);
    }
    dt_net_close(&c->net);
    return NULL;
}

static void answers_are_linearizable(void **state)
{
    (void)state;
    pthread_t threads[CLIENTS];
    soak.seed = (uint64_t)setting("DTRUN_SEED", 1);
    assert_int_equal(bench_server_start(&soak.server, "soak", bench_serve_ours), 0);
    assert_int_equal(pthread_barrier_init(&soak.line, NULL, CLIENTS), 0);
    atomic_store(&soak.busy, CLIENTS);
    for (int i = 0; i < CLIENTS; i++) {
        soak.clients[i].number = i;
        soak.clients[i].random = soak.seed * CLIENTS + (uint64_t)i;
        soak.clients[i].last = LINEAR_NOTHING;
        assert_int_equal(pthread_create(&threads[i], NULL, run_client, &soak.clients[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    bench_server_stop(&soak.server);
    (void)pthread_barrier_destroy(&soak.line);
    printf("%lld operations in %d epochs, %lld connections lost, %lld waits without a limit\n",
           (long long)atomic_load(&soak.answered), soak.epoch, (long long)atomic_load(&soak.killed),
           (long long)atomic_load(&soak.waits));
    assert_int_equal(atomic_load(&soak.failed), 0);
    assert_true(atomic_load(&soak.killed) > 0 && atomic_load(&soak.waits) > 0);
}

/* ---- the checker itself ---- */

static void the_checker_tells_right_from_wrong(void **state)
{
    (void)state;
    enum { N = 6 };
    static const struct {
        enum linear_verdict verdict;
        struct linear_op ops[N];
    } rows[] = {
        /* an old value after a newer one was seen */
        {LINEAR_NO,
         {{LINEAR_SET, .value = 1, .start = 1, .end = 2},
          {LINEAR_SET, .value = 2, .start = 3, .end = 9},
          {LINEAR_GET, .answer = 2, .start = 4, .end = 5},
          {LINEAR_GET, .answer = 1, .start = 6, .end = 7}}},
        /* the same, but both at once */
        {LINEAR_YES,
         {{LINEAR_SET, .value = 1, .start = 1, .end = 2},
          {LINEAR_SET, .value = 2, .start = 3, .end = 9},
          {LINEAR_GET, .answer = 2, .start = 4, .end = 7},
          {LINEAR_GET, .answer = 1, .start = 6, .end = 8}}},
        /* an add that came about twice */
        {LINEAR_NO,
         {{LINEAR_ADD, .value = 5, .answer = 5, .start = 1, .end = 2},
          {LINEAR_GET, .answer = 10, .start = 3, .end = 4}}},
        /* an add of a client that died: at once, much later, never */
        {LINEAR_YES,
         {{LINEAR_ADD, .value = 5, .start = 1, .end = LINEAR_NEVER}, {LINEAR_GET, .answer = 5, .start = 3, .end = 4}}},
        {LINEAR_YES,
         {{LINEAR_ADD, .value = 5, .start = 1, .end = LINEAR_NEVER},
          {LINEAR_GET, .answer = LINEAR_NOTHING, .start = 3, .end = 4},
          {LINEAR_GET, .answer = 5, .start = 5, .end = 6}}},
        {LINEAR_YES,
         {{LINEAR_ADD, .value = 5, .start = 1, .end = LINEAR_NEVER},
          {LINEAR_GET, .answer = LINEAR_NOTHING, .start = 3, .end = 4}}},
        {LINEAR_NO,
         {{LINEAR_ADD, .value = 5, .start = 1, .end = LINEAR_NEVER},
          {LINEAR_GET, .answer = 5, .start = 3, .end = 4},
          {LINEAR_GET, .answer = LINEAR_NOTHING, .start = 5, .end = 6}}},
        /* two that both won */
        {LINEAR_NO,
         {{LINEAR_COMPARE_SET, .expected = LINEAR_NOTHING, .value = 1, .answer = 1, .start = 1, .end = 5},
          {LINEAR_COMPARE_SET, .expected = LINEAR_NOTHING, .value = 2, .answer = 2, .start = 2, .end = 4}}},
        {LINEAR_YES,
         {{LINEAR_COMPARE_SET, .expected = LINEAR_NOTHING, .value = 1, .answer = 2, .start = 1, .end = 5},
          {LINEAR_COMPARE_SET, .expected = LINEAR_NOTHING, .value = 2, .answer = 2, .start = 2, .end = 4},
          {LINEAR_COMPARE_SET, .expected = 7, .value = 3, .answer = 2, .start = 6, .end = 8},
          {LINEAR_DELETE, .answer = 1, .start = 9, .end = 10},
          {LINEAR_COMPARE_SET, .expected = 7, .value = 3, .answer = 7, .start = 11, .end = 12},
          {LINEAR_CHECK, .answer = 0, .start = 13, .end = 14}}},
        /* a wait that ended before anything was there */
        {LINEAR_NO, {{LINEAR_WAIT, .start = 1, .end = 2}, {LINEAR_SET, .value = 1, .start = 3, .end = 4}}},
        {LINEAR_YES,
         {{LINEAR_WAIT, .start = 1, .end = 8},
          {LINEAR_SET, .value = 1, .start = 3, .end = 4},
          {LINEAR_DELETE, .answer = 1, .start = 5, .end = 6},
          {LINEAR_DELETE, .answer = 0, .start = 6, .end = 7}}},
        {LINEAR_NO,
         {{LINEAR_SET, .value = 1, .start = 1, .end = 2}, {LINEAR_CHECK, .answer = 0, .start = 3, .end = 4}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct linear_op ops[N];
        size_t count = 0;
        while (count < N && rows[i].ops[count].start > 0) {
            count++;
        }
        for (size_t j = 0; j < count; j++) { /* in whatever order they are noted */
            ops[j] = rows[i].ops[count - 1 - j];
        }
        if (linear_check(ops, count, budget) != rows[i].verdict) {
            linear_print(ops, count);
            fail_msg("history %zu was judged wrongly", i);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_checker_tells_right_from_wrong),
        cmocka_unit_test(answers_are_linearizable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
