/* Communicators: making, splitting, ending, memory and windows. See nccl.h. */
#include "tests/softgpu/nccl/nccl.h"
#include "tests/softgpu/lock.h"
#include "tests/softgpu/sanitize.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ---- what a test sets ---- */

bool fault(const char *what, int rank, int number)
{
    const char *at = getenv("SOFTGPU_NCCL_FAULT"), *only = getenv("SOFTGPU_NCCL_FAULT_RESTART"),
               *restart = getenv("TORCHELASTIC_RESTART_COUNT");
    if (only != nullptr && restart != nullptr && strcmp(only, restart) != 0) {
        return false;
    }
    size_t length = strlen(what);
    while (at != nullptr && *at != '\0') {
        if (strncmp(at, what, length) == 0 && at[length] == '@') {
            char *end;
            long of = strtol(at + length + 1, &end, 10), count = *end == ':' ? strtol(end + 1, nullptr, 10) : 0;
            if (of == rank && (count == 0 || count == number)) {
                return true;
            }
        }
        at = strchr(at, ',');
        at += at != nullptr;
    }
    return false;
}

/* Appends one line to the file that the variable names. */
static void append(const char *variable, const char *fmt, va_list args)
{
    const char *path = getenv(variable);
    if (path == nullptr || *path == '\0') {
        return;
    }
    char text[300];
    int n = vsnprintf(text, sizeof text - 1, fmt, args);
    n = n < (int)sizeof text - 2 ? n : (int)sizeof text - 2;
    text[n] = '\n';
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0) {
        if (write(fd, text, (size_t)n + 1) < 0) {
        }
        close(fd);
    }
}

void note(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    append("SOFTGPU_NCCL_LOG", fmt, args);
    va_end(args);
}

void event(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    append("SOFTGPU_NCCL_EVENTS", fmt, args);
    va_end(args);
}

int own_version(void)
{
    const char *text = getenv("SOFTGPU_NCCL_VERSION"), *rank = getenv("RANK");
    for (int i = rank != nullptr ? atoi(rank) : 0; text != nullptr && i > 0 && strchr(text, ',') != nullptr; i--) {
        text = strchr(text, ',') + 1;
    }
    return text != nullptr && *text != '\0' ? atoi(text) : NCCL_FAKE_VERSION;
}

/* ---- states and threads ---- */

struct comm *comm_of(nccl_comm handle, const char *function)
{
    struct comm *c = (struct comm *)handle;
    if (c == nullptr || c->magic != COMM_MAGIC) {
        softgpu_die("%s: no communicator, or it was freed", function);
    }
    return c;
}

void set_state(struct comm *c, int state)
{
    tsan_release(&c->state); /* the sanitizer does not watch this library's own words */
    __atomic_store_n(&c->state, (uint32_t)state, __ATOMIC_RELEASE);
}

int state_of(struct comm *c)
{
    int state = (int)__atomic_load_n(&c->state, __ATOMIC_ACQUIRE);
    tsan_acquire(&c->state);
    return state;
}

void settle(struct comm *c)
{
    if (c->threaded) {
        pthread_join(c->thread, nullptr);
        c->threaded = false;
    }
}

bool change_state(struct comm *c, int from, int to)
{
    uint32_t expected = (uint32_t)from;
    tsan_release(&c->state);
    return __atomic_compare_exchange_n(&c->state, &expected, (uint32_t)to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

void begin(struct comm *c, void *(*fn)(void *))
{
    settle(c);
    set_state(c, NCCL_IN_PROGRESS);
    run_beside(c, fn);
}

void run_beside(struct comm *c, void *(*fn)(void *))
{
    settle(c);
    c->threaded = pthread_create(&c->thread, nullptr, fn, c) == 0;
    if (!c->threaded) {
        softgpu_die("NCCL: no thread");
    }
}

static char last_error[200];

int failed(struct comm *c, int result, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(last_error, sizeof last_error, fmt, args);
    va_end(args);
    set_state(c, result);
    return result;
}

/* No other call is allowed while the last one goes on. */
static struct comm *idle(nccl_comm handle, const char *function)
{
    struct comm *c = comm_of(handle, function);
    if (state_of(c) == NCCL_IN_PROGRESS) {
        softgpu_die("%s: called while the last call goes on", function);
    }
    return c;
}

static struct comm *make_comm(int size, int rank, const struct nccl_config *config)
{
    struct comm *c = (struct comm *)calloc(1, sizeof *c);
    c->magic = COMM_MAGIC;
    c->rank = c->world_rank = rank;
    c->size = size;
    c->config = *config;
    cudaGetDevice(&c->device);
    snprintf(c->name, sizeof c->name, "%s", config->name != nullptr ? config->name : "");
    set_state(c, NCCL_IN_PROGRESS);
    return c;
}

static bool good_config(const struct nccl_config *x)
{
    return x != nullptr && x->magic == 0xcafebeef && x->size == sizeof *x && x->version == NCCL_CONFIG_VERSION &&
           (x->cta_policy == NCCL_UNDEFINED || own_version() >= 22700) &&
           (x->cta_policy != NCCL_CTA_ZERO || own_version() >= 22800) &&
           (x->least_ctas == NCCL_UNDEFINED || (x->least_ctas >= 1 && x->most_ctas >= x->least_ctas));
}

/* Identifies the GPU and its host. The real one hashes the host's name, or NCCL_HOSTID. */
static uint64_t device_key(int device)
{
    const char *host = getenv("NCCL_HOSTID");
    uint64_t h = 14695981039346656037u;
    for (const char *p = host != nullptr ? host : ""; *p != '\0'; p++) {
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    }
    cudaDeviceProp p;
    return cudaGetDeviceProperties(&p, device) == cudaSuccess ? h * 64 + (uint64_t)p.pciBusID : h;
}

/* ---- joining ---- */

static void join(struct comm *c)
{
    if (fault("init-hang", c->world_rank, 0)) {
        static const uint32_t never = 0;
        (void)meet_at(c, &never, 1);
        return;
    }
    if (fault("init-error", c->world_rank, 0)) {
        failed(c, NCCL_SYSTEM_ERROR, "a test wants it so");
        return;
    }
    if (fault("init-full", c->world_rank, 0)) {
        failed(c, NCCL_UNHANDLED_CUDA_ERROR, "Failed to CUDA calloc 536870912 bytes");
        return;
    }
    struct segment *s = c->segment;
    struct part *own = &s->parts[c->rank];
    own->pid = getpid();
    own->version = own_version();
    own->device = device_key(c->device);
    __atomic_store_n(&own->joined, 1, __ATOMIC_RELEASE);
    softgpu_word_wake(&own->joined);
    for (int r = 0; r < c->size; r++) {
        if (!meet_at(c, &s->parts[r].joined, 1)) {
            return;
        }
    }
    for (int r = 0; r < c->size; r++) {
        if (s->parts[r].version != own->version) {
            failed(c, NCCL_INVALID_USAGE, "Mismatched NCCL version detected : rank %d version %d rank %d version %d",
                   c->rank, own->version, r, s->parts[r].version);
            return;
        }
        if (r != c->rank && s->parts[r].device == own->device) {
            failed(c, NCCL_INVALID_USAGE, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x000",
                   c->rank, r, c->device + 1);
            return;
        }
    }
    set_state(c, NCCL_SUCCESS);
}

static void *join_main(void *argument)
{
    struct comm *c = (struct comm *)argument;
    timespec t = {0, 2000000};
    nanosleep(&t, nullptr);
    c->segment = segment_open(&c->id);
    if (c->segment == nullptr || c->segment->size != (uint32_t)c->size) {
        failed(c, NCCL_SYSTEM_ERROR, "the root is gone");
    } else {
        join(c);
    }
    return nullptr;
}

/* ---- splitting ---- */

/* The ranks of my color before and behind me, sorted by key and then by rank. */
static void place(const struct comm *c, int *rank, int *size, int *first)
{
    const struct part *p = c->segment->parts;
    *rank = *size = 0;
    *first = c->rank;
    for (int r = 0; r < c->size; r++) {
        if (p[r].color != c->color) {
            continue;
        }
        bool before = p[r].key < c->key || (p[r].key == c->key && r < c->rank);
        *rank += before;
        ++*size;
        if (p[r].key < p[*first].key || (p[r].key == p[*first].key && r < *first)) {
            *first = r;
        }
    }
}

static void *late_main(void *argument)
{
    timespec t = {0, 100000000};
    nanosleep(&t, nullptr);
    set_state((struct comm *)argument, NCCL_SUCCESS);
    return nullptr;
}

static bool split(struct comm *c)
{
    struct part *parts = c->segment->parts, *own = &parts[c->rank];
    uint32_t number = ++c->split_count;
    own->color = c->color;
    own->key = c->key;
    __atomic_store_n(&own->split, number, __ATOMIC_RELEASE);
    softgpu_word_wake(&own->split);
    for (int r = 0; r < c->size; r++) {
        if (!meet_at(c, &parts[r].split, number)) {
            return false;
        }
    }
    if (c->color != NCCL_NO_COLOR) {
        struct comm *child = c->child;
        struct id id;
        int first = 0;
        place(c, &child->rank, &child->size, &first);
        child->world_rank = c->world_rank;
        if (first == c->rank) {
            child->segment = segment_make(child->size, &id);
            own->maker_pid = id.pid;
            own->maker_fd = id.fd;
            own->inode = id.inode;
            __atomic_store_n(&own->made, number, __ATOMIC_RELEASE);
            softgpu_word_wake(&own->made);
        } else {
            if (!meet_at(c, &parts[first].made, number)) {
                return false;
            }
            id = {SEGMENT_MAGIC, parts[first].inode, parts[first].maker_pid, parts[first].maker_fd};
            child->segment = segment_open(&id);
        }
        if (child->segment == nullptr) {
            return false;
        }
        join(child);
        if (fault("split-late", c->world_rank, 0) && state_of(child) == NCCL_SUCCESS) {
            begin(child, late_main);
        }
        __atomic_store_n(c->child_out, child, __ATOMIC_RELEASE);
    }
    return meet(c); /* before the next split of any rank */
}

static void *split_main(void *argument)
{
    struct comm *c = (struct comm *)argument;
    if (split(c)) {
        (void)change_state(c, NCCL_IN_PROGRESS, NCCL_SUCCESS);
    } else if (__atomic_load_n(&c->stopped, __ATOMIC_ACQUIRE) == 0) {
        failed(c, NCCL_SYSTEM_ERROR, "cannot be split");
    }
    return nullptr;
}

/* ---- ending ---- */

static void wait_for_streams(struct comm *c)
{
    uint32_t pending;
    while ((pending = __atomic_load_n(&c->pending, __ATOMIC_ACQUIRE)) != 0) {
        softgpu_word_wait(&c->pending, pending);
    }
    tsan_acquire(&c->pending);
}

static void *finalize_main(void *argument)
{
    struct comm *c = (struct comm *)argument;
    wait_for_streams(c);
    if (meet(c)) {
        set_state(c, NCCL_SUCCESS);
    }
    return nullptr;
}

static void *rest_main(void *argument)
{
    struct comm *c = (struct comm *)argument;
    wait_for_streams(c);
    if (!fault("revoke-hang", c->world_rank, 0)) {
        set_state(c, NCCL_SUCCESS);
    }
    return nullptr;
}

/* At the end the real one makes this thread's device current again, and has created a context
 * there. */
static void check_device(const struct comm *c, const char *function)
{
    int current = -1;
    cudaGetDevice(&current);
    if (current != c->device) {
        softgpu_die("%s: the device of this thread is %d, that of the communicator %d", function, current, c->device);
    }
}

static void drop(struct comm *c)
{
    settle(c);
    if (c->segment != nullptr) {
        munmap(c->segment, sizeof *c->segment);
    }
    c->magic = 0;
    cudaFree(c->buffers);
    free(c);
}

extern "C" {

int ncclGetVersion(int *version)
{
    *version = own_version();
    return NCCL_SUCCESS;
}

#if NCCL_FAKE_VERSION >= 21400
int ncclGetUniqueId(struct nccl_id *out)
{
    struct id id;
    struct segment *s = segment_make(0, &id);
    if (s == nullptr) {
        return NCCL_SYSTEM_ERROR;
    }
    memset(out, 0, sizeof *out);
    memcpy(out, &id, sizeof id);
    munmap(s, sizeof *s);
    return NCCL_SUCCESS;
}

int ncclCommInitRankConfig(nccl_comm *out, int size, struct nccl_id id, int rank, struct nccl_config *config)
{
    if (!good_config(config) || size < 1 || size > RANKS_MAX || rank < 0 || rank >= size) {
        return NCCL_INVALID_ARGUMENT;
    }
    /* greater than any count a program gives */
    const char *blocking = getenv("NCCL_COMM_BLOCKING");
    if (blocking != nullptr ? atoi(blocking) != 0 : config->blocking != 0) {
        softgpu_die("ncclCommInitRankConfig: a communicator that blocks");
    }
    struct comm *c = make_comm(size, rank, config);
    memcpy(&c->id, &id, sizeof c->id);
    c->segment = segment_open(&c->id);
    if (c->segment != nullptr) { /* rank 0 created it without knowing the number of ranks */
        c->segment->size = (uint32_t)size;
        munmap(c->segment, sizeof *c->segment);
    }
    note("ncclCommInitRankConfig rank %d of %d comm %s device %d ctas %d..%d policy %d", rank, size, c->name, c->device,
         config->least_ctas == NCCL_UNDEFINED ? 0 : config->least_ctas,
         config->most_ctas == NCCL_UNDEFINED ? 0 : config->most_ctas,
         config->cta_policy == NCCL_UNDEFINED ? -1 : config->cta_policy);
    *out = c;
    begin(c, join_main);
    return NCCL_IN_PROGRESS;
}
#endif

#if NCCL_FAKE_VERSION >= 21800
int ncclCommSplit(nccl_comm handle, int color, int key, nccl_comm *out, struct nccl_config *config)
{
    struct comm *c = idle(handle, "ncclCommSplit");
    if (!good_config(config) || c->revoked || state_of(c) != NCCL_SUCCESS) {
        return NCCL_INVALID_ARGUMENT;
    }
    *out = nullptr; /* published when it exists */
    c->color = color;
    c->key = key;
    c->child = color != NCCL_NO_COLOR ? make_comm(c->size, c->rank, config) : nullptr;
    c->child_out = (struct comm **)out;
    note("ncclCommSplit rank %d of %d comm %s color %d policy %d", c->rank, c->size, c->name, color,
         config->cta_policy == NCCL_UNDEFINED ? -1 : config->cta_policy);
    begin(c, split_main);
    return NCCL_IN_PROGRESS;
}
#endif

int ncclCommFinalize(nccl_comm handle)
{
    struct comm *c = idle(handle, "ncclCommFinalize");
    if (c->revoked || c->finalized) {
        return NCCL_INVALID_USAGE;
    }
    c->finalized = true;
    begin(c, finalize_main);
    return NCCL_IN_PROGRESS;
}

int ncclCommDestroy(nccl_comm handle)
{
    struct comm *c = idle(handle, "ncclCommDestroy");
    if (!c->finalized && !c->revoked) {
        softgpu_die("ncclCommDestroy: of one that was neither finalized nor revoked: it would wait");
    }
    check_device(c, "ncclCommDestroy");
    while (fault("destroy-hang", c->world_rank, 0)) {
        pause();
    }
    wait_for_streams(c);
    drop(c);
    return NCCL_SUCCESS;
}

int ncclCommAbort(nccl_comm handle)
{
    struct comm *c = comm_of(handle, "ncclCommAbort");
    check_device(c, "ncclCommAbort");
    if (own_version() < 21900 && state_of(c) == NCCL_IN_PROGRESS) {
        softgpu_die("ncclCommAbort: while a call of another thread goes on, which before 2.19 uses what this frees");
    }
    note("ncclCommAbort rank %d of %d comm %s", c->rank, c->size, c->name);
    while (fault("abort-hang", c->world_rank, 0)) {
        pause();
    }
    __atomic_store_n(&c->stopped, 1, __ATOMIC_RELEASE);
    settle(c);
    wait_for_streams(c);
    drop(c);
    return NCCL_SUCCESS;
}

#if NCCL_FAKE_VERSION >= 22807
int ncclCommRevoke(nccl_comm handle, int flags)
{
    struct comm *c = idle(handle, "ncclCommRevoke");
    check_device(c, "ncclCommRevoke");
    if (state_of(c) != NCCL_SUCCESS) {
        softgpu_die("ncclCommRevoke: of one that has failed: it would free what its last call left twice");
    }
    if (flags != 0 || c->revoked) {
        return NCCL_INVALID_USAGE;
    }
    note("ncclCommRevoke rank %d of %d comm %s", c->rank, c->size, c->name);
    c->revoked = true;
    __atomic_store_n(&c->stopped, 1, __ATOMIC_RELEASE);
    begin(c, rest_main);
    return NCCL_IN_PROGRESS;
}
#endif

int ncclCommGetAsyncError(nccl_comm handle, int *out)
{
    struct comm *c = comm_of(handle, "ncclCommGetAsyncError");
    *out = state_of(c);
    if (*out == NCCL_REMOTE_ERROR) {
        __atomic_store_n(&c->asked, 1, __ATOMIC_RELEASE);
    }
    return NCCL_SUCCESS;
}

const char *ncclGetErrorString(int result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result >= 0 && result <= NCCL_IN_PROGRESS ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(nccl_comm handle)
{
    (void)handle;
    return last_error;
}

/* ---- memory ---- */

#if NCCL_FAKE_VERSION >= 21900
static struct softgpu_lock memory_lock;
static struct {
    void *base;
    size_t size_bytes;
    int users; /* number of threads that register */
} memory[WINDOWS_MAX];

int ncclMemAlloc(void **out, size_t size_bytes)
{
    const char *rank = getenv("RANK");
    if (fault("no-memory", rank != nullptr ? atoi(rank) : -1, 0) || cudaMalloc(out, size_bytes) != cudaSuccess) {
        return NCCL_UNHANDLED_CUDA_ERROR;
    }
    softgpu_lock(&memory_lock);
    for (int i = 0; i < WINDOWS_MAX; i++) {
        if (memory[i].base == nullptr) {
            memory[i] = {*out, size_bytes, 0};
            break;
        }
    }
    softgpu_unlock(&memory_lock);
    return NCCL_SUCCESS;
}

int ncclMemFree(void *p)
{
    softgpu_lock(&memory_lock);
    bool known = false, used = false;
    for (int i = 0; i < WINDOWS_MAX; i++) {
        if (memory[i].base == p) {
            used = memory[i].users > 0;
            memory[i] = {nullptr, 0, 0};
            known = true;
        }
    }
    softgpu_unlock(&memory_lock);
    if (used) {
        softgpu_die("ncclMemFree: of memory that is being registered");
    }
    if (!known) {
        softgpu_die("ncclMemFree: not by ncclMemAlloc");
    }
    return cudaFree(p) == cudaSuccess ? NCCL_SUCCESS : NCCL_UNHANDLED_CUDA_ERROR;
}
#endif

#if NCCL_FAKE_VERSION >= 22700
static bool use(void *p, size_t size_bytes, int users)
{
    bool known = false;
    softgpu_lock(&memory_lock);
    for (int i = 0; i < WINDOWS_MAX && !known; i++) {
        known = memory[i].base != nullptr && (char *)p >= (char *)memory[i].base &&
                (char *)p + size_bytes <= (char *)memory[i].base + memory[i].size_bytes;
        memory[i].users += known ? users : 0;
    }
    softgpu_unlock(&memory_lock);
    return known;
}

static void *window_main(void *argument)
{
    struct comm *c = (struct comm *)argument;
    if (fault("window-error", c->world_rank, 0)) {
        failed(c, NCCL_SYSTEM_ERROR, "a test wants it so");
    } else if (meet_all(c, offsetof(struct part, windows), c->window_count + 1)) {
        c->windows[c->window_count++ % WINDOWS_MAX] = {(const unsigned char *)c->window.base, c->window.size_bytes};
        __atomic_store_n(c->window.out, c->window.base, __ATOMIC_RELEASE);
        (void)change_state(c, NCCL_IN_PROGRESS, NCCL_SUCCESS);
    }
    use(c->window.base, 1, -1);
    return nullptr;
}

int ncclCommWindowRegister(nccl_comm handle, void *p, size_t size_bytes, nccl_window *out, int flags)
{
    struct comm *c = idle(handle, "ncclCommWindowRegister");
    if (flags != NCCL_SYMMETRIC || fault("window", c->world_rank, 0) || !use(p, size_bytes, 1)) {
        return NCCL_INVALID_ARGUMENT;
    }
    note("ncclCommWindowRegister rank %d of %d comm %s bytes %zu", c->rank, c->size, c->name, size_bytes);
    *out = nullptr;
    c->window = {p, out, size_bytes};
    begin(c, window_main);
    return NCCL_IN_PROGRESS;
}

int ncclCommWindowDeregister(nccl_comm handle, nccl_window w)
{
    (void)idle(handle, "ncclCommWindowDeregister");
    return w != nullptr ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}
#endif

} /* extern "C" */
