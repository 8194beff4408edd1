/* covers: kernels/meter.c kernels/cost.c */
/* The meter of kernels: it has every row, what it counts in a step of a small model is what
 * arithmetic says, and a step does not notice it. */
#include "kernels/meter.h"

#include "tests/lib/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, CHANNELS = 64, VOCABULARY = 40, POSITIONS = 8, BATCH = 2, MICRO_STEPS = 2, STEPS = 4 };

/* ---- rows ---- */

static void each_row_is_one_of_its_own(void **state)
{
    (void)state;
    typedef void (*row)(void);
    enum { ROWS = (sizeof(struct dt_kernels) - sizeof(char *)) / sizeof(row) };
    static const char *const devices[] = {"cpu", "separate", "twin32", "twin64"};
    assert_int_equal(ROWS, DT_METER_ROWS);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        struct dt_device d;
        struct dt_meter m;
        struct dt_error err;
        row outer[ROWS], inner[ROWS];
        assert_int_equal(dt_device_open(&d, devices[i], NULL, &err), 0);
        dt_meter_open(&m, &d);
        memcpy(outer, (const char *)&m.table + sizeof(char *), sizeof outer);
        memcpy(inner, (const char *)m.inner + sizeof(char *), sizeof inner);
        assert_string_equal(m.table.name, d.kernels->name);
        for (int a = 0; a < ROWS; a++) {
            /* a device may have no optional functions */
            assert_true((outer[a] == NULL) == (inner[a] == NULL));
            assert_true(outer[a] == NULL || outer[a] != inner[a]);
            for (int b = 0; b < a; b++) {
                assert_true(outer[a] == NULL || outer[a] != outer[b]);
                assert_string_not_equal(dt_meter_name(a), dt_meter_name(b));
            }
        }
        dt_meter_close(&m);
        dt_device_close(&d);
    }
}

static void a_row_notes_its_own_call(void **state)
{
    (void)state;
    struct dt_device d;
    struct dt_stream *s;
    struct dt_meter m;
    struct dt_error err;
    float x[64] = {0}, sum = 1;
    assert_int_equal(dt_device_open(&d, "cpu", NULL, &err), 0);
    assert_int_equal(dt_stream_open(&d, 0, &s, &err), 0);
    dt_meter_open(&m, &d);
    dt_meter_begin(&m);
    d.kernels->fill(s, &(struct dt_fill_args){.x = x, .count = 64, .value = 2, .type = DT_F32});
    d.kernels->scale(s, &(struct dt_scale_args){.x = x, .count = 32, .factor = 3, .type = DT_F32});
    dt_meter_end(&m);
    d.kernels->add(s,
                   &(struct dt_add_args){.out = &sum, .a = &sum, .b = x, .count = 1, .type = DT_F32, .b_type = DT_F32});
    assert_int_equal(dt_stream_finish(s, 60, &err), 0);
    assert_true(x[31] == 6 && x[32] == 2 && sum == 7);
    assert_int_equal(m.count, 2);
    assert_string_equal(dt_meter_name(m.calls[0].row), "fill");
    assert_string_equal(dt_meter_name(m.calls[1].row), "scale");
    assert_true(m.calls[0].cost.bytes == 64 * 4 && m.calls[1].cost.bytes == 2 * 32 * 4 && m.calls[0].cost.flops == 0);
    dt_meter_begin(&m);
    dt_meter_end(&m);
    assert_int_equal(m.count, 0);
    dt_meter_close(&m);
    dt_stream_close(s);
    dt_device_close(&d);
}

/* ---- a step ---- */

struct counted { /* of the step that is put in between two results */
    double loss[STEPS], norm[STEPS];
    int step_count;
    bool metered;
    struct dt_meter meter;
    struct dt_cost of[DT_METER_ROWS];
    int64_t calls[DT_METER_ROWS];
    int64_t parameters;
};

static void after_step(struct counted *c, const struct report *r)
{
    c->loss[c->step_count] = r->loss;
    c->norm[c->step_count++] = r->grad_norm;
    c->parameters = r->of->chain.parameter_count;
    if (c->metered && c->step_count == 1) {
        dt_meter_open(&c->meter, r->of->world->device);
        dt_meter_begin(&c->meter);
    } else if (c->metered && c->step_count == 2) {
        dt_meter_end(&c->meter);
    }
}

static void at_end(struct counted *c)
{
    for (int64_t i = 0; i < c->meter.count; i++) {
        const struct dt_metered *call = &c->meter.calls[i];
        c->of[call->row].bytes += call->cost.bytes;
        c->of[call->row].flops += call->cost.flops;
        c->calls[call->row]++;
    }
    dt_meter_close(&c->meter);
}

static void count_report(struct observer *o, const struct report *r, enum moment moment)
{
    if (moment == MOMENT_STEP) {
        after_step(o->state, r);
    } else if (moment == MOMENT_END) {
        at_end(o->state);
    }
}

static void train(const char *device, enum dt_dtype type, enum recompute level, bool metered, struct counted *c)
{
    struct world w;
    struct job job;
    struct dt_error err;
    int exit_code;
    ranks_job(&job);
    ranks_model(&job)->n_embd = CHANNELS;
    job.training.batch_size_per_gpu = BATCH;
    job.training.gradient_accumulation_steps = MICRO_STEPS;
    job.training.max_steps = STEPS;
    job.training.strategy = "single_device";
    job.precision.compute = job.precision.reduce = type;
    job.recompute.enabled = true;
    job.recompute.level = level;
    *c = (struct counted){.metered = metered};
    assert_int_equal(world_open(&w, &(struct world_options){.device = device, .threads = 1}, &err), 0);
    int rc = trainer_run(
        &w, &job,
        &(struct observers_options){.last = &(const struct observer_ops){.name = "meter", .report = count_report},
                                    .context = c,
                                    .quiet = true,
                                    .no_files = true},
        &exit_code, &err);
    world_close(&w);
    dt_arena_clear(&job.arena);
    if (rc != 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(c->step_count, STEPS);
}

static int row_of(const char *name)
{
    for (int i = 0; i < DT_METER_ROWS; i++) {
        if (strcmp(dt_meter_name(i), name) == 0) {
            return i;
        }
    }
    fail_msg("%s: no such row", name);
    return -1;
}

static double flops(const struct counted *c, const char *name)
{
    return c->of[row_of(name)].flops;
}

static double bytes(const struct counted *c, const char *name)
{
    return c->of[row_of(name)].bytes;
}

static int64_t calls(const struct counted *c, const char *name)
{
    return c->calls[row_of(name)];
}

/* Weights that products multiply by: of each layer 3 C C, C C and two of C by 4 C; the embedding
 * as head. */
enum {
    TOKENS = BATCH * POSITIONS * MICRO_STEPS,
    LAYER_WEIGHTS = 12 * CHANNELS * CHANNELS,
    HEAD_WEIGHTS = VOCABULARY * CHANNELS,
    MATMUL_WEIGHTS = LAYERS * LAYER_WEIGHTS + HEAD_WEIGHTS,
    PARAMETERS = MATMUL_WEIGHTS + POSITIONS * CHANNELS + LAYERS * 13 * CHANNELS + 2 * CHANNELS
};

/* Forward is 2 operations per weight and token, backward 4. A pair of positions is 2 C
 * operations per product, and causal attention looks at half of T T pairs: by two products
 * forward, by five backward. */
static void check_arithmetic(const struct counted *c, int again)
{
    double pairs = (double)TOKENS * POSITIONS / 2;
    assert_true(flops(c, "matmul") == 6.0 * MATMUL_WEIGHTS * TOKENS + 2.0 * again * TOKENS * LAYERS);
    assert_true(flops(c, "attention_backward") == pairs * LAYERS * 5 * 2 * CHANNELS);
    assert_int_equal(calls(c, "attention_backward"), LAYERS * MICRO_STEPS);
    assert_int_equal(c->parameters, PARAMETERS);
}

static void a_step_of_fp32(void **state)
{
    (void)state;
    struct counted c;
    train("cpu", DT_F32, RECOMPUTE_CHEAP, true, &c);
    check_arithmetic(&c, 0);
    assert_true(flops(&c, "attention") == (double)TOKENS * POSITIONS / 2 * LAYERS * 2 * 2 * CHANNELS);
    assert_int_equal(calls(&c, "attention"), LAYERS * MICRO_STEPS);
    /* w, m and v read and written, the gradient read. Tensors of multiples of 64 elements lie
     * side by side. */
    assert_int_equal(calls(&c, "adamw_many"), 1);
    assert_true(bytes(&c, "adamw_many") == 28.0 * PARAMETERS);
    /* whole units, with their ends */
    assert_true(bytes(&c, "norm_sum") >= 4.0 * PARAMETERS && bytes(&c, "norm_sum") < 4.1 * PARAMETERS);
    assert_true(bytes(&c, "cross_entropy") == 2.0 * 4 * TOKENS * VOCABULARY);
    /* Forward two norms a layer, in backward the same again; that of the head once. */
    assert_int_equal(calls(&c, "layernorm"), (4 * LAYERS + 1) * MICRO_STEPS);
    assert_int_equal(calls(&c, "layernorm_backward"), (2 * LAYERS + 1) * MICRO_STEPS);
    /* gelu: 4 C in, 4 C out; forward, and again in backward. */
    assert_true(bytes(&c, "activation") == 2.0 * LAYERS * TOKENS * 2 * 4 * CHANNELS * 4);
    assert_true(calls(&c, "sgd_many") == 0 && calls(&c, "sum_slices") == 0);
}

static void a_step_of_bf16(void **state)
{
    (void)state;
    struct counted c;
    train("cpu", DT_BF16, RECOMPUTE_CHEAP, true, &c);
    check_arithmetic(&c, 0);
    /* also the weights in BF16; gradients of several micro-steps are F32 */
    assert_true(bytes(&c, "adamw_many") == (24.0 + 2 + 4) * PARAMETERS);
    assert_true(bytes(&c, "cross_entropy") == 2.0 * 2 * TOKENS * VOCABULARY);
    assert_true(bytes(&c, "activation") == 2.0 * LAYERS * TOKENS * 2 * 4 * CHANNELS * 2);
}

/* Of a device with memory of its own, steps are put in ahead; the calls of one are counted all
 * the same. */
static void what_is_computed_again_counts_again(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "separate"};
    for (int i = 0; i < 2; i++) {
        struct counted c;
        train(devices[i], DT_F32, RECOMPUTE_BLOCK, true, &c);
        /* the second map of the MLP is not */
        check_arithmetic(&c, LAYER_WEIGHTS - 4 * CHANNELS * CHANNELS);
        assert_int_equal(calls(&c, "attention"), 2 * LAYERS * MICRO_STEPS);
        train(devices[i], DT_F32, RECOMPUTE_MLP, true, &c);
        check_arithmetic(&c, 4 * CHANNELS * CHANNELS);
        train(devices[i], DT_F32, RECOMPUTE_NONE, true, &c);
        check_arithmetic(&c, 0);
        assert_int_equal(calls(&c, "layernorm"), (2 * LAYERS + 1) * MICRO_STEPS);
    }
}

static void losses_are_the_same_bits(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "separate"};
    for (int i = 0; i < 4; i++) {
        struct counted with, without;
        enum dt_dtype type = i % 2 == 0 ? DT_F32 : DT_BF16;
        train(devices[i / 2], type, RECOMPUTE_CHEAP, true, &with);
        train(devices[i / 2], type, RECOMPUTE_CHEAP, false, &without);
        assert_memory_equal(with.loss, without.loss, sizeof with.loss);
        assert_memory_equal(with.norm, without.norm, sizeof with.norm);
        assert_true(with.loss[0] != with.loss[STEPS - 1]);
    }
}

/* ---- costs that a step on the CPU has not ---- */

static void an_epilogue_costs_what_it_does(void **state)
{
    (void)state;
    struct dt_matmul_args a = {.m = 4, .n = 8, .k = 16, .type = DT_BF16, .c_type = DT_F32, .grad_type = DT_F32};
    double operands = 2 * (4 * 16 + 16 * 8);
    assert_true(dt_cost_matmul(&a).bytes == operands + 4 * 4 * 8 && dt_cost_matmul(&a).flops == 2 * 4 * 8 * 16);
    a.epilogue = DT_EPILOGUE_BIAS_BACKWARD;
    assert_true(dt_cost_matmul(&a).bytes == operands + 4 * 4 * 8 + 4 * 8);
    a.accumulate = true;
    assert_true(dt_cost_matmul(&a).bytes == operands + 2 * (4 * 4 * 8 + 4 * 8));
    a.epilogue = DT_EPILOGUE_BIAS_BACKWARD_A;
    assert_true(dt_cost_matmul(&a).bytes == operands + 2 * (4 * 4 * 8 + 4 * 4));
    a.epilogue = DT_EPILOGUE_GELU_BACKWARD; /* adds to the sums for the bias, not to c */
    a.c_type = DT_BF16;
    assert_true(dt_cost_matmul(&a).bytes == operands + 2 * (2 * 4 * 8) + 2 * 4 * 8);
    a = (struct dt_matmul_args){.m = 4, .n = 8, .k = 16, .type = DT_F32, .epilogue = DT_EPILOGUE_GELU, .bias = &a};
    assert_true(dt_cost_matmul(&a).bytes == 2 * operands + 2 * (4 * 4 * 8) + 4 * 8);
    a.aux_only = true;
    assert_true(dt_cost_matmul(&a).bytes == 2 * operands + 4 * 4 * 8 + 4 * 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_row_is_one_of_its_own),
        cmocka_unit_test(a_row_notes_its_own_call),

        cmocka_unit_test(a_step_of_fp32),
        cmocka_unit_test(a_step_of_bf16),
        cmocka_unit_test(what_is_computed_again_counts_again),
        cmocka_unit_test(losses_are_the_same_bits),
        cmocka_unit_test(an_epilogue_costs_what_it_does),
    };
    return cmocka_run_group_tests(tests, ranks_setup, folder_teardown);
}
