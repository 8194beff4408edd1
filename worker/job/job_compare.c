/* What of a job may differ from the job of a checkpoint that is gone on from: one row per key
 * that counts. World size, batch split, where the data lie and, but for local_sgd, the strategy are not among them:
 * nothing of the training depends on them. */
#include "worker/job/job.h"

#include "base/config_value.h"
#include "base/scan.h"
#include "worker/job/job_fields.h"
#include "worker/model/model.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct job_key {
    const char *path;
    enum job_key_kind kind;
} keys[] = {
    {"model.name", JOB_KEY_TENSORS},
    {"data.tokenizer", JOB_KEY_TOKENS},
    {JOB_DATA_KEY, JOB_KEY_DATA},
    {"data.sequence_length", JOB_KEY_DATA},
    {"data.shuffle", JOB_KEY_DATA},
    {"data.sampler", JOB_KEY_DATA},
    {"data.group_by_length", JOB_KEY_DATA},
    {"data.document_mask", JOB_KEY_DATA},
    {"data.document_end", JOB_KEY_DATA},
    {"data.on_bad_image", JOB_KEY_NUMBER},
    {"transforms.resize", JOB_KEY_NUMBER},
    {"transforms.center_crop", JOB_KEY_NUMBER},
    {"transforms.random_crop", JOB_KEY_NUMBER},
    {"transforms.padding", JOB_KEY_NUMBER},
    {"transforms.random_resized_crop", JOB_KEY_NUMBER},
    {"transforms.scale", JOB_KEY_NUMBER},
    {"transforms.ratio", JOB_KEY_NUMBER},
    {"transforms.random_horizontal_flip", JOB_KEY_NUMBER},
    {"transforms.mean", JOB_KEY_NUMBER},
    {"transforms.std", JOB_KEY_NUMBER},
    {"training.limit_train_batches", JOB_KEY_DATA},
    {"training.overfit_batches", JOB_KEY_DATA},
    {"training.uneven_inputs", JOB_KEY_DATA},
    {"training.divide_by_initial_world_size", JOB_KEY_NUMBER},
    {"training.seed", JOB_KEY_DATA},
    {"training.strategy", JOB_KEY_NUMBER}, /* to local_sgd, or from it: all others train the same */
    {"training.learning_rate", JOB_KEY_NUMBER},
    {"training.lr_scheduler_type", JOB_KEY_NUMBER},
    {"training.warmup_steps", JOB_KEY_NUMBER},
    {"training.warmup_ratio", JOB_KEY_NUMBER},
    {"training.min_lr_ratio", JOB_KEY_NUMBER},
    {"training.lr_power", JOB_KEY_NUMBER},
    {"training.decay_ratio", JOB_KEY_NUMBER},
    {"training.weight_decay", JOB_KEY_NUMBER},
    {"optimizer.name", JOB_KEY_STATE},
    {"training.freeze", JOB_KEY_STATE},
    {"training.optimizer_state_dtype", JOB_KEY_NUMBER},
    {"optimizer.groups", JOB_KEY_NUMBER},
    {"training.max_grad_norm", JOB_KEY_NUMBER},
    {"training.gradient_clip_algorithm", JOB_KEY_NUMBER},
    {"training.gradient_clip_value", JOB_KEY_NUMBER},
    {"training.loss_normalization", JOB_KEY_NUMBER},
    {"training.partial_accumulation", JOB_KEY_NUMBER},
    {"training.sync_batch_norm", JOB_KEY_NUMBER},
    {"ddp.comm_hook", JOB_KEY_NUMBER},
    {"ddp.comm_wrapper", JOB_KEY_NUMBER},
    {"power_sgd.matrix_approximation_rank", JOB_KEY_NUMBER},
    {"power_sgd.start_powerSGD_iter", JOB_KEY_NUMBER},
    {"power_sgd.min_compression_rate", JOB_KEY_NUMBER},
    {"power_sgd.use_error_feedback", JOB_KEY_NUMBER},
    {"power_sgd.warm_start", JOB_KEY_NUMBER},
    {"power_sgd.orthogonalization_epsilon", JOB_KEY_NUMBER},
    {"power_sgd.random_seed", JOB_KEY_NUMBER},
    {"local_sgd.warmup_steps", JOB_KEY_NUMBER},
    {"local_sgd.period", JOB_KEY_NUMBER},
    {"local_sgd.group_size", JOB_KEY_NUMBER},
    {"training.max_steps", JOB_KEY_LENGTH},
    {"training.max_tokens", JOB_KEY_LENGTH},
    {"training.num_epochs", JOB_KEY_LENGTH},
    {"training.epoch_limit", JOB_KEY_LENGTH},
};

enum { KEY_COUNT = sizeof keys / sizeof keys[0], SCHEDULER_MOST = 64, KEYS_OF_ALL_MAX = 1024 };

static int list_optimizer(const struct optimizer_row *row, struct dt_arena *arena, struct job_key *out, int room)
{
    int count = 0;
    for (const struct dt_field *f = row->fields; f->key != NULL && count < room; f++) {
        bool state = row->needed_by != NULL && strcmp(row->needed_by, f->key) == 0;
        out[count++] = (struct job_key){dt_arena_printf(arena, "%s.%s", row->section, f->key),
                                        state ? JOB_KEY_STATE : JOB_KEY_NUMBER};
    }
    return count;
}

/* model.name, the keys of one model and optimizer or of all (null), then all others; returns how
 * many. */
static int list_keys(const struct model_ops *ops, const struct optimizer_row *row, struct dt_arena *arena,
                     struct job_key *out, int most)
{
    int count = 0;
    out[count++] = keys[0];
    for (int i = 0; model_at(i) != NULL; i++) {
        const struct dt_field *f = ops == NULL || ops == model_at(i) ? model_at(i)->fields : NULL;
        for (; f != NULL && f->key != NULL && count < most - KEY_COUNT - SCHEDULER_MOST; f++) {
            enum job_key_kind kind = model_drops(model_at(i), f->key) ? JOB_KEY_NUMBER : JOB_KEY_TENSORS;
            out[count++] = (struct job_key){dt_arena_printf(arena, "model.%s", f->key), kind};
        }
    }
    for (int i = 0; optimizer_at(i) != NULL; i++) {
        const struct optimizer_row *all = optimizer_at(i);
        if (row == NULL || row == all || optimizer_rest(row) == all) {
            count += list_optimizer(all, arena, &out[count], most - KEY_COUNT - SCHEDULER_MOST - count);
        }
    }
    for (int i = 1; i < KEY_COUNT; i++) {
        out[count++] = keys[i];
    }
    for (const struct dt_field *f = job_scheduler_fields; f->key != NULL && count < most; f++) {
        out[count++] = (struct job_key){dt_arena_printf(arena, "scheduler.%s", f->key), JOB_KEY_NUMBER};
    }
    return count;
}

/* ---- checkpointing.accept ---- */

static const char *short_name(const char *path)
{
    return strrchr(path, '.') + 1;
}

const char *job_accept_key(const char *name, struct dt_arena *arena)
{
    struct job_key all[KEYS_OF_ALL_MAX];
    int count = list_keys(NULL, NULL, arena, all, KEYS_OF_ALL_MAX);
    const struct job_key *found = NULL; /* of two with one short name, that which may be accepted */
    for (int i = 0; i < count; i++) {
        if (all[i].kind != JOB_KEY_LENGTH &&
            (strcmp(all[i].path, name) == 0 || strcmp(short_name(all[i].path), name) == 0)) {
            found = found == NULL || found->kind == JOB_KEY_TENSORS ? &all[i] : found;
        }
    }
    return found != NULL ? found->path : NULL;
}

const char *job_accept_nearest(const char *name, struct dt_arena *arena)
{
    struct job_key all[KEYS_OF_ALL_MAX];
    const char *names[KEYS_OF_ALL_MAX];
    int count = list_keys(NULL, NULL, arena, all, KEYS_OF_ALL_MAX);
    size_t named = 0;
    for (int i = 0; i < count; i++) {
        if (all[i].kind != JOB_KEY_LENGTH) {
            names[named++] = strchr(name, '.') != NULL ? all[i].path : short_name(all[i].path);
        }
    }
    return dt_text_nearest(name, names, named);
}

static bool accepts(const char *accept, const char *path)
{
    for (const char *p = accept; p != NULL && *p != 0;) {
        size_t size = strcspn(p, ",");
        if (strlen(path) == size && strncmp(p, path, size) == 0) {
            return true;
        }
        p += size + (p[size] == ',');
    }
    return false;
}

/* ---- two jobs ---- */

static const cJSON *value_at(const cJSON *tree, const char *path)
{
    char section[32];
    const char *dot = strchr(path, '.');
    (void)snprintf(section, sizeof section, "%.*s", (int)(dot - path), path);
    return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(tree, section), dot + 1);
}

static void show_from(const char *text, size_t at, char out[JOB_VALUE_BYTES])
{
    size_t size = strlen(text + at), room = JOB_VALUE_BYTES - 1 - (at > 0 ? 3 : 0);
    bool whole = size <= room;
    (void)snprintf(out, JOB_VALUE_BYTES, "%s%.*s%s", at > 0 ? "..." : "", (int)(whole ? size : room - 3), text + at,
                   whole ? "" : "...");
}

/* Two values that differ, as JSON. Where one is too long, *cut: both are shown from a little before their difference
 * on, with "..." for what is left out. */
static void show(const cJSON *a, const cJSON *b, char x[JOB_VALUE_BYTES], char y[JOB_VALUE_BYTES], bool *cut)
{
    enum { BEFORE = 20 };
    char *p = cJSON_PrintUnformatted(a), *q = cJSON_PrintUnformatted(b);
    const char *was = p != NULL ? p : "null", *is = q != NULL ? q : "null";
    size_t at = 0;
    while (was[at] == is[at] && was[at] != '\0') {
        at++;
    }
    *cut = strlen(was) >= JOB_VALUE_BYTES || strlen(is) >= JOB_VALUE_BYTES;
    at = *cut && at > BEFORE ? at - BEFORE : 0;
    show_from(was, at, x);
    show_from(is, at, y);
    cJSON_free(q);
    cJSON_free(p);
}

/* True if both jobs give a key of the model the same meaning: null, and the value that null stands
 * for. False for all other keys. */
static bool same_in_model(const struct model_ops *ops, const char *path, const cJSON *was, const cJSON *is)
{
    struct model_sizes x, y;
    bool of_model = strncmp(path, "model.", 6) == 0 && strcmp(path, "model.name") != 0;
    return of_model && model_read_config(ops, cJSON_GetObjectItemCaseSensitive(was, "model"), x.bytes, NULL) == 0 &&
           model_read_config(ops, cJSON_GetObjectItemCaseSensitive(is, "model"), y.bytes, NULL) == 0 &&
           model_same(ops, short_name(path), x.bytes, y.bytes);
}

/* What a job means that does not say this key, as it is older than the key. Null: it says nothing. */
static cJSON *older_value(const char *path)
{
    if (strcmp(path, "optimizer.name") == 0) { /* there was one optimizer */
        return cJSON_CreateString(optimizer_at(0)->name);
    }
    if (strcmp(path, "data.sampler") == 0) {
        return cJSON_CreateString("permutation");
    }
    if (strcmp(path, "training.uneven_inputs") == 0) {
        return cJSON_CreateString("drop");
    }
    if (strcmp(path, "training.limit_train_batches") == 0) {
        return cJSON_CreateNull();
    }
    if (strcmp(path, "training.overfit_batches") == 0) {
        return cJSON_CreateNumber(0);
    }
    bool was_off = strcmp(path, "data.document_mask") == 0 || strcmp(path, "training.adam_amsgrad") == 0;
    return was_off ? cJSON_CreateFalse() : NULL;
}

/* Strategies of the same mathematics. */
static bool same_strategy(const char *path, const cJSON *was, const cJSON *is)
{
    static const char local[] = "local_sgd";
    const char *x = cJSON_GetStringValue(was), *y = cJSON_GetStringValue(is);
    return strcmp(path, "training.strategy") == 0 && x != NULL && y != NULL &&
           (strcasecmp(x, local) == 0) == (strcasecmp(y, local) == 0);
}

/* True when the key differs; *out says how. A key that one version did not know says nothing. */
static bool differs(const struct model_ops *ops, const struct job_key *key, const cJSON *was, const cJSON *is,
                    const char *other_data, struct job_change *out)
{
    *out = (struct job_change){.kind = key->kind};
    (void)snprintf(out->key, sizeof out->key, "%s", key->path);
    if (strcmp(key->path, JOB_DATA_KEY) == 0) { /* where they lie says nothing */
        return other_data != NULL;
    }
    const cJSON *x = value_at(was, key->path), *y = value_at(is, key->path);
    bool state = key->kind == JOB_KEY_STATE;
    cJSON *first = x == NULL ? older_value(key->path) : NULL;
    x = first != NULL ? first : x;
    bool differ = x != NULL && y != NULL && !cJSON_Compare(x, y, true) && !same_in_model(ops, key->path, was, is) &&
                  !same_strategy(key->path, x, y);
    if (differ) {
        show(x, y, out->was, out->is, &out->cut);
        /* above 0 there is state, whatever the number */
        bool kept = cJSON_IsNumber(x) && cJSON_IsNumber(y) && x->valuedouble > 0 && y->valuedouble > 0;
        out->kind = state && kept ? JOB_KEY_NUMBER : key->kind;
    }
    cJSON_Delete(first);
    return differ;
}

static bool never(enum job_key_kind kind)
{
    return kind == JOB_KEY_TENSORS || kind == JOB_KEY_TOKENS || kind == JOB_KEY_STATE;
}

/* What is in the way, and all ways on. */
static int refuse(const struct job_changes *refused, const struct job_changes *taken, const char *accept,
                  const char *other_data, struct dt_error *err)
{
    const struct job_change *first = &refused->list[0]; /* or the first that no accept can mend */
    for (int i = 0; i < refused->count && !never(first->kind); i++) {
        first = never(refused->list[i].kind) ? &refused->list[i] : first;
    }
    bool data = strcmp(first->key, JOB_DATA_KEY) == 0, order = false;
    struct dt_text what, names;
    dt_text_init(&what);
    dt_text_init(&names);
    if (data) {
        dt_text_printf(&what, "%s: %s", first->key, other_data);
    } else {
        dt_text_printf(&what, "%s: was %s, is now %s", first->key, first->was, first->is);
    }
    for (int i = 0; i < refused->count; i++) {
        dt_text_printf(&names, "%s%s", i > 0 ? "," : "", refused->list[i].key);
        order |= refused->list[i].kind == JOB_KEY_DATA;
    }
    if (refused->count > 1) {
        dt_text_printf(&what, " (all that differ: %s)", dt_text_str(&names));
    }
    for (int i = 0; i < taken->count; i++) { /* what was accepted has to be again */
        if (taken->list[i].kind != JOB_KEY_LENGTH) {
            dt_text_printf(&names, ",%s", taken->list[i].key);
            order |= taken->list[i].kind == JOB_KEY_DATA;
        }
    }
    const char *back = data ? "bring the old data back" : "go back to the old value",
               *anew = "begin anew with --fresh or another output_dir";
    if (never(first->kind)) {
        (void)dt_fail(err, DT_INVALID, "%s; %s, or %s%s%s", dt_text_str(&what), back, anew,
                      first->kind != JOB_KEY_TENSORS ? JOB_WEIGHTS_ALONE : "",
                      accepts(accept, first->key) ? "; it cannot be accepted, the saved tensors are of the old value"
                                                  : "");
    } else {
        (void)dt_fail(err, DT_INVALID,
                      "%s; %s, keep the optimizer's state and go on%s with --accept %s (checkpointing.accept), or %s",
                      dt_text_str(&what), back, order ? " from the first sample" : "", dt_text_str(&names), anew);
    }
    dt_text_clear(&names);
    dt_text_clear(&what);
    return -1;
}

/* Compares all keys, or those of tensors alone: *out has what may differ, *refused the rest. */
static int compare(const char *saved, const char *now, bool tensors_alone, const char *accept, const char *other_data,
                   struct job_changes *out, struct job_changes *refused, struct dt_error *err)
{
    *refused = (struct job_changes){.count = 0};
    cJSON *b = NULL, *a = dt_scan_parse(saved, strlen(saved), "the saved job", NULL, err);
    b = a != NULL ? dt_scan_parse(now, strlen(now), "this job", NULL, err) : NULL;
    *out = (struct job_changes){.count = 0};
    (void)snprintf(out->data, sizeof out->data, "%s", other_data != NULL ? other_data : "");
    struct dt_arena arena;
    dt_arena_init(&arena);
    const cJSON *name = value_at(b, "model.name");
    const struct model_ops *found = cJSON_IsString(name) ? model_find(name->valuestring) : NULL,
                           *ops = found != NULL ? found : model_at(0);
    const cJSON *optimizer = value_at(b, "optimizer.name");
    const struct optimizer_row *row = cJSON_IsString(optimizer) ? optimizer_find(optimizer->valuestring) : NULL;
    struct job_key all[JOB_KEYS_MAX];
    int count = list_keys(ops, row != NULL ? row : optimizer_at(0), &arena, all, JOB_KEYS_MAX);
    for (int i = 0; b != NULL && i < count; i++) {
        struct job_change change;
        bool asked = !tensors_alone || all[i].kind == JOB_KEY_TENSORS;
        if (asked && differs(ops, &all[i], a, b, other_data, &change)) {
            bool taken = change.kind == JOB_KEY_LENGTH || (!never(change.kind) && accepts(accept, change.key));
            struct job_changes *to = taken ? out : refused;
            to->list[to->count++] = change;
        }
    }
    cJSON_Delete(a);
    bool compared = b != NULL;
    dt_arena_clear(&arena);
    cJSON_Delete(b);
    return compared ? 0 : -1;
}

int job_compare(const char *saved, const char *now, const char *accept, const char *other_data, struct job_changes *out,
                struct dt_error *err)
{
    struct job_changes refused;
    if (compare(saved, now, false, accept, other_data, out, &refused, err) != 0) {
        return -1;
    }
    return refused.count > 0 ? refuse(&refused, out, accept, other_data, err) : 0;
}

int job_compare_model(const char *saved, const char *now, struct dt_error *err)
{
    struct job_changes taken, refused;
    if (compare(saved, now, true, NULL, NULL, &taken, &refused, err) != 0) {
        return -1;
    }
    const struct job_change *first = &refused.list[0];
    return refused.count == 0
               ? 0
               : dt_fail(err, DT_INVALID,
                         "%s: was %s when it was trained, and this job says %s; make the job say so, too", first->key,
                         first->was, first->is);
}

static void read_section(const cJSON *tree, const struct job_section *s, struct dt_arena *arena, void *out)
{
    const cJSON *section = cJSON_GetObjectItemCaseSensitive(tree, s->name);
    for (const struct dt_field *f = s->fields; f->key != NULL; f++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(section, f->key);
        if (value != NULL) {
            (void)dt_value_parse(f->rule, value, arena, (char *)out + f->offset);
        }
    }
}

void job_read_training(const char *saved, struct dt_arena *arena, struct job_training *out)
{
    cJSON *tree = dt_scan_parse(saved, strlen(saved), "the saved job", NULL, NULL);
    read_section(tree, &job_sections[JOB_TRAINING], arena, out);
    read_section(tree, &job_sections[JOB_SCHEDULER], arena, &out->scheduler);
    const cJSON *length = value_at(tree, "data.sequence_length");
    job_set_samples(out, cJSON_IsNumber(length) && length->valuedouble >= 1 ? (int64_t)length->valuedouble : 1);
    cJSON_Delete(tree);
}

/* ---- the job of another rank ---- */

/* Where files lie, and how many threads compute, may be a matter of each host. */
static bool is_of_the_host(const char *path)
{
    static const char *const own[] = {"output_dir",        "model.load",       "data.train",
                                      "data.val",          "data.tokenizer",   "data.cache_dir",
                                      "offload.nvme_path", "logging.csv_path", "checkpointing.checkpoint_dir",
                                      "training.threads"};
    bool found = false;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        found |= strcmp(own[i], path) == 0;
    }
    return found;
}

/* The difference of two jobs: the first key with both values, and the names of all. */
struct apart {
    struct dt_text first, names;
    int count;
};

/* Adds the keys of `x` that have another value in `y`; absent: those that are not there at all. */
static void list_apart(struct apart *out, const char *section, const cJSON *x, const cJSON *y, bool absent)
{
    for (const cJSON *v = x != NULL ? x->child : NULL; v != NULL; v = v->next) {
        const cJSON *w = cJSON_GetObjectItemCaseSensitive(y, v->string);
        char path[128], here[JOB_VALUE_BYTES], there[JOB_VALUE_BYTES];
        bool cut;
        (void)snprintf(path, sizeof path, "%s%s%s", section, *section != 0 ? "." : "", v->string);
        if (*section == 0 && cJSON_IsObject(v)) {
            list_apart(out, path, v, w, absent);
        } else if (!is_of_the_host(path) && (absent ? w == NULL : w != NULL && !cJSON_Compare(v, w, true))) {
            show(v, w, here, there, &cut);
            dt_text_printf(&out->names, "%s%s", out->count > 0 ? ", " : "", path);
            if (out->count++ == 0) {
                dt_text_printf(&out->first, "%s is %s here and %s there", path, here, there);
            }
        }
    }
}

bool job_apart(const char *ours, const char *theirs, struct dt_text *out)
{
    struct apart all = {.count = 0};
    cJSON *a = cJSON_Parse(ours), *b = cJSON_Parse(theirs);
    dt_text_init(&all.first);
    dt_text_init(&all.names);
    list_apart(&all, "", a, b, false);
    list_apart(&all, "", a, b, true); /* keys of another model or optimizer */
    dt_text_puts(out, dt_text_str(&all.first));
    if (all.count > 1) {
        dt_text_printf(out, " (all that differ: %s)", dt_text_str(&all.names));
    }
    dt_text_clear(&all.names);
    dt_text_clear(&all.first);
    cJSON_Delete(b);
    cJSON_Delete(a);
    return all.count > 0;
}
