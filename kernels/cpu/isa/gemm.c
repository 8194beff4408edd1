/* Products of matrices in one thread, F32, and with DT_DOTS of BF16 by the CPU's dot products of pairs. B is
 * packed into panels of PANEL columns and KC rows. A tile of ROWS x PANEL sums stays in registers while it walks
 * down a panel. A step of it is one row of F32, or a pair of rows of BF16, which are one word of 32 bits. A block
 * of MC rows and KC columns of A is packed if it is transposed, and read in place or copied otherwise. Each element is
 * summed over l in order within blocks of KC, and over the blocks in order, so its bits do not depend on how m and
 * n are cut. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/isa/transpose.h"

#define WORD 4 /* bytes of a step */
#ifdef DT_DOTS
#define PAIR 2 /* elements of a step */
#define GEMM(name) name##_dots
typedef uint16_t element;
typedef struct dt_gemm_half gemm;
#else
#define PAIR 1
#define GEMM(name) ISA_BASE(name)
typedef float element;
typedef struct dt_gemm gemm;
#endif

#if VEC == 16
#define ROWS 8
#define WIDTH 3          /* vectors; 24 of 32 registers hold sums */
#define KC (384 * PAIR)  /* a panel comes from the L2 cache, which costs less than adding to c more often */
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

/* Where and how a tile's sums are stored. */
struct finish {
    float *c;
    const element *bias; /* null: no bias */
    int64_t ldc;
    bool add;
    int cols; /* valid columns of the tile */
#ifdef DT_DOTS
    uint16_t *low; /* null, or where the sums go after c was added */
    int64_t low_row;
    bool low_add;
#endif
};

/* Stores a vector of sums, of which n are valid, in row i from column j on. */
INLINE void keep(const struct finish *f, int64_t i, int64_t j, vec v, int64_t n)
{
    int64_t at = i * f->ldc + j;
#ifdef DT_DOTS
    v = f->bias != NULL ? v + vec_load_half_n(f->bias + j, n) : v;
    v = f->add ? v + vec_load_n(f->c + at, n) : v;
    if (f->low != NULL) {
        uint16_t *low = f->low + i * f->low_row + j;
        vec_store_half_n(low, f->low_add ? v + vec_load_half_n(low, n) : v, n);
        return;
    }
#else
    v = f->bias != NULL ? v + vec_load_n(f->bias + j, n) : v;
    v = f->add ? v + vec_load_n(f->c + at, n) : v;
#endif
    vec_store_n(f->c + at, v, n);
}

/* A word in every lane. */
INLINE vec word_at(const char *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return (vec)(word - (ivec){0});
}

INLINE vec add_step(vec x, vec y, vec sum)
{
#ifdef DT_DOTS
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y);
#else
    return vec_fma(x, y, sum);
#endif
}

/* Sums rows x width vectors over `steps`. The word of row i and step l of a is at byte i * a_row + l * a_step; b is
 * packed, PANEL words per step. */
INLINE void tile(int rows, int width, int64_t steps, const void *a, int64_t a_row, int64_t a_step, const float *b,
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
#ifdef DT_DOTS
            if (f->low != NULL) {
                __builtin_prefetch(f->low + i * f->low_row + j * VEC, 1);
                continue;
            }
#endif
            __builtin_prefetch(f->c + i * f->ldc + j * VEC, 1);
        }
    }
#pragma GCC unroll 4
    for (int64_t l = 0; l < steps; l++) {
        vec y[WIDTH];
#pragma GCC unroll 3
        for (int j = 0; j < width; j++) {
            y[j] = vec_load(b + l * PANEL + j * VEC);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vec x = word_at((const char *)a + i * a_row + l * a_step);
#pragma GCC unroll 3
            for (int j = 0; j < width; j++) {
                sum[i][j] = add_step(x, y[j], sum[i][j]);
            }
        }
    }
    if (f->cols == width * VEC) {
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
#pragma GCC unroll 3
            for (int j = 0; j < width; j++) {
                keep(f, i, j * VEC, sum[i][j], VEC);
            }
        }
        return;
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 3
        for (int j = 0; j < width; j++) {
            keep(f, i, j * VEC, sum[i][j], f->cols - j * VEC);
        }
    }
}

#define TILE(rows, width)                                                                                              \
    static __attribute__((noinline)) void tile_##rows##_##width(int64_t steps, const void *a, int64_t a_row,           \
                                                                const float *b, const struct finish *f)                \
    {                                                                                                                  \
        tile(rows, width, steps, a, a_row, WORD, b, f);                                                                \
    }                                                                                                                  \
    static __attribute__((noinline)) void tile_grouped_##rows##_##width(int64_t steps, const void *a, int64_t a_row,   \
                                                                        const float *b, const struct finish *f)        \
    {                                                                                                                  \
        (void)a_row;                                                                                                   \
        tile(rows, width, steps, a, WORD, ROWS *WORD, b, f);                                                           \
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

typedef void tile_fn(int64_t steps, const void *a, int64_t a_row, const float *b, const struct finish *f);

/* [grouped][width - 1][log2 rows] */
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
        {tile_grouped_1_1, tile_grouped_2_1, tile_grouped_4_1,
#if ROWS == 8
         tile_grouped_8_1
#endif
        },
        {tile_grouped_1_2, tile_grouped_2_2, tile_grouped_4_2,
#if ROWS == 8
         tile_grouped_8_2
#endif
        },
#if WIDTH == 3
        {tile_grouped_1_3, tile_grouped_2_3, tile_grouped_4_3,
#if ROWS == 8
         tile_grouped_8_3
#endif
        },
#endif
    },
};

/* Steps of k elements; a last pair may lack its second one, which is 0 where it is packed. */
static int64_t steps_of(int64_t k)
{
    return (k + PAIR - 1) / PAIR;
}

#ifdef DT_DOTS
/* Words of n elements each of two rows; `second`: null, zeros. */
INLINE vec pairs(const uint16_t *first, const uint16_t *second, int64_t n)
{
    uvec low = (uvec)vec_load_half_n(first, n) >> 16;
    return (vec)(second != NULL ? low | (uvec)vec_load_half_n(second, n) : low);
}

/* Step l of columns of b, whose rows are contiguous. */
INLINE vec step_of_b(const uint16_t *b, int64_t row, int64_t l, int64_t kc, int64_t n)
{
    const uint16_t *first = b + 2 * l * row;
    return pairs(first, 2 * l + 1 < kc ? first + row : NULL, n);
}

/* Step l of a column of b whose elements are contiguous. */
INLINE float word_of_b(const uint16_t *column, int64_t l, int64_t kc)
{
    uint16_t pair[2] = {column[2 * l], 2 * l + 1 < kc ? column[2 * l + 1] : 0};
    float word;
    memcpy(&word, pair, sizeof word);
    return word;
}

/* ROWS words of step l of a, whose rows are contiguous. */
INLINE void step_of_a(float *to, const uint16_t *a, int64_t col, int64_t l, int64_t kc, int64_t m)
{
    const uint16_t *first = a + 2 * l * col;
    vec_store_n(to, pairs(first, 2 * l + 1 < kc ? first + col : NULL, min64(m, ROWS)), ROWS);
}
#else
INLINE vec step_of_b(const float *b, int64_t row, int64_t l, int64_t kc, int64_t n)
{
    (void)kc;
    return vec_load_n(b + l * row, n);
}

INLINE float word_of_b(const float *column, int64_t l, int64_t kc)
{
    (void)kc;
    return column[l];
}

INLINE void step_of_a(float *to, const float *a, int64_t col, int64_t l, int64_t kc, int64_t m)
{
    (void)kc;
    memcpy(to, a + l * col, (size_t)min64(m, ROWS) * sizeof(float));
}
#endif

/* Packs a panel of b, whose columns are contiguous. */
static void turn_b(float *to, const element *b, int64_t col, int64_t cols, int64_t kc)
{
    int64_t whole = kc / PAIR / VEC * VEC, j = 0;
    for (; j + VEC <= cols; j += VEC) {
        for (int64_t l = 0; l < whole; l += VEC) {
            vec y[VEC];
#pragma GCC unroll 16
            for (int o = 0; o < VEC; o++) {
                memcpy(&y[o], b + (j + o) * col + l * PAIR, sizeof y[o]);
            }
            transpose_vectors(y);
#pragma GCC unroll 16
            for (int o = 0; o < VEC; o++) {
                vec_store(to + (l + o) * PANEL + j, y[o]);
            }
        }
        for (int64_t l = whole; l < steps_of(kc); l++) {
            for (int64_t o = j; o < j + VEC; o++) {
                to[l * PANEL + o] = word_of_b(b + o * col, l, kc);
            }
        }
    }
    for (; j < cols; j++) {
        for (int64_t l = 0; l < steps_of(kc); l++) {
            to[l * PANEL + j] = word_of_b(b + j * col, l, kc);
        }
    }
}

/* Packs columns [0, n) of b's rows [0, kc) as panels. The last panel is padded with zeros. */
static void pack_b(float *to, const element *b, int64_t row, int64_t col, int64_t n, int64_t kc)
{
    int64_t steps = steps_of(kc);
    for (int64_t j = 0; j < n; j += PANEL, to += PANEL * steps) {
        int64_t cols = min64(PANEL, n - j);
        if (col != 1) {
            if (cols < PANEL) {
                memset(to, 0, (size_t)(PANEL * steps) * sizeof(float));
            }
            turn_b(to, b + j * col, col, cols, kc);
            continue;
        }
        for (int64_t l = 0; l < steps; l++) {
#pragma GCC unroll 3
            for (int64_t v = 0; v < PANEL; v += VEC) {
                vec_store(to + l * PANEL + v, v < cols ? step_of_b(b + j + v, row, l, kc, cols - v) : (vec){0});
            }
        }
    }
}

/* Packs rows [0, m) of a when its columns are contiguous (a_row is 1): groups of ROWS rows, all steps
 * each. Goes through all groups for every few steps, so that a cache line of a is read once. */
static void pack_a(float *to, const element *a, int64_t col, int64_t m, int64_t kc)
{
    enum { STEPS = 4 };
    int64_t steps = steps_of(kc);
    for (int64_t l = 0; l < steps; l += STEPS) {
        int64_t end = min64(l + STEPS, steps), i = 0;
        for (; i + ROWS <= m && end == l + STEPS; i += ROWS) {
#pragma GCC unroll 4
            for (int64_t o = l; o < l + STEPS; o++) {
                step_of_a(to + i * steps + o * ROWS, a + i, col, o, kc, ROWS);
                __builtin_prefetch(a + (o + STEPS) * PAIR * col + i);
            }
        }
        for (; i < m; i += ROWS) {
            for (int64_t o = l; o < end; o++) {
                step_of_a(to + i * steps + o * ROWS, a + i, col, o, kc, m - i);
            }
        }
    }
}

/* Copies rows [0, m) of a, whose columns are contiguous, to rows of whole steps. */
static void copy_a(float *to, const element *a, int64_t row, int64_t m, int64_t kc)
{
    int64_t steps = steps_of(kc);
    for (int64_t i = 0; i < m; i++) {
        to[(i + 1) * steps - 1] = 0;
        memcpy(to + i * steps, a + i * row, (size_t)kc * sizeof *a);
    }
}

/* A block of a: kc columns from l on of mc rows from i on, where and how it lies: `grouped` means groups of ROWS
 * rows, all steps of each, otherwise rows of a_row bytes. */
struct block {
    int64_t i, mc, l, kc;
    bool grouped;
    const char *a;
    int64_t a_row;
};

/* Row i of a block, which begins a tile. */
static const char *row_of_block(const struct block *x, int64_t i)
{
    return x->a + (x->grouped ? (i / ROWS * ROWS * steps_of(x->kc) + i % ROWS) * WORD : i * x->a_row);
}

/* The block's rows of one panel of c. */
static void panel_rows(const struct block *x, int width, const float *b, struct finish f)
{
    int64_t i = 0;
    for (int log = ROWS == 8 ? 3 : 2; log >= 0; log--) {
        int64_t rows = (int64_t)1 << log;
        tile_fn *fn = tiles[x->grouped][width - 1][log];
        for (; i + rows <= x->mc; i += rows) {
            fn(steps_of(x->kc), row_of_block(x, i), x->a_row, b, &f);
            f.c = f.c != NULL ? f.c + rows * f.ldc : NULL;
#ifdef DT_DOTS
            f.low = f.low != NULL ? f.low + rows * f.low_row : NULL;
#endif
        }
    }
}

/* The block, packed if a is transposed, otherwise copied to `room` (MC + ROWS rows of steps), or in place. */
static struct block block_of(const gemm *g, int64_t i, int64_t l, int64_t kc, bool copies, float *room)
{
    const element *a = g->a + i * g->a_row + l * g->a_col;
    struct block x = {.i = i, .mc = min64(MC, g->m - i), .l = l, .kc = kc, .a = (const char *)a};
    x.a_row = g->a_row * (int64_t)sizeof *a;
    if (g->a_col != 1) {
        pack_a(room, a, g->a_col, x.mc, kc);
        x.grouped = true;
        x.a = (const char *)room;
    } else if (copies || kc % PAIR != 0) {
        copy_a(room, a, g->a_row, x.mc, kc);
        x.a = (const char *)room;
        x.a_row = steps_of(kc) * WORD;
    }
    return x;
}

/* Where sums of a block go. `sums`: memory for those of a c of BF16 that wait for the last block of k, in rows of
 * sums_row; null: there is one block. */
static struct finish finish_of(const gemm *g, const struct block *x, int64_t j, float *sums, int64_t sums_row)
{
    struct finish f = {.add = g->accumulate || x->l > 0};
    f.bias = g->bias != NULL && x->l == 0 ? g->bias + j : NULL;
#ifdef DT_DOTS
    if (!g->c_is_f32) {
        f.c = sums;
        f.ldc = sums_row;
        f.add = x->l > 0;
        f.low = x->l + x->kc == g->k ? (uint16_t *)g->c + x->i * g->ldc + j : NULL;
        f.low_row = g->ldc;
        f.low_add = g->accumulate;
        return f;
    }
#endif
    (void)sums;
    (void)sums_row;
    f.c = (float *)g->c + x->i * g->ldc + j;
    f.ldc = g->ldc;
    return f;
}

/* The block's rows of c, up to PANEL columns from j on: adds a's block times a packed panel of b. */
static void block_panel(const gemm *g, const struct block *x, int64_t j, const float *panel, float *sums,
                        int64_t sums_row)
{
    struct finish f = finish_of(g, x, j, sums, sums_row);
    f.cols = (int)min64(PANEL, g->n - j);
    panel_rows(x, (f.cols + VEC - 1) / VEC, panel, f);
}

/* Cuts k evenly, so that the last block is not much shorter than the others. */
static int64_t block_of_k(int64_t k)
{
    int64_t count = parts_of(k, KC);
    return count > 0 ? (parts_of(k, count) + 3) / 4 * 4 : 4;
}

void GEMM(dt_gemm)(const gemm *g)
{
    bool low = false; /* sums of several blocks of k wait for their last one */
#ifdef DT_DOTS
    low = !g->c_is_f32 && g->k > block_of_k(g->k);
#else
    if (g->m <= DT_FEW_ROWS) {
        ISA_BASE(dt_gemm_few)(g, block_of_k(g->k));
        return;
    }
#endif
    int64_t step = block_of_k(g->k), depth = parts_of(g->k, step) * step, columns = parts_of(g->n, PANEL) * PANEL;
    bool once = g->m <= MC; /* one block of rows: a packed panel is used once */
    if (!once || low) {     /* columns and rows of b that are packed at a time */
        int64_t fit = g->k > 0 ? PACKED_MAX / steps_of(g->k) : columns;
        columns = min64(columns, (fit > WIDE ? fit : WIDE) / PANEL * PANEL);
        fit = PACKED_MAX / columns / steps_of(step);
        depth = min64(depth, (fit > 1 ? fit : 1) * step);
    }
    int64_t for_b = once ? PANEL * steps_of(step) : columns * steps_of(depth), for_a = steps_of(step) * (MC + ROWS);
    float *room = dt_cpu_work(DT_WORK_MATMUL, (size_t)(for_a + for_b + (low ? g->m * columns : 0)) * sizeof(float));
    float *packed = room + for_a, *sums = packed + for_b;
    for (int64_t j0 = 0; j0 < g->n; j0 += columns) {
        int64_t j1 = min64(g->n, j0 + columns);
        for (int64_t l0 = 0; l0 < g->k; l0 += depth) {
            for (int64_t i = 0; i < g->m; i += MC) {
                for (int64_t l = l0; l < min64(g->k, l0 + depth); l += step) {
                    struct block x = block_of(g, i, l, min64(step, g->k - l), j1 - j0 > NARROW, room);
                    for (int64_t j = j0; j < j1; j += PANEL) {
                        float *panel = once ? packed : packed + (l - l0) / PAIR * columns + (j - j0) * steps_of(x.kc);
                        if (i == 0) {
                            pack_b(panel, g->b + l * g->b_row + j * g->b_col, g->b_row, g->b_col, min64(PANEL, j1 - j),
                                   x.kc);
                        }
                        block_panel(g, &x, j, panel, low ? sums + i * columns + j - j0 : NULL, columns);
                    }
                }
            }
        }
    }
}

void GEMM(dt_gemm_pack)(float *to, const element *b, int64_t row, int64_t col, int64_t n, int64_t k)
{
    pack_b(to, b, row, col, n, k);
}

void GEMM(dt_gemm_packed)(const gemm *g, const float *packed, int64_t stride)
{
    bool grouped = PAIR == 2 && g->a_col != 1; /* dt_round_pairs_dots has packed it */
    bool moves = !grouped && (g->a_col != 1 || g->k % PAIR != 0);
    int64_t size = moves ? steps_of(g->k) * (min64(MC, g->m) + ROWS) : 0;
    float *room = size > 0 ? dt_cpu_work(DT_WORK_MATMUL, (size_t)size * sizeof(float)) : NULL;
    for (int64_t i = 0; i < g->m; i += MC) {
        struct block x;
        if (grouped) {
            x = (struct block){.i = i, .mc = min64(MC, g->m - i), .kc = g->k, .grouped = true};
            x.a = (const char *)g->a + i * steps_of(g->k) * WORD;
        } else {
            x = block_of(g, i, 0, g->k, false, room);
        }
        for (int64_t j = 0; j < g->n; j += PANEL) {
            block_panel(g, &x, j, packed + j * stride, NULL, 0);
        }
    }
}

#ifdef DT_DOTS
void dt_round_dots(void *to, const float *from, int64_t n)
{
    vec_keep(to, 0, from, n, DT_BF16);
}

float dt_round_row_dots(void *to, const float *from, int64_t n)
{
    vec sum = {0}, rounded_sum = {0};
    for (int64_t j = 0; j < n; j += VEC) {
        vec v = vec_load_n(from + j, n - j);
        hvec low = vec_to_bf16(v);
        sum += v;
        rounded_sum += vec_of_bf16(low);
        _mm256_mask_storeu_epi16((uint16_t *)to + j, (__mmask16)(n - j < VEC ? (1U << (n - j)) - 1 : 0xffff),
                                 (__m256i)low);
    }
    float all = vec_sum(rounded_sum);
    return all == 0.0F ? 1.0F : vec_sum(sum) / all;
}

/* Lanes of a and b in turns, rounded to BF16. */
INLINE __m512i rounded_pairs(vec a, vec b)
{
    __m512i low = _mm512_cvtepu16_epi32((__m256i)vec_to_bf16(a)), high = _mm512_cvtepu16_epi32((__m256i)vec_to_bf16(b));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

void dt_round_pairs_dots(void *to, const float *from, int64_t rows, int64_t n)
{
    int64_t steps = steps_of(rows);
    for (int64_t l = 0; l < steps; l++) {
        const float *a = from + 2 * l * n;
        for (int64_t j = 0; j < n; j += VEC) {
            vec second = 2 * l + 1 < rows ? vec_load_n(a + n + j, n - j) : (vec){0};
            __m512i pairs = rounded_pairs(vec_load_n(a + j, n - j), second);
            float *group = (float *)to + j * steps + l * ROWS;
            _mm256_storeu_si256((void *)group, _mm512_castsi512_si256(pairs));
            if (n - j > ROWS) {
                _mm256_storeu_si256((void *)(group + ROWS * steps), _mm512_extracti64x4_epi64(pairs, 1));
            }
        }
    }
}
#else
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
#endif
