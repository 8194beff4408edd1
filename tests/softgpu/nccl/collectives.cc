/* The collectives: entries of streams. Data pass through the segment in chunks. Sums are taken in
 * rank order, and BF16 is rounded at each step, as on a ring. */
#include "tests/softgpu/lock.h"
#include "tests/softgpu/nccl/nccl.h"
#include "tests/softgpu/sanitize.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };
static const char *const names[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast"};

struct entry {
    struct comm *c;
    struct softgpu_stream *stream;
    struct what what;
    const unsigned char *in;
    unsigned char *out;
    size_t width;
    int number;
    /* number among all collectives of this process: 0, 1, ..; 0 if nothing orders them */
    uint32_t sequence;
};

/* so many of the ordered collectives are on the device, or were there */
static uint32_t sequence_begun;
static uint32_t running;
static uint32_t gathers_through;

static size_t width_of(int type)
{
    switch (type) {
    case NCCL_U8:
        return 1;
    case NCCL_F16:
    case NCCL_BF16:
        return 2;
    case NCCL_I32:
    case NCCL_F32:
        return 4;
    case NCCL_I64:
    case NCCL_F64:
        return 8;
    default:
        return 0;
    }
}

template <typename T> static T combine(T a, T b, int op)
{
    return op == NCCL_SUM ? (T)(a + b) : op == NCCL_MAX ? (a > b ? a : b) : (a < b ? a : b);
}

template <> int64_t combine(int64_t a, int64_t b, int op)
{
    return op == NCCL_SUM ? (int64_t)((uint64_t)a + (uint64_t)b) : op == NCCL_MAX ? (a > b ? a : b) : (a < b ? a : b);
}

template <typename T> static void add(unsigned char *to, const unsigned char *from, size_t count, int op)
{
    for (size_t i = 0; i < count; i++) {
        T a, b;
        memcpy(&a, to + i * sizeof a, sizeof a);
        memcpy(&b, from + i * sizeof b, sizeof b);
        a = combine(a, b, op);
        memcpy(to + i * sizeof a, &a, sizeof a);
    }
}

static float widened(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
static float widened(__half x)
{
    return __half2float(x);
}

template <typename T, T (*NARROW)(float)>
static void add_half(unsigned char *to, const unsigned char *from, size_t count, int op)
{
    for (size_t i = 0; i < count; i++) {
        T a, b;
        memcpy(&a, to + 2 * i, 2);
        memcpy(&b, from + 2 * i, 2);
        a = NARROW(combine(widened(a), widened(b), op));
        memcpy(to + 2 * i, &a, 2);
    }
}

static void add_any(unsigned char *to, const unsigned char *from, size_t count, int type, int op)
{
    switch (type) {
    case NCCL_F32:
        return add<float>(to, from, count, op);
    case NCCL_F64:
        return add<double>(to, from, count, op);
    case NCCL_I64:
        return add<int64_t>(to, from, count, op);
    case NCCL_I32:
        return add<int32_t>(to, from, count, op);
    case NCCL_BF16:
        return add_half<__nv_bfloat16, __float2bfloat16>(to, from, count, op);
    case NCCL_F16:
        return add_half<__half, __float2half>(to, from, count, op);
    default:
        softgpu_die("NCCL: type %d is not added here", type);
    }
}

static size_t out_bytes(const entry *e)
{
    return e->what.count * e->width * (e->what.kind == ALL_GATHER ? (size_t)e->c->size : 1);
}

/* Elements at .. at + n of the whole buffer, or of each slot. */
static void put_in(const entry *e, size_t at, size_t n)
{
    unsigned char *to = e->c->segment->bounce[e->c->rank];
    size_t slots = e->what.kind == REDUCE_SCATTER ? (size_t)e->c->size : 1;
    if (e->what.kind == BROADCAST && e->what.root != e->c->rank) {
        return;
    }
    for (size_t i = 0; i < slots; i++) {
        softgpu_copy_bytes(to + i * n * e->width, e->in + (i * e->what.count + at) * e->width, n * e->width);
    }
}

static void take_out(const entry *e, size_t at, size_t n)
{
    const struct comm *c = e->c;
    static __thread unsigned char sum[CHUNK_BYTES];
    unsigned char *out = e->out + at * e->width;
    size_t bytes = n * e->width, shift = e->what.kind == REDUCE_SCATTER ? (size_t)c->rank * bytes : 0;
    switch (e->what.kind) {
    case ALL_GATHER:
        for (int r = 0; r < c->size; r++) {
            softgpu_copy_bytes(out + (size_t)r * e->what.count * e->width, c->segment->bounce[r], bytes);
        }
        break;
    case BROADCAST:
        softgpu_copy_bytes(out, c->segment->bounce[e->what.root], bytes);
        break;
    default:
        memcpy(sum, c->segment->bounce[0] + shift, bytes);
        for (int r = 1; r < c->size; r++) {
            add_any(sum, c->segment->bounce[r] + shift, n, e->what.type, e->what.op);
        }
        softgpu_copy_bytes(out, sum, bytes);
    }
}

static void stand_still(const struct comm *c)
{
    static const uint32_t never = 0;
    (void)meet_at(c, &never, 1);
}

static bool same(const struct comm *c, const struct what *what)
{
    for (int r = 0; r < c->size; r++) {
        if (memcmp(&c->segment->parts[r].what, what, sizeof *what) != 0) {
            return false;
        }
    }
    return true;
}

/* Read only once, like the real one. */
static bool is_ordered(void)
{
    static const char *text = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    static const bool ordered = own_version() >= 22600 && text != nullptr && strcmp(text, "1") == 0;
    return ordered;
}

/* Waits until a later gather has completed, but not for long: there may be none behind this one. */
static void be_late(const struct comm *c)
{
    timespec t = {0, 1000000};
    uint32_t before = __atomic_load_n(&gathers_through, __ATOMIC_ACQUIRE);
    for (int i = 0; i < 500 && __atomic_load_n(&gathers_through, __ATOMIC_ACQUIRE) == before &&
                    __atomic_load_n(&c->stopped, __ATOMIC_ACQUIRE) == 0;
         i++) {
        nanosleep(&t, nullptr);
    }
}

/* The device has room for a collective when those before it have begun. Returns false if c was
 * stopped before. */
static bool take_the_device(const entry *e)
{
    if (!meet_at(e->c, &sequence_begun, e->sequence)) {
        return false;
    }
    if (is_ordered()) {
        __atomic_store_n(&sequence_begun, e->sequence + 1, __ATOMIC_RELEASE);
        softgpu_word_wake(&sequence_begun);
    } else if (__atomic_load_n(&running, __ATOMIC_ACQUIRE) > 1) {
        softgpu_die("%s: a collective of another communicator is on the device, and nothing orders them: they may wait "
                    "for each other for good",
                    names[e->what.kind]);
    }
    return true;
}

static bool pass(const entry *e)
{
    struct comm *c = e->c;
    if (e->what.kind == REDUCE_SCATTER && fault("late-sums", c->world_rank, 0)) {
        be_late(c);
    }
    if (fault("hang", c->world_rank, e->number)) {
        stand_still(c);
        return false;
    }
    if (fault("late-error", c->world_rank, e->number)) {
        timespec t = {0, 300000000};
        nanosleep(&t, nullptr);
    }
    if (fault("error", c->world_rank, e->number) || fault("late-error", c->world_rank, e->number)) {
        set_state(c, NCCL_REMOTE_ERROR);
        stand_still(c);
        return false;
    }
    if (fault("echo", c->world_rank, e->number)) {
        timespec t = {0, 10000000};
        set_state(c, NCCL_REMOTE_ERROR);
        while (__atomic_load_n(&c->asked, __ATOMIC_ACQUIRE) == 0 &&
               __atomic_load_n(&c->stopped, __ATOMIC_ACQUIRE) == 0) {
            nanosleep(&t, nullptr);
        }
        nanosleep(&t, nullptr);
        kill(c->segment->parts[(c->rank + 1) % c->size].pid, SIGKILL);
        stand_still(c);
        return false;
    }
    c->segment->parts[c->rank].what = e->what;
    if (!meet(c)) {
        return false;
    }
    if (!same(c, &e->what)) { /* the real one hangs or does worse */
        set_state(c, NCCL_INTERNAL_ERROR);
        stand_still(c);
        return false;
    }
    size_t slots = e->what.kind == REDUCE_SCATTER ? (size_t)c->size : 1, most = CHUNK_BYTES / e->width / slots;
    for (size_t at = 0; at < e->what.count; at += most) {
        size_t n = e->what.count - at < most ? e->what.count - at : most;
        put_in(e, at, n);
        if (!meet(c)) {
            return false;
        }
        take_out(e, at, n);
        if (!meet(c)) { /* after that the bounce buffers may be written again */
            return false;
        }
    }
    return true;
}

static bool in_window(const struct comm *c, const unsigned char *p)
{
    for (uint32_t i = 0; i < c->window_count && i < WINDOWS_MAX; i++) {
        if (p >= c->windows[i].base && p < c->windows[i].base + c->windows[i].size_bytes) {
            return true;
        }
    }
    return false;
}

/* Whether a kernel over symmetric windows computes it. */
static bool is_symmetric(const entry *e)
{
    bool adds = (e->what.kind == ALL_REDUCE || e->what.kind == REDUCE_SCATTER) && e->what.op == NCCL_SUM &&
                (e->what.type == NCCL_F32 || e->what.type == NCCL_F16 || e->what.type == NCCL_BF16);
    return (adds || e->what.kind == ALL_GATHER) && in_window(e->c, e->in) && in_window(e->c, e->out);
}

/* The last access to c by the thread that enqueued or ran a collective: a thread that waits until
 * none is pending may then free c. */
static void one_less(struct comm *c)
{
    tsan_release(&c->pending);
    __atomic_sub_fetch(&c->pending, 1, __ATOMIC_ACQ_REL);
}

static void run(void *argument)
{
    entry *e = (entry *)argument;
    struct comm *c = e->c;
    __atomic_add_fetch(&running, 1, __ATOMIC_ACQ_REL);
    bool well = take_the_device(e);
    event("begin %s rank %d", names[e->what.kind], c->world_rank);
    nothing_ends = own_version() < 22907 && is_symmetric(e);
    if (!well || !pass(e)) {
        softgpu_set_bytes(e->out, 0xff, out_bytes(e)); /* no program may rely on the value */
    }
    nothing_ends = false;
    event("end %s rank %d", names[e->what.kind], c->world_rank);
    __atomic_add_fetch(&gathers_through, e->what.kind == ALL_GATHER ? 1u : 0u, __ATOMIC_ACQ_REL);
    __atomic_sub_fetch(&running, 1, __ATOMIC_ACQ_REL);
    one_less(c);
    softgpu_word_wake(&c->pending);
    free(e);
}

static void put(entry *e)
{
    struct softgpu_entry x;
    memset(&x, 0, sizeof x);
    x.kind = SOFTGPU_HOST;
    x.name = names[e->what.kind];
    x.host.fn = run;
    x.host.argument = e;
    x.host.once = true;
    if (softgpu_put(e->stream, &x, nullptr, 0) != cudaSuccess) {
        softgpu_die("%s: a collective in a graph is not faked", names[e->what.kind]);
    }
}

/* Waits for room in the driver's queue. Returns false if c was stopped before. */
static bool find_room(struct comm *c)
{
    const char *text = getenv("SOFTGPU_NCCL_QUEUE");
    uint32_t most = text != nullptr ? (uint32_t)atoi(text) : 0, pending;
    while (most > 0 && (pending = __atomic_load_n(&c->pending, __ATOMIC_ACQUIRE)) > most) {
        if (__atomic_load_n(&c->stopped, __ATOMIC_ACQUIRE) != 0) {
            return false;
        }
        softgpu_word_wait(&c->pending, pending);
    }
    return true;
}

/* Enqueues a collective that is counted as pending. */
static int launch(entry *e)
{
    struct comm *c = e->c;
    bool hangs = fault("launch-hang", c->world_rank, e->number);
    if (hangs) {
        stand_still(c);
    }
    if (hangs || !find_room(c)) {
        free(e);
        one_less(c);
        return NCCL_INTERNAL_ERROR;
    }
    put(e);
    return NCCL_SUCCESS;
}

static void *launch_main(void *argument)
{
    struct comm *c = (struct comm *)argument;
    /* the first collectives connect, later ones only now and then */
    if (c->collectives++ % 8 < 2) {
        timespec t = {0, 3000000};
        nanosleep(&t, nullptr);
    }
    if (launch(c->next) == NCCL_SUCCESS) {
        /* it may have run, and failed, by now */
        (void)change_state(c, NCCL_IN_PROGRESS, NCCL_SUCCESS);
    }
    return nullptr;
}

static void check_memory(const char *function, const char *what, const void *p, size_t size_bytes)
{
    if (softgpu_find(p, size_bytes, nullptr) != SOFTGPU_DEVICE) {
        softgpu_die("%s: the %s, %zu bytes at %p, is not all device memory", function, what, size_bytes, p);
    }
}

static int start(nccl_comm handle, const struct what *what, const void *in, void *out, void *stream)
{
    struct comm *c = comm_of(handle, names[what->kind]);
    int current = -1;
    if (c->revoked || c->finalized || state_of(c) != NCCL_SUCCESS) {
        return NCCL_INVALID_USAGE;
    }
    cudaGetDevice(&current);
    if (current != c->device) {
        softgpu_die("%s: the device of this thread is %d, that of the communicator %d", names[what->kind], current,
                    c->device);
    }
    entry *e = (entry *)calloc(1, sizeof *e);
    *e = {c,
          softgpu_stream((cudaStream_t)stream, names[what->kind]),
          *what,
          (const unsigned char *)in,
          (unsigned char *)out,
          width_of(what->type),
          0,
          0};
    if (e->stream == nullptr || e->width == 0 || what->count == 0 || what->root < 0 || what->root >= c->size) {
        free(e);
        return NCCL_INVALID_ARGUMENT;
    }
    size_t in_bytes = what->count * e->width * (what->kind == REDUCE_SCATTER ? (size_t)c->size : 1);
    check_memory(names[what->kind], "input", in, in_bytes);
    check_memory(names[what->kind], "output", out, out_bytes(e));
    if (softgpu_stream_device(e->stream) != c->device) {
        softgpu_die("%s: a stream of another device", names[what->kind]);
    }
    static int number;
    static uint32_t next;
    e->number = __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED);
    e->sequence = is_ordered() ? __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) : 0;
    note("%s rank %d of %d comm %s count %zu type %d", names[what->kind], c->rank, c->size, c->name, what->count,
         what->type);
    const char *buffers_mb = getenv("SOFTGPU_NCCL_BUFFERS_MB");
    if (buffers_mb != nullptr && c->buffers == nullptr &&
        cudaMalloc(&c->buffers, (size_t)atoi(buffers_mb) << 20) != cudaSuccess) {
        free(e);
        return failed(c, NCCL_UNHANDLED_CUDA_ERROR, "Failed to CUDA calloc %s MiB", buffers_mb);
    }
    __atomic_add_fetch(&c->pending, 1, __ATOMIC_ACQ_REL);
    if (own_version() < 22300) {
        return launch(e);
    }
    settle(c);
    /* a running collective has just failed */
    if (!change_state(c, NCCL_SUCCESS, NCCL_IN_PROGRESS)) {
        free(e);
        one_less(c);
        return NCCL_INVALID_USAGE;
    }
    c->next = e;
    run_beside(c, launch_main);
    return NCCL_IN_PROGRESS;
}

extern "C" {

int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, nccl_comm c, nccl_stream s)
{
    struct what what = {count, 0, ALL_REDUCE, type, op, 0};
    return start(c, &what, in, out, s);
}

int ncclReduceScatter(const void *in, void *out, size_t count, int type, int op, nccl_comm c, nccl_stream s)
{
    struct what what = {count, 0, REDUCE_SCATTER, type, op, 0};
    return start(c, &what, in, out, s);
}

int ncclAllGather(const void *in, void *out, size_t count, int type, nccl_comm c, nccl_stream s)
{
    struct what what = {count, 0, ALL_GATHER, type, 0, 0};
    return start(c, &what, in, out, s);
}

int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, nccl_comm c, nccl_stream s)
{
    struct what what = {count, 0, BROADCAST, type, 0, root};
    return start(c, &what, in, out, s);
}

} /* extern "C" */
