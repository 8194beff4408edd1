/* covers: worker/model/models/decoders.c worker/model/blocks/decoder_layer.c worker/model/blocks/linear.c worker/model/blocks/rope.c */
/* Llama and the families near it against Transformers: losses, norms, gradients and weights of small
 * models with every switch on, from their folders as save_pretrained writes them, at every level of
 * recomputation; the spellings of config.json; what is refused. */
#include "tests/lib/golden_model.h"

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
        for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++) {
            struct golden g = cases[i];
            g.recompute = (enum recompute)level;
            golden_follow(&g, "cpu", "plain", level == RECOMPUTE_NONE ? 10 : 2, true);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_double),
        cmocka_unit_test(test_float),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
