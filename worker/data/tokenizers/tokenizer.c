/* Opens tokenizer.json: checks the text, and opens its parts one after the other. */
#include "worker/data/tokenizers/tokenizer.h"
#include "base/file.h"
#include "base/scan.h"
#include "worker/data/tokenizers/bpe.h"
#include "worker/data/tokenizers/own.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

/* The largest known files have 34 MB and 2 million values. */
#define FILE_MOST ((size_t)256 << 20)
#define VALUES_MOST ((size_t)16 << 20)

static const struct token_model_ops *const models[] = {&token_model_bpe, &token_model_wordpiece, &token_model_unigram,
                                                       &token_model_wordlevel};

static const cJSON *member(const cJSON *json, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(json, key);
}

/* Old files have no type. */
static const char *model_type(const cJSON *model, struct dt_error *err)
{
    if (!cJSON_IsObject(model)) {
        (void)dt_fail(err, DT_INVALID, "missing, or not an object");
        return NULL;
    }
    if (member(model, "type") != NULL) {
        return part_type(model, err);
    }
    return member(model, "merges") != NULL                      ? "BPE"
           : cJSON_IsArray(member(model, "vocab"))              ? "Unigram"
           : member(model, "continuing_subword_prefix") != NULL ? "WordPiece"
                                                                : part_type(model, err);
}

static int open_model(struct tokenizer *t, const cJSON *model, struct dt_error *err)
{
    const char *type = model_type(model, err);
    if (type == NULL) {
        return -1;
    }
    struct dt_text known;
    dt_text_init(&known);
    struct dt_list list = {.text = &known};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        dt_list_add(&list, "%s", models[i]->type);
        t->ops = strcmp(type, models[i]->type) == 0 ? models[i] : t->ops;
    }
    int rc = t->ops != NULL
                 ? 0
                 : dt_fail(err, DT_INVALID, "type: %s is not supported; there are %s", type, dt_text_str(&known));
    dt_text_clear(&known);
    if (rc == 0 && vocabulary_open(&t->vocabulary, member(model, "vocab"), err) != 0) {
        rc = dt_wrap(err, "vocab");
    }
    void *state = NULL;
    if (rc == 0 && t->ops->open(&state, model, t->vocabulary, err) == 0) {
        t->model = state;
        return 0;
    }
    t->ops = NULL;
    return -1;
}

/* A part that nobody reads might change ids. The library refuses it as well. */
static int check_keys(const cJSON *json, struct dt_error *err)
{
    static const char *const keys[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                       "pre_tokenizer", "post_processor", "decoder", "model"};
    const char *version;
    const cJSON *part;
    cJSON_ArrayForEach(part, json)
    {
        size_t i = 0;
        while (i < sizeof keys / sizeof *keys && strcmp(part->string, keys[i]) != 0) {
            i++;
        }
        if (i == sizeof keys / sizeof *keys) {
            return dt_fail(err, DT_INVALID, "%s: unknown part; remove it", part->string);
        }
    }
    if (part_text(json, "version", "1.0", &version, err) != 0) {
        return -1;
    }
    return strcmp(version, "1.0") == 0 ? 0 : dt_fail(err, DT_INVALID, "version: %s is not known, but 1.0", version);
}

static int open_parts(struct tokenizer *t, const cJSON *json, struct dt_error *err)
{
    if (check_keys(json, err) != 0) {
        return -1;
    }
    if (open_model(t, member(json, "model"), err) != 0) {
        return dt_wrap(err, "model");
    }
    if (normalizer_open(&t->normalizer, member(json, "normalizer"), err) != 0) {
        return dt_wrap(err, "normalizer");
    }
    if (added_tokens_open(&t->added, member(json, "added_tokens"), t->vocabulary, t->normalizer, err) != 0) {
        return dt_wrap(err, "added_tokens");
    }
    if (pretokenizer_open(&t->pretokenizer, member(json, "pre_tokenizer"), err) != 0) {
        return dt_wrap(err, "pre_tokenizer");
    }
    if (postprocessor_open(&t->postprocessor, member(json, "post_processor"), err) != 0) {
        return dt_wrap(err, "post_processor");
    }
    if (decoder_open(&t->decoder, member(json, "decoder"), err) != 0) {
        return dt_wrap(err, "decoder");
    }
    if (truncation_open(&t->truncation, member(json, "truncation"), err) != 0) {
        return dt_wrap(err, "truncation");
    }
    if (padding_open(&t->padding, member(json, "padding"), err) != 0) {
        return dt_wrap(err, "padding");
    }
    t->bytes = t->ops == &token_model_bpe && pretokenizer_maps(t->pretokenizer) && bpe_takes_bytes(t->model);
    t->scan = pretokenizer_scanner(t->pretokenizer);
    t->cuts = stream_cuts(t, member(json, "normalizer"));
    return 0;
}

/* Whether the text begins as a JSON object, behind white space and a byte order mark. */
static bool is_object(const char *json, size_t size)
{
    const char *other;
    size_t at = dt_text_mark(json, size, &other);
    while (at < size && json[at] != 0 && strchr(" \t\r\n", json[at]) != NULL) {
        at++;
    }
    return at == size || json[at] == '{' || other != NULL;
}

int tokenizer_parse(struct tokenizer **out, const char *name, const char *json, size_t size, struct dt_error *err)
{
    const struct dt_scan_limits limits = {.bytes = FILE_MOST, .values = VALUES_MOST};
    cJSON *tree = dt_scan_parse_large(json, size, name, &limits, err);
    if (tree == NULL) {
        return is_object(json, size)
                   ? -1
                   : dt_fail(
                         err, DT_INVALID,
                         "%s: is no tokenizer.json; dtdata convert-tokenizer makes one of a .model of SentencePiece "
                         "or of ranks of tiktoken",
                         name);
    }
    struct tokenizer *t = dt_alloc(sizeof *t);
    t->hash = XXH3_64bits(json, size);
    int rc = cJSON_IsObject(tree) ? open_parts(t, tree, err) : dt_fail(err, DT_INVALID, "not a JSON object");
    cJSON_Delete(tree);
    if (rc != 0) {
        tokenizer_close(t);
        return dt_wrap(err, "%s", name);
    }
    *out = t;
    return 0;
}

char *tokenizer_file(const char *path)
{
    struct stat st;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    return folder ? dt_format("%s/tokenizer.json", path) : dt_strdup(path);
}

int tokenizer_open(struct tokenizer **out, const char *path, struct dt_error *err)
{
    char *file = tokenizer_file(path);
    struct dt_text text;
    dt_text_init(&text);
    int rc = dt_file_read(file, FILE_MOST, &text, err);
    if (rc == 0) {
        rc = tokenizer_parse(out, file, dt_text_str(&text), text.size, err);
    }
    dt_text_clear(&text);
    free(file);
    return rc;
}

int tokenizer_hash_file(const char *path, uint64_t *hash, struct dt_error *err)
{
    char *file = tokenizer_file(path);
    struct dt_text text;
    dt_text_init(&text);
    int rc = dt_file_read(file, FILE_MOST, &text, err);
    *hash = rc == 0 ? XXH3_64bits(dt_text_str(&text), text.size) : 0;
    dt_text_clear(&text);
    free(file);
    return rc;
}

void tokenizer_close(struct tokenizer *t)
{
    if (t == NULL) {
        return;
    }
    if (t->ops != NULL) {
        t->ops->close(t->model);
    }
    pretokenizer_close(t->pretokenizer);
    added_tokens_close(t->added);
    normalizer_close(t->normalizer);
    postprocessor_close(t->postprocessor);
    decoder_close(t->decoder);
    vocabulary_close(t->vocabulary);
    free(t);
}

int64_t tokenizer_vocabulary(const struct tokenizer *t)
{
    int64_t model = vocabulary_size(t->vocabulary), added = added_tokens_end(t->added);
    return model > added ? model : added;
}

uint64_t tokenizer_hash(const struct tokenizer *t)
{
    return t->hash;
}

int32_t tokenizer_id(const struct tokenizer *t, const char *token, size_t size)
{
    int32_t id = added_tokens_find(t->added, token, size);
    return id >= 0 ? id : vocabulary_find(t->vocabulary, token, size);
}

const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *size)
{
    const char *token = added_tokens_content(t->added, id, size);
    return token != NULL ? token : vocabulary_token(t->vocabulary, id, size);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return added_tokens_special(t->added, id);
}

int64_t tokenizer_text_bytes(const struct tokenizer *t, int32_t id)
{
    size_t size;
    if (tokenizer_is_special(t, id)) {
        return 0;
    }
    const char *token = vocabulary_token(t->vocabulary, id, &size);
    if (token == NULL) { /* an added token stands for its own letters */
        return tokenizer_token(t, id, &size) != NULL ? (int64_t)size : -1;
    }
    return decoder_token_bytes(t->decoder, token, size);
}
