/* Watches for silent workers: a pulse that stands still, or a foreign program without output and
 * CPU time, for too long. */
#ifndef DT_LAUNCHER_WORKERS_WATCH_H
#define DT_LAUNCHER_WORKERS_WATCH_H

#include "base/text.h"
#include "launcher/workers/workers.h"

struct watch_options {
    bool pages; /* workers have a pulse, and state themselves how long it may stand still */
    /* our limit; 0: none (with pages: the workers' own). It is ten times as long while a worker
     * with a page starts or saves */
    double limit_s;
    /* limit for a stopped worker (state T), whatever its own limit is; 0: no other limit */
    double stopped_s;
    /* time between two looks. If one comes much later, the whole machine stood still; 0: unknown */
    double look_s;
    double deaf_s; /* how long a worker may stay in uninterruptible sleep; 0: for ever */
    /* when the worker last wrote something; 0: unknown. May be null */
    double (*output_s)(void *user, int local_rank);
    void *user;
};

/* Looks at all running workers at time now_s (monotonic). Returns the local rank of a worker that
 * hangs, with a line of text in `out`, or -1. Of several silent workers it names the likeliest
 * cause, and not those that only wait for it. The worker is marked as blamed, so it is named only
 * once. The worker's `deaf` tells that it hangs in the kernel. */
int watch_look(struct workers *w, const struct watch_options *o, double now_s, struct dt_text *out);
/* A worker of train ended with 0 more than barrier_s ago, and another one still trains or waits for
 * it. This is not a fault while rank 0 only writes files. Returns the local rank of the worker that
 * ended, with a line of text in `out`, or -1. */
int watch_barrier(const struct workers *w, double barrier_s, double now_s, struct dt_text *out);
/* Call it after a pause of all workers (Ctrl-Z): their silence until now does not count. */
void watch_forgive(struct workers *w, double now_s);

#endif
