/* How far a run of dtdata tokenize has come: DIR/.unfinished/progress.json, beside the shards that are complete.
 * After a kill the same command goes on from there. */
#ifndef DT_CMD_DTDATA_PROGRESS_H
#define DT_CMD_DTDATA_PROGRESS_H

#include "cmd/dtdata/work.h"

/* The place in the corpus at which the complete shards of a side end. */
struct progress_side {
    int complete; /* number of those shards */
    int shards;   /* of the whole side, once they get their names */
    size_t file;
    struct source_place at; /* a block begins here */
    int64_t given;          /* ids or rows behind it that they hold */
    struct tally tally;     /* of all before it */
};

/* How far the shards of both sides are named: NAMING_BEGUN is taken back by the next run, which then goes on or
 * begins anew; NAMING_DONE is ended by it. */
enum naming { NAMING_NONE, NAMING_BEGUN, NAMING_DONE };

struct progress {
    char *folder; /* DIR/.unfinished */
    int lock;
    uint64_t key;
    bool made;    /* DIR was not there before */
    bool settled; /* the same run was killed when its shards were complete, and they have their names now */
    bool resumes; /* false: the input is a pipe, which cannot be read again */
    enum naming naming;
    bool rows; /* the files that get their names are shard_set_row_files */
    struct progress_side side[SIDES];
};

extern const char *const progress_prefix[SIDES]; /* of the names of shards */

/* Locks the folder, where its file system has locks, and reads how far an earlier run has come. key: a hash of the command and its files. Refuses
 * if another dtdata runs there, or if another command or other files were begun, unless `overwrite`. All that is
 * not of a complete shard is removed. Shards that were getting their names when a run was killed are taken back, or
 * all have them. */
int progress_open(struct progress *p, const char *dir, uint64_t key, bool resumes, bool overwrite,
                  struct dt_error *err);
/* Writes p->side and p->naming. Does nothing where p->resumes is false, and nothing is named. */
int progress_save(const struct progress *p, struct dt_error *err);
/* Unlocks; removes the folder, unless `keep`, or what it says is needed to end the naming. */
void progress_close(struct progress *p, bool keep);

#endif
