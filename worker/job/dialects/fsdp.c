/* PyTorch FSDP's words for the strategy and the precision. */
#include "worker/job/dialects/dialect.h"

#include <cjson/cJSON.h>

/* Slices of weights and gradients rest in the host's memory, and so does what the optimizer has. */
static void cpu_offload(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const cJSON *inside = cJSON_IsObject(value) ? cJSON_GetObjectItemCaseSensitive(value, "offload_params") : value;
    if (!cJSON_IsBool(inside)) {
        dt_config_problem(u->c, path, "give true or false, or {\"offload_params\": true}");
    } else if (cJSON_IsTrue(inside)) {
        dialect_give(u, path, r->to, cJSON_CreateString("cpu"));
        dialect_give(u, path, "offload.optimizer", cJSON_CreateString("cpu"));
    }
}

static const struct dialect_rule rules[] = {
    WORDS("fsdp.sharding_strategy", "training.strategy",
          "FULL_SHARD=full_shard|SHARD_GRAD_OP=shard_grad_op|NO_SHARD=no_shard|HYBRID_SHARD=hybrid_shard|"
          "HYBRID_SHARD_ZERO2=hybrid_shard_zero2|_HYBRID_SHARD_ZERO2=hybrid_shard_zero2"),
    FUNCTION("fsdp.cpu_offload", "offload.parameters", cpu_offload,
             "true: `offload.parameters` and `offload.optimizer` are cpu"),
    WORDS("mixed_precision.param_dtype", "training.precision",
          "fp32=32-true|float32=32-true|bf16=bf16-mixed|bfloat16=bf16-mixed|fp16=!not there yet; write bf16|"
          "float16=!not there yet; write bf16"),
    {0},
};

const struct dialect dialect_fsdp = {.name = "FSDP", .family = "fsdp", .rules = rules};
