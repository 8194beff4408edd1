/* Blocks of text to ids, or to labelled rows: the part of dtdata tokenize that runs in several threads. */
#ifndef DT_CMD_DTDATA_WORK_H
#define DT_CMD_DTDATA_WORK_H

#include "cmd/dtdata/coder.h"
#include "cmd/dtdata/corpus.h"
#include "cmd/dtdata/labels.h"
#include "cmd/dtdata/records.h"
#include "cmd/dtdata/row_shards.h"
#include "cmd/dtdata/source.h"
#include "cmd/dtdata/tally.h"

/* Where ids and rows go: shards for training, and those that are held out. */
enum side { SIDE_TRAIN, SIDE_VAL, SIDES };

/* The work on all blocks of a run. */
struct work_form {
    const struct corpus *corpus;
    const struct coder *coder;
    enum source_kind format; /* SOURCE_AUTO: by the names of files */
    struct record_form records;
    bool any_bytes;              /* text need not be UTF-8 */
    const struct labels *labels; /* null: there are no rows */
    int64_t max_length;          /* most ids of a row; 0: any number */
    double val;                  /* share of the rows that is held out */
};

/* A block on its way from the reader to the writer. */
struct item {
    size_t file; /* in the corpus */
    enum source_kind kind;
    struct record_columns columns;
    struct text_block block;
    bool needed[SIDES]; /* an earlier run has not written it there */
    bool failed;        /* with `err` */
    struct dt_error err;
    struct token_ids ids; /* without labels */
    struct row_list rows[SIDES];
    struct tally tally;
};
void item_clear(struct item *i);

enum source_kind work_kind(const struct work_form *form, size_t file);
/* The side of a file without labels. */
enum side work_side(const struct work_form *form, size_t file);
struct work;
struct work *work_open(const struct work_form *form);
/* Fills ids, rows and tally of `count` items from their blocks, of which all but the first are joined to the one
 * before. Several threads may do this at once. */
void work_do(struct work *w, struct item *items, size_t count);
/* Between two rounds of calls. At most the first block of a round is joined to one of the round before. */
void work_round(struct work *w);
void work_close(struct work *w);

#endif
