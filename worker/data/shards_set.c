/* See the header. */
#include "worker/data/shards_set.h"

#include "base/file.h"
#include "base/scan.h"
#include "base/text.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *shard_set_path(const struct shard_set *s, int number, const char *suffix)
{
    return dt_format("%s/%s-%05d%s", s->dir, s->prefix, number, suffix);
}

char *shard_set_work_path(const struct shard_set *s, int number, const char *suffix)
{
    return dt_format("%s/" SHARD_WORK_FOLDER "/%s-%05d%s", s->dir, s->prefix, number, suffix);
}

#define LIST_END "-shards.json"
#define COUNT_NAME "%.*s" LIST_END /* of a prefix */
enum { NUMBER_DIGITS = 5, COUNT_BYTES = 100 };

static char *count_path(const struct shard_set *s)
{
    return dt_format("%s/" COUNT_NAME, s->dir, (int)strlen(s->prefix), s->prefix);
}

static char *count_work_path(const struct shard_set *s)
{
    return dt_format("%s/" SHARD_WORK_FOLDER "/" COUNT_NAME, s->dir, (int)strlen(s->prefix), s->prefix);
}

static const char *last_suffix(const struct shard_set *s)
{
    int i = 0;
    while (s->suffixes[i + 1] != NULL) {
        i++;
    }
    return s->suffixes[i];
}

int shard_set_open(struct shard_set *s, const char *dir, const char *prefix, const char *const *suffixes,
                   bool overwrite, struct dt_error *err)
{
    *s = (struct shard_set){.dir = dt_strdup(dir), .prefix = dt_strdup(prefix), .suffixes = suffixes};
    char *work = dt_format("%s/" SHARD_WORK_FOLDER, dir), *first = shard_set_path(s, 0, last_suffix(s));
    int result = dt_file_mkdirs(dir, err);
    if (result == 0 && !overwrite && dt_file_exists(first)) {
        result =
            dt_fail(err, DT_INVALID, "%s: is there already; choose another folder with -o, or give --overwrite", first);
    }
    result = result == 0 ? dt_file_mkdirs(work, err) : result;
    free(first);
    free(work);
    if (result != 0) {
        shard_set_close(s, 0);
    }
    return result;
}

/* The name of an earlier run's file until all of ours have their names. */
static char *aside_path(const struct shard_set *s, int number, const char *suffix)
{
    char *tail = dt_format("%s.old-%ld", suffix, (long)getpid());
    char *path = shard_set_path(s, number, tail);
    free(tail);
    return path;
}

/* Sets the earlier run's file aside, and puts ours in its place. After an error the earlier file is
 * back. */
static int replace_one(const struct shard_set *s, int number, const char *suffix, struct dt_error *err)
{
    char *path = shard_set_path(s, number, suffix), *aside = aside_path(s, number, suffix),
         *from = shard_set_work_path(s, number, suffix);
    int result = rename(path, aside) == 0 || errno == ENOENT ? 0 : dt_fail_errno(err, "%s", path);
    if (result == 0 && rename(from, path) != 0) {
        result = dt_fail_errno(err, "%s", path);
        (void)rename(aside, path);
    }
    free(from);
    free(aside);
    free(path);
    return result;
}

/* Ends the replacement of the first `count` files. done: removes the earlier files. Otherwise it removes
 * ours, and puts the earlier ones back. */
static void settle_replaced(const struct shard_set *s, int count, bool done)
{
    for (int number = 0; count > 0; number++) {
        for (int i = 0; s->suffixes[i] != NULL && count > 0; i++, count--) {
            char *path = shard_set_path(s, number, s->suffixes[i]), *aside = aside_path(s, number, s->suffixes[i]);
            if (done) {
                (void)unlink(aside);
            } else if (rename(aside, path) != 0) {
                (void)unlink(path);
            }
            free(aside);
            free(path);
        }
    }
}

static void remove_one(char *path)
{
    (void)unlink(path);
    free(path);
}

/* Removes the files of an earlier run that has more of them. */
static void remove_further(const struct shard_set *s)
{
    bool there = true;
    for (int number = s->count; there; number++) {
        char *last = shard_set_path(s, number, last_suffix(s));
        there = dt_file_exists(last);
        free(last);
        for (int i = 0; there && s->suffixes[i] != NULL; i++) {
            remove_one(shard_set_path(s, number, s->suffixes[i]));
        }
    }
}

/* Writes how many files there are, before any of them gets its name: later the disk may be full. */
static int write_count(const struct shard_set *s, struct dt_error *err)
{
    char *path = count_work_path(s), *text = dt_format("{\"shards\": %d}\n", s->count);
    int result = s->count > 1 ? dt_file_write(path, text, strlen(text), err) : 0;
    free(text);
    free(path);
    return result;
}

static int name_count(const struct shard_set *s, struct dt_error *err)
{
    char *from = count_work_path(s), *path = count_path(s);
    int failed = s->count > 1 ? rename(from, path) : unlink(path) != 0 && errno != ENOENT;
    int result = failed ? dt_fail_errno(err, "%s", path) : 0;
    free(path);
    free(from);
    return result;
}

int shard_set_commit(struct shard_set *s, struct dt_error *err)
{
    int replaced = 0;
    if (write_count(s, err) != 0) {
        return -1;
    }
    for (int number = 0; number < s->count; number++) {
        for (int i = 0; s->suffixes[i] != NULL; i++, replaced++) {
            if (replace_one(s, number, s->suffixes[i], err) != 0) {
                settle_replaced(s, replaced, false);
                return -1;
            }
        }
    }
    settle_replaced(s, replaced, true);
    s->named = s->count;
    if (name_count(s, err) != 0) {
        return -1;
    }
    remove_further(s);
    return dt_file_sync_dir(s->dir, err);
}

/* The bytes before the number in DIR/PREFIX-00000.bin; 0: the name is another one. */
static size_t numbered(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path, *dot = strrchr(name, '.');
    if (dot == NULL || dot - name < NUMBER_DIGITS + 2 || dot[-NUMBER_DIGITS - 1] != '-') {
        return 0;
    }
    for (int i = 1; i <= NUMBER_DIGITS; i++) {
        if (!isdigit((unsigned char)dot[-i])) {
            return 0;
        }
    }
    return (size_t)(dot - path) - NUMBER_DIGITS - 1;
}

/* How many files were made together; 0: nothing says it. */
static int made_together(const char *list)
{
    struct dt_text text;
    struct dt_error ignored;
    int count = 0;
    dt_text_init(&text);
    if (dt_file_exists(list) && dt_file_read_own(list, COUNT_BYTES, &text, &ignored) == 0) {
        cJSON *tree = dt_scan_parse(dt_text_str(&text), text.size, list, NULL, &ignored);
        const cJSON *shards = cJSON_GetObjectItemCaseSensitive(tree, "shards");
        if (cJSON_IsNumber(shards) && shards->valuedouble >= 1 && shards->valuedouble <= SHARD_SET_MOST) {
            count = (int)shards->valuedouble;
        }
        cJSON_Delete(tree);
    }
    dt_text_clear(&text);
    return count;
}

bool shard_set_is_list(const char *path)
{
    return dt_text_ends_with(path, LIST_END) && made_together(path) > 0;
}

static int check_one(const char *path, size_t prefix, struct dt_error *err)
{
    char *list = dt_format(COUNT_NAME, (int)prefix, path);
    int count = made_together(list), result = 0;
    for (int number = 0; number < count && result == 0; number++) {
        char *one = dt_format("%.*s-%05d%s", (int)prefix, path, number, strrchr(path, '.'));
        if (!dt_file_exists(one)) {
            result =
                dt_fail(err, DT_INVALID,
                        "%s: is missing: %d shards were made together, as %s says; copy it, too, or remove %s to do "
                        "without it",
                        one, count, list, list);
        }
        free(one);
    }
    free(list);
    return result;
}

int shard_set_check(char *const *paths, size_t count, struct dt_error *err)
{
    int result = 0;
    for (size_t i = 0, prefix, last = 0; i < count && result == 0; i++, last = prefix) {
        prefix = numbered(paths[i]);
        bool same = i > 0 && prefix == last && strncmp(paths[i], paths[i - 1], prefix) == 0;
        result = prefix > 0 && !same ? check_one(paths[i], prefix, err) : 0;
    }
    return result;
}

void shard_set_close(struct shard_set *s, int from)
{
    for (int number = from > s->named ? from : s->named; number < s->count; number++) {
        for (int i = 0; s->suffixes[i] != NULL; i++) {
            remove_one(shard_set_work_path(s, number, s->suffixes[i]));
        }
    }
    if (s->dir != NULL) {
        remove_one(count_work_path(s)); /* of a commit that failed */
        char *work = dt_format("%s/" SHARD_WORK_FOLDER, s->dir);
        (void)rmdir(work); /* stays where something is left in it */
        free(work);
    }
    free(s->dir);
    free(s->prefix);
    *s = (struct shard_set){0};
}
