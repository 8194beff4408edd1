/* Megatron's index and its ids: the input is 2 bytes (how much of the rest is the index), the index,
 * the ids. What opens must be readable to the last sample, with no id beyond the vocabulary. */
#include "driver.h"

#include "worker/data/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char ids_path[64], index_path[64];

int dt_fuzz(const uint8_t *data, size_t size)
{
    struct data_source s;
    struct dt_error err = {0};
    enum { T = 3 };
    if (ids_path[0] == 0) {
        (void)snprintf(ids_path, sizeof ids_path, "%s/x.bin", dt_fuzz_folder());
        (void)snprintf(index_path, sizeof index_path, "%s/x.idx", dt_fuzz_folder());
    }
    if (size < 2) {
        return 0;
    }
    size_t index_size = (size_t)data[0] | (size_t)data[1] << 8;
    index_size = index_size > size - 2 ? size - 2 : index_size;
    dt_fuzz_write(index_path, data + 2, index_size);
    dt_fuzz_write(ids_path, data + 2 + index_size, size - 2 - index_size);
    const struct batch_layout layout = batch_tokens(1, T, 0, NULL);
    if (data_open(&s, ids_path, "tokens", &layout, &err) != 0) {
        if (err.text[0] == 0) {
            abort();
        }
        return 0;
    }
    for (int64_t i = 0; i < s.sample_count; i++) {
        int32_t ids[T], labels[T];
        (void)s.ops->read(&s, i, 0, &(struct batch){.layout = &layout, .at = {ids, labels}}, 0, &err);
        for (int t = 0; t < T; t++) {
            if (ids[t] < 0 || ids[t] >= s.vocabulary || labels[t] < -100 || labels[t] >= s.vocabulary) {
                abort();
            }
        }
    }
    data_close(&s);
    return 0;
}
