/* Where a run begins: anew, or from a checkpoint that all ranks agree on. Rank 0 proposes the newest one, every rank compares its part of the
 * checksums, and one that is damaged makes way for the one before. Ranks talk through the store, and show a pulse while they wait: how long reading
 * takes is up to disk and model, so whoever stands still is found by its agent and not by a deadline of the others. */
#include "worker/trainer.h"

#include "base/clock.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOR_EVER_S 1e9
#define WAIT_SLICE_S 1.0
#define HOLD_WAIT_S 10.0 /* for a rank 0 of the round before that is still ending */
#define NOTES_SHOWN 5

/* ---- agreement ---- */

int trainer_await(struct trainer *t, const char *key, struct dt_text *out, double timeout_s, struct dt_error *err)
{
    double until_s = dt_now_s() + timeout_s;
    for (;;) {
        double left_s = until_s - dt_now_s();
        if (dt_store_get(t->world->store, key, out, left_s < WAIT_SLICE_S ? left_s : WAIT_SLICE_S, err) == 0) {
            return 0;
        }
        if (err->status != DT_TIMEOUT || left_s <= WAIT_SLICE_S) {
            return -1;
        }
        dt_page_pulse(t->world->page);
    }
}

int trainer_share(struct trainer *t, const char *key, struct dt_text *text, double timeout_s, struct dt_error *err)
{
    if (t->size > 1) {
        if (t->rank == 0 && dt_store_set(t->world->store, key, dt_text_str(text), text->size, err) != 0) {
            return -1;
        }
        if (t->rank != 0 && trainer_await(t, key, text, timeout_s, err) != 0) {
            return dt_wrap(err, "rank %d waits for rank 0", t->rank);
        }
    }
    const char *s = dt_text_str(text);
    if (s[0] == '!') {
        const char *words = strchr(s, ' ') ? strchr(s, ' ') + 1 : s;
        int named; /* the others say whose failure it was */
        bool own = t->rank == 0 || sscanf(words, "rank %d:", &named) == 1;
        return dt_fail(err, (enum dt_status)atoi(s + 1), "%s%s", own ? "" : "rank 0: ", words);
    }
    return 0;
}

void trainer_share_failure(struct dt_text *text, const struct dt_error *err)
{
    dt_text_reset(text);
    dt_text_printf(text, "!%d %s", (int)err->status, err->text);
}

int trainer_agree(struct trainer *t, const char *key, bool *flag, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, *flag ? "yes" : "no");
    int rc = trainer_share(t, key, &text, FOR_EVER_S, err);
    *flag = rc == 0 && strcmp(dt_text_str(&text), "yes") == 0;
    dt_text_clear(&text);
    return rc;
}

/* ---- rank 0: what there is to load ---- */

struct search {
    bool named;     /* by checkpointing.resume: that one or none */
    bool name_last; /* a later round of such a run: its own saves first */
    char *path;     /* the one that is named */
    int64_t *steps; /* of checkpoint_dir, the newest first */
    int count, next, skipped;
};

/* A path that is not there yet: path.old-1, path.old-2, ... */
static int set_aside(const char *path, struct dt_error *err)
{
    if (!dt_file_exists(path)) {
        return 0;
    }
    for (int i = 1;; i++) {
        char *old = dt_format("%s.old-%d", path, i);
        bool taken = dt_file_exists(old);
        int rc = taken ? 0 : rename(path, old);
        if (!taken && rc != 0) {
            rc = dt_fail_errno(err, "%s", path);
        }
        free(old);
        if (!taken) {
            return rc;
        }
    }
}

/* Step number at the end of "runs/demo/checkpoints/step-00000300" or "step-300"; -1 when there is none. */
static int64_t step_in(const char *resume)
{
    const char *slash = strrchr(resume, '/'), *digits = slash ? slash + 1 : resume;
    if (strncmp(digits, "step-", 5) != 0) {
        return -1;
    }
    digits += 5;
    return *digits && strspn(digits, "0123456789") == strlen(digits) ? strtoll(digits, NULL, 10) : -1;
}

/* checkpointing.resume as a path: a folder, or the name of one of this run's checkpoints. What is not there is told with what is. */
static int find_named(struct search *s, const char *dir, const char *resume, struct dt_error *err)
{
    int64_t step = strchr(resume, '/') == NULL ? step_in(resume) : -1;
    s->path = dt_strdup(resume);
    if (step >= 0 && !dt_file_exists(resume)) {
        free(s->path);
        s->path = checkpoint_path(dir, step);
    }
    if (dt_file_exists(s->path)) {
        return 0;
    }
    /* The nearest of a sorted list lie side by side: from the first that is not newer, one each way at a time. */
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
            near.size > 0 ? " has the nearest at steps " : " holds none", dt_text_str(&near), near.size > 0 ? "" : "; begin with resume auto");
    dt_text_clear(&near);
    return -1;
}

/* Takes the folder and looks what is in it. Later rounds of a launch go on from the launch's own saves, whatever the job says about the
 * beginning. */
static int begin_search(struct trainer *t, struct search *s, struct dt_error *err)
{
    const struct job_checkpointing *job = &t->job->checkpointing;
    const char *resume = job->resume ? job->resume : "auto", *dir = job->checkpoint_dir;
    bool first_round = t->world->round <= 1, never = strcmp(resume, "never") == 0, anew = first_round && (t->job->fresh || never);
    if (t->hold < 0 && checkpoint_hold(dir, HOLD_WAIT_S, &t->hold, err) != 0) {
        return -1;
    }
    if (anew) {
        char *metrics = dt_format("%s/metrics.jsonl", t->job->output_dir);
        int rc = set_aside(dir, err) != 0 || set_aside(metrics, err) != 0 ? -1 : 0;
        free(metrics);
        if (rc != 0) {
            return -1;
        }
    }
    if (dt_file_mkdirs(dir, err) != 0 || checkpoint_claim(dir, t->world->run_id, t->world->round, err) != 0 ||
        (!anew && checkpoint_steps(dir, &s->steps, &s->count, err) != 0)) {
        return -1;
    }
    bool names = !never && !t->job->fresh && strcmp(resume, "auto") != 0;
    s->named = names && first_round;
    s->name_last = names && !first_round;
    return s->named ? find_named(s, dir, resume, err) : 0;
}

/* Says why a checkpoint is passed over; of very many, the first few. */
static void pass_over(struct trainer *t, struct search *s, const char *why)
{
    if (++s->skipped <= NOTES_SHOWN) {
        metrics_say(&t->metrics, "train: %s; the one before is tried", why);
    }
}

/* The path of the next checkpoint that looks whole from outside; empty when none is left. */
static void propose(struct trainer *t, struct search *s, struct dt_text *out)
{
    const struct job_checkpointing *job = &t->job->checkpointing;
    struct dt_error why;
    while (!s->named && out->size == 0 && s->next < s->count) {
        struct checkpoint *c = NULL;
        char *path = checkpoint_path(job->checkpoint_dir, s->steps[s->next++]);
        if (checkpoint_open(&c, path, &why) == 0) {
            dt_text_puts(out, path);
        } else {
            pass_over(t, s, why.text);
        }
        checkpoint_close(c);
        free(path);
        dt_page_pulse(t->world->page);
    }
    if (s->name_last && out->size == 0) {
        s->named = true;
        if (find_named(s, job->checkpoint_dir, job->resume, &why) != 0) {
            trainer_share_failure(out, &why);
        }
    }
    if (s->named && out->size == 0) {
        dt_text_puts(out, s->path);
    }
}

/* ---- all ranks ---- */

static void pulse(void *page)
{
    dt_page_pulse(page);
}

/* This rank's part of the checksums; "ok", or why not. */
static void check_part(struct trainer *t, const char *path, struct dt_text *out)
{
    struct checkpoint *c = NULL;
    struct dt_error why;
    if (checkpoint_open(&c, path, &why) == 0) {
        checkpoint_progress(c, pulse, t->world->page);
    }
    if (c != NULL && checkpoint_verify_part(c, t->rank, t->size, &why) == 0) {
        dt_text_puts(out, "ok");
    } else {
        trainer_share_failure(out, &why);
    }
    checkpoint_close(c);
}

/* Rank 0 hears all ranks: 0, or -1 with the first complaint. */
static int hear(struct trainer *t, int try, const struct dt_text *own, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    int rc = 0;
    for (int r = 0; r < t->size && rc == 0; r++) {
        char key[64];
        snprintf(key, sizeof key, "train/resume/%d/%d", try, r);
        if (r > 0 && trainer_await(t, key, &text, FOR_EVER_S, err) != 0) {
            rc = dt_wrap(err, "rank 0 waits for rank %d", r);
            break;
        }
        const char *said = dt_text_str(r > 0 ? &text : own);
        if (said[0] == '!') {
            rc = dt_fail(err, (enum dt_status)atoi(said + 1), "%s", strchr(said, ' ') + 1);
        }
    }
    dt_text_clear(&text);
    return rc;
}

/* One proposal: *path becomes what all ranks look at (empty: nothing is left), *good whether all of it is sound. */
static int try_one(struct trainer *t, struct search *s, int try, struct dt_text *path, bool *good, struct dt_error *err)
{
    char key[64];
    snprintf(key, sizeof key, "train/resume/%d", try);
    if (trainer_share(t, key, path, FOR_EVER_S, err) != 0 || path->size == 0) {
        return path->size == 0 ? 0 : -1;
    }
    struct dt_text vote, verdict;
    struct dt_error why;
    dt_text_init(&vote);
    dt_text_init(&verdict);
    check_part(t, path->data, &vote);
    int rc = 0;
    if (t->rank == 0) {
        if (hear(t, try, &vote, &why) == 0) {
            dt_text_puts(&verdict, "good");
        } else if (why.status == DT_INVALID && !s->named) {
            pass_over(t, s, why.text);
        } else { /* not damaged but out of reach for a rank: an older one would be no better */
            trainer_share_failure(&verdict, &why);
        }
    } else {
        snprintf(key, sizeof key, "train/resume/%d/%d", try, t->rank);
        rc = dt_store_set(t->world->store, key, dt_text_str(&vote), vote.size, err);
    }
    snprintf(key, sizeof key, "train/resume/%d/verdict", try);
    rc = rc == 0 ? trainer_share(t, key, &verdict, FOR_EVER_S, err) : rc;
    *good = rc == 0 && verdict.size > 0;
    dt_text_clear(&vote);
    dt_text_clear(&verdict);
    return rc;
}

int trainer_resume(struct trainer *t, bool *found, struct dt_error *err)
{
    struct search s = {.path = NULL};
    struct dt_text path;
    struct dt_error why;
    dt_text_init(&path);
    bool failed = t->rank == 0 && begin_search(t, &s, &why) != 0;
    int rc = 0;
    *found = false;
    for (int try = 0; rc == 0 && !*found; try++) {
        dt_text_reset(&path);
        if (failed) {
            trainer_share_failure(&path, &why);
        } else if (t->rank == 0) {
            propose(t, &s, &path);
        }
        rc = try_one(t, &s, try, &path, found, err);
        if (rc == 0 && path.size == 0) {
            break;
        }
    }
    if (s.skipped > NOTES_SHOWN) {
        metrics_say(&t->metrics, "train: %d more were passed over; dtckpt verify %s names them all", s.skipped - NOTES_SHOWN,
                    t->job->checkpointing.checkpoint_dir);
    }
    if (*found) {
        rc = trainer_load(t, path.data, err);
    }
    if (rc == 0 && *found) {
        metrics_say(&t->metrics, "train: continues from %s (step %lld)", path.data, (long long)t->step);
        char fields[64];
        snprintf(fields, sizeof fields, "\"step\": %lld, \"round\": %d", (long long)t->step, t->world->round);
        metrics_event(&t->metrics, "resume", fields);
    }
    free(s.steps);
    free(s.path);
    dt_text_clear(&path);
    return rc;
}
