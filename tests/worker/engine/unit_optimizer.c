/* covers: worker/engine/optimizer.c worker/engine/clip.c */
/* AdamW and clipping against PyTorch's numbers, driven through a strategy as in training: one
 * unit whose tensors decay or not. */
#include "base/file.h"
#include "worker/engine/clip.h"
#include "worker/engine/optimizer.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A chain by hand: one unit, a vector of 7 and a matrix of 15, as in optimizers.json; or each
 * twice for the norm of clip.json. */
struct fixture {
    struct chain chain;
    struct unit unit;
    struct tensor tensors[4];
    struct job job;
    struct world world;
    struct plan plan;
    struct strategy strategy;
    struct optimizer optimizer;
    struct clip clip;
};

static void open_typed(struct fixture *f, int tensor_count, enum dt_dtype type, enum dt_dtype moments,
                       const char *device, const struct job_training *training, bool all_decay)
{
    static const int64_t sizes[] = {7, 15, 7, 15};
    struct dt_error err;
    memset(f, 0, sizeof *f);
    f->unit = (struct unit){.name = "root", .tensor_count = tensor_count};
    for (int i = 0; i < tensor_count; i++) {
        f->tensors[i] =
            (struct tensor){.name = "t", .numel = sizes[i], .offset = f->unit.numel, .decay = all_decay || i % 2 == 1};
        f->unit.used = f->unit.numel + sizes[i];
        f->unit.numel += 64;
    }
    f->chain = (struct chain){.spec = {.type = type},
                              .units = &f->unit,
                              .unit_count = 1,
                              .tensors = f->tensors,
                              .tensor_count = tensor_count,
                              .shards = 1};
    f->job.training = *training;
    f->job.precision.moments = moments;
    f->job.training.gradient_accumulation_steps = 1;
    assert_int_equal(
        world_open_thread(&f->world, &(struct world_options){.device = device, .threads = 1}, NULL, 0, 1, &err), 0);
    plan_init(&f->plan);
    assert_int_equal(
        strategy_init(&f->strategy, strategy_find("single_device", 1, &err), &f->job, &f->chain, 0, 1, 1, &err), 0);
    strategy_plan(&f->strategy, &f->plan);
    optimizer_plan(&f->optimizer, &f->strategy, &f->job, &f->plan);
    clip_plan(&f->clip, &f->strategy, 3, &f->plan);
    assert_int_equal(plan_open(&f->plan, &f->world, &err), 0);
    assert_int_equal(strategy_open(&f->strategy, &f->world, &f->plan, &err), 0);
    optimizer_open(&f->optimizer, &f->plan);
    clip_open(&f->clip, &f->plan);
}

static void open_fixture(struct fixture *f, int tensor_count, enum dt_dtype type, const char *device,
                         const struct job_training *training, bool all_decay)
{
    open_typed(f, tensor_count, type, DT_F32, device, training, all_decay);
}

static void close_fixture(struct fixture *f)
{
    optimizer_clear(&f->optimizer);
    strategy_close(&f->strategy);
    plan_clear(&f->plan);
    world_close(&f->world);
}

static double get(const struct fixture *f, const void *base, int tensor, int64_t element)
{
    int64_t at = f->tensors[tensor].offset + element;
    return f->strategy.type == DT_F64 ? ((const double *)base)[at] : (double)((const float *)base)[at];
}

static void put(const struct fixture *f, void *base, int tensor, const cJSON *values)
{
    const cJSON *value;
    int64_t at = f->tensors[tensor].offset;
    cJSON_ArrayForEach(value, values)
    {
        if (f->strategy.type == DT_F64) {
            ((double *)base)[at++] = (float)value->valuedouble; /* they were made as float */
        } else {
            ((float *)base)[at++] = (float)value->valuedouble;
        }
    }
}

static cJSON *load(const char *path, struct dt_text *text)
{
    struct dt_error err;
    dt_text_init(text);
    assert_int_equal(dt_file_read(path, 4 << 20, text, &err), 0);
    cJSON *root = cJSON_Parse(text->data);
    assert_non_null(root);
    return root;
}

static const cJSON *item(const cJSON *object, const char *key)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(object, key);
    assert_non_null(x);
    return x;
}

/* relative to max(1, |x|) for fp32, to |x| for fp64, as the file says. */
static void check(const struct fixture *f, const void *base, int tensor, const cJSON *wanted, double tolerance)
{
    const cJSON *value;
    int64_t e = 0;
    cJSON_ArrayForEach(value, wanted)
    {
        double got = get(f, base, tensor, e++), want = value->valuedouble;
        double scale = f->strategy.type == DT_F64 ? fabs(want) : fmax(1, fabs(want));
        if (!(fabs(got - want) <= tolerance * scale)) {
            print_error("tensor %d element %d: %.12g, wanted %.12g\n", tensor, (int)e - 1, got, want);
        }
        assert_true(fabs(got - want) <= tolerance * scale);
    }
}

static void run_row(const cJSON *root, const cJSON *row, enum dt_dtype type)
{
    const cJSON *options = item(row, "options"), *betas = item(options, "betas");
    struct job_training training = {.adam_beta1 = cJSON_GetArrayItem(betas, 0)->valuedouble,
                                    .adam_beta2 = cJSON_GetArrayItem(betas, 1)->valuedouble,
                                    .adam_epsilon = item(options, "eps")->valuedouble,
                                    .weight_decay = item(options, "weight_decay")->valuedouble};
    const cJSON *wanted = item(row, "after_fp32"), *last = item(row, "after_fp64");
    int step_count = cJSON_GetArraySize(wanted); /* in double only the last state is given */
    struct fixture f;
    open_fixture(&f, 2, type, type == DT_F64 ? "twin64" : "cpu", &training, true);
    void *w = f.strategy.weights->slice(&f.strategy, 0), *g = f.strategy.grads->slice(&f.strategy, 0);
    for (int i = 0; i < 2; i++) {
        put(&f, w, i, cJSON_GetArrayItem(item(root, "init"), i));
    }
    double one = 1;
    for (int s = 0; s < step_count; s++) {
        for (int i = 0; i < 2; i++) {
            put(&f, g, i, cJSON_GetArrayItem(cJSON_GetArrayItem(item(root, "grads"), s), i));
        }
        optimizer_step(&f.optimizer, cJSON_GetArrayItem(item(root, "lr"), s)->valuedouble, &one);
        assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
        for (int i = 0; i < 2; i++) {
            if (type == DT_F32) {
                check(&f, w, i, cJSON_GetArrayItem(cJSON_GetArrayItem(wanted, s), i), 2e-6);
            } else if (s + 1 == step_count) {
                check(&f, w, i, cJSON_GetArrayItem(cJSON_GetArrayItem(last, 0), i), 1e-12);
            }
        }
    }
    for (int64_t e = f.tensors[0].numel; e < 64; e++) { /* the gap between tensors stays zero,
                                                         * decay or not */
        assert_true(get(&f, w, 0, e) == 0);
    }
    close_fixture(&f);
}

static void test_adamw(void **state)
{
    (void)state;
    struct dt_text text;
    cJSON *root = load("tests/golden/numbers/optimizers.json", &text);
    const cJSON *row;
    int count = 0;
    cJSON_ArrayForEach(row, item(root, "rows"))
    {
        if (strcmp(item(row, "name")->valuestring, "AdamW") == 0 &&
            !cJSON_HasObjectItem(item(row, "options"), "amsgrad")) {
            run_row(root, row, DT_F32);
            run_row(root, row, DT_F64);
            count++;
        }
    }
    assert_int_equal(count, 3);
    cJSON_Delete(root);
    dt_text_clear(&text);
}

/* Only what decays shrinks when the gradient is zero. */
static void test_decay_ranges(void **state)
{
    (void)state;
    struct job_training training = {.adam_beta1 = 0.9, .adam_beta2 = 0.9, .adam_epsilon = 1e-8, .weight_decay = 0.5};
    struct fixture f;
    open_fixture(&f, 4, DT_F32, "cpu", &training, false);
    assert_int_equal(f.optimizer.range_count, 4);
    float *w = f.strategy.weights->slice(&f.strategy, 0);
    for (int i = 0; i < 4; i++) {
        for (int64_t e = 0; e < f.tensors[i].numel; e++) {
            w[f.tensors[i].offset + e] = 2;
        }
    }
    double one = 1;
    optimizer_step(&f.optimizer, 0.1, &one);
    assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
    for (int i = 0; i < 4; i++) {
        float want = i % 2 == 1 ? 1.9f : 2.0f;
        assert_float_equal(w[f.tensors[i].offset], want, 1e-6);
        assert_float_equal(w[f.tensors[i].offset + f.tensors[i].numel - 1], want, 1e-6);
    }
    close_fixture(&f);
}

/* BF16 moments take half the memory, and the weights follow those with F32 moments: after one
 * step to the bit, as they are updated by what was not rounded yet; after 20 with beta 0.9 and
 * 0.95 an element's step is off by a percent or two. What lies between two tensors stays zero. */
static void test_bf16_moments(void **state)
{
    (void)state;
    static float after[2][64 * 4];
    const struct job_training training = {
        .adam_beta1 = 0.9, .adam_beta2 = 0.95, .adam_epsilon = 1e-8, .weight_decay = 0.1, .seed = 5};
    double one = 1;
    for (int steps = 1; steps <= 20; steps += 19) {
        size_t bytes[2];
        for (int half = 0; half < 2; half++) {
            struct fixture f;
            open_typed(&f, 4, DT_F32, half ? DT_BF16 : DT_F32, "cpu", &training, false);
            float *w = f.strategy.weights->slice(&f.strategy, 0), *g = f.strategy.grads->slice(&f.strategy, 0);
            for (int step = 0; step < steps; step++) {
                for (int i = 0; i < 4; i++) {
                    for (int64_t e = 0; e < f.tensors[i].numel; e++) {
                        g[f.tensors[i].offset + e] = (float)(1 + 0.5 * sin((double)(7 * step + 3 * i) + (double)e));
                    }
                }
                optimizer_step(&f.optimizer, 0.01, &one);
                assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
            }
            memcpy(after[half], w, sizeof after[half]);
            bytes[half] = f.plan.bytes[PLAN_OPTIMIZER];
            for (int64_t e = f.tensors[0].numel; half && e < 64; e++) {
                assert_true(((uint16_t *)(void *)f.optimizer.m)[e] == 0 &&
                            ((uint16_t *)(void *)f.optimizer.v)[e] == 0 && w[e] == 0);
            }
            close_fixture(&f);
        }
        assert_true(bytes[1] * 2 == bytes[0]);
        for (int e = 0; e < 64 * 4; e++) {
            assert_true(steps == 1 ? after[0][e] == after[1][e]
                                   : fabs((double)(after[0][e] - after[1][e])) <= 0.05 * fabs((double)after[0][e]));
        }
        assert_true(steps == 1 || memcmp(after[0], after[1], sizeof after[0]) != 0);
    }
}

static void start_step(struct clip *c, const struct clip_input *in)
{
    clip_begin(c);
    clip_add(c, (struct unit_range){0, 1});
    (void)clip_start(c, in);
}

/* The norm over four tensors and the factor that clips them. */
static void test_clip(void **state)
{
    (void)state;
    struct dt_text text, optimizers;
    cJSON *root = load("tests/golden/numbers/clip.json", &text),
          *gradients = load("tests/golden/numbers/optimizers.json", &optimizers);
    const cJSON *row;
    struct fixture f;
    open_fixture(&f, 4, DT_F32, "cpu", &(struct job_training){.adam_beta1 = 0.9}, false);
    void *g = f.strategy.grads->slice(&f.strategy, 0);
    for (int i = 0; i < 4; i++) {
        put(&f, g, i, cJSON_GetArrayItem(cJSON_GetArrayItem(item(gradients, "grads"), i / 2), i % 2));
    }
    int count = 0;
    cJSON_ArrayForEach(row, item(root, "rows"))
    {
        if (strcmp(item(row, "norm_type")->valuestring, "2.0") != 0) {
            continue;
        }
        double loss = 3;
        int64_t valid = 2;
        start_step(&f.clip, &(struct clip_input){.loss_sum = &loss,
                                                 .valid_count = &valid,
                                                 .micro_steps = 1,
                                                 .max_norm = item(row, "max_norm")->valuedouble,
                                                 .normalization = LOSS_LOCAL_MEAN});
        assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
        const struct clip_result *r = clip_read(&f.clip, f.clip.turn);
        double total = item(row, "total")->valuedouble;
        assert_true(fabs(r->grad_norm - total) <= 2e-6 * total);
        assert_true(r->loss == 1.5 && r->valid_count == 2 && r->bad_rank == -1 && r->norm_finite && r->stop_count == 0);
        for (int e = 0; e < 7; e++) {
            double want = cJSON_GetArrayItem(item(row, "first"), e)->valuedouble;
            assert_true(fabs(get(&f, g, 0, e) * *f.clip.factor - want) <= 2e-6 * fabs(want));
        }
        count++;
    }
    assert_true(count >= 3);
    close_fixture(&f);
    cJSON_Delete(root);
    cJSON_Delete(gradients);
    dt_text_clear(&text);
    dt_text_clear(&optimizers);
}

/* Both normalisations over several micro-steps, one of them without any target; losses that are
 * not finite name their rank. */
static void test_sums(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 2, DT_F32, "cpu", &(struct job_training){.adam_beta1 = 0.9}, false);
    double loss[3] = {6, 0, 5};
    int64_t valid[3] = {3, 0, 10};
    struct clip_input in = {
        .loss_sum = loss, .valid_count = valid, .micro_steps = 3, .normalization = LOSS_LOCAL_MEAN, .stop = true};
    start_step(&f.clip, &in);
    assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
    assert_float_equal(clip_read(&f.clip, f.clip.turn)->loss, 2.5 / 3, 1e-15);
    assert_float_equal(*f.clip.factor, 1.0 / 3, 1e-15);
    assert_int_equal(clip_read(&f.clip, f.clip.turn)->stop_count, 1);
    in.normalization = LOSS_GLOBAL_TOKENS;
    start_step(&f.clip, &in);
    assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
    assert_float_equal(clip_read(&f.clip, f.clip.turn)->loss, 11.0 / 13, 1e-15);
    assert_float_equal(*f.clip.factor, 1.0 / 13, 1e-15);
    loss[2] = NAN;
    start_step(&f.clip, &in);
    assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
    assert_int_equal(clip_read(&f.clip, f.clip.turn)->bad_rank, 0);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_adamw), cmocka_unit_test(test_decay_ranges),
                                       cmocka_unit_test(test_bf16_moments), cmocka_unit_test(test_clip),
                                       cmocka_unit_test(test_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
