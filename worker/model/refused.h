/* Models that are not supported: each is refused with its name, what it has that we do not compute,
 * and the nearest model that works. */
#ifndef DT_WORKER_MODEL_REFUSED_H
#define DT_WORKER_MODEL_REFUSED_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>

struct cJSON;
/* Fails with DT_INVALID for a config.json whose model_type is not among the models. */
int refused_model(const struct cJSON *config, struct dt_error *err);
/* DT_INVALID if the config.json of a supported model asks for what no model computes: quantized
 * weights, other kinds of layers, attention to both sides in a decoder, positions in sections; a class whose
 * head there is not. */
int refused_config(const struct cJSON *config, struct dt_error *err);
/* Appends what a model of that name has, and the nearest that works. False: the name is unknown.
 * Names of sizes count ("mixtral-8x7b"). */
bool refused_name(const char *name, struct dt_text *out);

#endif
