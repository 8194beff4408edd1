/* Tables of rotary angles (Su et al., 2021), with the scalings of Hugging Face's library. */
#ifndef DT_WORKER_MODEL_BLOCKS_ROPE_H
#define DT_WORKER_MODEL_BLOCKS_ROPE_H

#include <stdbool.h>
#include <stdint.h>

/* A head has at most 256 values. */
enum { ROPE_PAIRS_MAX = 128 };

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_DYNAMIC };
#define ROPE_TYPES "default|linear|llama3|yarn|dynamic"

struct rope { /* what the angles follow from; values that a type does not use may be 0 */
    enum rope_type type;
    /* values of a head that turn, and the denominator of the exponents, which differ if the share of
     * the head is odd: 2 * ceil(denominator / 2) values turn */
    int64_t width, denominator;
    double theta, factor;
    double low_freq_factor, high_freq_factor, original_positions;      /* llama3, yarn */
    double beta_fast, beta_slow, attention_factor, mscale, mscale_all; /* yarn; 0: its default */
    bool truncate;                                                     /* yarn */
};

/* The frequency of pair j, j < width / 2. */
double rope_frequency(const struct rope *r, int64_t j);
/* The factor of cosines and sines. */
double rope_factor(const struct rope *r);
/* Elements [first, first + count) of the table (positions, width): width / 2 cosines, then as many
 * sines. args: a struct rope. For block_constant. */
void rope_fill(const void *args, int64_t first, int64_t count, double *out);

#endif
