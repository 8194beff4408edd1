/* The sections `ddp`, `power_sgd` and `local_sgd`: how gradients of strategies that keep everything whole
 * travel, and what of it goes with what. */
#include "worker/job/job.h"

#include "worker/job/job_fields.h"

#include <string.h>
#include <strings.h>

/* Names of engine/hooks/hooks.c, and what PyTorch, Accelerate and Lightning write for them. */
static const struct {
    const char *word, *plain; /* plain null: an all_reduce */
} words[] = {{"allreduce", NULL},
             {"allreduce_hook", NULL},
             {"no", NULL},
             {"none", NULL},
             {"fp16", "fp16_compress"},
             {"fp16_compress_hook", "fp16_compress"},
             {"fp16_compress_wrapper", "fp16_compress"},
             {"bf16", "bf16_compress"},
             {"bf16_compress_hook", "bf16_compress"},
             {"bf16_compress_wrapper", "bf16_compress"},
             {"powerSGD", "power_sgd"},
             {"powerSGD_hook", "power_sgd"},
             {"batched_powerSGD_hook", "batched_power_sgd"},
             {"post_localSGD", "post_local_sgd"},
             {"post_localSGD_hook", "post_local_sgd"}};

static const struct dt_rule boolean = {.type = DT_RULE_BOOL};
static const struct dt_rule megabytes = {.type = DT_RULE_NUMBER, .open_min = true, .max = 65536};
static const struct dt_rule steps = {.type = DT_RULE_INTEGER, .min = 0, .max = 1e12};
static const struct dt_rule interval = {.type = DT_RULE_INTEGER, .min = 1, .max = 1e12};
static const struct dt_rule rank = {.type = DT_RULE_INTEGER, .min = 1, .max = 4096};
static const struct dt_rule group = {.type = DT_RULE_INTEGER, .min = 0, .max = 65536};
static const struct dt_rule rate = {.type = DT_RULE_NUMBER, .open_min = true, .max = 1e9};
static const struct dt_rule epsilon = {.type = DT_RULE_NUMBER, .max = 1};
static const struct dt_rule seed = {.type = DT_RULE_INTEGER, .min = 0, .max = 0x1p53};
static const struct dt_rule hook = {.type = DT_RULE_CHOICE,
                                    .null = true,
                                    .choices = "allreduce|fp16_compress|bf16_compress|power_sgd|batched_power_sgd|"
                                               "post_local_sgd|no|none|fp16|bf16|allreduce_hook|fp16_compress_hook|"
                                               "bf16_compress_hook|powerSGD|powerSGD_hook|batched_powerSGD_hook|"
                                               "post_localSGD|post_localSGD_hook"};
static const struct dt_rule wrapper = {.type = DT_RULE_CHOICE,
                                       .null = true,
                                       .choices = "fp16_compress|bf16_compress|no|none|fp16|bf16|fp16_compress_wrapper|"
                                                  "bf16_compress_wrapper"};

#define AT(member) offsetof(struct job_ddp, member)
const struct dt_field job_ddp_fields[] = {
    {"bucket_cap_mb", "25", "MiB of gradients per all-reduce of ddp", AT(bucket_cap_mb), &megabytes},
    {"first_bucket_mb", "1", "the same of the first one, which is on its way first", AT(first_bucket_mb), &megabytes},
    {"comm_hook", "null",
     "how gradients are averaged over ranks; null: all_reduce. fp16_compress, bf16_compress: in 16 bits; power_sgd: "
     "matrices as products of two small ones; post_local_sgd: inside a host, weights over all of them now and then",
     AT(comm_hook), &hook},
    {"comm_wrapper", "null", "fp16_compress, bf16_compress: what comm_hook sends is of 16 bits", AT(comm_wrapper),
     &wrapper},
    {"find_unused_parameters", "false", "as in DDP jobs; these models use all their parameters",
     AT(find_unused_parameters), &boolean},
    {"static_graph", "false", "as in DDP jobs; the order of use is known, and always the same", AT(static_graph),
     &boolean},
    {"gradient_as_bucket_view", "true", "as in DDP jobs; gradients always lie in their buckets",
     AT(gradient_as_bucket_view), &boolean},
    {0},
};
#undef AT
#define AT(member) offsetof(struct job_power_sgd, member)
const struct dt_field job_power_sgd_fields[] = {
    {"matrix_approximation_rank", "1", "columns of the two small matrices at most", AT(matrix_approximation_rank),
     &rank},
    {"start_powerSGD_iter", "1000", "so many steps are averaged in full first", AT(start_iter), &steps},
    {"min_compression_rate", "2", "a matrix is compressed that is at least so many times larger than the two",
     AT(min_compression_rate), &rate},
    {"use_error_feedback", "true", "what compression leaves out is added to the next step's gradient",
     AT(use_error_feedback), &boolean},
    {"warm_start", "true", "a step begins with the matrices of the step before; false: with random ones",
     AT(warm_start), &boolean},
    {"orthogonalization_epsilon", "0", "added to the norm of a column", AT(epsilon), &epsilon},
    {"random_seed", "0", "of the first random matrices", AT(random_seed), &seed},
    {0},
};
#undef AT
#define AT(member) offsetof(struct job_local_sgd, member)
const struct dt_field job_local_sgd_fields[] = {
    {"warmup_steps", "0", "so many steps average gradients over all ranks first", AT(warmup_steps), &steps},
    {"period", "8", "steps between averages of the weights", AT(period), &interval},
    {"group_size", "0", "post_local_sgd: ranks that average gradients in each step; 0: those of a host", AT(group_size),
     &group},
    {0},
};
#undef AT

static const char *plain_word(const char *word)
{
    for (size_t i = 0; word != NULL && i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(word, words[i].word) == 0) {
            return words[i].plain;
        }
    }
    return word;
}

static void check_power(struct job *job, struct dt_config *c)
{
    const struct job_power_sgd *p = &job->power_sgd;
    if (p->start_iter <= 1 && (p->use_error_feedback || p->warm_start)) {
        dt_config_problem(c, "power_sgd.start_powerSGD_iter",
                          "is %lld: with use_error_feedback or warm_start the first gradients, which are the largest, "
                          "must be sent whole; write 2 or more",
                          (long long)p->start_iter);
    }
    if (p->use_error_feedback && job->precision.compute == DT_F16) {
        dt_config_problem(c, "power_sgd.use_error_feedback",
                          "errors of one loss scale would be added to gradients of another; write bf16-mixed as "
                          "training.precision, or set it to false");
    }
    if (p->use_error_feedback && job->training.loss_normalization == LOSS_GLOBAL_TOKENS) {
        dt_config_problem(c, "power_sgd.use_error_feedback",
                          "errors of one number of targets would be added to gradients of another; write local_mean as "
                          "training.loss_normalization, or set it to false");
    }
}

void job_check_hooks(struct job *job, struct dt_config *c)
{
    const char *strategy = job->training.strategy;
    bool local = strcasecmp(strategy, "local_sgd") == 0;
    job->ddp.comm_hook = plain_word(job->ddp.comm_hook);
    job->ddp.comm_wrapper = plain_word(job->ddp.comm_wrapper);
    const char *name = job->ddp.comm_hook, *wrap = job->ddp.comm_wrapper;
    const char *key = name != NULL ? "ddp.comm_hook" : wrap != NULL ? "ddp.comm_wrapper" : NULL;
    if (key != NULL && (local || job_strategy(strategy).slices != SLICES_NOTHING)) {
        dt_config_problem(c, key, "goes with ddp, zero0 and no_shard, and training.strategy is %s; remove %s", strategy,
                          local ? "it, or write ddp with post_local_sgd" : "it, or write ddp");
    } else if ((key != NULL || local) && job->training.accumulate_sync == SYNC_EVERY_MICRO_STEP) {
        dt_config_problem(c, key != NULL ? key : "training.strategy",
                          "works once a step, and training.accumulate_sync is every_micro_step; remove that");
    } else if (job->precision.compute == DT_F64 &&
               (wrap != NULL || (name != NULL && strstr(name, "_compress") != NULL))) {
        dt_config_problem(
            c, wrap != NULL ? "ddp.comm_wrapper" : key,
            "16 bits on the wire of a run in fp64 are not there yet; write 32-true as training.precision, "
            "or remove it");
    } else if (name != NULL && wrap != NULL && strstr(name, "_compress") != NULL && strcmp(name, wrap) != 0) {
        dt_config_problem(c, "ddp.comm_wrapper", "%s around %s rounds twice; remove one", wrap, name);
    }
    if (name != NULL && strstr(name, "power_sgd") != NULL) {
        check_power(job, c);
    }
    local = local || (name != NULL && strcmp(name, "post_local_sgd") == 0);
    if (local && job->optimizer.row != NULL && job->optimizer.row->reach != REACH_ELEMENT) {
        dt_config_problem(c, "optimizer.name",
                          "%s looks at tensors as a whole, and with local SGD each rank has its own; write adamw, sgd "
                          "or lion",
                          job->optimizer.name);
    }
}
