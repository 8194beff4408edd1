/* Gated activations: y = f(gate) * up, and backward. The elements of y are cut into parts of fixed
 * length, and a part into blocks of one row each, which stay in the L1 cache. */
#include "kernels/cpu/isa/activation.h"
#include "kernels/cpu/pool.h"

#define PART 32768
#define BLOCK 1024

/* A block: n elements from `at` on in y, from `apart` on in gate and up. */
struct block {
    int64_t at, apart, n;
};

INLINE struct block block_at(int64_t at, int64_t end, int64_t cols, int64_t ld)
{
    int64_t row = at / cols, col = at - row * cols;
    return (struct block){at, row * ld + col, min64(BLOCK, min64(end - at, cols - col))};
}

INLINE void gate_by_table(const struct dt_gate_args *a, const struct activation_table *table, const struct block *b)
{
    const uint16_t *gate = (const uint16_t *)a->gate + b->apart, *up = (const uint16_t *)a->up + b->apart;
    uint16_t *y = (uint16_t *)a->y + b->at;
    for (int64_t i = 0; i < b->n; i += VEC) {
        vec value, slope;
        look_up(table, gate + i, b->n - i, &value, &slope);
        vec_store_half_n(y + i, value * vec_load_half_n(up + i, b->n - i), b->n - i);
    }
}

INLINE void gate_typed(const struct dt_gate_args *a, int64_t begin, int64_t end, enum dt_activation kind,
                       enum dt_dtype type)
{
    float room[2][BLOCK];
    const struct activation_table *table = table_of(kind, type);
    struct block b;
    for (int64_t at = begin; at < end; at += b.n) {
        b = block_at(at, end, a->col_count, a->ld != 0 ? a->ld : a->col_count);
        if (has_table(kind, type)) {
            gate_by_table(a, table, &b);
            continue;
        }
        const float *gate = vec_floats(room[0], a->gate, b.apart, b.n, type);
        const float *up = vec_floats(room[1], a->up, b.apart, b.n, type);
        float *y = type == DT_HALF ? room[0] : (float *)a->y + at;
        for (int64_t i = 0; i < b.n; i += VEC) {
            vec v = activation_value(kind, vec_load_n(gate + i, b.n - i)) * vec_load_n(up + i, b.n - i);
            vec_store_n(y + i, v, b.n - i);
        }
        if (type == DT_HALF) {
            vec_keep(a->y, at, y, b.n, type);
        }
    }
}

static void gate_part(void *context, int64_t part)
{
    const struct dt_gate_args *a = context;
    int64_t begin = part * PART, end = min64(a->row_count * a->col_count, begin + PART);
    DT_FOR_KIND_AND_TYPE(gate_typed)
}

static int gate_now(struct dt_pool *pool, struct dt_gate_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->row_count * a->col_count, PART), gate_part, a);
    return 0;
}
DT_ISA_KERNEL(gate)

/* All of a vector's inputs are read before its results are written, because dgate and dup may be
 * gate and up, and y may be dy. */
INLINE void gate_backward_by_table(const struct dt_gate_backward_args *a, const struct activation_table *table,
                                   const struct block *b)
{
    const uint16_t *gate = (const uint16_t *)a->gate + b->apart, *up = (const uint16_t *)a->up + b->apart;
    const uint16_t *dy = (const uint16_t *)a->dy + b->at;
    uint16_t *dgate = (uint16_t *)a->dgate + b->apart, *dup = (uint16_t *)a->dup + b->apart;
    uint16_t *y = a->y != NULL ? (uint16_t *)a->y + b->at : NULL;
    for (int64_t i = 0; i < b->n; i += VEC) {
        int64_t n = b->n - i;
        vec u = vec_load_half_n(up + i, n), d = vec_load_half_n(dy + i, n), value, slope;
        look_up(table, gate + i, n, &value, &slope);
        vec_store_half_n(dgate + i, d * u * slope, n);
        vec_store_half_n(dup + i, d * value, n);
        if (y != NULL) {
            vec_store_half_n(y + i, value * u, n);
        }
    }
}

/* The same order of reads and writes as above. */
INLINE void gate_backward_typed(const struct dt_gate_backward_args *a, int64_t begin, int64_t end,
                                enum dt_activation kind, enum dt_dtype type)
{
    float room[3][BLOCK];
    const struct activation_table *table = table_of(kind, type);
    struct block b;
    for (int64_t at = begin; at < end; at += b.n) {
        b = block_at(at, end, a->col_count, a->ld != 0 ? a->ld : a->col_count);
        if (has_table(kind, type)) {
            gate_backward_by_table(a, table, &b);
            continue;
        }
        const float *dy = vec_floats(room[0], a->dy, at, b.n, type);
        const float *gate = vec_floats(room[1], a->gate, b.apart, b.n, type);
        const float *up = vec_floats(room[2], a->up, b.apart, b.n, type);
        bool half = type == DT_HALF;
        float *y = half ? room[0] : a->y != NULL ? (float *)a->y + at : NULL;
        float *dgate = half ? room[1] : (float *)a->dgate + b.apart;
        float *dup = half ? room[2] : (float *)a->dup + b.apart;
        for (int64_t i = 0; i < b.n; i += VEC) {
            int64_t n = b.n - i;
            vec x = vec_load_n(gate + i, n), u = vec_load_n(up + i, n), d = vec_load_n(dy + i, n);
            vec value = activation_value(kind, x);
            vec_store_n(dgate + i, d * u * activation_slope(kind, x), n);
            vec_store_n(dup + i, d * value, n);
            if (y != NULL) {
                vec_store_n(y + i, value * u, n);
            }
        }
        if (half) {
            vec_keep(a->dgate, b.apart, dgate, b.n, type);
            vec_keep(a->dup, b.apart, dup, b.n, type);
        }
        if (half && a->y != NULL) {
            vec_keep(a->y, at, y, b.n, type);
        }
    }
}

static void gate_backward_part(void *context, int64_t part)
{
    const struct dt_gate_backward_args *a = context;
    int64_t begin = part * PART, end = min64(a->row_count * a->col_count, begin + PART);
    DT_FOR_KIND_AND_TYPE(gate_backward_typed)
}

static int gate_backward_now(struct dt_pool *pool, struct dt_gate_backward_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->row_count * a->col_count, PART), gate_backward_part, a);
    return 0;
}
DT_ISA_KERNEL(gate_backward)
