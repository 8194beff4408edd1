/* The section `offload`: names of strategies that mean it, and what of it goes with which strategy. */
#include "worker/job/job.h"

#include "worker/job/job_fields.h"

#include <string.h>
#include <strings.h>

/* Lightning's default. */
#define LOCAL_NVME "/local_nvme"

/* Strategies whose names say where state rests, and how. */
static const struct meaning {
    const char *name;
    enum offload_to optimizer, parameters;
} meanings[] = {
    {"deepspeed_stage_1_offload", OFFLOAD_CPU, OFFLOAD_NONE},
    {"deepspeed_stage_2_offload", OFFLOAD_CPU, OFFLOAD_NONE},
    {"deepspeed_stage_3_offload", OFFLOAD_CPU, OFFLOAD_CPU},
    {"deepspeed_stage_3_offload_nvme", OFFLOAD_NVME, OFFLOAD_NVME},
    {"zero2_offload", OFFLOAD_CPU, OFFLOAD_NONE},
    {"zero3_offload", OFFLOAD_CPU, OFFLOAD_CPU},
    {"fsdp_cpu_offload", OFFLOAD_CPU, OFFLOAD_CPU},
};

/* Strategies that keep whole copies on each rank, as do those that begin with ddp; and of the others, those that
 * keep whole weights. */
static const char *const whole[] = {"auto",          "single",       "single_device",
                                    "zero0",         "zero_stage_0", "no_shard",
                                    "fsdp_no_shard", "local_sgd",    "deepspeed_stage_0"};
static const char *const whole_weights[] = {"zero1",
                                            "zero2",
                                            "deepspeed",
                                            "zero_stage_1",
                                            "zero_stage_2",
                                            "deepspeed_stage_1",
                                            "zero2_offload",
                                            "deepspeed_stage_2",
                                            "deepspeed_stage_1_offload",
                                            "deepspeed_stage_2_offload"};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static bool among(const char *name, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcasecmp(name, list[i]) == 0) {
            return true;
        }
    }
    return false;
}

enum strategy_slices job_strategy_slices(const char *strategy)
{
    bool all = strncasecmp(strategy, "ddp", 3) == 0 || among(strategy, whole, COUNT(whole));
    return all ? SLICES_NOTHING : among(strategy, whole_weights, COUNT(whole_weights)) ? SLICES_STATE : SLICES_WEIGHTS;
}

static void fill_in(struct job *job, struct dt_config *c)
{
    struct job_offload *o = &job->offload;
    const struct meaning *m = NULL;
    for (size_t i = 0; i < COUNT(meanings); i++) {
        m = strcasecmp(job->training.strategy, meanings[i].name) == 0 ? &meanings[i] : m;
    }
    if (m == NULL) {
        return;
    }
    if (dt_config_where(c, "offload.optimizer") == NULL) {
        o->optimizer = m->optimizer;
    }
    if (dt_config_where(c, "offload.parameters") == NULL) {
        o->parameters = m->parameters;
    }
    if (o->nvme_path.count == 0 && m->optimizer == OFFLOAD_NVME) {
        static const char *const local[] = {LOCAL_NVME};
        o->nvme_path = (struct dt_strings){1, local};
    }
}

void job_check_offload(struct job *job, struct dt_config *c)
{
    struct job_offload *o = &job->offload;
    const char *strategy = job->training.strategy, *off = "offload.optimizer";
    fill_in(job, c);
    bool any = o->optimizer != OFFLOAD_NONE || o->parameters != OFFLOAD_NONE;
    bool all = job_strategy_slices(strategy) == SLICES_NOTHING,
         sliced = job_strategy_slices(strategy) == SLICES_WEIGHTS;
    off = o->optimizer != OFFLOAD_NONE ? off : "offload.parameters";
    if (any && all) {
        dt_config_problem(c, off,
                          "training.strategy %s keeps everything whole on each rank; write zero1, zero2, zero3 or "
                          "full_shard, or remove it",
                          strategy);
    } else if (o->parameters != OFFLOAD_NONE && !sliced) {
        dt_config_problem(c, "offload.parameters",
                          "training.strategy %s keeps whole weights on each rank; write zero3 or full_shard, or "
                          "remove it",
                          strategy);
    }
    if (o->optimizer != OFFLOAD_NONE && o->ratio < 1 && !sliced) {
        dt_config_problem(c, "offload.ratio",
                          "only strategies that slice weights offload a share of the optimizer's state; write zero3 "
                          "or full_shard, or 1");
    }
    if ((o->optimizer == OFFLOAD_NVME || o->parameters == OFFLOAD_NVME || o->activations == OFFLOAD_NVME) &&
        o->nvme_path.count == 0) {
        dt_config_problem(c, "offload.nvme_path", "is missing: nvme needs a folder on a fast disk; give one");
    }
    if (o->nvme_path.count > 8) {
        dt_config_problem(c, "offload.nvme_path", "has %d folders; give 8 at most", o->nvme_path.count);
    }
    if (o->block_size % 4096 != 0) {
        dt_config_problem(c, "offload.block_size", "is no multiple of 4096; write %lld",
                          (long long)(o->block_size / 4096 * 4096));
    }
    if (o->portion % 2048 != 0) {
        dt_config_problem(c, "offload.portion", "is no multiple of 2048; write %lld",
                          (long long)(o->portion / 2048 * 2048));
    }
}
