/* Sizes and offsets of a batch's fields. */
#include "worker/model/batch.h"

#include <string.h>

struct batch_layout batch_tokens(int64_t samples, int64_t length, int64_t vocabulary, const char *vocabulary_key)
{
    struct batch_field ids = {.name = "input_ids",
                              .type = DT_I32,
                              .dims = 2,
                              .most = {samples, length},
                              .below = vocabulary,
                              .below_key = vocabulary_key,
                              .value = "id",
                              .values = "ids"},
                       labels = ids;
    labels.name = "labels";
    labels.shifted = labels.targets = true;
    return (struct batch_layout){2, {ids, labels}};
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
