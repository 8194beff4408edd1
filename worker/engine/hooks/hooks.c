/* The table of hooks, and those that are a collective and a scale. */
#include "worker/engine/hooks/hooks.h"

#include "worker/engine/strategy.h"

#include <string.h>
#include <strings.h>

void hook_sum(struct strategy *s, int bucket, void *x, int64_t count)
{
    strategy_start(s, s->buckets[bucket].first, s->world->comm, DT_ALL_REDUCE, s->precision.wire, x, x, count,
                   "reduce gradients");
}

/* Divided before the sum, in the type that travels, so that F16 has room for it. */
static void average(struct strategy *s, int bucket, void *x, int64_t count)
{
    s->world->device->kernels->scale(
        s->world->communication,
        &(struct dt_scale_args){.x = x, .count = count, .factor = 1.0 / s->size, .type = s->precision.wire});
    hook_sum(s, bucket, x, count);
}

static void sum_in_group(struct strategy *s, int bucket, void *x, int64_t count)
{
    if (!s->hook.apart) {
        hook_sum(s, bucket, x, count);
    } else if (s->shards > 1) {
        strategy_start(s, s->buckets[bucket].first, s->world->shard, DT_ALL_REDUCE, s->precision.wire, x, x, count,
                       "reduce gradients in a group");
    }
}

static void sum_at_first(struct strategy *s, int bucket, void *x, int64_t count)
{
    if (!s->hook.apart) {
        hook_sum(s, bucket, x, count);
    }
}

static const struct hook_row rows[] = {
    {"allreduce", DT_F32, false, false, NULL, NULL, hook_sum, "one all_reduce of each bucket"},
    {"fp16_compress", DT_F16, true, false, NULL, NULL, average, "the same in fp16, divided before the sum"},
    {"bf16_compress", DT_BF16, true, false, NULL, NULL, average, "the same in bf16"},
    {"power_sgd", DT_F32, false, false, power_sgd_plan, power_sgd_open, power_sgd_exchange,
     "matrices as products of two small ones, with the errors added to the next step"},
    {"batched_power_sgd", DT_F32, false, false, power_sgd_plan, power_sgd_open, power_sgd_exchange,
     "the same of each bucket as one square matrix"},
    {"post_local_sgd", DT_F32, false, true, NULL, NULL, sum_in_group,
     "gradients are averaged inside hosts, weights over all ranks every period steps"},
    {"local_sgd", DT_F32, false, true, NULL, NULL, sum_at_first, "no gradient travels; the strategy of that name"},
};

static const struct hook_row *find(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcasecmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return &rows[0];
}

const struct hook_row *hook_choose(const struct job *job, const char *row_hook, struct precision *p)
{
    const char *name = row_hook != NULL ? row_hook : job->ddp.comm_hook, *wrap = job->ddp.comm_wrapper;
    const struct hook_row *row = find(name != NULL ? name : "allreduce");
    if (wrap != NULL && row == &rows[0]) {
        row = find(wrap);
    }
    if (row->low != DT_F32 || wrap != NULL) {
        p->wire = row->low != DT_F32 ? row->low : find(wrap)->low;
    }
    return row;
}

bool hook_has_groups(const struct job *job)
{
    return job->ddp.comm_hook != NULL && strcasecmp(job->ddp.comm_hook, "post_local_sgd") == 0;
}

int hook_check_gpu(const struct job *job, struct dt_error *err)
{
    const char *hook = job->ddp.comm_hook;
    if (hook != NULL && strstr(hook, "power_sgd") != NULL) {
        return dt_fail(err, DT_INVALID,
                       "ddp.comm_hook: %s is computed on a CPU alone so far; on a GPU write bf16_compress or "
                       "fp16_compress",
                       hook);
    }
    return 0;
}

int64_t hook_usual_step(const struct strategy *s, int64_t *rare)
{
    const struct hook *h = &s->hook;
    *rare = h->row != NULL && h->row->local ? h->job->local_sgd.warmup_steps
            : h->power != NULL              ? h->job->power_sgd.start_iter
                                            : 0;
    return h->row != NULL && h->row->local && h->job->local_sgd.period > 1 ? *rare + 1 : *rare;
}

void hook_begin_step(struct strategy *s, int64_t step, double share)
{
    struct hook *h = &s->hook;
    h->share = share;
    h->step = step;
    h->apart = h->row != NULL && h->row->local && step >= h->job->local_sgd.warmup_steps;
    int together = !h->apart ? s->size : hook_has_groups(h->job) ? s->shards : 1;
    s->gradient_share = h->row != NULL && h->row->means ? s->size : (double)s->size / together;
    h->apart = h->apart && together < s->size;
}
