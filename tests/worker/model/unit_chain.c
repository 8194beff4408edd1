/* covers: worker/model */
/* Chains: places of tensors in units, padding, tied tensors, initial weights by slices. */
#include "tests/lib/model_run.h"
#include "worker/model/models/gpt2.h"

static struct gpt2 sizes; /* of the next chain: tests change them */

static struct model_spec small(void)
{
    sizes = (struct gpt2){.tie_word_embeddings = true,
                          .n_layer = 2,
                          .n_head = 2,
                          .n_embd = 6,
                          .head.num_labels = 2,
                          .n_positions = 7,
                          .vocab_size = 11,
                          .n_inner = 20,
                          .layer_norm_epsilon = 1e-5,
                          .initializer_range = 0.02};
    return (struct model_spec){.name = "gpt2", .sizes = &sizes, .batch_size = 2, .sequence_length = 5, .type = DT_F32};
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
        assert_true(!embed->out.pair && c.blocks[1].out.pair);
        float flat[4096];
        struct pass p = {.weights = {flat}};
        assert_ptr_equal(pass_weight(embed, &p, 1), flat + c.tensors[1].offset);
        chain_close(&c);
        chain_close(&c);
    }
}

/* Units of four layers by policies, as "NAME tensors first-last", "+" for shared, "!" for persistent. */
static void test_wrap(void **state)
{
    (void)state;
    static const char *const some[] = {"*.h.1", "*.h.3"};
    const struct dt_strings layers = {2, (const char **)(uintptr_t)some};
    enum { WIDE = 120, ANY = 1 << 20 };
    const struct {
        struct wrap_policy policy;
        const char *units;
    } cases[] = {
        {{0}, "root 4 0-5+, h.0 12 1-1, h.1 12 2-2, h.2 12 3-3, h.3 12 4-4"},
        {{.layers_per_unit = 3}, "root 4 0-5+, h.0 36 1-3, h.3 12 4-4"},
        {{.layers_per_unit = 9}, "root 4 0-5+, h.0 48 1-4"},
        {{.whole = true}, "root 52 0-5+"},
        {{.min_params = 1100}, "root 4 0-5+, h.0 24 1-2, h.2 24 3-4"},
        {{.layers = layers}, "root 28 0-5+, h.1 12 2-2, h.3 12 4-4"},
        {{.layers = layers, .layers_per_unit = 2}, "root 28 0-5+, h.1 24 2-4"},
        /* vectors of layers have 20 elements at most, those of the root 6 */
        {{.small = 20, .small_total = ANY},
         "root 2 0-5+, h.0 4 1-1, h.1 4 2-2, h.2 4 3-3, h.3 4 4-4, persistent 34 1-5+!"},
        {{.small = 6, .small_total = ANY},
         "root 2 0-5+, h.0 12 1-1, h.1 12 2-2, h.2 12 3-3, h.3 12 4-4, persistent 2 5-5+!"},
        {{.small = WRAP_AUTO, .small_total = ANY},
         "root 2 0-5+, h.0 4 1-1, h.1 4 2-2, h.2 4 3-3, h.3 4 4-4, persistent 34 1-5+!"},
        {{.small = 20, .small_total = 200},
         "root 2 0-5+, h.0 4 1-1, h.1 4 2-2, h.2 12 3-3, h.3 12 4-4, persistent 18 1-5+!"},
        {{.small = WIDE, .small_total = ANY}, "root 4 0-5+!, h.0 12 1-1!, h.1 12 2-2!, h.2 12 3-3!, h.3 12 4-4!"},
        {{.small = WIDE, .small_total = ANY, .layers_per_unit = 2}, "root 4 0-5+!, h.0 24 1-2!, h.2 24 3-4!"},
        {{.small = WIDE, .small_total = 900},
         "root 4 0-5+!, h.0 12 1-1!, h.1 4 2-2, h.2 4 3-3, h.3 4 4-4, persistent 24 2-4+!"},
        {{.small = 1, .small_total = ANY}, "root 4 0-5+, h.0 12 1-1, h.1 12 2-2, h.2 12 3-3, h.3 12 4-4"},
        {{.small = ANY, .small_total = 0}, "root 4 0-5+, h.0 12 1-1, h.1 12 2-2, h.2 12 3-3, h.3 12 4-4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct chain c, plain;
        struct dt_text text;
        struct dt_error err;
        struct model_spec spec = small();
        sizes.n_layer = 4;
        assert_int_equal(chain_open(&plain, &spec, 2, &err), 0);
        spec.wrap = cases[i].policy;
        assert_int_equal(chain_open(&c, &spec, 2, &err), 0);
        dt_text_init(&text);
        int64_t end[16] = {0};
        for (int u = 0; u < c.unit_count; u++) {
            const struct unit *x = &c.units[u];
            const char *name = strstr(x->name, "h.");
            dt_text_printf(&text, "%s%s %d %d-%d%s%s", u > 0 ? ", " : "", name != NULL ? name : x->name,
                           x->tensor_count, x->first_use, x->last_use, x->shared ? "+" : "", x->persistent ? "!" : "");
        }
        assert_string_equal(dt_text_str(&text), cases[i].units);
        for (int k = 0; k < c.tensor_count; k++) { /* each element has a place of its own */
            const struct tensor *x = &c.tensors[k];
            assert_true(x->offset % 64 == 0 && x->offset >= end[x->unit]);
            end[x->unit] = x->offset + x->numel;
            assert_true(x->declared.unit == plain.tensors[k].unit && x->declared.offset == plain.tensors[k].offset);
        }
        for (int u = 0; u < c.unit_count; u++) {
            assert_true(c.units[u].used == end[u] && c.units[u].numel % 128 == 0);
        }
        for (int k = 0; k < c.block_count; k++) { /* blocks find their tensors there */
            const struct block *b = &c.blocks[k];
            for (int n = 0; n < b->tensor_count; n++) {
                const struct tensor *x = &c.tensors[b->tensors[n]];
                assert_true(b->units[b->unit_of[n]] == x->unit && b->offsets[n] == x->offset);
            }
        }
        dt_text_clear(&text);
        chain_close(&c);
        chain_close(&plain);
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
                                  .sizes = &(struct gpt2){.tie_word_embeddings = true,
                                                          .n_layer = rows[i].layers,
                                                          .n_head = rows[i].heads,
                                                          .n_embd = rows[i].channels,
                                                          .head.num_labels = 2,
                                                          .n_positions = 1024,
                                                          .vocab_size = 50257,
                                                          .n_inner = 4 * rows[i].channels,
                                                          .layer_norm_epsilon = 1e-5,
                                                          .initializer_range = 0.02},
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
    sizes.n_head = 4;
    expect_refused(spec, "cannot be split among n_head 4");
    spec = small();
    spec.sequence_length = 8;
    expect_refused(spec, "n_positions");
    spec = small();
    sizes.n_layer = 0;
    expect_refused(spec, "n_layer");
}

/* What the blocks of these models declare (b->args). */
struct declared {
    enum role role;
    int other; /* the unit of a second tensor; -1: there is none */
    int64_t rows;
    struct flow in, out;
    bool reads;
};

static int declare_some(struct block *b, struct dt_error *err)
{
    const struct declared *d = b->args;
    (void)err;
    block_tensor(b, "table", (int64_t[]){d->rows, 4}, 2, &(struct tensor_rule){.role = d->role});
    if (d->other >= 0) {
        block_tensor_in(b, d->other, "base", (int64_t[]){70}, 1, &(struct tensor_rule){.role = ROLE_FROZEN});
        block_tensor(b, "mean", (int64_t[]){5}, 1, &(struct tensor_rule){.role = ROLE_BUFFER, .init = INIT_ONE});
    }
    if (d->reads) {
        (void)block_field(b, "input_ids");
    }
    b->in = d->in;
    b->out = d->out;
    return 0;
}

static const struct block_ops some = {.name = "some", .declare = declare_some};

/* A block over a trained and a frozen unit and a buffer; a tied tensor is found in its unit. */
static void test_units_and_roles(void **state)
{
    (void)state;
    struct chain c = {.spec = small()};
    struct dt_error err = {.status = DT_OK};
    int frozen = chain_unit(&c, "frozen", ROLE_FROZEN), a = chain_unit(&c, "a", ROLE_TRAINED),
        b = chain_unit(&c, "b", ROLE_TRAINED);
    struct declared one = {.rows = 3, .other = -1}, two = {.rows = 3, .other = frozen};
    assert_int_equal(chain_add(&c, &some, a, -1, &one, sizeof one, &err), 0);
    assert_int_equal(chain_add(&c, &some, b, -1, &two, sizeof two, &err), 0);
    const struct block *x = &c.blocks[1];
    assert_int_equal(x->unit_count, 2);
    assert_true(x->units[0] == a && x->units[1] == frozen && x->unit_of[0] == 0 && x->unit_of[1] == 1 &&
                x->unit_of[2] == -1);
    assert_true(c.units[a].shared && c.units[a].first_use == 0 && c.units[a].last_use == 1);
    assert_true(!c.units[frozen].shared && c.units[frozen].used == 70 && c.units[b].used == 0);
    assert_int_equal(c.buffer_count, 5);
    assert_int_equal(c.parameter_count, 3 * 4 + 70);
    float flat[2][128], buffers[5], values[5] = {0};
    struct pass p = {.weights = {flat[0], flat[1]}, .grads = {flat[0], NULL}, .buffers = buffers};
    assert_ptr_equal(pass_weight(x, &p, 1), flat[1]);
    assert_ptr_equal(pass_grad(x, &p, 0), flat[0]);
    assert_null(pass_grad(x, &p, 1));
    assert_ptr_equal(pass_buffer(x, &p, 2), buffers);
    init_unit(&c, -1, 42, 0, 5, DT_F32, values);
    for (int i = 0; i < 5; i++) {
        assert_true(values[i] == 1);
    }
    chain_close(&c);
}

/* Two blocks; the second one is refused, and `cause` is said. */
static void expect_mistake(const struct declared *first, const struct declared *second, const char *cause)
{
    struct chain c = {.spec = small()};
    struct dt_error err = {.status = DT_OK};
    int a = chain_unit(&c, "a", ROLE_TRAINED);
    assert_int_equal(chain_add(&c, &some, a, -1, first, sizeof *first, &err), 0);
    assert_int_equal(chain_add(&c, &some, a, -1, second, sizeof *second, &err), -1);
    if (strstr(err.text, cause) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, cause);
    }
    chain_close(&c);
}

static void test_mistakes(void **state)
{
    (void)state;
    const struct flow wide = {.dims = 2, .shape = {2, 6}, .type = DT_F32}, pair = {2, {2, 6}, DT_F32, true},
                      narrow = {.dims = 2, .shape = {2, 5}, .type = DT_F32}, low = {2, {2, 6}, DT_BF16, false};
    const struct declared plain = {.rows = 3, .other = -1, .out = wide};
    struct declared other = {.rows = 4, .other = -1, .in = wide};
    expect_mistake(&plain, &other, "tied tensor table has two shapes");
    other = (struct declared){.role = ROLE_FROZEN, .rows = 3, .other = -1, .in = wide};
    expect_mistake(&plain, &other, "tied tensor table has two roles");
    other = (struct declared){.rows = 3, .other = -1, .in = narrow};
    expect_mistake(&plain, &other,
                   "block 1, some, takes one of F32 (2, 5), and before it some gives one of F32 (2, 6)");
    other.in = low;
    expect_mistake(&plain, &other, "takes one of BF16 (2, 6)");
    struct declared branched = plain;
    branched.out = pair;
    other.in = wide;
    expect_mistake(&branched, &other, "gives a pair of F32 (2, 6)");
    other = (struct declared){.rows = 3, .other = -1, .in = wide, .reads = true};
    expect_mistake(&plain, &other, "block some reads input_ids, which a batch does not have");
    struct chain c = {.spec = small()};
    struct dt_error err = {.status = DT_OK};
    struct declared in_frozen = {.rows = 3, .other = -1};
    int frozen = chain_unit(&c, "frozen", ROLE_FROZEN);
    assert_int_equal(chain_add(&c, &some, frozen, -1, &in_frozen, sizeof in_frozen, &err), -1);
    assert_non_null(strstr(err.text, "tensor table is trained, and its unit frozen is not"));
    chain_close(&c);
}

/* A branch may stay away where a pair is taken; blocks write beside what they read. */
static void test_slots(void **state)
{
    (void)state;
    struct chain c;
    struct dt_error err;
    struct model_spec spec = small();
    assert_int_equal(chain_open(&c, &spec, 1, &err), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(c.blocks[i].slot, 0); /* layers are in place */
    }
    assert_int_equal(c.slot_bytes[0], 2 * 5 * 6 * 4);
    assert_int_equal(c.branch_bytes[0], 2 * 5 * 6 * 4);
    assert_true(c.slot_bytes[1] == 0 && c.branch_bytes[1] == 0);
    chain_close(&c);
}

static void test_batch_layout(void **state)
{
    (void)state;
    struct batch_layout l = batch_tokens(3, 5, 11, "vocab_size");
    assert_true(batch_find(&l, "labels") == 1 && batch_find(&l, "pixel_values") == -1);
    assert_true(batch_offset(&l, 0) == 0 && batch_offset(&l, 1) == 60 && batch_offset(&l, 2) == 120);
    l = (struct batch_layout){2,
                              {{.name = "labels", .type = DT_I32, .dims = 1, .most = {3}},
                               {.name = "pixel_values", .type = DT_F32, .dims = 4, .most = {3, 2, 5, 5}}}};
    assert_true(batch_elements(&l, 1) == 150 && batch_sample_elements(&l, 1) == 50 && batch_elements(&l, 0) == 3);
    /* floats are aligned, in the next batch as well */
    assert_true(batch_offset(&l, 1) == 64 && batch_offset(&l, 2) == 64 + 640);
}

static void test_initial_values(void **state)
{
    (void)state;
    struct chain c;
    struct dt_error err;
    struct model_spec spec = small();
    sizes.vocab_size = 4000;
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
    assert_true(fabs(c.tensors[proj].rule.init_std - 0.01) < 1e-15); /* 0.02 / sqrt(2 * 2) */
    chain_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),          cmocka_unit_test(test_wrap),
        cmocka_unit_test(test_published_sizes), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_units_and_roles), cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_slots),           cmocka_unit_test(test_batch_layout),
        cmocka_unit_test(test_initial_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
