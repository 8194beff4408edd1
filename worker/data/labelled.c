/* Labelled rows of different lengths, for models that classify sequences: safetensors files with
 *
 *   ids      I32 (total)                the ids of all rows, special tokens included
 *   starts   I64 (n + 1)                row i is ids[starts[i] .. starts[i + 1])
 *   labels   I64 (n), F32 (n) or F32 (n, k)
 *   types    U8 (total), may be missing: the token type of each id
 *
 * and metadata as texts: tokenizer, vocabulary, pad_id, label_names (a JSON array). A row is padded to
 * the model's sequence length, and the mask says where it ends. */
#include "base/scan.h"
#include "base/text.h"
#include "worker/data/rows.h"
#include "worker/data/safetensors.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { ID_MAX = 16777215 }; /* the limit of model.vocab_size and of classes */

struct rows_file {
    struct st_file *file;
    const struct st_tensor *ids, *starts, *labels, *types; /* types: null if there are none */
    int64_t first, rows;                                   /* the first row's number among all */
    int32_t pad_id;
};

struct labelled {
    struct rows_file *files;
    size_t count;
    int ids, mask, types, labels; /* numbers of the layout's fields; -1: the model does not read it */
    int32_t pad_id;               /* that the model knows padding by; -1: any id will do */
    char *names;                  /* label_names of the first file, or null */
    cJSON *name_list;
    const char **classes;
};

static bool recognise(const char *path)
{
    struct st_file *f = NULL;
    struct dt_error ignored;
    bool labelled = data_tensors.recognise(path) && st_open(&f, path, &ignored) == 0 && st_find(f, "ids") != NULL &&
                    st_find(f, "starts") != NULL;
    st_close(f);
    return labelled;
}

static void close_labelled(struct data_source *s)
{
    struct labelled *r = s->state;
    for (size_t i = 0; r != NULL && i < r->count; i++) {
        st_close(r->files[i].file);
    }
    if (r != NULL) {
        free(r->files);
        free(r->names);
        free(r->classes);
        cJSON_Delete(r->name_list);
    }
    free(r);
    s->state = NULL;
}

/* Elements of a mapping, which may be unaligned. */
static int32_t id_at(const struct rows_file *f, int64_t i)
{
    int32_t v;
    memcpy(&v, (const char *)f->ids->data + i * 4, sizeof v);
    return v;
}

static int64_t start_of(const struct rows_file *f, int64_t row)
{
    int64_t v;
    memcpy(&v, (const char *)f->starts->data + row * 8, sizeof v);
    return v;
}

/* Finds the fields that rows can fill. */
static int find_fields(struct data_source *s, struct labelled *r, const char *glob, struct dt_error *err)
{
    const struct batch_layout *l = &s->layout;
    r->ids = batch_find(l, "input_ids");
    r->mask = batch_find(l, "attention_mask");
    r->types = batch_find(l, "token_type_ids");
    r->labels = s->targets;
    int last = batch_find(l, "last_tokens");
    r->pad_id = last >= 0 ? (int32_t)l->field[last].number : -1;
    for (int k = 0; k < l->count; k++) {
        if (batch_in_data(&l->field[k]) && k != r->ids && k != r->mask && k != r->types && k != r->labels) {
            return dt_fail(err, DT_INVALID, "%s: labelled rows hold no %s, which the model reads", glob,
                           l->field[k].name);
        }
    }
    if (r->ids < 0 || r->mask < 0 || r->labels < 0 ||
        (l->field[r->labels].type == DT_I32 && l->field[r->labels].dims != 1)) {
        return dt_fail(err, DT_INVALID,
                       "%s: labelled rows are for models that classify sequences (model.task "
                       "\"sequence_classification\")",
                       glob);
    }
    return 0;
}

static int check_form(const struct rows_file *f, const char *path, struct dt_error *err)
{
    bool good = f->ids != NULL && f->ids->type == DT_I32 && f->ids->dims == 1 && f->starts != NULL &&
                f->starts->type == DT_I64 && f->starts->dims == 1 && f->starts->numel > 0 && f->labels != NULL &&
                f->labels->dims >= 1 && f->labels->shape[0] == f->starts->numel - 1 &&
                (f->types == NULL || (strcmp(f->types->dtype, "U8") == 0 && f->types->numel == f->ids->numel));
    if (!good) {
        return dt_fail(err, DT_INVALID,
                       "%s: labelled rows are ids I32 (total), starts I64 (n + 1), labels (n) and perhaps types U8 "
                       "(total); make it again with dtdata tokenize",
                       path);
    }
    return f->rows > 0 ? 0 : dt_fail(err, DT_INVALID, "%s: holds no rows", path);
}

/* Checks that rows follow each other, have an id at least, and fit into a sample. */
static int check_starts(const struct data_source *s, const struct rows_file *f, const char *path, struct dt_error *err)
{
    for (int64_t row = 0; row < f->rows; row++) {
        int64_t begin = start_of(f, row), end = start_of(f, row + 1);
        bool last = row + 1 == f->rows;
        if ((row == 0 && begin != 0) || end < begin || end > f->ids->numel || (last && end != f->ids->numel)) {
            return dt_fail(err, DT_INVALID,
                           "%s: starts: row %" PRId64 " is ids %" PRId64 " to %" PRId64 " of %" PRId64
                           ": damaged; make it again",
                           path, row + 1, begin, end, f->ids->numel);
        }
        if (end == begin) {
            return dt_fail(err, DT_INVALID, "%s: row %" PRId64 " has no ids; take it out", path, row + 1);
        }
        if (end - begin > s->sequence_length) {
            return dt_fail(err, DT_INVALID,
                           "%s: row %" PRId64 " has %" PRId64 " ids, but data.sequence_length is %" PRId64
                           "; raise it, or cut rows with dtdata tokenize",
                           path, row + 1, end - begin, s->sequence_length);
        }
    }
    return 0;
}

static int check_ids(struct data_source *s, const struct labelled *r, const struct rows_file *f, const char *path,
                     struct dt_error *err)
{
    struct data_largest none = {0}, *ids = &s->largest[r->ids], *types = r->types >= 0 ? &s->largest[r->types] : &none;
    for (int64_t row = 0; row < f->rows; row++) {
        for (int64_t i = start_of(f, row); i < start_of(f, row + 1); i++) {
            int32_t id = id_at(f, i), type = f->types != NULL ? ((const uint8_t *)f->types->data)[i] : 0;
            if (id < 0 || id > ID_MAX) {
                return dt_fail(err, DT_INVALID, "%s: ids: row %" PRId64 " has id %" PRId32 "; ids are from 0 to %d",
                               path, row + 1, id, ID_MAX);
            }
            *ids = id > ids->value ? (struct data_largest){id, path, row + 1} : *ids;
            *types = type > types->value ? (struct data_largest){type, path, row + 1} : *types;
        }
    }
    return 0;
}

static int check_labels(struct data_source *s, const struct labelled *r, const struct rows_file *f, const char *path,
                        struct dt_error *err)
{
    const struct batch_field *field = &s->layout.field[r->labels];
    bool whole = field->type == DT_I32;
    int64_t each = batch_sample_elements(&s->layout, r->labels);
    if (whole != (f->labels->type == DT_I64)) {
        return dt_fail(err, DT_INVALID,
                       whole ? "%s: labels are numbers, but the model gives classes; for numbers set model.problem_type"
                             : "%s: labels are classes, but the model gives numbers; set model.problem_type to "
                               "\"single_label_classification\"",
                       path);
    }
    if (f->labels->numel != f->rows * each || (!whole && f->labels->type != DT_F32)) {
        return dt_fail(err, DT_INVALID,
                       "%s: labels: %" PRId64 " of type %s for %" PRId64 " rows, but the model reads %" PRId64 " a row",
                       path, f->labels->numel, f->labels->dtype, f->rows, each);
    }
    for (int64_t i = 0; i < f->labels->numel; i++) {
        int64_t class_number = 0;
        float number = 0;
        memcpy(whole ? (void *)&class_number : (void *)&number,
               (const char *)f->labels->data + i * (int64_t)(whole ? sizeof class_number : sizeof number),
               whole ? sizeof class_number : sizeof number);
        if (class_number < 0 || class_number > ID_MAX || !isfinite(number) ||
            (field->shares && (number < 0 || number > 1))) {
            return dt_fail(err, DT_INVALID, "%s: labels: row %" PRId64 " has %g; %s", path, i / each + 1,
                           whole ? (double)class_number : (double)number,
                           whole           ? "classes are numbers from 0"
                           : field->shares ? "labels of several classes are from 0 to 1"
                                           : "labels are finite numbers");
        }
        if (class_number > s->largest[r->labels].value) {
            s->largest[r->labels] = (struct data_largest){class_number, path, i + 1};
        }
    }
    return 0;
}

/* A number from the metadata; `missing` if it is not there or none. */
static int64_t metadata_number(const struct rows_file *f, const char *key, int64_t missing)
{
    const char *text = st_metadata(f->file, key);
    char *end = NULL;
    long long v = text != NULL ? strtoll(text, &end, 10) : -1;
    return text != NULL && end != text && *end == 0 && v >= 0 && v <= ID_MAX ? v : missing;
}

/* Takes the names of the classes from the first file. */
static int read_names(struct data_source *s, struct labelled *r, const char *path, struct dt_error *err)
{
    r->name_list = dt_scan_parse(r->names, strlen(r->names), path, NULL, err);
    if (r->name_list == NULL) {
        return dt_wrap(err, "label_names");
    }
    int count = cJSON_IsArray(r->name_list) ? cJSON_GetArraySize(r->name_list) : 0;
    r->classes = dt_alloc(((size_t)count + 1) * sizeof *r->classes);
    const cJSON *name;
    cJSON_ArrayForEach(name, r->name_list)
    {
        if (cJSON_IsString(name)) {
            r->classes[s->class_count++] = name->valuestring;
        }
    }
    if (s->class_count != count || count == 0) {
        return dt_fail(err, DT_INVALID, "%s: label_names is not a JSON array of texts; make it again", path);
    }
    s->classes = r->classes;
    return 0;
}

/* Takes what the metadata say; all files must say the same of tokenizer and classes. */
static int read_metadata(struct data_source *s, struct labelled *r, struct rows_file *f, const char *path,
                         struct dt_error *err)
{
    const char *tokenizer = st_metadata(f->file, "tokenizer"), *names = st_metadata(f->file, "label_names");
    tokenizer = tokenizer != NULL ? tokenizer : "";
    int64_t vocabulary = metadata_number(f, "vocabulary", 0);
    s->vocabulary = vocabulary > s->vocabulary ? vocabulary : s->vocabulary;
    f->pad_id = (int32_t)metadata_number(f, "pad_id", 0);
    bool first = f == &r->files[0];
    if (!first && strncmp(s->tokenizer, tokenizer, sizeof s->tokenizer - 1) != 0) {
        return dt_fail(err, DT_INVALID, "%s: tokenizer \"%s\", but %s has \"%s\"; make all files with one", path,
                       tokenizer, st_path(r->files[0].file), s->tokenizer);
    }
    if (!first && ((names == NULL) != (r->names == NULL) || (names != NULL && strcmp(names, r->names) != 0))) {
        return dt_fail(err, DT_INVALID, "%s: classes %s, but %s has %s; make all files with one list of labels", path,
                       names != NULL ? names : "without names", st_path(r->files[0].file),
                       r->names != NULL ? r->names : "none");
    }
    const char *hash = st_metadata(f->file, "tokenizer_hash");
    uint64_t number = hash != NULL ? strtoull(hash, NULL, 16) : 0;
    if (!first && number != s->tokenizer_hash) {
        return dt_fail(err, DT_INVALID, "%s: another tokenizer %s than that of %s; make all files with one", path,
                       tokenizer, st_path(r->files[0].file));
    }
    s->tokenizer_hash = number;
    (void)snprintf(s->tokenizer, sizeof s->tokenizer, "%s", tokenizer);
    if (first && names != NULL) {
        r->names = dt_strdup(names);
        return read_names(s, r, path, err);
    }
    return 0;
}

static uint64_t content(const struct rows_file *f)
{
    XXH3_state_t *h = XXH3_createState();
    (void)XXH3_64bits_reset(h);
    const struct st_tensor *const all[] = {f->ids, f->starts, f->labels, f->types};
    for (int i = 0; i < 4; i++) {
        if (all[i] != NULL) {
            (void)XXH3_64bits_update(h, &all[i]->numel, sizeof all[i]->numel);
            (void)XXH3_64bits_update(h, all[i]->data, all[i]->size_bytes);
        }
    }
    uint64_t hash = XXH3_64bits_digest(h);
    (void)XXH3_freeState(h);
    return hash;
}

static int open_file(struct data_source *s, struct labelled *r, struct rows_file *f, const char *name,
                     struct dt_error *err)
{
    if (st_open(&f->file, name, err) != 0) {
        return -1;
    }
    const char *path = st_path(f->file); /* lives as long as the file, for `largest` */
    f->ids = st_find(f->file, "ids");
    f->starts = st_find(f->file, "starts");
    f->labels = st_find(f->file, "labels");
    f->types = st_find(f->file, "types");
    f->first = s->sample_count;
    f->rows = f->starts != NULL ? f->starts->numel - 1 : 0;
    if (check_form(f, path, err) != 0 || check_starts(s, f, path, err) != 0 || check_ids(s, r, f, path, err) != 0 ||
        check_labels(s, r, f, path, err) != 0 || read_metadata(s, r, f, path, err) != 0) {
        return -1;
    }
    s->sample_count += f->rows;
    s->token_count += f->ids->numel;
    data_list_file(s, name, f->rows, content(f));
    return 0;
}

static uint64_t hash_all(const struct data_source *s)
{
    XXH3_state_t *h = XXH3_createState();
    (void)XXH3_64bits_reset(h);
    for (int i = 0; i < s->file_count; i++) {
        (void)XXH3_64bits_update(h, s->files[i].name, strlen(s->files[i].name) + 1);
        (void)XXH3_64bits_update(h, &s->files[i].hash, sizeof s->files[i].hash);
    }
    uint64_t hash = XXH3_64bits_digest(h);
    (void)XXH3_freeState(h);
    return hash;
}

static int open_labelled(struct data_source *s, const char *glob, struct dt_error *err)
{
    struct data_files files;
    if (data_files_open(&files, glob, true, err) != 0) {
        return -1;
    }
    struct labelled *r = dt_alloc(sizeof *r);
    s->state = r;
    r->files = dt_alloc(files.count * sizeof *r->files);
    int result = find_fields(s, r, glob, err);
    for (size_t i = 0; result == 0 && i < files.count; i++) {
        result = open_file(s, r, &r->files[r->count++], files.paths[i], err);
    }
    data_files_close(&files);
    if (result != 0) {
        close_labelled(s);
        return -1;
    }
    int64_t ids = s->largest[r->ids].value + 1;
    s->vocabulary = ids > s->vocabulary ? ids : s->vocabulary;
    s->hash = hash_all(s);
    return 0;
}

static const struct rows_file *file_of(const struct labelled *r, int64_t sample)
{
    size_t low = 0, high = r->count; /* the sample is in a file of [low, high); no file is empty */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(sample < r->files[middle].first ? &high : &low) = middle;
    }
    return &r->files[low];
}

static int read_labelled(const struct data_source *s, int64_t sample, int64_t epoch, const struct batch *b, int64_t row,
                         struct dt_error *err)
{
    (void)epoch;
    (void)err;
    const struct labelled *r = s->state;
    const struct rows_file *f = file_of(r, sample);
    int64_t begin = start_of(f, sample - f->first), count = start_of(f, sample - f->first + 1) - begin;
    int64_t length = s->sequence_length, each = batch_sample_elements(&s->layout, r->labels);
    int32_t *ids = (int32_t *)b->at[r->ids] + row * length, *mask = (int32_t *)b->at[r->mask] + row * length;
    for (int64_t i = 0; i < length; i++) {
        ids[i] = i < count ? id_at(f, begin + i) : r->pad_id >= 0 ? r->pad_id : f->pad_id;
        mask[i] = i < count;
    }
    for (int64_t i = 0; r->types >= 0 && i < length; i++) {
        bool has = f->types != NULL && i < count;
        ((int32_t *)b->at[r->types])[row * length + i] = has ? ((const uint8_t *)f->types->data)[begin + i] : 0;
    }
    if (s->layout.field[r->labels].type == DT_F32) {
        memcpy((float *)b->at[r->labels] + row * each,
               (const char *)f->labels->data + (sample - f->first) * each * (int64_t)sizeof(float),
               (size_t)each * sizeof(float));
    } else {
        int64_t label;
        memcpy(&label, (const char *)f->labels->data + (sample - f->first) * 8, sizeof label);
        ((int32_t *)b->at[r->labels])[row] = (int32_t)label;
    }
    return 0;
}

static int64_t length_labelled(const struct data_source *s, int64_t sample)
{
    const struct rows_file *f = file_of(s->state, sample);
    return start_of(f, sample - f->first + 1) - start_of(f, sample - f->first);
}

static void expect_labelled(const struct data_source *s, int64_t sample)
{
    const struct rows_file *f = file_of(s->state, sample);
    int64_t begin = start_of(f, sample - f->first), end = start_of(f, sample - f->first + 1);
    data_expect_bytes((const char *)f->ids->data + begin * 4, (size_t)(end - begin) * 4);
}

const struct data_ops data_labelled = {.name = "rows",
                                       .recognise = recognise,
                                       .open = open_labelled,
                                       .read = read_labelled,
                                       .length = length_labelled,
                                       .expect = expect_labelled,
                                       .close = close_labelled};
