/* The failures of one round, from the first exit to the cause line: which worker failed, which
 * workers only followed, and what people are told. */
#ifndef DT_LAUNCHER_JOB_FAILURES_H
#define DT_LAUNCHER_JOB_FAILURES_H

#include "launcher/output/report.h"
#include "launcher/workers/workers.h"

struct failures {
    struct report_failure *list;
    int count, capacity;
    int root;                 /* index of the cause after failures_settle; -1: none */
    int64_t step, saved_step; /* the latest step and saved step on all pages; -1: unknown */
    int64_t snapshot_step;    /* the latest one of which all workers here have a snapshot; -1: none */
    int64_t begun_step;       /* the latest one of which all of them have begun a save or a snapshot; -1: none */
    /* kills for lack of memory in our control group when the round began; -1: unknown */
    long long oom_before;
    char host[256];
};

/* Forgets the previous round. */
void failures_begin(struct failures *f);
void failures_clear(struct failures *f);
/* Notes that a worker failed. ended_by_us: dtrun had already told it to end. note: a better reason
 * than the exit code, or null. The worker's own note on its page takes second place, then the step
 * it was in. */
void failures_add(struct failures *f, const struct worker *one, int local_rank, int rank, bool ended_by_us,
                  const char *note);
/* The least memory limit of our control group and its ancestors, in bytes; -1: none, or unknown. */
double failures_memory_limit_bytes(void);
/* Reads the workers' progress from their pages. */
void failures_progress(struct failures *f, const struct workers *w);
/* " from step 120": where the next round begins, as far as this host knows; "or later" where the death of a worker
 * may have hidden that a save was complete. others: other hosts, which may have a snapshot more, or one less. Nothing
 * where there is no checkpoint yet, or where it is unknown. */
void failures_say_from(const struct failures *f, bool others, struct dt_text *out);
/* Call it when all workers have ended: reads the error files and decides which failure came first.
 * error_file: path per local rank. bundled: 111 means that a worker only lost its peers. */
void failures_settle(struct failures *f, const char *(*error_file)(void *user, int local_rank), void *user,
                     bool bundled);
/* After failures_settle: removes the failures of workers that dtrun ended, for a cause that none of
 * them is. */
void failures_keep_own(struct failures *f);
/* Checks whether a rank of ours told the other hosts of the round's known cause. Then that rank
 * failed by itself, even if it was told to end meanwhile. Returns false if it is not so. cause: may
 * be null. */
bool failures_own_up(struct failures *f, const struct cause *cause);

#endif
