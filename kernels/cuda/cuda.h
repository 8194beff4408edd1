/* Shared by the files of the CUDA backend: what a stream gives a kernel, and the rows of the table.
 * C, without the toolkit's headers.
 *
 * A row of the table (kernels/cuda/NAME.cu) begins with dt_cuda_begin, launches on `native`, and
 * ends with dt_cuda_end. Nothing in between allocates or waits. A kernel's own data is in `work`,
 * which belongs to the stream, so two streams may run the same kernel. An error that only the
 * device finds (a target outside of the vocabulary) is written to `fault`. device.c reads `fault`
 * whenever it asks whether a stream failed (`failed`, an event's `sync`, an event that passes on a
 * failure), after the work has run. So it needs no wait of its own. */
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

/* Work memory of one stream, which its kernels use one after the other. Every kernel cuts its work
 * so that this is enough. */
#define DT_CUDA_WORK_BYTES ((size_t)32 << 20)

/* The error that a kernel found in its input. One per stream, in pinned host memory that the device
 * writes; zero when the stream is opened. The first fault is kept. */
enum dt_cuda_fault_kind { DT_CUDA_NO_FAULT, DT_CUDA_BAD_TARGET };
struct dt_cuda_fault {
    int32_t kind;       /* written last */
    int32_t value;      /* the wrong target */
    int64_t row, limit; /* the row of the target, and the limit below which it must be */
};

struct dt_cuda_launch {
    void *native; /* cudaStream_t */
    void *work;   /* device memory, DT_CUDA_WORK_BYTES, aligned to 256 bytes, not cleared */
    struct dt_cuda_fault *fault;
    int sm_count;     /* multiprocessors of the device */
    int shared_bytes; /* most dynamic shared memory of a block, by cudaFuncSetAttribute */
};

/* device.c: fills in what a kernel needs on this stream. False: the stream has failed, and the
 * kernel returns without a launch. */
bool dt_cuda_begin(struct dt_stream *s, struct dt_cuda_launch *out);
/* device.c: the device's compute capability; 90 for 9.0. */
int dt_cuda_capability(const struct dt_device *d);
/* device.c: takes the runtime's last error. If there is one, the stream fails with a text that
 * names the kernel. */
void dt_cuda_end(struct dt_stream *s, const char *kernel);
/* stream.c: asks the device for its error, for callers who know only that a library failed on the
 * stream. True: err has device and cause. False: the device has no error, or the stream is being
 * captured and cannot be asked. */
bool dt_cuda_broken(struct dt_stream *s, const char *what, struct dt_error *err);
/* table.c: 0 if the device found no fault, else -1 with its text in err. */
int dt_cuda_fault_read(const struct dt_cuda_fault *fault, struct dt_error *err);
/* table.c: DT_LAUNCH calls it for each kernel before main. Returns true. */
bool dt_cuda_kernel_known(const void *kernel);
/* table.c: loads the code of all known kernels to the calling thread's device, so that first
 * launches do not. Returns a cudaError_t. Loaded code stays loaded. */
int dt_cuda_kernels_load(void);
/* loss.cu: call once per device, before the first kernel. Asks for the shared memory that some
 * kernels need. 0, or -1. */
int dt_cuda_kernels_open(int shared_bytes, struct dt_error *err);

#define KERNEL(name, types) void dt_cuda_##name(struct dt_stream *s, const struct dt_##name##_args *a);
#include "kernels/rows.def"
bool dt_cuda_matmul_epilogue(struct dt_stream *s, const struct dt_matmul_args *a);

#ifdef __cplusplus
}
#endif
#endif
