/* What the files of the CPU backend share: device ops, the pool behind a stream, per-thread work memory. */
#ifndef DT_KERNELS_CPU_CPU_H
#define DT_KERNELS_CPU_CPU_H

#include "kernels/device.h"
#include "kernels/kernels.h"

#include <stddef.h>
#include <stdint.h>

extern const struct dt_device_ops dt_cpu_device_ops;

struct dt_pool;
/* The pool of the stream's device; null when kernels run in one thread. */
struct dt_pool *dt_cpu_pool(struct dt_stream *s);

/* Memory of the calling thread for one kernel call, 64-byte aligned, not cleared; grows and is kept. Slots are independent. */
enum dt_work { DT_WORK_KERNEL, DT_WORK_MATMUL, DT_WORK_COUNT };
void *dt_cpu_work(enum dt_work slot, size_t size_bytes);

/* One product in the calling thread by oneDNN (F32): arguments as in dt_matmul_args. 0, or -1 with the library's status. */
int dt_cpu_gemm(const struct dt_matmul_args *a, struct dt_error *err);

#endif
