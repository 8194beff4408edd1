/* The models there are; each is one file in worker/models. */
#ifndef DT_WORKER_MODEL_MODEL_H
#define DT_WORKER_MODEL_MODEL_H

#include "worker/model/chain.h"

extern const struct model_ops model_gpt2;

#endif
