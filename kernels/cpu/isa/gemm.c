/* Products of fp32 matrices in one thread. B is packed into panels of PANEL columns and KC rows. A
 * tile of ROWS x PANEL sums stays in registers while it walks down a panel. A block of MC rows and KC
 * columns of A is copied if its rows are contiguous, and packed otherwise. Each element is summed over l
 * in order within blocks of KC, and over the blocks in order, so its bits do not depend on how m and n
 * are cut. */
#include "kernels/cpu/isa/isa.h"

#if VEC == 16
#define ROWS 8
#define WIDTH 3          /* vectors; 24 of 32 registers hold sums */
#define KC 384           /* a panel comes from the L2 cache, which costs less than adding to c more often */
#define NARROW INT64_MAX /* a is not copied, which never gained here */
#elif VEC == 8
#define ROWS 4
#define WIDTH 3 /* vectors; 12 of 16 registers hold sums */
#define KC 256
#else
#define ROWS 4
#define WIDTH 2
#endif
#ifndef KC
#define KC 192 /* a panel of KC rows fits the L1 cache */
#endif
#define PANEL (WIDTH * VEC)
_Static_assert(PANEL == DT_PANEL, "the panel that others count on");
#define MC 256               /* rows of a that stay in the L2 cache, KC columns of them */
#define PACKED_MAX (1 << 20) /* floats of packed b, roughly */
#define WIDE (42 * PANEL)    /* columns of b that are packed at least, where b has them */
#ifndef NARROW
#define NARROW (4 * PANEL) /* so few columns cost less than copying a */
#endif
#define FEW 8        /* so few rows cost less than packing all of b */
#define COLUMNS 1024 /* columns whose sums of few rows stay in the L1 cache */

/* Where and how a tile's sums are stored. */
struct finish {
    float *c;
    const float *bias; /* null: no bias */
    int64_t ldc;
    bool add;
    int cols; /* valid columns of the tile */
};

/* Sums rows x width vectors over kc. Element (i, l) of a is a[i * a_row + l * a_col]; b is packed,
 * PANEL floats per l. */
INLINE void tile(int rows, int width, int64_t kc, const float *a, int64_t a_row, int64_t a_col, const float *b,
                 const struct finish *f)
{
    vec sum[ROWS][WIDTH];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 3
        for (int j = 0; j < width; j++) {
            sum[i][j] = (vec){0};
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) { /* prefetch the lines of c, which the end of the loop needs */
#pragma GCC unroll 3
        for (int j = 0; j < width; j++) {
            __builtin_prefetch(f->c + i * f->ldc + j * VEC, 1);
        }
    }
#pragma GCC unroll 4
    for (int64_t l = 0; l < kc; l++) {
        vec y[WIDTH];
#pragma GCC unroll 3
        for (int j = 0; j < width; j++) {
            y[j] = vec_load(b + l * PANEL + j * VEC);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vec x = vec_all(a[i * a_row + l * a_col]);
#pragma GCC unroll 3
            for (int j = 0; j < width; j++) {
                sum[i][j] = vec_fma(x, y[j], sum[i][j]);
            }
        }
    }
    if (f->cols == width * VEC) {
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
#pragma GCC unroll 3
            for (int j = 0; j < width; j++) {
                float *c = f->c + i * f->ldc + j * VEC;
                vec v = sum[i][j];
                v = f->bias != NULL ? v + vec_load(f->bias + j * VEC) : v;
                v = f->add ? v + vec_load(c) : v;
                vec_store(c, v);
            }
        }
        return;
    }
    float last[WIDTH * VEC] = {0};
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 3
        for (int j = 0; j < width; j++) {
            vec_store(last + j * VEC, sum[i][j]);
        }
        float *c = f->c + i * f->ldc;
        for (int j = 0; j < f->cols; j++) {
            float v = last[j];
            v = f->bias != NULL ? v + f->bias[j] : v;
            c[j] = f->add ? v + c[j] : v;
        }
    }
}

#define TILE(rows, width)                                                                                              \
    static __attribute__((noinline)) void tile_##rows##_##width(int64_t kc, const float *a, int64_t a_row,             \
                                                                const float *b, const struct finish *f)                \
    {                                                                                                                  \
        tile(rows, width, kc, a, a_row, 1, b, f);                                                                      \
    }                                                                                                                  \
    static __attribute__((noinline)) void tile_packed_##rows##_##width(int64_t kc, const float *a, int64_t a_row,      \
                                                                       const float *b, const struct finish *f)         \
    {                                                                                                                  \
        (void)a_row;                                                                                                   \
        tile(rows, width, kc, a, 1, ROWS, b, f);                                                                       \
    }
#define TILES(width) TILE(1, width) TILE(2, width) TILE(4, width)
TILES(1)
TILES(2)
#if WIDTH == 3
TILES(3)
#endif
#if ROWS == 8
TILE(8, 1)
TILE(8, 2)
TILE(8, 3)
#endif

typedef void tile_fn(int64_t kc, const float *a, int64_t a_row, const float *b, const struct finish *f);

/* [packed][width - 1][log2 rows] */
static tile_fn *const tiles[2][3][4] = {
    {
        {tile_1_1, tile_2_1, tile_4_1,
#if ROWS == 8
         tile_8_1
#endif
        },
        {tile_1_2, tile_2_2, tile_4_2,
#if ROWS == 8
         tile_8_2
#endif
        },
#if WIDTH == 3
        {tile_1_3, tile_2_3, tile_4_3,
#if ROWS == 8
         tile_8_3
#endif
        },
#endif
    },
    {
        {tile_packed_1_1, tile_packed_2_1, tile_packed_4_1,
#if ROWS == 8
         tile_packed_8_1
#endif
        },
        {tile_packed_1_2, tile_packed_2_2, tile_packed_4_2,
#if ROWS == 8
         tile_packed_8_2
#endif
        },
#if WIDTH == 3
        {tile_packed_1_3, tile_packed_2_3, tile_packed_4_3,
#if ROWS == 8
         tile_packed_8_3
#endif
        },
#endif
    },
};

/* Packs columns [0, n) of b's rows [0, kc) as panels. The last panel is padded with zeros. */
static void pack_b(float *to, const float *b, int64_t row, int64_t col, int64_t n, int64_t kc)
{
    for (int64_t j = 0; j < n; j += PANEL, to += PANEL * kc) {
        int64_t cols = min64(PANEL, n - j);
        if (col != 1) {
            if (cols < PANEL) {
                memset(to, 0, (size_t)(PANEL * kc) * sizeof(float));
            }
            dt_transpose(to, PANEL, b + j * col, col, cols, kc);
            continue;
        }
        for (int64_t l = 0; l < kc; l++) {
#pragma GCC unroll 3
            for (int64_t v = 0; v < PANEL; v += VEC) {
                vec_store(to + l * PANEL + v, v < cols ? vec_load_n(b + l * row + j + v, cols - v) : (vec){0});
            }
        }
    }
}

/* Packs rows [0, m) of a when its columns are contiguous (a_row is 1): groups of ROWS rows, kc
 * steps each. Goes through all groups for every few steps, so that a cache line of a is read once. */
static void pack_a(float *to, const float *a, int64_t col, int64_t m, int64_t kc)
{
    enum { STEPS = 4 };
    for (int64_t l = 0; l < kc; l += STEPS) {
        int64_t steps = min64(STEPS, kc - l), i = 0;
        for (; i + ROWS <= m && steps == STEPS; i += ROWS) {
            const float *from = a + l * col + i;
            float *group = to + i * kc + l * ROWS;
#pragma GCC unroll 4
            for (int64_t o = 0; o < STEPS; o++) {
                memcpy(group + o * ROWS, from + o * col, ROWS * sizeof(float));
                __builtin_prefetch(from + (o + STEPS) * col);
            }
        }
        for (; i < m; i += ROWS) {
            for (int64_t o = l; o < l + steps; o++) {
                memcpy(to + i * kc + o * ROWS, a + o * col + i, (size_t)min64(ROWS, m - i) * sizeof(float));
            }
        }
    }
}

/* Copies rows [0, m) of a, whose columns are contiguous, to rows of kc. */
static void copy_a(float *to, const float *a, int64_t row, int64_t m, int64_t kc)
{
    for (int64_t i = 0; i < m; i++) {
        memcpy(to + i * kc, a + i * row, (size_t)kc * sizeof(float));
    }
}

/* One block of c: m rows of one panel. a is packed or in place. */
static void panel_rows(bool packed, int64_t m, int width, int64_t kc, const float *a, int64_t a_row, const float *b,
                       struct finish f)
{
    int64_t i = 0;
    for (int log = ROWS == 8 ? 3 : 2; log >= 0; log--) {
        int64_t rows = (int64_t)1 << log;
        tile_fn *fn = tiles[packed][width - 1][log];
        for (; i + rows <= m; i += rows) {
            const float *from = packed ? a + i / ROWS * ROWS * kc + i % ROWS : a + i * a_row;
            fn(kc, from, a_row, b, &f);
            f.c += rows * f.ldc;
        }
    }
}

/* A block of a: kc columns from l on of mc rows from i on, where and how it lies. */
struct block {
    int64_t i, mc, l, kc;
    bool packed;
    const float *a;
    int64_t a_row;
};

/* The block, packed if a is transposed, otherwise copied to `room` (MC + ROWS rows of kc), or in place. */
static struct block block_of(const struct dt_gemm *g, int64_t i, int64_t l, int64_t kc, bool copies, float *room)
{
    struct block x = {.i = i, .mc = min64(MC, g->m - i), .l = l, .kc = kc, .packed = g->a_col != 1};
    x.a = g->a + i * g->a_row + l * g->a_col;
    x.a_row = g->a_row;
    if (x.packed) {
        pack_a(room, x.a, g->a_col, x.mc, kc);
        x.a = room;
    } else if (copies) {
        copy_a(room, x.a, g->a_row, x.mc, kc);
        x.a = room;
        x.a_row = kc;
    }
    return x;
}

/* The block's rows of c, up to PANEL columns from j on: adds a's block times a packed panel of b. */
static void block_panel(const struct dt_gemm *g, const struct block *x, int64_t j, const float *panel)
{
    int64_t cols = min64(PANEL, g->n - j);
    struct finish f = {
        .c = g->c + x->i * g->ldc + j, .ldc = g->ldc, .cols = (int)cols, .add = g->accumulate || x->l > 0};
    f.bias = g->bias != NULL && x->l == 0 ? g->bias + j : NULL;
    panel_rows(x->packed, x->mc, (int)((cols + VEC - 1) / VEC), x->kc, x->a, x->a_row, panel, f);
}

/* Cuts k evenly, so that the last block is not much shorter than the others. */
static int64_t block_of_k(int64_t k)
{
    int64_t count = parts_of(k, KC);
    return count > 0 ? (parts_of(k, count) + 3) / 4 * 4 : 4;
}

/* Sums of `rows` rows of x over `steps` rows of b, added to those in `sums`, for n columns. */
INLINE void add_steps(int rows, int steps, int64_t n, const float *x, int64_t x_row, const float *b, int64_t b_row,
                      float *sums)
{
    vec xs[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int l = 0; l < steps; l++) {
            xs[i][l] = vec_all(x[i * x_row + l]);
        }
    }
    for (int64_t j = 0; j < n; j += VEC) {
        vec sum[4];
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            sum[i] = vec_load(sums + i * COLUMNS + j);
        }
#pragma GCC unroll 4
        for (int l = 0; l < steps; l++) {
            vec y = vec_load_n(b + l * b_row + j, n - j);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) {
                sum[i] = vec_fma(xs[i][l], y, sum[i]);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            vec_store(sums + i * COLUMNS + j, sum[i]);
        }
    }
}

/* Stores the sums of n columns from j on over a block of k that begins at l. */
static void few_finish(const struct dt_gemm *g, int64_t l, int64_t j, int64_t n, const float *sums, int64_t sums_row)
{
    const float *bias = g->bias != NULL && l == 0 ? g->bias + j : NULL;
    bool add = g->accumulate || l > 0;
    for (int64_t i = 0; i < g->m; i++, sums += sums_row) {
        float *c = g->c + i * g->ldc + j;
        for (int64_t o = 0; o < n; o++) {
            float v = bias != NULL ? sums[o] + bias[o] : sums[o];
            c[o] = add ? v + c[o] : v;
        }
    }
}

/* A block of kc rows of b, whose columns are contiguous: they are read in the order of memory, and the
 * sums wait in the L1 cache. */
static void few_straight(const struct dt_gemm *g, int64_t l0, int64_t kc, const float *x, float *sums)
{
    for (int64_t j = 0; j < g->n; j += COLUMNS) {
        int64_t n = min64(COLUMNS, g->n - j);
        memset(sums, 0, (size_t)(g->m * COLUMNS) * sizeof(float));
        int64_t l = 0;
        for (; l + 4 <= kc; l += 4) {
            const float *b = g->b + (l0 + l) * g->b_row + j;
            int64_t i = 0;
            for (; i + 2 <= g->m; i += 2) {
                add_steps(2, 4, n, x + i * kc + l, kc, b, g->b_row, sums + i * COLUMNS);
            }
            if (i < g->m) {
                add_steps(1, 4, n, x + i * kc + l, kc, b, g->b_row, sums + i * COLUMNS);
            }
        }
        for (; l < kc; l++) {
            for (int64_t i = 0; i < g->m; i++) {
                add_steps(1, 1, n, x + i * kc + l, kc, g->b + (l0 + l) * g->b_row + j, g->b_row, sums + i * COLUMNS);
            }
        }
        few_finish(g, l0, j, n, sums, COLUMNS);
    }
}

/* Exchanges lanes of two vectors, so that VEC vectors are transposed after exchanges of 1, 2, 4, ... */
#define LOW(p, d) (((p) & (d)) != 0 ? VEC + (p) - (d) : (p))
#define HIGH(p, d) (((p) & (d)) != 0 ? VEC + (p) : (p) + (d))
#define LANES4(f, p, d) f(p, d), f(p + 1, d), f(p + 2, d), f(p + 3, d)
#if VEC == 16
#define LANES(f, d) LANES4(f, 0, d), LANES4(f, 4, d), LANES4(f, 8, d), LANES4(f, 12, d)
#elif VEC == 8
#define LANES(f, d) LANES4(f, 0, d), LANES4(f, 4, d)
#else
#define LANES(f, d) LANES4(f, 0, d)
#endif
#define EXCHANGE(d)                                                                                                    \
    for (int i = 0; i < VEC; i++) {                                                                                    \
        if ((i & (d)) == 0) {                                                                                          \
            vec a = y[i], b = y[i + (d)];                                                                              \
            y[i] = __builtin_shuffle(a, b, (ivec){LANES(LOW, d)});                                                     \
            y[i + (d)] = __builtin_shuffle(a, b, (ivec){LANES(HIGH, d)});                                              \
        }                                                                                                              \
    }

INLINE void transpose_vectors(vec y[VEC])
{
#pragma GCC unroll 16
    EXCHANGE(1)
#pragma GCC unroll 16
    EXCHANGE(2)
#if VEC >= 8
#pragma GCC unroll 16
    EXCHANGE(4)
#endif
#if VEC >= 16
#pragma GCC unroll 16
    EXCHANGE(8)
#endif
}

/* VEC columns of b, each contiguous in memory: column o begins at from[o]; x has kc elements per row. The
 * columns at `soon` are fetched into the cache. */
INLINE void few_columns(int rows, int64_t kc, const float *x, const float *const from[VEC], int64_t soon, float *sums)
{
    vec sum[4];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        sum[i] = (vec){0};
    }
    int64_t l = 0;
    for (; l + VEC <= kc; l += VEC) {
        vec y[VEC];
#pragma GCC unroll 16
        for (int o = 0; o < VEC; o++) {
            y[o] = vec_load(from[o] + l);
            if (soon != 0 && (VEC == 16 || l % 16 == 0)) {
                __builtin_prefetch(from[o] + soon + l, 0, 2);
            }
        }
        transpose_vectors(y);
#pragma GCC unroll 16
        for (int o = 0; o < VEC; o++) {
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) {
                sum[i] = vec_fma(vec_all(x[i * kc + l + o]), y[o], sum[i]);
            }
        }
    }
    for (; l < kc; l++) {
        float y[VEC];
        for (int o = 0; o < VEC; o++) {
            y[o] = from[o][l];
        }
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            sum[i] = vec_fma(vec_all(x[i * kc + l]), vec_load(y), sum[i]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        vec_store(sums + i * VEC, sum[i]);
    }
}

/* The product with a transposed b for few rows. */
static void few_transposed(const struct dt_gemm *g, int64_t step, const float *x)
{
    float sums[FEW * VEC];
    for (int64_t j = 0; j < g->n; j += VEC) {
        int64_t n = min64(VEC, g->n - j), soon = j + 2 * VEC <= g->n ? VEC * g->b_col : 0;
        for (int64_t l = 0; l < g->k; l += step) {
            int64_t kc = min64(step, g->k - l), i = 0;
            const float *from[VEC], *rows = x + l * g->m;
            for (int o = 0; o < VEC; o++) { /* columns beyond the last are the last once more */
                from[o] = g->b + (j + min64(o, n - 1)) * g->b_col + l;
            }
            for (; i + 4 <= g->m; i += 4) {
                few_columns(4, kc, rows + i * kc, from, soon, sums + i * VEC);
            }
            for (; i + 2 <= g->m; i += 2) {
                few_columns(2, kc, rows + i * kc, from, soon, sums + i * VEC);
            }
            for (; i < g->m; i++) {
                few_columns(1, kc, rows + i * kc, from, soon, sums + i * VEC);
            }
            few_finish(g, l, j, n, sums, VEC);
        }
    }
}

/* The product for few rows, as generating has them: b is read once and in order, since memory decides
 * how long it takes. */
static void few_rows(const struct dt_gemm *g)
{
    int64_t step = block_of_k(g->k);
    float *x = dt_cpu_work(DT_WORK_MATMUL, (size_t)(g->m * g->k + FEW * COLUMNS) * sizeof(float));
    for (int64_t l = 0; l < g->k; l += step) { /* a's rows, block by block of k */
        for (int64_t i = 0, kc = min64(step, g->k - l); i < g->m; i++) {
            for (int64_t o = 0; o < kc; o++) {
                x[l * g->m + i * kc + o] = g->a[i * g->a_row + (l + o) * g->a_col];
            }
        }
    }
    if (g->b_col != 1) {
        few_transposed(g, step, x);
        return;
    }
    for (int64_t l = 0; l < g->k; l += step) {
        few_straight(g, l, min64(step, g->k - l), x + l * g->m, x + g->m * g->k);
    }
}

void ISA_BASE(dt_gemm)(const struct dt_gemm *g)
{
    if (g->m <= FEW) {
        few_rows(g);
        return;
    }
    int64_t step = block_of_k(g->k), depth = parts_of(g->k, step) * step, columns = parts_of(g->n, PANEL) * PANEL;
    bool once = g->m <= MC; /* one block of rows: a packed panel is used once */
    if (!once) {            /* columns and rows of b that are packed at a time */
        int64_t fit = g->k > 0 ? PACKED_MAX / g->k : columns;
        columns = min64(columns, (fit > WIDE ? fit : WIDE) / PANEL * PANEL);
        fit = PACKED_MAX / columns / step;
        depth = min64(depth, (fit > 1 ? fit : 1) * step);
    }
    float *room = dt_cpu_work(DT_WORK_MATMUL,
                              (size_t)(step * (MC + ROWS) + (once ? PANEL * step : columns * depth)) * sizeof(float));
    float *packed = room + step * (MC + ROWS);
    for (int64_t j0 = 0; j0 < g->n; j0 += columns) {
        int64_t j1 = min64(g->n, j0 + columns);
        for (int64_t l0 = 0; l0 < g->k; l0 += depth) {
            for (int64_t i = 0; i < g->m; i += MC) {
                for (int64_t l = l0; l < min64(g->k, l0 + depth); l += step) {
                    struct block x = block_of(g, i, l, min64(step, g->k - l), j1 - j0 > NARROW, room);
                    for (int64_t j = j0; j < j1; j += PANEL) {
                        float *panel = once ? packed : packed + (l - l0) * columns + (j - j0) * x.kc;
                        if (i == 0) {
                            pack_b(panel, g->b + l * g->b_row + j * g->b_col, g->b_row, g->b_col, min64(PANEL, j1 - j),
                                   x.kc);
                        }
                        block_panel(g, &x, j, panel);
                    }
                }
            }
        }
    }
}

void ISA_BASE(dt_gemm_pack)(float *to, const float *b, int64_t row, int64_t col, int64_t n, int64_t k)
{
    pack_b(to, b, row, col, n, k);
}

void ISA_BASE(dt_gemm_packed)(const struct dt_gemm *g, const float *packed, int64_t stride)
{
    float *room = g->a_col != 1 ? dt_cpu_work(DT_WORK_MATMUL, (size_t)(g->k * (MC + ROWS)) * sizeof(float)) : NULL;
    for (int64_t i = 0; i < g->m; i += MC) {
        struct block x = block_of(g, i, 0, g->k, false, room);
        for (int64_t j = 0; j < g->n; j += PANEL) {
            block_panel(g, &x, j, packed + j * stride);
        }
    }
}

/* The row `matmul`. The product above is about as fast as oneDNN's (docs/benchmarks.md), faster where `a` is
 * transposed, and an element's bits do not depend on how many rows a slice has. */
void ISA(dt_matmul)(struct dt_stream *s, const struct dt_matmul_args *a)
{
#if VEC >= 8
    static const struct dt_gemm_engine engine = {ISA_BASE(dt_gemm), dt_gemm_bf16_faster};
#else
    static const struct dt_gemm_engine engine = {ISA_BASE(dt_gemm), dt_gemm_half_floats};
#endif
    dt_matmul_by(s, a, &engine);
}
