/* covers: tests/softgpu */
/* The fake runtime's graphs: a capture runs nothing and copies what it is given, a launch runs
 * all of it in order; what the real runtime forbids while a stream is captured breaks the
 * capture, and the stream is as before. Whatever starts streams runs in a child, so that this
 * process can fork. */
#include "kernels/cuda/common.cuh"
#include "tests/softgpu/softgpu.h"
#include "tests/lib/child.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern "C" {
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
}

enum { COUNT = 256, BLOCK = 64 };

#define OK(call) CHECK((call) == cudaSuccess)

static __global__ void add(float *x, float value, int count)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) {
        x[i] += value;
    }
}

struct place {
    cudaStream_t a, b;
    cudaEvent_t event;
    float *x;
    float *host; /* pinned */
};

static struct place open_place(void)
{
    struct place p = {};
    OK(cudaStreamCreateWithFlags(&p.a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&p.b, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&p.event, cudaEventDisableTiming));
    OK(cudaMalloc((void **)&p.x, COUNT * sizeof(float)));
    OK(cudaMallocHost((void **)&p.host, COUNT * sizeof(float)));
    OK(cudaMemsetAsync(p.x, 0, COUNT * sizeof(float), p.a));
    OK(cudaStreamSynchronize(p.a));
    return p;
}

static float value_of(const struct place *p)
{
    OK(cudaMemcpyAsync(p->host, p->x, COUNT * sizeof(float), cudaMemcpyDeviceToHost, p->a));
    OK(cudaStreamSynchronize(p->a));
    for (int i = 1; i < COUNT; i++) {
        CHECK(p->host[i] == p->host[0]);
    }
    return p->host[0];
}

static void CUDART_CB count_call(void *argument)
{
    ++*(int *)argument;
}

static int run_replay(void)
{
    struct place p = open_place();
    cudaGraph_t graph;
    cudaGraphExec_t twice, exec;
    enum cudaStreamCaptureStatus status;
    float value = 3;
    int calls = 0;
    OK(cudaStreamBeginCapture(p.a, cudaStreamCaptureModeThreadLocal));
    OK(cudaStreamIsCapturing(p.a, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    OK(cudaMemsetAsync(p.x, 0, COUNT * sizeof(float), p.a));
    DT_LAUNCH(add, COUNT / BLOCK, BLOCK, 0, p.a, p.x, value, COUNT);
    value = 100; /* nodes have what was given then */
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaStreamWaitEvent(p.a, p.event, 0));
    DT_LAUNCH(add, COUNT / BLOCK, BLOCK, 0, p.a, p.x, 4.0f, COUNT);
    OK(cudaLaunchHostFunc(p.a, count_call, &calls));
    OK(cudaStreamEndCapture(p.a, &graph));
    OK(cudaStreamIsCapturing(p.a, &status));
    CHECK(status == cudaStreamCaptureStatusNone);
    CHECK(value_of(&p) == 0 && calls == 0);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphInstantiate(&twice, graph, 0));
    OK(cudaGraphDestroy(graph));
    for (int i = 1; i <= 3; i++) {
        OK(cudaMemsetAsync(p.x, 0xff, COUNT * sizeof(float), p.a));
        OK(cudaGraphLaunch(i == 2 ? twice : exec, p.a));
        CHECK(value_of(&p) == 7 && calls == i);
    }
    softgpu_hold("add");
    OK(cudaGraphLaunch(exec, p.a));
    OK(cudaGraphExecDestroy(exec)); /* runs to its end */
    while (!softgpu_held()) {
        usleep(1000);
    }
    softgpu_go_on();
    CHECK(value_of(&p) == 7 && calls == 4);
    OK(cudaGraphExecDestroy(twice));
    /* The event's last record was in the capture. */
    CHECK(cudaEventQuery(p.event) == cudaErrorCapturedEvent);
    CHECK(cudaStreamWaitEvent(p.b, p.event, 0) == cudaErrorCapturedEvent);
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaEventSynchronize(p.event));
    return 0;
}

static void expect_fine(int (*run)(void))
{
    char text[CHILD_TEXT];
    int code = child_run(run, text);
    if (code != 0) {
        fail_msg("ended with %d: %s", code, text);
    }
}

static void test_replay(void **)
{
    expect_fine(run_replay);
}

/* ---- what breaks a capture ---- */

static cudaError_t allocate(struct place *)
{
    void *p;
    return cudaMalloc(&p, 16);
}
static cudaError_t pin(struct place *)
{
    void *p;
    return cudaMallocHost(&p, 16);
}
static cudaError_t release(struct place *p)
{
    return cudaFree(p->x);
}
static cudaError_t synchronize(struct place *p)
{
    return cudaStreamSynchronize(p->a);
}
static cudaError_t synchronize_other(struct place *p)
{
    return cudaStreamSynchronize(p->b);
}
static cudaError_t synchronize_all(struct place *)
{
    return cudaDeviceSynchronize();
}
static cudaError_t query(struct place *p)
{
    return cudaStreamQuery(p->a);
}
static cudaError_t ask_event(struct place *p)
{
    OK(cudaEventRecord(p->event, p->a));
    return cudaEventQuery(p->event);
}
static cudaError_t wait_for_other(struct place *p)
{
    OK(cudaEventRecord(p->event, p->b));
    return cudaStreamWaitEvent(p->a, p->event, 0);
}

static int run_broken(void)
{
    static const struct {
        cudaError_t (*call)(struct place *p);
        cudaError_t error;
    } rows[] = {
        {allocate, cudaErrorStreamCaptureUnsupported},
        {pin, cudaErrorStreamCaptureUnsupported},
        {release, cudaErrorStreamCaptureUnsupported},
        {synchronize, cudaErrorStreamCaptureUnsupported},
        {synchronize_other, cudaErrorStreamCaptureUnsupported},
        {synchronize_all, cudaErrorStreamCaptureUnsupported},
        {query, cudaErrorStreamCaptureUnsupported},
        {ask_event, cudaErrorStreamCaptureUnsupported},
        {wait_for_other, cudaErrorStreamCaptureIsolation},
    };
    struct place p = open_place();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cudaGraph_t graph = (cudaGraph_t)&p;
        enum cudaStreamCaptureStatus status;
        (void)cudaGetLastError();
        OK(cudaStreamBeginCapture(p.a, cudaStreamCaptureModeThreadLocal));
        DT_LAUNCH(add, COUNT / BLOCK, BLOCK, 0, p.a, p.x, 1.0f, COUNT);
        OK(cudaGetLastError());
        cudaError_t rc = rows[i].call(&p);
        if (rc != rows[i].error) {
            dprintf(2, "row %d: %s\n", (int)i, cudaGetErrorName(rc));
            return 1;
        }
        OK(cudaStreamIsCapturing(p.a, &status));
        CHECK(status == cudaStreamCaptureStatusInvalidated);
        (void)cudaGetLastError();
        DT_LAUNCH(add, COUNT / BLOCK, BLOCK, 0, p.a, p.x, 1.0f, COUNT);
        CHECK(cudaGetLastError() == cudaErrorStreamCaptureInvalidated);
        CHECK(cudaStreamEndCapture(p.a, &graph) == cudaErrorStreamCaptureInvalidated && graph == nullptr);
        CHECK(cudaStreamEndCapture(p.a, &graph) == cudaErrorIllegalState);
        OK(cudaEventRecord(p.event, p.a));
        CHECK(value_of(&p) == 0); /* nothing of it has run */
    }
    return 0;
}

static void test_broken(void **)
{
    expect_fine(run_broken);
}

/* ---- another thread ---- */

struct other {
    cudaError_t allocated, ended;
    cudaStream_t stream;
};

static void *other_thread(void *argument)
{
    struct other *o = (struct other *)argument;
    void *memory;
    cudaGraph_t graph;
    o->allocated = cudaMalloc(&memory, 16);
    o->ended = o->stream != nullptr ? cudaStreamEndCapture(o->stream, &graph) : cudaSuccess;
    return nullptr;
}

static struct other beside(cudaStream_t stream)
{
    struct other o = {cudaSuccess, cudaSuccess, stream};
    pthread_t thread;
    CHECK(pthread_create(&thread, nullptr, other_thread, &o) == 0);
    CHECK(pthread_join(thread, nullptr) == 0);
    return o;
}

static int run_threads(void)
{
    struct place p = open_place();
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(p.a, cudaStreamCaptureModeThreadLocal));
    CHECK(beside(nullptr).allocated == cudaSuccess);
    OK(cudaStreamEndCapture(p.a, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamBeginCapture(p.a, cudaStreamCaptureModeGlobal));
    CHECK(beside(nullptr).allocated == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamEndCapture(p.a, &graph) == cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(p.a, cudaStreamCaptureModeRelaxed));
    void *memory;
    OK(cudaMalloc(&memory, 16));
    OK(cudaStreamEndCapture(p.a, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamBeginCapture(p.a, cudaStreamCaptureModeThreadLocal));
    CHECK(beside(p.a).ended == cudaErrorStreamCaptureWrongThread);
    CHECK(cudaStreamBeginCapture(p.a, cudaStreamCaptureModeThreadLocal) == cudaErrorIllegalState);
    CHECK(cudaStreamEndCapture(p.a, &graph) == cudaErrorStreamCaptureInvalidated);
    return 0;
}

static void test_threads(void **)
{
    expect_fine(run_threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
