/* Between the host's memory and the device's, when the step loop does not run: weights at the
 * start, state for a checkpoint. Where device memory is the host's, nothing is copied and no
 * memory is taken; otherwise bytes go through one pinned window. */
#ifndef DT_WORKER_ENGINE_STAGE_H
#define DT_WORKER_ENGINE_STAGE_H

#include "base/error.h"
#include "kernels/device.h"

enum { STAGE_BYTES = 8 << 20 }; /* of the window */

struct stage {
    struct dt_device *device;
    struct dt_stream *stream;
    void *window; /* null where the host writes in place */
};

/* DT_NO_MEMORY when there is no pinned memory. Device and stream are borrowed. */
int stage_open(struct stage *s, struct dt_device *device, struct dt_stream *stream, struct dt_error *err);
/* Harmless on a zeroed struct and twice. */
void stage_close(struct stage *s);
/* Where the host writes up to STAGE_BYTES that are to lie at `at`: there itself, or the window.
 * One at a time, each ended by stage_put. */
void *stage_window(struct stage *s, void *at);
/* Brings what was written to device address `at`; done when it returns. */
int stage_put(struct stage *s, void *at, size_t size_bytes, struct dt_error *err);
/* Up to STAGE_BYTES of device memory, for the host to read at *out until the window is used
 * again. What the stream was given before has run by then. */
int stage_look(struct stage *s, const void *from, size_t size_bytes, const void **out, struct dt_error *err);
/* Copies device memory of any size to host memory; done when it returns. What the stream was
 * given before has run by then. */
int stage_get(struct stage *s, void *to, const void *from, size_t size_bytes, struct dt_error *err);

#endif
