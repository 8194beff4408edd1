/* Multiple choice: JSON lines of items. What opens is encoded to bytes or refused with words, and each choice can be
 * read: its targets are the last ids of its row. */
#include "driver.h"

#include "worker/data/data.h"
#include "worker/job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char path[64];

static void must(bool holds)
{
    if (!holds) {
        abort();
    }
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    static struct job job = {.checkpointing.checkpoint_dir = "/nonexistent"};
    struct data_source s;
    struct dt_error err = {0};
    enum { T = 16 };
    if (path[0] == 0) {
        (void)snprintf(path, sizeof path, "%s/x.jsonl", dt_fuzz_folder());
    }
    dt_fuzz_write(path, data, size);
    const struct batch_layout layout = batch_tokens(1, T, 0, NULL);
    if (data_open(&s, path, "multiple_choice", &layout, &err) != 0) {
        must(err.text[0] != 0);
        return 0;
    }
    if (s.ops->prepare(&s, &job, false, &err) != 0) {
        must(err.text[0] != 0);
    } else {
        for (int64_t i = 0; i < s.sample_count; i++) {
            int32_t ids[T], labels[T], targets = 0;
            must(s.ops->read(&s, i, 0, &(struct batch){.layout = &layout, .at = {ids, labels}}, 0, &err) == 0);
            for (int t = 0; t < T; t++) {
                must(ids[t] >= 0 && ids[t] < 256 && labels[t] >= -100 && labels[t] < 256);
                must(t == 0 || labels[t - 1] < 0 || t == T - 1 || ids[t] == labels[t - 1] || ids[t] == 0);
                targets += labels[t] != -100;
            }
            must(targets > 0);
        }
        for (int64_t i = 0; i < s.choices->item_count; i++) {
            const struct data_choice_item *item = &s.choices->items[i];
            must(item->label >= 0 && item->label < item->count && item->first + item->count <= s.sample_count);
        }
    }
    data_close(&s);
    return 0;
}
