/* Runs that stop and go on: the same bits as without the stop, on any number of ranks and with any strategy the same state. */
#include "support/ranks.h"

#include "base/file.h"
#include "worker/course.h"

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
    } cases[] = {{"single_device", 1, NULL, DT_F32, DT_F32},
                 {"ddp", 2, NULL, DT_F32, DT_F32},
                 {"zero1", 3, NULL, DT_F32, DT_F32},
                 {"full_shard", 4, NULL, DT_F32, DT_F32},
                 {"hybrid_shard", 4, NULL, DT_F32, DT_F32},
                 {"single_device", 1, "apart", DT_F32, DT_F32},
                 {"ddp", 2, NULL, DT_BF16, DT_F32},
                 {"zero1", 3, NULL, DT_BF16, DT_F32},
                 {"full_shard", 4, NULL, DT_BF16, DT_F32},
                 {"single_device", 1, "apart", DT_BF16, DT_F32},
                 {"zero1", 3, NULL, DT_F32, DT_BF16},
                 {"full_shard", 2, NULL, DT_BF16, DT_BF16},
                 {"single_device", 1, "apart", DT_F32, DT_BF16},
                 {"single_device", 1, "apart", DT_BF16, DT_BF16}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job job;
        struct ranks_outcome whole, first, second;
        set(&job, cases[i].row, 2);
        job.precision.compute = job.precision.reduce = cases[i].type;
        job.precision.moments = cases[i].moments;
        if (strncmp(cases[i].row, "hybrid", 6) == 0) {
            job.fsdp.device_mesh[0] = job.fsdp.device_mesh[1] = 2;
        }
        train(&job, cases[i].size, NULL, &whole);
        job.output_dir = dt_arena_printf(&job.arena, "%s/run-%zu", folder, i);
        job.checkpointing.checkpoint_dir = dt_arena_printf(&job.arena, "%s/checkpoints", job.output_dir);
        train(&job, cases[i].size, &(struct ranks_options){.files = true, .device = cases[i].device, .stop_after = 2, .stop_rank = cases[i].size - 1},
              &first);
        assert_int_equal(first.exit_code[0], DT_EXIT_STOPPED);
        /* The wish rides on the sums of the next step that begins; a device with memory of its own has two in by then, and one more when it is heard. */
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

/* Stopped in an evaluation, at a step before one, or in the last one of all, and continued: the lines are those of an undisturbed run. */
static void test_a_stop_loses_no_evaluation(void **state)
{
    (void)state;
    static const int stops[] = {2, 3, 6}; /* in an evaluation; in the step before one; in the last one */
    const char *whole = NULL;
    struct job job;
    set(&job, "zero1", 1);
    job.data.val = dt_arena_printf(&job.arena, "%s/val.bin", folder);
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

/* Saved on A ranks, loaded on B: the weights are the same, and training goes on with the same samples. */
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

/* Moments in BF16, saved on A ranks under one strategy, are the same bits on B ranks under another; on as many ranks the run goes on as if nothing had been. */
static void test_bf16_moments_continue(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        int a, b;
        const char *device; /* it goes on there */
    } cases[] = {{"ddp", "full_shard", 2, 3, NULL},  {"full_shard", "zero1", 3, 2, NULL}, {"zero1", "auto", 3, 1, NULL},
                 {"auto", "full_shard", 1, 3, NULL}, {"full_shard", "zero1", 3, 3, NULL}, {"zero1", "ddp", 2, 2, NULL},
                 {"zero1", "auto", 2, 1, "apart"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job job;
        struct ranks_outcome whole, half, same, rest;
        set(&job, cases[i].from, 12 / cases[i].a);
        job.training.accumulate_sync = SYNC_BOUNDARY;
        job.precision.moments = DT_BF16;
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
    job.precision.moments = DT_BF16;
    ranks_train(&job, 1, &(struct ranks_options){.device = "twin64"}, &out);
    assert_int_equal(out.rc[0], -1);
    assert_int_equal(out.err[0].status, DT_INVALID);
    assert_non_null(
        strstr(out.err[0].text, "training.optimizer_state_dtype: bf16 goes with fp32 masters, and this device computes in fp64; write fp32"));
    ranks_clear(&out);
    dt_arena_clear(&job.arena);
}

/* Over a run, the loss with BF16 moments stays near that with F32 ones. What a rounding adds to an element's moment is 2^-8 of it at most, half of that as a
 * standard deviation, without a bias; the first moment remembers 10 steps and the second 20, so a step is off by sqrt(10) * 2^-9 = 0.6 % of itself in an element
 * as a rule, with as many signs as elements: what the loss of a step has come down by since the beginning changes by less than that. Ten times that
 * is allowed: 6 % of it. */
static void test_bf16_moments_learn_as_much(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome with[2];
    for (int half = 0; half < 2; half++) {
        set(&job, "zero1", 4);
        job.training.max_steps = 60;
        job.training.adam_beta2 = 0.95;
        job.training.learning_rate = 3e-3;
        job.precision.moments = half ? DT_BF16 : DT_F32;
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

/* Checkpoints hold the masters, whatever was computed with: what one precision saved, the other goes on from, and nothing is lost on the way. */
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

/* The folder of a run: what product people look for is there, and the model can be read back. */
static void test_what_a_run_leaves(void **state)
{
    (void)state;
    static const char *const names[] = {"job.json",           "env.json",          "metrics.jsonl",          "events.jsonl",
                                        "checkpoints/latest", "model/config.json", "model/model.safetensors"};
    struct job job;
    struct ranks_outcome out, again;
    set(&job, "zero2", 2);
    job.text = "{\"a\": 1}";
    job.data.val = dt_arena_printf(&job.arena, "%s/val.bin", folder);
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
    static const char *const fields[] = {"step",         "epoch", "tokens",     "loss",         "grad_norm", "lr",   "step_s",
                                         "tokens_per_s", "mfu",   "loss_scale", "memory_bytes", "round",     "time", "val_loss"};
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

/* What came after the checkpoint that was named is of another course: it is set aside, takes no place, and the same command continues. */
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
    train(&job, 1, &files, &out); /* the same command, here on fewer ranks */
    assert_int_equal(out.step_count, 2);
    ranks_clear(&out);
    job.checkpointing.resume = dt_arena_printf(&job.arena, "%s/step-00000003.old-1", job.checkpointing.checkpoint_dir);
    train(&job, 2, &files, &out); /* what was set aside can be named */
    assert_int_equal(out.step_count, 3);
    assert_true(out.hash == hash);
    ranks_clear(&out);
    dt_arena_clear(&job.arena);
}

/* The round that should have begun by name, or anew, died before it could: the next one does it. After that, rounds go on from the launch's own saves. */
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

/* A checkpoint under the name of a later step is passed over like any damaged one, and costs none of the good ones. */
static void test_a_copy_under_another_name(void **state)
{
    (void)state;
    struct job job;
    struct ranks_outcome out;
    uint64_t hash = finish_with_all(&job);
    char *from = checkpoint_path(job.checkpointing.checkpoint_dir, 6), *to = checkpoint_path(job.checkpointing.checkpoint_dir, 9);
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
    struct trainer t = {.job = &job, .world = &w, .rank = 1, .size = 2, .hold = -1};
    assert_int_equal(trainer_resume(&t, &found, &err), -1);
    dt_store_close(store);
    dt_store_local_close(local);
    dt_arena_clear(&job.arena);
}

/* What rank 0 tells all is its own failure, or that of the rank it names: who hears it on another host says so, and the mark stays at the end. */
static void test_who_only_heard_it_says_so(void **state)
{
    (void)state;
    static const struct {
        int rank, first, here; /* of the host: its first rank, and how many */
        const char *sent, *heard;
    } cases[] = {{1, 1, 1, "!1 DIR: none is whole", "rank 0: DIR: none is whole (noticed by rank 0)"},
                 {1, 0, 2, "!1 DIR: none is whole", "rank 0: DIR: none is whole"},
                 {2, 2, 1, "!3 rank 1: no disk", "rank 1: no disk (noticed by rank 1)"},
                 {2, 1, 2, "!3 rank 1: no disk", "rank 1: no disk"},
                 {1, 1, 1, "!3 rank 0 waits for rank 2: no", "rank 0: rank 0 waits for rank 2: no (noticed by rank 0)"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dt_store *store = NULL;
        struct dt_store_local *local = dt_store_local_open();
        struct dt_page page = {0};
        struct dt_error err;
        struct dt_text text;
        dt_text_init(&text);
        assert_int_equal(dt_store_open_local(&store, local, &page, &err), 0);
        assert_int_equal(dt_store_set(store, "key", cases[i].sent, strlen(cases[i].sent), &err), 0);
        struct world w = {
            .rank = cases[i].rank, .local_rank = cases[i].rank - cases[i].first, .local_size = cases[i].here, .store = store, .page = &page};
        struct trainer t = {.world = &w, .rank = cases[i].rank, .size = 4};
        assert_int_equal(trainer_share(&t, "key", &text, NULL, 1, &err), -1);
        assert_string_equal(err.text, cases[i].heard);
        bool marked = strstr(err.text, "noticed") != NULL;
        assert_int_equal(trainer_only_heard(&err), marked);
        trainer_add_words(&err, "; do this");
        assert_true(strstr(err.text, marked ? "; do this (noticed by rank " : "; do this") != NULL);
        memset(err.text, 'x', sizeof err.text - 1);
        err.text[sizeof err.text - 1] = '\0';
        trainer_add_words(&err, " (noticed by rank 0)");
        trainer_add_words(&err, "; do this");
        assert_string_equal(err.text + strlen(err.text) - strlen("x; do this (noticed by rank 0)"), "x; do this (noticed by rank 0)");
        dt_text_clear(&text);
        dt_store_close(store);
        dt_store_local_close(local);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stopped_equals_uninterrupted, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_stop_loses_no_evaluation, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_all_pairs, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_bf16_moments_continue, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_bf16_moments_of_doubles, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_bf16_moments_learn_as_much, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_either_precision_continues, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_another_job_is_refused, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_what_a_run_leaves, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_lost_proposal_is_a_failure, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_folder_named_like_a_failure, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_copy_under_another_name, ranks_setup, folder_teardown),
        cmocka_unit_test(test_who_only_heard_it_says_so),
        cmocka_unit_test_setup_teardown(test_damaged_ones_alone_are_refused, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_later_round_makes_up_for_the_beginning, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_named_beginning_is_one_course, ranks_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
