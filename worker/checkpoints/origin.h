/* The Hugging Face folder that a run begins with (model.load): an export must contain its
 * config.json with few values changed, and the files beside its weights. The files that the export
 * needs are kept in the folder of checkpoints, since the source may be gone by then, or on another
 * host. */
#ifndef DT_WORKER_CHECKPOINTS_ORIGIN_H
#define DT_WORKER_CHECKPOINTS_ORIGIN_H

#include "base/error.h"
#include "base/text.h"

enum { ORIGIN_FILES_MAX = 100, ORIGIN_FILE_BYTES = 64 << 20, ORIGIN_BYTES = 256 << 20 };

/* Makes the config.json of an exported folder from the original text (an object that
 * dt_scan_parse_others has accepted). Every member stays as it was written, except the type of the
 * weights and, if it is another class, `architecture`. */
void origin_config(const char *text, size_t size, const char *architecture, struct dt_text *out);
/* Appends `text` with the JSON text `json` under `key`. */
void origin_member(const char *text, size_t size, const char *key, const char *json, struct dt_text *out);
/* Makes `kept` hold the files of `folder` that an export needs, and nothing else. These are regular
 * files at its top, in additional_chat_templates/, and in those of sentence-transformers' modules (1_Pooling/), that are neither weights, nor training state,
 * nor the model's own README. Links are followed inside the folder and into Hugging Face's cache.
 * notes: a line without newline that names what is left out, or nothing. The old content of `kept`
 * stays until all files are copied. */
int origin_keep(const char *folder, const char *kept, struct dt_text *notes, struct dt_error *err);
/* Puts the files of a tokenizer into `kept`, which is made if it is missing. path: a tokenizer.json, or a folder
 * with one and the files that Transformers reads beside it. */
int origin_keep_tokenizer(const char *path, const char *kept, struct dt_error *err);
/* Copies what origin_keep has kept, except config.json, into `folder`, which must exist. */
int origin_copy(const char *kept, const char *folder, struct dt_error *err);

#endif
