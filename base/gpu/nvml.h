/* The state, health, users and errors of GPUs, as reported by NVIDIA's driver. NVML
 * (libnvidia-ml.so.1) comes with the driver and is loaded at the first use. An old driver may lack
 * any of its functions. A value that a GPU does not report is -1. The calls make no context on a
 * GPU and take none of its memory. But they may hang in the kernel if a GPU hangs, so call them
 * where that blocks nothing else. */
#ifndef DT_BASE_GPU_NVML_H
#define DT_BASE_GPU_NVML_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DT_NVML_GPUS 64 /* further GPUs of a host are ignored */

struct dt_nvml; /* the library after nvmlInit */
/* a GPU, or a part of a GPU that MIG divides; NVML's handle, valid as long as the library is
 * open */
struct dt_nvml_gpu;

/* Values that NVML reports; dt_nvml_value_name names each. */
enum dt_nvml_value {
    DT_NVML_MEMORY_TOTAL, /* bytes */
    DT_NVML_MEMORY_USED,
    DT_NVML_BUSY, /* percent of the last moments in which a kernel ran */
    DT_NVML_MEMORY_BUSY,
    DT_NVML_CLOCK, /* MHz, of the multiprocessors */
    DT_NVML_CLOCK_MAX,
    DT_NVML_MEMORY_CLOCK,
    DT_NVML_MEMORY_CLOCK_MAX,
    DT_NVML_THROTTLE,    /* bits: reasons why the clock is not higher */
    DT_NVML_TEMPERATURE, /* degrees Celsius */
    DT_NVML_POWER,       /* milliwatts */
    DT_NVML_POWER_LIMIT,
    DT_NVML_PERSISTENCE,     /* 1: the driver stays loaded without programs */
    DT_NVML_COMPUTE_MODE,    /* 0: any process, 2: none, 3: one process at a time */
    DT_NVML_MIG,             /* 1: MIG divides the GPU */
    DT_NVML_ECC,             /* 1: memory errors are corrected and counted */
    DT_NVML_ECC_CORRECTED,   /* since the driver was loaded */
    DT_NVML_ECC_UNCORRECTED, /* since the driver was loaded */
    DT_NVML_ECC_UNCORRECTED_EVER,
    DT_NVML_RETIRED_PAGES,   /* on older GPUs; newer ones remap rows */
    DT_NVML_RETIRED_PENDING, /* 1: a page will be retired at the next reset */
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
    int64_t pid, bytes; /* bytes -1: unknown */
    char name[64];      /* of the program; "": it is in another container, or gone */
};

struct dt_nvml_event {
    int gpu; /* index in the list of watched GPUs */
    /* 0: an uncorrectable memory error, which has no number */
    int xid;
    /* parts of a GPU that MIG divides, as far as the driver knows them */
    unsigned gpu_instance, compute_instance;
};
enum dt_nvml_whose { DT_NVML_ANYBODYS, DT_NVML_OURS, DT_NVML_OTHERS };

/* Opens NVML. DT_NOT_FOUND: there is no driver. DT_INVALID: its parts do not fit together. DT_IO:
 * other errors. */
int dt_nvml_open(struct dt_nvml **out, struct dt_error *err);
void dt_nvml_close(struct dt_nvml *n); /* null is allowed */

/* The driver's version, "580.65.06"; "": unknown. Returns out. */
const char *dt_nvml_driver(struct dt_nvml *n, char *out, size_t out_bytes);
/* The newest CUDA version that the driver supports, 13000 for 13.0; -1: unknown. */
int dt_nvml_cuda(struct dt_nvml *n);
/* Number of GPUs of this host, in the order of their bus addresses, whatever CUDA_VISIBLE_DEVICES
 * says; -1: unknown. */
int dt_nvml_count(struct dt_nvml *n);

/* Number of GPUs that this process may use, which a control group may limit; -1: unknown. */
int dt_nvml_usable(struct dt_nvml *n);

/* A GPU by number. Null with an error: it is lost, or not visible to us. */
struct dt_nvml_gpu *dt_nvml_at(struct dt_nvml *n, int index, struct dt_error *err);
/* By "GPU-...", "MIG-..." or "0000:3b:00.0". */
struct dt_nvml_gpu *dt_nvml_find(struct dt_nvml *n, const char *id, struct dt_error *err);
/* Part `index` of a GPU that MIG divides. Null: there is none. Numbers may have gaps, so try all
 * below dt_nvml_parts. */
struct dt_nvml_gpu *dt_nvml_part(struct dt_nvml *n, struct dt_nvml_gpu *gpu, int index);
int dt_nvml_parts(struct dt_nvml *n, struct dt_nvml_gpu *gpu);
/* Fills name, uuid and bus; "": unknown. bus: as in sysfs, "0000:3b:00.0". */
void dt_nvml_identify(struct dt_nvml *n, struct dt_nvml_gpu *gpu, char name[96], char uuid[96], char bus[32]);
const char *dt_nvml_serial(struct dt_nvml *n, struct dt_nvml_gpu *gpu, char *out, size_t out_bytes);
/* The GPU's number N in /dev/nvidiaN; -1: unknown. */
int dt_nvml_minor(struct dt_nvml *n, struct dt_nvml_gpu *gpu);
int64_t dt_nvml_value(struct dt_nvml *n, struct dt_nvml_gpu *gpu, enum dt_nvml_value what);
/* 0 if the GPU answers, or -1 with its problem: lost, needs a reset. */
int dt_nvml_health(struct dt_nvml *n, struct dt_nvml_gpu *gpu, struct dt_error *err);
/* Lists programs that compute on the GPU, at most `room`. Returns their number; -1: unknown. */
int dt_nvml_processes(struct dt_nvml *n, struct dt_nvml_gpu *gpu, struct dt_nvml_process *out, int room);
/* 1 if one GPU can read the other's memory (nvlink: over NVLink), 0 if not, -1: unknown. */
int dt_nvml_reaches(struct dt_nvml *n, struct dt_nvml_gpu *one, struct dt_nvml_gpu *other, bool nvlink);

/* Watches for errors from now on. GPUs that do not report errors are left out; -1 if none does.
 * dt_nvml_close ends it. */
int dt_nvml_watch(struct dt_nvml *n, struct dt_nvml_gpu *const *gpus, int count, struct dt_error *err);
/* Waits for the next error. 1: *out; 0: none within timeout_s; -1: NVML reports no more errors, and
 * a GPU may be lost: see dt_nvml_health. */
int dt_nvml_wait(struct dt_nvml *n, double timeout_s, struct dt_nvml_event *out);
/* Tells whose an event of a whole GPU is, seen from that GPU (ours) or from a part of it: the
 * part's own, a neighbour's, or unknown (anybody's). */
enum dt_nvml_whose dt_nvml_event_whose(struct dt_nvml *n, struct dt_nvml_gpu *gpu, const struct dt_nvml_event *e);

/* ---- texts; pure functions ---- */

/* "power, heat": names the bits of DT_NVML_THROTTLE that slow a GPU down. "": none does; idle is
 * none. hardware: only those that mean a fault. */
const char *dt_nvml_throttle_text(int64_t reasons, bool hardware, char *out, size_t out_bytes);
/* The meaning of an Xid, "fell off the bus"; null: it is not in the table. */
const char *dt_nvml_xid_text(int xid);
/* True if all work on the GPU has ended, so that nothing needs to wait for it. */
bool dt_nvml_xid_ends_gpu(int xid);
/* Parses a line of the kernel's log, "NVRM: Xid (PCI:0000:3b:00): 79, ...". Returns the number and
 * the bus address ("0000:3b:00.0"), or 0. */
int dt_nvml_xid_of_line(const char *line, char bus[32]);

#endif
