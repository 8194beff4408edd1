/* Devices, versions, errors, attributes of kernels. */
extern "C" {
#include "base/gpu/gpu_visible.h"
}
#include "tests/softgpu/lock.h"
#include "tests/softgpu/runtime.h"
#include "tests/softgpu/shared.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static __thread cudaError_t last;
static __thread int current;

cudaError_t softgpu_error(cudaError_t rc)
{
    if (rc != cudaSuccess) { /* stores cudaErrorNotReady too, as the real runtime does */
        last = rc;
    }
    return rc;
}

cudaError_t softgpu_refuse(cudaError_t rc, const char *fmt, ...)
{
    char text[500];
    int n = snprintf(text, sizeof text, "softgpu: ");
    va_list args;
    va_start(args, fmt);
    n += vsnprintf(text + n, sizeof text - (size_t)n - 1, fmt, args);
    va_end(args);
    n = n < (int)sizeof text - 1 ? n : (int)sizeof text - 2;
    text[n] = '\n';
    if (write(2, text, (size_t)n + 1) < 0) {
    }
    return softgpu_error(rc);
}

long softgpu_setting(const char *name, long fallback)
{
    const char *text = getenv(name);
    return text != nullptr && *text != '\0' ? atol(text) : fallback;
}

/* ---- dynamic shared memory that cudaFuncSetAttribute allowed ---- */

enum { KERNELS_MAX = 1024 };
static struct softgpu_lock kernel_lock;
static struct {
    const void *kernel;
    size_t shared_bytes;
} kernels[KERNELS_MAX];
static int kernel_count;

/* Kernels whose code is loaded. The first launch of any other kernel loads its code, for which the
 * real driver makes all streams wait. */
static const void *loaded[KERNELS_MAX];
static int loaded_count;

bool softgpu_load(const void *kernel)
{
    softgpu_lock(&kernel_lock);
    int i = 0;
    while (i < loaded_count && loaded[i] != kernel) {
        i++;
    }
    bool fresh = i == loaded_count;
    if (fresh && loaded_count == KERNELS_MAX) {
        softgpu_die("more than %d kernels", KERNELS_MAX);
    }
    if (fresh) {
        loaded[loaded_count++] = kernel;
    }
    softgpu_unlock(&kernel_lock);
    return fresh;
}

size_t softgpu_shared_limit(const void *kernel)
{
    size_t limit = SHARED_STATIC_MAX;
    softgpu_lock(&kernel_lock);
    for (int i = 0; i < kernel_count; i++) {
        limit = kernels[i].kernel == kernel && kernels[i].shared_bytes > limit ? kernels[i].shared_bytes : limit;
    }
    softgpu_unlock(&kernel_lock);
    return limit;
}

cudaError_t softgpu_fails(const char *function)
{
    static int calls, broken;
    const char *wish = getenv("SOFTGPU_FAIL"), *rank = getenv("LOCAL_RANK");
    char name[64];
    int error = 0, after = 0, of = -1, now = __atomic_load_n(&broken, __ATOMIC_RELAXED);
    if (wish == nullptr || now != 0) {
        return (cudaError_t)now;
    }
    if (sscanf(wish, "%63[^:]:%d:%d:%d", name, &error, &after, &of) < 2 || strcmp(name, function) != 0 ||
        (of >= 0 && rank != nullptr && atoi(rank) != of) || __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) < after) {
        return cudaSuccess;
    }
    __atomic_store_n(&broken, error >= 200 ? error : 0, __ATOMIC_RELAXED);
    return (cudaError_t)error;
}

/* Whether softgpu_enter reports this function as a set-up. Functions that do not pass it report
 * themselves. */
static bool belongs_before(const char *function)
{
    static const char *const names[] = {"cudaMalloc",
                                        "cudaFree",
                                        "cudaMallocHost",
                                        "cudaHostAlloc",
                                        "cudaFreeHost",
                                        "cudaMemGetInfo",
                                        "cudaStreamCreateWithPriority",
                                        "cudaStreamCreateWithFlags",
                                        "cudaStreamDestroy",
                                        "cudaStreamSynchronize",
                                        "cudaDeviceSynchronize",
                                        "cudaEventCreateWithFlags",
                                        "cudaEventDestroy",
                                        "cudaEventSynchronize",
                                        "cudaFuncSetAttribute",
                                        "cudaFuncGetAttributes",
                                        "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
                                        "cudaStreamBeginCapture",
                                        "cudaGraphInstantiate",
                                        "cudaGraphExecDestroy"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], function) == 0) {
            return true;
        }
    }
    return false;
}

void softgpu_setup(const char *function)
{
    const char *path = getenv("SOFTGPU_SETUPS");
    int fd = path != nullptr ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) {
        char line[100];
        /* one write, because several processes share the file */
        int size = snprintf(line, sizeof line, "%s\n", function);
        if (write(fd, line, (size_t)size) != size) {
            softgpu_die("SOFTGPU_SETUPS=%s: cannot be written", path);
        }
        (void)close(fd);
    }
}

void softgpu_setup_by_name(const char *function)
{
    if (getenv("SOFTGPU_SETUPS") != nullptr && belongs_before(function)) {
        softgpu_setup(function);
    }
}

/* The devices of SOFTGPU_DEVICES that CUDA_VISIBLE_DEVICES leaves visible. */
static void look(struct dt_gpu_visible *seen)
{
    int count = (int)softgpu_setting("SOFTGPU_DEVICES", 1);
    const char *ids[DT_GPU_VISIBLE_MAX];
    for (int i = 0; i < count; i++) {
        ids[i] = "GPU-softgpu";
    }
    dt_gpu_visible(getenv("CUDA_VISIBLE_DEVICES"), ids, count, seen);
}

static int device_count(void)
{
    struct dt_gpu_visible seen;
    look(&seen);
    return seen.count;
}

/* The machine's number of the visible device `device`. */
static int number_of(int device)
{
    struct dt_gpu_visible seen;
    look(&seen);
    return seen.gpu[device] >= 0 ? seen.gpu[device] : device;
}

static bool no_device(cudaError_t *rc)
{
    long driver = softgpu_setting("SOFTGPU_DRIVER", CUDART_VERSION);
    *rc = driver < CUDART_VERSION / 1000 * 1000 ? cudaErrorInsufficientDriver
          : device_count() < 1                  ? cudaErrorNoDevice
                                                : cudaSuccess;
    return *rc != cudaSuccess;
}

extern "C" {

cudaError_t cudaGetLastError(void)
{
    cudaError_t rc = last;
    last = cudaSuccess;
    return rc;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last;
}

#define NAMES(row)                                                                                                     \
    row(cudaSuccess, "no error") row(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable") \
        row(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered") row(                                     \
            cudaErrorIllegalAddress, "an illegal memory access was encountered")                                       \
            row(cudaErrorSystemDriverMismatch, "system has unsupported display driver / cuda driver combination") row( \
                cudaErrorUnknown, "unknown error") row(cudaErrorInvalidValue, "invalid argument")                      \
                row(cudaErrorMemoryAllocation, "out of memory") row(                                                   \
                    cudaErrorInvalidConfiguration, "invalid configuration argument") row(cudaErrorInvalidDevice,       \
                                                                                         "invalid device ordinal")     \
                    row(cudaErrorInvalidResourceHandle, "invalid resource handle") row(                                \
                        cudaErrorNotReady, "device not ready") row(cudaErrorNotSupported, "operation not supported")   \
                        row(cudaErrorNotPermitted,                                                                     \
                            "operation not permitted") row(cudaErrorNoDevice, "no CUDA-capable device is detected")    \
                            row(cudaErrorInsufficientDriver,                                                           \
                                "CUDA driver version is insufficient for CUDA runtime version")                        \
                                row(cudaErrorMapBufferObjectFailed, "mapping of buffer object failed")                 \
                                    row(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled") row(      \
                                        cudaErrorPeerAccessUnsupported,                                                \
                                        "peer access is not supported between these two devices")                      \
                                        row(cudaErrorStreamCaptureUnsupported,                                         \
                                            "operation not permitted when stream is capturing")                        \
                                            row(cudaErrorStreamCaptureInvalidated,                                     \
                                                "operation failed due to a previous error during capture")             \
                                                row(cudaErrorStreamCaptureIsolation,                                   \
                                                    "dependency created on uncaptured work in another stream")         \
                                                    row(cudaErrorStreamCaptureWrongThread,                             \
                                                        "attempt to terminate a thread-local capture sequence from "   \
                                                        "another thread") row(cudaErrorCapturedEvent,                  \
                                                                              "operation not permitted on an event "   \
                                                                              "last recorded in a capturing stream")   \
                                                        row(cudaErrorIllegalState,                                     \
                                                            "the operation cannot be performed in the present state")

const char *cudaGetErrorName(cudaError_t rc)
{
    switch (rc) {
#define ROW(name, text)                                                                                                \
    case name:                                                                                                         \
        return #name;
        NAMES(ROW)
#undef ROW
    default:
        return "cudaError";
    }
}

const char *cudaGetErrorString(cudaError_t rc)
{
    switch (rc) {
#define ROW(name, text)                                                                                                \
    case name:                                                                                                         \
        return text;
        NAMES(ROW)
#undef ROW
    default:
        return "unrecognized error code";
    }
}

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t rc = softgpu_fails("cudaGetDeviceCount");
    if (rc != cudaSuccess) {
        *count = 0;
        return softgpu_error(rc);
    }
    *count = no_device(&rc) ? 0 : device_count();
    return softgpu_error(rc);
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t rc;
    if (no_device(&rc)) {
        return softgpu_error(rc);
    }
    if (device < 0 || device >= device_count()) {
        return softgpu_error(cudaErrorInvalidDevice);
    }
    current = device;
    return softgpu_enter("cudaSetDevice");
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = (int)softgpu_setting("SOFTGPU_DRIVER", CUDART_VERSION);
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    cudaError_t rc;
    softgpu_setup("cudaDeviceGetAttribute");
    if (no_device(&rc)) {
        return softgpu_error(rc);
    }
    if (device < 0 || device >= device_count()) {
        return softgpu_error(cudaErrorInvalidDevice);
    }
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value = (int)softgpu_setting("SOFTGPU_SM", 4);
        break;
    case cudaDevAttrClockRate:
        *value = 1980000; /* kHz */
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)SHARED_STATIC_MAX;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)SHARED_MAX;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = 228 << 10;
        break;
    case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        break;
    case cudaDevAttrWarpSize:
        *value = 32;
        break;
    case cudaDevAttrComputeMode:
        *value = cudaComputeModeDefault;
        break;
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrIntegrated:
    case cudaDevAttrEccEnabled:
        *value = 0;
        break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrAsyncEngineCount:
    case cudaDevAttrIpcEventSupport:
        *value = 1;
        break;
    case cudaDevAttrL2CacheSize:
        *value = 50 << 20;
        break;
    default:
        return softgpu_refuse(cudaErrorInvalidValue, "cudaDeviceGetAttribute: attribute %d is not faked",
                              (int)attribute);
    }
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    int unused;
    cudaError_t rc = cudaDeviceGetAttribute(&unused, cudaDevAttrWarpSize, device);
    if (rc != cudaSuccess) {
        return rc;
    }
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "software GPU");
    memcpy(p->uuid.bytes, "softgpu", 7);
    p->uuid.bytes[15] = (char)number_of(device);
    p->totalGlobalMem = (size_t)softgpu_setting("SOFTGPU_MEMORY_MB", 8192) << 20;
    p->sharedMemPerBlock = SHARED_STATIC_MAX;
    p->sharedMemPerBlockOptin = SHARED_MAX;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerBlock = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->major = (int)softgpu_setting("SOFTGPU_CAPABILITY", 90) / 10;
    p->minor = (int)softgpu_setting("SOFTGPU_CAPABILITY", 90) % 10;
    p->multiProcessorCount = (int)softgpu_setting("SOFTGPU_SM", 4);
    p->l2CacheSize = 50 << 20;
    p->unifiedAddressing = 1;
    p->pciBusID = number_of(device) + 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer && softgpu_setting("SOFTGPU_PEERS", 1) != 0;
    return softgpu_enter("cudaDeviceCanAccessPeer");
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned)
{
    if (peer == current || peer < 0 || peer >= device_count()) {
        return softgpu_error(cudaErrorInvalidDevice);
    }
    return softgpu_enter("cudaDeviceEnablePeerAccess");
}

cudaError_t cudaDeviceReset(void)
{
    cudaError_t rc = softgpu_enter("cudaDeviceReset");
    if (rc == cudaSuccess) {
        softgpu_wait_all();
    }
    return rc;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    cudaError_t rc = softgpu_enter("cudaFuncSetAttribute");
    if (rc != cudaSuccess) {
        return rc;
    }
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) {
        return cudaSuccess;
    }
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || (size_t)value > SHARED_MAX) {
        return softgpu_refuse(cudaErrorInvalidValue, "cudaFuncSetAttribute: attribute %d value %d", (int)attribute,
                              value);
    }
    softgpu_lock(&kernel_lock);
    int i = 0;
    while (i < kernel_count && kernels[i].kernel != kernel) {
        i++;
    }
    if (i == KERNELS_MAX) {
        softgpu_die("more than %d kernels", KERNELS_MAX);
    }
    kernels[i].kernel = kernel;
    kernels[i].shared_bytes = (size_t)value;
    kernel_count = i == kernel_count ? i + 1 : kernel_count;
    softgpu_unlock(&kernel_lock);
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *kernel)
{
    memset(a, 0, sizeof *a);
    (void)softgpu_load(kernel);
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->maxDynamicSharedSizeBytes = (int)softgpu_shared_limit(kernel);
    return softgpu_enter("cudaFuncGetAttributes");
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int block_size,
                                                          size_t shared_bytes)
{
    int by_threads = block_size > 0 ? 2048 / block_size : 0;
    int by_shared = shared_bytes > 0 ? (int)(((size_t)228 << 10) / (shared_bytes + 1024)) : 32;
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    return softgpu_enter("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
}
}
