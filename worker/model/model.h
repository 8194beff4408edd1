/* The models there are. To add one: models/NAME.c with its struct model_ops, model_NAME, and its
 * name in MODELS. */
#ifndef DT_WORKER_MODEL_MODEL_H
#define DT_WORKER_MODEL_MODEL_H

#include "worker/model/chain.h"

#define MODELS(X)                                                                                                      \
    X(gpt2)                                                                                                            \
    X(llama)                                                                                                           \
    X(qwen2)                                                                                                           \
    X(qwen3)                                                                                                           \
    X(mistral)                                                                                                         \
    X(gemma2)                                                                                                          \
    X(gemma3_text)                                                                                                     \
    X(smollm3)                                                                                                         \
    X(phi3)                                                                                                            \
    X(olmo2)                                                                                                           \
    X(granite)                                                                                                         \
    X(bert)                                                                                                            \
    X(roberta)                                                                                                         \
    X(distilbert)                                                                                                      \
    X(modernbert)                                                                                                      \
    X(resnet)                                                                                                          \
    X(mlp)

/* For lists of names with "|" between two. */
#define MODEL_NAME(name) "|" #name

#define MODEL_OPS(name) extern const struct model_ops model_##name;
MODELS(MODEL_OPS)
#undef MODEL_OPS

#endif
