/* Words in host memory that streams write and wait for: the driver's functions, found by name as the production code finds them. */
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

CUresult put(CUstream stream, CUdeviceptr at, cuuint32_t value, const char *name, cudaHostFn_t fn)
{
    struct softgpu_stream *s = softgpu_stream((cudaStream_t)stream, name);
    struct softgpu_entry e;
    if (s == nullptr || at == 0 || at % 4 != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(&e, 0, sizeof e);
    e.kind = SOFTGPU_HOST;
    e.name = name;
    e.host.fn = fn;
    e.host.argument = new word{(uint32_t *)at, value};
    return softgpu_put(s, &e, nullptr, 0) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult stream_write_value(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
    return flags == CU_STREAM_WRITE_VALUE_DEFAULT ? put(stream, at, value, "word write", write_word) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult stream_wait_value(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
    return flags == CU_STREAM_WAIT_VALUE_GEQ ? put(stream, at, value, "word wait", wait_word) : CUDA_ERROR_NOT_SUPPORTED;
}

} // namespace

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

/* Streams reach all host memory here; what is asked for is looked at, and that is all. */
cudaError_t cudaHostRegister(void *p, size_t size_bytes, unsigned flags)
{
    (void)flags;
    return p == nullptr || (uintptr_t)p % 4096 != 0 || size_bytes == 0 ? softgpu_refuse(cudaErrorInvalidValue, "cudaHostRegister: whole pages")
                                                                       : cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    return p == nullptr ? softgpu_error(cudaErrorInvalidValue) : cudaSuccess;
}

} /* extern "C" */
