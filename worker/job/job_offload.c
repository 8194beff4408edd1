/* The section `offload`: names of strategies that mean it, and what of it goes with which strategy. */
#include "worker/job/job.h"

#include "worker/job/job_fields.h"

/* Lightning's default. */
#define LOCAL_NVME "/local_nvme"

static void fill_in(struct job *job, struct dt_config *c)
{
    struct job_offload *o = &job->offload;
    const struct job_strategy s = job_strategy(job->training.strategy);
    if (o->optimizer == OFFLOAD_NONE && dt_config_where(c, "offload.optimizer") == NULL) {
        o->optimizer = s.optimizer;
    }
    if (o->parameters == OFFLOAD_NONE && dt_config_where(c, "offload.parameters") == NULL) {
        o->parameters = s.parameters;
    }
    if (o->nvme_path.count == 0 && s.optimizer == OFFLOAD_NVME) {
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
    enum strategy_slices slices = job_strategy(strategy).slices;
    bool all = slices == SLICES_NOTHING, sliced = slices == SLICES_WEIGHTS;
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
