/* covers: tests/softgpu kernels/cuda/attention_flash.cu kernels/cuda/attention_flash_backward.cu */
/* Tensor cores on the software GPU do what the PTX ISA says, by formulas of its sections on
 * mma.m16n8k16 and ldmatrix, written down a second time here. And the kernels that use them need
 * each of their barriers and waits: without one of them results are wrong in some order of
 * threads. run: timeout 300 */
#include "kernels/cuda/attention_flash.cuh"
#include "tests/softgpu/sanitize.h"
#include "tests/softgpu/softgpu.h"
#include "tests/lib/child.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

extern "C" {
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
}

/* ---- the kernels again, with barriers and waits that can be left out ---- */

enum { PLACES_MAX = 32 };
struct place {
    const char *file;
    int line;
};
/* Shared with the processes that run kernels. */
static struct shared {
    int count, missing; /* missing: index of the barrier or wait that is left out, or -1 */
    struct place places[PLACES_MAX];
    bool made; /* the expected bits are those of the complete kernels */
    unsigned char results[1 << 20];
} * shared;

/* Not instrumented, because it is not part of the kernels. */
__attribute__((no_sanitize("thread"))) static bool left_out(const char *file, int line)
{
    int i = 0;
    while (i < shared->count && (shared->places[i].line != line || strcmp(shared->places[i].file, file) != 0)) {
        i++;
    }
    if (i == shared->count && i < PLACES_MAX) {
        shared->places[shared->count++] = {file, line};
    }
    return i == shared->missing;
}

template <int PENDING>
static void wait_unless_left_out(const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    if (!left_out(file, line)) {
        dt_cp_wait<PENDING>();
    }
}

#define dt_cp_wait wait_unless_left_out
#define __syncthreads() (left_out(__FILE__, __LINE__) ? (void)0 : (__syncthreads)())
namespace forward_with_places
{
#include "kernels/cuda/attention_flash.cu"
}
namespace backward_with_places
{
#include "kernels/cuda/attention_flash_backward.cu"
}
#undef dt_cp_wait
#undef __syncthreads

enum { POSITIONS = 200, HEAD = 64, ROW = 3 * HEAD };

static void *device(size_t size_bytes)
{
    void *p = nullptr;
    if (cudaMalloc(&p, size_bytes) != cudaSuccess) {
        exit(3);
    }
    return p;
}

/* Runs both passes. Returns 0 if the results have the bits of the complete kernels. */
static int run_attention(void)
{
    size_t qkv = POSITIONS * ROW * sizeof(dt_bf16), out = POSITIONS * HEAD * sizeof(dt_bf16),
           lse = POSITIONS * sizeof(float);
    struct dt_cuda_launch l = {};
    cudaStream_t stream;
    uint16_t *host;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaMallocHost((void **)&host, qkv) != cudaSuccess) {
        return 3;
    }
    l.native = stream;
    l.work = device(DT_CUDA_WORK_BYTES);
    struct dt_attention_args a = {};
    struct dt_attention_backward_args b = {};
    dt_bf16 *rows = (dt_bf16 *)device(qkv), *drows = (dt_bf16 *)device(qkv);
    b.q = a.q = rows;
    b.k = a.k = rows + HEAD;
    b.v = a.v = rows + 2 * HEAD;
    b.out = a.out = device(out);
    b.lse = a.lse = device(lse);
    b.dout = device(out);
    b.dq = drows;
    b.dk = drows + HEAD;
    b.dv = drows + 2 * HEAD;
    a.shape.batch = a.shape.heads = 1;
    a.shape.queries = a.shape.keys = POSITIONS;
    a.shape.head_size = HEAD;
    a.shape.causal = true;
    a.shape.type = DT_BF16;
    b.shape = a.shape;
    uint32_t seed = 1;
    for (size_t i = 0; i < qkv / sizeof *host; i++) {
        seed = seed * 1664525 + 1013904223;
        /* 0.25 to 1, of either sign */
        host[i] = (uint16_t)(0x3e80 + (seed >> 24) + ((seed & 0x800000) != 0 ? 0x8000 : 0));
    }
    cudaMemcpyAsync(rows, host, qkv, cudaMemcpyHostToDevice, stream);
    cudaMemcpyAsync((void *)b.dout, host + 77 * 8, out, cudaMemcpyHostToDevice, stream);
    forward_with_places::dt_cuda_attention_flash(&l, &a);
    backward_with_places::dt_cuda_attention_backward_flash(&l, &b);
    const void *from[] = {a.out, a.lse, b.dq};
    size_t size[] = {out, lse, qkv}, used = 0;
    int wrong = cudaGetLastError() != cudaSuccess;
    for (int i = 0; i < 3; i++) {
        cudaMemcpyAsync(host, from[i], size[i], cudaMemcpyDeviceToHost, stream);
        wrong |= cudaStreamSynchronize(stream) != cudaSuccess;
        if (shared->made) {
            wrong |= memcmp(shared->results + used, host, size[i]) != 0;
        } else {
            memcpy(shared->results + used, host, size[i]);
        }
        used += size[i];
    }
    return wrong;
}

static const char *const orders[] = {"0", "1", "2", "3"};

static void test_no_place_may_be_missing(void **)
{
    char text[CHILD_TEXT];
    shared = (struct shared *)mmap(nullptr, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(shared, MAP_FAILED);
    shared->missing = -1;
    for (const char *order : orders) {
        setenv("SOFTGPU_ORDER", order, 1);
        int code = child_run(run_attention, text);
        if (code != 0) {
            fail_msg("the whole kernels end with %d in order %s: %s", code, order, text);
        }
        shared->made = true;
    }
    assert_in_range(shared->count, 10, PLACES_MAX - 1);
    for (int i = 0; i < shared->count; i++) {
        bool shown = false;
        shared->missing = i;
        for (int o = 1; o < 4 && !shown; o++) {
            setenv("SOFTGPU_ORDER", orders[o], 1);
            shown = child_run(run_attention, text) != 0;
        }
        if (!shown) {
            fail_msg("%s:%d: without it nothing is wrong in any order", shared->places[i].file, shared->places[i].line);
        }
    }
    munmap(shared, sizeof *shared);
}

/* ---- layouts ---- */

enum { PRODUCTS = 20, A = 16 * 16, B = 16 * 8, C = 16 * 8, PRODUCT = A + B + C };

/* Small integers, so that sums are exact. */
static float number(int i)
{
    uint32_t x = (uint32_t)i * 2654435761u;
    x = (x ^ x >> 15) * 2246822519u;
    return (float)((int)(x >> 24) - 128);
}

static __global__ void multiply(float *out)
{
    int lane = (int)threadIdx.x, group = lane >> 2, member = lane % 4, at = (int)blockIdx.x * PRODUCT;
    uint16_t a[8], b[4];
    float c[4];
    for (int i = 0; i < 8; i++) { /* "row = groupID for ai where 0 <= i < 2 || 4 <= i < 6,
                                   * groupID + 8 otherwise; col = (threadID_in_group * 2) + (i &
                                   * 1), + 8 for i >= 4" */
        int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8, col = member * 2 + (i & 1) + (i >= 4 ? 8 : 0);
        a[i] = (uint16_t)(__float_as_uint(number(at + row * 16 + col)) >> 16);
    }
    for (int i = 0; i < 4; i++) { /* "row = (threadID_in_group * 2) + (i & 1), + 8 for i >= 2;
                                   * col = groupID" */
        int row = member * 2 + (i & 1) + (i >= 2 ? 8 : 0);
        b[i] = (uint16_t)(__float_as_uint(number(at + A + row * 8 + group)) >> 16);
    }
    for (int i = 0; i < 4; i++) { /* "row = groupID for ci where i < 2, groupID + 8 for i >= 2;
                                   * col = (threadID_in_group * 2) + (i & 1)" */
        c[i] = number(at + A + B + (i < 2 ? group : group + 8) * 8 + member * 2 + (i & 1));
    }
    uint32_t ra[4], rb[2];
    memcpy(ra, a, sizeof ra);
    memcpy(rb, b, sizeof rb);
    dt_mma_bf16(c, ra, rb);
    for (int i = 0; i < 4; i++) {
        out[(int)blockIdx.x * C + (i < 2 ? group : group + 8) * 8 + member * 2 + (i & 1)] = c[i];
    }
}

static int run_multiply(void)
{
    cudaStream_t stream;
    float *out = (float *)device(PRODUCTS * C * sizeof(float)), *host;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaMallocHost((void **)&host, PRODUCTS * C * sizeof(float)) != cudaSuccess) {
        return 3;
    }
    DT_LAUNCH(multiply, PRODUCTS, 32, 0, stream, out);
    cudaMemcpyAsync(host, out, PRODUCTS * C * sizeof(float), cudaMemcpyDeviceToHost, stream);
    int wrong = cudaStreamSynchronize(stream) != cudaSuccess;
    for (int p = 0; p < PRODUCTS; p++) {
        for (int m = 0; m < 16; m++) {
            for (int n = 0; n < 8; n++) {
                float sum = number(p * PRODUCT + A + B + m * 8 + n);
                for (int k = 0; k < 16; k++) {
                    sum += number(p * PRODUCT + m * 16 + k) * number(p * PRODUCT + A + k * 8 + n);
                }
                wrong |= !(host[p * C + m * 8 + n] == sum);
            }
        }
    }
    return wrong;
}

/* Thread 8 i + r provides row r of matrix i. Register i of thread T holds elements 2 (T % 4) and 2
 * (T % 4) + 1 of row T / 4 of matrix i, or of its column. */
template <bool TRANS> static __global__ void load(uint32_t *out)
{
    DT_SHARED(uint16_t, rows, [32][8]);
    int lane = (int)threadIdx.x;
    for (int i = 0; i < 8; i++) {
        rows[lane][i] = (uint16_t)(lane * 8 + i + 1000);
    }
    __syncwarp();
    uint32_t r[4];
    dt_ldmatrix_x4<TRANS>(r, rows[lane]);
    for (int i = 0; i < 4; i++) {
        out[lane * 4 + i] = r[i];
    }
}

template <bool TRANS> static int run_load(void)
{
    cudaStream_t stream;
    uint32_t *out = (uint32_t *)device(128 * sizeof(uint32_t)), *host;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaMallocHost((void **)&host, 128 * sizeof(uint32_t)) != cudaSuccess) {
        return 3;
    }
    DT_LAUNCH((load<TRANS>), 1, 32, 0, stream, out);
    cudaMemcpyAsync(host, out, 128 * sizeof(uint32_t), cudaMemcpyDeviceToHost, stream);
    int wrong = cudaStreamSynchronize(stream) != cudaSuccess;
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 8; i++) { /* register i / 2, half i % 2 */
            int row = lane / 4, column = lane % 4 * 2 + i % 2, at = TRANS ? column * 8 + row : row * 8 + column;
            wrong |= (int)(host[lane * 4 + i / 2] >> i % 2 * 16 & 0xffff) != i / 2 * 64 + at + 1000;
        }
    }
    return wrong;
}

static void test_layouts_of_the_manual(void **)
{
    int (*const runs[])(void) = {run_multiply, run_load<false>, run_load<true>};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        for (const char *order : orders) {
            char text[CHILD_TEXT];
            setenv("SOFTGPU_ORDER", order, 1);
            int code = child_run(runs[i], text);
            if (code != 0) {
                fail_msg("case %zu in order %s ended with %d: %s", i, order, code, text);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layouts_of_the_manual),
                                       cmocka_unit_test(test_no_place_may_be_missing)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
