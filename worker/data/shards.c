/* Reads token shards. Every number in the header is compared with the size of the file before any
 * id is read. */
#include "worker/data/shards.h"

#include "base/file.h"
#include "base/scan.h"
#include "base/text.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { INFO_BYTES = 4 << 20 };

bool shard_recognise(const char *path)
{
    int32_t magic = 0;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool known = fd >= 0 && pread(fd, &magic, sizeof magic, 0) == (ssize_t)sizeof magic &&
                 (magic == SHARD_MAGIC_U16 || magic == SHARD_MAGIC_U32);
    if (fd >= 0) {
        (void)close(fd);
    }
    return known;
}

static int map_file(struct shard *s, struct dt_error *err)
{
    struct stat st;
    int fd = open(s->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        (void)dt_fail_errno(err, "%s", s->path);
        goto fail;
    }
    if (!S_ISREG(st.st_mode)) {
        (void)dt_fail(err, DT_INVALID, "%s: not a regular file", s->path);
        goto fail;
    }
    if (st.st_size < SHARD_HEADER_BYTES) {
        (void)dt_fail(err, DT_INVALID, "%s: %lld bytes, shorter than the header of a token shard (%d)", s->path,
                      (long long)st.st_size, SHARD_HEADER_BYTES);
        goto fail;
    }
    s->map_bytes = (size_t)st.st_size;
    s->map = mmap(NULL, s->map_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (s->map == MAP_FAILED) {
        s->map = NULL;
        (void)dt_fail_errno(err, "%s: cannot map", s->path);
        goto fail;
    }
    (void)close(fd);
    return 0;
fail:
    if (fd >= 0) {
        (void)close(fd);
    }
    return -1;
}

static int read_header(struct shard *s, struct dt_error *err)
{
    int32_t header[3];
    memcpy(header, s->map, sizeof header);
    if (header[0] != SHARD_MAGIC_U16 && header[0] != SHARD_MAGIC_U32) {
        return dt_fail(err, DT_INVALID,
                       "%s: begins with %" PRId32
                       ", not with %d or %d: not a token shard; make one with dtdata tokenize",
                       s->path, header[0], SHARD_MAGIC_U16, SHARD_MAGIC_U32);
    }
    s->width = header[0] == SHARD_MAGIC_U16 ? 2 : 4;
    int32_t version = s->width == 2 ? 1 : 7;
    if (header[1] != version) {
        return dt_fail(err, DT_INVALID, "%s: version %" PRId32 " of magic %" PRId32 "; we read version %" PRId32,
                       s->path, header[1], header[0], version);
    }
    if (header[2] <= 0) {
        return dt_fail(err, DT_INVALID, "%s: holds no tokens (its header says %" PRId32 ")", s->path, header[2]);
    }
    s->token_count = header[2];
    int64_t bytes = SHARD_HEADER_BYTES + s->token_count * s->width;
    if (bytes != (int64_t)s->map_bytes) {
        return dt_fail(err, DT_INVALID,
                       "%s: %zu bytes, but %" PRId64 " tokens need %" PRId64 ": cut short or damaged; make it again",
                       s->path, s->map_bytes, s->token_count, bytes);
    }
    s->tokens = (const char *)s->map + SHARD_HEADER_BYTES;
    return 0;
}

/* Reads a whole number from the JSON. Returns `missing` if there is none, and -2 for any other
 * value. */
static int64_t number_of(const cJSON *tree, const char *key, int64_t missing)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(tree, key);
    if (v == NULL) {
        return missing;
    }
    bool whole = cJSON_IsNumber(v) && v->valuedouble >= 0 && v->valuedouble <= 9007199254740992.0 &&
                 v->valuedouble == (double)(int64_t)v->valuedouble;
    return whole ? (int64_t)v->valuedouble : -2;
}

/* Reads 16 hexadecimal digits under `key`; *has: they are there. */
static int hash_of(const cJSON *tree, const char *key, const char *path, uint64_t *out, bool *has, struct dt_error *err)
{
    const cJSON *hash = cJSON_GetObjectItemCaseSensitive(tree, key);
    const char *digits = cJSON_IsString(hash) ? hash->valuestring : "";
    *has = strlen(digits) == 16 && strspn(digits, "0123456789abcdef") == 16;
    *out = *has ? strtoull(digits, NULL, 16) : 0;
    return hash == NULL || *has ? 0 : dt_fail(err, DT_INVALID, "%s: %s is not 16 hexadecimal digits", path, key);
}

static int take_info(struct shard *s, const cJSON *tree, const char *path, struct dt_error *err)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(tree, "tokenizer");
    int64_t tokens = number_of(tree, "tokens", -1);
    s->info.vocabulary = number_of(tree, "vocabulary", 0);
    s->info.max_id = number_of(tree, "max_id", -1);
    s->info.source_count = number_of(tree, "source_count", 0);
    s->info.document_end = number_of(tree, "document_end", -1);
    if (!cJSON_IsObject(tree) || tokens == -2 || s->info.vocabulary == -2 || s->info.max_id == -2 ||
        s->info.source_count == -2 || s->info.document_end == -2 ||
        (name != NULL && (!cJSON_IsString(name) || strlen(name->valuestring) >= sizeof s->info.tokenizer))) {
        return dt_fail(err, DT_INVALID, "%s: not what dtdata writes beside a shard; remove it, or make the shard again",
                       path);
    }
    if (tokens >= 0 && tokens != s->token_count) {
        return dt_fail(err, DT_INVALID, "%s: says %" PRId64 " tokens, the shard has %" PRId64 "; make both again", path,
                       tokens, s->token_count);
    }
    if (name != NULL) {
        (void)snprintf(s->info.tokenizer, sizeof s->info.tokenizer, "%s", name->valuestring);
    }
    if (hash_of(tree, "xxh3", path, &s->info.hash, &s->info.has_hash, err) != 0 ||
        hash_of(tree, "tokenizer_hash", path, &s->info.tokenizer_hash, &s->info.has_tokenizer_hash, err) != 0) {
        return -1;
    }
    const char *tokenizer_path = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, "tokenizer_path"));
    s->info.tokenizer_path = tokenizer_path != NULL ? dt_strdup(tokenizer_path) : NULL;
    if (s->info.vocabulary > 0 && s->info.max_id >= s->info.vocabulary) {
        return dt_fail(err, DT_INVALID, "%s: largest id %" PRId64 " does not fit into the vocabulary of %" PRId64, path,
                       s->info.max_id, s->info.vocabulary);
    }
    return 0;
}

static int read_info(struct shard *s, struct dt_error *err)
{
    char *path = dt_format("%s.json", s->path);
    int result = 0;
    struct dt_text text;
    dt_text_init(&text);
    s->info.max_id = s->info.document_end = -1;
    if (dt_file_exists(path)) {
        result = dt_file_read_own(path, INFO_BYTES, &text, err);
        cJSON *tree = result == 0 ? dt_scan_parse(dt_text_str(&text), text.size, path, NULL, err) : NULL;
        result = tree != NULL ? take_info(s, tree, path, err) : -1;
        s->has_info = result == 0;
        cJSON_Delete(tree);
    }
    dt_text_clear(&text);
    free(path);
    return result;
}

int shard_open(struct shard *s, const char *path, struct dt_error *err)
{
    *s = (struct shard){.path = dt_strdup(path)};
    if (map_file(s, err) != 0 || read_header(s, err) != 0 || read_info(s, err) != 0) {
        shard_close(s);
        return -1;
    }
    return 0;
}

void shard_close(struct shard *s)
{
    if (s->map != NULL) {
        (void)munmap(s->map, s->map_bytes);
    }
    free(s->info.tokenizer_path);
    free(s->path);
    *s = (struct shard){0};
}

int shard_check_tokenizer(const struct shard_info *info, const char *where, const char *tokenizer, uint64_t hash,
                          struct dt_error *err)
{
    if (!info->has_tokenizer_hash || info->tokenizer_hash == hash) {
        return 0;
    }
    return dt_fail(err, DT_INVALID,
                   "%s: made with tokenizer %s of hash %016" PRIx64 ", but that of %s is %016" PRIx64
                   "; give the tokenizer of the shards, or make them again",
                   where, info->tokenizer, info->tokenizer_hash, tokenizer, hash);
}

void shard_measure(const struct shard *s, int64_t *max_id, uint64_t *hash)
{
    uint32_t max = 0;
    if (s->width == 2) {
        const uint16_t *ids = s->tokens;
        uint16_t m = 0;
        for (int64_t i = 0; i < s->token_count; i++) {
            m = ids[i] > m ? ids[i] : m;
        }
        max = m;
    } else {
        const uint32_t *ids = s->tokens;
        for (int64_t i = 0; i < s->token_count; i++) {
            max = ids[i] > max ? ids[i] : max;
        }
    }
    *max_id = max;
    *hash = XXH3_64bits(s->tokens, (size_t)s->token_count * (size_t)s->width);
}
