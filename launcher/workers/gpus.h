/* Where the GPUs are that workers will see, numbered as CUDA numbers them. The driver is asked,
 * because CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and the devices that a control group hides are
 * its business. Its library is loaded only when needed, and in a process of its own: it may take
 * seconds to start, hang in the kernel, or crash, and it leaves threads and memory behind. */
#ifndef DT_LAUNCHER_WORKERS_GPUS_H
#define DT_LAUNCHER_WORKERS_GPUS_H

#include "base/error.h"

#define GPUS_MAX 256

struct gpus {
    int count;                  /* 0: no GPUs, or no driver that answers */
    char address[GPUS_MAX][32]; /* PCI address as sysfs writes it, "0000:3b:00.0" */
    /* the error of a driver that is installed and does not work; or "" */
    char trouble[200];
};

/* Returns -1 and fills in *out. Otherwise returns an exit code for dtrun: 128 + n after a signal on
 * signal_fd (a signalfd), or DT_EXIT_TEMPORARY with err if the driver did not answer within
 * limit_s. */
int gpus_read(struct gpus *out, int signal_fd, double limit_s, struct dt_error *err);

#endif
