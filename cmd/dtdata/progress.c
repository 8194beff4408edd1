/* See the header. */
#include "cmd/dtdata/progress.h"

#include "base/file.h"
#include "base/scan.h"
#include "base/text.h"
#include "worker/data/shards_set.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { PROGRESS_BYTES = 1 << 20 };

const char *const progress_prefix[SIDES] = {"train", "val"};

static char *path_of(const struct progress *p)
{
    return dt_format("%s/progress.json", p->folder);
}

static void write_side(const struct progress_side *s, struct dt_text *t)
{
    dt_text_printf(t,
                   "{\"complete\": %d, \"shards\": %d, \"file\": %zu, \"offset\": %" PRId64 ", \"line\": %" PRId64
                   ", \"given\": %" PRId64 ", \"tally\": [",
                   s->complete, s->shards, s->file, s->at.offset, s->at.line, s->given);
    for (int k = 0; k < TALLY_KINDS; k++) {
        dt_text_printf(t, "%s{\"count\": %lld, \"first\": ", k > 0 ? ", " : "", s->tally.of[k].count);
        dt_text_json(t, s->tally.of[k].first, strlen(s->tally.of[k].first));
        dt_text_puts(t, "}");
    }
    dt_text_puts(t, "]}");
}

/* key: of the command that has made the shards. */
static int write_progress(const struct progress *p, uint64_t key, struct dt_error *err)
{
    struct dt_text t;
    dt_text_init(&t);
    dt_text_printf(&t, "{\n  \"key\": \"%016" PRIx64 "\",\n  \"naming\": %d,\n  \"rows\": %s,\n  \"train\": ", key,
                   (int)p->naming, p->rows ? "true" : "false");
    write_side(&p->side[SIDE_TRAIN], &t);
    dt_text_puts(&t, ",\n  \"val\": ");
    write_side(&p->side[SIDE_VAL], &t);
    dt_text_puts(&t, "\n}\n");
    char *path = path_of(p);
    int result = dt_file_write(path, t.data, t.size, err);
    free(path);
    dt_text_clear(&t);
    return result;
}

int progress_save(const struct progress *p, struct dt_error *err)
{
    return p->resumes || p->naming != NAMING_NONE ? write_progress(p, p->key, err) : 0;
}

/* A whole number that is not negative; *good becomes false if there is none. */
static int64_t number_of(const cJSON *tree, const char *key, bool *good)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(tree, key);
    bool whole = cJSON_IsNumber(v) && v->valuedouble >= 0 && v->valuedouble <= 9007199254740992.0;
    *good = *good && whole;
    return whole ? (int64_t)v->valuedouble : 0;
}

static bool read_side(const cJSON *tree, struct progress_side *s)
{
    bool good = true;
    int64_t complete = number_of(tree, "complete", &good), shards = number_of(tree, "shards", &good);
    good = good && complete <= SHARD_SET_MOST && shards <= SHARD_SET_MOST;
    s->complete = good ? (int)complete : 0;
    s->shards = good ? (int)shards : 0;
    s->file = (size_t)number_of(tree, "file", &good);
    s->at.offset = number_of(tree, "offset", &good);
    s->at.line = number_of(tree, "line", &good);
    s->given = number_of(tree, "given", &good);
    const cJSON *tally = cJSON_GetObjectItemCaseSensitive(tree, "tally");
    for (int k = 0; k < TALLY_KINDS; k++) {
        const cJSON *row = cJSON_GetArrayItem(tally, k);
        const char *first = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "first"));
        s->tally.of[k].count = number_of(row, "count", &good);
        (void)snprintf(s->tally.of[k].first, sizeof s->tally.of[k].first, "%s", first != NULL ? first : "");
    }
    return good;
}

/* Reads progress.json, with the key of its command: 1, or 0 if there is none, or none that can be read. */
static int read_progress(struct progress *p, uint64_t *key)
{
    char *path = path_of(p);
    struct dt_text text;
    struct dt_error ignored;
    bool good = true;
    dt_text_init(&text);
    cJSON *tree = dt_file_exists(path) && dt_file_read_own(path, PROGRESS_BYTES, &text, &ignored) == 0
                      ? dt_scan_parse(dt_text_str(&text), text.size, path, NULL, &ignored)
                      : NULL;
    const char *given = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, "key"));
    char *end = NULL;
    *key = given != NULL ? strtoull(given, &end, 16) : 0;
    int64_t naming = number_of(tree, "naming", &good);
    good = good && given != NULL && *end == 0 && naming <= NAMING_DONE &&
           read_side(cJSON_GetObjectItemCaseSensitive(tree, "train"), &p->side[SIDE_TRAIN]) &&
           read_side(cJSON_GetObjectItemCaseSensitive(tree, "val"), &p->side[SIDE_VAL]);
    p->naming = good ? (enum naming)naming : NAMING_NONE;
    p->rows = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(tree, "rows"));
    cJSON_Delete(tree);
    dt_text_clear(&text);
    free(path);
    return good;
}

/* A run was killed while its shards got their names: none of them has its name then, or all have. */
static int end_naming(struct progress *p, const char *dir, struct dt_error *err)
{
    uint64_t key;
    int result = 0;
    if (!read_progress(p, &key) || p->naming == NAMING_NONE) {
        return 0;
    }
    for (int s = 0; s < SIDES && result == 0; s++) {
        char *of[] = {dt_strdup(dir), dt_strdup(progress_prefix[s])};
        struct shard_set set = {.dir = of[0],
                                .prefix = of[1],
                                .suffixes = p->rows ? shard_set_row_files : shard_set_token_files,
                                .count = p->side[s].shards};
        result = p->naming == NAMING_BEGUN ? shard_set_unname(&set, err) : shard_set_settle(&set, err);
        free(of[0]);
        free(of[1]);
    }
    if (result == 0 && p->naming == NAMING_DONE) {
        p->settled = key == p->key;
        char *path = path_of(p);
        (void)unlink(path);
        free(path);
    }
    if (result == 0 && p->naming == NAMING_BEGUN) {
        p->naming = NAMING_NONE;
        result = write_progress(p, key, err);
    }
    p->naming = NAMING_NONE;
    return result;
}

static int find_earlier(struct progress *p, bool overwrite, struct dt_error *err)
{
    uint64_t key;
    int found = read_progress(p, &key);
    if (found && key == p->key && p->resumes) {
        return 0;
    }
    memset(p->side, 0, sizeof p->side);
    if (found && !overwrite) {
        return dt_fail(
            err, DT_USAGE,
            "%s: another command was begun here, or its files have changed since; give that command again to "
            "go on with it, or --overwrite to begin anew",
            p->folder);
    }
    return 0;
}

static bool keeps(const void *context, const char *name)
{
    const struct progress *p = context;
    bool keep = strcmp(name, "lock") == 0 || strcmp(name, "progress.json") == 0;
    for (int s = 0; s < SIDES; s++) {
        size_t n = strlen(progress_prefix[s]) + 1;
        bool of_side =
            strncmp(name, progress_prefix[s], n - 1) == 0 && name[n - 1] == '-' && strspn(name + n, "0123456789") > 0;
        keep = keep || (of_side && strtol(name + n, NULL, 10) < p->side[s].complete && strstr(name, ".tmp-") == NULL);
    }
    return keep;
}

int progress_open(struct progress *p, const char *dir, uint64_t key, bool resumes, bool overwrite, struct dt_error *err)
{
    *p = (struct progress){
        .folder = dt_format("%s/" SHARD_WORK_FOLDER, dir), .lock = -1, .key = key, .resumes = resumes};
    char *lock = dt_format("%s/lock", p->folder);
    p->made = !dt_file_exists(dir);
    int result = dt_file_mkdirs(dir, err) == 0 ? dt_file_mkdirs(p->folder, err) : -1;
    p->lock = result == 0 ? dt_file_open_lock(lock, err) : -1;
    free(lock);
    if (p->lock < 0) {
        free(p->folder);
        p->folder = NULL;
        return -1;
    }
    if (flock(p->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) { /* otherwise there are no locks here */
        result = dt_fail(err, DT_INVALID, "%s: another dtdata writes there now; wait for it, or give another -o", dir);
        progress_close(p, true);
        return -1;
    }
    if (end_naming(p, dir, err) != 0 || find_earlier(p, overwrite, err) != 0) {
        progress_close(p, true);
        return -1;
    }
    return dt_file_remove_others(p->folder, keeps, p, err);
}

void progress_close(struct progress *p, bool keep)
{
    if (p->folder != NULL && !keep && p->naming != NAMING_DONE) {
        (void)dt_file_remove_tree(p->folder, NULL);
        if (p->made) { /* and holds nothing: no run is left that has written there */
            *strrchr(p->folder, '/') = 0;
            (void)rmdir(p->folder);
        }
    }
    if (p->lock >= 0) {
        (void)close(p->lock);
    }
    free(p->folder);
    *p = (struct progress){.lock = -1};
}
