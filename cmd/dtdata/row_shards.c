/* See the header. The rows of a file are in memory until it is written, because a safetensors file begins with
 * the sizes of its tensors. */
#include "cmd/dtdata/row_shards.h"

#include "worker/data/safetensors.h"
#include "worker/data/shards_set.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_IDS_MOST = 1 << 24 };

struct row_writer {
    struct shard_set set;
    const struct coder *coder;
    const struct labels *labels;
    bool pairs;
    int64_t file_ids;
    struct row_list rows;
    int64_t total;
};

static size_t ids_begin(const struct row_list *l, size_t row)
{
    return row == 0 ? 0 : (size_t)l->ends[row - 1];
}

void row_list_add(struct row_list *l, const int32_t *ids, const uint8_t *types, size_t count, double label)
{
    if (l->count == l->capacity) {
        l->capacity = l->capacity == 0 ? 256 : 2 * l->capacity;
        l->ends = dt_realloc(l->ends, l->capacity * sizeof *l->ends);
        l->labels = dt_realloc(l->labels, l->capacity * sizeof *l->labels);
    }
    size_t begin = l->ids.count, end = begin + count;
    if (end > l->ids.capacity) {
        l->ids.capacity = end > 2 * l->ids.capacity ? end : 2 * l->ids.capacity;
        l->ids.ids = dt_realloc(l->ids.ids, l->ids.capacity * sizeof *l->ids.ids);
    }
    if (count > 0) {
        memcpy(l->ids.ids + begin, ids, count * sizeof *ids);
    }
    l->ids.count = end;
    if (types != NULL && end > l->types_capacity) {
        l->types_capacity = l->ids.capacity;
        l->types = dt_realloc(l->types, l->types_capacity);
    }
    if (types != NULL && count > 0) {
        memcpy(l->types + begin, types, count);
    }
    l->labels[l->count] = label;
    l->ends[l->count++] = (int64_t)end;
}

void row_list_reset(struct row_list *l)
{
    l->count = l->ids.count = 0;
}

void row_list_clear(struct row_list *l)
{
    token_ids_clear(&l->ids);
    free(l->types);
    free(l->ends);
    free(l->labels);
    *l = (struct row_list){0};
}

int row_writer_open(struct row_writer **out, const char *dir, const char *prefix, const struct coder *coder,
                    const struct labels *labels, bool pairs, int64_t shard_tokens, bool overwrite, struct dt_error *err)
{
    struct row_writer *w = dt_alloc(sizeof *w);
    if (shard_set_open(&w->set, dir, prefix, shard_set_row_files, overwrite, err) != 0) {
        free(w);
        return -1;
    }
    w->coder = coder;
    w->labels = labels;
    w->pairs = pairs;
    w->file_ids = shard_tokens < FILE_IDS_MOST ? shard_tokens : FILE_IDS_MOST;
    *out = w;
    return 0;
}

int row_writer_resume(struct row_writer *w, int count, struct dt_error *err)
{
    int result = 0;
    for (; result == 0 && w->set.count < count; w->set.count += result == 0) {
        struct st_file *f = NULL;
        char *path = shard_set_work_path(&w->set, w->set.count, shard_set_row_files[0]);
        result = st_open(&f, path, err);
        const struct st_tensor *labels = result == 0 ? st_find(f, "labels") : NULL;
        if (result == 0 && labels == NULL) {
            result = dt_fail(err, DT_INVALID,
                             "%s: changed or damaged since it was written; remove its folder to begin anew", path);
        }
        w->total += labels != NULL ? labels->numel : 0;
        st_close(f);
        free(path);
    }
    return result;
}

static int write_tensors(const struct row_writer *w, struct st_writer *to, struct dt_error *err)
{
    const struct row_list *l = &w->rows;
    const int64_t zero = 0;
    if (st_writer_data(to, l->ids.ids, l->ids.count * sizeof *l->ids.ids, err) != 0 ||
        st_writer_data(to, &zero, sizeof zero, err) != 0 ||
        st_writer_data(to, l->ends, l->count * sizeof *l->ends, err) != 0) {
        return -1;
    }
    for (size_t i = 0; i < l->count; i++) {
        int64_t class_number = (int64_t)l->labels[i];
        float number = (float)l->labels[i];
        if (w->labels->numbers ? st_writer_data(to, &number, sizeof number, err) != 0
                               : st_writer_data(to, &class_number, sizeof class_number, err) != 0) {
            return -1;
        }
    }
    return w->pairs ? st_writer_data(to, l->types, l->ids.count, err) : 0;
}

/* Writes a file with the rows that are in memory. */
static int write_file(struct row_writer *w, struct dt_error *err)
{
    if (w->set.count == SHARD_SET_MOST) {
        return dt_fail(err, DT_INVALID, "%s: more than %d files; raise --shard_tokens", w->set.dir, SHARD_SET_MOST);
    }
    const int64_t ids = (int64_t)w->rows.ids.count, n = (int64_t)w->rows.count, n_1 = n + 1;
    const struct st_entry entries[] = {{"ids", DT_I32, 1, &ids},
                                       {"starts", DT_I64, 1, &n_1},
                                       {"labels", w->labels->numbers ? DT_F32 : DT_I64, 1, &n},
                                       {"types", DT_U8, 1, &ids}};
    struct dt_text names;
    dt_text_init(&names);
    labels_json(w->labels, &names);
    char hash[17], vocabulary[24], pad[12];
    (void)snprintf(hash, sizeof hash, "%016" PRIx64, w->coder->hash);
    (void)snprintf(vocabulary, sizeof vocabulary, "%" PRId64, w->coder->vocabulary);
    (void)snprintf(pad, sizeof pad, "%" PRId32, w->coder->pad);
    const char *metadata[16] = {"format", "pt", "tokenizer", w->coder->name, "vocabulary", vocabulary, "pad_id", pad};
    int at = 8;
    if (w->coder->path != NULL) {
        metadata[at++] = "tokenizer_hash";
        metadata[at++] = hash;
        metadata[at++] = "tokenizer_path";
        metadata[at++] = w->coder->path;
    }
    if (!w->labels->numbers) {
        metadata[at++] = "label_names";
        metadata[at++] = dt_text_str(&names);
    }
    struct st_writer *to = NULL;
    char *path = shard_set_work_path(&w->set, w->set.count, shard_set_row_files[0]);
    int result = st_writer_open(&to, path, entries, w->pairs ? 4 : 3, metadata, err);
    if (result == 0 && write_tensors(w, to, err) != 0) {
        st_writer_abort(to);
        result = -1;
    } else if (result == 0) {
        result = st_writer_close(to, err);
    }
    w->set.count += result == 0;
    row_list_reset(&w->rows);
    dt_text_clear(&names);
    free(path);
    return result;
}

int row_writer_add(struct row_writer *w, const struct row_list *l, size_t i, struct dt_error *err)
{
    size_t begin = ids_begin(l, i), end = (size_t)l->ends[i];
    row_list_add(&w->rows, l->ids.ids + begin, w->pairs ? l->types + begin : NULL, end - begin, l->labels[i]);
    w->total++;
    return (int64_t)w->rows.ids.count >= w->file_ids ? write_file(w, err) : 0;
}

int row_writer_complete(const struct row_writer *w)
{
    return w->set.count;
}

int row_writer_finish(struct row_writer *w, struct dt_error *err)
{
    return w->rows.count > 0 ? write_file(w, err) : 0;
}

struct shard_set *row_writer_set(struct row_writer *w)
{
    return &w->set;
}

int64_t row_writer_rows(const struct row_writer *w)
{
    return w->total;
}

int row_writer_files(const struct row_writer *w)
{
    return w->set.count;
}

void row_writer_close(struct row_writer *w, bool keep)
{
    if (w == NULL) {
        return;
    }
    shard_set_close(&w->set, keep ? w->set.count : 0);
    row_list_clear(&w->rows);
    free(w);
}
