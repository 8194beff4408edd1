/* covers: worker/engine/schedules/schedule.c worker/engine/schedules/schedule_cycles.c worker/engine/schedules/plateau.c worker/engine/horizon.c worker/job/job_scheduler.c */
/* Learning rates against Hugging Face's functions, PyTorch's and DeepSpeed's schedulers. */
#include "base/file.h"
#include "base/text.h"
#include "worker/engine/schedules/plateau.h"
#include "worker/engine/schedules/schedule.h"
#include "worker/job/job_fields.h"
#include "worker/run/trainer.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double number(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key)->valuedouble;
}

static const struct {
    const char *golden, *ours;
} names[] = {
    {"hf.linear_with_warmup", "linear"},
    {"hf.cosine_with_warmup", "cosine"},
    {"hf.constant_with_warmup", "constant_with_warmup"},
    {"hf.cosine_with_min_lr", "cosine"},
    {"hf.cosine_with_hard_restarts", "cosine_with_restarts"},
    {"hf.polynomial_decay", "polynomial"},
    {"hf.inverse_sqrt", "inverse_sqrt"},
    {"hf.warmup_stable_decay", "warmup_stable_decay_linear"},
    {"torch.CosineAnnealingLR", "cosine_annealing"},
    {"torch.PolynomialLR", "polynomial_lr"},
    {"torch.StepLR", "step"},
    {"torch.MultiStepLR", "multi_step"},
    {"torch.ExponentialLR", "exponential"},
    {"torch.OneCycleLR", "one_cycle"},
    {"torch.ReduceLROnPlateau", "reduce_lr_on_plateau"},
    {"deepspeed.WarmupLR", "warmuplr"},
    {"deepspeed.WarmupDecayLR", "warmupdecaylr"},
    {"deepspeed.WarmupCosineLR", "warmupcosinelr"},
    {"deepspeed.LRRangeTest", "lrrangetest"},
    {"deepspeed.OneCycle", "onecycle"},
};

/* Other systems' names of numbers that are not in the section `scheduler` by their own name. */
static void use_number(struct schedule *s, const cJSON *a, double base_rate)
{
    const char *name = a->string;
    double value = a->valuedouble;
    if (strcmp(name, "num_warmup_steps") == 0 || strcmp(name, "warmup_num_steps") == 0) {
        s->warmup_steps = (int64_t)value;
    } else if (strcmp(name, "num_training_steps") == 0 || strcmp(name, "total_num_steps") == 0 ||
               strcmp(name, "total_steps") == 0) {
        s->total_steps = (int64_t)value;
    } else if (strcmp(name, "warmup_max_lr") == 0 || strcmp(name, "max_lr") == 0) {
        s->learning_rate = value;
    } else if (strcmp(name, "min_lr_rate") == 0 || strcmp(name, "min_lr_ratio") == 0 ||
               strcmp(name, "cos_min_ratio") == 0) {
        s->min_lr_ratio = value;
    } else if (strcmp(name, "lr_end") == 0) {
        s->min_lr_ratio = value / base_rate;
    } else if (strcmp(name, "power") == 0) {
        s->lr_power = value;
    } else if (strcmp(name, "warmup_type") != 0 && strcmp(name, "decay_type") != 0) {
        fail_msg("%s: unknown", name);
    }
}

/* The numbers of a recorded row: those of the section `scheduler` by the table of the job's keys. */
static struct schedule schedule_of(const char *ours, const cJSON *row, struct dt_arena *arena)
{
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(row, "args"),
                *type = cJSON_GetObjectItemCaseSensitive(args, "warmup_type");
    double base_rate = number(row, "base_lr");
    struct schedule s = {.type = ours, .learning_rate = base_rate, .lr_power = 1, .plateau = 1};
    if (strcmp(ours, "warmupcosinelr") == 0) {
        s.min_lr_ratio = 0.0001; /* DeepSpeed's default, which its dialect says */
    }
    if (cJSON_IsString(type) && strcmp(type->valuestring, "linear") == 0) {
        s.type = dt_arena_printf(arena, "%s_linear", ours);
    }
    cJSON *section = cJSON_CreateObject(), *job = cJSON_CreateObject();
    cJSON_AddItemToObject(job, "scheduler", section);
    for (const cJSON *a = args->child; a != NULL; a = a->next) {
        const struct dt_field *f = job_scheduler_fields;
        while (f->key != NULL && strcmp(f->key, a->string) != 0) {
            f++;
        }
        if (f->key != NULL) {
            cJSON_AddItemToObject(section, a->string, cJSON_Duplicate(a, true));
        } else {
            use_number(&s, a, base_rate);
        }
    }
    char *text = cJSON_PrintUnformatted(job);
    struct dt_config *c;
    struct dt_error err;
    assert_int_equal(dt_config_open_text(&c, "row", text, strlen(text), arena, &err), 0);
    assert_int_equal(dt_config_read(c, "scheduler", job_scheduler_fields, &s.numbers), 0);
    assert_int_equal(dt_config_close(c, NULL, &err), 0);
    cJSON_free(text);
    cJSON_Delete(job);
    return s;
}

static void check_value(const char *name, const char *what, int64_t step, double got, const cJSON *wanted)
{
    if (!(fabs(got - wanted->valuedouble) <= 1e-9 * fabs(wanted->valuedouble) + 1e-15)) {
        fail_msg("%s, %s of step %lld: %.12g, wanted %.12g", name, what, (long long)step, got, wanted->valuedouble);
    }
}

static int check_row(const cJSON *row)
{
    const char *name = cJSON_GetObjectItemCaseSensitive(row, "name")->valuestring, *ours = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ours = strcmp(names[i].golden, name) == 0 ? names[i].ours : ours;
    }
    if (!ours) {
        return 0;
    }
    struct dt_arena arena;
    dt_arena_init(&arena);
    struct schedule s = schedule_of(ours, row, &arena);
    struct dt_error err;
    assert_int_equal(schedule_check(&s, &err), 0);
    const cJSON *metric = cJSON_GetObjectItemCaseSensitive(row, "metric"),
                *momentum = cJSON_GetObjectItemCaseSensitive(row, "momentum"), *lr;
    struct plateau p = {0};
    int64_t step = 0;
    assert_int_equal(momentum != NULL, schedule_moves_momentum(&s));
    cJSON_ArrayForEach(lr, cJSON_GetObjectItemCaseSensitive(row, "lr"))
    {
        /* beyond the end PyTorch's and Hugging Face's waves come back up */
        if (s.total_steps > 0 && step > s.total_steps - (strcmp(ours, "one_cycle") == 0)) {
            break;
        }
        check_value(name, "rate", step, schedule_rate(&s, step), lr);
        if (momentum != NULL) {
            double beta2 = 0;
            check_value(name, "momentum", step, schedule_momentum_at(&s, (double)step, &beta2),
                        cJSON_GetArrayItem(momentum, (int)step));
            assert_true(beta2 == (strcmp(ours, "onecycle") == 0 ? 0.99 : 0));
        }
        if (metric != NULL) {
            plateau_check(&p, &s, step + 1, cJSON_GetArrayItem(metric, (int)step)->valuedouble);
            s.plateau = plateau_share(&p);
        }
        step++;
    }
    dt_arena_clear(&arena);
    return 1;
}

static void test_golden(void **state)
{
    (void)state;
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    assert_int_equal(dt_file_read("tests/golden/numbers/schedules.json", 1 << 20, &text, &err), 0);
    cJSON *root = cJSON_Parse(text.data);
    assert_non_null(root);
    const cJSON *row;
    int count = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(root, "rows"))
    {
        count += check_row(row);
    }
    assert_int_equal(count, 48);
    cJSON_Delete(root);
    dt_text_clear(&text);
}

static void test_ends(void **state)
{
    (void)state;
    struct schedule s = {
        .type = "linear", .learning_rate = 2, .min_lr_ratio = 0.25, .warmup_steps = 4, .total_steps = 12};
    assert_float_equal(schedule_rate(&s, 0), 0, 0);
    assert_float_equal(schedule_rate(&s, 2), 1, 1e-15);
    assert_float_equal(schedule_rate(&s, 4), 2, 1e-15);
    assert_float_equal(schedule_rate(&s, 8), 1.25, 1e-15);
    assert_float_equal(schedule_rate(&s, 12), 0.5, 1e-15);
    s.type = "constant";
    assert_float_equal(schedule_rate(&s, 0), 2, 0);
    s.type = "cosine"; /* what is done beyond the end, another split of the batch may leave there */
    assert_float_equal(schedule_rate_at(&s, 13.5), 0.5, 1e-15);
}

/* Cases that the recorded rows lack: the other shapes of the last decay, its ends, no warm-up. */
static void test_shapes(void **state)
{
    (void)state;
    struct schedule s = {.type = "warmup_stable_decay",
                         .learning_rate = 2,
                         .min_lr_ratio = 0.25,
                         .decay_ratio = 0.5,
                         .warmup_steps = 4,
                         .total_steps = 16};
    assert_true(fabs(schedule_rate(&s, 0) - 0.5) <= 1e-15); /* begins where it ends */
    assert_true(fabs(schedule_rate(&s, 2) - 1.25) <= 1e-15);
    assert_true(fabs(schedule_rate(&s, 8) - 2) <= 1e-15);
    assert_true(fabs(schedule_rate(&s, 10) - (2 * (0.25 + 0.75 * 0.5 * (1 + cos(acos(-1) / 4))))) <= 1e-15);
    assert_true(fabs(schedule_rate(&s, 12) - 1.25) <= 1e-15);
    assert_true(fabs(schedule_rate_at(&s, 17.5) - 0.5) <= 1e-15);
    s.decay_ratio = 1; /* the warm-up comes first */
    assert_true(fabs(schedule_rate(&s, 4) - 2) <= 1e-15);
    assert_true(fabs(schedule_rate(&s, 10) - 1.25) <= 1e-15);
    s.decay_ratio = 0;
    assert_true(fabs(schedule_rate(&s, 15) - 2) <= 1e-15);
    s.type = "warmup_stable_decay_linear";
    assert_true(fabs(schedule_rate_at(&s, 17.5) - 0.5) <= 1e-15);
    struct schedule root = {.type = "inverse_sqrt", .learning_rate = 1}; /* 10000 is Hugging Face's scale */
    assert_true(fabs(schedule_rate(&root, 0) - 1) <= 1e-15);
    assert_true(fabs(schedule_rate(&root, 30000) - 0.5) <= 1e-15);
    struct schedule p = {.type = "polynomial", .learning_rate = 1, .lr_power = 0.5, .total_steps = 16};
    assert_true(fabs(schedule_rate(&p, 12) - 0.5) <= 1e-15);
    assert_true(fabs(schedule_rate_at(&p, 17.5) - 0) <= 1e-15);
}

/* Every schedule is where its samples are, whatever the batch that did them. */
static void test_another_batch(void **state)
{
    (void)state;
    static const char *const types[] = {"inverse_sqrt",
                                        "polynomial",
                                        "warmup_stable_decay",
                                        "warmup_stable_decay_linear",
                                        "cosine_with_restarts",
                                        "step",
                                        "exponential",
                                        "multi_step",
                                        "one_cycle",
                                        "onecycle",
                                        "lrrangetest",
                                        "warmuplr"};
    const struct batch_split first = {8, 2}, now = {2, 2};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct job_training j = {.max_steps = 100,
                                 .lr_scheduler_type = types[i],
                                 .learning_rate = 1,
                                 .lr_power = 2,
                                 .decay_ratio = 0.25,
                                 .scheduler = {.gamma = 0.5,
                                               .step_size = 15,
                                               .milestones = {2, {20, 80}},
                                               .num_cycles = 3,
                                               .pct_start = 0.3,
                                               .div_factor = 25,
                                               .final_div_factor = 100,
                                               .cycle_momentum = true,
                                               .cycle_min_lr = 0.1,
                                               .cycle_max_lr = -1,
                                               .cycle_first_step_size = 20,
                                               .cycle_second_step_size = 30,
                                               .decay_lr_rate = 1,
                                               .decay_step_size = 10,
                                               .lr_range_test_min_lr = 0.01,
                                               .lr_range_test_step_rate = 2,
                                               .lr_range_test_step_size = 7},
                                 .warmup_steps = 10};
        struct horizon h = {.of.micro_batch = 0};
        horizon_begin(&h, &j, &first, 0, 1000, 0, 0);
        struct schedule before = horizon_schedule(&h, &j);
        for (int64_t step = 1; step <= 100; step++) {
            h.samples = step * 16;
            struct horizon fewer = h;
            horizon_begin(&fewer, &j, &now, step, 1000, 0, 0);
            struct schedule after = horizon_schedule(&fewer, &j);
            assert_true(horizon_rate(&fewer, &after, h.samples) == schedule_rate(&before, step));
        }
        double between = horizon_rate(&h, &before, 95 * 16 + 4), a = schedule_rate(&before, 95),
               b = schedule_rate(&before, 96);
        assert_true(between <= fmax(a, b) && between >= fmin(a, b));
    }
}

/* An evaluation that was judged before its checkpoint was saved is not judged again. */
static void test_plateau(void **state)
{
    (void)state;
    struct schedule s = {.learning_rate = 1, .numbers = {.factor = 0.5, .patience = 1, .min_lr = 0.2}};
    struct plateau p = {0};
    assert_float_equal(plateau_share(&p), 1, 0);
    plateau_check(&p, &s, 10, NAN); /* worse than anything */
    assert_int_equal(p.bad, 1);
    plateau_check(&p, &s, 20, 3);
    assert_int_equal(p.bad, 0);
    for (int i = 0; i < 3; i++) {
        plateau_check(&p, &s, 30, 3);
    }
    assert_int_equal(p.bad, 1);
    plateau_check(&p, &s, 40, NAN);
    assert_float_equal(plateau_share(&p), 0.5, 0);
    for (int i = 5; i < 20; i++) {
        plateau_check(&p, &s, 10 * i, 3);
    }
    assert_true(fabs(plateau_share(&p) - 0.2) <= 1e-15);
}

/* A run that ends in its warm-up goes on with it, and says how far it gets. */
static void test_ends_in_warmup(void **state)
{
    (void)state;
    struct schedule s = {.type = "linear", .learning_rate = 1, .warmup_steps = 100, .total_steps = 51};
    struct dt_text out;
    dt_text_init(&out);
    assert_true(schedule_ends_in_warmup(&s, &out));
    assert_string_equal(out.data,
                        "the warm-up of 100 steps is longer than the run of 51: the learning rate gets to 0.5");
    dt_text_reset(&out);
    s.warmup_steps = s.total_steps;
    assert_false(schedule_ends_in_warmup(&s, &out));
    s = (struct schedule){.type = "constant", .learning_rate = 1, .warmup_steps = 100, .total_steps = 51};
    assert_false(schedule_ends_in_warmup(&s, &out));
    assert_int_equal(out.size, 0);
    dt_text_clear(&out);
}

static void test_unknown(void **state)
{
    (void)state;
    struct dt_error err;
    struct schedule s = {.type = "cosin"};
    assert_int_equal(schedule_check(&s, &err), -1);
    assert_string_equal(err.text, "training.lr_scheduler_type: cosin: unknown schedule; did you mean cosine");
}

/* Steps from (epoch, position) to the end, epoch by epoch: what the closed form must give. */
static int64_t steps_by_epoch(const struct trainer *t, int64_t per_micro, int64_t whole, int64_t part)
{
    int64_t k = t->micro_steps, steps = t->run.step;
    for (int64_t e = t->run.epoch; e <= whole; e++) {
        int64_t begin = e == t->run.epoch ? t->run.position : 0, end = e < whole ? t->feeds.train.sample_count : part;
        int64_t micro = end > begin ? (end - begin) / per_micro : 0;
        steps += t->job->training.partial_accumulation == PARTIAL_STEP ? (micro + k - 1) / k : micro / k;
    }
    return steps;
}

static void test_steps_of_epochs(void **state)
{
    (void)state;
    static const double epochs[] = {0.01, 0.25, 0.3, 1, 2.5, 3, 3.99, 7};
    static const enum partial_accumulation partial[] = {PARTIAL_STEP, PARTIAL_DROP};
    struct job job = {.training = {.max_steps = -1, .batch_size_per_gpu = 3}};
    struct trainer t = {.job = &job, .size = 2, .micro_steps = 2, .feeds.train = {.sample_count = 100}};
    for (size_t i = 0; i < sizeof epochs / sizeof epochs[0]; i++) {
        for (size_t k = 0; k < 2; k++) {
            for (int64_t at = 0; at <= 300; at += 7) {
                int64_t whole = (int64_t)epochs[i];
                int64_t more = (int64_t)(ceil(epochs[i] * 8) - 8 * floor(epochs[i])); /* of 8 steps of 12 samples */
                job.training.num_epochs = epochs[i];
                job.training.partial_accumulation = partial[k];
                t.run.epoch = at / 100;
                t.run.position = at % 100;
                t.run.step = at / 12;
                trainer_count(&t);
                assert_int_equal(t.run.total_steps, steps_by_epoch(&t, 6, whole, 12 * more < 100 ? 12 * more : 100));
            }
        }
    }
    job.training.num_epochs = 1e6; /* the most a job may ask for, on the most data: no loop, no
                                    * overflow */
    t.feeds.train.sample_count = INT64_C(1) << 42;
    t.run.epoch = t.run.position = t.run.step = 0;
    for (size_t k = 0; k < 2; k++) {
        job.training.partial_accumulation = partial[k];
        trainer_count(&t);
        assert_true(t.run.total_steps / 1000000 == ((INT64_C(1) << 42) / 6 + (k == 0)) / 2);
    }
}

/* A run of 100 steps of 12 samples that goes on in other batches: steps that are left, whole
 * ones; none once its samples are done. Another max_steps is of the steps as they are now. */
static void test_steps_of_samples(void **state)
{
    (void)state;
    static const struct {
        int64_t samples, step, micro_batch, micro_steps, max_steps, left;
    } cases[] = {{0, 0, 6, 2, 100, 100},     {600, 50, 12, 1, 100, 50}, {600, 50, 3, 2, 100, 100},
                 {600, 50, 5, 1, 100, 120},  {600, 50, 7, 1, 100, 86},  {1199, 60, 99, 9, 100, 1},
                 {1200, 99, 1, 1, 100, 0},   {5000, 20, 1, 1, 100, 0},  {600, 50, 3, 2, 110, 60},
                 {1200, 150, 3, 2, 170, 20}, {600, 50, 3, 2, 50, 0},    {600, 50, 3, 2, 40, 0},
                 {1000, 150, 3, 2, 120, 74}}; /* 20 more of the first batch: 120 lies behind, but
                                               * 1200 samples do not */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job_training j = {.max_steps = 100};
        const struct batch_split first = {6, 2}, now = {cases[i].micro_batch, cases[i].micro_steps};
        struct horizon h = {.of.micro_batch = 0};
        horizon_begin(&h, &j, &first, 0, 1000, 0, 0);
        assert_int_equal(horizon_schedule(&h, &j).total_steps, 100);
        h.samples = cases[i].samples;
        j.max_steps = cases[i].max_steps;
        horizon_begin(&h, &j, &now, cases[i].step, 1000, 0, 0);
        assert_int_equal(horizon_left(&h, &j, &now, 0, 600), cases[i].left);
        assert_int_equal(horizon_after(&h, &j, h.samples, &now, 0, 0, false),
                         h.samples + now.micro_batch * now.micro_steps);
    }
    /* the most that a job may ask for */
    const struct batch_split most = {INT64_C(65536) << 20, 65536};
    struct job_training j = {.max_steps = INT64_C(1000000000000)};
    struct horizon h = {.of.micro_batch = 0};
    horizon_begin(&h, &j, &most, 0, INT64_C(1) << 42, 0, 0);
    assert_true(horizon_left(&h, &j, &most, 0, 0) > 0);
}

/* In the middle of ten epochs of 927 samples whose last steps were short: half of the run is
 * done by any rule for what an epoch leaves over. */
static void test_another_rule_for_leftovers(void **state)
{
    (void)state;
    static const enum partial_accumulation rules[] = {PARTIAL_STEP, PARTIAL_CARRY, PARTIAL_DROP};
    const struct batch_split of = {8, 100};
    for (int a = 0; a < 3; a++) {
        for (int b = 0; b < 3; b++) {
            struct job_training was = {.max_steps = -1, .num_epochs = 10, .partial_accumulation = rules[a]}, is = was;
            is.partial_accumulation = rules[b];
            struct horizon h = horizon_guess(&was, &of, 927, 0, 0, 0);
            h.samples = -horizon_base(&h, &was, &of, 5, 0); /* what it is at the beginning of
                                                             * epoch 5 */
            int64_t end = horizon_schedule(&h, &is).total_steps * 800;
            horizon_count_anew(&h, &was, &is, &of, 5, 0);
            /* the end of a carried run is whole steps */
            assert_in_range(h.samples * 2, end - 1600, end + 1600);
            assert_false(horizon_is_done(&h, &is));
            assert_int_equal(horizon_left(&h, &is, &of, 5, 0), horizon_epoch_steps(&is, 927, &of, 5, 0));
            h.samples = horizon_schedule(&h, &was).total_steps * 800;
            horizon_count_anew(&h, &was, &is, &of, 10, 0); /* what is done stays done */
            assert_true(horizon_is_done(&h, &is));
        }
    }
}

/* A place in the data. */
struct spot {
    int64_t epoch, position;
};

/* The next step from there, as the loader takes its samples. */
static struct spot take_step(const struct job_training *j, int64_t rows, int64_t micro, struct spot at)
{
    int64_t room = (rows - at.position) / micro;
    if (room <= 0 || (room < job_accumulation(j, at.epoch) && j->partial_accumulation == PARTIAL_DROP)) {
        at = (struct spot){at.epoch + 1, 0};
        room = rows / micro;
    }
    int64_t k = job_accumulation(j, at.epoch);
    at.position += (room < k ? room : k) * micro;
    return at;
}

/* An accumulation that changes over epochs, taken step by step: the steps that are left are counted
 * right at each of them, the run ends there, and its rates reach their last value. */
static void test_accumulation_schedule(void **state)
{
    (void)state;
    static const enum partial_accumulation rules[] = {PARTIAL_STEP, PARTIAL_DROP};
    static const struct dt_integers schedules[] = {{4, {0, 1, 2, 3}}, {6, {0, 4, 1, 2, 5, 7}}, {2, {0, 3}}};
    for (int i = 0; i < 12; i++) {
        struct job_training j = {.max_steps = i % 2 == 0 ? -1 : 41,
                                 .num_epochs = i % 2 == 0 ? 6 : 0,
                                 .lr_scheduler_type = "linear",
                                 .learning_rate = 1,
                                 .partial_accumulation = rules[i / 2 % 2],
                                 .accumulation_schedule = schedules[i / 4]};
        const struct batch_split now = {6, 9}; /* split for an epoch by the schedule */
        struct spot at = {0, 0};
        struct horizon h = {.of.micro_batch = 0};
        horizon_begin(&h, &j, &now, 0, 100, 0, 0);
        assert_int_equal(h.of.micro_steps, schedules[i / 4].of[1]);
        int64_t total = horizon_left(&h, &j, &now, 0, 0), samples = -1;
        assert_true(i % 2 == 0 || total == 41);
        struct schedule rates = horizon_schedule(&h, &j);
        for (int64_t step = 0; step < total; step++) {
            assert_int_equal(horizon_left(&h, &j, &now, at.epoch, at.position), total - step);
            assert_true(h.samples > samples);
            samples = h.samples;
            at = take_step(&j, 100, 6, at);
            h.samples = horizon_after(&h, &j, h.samples, &now, at.epoch, at.position, step + 1 == total);
            assert_int_equal(horizon_is_done(&h, &j), step + 1 == total);
        }
        assert_true(i % 2 == 1 || (at.epoch == 5 && at.position > 70));
        /* 41 steps of several batches need be no whole number of the first */
        assert_true(horizon_rate(&h, &rates, h.samples) < 1.0 / (double)rates.total_steps);
    }
}

/* In the middle of such a run other ranks go on: it ends with the same samples, and the rate stays. */
static void test_accumulation_on_other_ranks(void **state)
{
    (void)state;
    for (int by_epochs = 0; by_epochs < 2; by_epochs++) {
        struct job_training j = {.max_steps = by_epochs ? -1 : 60,
                                 .num_epochs = by_epochs ? 6 : 0,
                                 .lr_scheduler_type = "linear",
                                 .learning_rate = 1,
                                 .accumulation_schedule = {4, {0, 1, 2, 3}}};
        const struct batch_split first = {6, 3}, now = {2, 3};
        struct spot at = {0, 0};
        struct horizon h = {.of.micro_batch = 0};
        horizon_begin(&h, &j, &first, 0, 96, 0, 0);
        struct schedule rates = horizon_schedule(&h, &j);
        for (int step = 0; step < 25; step++) {
            at = take_step(&j, 96, 6, at);
            h.samples = horizon_after(&h, &j, h.samples, &first, at.epoch, at.position, false);
        }
        double before = horizon_rate(&h, &rates, h.samples);
        horizon_begin(&h, &j, &now, 25, 96, at.epoch, at.position);
        struct schedule after = horizon_schedule(&h, &j);
        assert_true(horizon_rate(&h, &after, h.samples) == before);
        int64_t left = horizon_left(&h, &j, &now, at.epoch, at.position);
        for (int64_t step = 0; step < left; step++) {
            assert_false(horizon_is_done(&h, &j));
            at = take_step(&j, 96, 2, at);
            h.samples = horizon_after(&h, &j, h.samples, &now, at.epoch, at.position, step + 1 == left);
        }
        assert_true(horizon_is_done(&h, &j));
    }
}

/* training.max_tokens is a number of samples, whatever a step has of them. */
static void test_samples(void **state)
{
    (void)state;
    struct job_training j = {.max_steps = -1, .max_samples = 1000, .lr_scheduler_type = "linear", .learning_rate = 1};
    const struct batch_split first = {8, 2}, now = {3, 1};
    struct horizon h = {.of.micro_batch = 0};
    horizon_begin(&h, &j, &first, 0, 96, 0, 0);
    assert_int_equal(horizon_left(&h, &j, &first, 0, 0), 63); /* 62.5 */
    assert_int_equal(horizon_schedule(&h, &j).total_steps, 63);
    h.samples = horizon_after(&h, &j, h.samples, &first, 0, 16, false);
    assert_int_equal(h.samples, 16);
    horizon_begin(&h, &j, &now, 1, 96, 0, 16);
    assert_int_equal(horizon_left(&h, &j, &now, 0, 16), 328);
    j.max_samples = 16;
    assert_int_equal(horizon_left(&h, &j, &now, 0, 16), 0);
    assert_true(horizon_is_done(&h, &j));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_accumulation_schedule),
                                       cmocka_unit_test(test_accumulation_on_other_ranks),
                                       cmocka_unit_test(test_samples),
                                       cmocka_unit_test(test_another_rule_for_leftovers),
                                       cmocka_unit_test(test_golden),
                                       cmocka_unit_test(test_ends),
                                       cmocka_unit_test(test_shapes),
                                       cmocka_unit_test(test_another_batch),
                                       cmocka_unit_test(test_plateau),
                                       cmocka_unit_test(test_ends_in_warmup),
                                       cmocka_unit_test(test_unknown),
                                       cmocka_unit_test(test_steps_of_epochs),
                                       cmocka_unit_test(test_steps_of_samples)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
