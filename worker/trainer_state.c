/* Weights at the beginning, checkpoints in between, the output folder. Everything is expressed in logical elements of named
 * tensors, so any strategy and world size reads what any other wrote: a rank loads exactly what it keeps. Ranks agree through the
 * store; no collective is needed, so a save cannot hang in one. */
#include "worker/trainer.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "worker/checkpoint_export.h"
#include "worker/hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define AGREE_TIMEOUT_S 600.0
#define FOR_EVER_S 1e9

/* ---- weights ---- */

int trainer_init_weights(struct trainer *t, struct dt_error *err)
{
    struct strategy *s = &t->strategy;
    struct hf *hf = NULL;
    if (t->job->model.load && hf_open(&hf, t->job->model.load, &t->chain, err) != 0) {
        return dt_wrap(err, "model.load");
    }
    int rc = 0;
    for (int u = 0; u < t->chain.unit_count && rc == 0; u++) {
        int64_t first, count;
        void *at = strategy_resident(s, u, &first, &count);
        if (hf) {
            rc = hf_read_unit(hf, u, first, count, s->type, at, err);
        } else {
            init_unit(&t->chain, u, (uint64_t)t->job->training.seed, first, count, s->type, at);
        }
        dt_page_pulse(t->world->page);
    }
    hf_close(hf);
    return rc;
}

/* Calls back for each piece of a tensor inside [first, first + count) of its unit. */
struct span {
    const struct tensor *tensor;
    int64_t at, first, count; /* at: elements from the start of the range; first: in the tensor */
};

static bool cut(const struct tensor *x, int64_t first, int64_t count, struct span *out)
{
    int64_t begin = x->offset > first ? x->offset : first, end = x->offset + x->numel;
    end = end < first + count ? end : first + count;
    *out = (struct span){.tensor = x, .at = begin - first, .first = begin - x->offset, .count = end - begin};
    return end > begin;
}

/* Reads one span of a checkpoint into elements of type `type` at base + at. */
static int read_span(struct checkpoint *c, const char *purpose, const struct span *s, char *base, enum dt_dtype type, struct dt_error *err)
{
    char *to = base + (size_t)s->at * dt_dtype_size(type);
    const char *name = s->tensor->name;
    if (type == DT_F32) {
        return checkpoint_read(c, purpose, name, s->tensor->numel, s->first, s->count, (float *)(void *)to, err);
    }
    float *wide = dt_alloc((size_t)s->count * sizeof *wide);
    int rc = checkpoint_read(c, purpose, name, s->tensor->numel, s->first, s->count, wide, err);
    for (int64_t i = 0; rc == 0 && i < s->count; i++) {
        ((double *)(void *)to)[i] = wide[i];
    }
    free(wide);
    return rc;
}

static int read_unit(struct trainer *t, struct checkpoint *c, int u, struct dt_error *err)
{
    struct strategy *s = &t->strategy;
    struct optimizer *o = &t->optimizer;
    int64_t first, count, owned_first, owned_count;
    char *weights = strategy_resident(s, u, &first, &count);
    strategy_owned(s, u, &owned_first, &owned_count);
    size_t moment = (size_t)o->unit_first[u] * s->type_size;
    for (int i = 0; i < t->chain.tensor_count; i++) {
        const struct tensor *x = &t->chain.tensors[i];
        struct span span;
        if (x->unit != u) {
            continue;
        }
        if (cut(x, first, count, &span) && read_span(c, "weight", &span, weights, s->type, err) != 0) {
            return -1;
        }
        if (cut(x, owned_first, owned_count, &span) && (read_span(c, "exp_avg", &span, o->m + moment, s->type, err) != 0 ||
                                                        read_span(c, "exp_avg_sq", &span, o->v + moment, s->type, err) != 0)) {
            return -1;
        }
    }
    return 0;
}

int trainer_load(struct trainer *t, const char *path, struct dt_error *err)
{
    struct checkpoint *c = NULL;
    if (checkpoint_open(&c, path, err) != 0) {
        return -1;
    }
    const struct checkpoint_state *state = checkpoint_get_state(c);
    int rc = 0;
    if (state->job && t->job->text && job_same_training(state->job, t->job->text, err) != 0) {
        rc = dt_wrap(err, "%s", path);
    } else if (state->data_hash != t->train.hash) {
        rc = dt_fail(err, DT_INVALID, "%s: data.train: not the data it was trained on; bring the old data back, or begin anew with --fresh", path);
    }
    for (int u = 0; u < t->chain.unit_count && rc == 0; u++) {
        rc = read_unit(t, c, u, err);
        dt_page_pulse(t->world->page);
    }
    if (rc == 0) {
        t->step = t->saved_step = state->step;
        t->epoch = state->epoch;
        t->position = state->position;
        t->tokens = state->tokens;
        t->optimizer.steps = state->optimizer_steps;
        atomic_store(&t->world->page->step, t->step);
        atomic_store(&t->world->page->saved_step, t->step);
        trainer_count(t);
    }
    checkpoint_close(c);
    return rc;
}

/* ---- agreement ---- */

/* Rank 0's text reaches all ranks; "!status text" is an error on all of them. */
static int agree(struct trainer *t, const char *key, struct dt_text *text, double timeout_s, struct dt_error *err)
{
    struct dt_store *store = t->world->store;
    if (t->size > 1) {
        if (t->rank == 0 && dt_store_set(store, key, dt_text_str(text), text->size, err) != 0) {
            return -1;
        }
        if (t->rank != 0 && dt_store_get(store, key, text, timeout_s, err) != 0) {
            return dt_wrap(err, "rank %d waits for rank 0", t->rank);
        }
    }
    const char *s = dt_text_str(text);
    if (s[0] == '!') {
        return dt_fail(err, (enum dt_status)atoi(s + 1), "%s", strchr(s, ' ') ? strchr(s, ' ') + 1 : s);
    }
    return 0;
}

static void set_failure(struct dt_text *text, const struct dt_error *err)
{
    dt_text_reset(text);
    dt_text_printf(text, "!%d %s", (int)err->status, err->text);
}

int trainer_agree(struct trainer *t, const char *key, bool *flag, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, *flag ? "yes" : "no");
    int rc = agree(t, key, &text, AGREE_TIMEOUT_S, err);
    *flag = rc == 0 && strcmp(dt_text_str(&text), "yes") == 0;
    dt_text_clear(&text);
    return rc;
}

/* ---- resume ---- */

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

#define HOLD_WAIT_S 10.0 /* for a rank 0 of the round before that is still ending */

/* Rank 0: which checkpoint to load; empty text for none. Later rounds of a launch go on from the launch's own saves, whatever
 * the job says about the beginning. */
static int choose(struct trainer *t, struct dt_text *out, struct dt_error *err)
{
    const struct job_checkpointing *job = &t->job->checkpointing;
    const char *resume = job->resume ? job->resume : "auto";
    bool first_round = t->world->round <= 1, never = strcmp(resume, "never") == 0;
    if (t->hold < 0 && checkpoint_hold(job->checkpoint_dir, HOLD_WAIT_S, &t->hold, err) != 0) {
        return -1;
    }
    if (first_round && (t->job->fresh || never)) {
        char *metrics = dt_format("%s/metrics.jsonl", t->job->output_dir);
        int rc = set_aside(job->checkpoint_dir, err) != 0 || set_aside(metrics, err) != 0 ? -1 : 0;
        free(metrics);
        return rc != 0 || dt_file_mkdirs(job->checkpoint_dir, err) != 0 ||
                       checkpoint_claim(job->checkpoint_dir, t->world->run_id, t->world->round, err) != 0
                   ? -1
                   : 0;
    }
    if (dt_file_mkdirs(job->checkpoint_dir, err) != 0 || checkpoint_claim(job->checkpoint_dir, t->world->run_id, t->world->round, err) != 0) {
        return -1;
    }
    bool named = !never && strcmp(resume, "auto") != 0;
    char *path = NULL;
    struct dt_text notes;
    dt_text_init(&notes);
    int rc = 0;
    if (!named || !first_round) {
        rc = checkpoint_find(job->checkpoint_dir, &path, &notes, err);
        if (notes.size > 0) {
            metrics_say(&t->metrics, "train: %.*s", (int)strcspn(notes.data, "\n"), notes.data);
        }
        if (rc != 0 && err->status == DT_NOT_FOUND) {
            rc = 0;
        }
    }
    if (rc == 0 && (path || (named && !t->job->fresh))) {
        dt_text_puts(out, path ? path : resume);
    }
    free(path);
    dt_text_clear(&notes);
    return rc;
}

int trainer_resume(struct trainer *t, bool *found, struct dt_error *err)
{
    struct dt_text path;
    dt_text_init(&path);
    if (t->rank == 0) {
        struct dt_error why;
        if (choose(t, &path, &why) != 0) {
            set_failure(&path, &why);
        }
    }
    int rc = agree(t, "train/resume", &path, AGREE_TIMEOUT_S, err);
    *found = rc == 0 && path.size > 0;
    if (*found) {
        rc = trainer_load(t, path.data, err);
    }
    if (rc == 0 && *found) {
        metrics_say(&t->metrics, "train: continues from %s (step %lld)", path.data, (long long)t->step);
        char fields[64];
        snprintf(fields, sizeof fields, "\"step\": %lld, \"round\": %d", (long long)t->step, t->world->round);
        metrics_event(&t->metrics, "resume", fields);
    }
    dt_text_clear(&path);
    return rc;
}

/* ---- save ---- */

/* This rank's shares of all tensors, three purposes each. Data in another type than fp32 is converted into `arena`. */
static int list_slices(struct trainer *t, struct checkpoint_slice *out, struct dt_arena *arena)
{
    static const char *const purposes[] = {"weight", "exp_avg", "exp_avg_sq"};
    struct strategy *s = &t->strategy;
    struct optimizer *o = &t->optimizer;
    int n = 0;
    for (int i = 0; i < t->chain.tensor_count && strategy_counts(s); i++) {
        const struct tensor *x = &t->chain.tensors[i];
        int64_t first, count, owned_first, owned_count;
        struct span span;
        strategy_share(s, x->unit, &first, &count);
        strategy_owned(s, x->unit, &owned_first, &owned_count);
        if (!cut(x, first, count, &span)) {
            continue;
        }
        int64_t at = span.at + first - owned_first; /* from the start of the owned part */
        size_t moment = (size_t)(o->unit_first[x->unit] + at) * s->type_size;
        const char *from[] = {(char *)s->weights->slice(s, x->unit) + (size_t)at * s->type_size, o->m + moment, o->v + moment};
        for (int k = 0; k < 3; k++) {
            struct checkpoint_slice *y = &out[n++];
            *y = (struct checkpoint_slice){
                .name = x->name, .purpose = purposes[k], .dims = x->dims, .numel = x->numel, .first = span.first, .count = span.count};
            memcpy(y->shape, x->shape, sizeof y->shape);
            y->data = (const float *)(const void *)from[k];
            if (s->type == DT_F64) {
                float *narrow = dt_arena_alloc(arena, (size_t)span.count * sizeof *narrow);
                for (int64_t j = 0; j < span.count; j++) {
                    narrow[j] = (float)((const double *)(const void *)from[k])[j];
                }
                y->data = narrow;
            }
        }
    }
    return n;
}

static double save_timeout_s(const struct trainer *t)
{
    double limit_s = t->job->checkpointing.save_timeout_s;
    return limit_s > 0 ? limit_s : FOR_EVER_S;
}

/* Rank 0: waits for everybody's entry, then makes the checkpoint complete. */
static int commit(struct trainer *t, const struct checkpoint_state *state, struct dt_text *own, struct dt_error *err)
{
    const struct job_checkpointing *job = &t->job->checkpointing;
    struct dt_text *texts = dt_alloc((size_t)t->size * sizeof *texts);
    const char **entries = dt_alloc((size_t)t->size * sizeof *entries);
    int rc = 0;
    entries[0] = dt_text_str(own);
    for (int r = 1; r < t->size; r++) {
        char key[64];
        snprintf(key, sizeof key, "train/save/%lld/%d", (long long)state->step, r);
        dt_text_init(&texts[r]);
        if (rc == 0 && dt_store_get(t->world->store, key, &texts[r], save_timeout_s(t), err) != 0) {
            rc = dt_wrap(err, "checkpoint of step %lld: rank %d", (long long)state->step, r);
        }
        entries[r] = dt_text_str(&texts[r]);
        if (rc == 0) {
            (void)dt_store_delete(t->world->store, key, NULL, NULL);
        }
        dt_page_pulse(t->world->page);
    }
    for (int r = 0; r < t->size && rc == 0; r++) {
        if (entries[r][0] == '!') {
            rc = dt_fail(err, (enum dt_status)atoi(entries[r] + 1), "rank %d: %s", r, strchr(entries[r], ' ') + 1);
        }
    }
    if (rc == 0) {
        rc = checkpoint_commit(job->checkpoint_dir, state, entries, t->size, (int)job->keep_last_n, err);
    }
    for (int r = 1; r < t->size; r++) {
        dt_text_clear(&texts[r]);
    }
    free(texts);
    free(entries);
    return rc;
}

int trainer_save(struct trainer *t, struct dt_error *err)
{
    if (trainer_settle(t, "save", err) != 0) {
        return -1;
    }
    const struct model_ops *model = model_find(t->chain.spec.name);
    struct dt_arena arena;
    struct dt_text config, entry, verdict;
    dt_arena_init(&arena);
    dt_text_init(&config);
    dt_text_init(&entry);
    dt_text_init(&verdict);
    model->write_config(&t->chain.spec, &config);
    struct checkpoint_state state = {.step = t->step,
                                     .epoch = t->epoch,
                                     .position = t->position,
                                     .tokens = t->tokens,
                                     .optimizer_steps = t->optimizer.steps,
                                     .seed = t->job->training.seed,
                                     .data_hash = t->train.hash,
                                     .job = t->job->text ? t->job->text : "{}",
                                     .model_config = dt_text_str(&config),
                                     .ranks = t->size,
                                     .round = t->world->round,
                                     .run_id = t->world->run_id};
    struct checkpoint_slice *slices = dt_arena_alloc(&arena, (size_t)(3 * t->chain.tensor_count + 1) * sizeof *slices);
    int count = list_slices(t, slices, &arena);
    struct dt_error why;
    double begin_s = dt_now_s();
    if (checkpoint_write_slices(t->job->checkpointing.checkpoint_dir, &state, t->rank, t->size, slices, count, &entry, &why) != 0) {
        set_failure(&entry, &why);
    }
    char key[64];
    snprintf(key, sizeof key, "train/save/%lld/%d", (long long)t->step, t->rank);
    int rc = 0;
    if (t->rank == 0) {
        if (commit(t, &state, &entry, &why) != 0) {
            set_failure(&verdict, &why);
            checkpoint_discard(t->job->checkpointing.checkpoint_dir, &state);
        } else {
            dt_text_puts(&verdict, "saved");
        }
    } else {
        rc = dt_store_set(t->world->store, key, dt_text_str(&entry), entry.size, err);
    }
    if (rc == 0) {
        snprintf(key, sizeof key, "train/saved/%lld", (long long)t->step);
        /* Rank 0 waits for each of the others in turn, and then writes. */
        rc = agree(t, key, &verdict, t->size * save_timeout_s(t) + AGREE_TIMEOUT_S, err);
    }
    if (rc == 0) {
        t->saved_step = t->step;
        atomic_store(&t->world->page->saved_step, t->step);
        char fields[96];
        snprintf(fields, sizeof fields, "\"step\": %lld, \"seconds\": %.3f, \"round\": %d", (long long)t->step, dt_now_s() - begin_s,
                 t->world->round);
        metrics_event(&t->metrics, "save", fields);
    }
    dt_page_pulse(t->world->page);
    dt_text_clear(&config);
    dt_text_clear(&entry);
    dt_text_clear(&verdict);
    dt_arena_clear(&arena);
    return rc;
}

int trainer_export(struct trainer *t, struct dt_error *err)
{
    char *path = NULL, *folder = dt_format("%s/model", t->job->output_dir);
    struct checkpoint *c = NULL;
    int rc = -1;
    if (t->finished_before && checkpoint_is_exported(folder, t->step)) {
        rc = 0;
        goto out;
    }
    if (checkpoint_find(t->job->checkpointing.checkpoint_dir, &path, NULL, err) != 0 || checkpoint_open(&c, path, err) != 0 ||
        checkpoint_export(c, folder, err) != 0) {
        (void)dt_wrap(err, "export of the model");
        goto out;
    }
    metrics_event(&t->metrics, "export", "");
    rc = 0;
out:
    checkpoint_close(c);
    free(path);
    free(folder);
    return rc;
}

/* ---- the output folder ---- */

static void write_env(const struct trainer *t, struct dt_text *out)
{
    char host[256] = "", when[32];
    (void)gethostname(host, sizeof host - 1);
    dt_wall_text(dt_wall_s(), when, sizeof when);
    const char *text = t->job->text ? t->job->text : "";
    dt_text_printf(out, "{\n  \"version\": \"%s\",\n  \"time\": \"%s\",\n  \"host\": ", DT_VERSION, when);
    dt_text_json(out, host, strlen(host));
    dt_text_printf(out,
                   ",\n  \"ranks\": %d,\n  \"nodes\": %d,\n  \"round\": %d,\n  \"device\": \"%s\",\n  \"kernels\": \"%s\",\n  \"threads\": %d,\n",
                   t->size, t->world->node_count, t->world->round, t->world->device->ops->name, t->world->device->kernels->name, t->world->threads);
    dt_text_printf(out, "  \"job_hash\": \"%016llx\",\n  \"data_hash\": \"%016llx\"\n}\n", (unsigned long long)XXH3_64bits(text, strlen(text)),
                   (unsigned long long)t->train.hash);
}

int trainer_write_folder(struct trainer *t, struct dt_error *err)
{
    if (t->rank != 0) {
        return 0;
    }
    const char *dir = t->job->output_dir;
    char *logs = dt_format("%s/logs", dir), *job = dt_format("%s/job.json", dir), *env = dt_format("%s/env.json", dir);
    struct dt_text text;
    dt_text_init(&text);
    int rc = dt_file_mkdirs(logs, err);
    dt_file_remove_cut(dir);
    if (rc == 0 && t->job->text) {
        rc = dt_file_write(job, t->job->text, strlen(t->job->text), err);
    }
    write_env(t, &text);
    if (rc == 0) {
        rc = dt_file_write(env, text.data, text.size, err);
    }
    dt_text_clear(&text);
    free(logs);
    free(job);
    free(env);
    return rc == 0 ? 0 : dt_wrap(err, "output_dir");
}
