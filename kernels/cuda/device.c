/* The device "cuda": one GPU, its memory, and the meaning of the runtime's results. Streams are in
 * stream.c, events in event.c, graphs in graph.c, and failures in failure.c. Opening the device is
 * the first call of the driver, so programs that open another device never touch it. */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/convolution.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/stream.h"
#include "kernels/peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __thread int current = -1; /* the calling thread's current device */

void cuda_device_use(const struct cuda_device *c)
{
    if (current != c->index && cudaSetDevice(c->index) == cudaSuccess) {
        current = c->index;
    }
}

static enum dt_status status_of(cudaError_t rc)
{
    switch (rc) {
    case cudaErrorMemoryAllocation:
        return DT_NO_MEMORY;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNotPermitted:
        return DT_INTERNAL;
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorNotSupported:
    case cudaErrorPeerAccessUnsupported:
    case cudaErrorTooManyPeers:
        return DT_INVALID;
    default:
        return DT_IO; /* the device is lost or in use: a restart may work */
    }
}

int cuda_fail(const struct cuda_device *c, struct dt_error *err, cudaError_t rc, const char *what)
{
    (void)cudaGetLastError();
    (void)dt_fail(err, status_of(rc), "%s: %s: %s (%s)%s", what, c->name, cudaGetErrorString(rc), cudaGetErrorName(rc),
                  cuda_advice(rc));
    if (err != NULL) {
        err->device = DT_DEVICE_FAILED;
    }
    return -1;
}

/* ---- finding the GPU ---- */

static const char *visible(void)
{
    static __thread char text[200];
    const char *devices = getenv("CUDA_VISIBLE_DEVICES");
    if (devices == NULL) {
        return "";
    }
    (void)snprintf(text, sizeof text, " (CUDA_VISIBLE_DEVICES=%.150s)", devices);
    return text;
}

static int count_devices(int *count, struct dt_error *err)
{
    int driver = 0, toolkit = 0;
    cudaError_t rc = cudaGetDeviceCount(count);
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&toolkit);
    (void)cudaGetLastError();
    if (driver == 0) {
        return dt_fail(err, DT_NOT_FOUND,
                       "device cuda: no NVIDIA driver is here; install one, or use training.device=cpu");
    }
    if (rc == cudaErrorInsufficientDriver) {
        return dt_fail(err, DT_INVALID,
                       "device cuda: the driver is made for CUDA %d.%d, this program for %d.%d; install a newer driver",
                       driver / 1000, driver % 1000 / 10, toolkit / 1000, toolkit % 1000 / 10);
    }
    if (rc == cudaErrorNoDevice || (rc == cudaSuccess && *count == 0)) {
        return dt_fail(err, DT_NOT_FOUND, "device cuda: no GPU is visible%s; %s, or use training.device=cpu", visible(),
                       getenv("CUDA_VISIBLE_DEVICES") != NULL ? "correct or unset that"
                                                              : "see whether nvidia-smi names one");
    }
    if (rc != cudaSuccess) {
        return dt_fail(err, status_of(rc), "device cuda: %s (%s)%s", cudaGetErrorString(rc), cudaGetErrorName(rc),
                       cuda_advice(rc));
    }
    return 0;
}

static int attribute(const struct cuda_device *c, enum cudaDeviceAttr which, int *out, struct dt_error *err)
{
    cudaError_t rc = cudaDeviceGetAttribute(out, which, c->index);
    return rc == cudaSuccess ? 0 : cuda_fail(c, err, rc, "device cuda");
}

static void describe(const struct cudaDeviceProp *p, int index, struct dt_device_place *out)
{
    unsigned char id[16];
    memcpy(id, p->uuid.bytes, sizeof id);
    (void)snprintf(out->bus, sizeof out->bus, "%04x:%02x:%02x.0", (unsigned)p->pciDomainID, (unsigned)p->pciBusID,
                   (unsigned)p->pciDeviceID);
    (void)snprintf(out->name, sizeof out->name, "GPU %d (%.100s, bus %s)", index, p->name, out->bus);
    size_t at = 0;
    for (int i = 0; i < 16; i++) { /* 8-4-4-4-12 digits */
        bool dash = i == 4 || i == 6 || i == 8 || i == 10;
        at += (size_t)snprintf(out->uuid + at, sizeof out->uuid - at, "%s%02x", dash ? "-" : "", id[i]);
    }
}

static bool cuda_place(int index, struct dt_device_place *out)
{
    struct cudaDeviceProp p;
    bool known = cudaGetDeviceProperties(&p, index) == cudaSuccess;
    (void)cudaGetLastError();
    if (known) {
        describe(&p, index, out);
    }
    return known;
}

static int look_at_device(struct cuda_device *c, struct dt_error *err)
{
    struct cudaDeviceProp p;
    struct dt_device_place place;
    (void)snprintf(c->name, sizeof c->name, "GPU %d", c->index);
    cudaError_t rc = cudaGetDeviceProperties(&p, c->index);
    if (rc != cudaSuccess) {
        return cuda_fail(c, err, rc, "device cuda");
    }
    describe(&p, c->index, &place);
    memcpy(c->name, place.name, sizeof c->name);
    c->capability = 10 * p.major + p.minor;
    if (p.major < 8) {
        return dt_fail(err, DT_INVALID, "device cuda: %s: has compute capability %d.%d; 8.0 is the least", c->name,
                       p.major, p.minor);
    }
    if (attribute(c, cudaDevAttrMultiProcessorCount, &c->sm_count, err) != 0 ||
        attribute(c, cudaDevAttrMaxSharedMemoryPerBlockOptin, &c->shared_bytes, err) != 0) {
        return -1;
    }
    rc = cudaSetDevice(c->index);
    if (rc == cudaErrorMemoryAllocation) { /* nothing of ours is on the device yet */
        (void)cudaGetLastError();
        return dt_fail(err, DT_IO, "device cuda: %s: others hold so much of its memory that nothing can start there",
                       c->name);
    }
    if (rc != cudaSuccess) { /* this is the first call that needs the device itself */
        return cuda_fail(c, err, rc, "device cuda");
    }
    current = c->index;
    rc = cudaDeviceGetStreamPriorityRange(&c->least_priority, &c->greatest_priority);
    return rc == cudaSuccess ? 0 : cuda_fail(c, err, rc, "device cuda");
}

static void cuda_use(struct dt_device *d)
{
    cuda_device_use(d->impl);
}

static void cuda_close(struct dt_device *d)
{
    struct cuda_device *c = d->impl;
    cuda_device_use(c);
    dt_cuda_matmul_close(d);
    cuda_shares_close(c);
    dt_cuda_attention_dnn_close(d);
    dt_cuda_convolution_close(d);
    if (c->own != NULL) {
        (void)cudaStreamDestroy(c->own);
    }
    (void)cudaGetLastError();
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static int cuda_open(struct dt_device *d, const struct dt_device_options *options, struct dt_error *err)
{
    int count = 0;
    if (count_devices(&count, err) != 0) {
        return -1;
    }
    if (options->index < 0 || options->index >= count) {
        return dt_fail(err, DT_INVALID, "device cuda: GPU %d was asked for, %d %s visible%s", options->index, count,
                       count == 1 ? "is" : "are", visible());
    }
    struct cuda_device *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return dt_fail_errno(err, "device cuda");
    }
    pthread_mutex_init(&c->lock, NULL);
    c->index = options->index;
    d->impl = c;
    d->options = *options;
    d->options.streams = DT_STREAMS_THREAD; /* enqueued work runs while the host continues */
    cudaError_t rc;
    if (look_at_device(c, err) != 0 || cuda_shares_open(c, err) != 0) {
        goto failed;
    }
    rc = cudaStreamCreateWithFlags(&c->own, cudaStreamNonBlocking);
    if (rc != cudaSuccess) {
        (void)cuda_fail(c, err, rc, "device cuda");
        goto failed;
    }
    if (dt_cuda_kernels_open(c->shared_bytes, err) != 0 || dt_cuda_attention_open(err) != 0 ||
        dt_cuda_convolution_open(err) != 0) {
        goto failed;
    }
    rc = (cudaError_t)dt_cuda_kernels_load();
    if (rc != cudaSuccess) {
        (void)cuda_fail(c, err, rc, "loading kernels");
        goto failed;
    }
    return 0;
failed:
    cuda_close(d);
    d->impl = NULL;
    return -1;
}

int dt_cuda_capability(const struct dt_device *d)
{
    return ((const struct cuda_device *)d->impl)->capability;
}

/* ---- memory ---- */

static int no_memory(const struct cuda_device *c, enum dt_memory kind, size_t size_bytes, cudaError_t rc,
                     struct dt_error *err)
{
    size_t free_bytes = 0, total_bytes = 0;
    /* drivers return this, too, for more memory than the host lets them pin */
    bool refused = kind == DT_MEMORY_PINNED && rc == cudaErrorInvalidValue;
    if (rc != cudaErrorMemoryAllocation && !refused) {
        return cuda_fail(c, err, rc, "memory");
    }
    (void)cudaGetLastError();
    if (kind == DT_MEMORY_PINNED) {
        return dt_fail(err, DT_NO_MEMORY, "memory: cannot pin %zu bytes of the host", size_bytes);
    }
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) {
        (void)cudaGetLastError();
    }
    return dt_fail(err, DT_NO_MEMORY, "memory: %s: cannot get %zu bytes; %zu of %zu are free", c->name, size_bytes,
                   free_bytes, total_bytes);
}

static int cuda_alloc(struct dt_device *d, enum dt_memory kind, size_t size_bytes, void **out, struct dt_error *err)
{
    struct cuda_device *c = d->impl;
    cuda_device_use(c);
    void *p = NULL;
    size_t size = size_bytes > 0 ? size_bytes : 1;
    if (kind == DT_MEMORY_PINNED) {
        cudaError_t rc = cudaHostAlloc(&p, size, cudaHostAllocDefault);
        if (rc != cudaSuccess) {
            return no_memory(c, kind, size_bytes, rc, err);
        }
        memset(p, 0, size);
        *out = p;
        return 0;
    }
    cudaError_t rc = cudaMalloc(&p, size);
    if (rc != cudaSuccess) {
        return no_memory(c, kind, size_bytes, rc, err);
    }
    rc = cudaMemsetAsync(p, 0, size, c->own);
    rc = rc == cudaSuccess ? cudaStreamSynchronize(c->own) : rc;
    if (rc != cudaSuccess) {
        (void)cudaFree(p);
        return cuda_fail(c, err, rc, "memory");
    }
    *out = p;
    return 0;
}

static void cuda_free(struct dt_device *d, enum dt_memory kind, void *p, size_t size_bytes)
{
    (void)size_bytes;
    cuda_device_use(d->impl);
    (void)(kind == DT_MEMORY_PINNED ? cudaFreeHost(p) : cudaFree(p));
    (void)cudaGetLastError();
}

static bool cuda_memory(struct dt_device *d, size_t *free_bytes, size_t *total_bytes)
{
    cuda_device_use(d->impl);
    bool known = cudaMemGetInfo(free_bytes, total_bytes) == cudaSuccess;
    (void)cudaGetLastError();
    return known;
}

static double cuda_peak(struct dt_device *d, enum dt_dtype type)
{
    const struct cuda_device *c = d->impl;
    struct cudaDeviceProp p;
    int khz = 0;
    bool known = cudaGetDeviceProperties(&p, c->index) == cudaSuccess &&
                 cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, c->index) == cudaSuccess;
    (void)cudaGetLastError();
    bool tf32 = type == DT_F32 && d->options.tf32; /* half the rate of BF16 on all GPUs */
    double stated =
        known ? dt_peak_flops(p.name, p.major, p.minor, p.multiProcessorCount, khz * 1e3, tf32 ? DT_BF16 : type) : 0;
    return tf32 ? stated / 2 : stated;
}

const struct dt_device_ops dt_cuda_device_ops = {
    .name = "cuda",
    .count = count_devices,
    .memory = cuda_memory,
    .peak = cuda_peak,
    .place = cuda_place,
    .open = cuda_open,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .use = cuda_use,
    .native = cuda_native,
    .copy = cuda_copy,
    .guard = cuda_guard,
    .call = cuda_call,
    .fail = cuda_stream_fail,
    .failed = cuda_stream_failed,
    .record = cuda_record,
    .wait = cuda_wait,
    .sync = cuda_sync,
    .sharing = &dt_cuda_sharing,
    .plans = &dt_cuda_plans,
    .graphs = &dt_cuda_graphs,
};
