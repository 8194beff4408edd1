/* The run in a manifest: where it stands, and the state of its schedule, loss scale, stopping rules
 * and data. */
#include "worker/checkpoints/manifest.h"

#include "base/scan.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* most bytes of a name in the list of data, which is for messages only */
enum { DATA_NAME_BYTES = 255 };

/* Writes as much of a name as fits the manifest, in whole characters. An invalid byte takes three
 * bytes, or an escape of six. */
static void put_data_name(struct dt_text *out, const char *name)
{
    size_t size = strlen(name), end = 0;
    for (size_t room = DATA_NAME_BYTES; end < size;) {
        size_t shown = dt_text_visible(name + end, size - end), taken = shown > 0 ? shown : 6;
        if (taken > room) {
            break;
        }
        room -= taken;
        end += shown > 0 ? shown : 1;
    }
    dt_text_json(out, name, end);
}

/* Steps without targets, where no step was skipped for another reason. */
static int64_t steps_left_over(const struct checkpoint_state *s)
{
    int64_t moved = s->optimizer_steps + s->scaler.skipped;
    return s->step > moved ? s->step - moved : 0;
}

static void put_stopper(struct dt_text *out, const struct stopper *s)
{
    if (s->checks > 0) {
        dt_text_printf(out,
                       ",\n\"stopper\":{\"checks\":%" PRId64 ",\"step\":%" PRId64 ",\"bad\":%" PRId64
                       ",\"reason\":%d,\"best\":",
                       s->checks, s->step, s->bad, (int)s->reason);
        dt_text_printf(out, isfinite(s->best) ? "%.17g,\"value\":" : "null,\"value\":", s->best);
        dt_text_printf(out, isfinite(s->value) ? "%.17g}" : "null}", s->value);
    }
}

static void put_values(struct dt_text *out, const char *key, const double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        dt_text_printf(out, "%s%.17g", i == 0 ? key : ",", x[i]);
    }
}

static void put_outliers(struct dt_text *out, const struct outlier_steps *x)
{
    if (x->kept > 0) {
        dt_text_printf(out, ",\n\"outliers\":{\"count\":%" PRId64, x->count);
        if (x->skipped > 0) {
            dt_text_printf(out, ",\"skipped\":%" PRId64, x->skipped);
        }
        put_values(out, ",\"loss\":[", x->loss, x->kept);
        put_values(out, "],\"norm\":[", x->norm, x->kept);
        dt_text_puts(out, "]}");
    }
}

static void put_best(struct dt_text *out, const struct best_list *l)
{
    if (l->seen == 0) {
        return;
    }
    dt_text_printf(out, ",\n\"best\":{\"seen\":%" PRId64 ",\"list\":[", l->seen);
    for (int i = 0; i < l->count; i++) {
        dt_text_printf(out, "%s{\"step\":%" PRId64 ",\"value\":", i > 0 ? "," : "", l->item[i].step);
        dt_text_printf(out, isfinite(l->item[i].value) ? "%.17g}" : "null}", l->item[i].value);
    }
    dt_text_puts(out, "]}");
}

void manifest_head(struct dt_text *out, const struct checkpoint_state *state)
{
    dt_text_printf(out,
                   "{\"format\":\"dtrun-checkpoint\",\"version\":1,\n\"step\":%" PRId64 ",\"epoch\":%" PRId64
                   ",\"position\":%" PRId64 ",\"tokens\":%" PRId64 ",\"optimizer_steps\":%" PRId64 ",\"seed\":%" PRId64
                   ",\"data_hash\":\"%016" PRIx64 "\",\"ranks\":%d,\"round\":%d,\n\"run_id\":",
                   state->step, state->epoch, state->position, state->tokens, state->optimizer_steps, state->seed,
                   state->data_hash, state->ranks, state->round);
    const char *run_id = state->run_id != NULL ? state->run_id : "";
    dt_text_json(out, run_id, strlen(run_id));
    const struct horizon *h = &state->horizon;
    if (h->of.micro_batch > 0) {
        dt_text_printf(out,
                       ",\n\"horizon\":{\"micro_batch\":%" PRId64 ",\"micro_steps\":%" PRId64 ",\"samples\":%" PRId64
                       ",\"base\":%" PRId64 ",\"rows\":%" PRId64 ",\"max_steps\":%" PRId64 ",\"end\":%" PRId64 "}",
                       h->of.micro_batch, h->of.micro_steps, h->samples, h->base, h->rows, h->max_steps, h->end);
    }
    if (state->blank_steps != steps_left_over(state)) {
        dt_text_printf(out, ",\n\"blank_steps\":%" PRId64, state->blank_steps);
    }
    const struct scaler_state *x = &state->scaler;
    if (x->scale > 0) {
        dt_text_printf(out,
                       ",\n\"loss_scale\":{\"scale\":%.17g,\"seen\":%" PRId64 ",\"last\":%" PRId64
                       ",\"hysteresis\":%" PRId64 ",\"good\":%" PRId64 ",\"skipped\":%" PRId64
                       ",\"skipped_samples\":%" PRId64 "}",
                       x->scale, x->seen, x->last, x->hysteresis, x->good, x->skipped, x->skipped_samples);
    }
    put_outliers(out, &state->outliers);
    const struct plateau *p = &state->plateau;
    if (p->checks > 0) {
        dt_text_printf(out,
                       ",\n\"plateau\":{\"checks\":%" PRId64 ",\"step\":%" PRId64 ",\"bad\":%" PRId64
                       ",\"cooldown\":%" PRId64 ",\"share\":%.17g,\"best\":",
                       p->checks, p->step, p->bad, p->cooldown, p->share);
        dt_text_printf(out, isfinite(p->best) ? "%.17g}" : "null}", p->best);
    }
    put_stopper(out, &state->stopper);
    put_best(out, &state->best);
    if (state->trained_s > 0) {
        dt_text_printf(out, ",\n\"trained_s\":%.6f", state->trained_s);
    }
    if (state->tokenizer != NULL && *state->tokenizer != 0) {
        dt_text_puts(out, ",\n\"tokenizer\":");
        dt_text_json(out, state->tokenizer, strlen(state->tokenizer));
    }
    for (int i = 0; i < state->data_count; i++) {
        const struct data_file *f = &state->data[i];
        dt_text_puts(out, i == 0 ? ",\n\"data\":[{\"name\":" : ",\n{\"name\":");
        put_data_name(out, f->name);
        dt_text_printf(out, ",\"count\":%" PRId64 ",\"hash\":\"%016" PRIx64 "\"}%s", f->count, f->hash,
                       i + 1 == state->data_count ? "]" : "");
    }
    dt_text_printf(out, ",\n\"job\":%s,\n\"model_config\":%s,\n\"files\":[", state->job != NULL ? state->job : "null",
                   state->model_config != NULL ? state->model_config : "null");
}

int manifest_read_count(const cJSON *object, const char *key, int64_t *out, struct dt_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 9e15) ||
        item->valuedouble != floor(item->valuedouble)) {
        return dt_fail(err, DT_INVALID, "%s: not a count", key);
    }
    *out = (int64_t)item->valuedouble;
    return 0;
}

/* Reads a whole number, which may be negative. */
static int read_whole(const cJSON *object, const char *key, double most, int64_t *out, struct dt_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble) <= most) || item->valuedouble != floor(item->valuedouble)) {
        return dt_fail(err, DT_INVALID, "%s: missing or out of range", key);
    }
    *out = (int64_t)item->valuedouble;
    return 0;
}

/* Reads the run's horizon. Checkpoints of older versions have none. */
static int read_horizon(struct horizon *h, const cJSON *root, struct dt_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "horizon");
    const struct {
        const char *key;
        /* rows: times the most epochs of job_fields.c, the product still fits int64_t */
        double most;
        int64_t *out;
    } all[] = {{"micro_batch", 1e12, &h->of.micro_batch},
               {"micro_steps", 1e6, &h->of.micro_steps},
               {"samples", 9e15, &h->samples},
               {"base", 9e15, &h->base}, /* negative if max_steps counted fewer samples than the
                                          * epochs have */
               {"rows", 9e12, &h->rows},
               {"max_steps", 1e12, &h->max_steps},
               {"end", 9e15, &h->end}};
    for (size_t i = 0; item != NULL && i < sizeof all / sizeof all[0]; i++) {
        if (read_whole(item, all[i].key, all[i].most, all[i].out, err) != 0) {
            return dt_wrap(err, "horizon");
        }
    }
    return item == NULL ||
                   (h->of.micro_batch > 0 && h->of.micro_steps > 0 && h->samples >= 0 && h->rows >= 0 && h->end >= 0)
               ? 0
               : dt_fail(err, DT_INVALID, "horizon: a number that is below 0");
}

const char *manifest_read_string(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) && strlen(item->valuestring) < MANIFEST_NAME_MAX_BYTES ? item->valuestring : NULL;
}

bool manifest_is_hash(const char *text)
{
    return text != NULL && strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16;
}

static bool read_hash(const cJSON *object, const char *key, uint64_t *out)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    *out = manifest_is_hash(text) ? strtoull(text, NULL, 16) : 0;
    return manifest_is_hash(text);
}

/* Reads the files of data.train, in order. Older versions wrote one hash over all files instead. */
static int read_data(struct manifest *m, const cJSON *root, struct dt_error *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "data"), *item;
    int count = cJSON_GetArraySize(list);
    if (count > DATA_FILES_MAX) {
        return dt_fail(err, DT_INVALID, "data: %d files; at most %d", count, DATA_FILES_MAX);
    }
    struct data_file *files = dt_arena_alloc(&m->arena, (size_t)count * sizeof *files + 1);
    cJSON_ArrayForEach(item, list)
    {
        struct data_file *f = &files[m->state.data_count++];
        const char *name = manifest_read_string(item, "name");
        name = name != NULL ? name : "?"; /* older versions wrote longer names */
        if (!read_hash(item, "hash", &f->hash)) {
            return dt_fail(err, DT_INVALID, "data: %s: without hash", name);
        }
        if (manifest_read_count(item, "count", &f->count, err) != 0) {
            return dt_wrap(err, "data: %s", name);
        }
        f->name = dt_arena_strdup(&m->arena, name);
    }
    m->state.data = files;
    const char *tokenizer = manifest_read_string(root, "tokenizer");
    m->state.tokenizer = dt_arena_strdup(&m->arena, tokenizer != NULL ? tokenizer : "");
    return 0;
}

static char *print_json(struct dt_arena *arena, const cJSON *item)
{
    char *text = cJSON_PrintUnformatted(item);
    char *copy = dt_arena_strdup(arena, text != NULL ? text : "null");
    cJSON_free(text);
    return copy;
}

/* Reads the state of reduce_lr_on_plateau, if there is some. */
static int read_plateau(struct plateau *p, const cJSON *root, struct dt_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "plateau"),
                *share = cJSON_GetObjectItemCaseSensitive(item, "share"),
                *best = cJSON_GetObjectItemCaseSensitive(item, "best");
    if (item == NULL) {
        return 0;
    }
    if (manifest_read_count(item, "checks", &p->checks, err) != 0 ||
        manifest_read_count(item, "step", &p->step, err) != 0 || manifest_read_count(item, "bad", &p->bad, err) != 0 ||
        manifest_read_count(item, "cooldown", &p->cooldown, err) != 0) {
        return dt_wrap(err, "plateau");
    }
    bool good = cJSON_IsNumber(share) && share->valuedouble >= 0 && share->valuedouble <= 1e30 &&
                (cJSON_IsNumber(best) || cJSON_IsNull(best));
    p->share = good ? share->valuedouble : 0;
    p->best = good && cJSON_IsNumber(best) ? best->valuedouble : NAN;
    return good ? 0 : dt_fail(err, DT_INVALID, "plateau: share or best: not a number");
}

/* A number, or null for NaN. */
static bool read_value(const cJSON *object, const char *key, double *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    *out = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    return cJSON_IsNumber(item) || cJSON_IsNull(item);
}

/* Reads what evaluations have decided, if there is some. */
static int read_stopping(struct checkpoint_state *s, const cJSON *root, struct dt_error *err)
{
    const cJSON *stopper = cJSON_GetObjectItemCaseSensitive(root, "stopper"),
                *best = cJSON_GetObjectItemCaseSensitive(root, "best"),
                *trained = cJSON_GetObjectItemCaseSensitive(root, "trained_s"), *item;
    struct stopper *x = &s->stopper;
    int64_t reason = 0;
    if (stopper != NULL && (manifest_read_count(stopper, "checks", &x->checks, err) != 0 ||
                            manifest_read_count(stopper, "step", &x->step, err) != 0 ||
                            manifest_read_count(stopper, "bad", &x->bad, err) != 0 ||
                            manifest_read_count(stopper, "reason", &reason, err) != 0)) {
        return dt_wrap(err, "stopper");
    }
    if (reason >= STOP_REASONS || (stopper != NULL && !read_value(stopper, "best", &x->best))) {
        return dt_fail(err, DT_INVALID, "stopper: reason or best: out of range");
    }
    x->reason = (enum stop_reason)reason;
    (void)read_value(stopper, "value", &x->value); /* older ones have none */
    if (best != NULL && manifest_read_count(best, "seen", &s->best.seen, err) != 0) {
        return dt_wrap(err, "best");
    }
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(best, "list"))
    {
        struct best_item *b = &s->best.item[s->best.count];
        if (s->best.count > BEST_MAX || !read_value(item, "value", &b->value)) {
            return dt_fail(err, DT_INVALID, "best: too many, or one without a value");
        }
        if (read_whole(item, "step", 9e15, &b->step, err) != 0) {
            return dt_wrap(err, "best");
        }
        s->best.count++;
    }
    s->trained_s =
        cJSON_IsNumber(trained) && trained->valuedouble > 0 && trained->valuedouble < 1e12 ? trained->valuedouble : 0;
    return 0;
}

/* Null: not so many finite numbers. */
static const double *read_values(struct dt_arena *arena, const cJSON *list, int64_t count)
{
    double *out = dt_arena_alloc(arena, (size_t)count * sizeof *out + 1);
    const cJSON *item;
    int64_t i = 0;
    cJSON_ArrayForEach(item, list)
    {
        if (i == count || !cJSON_IsNumber(item) || !isfinite(item->valuedouble)) {
            return NULL;
        }
        out[i++] = item->valuedouble;
    }
    return i == count ? out : NULL;
}

/* Reads the steps that the next ones are compared with, which older versions did not keep. */
static int read_outliers(struct manifest *m, const cJSON *root, struct dt_error *err)
{
    struct outlier_steps *x = &m->state.outliers;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "outliers"),
                *loss = cJSON_GetObjectItemCaseSensitive(item, "loss");
    if (item == NULL) {
        return 0;
    }
    if (manifest_read_count(item, "count", &x->count, err) != 0 ||
        (cJSON_HasObjectItem(item, "skipped") && manifest_read_count(item, "skipped", &x->skipped, err) != 0)) {
        return dt_wrap(err, "outliers");
    }
    x->kept = cJSON_GetArraySize(loss);
    x->loss = read_values(&m->arena, loss, x->kept);
    x->norm = read_values(&m->arena, cJSON_GetObjectItemCaseSensitive(item, "norm"), x->kept);
    return x->kept >= 1 && x->kept <= x->count && x->loss != NULL && x->norm != NULL
               ? 0
               : dt_fail(err, DT_INVALID, "outliers: loss or norm: not as many numbers as there should be");
}

/* Reads the state of the loss scale, which only runs in F16 have. */
static int read_scaler(struct scaler_state *x, const cJSON *root, struct dt_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "loss_scale");
    const cJSON *scale = cJSON_GetObjectItemCaseSensitive(item, "scale");
    if (item == NULL) {
        return 0;
    }
    if (read_whole(item, "seen", 9e15, &x->seen, err) != 0 || read_whole(item, "last", 9e15, &x->last, err) != 0 ||
        read_whole(item, "hysteresis", 9e15, &x->hysteresis, err) != 0 ||
        read_whole(item, "good", 9e15, &x->good, err) != 0 ||
        read_whole(item, "skipped", 9e15, &x->skipped, err) != 0 ||
        read_whole(item, "skipped_samples", 9e15, &x->skipped_samples, err) != 0) {
        return dt_wrap(err, "loss_scale");
    }
    if (!cJSON_IsNumber(scale) || !(scale->valuedouble > 0 && scale->valuedouble < 1e39) || x->seen < 0 ||
        x->last < -1 || x->hysteresis < 1 || x->good < 0 || x->skipped < 0 || x->skipped_samples < 0) {
        return dt_fail(err, DT_INVALID, "loss_scale: out of range");
    }
    x->scale = scale->valuedouble;
    return 0;
}

int manifest_read_state(struct manifest *m, const cJSON *root, struct dt_error *err)
{
    struct checkpoint_state *s = &m->state;
    int64_t version = 0, ranks = 0, round = 0;
    const char *format = manifest_read_string(root, "format"), *hash = manifest_read_string(root, "data_hash"),
               *run_id = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "run_id"));
    if (format == NULL || strcmp(format, "dtrun-checkpoint") != 0) {
        return dt_fail(err, DT_INVALID, "format: not a dtrun checkpoint");
    }
    if (manifest_read_count(root, "version", &version, err) != 0) {
        return -1;
    }
    if (version != 1) {
        return dt_fail(err, DT_INVALID, "version %lld: made by a newer dtrun; this one reads version 1",
                       (long long)version);
    }
    if (manifest_read_count(root, "step", &s->step, err) != 0 ||
        manifest_read_count(root, "epoch", &s->epoch, err) != 0 ||
        manifest_read_count(root, "position", &s->position, err) != 0 ||
        manifest_read_count(root, "tokens", &s->tokens, err) != 0 ||
        manifest_read_count(root, "optimizer_steps", &s->optimizer_steps, err) != 0 ||
        manifest_read_count(root, "ranks", &ranks, err) != 0 || manifest_read_count(root, "round", &round, err) != 0 ||
        read_horizon(&s->horizon, root, err) != 0 || read_scaler(&s->scaler, root, err) != 0 ||
        read_outliers(m, root, err) != 0 || read_plateau(&s->plateau, root, err) != 0 ||
        read_stopping(s, root, err) != 0) {
        return -1;
    }
    s->blank_steps = steps_left_over(s);
    if (cJSON_HasObjectItem(root, "blank_steps") &&
        manifest_read_count(root, "blank_steps", &s->blank_steps, err) != 0) {
        return -1;
    }
    const cJSON *seed = cJSON_GetObjectItemCaseSensitive(root, "seed");
    if (!cJSON_IsNumber(seed) || hash == NULL || strlen(hash) != 16 || run_id == NULL || ranks < 1 || ranks > 1 << 20 ||
        round > 1 << 30) {
        return dt_fail(err, DT_INVALID, "seed, data_hash, run_id, ranks or round: missing or out of range");
    }
    s->seed = (int64_t)seed->valuedouble;
    s->data_hash = strtoull(hash, NULL, 16);
    s->ranks = (int)ranks;
    s->round = (int)round;
    s->run_id = dt_arena_strdup(&m->arena, run_id);
    if (read_data(m, root, err) != 0) {
        return -1;
    }
    s->job = print_json(&m->arena, cJSON_GetObjectItemCaseSensitive(root, "job"));
    return 0;
}
