/* Questions about jobs in general, or about the words of a file, which the program answers and ends. */
#ifndef DT_CMD_TRAIN_ANSWER_H
#define DT_CMD_TRAIN_ANSWER_H

#include "worker/job/job.h"

struct train_question {
    bool list_strategies;          /* with a job file also those that it registers */
    const char *explain, *convert; /* a key; a file, which is job->path, too */
    const char *output;            /* of convert; null: standard output */
};

/* Answers on standard output. The exit code; -1 when nothing of it is asked. */
int train_answer(const struct train_question *q, const struct job_arguments *job);

#endif
