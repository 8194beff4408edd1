/* Manifests of checkpoints from somewhere: any text with the hash that belongs to it. What is
 * accepted names only files, tensors and slices that it has, and covers each tensor; what is
 * refused leaves nothing. */
#include "driver.h"

#include "base/text.h"
#include "worker/checkpoints/manifest.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static void check(const struct manifest *m)
{
    for (int i = 0; i < m->file_count; i++) {
        if (m->files[i].name[0] == '.' || strchr(m->files[i].name, '/') != NULL || m->files[i].size_bytes < 0) {
            abort();
        }
    }
    for (int i = 0; i < m->tensor_count; i++) {
        if (manifest_find(m, m->tensors[i].name) != i) {
            abort();
        }
    }
    for (int i = 0; i < m->slice_count; i++) {
        const struct manifest_slice *s = &m->slices[i];
        if (s->file < 0 || s->file >= m->file_count || s->tensor < 0 || s->tensor >= m->tensor_count || s->first < 0 ||
            s->count < 1 || s->first > m->tensors[s->tensor].numel - s->count ||
            s->sum_count != manifest_block_count(s->count) ||
            manifest_slice_at(m, s->purpose, s->tensor, s->first) != i ||
            manifest_slice_at(m, s->purpose, s->tensor, s->first + s->count - 1) != i) {
            abort();
        }
    }
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    struct dt_text text;
    struct dt_error err = {0};
    struct manifest m;
    dt_text_init(&text);
    dt_text_add(&text, data, size);
    uint64_t hash = XXH3_64bits(dt_text_str(&text), text.size);
    dt_text_printf(&text, ",\n\"hash\":\"%016" PRIx64 "\"}\n", hash);
    if (manifest_parse(&m, &text, &err) == 0) {
        check(&m);
        manifest_clear(&m);
    } else if (err.status != DT_INVALID || m.tensors != NULL) {
        abort();
    }
    dt_text_clear(&text);
    return 0;
}
