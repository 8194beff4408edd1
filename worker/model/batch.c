/* Sizes and offsets of a batch's fields. */
#include "worker/model/batch.h"

#include <string.h>

struct batch_layout batch_tokens(int64_t samples, int64_t length, int64_t vocabulary, const char *vocabulary_key)
{
    struct batch_field ids = {.name = "input_ids",
                              .type = DT_I32,
                              .dims = 2,
                              .most = {samples, length},
                              .causal = true,
                              .below = vocabulary,
                              .below_key = vocabulary_key,
                              .value = "id",
                              .values = "ids"},
                       labels = ids;
    labels.name = "labels";
    labels.shifted = labels.from_ids = labels.targets = true;
    return (struct batch_layout){2, {ids, labels}};
}

/* A token that is masked belongs to no segment. */
static void segments_of_mask(const int32_t *mask, int64_t count, int64_t number, int32_t *out)
{
    (void)number;
    for (int64_t i = 0; i < count; i++) {
        out[i] = mask[i] != 0 ? 0 : -1;
    }
}

static void positions_of_ids(const int32_t *ids, int64_t count, int64_t padding_id, int32_t *out)
{
    int32_t position = (int32_t)padding_id;
    for (int64_t i = 0; i < count; i++) {
        out[i] = ids[i] != padding_id ? ++position : (int32_t)padding_id;
    }
}

void batch_add_encoder(struct batch_layout *l, int64_t samples, int64_t length, int64_t vocabulary, int64_t type_count)
{
    const struct batch_field any = {.type = DT_I32, .dims = 2, .most = {samples, length}};
    struct batch_field ids = any, mask = any, types = any, segments = any;
    ids.name = "input_ids";
    ids.below = vocabulary;
    ids.below_key = "vocab_size";
    ids.value = "id";
    ids.values = "ids";
    mask.name = "attention_mask";
    mask.below = 2;
    mask.value = "value";
    mask.values = "values";
    mask.optional = true;
    mask.missing = 1;
    types.name = "token_type_ids";
    types.below = type_count;
    types.below_key = "type_vocab_size";
    types.value = "type";
    types.values = "types";
    types.optional = true;
    segments.name = "segments";
    segments.derive = segments_of_mask;
    segments.from = l->count + 1;
    l->field[l->count++] = ids;
    l->field[l->count++] = mask;
    l->field[l->count++] = segments;
    if (type_count > 0) {
        l->field[l->count++] = types;
    }
}

void batch_add_positions(struct batch_layout *l, int64_t padding_id)
{
    int ids = batch_find(l, "input_ids");
    struct batch_field positions = {.name = "position_ids",
                                    .type = DT_I32,
                                    .dims = 2,
                                    .most = {l->field[ids].most[0], l->field[ids].most[1]},
                                    .derive = positions_of_ids,
                                    .from = ids,
                                    .number = padding_id};
    l->field[l->count++] = positions;
}

static void segments_of_ends(const int32_t *ids, int64_t count, int64_t end, int32_t *out)
{
    int32_t segment = 0;
    for (int64_t i = 0; i < count; i++) {
        out[i] = segment;
        segment += ids[i] == end;
    }
}

static void positions_of_ends(const int32_t *ids, int64_t count, int64_t end, int32_t *out)
{
    int32_t position = 0;
    for (int64_t i = 0; i < count; i++) {
        out[i] = position;
        position = ids[i] == end ? 0 : position + 1;
    }
}

void batch_add_documents(struct batch_layout *l)
{
    int ids = batch_find(l, "input_ids");
    struct batch_field segments = {.name = "segments",
                                   .type = DT_I32,
                                   .dims = 2,
                                   .most = {l->field[ids].most[0], l->field[ids].most[1]},
                                   .derive = segments_of_ends,
                                   .from = ids,
                                   .number = -1},
                       positions = segments;
    positions.name = "position_ids";
    positions.derive = positions_of_ends;
    l->field[l->count++] = segments;
    l->field[l->count++] = positions;
}

static bool of_documents(const struct batch_field *f)
{
    return f->derive == segments_of_ends || f->derive == positions_of_ends;
}

void batch_end_documents(struct batch_layout *l, int64_t id)
{
    for (int i = 0; i < l->count; i++) {
        l->field[i].number = of_documents(&l->field[i]) ? id : l->field[i].number;
    }
}

bool batch_is_causal(const struct batch_layout *l)
{
    int ids = batch_find(l, "input_ids");
    return ids >= 0 && l->field[ids].causal;
}

bool batch_has_documents(const struct batch_layout *l)
{
    int i = batch_find(l, "segments");
    return i >= 0 && of_documents(&l->field[i]);
}

void batch_add_numbers(struct batch_layout *l, int64_t samples)
{
    l->field[l->count++] =
        (struct batch_field){.name = "sample_numbers", .type = DT_I64, .dims = 1, .most = {samples}, .counts = true};
}

bool batch_in_data(const struct batch_field *f)
{
    return f->derive == NULL && !f->counts;
}

/* What follows a document is no target of its last token. */
static void cut_targets(const struct batch *b, int64_t row)
{
    const struct batch_field *segments = &b->layout->field[batch_find(b->layout, "segments")];
    int64_t count = segments->most[1];
    const int32_t *ids = (const int32_t *)b->at[segments->from] + row * count;
    int32_t *labels = (int32_t *)b->at[batch_targets(b->layout)] + row * count;
    for (int64_t i = 0; i < count; i++) {
        labels[i] = ids[i] == segments->number ? -100 : labels[i];
    }
}

void batch_derive(const struct batch *b, int64_t row)
{
    for (int i = 0; i < b->layout->count; i++) {
        const struct batch_field *f = &b->layout->field[i];
        int64_t count = batch_sample_elements(b->layout, i);
        if (f->derive != NULL) {
            f->derive((const int32_t *)b->at[f->from] + row * count, count, f->number,
                      (int32_t *)b->at[i] + row * count);
        }
    }
    if (batch_has_documents(b->layout) && batch_targets(b->layout) >= 0) {
        cut_targets(b, row);
    }
}

void batch_number(const struct batch *b, int64_t row, int64_t number)
{
    int i = batch_numbers(b->layout);
    if (i >= 0) {
        ((int64_t *)b->at[i])[row] = number;
    }
}

void batch_fill_missing(const struct batch *b, int i, int64_t row)
{
    int64_t count = batch_sample_elements(b->layout, i);
    for (int64_t k = 0; k < count; k++) {
        ((int32_t *)b->at[i])[row * count + k] = b->layout->field[i].missing;
    }
}

int batch_find(const struct batch_layout *l, const char *name)
{
    for (int i = 0; i < l->count; i++) {
        if (strcmp(l->field[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

int batch_targets(const struct batch_layout *l)
{
    int i = l->count - 1;
    while (i >= 0 && !l->field[i].targets) {
        i--;
    }
    return i;
}

int batch_numbers(const struct batch_layout *l)
{
    int i = l->count - 1;
    while (i >= 0 && !l->field[i].counts) {
        i--;
    }
    return i;
}

int64_t batch_elements(const struct batch_layout *l, int i)
{
    return l->field[i].most[0] * batch_sample_elements(l, i);
}

int64_t batch_sample_elements(const struct batch_layout *l, int i)
{
    int64_t count = 1;
    for (int d = 1; d < l->field[i].dims; d++) {
        count *= l->field[i].most[d];
    }
    return count;
}

bool batch_of_positions(const struct batch_field *f)
{
    return f->dims == 2 && f->type == DT_I32;
}

int64_t batch_used(const struct batch *b, int i)
{
    return batch_of_positions(&b->layout->field[i]) ? b->samples * b->length : batch_elements(b->layout, i);
}

static size_t align_of(enum dt_dtype type)
{
    return type == DT_I32 || type == DT_I64 ? dt_dtype_size(type) : 64;
}

size_t batch_offset(const struct batch_layout *l, int i)
{
    size_t at = 0, largest = 1;
    for (int k = 0; k <= i; k++) {
        /* a whole batch is aligned for its most aligned field */
        size_t align = k < l->count ? align_of(l->field[k].type) : largest;
        largest = align > largest ? align : largest;
        at = (at + align - 1) / align * align;
        if (k < i) {
            at += (size_t)batch_elements(l, k) * dt_dtype_size(l->field[k].type);
        }
    }
    return at;
}
