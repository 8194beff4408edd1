/* One window, one copy at a time: a start or a save is bound by the file system, not by this. */
#include "worker/engine/pinned_window.h"

#include <string.h>

#define COPY_LIMIT_S 600.0 /* of a few MiB: a device that takes longer is lost */

int pinned_window_open(struct pinned_window *w, struct dt_device *device, struct dt_stream *stream,
                       struct dt_error *err)
{
    *w = (struct pinned_window){.device = device, .stream = stream};
    return device->host_memory ? 0 : dt_device_alloc(device, DT_MEMORY_PINNED, PINNED_WINDOW_BYTES, &w->window, err);
}

void pinned_window_close(struct pinned_window *w)
{
    if (w->window != NULL) {
        dt_device_free(w->device, DT_MEMORY_PINNED, w->window, PINNED_WINDOW_BYTES);
    }
    *w = (struct pinned_window){0};
}

void *pinned_window_place(struct pinned_window *w, void *at)
{
    return w->window != NULL ? w->window : at;
}

int pinned_window_put(struct pinned_window *w, void *at, size_t size_bytes, struct dt_error *err)
{
    if (w->window == NULL || size_bytes == 0) {
        return 0;
    }
    dt_stream_copy(w->stream, at, w->window, size_bytes);
    return dt_stream_finish(w->stream, COPY_LIMIT_S, err);
}

int pinned_window_look(struct pinned_window *w, const void *from, size_t size_bytes, const void **out,
                       struct dt_error *err)
{
    *out = from;
    if (w->window != NULL) {
        dt_stream_copy(w->stream, w->window, from, size_bytes);
        *out = w->window;
    }
    return dt_stream_finish(w->stream, COPY_LIMIT_S, err);
}

int pinned_window_get(struct pinned_window *w, void *to, const void *from, size_t size_bytes, struct dt_error *err)
{
    if (w->window == NULL) {
        if (dt_stream_finish(w->stream, COPY_LIMIT_S, err) != 0) {
            return -1;
        }
        memcpy(to, from, size_bytes);
        return 0;
    }
    for (size_t done = 0, part; done < size_bytes; done += part) {
        part = size_bytes - done < PINNED_WINDOW_BYTES ? size_bytes - done : PINNED_WINDOW_BYTES;
        dt_stream_copy(w->stream, w->window, (const char *)from + done, part);
        if (dt_stream_finish(w->stream, COPY_LIMIT_S, err) != 0) {
            return -1;
        }
        memcpy((char *)to + done, w->window, part);
    }
    return 0;
}
