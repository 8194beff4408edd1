/* What homes outside of device memory share: a room on the device, and in it windows, stretches of
 * the array that are there now. What is brought lies in one window. A window is filled by the stream
 * `in` before its first use; what was changed of it goes out by the stream `out` when nothing of it is
 * in use any more; and it stays, good for further use, until its place is needed.
 *
 *   in       | window 0 | window 1 | window 2 (in the place of 0) |
 *   compute             | update 0 | update 1 | update 2
 *   out                            | window 0 | window 1
 *
 * An update goes through an array from its start to its end. So a window that goes on where the last
 * one ended is as long as an update's portion, and the one behind it is filled ahead of its use. */
#ifndef DT_WORKER_ENGINE_HOMES_WINDOWS_H
#define DT_WORKER_ENGINE_HOMES_WINDOWS_H

#include "worker/engine/homes/home.h"

struct windows;

/* Where an array rests. Both enqueue the move of bytes [at, at + size_bytes) on the stream; `place` is
 * the room's, `offset` where that is in the room. */
struct windows_rest {
    void *context;
    void (*in)(void *context, struct dt_stream *s, char *place, size_t offset, size_t at, size_t size_bytes);
    void (*out)(void *context, struct dt_stream *s, const char *place, size_t offset, size_t at, size_t size_bytes);
};

/* The room for an array of size_bytes of which at most most_bytes are brought together. */
size_t windows_room_bytes(const struct home_settings *settings, size_t size_bytes, size_t most_bytes);
/* room: windows_room_bytes of the device's memory. in, out: streams that are open as long as the
 * windows are. */
int windows_open(struct windows **out, const struct home *h, struct world *w, void *room, struct dt_stream *in,
                 struct dt_stream *out_stream, const struct windows_rest *rest, struct dt_error *err);
void *windows_bring(struct windows *x, size_t at, size_t size_bytes, enum home_use use, struct dt_stream *user);
void windows_back(struct windows *x, size_t at, size_t size_bytes, struct dt_stream *after);
/* As in struct home_ops. */
void windows_ahead(struct windows *x, size_t at, size_t size_bytes);
void *windows_empty(struct windows *x, struct dt_stream *user);
/* Waits for both streams; those of users have run dry. Null is allowed. */
void windows_close(struct windows *x);

#endif
