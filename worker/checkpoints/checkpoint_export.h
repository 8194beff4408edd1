/* Uses of a checkpoint outside training: export to Hugging Face, and comparison of two. */
#ifndef DT_WORKER_CHECKPOINTS_CHECKPOINT_EXPORT_H
#define DT_WORKER_CHECKPOINTS_CHECKPOINT_EXPORT_H

#include "worker/checkpoints/checkpoint.h"

struct export_options {
    enum dt_dtype type;  /* of the weights: DT_F32, DT_BF16 or DT_F16 */
    int64_t shard_bytes; /* most bytes of tensors in a file; a larger tensor has a file of its own */
};
extern const struct export_options export_defaults; /* DT_F32, 5 GB */
/* The type of a name ("float32", "bfloat16", "float16" as in config.json, or "fp32", "bf16", "fp16"). False:
 * there is none of that name. */
bool export_parse_type(const char *word, enum dt_dtype *out);
/* Writes FOLDER/config.json with `config`, the JSON text of an object, for weights of that type. */
int export_write_config(const char *folder, const char *config, enum dt_dtype type, struct dt_error *err);
/* Writes generation_config.json with the ids of this config.json, if its class writes text. */
int export_write_generation(const char *folder, const char *config, struct dt_error *err);
/* Writes FOLDER/config.json and FOLDER/model.safetensors (Hugging Face names) with the checkpoint's
 * weights, and the files that came with the model (origin.h). If the weights are more than
 * shard_bytes, they are in model-00001-of-0000N.safetensors and so on, split as huggingface_hub does,
 * with model.safetensors.index.json. Each file is written atomically, and what says that the weights
 * are complete last; files of an earlier export that do not belong to this one are removed then.
 * Metadata holds the step and the hash of the weights. DT_INVALID, before anything is written: a
 * weight is too large for DT_F16. notes (initialised): why files of the origin are missing, or
 * nothing. */
int checkpoint_export(struct checkpoint *c, const char *folder, const struct export_options *options,
                      struct dt_text *notes, struct dt_error *err);
/* The name of a file in FOLDER that an export would replace or leave beside its own, though none wrote it:
 * weights of another program, or parts of a run. In allocated memory; null: there is none. */
char *checkpoint_export_foreign(const char *folder);
/* True if FOLDER holds a complete export of this checkpoint in that type, by its step and weights. Reads
 * the weights. False also if the folder cannot be read. */
bool checkpoint_is_exported(struct checkpoint *c, const char *folder, enum dt_dtype type);
/* Writes a line for each tensor that differs (largest difference and its place) or that only one of
 * them has. *differing: the number of these tensors. */
int checkpoint_diff(struct checkpoint *a, struct checkpoint *b, struct dt_text *out, int *differing,
                    struct dt_error *err);

#endif
