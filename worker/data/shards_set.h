/* The numbered files of one run, PREFIX-00000.bin, PREFIX-00001.bin, ...: they are made in the folder
 * `.unfinished` of their folder, and get their names together. A run that failed or was killed leaves the
 * files of an earlier run as they were. Where there are several, PREFIX-shards.json says how many, so that
 * a copy that was cut short is known. While files get their names it says that, so that a part of them is never
 * taken for all:
 *
 *   shard_set_name      list "not complete", then the earlier run's files to .unfinished/old-*, also those of higher
 *                       numbers, and ours to their places
 *   shard_set_settle    list "complete" (or none for one file), then the files of the earlier run go
 *
 * A process that is killed in between leaves what shard_set_unname takes back, or, behind the first settling of
 * several sets, what shard_set_settle ends. */
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
/* The files of token shards and of rows, the JSON of a shard before it, so a process that sees a shard finds its
 * JSON. */
extern const char *const shard_set_token_files[], *const shard_set_row_files[];
/* Gives all files their names. After an error the earlier run's files are unchanged. */
int shard_set_name(struct shard_set *s, struct dt_error *err);
/* Takes that back, as far as it came: an earlier run's files have their names again, ours lie in the work folder.
 * The set needs dir, prefix, suffixes and count. May be repeated. */
int shard_set_unname(struct shard_set *s, struct dt_error *err);
/* Ends it: the list says that the set is complete, and the files of an earlier run are removed. Needs the same of s,
 * and may be repeated. */
int shard_set_settle(const struct shard_set *s, struct dt_error *err);
/* Names and settles. */
int shard_set_commit(struct shard_set *s, struct dt_error *err);
/* The files of data, sorted by name: DT_INVALID if one is missing that was made together with any of them, or if they
 * are getting their names. Files with other names, and without a PREFIX-shards.json, are not looked at. */
int shard_set_check(char *const *paths, size_t count, struct dt_error *err);
/* True for a PREFIX-shards.json. */
bool shard_set_is_list(const char *path);
/* Removes files without their names from number `from` on, and frees. */
void shard_set_close(struct shard_set *s, int from);

#endif
