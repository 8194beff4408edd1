/* The rotary settings of config.json: rope_parameters since Transformers 5, rope_theta and rope_scaling before. */
#ifndef DT_WORKER_MODEL_MODELS_ROPE_SECTION_H
#define DT_WORKER_MODEL_MODELS_ROPE_SECTION_H

#include "worker/model/models/decoder_family.h"

struct cJSON;

/* Gives config.json the flat keys rope_type, rope_theta, rope_factor, ... of its sections. DT_INVALID for
 * what Hugging Face's library refuses, or computes without: a section that is no object, or lacks a key
 * that its type needs, or one for all layers where the family has one for each kind. */
int rope_flatten(const struct decoder_family *f, struct cJSON *config, struct dt_error *err);
/* Refuses a member of `object` that is neither an object nor null. *section: the object; null: the member is
 * missing, null or empty. */
int rope_open_section(const struct cJSON *object, const char *key, const struct cJSON **section, struct dt_error *err);
/* The section rope_parameters, of layers without a window. The caller frees it. */
char *rope_section(const struct decoder *m);
/* Appends "key": number behind another member of a section. */
void rope_put_number(struct dt_text *out, const char *key, double value);

#endif
