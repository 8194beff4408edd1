/* Where the GPUs sit that workers will see, numbered as CUDA numbers them: CUDA_VISIBLE_DEVICES,
 * CUDA_DEVICE_ORDER and the devices that a control group hides are the driver's business, so the
 * driver is asked. Its library is loaded when it is needed, in a process of its own: it may take
 * seconds to start, hang in the kernel, or crash, and it leaves threads and memory behind. */
#ifndef DT_LAUNCHER_WORKERS_GPUS_H
#define DT_LAUNCHER_WORKERS_GPUS_H

#include "base/error.h"

#define GPUS_MAX 256

struct gpus {
    int count;                  /* 0: there are none, or no driver that answers */
    char address[GPUS_MAX][32]; /* PCI address as sysfs writes it, "0000:3b:00.0" */
    char trouble[200];          /* what the driver said, where it is there and does not work; or
                                 * "" */
};

/* Returns -1 with *out filled in; otherwise the exit code of dtrun: 128 + n after a signal on
 * signal_fd (a signalfd), DT_EXIT_TEMPORARY with err when the driver did not answer within
 * limit_s. */
int gpus_read(struct gpus *out, int signal_fd, double limit_s, struct dt_error *err);

#endif
