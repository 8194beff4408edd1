/* covers: worker/model worker/checkpoints/hf.c */
/* Golden numbers of other systems: the GPT-2 of a fill rule (losses and norm from Transformers,
 * fp64), and the small GPT-2 of tests/golden/models/gpt2 trained by Transformers and
 * torch.optim.AdamW: logits, gradients, weights, losses over 20 steps. Doubles run on the twin,
 * floats on the CPU's kernels. */
#include "tests/lib/golden.h"
#include "tests/lib/model_run.h"

#include "base/file.h"
#include "worker/checkpoints/hf.h"
#include "worker/checkpoints/safetensors.h"

#include <cjson/cJSON.h>

#define GOLDEN "tests/golden/models/gpt2"

static void check_close(double got, double expected, double tolerance, const char *what, int i)
{
    if (!(fabs(got - expected) <= tolerance)) {
        fail_msg("%s %d: got %.13g, expected %.13g, tolerance %g", what, i, got, expected, tolerance);
    }
}

static void fill_rule(const char *device, double loss_tolerance, enum recompute level)
{
    static const double losses[] = {2.4278837921, 2.2585129686, 2.0757423178, 2.1119166498};
    struct model_spec spec = {.name = "gpt2",
                              .layers = 2,
                              .heads = 2,
                              .channels = 8,
                              .positions = 6,
                              .vocabulary = 11,
                              .inner = 32,
                              .norm_epsilon = 1e-5,
                              .init_std = 0.02,
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
                    0.1 * sin(0.7 * (double)(e + 1) + 1.3 * (i + 1)) + (t->init == INIT_ONE ? 1 : 0));
        }
    }
    for (int b = 0; b < 2; b++) {
        for (int t = 0; t < 5; t++) {
            r.ids[5 * b + t] = (7 * b + 3 * t + 1) % 11;
            r.labels[5 * b + t] = t < 4 ? (7 * b + 3 * (t + 1) + 1) % 11 : DT_IGNORE_INDEX;
        }
    }
    for (int step = 0; step < 4; step++) {
        check_close(run_train(&r, false, 1.0 / 8) / 8, losses[step], loss_tolerance * losses[step], "loss", step);
        if (step == 0) {
            check_close(run_norm(&r, 1, 0), 2.2368461499, loss_tolerance * 2.2, "norm", 0);
            check_close(run_value(&r, r.grads, 0, 0), -0.0913323597, 1e-10 + loss_tolerance, "wte[0]", 0);
            check_close(run_value(&r, r.grads, r.chain.tensor_count - 1, 1), 0.0198633469, 1e-10 + loss_tolerance,
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

static cJSON *expected_json(void)
{
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    if (dt_file_read(GOLDEN "/expected.json", 1 << 20, &text, &err) != 0) {
        fail_msg("%s", err.text);
    }
    cJSON *json = cJSON_ParseWithLength(dt_text_str(&text), text.size);
    dt_text_clear(&text);
    assert_non_null(json);
    return json;
}

static const cJSON *at(const cJSON *json, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(json, key);
    if (v == NULL) {
        fail_msg("expected.json: no %s", key);
    }
    return v;
}
static double number_at(const cJSON *array, int i)
{
    return cJSON_GetArrayItem(array, i)->valuedouble;
}

static void open_folder(struct model_run *r, const char *device, const char *folder)
{
    struct dt_error err;
    struct model_spec spec = {.batch_size = 2, .sequence_length = 16, .recompute = RECOMPUTE_MLP};
    struct hf *h;
    if (hf_config(folder, &spec, NULL, &err) != 0) {
        fail_msg("%s", err.text);
    }
    run_open(r, device, spec);
    if (hf_open(&h, folder, &r->chain, &err) != 0) {
        fail_msg("%s", err.text);
    }
    for (int u = 0; u < r->chain.unit_count; u++) {
        assert_int_equal(hf_read_unit(h, u, 0, r->chain.units[u].numel, r->type, r->weights[u], &err), 0);
    }
    hf_close(h);
}

/* Micro-batch (step, micro) of 4; labels shifted. Returns the number of valid targets. */
static int load_batch(struct model_run *r, const struct st_file *f, const char *labels, int step, int micro)
{
    int64_t first = (step * 4 + micro) * 32;
    const int64_t *ids = golden_integers(f, "input_ids", first + 32) + first,
                  *targets = golden_integers(f, labels, first + 32) + first;
    int valid = 0;
    for (int i = 0; i < 32; i++) {
        r->ids[i] = (int32_t)ids[i];
        r->labels[i] = i % 16 == 15 ? DT_IGNORE_INDEX : (int32_t)targets[i + 1];
        valid += r->labels[i] != DT_IGNORE_INDEX;
    }
    return valid;
}

/* One tensor against {sum, abs, head}. head_tolerance: absolute. */
static void check_tensor(const struct model_run *r, void *const *units, int t, const cJSON *expected,
                         double head_tolerance, double sum_tolerance)
{
    const struct tensor *x = &r->chain.tensors[t];
    double sum = 0, size = 0;
    for (int64_t e = 0; e < x->numel; e++) {
        sum += run_value(r, units, t, e);
        size += fabs(run_value(r, units, t, e));
    }
    const cJSON *head = at(expected, "head");
    for (int i = 0; i < cJSON_GetArraySize(head); i++) {
        check_close(run_value(r, units, t, i), number_at(head, i), head_tolerance, x->name, i);
    }
    check_close(sum, at(expected, "sum")->valuedouble, sum_tolerance, x->name, -1);
    check_close(size, at(expected, "abs")->valuedouble, sum_tolerance, x->name, -2);
}

/* The loss of one optimizer step over its 4 micro-batches; gradients are left scaled as the
 * run's normalization says. */
static double train_step(struct model_run *r, const struct st_file *batches, const char *labels, bool global, int step)
{
    int valid[4], total = 0;
    for (int j = 0; j < 4; j++) {
        valid[j] = load_batch(r, batches, labels, step, j);
        total += valid[j];
    }
    double loss = 0;
    for (int j = 0; j < 4; j++) {
        (void)load_batch(r, batches, labels, step, j);
        double scale = global ? 1.0 / total : 1.0 / (4.0 * valid[j]);
        loss += run_train(r, j > 0, scale) * scale;
    }
    return loss;
}

static void check_gradients(const struct model_run *r, const cJSON *expected, double relative)
{
    for (int t = 0; t < r->chain.tensor_count; t++) {
        const cJSON *one = at(expected, r->chain.tensors[t].name);
        double size = at(one, "abs")->valuedouble, mean = size / (double)r->chain.tensors[t].numel;
        check_tensor(r, r->grads, t, one, relative * fmax(1, mean), relative * fmax(size, 1e-3));
    }
}

static void check_weights(const struct model_run *r, const cJSON *expected, double absolute)
{
    for (int t = 0; t < r->chain.tensor_count; t++) {
        const struct tensor *x = &r->chain.tensors[t];
        if (strstr(x->name, "c_attn.bias") != NULL) {
            continue; /* the key biases' gradient is rounding noise */
        }
        check_tensor(r, r->weights, t, at(expected, x->name), absolute, absolute * (double)x->numel);
    }
}

/* labels and normalization are the run's; steps: how many of its 20. */
static void follow(const char *device, const char *run_name, int steps, bool whole)
{
    cJSON *json = expected_json();
    const cJSON *run = at(at(json, "runs"), run_name), *numbers = at(run, "fp64");
    bool wide = strcmp(device, "twin64") == 0,
         global = strcmp(at(run, "normalization")->valuestring, "global_tokens") == 0;
    const char *labels = at(run, "labels")->valuestring;
    struct model_run r;
    struct st_file *batches;
    struct dt_error err;
    open_folder(&r, device, GOLDEN "/hf");
    assert_int_equal(st_open(&batches, GOLDEN "/batches.safetensors", &err), 0);
    for (int step = 0; step < steps; step++) {
        double loss = train_step(&r, batches, labels, global, step), expected = number_at(at(numbers, "loss"), step);
        check_close(loss, expected, (wide ? 1e-9 : 1e-5) * expected, run_name, step);
        double norm = number_at(at(numbers, "grad_norm"), step);
        check_close(run_norm(&r, 1, 1.0), norm, (wide ? 1e-8 : 1e-4) * norm, "norm at step", step);
        if (step == 0) {
            check_gradients(&r, at(run, "grad_step_0"), wide ? 1e-10 : 1e-5);
        }
        run_adamw(&r, step + 1, number_at(at(run, "lr"), step), 0.95, 0.1, 1, true);
        char key[16];
        (void)snprintf(key, sizeof key, "%d", step + 1);
        const cJSON *after = cJSON_GetObjectItemCaseSensitive(at(run, "after"), key);
        if (after != NULL && whole) {
            check_weights(&r, after, wide ? 1e-8 : 2e-5);
        }
    }
    st_close(batches);
    run_close(&r);
    cJSON_Delete(json);
}

static void test_training_double(void **state)
{
    (void)state;
    follow("twin64", "plain", 20, true);
    follow("twin64", "global_tokens", 3, true);
    follow("twin64", "global_tokens_empty", 2, false);
    follow("twin64", "local_mean", 2, false);
}

static void test_training_float(void **state)
{
    (void)state;
    follow("cpu", "plain", 20, true);
    follow("cpu", "global_tokens", 20, true);
    follow("cpu", "global_tokens_empty", 4, true);
    follow("cpu", "local_mean", 4, true);
}

/* Logits of micro-batch 0: the pair that the last layer left, through final norm and head. */
static void test_logits(void **state)
{
    (void)state;
    cJSON *json = expected_json();
    const cJSON *expected = at(at(at(json, "runs"), "plain"), "logits_step_0");
    struct model_run r;
    struct st_file *batches;
    struct dt_error err;
    open_folder(&r, "twin64", GOLDEN "/hf_legacy");
    assert_int_equal(st_open(&batches, GOLDEN "/batches.safetensors", &err), 0);
    (void)load_batch(&r, batches, "input_ids", 0, 0);
    (void)run_eval(&r);
    const struct block *head = &r.chain.blocks[r.chain.block_count - 1];
    const int rows = 32, c = 48, v = 131;
    double *y = run_alloc(&r, (size_t)(rows * c) * 8), *stats = run_alloc(&r, 2 * (size_t)rows * 8),
           *logits = run_alloc(&r, (size_t)(rows * v) * 8);
    const void *w = r.weights[head->unit];
    r.device.kernels->layernorm(r.stream, &(struct dt_layernorm_args){.y = y,
                                                                      .mean = stats,
                                                                      .rstd = stats + rows,
                                                                      .residual = r.kept[head->index],
                                                                      .gamma = block_at(head, w, 0, r.type),
                                                                      .beta = block_at(head, w, 1, r.type),
                                                                      .row_count = rows,
                                                                      .col_count = c,
                                                                      .eps = 1e-5,
                                                                      .type = r.type});
    r.device.kernels->matmul(r.stream, &(struct dt_matmul_args){.c = logits,
                                                                .a = y,
                                                                .b = block_at(head, w, 2, r.type),
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
        check_close(logits[i], number_at(at(expected, "head"), i), 1e-9, "logit", i);
    }
    check_close(sum, at(expected, "sum")->valuedouble, 1e-7, "sum of logits", 0);
    check_close(size, at(expected, "abs")->valuedouble, 1e-7, "sum of magnitudes", 0);
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
