/* Reads the weights of Hugging Face model folders: safetensors files (checkpoint_export writes them).
 * Values are returned as logical elements of our tensors, whatever their name and type in the file.
 * worker/model/hf_config.h reads config.json. */
#ifndef DT_WORKER_CHECKPOINTS_HF_H
#define DT_WORKER_CHECKPOINTS_HF_H

#include "worker/model/hf_config.h"

struct hf;
/* Opens model.safetensors, or the files of model.safetensors.index.json. Checks that they hold
 * exactly the tensors of `chain`, which is built from hf_config's sizes; those of the head may be
 * missing. The error names a tensor that is missing, unknown, or has another shape or type. `chain`
 * must outlive hf. */
int hf_open(struct hf **out, const char *folder, const struct chain *chain, struct dt_error *err);
/* Gives the tensors of the head that the folder lacks their initial values of that seed; 0 if this is not
 * called. Appends their names to `names`, comma-separated. */
void hf_begin_head(struct hf *h, uint64_t seed, struct dt_text *names);
/* Null is allowed. */
void hf_close(struct hf *h);
/* Reads elements [first, first + count) of flat unit u into `out` of type DT_F32 or DT_F64,
 * converted from F32, F64, BF16 or F16. Padding and gaps become zero. The counterpart of
 * init_unit. */
int hf_read_unit(const struct hf *h, int u, int64_t first, int64_t count, enum dt_dtype type, void *out,
                 struct dt_error *err);

#endif
