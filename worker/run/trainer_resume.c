/* Where a run begins: anew, or from a checkpoint that all ranks agree on. Rank 0 proposes the
 * newest one, every rank compares its part of the checksums, and one that is damaged makes way
 * for the one before. How long reading takes is up to disk and model, so nobody waits with a deadline
 * (trainer_agree.c). */
#include "worker/run/trainer.h"

#include "base/file.h"
#include "worker/checkpoints/course.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define HOLD_WAIT_S 10.0 /* for a rank 0 of the round before that is still ending */
/* for a job that was just killed; a start that cannot be is refused within 2 s */
#define FREE_WAIT_S 1.5
#define NOTES_SHOWN 5

/* ---- rank 0: what there is to load ---- */

struct search {
    bool named;     /* by checkpointing.resume: that one or none */
    bool name_last; /* what began by that name goes on: its own saves first */
    bool anew;
    bool begun;     /* an earlier round of this launch was here, whose snapshot may be there */
    bool looked;    /* for that snapshot */
    char *path;     /* the one that is named */
    int64_t *steps; /* of checkpoint_dir, the newest first */
    int count, next, skipped, damaged;
    struct course course;
    bool failed; /* rank 0 cannot go on: why is for all */
    struct dt_error why;
};

static void search_clear(struct search *s)
{
    free(s->steps);
    free(s->path);
    course_clear(&s->course);
}

/* Step number at the end of "runs/demo/checkpoints/step-00000300/" or "step-300"; -1 when there
 * is none. */
static int64_t step_in(const char *resume)
{
    size_t end = strlen(resume);
    while (end > 0 && resume[end - 1] == '/') {
        end--;
    }
    size_t at = end;
    while (at > 0 && resume[at - 1] != '/') {
        at--;
    }
    const char *digits = resume + at + 5;
    bool named = end > at + 5 && strncmp(resume + at, "step-", 5) == 0;
    return named && digits + strspn(digits, "0123456789") == resume + end ? strtoll(digits, NULL, 10) : -1;
}

/* checkpointing.resume as a path: a folder, or the name of one of this run's checkpoints. What
 * is not there is told with what is. */
static int find_named(struct search *s, const char *dir, const char *resume, struct dt_error *err)
{
    const char *slash = strchr(resume, '/');
    int64_t step = slash == NULL || slash[strspn(slash, "/")] == '\0' ? step_in(resume) : -1;
    s->path = dt_strdup(resume);
    if (step >= 0 && !dt_file_exists(resume)) {
        free(s->path);
        s->path = checkpoint_path(dir, step);
    }
    if (dt_file_exists(s->path)) {
        return checkpoint_looks_whole(s->path)
                   ? 0
                   : dt_fail(
                         err, DT_INVALID,
                         "checkpointing.resume: %s: is no checkpoint (it holds no manifest.json); name a folder step-N",
                         s->path);
    }
    /* The nearest of a sorted list lie side by side: from the first that is not newer, one each
     * way at a time. */
    struct dt_text near;
    dt_text_init(&near);
    int64_t wanted = step_in(resume);
    int after = 0;
    while (wanted >= 0 && after < s->count && s->steps[after] > wanted) {
        after++;
    }
    int before = after - 1;
    for (int shown = 0; shown < 3 && (before >= 0 || after < s->count); shown++) {
        bool newer = before >= 0 && (after >= s->count || s->steps[before] - wanted <= wanted - s->steps[after]);
        dt_text_printf(&near, "%s%lld", shown ? ", " : "", (long long)s->steps[newer ? before-- : after++]);
    }
    dt_fail(err, DT_INVALID, "checkpointing.resume: %s: no such checkpoint; %s%s%s%s", s->path, dir,
            near.size > 0 ? " has the nearest at steps " : " holds none", dt_text_str(&near),
            near.size > 0 ? "" : "; begin with resume auto");
    dt_text_clear(&near);
    return -1;
}

bool trainer_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Step of the checkpoint of `dir` that `resume` names, or -1. */
static int64_t named_step(const char *dir, const char *resume)
{
    int64_t step = step_in(resume);
    char *path = checkpoint_path(dir, step);
    bool here = step >= 0 && (!dt_file_exists(resume) || trainer_same_file(resume, path));
    free(path);
    return here ? step : -1;
}

static bool is_name(const char *resume)
{
    return resume != NULL && strcmp(resume, "auto") != 0 && strcmp(resume, "never") != 0;
}

static const char *run_id_of(const struct trainer *t)
{
    return t->world->run_id != NULL ? t->world->run_id : "";
}

/* output_dir/checkpoints, whether or not the checkpoints are there: its lock is for all that lies in output_dir. */
static char *place_in_output(const struct job *job)
{
    return dt_format("%s/checkpoints", job->output_dir);
}

static bool same_lock(const char *a, const char *b)
{
    char *x = dt_format("%s.lock", a), *y = dt_format("%s.lock", b);
    bool same = trainer_same_file(x, y);
    free(y);
    free(x);
    return same;
}

/* Nobody else uses both folders from now on. */
static int hold_folders(struct trainer *t, struct dt_error *err)
{
    const struct world *w = t->world;
    const char *dir = t->job->checkpointing.checkpoint_dir;
    char *output = place_in_output(t->job);
    int rc =
        t->saver.hold >= 0 ? 0 : checkpoint_hold(dir, w->run_id, w->launch, w->round, HOLD_WAIT_S, &t->saver.hold, err);
    if (rc == 0 && t->saver.hold_output < 0 && !same_lock(dir, output)) {
        rc = checkpoint_hold(output, w->run_id, w->launch, w->round, HOLD_WAIT_S, &t->saver.hold_output, err);
    }
    free(output);
    return rc;
}

/* Looks what is in the folder. What the job says about the beginning is done once per launch;
 * then, and when the same name is given again, the run goes on from its own saves. */
static int begin_search(struct trainer *t, struct search *s, struct dt_error *err)
{
    const struct job_checkpointing *job = &t->job->checkpointing;
    const char *resume = job->resume ? job->resume : "auto", *dir = job->checkpoint_dir;
    bool names = is_name(resume) && !t->job->fresh, first_round = t->world->round <= 1;
    course_read(&s->course, dir);
    bool same_launch = s->course.run_id != NULL && strcmp(s->course.run_id, run_id_of(t)) == 0 &&
                       strcmp(s->course.launch, t->world->launch) == 0;
    bool begun = s->begun = same_launch && !first_round;
    if (first_round && same_launch && course_write(dir, NULL, "", s->course.from, err) != 0) {
        return -1; /* launches that cannot be told apart: the beginning of one that was here is
                    * not ours */
    }
    s->anew = !begun && (t->job->fresh || strcmp(resume, "never") == 0);
    if (s->anew && (trainer_check_weights(t, err) != 0 || course_set_aside(dir, err) != 0)) {
        return -1;
    }
    if (dt_file_mkdirs(dir, err) != 0 ||
        checkpoint_claim(dir, t->world->run_id, t->world->launch, t->world->round, err) != 0 ||
        (!s->anew && checkpoint_steps(dir, &s->steps, &s->count, err) != 0)) {
        return -1;
    }
    s->name_last = names && (begun || strcmp(s->course.from, resume) == 0);
    s->named = names && !s->name_last;
    t->saver.named_step = names ? named_step(dir, resume) : -1;
    return s->named ? find_named(s, dir, resume, err) : 0;
}

/* Says why a checkpoint is passed over; of very many, the first few. */
static void pass_over(struct trainer *t, struct search *s, const char *why)
{
    if (++s->skipped <= NOTES_SHOWN) {
        observers_say(&t->observers, "train: %s; %s", why,
                      s->next < s->count ? "the one before is tried" : "there is none before it");
    }
}

/* Step of the newest checkpoint on disk that looks whole; -1: there is none. */
static int64_t newest_whole(const struct trainer *t, const struct search *s)
{
    int64_t step = -1;
    for (int i = 0; i < s->count && step < 0; i++) {
        char *path = checkpoint_path(t->job->checkpointing.checkpoint_dir, s->steps[i]);
        step = checkpoint_looks_whole(path) ? s->steps[i] : -1;
        free(path);
    }
    return step;
}

/* What is tried next: the snapshot, then the next checkpoint that looks whole from outside; empty when none is
 * left. */
static void propose(struct trainer *t, struct search *s, struct dt_text *out)
{
    const struct job_checkpointing *job = &t->job->checkpointing;
    struct dt_error why;
    if (s->begun && !s->looked) { /* once: it is tried before all files */
        s->failed = trainer_propose_snapshot(t, newest_whole(t, s), out, &s->why) != 0;
        s->looked = true;
    }
    while (!s->failed && !s->named && out->size == 0 && s->next < s->count) {
        struct checkpoint *c = NULL;
        char *path = checkpoint_path(job->checkpoint_dir, s->steps[s->next++]);
        if (checkpoint_open(&c, path, &why) == 0) {
            dt_text_puts(out, path);
        } else {
            s->damaged += checkpoint_looks_whole(path);
            pass_over(t, s, why.text);
        }
        checkpoint_close(c);
        free(path);
        dt_page_pulse(t->world->page);
    }
    if (!s->failed && s->name_last && out->size == 0) {
        s->named = true;
        s->failed = find_named(s, job->checkpoint_dir, job->resume, &s->why) != 0;
    }
    if (s->named && !s->failed && out->size == 0) {
        dt_text_puts(out, s->path);
    }
    if (!s->failed && !s->named && out->size == 0 && s->damaged > 0) { /* days of work: whether they are lost
                                                          * is for people to say */
        s->failed = true;
        (void)dt_fail(
            &s->why, DT_INVALID,
            "%s: none of its checkpoints is whole; dtckpt verify %s names what is damaged; bring one back, or begin "
            "anew with --fresh",
            job->checkpoint_dir, job->checkpoint_dir);
    }
}

/* The checkpoint that was loaded, or what stands for a snapshot, is one of checkpoint_dir. */
static bool is_own(const struct trainer *t, const char *loaded)
{
    struct saved_snapshot snapshot;
    char *own = checkpoint_path(t->job->checkpointing.checkpoint_dir, t->run.step);
    bool is = trainer_is_snapshot(loaded, &snapshot) || trainer_same_file(loaded, own);
    free(own);
    return is;
}

/* True if `path` (null: none) is the folder or lies in it. */
static bool lies_in(const char *folder, const char *path)
{
    char *outer = realpath(folder, NULL), *inner = path != NULL ? realpath(path, NULL) : NULL;
    size_t size = outer != NULL ? strlen(outer) : 0;
    bool lies = outer != NULL && inner != NULL && strncmp(inner, outer, size) == 0 &&
                (inner[size] == '\0' || inner[size] == '/');
    free(inner);
    free(outer);
    return lies;
}

/* Rank 0, where a launch begins a course: what output_dir holds of an earlier one, which may have its checkpoints
 * elsewhere, is neither cut nor replaced. A model that the job reads stays where it is. */
static int clear_output(struct trainer *t, const struct search *s, struct dt_error *err)
{
    static const char *const names[] = {"metrics.jsonl", "metrics.csv", "model"};
    bool checked = s->anew; /* begin_search has */
    int rc = 0;
    for (int i = 0; i < 3 && rc == 0; i++) {
        char *path = dt_format("%s/%s", t->job->output_dir, names[i]);
        if (dt_file_exists(path) && !lies_in(path, t->job->model.load) && !lies_in(path, t->job->data.tokenizer)) {
            rc = checked || trainer_check_weights(t, err) == 0 ? course_set_aside(path, err) : -1;
            checked = true;
            if (rc == 0 && !s->anew) {
                observers_say(&t->observers, "train: %s: is of another run: set aside (%s.old-N)", path, names[i]);
            }
        }
        free(path);
    }
    return rc;
}

/* Rank 0, once the beginning is loaded: what is newer is no part of this course, and later
 * rounds need not begin again. */
static int settle_course(struct trainer *t, struct search *s, const char *loaded, struct dt_error *err)
{
    const struct job_checkpointing *job = &t->job->checkpointing;
    int64_t first = 0, last = 0, after = loaded != NULL && is_own(t, loaded) ? t->run.step : -1;
    int left = course_leave_behind(job->checkpoint_dir, after, &first, &last, err);
    if (left == 1) {
        observers_say(&t->observers,
                      "train: %s: 1 checkpoint, of step %lld, is newer than what this course goes on from: set aside "
                      "(step-N.old-1)",
                      job->checkpoint_dir, (long long)first);
    } else if (left > 1) {
        observers_say(&t->observers,
                      "train: %s: %d checkpoints, of steps %lld to %lld, are newer than what this course goes on from: "
                      "set aside (step-N.old-1)",
                      job->checkpoint_dir, left, (long long)first, (long long)last);
    }
    return left < 0 ? -1
                    : course_write(job->checkpoint_dir, run_id_of(t), t->world->launch,
                                   s->named  ? job->resume
                                   : s->anew ? ""
                                             : s->course.from,
                                   err);
}

/* ---- all ranks ---- */

/* This rank's part of the checksums; "ok", or why not. */
static void check_part(struct trainer *t, const char *path, struct dt_text *out)
{
    struct checkpoint *c = NULL;
    struct dt_error why;
    struct saved_snapshot snapshot;
    bool is_snapshot = trainer_is_snapshot(path, &snapshot);
    if (!is_snapshot && checkpoint_open(&c, path, &why) == 0) {
        checkpoint_progress(c, trainer_pulse, t->world->page);
    }
    if (is_snapshot ? trainer_check_snapshot(t, &snapshot, &why) == 0
                    : c != NULL && checkpoint_verify_part(c, t->rank, t->size, &why) == 0) {
        dt_text_puts(out, "ok");
    } else {
        trainer_tell_failure(out, &why);
    }
    checkpoint_close(c);
}

/* Which checkpoint rank 0 proposes: "NUMBER" is the step of one of the run's own, "#..." a snapshot,
 * "@PATH" what checkpointing.resume names, "" none. No path that a rank reads is used: each rank makes it of its
 * own job. */
static void tell_path(const struct trainer *t, const char *path, struct dt_text *out)
{
    int64_t step = step_in(path);
    struct saved_snapshot snapshot;
    char *own = checkpoint_path(t->job->checkpointing.checkpoint_dir, step);
    if (trainer_is_snapshot(path, &snapshot)) {
        dt_text_puts(out, path);
    } else if (path[0] != '\0' && strcmp(own, path) == 0) {
        dt_text_printf(out, "%lld", (long long)step);
    } else if (path[0] != '\0') {
        dt_text_printf(out, "@%s", path);
    }
    free(own);
}

/* *path: what was said, in this rank's words; empty: nothing is left. */
static int hear_path(const struct trainer *t, const char *said, struct dt_text *path, struct dt_error *err)
{
    const struct job_checkpointing *job = &t->job->checkpointing;
    long long step = -1;
    struct saved_snapshot snapshot;
    dt_text_reset(path);
    if (trainer_is_snapshot(said, &snapshot)) {
        dt_text_puts(path, said);
    } else if (dt_parse_int64(said, &step) && step >= 0) {
        char *own = checkpoint_path(job->checkpoint_dir, step);
        dt_text_puts(path, own);
        free(own);
    } else if (said[0] == '@' && is_name(job->resume) && strcmp(said + 1, job->resume) == 0) {
        dt_text_puts(path, job->resume);
    } else if (said[0] != '\0') {
        (void)dt_fail(err, DT_INVALID,
                      "rank 0 continues from \"%.200s\", and checkpointing.resume is %.200s here; give all hosts the "
                      "same job",
                      said + (said[0] == '@'), job->resume != NULL ? job->resume : "auto");
        return dt_blame(err, DT_FAULT_FAILED, t->rank);
    }
    return 0;
}

/* One proposal: *path becomes what all ranks look at (empty: nothing is left), *good whether all
 * of it is sound. */
static int try_one(struct trainer *t, struct search *s, int try, struct dt_text *path, bool *good, struct dt_error *err)
{
    char key[64];
    snprintf(key, sizeof key, "train/resume/%d", try);
    if (s->failed) {
        trainer_say_cause(t, &s->why);
    }
    struct dt_text said;
    dt_text_init(&said);
    tell_path(t, dt_text_str(path), &said);
    int rc = trainer_share(t, key, &said, s->failed ? &s->why : NULL, FOR_EVER_S, err);
    rc = rc == 0 && t->rank != 0 ? hear_path(t, dt_text_str(&said), path, err) : rc;
    dt_text_clear(&said);
    if (rc != 0 || path->size == 0) {
        return rc;
    }
    struct dt_text vote, verdict;
    struct dt_error why;
    dt_text_init(&vote);
    dt_text_init(&verdict);
    check_part(t, path->data, &vote);
    bool refused = false;
    int who = 0;
    if (t->rank == 0) {
        if (trainer_hear_all(t, key, &vote, &who, &why) == 0) {
            dt_text_puts(&verdict, "good");
        } else if (path->data[0] == '#') {
            observers_say(&t->observers, "train: %s; the newest checkpoint is tried", why.text);
        } else if (why.status == DT_INVALID && !s->named) {
            s->damaged++;
            pass_over(t, s, why.text);
        } else { /* not damaged but out of reach for a rank: an older one would be no better */
            refused = true;
            trainer_say_for(t, who, &why);
        }
    } else {
        snprintf(key, sizeof key, "train/resume/%d/%d", try, t->rank);
        rc = dt_store_set(t->world->store, key, dt_text_str(&vote), vote.size, err);
    }
    snprintf(key, sizeof key, "train/resume/%d/verdict", try);
    rc = rc == 0 ? trainer_share(t, key, &verdict, refused ? &why : NULL, FOR_EVER_S, err) : rc;
    *good = rc == 0 && verdict.size > 0;
    dt_text_clear(&vote);
    dt_text_clear(&verdict);
    return rc;
}

/* Rank 0 learns that all have what they continue from. loaded: what came of it here. Only then
 * is anything renamed: whoever cannot read it ends the run as the last one left it. */
static int all_loaded(struct trainer *t, int loaded, struct dt_error *err)
{
    char key[64];
    struct dt_text word;
    dt_text_init(&word);
    if (loaded == 0) {
        dt_text_puts(&word, "ok");
    } else {
        trainer_tell_failure(&word, err);
    }
    int rc = loaded, who = 0;
    if (t->rank > 0) {
        struct dt_error why;
        snprintf(key, sizeof key, "train/loaded/%d", t->rank);
        rc = dt_store_set(t->world->store, key, dt_text_str(&word), word.size, loaded == 0 ? err : &why) == 0 ? loaded
                                                                                                              : -1;
    } else if (loaded == 0) {
        rc = trainer_hear_all(t, "train/loaded", &word, &who, err);
        if (rc != 0 && who > 0) {
            trainer_name_rank(who, err);
            trainer_mark_heard(t, err);
        }
    }
    dt_text_clear(&word);
    return rc;
}

/* Best checkpoints that a manifest lists stay if they are in checkpoint_dir, as rank 0 sees it. Where one is not, the
 * evaluation of this step is judged once more: it may be one of the best now. */
static int keep_best(struct trainer *t, const char *loaded, struct dt_error *err)
{
    const struct job_checkpointing *job = &t->job->checkpointing;
    struct best_list *l = &t->run.best;
    struct dt_text there;
    char word[32];
    if (job->save_top_k == 0) {
        return 0;
    }
    dt_text_init(&there);
    bool own = t->rank == 0 && is_own(t, loaded);
    dt_text_puts(&there, own ? "own " : "other ");
    for (int i = 0; i < l->count && own; i++) {
        char *path = checkpoint_path(job->checkpoint_dir, l->item[i].step);
        if (checkpoint_looks_whole(path)) {
            dt_text_printf(&there, "%lld ", (long long)l->item[i].step);
        }
        free(path);
    }
    int rc = trainer_share(t, "train/best", &there, NULL, FOR_EVER_S, err);
    t->saver.elsewhere = rc == 0 && strncmp(there.data, "other", 5) == 0;
    l->seen = t->saver.elsewhere ? 0 : l->seen;
    for (int i = l->count - 1; i >= 0 && rc == 0; i--) {
        (void)snprintf(word, sizeof word, " %lld ", (long long)l->item[i].step);
        if (strstr(there.data, word) == NULL) {
            best_remove(l, l->item[i].step);
            l->seen = 0;
        }
    }
    dt_text_clear(&there);
    return rc;
}

int trainer_resume(struct trainer *t, bool *found, struct dt_error *err)
{
    struct search s = {.path = NULL};
    struct job_changes changes = {.count = 0};
    struct dt_text path;
    dt_text_init(&path);
    s.failed = t->rank == 0 && hold_folders(t, &s.why) != 0;
    int rc = trainer_check_shared(t, &s.failed, &s.why, err);
    if (rc == 0 && t->rank == 0 && !s.failed) {
        s.failed = begin_search(t, &s, &s.why) != 0;
    }
    rc = rc == 0 ? trainer_offer_snapshots(t, err) : rc;
    *found = false;
    for (int try = 0; rc == 0 && !*found; try++) {
        dt_text_reset(&path);
        if (t->rank == 0 && !s.failed) {
            propose(t, &s, &path);
        }
        rc = try_one(t, &s, try, &path, found, err);
        if (rc == 0 && path.size == 0) {
            break;
        }
    }
    if (s.skipped > NOTES_SHOWN) {
        observers_say(&t->observers, "train: %d more were passed over; dtckpt verify %s names them all",
                      s.skipped - NOTES_SHOWN, t->job->checkpointing.checkpoint_dir);
    }
    if (*found) {
        rc = all_loaded(t, trainer_load(t, path.data, &changes, err), err);
        rc = rc == 0 ? trainer_spread_snapshot(t, path.data, err) : rc;
        rc = rc == 0 ? keep_best(t, path.data, err) : rc;
    }
    if (rc == 0) {
        trainer_keep_snapshot(t, *found ? path.data : NULL);
    }
    if (rc == 0 && t->rank == 0) {
        bool goes_on = s.begun || (*found && is_own(t, path.data));
        rc = goes_on ? 0 : clear_output(t, &s, err);
        rc = rc == 0 ? settle_course(t, &s, *found ? path.data : NULL, err) : rc;
    }
    if (rc == 0 && !*found && s.skipped > 0) {
        observers_say(&t->observers, "train: %s: nothing to continue from; begins anew",
                      t->job->checkpointing.checkpoint_dir);
    }
    if (rc == 0 && *found && s.name_last && !s.named && t->world->round <= 1) {
        observers_say(&t->observers,
                      "train: began from %s and goes on from its own saves; another output_dir begins there once more",
                      t->job->checkpointing.resume);
    }
    if (rc == 0 && *found) {
        bool snapshot = path.data[0] == '#';
        observers_say(&t->observers, "train: continues from %s (step %lld)", snapshot ? "a snapshot" : path.data,
                      (long long)t->run.step);
        char fields[96];
        snprintf(fields, sizeof fields, "\"step\": %lld, \"round\": %d%s", (long long)t->run.step, t->world->round,
                 snapshot ? ", \"snapshot\": true" : "");
        observers_event(&t->observers, "resume", fields);
        trainer_say_changes(t, &changes);
    }
    search_clear(&s);
    dt_text_clear(&path);
    return rc;
}

/* The run may go on from there, and stands there then. */
static int check_one(struct trainer *t, const struct checkpoint *c, const char *path, struct dt_error *err)
{
    struct job_changes changes;
    const struct checkpoint_state *state = checkpoint_get_state(c);
    if (trainer_check_saved(t, state, path, &changes, err) != 0) {
        return -1;
    }
    trainer_take_place(t, state, &changes);
    return 0;
}

/* The first of a run's own checkpoints that looks whole from outside, as a start would find it;
 * *seen: there is one. */
static int check_own(struct trainer *t, const struct search *s, bool *seen, struct dt_error *err)
{
    int rc = 0;
    *seen = false;
    for (int i = 0; i < s->count && !*seen; i++) {
        struct checkpoint *c = NULL;
        char *path = checkpoint_path(t->job->checkpointing.checkpoint_dir, s->steps[i]);
        *seen = checkpoint_open(&c, path, NULL) == 0;
        rc = *seen ? check_one(t, c, path, err) : 0;
        checkpoint_close(*seen ? c : NULL);
        free(path);
    }
    return rc;
}

static int check_named(struct trainer *t, struct search *s, struct dt_error *err)
{
    const struct job_checkpointing *job = &t->job->checkpointing;
    struct checkpoint *c = NULL;
    if (find_named(s, job->checkpoint_dir, job->resume, err) != 0) {
        return -1;
    }
    int rc = checkpoint_open(&c, s->path, err);
    rc = rc == 0 ? check_one(t, c, s->path, err) : rc;
    checkpoint_close(c);
    return rc == 0 ? 0 : dt_wrap(err, "checkpointing.resume");
}

int trainer_check_free(const struct job *job, struct dt_error *err)
{
    const char *run_id = getenv("TORCHELASTIC_RUN_ID"), *hosts = getenv("GROUP_WORLD_SIZE");
    bool more_hosts = hosts != NULL && atoi(hosts) > 1; /* a host that comes late finds its own
                                                         * job there */
    char *output = place_in_output(job);
    run_id = more_hosts ? run_id : NULL;
    int rc = checkpoint_check_free(job->checkpointing.checkpoint_dir, run_id, FREE_WAIT_S, err) == 0
                 ? checkpoint_check_free(output, run_id, FREE_WAIT_S, err)
                 : -1;
    free(output);
    return rc;
}

int trainer_check_folder(struct trainer *t, struct dt_error *err)
{
    const struct job_checkpointing *job = &t->job->checkpointing;
    const char *resume = job->resume != NULL ? job->resume : "auto";
    struct search s = {.path = NULL};
    bool seen = false;
    if (t->job->fresh || strcmp(resume, "never") == 0) {
        return 0;
    }
    if (checkpoint_steps(job->checkpoint_dir, &s.steps, &s.count, NULL) != 0) {
        s.count = 0;
    }
    course_read(&s.course, job->checkpoint_dir);
    bool own_first = !is_name(resume) || strcmp(s.course.from, resume) == 0;
    int rc = own_first ? check_own(t, &s, &seen, err) : 0;
    if (rc == 0 && !seen && is_name(resume)) {
        rc = check_named(t, &s, err);
    }
    search_clear(&s);
    return rc;
}
