/* What a batch is. The model says which fields it has (the layout), the data source fills them,
 * and the memory of feeds and plan is counted from the layout. */
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
    int dims;                     /* the first one is B, the samples of a micro-batch */
    int64_t most[BATCH_DIMS_MAX]; /* sizes of a full batch */
    bool shifted;                 /* what is judged is the next position: element t is that of
                                    * t + 1 in the data, the last one is ignored (-100) */
    int64_t below;                /* whole numbers are from 0 on and below this; 0: any value */
    const char *below_key;        /* the key of the model that says so ("vocab_size") */
};

struct batch_layout {
    int count;
    struct batch_field field[BATCH_FIELDS_MAX];
};

struct batch { /* one micro-batch of one rank */
    const struct batch_layout *layout;
    void *at[BATCH_FIELDS_MAX]; /* of each field, in device memory */
    int64_t samples, length;    /* B, and T: positions of a sample; 1 where samples are no
                                 * sequences */
    int64_t weight;             /* what the loss is a mean over: labels that are not -100 */
};

/* What models of tokens read: input_ids (B, T) and labels (B, T), which are shifted. */
struct batch_layout batch_tokens(int64_t samples, int64_t length, int64_t vocabulary, const char *vocabulary_key);
/* The field of that name, or -1. */
int batch_find(const struct batch_layout *l, const char *name);
/* Elements of field i of a full batch, and of one sample. */
int64_t batch_elements(const struct batch_layout *l, int i);
int64_t batch_sample_elements(const struct batch_layout *l, int i);
/* Where field i of a full batch begins, in bytes from the batch's start; i = count: what a whole
 * batch takes. Fields follow each other; those of floats begin at a multiple of 64 bytes. */
size_t batch_offset(const struct batch_layout *l, int i);

#endif
