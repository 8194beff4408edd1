/* How far a run of dtdata tokenize has come: DIR/.unfinished/progress.json, beside the shards that are complete.
 * After a kill the same command goes on from there. */
#ifndef DT_CMD_DTDATA_PROGRESS_H
#define DT_CMD_DTDATA_PROGRESS_H

#include "cmd/dtdata/work.h"

/* The place in the corpus at which the complete shards of a side end. */
struct progress_side {
    int complete; /* number of those shards */
    size_t file;
    struct source_place at; /* a block begins here */
    int64_t given;          /* ids or rows behind it that they hold */
    struct tally tally;     /* of all before it */
};

struct progress {
    char *folder; /* DIR/.unfinished */
    int lock;
    uint64_t key;
    bool made;    /* DIR was not there before */
    bool resumes; /* false: the input is a pipe, which cannot be read again */
    struct progress_side side[SIDES];
};

/* Locks the folder, and reads how far an earlier run has come. key: a hash of the command and its files. Refuses
 * if another dtdata runs there, or if another command or other files were begun, unless `overwrite`. All that is
 * not of a complete shard is removed. */
int progress_open(struct progress *p, const char *dir, uint64_t key, bool resumes, bool overwrite,
                  struct dt_error *err);
/* Writes p->side. Does nothing where p->resumes is false. */
int progress_save(const struct progress *p, struct dt_error *err);
/* Unlocks; removes the folder, unless `keep`. */
void progress_close(struct progress *p, bool keep);

#endif
