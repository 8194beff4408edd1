/* Entries of a stream: launches, copies, fills. Calls that the real runtime would refuse, or would
 * serve at a hidden cost, are refused here. */
#include "tests/softgpu/runtime.h"
#include "tests/softgpu/shared.h"

extern "C" {
uint64_t softgpu_launch_count; /* of this process, for tests that count */
uint64_t softgpu_late_loads;   /* launches among these that had to load their kernel's code */
}

void softgpu_launch(const char *name, const void *kernel, void (*run)(const void *call), const void *call,
                    size_t call_bytes, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream)
{
    struct softgpu_stream *s = softgpu_enter("a launch") == cudaSuccess ? softgpu_stream(stream, name) : nullptr;
    if (s == nullptr) {
        return;
    }
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 ||
        threads == 0 || threads > 1024 || block.z > 64) {
        softgpu_refuse(cudaErrorInvalidConfiguration, "kernel %s: grid (%u,%u,%u) of blocks (%u,%u,%u)", name, grid.x,
                       grid.y, grid.z, block.x, block.y, block.z);
        return;
    }
    if (shared_bytes > softgpu_shared_limit(kernel)) {
        softgpu_refuse(cudaErrorInvalidValue,
                       "kernel %s: %zu bytes of dynamic shared memory; cudaFuncSetAttribute allowed %zu", name,
                       shared_bytes, softgpu_shared_limit(kernel));
        return;
    }
    struct softgpu_entry e = {};
    e.kind = SOFTGPU_KERNEL;
    e.name = name;
    e.kernel.run = run;
    e.kernel.grid = {grid.x, grid.y, grid.z};
    e.kernel.block = {block.x, block.y, block.z};
    e.kernel.shared_bytes = shared_bytes;
    if (call_bytes > SOFTGPU_CALL_MAX) {
        softgpu_die("kernel %s: %zu bytes of arguments", name, call_bytes);
    }
    (void)__atomic_add_fetch(&softgpu_launch_count, 1, __ATOMIC_RELAXED);
    if (softgpu_load(kernel)) {
        (void)__atomic_add_fetch(&softgpu_late_loads, 1, __ATOMIC_RELAXED);
        softgpu_setup("a kernel's code");
    }
    softgpu_put(s, &e, call, call_bytes);
}

static bool fits(enum cudaMemcpyKind kind, int dst, int src)
{
    switch (kind) {
    case cudaMemcpyHostToHost:
        return dst == SOFTGPU_PINNED && src == SOFTGPU_PINNED;
    case cudaMemcpyHostToDevice:
        return dst == SOFTGPU_DEVICE && src == SOFTGPU_PINNED;
    case cudaMemcpyDeviceToHost:
        return dst == SOFTGPU_PINNED && src == SOFTGPU_DEVICE;
    case cudaMemcpyDeviceToDevice:
        return dst == SOFTGPU_DEVICE && src == SOFTGPU_DEVICE;
    case cudaMemcpyDefault:
        return true;
    }
    return false;
}

extern "C" {

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    cudaError_t rc = softgpu_enter("cudaMemcpyAsync");
    struct softgpu_stream *s = rc == cudaSuccess ? softgpu_stream(stream, "cudaMemcpyAsync") : nullptr;
    if (s == nullptr) {
        return rc == cudaSuccess ? cudaErrorInvalidResourceHandle : rc;
    }
    if (count == 0) {
        return cudaSuccess;
    }
    int to = softgpu_find(dst, count, nullptr), from = softgpu_find(src, count, nullptr);
    if (to < 0 || from < 0) {
        return softgpu_refuse(cudaErrorInvalidValue, "cudaMemcpyAsync: %zu bytes reach beyond the %s", count,
                              to < 0 ? "destination" : "source");
    }
    if (to == SOFTGPU_PAGEABLE || from == SOFTGPU_PAGEABLE) {
        return softgpu_refuse(cudaErrorInvalidValue,
                              "cudaMemcpyAsync: the %s is pageable memory: the copy would wait for the host",
                              to == SOFTGPU_PAGEABLE ? "destination" : "source");
    }
    if (!fits(kind, to, from)) {
        return softgpu_refuse(cudaErrorInvalidValue, "cudaMemcpyAsync: the wrong direction");
    }
    if ((char *)dst < (const char *)src + count && (const char *)src < (char *)dst + count && dst != src) {
        return softgpu_refuse(cudaErrorInvalidValue, "cudaMemcpyAsync: source and destination overlap");
    }
    struct softgpu_entry e = {};
    e.kind = SOFTGPU_COPY;
    e.name = "copy";
    e.copy.dst = dst;
    e.copy.src = src;
    e.copy.size_bytes = count;
    rc = softgpu_put(s, &e, nullptr, 0);
    /* Copies from host to host wait in the real runtime, with pinned memory or without ("API
     * synchronization behavior"). */
    bool waits = to != SOFTGPU_DEVICE && from != SOFTGPU_DEVICE && softgpu_capture_of(s) == 0;
    return rc == cudaSuccess && waits ? cudaStreamSynchronize(stream) : rc;
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int, const void *src, int, size_t count, cudaStream_t stream)
{
    return cudaMemcpyAsync(dst, src, count, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t count, cudaStream_t stream)
{
    cudaError_t rc = softgpu_enter("cudaMemsetAsync");
    struct softgpu_stream *s = rc == cudaSuccess ? softgpu_stream(stream, "cudaMemsetAsync") : nullptr;
    if (s == nullptr) {
        return rc == cudaSuccess ? cudaErrorInvalidResourceHandle : rc;
    }
    if (count == 0) {
        return cudaSuccess;
    }
    if (softgpu_find(dst, count, nullptr) <= 0) {
        return softgpu_refuse(cudaErrorInvalidValue, "cudaMemsetAsync: %zu bytes are not all device or pinned memory",
                              count);
    }
    struct softgpu_entry e = {};
    e.kind = SOFTGPU_SET;
    e.name = "set";
    e.set.dst = dst;
    e.set.value = value;
    e.set.size_bytes = count;
    return softgpu_put(s, &e, nullptr, 0);
}
}
