/* Reads the weights of Hugging Face model folders: safetensors files (checkpoint_export writes them).
 * Values are returned as logical elements of our tensors, whatever their name and type in the file.
 * worker/model/hf_config.h reads config.json. */
#ifndef DT_WORKER_CHECKPOINTS_HF_H
#define DT_WORKER_CHECKPOINTS_HF_H

#include "worker/model/hf_config.h"

struct hf;
/* Opens model.safetensors, or the files of model.safetensors.index.json. Checks that they hold
 * exactly the tensors of `chain`, which is built from hf_config's sizes; those of the head may be
 * missing. The error names all that are missing, unexpected, or have another shape or type: the first
 * of each kind, and the number of the others. `chain` must outlive hf. */
int hf_open(struct hf **out, const char *folder, const struct chain *chain, struct dt_error *err);
/* The names of tensors that are of another head and are not used, and the number of those that are
 * too many to name; "": there are none. */
const char *hf_unused(const struct hf *h);
/* Sets the model's key of a tied head to false if the folder has a head that differs from the
 * embedding, as Hugging Face's library does. Before the chain is built; every rank that sees the folder
 * decides alike. A folder without readable weights changes nothing. Returns true if it changed. */
bool hf_untie(const char *folder, const struct model_ops *ops, void *sizes);
/* Gives the tensors of the head that the folder lacks their initial values of that seed; 0 if this is not
 * called. Appends their names to `names`, comma-separated. */
void hf_begin_head(struct hf *h, uint64_t seed, struct dt_text *names);
/* True for buffers that count batches. In files they are an int64 without dimensions, as PyTorch keeps
 * them; in the chain they are one element of the buffers' type. */
bool hf_is_count(const char *name);
/* Null is allowed. */
void hf_close(struct hf *h);
/* Reads elements [first, first + count) of flat unit u into `out` of type DT_F32 or DT_F64,
 * converted from F32, F64, BF16 or F16, and counts from I64, too. Padding and gaps become zero. The counterpart of
 * init_unit. */
int hf_read_unit(const struct hf *h, int u, int64_t first, int64_t count, enum dt_dtype type, void *out,
                 struct dt_error *err);
/* Reads all weights, and returns true if one is not finite: `why` says which. */
bool hf_not_finite(const struct hf *h, struct dt_error *why);

#endif
