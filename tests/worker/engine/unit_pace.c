/* covers: worker/engine/pace.c */
/* The straggler's judge: who is named, when, and who is not. Times are made up, in ms a step. */
#include "base/text.h"
#include "worker/engine/pace.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MAX_RANKS = 64 };
struct bench {
    struct pace_judge j;
    double now_s;
    /* once: more in the next block alone, in all */
    double data_ms[MAX_RANKS], compute_ms[MAX_RANKS], once_ms[MAX_RANKS];
    struct pace_news news[MAX_RANKS];
    unsigned random;
};

static void begin(struct bench *b, int size)
{
    *b = (struct bench){.now_s = 1000, .random = 1};
    pace_judge_open(&b->j, size);
    for (int r = 0; r < size; r++) {
        b->data_ms[r] = 0.2;
        b->compute_ms[r] = 50;
    }
}

/* One block of steps; how many news. Who is faster waits for the slowest. */
static int block(struct bench *b)
{
    int64_t table[MAX_RANKS * PACE_PHASES];
    double own[MAX_RANKS], longest = 0;
    for (int r = 0; r < b->j.size; r++) {
        own[r] = (b->data_ms[r] + b->compute_ms[r]) * PACE_BLOCK + b->once_ms[r];
        longest = fmax(longest, own[r]);
    }
    for (int r = 0; r < b->j.size; r++) {
        int64_t *x = &table[r * PACE_PHASES];
        x[PACE_DATA] = (int64_t)(b->data_ms[r] * PACE_BLOCK * 1e6);
        x[PACE_COMPUTE] = (int64_t)((b->compute_ms[r] * PACE_BLOCK + b->once_ms[r]) * 1e6);
        x[PACE_COMMUNICATION] = (int64_t)((longest - own[r] + 5 * PACE_BLOCK) * 1e6);
        b->once_ms[r] = 0;
    }
    b->now_s += longest * 1e-3;
    return pace_judge_add(&b->j, table, b->now_s, b->news);
}

/* Blocks until there is news, at most `limit`; how many it took, 0: there was none. */
static int blocks_until_news(struct bench *b, int limit)
{
    for (int i = 1; i <= limit; i++) {
        if (block(b) > 0) {
            return i;
        }
    }
    return 0;
}

static double unit(struct bench *b)
{
    b->random = b->random * 1664525u + 1013904223u;
    return (double)(b->random >> 8) / (1 << 24);
}

static void test_a_slow_rank_is_named_once(void **state)
{
    (void)state;
    struct bench b;
    begin(&b, 4);
    assert_int_equal(blocks_until_news(&b, 20), 0);
    b.compute_ms[3] = 210;
    int blocks = blocks_until_news(&b, 10);
    assert_in_range(blocks, 1, PACE_BLOCKS - 1); /* the times travel with the step after: 50
                                                  * steps in all */
    assert_int_equal(blocks_until_news(&b, PACE_BLOCKS), 0);
    const struct pace_news *n = b.news;
    assert_true(n->rank == 3 && !n->over && n->phase == PACE_COMPUTE);
    /* the window held fast blocks, too; once it is full the numbers are those of the fault */
    assert_true(n->mean_s[PACE_COMPUTE] > 0.08 && fabs(n->median_s[PACE_COMPUTE] - 0.05) < 1e-9 &&
                fabs(n->median_s[PACE_DATA] - 0.0002) < 1e-9);
    assert_int_equal(blocks_until_news(&b, 100), 0);
    pace_judge_close(&b.j);
}

static void test_numbers_of_a_full_window(void **state)
{
    (void)state;
    struct bench b;
    begin(&b, 3);
    b.compute_ms[1] = 205;
    assert_int_equal(blocks_until_news(&b, 20), PACE_BLOCKS);
    const struct pace_news *n = b.news;
    assert_true(n->rank == 1 && fabs(n->ratio - 4.1) < 1e-6);
    assert_true(fabs(n->mean_s[PACE_COMPUTE] - 0.205) < 1e-9 && fabs(n->mean_s[PACE_COMMUNICATION] - 0.005) < 1e-9);
    assert_true(fabs(n->median_s[PACE_COMMUNICATION] - 0.160) < 1e-9);
    assert_true(fabs(n->own_s - 0.2052) < 1e-9 && fabs(n->median_own_s - 0.0502) < 1e-9);
    pace_judge_close(&b.j);
}

static void test_slow_data_is_called_so(void **state)
{
    (void)state;
    struct bench b;
    begin(&b, 8);
    b.data_ms[0] = 80;
    assert_int_equal(blocks_until_news(&b, 20), PACE_BLOCKS);
    assert_true(b.news[0].rank == 0 && b.news[0].phase == PACE_DATA && fabs(b.news[0].ratio - 400) < 1e-3);
    pace_judge_close(&b.j);
    begin(&b, 2);
    b.data_ms[0] = b.data_ms[1] = 0; /* no one else needs any */
    b.data_ms[1] = 80;
    assert_int_equal(blocks_until_news(&b, 20), PACE_BLOCKS);
    assert_true(b.news[0].rank == 1 && b.news[0].phase == PACE_DATA && isinf(b.news[0].ratio));
    assert_int_equal(blocks_until_news(&b, 200), 0);
    pace_judge_close(&b.j);
}

/* A pause of one rank, however long, and one of all of them. */
static void test_one_pause_says_nothing(void **state)
{
    (void)state;
    struct bench b;
    begin(&b, 4);
    (void)blocks_until_news(&b, PACE_BLOCKS);
    for (int i = 0; i < 5; i++) {
        b.once_ms[2] = 30000;
        assert_int_equal(blocks_until_news(&b, PACE_BLOCKS), 0);
        for (int r = 0; r < 4; r++) {
            b.compute_ms[r] *= 3;
        }
        assert_int_equal(blocks_until_news(&b, PACE_BLOCKS), 0);
    }
    pace_judge_close(&b.j);
}

static void test_random_pauses_are_a_slow_rank(void **state)
{
    (void)state;
    int in_time = 0;
    for (unsigned seed = 1; seed <= 50; seed++) {
        struct bench b;
        begin(&b, 4);
        b.random = seed;
        (void)blocks_until_news(&b, PACE_BLOCKS);
        int news = 0, blocks = 0;
        while (news == 0 && blocks < 20) {
            b.once_ms[1] = 500 * (double)(int)(unit(&b) * 5); /* up to 4 pauses of 0.5 s in 0.5 s
                                                               * of steps */
            news = block(&b);
            blocks++;
        }
        assert_int_equal(news, 1);
        assert_int_equal(b.news[0].rank, 1);
        in_time += blocks <= PACE_BLOCKS;
        pace_judge_close(&b.j);
    }
    assert_true(in_time >= 40); /* of 50; in the others none came for a while */
}

/* Ranks differ by up to 30 %, and now and then one is twice as slow for a block. */
static void test_noise_says_nothing(void **state)
{
    (void)state;
    const int sizes[] = {2, 3, 8, 64};
    for (int s = 0; s < 4; s++) {
        struct bench b;
        begin(&b, sizes[s]);
        for (int i = 0; i < 500; i++) {
            for (int r = 0; r < sizes[s]; r++) {
                b.compute_ms[r] = 50 * (1 + 0.3 * unit(&b));
            }
            if (i % 7 == 0) {
                b.once_ms[(int)(unit(&b) * sizes[s])] = 50 * PACE_BLOCK;
            }
            assert_int_equal(block(&b), 0);
        }
        pace_judge_close(&b.j);
    }
}

static void test_what_costs_nothing_is_not_said(void **state)
{
    (void)state;
    struct bench b;
    begin(&b, 2);
    b.compute_ms[0] = 1; /* four times as long, but 3 ms */
    b.compute_ms[1] = 4;
    assert_int_equal(blocks_until_news(&b, 20), 0);
    pace_judge_close(&b.j);
}

/* Of two the faster one is the measure; of three with two slow ones the slow ones are, and
 * nobody is to blame. */
static void test_medians_of_few(void **state)
{
    (void)state;
    struct bench b;
    begin(&b, 2);
    b.compute_ms[0] = 100;
    assert_int_equal(blocks_until_news(&b, 20), PACE_BLOCKS);
    assert_int_equal(b.news[0].rank, 0);
    pace_judge_close(&b.j);
    begin(&b, 3);
    b.compute_ms[0] = b.compute_ms[2] = 100;
    assert_int_equal(blocks_until_news(&b, 20), 0);
    pace_judge_close(&b.j);
    begin(&b, 1);
    assert_int_equal(blocks_until_news(&b, 20), 0);
    pace_judge_close(&b.j);
    begin(&b, 4); /* a host of two */
    b.compute_ms[2] = 500;
    b.compute_ms[3] = 400;
    for (int i = 1; i < PACE_BLOCKS; i++) {
        assert_int_equal(block(&b), 0);
    }
    assert_int_equal(block(&b), 2);
    assert_true(b.news[0].rank == 2 && b.news[1].rank == 3);
    pace_judge_close(&b.j);
}

static void test_back_to_normal_worse_and_again(void **state)
{
    (void)state;
    struct bench b;
    begin(&b, 4);
    b.compute_ms[1] = 100;
    assert_int_equal(blocks_until_news(&b, 20), PACE_BLOCKS);
    b.compute_ms[1] = 70; /* between slow and calm: what was said holds */
    assert_int_equal(blocks_until_news(&b, 100), 0);
    b.compute_ms[1] = 450; /* much worse: said again, but no sooner than a minute after the last
                            * time */
    int blocks = blocks_until_news(&b, 100);
    assert_true(blocks > 0 && b.news[0].rank == 1 && !b.news[0].over && b.news[0].ratio > 4);
    double said_s = b.now_s;
    while (block(&b) == 0) {
    }
    assert_true(b.now_s - said_s >= 60 && !b.news[0].over);
    b.compute_ms[1] = 50;
    blocks = blocks_until_news(&b, 100);
    assert_in_range(blocks, 2 * PACE_BLOCKS - 1, 2 * PACE_BLOCKS);
    assert_true(b.news[0].over && fabs(b.news[0].ratio - 1) < 1e-9);
    assert_int_equal(blocks_until_news(&b, 100), 0);
    b.compute_ms[1] = 100;
    assert_true(blocks_until_news(&b, PACE_BLOCKS) > 0 && !b.news[0].over);
    said_s = b.now_s;
    while (block(&b) == 0) {
    }
    assert_true(b.now_s - said_s >= 3600 && b.now_s - said_s < 3610 && !b.news[0].over);
    pace_judge_close(&b.j);
}

static void test_the_clock_of_one_rank(void **state)
{
    (void)state;
    struct pace_clock c = {0};
    double now_s = 100, waited_s = 7;
    for (int step = 1; step <= 3 * PACE_BLOCK; step++) {
        if (step == PACE_BLOCK + 5) { /* an evaluation, in which it waited as well */
            now_s += 50;
            waited_s += 20;
            pace_skip(&c, now_s, waited_s);
        }
        if (step == 1) {
            pace_skip(&c, now_s, waited_s);
        }
        double begin_s = now_s + 0.001; /* after what lies between two steps */
        now_s = begin_s + 0.010;
        waited_s += 0.004;
        bool whole = pace_step(&c, begin_s, 0.002, now_s, waited_s);
        assert_int_equal(whole, step % PACE_BLOCK == 0);
        if (whole) {
            assert_true(llabs(c.block_ns[PACE_DATA] - 20000000) < 1000);
            assert_true(llabs(c.block_ns[PACE_COMMUNICATION] - 40000000) < 1000);
            assert_true(llabs(c.block_ns[PACE_COMPUTE] - 50000000) < 1000);
        }
    }
    c = (struct pace_clock){0}; /* begun without a skip: at the step's begin */
    (void)pace_step(&c, 1000, 0.5, 1001, 0.25);
    assert_true(fabs(c.sums_s[PACE_COMPUTE] - 0.25) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_slow_rank_is_named_once),      cmocka_unit_test(test_numbers_of_a_full_window),
        cmocka_unit_test(test_slow_data_is_called_so),         cmocka_unit_test(test_one_pause_says_nothing),
        cmocka_unit_test(test_random_pauses_are_a_slow_rank),  cmocka_unit_test(test_noise_says_nothing),
        cmocka_unit_test(test_what_costs_nothing_is_not_said), cmocka_unit_test(test_medians_of_few),
        cmocka_unit_test(test_back_to_normal_worse_and_again), cmocka_unit_test(test_the_clock_of_one_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
