/* Data sheets of GPUs: rates of products and memory, sizes, links. */
#ifndef DT_KERNELS_PEAK_H
#define DT_KERNELS_PEAK_H

#include "base/dtype.h"

#include <stdbool.h>

struct dt_text;

/* FLOP/s of dense products of this type on an NVIDIA GPU with this name (the driver's) and
 * compute capability: BF16 by tensor cores with sums in F32, F32 without tensor cores. sm_count:
 * multiprocessors of our part, if MIG divides the GPU. For a GPU that is not in the table, the
 * rate is estimated from its multiprocessors at clock_hz, its highest clock. 0: unknown. Pure
 * function. */
double dt_peak_flops(const char *name, int major, int minor, int sm_count, double clock_hz, enum dt_dtype type);

/* A data sheet, for what is planned for GPUs that are elsewhere. */
struct dt_gpu_sheet {
    char name[32];                 /* "H100" */
    double bf16_flops, fp32_flops; /* per second, dense */
    double memory_bytes, memory_bytes_per_s;
    double link_bytes_per_s;    /* to the other GPUs of its host, each way: NVLink, or PCIe */
    double network_bytes_per_s; /* of a network card for each GPU, as it is usual beside it, each way */
    double host_bytes_per_s;    /* from and to pinned memory of the host, each way; 0: copies take no time */
    /* No sheet says it: the GPU's share of its host's disks, read and written one at a time; 0: files take no time. */
    double disk_bytes_per_s;
};
/* By name, in any case and with or without blanks and hyphens ("h100", "H100 PCIe", "a100-40gb"). False:
 * unknown; `known` (may be null) becomes a list of all names. */
bool dt_gpu_sheet(const char *name, struct dt_gpu_sheet *out, struct dt_text *known);

#endif
