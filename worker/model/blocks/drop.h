/* Dropout as a part of blocks: elements become 0 with probability `rate`, and the others are divided
 * by 1 - rate. The mask follows from the job's seed, the block, `site` (which of the block's
 * dropouts), and the numbers of the samples (kernels/dropout.h). So forward, recomputation and
 * backward have the same mask, and no mask is kept. Evaluation drops nothing. */
#ifndef DT_WORKER_MODEL_BLOCKS_DROP_H
#define DT_WORKER_MODEL_BLOCKS_DROP_H

#include "worker/model/chain.h"

/* Declares a dropout, whose rate may be 0. */
void drop_declare(struct block *b, double rate);
/* Writes x (rows, cols) to `to`, which may be x, with elements dropped. The rows are those of whole
 * samples. Returns `to`, or x where nothing is dropped, and then `to` is not written. */
const void *drop(const struct block *b, const struct pass *p, double rate, int site, void *to, const void *x,
                 int64_t rows, int64_t cols);
/* Gives attention dropout of its probabilities. */
void drop_attention(const struct block *b, const struct pass *p, double rate, int site, struct dt_attention_shape *s);

#endif
