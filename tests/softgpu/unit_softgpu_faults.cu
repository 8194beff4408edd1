/* covers: tests/softgpu kernels/cuda/common.cuh */
/* Programs with a mistake each, on the software GPU: every one must be found. A row says by
 * what: a message of the software GPU, a fault of the memory, wrong values, or a report of the
 * sanitizer; some are found only in builds with one. Mistakes that have a message in every build
 * are in unit_softgpu_kernels.cu. */
#include "kernels/cuda/common.cuh"
#include "tests/softgpu/sanitize.h"
#include "tests/softgpu/softgpu.h"
#include "tests/lib/child.h"

#include <cublasLt.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern "C" {
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
}

/* How a mistake is found. */
#define FAULT "a fault of the memory"
#define WRONG "wrong values"
#define HIDDEN nullptr /* not in this build */

#if defined(SOFTGPU_ASAN)
#define FOUND(plain, address, thread, memory) address
#elif defined(SOFTGPU_TSAN)
#define FOUND(plain, address, thread, memory) thread
#elif defined(SOFTGPU_MSAN)
#define FOUND(plain, address, thread, memory) memory
#else
#define FOUND(plain, address, thread, memory) plain
#endif

enum {
    COUNT = 1024,
    SMALL = 25
};                                                       /* SMALL floats end in the middle of
                                                          * what is mapped for them */
static const int UNNOTICED = 0, NOTICED = 1, BROKEN = 2; /* exit codes of a program */

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) != cudaSuccess) {                                                                                   \
            (void)fprintf(stderr, "line %d: %s\n", __LINE__, #call);                                                   \
            return BROKEN;                                                                                             \
        }                                                                                                              \
    } while (0)

struct gpu {
    cudaStream_t a, b;
    cudaEvent_t event;
    float *x, *y, *small; /* device: COUNT, COUNT, SMALL */
    float *host;          /* pinned, COUNT */
};

static int gpu_open(struct gpu *g)
{
    OK(cudaStreamCreateWithFlags(&g->a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&g->b, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&g->event, cudaEventDisableTiming));
    OK(cudaMalloc((void **)&g->x, COUNT * sizeof(float)));
    OK(cudaMalloc((void **)&g->y, COUNT * sizeof(float)));
    OK(cudaMalloc((void **)&g->small, SMALL * sizeof(float)));
    OK(cudaMallocHost((void **)&g->host, COUNT * sizeof(float)));
    return 0;
}

static int gpu_close(struct gpu *g)
{
    OK(cudaStreamDestroy(g->a));
    OK(cudaStreamDestroy(g->b));
    OK(cudaEventDestroy(g->event));
    OK(cudaFree(g->x));
    OK(cudaFree(g->y));
    OK(cudaFree(g->small));
    OK(cudaFreeHost(g->host));
    return 0;
}

/* Waits for everything; NOTICED when y[0] .. y[count - 1] are not all `value`. */
static int look(struct gpu *g, int count, float value)
{
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpyAsync(g->host, g->y, COUNT * sizeof(float), cudaMemcpyDeviceToHost, g->a));
    OK(cudaStreamSynchronize(g->a));
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        wrong += !(g->host[i] == value);
    }
    return wrong > 0 ? NOTICED : UNNOTICED;
}

/* ---- kernels; `one` is 1, which the compiler does not know ---- */

static __global__ void fill(float *x, float value)
{
    x[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

static __global__ void copy(float *y, const float *x)
{
    y[blockIdx.x * blockDim.x + threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
}

static __global__ void write_at(float *x, int at)
{
    x[at] = 1;
}

static __global__ void read_at(float *y, const float *x, int at)
{
    *(volatile float *)y = x[at];
}

static __global__ void vector_at(float *x, int one)
{
    *(float4 *)(x + one) = make_float4(1, 2, 3, 4);
}

static __global__ void shift(float *y, int one)
{
    y[0] = (float)(1 << (32 * one));
}

template <bool WRITE> static __device__ void touch(float *y, volatile float *x, int at)
{
    __syncthreads();
    if (threadIdx.x == 0 && WRITE) {
        x[at] = 1;
    } else if (threadIdx.x == 0) {
        y[blockIdx.x] = x[at];
    }
}

template <bool WRITE> static __global__ void shared_at(float *y, int at)
{
    DT_SHARED(float, row, [33]);
    row[threadIdx.x] = 1;
    touch<WRITE>(y, row, at);
}

template <bool WRITE> static __global__ void dynamic_at(float *y, int at)
{
    DT_SHARED(float, row, [33]);
    DT_SHARED_DYNAMIC(float, more);
    row[threadIdx.x] = more[threadIdx.x] = 1;
    touch<WRITE>(y, more, at);
}

static __global__ void unwritten_shared(float *y)
{
    DT_SHARED(float, row, [64]);
    if (threadIdx.x < 32) {
        row[threadIdx.x] = 1;
    }
    __syncthreads();
    y[threadIdx.x] = row[threadIdx.x];
}

static __global__ void unwritten_index(float *y, const float *x)
{
    y[(int)x[0] & 7] = 1;
}

/* Threads write, then read what their neighbour wrote: descending orders have it right, or
 * ascending ones. */
template <int NEIGHBOUR> static __global__ void no_barrier(float *y)
{
    DT_SHARED(float, row, [64]);
    row[threadIdx.x] = 1;
    y[threadIdx.x] = row[(threadIdx.x + NEIGHBOUR) % 64];
}

/* A shuffle orders no memory. */
static __global__ void no_warp_barrier(float *y)
{
    DT_SHARED(float, row, [32]);
    row[threadIdx.x] = 1;
    (void)__shfl_sync(~0u, 1, 0);
    y[threadIdx.x] = row[31 - threadIdx.x];
}

/* Who waits in which round depends on the thread. */
static __global__ void ragged_loop(float *y)
{
    for (int i = 0; i < (int)threadIdx.x + 1; i++) {
        __syncthreads();
    }
    y[threadIdx.x] = 1;
}

static __global__ void blocks_at_one_place(float *y, const float *x)
{
    y[0] = x[blockIdx.x * 32];
}

struct table {
    float *rows[2];
};
static __global__ void fill_table(struct table t)
{
    t.rows[1][threadIdx.x] = 1;
}

/* ---- outside of memory ---- */

template <typename F> static int with_gpu(F f)
{
    struct gpu g;
    int rc = gpu_open(&g);
    rc = rc == 0 ? f(&g) : rc;
    if (rc == BROKEN) {
        return rc;
    }
    OK(cudaDeviceSynchronize());
    return gpu_close(&g) == 0 ? rc : BROKEN;
}

static int nothing(void)
{
    return with_gpu([](struct gpu *g) {
        DT_LAUNCH(fill, COUNT / 64, 64, 0, g->a, g->x, 1);
        OK(cudaEventRecord(g->event, g->a));
        OK(cudaStreamWaitEvent(g->b, g->event, 0));
        DT_LAUNCH(copy, COUNT / 64, 64, 0, g->b, g->y, g->x);
        DT_LAUNCH((shared_at<false>), 2, 32, 0, g->a, g->small, 31);
        DT_LAUNCH((dynamic_at<true>), 2, 32, 128, g->a, g->small, 31);
        return look(g, COUNT, 1);
    });
}

template <bool WRITE, bool SLACK, int AT> static int outside(void)
{
    return with_gpu([](struct gpu *g) {
        float *x = SLACK ? g->small : g->x;
        if (WRITE) {
            DT_LAUNCH(write_at, 1, 1, 0, g->a, x, AT);
        } else {
            DT_LAUNCH(read_at, 1, 1, 0, g->a, g->y, x, AT);
        }
        return 0;
    });
}

template <bool WRITE> static int outside_shared(void)
{
    return with_gpu([](struct gpu *g) {
        DT_LAUNCH((shared_at<WRITE>), 2, 32, 0, g->a, g->y, 33);
        return 0;
    });
}

template <bool WRITE> static int outside_dynamic(void)
{
    return with_gpu([](struct gpu *g) {
        DT_LAUNCH((dynamic_at<WRITE>), 2, 32, 128, g->a, g->y, 32);
        return 0;
    });
}

static int misaligned_vector(void)
{
    return with_gpu([](struct gpu *g) {
        DT_LAUNCH(vector_at, 1, 1, 0, g->a, g->x, 1);
        return 0;
    });
}

static int wide_shift(void)
{
    return with_gpu([](struct gpu *g) {
        DT_LAUNCH(shift, 1, 1, 0, g->a, g->x, 1);
        return 0;
    });
}

/* ---- memory that nobody wrote ---- */

static int unwritten(void)
{
    return with_gpu([](struct gpu *g) {
        DT_LAUNCH(fill, COUNT / 64 - 1, 64, 0, g->a, g->x, 1);
        DT_LAUNCH(copy, COUNT / 64, 64, 0, g->a, g->y, g->x);
        return look(g, COUNT, 1);
    });
}

static int unwritten_again(void)
{
    return with_gpu([](struct gpu *g) {
        DT_LAUNCH(fill, COUNT / 64, 64, 0, g->a, g->x, 1);
        OK(cudaFree(g->x));
        OK(cudaMalloc((void **)&g->x, COUNT * sizeof(float)));
        DT_LAUNCH(copy, COUNT / 64, 64, 0, g->a, g->y, g->x);
        return look(g, COUNT, 1);
    });
}

static int unwritten_in_shared(void)
{
    return with_gpu([](struct gpu *g) {
        DT_LAUNCH(unwritten_shared, 2, 64, 0, g->a, g->y);
        return look(g, 64, 1);
    });
}

static int unwritten_decides(void)
{
    return with_gpu([](struct gpu *g) {
        DT_LAUNCH(unwritten_index, 1, 1, 0, g->a, g->y, g->x);
        return 0;
    });
}

/* ---- threads of a kernel ---- */

template <int NEIGHBOUR> static int barrier_missing(void)
{
    return with_gpu([](struct gpu *g) {
        DT_LAUNCH((no_barrier<NEIGHBOUR>), 1, 64, 0, g->a, g->y);
        return look(g, 64, 1);
    });
}

static int warp_barrier_missing(void)
{
    return with_gpu([](struct gpu *g) {
        DT_LAUNCH(no_warp_barrier, 1, 32, 0, g->a, g->y);
        return look(g, 32, 1);
    });
}

static int barrier_diverges(void)
{
    return with_gpu([](struct gpu *g) {
        DT_LAUNCH(ragged_loop, 1, 64, 0, g->a, g->y);
        return 0;
    });
}

static int blocks_race(void)
{
    return with_gpu([](struct gpu *g) {
        DT_LAUNCH(blocks_at_one_place, 3, 1, 0, g->a, g->y, g->x);
        return 0;
    });
}

/* ---- streams; what runs first is held up, so that the order is always the wrong one ---- */

/* a fills x, b takes it; the event comes too early, or is not waited for. */
template <bool EARLY> static int event_wait_missing(void)
{
    return with_gpu([](struct gpu *g) {
        softgpu_hold("fill");
        if (EARLY) {
            OK(cudaEventRecord(g->event, g->a));
            OK(cudaStreamWaitEvent(g->b, g->event, 0));
        }
        DT_LAUNCH(fill, COUNT / 64, 64, 0, g->a, g->x, 1);
        DT_LAUNCH(copy, COUNT / 64, 64, 0, g->b, g->y, g->x);
        OK(cudaStreamSynchronize(g->b));
        softgpu_go_on();
        return look(g, COUNT, 1);
    });
}

/* The setting takes the wait away from a program that has it. */
static int event_wait_forgotten(void)
{
    (void)setenv("SOFTGPU_FORGET_WAITS", "1", 1);
    return with_gpu([](struct gpu *g) {
        softgpu_hold("fill");
        DT_LAUNCH(fill, COUNT / 64, 64, 0, g->a, g->x, 1);
        OK(cudaEventRecord(g->event, g->a));
        OK(cudaStreamWaitEvent(g->b, g->event, 0));
        DT_LAUNCH(copy, COUNT / 64, 64, 0, g->b, g->y, g->x);
        OK(cudaStreamSynchronize(g->b));
        softgpu_go_on();
        return look(g, COUNT, 1);
    });
}

/* d = a b of (16, 16). */
static int multiply(cudaStream_t s, float *d, const float *a, const float *b)
{
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulAlgo_t algorithm = {};
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const float alpha = 1, beta = 0;
    algorithm.data[0] = 1;
    for (int i = 1; i <= 4; i++) {
        algorithm.data[i] = 16;
    }
    (void)cublasLtCreate(&handle);
    (void)cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    (void)cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    (void)cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 16, 16, 16);
    cublasStatus_t rc = cublasLtMatmul(handle, product, &alpha, a, layout, b, layout, &beta, d, layout, d, layout,
                                       &algorithm, nullptr, 0, s);
    (void)cublasLtMatrixLayoutDestroy(layout);
    (void)cublasLtMatmulDescDestroy(product);
    (void)cublasLtDestroy(handle);
    return rc == CUBLAS_STATUS_SUCCESS ? 0 : BROKEN;
}

/* A product takes what another stream writes (BEFORE), or writes what another stream takes. */
template <bool BEFORE> static int product_waits_for_nothing(void)
{
    return with_gpu([](struct gpu *g) {
        const char *late = BEFORE ? "fill" : "host function";
        if (!BEFORE) {
            DT_LAUNCH(fill, COUNT / 64, 64, 0, g->a, g->x, 0.25f);
            OK(cudaStreamSynchronize(g->a));
        }
        softgpu_hold(late);
        if (BEFORE) {
            DT_LAUNCH(fill, COUNT / 64, 64, 0, g->a, g->x, 0.25f);
        }
        if (multiply(g->b, BEFORE ? g->y : g->x + 512, g->x, g->x) != 0) {
            return BROKEN;
        }
        if (!BEFORE) {
            DT_LAUNCH(copy, 4, 64, 0, g->a, g->y, g->x + 512);
        }
        OK(cudaStreamSynchronize(BEFORE ? g->b : g->a));
        softgpu_go_on();
        return look(g, 256, 1);
    });
}

/* ---- the host beside a stream ---- */

static int host_reads_early(void)
{
    return with_gpu([](struct gpu *g) {
        DT_LAUNCH(fill, COUNT / 64, 64, 0, g->a, g->x, 1);
        OK(cudaStreamSynchronize(g->a));
        softgpu_hold("copy");
        OK(cudaMemcpyAsync(g->host, g->x, COUNT * sizeof(float), cudaMemcpyDeviceToHost, g->a));
        int rc = g->host[5] == 1 ? UNNOTICED : NOTICED;
        softgpu_go_on();
        OK(cudaStreamSynchronize(g->a));
        return rc;
    });
}

static int host_writes_early(void)
{
    return with_gpu([](struct gpu *g) {
        for (int i = 0; i < COUNT; i++) {
            g->host[i] = 1;
        }
        softgpu_hold("copy");
        OK(cudaMemcpyAsync(g->y, g->host, COUNT * sizeof(float), cudaMemcpyHostToDevice, g->a));
        g->host[5] = 2;
        softgpu_go_on();
        return look(g, COUNT, 1);
    });
}

/* ---- memory that was given back, or never ---- */

static int freed_argument(void)
{
    return with_gpu([](struct gpu *g) {
        float *x = nullptr;
        OK(cudaMalloc((void **)&x, COUNT * sizeof(float)));
        OK(cudaFree(x));
        DT_LAUNCH(fill, 1, 64, 0, g->a, x, 1);
        return 0;
    });
}

/* The same amount is allocated again: it must not lie there. */
static int freed_in_a_table(void)
{
    return with_gpu([](struct gpu *g) {
        float *x = nullptr, *again = nullptr;
        OK(cudaMalloc((void **)&x, COUNT * sizeof(float)));
        OK(cudaFree(x));
        OK(cudaMalloc((void **)&again, COUNT * sizeof(float)));
        DT_LAUNCH(fill_table, 1, 64, 0, g->a, (table{{again, x}}));
        OK(cudaStreamSynchronize(g->a));
        OK(cudaFree(again));
        return 0;
    });
}

static int freed_pinned(void)
{
    return with_gpu([](struct gpu *) {
        float *p = nullptr;
        OK(cudaMallocHost((void **)&p, COUNT * sizeof(float)));
        p[3] = 1;
        OK(cudaFreeHost(p));
        return ((volatile float *)p)[3] == 1 ? UNNOTICED : BROKEN;
    });
}

static int freed_twice(void)
{
    return with_gpu([](struct gpu *) {
        float *x = nullptr;
        OK(cudaMalloc((void **)&x, COUNT * sizeof(float)));
        OK(cudaFree(x));
        return cudaFree(x) == cudaErrorInvalidValue ? NOTICED : UNNOTICED;
    });
}

static int left_at_exit(void)
{
    struct gpu g;
    if (gpu_open(&g) != 0 || cudaStreamDestroy(g.a) != cudaSuccess || cudaStreamDestroy(g.b) != cudaSuccess) {
        return BROKEN;
    }
    exit(0);
}

static int nothing_left_at_exit(void)
{
    struct gpu g;
    if (gpu_open(&g) != 0 || gpu_close(&g) != 0) {
        return BROKEN;
    }
    exit(0);
}

struct row {
    const char *name;
    int (*run)(void);
    const char *found;
};

static const struct row rows[] = {
    {"write past an allocation", outside<true, false, COUNT>, FOUND(FAULT, FAULT, FAULT, FAULT)},
    {"read past an allocation", outside<false, false, COUNT>, FOUND(FAULT, FAULT, FAULT, FAULT)},
    {"write in the slack behind one", outside<true, true, SMALL>, FOUND(HIDDEN, "use-after-poison", HIDDEN, HIDDEN)},
    {"read in the slack behind one", outside<false, true, SMALL>, FOUND(HIDDEN, "use-after-poison", HIDDEN, HIDDEN)},
    {"write before an allocation", outside<true, true, -1>, FOUND(HIDDEN, "use-after-poison", HIDDEN, HIDDEN)},
    {"read before an allocation", outside<false, true, -1>, FOUND(HIDDEN, "use-after-poison", HIDDEN, HIDDEN)},
    {"write past an array in shared memory", outside_shared<true>,
     FOUND("past an array in shared memory", "use-after-poison", "past an array in shared memory",
           "past an array in shared memory")},
    {"read past an array in shared memory", outside_shared<false>, FOUND(HIDDEN, "use-after-poison", HIDDEN, HIDDEN)},
    {"write past dynamic shared memory", outside_dynamic<true>,
     FOUND("past an array in shared memory", "use-after-poison", "past an array in shared memory",
           "past an array in shared memory")},
    {"read past dynamic shared memory", outside_dynamic<false>, FOUND(HIDDEN, "use-after-poison", HIDDEN, HIDDEN)},
    {"vector at an address that is none for it", misaligned_vector,
     FOUND(HIDDEN, "misaligned address", HIDDEN, HIDDEN)},
    {"shift by 32", wide_shift, FOUND(HIDDEN, "shift exponent 32", HIDDEN, HIDDEN)},
    {"memory that nobody wrote", unwritten, FOUND(WRONG, WRONG, WRONG, WRONG)},
    {"memory that nobody wrote since it was allocated", unwritten_again, FOUND(WRONG, WRONG, WRONG, WRONG)},
    {"shared memory that nobody wrote", unwritten_in_shared, FOUND(WRONG, WRONG, WRONG, WRONG)},
    {"memory that nobody wrote decides", unwritten_decides,
     FOUND(HIDDEN, HIDDEN, HIDDEN, "use-of-uninitialized-value")},
    {"no barrier, the next thread's value", barrier_missing<1>, FOUND(WRONG, WRONG, "data race", WRONG)},
    {"no barrier, the previous thread's value", barrier_missing<63>, FOUND(WRONG, WRONG, "data race", WRONG)},
    {"no barrier of a warp", warp_barrier_missing, FOUND(HIDDEN, HIDDEN, "data race", HIDDEN)},
    {"a barrier that not all threads reach", barrier_diverges,
     FOUND("in __syncthreads at line", "in __syncthreads at line", "in __syncthreads at line",
           "in __syncthreads at line")},
    {"two blocks at one place", blocks_race, FOUND(HIDDEN, HIDDEN, "data race", HIDDEN)},
    {"no wait for an event", event_wait_missing<false>, FOUND(WRONG, WRONG, "data race", WRONG)},
    {"an event recorded too early", event_wait_missing<true>, FOUND(WRONG, WRONG, "data race", WRONG)},
    {"a wait that was forgotten", event_wait_forgotten, FOUND(WRONG, WRONG, "data race", WRONG)},
    {"a product that does not wait for its input", product_waits_for_nothing<true>,
     FOUND(WRONG, WRONG, "data race", WRONG)},
    {"a kernel that does not wait for a product", product_waits_for_nothing<false>,
     FOUND(WRONG, WRONG, "data race", WRONG)},
    {"host reads before the copy has ended", host_reads_early, FOUND(WRONG, WRONG, "data race", WRONG)},
    {"host writes before the copy has ended", host_writes_early, FOUND(WRONG, WRONG, "data race", WRONG)},
    {"kernel with memory that was freed", freed_argument,
     FOUND("memory that was freed", "memory that was freed", "memory that was freed", "memory that was freed")},
    {"table with memory that was freed", freed_in_a_table, FOUND(FAULT, FAULT, FAULT, FAULT)},
    {"pinned memory that was freed", freed_pinned, FOUND(FAULT, FAULT, FAULT, FAULT)},
    {"free of what was freed", freed_twice, FOUND(WRONG, WRONG, WRONG, WRONG)},
    {"memory and an event left at exit", left_at_exit,
     FOUND("not given back at exit: 3 of device memory (8292 bytes), 1 of pinned memory (4096 bytes), 1 events",
           "not given back at exit", "not given back at exit", "not given back at exit")},
};

static bool is_found(const struct row *r, int code, const char *text)
{
    if (strcmp(r->found, FAULT) == 0) {
        return code == -SIGSEGV;
    }
    if (strcmp(r->found, WRONG) == 0) {
        return code == NOTICED;
    }
    return code != UNNOTICED && code != BROKEN && strstr(text, r->found) != nullptr;
}

/* In some order of threads; from 2 on it is other threads in each block. */
static void test_every_mistake_is_found(void **)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[CHILD_TEXT] = "";
        bool found = rows[i].found == HIDDEN;
        int code = 0;
        for (int order = 2; !found && order >= 0; order--) {
            const char number[] = {(char)('0' + order), '\0'};
            (void)setenv("SOFTGPU_ORDER", number, 1);
            code = child_run(rows[i].run, text);
            found = is_found(&rows[i], code, text);
        }
        if (!found) {
            (void)fputs(text, stdout);
            fail_msg("%s: ended with %d, not found by \"%s\"", rows[i].name, code, rows[i].found);
        }
    }
}

static void test_right_programs_pass(void **)
{
    int (*const right[])(void) = {nothing, nothing_left_at_exit};
    for (int order = 0; order < 3; order++) {
        const char number[] = {(char)('0' + order), '\0'};
        (void)setenv("SOFTGPU_ORDER", number, 1);
        for (int i = 0; i < 2; i++) {
            char text[CHILD_TEXT];
            int code = child_run(right[i], text);
            if (code != 0 || text[0] != '\0') {
                fail_msg("program %d in order %d ended with %d: %s", i, order, code, text);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_programs_pass),
        cmocka_unit_test(test_every_mistake_is_found),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
