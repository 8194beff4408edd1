/* covers: collectives/peer.c kernels/device.c */
/* The backend "peer" with ranks as threads on the device "apart": every collective against sums
 * in tree order, in arenas and outside, in place, in groups; what is said of ranks that differ;
 * and that a stream is let go whose peer never comes. */
#include "tests/lib/comm_threads.h"

#include "base/clock.h"
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off: needs the headers above
#include <cmocka.h>
// clang-format on

static void run(int size, void (*body)(struct rank *r))
{
    threads_run(size, NULL, -1, body);
}

/* 4096 floats are the last small ones; 700001 outside the arenas take several chunks. */
static const int64_t counts[] = {0, 1, 3, 64, 1023, 4096, 4097, 70001, 700001};
#define COUNT_MAX 700001

static void all_kinds(struct rank *r)
{
    struct dt_error err;
    device_open(r, "apart");
    struct dt_comm *c = world(r);
    CHECK(strcmp(c->ops->name, "peer") == 0);
    size_t bytes = (size_t)COUNT_MAX * 8 * (size_t)r->size + 4096;
    void *arena = NULL, *second = NULL;
    OK(dt_comm_alloc(c, bytes, &arena, &err));
    OK(dt_comm_alloc(c, bytes, &second, &err));
    char *heap = dt_alloc(bytes), *heap2 = dt_alloc(bytes);
    static const enum dt_dtype types[] = {DT_F32, DT_F64, DT_I64, DT_BF16};
    int turn = 0;
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        for (int kind = DT_ALL_REDUCE; kind <= DT_BROADCAST; kind++) {
            for (size_t t = 0; t < 4; t++, turn++) {
                if (counts[k] > 5000 && t > 0 && (counts[k] > 70001 || t == 1)) {
                    continue;
                }
                enum dt_reduction op =
                    kind <= DT_REDUCE_SCATTER && counts[k] < 5000 ? (enum dt_reduction)(turn % 3) : DT_SUM;
                size_t shift = (size_t)(turn % 3) * dt_dtype_size(types[t]);
                char *in = turn % 4 == 1 || turn % 4 == 2 ? heap : arena,
                     *out = turn % 4 == 1 || turn % 4 == 3 ? heap2 : second;
                check_one(c, (enum dt_coll)kind, op, types[t], counts[k], in + shift, out + shift);
            }
        }
    }
    start(c, &(struct dt_collective){.kind = DT_BARRIER});
    free(heap);
    free(heap2);
    dt_comm_close(c);
    device_close(r);
}

static void collectives_equal_the_tree(void **unused)
{
    (void)unused;
    for (int size = 2; size <= 5; size++) {
        run(size, all_kinds);
    }
}

/* A hundred collectives enqueued without a wait: more than what is kept of sums. The result of
 * each is the next one's input. */
static void many(struct rank *r)
{
    struct dt_error err;
    device_open(r, "apart");
    struct dt_comm *c = world(r);
    enum { COUNT = 5000, TIMES = 100 };
    void *arena = NULL;
    OK(dt_comm_alloc(c, COUNT * sizeof(int64_t), &arena, &err));
    int64_t *x = arena, small[8];
    for (int i = 0; i < COUNT; i++) {
        x[i] = r->rank + i;
    }
    for (int i = 0; i < 8; i++) {
        small[i] = r->rank;
    }
    for (int k = 0; k < TIMES; k++) {
        dt_comm_start(
            c, &(struct dt_collective){DT_ALL_REDUCE, k % 2 == 0 ? DT_SUM : DT_MAX, "large", x, x, COUNT, DT_I64, 0},
            r->stream);
        dt_comm_start(
            c,
            &(struct dt_collective){DT_ALL_REDUCE, k % 2 == 0 ? DT_MIN : DT_SUM, "small", small, small, 8, DT_I64, 0},
            r->stream);
    }
    OK(dt_stream_finish(r->stream, 60, &err));
    OK(dt_comm_poll(c, &err));
    uint64_t first[2] = {0, 0}; /* of sums that wrap around: the first adds what ranks began
                                 * with, the later ones equal numbers */
    uint64_t size = (uint64_t)r->size;
    for (int i = 0; i < r->size; i++) {
        first[0] += (uint64_t)i;
    }
    uint64_t large = first[0], tiny = 0;
    for (int k = 1; k < TIMES; k++) {
        large = k % 2 == 0 ? large * size : large;
        tiny = k % 2 == 0 ? tiny : tiny * size;
    }
    CHECK((uint64_t)x[0] == large && (uint64_t)small[7] == tiny);
    dt_comm_close(c);
    device_close(r);
}

static void the_host_may_run_ahead(void **unused)
{
    (void)unused;
    run(2, many);
    run(3, many);
}

static void in_groups(struct rank *r)
{
    struct dt_error err;
    device_open(r, "apart");
    struct dt_comm *c = world(r), *row = NULL, *column = NULL;
    void *arena = NULL;
    OK(dt_comm_alloc(c, 4 * 80000, &arena, &err));
    OK(dt_comm_split(c, r->rank / 2, "row", &row, &err));
    OK(dt_comm_split(c, r->rank % 2, "column", &column, &err));
    float *x = arena, *y = x + 20000, *whole = x + 40000;
    for (int64_t n = 100; n <= 20000; n *= 200) {
        check_two_by_two(c, row, column, n, x, y, whole);
        /* in place: each at its slice */
        start(c, &(struct dt_collective){DT_REDUCE_SCATTER, DT_SUM, "mine", y, y + n / 4 * r->rank, n / 4, DT_F32, 0});
        start(c, &(struct dt_collective){DT_ALL_GATHER, DT_SUM, "all", y + n / 4 * r->rank, y, n / 4, DT_F32, 0});
        for (int i = 0; i < n / 4 * 4; i++) {
            CHECK(y[i] == 4 * whole[i]);
        }
    }
    dt_comm_close(row);
    dt_comm_close(column);
    dt_comm_close(c);
    device_close(r);
}

static void groups_use_the_arenas_of_all(void **unused)
{
    (void)unused;
    run(4, in_groups);
}

/* A reduction that rank 0 comes to late, and behind it on a second stream a gather by a group of
 * the same ranks: it does not wait. */
static void gather_beside(struct rank *r)
{
    struct dt_error err;
    device_open(r, "apart");
    struct dt_comm *c = world(r), *gather = NULL;
    struct dt_stream *second = NULL;
    struct dt_event *through = NULL;
    enum { COUNT = 30000 }; /* too many for the stages */
    void *arena = NULL;
    uint32_t word = 0;
    CHECK(dt_comm_beside(c));
    OK(dt_comm_split(c, 0, "gather", &gather, &err));
    OK(dt_comm_alloc(c, (size_t)(2 + r->size) * COUNT * sizeof(float), &arena, &err));
    OK(dt_stream_open(&r->device, 1, &second, &err));
    OK(dt_event_open(&r->device, &through, &err));
    float *x = arena, *mine = x + COUNT, *all = mine + COUNT;
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)(r->rank + 1);
        mine[i] = (float)(100 * r->rank + i % 7);
    }
    if (r->rank == 0) {
        dt_stream_wait_word(r->stream, &word, 1);
    }
    dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "late", x, x, COUNT, DT_F32, 0}, r->stream);
    dt_event_record(through, r->stream);
    dt_comm_start(gather, &(struct dt_collective){DT_ALL_GATHER, DT_SUM, "all", mine, all, COUNT, DT_F32, 0}, second);
    OK(dt_stream_finish(second, 30, &err));
    CHECK(dt_event_sync(through, 0.02, &err) != 0 && err.status == DT_TIMEOUT);
    for (int k = 0; k < r->size * COUNT; k++) {
        CHECK(all[k] == (float)(100 * (k / COUNT) + k % COUNT % 7));
    }
    (void)pthread_barrier_wait(&meeting); /* everybody has seen it late */
    __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
    OK(dt_event_sync(through, 30, &err));
    CHECK(x[0] == (float)(r->size * (r->size + 1) / 2) && x[COUNT - 1] == x[0]);
    OK(dt_comm_poll(c, &err));
    OK(dt_comm_poll(gather, &err));
    dt_event_close(through);
    dt_stream_close(second);
    dt_comm_close(gather);
    dt_comm_close(c);
    device_close(r);
}

static void a_late_reduction_holds_up_no_gather(void **unused)
{
    (void)unused;
    run(2, gather_beside);
    run(3, gather_beside);
}

/* Waits until the communicator says what is wrong. */
static void until_told(struct dt_comm *c, struct dt_error *err)
{
    double until_s = dt_now_s() + 30;
    while (dt_comm_poll(c, err) == 0) {
        CHECK(dt_now_s() < until_s);
        dt_sleep_s(0.005);
    }
}

static void different(struct rank *r)
{
    struct dt_error err = {0};
    device_open(r, "apart");
    struct dt_comm *c = world(r);
    void *arena = NULL;
    OK(dt_comm_alloc(c, 100000, &arena, &err));
    int64_t count = r->rank == 1 ? 9000 : 8000;
    dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "grads 3", arena, arena, count, DT_F32, 0},
                  r->stream);
    until_told(c, &err);
    CHECK(strstr(err.text, "grads 3 of 9000 F32") != NULL && strstr(err.text, "grads 3 of 8000 F32") != NULL &&
          strstr(err.text, "disagree") != NULL);
    dt_comm_abort(c);
    (void)dt_stream_finish(r->stream, 30, &err);
    CHECK(err.status != DT_TIMEOUT);
    dt_comm_close(c);
    device_close(r);
}

static void ranks_that_differ_are_named(void **unused)
{
    (void)unused;
    run(3, different);
}

/* Rank 1 never comes: the others name it when their time is over, and their streams end. */
static void late(struct rank *r)
{
    struct dt_error err = {0};
    device_open(r, "apart");
    r->timeout_s = 0.3;
    struct dt_comm *c = world(r);
    float x[4] = {0};
    if (r->rank != 1) {
        dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "sum", x, x, 4, DT_F32, 0}, r->stream);
        until_told(c, &err);
        CHECK(strstr(err.text, "rank 1") != NULL && strstr(err.text, "rank 0,") == NULL);
        dt_comm_abort(c);
        double begin_s = dt_now_s();
        (void)dt_stream_finish(r->stream, 30, &err);
        CHECK(dt_now_s() - begin_s < 20);
    }
    (void)pthread_barrier_wait(&meeting);
    dt_comm_abort(c);
    dt_comm_close(c);
    device_close(r);
}

static void a_rank_that_never_comes_is_named(void **unused)
{
    (void)unused;
    run(2, late);
    run(3, late);
}

/* A host that runs ahead asks nobody: its streams are let go all the same, in time, also where
 * only another communicator of the family knows of the loss; and each rank is told who was lost,
 * not who was let go first because of it. */
static void far_ahead(struct rank *r)
{
    struct dt_error err = {0};
    device_open(r, "apart");
    struct dt_comm *c = world(r), *row = NULL;
    float x[4] = {0};
    OK(dt_comm_split(c, r->rank / 2, "row", &row, &err));
    if (r->rank == 0) {
        dt_comm_start(row, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "sum", x, x, 4, DT_F32, 0}, r->stream);
        while (atomic_load(&r->page->in_collective) == 0) { /* the page shows where the stream is */
            dt_sleep_s(0.001);
        }
    }
    (void)pthread_barrier_wait(&meeting);
    double begin_s = dt_now_s();
    if (r->rank == 3) { /* of another row */
        dt_comm_abort(c);
    }
    if (r->rank == 0) {
        (void)dt_stream_finish(r->stream, 30, &err);
        CHECK(dt_now_s() - begin_s < 10);
        CHECK(dt_comm_poll(row, &err) != 0 && err.status == DT_PEER && strstr(err.text, "rank 3") != NULL);
        while (atomic_load(&r->page->in_collective) != 0) { /* the thread that let the stream go
                                                             * says so next */
            CHECK(dt_now_s() - begin_s < 10);
            dt_sleep_s(0.001);
        }
    } else if (r->rank != 3) {
        until_told(row, &err);
        CHECK(err.status == DT_PEER && strstr(err.text, "rank 3") != NULL);
    }
    (void)pthread_barrier_wait(&meeting);
    dt_comm_abort(row);
    dt_comm_abort(c);
    dt_comm_close(row);
    dt_comm_close(c);
    device_close(r);
}

static void a_host_that_never_asks_is_let_go(void **unused)
{
    (void)unused;
    run(4, far_ahead);
}

static void only_for_devices_with_memory_of_their_own(void **unused)
{
    (void)unused;
    struct dt_device d;
    struct dt_comm *c = NULL;
    struct dt_error err;
    assert_int_equal(dt_device_open(&d, "apart", NULL, &err), 0);
    struct dt_comm_options o = {.backend = "shm", .rank = 0, .size = 2, .device = &d};
    assert_int_equal(dt_comm_open(&c, &o, &err), -1);
    assert_non_null(strstr(err.text, "backend shm reaches host memory only"));
    dt_device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_equal_the_tree),       cmocka_unit_test(the_host_may_run_ahead),
        cmocka_unit_test(groups_use_the_arenas_of_all),     cmocka_unit_test(ranks_that_differ_are_named),
        cmocka_unit_test(a_rank_that_never_comes_is_named), cmocka_unit_test(only_for_devices_with_memory_of_their_own),
        cmocka_unit_test(a_host_that_never_asks_is_let_go), cmocka_unit_test(a_late_reduction_holds_up_no_gather),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
