/* Counts of what was not taken as it stood, each with its first place. */
#ifndef DT_CMD_DTDATA_TALLY_H
#define DT_CMD_DTDATA_TALLY_H

#include "cmd/dtdata/corpus.h"

enum tally_kind {
    TALLY_MARKS,     /* byte order marks that were left out */
    TALLY_NO_TEXT,   /* records whose text has an escape that no text has */
    TALLY_REPLACED,  /* parts that were not UTF-8, and are U+FFFD */
    TALLY_BROKEN,    /* records that were skipped */
    TALLY_EMPTY,     /* documents without text */
    TALLY_TRUNCATED, /* rows that were longer than --max_length */
    TALLY_KINDS
};

struct tally {
    struct corpus_left_out of[TALLY_KINDS];
};

/* Counts `count` more of a kind; the first place is kept. */
void tally_add(struct tally *t, enum tally_kind kind, long long count, const char *where);
/* Adds another tally, whose places come later. */
void tally_join(struct tally *t, const struct tally *later);
struct record_form;
/* Says each count that is not 0 on standard error, in the words of the form's program. */
void tally_say(const struct tally *t, const struct record_form *form);

#endif
