/* Memory and events for other processes. A handle names the memfd, which the other process opens by
 * /proc/PID/fd/N. */
#include "tests/softgpu/event.h"
#include "tests/softgpu/runtime.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct memory_handle {
    uint64_t size_bytes, inode;
    int pid, fd, device;
};
struct event_handle {
    uint64_t inode;
    int pid, fd, slot;
    unsigned flags;
};
static_assert(sizeof(struct memory_handle) <= sizeof(cudaIpcMemHandle_t), "fits");
static_assert(sizeof(struct event_handle) <= sizeof(cudaIpcEventHandle_t), "fits");

static uint64_t inode_of(int fd)
{
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* Returns -1 if the process is gone, or its descriptor refers to another file now. */
static int open_of(int pid, int fd, uint64_t inode)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    int own = open(path, O_RDWR | O_CLOEXEC);
    if (own >= 0 && inode_of(own) != inode) {
        close(own);
        own = -1;
    }
    return own;
}

extern "C" {

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *p)
{
    cudaError_t rc = softgpu_enter("cudaIpcGetMemHandle");
    if (rc != cudaSuccess) {
        return rc;
    }
    struct softgpu_block b;
    if (softgpu_find(p, 1, &b) != SOFTGPU_DEVICE || b.imported) {
        return softgpu_refuse(cudaErrorInvalidValue, "cudaIpcGetMemHandle: not this process's device memory");
    }
    /* the whole allocation, even if p lies inside it */
    struct memory_handle h = {b.size_bytes, inode_of(b.fd), getpid(), b.fd, b.device};
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t handle, unsigned flags)
{
    cudaError_t rc = softgpu_enter("cudaIpcOpenMemHandle");
    if (rc != cudaSuccess) {
        return rc;
    }
    struct memory_handle h;
    memcpy(&h, &handle, sizeof h);
    if (flags != cudaIpcMemLazyEnablePeerAccess || h.pid == getpid()) {
        return softgpu_refuse(cudaErrorInvalidValue, "cudaIpcOpenMemHandle: %s",
                              flags != cudaIpcMemLazyEnablePeerAccess ? "other flags" : "its own memory");
    }
    int device = -1;
    cudaGetDevice(&device);
    if (h.device != device && softgpu_setting("SOFTGPU_PEERS", 1) == 0) {
        return softgpu_error(cudaErrorPeerAccessUnsupported);
    }
    int fd = open_of(h.pid, h.fd, h.inode);
    if (fd < 0) {
        return softgpu_error(cudaErrorMapBufferObjectFailed);
    }
    rc = softgpu_import(fd, h.size_bytes, h.device, p);
    if (rc != cudaSuccess) {
        close(fd);
    }
    return rc;
}

cudaError_t cudaIpcCloseMemHandle(void *p)
{
    cudaError_t rc = softgpu_enter("cudaIpcCloseMemHandle");
    if (rc != cudaSuccess) {
        return rc;
    }
    struct softgpu_block b = {};
    if (softgpu_find(p, 0, &b) != SOFTGPU_DEVICE || b.begin != p || !b.imported) {
        return softgpu_refuse(cudaErrorInvalidValue, "cudaIpcCloseMemHandle: %p was not opened by cudaIpcOpenMemHandle",
                              p);
    }
    softgpu_wait_all();
    return softgpu_forget(p, true);
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *out, cudaEvent_t event)
{
    cudaError_t rc = softgpu_enter("cudaIpcGetEventHandle");
    if (rc != cudaSuccess) {
        return rc;
    }
    const struct softgpu_event *e = (const struct softgpu_event *)event;
    if (e == nullptr || e->magic != SOFTGPU_EVENT_MAGIC || e->map != nullptr || !(e->flags & cudaEventInterprocess)) {
        return softgpu_refuse(cudaErrorInvalidResourceHandle,
                              "cudaIpcGetEventHandle: not an event of this process with cudaEventInterprocess");
    }
    struct event_handle h = {inode_of(softgpu_event_table()), getpid(), softgpu_event_table(), e->slot, e->flags};
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *out, cudaIpcEventHandle_t handle)
{
    cudaError_t rc = softgpu_enter("cudaIpcOpenEventHandle");
    if (rc != cudaSuccess) {
        return rc;
    }
    struct event_handle h;
    memcpy(&h, &handle, sizeof h);
    if (h.pid == getpid() || h.slot < 0 || h.slot >= SOFTGPU_EVENTS) {
        return softgpu_refuse(cudaErrorInvalidResourceHandle, "cudaIpcOpenEventHandle: its own event, or no handle");
    }
    int fd = open_of(h.pid, h.fd, h.inode);
    void *map = fd >= 0 ? mmap(nullptr, SOFTGPU_EVENTS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (fd >= 0) {
        close(fd);
    }
    if (map == MAP_FAILED) {
        return softgpu_error(cudaErrorMapBufferObjectFailed);
    }
    struct softgpu_event *e = softgpu_event_make((struct softgpu_event_state *)map + h.slot, h.slot, h.flags);
    e->map = map;
    *out = (cudaEvent_t)e;
    return cudaSuccess;
}
}
