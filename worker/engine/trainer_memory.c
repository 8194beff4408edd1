/* Does the job fit, and if not, what is to change? On a CPU it is the host's memory that its
 * ranks share; on a GPU the GPU's, beside what CUDA's context and libraries take, which is
 * measured when everything but the plan is there, and beside what others hold. */
#include "worker/engine/trainer.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/proc.h"
#include "worker/engine/gpu_blame.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPARE_LEAST_BYTES 0x8p20
#define SPARE_SHARE (1.0 / 128)
#define CONTEXT_MOST_BYTES 0x2p30 /* more than CUDA and its libraries ever take for themselves */
/* for the memory of programs that have ended: the driver takes a while to give it back */
#define HELD_WAIT_S 50.0
#define HELD_ASK_S 0.25
#define HELD_SAY_S 10.0
/* The first logged steps touch what was not touched yet; later ones ask every so many steps. */
enum { SEEN_AT_FIRST = 4, SEEN_STEPS = 10 };

double trainer_host_bytes(const struct trainer *t, int ranks)
{
    double once = (double)t->memory.samples_bytes; /* rank 0 alone has them */
    return ((double)plan_total(&t->memory.plan) - once + t->memory.snapshot_bytes) * ranks + once;
}

/* Bytes that the plans of these ranks allocate on the device, or in the host's memory. */
static double needed(const struct trainer *t, bool on_device, int ranks)
{
    const struct plan *p = &t->memory.plan;
    return on_device ? ((double)p->size_bytes[PLAN_LOCAL] + (double)p->size_bytes[PLAN_PEERS]) * ranks
                     : trainer_host_bytes(t, ranks);
}

/* ---- the level of activation_checkpointing ---- */

/* A level is chosen below this share of a rank's GPU, less what CUDA and its libraries usually take. The
 * size of the GPU counts and not what is free of it: so a run that starts again has the same level. */
#define LEVEL_SHARE 0.9
#define LEVEL_LIBRARIES_BYTES 0x2p28

/* A pointer into the list of all: the name ends at '|' or the end. */
static const char *level_name(enum recompute level)
{
    const char *name = JOB_RECOMPUTE_LEVELS;
    for (int i = 0; i < (int)level; i++) {
        name += strcspn(name, "|") + 1;
    }
    return name;
}

const char *trainer_level_name(const struct trainer *t, char name[16])
{
    const char *all = level_name(t->chain.spec.recompute);
    (void)snprintf(name, 16, "%.*s", (int)strcspn(all, "|"), all);
    return name;
}

double trainer_device_bytes(const struct trainer *t)
{
    return needed(t, true, 1);
}

static double level_room(const struct trainer *t)
{
    return fmax(0, LEVEL_SHARE * t->memory.device_bytes - LEVEL_LIBRARIES_BYTES);
}

bool trainer_level_fits(const struct trainer *t)
{
    return trainer_device_bytes(t) < level_room(t);
}

void trainer_level_words(const struct trainer *t, struct dt_text *out)
{
    char name[16], bytes[32];
    dt_text_printf(out, "activation_checkpointing: level %s: the plan takes %s", trainer_level_name(t, name),
                   dt_text_bytes(trainer_device_bytes(t), bytes, sizeof bytes));
    if (t->memory.above_bytes > 0) {
        const char *above = level_name(t->chain.spec.recompute - 1);
        dt_text_printf(out, ", at level %.*s %s", (int)strcspn(above, "|"), above,
                       dt_text_bytes(t->memory.above_bytes, bytes, sizeof bytes));
    }
    if (isfinite(t->memory.device_bytes)) {
        dt_text_printf(out, ", and levels may take %s", dt_text_bytes(level_room(t), bytes, sizeof bytes));
        dt_text_printf(out, " of a rank's %s of the GPU", dt_text_bytes(t->memory.device_bytes, bytes, sizeof bytes));
    } else {
        dt_text_puts(out, ", and the GPU's memory is not known");
    }
}

/* ---- what to change when it does not fit ---- */

/* CHANGE_MOMENTS changes what a run computes, and CHANGE_OFFLOAD moves all state in each step, so they are no part of
 * CHANGE_ALL: they are proposed where these do not help. */
enum change {
    CHANGE_BATCH = 1,
    CHANGE_RECOMPUTE = 2,
    CHANGE_SHARD = 4,
    CHANGE_ALL = 7,
    CHANGE_MOMENTS = 8,
    CHANGE_OFFLOAD = 16
};

/* The least that is computed again beyond what the job does, in all layers; beyond
 * RECOMPUTE_BLOCK: it does all. */
static enum recompute next_level(const struct trainer *t)
{
    const struct model_spec *spec = &t->chain.spec;
    return spec->recompute_every > 1 && spec->recompute > RECOMPUTE_CHEAP ? spec->recompute : spec->recompute + 1;
}

static void put_level(const struct job_recompute *r, enum recompute level, struct dt_text *out)
{
    const char *comma = out->size > 0 ? ", " : "", *name = level_name(level);
    if (!r->enabled) {
        dt_text_printf(out, "%sactivation_checkpointing.enabled=true", comma);
        comma = ", ";
    }
    if ((int)level != r->level) {
        dt_text_printf(out, "%sactivation_checkpointing.level=%.*s", comma, (int)strcspn(name, "|"), name);
        comma = ", ";
    }
    if (r->every_n_layers > 1) {
        dt_text_printf(out, "%sactivation_checkpointing.checkpoint_every_n_layers=1", comma);
    }
}

/* Bytes of `holders` of the ranks with some changes, on `size` ranks; infinite when the job cannot be so.
 * Batches become `divisor` times smaller, and micro-steps as many times more; `level` is
 * computed again. `out`: the changes as they are written. */
static double changed_bytes(const struct trainer *t, bool on_device, int changes, int64_t divisor, enum recompute level,
                            int size, int local_size, int holders, struct dt_text *out)
{
    struct job job = *t->job;
    struct trainer other;
    dt_text_reset(out);
    if (changes & CHANGE_SHARD) {
        job.training.strategy = "full_shard";
        dt_text_puts(out, "training.strategy=full_shard");
    }
    if (changes & CHANGE_RECOMPUTE) {
        put_level(&t->job->recompute, level, out);
        job.recompute = (struct job_recompute){.enabled = true, .every_n_layers = 1, .level = level};
    }
    if (changes & CHANGE_BATCH) {
        job.training.gradient_accumulation_steps *= divisor;
        job.training.batch_size_per_gpu /= divisor;
        dt_text_printf(out, "%straining.batch_size_per_gpu=%lld, training.gradient_accumulation_steps=%lld",
                       out->size > 0 ? ", " : "", (long long)job.training.batch_size_per_gpu,
                       (long long)job.training.gradient_accumulation_steps);
    }
    if (changes & CHANGE_MOMENTS) {
        job.precision.states = DT_BF16;
        dt_text_printf(out, "%straining.optimizer_state_dtype=bf16", out->size > 0 ? ", " : "");
    }
    if (changes & CHANGE_OFFLOAD) {
        job.offload.optimizer = job.offload.parameters = OFFLOAD_CPU;
        dt_text_printf(out, "%soffload.optimizer=cpu, offload.parameters=cpu", out->size > 0 ? ", " : "");
    }
    struct dt_error err;
    double bytes = trainer_prepare(&other, &job, 0, size, local_size, t->strategy.precision.masters,
                                   t->memory.device_bytes, &err) == 0
                       ? needed(&other, on_device, holders) + (on_device ? 0 : (double)t->memory.samples_bytes)
                       : INFINITY;
    trainer_close(&other);
    return bytes;
}

/* The same with the largest batch and the least recomputing that make all `holders` of them fit
 * into `have`; more than `have` when nothing does. */
static double fitting_bytes(const struct trainer *t, bool on_device, int changes, int local_size, int holders,
                            double have, struct dt_text *out)
{
    int64_t batch = t->job->training.batch_size_per_gpu, last = changes & CHANGE_BATCH ? batch : 1;
    double need = INFINITY;
    for (int64_t d = changes & CHANGE_BATCH ? 2 : 1; d <= last; d++) {
        enum recompute level = changes & CHANGE_RECOMPUTE ? next_level(t) : RECOMPUTE_BLOCK;
        for (; batch % d == 0 && level <= RECOMPUTE_BLOCK; level++) {
            need = changed_bytes(t, on_device, changes, d, level, t->size, local_size, holders, out);
            if (need <= have) {
                return need;
            }
        }
    }
    return need;
}

/* Adds the fewest of the `open` changes with which the job fits a GPU if the host's memory has the state. False: none
 * suffices. */
static bool add_offload(const struct trainer *t, int open, int local_size, int holders, double have,
                        struct dt_text *out)
{
    static const int more[] = {0, CHANGE_RECOMPUTE, CHANGE_BATCH, CHANGE_RECOMPUTE | CHANGE_BATCH};
    int slices = t->strategy.weights == &weights_whole ? CHANGE_SHARD : 0;
    char bytes[32];
    struct dt_text what;
    dt_text_init(&what);
    bool fits = false;
    for (size_t i = 0; i < sizeof more / sizeof more[0] && !fits && t->job->offload.optimizer == OFFLOAD_NONE; i++) {
        double need = (more[i] & ~open) != 0
                          ? INFINITY
                          : fitting_bytes(t, true, more[i] | slices | CHANGE_OFFLOAD, local_size, holders, have, &what);
        fits = need <= have;
        if (fits) {
            dt_text_printf(out, "fits with %s (%s, state in the host's memory); or ", dt_text_str(&what),
                           dt_text_bytes(need, bytes, sizeof bytes));
        }
    }
    dt_text_clear(&what);
    return fits;
}

/* holders: ranks that share what is to hold them, `have` bytes. The fewest changes that make the
 * job fit, each with what it then needs; otherwise how far all of them together get, and on how
 * many hosts that would fit. */
static void add_advice(const struct trainer *t, bool on_device, int local_size, int holders, double have,
                       struct dt_text *out)
{
    const struct job *job = t->job;
    int open = 0, found = 0;
    char bytes[32];
    struct dt_text what;
    dt_text_init(&what);
    open |= job->training.batch_size_per_gpu > 1 ? CHANGE_BATCH : 0;
    open |= next_level(t) <= RECOMPUTE_BLOCK ? CHANGE_RECOMPUTE : 0;
    open |= t->size > 1 && (t->strategy.weights == &weights_whole || t->shards < t->size) ? CHANGE_SHARD : 0;
    for (int count = 1; count <= 3 && found == 0; count++) {
        for (int changes = 1; changes <= CHANGE_ALL; changes++) {
            if (__builtin_popcount((unsigned)changes) != count || (changes & ~open) != 0) {
                continue;
            }
            double need = fitting_bytes(t, on_device, changes, local_size, holders, have, &what);
            if (need <= have) {
                dt_text_printf(out, "%s%s (%s)", found++ ? " or " : "fits with ", dt_text_str(&what),
                               dt_text_bytes(need, bytes, sizeof bytes));
            }
        }
    }
    if (found == 0) {
        bool offloads = on_device && add_offload(t, open, local_size, holders, have, out);
        double need = open ? changed_bytes(t, on_device, open, job->training.batch_size_per_gpu, RECOMPUTE_BLOCK,
                                           t->size, local_size, holders, &what)
                           : INFINITY;
        if (isfinite(need) && !offloads) {
            dt_text_printf(out, "even with %s it is %s; ", dt_text_str(&what),
                           dt_text_bytes(need, bytes, sizeof bytes));
        }
        if (t->strategy.precision.states == t->strategy.precision.masters) {
            need = fitting_bytes(t, on_device, open | CHANGE_MOMENTS, local_size, holders, have, &what);
            if (need <= have) {
                dt_text_printf(out, "a new run fits with %s (%s); or ", dt_text_str(&what),
                               dt_text_bytes(need, bytes, sizeof bytes));
            }
        }
        dt_text_printf(out, "use a smaller model (%s", job->model.ops->smaller);
        for (int hosts = 2; hosts <= 1024; hosts *= 2) {
            if (changed_bytes(t, on_device, CHANGE_SHARD, 1, RECOMPUTE_BLOCK, hosts * local_size, local_size, holders,
                              &what) <= have) {
                dt_text_printf(out, ", or %d hosts like this one and %s", hosts, dt_text_str(&what));
                break;
            }
        }
    }
    dt_text_clear(&what);
}

/* "weights 3.1 GiB, optimizer 6.2 GiB": what matters of `holders` ranks. */
static void add_parts(const struct trainer *t, bool on_device, int holders, struct dt_text *out)
{
    char part[32];
    double need = needed(t, on_device, holders);
    for (int i = 0; i < PLAN_PURPOSE_COUNT; i++) {
        double once = i == PLAN_STAGING ? (double)t->memory.samples_bytes : 0,
               bytes = ((double)t->memory.plan.bytes[i] - once) * holders + once;
        if (bytes > need / 20 && !(on_device && i == PLAN_STAGING)) {
            dt_text_printf(out, "%s%s %s", out->size > 0 ? ", " : "", plan_purpose_name((enum plan_purpose)i),
                           dt_text_bytes(bytes, part, sizeof part));
        }
    }
}

static int does_not_fit(const struct trainer *t, bool on_device, int local_size, int holders, double have,
                        const char *what, struct dt_error *err)
{
    char need_text[32], have_text[32], who[64];
    struct dt_text parts, advice;
    dt_text_init(&parts);
    dt_text_init(&advice);
    add_parts(t, on_device, holders, &parts);
    add_advice(t, on_device, local_size, holders, have, &advice);
    (void)snprintf(who, sizeof who, "%d rank%s on this %s %s", holders, holders == 1 ? "" : "s",
                   on_device ? "GPU" : "host", holders == 1 ? "needs" : "need");
    (void)dt_fail(err, DT_NO_MEMORY, "plan: %s %s (%s), %s is %s; %s", who,
                  dt_text_bytes(needed(t, on_device, holders), need_text, sizeof need_text), dt_text_str(&parts), what,
                  dt_text_bytes(have > 0 ? have : 0, have_text, sizeof have_text), dt_text_str(&advice));
    dt_text_clear(&parts);
    dt_text_clear(&advice);
    return -1;
}

int trainer_check_memory(const struct trainer *t, struct dt_device *device, int local_size, struct dt_error *err)
{
    char what[64];
    if (residence_check(&t->memory.plan, &t->job->offload, local_size, t->chain.spec.own_memory, err) != 0) {
        return -1;
    }
    if (device != NULL && !device->host_memory) { /* trainer_open does, when the device's
                                                   * libraries have taken theirs */
        return 0;
    }
    double have = plan_available(local_size, what, sizeof what);
    return needed(t, false, local_size) <= have ? 0 : does_not_fit(t, false, local_size, local_size, have, what, err);
}

int trainer_check_total(const struct trainer *t, double total_bytes, int local_size, struct dt_error *err)
{
    bool fits = total_bytes <= 0 || needed(t, true, 1) <= total_bytes;
    return fits ? 0 : does_not_fit(t, true, local_size, 1, total_bytes, "memory of the GPU", err);
}

/* ---- on a device that is open ---- */

/* Of each rank, for what CUDA and its libraries take when a kernel or a collective first runs,
 * after this check: its code, memory for its threads. NCCL's buffers are there already
 * (strategy_connect). */
static double spare_bytes(double total_bytes)
{
    return fmax(SPARE_LEAST_BYTES, total_bytes * SPARE_SHARE);
}

/* What other programs hold of it, as far as the driver tells. */
static double others_bytes(const struct world *w)
{
    struct gpu_sample s;
    return gpu_watch_sample(w->gpu, &s) && s.others_bytes > 0 ? s.others_bytes : 0;
}

/* Waits while memory is held by nobody who is known, which the driver gives back when it gets to
 * it. False: it does not. */
static bool wait_for_memory(const struct world *w, const char *name, double need)
{
    size_t free_bytes = 0, total_bytes = 0;
    double begin_s = dt_now_s(), said_s = begin_s, held = 0;
    char bytes[32];
    while (dt_device_memory(w->device, &free_bytes, &total_bytes) && (double)free_bytes < need) {
        double now_s = dt_now_s();
        held = need - (double)free_bytes;
        if (now_s - begin_s > HELD_WAIT_S || atomic_load(&w->page->order) != DT_ORDER_NONE) {
            return false;
        }
        if (now_s - said_s >= HELD_SAY_S) {
            said_s = now_s;
            dt_log(DT_LOG_WARN, "memory", "%s: waiting for %s that an ended program held, %.0f s left", name,
                   dt_text_bytes(held, bytes, sizeof bytes), HELD_WAIT_S - (now_s - begin_s));
        }
        dt_page_pulse(w->page);
        dt_sleep_s(HELD_ASK_S);
    }
    return true;
}

/* Memory of this process that is resident now, read without an allocation. Ranks of a host read each other's
 * gradients where they lie: a page that several processes have counts in equal parts. That takes the kernel
 * 20 ms per GiB, so a rank alone does without. */
static double resident_bytes(const struct world *w)
{
    struct dt_proc_look look;
    char text[512] = "";
    if (w->local_size > 1) {
        dt_proc_read("/proc/self/smaps_rollup", text, sizeof text);
    }
    const char *parts = strstr(text, "\nPss:");
    return parts != NULL ? 1024 * strtod(parts + 5, NULL) : dt_proc_look(getpid(), &look) ? look.resident_bytes : 0;
}

int trainer_check_device(struct trainer *t, struct world *w, struct dt_error *err)
{
    size_t free_bytes, total_bytes;
    struct dt_device_place place = {.name = "the device"};
    if (w->device->host_memory) {
        t->memory.context_bytes = resident_bytes(w);
    }
    if (w->device->host_memory || !dt_device_memory(w->device, &free_bytes, &total_bytes)) {
        return 0;
    }
    (void)dt_device_place(w->device->ops->name, w->device->options.index, &place);
    int sharers = w->gpus.ranks;
    double in_use = (double)total_bytes - (double)free_bytes, others = others_bytes(w);
    t->memory.context_bytes = sharers > 1 ? 0 : fmax(0, in_use - others);
    double connected = fmin(t->memory.connected_bytes, t->memory.context_bytes);
    /* the rest is others', though nobody told us so */
    double own = connected + fmin(t->memory.context_bytes - connected, CONTEXT_MOST_BYTES);
    enum graphs_wish wish = t->job->training.cuda_graphs;
    double graphs = wish == GRAPHS_ON || wish == GRAPHS_LAYERS ? trainer_graph_bytes(t, w->device) : 0;
    double spare = spare_bytes((double)total_bytes);
    double need = needed(t, true, 1) + graphs + spare, room = (double)total_bytes - own - (graphs + spare) * sharers;
    if (needed(t, true, sharers) > room) {
        return does_not_fit(t, true, w->local_size, sharers, room, "memory of the GPU", err);
    }
    if (need <= (double)free_bytes) {
        return 0;
    }
    char need_text[32], free_text[32];
    (void)dt_fail(err, DT_IO, "memory: %s: the plan needs %s, free are %s, the rest is held by others", place.name,
                  dt_text_bytes(need, need_text, sizeof need_text),
                  dt_text_bytes((double)free_bytes, free_text, sizeof free_text));
    size_t size = strlen(err->text);
    gpu_blame(place.bus, err);
    if (err->text[size] != '\0' || !wait_for_memory(w, place.name, need)) {
        return -1;
    }
    return 0;
}

double trainer_memory(const struct trainer *t)
{
    size_t free_bytes, total_bytes;
    struct dt_device *device = t->world->device;
    if (device->host_memory || !dt_device_memory(device, &free_bytes, &total_bytes)) {
        return resident_bytes(t->world);
    }
    return fmax(0, (double)total_bytes - (double)free_bytes - others_bytes(t->world));
}

double trainer_memory_now(struct trainer *t)
{
    struct trainer_memory *m = &t->memory;
    if (m->seen_times < SEEN_AT_FIRST || t->run.step - m->seen_step >= SEEN_STEPS) {
        m->seen_bytes = trainer_memory(t);
        m->seen_step = t->run.step;
        m->seen_times += m->seen_times < SEEN_AT_FIRST;
    }
    return m->seen_bytes;
}

double trainer_planned_bytes(const struct trainer *t)
{
    bool on_device = !t->world->device->host_memory;
    return needed(t, on_device, 1) + t->memory.context_bytes;
}
