/* The names of a model's classes, which say what the numbers of its answers mean. */
#ifndef DT_CMD_TRAIN_CLASSES_H
#define DT_CMD_TRAIN_CLASSES_H

#include "worker/data/data.h"
#include "worker/job/job.h"

/* Takes the names into job->model: those of what is evaluated (the checkpoint, or else model.load), or those with which
 * a training on labelled texts begins. Names that stand for nothing (LABEL_0, ...), and those of another head than
 * the job's, are left out. */
int train_find_classes(struct job *job, const char *checkpoint, struct dt_error *err);

/* How the classes of rows in shards (a pattern) stand to the model's. */
int train_compare_classes(const struct job *job, const char *shards, enum data_classes *out, struct dt_error *err);
/* The model's classes as --labels takes them, in the job's memory; null: one of them is empty, or stands there twice. */
const char *train_join_classes(struct job *job);

#endif
