/* NCCL, loaded when the first NCCL communicator is opened. A process without one never touches
 * it. */
#ifndef DT_COLLECTIVES_NCCL_LOAD_H
#define DT_COLLECTIVES_NCCL_LOAD_H

#include "base/error.h"
#include "collectives/nccl_abi.h"

#include <stdbool.h>

struct dt_nccl {
    int version;     /* 22809 */
    char number[32]; /* "2.28.9" */
    char path[400];  /* the file it was loaded from */
    /* NCCL starts the kernels of all communicators in the order in which the host launches them */
    bool ordered;
#define ROW(result, name, symbol, arguments) result(*name) arguments;
    NCCL_FUNCTIONS(ROW)
    NCCL_LATER_FUNCTIONS(ROW) /* null where the library lacks the function */
#undef ROW
};

/* Optional features. Ranks use a feature only if all of them have it. Test these bits, not version
 * numbers. */
enum {
    DT_NCCL_SPLIT = 1,   /* children of a communicator, for groups */
    DT_NCCL_WINDOWS = 2, /* NCCL's own memory as symmetric windows, whose kernels an abort ends */
    /* gathers by copy engines, which no abort ends; implies windows, even those whose kernels no
     * abort ends */
    DT_NCCL_ZERO_CTAS = 4,
    /* split, and kernels of two communicators may be on the device at once */
    DT_NCCL_BESIDE = 8
};
unsigned dt_nccl_features(const struct dt_nccl *n);
bool dt_nccl_has_limits(const struct dt_nccl *n);   /* config.least_ctas, most_ctas */
bool dt_nccl_has_policies(const struct dt_nccl *n); /* config.cta_policy */

/* Returns the library, the same for all threads, valid until the process ends. Null with
 * DT_NOT_FOUND (the text names what was looked for) or DT_INVALID (too old). The file is DTRUN_NCCL
 * where that is set, else libnccl.so.2 where the loader finds libraries, else in the CUDA toolkit's
 * folder. */
const struct dt_nccl *dt_nccl_load(struct dt_error *err);

#endif
