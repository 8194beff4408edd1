/* The ring is used without in-flight requests: each is asked not to wait (MSG_DONTWAIT), so the
 * kernel has carried out all of them when io_uring_enter returns, and buffers and sockets are
 * the caller's again. Containers often forbid io_uring (EPERM, ENOSYS): then, and if the ring
 * ever does what we do not expect, sends go one by one. */
#include "launcher/store/burst.h"

#include "base/file.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { burst_least = 16 }; /* fewer cost as much by themselves */

struct burst {
    int fd;      /* -1: no ring */
    bool tried;  /* the ring is opened once */
    char *rings; /* both queues */
    size_t rings_bytes;
    struct io_uring_sqe *entries;
    size_t entries_bytes;
    unsigned *submit_tail, *submit_slots, submit_mask;
    unsigned *done_head, *done_tail, done_mask;
    struct io_uring_cqe *done;
};

struct burst *burst_open(void)
{
    struct burst *b = dt_alloc(sizeof *b);
    b->fd = -1;
    return b;
}

static void close_ring(struct burst *b)
{
    if (b->rings != NULL) {
        (void)munmap(b->rings, b->rings_bytes);
    }
    if (b->entries != NULL) {
        (void)munmap(b->entries, b->entries_bytes);
    }
    if (b->fd >= 0) {
        (void)close(b->fd);
    }
    *b = (struct burst){.fd = -1, .tried = true};
}

void burst_close(struct burst *b)
{
    if (b != NULL) {
        close_ring(b);
        free(b);
    }
}

static void *map(int fd, size_t size_bytes, off_t what)
{
    void *at = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);
    return at != MAP_FAILED ? at : NULL;
}

static void open_ring(struct burst *b)
{
    const char *use = getenv("UV_USE_IO_URING");
    struct io_uring_params p = {0};
    b->tried = true;
    /* close-on-exec by itself */
    if ((use != NULL && atoi(use) == 0) || (b->fd = (int)syscall(SYS_io_uring_setup, BURST_MOST, &p)) < 0) {
        b->fd = -1;
        return;
    }
    size_t submit_bytes = p.sq_off.array + p.sq_entries * sizeof(unsigned),
           done_bytes = p.cq_off.cqes + p.cq_entries * sizeof *b->done;
    b->rings_bytes = submit_bytes > done_bytes ? submit_bytes : done_bytes;
    b->entries_bytes = p.sq_entries * sizeof *b->entries;
    if ((p.features & IORING_FEAT_SINGLE_MMAP) == 0 ||
        (b->rings = map(b->fd, b->rings_bytes, IORING_OFF_SQ_RING)) == NULL ||
        (b->entries = map(b->fd, b->entries_bytes, IORING_OFF_SQES)) == NULL) {
        close_ring(b);
        return;
    }
    b->submit_tail = (unsigned *)(b->rings + p.sq_off.tail);
    b->submit_slots = (unsigned *)(b->rings + p.sq_off.array);
    b->submit_mask = *(unsigned *)(b->rings + p.sq_off.ring_mask);
    b->done_head = (unsigned *)(b->rings + p.cq_off.head);
    b->done_tail = (unsigned *)(b->rings + p.cq_off.tail);
    b->done_mask = *(unsigned *)(b->rings + p.cq_off.ring_mask);
    b->done = (struct io_uring_cqe *)(b->rings + p.cq_off.cqes);
}

/* How many of them the kernel took, which fills in their results. Fewer than count: something is
 * not as we know it. */
static size_t run_ring(struct burst *b, struct burst_send *sends, size_t count)
{
    unsigned tail = *b->submit_tail, head = *b->done_head; /* ours alone to write */
    for (size_t i = 0; i < count; i++, tail++) {
        unsigned slot = tail & b->submit_mask;
        b->entries[slot] =
            (struct io_uring_sqe){.opcode = IORING_OP_SEND,
                                  .fd = sends[i].fd,
                                  .addr = (uintptr_t)sends[i].data,
                                  .len = (uint32_t)(sends[i].size < INT32_MAX ? sends[i].size : INT32_MAX),
                                  .msg_flags = MSG_DONTWAIT | MSG_NOSIGNAL,
                                  .user_data = i};
        b->submit_slots[slot] = slot;
        sends[i].result = -EIO;
    }
    __atomic_store_n(b->submit_tail, tail, __ATOMIC_RELEASE);
    size_t taken = 0;
    while (taken < count) {
        unsigned rest = (unsigned)(count - taken);
        long rc = syscall(SYS_io_uring_enter, b->fd, rest, rest, IORING_ENTER_GETEVENTS, NULL, 0);
        if (rc <= 0 && !(rc < 0 && errno == EINTR)) {
            break;
        }
        taken += rc > 0 ? (size_t)rc : 0;
    }
    for (; head != __atomic_load_n(b->done_tail, __ATOMIC_ACQUIRE); head++) {
        const struct io_uring_cqe *c = &b->done[head & b->done_mask];
        if (c->user_data < count) {
            sends[c->user_data].result = c->res;
        }
    }
    __atomic_store_n(b->done_head, head, __ATOMIC_RELEASE);
    return taken;
}

void burst_run(struct burst *b, struct burst_send *sends, size_t count)
{
    size_t taken = 0;
    if (count >= burst_least && !b->tried) {
        open_ring(b);
    }
    if (count >= burst_least && b->fd >= 0 && (taken = run_ring(b, sends, count)) < count) {
        close_ring(b); /* and with it what it did not take */
    }
    for (size_t i = taken; i < count; i++) {
        ssize_t rc = send(sends[i].fd, sends[i].data, sends[i].size, MSG_DONTWAIT | MSG_NOSIGNAL);
        sends[i].result = rc >= 0 ? rc : -errno;
    }
}
