/* covers: worker/engine worker/run worker/model */
/* run: computes   run: timeout 1200 */
/* The strong tests: tests/equivalence/table.txt says which runs give the same bits, which the
 * same losses, and which must differ; here each side is trained with ranks as threads, once, and
 * the pairs are compared. Two families stand in it: gradients summed over micro-steps and then
 * over ranks (boundary), or the other way round (every micro-step). */
#include "tests/lib/ranks.h"

#include "base/file.h"
#include "base/text.h"

#include "worker/data/safetensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TABLE "tests/equivalence/table.txt"

/* ---- models ---- */

enum { SAMPLES = 96, LENGTH = 8, PIXELS = 3 * 6 * 6, CLASSES = 3, IDS = 40 };

/* A small model of each kind beside a GPT-2 that gives tokens; `data` is a file of the folder. */
#define SMALL                                                                                                          \
    "\"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "           \
    "\"vocab_size\": 40, \"max_position_embeddings\": 8"
#define IMAGES "\"num_channels\": 3, \"image_size\": 6, \"num_labels\": 3"
static const struct {
    const char *name, *sizes, *data;
} models[] = {
    {"gpt2",
     "\"n_embd\": 16, \"n_layer\": 2, \"n_head\": 4, \"n_positions\": 8, \"vocab_size\": 40, \"pad_token_id\": 0, "
     "\"num_labels\": 3, \"task\": \"sequence_classification\"",
     "rows.safetensors"},
    {"llama", SMALL ", \"num_key_value_heads\": 2, \"attention_dropout\": 0.1", "train.bin"},
    {"gemma2", SMALL ", \"num_key_value_heads\": 1, \"head_dim\": 6, \"sliding_window\": 3", "train.bin"},
    {"bert", SMALL ", \"num_labels\": 3, \"hidden_dropout_prob\": 0.1", "rows.safetensors"},
    {"modernbert", SMALL ", \"num_labels\": 3, \"pad_token_id\": 0, \"local_attention\": 4", "rows.safetensors"},
    {"qwen3",
     SMALL ", \"num_key_value_heads\": 2, \"head_dim\": 6, \"pad_token_id\": 0, \"num_labels\": 3, "
           "\"task\": \"sequence_classification\"",
     "rows.safetensors"},
    {"resnet",
     IMAGES ", \"embedding_size\": 16, \"hidden_sizes\": [16, 20], \"depths\": [1, 1], \"layer_type\": \"basic\", "
            "\"stem\": \"small\"",
     "images.safetensors"},
    {"mlp", IMAGES ", \"hidden_size\": 16, \"last_hidden_size\": 8, \"frozen_layers\": 1", "images.safetensors"},
};

static int64_t next_value(unsigned *seed, int64_t below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (int64_t)(*seed >> 16) % below;
}

static void write_file(const char *name, const struct st_entry *entries, const void *const *values, int count)
{
    struct st_writer *w;
    struct dt_error err;
    char *path = dt_format("%s/%s", folder, name);
    int rc = st_writer_open(&w, path, entries, count, NULL, &err);
    for (int i = 0; i < count && rc == 0; i++) {
        size_t size_bytes = dt_dtype_size(entries[i].type);
        for (int d = 0; d < entries[i].dims; d++) {
            size_bytes *= (size_t)entries[i].shape[d];
        }
        rc = st_writer_data(w, values[i], size_bytes, &err);
    }
    if (rc != 0 || st_writer_close(w, &err) != 0) {
        fail_msg("%s", err.text);
    }
    free(path);
}

/* Rows of 3 to 8 tokens and images, with a class for each. */
static void write_samples(void)
{
    const struct st_entry labels_entry = {"labels", DT_I64, 1, (const int64_t[]){SAMPLES}};
    const struct st_entry rows[] = {labels_entry,
                                    {"input_ids", DT_I64, 2, (const int64_t[]){SAMPLES, LENGTH}},
                                    {"attention_mask", DT_I64, 2, (const int64_t[]){SAMPLES, LENGTH}}};
    const struct st_entry images[] = {labels_entry, {"pixel_values", DT_F32, 4, (const int64_t[]){SAMPLES, 3, 6, 6}}};
    static int64_t ids[SAMPLES][LENGTH], mask[SAMPLES][LENGTH], labels[SAMPLES];
    static float pixels[SAMPLES][PIXELS];
    unsigned seed = 3;
    for (int i = 0; i < SAMPLES; i++) {
        int64_t length = 3 + next_value(&seed, LENGTH - 2);
        labels[i] = next_value(&seed, CLASSES);
        for (int j = 0; j < LENGTH; j++) {
            mask[i][j] = j < length;
            ids[i][j] = j < length ? 1 + next_value(&seed, IDS - 1) : 0;
        }
        for (int j = 0; j < PIXELS; j++) {
            pixels[i][j] = (float)(next_value(&seed, 256) - 100 + 20 * labels[i]) / 64;
        }
    }
    write_file("rows.safetensors", rows, (const void *const[]){labels, ids, mask}, 3);
    write_file("images.safetensors", images, (const void *const[]){labels, pixels}, 2);
}

/* The job of ranks_job for another model, read as a job file is. */
static void job_of_model(struct job *job, const char *name)
{
    size_t i = 0;
    while (i < sizeof models / sizeof models[0] && strcmp(models[i].name, name) != 0) {
        i++;
    }
    if (i == sizeof models / sizeof models[0]) {
        fail_msg("%s: unknown model %s", TABLE, name);
    }
    char *path = dt_format("%s/job.json", folder);
    char *text = dt_format("{\"model\": {\"name\": \"%s\", %s}, \"data\": {\"train\": \"%s/%s\"%s}, \"training\": "
                           "{\"batch_size_per_gpu\": 2, \"max_steps\": 3}, \"output_dir\": \"%s/run\"}",
                           name, models[i].sizes, folder, models[i].data,
                           strstr(models[i].sizes, "vocab_size") ? ", \"sequence_length\": 8" : "", folder);
    struct dt_text problems;
    struct dt_error err;
    dt_text_init(&problems);
    if (dt_file_write(path, text, strlen(text), &err) != 0 ||
        job_open(job, &(struct job_arguments){.path = path}, &problems, &err) != 0) {
        fail_msg("%s: %s", err.text, dt_text_str(&problems));
    }
    struct job usual;
    ranks_job(&usual);
    struct job_training t = usual.training;
    t.strategy = job->training.strategy;
    t.lr_scheduler_type = job->training.lr_scheduler_type;
    t.device = job->training.device;
    job->training = t;
    job->optimizer.numbers = usual.optimizer.numbers;
    dt_text_clear(&problems);
    job_close(&usual);
    free(text);
    free(path);
}

/* ---- one side ---- */

struct side {
    char name[160]; /* "3 ranks, k 2: full_shard recompute" */
    struct job job;
    int ranks;
    const char *streams, *device;
    char hosts[RANKS_MAX + 1];
};

static bool has_value(const char *word, const char *key, const char **value)
{
    size_t length = strlen(key);
    *value = word + length + 1;
    return strncmp(word, key, length) == 0 && word[length] == '=';
}

static int choice(const char *value, const char *const *names)
{
    for (int i = 0; names[i]; i++) {
        if (strcmp(value, names[i]) == 0) {
            return i;
        }
    }
    fail_msg("%s: unknown value %s", TABLE, value);
    return -1;
}

static double number(const char *value)
{
    double out = 0;
    if (!dt_parse_double(value, &out)) {
        fail_msg("%s: %s is no number", TABLE, value);
    }
    return out;
}

static void set_mesh(struct side *s, const char *value)
{
    int replicas, shards;
    assert_int_equal(sscanf(value, "%dx%d", &replicas, &shards), 2);
    s->job.fsdp.device_mesh[0] = replicas;
    /* 0: as many as there are */
    s->job.fsdp.device_mesh[1] = shards > 0 ? shards : s->ranks / replicas;
}

/* cpu, nvme; with small portions, so that an update of these models has several. */
static void set_offload(struct side *s, const char *value, enum offload_to *out)
{
    static const char *const homes[] = {"none", "cpu", "nvme", NULL};
    struct job_offload *o = &s->job.offload;
    *out = (enum offload_to)choice(value, homes);
    o->portion = o->portion > 0 ? o->portion : 2048;
    o->buffer_count = 3;
    o->pipeline_read = o->pipeline_write = o->overlap_events = true;
    o->ratio = o->ratio > 0 ? o->ratio : 1;
    o->block_size = 4096;
    o->queue_depth = 4;
    o->intra_op_parallelism = 1;
    if (o->nvme_path.count == 0) {
        const char **paths = dt_arena_alloc(&s->job.arena, 2 * sizeof *paths);
        paths[0] = paths[1] = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : folder; /* the files have no names */
        o->nvme_path = (struct dt_strings){2, paths};
    }
}

/* The section fsdp: weights that are whole at a time. */
static bool apply_fsdp(struct side *s, const char *word)
{
    struct job_fsdp *f = &s->job.fsdp;
    static const struct {
        const char *word;
        size_t offset;
    } numbers[] = {{"unit", offsetof(struct job_fsdp, layers_per_unit)},
                   {"ahead", offsetof(struct job_fsdp, prefetch_bucket_size)},
                   {"again", offsetof(struct job_fsdp, reshard_after_forward)},
                   {"live", offsetof(struct job_fsdp, max_live_parameters)},
                   {"reuse", offsetof(struct job_fsdp, max_reuse_distance)},
                   {"persist", offsetof(struct job_fsdp, param_persistence_threshold)},
                   {"persist_all", offsetof(struct job_fsdp, model_persistence_threshold)}};
    const char *value;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (has_value(word, numbers[i].word, &value)) {
            *(int64_t *)(void *)((char *)f + numbers[i].offset) = (int64_t)number(value);
            return true;
        }
    }
    if (has_value(word, "size", &value)) {
        f->auto_wrap_policy = WRAP_BY_SIZE;
        f->min_num_params = (int64_t)number(value);
    } else if (strcmp(word, "whole") == 0) {
        f->auto_wrap_policy = WRAP_WHOLE;
    } else if (has_value(word, "only", &value)) {
        const char **globs = dt_arena_alloc(&s->job.arena, sizeof *globs);
        globs[0] = dt_arena_strdup(&s->job.arena, value);
        f->wrap_layers = (struct dt_strings){1, globs};
    } else if (strcmp(word, "waits") == 0) {
        f->overlap_comm = false;
    } else {
        return false;
    }
    return true;
}

static void apply(struct side *s, const char *word)
{
    static const char *const syncs[] = {"auto", "every", "boundary", NULL}, *const prefetches[] = {"pre", "post",
                                                                                                   "none", NULL};
    static const char *const levels[] = {"none", "cheap", "mlp", "block", NULL};
    static const char *const norms[] = {"local", "tokens", NULL}, *const streams[] = {"inline", "thread", NULL};
    struct job_training *t = &s->job.training;
    const char *value;
    if (has_value(word, "sync", &value)) {
        t->accumulate_sync = (enum accumulate_sync)choice(value, syncs);
    } else if (has_value(word, "prefetch", &value)) {
        s->job.fsdp.backward_prefetch = (enum prefetch)choice(value, prefetches);
    } else if (strcmp(word, "forward") == 0) {
        s->job.fsdp.forward_prefetch = true;
    } else if (strcmp(word, "recompute") == 0) {
        s->job.recompute.enabled = true;
    } else if (has_value(word, "recompute", &value)) {
        s->job.recompute.enabled = true;
        s->job.recompute.level = (enum recompute)choice(value, levels);
    } else if (has_value(word, "every", &value)) {
        s->job.recompute.every_n_layers = (int64_t)number(value);
    } else if (has_value(word, "mesh", &value)) {
        set_mesh(s, value);
    } else if (has_value(word, "clip", &value)) {
        t->max_grad_norm = number(value);
    } else if (has_value(word, "decay", &value)) {
        t->weight_decay = number(value);
    } else if (strcmp(word, "lamb") == 0) {
        s->job.optimizer = (struct job_optimizer){
            .name = "lamb",
            .row = optimizer_find("lamb"),
            .numbers = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .min_coeff = 0.01, .max_coeff = 10}};
    } else if (strcmp(word, "muon") == 0) {
        ranks_muon(&s->job);
    } else if (strcmp(word, "amsgrad") == 0) {
        s->job.optimizer.numbers.amsgrad = true;
    } else if (strcmp(word, "uncorrected") == 0) {
        s->job.optimizer.numbers.uncorrected = 1;
    } else if (strcmp(word, "groups") == 0) {
        static const char *const first[] = {"*.bias", "*ln_*"}, *const second[] = {"*h.0.*"};
        s->job.optimizer.group_count = 2;
        s->job.optimizer.groups[0] = (struct job_group){{2, first}, .lr_scale = 0.5, .weight_decay = 0.2};
        s->job.optimizer.groups[1] = (struct job_group){{1, second}, .lr_scale = 2, .weight_decay = NAN};
    } else if (has_value(word, "value", &value)) {
        t->clip_value = number(value);
        t->max_grad_norm = 0;
    } else if (strcmp(word, "syncbn") == 0) {
        t->sync_batch_norm = true;
    } else if (has_value(word, "seed", &value)) {
        t->seed = (int64_t)number(value);
    } else if (has_value(word, "batch", &value)) {
        t->batch_size_per_gpu = (int64_t)number(value);
    } else if (has_value(word, "drop", &value)) {
        struct gpt2 *m = ranks_model(&s->job);
        m->attn_pdrop = m->embd_pdrop = m->resid_pdrop = number(value);
    } else if (has_value(word, "layers", &value)) {
        ranks_model(&s->job)->n_layer = (int64_t)number(value);
    } else if (has_value(word, "rate", &value)) {
        t->lr_scheduler_type = dt_arena_printf(&s->job.arena, "%s", value);
    } else if (has_value(word, "norm", &value)) {
        t->loss_normalization = (enum loss_normalization)choice(value, norms);
    } else if (has_value(word, "bucket", &value)) {
        s->job.ddp.bucket_cap_mb = number(value);
    } else if (has_value(word, "first", &value)) {
        s->job.ddp.first_bucket_mb = number(value);
    } else if (has_value(word, "hook", &value)) {
        s->job.ddp.comm_hook = dt_arena_printf(&s->job.arena, "%s", value);
    } else if (has_value(word, "wrap", &value)) {
        s->job.ddp.comm_wrapper = dt_arena_printf(&s->job.arena, "%s", value);
    } else if (has_value(word, "rank", &value)) {
        s->job.power_sgd.matrix_approximation_rank = (int64_t)number(value);
    } else if (has_value(word, "begins", &value)) {
        s->job.power_sgd.start_iter = (int64_t)number(value);
    } else if (has_value(word, "smaller", &value)) {
        s->job.power_sgd.min_compression_rate = number(value);
    } else if (strcmp(word, "feedback") == 0) {
        s->job.power_sgd.use_error_feedback = true;
    } else if (strcmp(word, "cold") == 0) {
        s->job.power_sgd.warm_start = false;
    } else if (strcmp(word, "join") == 0) {
        t->uneven_inputs = UNEVEN_JOIN;
    } else if (strcmp(word, "active") == 0) {
        t->divide_by_initial_world_size = false;
    } else if (has_value(word, "period", &value)) {
        s->job.local_sgd.period = (int64_t)number(value);
    } else if (has_value(word, "group", &value)) {
        s->job.local_sgd.group_size = (int64_t)number(value);
    } else if (has_value(word, "together", &value)) {
        s->job.local_sgd.warmup_steps = (int64_t)number(value);
    } else if (has_value(word, "sgd", &value)) {
        s->job.optimizer =
            (struct job_optimizer){.name = "sgd", .row = optimizer_find("sgd"), .numbers = {.momentum = number(value)}};
    } else if (has_value(word, "device", &value)) {
        s->device = dt_arena_printf(&s->job.arena, "%s", value);
    } else if (has_value(word, "streams", &value)) {
        s->streams = streams[choice(value, streams)];
    } else if (has_value(word, "hosts", &value)) {
        assert_int_equal(strlen(value), s->ranks);
        (void)snprintf(s->hosts, sizeof s->hosts, "%s", value);
    } else if (strcmp(word, "bf16") == 0) {
        s->job.precision.compute = s->job.precision.reduce = DT_BF16;
    } else if (strcmp(word, "fp16") == 0) {
        s->job.precision.compute = s->job.precision.reduce = DT_F16;
    } else if (strcmp(word, "true") == 0) {
        s->job.precision.masters = s->job.precision.compute;
        s->job.precision.states = DT_BF16;
    } else if (strcmp(word, "sums=16") == 0) {
        s->job.precision.sums = s->job.precision.compute;
    } else if (has_value(word, "scaler", &value)) {
        s->job.loss_scaling.algorithm = dt_arena_printf(&s->job.arena, "%s", value);
    } else if (has_value(word, "scale", &value)) {
        s->job.loss_scaling.initial_scale_power = (int64_t)number(value);
    } else if (strcmp(word, "moments=bf16") == 0) {
        s->job.precision.states = DT_BF16;
    } else if (has_value(word, "reduce", &value)) {
        static const char *const types[] = {"fp32", "bf16", "fp16", NULL};
        static const enum dt_dtype reduced[] = {DT_F32, DT_BF16, DT_F16};
        s->job.precision.reduce = reduced[choice(value, types)];
    } else if (strcmp(word, "inorder") == 0) {
        s->job.data.shuffle = false;
    } else if (has_value(word, "optimizer", &value)) {
        set_offload(s, value, &s->job.offload.optimizer);
    } else if (has_value(word, "weights", &value)) {
        set_offload(s, value, &s->job.offload.parameters);
    } else if (has_value(word, "kept", &value)) {
        set_offload(s, value, &s->job.offload.activations);
    } else if (has_value(word, "ratio", &value)) {
        s->job.offload.ratio = number(value);
    } else if (has_value(word, "portion", &value)) {
        s->job.offload.portion = (int64_t)number(value);
    } else if (strcmp(word, "unpipelined") == 0) {
        s->job.offload.pipeline_read = s->job.offload.pipeline_write = false;
    } else if (strcmp(word, "threads") == 0) {
        s->job.offload.engine = OFFLOAD_ENGINE_THREADS;
    } else if (has_value(word, "k", &value)) {
        t->gradient_accumulation_steps = (int64_t)number(value);
    } else if (has_value(word, "ranks", &value)) {
        s->ranks = (int)number(value);
    } else if (has_value(word, "freeze", &value)) {
        const char **globs = dt_arena_alloc(&s->job.arena, sizeof *globs);
        globs[0] = dt_arena_strdup(&s->job.arena, value);
        t->freeze = (struct dt_strings){1, globs};
    } else if (!has_value(word, "model", &value) && !apply_fsdp(s, word)) { /* the model is read before */
        fail_msg("%s: unknown setting %s", TABLE, word);
    }
}

/* `text`: "row setting setting"; the line's ranks and k unless it says otherwise. */
static void read_side(struct side *s, const char *text, int ranks, int k)
{
    char words[200], *rest = NULL;
    memset(s, 0, sizeof *s);
    s->ranks = ranks;
    const char *model = strstr(text, "model=");
    if (model) {
        (void)snprintf(words, sizeof words, "%s", model + strlen("model="));
        job_of_model(&s->job, strtok_r(words, " ", &rest));
    } else {
        ranks_job(&s->job);
    }
    s->job.training.gradient_accumulation_steps = k;
    (void)snprintf(words, sizeof words, "%s", text);
    const char *row = strtok_r(words, " ", &rest);
    assert_non_null(row);
    s->job.training.strategy = dt_arena_printf(&s->job.arena, "%s", row);
    for (const char *word; (word = strtok_r(NULL, " ", &rest)) != NULL;) {
        apply(s, word);
    }
    (void)snprintf(s->name, sizeof s->name, "%d ranks, k %d: %.120s", ranks, k, text);
}

/* ---- runs, each made once ---- */

struct run {
    char name[160];
    struct ranks_outcome out;
};
static struct run *runs;
static int run_count;

static const struct ranks_outcome *outcome_of(const char *text, int ranks, int k)
{
    struct side s;
    read_side(&s, text, ranks, k);
    for (int i = 0; i < run_count; i++) {
        if (strcmp(runs[i].name, s.name) == 0) {
            job_close(&s.job);
            return &runs[i].out;
        }
    }
    runs = dt_realloc(runs, (size_t)(run_count + 1) * sizeof *runs);
    struct run *r = &runs[run_count++];
    (void)snprintf(r->name, sizeof r->name, "%s", s.name);
    if (s.streams) {
        assert_int_equal(setenv("DTRUN_STREAMS", s.streams, 1), 0);
    }
    ranks_train(&s.job, s.ranks, &(struct ranks_options){.hosts = s.hosts[0] ? s.hosts : NULL, .device = s.device},
                &r->out);
    assert_int_equal(unsetenv("DTRUN_STREAMS"), 0);
    for (int i = 0; i < s.ranks; i++) {
        if (r->out.rc[i] != 0) {
            fail_msg("%s: rank %d: %s", r->name, i, r->out.err[i].text);
        }
    }
    assert_int_equal(r->out.step_count, s.job.training.max_steps);
    for (int64_t i = 0; i < r->out.weight_count; i++) { /* a step that is skipped changes nothing */
        assert_true(isfinite(r->out.weights[i]));
    }
    assert_int_equal(r->out.exit_code[0], DT_EXIT_DONE);
    job_close(&s.job);
    return &r->out;
}

static void clear_runs(void)
{
    for (int i = 0; i < run_count; i++) {
        ranks_clear(&runs[i].out);
    }
    free(runs);
    runs = NULL;
    run_count = 0;
}

/* ---- pairs ---- */

static bool same_bits(const struct ranks_outcome *a, const struct ranks_outcome *b)
{
    return a->step_count == b->step_count && memcmp(a->loss, b->loss, sizeof a->loss) == 0 &&
           memcmp(a->norm, b->norm, sizeof a->norm) == 0 && a->hash == b->hash && a->moments_hash == b->moments_hash;
}

/* Norms differ more, and of a step that is skipped they are not finite. */
enum { NORM_BOUND = 100 };

static bool close_losses(const struct ranks_outcome *a, const struct ranks_outcome *b, double bound)
{
    bool close = a->step_count == b->step_count;
    for (int i = 0; close && i < a->step_count; i++) {
        bool norms = bound > 1e-3 && isfinite(a->norm[i]) && isfinite(b->norm[i]); /* local SGD has others */
        close = fabs(a->loss[i] - b->loss[i]) <= bound * fabs(b->loss[i]) &&
                (!norms || fabs(a->norm[i] - b->norm[i]) <= NORM_BOUND * bound * fabs(b->norm[i]));
    }
    return close;
}

static void compare(const char *left, const char *right, int ranks, int k, char relation)
{
    /* the list may move */
    struct ranks_outcome a = *outcome_of(left, ranks, k), b = *outcome_of(right, ranks, k);
    bool holds = relation == '='   ? same_bits(&a, &b)
                 : relation == '~' ? close_losses(&a, &b, 1e-5)
                 : relation == '%' ? close_losses(&a, &b, 1e-2) && a.hash != b.hash
                                   : a.hash != b.hash;
    if (!holds) {
        print_error("%d ranks, k %d: %s %c %s does not hold:\n", ranks, k, left, relation, right);
        for (int i = 0; i < a.step_count; i++) {
            print_error("  step %d loss %.17g and %.17g, norm %.17g and %.17g\n", i, a.loss[i], b.loss[i], a.norm[i],
                        b.norm[i]);
        }
    }
    assert_true(holds);
}

/* ---- the table ---- */

static char *trim(char *s)
{
    s += strspn(s, " \t");
    for (size_t n = strlen(s); n > 0 && strchr(" \t\r", s[n - 1]) != NULL; n--) {
        s[n - 1] = '\0';
    }
    return s;
}

/* One line for one world size; returns the number of pairs compared. */
static int compare_line(const char *left, const char *rights, int ranks, const char *const *relations)
{
    int count = 0;
    for (int k = 1; k <= 2; k++) {
        char list[512], *rest = NULL, relation = relations[k - 1][0];
        assert_true(relations[k - 1][1] == '\0' && relation != '\0' && strchr("=~%!-", relation) != NULL);
        (void)snprintf(list, sizeof list, "%s", rights);
        for (char *right = strtok_r(list, ",", &rest); right && relation != '-'; right = strtok_r(NULL, ",", &rest)) {
            compare(left, trim(right), ranks, k, relation);
            count++;
        }
    }
    return count;
}

/* DTRUN_RANKS=35: three and five ranks alone. */
static void compare_all(int ranks, int at_least)
{
    const char *some = getenv("DTRUN_RANKS");
    if (some != NULL && strchr(some, '0' + ranks) == NULL) {
        skip();
    }
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    if (dt_file_read(TABLE, 1 << 20, &text, &err) != 0) {
        fail_msg("%s", err.text);
    }
    char *copy = dt_strdup(dt_text_str(&text)), *rest = NULL;
    int count = 0;
    for (char *line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *cells[5], *in_line = NULL;
        if (trim(line)[0] == '#' || trim(line)[0] == '\0') {
            continue;
        }
        for (int i = 0; i < 5; i++) {
            char *cell = strtok_r(i == 0 ? line : NULL, "|", &in_line);
            if (cell == NULL) {
                fail_msg("%s: a line has %d cells instead of 5", TABLE, i);
                return;
            }
            cells[i] = trim(cell);
        }
        const char *full = strchr(cells[0], '('), *at = strchr(cells[0], '0' + ranks);
        if (at != NULL && (full == NULL || at < full || getenv("DTRUN_ALL") != NULL)) {
            count += compare_line(cells[1], cells[2], ranks, (const char *const[]){cells[3], cells[4]});
        }
    }
    print_message("%d ranks: %d pairs of %d runs\n", ranks, count, run_count);
    assert_true(count >= at_least); /* a table that was not read compares nothing */
    clear_runs();
    free(copy);
    dt_text_clear(&text);
}

static void test_one_rank(void **state)
{
    (void)state;
    compare_all(1, 70);
}

static void test_two_ranks(void **state)
{
    (void)state;
    compare_all(2, 130);
}

static void test_three_ranks(void **state)
{
    (void)state;
    compare_all(3, 110);
}

static void test_four_ranks(void **state)
{
    (void)state;
    compare_all(4, 95);
}

static void test_five_ranks(void **state)
{
    (void)state;
    compare_all(5, 60);
}

static void test_eight_ranks(void **state)
{
    (void)state;
    compare_all(8, 70);
}

static int setup(void **state)
{
    int rc = ranks_setup(state);
    write_samples();
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank),   cmocka_unit_test(test_two_ranks),  cmocka_unit_test(test_three_ranks),
        cmocka_unit_test(test_four_ranks), cmocka_unit_test(test_five_ranks), cmocka_unit_test(test_eight_ranks),
    };
    return cmocka_run_group_tests(tests, setup, folder_teardown);
}
