/* covers: worker/model/refused.c worker/model/hf_config.c base/config.c */
/* Models that are not supported are refused by name, with what they have and the nearest that works: the
 * configurations of tests/golden/refused as Transformers writes them, names alone, keys of model types that
 * nobody has listed, and settings of supported models that no model computes. */
#include "worker/model/refused.h"

#include "base/file.h"
#include "tests/lib/folder.h"
#include "worker/model/hf_config.h"
#include "worker/model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN "tests/golden/refused/"

static int read_config(const char *dir, struct dt_error *err)
{
    struct model_sizes sizes;
    const struct model_ops *ops;
    *err = (struct dt_error){.status = DT_OK};
    return hf_config(dir, &ops, &sizes, NULL, err);
}

/* Refused with DT_INVALID, and the error begins with the file and ends in `words`. */
static void refused_as(const char *dir, const char *words)
{
    struct dt_error err;
    char *whole = dt_format("%s/config.json: %s", dir, words);
    if (read_config(dir, &err) != -1 || err.status != DT_INVALID || strcmp(err.text, whole) != 0) {
        fail_msg("expected: %s\nhave: %s", whole, err.text);
    }
    free(whole);
}

static void test_golden(void **unused)
{
    (void)unused;
    static const char *const rows[][2] = {
        {"deepseek_v3", "model_type: \"deepseek_v3\" is not supported: it has latent attention and a mixture of "
                        "experts; the nearest model that works is llama"},
        {"gemma3n_text", "model_type: \"gemma3n_text\" is not supported: it has inputs or sizes of its own in each "
                         "layer; the nearest model that works is gemma3_text"},
        {"gpt_oss", "model_type: \"gpt_oss\" is not supported: it has a mixture of experts and attention sinks; the "
                    "nearest model that works is llama"},
        {"mixtral", "model_type: \"mixtral\" is not supported: it has a mixture of experts; the nearest model that "
                    "works is mistral"},
        {"phi3_longrope",
         "rope_parameters: rope_type \"longrope\" is not supported, only \"default\"; the nearest models "
         "that work are the ones without it, such as Phi-3-mini-4k and Phi-4"},
        {"qwen3_moe", "model_type: \"qwen3_moe\" is not supported: it has a mixture of experts; the nearest model "
                      "that works is qwen3"},
        {"qwen3_next", "model_type: \"qwen3_next\" is not supported: it has linear attention and a mixture of "
                       "experts; the nearest model that works is qwen3"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *dir = dt_format(GOLDEN "%s", rows[i][0]);
        refused_as(dir, rows[i][1]);
        free(dir);
    }
}

/* Writes the text as config.json. */
static void write_config(const char *text)
{
    char *path = dt_format("%s/config.json", folder);
    assert_int_equal(dt_file_write(path, text, strlen(text), NULL), 0);
    free(path);
}

/* A config.json that is refused with these words; null: it is accepted. */
static void check(const char *text, const char *words)
{
    struct dt_error err;
    write_config(text);
    int rc = read_config(folder, &err);
    if (words == NULL ? rc != 0 : rc != -1 || strstr(err.text, words) == NULL) {
        fail_msg("%s\nrc %d: %s", text, rc, err.text);
    }
}

#define IT_HAS "\" is not supported: it has "
#define NEAREST "; the nearest model that works is "

/* Classes whose head the model has not. */
static void test_classes(void **unused)
{
    (void)unused;
    check("{\"model_type\": \"mha-gpt\", \"architectures\": [\"MhaGptForSequenceClassification\"]}",
          "gives classes of sequences, and a mha-gpt gives next tokens here; the nearest that work are llama and "
          "encoders, such as bert, with model.task");
    check("{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2ForTokenClassification\"]}",
          "gives classes of tokens, which no gpt2 here does");
    check("{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2ForSequenceClassification\"]}", NULL);
    check("{\"model_type\": \"llama\", \"architectures\": [\"LlamaForQuestionAnswering\"]}",
          "gives spans of a text as answers, which no llama here does; to go on with its layers and a new head, take "
          "architectures out of a copy of its config.json and set model.task (causal_lm|sequence_classification)");
    check("{\"model_type\": \"llama\", \"architectures\": [\"LlamaForTokenClassification\"]}",
          "gives classes of tokens");
    check("{\"model_type\": \"llama\", \"architectures\": [\"LlamaForSequenceClassification\"], \"pad_token_id\": 0}",
          NULL);
    check("{\"model_type\": \"bert\", \"architectures\": [\"BertForMultipleChoice\"]}", "gives a score of each choice");
    check("{\"model_type\": \"distilbert\", \"architectures\": [\"DistilBertForQuestionAnswering\"]}",
          "gives spans of a text as answers, which no distilbert here does");
    check("{\"model_type\": \"bert\", \"architectures\": [\"BertForPreTraining\"]}", NULL);
    check("{\"model_type\": \"bert\"}", NULL);
}

static void test_unknown_types(void **unused)
{
    (void)unused;
    check("{\"model_type\": \"newmoe\", \"num_local_experts\": 8}",
          "\"newmoe" IT_HAS "a mixture of experts" NEAREST "llama");
    check("{\"model_type\": \"mistral9\", \"kv_lora_rank\": 8, \"n_routed_experts\": 4}",
          "\"mistral9" IT_HAS "a mixture of experts, latent attention" NEAREST "mistral");
    check("{\"model_type\": \"new\", \"layer_types\": [\"full_attention\", \"linear_attention\"]}",
          "\"new" IT_HAS "linear attention" NEAREST "llama");
    check("{\"model_type\": \"new\", \"layer_types\": [\"conv\"]}", IT_HAS "state space or convolution layers");
    check("{\"model_type\": \"new\", \"mamba_d_conv\": 4}", IT_HAS "state space or convolution layers");
    check("{\"model_type\": \"new\", \"attention_chunk_size\": 4}", IT_HAS "attention in chunks");
    check("{\"model_type\": \"new\", \"hidden_size_per_layer_input\": 4}", IT_HAS "inputs or sizes of its own");
    check("{\"model_type\": \"new\", \"is_encoder_decoder\": true}", IT_HAS "an encoder and a decoder");
    check("{\"model_type\": \"new\", \"auto_map\": {\"AutoModel\": \"new.New\"}}",
          IT_HAS "Python code of its own (auto_map)");
    check("{\"auto_map\": {\"AutoModel\": \"new.New\"}}", "\"(none)" IT_HAS "Python code of its own (auto_map)");
    check("{\"model_type\": \"new\", \"auto_map\": {}, \"architectures\": [\"NewForMaskedLM\"], \"alibi\": true}",
          IT_HAS "positions as slopes of the scores" NEAREST "bert");
    /* the text model inside one with images */
    check("{\"model_type\": \"gemma3\", \"text_config\": {\"model_type\": \"gemma3_text\"}}",
          IT_HAS "images or sound beside text" NEAREST "its text model alone, gemma3_text");
    check("{\"model_type\": \"seer\", \"text_config\": {\"model_type\": \"qwen2\"}}",
          IT_HAS "images or sound beside text" NEAREST "its text model alone, qwen2");
    check("{\"model_type\": \"seer\", \"text_config\": {\"model_type\": \"mixtral\"}}",
          IT_HAS "images or sound beside text" NEAREST "mistral");
    /* relatives by name, also under the names of their versions */
    check("{\"model_type\": \"olmo3\"}", "\"olmo3" IT_HAS "windows in most layers" NEAREST "olmo2");
    check("{\"model_type\": \"gemma\"}", NEAREST "gemma2");
    check("{\"model_type\": \"phi\"}", NEAREST "phi3");
    check("{\"model_type\": \"modernbert-decoder\"}", NEAREST "modernbert");
    check("{\"model_type\": \"glm4_moe_lite\"}", "\"glm4_moe_lite" IT_HAS "a mixture of experts" NEAREST "llama");
    /* values that switch a thing off show nothing */
    check("{\"model_type\": \"qwen9\", \"num_experts\": 0, \"kv_lora_rank\": null, \"layer_types\": "
          "[\"full_attention\"]}",
          "\"qwen9\" is not supported; the nearest model that works is qwen2, there are: gpt2, ");
    check("{\"model_type\": \"x\"}", "\"x\" is not supported; there are: gpt2, ");
    check("{}", "model_type: \"(none)\" is not supported; there are: gpt2, ");
    check("{\"model_type\": 7}", "model_type: \"(none)\" is not supported");
}

static void test_supported_types(void **unused)
{
    (void)unused;
    check("{\"model_type\": \"llama\"}", NULL);
    check("{\"model_type\": \"phi3\", \"auto_map\": {\"AutoConfig\": \"x.Y\"}, \"pad_token_id\": 0}", NULL);
    check("{\"model_type\": \"llama\", \"num_local_experts\": 8, \"quantization_config\": null}",
          NULL); /* unknown keys */
    check("{\"model_type\": \"llama\", \"quantization_config\": {\"bits\": 4}}",
          "config.json: quantization_config: quantized weights are not supported; give the model before");
    check("{\"model_type\": \"llama\", \"layer_types\": [\"full_attention\", \"linear_attention\"]}",
          "layer_types: \"linear_attention\": linear attention is not supported, only full_attention and");
    check("{\"model_type\": \"gemma3_text\", \"use_bidirectional_attention\": true}",
          "use_bidirectional_attention: only false");
    check("{\"model_type\": \"bert\", \"is_decoder\": true}", "is_decoder: only false");
    check("{\"model_type\": \"roberta\", \"add_cross_attention\": true}", "add_cross_attention: only false");
    check("{\"model_type\": \"gpt2\", \"add_cross_attention\": true}", "add_cross_attention: only false");
    check("{\"model_type\": \"phi3\", \"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1]}}",
          "rope_scaling: rope_type \"su\" is not supported, only \"default\"");
    check("{\"model_type\": \"llama\", \"rope_parameters\": {\"rope_type\": \"proportional\"}}",
          "rope_type: is \"proportional\"");
    check("{\"model_type\": \"qwen2\", \"rope_scaling\": {\"type\": \"default\", \"mrope_section\": [1, 1]}}",
          "rope_scaling: mrope_section: positions of images are not supported");
    check("{\"model_type\": \"llama\", \"hidden_act\": \"relu2\"}",
          "hidden_act: is \"relu2\"; must be one of: silu, gelu");
    check("{\"model_type\": \"modernbert\", \"hidden_activation\": \"mish\"}",
          "hidden_activation: is \"mish\"; must be");
}

static void test_names(void **unused)
{
    (void)unused;
    static const struct {
        const char *name, *words; /* null: nothing is known */
    } rows[] = {
        {"mixtral", "it has a mixture of experts" NEAREST "mistral"},
        {"Mixtral-8x7B", "it has a mixture of experts" NEAREST "mistral"},
        {"gpt-oss-20b", "it has a mixture of experts and attention sinks" NEAREST "llama"},
        {"deepseek-v3", "it has latent attention and a mixture of experts" NEAREST "llama"},
        {"gemma-2b", "it has norms only before attention and feed-forward" NEAREST "gemma2"},
        {"gemma-2-9b-it", NULL}, /* nearer to a model that works */
        {"lama", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct dt_text text;
        dt_text_init(&text);
        assert_true(refused_name(rows[i].name, &text) == (rows[i].words != NULL));
        assert_string_equal(dt_text_str(&text), rows[i].words != NULL ? rows[i].words : "");
        dt_text_clear(&text);
    }
}

/* Each row is right: no supported model is listed, the nearest one is supported, and its name fits. */
static void test_rows(void **unused)
{
    (void)unused;
    static const struct {
        const char *name, *nearest;
    } rows[] = {
#define NAME(name, what, nearest) {name, nearest},
#define KEY(key, what)
#define LAYER(kind, what)
#include "worker/model/refused.def"
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *text = dt_format("{\"model_type\": \"%s\"}", rows[i].name),
             *words = dt_format(NEAREST "%s", rows[i].nearest);
        assert_null(model_find(rows[i].name));
        assert_non_null(model_find(rows[i].nearest));
        check(text, words);
        free(words);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden), cmocka_unit_test(test_classes),         cmocka_unit_test(test_unknown_types),
        cmocka_unit_test(test_rows),   cmocka_unit_test(test_supported_types), cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
