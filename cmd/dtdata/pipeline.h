/* Reading, working on blocks and writing, at the same time in several threads. What is written does not depend on
 * their number. */
#ifndef DT_CMD_DTDATA_PIPELINE_H
#define DT_CMD_DTDATA_PIPELINE_H

#include "cmd/dtdata/output.h"
#include "cmd/dtdata/work.h"

/* Takes all files of the corpus, from the place that o->progress has. DT_STOPPED after a signal. */
int pipeline_run(const struct work_form *form, struct output *o, int thread_count, struct dt_error *err);

#endif
