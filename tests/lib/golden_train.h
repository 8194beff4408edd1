/* Twenty steps of a small GPT-2 (tests/golden/models/gpt2), compared with PyTorch's numbers:
 * losses, norms, learning rates, and the final weights. */
#ifndef DT_TESTS_LIB_GOLDEN_TRAIN_H
#define DT_TESTS_LIB_GOLDEN_TRAIN_H

#include "base/dtype.h"

enum { GOLDEN_RUNS = 4 };

/* Reads the expected numbers. The test must also use ranks_setup. */
int golden_train_setup(void **state);
int golden_train_teardown(void **state);
/* Trains one of the runs on 1, 2 or 4 ranks (threads), with a strategy, on a device. Fails the test
 * if a number is too far off. type: DT_F64 (device "twin64") is compared with PyTorch's fp64;
 * DT_F32, DT_BF16 and DT_F16 with its fp32. Weights of 16 bits are not compared. */
void golden_train_check(int run, int ranks, const char *row, const char *device, enum dt_dtype type);

#endif
