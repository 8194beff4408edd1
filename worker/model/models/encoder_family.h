/* The differences between families of encoders, and the chain that follows from them: for
 * encoders.c. */
#ifndef DT_WORKER_MODEL_MODELS_ENCODER_FAMILY_H
#define DT_WORKER_MODEL_MODELS_ENCODER_FAMILY_H

#include "worker/model/blocks/encoder.h"
#include "worker/model/models/encoders.h"

enum { ENCODER_NAMES_MAX = 8 };

struct encoder_family {
    const char *prefix;                            /* of tensors that a model without a head has, too */
    const char *heads[ENCODER_NAMES_MAX];          /* beginnings of the others */
    const char *tokens, *positions, *types, *norm; /* the embeddings, behind the prefix; null: none */
    struct encoder_names layer;
    const char *dense, *sequence_head, *token_head;
    struct { /* of the head that names tokens */
        const char *dense, *norm, *bias;
        const char *table, *table_bias; /* if its table is not that of the embedding; null: as `bias` */
    } masked;
    enum dt_activation pooled;        /* the activation between dense and head */
    bool modern;                      /* ModernBERT's layer and head */
    bool position_ids;                /* positions follow from the ids */
    double norm_epsilon;              /* added to the variance in norms; 0: by the model's key */
    bool drops_output;                /* dropout behind attention's map */
    bool drops_pooled;                /* dropout before the head's first map, as before its second */
    bool head_dropout;                /* classifiers of tokens have the layers' dropout, not their own */
    const char *heads_key, *size_key; /* the names of two keys, for messages */
};

/* True if layer i sees only a window. */
bool encoder_slides(const struct encoder *m, int64_t i);
/* The head's answer, never PROBLEM_BY_LABELS. */
enum encoder_problem encoder_problem(const struct encoder *m);
/* Positions of a sequence that the model has room for. */
int64_t encoder_longest(const struct encoder_family *f, const struct encoder *m);
/* Gives the chain its batch, units and blocks. The root unit holds embeddings and head, and each layer
 * has a unit. DT_INVALID: sequences are longer than encoder_longest. */
int encoder_build(const struct encoder_family *f, struct chain *c, struct dt_error *err);
/* 6 operations per weight of a product, and the scores and sums of attention. */
double encoder_flops(const struct chain *c);

#endif
