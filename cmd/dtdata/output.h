/* The shards of a run of dtdata tokenize: takes finished items in the order of the corpus, and notes after each
 * complete shard how far the run has come. */
#ifndef DT_CMD_DTDATA_OUTPUT_H
#define DT_CMD_DTDATA_OUTPUT_H

#include "cmd/dtdata/progress.h"
#include "cmd/dtdata/work.h"

struct output_options {
    const char *dir;
    int64_t shard_tokens;
    bool overwrite;
};

struct output;
/* Is told between two rounds of work how far a run has come. */
typedef void output_report(const struct output *o, void *context);

struct output {
    const struct work_form *form;
    struct progress *progress;
    /* of one kind; null: the other */
    struct shard_writer *shards[SIDES];
    struct row_writer *rows[SIDES];
    struct progress_side now[SIDES]; /* the block that is being written, and what of it was */
    struct tally before[SIDES];      /* of all before the block at which a run can go on */
    int64_t skip[SIDES];             /* ids or rows that an earlier run has written behind the first block */
    output_report *report;           /* null: nobody is told */
    void *report_context;
};

/* Opens the shards of both sides, and takes over those of p->side. */
int output_open(struct output *o, const struct work_form *form, const struct output_options *options,
                struct progress *p, struct dt_error *err);
/* Appends what the item holds for the sides that need it. The error of a failed item is returned. */
int output_take(struct output *o, const struct item *i, struct dt_error *err);
/* Completes all shards, and gives them their names. Refuses if a side that should have text has none. */
int output_commit(struct output *o, bool val, struct dt_error *err);
/* Numbers of ids or rows, and of shards, that were written for a side. */
int64_t output_count(const struct output *o, enum side side);
int output_shards(const struct output *o, enum side side);
/* True if shards of this run are complete. */
bool output_has_complete(const struct output *o);
/* keep: complete shards stay for the next run. */
void output_close(struct output *o, bool keep);

#endif
