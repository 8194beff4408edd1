/* Training: the run. What a step does is in trainer_step.c, the function to read first. */
#include "worker/run/trainer.h"

#include "base/clock.h"
#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

/* Where the run stands. */
static struct report stand(struct trainer *t)
{
    return (struct report){.of = t, .step = t->run.step, .total_steps = t->run.total_steps, .round = t->world->round};
}

void trainer_report(struct trainer *t, enum moment moment)
{
    struct report r = stand(t);
    observers_report(&t->observers, &r, moment);
}

static bool due(int64_t step, int64_t interval)
{
    return interval > 0 && step % interval == 0;
}

static void report_step(struct trainer *t, const struct trainer_result *x)
{
    int64_t tokens = x->micro_steps * t->size * t->job->training.batch_size_per_gpu * t->feeds.train.sequence_length;
    struct report r = stand(t);
    r.logged = due(t->run.step, t->job->logging.log_every_n_steps) || t->run.step >= t->run.total_steps;
    r.epoch = (double)t->run.epoch + fmin(1, (double)t->run.position / (double)trainer_rows(t));
    r.sequences = t->job->model.ops->positions != NULL;
    r.tokens = t->run.tokens;
    r.targets = x->valid_count;
    r.blank_steps = t->run.blank_steps;
    r.loss_scale = x->loss_scale;
    r.skipped_steps = t->run.scaler.skipped;
    r.outlier_steps = t->stepper.outliers.skipped;
    r.loss = x->loss;
    r.grad_norm = x->grad_norm;
    r.lr = x->lr;
    r.step_s = x->step_s;
    r.data_wait_s = x->data_wait_s;
    r.memory_bytes = r.logged && t->rank == 0 ? trainer_memory_now(t) : NAN;
    /* positions that were left out as padding took no time */
    double computed = x->computed * (double)tokens;
    r.tokens_per_s = x->step_s > 0 ? computed / x->step_s : 0;
    r.mfu = computed * t->job->model.ops->flops(&t->chain) / x->step_s / (t->run.peak_flops * t->size);
    r.pace = x->pace;
    observers_report(&t->observers, &r, MOMENT_STEP);
}

#define HEARD_S 3.0 /* a rank that fails has ended by then */

/* A report of the numbers of a set of data.val. */
static struct report evaluation_report(struct trainer *t, const struct trainer_val *v,
                                       const struct trainer_evaluation *e)
{
    struct report r = stand(t);
    int targets = v->data.targets;
    const struct batch_field *f = targets >= 0 && v->data.choices == NULL ? &v->data.layout.field[targets] : NULL;
    bool next = f != NULL && f->shifted,
         masked = f != NULL && !f->from_ids && f->value != NULL && strcmp(f->value, "id") == 0,
         bytes = next && strcmp(v->data.tokenizer, "bytes") == 0;
    double bytes_per_target = bytes ? 1 : next && e->text_bytes > 0 ? (double)e->text_bytes / (double)e->targets : NAN;
    r.set = v->name;
    r.val_targets = e->targets;
    r.val_loss = e->loss;
    r.perplexity = next || masked ? exp(e->loss) : NAN;
    r.bits_per_byte = e->loss / M_LN2 / bytes_per_target;
    r.pearson = e->pearson;
    r.classes = e->classes.classes > 0 ? &e->classes : NULL;
    r.choices = e->choices.items > 0 ? &e->choices : NULL;
    return r;
}

/* A loss that is not finite, once in a round: in JSON it is null, as one without targets. */
static void say_not_finite(struct trainer *t, const struct report *r)
{
    if (r->val_targets > 0 && !isfinite(r->val_loss) && !t->run.said_not_finite) {
        t->run.said_not_finite = true;
        observers_say(&t->observers,
                      "train: warning: step %lld: the loss of %s%s is not finite: look at the model's weights and "
                      "buffers (a running_var below 0), and at the numbers in the data",
                      (long long)r->step, r->set != NULL ? "data.val." : "data.val", r->set != NULL ? r->set : "");
    }
}

/* The evaluation that is due at this step, of all sets. They are reported when all are known. A stop leaves it due:
 * whoever goes on from here begins with it. */
static int evaluate(struct trainer *t, struct dt_error *err)
{
    struct trainer_evaluation known[DT_SETS_MAX];
    for (int i = 0; i < t->feeds.val_count && t->run.eval_due && !trainer_stops(t); i++) {
        if (trainer_evaluate(t, &t->feeds.val[i], &known[i], err) != 0) {
            return -1;
        }
        if (known[i].targets > 0 && !isfinite(known[i].loss) && trainer_began_broken(t, err)) {
            return -1;
        }
    }
    if (!t->run.eval_due || trainer_stops(t)) {
        return 0;
    }
    t->run.eval_due = false;
    if (t->feeds.val_count > 0) {
        /* a save under way that fails is no longer among the best, and ranks hear of that at different steps */
        if (t->saver.beside != NULL && best_has(&t->run.best, trainer_save_step(t)) &&
            trainer_end_save(t, true, err) != 0) {
            return -1;
        }
        trainer_judge_evaluation(t, known);
    }
    for (int i = 0; i < t->feeds.val_count; i++) {
        struct report r = evaluation_report(t, &t->feeds.val[i], &known[i]);
        observers_report(&t->observers, &r, MOMENT_EVALUATION);
        say_not_finite(t, &r);
    }
    return 0;
}

/* Of data whose labels say what counts: rows where nothing does. */
static void say_blank_rows(struct trainer *t)
{
    for (int i = t->job->evaluates ? 0 : -1; i < t->feeds.val_count && t->world->round <= 1; i++) {
        const struct data_source *s = i < 0 ? &t->feeds.train : &t->feeds.val[i].data;
        const char *key = i < 0 ? JOB_DATA_KEY : t->feeds.val[i].key;
        if (i >= 0 && s->blank_count == s->sample_count) {
            observers_say(&t->observers, "train: %s: %s: none of the labels is a target, so it gives no loss", key,
                          s->blank_path);
        } else if (s->blank_count > 0) {
            observers_say(&t->observers,
                          "train: %s: %lld of %lld rows have no target and add nothing; the first is row %lld of %s",
                          key, (long long)s->blank_count, (long long)s->sample_count, (long long)s->blank_row,
                          s->blank_path);
        }
    }
}

/* Says which share each of several sources of data.train has. */
static void say_mixture(struct trainer *t)
{
    const struct data_mixture *m = t->job->evaluates ? NULL : t->feeds.train.mixture;
    for (int i = 0; m != NULL && i < m->count && t->world->round <= 1; i++) {
        observers_say(&t->observers, "train: data.train: %.4g %% of the samples are from %s, which has %lld",
                      100.0 * (double)m->part[i].quota / MIXTURE_BLOCK, data_source_name(&t->job->data.train.of[i]),
                      (long long)m->part[i].count);
    }
}

/* Says how much of the data an epoch is, if not all. */
static void say_limit(struct trainer *t)
{
    const struct job_training *j = &t->job->training;
    int64_t all = t->feeds.train.sample_count, rows = trainer_rows(t);
    bool overfits = j->overfit_batches > 0;
    if (t->world->round <= 1 && (overfits || rows < all)) {
        observers_say(&t->observers, "train: an epoch is %s%lld of %lld samples (training.%s)",
                      overfits ? "the same " : "", (long long)(rows < all ? rows : all), (long long)all,
                      overfits ? "overfit_batches" : "limit_train_batches");
    }
}

static void say_warmup(struct trainer *t)
{
    struct dt_text words;
    dt_text_init(&words);
    if (t->world->round <= 1 && schedule_ends_in_warmup(&t->run.schedule, &words)) {
        observers_say(&t->observers, "train: %s", dt_text_str(&words));
    }
    dt_text_clear(&words);
}

/* Says which key has no effect on this model. */
static void say_batch_norm(struct trainer *t)
{
    if (t->job->training.sync_batch_norm && t->chain.buffer_count == 0 && t->world->round <= 1) {
        observers_say(&t->observers, "train: no effect: training.sync_batch_norm (%s has no batch norms)",
                      t->job->model.ops->name);
    }
}

/* Says which level of activation_checkpointing the GPU's memory has led to. */
static void say_level(struct trainer *t)
{
    char fields[128], name[16];
    struct dt_text words;
    if (!t->memory.level_chosen) {
        return;
    }
    dt_text_init(&words);
    trainer_level_words(t, &words);
    observers_say(&t->observers, "train: %s", dt_text_str(&words));
    dt_text_clear(&words);
    (void)snprintf(fields, sizeof fields,
                   "\"level\": \"%s\", \"planned_bytes\": %.0f, \"memory_bytes\": %.0f, \"round\": %d",
                   trainer_level_name(t, name), trainer_device_bytes(t), t->memory.device_bytes, t->world->round);
    observers_event(&t->observers, "activation_checkpointing", fields);
}

static bool samples_fall_on(const struct trainer *t, int64_t step)
{
    return t->samples != NULL && due(step, t->job->logging.sample_every_n_steps);
}

static bool comparison_falls_on(const struct trainer *t, int64_t step)
{
    return due(step, t->job->training.check_replicas_every_n_steps);
}

/* What comes after the last step that was begun needs its state: the next one may not begin yet. */
static bool needs_state(const struct trainer *t)
{
    return trainer_evaluation_falls_on(t, t->stepper.begun) || samples_fall_on(t, t->stepper.begun) ||
           trainer_save_falls_on(t, t->stepper.begun) || trainer_snapshot_falls_on(t, t->stepper.begun) ||
           comparison_falls_on(t, t->stepper.begun) || t->run.goes_back ||
           (t->run.votes & (VOTE_SAVE | VOTE_EVALUATE)) != 0;
}

enum { SPANS_MOST = 1 << 16 };

/* logging.timeline_steps; nothing where these steps are behind the run already. */
static int open_timeline(struct trainer *t, struct dt_error *err)
{
    const int64_t *steps = t->job->logging.timeline_steps;
    if (steps[0] == 0 || t->run.step >= steps[0] + steps[1] - 1) {
        return 0;
    }
    if (steps[0] > t->run.total_steps) {
        observers_say(&t->observers, "train: logging.timeline_steps: step %lld lies behind the last one, %lld",
                      (long long)steps[0], (long long)t->run.total_steps);
    }
    /* Of a micro-step: each block forward, again, backward; each unit gathered twice, reduced in
     * two groups; a batch. Then sums, update, publish. */
    double spans =
        (double)steps[1] *
        ((double)t->micro_steps * (3 * t->chain.block_count + 4 * t->chain.unit_count + 1) + t->chain.unit_count + 3);
    int rc = timeline_open(&t->stepper.timeline, t->world, steps[0], steps[1],
                           spans < SPANS_MOST ? (int)spans : SPANS_MOST, err);
    t->strategy.timeline = t->stepper.timeline;
    return rc;
}

/* Ranks that have gone apart meet before anything looks at the model. */
static void meet_for(struct trainer *t, bool compares, unsigned votes)
{
    if (compares || trainer_evaluation_falls_on(t, t->run.step) || samples_fall_on(t, t->run.step) ||
        trainer_save_falls_on(t, t->run.step) || trainer_snapshot_falls_on(t, t->run.step) ||
        (votes & (VOTE_SAVE | VOTE_EVALUATE)) != 0 || t->run.step >= t->run.total_steps || trainer_stops(t)) {
        trainer_meet(t);
    }
}

/* What the step that is done, or a vote that came with it, asks for before the next one begins. Votes
 * wait for the steps that were begun before they were heard. */
static int act_between_steps(struct trainer *t, struct dt_error *err)
{
    unsigned votes = t->stepper.begun == t->run.step ? t->run.votes : 0;
    bool compares = comparison_falls_on(t, t->run.step),
         goes_back = t->run.goes_back && t->stepper.begun == t->run.step;
    if (t->stepper.begun == t->run.step) {
        meet_for(t, compares, votes);
    }
    if (goes_back && (trainer_end_save(t, true, err) != 0 || trainer_roll_back(t, err) != 0)) {
        return -1;
    }
    if (compares && trainer_check_replicas(t, err) != 0) { /* before a save */
        return -1;
    }
    bool evaluates = t->run.eval_due =
        trainer_evaluation_falls_on(t, t->run.step) || (t->feeds.val_count > 0 && (votes & VOTE_EVALUATE));
    if (evaluate(t, err) != 0) {
        return -1;
    }
    bool samples = samples_fall_on(t, t->run.step) && !trainer_stops(t);
    if (samples && trainer_sample(t, err) != 0) {
        return -1;
    }
    bool asked = trainer_save_falls_on(t, t->run.step) || (t->files && (votes & VOTE_SAVE)),
         saves = (asked || t->run.best_due) && t->run.step < t->run.total_steps && !trainer_stops(t);
    if (saves && trainer_save_due(t, false, err) != 0) {
        return -1;
    }
    t->run.votes &= ~(votes & (VOTE_SAVE | VOTE_EVALUATE));
    /* the state that was rejected must not come back from a snapshot */
    bool again = goes_back && t->job->checkpointing.snapshot_every_n_steps > 0 && t->run.step < t->run.total_steps;
    bool copies = (trainer_snapshot_falls_on(t, t->run.step) || again) && !trainer_stops(t);
    if (copies && trainer_snapshot(t, err) != 0) {
        return -1;
    }
    if (compares || evaluates || samples || saves || copies || goes_back) {
        pace_skip(&t->stepper.pace, dt_now_s(), dt_stream_waited_s(t->world->compute));
    }
    return 0;
}

/* fresh: no checkpoint was gone on from. */
static int train(struct trainer *t, bool fresh, struct dt_error *err)
{
    t->run.peak_flops = t->rank == 0 && t->files ? peak_of(t) : NAN;
    t->run.begin_s = dt_now_s();
    trainer_report(t, MOMENT_START);
    if ((fresh && trainer_try_evaluations(t, err) != 0) || evaluate(t, err) != 0 ||
        (t->run.best_due && trainer_save_due(t, false, err) != 0)) { /* that evaluation may be one of the best */
        return -1;
    }
    (void)trainer_ends_early(t);
    trainer_batch_restart(t);
    for (;;) {
        bool held = trainer_stops(t) || t->stepper.begun >= t->run.total_steps ||
                    (t->stepper.begun > t->run.step && needs_state(t));
        if (!held && t->stepper.begun - t->run.step <= t->stepper.ahead) {
            if (trainer_begin(t, err) != 0) {
                return -1;
            }
            continue;
        }
        if (t->stepper.begun == t->run.step) {
            break;
        }
        struct trainer_result r = {0};
        if (trainer_finish(t, &r, err) != 0) {
            (void)(r.not_finite && trainer_began_broken(t, err));
            return -1;
        }
        report_step(t, &r);
        (void)trainer_ends_early(t);
        if (trainer_end_save(t, false, err) != 0 || act_between_steps(t, err) != 0) {
            return -1;
        }
        (void)trainer_ends_early(t);
    }
    if (t->saver.beside != NULL) {
        trainer_report(t, MOMENT_SAVING); /* the agent that has asked for the end sees what it waits for */
    }
    if (trainer_end_save(t, true, err) != 0) {
        return -1;
    }
    return t->files && t->saver.saved_step != t->run.step ? trainer_save_due(t, true, err) : 0;
}

/* --evaluate: no step, no save. */
static int evaluate_alone(struct trainer *t, const char *checkpoint, struct dt_error *err)
{
    trainer_report(t, MOMENT_READING);
    if (*checkpoint != 0 ? trainer_load_weights(t, checkpoint, err) != 0 : trainer_init_weights(t, err) != 0) {
        return -1;
    }
    trainer_report(t, MOMENT_START);
    t->run.eval_due = true;
    return evaluate(t, err);
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

/* A loss scale that stays too high trains nothing, and each step looks as if it did. */
static void say_skipped(struct trainer *t)
{
    if (t->run.scaler.skipped > 0) {
        observers_say(&t->observers, "train: %lld of %lld steps changed no weight: a gradient was beyond fp16",
                      (long long)t->run.scaler.skipped, (long long)t->run.step);
    }
}

int trainer_run(struct world *w, const struct job *job, const struct observers_options *options, int *exit_code,
                struct dt_error *err)
{
    static const struct observers_options none;
    options = options != NULL ? options : &none;
    struct trainer t;
    int rc = -1;
    if (check_hosts(w, job, err) != 0) {
        return -1;
    }
    if (trainer_prepare(&t, job, w->rank, w->size, w->local_size, w->device->real, world_device_bytes(w), err) != 0 ||
        (options->evaluate == NULL && trainer_plan_samples(&t, err) != 0) ||
        (t.local_rank = w->local_rank, trainer_plan_saves(&t), trainer_plan_snapshots(&t),
         trainer_check_memory(&t, w->device, 1, err) != 0)) { /* the others' memory may be taken
                                                             * already */
        goto out;
    }
    t.files = !options->no_files && job->training.fast_dev_run == 0;
    observers_open(&t.observers, job, w, options);
    observers_note(&t.observers, "train %s: rank %d of %d, pid %d, round %d", DT_VERSION, w->rank, w->size,
                   (int)getpid(), w->round);
    t.world = w;
    if (trainer_check_jobs(&t, err) != 0 || trainer_choose_plans(&t, w, err) != 0 || trainer_open(&t, w, err) != 0 ||
        trainer_open_samples(&t, err) != 0) {
        goto out;
    }
    say_level(&t);
    say_blank_rows(&t);
    say_mixture(&t);
    if (options->evaluate != NULL) {
        rc = evaluate_alone(&t, options->evaluate, err);
        rc = rc == 0 ? trainer_settle(&t, "end", err) : rc;
        *exit_code = t.run.eval_due ? DT_EXIT_STOPPED : DT_EXIT_DONE;
        goto out;
    }
    bool found = false;
    trainer_report(&t, MOMENT_READING);
    if (t.files) {
        trainer_open_snapshots(&t);
    }
    if (t.files && trainer_resume(&t, &found, err) != 0) {
        goto out;
    }
    if (trainer_check_limit(&t, err) != 0) {
        goto out;
    }
    say_limit(&t);
    say_warmup(&t);
    say_batch_norm(&t);
    if (t.files) {
        trainer_check_disk(&t);
    }
    t.run.first_step = t.stepper.begun = t.run.step;
    bool evaluated;
    if (observers_rewind(&t.observers, t.run.step, &evaluated, err) != 0 ||
        (found && trainer_agree(&t, "train/evaluated", &evaluated, err) != 0)) {
        goto out;
    }
    /* what metrics.jsonl has of this step may be younger than the checkpoint */
    evaluated = evaluated && trainer_saw_evaluation(&t);
    t.run.eval_due = !evaluated && (found || t.run.total_steps == 0) && trainer_evaluation_falls_on(&t, t.run.step);
    if (found) {
        (void)trainer_ends_early(&t);
    }
    t.run.finished_before =
        found && t.run.step >= t.run.total_steps && !t.run.eval_due && t.saver.saved_step == t.run.step;
    if ((!found && trainer_init_weights(&t, err) != 0) || (t.files && trainer_write_folder(&t, err) != 0)) {
        goto out;
    }
    if (t.files && (trainer_keep_origin(&t, found, err) != 0 || trainer_share_config(&t, err) != 0)) {
        goto out;
    }
    if (t.run.finished_before && horizon_is_done(&t.run.horizon, &job->training)) {
        observers_say(&t.observers, "train: %s: finished at step %lld; --fresh begins anew", job->output_dir,
                      (long long)t.run.step);
    } else if (t.run.finished_before && trainer_ended_early(&t)) {
        observers_say(&t.observers,
                      "train: %s: ended early at step %lld by %s; another value of it goes on, --fresh begins anew",
                      job->output_dir, (long long)t.run.step, trainer_ending_key(&t));
    } else if (t.run.finished_before) {
        observers_say(
            &t.observers,
            "train: %s: step %lld: what is left of training.num_epochs fills no micro-batch of %lld samples on "
            "all ranks: it ends here; a smaller "
            "batch or fewer ranks would train it",
            job->output_dir, (long long)t.run.step, (long long)trainer_split(&t).micro_batch);
    } else if ((t.files && open_timeline(&t, err) != 0) || train(&t, !found, err) != 0) {
        goto out;
    }
    trainer_report(&t, MOMENT_CLOSING);
    *exit_code = t.run.step >= t.run.total_steps && !t.run.eval_due ? DT_EXIT_DONE : DT_EXIT_STOPPED;
    if (*exit_code == DT_EXIT_DONE && t.files && w->rank == 0 && trainer_export(&t, err) != 0) {
        goto out;
    }
    if (!t.run.finished_before) {
        observers_say(&t.observers,
                      *exit_code == DT_EXIT_DONE ? "train: done at step %lld"
                                                 : "train: stopped at step %lld, saved; the same command continues",
                      (long long)t.run.step);
        say_skipped(&t);
    }
    if (trainer_settle(&t, "end", err) != 0) {
        goto out;
    }
    trainer_report(&t, MOMENT_END);
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
            observers_note(&t.observers, "train: %s", dt_error_words(err, words));
        }
        if (trainer_only_heard(err)) {
            let_the_cause_end(w);
        }
    }
    if (t.saver.beside != NULL) { /* it ends with what it has; other ranks' threads may wait for it */
        (void)trainer_save_end(&t, &(struct dt_error){0});
    }
    trainer_close_snapshots(&t);
    trainer_close_samples(&t);
    trainer_close(&t);
    return rc;
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
