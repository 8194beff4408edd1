/* See the header. A key holds a logit and its id, so that keys are in the order of logits, and equal
 * logits in that of ids. What a setting drops is always the first part of the sorted keys. */
#include "worker/run/sampling.h"

#include "base/mix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double sampling_uniform(uint64_t seed, int64_t row, int64_t position)
{
    uint64_t bits = dt_mix64(dt_mix64(dt_mix64(seed) + (uint64_t)row) + (uint64_t)position);
    return (double)(bits >> 11) * 0x1p-53;
}

/* The bits of floats are in their order once those of negative ones are turned over. */
static uint64_t key_of(float logit, int64_t id)
{
    float x = logit + 0.0F; /* -0 equals 0 */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
    return (uint64_t)bits << 32 | (uint32_t)id;
}

int32_t sampling_id(uint64_t key)
{
    return (int32_t)(uint32_t)key;
}

float sampling_logit(uint64_t key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    bits = (bits >> 31) != 0 ? bits & 0x7fffffffU : ~bits;
    float logit;
    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Each id once, however often it was seen. marks: room for `count`. */
static void penalize(float penalty, float *logits, int64_t count, const int32_t *seen, int64_t seen_count,
                     uint64_t *marks)
{
    memset(marks, 0, (size_t)count * sizeof *marks);
    for (int64_t i = 0; i < seen_count; i++) {
        int32_t id = seen[i];
        if (marks[id] == 0) {
            logits[id] = logits[id] < 0 ? logits[id] * penalty : logits[id] / penalty;
            marks[id] = 1;
        }
    }
}

/* The likelihood of a key among n ones, but for a common factor. */
static double weight_of(const uint64_t *left, int64_t n, int64_t i)
{
    return exp((double)sampling_logit(left[i]) - (double)sampling_logit(left[n - 1]));
}

static double sum_of(const uint64_t *left, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += weight_of(left, n, i);
    }
    return sum;
}

static int64_t keep_top_k(int64_t k, const uint64_t *left, int64_t n)
{
    int64_t first = n - k;
    while (first > 0 && sampling_logit(left[first - 1]) == sampling_logit(left[n - k])) {
        first--;
    }
    return n - first;
}

static int64_t keep_top_p(double p, const uint64_t *left, int64_t n)
{
    double total = sum_of(left, n), sum = 0;
    int64_t first = 0;
    for (; first < n - 1; first++) {
        sum += weight_of(left, n, first) / total;
        if (sum > 1 - p) {
            break;
        }
    }
    return n - first;
}

static int64_t keep_min_p(double p, const uint64_t *left, int64_t n)
{
    double total = sum_of(left, n), least = p * (weight_of(left, n, n - 1) / total);
    int64_t first = 0;
    while (first < n - 1 && weight_of(left, n, first) / total < least) {
        first++;
    }
    return n - first;
}

/* The likeliest id, the lowest one of equals: as the only key, at the end of `keys`. */
static int64_t keep_best(const float *logits, int64_t count, uint64_t *keys)
{
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++) {
        if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) {
            best = i;
        }
    }
    if (best >= 0) {
        keys[count - 1] = key_of(logits[best], best);
    }
    return best >= 0;
}

/* The ids whose logits are finite, sorted; at the end of `keys`. */
static int64_t sort_keys(const float *logits, int64_t count, uint64_t *keys)
{
    int64_t n = 0;
    for (int64_t i = count - 1; i >= 0; i--) {
        if (isfinite(logits[i])) {
            keys[count - ++n] = key_of(logits[i], i);
        }
    }
    qsort(keys + count - n, (size_t)n, sizeof *keys, by_key);
    return n;
}

int64_t sampling_keep(const struct sampling *s, float *logits, int64_t count, const int32_t *seen, int64_t seen_count,
                      uint64_t *keys)
{
    if (s->repetition_penalty != 1) {
        penalize((float)s->repetition_penalty, logits, count, seen, seen_count, keys);
    }
    /* so low a temperature leaves the likeliest id alone, and quotients by it may overflow */
    if (!s->do_sample || s->temperature < 1e-6) {
        return keep_best(logits, count, keys);
    }
    for (int64_t i = 0; i < count && s->temperature != 1; i++) {
        logits[i] /= (float)s->temperature;
    }
    int64_t n = sort_keys(logits, count, keys);
    const uint64_t *end = keys + count;
    if (s->top_k > 0 && s->top_k < n) {
        n = keep_top_k(s->top_k, end - n, n);
    }
    if (s->top_p < 1 && n > 0) {
        n = keep_top_p(s->top_p, end - n, n);
    }
    if (s->min_p > 0 && n > 0) {
        n = keep_min_p(s->min_p, end - n, n);
    }
    return n;
}

int32_t sampling_draw(const uint64_t *left, int64_t n, double u)
{
    double total = 0, sum = 0;
    int64_t end = n, at = n - 1;
    for (int64_t i = n - 1; i >= 0; i--) {
        total += weight_of(left, n, i);
    }
    /* from the largest logit on; equal ones lie in [at, end), by id */
    for (; end > 0; end = at) {
        for (at = end - 1; at > 0 && sampling_logit(left[at - 1]) == sampling_logit(left[end - 1]);) {
            at--;
        }
        for (int64_t i = at; i < end; i++) {
            sum += weight_of(left, n, i);
            if (sum > u * total) {
                return sampling_id(left[i]);
            }
        }
    }
    return sampling_id(left[0]); /* the sums were rounded differently */
}
