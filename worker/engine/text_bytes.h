/* How many bytes of text targets stand for: losses of different tokenizers are comparable per byte. */
#ifndef DT_WORKER_ENGINE_TEXT_BYTES_H
#define DT_WORKER_ENGINE_TEXT_BYTES_H

#include "worker/data/data.h"

struct text_bytes;
/* Bytes of each id of a source's tokenizer. The tokenizer is read from the first of these places that has
 * that very file: `named` (data.tokenizer), `folder` (model.load), where the shards say; null: not given. If
 * none has it, text_bytes_known is false. */
struct text_bytes *text_bytes_open(const struct data_source *s, const char *named, const char *folder);
bool text_bytes_known(const struct text_bytes *b);
/* Bytes of all targets of a batch in host memory. */
int64_t text_bytes_count(const struct text_bytes *b, const struct data_source *s, const struct batch *batch);
void text_bytes_close(struct text_bytes *b); /* null is allowed */

#endif
