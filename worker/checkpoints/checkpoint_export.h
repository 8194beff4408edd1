/* What people do with a checkpoint outside training: export to Hugging Face, compare two. */
#ifndef DT_WORKER_CHECKPOINTS_CHECKPOINT_EXPORT_H
#define DT_WORKER_CHECKPOINTS_CHECKPOINT_EXPORT_H

#include "worker/checkpoints/checkpoint.h"

/* Writes FOLDER/config.json and FOLDER/model.safetensors (fp32, Hugging Face names) with the
 * checkpoint's weights, and the files that came with the model (origin.h); model.safetensors
 * comes last, each file atomically. Its metadata holds the step and the hash of the weights.
 * notes (initialised): why such files are missing, or nothing. */
int checkpoint_export(struct checkpoint *c, const char *folder, struct dt_text *notes, struct dt_error *err);
/* Whether FOLDER holds a whole export of this checkpoint: of its step and weights. Reads the
 * weights; what cannot be read is not exported. */
bool checkpoint_is_exported(struct checkpoint *c, const char *folder);
/* A line per tensor that differs (largest difference and where), or that only one has;
 * *differing: how many. */
int checkpoint_diff(struct checkpoint *a, struct checkpoint *b, struct dt_text *out, int *differing,
                    struct dt_error *err);

#endif
