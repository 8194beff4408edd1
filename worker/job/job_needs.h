/* Keys that count only beside another one (job_needs.c). */
#ifndef DT_WORKER_JOB_JOB_NEEDS_H
#define DT_WORKER_JOB_JOB_NEEDS_H

#include "worker/job/job.h"

struct job_need {
    const char *section, *keys;         /* "a|b"; null: all of the section */
    bool (*met)(const struct job *job); /* the keys count */
    const char *text;                   /* what they go with; of a refusal all that is said */
    const char *beside, *without; /* settings that meet it and that do not, "a.b=1 c.d=2"; "": the defaults do so */
    bool refused;                 /* otherwise said */
};
/* Row number i; null behind the last one. */
const struct job_need *job_need_at(int i);
bool job_need_has(const struct job_need *n, const char *section, const char *key);

#endif
