/* Memory of the shared-memory backend: memfds, which need no clean-up after a crash. Peers find a
 * memfd as /proc/PID/fd/N of its maker. Threads of the maker's process use its mapping, so a thread
 * sanitizer sees one memory. */
#include "collectives/shm.h"

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
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
#define MEMFD "dtrun-comm"
/* so that no process can shrink the file under its mappings */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* Identifies the name space of process ids: boot id and pid namespace. */
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

/* The parts of a ticket. It comes through a store or from a peer, so each part is checked before it
 * is used. */
struct ticket {
    char where[112];
    int pid, fd;
    uintptr_t address; /* of the maker's mapping, for threads of its process */
    uint64_t nonce;
    size_t size_bytes;
};

/* A mapping of a file that this process has made. A thread's ticket is looked up in this list; the
 * address in a ticket is never used unchecked. */
struct shm_made {
    struct shm_front *front;
    uint64_t nonce;
    size_t size_bytes;
    int users; /* ranks that use it; they are threads of this process */
    struct shm_made *next;
};

static pthread_mutex_t made_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shm_made *made_first; /* guarded by made_lock */

static void made_add(struct shm_map *m, uint64_t nonce)
{
    m->made = dt_alloc(sizeof(*m->made));
    (void)pthread_mutex_lock(&made_lock);
    *m->made = (struct shm_made){m->front, nonce, m->size_bytes, 1, made_first};
    made_first = m->made;
    (void)pthread_mutex_unlock(&made_lock);
}

/* Adds a user to the mapping that a ticket of our own process names. False: there is no such
 * mapping. */
static bool made_take(struct shm_map *m, const struct ticket *t)
{
    (void)pthread_mutex_lock(&made_lock);
    struct shm_made *x = made_first;
    while (x != NULL && ((uintptr_t)x->front != t->address || x->nonce != t->nonce || x->size_bytes != t->size_bytes)) {
        x = x->next;
    }
    if (x != NULL) {
        x->users++;
        *m = (struct shm_map){x->front, (char *)x->front + PAGE, x->size_bytes, x};
    }
    (void)pthread_mutex_unlock(&made_lock);
    return x != NULL;
}

/* Removes a user. True: it was the last one, and the caller unmaps. */
static bool made_drop(struct shm_made *made)
{
    (void)pthread_mutex_lock(&made_lock);
    bool last = --made->users == 0;
    struct shm_made **at = &made_first;
    while (last && *at != made) {
        at = &(*at)->next;
    }
    if (last) {
        *at = made->next;
    }
    (void)pthread_mutex_unlock(&made_lock);
    if (last) {
        free(made);
    }
    return last;
}

int shm_map_make(struct shm_map *m, size_t size_bytes, int *fd, char ticket[DT_COMM_TICKET_BYTES], struct dt_error *err)
{
    int memory = memfd_create(MEMFD, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0) {
        return dt_fail_errno(err, "memfd for a communicator");
    }
    void *p = MAP_FAILED;
    if (ftruncate(memory, (off_t)(size_bytes + PAGE)) == 0 && fcntl(memory, F_ADD_SEALS, SEALS) == 0) {
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
    *m = (struct shm_map){front, (char *)p + PAGE, size_bytes, NULL};
    made_add(m, nonce);
    *fd = memory;
    char where[112];
    identity(where, sizeof(where));
    (void)snprintf(ticket, DT_COMM_TICKET_BYTES, "shm1 %s %d %d %" PRIxPTR " %" PRIx64 " %zu", where, getpid(), memory,
                   (uintptr_t)p, nonce, size_bytes);
    return 0;
}

/* Reads a whole number in base 10 or 16, up to `most`, that ends at a blank or at the end of the
 * text. */
static bool read_number(const char **text, int base, uint64_t most, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = isxdigit((unsigned char)**text) ? strtoull(*text, &end, base) : 0;
    if (!isxdigit((unsigned char)**text) || errno != 0 || *out > most || end == *text ||
        (*end != ' ' && *end != '\0')) {
        return false;
    }
    *text = *end == ' ' ? end + 1 : end;
    return true;
}

/* False: the text is no ticket for a file of `size_bytes`. */
static bool read_ticket(struct ticket *out, const char *text, size_t size_bytes)
{
    static const char mark[] = "shm1 ";
    uint64_t pid, fd, address, size;
    *out = (struct ticket){.pid = 0};
    if (strncmp(text, mark, sizeof(mark) - 1) != 0) {
        return false;
    }
    text += sizeof(mark) - 1;
    size_t n = strcspn(text, " ");
    if (n == 0 || n >= sizeof(out->where) || text[n] != ' ') {
        return false;
    }
    memcpy(out->where, text, n);
    text += n + 1;
    if (!read_number(&text, 10, INT_MAX, &pid) || !read_number(&text, 10, INT_MAX, &fd) ||
        !read_number(&text, 16, UINTPTR_MAX, &address) || !read_number(&text, 16, UINT64_MAX, &out->nonce) ||
        !read_number(&text, 10, SIZE_MAX, &size) || *text != '\0' || pid == 0) {
        return false;
    }
    out->pid = (int)pid;
    out->fd = (int)fd;
    out->address = (uintptr_t)address;
    out->size_bytes = (size_t)size;
    return size == size_bytes && size_bytes <= (size_t)INT64_MAX - PAGE;
}

/* True if `path` names shared memory of this user, made by this program, of this size. fd is an
 * O_PATH descriptor: it opens nothing, so a device or a pipe is left alone. */
static bool is_shared_memory(int fd, const char *path, size_t size_bytes)
{
    static const char name[] = "/memfd:" MEMFD " (deleted)";
    char target[sizeof(name)];
    struct stat st;
    ssize_t n = readlink(path, target, sizeof(target));
    return n == (ssize_t)sizeof(name) - 1 && memcmp(target, name, sizeof(name) - 1) == 0 && fstat(fd, &st) == 0 &&
           S_ISREG(st.st_mode) && st.st_uid == geteuid() && st.st_size == (off_t)(size_bytes + PAGE);
}

/* Opens another process's file for reading and writing. -1 with an error. */
static int open_theirs(const struct ticket *t, struct dt_error *err)
{
    char path[48], here[48];
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", t->pid, t->fd);
    int named = open(path, O_PATH | O_CLOEXEC), memory = -1;
    if (named < 0) {
        int cause = errno;
        (void)dt_fail_errno(err, "%s: the shared memory of rank 0", path);
        if (err != NULL && cause == ENOENT) {
            err->status = DT_PEER; /* the process has ended */
        }
        return -1;
    }
    (void)snprintf(here, sizeof(here), "/proc/self/fd/%d", named);
    if (is_shared_memory(named, here, t->size_bytes)) {
        memory = open(here, O_RDWR | O_CLOEXEC);
    }
    (void)close(named);
    /* without the seals its maker could shrink the file under us */
    if (memory >= 0 && (fcntl(memory, F_GET_SEALS) & SEALS) != SEALS) {
        (void)close(memory);
        memory = -1;
    }
    return memory >= 0 ? memory : dt_fail(err, DT_PEER, "%s: is not the shared memory that rank 0 told of", path);
}

int shm_map_take(struct shm_map *m, const char *text, size_t size_bytes, struct dt_error *err)
{
    struct ticket t;
    char ours[112];
    if (!read_ticket(&t, text, size_bytes)) {
        return dt_fail(err, DT_INVALID,
                       "\"%.120s\" names no shared memory of %zu bytes; rank 0 opens a communicator of another size, "
                       "or somebody else "
                       "writes to the store",
                       text, size_bytes);
    }
    identity(ours, sizeof(ours));
    if (strcmp(ours, t.where) != 0) {
        return dt_fail(err, DT_INVALID,
                       "rank 0 is on another host or in another container: shared memory does not reach it");
    }
    if (t.pid == getpid()) {
        return made_take(m, &t)
                   ? 0
                   : dt_fail(err, DT_PEER, "\"%.120s\" names memory that this process has not made, or has no more",
                             text);
    }
    int memory = open_theirs(&t, err);
    if (memory < 0) {
        return -1;
    }
    void *p = mmap(NULL, size_bytes + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    (void)close(memory);
    if (p == MAP_FAILED) {
        return dt_fail_errno(err, "%zu bytes of the shared memory of rank 0", size_bytes);
    }
    struct shm_front *front = p;
    if (front->magic != SHM_MAGIC || front->nonce != t.nonce) {
        (void)munmap(p, size_bytes + PAGE);
        return dt_fail(err, DT_PEER, "the shared memory of process %d belongs to another round", t.pid);
    }
    *m = (struct shm_map){front, (char *)p + PAGE, size_bytes, NULL};
    return 0;
}

void shm_map_drop(struct shm_map *m)
{
    if (m->front != NULL && (m->made == NULL || made_drop(m->made))) {
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

/* Ranks spin only if every rank can have a core. Each rank may be bound to different cores, so take
 * all of them together. */
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
        if (shm_map_take(&s->map, ticket, segment_bytes(c->size), err) != 0) {
            return -1;
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
    shm_map_drop(&s->map);
    free(s->pidfds);
    free(s);
    c->state = NULL;
}
