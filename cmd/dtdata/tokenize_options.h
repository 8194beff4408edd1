/* The options of dtdata tokenize. */
#ifndef DT_CMD_DTDATA_TOKENIZE_OPTIONS_H
#define DT_CMD_DTDATA_TOKENIZE_OPTIONS_H

#include "cmd/dtdata/output.h"
#include "cmd/dtdata/work.h"

struct tokenize_options {
    const char *tokenizer, *end; /* end: null: that of the tokenizer */
    struct record_form records;
    enum source_kind format;
    const char *labels;        /* null: those of the data */
    const char *record_option; /* an option that only records have; null: none was given */
    bool regression;
    int64_t max_length;
    double val; /* -1: not given */
    int threads;
    struct output_options output;
};

/* Reads the options, and refuses those that do not go together. 0, with optind at the first path; otherwise the
 * exit code, and what is wrong was said. */
int tokenize_options_parse(struct tokenize_options *o, int argc, char **argv);
/* A hash of all that decides what is written, but for the files and the tokenizer. */
uint64_t tokenize_options_hash(const struct tokenize_options *o);

#endif
