/* covers: worker/model/batch.c worker/model/blocks/packed.c worker/model/blocks/embed.c worker/model/models */
/* Documents in a sample: the loss of a packed row, and its gradients, are those of its documents alone,
 * in every model that knows documents. */
#include "tests/lib/block_check.h"

#include "worker/model/model.h"

#include <cjson/cJSON.h>

enum { LENGTH = 12, END = 3, DOCUMENTS = 4 };

/* the lengths of a row's documents; one is its end alone, and the last one has no end */
static const int lengths[DOCUMENTS] = {5, 1, 4, 2};

#define LLAMA_LIKE                                                                                                     \
    "\"hidden_size\":12,\"intermediate_size\":20,\"num_hidden_layers\":2,\"num_attention_heads\":3,"                   \
    "\"num_key_value_heads\":1,\"head_dim\":4,\"vocab_size\":17,\"pad_token_id\":0,\"max_position_embeddings\":32}"
static const char *const configs[] = {
    "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":3,\"n_embd\":12,\"n_positions\":32,\"vocab_size\":17,"
    "\"attn_pdrop\":0,\"embd_pdrop\":0,\"resid_pdrop\":0}",
    "{\"model_type\":\"llama\"," LLAMA_LIKE,
    "{\"model_type\":\"qwen2\"," LLAMA_LIKE,
    "{\"model_type\":\"qwen3\"," LLAMA_LIKE,
    "{\"model_type\":\"mistral\",\"sliding_window\":3," LLAMA_LIKE,
    "{\"model_type\":\"gemma2\",\"sliding_window\":3," LLAMA_LIKE,
    "{\"model_type\":\"gemma3_text\",\"sliding_window\":3," LLAMA_LIKE,
    "{\"model_type\":\"smollm3\"," LLAMA_LIKE,
    "{\"model_type\":\"phi3\"," LLAMA_LIKE,
    "{\"model_type\":\"olmo2\"," LLAMA_LIKE,
    "{\"model_type\":\"granite\"," LLAMA_LIKE,
};
enum { CONFIGS = sizeof configs / sizeof configs[0] };

static int32_t id_of(int document, int at)
{
    int end = document + 1 < DOCUMENTS ? lengths[document] - 1 : -1;
    return at == end ? END : 4 + (document * 7 + at * 5) % 13;
}

static void open_config(struct model_run *r, const char *device, const char *config, int64_t samples, int64_t length,
                        bool documents)
{
    struct dt_error err;
    struct model_sizes sizes;
    cJSON *json = cJSON_Parse(config);
    const struct model_ops *ops = model_find(cJSON_GetObjectItemCaseSensitive(json, "model_type")->valuestring);
    assert_non_null(ops);
    assert_true(ops->documents);
    if (model_read_folder(ops, json, sizes.bytes, &err) != 0) {
        fail_msg("%s", err.text);
    }
    cJSON_Delete(json);
    run_open(r, device,
             (struct model_spec){.name = ops->name,
                                 .sizes = sizes.bytes,
                                 .batch_size = samples,
                                 .sequence_length = length,
                                 .recompute = RECOMPUTE_BLOCK,
                                 .documents = documents});
    random_state = 5;
    for (int i = 0; i < r->chain.tensor_count; i++) {
        const struct tensor *t = &r->chain.tensors[i];
        for (int64_t e = 0; e < t->numel; e++) {
            run_set(r, r->weights[t->unit], t->offset + e,
                    (double)(float)(0.5 * noise() + (t->rule.init == INIT_ONE ? 1 : 0)));
        }
    }
}

/* Two rows, of which the second has the documents in another order: positions of equal documents differ. */
static int order_of(int64_t row, int i)
{
    return row == 0 || i + 1 == DOCUMENTS ? i : DOCUMENTS - 2 - i;
}

static void fill_packed(struct model_run *r, int64_t rows, bool shift_over)
{
    for (int64_t row = 0; row < rows; row++) {
        int32_t *ids = r->ids + row * LENGTH, *labels = r->labels + row * LENGTH;
        int at = 0;
        for (int i = 0; i < DOCUMENTS; i++) {
            for (int k = 0; k < lengths[order_of(row, i)]; k++) {
                ids[at++] = id_of(order_of(row, i), k);
            }
        }
        assert_int_equal(at, LENGTH);
        for (int t = 0; t < LENGTH; t++) {
            labels[t] = t + 1 < LENGTH && (shift_over || ids[t] != END) ? ids[t + 1] : -100;
        }
        batch_derive(&r->batch, row);
    }
}

static void check_parts(const char *device, const char *config, double tolerance)
{
    enum { ROWS = 2 };
    struct model_run packed, plain;
    open_config(&packed, device, config, ROWS, LENGTH, true);
    batch_end_documents(&packed.chain.batch, END);
    fill_packed(&packed, ROWS, true);
    double loss = run_train(&packed, false, 1), sum = 0;
    struct model_run parts[DOCUMENTS];
    for (int i = 0; i < DOCUMENTS; i++) {
        open_config(&parts[i], device, config, 1, lengths[i], false);
        for (int k = 0; k < lengths[i]; k++) {
            parts[i].ids[k] = id_of(i, k);
            parts[i].labels[k] = k + 1 < lengths[i] ? id_of(i, k + 1) : -100;
        }
        sum += ROWS * run_train(&parts[i], false, 1);
    }
    if (!(fabs(sum - loss) <= tolerance * sum)) {
        fail_msg("%s: packed %.12g, its documents alone %.12g", config, loss, sum);
    }
    for (int t = 0; t < packed.chain.tensor_count; t++) {
        for (int64_t e = 0; e < packed.chain.tensors[t].numel; e++) {
            double g = run_value(&packed, packed.grads, t, e), own = 0;
            for (int i = 0; i < DOCUMENTS; i++) {
                own += ROWS * run_value(&parts[i], parts[i].grads, t, e);
            }
            if (!(fabs(g - own) <= 20 * tolerance * (1 + fabs(own)))) {
                fail_msg("%s: %s[%d]: packed %.12g, alone %.12g", config, packed.chain.tensors[t].name, (int)e, g, own);
            }
        }
    }
    /* the same row as one document, and with the same targets, is another sample */
    open_config(&plain, device, config, ROWS, LENGTH, false);
    fill_packed(&plain, ROWS, false);
    assert_true(fabs(run_train(&plain, false, 1) - loss) > 1e-3 * loss);
    /* evaluation sees documents, too */
    assert_true(fabs(run_eval(&packed) - loss) <= tolerance * loss);
    run_close(&plain);
    run_close(&packed);
    for (int i = 0; i < DOCUMENTS; i++) {
        run_close(&parts[i]);
    }
}

static void test_loss_of_the_parts(void **state)
{
    (void)state;
    for (int i = 0; i < CONFIGS; i++) {
        check_parts("twin64", configs[i], 1e-12);
        check_parts("cpu", configs[i], 1e-5);
    }
}

/* Models that do not know documents say so in their table. */
static void test_which_models(void **state)
{
    (void)state;
    int documents = 0;
    for (int i = 0; model_at(i) != NULL; i++) {
        documents += model_at(i)->documents;
    }
    assert_int_equal(documents, CONFIGS);
}

static void test_fields(void **state)
{
    (void)state;
    struct batch_layout l = batch_tokens(1, LENGTH, 17, "vocab_size");
    assert_false(batch_has_documents(&l));
    batch_add_documents(&l);
    batch_end_documents(&l, END);
    assert_true(batch_has_documents(&l));
    int32_t ids[LENGTH] = {5, 6, END, END, 7, 8, 9, END, 5, 5, 5, END}, labels[LENGTH], segments[LENGTH],
            positions[LENGTH];
    static const int32_t wanted_segments[LENGTH] = {0, 0, 0, 1, 2, 2, 2, 2, 3, 3, 3, 3},
                         wanted_positions[LENGTH] = {0, 1, 2, 0, 0, 1, 2, 3, 0, 1, 2, 3},
                         wanted_labels[LENGTH] = {6, END, -100, -100, 8, 9, END, -100, 5, 5, END, -100};
    for (int t = 0; t < LENGTH; t++) {
        labels[t] = ids[(t + 1) % LENGTH];
    }
    const struct batch b = {.layout = &l, .at = {ids, labels, segments, positions}, .samples = 1, .length = LENGTH};
    batch_derive(&b, 0);
    assert_memory_equal(segments, wanted_segments, sizeof segments);
    assert_memory_equal(positions, wanted_positions, sizeof positions);
    assert_memory_equal(labels, wanted_labels, sizeof labels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_which_models),
        cmocka_unit_test(test_loss_of_the_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
