/* Lightning's DDPStrategy: its arguments, and the states of communication hooks, which are classes of torch. */
#include "worker/job/dialects/lightning_ddp.h"

#include <cjson/cJSON.h>
#include <string.h>

struct move {
    const char *from, *to;
};

static const struct move arguments[] = {{"bucket_cap_mb", "ddp.bucket_cap_mb"},
                                        {"find_unused_parameters", "ddp.find_unused_parameters"},
                                        {"static_graph", "ddp.static_graph"},
                                        {"gradient_as_bucket_view", "ddp.gradient_as_bucket_view"},
                                        {"broadcast_buffers", "training.broadcast_buffers"},
                                        {"model_averaging_period", "local_sgd.period"},
                                        {NULL, NULL}},
                         states[] = {{"matrix_approximation_rank", "power_sgd.matrix_approximation_rank"},
                                     {"start_powerSGD_iter", "power_sgd.start_powerSGD_iter"},
                                     {"min_compression_rate", "power_sgd.min_compression_rate"},
                                     {"use_error_feedback", "power_sgd.use_error_feedback"},
                                     {"warm_start", "power_sgd.warm_start"},
                                     {"orthogonalization_epsilon", "power_sgd.orthogonalization_epsilon"},
                                     {"random_seed", "power_sgd.random_seed"},
                                     {"start_localSGD_iter", "local_sgd.warmup_steps"},
                                     {NULL, NULL}};

static bool moved(struct dialect_use *u, const struct move *list, const char *path, const cJSON *value)
{
    for (; list->from != NULL; list++) {
        if (strcmp(list->from, value->string) == 0) {
            if (!cJSON_IsNull(value)) {
                dialect_give(u, path, list->to, cJSON_Duplicate(value, true));
            }
            dt_config_pass(u->c, path);
            return true;
        }
    }
    return false;
}

/* "torch.distributed. ... .default_hooks.fp16_compress_hook": the job's rule knows the function's own name. */
static void give_function(struct dialect_use *u, const char *path, const char *to, const cJSON *value)
{
    const char *dot = cJSON_IsString(value) ? strrchr(value->valuestring, '.') : NULL;
    if (!cJSON_IsNull(value)) {
        dialect_give(u, path, to, dot != NULL ? cJSON_CreateString(dot + 1) : cJSON_Duplicate(value, true));
    }
    dt_config_pass(u->c, path);
}

/* Groups of processes are made here. */
static void give_state(struct dialect_use *u, const char *path, const cJSON *value)
{
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(value, "init_args"), *a;
    dt_config_pass(u->c, path);
    cJSON_ArrayForEach(a, args)
    {
        const char *key = dt_arena_printf(u->arena, "%s.init_args.%s", path, a->string);
        if (!moved(u, states, key, a) && !cJSON_IsNull(a)) {
            dt_config_problem(u->c, key, "has no counterpart here; remove it");
        }
    }
}

void lightning_ddp_arguments(struct dialect_use *u, const char *path, const cJSON *args)
{
    const cJSON *a;
    cJSON_ArrayForEach(a, args)
    {
        const char *key = dt_arena_printf(u->arena, "%s.init_args.%s", path, a->string);
        if (strcmp(a->string, "ddp_comm_hook") == 0) {
            give_function(u, key, "ddp.comm_hook", a);
        } else if (strcmp(a->string, "ddp_comm_wrapper") == 0) {
            give_function(u, key, "ddp.comm_wrapper", a);
        } else if (strcmp(a->string, "ddp_comm_state") == 0) {
            give_state(u, key, a);
        } else {
            (void)moved(u, arguments, key, a);
        }
    }
}
