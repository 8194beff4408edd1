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

static int made_together(const char *list);

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
            dt_fail(err, DT_USAGE, "%s: is there already; choose another folder with -o, or give --overwrite", first);
    }
    result = result == 0 ? dt_file_mkdirs(work, err) : result;
    free(first);
    free(work);
    if (result != 0) {
        shard_set_close(s, 0);
    }
    return result;
}

const char *const shard_set_token_files[] = {".bin.json", ".bin", NULL};
const char *const shard_set_row_files[] = {".safetensors", NULL};

/* The place of an earlier run's file until all of ours have their names. */
static char *aside_path(const struct shard_set *s, int number, const char *suffix)
{
    return dt_format("%s/" SHARD_WORK_FOLDER "/old-%s-%05d%s", s->dir, s->prefix, number, suffix);
}

static char *count_aside_path(const struct shard_set *s)
{
    return dt_format("%s/" SHARD_WORK_FOLDER "/old-" COUNT_NAME, s->dir, (int)strlen(s->prefix), s->prefix);
}

/* 0 where there is no file of that name, too. */
static int move_one(const char *from, const char *to, struct dt_error *err)
{
    return rename(from, to) == 0 || errno == ENOENT ? 0 : dt_fail_errno(err, "%s", to);
}

/* Sets the earlier run's file aside, and puts ours in its place. */
static int replace_one(const struct shard_set *s, int number, const char *suffix, struct dt_error *err)
{
    char *path = shard_set_path(s, number, suffix), *aside = aside_path(s, number, suffix),
         *from = shard_set_work_path(s, number, suffix);
    int result = move_one(path, aside, err);
    if (result == 0 && rename(from, path) != 0) {
        result = dt_fail_errno(err, "%s", path);
    }
    free(from);
    free(aside);
    free(path);
    return result;
}

/* Takes replace_one back, as far as it came. */
static int restore_one(const struct shard_set *s, int number, const char *suffix, struct dt_error *err)
{
    char *path = shard_set_path(s, number, suffix), *aside = aside_path(s, number, suffix),
         *from = shard_set_work_path(s, number, suffix);
    int result = dt_file_exists(from) ? 0 : move_one(path, from, err);
    result = result == 0 ? move_one(aside, path, err) : result;
    free(from);
    free(aside);
    free(path);
    return result;
}

/* True if a file of the number has its name, or is set aside. */
static bool is_there(const struct shard_set *s, int number, bool aside_too)
{
    bool there = false;
    for (int i = 0; s->suffixes[i] != NULL && !there; i++) {
        char *path = shard_set_path(s, number, s->suffixes[i]), *aside = aside_path(s, number, s->suffixes[i]);
        there = dt_file_exists(path) || (aside_too && dt_file_exists(aside));
        free(aside);
        free(path);
    }
    return there;
}

/* Sets the files aside of an earlier run that has more of them, or takes them back. */
static int move_further(const struct shard_set *s, bool back, struct dt_error *err)
{
    int result = 0;
    for (int number = s->count; result == 0 && is_there(s, number, back); number++) {
        for (int i = 0; s->suffixes[i] != NULL && result == 0; i++) {
            char *path = shard_set_path(s, number, s->suffixes[i]), *aside = aside_path(s, number, s->suffixes[i]);
            result = move_one(back ? aside : path, back ? path : aside, err);
            free(aside);
            free(path);
        }
    }
    return result;
}

static void remove_one(char *path)
{
    (void)unlink(path);
    free(path);
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

/* The list that says that files are getting their names; that of an earlier run is set aside. What a run has left that
 * was killed while it wrote the list is removed. */
static int write_mark(const struct shard_set *s, struct dt_error *err)
{
    char *path = count_path(s), *aside = count_aside_path(s),
         *text = dt_format("{\"shards\": %d, \"complete\": false}\n", s->count);
    bool marked = made_together(path) < 0; /* by a run that was killed, without any file that could be asked */
    int result = marked ? 0 : move_one(path, aside, err);
    dt_file_remove_cut(s->dir, (const char *const[]){strrchr(path, '/') + 1, NULL});
    result = result == 0 ? dt_file_write(path, text, strlen(text), err) : result;
    free(text);
    free(aside);
    free(path);
    return result;
}

int shard_set_name(struct shard_set *s, struct dt_error *err)
{
    struct dt_error ignored;
    int result = write_count(s, err) == 0 ? write_mark(s, err) : -1;
    for (int number = 0; number < s->count && result == 0; number++) {
        for (int i = 0; s->suffixes[i] != NULL && result == 0; i++) {
            result = replace_one(s, number, s->suffixes[i], err);
        }
    }
    result = result == 0 ? move_further(s, false, err) : result;
    result = result == 0 ? dt_file_sync_dir(s->dir, err) : result;
    if (result != 0) {
        (void)shard_set_unname(s, &ignored);
    } else {
        s->named = s->count;
    }
    return result;
}

int shard_set_unname(struct shard_set *s, struct dt_error *err)
{
    char *path = count_path(s), *aside = count_aside_path(s);
    int result = 0;
    for (int number = 0; number < s->count && result == 0; number++) {
        for (int i = 0; s->suffixes[i] != NULL && result == 0; i++) {
            result = restore_one(s, number, s->suffixes[i], err);
        }
    }
    result = result == 0 ? move_further(s, true, err) : result;
    if (result == 0 && made_together(path) < 0) {
        (void)unlink(path);
    }
    result = result == 0 ? move_one(aside, path, err) : result;
    s->named = 0;
    free(aside);
    free(path);
    return result == 0 ? dt_file_sync_dir(s->dir, err) : -1;
}

/* The list that says how many files there are takes the place of the mark. */
static int name_count(const struct shard_set *s, struct dt_error *err)
{
    char *from = count_work_path(s), *path = count_path(s);
    int result = 0;
    if (s->count <= 1) {
        result = unlink(path) == 0 || errno == ENOENT ? 0 : dt_fail_errno(err, "%s", path);
    } else if (made_together(path) < 0) {
        result = dt_file_exists(from) ? 0 : write_count(s, err);
        result = result == 0 && rename(from, path) != 0 ? dt_fail_errno(err, "%s", path) : result;
    }
    free(path);
    free(from);
    return result;
}

int shard_set_settle(const struct shard_set *s, struct dt_error *err)
{
    bool there = true;
    if (name_count(s, err) != 0) {
        return -1;
    }
    for (int number = 0; number < s->count || there; number++) { /* those set aside, also of higher numbers */
        there = false;
        for (int i = 0; s->suffixes[i] != NULL; i++) {
            char *aside = aside_path(s, number, s->suffixes[i]);
            there = unlink(aside) == 0 || there;
            free(aside);
        }
    }
    remove_one(count_aside_path(s));
    return dt_file_sync_dir(s->dir, err);
}

int shard_set_commit(struct shard_set *s, struct dt_error *err)
{
    return shard_set_name(s, err) == 0 ? shard_set_settle(s, err) : -1;
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

/* How many files were made together; 0: nothing says it; -1: they are getting their names. */
static int made_together(const char *list)
{
    struct dt_text text;
    struct dt_error ignored;
    int count = 0;
    dt_text_init(&text);
    if (dt_file_exists(list) && dt_file_read_own(list, COUNT_BYTES, &text, &ignored) == 0) {
        cJSON *tree = dt_scan_parse(dt_text_str(&text), text.size, list, NULL, &ignored);
        const cJSON *shards = cJSON_GetObjectItemCaseSensitive(tree, "shards");
        if (cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(tree, "complete"))) {
            count = -1;
        } else if (cJSON_IsNumber(shards) && shards->valuedouble >= 1 && shards->valuedouble <= SHARD_SET_MOST) {
            count = (int)shards->valuedouble;
        }
        cJSON_Delete(tree);
    }
    dt_text_clear(&text);
    return count;
}

bool shard_set_is_list(const char *path)
{
    return dt_text_ends_with(path, LIST_END) && made_together(path) != 0;
}

static int check_one(const char *path, size_t prefix, struct dt_error *err)
{
    char *list = dt_format(COUNT_NAME, (int)prefix, path);
    int count = made_together(list), result = 0;
    if (count < 0) {
        result =
            dt_fail(err, DT_INVALID,
                    "%s: its shards are getting their names, or dtdata was killed meanwhile; where none runs, give "
                    "its command again",
                    list);
    }
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
