/* covers: worker/checkpoints/hf.c worker/model/hf_config.c worker/checkpoints/origin.c worker/data/safetensors.c */
/* Hugging Face folders: both spellings of names, shards with an index, 16-bit types, what is
 * refused and how, export and back. */
#include "worker/checkpoints/hf.h"

#include "base/file.h"
#include "tests/lib/folder.h"
#include "worker/checkpoints/origin.h"
#include "worker/data/safetensors.h"
#include "worker/model/models/gpt2.h"

#include <cjson/cJSON.h>
#include <fcntl.h>

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN "tests/golden/models/gpt2"

/* A fresh sub-folder; the caller frees. */
static char *sub(const char *name)
{
    char *path = dt_format("%s/%s", folder, name);
    assert_int_equal(dt_file_mkdirs(path, NULL), 0);
    return path;
}

static void put(const char *dir, const char *name, const char *text)
{
    char *path = dt_format("%s/%s", dir, name);
    assert_int_equal(dt_file_write(path, text, strlen(text), NULL), 0);
    free(path);
}

static const struct model_spec tiny = {.name = "gpt2",
                                       .sizes = &(struct gpt2){.tie_word_embeddings = true,
                                                               .n_layer = 1,
                                                               .n_head = 2,
                                                               .n_embd = 4,
                                                               .head.num_labels = 2,
                                                               .n_positions = 3,
                                                               .vocab_size = 5,
                                                               .n_inner = 16,
                                                               .layer_norm_epsilon = 1e-6,
                                                               .initializer_range = 0.03},
                                       .batch_size = 1,
                                       .sequence_length = 3,
                                       .type = DT_F32};
static const char tiny_config[] =
    "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_head\":2,\"n_embd\":4,\"n_ctx\":3,\"vocab_size\":5,\"n_inner\":null,"
    "\"layer_norm_epsilon\":1e-6,\"initializer_range\":0.03,\"torch_dtype\":\"float32\",\"unknown\":{}}";

/* how a written file differs from the tiny model's */
struct edit {
    const char *without;  /* a tensor left out */
    const char *reshaped; /* a tensor with its dimensions swapped */
    const char *extra;    /* a further tensor, (5, 4) */
    float extra_value;    /* its first value; the others are as the table's */
    enum dt_dtype type;
    int first, end; /* tensors of the chain; end 0: all */
    bool bare;      /* names without the prefix */
};

static float value_of(int tensor, int64_t e)
{
    return (float)(tensor * 100 + (int)e % 7) / 8; /* exact in BF16 only where small; used with
                                                    * F32 and F16 */
}

static void write_file(const char *dir, const char *name, const struct chain *c, struct edit x)
{
    struct st_entry entries[32];
    int at[32], count = 0, end = x.end > 0 ? x.end : c->tensor_count;
    int64_t shapes[32][4];
    for (int i = x.first; i < end; i++) {
        const struct tensor *t = &c->tensors[i];
        if (x.without != NULL && strcmp(t->name, x.without) == 0) {
            continue;
        }
        bool swap = x.reshaped != NULL && strcmp(t->name, x.reshaped) == 0;
        shapes[count][0] = t->shape[swap ? 1 : 0];
        shapes[count][1] = t->shape[swap ? 0 : 1];
        entries[count] = (struct st_entry){
            .name = x.bare ? t->name + 12 : t->name, .type = x.type, .dims = t->dims, .shape = shapes[count]};
        at[count++] = i;
    }
    if (x.extra != NULL) {
        entries[count] = (struct st_entry){.name = x.extra, .type = DT_F32, .dims = 2, .shape = c->tensors[0].shape};
        at[count++] = -1;
    }
    char *path = dt_format("%s/%s", dir, name);
    struct st_writer *w;
    struct dt_error err;
    assert_int_equal(st_writer_open(&w, path, entries, count, NULL, &err), 0);
    for (int i = 0; i < count; i++) {
        int64_t n = at[i] >= 0 ? c->tensors[at[i]].numel : 20;
        for (int64_t e = 0; e < n; e++) {
            float v = at[i] >= 0 ? value_of(at[i], e) : e == 0 ? x.extra_value : value_of(0, e);
            uint32_t bits;
            memcpy(&bits, &v, sizeof bits);
            uint16_t half = (uint16_t)(bits >> 16);
            bool narrow = entries[i].type == DT_BF16;
            assert_int_equal(st_writer_data(w, narrow ? (const void *)&half : (const void *)&v, narrow ? 2 : 4, &err),
                             0);
        }
    }
    assert_int_equal(st_writer_close(w, &err), 0);
    free(path);
}

/* Opens and compares every value; rc of hf_open. */
static int read_back(const char *dir, const struct chain *c, bool narrow, struct dt_error *err)
{
    struct hf *h;
    int rc = hf_open(&h, dir, c, err);
    for (int i = 0; rc == 0 && i < c->tensor_count; i++) {
        for (int64_t e = 0; e < c->tensors[i].numel; e++) {
            float v, expected = value_of(i, e);
            assert_int_equal(hf_read_unit(h, c->tensors[i].unit, c->tensors[i].offset + e, 1, DT_F32, &v, err), 0);
            uint32_t bits;
            memcpy(&bits, &expected, sizeof bits);
            bits = narrow ? bits & 0xffff0000u : bits;
            assert_memory_equal(&v, &bits, sizeof v);
        }
    }
    if (rc == 0) {
        hf_close(h);
    }
    return rc;
}

static void test_folders(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct edit edit;
        const char *cause; /* null: loads */
    } rows[] = {
        {"plain", {0}, NULL},
        {"bare", {.bare = true}, NULL},
        {"bf16", {.type = DT_BF16}, NULL},
        {"tied", {.extra = "lm_head.weight", .extra_value = 0}, NULL},
        {"only-head", {.extra = "lm_head.weight", .without = "transformer.wte.weight"}, NULL},
        {"untied", {.extra = "lm_head.weight", .extra_value = 9}, "only tied heads"},
        {"buffers", {.extra = "h.0.attn.masked_bias"}, NULL},
        {"missing",
         {.without = "transformer.h.0.mlp.c_fc.bias"},
         "tensors do not fit its config.json: 1 missing: transformer.h.0.mlp.c_fc.bias"},
        {"reshaped",
         {.reshaped = "transformer.h.0.mlp.c_fc.weight"},
         "config.json: 1 misshapen: transformer.h.0.mlp.c_fc.weight [16, 4] instead of [4, 16]"},
        {"unknown", {.extra = "transformer.h.1.ln_1.weight"}, "1 unexpected: transformer.h.1.ln_1.weight"},
        {"all",
         {.extra = "more", .without = "transformer.wpe.weight", .reshaped = "transformer.h.0.mlp.c_fc.weight"},
         "1 missing: transformer.wpe.weight; 1 unexpected: more; 1 misshapen: transformer.h.0.mlp.c_fc.weight [16, 4] "
         "instead of [4, 16]"},
        {"integers", {.type = DT_I32}, "16 misshapen: transformer.wte.weight of type I32, "},
        {"few", {.first = 0, .end = 1}, "15 missing: transformer.wpe.weight, "},
    };
    struct chain c;
    struct dt_error err = {.status = DT_OK};
    assert_int_equal(chain_open(&c, &tiny, 1, &err), 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *dir = sub(rows[i].name);
        write_file(dir, "model.safetensors", &c, rows[i].edit);
        int rc = read_back(dir, &c, rows[i].edit.type == DT_BF16, &err);
        bool right = rows[i].cause == NULL
                         ? rc == 0
                         : rc == -1 && strstr(err.text, rows[i].cause) != NULL && strstr(err.text, dir) != NULL;
        if (!right) {
            fail_msg("%s: rc %d: %s", rows[i].name, rc, err.text);
        }
        free(dir);
    }
    chain_close(&c);
}

/* A model with a key for its head: equal heads are one, others are two, and the sizes say so before the
 * chain is built. */
static void test_tied(void **state)
{
    (void)state;
    static const struct {
        const char *name, *head;
        enum dt_dtype type; /* of the head */
        float difference;   /* of its last value */
        int64_t rows;
        bool tied;
        const char *cause; /* of a tied chain; null: loads */
    } rows[] = {
        {"none", NULL, DT_F32, 0, 3, true, NULL},
        {"equal", "lm_head.weight", DT_F32, 0, 3, true, NULL},
        {"equal-half", "lm_head.weight", DT_BF16, 0, 3, true, NULL},
        {"differs", "lm_head.weight", DT_F32, 1, 3, false,
         "tensor lm_head.weight differs from model.embed_tokens.weight"},
        {"differs-half", "lm_head.weight", DT_BF16, 1, 3, false, "differs from model.embed_tokens.weight"},
        {"other-shape", "lm_head.weight", DT_F32, 0, 2, true, "lm_head.weight has another shape"},
    };
    const struct model_ops *ops = model_find("llama");
    struct model_sizes tied;
    struct chain c;
    struct dt_error err = {.status = DT_OK};
    cJSON *config = cJSON_Parse("{\"vocab_size\":3,\"hidden_size\":4,\"num_attention_heads\":2,\"num_hidden_layers\":1,"
                                "\"intermediate_size\":4,\"tie_word_embeddings\":true}");
    assert_int_equal(model_read_config(ops, config, tied.bytes, &err), 0);
    cJSON_Delete(config);
    struct model_spec spec = {
        .name = "llama", .sizes = tied.bytes, .batch_size = 1, .sequence_length = 2, .type = DT_F32};
    assert_int_equal(chain_open(&c, &spec, 1, &err), 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *dir = dt_format("%s/tied-%s", folder, rows[i].name), *path = dt_format("%s/model.safetensors", dir);
        struct st_entry entries[32];
        struct st_writer *w;
        float zeros[64] = {0}, table[12], head[12];
        uint16_t half[12];
        int count = 0;
        assert_int_equal(dt_file_mkdirs(dir, NULL), 0);
        for (; count < c.tensor_count; count++) {
            const struct tensor *t = &c.tensors[count];
            entries[count] = (struct st_entry){.name = t->name, .type = DT_F32, .dims = t->dims, .shape = t->shape};
        }
        const int64_t shape[] = {rows[i].rows, 4};
        entries[count] = (struct st_entry){.name = rows[i].head, .type = rows[i].type, .dims = 2, .shape = shape};
        for (int k = 0; k < 12; k++) {
            table[k] = (float)k;
            head[k] = (float)k + (k == 11 ? rows[i].difference : 0);
            uint32_t bits;
            memcpy(&bits, &head[k], sizeof bits);
            half[k] = (uint16_t)(bits >> 16);
        }
        assert_int_equal(st_writer_open(&w, path, entries, count + (rows[i].head != NULL), NULL, &err), 0);
        for (int k = 0; k < count; k++) {
            bool is_table = strcmp(entries[k].name, "model.embed_tokens.weight") == 0;
            size_t bytes = (size_t)c.tensors[k].numel * sizeof(float);
            assert_true(bytes <= sizeof zeros);
            assert_int_equal(st_writer_data(w, is_table ? table : zeros, bytes, &err), 0);
        }
        if (rows[i].head != NULL) {
            size_t bytes = (size_t)(rows[i].rows * 4) * dt_dtype_size(rows[i].type);
            assert_int_equal(st_writer_data(w, rows[i].type == DT_BF16 ? (const void *)half : head, bytes, &err), 0);
        }
        assert_int_equal(st_writer_close(w, &err), 0);
        struct hf *h = NULL;
        int rc = hf_open(&h, dir, &c, &err);
        if (rc != (rows[i].cause != NULL ? -1 : 0) || (rc != 0 && strstr(err.text, rows[i].cause) == NULL)) {
            fail_msg("%s: rc %d: %s", rows[i].name, rc, err.text);
        }
        hf_close(h);
        struct model_sizes sizes = tied;
        hf_untie(dir, ops, sizes.bytes);
        assert_true(model_flag(ops, sizes.bytes, "tie_word_embeddings") == rows[i].tied);
        if (!rows[i].tied) {
            struct chain apart;
            spec.sizes = sizes.bytes;
            assert_int_equal(chain_open(&apart, &spec, 1, &err), 0);
            assert_int_equal(hf_open(&h, dir, &apart, &err), 0);
            hf_close(h);
            chain_close(&apart);
            spec.sizes = tied.bytes;
        }
        free(path);
        free(dir);
    }
    hf_untie("/nowhere", ops, tied.bytes);
    assert_true(model_flag(ops, tied.bytes, "tie_word_embeddings"));
    /* two matrices, of which the file has one */
    struct chain apart;
    model_set_flag(ops, tied.bytes, "tie_word_embeddings", false);
    assert_int_equal(chain_open(&apart, &spec, 1, &err), 0);
    char *dir = dt_format("%s/tied-none", folder);
    struct hf *h;
    assert_int_equal(hf_open(&h, dir, &apart, &err), -1);
    assert_non_null(strstr(err.text, "tensors do not fit its config.json: 1 missing: lm_head.weight"));
    free(dir);
    chain_close(&apart);
    chain_close(&c);
}

/* A long list of names does not push the others out of the error, which says how many there are. */
static void test_bounded(void **state)
{
    (void)state;
    struct gpt2 many = *(const struct gpt2 *)tiny.sizes;
    struct model_spec spec = tiny;
    struct chain few, c;
    struct dt_error err = {.status = DT_OK};
    many.n_layer = 50;
    many.vocab_size = 6;
    spec.sizes = &many;
    assert_int_equal(chain_open(&few, &tiny, 1, &err), 0);
    assert_int_equal(chain_open(&c, &spec, 1, &err), 0);
    char *dir = sub("bounded");
    write_file(dir, "model.safetensors", &few, (struct edit){.extra = "transformer.other"});
    struct hf *h;
    assert_int_equal(hf_open(&h, dir, &c, &err), -1);
    const char *const parts[] = {"588 missing: transformer.h.1.ln_1.weight, ",
                                 " more; 1 unexpected: transformer.other; ",
                                 "1 misshapen: transformer.wte.weight [5, 4] instead of [6, 4]"};
    for (int i = 0; i < 3; i++) {
        if (strstr(err.text, parts[i]) == NULL) {
            fail_msg("no \"%s\" in: %s", parts[i], err.text);
        }
    }
    free(dir);
    chain_close(&c);
    chain_close(&few);
}

static void test_shards(void **state)
{
    (void)state;
    struct chain c;
    struct dt_error err = {.status = DT_OK};
    assert_int_equal(chain_open(&c, &tiny, 1, &err), 0);
    char *dir = sub("shards");
    assert_int_equal(read_back(dir, &c, false, &err), -1);
    assert_int_equal(err.status, DT_NOT_FOUND);
    write_file(dir, "model-00001-of-00002.safetensors", &c, (struct edit){.first = 0, .end = 7});
    write_file(dir, "model-00002-of-00002.safetensors", &c, (struct edit){.first = 7});
    put(dir, "model.safetensors.index.json",
        "{\"metadata\":{\"total_size\":1},\"weight_map\":{\"a\":\"model-00002-of-00002.safetensors\","
        "\"b\":\"model-00001-of-00002.safetensors\",\"c\":\"model-00002-of-00002.safetensors\"}}");
    assert_int_equal(read_back(dir, &c, false, &err), 0);
    /* a tensor in two files, which must agree */
    write_file(dir, "more.safetensors", &c, (struct edit){.first = 0, .end = 1});
    static const char both[] = "{\"weight_map\":{\"a\":\"model-00002-of-00002.safetensors\","
                               "\"b\":\"model-00001-of-00002.safetensors\",\"c\":\"more.safetensors\"}}";
    put(dir, "model.safetensors.index.json", both);
    assert_int_equal(read_back(dir, &c, false, &err), 0);
    write_file(dir, "more.safetensors", &c,
               (struct edit){
                   .end = 1, .without = "transformer.wte.weight", .extra = "transformer.wte.weight", .extra_value = 7});
    assert_int_equal(read_back(dir, &c, false, &err), -1);
    char *cause = dt_format("tensor transformer.wte.weight is in %s/model-00001-of-00002.safetensors and in "
                            "%s/more.safetensors, with other values",
                            dir, dir);
    if (strstr(err.text, cause) == NULL) {
        fail_msg("no \"%s\" in: %s", cause, err.text);
    }
    free(cause);
    static const char *const broken[] = {"",
                                         "[]",
                                         "{}",
                                         "{\"weight_map\":{}}",
                                         "{\"weight_map\":{\"a\":1}}",
                                         "{\"weight_map\":{\"a\":\"../x\"}}",
                                         "{\"weight_map\":{\"a\":\"none.safetensors\"}}",
                                         "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"}}"};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        put(dir, "model.safetensors.index.json", broken[i]);
        err.text[0] = '\0';
        assert_int_equal(read_back(dir, &c, false, &err), -1);
        assert_non_null(strstr(err.text, dir));
    }
    free(dir);
    chain_close(&c);
}

static void test_config(void **state)
{
    (void)state;
    static const struct {
        const char *text, *cause;
    } rows[] = {
        {tiny_config, NULL},
        {"", "empty; expected a JSON value"},
        {"[]", "not a JSON object"},
        {"{\"model_type\":\"t5\"}", "\"t5\" is not supported: it has an encoder and a decoder"},
        {"{}", "model_type"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":0}", "n_layer"},
        {"{\"model_type\":\"gpt2\",\"n_embd\":1.5}", "n_embd"},
        {"{\"model_type\":\"gpt2\",\"n_embd\":\"8\"}", "n_embd"},
        {"{\"model_type\":\"gpt2\",\"activation_function\":\"relu\"}", "activation_function"},
        {"{\"model_type\":\"gpt2\",\"tie_word_embeddings\":3}", "tie_word_embeddings"},
        {"{\"model_type\":\"gpt2\",\"scale_attn_by_inverse_layer_idx\":true}", "scale_attn_by_inverse_layer_idx"},
        {"{\"model_type\":\"gpt2\",\"layer_norm_epsilon\":-1}", "layer_norm_epsilon"},
        {"{\"model_type\":\"gpt2\",\"layer_norm_epsilon\":NaN}", "\"NaN\" is not a JSON value"},
        {"{\"model_type\":\"gpt2\",\"layer_norm_epsilon\":0}", NULL},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":0}", "vocab_size"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":1}", NULL},
    };
    char *dir = sub("config");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        put(dir, "config.json", rows[i].text);
        struct model_sizes sizes;
        const struct model_ops *ops;
        struct dt_error err = {.status = DT_OK};
        int rc = hf_config(dir, &ops, &sizes, NULL, &err);
        bool right = rows[i].cause == NULL
                         ? rc == 0
                         : rc == -1 && strstr(err.text, rows[i].cause) != NULL && strstr(err.text, dir) != NULL;
        if (!right) {
            fail_msg("row %zu: rc %d: %s", i, rc, err.text);
        }
        if (i == 0) {
            struct gpt2 m;
            memcpy(&m, sizes.bytes, sizeof m);
            assert_true(m.n_layer == 1 && m.n_head == 2 && m.n_embd == 4 && m.n_positions == 3 && m.vocab_size == 5 &&
                        m.n_inner == 0 && m.layer_norm_epsilon == 1e-6 && m.initializer_range == 0.03 &&
                        strcmp(ops->name, "gpt2") == 0);
        }
    }
    free(dir);
}

/* A checkpoint that keeps what was loaded is read again; else the run does not begin. */
static void test_config_of_many_values(void **state)
{
    (void)state;
    char *dir = sub("many");
    for (int count = 30000; count <= 150000; count *= 5) {
        struct dt_text text;
        struct model_sizes sizes;
        const struct model_ops *ops;
        struct dt_error err = {.status = DT_OK};
        dt_text_init(&text);
        dt_text_puts(&text, "{\"model_type\":\"gpt2\",\"x\":[1");
        for (int i = 1; i < count; i++) {
            dt_text_puts(&text, ",1");
        }
        dt_text_puts(&text, "]}");
        put(dir, "config.json", text.data);
        assert_int_equal(hf_config(dir, &ops, &sizes, NULL, &err), count == 30000 ? 0 : -1);
        if (count > 30000) {
            assert_non_null(strstr(err.text, "config.json: more values than a checkpoint keeps"));
        }
        dt_text_clear(&text);
    }
    free(dir);
}

/* hf and hf_legacy hold the same weights under other names; the configuration that is written
 * reads back. */
static void test_other_names(void **state)
{
    (void)state;
    struct dt_error err = {.status = DT_OK};
    struct model_sizes sizes, again;
    const struct model_ops *ops;
    assert_int_equal(hf_config(GOLDEN "/hf_legacy", &ops, &sizes, NULL, &err), 0);
    struct model_spec spec = {
        .name = ops->name, .sizes = sizes.bytes, .batch_size = 1, .sequence_length = 8, .type = DT_F32};
    struct chain c;
    assert_int_equal(chain_open(&c, &spec, 1, &err), 0);
    struct hf *h, *legacy;
    assert_int_equal(hf_open(&h, GOLDEN "/hf", &c, &err), 0);
    assert_int_equal(hf_open(&legacy, GOLDEN "/hf_legacy", &c, &err), 0);
    for (int u = 0; u < c.unit_count; u++) {
        size_t bytes = (size_t)c.units[u].numel * sizeof(float);
        float *x = malloc(bytes), *y = malloc(bytes);
        assert_int_equal(hf_read_unit(h, u, 0, c.units[u].numel, DT_F32, x, &err), 0);
        assert_int_equal(hf_read_unit(legacy, u, 0, c.units[u].numel, DT_F32, y, &err), 0);
        assert_memory_equal(x, y, bytes);
        free(x);
        free(y);
    }
    hf_close(h);
    hf_close(legacy);

    struct dt_text text;
    dt_text_init(&text);
    model_write_config(ops, sizes.bytes, &text);
    char *dir = sub("written");
    put(dir, "config.json", text.data);
    assert_int_equal(hf_config(dir, &ops, &again, NULL, &err), 0);
    assert_memory_equal(&again, &sizes, sizeof(struct gpt2));
    dt_text_clear(&text);
    free(dir);
    chain_close(&c);
}

/* Every key that comes in comes out as it is written, but for the type of the weights and the
 * class. */
static void test_config_comes_out(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"{\n  \"model_type\": \"gpt2\",\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"layer_norm_epsilon\": "
         "1e-05,\n  \"torch_dtype\": "
         "\"bfloat16\",\n"
         "  \"eos_token_id\": [7, 9],\n  \"large\": 1000000000000000019884624838656,\n  \"p\": {\"torch_dtype\": "
         "\"float16\", \"x\": 1.0}\n}\n",
         "{\n  \"model_type\": \"gpt2\",\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"layer_norm_epsilon\": "
         "1e-05,\n  \"torch_dtype\": "
         "\"float32\",\n"
         "  \"eos_token_id\": [7, 9],\n  \"large\": 1000000000000000019884624838656,\n  \"p\": {\"torch_dtype\": "
         "\"float16\", \"x\": 1.0},\n"
         "  \"dtype\": \"float32\"\n}\n"},
        {"{\"dtype\":null,\"architectures\":[\"GPT2Model\"],\"torch_dtype\":\"float32\",\"model_type\":\"gpt2\"}",
         "{\"dtype\":\"float32\",\"architectures\":[\n    \"GPT2LMHeadModel\"\n  "
         "],\"torch_dtype\":\"float32\",\"model_type\":\"gpt2\"}"},
        {"{\"model_type\":\"gpt2\"}",
         "{\"model_type\":\"gpt2\",\n  \"architectures\": [\n    \"GPT2LMHeadModel\"\n  ],\n  \"dtype\": \"float32\",\n"
         "  \"torch_dtype\": \"float32\"}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct dt_text once, twice;
        dt_text_init(&once);
        dt_text_init(&twice);
        origin_config(rows[i].in, strlen(rows[i].in), "GPT2LMHeadModel", &once);
        assert_string_equal(once.data, rows[i].out);
        origin_config(once.data, once.size, "GPT2LMHeadModel", &twice);
        assert_string_equal(twice.data, once.data);
        cJSON *tree = cJSON_Parse(once.data);
        assert_non_null(tree);
        cJSON_Delete(tree);
        dt_text_clear(&once);
        dt_text_clear(&twice);
    }
}

static bool has(const char *dir, const char *name, const char *text)
{
    char *path = dt_format("%s/%s", dir, name);
    struct dt_text found;
    dt_text_init(&found);
    bool same = dt_file_read_own(path, 1 << 20, &found, NULL) == 0 && strcmp(dt_text_str(&found), text) == 0;
    dt_text_clear(&found);
    free(path);
    return same;
}

static void make_link(const char *dir, const char *name, const char *target)
{
    char *path = dt_format("%s/%s", dir, name);
    assert_int_equal(symlink(target, path), 0);
    free(path);
}

static void make_large(const char *dir, const char *name, off_t size)
{
    put(dir, name, "");
    char *path = dt_format("%s/%s", dir, name);
    assert_int_equal(truncate(path, size), 0);
    free(path);
}

static size_t count_in(const char *dir)
{
    struct dirent **names;
    int count = scandir(dir, &names, NULL, NULL);
    assert_true(count >= 2);
    for (int i = 0; i < count; i++) {
        free(names[i]);
    }
    free(names);
    return (size_t)count - 2;
}

/* Whatever a tokenizer's files are called they come along; weights, state and the README of
 * before do not; and nothing of outside. */
static void test_files_come_along(void **state)
{
    (void)state;
    static const char *const kept_names[] = {"config.json",
                                             "generation_config.json",
                                             "tokenizer.json",
                                             "tokenizer_config.json",
                                             "special_tokens_map.json",
                                             "vocab.json",
                                             "merges.txt",
                                             "added_tokens.json",
                                             "chat_template.jinja",
                                             "tokenizer.model",
                                             "spiece.model",
                                             "vocab.txt",
                                             "preprocessor_config.json",
                                             "LICENSE",
                                             "LICENSE.md",
                                             "NOTICE.txt",
                                             "name with \xc3\xa9.txt",
                                             "additional_chat_templates/tool_use.jinja"};
    static const char *const other_names[] = {"model.safetensors",
                                              "model-00001-of-00002.safetensors",
                                              "model.safetensors.index.json",
                                              ".gitattributes",
                                              "README.md",
                                              "flax_model.msgpack",
                                              "optimizer.pt",
                                              "pytorch_model.bin",
                                              "pytorch_model.bin.index.json",
                                              "trainer_state.json"};
    enum { KEPT = sizeof kept_names / sizeof kept_names[0] };
    char *dir = sub("came"), *templates = sub("came/additional_chat_templates"), *onnx = sub("came/onnx"),
         *kept = dt_format("%s/kept/origin", folder), *out = sub("out"), *pipe = dt_format("%s/apipe", dir);
    for (size_t i = 0; i < KEPT; i++) {
        put(dir, kept_names[i], kept_names[i]);
    }
    for (size_t i = 0; i < sizeof other_names / sizeof other_names[0]; i++) {
        put(dir, other_names[i], "x");
    }
    assert_int_equal(mkfifo(pipe, 0600), 0);
    struct dt_text notes;
    struct dt_error err = {.status = DT_OK};
    dt_text_init(&notes);
    assert_int_equal(origin_keep(dir, kept, &notes, &err), 0);
    assert_string_equal(
        notes.data,
        "README.md, apipe (not a regular file), flax_model.msgpack, onnx/, optimizer.pt, pytorch_model.bin, "
        "pytorch_model.bin.index.json, trainer_state.json");
    assert_int_equal(origin_copy(kept, out, &err), 0);
    for (size_t i = 0; i < KEPT; i++) {
        assert_true(has(kept, kept_names[i], kept_names[i]));
        /* which is written by the export */
        assert_true(has(out, kept_names[i], kept_names[i]) == (strcmp(kept_names[i], "config.json") != 0));
    }
    assert_int_equal(count_in(kept), KEPT);
    assert_int_equal(count_in(out), KEPT - 1);
    char *next = sub("next");
    put(next, "config.json", "{}");
    dt_text_reset(&notes);
    assert_int_equal(origin_keep(next, kept, &notes, &err), 0); /* of another beginning: nothing
                                                                 * is left of the one before */
    assert_int_equal(count_in(kept), 1);
    assert_int_equal(notes.size, 0);
    dt_text_clear(&notes);
    free(next);
    free(pipe);
    free(out);
    free(kept);
    free(onnx);
    free(templates);
    free(dir);
}

static void test_links_stay_inside(void **state)
{
    (void)state;
    static const char hash[] = "0123456789abcdef0123456789abcdef01234567";
    char *blobs = sub("cache/blobs"), *dir = sub("cache/snapshots/main"), *kept = dt_format("%s/links/origin", folder),
         *secret = sub("secret"), *blob = dt_format("../../blobs/%s", hash),
         *long_name = dt_format("../../blobs/%s%s", hash, hash), *at_secret = dt_format("%s/id", secret);
    put(secret, "id", "secret");
    put(blobs, hash, "cached");
    put(blobs, "id", "no hash");
    put(dir, "vocab.bpe", "same folder");
    make_link(dir, "config.json", blob);
    make_link(dir, "merges.txt", "vocab.bpe");
    make_link(dir, "a", at_secret);
    make_link(dir, "b", "../../../secret/id");
    make_link(dir, "c", "../../blobs/id");
    make_link(dir, "d", long_name);
    make_link(dir, "e", "nowhere");
    make_link(dir, "f", ".");
    make_link(dir, "g", "merges.txt"); /* a link to a link */
    make_link(dir, "h", "../../blobs/../../secret/id");
    make_link(dir, "additional_chat_templates", "../../../secret");
    struct dt_text notes;
    struct dt_error err = {.status = DT_OK};
    dt_text_init(&notes);
    assert_int_equal(origin_keep(dir, kept, &notes, &err), 0);
    assert_true(has(kept, "config.json", "cached") && has(kept, "merges.txt", "same folder") &&
                has(kept, "vocab.bpe", "same folder"));
    assert_int_equal(count_in(kept), 3);
    const char *leads = " (a link that leads elsewhere)";
    char *expected = dt_format("a%s, additional_chat_templates%s, b%s, c%s, d%s, e%s, f%s, g%s and 1 more", leads,
                               leads, leads, leads, leads, leads, leads, leads);
    assert_string_equal(notes.data, expected);
    dt_text_clear(&notes);
    free(expected);
    free(at_secret);
    free(long_name);
    free(blob);
    free(secret);
    free(kept);
    free(dir);
    free(blobs);
}

static void test_sizes_are_bounded(void **state)
{
    (void)state;
    char *dir = sub("sizes"), *kept = dt_format("%s/bounded/origin", folder);
    struct dt_text notes;
    struct dt_error err = {.status = DT_OK};
    dt_text_init(&notes);
    make_large(dir, "a.txt", ORIGIN_FILE_BYTES + 1);
    put(dir, "b.txt", "b");
    assert_int_equal(origin_keep(dir, kept, &notes, &err), 0);
    assert_string_equal(notes.data, "a.txt (too large)");
    assert_int_equal(count_in(kept), 1);
    for (int i = 0; i < ORIGIN_FILES_MAX; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "c%03d", i);
        put(dir, name, "c");
    }
    dt_text_reset(&notes);
    assert_int_equal(origin_keep(dir, kept, &notes, &err), 0);
    assert_string_equal(notes.data, "a.txt (too large), c099 (too many files)");
    assert_int_equal(count_in(kept), ORIGIN_FILES_MAX);
    dt_text_clear(&notes);
    free(kept);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_config_of_many_values),
        cmocka_unit_test(test_other_names),
        cmocka_unit_test(test_config_comes_out),
        cmocka_unit_test(test_files_come_along),
        cmocka_unit_test(test_links_stay_inside),
        cmocka_unit_test(test_sizes_are_bounded),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
