/* Uses of a checkpoint outside training: export to Hugging Face, and comparison of two. */
#ifndef DT_WORKER_CHECKPOINTS_CHECKPOINT_EXPORT_H
#define DT_WORKER_CHECKPOINTS_CHECKPOINT_EXPORT_H

#include "worker/checkpoints/checkpoint.h"

/* Writes FOLDER/config.json and FOLDER/model.safetensors (fp32, Hugging Face names) with the
 * checkpoint's weights, and the files that came with the model (origin.h). Each file is written
 * atomically, model.safetensors last. Its metadata holds the step and the hash of the weights.
 * notes (initialised): why files of the origin are missing, or nothing. */
int checkpoint_export(struct checkpoint *c, const char *folder, struct dt_text *notes, struct dt_error *err);
/* True if FOLDER holds a complete export of this checkpoint, by its step and weights. Reads the
 * weights. False also if the folder cannot be read. */
bool checkpoint_is_exported(struct checkpoint *c, const char *folder);
/* Writes a line for each tensor that differs (largest difference and its place) or that only one of
 * them has. *differing: the number of these tensors. */
int checkpoint_diff(struct checkpoint *a, struct checkpoint *b, struct dt_text *out, int *differing,
                    struct dt_error *err);

#endif
