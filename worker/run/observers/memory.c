/* The event "memory": what the plan said beside what is in use. It is measured after the third step
 * of a round, when everything has been touched. */
#include "worker/run/trainer.h"

#include <stdio.h>
#include <stdlib.h>

enum { MEASURED_STEP = 3 };

static bool memory_open(struct observer *o)
{
    if (o->all->world->rank != 0 || !o->all->files) {
        return false;
    }
    o->state = dt_alloc(sizeof(int));
    return true;
}

static void memory_report(struct observer *o, const struct report *r, enum moment moment)
{
    int *steps = o->state;
    char fields[96];
    if (moment == MOMENT_STEP && ++*steps == MEASURED_STEP) {
        (void)snprintf(fields, sizeof fields, "\"planned_bytes\": %.0f, \"measured_bytes\": %.0f, \"round\": %d",
                       trainer_planned_bytes(r->of), trainer_memory(r->of), r->round);
        observers_event(o->all, "memory", fields);
    }
}

static void memory_close(struct observer *o)
{
    free(o->state);
}

const struct observer_ops observer_memory = {
    .name = "memory", .open = memory_open, .report = memory_report, .close = memory_close};
