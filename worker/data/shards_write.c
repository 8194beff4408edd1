/* Writes token shards as PREFIX-NNNNN.bin.tmp-PID, and renames all of them at the end. A full disk
 * or a signal leaves the folder as it was. */
#include "worker/data/shards.h"

#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { BUFFER_IDS = 65536, SOURCES_LISTED = 10000 };

struct shard_writer {
    char *dir, *prefix;
    char tokenizer[SHARD_TOKENIZER_BYTES];
    int64_t vocabulary, shard_tokens, total;
    int shards;    /* shards begun */
    int committed; /* shards that have their final names */
    bool finished;
    /* the shard being written */
    int fd; /* -1: none */
    int64_t count;
    int max_id;
    XXH3_state_t *hash;
    struct dt_text sources;
    int64_t source_count;
    uint16_t buffer[BUFFER_IDS];
    size_t buffered;
};

/* "DIR/PREFIX-00003.bin" + suffix; the caller frees it. */
static char *path_of(const struct shard_writer *w, int shard, const char *suffix)
{
    return dt_format("%s/%s-%05d.bin%s", w->dir, w->prefix, shard, suffix);
}

static char *temporary_path(const struct shard_writer *w, int shard, const char *suffix)
{
    char *tail = dt_format("%s.tmp-%ld", suffix, (long)getpid());
    char *path = path_of(w, shard, tail);
    free(tail);
    return path;
}

int shard_writer_open(struct shard_writer **out, const char *dir, const char *prefix, const char *tokenizer,
                      int64_t vocabulary, int64_t shard_tokens, bool overwrite, struct dt_error *err)
{
    if (dt_file_mkdirs(dir, err) != 0) {
        return -1;
    }
    struct shard_writer *w = dt_alloc(sizeof *w);
    w->dir = dt_strdup(dir);
    w->prefix = dt_strdup(prefix);
    (void)snprintf(w->tokenizer, sizeof w->tokenizer, "%s", tokenizer);
    w->vocabulary = vocabulary;
    w->shard_tokens = shard_tokens;
    w->fd = -1;
    w->hash = XXH3_createState();
    char *first = path_of(w, 0, "");
    bool there = dt_file_exists(first);
    if (there && !overwrite) {
        (void)dt_fail(err, DT_INVALID, "%s: is there already; choose another folder with -o, or give --overwrite",
                      first);
    }
    free(first);
    if (there && !overwrite) {
        shard_writer_close(w);
        return -1;
    }
    *out = w;
    return 0;
}

static int begin_shard(struct shard_writer *w, struct dt_error *err)
{
    if (w->shards == 100000) {
        return dt_fail(err, DT_INVALID, "%s: more than 100000 shards; raise --shard_tokens", w->dir);
    }
    char *path = temporary_path(w, w->shards, "");
    static const char header[SHARD_HEADER_BYTES];
    int result = -1;
    w->fd = dt_file_create(path, err);
    if (w->fd >= 0) {
        w->shards++;
        w->count = 0;
        w->max_id = -1;
        (void)XXH3_64bits_reset(w->hash);
        result = dt_file_write_all(w->fd, header, sizeof header, path, err);
    }
    free(path);
    return result;
}

/* Writes the JSON beside the shard. `sources` lists the source files that begin in this shard. */
static int write_info(struct shard_writer *w, struct dt_error *err)
{
    struct dt_text t;
    char *path = temporary_path(w, w->shards - 1, ".json");
    dt_text_init(&t);
    dt_text_puts(&t, "{\n  \"tokenizer\": ");
    dt_text_json(&t, w->tokenizer, strlen(w->tokenizer));
    dt_text_printf(&t,
                   ",\n  \"vocabulary\": %" PRId64 ",\n  \"tokens\": %" PRId64
                   ",\n  \"max_id\": %d,\n  \"xxh3\": \"%016" PRIx64 "\",\n",
                   w->vocabulary, w->count, w->max_id, (uint64_t)XXH3_64bits_digest(w->hash));
    dt_text_printf(&t, "  \"source_count\": %" PRId64 ",\n  \"sources\": [%s\n  ]\n}\n", w->source_count,
                   dt_text_str(&w->sources));
    int result = dt_file_write(path, t.data, t.size, err);
    dt_text_clear(&t);
    free(path);
    dt_text_reset(&w->sources);
    w->source_count = 0;
    return result;
}

static int flush(struct shard_writer *w, struct dt_error *err)
{
    char *path = temporary_path(w, w->shards - 1, "");
    int result =
        w->buffered == 0 ? 0 : dt_file_write_all(w->fd, w->buffer, w->buffered * sizeof w->buffer[0], path, err);
    (void)XXH3_64bits_update(w->hash, w->buffer, w->buffered * sizeof w->buffer[0]);
    w->buffered = 0;
    free(path);
    return result;
}

static int end_shard(struct shard_writer *w, struct dt_error *err)
{
    if (flush(w, err) != 0) {
        return -1;
    }
    char *path = temporary_path(w, w->shards - 1, "");
    int32_t header[3] = {SHARD_MAGIC_U16, 1, (int32_t)w->count};
    int result = dt_file_pwrite_all(w->fd, header, sizeof header, 0, path, err);
    if (result == 0 && fsync(w->fd) != 0) {
        result = dt_fail_errno(err, "%s", path);
    }
    if (close(w->fd) != 0 && result == 0) {
        result = dt_fail_errno(err, "%s", path);
    }
    w->fd = -1;
    free(path);
    return result == 0 ? write_info(w, err) : -1;
}

void shard_writer_source(struct shard_writer *w, const char *name)
{
    if (w->source_count++ < SOURCES_LISTED) {
        dt_text_puts(&w->sources, w->source_count > 1 ? ",\n    " : "\n    ");
        dt_text_json(&w->sources, name, strlen(name));
    }
}

int shard_writer_add(struct shard_writer *w, const uint16_t *ids, size_t count, struct dt_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (w->fd >= 0 && w->count == w->shard_tokens && end_shard(w, err) != 0) {
            return -1;
        }
        if (w->fd < 0 && begin_shard(w, err) != 0) {
            return -1;
        }
        if (ids[i] >= w->vocabulary) {
            return dt_fail(err, DT_INVALID, "%s: id %u does not fit into the vocabulary of %" PRId64, w->dir, ids[i],
                           w->vocabulary);
        }
        w->max_id = ids[i] > w->max_id ? ids[i] : w->max_id;
        w->buffer[w->buffered++] = ids[i];
        w->count++;
        w->total++;
        if (w->buffered == BUFFER_IDS && flush(w, err) != 0) {
            return -1;
        }
    }
    return 0;
}

int shard_writer_finish(struct shard_writer *w, struct dt_error *err)
{
    if (w->fd >= 0 && end_shard(w, err) != 0) {
        return -1;
    }
    w->finished = true;
    return 0;
}

/* Gives one file its final name; `suffix` is "" or ".json". */
static int rename_one(struct shard_writer *w, int shard, const char *suffix, struct dt_error *err)
{
    char *from = temporary_path(w, shard, suffix), *to = path_of(w, shard, suffix);
    int result = rename(from, to) == 0 ? 0 : dt_fail_errno(err, "%s", to);
    free(from);
    free(to);
    return result;
}

static void remove_one(struct shard_writer *w, int shard, bool temporary)
{
    static const char *const suffixes[] = {"", ".json"};
    for (size_t i = 0; i < 2; i++) {
        char *path = temporary ? temporary_path(w, shard, suffixes[i]) : path_of(w, shard, suffixes[i]);
        (void)unlink(path);
        free(path);
    }
}

/* The name of an earlier run's file until all of ours have their final names. */
static char *aside_path(const struct shard_writer *w, int shard, const char *suffix)
{
    char *tail = dt_format("%s.old-%ld", suffix, (long)getpid());
    char *path = path_of(w, shard, tail);
    free(tail);
    return path;
}

/* the JSON first, so a process that sees a shard finds its JSON */
static const char *const commit_order[] = {".json", ""};

/* Sets the earlier run's file aside, and puts ours in its place. After an error the earlier file is
 * back. */
static int replace_one(struct shard_writer *w, int shard, const char *suffix, struct dt_error *err)
{
    char *path = path_of(w, shard, suffix), *aside = aside_path(w, shard, suffix);
    int result = rename(path, aside) == 0 || errno == ENOENT ? 0 : dt_fail_errno(err, "%s", path);
    if (result == 0 && (result = rename_one(w, shard, suffix, err)) != 0) {
        (void)rename(aside, path);
    }
    free(aside);
    free(path);
    return result;
}

/* Ends the replacement of `count` files. done: removes the earlier files. Otherwise it removes
 * ours, and puts the earlier ones back. */
static void settle_replaced(struct shard_writer *w, int count, bool done)
{
    for (int i = 0; i < count; i++) {
        char *path = path_of(w, i / 2, commit_order[i % 2]), *aside = aside_path(w, i / 2, commit_order[i % 2]);
        if (done) {
            (void)unlink(aside);
        } else if (rename(aside, path) != 0) {
            (void)unlink(path);
        }
        free(aside);
        free(path);
    }
}

int shard_writer_commit(struct shard_writer *w, struct dt_error *err)
{
    if (!w->finished) {
        return dt_fail(err, DT_INTERNAL, "%s: commit before finish", w->dir);
    }
    for (int i = 0; i < 2 * w->shards; i++) {
        if (replace_one(w, i / 2, commit_order[i % 2], err) != 0) {
            settle_replaced(w, i, false);
            return -1;
        }
    }
    settle_replaced(w, 2 * w->shards, true);
    w->committed = w->shards;
    for (int i = w->shards;; i++) { /* remove further shards of an earlier run */
        char *path = path_of(w, i, "");
        bool there = dt_file_exists(path);
        free(path);
        if (!there) {
            break;
        }
        remove_one(w, i, false);
    }
    return dt_file_sync_dir(w->dir, err);
}

int64_t shard_writer_tokens(const struct shard_writer *w)
{
    return w->total;
}

int shard_writer_shards(const struct shard_writer *w)
{
    return w->shards;
}

void shard_writer_close(struct shard_writer *w)
{
    if (w == NULL) {
        return;
    }
    if (w->fd >= 0) {
        (void)close(w->fd);
    }
    for (int i = w->committed; i < w->shards; i++) {
        remove_one(w, i, true);
    }
    (void)XXH3_freeState(w->hash);
    dt_text_clear(&w->sources);
    free(w->dir);
    free(w->prefix);
    free(w);
}
