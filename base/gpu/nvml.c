/* NVML's functions by their names; each call here asks for one thing and takes "not supported"
 * for an answer. */
#include "base/gpu/nvml.h"

#include "base/library.h"
#include "base/gpu/nvml_abi.h"
#include "base/text.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dt_nvml {
    void *library;
    nvmlEventSet_t events; /* null: nothing is watched */
    struct dt_nvml_gpu *watched[DT_NVML_GPUS];
    int watched_count;
#define MEMBER(name, parameters) int(*name) parameters;
    DT_NVML_FUNCTIONS(MEMBER)
#undef MEMBER
};

static nvmlDevice_t handle(const struct dt_nvml_gpu *gpu)
{
    return (nvmlDevice_t)(uintptr_t)gpu;
}

static struct dt_nvml_gpu *gpu_of(nvmlDevice_t device)
{
    return (struct dt_nvml_gpu *)(uintptr_t)device;
}

/* Says an NVML error in our own words, which are the same for all drivers; nvmlErrorString's
 * differ. */
static int fail(struct dt_error *err, int rc, const char *what)
{
    switch (rc) {
    case NVML_DRIVER_NOT_LOADED:
        return dt_fail(err, DT_NOT_FOUND,
                       "%s: the NVIDIA driver is not loaded; modprobe nvidia, or start the container with its GPUs",
                       what);
    case NVML_LIB_RM_VERSION_MISMATCH:
        return dt_fail(err, DT_INVALID,
                       "%s: the driver in the kernel and its library are of different versions; reboot, or reload the "
                       "driver's module",
                       what);
    case NVML_NO_PERMISSION:
        return dt_fail(err, DT_IO, "%s: no permission; see who may open /dev/nvidiactl and the GPU's /dev/nvidiaN",
                       what);
    case NVML_GPU_IS_LOST:
        return dt_fail(
            err, DT_IO,
            "%s: lost: it fell off the bus; reboot the host, and have the card, its power and its slot looked at",
            what);
    case NVML_RESET_REQUIRED:
        return dt_fail(err, DT_IO, "%s: needs a reset; end what uses it, then nvidia-smi --gpu-reset", what);
    case NVML_NOT_FOUND:
        return dt_fail(err, DT_NOT_FOUND, "%s: not found", what);
    default:
        return dt_fail(err, DT_IO, "%s: NVML gave %d", what, rc);
    }
}

/* ---- the library ---- */

static const char *const names[] = {"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1",
                                    "/usr/local/nvidia/lib64/libnvidia-ml.so.1"};

int dt_nvml_open(struct dt_nvml **out, struct dt_error *err)
{
    struct dt_nvml *n = dt_alloc(sizeof *n);
    n->library = dt_library_open(names, sizeof names / sizeof names[0]);
    if (n->library == NULL) {
        free(n);
        return dt_fail(err, DT_NOT_FOUND, "no NVIDIA driver is here (libnvidia-ml.so.1)");
    }
    const struct dt_symbol symbols[] = {
#define ROW(name, parameters) {#name, &n->name},
        DT_NVML_FUNCTIONS(ROW)
#undef ROW
    };
    /* what an older driver lacks stays null */
    (void)dt_library_find(n->library, symbols, sizeof symbols / sizeof symbols[0]);
    int rc = n->nvmlInit_v2 != NULL ? n->nvmlInit_v2() : NVML_NOT_FOUND;
    if (rc != NVML_SUCCESS) {
        if (rc == NVML_NOT_FOUND) {
            (void)dt_fail(err, DT_INVALID,
                          "libnvidia-ml.so.1 is older than anything that CUDA 11 ran on; install a newer driver");
        } else {
            (void)fail(err, rc, "NVML");
        }
        (void)dlclose(n->library);
        free(n);
        return -1;
    }
    *out = n;
    return 0;
}

void dt_nvml_close(struct dt_nvml *n)
{
    if (n == NULL) {
        return;
    }
    if (n->events != NULL && n->nvmlEventSetFree != NULL) {
        (void)n->nvmlEventSetFree(n->events);
    }
    if (n->nvmlShutdown != NULL) {
        (void)n->nvmlShutdown();
    }
    (void)dlclose(n->library);
    free(n);
}

const char *dt_nvml_driver(struct dt_nvml *n, char *out, size_t out_bytes)
{
    out[0] = '\0';
    if (n->nvmlSystemGetDriverVersion == NULL ||
        n->nvmlSystemGetDriverVersion(out, (unsigned)out_bytes) != NVML_SUCCESS) {
        out[0] = '\0';
    }
    return out;
}

int dt_nvml_cuda(struct dt_nvml *n)
{
    int version = -1;
    return n->nvmlSystemGetCudaDriverVersion_v2 != NULL &&
                   n->nvmlSystemGetCudaDriverVersion_v2(&version) == NVML_SUCCESS
               ? version
               : -1;
}

int dt_nvml_count(struct dt_nvml *n)
{
    unsigned count = 0;
    if (n->nvmlDeviceGetCount_v2 == NULL || n->nvmlDeviceGetCount_v2(&count) != NVML_SUCCESS) {
        return -1;
    }
    return count < DT_NVML_GPUS ? (int)count : DT_NVML_GPUS;
}

int dt_nvml_usable(struct dt_nvml *n)
{
    int count = dt_nvml_count(n), usable = count;
    for (int i = 0; i < count && n->nvmlDeviceGetHandleByIndex_v2 != NULL; i++) {
        nvmlDevice_t device = NULL;
        usable -= n->nvmlDeviceGetHandleByIndex_v2((unsigned)i, &device) == NVML_NO_PERMISSION;
    }
    return usable;
}

/* ---- GPUs ---- */

struct dt_nvml_gpu *dt_nvml_at(struct dt_nvml *n, int index, struct dt_error *err)
{
    nvmlDevice_t device = NULL;
    char what[32];
    (void)snprintf(what, sizeof what, "GPU %d", index);
    int rc = n->nvmlDeviceGetHandleByIndex_v2 != NULL ? n->nvmlDeviceGetHandleByIndex_v2((unsigned)index, &device)
                                                      : NVML_NOT_FOUND;
    if (rc != NVML_SUCCESS) {
        (void)fail(err, rc, what);
        return NULL;
    }
    return gpu_of(device);
}

struct dt_nvml_gpu *dt_nvml_find(struct dt_nvml *n, const char *id, struct dt_error *err)
{
    bool named = strncmp(id, "GPU-", 4) == 0 || strncmp(id, "MIG-", 4) == 0;
    int (*find)(const char *, nvmlDevice_t *) =
        named ? n->nvmlDeviceGetHandleByUUID : n->nvmlDeviceGetHandleByPciBusId_v2;
    nvmlDevice_t device = NULL;
    int rc = find != NULL ? find(id, &device) : NVML_NOT_FOUND;
    if (rc != NVML_SUCCESS) {
        (void)fail(err, rc, id);
        return NULL;
    }
    return gpu_of(device);
}

int dt_nvml_parts(struct dt_nvml *n, struct dt_nvml_gpu *gpu)
{
    unsigned count = 0;
    bool known = n->nvmlDeviceGetMaxMigDeviceCount != NULL &&
                 n->nvmlDeviceGetMaxMigDeviceCount(handle(gpu), &count) == NVML_SUCCESS;
    return known && count <= DT_NVML_GPUS ? (int)count : 0;
}

struct dt_nvml_gpu *dt_nvml_part(struct dt_nvml *n, struct dt_nvml_gpu *gpu, int index)
{
    nvmlDevice_t part = NULL;
    bool there = n->nvmlDeviceGetMigDeviceHandleByIndex != NULL &&
                 n->nvmlDeviceGetMigDeviceHandleByIndex(handle(gpu), (unsigned)index, &part) == NVML_SUCCESS;
    return there ? gpu_of(part) : NULL;
}

void dt_nvml_identify(struct dt_nvml *n, struct dt_nvml_gpu *gpu, char name[96], char uuid[96], char bus[32])
{
    nvmlPciInfo_t pci;
    memset(&pci, 0, sizeof pci);
    if (n->nvmlDeviceGetName == NULL || n->nvmlDeviceGetName(handle(gpu), name, 96) != NVML_SUCCESS) {
        name[0] = '\0';
    }
    if (n->nvmlDeviceGetUUID == NULL || n->nvmlDeviceGetUUID(handle(gpu), uuid, 96) != NVML_SUCCESS) {
        uuid[0] = '\0';
    }
    bus[0] = '\0';
    if (n->nvmlDeviceGetPciInfo_v3 != NULL && n->nvmlDeviceGetPciInfo_v3(handle(gpu), &pci) == NVML_SUCCESS) {
        (void)snprintf(bus, 32, "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
    }
}

const char *dt_nvml_serial(struct dt_nvml *n, struct dt_nvml_gpu *gpu, char *out, size_t out_bytes)
{
    if (n->nvmlDeviceGetSerial == NULL ||
        n->nvmlDeviceGetSerial(handle(gpu), out, (unsigned)out_bytes) != NVML_SUCCESS) {
        out[0] = '\0';
    }
    return out;
}

int dt_nvml_minor(struct dt_nvml *n, struct dt_nvml_gpu *gpu)
{
    unsigned minor = 0;
    return n->nvmlDeviceGetMinorNumber != NULL && n->nvmlDeviceGetMinorNumber(handle(gpu), &minor) == NVML_SUCCESS
               ? (int)minor
               : -1;
}

/* ---- values ---- */

const char *dt_nvml_value_name(enum dt_nvml_value what)
{
    switch (what) {
    case DT_NVML_MEMORY_TOTAL:
        return "memory_total";
    case DT_NVML_MEMORY_USED:
        return "memory_used";
    case DT_NVML_BUSY:
        return "busy";
    case DT_NVML_MEMORY_BUSY:
        return "memory_busy";
    case DT_NVML_CLOCK:
        return "clock";
    case DT_NVML_CLOCK_MAX:
        return "clock_max";
    case DT_NVML_MEMORY_CLOCK:
        return "memory_clock";
    case DT_NVML_MEMORY_CLOCK_MAX:
        return "memory_clock_max";
    case DT_NVML_THROTTLE:
        return "throttle";
    case DT_NVML_TEMPERATURE:
        return "temperature";
    case DT_NVML_POWER:
        return "power";
    case DT_NVML_POWER_LIMIT:
        return "power_limit";
    case DT_NVML_PERSISTENCE:
        return "persistence";
    case DT_NVML_COMPUTE_MODE:
        return "compute_mode";
    case DT_NVML_MIG:
        return "mig";
    case DT_NVML_ECC:
        return "ecc";
    case DT_NVML_ECC_CORRECTED:
        return "ecc_corrected";
    case DT_NVML_ECC_UNCORRECTED:
        return "ecc_uncorrected";
    case DT_NVML_ECC_UNCORRECTED_EVER:
        return "ecc_uncorrected_ever";
    case DT_NVML_RETIRED_PAGES:
        return "retired_pages";
    case DT_NVML_RETIRED_PENDING:
        return "retired_pending";
    case DT_NVML_REMAPPED_ROWS:
        return "remapped_rows";
    case DT_NVML_REMAP_PENDING:
        return "remap_pending";
    case DT_NVML_REMAP_FAILED:
        return "remap_failed";
    case DT_NVML_PCIE_GENERATION:
        return "pcie_generation";
    case DT_NVML_PCIE_GENERATION_MAX:
        return "pcie_generation_max";
    case DT_NVML_PCIE_WIDTH:
        return "pcie_width";
    case DT_NVML_PCIE_WIDTH_MAX:
        return "pcie_width_max";
    case DT_NVML_NVLINKS_UP:
        return "nvlinks_up";
    case DT_NVML_NVLINKS_DOWN:
        return "nvlinks_down";
    case DT_NVML_VALUE_COUNT:
        break;
    }
    return "unknown";
}

typedef int get_one(nvmlDevice_t device, unsigned *out);

static int64_t one(get_one *get, nvmlDevice_t device)
{
    unsigned value = 0;
    return get != NULL && get(device, &value) == NVML_SUCCESS ? (int64_t)value : -1;
}

static int64_t memory(const struct dt_nvml *n, nvmlDevice_t device, bool used)
{
    nvmlMemory_t m;
    memset(&m, 0, sizeof m);
    if (n->nvmlDeviceGetMemoryInfo == NULL || n->nvmlDeviceGetMemoryInfo(device, &m) != NVML_SUCCESS) {
        return -1;
    }
    return (int64_t)(used ? m.total - m.free : m.total);
}

static int64_t busy(const struct dt_nvml *n, nvmlDevice_t device, bool of_memory)
{
    nvmlUtilization_t u = {0, 0};
    if (n->nvmlDeviceGetUtilizationRates == NULL || n->nvmlDeviceGetUtilizationRates(device, &u) != NVML_SUCCESS) {
        return -1;
    }
    return of_memory ? u.memory : u.gpu;
}

static int64_t mhz(int (*get)(nvmlDevice_t, unsigned, unsigned *), nvmlDevice_t device, unsigned type)
{
    unsigned value = 0;
    return get != NULL && get(device, type, &value) == NVML_SUCCESS ? (int64_t)value : -1;
}

static int64_t current(int (*get)(nvmlDevice_t, unsigned *, unsigned *), nvmlDevice_t device)
{
    unsigned now = 0, pending = 0;
    return get != NULL && get(device, &now, &pending) == NVML_SUCCESS ? (int64_t)now : -1;
}

static int64_t ecc_errors(const struct dt_nvml *n, nvmlDevice_t device, unsigned type, unsigned counter)
{
    unsigned long long count = 0;
    bool known = n->nvmlDeviceGetTotalEccErrors != NULL &&
                 n->nvmlDeviceGetTotalEccErrors(device, type, counter, &count) == NVML_SUCCESS;
    return known ? (int64_t)count : -1;
}

/* Asked for no addresses it says that the room is too small, and how many there are. */
static int64_t retired(const struct dt_nvml *n, nvmlDevice_t device)
{
    int64_t all = 0;
    for (unsigned cause = NVML_RETIRED_SINGLE_BIT; cause <= NVML_RETIRED_DOUBLE_BIT; cause++) {
        unsigned count = 0;
        int rc = n->nvmlDeviceGetRetiredPages != NULL ? n->nvmlDeviceGetRetiredPages(device, cause, &count, NULL)
                                                      : NVML_NOT_SUPPORTED;
        if (rc != NVML_SUCCESS && rc != NVML_INSUFFICIENT_SIZE) {
            return -1;
        }
        all += count;
    }
    return all;
}

static int64_t remapped(const struct dt_nvml *n, nvmlDevice_t device, enum dt_nvml_value what)
{
    unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    if (n->nvmlDeviceGetRemappedRows == NULL ||
        n->nvmlDeviceGetRemappedRows(device, &corrected, &uncorrected, &pending, &failed) != NVML_SUCCESS) {
        return -1;
    }
    return what == DT_NVML_REMAP_PENDING  ? (int64_t)pending
           : what == DT_NVML_REMAP_FAILED ? (int64_t)failed
                                          : (int64_t)corrected + uncorrected;
}

/* Links that the GPU has are up or down; those that it does not have are no answer. */
static int64_t links(const struct dt_nvml *n, nvmlDevice_t device, unsigned wanted)
{
    int64_t count = 0;
    bool any = false;
    for (unsigned link = 0; link < NVML_NVLINKS && n->nvmlDeviceGetNvLinkState != NULL; link++) {
        unsigned active = 0;
        if (n->nvmlDeviceGetNvLinkState(device, link, &active) == NVML_SUCCESS) {
            any = true;
            count += active == wanted;
        }
    }
    return any ? count : -1;
}

int64_t dt_nvml_value(struct dt_nvml *n, struct dt_nvml_gpu *gpu, enum dt_nvml_value what)
{
    nvmlDevice_t d = handle(gpu);
    unsigned long long bits = 0;
    switch (what) {
    case DT_NVML_MEMORY_TOTAL:
    case DT_NVML_MEMORY_USED:
        return memory(n, d, what == DT_NVML_MEMORY_USED);
    case DT_NVML_BUSY:
    case DT_NVML_MEMORY_BUSY:
        return busy(n, d, what == DT_NVML_MEMORY_BUSY);
    case DT_NVML_CLOCK:
    case DT_NVML_MEMORY_CLOCK:
        return mhz(n->nvmlDeviceGetClockInfo, d, what == DT_NVML_CLOCK ? NVML_CLOCK_SM : NVML_CLOCK_MEM);
    case DT_NVML_CLOCK_MAX:
    case DT_NVML_MEMORY_CLOCK_MAX:
        return mhz(n->nvmlDeviceGetMaxClockInfo, d, what == DT_NVML_CLOCK_MAX ? NVML_CLOCK_SM : NVML_CLOCK_MEM);
    case DT_NVML_THROTTLE:
        return n->nvmlDeviceGetCurrentClocksThrottleReasons != NULL &&
                       n->nvmlDeviceGetCurrentClocksThrottleReasons(d, &bits) == NVML_SUCCESS
                   ? (int64_t)bits
                   : -1;
    case DT_NVML_TEMPERATURE:
        return mhz(n->nvmlDeviceGetTemperature, d, NVML_TEMPERATURE_GPU);
    case DT_NVML_POWER:
        return one(n->nvmlDeviceGetPowerUsage, d);
    case DT_NVML_POWER_LIMIT:
        return one(n->nvmlDeviceGetEnforcedPowerLimit, d);
    case DT_NVML_PERSISTENCE:
        return one(n->nvmlDeviceGetPersistenceMode, d);
    case DT_NVML_COMPUTE_MODE:
        return one(n->nvmlDeviceGetComputeMode, d);
    case DT_NVML_MIG:
        return current(n->nvmlDeviceGetMigMode, d);
    case DT_NVML_ECC:
        return current(n->nvmlDeviceGetEccMode, d);
    case DT_NVML_ECC_CORRECTED:
        return ecc_errors(n, d, NVML_CORRECTED, NVML_VOLATILE);
    case DT_NVML_ECC_UNCORRECTED:
        return ecc_errors(n, d, NVML_UNCORRECTED, NVML_VOLATILE);
    case DT_NVML_ECC_UNCORRECTED_EVER:
        return ecc_errors(n, d, NVML_UNCORRECTED, NVML_AGGREGATE);
    case DT_NVML_RETIRED_PAGES:
        return retired(n, d);
    case DT_NVML_RETIRED_PENDING:
        return one(n->nvmlDeviceGetRetiredPagesPendingStatus, d);
    case DT_NVML_REMAPPED_ROWS:
    case DT_NVML_REMAP_PENDING:
    case DT_NVML_REMAP_FAILED:
        return remapped(n, d, what);
    case DT_NVML_PCIE_GENERATION:
        return one(n->nvmlDeviceGetCurrPcieLinkGeneration, d);
    case DT_NVML_PCIE_GENERATION_MAX:
        return one(n->nvmlDeviceGetMaxPcieLinkGeneration, d);
    case DT_NVML_PCIE_WIDTH:
        return one(n->nvmlDeviceGetCurrPcieLinkWidth, d);
    case DT_NVML_PCIE_WIDTH_MAX:
        return one(n->nvmlDeviceGetMaxPcieLinkWidth, d);
    case DT_NVML_NVLINKS_UP:
        return links(n, d, 1);
    case DT_NVML_NVLINKS_DOWN:
        return links(n, d, 0);
    case DT_NVML_VALUE_COUNT:
        break;
    }
    return -1;
}

int dt_nvml_health(struct dt_nvml *n, struct dt_nvml_gpu *gpu, struct dt_error *err)
{
    nvmlMemory_t m;
    int rc = n->nvmlDeviceGetMemoryInfo != NULL ? n->nvmlDeviceGetMemoryInfo(handle(gpu), &m) : NVML_SUCCESS;
    return rc == NVML_GPU_IS_LOST || rc == NVML_RESET_REQUIRED ? fail(err, rc, "GPU") : 0;
}

int dt_nvml_processes(struct dt_nvml *n, struct dt_nvml_gpu *gpu, struct dt_nvml_process *out, int room)
{
    enum { ROOM = 256 };
    nvmlProcessInfo_t found[ROOM];
    unsigned count = ROOM;
    int rc = n->nvmlDeviceGetComputeRunningProcesses_v3 != NULL
                 ? n->nvmlDeviceGetComputeRunningProcesses_v3(handle(gpu), &count, found)
                 : NVML_NOT_SUPPORTED;
    if (rc != NVML_SUCCESS) {
        return -1;
    }
    for (int i = 0; i < (int)count && i < room; i++) {
        char path[256];
        out[i] = (struct dt_nvml_process){
            .pid = found[i].pid, .bytes = found[i].usedGpuMemory > INT64_MAX ? -1 : (int64_t)found[i].usedGpuMemory};
        if (n->nvmlSystemGetProcessName != NULL &&
            n->nvmlSystemGetProcessName(found[i].pid, path, sizeof path) == NVML_SUCCESS) {
            path[sizeof path - 1] = '\0';
            path[strcspn(path, " ")] = '\0'; /* some drivers give the arguments, too */
            const char *slash = strrchr(path, '/');
            (void)snprintf(out[i].name, sizeof out[i].name, "%s", slash != NULL ? slash + 1 : path);
        }
    }
    return (int)count;
}

int dt_nvml_reaches(struct dt_nvml *n, struct dt_nvml_gpu *a, struct dt_nvml_gpu *b, bool nvlink)
{
    unsigned status = 0;
    if (n->nvmlDeviceGetP2PStatus == NULL ||
        n->nvmlDeviceGetP2PStatus(handle(a), handle(b), nvlink ? NVML_P2P_NVLINK : NVML_P2P_READ, &status) !=
            NVML_SUCCESS) {
        return -1;
    }
    return status == NVML_P2P_OK;
}

/* ---- errors as they happen ---- */

int dt_nvml_watch(struct dt_nvml *n, struct dt_nvml_gpu *const *gpus, int count, struct dt_error *err)
{
    if (n->nvmlEventSetCreate == NULL || n->nvmlDeviceRegisterEvents == NULL || n->nvmlEventSetWait_v2 == NULL ||
        n->nvmlEventSetFree == NULL) {
        return dt_fail(err, DT_NOT_FOUND, "NVML: this driver tells of no events");
    }
    int rc = n->nvmlEventSetCreate(&n->events);
    if (rc != NVML_SUCCESS) {
        n->events = NULL;
        return fail(err, rc, "NVML's events");
    }
    n->watched_count = 0;
    bool any = false;
    for (int i = 0; i < count && i < DT_NVML_GPUS; i++) {
        rc = n->nvmlDeviceRegisterEvents(handle(gpus[i]), NVML_EVENT_XID | NVML_EVENT_DOUBLE_BIT_ECC, n->events);
        /* without ECC */
        rc = rc == NVML_SUCCESS ? rc : n->nvmlDeviceRegisterEvents(handle(gpus[i]), NVML_EVENT_XID, n->events);
        any = any || rc == NVML_SUCCESS;
        n->watched[n->watched_count++] = gpus[i];
    }
    if (!any) {
        (void)n->nvmlEventSetFree(n->events);
        n->events = NULL;
        return fail(err, rc, "NVML's events");
    }
    return 0;
}

int dt_nvml_wait(struct dt_nvml *n, double timeout_s, struct dt_nvml_event *out)
{
    nvmlEventData_t data;
    memset(&data, 0, sizeof data);
    if (n->events == NULL) {
        return -1;
    }
    int rc = n->nvmlEventSetWait_v2(n->events, &data, (unsigned)(timeout_s * 1e3));
    if (rc != NVML_SUCCESS) {
        return rc == NVML_TIMEOUT ? 0 : -1;
    }
    *out = (struct dt_nvml_event){.xid = data.eventType == NVML_EVENT_XID ? (int)data.eventData : 0,
                                  .gpu_instance = data.gpuInstanceId,
                                  .compute_instance = data.computeInstanceId};
    for (int i = 0; i < n->watched_count; i++) {
        out->gpu = n->watched[i] == gpu_of(data.device) ? i : out->gpu;
    }
    return 1;
}

enum dt_nvml_whose dt_nvml_event_whose(struct dt_nvml *n, struct dt_nvml_gpu *gpu, const struct dt_nvml_event *e)
{
    int64_t instance = one(n->nvmlDeviceGetGpuInstanceId, handle(gpu)),
            compute = one(n->nvmlDeviceGetComputeInstanceId, handle(gpu));
    if (instance < 0) { /* it is whole */
        return DT_NVML_OURS;
    }
    if (e->gpu_instance == NVML_NO_INSTANCE) {
        return DT_NVML_ANYBODYS;
    }
    bool same = e->gpu_instance == instance &&
                (e->compute_instance == NVML_NO_INSTANCE || compute < 0 || e->compute_instance == compute);
    return same ? DT_NVML_OURS : DT_NVML_OTHERS;
}
