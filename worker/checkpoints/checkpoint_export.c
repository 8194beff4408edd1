/* Export and comparison. Tensors stream through a buffer of a few MiB, so a checkpoint may be
 * larger than memory. */
#include "worker/checkpoints/checkpoint_export.h"

#include "base/file.h"
#include "kernels/kernels.h"
#include "worker/checkpoints/hf.h"
#include "worker/checkpoints/origin.h"
#include "worker/data/safetensors.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Metadata key of the hash of the weights, as dtckpt hash prints it. A course of training with
 * another seed has the same steps and other weights. */
#define HASH_KEY "weights_hash"

#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"
#define HALF_ROUNDS_TO_INFINITY 65520.0f /* between 65504, the largest, and 2^16 */

enum { CHUNK = 1 << 20 /* elements */, INDEX_MAX = 64 << 20 };

struct view {
    const char *name;
    int dims;
    const int64_t *shape;
    int64_t numel;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct view *)a)->name, ((const struct view *)b)->name);
}

/* All tensors, sorted by name. The caller frees. */
static struct view *tensors_of(const struct checkpoint *c, int *count)
{
    *count = checkpoint_tensor_count(c);
    struct view *views = dt_alloc((size_t)*count * sizeof *views);
    for (int i = 0; i < *count; i++) {
        checkpoint_tensor(c, i, &views[i].name, &views[i].dims, &views[i].shape);
        views[i].numel = 1;
        for (int d = 0; d < views[i].dims; d++) {
            views[i].numel *= views[i].shape[d];
        }
    }
    qsort(views, (size_t)*count, sizeof *views, by_name);
    return views;
}

/* The folder that the run began with; null: none. The caller frees it. */
static char *loaded_from(const struct checkpoint *c)
{
    cJSON *job = cJSON_Parse(checkpoint_get_state(c)->job);
    const char *load =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(job, "model"), "load"));
    char *folder = load != NULL ? dt_strdup(load) : NULL;
    cJSON_Delete(job);
    return folder;
}

/* Copies the files that the run has kept of the folder it began with, or says that they are missing: a checkpoint that
 * was moved away alone knows its source, but has no copy. A run that began with none has what follows from its
 * config.json. */
static int export_origin(const struct checkpoint *c, const char *folder, struct dt_text *notes, struct dt_error *err)
{
    char *kept = checkpoint_origin(checkpoint_get_path(c)), *load = loaded_from(c);
    int rc = load == NULL ? export_write_generation(folder, checkpoint_get_state(c)->model_config, err) : 0;
    if (rc == 0 && dt_file_exists(kept)) {
        rc = origin_copy(kept, folder, err);
    } else if (rc == 0 && load != NULL) {
        dt_text_printf(
            notes, "%s: is not there: tokenizer and other files of %.200s are not in the exported folder; copy them",
            kept, load);
    }
    free(load);
    free(kept);
    return rc;
}

/* ---- types and sizes ---- */

const struct export_options export_defaults = {.type = DT_F32, .shard_bytes = 5000000000};

bool export_parse_type(const char *word, enum dt_dtype *out)
{
    static const struct {
        const char *name;
        enum dt_dtype type;
    } rows[] = {{"float32", DT_F32}, {"fp32", DT_F32},    {"bfloat16", DT_BF16},
                {"bf16", DT_BF16},   {"float16", DT_F16}, {"fp16", DT_F16}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, word) == 0) {
            *out = rows[i].type;
            return true;
        }
    }
    return false;
}

/* The name of a type in config.json. */
static const char *config_type(enum dt_dtype type)
{
    return type == DT_BF16 ? "\"bfloat16\"" : type == DT_F16 ? "\"float16\"" : "\"float32\"";
}

/* Fails if a weight is finite and would be infinite as DT_F16. */
static int check_halves(struct checkpoint *c, const struct view *views, int count, float *buffer, struct dt_error *err)
{
    for (int i = 0; i < count; i++) {
        for (int64_t at = 0; at < views[i].numel; at += CHUNK) {
            int64_t size = views[i].numel - at < CHUNK ? views[i].numel - at : CHUNK;
            if (checkpoint_read(c, "weight", views[i].name, views[i].numel, at, size, buffer, err) != 0) {
                return -1;
            }
            for (int64_t k = 0; k < size; k++) {
                if (isfinite(buffer[k]) && fabsf(buffer[k]) >= HALF_ROUNDS_TO_INFINITY) {
                    return dt_fail(err, DT_INVALID,
                                   "tensor %s: element %" PRId64 " is %.9g, and float16 ends at 65504; export it as "
                                   "bfloat16 or float32",
                                   views[i].name, at + k, (double)buffer[k]);
                }
            }
        }
    }
    return 0;
}

/* ---- files ---- */

/* The type of a tensor in the files. */
static enum dt_dtype type_of(const struct view *v, const struct export_options *options)
{
    return hf_is_count(v->name) && v->numel == 1 ? DT_I64 : options->type;
}

struct files {
    int count;    /* 1: model.safetensors alone */
    int *of;      /* the file of each tensor */
    char **names; /* in the folder */
    int64_t bytes, parameters;
};

/* A new file for the tensors that have none yet. */
static void close_file(struct files *f, int tensors)
{
    for (int i = 0; i < tensors; i++) {
        f->of[i] = f->of[i] < 0 ? f->count : f->of[i];
    }
    f->count++;
}

/* As huggingface_hub splits: in the order of the tensors, and one that is larger than a file may be
 * gets its own at once, while the file before it goes on behind it. */
static void split(struct files *f, const struct view *views, int count, const struct export_options *options)
{
    int64_t open_bytes = 0;
    int open = 0; /* tensors of the file that goes on */
    f->of = dt_alloc(((size_t)count + 1) * sizeof *f->of);
    memset(f->of, 0, (size_t)count * sizeof *f->of);
    for (int i = 0; i < count; i++) {
        int64_t bytes = views[i].numel * (int64_t)dt_dtype_size(type_of(&views[i], options));
        f->bytes += bytes;
        f->parameters += views[i].numel;
        if (bytes > options->shard_bytes) {
            f->of[i] = f->count++;
            continue;
        }
        if (open_bytes + bytes > options->shard_bytes) {
            close_file(f, i);
            open_bytes = open = 0;
        }
        f->of[i] = -1;
        open_bytes += bytes;
        open++;
    }
    if (open > 0 || f->count == 0) {
        close_file(f, count);
    }
    f->names = dt_alloc((size_t)f->count * sizeof *f->names);
    for (int i = 0; i < f->count; i++) {
        f->names[i] = f->count == 1 ? dt_strdup(SINGLE) : dt_format("model-%05d-of-%05d.safetensors", i + 1, f->count);
    }
}

static void files_clear(struct files *f)
{
    for (int i = 0; i < f->count && f->names != NULL; i++) {
        free(f->names[i]);
    }
    free(f->names);
    free(f->of);
}

/* Removes what a write that was cut short has left of the files. */
static void remove_cut(const char *folder, const struct files *f)
{
    const char **names = dt_alloc(((size_t)f->count + 4) * sizeof *names);
    names[0] = "config.json";
    names[1] = "generation_config.json";
    names[2] = INDEX;
    memcpy(names + 3, f->names, (size_t)f->count * sizeof *names);
    names[f->count + 3] = NULL;
    dt_file_remove_cut(folder, names);
    free(names);
}

/* "model-00001-of-00002.safetensors" */
static bool is_shard(const char *name)
{
    int part, parts, end = 0;
    return sscanf(name, "model-%5d-of-%5d.safetensors%n", &part, &parts, &end) == 2 && end > 0 && name[end] == '\0';
}

/* Removes weights of an earlier export, which would contradict these. */
static int remove_others(const char *folder, const struct files *f, struct dt_error *err)
{
    DIR *d = opendir(folder);
    int rc = d != NULL ? 0 : dt_fail_errno(err, "%s", folder);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        bool other = is_shard(e->d_name) || strcmp(e->d_name, f->count > 1 ? SINGLE : INDEX) == 0;
        for (int i = 0; other && i < f->count; i++) {
            other = strcmp(e->d_name, f->names[i]) != 0;
        }
        if (rc == 0 && other && unlinkat(dirfd(d), e->d_name, 0) != 0) {
            rc = dt_fail_errno(err, "%s/%s", folder, e->d_name);
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return rc;
}

/* Without config.json a folder is no model: nobody takes old and new files together for one while new ones get
 * their names, or after a kill. */
static int remove_config(const char *folder, struct dt_error *err)
{
    static const char *const names[] = {"config.json", INDEX};
    int rc = 0;
    for (int i = 0; i < 2 && rc == 0; i++) {
        char *path = dt_format("%s/%s", folder, names[i]);
        rc = unlink(path) == 0 || errno == ENOENT ? 0 : dt_fail_errno(err, "%s", path);
        free(path);
    }
    return rc == 0 ? dt_file_sync_dir(folder, err) : rc;
}

/* A checkpoint on its way to a folder. */
struct export
{
    struct checkpoint *c;
    const char *folder;
    const struct export_options *options;
    struct view *views;
    int count;
    struct files files;
    float *buffer; /* CHUNK */
    void *narrow;  /* CHUNK of any type, for elements that are converted */
    char step[32], hash[33];
};

/* Converts elements of the buffer; returns where they are. */
static const void *convert(const struct export *e, const struct view *v, int64_t size)
{
    enum dt_dtype type = type_of(v, e->options);
    if (type == DT_I64) {
        for (int64_t i = 0; i < size; i++) {
            ((int64_t *)e->narrow)[i] = (int64_t)e->buffer[i];
        }
    } else if (type != DT_F32) {
        dt_cpu_cast(&(struct dt_cast_args){e->narrow, e->buffer, size, type, DT_F32});
    }
    return type == DT_F32 ? (const void *)e->buffer : e->narrow;
}

static int write_tensor(struct export *e, const struct view *v, struct st_writer *writer, struct dt_error *err)
{
    for (int64_t at = 0; at < v->numel; at += CHUNK) {
        int64_t size = v->numel - at < CHUNK ? v->numel - at : CHUNK;
        if (checkpoint_read(e->c, "weight", v->name, v->numel, at, size, e->buffer, err) != 0) {
            return -1;
        }
        size_t size_bytes = (size_t)size * dt_dtype_size(type_of(v, e->options));
        if (st_writer_data(writer, convert(e, v, size), size_bytes, err) != 0) {
            return -1;
        }
    }
    return 0;
}

/* The name of a file until all are written. */
static char *temporary_of(const struct export *e, int file)
{
    return dt_format("%s/%s.tmp-%ld", e->folder, e->files.names[file], (long)getpid());
}

/* Writes file number `file` with its tensors, under its temporary name. */
static int write_file(struct export *e, int file, struct dt_error *err)
{
    const char *metadata[] = {"format", "pt", "step", e->step, HASH_KEY, e->hash, NULL};
    struct st_entry *entries = dt_alloc((size_t)e->count * sizeof *entries);
    char *path = temporary_of(e, file);
    int here = 0, fd = dt_file_create(path, err);
    for (int i = 0; i < e->count; i++) {
        const struct view *v = &e->views[i];
        if (e->files.of[i] == file) {
            entries[here++] =
                (struct st_entry){v->name, type_of(v, e->options), hf_is_count(v->name) ? 0 : v->dims, v->shape};
        }
    }
    struct st_writer *writer = NULL;
    int rc = fd >= 0 ? st_writer_open_fd(&writer, fd, path, entries, here, metadata, err) : -1;
    for (int i = 0; i < e->count && rc == 0; i++) {
        rc = e->files.of[i] == file ? write_tensor(e, &e->views[i], writer, err) : 0;
        if (rc != 0) {
            st_writer_abort(writer);
        }
    }
    rc = rc == 0 ? st_writer_close(writer, err) : rc;
    rc = rc == 0 && fsync(fd) != 0 ? dt_fail_errno(err, "%s: fsync", path) : rc;
    if (fd >= 0 && close(fd) != 0 && rc == 0) {
        rc = dt_fail_errno(err, "%s: close", path);
    }
    free(path);
    free(entries);
    return rc;
}

/* All files get their names, or none is left. */
static int name_files(const struct export *e, bool good, struct dt_error *err)
{
    int rc = good ? 0 : -1;
    for (int i = 0; i < e->files.count; i++) {
        char *from = temporary_of(e, i), *to = dt_format("%s/%s", e->folder, e->files.names[i]);
        if (rc == 0 && rename(from, to) != 0) {
            rc = dt_fail_errno(err, "%s: rename to %s", from, to);
        }
        if (rc != 0) {
            (void)unlink(from);
        }
        free(to);
        free(from);
    }
    return rc;
}

static int write_index(const struct export *e, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    dt_text_printf(&text,
                   "{\n  \"metadata\": {\n    \"total_parameters\": %" PRId64 ",\n    \"total_size\": %" PRId64
                   "\n  },\n  \"weight_map\": {",
                   e->files.parameters, e->files.bytes);
    for (int i = 0; i < e->count; i++) {
        dt_text_puts(&text, i > 0 ? ",\n    " : "\n    ");
        dt_text_json(&text, e->views[i].name, strlen(e->views[i].name));
        dt_text_printf(&text, ": \"%s\"", e->files.names[e->files.of[i]]);
    }
    dt_text_puts(&text, "\n  }\n}\n");
    char *path = dt_format("%s/" INDEX, e->folder);
    int rc = dt_file_write(path, dt_text_str(&text), text.size, err);
    free(path);
    dt_text_clear(&text);
    return rc;
}

int export_write_config(const char *folder, const char *config, enum dt_dtype type, struct dt_error *err)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    struct dt_text text, next;
    dt_text_init(&text);
    dt_text_printf(&text, "%s\n", config);
    for (int i = 0; i < 2 && type != DT_F32; i++) {
        dt_text_init(&next);
        origin_member(dt_text_str(&text), text.size, keys[i], config_type(type), &next);
        dt_text_clear(&text);
        text = next;
    }
    char *path = dt_format("%s/config.json", folder);
    int rc = dt_file_write(path, dt_text_str(&text), text.size, err);
    free(path);
    dt_text_clear(&text);
    return rc;
}

/* Notes on a folder that Hugging Face's library will refuse, or warn of. */
static void note_model(const char *config, struct dt_text *notes)
{
    struct model_sizes sizes;
    cJSON *json = cJSON_Parse(config);
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "model_type"));
    const struct model_ops *ops = type != NULL ? model_find(type) : NULL;
    if (ops != NULL && ops->note_export != NULL && model_read_config(ops, json, sizes.bytes, NULL) == 0) {
        struct dt_text note;
        dt_text_init(&note);
        ops->note_export(sizes.bytes, &note);
        dt_text_printf(notes, "%s%s", notes->size > 0 && note.size > 0 ? "; " : "", dt_text_str(&note));
        dt_text_clear(&note);
    }
    cJSON_Delete(json);
}

int checkpoint_export(struct checkpoint *c, const char *folder, const struct export_options *options,
                      struct dt_text *notes, struct dt_error *err)
{
    const char *config = checkpoint_get_state(c)->model_config;
    if (strcmp(config, "null") == 0) {
        return dt_fail(err, DT_INVALID, "the checkpoint holds no model configuration");
    }
    struct export e = {.c = c, .folder = folder, .options = options};
    e.views = tensors_of(c, &e.count);
    e.buffer = dt_alloc(CHUNK * sizeof *e.buffer);
    e.narrow = dt_alloc(CHUNK * sizeof(int64_t));
    (void)snprintf(e.step, sizeof e.step, "%" PRId64, checkpoint_get_state(c)->step);
    split(&e.files, e.views, e.count, options);
    int rc = options->type == DT_F16 ? check_halves(c, e.views, e.count, e.buffer, err) : 0;
    if (rc == 0) {
        remove_cut(folder, &e.files);
    }
    rc = rc == 0 ? checkpoint_hash(c, e.hash, err) : rc;
    rc = rc == 0 ? dt_file_mkdirs(folder, err) : rc;
    for (int i = 0; i < e.files.count && rc == 0; i++) {
        rc = write_file(&e, i, err);
    }
    rc = rc == 0 ? remove_config(folder, err) : rc;
    rc = name_files(&e, rc == 0, err);
    rc = rc == 0 && e.files.count > 1 ? write_index(&e, err) : rc;
    rc = rc == 0 ? remove_others(folder, &e.files, err) : rc;
    rc = rc == 0 ? export_origin(c, folder, notes, err) : rc;
    rc = rc == 0 ? export_write_config(folder, config, options->type, err) : rc;
    if (rc == 0) {
        note_model(config, notes);
    }
    files_clear(&e.files);
    free(e.narrow);
    free(e.buffer);
    free(e.views);
    return rc;
}

static bool is_foreign(const char *folder, const char *name)
{
    static const char *const of_runs[] = {"checkpoints", "manifest.json", "job.json", "course.json", "owner.json"};
    bool leftover;
    for (size_t i = 0; i < sizeof of_runs / sizeof *of_runs; i++) {
        if (strcmp(name, of_runs[i]) == 0) {
            return true;
        }
    }
    if (!dt_text_ends_with(name, ".safetensors")) {
        return checkpoint_step_of(name, &leftover) >= 0 || dt_text_ends_with(name, ".bin") ||
               dt_text_ends_with(name, ".pth") || dt_text_ends_with(name, ".gguf");
    }
    char *path = dt_format("%s/%s", folder, name);
    struct st_file *f = NULL;
    bool ours = st_open(&f, path, NULL) == 0 && st_metadata(f, HASH_KEY) != NULL;
    st_close(f);
    free(path);
    return !ours;
}

char *checkpoint_export_foreign(const char *folder)
{
    DIR *d = opendir(folder);
    char *found = NULL;
    for (struct dirent *e; d != NULL && found == NULL && (e = readdir(d)) != NULL;) {
        found = is_foreign(folder, e->d_name) ? dt_strdup(e->d_name) : NULL;
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return found;
}

/* True if a file's weights are of this type. */
static bool has_type(const struct st_file *f, enum dt_dtype type)
{
    int i = 0;
    while (i < st_count(f) && hf_is_count(st_at(f, i)->name)) {
        i++;
    }
    return i == st_count(f) || st_at(f, i)->type == type;
}

/* True if a file has the checkpoint's step and hash, and its tensors this type. Reads the checkpoint's
 * weights. */
static bool same_weights(struct checkpoint *c, const char *path, enum dt_dtype type)
{
    char step[32], hash[33];
    (void)snprintf(step, sizeof step, "%" PRId64, checkpoint_get_state(c)->step);
    struct st_file *f = NULL;
    bool whole = st_open(&f, path, NULL) == 0;
    const char *of_step = whole ? st_metadata(f, "step") : NULL, *of_hash = whole ? st_metadata(f, HASH_KEY) : NULL;
    bool same = of_step != NULL && strcmp(of_step, step) == 0 && of_hash != NULL && has_type(f, type) &&
                checkpoint_hash(c, hash, NULL) == 0 && strcmp(of_hash, hash) == 0;
    st_close(f);
    return same;
}

/* The same of the files of an index: all must be there, and each knows the hash of all weights. */
static bool same_index(struct checkpoint *c, const char *folder, const cJSON *index, enum dt_dtype type)
{
    const cJSON *file, *map = cJSON_GetObjectItemCaseSensitive(index, "weight_map");
    bool same = cJSON_IsObject(map) && map->child != NULL;
    cJSON_ArrayForEach(file, map)
    {
        char *path = dt_format("%s/%s", folder, cJSON_IsString(file) ? file->valuestring : "");
        same = same && dt_file_exists(path) && (file != map->child || same_weights(c, path, type));
        free(path);
    }
    return same;
}

bool checkpoint_is_exported(struct checkpoint *c, const char *folder, enum dt_dtype type)
{
    char *single = dt_format("%s/" SINGLE, folder), *index = dt_format("%s/" INDEX, folder),
         *config = dt_format("%s/config.json", folder);
    cJSON *json = NULL;
    bool is = false, whole = dt_file_exists(config); /* or the export was cut short */
    if (whole && dt_file_exists(single)) {
        is = same_weights(c, single, type);
    } else if (whole && hf_read_json(index, INDEX_MAX, &json, NULL, NULL) == 0) {
        is = same_index(c, folder, json, type);
    }
    cJSON_Delete(json);
    free(config);
    free(index);
    free(single);
    return is;
}

/* ---- comparison ---- */

/* "NAME: " */
static void put_name(struct dt_text *out, const char *name)
{
    dt_text_add_visible(out, name, strlen(name), false);
    dt_text_puts(out, ": ");
}

static int compare_tensor(struct checkpoint *a, struct checkpoint *b, const struct view *v, float *x, float *y,
                          struct dt_text *out, int *differing, struct dt_error *err)
{
    double largest = -1;
    int64_t where = 0, unequal = 0;
    for (int64_t at = 0; at < v->numel; at += CHUNK) {
        int64_t size = v->numel - at < CHUNK ? v->numel - at : CHUNK;
        if (checkpoint_read(a, "weight", v->name, v->numel, at, size, x, err) != 0 ||
            checkpoint_read(b, "weight", v->name, v->numel, at, size, y, err) != 0) {
            return -1;
        }
        for (int64_t i = 0; i < size; i++) {
            if (memcmp(&x[i], &y[i], sizeof x[i]) != 0) {
                double difference = fabs((double)x[i] - (double)y[i]);
                unequal++;
                if (difference > largest || isnan(difference)) {
                    largest = difference;
                    where = at + i;
                }
            }
        }
    }
    if (unequal > 0) {
        (*differing)++;
        put_name(out, v->name);
        dt_text_printf(out, "%" PRId64 " of %" PRId64 " elements differ, most at %" PRId64 ": %.9g\n", unequal,
                       v->numel, where, largest);
    }
    return 0;
}

int checkpoint_diff(struct checkpoint *a, struct checkpoint *b, struct dt_text *out, int *differing,
                    struct dt_error *err)
{
    int a_count, b_count, result = 0;
    struct view *x = tensors_of(a, &a_count), *y = tensors_of(b, &b_count);
    float *buffer = dt_alloc(2 * CHUNK * sizeof *buffer);
    *differing = 0;
    for (int i = 0, j = 0; result == 0 && (i < a_count || j < b_count);) {
        int order = i == a_count ? 1 : j == b_count ? -1 : strcmp(x[i].name, y[j].name);
        if (order != 0) {
            (*differing)++;
            put_name(out, order < 0 ? x[i].name : y[j].name);
            dt_text_printf(out, "only in the %s\n", order < 0 ? "first" : "second");
        } else if (x[i].dims != y[j].dims || memcmp(x[i].shape, y[j].shape, (size_t)x[i].dims * sizeof(int64_t)) != 0) {
            (*differing)++;
            put_name(out, x[i].name);
            dt_text_puts(out, "shapes differ\n");
        } else {
            result = compare_tensor(a, b, &x[i], buffer, buffer + CHUNK, out, differing, err);
        }
        i += order <= 0;
        j += order >= 0;
    }
    free(buffer);
    free(y);
    free(x);
    return result;
}
