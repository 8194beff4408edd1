/* Sharing between ranks: memory by the runtime's IPC handles (between threads of one process by
 * its address, kernels/device.c: the runtime opens no handle where it was made), words by the
 * driver's stream operations on host memory that all ranks have mapped and pinned. */
#include "kernels/cuda/stream.h"

#include <cuda.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(cudaIpcMemHandle_t) <= DT_DEVICE_OWN_BYTES, "a handle fits");

enum { IMPORTS = 1024, PINS = 16 }; /* ranks of a host times their arenas; communicators */

/* What one device has of others, and what it has pinned. Under the lock of the device. */
struct cuda_shares {
    void *imports[IMPORTS]; /* opened handles; the memory of a thread beside us is none */
    int import_count;
    struct {
        char *host, *device; /* where streams reach it: elsewhere under WSL, for one */
        size_t size_bytes;
        bool registered; /* by us */
    } pins[PINS];
    int pin_count;
};

typedef CUresult word_fn(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static word_fn *write_value, *wait_value;

/* The driver's functions; there is no other way to them without linking the driver. */
static void find_functions(void)
{
    enum cudaDriverEntryPointQueryResult found;
    void *write = NULL, *wait = NULL;
    if (cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &write, 12000, cudaEnableDefault, &found) ==
            cudaSuccess &&
        found == cudaDriverEntryPointSuccess &&
        cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &wait, 12000, cudaEnableDefault, &found) ==
            cudaSuccess &&
        found == cudaDriverEntryPointSuccess) {
        memcpy(&write_value, &write, sizeof write);
        memcpy(&wait_value, &wait, sizeof wait);
    }
    (void)cudaGetLastError();
}

int cuda_shares_open(struct cuda_device *c, struct dt_error *err)
{
    c->shares = calloc(1, sizeof *c->shares);
    return c->shares != NULL ? 0 : dt_fail_errno(err, "device cuda");
}

void cuda_shares_close(struct cuda_device *c)
{
    free(c->shares);
    c->shares = NULL;
}

static int export_memory(struct dt_device *d, void *base, char own[DT_DEVICE_OWN_BYTES], struct dt_error *err)
{
    struct cuda_device *c = d->impl;
    cudaIpcMemHandle_t memory;
    cuda_device_use(c);
    cudaError_t rc = cudaIpcGetMemHandle(&memory, base);
    if (rc != cudaSuccess) {
        return cuda_fail(c, err, rc, "sharing memory");
    }
    memcpy(own, &memory, sizeof memory);
    return 0;
}

static int import_memory(struct dt_device *d, const char own[DT_DEVICE_OWN_BYTES], void **out, struct dt_error *err)
{
    struct cuda_device *c = d->impl;
    cudaIpcMemHandle_t memory;
    memcpy(&memory, own, sizeof memory);
    cuda_device_use(c);
    struct cuda_shares *x = c->shares;
    cudaError_t rc = cudaIpcOpenMemHandle(out, memory, cudaIpcMemLazyEnablePeerAccess);
    if (rc != cudaSuccess) {
        return cuda_fail(c, err, rc, "memory of another rank");
    }
    pthread_mutex_lock(&c->lock);
    bool room = x->import_count < IMPORTS;
    if (room) {
        x->imports[x->import_count++] = *out;
    }
    pthread_mutex_unlock(&c->lock);
    if (!room) {
        (void)cudaIpcCloseMemHandle(*out);
        return dt_fail(err, DT_INVALID, "memory of another rank: more than %d are open", IMPORTS);
    }
    return 0;
}

static void release(struct dt_device *d, void *p)
{
    struct cuda_device *c = d->impl;
    struct cuda_shares *x = c->shares;
    bool opened = false;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < x->import_count && !opened; i++) {
        opened = x->imports[i] == p;
        x->imports[i] = opened ? x->imports[--x->import_count] : x->imports[i];
    }
    pthread_mutex_unlock(&c->lock);
    if (opened) {
        cuda_device_use(c);
        (void)cudaIpcCloseMemHandle(p);
        (void)cudaGetLastError();
    }
}

static int pin(struct dt_device *d, void *host, size_t size_bytes, struct dt_error *err)
{
    struct cuda_device *c = d->impl;
    struct cuda_shares *x = c->shares;
    void *device = NULL;
    (void)pthread_once(&once, find_functions);
    if (write_value == NULL) {
        return dt_fail(
            err, DT_INVALID,
            "device cuda: the driver cannot wait for words in memory (cuStreamWaitValue32); install a newer one");
    }
    cuda_device_use(c);
    cudaError_t rc = cudaHostRegister(host, size_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    bool registered = rc == cudaSuccess;
    if (rc == cudaErrorHostMemoryAlreadyRegistered) { /* by a rank that is a thread beside us */
        (void)cudaGetLastError();
        rc = cudaSuccess;
    }
    rc = rc == cudaSuccess ? cudaHostGetDevicePointer(&device, host, 0) : rc;
    if (rc != cudaSuccess) {
        return cuda_fail(c, err, rc, "pinning memory that ranks share");
    }
    pthread_mutex_lock(&c->lock);
    bool room = x->pin_count < PINS;
    if (room) {
        x->pins[x->pin_count].host = host;
        x->pins[x->pin_count].device = device;
        x->pins[x->pin_count].size_bytes = size_bytes;
        x->pins[x->pin_count++].registered = registered;
    }
    pthread_mutex_unlock(&c->lock);
    return room ? 0 : dt_fail(err, DT_INVALID, "more than %d pieces of memory that ranks share", PINS);
}

static void unpin(struct dt_device *d, void *host)
{
    struct cuda_device *c = d->impl;
    struct cuda_shares *x = c->shares;
    bool registered = false;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < x->pin_count; i++) {
        if (x->pins[i].host == host) {
            registered = x->pins[i].registered;
            x->pins[i] = x->pins[--x->pin_count];
            break;
        }
    }
    pthread_mutex_unlock(&c->lock);
    if (registered) {
        cuda_device_use(c);
        (void)cudaHostUnregister(host);
        (void)cudaGetLastError();
    }
}

/* Where streams of the device find a word; 0: it is not pinned. */
static CUdeviceptr reach(struct cuda_device *c, const void *at)
{
    const struct cuda_shares *x = c->shares;
    CUdeviceptr found = 0;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < x->pin_count; i++) {
        uintptr_t offset = (uintptr_t)at - (uintptr_t)x->pins[i].host;
        if ((uintptr_t)at >= (uintptr_t)x->pins[i].host && offset < x->pins[i].size_bytes) {
            found = (CUdeviceptr)(uintptr_t)x->pins[i].device + offset;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return found;
}

static void enqueue(struct dt_stream *stream, word_fn *fn, uint32_t *at, uint32_t value, unsigned flags)
{
    struct cuda_stream *s = (struct cuda_stream *)stream;
    if (cuda_stream_failed(stream, NULL)) {
        return;
    }
    cuda_device_use(s->device);
    CUdeviceptr word = reach(s->device, at);
    CUresult rc = word != 0 ? fn(s->native, word, value, flags) : CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS) {
        struct dt_error why;
        (void)dt_fail(&why, DT_IO, "%s: the driver refuses a word of memory (%d)", s->device->name, (int)rc);
        why.device = DT_DEVICE_FAILED;
        dt_stream_fail_with(stream, &why);
    }
}

static void write_word(struct dt_stream *s, uint32_t *at, uint32_t value)
{
    /* what came before can be seen by everybody first */
    enqueue(s, write_value, at, value, CU_STREAM_WRITE_VALUE_DEFAULT);
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
