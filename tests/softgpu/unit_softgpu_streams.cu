/* covers: tests/softgpu */
/* The fake runtime: streams are late, events order them, processes share memory and events; and
 * what the real runtime would refuse, or take at a hidden cost, is refused with a reason.
 * Whatever starts streams runs in a child, so that this process can fork. */
#include "kernels/cuda/common.cuh"
#include "tests/softgpu/softgpu.h"
#include "tests/lib/child.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
}

enum {
    COUNT = 1 << 14,
    BLOCK = 64
}; /* the thread sanitizer forgets with more than 250 threads
    * at work */

#define OK(call) CHECK((call) == cudaSuccess)

static __global__ void add_one(float *x, int count)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) {
        x[i] += 1;
    }
}

struct pair {
    cudaStream_t a, b;
    cudaEvent_t event;
    float *x, *y;           /* device */
    float *host_x, *host_y; /* pinned */
};

static struct pair open_pair(void)
{
    struct pair p = {};
    OK(cudaStreamCreateWithPriority(&p.a, cudaStreamNonBlocking, -1));
    OK(cudaStreamCreateWithFlags(&p.b, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&p.event, cudaEventDisableTiming));
    OK(cudaMalloc((void **)&p.x, COUNT * sizeof(float)));
    OK(cudaMalloc((void **)&p.y, COUNT * sizeof(float)));
    OK(cudaMallocHost((void **)&p.host_x, COUNT * sizeof(float)));
    OK(cudaHostAlloc((void **)&p.host_y, COUNT * sizeof(float), cudaHostAllocDefault));
    for (int i = 0; i < COUNT; i++) {
        p.host_x[i] = (float)i;
    }
    return p;
}

/* a fills x and adds, b copies it out; MISSING: b does not wait for a. */
static int run_two_streams(bool missing)
{
    struct pair p = open_pair();
    int wrong = 0;
    for (int round = 0; round < 10; round++) {
        OK(cudaMemcpyAsync(p.x, p.host_x, COUNT * sizeof(float), cudaMemcpyHostToDevice, p.a));
        DT_LAUNCH(add_one, COUNT / BLOCK, BLOCK, 0, p.a, p.x, COUNT);
        OK(cudaEventRecord(p.event, p.a));
        if (!missing) {
            OK(cudaStreamWaitEvent(p.b, p.event, 0));
        }
        OK(cudaMemcpyAsync(p.host_y, p.x, COUNT * sizeof(float), cudaMemcpyDefault, p.b));
        OK(cudaStreamSynchronize(p.b));
        for (int i = 0; i < COUNT; i++) {
            wrong += !(p.host_y[i] == (float)i + 1);
        }
        OK(cudaMemsetAsync(p.x, 0xff, COUNT * sizeof(float), p.b));
        OK(cudaDeviceSynchronize());
    }
    OK(cudaGetLastError());
    return wrong > 0;
}

static int run_ordered(void)
{
    return run_two_streams(false);
}
static int run_unordered(void)
{
    return run_two_streams(true);
}

static void test_late_streams(void **)
{
    char text[CHILD_TEXT];
    setenv("SOFTGPU_DELAY_US", "300", 1);
    for (int seed = 0; seed < 4; seed++) {
        char number[12];
        (void)snprintf(number, sizeof number, "%d", seed);
        setenv("SOFTGPU_SEED", number, 1);
        int code = child_run(run_ordered, text);
        if (code != 0) {
            fail_msg("seed %d ended with %d: %s", seed, code, text);
        }
#ifndef SOFTGPU_TSAN /* there it is a report of a race */
        assert_int_equal(child_run(run_unordered, text), 1);
#else
        assert_int_equal(child_run(run_unordered, text), 66);
        assert_non_null(strstr(text, "data race"));
#endif
    }
    unsetenv("SOFTGPU_DELAY_US");
    unsetenv("SOFTGPU_SEED");
}

/* ---- what events and streams say ---- */

static int run_queries(void)
{
    struct pair p = open_pair();
    cudaEvent_t begin, end;
    float ms = -1;
    OK(cudaEventCreateWithFlags(&begin, cudaEventDefault));
    OK(cudaEventCreateWithFlags(&end, cudaEventDefault));
    OK(cudaEventQuery(p.event)); /* never recorded: nothing to wait for */
    OK(cudaEventSynchronize(p.event));
    OK(cudaStreamQuery(p.a));
    softgpu_hold("add_one");
    OK(cudaEventRecord(begin, p.a));
    OK(cudaMemcpyAsync(p.x, p.host_x, COUNT * sizeof(float), cudaMemcpyHostToDevice, p.a));
    DT_LAUNCH(add_one, COUNT / BLOCK, BLOCK, 0, p.a, p.x, COUNT);
    OK(cudaEventRecord(end, p.a));
    while (!softgpu_held()) {
        usleep(1000);
    }
    OK(cudaEventQuery(begin));
    CHECK(cudaEventQuery(end) == cudaErrorNotReady);
    CHECK(cudaStreamQuery(p.a) == cudaErrorNotReady);
    /* as the real one does */
    CHECK(cudaPeekAtLastError() == cudaErrorNotReady && cudaGetLastError() == cudaErrorNotReady);
    CHECK(cudaEventElapsedTime(&ms, begin, end) == cudaErrorNotReady);
    usleep(20000);
    softgpu_go_on();
    OK(cudaEventSynchronize(end));
    OK(cudaStreamSynchronize(p.a));
    (void)cudaGetLastError();
    OK(cudaEventElapsedTime(&ms, begin, end));
    CHECK(ms >= 20 && ms < 10000);
    OK(cudaEventDestroy(begin));
    OK(cudaStreamDestroy(p.a));
    struct cudaPointerAttributes at;
    OK(cudaPointerGetAttributes(&at, p.x + 5));
    CHECK(at.type == cudaMemoryTypeDevice && at.devicePointer == p.x + 5);
    OK(cudaPointerGetAttributes(&at, p.host_x));
    CHECK(at.type == cudaMemoryTypeHost);
    OK(cudaPointerGetAttributes(&at, &at));
    CHECK(at.type == cudaMemoryTypeUnregistered);
    size_t free_bytes = 0, total_bytes = 0, before;
    OK(cudaMemGetInfo(&before, &total_bytes));
    OK(cudaFree(p.x));
    OK(cudaFree(nullptr));
    OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    CHECK(free_bytes == before + COUNT * sizeof(float));
    return 0;
}

static void test_queries(void **)
{
    char text[CHILD_TEXT];
    int code = child_run(run_queries, text);
    if (code != 0) {
        fail_msg("ended with %d: %s", code, text);
    }
}

/* ---- refusals: each says why ---- */

static void CUDART_CB call_back(void *argument)
{
    *(cudaError_t *)argument = cudaStreamSynchronize((cudaStream_t)argument); /* whatever it is asked */
}

static __global__ void with_shared(float *x)
{
    DT_SHARED_DYNAMIC(float, row);
    row[threadIdx.x] = 1;
    __syncthreads();
    x[threadIdx.x] = row[31 - threadIdx.x];
}

static int run_refusals(void)
{
    struct pair p = open_pair();
    float own[4] = {};
    size_t all = COUNT * sizeof(float);
    OK(cudaGetLastError());
    CHECK(cudaMemcpyAsync(p.x, p.host_x, all, cudaMemcpyHostToDevice, nullptr) == cudaErrorInvalidResourceHandle);
    CHECK(cudaMemcpyAsync(p.x, p.host_x, all, cudaMemcpyHostToDevice, cudaStreamPerThread) ==
          cudaErrorInvalidResourceHandle);
    CHECK(cudaMemcpyAsync(p.x, own, 4, cudaMemcpyHostToDevice, p.a) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyAsync(own, p.x, 4, cudaMemcpyDefault, p.a) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyAsync(p.x, p.host_x, all + 4, cudaMemcpyHostToDevice, p.a) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyAsync(p.x + 1, p.y, all, cudaMemcpyDeviceToDevice, p.a) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyAsync(p.x, p.host_x, all, cudaMemcpyDeviceToHost, p.a) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyAsync(p.x, p.host_x, all, cudaMemcpyDeviceToDevice, p.a) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyAsync(p.x, p.x + 1, 8, cudaMemcpyDeviceToDevice, p.a) == cudaErrorInvalidValue);
    CHECK(cudaMemsetAsync(p.x, 0, all + 1, p.a) == cudaErrorInvalidValue);
    CHECK(cudaMemsetAsync(own, 0, 4, p.a) == cudaErrorInvalidValue);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
    CHECK(cudaFree(p.host_x) == cudaErrorInvalidValue);
    CHECK(cudaFree(p.x + 1) == cudaErrorInvalidValue);
    CHECK(cudaFreeHost(p.x) == cudaErrorInvalidValue);
    cudaStream_t blocking;
    cudaEvent_t event;
    CHECK(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault) == cudaErrorInvalidValue);
    CHECK(cudaEventCreateWithFlags(&event, cudaEventInterprocess) == cudaErrorInvalidValue);
    (void)cudaGetLastError();
    DT_LAUNCH(add_one, 1, 1025, 0, p.a, p.x, 1);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    DT_LAUNCH(add_one, dim3(1, 65536), 32, 0, p.a, p.x, 1);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    DT_LAUNCH(add_one, 0, 32, 0, p.a, p.x, 1);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    DT_LAUNCH(add_one, 1, 32, 0, (cudaStream_t) nullptr, p.x, 1);
    CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
    DT_LAUNCH(with_shared, 1, 32, 60000, p.a, p.x);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    CHECK(cudaFuncSetAttribute((const void *)with_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 232449) ==
          cudaErrorInvalidValue);
    OK(cudaFuncSetAttribute((const void *)with_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000));
    (void)cudaGetLastError();
    DT_LAUNCH(with_shared, 1, 32, 60000, p.a, p.x);
    OK(cudaGetLastError());
    OK(cudaStreamSynchronize(p.a));
    cudaError_t inside = cudaSuccess;
    OK(cudaLaunchHostFunc(p.a, call_back, &inside));
    OK(cudaStreamSynchronize(p.a));
    CHECK(inside == cudaErrorNotPermitted);
    cudaStream_t gone = p.b;
    OK(cudaStreamDestroy(p.b));
    CHECK(cudaStreamSynchronize(gone) == cudaErrorInvalidResourceHandle);
    CHECK(strcmp(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue") == 0);
    return 0;
}

static void test_refusals(void **)
{
    static const char *const reasons[] = {"the default stream",
                                          "the source is pageable",
                                          "the destination is pageable",
                                          "reach beyond the destination",
                                          "the wrong direction",
                                          "source and destination overlap",
                                          "was not allocated by its counterpart",
                                          "not cudaStreamNonBlocking",
                                          "blocks (1025,1,1)",
                                          "cudaFuncSetAttribute allowed 49152",
                                          "called by a host function of a stream",
                                          "or it was destroyed"};
    char text[CHILD_TEXT];
    int code = child_run(run_refusals, text);
    if (code != 0) {
        fail_msg("ended with %d: %s", code, text);
    }
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        if (strstr(text, reasons[i]) == nullptr) {
            fail_msg("no reason \"%s\" in: %s", reasons[i], text);
        }
    }
}

static int run_use_after_free(void)
{
    struct pair p = open_pair();
    float *x = p.x;
    OK(cudaFree(x));
    DT_LAUNCH(add_one, 1, 32, 0, p.a, x, 32);
    OK(cudaStreamSynchronize(p.a));
    return 0;
}

static void test_use_after_free(void **)
{
    char text[CHILD_TEXT];
    assert_int_equal(child_run(run_use_after_free, text), SOFTGPU_EXIT);
    assert_non_null(strstr(text, "argument 0 is a pointer to memory that was freed"));
}

/* ---- two processes ---- */

struct message {
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t ready, done;
    int offset;
};

/* The exporter fills its memory behind an event; the other process waits for it on its stream,
 * adds one, and records that it is through. MISSING: the other does not wait. A hold keeps the
 * exporter's stream from running until the other has put its work in. */
static int run_processes(bool missing)
{
    int to[2], back[2];
    CHECK(pipe(to) == 0 && pipe(back) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    close(pid == 0 ? to[1] : to[0]);
    close(pid == 0 ? back[0] : back[1]);
    if (pid == 0) {
        struct message m;
        char *base = nullptr;
        cudaEvent_t ready, done;
        cudaStream_t stream;
        CHECK(read(to[0], &m, sizeof m) == (ssize_t)sizeof m);
        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        OK(cudaIpcOpenMemHandle((void **)&base, m.memory, cudaIpcMemLazyEnablePeerAccess));
        OK(cudaIpcOpenEventHandle(&ready, m.ready));
        OK(cudaIpcOpenEventHandle(&done, m.done));
        if (!missing) {
            OK(cudaStreamWaitEvent(stream, ready, 0));
        }
        DT_LAUNCH(add_one, COUNT / BLOCK, BLOCK, 0, stream, (float *)(base + m.offset), COUNT);
        OK(cudaEventRecord(done, stream));
        if (missing) {
            OK(cudaStreamSynchronize(stream));
        }
        CHECK(write(back[1], "r", 1) == 1);
        OK(cudaStreamSynchronize(stream));
        OK(cudaIpcCloseMemHandle(base));
        OK(cudaEventDestroy(ready));
        OK(cudaEventDestroy(done));
        _exit(0);
    }
    struct pair p = open_pair();
    struct message m;
    cudaEvent_t ready, done;
    char *base = nullptr, byte = 0;
    memset(&m, 0, sizeof m);
    m.offset = 1 << 12;
    OK(cudaMalloc((void **)&base, (size_t)m.offset + COUNT * sizeof(float)));
    OK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming | cudaEventInterprocess));
    OK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming | cudaEventInterprocess));
    OK(cudaIpcGetMemHandle(&m.memory, base + m.offset)); /* exports the whole */
    OK(cudaIpcGetEventHandle(&m.ready, ready));
    OK(cudaIpcGetEventHandle(&m.done, done));
    softgpu_hold("copy");
    OK(cudaMemcpyAsync(base + m.offset, p.host_x, COUNT * sizeof(float), cudaMemcpyHostToDevice, p.a));
    OK(cudaEventRecord(ready, p.a));
    CHECK(write(to[1], &m, sizeof m) == (ssize_t)sizeof m);
    CHECK(read(back[0], &byte, 1) == 1); /* the other has gone on, and has recorded */
    softgpu_go_on();
    OK(cudaStreamWaitEvent(p.b, done, 0));
    OK(cudaStreamWaitEvent(p.b, ready, 0));
    OK(cudaMemcpyAsync(p.host_y, base + m.offset, COUNT * sizeof(float), cudaMemcpyDeviceToHost, p.b));
    OK(cudaStreamSynchronize(p.b));
    int status = 0, wrong = 0;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    for (int i = 0; i < COUNT; i++) {
        wrong += !(p.host_y[i] == (float)i + 1);
    }
    return wrong > 0;
}

static int run_processes_ordered(void)
{
    return run_processes(false);
}
static int run_processes_unordered(void)
{
    return run_processes(true);
}

static int run_handles_refused(void)
{
    struct pair p = open_pair();
    cudaIpcMemHandle_t h;
    cudaIpcEventHandle_t e;
    cudaEvent_t event;
    void *q = nullptr;
    CHECK(cudaIpcGetMemHandle(&h, p.host_x) == cudaErrorInvalidValue);
    CHECK(cudaIpcGetEventHandle(&e, p.event) == cudaErrorInvalidResourceHandle);
    OK(cudaIpcGetMemHandle(&h, p.x));
    /* by the process itself */
    CHECK(cudaIpcOpenMemHandle(&q, h, cudaIpcMemLazyEnablePeerAccess) == cudaErrorInvalidValue);
    memset(&e, 0, sizeof e);
    CHECK(cudaIpcOpenEventHandle(&event, e) == cudaErrorMapBufferObjectFailed);
    return 0;
}

static void test_processes(void **)
{
    char text[CHILD_TEXT];
    int (*const right[])(void) = {run_processes_ordered, run_handles_refused};
    for (int i = 0; i < 2; i++) {
        int code = child_run(right[i], text);
        if (code != 0) {
            fail_msg("case %d ended with %d: %s", i, code, text);
        }
    }
    assert_int_equal(child_run(run_processes_unordered, text), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_streams),   cmocka_unit_test(test_queries),   cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_use_after_free), cmocka_unit_test(test_processes),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
