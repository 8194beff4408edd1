/* The records of a block of .jsonl, .csv or .tsv: the text of each, its pair and its label. */
#ifndef DT_CMD_DTDATA_RECORDS_H
#define DT_CMD_DTDATA_RECORDS_H

#include "base/text.h"
#include "cmd/dtdata/source.h"
#include "cmd/dtdata/tally.h"

/* The parts of a record that are wanted, and the fate of broken ones. */
struct record_form {
    const char *text_key, *pair_key, *label_key; /* keys or columns; null: not wanted, but for text_key */
    bool replace;                                /* bytes that are not UTF-8 become U+FFFD */
    bool skip;                                   /* broken records are counted and passed over */
    bool regression;                             /* labels are any numbers */
    bool job;                                    /* the form is of a job: sentences name its keys, not options */
};

/* Options that give a form. Messages name them: "--label_column", or "data.label_key" of a job. */
enum record_option {
    RECORD_TEXT,
    RECORD_PAIR,
    RECORD_LABEL,
    RECORD_REPLACE,
    RECORD_FORMAT,
    RECORD_LENGTH,
    RECORD_PROGRAM /* "dtdata" or "train" */
};
const char *record_option(const struct record_form *form, enum record_option option);

/* The columns of a CSV or TSV: a number of fields, and the places of those that are wanted. */
struct record_columns {
    size_t count;
    size_t text, pair, label; /* from 0; of no use where the form does not want it */
};
/* Finds the columns in the header of `path`. DT_INVALID: one is missing, without a name, or there twice. */
int record_columns_find(struct record_columns *c, const struct record_form *form, enum source_kind kind,
                        const char *path, const struct dt_text *header, struct dt_error *err);

struct record {
    const char *text, *pair, *label; /* UTF-8; null: not wanted */
    size_t text_size, pair_size, label_size;
    const char *where; /* "a.jsonl: record 7", "a.csv:9" */
};
typedef int record_sink(void *context, const struct record *r, struct dt_error *err);
/* Hands the records of a block to `sink`, in order. Blank lines are passed over. A label that is a number or a
 * bool in JSON comes as its JSON text. Errors name the record. */
int records_of(const struct record_form *form, enum source_kind kind, const char *path,
               const struct record_columns *columns, const struct text_block *b, struct tally *tally, record_sink *sink,
               void *context, struct dt_error *err);

#endif
