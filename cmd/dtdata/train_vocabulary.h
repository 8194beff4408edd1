/* A vocabulary that grows: tokens with the ids 0, 1, 2, ... */
#ifndef DT_CMD_DTDATA_TRAIN_VOCABULARY_H
#define DT_CMD_DTDATA_TRAIN_VOCABULARY_H

#include "base/text.h"

#include <stddef.h>
#include <stdint.h>

struct train_vocabulary {
    struct dt_text bytes; /* of all tokens, one after the other */
    size_t *ends;         /* of each token in `bytes` */
    uint32_t count;
    uint32_t *slots; /* id + 1; 0: free */
    size_t slot_count;
};

/* The id of a token; UINT32_MAX: there is none. All zero is an empty vocabulary. */
uint32_t train_vocabulary_find(const struct train_vocabulary *v, const char *token, size_t size);
/* The same, and adds the token if it is missing. */
uint32_t train_vocabulary_add(struct train_vocabulary *v, const char *token, size_t size);
/* The token with an id. Valid until the next add. */
const char *train_vocabulary_token(const struct train_vocabulary *v, uint32_t id, size_t *size);
void train_vocabulary_clear(struct train_vocabulary *v);

#endif
