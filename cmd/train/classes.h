/* The names of a model's classes, which say what the numbers of its answers mean. */
#ifndef DT_CMD_TRAIN_CLASSES_H
#define DT_CMD_TRAIN_CLASSES_H

#include "worker/job/job.h"

/* Takes the names into job->model: those of what is evaluated (the checkpoint, or else model.load), or those with which
 * a training on labelled texts begins. Names that stand for nothing (LABEL_0, ...), and those of another head than
 * the job's, are left out. */
int train_find_classes(struct job *job, const char *checkpoint, struct dt_error *err);

#endif
