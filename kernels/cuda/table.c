/* The table of CUDA kernels, loading them, and the text of a fault. */
#include "kernels/cuda/convolution.h"
#include "kernels/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

enum { KERNELS = 1024 };
static const void *kernels[KERNELS]; /* in the order in which the initializers ran */
static int kernel_count;

bool dt_cuda_kernel_known(const void *kernel)
{
    if (kernel_count == KERNELS) {
        abort(); /* runs before main, so a developer who adds too many kernels notices */
    }
    kernels[kernel_count++] = kernel;
    return true;
}

/* CUDA loads a kernel's code at its first launch, or when its attributes are read, some of which
 * only loaded code has. */
int dt_cuda_kernels_load(void)
{
    struct cudaFuncAttributes unused;
    cudaError_t rc = cudaSuccess;
    for (int i = 0; i < kernel_count && rc == cudaSuccess; i++) {
        rc = cudaFuncGetAttributes(&unused, kernels[i]);
    }
    return (int)rc;
}

int dt_cuda_fault_read(const struct dt_cuda_fault *fault, struct dt_error *err)
{
    if (__atomic_load_n(&fault->kind, __ATOMIC_ACQUIRE) == DT_CUDA_NO_FAULT) {
        return 0;
    }
    return dt_fail(err, DT_INVALID, "loss: row %lld: target %d is outside of 0..%lld", (long long)fault->row,
                   (int)fault->value, (long long)fault->limit - 1);
}

const struct dt_kernels dt_kernels_cuda = {
    .name = "cuda",
#define KERNEL(row, types) .row = dt_cuda_##row,
#include "kernels/rows.def"
    .matmul_epilogue = dt_cuda_matmul_epilogue,
#define CONVOLUTION(row) .row = dt_cuda_##row,
#include "kernels/convolutions.def"
};
