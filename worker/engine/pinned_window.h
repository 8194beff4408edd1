/* Copies between the host's memory and the device's outside of the step loop: weights at the start,
 * state for a checkpoint. Bytes go through one window of pinned memory. Where device memory is the
 * host's, nothing is copied and there is no window. */
#ifndef DT_WORKER_ENGINE_PINNED_WINDOW_H
#define DT_WORKER_ENGINE_PINNED_WINDOW_H

#include "base/error.h"
#include "kernels/device.h"

enum { PINNED_WINDOW_BYTES = 8 << 20 };

struct pinned_window {
    struct dt_device *device;
    struct dt_stream *stream;
    void *window; /* null where the host writes in place */
};

/* DT_NO_MEMORY when there is no pinned memory. Device and stream are borrowed. */
int pinned_window_open(struct pinned_window *w, struct dt_device *device, struct dt_stream *stream,
                       struct dt_error *err);
/* Harmless on a zeroed struct and twice. */
void pinned_window_close(struct pinned_window *w);
/* The host writes up to PINNED_WINDOW_BYTES for device address `at` to the place that this returns:
 * `at` itself, or the window. pinned_window_put must follow before the next place. */
void *pinned_window_place(struct pinned_window *w, void *at);
/* Copies what the host wrote to device address `at`. The copy is done when it returns. */
int pinned_window_put(struct pinned_window *w, void *at, size_t size_bytes, struct dt_error *err);
/* Waits until the stream has run what it was given. Then the host may read up to
 * PINNED_WINDOW_BYTES of device memory at *out, until the window is used again. */
int pinned_window_look(struct pinned_window *w, const void *from, size_t size_bytes, const void **out,
                       struct dt_error *err);
/* Waits until the stream has run what it was given, and copies device memory of any size to host
 * memory. The copy is done when it returns. */
int pinned_window_get(struct pinned_window *w, void *to, const void *from, size_t size_bytes, struct dt_error *err);

#endif
