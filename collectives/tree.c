/* Sums in canonical-tree order, block by block, so that partial sums stay in the first-level cache.
 * The tree over n leaves splits at the largest power of two below n. So its nodes are the aligned
 * powers of two, cut off at n. */
#include "collectives/tree.h"

#include "kernels/kernels.h"

#include <assert.h>
#include <string.h>

#define BLOCK_BYTES 4096

static int split_of(int n)
{
    int half = 1;
    while (half * 2 < n) {
        half *= 2;
    }
    return half;
}

bool dt_tree_can(enum dt_dtype type)
{
    return type == DT_F32 || type == DT_F64 || dt_dtype_half(type) || type == DT_I64;
}

/* The operands may be the same memory: an iteration reads only the elements that it writes. */
#define LOOP(T, EXPR)                                                                                                  \
    do {                                                                                                               \
        T *o = out;                                                                                                    \
        const T *p = a, *q = b;                                                                                        \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                           \
        {                                                                                                              \
            T x = p[i], y = q[i];                                                                                      \
            o[i] = (EXPR);                                                                                             \
        }                                                                                                              \
    } while (0)
#define LOOPS(T, SUM)                                                                                                  \
    do {                                                                                                               \
        if (op == DT_SUM) {                                                                                            \
            LOOP(T, SUM);                                                                                              \
        } else if (op == DT_MAX) {                                                                                     \
            LOOP(T, x > y ? x : y);                                                                                    \
        } else {                                                                                                       \
            LOOP(T, x < y ? x : y);                                                                                    \
        }                                                                                                              \
    } while (0)

static void combine(void *out, const void *a, const void *b, enum dt_reduction op, enum dt_dtype type, int64_t n)
{
    if (type == DT_F32) {
        LOOPS(float, x + y);
    } else if (type == DT_F64) {
        LOOPS(double, x + y);
    } else {
        LOOPS(int64_t, (int64_t)((uint64_t)x + (uint64_t)y));
    }
}

struct sum {
    const void *const *in;
    const struct dt_tree_part *parts; /* null: each input is one leaf */
    enum dt_reduction op;
    enum dt_dtype type;
    size_t offset_bytes; /* of the current block */
    int64_t n;           /* elements of the current block */
    bool wide;           /* a sum of 16-bit values stays F32 */
};

/* 16-bit values straight from the ranks: one loop widens and adds two of them. */
static bool halves(const struct sum *s)
{
    return dt_dtype_half(s->type) && s->op == DT_SUM && s->parts == NULL;
}

static const uint16_t *half_at(const struct sum *s, int part)
{
    return (const uint16_t *)(const void *)((const char *)s->in[part] + s->offset_bytes);
}

/* Computes the node of ranks first .. first + count - 1, whose inputs begin at *part. Returns its
 * value: an input itself, or `room`, which holds one block. */
static const void *node(const struct sum *s, int first, int count, int *part, void *room)
{
    bool leaf = s->parts == NULL ? count == 1 : (s->parts[*part].first == first && s->parts[*part].count == count);
    if (leaf) {
        /* a sum of 16-bit values is F32 */
        bool sum = s->parts != NULL && dt_dtype_half(s->type) && count > 1;
        const char *p = (const char *)s->in[(*part)++] + s->offset_bytes * (sum ? 2 : 1);
        if (!dt_dtype_half(s->type) || sum) {
            return p;
        }
        dt_cpu_half(s->type)->widen(room, (const uint16_t *)(const void *)p, s->n);
        return room;
    }
    assert(count > 1);
    if (count == 2 && halves(s)) {
        dt_cpu_half(s->type)->add_wide(room, half_at(s, *part), half_at(s, *part + 1), s->n);
        *part += 2;
        return room;
    }
    _Alignas(64) char spare[BLOCK_BYTES];
    int half = split_of(count);
    const void *left = node(s, first, half, part, room);
    const void *right = node(s, first + half, count - half, part, spare);
    combine(room, left, right, s->op, dt_dtype_half(s->type) ? DT_F32 : s->type, s->n);
    return room;
}

static void reduce(void *out, struct sum *s, int size, int64_t count)
{
    size_t wide = dt_dtype_half(s->type) ? sizeof(float) : dt_dtype_size(s->type);
    size_t width = dt_dtype_size(s->type);
    int64_t block = (int64_t)(BLOCK_BYTES / wide);
    _Alignas(64) char room[BLOCK_BYTES];
    for (int64_t at = 0; at < count; at += block) {
        s->n = count - at < block ? count - at : block;
        s->offset_bytes = (size_t)at * width;
        char *to = (char *)out + (s->wide ? (size_t)at * wide : s->offset_bytes);
        int part = 0;
        if (size == 2 && !dt_dtype_half(s->type) && s->parts == NULL) {
            combine(to, (const char *)s->in[0] + s->offset_bytes, (const char *)s->in[1] + s->offset_bytes, s->op,
                    s->type, s->n);
            continue;
        }
        if (size == 2 && halves(s) && !s->wide) {
            dt_cpu_half(s->type)->add((uint16_t *)(void *)to, half_at(s, 0), half_at(s, 1), s->n);
            continue;
        }
        const void *sum = node(s, 0, size, &part, room);
        if (dt_dtype_half(s->type) && !s->wide) {
            dt_cpu_half(s->type)->narrow((uint16_t *)(void *)to, sum, s->n);
        } else if (sum != to) {
            memcpy(to, sum, (size_t)s->n * (s->wide ? wide : width));
        }
    }
}

void dt_tree_reduce(void *out, const void *const *in, int in_count, enum dt_reduction op, enum dt_dtype type,
                    int64_t count)
{
    assert(dt_tree_can(type) && in_count >= 1);
    struct sum s = {.in = in, .op = op, .type = type};
    reduce(out, &s, in_count, count);
}

void dt_tree_partial(void *out, const void *const *in, int in_count, enum dt_reduction op, enum dt_dtype type,
                     int64_t count)
{
    assert(dt_tree_can(type) && in_count >= 1);
    struct sum s = {.in = in, .op = op, .type = type, .wide = dt_dtype_half(type)};
    reduce(out, &s, in_count, count);
}

void dt_tree_merge(void *out, const void *const *in, const struct dt_tree_part *parts, int size, enum dt_reduction op,
                   enum dt_dtype type, int64_t count)
{
    assert(dt_tree_can(type));
    struct sum s = {.in = in, .parts = parts, .op = op, .type = type};
    reduce(out, &s, size, count);
}

static int parts_within(int first, int count, int from, int to, struct dt_tree_part *out, int n)
{
    if (first >= to || first + count <= from) {
        return n;
    }
    if (first >= from && first + count <= to) {
        out[n] = (struct dt_tree_part){first, count};
        return n + 1;
    }
    int half = split_of(count);
    n = parts_within(first, half, from, to, out, n);
    return parts_within(first + half, count - half, from, to, out, n);
}

int dt_tree_parts(int size, int first, int count, struct dt_tree_part *out)
{
    assert(size >= 1 && size <= 65536 && first >= 0 && count >= 0 && first + count <= size);
    return parts_within(0, size, first, first + count, out, 0);
}
