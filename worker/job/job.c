/* The job file: reads it through the tables of job_fields.c, fills in what depends on other
 * keys, and makes the checks that span keys. Whether files exist and the model fits is for those
 * who open them. */
#include "worker/job/job.h"

#include "base/config.h"
#include "worker/checkpoints/folder.h"
#include "worker/job/job_fields.h"
#include "worker/job/job_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *name_of(struct dt_arena *arena, const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash != NULL ? slash + 1 : path;
    size_t size = strlen(base);
    if (size > 5 && strcmp(base + size - 5, ".json") == 0) {
        size -= 5;
    }
    return dt_arena_printf(arena, "%.*s", (int)size, size > 0 ? base : "job");
}

static void check_model(struct job *job, struct dt_config *c)
{
    const struct model_ops *ops = job->model.ops;
    const char *key = NULL;
    struct dt_error err;
    if (ops->check != NULL && ops->check(job->model.sizes.bytes, &key, &err) != 0) {
        dt_config_problem(c, dt_arena_printf(&job->arena, "model.%s", key), "%s", err.text);
    }
}

static void check_data(struct job *job, struct dt_config *c)
{
    const struct model_ops *ops = job->model.ops;
    int64_t *length = &job->data.sequence_length;
    if (ops->positions == NULL) {
        if (*length > 1) {
            dt_config_problem(c, "data.sequence_length", "samples of %s are no sequences; remove it", ops->name);
        }
        *length = 1;
        dt_config_derived(c, "data.sequence_length", "model.name");
        return;
    }
    int64_t positions = model_integer(ops, job->model.sizes.bytes, ops->positions);
    const char *key = dt_arena_printf(&job->arena, "model.%s", ops->positions);
    if (*length == 0) {
        *length = positions;
        dt_config_derived(c, "data.sequence_length", key);
    } else if (*length > positions) {
        dt_config_problem(c, "data.sequence_length", "%" PRId64 " is longer than %s %" PRId64 " (%s); lower it",
                          *length, key, positions, dt_config_source(c, key));
    }
}

static void check_length(struct job *job, struct dt_config *c)
{
    struct job_training *t = &job->training;
    if (t->max_steps == 0) {
        dt_config_problem(c, "training.max_steps", "is 0; give a number of steps, or -1 and training.num_epochs");
    }
    if (t->max_steps < 0 && t->num_epochs == 0) {
        if (dt_config_where(c, "training.num_epochs") != NULL && dt_config_where(c, "training.max_steps") == NULL) {
            dt_config_problem(c, "training.num_epochs", "is 0 and training.max_steps is not given; give one of them");
        }
        t->num_epochs = 3;
        dt_config_derived(c, "training.num_epochs", "default when there is no max_steps");
    }
    if (t->warmup_steps > 0 && t->warmup_ratio > 0) {
        dt_config_problem(c, "training.warmup_ratio", "training.warmup_steps says the same (%s); remove one",
                          dt_config_source(c, "training.warmup_steps"));
    }
    if (t->max_steps > 0 && t->warmup_steps > t->max_steps) {
        dt_config_problem(c, "training.warmup_steps",
                          "%" PRId64 " is more than training.max_steps %" PRId64 "; lower it", t->warmup_steps,
                          t->max_steps);
    }
    if (strcmp(t->lr_scheduler_type, "constant") == 0 && (t->warmup_steps > 0 || t->warmup_ratio > 0)) {
        dt_config_problem(c, "training.lr_scheduler_type", "constant has no warm-up; write constant_with_warmup");
    }
    if (t->eval_every_n_steps > 0 && job->data.val == NULL) {
        dt_config_problem(c, "training.eval_every_n_steps", "there is nothing to evaluate on; give data.val");
    }
}

static bool has_key(const struct dt_field *fields, const char *key)
{
    while (fields->key != NULL && strcmp(fields->key, key) != 0) {
        fields++;
    }
    return fields->key != NULL;
}

static bool is_key(struct job *job, const char *path)
{
    struct job_part parts[2];
    for (const struct job_section *s = job_sections; s->name != NULL; s++) {
        size_t size = strlen(s->name);
        int count = job_parts(job, s, parts);
        for (int i = 0; strncmp(path, s->name, size) == 0 && path[size] == '.' && i < count; i++) {
            if (has_key(parts[i].fields, path + size + 1)) {
                return true;
            }
        }
    }
    return false;
}

/* Afterwards checkpointing.accept holds full keys. */
static void check_accept(struct job *job, struct dt_config *c)
{
    struct dt_text all;
    dt_text_init(&all);
    for (const char *p = job->checkpointing.accept; p != NULL && *p != 0; p += *p == ',') {
        size_t size = strcspn(p, ",");
        const char *name = dt_arena_printf(&job->arena, "%.*s", (int)size, p), *key = job_accept_key(name, &job->arena),
                   *nearest = job_accept_nearest(name, &job->arena);
        if (key != NULL) {
            dt_text_printf(&all, "%s%s", all.size > 0 ? "," : "", key);
        } else if (is_key(job, name)) {
            dt_config_problem(c, "checkpointing.accept", "%s may always differ from a checkpoint's; remove it", name);
        } else {
            dt_config_problem(c, "checkpointing.accept", "%s: is no key that a checkpoint is compared by%s%s%s", name,
                              nearest != NULL ? "; did you mean " : "; see dtrun-train(1)",
                              nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
        }
        p += size;
    }
    if (all.size > 0) {
        job->checkpointing.accept = dt_arena_strdup(&job->arena, all.data);
    }
    dt_text_clear(&all);
}

/* "FULL_SHARD" -> "full_shard", "_HYBRID_SHARD_ZERO2" -> "hybrid_shard_zero2". */
static const char *lower_strategy(struct dt_arena *arena, const char *name)
{
    char *s = dt_arena_strdup(arena, *name == '_' ? name + 1 : name);
    for (char *p = s; *p != 0; p++) {
        *p = *p >= 'A' && *p <= 'Z' ? (char)(*p - 'A' + 'a') : *p;
    }
    return s;
}

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* The name of the row behind an alias that spells it out: "deepspeed_stage_3" and "zero_stage_3"
 * are "zero3", "fsdp_no_shard" is "no_shard". */
static const char *row_name(struct dt_arena *arena, const char *name)
{
    const char *stage = strstr(name, "_stage_");
    return stage != NULL ? dt_arena_printf(arena, "zero%s", stage + 7) : starts_with(name, "fsdp_") ? name + 5 : name;
}

/* The strategy has one owner: training.strategy, fsdp.sharding_strategy or
 * zero_optimization.stage. Afterwards training.strategy holds what either of the blocks says. A
 * family name (fsdp, deepspeed) leaves the choice to its block. */
static void check_strategy(struct job *job, struct dt_config *c)
{
    const char *strategy = job->training.strategy, *from = NULL, *block = NULL;
    char zero[8] = "zero";
    if (job->fsdp.sharding_strategy != NULL && job->zero.stage >= 0) {
        dt_config_problem(c, "zero_optimization.stage", "fsdp.sharding_strategy says the same (%s); remove one",
                          dt_config_source(c, "fsdp.sharding_strategy"));
        return;
    }
    bool family = strcmp(strategy, "auto") == 0;
    if (job->fsdp.sharding_strategy != NULL) {
        from = "fsdp.sharding_strategy";
        block = lower_strategy(&job->arena, job->fsdp.sharding_strategy);
        family = family || strcmp(strategy, "fsdp") == 0;
    } else if (job->zero.stage >= 0) {
        from = "zero_optimization.stage";
        zero[4] = (char)('0' + job->zero.stage);
        block = dt_arena_strdup(&job->arena, zero);
        family = family || strcmp(strategy, "deepspeed") == 0;
    }
    if (block != NULL && !family && strcmp(row_name(&job->arena, strategy), block) != 0) {
        dt_config_problem(c, from, "training.strategy is %s (%s); say it in one place", strategy,
                          dt_config_source(c, "training.strategy"));
        return;
    }
    if (block != NULL) {
        job->training.strategy = block;
        dt_config_derived(c, "training.strategy", from);
    }
    strategy = row_name(&job->arena, job->training.strategy);
    if (job->fsdp.device_mesh[0] != 0 && !starts_with(strategy, "hybrid_shard")) {
        dt_config_problem(c, "fsdp.device_mesh",
                          "only hybrid_shard and hybrid_shard_zero2 have a mesh, the strategy is %s (%s); remove it",
                          strategy, dt_config_source(c, "training.strategy"));
    }
}

static bool is_bf16(const char *name)
{
    return starts_with(name, "bf16") || starts_with(name, "bfloat16");
}

/* One of the keys that say the precision, if it was given. Two that differ are one too many. */
struct precision_word {
    const char *key;
    bool given, bf16;
};

/* The precision has one owner as well: training.precision, mixed_precision.param_dtype or
 * bf16.enabled. A block that is switched off says nothing. Afterwards training.precision holds
 * what they say, in Lightning's words. The type of AdamW's moments is a choice of its own. */
static void check_precision(struct job *job, struct dt_config *c)
{
    const struct job_mixed *m = &job->mixed;
    struct precision_word words[] = {
        {"training.precision", dt_config_where(c, "training.precision") != NULL, is_bf16(job->training.precision)},
        {"mixed_precision.param_dtype", m->param_dtype != NULL, m->param_dtype != NULL && is_bf16(m->param_dtype)},
        {"bf16.enabled", job->bf16.enabled, true},
    };
    const struct precision_word *owner = NULL;
    bool half_moments = is_bf16(job->training.optimizer_state_dtype);
    job->training.optimizer_state_dtype = half_moments ? "bf16" : "fp32";
    job->precision.moments = half_moments ? DT_BF16 : DT_F32;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (words[i].given && owner != NULL && words[i].bf16 != owner->bf16) {
            dt_config_problem(c, words[i].key, "%s says %s (%s); say it in one place", owner->key,
                              owner->bf16 ? "bf16" : "fp32", dt_config_source(c, owner->key));
            return;
        }
        owner = owner == NULL && words[i].given ? &words[i] : owner;
    }
    bool bf16 = owner != NULL && owner->bf16;
    job->training.precision = bf16 ? "bf16-mixed" : "32-true";
    if (owner != NULL) {
        dt_config_derived(c, "training.precision", owner->key);
    }
    job->precision.compute = bf16 ? DT_BF16 : DT_F32;
    job->precision.reduce = m->reduce_dtype == NULL    ? job->precision.compute
                            : is_bf16(m->reduce_dtype) ? DT_BF16
                                                       : DT_F32;
    if (!bf16 && job->precision.reduce == DT_BF16) {
        dt_config_problem(c, "mixed_precision.reduce_dtype",
                          "bf16 on the wire of an fp32 run is not there yet; write param_dtype bf16, or remove it");
    }
}

/* One spelling per folder, since its lock and what is set aside lie beside it: "./a//b/./" ->
 * "a/b". Where ".." leads is up to links. */
static const char *plain_path(struct dt_arena *arena, const char *path)
{
    char *out = dt_arena_strdup(arena, path), *to = out;
    bool rooted = *path == '/';
    to += rooted;
    for (const char *from = path + strspn(path, "/"); *from != 0; from += strspn(from, "/")) {
        size_t size = strcspn(from, "/");
        if (size != 1 || *from != '.') {
            if (to > out + rooted) {
                *to++ = '/';
            }
            memcpy(to, from, size);
            to += size;
        }
        from += size;
    }
    if (to == out && *path != 0) {
        *to++ = '.';
    }
    *to = 0;
    return out;
}

static void fill_folders(struct job *job, struct dt_config *c)
{
    if (job->output_dir == NULL) {
        job->output_dir = dt_arena_printf(&job->arena, "runs/%s", job->name);
        dt_config_derived(c, "output_dir", "name of the job file");
    }
    job->output_dir = plain_path(&job->arena, job->output_dir);
    if (job->checkpointing.checkpoint_dir == NULL) {
        job->checkpointing.checkpoint_dir = dt_arena_printf(&job->arena, "%s/checkpoints", job->output_dir);
        dt_config_derived(c, "checkpointing.checkpoint_dir", "output_dir");
    }
    char *own = folder_follow(plain_path(&job->arena, job->checkpointing.checkpoint_dir));
    job->checkpointing.checkpoint_dir = plain_path(&job->arena, own);
    free(own);
}

static void *section_of(struct job *job, const struct job_section *s)
{
    return (char *)job + s->offset;
}

int job_parts(struct job *job, const struct job_section *s, struct job_part parts[2])
{
    parts[0] = (struct job_part){s->fields, section_of(job, s)};
    if (s != &job_sections[JOB_MODEL] || job->model.ops == NULL) {
        return 1;
    }
    parts[1] = (struct job_part){job->model.ops->fields, job->model.sizes.bytes};
    return 2;
}

static void write_text(struct job *job)
{
    struct dt_text t;
    dt_text_init(&t);
    dt_text_puts(&t, "{\n");
    for (const struct job_section *s = job_sections; s->name != NULL; s++) {
        bool top = *s->name == 0;
        if (!top) {
            dt_text_printf(&t, "  \"%s\": {\n", s->name);
        }
        struct job_part parts[2];
        int count = job_parts(job, s, parts);
        for (int i = 0; i < count; i++) {
            for (const struct dt_field *f = parts[i].fields; f->key != NULL; f++) {
                dt_text_printf(&t, "%s\"%s\": ", top ? "  " : "    ", f->key);
                dt_config_format(f, parts[i].in, &t);
                dt_text_puts(&t, top || f[1].key != NULL || i + 1 < count ? ",\n" : "\n");
            }
        }
        if (!top) {
            dt_text_puts(&t, s[1].name != NULL ? "  },\n" : "  }\n");
        }
    }
    dt_text_puts(&t, "}\n");
    job->text = t.data;
}

/* One word of a row, from a column on: further left when it would not end within 79, in the next
 * line when that place is taken. */
static void put_cell(struct dt_text *out, size_t *used, size_t column, const char *text)
{
    enum { WIDTH = 79, INDENT = 4 };
    size_t size = strlen(text);
    if (column + size > WIDTH) {
        column = size + INDENT > WIDTH ? INDENT : WIDTH - size;
    }
    if (*used > 0 && *used + 1 > column) {
        dt_text_puts(out, "\n");
        *used = 0;
    }
    dt_text_printf(out, "%*s%s", (int)(column - *used), "", text);
    *used = column + size;
}

/* Key, value and source of a value, in three columns of a terminal of 80. There is one file: where
 * its path is too long, its name will do. */
static void print_source(const struct job *job, const struct dt_config *c, const char *section,
                         const struct dt_field *f, const void *in, struct dt_text *out)
{
    enum { VALUE = 38, SOURCE = 58, SOURCE_BYTES = 79 - SOURCE };
    const char *slash = strrchr(job->path, '/');
    size_t folder = slash != NULL ? (size_t)(slash + 1 - job->path) : 0, used = 0;
    char path[128];
    struct dt_text value;
    (void)snprintf(path, sizeof path, "%s%s%s", section, *section != 0 ? "." : "", f->key);
    dt_text_init(&value);
    dt_config_format(f, in, &value);
    put_cell(out, &used, 0, path);
    put_cell(out, &used, VALUE, dt_text_str(&value));
    const char *source = dt_config_source(c, path);
    bool in_file = strncmp(source, job->path, strlen(job->path)) == 0 && source[strlen(job->path)] == ':';
    put_cell(out, &used, SOURCE, in_file && strlen(source) > SOURCE_BYTES ? source + folder : source);
    dt_text_puts(out, "\n");
    dt_text_clear(&value);
}

static void print_sources(struct job *job, const struct dt_config *c, struct dt_text *out)
{
    struct job_part parts[2];
    for (const struct job_section *s = job_sections; s->name != NULL; s++) {
        int count = job_parts(job, s, parts);
        for (int i = 0; i < count; i++) {
            for (const struct dt_field *f = parts[i].fields; f->key != NULL; f++) {
                print_source(job, c, s->name, f, parts[i].in, out);
            }
        }
    }
}

/* A check across keys would blame the wrong one where a default stands in for a bad value, so it
 * asks for good sections. */
static void check_sections(struct job *job, struct dt_config *c, const bool *good)
{
    if (good[JOB_MODEL]) {
        check_model(job, c);
    }
    if (good[JOB_MODEL] && good[JOB_DATA]) {
        check_data(job, c);
    }
    if (good[JOB_TRAINING] && good[JOB_DATA]) {
        check_length(job, c);
    }
    if (good[JOB_CHECKPOINTING]) {
        check_accept(job, c);
    }
    if (good[JOB_TRAINING] && good[JOB_FSDP] && good[JOB_ZERO]) {
        check_strategy(job, c);
    }
    if (good[JOB_TRAINING] && good[JOB_MIXED] && good[JOB_BF16]) {
        check_precision(job, c);
    }
}

static int open_job(struct job *job, const struct job_arguments *args, struct dt_text *sources,
                    struct dt_text *problems, struct dt_error *err)
{
    struct dt_config *c = NULL;
    *job = (struct job){0};
    dt_arena_init(&job->arena);
    job->path = dt_arena_strdup(&job->arena, args->path);
    job->name = name_of(&job->arena, args->path);
    job->fresh = args->fresh;
    struct stat st;
    bool folder = stat(job->path, &st) == 0 && S_ISDIR(st.st_mode);
    bool bad = (folder ? dt_fail(err, DT_INVALID, "%s: is a folder; give the job file", job->path)
                       : dt_config_open(&c, job->path, &job->arena, err)) != 0;
    for (int i = 0; !bad && i < args->set_count; i++) {
        bad = dt_config_set(c, args->set[i], args->set_option != NULL ? args->set_option[i] : NULL, err) != 0;
    }
    if (bad) {
        if (problems != NULL && err != NULL) {
            dt_text_printf(problems, "%s\n", err->text);
        }
        if (c != NULL) {
            (void)dt_config_close(c, NULL, NULL);
        }
        return -1;
    }
    dt_config_hints(c, job_hints);
    bool good[JOB_SECTION_COUNT] = {false};
    for (int i = 0; i < JOB_SECTION_COUNT; i++) {
        good[i] =
            dt_config_read(c, job_sections[i].name, job_sections[i].fields, section_of(job, &job_sections[i])) == 0;
    }
    fill_folders(job, c);
    good[JOB_MODEL] = job_model_load(job, c) == 0 && good[JOB_MODEL];
    check_sections(job, c, good);
    if (sources != NULL) {
        print_sources(job, c, sources);
    }
    return dt_config_close(c, problems, err);
}

int job_open(struct job *job, const struct job_arguments *args, struct dt_text *problems, struct dt_error *err)
{
    if (open_job(job, args, NULL, problems, err) != 0) {
        job_close(job);
        return -1;
    }
    write_text(job);
    return 0;
}

void job_close(struct job *job)
{
    free(job->text);
    dt_arena_clear(&job->arena);
    *job = (struct job){0};
}

int job_print_config(const struct job_arguments *args, struct dt_text *out, struct dt_text *problems,
                     struct dt_error *err)
{
    struct job job;
    struct dt_text sources;
    dt_text_init(&sources);
    int result = open_job(&job, args, &sources, problems, err);
    if (result == 0) {
        dt_text_puts(out, dt_text_str(&sources));
    }
    dt_text_clear(&sources);
    job_close(&job);
    return result;
}

/* The keys of all models; one that several models have is described as the first of them does. */
static void schema_models(struct dt_text *out)
{
    for (int i = 0; model_at(i) != NULL; i++) {
        for (const struct dt_field *f = model_at(i)->fields; f->key != NULL; f++) {
            bool known = false;
            for (int k = 0; k < i; k++) {
                known |= has_key(model_at(k)->fields, f->key);
            }
            if (!known) {
                const struct dt_field one[2] = {*f, {0}};
                out->size--; /* a member follows */
                dt_text_puts(out, ",\n");
                dt_config_schema(one, 8, out);
            }
        }
    }
}

void job_schema(struct dt_text *out)
{
    dt_text_puts(out, "{\n  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n  \"title\": \"job of "
                      "train\",\n  \"type\": \"object\",\n"
                      "  \"additionalProperties\": false,\n  \"required\": [\"data\"],\n  \"properties\": {\n");
    for (const struct job_section *s = job_sections; s->name != NULL; s++) {
        bool required = false;
        if (*s->name == 0) {
            struct dt_text fields;
            dt_text_init(&fields);
            dt_config_schema(s->fields, 4, &fields);
            /* without the newline: sections follow */
            dt_text_add(out, dt_text_str(&fields), fields.size - 1);
            dt_text_clear(&fields);
            continue;
        }
        dt_text_printf(out, ",\n    \"%s\": {\n      \"type\": \"object\", \"description\": ", s->name);
        dt_text_json(out, s->help, strlen(s->help));
        dt_text_puts(out, ", \"additionalProperties\": false,\n");
        for (const struct dt_field *f = s->fields; f->key != NULL; f++) {
            if (f->fallback == NULL) {
                dt_text_printf(out, "%s\"%s\"", required ? ", " : "      \"required\": [", f->key);
                required = true;
            }
        }
        dt_text_puts(out, required ? "],\n      \"properties\": {\n" : "      \"properties\": {\n");
        dt_config_schema(s->fields, 8, out);
        if (s == &job_sections[JOB_MODEL]) {
            schema_models(out);
        }
        dt_text_puts(out, "      }\n    }");
    }
    dt_text_puts(out, "\n  }\n}\n");
}
