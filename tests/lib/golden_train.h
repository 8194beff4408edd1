/* Twenty steps of a small GPT-2 (tests/golden/models/gpt2) against PyTorch's numbers: losses,
 * norms, rates, and the weights after them. */
#ifndef DT_TESTS_LIB_GOLDEN_TRAIN_H
#define DT_TESTS_LIB_GOLDEN_TRAIN_H

#include "base/dtype.h"

enum { GOLDEN_RUNS = 4 };

/* Reads what is expected; ranks_setup belongs to it. */
int golden_train_setup(void **state);
int golden_train_teardown(void **state);
/* One of the runs on 1, 2 or 4 ranks (threads), with a strategy's row, on a device; fails the
 * test when something is too far off. type: DT_F64 (device "twin64") against PyTorch's fp64;
 * DT_F32 and DT_BF16 against its fp32, of BF16 no weights. */
void golden_train_check(int run, int ranks, const char *row, const char *device, enum dt_dtype type);

#endif
