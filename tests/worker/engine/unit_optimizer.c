/* covers: worker/engine/optimizer.c worker/engine/optimizer_ratios.c worker/engine/optimizer_matrices.c worker/engine/optimizers worker/engine/step_sums.c */
/* Optimizers and clipping against PyTorch's numbers, driven through a strategy as in training: one
 * unit whose tensors decay or not. */
#include "base/file.h"
#include "worker/engine/step_sums.h"
#include "worker/engine/optimizer.h"

#include <cjson/cJSON.h>
#include <ctype.h>
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
    struct step_sums step_sums;
};

/* Names of the tensors; null: all are "t". */
static const char *const *named;
/* Rows and columns of those of 15. */
static int64_t rows_of_15 = 3, cols_of_15 = 5;

/* decay: of which tensors, the first one as the lowest bit. */
enum { ALL_DECAY = 15, MATRICES_DECAY = 10, NONE_DECAYS = 0 };

static void open_typed(struct fixture *f, int tensor_count, enum dt_dtype type, enum dt_dtype states,
                       const char *device, const struct job_optimizer *optimizer, double weight_decay, int decay)
{
    static const int64_t sizes[] = {7, 15, 7, 15};
    struct dt_error err;
    memset(f, 0, sizeof *f);
    f->unit = (struct unit){.name = "root", .tensor_count = tensor_count};
    for (int i = 0; i < tensor_count; i++) {
        f->tensors[i] = (struct tensor){.name = named != NULL ? named[i] : "t",
                                        .dims = 1 + i % 2,
                                        .shape = {i % 2 == 0 ? sizes[i] : rows_of_15, i % 2 == 0 ? 0 : cols_of_15},
                                        .numel = sizes[i],
                                        .offset = f->unit.numel,
                                        .declared = {0, f->unit.numel},
                                        .decay = decay >> i & 1};
        f->unit.used = f->unit.numel + sizes[i];
        f->unit.numel += 64;
    }
    f->chain = (struct chain){.spec = {.type = type},
                              .units = &f->unit,
                              .unit_count = 1,
                              .tensors = f->tensors,
                              .tensor_count = tensor_count,
                              .shards = 1};
    f->job.optimizer = *optimizer;
    f->job.optimizer.row = optimizer_find(optimizer->name);
    f->job.training.weight_decay = weight_decay;
    f->job.training.seed = 5;
    f->job.precision.states = states;
    f->job.training.gradient_accumulation_steps = 1;
    assert_int_equal(
        world_open_thread(&f->world, &(struct world_options){.device = device, .threads = 1}, NULL, 0, 1, &err), 0);
    plan_init(&f->plan);
    struct precision precision;
    assert_int_equal(precision_of(&f->job, f->chain.spec.type, &precision, &err), 0);
    assert_int_equal(strategy_init(&f->strategy, strategy_find("single_device", 1, &err), &f->job, &f->chain,
                                   &precision, 0, 1, 1, &err),
                     0);
    strategy_plan(&f->strategy, &f->plan);
    optimizer_plan(&f->optimizer, &f->strategy, &f->job, &f->plan);
    step_sums_plan(&f->step_sums, &f->strategy, 3, &f->plan);
    assert_int_equal(plan_open(&f->plan, &f->world, &err), 0);
    assert_int_equal(strategy_open(&f->strategy, &f->world, &f->plan, &err), 0);
    assert_int_equal(optimizer_open(&f->optimizer, &f->plan, &err), 0);
    step_sums_open(&f->step_sums, &f->plan);
}

/* The home of all that is tested here is the device: an address is good until the end. */
static void *address(const struct fixture *f, struct home_part part)
{
    return home_bring(part, 0, HOME_CHANGE, f->world.compute);
}

static void *weights_of(struct fixture *f)
{
    return address(f, f->strategy.weights->slice(&f->strategy, 0));
}

static void *grads_of(struct fixture *f)
{
    return address(f, f->strategy.grads->slice(&f->strategy, 0));
}

static void *state_of(struct fixture *f, int k, int64_t element)
{
    return address(f, optimizer_state(&f->optimizer, k, 0, element));
}

static void open_fixture(struct fixture *f, int tensor_count, enum dt_dtype type, const char *device,
                         const struct job_optimizer *optimizer, double weight_decay, int decay)
{
    open_typed(f, tensor_count, type, DT_F32, device, optimizer, weight_decay, decay);
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
    return f->strategy.precision.compute == DT_F64 ? ((const double *)base)[at] : (double)((const float *)base)[at];
}

static void put(const struct fixture *f, void *base, int tensor, const cJSON *values)
{
    const cJSON *value;
    int64_t at = f->tensors[tensor].offset;
    cJSON_ArrayForEach(value, values)
    {
        if (f->strategy.precision.compute == DT_F64) {
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
        double scale = f->strategy.precision.compute == DT_F64 ? fabs(want) : fmax(1, fabs(want));
        if (!(fabs(got - want) <= tolerance * scale)) {
            print_error("tensor %d element %d: %.12g, wanted %.12g\n", tensor, (int)e - 1, got, want);
        }
        assert_true(fabs(got - want) <= tolerance * scale);
    }
}

static double option(const cJSON *options, const char *key)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(options, key);
    return x != NULL ? x->valuedouble : 0;
}

static bool is_on(const cJSON *options, const char *key)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(options, key)) != 0;
}

/* An optimizer of which the matrix alone is Muon's, by name. */
static void leave_to_adamw(struct job_optimizer *o, const cJSON *options)
{
    static const char *const all[] = {"*"}, *const words[] = {"original", "match_rms_adamw", "spectral_unclamped"};
    const cJSON *shape = item(options, "shape");
    const char *word = item(options, "adjust_lr_fn")->valuestring;
    o->rest = (struct dt_update_numbers){.beta1 = o->numbers.beta1, .beta2 = o->numbers.beta2, .eps = 1e-8};
    o->numbers.ns_steps = (int64_t)option(options, "ns_steps");
    while (strcmp(words[o->numbers.adjust], word) != 0) {
        o->numbers.adjust++;
    }
    o->group_count = 1;
    o->groups[0] =
        (struct job_group){.params = {1, all}, .lr_scale = 1, .weight_decay = NAN, .row = optimizer_find("muon")};
    rows_of_15 = cJSON_GetArrayItem(shape, 0)->valueint;
    cols_of_15 = cJSON_GetArrayItem(shape, 1)->valueint;
}

static void run_row(const cJSON *root, const cJSON *row, enum dt_dtype type)
{
    const cJSON *options = item(row, "options"), *betas = cJSON_GetObjectItemCaseSensitive(options, "betas");
    const cJSON *rough = cJSON_GetObjectItemCaseSensitive(row, "after_bf16");
    char name[8] = "";
    for (size_t i = 0; i + 1 < sizeof name && item(row, "name")->valuestring[i] != 0; i++) {
        name[i] = (char)tolower(item(row, "name")->valuestring[i]);
    }
    struct job_optimizer optimizer = {
        .name = name,
        .numbers = {.beta1 = betas != NULL ? cJSON_GetArrayItem(betas, 0)->valuedouble : 0,
                    .beta2 = betas != NULL ? cJSON_GetArrayItem(betas, 1)->valuedouble : 0,
                    .eps = option(options, "eps"),
                    .momentum = option(options, "momentum"),
                    .dampening = option(options, "dampening"),
                    .lr_decay = option(options, "lr_decay"),
                    .initial = option(options, "initial_accumulator_value"),
                    .nesterov = is_on(options, "nesterov"),
                    .amsgrad = is_on(options, "amsgrad")}};
    if (strcmp(name, "muon") == 0) {
        leave_to_adamw(&optimizer, options);
    }
    const cJSON *wanted = item(row, "after_fp32"), *last = item(row, "after_fp64");
    int step_count = cJSON_GetArraySize(wanted); /* in double only the last state is given */
    struct fixture f;
    open_fixture(&f, 2, type, type == DT_F64 ? "twin64" : "cpu", &optimizer, option(options, "weight_decay"),
                 ALL_DECAY);
    void *w = weights_of(&f), *g = grads_of(&f);
    for (int i = 0; i < 2; i++) {
        put(&f, w, i, cJSON_GetArrayItem(item(root, "init"), i));
    }
    double one = 1;
    for (int s = 0; s < step_count; s++) {
        for (int i = 0; i < 2; i++) {
            put(&f, g, i, cJSON_GetArrayItem(cJSON_GetArrayItem(item(root, "grads"), s), i));
        }
        optimizer_step(&f.optimizer, cJSON_GetArrayItem(item(root, "lr"), s)->valuedouble, &one, NULL);
        assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
        for (int i = 0; i < 2; i++) {
            if (type == DT_F32) {
                check(&f, w, i, cJSON_GetArrayItem(cJSON_GetArrayItem(wanted, s), i), 2e-6);
                if (rough != NULL) { /* 8 bits in each of up to five iterations; a rate of 0.02 */
                    check(&f, w, i, cJSON_GetArrayItem(cJSON_GetArrayItem(rough, s), i), 2e-3);
                }
            } else if (s + 1 == step_count) {
                check(&f, w, i, cJSON_GetArrayItem(cJSON_GetArrayItem(last, 0), i), 1e-12);
            }
        }
    }
    for (int i = 0; i < 2 && type == DT_F32; i++) {
        const struct optimizer_group *group = optimizer_group_of(&f.optimizer, &f.tensors[i]);
        const cJSON *states = cJSON_GetArrayItem(item(row, "state_fp32"), i);
        assert_int_equal(group->states, cJSON_GetArraySize(states));
        for (int k = 0; k < group->states; k++) {
            /* 1 - 0.999F is off by 5e-5 of itself, and so is the second moment */
            const float *state = state_of(&f, k, f.tensors[i].offset);
            check(&f, state - f.tensors[i].offset, i, item(states, group->row->state[k]), 1e-4);
        }
    }
    for (int64_t e = f.tensors[0].numel; e < 64; e++) { /* the gap between tensors stays zero,
                                                         * decay or not */
        assert_true(get(&f, w, 0, e) == 0);
    }
    close_fixture(&f);
}

/* Rows of the golden data that have this name, with the gradients of optimizers.json. */
static int run_rows(const char *path, const char *name)
{
    struct dt_text given_text, text;
    cJSON *given = load("tests/golden/numbers/optimizers.json", &given_text), *root = load(path, &text);
    const cJSON *row;
    int count = 0;
    cJSON_ArrayForEach(row, item(root, "rows"))
    {
        if (strcmp(item(row, "name")->valuestring, name) == 0) {
            run_row(given, row, DT_F32);
            run_row(given, row, DT_F64);
            count++;
        }
    }
    cJSON_Delete(given);
    cJSON_Delete(root);
    dt_text_clear(&given_text);
    dt_text_clear(&text);
    return count;
}

static void test_adamw(void **state)
{
    (void)state;
    assert_int_equal(run_rows("tests/golden/numbers/optimizers.json", "AdamW"), 3);
}

static void test_adam(void **state)
{
    (void)state;
    assert_int_equal(run_rows("tests/golden/numbers/optimizers.json", "Adam"), 1);
}

static void test_adagrad(void **state)
{
    (void)state;
    assert_int_equal(run_rows("tests/golden/numbers/optimizers.json", "Adagrad"), 1);
}

/* Without momentum, with, with dampening, Nesterov's, decaying. */
static void test_sgd(void **state)
{
    (void)state;
    assert_int_equal(run_rows("tests/golden/numbers/optimizers.json", "SGD"), 5);
}

/* amsgrad, decoupled or not. */
static void test_amsgrad(void **state)
{
    (void)state;
    assert_int_equal(run_rows("tests/golden/numbers/torch.json", "AdamW"), 2);
    assert_int_equal(run_rows("tests/golden/numbers/torch.json", "Adam"), 2);
}

/* Wide, tall and one column; the vector goes by AdamW. */
static void test_muon(void **state)
{
    (void)state;
    assert_int_equal(run_rows("tests/golden/numbers/torch.json", "Muon"), 4);
    rows_of_15 = 3;
    cols_of_15 = 5;
}

/* Matrices of a unit have one state, and the vectors between them two: nothing else is planned. */
static void test_muon_states(void **state)
{
    (void)state;
    static const char *const all[] = {"*"};
    const struct job_optimizer muon = {
        .name = "muon",
        .numbers = {.momentum = 0.95, .ns_steps = 5, .eps = 1e-7},
        .rest = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
        .group_count = 1,
        .groups = {{.params = {1, all}, .lr_scale = 1, .weight_decay = NAN, .row = optimizer_find("muon")}}};
    struct fixture f;
    open_fixture(&f, 4, DT_F32, "cpu", &muon, 0.1, MATRICES_DECAY);
    assert_int_equal(f.plan.bytes[PLAN_OPTIMIZER], (2 * 1 + 2 * 2) * 64 * 4);
    float *w = weights_of(&f), *g = grads_of(&f);
    for (int64_t e = 0; e < 4 * 64; e++) {
        w[e] = e % 64 < f.tensors[e / 64].numel ? 1 : 0;
        g[e] = w[e] * (float)((e * 7) % 5 - 2);
    }
    double one = 1;
    const int32_t skip = 1, go = 0;
    optimizer_step(&f.optimizer, 0.1, &one, &skip);
    assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
    assert_true(w[64] == 1 && *(float *)state_of(&f, 0, 64) == 0);
    f.optimizer.steps--;
    optimizer_step(&f.optimizer, 0.1, &one, &go);
    assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
    const float *m[] = {state_of(&f, 0, 0), state_of(&f, 0, 64), state_of(&f, 1, 0), state_of(&f, 1, 128)};
    assert_true(fabs(m[0][0] - 0.1 * -2) < 1e-6 && m[1] == m[0] + 64 && fabs(m[1][0] - 0.05 * 1) < 1e-6);
    assert_true(m[3] == m[2] + 64 && fabs(m[2][0] - 0.05 * 4) < 1e-6);
    memset(g, 0, 4 * 64 * sizeof *g); /* zeros stay zeros: nothing is divided by a norm of 0 */
    memset(state_of(&f, 0, 64), 0, 64 * sizeof(float));
    float before = w[64];
    optimizer_step(&f.optimizer, 0.1, &one, &go);
    assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
    assert_float_equal(w[64], before * 0.99F, 1e-6);
    close_fixture(&f);
}

/* Without the correction of the bias, the first step of AdamW and Adam is as the formula says. */
static void test_uncorrected(void **state)
{
    (void)state;
    static const char *const names[] = {"adamw", "adam", "lamb"};
    for (int i = 0; i < 6; i++) {
        const struct job_optimizer o = {
            .name = names[i % 3],
            .numbers = {
                .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .min_coeff = 0.01, .max_coeff = 10, .uncorrected = 1}};
        struct fixture f;
        open_fixture(&f, 1, DT_F32, i < 3 ? "cpu" : "twin32", &o, 0, NONE_DECAYS);
        float *w = weights_of(&f), *g = grads_of(&f);
        double one = 1;
        w[0] = g[0] = 2;
        optimizer_step(&f.optimizer, 0.1, &one, NULL);
        assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
        double way = 0.1 * 2 / sqrt(0.01 * 4), ratio = i % 3 == 2 ? 2 / way : 1;
        assert_float_equal(w[0], (float)(2 - 0.1 * ratio * way), 2e-6);
        close_fixture(&f);
    }
}

static void test_lion(void **state)
{
    (void)state;
    assert_int_equal(run_rows("tests/golden/numbers/lion.json", "Lion"), 3);
}

/* A tensor's step of LAMB as the paper and DeepSpeed's documents have it. */
static void lamb_step(double *w, const float *g, double *m, double *v, int64_t count, double lr, double decay, int step)
{
    const double beta1 = 0.9, beta2 = 0.95, eps = 1e-6;
    double u[16], ww = 0, uu = 0;
    for (int64_t i = 0; i < count; i++) {
        m[i] = beta1 * m[i] + (1 - beta1) * g[i];
        v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
        u[i] = m[i] / (1 - pow(beta1, step)) / (sqrt(v[i] / (1 - pow(beta2, step))) + eps) + decay * w[i];
        ww += w[i] * w[i];
        uu += u[i] * u[i];
    }
    double ratio = ww > 0 && uu > 0 ? fmin(fmax(sqrt(ww) / sqrt(uu), 0.01), 0.6) : 1;
    for (int64_t i = 0; i < count; i++) {
        w[i] -= lr * ratio * u[i];
    }
}

/* Each tensor has its own ratio: of the second it is above max_coeff, the third begins at 0, the fourth is
 * below min_coeff. */
static void test_lamb(void **state)
{
    (void)state;
    static const struct job_optimizer lamb = {
        .name = "lamb", .numbers = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-6, .min_coeff = 0.01, .max_coeff = 0.6}};
    for (int device = 0; device < 3; device++) {
        struct fixture f;
        double w[4][16], m[4][16] = {{0}}, v[4][16] = {{0}};
        enum dt_dtype type = device == 2 ? DT_F64 : DT_F32;
        open_fixture(&f, 4, type, (const char *[]){"cpu", "twin32", "twin64"}[device], &lamb, 0.1, MATRICES_DECAY);
        void *at = weights_of(&f), *gradient = grads_of(&f);
        assert_int_equal(f.optimizer.range_count, 4);
        for (int i = 0; i < 4; i++) {
            for (int64_t e = 0; e < f.tensors[i].numel; e++) {
                double scale = i == 0 ? 0.1 : i == 1 ? 5 : i == 2 ? 0 : 1e-4;
                w[i][e] = (float)(scale * sin((double)(e + 3 * i + 1)));
                int64_t k = f.tensors[i].offset + e;
                type == DT_F64 ? (void)(((double *)at)[k] = w[i][e]) : (void)(((float *)at)[k] = (float)w[i][e]);
            }
        }
        const double one = 1;
        for (int step = 1; step <= 5; step++) {
            for (int i = 0; i < 4; i++) {
                float g[16];
                for (int64_t e = 0; e < f.tensors[i].numel; e++) {
                    g[e] = (float)cos((double)(e * step + i));
                    int64_t k = f.tensors[i].offset + e;
                    type == DT_F64 ? (void)(((double *)gradient)[k] = g[e]) : (void)(((float *)gradient)[k] = g[e]);
                }
                lamb_step(w[i], g, m[i], v[i], f.tensors[i].numel, 0.01, i % 2 == 1 ? 0.1 : 0, step);
            }
            optimizer_step(&f.optimizer, 0.01, &one, NULL);
            assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
            for (int i = 0; i < 4; i++) {
                for (int64_t e = 0; e < f.tensors[i].numel; e++) {
                    double got = get(&f, at, i, e), far = type == DT_F64 ? 1e-12 : 2e-6;
                    if (!(fabs(got - w[i][e]) <= far * fmax(1, fabs(w[i][e])))) {
                        print_error("device %d step %d tensor %d element %d: %.12g, wanted %.12g\n", device, step, i,
                                    (int)e, got, w[i][e]);
                    }
                    assert_true(fabs(got - w[i][e]) <= far * fmax(1, fabs(w[i][e])));
                }
            }
        }
        close_fixture(&f);
    }
}

/* torch.nn.utils.clip_grad_value_: the elements of clip.json, by a step of SGD from 0. */
static void test_clip_by_value(void **state)
{
    (void)state;
    struct dt_text text, given_text;
    cJSON *given = load("tests/golden/numbers/optimizers.json", &given_text),
          *root = load("tests/golden/numbers/clip.json", &text);
    static const struct job_optimizer sgd = {.name = "sgd"};
    for (int twin = 0; twin < 2; twin++) {
        struct fixture f;
        open_fixture(&f, 4, DT_F32, twin ? "twin32" : "cpu", &sgd, 0, ALL_DECAY);
        f.optimizer.clip_value = 0.7;
        float *w = weights_of(&f), *g = grads_of(&f);
        for (int i = 0; i < 4; i++) {
            put(&f, g, i, cJSON_GetArrayItem(cJSON_GetArrayItem(item(given, "grads"), i / 2), i % 2));
        }
        for (int64_t e = 0; e < f.unit.numel; e++) {
            g[e] *= 2; /* the value is of what the factor leaves */
        }
        const double half = 0.5;
        optimizer_step(&f.optimizer, -1, &half, NULL);
        assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
        for (int i = 0; i < 4; i++) {
            check(&f, w, i, cJSON_GetArrayItem(item(root, "value_0.7"), i), 2e-6);
        }
        close_fixture(&f);
    }
    cJSON_Delete(given);
    cJSON_Delete(root);
    dt_text_clear(&given_text);
    dt_text_clear(&text);
}

/* The first group that names a tensor has it, with its rate, and its decay for vectors, too. */
static void test_groups(void **state)
{
    (void)state;
    static const char *const first[] = {"a.*", "nothing"}, *const second[] = {"*"};
    struct dt_error err;
    struct job_optimizer sgd = {.name = "sgd",
                                .group_count = 2,
                                .groups = {{.params = {1, first}, .lr_scale = 2, .weight_decay = 0.5},
                                           {.params = {1, second}, .lr_scale = 0.5, .weight_decay = NAN}}};
    static const char *const names[] = {"a.bias", "a.weight", "b.bias", "b.weight"};
    for (int groups = 1; groups <= 2; groups++) {
        struct fixture f;
        sgd.group_count = groups;
        named = names;
        open_fixture(&f, 4, DT_F32, "cpu", &sgd, 0.1, MATRICES_DECAY);
        named = NULL;
        assert_int_equal(optimizer_check_names(&f.job, &f.chain, &err), 0);
        float *w = weights_of(&f);
        for (int i = 0; i < 4; i++) {
            w[f.tensors[i].offset] = 1;
        }
        const double one = 1;
        optimizer_step(&f.optimizer, 0.1, &one, NULL);
        assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
        const double rate = groups == 2 ? 0.05 : 0.1, want[] = {1 - 0.2 * 0.5, 1 - 0.2 * 0.5, 1, 1 - rate * 0.1};
        for (int i = 0; i < 4; i++) {
            assert_float_equal(w[f.tensors[i].offset], want[i], 1e-6);
        }
        struct dt_text out;
        dt_text_init(&out);
        optimizer_print_groups(&f.optimizer, &out);
        assert_non_null(strstr(out.data, "\ngroups     a.*: 2 tensors, 22 parameters, rate x 2, decay 0.5\n"));
        assert_non_null(strstr(out.data, groups == 2 ? "*: 2 tensors, 22 parameters, rate x 0.5, decay 0.1 of matrices"
                                                     : "the rest: 2 tensors, 22 parameters, rate x 1, decay 0.1 of"));
        dt_text_clear(&out);
        f.job.optimizer.groups[0].params = (struct dt_strings){2, (const char *const[]){"a.*", "b.weights"}};
        assert_int_equal(optimizer_check_names(&f.job, &f.chain, &err), -1);
        assert_non_null(
            strstr(err.text, "b.weights: no tensor that is trained has such a name; the nearest is b.weight;"));
        close_fixture(&f);
    }
}

/* What the plan counts: the states of the row, and none where its numbers leave it without. */
static void test_states_are_planned(void **state)
{
    (void)state;
    static const struct {
        struct job_optimizer optimizer;
        int states;
    } cases[] = {{{.name = "adamw"}, 2},
                 {{.name = "adam"}, 2},
                 {{.name = "adagrad"}, 1},
                 {{.name = "sgd"}, 0},
                 {{.name = "sgd", .numbers = {.momentum = 0.5}}, 1},
                 {{.name = "lion"}, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int half = 0; half < 2; half++) {
            struct fixture f;
            open_typed(&f, 4, DT_F32, half ? DT_BF16 : DT_F32, "cpu", &cases[i].optimizer, 0.1, MATRICES_DECAY);
            assert_int_equal(f.plan.bytes[PLAN_OPTIMIZER], cases[i].states * 4 * 64 * (half ? 2 : 4));
            close_fixture(&f);
        }
    }
}

/* A group without tensors takes no part: whichever it is, the others are updated. */
static void test_empty_group(void **state)
{
    (void)state;
    static const struct job_optimizer sgd = {.name = "sgd"};
    static const int decays[] = {ALL_DECAY, NONE_DECAYS};
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        open_fixture(&f, 4, DT_F32, "cpu", &sgd, 0.5, decays[i]);
        assert_int_equal(f.optimizer.range_count, 1);
        float *w = weights_of(&f), *g = grads_of(&f);
        w[0] = g[0] = w[f.tensors[3].offset + 14] = 2;
        double one = 1;
        optimizer_step(&f.optimizer, 0.1, &one, NULL);
        assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
        assert_float_equal(w[0], decays[i] ? 1.7f : 1.8f, 1e-6);
        assert_float_equal(w[f.tensors[3].offset + 14], decays[i] ? 1.9f : 2.0f, 1e-6);
        close_fixture(&f);
    }
}

/* Weights and state stay as they are where the flag in device memory says so, and go on after it as if
 * the step had not been. */
static void test_skip(void **state)
{
    (void)state;
    static const struct job_optimizer all[] = {
        {.name = "adamw", .numbers = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}},
        {.name = "sgd", .numbers = {.momentum = 0.9}},
    };
    for (int i = 0; i < 4; i++) {
        float after[2];
        for (int skips = 0; skips < 2; skips++) {
            struct fixture f;
            open_fixture(&f, 4, DT_F32, i < 2 ? "cpu" : "twin32", &all[i % 2], 0.1, MATRICES_DECAY);
            float *w = weights_of(&f), *g = grads_of(&f);
            const double one = 1;
            const int32_t go = 0, skip = 1;
            w[0] = 2;
            for (int step = 0; step < 3; step++) {
                g[0] = (float)step + 0.5F;
                optimizer_step(&f.optimizer, 0.1, &one, &go);
                if (skips) {
                    assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
                    g[0] = NAN;
                    optimizer_step(&f.optimizer, 0.1, &one, &skip);
                    f.optimizer.steps--;
                }
                assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
            }
            after[skips] = w[0];
            close_fixture(&f);
        }
        assert_true(after[0] == after[1] && after[0] < 2);
    }
}

/* All tensors are frozen: there is nothing to update, and no state. */
static void test_nothing_is_trained(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 0, DT_F32, "cpu", &(struct job_optimizer){.name = "adamw"}, 0.5, ALL_DECAY);
    double one = 1;
    optimizer_step(&f.optimizer, 0.1, &one, NULL);
    assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
    assert_true(f.optimizer.range_count == 0 && f.optimizer.steps == 1 && f.plan.bytes[PLAN_OPTIMIZER] == 0);
    close_fixture(&f);
}

static const struct job_optimizer adamw = {.name = "adamw", .numbers = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}};

/* Only what decays shrinks when the gradient is zero. */
static void test_decay_ranges(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 4, DT_F32, "cpu", &adamw, 0.5, MATRICES_DECAY);
    assert_int_equal(f.optimizer.range_count, 4);
    float *w = weights_of(&f);
    for (int i = 0; i < 4; i++) {
        for (int64_t e = 0; e < f.tensors[i].numel; e++) {
            w[f.tensors[i].offset + e] = 2;
        }
    }
    double one = 1;
    optimizer_step(&f.optimizer, 0.1, &one, NULL);
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
    double one = 1;
    for (int steps = 1; steps <= 20; steps += 19) {
        size_t bytes[2];
        for (int half = 0; half < 2; half++) {
            struct fixture f;
            open_typed(&f, 4, DT_F32, half ? DT_BF16 : DT_F32, "cpu", &adamw, 0.1, MATRICES_DECAY);
            float *w = weights_of(&f), *g = grads_of(&f);
            for (int step = 0; step < steps; step++) {
                for (int i = 0; i < 4; i++) {
                    for (int64_t e = 0; e < f.tensors[i].numel; e++) {
                        g[f.tensors[i].offset + e] = (float)(1 + 0.5 * sin((double)(7 * step + 3 * i) + (double)e));
                    }
                }
                optimizer_step(&f.optimizer, 0.01, &one, NULL);
                assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
            }
            memcpy(after[half], w, sizeof after[half]);
            bytes[half] = f.plan.bytes[PLAN_OPTIMIZER];
            for (int64_t e = f.tensors[0].numel; half && e < 64; e++) {
                assert_true(*(uint16_t *)state_of(&f, 0, e) == 0 && *(uint16_t *)state_of(&f, 1, e) == 0 && w[e] == 0);
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

static void start_step(struct step_sums *c, const struct step_sums_input *in)
{
    step_sums_begin(c);
    step_sums_add(c, (struct unit_range){0, 1});
    (void)step_sums_start(c, in);
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
    open_fixture(&f, 4, DT_F32, "cpu", &adamw, 0, MATRICES_DECAY);
    void *g = grads_of(&f);
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
        start_step(&f.step_sums, &(struct step_sums_input){.loss_sum = &loss,
                                                           .valid_count = &valid,
                                                           .micro_steps = 1,
                                                           .max_norm = item(row, "max_norm")->valuedouble,
                                                           .normalization = LOSS_LOCAL_MEAN});
        assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
        const struct step_sums_result *r = step_sums_read(&f.step_sums, f.step_sums.turn);
        double total = item(row, "total")->valuedouble;
        assert_true(fabs(r->grad_norm - total) <= 2e-6 * total);
        assert_true(r->loss == 1.5 && r->valid_count == 2 && r->bad_rank == -1 && r->norm_finite && r->votes == 0);
        for (int e = 0; e < 7; e++) {
            double want = cJSON_GetArrayItem(item(row, "first"), e)->valuedouble;
            assert_true(fabs(get(&f, g, 0, e) * *f.step_sums.factor - want) <= 2e-6 * fabs(want));
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
    open_fixture(&f, 2, DT_F32, "cpu", &adamw, 0, MATRICES_DECAY);
    double loss[3] = {6, 0, 5};
    int64_t valid[3] = {3, 0, 10};
    struct step_sums_input in = {
        .loss_sum = loss, .valid_count = valid, .micro_steps = 3, .normalization = LOSS_LOCAL_MEAN, .votes = VOTE_STOP};
    start_step(&f.step_sums, &in);
    assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
    assert_float_equal(step_sums_read(&f.step_sums, f.step_sums.turn)->loss, 2.5 / 3, 1e-15);
    assert_float_equal(*f.step_sums.factor, 1.0 / 3, 1e-15);
    assert_int_equal(step_sums_read(&f.step_sums, f.step_sums.turn)->votes, VOTE_STOP);
    in.normalization = LOSS_GLOBAL_TOKENS;
    start_step(&f.step_sums, &in);
    assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
    assert_float_equal(step_sums_read(&f.step_sums, f.step_sums.turn)->loss, 11.0 / 13, 1e-15);
    assert_float_equal(*f.step_sums.factor, 1.0 / 13, 1e-15);
    loss[2] = NAN;
    start_step(&f.step_sums, &in);
    assert_int_equal(dt_stream_finish(f.world.compute, 60, NULL), 0);
    assert_int_equal(step_sums_read(&f.step_sums, f.step_sums.turn)->bad_rank, 0);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_adamw),
                                       cmocka_unit_test(test_sgd),
                                       cmocka_unit_test(test_adam),
                                       cmocka_unit_test(test_adagrad),
                                       cmocka_unit_test(test_lion),
                                       cmocka_unit_test(test_amsgrad),
                                       cmocka_unit_test(test_muon),
                                       cmocka_unit_test(test_muon_states),
                                       cmocka_unit_test(test_uncorrected),
                                       cmocka_unit_test(test_lamb),
                                       cmocka_unit_test(test_clip_by_value),
                                       cmocka_unit_test(test_groups),
                                       cmocka_unit_test(test_states_are_planned),
                                       cmocka_unit_test(test_empty_group),
                                       cmocka_unit_test(test_skip),
                                       cmocka_unit_test(test_nothing_is_trained),
                                       cmocka_unit_test(test_decay_ranges),
                                       cmocka_unit_test(test_bf16_moments),
                                       cmocka_unit_test(test_clip),
                                       cmocka_unit_test(test_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
