/* A GPU that computes nothing: a device whose streams are clocks. A kernel call moves the clock of its
 * stream on by the time that it would take on such a GPU. An event carries the time of its record to the
 * streams that wait for it. So code for a GPU, run on this device, tells how long it would take there,
 * with what overlaps and what does not. Memory is addresses: nothing reads or writes it. */
#ifndef DT_KERNELS_SIMULATED_H
#define DT_KERNELS_SIMULATED_H

#include "kernels/device.h"
#include "kernels/peak.h"

/* Opens a device like this GPU, whose products have operands of this type (F32 or two bytes). All clocks
 * begin at 0 s. gpu is borrowed. dt_device_close ends it. */
void dt_simulated_open(struct dt_device *d, const struct dt_gpu_sheet *gpu, enum dt_dtype products);
/* Seconds on the clock of a stream. */
double dt_simulated_s(const struct dt_stream *s);
/* The stream is busy for so many seconds, as with a collective. */
void dt_simulated_busy(struct dt_stream *s, double seconds);
/* The stream reads or writes so many bytes of a file. */
void dt_simulated_move(struct dt_stream *s, size_t size_bytes);
/* Bytes of all such calls since the device was opened. */
double dt_simulated_moved_bytes(const struct dt_device *d);
/* Sums over all kernel calls since the device was opened: seconds, and operations of products. */
double dt_simulated_kernels_s(const struct dt_device *d);
double dt_simulated_flops(const struct dt_device *d);

#endif
