/* covers: worker/model/models/resnet.c worker/model/blocks/resnet_layer.c worker/model/blocks/convolution.c */
/* ResNet against what Hugging Face's model gave under PyTorch (tests/golden/resnet): one rank, two ranks
 * with statistics of their own, and two whose batch norms have statistics together, also with unequal
 * numbers of samples. Names of torchvision; gradients by finite differences; sizes of the presets. */
#include "tests/lib/block_check.h"
#include "tests/lib/golden.h"
#include "tests/lib/golden_model.h"

#include "worker/model/models/resnet.h"
#include "worker/model/presets.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANKS = 2, STEPS = 10 };

/* ---- ranks as threads ---- */

struct world {
    pthread_barrier_t all;
    const void *at[RANKS];
};

struct member { /* one rank */
    struct model_run run;
    struct pass_peers peers;
    struct world *world;
    int rank;
    double scale, loss;
};

static void gather(const struct pass_peers *p, const void *in, void *out, int64_t count, enum dt_dtype type)
{
    struct member *m = p->context;
    size_t bytes = (size_t)count * dt_dtype_size(type);
    run_finish(&m->run);
    m->world->at[m->rank] = in;
    (void)pthread_barrier_wait(&m->world->all);
    for (int r = 0; r < p->count; r++) {
        memcpy((char *)out + (size_t)r * bytes, m->world->at[r], bytes);
    }
    (void)pthread_barrier_wait(&m->world->all);
}

static void sum(const struct pass_peers *p, void *x, int64_t count, enum dt_dtype type)
{
    struct member *m = p->context;
    double total[64];
    assert_true(count <= 64);
    run_finish(&m->run);
    m->world->at[m->rank] = x;
    (void)pthread_barrier_wait(&m->world->all);
    for (int64_t i = 0; i < count; i++) {
        total[i] = 0;
        for (int r = 0; r < p->count; r++) {
            const void *from = m->world->at[r];
            total[i] += type == DT_F64 ? ((const double *)from)[i] : (double)((const float *)from)[i];
        }
    }
    (void)pthread_barrier_wait(&m->world->all);
    for (int64_t i = 0; i < count; i++) {
        run_set(&m->run, x, i, total[i]);
    }
}

static void *train_one(void *context)
{
    struct member *m = context;
    m->loss = run_train(&m->run, false, m->scale) * m->scale;
    return NULL;
}

/* Runs forward and backward of all ranks. Returns the sum of the losses; the gradients of all become
 * their sum. */
static double train_all(struct member *members, int count)
{
    pthread_t threads[RANKS];
    double loss = 0;
    for (int r = 0; r < count; r++) {
        assert_int_equal(pthread_create(&threads[r], NULL, train_one, &members[r]), 0);
    }
    for (int r = 0; r < count; r++) {
        (void)pthread_join(threads[r], NULL);
        loss += members[r].loss;
    }
    const struct chain *c = &members[0].run.chain;
    for (int u = 0; u < c->unit_count; u++) {
        for (int64_t e = 0; e < c->units[u].numel; e++) {
            double total = 0;
            for (int r = 0; r < count; r++) {
                total += run_get(&members[r].run, members[r].run.grads[u], e);
            }
            for (int r = 0; r < count; r++) {
                run_set(&members[r].run, members[r].run.grads[u], e, total);
            }
        }
    }
    return loss;
}

static void run_sgd(struct model_run *r, int64_t step, const cJSON *options)
{
    for (int i = 0; i < r->chain.tensor_count; i++) {
        const struct tensor *t = &r->chain.tensors[i];
        if (t->unit < 0) {
            continue;
        }
        size_t at = (size_t)t->offset * dt_dtype_size(r->type);
        const struct dt_update_slice slice = {.w = (char *)r->weights[t->unit] + at,
                                              .state = {(char *)r->m[t->unit] + at},
                                              .grad = (char *)r->grads[t->unit] + at,
                                              .count = t->numel,
                                              .weight_decay =
                                                  t->decay ? golden_at(options, "weight_decay")->valuedouble : 0};
        r->device.kernels->sgd_many(
            r->stream, &(struct dt_update_args){.slices = &slice,
                                                .slice_count = 1,
                                                .step = step,
                                                .lr = golden_at(options, "lr")->valuedouble,
                                                .grad_scale = 1,
                                                .numbers = {.momentum = golden_at(options, "momentum")->valuedouble},
                                                .type = r->type});
    }
    run_finish(r);
}

/* ---- golden runs ---- */

static void open_model(struct model_run *r, const char *hf, const char *device, int64_t batch, const int64_t *image,
                       int ranks)
{
    struct dt_error err;
    struct model_sizes sizes;
    const struct model_ops *ops;
    struct hf *h;
    if (hf_config(hf, &ops, &sizes, NULL, &err) != 0) {
        fail_msg("%s", err.text);
    }
    struct resnet *m = (struct resnet *)(void *)sizes.bytes;
    m->image_size = image[0];
    m->image_width = image[1];
    run_open(
        r, device,
        (struct model_spec){
            .name = ops->name, .sizes = sizes.bytes, .batch_size = batch, .sequence_length = 1, .norm_ranks = ranks});
    if (hf_open(&h, hf, &r->chain, &err) != 0) {
        fail_msg("%s", err.text);
    }
    for (int u = -1; u < r->chain.unit_count; u++) {
        void *to = u < 0 ? r->walk.buffers : r->weights[u];
        int64_t count = u < 0 ? r->chain.buffer_count : r->chain.units[u].numel;
        if (hf_read_unit(h, u, 0, count, r->type, to, &err) != 0) {
            fail_msg("%s", err.text);
        }
    }
    hf_close(h);
}

static double value_of(const struct model_run *r, int t, int64_t e)
{
    const struct tensor *x = &r->chain.tensors[t];
    return x->unit >= 0 ? run_value(r, r->weights, t, e) : run_get(r, r->walk.buffers, x->offset + e);
}

/* Compares weights and running statistics. */
static void check_after(const struct model_run *r, const cJSON *after, double tolerance)
{
    for (int t = 0; t < r->chain.tensor_count; t++) {
        const cJSON *want = golden_at(after, r->chain.tensors[t].name), *head = golden_at(want, "head");
        double total = 0;
        for (int64_t e = 0; e < r->chain.tensors[t].numel; e++) {
            total += value_of(r, t, e);
        }
        for (int e = 0; e < cJSON_GetArraySize(head); e++) {
            double x = golden_number(head, e);
            golden_close(value_of(r, t, e), x, tolerance * fmax(1, fabs(x)), r->chain.tensors[t].name, e);
        }
        golden_close(total, golden_at(want, "sum")->valuedouble,
                     tolerance * fmax(1, golden_at(want, "abs")->valuedouble), r->chain.tensors[t].name, -1);
    }
}

static void set_batch(struct model_run *r, const struct st_file *f, int step, int rank, int64_t count)
{
    const struct st_tensor *images = st_find(f, "images");
    int64_t batch = images->shape[2], first = (step * RANKS + rank) * batch,
            pixels = images->numel / STEPS / RANKS / batch;
    const int64_t *labels = golden_integers(f, "labels", (first + count));
    memcpy(r->batch.at[0], (const float *)images->data + first * pixels, (size_t)(count * pixels) * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        r->labels[i] = (int32_t)labels[first + i];
    }
    r->batch.samples = r->batch.weight = count;
}

/* In step 7 of basic's run of one rank, a value before a ReLU is 1.6e-6, so F32 may round it to either
 * side of 0, and the gradient is that of the one or the other side. */
static int steps_of(const char *folder, const char *name, bool wide)
{
    return !wide && strstr(folder, "basic") != NULL && strcmp(name, "one_rank") == 0 ? 7 : STEPS;
}

/* hf: the folder with the model. */
static void follow(const char *folder, const char *hf, const char *name, const char *device)
{
    const struct golden g = {.folder = folder};
    struct dt_error err;
    cJSON *json = golden_expected(&g);
    const cJSON *run = golden_at(golden_at(json, "runs"), name), *numbers = golden_at(run, "fp64"),
                *counts = cJSON_GetObjectItemCaseSensitive(run, "counts");
    const char *mode = golden_at(run, "mode")->valuestring;
    bool wide = strcmp(device, "twin64") == 0, together = strcmp(mode, "sync") == 0;
    int ranks = strcmp(mode, "single") == 0 ? 1 : RANKS;
    struct st_file *f;
    char *batches = dt_format("%s/batches.safetensors", folder);
    assert_int_equal(st_open(&f, batches, &err), 0);
    free(batches);
    const int64_t *shape = st_find(f, "images")->shape;
    struct world world;
    struct member *members = dt_alloc(RANKS * sizeof *members);
    (void)pthread_barrier_init(&world.all, NULL, (unsigned)ranks);
    for (int r = 0; r < ranks; r++) {
        struct member *m = &members[r];
        open_model(&m->run, hf, device, shape[2], shape + 4, together ? ranks : 1);
        m->world = &world;
        m->rank = r;
        m->peers = (struct pass_peers){.count = ranks, .context = m, .gather = gather, .sum = sum};
        m->run.walk.peers = together ? &m->peers : NULL;
    }
    struct model_run *first = &members[0].run;
    int steps = steps_of(folder, name, wide);
    for (int step = 0; step < steps; step++) {
        for (int r = 0; r < ranks; r++) {
            int64_t count = counts != NULL ? (int64_t)golden_number(counts, r) : shape[2];
            set_batch(&members[r].run, f, step, r, count);
            members[r].scale = 1.0 / (double)(count * ranks);
        }
        double loss = golden_number(golden_at(numbers, "loss"), step),
               norm = golden_number(golden_at(numbers, "grad_norm"), step);
        golden_close(train_all(members, ranks), loss, (wide ? 1e-9 : 2e-5) * loss, name, step);
        golden_close(run_norm(first, 1, 0), norm, (wide ? 1e-8 : 1e-3) * norm, "norm at step", step);
        for (int r = 0; r < ranks; r++) {
            run_sgd(&members[r].run, step + 1, golden_at(json, "optimizer"));
        }
        if (step == 0 || step + 1 == STEPS) {
            const char *key = step == 0 ? "1" : "10";
            check_after(first, golden_at(golden_at(run, "after"), key), wide ? 1e-8 : 1e-4);
        }
    }
    set_batch(first, f, 0, 0, shape[2]);
    double eval = golden_at(numbers, "eval_loss_rank0_step0_batch")->valuedouble;
    if (steps == STEPS) {
        golden_close(run_eval(first) / (double)shape[2], eval, (wide ? 1e-8 : 1e-4) * eval, "evaluation", 0);
    }
    for (int r = 0; r < ranks; r++) {
        run_close(&members[r].run);
    }
    (void)pthread_barrier_destroy(&world.all);
    free(members);
    st_close(f);
    cJSON_Delete(json);
}

static const char *const folders[] = {"tests/golden/resnet/basic", "tests/golden/resnet/bottleneck"};

static void test_as_pytorch(void **state)
{
    (void)state;
    static const char *const runs[] = {"one_rank", "ddp_2_ranks", "sync_2_ranks", "sync_uneven"};
    for (size_t i = 0; i < 2; i++) {
        char *hf = dt_format("%s/hf", folders[i]);
        for (size_t k = 0; k < sizeof runs / sizeof runs[0]; k++) {
            if (i == 0 || k < 3) {
                follow(folders[i], hf, runs[k], "twin64");
                follow(folders[i], hf, runs[k], "cpu");
            }
        }
        free(hf);
    }
}

/* Samples count in statistics whether or not they have targets: without any, the buffers move as with
 * all, and gradients are zeros, not NaN. */
static void test_without_targets(void **state)
{
    (void)state;
    struct dt_error err;
    struct st_file *f;
    struct world world;
    struct member *members = dt_alloc(2 * RANKS * sizeof *members);
    assert_int_equal(st_open(&f, "tests/golden/resnet/basic/batches.safetensors", &err), 0);
    const int64_t *shape = st_find(f, "images")->shape;
    (void)pthread_barrier_init(&world.all, NULL, RANKS);
    for (int r = 0; r < 2 * RANKS; r++) { /* the second half of the members has no target */
        struct member *m = &members[r];
        bool blank = r >= RANKS;
        open_model(&m->run, "tests/golden/resnet/basic/hf", "cpu", shape[2], shape + 4, RANKS);
        m->world = &world;
        m->rank = r % RANKS;
        m->scale = blank ? 0 : 1.0 / (double)(RANKS * shape[2]);
        m->peers = (struct pass_peers){.count = RANKS, .context = m, .gather = gather, .sum = sum};
        m->run.walk.peers = &m->peers;
        set_batch(&m->run, f, 0, m->rank, shape[2]);
        m->run.batch.weight = blank ? 0 : shape[2];
    }
    (void)train_all(members, RANKS);
    (void)train_all(members + RANKS, RANKS);
    const struct chain *c = &members[0].run.chain;
    for (int t = 0; t < c->tensor_count; t++) {
        const struct tensor *x = &c->tensors[t];
        for (int64_t e = 0; e < x->numel; e++) {
            for (int r = 0; r < RANKS; r++) {
                const struct model_run *with = &members[r].run, *without = &members[RANKS + r].run;
                if (x->unit >= 0) {
                    assert_true(run_value(without, without->grads, t, e) == 0);
                } else {
                    assert_true(value_of(without, t, e) == value_of(with, t, e));
                }
            }
        }
    }
    for (int r = 0; r < 2 * RANKS; r++) {
        run_close(&members[r].run);
    }
    (void)pthread_barrier_destroy(&world.all);
    free(members);
    st_close(f);
}

/* The same weights with torchvision's names, beside the same config.json. */
static void test_torchvision_names(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char at[] = "/tmp/unit_resnet.XXXXXX", *cwd = getcwd(NULL, 0);
        assert_non_null(mkdtemp(at));
        const char *const files[][2] = {{"hf/config.json", "config.json"},
                                        {"torchvision.safetensors", "model.safetensors"}};
        for (int k = 0; k < 2; k++) {
            char *from = dt_format("%s/%s/%s", cwd, folders[i], files[k][0]), *to = dt_format("%s/%s", at, files[k][1]);
            assert_int_equal(symlink(from, to), 0);
            free(from);
            free(to);
        }
        follow(folders[i], at, "one_rank", "cpu");
        for (int k = 0; k < 2; k++) {
            char *to = dt_format("%s/%s", at, files[k][1]);
            (void)unlink(to);
            free(to);
        }
        (void)rmdir(at);
        free(cwd);
    }
}

/* ---- finite differences ---- */

static void test_gradients(void **state)
{
    (void)state;
    struct resnet m;
    for (int n = 0; n < 4 * (RECOMPUTE_BLOCK + 1); n++) { /* each kind at each level of recomputing */
        int i = n % 4;
        model_defaults(model_find("resnet"), &m);
        m.image_size = 7;
        m.image_width = 10;
        m.num_channels = 2;
        m.embedding_size = 4;
        m.num_labels = 3;
        m.hidden_sizes = (struct dt_integers){2, {4, 8}};
        m.depths = (struct dt_integers){2, {1, 1}};
        m.layer_type = i < 2 ? RESNET_BASIC : RESNET_BOTTLENECK;
        m.stem = i % 2 == 0 ? RESNET_STEM_SMALL : RESNET_STEM_IMAGENET;
        m.downsample_in_first_stage = m.downsample_in_bottleneck = i == 2;
        struct model_run r;
        run_open(&r, "twin64",
                 (struct model_spec){.name = "resnet",
                                     .sizes = &m,
                                     .batch_size = 3,
                                     .sequence_length = 1,
                                     .recompute = (enum recompute)(n / 4)});
        random_state = 5 + (uint64_t)i;
        for (int t = 0; t < r.chain.tensor_count; t++) {
            const struct tensor *x = &r.chain.tensors[t];
            bool gamma = strstr(x->name, "normalization.weight") != NULL;
            for (int64_t e = 0; e < x->numel && x->unit >= 0; e++) {
                run_set(&r, r.weights[x->unit], x->offset + e, gamma ? 1 + 0.3 * noise() : noise());
            }
        }
        for (int64_t e = 0; e < batch_elements(&r.chain.batch, 0); e++) {
            ((float *)r.batch.at[0])[e] = (float)noise();
        }
        for (int e = 0; e < 3; e++) {
            r.labels[e] = e;
        }
        check_phase = PASS_FORWARD; /* statistics of the batch, as in training */
        check_step = 5e-7;
        for (int b = 0; b + 1 < r.chain.block_count; b++) {
            check_block(&r, b);
        }
        check_phase = PASS_EVAL;
        check_step = 1e-5;
        run_close(&r);
    }
}

static void test_sizes_of_presets(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t parameters;
    } wanted[] = {{"resnet-18", 11689512}, {"resnet-34", 21797672}, {"resnet-50", 25557032}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        struct model_sizes sizes;
        struct chain c;
        struct dt_error err;
        assert_int_equal(preset_sizes(preset_find(wanted[i].name), sizes.bytes, &err), 0);
        const struct model_spec spec = {
            .name = "resnet", .sizes = sizes.bytes, .batch_size = 1, .sequence_length = 1, .type = DT_F32};
        assert_int_equal(chain_open(&c, &spec, 1, &err), 0);
        assert_int_equal(c.parameter_count, wanted[i].parameters);
        chain_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients), cmocka_unit_test(test_as_pytorch),
                                       cmocka_unit_test(test_without_targets), cmocka_unit_test(test_torchvision_names),
                                       cmocka_unit_test(test_sizes_of_presets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
