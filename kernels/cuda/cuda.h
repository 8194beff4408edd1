/* What the files of the CUDA backend share: what a kernel asks of its stream, and the rows of
 * the table. C, without the toolkit's headers.
 *
 * A row of the table (kernels/cuda/NAME.cu) begins with dt_cuda_begin, launches on `native`, and
 * ends with dt_cuda_end. Nothing in between allocates or waits: what a kernel needs for itself
 * lies in `work`, which belongs to this stream, so that two streams may run the same kernel.
 * What only the device finds out (a target outside of the vocabulary) it writes into `fault`;
 * device.c looks there whenever it asks whether a stream failed (`failed`, an event's `sync`, an
 * event that hands on a failure), after the work in question has run: no wait of its own. */
#ifndef DT_KERNELS_CUDA_CUDA_H
#define DT_KERNELS_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/device.h"
#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern const struct dt_device_ops dt_cuda_device_ops; /* kernels/cuda/device.c */
extern const struct dt_kernels dt_kernels_cuda;       /* kernels/cuda/table.c */

/* Work memory of one stream, for its kernels one after the other; every kernel cuts its work so
 * that this is enough. */
#define DT_CUDA_WORK_BYTES ((size_t)32 << 20)

/* What the device says about bad input; one per stream, in pinned host memory that the device
 * writes, zero when the stream is opened. The first fault stays. */
enum dt_cuda_fault_kind { DT_CUDA_NO_FAULT, DT_CUDA_BAD_TARGET };
struct dt_cuda_fault {
    int32_t kind;       /* written last */
    int32_t value;      /* the target */
    int64_t row, limit; /* where; it must be below */
};

struct dt_cuda_launch {
    void *native; /* cudaStream_t */
    void *work;   /* device memory, DT_CUDA_WORK_BYTES, aligned to 256 bytes, not cleared */
    struct dt_cuda_fault *fault;
    int sm_count;     /* multiprocessors of the device */
    int shared_bytes; /* dynamic shared memory that a block may have at most, by
                       * cudaFuncSetAttribute */
};

/* device.c: what a kernel on this stream needs. False when the stream has failed: then the
 * kernel launches nothing and returns. */
bool dt_cuda_begin(struct dt_stream *s, struct dt_cuda_launch *out);
/* device.c: the device's compute capability; 90 for 9.0. */
int dt_cuda_capability(const struct dt_device *d);
/* device.c: takes the last error of the runtime; if there is one, the stream fails, and the text
 * names the kernel. */
void dt_cuda_end(struct dt_stream *s, const char *kernel);
/* stream.c: what the device itself says is wrong with it, for who knows only that a library
 * failed on the stream: true, with device and cause in err. False: it says nothing, or the
 * stream is being taken down, when it cannot be asked. */
bool dt_cuda_broken(struct dt_stream *s, const char *what, struct dt_error *err);
/* table.c: 0 when the device found no fault, else -1 with its text in err. */
int dt_cuda_fault_read(const struct dt_cuda_fault *fault, struct dt_error *err);
/* table.c: DT_LAUNCH calls it for each kernel before main. True. */
bool dt_cuda_kernel_known(const void *kernel);
/* table.c: loads the code of all known kernels to the calling thread's device, so that no first
 * launch has to. A cudaError_t; what was loaded stays. */
int dt_cuda_kernels_load(void);
/* loss.cu: once per device, before the first kernel: asks for the shared memory that some
 * kernels need. 0, or -1. */
int dt_cuda_kernels_open(int shared_bytes, struct dt_error *err);

#define KERNEL(name, types) void dt_cuda_##name(struct dt_stream *s, const struct dt_##name##_args *a);
#include "kernels/rows.def"
bool dt_cuda_matmul_epilogue(struct dt_stream *s, const struct dt_matmul_args *a);

#ifdef __cplusplus
}
#endif
#endif
