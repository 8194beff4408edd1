/* covers: worker/engine/schedules/schedule_torch.c worker/engine/schedules/schedule.c worker/engine/horizon.c */
/* PyTorch's schedules with a length of their own, against torch 2.15; numbers of Hugging Face's that are
 * not defaults; schedules that count epochs. */
#include "worker/engine/horizon.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 12 };
/* rates of an SGD of lr 0.1 in steps 0, 1, ... */
static const struct {
    struct schedule s;
    double rates[STEPS];
} rows[] = {
    {{.type = "cosine_annealing", .numbers = {.T_max = 4, .eta_min = 0.01}},
     {0.1, 0.0868198051533946, 0.055, 0.0231801948466054, 0.01, 0.0231801948466054, 0.055, 0.0868198051533947, 0.1,
      0.0868198051533946, 0.055, 0.0231801948466054}},
    {{.type = "cosine_warm_restarts", .numbers = {.T_0 = 2, .T_mult = 2, .eta_min = 0.01}},
     {0.1, 0.055, 0.1, 0.0868198051533946, 0.055, 0.0231801948466054, 0.1, 0.0965745789630079, 0.0868198051533946,
      0.072220754456429, 0.055, 0.037779245543571}},
    {{.type = "cosine_warm_restarts", .numbers = {.T_0 = 3, .T_mult = 1}},
     {0.1, 0.075, 0.025, 0.1, 0.075, 0.025, 0.1, 0.075, 0.025, 0.1, 0.075, 0.025}},
    {{.type = "linear_lr", .numbers = {.start_factor = 0.25, .end_factor = 0.75, .total_iters = 4}},
     {0.025, 0.0375, 0.05, 0.0625, 0.075, 0.075, 0.075, 0.075, 0.075, 0.075, 0.075, 0.075}},
    {{.type = "linear_lr", .numbers = {.start_factor = 1.0 / 3, .end_factor = 1, .total_iters = 5}},
     {0.0333333333333333, 0.0466666666666667, 0.06, 0.0733333333333333, 0.0866666666666667, 0.1, 0.1, 0.1, 0.1, 0.1,
      0.1, 0.1}},
    {{.type = "constant_lr", .numbers = {.start_factor = 0.5, .total_iters = 3}},
     {0.05, 0.05, 0.05, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1}},
    {{.type = "polynomial_lr", .lr_power = 2, .numbers = {.total_iters = 6}},
     {0.1, 0.0694444444444445, 0.0444444444444445, 0.025, 0.0111111111111111, 0.00277777777777778, 0, 0, 0, 0, 0, 0}},
};

static void test_torch(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct schedule s = rows[i].s;
        s.learning_rate = 0.1;
        s.total_steps = 7; /* says nothing to them */
        assert_false(schedule_warms_up(s.type));
        assert_false(schedule_has_least(s.type));
        for (int step = 0; step < STEPS; step++) {
            double rate = schedule_rate(&s, step);
            if (fabs(rate - rows[i].rates[step]) > 2e-16) {
                fail_msg("%s: step %d: %.17g, not %.17g", s.type, step, rate, rows[i].rates[step]);
            }
        }
    }
}

/* timescale and num_decay_steps, by the formulas of get_inverse_sqrt_schedule and get_wsd_schedule. */
static void test_hugging_face(void **state)
{
    (void)state;
    struct schedule root = {
        .type = "inverse_sqrt", .learning_rate = 1, .warmup_steps = 4, .total_steps = 40, .numbers.timescale = 12};
    for (int step = 0; step < 40; step++) {
        double rate = step < 4 ? step / 4.0 : 1 / sqrt((step + 12 - 4) / 12.0);
        assert_true(fabs(schedule_rate(&root, step) - rate) <= 1e-15);
    }
    struct schedule stable = {.type = "warmup_stable_decay_linear",
                              .learning_rate = 1,
                              .warmup_steps = 2,
                              .total_steps = 20,
                              .decay_ratio = 0.9,
                              .numbers.num_decay_steps = 5};
    for (int step = 0; step < 22; step++) {
        double rate = step < 2 ? step / 2.0 : step < 15 ? 1 : step < 20 ? 1 - (step - 15) / 5.0 : 0;
        assert_true(fabs(schedule_rate(&stable, step) - rate) <= 1e-15);
    }
}

/* 10 samples in batches of 4: 3 steps an epoch, the last of them with fewer samples. */
static void test_epochs(void **state)
{
    (void)state;
    const struct batch_split now = {1, 4};
    struct job_training j = {.max_steps = -1,
                             .num_epochs = 4,
                             .lr_scheduler_type = "step",
                             .learning_rate = 8,
                             .warmup_steps = 0,
                             .scheduler = {.interval = INTERVAL_EPOCH, .gamma = 0.5, .step_size = 1}};
    struct horizon h = {.of.micro_batch = 0};
    horizon_begin(&h, &j, &now, 0, 10, 0, 0);
    struct schedule s = horizon_schedule(&h, &j);
    assert_int_equal(s.total_steps, 4);
    for (int step = 0; step < 12; step++) {
        assert_true(horizon_rate(&h, &s, (int64_t)step * 4) == 8 * pow(0.5, step / 3));
    }
    j.lr_scheduler_type = "cosine"; /* the run's epochs are its length */
    s = horizon_schedule(&h, &j);
    assert_true(fabs(horizon_rate(&h, &s, 4 * 8) - 4) <= 1e-15); /* step 8, epoch 2 */
    j.max_steps = 7;                                             /* the third epoch counts as a whole one */
    horizon_begin(&h, &j, &now, 0, 10, 0, 0);
    s = horizon_schedule(&h, &j);
    assert_int_equal(s.total_steps, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_torch), cmocka_unit_test(test_hugging_face),
                                       cmocka_unit_test(test_epochs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
