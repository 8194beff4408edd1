/* See the header. */
#include "cmd/dtdata/progress.h"

#include "base/file.h"
#include "base/scan.h"
#include "base/text.h"
#include "worker/data/shards_set.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { PROGRESS_BYTES = 1 << 20 };

static char *path_of(const struct progress *p)
{
    return dt_format("%s/progress.json", p->folder);
}

static void write_side(const struct progress_side *s, struct dt_text *t)
{
    dt_text_printf(t,
                   "{\"complete\": %d, \"file\": %zu, \"offset\": %" PRId64 ", \"line\": %" PRId64
                   ", \"given\": %" PRId64 ", \"tally\": [",
                   s->complete, s->file, s->at.offset, s->at.line, s->given);
    for (int k = 0; k < TALLY_KINDS; k++) {
        dt_text_printf(t, "%s{\"count\": %lld, \"first\": ", k > 0 ? ", " : "", s->tally.of[k].count);
        dt_text_json(t, s->tally.of[k].first, strlen(s->tally.of[k].first));
        dt_text_puts(t, "}");
    }
    dt_text_puts(t, "]}");
}

int progress_save(const struct progress *p, struct dt_error *err)
{
    if (!p->resumes) {
        return 0;
    }
    struct dt_text t;
    dt_text_init(&t);
    dt_text_printf(&t, "{\n  \"key\": \"%016" PRIx64 "\",\n  \"train\": ", p->key);
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
    int64_t complete = number_of(tree, "complete", &good);
    good = good && complete <= SHARD_SET_MOST;
    s->complete = good ? (int)complete : 0;
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

/* Reads progress.json: 1, or 0 if there is none, or none that can be read. *same: it is of this command. */
static int read_progress(struct progress *p, bool *same)
{
    char *path = path_of(p), key[17];
    struct dt_text text;
    struct dt_error ignored;
    dt_text_init(&text);
    cJSON *tree = dt_file_exists(path) && dt_file_read_own(path, PROGRESS_BYTES, &text, &ignored) == 0
                      ? dt_scan_parse(dt_text_str(&text), text.size, path, NULL, &ignored)
                      : NULL;
    const char *given = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, "key"));
    (void)snprintf(key, sizeof key, "%016" PRIx64, p->key);
    *same = given != NULL && strcmp(given, key) == 0;
    bool good = given != NULL && read_side(cJSON_GetObjectItemCaseSensitive(tree, "train"), &p->side[SIDE_TRAIN]) &&
                read_side(cJSON_GetObjectItemCaseSensitive(tree, "val"), &p->side[SIDE_VAL]);
    cJSON_Delete(tree);
    dt_text_clear(&text);
    free(path);
    return good;
}

static int find_earlier(struct progress *p, bool overwrite, struct dt_error *err)
{
    bool same = false;
    int found = read_progress(p, &same);
    if (found && same && p->resumes) {
        return 0;
    }
    memset(p->side, 0, sizeof p->side);
    if (found && !overwrite) {
        return dt_fail(
            err, DT_INVALID,
            "%s: another command was begun here, or its files have changed since; give that command again to "
            "go on with it, or --overwrite to begin anew",
            p->folder);
    }
    return 0;
}

static bool keeps(const void *context, const char *name)
{
    const struct progress *p = context;
    static const char *const prefix[SIDES] = {"train-", "val-"};
    bool keep = strcmp(name, "lock") == 0 || strcmp(name, "progress.json") == 0;
    for (int s = 0; s < SIDES; s++) {
        size_t n = strlen(prefix[s]);
        bool of_side = strncmp(name, prefix[s], n) == 0 && strspn(name + n, "0123456789") > 0;
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
    if (flock(p->lock, LOCK_EX | LOCK_NB) != 0) {
        result = dt_fail(err, DT_INVALID, "%s: another dtdata writes there now; wait for it, or give another -o", dir);
        progress_close(p, true);
        return -1;
    }
    if (find_earlier(p, overwrite, err) != 0) {
        progress_close(p, true);
        return -1;
    }
    return dt_file_remove_others(p->folder, keeps, p, err);
}

void progress_close(struct progress *p, bool keep)
{
    if (p->folder != NULL && !keep) {
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
