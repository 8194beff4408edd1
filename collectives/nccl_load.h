/* NCCL, loaded when the first communicator over it is asked for: a process without one never
 * touches it. */
#ifndef DT_COLLECTIVES_NCCL_LOAD_H
#define DT_COLLECTIVES_NCCL_LOAD_H

#include "base/error.h"
#include "collectives/nccl_abi.h"

#include <stdbool.h>

struct dt_nccl {
    int version;     /* 22809 */
    char number[32]; /* "2.28.9" */
    char path[400];  /* which file it is */
    bool ordered;    /* it starts the kernels of all communicators in the order in which the host
                      * asks for them */
#define ROW(result, name, symbol, arguments) result(*name) arguments;
    NCCL_FUNCTIONS(ROW)
    NCCL_LATER_FUNCTIONS(ROW) /* null where the library has none */
#undef ROW
};

/* What a library has beyond that, and all ranks must have for any of them to use it. Asked by
 * these, nowhere by numbers. */
enum {
    DT_NCCL_SPLIT = 1,     /* groups as children of their parent */
    DT_NCCL_WINDOWS = 2,   /* memory of its own, registered as symmetric windows, over which an
                            * abort ends what runs */
    DT_NCCL_ZERO_CTAS = 4, /* gathers by copy engines, which no abort ends; brings windows, also
                            * where nothing ends their kernels */
    DT_NCCL_BESIDE = 8     /* split, and kernels of two communicators may be on the device at
                            * once */
};
unsigned dt_nccl_features(const struct dt_nccl *n);
bool dt_nccl_has_limits(const struct dt_nccl *n);   /* config.least_ctas, most_ctas */
bool dt_nccl_has_policies(const struct dt_nccl *n); /* config.cta_policy */

/* The library, the same for all threads and for good; null with DT_NOT_FOUND (what was looked
 * for) or DT_INVALID (too old) when it cannot be used. It is the file in DTRUN_NCCL where that
 * is set, otherwise libnccl.so.2 where the loader finds libraries, then where the toolkit lies. */
const struct dt_nccl *dt_nccl_load(struct dt_error *err);

#endif
