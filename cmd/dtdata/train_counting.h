/* Counts the pieces of text files: one thread reads and cuts the text into blocks, others split the
 * blocks into pieces and count. What does not fit into memory becomes sorted runs in a folder, with a
 * manifest that says which part of the text they hold. Counting goes on from there after a kill. */
#ifndef DT_CMD_DTDATA_TRAIN_COUNTING_H
#define DT_CMD_DTDATA_TRAIN_COUNTING_H

#include "cmd/dtdata/corpus.h"
#include "cmd/dtdata/train_words.h"

#include "worker/data/tokenizers/tokenizer.h"

struct counting_options {
    const struct tokenizer *splitter; /* normalises and splits; it has no added tokens */
    bool lines;                       /* each line is a text of its own, without its end */
    const char *text_key;             /* of .jsonl records */
    const char *folder;               /* for runs and manifest */
    uint64_t settings;                /* hash of all else that the pieces depend on */
    int64_t memory_bytes;             /* of the whole process */
    int64_t save_bytes;               /* text between two saves */
    int threads;
    int (*go_on)(struct dt_error *err);
};

struct counting_result {
    int64_t text_bytes, resumed_bytes; /* of the text; of it, counted by an earlier run of the program */
    bool started_anew;                 /* the folder held counts of another text or other options */
    struct corpus_left_out records, marks;
};

struct counting;
/* Counts all files of the corpus. The folder is locked until counting_close. */
int counting_run(struct counting **out, const struct corpus *corpus, const struct counting_options *o,
                 struct counting_result *result, struct dt_error *err);
/* The pieces; valid until counting_close. */
struct words counting_words(struct counting *c);
/* remove: the runs and the manifest are needed no more. Null is allowed. */
void counting_close(struct counting *c, bool remove);

#endif
