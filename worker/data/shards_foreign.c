/* Token shards of Megatron and nanoGPT. Megatron's FILE.idx (little-endian):
 *
 *   "MMIDIDX\0\0"  9 bytes
 *   version         u64, 1
 *   type of an id   u8: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16; others are no ids
 *   sequences, document entries   u64, u64
 *   lengths         int32 per sequence, in ids
 *   places          int64 per sequence, in bytes from the start of FILE.bin
 *   documents       int64 per entry: the first sequence of each document, then the number of sequences
 *   modes           int8 per sequence; may be missing
 *
 * Its writer puts one sequence behind the other, so the file is one stream of ids. An index that says
 * anything else is refused. */
#include "worker/data/shards_foreign.h"

#include "base/text.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HEAD_BYTES = 34, MAGIC_BYTES = sizeof SHARD_INDEX_MAGIC, TYPE_AT = 17, COUNTS_AT = 18 };

static const struct id_type {
    int width;
    bool is_signed;
} types[] = {[1] = {1, false}, [2] = {1, true}, [3] = {2, true}, [4] = {4, true}, [5] = {8, true}, [8] = {2, false}};
enum { TYPE_COUNT = sizeof types / sizeof types[0] };

/* FILE.idx for FILE.bin; null for other names. The caller frees it. */
static char *index_path(const char *path)
{
    return dt_text_ends_with(path, ".bin") ? dt_format("%.*s.idx", (int)(strlen(path) - 4), path) : NULL;
}

bool shard_has_index(const char *path)
{
    char *index = index_path(path), head[MAGIC_BYTES];
    int fd = index != NULL ? open(index, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;
    bool has = fd >= 0 && pread(fd, head, sizeof head, 0) == (ssize_t)sizeof head &&
               memcmp(head, SHARD_INDEX_MAGIC, sizeof head) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    free(index);
    return has;
}

static int64_t i64_at(const char *at)
{
    int64_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

/* Checks that the sequences follow each other from byte 0 on; sets the number of ids. */
static int add_sequences(struct shard *s, const char *path, const char *lengths, int64_t sequences,
                         struct dt_error *err)
{
    const char *places = lengths + sequences * 4;
    int64_t most = (int64_t)s->map_bytes / s->width;
    for (int64_t i = 0; i < sequences; i++) {
        int32_t length;
        memcpy(&length, lengths + i * 4, sizeof length);
        if (length < 0 || length > most - s->token_count) {
            return dt_fail(err, DT_INVALID,
                           "%s: sequence %" PRId64 " has %" PRId32 " ids, more than the %zu bytes of %s hold: one of "
                           "both is damaged; make them again",
                           path, i + 1, length, s->map_bytes, s->path);
        }
        if (i64_at(places + i * 8) != s->token_count * s->width) {
            return dt_fail(err, DT_INVALID,
                           "%s: sequence %" PRId64 " begins at byte %" PRId64 ", and the one before it ends at %" PRId64
                           ": sequences that are not one after the other are not supported",
                           path, i + 1, i64_at(places + i * 8), s->token_count * s->width);
        }
        s->token_count += length;
    }
    return 0;
}

/* Checks that documents begin at sequences, in order, and that the last entry is the end. */
static int check_documents(const char *path, const char *documents, int64_t entries, int64_t sequences,
                           struct dt_error *err)
{
    int64_t before = 0;
    for (int64_t i = 0; i < entries; i++) {
        int64_t first = i64_at(documents + i * 8);
        if (first < before || first > sequences || (i + 1 == entries && first != sequences)) {
            return dt_fail(err, DT_INVALID,
                           "%s: document entry %" PRId64 " is %" PRId64 ", not a sequence from %" PRId64 " to %" PRId64
                           ": damaged; make it again",
                           path, i + 1, first, before, sequences);
        }
        before = first;
    }
    return 0;
}

static int check_index(struct shard *s, const char *path, const char *index, int64_t bytes, struct dt_error *err)
{
    if (bytes < HEAD_BYTES || i64_at(index + MAGIC_BYTES) != 1) {
        return dt_fail(err, DT_INVALID, "%s: not an index of version 1: damaged, or of a newer Megatron", path);
    }
    unsigned type = (unsigned char)index[TYPE_AT];
    if (type >= TYPE_COUNT || types[type].width == 0) {
        return dt_fail(err, DT_INVALID, "%s: type %u of the ids: only integers up to 64 bits (1 to 5, and 8)", path,
                       type);
    }
    int64_t sequences = i64_at(index + COUNTS_AT), entries = i64_at(index + COUNTS_AT + 8), rest = bytes - HEAD_BYTES;
    if (sequences < 0 || sequences > rest / 12 || entries < 0 || entries > (rest - sequences * 12) / 8 ||
        (rest - sequences * 12 - entries * 8 != 0 && rest - sequences * 12 - entries * 8 != sequences)) {
        return dt_fail(err, DT_INVALID,
                       "%s: %" PRId64 " sequences and %" PRId64 " document entries do not make %" PRId64
                       " bytes: cut short or damaged; make it again",
                       path, sequences, entries, bytes);
    }
    s->width = types[type].width;
    s->is_signed = types[type].is_signed;
    const char *lengths = index + HEAD_BYTES;
    if (add_sequences(s, path, lengths, sequences, err) != 0 ||
        check_documents(path, lengths + sequences * 12, entries, sequences, err) != 0) {
        return -1;
    }
    if (s->token_count == 0) {
        return dt_fail(err, DT_INVALID, "%s: holds no tokens", path);
    }
    if (s->token_count * s->width != (int64_t)s->map_bytes) {
        return dt_fail(err, DT_INVALID,
                       "%s: %zu bytes, but %s says %" PRId64 " tokens, which need %" PRId64
                       ": one of both is damaged; make them again",
                       s->path, s->map_bytes, path, s->token_count, s->token_count * s->width);
    }
    return 0;
}

int shard_read_index(struct shard *s, struct dt_error *err)
{
    void *map = NULL;
    size_t bytes = 0;
    char *path = index_path(s->path);
    s->tokens = s->map;
    int result = shard_map(path, &map, &bytes, err);
    result = result == 0 ? check_index(s, path, map, (int64_t)bytes, err) : -1;
    if (map != NULL) {
        (void)munmap(map, bytes);
    }
    free(path);
    return result;
}

int shard_read_raw(struct shard *s, struct dt_error *err)
{
    int32_t first = 0;
    s->tokens = s->map;
    s->width = s->info.wide ? 4 : 2;
    memcpy(&first, s->map, s->map_bytes < sizeof first ? s->map_bytes : sizeof first);
    if (first == SHARD_MAGIC_U16 || first == SHARD_MAGIC_U32) {
        return dt_fail(err, DT_INVALID,
                       "%s: begins with the header of a token shard, so it is no file of ids alone; set data.format to "
                       "\"tokens\"",
                       s->path);
    }
    if (s->map_bytes % (size_t)s->width != 0) {
        return dt_fail(err, DT_INVALID, "%s: %zu bytes, not a multiple of the %d of an id: not a file of ids alone",
                       s->path, s->map_bytes, s->width);
    }
    s->token_count = (int64_t)s->map_bytes / s->width;
    return 0;
}
