/* Batches by global sample index. A source knows its samples; the sampler says which sample a
 * rank takes. */
#ifndef DT_WORKER_DATA_DATA_H
#define DT_WORKER_DATA_DATA_H

#include "base/error.h"
#include "worker/job/job.h"
#include "worker/model/batch.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DATA_FILES_MAX = 1 << 18
}; /* of a source; their list has room in each checkpoint's
    * manifest */

struct data_source;
struct data_ops {
    const char *name; /* "tokens", "tensors" */
    /* True when the file looks like this format (by its first bytes). */
    bool (*recognise)(const char *path);
    /* Opens all files of a glob (sorted). s->layout says what is wanted of them. */
    int (*open)(struct data_source *s, const char *glob, struct dt_error *err);
    /* Writes the fields of sample i into row `row` of b, which lies in host memory; labels of -100
     * are ignored. */
    void (*read)(const struct data_source *s, int64_t sample, const struct batch *b, int64_t row);
    /* None of sample i's labels is a target. Null: each has some. */
    bool (*blank)(const struct data_source *s, int64_t sample);
    /* Sample i will be read soon: the kernel may begin to bring what the disk has of it. */
    void (*expect)(const struct data_source *s, int64_t sample);
    void (*close)(struct data_source *s);
};

struct data_file { /* what is in a file, whatever it is called */
    char *name;    /* without folders: for messages */
    int64_t count; /* tokens, or samples that are no sequences */
    uint64_t hash; /* of the content */
};

struct data_source {
    const struct data_ops *ops;
    struct batch_layout layout;
    int labels;                            /* the field of the layout that says what is judged */
    int64_t sample_count, sequence_length; /* sequence_length: T; 1 where samples are no sequences */
    int64_t vocabulary;                    /* smallest vocabulary that holds every id (from the shard's
                                            * JSON, or measured) */
    int64_t largest[BATCH_FIELDS_MAX];     /* of the whole numbers in each field */
    int64_t token_count;                   /* or samples, where they are no sequences */
    char tokenizer[64];                    /* name in the shards' JSON ("bytes"), or "" */
    int64_t blank_count;                   /* samples without any target */
    const char *blank_path;                /* where the first of them is: file and row, from 1; null: there is
                             * none */
    int64_t blank_row;
    uint64_t hash;           /* over names, sizes and content hashes of the files */
    struct data_file *files; /* in their order: by them it is told whether it is the same data
                              * (data_differ) */
    int file_count;
    void *state;
};

/* format: "auto" asks every row. layout: what the model reads; its number of samples does not
 * matter. Errors name file and cause (missing, empty, truncated, other tokenizer, other shape, too
 * short for one sequence, id >= vocabulary). */
int data_open(struct data_source *s, const char *glob, const char *format, const struct batch_layout *layout,
              struct dt_error *err);
/* A field with values that its model has no room for; -1: there is none. */
int data_too_large(const struct data_source *s);
void data_close(struct data_source *s);
/* True when `s` is not what `was` lists: says the first file that is new, changed or gone
 * ("train-00002.bin is new"). A rename is no difference. */
bool data_differ(const struct data_file *was, int was_count, const struct data_source *s, struct dt_text *what);
/* Of the contents in their order: equal where data_differ says nothing. */
uint64_t data_content(const struct data_source *s);
/* Checks that span sources: data.train, data.val (null: there is none) and data.tokenizer must
 * mean one tokenizer. Sources that do not know theirs pass. */
int data_check(const struct job_data *job, const struct data_source *train, const struct data_source *val,
               struct dt_error *err);

/* The order of samples: a permutation per (seed, epoch), computed by index in O(1) memory
 * (counter-based, e.g. a Feistel network with cycle walking), identity when not shuffled. Global
 * consumption position g (0-based since the start of the run) -> sample. The last, incomplete
 * global batch of an epoch is dropped only by whoever asks (see sampler_steps_per_epoch). */
struct sampler {
    int64_t sample_count;
    uint64_t seed;
    bool shuffle;
};
int64_t sampler_at(const struct sampler *s, int64_t epoch, int64_t position);

/* Fills one micro-batch for a rank, b, which lies in host memory: samples at positions first +
 * row * ranks + rank of the epoch for each row (rank r takes r, r+N, ...). A position >=
 * sample_count gives a row of zeros with ignored labels (evaluation's ragged end). Sets b->weight,
 * the number of labels that are not -100. */
void data_batch(const struct data_source *s, const struct sampler *order, int64_t epoch, int64_t first, int rank,
                int ranks, struct batch *b);

/* Would data_batch find no label but -100? At once where each sample has targets. */
bool data_blank(const struct data_source *s, const struct sampler *order, int64_t epoch, int64_t first, int rank,
                int ranks, int64_t batch_size);

/* The rank's samples at positions from `first` on, `count` of them or as many as the epoch has,
 * will be read soon. Returns how many the epoch has not. */
int64_t data_expect(const struct data_source *s, const struct sampler *order, int64_t epoch, int64_t first, int rank,
                    int ranks, int64_t count);

#endif
