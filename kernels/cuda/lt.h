/* cublasLt, loaded at the first product. Linking it would add a fifth of a second to every start of
 * `train`. */
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

/* Returns the library's functions, the same for all threads, valid until the process ends. Null
 * with DT_NOT_FOUND, whose text says what was looked for. Symbols that the program already has (a
 * test's stand-in) come first. */
const struct dt_lt *dt_lt_load(struct dt_error *err);

#endif
