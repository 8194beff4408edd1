/* The programs that come with dtrun and that it starts as workers: the one table of what dtrun does
 * for them beyond what it does for any program. Each has a page, and its exit codes 75, 100 and 111
 * mean what they say. */
#ifndef DT_LAUNCHER_OPTIONS_BUNDLED_H
#define DT_LAUNCHER_OPTIONS_BUNDLED_H

#include "base/arena.h"

#include <stdbool.h>

struct bundled {
    const char *name;
    bool trains;      /* takes a job, which is checked and planned before the first round; saves when
                        * it is told to end; its progress is watched */
    bool is_told;     /* gets the launcher's choices (DTRUN_CHOICES), to show them */
    int max_restarts; /* where --max_restarts is not given */
};

/* The row of the program: its name without a slash, or a path to the very file that this name would
 * start. Null: a program of others. */
const struct bundled *bundled_find(struct dt_arena *arena, const char *program);
/* The file of a bundled program: beside dtrun (a build folder), or where `make install` puts it. Null:
 * it is in neither. */
char *bundled_file(struct dt_arena *arena, const char *name);
/* Of a row, or null. */
static inline bool bundled_trains(const struct bundled *b)
{
    return b != NULL && b->trains;
}

#endif
