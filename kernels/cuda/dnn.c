/* Finds cuDNN where the loader finds libraries, then where the toolkit and Debian's package install it. */
#include "kernels/cuda/dnn.h"

#include "base/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9", "/usr/lib/x86_64-linux-gnu/libcudnn.so.9",
                                    "/usr/lib/aarch64-linux-gnu/libcudnn.so.9"};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct dt_dnn table;
static bool loaded;
static struct dt_error problem;

int dt_dnn_take(struct dt_dnn *out, void *from, struct dt_error *err)
{
    struct dt_dnn found;
    const struct dt_symbol symbols[] = {
        {"cudnnGetVersion", &found.cudnnGetVersion},
        {"cudnnGetErrorString", &found.cudnnGetErrorString},
        {"cudnnGetLastErrorString", &found.cudnnGetLastErrorString},
        {"cudnnCreate", &found.cudnnCreate},
        {"cudnnDestroy", &found.cudnnDestroy},
        {"cudnnSetStream", &found.cudnnSetStream},
        {"cudnnBackendCreateDescriptor", &found.cudnnBackendCreateDescriptor},
        {"cudnnBackendDestroyDescriptor", &found.cudnnBackendDestroyDescriptor},
        {"cudnnBackendSetAttribute", &found.cudnnBackendSetAttribute},
        {"cudnnBackendGetAttribute", &found.cudnnBackendGetAttribute},
        {"cudnnBackendFinalize", &found.cudnnBackendFinalize},
        {"cudnnBackendExecute", &found.cudnnBackendExecute},
    };
    const char *missing = dt_library_find(from, symbols, sizeof symbols / sizeof symbols[0]);
    if (missing != NULL) {
        return dt_fail(err, DT_NOT_FOUND, "cuDNN: no function %s", missing);
    }
    size_t version = found.cudnnGetVersion(), least = DT_DNN_LEAST_VERSION;
    if (version < least) {
        return dt_fail(err, DT_NOT_FOUND, "cuDNN: version %zu.%zu.%zu is here, %zu.%zu is the least", version / 10000, version / 100 % 100,
                       version % 100, least / 10000, least / 100 % 100);
    }
    *out = found;
    return 0;
}

static void load(void)
{
    const char *given = getenv("DTRUN_CUDNN");
    void *library = NULL;
    if (given != NULL && *given != '\0') {
        library = strchr(given, '/') != NULL ? dt_library_open(&given, 1) : NULL;
        if (library == NULL) {
            (void)dt_fail(&problem, DT_NOT_FOUND, "cuDNN: DTRUN_CUDNN=%.200s: no such library", given);
            return;
        }
    } else if (dlsym(RTLD_DEFAULT, "cudnnBackendFinalize") != NULL) {
        library = RTLD_DEFAULT;
    } else {
        library = dt_library_open(names, sizeof names / sizeof names[0]);
        if (library == NULL) {
            (void)dt_fail(&problem, DT_NOT_FOUND, "cuDNN: libcudnn.so.9 is not here; install it, or name its folder in LD_LIBRARY_PATH");
            return;
        }
    }
    loaded = dt_dnn_take(&table, library, &problem) == 0;
}

bool dt_dnn_broke_down(int status)
{
    return status == DT_DNN_NOT_INITIALIZED || status >= DT_DNN_INTERNAL_ERROR;
}

const struct dt_dnn *dt_dnn_load(struct dt_error *err)
{
    (void)pthread_once(&once, load);
    if (!loaded) {
        *err = problem;
        return NULL;
    }
    return &table;
}
