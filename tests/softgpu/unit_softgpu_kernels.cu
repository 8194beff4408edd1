/* covers: tests/softgpu */
/* The executor: right kernels give right values in every order of threads; each mistake of a
 * kernel is found, by its message or by wrong values, in the order that the heading of
 * executor.cc promises. A mistake ends its process, so each runs in a child. More:
 * unit_softgpu_faults.cu. */
#include "kernels/cuda/common.cuh"
#include "tests/softgpu/sanitize.h"
#include "tests/softgpu/softgpu.h"
#include "tests/lib/child.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>

extern "C" {
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
}

#define ORDERS 4
static const char *const orders[ORDERS] = {"0", "1", "2", "3"};

struct gpu {
    cudaStream_t stream;
    float *in, *out; /* device, COUNT each */
    float *host;     /* pinned, COUNT */
};
enum { COUNT = 4096 };

static void gpu_open(struct gpu *g)
{
    assert_int_equal(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&g->in, COUNT * sizeof(float)), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&g->out, COUNT * sizeof(float)), cudaSuccess);
    assert_int_equal(cudaMallocHost((void **)&g->host, COUNT * sizeof(float)), cudaSuccess);
    for (int i = 0; i < COUNT; i++) {
        g->host[i] = (float)(i % 97) - 48.0f;
    }
    assert_int_equal(cudaMemcpyAsync(g->in, g->host, COUNT * sizeof(float), cudaMemcpyHostToDevice, g->stream),
                     cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(g->stream), cudaSuccess);
}

/* What the kernels left, in g->host. */
static void gpu_read(struct gpu *g)
{
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(g->host, g->out, COUNT * sizeof(float), cudaMemcpyDeviceToHost, g->stream),
                     cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(g->stream), cudaSuccess);
}

static void gpu_close(struct gpu *g)
{
    assert_int_equal(cudaStreamDestroy(g->stream), cudaSuccess);
    assert_int_equal(cudaFree(g->in), cudaSuccess);
    assert_int_equal(cudaFree(g->out), cudaSuccess);
    assert_int_equal(cudaFreeHost(g->host), cudaSuccess);
}

static float input(int i)
{
    return (float)(i % 97) - 48.0f;
}

/* ---- a sum by a tree in shared memory; MISSING leaves out one of its barriers ---- */

template <int MISSING> static __global__ void tree_sum(float *out, const float *in)
{
    DT_SHARED(float, part, [256]);
    part[threadIdx.x] = in[blockIdx.x * 256 + threadIdx.x];
    if (MISSING != 1) {
        __syncthreads();
    }
    for (int n = 128; n > 0; n /= 2) {
        if ((int)threadIdx.x < n) {
            part[threadIdx.x] += part[threadIdx.x + n];
        }
        if (MISSING != 2) {
            __syncthreads();
        }
    }
    if (threadIdx.x == 0) {
        out[blockIdx.x] = part[0];
    }
}

static bool tree_is_right(const float *out)
{
    for (int b = 0; b < COUNT / 256; b++) {
        float sum = 0;
        for (int i = 0; i < 256; i++) {
            sum += input(b * 256 + i);
        }
        if (!(out[b] == sum)) {
            return false;
        }
    }
    return true;
}

template <int MISSING> static int run_tree(void)
{
    struct gpu g;
    gpu_open(&g);
    DT_LAUNCH((tree_sum<MISSING>), COUNT / 256, 256, 0, g.stream, g.out, g.in);
    gpu_read(&g);
    bool right = tree_is_right(g.host);
    gpu_close(&g);
    return right ? 0 : 1;
}

/* ---- rows by warps: shuffles, ragged ends, values that nobody wrote ---- */

static __global__ void row_sums(float *out, const float *in, int cols)
{
    int row = (int)(blockIdx.x * blockDim.y + threadIdx.y), lane = (int)threadIdx.x;
    float sum = 0;
    for (int c = lane; c < cols; c += 32) {
        sum += in[row * cols + c];
    }
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(~0u, sum, step);
    }
    float first = __shfl_sync(~0u, in[row * cols + (lane < cols ? lane : 0)], 0);
    unsigned positive = __ballot_sync(~0u, lane < cols && in[row * cols + lane] > 0);
    float above = __shfl_down_sync(~0u, sum + (float)lane, 1), below = __shfl_up_sync(~0u, sum + (float)lane, 3, 8);
    bool fine =
        above == sum + (float)(lane < 31 ? lane + 1 : 31) && below == sum + (float)(lane % 8 >= 3 ? lane - 3 : lane);
    if (!__all_sync(~0u, fine) || __any_sync(~0u, !fine) || __reduce_max_sync(~0u, lane) != 31 ||
        __reduce_add_sync(~0u, 1) != 32) {
        sum = NAN;
    }
    if (lane == 0) {
        out[3 * row] = sum;
        out[3 * row + 1] = first;
        out[3 * row + 2] = (float)__popc(positive);
    }
}

static int run_rows(void)
{
    enum { COLS = 45, ROWS = 88 };
    struct gpu g;
    gpu_open(&g);
    DT_LAUNCH(row_sums, ROWS / 4, dim3(32, 4), 0, g.stream, g.out, g.in, COLS);
    gpu_read(&g);
    int wrong = 0;
    for (int r = 0; r < ROWS; r++) {
        float sum = 0;
        int positive = 0;
        for (int c = 0; c < COLS; c++) {
            sum += input(r * COLS + c);
            positive += c < 32 && input(r * COLS + c) > 0;
        }
        wrong +=
            !(g.host[3 * r] == sum && g.host[3 * r + 1] == input(r * COLS) && g.host[3 * r + 2] == (float)positive);
    }
    wrong += !isnan(g.host[3 * ROWS]); /* memory that nobody wrote is no number */
    gpu_close(&g);
    return wrong;
}

/* ---- a product of bf16 fragments, from rows and from columns of shared memory ---- */

template <bool TRANS> static __global__ void product(float *out, const float *a, const float *b)
{
    DT_SHARED(dt_bf16, as, [16][16]); /* [m][k] */
    DT_SHARED(dt_bf16, bs, [16][16]); /* [n][k], or [k][n] to be transposed while it is loaded */
    int lane = (int)threadIdx.x;
    for (int i = lane; i < 256; i += 32) {
        as[i / 16][i % 16] = __float2bfloat16(a[i]);
        bs[i / 16][i % 16] = __float2bfloat16(TRANS ? b[i % 16 * 16 + i / 16] : b[i]);
    }
    __syncwarp();
    uint32_t fa[4], fb[4];
    float c[2][4] = {};
    dt_ldmatrix_x4<false>(fa, &as[lane & 15][(lane >> 4) * 8]);
    if (TRANS) {
        dt_ldmatrix_x4<true>(fb, &bs[lane & 15][(lane >> 4) * 8]);
    } else {
        dt_ldmatrix_x4<false>(fb, &bs[(lane & 7) + (lane >> 4) * 8][((lane >> 3) & 1) * 8]);
    }
    for (int tile = 0; tile < 2; tile++) {
        dt_mma_bf16(c[tile], fa, fb + 2 * tile);
        for (int i = 0; i < 4; i++) {
            out[(lane / 4 + i / 2 * 8) * 16 + tile * 8 + lane % 4 * 2 + i % 2] = c[tile][i];
        }
    }
}

template <bool TRANS> static int run_product(void)
{
    struct gpu g;
    gpu_open(&g);
    DT_LAUNCH((product<TRANS>), 1, 32, 0, g.stream, g.out, g.in, g.in + 256);
    gpu_read(&g);
    int wrong = 0;
    for (int m = 0; m < 16; m++) {
        for (int n = 0; n < 16; n++) {
            float sum = 0;
            for (int k = 0; k < 16; k++) {
                sum += input(m * 16 + k) * input(256 + n * 16 + k);
            }
            wrong += !(g.host[m * 16 + n] == sum); /* small integers: exact */
        }
    }
    gpu_close(&g);
    return wrong;
}

/* ---- a running sum over tiles that are copied while the one before is used; MISSING leaves out a wait or a barrier ---- */

template <int MISSING> static __global__ void tiles(float *out, const float *in, int count)
{
    DT_SHARED_DYNAMIC(float, buffer); /* [2][512] */
    int i = (int)threadIdx.x;
    float sum = 0;
    dt_cp_async16(buffer + 4 * i, in + 4 * i);
    dt_cp_commit();
    for (int t = 0; t < count; t++) {
        if (t + 1 < count) {
            dt_cp_async16(buffer + (t + 1) % 2 * 512 + 4 * i, in + (t + 1) * 512 + 4 * i);
        }
        dt_cp_commit();
        if (MISSING != 1) {
            dt_cp_wait<1>();
        }
        if (MISSING != 2) {
            __syncthreads();
        }
        for (int j = 0; j < 4; j++) {
            sum += buffer[t % 2 * 512 + (i + 128 * j + 64) % 512];
        }
        if (MISSING != 3) {
            __syncthreads();
        }
    }
    dt_cp_wait<0>();
    out[i] = sum;
}

template <int MISSING> static int run_tiles(void)
{
    struct gpu g;
    gpu_open(&g);
    DT_LAUNCH((tiles<MISSING>), 1, 128, 4096, g.stream, g.out, g.in, COUNT / 512);
    gpu_read(&g);
    int wrong = 0;
    for (int i = 0; i < 128; i++) {
        float sum = 0;
        for (int t = 0; t < COUNT / 512; t++) {
            for (int j = 0; j < 4; j++) {
                sum += input(t * 512 + (i + 128 * j + 64) % 512);
            }
        }
        wrong += !(g.host[i] == sum);
    }
    gpu_close(&g);
    return wrong;
}

static __global__ void zeros_at_the_end(float *out, const float *in, int count)
{
    DT_SHARED(float, tile, [128]);
    int i = (int)threadIdx.x, left = count - 4 * i;
    dt_cp_async16_zero(tile + 4 * i, in + (left > 0 ? 4 * i : 0), left >= 4 ? 16 : left > 0 ? left * 4 : 0);
    dt_cp_commit();
    dt_cp_wait<0>();
    __syncthreads();
    for (int j = 0; j < 4; j++) {
        out[4 * i + j] = tile[4 * i + j];
    }
}

static int run_zeros(void)
{
    struct gpu g;
    gpu_open(&g);
    DT_LAUNCH(zeros_at_the_end, 1, 32, 0, g.stream, g.out, g.in, 101);
    gpu_read(&g);
    int wrong = 0;
    for (int i = 0; i < 128; i++) {
        wrong += !(g.host[i] == (i < 101 ? input(i) : 0.0f));
    }
    gpu_close(&g);
    return wrong;
}

/* ---- neighbours of a warp by shared memory: __syncwarp orders them ---- */

template <int MISSING> static __global__ void neighbours(float *out, const float *in)
{
    DT_SHARED(float, row, [4][32]);
    int w = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    row[w][lane] = in[threadIdx.x];
    __syncwarp();
    float x = row[w][(lane + 1) % 32];
    if (MISSING != 1) {
        __syncwarp();
    }
    row[w][lane] = -x;
    __syncwarp();
    out[threadIdx.x] = x + row[w][(lane + 31) % 32];
}

template <int MISSING> static int run_neighbours(void)
{
    struct gpu g;
    gpu_open(&g);
    DT_LAUNCH((neighbours<MISSING>), 1, 128, 0, g.stream, g.out, g.in);
    gpu_read(&g);
    int wrong = 0;
    for (int i = 0; i < 128; i++) {
        wrong += !(g.host[i] == input(i / 32 * 32 + (i + 1) % 32) - input(i));
    }
    gpu_close(&g);
    return wrong;
}

static void test_right_kernels(void **)
{
    int (*const runs[])(void) = {run_neighbours<0>, run_tree<0>,  run_rows, run_product<false>,
                                 run_product<true>, run_tiles<0>, run_zeros};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        for (int o = 0; o < ORDERS; o++) {
            char text[CHILD_TEXT];
            setenv("SOFTGPU_ORDER", orders[o], 1);
            int code = child_run(runs[i], text);
            if (code != 0) {
                fail_msg("kernel %zu in order %s ended with %d: %s", i, orders[o], code, text);
            }
        }
    }
}

/* A missing barrier is no message: it is wrong values in some order. */
static void test_missing_barriers_show(void **)
{
    int (*const runs[])(void) = {run_tree<1>, run_tree<2>, run_tiles<1>, run_tiles<2>, run_tiles<3>, run_neighbours<1>};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        int shown = 0;
        for (int o = 1; o < ORDERS; o++) {
            char text[CHILD_TEXT];
            setenv("SOFTGPU_ORDER", orders[o], 1);
            shown += child_run(runs[i], text) != 0;
        }
        if (shown == 0) {
            fail_msg("the missing barrier of case %zu shows in no order", i);
        }
    }
}

/* ---- mistakes with a message ---- */

template <int CASE> static __global__ void mistake(float *out, const float *in)
{
    DT_SHARED(float, small, [8]);
    int i = (int)threadIdx.x;
    float x = 0;
    switch (CASE) {
    case 0: /* some go another way */
        if (i < 16) {
            __syncthreads();
        } else {
            __syncthreads();
        }
        break;
    case 1:
        if (i == 5) {
            return;
        }
        __syncthreads();
        break;
    case 2:
        if (i % 2 == 0) {
            x = __shfl_sync(~0u, x, 0);
        }
        break;
    case 3:
        if (i < 8) {
            x = __shfl_sync(0xffu, (float)i, 9);
        }
        break;
    case 4:
        x = __shfl_sync(0xfffeu, x, 1);
        break;
    case 5:
        if (i < 16) {
            x = __shfl_xor_sync(~0u, x, 1);
        } else {
            x = __shfl_xor_sync(~0u, x, 2);
        }
        break;
    case 6:
        dt_cp_async16(small, in);
        dt_cp_commit();
        break;
    case 7:
        dt_cp_async16(small + 1, in);
        break;
    case 8:
        dt_cp_async16((void *)out, in);
        break;
    case 9:
        dt_cp_async16(small, in + 1);
        break;
    case 10:
        if (i == 0) {
            ((volatile float *)small)[9] = 1;
        }
        break;
    case 11:
        __trap();
        break;
    case 12: {
        DT_SHARED_DYNAMIC(float, row);
        row[i] = 1;
        break;
    }
    case 13: {
        DT_SHARED(float, large, [12 * 1024]);
        large[i] = x;
        break;
    }
    case 14: { /* a barrier and a warp operation wait for each other */
        if (i < 4) {
            __syncthreads();
        } else {
            __syncwarp();
        }
        break;
    }
    case 15: {
        uint32_t r[4];
        dt_ldmatrix_x4<false>(r, small);
        x = __uint_as_float(r[0]);
        break;
    }
    }
    if (i < 8) {
        small[i] = x;
    }
    out[i] = x;
}

template <int CASE> static int run_mistake(void)
{
    struct gpu g;
    gpu_open(&g);
    DT_LAUNCH((mistake<CASE>), 1, 32, 0, g.stream, g.out, g.in);
    gpu_read(&g);
    return 0;
}

static __global__ void half_warp(float *out)
{
    out[threadIdx.x] = __shfl_xor_sync(~0u, (float)threadIdx.x, 1);
}

static int run_half_warp(void)
{
    struct gpu g;
    gpu_open(&g);
    DT_LAUNCH(half_warp, 1, 48, 0, g.stream, g.out);
    gpu_read(&g);
    return 0;
}

static int run_host_pointer(void)
{
    struct gpu g;
    float own[32];
    gpu_open(&g);
    DT_LAUNCH(half_warp, 1, 32, 0, g.stream, own);
    return 0;
}

static __global__ void overrun(float *out, int at)
{
    out[at] = 1;
}

static int run_overrun(void)
{
    struct gpu g;
    gpu_open(&g);
    DT_LAUNCH(overrun, 1, 1, 0, g.stream, g.out, COUNT);
    gpu_read(&g);
    return 0;
}

struct mistake_row {
    int (*run)(void);
    const char *text; /* that the message holds; null: a fault of the memory */
};

static void test_mistakes_are_named(void **)
{
    static const struct mistake_row rows[] = {
        {run_mistake<0>, "threads meet at different __syncthreads: lines"},
        {run_mistake<1>, "returned"},
        {run_mistake<2>, "returned"},
        {run_mistake<3>, "reads lane 9, which is not in mask 0xff"},
        {run_mistake<4>, "is not in its own mask"},
        {run_mistake<5>, "lanes of a warp meet at different operations"},
        {run_mistake<6>, "copies that it never waited for"},
        {run_mistake<7>, "not aligned to 16 bytes"},
        {run_mistake<8>, "not in the block's shared memory"},
        {run_mistake<9>, "the source is not aligned to 16 bytes"},
        {run_mistake<11>, "__trap()"},
        {run_mistake<12>, "the launch gives no shared memory"},
        {run_mistake<13>, "are more than a block has"},
        {run_mistake<14>, "threads wait for ever"},
        {run_half_warp, "names lanes that the block does not have"},
        {run_host_pointer, "argument 0 is a pointer to the host's own memory"},
#ifndef SOFTGPU_ASAN /* which tells itself */
        {run_mistake<10>, "an array in shared memory of 32 bytes"},
#endif
        {run_overrun, nullptr},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int o = 0; o < ORDERS; o++) {
            char text[CHILD_TEXT];
            setenv("SOFTGPU_ORDER", orders[o], 1);
            int code = child_run(rows[i].run, text);
            if (rows[i].text == nullptr ? code != -SIGSEGV
                                        : code != SOFTGPU_EXIT || strstr(text, rows[i].text) == nullptr) {
                fail_msg("mistake %zu in order %s ended with %d, not with \"%s\": %s", i, orders[o], code, rows[i].text,
                         text);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_kernels),
        cmocka_unit_test(test_missing_barriers_show),
        cmocka_unit_test(test_mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
