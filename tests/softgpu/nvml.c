/* A stand-in for libnvidia-ml.so.1, and for the four calls of libcuda.so.1 that tell where GPUs
 * are. Programs find it by LD_LIBRARY_PATH. Its answers come from the file SOFTGPU_NVML, with lines
 * "key value". The file is read again at every call, so that a test may change what a GPU does
 * while a program runs. A GPU without keys is healthy.
 *
 *     init 18                     nvmlInit returns 18
 *     count 4                     of the host: driver, cuda, count
 *     0.name NVIDIA H200          of GPU 0: name, uuid, serial, bus, total, used, ... (see below)
 *     2.error 15                  GPU 2 returns 15 for everything, also for its handle
 *     2.late 15                   as error, but the handle works; waits for its events get 15, too
 *     0.parts 2, 0.uuid1 MIG-...  MIG split GPU 0 into parts; the UUID of part 1. Part k is
 *                                 compute instance 0 of GPU instance k + 7
 *     0.processes 4242:1000,77:5  pid:bytes
 *     0.1 nvlink                  0 reaches 1 by NVLink; "bus": not by NVLink; "none": not at all
 *     event 1.79                  the first wait for events reports Xid 79 of GPU 1; a new line
 *                                 "event 1.79 x" reports it again, and so on; "event 1.95.8":
 *                                 of GPU instance 8
 *     cuda_init 999, cuda_sees 3  results of CUDA's driver; without them it sees all GPUs that
 *                                 CUDA_VISIBLE_DEVICES names
 *     hang 1                      a query of memory hangs for ever
 */
#include "base/gpu/gpu_visible.h"
#include "base/gpu/nvml_abi.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { GPUS = 64, PARTS = 7, UNKNOWN = 999 };
struct nvmlDevice_st {
    int gpu, part; /* part -1: the whole GPU */
};
struct nvmlEventSet_st {
    unsigned long long gpus;
};
static struct nvmlDevice_st devices[GPUS][PARTS + 1];
static struct nvmlEventSet_st set;
static int told; /* number of reported events */

/* Copies the value of a key to out; false: not found. `skip`: how many lines with the key to
 * skip. */
static bool find(const char *key, int skip, char *out, size_t out_bytes)
{
    const char *path = getenv("SOFTGPU_NVML");
    FILE *f = path != NULL ? fopen(path, "r") : NULL;
    char line[512];
    bool found = false;
    size_t n = strlen(key);
    while (f != NULL && !found && fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, key, n) == 0 && line[n] == ' ' && skip-- == 0) {
            (void)snprintf(out, out_bytes, "%s", line + n + 1);
            found = true;
        }
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return found;
}

static long long number(const char *key, long long fallback)
{
    char text[64];
    return find(key, 0, text, sizeof text) ? strtoll(text, NULL, 0) : fallback;
}

static long long of_gpu(nvmlDevice_t d, const char *name, long long fallback)
{
    char key[64];
    (void)snprintf(key, sizeof key, "%d.%s", d->gpu, name);
    return number(key, fallback);
}

static bool text_of_gpu(nvmlDevice_t d, const char *name, char *out, size_t out_bytes)
{
    char key[64];
    (void)snprintf(key, sizeof key, "%d.%s", d->gpu, name);
    return find(key, 0, out, out_bytes);
}

/* The start of every function about a GPU. A value UNKNOWN means not supported. */
static int answer(nvmlDevice_t d, const char *name, long long fallback, unsigned *out)
{
    long long value = of_gpu(d, name, fallback);
    int rc = (int)of_gpu(d, "late", of_gpu(d, "error", 0));
    if (rc != 0 || value == UNKNOWN) {
        return rc != 0 ? rc : NVML_NOT_SUPPORTED;
    }
    *out = (unsigned)value;
    return 0;
}

static int answer_wide(nvmlDevice_t d, const char *name, unsigned long long *out)
{
    unsigned value = 0;
    int rc = answer(d, name, 0, &value);
    *out = rc == 0 ? value : *out;
    return rc;
}

#define EXPORT __attribute__((visibility("default")))
#define DECLARE(name, parameters) EXPORT int name parameters;
DT_NVML_FUNCTIONS(DECLARE)

int nvmlInit_v2(void)
{
    for (int i = 0; i < GPUS; i++) {
        for (int k = 0; k <= PARTS; k++) {
            devices[i][k] = (struct nvmlDevice_st){i, k - 1};
        }
    }
    return (int)number("init", 0);
}

int nvmlShutdown(void)
{
    return 0;
}

static int copy(const char *text, char *out, unsigned length)
{
    return snprintf(out, length, "%s", text) < (int)length ? 0 : NVML_INSUFFICIENT_SIZE;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    char text[80] = "580.65.06";
    (void)find("driver", 0, text, sizeof text);
    return copy(text, version, length);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = (int)number("cuda", 13000);
    return 0;
}

int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%u/exe", pid);
    ssize_t n = readlink(path, name, length - 1);
    if (n < 0) {
        return NVML_NOT_FOUND;
    }
    name[n] = '\0';
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)number("count", 1);
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    if (index >= (unsigned)number("count", 1)) {
        return 2;
    }
    int rc = (int)of_gpu(&devices[index][0], "error", 0);
    *device = &devices[index][0];
    return rc;
}

int nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned length)
{
    char text[80];
    char key[16];
    (void)snprintf(key, sizeof key, "uuid%d", d->part);
    if (d->part >= 0 && text_of_gpu(d, key, text, sizeof text)) {
        return copy(text, uuid, length);
    }
    if (d->part >= 0) {
        (void)snprintf(text, sizeof text, "MIG-0000000%d-0000-0000-0000-00000000000%d", d->gpu, d->part);
    } else if (!text_of_gpu(d, "uuid", text, sizeof text)) {
        /* like the software GPU's UUIDs */
        (void)snprintf(text, sizeof text, "GPU-736f6674-6770-7500-0000-0000000000%02x", d->gpu);
    }
    return copy(text, uuid, length);
}

int nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci)
{
    char text[32];
    memset(pci, 0, sizeof *pci);
    if (!text_of_gpu(d, "bus", text, sizeof text)) {
        (void)snprintf(text, sizeof text, "0000:%02x:00.0", d->gpu + 1);
    }
    (void)sscanf(text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    (void)snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    return (int)of_gpu(d, "late", 0);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    for (int i = 0; i < (int)number("count", 1); i++) {
        for (int k = 0; k <= PARTS; k++) {
            char text[80];
            (void)nvmlDeviceGetUUID(&devices[i][k], text, sizeof text);
            if (strcmp(text, uuid) == 0 && (k == 0 || of_gpu(&devices[i][k], "parts", 0) >= k)) {
                *device = &devices[i][k];
                return (int)of_gpu(*device, "error", 0);
            }
        }
    }
    return NVML_NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device)
{
    unsigned domain, number_of_bus, slot;
    if (sscanf(bus, "%x:%x:%x", &domain, &number_of_bus, &slot) != 3) {
        return 2;
    }
    for (int i = 0; i < (int)number("count", 1); i++) {
        nvmlPciInfo_t pci;
        (void)nvmlDeviceGetPciInfo_v3(&devices[i][0], &pci);
        if (pci.domain == domain && pci.bus == number_of_bus && pci.device == slot) {
            *device = &devices[i][0];
            return (int)of_gpu(*device, "error", 0);
        }
    }
    return NVML_NOT_FOUND;
}

int nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned length)
{
    char text[96] = "software GPU";
    (void)text_of_gpu(d, "name", text, sizeof text);
    return copy(text, name, length);
}

int nvmlDeviceGetSerial(nvmlDevice_t d, char *serial, unsigned length)
{
    char text[32];
    return text_of_gpu(d, "serial", text, sizeof text) ? copy(text, serial, length) : NVML_NOT_SUPPORTED;
}

int nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *minor)
{
    return answer(d, "minor", d->gpu, minor);
}

int nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m)
{
    while (number("hang", 0) != 0) {
        (void)usleep(1000);
    }
    int rc = (int)of_gpu(d, "late", of_gpu(d, "error", 0));
    m->total = (unsigned long long)of_gpu(d, "total", 8192ll << 20);
    m->used = (unsigned long long)of_gpu(d, "used", 0);
    m->free = m->total - m->used;
    return rc;
}

int nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *rates)
{
    int rc = answer(d, "busy", 0, &rates->gpu);
    return rc != 0 ? rc : answer(d, "memory_busy", 0, &rates->memory);
}

int nvmlDeviceGetClockInfo(nvmlDevice_t d, unsigned type, unsigned *mhz)
{
    return answer(d, type == NVML_CLOCK_MEM ? "memory_clock" : "clock", type == NVML_CLOCK_MEM ? 3201 : 1980, mhz);
}

int nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, unsigned type, unsigned *mhz)
{
    return answer(d, type == NVML_CLOCK_MEM ? "memory_clock_max" : "clock_max", type == NVML_CLOCK_MEM ? 3201 : 1980,
                  mhz);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *reasons)
{
    return answer_wide(d, "throttle", reasons);
}

int nvmlDeviceGetTemperature(nvmlDevice_t d, unsigned sensor, unsigned *celsius)
{
    (void)sensor;
    return answer(d, "temperature", 40, celsius);
}

int nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *milliwatts)
{
    return answer(d, "power", 120000, milliwatts);
}

int nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *milliwatts)
{
    return answer(d, "power_limit", 700000, milliwatts);
}

int nvmlDeviceGetPersistenceMode(nvmlDevice_t d, unsigned *mode)
{
    return answer(d, "persistence", 1, mode);
}

int nvmlDeviceGetComputeMode(nvmlDevice_t d, unsigned *mode)
{
    return answer(d, "compute_mode", 0, mode);
}

int nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *current, unsigned *pending)
{
    *pending = 0;
    return answer(d, "mig", 0, current);
}

int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *count)
{
    return answer(d, "mig_max", of_gpu(d, "parts", 0) > 0 ? PARTS : 0, count);
}

int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned index, nvmlDevice_t *mig)
{
    if (index >= (unsigned)of_gpu(d, "parts", 0)) {
        return NVML_NOT_FOUND;
    }
    *mig = &devices[d->gpu][index + 1];
    return 0;
}

int nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned *id)
{
    *id = (unsigned)d->part + PARTS;
    return d->part >= 0 ? 0 : NVML_NOT_SUPPORTED;
}

int nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, unsigned *id)
{
    *id = 0;
    return d->part >= 0 ? 0 : NVML_NOT_SUPPORTED;
}

int nvmlDeviceGetEccMode(nvmlDevice_t d, unsigned *current, unsigned *pending)
{
    *pending = 1;
    return answer(d, "ecc", 1, current);
}

int nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, unsigned type, unsigned counter, unsigned long long *count)
{
    return answer_wide(d,
                       type == NVML_CORRECTED     ? "ecc_corrected"
                       : counter == NVML_VOLATILE ? "ecc_uncorrected"
                                                  : "ecc_uncorrected_ever",
                       count);
}

int nvmlDeviceGetRetiredPages(nvmlDevice_t d, unsigned cause, unsigned *count, unsigned long long *addresses)
{
    (void)addresses;
    unsigned pages = 0;
    int rc = answer(d, "retired_pages", UNKNOWN, &pages);
    *count = cause == NVML_RETIRED_SINGLE_BIT ? 0 : pages;
    return rc != 0 ? rc : *count > 0 ? NVML_INSUFFICIENT_SIZE : 0;
}

int nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t d, unsigned *pending)
{
    return answer(d, "retired_pending", UNKNOWN, pending);
}

int nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    *uncorrected = 0;
    int rc = answer(d, "remapped_rows", 0, corrected);
    rc = rc != 0 ? rc : answer(d, "remap_pending", 0, pending);
    return rc != 0 ? rc : answer(d, "remap_failed", 0, failed);
}

int nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t d, unsigned *generation)
{
    return answer(d, "pcie_generation", 5, generation);
}

int nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t d, unsigned *width)
{
    return answer(d, "pcie_width", 16, width);
}

int nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t d, unsigned *generation)
{
    return answer(d, "pcie_generation_max", 5, generation);
}

int nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t d, unsigned *width)
{
    return answer(d, "pcie_width_max", 16, width);
}

int nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned link, unsigned *active)
{
    unsigned up = (unsigned)of_gpu(d, "nvlinks_up", 0), down = (unsigned)of_gpu(d, "nvlinks_down", 0);
    *active = link < up;
    return link < up + down ? 0 : NVML_NOT_SUPPORTED;
}

int nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned what, unsigned *status)
{
    char key[32], text[32] = "bus";
    (void)snprintf(key, sizeof key, "%d.%d", one->gpu, other->gpu);
    (void)find(key, 0, text, sizeof text);
    *status = (what == NVML_P2P_NVLINK ? strcmp(text, "nvlink") == 0 : strcmp(text, "none") != 0) ? NVML_P2P_OK : 3;
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *processes)
{
    char text[400] = "";
    unsigned room = *count;
    *count = 0;
    (void)text_of_gpu(d, "processes", text, sizeof text);
    for (char *p = text; *p != '\0'; p += *p == ',') {
        unsigned pid = (unsigned)strtoul(p, &p, 10);
        unsigned long long bytes = *p == ':' ? strtoull(p + 1, &p, 10) : UINT64_MAX;
        if (*count == room) {
            return NVML_INSUFFICIENT_SIZE;
        }
        processes[(*count)++] = (nvmlProcessInfo_t){.pid = pid, .usedGpuMemory = bytes};
        if (*p != ',' && *p != '\0') {
            break;
        }
    }
    return 0;
}

int nvmlEventSetCreate(nvmlEventSet_t *out)
{
    set.gpus = 0;
    *out = &set;
    return 0;
}

int nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, nvmlEventSet_t of)
{
    if (of_gpu(d, "events", 1) == 0 || ((types & NVML_EVENT_DOUBLE_BIT_ECC) != 0 && of_gpu(d, "ecc", 1) != 1)) {
        return NVML_NOT_SUPPORTED;
    }
    of->gpus |= 1ull << d->gpu;
    return 0;
}

int nvmlEventSetWait_v2(nvmlEventSet_t of, nvmlEventData_t *data, unsigned timeout_ms)
{
    for (unsigned waited = 0;; waited++) {
        char text[32];
        int gpu = 0, xid = 0;
        unsigned instance = NVML_NO_INSTANCE;
        for (int i = 0; i < GPUS; i++) {
            if ((of->gpus >> i & 1) != 0 && of_gpu(&devices[i][0], "late", 0) != 0) {
                return (int)of_gpu(&devices[i][0], "late", 0);
            }
        }
        if (find("event", told, text, sizeof text) && sscanf(text, "%d.%d.%u", &gpu, &xid, &instance) >= 2 &&
            gpu >= 0 && gpu < GPUS) {
            told++;
            if ((of->gpus >> gpu & 1) != 0) {
                *data = (nvmlEventData_t){.device = &devices[gpu][0],
                                          .eventType = xid > 0 ? NVML_EVENT_XID : NVML_EVENT_DOUBLE_BIT_ECC,
                                          .eventData = (unsigned long long)xid,
                                          .gpuInstanceId = instance,
                                          .computeInstanceId = NVML_NO_INSTANCE};
                return 0;
            }
        }
        if (waited >= timeout_ms) {
            return NVML_TIMEOUT;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

int nvmlEventSetFree(nvmlEventSet_t of)
{
    of->gpus = 0;
    return 0;
}

/* ---- libcuda.so.1 ---- */

EXPORT int cuInit(unsigned flags);
EXPORT int cuDeviceGetCount(int *count);
EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);

static void see(struct dt_gpu_visible *seen)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    char ids[GPUS][96];
    const char *uuids[GPUS];
    int count = (int)number("count", 1);
    for (int i = 0; i < count; i++) {
        devices[i][0] = (struct nvmlDevice_st){i, -1};
        (void)nvmlDeviceGetUUID(&devices[i][0], ids[i], sizeof ids[i]);
        uuids[i] = ids[i];
    }
    dt_gpu_visible(list, uuids, count, seen);
}

int cuInit(unsigned flags)
{
    (void)flags;
    int count = 0, rc = (int)number("cuda_init", 0);
    (void)cuDeviceGetCount(&count);
    return rc != 0 ? rc : count == 0 ? 100 : 0;
}

int cuDeviceGetCount(int *count)
{
    struct dt_gpu_visible seen;
    see(&seen);
    *count = (int)number("cuda_sees", seen.count);
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    struct dt_gpu_visible seen;
    see(&seen);
    *device = seen.gpu[ordinal] >= 0 ? seen.gpu[ordinal] : 0;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    nvmlPciInfo_t pci;
    (void)nvmlDeviceGetPciInfo_v3(&devices[device][0], &pci);
    *value = (int)(attribute == 50 ? pci.domain : attribute == 33 ? pci.bus : pci.device);
    return 0;
}
