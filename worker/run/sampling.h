/* The choice of the next id from logits, as a function of its arguments alone. With the draw's number a
 * function of seed, row and position, the same seed gives the same ids in any batch. */
#ifndef DT_WORKER_RUN_SAMPLING_H
#define DT_WORKER_RUN_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

struct sampling {              /* in the order in which they act, each on what the one before has left */
    double repetition_penalty; /* > 0; 1: none. The logits of seen ids are divided by it, or multiplied below 0 */
    double temperature;        /* 0: the likeliest id, as without do_sample */
    int64_t top_k;             /* keeps logits that are not below the k-th largest; 0: all */
    double top_p;              /* drops the least likely ids while they sum up to at most 1 - top_p */
    double min_p;              /* drops ids less likely than min_p times the likeliest */
    bool do_sample;            /* false: the likeliest id, the lowest one of equals */
};

/* A number in [0, 1) for the id at `position` of row `row`. */
double sampling_uniform(uint64_t seed, int64_t row, int64_t position);

/* Applies the settings to logits (count), which change; `seen` are the ids of the row so far. keys has room
 * for `count`; the last n of them, the result, are the ids that are left, by increasing logit (equal ones by
 * id). Without do_sample, or at temperature 0, one is left. 0: no logit is a number. */
int64_t sampling_keep(const struct sampling *s, float *logits, int64_t count, const int32_t *seen, int64_t seen_count,
                      uint64_t *keys);
/* The id of a key, and its logit. */
int32_t sampling_id(uint64_t key);
float sampling_logit(uint64_t key);
/* Draws one of the ids that sampling_keep has left, n >= 1: by decreasing logit (equal ones by id) the
 * first whose sum of weights is more than u times that of all. */
int32_t sampling_draw(const uint64_t *left, int64_t n, double u);

#endif
