/* Looks at this rank's GPU while it computes: once a second how busy, how full, how fast and how
 * hot it is, which goes to the page (`dtrun --status`) and the metrics, and its errors as they
 * happen. A thread of its own asks the driver by NVML; nobody waits for it, as the driver may
 * hang when a GPU does. */
#ifndef DT_WORKER_ENGINE_GPU_WATCH_H
#define DT_WORKER_ENGINE_GPU_WATCH_H

#include "base/error.h"
#include "base/page.h"
#include "kernels/device.h"

#include <stdbool.h>

struct gpu_watch;

/* Of now, or of a second ago; what is not known is -1. */
struct gpu_sample {
    double busy;                             /* share of the last moments in which a kernel ran,
                                              * 0 to 1 */
    double memory_bytes, memory_total_bytes; /* of the whole GPU, others' included */
    double others_bytes;                     /* of memory_bytes, other programs'; -1 where ours
                                              * cannot be told from theirs */
    double clock_mhz, clock_max_mhz, temperature, power_w;
    int64_t throttle; /* as dt_nvml_throttle_text takes it */
};

/* Begins; null where the device is no GPU, or no thread can be had. An error that ends the GPU
 * (Xid 79, say), and a GPU that the driver has lost, make `compute` fail with it, so that a rank
 * that waits for work which never ends goes on. page and compute: until gpu_watch_close. */
struct gpu_watch *gpu_watch_open(struct dt_device *device, struct dt_page *page, struct dt_stream *compute);
/* False: nothing is known yet, or ever. */
bool gpu_watch_sample(struct gpu_watch *w, struct gpu_sample *out);
/* Adds to the error of a GPU, where it does not have them yet, its serial number and what the
 * driver told of it in the last seconds; patient: waits for its word for a moment when there was
 * none. */
void gpu_watch_explain(struct gpu_watch *w, struct dt_error *err, bool patient);
/* Null is harmless. */
void gpu_watch_close(struct gpu_watch *w);

#endif
