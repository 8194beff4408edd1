/* covers: worker/model */
/* Chains: places of tensors in units, padding, tied tensors, initial weights by slices. */
#include "tests/lib/model_run.h"

static struct model_spec small(void)
{
    return (struct model_spec){.name = "gpt2",
                               .layers = 2,
                               .heads = 2,
                               .channels = 6,
                               .positions = 7,
                               .vocabulary = 11,
                               .inner = 20,
                               .norm_epsilon = 1e-5,
                               .init_std = 0.02,
                               .batch_size = 2,
                               .sequence_length = 5,
                               .type = DT_F32};
}

static void test_layout(void **state)
{
    (void)state;
    struct dt_error err;
    for (int shards = 1; shards <= 5; shards++) {
        struct chain c;
        struct model_spec spec = small();
        assert_int_equal(chain_open(&c, &spec, shards, &err), 0);
        assert_int_equal(c.unit_count, 3);
        assert_int_equal(c.block_count, 4);
        assert_int_equal(c.tensor_count, 2 + 2 * 12 + 2);
        assert_string_equal(c.tensors[0].name, "transformer.wte.weight");
        assert_string_equal(c.tensors[1].name, "transformer.wpe.weight");
        assert_string_equal(c.tensors[4].name, "transformer.h.0.attn.c_attn.weight");
        assert_string_equal(c.tensors[27].name, "transformer.ln_f.bias");
        assert_true(c.units[0].shared && c.units[0].first_use == 0 && c.units[0].last_use == 3);
        assert_true(!c.units[1].shared && c.units[1].first_use == 1 && c.units[1].last_use == 1);
        assert_string_equal(c.units[2].name, "transformer.h.1");
        int64_t sum = 0, end[3] = {0};
        for (int i = 0; i < c.tensor_count; i++) {
            const struct tensor *t = &c.tensors[i];
            assert_int_equal(t->offset % 64, 0);
            assert_true(t->offset >= end[t->unit] && t->offset < end[t->unit] + 64);
            assert_int_equal(t->decay, t->dims == 2);
            end[t->unit] = t->offset + t->numel;
            sum += t->numel;
        }
        assert_int_equal(sum, c.parameter_count);
        for (int u = 0; u < 3; u++) {
            assert_int_equal(c.units[u].used, end[u]);
            assert_int_equal(c.units[u].numel % (64 * shards), 0);
            assert_true(c.units[u].numel >= end[u] && c.units[u].numel < end[u] + 64 * shards);
        }
        /* tied: the head's table is the embedding's, and only the embedding adds */
        const struct block *embed = &c.blocks[0], *head = &c.blocks[3];
        assert_int_equal(head->tensors[2], embed->tensors[0]);
        assert_int_equal(head->offsets[2], embed->offsets[0]);
        assert_true(embed->adds[0] && !embed->adds[1] && !head->adds[0] && !head->adds[2] && !c.blocks[1].adds[0]);
        assert_true(!embed->branch_out && c.blocks[1].branch_out);
        float flat[4096];
        assert_ptr_equal(block_at(embed, flat, 1, DT_F32), flat + c.tensors[1].offset);
        chain_close(&c);
        chain_close(&c);
    }
}

static void test_published_sizes(void **state)
{
    (void)state;
    static const struct {
        int64_t channels, layers, heads, parameters;
    } rows[] = {
        {768, 12, 12, 124439808}, {1024, 24, 16, 354823168}, {1280, 36, 20, 774030080}, {1600, 48, 25, 1557611200}};
    for (size_t i = 0; i < 4; i++) {
        struct model_spec spec = {.name = "gpt2",
                                  .layers = rows[i].layers,
                                  .heads = rows[i].heads,
                                  .channels = rows[i].channels,
                                  .positions = 1024,
                                  .vocabulary = 50257,
                                  .inner = 4 * rows[i].channels,
                                  .norm_epsilon = 1e-5,
                                  .init_std = 0.02,
                                  .batch_size = 1,
                                  .sequence_length = 1024,
                                  .type = DT_F32};
        struct chain c;
        struct dt_error err;
        assert_int_equal(chain_open(&c, &spec, 8, &err), 0);
        assert_int_equal(c.parameter_count, rows[i].parameters);
        chain_close(&c);
    }
}

static void expect_refused(struct model_spec spec, const char *cause)
{
    struct chain c;
    struct dt_error err = {.status = DT_OK};
    assert_int_equal(chain_open(&c, &spec, 1, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    if (strstr(err.text, cause) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, cause);
    }
    chain_close(&c);
}

static void test_refusals(void **state)
{
    (void)state;
    struct model_spec spec = small();
    spec.name = "gpt3";
    expect_refused(spec, "gpt2");
    spec = small();
    spec.heads = 4;
    expect_refused(spec, "multiple of n_head");
    spec = small();
    spec.sequence_length = 8;
    expect_refused(spec, "n_positions");
    spec = small();
    spec.layers = 0;
    expect_refused(spec, "n_layer");
}

/* A tied tensor in two units is a mistake of the model, and named. */
static int declare_one(struct block *b, const struct model_spec *m, struct dt_error *err)
{
    (void)m;
    (void)err;
    block_tensor(b, "table", (int64_t[]){3, 4}, 2, INIT_ZERO, 0);
    return 0;
}

static void test_tied_across_units(void **state)
{
    (void)state;
    static const struct block_ops ops = {.name = "one", .declare = declare_one};
    struct chain c = {.spec = small()};
    struct dt_error err = {.status = DT_OK};
    int a = chain_unit(&c, "a"), b = chain_unit(&c, "b");
    assert_int_equal(chain_add(&c, &ops, a, -1, &err), 0);
    assert_int_equal(chain_add(&c, &ops, b, -1, &err), -1);
    assert_non_null(strstr(err.text, "table"));
    chain_close(&c);
}

static void test_initial_values(void **state)
{
    (void)state;
    struct chain c;
    struct dt_error err;
    struct model_spec spec = small();
    spec.vocabulary = 4000;
    assert_int_equal(chain_open(&c, &spec, 3, &err), 0);
    for (int u = 0; u < c.unit_count; u++) {
        int64_t n = c.units[u].numel;
        float *whole = test_calloc((size_t)n, sizeof *whole), *pieces = test_calloc((size_t)n, sizeof *pieces);
        init_unit(&c, u, 42, 0, n, DT_F32, whole);
        /* pieces of every size, at every offset */
        for (int64_t at = 0, step = 1; at < n; at += step, step = step % 389 + 7) {
            init_unit(&c, u, 42, at, step < n - at ? step : n - at, DT_F32, pieces + at);
        }
        assert_memory_equal(whole, pieces, (size_t)n * sizeof *whole);
        for (int64_t i = c.units[u].used; i < n; i++) {
            assert_true(whole[i] == 0);
        }
        test_free(whole);
        test_free(pieces);
    }
    /* moments of a normal, other streams for other seeds and names */
    static double x[24000], y[24000];
    double sum = 0, square = 0, cross = 0, other = 0;
    init_values(&c.tensors[0], 42, 0, 24000, x);
    init_values(&c.tensors[0], 43, 0, 24000, y);
    for (int i = 0; i < 24000; i++) {
        sum += x[i];
        square += x[i] * x[i];
        cross += x[i] * y[i];
        other += i > 0 ? x[i] * x[i - 1] : 0;
    }
    assert_true(fabs(sum / 24000) < 4 * 0.02 / sqrt(24000));
    assert_true(fabs(square / 24000 / 4e-4 - 1) < 4 * sqrt(2.0 / 24000));
    assert_true(fabs(cross / 24000 / 4e-4) < 4 / sqrt(24000) && fabs(other / 24000 / 4e-4) < 4 / sqrt(24000));
    /* the generator itself, computed by another program: a run that goes on must find the same
     * weights */
    static const double first[8] = {-0.01263144557446833,  -0.022427745248095404, -0.021293847961794277,
                                    0.00569798739042493,   -0.014048532388906958, 0.016875982455413642,
                                    -0.015610517880234267, -0.0017421260461037414};
    for (int i = 0; i < 8; i++) {
        assert_true(fabs(x[i] - first[i]) < 1e-14);
    }
    int proj = 6;
    assert_string_equal(c.tensors[proj].name, "transformer.h.0.attn.c_proj.weight");
    assert_true(fabs(c.tensors[proj].init_std - 0.01) < 1e-15); /* 0.02 / sqrt(2 * 2) */
    chain_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),         cmocka_unit_test(test_published_sizes),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_tied_across_units),
        cmocka_unit_test(test_initial_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
