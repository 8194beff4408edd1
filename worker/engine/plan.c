/* Adds pieces up, allocates the blocks, and knows how much memory this host would still give.
 * What the pieces are for is known to those who add them: strategy, optimizer, step sums, trainer. */
#include "worker/engine/plan.h"

#include "base/cgroup.h"
#include "base/proc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { GAP_BYTES = 256, ALIGN_BYTES = 4096, SMALL_ALIGN_BYTES = 128, FINISH_S = 60 };

const char *plan_purpose_name(enum plan_purpose purpose)
{
    switch (purpose) {
    case PLAN_WEIGHTS:
        return "weights";
    case PLAN_GRADIENTS:
        return "gradients";
    case PLAN_OPTIMIZER:
        return "optimizer";
    case PLAN_ACTIVATIONS:
        return "activations";
    case PLAN_GATHER_SLOTS:
        return "gather_slots";
    case PLAN_GRADIENT_SLOTS:
        return "gradient_slots";
    case PLAN_COMMUNICATION:
        return "communication";
    case PLAN_BATCH:
        return "batch";
    case PLAN_SCRATCH:
        return "scratch";
    case PLAN_STAGING:
        return "staging";
    case PLAN_HOST:
        return "host";
    case PLAN_PURPOSE_COUNT:
        break;
    }
    return "unknown";
}

void plan_init(struct plan *p)
{
    memset(p, 0, sizeof *p);
}

int plan_add(struct plan *p, enum plan_purpose purpose, enum plan_memory memory, size_t size_bytes)
{
    if (p->piece_count == p->piece_capacity) {
        p->piece_capacity = p->piece_capacity ? 2 * p->piece_capacity : 64;
        p->pieces = dt_realloc(p->pieces, (size_t)p->piece_capacity * sizeof *p->pieces);
    }
    struct plan_piece *piece = &p->pieces[p->piece_count];
    *piece = (struct plan_piece){.memory = memory, .size_bytes = size_bytes, .offset = p->size_bytes[memory]};
    p->bytes[purpose] += size_bytes;
    if (size_bytes > 0) {
        size_t align = size_bytes >= ALIGN_BYTES ? ALIGN_BYTES : SMALL_ALIGN_BYTES;
        piece->offset = (p->size_bytes[memory] + align - 1) / align * align;
        p->size_bytes[memory] = piece->offset + size_bytes + GAP_BYTES;
    }
    return p->piece_count++;
}

int plan_open(struct plan *p, struct world *w, struct dt_error *err)
{
    p->device = w->device;
    if (p->size_bytes[PLAN_LOCAL] > 0 &&
        dt_device_alloc(w->device, DT_MEMORY_DEVICE, p->size_bytes[PLAN_LOCAL], &p->base[PLAN_LOCAL], err) != 0) {
        return dt_wrap(err, "memory of the plan (%zu bytes)", p->size_bytes[PLAN_LOCAL]);
    }
    if (p->size_bytes[PLAN_PINNED] > 0 &&
        dt_device_alloc(w->device, DT_MEMORY_PINNED, p->size_bytes[PLAN_PINNED], &p->base[PLAN_PINNED], err) != 0) {
        return dt_wrap(err, "pinned memory of the plan (%zu bytes)", p->size_bytes[PLAN_PINNED]);
    }
    if (p->size_bytes[PLAN_PEERS] > 0 &&
        dt_comm_alloc(w->comm, p->size_bytes[PLAN_PEERS], &p->base[PLAN_PEERS], err) != 0) {
        return dt_wrap(err, "memory of the plan that peers reach (%zu bytes)", p->size_bytes[PLAN_PEERS]);
    }
    for (int i = 0; i < p->piece_count; i++) {
        const struct plan_piece *piece = &p->pieces[i];
        if (piece->size_bytes > 0) {
            dt_guard(w->compute, (char *)p->base[piece->memory] + piece->offset + piece->size_bytes, GAP_BYTES);
        }
    }
    return dt_stream_finish(w->compute, FINISH_S, err); /* whoever clears the plan at once need
                                                         * not wait */
}

void *plan_at(const struct plan *p, int piece)
{
    const struct plan_piece *x = &p->pieces[piece];
    return x->size_bytes > 0 ? (char *)p->base[x->memory] + x->offset : NULL;
}

void plan_clear(struct plan *p)
{
    if (p->base[PLAN_LOCAL]) {
        dt_device_free(p->device, DT_MEMORY_DEVICE, p->base[PLAN_LOCAL], p->size_bytes[PLAN_LOCAL]);
    }
    if (p->base[PLAN_PINNED]) {
        dt_device_free(p->device, DT_MEMORY_PINNED, p->base[PLAN_PINNED], p->size_bytes[PLAN_PINNED]);
    }
    free(p->pieces);
    plan_init(p);
}

size_t plan_total(const struct plan *p)
{
    size_t total = 0;
    for (int i = 0; i < PLAN_PURPOSE_COUNT; i++) {
        total += p->bytes[i];
    }
    return total;
}

/* The least that is left in our control group and in those around it; infinite without a limit.
 * Pages of files count as used in a group, but the kernel takes the idle ones back. */
static double group_room(void)
{
    struct dt_cgroup folders[DT_CGROUP_MAX];
    double room = 1e300;
    int count = dt_cgroup_folders("memory", folders);
    for (int i = 0; i < count; i++) {
        const struct dt_cgroup *g = &folders[i];
        double limit = dt_cgroup_number(g, "memory.max", "memory.limit_in_bytes", "");
        double used = dt_cgroup_number(g, "memory.current", "memory.usage_in_bytes", "");
        if (limit >= 0 && used >= 0) {
            double idle = dt_cgroup_number(g, "memory.stat", "memory.stat",
                                           g->version_2 ? "inactive_file " : "total_inactive_file ");
            double left = limit - used + (idle > 0 ? idle : 0);
            room = left < room ? (left > 0 ? left : 0) : room;
        }
    }
    return room;
}

double plan_available(int local_ranks, char *what, size_t what_bytes)
{
    double least = dt_proc_number("/proc/meminfo", "MemAvailable:");
    snprintf(what, what_bytes, "available memory");
    if (least < 0) {
        least = 1e300;
    }
    double room = group_room();
    if (room < least) {
        least = room;
        snprintf(what, what_bytes, "memory left in the control group");
    }
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        double used = dt_proc_number("/proc/self/status", "VmSize:");
        double left = (double)limit.rlim_cur - (used > 0 ? used : 0);
        left = (left > 0 ? left : 0) * local_ranks;
        if (left < least) {
            least = left;
            snprintf(what, what_bytes, "limit of address space (ulimit -v)");
        }
    }
    return least;
}
