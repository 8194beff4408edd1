#include "cmd/train/estimate.h"

#include "base/text.h"
#include "worker/engine/simulation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LOCAL_DEFAULT = 8, LINES_MOST = 64 };

/* One strategy on these GPUs. */
struct line {
    char name[64]; /* as it was asked for or registered, where that says more than the row's */
    const struct strategy_row *row;
    struct simulation of;
    double device_bytes, host_bytes, tokens_per_s, mfu; /* of a GPU; and what offload puts into its host's memory */
    double rest_s;                                      /* of a step, if files took no time */
    char level[16];
    int64_t messages;
    bool fits;
    bool averages; /* weights instead of gradients: it trains something else than the others */
};

struct estimate {
    const struct train_estimate *options;
    struct dt_gpu_sheet gpu;
    const struct job *job;
    int local_size, count;
    bool averages;           /* the job's own strategy averages weights */
    double disk_bytes_per_s; /* of a host; 0: unknown. Known once a line has files */
    struct line lines[LINES_MOST];
    int64_t samples, needed;   /* that data.train has, and that a step takes */
    struct dt_error too_large; /* of the strategy that takes least, if none fits */
    double least_bytes;
};

int train_estimate_local(const struct train_estimate *o)
{
    int local = o->gpus_per_node > 0 ? o->gpus_per_node : LOCAL_DEFAULT;
    return local < o->gpus ? local : o->gpus;
}

/* The rate of files, from the first line on that has some. */
static void know_disks(struct estimate *e, const struct trainer *t)
{
    const char *engine;
    if (t->memory.plan.file_bytes > 0 && e->disk_bytes_per_s <= 0) {
        e->disk_bytes_per_s = e->options->disk_bytes_per_s > 0
                                  ? (double)e->options->disk_bytes_per_s
                                  : residence_rate(&t->memory.plan, &t->job->offload, &engine);
        e->gpu.disk_bytes_per_s = e->disk_bytes_per_s / e->local_size;
    }
}

/* The same step where files take no time. */
static int simulate_rest(struct estimate *e, const struct job *job, double *step_s, struct dt_error *err)
{
    struct dt_gpu_sheet gpu = e->gpu;
    struct trainer t;
    struct simulation of;
    gpu.disk_bytes_per_s = 0;
    if (trainer_prepare(&t, job, 0, e->options->gpus, e->local_size, DT_F32, gpu.memory_bytes, err) != 0 ||
        trainer_simulate(&t, &gpu, e->local_size, &of, err) != 0) {
        return -1;
    }
    *step_s = of.step_s;
    return 0;
}

/* Fills in the line of a job with its row and name. -1: this strategy cannot run the job so, as err says. */
static int measure(struct estimate *e, const struct job *job, struct line *x, struct dt_error *err)
{
    struct trainer t;
    struct dt_error why;
    if (trainer_prepare(&t, job, 0, e->options->gpus, e->local_size, DT_F32, e->gpu.memory_bytes, err) != 0) {
        return -1;
    }
    x->fits = true;
    x->averages = t.strategy.hook.row != NULL && t.strategy.hook.row->local;
    x->device_bytes = trainer_device_bytes(&t);
    x->host_bytes = (double)t.memory.plan.bytes[PLAN_HOST];
    (void)trainer_level_name(&t, x->level);
    if (trainer_check_total(&t, e->gpu.memory_bytes, e->local_size, &why) != 0) {
        x->fits = false;
        if (e->least_bytes <= 0 || x->device_bytes < e->least_bytes) {
            e->least_bytes = x->device_bytes;
            e->too_large = why;
        }
    }
    e->samples = t.feeds.train.sample_count;
    e->needed = job->training.batch_size_per_gpu * e->options->gpus;
    double positions = (double)(job->training.batch_size_per_gpu * t.micro_steps * t.feeds.train.sequence_length);
    double flops = positions * job->model.ops->flops(&t.chain);
    double peak = t.strategy.precision.compute == DT_F32 ? e->gpu.fp32_flops : e->gpu.bf16_flops;
    know_disks(e, &t);
    if (trainer_simulate(&t, &e->gpu, e->local_size, &x->of, err) != 0 ||
        (x->of.moved_bytes > 0 && simulate_rest(e, job, &x->rest_s, err) != 0)) {
        return -1;
    }
    for (int k = 0; k < DT_COLL_COUNT; k++) {
        x->messages += x->of.messages[k];
    }
    x->tokens_per_s = positions * e->options->gpus / x->of.step_s;
    x->mfu = flops / x->of.step_s / peak;
    return 0;
}

/* Adds a line for one of our strategies. -1 as of measure. */
static int add_line(struct estimate *e, const char *name, struct dt_error *err)
{
    struct job job = *e->job;
    struct line x = {.row = strategy_find(name, e->options->gpus, err)};
    job.elsewhere = true;
    if (x.row == NULL || job_take_strategy(&job, name, err) != 0) {
        return -1;
    }
    bool says_more = job.offload.optimizer != e->job->offload.optimizer;
    (void)snprintf(x.name, sizeof x.name, "%s", says_more ? name : x.row->name);
    if (measure(e, &job, &x, err) != 0) {
        return -1;
    }
    e->lines[e->count++] = x;
    return 0;
}

/* Is there a line of these numbers under another name? */
static bool planned_before(const struct estimate *e, const struct line *x)
{
    bool same = false;
    for (int i = 0; i < e->count; i++) {
        const struct line *y = &e->lines[i];
        same |= (strategy_same(x->row, y->row) || e->options->gpus == 1) && x->device_bytes == y->device_bytes &&
                x->host_bytes == y->host_bytes && x->messages == y->messages && x->of.sent_bytes == y->of.sent_bytes &&
                x->of.step_s == y->of.step_s && x->tokens_per_s == y->tokens_per_s;
    }
    return same;
}

/* Adds a line for one that the job registers; once: not if another one plans the same. -1 as of measure. */
static int add_registered(struct estimate *e, const char *name, bool once, struct dt_error *err)
{
    struct job job;
    struct line x = {.row = NULL};
    if (job_open_registered(&job, e->job, e->options->arguments, name, err) != 0) {
        return -1;
    }
    job.elsewhere = true;
    x.row = strategy_find(job.training.strategy, e->options->gpus, err);
    (void)snprintf(x.name, sizeof x.name, "%s", name);
    int rc = x.row != NULL ? measure(e, &job, &x, err) : -1;
    job_close(&job);
    if (rc == 0 && !(once && planned_before(e, &x))) {
        e->lines[e->count++] = x;
    }
    return rc;
}

/* Does an earlier line do the same under another name? */
static bool done_before(const struct estimate *e, const struct strategy_row *row)
{
    for (int i = 0; i < e->count; i++) {
        if (strategy_same(e->lines[i].row, row)) {
            return true;
        }
    }
    return false;
}

/* Every strategy, or of one rank the first, as all are the same there, and those that the job registers; those that
 * these ranks or this job cannot have are left out. */
static int add_all(struct estimate *e, struct dt_error *err)
{
    const struct strategy_row *row;
    for (int i = 0; (row = strategy_at(i)) != NULL && e->count < (e->options->gpus > 1 ? LINES_MOST : 1); i++) {
        if (!done_before(e, row) && add_line(e, row->name, err) != 0 && err->status != DT_INVALID) {
            return -1;
        }
    }
    for (const char *const *name = e->job->registered; *name != NULL && e->count < LINES_MOST; name++) {
        if (add_registered(e, *name, true, err) != 0 && err->status != DT_INVALID) {
            return -1;
        }
    }
    return e->count > 0 ? 0 : -1;
}

static bool is_registered(const struct job *job, const char *name)
{
    const char *const *known = job->registered;
    while (*known != NULL && strcasecmp(*known, name) != 0) {
        known++;
    }
    return *known != NULL;
}

static int add_named(struct estimate *e, const char *names, struct dt_error *err)
{
    if (names[strspn(names, ",")] == 0) {
        return dt_fail(err, DT_INVALID, "--strategy %s: names no strategy; give all, or some with commas between",
                       names);
    }
    for (const char *at = names + strspn(names, ","); *at != 0 && e->count < LINES_MOST; at += strspn(at, ",")) {
        char name[64];
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
        if ((is_registered(e->job, name) ? add_registered(e, name, false, err) : add_line(e, name, err)) != 0) {
            return -1;
        }
        at += strcspn(at, ",");
    }
    return 0;
}

/* A line that may be the one to take: another one than the job's changes how, not what is computed. */
static bool may_take(const struct estimate *e, const struct line *x)
{
    return x->fits && x->averages <= e->averages;
}

/* The line with the least memory among those to take that are at most 1 % slower than the fastest of them;
 * null: there is none. */
static const struct line *best_of(const struct estimate *e)
{
    const struct line *best = NULL;
    double fastest = 0;
    for (int i = 0; i < e->count; i++) {
        fastest = may_take(e, &e->lines[i]) ? fmax(fastest, e->lines[i].tokens_per_s) : fastest;
    }
    for (int i = 0; i < e->count; i++) {
        const struct line *x = &e->lines[i];
        bool fast = may_take(e, x) && x->tokens_per_s >= 0.99 * fastest;
        best = fast && (best == NULL || x->device_bytes < best->device_bytes) ? x : best;
    }
    return best;
}

/* ---- words ---- */

static void print_json(const struct estimate *e)
{
    struct dt_text text;
    dt_text_init(&text);
    const struct line *best = best_of(e);
    dt_text_printf(&text,
                   "{\"gpu\": \"%s\", \"gpus\": %d, \"gpus_per_node\": %d, \"memory\": %.0f, \"best\": ", e->gpu.name,
                   e->options->gpus, e->local_size, e->gpu.memory_bytes);
    dt_text_printf(&text, best != NULL ? "\"%s\"" : "null", best != NULL ? best->name : "");
    dt_text_puts(&text, ", \"strategies\": [");
    for (int i = 0; i < e->count; i++) {
        const struct line *x = &e->lines[i];
        dt_text_printf(&text,
                       "%s{\"strategy\": \"%s\", \"activation_checkpointing\": \"%s\", \"bytes\": %.0f, "
                       "\"host_bytes\": %.0f, \"fits\": %s, "
                       "\"step_s\": %.6g, \"kernels_s\": %.6g, \"tokens_per_s\": %.6g, \"mfu\": %.4g, "
                       "\"sent_bytes\": %.0f, \"sent_to_other_hosts_bytes\": %.0f, \"messages\": {",
                       i > 0 ? ", " : "", x->name, x->level, x->device_bytes, x->host_bytes, x->fits ? "true" : "false",
                       x->of.step_s, x->of.kernels_s, x->tokens_per_s, x->mfu, x->of.sent_bytes, x->of.across_bytes);
        for (int k = 0, some = 0; k < DT_COLL_COUNT; k++) {
            if (x->of.messages[k] > 0) {
                dt_text_printf(&text, "%s\"%s\": {\"count\": %lld, \"bytes\": %lld}", some++ > 0 ? ", " : "",
                               dt_coll_name((enum dt_coll)k), (long long)x->of.messages[k], (long long)x->of.bytes[k]);
            }
        }
        dt_text_puts(&text, "}");
        if (x->of.moved_bytes > 0) {
            dt_text_printf(&text, ", \"files\": {\"moved_bytes\": %.0f, \"bytes_per_s\": %.0f, \"rest_s\": %.6g}",
                           x->of.moved_bytes, e->gpu.disk_bytes_per_s, x->rest_s);
        }
        dt_text_puts(&text, "}");
    }
    dt_text_puts(&text, "]}\n");
    fputs(dt_text_str(&text), stdout);
    dt_text_clear(&text);
}

/* At most 80 columns, but for long names. */
static void print_table(const struct estimate *e)
{
    char memory[32], link[32], network[32];
    (void)printf("%d x %s, %d on a host: %s of memory, %s/s between them\nand %s/s to other hosts for each GPU\n\n",
                 e->options->gpus, e->gpu.name, e->local_size,
                 dt_text_bytes(e->gpu.memory_bytes, memory, sizeof memory),
                 dt_text_bytes(e->gpu.link_bytes_per_s, link, sizeof link),
                 dt_text_bytes(e->gpu.network_bytes_per_s, network, sizeof network));
    int width = 18;
    for (int i = 0; i < e->count; i++) {
        int size = (int)strlen(e->lines[i].name);
        width = size > width ? size : width;
    }
    (void)printf("%-*s %-5s %8s %9s%9s %5s %7s %8s %s\n", width, "strategy", "level", "a GPU", "sends", "to hosts",
                 "times", "ms", "tokens/s", "MFU");
    for (int i = 0; i < e->count; i++) {
        const struct line *x = &e->lines[i];
        (void)printf("%-*s %-5s %8s%c%9s%9s %5lld %7.5g %8.3g %.2f\n", width, x->name, x->level,
                     dt_text_bytes(x->device_bytes, memory, sizeof memory), x->fits ? ' ' : '*',
                     dt_text_bytes(x->of.sent_bytes, link, sizeof link),
                     dt_text_bytes(x->of.across_bytes, network, sizeof network), (long long)x->messages,
                     x->of.step_s * 1e3, x->tokens_per_s, x->mfu);
    }
    for (int i = 0; i < e->count; i++) {
        const struct line *x = &e->lines[i];
        if (x->host_bytes > 0) {
            (void)printf("%-*s %s of the host's memory for each GPU\n", width, x->name,
                         dt_text_bytes(x->host_bytes, memory, sizeof memory));
        }
    }
}

/* The cost of offload to files, and whether the disks or all else bounds the step. */
static void print_files(const struct estimate *e)
{
    char bytes[32], rate[32];
    bool some = false;
    for (int i = 0; i < e->count; i++) {
        const struct line *x = &e->lines[i];
        double files_s = e->gpu.disk_bytes_per_s > 0 ? x->of.moved_bytes / e->gpu.disk_bytes_per_s : 0;
        if (x->of.moved_bytes <= 0) {
            continue;
        }
        (void)printf("%s%s: a GPU reads and writes %s of files in a step: ", some ? "" : "\n", x->name,
                     dt_text_bytes(x->of.moved_bytes, bytes, sizeof bytes));
        some = true;
        if (files_s > 0) {
            (void)printf("%.5g ms,\n    where all else takes %.5g ms: %s bound%s the step\n", files_s * 1e3,
                         x->rest_s * 1e3, files_s > x->rest_s ? "the disks" : "all else",
                         files_s > x->rest_s ? "" : "s");
        } else {
            (void)printf("at no\n    cost here; give --disk\n");
        }
    }
    if (some && e->disk_bytes_per_s > 0) {
        (void)printf("the disks of a host: %s/s, %s\n", dt_text_bytes(e->disk_bytes_per_s, rate, sizeof rate),
                     e->options->disk_bytes_per_s > 0 ? "as --disk says"
                                                      : "as a short test in offload.nvme_path gave here");
    }
}

static void print_advice(const struct estimate *e)
{
    const struct line *best = best_of(e);
    bool all_fit = true;
    const char *other = NULL;
    for (int i = 0; i < e->count; i++) {
        all_fit = all_fit && e->lines[i].fits;
        other = e->lines[i].averages > e->averages ? e->lines[i].name : other;
    }
    (void)fputs(all_fit ? "" : "* does not fit\n", stdout);
    if (e->samples < e->needed) {
        (void)printf("data.train has %lld samples here; a micro-step of all GPUs takes %lld\n", (long long)e->samples,
                     (long long)e->needed);
    }
    if (best == NULL || e->count == 1) {
        return;
    }
    (void)printf("\ntake %s: no other that fits is faster by more than 1 %%, and none\nas fast takes less memory\n",
                 best->name);
    if (other != NULL) {
        (void)printf("(%s averages weights, not gradients: its results are others)\n", other);
    }
}

int train_estimate_gpu(const struct train_estimate *o, struct dt_gpu_sheet *out, struct dt_error *err)
{
    struct dt_text known;
    int local = train_estimate_local(o);
    dt_text_init(&known);
    bool is_known = dt_gpu_sheet(o->gpu != NULL ? o->gpu : "H100", out, &known);
    int rc = is_known ? 0 : dt_fail(err, DT_INVALID, "--gpu %s: there are %s", o->gpu, dt_text_str(&known));
    dt_text_clear(&known);
    if (rc == 0 && o->gpus % local != 0) {
        rc = dt_fail(err, DT_INVALID, "--gpus %d: not a multiple of --gpus_per_node %d; nearest is %d", o->gpus, local,
                     (o->gpus + local / 2) / local * local);
    }
    return rc;
}

int train_estimate(const struct train_estimate *o, const struct job *job, bool json, struct dt_error *err)
{
    struct estimate e = {.options = o, .job = job, .local_size = train_estimate_local(o)};
    if (train_estimate_gpu(o, &e.gpu, err) != 0) {
        return -1;
    }
    const struct strategy_row *own = strategy_find(job->training.strategy, o->gpus, NULL);
    struct precision p = {0};
    e.averages = own != NULL && hook_choose(job, own->hook, &p)->local;
    const char *names = o->strategies != NULL ? o->strategies : job->training.strategy;
    if ((strcmp(names, "all") == 0 ? add_all(&e, err) : add_named(&e, names, err)) != 0) {
        return -1;
    }
    if (json) {
        print_json(&e);
    } else {
        print_table(&e);
        print_files(&e);
        print_advice(&e);
    }
    bool fits = false;
    for (int i = 0; i < e.count; i++) {
        fits |= e.lines[i].fits;
    }
    if (!fits) {
        *err = e.too_large;
    }
    return fits ? 0 : -1;
}
