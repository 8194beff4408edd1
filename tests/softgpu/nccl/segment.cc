/* The memory that the ranks of a communicator share: a memfd, which other ranks open as
 * /proc/PID/fd/N. */
#include "tests/softgpu/lock.h"
#include "tests/softgpu/nccl/nccl.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t inode_of(int fd)
{
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static struct segment *map(int fd)
{
    void *p = mmap(nullptr, sizeof(struct segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? nullptr : (struct segment *)p;
}

/* The descriptor stays open, because others may join while this process lives. */
struct segment *segment_make(int size, struct id *id)
{
    int fd = memfd_create("softgpu-nccl", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(struct segment)) != 0) {
        return nullptr;
    }
    struct segment *s = map(fd);
    if (s != nullptr) {
        s->size = (uint32_t)size;
        s->magic = SEGMENT_MAGIC;
        *id = {SEGMENT_MAGIC, inode_of(fd), getpid(), fd};
    }
    return s;
}

struct segment *segment_open(const struct id *id)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", id->pid, id->fd);
    int fd = id->magic == SEGMENT_MAGIC ? open(path, O_RDWR | O_CLOEXEC) : -1;
    struct segment *s = fd >= 0 && inode_of(fd) == id->inode ? map(fd) : nullptr;
    if (fd >= 0) {
        close(fd);
    }
    return s;
}

__thread bool nothing_ends;

/* Gathers by copy engines synchronize by the streams' memory operations, which cannot be
 * aborted. */
static bool deaf(const struct comm *c)
{
    return nothing_ends ||
           (c->config.cta_policy == NCCL_CTA_ZERO && __atomic_load_n(&c->pending, __ATOMIC_ACQUIRE) != 0);
}

bool meet_at(const struct comm *c, const uint32_t *word, uint32_t value)
{
    uint32_t seen;
    while ((int32_t)((seen = __atomic_load_n(word, __ATOMIC_ACQUIRE)) - value) < 0) {
        if (__atomic_load_n(&c->stopped, __ATOMIC_ACQUIRE) != 0 && !deaf(c)) {
            return false;
        }
        softgpu_word_wait(word, seen); /* at most 50 ms */
    }
    return true;
}

bool meet_all(struct comm *c, size_t word, uint32_t value)
{
    for (int i = 0; i < c->size; i++) { /* first set the own word */
        struct part *p = &c->segment->parts[(c->rank + i) % c->size];
        uint32_t *at = (uint32_t *)(void *)((char *)p + word);
        if (i == 0) {
            __atomic_store_n(at, value, __ATOMIC_RELEASE);
            softgpu_word_wake(at);
        } else if (!meet_at(c, at, value)) {
            return false;
        }
    }
    return true;
}

bool meet(struct comm *c)
{
    return meet_all(c, offsetof(struct part, step), ++c->step);
}
