/* The course of training that the checkpoints of a folder belong to: where it began, and which
 * launch has carried out its beginning. A beginning by name, or anew, happens once per launch:
 * whatever dies before it is done, the next round does it. DIR/course.json holds it. */
#ifndef DT_WORKER_CHECKPOINTS_COURSE_H
#define DT_WORKER_CHECKPOINTS_COURSE_H

#include "base/error.h"
#include "base/text.h"

#include <stdint.h>

struct course {
    char *run_id; /* of the launch whose beginning is done; null: none is */
    char *launch; /* which one of that name; "": not known */
    char *from;   /* checkpointing.resume that it began with when that was a name; "": anew */
};

/* Nobody has begun, and anew, where DIR has none. Ends with course_clear. */
void course_read(struct course *c, const char *dir);
int course_write(const char *dir, const char *run_id, const char *launch, const char *from, struct dt_error *err);
void course_clear(struct course *c);
/* Renames PATH to PATH.old-1, or the first number that is free; a PATH that is not there is
 * done. */
int course_set_aside(const char *path, struct dt_error *err);
/* Sets the complete checkpoints after step `after` aside: nothing that goes on from there may
 * meet them. *first and *last: their steps. Returns how many, or -1. */
int course_leave_behind(const char *dir, int64_t after, int64_t *first, int64_t *last, struct dt_error *err);
/* What lies set aside of the courses of DIR, all told: DIR.old-N and DIR/step-N.old-N, and the
 * exports MODEL.old-N. Nothing of it is ever removed by us; *remove gets the words of an rm that
 * does. *bytes: what it takes on the disk (of very many files: so much at least). Returns how
 * many folders. */
int course_aside(const char *dir, const char *model, double *bytes, struct dt_text *remove);

#endif
