/* covers: worker/model worker/checkpoints/hf.c */
/* Golden numbers of other systems: the GPT-2 of a fill rule (losses and norm from Transformers,
 * fp64), and the small GPT-2 of tests/golden/models/gpt2 trained by Transformers and
 * torch.optim.AdamW: logits, gradients, weights, losses over 20 steps. Doubles run on the twin,
 * floats on the CPU's kernels. */
#include "tests/lib/golden_model.h"

#include "worker/model/models/gpt2.h"

#define GOLDEN "tests/golden/models/gpt2"

static void fill_rule(const char *device, double loss_tolerance, enum recompute level)
{
    static const double losses[] = {2.4278837921, 2.2585129686, 2.0757423178, 2.1119166498};
    struct model_spec spec = {.name = "gpt2",
                              .sizes = &(struct gpt2){.tie_word_embeddings = true,
                                                      .n_layer = 2,
                                                      .n_head = 2,
                                                      .n_embd = 8,
                                                      .head.num_labels = 2,
                                                      .n_positions = 6,
                                                      .vocab_size = 11,
                                                      .n_inner = 32,
                                                      .layer_norm_epsilon = 1e-5,
                                                      .initializer_range = 0.02},
                              .batch_size = 2,
                              .sequence_length = 5,
                              .recompute = level};
    struct model_run r;
    run_open(&r, device, spec);
    assert_int_equal(r.chain.parameter_count, 1896);
    for (int i = 0; i < r.chain.tensor_count; i++) {
        const struct tensor *t = &r.chain.tensors[i];
        for (int64_t e = 0; e < t->numel; e++) {
            run_set(&r, r.weights[t->unit], t->offset + e,
                    0.1 * sin(0.7 * (double)(e + 1) + 1.3 * (i + 1)) + (t->rule.init == INIT_ONE ? 1 : 0));
        }
    }
    for (int b = 0; b < 2; b++) {
        for (int t = 0; t < 5; t++) {
            r.ids[5 * b + t] = (7 * b + 3 * t + 1) % 11;
            r.labels[5 * b + t] = t < 4 ? (7 * b + 3 * (t + 1) + 1) % 11 : DT_IGNORE_INDEX;
        }
    }
    for (int step = 0; step < 4; step++) {
        golden_close(run_train(&r, false, 1.0 / 8) / 8, losses[step], loss_tolerance * losses[step], "loss", step);
        if (step == 0) {
            golden_close(run_norm(&r, 1, 0), 2.2368461499, loss_tolerance * 2.2, "norm", 0);
            golden_close(run_value(&r, r.grads, 0, 0), -0.0913323597, 1e-10 + loss_tolerance, "wte[0]", 0);
            golden_close(run_value(&r, r.grads, r.chain.tensor_count - 1, 1), 0.0198633469, 1e-10 + loss_tolerance,
                         "ln_f.bias[1]", 0);
        }
        run_adamw(&r, step + 1, 1e-2, 0.95, 0.1, 1, false);
    }
    run_close(&r);
}

static void test_fill_rule(void **state)
{
    (void)state;
    for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++) {
        fill_rule("twin64", 1e-9, (enum recompute)level);
        fill_rule("twin32", 1e-5, (enum recompute)level);
        fill_rule("cpu", 1e-5, (enum recompute)level);
    }
}

/* ---- the folder ---- */

static const struct golden gpt2 = {
    .folder = GOLDEN, .batch = 2, .length = 16, .noise = "c_attn.bias", .recompute = RECOMPUTE_MLP};

static void test_training_double(void **state)
{
    (void)state;
    golden_follow(&gpt2, "twin64", "plain", 20, true);
    golden_follow(&gpt2, "twin64", "global_tokens", 3, true);
    golden_follow(&gpt2, "twin64", "global_tokens_empty", 2, false);
    golden_follow(&gpt2, "twin64", "local_mean", 2, false);
}

static void test_training_float(void **state)
{
    (void)state;
    golden_follow(&gpt2, "cpu", "plain", 20, true);
    golden_follow(&gpt2, "cpu", "global_tokens", 20, true);
    golden_follow(&gpt2, "cpu", "global_tokens_empty", 4, true);
    golden_follow(&gpt2, "cpu", "local_mean", 4, true);
}

/* Logits of micro-batch 0: the pair that the last layer left, through final norm and head. */
static void test_logits(void **state)
{
    (void)state;
    cJSON *json = golden_expected(&gpt2);
    const cJSON *expected = golden_at(golden_at(golden_at(json, "runs"), "plain"), "logits_step_0");
    struct model_run r;
    struct st_file *batches;
    struct dt_error err;
    golden_open(&r, &gpt2, "twin64", GOLDEN "/hf_legacy");
    assert_int_equal(st_open(&batches, GOLDEN "/batches.safetensors", &err), 0);
    (void)golden_batch(&r, &gpt2, batches, "input_ids", 0, 0);
    (void)run_eval(&r);
    const struct block *head = &r.chain.blocks[r.chain.block_count - 1];
    const int rows = 32, c = 48, v = 131;
    double *y = run_alloc(&r, (size_t)(rows * c) * 8), *stats = run_alloc(&r, 2 * (size_t)rows * 8),
           *logits = run_alloc(&r, (size_t)(rows * v) * 8);
    const struct pass p = {.weights = {r.weights[head->units[0]]}};
    r.device.kernels->layernorm(r.stream, &(struct dt_layernorm_args){.y = y,
                                                                      .mean = stats,
                                                                      .rstd = stats + rows,
                                                                      .residual = r.kept[head->index],
                                                                      .gamma = pass_weight(head, &p, 0),
                                                                      .beta = pass_weight(head, &p, 1),
                                                                      .row_count = rows,
                                                                      .col_count = c,
                                                                      .eps = 1e-5,
                                                                      .type = r.type});
    r.device.kernels->matmul(r.stream, &(struct dt_matmul_args){.c = logits,
                                                                .a = y,
                                                                .b = pass_weight(head, &p, 2),
                                                                .m = rows,
                                                                .n = v,
                                                                .k = c,
                                                                .b_transposed = true,
                                                                .type = r.type});
    run_finish(&r);
    double sum = 0, size = 0;
    for (int i = 0; i < rows * v; i++) {
        sum += logits[i];
        size += fabs(logits[i]);
    }
    for (int i = 0; i < 8; i++) {
        golden_close(logits[i], golden_number(golden_at(expected, "head"), i), 1e-9, "logit", i);
    }
    golden_close(sum, golden_at(expected, "sum")->valuedouble, 1e-7, "sum of logits", 0);
    golden_close(size, golden_at(expected, "abs")->valuedouble, 1e-7, "sum of magnitudes", 0);
    st_close(batches);
    run_close(&r);
    cJSON_Delete(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill_rule),
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_training_double),
        cmocka_unit_test(test_training_float),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
