/* See the header. The manifest is a JSON file that is replaced as a whole. A run lies complete on disk
 * before the manifest names it, and is removed after the manifest no longer does. */
#include "cmd/dtdata/train_runs.h"

#include "base/file.h"
#include "base/scan.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { WAYS = 16, MANIFEST_BYTES = 4 << 20 };

char *runs_path(const struct runs *r, int64_t number)
{
    return dt_format("%s/run-%06" PRId64, r->folder, number);
}

static char *manifest_path(const struct runs *r)
{
    return dt_format("%s/manifest.json", r->folder);
}

static int write_manifest(const struct runs *r, struct dt_error *err)
{
    struct dt_text t;
    char *path = manifest_path(r);
    dt_text_init(&t);
    dt_text_printf(&t,
                   "{\"version\": 1, \"settings\": \"%016" PRIx64 "\", \"files\": %" PRId64 ", \"blocks\": %" PRId64
                   ", \"text_bytes\": %" PRId64 ", \"next\": %" PRId64 ",\n \"runs\": [",
                   r->settings, r->files, r->blocks, r->text_bytes, r->next_number);
    for (size_t i = 0; i < r->count; i++) {
        dt_text_printf(
            &t, "%s\n  {\"number\": %" PRId64 ", \"level\": %d, \"bytes\": %" PRId64 ", \"xxh3\": \"%016" PRIx64 "\"}",
            i > 0 ? "," : "", r->rows[i].number, r->rows[i].level, r->rows[i].info.bytes, r->rows[i].info.hash);
    }
    dt_text_puts(&t, "\n]}\n");
    int result = dt_file_write(path, t.data, t.size, err);
    dt_text_clear(&t);
    free(path);
    return result;
}

/* A whole number of at least 0, or -1. */
static int64_t number_of(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) && item->valuedouble >= 0 ? (int64_t)item->valuedouble : -1;
}

static bool hash_of(const cJSON *object, const char *key, uint64_t *out)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    char *end = NULL;
    *out = text != NULL ? strtoull(text, &end, 16) : 0;
    return text != NULL && strlen(text) == 16 && *end == 0;
}

static bool take_manifest(struct runs *r, const cJSON *json)
{
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(json, "runs"), *row;
    uint64_t settings;
    if (number_of(json, "version") != 1 || !hash_of(json, "settings", &settings) || settings != r->settings ||
        !cJSON_IsArray(rows)) {
        return false;
    }
    r->files = number_of(json, "files");
    r->blocks = number_of(json, "blocks");
    r->text_bytes = number_of(json, "text_bytes");
    r->next_number = number_of(json, "next");
    r->rows = dt_alloc(((size_t)cJSON_GetArraySize(rows) + 1) * sizeof *r->rows);
    bool good = r->files >= 0 && r->blocks >= 0 && r->text_bytes >= 0 && r->next_number >= 0;
    cJSON_ArrayForEach(row, rows)
    {
        struct run_row *to = &r->rows[r->count++];
        *to = (struct run_row){.number = number_of(row, "number"), .level = (int)number_of(row, "level")};
        to->info.bytes = number_of(row, "bytes");
        good = good && hash_of(row, "xxh3", &to->info.hash) && to->number >= 0 && to->level >= 0 && to->info.bytes >= 0;
    }
    return good;
}

static void forget(struct runs *r)
{
    free(r->rows);
    r->rows = NULL;
    r->count = 0;
    r->files = r->blocks = r->text_bytes = r->next_number = 0;
}

static int read_manifest(struct runs *r, bool *other, struct dt_error *err)
{
    struct dt_text text;
    char *path = manifest_path(r);
    int result = 0;
    *other = false;
    dt_text_init(&text);
    if (dt_file_exists(path) && (result = dt_file_read_own(path, MANIFEST_BYTES, &text, err)) == 0) {
        cJSON *json = dt_scan_parse(text.data, text.size, path, NULL, NULL);
        *other = json == NULL || !take_manifest(r, json);
        cJSON_Delete(json);
    }
    if (*other) {
        forget(r);
        (void)unlink(path);
    }
    dt_text_clear(&text);
    free(path);
    return result;
}

static bool is_named(const void *context, const char *name)
{
    const struct runs *r = context;
    if (strcmp(name, "manifest.json") == 0 || strcmp(name, "lock") == 0) {
        return true;
    }
    for (size_t i = 0; i < r->count; i++) {
        char *own = dt_format("run-%06" PRId64, r->rows[i].number);
        bool same = strcmp(own, name) == 0;
        free(own);
        if (same) {
            return true;
        }
    }
    return false;
}

int runs_open(struct runs *r, const char *folder, uint64_t settings, size_t buffer_bytes, bool *other,
              struct dt_error *err)
{
    *r = (struct runs){.folder = dt_strdup(folder), .lock = -1, .buffer_bytes = buffer_bytes, .settings = settings};
    char *path = dt_format("%s/lock", folder);
    int result = dt_file_mkdirs(folder, err);
    if (result == 0 && (r->lock = dt_file_open_lock(path, err)) < 0) {
        result = -1;
    }
    /* where a file system has no locks, none is waited for */
    r->locked = result == 0 && (flock(r->lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK);
    if (result == 0 && !r->locked) {
        result = dt_fail(err, DT_IN_USE, "%s: another dtdata trains here; wait for it, or choose another -o", folder);
    }
    free(path);
    if (result == 0 && read_manifest(r, other, err) == 0 && dt_file_remove_others(folder, is_named, r, err) == 0) {
        return 0;
    }
    runs_close(r, false);
    return -1;
}

void runs_close(struct runs *r, bool remove)
{
    if (r->locked && (remove || r->count == 0)) {
        (void)dt_file_remove_tree(r->folder, NULL);
    }
    if (r->lock >= 0) {
        (void)close(r->lock);
    }
    free(r->rows);
    free(r->folder);
    *r = (struct runs){.lock = -1};
}

/* Merges some runs to a new one, which takes their place. Their files stay. */
static int merge(struct runs *r, const size_t *which, size_t count, int level, struct dt_error *err)
{
    const char **paths = dt_alloc((count + 1) * sizeof *paths);
    struct run_info *infos = dt_alloc((count + 1) * sizeof *infos);
    struct run_row merged = {.number = r->next_number++, .level = level};
    char *path = runs_path(r, merged.number);
    for (size_t i = 0; i < count; i++) {
        paths[i] = runs_path(r, r->rows[which[i]].number);
        infos[i] = r->rows[which[i]].info;
    }
    int result = run_merge(paths, infos, count, path, r->buffer_bytes, &merged.info, err);
    if (result == 0) {
        for (size_t i = count; i-- > 0;) { /* `which` ascends */
            memmove(&r->rows[which[i]], &r->rows[which[i] + 1], (r->count - which[i] - 1) * sizeof *r->rows);
            r->count--;
        }
        r->rows = dt_realloc(r->rows, (r->count + 1) * sizeof *r->rows);
        r->rows[r->count++] = merged;
    }
    for (size_t i = 0; i < count; i++) {
        free((char *)paths[i]);
    }
    free(path);
    free(infos);
    free((void *)paths);
    return result;
}

/* Merges as many runs of one level as are merged at once. 1: there were; 0; -1. */
static int merge_level(struct runs *r, struct dt_error *err)
{
    for (size_t i = 0; i < r->count; i++) {
        size_t which[WAYS], count = 0;
        for (size_t k = i; k < r->count && count < WAYS; k++) {
            if (r->rows[k].level == r->rows[i].level) {
                which[count++] = k;
            }
        }
        if (count == WAYS) {
            return merge(r, which, count, r->rows[i].level + 1, err) == 0 ? 1 : -1;
        }
    }
    return 0;
}

static int name_and_clean(struct runs *r, struct dt_error *err)
{
    return write_manifest(r, err) == 0 ? dt_file_remove_others(r->folder, is_named, r, err) : -1;
}

int runs_commit(struct runs *r, const struct run_row *added, size_t count, struct dt_error *err)
{
    r->rows = dt_realloc(r->rows, (r->count + count + 1) * sizeof *r->rows);
    for (size_t i = 0; i < count; i++) {
        r->rows[r->count++] = added[i];
    }
    int state;
    while ((state = merge_level(r, err)) == 1) {
    }
    return state < 0 ? -1 : name_and_clean(r, err);
}

int runs_finish(struct runs *r, struct dt_error *err)
{
    if (r->count == 1) {
        return 0;
    }
    size_t *which = dt_alloc((r->count + 1) * sizeof *which);
    for (size_t i = 0; i < r->count; i++) {
        which[i] = i;
    }
    int result = merge(r, which, r->count, 100, err);
    free(which);
    return result == 0 ? name_and_clean(r, err) : -1;
}
