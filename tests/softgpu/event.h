/* An event as this process knows it, and the table with the states of events. */
#ifndef DT_TESTS_SOFTGPU_EVENT_H
#define DT_TESTS_SOFTGPU_EVENT_H

#include "tests/softgpu/runtime.h"

enum { SOFTGPU_EVENTS = 4096, SOFTGPU_EVENTS_BYTES = 64 * SOFTGPU_EVENTS };
static_assert(sizeof(struct softgpu_event_state) <= 64, "fits its place");
#define SOFTGPU_EVENT_MAGIC 0x736f66746576656eu

struct softgpu_event {
    uint64_t magic;
    struct softgpu_event_state *state;
    void *map; /* the mapped table of another process, or null */
    int slot;
    unsigned flags;
    uint64_t captured; /* the capture that contains its last record; 0: none */
};

struct softgpu_event *softgpu_event_make(struct softgpu_event_state *state, int slot, unsigned flags);
int softgpu_event_table(void); /* memfd of this process's table */

#endif
