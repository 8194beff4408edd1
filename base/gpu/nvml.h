/* The state, health, users and errors of GPUs, as NVIDIA's driver tells them. NVML
 * (libnvidia-ml.so.1) comes with the driver and is loaded at the first use. An old driver may
 * lack any of its functions. A value that a GPU does not answer is -1. Its calls make no context
 * on a GPU and cost it no memory, but they may hang in the kernel when a GPU does: call them
 * where that holds nobody up. */
#ifndef DT_BASE_GPU_NVML_H
#define DT_BASE_GPU_NVML_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DT_NVML_GPUS 64 /* more of one host are not looked at */

struct dt_nvml;     /* the library, started */
struct dt_nvml_gpu; /* one GPU, or one part of a GPU that is cut by MIG; NVML's handle, good as
                     * long as the library is open */

/* The values that NVML can be asked for; dt_nvml_value_name names each. */
enum dt_nvml_value {
    DT_NVML_MEMORY_TOTAL, /* bytes */
    DT_NVML_MEMORY_USED,
    DT_NVML_BUSY, /* percent of the last moments in which a kernel ran */
    DT_NVML_MEMORY_BUSY,
    DT_NVML_CLOCK, /* MHz, of the multiprocessors */
    DT_NVML_CLOCK_MAX,
    DT_NVML_MEMORY_CLOCK,
    DT_NVML_MEMORY_CLOCK_MAX,
    DT_NVML_THROTTLE,    /* bits: why the clock is not higher */
    DT_NVML_TEMPERATURE, /* degrees Celsius */
    DT_NVML_POWER,       /* milliwatts */
    DT_NVML_POWER_LIMIT,
    DT_NVML_PERSISTENCE,     /* 1: the driver stays awake without programs */
    DT_NVML_COMPUTE_MODE,    /* 0: for all, 2: for nobody, 3: for one process at a time */
    DT_NVML_MIG,             /* 1: cut into parts */
    DT_NVML_ECC,             /* 1: memory errors are corrected and counted */
    DT_NVML_ECC_CORRECTED,   /* since the driver was loaded */
    DT_NVML_ECC_UNCORRECTED, /* since the driver was loaded */
    DT_NVML_ECC_UNCORRECTED_EVER,
    DT_NVML_RETIRED_PAGES,   /* of older GPUs; newer ones remap rows */
    DT_NVML_RETIRED_PENDING, /* 1: a page is retired when the GPU is reset */
    DT_NVML_REMAPPED_ROWS,
    DT_NVML_REMAP_PENDING,
    DT_NVML_REMAP_FAILED, /* 1: no spare row was left */
    DT_NVML_PCIE_GENERATION,
    DT_NVML_PCIE_GENERATION_MAX,
    DT_NVML_PCIE_WIDTH,
    DT_NVML_PCIE_WIDTH_MAX,
    DT_NVML_NVLINKS_UP,
    DT_NVML_NVLINKS_DOWN,
    DT_NVML_VALUE_COUNT
};
const char *dt_nvml_value_name(enum dt_nvml_value what); /* "memory_used" */

struct dt_nvml_process {
    int64_t pid, bytes; /* bytes -1: not known */
    char name[64];      /* of the program; "" when it is in another container, or gone */
};

struct dt_nvml_event {
    int gpu;                                 /* which of those that are watched */
    int xid;                                 /* 0: an error of memory that cannot be corrected,
                                              * told without a number */
    unsigned gpu_instance, compute_instance; /* of a GPU that MIG cut, as far as the driver knows
                                              * whose it is */
};
enum dt_nvml_whose { DT_NVML_ANYBODYS, DT_NVML_OURS, DT_NVML_OTHERS };

/* Fails with DT_NOT_FOUND where there is no driver, DT_INVALID where its parts do not fit
 * together, DT_IO otherwise. */
int dt_nvml_open(struct dt_nvml **out, struct dt_error *err);
void dt_nvml_close(struct dt_nvml *n); /* null is harmless */

/* The driver's version, "580.65.06"; "" not known. out: n bytes. Returns out. */
const char *dt_nvml_driver(struct dt_nvml *n, char *out, size_t out_bytes);
/* The newest CUDA that the driver serves, 13000 for 13.0; -1 not known. */
int dt_nvml_cuda(struct dt_nvml *n);
/* GPUs of this host, in the order of their bus addresses, whatever CUDA_VISIBLE_DEVICES says; -1
 * not known. */
int dt_nvml_count(struct dt_nvml *n);

/* The number of GPUs that this process may use, which a control group may limit; -1: not known. */
int dt_nvml_usable(struct dt_nvml *n);

/* GPU by number; null, with why: lost, or not ours to see. */
struct dt_nvml_gpu *dt_nvml_at(struct dt_nvml *n, int index, struct dt_error *err);
/* By "GPU-...", "MIG-..." or "0000:3b:00.0". */
struct dt_nvml_gpu *dt_nvml_find(struct dt_nvml *n, const char *id, struct dt_error *err);
/* Part `index` of a GPU that is cut by MIG; null: no such part. Empty places lie between parts:
 * ask up to dt_nvml_parts. */
struct dt_nvml_gpu *dt_nvml_part(struct dt_nvml *n, struct dt_nvml_gpu *gpu, int index);
int dt_nvml_parts(struct dt_nvml *n, struct dt_nvml_gpu *gpu);
/* "" where it is not known. bus: as sysfs writes it, "0000:3b:00.0". */
void dt_nvml_identify(struct dt_nvml *n, struct dt_nvml_gpu *gpu, char name[96], char uuid[96], char bus[32]);
const char *dt_nvml_serial(struct dt_nvml *n, struct dt_nvml_gpu *gpu, char *out, size_t out_bytes);
/* Its number in /dev/nvidiaN; -1 not known. */
int dt_nvml_minor(struct dt_nvml *n, struct dt_nvml_gpu *gpu);
int64_t dt_nvml_value(struct dt_nvml *n, struct dt_nvml_gpu *gpu, enum dt_nvml_value what);
/* Does it answer? 0, or -1 with what is wrong with it: lost, needs a reset. */
int dt_nvml_health(struct dt_nvml *n, struct dt_nvml_gpu *gpu, struct dt_error *err);
/* Programs that compute on it, at most `room`. Returns how many there are; -1 not known. */
int dt_nvml_processes(struct dt_nvml *n, struct dt_nvml_gpu *gpu, struct dt_nvml_process *out, int room);
/* Can one read the other's memory (nvlink: over NVLink)? 1, 0, or -1 not known. */
int dt_nvml_reaches(struct dt_nvml *n, struct dt_nvml_gpu *one, struct dt_nvml_gpu *other, bool nvlink);

/* Errors from now on. A GPU that does not tell is left out; -1 when none does. Freed by
 * dt_nvml_close. */
int dt_nvml_watch(struct dt_nvml *n, struct dt_nvml_gpu *const *gpus, int count, struct dt_error *err);
/* Waits for the next one. 1: *out; 0: none within timeout_s; -1: nothing can be told any more,
 * and a GPU may be lost: see dt_nvml_health. */
int dt_nvml_wait(struct dt_nvml *n, double timeout_s, struct dt_nvml_event *out);
/* An event of a whole GPU, seen from that GPU (ours) or from a part of it: the part's own, a
 * neighbour's, or the driver does not say (anybody's). */
enum dt_nvml_whose dt_nvml_event_whose(struct dt_nvml *n, struct dt_nvml_gpu *gpu, const struct dt_nvml_event *e);

/* ---- words; pure ---- */

/* "power, heat" of the bits of DT_NVML_THROTTLE that slow a GPU down; "" when none does (idle is
 * none). hardware: only those that say something is wrong. */
const char *dt_nvml_throttle_text(int64_t reasons, bool hardware, char *out, size_t out_bytes);
/* The meaning of an Xid, "fell off the bus"; null when the table lacks it. */
const char *dt_nvml_xid_text(int xid);
/* Nothing that runs on the GPU goes on after it: whoever waits for it need not. */
bool dt_nvml_xid_ends_gpu(int xid);
/* A line of the kernel's log as the driver writes them, "NVRM: Xid (PCI:0000:3b:00): 79, ...":
 * the number and the bus address ("0000:3b:00.0"), or 0. */
int dt_nvml_xid_of_line(const char *line, char bus[32]);

#endif
