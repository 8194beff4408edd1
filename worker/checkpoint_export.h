/* What people do with a checkpoint outside training: export to Hugging Face, compare two. */
#ifndef DT_WORKER_CHECKPOINT_EXPORT_H
#define DT_WORKER_CHECKPOINT_EXPORT_H

#include "worker/checkpoint.h"

/* Writes FOLDER/config.json and FOLDER/model.safetensors (fp32, Hugging Face names) with the checkpoint's weights; model.safetensors comes last, each file
 * atomically. */
int checkpoint_export(struct checkpoint *c, const char *folder, struct dt_error *err);
/* Whether FOLDER holds a whole export of this step. */
bool checkpoint_is_exported(const char *folder, int64_t step);
/* A line per tensor that differs (largest difference and where), or that only one has; *differing: how many. */
int checkpoint_diff(struct checkpoint *a, struct checkpoint *b, struct dt_text *out, int *differing, struct dt_error *err);

#endif
