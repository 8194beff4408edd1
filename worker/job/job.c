/* The job file: reads it through the tables of job_fields.c, fills in what depends on other
 * keys, and makes the checks that span keys. Whether files exist and the model fits is for those
 * who open them. */
#include "worker/job/job.h"

#include "base/config.h"
#include "base/file.h"
#include "base/size.h"
#include "worker/job/folder.h"
#include "worker/job/dialects/registered.h"
#include "worker/job/job_fields.h"
#include "worker/job/job_model.h"

#include <cjson/cJSON.h>
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
    for (const char *const *end = (const char *const[]){".json", ".yaml", ".yml", NULL}; *end != NULL; end++) {
        if (size > strlen(*end) && strcmp(base + size - strlen(*end), *end) == 0) {
            size -= strlen(*end);
            break;
        }
    }
    return dt_arena_printf(arena, "%.*s", (int)size, size > 0 ? base : "job");
}

bool job_has_key(const struct dt_field *fields, const char *key)
{
    while (fields->key != NULL && strcmp(fields->key, key) != 0) {
        fields++;
    }
    return fields->key != NULL;
}

/* All optimizers that have the key, "adamw, adam"; null when one before number i has it, which has
 * said so. */
static const char *owners(struct job *job, int i, const char *section, const char *key)
{
    const char *names = NULL;
    for (int k = 0; optimizer_at(k) != NULL; k++) {
        const struct optimizer_row *row = optimizer_at(k);
        if (strcmp(row->section, section) != 0 || !job_has_key(row->fields, key)) {
            continue;
        }
        if (k < i) {
            return NULL;
        }
        names = names == NULL ? row->name : dt_arena_printf(&job->arena, "%s, %s", names, row->name);
    }
    return names;
}

/* Finds the row and reads its keys; refuses those of another optimizer. Returns the number of
 * problems. */
static int read_optimizer(struct job *job, struct dt_config *c)
{
    const struct optimizer_row *row = optimizer_find(job->optimizer.name);
    const struct optimizer_row *rest = optimizer_rest(row);
    job->optimizer.row = row;
    int bad = dt_config_read(c, row->section, row->fields, &job->optimizer.numbers);
    bad += rest != NULL ? dt_config_read(c, rest->section, rest->fields, &job->optimizer.rest) : 0;
    for (int i = 0; optimizer_at(i) != NULL; i++) {
        const struct optimizer_row *other = optimizer_at(i);
        for (const struct dt_field *f = other->fields; f->key != NULL; f++) {
            char *key = dt_arena_printf(&job->arena, "%s.%s", other->section, f->key);
            bool own = optimizer_has_key(row, other->section, f->key);
            const char *names = own || dt_config_where(c, key) == NULL ? NULL : owners(job, i, other->section, f->key);
            if (names != NULL) {
                dt_config_problem(c, key, "belongs to %s, and optimizer.name is %s (%s); remove it", names, row->name,
                                  dt_config_source(c, "optimizer.name"));
                bad++;
            }
        }
    }
    return bad;
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
    const struct optimizer_row *row = job->optimizer.row;
    int count = 0;
    parts[count++] = (struct job_part){s->fields, section_of(job, s)};
    if (s == &job_sections[JOB_MODEL] && job->model.ops != NULL) {
        parts[count++] = (struct job_part){job->model.ops->fields, job->model.sizes.bytes};
    }
    for (bool rest = false; s != &job_sections[JOB_MODEL] && row != NULL; row = optimizer_rest(row), rest = true) {
        if (strcmp(row->section, s->name) == 0) {
            parts[count++] = (struct job_part){row->fields, rest ? &job->optimizer.rest : &job->optimizer.numbers};
        }
    }
    return count;
}

const struct dt_field *job_other_fields(const struct job_section *s, int i)
{
    if (s == &job_sections[JOB_MODEL]) {
        return model_at(i) != NULL ? model_at(i)->fields : NULL;
    }
    for (int k = 0; optimizer_at(k) != NULL; k++) {
        if (strcmp(optimizer_at(k)->section, s->name) == 0 && i-- == 0) {
            return optimizer_at(k)->fields;
        }
    }
    return NULL;
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

/* The file, with what the options change in it. Files of other systems are read before, so that
 * options change single keys of them, and after, since an option may name one. */
static int open_file(struct job *job, const struct job_arguments *args, struct dt_config **c, struct dt_error *err)
{
    struct stat st;
    if (stat(job->path, &st) == 0 && S_ISDIR(st.st_mode)) {
        return dt_fail(err, DT_INVALID, "%s: is a folder; give the job file", job->path);
    }
    int result = dialects_open(c, job->path, args->converts, &job->arena, err);
    for (int i = 0; result == 0 && i < args->config_count; i++) {
        result = dialects_add(*c, args->config[i], &job->arena, err);
    }
    if (result == 0) {
        dialects_include(*c);
    }
    for (int i = 0; result == 0 && i < args->set_count; i++) {
        result = dt_config_set(*c, args->set[i], args->set_option != NULL ? args->set_option[i] : NULL, err);
    }
    if (result == 0 && args->evaluates && dt_config_where(*c, JOB_DATA_KEY) == NULL) {
        result = dt_config_set(*c, JOB_DATA_KEY "=none", "--evaluate", err);
    }
    if (result == 0) {
        dialects_include(*c);
    }
    return result;
}

static void translate(struct job *job, struct dt_config *c, const struct job_arguments *args)
{
    struct dt_text inert;
    dt_text_init(&inert);
    dialects_apply(c, &job->arena, args->world > 0 ? args->world : 1, args->converts, &inert);
    job->registered = registered_names(c, &job->arena);
    job->inert_keys = inert.size > 0 ? dt_arena_strdup(&job->arena, inert.data) : NULL;
    dt_text_clear(&inert);
}

/* see: is shown the job as it was read, good or not; may be null. */
static int open_job(struct job *job, const struct job_arguments *args, job_see *see, struct dt_text *seen,
                    struct dt_text *problems, struct dt_error *err)
{
    struct dt_config *c = NULL;
    *job = (struct job){0};
    dt_arena_init(&job->arena);
    job->path = dt_arena_strdup(&job->arena, args->path);
    job->name = name_of(&job->arena, args->path);
    job->fresh = args->fresh;
    job->evaluates = args->evaluates;
    if (open_file(job, args, &c, err) != 0) {
        if (problems != NULL && err != NULL) {
            dt_text_printf(problems, "%s\n", err->text);
        }
        if (c != NULL) {
            (void)dt_config_close(c, NULL, NULL);
        }
        return -1;
    }
    dt_config_hints(c, job_hints);
    translate(job, c, args);
    job_read_accumulation(c);
    job_read_stopping(c);
    bool good[JOB_SECTION_COUNT] = {false};
    for (int i = 0; i < JOB_SECTION_COUNT; i++) {
        good[i] =
            dt_config_read(c, job_sections[i].name, job_sections[i].fields, section_of(job, &job_sections[i])) == 0;
    }
    fill_folders(job, c);
    good[JOB_OPTIMIZER] = read_optimizer(job, c) == 0 && good[JOB_OPTIMIZER];
    good[JOB_MODEL] = job_model_load(job, args, c) == 0 && good[JOB_MODEL];
    job_check_sections(job, c, good, args->world);
    if (see != NULL) {
        see(job, c, seen);
    }
    return dt_config_close(c, problems, err);
}

int job_open(struct job *job, const struct job_arguments *args, struct dt_text *problems, struct dt_error *err)
{
    if (open_job(job, args, NULL, NULL, problems, err) != 0) {
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

/* True for a file that has the section `generation` and no other key. */
static bool has_generation_alone(const char *path)
{
    enum { LARGEST = 1 << 20 };
    struct dt_text text;
    dt_text_init(&text);
    cJSON *json =
        dt_file_read(path, LARGEST, &text, NULL) == 0 ? cJSON_ParseWithLength(dt_text_str(&text), text.size) : NULL;
    bool alone = json != NULL && json->child != NULL && json->child->next == NULL &&
                 strcmp(json->child->string, job_sections[JOB_GENERATION].name) == 0;
    cJSON_Delete(json);
    dt_text_clear(&text);
    return alone;
}

int job_read_generation(struct job *out, const struct job_arguments *args, struct dt_text *problems,
                        struct dt_error *err)
{
    bool alone = args->path != NULL && has_generation_alone(args->path);
    if (args->path != NULL && !alone) {
        return job_open(out, args, problems, err);
    }
    struct dt_config *c = NULL;
    *out = (struct job){0};
    dt_arena_init(&out->arena);
    int rc = alone ? dt_config_open(&c, args->path, &out->arena, err)
                   : dt_config_open_text(&c, "train --generate", "{}", 2, &out->arena, err);
    for (int i = 0; rc == 0 && i < args->set_count; i++) {
        rc = dt_config_set(c, args->set[i], args->set_option != NULL ? args->set_option[i] : NULL, err);
    }
    if (rc == 0) {
        const struct job_section *s = &job_sections[JOB_GENERATION];
        (void)dt_config_read(c, s->name, s->fields, &out->generation);
        rc = dt_config_close(c, problems, err);
    } else {
        (void)dt_config_close(c, NULL, NULL);
        dt_text_printf(problems, "%s\n", err->text);
    }
    return rc;
}

int job_look(const struct job_arguments *args, job_see *see, struct dt_text *seen, struct dt_text *inert,
             struct dt_text *problems, struct dt_error *err)
{
    struct job job;
    int result = open_job(&job, args, see, seen, problems, err);
    if (inert != NULL && job.inert_keys != NULL) {
        dt_text_puts(inert, job.inert_keys);
    }
    job_close(&job);
    return result;
}

int job_print_config(const struct job_arguments *args, struct dt_text *out, struct dt_text *problems,
                     struct dt_error *err)
{
    struct dt_text sources;
    dt_text_init(&sources);
    int result = job_look(args, print_sources, &sources, NULL, problems, err);
    if (result == 0) {
        dt_text_puts(out, dt_text_str(&sources));
    }
    dt_text_clear(&sources);
    return result;
}

int job_list_strategies(const char *path, struct dt_text *out, struct dt_error *err)
{
    struct dt_arena arena;
    struct dt_config *c = NULL;
    dt_arena_init(&arena);
    int result = dialects_open(&c, path, false, &arena, err);
    if (result == 0) {
        registered_list(c, out);
        (void)dt_config_close(c, NULL, NULL);
    }
    dt_arena_clear(&arena);
    return result;
}

/* The keys of all models or optimizers; one that several have is described as the first of them
 * does. */
static void schema_others(const struct job_section *s, struct dt_text *out)
{
    for (int i = 0; job_other_fields(s, i) != NULL; i++) {
        for (const struct dt_field *f = job_other_fields(s, i); f->key != NULL; f++) {
            bool known = false;
            for (int k = 0; k < i; k++) {
                known |= job_has_key(job_other_fields(s, k), f->key);
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
            dialects_schema("", 4, out);
            dt_text_puts(out,
                         ",\n    \"strategies\": {\"type\": \"object\", \"description\": \"names for strategies with "
                         "options, for training.strategy\", \"additionalProperties\": {\"type\": \"object\", "
                         "\"required\": [\"base\"], \"properties\": {\"base\": {\"type\": \"string\"}, "
                         "\"description\": {\"type\": \"string\"}}}}");
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
        schema_others(s, out);
        out->size--; /* members may follow */
        dialects_schema(s->name, 8, out);
        dt_text_puts(out, "\n      }\n    }");
    }
    dt_text_puts(out, "\n  }\n}\n");
}
