/* covers: worker/run/observers worker/run/trainer.c worker/engine/step_sums.c */
/* What a run reports to its observers, and that all ranks act on a vote of any of them after the
 * same step. */
#include "tests/lib/ranks.h"

#include "base/file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* "START STEP1 SAVED1 ..." of each rank. */
static char seen[RANKS_MAX][512];

static const char *name_of(enum moment moment)
{
    switch (moment) {
    case MOMENT_READING:
        return "READING";
    case MOMENT_START:
        return "START";
    case MOMENT_STEP:
        return "STEP";
    case MOMENT_EVALUATION:
        return "EVALUATION";
    case MOMENT_SAMPLES:
        return "SAMPLES";
    case MOMENT_SAVING:
        return "SAVING";
    case MOMENT_SAVED:
        return "SAVED";
    case MOMENT_SAVE_OVER:
        return "OVER";
    case MOMENT_CLOSING:
        return "CLOSING";
    case MOMENT_END:
        return "END";
    case MOMENT_SAID:
    case MOMENT_NOTED:
    case MOMENT_EVENT:
        break;
    }
    return "?";
}

/* "!" behind a moment: a number of it is wrong. */
static void keep(int rank, const struct report *r, enum moment moment)
{
    char *text = seen[rank];
    size_t used = strlen(text);
    bool bad = moment == MOMENT_STEP         ? !isfinite(r->loss) || r->lr < 0 || r->targets <= 0 || r->total_steps != 6
               : moment == MOMENT_EVALUATION ? !isfinite(r->val_loss) || r->val_loss <= 0
                                             : moment == MOMENT_SAVED && r->save_s <= 0;
    (void)snprintf(text + used, sizeof seen[rank] - used, "%s%s%lld%s", used ? " " : "", name_of(moment),
                   (long long)r->step, bad ? "!" : "");
}

static bool has(int rank, const char *moment, int step)
{
    char word[32];
    (void)snprintf(word, sizeof word, " %s%d ", moment, step);
    return strstr(seen[rank], word) != NULL;
}

/* Six steps, without evaluations and saves before the last one; all ranks are told the same. */
static void train(const char *row, int size, const struct ranks_options *o, struct ranks_outcome *out)
{
    struct job job;
    ranks_job(&job);
    job.training.strategy = row;
    job.training.max_steps = 6;
    job.text = NULL;
    job.data.val = dt_set_alone(&job.arena, dt_arena_printf(&job.arena, "%s/val.bin", folder));
    job.training.eval_every_n_steps = 0;
    job.checkpointing.save_every_n_steps = 0;
    static int run;
    job.output_dir = dt_arena_printf(&job.arena, "%s/observed-%d", folder, ++run);
    job.checkpointing.checkpoint_dir = dt_arena_printf(&job.arena, "%s/checkpoints", job.output_dir);
    memset(seen, 0, sizeof seen);
    ranks_train(&job, size, o, out);
    dt_arena_clear(&job.arena);
    for (int r = 0; r < size; r++) {
        if (out->rc[r] != 0) {
            fail_msg("rank %d: %s", r, out->err[r].text);
        }
        assert_string_equal(seen[r], seen[0]);
    }
}

static void each_moment_is_reported_in_order(void **state)
{
    (void)state;
    struct ranks_outcome out;
    train("ddp", 2, &(struct ranks_options){.files = true, .on_moment = keep}, &out);
    assert_string_equal(seen[0], "READING0 START0 STEP1 STEP2 STEP3 STEP4 STEP5 STEP6 EVALUATION6 SAVING6 SAVED6 OVER6 "
                                 "CLOSING6 END6");
    ranks_clear(&out);
}

/* The words of a line that are parted by commas, in place. */
static int split(char *line, char **out, int room)
{
    int count = 0;
    for (char *from = line; from != NULL && count < room; count++) {
        out[count] = strsep(&from, ",\n");
    }
    return count;
}

/* Of each logged step the table has the numbers of metrics.jsonl. */
static void a_table_has_the_numbers_of_steps(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome out;
    ranks_job(&job);
    job.output_dir = dt_arena_printf(&job.arena, "%s/table", folder);
    job.checkpointing.checkpoint_dir = dt_arena_printf(&job.arena, "%s/checkpoints", job.output_dir);
    job.logging.csv = true;
    job.training.max_steps = 6;
    job.logging.log_every_n_steps = 2;
    ranks_train(&job, 2, &(struct ranks_options){.files = true}, &out);
    assert_int_equal(out.rc[0], 0);
    char path[512], keys_line[1024], row_line[1024], json[2048], *keys[64], *row[64], member[128];
    (void)snprintf(path, sizeof path, "%s/metrics.csv", job.output_dir);
    FILE *table = fopen(path, "r");
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", job.output_dir);
    FILE *lines = fopen(path, "r");
    assert_true(table != NULL && lines != NULL);
    assert_non_null(fgets(keys_line, sizeof keys_line, table));
    int count = split(keys_line, keys, 64) - 1, rows = 0; /* the last one is behind the line's end */
    assert_string_equal(keys[0], "step");
    while (fgets(row_line, sizeof row_line, table) != NULL) {
        assert_non_null(fgets(json, sizeof json, lines));
        assert_int_equal(split(row_line, row, 64) - 1, count);
        int found = 0;
        for (int i = 0; i < count - 1; i++) { /* the last one is the time */
            (void)snprintf(member, sizeof member, "\"%s\": %s%c", keys[i], *row[i] ? row[i] : "null", ',');
            bool there = strstr(json, member) != NULL;
            (void)snprintf(member, sizeof member, "\"%s\": ", keys[i]);
            if (!there && (*row[i] || strstr(json, member) != NULL)) {
                fail_msg("%s is %s in the table, and %s", keys[i], row[i], json);
            }
            found += there;
        }
        int members = 0;
        for (const char *p = json; (p = strstr(p, "\": ")) != NULL; p++) {
            members++;
        }
        assert_int_equal(found, members - 1);
        rows++;
    }
    assert_int_equal(rows, 3);
    (void)fclose(table);
    (void)fclose(lines);
    ranks_clear(&out);
    dt_arena_clear(&job.arena);
}

static unsigned all_want_a_look(int rank, int64_t step)
{
    return step == 2 ? VOTE_EVALUATE | (rank == 1 ? VOTE_SAVE : 0) : 0;
}

/* One rank wants a save, and all of them an evaluation: however many vote, only these two happen. */
static void votes_of_any_rank_are_acted_on_by_all(void **state)
{
    (void)state;
    static const struct {
        const char *row;
        int size;
    } cases[] = {{"ddp", 2}, {"full_shard", 4}, {"zero1", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ranks_outcome alone, out;
        train(cases[i].row, cases[i].size, &(struct ranks_options){.files = true}, &alone);
        train(cases[i].row, cases[i].size,
              &(struct ranks_options){.files = true, .on_moment = keep, .vote = all_want_a_look}, &out);
        assert_string_equal(seen[0], "READING0 START0 STEP1 STEP2 STEP3 EVALUATION3 SAVING3 SAVED3 OVER3 STEP4 STEP5 "
                                     "STEP6 EVALUATION6 SAVING6 SAVED6 OVER6 CLOSING6 END6");
        assert_true(out.hash == alone.hash && out.moments_hash == alone.moments_hash);
        assert_int_equal(out.exit_code[0], DT_EXIT_DONE);
        ranks_clear(&alone);
        ranks_clear(&out);
    }
}

static unsigned one_wants_a_save(int rank, int64_t step)
{
    return rank == 1 && step == 2 ? VOTE_SAVE : 0;
}

/* Where a device has memory of its own, steps are begun before a vote is heard. The save waits for them,
 * and is of the last of them. */
static void a_vote_waits_for_the_steps_that_were_begun(void **state)
{
    (void)state;
    struct ranks_outcome alone, out;
    train("ddp", 2, &(struct ranks_options){.files = true, .device = "separate"}, &alone);
    train("ddp", 2,
          &(struct ranks_options){.files = true, .device = "separate", .on_moment = keep, .vote = one_wants_a_save},
          &out);
    assert_int_equal(out.ahead, 1);
    assert_false(has(0, "SAVED", 4)); /* step 4 carried the vote, and step 5 was begun before it was heard */
    assert_true(has(0, "STEP", 5) && has(0, "SAVED", 5) && has(0, "SAVED", 6));
    assert_true(out.hash == alone.hash && out.moments_hash == alone.moments_hash);
    ranks_clear(&alone);
    ranks_clear(&out);
}

static unsigned one_wants_to_stop(int rank, int64_t step)
{
    return rank == 1 && step == 3 ? VOTE_STOP : 0;
}

static void a_vote_to_stop_ends_the_run_with_a_save(void **state)
{
    (void)state;
    struct ranks_outcome out;
    train("ddp", 3, &(struct ranks_options){.files = true, .on_moment = keep, .vote = one_wants_to_stop}, &out);
    assert_string_equal(seen[0], "READING0 START0 STEP1 STEP2 STEP3 STEP4 SAVING4 SAVED4 OVER4 CLOSING4 END4");
    assert_int_equal(out.exit_code[0], DT_EXIT_STOPPED);
    ranks_clear(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_moment_is_reported_in_order),
        cmocka_unit_test(a_table_has_the_numbers_of_steps),
        cmocka_unit_test(votes_of_any_rank_are_acted_on_by_all),
        cmocka_unit_test(a_vote_waits_for_the_steps_that_were_begun),
        cmocka_unit_test(a_vote_to_stop_ends_the_run_with_a_save),
    };
    return cmocka_run_group_tests(tests, ranks_setup, folder_teardown);
}
