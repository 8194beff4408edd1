/* A libcuda.so.1 for a machine without a GPU. It has enough of the driver's functions for cuDNN to
 * make plans and compile kernels for a GPU that is only described to it. It finds no device,
 * "loads" any kernel and runs none. Written in C: the arguments of calls follow the driver's ABI,
 * reduced to those that are written. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { OK = 0, NO_DEVICE = 100, NOT_SUPPORTED = 801 };

#define EXPORT __attribute__((visibility("default")))
#define STUB(name) int name(void)

/* Functions that must not be called. */
#define REFUSED(name)                                                                                                  \
    EXPORT STUB(name);                                                                                                 \
    EXPORT STUB(name)                                                                                                  \
    {                                                                                                                  \
        return NOT_SUPPORTED;                                                                                          \
    }
/* Functions that succeed and return a number in `out`. */
#define GIVEN(name, type, value)                                                                                       \
    EXPORT int name(type *out);                                                                                        \
    EXPORT int name(type *out)                                                                                         \
    {                                                                                                                  \
        *out = (type)(value);                                                                                          \
        return OK;                                                                                                     \
    }
#define DONE(name)                                                                                                     \
    EXPORT STUB(name);                                                                                                 \
    EXPORT STUB(name)                                                                                                  \
    {                                                                                                                  \
        return OK;                                                                                                     \
    }

EXPORT int cuInit(unsigned flags);
EXPORT int cuInit(unsigned flags)
{
    (void)flags;
    return NO_DEVICE;
}
EXPORT int cuDeviceGetCount(int *out);
EXPORT int cuDeviceGetCount(int *out)
{
    *out = 0;
    return NO_DEVICE;
}

GIVEN(cuDriverGetVersion, int, 13000)
GIVEN(cuLibraryLoadData, uintptr_t, 0x1000)
GIVEN(cuLibraryGetKernel, uintptr_t, 0x2000)
GIVEN(cuKernelGetFunction, uintptr_t, 0x3000)
GIVEN(cuKernelGetAttribute, int, 0)
GIVEN(cuFuncGetAttribute, int, 0)
GIVEN(cuOccupancyMaxActiveBlocksPerMultiprocessor, int, 1)
DONE(cuLibraryUnload)
DONE(cuKernelSetAttribute)
DONE(cuFuncSetAttribute)

REFUSED(cuLaunchKernel)
REFUSED(cuLaunchKernelEx)
REFUSED(cuLaunchCooperativeKernel)
REFUSED(cuLibraryLoadFromFile)
REFUSED(cuLinkCreate)
REFUSED(cuLinkAddData)
REFUSED(cuLinkComplete)
REFUSED(cuLinkDestroy)
REFUSED(cuDeviceGet)
REFUSED(cuCtxGetCurrent)
REFUSED(cuCtxGetLimit)
REFUSED(cuCtxPushCurrent)
REFUSED(cuCtxPopCurrent)
REFUSED(cuStreamGetCtx)
REFUSED(cuOccupancyMaxPotentialClusterSize)

static const char *const unknown = "error of the stub";
EXPORT int cuGetErrorName(int error, const char **out);
EXPORT int cuGetErrorName(int error, const char **out)
{
    (void)error;
    *out = unknown;
    return OK;
}
EXPORT int cuGetErrorString(int error, const char **out);
EXPORT int cuGetErrorString(int error, const char **out)
{
    (void)error;
    *out = unknown;
    return OK;
}

/* The runtime inside cuDNN looks up every function by name when it starts. */
EXPORT int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *found);
EXPORT int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags);

static int refuse(void)
{
    return NOT_SUPPORTED;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *found)
{
    static const struct {
        const char *name;
        void *function;
    } known[] = {
        {"cuInit", (void *)cuInit},
        {"cuDriverGetVersion", (void *)cuDriverGetVersion},
        {"cuDeviceGetCount", (void *)cuDeviceGetCount},
        {"cuGetProcAddress", (void *)cuGetProcAddress_v2},
        {"cuGetErrorName", (void *)cuGetErrorName},
        {"cuGetErrorString", (void *)cuGetErrorString},
        {"cuOccupancyMaxActiveBlocksPerMultiprocessor", (void *)cuOccupancyMaxActiveBlocksPerMultiprocessor},
    };
    (void)version;
    (void)flags;
    if (found != NULL) {
        *found = 0;
    }
    *out = (void *)refuse;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(name, known[i].name) == 0) {
            *out = known[i].function;
        }
    }
    return OK;
}

EXPORT int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}
