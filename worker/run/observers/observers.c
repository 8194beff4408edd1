/* The table of observers, and what rows that write lines share. */
#include "worker/run/observers/observer.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Each moment is reported in this order. */
static const struct observer_ops *const rows[] = {
    &observer_stragglers, &observer_page, &observer_memory,  &observer_metrics,       &observer_csv,
    &observer_events,     &observer_time, &observer_console, &observer_timeline_file,
};
_Static_assert(sizeof rows / sizeof *rows < OBSERVERS_MAX, "there is room for one more");

static void add(struct observers *all, const struct observer_ops *ops, void *state)
{
    struct observer *o = &all->list[all->count];
    *o = (struct observer){.ops = ops, .all = all, .state = state};
    all->count += ops->open == NULL || ops->open(o);
}

void observers_open(struct observers *all, const struct job *job, struct world *w, const struct observers_options *o)
{
    *all = (struct observers){
        .job = job, .world = w, .quiet = o->quiet, .files = !o->no_files && job->training.fast_dev_run == 0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        add(all, rows[i], NULL);
    }
    if (o->last != NULL) {
        add(all, o->last, o->context);
    }
}

void observer_append(struct observer *o, const char *path, const struct dt_text *line)
{
    struct dt_error err;
    if (dt_file_append_line(path, dt_text_str(line), line->size, &err) != 0 && !o->all->warned) {
        o->all->warned = true;
        dt_log(DT_LOG_WARN, "metrics", "%s; training goes on without these lines", err.text);
    }
}

int observer_keep_lines(const char *path, bool (*keep)(void *context, const char *line, int64_t number), void *context,
                        struct dt_error *err)
{
    if (!dt_file_exists(path)) {
        return 0;
    }
    int fd = dt_file_open_own(path, O_RDONLY, err);
    if (fd < 0) { /* a file that is not ours to read stays; the first line that it does not take says so */
        return err->status == DT_INVALID ? 0 : -1;
    }
    FILE *f = fdopen(fd, "r");
    if (!f) {
        (void)close(fd);
        return dt_fail_errno(err, "%s", path);
    }
    struct dt_text kept;
    dt_text_init(&kept);
    char *line = NULL;
    size_t room = 0;
    ssize_t size;
    int64_t number = 0;
    bool changed = false;
    while ((size = getline(&line, &room, f)) > 0) {
        if (line[size - 1] == '\n' && keep(context, line, number++)) {
            dt_text_add(&kept, line, (size_t)size);
        } else {
            changed = true;
        }
    }
    free(line);
    fclose(f);
    int rc = changed ? dt_file_write(path, dt_text_str(&kept), kept.size, err) : 0;
    dt_text_clear(&kept);
    return rc;
}

void observer_add_time(struct dt_text *out)
{
    char when[32];
    dt_wall_text(dt_wall_s(), when, sizeof when);
    dt_text_printf(out, "\"time\": \"%s\"", when);
}
