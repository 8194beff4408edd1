/* covers: collectives */
/* Communicators with ranks as threads: every collective against sums in tree order, groups,
 * arenas, statistics, and what ranks are told when one of them is late, does something else, or
 * leaves. */
#include "tests/lib/comm_threads.h"

#include "base/clock.h"
#include "base/text.h"
#include "collectives/shm.h"
#include "collectives/tree.h"
#include "kernels/device.h"

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

/* 4096 floats are the last small one; 300001 pass through the bounce buffer in several chunks. */
#ifdef DT_SANITIZED
static const int64_t counts[] = {0, 1, 3, 64, 4096, 4097, 70001};
#else
static const int64_t counts[] = {0, 1, 2, 3, 7, 64, 1023, 4096, 4097, 5000, 70001, 300001};
#endif
#define COUNT_MAX 300001

static void all_kinds(struct rank *r)
{
    struct dt_error err;
    struct dt_comm *c = world(r);
    size_t bytes = (size_t)COUNT_MAX * 8 * (size_t)r->size + 4096;
    void *arena = NULL, *second = NULL;
    OK(dt_comm_alloc(c, bytes, &arena, &err));
    OK(dt_comm_alloc(c, bytes, &second, &err));
    char *heap = dt_alloc(bytes), *heap2 = dt_alloc(bytes);
    static const enum dt_dtype types[] = {DT_F32, DT_F64, DT_I64, DT_BF16};
    int turn = 0;
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        for (int kind = DT_ALL_REDUCE; kind <= DT_BROADCAST; kind++) {
            for (size_t t = 0; t < 4; t++, turn++) {
                if ((counts[k] > 70001 && (t > 0 || r->size >= 4)) || (counts[k] > 5000 && t == 1 && r->size == 5)) {
                    continue;
                }
                enum dt_reduction op =
                    kind <= DT_REDUCE_SCATTER && counts[k] < 5000 ? (enum dt_reduction)(turn % 3) : DT_SUM;
                /* also where lines and vectors do not begin */
                size_t shift = (size_t)(turn % 3) * dt_dtype_size(types[t]);
                /* arenas, private memory, one of them on some ranks only, and offsets that
                 * differ between ranks */
                size_t mine = turn % 7 == 0 ? (size_t)r->rank * 64 : 0;
                char *in = turn % 4 == 1 || (turn % 4 == 2 && r->rank == 1) ? heap : arena;
                char *out = turn % 4 == 1 || (turn % 4 == 3 && r->rank == 0) ? heap2 : second;
                check_one(c, (enum dt_coll)kind, op, types[t], counts[k], in + shift + mine, out + shift);
            }
        }
    }
    start(c, &(struct dt_collective){.kind = DT_BARRIER});
    free(heap);
    free(heap2);
    dt_comm_close(c);
}

static void collectives_equal_the_tree(void **unused)
{
    (void)unused;
    for (int size = 1; size <= 5; size++) {
        run(size, all_kinds);
    }
}

/* Small and large, in the arena and in private memory. */
static void in_place(struct rank *r)
{
    struct dt_error err;
    struct dt_comm *c = world(r);
    void *arena = NULL;
    const int64_t large = 20000;
    OK(dt_comm_alloc(c, (size_t)(large * r->size) * 4, &arena, &err));
    float *heap = dt_alloc((size_t)(large * r->size) * 4), *want = dt_alloc((size_t)(large * r->size) * 4);
    for (int round = 0; round < 4; round++) {
        check_in_place(c, round < 2 ? 10 : large, round % 2 == 0 ? arena : heap, want);
    }
    free(heap);
    free(want);
    dt_comm_close(c);
}

static void results_may_replace_inputs(void **unused)
{
    (void)unused;
    run(1, in_place);
    run(2, in_place);
    run(3, in_place);
}

static void grouped(struct rank *r)
{
    struct dt_error err;
    struct dt_comm *c = world(r), *row = NULL, *column = NULL, *some = NULL;
    void *arena = NULL;
    OK(dt_comm_alloc(c, 80000, &arena, &err));
    OK(dt_comm_split(c, r->rank / 2, "row", &row, &err));
    OK(dt_comm_split(c, r->rank % 2, "column", &column, &err));
    OK(dt_comm_split(c, r->rank < 3 ? 5 : -1, "some", &some, &err));
    CHECK(row->size == 2 && row->rank == r->rank % 2 && column->size == 2 && column->rank == r->rank / 2);
    CHECK(row->members[0] == r->rank / 2 * 2 && column->members[1] == r->rank % 2 + 2);
    CHECK(r->rank < 3 ? some->size == 3 && some->rank == r->rank : some == NULL);
    float *x = arena, *y = dt_alloc(80000), *whole = dt_alloc(80000);
    for (int64_t n = 100; n <= 20000; n *= 200) {
        check_two_by_two(c, row, column, n, x, y, whole);
    }
    if (some != NULL) {
        void *theirs = NULL;
        OK(dt_comm_alloc(some, 400000, &theirs, &err)); /* a group may have an arena of its own */
        check_one(some, DT_REDUCE_SCATTER, DT_SUM, DT_F64, 3000, theirs, (char *)arena + 8);
        check_one(some, DT_ALL_REDUCE, DT_SUM, DT_F64, 9000, theirs, arena);
    }
    /* A group of one, and a group of a group. */
    struct dt_comm *alone = NULL, *again = NULL;
    OK(dt_comm_split(row, row->rank, "alone", &alone, &err));
    CHECK(alone->size == 1 && strcmp(alone->ops->name, "solo") == 0);
    start(alone, &(struct dt_collective){DT_ALL_GATHER, DT_SUM, "copy", x, y, 10, DT_F32, 0});
    CHECK(memcmp(x, y, 40) == 0);
    OK(dt_comm_split(column, 0, "again", &again, &err));
    check_one(again, DT_ALL_GATHER, DT_SUM, DT_F32, 9000, (char *)arena + 16, (char *)y);
    dt_comm_close(again);
    dt_comm_close(alone);
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
    run(4, grouped);
}

static void counted(struct rank *r)
{
    struct dt_comm *c = world(r);
    float x[30] = {0}, y[30];
    start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "a", x, y, 10, DT_F32, 0});
    start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "b", x, y, 5, DT_F64, 0});
    start(c, &(struct dt_collective){DT_REDUCE_SCATTER, DT_SUM, "c", x, y, 7, DT_F32, 0});
    start(c, &(struct dt_collective){DT_ALL_GATHER, DT_SUM, "d", x, y, 3, DT_F32, 0});
    start(c, &(struct dt_collective){DT_BROADCAST, DT_SUM, "e", x, y, 3, DT_U8, 0});
    start(c, &(struct dt_collective){.kind = DT_BARRIER, .name = "f"});
    const struct dt_comm_stats want = {{2, 1, 1, 1, 1}, {80, 28 * r->size, 12 * r->size, 3, 0}};
    CHECK(memcmp(&c->stats, &want, sizeof(want)) == 0);
    CHECK(atomic_load(&r->page->collective_count) == 6 && strcmp(r->page->collective_name, "barrier f") == 0);
    CHECK(atomic_load(&r->page->in_collective) == 0 && atomic_load(&r->page->collective_s) > 0);
    dt_comm_close(c);
}

static void statistics(void **unused)
{
    (void)unused;
    run(1, counted);
    run(3, counted);
}

static void on_streams(struct rank *r)
{
    struct dt_error err;
    struct dt_device d = {0};
    struct dt_stream *s = NULL, *t = NULL;
    struct dt_comm *c = world(r), *group = NULL;
    void *arena = NULL;
    for (int kind = DT_STREAMS_INLINE; kind <= DT_STREAMS_THREAD; kind++) {
        OK(dt_device_open(&d, "cpu",
                          &(struct dt_device_options){.streams = (enum dt_streams)kind, .local_rank_count = r->size},
                          &err));
        OK(dt_stream_open(&d, 0, &s, &err));
        OK(dt_stream_open(&d, 0, &t, &err));
        OK(dt_comm_alloc(c, 400000, &arena, &err));
        OK(dt_comm_split(c, 0, "group", &group, &err));
        float *x = arena, *y = x + 50000;
        for (int i = 0; i < 100000; i++) {
            x[i] = 1;
        }
        for (int i = 0; i < 20; i++) { /* two communicators on two streams at once */
            dt_comm_start(
                c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "x", x, x, i % 2 == 0 ? 30000 : 100, DT_F32, 0}, s);
            dt_comm_start(
                group, &(struct dt_collective){DT_ALL_REDUCE, DT_MAX, "y", y, y, i % 2 == 0 ? 100 : 30000, DT_F32, 0},
                t);
        }
        OK(dt_stream_finish(s, 60, &err));
        OK(dt_stream_finish(t, 60, &err));
        OK(dt_comm_poll(c, &err));
        float want = 1;
        for (int i = 0; i < 20; i++) {
            want *= (float)r->size;
        }
        CHECK(x[0] == want && y[0] == 1);
        dt_comm_close(group);
        dt_stream_close(s);
        dt_stream_close(t);
        dt_device_close(&d);
    }
    dt_comm_close(c);
}

static void streams(void **unused)
{
    (void)unused;
    run(2, on_streams);
}

/* Rank 1 of 3 does something else at number 2: all are told, with both sides. */
static void disagreeing(struct rank *r)
{
    struct dt_error err;
    struct dt_comm *c = world(r);
    static _Thread_local float x[9000], y[27000];
    start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "grads 1", x, y, 9000, DT_F32, 0});
    struct dt_collective what = {DT_ALL_REDUCE, DT_SUM, "grads 2", x, y, 9000, DT_F32, 0};
    if (r->rank == 1) {
        what = (struct dt_collective){DT_ALL_GATHER, DT_SUM, "weights 7", x, y, 4, DT_F32, 0};
    }
    dt_comm_start(c, &what, NULL);
    CHECK(dt_comm_poll(c, &err) != 0 && err.status == DT_INVALID);
    CHECK(strstr(err.text, "collective 2") != NULL && strstr(err.text, "all_reduce grads 2 of 9000 F32 sum") != NULL);
    CHECK(strstr(err.text, "rank 1 does all_gather weights 7 of 4 F32") != NULL);
    dt_comm_start(c, &what, NULL); /* whatever follows does nothing */
    CHECK(dt_comm_poll(c, &err) != 0 && err.status == DT_INVALID);
    dt_comm_close(c);
}

/* One differing argument at a time, on small collectives. */
static void disagreeing_a_little(struct rank *r)
{
    struct dt_error err;
    float x[64] = {0}, y[64];
    for (int i = 0; i < 6; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "case %d", i);
        struct dt_comm_options o = {
            .name = name, .rank = r->rank, .size = r->size, .store = r->store, .page = r->page, .open_timeout_s = 60};
        struct dt_comm *c = NULL;
        OK(dt_comm_open(&c, &o, &err));
        struct dt_collective a = {DT_ALL_REDUCE, DT_SUM, "x", x, y, 8, DT_F32, 0};
        bool other = r->rank == 1;
        a.count += i == 0 && other;
        a.type = i == 1 && other ? DT_F64 : a.type;
        a.op = i == 2 && other ? DT_MAX : a.op;
        a.name = i == 3 && other ? "z" : a.name;
        a.kind = i == 4 && other ? DT_BROADCAST : a.kind;
        if (i == 5) {
            a.kind = DT_BROADCAST;
            a.root = other;
        }
        dt_comm_start(c, &a, NULL);
        CHECK(dt_comm_poll(c, &err) != 0 && err.status == DT_INVALID && strstr(err.text, "disagree") != NULL);
        dt_comm_close(c);
    }
}

static void disagreement_is_named(void **unused)
{
    (void)unused;
    run(3, disagreeing);
    run(2, disagreeing_a_little);
}

/* Rank 2 never calls: the others name it and what it did last. */
static void late(struct rank *r)
{
    struct dt_error err;
    struct dt_comm *c = world(r);
    float x[4] = {0};
    start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "grads 1", x, x, 4, DT_F32, 0});
    start(c, &(struct dt_collective){.kind = DT_BARRIER, .name = "ready"});
    if (r->rank != 2) {
        c->timeout_s = 1; /* only now: the others may have come late */
        dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "grads 2", x, x, 4, DT_F32, 0}, NULL);
        CHECK(dt_comm_poll(c, &err) != 0);
        CHECK(err.status == DT_TIMEOUT && strstr(err.text, "all_reduce grads 2 (number 3)") != NULL);
        CHECK(strstr(err.text, "missing: rank 2, last in barrier ready (number 2)") != NULL &&
              strstr(err.text, "rank 1,") == NULL);
    }
    (void)pthread_barrier_wait(&meeting); /* rank 2 does not close before they have waited */
    dt_comm_close(c);
}

static void never_opens(struct rank *r)
{
    struct dt_error err;
    struct dt_comm *c = NULL;
    struct dt_comm_options o = {.rank = r->rank, .size = r->size, .store = r->store, .page = r->page};
    o.open_timeout_s = r->rank == 0 ? 1 : 60; /* rank 1 hears of it, however late it comes */
    CHECK(dt_comm_open(&c, &o, &err) != 0 && c == NULL && err.status == DT_TIMEOUT);
    CHECK(strstr(err.text, "rank 2, which has not come yet") != NULL && strstr(err.text, "communicator world") != NULL);
}

static void timeout_names_the_missing(void **unused)
{
    (void)unused;
    run(4, late);
    threads_run(3, NULL, 2, never_opens);
}

/* The last rank leaves in one way or another while the others wait. */
enum way { ABORTS, CLOSES, ORDERED, ALL_ORDERED, WAY_COUNT };
static enum way how;

static void leaving(struct rank *r)
{
    struct dt_error err;
    struct dt_comm *c = world(r);
    float x[4] = {0};
    start(c, &(struct dt_collective){.kind = DT_BARRIER, .name = "ready"});
    (void)pthread_barrier_wait(&meeting); /* all have seen the end of it */
    if (r->rank != r->size - 1) {
        dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "never", x, x, 4, DT_F32, 0}, NULL);
        CHECK(dt_comm_poll(c, &err) != 0);
        CHECK(err.status == (how == ABORTS || how == CLOSES ? DT_PEER : DT_STOPPED));
        CHECK(how == ALL_ORDERED || strstr(err.text, "rank 2") != NULL);
    } else if (how == ABORTS) {
        dt_comm_abort(c);
        dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "never", x, x, 4, DT_F32, 0}, NULL);
        CHECK(dt_comm_poll(c, &err) != 0 && err.status == DT_STOPPED);
    } else if (how == ORDERED) {
        atomic_store(&r->page->order, DT_ORDER_ABORT);
        dt_comm_start(c, &(struct dt_collective){DT_BARRIER, DT_SUM, "x", NULL, NULL, 0, DT_F32, 0}, NULL);
        CHECK(dt_comm_poll(c, &err) != 0 && err.status == DT_STOPPED);
    } else if (how == ALL_ORDERED) {
        for (int i = 0; i < r->size; i++) {
            atomic_store(&everyone[i].page->order, DT_ORDER_ABORT);
        }
    }
    dt_comm_close(c);
}

static void whoever_waits_is_freed(void **unused)
{
    (void)unused;
    for (how = ABORTS; how < WAY_COUNT; how++) {
        run(3, leaving);
    }
}

/* dt_comm_abort by another thread of the waiting rank, which waits on a stream. */
static void aborted_stream(struct rank *r)
{
    struct dt_error err;
    struct dt_device d = {0};
    struct dt_stream *s = NULL;
    struct dt_comm *c = world(r);
    float x[4] = {0};
    if (r->rank == 0) {
        OK(dt_device_open(&d, "cpu", &(struct dt_device_options){.streams = DT_STREAMS_THREAD}, &err));
        OK(dt_stream_open(&d, 0, &s, &err));
        dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "never", x, x, 4, DT_F32, 0}, s);
        while (atomic_load(&r->page->in_collective) == 0) {
            dt_sleep_s(0.001);
        }
        OK(dt_comm_poll(c, &err));
        dt_comm_abort(c);
        CHECK(dt_stream_finish(s, 60, &err) != 0 && err.status == DT_STOPPED);
        dt_stream_close(s);
        dt_device_close(&d);
    }
    (void)pthread_barrier_wait(&meeting);
    CHECK(dt_comm_poll(c, &err) != 0 && err.status == (r->rank == 0 ? DT_STOPPED : DT_PEER));
    dt_comm_close(c);
}

static void abort_frees_a_stream(void **unused)
{
    (void)unused;
    run(2, aborted_stream);
}

/* A failure that is being written is a failure: nobody goes on because the text is not there
 * yet, also when its writer was lost. */
static void half_told(struct rank *r)
{
    struct dt_error err = {0};
    struct dt_comm *c = world(r);
    struct shm_header *h = ((struct shm *)c->state)->header;
    (void)pthread_barrier_wait(&meeting);
    if (r->rank == 0) {
        atomic_store(&h->failed, 1);
    }
    (void)pthread_barrier_wait(&meeting);
    if (r->rank == 1) {
        CHECK(dt_comm_poll(c, &err) != 0 && err.status == DT_PEER &&
              strstr(err.text, "did not come to say why") != NULL);
    }
    (void)pthread_barrier_wait(&meeting);
    if (r->rank == 0) {
        dt_sleep_s(0.01);
        h->failed_status = DT_INVALID;
        (void)snprintf(h->failed_text, sizeof h->failed_text, "the reason");
        atomic_store(&h->failed, 2);
    } else {
        CHECK(dt_comm_poll(c, &err) != 0 && err.status == DT_INVALID && strstr(err.text, "the reason") != NULL);
    }
    dt_comm_close(c);
}

static void a_failure_half_told_counts(void **unused)
{
    (void)unused;
    run(2, half_told);
}

/* Rank 1 says that its buffers lie where no arena is. */
static const struct shm_place nowhere[] = {
    {0, 1, 0},    {0, -1, 0}, {0, SHM_ARENAS_MAX, 0}, {0, 0, 1 << 30}, {0, 0, UINT64_MAX - 64},
    {0, 0, 4096}, {1, 0, 0},  {INT32_MAX, 0, 0},      {-2, 0, 0},      {INT32_MIN, 0, 0}};
static size_t lie;

static void lying(struct rank *r)
{
    struct dt_error err = {0};
    struct dt_comm *c = world(r);
    struct shm *s = c->state;
    void *arena = NULL;
    OK(dt_comm_alloc(c, 80000, &arena, &err));
    int64_t number = c->number + 1;
    if (r->rank == 0) {
        dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "sum", arena, arena, 20000, DT_F32, 0}, NULL);
        CHECK(dt_comm_poll(c, &err) != 0 &&
              strstr(err.text, "rank 1 says that its buffers lie where no arena is") != NULL);
    } else {
        /* the step, not the number, is written in order after what rank 0 publishes */
        while (atomic_load(&shm_slot(s, 0)->step) != s->step + 1) {
            dt_sleep_s(0.001);
        }
        struct shm_what *mine = &shm_slot(s, 1)->what[number & 1];
        mine->digest = shm_slot(s, 0)->what[number & 1].digest;
        mine->at.in = mine->at.out = nowhere[lie];
        OK(shm_step(c, &(struct shm_call){"all_reduce", "sum", number, 60}, &err));
        (void)shm_step(c, &(struct shm_call){"all_reduce", "sum", number, 60}, &err);
    }
    dt_comm_close(c);
}

static void places_outside_the_arenas_are_refused(void **unused)
{
    (void)unused;
    for (lie = 0; lie < sizeof nowhere / sizeof nowhere[0]; lie++) {
        run(2, lying);
    }
}

static void wrong_options(void **unused)
{
    (void)unused;
    struct dt_error err;
    struct dt_comm *c = NULL;
    struct dt_comm_options o = {.backend = "carrier-pigeon", .rank = 0, .size = 2};
    assert_int_equal(dt_comm_open(&c, &o, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(err.text, "there are: solo shm"));
    o.backend = "solo";
    assert_int_equal(dt_comm_open(&c, &o, &err), -1);
    o = (struct dt_comm_options){.backend = "shm", .rank = 0, .size = 1};
    assert_int_equal(dt_comm_open(&c, &o, &err), 0);
    dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "x", &o, &o, 1, DT_U16, 0}, NULL);
    assert_int_equal(dt_comm_poll(c, &err), -1);
    assert_non_null(strstr(err.text, "U16 cannot be reduced"));
    dt_comm_close(c);
    dt_comm_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_equal_the_tree),
        cmocka_unit_test(results_may_replace_inputs),
        cmocka_unit_test(groups),
        cmocka_unit_test(statistics),
        cmocka_unit_test(streams),
        cmocka_unit_test(disagreement_is_named),
        cmocka_unit_test(timeout_names_the_missing),
        cmocka_unit_test(whoever_waits_is_freed),
        cmocka_unit_test(abort_frees_a_stream),
        cmocka_unit_test(a_failure_half_told_counts),
        cmocka_unit_test(places_outside_the_arenas_are_refused),
        cmocka_unit_test(wrong_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
