/* Words in host memory that streams write and wait for: functions of the driver, found by name as
 * the production code finds them. */
#include "tests/softgpu/lock.h"
#include "tests/softgpu/runtime.h"

#include <cuda.h>
#include <string.h>
#include <time.h>

namespace
{

struct word {
    uint32_t *at, value;
};

void write_word(void *argument)
{
    word *w = (word *)argument;
    __atomic_store_n(w->at, w->value, __ATOMIC_SEQ_CST);
    delete w;
}

void wait_word(void *argument)
{
    word *w = (word *)argument;
    while ((int32_t)(__atomic_load_n(w->at, __ATOMIC_SEQ_CST) - w->value) < 0) {
        timespec t = {0, 20000};
        nanosleep(&t, nullptr);
    }
    delete w;
}

/* Registered memory. With SOFTGPU_ALIAS=1 streams use other addresses for it than the host, as
 * under WSL; those addresses are valid for words only. */
enum { REGIONS = 64 };
const uintptr_t ALIAS = (uintptr_t)1 << 62;
struct softgpu_lock regions_lock;
struct region {
    uintptr_t begin;
    size_t size_bytes;
} regions[REGIONS];
int region_count;

uint32_t *word_at(CUdeviceptr at)
{
    uintptr_t wanted = softgpu_setting("SOFTGPU_ALIAS", 0) != 0 ? (uintptr_t)at ^ ALIAS : (uintptr_t)at, found = 0;
    softgpu_lock(&regions_lock);
    for (int i = 0; i < region_count; i++) {
        found = wanted >= regions[i].begin && wanted - regions[i].begin < regions[i].size_bytes ? wanted : found;
    }
    softgpu_unlock(&regions_lock);
    return (uint32_t *)found;
}

CUresult put(CUstream stream, CUdeviceptr at, cuuint32_t value, const char *name, cudaHostFn_t fn)
{
    struct softgpu_stream *s = softgpu_stream((cudaStream_t)stream, name);
    struct softgpu_entry e;
    uint32_t *word_host = word_at(at);
    if (s == nullptr || word_host == nullptr || at % 4 != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(&e, 0, sizeof e);
    e.kind = SOFTGPU_HOST;
    e.name = name;
    e.host.fn = fn;
    word *w = new word{word_host, value};
    e.host.argument = w;
    e.host.once = true;
    if (softgpu_put(s, &e, nullptr, 0) != cudaSuccess) {
        delete w;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUresult stream_write_value(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
    return flags == CU_STREAM_WRITE_VALUE_DEFAULT ? put(stream, at, value, "word write", write_word)
                                                  : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult stream_wait_value(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
    return flags == CU_STREAM_WAIT_VALUE_GEQ ? put(stream, at, value, "word wait", wait_word)
                                             : CUDA_ERROR_NOT_SUPPORTED;
}

} // namespace

int softgpu_regions(void)
{
    softgpu_lock(&regions_lock);
    int count = region_count;
    softgpu_unlock(&regions_lock);
    return count;
}

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *result)
{
    (void)version, (void)flags;
    *out = strcmp(symbol, "cuStreamWriteValue32") == 0  ? (void *)stream_write_value
           : strcmp(symbol, "cuStreamWaitValue32") == 0 ? (void *)stream_wait_value
                                                        : nullptr;
    *result = *out != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return *out != nullptr ? cudaSuccess : softgpu_error(cudaErrorSymbolNotFound);
}

cudaError_t cudaHostRegister(void *p, size_t size_bytes, unsigned flags)
{
    (void)flags;
    if (p == nullptr || (uintptr_t)p % 4096 != 0 || size_bytes == 0) {
        return softgpu_refuse(cudaErrorInvalidValue, "cudaHostRegister: whole pages");
    }
    cudaError_t rc = cudaSuccess;
    softgpu_lock(&regions_lock);
    for (int i = 0; i < region_count; i++) {
        rc = regions[i].begin == (uintptr_t)p ? cudaErrorHostMemoryAlreadyRegistered : rc;
    }
    if (rc == cudaSuccess && region_count < REGIONS) {
        regions[region_count++] = {(uintptr_t)p, size_bytes};
    }
    softgpu_unlock(&regions_lock);
    return softgpu_error(rc);
}

cudaError_t cudaHostUnregister(void *p)
{
    cudaError_t rc = cudaErrorHostMemoryNotRegistered;
    softgpu_lock(&regions_lock);
    for (int i = 0; i < region_count; i++) {
        if (regions[i].begin == (uintptr_t)p) {
            regions[i] = regions[--region_count];
            rc = cudaSuccess;
        }
    }
    softgpu_unlock(&regions_lock);
    return softgpu_error(rc);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *p, unsigned flags)
{
    uintptr_t alias = softgpu_setting("SOFTGPU_ALIAS", 0) != 0 ? (uintptr_t)p ^ ALIAS : (uintptr_t)p;
    if (flags != 0 || word_at(alias) == nullptr) {
        return softgpu_refuse(cudaErrorInvalidValue, "cudaHostGetDevicePointer: memory that is not registered");
    }
    *out = (void *)alias;
    return cudaSuccess;
}

} /* extern "C" */
