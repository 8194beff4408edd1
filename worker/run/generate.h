/* Text from a trained model, one token after the other. */
#ifndef DT_WORKER_RUN_GENERATE_H
#define DT_WORKER_RUN_GENERATE_H

#include "base/text.h"
#include "worker/checkpoints/checkpoint.h"

struct generate_options {
    const char *prompt; /* its bytes come first in the context; at least one */
    int token_count;    /* how many to add */
    double temperature; /* 0: always the likeliest */
    uint64_t seed;
};

/* Appends the prompt and token_count more bytes to out. The checkpoint's model must be one over
 * bytes (vocabulary of 256 at most). */
int generate_text(struct checkpoint *c, const struct generate_options *options, struct dt_text *out,
                  struct dt_error *err);

#endif
