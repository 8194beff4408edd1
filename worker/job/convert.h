/* train --convert: a file of another system, written as a job. */
#ifndef DT_WORKER_JOB_CONVERT_H
#define DT_WORKER_JOB_CONVERT_H

#include "worker/job/job.h"

/* Appends the job that the file (args->path, and those beside it) says, as JSON: the keys that are
 * given, no defaults of ours. `notes` gets one line for each key that did not map, and for each that
 * is still missing. 0, or -1 when a file cannot be read. */
int job_convert(const struct job_arguments *args, struct dt_text *out, struct dt_text *notes, struct dt_error *err);

#endif
