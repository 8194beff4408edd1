/* PyTorch's torch.randperm on the CPU, bit for bit: MT19937 and a shuffle from the front. */
#ifndef DT_WORKER_DATA_RANDPERM_H
#define DT_WORKER_DATA_RANDPERM_H

#include <stdint.h>

/* From 2^32 / 20 elements on PyTorch draws otherwise. */
enum { RANDPERM_MOST = 214748363 };

struct mt19937 {
    uint32_t state[624];
    int next;
};

/* As torch.Generator.manual_seed: the low 32 bits count. */
void mt19937_seed(struct mt19937 *g, uint64_t seed);
uint32_t mt19937_next(struct mt19937 *g);
/* out: the numbers 0, ..., count - 1 in another order. count: 0 to RANDPERM_MOST. */
void randperm(struct mt19937 *g, int64_t count, uint32_t *out);

#endif
