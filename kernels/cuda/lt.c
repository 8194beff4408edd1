/* Finds cublasLt where the loader finds libraries, else where the toolkit is installed. */
#include "kernels/cuda/lt.h"

#include "base/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.13",
                                    "/usr/local/cuda/lib64/libcublasLt.so.12"};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct dt_lt table;
static bool loaded;
static struct dt_error problem;

static const struct dt_symbol symbols[] = {
    {"cublasLtCreate", &table.cublasLtCreate},
    {"cublasLtDestroy", &table.cublasLtDestroy},
    {"cublasLtGetVersion", &table.cublasLtGetVersion},
    {"cublasLtMatmulDescCreate", &table.cublasLtMatmulDescCreate},
    {"cublasLtMatmulDescDestroy", &table.cublasLtMatmulDescDestroy},
    {"cublasLtMatmulDescSetAttribute", &table.cublasLtMatmulDescSetAttribute},
    {"cublasLtMatrixLayoutCreate", &table.cublasLtMatrixLayoutCreate},
    {"cublasLtMatrixLayoutDestroy", &table.cublasLtMatrixLayoutDestroy},
    {"cublasLtMatmulPreferenceCreate", &table.cublasLtMatmulPreferenceCreate},
    {"cublasLtMatmulPreferenceDestroy", &table.cublasLtMatmulPreferenceDestroy},
    {"cublasLtMatmulPreferenceSetAttribute", &table.cublasLtMatmulPreferenceSetAttribute},
    {"cublasLtMatmulAlgoGetHeuristic", &table.cublasLtMatmulAlgoGetHeuristic},
    {"cublasLtMatmulAlgoCheck", &table.cublasLtMatmulAlgoCheck},
    {"cublasLtMatmul", &table.cublasLtMatmul},
};

static void load(void)
{
    void *library = RTLD_DEFAULT;
    if (dlsym(RTLD_DEFAULT, "cublasLtCreate") == NULL) {
        library = dt_library_open(names, sizeof names / sizeof names[0]);
        if (library == NULL) {
            (void)dt_fail(
                &problem, DT_NOT_FOUND,
                "cublasLt: libcublasLt.so.13 and .12 are not here; install it, or name its folder in LD_LIBRARY_PATH");
            return;
        }
    }
    const char *missing = dt_library_find(library, symbols, sizeof symbols / sizeof symbols[0]);
    if (missing != NULL) {
        (void)dt_fail(&problem, DT_NOT_FOUND, "cublasLt: no function %s", missing);
    }
    loaded = missing == NULL;
}

const struct dt_lt *dt_lt_load(struct dt_error *err)
{
    (void)pthread_once(&once, load);
    if (!loaded) {
        *err = problem;
        return NULL;
    }
    return &table;
}
