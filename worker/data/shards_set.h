/* The numbered files of one run, PREFIX-00000.bin, PREFIX-00001.bin, ...: they are made in the folder
 * `.unfinished` of their folder, and get their names together. A run that failed or was killed leaves the
 * files of an earlier run as they were. Where there are several, PREFIX-shards.json says how many, so that
 * a copy that was cut short is known. */
#ifndef DT_WORKER_DATA_SHARDS_SET_H
#define DT_WORKER_DATA_SHARDS_SET_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define SHARD_WORK_FOLDER ".unfinished"
enum { SHARD_SET_MOST = 100000 }; /* files of a run */

struct shard_set {
    char *dir, *prefix;
    /* the files of each number, in the order in which they get their names; ends with null */
    const char *const *suffixes;
    int count; /* of numbers begun */
    int named; /* of numbers whose files have their names */
};

/* Makes the folders. Refuses if the file that gets its name last is there for number 0, unless `overwrite` is
 * set. suffixes must outlive the set. */
int shard_set_open(struct shard_set *s, const char *dir, const char *prefix, const char *const *suffixes,
                   bool overwrite, struct dt_error *err);
/* The path of a file of the set, once it has its name, and until then. The caller frees. */
char *shard_set_path(const struct shard_set *s, int number, const char *suffix);
char *shard_set_work_path(const struct shard_set *s, int number, const char *suffix);
/* Gives all files their names, and removes those of an earlier run that has more. After an error the earlier
 * run's files are unchanged, unless only PREFIX-shards.json could not get its name. */
int shard_set_commit(struct shard_set *s, struct dt_error *err);
/* The files of data, sorted by name: DT_INVALID if one is missing that was made together with any of them. Files with
 * other names, and without a PREFIX-shards.json, are not looked at. */
int shard_set_check(char *const *paths, size_t count, struct dt_error *err);
/* True for a PREFIX-shards.json. */
bool shard_set_is_list(const char *path);
/* Removes files without their names from number `from` on, and frees. */
void shard_set_close(struct shard_set *s, int from);

#endif
