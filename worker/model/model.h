/* The models there are; each is one file in models/, and a row in model.c. */
#ifndef DT_WORKER_MODEL_MODEL_H
#define DT_WORKER_MODEL_MODEL_H

#include "worker/model/chain.h"

/* Their names, for the table of the job's keys. */
#define MODEL_NAMES "gpt2|mlp"

extern const struct model_ops model_gpt2, model_mlp;

#endif
