/* covers: worker/model/models/mha_gpt.c worker/model/blocks/encoder_layer.c worker/model/blocks/linear.c worker/model/init.c */
/* mha-gpt against a program of PyTorch's modules (tests/peers/mha_gpt.py): losses of four steps, the
 * norm and entries of every gradient, with and without mask and shift; blocks against finite
 * differences; the bits at each level of recomputation; first values; config.json. */
#include "tests/lib/block_check.h"
#include "tests/lib/golden_model.h"
#include "worker/model/model.h"
#include "worker/model/models/mha_gpt.h"
#include "worker/model/presets.h"

#define FOLDER "tests/golden/models/mha-gpt"

/* The order in which PyTorch registers them, by which the fill rule numbers them. */
static const char *const order[] = {"embedding.weight",
                                    "pos_embedding.weight",
                                    "layers.0.attention.in_proj_weight",
                                    "layers.0.attention.in_proj_bias",
                                    "layers.0.attention.out_proj.weight",
                                    "layers.0.attention.out_proj.bias",
                                    "layers.0.norm1.weight",
                                    "layers.0.norm1.bias",
                                    "layers.0.norm2.weight",
                                    "layers.0.norm2.bias",
                                    "layers.0.mlp.0.weight",
                                    "layers.0.mlp.0.bias",
                                    "layers.0.mlp.2.weight",
                                    "layers.0.mlp.2.bias",
                                    "layers.1.attention.in_proj_weight",
                                    "layers.1.attention.in_proj_bias",
                                    "layers.1.attention.out_proj.weight",
                                    "layers.1.attention.out_proj.bias",
                                    "layers.1.norm1.weight",
                                    "layers.1.norm1.bias",
                                    "layers.1.norm2.weight",
                                    "layers.1.norm2.bias",
                                    "layers.1.mlp.0.weight",
                                    "layers.1.mlp.0.bias",
                                    "layers.1.mlp.2.weight",
                                    "layers.1.mlp.2.bias",
                                    "norm.weight",
                                    "norm.bias",
                                    "head.weight"};
enum { TENSORS = sizeof order / sizeof order[0], BATCH = 2, LENGTH = 5, VOCABULARY = 11 };

static struct mha_gpt sizes_of(bool causal, bool shift)
{
    return (struct mha_gpt){.vocab_size = VOCABULARY,
                            .hidden_size = 8,
                            .num_hidden_layers = 2,
                            .num_attention_heads = 2,
                            .max_position_embeddings = 6,
                            .layer_norm_eps = 1e-5,
                            .initializer_range = -1,
                            .causal = causal,
                            .shift_labels = shift};
}

static int32_t id_at(int b, int t)
{
    return (7 * b + 3 * t + 1) % VOCABULARY;
}

/* A model and its batch as the fill rule has them. */
static void open_rule(struct model_run *r, const char *device, const struct mha_gpt *sizes, int level)
{
    run_open(r, device,
             (struct model_spec){.name = "mha-gpt",
                                 .sizes = sizes,
                                 .batch_size = BATCH,
                                 .sequence_length = LENGTH,
                                 .recompute = (enum recompute)level});
    assert_int_equal(r->chain.tensor_count, TENSORS);
    for (int p = 0; p < TENSORS; p++) {
        const struct tensor *t = &r->chain.tensors[run_tensor(r, order[p])];
        for (int64_t e = 0; e < t->numel; e++) {
            run_set(r, r->weights[t->unit], t->offset + e,
                    0.1 * sin(0.7 * (double)(e + 1) + 1.3 * (p + 1)) + (t->rule.init == INIT_ONE ? 1 : 0));
        }
    }
    int shift = sizes->shift_labels;
    assert_int_equal(r->chain.batch.field[batch_targets(&r->chain.batch)].shifted, shift);
    for (int b = 0; b < BATCH; b++) {
        for (int t = 0; t < LENGTH; t++) {
            r->ids[LENGTH * b + t] = id_at(b, t);
            r->labels[LENGTH * b + t] = t + shift < LENGTH ? id_at(b, t + shift) : DT_IGNORE_INDEX;
        }
    }
}

static void follow(const char *device, const cJSON *expected, int level, double relative)
{
    bool causal = cJSON_IsTrue(golden_at(expected, "causal")),
         shift = cJSON_IsTrue(golden_at(expected, "shift_labels"));
    struct mha_gpt sizes = sizes_of(causal, shift);
    struct model_run r;
    int targets = BATCH * (LENGTH - shift);
    open_rule(&r, device, &sizes, level);
    assert_int_equal(r.chain.parameter_count, 1984);
    for (int step = 0; step < 4; step++) {
        double loss = golden_number(golden_at(expected, "loss"), step),
               norm = golden_at(expected, "grad_norm")->valuedouble;
        golden_close(run_train(&r, false, 1.0 / targets) / targets, loss, relative * loss, "loss", step);
        for (int p = 0; step == 0 && p < TENSORS; p++) {
            const cJSON *first = golden_at(golden_at(expected, "gradients"), order[p]);
            for (int e = 0; e < 2; e++) {
                golden_close(run_value(&r, r.grads, run_tensor(&r, order[p]), e), golden_number(first, e),
                             1e-10 + relative, order[p], e);
            }
        }
        if (step == 0) {
            golden_close(run_norm(&r, 1, 0), norm, relative * norm, "norm", 0);
        }
        run_adamw(&r, step + 1, 1e-2, 0.95, 0.1, 1, false);
    }
    run_close(&r);
}

static void test_fill_rule(void **state)
{
    (void)state;
    cJSON *json = golden_json(FOLDER "/expected.json");
    const cJSON *run, *runs = golden_at(json, "runs");
    assert_int_equal(cJSON_GetArraySize(runs), 2);
    cJSON_ArrayForEach(run, runs)
    {
        for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++) {
            follow("twin64", run, level, 1e-9);
            follow("twin32", run, level, 1e-5);
            follow("cpu", run, level, 1e-5);
        }
    }
    cJSON_Delete(json);
}

static void test_finite_differences(void **state)
{
    (void)state;
    for (int causal = 0; causal < 2; causal++) {
        for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++) {
            struct model_run r;
            struct mha_gpt sizes = sizes_of(causal == 1, true);
            open_rule(&r, "twin64", &sizes, level);
            for (int k = 0; k < r.chain.block_count; k++) {
                check_block(&r, k);
            }
            run_close(&r);
        }
    }
}

/* All levels: the same bits, and less memory the more is made again. */
static void test_recompute(void **state)
{
    (void)state;
    struct mha_gpt sizes = sizes_of(true, true);
    struct model_run none, r;
    open_rule(&none, "cpu", &sizes, RECOMPUTE_NONE);
    double loss = run_train(&none, false, 0.25);
    size_t saved = none.chain.blocks[1].bytes[PLACE_KEPT];
    for (int level = RECOMPUTE_CHEAP; level <= RECOMPUTE_BLOCK; level++) {
        open_rule(&r, "cpu", &sizes, level);
        assert_true(run_train(&r, false, 0.25) == loss);
        for (int u = 0; u < r.chain.unit_count; u++) {
            assert_memory_equal(r.grads[u], none.grads[u], (size_t)r.chain.units[u].numel * sizeof(float));
        }
        assert_true(r.chain.blocks[1].bytes[PLACE_KEPT] < saved);
        saved = r.chain.blocks[1].bytes[PLACE_KEPT];
        run_close(&r);
    }
    run_close(&none);
}

/* ---- first values ---- */

/* Mean, deviation and largest magnitude of a tensor's first values. */
static void measure(const struct chain *c, const char *name, double out[3])
{
    const struct tensor *t = NULL;
    for (int i = 0; i < c->tensor_count; i++) {
        t = strcmp(c->tensors[i].name, name) == 0 ? &c->tensors[i] : t;
    }
    assert_non_null(t);
    double *x = malloc((size_t)t->numel * sizeof *x), sum = 0, squares = 0;
    assert_non_null(x);
    init_values(t, 3, 0, t->numel, x);
    out[2] = 0;
    for (int64_t e = 0; e < t->numel; e++) {
        sum += x[e];
        squares += x[e] * x[e];
        out[2] = fmax(out[2], fabs(x[e]));
    }
    out[0] = sum / (double)t->numel;
    out[1] = sqrt(squares / (double)t->numel - out[0] * out[0]);
    free(x);
}

/* bound: of a uniform tensor; otherwise 0 and the deviation */
struct beginning {
    const char *name;
    double mean, bound, deviation;
};

static void check_beginnings(double range, const struct beginning *expected, int count)
{
    struct mha_gpt m = {.vocab_size = 512,
                        .hidden_size = 64,
                        .num_hidden_layers = 1,
                        .num_attention_heads = 4,
                        .max_position_embeddings = 64,
                        .layer_norm_eps = 1e-5,
                        .initializer_range = range,
                        .causal = true};
    const struct model_spec spec = {
        .name = "mha-gpt", .sizes = &m, .batch_size = 1, .sequence_length = 8, .type = DT_F32};
    struct chain c;
    struct dt_error err;
    assert_int_equal(chain_open(&c, &spec, 1, &err), 0);
    for (int i = 0; i < count; i++) {
        const struct beginning *x = &expected[i];
        double found[3], deviation = x->bound > 0 ? x->bound / sqrt(3) : x->deviation;
        measure(&c, x->name, found);
        golden_close(found[0], x->mean, 0.15 * deviation, x->name, 0);
        golden_close(found[1], deviation, 0.15 * deviation, x->name, 1);
        assert_true(x->bound == 0 || (found[2] < x->bound && found[2] > 0.95 * x->bound));
    }
    chain_close(&c);
}

/* nn.Linear has 1/sqrt(in), the packed tensor of nn.MultiheadAttention sqrt(6/(C + 3C)), embeddings 1. */
static void test_first_values(void **state)
{
    (void)state;
    static const struct beginning of_modules[] = {{.name = "embedding.weight", .deviation = 1},
                                                  {.name = "pos_embedding.weight", .deviation = 1},
                                                  {.name = "layers.0.attention.in_proj_weight", .bound = 0.1530931},
                                                  {.name = "layers.0.attention.in_proj_bias"},
                                                  {.name = "layers.0.attention.out_proj.weight", .bound = 0.125},
                                                  {.name = "layers.0.attention.out_proj.bias"},
                                                  {.name = "layers.0.norm1.weight", .mean = 1},
                                                  {.name = "layers.0.norm2.bias"},
                                                  {.name = "layers.0.mlp.0.weight", .bound = 0.125},
                                                  {.name = "layers.0.mlp.0.bias", .bound = 0.125},
                                                  {.name = "layers.0.mlp.2.weight", .bound = 0.0625},
                                                  {.name = "layers.0.mlp.2.bias", .bound = 0.0625},
                                                  {.name = "norm.weight", .mean = 1},
                                                  {.name = "head.weight", .bound = 0.125}},
                                  normal[] = {{.name = "embedding.weight", .deviation = 0.02},
                                              {.name = "layers.0.attention.in_proj_weight", .deviation = 0.02},
                                              {.name = "layers.0.attention.in_proj_bias", .deviation = 0.02},
                                              {.name = "layers.0.mlp.0.bias", .deviation = 0.02},
                                              {.name = "layers.0.norm1.weight", .mean = 1},
                                              {.name = "layers.0.norm1.bias"},
                                              {.name = "head.weight", .deviation = 0.02}};
    check_beginnings(-1, of_modules, sizeof of_modules / sizeof of_modules[0]);
    check_beginnings(0.02, normal, sizeof normal / sizeof normal[0]);
}

/* A slice has the values of the whole, wherever it begins. */
static void test_slices(void **state)
{
    (void)state;
    double whole[40], part[13];
    const struct tensor t = {
        .name = "x", .dims = 1, .shape = {40}, .numel = 40, .rule = {.init = INIT_UNIFORM, .init_bound = 2}};
    init_values(&t, 7, 0, 40, whole);
    for (int64_t first = 0; first <= 27; first++) {
        init_values(&t, 7, first, 13, part);
        assert_memory_equal(part, whole + first, sizeof part);
    }
}

/* ---- config.json ---- */

static void read_config(struct model_sizes *sizes, const char *text)
{
    struct dt_error err;
    cJSON *json = cJSON_Parse(text);
    assert_non_null(json);
    if (model_read_config(model_find("mha-gpt"), json, sizes->bytes, &err) != 0) {
        fail_msg("%s", err.text);
    }
    cJSON_Delete(json);
}

/* A written config.json is read again: other values than the defaults, and the defaults. */
static void test_config(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "{\"vocab_size\":99,\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":2,"
        "\"max_position_embeddings\":17,\"layer_norm_eps\":0.001,\"initializer_range\":0.02,\"causal\":false,"
        "\"shift_labels\":false}",
        "{}"};
    for (int i = 0; i < 2; i++) {
        struct model_sizes a, b;
        struct dt_text text;
        dt_text_init(&text);
        read_config(&a, configs[i]);
        model_write_config(model_find("mha-gpt"), a.bytes, &text);
        read_config(&b, dt_text_str(&text));
        assert_memory_equal(a.bytes, b.bytes, sizeof(struct mha_gpt));
        const struct mha_gpt *m = (const void *)b.bytes;
        assert_int_equal(m->causal, i);
        assert_int_equal(m->shift_labels, i);
        assert_true(m->initializer_range == (i == 0 ? 0.02 : -1));
        assert_non_null(strstr(dt_text_str(&text), "\"model_type\": \"mha-gpt\""));
        dt_text_clear(&text);
    }
}

static void check_refused(const char *config, const char *expected)
{
    struct model_sizes sizes;
    struct dt_error err = {0};
    struct chain c = {.blocks = NULL};
    cJSON *json = cJSON_Parse(config);
    const struct model_spec spec = {
        .name = "mha-gpt", .sizes = sizes.bytes, .batch_size = 1, .sequence_length = 8, .type = DT_F32};
    bool good = model_read_config(model_find("mha-gpt"), json, sizes.bytes, &err) == 0;
    assert_false(good && chain_open(&c, &spec, 1, &err) == 0);
    if (strstr(err.text, expected) == NULL) {
        fail_msg("%s: says: %s", config, err.text);
    }
    cJSON_Delete(json);
}

static void test_refused(void **state)
{
    (void)state;
    check_refused("{\"num_attention_heads\":7}", "hidden_size 4096 cannot be split among num_attention_heads 7");
    check_refused("{\"num_attention_heads\":8}", "a head has 512 values; at most 256");
    check_refused("{\"hidden_size\":2097152,\"num_attention_heads\":8192,\"vocab_size\":16777216}",
                  "more than 2^40 weights");
    check_refused("{\"tie_word_embeddings\":true}", "tie_word_embeddings: only false is supported");
    check_refused("{\"causal\":\"no\"}", "causal: is \"no\"; must be");
}

static void test_parameter_count(void **state)
{
    (void)state;
    const struct preset *p = preset_find("mha-gpt-6.7b");
    struct model_sizes sizes;
    struct chain c;
    struct dt_error err;
    assert_non_null(p);
    assert_int_equal(preset_sizes(p, sizes.bytes, &err), 0);
    const struct model_spec spec = {
        .name = p->family, .sizes = sizes.bytes, .batch_size = 1, .sequence_length = 1, .type = DT_F32};
    assert_int_equal(chain_open(&c, &spec, 1, &err), 0);
    assert_int_equal(c.parameter_count, 6714695680);
    chain_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill_rule), cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_recompute), cmocka_unit_test(test_first_values),
        cmocka_unit_test(test_slices),    cmocka_unit_test(test_config),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_parameter_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
