/* Weights of Hugging Face folders. What differs between models (names, settings) is in their
 * model_ops; this file has the files, shards, index and checks. File names in an index cannot leave
 * the folder. */
#include "worker/checkpoints/hf.h"

#include "base/file.h"
#include "kernels/kernels.h"
#include "worker/data/safetensors.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_MAX = 64 << 20, FILES_MAX = 4096, NAME_MAX_BYTES = 1024, PART = 1 << 16, COMPARED = 4 << 20 };

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
    bool new_head;          /* the job has another head than the folder's config.json */
    struct dt_text unused;  /* names of tensors of other heads */
};

static int open_file(struct hf *h, const char *name, struct dt_error *err)
{
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL) {
        return dt_fail(err, DT_INVALID, "%s/model.safetensors.index.json: file name \"%s\"", h->folder, name);
    }
    char *path = dt_format("%s/%s", h->folder, name);
    h->files = dt_realloc(h->files, ((size_t)h->file_count + 1) * sizeof *h->files);
    int rc = st_open(&h->files[h->file_count], path, err);
    if (rc == 0) {
        st_in_order(h->files[h->file_count++]);
    }
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

static int same_as_f32(const struct source *a, const struct source *b, bool *same, struct dt_error *err)
{
    float *x = dt_alloc(2 * PART * sizeof *x), *y = x + PART;
    int rc = 0;
    for (int64_t at = 0, n; rc == 0 && *same && at < a->tensor->numel; at += n) {
        n = a->tensor->numel - at < PART ? a->tensor->numel - at : PART;
        rc = st_read_f32(a->file, a->tensor, at, n, x, err);
        rc = rc == 0 ? st_read_f32(b->file, b->tensor, at, n, y, err) : rc;
        *same = rc == 0 && memcmp(x, y, (size_t)n * sizeof *x) == 0;
    }
    free(x);
    return rc;
}

/* *same: both have the same values. */
static int compare_values(const struct source *a, const struct source *b, bool *same, struct dt_error *err)
{
    int rc = 0;
    *same = a->tensor->numel == b->tensor->numel;
    if (a->tensor->type != b->tensor->type) {
        rc = same_as_f32(a, b, same, err);
    }
    for (size_t at = 0, n; a->tensor->type == b->tensor->type && *same && at < a->tensor->size_bytes; at += n) {
        const char *x = (const char *)a->tensor->data + at, *y = (const char *)b->tensor->data + at;
        n = a->tensor->size_bytes - at < COMPARED ? a->tensor->size_bytes - at : COMPARED;
        *same = memcmp(x, y, n) == 0;
        st_leave(a->file, x, n);
        st_leave(b->file, y, n);
    }
    return rc;
}

/* A tensor that is stored twice, under two names (a tied head) or in two files, must have the same values in
 * both. Of two files, the library takes the last one, whatever the index says, so that no choice is right. */
static int check_same(const struct source *a, const struct source *b, struct dt_error *err)
{
    bool same;
    int rc = compare_values(a, b, &same, err);
    if (rc != 0 || same) {
        return rc;
    }
    return a->file != b->file && strcmp(a->tensor->name, b->tensor->name) == 0
               ? dt_fail(err, DT_INVALID, "tensor %s is in %s and in %s, with other values; remove one of them",
                         b->tensor->name, st_path(a->file), st_path(b->file))
               : dt_fail(err, DT_INVALID, "%s: tensor %s differs from %s: only tied heads are supported",
                         st_path(b->file), b->tensor->name, a->tensor->name);
}

/* ---- what does not fit ---- */

enum kind { MISSING, UNEXPECTED, MISSHAPEN, UNUSED, KINDS };
enum { LISTED_BYTES = 1024, NAME_SHOWN = 120, MISMATCH_BYTES = 380, MISMATCH_LEAST = 160, UNUSED_BYTES = 300 };

struct list { /* names, each with a newline behind it, as many as fit LISTED_BYTES */
    struct dt_text names;
    int count;
};

static void list_add(struct list *l, const char *name, const char *more)
{
    l->count++;
    if (l->names.size < LISTED_BYTES) {
        dt_text_printf(&l->names, "%.*s%s\n", NAME_SHOWN, name, more);
    }
}

/* Appends names to about `most` bytes, and the number of the others. */
static void put_list(struct dt_text *out, const struct list *l, size_t most)
{
    const char *at = dt_text_str(&l->names);
    size_t begin = out->size;
    int shown = 0;
    for (size_t n; (n = strcspn(at, "\n")) > 0 && (shown == 0 || out->size - begin + n <= most); at += n + 1) {
        dt_text_printf(out, "%s%.*s", shown++ > 0 ? ", " : "", (int)n, at);
    }
    if (l->count > shown) {
        dt_text_printf(out, " and %d more", l->count - shown);
    }
}

bool hf_is_count(const char *name)
{
    return dt_text_ends_with(name, ".num_batches_tracked");
}

/* Adds a tensor of a file to the misshapen ones, unless it has the shape of ours and a type that we
 * convert. */
static bool fits(const struct st_file *f, const struct st_tensor *s, const struct tensor *t, struct list *misshapen)
{
    bool same = s->dims == t->dims && memcmp(s->shape, t->shape, (size_t)t->dims * sizeof *t->shape) == 0;
    bool count = hf_is_count(t->name) && s->numel == 1 && t->numel == 1;
    float none;
    if ((count && s->type == DT_I64) || ((same || count) && st_read_f32(f, s, 0, 0, &none, NULL) == 0)) {
        return true;
    }
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, " ");
    if (same) {
        dt_text_printf(&text, "of type %s", s->dtype);
    } else {
        put_shape(&text, s->shape, s->dims);
        dt_text_puts(&text, " instead of ");
        put_shape(&text, t->shape, t->dims);
    }
    list_add(misshapen, s->name, dt_text_str(&text));
    dt_text_clear(&text);
    return false;
}

/* Fails with all that is missing, unexpected and misshapen. */
static int check_lists(const struct hf *h, const struct list *lists, struct dt_error *err)
{
    static const char *const words[] = {"missing", "unexpected", "misshapen"};
    int kinds = (lists[MISSING].count > 0) + (lists[UNEXPECTED].count > 0) + (lists[MISSHAPEN].count > 0);
    if (kinds == 0) {
        return 0;
    }
    size_t path = strlen(h->folder),
           most = path < MISMATCH_BYTES - MISMATCH_LEAST ? MISMATCH_BYTES - path : MISMATCH_LEAST;
    struct dt_text text;
    dt_text_init(&text);
    for (int i = MISSING; i <= MISSHAPEN; i++) {
        if (lists[i].count > 0) {
            dt_text_printf(&text, "%s%d %s: ", text.size > 0 ? "; " : "", lists[i].count, words[i]);
            put_list(&text, &lists[i], most / (size_t)kinds);
        }
    }
    (void)dt_fail(err, DT_INVALID, "%s: tensors do not fit its config.json: %s", h->folder, dt_text_str(&text));
    dt_text_clear(&text);
    return -1;
}

/* ---- matching ---- */

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

/* Tensors of a head that may have two names: its table and its bias. */
enum { TABLE, BIAS, TWINS };

static const char *second_name(const struct model_ops *ops, int k)
{
    return k == TABLE ? ops->tied.head : ops->tied.head_bias;
}

static const char *first_name(const struct model_ops *ops, int k)
{
    return k == TABLE ? ops->tied.table : ops->tied.bias;
}

/* Returns k if `name` is the second name of tensor k, which the chain has under the first; otherwise
 * TWINS. */
static int twin_of(const struct hf *h, const int *sorted, const struct model_ops *ops, const char *name)
{
    bool tied = ops->tied.key != NULL && model_flag(ops, h->chain->spec.sizes, ops->tied.key);
    int k = 0;
    while (tied && k < TWINS && (second_name(ops, k) == NULL || strcmp(name, second_name(ops, k)) != 0)) {
        k++;
    }
    return tied && k < TWINS && find(h->chain, sorted, first_name(ops, k)) >= 0 ? k : TWINS;
}

/* True if the chain's head gives tokens. */
static bool names_tokens(const struct chain *c)
{
    int targets = batch_targets(&c->batch);
    return !c->spec.hidden && targets >= 0 && c->batch.field[targets].from_ids;
}

/* Finds the tensors of the chain that the file's are. twins: tensors of a tied head under their second
 * names. */
static int match_file(struct hf *h, const int *sorted, const struct st_file *f, struct list *lists,
                      struct source *twins, struct dt_error *err)
{
    const struct model_ops *ops = model_find(h->chain->spec.name);
    for (int k = 0; k < st_count(f); k++) {
        struct source found = {f, st_at(f, k)};
        char name[NAME_MAX_BYTES];
        if (!ops->canonical_name(found.tensor->name, name, sizeof name)) {
            continue;
        }
        int at = find(h->chain, sorted, name), twin = at < 0 ? twin_of(h, sorted, ops, name) : TWINS;
        bool anew = h->new_head && ops->is_head(name); /* unless it fits, it begins anew */
        if (at >= 0 && fits(f, found.tensor, &h->chain->tensors[at], &lists[anew ? UNUSED : MISSHAPEN])) {
            struct source *s = &h->sources[at];
            if (s->tensor != NULL && check_same(s, &found, err) != 0) {
                return -1;
            }
            *s = found;
        } else if (at >= 0) {
            h->sources[at] = anew ? (struct source){NULL, NULL} : found;
        } else if (twin < TWINS) {
            twins[twin] = found;
        } else {
            bool other = (ops->is_head != NULL && ops->is_head(name)) ||
                         (!names_tokens(h->chain) && ops->tied.head != NULL && strcmp(name, ops->tied.head) == 0);
            list_add(&lists[other ? UNUSED : UNEXPECTED], found.tensor->name, "");
        }
    }
    return 0;
}

/* Values that the files have under both names must be the same. Those under the second name alone are taken. */
static int match_twins(struct hf *h, const int *sorted, const struct source *twins, struct dt_error *err)
{
    const struct model_ops *ops = model_find(h->chain->spec.name);
    int rc = 0;
    for (int k = 0; k < TWINS && rc == 0; k++) {
        if (twins[k].tensor == NULL) {
            continue;
        }
        int at = find(h->chain, sorted, first_name(ops, k));
        struct list misshapen = {.count = 0};
        dt_text_init(&misshapen.names);
        if (!fits(twins[k].file, twins[k].tensor, &h->chain->tensors[at], &misshapen)) {
            rc = dt_fail(err, DT_INVALID, "%s: tensor %s has another shape than %s, and config.json says that it is it",
                         st_path(twins[k].file), twins[k].tensor->name, first_name(ops, k));
        } else if (h->sources[at].tensor != NULL) {
            rc = check_same(&h->sources[at], &twins[k], err);
        } else {
            h->sources[at] = twins[k];
        }
        dt_text_clear(&misshapen.names);
    }
    return rc;
}

/* Files of older versions have one bias of an untied head, under the first name. */
static void share_bias(struct hf *h, const int *sorted)
{
    const struct model_ops *ops = model_find(h->chain->spec.name);
    int bias = ops->tied.bias != NULL ? find(h->chain, sorted, ops->tied.bias) : -1,
        own = bias >= 0 ? find(h->chain, sorted, ops->tied.head_bias) : -1;
    if (own >= 0 && h->sources[own].tensor == NULL) {
        h->sources[own] = h->sources[bias];
    } else if (own >= 0 && h->sources[bias].tensor == NULL) {
        h->sources[bias] = h->sources[own];
    }
}

/* Matches every tensor of the files with one of the chain. Fails with all that do not fit. */
static int match(struct hf *h, const int *sorted, struct dt_error *err)
{
    const struct model_ops *ops = model_find(h->chain->spec.name);
    struct list lists[KINDS] = {{.count = 0}};
    struct source twins[TWINS] = {{NULL, NULL}};
    int rc = 0;
    for (int i = 0; i < KINDS; i++) {
        dt_text_init(&lists[i].names);
    }
    for (int i = 0; i < h->file_count && rc == 0; i++) {
        rc = match_file(h, sorted, h->files[i], lists, twins, err);
    }
    rc = rc == 0 ? match_twins(h, sorted, twins, err) : rc;
    share_bias(h, sorted);
    for (int i = 0; i < h->chain->tensor_count; i++) {
        const char *name = h->chain->tensors[i].name;
        if (h->sources[i].tensor == NULL && (ops->is_head == NULL || !ops->is_head(name))) {
            list_add(&lists[MISSING], name, "");
        }
    }
    rc = rc == 0 ? check_lists(h, lists, err) : rc;
    put_list(&h->unused, &lists[UNUSED], UNUSED_BYTES);
    for (int i = 0; i < KINDS; i++) {
        dt_text_clear(&lists[i].names);
    }
    return rc;
}

/* Opens the files of a folder. */
static int open_files(struct hf *h, struct dt_error *err)
{
    char *index = dt_format("%s/model.safetensors.index.json", h->folder),
         *single = dt_format("%s/model.safetensors", h->folder);
    int rc =
        dt_file_exists(single) ? open_file(h, "model.safetensors", err)
        : dt_file_exists(index)
            ? open_index(h, index, err)
            : dt_fail(err, DT_NOT_FOUND, "%s: neither model.safetensors nor model.safetensors.index.json", h->folder);
    free(index);
    free(single);
    return rc;
}

/* A folder of which no file is open yet. */
static struct hf *new_folder(const char *folder)
{
    struct hf *h = dt_alloc(sizeof *h);
    h->folder = dt_strdup(folder);
    dt_text_init(&h->unused);
    return h;
}

/* True if the chain's head has other sizes than config.json says. */
static bool has_new_head(const char *folder, const struct chain *chain)
{
    const struct model_ops *ops = model_find(chain->spec.name), *theirs;
    struct model_sizes sizes;
    bool same = true;
    if (ops->is_head == NULL || hf_config(folder, &theirs, &sizes, NULL, NULL) != 0 || theirs != ops) {
        return false;
    }
    for (const char *const *key = ops->head_keys; key != NULL && *key != NULL; key++) {
        same = same && model_same(ops, *key, chain->spec.sizes, sizes.bytes);
    }
    return !same;
}

int hf_open(struct hf **out, const char *folder, const struct chain *chain, struct dt_error *err)
{
    struct hf *h = new_folder(folder);
    h->chain = chain;
    h->new_head = has_new_head(folder, chain);
    h->sources = dt_alloc((size_t)chain->tensor_count * sizeof *h->sources);
    int rc = open_files(h, err);
    if (rc == 0) {
        int *sorted = sort_tensors(chain);
        rc = match(h, sorted, err);
        free(sorted);
    }
    if (rc != 0) {
        hf_close(h);
        return -1;
    }
    *out = h;
    return 0;
}

/* The tensor that has this name in our spelling. */
static struct source find_named(const struct hf *h, const struct model_ops *ops, const char *wanted)
{
    for (int i = 0; i < h->file_count; i++) {
        for (int k = 0; k < st_count(h->files[i]); k++) {
            const struct st_tensor *t = st_at(h->files[i], k);
            char name[NAME_MAX_BYTES];
            if (ops->canonical_name(t->name, name, sizeof name) && strcmp(name, wanted) == 0) {
                return (struct source){h->files[i], t};
            }
        }
    }
    return (struct source){NULL, NULL};
}

bool hf_untie(const char *folder, const struct model_ops *ops, void *sizes)
{
    if (ops->tied.key == NULL || !model_flag(ops, sizes, ops->tied.key)) {
        return false;
    }
    struct hf *h = new_folder(folder);
    bool same = true;
    if (open_files(h, NULL) == 0) {
        struct source head = find_named(h, ops, ops->tied.head), table = find_named(h, ops, ops->tied.table);
        bool both = head.tensor != NULL && table.tensor != NULL && head.tensor->dims == table.tensor->dims &&
                    memcmp(head.tensor->shape, table.tensor->shape, sizeof head.tensor->shape) == 0;
        same = !both || compare_values(&head, &table, &same, NULL) != 0 || same;
    }
    hf_close(h);
    if (!same) {
        model_set_flag(ops, sizes, ops->tied.key, false);
    }
    return !same;
}

const char *hf_unused(const struct hf *h)
{
    return dt_text_str(&h->unused);
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
    dt_text_clear(&h->unused);
    free(h->folder);
    free(h);
}

/* Reads a span of a tensor to its place in `out`, the range that the span was cut from. */
static int read_span(const struct source *s, const struct span *part, enum dt_dtype type, void *out,
                     struct dt_error *err)
{
    if (s->tensor->type == DT_I64) { /* a count */
        int64_t value;
        memcpy(&value, s->tensor->data, sizeof value);
        dt_cpu_cast(&(struct dt_cast_args){(char *)out + (size_t)part->at * dt_dtype_size(type),
                                           &(double){(double)value}, 1, type, DT_F64});
        return 0;
    }
    size_t width = dt_dtype_size(s->tensor->type);
    int rc = type == DT_F64 ? st_read_f64(s->file, s->tensor, part->first, part->count, (double *)out + part->at, err)
                            : st_read_f32(s->file, s->tensor, part->first, part->count, (float *)out + part->at, err);
    st_leave(s->file, (const char *)s->tensor->data + (size_t)part->first * width, (size_t)part->count * width);
    return rc;
}

static void clear(void *out, int64_t first, int64_t end, enum dt_dtype type)
{
    size_t size = dt_dtype_size(type);
    memset((char *)out + (size_t)first * size, 0, (size_t)(end - first) * size);
}

int hf_read_unit(const struct hf *h, int u, int64_t first, int64_t count, enum dt_dtype type, void *out,
                 struct dt_error *err)
{
    int64_t at = 0; /* tensors of a unit lie in order, with gaps between them */
    for (int i = 0; i < h->chain->tensor_count; i++) {
        const struct tensor *t = &h->chain->tensors[i];
        struct span part;
        if (t->unit != u || !tensor_span(t, first, count, &part)) {
            continue;
        }
        const struct source *s = &h->sources[i];
        assert(part.at >= at);
        clear(out, at, part.at, type);
        at = part.at + part.count;
        if (s->tensor == NULL) {
            init_span(&part, h->seed, type, out); /* a head that the folder lacks */
            continue;
        }
        if (read_span(s, &part, type, out, err) != 0) {
            return -1;
        }
    }
    clear(out, at, count, type);
    return 0;
}

bool hf_not_finite(const struct hf *h, struct dt_error *why)
{
    enum { PIECE = 4096 };
    float values[PIECE];
    for (int i = 0; i < h->chain->tensor_count; i++) {
        const struct source *s = &h->sources[i];
        for (int64_t at = 0, n; s->tensor != NULL && s->tensor->type != DT_I64 && at < s->tensor->numel; at += n) {
            n = s->tensor->numel - at < PIECE ? s->tensor->numel - at : PIECE;
            if (st_read_f32(s->file, s->tensor, at, n, values, why) != 0) {
                return true;
            }
            for (int64_t k = 0; k < n; k++) {
                if (!isfinite(values[k])) {
                    (void)dt_fail(why, DT_INVALID, "%s: tensor %s holds %s (element %lld); take a copy that does not",
                                  st_path(s->file), s->tensor->name, isnan(values[k]) ? "NaN" : "an infinity",
                                  (long long)(at + k));
                    return true;
                }
            }
        }
    }
    return false;
}
