/* Writes and reads manifest.json; its form is in the header. Size and hash are checked first, then
 * cJSON parses. Then every value of the file is checked, because a checkpoint may come from
 * anywhere. */
#include "worker/checkpoints/manifest.h"

#include "base/file.h"
#include "base/scan.h"
#include "worker/engine/optimizers/optimizers.h"
#include "worker/model/hf_config.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MANIFEST_MAX_BYTES = 256 << 20, SLICES_MAX = 1 << 24 };
/* Bounds the values of a text, since a parsed value takes a hundred bytes. Most of our values have
 * at least ten bytes of text; those of config.json, which has half of the short ones, of the job and
 * of shapes may be shorter. */
enum { VALUE_LEAST_BYTES = HF_CONFIG_VALUE_BYTES, SHORT_VALUES = 2 * HF_CONFIG_SHORT_VALUES };

static const char hash_mark[] = ",\n\"hash\":\"";

uint64_t manifest_sum(const void *bytes, size_t size)
{
    return XXH3_64bits(bytes, size);
}

void manifest_slice_name(char *out, size_t out_bytes, const char *purpose, const char *name, int64_t first)
{
    (void)snprintf(out, out_bytes, "%s/%s@%" PRId64, purpose, name, first);
}

int64_t manifest_block_count(int64_t count)
{
    return (count * (int64_t)sizeof(float) + MANIFEST_BLOCK_BYTES - 1) / MANIFEST_BLOCK_BYTES;
}

void manifest_entry(struct dt_text *out, const char *file_name, int64_t size_bytes,
                    const struct checkpoint_slice *slices, int slice_count, const uint64_t *sums)
{
    dt_text_puts(out, "{\"name\":");
    dt_text_json(out, file_name, strlen(file_name));
    dt_text_printf(out, ",\"size\":%" PRId64 ",\"slices\":[", size_bytes);
    for (int i = 0; i < slice_count; i++) {
        const struct checkpoint_slice *s = &slices[i];
        dt_text_printf(out, "%s{\"purpose\":\"%s\",\"name\":", i > 0 ? ",\n" : "\n", s->purpose);
        dt_text_json(out, s->name, strlen(s->name));
        if (s->role != ROLE_TRAINED) {
            dt_text_printf(out, ",\"role\":\"%s\"", s->role == ROLE_FROZEN ? "frozen" : "buffer");
        } else if (s->states != NULL) {
            dt_text_printf(out, ",\"states\":\"%s\"", s->states);
        }
        dt_text_puts(out, ",\"shape\":[");
        for (int d = 0; d < s->dims; d++) {
            dt_text_printf(out, "%s%" PRId64, d > 0 ? "," : "", s->shape[d]);
        }
        dt_text_printf(out, "],\"first\":%" PRId64 ",\"count\":%" PRId64 ",\"sums\":[", s->first, s->count);
        int64_t blocks = manifest_block_count(s->count);
        for (int64_t b = 0; b < blocks; b++) {
            dt_text_printf(out, "%s\"%016" PRIx64 "\"", b > 0 ? "," : "", *sums++);
        }
        dt_text_puts(out, "]}");
    }
    dt_text_puts(out, "]}");
}

void manifest_file_name(char out[MANIFEST_FILE_NAME_BYTES], int rank, int ranks)
{
    (void)snprintf(out, MANIFEST_FILE_NAME_BYTES, "slices-%05d-of-%05d.safetensors", rank, ranks);
}

int manifest_entry_check(const char *entry, int rank, int ranks, int64_t *size_bytes, struct dt_error *err)
{
    char expected[MANIFEST_FILE_NAME_BYTES];
    manifest_file_name(expected, rank, ranks);
    cJSON *root = entry != NULL && entry[0] == '{' ? cJSON_ParseWithOpts(entry, NULL, true) : NULL;
    const char *name = manifest_read_string(root, "name");
    bool right = name != NULL && strcmp(name, expected) == 0 &&
                 cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(root, "slices")) &&
                 manifest_read_count(root, "size", size_bytes, err) == 0;
    cJSON_Delete(root);
    return right ? 0 : dt_fail(err, DT_INTERNAL, "checkpoint: rank %d of %d sent no list of its slices", rank, ranks);
}

void manifest_end(struct dt_text *out, const char *const *entries, int entry_count)
{
    for (int i = 0; i < entry_count; i++) {
        dt_text_printf(out, "%s%s", i > 0 ? ",\n" : "", entries[i]);
    }
    dt_text_puts(out, "]");
    uint64_t hash = XXH3_64bits(out->data, out->size);
    dt_text_printf(out, "%s%016" PRIx64 "\"}\n", hash_mark, hash);
}

void manifest_text(struct dt_text *out, const struct checkpoint_state *state, const char *const *entries,
                   int entry_count)
{
    manifest_head(out, state);
    manifest_end(out, entries, entry_count);
}

/* Finds the hash at the end, and compares it with that of the text before it. */
static int check_hash(const struct dt_text *text, struct dt_error *err)
{
    size_t tail = strlen(hash_mark) + 16 + strlen("\"}\n");
    const char *p = text->size >= tail ? text->data + text->size - tail : NULL;
    if (p == NULL || memcmp(p, hash_mark, strlen(hash_mark)) != 0) {
        return dt_fail(err, DT_INVALID, "ends too early or was changed");
    }
    char expected[24], *hex = expected;
    (void)snprintf(expected, sizeof expected, "%016" PRIx64,
                   (uint64_t)XXH3_64bits(text->data, (size_t)(p - text->data)));
    if (memcmp(p + strlen(hash_mark), hex, 16) != 0) {
        return dt_fail(err, DT_INVALID, "hash %.16s, expected %s; it was changed", p + strlen(hash_mark), expected);
    }
    return 0;
}

/* A member of the text exactly as it was written, with its spelling of numbers. */
static const char *member_of(struct dt_arena *arena, const struct dt_text *text, const char *name)
{
    struct dt_scan_span key, value;
    for (size_t at = 0; dt_scan_member(text->data, text->size, &at, &key, &value);) {
        if (key.size == strlen(name) && memcmp(key.at, name, key.size) == 0) {
            return dt_arena_printf(arena, "%.*s", (int)value.size, value.at);
        }
    }
    return "null";
}

/* A hash table from names to tensors. Tensors are numbered in the order of first appearance. */
struct names {
    int *slots;
    size_t capacity;
};

static int find_tensor(struct manifest *m, struct names *names, const char *name, int dims, const int64_t *shape,
                       int64_t numel, struct dt_error *err)
{
    size_t at = (size_t)XXH3_64bits(name, strlen(name)) & (names->capacity - 1);
    for (; names->slots[at] != 0; at = (at + 1) & (names->capacity - 1)) {
        struct manifest_tensor *t = &m->tensors[names->slots[at] - 1];
        if (strcmp(t->name, name) == 0) {
            if (t->dims != dims || memcmp(t->shape, shape, (size_t)dims * sizeof shape[0]) != 0) {
                return dt_fail(err, DT_INVALID, "%s: two shapes", name);
            }
            return names->slots[at] - 1;
        }
    }
    struct manifest_tensor *t = &m->tensors[m->tensor_count];
    t->name = dt_arena_strdup(&m->arena, name);
    t->dims = dims;
    memcpy(t->shape, shape, (size_t)dims * sizeof shape[0]);
    t->numel = numel;
    names->slots[at] = ++m->tensor_count;
    return m->tensor_count - 1;
}

/* The state of a communication hook: of few tensors, and some of it by each rank. */
static const char *comm_purpose(const char *purpose, struct dt_arena *arena)
{
    long long rank = -1;
    bool error = strncmp(purpose, CHECKPOINT_COMM_ERROR, strlen(CHECKPOINT_COMM_ERROR)) == 0 &&
                 dt_parse_int64(purpose + strlen(CHECKPOINT_COMM_ERROR), &rank) && rank >= 0;
    return error || strcmp(purpose, CHECKPOINT_COMM_Q) == 0 ? dt_arena_strdup(arena, purpose) : NULL;
}

static bool is_comm(const struct manifest_slice *s)
{
    return strncmp(s->purpose, "comm_", 5) == 0;
}

static int read_slice(struct manifest *m, struct names *names, const cJSON *item, int file, struct dt_error *err)
{
    struct manifest_slice *s = &m->slices[m->slice_count];
    const char *purpose = manifest_read_string(item, "purpose"), *name = manifest_read_string(item, "name");
    const cJSON *shape_item = cJSON_GetObjectItemCaseSensitive(item, "shape"),
                *sums = cJSON_GetObjectItemCaseSensitive(item, "sums"), *one;
    int64_t shape[4] = {0}, numel = 1;
    int dims = 0;
    if (purpose != NULL) { /* equal purposes are one string, but for those of hooks */
        s->purpose = strcmp(purpose, "weight") == 0 ? "weight" : optimizer_state_named(purpose);
        s->purpose = s->purpose != NULL ? s->purpose : comm_purpose(purpose, &m->arena);
    }
    if (s->purpose == NULL || name == NULL || *name == 0 || !cJSON_IsArray(shape_item) || !cJSON_IsArray(sums)) {
        return dt_fail(err, DT_INVALID, "a slice without purpose, name, shape or sums");
    }
    cJSON_ArrayForEach(one, shape_item)
    {
        if (dims == 4 || !cJSON_IsNumber(one) || !(one->valuedouble >= 1 && one->valuedouble <= 1e12) ||
            numel > (int64_t)(9e15 / one->valuedouble)) {
            return dt_fail(err, DT_INVALID, "%s: shape out of range", name);
        }
        shape[dims] = (int64_t)one->valuedouble;
        numel *= shape[dims++];
    }
    if (manifest_read_count(item, "first", &s->first, err) != 0 ||
        manifest_read_count(item, "count", &s->count, err) != 0) {
        return dt_wrap(err, "%s", name);
    }
    int64_t blocks = (s->count * (int64_t)sizeof(float) + MANIFEST_BLOCK_BYTES - 1) / MANIFEST_BLOCK_BYTES;
    if (s->count < 1 || s->first > numel - s->count || cJSON_GetArraySize(sums) != blocks) {
        return dt_fail(err, DT_INVALID, "%s: elements %" PRId64 "..%" PRId64 " of %" PRId64 " with %d checksums", name,
                       s->first, s->first + s->count, numel, cJSON_GetArraySize(sums));
    }
    uint64_t *values = dt_arena_alloc(&m->arena, (size_t)blocks * sizeof *values);
    s->sum_count = 0;
    cJSON_ArrayForEach(one, sums)
    {
        if (!manifest_is_hash(cJSON_GetStringValue(one))) {
            return dt_fail(err, DT_INVALID, "%s: a checksum that is none", name);
        }
        values[s->sum_count++] = strtoull(one->valuestring, NULL, 16);
    }
    s->sums = values;
    s->file = file;
    s->tensor = find_tensor(m, names, name, dims, shape, numel, err);
    if (s->tensor < 0) {
        return -1;
    }
    struct manifest_tensor *t = &m->tensors[s->tensor];
    const char *states = manifest_read_string(item, "states");
    t->stateless |= manifest_read_string(item, "role") != NULL;
    t->states = states != NULL && t->states == NULL ? dt_arena_strdup(&m->arena, states) : t->states;
    m->slice_count++;
    return 0;
}

static bool plain_name(const char *name)
{
    return name != NULL && name[0] != 0 && name[0] != '.' && strchr(name, '/') == NULL && strlen(name) < 128;
}

static int compare_slices(const void *a, const void *b)
{
    const struct manifest_slice *x = a, *y = b;
    int by = strcmp(x->purpose, y->purpose);
    if (by == 0) {
        by = (x->tensor > y->tensor) - (x->tensor < y->tensor);
    }
    return by != 0 ? by : (x->first > y->first) - (x->first < y->first);
}

/* Is the word in a list such as "exp_avg,exp_avg_sq"? */
static bool in_list(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (; *list != 0; list += strcspn(list, ","), list += *list == ',') {
        if (strncmp(list, word, length) == 0 && (list[length] == ',' || list[length] == 0)) {
            return true;
        }
    }
    return false;
}

/* Has the tensor slices of a purpose? All tensors have weights; stateless ones have nothing else. */
static bool has_purpose(const struct manifest_tensor *t, const char *purpose)
{
    return strcmp(purpose, "weight") == 0 || (!t->stateless && (t->states == NULL || in_list(t->states, purpose)));
}

/* The next tensor, from `at` on, for which a purpose has slices. */
static int next_covered(const struct manifest *m, const char *purpose, int at)
{
    while (at < m->tensor_count && !has_purpose(&m->tensors[at], purpose)) {
        at++;
    }
    return at;
}

/* Checks that no two slices of a tensor and purpose overlap. */
static int check_overlap(struct manifest *m, struct dt_error *err)
{
    for (int i = 1; i < m->slice_count; i++) {
        const struct manifest_slice *a = &m->slices[i - 1], *b = &m->slices[i];
        bool one = a->tensor == b->tensor && strcmp(a->purpose, b->purpose) == 0;
        if (one && b->first < a->first + a->count) {
            return dt_fail(err, DT_INVALID, "%s: %s has an overlap at element %" PRId64, m->tensors[b->tensor].name,
                           b->purpose, b->first);
        }
    }
    return 0;
}

/* Checks that the slices of each purpose, but for those of hooks, cover each of its tensors exactly once. */
static int check_cover(struct manifest *m, struct dt_error *err)
{
    int next_tensor = 0;
    int64_t covered = 0;
    const char *purpose = NULL;
    for (int i = 0; i <= m->slice_count; i++) {
        while (i < m->slice_count && is_comm(&m->slices[i])) {
            i++;
        }
        const struct manifest_slice *s = i < m->slice_count ? &m->slices[i] : NULL;
        if (purpose != NULL && next_tensor < m->tensor_count && covered == m->tensors[next_tensor].numel) {
            next_tensor = next_covered(m, purpose, next_tensor + 1);
            covered = 0;
        }
        if (s == NULL || purpose != s->purpose) {
            if (purpose != NULL && next_tensor != m->tensor_count) {
                return dt_fail(err, DT_INVALID, "%s: %s covers only %" PRId64 " elements", m->tensors[next_tensor].name,
                               purpose, covered);
            }
            purpose = s != NULL ? s->purpose : NULL;
            next_tensor = purpose != NULL ? next_covered(m, purpose, 0) : 0;
            covered = 0;
        }
        if (s == NULL) {
            break;
        }
        if (s->tensor != next_tensor || s->first != covered) {
            return dt_fail(err, DT_INVALID, "%s: %s has a gap or an overlap at element %" PRId64,
                           m->tensors[s->tensor].name, purpose, s->first);
        }
        covered += s->count;
    }
    if (m->slice_count == 0) {
        return dt_fail(err, DT_INVALID, "no slices");
    }
    return 0;
}

static int compare_file_names(const void *a, const void *b)
{
    return strcmp(((const struct manifest_file *)a)->name, ((const struct manifest_file *)b)->name);
}

/* Fails if a file is listed twice. */
static int check_files(const struct manifest *m, struct dt_error *err)
{
    size_t size = (size_t)m->file_count * sizeof *m->files;
    struct manifest_file *sorted = dt_alloc(size);
    int rc = 0;
    memcpy(sorted, m->files, size);
    qsort(sorted, (size_t)m->file_count, sizeof *sorted, compare_file_names);
    for (int i = 1; i < m->file_count && rc == 0; i++) {
        rc = strcmp(sorted[i - 1].name, sorted[i].name) != 0
                 ? 0
                 : dt_fail(err, DT_INVALID, "%s: listed twice", sorted[i].name);
    }
    free(sorted);
    return rc;
}

static int compare_tensor_names(const void *a, const void *b)
{
    return strcmp((*(const struct manifest_tensor *const *)a)->name, (*(const struct manifest_tensor *const *)b)->name);
}

static void index_tensors(struct manifest *m)
{
    m->by_name = dt_arena_alloc(&m->arena, (size_t)m->tensor_count * sizeof *m->by_name);
    for (int i = 0; i < m->tensor_count; i++) {
        m->by_name[i] = &m->tensors[i];
    }
    qsort(m->by_name, (size_t)m->tensor_count, sizeof *m->by_name, compare_tensor_names);
}

int manifest_find(const struct manifest *m, const char *name)
{
    const struct manifest_tensor wanted = {.name = name}, *key = &wanted;
    const struct manifest_tensor **found =
        bsearch(&key, m->by_name, (size_t)m->tensor_count, sizeof *m->by_name, compare_tensor_names);
    return found != NULL ? (int)(*found - m->tensors) : -1;
}

int manifest_slice_at(const struct manifest *m, const char *purpose, int tensor, int64_t element)
{
    int low = 0, high = m->slice_count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const struct manifest_slice *s = &m->slices[middle];
        int order = strcmp(s->purpose, purpose);
        order = order != 0 ? order : (s->tensor > tensor) - (s->tensor < tensor);
        if (order < 0 || (order == 0 && s->first + s->count <= element)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool manifest_slice_is(const struct manifest *m, int slice, const char *purpose, int tensor)
{
    return slice < m->slice_count && m->slices[slice].tensor == tensor &&
           strcmp(m->slices[slice].purpose, purpose) == 0;
}

static int read_files(struct manifest *m, const cJSON *root, bool whole, struct dt_error *err)
{
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(root, "files"), *file, *slice;
    int64_t slices = 0;
    cJSON_ArrayForEach(file, files)
    {
        slices += cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(file, "slices"));
        m->file_count++;
    }
    /* each rank writes one file at most */
    if (!cJSON_IsArray(files) || (whole && slices < 1) || slices > SLICES_MAX || m->file_count > m->state.ranks) {
        return dt_fail(err, DT_INVALID, "files: missing or out of range");
    }
    m->files = dt_arena_alloc(&m->arena, (size_t)m->file_count * sizeof *m->files);
    m->slices = dt_arena_alloc(&m->arena, (size_t)slices * sizeof *m->slices);
    m->tensors = dt_arena_alloc(&m->arena, (size_t)slices * sizeof *m->tensors);
    struct names names = {.capacity = 64};
    while (names.capacity < 2 * (size_t)slices) {
        names.capacity *= 2;
    }
    names.slots = dt_arena_alloc(&m->arena, names.capacity * sizeof *names.slots);
    int i = 0;
    cJSON_ArrayForEach(file, files)
    {
        const char *name = manifest_read_string(file, "name");
        if (!plain_name(name)) {
            return dt_fail(err, DT_INVALID, "a file name that is not plain");
        }
        m->files[i].name = dt_arena_strdup(&m->arena, name);
        if (manifest_read_count(file, "size", &m->files[i].size_bytes, err) != 0) {
            return dt_wrap(err, "%s", name);
        }
        cJSON_ArrayForEach(slice, cJSON_GetObjectItemCaseSensitive(file, "slices"))
        {
            if (read_slice(m, &names, slice, i, err) != 0) {
                return dt_wrap(err, "%s", name);
            }
        }
        i++;
    }
    qsort(m->slices, (size_t)m->slice_count, sizeof *m->slices, compare_slices);
    if (check_files(m, err) != 0 || check_overlap(m, err) != 0 || (whole && check_cover(m, err) != 0)) {
        return -1;
    }
    index_tensors(m);
    return 0;
}

static int parse(struct manifest *m, const struct dt_text *text, bool whole, struct dt_error *err)
{
    *m = (struct manifest){0};
    dt_arena_init(&m->arena);
    cJSON *root = NULL;
    int result = check_hash(text, err);
    if (result == 0 && dt_scan_most_values(text->data, text->size) > text->size / VALUE_LEAST_BYTES + SHORT_VALUES) {
        result = dt_fail(err, DT_INVALID, "more values than a checkpoint's has in so much text");
    }
    if (result == 0) {
        root = cJSON_ParseWithLength(text->data, text->size);
        result = root != NULL ? 0 : dt_fail(err, DT_INVALID, "not JSON");
    }
    if (result == 0) {
        m->state.model_config = member_of(&m->arena, text, "model_config");
        result = manifest_read_state(m, root, err) == 0 && read_files(m, root, whole, err) == 0 ? 0 : -1;
    }
    cJSON_Delete(root);
    if (result != 0) {
        manifest_clear(m);
    }
    return result;
}

int manifest_parse(struct manifest *m, const struct dt_text *text, struct dt_error *err)
{
    return parse(m, text, true, err);
}

int manifest_parse_part(struct manifest *m, const struct dt_text *text, struct dt_error *err)
{
    return parse(m, text, false, err);
}

int manifest_read(struct manifest *m, const char *path, struct dt_error *err)
{
    char *file = dt_format("%s/manifest.json", path);
    struct dt_text text;
    dt_text_init(&text);
    *m = (struct manifest){0};
    int result = dt_file_read_own(file, MANIFEST_MAX_BYTES, &text, err);
    if (result == 0 && manifest_parse(m, &text, err) != 0) {
        result = dt_wrap(err, "%s", file);
    }
    dt_text_clear(&text);
    free(file);
    return result;
}

void manifest_clear(struct manifest *m)
{
    dt_arena_clear(&m->arena);
    *m = (struct manifest){0};
}
