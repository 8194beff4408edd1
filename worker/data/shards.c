/* Reads token shards. Every number in the header is compared with the size of the file before any
 * id is read. */
#include "worker/data/shards.h"
#include "worker/data/shards_foreign.h"

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

enum { INFO_BYTES = 4 << 20, MEASURED_IDS = 1 << 16 };

bool shard_recognise(const char *path)
{
    int32_t magic = 0;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool known = fd >= 0 && pread(fd, &magic, sizeof magic, 0) == (ssize_t)sizeof magic &&
                 (magic == SHARD_MAGIC_U16 || magic == SHARD_MAGIC_U32);
    if (fd >= 0) {
        (void)close(fd);
    }
    return known || shard_has_index(path);
}

int shard_map(const char *path, void **map, size_t *bytes, struct dt_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), result = -1;
    *map = NULL;
    if (fd < 0 || fstat(fd, &st) != 0) {
        (void)dt_fail_errno(err, "%s", path);
    } else if (!S_ISREG(st.st_mode)) {
        (void)dt_fail(err, DT_INVALID, "%s: not a regular file", path);
    } else if (st.st_size == 0) {
        (void)dt_fail(err, DT_INVALID, "%s: is empty", path);
    } else {
        *bytes = (size_t)st.st_size;
        *map = mmap(NULL, *bytes, PROT_READ, MAP_SHARED, fd, 0);
        result = *map != MAP_FAILED ? 0 : dt_fail_errno(err, "%s: cannot map", path);
        *map = result == 0 ? *map : NULL;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return result;
}

static int read_header(struct shard *s, struct dt_error *err)
{
    int32_t header[3];
    if (s->map_bytes < SHARD_HEADER_BYTES) {
        return dt_fail(err, DT_INVALID, "%s: %zu bytes, shorter than the header of a token shard (%d)", s->path,
                       s->map_bytes, SHARD_HEADER_BYTES);
    }
    memcpy(header, s->map, sizeof header);
    if (memcmp(s->map, SHARD_INDEX_MAGIC, sizeof SHARD_INDEX_MAGIC) == 0) {
        return dt_fail(err, DT_INVALID, "%s: is the index of a Megatron data set; name its .bin file", s->path);
    }
    if (header[0] != SHARD_MAGIC_U16 && header[0] != SHARD_MAGIC_U32) {
        return dt_fail(err, DT_INVALID,
                       "%s: begins with %" PRId32
                       ", not with %d or %d: not a token shard; make one with dtdata tokenize; ids without a header "
                       "(nanoGPT) need the format nanogpt",
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
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(tree, "tokenizer"),
                *dtype = cJSON_GetObjectItemCaseSensitive(tree, "dtype");
    bool bytes = cJSON_IsString(name) && strcmp(name->valuestring, "bytes") == 0;
    s->info.tokens = number_of(tree, "tokens", -1);
    s->info.vocabulary = number_of(tree, "vocabulary", 0);
    s->info.max_id = number_of(tree, "max_id", -1);
    s->info.source_count = number_of(tree, "source_count", 0);
    s->info.document_end = number_of(tree, "document_end", bytes ? 0 : -1);
    if (!cJSON_IsObject(tree) || s->info.tokens == -2 || s->info.vocabulary == -2 || s->info.max_id == -2 ||
        s->info.source_count == -2 || s->info.document_end == -2 ||
        (name != NULL && (!cJSON_IsString(name) || strlen(name->valuestring) >= sizeof s->info.tokenizer))) {
        return dt_fail(err, DT_INVALID, "%s: not what dtdata writes beside a shard; remove it, or make the shard again",
                       path);
    }
    if (name != NULL) {
        (void)snprintf(s->info.tokenizer, sizeof s->info.tokenizer, "%s", name->valuestring);
    }
    if (dtype != NULL) {
        s->info.wide = cJSON_IsString(dtype) && strcmp(dtype->valuestring, "uint32") == 0;
        if (!s->info.wide && !(cJSON_IsString(dtype) && strcmp(dtype->valuestring, "uint16") == 0)) {
            return dt_fail(err, DT_INVALID, "%s: dtype is neither \"uint16\" nor \"uint32\"", path);
        }
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
    s->info.max_id = s->info.tokens = s->info.document_end = -1;
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

/* Checks the JSON's number of tokens against that of the shard. */
static int check_info(const struct shard *s, struct dt_error *err)
{
    if (s->info.tokens >= 0 && s->info.tokens != s->token_count) {
        return dt_fail(err, DT_INVALID, "%s.json: says %" PRId64 " tokens, the shard has %" PRId64 "; make both again",
                       s->path, s->info.tokens, s->token_count);
    }
    return 0;
}

static int open_as(struct shard *s, const char *path, enum shard_format format, struct dt_error *err)
{
    *s = (struct shard){.path = dt_strdup(path)};
    int result = shard_map(path, &s->map, &s->map_bytes, err);
    if (result == 0 && format != SHARD_NANOGPT) {
        result = format == SHARD_MEGATRON ? shard_read_index(s, err) : read_header(s, err);
    }
    result = result == 0 ? read_info(s, err) : -1;
    if (result == 0 && format == SHARD_NANOGPT) {
        result = shard_read_raw(s, err);
    }
    result = result == 0 ? check_info(s, err) : -1;
    if (result != 0) {
        shard_close(s);
    }
    return result;
}

int shard_open(struct shard *s, const char *path, struct dt_error *err)
{
    return open_as(s, path, shard_has_index(path) ? SHARD_MEGATRON : SHARD_LLMC, err);
}

int shard_open_raw(struct shard *s, const char *path, struct dt_error *err)
{
    return open_as(s, path, SHARD_NANOGPT, err);
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

void shard_ids(const struct shard *s, int64_t i, int64_t count, uint32_t *out)
{
    const uint16_t *narrow = s->width == 2 && !s->is_signed ? (const uint16_t *)s->tokens + i : NULL;
    for (int64_t k = 0; k < count; k++) {
        out[k] = narrow != NULL ? narrow[k] : shard_id(s, i + k);
    }
}

/* The largest of some ids. */
static uint32_t largest_of(const struct shard *s, int64_t from, int64_t count)
{
    uint32_t max = 0;
    if (s->width == 2 && !s->is_signed) { /* a loop that the compiler can vectorize */
        const uint16_t *ids = (const uint16_t *)s->tokens + from;
        uint16_t m = 0;
        for (int64_t i = 0; i < count; i++) {
            m = ids[i] > m ? ids[i] : m;
        }
        return m;
    }
    for (int64_t i = from; i < from + count; i++) {
        uint32_t id = shard_id(s, i);
        max = id > max ? id : max;
    }
    return max;
}

void shard_measure(const struct shard *s, int64_t *max_id, uint64_t *hash)
{
    uint32_t max = 0;
    XXH3_state_t *state = XXH3_createState();
    (void)XXH3_64bits_reset(state);
    for (int64_t at = 0, count = 0; at < s->token_count; at += count) { /* a part at a time: the disk reads it once */
        count = s->token_count - at < MEASURED_IDS ? s->token_count - at : MEASURED_IDS;
        uint32_t m = largest_of(s, at, count);
        max = m > max ? m : max;
        (void)XXH3_64bits_update(state, (const char *)s->tokens + at * s->width, (size_t)(count * s->width));
    }
    *max_id = max;
    *hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
}
