/* Finds cuDNN where the loader finds libraries, else where the toolkit or Debian's package installs
 * it. Also finds NVRTC, which cuDNN needs. */
#include "kernels/cuda/dnn.h"

#include "base/library.h"
#include "base/text.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9",
                                    "/usr/lib/x86_64-linux-gnu/libcudnn.so.9",
                                    "/usr/lib/aarch64-linux-gnu/libcudnn.so.9"};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct dt_dnn table;
static bool loaded;
static struct dt_error problem;
static char compiler_missing[32]; /* "": NVRTC was found */

static int take(struct dt_dnn *out, void *from, struct dt_error *err)
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
        return dt_fail(err, DT_NOT_FOUND, "cuDNN: version %zu.%zu.%zu is here, %zu.%zu is the least", version / 10000,
                       version / 100 % 100, version % 100, least / 10000, least / 100 % 100);
    }
    *out = found;
    return 0;
}

/* The folder that a library's function was loaded from, without a slash at its end; the caller
 * frees it. */
static char *folder_of(void *library, const char *function)
{
    Dl_info of;
    void *at = dlsym(library, function);
    const char *end = at != NULL && dladdr(at, &of) != 0 && of.dli_fname != NULL ? strrchr(of.dli_fname, '/') : NULL;
    return end != NULL ? dt_format("%.*s", (int)(end - of.dli_fname), of.dli_fname) : dt_strdup(".");
}

/* NVRTC finds its second part only by name, so load that, too. */
static void load_builtins(void *compiler, int cuda)
{
    char *folder = folder_of(compiler, "nvrtcVersion"),
         *pattern = dt_format("%s/libnvrtc-builtins.so.%d.*", folder, cuda);
    glob_t found;
    if (glob(pattern, 0, NULL, &found) == 0) {
        (void)dt_library_open((const char *const *)found.gl_pathv, found.gl_pathc);
    }
    globfree(&found);
    free(pattern);
    free(folder);
}

/* Loads NVRTC, because cuDNN finds a loaded library by its name. The one beside cuDNN, or in the
 * place of Python's packages, comes first: cuDNN would take that one. */
static void load_compiler(void *library)
{
    size_t (*made_for)(void); /* 13000: CUDA 13.0 */
    const struct dt_symbol symbol = {"cudnnGetCudartVersion", &made_for};
    if (dt_library_find(library, &symbol, 1) != NULL) {
        return;
    }
    int cuda = (int)(made_for() / 1000);
    char *folder = folder_of(library, "cudnnGetCudartVersion"), *name = dt_format("libnvrtc.so.%d", cuda);
    char *places[] = {dt_format("%s/%s", folder, name),
                      dt_format("%s/../../cuda_nvrtc/lib/%s", folder, name),
                      dt_format("%s/../../cu%d/lib/%s", folder, cuda, name),
                      dt_strdup(name),
                      dt_format("/usr/local/cuda/lib64/%s", name),
                      dt_format("/usr/local/cuda-%d/lib64/%s", cuda, name)};
    void *compiler = dt_library_open((const char *const *)places, sizeof places / sizeof places[0]);
    if (compiler != NULL) {
        load_builtins(compiler, cuda);
    } else {
        (void)snprintf(compiler_missing, sizeof compiler_missing, "%s", name);
    }
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        free(places[i]);
    }
    free(name);
    free(folder);
}

const char *dt_dnn_compiler_missing(void)
{
    return compiler_missing[0] != '\0' ? compiler_missing : NULL;
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
            (void)dt_fail(&problem, DT_NOT_FOUND,
                          "cuDNN: libcudnn.so.9 is not here; install it, or name its folder in LD_LIBRARY_PATH");
            return;
        }
    }
    loaded = take(&table, library, &problem) == 0;
    if (loaded) {
        load_compiler(library);
    }
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

const struct dt_dnn *dt_dnn_start(void **handle, int *failed, struct dt_error *err)
{
    const struct dt_dnn *api = dt_dnn_load(err);
    *handle = NULL;
    *failed = DT_DNN_SUCCESS;
    if (api == NULL) {
        return NULL;
    }
    int status = api->cudnnCreate(handle);
    if (status != DT_DNN_SUCCESS) {
        *handle = NULL;
    }
    if (dt_dnn_broke_down(status)) {
        *failed = status;
    } else if (status != DT_DNN_SUCCESS) {
        (void)dt_fail(err, DT_NOT_FOUND, "cuDNN: cannot be started: %s", api->cudnnGetErrorString(status));
        return NULL;
    }
    return api;
}
