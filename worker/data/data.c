/* Training data: finds the format of the files that a glob matches, and fills micro-batches by
 * global position. tokens.c and tensors.c hold the formats, sampler.c the order of samples. */
#include "worker/data/data.h"

#include "base/file.h"
#include "base/text.h"
#include "worker/data/images/folder.h"
#include "worker/data/images/source.h"
#include "worker/data/rows.h"
#include "worker/data/shards_set.h"
#include "worker/data/tokenizers/tokenizer.h"

#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const struct data_ops *const rows[] = {&data_tokens,  &data_nanogpt,      &data_labelled,
                                              &data_tensors, &data_choice_lines, &data_idx,
                                              &data_cifar10, &data_cifar100,     &data_imagefolder};
enum { ROW_COUNT = sizeof rows / sizeof rows[0], EXPECT_BYTES = 128 << 10, CLASSES_SHOWN = 8 };

const char *data_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char *data_pattern(const char *pattern)
{
    struct stat st;
    char *path = dt_strdup(pattern);
    size_t size = strlen(path);
    while (size > 0 && lstat(path, &st) != 0) {
        for (; size > 0 && path[size - 1] != '/'; size--) {
        }
        for (; size > 0 && path[size - 1] == '/'; size--) {
        }
        path[size] = 0;
    }
    struct dt_text text;
    dt_text_init(&text);
    for (size_t i = 0; i < size; i++) {
        dt_text_puts(&text, strchr("*?[\\", pattern[i]) != NULL ? "\\" : "");
        dt_text_add(&text, pattern + i, 1);
    }
    dt_text_puts(&text, pattern + size);
    free(path);
    return text.data;
}

static bool has_tensors(const char *folder)
{
    glob_t found;
    char *pattern = dt_format("%s/*.safetensors", folder), *searched = data_pattern(pattern);
    bool has = glob(searched, GLOB_NOSORT, NULL, &found) == 0;
    if (has) {
        globfree(&found);
    }
    free(searched);
    free(pattern);
    return has;
}

/* True for what lies beside FILE.bin: FILE.bin.json, the list of a set of shards, and FILE.idx, Megatron's index. */
static bool is_beside(const char *path)
{
    if (!dt_text_ends_with(path, ".idx")) {
        return dt_text_ends_with(path, ".bin.json") || shard_set_is_list(path);
    }
    char *ids = dt_format("%.*s.bin", (int)(strlen(path) - 4), path);
    bool beside = dt_file_exists(ids);
    free(ids);
    return beside;
}

int data_files_open(struct data_files *f, const char *pattern, bool tensors, struct dt_error *err)
{
    glob_t found;
    tensors = tensors || dt_text_ends_with(pattern, ".safetensors");
    *f = (struct data_files){0};
    char *searched = data_pattern(pattern);
    int result = glob(searched, GLOB_NOSORT, NULL, &found);
    free(searched);
    if (result == GLOB_NOMATCH) {
        return dt_fail(
            err, DT_NOT_FOUND, "%s: no such file; %s%s", pattern,
            tensors ? "name safetensors files" : "name texts, or token shards (dtdata tokenize makes them)",
            strpbrk(pattern, "*?[") != NULL ? "; a *, ? or [ that is part of a name is written with \\ before it" : "");
    }
    if (result != 0) {
        return dt_fail(err, DT_IO, "%s: cannot be searched", pattern);
    }
    struct stat st;
    f->paths = dt_alloc((found.gl_pathc + 1) * sizeof *f->paths);
    bool only_folder = found.gl_pathc == 1 && stat(found.gl_pathv[0], &st) == 0 && S_ISDIR(st.st_mode);
    for (size_t i = 0; i < found.gl_pathc && !only_folder; i++) {
        if (!is_beside(found.gl_pathv[i])) {
            f->paths[f->count++] = dt_strdup(found.gl_pathv[i]);
        }
    }
    globfree(&found);
    if (f->count == 0) {
        data_files_close(f);
        return only_folder
                   ? dt_fail(err, DT_INVALID, "%s: is a folder; name its files, for example %s/%s", pattern, pattern,
                             tensors || has_tensors(pattern) ? "*.safetensors" : "train-*.bin")
                   : dt_fail(err, DT_INVALID, "%s: matches no data file, only .json and .idx beside them", pattern);
    }
    if (f->count > DATA_FILES_MAX) {
        (void)dt_fail(err, DT_INVALID, "%s: %zu files; at most %d: make larger ones", pattern, f->count,
                      DATA_FILES_MAX);
        data_files_close(f);
        return -1;
    }
    qsort(f->paths, f->count, sizeof *f->paths, by_name);
    if (shard_set_check(f->paths, f->count, err) != 0) {
        data_files_close(f);
        return -1;
    }
    return 0;
}

void data_files_close(struct data_files *f)
{
    for (size_t i = 0; i < f->count; i++) {
        free(f->paths[i]);
    }
    free(f->paths);
    *f = (struct data_files){0};
}

const char *data_format_of(const char *path)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (rows[i]->recognise(path)) {
            return rows[i]->name;
        }
    }
    return NULL;
}

static const struct data_ops *find_row(const char *glob, const char *format, const struct batch_layout *layout,
                                       struct dt_error *err)
{
    const char *lacks = data_tokens_lack(layout);
    bool tensors = lacks != NULL, pixels = tensors && strcmp(lacks, "pixel_values") == 0;
    struct data_files files;
    const struct data_ops *found = NULL;
    struct stat st;
    bool automatic = strcmp(format, "auto") == 0;
    if (strcmp(format, data_imagefolder.name) == 0 || (automatic && folder_recognise(glob))) {
        return &data_imagefolder;
    }
    if (pixels && automatic && stat(glob, &st) == 0 && S_ISDIR(st.st_mode)) {
        (void)dt_fail(err, DT_INVALID,
                      "%s: is a folder without folders of images, one for each class; other data are named by their "
                      "files: %s/*.safetensors, %s/data_batch_*.bin of CIFAR-10, %s/train-images-idx3-ubyte of IDX",
                      glob, glob, glob, glob);
        return NULL;
    }
    if (data_files_open(&files, glob, tensors, err) != 0) {
        if (pixels && err->status == DT_NOT_FOUND) {
            (void)dt_fail(err, DT_NOT_FOUND,
                          "%s: no such file; name a folder of images by class, IDX, CIFAR or safetensors files", glob);
        }
        return NULL;
    }
    if (stat(files.paths[0], &st) == 0 && !S_ISREG(st.st_mode)) {
        (void)dt_fail(err, DT_INVALID, "%s: is not a regular file; give %ssafetensors files", files.paths[0],
                      tensors ? "" : "token shards (dtdata tokenize makes them) or ");
        data_files_close(&files);
        return NULL;
    }
    for (size_t i = 0; i < ROW_COUNT && found == NULL; i++) {
        bool this_one = automatic ? rows[i]->recognise(files.paths[0]) : strcmp(format, rows[i]->name) == 0;
        found = this_one ? rows[i] : NULL;
    }
    if (found == NULL && automatic) {
        (void)dt_fail(err, DT_INVALID, "%s: %s", files.paths[0],
                      pixels    ? "is no safetensors file, and no IDX or CIFAR file; the model reads these, and "
                                  "folders of images by class"
                      : tensors ? "is no safetensors file; the model reads these"
                                : "neither a token shard nor a safetensors file; make shards with dtdata tokenize; for "
                                  "ids without a header (nanoGPT) set data.format to \"nanogpt\"");
    } else if (found == NULL) {
        (void)dt_fail(
            err, DT_INVALID,
            "data.format: %s: unknown; use auto, tokens, nanogpt, rows, tensors, multiple_choice, imagefolder, idx, "
            "cifar10 or cifar100",
            format);
    }
    data_files_close(&files);
    return found;
}

static void clear(struct data_source *s)
{
    for (int i = 0; i < s->file_count; i++) {
        free(s->files[i].name);
    }
    free(s->files);
    *s = (struct data_source){0};
}

int data_open(struct data_source *s, const char *glob, const char *format, const struct batch_layout *layout,
              struct dt_error *err)
{
    const struct data_ops *ops = find_row(glob, format, layout, err);
    if (ops == NULL) {
        return -1;
    }
    const struct batch_field *first = &layout->field[0];
    *s = (struct data_source){.ops = ops,
                              .layout = *layout,
                              .targets = batch_targets(layout),
                              .document_end = -1,
                              .sequence_length = first->dims == 2 ? first->most[1] : 1};
    if (ops->open(s, glob, err) != 0) {
        clear(s);
        return -1;
    }
    return 0;
}

/* True if the job wants something to be done to images. */
static bool transforms_images(const struct job_transforms *t)
{
    return t->resize.count > 0 || t->center_crop.count > 0 || t->random_crop.count > 0 ||
           t->random_resized_crop.count > 0 || t->random_horizontal_flip > 0 || t->mean.count > 0 || t->std.count > 0;
}

int data_prepare(struct data_source *s, const struct job *job, bool training, struct dt_error *err)
{
    s->pad_multiple = job->data.pad_to_multiple_of;
    if (s->ops->prepare != NULL) {
        return s->ops->prepare(s, job, training, err);
    }
    if (transforms_images(&job->transforms)) {
        return dt_fail(err, DT_INVALID, "%s are taken as they are; remove the section transforms", s->ops->name);
    }
    return 0;
}

/* What to do for values that the model does not have. A loaded model keeps its sizes, but for those of the head. */
static void advise(const struct job *job, const struct batch_field *f, int64_t least, const char *raise,
                   struct dt_text *out)
{
    if (job->model.load != NULL && !model_chooses(job->model.ops, f->below_key)) {
        dt_text_printf(out, "a loaded model keeps its %s: give data that was made for it, such as with its tokenizer",
                       f->below_key);
    } else {
        dt_text_printf(out, "raise %s to %" PRId64 " or more", raise, least);
    }
}

int data_check_range(const struct data_source *s, const struct job *job, const char *key, struct dt_error *err)
{
    for (int k = 0; k < s->layout.count; k++) {
        const struct batch_field *f = &s->layout.field[k];
        const struct data_largest *most = &s->largest[k];
        if (f->below == 0 || most->value < f->below) {
            continue;
        }
        char name[64];
        struct dt_text advice;
        dt_text_init(&advice);
        (void)snprintf(name, sizeof name, "model.%s", f->below_key);
        advise(job, f, most->value + 1, most->path == NULL ? "it" : name, &advice);
        if (k == s->targets && s->class_count > 0) {
            dt_text_puts(&advice, "; the data have ");
            struct dt_list classes = {.text = &advice, .most = CLASSES_SHOWN};
            for (int i = 0; i < s->class_count; i++) {
                dt_list_add(&classes, "%s", s->classes[i]);
            }
        }
        if (most->path == NULL) {
            (void)dt_fail(err, DT_INVALID, "%s: %" PRId64 ": %s has %s up to %" PRId64 "; %s", name, f->below, key,
                          f->values, most->value, dt_text_str(&advice));
        } else {
            (void)dt_fail(err, DT_INVALID,
                          "%s: %s: %s: sample %" PRId64 " has %s %" PRId64 ", but the model has %" PRId64 " %s; %s",
                          key, most->path, f->name, most->sample, f->value, most->value, f->below,
                          f->below == 1 ? f->value : f->values, dt_text_str(&advice));
        }
        dt_text_clear(&advice);
        return -1;
    }
    return 0;
}

/* The number of a class by its name; -1: there is none such. */
static int find_class(const struct job_model *m, const char *name)
{
    int k = m->class_count - 1;
    while (k >= 0 && strcmp(m->classes[k], name) != 0) {
        k--;
    }
    return k;
}

enum data_classes data_compare_classes(const struct job_model *m, const char *const *names, int count, int *first)
{
    enum data_classes found = DATA_CLASSES_ALIKE;
    bool numbers = true;
    for (int i = 0; i < count && m->class_count > 0 && found != DATA_CLASSES_OTHER; i++) {
        char number[16];
        (void)snprintf(number, sizeof number, "%d", i);
        numbers = numbers && strcmp(names[i], number) == 0;
        int k = i < m->class_count && strcmp(m->classes[i], names[i]) == 0 ? i : find_class(m, names[i]);
        if (k != i && !(numbers && k < 0) && (found == DATA_CLASSES_ALIKE || k < 0)) {
            found = k < 0 ? DATA_CLASSES_OTHER : DATA_CLASSES_MOVED;
            *first = i;
        }
    }
    return found;
}

/* Folders of images may have other words for the same classes, as ImageNet's have numbers of WordNet. */
static bool has_other_words(const struct data_source *s, const struct job_model *m)
{
    bool other = s->ops == &data_imagefolder && s->class_count == m->class_count;
    for (int i = 0; i < s->class_count && other; i++) {
        other = find_class(m, s->classes[i]) < 0;
    }
    return other;
}

/* The first class whose name is the number of another one, if all names are numbers; -1: there is none. */
static int first_renumbered(const struct data_source *s)
{
    int first = -1;
    for (int i = s->class_count - 1; i >= 0; i--) {
        long long k = 0;
        if (!dt_parse_int64(s->classes[i], &k)) {
            return -1;
        }
        first = k != i ? i : first;
    }
    return first;
}

int data_check_classes(const struct data_source *s, const struct job *job, const char *key, const char *words,
                       struct dt_error *err)
{
    const struct job_model *m = &job->model;
    int first = 0, renumbered = first_renumbered(s);
    if (m->class_count == 0 && renumbered >= 0) {
        return dt_fail(err, DT_INVALID,
                       "%s: %s: class %d is %s, and the model's classes have no other names than their numbers; make "
                       "the data with --labels 0,1,... of all classes",
                       key, words, renumbered, s->classes[renumbered]);
    }
    if (data_compare_classes(m, s->classes, s->class_count, &first) == DATA_CLASSES_ALIKE || has_other_words(s, m)) {
        return 0;
    }
    int is = find_class(m, s->classes[first]);
    struct dt_text names;
    dt_text_init(&names);
    struct dt_list list = {.text = &names, .most = CLASSES_SHOWN};
    for (int i = 0; i < m->class_count; i++) {
        dt_list_add(&list, "%s", m->classes[i]);
    }
    (void)(is < 0 ? dt_fail(err, DT_INVALID,
                            "%s: %s: class %d is %s, which the model does not have; give data of its classes, %s "
                            "(dtdata tokenize --labels)",
                            key, words, first, s->classes[first], dt_text_str(&names))
                  : dt_fail(err, DT_INVALID,
                            "%s: %s: class %d is %s, which is class %d of the model; make the data with its order of "
                            "labels, %s (dtdata tokenize --labels)",
                            key, words, first, s->classes[first], is, dt_text_str(&names)));
    dt_text_clear(&names);
    return -1;
}

void data_close(struct data_source *s)
{
    if (s->ops != NULL) {
        s->ops->close(s);
    }
    clear(s);
}

void data_end_documents(struct data_source *s, int64_t id)
{
    batch_end_documents(&s->layout, id);
    s->document_end = id;
}

void data_list_named(struct data_source *s, const char *name, int64_t count, uint64_t hash)
{
    s->files = dt_realloc(s->files, (size_t)(s->file_count + 1) * sizeof *s->files);
    s->files[s->file_count++] = (struct data_file){.name = dt_strdup(name), .count = count, .hash = hash};
}

void data_list_file(struct data_source *s, const char *path, int64_t count, uint64_t hash)
{
    data_list_named(s, data_base_name(path), count, hash);
}

bool data_differ(const struct data_file *was, int was_count, const struct data_source *s, struct dt_text *what)
{
    int i = 0;
    while (i < was_count && i < s->file_count && was[i].count == s->files[i].count && was[i].hash == s->files[i].hash) {
        i++;
    }
    if (i == was_count && i == s->file_count) {
        return false;
    }
    if (i == was_count) {
        dt_text_printf(what, "%s is new", s->files[i].name);
    } else if (i == s->file_count) {
        dt_text_printf(what, "%s is gone", was[i].name);
    } else if (strcmp(was[i].name, s->files[i].name) == 0) {
        dt_text_printf(what, "%s is not what it was", was[i].name);
    } else {
        dt_text_printf(what, "%s stands where %s was", s->files[i].name, was[i].name);
    }
    if (was_count != s->file_count) {
        dt_text_printf(what, " (%d file%s now, %d then)", s->file_count, s->file_count == 1 ? "" : "s", was_count);
    }
    return true;
}

uint64_t data_content(const struct data_source *s)
{
    XXH3_state_t *h = XXH3_createState();
    (void)XXH3_64bits_reset(h);
    for (int i = 0; i < s->file_count; i++) {
        (void)XXH3_64bits_update(h, &s->files[i].count, sizeof s->files[i].count);
        (void)XXH3_64bits_update(h, &s->files[i].hash, sizeof s->files[i].hash);
    }
    uint64_t hash = XXH3_64bits_digest(h);
    (void)XXH3_freeState(h);
    return hash;
}

static bool differ(const char *a, const char *b)
{
    return a != NULL && b != NULL && *a != 0 && *b != 0 && strcmp(a, b) != 0;
}

/* data.tokenizer is the path of a tokenizer.json, or of its folder; or else a name as the shards have it. */
static int check_tokenizer(const struct job_data *job, const struct data_source *s, const char *data,
                           struct dt_error *err)
{
    uint64_t hash;
    if (!dt_file_exists(job->tokenizer)) {
        return differ(job->tokenizer, s->tokenizer)
                   ? dt_fail(
                         err, DT_INVALID,
                         "data.tokenizer: is %s, which is no file, and %s has %s; remove it, or make the shards again",
                         job->tokenizer, data, s->tokenizer)
                   : 0;
    }
    if (tokenizer_hash_file(job->tokenizer, &hash, err) != 0) {
        return dt_wrap(err, "data.tokenizer");
    }
    if (s->tokenizer_hash == hash || s->tokenizer[0] == 0) {
        return 0;
    }
    return dt_fail(err, DT_INVALID,
                   "data.tokenizer: %s is another one than %s of %s; give that of the data, or make them again with it",
                   job->tokenizer, s->tokenizer, data);
}

int data_check(const struct job_data *job, const struct data_source *first, const char *words,
               const struct data_source *val, const char *val_key, const char *val_words, struct dt_error *err)
{
    const struct data_source *asked = first != NULL ? first : val;
    if (asked != NULL && job->tokenizer != NULL &&
        check_tokenizer(job, asked, first != NULL ? words : val_words, err) != 0) {
        return -1;
    }
    if (first != NULL && val != NULL &&
        (differ(first->tokenizer, val->tokenizer) ||
         (first->tokenizer_hash != val->tokenizer_hash && first->tokenizer_hash != 0 && val->tokenizer_hash != 0))) {
        return dt_fail(err, DT_INVALID, "%s: %s: tokenizer %s, but %s has %s; make both with one", val_key, val_words,
                       val->tokenizer, words, first->tokenizer);
    }
    if (first == NULL || val == NULL || first->classes == NULL || val->classes == NULL) {
        return 0;
    }
    for (int i = 0; i < first->class_count || i < val->class_count; i++) {
        const char *a = i < first->class_count ? first->classes[i] : "none",
                   *b = i < val->class_count ? val->classes[i] : "none";
        if (strcmp(a, b) != 0) {
            return dt_fail(err, DT_INVALID, "%s: %s: class %d is %s, but in %s it is %s; both need the same classes",
                           val_key, val_words, i, b, words, a);
        }
    }
    return 0;
}

/* A row beyond the epoch's samples: zeros or what stands for missing data, with no targets. */
static void clear_row(const struct data_source *s, const struct batch *b, int64_t row)
{
    for (int k = 0; k < s->layout.count; k++) {
        int64_t count = batch_sample_elements(&s->layout, k);
        size_t size = (size_t)count * dt_dtype_size(s->layout.field[k].type);
        memset((char *)b->at[k] + (size_t)row * size, 0, size);
        if (s->layout.field[k].optional) {
            batch_fill_missing(b, k, row);
        }
        for (int64_t i = 0; k == s->targets && i < count; i++) {
            if (s->layout.field[k].type == DT_F32) {
                ((float *)b->at[k])[row * count + i] = NAN;
            } else {
                ((int32_t *)b->at[k])[row * count + i] = -100;
            }
        }
    }
}

static int64_t count_targets(const struct data_source *s, const struct batch *b)
{
    const int32_t *labels = b->at[s->targets];
    int64_t count = b->samples * batch_sample_elements(&s->layout, s->targets), targets = 0;
    for (int64_t i = 0; i < count; i++) {
        targets += labels[i] != -100;
    }
    return targets;
}

/* The number of positions of a row up to the last one that is seen or judged. mask: the field that says what is seen;
 * -1: choices, of which the last position is judged. */
static int64_t used_positions(const struct data_source *s, const struct batch *b, int mask, int64_t row)
{
    const int32_t *seen = NULL, *labels = NULL;
    int64_t count = 0;
    if (mask >= 0) {
        count = s->layout.field[mask].most[1];
        seen = (const int32_t *)b->at[mask] + row * count;
    }
    if (s->targets >= 0 && batch_of_positions(&s->layout.field[s->targets])) {
        count = s->layout.field[s->targets].most[1];
        labels = (const int32_t *)b->at[s->targets] + row * count;
    }
    while (count > 0 && (seen == NULL || seen[count - 1] == 0) && (labels == NULL || labels[count - 1] == -100)) {
        count--;
    }
    return count;
}

/* Moves the rows of all fields of positions together, so that b has `length` positions of each. */
static void shorten(const struct data_source *s, struct batch *b, int64_t length)
{
    for (int k = 0; k < s->layout.count; k++) {
        const struct batch_field *f = &s->layout.field[k];
        size_t size = dt_dtype_size(f->type), step = (size_t)b->length * size;
        for (int64_t row = 1; batch_of_positions(f) && row < b->samples; row++) {
            memmove((char *)b->at[k] + (size_t)(row * length) * size, (char *)b->at[k] + (size_t)row * step,
                    (size_t)length * size);
        }
    }
    b->length = length;
}

/* Leaves out positions at the end that are padding in the first `filled` rows. The others are empty. */
static void leave_out_padding(const struct data_source *s, struct batch *b, int64_t filled)
{
    int mask = s->choices == NULL ? batch_find(&s->layout, "attention_mask") : -1;
    int64_t length = 1;
    if (s->pad_multiple == 0 || (mask < 0 && s->choices == NULL)) {
        return;
    }
    b->length = s->layout.field[mask >= 0 ? mask : batch_find(&s->layout, "input_ids")].most[1];
    for (int64_t row = 0; row < filled && length < b->length; row++) {
        int64_t used = used_positions(s, b, mask, row);
        length = used > length ? used : length;
    }
    length = (length + s->pad_multiple - 1) / s->pad_multiple * s->pad_multiple;
    if (length < b->length) {
        shorten(s, b, length);
    }
}

int data_batch(const struct data_source *s, const struct sampler *order, int64_t epoch, int64_t first, int rank,
               int ranks, struct batch *b, struct dt_error *err)
{
    int64_t samples = 0;
    struct batch derived = *b;
    derived.layout = s->choices != NULL ? &s->layout : b->layout; /* a choice is one document, whatever ids it has */
    for (int64_t row = 0; row < b->samples; row++) {
        int64_t position = first + row * ranks + rank;
        if (position < order->sample_count) {
            int64_t pass, sample = sampler_draw(order, epoch, position, &pass);
            if (s->ops->read(s, sample, pass, b, row, err) != 0) {
                return -1;
            }
            samples++;
        } else {
            clear_row(s, b, row);
        }
        batch_derive(&derived, row);
        batch_number(b, row, epoch * order->sample_count + position);
    }
    b->weight = s->targets >= 0 && s->layout.field[s->targets].type == DT_I32 ? count_targets(s, b) : samples;
    leave_out_padding(s, b, samples);
    return 0;
}

bool data_may_be_blank(const struct data_source *s)
{
    return s->blank_count > 0 || batch_has_documents(&s->layout);
}

/* True if the sample has no target between the ends of its documents. */
static bool blank_documents(const struct data_source *s, int64_t sample, int64_t epoch)
{
    struct dt_error ignored;
    size_t row_bytes = batch_offset(&s->layout, s->layout.count);
    char *row = dt_alloc(row_bytes);
    struct batch b = {.layout = &s->layout, .samples = 1};
    for (int k = 0; k < s->layout.count; k++) {
        b.at[k] = row + batch_offset(&s->layout, k);
    }
    bool blank = s->ops->read(s, sample, epoch, &b, 0, &ignored) == 0;
    batch_derive(&b, 0);
    blank = blank && count_targets(s, &b) == 0;
    free(row);
    return blank;
}

bool data_blank(const struct data_source *s, const struct sampler *order, int64_t epoch, int64_t first, int rank,
                int ranks, int64_t batch_size)
{
    bool blank = data_may_be_blank(s), documents = batch_has_documents(&s->layout);
    for (int64_t b = 0; b < batch_size && blank; b++) {
        int64_t position = first + b * ranks + rank;
        if (position < order->sample_count) {
            int64_t sample = sampler_at(order, epoch, position);
            blank = documents ? blank_documents(s, sample, epoch) : s->ops->blank(s, sample);
        }
    }
    return blank;
}

int64_t data_expect(const struct data_source *s, const struct sampler *order, int64_t epoch, int64_t first, int rank,
                    int ranks, int64_t count)
{
    for (int64_t position = first + rank; count > 0 && position < order->sample_count; position += ranks, count--) {
        s->ops->expect(s, sampler_at(order, epoch, position));
    }
    return count;
}

void data_expect_bytes(const void *at, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)at / page * page;
    /* for a larger range the kernel would read only a part */
    for (uintptr_t end = (uintptr_t)at + size; begin < end; begin += EXPECT_BYTES) {
        (void)madvise((void *)begin, end - begin < EXPECT_BYTES ? end - begin : EXPECT_BYTES, MADV_WILLNEED);
    }
}
