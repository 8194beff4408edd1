/* What a rank's streams did during some of its steps, and when: logging.timeline_steps. Each
 * stretch of work is in a timer (kernels/timer.h), for which no step waits: the times are read
 * when later steps have run. The file is in the Trace Event Format, which Perfetto
 * (ui.perfetto.dev) and chrome://tracing show; files of several ranks can be joined, as their
 * times count from the same clock's zero. */
#ifndef DT_WORKER_ENGINE_TIMELINE_H
#define DT_WORKER_ENGINE_TIMELINE_H

#include "worker/engine/world.h"

#include <stdint.h>

enum timeline_lane { TIMELINE_COMPUTE, TIMELINE_COMMUNICATION, TIMELINE_GATHERING, TIMELINE_COPY, TIMELINE_LANES };

struct timeline;

/* Of the steps [first, first + steps), at most `spans` stretches in all; what is beyond is left
 * out, and the file says how many. Puts a timer into the compute stream and waits for it. *out
 * belongs to the caller. */
int timeline_open(struct timeline **out, struct world *w, int64_t first, int64_t steps, int spans,
                  struct dt_error *err);
/* The streams have run dry. Null is harmless. */
void timeline_close(struct timeline *t);
/* What is enqueued from here on belongs to this step (counted from 1). Null is harmless, as in the
 * next two. */
void timeline_step(struct timeline *t, int64_t step);
/* A stretch of work begins on a stream. what, of: text that lives as long as the timeline
 * ("backward", a unit's name, or null). Stretches of one lane are begun and ended one after the
 * other. Returns a number for timeline_end. */
int timeline_begin(struct timeline *t, enum timeline_lane lane, struct dt_stream *s, const char *what, const char *of);
void timeline_end(struct timeline *t, int span, struct dt_stream *s);
/* The host has waited for step `done`: is all that belongs to the timeline's steps over? (What a
 * step sends off, the next one waits for.) True once. */
bool timeline_over(struct timeline *t, int64_t done);
/* Writes the file. */
int timeline_write(struct timeline *t, const char *path, struct dt_error *err);

#endif
