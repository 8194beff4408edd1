/* The plan file of convolutions: one line per shape and pass, with the key's numbers, whether kernels of our own
 * are faster, the engine and its knobs. */
#include "kernels/cuda/convolution_plan.h"

#include "base/text.h"

#include <inttypes.h>
#include <string.h>

enum { NUMBERS = sizeof(struct convolution_key) / sizeof(int64_t) };

static void put_row(struct dt_text *out, const void *key, const void *value)
{
    const struct convolution_choice *c = value;
    int64_t numbers[NUMBERS];
    memcpy(numbers, key, sizeof numbers);
    for (int i = 0; i < NUMBERS; i++) {
        dt_text_printf(out, "%s%" PRId64, i > 0 ? " " : "", numbers[i]);
    }
    dt_text_printf(out, " %" PRId64, c->own);
    dt_dnn_config_put(out, &c->config);
}

static bool take_row(char **at, void *key, void *value)
{
    struct convolution_choice *c = value;
    int64_t numbers[NUMBERS];
    uint64_t x;
    for (int i = 0; i < NUMBERS; i++) {
        if (!dt_plan_file_number(at, 10, INT64_MAX, &x)) {
            return false;
        }
        numbers[i] = (int64_t)x;
    }
    if (!dt_plan_file_number(at, 10, 1, &x)) {
        return false;
    }
    c->own = (int64_t)x;
    memcpy(key, numbers, sizeof numbers);
    return dt_dnn_config_take(at, &c->config);
}

const struct dt_plan_kind convolution_plans = {.name = "convolutions",
                                               .head = "dtrun convolution plans 1\n",
                                               .key_bytes = sizeof(struct convolution_key),
                                               .value_bytes = sizeof(struct convolution_choice),
                                               .put = put_row,
                                               .take = take_row};
