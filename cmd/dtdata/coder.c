/* See the header. */
#include "cmd/dtdata/coder.h"

#include "base/file.h"
#include "base/scan.h"
#include "worker/data/tokenizers/special_tokens.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES_VOCABULARY = 256, BYTES_END = 0, CONFIG_BYTES = 1 << 24 };

/* "gpt2" of gpt2/tokenizer.json, "mine" of mine.json. */
static void name_of(const char *path, char out[SHARD_TOKENIZER_BYTES])
{
    char *copy = dt_strdup(path), *slash = strrchr(copy, '/');
    const char *name = slash != NULL ? slash + 1 : copy;
    if (strcmp(name, "tokenizer.json") == 0 && slash != NULL && slash != copy) {
        *slash = 0;
        name = strrchr(copy, '/') != NULL ? strrchr(copy, '/') + 1 : copy;
    }
    size_t size = strlen(name) - (dt_text_ends_with(name, ".json") ? 5 : 0);
    size = size < SHARD_TOKENIZER_BYTES - 1 ? size : SHARD_TOKENIZER_BYTES - 1;
    (void)snprintf(out, SHARD_TOKENIZER_BYTES, "%.*s", (int)size, name);
    dt_text_make_harmless(out, false);
    free(copy);
}

static int32_t special_id(const struct coder *c, const cJSON *tokens, const char *key)
{
    const char *token = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tokens, key));
    return token != NULL ? tokenizer_id(c->tokenizer, token, strlen(token)) : -1;
}

/* eos_token_id of the configuration of a model: a number, or a list whose first is it. -1: there is none. */
static int32_t model_end(const struct coder *c, const cJSON *config)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(config, "eos_token_id");
    v = cJSON_IsArray(v) ? cJSON_GetArrayItem(v, 0) : v;
    bool is = cJSON_IsNumber(v) && v->valuedouble >= 0 && v->valuedouble < (double)c->vocabulary;
    return is && v->valuedouble == (int32_t)v->valuedouble ? (int32_t)v->valuedouble : -1;
}

/* Takes what ends documents from a configuration of the model, if there is one. */
static int read_model_end(struct coder *c, const char *name, struct dt_error *err)
{
    char *path = special_tokens_beside(c->path, name);
    struct dt_text text;
    dt_text_init(&text);
    int result = 0;
    if (dt_file_exists(path)) {
        result = dt_file_read(path, CONFIG_BYTES, &text, err);
        cJSON *config = result == 0 ? dt_scan_parse_others(dt_text_str(&text), text.size, path, err) : NULL;
        result = config != NULL ? 0 : -1;
        c->end = model_end(c, config);
        cJSON_Delete(config);
    }
    dt_text_clear(&text);
    free(path);
    return result;
}

/* Reads what may stand beside tokenizer.json, from the most to the least certain. */
static int read_configs(struct coder *c, struct dt_error *err)
{
    static const char *const names[] = {"generation_config.json", "config.json"};
    cJSON *tokens = special_tokens_read(c->path, err);
    if (tokens == NULL) {
        return -1;
    }
    c->end = special_id(c, tokens, "eos_token");
    c->pad = special_id(c, tokens, "pad_token");
    cJSON_Delete(tokens);
    int result = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && result == 0 && c->end < 0; i++) {
        result = read_model_end(c, names[i], err);
    }
    return result;
}

/* The padding of tokenizers whose configuration names none. */
static int32_t usual_pad(const struct coder *c)
{
    static const char *const names[] = {"[PAD]", "<pad>", "<|pad|>"};
    int32_t id = -1;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && id < 0; i++) {
        id = tokenizer_id(c->tokenizer, names[i], strlen(names[i]));
    }
    return id >= 0 ? id : c->end >= 0 ? c->end : 0;
}

static int open_tokenizer(struct coder *c, const char *tokenizer, struct dt_error *err)
{
    if (tokenizer_open(&c->tokenizer, tokenizer, err) != 0) {
        return -1;
    }
    char *file = tokenizer_file(tokenizer);
    c->path = realpath(file, NULL);
    free(file);
    if (c->path == NULL) {
        return dt_fail_errno(err, "%s", tokenizer);
    }
    name_of(c->path, c->name);
    c->hash = tokenizer_hash(c->tokenizer);
    c->vocabulary = tokenizer_vocabulary(c->tokenizer);
    c->end = c->pad = -1;
    if (read_configs(c, err) != 0) {
        return -1;
    }
    c->pad = c->pad >= 0 ? c->pad : usual_pad(c);
    return 0;
}

int coder_open(struct coder *c, const char *tokenizer, struct dt_error *err)
{
    *c = (struct coder){.name = "bytes", .vocabulary = BYTES_VOCABULARY, .end = BYTES_END, .pad = BYTES_END};
    if (strcmp(tokenizer, "bytes") == 0) {
        return 0;
    }
    if (open_tokenizer(c, tokenizer, err) != 0) {
        coder_close(c);
        return -1;
    }
    return 0;
}

int coder_end_with(struct coder *c, const char *end, struct dt_error *err)
{
    if (end == NULL) {
        return 0;
    }
    if (c->tokenizer == NULL) {
        return dt_fail(err, DT_INVALID, "%s: bytes end documents with 0", end);
    }
    c->end = tokenizer_id(c->tokenizer, end, strlen(end));
    return c->end >= 0 ? 0 : dt_fail(err, DT_INVALID, "%s: %s has no such token", end, c->path);
}

int coder_encode(const struct coder *c, struct tokenizer_scratch *scratch, const char *text, size_t size,
                 struct token_ids *out, struct dt_error *err)
{
    return coder_encode_part(c, scratch, text, size, 0, out, err);
}

int coder_encode_part(const struct coder *c, struct tokenizer_scratch *scratch, const char *text, size_t size,
                      uint64_t from, struct token_ids *out, struct dt_error *err)
{
    if (c->tokenizer != NULL) {
        return tokenizer_encode_part(c->tokenizer, scratch, text, size, from, out, err);
    }
    if (out->capacity - out->count < size) {
        out->capacity = out->count + size > 2 * out->capacity ? out->count + size : 2 * out->capacity;
        out->ids = dt_realloc(out->ids, out->capacity * sizeof *out->ids);
    }
    for (size_t i = 0; i < size; i++) {
        out->ids[out->count + i] = (unsigned char)text[i];
    }
    out->count += size;
    return 0;
}

size_t coder_cut(const void *coder, const char *text, size_t size)
{
    const struct coder *c = coder;
    return c->tokenizer != NULL ? tokenizer_cut(c->tokenizer, text, size) : size;
}

void coder_decode(const struct coder *c, const int32_t *ids, size_t count, struct dt_text *out)
{
    if (c->tokenizer != NULL) {
        tokenizer_decode(c->tokenizer, ids, count, false, out);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        char byte = (char)ids[i];
        dt_text_add(out, &byte, 1);
    }
}

void coder_close(struct coder *c)
{
    tokenizer_close(c->tokenizer);
    free(c->path);
    *c = (struct coder){0};
}
