/* events.jsonl: one object for each thing that happens now and then (a save, a resume, a slow
 * rank). Rank 0 writes it. */
#include "worker/run/observers/observer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct events {
    char *path;
    struct dt_text line;
};

static bool events_open(struct observer *o)
{
    if (o->all->world->rank != 0 || !o->all->files) {
        return false;
    }
    struct events *e = o->state = dt_alloc(sizeof *e);
    e->path = dt_format("%s/events.jsonl", o->all->job->output_dir);
    dt_text_init(&e->line);
    return true;
}

static void append(struct observer *o, const char *name, const char *fields)
{
    struct events *e = o->state;
    dt_text_reset(&e->line);
    dt_text_puts(&e->line, "{");
    observer_add_time(&e->line);
    dt_text_puts(&e->line, ", \"event\": ");
    dt_text_json(&e->line, name, strlen(name));
    dt_text_printf(&e->line, "%s%s}", *fields ? ", " : "", fields);
    observer_append(o, e->path, &e->line);
}

static void events_report(struct observer *o, const struct report *r, enum moment moment)
{
    char fields[128];
    if (moment == MOMENT_EVENT) {
        append(o, r->name, r->fields);
    } else if (moment == MOMENT_SAVED) {
        (void)snprintf(fields, sizeof fields, "\"step\": %lld, \"seconds\": %.3f, \"pause_s\": %.3f, \"round\": %d",
                       (long long)r->step, r->save_s, r->pause_s, r->round);
        append(o, "save", fields);
    }
}

static void events_close(struct observer *o)
{
    struct events *e = o->state;
    free(e->path);
    dt_text_clear(&e->line);
    free(e);
}

const struct observer_ops observer_events = {
    .name = "events", .open = events_open, .report = events_report, .close = events_close};
