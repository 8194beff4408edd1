/* A run that makes token shards, or labelled rows, of texts: that of dtdata tokenize, and that of a job whose data are
 * texts. */
#ifndef DT_CMD_DTDATA_TOKENIZE_RUN_H
#define DT_CMD_DTDATA_TOKENIZE_RUN_H

#include "cmd/dtdata/output.h"
#include "cmd/dtdata/progress.h"
#include "cmd/dtdata/tokenize_options.h"

struct tokenize_run {
    struct tokenize_options o;
    struct corpus corpus;
    struct coder coder;
    struct labels labels;
    struct work_form form;
    struct progress progress;
    struct output output;
    bool piped;
    bool opened;                       /* the output has taken over what an earlier run has completed */
    size_t held_out;                   /* files */
    bool val;                          /* something is held out */
    bool usage;                        /* what failed is how the run was asked for, and not what it has read */
    int64_t classes;                   /* of the model that the rows are for; 0: unknown */
    const struct corpus *label_corpus; /* the files whose labels are the classes; null: those of `corpus` */
    output_report *report;             /* null: nobody is told */
    void *report_context;
};

/* Zeros, but for what has no zero. The options follow. */
void tokenize_run_init(struct tokenize_run *r);
/* Opens the tokenizer, finds the files below the paths, and holds some out. */
int tokenize_run_open(struct tokenize_run *r, char *const *paths, size_t count, struct dt_error *err);
/* Writes all shards, and gives them their names. After an error tokenize_run_give_up follows. */
int tokenize_run_write(struct tokenize_run *r, struct dt_error *err);
/* After an error of tokenize_run_write: keeps complete shards where the same run may succeed later (true), and
 * removes all others. */
bool tokenize_run_give_up(struct tokenize_run *r, const struct dt_error *err);
/* Says what was left out, replaced and skipped. */
void tokenize_run_say_left_out(const struct tokenize_run *r);
void tokenize_run_close(struct tokenize_run *r);

#endif
