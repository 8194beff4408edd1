/* covers: worker/model kernels/cpu */
/* Blocks: backward equals finite differences in double, each block on its own, on ragged sizes
 * and with ignored labels; the same bits whatever is computed again; overwriting and adding of
 * gradients; the CPU's floats near the twin's doubles. */
#include "tests/lib/block_check.h"
#include "worker/model/models/gpt2.h"
#include "worker/model/models/mlp.h"

static struct model_spec ragged(enum recompute level)
{
    static const struct gpt2 sizes = {.tie_word_embeddings = true,
                                      .n_layer = 2,
                                      .n_head = 3,
                                      .n_embd = 12,
                                      .head.num_labels = 2,
                                      .n_positions = 7,
                                      .vocab_size = 17,
                                      .n_inner = 20,
                                      .layer_norm_epsilon = 1e-5,
                                      .initializer_range = 0.02};
    return (struct model_spec){
        .name = "gpt2", .sizes = &sizes, .recompute = level, .batch_size = 3, .sequence_length = 5};
}

/* The same numbers for every device. */
static void fill(struct model_run *r)
{
    random_state = 1;
    for (int i = 0; i < r->chain.tensor_count; i++) {
        const struct tensor *t = &r->chain.tensors[i];
        for (int64_t e = 0; e < t->numel; e++) {
            run_set(r, r->weights[t->unit], t->offset + e,
                    (double)(float)(0.5 * noise() + (t->rule.init == INIT_ONE ? 1 : 0)));
        }
    }
    int64_t rows = r->chain.spec.batch_size * r->chain.spec.sequence_length;
    for (int64_t i = 0; i < rows; i++) {
        r->ids[i] = (int32_t)((i * 7 + 3) % r->chain.batch.field[0].below);
        r->labels[i] = i % 4 == 1 ? DT_IGNORE_INDEX : (int32_t)((i * 5 + 1) % r->chain.batch.field[0].below);
    }
}

static void test_finite_differences(void **state)
{
    (void)state;
    for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++) {
        struct model_run r;
        run_open(&r, "twin64", ragged((enum recompute)level));
        fill(&r);
        for (int i = 0; i < r.chain.block_count; i += i == 1 ? 2 : 1) {
            check_block(&r, i);
        }
        run_close(&r);
    }
}

static struct model_spec perceptron(struct mlp *m, int64_t frozen_layers)
{
    *m = (struct mlp){.num_channels = 2,
                      .image_size = 3,
                      .hidden_size = 7,
                      .last_hidden_size = 5,
                      .num_labels = 4,
                      .frozen_layers = frozen_layers,
                      .momentum = 1,
                      .initializer_range = 0.02};
    return (struct model_spec){.name = "mlp", .sizes = m, .batch_size = 6, .sequence_length = 1};
}

static void fill_images(struct model_run *r)
{
    random_state = 3;
    for (int i = 0; i < r->chain.tensor_count; i++) {
        const struct tensor *t = &r->chain.tensors[i];
        for (int64_t e = 0; e < t->numel && t->unit >= 0; e++) {
            run_set(r, r->weights[t->unit], t->offset + e, 0.5 * noise());
        }
    }
    float *pixels = r->batch.at[batch_find(r->batch.layout, "pixel_values")];
    for (int i = 0; i < 6 * 18; i++) {
        pixels[i] = (float)(1 + noise());
    }
    for (int i = 0; i < 6; i++) {
        r->labels[i] = i == 2 ? DT_IGNORE_INDEX : i % 4;
    }
    r->batch.weight = 5;
}

/* Of a perceptron, where evaluation takes the mean that training takes: the running one is the
 * batch's with a momentum of 1. */
static void test_perceptron(void **state)
{
    (void)state;
    struct model_run r;
    struct mlp sizes;
    run_open(&r, "twin64", perceptron(&sizes, 0));
    fill_images(&r);
    (void)run_train(&r, false, 1);
    for (int i = 0; i < r.chain.block_count; i++) {
        check_block(&r, i);
    }
    const struct tensor *mean = &r.chain.tensors[run_tensor(&r, "layers.0.running_mean")];
    const float *pixels = r.batch.at[0];
    for (int e = 0; e < 18; e++) {
        double sum = 0;
        for (int b = 0; b < 6; b++) {
            sum += pixels[18 * b + e];
        }
        assert_true(fabs(((double *)r.walk.buffers)[mean->offset + e] - sum / 6) < 1e-12);
    }
    run_close(&r);
}

/* The gradients of layers behind frozen ones are those of all trained; frozen ones have none. */
static void test_frozen(void **state)
{
    (void)state;
    struct model_run all, some;
    struct mlp sizes;
    run_open(&all, "twin64", perceptron(&sizes, 0));
    run_open(&some, "twin64", perceptron(&sizes, 1));
    fill_images(&all);
    fill_images(&some);
    assert_true(run_train(&all, false, 1) == run_train(&some, false, 1));
    for (int i = 0; i < all.chain.tensor_count; i++) {
        const struct tensor *t = &some.chain.tensors[i];
        for (int64_t e = 0; e < t->numel && t->unit >= 0; e++) {
            double g = run_value(&some, some.grads, i, e);
            assert_true(g == (t->rule.role == ROLE_FROZEN ? 0 : run_value(&all, all.grads, i, e)));
        }
    }
    assert_int_equal(some.chain.units[0].role, ROLE_FROZEN);
    run_close(&all);
    run_close(&some);
}

/* All gradients, unit after unit. */
static size_t grads_bytes(const struct model_run *r, int u)
{
    return (size_t)r->chain.units[u].numel * dt_dtype_size(r->type);
}

/* All levels, also mixed: the same bits, and less memory the more is made again. */
static void test_recompute(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "twin64"};
    for (int d = 0; d < 2; d++) {
        struct model_run a, b;
        size_t saved = SIZE_MAX;
        run_open(&a, devices[d], ragged(RECOMPUTE_CHEAP));
        fill(&a);
        double x = run_train(&a, false, 0.25);
        for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++) {
            for (int every = 2; every > 0; every--) {
                struct model_spec spec = ragged((enum recompute)level);
                spec.recompute_every = every;
                run_open(&b, devices[d], spec);
                fill(&b);
                assert_true(run_train(&b, false, 0.25) == x);
                for (int u = 0; u < a.chain.unit_count; u++) {
                    assert_memory_equal(a.grads[u], b.grads[u], grads_bytes(&a, u));
                }
                assert_true(fabs(run_eval(&b) - x) <= 1e-6 * x);
                assert_int_equal(b.chain.blocks[1].recompute, level);
                assert_int_equal(b.chain.blocks[2].recompute, every == 1 ? level : RECOMPUTE_CHEAP);
                if (every == 1) {
                    assert_true(b.chain.blocks[1].bytes[PLACE_KEPT] < saved);
                    saved = b.chain.blocks[1].bytes[PLACE_KEPT];
                }
                run_close(&b);
            }
        }
        run_close(&a);
    }
}

static void test_overwrite_and_accumulate(void **state)
{
    (void)state;
    struct model_run once, more;
    run_open(&once, "twin64", ragged(RECOMPUTE_CHEAP));
    run_open(&more, "twin64", ragged(RECOMPUTE_CHEAP));
    fill(&once);
    fill(&more);
    (void)run_train(&once, false, 1);
    const double mark = 123456;
    for (int u = 0; u < more.chain.unit_count; u++) {
        for (int64_t e = 0; e < more.chain.units[u].numel; e++) {
            run_set(&more, more.grads[u], e, mark);
        }
    }
    (void)run_train(&more, false, 1); /* overwrites all tensors, touches nothing between them */
    for (int u = 0; u < more.chain.unit_count; u++) {
        double *got = more.grads[u], *expected = once.grads[u];
        bool *tensor = test_calloc((size_t)more.chain.units[u].numel, sizeof *tensor);
        for (int i = 0; i < more.chain.tensor_count; i++) {
            const struct tensor *t = &more.chain.tensors[i];
            memset(tensor + (t->unit == u ? t->offset : 0), 1, t->unit == u ? (size_t)t->numel : 0);
        }
        for (int64_t e = 0; e < more.chain.units[u].numel; e++) {
            assert_true(got[e] == (tensor[e] ? expected[e] : mark));
        }
        test_free(tensor);
    }
    (void)run_train(&more, true, 1);
    for (int i = 0; i < more.chain.tensor_count; i++) {
        for (int64_t e = 0; e < more.chain.tensors[i].numel; e++) {
            double one = run_value(&once, once.grads, i, e), two = run_value(&more, more.grads, i, e);
            assert_true(fabs(two - 2 * one) <= 1e-12 * (1 + fabs(one)));
        }
    }
    /* a strategy that clears everything and passes accumulate gets the same bits */
    for (int u = 0; u < more.chain.unit_count; u++) {
        memset(more.grads[u], 0, grads_bytes(&more, u));
    }
    (void)run_train(&more, true, 1);
    for (int i = 0; i < more.chain.tensor_count; i++) {
        for (int64_t e = 0; e < more.chain.tensors[i].numel; e++) {
            assert_true(run_value(&more, more.grads, i, e) == run_value(&once, once.grads, i, e));
        }
    }
    run_close(&once);
    run_close(&more);
}

/* Largest difference of the gradients in units of each tensor's largest gradient. */
static void check_float(struct model_spec spec, double tolerance)
{
    struct model_run a, b;
    run_open(&a, "cpu", spec);
    run_open(&b, "twin64", spec);
    fill(&a);
    fill(&b);
    double x = run_train(&a, false, 0.125), y = run_train(&b, false, 0.125);
    assert_true(fabs(x - y) <= 1e-6 * fabs(y));
    for (int i = 0; i < a.chain.tensor_count; i++) {
        double most = 0, difference = 0;
        for (int64_t e = 0; e < a.chain.tensors[i].numel; e++) {
            double expected = run_value(&b, b.grads, i, e);
            most = fmax(most, fabs(expected));
            difference = fmax(difference, fabs(run_value(&a, a.grads, i, e) - expected));
        }
        if (!(difference <= tolerance * most)) {
            fail_msg("%s: difference %g of %g", a.chain.tensors[i].name, difference, most);
        }
    }
    run_close(&a);
    run_close(&b);
}

static void test_float(void **state)
{
    (void)state;
    check_float(ragged(RECOMPUTE_CHEAP), 2e-5);
    struct model_spec wide = {.name = "gpt2",
                              .sizes = &(struct gpt2){.tie_word_embeddings = true,
                                                      .n_layer = 1,
                                                      .n_head = 2,
                                                      .n_embd = 64,
                                                      .head.num_labels = 2,
                                                      .n_positions = 70,
                                                      .vocab_size = 131,
                                                      .n_inner = 256,
                                                      .layer_norm_epsilon = 1e-5,
                                                      .initializer_range = 0.02},
                              .batch_size = 2,
                              .sequence_length = 67};
    check_float(wide, 2e-5);
    /* the least values that config.json may have */
    struct gpt2 least = *(const struct gpt2 *)wide.sizes;
    least.vocab_size = 1;
    least.layer_norm_epsilon = 0;
    wide.sizes = &least;
    check_float(wide, 2e-5);
}

/* cuDNN's backward pass keeps the scores of as many sequences at a time as fit into what dqkv
 * leaves of a layer's scratch memory. With heads of 64 that is a whole number of them, so what
 * it needs besides (a float per row and head, and a little) must have room of its own: otherwise
 * it is one sequence less, or none. */
static void test_attention_has_room_for_whole_sequences(void **state)
{
    (void)state;
    static const int64_t rows[][4] = {{12, 64, 1024, 8},
                                      {16, 32, 1024, 4},
                                      {25, 24, 1024, 3},
                                      {12, 16, 2048, 1}}; /* heads, batch, positions, sequences
                                                           * at a time */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t heads = rows[i][0], batch = rows[i][1], positions = rows[i][2], all = batch * positions,
                channels = 64 * heads;
        struct model_spec spec = {.name = "gpt2",
                                  .sizes = &(struct gpt2){.tie_word_embeddings = true,
                                                          .n_layer = 1,
                                                          .n_head = heads,
                                                          .n_embd = channels,
                                                          .head.num_labels = 2,
                                                          .n_positions = positions,
                                                          .vocab_size = 64},
                                  .type = DT_BF16};
        struct chain c;
        struct dt_error err = {0};
        spec.batch_size = batch;
        spec.sequence_length = positions;
        assert_int_equal(chain_open(&c, &spec, 1, &err), 0);
        int64_t others = all * (4 * channels * 2 + 2 * 4); /* the gradient of the norm's output
                                                            * and dqkv; mean and rstd */
        int64_t scores = rows[i][3] * heads * positions * positions * 2;
        assert_true((int64_t)c.blocks[1].bytes[PLACE_CALL] - others >= scores + all * heads * 4 + 4096 + 2 * 255);
        chain_close(&c);
    }
}

/* More rows than one chunk of logits takes: the same as the halves of the batch, added up. */
static void test_head_chunks(void **state)
{
    (void)state;
    struct model_spec spec = {.name = "gpt2",
                              .sizes = &(struct gpt2){.tie_word_embeddings = true,
                                                      .n_layer = 1,
                                                      .n_head = 1,
                                                      .n_embd = 2,
                                                      .head.num_labels = 2,
                                                      .n_positions = 33,
                                                      .vocab_size = 140000,
                                                      .n_inner = 4,
                                                      .layer_norm_epsilon = 1e-5,
                                                      .initializer_range = 0.02},
                              .batch_size = 2,
                              .sequence_length = 33};
    struct model_run whole, half;
    run_open(&whole, "twin64", spec);
    spec.batch_size = 1;
    run_open(&half, "twin64", spec);
    fill(&whole);
    fill(&half);
    /* two chunks */
    assert_true(whole.chain.blocks[2].bytes[PLACE_CALL] < 66 * 140000 * sizeof(double));
    double expected = run_train(&whole, false, 1), sum = run_train(&half, false, 1);
    memcpy(half.ids, whole.ids + 33, 33 * sizeof *half.ids);
    memcpy(half.labels, whole.labels + 33, 33 * sizeof *half.labels);
    sum += run_train(&half, true, 1);
    assert_true(fabs(sum - expected) <= 1e-12 * expected);
    for (int i = 0; i < whole.chain.tensor_count; i++) {
        for (int64_t e = 0; e < whole.chain.tensors[i].numel; e += 3) {
            double g = run_value(&whole, whole.grads, i, e);
            assert_true(fabs(run_value(&half, half.grads, i, e) - g) <= 1e-11 * (1 + fabs(g)));
        }
    }
    run_close(&whole);
    run_close(&half);
}

static const struct gpt2 thin = {.tie_word_embeddings = true,
                                 .n_layer = 1,
                                 .n_head = 1,
                                 .n_embd = 2,
                                 .head.num_labels = 2,
                                 .n_positions = 1024,
                                 .vocab_size = 50257,
                                 .n_inner = 4,
                                 .layer_norm_epsilon = 1e-5,
                                 .initializer_range = 0.02};

/* On a GPU a chunk has 8192 rows within 1 GiB, or a quarter of the batch's within 4 GiB. */
static void test_head_chunks_of_a_gpu(void **state)
{
    (void)state;
    static const int64_t cases[][3] = {{4, 50257, 4096},    {8, 50257, 8192},   {12, 50257, 6144},
                                       {16, 50257, 8192},   {64, 50257, 16384}, {65, 50257, 16640},
                                       {128, 50257, 32768}, {4, 256000, 2048},  {64, 256000, 8192}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gpt2 sizes = thin;
        sizes.vocab_size = cases[i][1];
        struct model_spec spec = {.name = "gpt2",
                                  .sizes = &sizes,
                                  .batch_size = cases[i][0],
                                  .sequence_length = 1024,
                                  .own_memory = true,
                                  .type = DT_BF16};
        struct chain c;
        struct dt_error err = {0};
        assert_int_equal(chain_open(&c, &spec, 1, &err), 0);
        const struct block *head = &c.blocks[2];
        int found = 0;
        while (strcmp(head->memory[found].name, "logits") != 0) {
            found++;
        }
        int64_t row_bytes = (cases[i][1] + 63) / 64 * 64 * 2;
        assert_int_equal(head->memory[found].size_bytes, cases[i][2] * row_bytes);
        chain_close(&c);
    }
}

/* A batch that is not full may divide into larger chunks than a full one: 192 rows are one, 193 are two
 * of 128 and 65. It stays within the room that there is. */
static void test_head_chunks_of_fewer_rows(void **state)
{
    (void)state;
    struct gpt2 sizes = thin;
    sizes.vocab_size = 70000;
    struct model_spec spec = {.name = "gpt2", .sizes = &sizes, .batch_size = 193, .sequence_length = 1};
    struct model_run room, full;
    run_open(&room, "twin64", spec);
    spec.batch_size = 192;
    run_open(&full, "twin64", spec);
    fill(&room);
    fill(&full);
    room.batch.samples = 192;
    room.batch.weight = full.batch.weight;
    double expected = run_train(&full, false, 1), loss = run_train(&room, false, 1);
    assert_true(fabs(loss - expected) <= 1e-12 * expected);
    for (int i = 0; i < full.chain.tensor_count; i++) {
        for (int64_t e = 0; e < full.chain.tensors[i].numel; e++) {
            double g = run_value(&full, full.grads, i, e);
            assert_true(fabs(run_value(&room, room.grads, i, e) - g) <= 1e-11 * (1 + fabs(g)));
        }
    }
    run_close(&room);
    run_close(&full);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_perceptron),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_float),
        cmocka_unit_test(test_overwrite_and_accumulate),
        cmocka_unit_test(test_head_chunks),
        cmocka_unit_test(test_head_chunks_of_a_gpu),
        cmocka_unit_test(test_head_chunks_of_fewer_rows),
        cmocka_unit_test(test_attention_has_room_for_whole_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
