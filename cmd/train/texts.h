/* Data that are texts: a job's data.train and data.val may name text files, records and folders of them. Shards are
 * made of them once, in a cache, by the same run as that of dtdata tokenize, and take their place in the job. */
#ifndef DT_CMD_TRAIN_TEXTS_H
#define DT_CMD_TRAIN_TEXTS_H

#include "worker/job/job.h"

/* Finds or makes the shards of all texts of the job, and names them in its data. Sources that are no texts stay as
 * they are, also those that nobody can read. One process of a host makes shards, and all others wait for it; what
 * is done is said on standard error. DT_INVALID: texts that cannot be taken, or a model that reads none. */
int texts_prepare(struct job *job, struct dt_error *err);

#endif
