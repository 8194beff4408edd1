/* covers: worker/run worker/checkpoints */
/* Runs that stop and go on: the same bits as without the stop, on any number of ranks and with
 * any strategy the same state. */
#include "tests/lib/ranks.h"

#include "base/file.h"
#include "worker/checkpoints/course.h"
#include "worker/checkpoints/manifest.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void set(struct job *job, const char *row, int batch)
{
    ranks_job(job);
    job->training.strategy = row;
    job->training.batch_size_per_gpu = batch;
    job->training.max_steps = 6;
    job->text = NULL;
}

static void train(struct job *job, int size, const struct ranks_options *o, struct ranks_outcome *out)
{
    ranks_train(job, size, o, out);
    for (int r = 0; r < size; r++) {
        if (out->rc[r] != 0) {
            print_error("rank %d: %s\n", r, out->err[r].text);
        }
        assert_int_equal(out->rc[r], 0);
    }
}

static const struct ranks_options files = {.files = true};

/* Stopped after step 3 by the wish of one rank, continued on the same ranks. */
static void test_stopped_equals_uninterrupted(void **state)
{
    (void)state;
    static const struct {
        const char *row;
        int size;
        const char *device; /* of the parts; the whole runs on the CPU */
        enum dt_dtype type, moments;
        double dropout;
    } cases[] = {{"single_device", 1, NULL, DT_F32, DT_F32, 0},
                 {"ddp", 2, NULL, DT_F32, DT_F32, 0},
                 {"zero1", 3, NULL, DT_F32, DT_F32, 0},
                 {"full_shard", 4, NULL, DT_F32, DT_F32, 0},
                 {"hybrid_shard", 4, NULL, DT_F32, DT_F32, 0},
                 {"single_device", 1, "separate", DT_F32, DT_F32, 0},
                 {"ddp", 2, NULL, DT_BF16, DT_F32, 0},
                 {"zero1", 3, NULL, DT_BF16, DT_F32, 0},
                 {"full_shard", 4, NULL, DT_BF16, DT_F32, 0},
                 {"single_device", 1, "separate", DT_BF16, DT_F32, 0},
                 {"zero1", 3, NULL, DT_F32, DT_BF16, 0},
                 {"full_shard", 2, NULL, DT_BF16, DT_BF16, 0},
                 {"single_device", 1, "separate", DT_F32, DT_BF16, 0},
                 {"single_device", 1, "separate", DT_BF16, DT_BF16, 0},
                 {"single_device", 1, "separate", DT_F32, DT_F32, 0.2},
                 {"full_shard", 2, NULL, DT_BF16, DT_F32, 0.2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job job;
        struct ranks_outcome whole, first, second;
        set(&job, cases[i].row, 2);
        job.precision.compute = job.precision.reduce = cases[i].type;
        job.precision.states = cases[i].moments;
        struct gpt2 *m = ranks_model(&job);
        m->attn_pdrop = m->embd_pdrop = m->resid_pdrop = cases[i].dropout;
        if (strncmp(cases[i].row, "hybrid", 6) == 0) {
            job.fsdp.device_mesh[0] = job.fsdp.device_mesh[1] = 2;
        }
        train(&job, cases[i].size, NULL, &whole);
        job.output_dir = dt_arena_printf(&job.arena, "%s/run-%zu", folder, i);
        job.checkpointing.checkpoint_dir = dt_arena_printf(&job.arena, "%s/checkpoints", job.output_dir);
        train(&job, cases[i].size,
              &(struct ranks_options){
                  .files = true, .device = cases[i].device, .stop_after = 2, .stop_rank = cases[i].size - 1},
              &first);
        assert_int_equal(first.exit_code[0], DT_EXIT_STOPPED);
        /* The wish rides on the sums of the next step that begins; a device with memory of its
         * own has two in by then, and one more when it is heard. */
        int last = cases[i].device != NULL ? 5 : 3;
        assert_int_equal(first.last_step, last);
        assert_memory_equal(first.loss, whole.loss, (size_t)last * sizeof(double));
        train(&job, cases[i].size, &(struct ranks_options){.files = true, .device = cases[i].device}, &second);
        assert_int_equal(second.exit_code[0], DT_EXIT_DONE);
        assert_int_equal(second.step_count, 6 - last);
        assert_memory_equal(second.loss, whole.loss + last, (size_t)(6 - last) * sizeof(double));
        assert_true(second.hash == whole.hash && second.moments_hash == whole.moments_hash);
        ranks_clear(&first);
        train(&job, cases[i].size, &files, &first); /* finished already */
        assert_true(first.finished_before);
        assert_int_equal(first.exit_code[0], DT_EXIT_DONE);
        assert_true(first.hash == whole.hash);
        ranks_clear(&whole);
        ranks_clear(&first);
        ranks_clear(&second);
        dt_arena_clear(&job.arena);
    }
}

static void make_power(struct job *job, int steps)
{
    set(job, "ddp", 2);
    job->training.max_steps = steps;
    job->ddp.comm_hook = "power_sgd";
    job->power_sgd = (struct job_power_sgd){.matrix_approximation_rank = 2,
                                            .min_compression_rate = 1,
                                            .start_iter = 2,
                                            .use_error_feedback = true,
                                            .warm_start = true};
}

/* Errors and matrices of PowerSGD go on: stopped before it begins, where it begins, and later. On another
 * number of ranks, and with other matrices, it begins anew, and all ranks agree. */
static void test_power_sgd_goes_on(void **state)
{
    (void)state;
    for (int k = 0; k < 6; k++) {
        struct job job;
        struct ranks_outcome whole, first, second;
        int stop = k < 3 ? k : 3, size = 3;
        make_power(&job, 6);
        job.precision.compute = job.precision.reduce = k == 4 ? DT_BF16 : DT_F32;
        job.ddp.comm_wrapper = k == 5 ? "bf16_compress" : NULL;
        job.checkpointing.beside = k == 3;
        train(&job, size, NULL, &whole);
        job.output_dir = dt_arena_printf(&job.arena, "%s/power-%d", folder, k);
        job.checkpointing.checkpoint_dir = dt_arena_printf(&job.arena, "%s/checkpoints", job.output_dir);
        job.checkpointing.save_every_n_steps = stop + 1;
        train(&job, size, &(struct ranks_options){.files = true, .stop_after = stop, .stop_rank = 1}, &first);
        assert_int_equal(first.last_step, stop > 0 ? stop + 1 : 6);
        train(&job, size, &files, &second);
        assert_true(second.hash == whole.hash && second.moments_hash == whole.moments_hash);
        ranks_clear(&whole);
        ranks_clear(&first);
        ranks_clear(&second);
        dt_arena_clear(&job.arena);
    }
    struct job job;
    struct ranks_outcome out;
    make_power(&job, 3);
    train(&job, 3, &files, &out);
    ranks_clear(&out);
    job.training.max_steps = 6;
    train(&job, 2, &files, &out);
    assert_int_equal(out.step_count, 3);
    ranks_clear(&out);
    job.training.max_steps = 8;
    job.power_sgd.matrix_approximation_rank = 1;
    train(&job, 2, &files, &out);
    assert_int_equal(out.step_count, 2);
    ranks_clear(&out);
    job.training.max_steps = 10;
    job.training.strategy = "zero1";
    job.ddp.comm_hook = NULL;
    train(&job, 2, &files, &out);
    assert_int_equal(out.step_count, 2);
    ranks_clear(&out);
    dt_arena_clear(&job.arena);
}

/* Local SGD: a save averages weights and moments, so a run that goes on has what one that was not stopped has. */
static void test_local_sgd_goes_on(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome whole, first, second;
    for (int beside = 0; beside < 2; beside++) {
        set(&job, "local_sgd", 2);
        job.local_sgd = (struct job_local_sgd){.warmup_steps = 1, .period = 4};
        job.checkpointing.save_every_n_steps = 3;
        job.checkpointing.beside = beside == 1;
        job.output_dir = dt_arena_printf(&job.arena, "%s/local-%d-whole", folder, beside);
        job.checkpointing.checkpoint_dir = dt_arena_printf(&job.arena, "%s/checkpoints", job.output_dir);
        train(&job, 3, &files, &whole);
        job.output_dir = dt_arena_printf(&job.arena, "%s/local-%d", folder, beside);
        job.checkpointing.checkpoint_dir = dt_arena_printf(&job.arena, "%s/checkpoints", job.output_dir);
        train(&job, 3, &(struct ranks_options){.files = true, .stop_after = 2, .stop_rank = 1}, &first);
        assert_int_equal(first.last_step, 3);
        train(&job, 3, &files, &second);
        assert_int_equal(second.step_count, 3);
        assert_true(second.hash == whole.hash && second.moments_hash == whole.moments_hash);
        assert_memory_equal(second.loss, whole.loss + 3, 3 * sizeof(double));
        ranks_clear(&whole);
        ranks_clear(&first);
        ranks_clear(&second);
        dt_arena_clear(&job.arena);
    }
}

static struct dt_sources source_in(struct job *job, const char *name)
{
    return dt_source_alone(&job->arena, dt_arena_printf(&job->arena, "%s/%s", folder, name));
}

/* "STEP KEY VALUE" of each line of metrics.jsonl; the arena owns it. */
static const char *told(struct job *job)
{
    struct dt_text text, out;
    struct dt_error err;
    char *path = dt_format("%s/metrics.jsonl", job->output_dir);
    dt_text_init(&text);
    dt_text_init(&out);
    assert_int_equal(dt_file_read(path, 1 << 20, &text, &err), 0);
    for (char *line = text.data, *rest = NULL; (line = strtok_r(line, "\n", &rest)) != NULL; line = NULL) {
        const char *val = strstr(line, "\"val_loss\": "), *loss = strstr(line, "\"loss\": "), *from = val ? val : loss;
        dt_text_printf(&out, "%d %.*s\n", atoi(line + strlen("{\"step\": ")), (int)strcspn(from, ","), from);
    }
    const char *kept = dt_arena_strdup(&job->arena, dt_text_str(&out));
    dt_text_clear(&text);
    dt_text_clear(&out);
    free(path);
    return kept;
}

/* Stopped in an evaluation, at a step before one, or in the last one of all, and continued: the
 * lines are those of an undisturbed run. */
static void test_a_stop_loses_no_evaluation(void **state)
{
    (void)state;
    static const int stops[] = {2, 3, 6}; /* in an evaluation; in the step before one; in the
                                           * last one */
    const char *whole = NULL;
    struct job job;
    set(&job, "zero1", 1);
    job.data.val = dt_set_alone(&job.arena, dt_arena_printf(&job.arena, "%s/val.bin", folder));
    job.training.eval_every_n_steps = 2;
    job.logging.log_every_n_steps = 4;
    for (size_t i = 0; i < 1 + sizeof stops / sizeof stops[0]; i++) {
        struct ranks_outcome out;
        job.output_dir = dt_arena_printf(&job.arena, "%s/run-%zu", folder, i);
        job.checkpointing.checkpoint_dir = dt_arena_printf(&job.arena, "%s/checkpoints", job.output_dir);
        if (i > 0) {
            train(&job, 2, &(struct ranks_options){.files = true, .stop_after = stops[i - 1], .stop_rank = 1}, &out);
            assert_int_equal(out.exit_code[0], DT_EXIT_STOPPED);
            ranks_clear(&out);
        }
        train(&job, 2, &files, &out);
        assert_int_equal(out.exit_code[0], DT_EXIT_DONE);
        ranks_clear(&out);
        whole = i == 0 ? told(&job) : whole;
        assert_string_equal(told(&job), whole);
    }
    dt_arena_clear(&job.arena);
}

/* Saved on A ranks, loaded on B: the weights are the same, and training goes on with the same
 * samples. */
static void test_all_pairs(void **state)
{
    (void)state;
    static const char *const rows[] = {"ddp", "zero1", "zero2", "full_shard", "shard_grad_op"};
    int turn = 0;
    for (int a = 1; a <= 4; a++) {
        struct job job;
        struct ranks_outcome half, whole;
        set(&job, a > 1 ? rows[turn % 5] : "auto", 12 / a);
        train(&job, a, NULL, &whole);
        for (int b = 1; b <= 4; b++, turn++) {
            struct ranks_outcome same, rest;
            job.output_dir = dt_arena_printf(&job.arena, "%s/pair-%d-%d", folder, a, b);
            job.checkpointing.checkpoint_dir = dt_arena_printf(&job.arena, "%s/checkpoints", job.output_dir);
            job.training.batch_size_per_gpu = 12 / a;
            job.training.strategy = a > 1 ? rows[turn % 5] : "auto";
            train(&job, a, &(struct ranks_options){.files = true, .stop_after = 2}, &half);
            job.training.batch_size_per_gpu = 12 / b;
            job.training.strategy = b > 1 ? rows[(turn + 1 + turn / 5) % 5] : "auto";
            job.training.max_steps = 3; /* nothing left to do: what was loaded is what was saved */
            train(&job, b, &files, &same);
            assert_true(same.hash == half.hash && same.moments_hash == half.moments_hash);
            job.training.max_steps = 6;
            train(&job, b, &files, &rest);
            assert_int_equal(rest.step_count, 3);
            for (int s = 0; s < 3; s++) {
                assert_true(fabs(rest.loss[s] - whole.loss[3 + s]) <= 1e-5 * whole.loss[3 + s]);
            }
            ranks_clear(&half);
            ranks_clear(&same);
            ranks_clear(&rest);
        }
        ranks_clear(&whole);
        dt_arena_clear(&job.arena);
    }
}

/* Moments in BF16, saved on A ranks under one strategy, are the same bits on B ranks under
 * another; on as many ranks the run goes on as if nothing had been. */
static void test_bf16_moments_continue(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        int a, b;
        const char *device; /* it goes on there */
    } cases[] = {{"ddp", "full_shard", 2, 3, NULL},  {"full_shard", "zero1", 3, 2, NULL}, {"zero1", "auto", 3, 1, NULL},
                 {"auto", "full_shard", 1, 3, NULL}, {"full_shard", "zero1", 3, 3, NULL}, {"zero1", "ddp", 2, 2, NULL},
                 {"zero1", "auto", 2, 1, "separate"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job job;
        struct ranks_outcome whole, half, same, rest;
        set(&job, cases[i].from, 12 / cases[i].a);
        job.training.accumulate_sync = SYNC_BOUNDARY;
        job.precision.states = DT_BF16;
        train(&job, cases[i].a, NULL, &whole);
        job.output_dir = dt_arena_printf(&job.arena, "%s/moments-%zu", folder, i);
        job.checkpointing.checkpoint_dir = dt_arena_printf(&job.arena, "%s/checkpoints", job.output_dir);
        train(&job, cases[i].a, &(struct ranks_options){.files = true, .stop_after = 2}, &half);
        job.training.strategy = cases[i].to;
        job.training.batch_size_per_gpu = 12 / cases[i].b;
        job.training.max_steps = 3; /* nothing left to do */
        train(&job, cases[i].b, &(struct ranks_options){.files = true, .device = cases[i].device}, &same);
        assert_true(same.hash == half.hash && same.moments_hash == half.moments_hash);
        job.training.max_steps = 6;
        train(&job, cases[i].b, &(struct ranks_options){.files = true, .device = cases[i].device}, &rest);
        assert_int_equal(rest.step_count, 3);
        assert_true(cases[i].a != cases[i].b || (rest.hash == whole.hash && rest.moments_hash == whole.moments_hash));
        ranks_clear(&whole);
        ranks_clear(&half);
        ranks_clear(&same);
        ranks_clear(&rest);
        dt_arena_clear(&job.arena);
    }
}

/* There are none of F64 masters. */
static void test_bf16_moments_of_doubles(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome out;
    set(&job, "auto", 2);
    job.precision.states = DT_BF16;
    ranks_train(&job, 1, &(struct ranks_options){.device = "twin64"}, &out);
    assert_int_equal(out.rc[0], -1);
    assert_int_equal(out.err[0].status, DT_INVALID);
    assert_non_null(strstr(
        out.err[0].text,
        "training.optimizer_state_dtype: bf16 goes with fp32 masters, and this device computes in fp64; write fp32"));
    ranks_clear(&out);
    dt_arena_clear(&job.arena);
}

/* Over a run, the loss with BF16 moments stays near that with F32 ones. What a rounding adds to
 * an element's moment is 2^-8 of it at most, half of that as a standard deviation, without a
 * bias; the first moment remembers 10 steps and the second 20, so a step is off by sqrt(10) *
 * 2^-9 = 0.6 % of itself in an element as a rule, with as many signs as elements: what the loss
 * of a step has come down by since the beginning changes by less than that. Ten times that is
 * allowed: 6 % of it. */
static void test_bf16_moments_learn_as_much(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome with[2];
    for (int half = 0; half < 2; half++) {
        set(&job, "zero1", 4);
        job.training.max_steps = 60;
        job.optimizer.numbers.beta2 = 0.95;
        job.training.learning_rate = 3e-3;
        job.precision.states = half ? DT_BF16 : DT_F32;
        train(&job, 2, NULL, &with[half]);
        dt_arena_clear(&job.arena);
    }
    double least = with[0].loss[0];
    for (int s = 0; s < 60; s++) {
        double loss = with[0].loss[s], down = with[0].loss[0] - loss;
        least = fmin(least, loss);
        assert_true(fabs(with[1].loss[s] - loss) <= 0.06 * fabs(down) + 1e-6 * loss);
    }
    assert_true(least < with[0].loss[0] - 0.1); /* it learned at all */
    assert_true(with[0].hash != with[1].hash);
    assert_true(with[1].bytes[PLAN_OPTIMIZER] * 2 == with[0].bytes[PLAN_OPTIMIZER]);
    ranks_clear(&with[0]);
    ranks_clear(&with[1]);
}

/* Checkpoints hold the masters, whatever was computed with: what one precision saved, the other
 * goes on from, and nothing is lost on the way. */
static void test_either_precision_continues(void **state)
{
    (void)state;
    for (int from = 0; from < 2; from++) {
        struct job job;
        struct ranks_outcome whole, half, same, rest;
        enum dt_dtype was = from ? DT_BF16 : DT_F32, is = from ? DT_F32 : DT_BF16;
        set(&job, "zero1", 2);
        job.precision.compute = job.precision.reduce = was;
        train(&job, 3, NULL, &whole);
        job.output_dir = dt_arena_printf(&job.arena, "%s/precision-%d", folder, from);
        job.checkpointing.checkpoint_dir = dt_arena_printf(&job.arena, "%s/checkpoints", job.output_dir);
        train(&job, 3, &(struct ranks_options){.files = true, .stop_after = 2}, &half);
        job.precision.compute = job.precision.reduce = is;
        job.training.strategy = "full_shard";
        job.training.max_steps = 3;
        train(&job, 3, &files, &same);
        assert_true(same.hash == half.hash);
        job.training.max_steps = 6;
        train(&job, 3, &files, &rest);
        assert_int_equal(rest.step_count, 3);
        assert_true(rest.hash != whole.hash);
        for (int s = 0; s < 3; s++) {
            assert_true(fabs(rest.loss[s] - whole.loss[3 + s]) <= 1e-2 * whole.loss[3 + s]);
        }
        ranks_clear(&whole);
        ranks_clear(&half);
        ranks_clear(&same);
        ranks_clear(&rest);
        dt_arena_clear(&job.arena);
    }
}

/* Another learning rate is another training; another strategy or number of steps is not. */
static void test_another_job_is_refused(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome out;
    set(&job, "ddp", 2);
    job.text = "{\"training\": {\"learning_rate\": 0.01, \"max_steps\": 2, \"strategy\": \"ddp\"}}";
    job.training.max_steps = 2;
    train(&job, 2, &files, &out);
    ranks_clear(&out);
    job.text = "{\"training\": {\"learning_rate\": 0.5, \"max_steps\": 2, \"strategy\": \"ddp\"}}";
    ranks_train(&job, 2, &files, &out);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(out.rc[r], -1);
        assert_int_equal(trainer_exit_code(&out.err[r]), DT_EXIT_PERMANENT);
        assert_non_null(strstr(out.err[r].text, "learning_rate"));
    }
    ranks_clear(&out);
    job.text = "{\"training\": {\"learning_rate\": 0.01, \"max_steps\": 3, \"strategy\": \"zero3\"}}";
    job.training.max_steps = 3;
    job.training.strategy = "zero3";
    train(&job, 2, &files, &out);
    assert_int_equal(out.step_count, 1);
    ranks_clear(&out);
    job.fresh = true;
    job.text = "{\"training\": {\"learning_rate\": 0.5}}";
    train(&job, 2, &files, &out);
    assert_int_equal(out.step_count, 3);
    char *old = dt_format("%s.old-1", job.checkpointing.checkpoint_dir);
    assert_true(dt_file_exists(old));
    free(old);
    ranks_clear(&out);
    /* a later round of the same launch goes on, fresh or not */
    job.training.max_steps = 4;
    train(&job, 2, &(struct ranks_options){.files = true, .round = 2}, &out);
    assert_int_equal(out.step_count, 1);
    ranks_clear(&out);
    job.text = NULL;
    dt_arena_clear(&job.arena);
}

/* ---- other ranks, other batches ---- */

static void set_out(struct job *job, const char *name)
{
    job->output_dir = dt_arena_printf(&job->arena, "%s/%s", folder, name);
    job->checkpointing.checkpoint_dir = dt_arena_printf(&job->arena, "%s/checkpoints", job->output_dir);
}

/* Takes what versions did not keep that knew no horizon out of the newest manifest. */
static void make_old(const struct job *job, int64_t step)
{
    static const char *const members[] = {",\n\"horizon\":", ",\n\"data\":"};
    char *path = checkpoint_path(job->checkpointing.checkpoint_dir, step), *file = dt_format("%s/manifest.json", path);
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    assert_int_equal(dt_file_read(file, 1 << 20, &text, &err), 0);
    for (size_t i = 0; i < 2; i++) {
        char *from = strstr(text.data, members[i]), *to = from + strcspn(from, i == 0 ? "}" : "]") + 1;
        text.size -= (size_t)(to - from);
        memmove(from, to, text.size - (size_t)(from - text.data) + 1);
    }
    size_t body = (size_t)(strstr(text.data, ",\n\"hash\":\"") - text.data);
    /* those of data files are gone: it is the last one */
    if (text.size - body > strlen(",\n\"hash\":\"0123456789abcdef\"}\n")) {
        fail();
    }
    text.size = body;
    uint64_t hash = manifest_sum(text.data, text.size);
    dt_text_printf(&text, ",\n\"hash\":\"%016llx\"}\n", (unsigned long long)hash);
    assert_int_equal(dt_file_write(file, text.data, text.size, &err), 0);
    dt_text_clear(&text);
    free(file);
    free(path);
}

struct leg {
    int size, batch, accumulation, stop_after;
};

/* Runs a part of a job, whose rates must be those of the samples done, in batches of the first
 * part. */
static int64_t run_part(struct job *job, const struct leg *part, const struct schedule *schedule, int first_batch,
                        int64_t done)
{
    struct ranks_outcome out;
    job->training.batch_size_per_gpu = part->batch;
    job->training.gradient_accumulation_steps = part->accumulation;
    train(job, part->size, &(struct ranks_options){.files = true, .stop_after = part->stop_after}, &out);
    assert_int_equal(out.exit_code[0], part->stop_after > 0 ? DT_EXIT_STOPPED : DT_EXIT_DONE);
    for (int i = 0; i < out.step_count; i++, done += part->size * part->batch * part->accumulation) {
        assert_true(out.lr[i] == schedule_rate_at(schedule, (double)done / first_batch));
    }
    ranks_clear(&out);
    return done;
}

/* One curve over the samples, whatever number of ranks, batch and accumulation they are done
 * with; each part goes on where the one before stopped, and the last one ends where the first
 * would have. Also from checkpoints of versions that did not keep how the run began. */
static void test_the_rate_follows_the_samples(void **state)
{
    (void)state;
    static const struct leg cases[][4] = {
        {{4, 2, 1, 9}, {2, 2, 1, 0}},  /* fewer ranks */
        {{1, 4, 1, 11}, {4, 2, 2, 0}}, /* more, and accumulation */
        {{4, 2, 1, 9},
         {2, 4, 1, 14},
         {4, 1, 2, 0}}, /* the same batch in three ways: the steps are those of an undisturbed
                         * run */
        {{4, 2, 1, 5}, {2, 2, 1, 13}, {4, 4, 1, 16}, {4, 2, 1, 0}} /* ranks go and come */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int by_epochs = 0; by_epochs < 2; by_epochs++) {
            for (int old = 0; old < 2; old++) {
                struct job job;
                set(&job, "auto", 2);
                int first_batch = cases[i][0].size * cases[i][0].batch * cases[i][0].accumulation,
                    total = 2 * 96 / first_batch;
                job.training.max_steps = by_epochs ? -1 : total;
                job.training.num_epochs = by_epochs ? 2 : 0;
                job.training.lr_scheduler_type = "cosine";
                job.training.warmup_steps = 4;
                struct schedule s = {.type = "cosine",
                                     .learning_rate = job.training.learning_rate,
                                     .warmup_steps = 4,
                                     .total_steps = total};
                set_out(&job, dt_arena_printf(&job.arena, "curve-%zu-%d-%d", i, by_epochs, old));
                int64_t done = 0;
                for (const struct leg *part = cases[i]; part < cases[i] + 4 && part->size > 0; part++) {
                    job.text = dt_arena_printf(
                        &job.arena,
                        "{\"training\": {\"max_steps\": %d, \"num_epochs\": %d, \"batch_size_per_gpu\": %d, "
                        "\"gradient_accumulation_steps\": %d}}",
                        by_epochs ? -1 : total, by_epochs ? 2 : 0, part->batch, part->accumulation);
                    done = run_part(&job, part, &s, first_batch, done);
                    if (old && part == cases[i]) { /* the ranks never changed before it */
                        make_old(&job, part->stop_after + 1);
                    }
                }
                assert_int_equal(done, 2 * 96);
                job.text = NULL;
                dt_arena_clear(&job.arena);
            }
        }
    }
}

/* With one split of the batch the rate is that of the step, bit by bit, wherever an epoch ends
 * and however often the run stops. */
static void test_an_even_batch_counts_steps(void **state)
{
    (void)state;
    static const enum partial_accumulation partial[] = {PARTIAL_STEP, PARTIAL_CARRY, PARTIAL_DROP};
    static const struct leg parts[] = {{2, 5, 2, 3}, {3, 7, 1, 6}, {1, 7, 4, 4}};
    for (size_t i = 0; i < 9; i++) {
        struct job job;
        struct ranks_outcome whole, out;
        const struct leg *part = &parts[i % 3];
        set(&job, "auto", part->batch);
        job.training.gradient_accumulation_steps = part->accumulation;
        job.training.partial_accumulation = partial[i / 3];
        job.training.max_steps = -1;
        job.training.num_epochs = 2.4;
        train(&job, part->size, NULL, &whole);
        struct schedule s = {.type = "linear",
                             .learning_rate = job.training.learning_rate,
                             .warmup_steps = 1,
                             .total_steps = whole.step_count};
        set_out(&job, dt_arena_printf(&job.arena, "even-%zu", i));
        int seen = 0;
        for (int stop = part->stop_after; seen < whole.step_count; stop += 3) {
            train(&job, part->size,
                  &(struct ranks_options){.files = true, .stop_after = stop + 1 < whole.step_count ? stop : 0}, &out);
            for (int k = 0; k < out.step_count; k++, seen++) {
                assert_true(out.lr[k] == schedule_rate(&s, seen) && out.lr[k] == whole.lr[seen]);
                assert_true(out.loss[k] == whole.loss[seen]);
            }
            ranks_clear(&out);
        }
        assert_int_equal(seen, whole.step_count);
        ranks_clear(&whole);
        dt_arena_clear(&job.arena);
    }
}

/* Epochs that other splits of the batch leave other samples out of: the rate never leaves the
 * curve by more than a step, and ends where it ends. */
static void test_other_leftovers_of_epochs(void **state)
{
    (void)state;
    static const struct leg parts[] = {{4, 5, 1, 4}, {1, 1, 1, 30}, {3, 7, 2, 0}, {2, 13, 1, 0}};
    for (int k = 1; k < 4; k++) {
        struct job job;
        struct ranks_outcome out;
        set(&job, "auto", parts[0].batch);
        job.training.max_steps = -1;
        job.training.num_epochs = 3;
        job.training.warmup_steps = 0;
        set_out(&job, dt_arena_printf(&job.arena, "leftovers-%d", k));
        /* 4 steps an epoch, 12 in all */
        train(&job, 4, &(struct ranks_options){.files = true, .stop_after = 4}, &out);
        assert_int_equal(out.last_step, 5);
        double before = out.lr[4];
        ranks_clear(&out);
        job.training.batch_size_per_gpu = parts[k].batch;
        job.training.gradient_accumulation_steps = parts[k].accumulation;
        int per_epoch = 96 / (parts[k].size * parts[k].batch);
        train(&job, parts[k].size, &(struct ranks_options){.files = true, .stop_after = parts[k].stop_after}, &out);
        for (int i = 0; i < out.step_count; i++) {
            assert_true(out.lr[i] <= before);
            before = out.lr[i];
        }
        double step = job.training.learning_rate / 12;
        if (parts[k].stop_after == 0) { /* one of its own steps before the end, of which an epoch
                                         * has as many more or fewer */
            assert_true(before > 0 &&
                        before <= step + job.training.learning_rate * parts[k].accumulation / (3 * per_epoch));
            assert_int_equal(out.exit_code[0], DT_EXIT_DONE);
        } else {
            int place = (20 + 25) * 80 / 96; /* behind the 25th step: of 96 samples of the epoch,
                                              * where the first batch took 80 */
            assert_true(fabs(before - job.training.learning_rate * (1 - (80 + place) / 240.0)) <= 1e-12);
        }
        ranks_clear(&out);
        dt_arena_clear(&job.arena);
    }
}

/* All that a finished run must leave as it is. */
static const char *what_is_there(struct job *job)
{
    static const char *const names[] = {"job.json", "env.json", "metrics.jsonl", "model/config.json",
                                        "model/model.safetensors"};
    struct dt_text all, one;
    struct dt_error err;
    dt_text_init(&all);
    dt_text_init(&one);
    int64_t *steps = NULL;
    int count = 0;
    assert_int_equal(checkpoint_steps(job->checkpointing.checkpoint_dir, &steps, &count, &err), 0);
    for (int i = 0; i < count + 5; i++) {
        char *folder_of = i < count ? checkpoint_path(job->checkpointing.checkpoint_dir, steps[i]) : NULL;
        char *path = i < count ? dt_format("%s/manifest.json", folder_of)
                               : dt_format("%s/%s", job->output_dir, names[i - count]);
        dt_text_reset(&one);
        assert_int_equal(dt_file_read(path, 1 << 24, &one, &err), 0);
        dt_text_printf(&all, "%s %016llx\n", path, (unsigned long long)manifest_sum(one.data, one.size));
        free(path);
        free(folder_of);
    }
    free(steps);
    const char *kept = dt_arena_strdup(&job->arena, dt_text_str(&all));
    dt_text_clear(&one);
    dt_text_clear(&all);
    return kept;
}

/* On any ranks, with any batch, and when fewer steps are asked for than are done. More of them
 * go on. */
static void test_a_finished_run_stays_finished(void **state)
{
    (void)state;
    static const struct leg parts[] = {{4, 5, 1, 0}, {1, 5, 1, 0}, {2, 5, 1, 0}, {3, 5, 1, 0},
                                       {1, 1, 1, 0}, {1, 7, 3, 0}, {4, 24, 1, 0}};
    for (int mode = 0; mode < 4; mode++) {
        struct job job;
        struct ranks_outcome out;
        const struct leg *first = &parts[mode % 2 == 0 ? 0 : 4];
        bool by_epochs = mode / 2 == 0;
        set(&job, "auto", first->batch);
        job.text = "{\"a\": 1}";
        job.checkpointing.keep_last_n = 1;
        job.training.max_steps = by_epochs ? -1 : 7;
        job.training.num_epochs = by_epochs ? 0.4 : 0;
        set_out(&job, dt_arena_printf(&job.arena, "finished-%d", mode));
        train(&job, first->size, &files, &out);
        ranks_clear(&out);
        const char *before = what_is_there(&job);
        for (size_t i = 0; i < 2 * sizeof parts / sizeof parts[0]; i++) {
            const struct leg *part = &parts[i / 2];
            job.text = "{\"b\": 2}";
            job.training.batch_size_per_gpu = part->batch;
            job.training.gradient_accumulation_steps = part->accumulation;
            job.training.max_steps = by_epochs ? -1 : i % 2 ? 3 : 7;
            job.training.num_epochs = by_epochs ? (i % 2 ? 0.2 : 0.4) : 0;
            train(&job, part->size, &files, &out);
            assert_true(out.finished_before && out.step_count == 0);
            assert_int_equal(out.exit_code[0], DT_EXIT_DONE);
            ranks_clear(&out);
            assert_string_equal(what_is_there(&job), before);
        }
        job.training = (struct job_training){0};
        const char *dir = job.checkpointing.checkpoint_dir, *out_dir = job.output_dir;
        struct dt_arena arena = job.arena;
        set(&job, "auto", 2);
        job.output_dir = out_dir;
        job.checkpointing.checkpoint_dir = dir;
        job.training.max_steps = by_epochs ? -1 : 9;
        job.training.num_epochs = by_epochs ? 1 : 0;
        train(&job, 2, &files, &out);
        assert_true(out.step_count > 0 && out.exit_code[0] == DT_EXIT_DONE);
        ranks_clear(&out);
        dt_arena_clear(&arena);
        dt_arena_clear(&job.arena);
    }
}

/* What checkpointing.accept names is the run's from then on, with the state of the optimizer; a
 * later round of the launch does as the first. */
static void test_accepted_numbers(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome half, out;
    const char *old = "{\"training\": {\"learning_rate\": 0.01, \"weight_decay\": 0.1}}",
               *new = "{\"training\": {\"learning_rate\": 0.5, \"weight_decay\": 0.1}}";
    set(&job, "ddp", 2);
    job.training.lr_scheduler_type = "constant";
    job.text = dt_arena_strdup(&job.arena, old);
    train(&job, 2, &(struct ranks_options){.files = true, .stop_after = 2}, &half);
    job.text = dt_arena_strdup(&job.arena, new);
    job.training.learning_rate = 0.5;
    job.checkpointing.accept = "training.weight_decay";
    ranks_train(&job, 2, &files, &out);
    assert_int_equal(out.rc[0] + out.rc[1], -2);
    assert_non_null(strstr(out.err[0].text,
                           "step-00000003: training.learning_rate: was 0.01, is now 0.5; go back to the old value, "
                           "keep the optimizer's state "
                           "and go on with --accept training.learning_rate (checkpointing.accept), or begin anew"));
    ranks_clear(&out);
    /* nothing is wrong with one that did not change */
    job.checkpointing.accept = "data.train,training.learning_rate";
    job.training.max_steps = 3;
    train(&job, 2, &files, &out);
    assert_true(out.moments_hash == half.moments_hash && out.step_count == 0);
    ranks_clear(&out);
    job.training.max_steps = 6;
    for (int round = 1; round <= 2; round++) { /* the second begins where the first stopped */
        train(&job, 2, &(struct ranks_options){.files = true, .round = round, .stop_after = round == 1 ? 4 : 0}, &out);
        assert_int_equal(out.step_count, round == 1 ? 2 : 1);
        assert_true(out.lr[0] == 0.5);
        ranks_clear(&out);
    }
    job.checkpointing.accept = NULL; /* not asked for again */
    job.training.max_steps = 7;
    train(&job, 2, &(struct ranks_options){.files = true, .round = 3}, &out);
    assert_int_equal(out.step_count, 1);
    ranks_clear(&out);
    job.text = dt_arena_strdup(&job.arena, old); /* going back is a change */
    ranks_train(&job, 2, &(struct ranks_options){.files = true, .round = 4}, &out);
    assert_non_null(strstr(out.err[1].text, "training.learning_rate: was 0.5, is now 0.01; go back"));
    ranks_clear(&out);
    ranks_clear(&half);
    job.text = NULL;
    dt_arena_clear(&job.arena);
}

/* Other data begin with their first sample; counters go on, and num_epochs counts them. Whatever
 * comes after a save goes on in them. */
static void test_accepted_data(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome out, alone;
    set(&job, "ddp", 2);
    job.data.shuffle = false;
    job.training.max_steps = -1;
    job.training.num_epochs = 1;
    job.training.warmup_steps = 0;
    /* 6 of 24 steps */
    train(&job, 2, &(struct ranks_options){.files = true, .stop_after = 5}, &out);
    ranks_clear(&out);
    /* 13 samples: 3 steps an epoch */
    job.data.train = source_in(&job, "val.bin");
    ranks_train(&job, 2, &files, &out);
    assert_non_null(strstr(out.err[0].text,
                           "step-00000006: data.train: val.bin stands where train.bin was; bring the old data back, "
                           "keep the optimizer's state and go "
                           "on from the first sample with --accept data.train (checkpointing.accept), or begin anew"));
    ranks_clear(&out);
    job.checkpointing.accept = "data.train";
    job.training.num_epochs = 4;
    struct schedule s = {.type = "linear", .learning_rate = job.training.learning_rate, .total_steps = 6 + 12};
    int step = 6;
    for (int part = 0; part < 2; part++) { /* stopped in the second epoch of the new data, with
                                            * and without */
        train(&job, 2, &(struct ranks_options){.files = true, .stop_after = part == 0 ? 9 : 0}, &out);
        for (int i = 0; i < out.step_count; i++, step++) {
            assert_true(out.lr[i] == schedule_rate(&s, step));
        }
        ranks_clear(&out);
        job.checkpointing.accept = NULL;
    }
    assert_int_equal(step, 18);
    /* rows of a step are those of the new data's beginning: with a rate of 0 the loss says so */
    set_out(&job, "rows");
    job.training.learning_rate = 0;
    job.training.num_epochs = 1;
    train(&job, 2, &(struct ranks_options){.files = true}, &alone);
    job.data.train = source_in(&job, "train.bin");
    set_out(&job, "rows-2");
    train(&job, 2, &(struct ranks_options){.files = true, .stop_after = 1}, &out);
    ranks_clear(&out);
    job.data.train = source_in(&job, "val.bin");
    job.checkpointing.accept = "data.train";
    train(&job, 2, &files, &out);
    assert_int_equal(out.step_count, 3);
    assert_memory_equal(out.loss, alone.loss, 3 * sizeof(double));
    ranks_clear(&out);
    ranks_clear(&alone);
    dt_arena_clear(&job.arena);
}

/* The same bytes under another name are the same data. */
static void test_renamed_data(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome out;
    set(&job, "ddp", 2);
    train(&job, 2, &(struct ranks_options){.files = true, .stop_after = 2}, &out);
    ranks_clear(&out);
    char *other = dt_format("%s/other.bin", folder);
    assert_int_equal(rename(job.data.train.words, other), 0);
    job.data.train = dt_source_alone(&job.arena, other);
    train(&job, 2, &files, &out);
    assert_int_equal(out.step_count, 3);
    ranks_clear(&out);
    free(other);
    dt_arena_clear(&job.arena);
}

/* The folder of a run: what product people look for is there, and the model can be read back. */
static void test_what_a_run_leaves(void **state)
{
    (void)state;
    static const char *const names[] = {
        "job.json",           "env.json",          "metrics.jsonl",          "events.jsonl",
        "checkpoints/latest", "model/config.json", "model/model.safetensors"};
    struct job job;
    struct ranks_outcome out, again;
    set(&job, "zero2", 2);
    job.text = "{\"a\": 1}";
    job.data.val = dt_set_alone(&job.arena, dt_arena_printf(&job.arena, "%s/val.bin", folder));
    job.training.eval_every_n_steps = 2;
    job.checkpointing.save_every_n_steps = 2;
    train(&job, 2, &files, &out);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *path = dt_format("%s/%s", job.output_dir, names[i]);
        if (!dt_file_exists(path)) {
            print_error("%s\n", path);
        }
        assert_true(dt_file_exists(path));
        free(path);
    }
    char *path = dt_format("%s/metrics.jsonl", job.output_dir);
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    assert_int_equal(dt_file_read(path, 1 << 20, &text, &err), 0);
    static const char *const fields[] = {"step",         "epoch",  "tokens",       "loss",    "grad_norm",
                                         "lr",           "step_s", "tokens_per_s", "mfu",     "loss_scale",
                                         "memory_bytes", "round",  "time",         "val_loss"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        char *key = dt_format("\"%s\": ", fields[i]);
        assert_non_null(strstr(text.data, key));
        free(key);
    }
    dt_text_clear(&text);
    free(path);
    /* the exported model is a start for another run */
    job.model.load = dt_arena_printf(&job.arena, "%s/model", job.output_dir);
    job.training.learning_rate = 0;
    job.text = NULL;
    train(&job, 2, NULL, &again);
    assert_true(again.hash == out.hash);
    ranks_clear(&out);
    ranks_clear(&again);
    dt_arena_clear(&job.arena);
}

static bool holds(const struct job *job, const char *name)
{
    char *path = dt_format("%s/%s", job->checkpointing.checkpoint_dir, name);
    bool there = dt_file_exists(path);
    free(path);
    return there;
}

/* A finished run of six steps with all its checkpoints. */
static uint64_t finish_with_all(struct job *job)
{
    struct ranks_outcome out;
    set(job, "zero2", 2);
    job->checkpointing.save_every_n_steps = 1;
    job->checkpointing.keep_last_n = 0;
    train(job, 2, &files, &out);
    uint64_t hash = out.hash;
    ranks_clear(&out);
    return hash;
}

/* What came after the checkpoint that was named is of another course: it is set aside, takes no
 * place, and the same command continues. */
static void test_a_named_beginning_is_one_course(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome out;
    uint64_t hash = finish_with_all(&job);
    job.checkpointing.keep_last_n = 1;
    job.checkpointing.resume = "step-00000002";
    train(&job, 2, &(struct ranks_options){.files = true, .stop_after = 3}, &out);
    assert_int_equal(out.exit_code[0], DT_EXIT_STOPPED);
    assert_int_equal(out.last_step, 4);
    ranks_clear(&out);
    assert_true(holds(&job, "step-00000004") && holds(&job, "step-00000002"));
    assert_true(holds(&job, "step-00000006.old-1") && holds(&job, "step-00000003.old-1"));
    assert_false(holds(&job, "step-00000006") || holds(&job, "step-00000003") || holds(&job, "step-00000001"));
    train(&job, 1, &files, &out); /* the same command, here on fewer ranks: two steps of two
                                   * ranks are four */
    assert_int_equal(out.step_count, 4);
    ranks_clear(&out);
    job.checkpointing.resume = dt_arena_printf(&job.arena, "%s/step-00000003.old-1", job.checkpointing.checkpoint_dir);
    train(&job, 2, &files, &out); /* what was set aside can be named */
    assert_int_equal(out.step_count, 3);
    assert_true(out.hash == hash);
    ranks_clear(&out);
    dt_arena_clear(&job.arena);
}

/* The round that should have begun by name, or anew, died before it could: the next one does it.
 * After that, rounds go on from the launch's own saves. */
static void test_a_later_round_makes_up_for_the_beginning(void **state)
{
    (void)state;
    for (int fresh = 0; fresh < 2; fresh++) {
        struct job job;
        struct ranks_outcome out;
        struct dt_error err;
        uint64_t hash = finish_with_all(&job);
        assert_int_equal(course_write(job.checkpointing.checkpoint_dir, "a launch before", "", "", &err), 0);
        job.fresh = fresh;
        job.checkpointing.resume = fresh ? "auto" : "step-2";
        train(&job, 2, &(struct ranks_options){.files = true, .round = 2, .stop_after = 4}, &out);
        assert_int_equal(out.last_step, 5);
        assert_int_equal(out.step_count, fresh ? 5 : 3);
        ranks_clear(&out);
        train(&job, 2, &(struct ranks_options){.files = true, .round = 3}, &out);
        assert_int_equal(out.step_count, 1);
        assert_true(out.hash == hash);
        ranks_clear(&out);
        char *dir = dt_strdup(job.output_dir);
        assert_int_equal(dt_file_remove_tree(dir, NULL), 0);
        free(dir);
        dt_arena_clear(&job.arena);
    }
}

/* Days of work that cannot be read are not begun anew without a word. */
static void test_damaged_ones_alone_are_refused(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome out;
    (void)finish_with_all(&job);
    for (int step = 1; step <= 6; step++) {
        char *folder_of = checkpoint_path(job.checkpointing.checkpoint_dir, step);
        char *file = dt_format("%s/slices-00001-of-00002.safetensors", folder_of);
        assert_int_equal(truncate(file, 100), 0);
        free(file);
        free(folder_of);
    }
    ranks_train(&job, 2, &files, &out);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(out.rc[r], -1);
        assert_int_equal(trainer_exit_code(&out.err[r]), DT_EXIT_PERMANENT);
        assert_non_null(strstr(out.err[r].text, "none of its checkpoints is whole"));
    }
    assert_true(holds(&job, "step-00000006"));
    ranks_clear(&out);
    dt_arena_clear(&job.arena);
}

/* A checkpoint under the name of a later step is passed over like any damaged one, and costs
 * none of the good ones. */
static void test_a_copy_under_another_name(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome out;
    uint64_t hash = finish_with_all(&job);
    char *from = checkpoint_path(job.checkpointing.checkpoint_dir, 6),
         *to = checkpoint_path(job.checkpointing.checkpoint_dir, 9);
    assert_int_equal(rename(from, to), 0);
    train(&job, 2, &files, &out);
    assert_int_equal(out.step_count, 1);
    assert_true(out.hash == hash);
    assert_true(holds(&job, "step-00000005") && holds(&job, "step-00000004") && holds(&job, "step-00000009.old-1"));
    ranks_clear(&out);
    free(to);
    free(from);
    dt_arena_clear(&job.arena);
}

/* A path may begin with the mark of a failure. */
static void test_a_folder_named_like_a_failure(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome out;
    char before[4096];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    set(&job, "ddp", 2);
    job.output_dir = "!x";
    job.checkpointing.checkpoint_dir = "!x/checkpoints";
    train(&job, 2, &(struct ranks_options){.files = true, .stop_after = 2}, &out);
    ranks_clear(&out);
    train(&job, 2, &files, &out);
    assert_int_equal(out.step_count, 3);
    ranks_clear(&out);
    assert_int_equal(chdir(before), 0);
    dt_arena_clear(&job.arena);
}

/* A rank that did not hear what the others begin with must not begin anew. */
static void test_a_lost_proposal_is_a_failure(void **state)
{
    (void)state;
    struct job job;
    struct dt_page page = {0};
    struct dt_store *store = NULL;
    struct dt_store_local *local = dt_store_local_open();
    struct dt_error err;
    bool found = false;
    set(&job, "ddp", 2);
    atomic_store(&page.order, DT_ORDER_ABORT);
    assert_int_equal(dt_store_open_local(&store, local, &page, &err), 0);
    struct world w = {.rank = 1, .size = 2, .store = store, .page = &page};
    struct trainer t = {.job = &job, .world = &w, .rank = 1, .size = 2, .saver.hold = -1};
    assert_int_equal(trainer_resume(&t, &found, &err), -1);
    dt_store_close(store);
    dt_store_local_close(local);
    dt_arena_clear(&job.arena);
}

/* What comes through the store names a checkpoint and never a path of its own choice. */
static void test_a_proposal_is_no_path(void **state)
{
    (void)state;
    static const char *const said[] = {"=/etc",
                                       "=@/etc",
                                       "=@",
                                       "=-1",
                                       "=1x",
                                       "=99999999999999999999",
                                       "=@runs/b",
                                       "=@runs/a/../b",
                                       "=step",
                                       "!0 no",
                                       "!-7 no",
                                       "!4294967296 no",
                                       "!1",
                                       "!1 9 0 0 0 0 no",
                                       "!1 1 -1 0 0 0",
                                       "!1 1 0 9 0 0",
                                       "!1 0 0 0 0 0"};
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        struct job job;
        struct dt_page page = {0};
        struct dt_store *store = NULL;
        struct dt_store_local *local = dt_store_local_open();
        struct dt_error err = {0};
        bool found = false;
        set(&job, "ddp", 2);
        job.checkpointing.resume = "runs/a";
        assert_int_equal(dt_store_open_local(&store, local, &page, &err), 0);
        assert_int_equal(dt_store_set(store, "train/resume/0", said[i], strlen(said[i]), &err), 0);
        struct world w = {.rank = 1, .size = 2, .store = store, .page = &page};
        struct trainer t = {.job = &job, .world = &w, .rank = 1, .size = 2, .saver.hold = -1};
        assert_int_equal(trainer_resume(&t, &found, &err), -1);
        assert_int_equal(err.status, said[i][0] == '!' ? DT_INTERNAL : DT_INVALID);
        assert_false(found);
        dt_store_close(store);
        dt_store_local_close(local);
        dt_arena_clear(&job.arena);
    }
}

/* What rank 0 tells all is its own failure, or that of the rank it blames. A rank that hears it on
 * another host says so, and the mark stays at the end. */
static void test_who_only_heard_it_says_so(void **state)
{
    (void)state;
    static const struct {
        int rank, first, here; /* of the host: its first rank, and how many */
        const char *sent, *heard;
        enum dt_fault fault;
        int blamed;
    } cases[] = {
        {1, 1, 1, "!1 0 0 0 0 0 DIR: none", "rank 0: DIR: none; do this (noticed by rank 0)", DT_FAULT_FAILED, 0},
        {1, 0, 2, "!1 0 0 0 0 0 DIR: none", "rank 0: DIR: none; do this", DT_FAULT_FAILED, 0},
        {2, 2, 1, "!3 1 1 0 0 0 no disk", "rank 1: no disk; do this (noticed by rank 1)", DT_FAULT_FAILED, 1},
        {2, 1, 2, "!3 1 1 0 0 0 no disk", "rank 1: no disk; do this", DT_FAULT_FAILED, 1},
        {3, 2, 2, "!3 1 1 1 0 0 no disk", "rank 1: no disk; do this (noticed by rank 0)", DT_FAULT_FAILED, 1},
        {1, 1, 1, "!5 2 2 0 0 0 rank 2 is gone", "rank 2 is gone; do this (noticed by rank 0)", DT_FAULT_LOST, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dt_store *store = NULL;
        struct dt_store_local *local = dt_store_local_open();
        struct dt_page page = {0};
        struct dt_error err;
        struct dt_text text;
        char words[DT_WORDS_BYTES];
        dt_text_init(&text);
        assert_int_equal(dt_store_open_local(&store, local, &page, &err), 0);
        assert_int_equal(dt_store_set(store, "key", cases[i].sent, strlen(cases[i].sent), &err), 0);
        struct world w = {.rank = cases[i].rank,
                          .local_rank = cases[i].rank - cases[i].first,
                          .local_size = cases[i].here,
                          .store = store,
                          .page = &page};
        struct trainer t = {.world = &w, .rank = cases[i].rank, .size = 4};
        assert_int_equal(trainer_share(&t, "key", &text, NULL, 1, &err), -1);
        assert_true(err.blame.fault == cases[i].fault && err.blame.rank == cases[i].blamed);
        assert_int_equal(trainer_only_heard(&err), err.blame.fault == DT_FAULT_FAILED && err.blame.told != DT_TOLD_NOT);
        trainer_add_words(&err, "; do this");
        assert_string_equal(dt_error_words(&err, words), cases[i].heard);
        memset(err.text, 'x', sizeof err.text - 1);
        err.text[sizeof err.text - 1] = '\0';
        trainer_add_words(&err, "; do this");
        assert_string_equal(err.text + strlen(err.text) - strlen("x; do this"), "x; do this");
        dt_text_clear(&text);
        dt_store_close(store);
        dt_store_local_close(local);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_power_sgd_goes_on, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_local_sgd_goes_on, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_stopped_equals_uninterrupted, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_stop_loses_no_evaluation, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_all_pairs, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_bf16_moments_continue, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_bf16_moments_of_doubles, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_bf16_moments_learn_as_much, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_either_precision_continues, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_another_job_is_refused, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_the_rate_follows_the_samples, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_an_even_batch_counts_steps, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_other_leftovers_of_epochs, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_finished_run_stays_finished, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_accepted_numbers, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_accepted_data, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_renamed_data, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_what_a_run_leaves, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_lost_proposal_is_a_failure, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_folder_named_like_a_failure, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_copy_under_another_name, ranks_setup, folder_teardown),
        cmocka_unit_test(test_who_only_heard_it_says_so),
        cmocka_unit_test_setup_teardown(test_a_proposal_is_no_path, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_damaged_ones_alone_are_refused, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_later_round_makes_up_for_the_beginning, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_named_beginning_is_one_course, ranks_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
