/* Data from safetensors files: `input_ids` (..., T) as int64 or int32, optional `labels` of the
 * same shape with -100 for what is not judged. All leading dimensions together count the
 * samples, in file order. Labels are shifted here: position t is judged against labels[t + 1],
 * the last one against nothing. */
#include "base/text.h"
#include "worker/data/rows.h"
#include "worker/checkpoints/safetensors.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

struct batch_file {
    struct st_file *file;
    const struct st_tensor *ids, *labels; /* labels: null when there are none */
    int64_t first, rows;
    unsigned char *blank; /* a bit per row: it has no target; null: each has some */
};

struct tensors {
    struct batch_file *files;
    size_t count;
};

static bool recognise(const char *path)
{
    unsigned char head[9];
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd >= 0 ? pread(fd, head, sizeof head, 0) : -1;
    if (fd >= 0) {
        (void)close(fd);
    }
    return n == (ssize_t)sizeof head && head[8] == '{' && head[4] == 0 && head[5] == 0 && head[6] == 0 && head[7] == 0;
}

static void close_tensors(struct data_source *s)
{
    struct tensors *t = s->state;
    for (size_t i = 0; t != NULL && i < t->count; i++) {
        st_close(t->files[i].file);
        free(t->files[i].blank);
    }
    if (t != NULL) {
        free(t->files);
    }
    free(t);
    s->state = NULL;
}

static bool integers(const struct st_tensor *x)
{
    return x->type == DT_I64 || x->type == DT_I32;
}

/* Element i; the mapping may be unaligned. */
static int64_t value(const struct st_tensor *x, int64_t i)
{
    if (x->type == DT_I32) {
        int32_t v;
        memcpy(&v, (const char *)x->data + i * 4, sizeof v);
        return v;
    }
    int64_t v;
    memcpy(&v, (const char *)x->data + i * 8, sizeof v);
    return v;
}

static int check_labels(const struct batch_file *f, const char *path, struct dt_error *err)
{
    if (!integers(f->labels) || f->labels->dims != f->ids->dims ||
        memcmp(f->labels->shape, f->ids->shape, (size_t)f->ids->dims * sizeof(int64_t)) != 0) {
        return dt_fail(err, DT_INVALID, "%s: labels: not I64 or I32 in the shape of input_ids", path);
    }
    return 0;
}

/* Every id and label: at least 0 (labels also -100); *max is raised to the largest. */
static int check_values(const struct st_tensor *x, bool ignored, const char *path, int64_t *max, struct dt_error *err)
{
    for (int64_t i = 0; i < x->numel; i++) {
        int64_t v = value(x, i);
        if ((v < 0 && !(ignored && v == -100)) || v > 16777215) {
            return dt_fail(err, DT_INVALID, "%s: %s: %" PRId64 " at element %" PRId64 " is no token id", path, x->name,
                           v, i);
        }
        *max = v > *max ? v : *max;
    }
    return 0;
}

/* A row's first label is judged by nothing. */
static bool has_target(const struct st_tensor *labels, int64_t row, int64_t length)
{
    for (int64_t k = 1; k < length; k++) {
        if (labels == NULL || value(labels, row * length + k) != -100) {
            return true;
        }
    }
    return false;
}

static void note_blank(struct data_source *s, struct batch_file *f, int64_t length)
{
    for (int64_t row = 0; row < f->rows; row++) {
        if (has_target(f->labels, row, length)) {
            continue;
        }
        if (f->blank == NULL) {
            f->blank = dt_alloc((size_t)f->rows / 8 + 1);
        }
        f->blank[row / 8] |= (unsigned char)(1 << row % 8);
        if (s->blank_count++ == 0) {
            s->blank_path = st_path(f->file);
            s->blank_row = row + 1;
        }
    }
}

static int open_file(struct data_source *s, struct batch_file *f, const char *path, int64_t sequence_length,
                     int64_t *max, struct dt_error *err)
{
    if (st_open(&f->file, path, err) != 0) {
        return -1;
    }
    f->ids = st_find(f->file, "input_ids");
    f->labels = st_find(f->file, "labels");
    if (f->ids == NULL || !integers(f->ids) || f->ids->dims < 1 || f->ids->numel == 0) {
        return dt_fail(err, DT_INVALID, "%s: no input_ids (n, T) of I64 or I32", path);
    }
    int64_t length = f->ids->shape[f->ids->dims - 1];
    if (length != sequence_length) {
        return dt_fail(err, DT_INVALID,
                       "%s: rows of %" PRId64 " tokens, but data.sequence_length is %" PRId64 "; set it to %" PRId64,
                       path, length, sequence_length, length);
    }
    if (st_find(f->file, "attention_mask") != NULL) {
        const struct st_tensor *mask = st_find(f->file, "attention_mask");
        for (int64_t i = 0; i < mask->numel; i++) {
            if (!integers(mask) || value(mask, i) != 1) {
                return dt_fail(
                    err, DT_INVALID,
                    "%s: attention_mask: masked tokens are not there yet; pad with labels of -100 and drop it", path);
            }
        }
    }
    if ((f->labels != NULL && check_labels(f, path, err) != 0) || check_values(f->ids, false, path, max, err) != 0 ||
        (f->labels != NULL && check_values(f->labels, true, path, max, err) != 0)) {
        return -1;
    }
    f->rows = f->ids->numel / length;
    f->first = s->sample_count;
    note_blank(s, f, length);
    s->sample_count += f->rows;
    s->token_count += f->ids->numel;
    return 0;
}

static void add_hash(XXH3_state_t *h, const struct st_tensor *x)
{
    (void)XXH3_64bits_update(h, &x->numel, sizeof x->numel);
    (void)XXH3_64bits_update(h, x->data, x->size_bytes);
}

static void add_content(XXH3_state_t *h, const struct batch_file *f)
{
    add_hash(h, f->ids);
    if (f->labels != NULL) {
        add_hash(h, f->labels);
    }
}

static int open_tensors(struct data_source *s, const char *glob, int64_t sequence_length, struct dt_error *err)
{
    struct data_files files;
    if (data_files_open(&files, glob, err) != 0) {
        return -1;
    }
    struct tensors *t = dt_alloc(sizeof *t);
    s->state = t;
    t->files = dt_alloc(files.count * sizeof *t->files);
    int64_t max = 0;
    int result = 0;
    XXH3_state_t *h = XXH3_createState(), *own = XXH3_createState();
    (void)XXH3_64bits_reset(h);
    for (size_t i = 0; result == 0 && i < files.count; i++) {
        t->count++;
        result = open_file(s, &t->files[i], files.paths[i], sequence_length, &max, err);
        if (result == 0) {
            const char *name = data_base_name(files.paths[i]);
            (void)XXH3_64bits_update(h, name, strlen(name) + 1);
            add_content(h, &t->files[i]);
            (void)XXH3_64bits_reset(own);
            add_content(own, &t->files[i]);
            data_list_file(s, files.paths[i], t->files[i].ids->numel, XXH3_64bits_digest(own));
            const char *tokenizer = st_metadata(t->files[i].file, "tokenizer");
            (void)snprintf(s->tokenizer, sizeof s->tokenizer, "%s", tokenizer != NULL ? tokenizer : "");
        }
    }
    s->vocabulary = max + 1;
    s->hash = XXH3_64bits_digest(h);
    (void)XXH3_freeState(h);
    (void)XXH3_freeState(own);
    data_files_close(&files);
    if (result != 0) {
        close_tensors(s);
    }
    return result;
}

static const struct batch_file *file_of(const struct tensors *t, int64_t sample)
{
    size_t low = 0, high = t->count; /* the file is in [low, high); none is empty */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(sample < t->files[middle].first ? &high : &low) = middle;
    }
    return &t->files[low];
}

static void read_tensors(const struct data_source *s, int64_t sample, int32_t *ids, int32_t *labels)
{
    const struct batch_file *f = file_of(s->state, sample);
    int64_t length = s->sequence_length, at = (sample - f->first) * length;
    const struct st_tensor *judged = f->labels != NULL ? f->labels : f->ids;
    for (int64_t k = 0; k < length; k++) {
        ids[k] = (int32_t)value(f->ids, at + k);
        labels[k] = k + 1 < length ? (int32_t)value(judged, at + k + 1) : -100;
    }
}

static bool blank_tensors(const struct data_source *s, int64_t sample)
{
    const struct batch_file *f = file_of(s->state, sample);
    int64_t row = sample - f->first;
    return f->blank != NULL && (f->blank[row / 8] >> row % 8 & 1) != 0;
}

static void expect_tensors(const struct data_source *s, int64_t sample)
{
    const struct batch_file *f = file_of(s->state, sample);
    const struct st_tensor *const both[] = {f->ids, f->labels};
    for (int i = 0; i < 2; i++) {
        if (both[i] != NULL) {
            size_t row_bytes = both[i]->size_bytes / (size_t)f->rows;
            data_expect_bytes((const char *)both[i]->data + (size_t)(sample - f->first) * row_bytes, row_bytes);
        }
    }
}

const struct data_ops data_tensors = {.name = "tensors",
                                      .recognise = recognise,
                                      .open = open_tensors,
                                      .read = read_tensors,
                                      .blank = blank_tensors,
                                      .expect = expect_tensors,
                                      .close = close_tensors};
