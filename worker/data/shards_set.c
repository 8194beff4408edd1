/* See the header. */
#include "worker/data/shards_set.h"

#include "base/file.h"
#include "base/text.h"

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

int shard_set_commit(struct shard_set *s, struct dt_error *err)
{
    int replaced = 0;
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
    remove_further(s);
    return dt_file_sync_dir(s->dir, err);
}

void shard_set_close(struct shard_set *s, int from)
{
    for (int number = from > s->named ? from : s->named; number < s->count; number++) {
        for (int i = 0; s->suffixes[i] != NULL; i++) {
            remove_one(shard_set_work_path(s, number, s->suffixes[i]));
        }
    }
    if (s->dir != NULL) {
        char *work = dt_format("%s/" SHARD_WORK_FOLDER, s->dir);
        (void)rmdir(work); /* stays where something is left in it */
        free(work);
    }
    free(s->dir);
    free(s->prefix);
    *s = (struct shard_set){0};
}
