/* Between normalizer.c and the files of single normalizers. */
#ifndef DT_WORKER_DATA_TOKENIZERS_NORMALIZERS_H
#define DT_WORKER_DATA_TOKENIZERS_NORMALIZERS_H

#include "worker/data/tokenizers/parts.h"

/* One type of normalizer. Errors of `open` begin with the member's key. */
struct normalizer_ops {
    const char *type;                                                   /* "Replace" */
    int (*open)(void **state, const cJSON *json, struct dt_error *err); /* null: no members */
    int (*apply)(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err);
    void (*close)(void *state); /* null: nothing to free */
};

/* replace.c */
int replace_open(void **state, const cJSON *json, struct dt_error *err);
int replace_apply(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err);
void replace_close(void *state);

/* precompiled.c */
int precompiled_open(void **state, const cJSON *json, struct dt_error *err);
int precompiled_apply(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err);
void precompiled_close(void *state);
/* Appends the bytes of base64 (standard alphabet, padded). False: the text is none. */
bool base64_read(const char *text, size_t size, struct dt_text *out);

#endif
