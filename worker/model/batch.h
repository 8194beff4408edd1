/* A batch. The model says which fields it has (the layout), and the data source fills them. Memory
 * for batches, and its share of the plan, is computed from the layout. */
#ifndef DT_WORKER_MODEL_BATCH_H
#define DT_WORKER_MODEL_BATCH_H

#include "base/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BATCH_FIELDS_MAX = 8, BATCH_DIMS_MAX = 4 };

struct batch_field {
    const char *name; /* "input_ids" (B, T), "pixel_values" (B, C, H, W), "labels" (B) or (B, T) */
    enum dt_dtype type;
    int dims;                     /* the first dimension is B, the samples of a micro-batch */
    int64_t most[BATCH_DIMS_MAX]; /* shape of a full batch */
    /* labels of the next position: element t is element t + 1 of the data, and the last one is
     * ignored (-100) */
    bool shifted;
    bool from_ids; /* where the data do not have them, they are the ids */
    bool causal;   /* of ids: none sees those behind it, so that padding at the end needs no mask */
    /* labels of the loss. DT_I32: -100 is no target, and the loss is a mean over all others. DT_F32:
     * numbers of a sample, and the loss is a mean over samples; NaN, which data may not have, stands
     * for a sample without a target. At most one field has them. */
    bool targets;
    bool shares;                /* of DT_F32 targets: they are from 0 to 1 */
    int64_t below;              /* integers are in [0, below); 0: any value */
    const char *below_key;      /* the model's key for this bound ("vocab_size"); null: it is fixed */
    const char *value, *values; /* what one integer is, and several: "id", "ids" */
    /* integers that the data need not have: all are `missing` then */
    bool optional;
    int32_t missing;
    /* The field is not in the data: it follows from field number `from` of the same sample, which has
     * as many elements, and from a number of the model's. Null: the data have it. */
    void (*derive)(const int32_t *from, int64_t count, int64_t number, int32_t *out);
    int from;
    int64_t number;
    /* DT_I64 (B), not in the data: each sample's number in the whole run, epoch * samples + position */
    bool counts;
};

struct batch_layout {
    int count;
    struct batch_field field[BATCH_FIELDS_MAX];
};

struct batch_past { /* positions of a sample that earlier passes have computed (generation) */
    int64_t slot;   /* the sample's place in the caches of blocks, below the spec's batch_size */
    int64_t length; /* how many; the first position of this batch is number `length` */
};

struct batch { /* one micro-batch of one rank */
    const struct batch_layout *layout;
    void *at[BATCH_FIELDS_MAX]; /* data of each field, in device memory */
    int64_t samples, length;    /* B; T: positions of a sample, 1 if samples are not sequences */
    /* the loss is a mean over this number of targets, or of samples if no field has targets */
    int64_t weight;
    /* Where the model has caches: of each sample, in host memory, and the position of each row (B, T),
     * DT_I32 in device memory. Otherwise null: all samples begin at position 0. */
    const struct batch_past *past;
    const int32_t *positions;
};

/* The layout of token models: input_ids (B, T) and labels (B, T), which are shifted. */
struct batch_layout batch_tokens(int64_t samples, int64_t length, int64_t vocabulary, const char *vocabulary_key);
/* Appends input_ids (B, T), attention_mask (B, T; absent: all 1) and, where type_count > 0,
 * token_type_ids (B, T; absent: all 0), and segments (B, T), which attention reads. */
void batch_add_encoder(struct batch_layout *l, int64_t samples, int64_t length, int64_t vocabulary, int64_t type_count);
/* Appends position_ids (B, T), which follow from the ids: padding stands at position padding_id, and
 * the n-th other token of a row, from 1, at padding_id + n. */
void batch_add_positions(struct batch_layout *l, int64_t padding_id);
/* Appends segments (B, T) and position_ids (B, T), which follow from the ids: a sample holds documents,
 * each of which is a segment with positions from 0. batch_end_documents says which id ends a document;
 * until then a sample is one. The last token of a document has no target. */
void batch_add_documents(struct batch_layout *l);
/* -1: none. Nothing if the layout has no documents. */
void batch_end_documents(struct batch_layout *l, int64_t id);
/* True if no token of a sample sees those behind it. */
bool batch_is_causal(const struct batch_layout *l);
/* True if the layout has documents. */
bool batch_has_documents(const struct batch_layout *l);
/* Appends "sample_numbers" (B), which dropout reads. */
void batch_add_numbers(struct batch_layout *l, int64_t samples);
/* True if the data have the field, or stand in for it. */
bool batch_in_data(const struct batch_field *f);
/* Fills the derived fields of row `row` of b, which is in host memory, from the others. Takes away the
 * targets behind the ends of documents. */
void batch_derive(const struct batch *b, int64_t row);
/* Gives row `row` of b, which is in host memory, its sample's number; nothing if no field has it. */
void batch_number(const struct batch *b, int64_t row, int64_t number);
/* Fills field i of row `row` of b with what stands for missing data. */
void batch_fill_missing(const struct batch *b, int i, int64_t row);
/* Index of the field of that name, or -1. */
int batch_find(const struct batch_layout *l, const char *name);
/* Index of the field with the targets, or -1. */
int batch_targets(const struct batch_layout *l);
/* Index of the field with the samples' numbers, or -1. */
int batch_numbers(const struct batch_layout *l);
/* Number of elements of field i: of a full batch, and of one sample. */
int64_t batch_elements(const struct batch_layout *l, int i);
int64_t batch_sample_elements(const struct batch_layout *l, int i);
/* True if the field has an integer for each position of a sample. */
bool batch_of_positions(const struct batch_field *f);
/* Number of elements of field i of this batch, which may be shorter than a full one. */
int64_t batch_used(const struct batch *b, int i);
/* Offset of field i in a full batch, in bytes; i = count: size of a whole batch. Fields follow each
 * other; fields of floats begin at multiples of 64 bytes. */
size_t batch_offset(const struct batch_layout *l, int i);

#endif
