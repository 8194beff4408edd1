/* The strong tests: at each world size every strategy row gives the same losses and the same weights. Two families: gradients
 * summed over micro-steps and then over ranks (boundary), or the other way round (every micro-step). Inside a family all bits
 * agree; between them only the mathematics does, unless there is one micro-step. */
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *folder;

struct row {
    const char *name;
    bool hybrid;
};
static const struct row rows[] = {
    {"ddp", false},           {"zero0", false},      {"no_shard", false},      {"zero1", false},       {"zero2", false},
    {"zero3", false},         {"full_shard", false}, {"shard_grad_op", false}, {"hybrid_shard", true}, {"hybrid_shard_zero2", true},
    {"single_device", false},
};
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

struct variant {
    const char *row;
    int size, k, mesh_replicas;
    enum accumulate_sync sync;
    bool recompute, forward_prefetch;
    enum prefetch prefetch;
};

static void set(struct job *job, const struct variant *v)
{
    ranks_job(job, folder);
    job->training.strategy = v->row;
    job->training.gradient_accumulation_steps = v->k;
    job->training.accumulate_sync = v->sync;
    job->recompute.enabled = v->recompute;
    job->fsdp.backward_prefetch = v->prefetch;
    job->fsdp.forward_prefetch = v->forward_prefetch;
    if (v->mesh_replicas > 0) {
        job->fsdp.device_mesh[0] = v->mesh_replicas;
        job->fsdp.device_mesh[1] = v->size / v->mesh_replicas;
    }
}

static void train(const struct variant *v, struct ranks_outcome *out)
{
    struct job job;
    set(&job, v);
    ranks_train(&job, v->size, NULL, out);
    for (int r = 0; r < v->size; r++) {
        if (out->rc[r] != 0) {
            print_error("%s on %d, rank %d: %s\n", v->row, v->size, r, out->err[r].text);
        }
        assert_int_equal(out->rc[r], 0);
    }
    assert_int_equal(out->step_count, job.training.max_steps);
    assert_int_equal(out->exit_code[0], DT_EXIT_DONE);
    dt_arena_clear(&job.arena);
}

static bool same_bits(const struct ranks_outcome *a, const struct ranks_outcome *b)
{
    return a->step_count == b->step_count && memcmp(a->loss, b->loss, sizeof a->loss) == 0 && memcmp(a->norm, b->norm, sizeof a->norm) == 0 &&
           a->hash == b->hash;
}

static void assert_same(const struct variant *v, const struct ranks_outcome *got, const struct ranks_outcome *wanted)
{
    if (!same_bits(got, wanted)) {
        print_error("%s on %d ranks, k %d, sync %d, recompute %d, prefetch %d:\n", v->row, v->size, v->k, v->sync, v->recompute, v->prefetch);
        for (int i = 0; i < got->step_count; i++) {
            print_error("  step %d loss %.17g wanted %.17g, norm %.17g wanted %.17g\n", i, got->loss[i], wanted->loss[i], got->norm[i],
                        wanted->norm[i]);
        }
    }
    assert_true(same_bits(got, wanted));
}

static void assert_close(const struct ranks_outcome *a, const struct ranks_outcome *b, double relative)
{
    for (int i = 0; i < a->step_count; i++) {
        if (!(fabs(a->loss[i] - b->loss[i]) <= relative * fabs(b->loss[i]))) {
            print_error("step %d: loss %.9g and %.9g\n", i, a->loss[i], b->loss[i]);
        }
        assert_true(fabs(a->loss[i] - b->loss[i]) <= relative * fabs(b->loss[i]));
    }
}

/* All rows with the row's own sync and both forced ones; recompute and prefetch change from case to case. */
static void every_row(int size, int k)
{
    struct ranks_outcome boundary, every;
    train(&(struct variant){.row = "ddp", .size = size, .k = k, .sync = SYNC_BOUNDARY}, &boundary);
    train(&(struct variant){.row = "zero2", .size = size, .k = k, .sync = SYNC_EVERY_MICRO_STEP}, &every);
    assert_close(&boundary, &every, 1e-5);
    if (k == 1 || size == 1) {
        assert_true(same_bits(&boundary, &every));
    }
    int turn = 0;
    for (int i = 0; i < ROW_COUNT; i++) {
        if (strcmp(rows[i].name, "single_device") == 0 && size > 1) {
            continue;
        }
        for (int sync = SYNC_EVERY_MICRO_STEP; sync <= SYNC_BOUNDARY; sync++, turn++) {
            struct ranks_outcome got;
            struct variant v = {.row = rows[i].name,
                                .size = size,
                                .k = k,
                                .sync = (enum accumulate_sync)sync,
                                .recompute = turn % 2 == 1,
                                .prefetch = (enum prefetch)(turn % 3),
                                .forward_prefetch = turn % 4 > 1};
            if (rows[i].hybrid) {
                v.mesh_replicas = size % 2 == 0 ? 2 : 1; /* powers of two, where = holds */
            }
            train(&v, &got);
            assert_same(&v, &got, sync == SYNC_BOUNDARY ? &boundary : &every);
            ranks_clear(&got);
        }
    }
    ranks_clear(&boundary);
    ranks_clear(&every);
}

static void test_one_rank(void **state)
{
    (void)state;
    every_row(1, 1);
    every_row(1, 2);
}

static void test_two_ranks(void **state)
{
    (void)state;
    every_row(2, 1);
    every_row(2, 2);
}

static void test_three_ranks(void **state)
{
    (void)state;
    every_row(3, 1);
    every_row(3, 2);
}

static void test_four_ranks(void **state)
{
    (void)state;
    every_row(4, 1);
    every_row(4, 2);
}

/* The rows' own families, without accumulate_sync. */
static void test_default_sync(void **state)
{
    (void)state;
    struct ranks_outcome ddp, zero1, zero2, full;
    train(&(struct variant){.row = "ddp", .size = 2, .k = 2}, &ddp);
    train(&(struct variant){.row = "zero1", .size = 2, .k = 2}, &zero1);
    train(&(struct variant){.row = "zero2", .size = 2, .k = 2}, &zero2);
    train(&(struct variant){.row = "fsdp", .size = 2, .k = 2}, &full);
    assert_true(same_bits(&ddp, &zero1));
    assert_true(same_bits(&zero2, &full));
    assert_false(same_bits(&ddp, &zero2)); /* if it ever agrees, the families are not what they say */
    ranks_clear(&ddp);
    ranks_clear(&zero1);
    ranks_clear(&zero2);
    ranks_clear(&full);
}

static void test_all_prefetches(void **state)
{
    (void)state;
    static const char *const names[] = {"full_shard", "shard_grad_op", "hybrid_shard"};
    struct ranks_outcome wanted;
    train(&(struct variant){.row = "zero2", .size = 4, .k = 2}, &wanted);
    for (int i = 0; i < 3; i++) {
        for (int n = 0; n < 12; n += i == 0 ? 1 : 5) {
            struct ranks_outcome got;
            struct variant v = {.row = names[i],
                                .size = 4,
                                .k = 2,
                                .recompute = n % 2,
                                .prefetch = (enum prefetch)(n / 2 % 3),
                                .forward_prefetch = n >= 6,
                                .mesh_replicas = i == 2 ? 2 : 0};
            train(&v, &got);
            assert_same(&v, &got, &wanted);
            ranks_clear(&got);
        }
    }
    ranks_clear(&wanted);
}

/* The same samples per step, cut differently: only the order of sums differs. */
static void test_world_sizes_are_close(void **state)
{
    (void)state;
    for (int norm = LOSS_LOCAL_MEAN; norm <= LOSS_GLOBAL_TOKENS; norm++) {
        struct ranks_outcome one, four, micro;
        struct job job;
        ranks_job(&job, folder);
        job.training.loss_normalization = (enum loss_normalization)norm;
        job.training.batch_size_per_gpu = 8;
        ranks_train(&job, 1, NULL, &one);
        job.training.batch_size_per_gpu = 2;
        job.training.strategy = "zero3";
        ranks_train(&job, 4, NULL, &four);
        job.training.gradient_accumulation_steps = 2;
        ranks_train(&job, 2, NULL, &micro);
        assert_int_equal(one.rc[0] + four.rc[0] + micro.rc[0], 0);
        assert_close(&four, &one, 1e-5);
        assert_close(&micro, &one, 1e-5);
        assert_false(same_bits(&one, &micro)); /* otherwise nothing was compared */
        ranks_clear(&one);
        ranks_clear(&four);
        ranks_clear(&micro);
        dt_arena_clear(&job.arena);
    }
}

/* Runs that must differ do differ. */
static void test_differences_show(void **state)
{
    (void)state;
    struct ranks_outcome base, other;
    struct job job;
    ranks_job(&job, folder);
    ranks_train(&job, 2, NULL, &base);
    for (int i = 0; i < 6; i++) {
        struct job changed = job;
        changed.training.seed += i == 0;
        changed.data.shuffle = i != 1;
        changed.training.max_grad_norm = i == 2 ? 0 : changed.training.max_grad_norm;
        changed.training.weight_decay = i == 3 ? 0 : changed.training.weight_decay;
        changed.training.gradient_accumulation_steps = i == 4 ? 2 : 1;
        changed.training.lr_scheduler_type = i == 5 ? "constant" : changed.training.lr_scheduler_type;
        ranks_train(&changed, 2, NULL, &other);
        assert_int_equal(other.rc[0], 0);
        assert_true(base.hash != other.hash);
        ranks_clear(&other);
    }
    ranks_clear(&base);
    dt_arena_clear(&job.arena);
}

/* A communication stream of its own: the same bits, and a missing event wait would show. */
static void test_threaded_streams(void **state)
{
    (void)state;
    static const char *const names[] = {"ddp", "zero1", "full_shard", "shard_grad_op"};
    for (int i = 0; i < 4; i++) {
        struct ranks_outcome inline_run, threaded;
        struct variant v = {.row = names[i], .size = 2, .k = 2, .recompute = i % 2};
        setenv("DTRUN_STREAMS", "inline", 1);
        train(&v, &inline_run);
        setenv("DTRUN_STREAMS", "thread", 1);
        train(&v, &threaded);
        unsetenv("DTRUN_STREAMS");
        assert_same(&v, &threaded, &inline_run);
        ranks_clear(&inline_run);
        ranks_clear(&threaded);
    }
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
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_three_ranks),
        cmocka_unit_test(test_four_ranks),
        cmocka_unit_test(test_default_sync),
        cmocka_unit_test(test_all_prefetches),
        cmocka_unit_test(test_world_sizes_are_close),
        cmocka_unit_test(test_differences_show),
        cmocka_unit_test(test_threaded_streams),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
