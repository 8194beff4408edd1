/* Data from safetensors files: one tensor per field of the layout. Integers are int64 or int32,
 * floats are fp32, fp64, bf16 or fp16; integer targets of -100 are none. The last dimensions of a tensor
 * are those of a sample, and the others number the samples, in file order. A shifted field is
 * shifted here: its value at position t is element t + 1, and the last position has none. Without a
 * tensor of its own in the file, a field `from_ids` has the ids, and an optional one its default. */
#include "base/text.h"
#include "worker/data/rows.h"
#include "worker/data/safetensors.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* the limit of model.vocab_size and of classes */
#define VALUE_MAX INT64_C(16777215)

struct batch_file {
    struct st_file *file;
    /* the tensor of each field; of a field from_ids without one, that of the ids; null: the field is
     * optional or derived */
    const struct st_tensor *of[BATCH_FIELDS_MAX];
    /* of a model that reads no mask: the mask of what pads rows behind their tokens; null: nothing does */
    const struct st_tensor *padding;
    int64_t first, rows;
    unsigned char *blank; /* one bit per row without a target; null: each row has one */
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

/* Element i. The mapping may be unaligned, so copy it. */
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

static void put_shape(struct dt_text *out, const char *before, const int64_t *shape, int dims)
{
    dt_text_printf(out, "(%s", before);
    for (int d = 0; d < dims; d++) {
        dt_text_printf(out, "%s%" PRId64, d > 0 || *before != 0 ? ", " : "", shape[d]);
    }
    dt_text_puts(out, ")");
}

/* Checks that the last dimensions are those of a sample. */
static int check_shape(const struct st_tensor *x, const struct batch_field *f, const char *path, struct dt_error *err)
{
    int inner = f->dims - 1, outer = x->dims - inner;
    if (outer >= 0 && memcmp(x->shape + outer, f->most + 1, (size_t)inner * sizeof *f->most) == 0) {
        return 0;
    }
    if (f->dims == 2 && strcmp(f->name, "input_ids") == 0 && outer >= 0) {
        int64_t length = x->shape[outer];
        return dt_fail(err, DT_INVALID,
                       "%s: rows of %" PRId64 " tokens, but data.sequence_length is %" PRId64 "; set it to %" PRId64,
                       path, length, f->most[1], length);
    }
    struct dt_text is, wanted;
    dt_text_init(&is);
    dt_text_init(&wanted);
    put_shape(&is, "", x->shape, x->dims);
    put_shape(&wanted, "n", f->most + 1, inner);
    (void)dt_fail(err, DT_INVALID, "%s: %s: shape %s, but the model reads %s", path, f->name, dt_text_str(&is),
                  dt_text_str(&wanted));
    dt_text_clear(&is);
    dt_text_clear(&wanted);
    return -1;
}

/* Checks that every value is at least 0 (targets may be -100), and below a bound that no key of the
 * model can raise. Raises *largest. */
static int check_values(const struct st_tensor *x, const struct batch_field *f, int64_t length, const char *path,
                        struct data_largest *largest, struct dt_error *err)
{
    int64_t most = f->below > 0 && f->below_key == NULL ? f->below - 1 : VALUE_MAX;
    for (int64_t i = 0; i < x->numel; i++) {
        int64_t v = value(x, i);
        if ((v < 0 && !(f->targets && v == -100)) || v > most) {
            return dt_fail(err, DT_INVALID,
                           "%s: %s: sample %" PRId64 " has %s %" PRId64 "; %s are numbers from 0 to %" PRId64 "%s",
                           path, f->name, i / length + 1, f->value, v, f->values,
                           f->below > 0 ? f->below - 1 : VALUE_MAX,
                           f->targets ? ", and -100 where there is no target" : "");
        }
        if (v > largest->value) {
            *largest = (struct data_largest){v, path, i / length + 1};
        }
    }
    return 0;
}

/* Checks that every label is a finite number, or a share if the field has shares. */
static int check_numbers(const struct batch_file *f, const struct st_tensor *x, const struct batch_field *field,
                         int64_t length, const char *path, struct dt_error *err)
{
    for (int64_t i = 0; i < x->numel; i++) {
        double v = 0;
        if (st_read_f64(f->file, x, i, 1, &v, err) != 0) {
            return -1;
        }
        if (!isfinite((float)v)) {
            return dt_fail(err, DT_INVALID, "%s: %s: sample %" PRId64 " has %g; labels are finite F32 numbers", path,
                           x->name, i / length + 1, v);
        }
        if (field->shares && (v < 0 || v > 1)) {
            return dt_fail(err, DT_INVALID,
                           "%s: %s: sample %" PRId64 " has %g; labels of several classes are from 0 to 1", path,
                           x->name, i / length + 1, v);
        }
    }
    return 0;
}

/* True if token i of the file, of all rows, is padding. */
static bool is_padding(const struct batch_file *f, int64_t i)
{
    return f->padding != NULL && value(f->padding, i) == 0;
}

/* True if each token has a target. */
static bool tokens_have_targets(const struct data_source *s)
{
    return s->targets >= 0 && batch_of_positions(&s->layout.field[s->targets]);
}

/* True if the row has a target. With shifted labels, a row's first label is no target. */
static bool has_target(const struct data_source *s, const struct batch_file *f, int64_t row)
{
    if (s->targets < 0 || s->layout.field[s->targets].type != DT_I32) {
        return true;
    }
    int64_t length = batch_sample_elements(&s->layout, s->targets);
    for (int64_t k = s->layout.field[s->targets].shifted; k < length; k++) {
        if (value(f->of[s->targets], row * length + k) != -100 && !is_padding(f, row * length + k)) {
            return true;
        }
    }
    return false;
}

static void note_blank(struct data_source *s, struct batch_file *f)
{
    for (int64_t row = 0; row < f->rows; row++) {
        if (has_target(s, f, row)) {
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

/* Checks that a row's mask ends once, and that what is masked has no label of its own and, where the model finds a
 * row's end by its padding, is that. */
static int check_masked_row(const struct data_source *s, const struct batch_file *f, const struct st_tensor *mask,
                            int64_t row, const char *path, struct dt_error *err)
{
    int64_t length = s->sequence_length, count = 0;
    int last = batch_find(&s->layout, "last_tokens");
    const struct st_tensor *labels = tokens_have_targets(s) ? f->of[s->targets] : NULL,
                           *ids = f->of[batch_find(&s->layout, "input_ids")];
    bool own = labels != NULL && strcmp(labels->name, s->layout.field[s->targets].name) == 0;
    while (count < length && value(mask, row * length + count) == 1) {
        count++;
    }
    for (int64_t i = count; i < length; i++) {
        if (value(mask, row * length + i) != 0) {
            return dt_fail(
                err, DT_INVALID,
                "%s: attention_mask: sample %" PRId64
                " has masked tokens before others; the model reads no mask, so padding stands behind a row's "
                "tokens: move it there",
                path, row + 1);
        }
        if (own && value(labels, row * length + i) != -100) {
            return dt_fail(err, DT_INVALID,
                           "%s: labels: sample %" PRId64
                           " has one for a masked token; give it -100 (or leave labels out: "
                           "then they are the ids of tokens that are not masked)",
                           path, row + 1);
        }
        if (last >= 0 && value(ids, row * length + i) != s->layout.field[last].number) {
            return dt_fail(err, DT_INVALID,
                           "%s: attention_mask: sample %" PRId64
                           " has masked tokens other than model.pad_token_id %" PRId64
                           ", which a row's last token stands before; pad with it",
                           path, row + 1, s->layout.field[last].number);
        }
    }
    return 0;
}

/* A decoder takes a mask that masks padding behind each row's tokens, if no token sees what stands behind it. */
static int check_mask(const struct data_source *s, struct batch_file *f, const char *path, struct dt_error *err)
{
    bool reads = batch_find(&s->layout, "attention_mask") >= 0, masks = false;
    const struct st_tensor *mask = batch_find(&s->layout, "input_ids") >= 0 && (batch_is_causal(&s->layout) || !reads)
                                       ? st_find(f->file, "attention_mask")
                                       : NULL;
    for (int64_t i = 0; mask != NULL && i < mask->numel; i++) {
        masks = masks || !integers(mask) || value(mask, i) != 1;
    }
    if (!masks) {
        return 0;
    }
    if (!batch_is_causal(&s->layout) || !integers(mask) || mask->numel != f->rows * s->sequence_length) {
        return dt_fail(err, DT_INVALID,
                       batch_is_causal(&s->layout)
                           ? "%s: attention_mask: must be I64 or I32 of the shape of input_ids"
                           : "%s: attention_mask: the model sees every token; drop the mask, and rows that "
                             "are padded",
                       path);
    }
    for (int64_t row = 0; row < f->rows; row++) {
        if (check_masked_row(s, f, mask, row, path, err) != 0) {
            return -1;
        }
    }
    f->padding = tokens_have_targets(s) ? mask : NULL;
    return 0;
}

/* Finds and checks the tensor of field k. */
static int open_field(struct data_source *s, struct batch_file *f, int k, const char *path, struct dt_error *err)
{
    const struct batch_field *field = &s->layout.field[k];
    if (!batch_in_data(field)) {
        return 0;
    }
    const struct st_tensor *x = f->of[k] = st_find(f->file, field->name);
    bool whole = field->type == DT_I32;
    float none;
    int ids = batch_find(&s->layout, "input_ids");
    if (x == NULL && field->from_ids && ids >= 0 && ids < k) {
        f->of[k] = f->of[ids];
        return 0;
    }
    if (x == NULL && field->optional) {
        return 0;
    }
    if (x != NULL && integers(x) != whole && field->targets) {
        return dt_fail(err, DT_INVALID,
                       whole ? "%s: %s are numbers, but the model gives classes; for numbers set model.problem_type"
                             : "%s: %s are integers, but the model gives numbers; write them as F32",
                       path, field->name);
    }
    if (x == NULL || (whole && !integers(x)) || x->dims < 1 || x->numel == 0) {
        const char *types = whole ? "I64 or I32" : "F32, F64, BF16 or F16";
        if (x != NULL && x->numel == 0) {
            return dt_fail(err, DT_INVALID, "%s: %s is empty", path, field->name);
        }
        if (x != NULL && x->dims > 0) {
            return dt_fail(err, DT_INVALID, "%s: %s is of type %s; must be %s", path, field->name, x->dtype, types);
        }
        return k == 0 && field->dims == 2 ? dt_fail(err, DT_INVALID, "%s: no %s (n, T) of %s", path, field->name, types)
                                          : dt_fail(err, DT_INVALID, "%s: no %s of %s", path, field->name, types);
    }
    if (check_shape(x, field, path, err) != 0) {
        return -1;
    }
    int64_t rows = x->numel / batch_sample_elements(&s->layout, k);
    if (k > 0 && rows != f->rows) {
        return dt_fail(err, DT_INVALID, "%s: %s: %" PRId64 " samples, but %s has %" PRId64, path, field->name, rows,
                       s->layout.field[0].name, f->rows);
    }
    f->rows = rows;
    if (field->targets && !whole) {
        return check_numbers(f, x, field, batch_sample_elements(&s->layout, k), st_path(f->file), err);
    }
    return whole ? check_values(x, field, batch_sample_elements(&s->layout, k), st_path(f->file), &s->largest[k], err)
                 : st_read_f32(f->file, x, 0, 0, &none, err);
}

static int open_file(struct data_source *s, struct batch_file *f, const char *path, struct dt_error *err)
{
    if (st_open(&f->file, path, err) != 0) {
        return -1;
    }
    for (int k = 0; k < s->layout.count; k++) {
        if (open_field(s, f, k, path, err) != 0) {
            return -1;
        }
    }
    if (check_mask(s, f, path, err) != 0) {
        return -1;
    }
    f->first = s->sample_count;
    note_blank(s, f);
    s->sample_count += f->rows;
    s->token_count += f->rows * s->sequence_length;
    return 0;
}

static void add_hash(XXH3_state_t *h, const struct st_tensor *x)
{
    (void)XXH3_64bits_update(h, &x->numel, sizeof x->numel);
    (void)XXH3_64bits_update(h, x->data, x->size_bytes);
}

static void add_content(XXH3_state_t *h, const struct data_source *s, const struct batch_file *f)
{
    for (int k = 0; k < s->layout.count; k++) {
        if (f->of[k] != NULL && strcmp(f->of[k]->name, s->layout.field[k].name) == 0) { /* no stand-in */
            add_hash(h, f->of[k]);
        }
    }
    if (f->padding != NULL) {
        add_hash(h, f->padding);
    }
}

/* The name of the tokenizer that made the files; those that have none may be of any. */
static int take_tokenizer(struct data_source *s, const char *name, const char *path, struct dt_error *err)
{
    if (name != NULL && s->tokenizer[0] != 0 && strncmp(name, s->tokenizer, sizeof s->tokenizer - 1) != 0) {
        return dt_fail(err, DT_INVALID, "%s: tokenizer %s, but a file before it has %s; make all with one", path, name,
                       s->tokenizer);
    }
    if (name != NULL) {
        (void)snprintf(s->tokenizer, sizeof s->tokenizer, "%s", name);
    }
    return 0;
}

static int open_tensors(struct data_source *s, const char *glob, struct dt_error *err)
{
    struct data_files files;
    if (data_files_open(&files, glob, true, err) != 0) {
        return -1;
    }
    struct tensors *t = dt_alloc(sizeof *t);
    s->state = t;
    t->files = dt_alloc(files.count * sizeof *t->files);
    int result = 0;
    XXH3_state_t *h = XXH3_createState(), *own = XXH3_createState();
    (void)XXH3_64bits_reset(h);
    for (size_t i = 0; result == 0 && i < files.count; i++) {
        t->count++;
        result = open_file(s, &t->files[i], files.paths[i], err);
        if (result == 0) {
            const char *name = data_base_name(files.paths[i]);
            (void)XXH3_64bits_update(h, name, strlen(name) + 1);
            add_content(h, s, &t->files[i]);
            (void)XXH3_64bits_reset(own);
            add_content(own, s, &t->files[i]);
            data_list_file(s, files.paths[i], t->files[i].rows * s->sequence_length, XXH3_64bits_digest(own));
            result = take_tokenizer(s, st_metadata(t->files[i].file, "tokenizer"), files.paths[i], err);
        }
    }
    for (int k = 0; k < s->layout.count; k++) {
        int64_t count = s->largest[k].value + 1;
        s->vocabulary = count > s->vocabulary ? count : s->vocabulary;
    }
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
    size_t low = 0, high = t->count; /* the sample is in a file of [low, high); no file is empty */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(sample < t->files[middle].first ? &high : &low) = middle;
    }
    return &t->files[low];
}

static void read_whole(const struct data_source *s, const struct batch_file *f, int k, int64_t from, int32_t *out)
{
    int64_t length = batch_sample_elements(&s->layout, k), shift = s->layout.field[k].shifted;
    int32_t none = s->layout.field[k].targets ? -100 : 0;
    for (int64_t i = 0; i < length; i++) {
        bool is = i + shift < length && !(s->layout.field[k].targets && is_padding(f, from + i + shift));
        out[i] = is ? (int32_t)value(f->of[k], from + i + shift) : none;
    }
}

static int read_tensors(const struct data_source *s, int64_t sample, int64_t epoch, const struct batch *b, int64_t row,
                        struct dt_error *err)
{
    (void)epoch;
    (void)err;
    const struct batch_file *f = file_of(s->state, sample);
    for (int k = 0; k < s->layout.count; k++) {
        const struct batch_field *field = &s->layout.field[k];
        int64_t length = batch_sample_elements(&s->layout, k), from = (sample - f->first) * length;
        if (!batch_in_data(field)) {
            continue;
        }
        if (f->of[k] == NULL) {
            batch_fill_missing(b, k, row);
        } else if (field->type == DT_I32) {
            read_whole(s, f, k, from, (int32_t *)b->at[k] + row * length);
        } else { /* open_field has checked the type */
            (void)st_read_f32(f->file, f->of[k], from, length, (float *)b->at[k] + row * length, NULL);
        }
    }
    return 0;
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
    for (int k = 0; k < s->layout.count; k++) {
        if (f->of[k] != NULL) {
            size_t row_bytes = f->of[k]->size_bytes / (size_t)f->rows;
            data_expect_bytes((const char *)f->of[k]->data + (size_t)(sample - f->first) * row_bytes, row_bytes);
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
