/* --numa_binding: finds a CPU mask for each worker once before the first round, so that a machine
 * where binding is impossible starts nothing. Without GPUs, and for bundled programs that use none,
 * workers are spread evenly over the NUMA nodes; torchrun refuses there. */
#include "base/log.h"
#include "launcher/output/console.h"
#include "launcher/workers/gpus.h"
#include "launcher/workers/numa.h"
#include "launcher/job/job.h"

#include <stdlib.h>
#include <string.h>

#define SYS "/sys"
#define DRIVER_S 60.0 /* without persistence mode each GPU takes a second or two to wake up */

/* The node of each GPU; nodes: (gpus->count). */
static int nodes_of_gpus(const struct gpus *gpus, int *nodes, struct dt_error *err)
{
    for (int i = 0; i < gpus->count; i++) {
        if (numa_node_of(SYS, gpus->address[i], &nodes[i], err) != 0) {
            return dt_wrap(err, "GPU %d", i);
        }
    }
    return 0;
}

/* Logs a line per worker, and counts how many workers here may run on a CPU of each worker's
 * mask. */
static void look_at_masks(struct job *job, const struct numa *n, const struct gpus *gpus, int first)
{
    for (int i = 0; i < job->o->nproc; i++) {
        struct job_binding *b = &job->bindings[i];
        struct dt_text text;
        struct cpus common;
        for (int k = 0; k < job->o->nproc; k++) {
            b->sharers += cpus_intersect(&common, &b->cpus, &job->bindings[k].cpus);
        }
        dt_text_init(&text);
        cpus_print(&b->cpus, &text);
        dt_log(DT_LOG_INFO, "numa", "local %d cpus %s node %d %s", job->o->local_first + i, dt_text_str(&text),
               n->nodes[first + i], gpus->count > 0 ? gpus->address[first + i] : "no GPU");
        dt_text_clear(&text);
    }
}

/* Finds the masks of our workers, whose devices are numbered from `first` on. */
static int fill_masks(struct job *job, const struct gpus *gpus, int *nodes, struct dt_error *err)
{
    const struct options *o = job->o;
    struct numa n = {.sys = SYS, .nodes = nodes, .device_count = gpus->count};
    bool own = gpus->count == o->nproc; /* a scheduler that starts an agent per worker may show
                                         * each of them its GPU alone */
    int first = gpus->count > 0 && own ? 0 : o->local_first;
    if (numa_mode_of(o->numa_binding, &n.mode) != 0 || cpus_allowed(&n.allowed, err) != 0) {
        return -1;
    }
    if (gpus->count == 0) {
        n.device_count = o->local_total > 0 ? o->local_total : o->nproc;
        if (numa_spread(SYS, &n.allowed, n.device_count, nodes, err) != 0) {
            return -1;
        }
    } else if (nodes_of_gpus(gpus, nodes, err) != 0) {
        return -1;
    }
    if (first + o->nproc > n.device_count) {
        return dt_fail(err, DT_INVALID,
                       "worker %d has no GPU to be near, %d %s there; lower --nproc_per_node, or set "
                       "CUDA_VISIBLE_DEVICES= if none is used",
                       n.device_count, n.device_count, n.device_count == 1 ? "is" : "are");
    }
    if (own && n.mode != NUMA_BY_NODE && n.mode != NUMA_BY_SOCKET && o->local_total > o->nproc && gpus->count > 0) {
        return dt_fail(err, DT_INVALID,
                       "%s: this launcher sees only its own worker's GPU, so it cannot share CPUs out; use node, or "
                       "one launcher per host",
                       o->numa_binding);
    }
    for (int i = 0; i < o->nproc; i++) {
        if (numa_mask(&n, first + i, &job->bindings[i].cpus, err) != 0) {
            return dt_wrap(err, "worker %d", o->local_first + i);
        }
    }
    look_at_masks(job, &n, gpus, first);
    return 0;
}

/* Ranks of `train` that share GPUs take them in turn, as it does itself. */
static void share(struct gpus *gpus, int workers)
{
    int here = gpus->count;
    for (; here > 0 && gpus->count < workers && gpus->count < GPUS_MAX; gpus->count++) {
        memcpy(gpus->address[gpus->count], gpus->address[gpus->count % here], sizeof gpus->address[0]);
    }
}

int job_numa_open(struct job *job)
{
    const struct options *o = job->o;
    struct dt_error err;
    int code = -1;
    if (o->numa_binding == NULL) {
        return -1;
    }
    struct gpus *gpus = dt_alloc(sizeof *gpus);
    int *nodes = dt_alloc((size_t)(OPTIONS_MAX_LOCAL + GPUS_MAX) * sizeof *nodes);
    job->bindings = dt_alloc((size_t)o->nproc * sizeof *job->bindings);
    err.text[0] = '\0';
    if (!o->bundled || job->on_gpus) {
        code = gpus_read(gpus, job->signals.fd, DRIVER_S / o->time_scale, &err);
    }
    if (job->on_gpus) {
        share(gpus, o->local_first + o->nproc);
    }
    if (gpus->trouble[0] != '\0') {
        console_say("dtrun: --numa_binding: no GPU can be used: %s; workers are spread over the NUMA nodes\n",
                    gpus->trouble);
    }
    if (code < 0 && fill_masks(job, gpus, nodes, &err) != 0) {
        code = DT_EXIT_USAGE;
    }
    if (code >= 0 && err.text[0] != '\0') {
        console_say("dtrun: --numa_binding: %s\n", err.text);
    }
    free(gpus);
    free(nodes);
    return code;
}
