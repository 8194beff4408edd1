/* Graphs: a capturing stream keeps its entries with copies of their arguments. Each launch of the
 * graph puts them into a stream again. Nodes run in the order of their capture. A capture covers
 * one stream. Calls that the real runtime forbids during a capture break it here, too. */
#include "tests/softgpu/lock.h"
#include "tests/softgpu/runtime.h"
#include "tests/softgpu/sanitize.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct node {
    struct softgpu_entry entry;
    unsigned char *call;
};

/* shared by a capture or graph, its executable graphs, and their launches in streams */
struct softgpu_nodes {
    uint32_t users;
    struct node *node;
    int count, room;
    char clock[8]; /* orders its users before the thread that frees it */
};

struct softgpu_capture {
    uint64_t number;
    struct softgpu_stream *stream;
    enum cudaStreamCaptureMode mode;
    pthread_t thread;
    bool broken;
    struct softgpu_nodes *nodes;
};

static const uint64_t GRAPH_MAGIC = 0x736f667467726170u, EXEC_MAGIC = 0x736f667467657865u;
struct holder { /* behind cudaGraph_t and cudaGraphExec_t */
    uint64_t magic;
    struct softgpu_nodes *nodes;
};

enum { CAPTURES = 16 };
static struct softgpu_lock lock;
static struct softgpu_capture *captures[CAPTURES];
static uint64_t capture_count;

extern "C" {
/* of this process, for tests that count: launches; executable graphs that exist */
uint64_t softgpu_graph_launches, softgpu_graphs;
}

/* ---- nodes ---- */

static struct softgpu_nodes *share(struct softgpu_nodes *nodes)
{
    (void)__atomic_add_fetch(&nodes->users, 1, __ATOMIC_ACQ_REL);
    return nodes;
}

void softgpu_graph_drop(struct softgpu_nodes *nodes)
{
    tsan_release(nodes->clock);
    if (__atomic_sub_fetch(&nodes->users, 1, __ATOMIC_ACQ_REL) > 0) {
        return;
    }
    tsan_acquire(nodes->clock);
    for (int i = 0; i < nodes->count; i++) {
        struct softgpu_entry *e = &nodes->node[i].entry;
        if (e->kind == SOFTGPU_HOST && e->host.release != nullptr) {
            e->host.release(e->host.argument);
        }
        free(nodes->node[i].call);
    }
    free(nodes->node);
    free(nodes);
}

static void add(struct softgpu_nodes *nodes, const struct softgpu_entry *e, const void *call, size_t call_bytes)
{
    if (nodes->count == nodes->room) {
        nodes->room = nodes->room > 0 ? 2 * nodes->room : 16;
        nodes->node = (struct node *)realloc((void *)nodes->node, (size_t)nodes->room * sizeof *nodes->node);
    }
    struct node *n = &nodes->node[nodes->count++];
    n->entry = *e;
    n->call = nullptr;
    if (call_bytes > 0) {
        n->call = (unsigned char *)aligned_alloc(16, (call_bytes + 15) / 16 * 16);
        memcpy(n->call, call, call_bytes);
    }
}

void softgpu_graph_run(struct softgpu_nodes *nodes,
                       void (*each)(const struct softgpu_entry *e, const void *call, void *context), void *context)
{
    for (int i = 0; i < nodes->count; i++) {
        each(&nodes->node[i].entry, nodes->node[i].call, context);
    }
}

/* ---- captures ---- */

static struct softgpu_capture *capture_at(struct softgpu_stream *s)
{
    return __atomic_load_n(softgpu_stream_capture(s), __ATOMIC_ACQUIRE);
}

uint64_t softgpu_capture_of(struct softgpu_stream *s)
{
    const struct softgpu_capture *c = capture_at(s);
    return c != nullptr ? c->number : 0;
}

/* The caller holds the lock. Null: the capture has ended. */
static struct softgpu_capture *find(uint64_t number)
{
    for (int i = 0; i < CAPTURES; i++) {
        if (captures[i] != nullptr && captures[i]->number == number) {
            return captures[i];
        }
    }
    return nullptr;
}

bool softgpu_capture_lives(uint64_t number)
{
    softgpu_lock(&lock);
    bool lives = find(number) != nullptr;
    softgpu_unlock(&lock);
    return lives;
}

cudaError_t softgpu_capture_break(uint64_t number, cudaError_t rc)
{
    softgpu_lock(&lock);
    struct softgpu_capture *c = find(number);
    if (c != nullptr) {
        c->broken = true;
    }
    softgpu_unlock(&lock);
    return softgpu_error(rc);
}

cudaError_t softgpu_capture_state(struct softgpu_stream *s)
{
    softgpu_lock(&lock);
    const struct softgpu_capture *c = capture_at(s);
    bool broken = c != nullptr && c->broken;
    softgpu_unlock(&lock);
    return softgpu_error(broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}

cudaError_t softgpu_capture_take(struct softgpu_stream *s, const struct softgpu_entry *e, const void *call,
                                 size_t call_bytes)
{
    cudaError_t rc = softgpu_capture_state(s);
    if (rc == cudaSuccess && (e->kind == SOFTGPU_GRAPH || (e->kind == SOFTGPU_HOST && e->host.once))) {
        rc = softgpu_capture_break(softgpu_capture_of(s), cudaErrorStreamCaptureUnsupported);
    }
    if (rc == cudaSuccess) {
        add(capture_at(s)->nodes, e, call, call_bytes);
    }
    return rc;
}

cudaError_t softgpu_enter_uncaptured(const char *function)
{
    cudaError_t rc = softgpu_enter(function);
    bool forbidden = false;
    if (rc != cudaSuccess) {
        return rc;
    }
    softgpu_lock(&lock);
    for (int i = 0; i < CAPTURES; i++) {
        struct softgpu_capture *c = captures[i];
        if (c != nullptr &&
            (c->mode == cudaStreamCaptureModeGlobal ||
             (c->mode == cudaStreamCaptureModeThreadLocal && pthread_equal(c->thread, pthread_self()) != 0))) {
            c->broken = forbidden = true;
        }
    }
    softgpu_unlock(&lock);
    return softgpu_error(forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

/* ---- graphs ---- */

static struct holder *hold(uint64_t magic, struct softgpu_nodes *nodes)
{
    struct holder *h = (struct holder *)calloc(1, sizeof *h);
    *h = {magic, nodes};
    return h;
}

static struct holder *held(void *handle, uint64_t magic, const char *function)
{
    struct holder *h = (struct holder *)handle;
    if (h == nullptr || h->magic != magic) {
        softgpu_refuse(cudaErrorInvalidValue, "%s: no graph, or it was destroyed", function);
        return nullptr;
    }
    return h;
}

static cudaError_t destroy(void *handle, uint64_t magic, const char *function)
{
    cudaError_t rc = softgpu_enter(function);
    struct holder *h = rc == cudaSuccess ? held(handle, magic, function) : nullptr;
    if (h == nullptr) {
        return rc == cudaSuccess ? cudaErrorInvalidValue : rc;
    }
    h->magic = 0;
    softgpu_graph_drop(h->nodes);
    free(h);
    return cudaSuccess;
}

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    cudaError_t rc = softgpu_enter("cudaStreamBeginCapture");
    struct softgpu_stream *s = rc == cudaSuccess ? softgpu_stream(stream, "cudaStreamBeginCapture") : nullptr;
    if (s == nullptr) {
        return rc == cudaSuccess ? cudaErrorInvalidResourceHandle : rc;
    }
    if (capture_at(s) != nullptr) {
        return softgpu_error(cudaErrorIllegalState);
    }
    struct softgpu_capture *c = (struct softgpu_capture *)calloc(1, sizeof *c);
    c->stream = s;
    c->mode = mode;
    c->thread = pthread_self();
    c->nodes = (struct softgpu_nodes *)calloc(1, sizeof *c->nodes);
    c->nodes->users = 1;
    softgpu_lock(&lock);
    int at = 0;
    while (at < CAPTURES && captures[at] != nullptr) {
        at++;
    }
    if (at == CAPTURES) {
        softgpu_die("cudaStreamBeginCapture: more than %d captures at a time", CAPTURES);
    }
    c->number = ++capture_count;
    captures[at] = c;
    softgpu_unlock(&lock);
    __atomic_store_n(softgpu_stream_capture(s), c, __ATOMIC_RELEASE);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    cudaError_t rc = softgpu_enter("cudaStreamEndCapture");
    struct softgpu_stream *s = softgpu_stream(stream, "cudaStreamEndCapture");
    struct softgpu_capture *c = s != nullptr ? capture_at(s) : nullptr;
    *graph = nullptr;
    if (c == nullptr) {
        return softgpu_error(s == nullptr ? cudaErrorInvalidResourceHandle : cudaErrorIllegalState);
    }
    if (c->mode != cudaStreamCaptureModeRelaxed && pthread_equal(c->thread, pthread_self()) == 0) {
        return softgpu_capture_break(c->number, cudaErrorStreamCaptureWrongThread);
    }
    softgpu_lock(&lock);
    for (int i = 0; i < CAPTURES; i++) {
        captures[i] = captures[i] == c ? nullptr : captures[i];
    }
    softgpu_unlock(&lock);
    __atomic_store_n(softgpu_stream_capture(s), nullptr, __ATOMIC_RELEASE);
    rc = rc != cudaSuccess ? rc : c->broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    if (rc == cudaSuccess) {
        *graph = (cudaGraph_t)hold(GRAPH_MAGIC, c->nodes);
    } else {
        softgpu_graph_drop(c->nodes);
    }
    free(c);
    return softgpu_error(rc);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    cudaError_t rc = softgpu_enter("cudaStreamIsCapturing");
    struct softgpu_stream *s = rc == cudaSuccess ? softgpu_stream(stream, "cudaStreamIsCapturing") : nullptr;
    if (s == nullptr) {
        return rc == cudaSuccess ? cudaErrorInvalidResourceHandle : rc;
    }
    softgpu_lock(&lock);
    const struct softgpu_capture *c = capture_at(s);
    *status = c == nullptr ? cudaStreamCaptureStatusNone
              : c->broken  ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    softgpu_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    cudaError_t rc = softgpu_enter("cudaGraphInstantiate");
    struct holder *h = rc == cudaSuccess ? held(graph, GRAPH_MAGIC, "cudaGraphInstantiate") : nullptr;
    if (h == nullptr || flags != 0) {
        return rc != cudaSuccess ? rc
               : flags != 0      ? softgpu_refuse(cudaErrorInvalidValue, "cudaGraphInstantiate: flags")
                                 : cudaErrorInvalidValue;
    }
    *out = (cudaGraphExec_t)hold(EXEC_MAGIC, share(h->nodes));
    (void)__atomic_add_fetch(&softgpu_graphs, 1, __ATOMIC_RELAXED);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    cudaError_t rc = softgpu_enter("cudaGraphLaunch");
    struct softgpu_stream *s = rc == cudaSuccess ? softgpu_stream(stream, "cudaGraphLaunch") : nullptr;
    struct holder *h = s != nullptr ? held(exec, EXEC_MAGIC, "cudaGraphLaunch") : nullptr;
    if (h == nullptr) {
        return rc != cudaSuccess ? rc : s == nullptr ? cudaErrorInvalidResourceHandle : cudaErrorInvalidValue;
    }
    struct softgpu_entry e = {};
    e.kind = SOFTGPU_GRAPH;
    e.name = "graph";
    e.graph = share(h->nodes);
    rc = softgpu_put(s, &e, nullptr, 0);
    if (rc != cudaSuccess) {
        softgpu_graph_drop(e.graph);
    } else {
        (void)__atomic_add_fetch(&softgpu_graph_launches, 1, __ATOMIC_RELAXED);
    }
    return rc;
}

/* A launch that is under way runs to its end. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    cudaError_t rc = destroy(exec, EXEC_MAGIC, "cudaGraphExecDestroy");
    if (rc == cudaSuccess) {
        (void)__atomic_sub_fetch(&softgpu_graphs, 1, __ATOMIC_RELAXED);
    }
    return rc;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    return destroy(graph, GRAPH_MAGIC, "cudaGraphDestroy");
}
}
