/* PyTorch FSDP's words for the strategy and the precision. */
#include "worker/job/dialects/dialect.h"

static const struct dialect_rule rules[] = {
    WORDS("fsdp.sharding_strategy", "training.strategy",
          "FULL_SHARD=full_shard|SHARD_GRAD_OP=shard_grad_op|NO_SHARD=no_shard|HYBRID_SHARD=hybrid_shard|"
          "HYBRID_SHARD_ZERO2=hybrid_shard_zero2|_HYBRID_SHARD_ZERO2=hybrid_shard_zero2"),
    WORDS("mixed_precision.param_dtype", "training.precision",
          "fp32=32-true|float32=32-true|bf16=bf16-mixed|bfloat16=bf16-mixed|fp16=16-mixed|float16=16-mixed"),
    {0},
};

const struct dialect dialect_fsdp = {.name = "FSDP", .family = "fsdp", .rules = rules};
