/* covers: worker/checkpoints/checkpoint.c worker/checkpoints/checkpoint_export.c base/size.c */
/* covers: worker/checkpoints/manifest.c worker/data/safetensors.c */
/* Checkpoints: any ranks write, anyone reads; damage of any kind is found and never hides the
 * one before. */
#include "base/clock.h"
#include "base/file.h"
#include "base/size.h"
#include "worker/checkpoints/checkpoint.h"
#include "worker/checkpoints/checkpoint_export.h"
#include "worker/checkpoints/manifest.h"
#include "worker/data/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { LARGE = 300007, SMALL = 5 };
static float large[LARGE], small[SMALL];
static char top[32], dir[40];

/* A new empty folder, without what lay in or beside the one before (its locks). */
static void fresh_dir(void)
{
    struct dt_error err;
    if (top[0] != 0) {
        assert_int_equal(dt_file_remove_tree(top, &err), 0);
    }
    strcpy(top, "/tmp/dtrun-test-XXXXXX");
    assert_non_null(mkdtemp(top));
    (void)snprintf(dir, sizeof dir, "%s/run", top);
    assert_int_equal(dt_file_mkdirs(dir, &err), 0);
    for (int i = 0; i < LARGE; i++) {
        large[i] = (float)i * 0.5f;
    }
    for (int i = 0; i < SMALL; i++) {
        small[i] = -(float)i;
    }
}

/* Schedulers and users name runs as they like; 600 is more than a tensor's name may have. */
static const char *const long_run =
    "run \"0123456789\" "
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
    "01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
    "01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
    "01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
    "01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
    "01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789";

static const char *launch = "0123456789abcdef0123456789abcdef";
static const char *const other_launch = "0123456789abcdef0123456789abcde0";

static const char *model_config, *job_text; /* of the next ones; null: small ones */
static char first_name[] = "a \"b\".bin", second_name[] = "c.bin";
static const struct data_file data_files[] = {{first_name, 59216, 1}, {second_name, 7, 0xfedcba9876543210ull}};

static const double last_losses[] = {1.0 / 3, 2, 1e-30}, last_norms[] = {0.1, 1e9, 5};

static struct checkpoint_state state_at(int64_t step, int ranks, int round)
{
    return (struct checkpoint_state){
        .step = step,
        .epoch = 1,
        .position = 77,
        .tokens = 1000,
        .optimizer_steps = step,
        .seed = 42,
        .data_hash = 0xfedcba9876543210ull,
        .horizon = {.of = {16, 2}, .samples = 9600, .base = -32, .rows = 3700, .max_steps = 400, .end = 12800},
        .outliers = {.count = 7, .kept = 3, .skipped = 2, .loss = last_losses, .norm = last_norms},
        .stopper = {.checks = 4, .step = 290, .bad = 2, .best = 2.5, .value = 1.0 / 7, .reason = STOP_PATIENCE},
        .blank_steps = ranks > 1 ? 3 : 0,
        .best = {.seen = 290, .count = 2, .item = {{200, 1.0 / 3}, {290, NAN}}},
        .trained_s = 12.5,
        .data = data_files,
        .data_count = 2,
        .tokenizer = "bytes",
        .job = job_text != NULL ? job_text : "{\"a\":1}",
        .model_config = model_config != NULL ? model_config : "{\"model_type\":\"gpt2\"}",
        .ranks = ranks,
        .round = round,
        .run_id = long_run,
        .launch = launch};
}

static struct checkpoint_slice bias(const char *purpose, int64_t first, int64_t count, const float *data)
{
    return (struct checkpoint_slice){.name = "layer.bias",
                                     .purpose = purpose,
                                     .dims = 1,
                                     .shape = {SMALL},
                                     .numel = SMALL,
                                     .first = first,
                                     .count = count,
                                     .data = data};
}

static int64_t named = -1; /* the step that a job would name */

/* Rank r of n owns an equal part of both tensors, for two purposes. */
static int save(int64_t step, int ranks, int round, int keep, struct dt_error *err)
{
    struct checkpoint_state state = state_at(step, ranks, round);
    struct dt_text entries[8];
    const char *texts[8];
    int result = 0;
    for (int r = 0; r < ranks; r++) {
        struct checkpoint_slice slices[4];
        int count = 0;
        for (int p = 0; p < 2; p++) {
            const char *purpose = p == 0 ? "weight" : "exp_avg";
            int64_t from = LARGE * r / ranks, to = LARGE * (r + 1) / ranks;
            slices[count++] = (struct checkpoint_slice){.name = "layer.weight",
                                                        .purpose = purpose,
                                                        .dims = 2,
                                                        .shape = {1, LARGE},
                                                        .numel = LARGE,
                                                        .first = from,
                                                        .count = to - from,
                                                        .data = large + from};
            from = SMALL * r / ranks;
            to = SMALL * (r + 1) / ranks;
            if (to > from) {
                slices[count++] = bias(purpose, from, to - from, small + from);
            }
        }
        dt_text_init(&entries[r]);
        result |= checkpoint_write_slices(dir, &state, r, ranks, slices, count, &entries[r], err);
        texts[r] = dt_text_str(&entries[r]);
    }
    if (result == 0) {
        result = checkpoint_commit(dir, &state, texts, ranks,
                                   &(struct checkpoint_keep){.last_n = keep, .named_step = named}, err);
    }
    for (int r = 0; r < ranks; r++) {
        dt_text_clear(&entries[r]);
    }
    return result;
}

static int64_t newest(char *notes, size_t notes_bytes)
{
    char *path = NULL;
    struct dt_error err;
    struct dt_text t;
    dt_text_init(&t);
    int64_t step = -1;
    if (checkpoint_find(dir, &path, &t, &err) == 0) {
        step = strtoll(strstr(path, "step-") + 5, NULL, 10);
        free(path);
    } else {
        assert_int_equal(err.status, DT_NOT_FOUND);
    }
    if (notes != NULL) {
        (void)snprintf(notes, notes_bytes, "%s", dt_text_str(&t));
    }
    dt_text_clear(&t);
    return step;
}

static void any_ranks_write_anyone_reads(void **unused)
{
    (void)unused;
    struct dt_error err;
    char hashes[4][33];
    for (int ranks = 1; ranks <= 4; ranks++) {
        fresh_dir();
        assert_int_equal(save(300, ranks, 0, 3, &err), 0);
        char *path = dt_format("%s/step-00000300", dir);
        struct checkpoint *c;
        assert_int_equal(checkpoint_open(&c, path, &err), 0);
        const struct checkpoint_state *s = checkpoint_get_state(c);
        assert_int_equal(s->step, 300);
        assert_int_equal(s->position, 77);
        assert_int_equal(s->blank_steps, ranks > 1 ? 3 : 0);
        assert_int_equal(s->outliers.count, 7);
        assert_int_equal(s->outliers.kept, 3);
        assert_int_equal(s->outliers.skipped, 2);
        assert_true(s->outliers.loss[0] == 1.0 / 3 && s->outliers.loss[2] == 1e-30 && s->outliers.norm[1] == 1e9);
        assert_true(s->stopper.value == 1.0 / 7);
        assert_int_equal(s->stopper.checks, 4);
        assert_int_equal(s->stopper.step, 290);
        assert_int_equal(s->stopper.bad, 2);
        assert_int_equal(s->stopper.reason, STOP_PATIENCE);
        assert_true(s->stopper.best == 2.5 && s->trained_s == 12.5);
        assert_true(s->best.seen == 290 && s->best.count == 2 && s->best.item[0].step == 200);
        assert_true(s->best.item[0].value == 1.0 / 3 && s->best.item[1].step == 290 && isnan(s->best.item[1].value));
        assert_true(s->data_hash == 0xfedcba9876543210ull);
        const struct horizon h = {
            .of = {16, 2}, .samples = 9600, .base = -32, .rows = 3700, .max_steps = 400, .end = 12800};
        assert_memory_equal(&s->horizon, &h, sizeof h);
        assert_int_equal(s->data_count, 2);
        assert_string_equal(s->tokenizer, "bytes");
        for (int i = 0; i < 2; i++) {
            assert_string_equal(s->data[i].name, data_files[i].name);
            assert_true(s->data[i].count == data_files[i].count && s->data[i].hash == data_files[i].hash);
        }
        assert_string_equal(s->job, "{\"a\":1}");
        static float out[LARGE];
        static const int64_t ranges[][2] = {{0, LARGE}, {0, 1}, {LARGE - 1, 1}, {100001, 99999}, {262143, 2}, {5, 0}};
        for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
            assert_int_equal(
                checkpoint_read(c, "exp_avg", "layer.weight", LARGE, ranges[i][0], ranges[i][1], out, &err), 0);
            assert_memory_equal(out, large + ranges[i][0], (size_t)ranges[i][1] * sizeof(float));
        }
        assert_int_equal(checkpoint_read(c, "weight", "layer.bias", SMALL, 1, 3, out, &err), 0);
        assert_memory_equal(out, small + 1, 3 * sizeof(float));
        assert_int_equal(checkpoint_read(c, "weight", "layer.bias", SMALL + 1, 0, 1, out, &err), -1);
        assert_int_equal(err.status, DT_INVALID);
        assert_int_equal(checkpoint_read(c, "exp_avg_sq", "layer.bias", SMALL, 0, 1, out, &err), -1);
        assert_int_equal(err.status, DT_NOT_FOUND);
        assert_int_equal(checkpoint_read(c, "weight", "nobody", 1, 0, 1, out, &err), -1);
        assert_int_equal(checkpoint_verify(c, &err), 0);
        assert_int_equal(checkpoint_hash(c, hashes[ranks - 1], &err), 0);
        assert_string_equal(hashes[ranks - 1], hashes[0]);
        checkpoint_close(c);
        free(path);
    }
    large[LARGE - 1] += 1;
    assert_int_equal(save(301, 2, 0, 3, &err), 0);
    struct checkpoint *a, *b;
    char hash[33], *first = dt_format("%s/step-00000300", dir), *second = dt_format("%s/step-00000301/", dir),
                   *folder = dt_format("%s/model", dir);
    assert_int_equal(checkpoint_open(&a, first, &err), 0);
    assert_int_equal(checkpoint_open(&b, second, &err), 0);
    assert_int_equal(checkpoint_hash(b, hash, &err), 0);
    assert_string_not_equal(hash, hashes[0]);
    struct dt_text out;
    dt_text_init(&out);
    int differing;
    assert_int_equal(checkpoint_diff(a, b, &out, &differing, &err), 0);
    assert_int_equal(differing, 1);
    assert_string_equal(out.data, "layer.weight: 1 of 300007 elements differ, most at 300006: 1\n");
    dt_text_clear(&out);
    assert_false(checkpoint_is_exported(b, folder, DT_F32));
    struct dt_text notes;
    dt_text_init(&notes);
    assert_int_equal(checkpoint_export(b, folder, &export_defaults, &notes, &err), 0);
    assert_int_equal(notes.size, 0);
    dt_text_clear(&notes);
    assert_true(checkpoint_is_exported(b, folder, DT_F32));
    assert_false(checkpoint_is_exported(a, folder, DT_F32));
    large[LARGE - 1] += 1; /* the same step of another course */
    assert_int_equal(save(301, 1, 0, 3, &err), 0);
    large[LARGE - 1] -= 1;
    struct checkpoint *other;
    assert_int_equal(checkpoint_open(&other, second, &err), 0);
    assert_false(checkpoint_is_exported(other, folder, DT_F32));
    checkpoint_close(other);
    char *model = dt_format("%s/model.safetensors", folder);
    struct st_file *f;
    assert_int_equal(st_open(&f, model, &err), 0);
    assert_int_equal(st_count(f), 2);
    assert_memory_equal(st_find(f, "layer.weight")->data, large, sizeof large);
    st_close(f);
    checkpoint_close(a);
    checkpoint_close(b);
    free(model);
    free(folder);
    free(first);
    free(second);
}

/* config.json as it is written, and the files beside it; where those are missing, a word. */
static void what_came_in_comes_out(void **unused)
{
    (void)unused;
    static const char config[] =
        "{\n  \"model_type\": \"gpt2\", \"epsilon\": 1e-05,\"large\":1000000000000000019884624838656,\t\"x\": {\"b\": "
        "1.0, \"a\": [ ]} }\n";
    struct dt_error err;
    struct dt_text notes, text;
    struct checkpoint *c;
    fresh_dir();
    model_config = config;
    job_text = "{\"model\":{\"load\":\"in/gpt2\"}}";
    assert_int_equal(save(7, 2, 0, 2, &err), 0);
    model_config = NULL;
    job_text = NULL;
    char *path = dt_format("%s/step-00000007/", dir), *out = dt_format("%s/out", dir),
         *origin = checkpoint_origin(path), *file = dt_format("%s/vocab.json", origin);
    dt_text_init(&notes);
    dt_text_init(&text);
    assert_int_equal(checkpoint_open(&c, path, &err), 0);
    assert_int_equal(checkpoint_export(c, out, &export_defaults, &notes, &err), 0);
    assert_non_null(strstr(
        notes.data,
        "/origin: is not there: tokenizer and other files of in/gpt2 are not in the exported folder; copy them"));
    dt_text_reset(&notes);
    assert_int_equal(dt_file_mkdirs(origin, &err), 0);
    assert_int_equal(dt_file_write(file, "{}", 2, &err), 0);
    free(file);
    file = dt_format("%s/config.json", origin);
    assert_int_equal(dt_file_write(file, "{}", 2, &err), 0);
    assert_int_equal(checkpoint_export(c, out, &export_defaults, &notes, &err), 0);
    assert_int_equal(notes.size, 0);
    free(file);
    file = dt_format("%s/config.json", out);
    assert_int_equal(dt_file_read_own(file, 4096, &text, &err), 0);
    assert_string_equal(text.data, config);
    free(file);
    file = dt_format("%s/vocab.json", out);
    assert_int_equal(dt_file_read_own(file, 4096, &text, &err), 0);
    assert_string_equal(text.data, "{}");
    checkpoint_close(c);
    dt_text_clear(&text);
    dt_text_clear(&notes);
    free(file);
    free(origin);
    free(out);
    free(path);
}

static bool there(const char *in, const char *name)
{
    char *path = dt_format("%s/%s", in, name);
    bool is = dt_file_exists(path);
    free(path);
    return is;
}

static void check_text(const char *in, const char *name, const char *text)
{
    char *path = dt_format("%s/%s", in, name);
    struct dt_text have;
    dt_text_init(&have);
    assert_int_equal(dt_file_read_own(path, 4096, &have, NULL), 0);
    assert_string_equal(dt_text_str(&have), text);
    dt_text_clear(&have);
    free(path);
}

/* Exports checkpoint c with this type and size of files. */
static int export_as(struct checkpoint *c, const char *out, enum dt_dtype type, int64_t bytes, struct dt_error *err)
{
    struct dt_text notes;
    dt_text_init(&notes);
    int rc = checkpoint_export(c, out, &(struct export_options){type, bytes}, &notes, err);
    dt_text_clear(&notes);
    return rc;
}

/* Several files with their index, another type; nothing of an earlier export stays, and a type that has
 * no room for a weight is refused before anything is written. */
static void export_in_files_and_types(void **unused)
{
    (void)unused;
    struct dt_error err;
    struct checkpoint *c, *other;
    fresh_dir();
    model_config = "{\"model_type\": \"gpt2\", \"dtype\": \"float32\", \"torch_dtype\": \"float32\"}";
    assert_int_equal(save(7, 2, 0, 3, &err), 0);
    large[0] += 1;
    assert_int_equal(save(8, 2, 0, 3, &err), 0);
    large[0] -= 1;
    model_config = NULL;
    char *path = dt_format("%s/step-00000007/", dir), *next = dt_format("%s/step-00000008/", dir),
         *out = dt_format("%s/out", dir), *bias_path = dt_format("%s/model-00002-of-00002.safetensors", out);
    assert_int_equal(checkpoint_open(&c, path, &err), 0);
    assert_int_equal(checkpoint_open(&other, next, &err), 0);
    assert_int_equal(export_as(c, out, DT_F16, 1 << 30, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(err.text, "tensor layer.weight: element 131040 is 65520, and float16 ends at 65504"));
    assert_false(dt_file_exists(out));

    assert_int_equal(export_as(c, out, DT_F32, 1 << 30, &err), 0);
    assert_true(there(out, "model.safetensors") && !there(out, "model.safetensors.index.json"));
    /* the weight is larger than a file may be, and comes first, as huggingface_hub has it */
    assert_int_equal(export_as(c, out, DT_BF16, SMALL * 2, &err), 0);
    assert_true(checkpoint_is_exported(c, out, DT_BF16));
    assert_false(checkpoint_is_exported(other, out, DT_BF16) || checkpoint_is_exported(c, out, DT_F32));
    assert_false(there(out, "model.safetensors"));
    check_text(out, "config.json",
               "{\"model_type\": \"gpt2\", \"dtype\": \"bfloat16\", \"torch_dtype\": \"bfloat16\"}\n");
    char *index = dt_format("{\n  \"metadata\": {\n    \"total_parameters\": %d,\n    "
                            "\"total_size\": %d\n  },\n  \"weight_map\": {\n    "
                            "\"layer.bias\": \"model-00002-of-00002.safetensors\",\n    "
                            "\"layer.weight\": \"model-00001-of-00002.safetensors\"\n  }\n}\n",
                            LARGE + SMALL, 2 * (LARGE + SMALL));
    check_text(out, "model.safetensors.index.json", index);
    struct st_file *f;
    assert_int_equal(st_open(&f, bias_path, &err), 0);
    assert_int_equal(st_count(f), 1);
    assert_string_equal(st_at(f, 0)->dtype, "BF16");
    float read[SMALL];
    assert_int_equal(st_read_f32(f, st_at(f, 0), 0, SMALL, read, &err), 0);
    assert_memory_equal(read, small, sizeof small);
    st_close(f);
    assert_int_equal(unlink(bias_path), 0);
    assert_false(checkpoint_is_exported(c, out, DT_BF16));

    assert_int_equal(export_as(c, out, DT_F32, 4 * (LARGE + SMALL) - 1, &err), 0); /* a byte too many for one */
    assert_true(there(out, "model-00002-of-00002.safetensors"));
    assert_int_equal(export_as(c, out, DT_F32, 4 * (LARGE + SMALL), &err), 0);
    assert_true(there(out, "model.safetensors") && checkpoint_is_exported(c, out, DT_F32));
    assert_false(there(out, "model.safetensors.index.json") || there(out, "model-00001-of-00002.safetensors") ||
                 there(out, "model-00002-of-00002.safetensors"));
    check_text(out, "config.json",
               "{\"model_type\": \"gpt2\", \"dtype\": \"float32\", \"torch_dtype\": \"float32\"}\n");
    checkpoint_close(other);
    checkpoint_close(c);

    for (int i = 0; i < LARGE; i++) { /* the largest is exact */
        large[i] = i < 65504 ? (float)i : 65504;
    }
    large[1] = INFINITY;
    large[2] = 65519;
    assert_int_equal(save(9, 2, 0, 3, &err), 0);
    free(path);
    path = dt_format("%s/step-00000009/", dir);
    assert_int_equal(checkpoint_open(&c, path, &err), 0);
    assert_int_equal(export_as(c, out, DT_F16, 1 << 30, &err), 0);
    char *model = dt_format("%s/model.safetensors", out);
    assert_int_equal(st_open(&f, model, &err), 0);
    assert_int_equal(st_read_f32(f, st_find(f, "layer.weight"), 1, 2, read, &err), 0);
    assert_true(isinf(read[0]) && read[1] == 65504);
    assert_int_equal(st_read_f32(f, st_find(f, "layer.weight"), LARGE - 1, 1, read, &err), 0);
    assert_true(read[0] == 65504);
    st_close(f);
    checkpoint_close(c);
    free(model);
    free(index);
    free(bias_path);
    free(out);
    free(next);
    free(path);
}

static void types_and_sizes_of_an_export(void **unused)
{
    (void)unused;
    static const struct {
        const char *word;
        int64_t bytes; /* 0: none */
    } sizes[] = {{"5GB", 5000000000},
                 {"200MB", 200000000},
                 {"1.5kb", 1500},
                 {"12 KB", 12000},
                 {"1TB", 1000000000000},
                 {"4096", 4096},
                 {"", 0},
                 {"GB", 0},
                 {"5GiB", 0},
                 {"-5GB", 0},
                 {"0", 0},
                 {"0.1", 0},
                 {"1e3", 1000},
                 {"nanGB", 0},
                 {"99999999TB", 0},
                 {"5G", 0},
                 {"5 GB ", 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t bytes = 0;
        bool good = dt_parse_bytes(sizes[i].word, &bytes);
        if (good != (sizes[i].bytes > 0) || bytes != sizes[i].bytes) {
            fail_msg("%s: %lld", sizes[i].word, (long long)bytes);
        }
    }
    enum dt_dtype type;
    assert_true(export_parse_type("bf16", &type) && type == DT_BF16);
    assert_true(export_parse_type("bfloat16", &type) && type == DT_BF16);
    assert_true(export_parse_type("fp16", &type) && type == DT_F16);
    assert_true(export_parse_type("float16", &type) && type == DT_F16);
    assert_true(export_parse_type("float32", &type) && type == DT_F32);
    assert_false(export_parse_type("int8", &type) || export_parse_type("", &type));
}

static void old_ones_and_leftovers_are_removed(void **unused)
{
    (void)unused;
    struct dt_error err;
    fresh_dir();
    assert_int_equal(newest(NULL, 0), -1);
    for (int step = 10; step <= 50; step += 10) {
        assert_int_equal(save(step, 2, 0, 2, &err), 0);
        assert_int_equal(newest(NULL, 0), step);
    }
    char *leftover = dt_format("%s/step-00000055.tmp-0/x", dir), *gone = dt_format("%s/step-00000030", dir),
         *kept = dt_format("%s/step-00000040", dir), *cut = dt_format("%s.tmp-gone-1", kept);
    assert_false(dt_file_exists(gone));
    assert_true(dt_file_exists(kept));
    assert_int_equal(dt_file_mkdirs(leftover, &err), 0);
    assert_int_equal(rename(kept, cut), 0); /* its removal was cut short */
    assert_int_equal(newest(NULL, 0), 50);
    assert_int_equal(save(50, 3, 1, 2, &err), 0); /* the same step again, by others */
    assert_int_equal(newest(NULL, 0), 50);
    assert_false(dt_file_exists(leftover));
    assert_false(dt_file_exists(cut));
    free(cut);
    free(leftover);
    free(gone);
    free(kept);
}

/* What has no manifest was never a checkpoint of ours, whatever its name, and does not count as
 * one; what has the name of the next is renamed. */
static void what_is_not_ours_stays(void **unused)
{
    (void)unused;
    static const char *const folders[] = {"step-5",        "step-1000",     "step-00000005",
                                          "step-00001000", "step-00000020", "step-5.tmp-1"};
    struct dt_error err;
    fresh_dir();
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char *path = dt_format("%s/%s", dir, folders[i]), *file = dt_format("%s/model.bin", path);
        assert_int_equal(dt_file_mkdirs(path, &err), 0);
        assert_int_equal(dt_file_write(file, "theirs", 6, &err), 0);
        free(file);
        free(path);
    }
    char *first = dt_format("%s/step-77", dir), *second = dt_format("%s/step-00000030", dir);
    assert_int_equal(dt_file_write(first, "theirs", 6, &err), 0);
    assert_int_equal(dt_file_write(second, "theirs", 6, &err), 0);
    for (int step = 10; step <= 40; step += 10) {
        assert_int_equal(save(step, 1, 0, 2, &err), 0);
        assert_int_equal(newest(NULL, 0), step);
    }
    static const char *const there[] = {"step-5/model.bin",
                                        "step-1000/model.bin",
                                        "step-00000005/model.bin",
                                        "step-00001000/model.bin",
                                        "step-5.tmp-1/model.bin",
                                        "step-00000020.old-1/model.bin",
                                        "step-00000030.old-1",
                                        "step-77",
                                        "step-00000030/manifest.json",
                                        "step-00000040/manifest.json"};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) {
        char *path = dt_format("%s/%s", dir, there[i]);
        if (!dt_file_exists(path)) {
            fail_msg("%s is gone", path);
        }
        free(path);
    }
    char *gone = dt_format("%s/step-00000020", dir);
    assert_false(dt_file_exists(gone));
    free(gone);
    free(second);
    free(first);
}

/* Later steps are another course: they push nothing out. What the job names stays. */
static void a_save_never_removes_itself_or_the_named(void **unused)
{
    (void)unused;
    struct dt_error err;
    fresh_dir();
    for (int step = 10; step <= 60; step += 10) {
        assert_int_equal(save(step, 1, 0, 0, &err), 0);
    }
    named = 10;
    assert_int_equal(save(25, 1, 0, 2, &err), 0);
    named = -1;
    static const int64_t expected[] = {60, 50, 40, 30, 25, 20, 10};
    int64_t *steps;
    int count;
    assert_int_equal(checkpoint_steps(dir, &steps, &count, &err), 0);
    assert_int_equal(count, 7);
    assert_memory_equal(steps, expected, sizeof expected);
    free(steps);
    assert_int_equal(save(26, 1, 0, 1, &err), 0);
    assert_int_equal(checkpoint_steps(dir, &steps, &count, &err), 0);
    assert_int_equal(count, 5);
    assert_int_equal(steps[4], 26);
    free(steps);
}

/* Slices of 4 ranks from a try that was cut short must not end up beside those of 2. */
static void a_retry_with_fewer_ranks_is_clean(void **unused)
{
    (void)unused;
    struct dt_error err;
    fresh_dir();
    struct checkpoint_state state = state_at(7, 4, 0);
    struct checkpoint_slice slice = bias("weight", 0, SMALL, small);
    struct dt_text entry;
    dt_text_init(&entry);
    assert_int_equal(checkpoint_write_slices(dir, &state, 3, 4, &slice, 1, &entry, &err), 0);
    dt_text_clear(&entry);
    assert_int_equal(save(7, 2, 0, 0, &err), 0);
    char *stranger = dt_format("%s/step-00000007/slices-00003-of-00004.safetensors", dir);
    assert_false(dt_file_exists(stranger));
    free(stranger);
}

/* A rank on a host with another folder of the same name said that it wrote its file, or a disk
 * lost a part of it: no checkpoint, and the good ones stay. */
static void what_is_not_all_there_is_refused(void **unused)
{
    (void)unused;
    struct dt_error err;
    struct checkpoint_slice slice = bias("weight", 0, SMALL, small);
    fresh_dir();
    assert_int_equal(save(10, 2, 1, 0, &err), 0);
    for (int cut = 0; cut < 2; cut++) {
        struct checkpoint_state state = state_at(20, 1, 1);
        struct dt_text entry;
        dt_text_init(&entry);
        char *file = dt_format("%s/step-00000020.tmp-1-%s/slices-00000-of-00001.safetensors", dir, launch);
        assert_int_equal(checkpoint_write_slices(dir, &state, 0, 1, &slice, 1, &entry, &err), 0);
        assert_int_equal(cut ? truncate(file, 40) : unlink(file), 0);
        assert_int_equal(checkpoint_commit(dir, &state, &(const char *){dt_text_str(&entry)}, 1,
                                           &(struct checkpoint_keep){.last_n = 1, .named_step = -1}, &err),
                         -1);
        assert_int_equal(err.status, DT_IO);
        assert_non_null(strstr(err.text, cut ? "slices-00000-of-00001.safetensors: has 40 bytes, and rank 0 wrote "
                                             : ": is not there, though rank 0 wrote it"));
        checkpoint_discard(dir, &state);
        assert_int_equal(newest(NULL, 0), 10);
        dt_text_clear(&entry);
        free(file);
    }
}

/* Somebody copied a checkpoint under the name of another step: it is none, and the one that is
 * meant is found. */
static void another_step_than_its_name_is_damage(void **unused)
{
    (void)unused;
    struct dt_error err;
    struct checkpoint *c = NULL;
    char notes[512];
    fresh_dir();
    assert_int_equal(save(10, 1, 1, 0, &err), 0);
    assert_int_equal(save(20, 1, 1, 0, &err), 0);
    char *from = dt_format("%s/step-00000020", dir), *to = dt_format("%s/step-00000030", dir),
         *aside = dt_format("%s.old-1", to);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(checkpoint_open(&c, to, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(
        err.text,
        "/step-00000030: holds step 20, and its name says step 30; remove it, or give it its name step-00000020"));
    assert_int_equal(newest(notes, sizeof notes), 10);
    assert_non_null(strstr(notes, "holds step 20"));
    assert_int_equal(rename(to, aside), 0); /* any other name says nothing */
    assert_int_equal(checkpoint_open(&c, aside, &err), 0);
    checkpoint_close(c);
    free(aside);
    free(to);
    free(from);
}

static void older_rounds_are_refused(void **unused)
{
    (void)unused;
    struct dt_error err;
    fresh_dir();
    assert_int_equal(checkpoint_claim(dir, long_run, launch, 0, &err), 0);
    assert_int_equal(save(1, 1, 0, 0, &err), 0);
    assert_int_equal(checkpoint_claim(dir, long_run, launch, 10, &err), 0);
    assert_int_equal(checkpoint_claim(dir, long_run, launch, 9, &err), -1);
    assert_int_equal(err.status, DT_STOPPED);
    assert_int_equal(save(2, 1, 9, 0, &err), -1);
    assert_int_equal(err.status, DT_STOPPED);
    assert_int_equal(newest(NULL, 0), 1);
    assert_int_equal(save(2, 1, 10, 0, &err), 0);
    assert_int_equal(checkpoint_claim(dir, "another run", launch, 0, &err), 0);
    assert_int_equal(save(3, 1, 10, 0, &err), -1);
    assert_non_null(strstr(err.text, "another run"));
    assert_int_equal(newest(NULL, 0), 2);
}

/* Each launch counts its rounds from 1, so those of one before, of the same name, are neither
 * older nor newer. */
static void another_launch_of_the_same_name(void **unused)
{
    (void)unused;
    static const char *const before[] = {"0123456789abcdef0123456789abcde0", "", NULL};
    const char *ours = launch;
    struct dt_error err;
    for (size_t i = 0; i < 3; i++) {
        fresh_dir();
        launch = before[i];
        assert_int_equal(checkpoint_claim(dir, long_run, launch, 7, &err), 0);
        assert_int_equal(save(1, 1, 7, 0, &err), 0);
        launch = ours;
        assert_int_equal(checkpoint_claim(dir, long_run, launch, 1, &err), 0);
        launch = before[i];
        assert_int_equal(save(2, 1, 7, 0, &err), -1); /* frozen until now, or on a host that
                                                       * nobody reaches */
        assert_int_equal(err.status, DT_STOPPED);
        assert_non_null(strstr(err.text, "now belongs to"));
        assert_int_equal(save(2, 1, 1, 0, &err), -1); /* the same, in a round of the same number */
        assert_int_equal(err.status, DT_STOPPED);
        launch = ours;
        assert_int_equal(save(3, 1, 1, 0, &err), 0);
        assert_int_equal(newest(NULL, 0), 3);
    }
}

/* A rank that writes its slices when the folder was taken over writes them beside those of the
 * same round, step and rank of the new launch. */
static void slices_of_two_launches_stay_apart(void **unused)
{
    (void)unused;
    struct dt_error err;
    const char *ours = launch;
    struct checkpoint_slice slice = bias("weight", 0, SMALL, small), stale = slice;
    float other[SMALL] = {1, 2, 3, 4, 5};
    struct dt_text entry, ignored;
    fresh_dir();
    dt_text_init(&entry);
    dt_text_init(&ignored);
    struct checkpoint_state state = state_at(9, 1, 1), old = state;
    stale.data = other;
    old.launch = other_launch;
    assert_int_equal(checkpoint_claim(dir, long_run, ours, 1, &err), 0);
    assert_int_equal(checkpoint_write_slices(dir, &state, 0, 1, &slice, 1, &entry, &err), 0);
    assert_int_equal(checkpoint_write_slices(dir, &old, 0, 1, &stale, 1, &ignored, &err), 0);
    assert_int_equal(checkpoint_commit(dir, &state, &(const char *){dt_text_str(&entry)}, 1,
                                       &(struct checkpoint_keep){.named_step = -1}, &err),
                     0);
    assert_int_equal(newest(NULL, 0), 9);
    dt_text_clear(&entry);
    dt_text_clear(&ignored);
}

/* What a launch before was about to rename is gone when the folder was taken over, also when its
 * locks are. */
static void a_commit_that_was_frozen_ends(void **unused)
{
    (void)unused;
    struct dt_error err;
    fresh_dir();
    char *try = dt_format("%s/step-00000005.tmp-1-%s", dir, other_launch), *done = dt_format("%s/step-00000005", dir);
    assert_int_equal(checkpoint_claim(dir, long_run, other_launch, 1, &err), 0);
    assert_int_equal(dt_file_mkdirs(try, &err), 0);
    assert_int_equal(checkpoint_claim(dir, long_run, launch, 1, &err), 0);
    assert_int_equal(checkpoint_claim(dir, long_run, launch, 2, &err), 0);
    assert_int_equal(rename(try, done), -1);
    assert_int_equal(errno, ENOENT);
    char *taken = dt_format("%s-taken-by-1", try);
    assert_true(dt_file_exists(taken));
    assert_int_equal(save(6, 1, 2, 0, &err), 0);
    assert_false(dt_file_exists(taken));
    free(taken);
    free(done);
    free(try);
}

static void one_job_at_a_time_holds_the_folder(void **unused)
{
    (void)unused;
    struct dt_error err;
    int first = -1, second = -1;
    fresh_dir();
    char *folder = dt_format("%s/new/checkpoints", dir), *parent = dt_format("%s/new", dir), host[256] = "";
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    assert_int_equal(checkpoint_check_free(folder, NULL, 0, &err), 0);
    assert_false(dt_file_exists(parent)); /* asking makes nothing */
    assert_int_equal(checkpoint_hold(folder, "job-1\nof\n2", launch, 1, 0, &first, &err), 0);
    assert_true(first >= 0);
    assert_int_equal(checkpoint_hold(folder, "job-2", launch, 1, 0.05, &second, &err), -1);
    char *who = dt_format("%s: in use by host %s pid %ld, job job-1, since 20", folder, host, (long)getpid());
    assert_int_equal(strncmp(err.text, who, strlen(who)), 0);
    assert_non_null(strstr(err.text, "; give this one another --output_dir"));
    assert_null(strchr(err.text, '\n'));
    static const struct {
        const char *run_id;
        int rc;
    } cases[] = {{NULL, -1}, {"job-2", -1}, {"job-1", 0}};
    for (size_t i = 0; i < 3; i++) {
        err.text[0] = '\0';
        assert_int_equal(checkpoint_check_free(folder, cases[i].run_id, 0.05, &err), cases[i].rc);
        assert_int_equal(strncmp(err.text, who, strlen(who)) == 0, cases[i].rc != 0);
        assert_true(cases[i].rc == 0 || err.status == DT_IN_USE);
    }
    (void)close(first);
    assert_int_equal(checkpoint_check_free(folder, NULL, 0, &err), 0);
    assert_int_equal(checkpoint_hold(folder, "job-2", launch, 1, 0, &second, &err), 0);
    (void)close(second);
    free(who);
    free(parent);
    free(folder);
}

/* A host that is frozen holds its locks for ever. A newer round of its run goes on, and nothing
 * that the older one still does counts. */
static void a_frozen_round_keeps_nobody_away(void **unused)
{
    (void)unused;
    struct dt_error err;
    int held = -1, next = -1;
    fresh_dir();
    assert_int_equal(checkpoint_hold(dir, "run", launch, 1, 0, &held, &err), 0);
    assert_int_equal(checkpoint_hold(dir, "another", launch, 2, 0.05, &next, &err), -1);
    assert_int_equal(checkpoint_hold(dir, "run", launch, 1, 0.05, &next, &err), -1);
    /* another launch of that name is another job */
    assert_int_equal(checkpoint_hold(dir, "run", other_launch, 2, 0.05, &next, &err), -1);
    assert_non_null(strstr(err.text, ", job run, since 20"));
    assert_int_equal(checkpoint_hold(dir, "run", NULL, 2, 0.05, &next, &err), -1);
    assert_int_equal(checkpoint_hold(dir, "run", launch, 2, 0.05, &next, &err), 0);
    (void)close(held);
    (void)close(next);

    char *lock = dt_format("%s/owner.lock", dir), *try = dt_format("%s/step-00000005.tmp-1", dir),
         *done = dt_format("%s/step-00000005", dir);
    assert_int_equal(checkpoint_claim(dir, long_run, launch, 1, &err), 0);
    assert_int_equal(dt_file_mkdirs(try, &err), 0);
    held = open(lock, O_RDWR);
    assert_int_equal(flock(held, LOCK_EX | LOCK_NB), 0); /* in a commit, before its rename */
    assert_int_equal(checkpoint_claim(dir, long_run, launch, 2, &err), 0);
    assert_int_equal(rename(try, done), -1);
    assert_int_equal(errno, ENOENT);
    assert_int_equal(save(6, 1, 2, 0, &err), 0);
    assert_int_equal(save(7, 1, 1, 0, &err), -1);
    assert_int_equal(err.status, DT_STOPPED);
    assert_int_equal(newest(NULL, 0), 6);
    (void)close(held);
    free(done);
    free(try);
    free(lock);
}

/* Descriptors of ours that have the file of this name open. */
static int open_count(const char *path)
{
    char link[64], target[1024];
    int count = 0;
    for (int fd = 3; fd < 256; fd++) {
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        count += strcmp(target, path) == 0;
    }
    return count;
}

static struct {
    int lock, result;
    _Atomic bool done;
} another;

static void *hold_for_another(void *unused)
{
    struct dt_error err;
    another.result = checkpoint_hold(dir, "another", launch, 1, 60, &another.lock, &err);
    another.done = true;
    return unused;
}

/* The newer round has the folder also when the frozen one ends, and whoever waited for that goes
 * on waiting. */
static void the_lock_of_a_frozen_round_is_taken_over(void **unused)
{
    (void)unused;
    struct dt_error err;
    int held = -1, next = -1, third = -1;
    pthread_t thread;
    fresh_dir();
    assert_int_equal(checkpoint_hold(dir, "run", launch, 1, 0, &held, &err), 0);
    char *lock = dt_format("%s.lock", dir), *path = realpath(lock, NULL);
    assert_int_equal(pthread_create(&thread, NULL, hold_for_another, NULL), 0);
    for (double end_s = dt_now_s() + 60; open_count(path) < 2 && dt_now_s() < end_s;) {
        dt_sleep_s(0.001);
    }
    assert_int_equal(checkpoint_hold(dir, "run", launch, 2, 0.05, &next, &err), 0);
    assert_true(next >= 0);
    (void)close(held);
    for (double end_s = dt_now_s() + 60; open_count(path) < 2 && !another.done && dt_now_s() < end_s;) {
        dt_sleep_s(0.001);
    }
    assert_int_equal(open_count(path), 2); /* it looks at the new file now */
    assert_int_equal(checkpoint_hold(dir, "a third", launch, 1, 0.05, &third, &err), -1);
    assert_non_null(strstr(err.text, ", job run, since 20"));
    assert_false(another.done);
    (void)close(next);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(another.result, 0);
    (void)close(another.lock);
    free(path);
    free(lock);
}

static void flip(const char *path, off_t at)
{
    int fd = open(path, O_RDWR);
    unsigned char c;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c ^= 4;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    (void)close(fd);
}

static void every_flipped_byte_is_found(void **unused)
{
    (void)unused;
    struct dt_error err;
    fresh_dir();
    assert_int_equal(save(1, 2, 0, 0, &err), 0);
    assert_int_equal(save(2, 2, 0, 0, &err), 0);
    static const char *const files[] = {"manifest.json", "slices-00000-of-00002.safetensors",
                                        "slices-00001-of-00002.safetensors"};
    for (size_t i = 0; i < 3; i++) {
        char *path = dt_format("%s/step-00000002/%s", dir, files[i]);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        off_t stride = i == 0 ? 61 : 40961;
        for (off_t at = 0; at < st.st_size; at += stride) {
            flip(path, at);
            char notes[1024];
            if (newest(notes, sizeof notes) != 1 || strstr(notes, files[i]) == NULL ||
                strstr(notes, "; taken is ") == NULL) {
                fail_msg("%s: a flipped byte at %lld was not found; notes: %s", files[i], (long long)at, notes);
            }
            flip(path, at);
        }
        free(path);
    }
    assert_int_equal(newest(NULL, 0), 2);
}

static void count_blocks(void *context)
{
    ++*(int *)context;
}

/* Ranks share the work: each block is compared by exactly one of them, and a damaged one is
 * found by exactly one. */
static void parts_make_a_whole(void **unused)
{
    (void)unused;
    struct dt_error err;
    fresh_dir();
    assert_int_equal(save(1, 2, 0, 0, &err), 0);
    char *folder = checkpoint_path(dir, 1), *file = dt_format("%s/slices-00001-of-00002.safetensors", folder);
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    int whole = 0;
    for (int parts = 1; parts <= 9; parts++) {
        for (off_t at = st.st_size - 1; at > st.st_size / 2; at = parts == 3 ? at - 40961 : 0) {
            int blocks = 0, complaints = 0;
            flip(file, at);
            for (int part = 0; part < parts; part++) {
                struct checkpoint *c;
                assert_int_equal(checkpoint_open(&c, folder, &err), 0);
                complaints += checkpoint_verify_part(c, part, parts, &err) != 0;
                checkpoint_close(c);
            }
            flip(file, at);
            assert_int_equal(complaints, 1);
            for (int part = 0; part < parts; part++) {
                struct checkpoint *c;
                assert_int_equal(checkpoint_open(&c, folder, &err), 0);
                checkpoint_progress(c, count_blocks, &blocks);
                assert_int_equal(checkpoint_verify_part(c, part, parts, &err), 0);
                checkpoint_close(c);
            }
            whole = whole == 0 ? blocks : whole;
            assert_int_equal(blocks, whole);
        }
    }
    assert_true(whole > 4);
    free(file);
    free(folder);
}

/* Seconds that it takes to read the names in a folder, and nothing else. */
static double listing_s(const char *path)
{
    double begin_s = dt_now_s();
    DIR *d = opendir(path);
    assert_non_null(d);
    while (readdir(d) != NULL) {
    }
    (void)closedir(d);
    return dt_now_s() - begin_s;
}

/* A folder with very many old checkpoints and other files: what to load is known in little more
 * time than it takes to read their names. The best of several tries of each, in turn, so that
 * other load on the machine counts for neither. DTRUN_ALL=1: 10 000 of them, 100 000 files. */
static void very_many_old_ones(void **unused)
{
    (void)unused;
    struct dt_error err;
    int many = getenv("DTRUN_ALL") != NULL ? 10000 : 500;
    fresh_dir();
    assert_int_equal(save(1000000, 1, 0, 0, &err), 0);
    for (int step = 1; step <= many; step++) {
        char *folder = checkpoint_path(dir, step);
        assert_int_equal(mkdir(folder, 0777), 0);
        for (int i = 0; i < 10; i++) {
            char *file = dt_format("%s/slices-%05d-of-00010.safetensors", folder, i);
            int fd = open(file, O_WRONLY | O_CREAT, 0666);
            assert_true(fd >= 0);
            (void)close(fd);
            free(file);
        }
        free(folder);
    }
    double names_s = 1e9, found_s = 1e9;
    for (int i = 0; i < 10; i++) {
        int64_t *steps;
        int count;
        names_s = fmin(names_s, listing_s(dir));
        double begin_s = dt_now_s();
        assert_int_equal(checkpoint_steps(dir, &steps, &count, &err), 0);
        assert_int_equal(newest(NULL, 0), 1000000);
        found_s = fmin(found_s, dt_now_s() - begin_s);
        assert_int_equal(count, many + 1);
        assert_int_equal(steps[0], 1000000);
        assert_int_equal(steps[1], many);
        free(steps);
    }
    assert_true(found_s < 2);
    if (found_s > 30 * names_s) { /* 3 to 6 times: names are sorted; looking into each folder
                                   * would be 50 times */
        fail_msg("%d checkpoints: found in %.6f s, their names alone take %.6f s", many + 1, found_s, names_s);
    }
}

static void cut_missing_and_swapped_files_are_found(void **unused)
{
    (void)unused;
    struct dt_error err;
    static const char *const kinds[] = {"cut",  "empty",  "missing", "link",
                                        "fifo", "folder", "swapped", "manifest of another step"};
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
        fresh_dir();
        assert_int_equal(save(1, 2, 0, 0, &err), 0);
        small[0] = 9;
        assert_int_equal(save(2, 2, 0, 0, &err), 0);
        char *path = dt_format("%s/step-00000002/slices-00000-of-00002.safetensors", dir);
        char *other = dt_format("%s/step-00000002/slices-00001-of-00002.safetensors", dir),
             *moved = dt_format("%s/moved", dir);
        char *manifest = dt_format("%s/step-00000002/manifest.json", dir),
             *older = dt_format("%s/step-00000001/manifest.json", dir);
        switch (kind) {
        case 0:
            assert_int_equal(truncate(path, 5000), 0);
            break;
        case 1:
            assert_int_equal(truncate(path, 0), 0);
            break;
        case 2:
            assert_int_equal(unlink(path), 0);
            break;
        case 3:
            assert_int_equal(rename(path, moved), 0);
            assert_int_equal(symlink(moved, path), 0);
            break;
        case 4:
            assert_int_equal(unlink(path), 0);
            assert_int_equal(mkfifo(path, 0600), 0);
            break;
        case 5:
            assert_int_equal(unlink(path), 0);
            assert_int_equal(mkdir(path, 0700), 0);
            break;
        case 6:
            assert_int_equal(rename(path, moved), 0);
            assert_int_equal(rename(other, path), 0);
            assert_int_equal(rename(moved, other), 0);
            break;
        default: {
            struct dt_text t;
            dt_text_init(&t);
            assert_int_equal(dt_file_read(older, 1 << 20, &t, &err), 0);
            assert_int_equal(dt_file_write(manifest, t.data, t.size, &err), 0);
            dt_text_clear(&t);
        }
        }
        if (newest(NULL, 0) != 1) {
            fail_msg("%s: was taken for a complete checkpoint", kinds[kind]);
        }
        free(path);
        free(other);
        free(moved);
        free(manifest);
        free(older);
    }
}

#define SLICES_OF(file)                                                                                                \
    "{\"name\":\"" file "\",\"size\":1,\"slices\":[{\"purpose\":\"weight\",\"name\":\"" file                           \
    "\",\"shape\":[4],\"first\":0,\"count\":4,\"sums\":[\"0000000000000000\"]}]}"

/* A manifest with a right hash may still lie. */
static void lying_manifests_are_refused(void **unused)
{
    (void)unused;
    static const struct {
        const char *entry, *message;
    } bad[] = {
        {"{\"name\":\"../x\",\"size\":1,\"slices\":[]}", "files"},
        {"{\"name\":\"../"
         "x\",\"size\":1,\"slices\":[{\"purpose\":\"weight\",\"name\":\"a\",\"shape\":[4],\"first\":0,\"count\":4,"
         "\"sums\":[\"0000000000000000\"]}]}",
         "not plain"},
        {"{\"name\":\"/etc/"
         "passwd\",\"size\":1,\"slices\":[{\"purpose\":\"weight\",\"name\":\"a\",\"shape\":[4],\"first\":0,\"count\":4,"
         "\"sums\":["
         "\"0000000000000000\"]}]}",
         "not plain"},
        {"{\"name\":\"x\",\"size\":1,\"slices\":[{\"purpose\":\"weight\",\"name\":\"a\",\"shape\":[4],\"first\":0,"
         "\"count\":3,\"sums\":["
         "\"0000000000000000\"]}]}",
         "covers only 3"},
        {"{\"name\":\"x\",\"size\":1,\"slices\":[{\"purpose\":\"weight\",\"name\":\"a\",\"shape\":[4],\"first\":1,"
         "\"count\":3,\"sums\":["
         "\"0000000000000000\"]}]}",
         "gap or an overlap"},
        {"{\"name\":\"x\",\"size\":1,\"slices\":[{\"purpose\":\"weight\",\"name\":\"a\",\"shape\":[4],\"first\":2,"
         "\"count\":3,\"sums\":["
         "\"0000000000000000\"]}]}",
         "elements 2..5 of 4"},
        {"{\"name\":\"x\",\"size\":1,\"slices\":[{\"purpose\":\"weight\",\"name\":\"a\",\"shape\":[4],\"first\":-1,"
         "\"count\":3,\"sums\":["
         "\"0000000000000000\"]}]}",
         "first"},
        {"{\"name\":\"x\",\"size\":1,\"slices\":[{\"purpose\":\"weight\",\"name\":\"a\",\"shape\":[4],\"first\":0,"
         "\"count\":4,\"sums\":[]}]}",
         "with 0 checksums"},
        {"{\"name\":\"x\",\"size\":1,\"slices\":[{\"purpose\":\"weight\",\"name\":\"a\",\"shape\":[1e12,1e12],"
         "\"first\":0,\"count\":4,\"sums\":["
         "\"0000000000000000\"]}]}",
         "out of range"},
        {"{\"name\":\"x\",\"size\":1,\"slices\":[{\"purpose\":\"thing\",\"name\":\"a\",\"shape\":[4],\"first\":0,"
         "\"count\":4,\"sums\":["
         "\"0000000000000000\"]}]}",
         "without purpose"},
        {"{\"name\":\"x\",\"size\":1,\"slices\":[{\"purpose\":\"weight\",\"name\":\"a\",\"shape\":[4],\"first\":0,"
         "\"count\":4,\"sums\":[\"0000000000000000\"]},{\"purpose\":\"comm_q\",\"name\":\"a\",\"shape\":[4],\"first\":"
         "0,"
         "\"count\":4,\"sums\":[\"0000000000000000\"]},{\"purpose\":\"comm_q\",\"name\":\"a\",\"shape\":[4],\"first\":"
         "1,"
         "\"count\":2,\"sums\":[\"0000000000000000\"]}]}",
         "comm_q has an overlap at element 1"},
        {SLICES_OF("x") "," SLICES_OF("y"), "files: missing or out of range"}, /* of one rank */
    };
    struct dt_error err;
    fresh_dir();
    char *path = dt_format("%s/manifest.json", dir);
    struct checkpoint_state state = state_at(1, 1, 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct dt_text t;
        dt_text_init(&t);
        manifest_text(&t, &state, &bad[i].entry, 1);
        assert_int_equal(dt_file_write(path, t.data, t.size, &err), 0);
        dt_text_clear(&t);
        struct manifest m;
        assert_int_equal(manifest_read(&m, dir, &err), -1);
        if (strstr(err.text, bad[i].message) == NULL) {
            fail_msg("%s\nsays: %s", bad[i].entry, err.text);
        }
    }
    free(path);
}

#define STATEFUL(purpose, name, states)                                                                                \
    "{\"purpose\":\"" purpose "\",\"name\":\"" name "\"" states                                                        \
    ",\"shape\":[4],\"first\":0,\"count\":4,\"sums\":[\"0000000000000000\"]}"

/* Tensors may have different states, and a manifest says which: all of these are there, and no others. */
static void tensors_have_the_states_that_they_name(void **unused)
{
    (void)unused;
#define HEAD "{\"name\":\"x\",\"size\":1,\"slices\":["
#define A STATEFUL("weight", "a", ",\"states\":\"momentum_buffer\"")
#define B STATEFUL("weight", "b", ",\"states\":\"exp_avg,exp_avg_sq\"")
    static const char *const entries[] = {
        HEAD A "," B "," STATEFUL("momentum_buffer", "a", "") "," STATEFUL("exp_avg", "b",
                                                                           "") "," STATEFUL("exp_avg_sq", "b", "") "]}",
        HEAD A "," B "," STATEFUL("momentum_buffer", "a", "") "," STATEFUL("exp_avg", "a", "") "]}",
        HEAD A "," STATEFUL("weight", "b", "") "," STATEFUL("momentum_buffer", "a", "") "]}",
        HEAD A "," B "," STATEFUL("momentum_buffer", "b", "") "]}"};
    static const char *const messages[] = {NULL, "a: exp_avg has a gap", "b: momentum_buffer covers only 0",
                                           "b: momentum_buffer has a gap"};
    struct checkpoint_state state = state_at(1, 1, 0);
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        struct dt_error err;
        struct dt_text t;
        struct manifest m;
        dt_text_init(&t);
        manifest_text(&t, &state, &entries[i], 1);
        int rc = manifest_parse(&m, &t, &err);
        if (messages[i] == NULL ? rc != 0 : rc == 0 || strstr(err.text, messages[i]) == NULL) {
            fail_msg("%zu: %s", i, rc != 0 ? err.text : "was taken");
        }
        if (rc == 0) {
            manifest_clear(&m);
        }
        dt_text_clear(&t);
    }
#undef HEAD
#undef A
#undef B
}

/* Names of data files are for messages: whatever bytes they have, the checkpoint is read. */
static void names_of_data_are_cut(void **unused)
{
    (void)unused;
    struct dt_error err;
    char bad[256], wide[256];
    memset(bad, 0xff, 255);
    bad[255] = wide[255] = '\0';
    memset(wide, 'a', 255);
    memcpy(wide + 250, "\u00e4\u00e4", 4); /* just as much as fits */
    const struct data_file files[] = {{bad, 1, 1}, {wide, 2, 2}};
    struct checkpoint_state state = state_at(1, 1, 0);
    state.data = files;
    struct dt_text text;
    struct manifest m;
    dt_text_init(&text);
    const char *entry = SLICES_OF("x");
    manifest_text(&text, &state, &entry, 1);
    if (manifest_parse(&m, &text, &err) != 0) {
        fail_msg("%s", err.text);
    }
    assert_true(m.state.data_count == 2 && strlen(m.state.data[0].name) <= 255 &&
                strncmp(m.state.data[0].name, "\uFFFD\uFFFD", 6) == 0);
    assert_string_equal(m.state.data[1].name, wide);
    manifest_clear(&m);
    dt_text_clear(&text);
}

/* What a foreign manifest costs grows with its text: names that are compared in pairs, or values
 * that take fifty times the room of their text, would not end before the alarm, or with the
 * memory there is. */
static void a_manifest_costs_what_its_text_does(void **unused)
{
    (void)unused;
    enum { FILES = 300000 };
    struct dt_error err;
    struct manifest m;
    struct dt_text entry, t;
    struct checkpoint_state state = state_at(1, 1 << 20, 0);
    dt_text_init(&entry);
    dt_text_init(&t);
    for (int twice = 0; twice < 2; twice++) {
        dt_text_reset(&entry);
        for (int i = 0; i < FILES; i++) {
            dt_text_printf(&entry, "{\"name\":\"f%d\",\"size\":1,\"slices\":[]},", i);
        }
        dt_text_printf(&entry, "%s",
                       twice ? "{\"name\":\"f7\",\"size\":1,\"slices\":[]}," SLICES_OF("x") : SLICES_OF("x"));
        const char *entries[] = {dt_text_str(&entry)};
        dt_text_reset(&t);
        manifest_text(&t, &state, entries, 1);
        (void)alarm(60);
        assert_int_equal(manifest_parse(&m, &t, &err), twice ? -1 : 0);
        (void)alarm(0);
        if (twice) {
            assert_non_null(strstr(err.text, "f7: listed twice"));
        } else {
            assert_int_equal(m.file_count, FILES + 1);
            manifest_clear(&m);
        }
    }
    dt_text_reset(&entry);
    dt_text_puts(&entry, SLICES_OF("x") ",");
    for (int i = 0; i < 1 << 20; i++) {
        dt_text_puts(&entry, "0,");
    }
    dt_text_puts(&entry, "0");
    const char *numbers[] = {dt_text_str(&entry)};
    dt_text_reset(&t);
    manifest_text(&t, &state, numbers, 1);
    assert_int_equal(manifest_parse(&m, &t, &err), -1);
    assert_non_null(strstr(err.text, "more values than a checkpoint's has in so much text"));
    dt_text_clear(&entry);
    dt_text_clear(&t);
}

/* Each rank's entry came through the store: what is no list of that rank's own file never
 * becomes part of a manifest. */
static void an_entry_is_of_its_rank(void **unused)
{
    (void)unused;
    static const char own[] = "slices-00001-of-00002.safetensors";
    char *const bad[] = {
        dt_strdup(""),
        dt_strdup("{"),
        dt_strdup("{}"),
        dt_strdup("[]"),
        dt_strdup(SLICES_OF("../x")),
        dt_strdup(SLICES_OF("slices-00000-of-00002.safetensors")),
        dt_format("{\"name\":\"%s\",\"size\":-1,\"slices\":[]}", own),
        dt_format("{\"name\":\"%s\",\"size\":1}", own),
        dt_format("{\"name\":\"%s\",\"size\":1,\"slices\":[]},{\"name\":\"x\",\"size\":1,\"slices\":[]}", own),
        dt_format("{\"name\":\"%s\",\"size\":1,\"slices\":[]}],\"job\":[{}", own)};
    struct checkpoint_state state = state_at(7, 2, 1);
    struct dt_error err;
    fresh_dir();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct dt_text entry;
        const struct checkpoint_slice slice = bias("weight", 0, SMALL, small);
        dt_text_init(&entry);
        assert_int_equal(checkpoint_write_slices(dir, &state, 0, 2, &slice, 1, &entry, &err), 0);
        const char *entries[] = {dt_text_str(&entry), bad[i]};
        assert_int_equal(checkpoint_commit(dir, &state, entries, 2, &(struct checkpoint_keep){.named_step = -1}, &err),
                         -1);
        if (err.status != DT_INTERNAL || strstr(err.text, "rank 1 of 2 sent no list of its slices") == NULL) {
            fail_msg("%s\nsays: %s", bad[i], err.text);
        }
        assert_int_equal(newest(NULL, 0), -1);
        dt_text_clear(&entry);
        free(bad[i]);
    }
}

static int cleanup(void **unused)
{
    (void)unused;
    return top[0] != 0 ? dt_file_remove_tree(top, NULL) : 0;
}

/* What no version of ours has written of the run's place is no place; nothing at all is what
 * versions wrote that did not keep it. */
static void a_place_out_of_range(void **unused)
{
    (void)unused;
    static const struct horizon bad[] = {{.of = {16, 0}},
                                         {.of = {INT64_C(1) << 50, 1}},
                                         {.of = {1, 2000000}},
                                         {.of = {1, 1}, .samples = -1},
                                         {.of = {1, 1}, .rows = INT64_C(1) << 50},
                                         {.of = {1, 1}, .base = INT64_MAX},
                                         {.of = {1, 1}, .end = -1}};
    struct checkpoint_state state = state_at(1, 1, 0);
    struct dt_error err;
    for (size_t i = 0; i <= sizeof bad / sizeof bad[0]; i++) {
        bool none = i == sizeof bad / sizeof bad[0];
        struct dt_text text;
        struct manifest m;
        dt_text_init(&text);
        state.horizon = none ? (struct horizon){.base = 0} : bad[i];
        state.data_count = none ? 0 : state.data_count;
        fresh_dir();
        const char *entry = "{\"name\":\"x\",\"size\":4,\"slices\":[{\"purpose\":\"weight\",\"name\":\"w\",\"shape\":["
                            "1],\"first\":0,\"count\":1,\"sums\":["
                            "\"0123456789abcdef\"]}]}";
        manifest_text(&text, &state, &entry, 1);
        char *path = dt_format("%s/manifest.json", dir);
        assert_int_equal(dt_file_mkdirs(dir, &err), 0);
        assert_int_equal(dt_file_write(path, text.data, text.size, &err), 0);
        if (none) {
            assert_int_equal(manifest_read(&m, dir, &err), 0);
            assert_true(m.state.horizon.of.micro_batch == 0 && m.state.data_count == 0);
            manifest_clear(&m);
        } else {
            assert_int_equal(manifest_read(&m, dir, &err), -1);
            assert_non_null(strstr(err.text, "manifest.json: horizon: "));
        }
        dt_text_clear(&text);
        free(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_ranks_write_anyone_reads),
        cmocka_unit_test(what_came_in_comes_out),
        cmocka_unit_test(export_in_files_and_types),
        cmocka_unit_test(types_and_sizes_of_an_export),
        cmocka_unit_test(tensors_have_the_states_that_they_name),
        cmocka_unit_test(names_of_data_are_cut),
        cmocka_unit_test(a_place_out_of_range),
        cmocka_unit_test(old_ones_and_leftovers_are_removed),
        cmocka_unit_test(what_is_not_ours_stays),
        cmocka_unit_test(a_save_never_removes_itself_or_the_named),
        cmocka_unit_test(a_retry_with_fewer_ranks_is_clean),
        cmocka_unit_test(what_is_not_all_there_is_refused),
        cmocka_unit_test(another_step_than_its_name_is_damage),
        cmocka_unit_test(older_rounds_are_refused),
        cmocka_unit_test(another_launch_of_the_same_name),
        cmocka_unit_test(slices_of_two_launches_stay_apart),
        cmocka_unit_test(a_commit_that_was_frozen_ends),
        cmocka_unit_test(every_flipped_byte_is_found),
        cmocka_unit_test(cut_missing_and_swapped_files_are_found),
        cmocka_unit_test(parts_make_a_whole),
        cmocka_unit_test(very_many_old_ones),
        cmocka_unit_test(lying_manifests_are_refused),
        cmocka_unit_test(a_manifest_costs_what_its_text_does),
        cmocka_unit_test(an_entry_is_of_its_rank),
        cmocka_unit_test(one_job_at_a_time_holds_the_folder),
        cmocka_unit_test(the_lock_of_a_frozen_round_is_taken_over),
        cmocka_unit_test(a_frozen_round_keeps_nobody_away),
    };
    return cmocka_run_group_tests(tests, NULL, cleanup);
}
