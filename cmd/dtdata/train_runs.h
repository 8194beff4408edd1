/* The runs of one training in their folder, and the manifest that names those which count. */
#ifndef DT_CMD_DTDATA_TRAIN_RUNS_H
#define DT_CMD_DTDATA_TRAIN_RUNS_H

#include "cmd/dtdata/train_counts.h"

struct run_row {
    int64_t number; /* of the file: run-NUMBER */
    int level;      /* how often its pieces were merged */
    struct run_info info;
};

struct runs {
    char *folder;
    int lock;
    bool locked;
    size_t buffer_bytes; /* for merging */
    /* in the manifest */
    uint64_t settings;
    int64_t files, blocks; /* files counted to their end; blocks counted of the next one */
    int64_t text_bytes;
    struct run_row *rows;
    size_t count;
    int64_t next_number;
};

/* Opens and locks the folder, made if missing, reads the manifest, and removes all files that it does
 * not name. *other: the manifest was one of other settings; it is gone. DT_IN_USE if another process
 * counts there. */
int runs_open(struct runs *r, const char *folder, uint64_t settings, size_t buffer_bytes, bool *other,
              struct dt_error *err);
/* remove: with the folder, which also goes if there is no run in it. */
void runs_close(struct runs *r, bool remove);
/* The path of a run; the caller frees it. */
char *runs_path(const struct runs *r, int64_t number);
/* Adds runs that are whole on disk, merges many small ones to few, and writes the manifest. */
int runs_commit(struct runs *r, const struct run_row *added, size_t count, struct dt_error *err);
/* Merges all into one (none: an empty one), and writes the manifest. */
int runs_finish(struct runs *r, struct dt_error *err);

#endif
