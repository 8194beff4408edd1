/* Training over several hosts gives the bits of one host, for every placement of weights and gradients and for uneven hosts. */
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *folder;

static void train(const char *row, int size, int replicas, const char *hosts, struct ranks_outcome *out)
{
    struct job job;
    ranks_job(&job, folder);
    job.training.strategy = row;
    job.training.gradient_accumulation_steps = 2;
    if (replicas > 0) {
        job.fsdp.device_mesh[0] = replicas;
        job.fsdp.device_mesh[1] = size / replicas;
    }
    ranks_train(&job, size, &(struct ranks_options){.hosts = hosts}, out);
    for (int r = 0; r < size; r++) {
        if (out->rc[r] != 0) {
            print_error("%s on %s, rank %d: %s\n", row, hosts ? hosts : "one host", r, out->err[r].text);
        }
        assert_int_equal(out->rc[r], 0);
    }
    assert_int_equal(out->step_count, job.training.max_steps);
    dt_arena_clear(&job.arena);
}

static void same_everywhere(const char *row, int replicas, const char *const *layouts)
{
    struct ranks_outcome one, many;
    int size = (int)strlen(layouts[0]);
    train(row, size, replicas, NULL, &one);
    for (int i = 0; layouts[i]; i++) {
        train(row, size, replicas, layouts[i], &many);
        if (memcmp(one.loss, many.loss, sizeof one.loss) != 0 || one.hash != many.hash) {
            print_error("%s on %s: loss %.17g, on one host %.17g\n", row, layouts[i], many.loss[2], one.loss[2]);
        }
        assert_memory_equal(one.loss, many.loss, sizeof one.loss);
        assert_memory_equal(one.norm, many.norm, sizeof one.norm);
        assert_true(one.hash == many.hash);
        ranks_clear(&many);
    }
    ranks_clear(&one);
}

static void test_two_ranks(void **state)
{
    (void)state;
    same_everywhere("ddp", 0, (const char *const[]){"ab", NULL});
    same_everywhere("full_shard", 0, (const char *const[]){"ab", NULL});
}

static void test_three_ranks(void **state)
{
    (void)state;
    static const char *const layouts[] = {"aab", "abb", "abc", NULL};
    same_everywhere("ddp", 0, layouts);
    same_everywhere("zero1", 0, layouts);
    same_everywhere("zero2", 0, layouts);
    same_everywhere("full_shard", 0, layouts);
}

static void test_four_ranks(void **state)
{
    (void)state;
    static const char *const layouts[] = {"aabb", "abbb", "abab", NULL};
    same_everywhere("ddp", 0, layouts);
    same_everywhere("zero2", 0, layouts);
    same_everywhere("shard_grad_op", 0, layouts);
}

/* Groups within hosts and across them. */
static void test_hybrid(void **state)
{
    (void)state;
    static const char *const layouts[] = {"aabb", "abab", "abbb", NULL};
    same_everywhere("hybrid_shard", 2, layouts);
    same_everywhere("hybrid_shard_zero2", 2, layouts);
}

static int setup(void **state)
{
    (void)state;
    folder = ranks_folder();
    ranks_data(folder, 96);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ranks_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_three_ranks),
        cmocka_unit_test(test_four_ranks),
        cmocka_unit_test(test_hybrid),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
