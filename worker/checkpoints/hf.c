/* Weights of Hugging Face folders. What differs between models (names, settings) is in their
 * model_ops; this file has the files, shards, index and checks. File names in an index cannot leave
 * the folder. */
#include "worker/checkpoints/hf.h"

#include "base/file.h"
#include "worker/data/safetensors.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_MAX = 64 << 20, FILES_MAX = 4096, NAME_MAX_BYTES = 1024, PART = 1 << 16 };

struct source { /* where a tensor of the chain is stored */
    const struct st_file *file;
    const struct st_tensor *tensor;
};

struct hf {
    char *folder;
    const struct chain *chain;
    struct st_file **files;
    int file_count;
    struct source *sources; /* one per tensor of the chain; a tensor of the head may have none */
    uint64_t seed;          /* of those */
};

static int open_file(struct hf *h, const char *name, struct dt_error *err)
{
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL) {
        return dt_fail(err, DT_INVALID, "%s/model.safetensors.index.json: file name \"%s\"", h->folder, name);
    }
    char *path = dt_format("%s/%s", h->folder, name);
    h->files = dt_realloc(h->files, ((size_t)h->file_count + 1) * sizeof *h->files);
    int rc = st_open(&h->files[h->file_count], path, err);
    h->file_count += rc == 0;
    free(path);
    return rc;
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Opens the files that the index names, each once. The files themselves tell which tensors they
 * hold. */
static int open_index(struct hf *h, const char *path, struct dt_error *err)
{
    cJSON *json = NULL;
    if (hf_read_json(path, INDEX_MAX, &json, NULL, err) != 0) {
        return -1;
    }
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "weight_map"), *item;
    int rc = cJSON_IsObject(map) && map->child != NULL
                 ? 0
                 : dt_fail(err, DT_INVALID, "%s: weight_map: missing or empty", path);
    size_t count = rc == 0 ? (size_t)cJSON_GetArraySize(map) : 0, n = 0;
    const char **names = dt_alloc((count + 1) * sizeof *names);
    if (rc == 0) {
        cJSON_ArrayForEach(item, map)
        {
            if (!cJSON_IsString(item)) {
                rc = dt_fail(err, DT_INVALID, "%s: weight_map: %s: must be a file name", path, item->string);
                break;
            }
            names[n++] = item->valuestring;
        }
    }
    if (rc == 0) {
        qsort(names, n, sizeof *names, compare_strings);
        for (size_t i = 0; rc == 0 && i < n; i++) {
            if (i > 0 && strcmp(names[i - 1], names[i]) == 0) {
                continue;
            }
            rc = h->file_count < FILES_MAX ? open_file(h, names[i], err)
                                           : dt_fail(err, DT_INVALID, "%s: more than %d files", path, (int)FILES_MAX);
        }
    }
    free(names);
    cJSON_Delete(json);
    return rc;
}

static void put_shape(struct dt_text *out, const int64_t *shape, int dims)
{
    dt_text_puts(out, "[");
    for (int i = 0; i < dims; i++) {
        dt_text_printf(out, "%s%lld", i > 0 ? ", " : "", (long long)shape[i]);
    }
    dt_text_puts(out, "]");
}

/* Fails unless a file's tensor has the shape of ours and a type that we convert. */
static int check_tensor(const struct st_file *f, const struct st_tensor *s, const struct tensor *t,
                        struct dt_error *err)
{
    if (t->dims == 0 && s->type == DT_I64 && s->numel == 1) {
        return 0; /* a counter */
    }
    if (s->dims != t->dims || memcmp(s->shape, t->shape, (size_t)t->dims * sizeof *t->shape) != 0) {
        struct dt_text text;
        dt_text_init(&text);
        put_shape(&text, s->shape, s->dims);
        dt_text_puts(&text, ", but config.json says ");
        put_shape(&text, t->shape, t->dims);
        (void)dt_fail(err, DT_INVALID, "%s: tensor %s: shape %s", st_path(f), s->name, dt_text_str(&text));
        dt_text_clear(&text);
        return -1;
    }
    float none;
    return st_read_f32(f, s, 0, 0, &none, err);
}

/* A tensor stored under two names (a tied head) must have the same values in both. */
static int check_same(const struct source *a, const struct st_file *f, const struct st_tensor *t, struct dt_error *err)
{
    float *x = dt_alloc(2 * PART * sizeof *x), *y = x + PART;
    int rc = 0;
    for (int64_t at = 0, n; rc == 0 && at < t->numel; at += n) {
        n = t->numel - at < PART ? t->numel - at : PART;
        rc = st_read_f32(a->file, a->tensor, at, n, x, err);
        rc = rc == 0 ? st_read_f32(f, t, at, n, y, err) : rc;
        if (rc == 0 && memcmp(x, y, (size_t)n * sizeof *x) != 0) {
            rc = dt_fail(err, DT_INVALID, "%s: tensor %s differs from %s: only tied heads are supported", st_path(f),
                         t->name, a->tensor->name);
        }
    }
    free(x);
    return rc;
}

static int compare_tensors(const void *a, const void *b, void *chain)
{
    const struct tensor *t = ((const struct chain *)chain)->tensors;
    return strcmp(t[*(const int *)a].name, t[*(const int *)b].name);
}

/* Sorts the chain's tensors by name. The caller frees the indices. */
static int *sort_tensors(const struct chain *c)
{
    int *sorted = dt_alloc((size_t)c->tensor_count * sizeof *sorted);
    for (int i = 0; i < c->tensor_count; i++) {
        sorted[i] = i;
    }
    qsort_r(sorted, (size_t)c->tensor_count, sizeof *sorted, compare_tensors, (void *)(uintptr_t)c);
    return sorted;
}

static int find(const struct chain *c, const int *sorted, const char *name)
{
    int low = 0, high = c->tensor_count;
    while (low < high) {
        int middle = low + (high - low) / 2, order = strcmp(c->tensors[sorted[middle]].name, name);
        if (order == 0) {
            return sorted[middle];
        }
        low = order < 0 ? middle + 1 : low;
        high = order > 0 ? middle : high;
    }
    return -1;
}

/* Matches every tensor of the files with one of the chain. Fails if one is unknown or missing. */
static int match(struct hf *h, const int *sorted, struct dt_error *err)
{
    const struct model_ops *ops = model_find(h->chain->spec.name);
    for (int i = 0; i < h->file_count; i++) {
        const struct st_file *f = h->files[i];
        for (int k = 0; k < st_count(f); k++) {
            const struct st_tensor *t = st_at(f, k);
            char name[NAME_MAX_BYTES];
            if (!ops->canonical_name(t->name, name, sizeof name)) {
                continue;
            }
            int at = find(h->chain, sorted, name);
            if (at < 0 && ops->is_head != NULL && ops->is_head(name)) {
                continue;
            }
            if (at < 0) {
                return dt_fail(err, DT_INVALID,
                               "%s: tensor %s: model %s as config.json describes it has no such tensor", st_path(f),
                               t->name, ops->name);
            }
            if (check_tensor(f, t, &h->chain->tensors[at], err) != 0) {
                return -1;
            }
            struct source *s = &h->sources[at];
            if (s->tensor != NULL && check_same(s, f, t, err) != 0) {
                return -1;
            }
            *s = (struct source){f, t};
        }
    }
    int missing = 0, first = -1;
    for (int i = h->chain->tensor_count - 1; i >= 0; i--) {
        bool here = h->sources[i].tensor != NULL || (ops->is_head != NULL && ops->is_head(h->chain->tensors[i].name));
        missing += !here;
        first = here ? first : i;
    }
    if (missing > 0) {
        return dt_fail(err, DT_INVALID, "%s: %d of %d tensors are missing, the first is %s", h->folder, missing,
                       h->chain->tensor_count, h->chain->tensors[first].name);
    }
    return 0;
}

int hf_open(struct hf **out, const char *folder, const struct chain *chain, struct dt_error *err)
{
    struct hf *h = dt_alloc(sizeof *h);
    h->folder = dt_strdup(folder);
    h->chain = chain;
    h->sources = dt_alloc((size_t)chain->tensor_count * sizeof *h->sources);
    char *index = dt_format("%s/model.safetensors.index.json", folder),
         *single = dt_format("%s/model.safetensors", folder);
    int rc;
    if (dt_file_exists(single)) {
        rc = open_file(h, "model.safetensors", err);
    } else if (dt_file_exists(index)) {
        rc = open_index(h, index, err);
    } else {
        rc = dt_fail(err, DT_NOT_FOUND, "%s: neither model.safetensors nor model.safetensors.index.json", folder);
    }
    if (rc == 0) {
        int *sorted = sort_tensors(chain);
        rc = match(h, sorted, err);
        free(sorted);
    }
    free(index);
    free(single);
    if (rc != 0) {
        hf_close(h);
        return -1;
    }
    *out = h;
    return 0;
}

void hf_begin_head(struct hf *h, uint64_t seed, struct dt_text *names)
{
    h->seed = seed;
    for (int i = 0; i < h->chain->tensor_count; i++) {
        if (h->sources[i].tensor == NULL) {
            dt_text_printf(names, "%s%s", names->size > 0 ? ", " : "", h->chain->tensors[i].name);
        }
    }
}

void hf_close(struct hf *h)
{
    if (h == NULL) {
        return;
    }
    for (int i = 0; i < h->file_count; i++) {
        st_close(h->files[i]);
    }
    free(h->files);
    free(h->sources);
    free(h->folder);
    free(h);
}

/* Writes the value of a counter (check_tensor) to element `at` of out. */
static void put_counter(const struct st_tensor *t, enum dt_dtype type, void *out, int64_t at)
{
    int64_t value;
    memcpy(&value, t->data, sizeof value);
    if (type == DT_F64) {
        ((double *)out)[at] = (double)value;
    } else {
        ((float *)out)[at] = (float)value;
    }
}

int hf_read_unit(const struct hf *h, int u, int64_t first, int64_t count, enum dt_dtype type, void *out,
                 struct dt_error *err)
{
    memset(out, 0, (size_t)count * dt_dtype_size(type));
    for (int i = 0; i < h->chain->tensor_count; i++) {
        const struct tensor *t = &h->chain->tensors[i];
        struct span part;
        if (t->unit != u || !tensor_span(t, first, count, &part)) {
            continue;
        }
        const struct source *s = &h->sources[i];
        if (s->tensor == NULL) {
            init_span(&part, h->seed, type, out); /* a head that the folder lacks */
            continue;
        }
        if (s->tensor->type == DT_I64) {
            put_counter(s->tensor, type, out, part.at);
            continue;
        }
        int rc = type == DT_F64 ? st_read_f64(s->file, s->tensor, part.first, part.count, (double *)out + part.at, err)
                                : st_read_f32(s->file, s->tensor, part.first, part.count, (float *)out + part.at, err);
        if (rc != 0) {
            return -1;
        }
    }
    return 0;
}
