/* covers: worker/run kernels/cuda */
/* run: computes   run: timeout 400 */
/* Whole training runs of one rank on the device "cuda", on the software GPU or a real one:
 * losses stay with those of the CPU, strategies have the same bits, a run that was stopped ends
 * as the undisturbed one does. Several ranks are processes (tests/worker/run/story_softgpu.py):
 * CUDA's memory functions wait for all streams of a process, so ranks that are threads would
 * wait for each other for ever. */
#include "tests/lib/ranks.h"

#include "base/file.h"
#include "base/log.h"
#include "kernels/cuda/attention.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off: needs the headers above
#include <cmocka.h>
// clang-format on

/* What the software GPU counts; on a real one nobody does. */
int softgpu_dnn_executions(void) __attribute__((weak)); /* graphs that cuDNN ran */
extern uint64_t softgpu_graph_launches __attribute__((weak)), softgpu_graphs __attribute__((weak));

static int open_folder(void **state)
{
    return ranks_setup(state) == 0 ? setenv("DTRUN_CACHE", folder, 1) : -1;
}

static void make_job(struct job *job, const char *row, const char *precision, int micro_steps, double dropout)
{
    ranks_job(job);
    struct gpt2 *m = ranks_model(job);
    m->attn_pdrop = m->embd_pdrop = m->resid_pdrop = dropout;
    job->training.strategy = row;
    job->training.precision = precision;
    /* as reading a job file sets it */
    job->precision.compute = job->precision.reduce = strcmp(precision, "bf16-mixed") == 0 ? DT_BF16 : DT_F32;
    job->training.max_steps = 3;
    job->training.gradient_accumulation_steps = micro_steps;
    job->training.cuda_graphs = GRAPHS_OFF;
    job->text = NULL;
}

static void train(const struct job *job, int size, const struct ranks_options *o, struct ranks_outcome *out)
{
    ranks_train(job, size, o, out);
    for (int r = 0; r < size; r++) {
        if (out->rc[r] != 0) {
            fail_msg("%s on %d ranks: rank %d: %s", job->training.strategy, size, r, out->err[r].text);
        }
    }
}

/* Trains row after row; all must have the first one's bits, and losses near the CPU's. */
static void check_rows(const char *const *rows, int size, const char *precision, int micro_steps, double dropout,
                       double bound)
{
    struct ranks_outcome first = {0}, cpu, out;
    for (int i = 0; rows[i] != NULL; i++) {
        struct job job;
        make_job(&job, rows[i], precision, micro_steps, dropout);
        train(&job, size, &(struct ranks_options){.device = "cuda"}, &out);
        if (i > 0) {
            if (out.hash != first.hash || memcmp(out.loss, first.loss, 3 * sizeof(double)) != 0) {
                fail_msg("%s on %d ranks (%s, %d micro-steps) has other bits than %s", rows[i], size, precision,
                         micro_steps, rows[0]);
            }
            ranks_clear(&out);
            dt_arena_clear(&job.arena);
            continue;
        }
        first = out;
        train(&job, size, &(struct ranks_options){.device = "cpu"}, &cpu);
        assert_int_equal(first.step_count, 3);
        for (int k = 0; k < 3; k++) {
            if (!(fabs(first.loss[k] - cpu.loss[k]) <= bound) || !(fabs(first.norm[k] - cpu.norm[k]) <= 10 * bound)) {
                fail_msg("%s on %d ranks (%s): step %d: loss %.9g, norm %.9g; on the CPU %.9g, %.9g", rows[i], size,
                         precision, k, first.loss[k], first.norm[k], cpu.loss[k], cpu.norm[k]);
            }
        }
        ranks_clear(&cpu);
        dt_arena_clear(&job.arena);
    }
    ranks_clear(&first);
}

static void one_rank(void **state)
{
    (void)state;
    check_rows((const char *const[]){"single_device", "ddp", "full_shard", NULL}, 1, "32-true", 2, 0, 1e-5);
    /* the masks are the CPU's */
    check_rows((const char *const[]){"single_device", "full_shard", NULL}, 1, "32-true", 2, 0.2, 1e-5);
    int before = softgpu_dnn_executions != NULL ? softgpu_dnn_executions() : -1;
    check_rows((const char *const[]){"single_device", "full_shard", NULL}, 1, "bf16-mixed", 1, 0, 2e-2);
    check_rows((const char *const[]){"single_device", "full_shard", NULL}, 1, "bf16-mixed", 1, 0.2, 2e-2);
    assert_true(before < 0 || softgpu_dnn_executions() > before);
}

/* training.attention, and training.deterministic, which leaves the library out. */
static void attention_as_the_job_says(void **state)
{
    (void)state;
    static const struct {
        const char *attention;
        bool deterministic, by_library;
    } cases[] = {{"auto", false, true},
                 {"ordered", false, true},
                 {"fast", false, true},
                 {"own", false, false},
                 {"auto", true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && softgpu_dnn_executions != NULL; i++) {
        struct job job;
        struct ranks_outcome out;
        int64_t before[2] = {dt_cuda_attention_calls(DT_ATTENTION_BY_CUDNN, true),
                             dt_cuda_attention_calls(DT_ATTENTION_BY_FLASH, true)};
        make_job(&job, "single_device", "bf16-mixed", 1, 0);
        job.training.attention = cases[i].attention;
        job.training.deterministic = cases[i].deterministic;
        train(&job, 1, &(struct ranks_options){.device = "cuda"}, &out);
        bool library = dt_cuda_attention_calls(DT_ATTENTION_BY_CUDNN, true) > before[0],
             own = dt_cuda_attention_calls(DT_ATTENTION_BY_FLASH, true) > before[1];
        if (library != cases[i].by_library || own == cases[i].by_library) {
            fail_msg("attention %s: by cuDNN %d, by our own kernels %d", cases[i].attention, library, own);
        }
        ranks_clear(&out);
        dt_arena_clear(&job.arena);
    }
}

static void check_stopped(enum dt_dtype moments)
{
    struct job job;
    struct ranks_outcome whole, first, second;
    make_job(&job, "full_shard", "bf16-mixed", 1, 0);
    job.precision.states = moments;
    job.training.max_steps = 6;
    train(&job, 1, &(struct ranks_options){.device = "cuda"}, &whole);
    job.output_dir = dt_arena_printf(&job.arena, "%s/run-%s", folder, dt_dtype_name(moments));
    job.checkpointing.checkpoint_dir = dt_arena_printf(&job.arena, "%s/checkpoints", job.output_dir);
    train(&job, 1, &(struct ranks_options){.device = "cuda", .files = true, .stop_after = 1}, &first);
    assert_int_equal(first.exit_code[0], DT_EXIT_STOPPED);
    assert_int_equal(first.last_step, 4); /* one step was in when it was asked, and one more when
                                           * it heard */
    train(&job, 1, &(struct ranks_options){.device = "cuda", .files = true}, &second);
    assert_int_equal(second.exit_code[0], DT_EXIT_DONE);
    assert_true(second.hash == whole.hash && second.moments_hash == whole.moments_hash);
    ranks_clear(&whole);
    ranks_clear(&first);
    ranks_clear(&second);
    dt_arena_clear(&job.arena);
}

static void stopped_equals_uninterrupted(void **state)
{
    (void)state;
    check_stopped(DT_F32);
    check_stopped(DT_BF16);
}

/* A step's results are read when the next one is in, and the batches after that one; before a
 * save and at the end nothing is. */
static void the_device_always_has_work(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome gpu, saving, cpu;
    make_job(&job, "single_device", "32-true", 2, 0);
    job.training.max_steps = 6;
    train(&job, 1, &(struct ranks_options){.device = "cuda"}, &gpu);
    assert_int_equal(gpu.ahead, 1);
    assert_int_equal(gpu.read_before, 4); /* steps 1 to 4; when step 5 is known, the last one is
                                           * in, and there is no other */
    job.output_dir = dt_arena_printf(&job.arena, "%s/saving", folder);
    job.checkpointing.checkpoint_dir = dt_arena_printf(&job.arena, "%s/checkpoints", job.output_dir);
    job.checkpointing.save_every_n_steps = 2;
    train(&job, 1, &(struct ranks_options){.device = "cuda", .files = true}, &saving);
    assert_int_equal(saving.read_before, 2); /* steps 1 and 3 */
    assert_true(saving.hash == gpu.hash);
    assert_memory_equal(saving.loss, gpu.loss, 6 * sizeof(double));
    train(&job, 1, &(struct ranks_options){.device = "cpu"}, &cpu);
    assert_int_equal(cpu.ahead, 0);
    ranks_clear(&gpu);
    ranks_clear(&saving);
    ranks_clear(&cpu);
    dt_arena_clear(&job.arena);
}

static uint64_t graph_launches(void)
{
    return &softgpu_graph_launches != NULL ? softgpu_graph_launches : 0;
}

static struct {
    uint64_t launches[RANKS_STEPS_MAX], graphs; /* by step; the most at a time */
    int count;
} watched;

static void watch_graphs(int rank, int64_t step)
{
    (void)rank;
    (void)step;
    watched.launches[watched.count++] = graph_launches();
    if (&softgpu_graphs != NULL && softgpu_graphs > watched.graphs) {
        watched.graphs = softgpu_graphs;
    }
}

static void train_watched(const struct job *job, struct ranks_outcome *out)
{
    memset(&watched, 0, sizeof watched);
    train(job, 1, &(struct ranks_options){.device = "cuda", .on_step = watch_graphs}, out);
    assert_true(&softgpu_graphs == NULL || softgpu_graphs == 0); /* all are closed */
}

/* Layers as graphs: the same bits as without, with evaluations between, computing again and
 * several micro-steps. */
static void graphs_change_no_bits(void **state)
{
    (void)state;
    static const struct {
        const char *precision;
        int micro_steps;
        enum recompute level;
        uint64_t layers, graphs; /* graphs with GRAPHS_LAYERS, of two layers, and with GRAPHS_ON */
        double dropout;
    } rows[] = {
        /* forward, backward, evaluation; or evaluation, and a micro-step with batches in two places */
        {"32-true", 1, RECOMPUTE_CHEAP, 2 * 3, 2 + 2, 0},       {"32-true", 3, RECOMPUTE_BLOCK, 2 * 5, 2 * 5, 0},
        {"bf16-mixed", 2, RECOMPUTE_NONE, 2 * 4, 2 + 2 * 2, 0}, {"bf16-mixed", 1, RECOMPUTE_MLP, 2 * 4, 2 + 2, 0},
        {"32-true", 3, RECOMPUTE_BLOCK, 2 * 5, 2 * 5, 0.2}, /* and another mask in each micro-step */
        {"32-true", 2, RECOMPUTE_BLOCK, 2 * 5, 2 + 2 * 2, 0.2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct job job;
        struct ranks_outcome without, with;
        make_job(&job, "single_device", rows[i].precision, rows[i].micro_steps, rows[i].dropout);
        job.data.val = dt_set_alone(&job.arena, dt_arena_printf(&job.arena, "%s/val.bin", folder));
        job.training.max_steps = 5;
        job.training.eval_every_n_steps = 2;
        job.recompute = (struct job_recompute){.enabled = true, .every_n_layers = 1, .level = rows[i].level};
        uint64_t before = graph_launches();
        train_watched(&job, &without);
        assert_int_equal(graph_launches(), before);
        for (int k = 0; k < 2; k++) {
            before = graph_launches();
            job.training.cuda_graphs = k == 0 ? GRAPHS_LAYERS : GRAPHS_ON;
            train_watched(&job, &with);
            if (&softgpu_graphs != NULL) {
                uint64_t calls = k == 0 ? 2 * 2 : 1; /* of a micro-step */
                assert_true(graph_launches() > before + calls * (uint64_t)rows[i].micro_steps * 3);
                assert_int_equal(watched.graphs, k == 0 ? rows[i].layers : rows[i].graphs);
            }
            assert_true(with.hash == without.hash);
            assert_memory_equal(with.loss, without.loss, 5 * sizeof(double));
            assert_memory_equal(with.norm, without.norm, 5 * sizeof(double));
            ranks_clear(&with);
        }
        ranks_clear(&without);
        dt_arena_clear(&job.arena);
    }
}

/* By default turns of steps with and without them are measured, then one way stays. */
static void graphs_are_measured(void **state)
{
    (void)state;
    enum { STEPS = 34, DECIDED = 30 }; /* 4 steps, 6 turns of 4, and the step that was in */
    struct job job;
    struct ranks_outcome without, measured;
    make_job(&job, "single_device", "32-true", 1, 0);
    job.training.max_steps = STEPS;
    train_watched(&job, &without);
    job.training.cuda_graphs = GRAPHS_AUTO;
    train_watched(&job, &measured);
    assert_true(measured.hash == without.hash);
    assert_memory_equal(measured.loss, without.loss, STEPS * sizeof(double));
    if (&softgpu_graphs != NULL) {
        assert_true(watched.launches[2] == watched.launches[0]);
        assert_true(watched.launches[6] > watched.launches[4]);
        assert_true(watched.launches[10] == watched.launches[8]);
        assert_true(watched.launches[14] > watched.launches[12]);
        uint64_t last = watched.launches[STEPS - 1] - watched.launches[DECIDED];
        assert_true(last == 0 || last == STEPS - 1 - DECIDED - 1);
    }
    ranks_clear(&without);
    ranks_clear(&measured);
    dt_arena_clear(&job.arena);
}

/* A runtime that takes nothing down: training goes on without graphs, with the same bits. */
static void refused_graphs_cost_nothing(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome without, refused;
    make_job(&job, "single_device", "32-true", 1, 0);
    train_watched(&job, &without);
    job.training.cuda_graphs = GRAPHS_ON;
    (void)setenv("SOFTGPU_FAIL", "cudaStreamEndCapture:3", 1);
    uint64_t before = graph_launches();
    train_watched(&job, &refused);
    (void)unsetenv("SOFTGPU_FAIL");
    assert_true(refused.hash == without.hash);
    assert_true(&softgpu_graphs == NULL || graph_launches() == before);
    ranks_clear(&without);
    ranks_clear(&refused);
    dt_arena_clear(&job.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(attention_as_the_job_says),
        cmocka_unit_test(stopped_equals_uninterrupted),
        cmocka_unit_test(the_device_always_has_work),
        cmocka_unit_test(graphs_change_no_bits),
        cmocka_unit_test(graphs_are_measured),
        cmocka_unit_test(refused_graphs_cost_nothing),
    };
    return cmocka_run_group_tests(tests, open_folder, folder_teardown);
}
