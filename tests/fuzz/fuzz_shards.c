/* Token shards and the JSON beside them: the input is 2 bytes (how much of the rest is JSON),
 * the JSON, the shard. What opens must be readable to the last sample, with no id beyond the
 * vocabulary. */
#include "driver.h"

#include "worker/data/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char shard[64], info[64];

int dt_fuzz(const uint8_t *data, size_t size)
{
    struct data_source s;
    struct dt_error err = {0};
    enum { T = 3 };
    if (shard[0] == 0) {
        (void)snprintf(shard, sizeof shard, "%s/x.bin", dt_fuzz_folder());
        (void)snprintf(info, sizeof info, "%s/x.bin.json", dt_fuzz_folder());
    }
    if (size < 2) {
        return 0;
    }
    size_t info_size = (size_t)data[0] | (size_t)data[1] << 8;
    info_size = info_size > size - 2 ? size - 2 : info_size;
    dt_fuzz_write(shard, data + 2 + info_size, size - 2 - info_size);
    if (info_size > 0) {
        dt_fuzz_write(info, data + 2, info_size);
    } else {
        (void)unlink(info);
    }
    const struct batch_layout layout = batch_tokens(1, T, 0, NULL);
    if (data_open(&s, shard, "auto", &layout, &err) != 0) {
        if (err.text[0] == 0) {
            abort();
        }
        return 0;
    }
    for (int64_t i = 0; i < s.sample_count; i++) {
        int32_t ids[T], labels[T];
        if (s.ops->read(&s, i, 0, &(struct batch){.layout = &layout, .at = {ids, labels}}, 0, &err) != 0) {
            abort();
        }
        for (int t = 0; t < T; t++) {
            if (ids[t] < 0 || ids[t] >= s.vocabulary || labels[t] < -100 || labels[t] >= s.vocabulary) {
                abort();
            }
        }
    }
    data_close(&s);
    return 0;
}
