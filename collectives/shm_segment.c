/* Memory of the shared-memory backend: memfds, which nothing has to remove after a crash, found by their makers' peers as
 * /proc/PID/fd/N. Threads of the maker's process use its mapping, so that a thread sanitizer sees one memory. */
#include "collectives/shm.h"

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE ((size_t)4096)

/* One name space of process ids on one running host: the boot, and the pid namespace. */
static void identity(char *out, size_t out_bytes)
{
    char boot[40] = "unknown", space[64] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f != NULL) {
        if (fscanf(f, "%39s", boot) != 1) {
            (void)snprintf(boot, sizeof(boot), "unknown");
        }
        (void)fclose(f);
    }
    ssize_t n = readlink("/proc/self/ns/pid", space, sizeof(space) - 1);
    space[n > 0 ? n : 0] = 0;
    (void)snprintf(out, out_bytes, "%s/%s", boot, space);
}

int shm_map_make(struct shm_map *m, size_t size_bytes, int *fd, char ticket[DT_COMM_TICKET_BYTES], struct dt_error *err)
{
    int memory = memfd_create("dtrun-comm", MFD_CLOEXEC);
    if (memory < 0) {
        return dt_fail_errno(err, "memfd for a communicator");
    }
    void *p = MAP_FAILED;
    if (ftruncate(memory, (off_t)(size_bytes + PAGE)) == 0) {
        p = mmap(NULL, size_bytes + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    }
    uint64_t nonce = 0;
    if (p == MAP_FAILED || getrandom(&nonce, sizeof(nonce), 0) != (ssize_t)sizeof(nonce)) {
        (void)dt_fail_errno(err, "%zu bytes of shared memory", size_bytes);
        if (p != MAP_FAILED) {
            (void)munmap(p, size_bytes + PAGE);
        }
        (void)close(memory);
        return -1;
    }
    (void)madvise((char *)p + PAGE, size_bytes, MADV_HUGEPAGE);
    struct shm_front *front = p;
    front->magic = SHM_MAGIC;
    front->nonce = nonce;
    front->size_bytes = size_bytes;
    atomic_store(&front->users, 1);
    *m = (struct shm_map){front, (char *)p + PAGE, size_bytes, true};
    *fd = memory;
    char where[112];
    identity(where, sizeof(where));
    (void)snprintf(ticket, DT_COMM_TICKET_BYTES, "shm1 %s %d %d %" PRIxPTR " %" PRIx64 " %zu", where, getpid(), memory, (uintptr_t)p, nonce,
                   size_bytes);
    return 0;
}

int shm_map_take(struct shm_map *m, const char *ticket, struct dt_error *err)
{
    char theirs[112], ours[112], path[48];
    int pid = 0, fd = 0;
    uintptr_t address = 0;
    uint64_t nonce = 0;
    size_t size_bytes = 0;
    if (sscanf(ticket, "shm1 %111s %d %d %" SCNxPTR " %" SCNx64 " %zu", theirs, &pid, &fd, &address, &nonce, &size_bytes) != 6) {
        return dt_fail(err, DT_INVALID, "\"%.60s\" says nothing about shared memory", ticket);
    }
    identity(ours, sizeof(ours));
    if (strcmp(ours, theirs) != 0) {
        return dt_fail(err, DT_INVALID, "rank 0 is on another host or in another container: shared memory does not reach it");
    }
    if (pid == getpid()) {
        struct shm_front *front = (struct shm_front *)address; // NOLINT: our own mapping, told by another thread
        atomic_fetch_add(&front->users, 1);
        *m = (struct shm_map){front, (char *)front + PAGE, size_bytes, true};
        return 0;
    }
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    int memory = open(path, O_RDWR | O_CLOEXEC);
    if (memory < 0) {
        int cause = errno;
        (void)dt_fail_errno(err, "%s: the shared memory of rank 0", path);
        if (err != NULL && cause == ENOENT) {
            err->status = DT_PEER; /* it has ended since */
        }
        return -1;
    }
    struct stat st;
    void *p = MAP_FAILED;
    if (fstat(memory, &st) == 0 && st.st_size == (off_t)(size_bytes + PAGE)) {
        p = mmap(NULL, size_bytes + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    }
    (void)close(memory);
    if (p == MAP_FAILED) {
        return dt_fail(err, DT_PEER, "%s: is not the shared memory that rank 0 told of", path);
    }
    struct shm_front *front = p;
    if (front->magic != SHM_MAGIC || front->nonce != nonce) {
        (void)munmap(p, size_bytes + PAGE);
        return dt_fail(err, DT_PEER, "%s: belongs to another round", path);
    }
    *m = (struct shm_map){front, (char *)p + PAGE, size_bytes, false};
    return 0;
}

void shm_map_drop(struct shm_map *m)
{
    if (m->front != NULL && (!m->shared || atomic_fetch_sub(&m->front->users, 1) == 1)) {
        (void)munmap(m->front, m->size_bytes + PAGE);
    }
    *m = (struct shm_map){0};
}

static size_t segment_bytes(int size)
{
    return PAGE + (size_t)size * (sizeof(struct shm_slot) + SHM_BOUNCE_BYTES);
}

int shm_offer(struct dt_comm *c, char ticket[DT_COMM_TICKET_BYTES], struct dt_error *err)
{
    struct shm *s = dt_alloc(sizeof(*s));
    s->fd = -1;
    c->state = s;
    return shm_map_make(&s->map, segment_bytes(c->size), &s->fd, ticket, err);
}

int shm_core_count(const uint64_t cpus[SHM_CPU_WORDS])
{
    int count = 0;
    for (int i = 0; i < SHM_CPU_WORDS; i++) {
        count += __builtin_popcountll(cpus[i]);
    }
    double quota = dt_cgroup_cpus();
    if (quota > 0 && quota < count) {
        count = (int)quota;
    }
    return count > 0 ? count : 1;
}

static void join(struct dt_comm *c)
{
    struct shm_slot *slot = shm_slot(c->state, c->rank);
    slot->pid = getpid();
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        memcpy(slot->cpus, &set, sizeof(slot->cpus) < sizeof(set) ? sizeof(slot->cpus) : sizeof(set));
    }
    atomic_store(&slot->joined, 1);
}

/* Spinning pays only while every rank can have a core. The ranks may be bound to different ones. */
static void choose_spin(struct dt_comm *c)
{
    struct shm *s = c->state;
    if (c->parent != NULL && c->parent->ops == c->ops) {
        s->spin_s = ((struct shm *)c->parent->state)->spin_s;
        return;
    }
    uint64_t all[SHM_CPU_WORDS] = {0};
    for (int r = 0; r < c->size; r++) {
        for (int i = 0; i < SHM_CPU_WORDS; i++) {
            all[i] |= shm_slot(s, r)->cpus[i];
        }
    }
    s->spin_s = c->size <= shm_core_count(all) ? 20e-6 : 0;
}

static void watch_peers(struct dt_comm *c)
{
    struct shm *s = c->state;
    for (int r = 0; r < c->size; r++) {
        int pid = shm_slot(s, r)->pid;
        if (pid != getpid()) {
            s->pidfds[r] = (int)syscall(SYS_pidfd_open, pid, 0);
        }
    }
}

int shm_open_segment(struct dt_comm *c, const char *ticket, struct dt_error *err)
{
    struct shm *s = c->state;
    if (s == NULL) {
        s = dt_alloc(sizeof(*s));
        s->fd = -1;
        c->state = s;
        if (shm_map_take(&s->map, ticket, err) != 0) {
            return -1;
        }
        if (s->map.size_bytes != segment_bytes(c->size)) {
            return dt_fail(err, DT_INVALID, "rank 0 opens a communicator of another size");
        }
    }
    s->header = (struct shm_header *)(void *)s->map.base;
    s->slots = s->map.base + PAGE;
    s->bounces = s->slots + (size_t)c->size * sizeof(struct shm_slot);
    s->pidfds = dt_alloc((size_t)c->size * sizeof(*s->pidfds));
    for (int r = 0; r < c->size; r++) {
        s->pidfds[r] = -1;
    }
    join(c);
    struct shm_call call = {"opening", c->name, 0, c->open_timeout_s};
    if (shm_step(c, &call, err) != 0) {
        return -1;
    }
    s->open = true;
    watch_peers(c);
    choose_spin(c);
    if (s->fd >= 0) {
        (void)close(s->fd);
        s->fd = -1;
    }
    return 0;
}

void shm_close(struct dt_comm *c)
{
    struct shm *s = c->state;
    if (s == NULL) {
        return;
    }
    if (s->header != NULL) {
        uint32_t here = SHM_HERE;
        (void)atomic_compare_exchange_strong(&shm_slot(s, c->rank)->left, &here, SHM_CLOSED);
        shm_wake(s);
    }
    for (int i = 0; i < s->arena_count; i++) {
        shm_map_drop(&s->arenas[i].map);
    }
    for (int r = 0; s->pidfds != NULL && r < c->size; r++) {
        if (s->pidfds[r] >= 0) {
            (void)close(s->pidfds[r]);
        }
    }
    if (s->fd >= 0) {
        (void)close(s->fd);
    }
    if (s->open || !s->map.shared) { /* otherwise a thread may be about to use it, and the program is about to end */
        shm_map_drop(&s->map);
    }
    free(s->pidfds);
    free(s);
    c->state = NULL;
}
