/* cublasLt, loaded when the first product is asked for: linking it would cost every start of
 * `train` a fifth of a second. */
#ifndef DT_KERNELS_CUDA_LT_H
#define DT_KERNELS_CUDA_LT_H

#include "base/error.h"

#include <cublasLt.h>

struct dt_lt {
    __typeof__(&cublasLtCreate) cublasLtCreate;
    __typeof__(&cublasLtDestroy) cublasLtDestroy;
    __typeof__(&cublasLtGetVersion) cublasLtGetVersion;
    __typeof__(&cublasLtMatmulDescCreate) cublasLtMatmulDescCreate;
    __typeof__(&cublasLtMatmulDescDestroy) cublasLtMatmulDescDestroy;
    __typeof__(&cublasLtMatmulDescSetAttribute) cublasLtMatmulDescSetAttribute;
    __typeof__(&cublasLtMatrixLayoutCreate) cublasLtMatrixLayoutCreate;
    __typeof__(&cublasLtMatrixLayoutDestroy) cublasLtMatrixLayoutDestroy;
    __typeof__(&cublasLtMatmulPreferenceCreate) cublasLtMatmulPreferenceCreate;
    __typeof__(&cublasLtMatmulPreferenceDestroy) cublasLtMatmulPreferenceDestroy;
    __typeof__(&cublasLtMatmulPreferenceSetAttribute) cublasLtMatmulPreferenceSetAttribute;
    __typeof__(&cublasLtMatmulAlgoGetHeuristic) cublasLtMatmulAlgoGetHeuristic;
    __typeof__(&cublasLtMatmulAlgoCheck) cublasLtMatmulAlgoCheck;
    __typeof__(&cublasLtMatmul) cublasLtMatmul;
};

/* The library's functions, the same for all threads and for good; null with DT_NOT_FOUND and
 * what was looked for when it is not here. Symbols that the program has already (a test's
 * stand-in) come first. */
const struct dt_lt *dt_lt_load(struct dt_error *err);

#endif
