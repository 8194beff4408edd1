/* When a GPU cannot be had: what the driver knows that CUDA does not say. */
#ifndef DT_WORKER_ENGINE_GPU_BLAME_H
#define DT_WORKER_ENGINE_GPU_BLAME_H

#include "base/error.h"

/* Adds to err which GPU of this host is lost, and who uses the one with that bus address (null:
 * nobody is asked about). Asks for two seconds at most. */
void gpu_blame(const char *bus, struct dt_error *err);
/* Bytes of the largest GPU of this host, before any is open; -1: not known. Asks for two seconds
 * at most. */
double gpu_most_total(void);

#endif
