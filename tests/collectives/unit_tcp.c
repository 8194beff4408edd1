/* covers: collectives/net.c collectives/tcp.c */
/* Communicators over several hosts, with ranks as threads on pretended hosts: every collective
 * against sums in tree order for many layouts, groups, disagreement, aborts, a rank that leaves,
 * and strangers that connect. */
#include "tests/lib/comm_threads.h"

#include "base/clock.h"
#include "base/text.h"
#include "collectives/net.h"
#include "collectives/tcp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
// clang-format off: needs the headers above
#include <cmocka.h>
// clang-format on

static void run(const char *layout, void (*body)(struct rank *r))
{
    threads_run((int)strlen(layout), layout, -1, body);
}

/* 4096 floats are the last small ones; the largest needs several passes of a stage where slots share it. */
#define COUNT_MAX 300001
static const int64_t counts[] = {0, 1, 3, 64, 4096, 4097, 70001, COUNT_MAX};

static void all_kinds(struct rank *r)
{
    struct dt_error err;
    struct dt_comm *c = world(r);
    size_t bytes = (size_t)COUNT_MAX * 8 * (size_t)r->size + 4096;
    void *arena = NULL;
    OK(dt_comm_alloc(c, bytes, &arena, &err));
    char *heap = dt_alloc(bytes);
    static const enum dt_dtype types[] = {DT_F32, DT_F64, DT_I64, DT_BF16};
    int turn = 0;
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        for (int kind = DT_ALL_REDUCE; kind <= DT_BROADCAST; kind++) {
            for (size_t t = 0; t < 4; t++, turn++) {
                if ((counts[k] > 5000 && r->size > 3 && t != (size_t)kind) ||
                    (counts[k] == COUNT_MAX && (t > 0 || r->size > 3))) {
                    continue;
                }
                enum dt_reduction op =
                    kind <= DT_REDUCE_SCATTER && counts[k] < 5000 ? (enum dt_reduction)(turn % 3) : DT_SUM;
                size_t shift = (size_t)(turn % 3) * dt_dtype_size(types[t]);
                char *in = turn % 2 == 0 ? heap : arena, *out = turn % 2 == 0 ? arena : heap;
                check_one(c, (enum dt_coll)kind, op, types[t], counts[k], in + shift, out + shift);
            }
        }
        start(c, &(struct dt_collective){.kind = DT_BARRIER});
    }
    free(heap);
    dt_comm_close(c);
}

static void layouts_equal_the_tree(void **unused)
{
    (void)unused;
    static const char *const layouts[] = {"aaa", "ab", "aab", "abb", "abc", "aabb", "aaab", "abbb", "abab", "abbccc"};
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        run(layouts[i], all_kinds);
    }
}

/* More blocks than travel before the first merged one comes back. */
static void many_blocks(struct rank *r)
{
    struct dt_error err;
    struct dt_comm *c = world(r);
    const int64_t count = 1200001;
    void *arena = NULL;
    OK(dt_comm_alloc(c, (size_t)count * 8 + 64, &arena, &err));
    char *heap = dt_alloc((size_t)count * 8 + 64);
    check_one(c, DT_ALL_REDUCE, DT_SUM, DT_F32, count, heap, arena);
    check_one(c, DT_ALL_REDUCE, DT_SUM, DT_F64, count, arena, heap + 8);
    check_one(c, DT_REDUCE_SCATTER, DT_SUM, DT_F32, count / r->size, heap, arena);
    free(heap);
    dt_comm_close(c);
}

/* Addresses of both ends differ when leaders listen at 127.0.0.2: then more is on its way, as
 * between two machines. */
static void near_and_far_equal_the_tree(void **unused)
{
    (void)unused;
    for (int far = 0; far < 2; far++) {
        (void)(far ? setenv("DTRUN_LOCAL_ADDR", "127.0.0.2", 1) : unsetenv("DTRUN_LOCAL_ADDR"));
        run("ab", many_blocks);
        run("abc", many_blocks);
        run("aab", many_blocks);
    }
    (void)unsetenv("DTRUN_LOCAL_ADDR");
}

static void in_place(struct rank *r)
{
    struct dt_comm *c = world(r);
    const int64_t large = 150000;
    float *x = dt_alloc((size_t)(large * r->size) * 4), *want = dt_alloc((size_t)(large * r->size) * 4);
    for (int64_t n = 10; n <= large; n *= large / 10) {
        check_in_place(c, n, x, want);
    }
    free(x);
    free(want);
    dt_comm_close(c);
}

static void results_may_replace_inputs(void **unused)
{
    (void)unused;
    run("ab", in_place);
    run("aab", in_place);
    run("abc", in_place);
}

/* Rows lie on a host, columns across; uneven groups too, and a group that leads nowhere in the
 * world. */
static void grouped(struct rank *r)
{
    struct dt_error err;
    struct dt_comm *c = world(r), *row = NULL, *column = NULL, *some = NULL;
    void *arena = NULL;
    OK(dt_comm_alloc(c, 80000, &arena, &err));
    OK(dt_comm_split(c, r->rank / 2, "row", &row, &err));
    OK(dt_comm_split(c, r->rank % 2, "column", &column, &err));
    OK(dt_comm_split(c, r->rank > 0 ? 5 : -1, "some", &some, &err));
    CHECK(row->size == 2 && column->size == 2 && (r->rank > 0) == (some != NULL));
    float *x = arena, *y = dt_alloc(80000), *whole = dt_alloc(80000);
    for (int64_t n = 100; n <= 20000; n *= 200) {
        check_two_by_two(c, row, column, n, x, y, whole);
    }
    if (some != NULL) {
        void *theirs = NULL;
        OK(dt_comm_alloc(some, 400000, &theirs, &err));
        check_one(some, DT_REDUCE_SCATTER, DT_SUM, DT_F64, 3000, theirs, (char *)arena + 8);
        check_one(some, DT_ALL_REDUCE, DT_SUM, DT_F64, 9000, theirs, arena);
    }
    dt_comm_close(row);
    dt_comm_close(column);
    dt_comm_close(some);
    dt_comm_close(c);
    free(y);
    free(whole);
}

static void groups(void **unused)
{
    (void)unused;
    run("aabb", grouped);
    run("abab", grouped);
    run("aaab", grouped);
}

static void disagree(struct rank *r)
{
    struct dt_error err = {0};
    struct dt_comm *c = world(r);
    float x[10] = {0}, y[10];
    int64_t count = r->rank == r->size - 1 ? 7 : 8;
    dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "grads 3", x, y, count, DT_F32, 0}, NULL);
    CHECK(dt_comm_poll(c, &err) == -1 && err.status == DT_INVALID);
    CHECK(strstr(err.text, "all_reduce grads 3 of 7") != NULL && strstr(err.text, "all_reduce grads 3 of 8") != NULL);
    dt_comm_close(c);
}

static void disagreement_is_named(void **unused)
{
    (void)unused;
    run("ab", disagree);
    run("aab", disagree);
    run("abb", disagree);
}

/* The last rank never comes; the others give up and say who it is. */
static void late(struct rank *r)
{
    struct dt_error err = {0};
    r->timeout_s = 0.5;
    struct dt_comm *c = world(r);
    float x[2] = {0};
    dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "grads 3", x, x, 2, DT_F32, 0}, NULL);
    CHECK(dt_comm_poll(c, &err) == 0);
    (void)pthread_barrier_wait(&meeting);
    if (r->rank < r->size - 1) {
        dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "grads 4", x, x, 2, DT_F32, 0}, NULL);
        CHECK(dt_comm_poll(c, &err) == -1 && err.status == DT_TIMEOUT);
        char who[64];
        long long own = 0, theirs = 0;
        (void)snprintf(who, sizeof(who), "missing: rank %d, last in all_reduce grads 3 (number ", r->size - 1);
        const char *at = strstr(err.text, who), *begun = strstr(err.text, "all_reduce grads 4 (number ");
        if (r->size == 2) { /* alone on its host */
            CHECK(begun != NULL && strstr(err.text, "missing: host b (rank 1), which has not begun it") != NULL);
        } else {
            CHECK(at != NULL && begun != NULL && begun < at);
            CHECK(sscanf(at + strlen(who), "%lld", &theirs) == 1 &&
                  sscanf(begun + strlen("all_reduce grads 4 (number "), "%lld", &own) == 1);
            CHECK(own == theirs + 1); /* counted alike */
        }
    }
    (void)pthread_barrier_wait(&meeting);
    dt_comm_close(c);
}

static void timeout_names_the_missing(void **unused)
{
    (void)unused;
    run("ab", late);
    run("aabb", late);
}

/* Rank `leaver` closes, aborts, or is ordered to; all others that wait are freed with a reason. */
static int leaver, manner;

static void leave(struct rank *r)
{
    struct dt_error err = {0};
    struct dt_comm *c = world(r);
    float *x = dt_alloc(400000);
    if (r->rank == leaver) {
        if (manner == 1) {
            dt_comm_abort(c);
        } else if (manner == 2) {
            atomic_store(&r->page->order, DT_ORDER_ABORT);
            dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "work", x, x, 100000, DT_F32, 0}, NULL);
            CHECK(dt_comm_poll(c, &err) == -1 && err.status == DT_STOPPED);
        }
    } else {
        for (int i = 0; i < 2; i++) {
            dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "work", x, x, 100000, DT_F32, 0}, NULL);
            CHECK(dt_comm_poll(c, &err) == -1 && (err.status == DT_PEER || err.status == DT_STOPPED));
        }
    }
    dt_comm_close(c);
    free(x);
}

static void whoever_waits_is_freed(void **unused)
{
    (void)unused;
    static const char *const layouts[] = {"ab", "aabb"};
    for (size_t i = 0; i < 2; i++) {
        for (manner = 0; manner < 3; manner++) {
            for (leaver = 0; leaver < (int)strlen(layouts[i]); leaver++) {
                run(layouts[i], leave);
            }
        }
    }
}

static void *abort_later(void *arg)
{
    dt_sleep_s(0.05);
    dt_comm_abort(arg);
    return NULL;
}

/* An abort from another thread, in the middle of a wait. */
static void abort_self(struct rank *r)
{
    struct dt_error err = {0};
    struct dt_comm *c = world(r);
    if (r->rank == 0) {
        float x[2] = {0};
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, abort_later, c) == 0);
        dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "work", x, x, 2, DT_F32, 0}, NULL);
        CHECK(dt_comm_poll(c, &err) == -1 && err.status == DT_STOPPED);
        CHECK(pthread_join(thread, NULL) == 0);
    } else {
        double end_s = dt_now_s() + 60;
        while (dt_comm_poll(c, &err) == 0) {
            CHECK(dt_now_s() < end_s);
            dt_sleep_s(0.002);
        }
        CHECK(err.status == DT_PEER && strstr(err.text, "rank 0 aborted") != NULL);
    }
    (void)pthread_barrier_wait(&meeting);
    dt_comm_close(c);
}

static void abort_from_another_thread(void **unused)
{
    (void)unused;
    run("ab", abort_self);
    run("aabb", abort_self);
}

/* Strangers at the port of rank 0: silent, talking, and one with the magic but not the nonce. */
static void strangers(struct rank *r)
{
    struct dt_error err = {0};
    struct dt_net n[4] = {{.fd = -1}, {.fd = -1}, {.fd = -1}, {.fd = -1}};
    if (r->rank == 1) {
        struct dt_text ticket;
        dt_text_init(&ticket);
        char address[64];
        int port = 0;
        OK(dt_store_get(r->store, "comm/tcp/world/0/0", &ticket, 60, &err));
        CHECK(sscanf(dt_text_str(&ticket), "tcp1 %*s %63s %d", address, &port) == 2);
        dt_text_clear(&ticket);
        uint32_t magic[64] = {TCP_MAGIC};
        static const char garbage[] = "GET / HTTP/1.1\r\nHost: somebody else\r\n\r\n";
        for (int i = 0; i < 4; i++) {
            OK(dt_net_connect(&n[i], address, port, dt_now_s() + 60, NULL, &err));
        }
        OK(dt_net_write(&n[1], garbage, sizeof(garbage), dt_now_s() + 60, &err));
        OK(dt_net_write(&n[2], magic, sizeof(magic), dt_now_s() + 60, &err));
        OK(dt_net_write(&n[3], magic, 6, dt_now_s() + 60, &err));
    }
    struct dt_comm *c = world(r);
    int64_t x = r->rank + 1;
    start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "sum", &x, &x, 1, DT_I64, 0});
    CHECK(x == 3);
    dt_comm_close(c);
    for (int i = 0; i < 4; i++) {
        dt_net_close(&n[i]);
    }
}

static void strangers_change_nothing(void **unused)
{
    (void)unused;
    run("ab", strangers);
}

static void ranged(struct rank *r)
{
    struct dt_comm *c = world(r);
    start(c, &(struct dt_collective){.kind = DT_BARRIER, .name = "b"});
    dt_comm_close(c);
}

static void bad_port_range(struct rank *r)
{
    struct dt_error err = {0};
    struct dt_comm *c = NULL;
    struct dt_comm_options o = {
        .rank = r->rank, .size = 2, .host = r->host, .store = r->store, .page = r->page, .open_timeout_s = 60};
    CHECK(dt_comm_open(&c, &o, &err) == -1 && err.status == DT_INVALID && strstr(err.text, "DTRUN_PORT_RANGE") != NULL);
}

static void ports_in_range(void **unused)
{
    (void)unused;
    (void)setenv("DTRUN_PORT_RANGE", "9-7", 1);
    run("ab", bad_port_range);
    (void)setenv("DTRUN_PORT_RANGE", "20000-32000", 1);
    (void)setenv("DTRUN_LOCAL_ADDR", "127.0.0.1", 1);
    run("abc", ranged);
    (void)unsetenv("DTRUN_PORT_RANGE");
    (void)unsetenv("DTRUN_LOCAL_ADDR");
}

/* A leader that died while it said why: the rest of its word never comes. */
static void a_word_that_breaks_off_is_an_end(void **unused)
{
    (void)unused;
    int ends[2], ranks[2] = {0, 1};
    struct dt_comm solo = {0};
    struct tcp_host hosts[2] = {{.key = "a", .ranks = &ranks[0], .rank_count = 1, .control = -1},
                                {.key = "b", .ranks = &ranks[1], .rank_count = 1}};
    struct tcp t = {.inner = &solo, .leader = true, .open = true, .host_count = 2, .hosts = hosts};
    struct dt_comm c = {.name = "world", .state = &t};
    struct dt_error err;
    struct tcp_word word = {.magic = TCP_MAGIC, .status = DT_IO, .text = "disk"};
    for (int whole = 0; whole < 2; whole++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        hosts[1].control = ends[0];
        assert_int_equal(send(ends[1], &word, 10, MSG_NOSIGNAL), 10);
        assert_int_equal(tcp_look(&c, &err), 0); /* it may still come */
        if (whole) {
            assert_int_equal(send(ends[1], (char *)&word + 10, sizeof word - 10, MSG_NOSIGNAL),
                             (ssize_t)sizeof word - 10);
        }
        assert_int_equal(close(ends[1]), 0);
        assert_int_equal(tcp_look(&c, &err), -1);
        assert_int_equal(err.status, whole ? DT_IO : DT_PEER);
        assert_non_null(strstr(err.text, whole ? "disk (told by host b)" : "its connection has ended"));
        assert_int_equal(close(ends[0]), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_equal_the_tree),
        cmocka_unit_test(near_and_far_equal_the_tree),
        cmocka_unit_test(results_may_replace_inputs),
        cmocka_unit_test(groups),
        cmocka_unit_test(disagreement_is_named),
        cmocka_unit_test(timeout_names_the_missing),
        cmocka_unit_test(whoever_waits_is_freed),
        cmocka_unit_test(abort_from_another_thread),
        cmocka_unit_test(strangers_change_nothing),
        cmocka_unit_test(ports_in_range),
        cmocka_unit_test(a_word_that_breaks_off_is_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
