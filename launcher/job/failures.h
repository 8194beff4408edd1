/* The failures of one round, from the first exit to the cause line: who failed, who merely
 * followed, what is said about it. */
#ifndef DT_LAUNCHER_JOB_FAILURES_H
#define DT_LAUNCHER_JOB_FAILURES_H

#include "launcher/output/report.h"
#include "launcher/workers/workers.h"

struct failures {
    struct report_failure *list;
    int count, capacity;
    int root;                 /* after failures_settle; -1: none */
    int64_t step, saved_step; /* how far the round came, over all pages; -1: unknown */
    long long oom_before;     /* kills for memory in our control group when the round began; -1:
                               * unknown */
    char host[256];
};

/* Forgets the round before. */
void failures_begin(struct failures *f);
void failures_clear(struct failures *f);
/* A worker ended badly. ended_by_us: we had already told or signalled it to end. note: what we
 * know better than the code (or null); the worker's own note on its page goes before it, the
 * step it was in behind it. */
void failures_add(struct failures *f, const struct worker *one, int local_rank, int rank, bool ended_by_us,
                  const char *note);
/* The least memory limit of our control group and those above, in bytes; -1: none, or not known. */
double failures_memory_limit_bytes(void);
/* Takes the workers' progress from their pages. */
void failures_progress(struct failures *f, const struct workers *w);
/* Once more when all have ended: reads the error files and decides which failure came first.
 * error_file: path per local rank. bundled: 111 means that a worker merely lost its peers. */
void failures_settle(struct failures *f, const char *(*error_file)(void *user, int local_rank), void *user,
                     bool bundled);
/* When they have settled: forgets those that we ended, for a cause that is none of theirs. */
void failures_keep_own(struct failures *f);
/* The cause that is known of the round may be what a rank elsewhere was told by one of ours:
 * then that one failed by itself, also when it was told to end meanwhile. False: it is not.
 * cause: may be null. */
bool failures_own_up(struct failures *f, const struct cause *cause);

#endif
