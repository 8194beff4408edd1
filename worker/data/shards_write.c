/* Writes token shards into the folder `.unfinished`, and gives all of them their names at the end. A full
 * disk or a signal leaves the shards of an earlier run as they were. */
#include "base/file.h"
#include "base/text.h"
#include "worker/data/shards.h"
#include "worker/data/shards_set.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    BUFFER_BYTES = 1 << 18,
    PASSED_ON_BYTES = 1 << 23,
    SOURCES_LISTED = 10000,
    SOURCES_BYTES = 1 << 20, /* what is listed must fit what a reader takes */
    U16_VOCABULARY = 65536
};

struct shard_writer {
    struct shard_set set;
    char *tokenizer, *tokenizer_path;
    struct shard_form form;
    size_t width; /* bytes per id */
    int64_t total;
    bool finished;
    /* the shard being written */
    int fd; /* -1: none */
    int64_t count;
    int64_t written, passed_on; /* bytes: behind the header, and those that are on their way to the disk */
    int32_t max_id;
    XXH3_state_t *hash;
    struct dt_text sources;
    int64_t source_count;
    _Alignas(8) unsigned char buffer[BUFFER_BYTES];
    size_t buffered; /* bytes */
};

int shard_writer_open(struct shard_writer **out, const char *dir, const char *prefix, const struct shard_form *form,
                      bool overwrite, struct dt_error *err)
{
    struct shard_writer *w = dt_alloc(sizeof *w);
    if (shard_set_open(&w->set, dir, prefix, shard_set_token_files, overwrite, err) != 0) {
        free(w);
        return -1;
    }
    w->form = *form;
    w->form.tokenizer = w->tokenizer = dt_strdup(form->tokenizer);
    w->form.tokenizer_path = w->tokenizer_path = form->tokenizer_path != NULL ? dt_strdup(form->tokenizer_path) : NULL;
    w->width = form->vocabulary <= U16_VOCABULARY ? 2 : 4;
    w->fd = -1;
    w->hash = XXH3_createState();
    *out = w;
    return 0;
}

/* True if the shard of an earlier run is as its JSON says, and as ours would be. */
static int check_complete(struct shard_writer *w, const char *path, struct dt_error *err)
{
    struct shard s;
    if (shard_open(&s, path, err) != 0) {
        return -1;
    }
    int64_t max_id = 0;
    uint64_t hash = 0;
    shard_measure(&s, &max_id, &hash);
    bool same = s.info.has_hash && s.info.hash == hash && s.token_count == w->form.shard_tokens &&
                s.info.vocabulary == w->form.vocabulary;
    w->total += s.token_count;
    shard_close(&s);
    return same ? 0
                : dt_fail(err, DT_INVALID,
                          "%s: changed or damaged since it was written; remove its folder to begin anew", path);
}

int shard_writer_resume(struct shard_writer *w, int count, struct dt_error *err)
{
    int result = 0;
    for (; result == 0 && w->set.count < count; w->set.count += result == 0) {
        char *path = shard_set_work_path(&w->set, w->set.count, ".bin");
        result = check_complete(w, path, err);
        free(path);
    }
    return result;
}

static int begin_shard(struct shard_writer *w, struct dt_error *err)
{
    if (w->set.count == SHARD_SET_MOST) {
        return dt_fail(err, DT_INVALID, "%s: more than %d shards; raise --shard_tokens", w->set.dir, SHARD_SET_MOST);
    }
    char *path = shard_set_work_path(&w->set, w->set.count, ".bin");
    static const char header[SHARD_HEADER_BYTES];
    int result = -1;
    w->fd = dt_file_create(path, err);
    if (w->fd >= 0) {
        w->set.count++;
        w->count = 0;
        w->max_id = -1;
        w->written = w->passed_on = 0;
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
    char *path = shard_set_work_path(&w->set, w->set.count - 1, ".bin.json");
    dt_text_init(&t);
    dt_text_puts(&t, "{\n  \"tokenizer\": ");
    dt_text_json(&t, w->tokenizer, strlen(w->tokenizer));
    if (w->tokenizer_path != NULL) {
        dt_text_printf(&t,
                       ",\n  \"tokenizer_hash\": \"%016" PRIx64 "\",\n  \"tokenizer_path\": ", w->form.tokenizer_hash);
        dt_text_json(&t, w->tokenizer_path, strlen(w->tokenizer_path));
    }
    dt_text_printf(&t, ",\n  \"document_end\": %" PRId64, w->form.document_end);
    dt_text_printf(&t,
                   ",\n  \"vocabulary\": %" PRId64 ",\n  \"tokens\": %" PRId64 ",\n  \"max_id\": %" PRId32
                   ",\n  \"xxh3\": \"%016" PRIx64 "\",\n",
                   w->form.vocabulary, w->count, w->max_id, (uint64_t)XXH3_64bits_digest(w->hash));
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
    char *path = shard_set_work_path(&w->set, w->set.count - 1, ".bin");
    int result = w->buffered == 0 ? 0 : dt_file_write_all(w->fd, w->buffer, w->buffered, path, err);
    (void)XXH3_64bits_update(w->hash, w->buffer, w->buffered);
    w->written += (int64_t)w->buffered;
    w->buffered = 0;
    if (w->written - w->passed_on >= PASSED_ON_BYTES) { /* the disk works beside us, and the end waits for little */
        (void)sync_file_range(w->fd, SHARD_HEADER_BYTES + w->passed_on, w->written - w->passed_on,
                              SYNC_FILE_RANGE_WRITE);
        w->passed_on = w->written;
    }
    free(path);
    return result;
}

static int end_shard(struct shard_writer *w, struct dt_error *err)
{
    if (flush(w, err) != 0) {
        return -1;
    }
    char *path = shard_set_work_path(&w->set, w->set.count - 1, ".bin");
    int32_t header[3] = {w->width == 2 ? SHARD_MAGIC_U16 : SHARD_MAGIC_U32, w->width == 2 ? 1 : 7, (int32_t)w->count};
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
    bool listed = w->source_count++ < SOURCES_LISTED && w->sources.size < SOURCES_BYTES;
    if (listed) {
        dt_text_puts(&w->sources, w->sources.size > 0 ? ",\n    " : "\n    ");
        dt_text_json(&w->sources, name, strlen(name));
    }
}

int64_t shard_writer_room(const struct shard_writer *w)
{
    return w->form.shard_tokens - (w->fd >= 0 ? w->count : 0);
}

/* Appends ids that the shard has room for, and the buffer too. */
static int buffer_ids(struct shard_writer *w, const int32_t *ids, size_t count, struct dt_error *err)
{
    int32_t most = 0, least = 0;
    for (size_t i = 0; i < count; i++) {
        most = ids[i] > most ? ids[i] : most;
        least = ids[i] < least ? ids[i] : least;
    }
    if (least < 0 || most >= w->form.vocabulary) {
        return dt_fail(err, DT_INVALID, "%s: id %" PRId32 " does not fit into the vocabulary of %" PRId64, w->set.dir,
                       least < 0 ? least : most, w->form.vocabulary);
    }
    if (w->width == 2) {
        uint16_t *at = (uint16_t *)(void *)(w->buffer + w->buffered);
        for (size_t i = 0; i < count; i++) {
            at[i] = (uint16_t)ids[i];
        }
    } else {
        memcpy(w->buffer + w->buffered, ids, count * sizeof ids[0]);
    }
    w->max_id = most > w->max_id ? most : w->max_id;
    w->buffered += count * w->width;
    w->count += (int64_t)count;
    w->total += (int64_t)count;
    return 0;
}

int shard_writer_add(struct shard_writer *w, const int32_t *ids, size_t count, struct dt_error *err)
{
    while (count > 0) {
        if (w->fd < 0 && begin_shard(w, err) != 0) {
            return -1;
        }
        size_t room = (BUFFER_BYTES - w->buffered) / w->width, n = count < room ? count : room;
        n = (int64_t)n < shard_writer_room(w) ? n : (size_t)shard_writer_room(w);
        if (buffer_ids(w, ids, n, err) != 0) {
            return -1;
        }
        ids += n;
        count -= n;
        int result = w->count == w->form.shard_tokens ? end_shard(w, err)
                     : w->buffered == BUFFER_BYTES    ? flush(w, err)
                                                      : 0;
        if (result != 0) {
            return -1;
        }
    }
    return 0;
}

int shard_writer_complete(const struct shard_writer *w)
{
    return w->set.count - (w->fd >= 0);
}

int shard_writer_finish(struct shard_writer *w, struct dt_error *err)
{
    if (w->fd >= 0 && end_shard(w, err) != 0) {
        return -1;
    }
    w->finished = true;
    return 0;
}

int shard_writer_commit(struct shard_writer *w, struct dt_error *err)
{
    if (!w->finished) {
        return dt_fail(err, DT_INTERNAL, "%s: commit before finish", w->set.dir);
    }
    return shard_set_commit(&w->set, err);
}

struct shard_set *shard_writer_set(struct shard_writer *w)
{
    return &w->set;
}

int64_t shard_writer_tokens(const struct shard_writer *w)
{
    return w->total;
}

int shard_writer_shards(const struct shard_writer *w)
{
    return w->set.count;
}

void shard_writer_close(struct shard_writer *w, bool keep)
{
    if (w == NULL) {
        return;
    }
    int complete = shard_writer_complete(w);
    if (w->fd >= 0) {
        (void)close(w->fd);
    }
    shard_set_close(&w->set, keep ? complete : 0);
    (void)XXH3_freeState(w->hash);
    dt_text_clear(&w->sources);
    free(w->tokenizer);
    free(w->tokenizer_path);
    free(w);
}
