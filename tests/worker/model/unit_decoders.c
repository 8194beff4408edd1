/* covers: worker/model/models/decoders.c worker/model/models/decoders_chain.c worker/model/models/family_keys.c worker/model/models/rope_section.c worker/model/blocks/decoder_layer.c worker/model/blocks/linear.c worker/model/blocks/rope.c worker/model/blocks/packed.c */
/* Llama and the families near it against Transformers: losses, norms, gradients and weights of small
 * models with every switch on, from their folders as save_pretrained writes them, at every level of
 * recomputation; the spellings of config.json; what is refused. */
#include "tests/lib/folder.h"
#include "tests/lib/golden_model.h"

#include "worker/model/model.h"
#include "worker/model/presets.h"

#include <sys/stat.h>
#include <unistd.h>

#define MODELS_FOLDER "tests/golden/models/"

static const struct golden cases[] = {
    {.folder = MODELS_FOLDER "llama", .batch = 2, .length = 24},
    {.folder = MODELS_FOLDER "llama3_tied", .batch = 2, .length = 32},
    /* the slowest pairs of key biases turn so little that softmax hardly sees them */
    {.folder = MODELS_FOLDER "qwen2", .batch = 2, .length = 16, .noise = "k_proj.bias", .noise_most = 1e-3},
    {.folder = MODELS_FOLDER "qwen3", .batch = 2, .length = 16},
    {.folder = MODELS_FOLDER "mistral", .batch = 2, .length = 16},
    {.folder = MODELS_FOLDER "gemma2", .batch = 2, .length = 16},
    {.folder = MODELS_FOLDER "gemma3_text", .batch = 2, .length = 16},
    {.folder = MODELS_FOLDER "smollm3", .batch = 2, .length = 16},
    {.folder = MODELS_FOLDER "phi3", .batch = 2, .length = 16},
    {.folder = MODELS_FOLDER "olmo2", .batch = 2, .length = 16},
    {.folder = MODELS_FOLDER "granite", .batch = 2, .length = 16},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static void test_double(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        golden_follow(&cases[i], "twin64", "plain", 10, true);
    }
}

static void test_float(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        /* labels that are ignored here and there */
        golden_follow(&cases[i], "cpu", i == 1 ? "local_mean" : "global_tokens", 10, true);
        for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++) {
            struct golden g = cases[i];
            g.recompute = (enum recompute)level;
            golden_follow(&g, "cpu", "plain", level == RECOMPUTE_NONE ? 10 : 2, true);
        }
    }
}

/* The loss of step 0's first batch with the weights of the folder and another config.json. */
static double loss_with(const struct golden *g, const char *config)
{
    char *hf = dt_format("%s/%s/hf", getenv("PWD"), g->folder), *own = dt_format("%s/hf", folder),
         *weights = dt_format("%s/model.safetensors", hf), *to = dt_format("%s/model.safetensors", own),
         *file = dt_format("%s/batches.safetensors", g->folder), *json = dt_format("%s/config.json", own);
    struct model_run r;
    struct st_file *batches;
    struct dt_error err;
    assert_int_equal(mkdir(own, 0700), 0);
    assert_int_equal(symlink(weights, to), 0);
    FILE *f = fopen(json, "w");
    assert_non_null(f);
    assert_true(fputs(config, f) >= 0 && fclose(f) == 0);
    golden_open(&r, g, "twin64", own);
    assert_int_equal(st_open(&batches, file, &err), 0);
    (void)golden_batch(&r, g, batches, "input_ids", 0, 0);
    double loss = run_eval(&r);
    st_close(batches);
    run_close(&r);
    assert_int_equal(unlink(to) | unlink(json) | rmdir(own), 0);
    char *all[] = {hf, own, weights, to, file, json};
    for (int i = 0; i < 6; i++) {
        free(all[i]);
    }
    return loss;
}

static char *read_config(const struct golden *g, const char *name)
{
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    char *path = dt_format("%s/%s", g->folder, name);
    assert_int_equal(dt_file_read(path, 1 << 20, &text, &err), 0);
    char *own = dt_strdup(dt_text_str(&text));
    dt_text_clear(&text);
    free(path);
    return own;
}

/* A config.json of Transformers 4 and one of 5 are the same model; so is the one that we write. */
static void test_spellings(void **state)
{
    (void)state;
    for (int i = 2; i < CASES; i++) {
        char *now = read_config(&cases[i], "hf/config.json"), *old = read_config(&cases[i], "config_4x.json");
        double loss = loss_with(&cases[i], now);
        assert_true(loss_with(&cases[i], old) == loss);
        struct model_sizes sizes;
        struct dt_error err;
        cJSON *json = cJSON_Parse(now);
        const struct model_ops *ops = model_find(cJSON_GetObjectItem(json, "model_type")->valuestring);
        assert_int_equal(model_read_config(ops, json, sizes.bytes, &err), 0);
        struct dt_text written;
        dt_text_init(&written);
        model_write_config(ops, sizes.bytes, &written);
        assert_true(loss_with(&cases[i], dt_text_str(&written)) == loss);
        dt_text_clear(&written);
        cJSON_Delete(json);
        free(now);
        free(old);
    }
}

static void refuses(const char *family, const char *config, const char *cause)
{
    struct model_sizes sizes;
    struct dt_error err = {.status = DT_OK};
    const struct model_ops *ops = model_find(family);
    cJSON *json = cJSON_Parse(config);
    const char *key = NULL;
    assert_non_null(json);
    int rc = model_read_config(ops, json, sizes.bytes, &err);
    rc = rc == 0 ? ops->check(sizes.bytes, &key, &err) : rc;
    if (rc != -1 || strstr(err.text, cause) == NULL) {
        fail_msg("%s %s: rc %d: %s", family, config, rc, err.text);
    }
    cJSON_Delete(json);
}

/* Transformers' Gemmas want a window, also where no layer has one; what it makes of a folder's sizes is noted. */
static void test_written_for_transformers(void **state)
{
    (void)state;
    struct model_sizes sizes, again;
    struct dt_text text;
    struct dt_error err;
    static const char *const families[] = {"gemma2", "gemma3_text"};
    cJSON *json =
        cJSON_Parse("{\"layer_types\": [\"full_attention\"], \"sliding_window\": null, \"num_hidden_layers\": 1, "
                    "\"hidden_size\": 20, \"num_attention_heads\": 3, \"num_key_value_heads\": 1}");
    for (int i = 0; i < 2; i++) {
        const struct model_ops *ops = model_find(families[i]);
        dt_text_init(&text);
        assert_int_equal(model_read_config(ops, json, sizes.bytes, &err), 0);
        model_write_config(ops, sizes.bytes, &text);
        cJSON *written = cJSON_Parse(dt_text_str(&text));
        assert_true(cJSON_GetObjectItem(written, "sliding_window")->valueint == 4096);
        assert_int_equal(model_read_config(ops, written, again.bytes, &err), 0);
        dt_text_reset(&text);
        ops->note_export(again.bytes, &text);
        assert_string_equal(dt_text_str(&text), "Transformers will refuse this model: hidden_size 20 is no multiple of "
                                                "num_attention_heads 3, whatever head_dim is");
        dt_text_clear(&text);
        cJSON_Delete(written);
    }
    cJSON_Delete(json);
}

/* Two spellings of one setting in one file mean what Transformers 5.24 reads. */
static void test_mixed_spellings(void **state)
{
    (void)state;
    static const struct {
        const char *family, *given, *same_as;
    } rows[] = {
        {"llama", /* rope_scaling wins as a whole; an empty one does not */
         "{\"rope_theta\": 9, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 300}, "
         "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
         "{\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2, \"rope_theta\": 9}}"},
        {"llama", "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 300}, \"rope_scaling\": {}}",
         "{\"rope_theta\": 300}"},
        {"llama", /* the length beside the section wins */
         "{\"original_max_position_embeddings\": 8, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 4, "
         "\"low_freq_factor\": 1, \"high_freq_factor\": 3, \"original_max_position_embeddings\": 32}}",
         "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 4, \"low_freq_factor\": 1, "
         "\"high_freq_factor\": 3, \"original_max_position_embeddings\": 8}}"},
        {"llama", /* YaRN's null is the ratio of the lengths */
         "{\"max_position_embeddings\": 64, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": null, "
         "\"original_max_position_embeddings\": 16}}",
         "{\"max_position_embeddings\": 64, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, "
         "\"original_max_position_embeddings\": 16}}"},
        {"gemma3_text", /* members of rope_scaling join full_attention */
         "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": 300}}, "
         "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 4}}",
         "{\"rope_theta\": 300, \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 4}}"},
        {"gemma3_text", /* what the library writes for itself does not count */
         "{\"sliding_window_pattern\": 3, \"_sliding_window_pattern\": 2}", "{\"sliding_window_pattern\": 3}"},
        {"gemma3_text", "{\"_sliding_window_pattern\": 3}", "{}"},
        {"gemma3_text", "{\"rope_parameters\": {}}", "{}"},
        {"llama", "{\"vocab_size\": 90, \"pad_token_id\": -1}", "{\"vocab_size\": 90, \"pad_token_id\": 89}"},
        {"gpt2", "{\"pad_token_id\": -1}", "{}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct model_ops *ops = model_find(rows[i].family);
        struct model_sizes given, same;
        struct dt_error err;
        cJSON *a = cJSON_Parse(rows[i].given), *b = cJSON_Parse(rows[i].same_as);
        assert_true(a != NULL && b != NULL);
        assert_int_equal(model_read_config(ops, a, given.bytes, &err), 0);
        assert_int_equal(model_read_config(ops, b, same.bytes, &err), 0);
        for (const struct dt_field *f = ops->fields; f->key != NULL; f++) {
            if (!model_same(ops, f->key, given.bytes, same.bytes)) {
                fail_msg("%s: %s: %s", rows[i].family, rows[i].given, f->key);
            }
        }
        cJSON_Delete(a);
        cJSON_Delete(b);
    }
}

/* config.json as Transformers 5 writes it of a text model of 62 layers that 4.x took out of a published Gemma 3. */
static char *written_by_5(void)
{
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(
        &text,
        "{\"_sliding_window_pattern\": 6, \"architectures\": [\"Gemma3ForCausalLM\"], \"attn_logit_softcapping\": "
        "null, \"dtype\": \"bfloat16\", \"eos_token_id\": [1, 106], \"final_logit_softcapping\": null, "
        "\"head_dim\": 128, \"hidden_size\": 5376, \"intermediate_size\": 21504, \"num_attention_heads\": 32, "
        "\"num_hidden_layers\": 62, \"num_key_value_heads\": 16, \"query_pre_attn_scalar\": 168, "
        "\"sliding_window\": 1024, \"use_bidirectional_attention\": false, \"rope_parameters\": "
        "{\"full_attention\": {\"factor\": 8.0, \"rope_theta\": 1000000, \"rope_type\": \"linear\"}, "
        "\"sliding_attention\": {\"rope_theta\": 10000, \"rope_type\": \"default\"}}, \"layer_types\": [");
    for (int i = 0; i < 62; i++) {
        dt_text_printf(&text, "%s\"%s_attention\"", i > 0 ? ", " : "", (i + 1) % 6 == 0 ? "full" : "sliding");
    }
    dt_text_puts(&text, "]}");
    char *config = dt_strdup(dt_text_str(&text));
    dt_text_clear(&text);
    return config;
}

/* Gemma 3's text models as they are published: scaled positions are those of layers without a window. */
static void test_published_gemma3(void **state)
{
    (void)state;
    char *largest = written_by_5();
    const char *const rows[][2] = {
        {"gemma-3-1b",
         "{\"architectures\": [\"Gemma3ForCausalLM\"], \"attention_bias\": false, \"attn_logit_softcapping\": null, "
         "\"cache_implementation\": \"hybrid\", \"eos_token_id\": [1, 106], \"final_logit_softcapping\": null, "
         "\"head_dim\": 256, \"hidden_activation\": \"gelu_pytorch_tanh\", \"hidden_size\": 1152, "
         "\"initializer_range\": 0.02, \"intermediate_size\": 6912, \"max_position_embeddings\": 32768, "
         "\"num_attention_heads\": 4, \"num_hidden_layers\": 26, \"num_key_value_heads\": 1, \"pad_token_id\": 0, "
         "\"query_pre_attn_scalar\": 256, \"rms_norm_eps\": 1e-06, \"rope_local_base_freq\": 10000, \"rope_scaling\": "
         "null, \"rope_theta\": 1000000, \"sliding_window\": 512, \"sliding_window_pattern\": 6, \"torch_dtype\": "
         "\"bfloat16\", \"vocab_size\": 262144}"},
        {"gemma-3-4b", /* the section text_config, which leaves out the defaults */
         "{\"hidden_size\": 2560, \"intermediate_size\": 10240, \"num_hidden_layers\": 34, \"rope_scaling\": "
         "{\"factor\": 8.0, \"rope_type\": \"linear\"}, \"sliding_window\": 1024}"},
        {"gemma-3-12b",
         "{\"hidden_size\": 3840, \"intermediate_size\": 15360, \"num_attention_heads\": 16, \"num_hidden_layers\": "
         "48, \"num_key_value_heads\": 8, \"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}, "
         "\"sliding_window\": 1024}"},
        {"gemma-3-27b", largest}};
    const struct model_ops *ops = model_find("gemma3_text");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_sizes given, same;
        struct dt_error err;
        cJSON *config = cJSON_Parse(rows[i][1]);
        assert_non_null(config);
        assert_int_equal(model_read_config(ops, config, given.bytes, &err), 0);
        assert_int_equal(preset_sizes(preset_find(rows[i][0]), same.bytes, &err), 0);
        for (const struct dt_field *f = ops->fields; f->key != NULL; f++) {
            if (!model_same(ops, f->key, given.bytes, same.bytes)) {
                fail_msg("%s: %s", rows[i][0], f->key);
            }
        }
        cJSON_Delete(config);
    }
    free(largest);
}

/* The config.json of a model that a job describes, as text without spaces. */
static char *written(const char *family, const char *sizes_of)
{
    struct model_sizes sizes;
    struct dt_error err;
    struct dt_text text;
    const struct model_ops *ops = model_find(family);
    cJSON *json = cJSON_Parse(sizes_of), *back;
    dt_text_init(&text);
    assert_int_equal(model_read_config(ops, json, sizes.bytes, &err), 0);
    model_write_config(ops, sizes.bytes, &text);
    back = cJSON_Parse(dt_text_str(&text));
    char *plain = cJSON_PrintUnformatted(back);
    cJSON_Delete(json);
    cJSON_Delete(back);
    dt_text_clear(&text);
    return plain;
}

/* layer_types makes the library's Mistral a Ministral, which needs a window; a Mistral with layers of both kinds
 * is one. */
static void test_layers_written(void **state)
{
    (void)state;
    static const struct {
        const char *family, *sizes;
        bool listed;
        const char *window;
    } rows[] = {
        {"mistral", "{\"num_hidden_layers\": 2, \"sliding_window\": null}", false, "\"sliding_window\":null"},
        {"mistral", "{\"num_hidden_layers\": 2, \"sliding_window\": 8}", false, "\"sliding_window\":8"},
        {"mistral", "{\"num_hidden_layers\": 1, \"sliding_window\": 8, \"layer_types\": [\"full_attention\"]}", false,
         "\"sliding_window\":null"},
        {"mistral",
         "{\"num_hidden_layers\": 2, \"sliding_window\": 8, \"layer_types\": [\"full_attention\", "
         "\"sliding_attention\"]}",
         true, "\"sliding_window\":8"},
        {"phi3", "{\"num_hidden_layers\": 2, \"sliding_window\": 8}", false, "\"sliding_window\":8"},
        {"qwen2", "{\"num_hidden_layers\": 2}", true, "\"sliding_window\":4096"},
        {"gemma2", "{\"num_hidden_layers\": 2}", true, "\"sliding_window\":4096"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *config = written(rows[i].family, rows[i].sizes);
        if ((strstr(config, "\"layer_types\"") != NULL) != rows[i].listed || strstr(config, rows[i].window) == NULL) {
            fail_msg("%s %s: %s", rows[i].family, rows[i].sizes, config);
        }
        cJSON_free(config);
    }
}

static void test_notes_of_exports(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"{\"max_position_embeddings\": 64, \"rope_type\": \"llama3\", \"rope_original_max_position_embeddings\": "
         "8192}",
         "(8192), and model.max_position_embeddings is 64"},
        {"{\"max_position_embeddings\": 64, \"rope_type\": \"llama3\", \"rope_original_max_position_embeddings\": 32}",
         ""},
        {"{\"max_position_embeddings\": 64, \"rope_type\": \"yarn\", \"rope_original_max_position_embeddings\": 8192}",
         ""}};
    const struct model_ops *ops = model_find("llama");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_sizes sizes;
        struct dt_error err;
        struct dt_text note;
        cJSON *json = cJSON_Parse(rows[i][0]);
        dt_text_init(&note);
        assert_int_equal(model_read_config(ops, json, sizes.bytes, &err), 0);
        ops->note_export(sizes.bytes, &note);
        if ((note.size > 0) != (*rows[i][1] != '\0') || strstr(dt_text_str(&note), rows[i][1]) == NULL) {
            fail_msg("%s: %s", rows[i][0], dt_text_str(&note));
        }
        dt_text_clear(&note);
        cJSON_Delete(json);
    }
}

static void test_refused(void **state)
{
    (void)state;
    refuses("llama", "{\"rope_scaling\": {\"rope_type\": \"longrope\"}}", "rope_type: is \"longrope\"; must be");
    refuses("phi3", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
            "rope_scaling: rope_type \"linear\" is not supported, only \"default\"; the nearest models");
    refuses("phi3",
            "{\"num_hidden_layers\": 2, \"sliding_window\": 8, \"layer_types\": [\"full_attention\", "
            "\"sliding_attention\"]}",
            "layers of both kinds");
    refuses("llama", "{\"rope_parameters\": [1]}", "rope_parameters: is [1]; must be an object");
    refuses("llama", "{\"rope_parameters\": \"default\"}", "rope_parameters: is \"default\"; must be an object");
    refuses("llama", "{\"rope_scaling\": \"linear\"}", "rope_scaling: is \"linear\"; must be an object");
    refuses("llama", "{\"rope_scaling\": {\"type\": \"linear\"}}",
            "rope_scaling: factor: missing, and rope_type \"linear\" needs it");
    refuses("llama", "{\"rope_parameters\": {\"rope_type\": \"dynamic\", \"factor\": null}}",
            "rope_parameters: factor: is null, and rope_type \"dynamic\"");
    refuses("qwen3", "{\"rope_parameters\": {\"rope_type\": \"yarn\"}}", "rope_parameters: factor: missing");
    refuses("qwen3", "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": null}}", "factor: null stands for");
    refuses("llama", "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"high_freq_factor\": 4}}",
            "rope_scaling: low_freq_factor: missing");
    refuses("llama", "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4}}",
            "rope_scaling: high_freq_factor: missing");
    refuses("llama", "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}}",
            "this model has one for all");
    refuses("gemma3_text", "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 300}}",
            "full_attention and sliding_attention");
    refuses("gemma3_text", "{\"rope_parameters\": {\"full_attention\": 5}}", "rope_parameters: full_attention: is 5");
    refuses("gemma3_text", "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\"}}}",
            "rope_parameters: full_attention: factor: missing");
    refuses("gemma3_text", "{\"rope_scaling\": {\"rope_type\": \"linear\"}}", "rope_scaling: factor: missing");
    refuses("gemma3_text", "{\"rope_parameters\": {\"sliding_attention\": {\"rope_type\": \"linear\", \"factor\": 8}}}",
            "rope_parameters: sliding_attention: only rope_type \"default\" is supported");
    refuses("llama", "{\"vocab_size\": 90, \"pad_token_id\": -91}", "pad_token_id: is -91");
    refuses("llama",
            "{\"vocab_size\": 90, \"pad_token_id\": -1, \"architectures\": [\"LlamaForSequenceClassification\"]}",
            "pad_token_id: is -1");
    refuses("gpt2", "{\"pad_token_id\": 60000, \"architectures\": [\"GPT2ForSequenceClassification\"]}",
            "pad_token_id 60000 is not below vocab_size 50257");
    refuses("llama", "{\"num_key_value_heads\": 5}", "num_key_value_heads 5");
    refuses("llama", "{\"hidden_size\": 100}", "num_attention_heads 32");
    refuses("llama", "{\"head_dim\": 5}", "head_dim");
    refuses("llama", "{\"hidden_act\": \"swish2\"}", "hidden_act");
    refuses("qwen2", "{\"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"]}",
            "use_sliding_window is false");
    refuses("qwen2", "{\"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\"]}", "layer_types lists 1");
    refuses("qwen2", "{\"layer_types\": [\"linear_attention\"]}", "layer_types");
    refuses("gemma3_text", "{\"sliding_window\": null}", "give sliding_window");
    refuses("smollm3", "{\"no_rope_layers\": [1, 0]}", "no_rope_layers lists 2");
    refuses("gemma2", "{\"query_pre_attn_scalar\": 10.5}", "query_pre_attn_scalar 10.5: Transformers loads no model");
    refuses("olmo2", "{\"vocab_size\": 1}", "pad_token_id 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_double),
        cmocka_unit_test(test_float),
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_published_gemma3),
        cmocka_unit_test(test_written_for_transformers),
        cmocka_unit_test(test_mixed_spellings),
        cmocka_unit_test(test_layers_written),
        cmocka_unit_test(test_notes_of_exports),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
