/* Sharing between ranks: memory by the runtime's IPC handles (between threads of one process by its address: the runtime opens no handle where it
 * was made), words by the driver's stream operations on host memory that all ranks have mapped and pinned. */
#include "kernels/cuda/stream.h"

#include <cuda.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct handle {
    pid_t process;
    void *base;
    cudaIpcMemHandle_t memory;
};
_Static_assert(sizeof(struct handle) <= DT_DEVICE_HANDLE_BYTES, "a handle fits");

typedef CUresult word_fn(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static word_fn *write_value, *wait_value;

/* The driver's functions; there is no other way to them without linking the driver. */
static void find_functions(void)
{
    enum cudaDriverEntryPointQueryResult found;
    void *write = NULL, *wait = NULL;
    if (cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &write, 12000, cudaEnableDefault, &found) == cudaSuccess &&
        found == cudaDriverEntryPointSuccess &&
        cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &wait, 12000, cudaEnableDefault, &found) == cudaSuccess &&
        found == cudaDriverEntryPointSuccess) {
        memcpy(&write_value, &write, sizeof write);
        memcpy(&wait_value, &wait, sizeof wait);
    }
    (void)cudaGetLastError();
}

static int export_memory(struct dt_device *d, void *base, size_t size_bytes, char handle[DT_DEVICE_HANDLE_BYTES], struct dt_error *err)
{
    struct cuda_device *c = d->impl;
    struct handle h;
    (void)size_bytes;
    memset(&h, 0, sizeof h);
    h.process = getpid();
    h.base = base;
    cuda_device_use(c);
    cudaError_t rc = cudaIpcGetMemHandle(&h.memory, base);
    if (rc != cudaSuccess) {
        return cuda_fail(c, err, rc, "sharing memory");
    }
    memset(handle, 0, DT_DEVICE_HANDLE_BYTES);
    memcpy(handle, &h, sizeof h);
    return 0;
}

static int import_memory(struct dt_device *d, const char handle[DT_DEVICE_HANDLE_BYTES], void **out, struct dt_error *err)
{
    struct cuda_device *c = d->impl;
    struct handle h;
    memcpy(&h, handle, sizeof h);
    if (h.process == getpid()) {
        *out = h.base;
        return 0;
    }
    cuda_device_use(c);
    cudaError_t rc = cudaIpcOpenMemHandle(out, h.memory, cudaIpcMemLazyEnablePeerAccess);
    return rc == cudaSuccess ? 0 : cuda_fail(c, err, rc, "memory of another rank");
}

static void release(struct dt_device *d, void *p)
{
    cuda_device_use(d->impl);
    (void)cudaIpcCloseMemHandle(p); /* memory of a thread beside us is none, which is fine */
    (void)cudaGetLastError();
}

static int pin(struct dt_device *d, void *host, size_t size_bytes, struct dt_error *err)
{
    struct cuda_device *c = d->impl;
    (void)pthread_once(&once, find_functions);
    if (write_value == NULL) {
        return dt_fail(err, DT_INVALID, "device cuda: the driver cannot wait for words in memory (cuStreamWaitValue32); install a newer one");
    }
    cuda_device_use(c);
    cudaError_t rc = cudaHostRegister(host, size_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (rc == cudaErrorHostMemoryAlreadyRegistered) { /* by a rank that is a thread beside us */
        (void)cudaGetLastError();
        return 0;
    }
    return rc == cudaSuccess ? 0 : cuda_fail(c, err, rc, "pinning memory that ranks share");
}

static void unpin(struct dt_device *d, void *host)
{
    cuda_device_use(d->impl);
    (void)cudaHostUnregister(host);
    (void)cudaGetLastError();
}

static void enqueue(struct dt_stream *stream, word_fn *fn, uint32_t *at, uint32_t value, unsigned flags)
{
    struct cuda_stream *s = (struct cuda_stream *)stream;
    if (cuda_stream_failed(stream, NULL)) {
        return;
    }
    cuda_device_use(s->device);
    CUresult rc = fn(s->native, (CUdeviceptr)(uintptr_t)at, value, flags);
    if (rc != CUDA_SUCCESS) {
        dt_stream_fail(stream, DT_IO, "%s: the driver refuses a word of memory (%d)", s->device->name, (int)rc);
    }
}

static void write_word(struct dt_stream *s, uint32_t *at, uint32_t value)
{
    enqueue(s, write_value, at, value, CU_STREAM_WRITE_VALUE_DEFAULT); /* what came before can be seen by everybody first */
}

static void wait_word(struct dt_stream *s, uint32_t *at, uint32_t value)
{
    enqueue(s, wait_value, at, value, CU_STREAM_WAIT_VALUE_GEQ);
}

const struct dt_device_sharing dt_cuda_sharing = {.export_memory = export_memory,
                                                  .import_memory = import_memory,
                                                  .release = release,
                                                  .pin = pin,
                                                  .unpin = unpin,
                                                  .write_word = write_word,
                                                  .wait_word = wait_word};
