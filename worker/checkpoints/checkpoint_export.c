/* Export and comparison. Tensors stream through a buffer of a few MiB, so a checkpoint may be
 * larger than memory. */
#include "worker/checkpoints/checkpoint_export.h"

#include "base/file.h"
#include "worker/checkpoints/origin.h"
#include "worker/data/safetensors.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Metadata key of the hash of the weights, as dtckpt hash prints it. A course of training with
 * another seed has the same steps and other weights. */
#define HASH_KEY "weights_hash"

enum { CHUNK = 1 << 20 }; /* elements */

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

/* Notes that the files of the origin are missing: a checkpoint that was moved away alone knows
 * their source, but has no copy. */
static void note_origin(const struct checkpoint *c, const char *kept, struct dt_text *notes)
{
    cJSON *job = cJSON_Parse(checkpoint_get_state(c)->job);
    const cJSON *load = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(job, "model"), "load");
    if (cJSON_IsString(load)) {
        dt_text_printf(
            notes, "%s: is not there: tokenizer and other files of %.200s are not in the exported folder; copy them",
            kept, load->valuestring);
    }
    cJSON_Delete(job);
}

static int export_origin(const struct checkpoint *c, const char *folder, struct dt_text *notes, struct dt_error *err)
{
    char *kept = checkpoint_origin(checkpoint_get_path(c));
    int rc = 0;
    if (dt_file_exists(kept)) {
        rc = origin_copy(kept, folder, err);
    } else {
        note_origin(c, kept, notes);
    }
    free(kept);
    return rc;
}

/* Tensors without dimensions are counters, which PyTorch has as whole numbers. */
static int put_values(struct st_writer *writer, const struct view *v, const float *values, int64_t count,
                      struct dt_error *err)
{
    int64_t whole = v->dims == 0 ? (int64_t)values[0] : 0;
    return v->dims == 0 ? st_writer_data(writer, &whole, sizeof whole, err)
                        : st_writer_data(writer, values, (size_t)count * sizeof *values, err);
}

int checkpoint_export(struct checkpoint *c, const char *folder, struct dt_text *notes, struct dt_error *err)
{
    const char *config = checkpoint_get_state(c)->model_config;
    if (strcmp(config, "null") == 0) {
        return dt_fail(err, DT_INVALID, "the checkpoint holds no model configuration");
    }
    int count, result = -1;
    struct view *views = tensors_of(c, &count);
    struct st_entry *entries = dt_alloc((size_t)count * sizeof *entries);
    float *buffer = dt_alloc(CHUNK * sizeof *buffer);
    char *model = dt_format("%s/model.safetensors", folder), *config_path = dt_format("%s/config.json", folder),
         *text = dt_format("%s\n", config);
    struct st_writer *writer = NULL;
    for (int i = 0; i < count; i++) {
        enum dt_dtype type = views[i].dims == 0 ? DT_I64 : DT_F32;
        entries[i] = (struct st_entry){views[i].name, type, views[i].dims, views[i].shape};
    }
    char step[32], hash[33];
    (void)snprintf(step, sizeof step, "%" PRId64, checkpoint_get_state(c)->step);
    const char *metadata[] = {"format", "pt", "step", step, HASH_KEY, hash, NULL};
    static const char *const names[] = {"config.json", "model.safetensors", NULL};
    dt_file_remove_cut(folder, names);
    if (checkpoint_hash(c, hash, err) != 0 || dt_file_mkdirs(folder, err) != 0 ||
        export_origin(c, folder, notes, err) != 0 || dt_file_write(config_path, text, strlen(text), err) != 0 ||
        st_writer_open(&writer, model, entries, count, metadata, err) != 0) {
        goto out;
    }
    for (int i = 0; i < count; i++) {
        for (int64_t at = 0; at < views[i].numel; at += CHUNK) {
            int64_t size = views[i].numel - at < CHUNK ? views[i].numel - at : CHUNK;
            if (checkpoint_read(c, "weight", views[i].name, views[i].numel, at, size, buffer, err) != 0 ||
                put_values(writer, &views[i], buffer, size, err) != 0) {
                st_writer_abort(writer);
                goto out;
            }
        }
    }
    result = st_writer_close(writer, err);
out:
    free(text);
    free(config_path);
    free(model);
    free(buffer);
    free(entries);
    free(views);
    return result;
}

bool checkpoint_is_exported(struct checkpoint *c, const char *folder)
{
    char *model = dt_format("%s/model.safetensors", folder), step[32], hash[33];
    (void)snprintf(step, sizeof step, "%" PRId64, checkpoint_get_state(c)->step);
    struct st_file *f = NULL;
    bool whole = st_open(&f, model, NULL) == 0;
    const char *of_step = whole ? st_metadata(f, "step") : NULL, *of_hash = whole ? st_metadata(f, HASH_KEY) : NULL;
    bool is = of_step != NULL && strcmp(of_step, step) == 0 && of_hash != NULL && checkpoint_hash(c, hash, NULL) == 0 &&
              strcmp(of_hash, hash) == 0;
    st_close(f);
    free(model);
    return is;
}

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
