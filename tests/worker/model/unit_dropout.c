/* covers: worker/model/blocks/drop.c worker/model/blocks worker/model/models worker/model/batch.c kernels/dropout.h */
/* Dropout in the models: backward equals finite differences with the same mask; the mask is a function
 * of seed, site, the sample's number and the place in the sample, whatever is computed again and
 * however a batch is cut; evaluation drops nothing; a model that drops nothing has no field for it. */
#include "tests/lib/block_check.h"

#include "kernels/dropout.h"
#include "worker/model/model.h"
#include "worker/model/models/encoders.h"

#include <cjson/cJSON.h>

enum { SAMPLES = 3, LENGTH = 5, SEED = 7 };

#define BERT_LIKE                                                                                                      \
    "\"hidden_size\":12,\"intermediate_size\":20,\"num_hidden_layers\":2,\"num_attention_heads\":3,"                   \
    "\"vocab_size\":17,\"pad_token_id\":0,\"id2label\":{\"0\":\"a\",\"1\":\"b\",\"2\":\"c\"}"
#define LLAMA_LIKE                                                                                                     \
    "\"hidden_size\":12,\"intermediate_size\":20,\"num_hidden_layers\":2,\"num_attention_heads\":3,"                   \
    "\"num_key_value_heads\":1,\"head_dim\":4,\"vocab_size\":17,\"pad_token_id\":0,\"attention_dropout\":0.3"
#define DISTILBERT "\"dim\":12,\"hidden_dim\":20,\"n_layers\":2,\"n_heads\":3,\"vocab_size\":17"
static const char *const configs[] = {
    "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":3,\"n_embd\":12,\"n_positions\":7,\"vocab_size\":17,"
    "\"attn_pdrop\":0.3,\"embd_pdrop\":0.2,\"resid_pdrop\":0.4}",
    "{\"model_type\":\"phi3\",\"resid_pdrop\":0.4," LLAMA_LIKE "}",
    "{\"model_type\":\"olmo2\"," LLAMA_LIKE "}",
    "{\"model_type\":\"gemma2\"," LLAMA_LIKE "}",
    /* the library's values, where the folder has none */
    "{\"model_type\":\"bert\"," BERT_LIKE "}",
    "{\"model_type\":\"bert\",\"architectures\":[\"BertForTokenClassification\"],\"classifier_dropout\":0.5," BERT_LIKE
    "}",
    "{\"model_type\":\"bert\",\"architectures\":[\"BertForMaskedLM\"],\"hidden_dropout_prob\":0.4," BERT_LIKE "}",
    "{\"model_type\":\"roberta\",\"classifier_dropout\":0.4," BERT_LIKE "}",
    "{\"model_type\":\"distilbert\",\"dropout\":0.3,\"attention_dropout\":0.4," DISTILBERT "}",
    "{\"model_type\":\"modernbert\",\"embedding_dropout\":0.3,\"attention_dropout\":0.3,\"mlp_dropout\":0.4,"
    "\"classifier_dropout\":0.3,\"classifier_pooling\":\"mean\"," BERT_LIKE "}",
    "{\"model_type\":\"modernbert\",\"architectures\":[\"ModernBertForTokenClassification\"],\"mlp_dropout\":0.4,"
    "\"classifier_dropout\":0.3," BERT_LIKE "}",
};
enum { CONFIGS = sizeof configs / sizeof configs[0] };

static void read_config(const struct model_ops **ops, struct model_sizes *sizes, const char *text)
{
    struct dt_error err;
    cJSON *json = cJSON_Parse(text);
    assert_non_null(json);
    *ops = model_find(cJSON_GetObjectItemCaseSensitive(json, "model_type")->valuestring);
    assert_non_null(*ops);
    if (model_read_folder(*ops, json, sizes->bytes, &err) != 0) {
        fail_msg("%s", err.text);
    }
    cJSON_Delete(json);
}

static int64_t *numbers_of(struct model_run *r)
{
    return r->batch.at[batch_numbers(r->batch.layout)];
}

/* Sets the fields of a row of the batch to those of sample `sample`. */
static void fill_row(struct model_run *r, int64_t row, int64_t sample)
{
    const struct batch_layout *l = &r->chain.batch;
    int target = batch_find(l, "labels");
    int64_t count = batch_sample_elements(l, target);
    for (int k = 0; k < l->count; k++) {
        if (l->field[k].optional) {
            batch_fill_missing(&r->batch, k, row);
        }
    }
    for (int64_t i = 0; i < LENGTH; i++) { /* no padding, whose row has no gradient */
        r->ids[row * LENGTH + i] = (int32_t)((sample * LENGTH + i) * 7 % 16 + 1);
    }
    for (int64_t i = 0; i < count; i++) {
        r->labels[row * count + i] = (int32_t)((sample * count + i) % l->field[target].below);
    }
    batch_derive(&r->batch, row);
    batch_number(&r->batch, row, 1000000007 * sample);
}

static void fill_weights(struct model_run *r)
{
    random_state = 5;
    for (int i = 0; i < r->chain.tensor_count; i++) {
        const struct tensor *t = &r->chain.tensors[i];
        for (int64_t e = 0; e < t->numel; e++) {
            run_set(r, r->weights[t->unit], t->offset + e,
                    (double)(float)(0.5 * noise() + (t->rule.init == INIT_ONE ? 1 : 0)));
        }
    }
}

static void open_config(struct model_run *r, const char *device, const char *config, int level, int64_t samples)
{
    const struct model_ops *ops;
    struct model_sizes sizes;
    read_config(&ops, &sizes, config);
    run_open(r, device,
             (struct model_spec){.name = ops->name,
                                 .sizes = sizes.bytes,
                                 .batch_size = samples,
                                 .sequence_length = LENGTH,
                                 .recompute = (enum recompute)level,
                                 .seed = SEED});
    fill_weights(r);
    for (int64_t row = 0; row < samples; row++) {
        fill_row(r, row, row);
    }
}

static void test_finite_differences(void **state)
{
    (void)state;
    for (int i = 0; i < CONFIGS; i++) {
        for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++) {
            struct model_run r;
            open_config(&r, "twin64", configs[i], level, SAMPLES);
            for (int k = 0; k < r.chain.block_count; k++) {
                check_block(&r, k);
            }
            run_close(&r);
        }
    }
}

/* The same bits at each level of recomputation. Evaluation is that of the model without dropout. */
static void test_recompute_and_evaluation(void **state)
{
    (void)state;
    for (int i = 0; i < CONFIGS; i++) {
        struct model_run none, r;
        open_config(&none, "cpu", configs[i], RECOMPUTE_NONE, SAMPLES);
        double loss = run_train(&none, false, 0.25), eval = run_eval(&none);
        assert_true(fabs(loss - eval) > 1e-4 * eval);
        for (int level = RECOMPUTE_CHEAP; level <= RECOMPUTE_BLOCK; level++) {
            open_config(&r, "cpu", configs[i], level, SAMPLES);
            assert_true(run_train(&r, false, 0.25) == loss);
            for (int u = 0; u < r.chain.unit_count; u++) {
                assert_memory_equal(r.grads[u], none.grads[u], (size_t)r.chain.units[u].numel * sizeof(float));
            }
            run_close(&r);
        }
        const struct model_ops *ops;
        struct model_sizes sizes;
        read_config(&ops, &sizes, configs[i]);
        for (const struct dt_field *f = ops->fields; f->key != NULL; f++) {
            const double no = 0;
            if (model_drops(ops, f->key)) {
                memcpy(sizes.bytes + f->offset, &no, sizeof no);
            }
        }
        run_open(&r, "cpu",
                 (struct model_spec){
                     .name = ops->name, .sizes = sizes.bytes, .batch_size = SAMPLES, .sequence_length = LENGTH});
        fill_weights(&r);
        for (int64_t row = 0; row < SAMPLES; row++) {
            fill_row(&r, row, row);
        }
        assert_true(batch_numbers(&r.chain.batch) < 0);
        assert_true(run_eval(&r) == eval);
        for (int k = 0; k < r.chain.block_count; k++) {
            assert_true(r.chain.blocks[k].bytes[PLACE_KEPT] == none.chain.blocks[k].bytes[PLACE_KEPT]);
        }
        run_close(&r);
        run_close(&none);
    }
}

/* One batch is its samples one by one, in another order. With another number, or seed, it is not. */
static void test_batches_cut_otherwise(void **state)
{
    (void)state;
    for (int i = 0; i < CONFIGS; i++) {
        struct model_run whole, one;
        double sum = 0;
        open_config(&whole, "twin64", configs[i], RECOMPUTE_CHEAP, SAMPLES);
        open_config(&one, "twin64", configs[i], RECOMPUTE_BLOCK, 1);
        double loss = run_train(&whole, false, 1);
        for (int64_t sample = SAMPLES; sample-- > 0;) {
            fill_row(&one, 0, sample);
            sum += run_train(&one, sample + 1 < SAMPLES, 1);
        }
        assert_true(fabs(sum - loss) <= 1e-12 * loss);
        for (int t = 0; t < whole.chain.tensor_count; t++) {
            for (int64_t e = 0; e < whole.chain.tensors[t].numel; e++) {
                double g = run_value(&whole, whole.grads, t, e);
                assert_true(fabs(run_value(&one, one.grads, t, e) - g) <= 1e-10 * (1 + fabs(g)));
            }
        }
        numbers_of(&whole)[1]++;
        assert_true(fabs(run_train(&whole, false, 1) - loss) > 1e-6 * loss);
        numbers_of(&whole)[1]--;
        assert_true(run_train(&whole, false, 1) == loss);
        whole.chain.spec.seed++;
        assert_true(fabs(run_train(&whole, false, 1) - loss) > 1e-6 * loss);
        run_close(&whole);
        run_close(&one);
    }
}

/* The CPU's vectors have the masks of the twin. */
static void test_float(void **state)
{
    (void)state;
    for (int i = 0; i < CONFIGS; i++) {
        struct model_run a, b;
        open_config(&a, "cpu", configs[i], RECOMPUTE_CHEAP, SAMPLES);
        open_config(&b, "twin64", configs[i], RECOMPUTE_CHEAP, SAMPLES);
        double x = run_train(&a, false, 1), y = run_train(&b, false, 1);
        assert_true(fabs(x - y) <= 2e-6 * fabs(y));
        run_close(&a);
        run_close(&b);
    }
}

/* Element by element, by the definition; and the share that is kept. */
static void test_mask_of_embeddings(void **state)
{
    (void)state;
    enum { WIDTH = 64, ROWS = 8, POSITIONS = 64, COUNT = ROWS * POSITIONS * WIDTH };
    const char *config = "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_head\":1,\"n_embd\":64,\"n_positions\":64,"
                         "\"vocab_size\":17,\"attn_pdrop\":0,\"embd_pdrop\":0.3,\"resid_pdrop\":0}";
    const struct model_ops *ops;
    struct model_sizes sizes;
    struct model_run r;
    int64_t dropped = 0, same = 0;
    read_config(&ops, &sizes, config);
    run_open(
        &r, "cpu",
        (struct model_spec){
            .name = ops->name, .sizes = sizes.bytes, .batch_size = ROWS, .sequence_length = POSITIONS, .seed = SEED});
    fill_weights(&r);
    for (int i = 0; i < ROWS * POSITIONS; i++) {
        r.ids[i] = i % 17;
    }
    for (int64_t row = 0; row < ROWS; row++) {
        numbers_of(&r)[row] = 17 + row * 3;
    }
    float *all = run_alloc(&r, COUNT * sizeof *all), *some = run_alloc(&r, COUNT * sizeof *some);
    struct pass p = {.phase = PASS_EVAL,
                     .stream = r.stream,
                     .kernels = r.device.kernels,
                     .batch = &r.batch,
                     .y = all,
                     .memory = {r.kept[0], r.walk.again, r.walk.scratch}};
    (void)run_enter(&r.walk, &r.chain.blocks[0], &p);
    chain_call(&r.chain.blocks[0], &p);
    p.phase = PASS_FORWARD;
    p.y = some;
    chain_call(&r.chain.blocks[0], &p);
    run_finish(&r);
    for (int64_t i = 0; i < COUNT; i++) {
        int64_t place = i % (POSITIONS * WIDTH);
        uint64_t key = dt_dropout_key(SEED, 0, 17 + 3 * (i / (POSITIONS * WIDTH)));
        bool kept = dt_dropout_keeps(key, place, dt_dropout_limit(0.3)) != 0;
        assert_true(some[i] == (kept ? all[i] * (float)(1 / 0.7) : 0));
        dropped += !kept;
        same += (some[i] == 0) == (some[place] == 0);
    }
    /* five deviations of a binomial distribution */
    assert_true(llabs(dropped - COUNT * 3 / 10) < (int64_t)(5 * sqrt(COUNT * 0.21)));
    /* another sample has another mask: 58 % of the elements agree by chance */
    assert_true(same < COUNT * 65 / 100);
    run_close(&r);
}

/* Null, and keys that a folder lacks. */
static void test_rates(void **state)
{
    (void)state;
    const struct model_ops *ops;
    struct model_sizes sizes;
    const struct encoder *m = (const void *)sizes.bytes;
    read_config(&ops, &sizes, "{\"model_type\":\"bert\",\"attention_probs_dropout_prob\":0," BERT_LIKE "}");
    assert_true(m->hidden_dropout == 0.1 && m->attention_dropout == 0 && m->classifier_dropout == -1);
    read_config(&ops, &sizes, "{\"model_type\":\"distilbert\"," DISTILBERT "}");
    assert_true(m->hidden_dropout == 0.1 && m->attention_dropout == 0.1 && m->classifier_dropout == 0.2);
    read_config(&ops, &sizes, "{\"model_type\":\"modernbert\"," BERT_LIKE "}");
    assert_true(m->hidden_dropout == 0 && m->attention_dropout == 0 && m->classifier_dropout == 0);
    model_defaults(ops = model_find("bert"), sizes.bytes);
    assert_true(m->hidden_dropout == 0 && m->attention_dropout == 0 && m->classifier_dropout == -1);
    struct dt_text out;
    dt_text_init(&out);
    model_write_config(ops, sizes.bytes, &out);
    assert_non_null(strstr(dt_text_str(&out), "\"classifier_dropout\": null,"));
    assert_non_null(strstr(dt_text_str(&out), "\"hidden_dropout_prob\": 0.0,"));
    dt_text_clear(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finite_differences),    cmocka_unit_test(test_recompute_and_evaluation),
        cmocka_unit_test(test_batches_cut_otherwise), cmocka_unit_test(test_float),
        cmocka_unit_test(test_mask_of_embeddings),    cmocka_unit_test(test_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
