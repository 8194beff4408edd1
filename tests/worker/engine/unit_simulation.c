/* covers: worker/engine/simulation.c kernels/simulated.c */
/* A simulated step sends what a real one does, message by message and byte by byte, and takes the time
 * that its parts take. */
#include "tests/lib/ranks.h"

#include "kernels/simulated.h"
#include "worker/engine/simulation.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 3 };

static const struct dt_gpu_sheet fast = {.name = "fast",
                                         .bf16_flops = 1e15,
                                         .fp32_flops = 1e14,
                                         .memory_bytes = 0x1p34,
                                         .memory_bytes_per_s = 1e12,
                                         .link_bytes_per_s = 1e11,
                                         .network_bytes_per_s = 1e10};

static void make_job(struct job *job, const char *row, int size, int k)
{
    ranks_job(job);
    job->training.strategy = row;
    job->training.gradient_accumulation_steps = k;
    if (strncmp(row, "hybrid", 6) == 0) {
        job->fsdp.device_mesh[0] = 2;
        job->fsdp.device_mesh[1] = size / 2;
    }
}

static void simulate(const struct job *job, int size, int local, const struct dt_gpu_sheet *gpu, struct simulation *out)
{
    struct trainer t;
    struct dt_error err = {.text = ""};
    if (trainer_prepare(&t, job, 0, size, local, DT_F32, gpu->memory_bytes, &err) != 0 ||
        trainer_simulate(&t, gpu, local, out, &err) != 0) {
        fail_msg("%s on %d: %s", job->training.strategy, size, err.text);
    }
}

/* Returns the messages of a step. */
static int64_t sends_as_simulated(const struct job *job, int size)
{
    struct ranks_outcome out;
    struct simulation s;
    int64_t messages = 0;
    ranks_train(job, size, &(struct ranks_options){.trace = false}, &out);
    assert_int_equal(out.rc[0], 0);
    simulate(job, size, size, &fast, &s);
    for (int kind = 0; kind < DT_COLL_COUNT; kind++) {
        messages += s.messages[kind];
        if (STEPS * s.messages[kind] != out.collectives_of[kind] || STEPS * s.bytes[kind] != out.bytes_of[kind]) {
            fail_msg("%s on %d, %lld micro-steps, %s: %d steps have %lld messages, %lld bytes; simulated are %lld and "
                     "%lld a step",
                     job->training.strategy, size, (long long)job->training.gradient_accumulation_steps,
                     dt_coll_name((enum dt_coll)kind), STEPS, (long long)out.collectives_of[kind],
                     (long long)out.bytes_of[kind], (long long)s.messages[kind], (long long)s.bytes[kind]);
        }
    }
    ranks_clear(&out);
    return messages;
}

static void test_sends_what_a_run_sends(void **state)
{
    (void)state;
    static const char *const rows[] = {"ddp",        "zero1",         "zero2",        "zero3",
                                       "full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int size = 2; size <= 4; size++) {
            for (int k = 1; k <= 2 && !(rows[i][0] == 'h' && size != 4); k++) {
                struct job job;
                make_job(&job, rows[i], size, k);
                if (size > 2 && k == 1) {
                    ranks_muon(&job);
                }
                (void)sends_as_simulated(&job, size);
                dt_arena_clear(&job.arena);
            }
        }
    }
}

/* The bytes of a hook are counted as they travel: half of them in 16 bits, and PowerSGD's small matrices. Of
 * local SGD a step has its share of the averages. */
static void test_hooks(void **state)
{
    (void)state;
    static const struct {
        const char *row, *hook, *wrap;
        int64_t period;
    } cases[] = {{"ddp", "fp16_compress", NULL, 1},     {"zero0", NULL, "bf16_compress", 1},
                 {"ddp", "power_sgd", NULL, 1},         {"ddp", "power_sgd", "bf16_compress", 1},
                 {"ddp", "batched_power_sgd", NULL, 1}, {"ddp", "post_local_sgd", NULL, 1},
                 {"ddp", "post_local_sgd", NULL, 3},    {"local_sgd", NULL, NULL, 1},
                 {"local_sgd", NULL, NULL, 3}};
    struct simulation plain;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job job;
        struct ranks_outcome out;
        struct simulation s;
        make_job(&job, "ddp", 4, 1);
        simulate(&job, 4, 2, &fast, &plain);
        job.training.strategy = cases[i].row;
        job.ddp.comm_hook = cases[i].hook;
        job.ddp.comm_wrapper = cases[i].wrap;
        job.local_sgd = (struct job_local_sgd){.period = cases[i].period, .group_size = 2};
        job.power_sgd.warm_start = false;
        ranks_train(&job, 4, &(struct ranks_options){.trace = false}, &out);
        assert_int_equal(out.rc[0], 0);
        simulate(&job, 4, 2, &fast, &s);
        for (int kind = 0; kind < DT_COLL_COUNT; kind++) {
            int64_t more = llabs(STEPS * s.bytes[kind] - out.bytes_of[kind]);
            if (more > STEPS || (cases[i].period == 1 && STEPS * s.messages[kind] != out.collectives_of[kind])) {
                fail_msg("%s %s, period %lld, %s: %d steps have %lld messages, %lld bytes; simulated are %lld and %lld "
                         "a step",
                         cases[i].row, cases[i].hook, (long long)cases[i].period, dt_coll_name((enum dt_coll)kind),
                         STEPS, (long long)out.collectives_of[kind], (long long)out.bytes_of[kind],
                         (long long)s.messages[kind], (long long)s.bytes[kind]);
            }
        }
        if (cases[i].hook != NULL && strcmp(cases[i].hook, "post_local_sgd") != 0) {
            assert_true(s.sent_bytes < 0.8 * plain.sent_bytes);
        }
        ranks_clear(&out);
        dt_arena_clear(&job.arena);
    }
}

/* Numbers of what is whole at a time; messages of a step of two micro-steps of five layers. */
static void test_sends_what_the_job_keeps(void **state)
{
    (void)state;
    enum { FAR = 1 << 24, LAYER = 3328 };
    static const struct {
        int64_t layers, ahead, live, reuse, persist;
        bool whole;
        int64_t messages;
    } cases[] = {
        /* the sums; per micro-step 6 reductions, gathers of the root, of the last layer and twice of four */
        {1, -1, -1, 0, 0, false, 1 + 2 * (6 + 1 + 1 + 2 * 4)},
        {2, -1, -1, 0, 0, false, 1 + 2 * (4 + 1 + 1 + 2 * 2)},
        {1, -1, -1, 0, 0, true, 1 + 2 * (1 + 1)},
        {1, 0, -1, 0, 0, false, 1 + 2 * (6 + 1 + 1 + 2 * 4)},
        {1, FAR, -1, 0, 0, false, 1 + 2 * (6 + 1 + 1 + 2 * 4)},
        {1, -1, -1, FAR, 0, false, 1 + 2 * (6 + 1 + 5)},
        {1, -1, -1, 4 * LAYER, 0, false, 1 + 2 * (6 + 1 + 2 + 2 * 3)},
        {1, -1, 1, FAR, 0, false, 1 + 2 * (6 + 1 + 1 + 2 * 4)},
        {1, -1, -1, 0, 64, false, 1 + 1 + 2 * (7 + 1 + 1 + 2 * 4)}, /* vectors once a step */
        {1, -1, -1, 0, FAR, false, 1 + 6 + 2 * 6},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job job;
        make_job(&job, "zero3", 3, 2);
        ranks_model(&job)->n_layer = 5;
        job.fsdp.layers_per_unit = cases[i].layers;
        job.fsdp.prefetch_bucket_size = cases[i].ahead;
        job.fsdp.max_live_parameters = cases[i].live;
        job.fsdp.max_reuse_distance = cases[i].reuse;
        job.fsdp.param_persistence_threshold = cases[i].persist;
        job.fsdp.auto_wrap_policy = cases[i].whole ? WRAP_WHOLE : WRAP_BY_LAYER;
        assert_int_equal(sends_as_simulated(&job, 3), cases[i].messages);
        dt_arena_clear(&job.arena);
    }
}

/* Each rank sends 2 (N - 1) / N of all gradients and of the step's sums; of a ring's N links as many cross
 * as there are hosts. */
static void test_bytes_across_hosts(void **state)
{
    (void)state;
    struct job job;
    struct simulation s;
    make_job(&job, "ddp", 8, 1);
    job.training.batch_size_per_gpu = 1;
    simulate(&job, 8, 2, &fast, &s);
    double buffers = (double)s.bytes[DT_ALL_REDUCE];
    assert_true(fabs(s.sent_bytes - 2 * 7.0 / 8 * buffers) < 1);
    assert_true(fabs(s.across_bytes - s.sent_bytes * 4 / 8) < 1);
    simulate(&job, 8, 8, &fast, &s);
    assert_true(s.across_bytes < 1 && s.sent_bytes > 1);
    dt_arena_clear(&job.arena);
}

/* A slow link makes the step as long as its messages; without peers a step is its kernels. */
static void test_time(void **state)
{
    (void)state;
    struct job job;
    struct simulation alone, s;
    struct dt_gpu_sheet slow = fast;
    slow.link_bytes_per_s = 1e5;
    make_job(&job, "ddp", 1, 1);
    simulate(&job, 1, 1, &fast, &alone);
    assert_true(alone.sent_bytes <= 0 && alone.flops > 0);
    assert_true(fabs(alone.step_s - alone.kernels_s) < 1e-9);
    dt_arena_clear(&job.arena);
    make_job(&job, "ddp", 4, 1);
    simulate(&job, 4, 4, &slow, &s);
    double sent_s = s.sent_bytes / (0.8 * slow.link_bytes_per_s);
    assert_true(s.step_s > sent_s && s.step_s < 1.05 * sent_s + 2 * alone.step_s);
    simulate(&job, 4, 4, &fast, &s);
    assert_true(s.step_s < 2 * alone.step_s + 1e-3);
    dt_arena_clear(&job.arena);
}

/* Work of two streams goes on at once; a stream that waits for an event goes on when it was recorded. */
static void test_clocks(void **state)
{
    (void)state;
    struct dt_device d;
    struct dt_stream *a, *b;
    struct dt_event *e;
    struct dt_error err;
    dt_simulated_open(&d, &fast, DT_F32);
    assert_int_equal(dt_stream_open(&d, 0, &a, &err), 0);
    assert_int_equal(dt_stream_open(&d, 0, &b, &err), 0);
    assert_int_equal(dt_event_open(&d, &e, &err), 0);
    dt_simulated_busy(a, 2);
    dt_simulated_busy(b, 3);
    dt_event_record(e, a);
    dt_simulated_busy(a, 5);
    dt_event_wait(e, b);
    assert_true(fabs(dt_simulated_s(b) - 3) < 1e-12);
    dt_event_record(e, a);
    dt_event_wait(e, b);
    assert_true(fabs(dt_simulated_s(b) - 7) < 1e-12);
    /* 1.2 of 4e9 bytes at 1e12 a second, and the launch */
    d.kernels->fill(b, &(struct dt_fill_args){.count = 1000000000, .type = DT_F32});
    assert_true(fabs(dt_simulated_s(b) - 7 - 4.8e-3) < 1e-5);
    dt_event_close(e);
    dt_stream_close(a);
    dt_stream_close(b);
    dt_device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sends_what_a_run_sends, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_hooks, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_sends_what_the_job_keeps, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_bytes_across_hosts, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_time, ranks_setup, folder_teardown),
        cmocka_unit_test(test_clocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
