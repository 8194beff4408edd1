/* The Hugging Face folder that a run begins with (model.load), as it must come out again: its
 * config.json with few values changed, and the files beside its weights. What of them the export
 * needs is kept in the folder of checkpoints, since the source may be gone by then, or on
 * another host. */
#ifndef DT_WORKER_CHECKPOINTS_ORIGIN_H
#define DT_WORKER_CHECKPOINTS_ORIGIN_H

#include "base/error.h"
#include "base/text.h"

#define ORIGIN_FOLDER "origin" /* in the folder of checkpoints */

enum { ORIGIN_FILES_MAX = 100, ORIGIN_FILE_BYTES = 64 << 20, ORIGIN_BYTES = 256 << 20 };

/* config.json of an exported folder from the text of the one that came in (an object;
 * dt_scan_parse_others has seen it): every member stays as it is written, but for the type of
 * the weights and, where it is another class, `architecture`. */
void origin_config(const char *text, size_t size, const char *architecture, struct dt_text *out);
/* The same text with a number under `key`: where it is that number already it stays as it is
 * written, and 0 may be missing. */
void origin_number(const char *text, size_t size, const char *key, double number, struct dt_text *out);
/* Makes `kept` hold the files of `folder` that an export needs, and nothing else: regular files
 * at its top and in additional_chat_templates/ that are neither weights, nor training state, nor
 * the model's own README. Links are followed inside the folder and to where Hugging Face's cache
 * keeps files. notes: a line without newline that names what is left out, or nothing. What
 * `kept` held before stays until all is copied. */
int origin_keep(const char *folder, const char *kept, struct dt_text *notes, struct dt_error *err);
/* Copies what origin_keep kept, config.json aside, into `folder`, which is there. */
int origin_copy(const char *kept, const char *folder, struct dt_error *err);

#endif
