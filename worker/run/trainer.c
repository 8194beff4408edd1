/* Training: the run. What a step does is in trainer_step.c, the function to read first. */
#include "worker/run/trainer.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define START_LIMIT_S 600.0
#define FOR_EVER_S 1e9
#define STEP_LIMIT_S 60.0
/* a lone rank looks at its clock itself and says where it is: the agent, who looks too, leaves
 * it the first word */
#define OWN_WORD_S 1.0

/* Tells the agent how long the pulse may stand still: training.step_timeout, otherwise by the
 * longest step so far. */
static void set_pulse_limit(struct trainer *t, double at_least_s)
{
    double limit_s = t->job->training.step_timeout_s;
    if (limit_s > 0) {
        limit_s += t->size == 1 ? OWN_WORD_S : 0;
    } else {
        limit_s = t->longest_step_s > 0 ? fmax(STEP_LIMIT_S, 5 * t->longest_step_s) : START_LIMIT_S;
    }
    limit_s = fmax(limit_s, at_least_s);
    atomic_store(&t->world->page->pulse_limit_ms, (uint32_t)fmin(limit_s * 1e3, 4e9));
    dt_page_pulse(t->world->page);
}

#define PEAK_SIDE 384
#define PEAK_MEASURE_S 0.01

/* FLOP/s of this rank's device in products of the weights' type, what "mfu" is a share of: as
 * its maker states them, otherwise, of a CPU, those of a square product, the best of a few ms.
 * NaN: not known. */
static double peak_of(struct trainer *t)
{
    struct world *w = t->world;
    enum dt_dtype type = t->chain.spec.type;
    double stated = dt_device_peak(w->device, type);
    if (stated > 0 || !w->device->host_memory) {
        return stated > 0 ? stated : NAN;
    }
    size_t bytes = (size_t)PEAK_SIDE * PEAK_SIDE * dt_dtype_size(type);
    char *x = NULL;
    struct dt_error err;
    if (type == DT_F64 || dt_device_alloc(w->device, DT_MEMORY_DEVICE, 3 * bytes, (void **)&x, &err) != 0) {
        return NAN;
    }
    struct dt_matmul_args product = {.c = x + 2 * bytes, .a = x, .b = x + bytes, .type = type, .c_type = type};
    product.m = product.n = product.k = PEAK_SIDE;
    double until_s = dt_now_s() + PEAK_MEASURE_S, best_s = INFINITY;
    for (int i = 0; i < 3 || dt_now_s() < until_s; i++) {
        double begin_s = dt_now_s();
        w->device->kernels->matmul(w->compute, &product);
        if (trainer_settle(t, "measuring", &err) != 0) {
            best_s = NAN;
            break;
        }
        best_s = fmin(best_s, dt_now_s() - begin_s);
    }
    dt_device_free(w->device, DT_MEMORY_DEVICE, x, 3 * bytes);
    return 2.0 * PEAK_SIDE * PEAK_SIDE * PEAK_SIDE / best_s;
}

static struct metrics_step describe(const struct trainer *t, const struct trainer_result *r)
{
    int64_t tokens = r->micro_steps * t->size * t->job->training.batch_size_per_gpu * t->train.sequence_length;
    return (struct metrics_step){
        .step = t->step,
        .total_steps = t->total_steps,
        .epoch = (double)t->epoch + (double)t->position / (double)t->train.sample_count,
        .tokens = t->tokens,
        .targets = r->valid_count,
        .blank_steps = t->blank_steps,
        .loss = r->loss,
        .grad_norm = r->grad_norm,
        .lr = r->lr,
        .step_s = r->step_s,
        .tokens_per_s = r->step_s > 0 ? (double)tokens / r->step_s : 0,
        .mfu = (double)tokens * t->job->model.ops->flops(&t->chain) / r->step_s / (t->peak_flops * t->size),
        .round = t->world->round,
    };
}

/* For the agent, which is asked for it while we compute. */
static void show(struct dt_page *page, const struct metrics_step *m)
{
    if (m->targets > 0) { /* otherwise the last ones stand */
        atomic_store(&page->loss, m->loss);
        atomic_store(&page->grad_norm, m->grad_norm);
    }
    atomic_store(&page->lr, m->lr);
    atomic_store(&page->tokens_per_s, m->tokens_per_s);
    atomic_store(&page->learned_step, m->step);
}

static bool due(int64_t step, int64_t interval)
{
    return interval > 0 && step % interval == 0;
}

#define HEARD_S 3.0 /* a rank that fails has ended by then */
#define SECOND_TRY_S 1.0
#define TOLD_S 60.0 /* all ranks learn at about the same time that the last save failed */

/* "reason; needs 1.2 GiB, 0.3 GiB free there" */
static void add_room(struct trainer *t, struct dt_error *err)
{
    char need[32], left[32] = "an unknown number of bytes";
    /* after the try was removed */
    double free_bytes = dt_file_free_bytes(t->job->checkpointing.checkpoint_dir);
    dt_text_bytes(trainer_checkpoint_bytes(t), need, sizeof need);
    if (free_bytes >= 0) {
        dt_text_bytes(free_bytes, left, sizeof left);
    }
    char words[128];
    (void)snprintf(words, sizeof words, "; needs %s, %s free there", need, left);
    trainer_add_words(err, words);
}

void trainer_say_cause(struct trainer *t, const struct dt_error *why)
{
    char words[DT_WORDS_BYTES];
    (world_tell_cause(t->world, why) ? metrics_log : metrics_say)(&t->metrics, "train: %s", dt_error_words(why, words));
    t->world->told = true;
}

/* Saves. What the disk refuses costs a warning, and training goes on to the next interval; the
 * last save has none after it, so it is tried twice, and then the run ends as one that fails the
 * same way again: the checkpoint before is where it continues. */
static int save(struct trainer *t, bool last, struct dt_error *err)
{
    dt_page_phase(t->world->page, DT_PHASE_SAVE);
    double limit_s = t->job->checkpointing.save_timeout_s;
    set_pulse_limit(t, limit_s > 0 ? fmax(START_LIMIT_S, limit_s) : FOR_EVER_S);
    int64_t before = t->saved_step;
    char cause[DT_WORDS_BYTES];
    int rc = trainer_save(t, err);
    if (rc != 0 && !t->lost && trainer_disk_refused(err) && last) {
        metrics_log(&t->metrics, "train: %s; trying once more", dt_error_words(err, cause));
        dt_sleep_s(SECOND_TRY_S);
        rc = trainer_save(t, err);
    }
    set_pulse_limit(t, 0);
    if (rc == 0 || t->lost || !trainer_disk_refused(err)) {
        return rc;
    }
    char fields[96];
    snprintf(fields, sizeof fields, "\"step\": %lld, \"round\": %d", (long long)t->step, t->world->round);
    metrics_event(&t->metrics, "save_failed", fields);
    if (err->status == DT_FULL) { /* in what else a disk refuses, its size plays no part */
        add_room(t, err);
    }
    if (!last) {
        metrics_say(&t->metrics, "train: warning: %s; training goes on, the next try is at the next interval",
                    dt_error_words(err, cause));
        return 0;
    }
    char words[128] = "; put that right, and the same command continues from the beginning";
    if (before >= 0) {
        snprintf(words, sizeof words, "; put that right, and the same command continues at step %lld",
                 (long long)before);
    }
    trainer_add_words(err, words);
    err->status = DT_INVALID;
    trainer_say_cause(t, err); /* all ranks know */
    struct dt_text said;
    dt_text_init(&said);
    (void)trainer_share(t, "train/told", &said, NULL, TOLD_S,
                        &(struct dt_error){0}); /* fails when the end of rank 0 was seen first:
                                                 * it has said it */
    dt_text_clear(&said);
    return -1;
}

/* What was planned beside what the process holds once everything has been touched. */
static void compare_memory(struct trainer *t, double measured_bytes)
{
    char fields[96];
    snprintf(fields, sizeof fields, "\"planned_bytes\": %.0f, \"measured_bytes\": %.0f, \"round\": %d",
             trainer_planned_bytes(t), measured_bytes, t->world->round);
    metrics_event(&t->metrics, "memory", fields);
}

/* The evaluation that is due at this step. A stop leaves it due: whoever goes on from here
 * begins with it. */
static int evaluate(struct trainer *t, const struct metrics_step *m, struct dt_error *err)
{
    double loss;
    if (!t->eval_due || t->stop_wanted) {
        return 0;
    }
    if (trainer_evaluate(t, &loss, err) != 0) {
        return -1;
    }
    if (!t->stop_wanted) {
        t->eval_due = false;
        metrics_val(&t->metrics, m, loss);
    }
    return 0;
}

/* Of data whose labels say what counts: rows where nothing does. */
static void say_blank_rows(struct trainer *t)
{
    const struct data_source *sources[] = {&t->train, &t->val};
    for (int i = 0; i < 1 + t->has_val && t->world->round <= 1; i++) {
        const struct data_source *s = sources[i];
        if (s->blank_count == s->sample_count) {
            metrics_say(&t->metrics, "train: data.val: %s: none of the labels is a target, so it gives no val_loss",
                        s->blank_path);
        } else if (s->blank_count > 0) {
            metrics_say(&t->metrics,
                        "train: data.%s: %lld of %lld rows have no target and add nothing; the first is row %lld of %s",
                        i == 0 ? "train" : "val", (long long)s->blank_count, (long long)s->sample_count,
                        (long long)s->blank_row, s->blank_path);
        }
    }
}

static bool eval_falls_on(const struct trainer *t, int64_t step)
{
    return t->has_val && (due(step, t->job->training.eval_every_n_steps) || step >= t->total_steps);
}

/* What comes after this step begins with its state: nothing of the next one may have begun. */
static bool needs_state(const struct trainer *t, int64_t step, bool files)
{
    return eval_falls_on(t, step) || (files && due(step, t->job->checkpointing.save_every_n_steps));
}

enum { SPANS_MOST = 1 << 16 };

/* logging.timeline_steps; nothing where these steps are behind the run already. */
static int open_timeline(struct trainer *t, struct dt_error *err)
{
    const int64_t *steps = t->job->logging.timeline_steps;
    if (steps[0] == 0 || t->step >= steps[0] + steps[1] - 1) {
        return 0;
    }
    /* Of a micro-step: each block forward, again, backward; each unit gathered twice, reduced in
     * two groups; a batch. Then sums, update, publish. */
    double spans =
        (double)steps[1] *
        ((double)t->micro_steps * (3 * t->chain.block_count + 4 * t->chain.unit_count + 1) + t->chain.unit_count + 3);
    int rc =
        timeline_open(&t->timeline, t->world, steps[0], steps[1], spans < SPANS_MOST ? (int)spans : SPANS_MOST, err);
    t->strategy.timeline = t->timeline;
    return rc;
}

/* A disk that refuses it costs a warning. */
static void write_timeline(struct trainer *t)
{
    struct dt_error err;
    char *path = dt_format("%s/timeline-rank-%d.json", t->job->output_dir, t->rank);
    if (timeline_write(t->timeline, path, &err) == 0) {
        metrics_say(&t->metrics, "train: timeline: %s", path);
    } else {
        metrics_say(&t->metrics, "train: warning: timeline: %s", err.text);
    }
    free(path);
}

static int train(struct trainer *t, const struct trainer_hooks *hooks, struct dt_error *err)
{
    const struct job *job = t->job;
    bool files = !hooks->no_files;
    int64_t steps_here = 0;
    t->peak_flops = t->rank == 0 && files ? peak_of(t) : NAN;
    set_pulse_limit(t, 0);
    struct metrics_step m = {.step = t->step, .total_steps = t->total_steps, .round = t->world->round};
    if (evaluate(t, &m, err) != 0) {
        return -1;
    }
    trainer_pace_open(t);
    trainer_batch_restart(t);
    for (;;) {
        bool held =
            t->stop_wanted || t->begun >= t->total_steps || (t->begun > t->step && needs_state(t, t->begun, files));
        if (!held && t->begun - t->step <= t->ahead) {
            if (trainer_begin(t, err) != 0) {
                return -1;
            }
            continue;
        }
        if (t->begun == t->step) {
            break;
        }
        struct trainer_result r;
        if (trainer_finish(t, &r, err) != 0) {
            return -1;
        }
        bool end = t->step >= t->total_steps;
        trainer_pace(t, r.pace);
        t->longest_step_s = fmax(t->longest_step_s, r.step_s);
        set_pulse_limit(t, 0);
        m = describe(t, &r);
        show(t->world->page, &m);
        bool log = due(t->step, job->logging.log_every_n_steps) || end, compare = ++steps_here == 3;
        if (compare || (log && t->metrics.active)) { /* asks the device: not in each step */
            m.memory_bytes = trainer_memory(t);
        }
        if (compare) {
            compare_memory(t, m.memory_bytes);
        }
        metrics_step(&t->metrics, &m, log);
        if (timeline_over(t->timeline, t->step)) {
            write_timeline(t);
        }
        if (hooks->after_step) {
            hooks->after_step(t, &r, hooks->context);
        }
        bool between = t->eval_due = eval_falls_on(t, t->step);
        if (evaluate(t, &m, err) != 0) {
            return -1;
        }
        if (files && due(t->step, job->checkpointing.save_every_n_steps) && !end && !t->stop_wanted) {
            if (save(t, false, err) != 0) {
                return -1;
            }
            between = true;
        }
        if (between) {
            pace_skip(&t->pace, dt_now_s(), dt_stream_waited_s(t->world->compute));
        }
    }
    if (files && t->saved_step != t->step && save(t, true, err) != 0) {
        return -1;
    }
    return 0;
}

/* A shard group per host is what hybrid rows do unless told otherwise; with hosts of different
 * sizes each would have another idea of the groups. */
static int check_hosts(const struct world *w, const struct job *job, struct dt_error *err)
{
    const struct strategy_row *row = strategy_find(job->training.strategy, w->size, err);
    if (row == NULL) {
        return -1;
    }
    if (row->group == GROUP_NODE && job->fsdp.device_mesh[0] == 0 && job->fsdp.device_mesh[1] == 0 &&
        w->uneven[0] != '\0') {
        return dt_fail(err, DT_INVALID,
                       "fsdp.device_mesh: not given, and the hosts have %s ranks: a shard group per host needs as many "
                       "on each; give [replicas, shards]",
                       w->uneven);
    }
    return 0;
}

/* The first rank that ends is the cause of the round's end, and may be the verdict: whoever only
 * heard of it leaves that to the one it heard of. */
static void let_the_cause_end(struct world *w)
{
    for (double until_s = dt_now_s() + HEARD_S;
         atomic_load(&w->page->order) != DT_ORDER_ABORT && dt_now_s() < until_s;) {
        dt_page_pulse(w->page);
        dt_sleep_s(0.01);
    }
}

int trainer_run(struct world *w, const struct job *job, const struct trainer_hooks *hooks, int *exit_code,
                struct dt_error *err)
{
    static const struct trainer_hooks none;
    hooks = hooks ? hooks : &none;
    struct trainer t;
    int rc = -1;
    if (check_hosts(w, job, err) != 0) {
        return -1;
    }
    if (trainer_prepare(&t, job, w->rank, w->size, w->local_size, w->device->real, !w->device->host_memory, err) != 0 ||
        trainer_check_memory(&t, w->device, 1, err) != 0) { /* the others' memory may be taken
                                                             * already */
        goto out;
    }
    metrics_open(&t.metrics, hooks->no_files ? NULL : job->output_dir, w->rank, hooks->quiet);
    metrics_log(&t.metrics, "train %s: rank %d of %d, pid %d, round %d", DT_VERSION, w->rank, w->size, (int)getpid(),
                w->round);
    if (trainer_products(&t, w, err) != 0 || trainer_open(&t, w, err) != 0) {
        goto out;
    }
    say_blank_rows(&t);
    bool found = false;
    set_pulse_limit(&t, 0); /* reading shows a pulse; who does not read is found */
    if (!hooks->no_files && trainer_resume(&t, &found, err) != 0) {
        goto out;
    }
    if (!hooks->no_files) {
        trainer_check_disk(&t);
    }
    bool evaluated;
    if (metrics_cut(&t.metrics, t.step, &evaluated, err) != 0 ||
        (found && trainer_agree(&t, "train/evaluated", &evaluated, err) != 0)) {
        goto out;
    }
    t.eval_due = !evaluated && (found || t.total_steps == 0) && eval_falls_on(&t, t.step);
    t.finished_before = found && t.step >= t.total_steps && !t.eval_due;
    if ((!found && trainer_init_weights(&t, err) != 0) || (!hooks->no_files && trainer_write_folder(&t, err) != 0)) {
        goto out;
    }
    if (!hooks->no_files && trainer_keep_origin(&t, found, err) != 0) {
        goto out;
    }
    if (t.finished_before && horizon_is_done(&t.horizon, &job->training)) {
        metrics_say(&t.metrics, "train: %s: finished at step %lld; --fresh begins anew", job->output_dir,
                    (long long)t.step);
    } else if (t.finished_before) {
        metrics_say(&t.metrics,
                    "train: %s: step %lld: what is left of training.num_epochs fills no micro-batch of %lld samples on "
                    "all ranks: it ends here; a smaller "
                    "batch or fewer ranks would train it",
                    job->output_dir, (long long)t.step, (long long)trainer_split(&t).micro_batch);
    } else if ((!hooks->no_files && open_timeline(&t, err) != 0) || train(&t, hooks, err) != 0) {
        goto out;
    }
    set_pulse_limit(&t, START_LIMIT_S);
    *exit_code = t.step >= t.total_steps && !t.eval_due ? DT_EXIT_DONE : DT_EXIT_STOPPED;
    if (*exit_code == DT_EXIT_DONE && !hooks->no_files && w->rank == 0 && trainer_export(&t, err) != 0) {
        goto out;
    }
    if (!t.finished_before) {
        metrics_say(&t.metrics,
                    *exit_code == DT_EXIT_DONE ? "train: done at step %lld"
                                               : "train: stopped at step %lld, saved; the same command continues",
                    (long long)t.step);
    }
    if (trainer_settle(&t, "end", err) != 0) {
        goto out;
    }
    if (timeline_over(t.timeline, INT64_MAX)) {
        write_timeline(&t);
    }
    if (hooks->at_end) {
        hooks->at_end(&t, hooks->context);
    }
    rc = 0;
out:
    if (rc != 0) {
        w->failed = true;
        atomic_store(&w->exit_code, trainer_exit_code(err)); /* its peers may be gone, and it be
                                                              * told to end, before it has closed
                                                              * what follows */
        world_explain(w, err, false);
        (void)world_tell_cause(w, err);
        if (!w->told) {
            char words[DT_WORDS_BYTES];
            metrics_log(&t.metrics, "train: %s", dt_error_words(err, words));
        }
        if (trainer_only_heard(err)) {
            let_the_cause_end(w);
        }
    }
    trainer_close(&t);
    return rc;
}

bool trainer_disk_refused(const struct dt_error *err)
{
    return err->status == DT_FULL || err->status == DT_IO;
}

int trainer_exit_code(const struct dt_error *err)
{
    switch (err->status) {
    case DT_TIMEOUT:
    case DT_PEER:
    case DT_STOPPED:
    case DT_IO:
    case DT_FULL:
        return DT_EXIT_TEMPORARY;
    case DT_IN_USE: /* as the look before the start would have found, had the other begun a
                     * moment earlier */
    case DT_USAGE:
        return DT_EXIT_USAGE;
    default:
        return DT_EXIT_PERMANENT;
    }
}
