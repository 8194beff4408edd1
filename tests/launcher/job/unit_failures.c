/* covers: launcher/job/failures.c */
/* Who failed and who merely followed, when all ranks of a round end with the same words. */
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

static void add(struct failures *f, int rank, int code, const char *note)
{
    static struct dt_page page;
    struct worker one = {.pid = 4000 + rank, .status = code << 8, .page = &page};
    (void)snprintf(page.note, sizeof page.note, "%s", note);
    failures_add(f, &one, rank, rank, false, NULL);
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
    /* the first to end, and not the one that failed */
    add(&f, 1, 100, "rank 0: checkpoint: No space left on device");
    add(&f, 0, 100, "rank 0: checkpoint: No space left on device");
    add(&f, 2, 100, "rank 0: checkpoint: No space left on device");
    cause_is(&f, true, 0, "exit code 100: checkpoint: No space left on device; 2 other ranks stopped because of it");
    /* asked again: the same */
    cause_is(&f, true, 0, "exit code 100: checkpoint: No space left on device; 2 other ranks stopped because of it");
    assert_string_equal(f.list[0].note, "failed because rank 0 did");

    failures_begin(&f); /* the one that is named is on another host: what we know of it stays */
    add(&f, 1, 100, "rank 7: checkpoint: No space left on device");
    cause_is(&f, true, 1, "exit code 100: rank 7: checkpoint: No space left on device");

    assert_int_equal(f.list[0].follows, 7);

    failures_begin(&f); /* the one that is named was told to end before it could say so by itself */
    add(&f, 1, 100, "rank 0: checkpoint: No space left on device");
    add(&f, 0, 100, "rank 0: checkpoint: No space left on device");
    f.list[1].stopped_by_us = true;
    cause_is(&f, true, 0, "exit code 100: checkpoint: No space left on device; 1 other rank stopped because of it");
    failures_begin(&f);
    add(&f, 1, 100, "rank 0: checkpoint: No space left on device");
    add(&f, 0, 111, "step 3: told to stop, the round is over");
    f.list[1].stopped_by_us = true;
    cause_is(&f, true, 0, "exit code 100: checkpoint: No space left on device; 1 other rank stopped because of it");
    failures_begin(&f);
    add(&f, 1, 100, "rank 0: step 3: the loss is not finite");
    add(&f, 0, 143, "");
    f.list[1].stopped_by_us = true;
    cause_is(&f, true, 0, "exit code 100: step 3: the loss is not finite; 1 other rank stopped because of it");

    failures_begin(&f); /* each lost the other: nobody's word against the other's */
    add(&f, 0, 111, "rank 1: the connection ended");
    add(&f, 1, 111, "rank 0: the connection ended");
    cause_is(&f, true, 0, "exit code 111: rank 1: the connection ended; 1 other rank failed, too");

    failures_begin(&f); /* who was lost says why, later than those who lost it */
    add(&f, 0, 111, "rank 1 aborted communicator world (noticed by rank 1)");
    add(&f, 1, 111, "GPU 1: Xid 79 (fell off the bus)");
    cause_is(&f, true, 1, "exit code 111: GPU 1: Xid 79 (fell off the bus); 1 other rank stopped because of it");
    failures_begin(&f);
    add(&f, 0, 111, "rank 1: the connection ended");
    /* these are no words of its own */
    add(&f, 1, 111, "rank 1: step 3: told to stop, the round is over");
    f.list[1].stopped_by_us = true;
    cause_is(&f, true, 0, "exit code 111: rank 1: the connection ended; 1 other rank stopped because of it");

    failures_begin(&f); /* who was told is not the cause, though it ended first, and was the last
                         * to be told to end */
    add(&f, 0, 111,
        "communicator world, rank 0 of 2: communicator world: rank 1: NCCL 2.28.9: a cable (noticed by rank 1)");
    add(&f, 1, 111, "communicator world, rank 1 of 2: communicator world: rank 1: NCCL 2.28.9: a cable");
    f.list[1].stopped_by_us = true;
    cause_is(&f, true, 1,
             "exit code 111: communicator world, rank 1 of 2: communicator world: rank 1: NCCL 2.28.9: a cable; 1 "
             "other rank stopped because of it");
    failures_begin(&f); /* nobody's words here */
    add(&f, 0, 111, "communicator world: rank 5: NCCL 2.28.9: a cable (told by host 3) (noticed by rank 1)");
    add(&f, 1, 111, "communicator world: rank 5: NCCL 2.28.9: a cable (told by host 3)");
    add(&f, 2, 111, "communicator world: rank 2: NCCL 2.28.9: a plug");
    f.list[1].stopped_by_us = f.list[2].stopped_by_us = true;
    cause_is(&f, true, 0,
             "exit code 111: communicator world: rank 5: NCCL 2.28.9: a cable (told by host 3) (noticed by rank 1); "
             "2 other ranks stopped because of it");

    failures_begin(&f); /* the others of the job have ended with our words */
    add(&f, 0, 111, "communicator world: rank 0: NCCL 2.28.9: a cable (noticed by rank 1)");
    add(&f, 1, 111, "communicator world: rank 0: NCCL 2.28.9: a plug");
    f.list[0].stopped_by_us = f.list[1].stopped_by_us = true;
    assert_false(failures_own_up(&f, NULL));
    assert_false(failures_own_up(&f, "host b rank 7 (local 0, pid 1): exit code 111: communicator world: rank 0: NCCL "
                                     "2.28.9: a cable (told by host 0)"));
    assert_false(failures_own_up(
        &f, "host b rank 7 (local 0, pid 1): exit code 111: communicator world: rank 0: NCCL 2.28.9: a plug"));
    assert_true(failures_own_up(&f, "host b rank 7 (local 0, pid 1): exit code 111: communicator world: rank 0: NCCL "
                                    "2.28.9: a plug (told by host 0)"));
    assert_true(f.list[0].stopped_by_us && !f.list[1].stopped_by_us);

    failures_begin(&f); /* a foreign program's words mean nothing to us */
    add(&f, 1, 100, "rank 0: words");
    add(&f, 0, 100, "rank 0: words");
    cause_is(&f, false, 1, "exit code 100: rank 0: words; 1 other rank failed, too");
    failures_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_named_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
