/* Batches by global sample index. A source knows its samples. The sampler says which sample a rank
 * takes. */
#ifndef DT_WORKER_DATA_DATA_H
#define DT_WORKER_DATA_DATA_H

#include "base/error.h"
#include "worker/job/job.h"
#include "worker/model/batch.h"

#include <stdbool.h>
#include <stdint.h>

/* of a source; the list of its files must fit each checkpoint's manifest */
enum { DATA_FILES_MAX = 1 << 18 };

struct data_source;
struct data_ops {
    const char *name; /* "tokens", "tensors" */
    /* True if the first bytes of the file are those of this format. */
    bool (*recognise)(const char *path);
    /* Opens all files of a glob, in sorted order. They must hold the fields of s->layout. */
    int (*open)(struct data_source *s, const char *glob, struct dt_error *err);
    /* Looks at what the job wants to be done to samples; training: they are for training. Null: the
     * format has nothing to change in them. */
    int (*prepare)(struct data_source *s, const struct job *job, bool training, struct dt_error *err);
    /* Writes the fields of s->layout of sample i, but for derived ones, into row `row` of b, which is in
     * host memory. What `prepare` has made random is a function of the seed, the epoch and the sample.
     * Fails only where opening cannot look at everything: for a damaged image, or one that does not fit.
     * Several threads may call it, for different rows. */
    int (*read)(const struct data_source *s, int64_t sample, int64_t epoch, const struct batch *b, int64_t row,
                struct dt_error *err);
    /* True if none of sample i's labels is a target. Null: each sample has a target. */
    bool (*blank)(const struct data_source *s, int64_t sample);
    /* Number of tokens of sample i, without padding. Null: all samples are as long as the layout says. */
    int64_t (*length)(const struct data_source *s, int64_t sample);
    /* Tells the kernel that sample i will be read soon, so that it may begin to read from disk. */
    void (*expect)(const struct data_source *s, int64_t sample);
    void (*close)(struct data_source *s);
};

struct data_file { /* the content of a file, independent of its name */
    char *name;    /* without folders, for messages */
    int64_t count; /* tokens; samples, if they are not sequences */
    uint64_t hash; /* of the content */
};

struct data_largest { /* the largest integer of a field */
    int64_t value;
    /* the file that has it first, and the number of its sample there, from 1; null: not known */
    const char *path;
    int64_t sample;
};

/* Samples that are choices of items, one behind the other: a context with one of its continuations each. */
struct data_choices {
    int64_t item_count;
    struct data_choice_item {
        int64_t first, count; /* its samples */
        int64_t label;        /* which of them is right */
    } * items;
    struct data_choice_size {
        int64_t characters, bytes; /* of the choice's text */
    } * sizes;                     /* of each sample */
};

/* Several sources as one: their samples are numbered one after the other. */
struct data_mixture {
    int count;
    struct data_part {
        int64_t first, count;  /* its samples */
        int64_t quota, before; /* of MIXTURE_BLOCK samples of the run; those of the parts before it */
    } part[DT_SOURCES_MAX];
};

struct data_source {
    const struct data_ops *ops;
    const struct data_mixture *mixture; /* null: one source */
    const struct data_choices *choices; /* null: samples are no choices */
    struct batch_layout layout;
    int targets;                           /* the layout's field with the targets; -1: none */
    int64_t sample_count, sequence_length; /* sequence_length: T; 1 if samples are not sequences */
    /* smallest vocabulary that contains every id (from the shard's JSON, or measured) */
    int64_t vocabulary;
    struct data_largest largest[BATCH_FIELDS_MAX];
    int64_t token_count;        /* tokens; samples, if they are not sequences */
    const char *const *classes; /* names of the classes, by label; null: the data have none */
    int class_count;
    char tokenizer[64];         /* its name in the shards' JSON ("bytes"), or "" */
    const char *tokenizer_path; /* where tokenizer.json was when the shards were made; null: unknown */
    uint64_t tokenizer_hash;    /* of its file (tokenizer_hash); 0: unknown */
    int64_t blank_count;        /* number of samples without a target */
    /* file and row (from 1) of the first such sample; null: there is none */
    const char *blank_path;
    int64_t blank_row;
    int64_t document_end; /* the id that ends each document, as the data say; -1: they do not */
    /* data.pad_to_multiple_of: data_batch leaves out what is padding in all rows, so that the length is a
     * multiple of this; 0: it leaves everything */
    int64_t pad_multiple;
    uint64_t hash; /* over names, sizes and content hashes of the files */
    /* in sorted order; data_differ compares them with those of an earlier run */
    struct data_file *files;
    int file_count;
    void *state;
};

/* Opens a source. format: "auto" asks every format. layout: the fields that the model reads; its
 * number of samples does not matter. Errors name file and cause (missing, empty, truncated, other
 * tokenizer, other shape, too short for one sequence, id >= vocabulary). */
int data_open(struct data_source *s, const char *glob, const char *format, const struct batch_layout *layout,
              struct dt_error *err);
/* The same for several sources with weights (mixture.c): of each MIXTURE_BLOCK samples of a run, so many
 * come from each. One source alone is opened as by data_open. DT_INVALID: they do not fit each other. */
enum { MIXTURE_BLOCK = 4096 };
int data_open_mixture(struct data_source *s, const struct dt_sources *from, const char *format,
                      const struct batch_layout *layout, struct dt_error *err);
/* The job's name of a source: the text, where its shards were made of one. */
const char *data_source_name(const struct dt_source *from);
/* DT_INVALID if a field has values beyond the model's range. `key`: the job's key of the source
 * ("data.train"), for the message. */
int data_check_range(const struct data_source *s, const struct job *job, const char *key, struct dt_error *err);
/* How the names of data's classes stand to those of the model. */
enum data_classes {
    DATA_CLASSES_ALIKE, /* by each number it has the same name; or names are numbers, or the model has none */
    DATA_CLASSES_MOVED, /* it knows all of them, and the first by another number */
    DATA_CLASSES_OTHER  /* it does not know the first */
};
/* *first: the class that decides. */
enum data_classes data_compare_classes(const struct job_model *m, const char *const *names, int count, int *first);
/* DT_INVALID if a source has other classes than the model that is evaluated. */
int data_check_classes(const struct data_source *s, const struct job *job, const char *key, const char *words,
                       struct dt_error *err);
/* Between data_open and the first data_batch: what the job does to samples. DT_INVALID: it cannot be
 * done to these, or they do not come out as the model reads them. */
int data_prepare(struct data_source *s, const struct job *job, bool training, struct dt_error *err);
void data_close(struct data_source *s);
/* Samples hold documents, each of which ends with this id: for a layout that has documents. */
void data_end_documents(struct data_source *s, int64_t id);
/* True if the files of `s` are not those of `was`. Then `what` names the first file that is new,
 * changed or gone ("train-00002.bin is new"). Renaming a file makes no difference. */
bool data_differ(const struct data_file *was, int was_count, const struct data_source *s, struct dt_text *what);
/* Hash of the files' contents, in order. Two sources for which data_differ is false have the same
 * hash. */
uint64_t data_content(const struct data_source *s);
/* Checks that a source, a set of data.val (one of them may be null: there is none) and data.tokenizer name
 * the same tokenizer, and that both have the same classes. A source that does not know its tokenizer
 * or its classes passes. words, val_words: what the job says they are; val_key: the set's key there. */
int data_check(const struct job_data *job, const struct data_source *first, const char *words,
               const struct data_source *val, const char *val_key, const char *val_words, struct dt_error *err);

/* The order of samples: a permutation per seed and epoch, or the identity without shuffle. */
enum sampler_order {
    ORDER_PERMUTATION, /* ours, which needs no memory */
    ORDER_DISTRIBUTED  /* that of PyTorch's DistributedSampler with this seed */
};
struct sampler_memory; /* orders of epochs, sampler.c */
struct sampler {
    int64_t sample_count;
    uint64_t seed;
    bool shuffle;
    enum sampler_order order;
    const struct data_mixture *mixture; /* null: one source */
    /* A mixture goes on from epoch to epoch: after so many samples of one (0: all), or, if it repeats, from its
     * first sample again. */
    int64_t epoch_samples;
    bool repeats;
    /* With shuffle: samples of like length come together, so that batches have little padding. The order
     * is PyTorch's, each window of it sorted by falling length, then the groups of `group` samples
     * shuffled. Null: not so. */
    const struct data_source *lengths;
    int64_t group, window;         /* window: number of groups */
    struct sampler_memory *memory; /* set by sampler_use; null where the order needs none */
};
enum { SAMPLER_WINDOW = 50 };
/* DT_INVALID: more samples than the order can number. */
int sampler_check(const struct sampler *s, struct dt_error *err);
/* Bytes of memory that the order needs, 8 or 16 per sample or none; gives them to it. The caller frees them
 * when the sampler is used no more. */
size_t sampler_bytes(const struct sampler *s);
void sampler_use(struct sampler *s, void *memory);
/* Another number of samples in a group, from the next epoch that is made on: all are made again. */
void sampler_regroup(struct sampler *s, int64_t group);
/* Maps a position in an epoch, 0 to sample_count - 1, to a sample. An order with memory makes the whole
 * epoch when it is first asked for; then one thread at a time may call. */
int64_t sampler_at(const struct sampler *s, int64_t epoch, int64_t position);
/* The same; *pass: how often the sample was drawn before, the epoch, or of a mixture the passes over its part. What is
 * random about a sample follows from this and the sample alone. */
int64_t sampler_draw(const struct sampler *s, int64_t epoch, int64_t position, int64_t *pass);

/* Fills one micro-batch of a rank, b, which is in host memory. Row r gets the sample at position
 * first + r * ranks + rank of the epoch, so rank k takes samples k, k + ranks, ... A position >=
 * sample_count gives a row of zeros without targets, for the ragged end of an evaluation. Sets
 * b->weight and, where samples have masks or are choices, b->length (pad_multiple). Fails as the source's `read` does. */
int data_batch(const struct data_source *s, const struct sampler *order, int64_t epoch, int64_t first, int rank,
               int ranks, struct batch *b, struct dt_error *err);

/* False: each sample has a target. */
bool data_may_be_blank(const struct data_source *s);
/* True if data_batch would find no target. Returns at once if each sample has a
 * target; reads the samples if they hold documents. */
bool data_blank(const struct data_source *s, const struct sampler *order, int64_t epoch, int64_t first, int rank,
                int ranks, int64_t batch_size);

/* Tells the kernel that the rank's next `count` samples, from position `first` on, will be read
 * soon. Returns how many of them lie beyond the epoch. */
int64_t data_expect(const struct data_source *s, const struct sampler *order, int64_t epoch, int64_t first, int rank,
                    int ranks, int64_t count);

#endif
