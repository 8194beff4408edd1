/* One window, one copy at a time: a start or a save is bound by the file system, not by this. */
#include "worker/engine/stage.h"

#include <string.h>

#define COPY_LIMIT_S 600.0 /* of a few MiB: a device that takes longer is lost */

int stage_open(struct stage *s, struct dt_device *device, struct dt_stream *stream, struct dt_error *err)
{
    *s = (struct stage){.device = device, .stream = stream};
    return device->host_memory ? 0 : dt_device_alloc(device, DT_MEMORY_PINNED, STAGE_BYTES, &s->window, err);
}

void stage_close(struct stage *s)
{
    if (s->window != NULL) {
        dt_device_free(s->device, DT_MEMORY_PINNED, s->window, STAGE_BYTES);
    }
    *s = (struct stage){0};
}

void *stage_window(struct stage *s, void *at)
{
    return s->window != NULL ? s->window : at;
}

int stage_put(struct stage *s, void *at, size_t size_bytes, struct dt_error *err)
{
    if (s->window == NULL || size_bytes == 0) {
        return 0;
    }
    dt_stream_copy(s->stream, at, s->window, size_bytes);
    return dt_stream_finish(s->stream, COPY_LIMIT_S, err);
}

int stage_look(struct stage *s, const void *from, size_t size_bytes, const void **out, struct dt_error *err)
{
    *out = from;
    if (s->window != NULL) {
        dt_stream_copy(s->stream, s->window, from, size_bytes);
        *out = s->window;
    }
    return dt_stream_finish(s->stream, COPY_LIMIT_S, err);
}

int stage_get(struct stage *s, void *to, const void *from, size_t size_bytes, struct dt_error *err)
{
    if (s->window == NULL) {
        if (dt_stream_finish(s->stream, COPY_LIMIT_S, err) != 0) {
            return -1;
        }
        memcpy(to, from, size_bytes);
        return 0;
    }
    for (size_t done = 0, part; done < size_bytes; done += part) {
        part = size_bytes - done < STAGE_BYTES ? size_bytes - done : STAGE_BYTES;
        dt_stream_copy(s->stream, s->window, (const char *)from + done, part);
        if (dt_stream_finish(s->stream, COPY_LIMIT_S, err) != 0) {
            return -1;
        }
        memcpy((char *)to + done, s->window, part);
    }
    return 0;
}
