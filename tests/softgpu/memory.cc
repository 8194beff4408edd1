/* Device and pinned memory. An allocation ends at a guard page and holds 0xff until it is written.
 * Access to freed memory is a fault for a while. Device memory is a memfd, which another process
 * opens by /proc/PID/fd/N; nothing of it is left after a crash. */
#include "tests/softgpu/lock.h"
#include "tests/softgpu/runtime.h"
#include "tests/softgpu/sanitize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace
{

enum { BLOCKS_MAX = 4096, FREED_MAX = 256 };
const size_t PAGE = 4096, ALIGN = 256;

struct softgpu_lock lock;
struct softgpu_block blocks[BLOCKS_MAX];
int block_count;
size_t device_bytes; /* bytes in use */
struct softgpu_block freed[FREED_MAX];
unsigned freed_count; /* number of allocations freed so far */

size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

size_t memory_total(void)
{
    return (size_t)softgpu_setting("SOFTGPU_MEMORY_MB", 8192) << 20;
}

/* Memory of the device that others hold: MiB in the file that SOFTGPU_HELD names, while the file
 * exists. */
size_t held(void)
{
    const char *path = getenv("SOFTGPU_HELD");
    FILE *f = path != nullptr ? fopen(path, "r") : nullptr;
    long mib = 0;
    if (f != nullptr) {
        mib = fscanf(f, "%ld", &mib) == 1 ? mib : 0;
        fclose(f);
    }
    return (size_t)mib << 20;
}

/* Maps `size_bytes` bytes that end at a guard page. */
bool map_block(struct softgpu_block *b, int fd, size_t size_bytes)
{
    size_t size = round_up(size_bytes > 0 ? size_bytes : 1, ALIGN), pages = round_up(size, PAGE);
    b->map_bytes = pages + PAGE;
    char *map = (char *)mmap(nullptr, b->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        return false;
    }
    int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    if (mmap(map, pages, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
        munmap(map, b->map_bytes);
        return false;
    }
    b->map = map;
    b->begin = map + pages - size;
    b->size_bytes = size_bytes;
    b->fd = fd;
    return true;
}

bool keep(const struct softgpu_block *b)
{
    if (block_count == BLOCKS_MAX) {
        return false;
    }
    blocks[block_count++] = *b;
    return true;
}

/* The mapping before the block, and the slack up to the guard page, are off limits. */
void poison(const struct softgpu_block *b)
{
    asan_poison(b->map, (size_t)(b->begin - b->map));
    asan_poison(b->begin + b->size_bytes, (size_t)(b->map + b->map_bytes - PAGE - b->begin) - b->size_bytes);
}

/* The latest freed allocations keep their addresses without memory behind them. So a use after free
 * meets a fault, and not another allocation. */
void retire(const struct softgpu_block *b)
{
    struct softgpu_block *place = &freed[freed_count++ % FREED_MAX];
    if (place->map != nullptr) {
        munmap(place->map, place->map_bytes);
    }
    *place = *b;
    asan_unpoison(b->map, b->map_bytes);
    msan_unpoison(b->map, b->map_bytes - PAGE);
    mmap(b->map, b->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

bool was_freed(const void *p)
{
    bool found = false;
    softgpu_lock(&lock);
    for (int i = 0; i < FREED_MAX; i++) {
        found = found || ((const char *)p >= freed[i].map && (const char *)p < freed[i].map + freed[i].map_bytes);
    }
    softgpu_unlock(&lock);
    return found;
}

cudaError_t allocate(enum softgpu_place place, size_t size_bytes, void **out)
{
    struct softgpu_block b = {};
    b.place = place;
    cudaGetDevice(&b.device);
    softgpu_lock(&lock);
    cudaError_t rc = cudaErrorMemoryAllocation;
    int fd = -1;
    if (place == SOFTGPU_DEVICE) {
        if (size_bytes + device_bytes + held() > memory_total()) {
            goto out;
        }
        fd = memfd_create("softgpu", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, (off_t)round_up(round_up(size_bytes + (size_bytes == 0), ALIGN), PAGE)) != 0) {
            goto out;
        }
    }
    if (size_bytes > (size_t)1 << 48 || !map_block(&b, fd, size_bytes) || !keep(&b)) {
        goto out;
    }
    softgpu_set_bytes(b.begin, 0xff, size_bytes);
    msan_poison(b.begin, size_bytes);
    poison(&b);
    device_bytes += place == SOFTGPU_DEVICE ? size_bytes : 0;
    *out = b.begin;
    fd = -1;
    rc = cudaSuccess;
out:
    if (fd >= 0) {
        close(fd);
    }
    softgpu_unlock(&lock);
    return softgpu_error(rc);
}

} // namespace

int softgpu_find(const void *p, size_t size_bytes, struct softgpu_block *out)
{
    const char *begin = (const char *)p;
    int rc = SOFTGPU_PAGEABLE;
    softgpu_lock(&lock);
    for (int i = 0; i < block_count; i++) {
        const struct softgpu_block *b = &blocks[i];
        if (begin < b->map + b->map_bytes && (begin >= b->map || begin + size_bytes > b->map)) {
            bool inside = begin >= b->begin && begin + size_bytes <= b->begin + b->size_bytes;
            rc = inside ? (int)b->place : -1;
            if (out != nullptr) {
                *out = *b;
            }
            break;
        }
    }
    softgpu_unlock(&lock);
    return rc;
}

int softgpu_blocks(enum softgpu_place place, bool imported, size_t *size_bytes)
{
    int count = 0;
    *size_bytes = 0;
    softgpu_lock(&lock);
    for (int i = 0; i < block_count; i++) {
        if (blocks[i].place == place && blocks[i].imported == imported) {
            count++;
            *size_bytes += blocks[i].size_bytes;
        }
    }
    softgpu_unlock(&lock);
    return count;
}

cudaError_t softgpu_import(int fd, size_t size_bytes, int device, void **out)
{
    struct softgpu_block b = {};
    b.place = SOFTGPU_DEVICE;
    b.device = device;
    b.imported = true;
    softgpu_lock(&lock);
    bool ok = map_block(&b, fd, size_bytes) && keep(&b);
    if (ok) {
        poison(&b);
        *out = b.begin;
    }
    softgpu_unlock(&lock);
    return softgpu_error(ok ? cudaSuccess : cudaErrorMapBufferObjectFailed);
}

cudaError_t softgpu_forget(void *p, bool imported)
{
    cudaError_t rc = cudaErrorInvalidValue;
    softgpu_lock(&lock);
    for (int i = 0; i < block_count; i++) {
        struct softgpu_block b = blocks[i];
        if (b.begin != p || b.imported != imported) {
            continue;
        }
        blocks[i] = blocks[--block_count];
        device_bytes -= b.place == SOFTGPU_DEVICE && !imported ? b.size_bytes : 0;
        retire(&b);
        if (b.fd >= 0) {
            close(b.fd);
        }
        rc = cudaSuccess;
        break;
    }
    softgpu_unlock(&lock);
    return softgpu_error(rc);
}

static cudaError_t release(void *p, enum softgpu_place place, const char *function)
{
    cudaError_t rc = softgpu_enter_uncaptured(function);
    if (rc != cudaSuccess || p == nullptr) {
        return rc;
    }
    struct softgpu_block b;
    if (softgpu_find(p, 0, &b) != place || b.begin != p || b.imported) {
        return softgpu_refuse(cudaErrorInvalidValue, "%s: %p was not allocated by its counterpart", function, p);
    }
    softgpu_wait_all();
    return softgpu_forget(p, false);
}

extern "C" {

cudaError_t cudaMalloc(void **p, size_t size)
{
    cudaError_t rc = softgpu_enter_uncaptured("cudaMalloc");
    return rc != cudaSuccess ? rc : allocate(SOFTGPU_DEVICE, size, p);
}

cudaError_t cudaFree(void *p)
{
    return release(p, SOFTGPU_DEVICE, "cudaFree");
}

cudaError_t cudaMallocHost(void **p, size_t size)
{
    cudaError_t rc = softgpu_enter_uncaptured("cudaMallocHost");
    return rc != cudaSuccess ? rc : allocate(SOFTGPU_PINNED, size, p);
}

cudaError_t cudaHostAlloc(void **p, size_t size, unsigned)
{
    return cudaMallocHost(p, size);
}

cudaError_t cudaFreeHost(void *p)
{
    return release(p, SOFTGPU_PINNED, "cudaFreeHost");
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    cudaError_t rc = softgpu_enter("cudaMemGetInfo");
    if (rc == cudaSuccess) {
        *total = memory_total();
        size_t used = __atomic_load_n(&device_bytes, __ATOMIC_RELAXED) + held();
        *free = used < *total ? *total - used : 0;
    }
    return rc;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p)
{
    cudaError_t rc = softgpu_enter("cudaPointerGetAttributes");
    if (rc != cudaSuccess) {
        return rc;
    }
    struct softgpu_block b = {};
    int place = softgpu_find(p, 1, &b);
    memset(a, 0, sizeof *a);
    a->type = place == SOFTGPU_DEVICE   ? cudaMemoryTypeDevice
              : place == SOFTGPU_PINNED ? cudaMemoryTypeHost
                                        : cudaMemoryTypeUnregistered;
    a->device = place > 0 ? b.device : -1;
    a->devicePointer = place > 0 ? (void *)p : nullptr;
    a->hostPointer = place == SOFTGPU_PINNED ? (void *)p : nullptr;
    return cudaSuccess;
}
}

void softgpu_check_pointer(const char *kernel, int index, const void *p)
{
    if (p == nullptr) {
        return;
    }
    int place = softgpu_find(p, 0, nullptr);
    if (place == SOFTGPU_PAGEABLE) {
        softgpu_die("kernel %s: argument %d is a pointer to %s", kernel, index,
                    was_freed(p) ? "memory that was freed" : "the host's own memory");
    }
}
