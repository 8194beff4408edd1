/* covers: launcher/job/failures.c */
/* Which rank failed and which merely followed, when all ranks of a round end because of one. */
#include "base/error.h"
#include "launcher/job/failures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *no_file(void *user, int local_rank)
{
    (void)user;
    (void)local_rank;
    return "";
}

static void add(struct failures *f, int rank, int code, const char *text, enum dt_status status, struct dt_blame blame)
{
    static struct dt_page page;
    struct worker one = {.pid = 4000 + rank, .status = code << 8, .page = &page};
    struct dt_error why;
    (void)dt_fail(&why, status, "%s", text);
    why.blame = blame;
    dt_page_set_cause(&page, &why);
    failures_add(f, &one, rank, rank, false, NULL);
}

static const struct dt_blame own;

static struct dt_blame failed(int rank)
{
    return (struct dt_blame){.fault = DT_FAULT_FAILED, .rank = rank};
}

static struct dt_blame lost(int rank)
{
    return (struct dt_blame){.fault = DT_FAULT_LOST, .rank = rank};
}

static struct dt_blame told(struct dt_blame blame, int teller)
{
    blame.told = DT_TOLD_BY_RANK;
    blame.teller = teller;
    return blame;
}

static struct dt_blame told_by_host(int teller, int host)
{
    return (struct dt_blame){.told = DT_TOLD_BY_HOST, .teller = teller, .host = host};
}

static void cause_is(struct failures *f, bool bundled, int rank, const char *line)
{
    struct dt_text out;
    dt_text_init(&out);
    failures_settle(f, no_file, NULL, bundled);
    assert_int_equal(f->list[f->root].rank, rank);
    report_cause(f->list, f->count, f->root, &out);
    assert_string_equal(strstr(dt_text_str(&out), "): ") + 3, line);
    dt_text_clear(&out);
}

static void test_named_rank(void **state)
{
    (void)state;
    struct failures f = {.root = -1};
    failures_begin(&f);
    static const char full[] = "checkpoint: No space left on device", cable[] = "NCCL 2.28.9: a cable";
    static const char plug[] = "NCCL 2.28.9: a plug", ended[] = "the connection ended";
    /* the first to end, and not the one that failed */
    add(&f, 1, 100, full, DT_INVALID, failed(0));
    add(&f, 0, 100, full, DT_INVALID, own);
    add(&f, 2, 100, full, DT_INVALID, failed(0));
    cause_is(&f, true, 0, "exit code 100: checkpoint: No space left on device; 2 other ranks stopped because of it");
    /* asked again: the same */
    cause_is(&f, true, 0, "exit code 100: checkpoint: No space left on device; 2 other ranks stopped because of it");
    assert_string_equal(f.list[0].note, "failed because rank 0 did");

    failures_begin(&f); /* the one that is named is on another host: what we know of it stays */
    add(&f, 1, 100, full, DT_INVALID, failed(7));
    cause_is(&f, true, 1, "exit code 100: rank 7: checkpoint: No space left on device");
    assert_int_equal(f.list[0].follows, 7);

    failures_begin(&f); /* the one that is named was told to end before it could say so by itself */
    add(&f, 1, 100, full, DT_INVALID, failed(0));
    add(&f, 0, 100, full, DT_INVALID, failed(0));
    f.list[1].stopped_by_us = true;
    cause_is(&f, true, 0, "exit code 100: checkpoint: No space left on device; 1 other rank stopped because of it");
    failures_begin(&f);
    add(&f, 1, 100, full, DT_INVALID, failed(0));
    add(&f, 0, 111, "step 3: told to stop, the round is over", DT_STOPPED, failed(0));
    f.list[1].stopped_by_us = true;
    cause_is(&f, true, 0, "exit code 100: checkpoint: No space left on device; 1 other rank stopped because of it");
    failures_begin(&f);
    add(&f, 1, 100, "step 3: the loss is not finite", DT_INVALID, failed(0));
    add(&f, 0, 143, "", DT_OK, own);
    f.list[1].stopped_by_us = true;
    cause_is(&f, true, 0, "exit code 100: step 3: the loss is not finite; 1 other rank stopped because of it");

    failures_begin(&f); /* each lost the other: nobody's word against the other's */
    add(&f, 0, 111, ended, DT_PEER, lost(1));
    add(&f, 1, 111, ended, DT_PEER, lost(0));
    cause_is(&f, true, 0, "exit code 111: the connection ended; 1 other rank failed, too");

    failures_begin(&f); /* the lost rank says why, later than those that lost it */
    add(&f, 0, 111, "rank 1 aborted communicator world", DT_PEER, told(lost(1), 1));
    add(&f, 1, 111, "GPU 1: Xid 79 (fell off the bus)", DT_IO, own);
    cause_is(&f, true, 1, "exit code 111: GPU 1: Xid 79 (fell off the bus); 1 other rank stopped because of it");
    failures_begin(&f);
    add(&f, 0, 111, ended, DT_PEER, lost(1));
    add(&f, 1, 111, "GPU 1: Xid 79 (fell off the bus)", DT_IO, own);
    cause_is(&f, true, 1, "exit code 111: GPU 1: Xid 79 (fell off the bus); 1 other rank stopped because of it");
    failures_begin(&f);
    add(&f, 0, 111, ended, DT_PEER, lost(1));
    /* these are no words of its own */
    add(&f, 1, 111, "all_reduce grads: the round is over", DT_STOPPED, own);
    f.list[1].stopped_by_us = true;
    cause_is(&f, true, 0, "exit code 111: the connection ended; 1 other rank stopped because of it");

    failures_begin(&f); /* the rank that was told is not the cause, though it ended first, and was
                         * the last to be told to end */
    add(&f, 0, 111, cable, DT_IO, told(own, 1));
    add(&f, 1, 111, cable, DT_IO, own);
    f.list[1].stopped_by_us = true;
    cause_is(&f, true, 1, "exit code 111: NCCL 2.28.9: a cable; 1 other rank stopped because of it");
    failures_begin(&f); /* nobody's words here */
    add(&f, 0, 111, cable, DT_IO, told_by_host(5, 3));
    add(&f, 1, 111, cable, DT_IO, told_by_host(5, 3));
    add(&f, 2, 111, plug, DT_IO, own);
    f.list[1].stopped_by_us = f.list[2].stopped_by_us = true;
    cause_is(&f, true, 0, "exit code 111: NCCL 2.28.9: a cable (told by host 3); 2 other ranks stopped because of it");
    failures_begin(&f);
    add(&f, 0, 111, cable, DT_IO, told(own, 5));
    cause_is(&f, true, 0, "exit code 111: NCCL 2.28.9: a cable (noticed by rank 5)");

    failures_begin(&f); /* the others of the job have ended with our words */
    add(&f, 0, 111, cable, DT_IO, told(own, 1));
    add(&f, 1, 111, plug, DT_IO, own);
    f.list[0].stopped_by_us = f.list[1].stopped_by_us = true;
    struct cause elsewhere = {.kind = CAUSE_PEER, .rank = 7, .exit_code = 111};
    assert_false(failures_own_up(&f, NULL));
    elsewhere.blame = own; /* its own words, alike or not */
    assert_false(failures_own_up(&f, &elsewhere));
    elsewhere.blame = told_by_host(0, 0); /* which was told itself */
    assert_false(failures_own_up(&f, &elsewhere));
    elsewhere.blame = told_by_host(3, 0); /* not here */
    assert_false(failures_own_up(&f, &elsewhere));
    elsewhere.blame = told_by_host(1, 0);
    assert_true(failures_own_up(&f, &elsewhere));
    assert_true(f.list[0].stopped_by_us && !f.list[1].stopped_by_us);

    failures_begin(&f); /* a foreign program's ranks name nobody */
    add(&f, 1, 100, "words", DT_INVALID, own);
    add(&f, 0, 100, "words", DT_INVALID, own);
    cause_is(&f, false, 1, "exit code 100: words; 1 other rank failed, too");
    failures_clear(&f);
}

static void from_is(const struct failures *f, bool others, const char *words)
{
    struct dt_text out;
    dt_text_init(&out);
    failures_say_from(f, others, &out);
    assert_string_equal(dt_text_str(&out), words);
    dt_text_clear(&out);
}

/* A save may be complete although a worker ended before it heard so; not where one has not begun it. */
static void test_where_it_goes_on(void **state)
{
    (void)state;
    struct failures f = {.root = -1};
    static struct dt_page page[2];
    struct worker list[2] = {{.page = &page[0]}, {.page = &page[1]}};
    struct workers w = {.list = list, .count = 2, .snapshot_fd = -1};
    for (int i = 0; i < 2; i++) {
        page[i].saved_step = page[i].begun_step = page[i].snapshot_step = -1;
    }
    failures_begin(&f);
    failures_progress(&f, &w);
    from_is(&f, false, "");
    page[0].saved_step = page[1].saved_step = page[0].begun_step = page[1].begun_step = 120;
    failures_progress(&f, &w);
    from_is(&f, false, " from step 120");
    page[1].begun_step = 160;
    failures_progress(&f, &w);
    from_is(&f, true, " from step 120");
    page[0].begun_step = 160;
    failures_progress(&f, &w);
    from_is(&f, false, " from step 120 or later");
    w.snapshot_fd = 0;
    page[0].snapshot_step = 159;
    page[1].snapshot_step = 158;
    failures_progress(&f, &w);
    from_is(&f, false, " from step 158 or later");
    from_is(&f, true, " from about step 158 or later");
    page[0].saved_step = 160;
    failures_progress(&f, &w);
    from_is(&f, true, " from step 160");
    failures_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_where_it_goes_on), cmocka_unit_test(test_named_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
