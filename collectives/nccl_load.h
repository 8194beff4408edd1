/* NCCL, loaded when the first communicator over it is asked for: a process without one never touches it. */
#ifndef DT_COLLECTIVES_NCCL_LOAD_H
#define DT_COLLECTIVES_NCCL_LOAD_H

#include "base/error.h"
#include "collectives/nccl_abi.h"

#include <stdbool.h>

struct dt_nccl {
    int version;     /* 22809 */
    char number[32]; /* "2.28.9" */
    char path[400];  /* which file it is */
#define ROW(result, name, symbol, arguments) result(*name) arguments;
    NCCL_FUNCTIONS(ROW)
    NCCL_LATER_FUNCTIONS(ROW) /* null where the library has none */
#undef ROW
};

/* What a version has beyond that: asked by these, nowhere by numbers. */
bool dt_nccl_has_windows(const struct dt_nccl *n);   /* memory of its own, registered as symmetric windows */
bool dt_nccl_has_limits(const struct dt_nccl *n);    /* config.least_ctas, most_ctas */
bool dt_nccl_has_policies(const struct dt_nccl *n);  /* config.cta_policy */
bool dt_nccl_has_zero_ctas(const struct dt_nccl *n); /* gathers by copy engines */

/* The library, the same for all threads and for good; null with DT_NOT_FOUND (what was looked for) or DT_INVALID (too old) when it cannot be used. It is the
 * file in DTRUN_NCCL where that is set, otherwise libnccl.so.2 where the loader finds libraries, then where the toolkit lies. */
const struct dt_nccl *dt_nccl_load(struct dt_error *err);

#endif
