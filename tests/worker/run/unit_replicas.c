/* covers: worker/run/trainer_replicas.c */
/* Ranks that hold the same compare it, find the one that differs in one bit, and name the tensor. */
#include "tests/lib/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void train(const char *row, int size, bool bf16, int every, int flip_rank, struct ranks_outcome *out)
{
    struct job job;
    ranks_job(&job);
    job.training.strategy = row;
    job.training.max_steps = 6;
    job.training.check_replicas_every_n_steps = every;
    job.precision.compute = bf16 ? DT_BF16 : DT_F32;
    if (strncmp(row, "hybrid", 6) == 0) {
        job.fsdp.device_mesh[0] = 2;
        job.fsdp.device_mesh[1] = size / 2;
    }
    ranks_train(&job, size, &(struct ranks_options){.flip_step = flip_rank < 0 ? 0 : 4, .flip_rank = flip_rank}, out);
    dt_arena_clear(&job.arena);
}

static void test_a_changed_bit_is_found(void **state)
{
    (void)state;
    static const struct {
        const char *row;
        int size, flip_rank, odd;
        bool bf16, found;
    } cases[] = {
        {"ddp", 3, 2, 2, false, true},    {"ddp", 4, 0, 0, true, true},           {"zero1", 3, 1, 1, false, true},
        {"zero2", 3, 0, 0, true, true},   {"hybrid_shard", 4, 3, 1, false, true}, {"ddp", 2, 1, 0, false, true},
        {"zero3", 3, 1, 0, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ranks_outcome out;
        train(cases[i].row, cases[i].size, cases[i].bf16, 2, cases[i].flip_rank, &out);
        for (int r = 0; r < cases[i].size; r++) {
            if ((out.rc[r] == 0) == cases[i].found) {
                fail_msg("%s, rank %d: %d %s", cases[i].row, r, out.rc[r], out.err[r].text);
            }
            if (!cases[i].found) {
                continue;
            }
            bool halves = cases[i].size == 2 || cases[i].row[0] == 'h'; /* of two, neither is the odd one */
            char text[160];
            (void)snprintf(text, sizeof text, "step 4: rank %d holds another %s than %s; at step 2 all were equal",
                           cases[i].odd,
                           cases[i].row[0] == 'h' ? "transformer.h.1.mlp.c_fc.weight" : "transformer.h.1.ln_1.weight",
                           halves ? "half of the ranks" : "the other ranks");
            if (strncmp(out.err[r].text, text, strlen(text)) != 0) {
                fail_msg("%s, rank %d: \"%s\", not \"%s\"", cases[i].row, r, out.err[r].text, text);
            }
            assert_int_equal(out.err[r].status, DT_IO);
            assert_int_equal(out.err[r].blame.rank, cases[i].odd);
        }
        assert_int_equal(out.step_count, cases[i].found ? 4 : 6);
        ranks_clear(&out);
    }
}

static void test_equal_replicas_pass_and_nothing_changes(void **state)
{
    (void)state;
    static const char *const rows[] = {"ddp", "zero1", "zero2", "hybrid_shard", "hybrid_shard_zero2"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct ranks_outcome with, without;
            train(rows[i], 4, bf16, 1, -1, &with);
            train(rows[i], 4, bf16, 0, -1, &without);
            if (with.rc[0] != 0) {
                fail_msg("%s: %s", rows[i], with.err[0].text);
            }
            assert_true(with.hash == without.hash);
            ranks_clear(&with);
            ranks_clear(&without);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_changed_bit_is_found, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_equal_replicas_pass_and_nothing_changes, ranks_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
