/* The part of NVML's interface that we call, as NVIDIA's nvml.h declares it. Its binary form has
 * not changed since the driver that brought each name. The toolkit does not always ship that
 * header, and a build without a toolkit reads GPUs as well. Functions with a number behind their
 * name are the ones that the header's macros choose. */
#ifndef DT_BASE_GPU_NVML_ABI_H
#define DT_BASE_GPU_NVML_ABI_H

enum { /* nvmlReturn_t */
       NVML_SUCCESS = 0,
       NVML_NOT_SUPPORTED = 3,
       NVML_NO_PERMISSION = 4,
       NVML_NOT_FOUND = 6,
       NVML_INSUFFICIENT_SIZE = 7,
       NVML_DRIVER_NOT_LOADED = 9,
       NVML_TIMEOUT = 10,
       NVML_GPU_IS_LOST = 15,
       NVML_RESET_REQUIRED = 16,
       NVML_LIB_RM_VERSION_MISMATCH = 18
};
enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2 };
enum { NVML_CORRECTED = 0, NVML_UNCORRECTED = 1, NVML_VOLATILE = 0, NVML_AGGREGATE = 1 };
enum { NVML_RETIRED_SINGLE_BIT = 0, NVML_RETIRED_DOUBLE_BIT = 1 };
enum { NVML_P2P_READ = 0, NVML_P2P_NVLINK = 2, NVML_P2P_OK = 0 };
enum { NVML_TEMPERATURE_GPU = 0 };
enum { NVML_NVLINKS = 18 };
#define NVML_EVENT_DOUBLE_BIT_ECC 2ull
#define NVML_EVENT_XID 8ull
#define NVML_NO_INSTANCE 0xffffffffu /* of an event: the driver cannot tell, or the GPU is whole */

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;
typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct {
    unsigned long long total, free, used; /* used: with what the driver reserves */
} nvmlMemory_t;
typedef struct {
    unsigned gpu, memory; /* percent of the last sample period in which a kernel ran, memory was
                           * read or written */
} nvmlUtilization_t;
typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory; /* all bits: not known */
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData; /* of an Xid: its number */
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;
_Static_assert(sizeof(nvmlPciInfo_t) == 68 && sizeof(nvmlMemory_t) == 24 && sizeof(nvmlProcessInfo_t) == 24 &&
                   sizeof(nvmlEventData_t) == 32,
               "sizes of NVIDIA's header");

/* X(name, parameters): all return nvmlReturn_t. */
#define DT_NVML_FUNCTIONS(X)                                                                                           \
    X(nvmlInit_v2, (void))                                                                                             \
    X(nvmlShutdown, (void))                                                                                            \
    X(nvmlSystemGetDriverVersion, (char *version, unsigned length))                                                    \
    X(nvmlSystemGetCudaDriverVersion_v2, (int *version))                                                               \
    X(nvmlSystemGetProcessName, (unsigned pid, char *name, unsigned length))                                           \
    X(nvmlDeviceGetCount_v2, (unsigned *count))                                                                        \
    X(nvmlDeviceGetHandleByIndex_v2, (unsigned index, nvmlDevice_t *device))                                           \
    X(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *device))                                             \
    X(nvmlDeviceGetHandleByPciBusId_v2, (const char *bus, nvmlDevice_t *device))                                       \
    X(nvmlDeviceGetName, (nvmlDevice_t device, char *name, unsigned length))                                           \
    X(nvmlDeviceGetUUID, (nvmlDevice_t device, char *uuid, unsigned length))                                           \
    X(nvmlDeviceGetSerial, (nvmlDevice_t device, char *serial, unsigned length))                                       \
    X(nvmlDeviceGetMinorNumber, (nvmlDevice_t device, unsigned *minor))                                                \
    X(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t device, nvmlPciInfo_t * pci))                                             \
    X(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t * memory))                                           \
    X(nvmlDeviceGetUtilizationRates, (nvmlDevice_t device, nvmlUtilization_t * rates))                                 \
    X(nvmlDeviceGetClockInfo, (nvmlDevice_t device, unsigned type, unsigned *mhz))                                     \
    X(nvmlDeviceGetMaxClockInfo, (nvmlDevice_t device, unsigned type, unsigned *mhz))                                  \
    X(nvmlDeviceGetCurrentClocksThrottleReasons, (nvmlDevice_t device, unsigned long long *reasons))                   \
    X(nvmlDeviceGetTemperature, (nvmlDevice_t device, unsigned sensor, unsigned *celsius))                             \
    X(nvmlDeviceGetPowerUsage, (nvmlDevice_t device, unsigned *milliwatts))                                            \
    X(nvmlDeviceGetEnforcedPowerLimit, (nvmlDevice_t device, unsigned *milliwatts))                                    \
    X(nvmlDeviceGetPersistenceMode, (nvmlDevice_t device, unsigned *mode))                                             \
    X(nvmlDeviceGetComputeMode, (nvmlDevice_t device, unsigned *mode))                                                 \
    X(nvmlDeviceGetMigMode, (nvmlDevice_t device, unsigned *current, unsigned *pending))                               \
    X(nvmlDeviceGetMaxMigDeviceCount, (nvmlDevice_t device, unsigned *count))                                          \
    X(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t device, unsigned index, nvmlDevice_t *mig))                   \
    X(nvmlDeviceGetGpuInstanceId, (nvmlDevice_t device, unsigned *id))                                                 \
    X(nvmlDeviceGetComputeInstanceId, (nvmlDevice_t device, unsigned *id))                                             \
    X(nvmlDeviceGetEccMode, (nvmlDevice_t device, unsigned *current, unsigned *pending))                               \
    X(nvmlDeviceGetTotalEccErrors, (nvmlDevice_t device, unsigned type, unsigned counter, unsigned long long *count))  \
    X(nvmlDeviceGetRetiredPages,                                                                                       \
      (nvmlDevice_t device, unsigned cause, unsigned *count, unsigned long long *addresses))                           \
    X(nvmlDeviceGetRetiredPagesPendingStatus, (nvmlDevice_t device, unsigned *pending))                                \
    X(nvmlDeviceGetRemappedRows,                                                                                       \
      (nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed))          \
    X(nvmlDeviceGetCurrPcieLinkGeneration, (nvmlDevice_t device, unsigned *generation))                                \
    X(nvmlDeviceGetCurrPcieLinkWidth, (nvmlDevice_t device, unsigned *width))                                          \
    X(nvmlDeviceGetMaxPcieLinkGeneration, (nvmlDevice_t device, unsigned *generation))                                 \
    X(nvmlDeviceGetMaxPcieLinkWidth, (nvmlDevice_t device, unsigned *width))                                           \
    X(nvmlDeviceGetNvLinkState, (nvmlDevice_t device, unsigned link, unsigned *active))                                \
    X(nvmlDeviceGetP2PStatus, (nvmlDevice_t one, nvmlDevice_t other, unsigned what, unsigned *status))                 \
    X(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes))   \
    X(nvmlEventSetCreate, (nvmlEventSet_t * set))                                                                      \
    X(nvmlDeviceRegisterEvents, (nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set))                   \
    X(nvmlEventSetWait_v2, (nvmlEventSet_t set, nvmlEventData_t * data, unsigned timeout_ms))                          \
    X(nvmlEventSetFree, (nvmlEventSet_t set))

#endif
