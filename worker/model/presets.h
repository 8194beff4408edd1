/* Well-known models by name: a family and the keys in which it differs from the family's defaults. */
#ifndef DT_WORKER_MODEL_PRESETS_H
#define DT_WORKER_MODEL_PRESETS_H

#include "worker/model/chain.h"

struct preset {
    const char *name, *family;
    const char *config; /* JSON: members of config.json */
};

/* Preset number i; null after the last. */
const struct preset *preset_at(int i);
/* The preset of that name, in any case ("Llama-3.2-1B"); null if there is none. */
const struct preset *preset_find(const char *name);
/* The name of the preset that a published name means, such as "openai-community/gpt2-xl" or
 * "Meta-Llama-3-8B-Instruct": the longest one that stands in it in whole words, behind the owner. Null: none. */
const char *preset_meant(const char *name);
/* The sizes of a preset. DT_INTERNAL if its row is wrong. */
int preset_sizes(const struct preset *p, void *sizes, struct dt_error *err);

/* Appends all models, and the presets of each with their number of parameters, for people. */
void preset_list(struct dt_text *out);

#endif
