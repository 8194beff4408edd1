/* Trains a golden model (tests/golden/models) as Transformers and torch.optim.AdamW did, and compares
 * losses, norms, gradients and weights. Doubles run on the twin, floats on the CPU's kernels. */
#ifndef DT_TESTS_LIB_GOLDEN_MODEL_H
#define DT_TESTS_LIB_GOLDEN_MODEL_H

#include "tests/lib/golden.h"
#include "tests/lib/model_run.h"

#include "base/file.h"
#include "worker/checkpoints/hf.h"
#include "worker/data/safetensors.h"

#include <cjson/cJSON.h>

struct golden {
    const char *folder;
    int batch, length; /* B, T of a micro-batch */
    /* tensors whose gradient is rounding noise: part of their name, and the largest difference after
     * training; 0: not compared */
    const char *noise;
    double noise_most;
    enum recompute recompute;
    const char *hf; /* the folder of the model in `folder`; null: hf */
};

static inline void golden_close(double got, double expected, double tolerance, const char *what, int i)
{
    if (!(fabs(got - expected) <= tolerance)) {
        fail_msg("%s %d: got %.13g, expected %.13g, tolerance %g", what, i, got, expected, tolerance);
    }
}

/* ---- the folder ---- */

static inline cJSON *golden_expected(const struct golden *g)
{
    char *path = dt_format("%s/expected.json", g->folder);
    cJSON *json = golden_json(path);
    free(path);
    return json;
}

static inline const cJSON *golden_at(const cJSON *json, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(json, key);
    if (v == NULL) {
        fail_msg("expected.json: no %s", key);
    }
    return v;
}
static inline double golden_number(const cJSON *array, int i)
{
    return cJSON_GetArrayItem(array, i)->valuedouble;
}

/* Opens the model of a folder with its weights. */
static inline void golden_open(struct model_run *r, const struct golden *g, const char *device, const char *hf)
{
    struct dt_error err;
    struct model_sizes sizes;
    const struct model_ops *ops;
    struct hf *h;
    if (hf_config(hf, &ops, &sizes, NULL, &err) != 0) {
        fail_msg("%s", err.text);
    }
    run_open(r, device,
             (struct model_spec){.name = ops->name,
                                 .sizes = sizes.bytes,
                                 .batch_size = g->batch,
                                 .sequence_length = g->length,
                                 .recompute = g->recompute});
    if (hf_open(&h, hf, &r->chain, &err) != 0) {
        fail_msg("%s", err.text);
    }
    for (int u = 0; u < r->chain.unit_count; u++) {
        assert_int_equal(hf_read_unit(h, u, 0, r->chain.units[u].numel, r->type, r->weights[u], &err), 0);
    }
    hf_close(h);
}

/* Micro-batch `number` of a field, from the tensor `name`; shifted labels are shifted. */
static inline void golden_field(struct model_run *r, const struct st_file *f, const char *name, int field, int number)
{
    const struct batch_field *layout = &r->chain.batch.field[field];
    int64_t n = batch_elements(&r->chain.batch, field), length = batch_sample_elements(&r->chain.batch, field),
            shift = layout->shifted, first = number * n;
    const int64_t *from = golden_integers(f, name, first + n) + first;
    for (int64_t i = 0; i < n; i++) {
        ((int32_t *)r->batch.at[field])[i] = i % length + shift < length ? (int32_t)from[i + shift] : DT_IGNORE_INDEX;
    }
}

/* Micro-batch (step, micro) of 4, with fields that the file lacks as a model has them then. Returns the
 * number of valid targets. */
static inline int golden_batch(struct model_run *r, const struct golden *g, const struct st_file *f, const char *labels,
                               int step, int micro)
{
    const struct batch_layout *l = &r->chain.batch;
    int target = batch_find(l, "labels"), valid = 0;
    for (int k = 0; k < l->count; k++) {
        const char *name = k == target ? labels : l->field[k].name;
        if (l->field[k].optional && st_find(f, name) == NULL) {
            for (int64_t row = 0; row < g->batch; row++) {
                batch_fill_missing(&r->batch, k, row);
            }
        } else if (l->field[k].derive == NULL) {
            golden_field(r, f, name, k, step * 4 + micro);
        }
    }
    for (int64_t row = 0; row < g->batch; row++) {
        batch_derive(&r->batch, row);
    }
    for (int64_t i = 0; i < batch_elements(l, target); i++) {
        valid += r->labels[i] != DT_IGNORE_INDEX;
    }
    return valid;
}

/* One tensor against {sum, abs, head}. head_tolerance: absolute. */
static inline void golden_tensor(const struct model_run *r, void *const *units, int t, const cJSON *expected,
                                 double head_tolerance, double sum_tolerance)
{
    const struct tensor *x = &r->chain.tensors[t];
    double sum = 0, size = 0;
    for (int64_t e = 0; e < x->numel; e++) {
        sum += run_value(r, units, t, e);
        size += fabs(run_value(r, units, t, e));
    }
    const cJSON *head = golden_at(expected, "head");
    for (int i = 0; i < cJSON_GetArraySize(head); i++) {
        golden_close(run_value(r, units, t, i), golden_number(head, i), head_tolerance, x->name, i);
    }
    golden_close(sum, golden_at(expected, "sum")->valuedouble, sum_tolerance, x->name, -1);
    golden_close(size, golden_at(expected, "abs")->valuedouble, sum_tolerance, x->name, -2);
}

/* The loss of one optimizer step over its 4 micro-batches; gradients are left scaled as the
 * run's normalization says. */
static inline double golden_step(struct model_run *r, const struct golden *g, const struct st_file *batches,
                                 const char *labels, bool global, int step)
{
    int valid[4], total = 0;
    for (int j = 0; j < 4; j++) {
        valid[j] = golden_batch(r, g, batches, labels, step, j);
        total += valid[j];
    }
    double loss = 0;
    for (int j = 0; j < 4; j++) {
        (void)golden_batch(r, g, batches, labels, step, j);
        double scale = global ? 1.0 / total : 1.0 / (4.0 * valid[j]);
        loss += run_train(r, j > 0, scale) * scale;
    }
    return loss;
}

static inline bool golden_is_noise(const struct golden *g, const char *name)
{
    return g->noise != NULL && strstr(name, g->noise) != NULL;
}

static inline void golden_gradients(const struct model_run *r, const struct golden *g, const cJSON *expected,
                                    double relative)
{
    for (int t = 0; t < r->chain.tensor_count; t++) {
        const struct tensor *x = &r->chain.tensors[t];
        const cJSON *one = golden_at(expected, x->name);
        double size = golden_at(one, "abs")->valuedouble, mean = size / (double)x->numel;
        golden_tensor(r, r->grads, t, one, relative * fmax(1, mean),
                      relative * fmax(size, golden_is_noise(g, x->name) ? 0.1 : 1e-3));
    }
}

static inline void golden_weights(const struct model_run *r, const struct golden *g, const cJSON *expected,
                                  double absolute)
{
    for (int t = 0; t < r->chain.tensor_count; t++) {
        const struct tensor *x = &r->chain.tensors[t];
        double most = golden_is_noise(g, x->name) ? g->noise_most : absolute;
        if (most > 0) {
            golden_tensor(r, r->weights, t, golden_at(expected, x->name), most, most * (double)x->numel);
        }
    }
}

/* labels and normalization are the run's; steps: how many of its 20. */
static inline void golden_follow(const struct golden *g, const char *device, const char *run_name, int steps,
                                 bool whole)
{
    cJSON *json = golden_expected(g);
    const cJSON *run = golden_at(golden_at(json, "runs"), run_name),
                *own = cJSON_GetObjectItemCaseSensitive(run, "fp64_rope64"), *numbers = golden_at(run, "fp64");
    bool wide = strcmp(device, "twin64") == 0,
         global = strcmp(golden_at(run, "normalization")->valuestring, "global_tokens") == 0;
    const cJSON *named = cJSON_GetObjectItemCaseSensitive(run, "labels");
    const char *labels = named != NULL ? named->valuestring : "labels";
    /* norms, gradients and weights were recorded with the library's rotary tables, which are F32 */
    double exact = own != NULL ? 1e4 : 1;
    struct model_run r;
    struct st_file *batches;
    struct dt_error err;
    char *hf = dt_format("%s/%s", g->folder, g->hf != NULL ? g->hf : "hf"),
         *file = dt_format("%s/batches.safetensors", g->folder);
    golden_open(&r, g, device, hf);
    assert_int_equal(st_open(&batches, file, &err), 0);
    free(hf);
    free(file);
    for (int step = 0; step < steps; step++) {
        double loss = golden_step(&r, g, batches, labels, global, step),
               expected = golden_number(golden_at(own != NULL ? own : numbers, "loss"), step);
        golden_close(loss, expected, (wide ? 1e-9 : 1e-5) * expected, run_name, step);
        double norm = golden_number(golden_at(numbers, "grad_norm"), step);
        golden_close(run_norm(&r, 1, 1.0), norm, (wide ? 1e-8 * fmin(exact, 1e2) : 1e-4) * norm, "norm at step", step);
        if (step == 0) {
            golden_gradients(&r, g, golden_at(run, "grad_step_0"), wide ? 1e-10 * exact : 1e-5);
        }
        run_adamw(&r, step + 1, golden_number(golden_at(run, "lr"), step), 0.95, 0.1, 1, true);
        char key[16];
        (void)snprintf(key, sizeof key, "%d", step + 1);
        const cJSON *after = cJSON_GetObjectItemCaseSensitive(golden_at(run, "after"), key);
        if (after != NULL && whole) {
            golden_weights(&r, g, after, wide ? 1e-8 * exact : 2e-5);
        }
    }
    st_close(batches);
    run_close(&r);
    cJSON_Delete(json);
}

#endif
