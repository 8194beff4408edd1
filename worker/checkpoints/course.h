/* The course of training to which the checkpoints of a folder belong: where it began, and the
 * launch that has carried out its beginning. A launch that begins from a named checkpoint, or anew,
 * does so once: if a round dies before the beginning is done, the next round does it.
 * DIR/course.json holds the course. */
#ifndef DT_WORKER_CHECKPOINTS_COURSE_H
#define DT_WORKER_CHECKPOINTS_COURSE_H

#include "base/error.h"
#include "base/text.h"

#include <stdint.h>

struct course {
    char *run_id; /* run id of the launch whose beginning is done; null: none is */
    char *launch; /* the launch among those of that run id; "": unknown */
    char *from;   /* checkpointing.resume at its beginning, if that was a name; "": anew */
};

/* Reads DIR/course.json. Without one, no launch has begun. Free with course_clear. */
void course_read(struct course *c, const char *dir);
int course_write(const char *dir, const char *run_id, const char *launch, const char *from, struct dt_error *err);
void course_clear(struct course *c);
/* Renames PATH to PATH.old-1, or the first free number. A missing PATH is no error. */
int course_set_aside(const char *path, struct dt_error *err);
/* Sets the complete checkpoints after step `after` aside, so that training that continues from
 * there never meets them. *first and *last: their lowest and highest step. Returns their number, or
 * -1. */
int course_leave_behind(const char *dir, int64_t after, int64_t *first, int64_t *last, struct dt_error *err);
/* Sums up everything that was set aside for the courses of DIR: DIR.old-N, DIR/step-N.old-N, and
 * the exports MODEL.old-N. We never remove any of it. *remove: an rm command that does. *bytes: its
 * size on the disk (at least, if there are very many files). Returns the number of folders. */
int course_aside(const char *dir, const char *model, double *bytes, struct dt_text *remove);

#endif
