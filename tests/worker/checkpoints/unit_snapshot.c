/* covers: worker/checkpoints/snapshot.c worker/checkpoints/snapshot_choice.c base/snapshots.c */
/* Snapshots in memory: the newest that all ranks of a host have, whatever moment a rank was killed at, and no
 * other; and which one the ranks of several hosts go on from. */
#include "base/snapshots.h"
#include "worker/checkpoints/snapshot.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 3, NUMEL = 300007 /* more than a block of a checksum */ };
static float values[NUMEL], heard[NUMEL];
static int memory = -1;

static void open_memory(int workers)
{
    char path[64];
    if (memory >= 0) {
        (void)close(memory);
    }
    memory = dt_snapshots_create(workers);
    assert_true(memory >= 0);
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), memory);
    assert_int_equal(setenv("DTRUN_SNAPSHOTS", path, 1), 0);
}

static struct checkpoint_state state_at(int64_t step, int ranks, int round)
{
    return (struct checkpoint_state){.step = step,
                                     .epoch = 1,
                                     .position = 7 * step,
                                     .job = "{\"a\":1}",
                                     .model_config = "{\"model_type\":\"gpt2\"}",
                                     .ranks = ranks,
                                     .round = round,
                                     .run_id = "a \"run\"",
                                     .launch = "0123"};
}

/* Element i at a step. */
static float value(int64_t step, int64_t i)
{
    return (float)step + 0.25f * (float)(i % 1000);
}

static int write_pieces(void *context, const void *at, int64_t first, int64_t count, const float **out,
                        struct dt_error *err)
{
    (void)at;
    (void)count;
    (void)err;
    if (context != NULL) { /* killed in the middle of its data */
        (void)raise(SIGKILL);
    }
    *out = values + first;
    return 0;
}

/* The part of a rank of a host whose ranks are `first` to first + local - 1, in the middle of which it dies if
 * `dies`. */
static void write_at(int rank, int ranks, int first_rank, int local, int64_t step, int round, bool dies)
{
    struct snapshots *s = NULL;
    struct dt_error err;
    struct checkpoint_state state = state_at(step, ranks, round);
    int64_t first = NUMEL * (int64_t)rank / ranks, count = NUMEL * (int64_t)(rank + 1) / ranks - first;
    struct checkpoint_reader reader = {.read = write_pieces, .context = dies ? &state : NULL};
    for (int64_t i = 0; i < count; i++) {
        values[i] = value(step, first + i);
    }
    const struct checkpoint_slice slices[] = {{.name = "w",
                                               .purpose = "weight",
                                               .dims = 1,
                                               .shape = {NUMEL},
                                               .numel = NUMEL,
                                               .first = first,
                                               .count = count,
                                               .data = values},
                                              {.name = "w",
                                               .purpose = "exp_avg",
                                               .dims = 1,
                                               .shape = {NUMEL},
                                               .numel = NUMEL,
                                               .first = first,
                                               .count = count,
                                               .data = values,
                                               .reader = &reader}};
    assert_int_equal(snapshots_open(&s, rank - first_rank, state.launch, &err), 0);
    if (snapshots_write(s, &state, rank, ranks, local, slices, 2, &err) != 0) {
        fail_msg("%s", err.text);
    }
    snapshots_close(s);
}

static void write_part(int rank, int ranks, int64_t step, int round, bool dies)
{
    write_at(rank, ranks, 0, ranks, step, round, dies);
}

static void write_all(int ranks, int64_t step, int round)
{
    for (int r = 0; r < ranks; r++) {
        write_part(r, ranks, step, round, false);
    }
}

/* A process that is killed while it writes. */
static void die_in(int rank, int ranks, int64_t step, int round)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        write_part(rank, ranks, step, round, true);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static int64_t newest(void)
{
    struct snapshots *s = NULL;
    struct dt_error err;
    struct snapshot_part parts[2];
    assert_int_equal(snapshots_open(&s, 0, "0123", &err), 0);
    int64_t step = snapshots_list(s, parts) > 0 ? parts[0].id.step : -1;
    snapshots_close(s);
    return step;
}

/* All of the step's state is there. */
static void check(int64_t step, int ranks)
{
    struct snapshots *s = NULL;
    struct checkpoint *c = NULL;
    struct dt_error err;
    assert_int_equal(newest(), step);
    struct snapshot_part parts[2];
    assert_int_equal(snapshots_open(&s, 0, "0123", &err), 0);
    assert_in_range(snapshots_list(s, parts), 1, 2);
    assert_int_equal(parts[0].ranks, ranks);
    if (snapshots_checkpoint(s, &parts[0].id, &c, &err) != 0) {
        fail_msg("%s", err.text);
    }
    const struct checkpoint_state *state = checkpoint_get_state(c);
    assert_int_equal(state->step, step);
    assert_int_equal(state->position, 7 * step);
    assert_int_equal(state->ranks, ranks);
    assert_string_equal(state->run_id, "a \"run\"");
    assert_string_equal(state->model_config, "{\"model_type\":\"gpt2\"}");
    static const char *const purposes[] = {"weight", "exp_avg"};
    for (int p = 0; p < 2; p++) {
        assert_int_equal(checkpoint_read(c, purposes[p], "w", NUMEL, 0, NUMEL, heard, &err), 0);
        for (int64_t i = 0; i < NUMEL; i++) {
            assert_true(heard[i] == value(step, i));
        }
    }
    checkpoint_close(c);
    snapshots_close(s);
}

static void test_the_newest_that_all_have(void **state)
{
    (void)state;
    open_memory(RANKS);
    assert_int_equal(newest(), -1);
    write_all(RANKS, 5, 1);
    check(5, RANKS);
    write_part(0, RANKS, 6, 1, false); /* one is ahead */
    write_part(2, RANKS, 6, 1, false);
    check(5, RANKS);
    write_part(1, RANKS, 6, 1, false);
    check(6, RANKS);
    for (int64_t step = 7; step < 12; step++) {
        write_all(RANKS, step, 1);
        check(step, RANKS);
    }
}

static void test_killed_while_it_writes(void **state)
{
    (void)state;
    open_memory(RANKS);
    die_in(1, RANKS, 1, 1);
    assert_int_equal(newest(), -1);
    write_all(RANKS, 5, 1);
    for (int r = 0; r < RANKS; r++) {
        die_in(r, RANKS, 6, 1);
        check(5, RANKS);
    }
    write_all(RANKS, 6, 2);
    check(6, RANKS);
}

/* A round with fewer ranks, and steps that were made again. */
static void test_rounds_do_not_mix(void **state)
{
    (void)state;
    struct snapshots *s = NULL;
    struct dt_error err;
    open_memory(RANKS);
    write_all(RANKS, 5, 1);
    write_all(RANKS, 6, 1);
    for (int r = 0; r < 2; r++) { /* two ranks go on from 6 */
        assert_int_equal(snapshots_open(&s, r, "0123", &err), 0);
        snapshots_keep(s, &(struct snapshot_id){1, 6});
        snapshots_close(s);
    }
    check(6, RANKS);
    write_part(0, 2, 7, 2, false);
    check(6, RANKS); /* of all three, until the next one is complete */
    write_part(1, 2, 7, 2, false);
    check(7, 2);
    /* begun anew, from a checkpoint: what was left behind is never found again */
    for (int r = 0; r < 2; r++) {
        assert_int_equal(snapshots_open(&s, r, "0123", &err), 0);
        snapshots_keep(s, NULL);
        snapshots_close(s);
    }
    assert_int_equal(newest(), -1);
    write_part(0, 2, 3, 3, false);
    write_part(1, 2, 3, 4, false); /* another round's step 3 */
    assert_int_equal(newest(), -1);
}

/* A flipped byte of any part is found, by its checksum or as what is not complete. */
static void test_damage(void **state)
{
    (void)state;
    static const int64_t places[] = {8, 60, 4096 + 9, 4096 + 100000, 4096 + 400000};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct snapshots *s = NULL;
        struct checkpoint *c = NULL;
        struct dt_error err;
        unsigned char byte;
        open_memory(RANKS);
        write_all(RANKS, 5, 1);
        off_t at = 2 * DT_SNAPSHOT_REGION + places[i]; /* rank 1's */
        assert_int_equal(pread(memory, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(memory, &byte, 1, at), 1);
        assert_int_equal(snapshots_open(&s, 0, "0123", &err), 0);
        const struct snapshot_id id = {1, 5};
        bool whole = newest() == 5 && snapshots_checkpoint(s, &id, &c, &err) == 0 && checkpoint_verify(c, &err) == 0;
        assert_false(whole);
        checkpoint_close(c);
        snapshots_close(s);
    }
}

/* Two regions are written in turn: memory does not grow. */
static void test_memory(void **state)
{
    (void)state;
    struct stat st;
    open_memory(1);
    for (int64_t step = 1; step < 20; step++) {
        write_all(1, step, 1);
    }
    assert_int_equal(fstat(memory, &st), 0);
    assert_in_range(st.st_blocks * 512, 2 * 2 * NUMEL * sizeof(float), 2 * (2 * NUMEL * sizeof(float) + 65536));
    assert_int_equal(setenv("DTRUN_SNAPSHOTS", "/proc/4000001/fd/9", 1), 0);
    struct snapshots *s = NULL;
    struct dt_error err;
    assert_int_equal(snapshots_open(&s, 0, "", &err), -1);
    assert_non_null(strstr(err.text, "/proc/4000001/fd/9"));
    assert_int_equal(unsetenv("DTRUN_SNAPSHOTS"), 0);
    assert_int_equal(snapshots_open(&s, 0, "", &err), -1);
    assert_int_equal(err.status, DT_NOT_FOUND);
    open_memory(1);
    assert_int_equal(snapshots_open(&s, 1, "", &err), -1); /* more ranks than workers */
    assert_int_equal(err.status, DT_INVALID);
}

/* One of several hosts: it has the middle ranks of five, and knows what it lacks. */
static void test_a_part_of_the_ranks(void **state)
{
    (void)state;
    struct snapshots *s = NULL;
    struct snapshot_part parts[2];
    struct checkpoint *c = NULL;
    struct dt_error err;
    struct dt_text head;
    const struct snapshot_id id = {2, 9};
    int64_t begin = NUMEL * (int64_t)2 / 5, end = NUMEL * (int64_t)4 / 5;
    open_memory(2);
    write_at(2, 5, 2, 2, 8, 2, false);
    write_at(3, 5, 2, 2, 8, 2, false);
    write_at(2, 5, 2, 2, 9, 2, false);
    assert_int_equal(newest(), 8);
    write_at(3, 5, 2, 2, 9, 2, false);
    assert_int_equal(snapshots_open(&s, 1, "0123", &err), 0);
    assert_int_equal(snapshots_list(s, parts), 2);
    assert_true(parts[0].id.round == 2 && parts[0].id.step == 9 && parts[1].id.step == 8);
    assert_true(parts[0].ranks == 5 && parts[0].first == 2 && parts[0].count == 2);
    assert_int_equal(snapshots_checkpoint(s, &id, &c, &err), 0);
    assert_true(checkpoint_holds(c, "weight", "w", begin, end - begin));
    assert_false(checkpoint_holds(c, "weight", "w", begin - 1, 2));
    assert_false(checkpoint_holds(c, "weight", "w", end - 1, 2));
    assert_false(checkpoint_holds(c, "weight", "v", 0, 1));
    assert_int_equal(checkpoint_read(c, "exp_avg", "w", NUMEL, begin, end - begin, heard, &err), 0);
    for (int64_t i = begin; i < end; i++) {
        assert_true(heard[i - begin] == value(9, i));
    }
    assert_int_equal(checkpoint_read(c, "weight", "w", NUMEL, end - 1, 2, heard, &err), -1);
    assert_int_equal(err.status, DT_NOT_FOUND);
    checkpoint_close(c);
    /* a host without a part takes the state of another */
    dt_text_init(&head);
    assert_int_equal(snapshots_head(s, &id, &head, &err), 0);
    assert_int_equal(snapshots_state(&id, &head, &c, &err), 0);
    assert_int_equal(checkpoint_get_state(c)->position, 7 * 9);
    assert_string_equal(checkpoint_get_state(c)->model_config, "{\"model_type\":\"gpt2\"}");
    assert_false(checkpoint_holds(c, "weight", "w", 0, 1));
    checkpoint_close(c);
    dt_text_clear(&head);
    snapshots_close(s);
    assert_int_equal(snapshots_open(&s, 0, "another launch", &err), 0);
    assert_int_equal(snapshots_list(s, parts), 0);
    snapshots_close(s);
}

/* ---- which one ---- */

enum { HOSTS_RANKS = 4 };

/* offers: a text per rank; expected "ROUND:STEP from ROOT", or "none, RANK" for the rank that is missing. */
static void choose(const char *const *offers, int group, const char *expected)
{
    struct snapshot_offer heard_offers[HOSTS_RANKS];
    struct snapshot_id id;
    char chosen[64];
    int root, missing;
    for (int r = 0; r < HOSTS_RANKS; r++) {
        assert_true(snapshots_hear(offers[r], &heard_offers[r]));
    }
    if (snapshots_choose(heard_offers, HOSTS_RANKS, group, &id, &root, &missing)) {
        (void)snprintf(chosen, sizeof chosen, "%lld:%lld from %d", (long long)id.round, (long long)id.step, root);
    } else {
        (void)snprintf(chosen, sizeof chosen, "none, %d", missing);
    }
    assert_string_equal(chosen, expected);
}

static void test_choice(void **state)
{
    (void)state;
    const char *const one_ahead[] = {"1:6,1:5", "1:5", "1:5,1:6", "1:5,1:4"},
                      *const lost[] = {"", "", "1:6,1:5", "1:5"}, *const spread[] = {"1:6", "", "1:6", ""},
                      *const nobody[] = {"", "", "", ""}, *const older[] = {"1:9", "1:9", "2:7,2:6", "2:7"},
                      *const undone[] = {"2:9,1:5", "2:9,1:5", "1:5,1:4", "1:5,1:4"},
                      *const went_on[] = {"1:5,2:3", "2:3", "2:3", "2:3,1:5"};
    choose(one_ahead, HOSTS_RANKS, "1:5 from -1");
    choose(one_ahead, 1, "1:5 from -1"); /* a step less, and nothing travels */
    choose(lost, HOSTS_RANKS, "none, 0");
    choose(lost, 1, "1:6 from 2");
    choose(lost, 2, "1:5 from 2"); /* rank 3 does not have step 6 */
    choose(spread, 2, "none, 1");
    choose(spread, 1, "1:6 from 0");
    choose(nobody, 1, "none, -1");
    choose(older, 2, "2:7 from 2");  /* what a later round made is the run */
    choose(undone, 2, "2:9 from 0"); /* also where all have an older one */
    choose(undone, HOSTS_RANKS, "1:5 from -1");
    choose(went_on, 1, "2:3 from -1");
}

static void test_offers_as_text(void **state)
{
    (void)state;
    static const char *const wrong[] = {"1", "1:", "x", "1:2,", "1:2,3", "1:2,3:4,5:6", "1:2 ", ":1"};
    struct snapshot_offer offer = {2, {{3, 12345678901}, {2, 0}}}, back;
    struct dt_text text;
    dt_text_init(&text);
    snapshots_say(&offer, &text);
    assert_string_equal(dt_text_str(&text), "3:12345678901,2:0");
    assert_true(snapshots_hear(dt_text_str(&text), &back));
    assert_int_equal(back.count, offer.count); /* by members: the padding between them has no value */
    assert_memory_equal(back.of, offer.of, sizeof offer.of);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(snapshots_hear(wrong[i], &back));
    }
    dt_text_clear(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_newest_that_all_have),
                                       cmocka_unit_test(test_killed_while_it_writes),
                                       cmocka_unit_test(test_rounds_do_not_mix),
                                       cmocka_unit_test(test_damage),
                                       cmocka_unit_test(test_memory),
                                       cmocka_unit_test(test_a_part_of_the_ranks),
                                       cmocka_unit_test(test_choice),
                                       cmocka_unit_test(test_offers_as_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
