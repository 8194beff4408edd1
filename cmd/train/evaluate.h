/* train --evaluate: the numbers of data.val with the weights of a checkpoint or folder. */
#ifndef DT_CMD_TRAIN_EVALUATE_H
#define DT_CMD_TRAIN_EVALUATE_H

#include "worker/run/observers/observer.h"

/* Prints an evaluation as one JSON object on stdout, on rank 0. */
extern const struct observer_ops observer_evaluation;

/* Finds what `path` means. *checkpoint: the checkpoint; null: it is a Hugging Face folder. The caller
 * frees it. */
int train_find_weights(const char *path, char **checkpoint, struct dt_error *err);

#endif
