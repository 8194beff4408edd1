/* See the header. */
#include "worker/model/blocks/rope.h"

#include <math.h>

#define PI 3.14159265358979323846

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* llama3: long wavelengths are stretched, short ones stay, and those between are mixed. */
static double llama3(const struct rope *r, double f)
{
    double wavelength = 2 * PI / f, ratio = r->original_positions / wavelength;
    if (ratio < r->low_freq_factor) {
        return f / r->factor;
    }
    if (ratio > r->high_freq_factor) {
        return f;
    }
    double share = (ratio - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - share) * f / r->factor + share * f;
}

/* yarn: the pair that makes `turns` turns within the original length. */
static double yarn_pair(const struct rope *r, double turns)
{
    return (double)r->denominator * log(r->original_positions / (turns * 2 * PI)) / (2 * log(r->theta));
}

static double yarn(const struct rope *r, double f, int64_t j)
{
    double low = yarn_pair(r, r->beta_fast != 0 ? r->beta_fast : 32),
           high = yarn_pair(r, r->beta_slow != 0 ? r->beta_slow : 1);
    low = fmax(r->truncate ? floor(low) : low, 0);
    high = fmin(r->truncate ? ceil(high) : high, (double)r->denominator - 1);
    high += low == high ? 0.001 : 0;
    double ramp = clamp(((double)j - low) / (high - low), 0, 1);
    return ramp * f / r->factor + (1 - ramp) * f;
}

double rope_frequency(const struct rope *r, int64_t j)
{
    double f = pow(r->theta, -2.0 * (double)j / (double)r->denominator);
    switch (r->type) {
    case ROPE_LINEAR:
        return f / r->factor;
    case ROPE_LLAMA3:
        return llama3(r, f);
    case ROPE_YARN:
        return yarn(r, f, j);
    case ROPE_DEFAULT:
    case ROPE_DYNAMIC: /* the same, as long as sequences are not longer than the model's */
        break;
    }
    return f;
}

static double yarn_scale(double mscale, double factor)
{
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

double rope_factor(const struct rope *r)
{
    if (r->type != ROPE_YARN) {
        return 1;
    }
    if (r->attention_factor != 0) {
        return r->attention_factor;
    }
    return r->mscale != 0 && r->mscale_all != 0
               ? yarn_scale(r->mscale, r->factor) / yarn_scale(r->mscale_all, r->factor)
               : yarn_scale(1, r->factor);
}

void rope_fill(const void *args, int64_t first, int64_t count, double *out)
{
    const struct rope *r = args;
    int64_t half = r->width / 2;
    double factor = rope_factor(r), frequency[ROPE_PAIRS_MAX] = {0};
    for (int64_t j = 0; j < half; j++) {
        frequency[j] = rope_frequency(r, j);
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t position = (first + i) / r->width, at = (first + i) % r->width;
        double angle = (double)position * frequency[at % half];
        out[i] = factor * (at < half ? cos(angle) : sin(angle));
    }
}
