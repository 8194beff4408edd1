/* Orders of samples.
 *
 * ORDER_PERMUTATION: a Feistel network over the smallest even number of bits that can number all
 * samples. A result outside of the samples goes through the network again until it is inside (cycle
 * walking, fewer than four passes on average), so the map stays a permutation. It needs no memory
 * and computes any position directly. So resuming in the middle of an epoch, with any number of
 * ranks, costs nothing.
 *
 * A mixture is dealt out in blocks of MIXTURE_BLOCK samples of the run. A block has a permutation of its
 * own, and the first places of it belong to the first part, and so on. So the n-th sample of a part
 * follows from the place in the run alone; it is the n-th of the part's own epochs, which end where they
 * end, whatever the epochs of the run.
 *
 * ORDER_DISTRIBUTED: PyTorch's order of an epoch is made as a whole when its first position is asked
 * for, in memory that has room for two epochs: at the end of one the next one is looked into. So is an
 * order by length, which has two more numbers of each sample to work with. */
#include "worker/data/data.h"

#include "base/error.h"
#include "base/mix.h"
#include "base/text.h"
#include "worker/data/randperm.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* with halves of one or two bits, few of all permutations could occur */
enum { ROUNDS = 6, HALF_BITS_MIN = 4, EPOCHS = 2, WORK = 2 };

struct sampler_memory {
    int64_t epoch[EPOCHS]; /* -1: none yet */
    int oldest;
    uint32_t order[];
};

static int64_t permuted(const struct sampler *s, int64_t epoch, int64_t position)
{
    uint64_t count = (uint64_t)s->sample_count, x = (uint64_t)position;
    int bits = 64 - __builtin_clzll(count - 1);
    int half = (bits + 1) / 2 > HALF_BITS_MIN ? (bits + 1) / 2 : HALF_BITS_MIN;
    uint64_t mask = ((uint64_t)1 << half) - 1, key = dt_mix64(dt_mix64(s->seed) ^ (uint64_t)epoch);
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ (dt_mix64(key + (round << 40) + right) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= count);
    return (int64_t)x;
}

size_t sampler_bytes(const struct sampler *s)
{
    bool ordered = (s->order == ORDER_DISTRIBUTED || s->lengths != NULL) && s->shuffle && s->sample_count > 1;
    size_t numbers = s->lengths != NULL ? EPOCHS + WORK : EPOCHS;
    return ordered ? sizeof(struct sampler_memory) + numbers * (size_t)s->sample_count * sizeof(uint32_t) : 0;
}

int sampler_check(const struct sampler *s, struct dt_error *err)
{
    if (s->mixture != NULL && s->order == ORDER_DISTRIBUTED) {
        return dt_fail(err, DT_INVALID, "data.sampler: distributed orders one source; use permutation for several");
    }
    if (sampler_bytes(s) == 0 || s->sample_count <= RANDPERM_MOST) {
        return 0;
    }
    return dt_fail(err, DT_INVALID, "%s orders at most %d samples, and there are %lld; use %s, or longer samples",
                   s->lengths != NULL ? "data.group_by_length" : "data.sampler: distributed", RANDPERM_MOST,
                   (long long)s->sample_count, s->lengths != NULL ? "false" : "permutation");
}

void sampler_use(struct sampler *s, void *memory)
{
    s->memory = memory;
    for (int i = 0; memory != NULL && i < EPOCHS; i++) {
        s->memory->epoch[i] = -1;
    }
}

void sampler_regroup(struct sampler *s, int64_t group)
{
    s->group = group;
    sampler_use(s, s->memory);
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts samples by falling length; those of one length stay in their order. keys: one for each. */
static void sort_window(const struct sampler *s, uint32_t *sample, int64_t count, uint64_t *keys, uint32_t *was)
{
    memcpy(was, sample, (size_t)count * sizeof *was);
    for (int64_t i = 0; i < count; i++) {
        uint32_t length = (uint32_t)s->lengths->ops->length(s->lengths, was[i]);
        keys[i] = (uint64_t)(UINT32_MAX - length) << 32 | (uint64_t)i;
    }
    qsort(keys, (size_t)count, sizeof *keys, by_number);
    for (int64_t i = 0; i < count; i++) {
        sample[i] = was[(uint32_t)keys[i]];
    }
}

/* Makes an order of samples, from that of PyTorch, one by length. A last group that is not whole stays
 * the last. work: 2 * sample_count. */
static void group_by_length(const struct sampler *s, struct mt19937 *g, uint32_t *order, uint32_t *work)
{
    int64_t n = s->sample_count, group = s->group, groups = n / group;
    int64_t window = group < n / s->window ? s->window * group : n;
    uint64_t *keys = dt_alloc((size_t)window * sizeof *keys);
    for (int64_t first = 0; first < n; first += window) {
        sort_window(s, order + first, n - first < window ? n - first : window, keys, work);
    }
    free(keys);
    uint32_t *sorted = work, *from = work + n;
    memcpy(sorted, order, (size_t)n * sizeof *sorted);
    randperm(g, groups, from);
    for (int64_t i = 0; i < groups; i++) {
        memcpy(order + i * group, sorted + from[i] * group, (size_t)group * sizeof *order);
    }
}

static const uint32_t *order_of(const struct sampler *s, int64_t epoch)
{
    struct sampler_memory *m = s->memory;
    int i = 0;
    while (i < EPOCHS && m->epoch[i] != epoch) {
        i++;
    }
    if (i == EPOCHS) {
        struct mt19937 g;
        i = m->oldest;
        m->oldest = (m->oldest + 1) % EPOCHS;
        m->epoch[i] = epoch;
        mt19937_seed(&g, s->seed + (uint64_t)epoch);
        randperm(&g, s->sample_count, m->order + i * s->sample_count);
        if (s->lengths != NULL) {
            group_by_length(s, &g, m->order + i * s->sample_count, m->order + EPOCHS * s->sample_count);
        }
    }
    return m->order + i * s->sample_count;
}

/* The sample of a number in the run; *pass: how often its part was gone through before. */
static int64_t mixed(const struct sampler *s, int64_t number, int64_t *pass)
{
    const struct data_part *p = s->mixture->part;
    const struct sampler slots = {.sample_count = MIXTURE_BLOCK, .seed = s->seed, .shuffle = true};
    int64_t block = number / MIXTURE_BLOCK, slot = permuted(&slots, block, number % MIXTURE_BLOCK);
    while (slot >= p->before + p->quota) {
        p++;
    }
    int64_t n = block * p->quota + slot - p->before;
    const struct sampler own = {.sample_count = p->count,
                                .seed = dt_mix64(s->seed + (uint64_t)(p - s->mixture->part) + 1),
                                .shuffle = s->shuffle};
    *pass = n / p->count;
    return p->first + sampler_at(&own, *pass, n % p->count);
}

/* The number of a position in a run over a mixture. */
static int64_t number_of(const struct sampler *s, int64_t epoch, int64_t position)
{
    return position + (s->repeats ? 0 : epoch * (s->epoch_samples > 0 ? s->epoch_samples : s->sample_count));
}

int64_t sampler_draw(const struct sampler *s, int64_t epoch, int64_t position, int64_t *pass)
{
    assert(position >= 0 && position < s->sample_count);
    *pass = epoch;
    if (s->mixture != NULL) {
        int64_t sample = mixed(s, number_of(s, epoch, position), pass);
        *pass += s->repeats ? epoch << 32 : 0;
        return sample;
    }
    if (!s->shuffle || s->sample_count < 2) {
        return position;
    }
    return s->memory != NULL ? order_of(s, epoch)[position] : permuted(s, epoch, position);
}

int64_t sampler_at(const struct sampler *s, int64_t epoch, int64_t position)
{
    int64_t ignored;
    return sampler_draw(s, epoch, position, &ignored);
}
