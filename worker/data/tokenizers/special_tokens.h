/* The special tokens that stand beside a tokenizer.json. */
#ifndef DT_WORKER_DATA_TOKENIZERS_SPECIAL_TOKENS_H
#define DT_WORKER_DATA_TOKENIZERS_SPECIAL_TOKENS_H

#include "base/error.h"

struct cJSON;

/* The path of a file beside a tokenizer. path: a tokenizer.json, or its folder. The caller frees it. */
char *special_tokens_beside(const char *path, const char *name);
/* Reads the tokens of tokenizer_config.json and special_tokens_map.json beside a tokenizer, as texts under
 * their keys: {"bos_token": "<s>", ...}; a key of both has the first one's. Empty if there is neither file. The
 * caller frees it with cJSON_Delete. Null: a file is not right. */
struct cJSON *special_tokens_read(const char *path, struct dt_error *err);

#endif
