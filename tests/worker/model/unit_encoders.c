/* covers: worker/model/models/encoders.c worker/model/models/encoders_chain.c worker/model/blocks/encoder_layer.c worker/model/blocks/pooler.c worker/model/blocks/class_head.c worker/model/blocks/layernorm.c worker/model/blocks/embed.c worker/model/batch.c */
/* BERT and the families near it against Transformers: losses, norms, gradients and weights of small
 * models with padded batches, from their folders as save_pretrained writes them, at every level of
 * recomputation; each block against finite differences; the spellings of config.json; what is
 * refused. */
#include "tests/lib/block_check.h"
#include "tests/lib/golden_model.h"
#include "worker/model/model.h"
#include "worker/model/models/encoders.h"
#include "worker/model/presets.h"

#define MODELS_FOLDER "tests/golden/models/"

/* softmax does not see key biases: their gradients are noise, and Adam makes steps of it */
static const struct golden cases[] = {
    {.folder = MODELS_FOLDER "bert", .batch = 3, .length = 20, .noise = ".key.bias", .noise_most = 2.1e-2},
    {.folder = MODELS_FOLDER "roberta", .batch = 2, .length = 16, .noise = ".key.bias", .noise_most = 1.1e-2},
    {.folder = MODELS_FOLDER "distilbert", .batch = 2, .length = 16, .noise = "k_lin.bias", .noise_most = 1.1e-2},
    {.folder = MODELS_FOLDER "modernbert", .batch = 2, .length = 16},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static void test_double(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        golden_follow(&cases[i], "twin64", "plain", 10, true);
    }
    golden_follow(&cases[1], "twin64", "warmup", 10, true);
}

static void test_float(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++) {
            struct golden g = cases[i];
            g.recompute = (enum recompute)level;
            golden_follow(&g, "cpu", "plain", level == RECOMPUTE_NONE ? 10 : 2, true);
        }
    }
}

/* The names of the first published files, with other heads and buffers in them. */
static void test_legacy_names(void **state)
{
    (void)state;
    struct golden g = cases[0];
    g.hf = "hf_legacy";
    golden_follow(&g, "twin64", "plain", 2, true);
}

/* ---- blocks ---- */

static void read_config(const struct model_ops **ops, struct model_sizes *sizes, const char *text)
{
    struct dt_error err;
    cJSON *json = cJSON_Parse(text);
    assert_non_null(json);
    *ops = model_find(cJSON_GetObjectItemCaseSensitive(json, "model_type")->valuestring);
    assert_non_null(*ops);
    if (model_read_config(*ops, json, sizes->bytes, &err) != 0) {
        fail_msg("%s", err.text);
    }
    cJSON_Delete(json);
}

/* Masked tokens in the middle and at the end of rows, and labels that are ignored. No id is that of
 * padding, whose gradient is 0 by definition; the golden models have it. */
static void fill(struct model_run *r)
{
    int64_t padding = model_integer(model_find(r->chain.spec.name), r->chain.spec.sizes, "pad_token_id");
    const struct batch_layout *l = &r->chain.batch;
    int mask = batch_find(l, "attention_mask"), types = batch_find(l, "token_type_ids"),
        target = batch_find(l, "labels");
    int64_t length = r->batch.length, rows = r->batch.samples * length;
    random_state = 5;
    for (int i = 0; i < r->chain.tensor_count; i++) {
        const struct tensor *t = &r->chain.tensors[i];
        for (int64_t e = 0; e < t->numel; e++) {
            run_set(r, r->weights[t->unit], t->offset + e,
                    (double)(float)(0.5 * noise() + (t->rule.init == INIT_ONE ? 1 : 0)));
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        bool masked = i / length == 1 ? i % length >= 3 : i % length == 2;
        r->ids[i] = (int32_t)((i * 7 + 3) % l->field[0].below);
        r->ids[i] += r->ids[i] == padding;
        ((int32_t *)r->batch.at[mask])[i] = !masked;
        if (types >= 0) {
            ((int32_t *)r->batch.at[types])[i] = (int32_t)(i % l->field[types].below);
        }
    }
    for (int64_t i = 0; i < r->batch.samples; i++) {
        batch_derive(&r->batch, i);
    }
    for (int64_t i = 0; i < batch_elements(l, target); i++) {
        r->labels[i] = i % 4 == 1 ? DT_IGNORE_INDEX : (int32_t)(i % l->field[target].below);
    }
}

#define BERT_LIKE                                                                                                      \
    "\"hidden_size\":12,\"intermediate_size\":20,\"num_hidden_layers\":2,\"num_attention_heads\":3,"                   \
    "\"vocab_size\":17,\"id2label\":{\"0\":\"a\",\"1\":\"b\",\"2\":\"c\"}"
static const char *const configs[] = {
    "{\"model_type\":\"bert\",\"max_position_embeddings\":7,\"pad_token_id\":3," BERT_LIKE "}",
    "{\"model_type\":\"bert\",\"architectures\":[\"BertForTokenClassification\"],\"hidden_act\":\"relu\"," BERT_LIKE
    ",\"pad_token_id\":null,\"type_vocab_size\":3}",
    "{\"model_type\":\"camembert\",\"max_position_embeddings\":9,\"type_vocab_size\":1," BERT_LIKE "}",
    "{\"model_type\":\"distilbert\",\"dim\":12,\"hidden_dim\":20,\"n_layers\":1,\"n_heads\":2,\"vocab_size\":17}",
    "{\"model_type\":\"modernbert\",\"pad_token_id\":0,\"classifier_pooling\":\"mean\",\"norm_bias\":true,"
    "\"attention_bias\":true,\"mlp_bias\":true,\"classifier_bias\":true,\"local_attention\":3,"
    "\"global_attn_every_n_layers\":2," BERT_LIKE "}",
    "{\"model_type\":\"modernbert\",\"pad_token_id\":0,\"architectures\":[\"ModernBertForTokenClassification\"],"
    "\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"local_attention\":2," BERT_LIKE "}",
    "{\"model_type\":\"distilbert\",\"architectures\":[\"DistilBertForMaskedLM\"],\"dim\":12,\"hidden_dim\":20,"
    "\"n_layers\":1,\"n_heads\":2,\"vocab_size\":17}",
    "{\"model_type\":\"modernbert\",\"pad_token_id\":0,\"architectures\":[\"ModernBertForMaskedLM\"]," BERT_LIKE "}",
    /* decoders that give sequences classes */
    "{\"model_type\":\"llama\",\"pad_token_id\":0,\"architectures\":[\"LlamaForSequenceClassification\"]," BERT_LIKE
    "}",
    "{\"model_type\":\"gemma2\",\"architectures\":[\"Gemma2ForSequenceClassification\"],\"head_dim\":4,"
    "\"num_key_value_heads\":1,\"sliding_window\":2," BERT_LIKE "}",
};
enum { CONFIGS = sizeof configs / sizeof configs[0] };

static void open_config(struct model_run *r, const char *device, const char *config, int level)
{
    const struct model_ops *ops;
    struct model_sizes sizes;
    read_config(&ops, &sizes, config);
    run_open(r, device,
             (struct model_spec){.name = ops->name,
                                 .sizes = sizes.bytes,
                                 .batch_size = 3,
                                 .sequence_length = 5,
                                 .recompute = (enum recompute)level});
    fill(r);
}

static void test_finite_differences(void **state)
{
    (void)state;
    for (int i = 0; i < CONFIGS; i++) {
        for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++) {
            struct model_run r;
            open_config(&r, "twin64", configs[i], level);
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
    for (int i = 0; i < CONFIGS; i++) {
        struct model_run none, r;
        open_config(&none, "cpu", configs[i], RECOMPUTE_NONE);
        double loss = run_train(&none, false, 0.25);
        int last =
            (int)model_integer(model_find(none.chain.spec.name), none.chain.spec.sizes,
                               strcmp(none.chain.spec.name, "distilbert") == 0 ? "n_layers" : "num_hidden_layers");
        size_t saved = none.chain.blocks[last].bytes[PLACE_KEPT];
        for (int level = RECOMPUTE_CHEAP; level <= RECOMPUTE_BLOCK; level++) {
            open_config(&r, "cpu", configs[i], level);
            assert_true(run_train(&r, false, 0.25) == loss);
            assert_true(fabs(run_eval(&r) - loss) <= 1e-6 * loss);
            for (int u = 0; u < r.chain.unit_count; u++) {
                assert_memory_equal(r.grads[u], none.grads[u], (size_t)r.chain.units[u].numel * sizeof(float));
            }
            assert_true(r.chain.blocks[last].bytes[PLACE_KEPT] < saved);
            saved = r.chain.blocks[last].bytes[PLACE_KEPT];
            run_close(&r);
        }
        run_close(&none);
    }
}

/* ---- config.json ---- */

/* A config is read, written and read again; both give the same sizes. */
static void test_spellings(void **state)
{
    (void)state;
    static const char *const files[] = {"bert/hf/config.json",       "roberta/hf/config.json",
                                        "roberta/config_4x.json",    "distilbert/hf/config.json",
                                        "distilbert/config_4x.json", "modernbert/hf/config.json",
                                        "modernbert/config_4x.json"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct model_sizes sizes, again;
        const struct model_ops *ops;
        struct dt_text text, out;
        struct dt_error err;
        char *path = dt_format(MODELS_FOLDER "%s", files[i]);
        dt_text_init(&text);
        dt_text_init(&out);
        assert_int_equal(dt_file_read(path, 1 << 20, &text, &err), 0);
        read_config(&ops, &sizes, dt_text_str(&text));
        model_write_config(ops, sizes.bytes, &out);
        read_config(&ops, &again, dt_text_str(&out));
        const struct encoder *a = (const void *)sizes.bytes, *b = (const void *)again.bytes;
        assert_int_equal(a->num_labels, 3);
        assert_true(a->vocab_size == b->vocab_size && a->num_labels == b->num_labels && a->task == b->task);
        assert_true(a->global_rope_theta == b->global_rope_theta && a->local_rope_theta == b->local_rope_theta);
        for (int64_t k = 0; b->layer_types.count > 0 && k < a->num_hidden_layers; k++) {
            assert_true(b->layer_types.of[k] == (k > 0)); /* as in both spellings of the golden model */
        }
        dt_text_clear(&text);
        dt_text_clear(&out);
        free(path);
    }
}

static void check_refused(const char *config, const char *expected)
{
    struct model_sizes sizes;
    struct dt_error err = {0};
    struct chain c = {.blocks = NULL};
    cJSON *json = cJSON_Parse(config);
    const struct model_ops *ops = model_find(cJSON_GetObjectItemCaseSensitive(json, "model_type")->valuestring);
    bool good = model_read_config(ops, json, sizes.bytes, &err) == 0;
    const struct model_spec spec = {
        .name = ops->name, .sizes = sizes.bytes, .batch_size = 1, .sequence_length = 8, .type = DT_F32};
    assert_int_equal(good && chain_open(&c, &spec, 1, &err) == 0, 0);
    if (strstr(err.text, expected) == NULL) {
        fail_msg("%s: says: %s", config, err.text);
    }
    cJSON_Delete(json);
}

static void test_refused(void **state)
{
    (void)state;
    check_refused("{\"model_type\":\"bert\",\"is_decoder\":true}", "is_decoder: only false");
    check_refused("{\"model_type\":\"bert\",\"position_embedding_type\":\"relative_key\"}",
                  "position_embedding_type: \"relative_key\"");
    check_refused(
        "{\"model_type\":\"bert\",\"id2label\":{\"0\":\"x\"},\"problem_type\":\"single_label_classification\"}",
        "num_labels 1: with one class");
    check_refused(
        "{\"model_type\":\"bert\",\"id2label\":{\"0\":\"x\"},\"architectures\":[\"BertForTokenClassification\"]}",
        "num_labels 1: with one class");
    check_refused(
        "{\"model_type\":\"bert\",\"problem_type\":\"regression\",\"architectures\":[\"BertForTokenClassification\"]}",
        "problem_type: each token has one class");
    check_refused("{\"model_type\":\"bert\",\"problem_type\":\"ranking\"}", "problem_type");
    check_refused("{\"model_type\":\"bert\",\"num_attention_heads\":7}", "cannot be split among num_attention_heads 7");
    check_refused("{\"model_type\":\"distilbert\",\"sinusoidal_pos_embds\":true}", "sinusoidal_pos_embds");
    check_refused("{\"model_type\":\"distilbert\",\"n_heads\":7}", "dim 768 cannot be split among n_heads 7");
    check_refused("{\"model_type\":\"roberta\",\"max_position_embeddings\":9}",
                  "set data.sequence_length to 7 or less");
    check_refused("{\"model_type\":\"modernbert\",\"vocab_size\":99}", "pad_token_id 50283 is not below");
    check_refused("{\"model_type\":\"modernbert\",\"layer_types\":[\"full_attention\"]}", "lists 1 layers");
    check_refused("{\"model_type\":\"modernbert\",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\"}}}",
                  "full_attention: rope_type: \"yarn\"");
    check_refused("{\"model_type\":\"modernbert\",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":300}}",
                  "rope_parameters: this model has a section for each kind of layers");
    check_refused("{\"model_type\":\"modernbert\",\"rope_parameters\":\"default\"}", "rope_parameters: is \"default\"");
    check_refused("{\"model_type\":\"modernbert\",\"rope_parameters\":{\"sliding_attention\":[1]}}",
                  "rope_parameters: sliding_attention: is [1]");
    check_refused("{\"model_type\":\"modernbert\",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
                  "rope_scaling: only null");
}

/* Families that are RoBERTa by another name keep the names of their classes. */
static void test_classes(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        {"roberta", "RobertaForSequenceClassification", "RobertaForMaskedLM"},
        {"xlm-roberta", "XLMRobertaForSequenceClassification", "XLMRobertaForMaskedLM"},
        {"camembert", "CamembertForSequenceClassification", "CamembertForMaskedLM"},
        {"bert", "BertForSequenceClassification", "BertForMaskedLM"},
        {NULL, "RobertaForSequenceClassification", "RobertaForMaskedLM"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct model_ops *ops = model_find(rows[i][0] != NULL ? rows[i][0] : "roberta");
        struct encoder sizes = {0};
        char *class = model_class(ops, &sizes, rows[i][0]);
        assert_string_equal(class, rows[i][1]);
        free(class);
        sizes.task = ENCODER_MASKED;
        class = model_class(ops, &sizes, rows[i][0]);
        assert_string_equal(class, rows[i][2]);
        free(class);
    }
}

/* Of published models with two classes. */
static void test_parameter_counts(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t count;
    } rows[] = {{"bert-base", 109483778},       {"roberta-base", 124647170},
                {"roberta-large", 355361794},   {"distilbert-base", 66955010},
                {"modernbert-base", 149606402}, {"distilbert-base-multilingual", 135326210},
                {"modernbert-large", 395833346}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct preset *p = preset_find(rows[i].name);
        struct model_sizes sizes;
        struct chain c;
        struct dt_error err;
        assert_non_null(p);
        assert_int_equal(preset_sizes(p, sizes.bytes, &err), 0);
        const struct model_spec spec = {
            .name = p->family, .sizes = sizes.bytes, .batch_size = 1, .sequence_length = 1, .type = DT_F32};
        assert_int_equal(chain_open(&c, &spec, 1, &err), 0);
        assert_int_equal(c.parameter_count, rows[i].count);
        chain_close(&c);
    }
}

/* Truncated normal values have the deviation that scipy.stats.truncnorm(-2, 2) has, and none lies
 * further out. Each is a function of its element alone. */
static void test_initial_values(void **state)
{
    (void)state;
    enum { COUNT = 40000 };
    static double x[COUNT], part[8];
    const struct tensor t = {.name = "x",
                             .dims = 2,
                             .shape = {COUNT, 1},
                             .numel = COUNT,
                             .rule = {.init = INIT_NORMAL, .init_std = 0.5, .init_cut = 2}};
    double sum = 0, squares = 0, most = 0;
    init_values(&t, 7, 0, COUNT, x);
    for (int i = 0; i < COUNT; i++) {
        sum += x[i];
        squares += x[i] * x[i];
        most = fmax(most, fabs(x[i]));
    }
    assert_true(most <= 1 && most > 0.99);
    assert_true(fabs(sum / COUNT) < 0.01 && fabs(sqrt(squares / COUNT) - 0.5 * 0.8796) < 0.005);
    init_values(&t, 7, 1001, 8, part);
    assert_memory_equal(part, x + 1001, sizeof part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_double),           cmocka_unit_test(test_float),
        cmocka_unit_test(test_legacy_names),     cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_recompute),        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_refused),          cmocka_unit_test(test_classes),
        cmocka_unit_test(test_parameter_counts), cmocka_unit_test(test_initial_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
