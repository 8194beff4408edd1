/* cublasLt, loaded when the first product is asked for: linking it would cost every start of `train` a fifth of a second. */
#ifndef DT_KERNELS_CUDA_LT_H
#define DT_KERNELS_CUDA_LT_H

#include "base/error.h"

#include <cublasLt.h>

/* clang-format off: a list, which it shifts at each pass */
#define DT_LT_FUNCTIONS(ROW)                                                                                                                         \
    ROW(cublasLtCreate)                                                                                                                              \
    ROW(cublasLtDestroy)                                                                                                                             \
    ROW(cublasLtGetVersion)                                                                                                                          \
    ROW(cublasLtMatmulDescCreate)                                                                                                                    \
    ROW(cublasLtMatmulDescDestroy)                                                                                                                   \
    ROW(cublasLtMatmulDescSetAttribute)                                                                                                              \
    ROW(cublasLtMatrixLayoutCreate)                                                                                                                  \
    ROW(cublasLtMatrixLayoutDestroy)                                                                                                                 \
    ROW(cublasLtMatmulPreferenceCreate)                                                                                                              \
    ROW(cublasLtMatmulPreferenceDestroy) ROW(cublasLtMatmulPreferenceSetAttribute) ROW(cublasLtMatmulAlgoGetHeuristic) ROW(cublasLtMatmulAlgoCheck)  \
        ROW(cublasLtMatmul)
/* clang-format on */

struct dt_lt {
#define DT_LT_MEMBER(name) __typeof__(&name) name;
    DT_LT_FUNCTIONS(DT_LT_MEMBER)
#undef DT_LT_MEMBER
};

/* The library's functions, the same for all threads and for good; null with DT_NOT_FOUND and what was looked for when it is not here. Symbols that the
 * program has already (a test's stand-in) come first. */
const struct dt_lt *dt_lt_load(struct dt_error *err);

#endif
