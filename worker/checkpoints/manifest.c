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

enum { MANIFEST_MAX_BYTES = 256 << 20, NAME_MAX_BYTES = 512, SLICES_MAX = 1 << 24 };
/* most bytes of a name in the list of data, which is for messages only */
enum { DATA_NAME_BYTES = 255 };

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

static int read_count(const cJSON *object, const char *key, int64_t *out, struct dt_error *err);
/* Reads the state of reduce_lr_on_plateau, if there is some. */
static int read_plateau(struct plateau *p, const cJSON *root, struct dt_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "plateau"),
                *share = cJSON_GetObjectItemCaseSensitive(item, "share"),
                *best = cJSON_GetObjectItemCaseSensitive(item, "best");
    if (item == NULL) {
        return 0;
    }
    if (read_count(item, "checks", &p->checks, err) != 0 || read_count(item, "step", &p->step, err) != 0 ||
        read_count(item, "bad", &p->bad, err) != 0 || read_count(item, "cooldown", &p->cooldown, err) != 0) {
        return dt_wrap(err, "plateau");
    }
    bool good = cJSON_IsNumber(share) && share->valuedouble >= 0 && share->valuedouble <= 1e30 &&
                (cJSON_IsNumber(best) || cJSON_IsNull(best));
    p->share = good ? share->valuedouble : 0;
    p->best = good && cJSON_IsNumber(best) ? best->valuedouble : NAN;
    return good ? 0 : dt_fail(err, DT_INVALID, "plateau: share or best: not a number");
}

static const char *read_string(const cJSON *object, const char *key);

int manifest_entry_check(const char *entry, int rank, int ranks, int64_t *size_bytes, struct dt_error *err)
{
    char expected[MANIFEST_FILE_NAME_BYTES];
    manifest_file_name(expected, rank, ranks);
    cJSON *root = entry != NULL && entry[0] == '{' ? cJSON_ParseWithOpts(entry, NULL, true) : NULL;
    const char *name = read_string(root, "name");
    bool right = name != NULL && strcmp(name, expected) == 0 &&
                 cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(root, "slices")) &&
                 read_count(root, "size", size_bytes, err) == 0;
    cJSON_Delete(root);
    return right ? 0 : dt_fail(err, DT_INTERNAL, "checkpoint: rank %d of %d sent no list of its slices", rank, ranks);
}

/* Writes as much of a name as fits the manifest, in whole characters. An invalid byte takes three
 * bytes, or an escape of six. */
static void put_data_name(struct dt_text *out, const char *name)
{
    size_t size = strlen(name), end = 0;
    for (size_t room = DATA_NAME_BYTES; end < size;) {
        size_t shown = dt_text_visible(name + end, size - end), taken = shown > 0 ? shown : 6;
        if (taken > room) {
            break;
        }
        room -= taken;
        end += shown > 0 ? shown : 1;
    }
    dt_text_json(out, name, end);
}

void manifest_text(struct dt_text *out, const struct checkpoint_state *state, const char *const *entries,
                   int entry_count)
{
    dt_text_printf(out,
                   "{\"format\":\"dtrun-checkpoint\",\"version\":1,\n\"step\":%" PRId64 ",\"epoch\":%" PRId64
                   ",\"position\":%" PRId64 ",\"tokens\":%" PRId64 ",\"optimizer_steps\":%" PRId64 ",\"seed\":%" PRId64
                   ",\"data_hash\":\"%016" PRIx64 "\",\"ranks\":%d,\"round\":%d,\n\"run_id\":",
                   state->step, state->epoch, state->position, state->tokens, state->optimizer_steps, state->seed,
                   state->data_hash, state->ranks, state->round);
    const char *run_id = state->run_id != NULL ? state->run_id : "";
    dt_text_json(out, run_id, strlen(run_id));
    const struct horizon *h = &state->horizon;
    if (h->of.micro_batch > 0) {
        dt_text_printf(out,
                       ",\n\"horizon\":{\"micro_batch\":%" PRId64 ",\"micro_steps\":%" PRId64 ",\"samples\":%" PRId64
                       ",\"base\":%" PRId64 ",\"rows\":%" PRId64 ",\"max_steps\":%" PRId64 ",\"end\":%" PRId64 "}",
                       h->of.micro_batch, h->of.micro_steps, h->samples, h->base, h->rows, h->max_steps, h->end);
    }
    const struct scaler_state *x = &state->scaler;
    if (x->scale > 0) {
        dt_text_printf(out,
                       ",\n\"loss_scale\":{\"scale\":%.17g,\"seen\":%" PRId64 ",\"last\":%" PRId64
                       ",\"hysteresis\":%" PRId64 ",\"good\":%" PRId64 ",\"skipped\":%" PRId64
                       ",\"skipped_samples\":%" PRId64 "}",
                       x->scale, x->seen, x->last, x->hysteresis, x->good, x->skipped, x->skipped_samples);
    }
    const struct plateau *p = &state->plateau;
    if (p->checks > 0) {
        dt_text_printf(out,
                       ",\n\"plateau\":{\"checks\":%" PRId64 ",\"step\":%" PRId64 ",\"bad\":%" PRId64
                       ",\"cooldown\":%" PRId64 ",\"share\":%.17g,\"best\":",
                       p->checks, p->step, p->bad, p->cooldown, p->share);
        dt_text_printf(out, isfinite(p->best) ? "%.17g}" : "null}", p->best);
    }
    if (state->tokenizer != NULL && *state->tokenizer != 0) {
        dt_text_puts(out, ",\n\"tokenizer\":");
        dt_text_json(out, state->tokenizer, strlen(state->tokenizer));
    }
    for (int i = 0; i < state->data_count; i++) {
        const struct data_file *f = &state->data[i];
        dt_text_puts(out, i == 0 ? ",\n\"data\":[{\"name\":" : ",\n{\"name\":");
        put_data_name(out, f->name);
        dt_text_printf(out, ",\"count\":%" PRId64 ",\"hash\":\"%016" PRIx64 "\"}%s", f->count, f->hash,
                       i + 1 == state->data_count ? "]" : "");
    }
    dt_text_printf(out, ",\n\"job\":%s,\n\"model_config\":%s,\n\"files\":[", state->job != NULL ? state->job : "null",
                   state->model_config != NULL ? state->model_config : "null");
    for (int i = 0; i < entry_count; i++) {
        dt_text_printf(out, "%s%s", i > 0 ? ",\n" : "", entries[i]);
    }
    dt_text_puts(out, "]");
    uint64_t hash = XXH3_64bits(out->data, out->size);
    dt_text_printf(out, "%s%016" PRIx64 "\"}\n", hash_mark, hash);
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

static int read_count(const cJSON *object, const char *key, int64_t *out, struct dt_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 9e15) ||
        item->valuedouble != floor(item->valuedouble)) {
        return dt_fail(err, DT_INVALID, "%s: not a count", key);
    }
    *out = (int64_t)item->valuedouble;
    return 0;
}

/* Reads a whole number, which may be negative. */
static int read_whole(const cJSON *object, const char *key, double most, int64_t *out, struct dt_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble) <= most) || item->valuedouble != floor(item->valuedouble)) {
        return dt_fail(err, DT_INVALID, "%s: missing or out of range", key);
    }
    *out = (int64_t)item->valuedouble;
    return 0;
}

/* Reads the run's horizon. Checkpoints of older versions have none. */
static int read_horizon(struct horizon *h, const cJSON *root, struct dt_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "horizon");
    const struct {
        const char *key;
        /* rows: times the most epochs of job_fields.c, the product still fits int64_t */
        double most;
        int64_t *out;
    } all[] = {{"micro_batch", 1e12, &h->of.micro_batch},
               {"micro_steps", 1e6, &h->of.micro_steps},
               {"samples", 9e15, &h->samples},
               {"base", 9e15, &h->base}, /* negative if max_steps counted fewer samples than the
                                          * epochs have */
               {"rows", 9e12, &h->rows},
               {"max_steps", 1e12, &h->max_steps},
               {"end", 9e15, &h->end}};
    for (size_t i = 0; item != NULL && i < sizeof all / sizeof all[0]; i++) {
        if (read_whole(item, all[i].key, all[i].most, all[i].out, err) != 0) {
            return dt_wrap(err, "horizon");
        }
    }
    return item == NULL ||
                   (h->of.micro_batch > 0 && h->of.micro_steps > 0 && h->samples >= 0 && h->rows >= 0 && h->end >= 0)
               ? 0
               : dt_fail(err, DT_INVALID, "horizon: a number that is below 0");
}

static const char *read_string(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) && strlen(item->valuestring) < NAME_MAX_BYTES ? item->valuestring : NULL;
}

static bool is_hash(const char *text)
{
    return text != NULL && strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16;
}

static bool read_hash(const cJSON *object, const char *key, uint64_t *out)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    *out = is_hash(text) ? strtoull(text, NULL, 16) : 0;
    return is_hash(text);
}

/* Reads the files of data.train, in order. Older versions wrote one hash over all files instead. */
static int read_data(struct manifest *m, const cJSON *root, struct dt_error *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "data"), *item;
    int count = cJSON_GetArraySize(list);
    if (count > DATA_FILES_MAX) {
        return dt_fail(err, DT_INVALID, "data: %d files; at most %d", count, DATA_FILES_MAX);
    }
    struct data_file *files = dt_arena_alloc(&m->arena, (size_t)count * sizeof *files + 1);
    cJSON_ArrayForEach(item, list)
    {
        struct data_file *f = &files[m->state.data_count++];
        const char *name = read_string(item, "name");
        name = name != NULL ? name : "?"; /* older versions wrote longer names */
        if (!read_hash(item, "hash", &f->hash)) {
            return dt_fail(err, DT_INVALID, "data: %s: without hash", name);
        }
        if (read_count(item, "count", &f->count, err) != 0) {
            return dt_wrap(err, "data: %s", name);
        }
        f->name = dt_arena_strdup(&m->arena, name);
    }
    m->state.data = files;
    const char *tokenizer = read_string(root, "tokenizer");
    m->state.tokenizer = dt_arena_strdup(&m->arena, tokenizer != NULL ? tokenizer : "");
    return 0;
}

static char *print_json(struct dt_arena *arena, const cJSON *item)
{
    char *text = cJSON_PrintUnformatted(item);
    char *copy = dt_arena_strdup(arena, text != NULL ? text : "null");
    cJSON_free(text);
    return copy;
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

/* Reads the state of the loss scale, which only runs in F16 have. */
static int read_scaler(struct scaler_state *x, const cJSON *root, struct dt_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "loss_scale");
    const cJSON *scale = cJSON_GetObjectItemCaseSensitive(item, "scale");
    if (item == NULL) {
        return 0;
    }
    if (read_whole(item, "seen", 9e15, &x->seen, err) != 0 || read_whole(item, "last", 9e15, &x->last, err) != 0 ||
        read_whole(item, "hysteresis", 9e15, &x->hysteresis, err) != 0 ||
        read_whole(item, "good", 9e15, &x->good, err) != 0 ||
        read_whole(item, "skipped", 9e15, &x->skipped, err) != 0 ||
        read_whole(item, "skipped_samples", 9e15, &x->skipped_samples, err) != 0) {
        return dt_wrap(err, "loss_scale");
    }
    if (!cJSON_IsNumber(scale) || !(scale->valuedouble > 0 && scale->valuedouble < 1e39) || x->seen < 0 ||
        x->last < -1 || x->hysteresis < 1 || x->good < 0 || x->skipped < 0 || x->skipped_samples < 0) {
        return dt_fail(err, DT_INVALID, "loss_scale: out of range");
    }
    x->scale = scale->valuedouble;
    return 0;
}

static int read_state(struct manifest *m, const cJSON *root, struct dt_error *err)
{
    struct checkpoint_state *s = &m->state;
    int64_t version = 0, ranks = 0, round = 0;
    const char *format = read_string(root, "format"), *hash = read_string(root, "data_hash"),
               *run_id = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "run_id"));
    if (format == NULL || strcmp(format, "dtrun-checkpoint") != 0) {
        return dt_fail(err, DT_INVALID, "format: not a dtrun checkpoint");
    }
    if (read_count(root, "version", &version, err) != 0) {
        return -1;
    }
    if (version != 1) {
        return dt_fail(err, DT_INVALID, "version %lld: made by a newer dtrun; this one reads version 1",
                       (long long)version);
    }
    if (read_count(root, "step", &s->step, err) != 0 || read_count(root, "epoch", &s->epoch, err) != 0 ||
        read_count(root, "position", &s->position, err) != 0 || read_count(root, "tokens", &s->tokens, err) != 0 ||
        read_count(root, "optimizer_steps", &s->optimizer_steps, err) != 0 ||
        read_count(root, "ranks", &ranks, err) != 0 || read_count(root, "round", &round, err) != 0 ||
        read_horizon(&s->horizon, root, err) != 0 || read_scaler(&s->scaler, root, err) != 0 ||
        read_plateau(&s->plateau, root, err) != 0) {
        return -1;
    }
    const cJSON *seed = cJSON_GetObjectItemCaseSensitive(root, "seed");
    if (!cJSON_IsNumber(seed) || hash == NULL || strlen(hash) != 16 || run_id == NULL || ranks < 1 || ranks > 1 << 20 ||
        round > 1 << 30) {
        return dt_fail(err, DT_INVALID, "seed, data_hash, run_id, ranks or round: missing or out of range");
    }
    s->seed = (int64_t)seed->valuedouble;
    s->data_hash = strtoull(hash, NULL, 16);
    s->ranks = (int)ranks;
    s->round = (int)round;
    s->run_id = dt_arena_strdup(&m->arena, run_id);
    if (read_data(m, root, err) != 0) {
        return -1;
    }
    s->job = print_json(&m->arena, cJSON_GetObjectItemCaseSensitive(root, "job"));
    return 0;
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

/* What a communication hook keeps: of few tensors, and some of it by each rank. */
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
    const char *purpose = read_string(item, "purpose"), *name = read_string(item, "name");
    const cJSON *shape_item = cJSON_GetObjectItemCaseSensitive(item, "shape"),
                *sums = cJSON_GetObjectItemCaseSensitive(item, "sums"), *one;
    int64_t shape[4] = {0}, numel = 1;
    int dims = 0;
    if (purpose != NULL) { /* equal purposes are one string */
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
    if (read_count(item, "first", &s->first, err) != 0 || read_count(item, "count", &s->count, err) != 0) {
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
        if (!is_hash(cJSON_GetStringValue(one))) {
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
    const char *states = read_string(item, "states");
    t->stateless |= read_string(item, "role") != NULL;
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

/* Checks that the slices of each purpose, but for those of hooks, cover each of its tensors exactly once. */
static int check_cover(struct manifest *m, struct dt_error *err)
{
    qsort(m->slices, (size_t)m->slice_count, sizeof *m->slices, compare_slices);
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

static int read_files(struct manifest *m, const cJSON *root, struct dt_error *err)
{
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(root, "files"), *file, *slice;
    int64_t slices = 0;
    cJSON_ArrayForEach(file, files)
    {
        slices += cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(file, "slices"));
        m->file_count++;
    }
    /* each rank writes one file at most */
    if (!cJSON_IsArray(files) || slices < 1 || slices > SLICES_MAX || m->file_count > m->state.ranks) {
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
        const char *name = read_string(file, "name");
        if (!plain_name(name)) {
            return dt_fail(err, DT_INVALID, "a file name that is not plain");
        }
        m->files[i].name = dt_arena_strdup(&m->arena, name);
        if (read_count(file, "size", &m->files[i].size_bytes, err) != 0) {
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
    if (check_files(m, err) != 0 || check_cover(m, err) != 0) {
        return -1;
    }
    index_tensors(m);
    return 0;
}

int manifest_parse(struct manifest *m, const struct dt_text *text, struct dt_error *err)
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
        result = read_state(m, root, err) == 0 && read_files(m, root, err) == 0 ? 0 : -1;
    }
    cJSON_Delete(root);
    if (result != 0) {
        manifest_clear(m);
    }
    return result;
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
