/* The plan file of attention: one line per shape and pass, with the shape's numbers, the part size,
 * the graph, the engine and its knobs. */
#include "kernels/cuda/attention_plan.h"

#include "base/text.h"

#include <inttypes.h>
#include <string.h>

enum { SIZES = 11, FLAGS = 5 /* the last of them */ };
_Static_assert(sizeof(struct attention_key) == (SIZES + 1) * 8, "the key is compared whole");

static void put_row(struct dt_text *out, const void *key, const void *value)
{
    const struct attention_key *k = key;
    const struct attention_choice *c = value;
    uint64_t scale;
    memcpy(&scale, &k->scale, sizeof scale);
    dt_text_printf(out,
                   "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                   " %" PRId64 " %" PRId64 " %" PRId64 " %" PRIx64,
                   k->batch, k->positions, k->heads, k->kv_heads, k->head_size, k->room, k->causal, k->backward,
                   k->sums, k->own, k->f16, scale);
    dt_text_printf(out, " %" PRId64 " %" PRId64, c->part, c->sums);
    dt_dnn_config_put(out, &c->config);
}

static bool take_one(char **at, int64_t most, int64_t *out)
{
    uint64_t x;
    if (!dt_plan_file_number(at, 10, (uint64_t)most, &x)) {
        return false;
    }
    *out = (int64_t)x;
    return true;
}

static bool take_row(char **at, void *key, void *value)
{
    struct attention_key *k = key;
    struct attention_choice *c = value;
    int64_t *const sizes[SIZES] = {&k->batch,  &k->positions, &k->heads, &k->kv_heads, &k->head_size, &k->room,
                                   &k->causal, &k->backward,  &k->sums,  &k->own,      &k->f16};
    uint64_t bits = 0;
    for (int i = 0; i < SIZES; i++) {
        if (!take_one(at, i < SIZES - FLAGS ? INT64_MAX : 1, sizes[i])) {
            return false;
        }
    }
    if (!dt_plan_file_number(at, 16, UINT64_MAX, &bits) || !take_one(at, INT64_MAX, &c->part) ||
        !take_one(at, 1, &c->sums)) {
        return false;
    }
    memcpy(&k->scale, &bits, sizeof bits);
    return dt_dnn_config_take(at, &c->config);
}

const struct dt_plan_kind attention_plans = {.name = "attention",
                                             .head = "dtrun attention plans 3\n",
                                             .key_bytes = sizeof(struct attention_key),
                                             .value_bytes = sizeof(struct attention_choice),
                                             .put = put_row,
                                             .take = take_row};
