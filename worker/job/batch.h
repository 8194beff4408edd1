/* The batch of a step: what all ranks train at once = samples of a micro-step on one rank *
 * micro-steps * ranks. Whatever is not given is derived, as DeepSpeed does. */
#ifndef DT_WORKER_JOB_BATCH_H
#define DT_WORKER_JOB_BATCH_H

#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

struct batch_number {
    const char *name, *source; /* of the key, and where it was given, for messages */
    int64_t value;             /* 1 unless given */
    bool given, is_auto;       /* is_auto: "auto" stands there, which is derived as if nothing did */
};

struct batch_identity {
    struct batch_number all, micro, steps; /* all: of the step, in samples or tokens */
    int64_t ranks, sample;                 /* what a sample counts in `all`: 1, or its tokens */
};

/* Derives what is not given. 0, or -1 with why no batch can be so: all numbers, where each comes from,
 * and the nearest values of `all` that can. Appended to `why`. */
int batch_solve(struct batch_identity *b, struct dt_text *why);

#endif
