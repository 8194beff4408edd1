/* The watch over silent workers: a pulse that stands still, or a foreign program without output
 * and CPU time, for too long. */
#ifndef DT_LAUNCHER_WORKERS_WATCH_H
#define DT_LAUNCHER_WORKERS_WATCH_H

#include "base/text.h"
#include "launcher/workers/workers.h"

struct watch_options {
    bool pages;       /* workers have a pulse and say themselves how long it may stand still */
    double limit_s;   /* our own limit; 0: none (with pages: theirs). Ten times as long while a
                       * paged worker starts or saves */
    double stopped_s; /* the same for one that somebody has stopped (state T), whatever its own
                       * limit is; 0: no other limit */
    double look_s;    /* between two looks; when one comes much later the whole machine stood
                       * still; 0: not known */
    double deaf_s;    /* how long a worker may stay in uninterruptible sleep; 0: for ever */
    double (*output_s)(void *user, int local_rank); /* when the worker last wrote something, 0:
                                                     * unknown; may be null */
    void *user;
};

/* Looks at all running workers at time now_s (monotonic). Returns the local rank of one that
 * hangs, with a line of words in `out`, or -1. Of several silent ones the likeliest cause is
 * named; those that merely wait for it are not. Marks it as blamed: named once. `deaf` of the
 * worker says that it hangs in the kernel. */
int watch_look(struct workers *w, const struct watch_options *o, double now_s, struct dt_text *out);
/* A worker of train has ended with 0 more than barrier_s ago, and another one still trains or
 * waits for it: only writing files takes rank 0 longer than the others. Returns the local rank
 * of the one that ended, with a line of words in `out`, or -1. */
int watch_barrier(const struct workers *w, double barrier_s, double now_s, struct dt_text *out);
/* After a pause of everybody (Ctrl-Z): nobody has been silent meanwhile. */
void watch_forgive(struct workers *w, double now_s);

#endif
