/* Pearson's correlation of what a model predicts with its targets, in an evaluation of a model that gives
 * numbers: exact sums as integers (kernels/exact.h), which add up in any order over batches and ranks. */
#ifndef DT_WORKER_ENGINE_NUMBER_SUMS_H
#define DT_WORKER_ENGINE_NUMBER_SUMS_H

#include "base/dtype.h"

#include <stdint.h>

struct number_sums {
    int64_t columns; /* numbers of a sample */
    /* for each column, the number of its pairs, then the limbs of its sums. Owned, number_sums_size elements */
    int64_t *n;
};

void number_sums_open(struct number_sums *s, int64_t columns);
void number_sums_close(struct number_sums *s);
/* Number of integers in n. */
int64_t number_sums_size(const struct number_sums *s);
/* Adds rows of predictions and targets (rows, columns), each of type F32, F64 or BF16. A target that is NaN
 * does not count. */
void number_sums_add(struct number_sums *s, const void *predictions, enum dt_dtype type, const void *targets,
                     enum dt_dtype target_type, int64_t rows);
/* The mean of the columns' correlations; NaN where one has none, since a side of it does not vary. */
double number_sums_pearson(const struct number_sums *s);

#endif
