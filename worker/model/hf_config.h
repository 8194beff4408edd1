/* Reads config.json of Hugging Face model folders: which model it is, and its sizes. */
#ifndef DT_WORKER_MODEL_HF_CONFIG_H
#define DT_WORKER_MODEL_HF_CONFIG_H

#include "worker/model/chain.h"

/* Each checkpoint keeps the text of config.json, so its number of values is bounded as the
 * manifest's is (checkpoints/manifest.c): one for so many bytes of text, and so many more. */
enum { HF_CONFIG_VALUE_BYTES = 8, HF_CONFIG_SHORT_VALUES = 1 << 15 };

/* Reads config.json: the model and its sizes. as_written: the file's text is appended to it;
 * may be null. Errors name the file and key. */
int hf_config(const char *folder, const struct model_ops **ops, struct model_sizes *sizes, struct dt_text *as_written,
              struct dt_error *err);

struct cJSON;
/* Reads a file of the folder, of at most max_bytes, as a JSON object, which the caller deletes.
 * as_written: the text is appended to it; may be null. */
int hf_read_json(const char *path, size_t max_bytes, struct cJSON **out, struct dt_text *as_written,
                 struct dt_error *err);

#endif
