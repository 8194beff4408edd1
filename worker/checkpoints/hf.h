/* Reading Hugging Face model folders: config.json and safetensors files (checkpoint_export
 * writes them). Values come as logical elements of our tensors, whatever name and type the file
 * gives them. */
#ifndef DT_WORKER_CHECKPOINTS_HF_H
#define DT_WORKER_CHECKPOINTS_HF_H

#include "worker/model/chain.h"

/* Only config.json: which model it is, and its sizes. as_written: the file's text is added, or
 * null. Errors name the file and key. */
int hf_config(const char *folder, const struct model_ops **ops, struct model_sizes *sizes, struct dt_text *as_written,
              struct dt_error *err);

struct hf;
/* Opens model.safetensors, or the files of model.safetensors.index.json, and checks that they
 * hold exactly the tensors of `chain` (built from hf_config's sizes): names what is missing, of
 * another shape or type, or unknown. `chain` must outlive hf. */
int hf_open(struct hf **out, const char *folder, const struct chain *chain, struct dt_error *err);
/* Null is harmless. */
void hf_close(struct hf *h);
/* Elements [first, first + count) of flat unit u (padding and gaps: zero) into `out` of type
 * DT_F32 or DT_F64, converted from F32, F64, BF16 or F16; the counterpart of init_unit. */
int hf_read_unit(const struct hf *h, int u, int64_t first, int64_t count, enum dt_dtype type, void *out,
                 struct dt_error *err);

#endif
