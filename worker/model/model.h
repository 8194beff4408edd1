/* The models there are, and what each is called. To add one: models/NAME.c with its struct model_ops,
 * model_NAME, and a row of MODELS. */
#ifndef DT_WORKER_MODEL_MODEL_H
#define DT_WORKER_MODEL_MODEL_H

#include "worker/model/chain.h"

#define MODELS(X)                                                                                                      \
    X(gpt2, "gpt2")                                                                                                    \
    X(llama, "llama")                                                                                                  \
    X(qwen2, "qwen2")                                                                                                  \
    X(qwen3, "qwen3")                                                                                                  \
    X(mistral, "mistral")                                                                                              \
    X(gemma2, "gemma2")                                                                                                \
    X(gemma3_text, "gemma3_text")                                                                                      \
    X(smollm3, "smollm3")                                                                                              \
    X(phi3, "phi3")                                                                                                    \
    X(olmo2, "olmo2")                                                                                                  \
    X(granite, "granite")                                                                                              \
    X(mha_gpt, "mha-gpt")                                                                                              \
    X(bert, "bert")                                                                                                    \
    X(roberta, "roberta")                                                                                              \
    X(distilbert, "distilbert")                                                                                        \
    X(modernbert, "modernbert")                                                                                        \
    X(resnet, "resnet")                                                                                                \
    X(mlp, "mlp")

/* For lists of names with "|" between two. */
#define MODEL_NAME(model, name) "|" name

#define MODEL_OPS(model, name) extern const struct model_ops model_##model;
MODELS(MODEL_OPS)
#undef MODEL_OPS

#endif
