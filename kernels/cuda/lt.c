/* Finds cublasLt where the loader finds libraries, then where the toolkit installs itself. */
#include "kernels/cuda/lt.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.13",
                                    "/usr/local/cuda/lib64/libcublasLt.so.12"};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct dt_lt table;
static bool loaded;
static char problem[200];

static const struct {
    const char *name;
    size_t offset; /* in the table */
} functions[] = {
#define ROW(name)                                                                                                                                    \
    {                                                                                                                                                \
#name, offsetof(struct dt_lt, name)                                                                                                          \
    }
    ROW(cublasLtCreate),
    ROW(cublasLtDestroy),
    ROW(cublasLtGetVersion),
    ROW(cublasLtMatmulDescCreate),
    ROW(cublasLtMatmulDescDestroy),
    ROW(cublasLtMatmulDescSetAttribute),
    ROW(cublasLtMatrixLayoutCreate),
    ROW(cublasLtMatrixLayoutDestroy),
    ROW(cublasLtMatmulPreferenceCreate),
    ROW(cublasLtMatmulPreferenceDestroy),
    ROW(cublasLtMatmulPreferenceSetAttribute),
    ROW(cublasLtMatmulAlgoGetHeuristic),
    ROW(cublasLtMatmulAlgoCheck),
    ROW(cublasLtMatmul),
#undef ROW
};

static bool take(void *from)
{
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *found = dlsym(from, functions[i].name);
        if (found == NULL) {
            (void)snprintf(problem, sizeof problem, "cublasLt: no function %s", functions[i].name);
            return false;
        }
        memcpy((char *)&table + functions[i].offset, &found, sizeof found);
    }
    return true;
}

static void load(void)
{
    if (dlsym(RTLD_DEFAULT, "cublasLtCreate") != NULL) {
        loaded = take(RTLD_DEFAULT);
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !loaded; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library != NULL) {
            loaded = take(library);
            return;
        }
    }
    (void)snprintf(problem, sizeof problem, "cublasLt: libcublasLt.so.13 and .12 are not here; install it, or name its folder in LD_LIBRARY_PATH");
}

const struct dt_lt *dt_lt_load(struct dt_error *err)
{
    (void)pthread_once(&once, load);
    if (!loaded) {
        (void)dt_fail(err, DT_NOT_FOUND, "%s", problem);
        return NULL;
    }
    return &table;
}
