/* Names of strategies, and their meaning for the keys of a job. The strategies themselves are rows of engine/strategy.c. */
#include "worker/job/job.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define WHOLE                                                                                                          \
    {                                                                                                                  \
        SLICES_NOTHING, true, false, OFFLOAD_NONE, OFFLOAD_NONE                                                        \
    }
#define STATE                                                                                                          \
    {                                                                                                                  \
        SLICES_STATE, true, false, OFFLOAD_NONE, OFFLOAD_NONE                                                          \
    }
#define GRADIENTS                                                                                                      \
    {                                                                                                                  \
        SLICES_STATE, false, false, OFFLOAD_NONE, OFFLOAD_NONE                                                         \
    }
#define WEIGHTS                                                                                                        \
    {                                                                                                                  \
        SLICES_WEIGHTS, false, false, OFFLOAD_NONE, OFFLOAD_NONE                                                       \
    }
#define WEIGHTS_KEPT                                                                                                   \
    {                                                                                                                  \
        SLICES_WEIGHTS, false, true, OFFLOAD_NONE, OFFLOAD_NONE                                                        \
    }

/* Without those that begin with ddp, which are all alike. */
static const struct {
    const char *name;
    struct job_strategy is;
} names[] = {
    {"auto", WHOLE},
    {"single", WHOLE},
    {"single_device", WHOLE},
    {"local_sgd", WHOLE},
    {"no_shard", WHOLE},
    {"fsdp_no_shard", WHOLE},
    {"zero0", WHOLE},
    {"zero_stage_0", WHOLE},
    {"deepspeed_stage_0", WHOLE},
    {"zero1", STATE},
    {"zero_stage_1", STATE},
    {"deepspeed_stage_1", STATE},
    {"deepspeed_stage_1_offload", {SLICES_STATE, true, false, OFFLOAD_CPU, OFFLOAD_NONE}},
    {"zero2", GRADIENTS},
    {"deepspeed", GRADIENTS},
    {"zero_stage_2", GRADIENTS},
    {"deepspeed_stage_2", GRADIENTS},
    {"zero2_offload", {SLICES_STATE, false, false, OFFLOAD_CPU, OFFLOAD_NONE}},
    {"deepspeed_stage_2_offload", {SLICES_STATE, false, false, OFFLOAD_CPU, OFFLOAD_NONE}},
    {"zero3_offload", {SLICES_WEIGHTS, false, false, OFFLOAD_CPU, OFFLOAD_CPU}},
    {"deepspeed_stage_3_offload", {SLICES_WEIGHTS, false, false, OFFLOAD_CPU, OFFLOAD_CPU}},
    {"deepspeed_stage_3_offload_nvme", {SLICES_WEIGHTS, false, false, OFFLOAD_NVME, OFFLOAD_NVME}},
    {"fsdp_cpu_offload", {SLICES_WEIGHTS, false, false, OFFLOAD_CPU, OFFLOAD_CPU}},
    {"shard_grad_op", WEIGHTS_KEPT},
    {"fsdp_shard_grad_op", WEIGHTS_KEPT},
    {"hybrid_shard_zero2", WEIGHTS_KEPT},
    {"_hybrid_shard_zero2", WEIGHTS_KEPT},
};

struct job_strategy job_strategy(const char *name)
{
    if (strncasecmp(name, "ddp", 3) == 0) {
        return (struct job_strategy)WHOLE;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcasecmp(names[i].name, name) == 0) {
            return names[i].is;
        }
    }
    return (struct job_strategy)WEIGHTS; /* full_shard and its like; what is none is refused where strategies open */
}

int job_take_strategy(struct job *job, const char *name, struct dt_error *err)
{
    struct dt_config *c = NULL;
    struct dt_arena arena;
    dt_arena_init(&arena);
    int rc = dt_config_open_text(&c, "--strategy", "{}", 2, &arena, err);
    if (rc == 0) {
        job->training.strategy = name;
        job_check_offload(job, c);
        job_check_hooks(job, c);
        rc = dt_config_close(c, NULL, err);
    }
    dt_arena_clear(&arena);
    return rc;
}

int job_open_registered(struct job *out, const struct job *job, const struct job_arguments *args, const char *name,
                        struct dt_error *err)
{
    struct job_arguments with = *args;
    struct dt_text problems;
    size_t count = (size_t)args->set_count;
    const char **set = dt_alloc((count + 1) * sizeof *set), **option = dt_alloc((count + 1) * sizeof *option);
    char *wish = dt_format("training.strategy=%s", name);
    for (size_t i = 0; i < count; i++) {
        set[i] = args->set[i];
        option[i] = args->set_option != NULL ? args->set_option[i] : NULL;
    }
    set[count] = wish;
    option[count] = "--strategy";
    with.set = set;
    with.set_option = option;
    with.set_count++;
    dt_text_init(&problems);
    int rc = job_open(out, &with, &problems, err);
    if (rc == 0) { /* of which a strategy changes nothing */
        out->data = job->data;
        out->model = job->model;
    } else if (problems.size > 0) {
        rc = dt_fail(err, DT_INVALID, "%.*s", (int)strcspn(problems.data, "\n"), problems.data);
    }
    dt_text_clear(&problems);
    free(wish);
    free(set);
    free(option);
    return rc;
}
