/* Convolutions of 3 x 3 with stride 1 by Winograd's minimal filtering (Lavin and Gray, 2015): F(2 x 2, 3 x 3)
 * for F32, where a tile of 2 x 2 outputs takes 16 multiplications per pair of channels instead of 36, and
 * F(4 x 4, 3 x 3) for 16-bit types, where one of 4 x 4 takes 36 instead of 144. Its sums have factors of up to 8,
 * so its error in F32 is up to ten times as large: some 1e-6 of the results' root mean square, where rounding is
 * 2e-4 for F16 and 2e-3 for BF16. Gradients of weights have it too, also where they are kept in F32; they are sums
 * of products of 16-bit values. Tiles of side x side inputs, and the weights, become side x side values each by sums
 * and differences. One product of matrices per value follows, and sums make outputs of it:
 *
 *   y = A^T [(G w G^T) * (B^T x B)] A        dw = G^T [sum over tiles of (A dy A^T) * (B^T x B)] G
 *
 * dx is the same convolution of dy, by weights turned by half a turn. Everything in between is F32, and results
 * are rounded once. A tile's bits depend on the tile alone; dw is summed tile by tile, in order. */
#include "kernels/convolution.h"
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"

#include <string.h>

enum { SIDE_MOST = 6, TAPS = 9 };
#define CHUNK_PARTS 16 /* tiles of a part when a gradient's chunk is transformed, and least ones of a chunk */
#define K_BLOCK 256    /* channels of one product: a panel of weights fits the L1 cache */
#define O_BLOCK 128    /* rows of one product of a gradient */

/* A pass from images (B, height, width, in) to images (B, height, width, out), or to the gradient of
 * the weights between them. */
struct winograd {
    const void *from, *weights;
    void *to;
    const void *dy;  /* of the gradient */
    float *u;        /* a matrix for each value: weights as panels, or sums of a gradient */
    float *tiles_at; /* of a gradient: values of a chunk of tiles */
    int64_t height, width, tile_rows, tile_cols, tiles, in, out, chunk, first;
    bool accumulate;
    enum dt_dtype type, grad_type;
    int side, values; /* of a tile; functions that compute have the side as a constant */
};

static struct winograd winograd_of(const struct dt_windows *w, int64_t in, int64_t out, enum dt_dtype type, void *work)
{
    struct winograd x = {.height = w->height,
                         .width = w->width,
                         .in = in,
                         .out = out,
                         .u = work,
                         .type = type,
                         .side = dt_winograd_side(type)};
    x.values = x.side * x.side;
    x.tile_rows = parts_of(w->height, x.side - 2);
    x.tile_cols = parts_of(w->width, x.side - 2);
    x.tiles = w->batch * x.tile_rows * x.tile_cols;
    x.chunk = dt_winograd_chunk(in, out, x.side);
    return x;
}

/* Floats between the matrices of two values: the extra lines keep them apart in the cache. */
static int64_t apart(int64_t floats)
{
    return floats + DT_WINOGRAD_APART;
}

/* ---- where a tile is ---- */

struct tile {
    int64_t b, y, x; /* image, and its first output */
};

INLINE struct tile tile_of(const struct winograd *w, int64_t at)
{
    int64_t line = at / w->tile_cols;
    int64_t outputs = w->side - 2;
    return (struct tile){line / w->tile_rows, line % w->tile_rows * outputs, at % w->tile_cols * outputs};
}

/* The addresses of side x side pixels from (y, x) on; `zeros` outside of the image. */
INLINE void pixels_of(const char **to, const void *images, const struct winograd *w, int64_t b, int64_t y, int64_t x,
                      int side, int64_t channels, const void *zeros, size_t size)
{
    for (int64_t i = 0; i < side; i++) {
        for (int64_t j = 0; j < side; j++) {
            bool inside = y + i >= 0 && y + i < w->height && x + j >= 0 && x + j < w->width;
            int64_t at = ((b * w->height + y + i) * w->width + x + j) * channels;
            to[i * side + j] = inside ? (const char *)images + (size_t)at * size : zeros;
        }
    }
}

/* ---- sums of a line: of 4 values, from the points 0, 1, -1 and infinity; of 6, with 2 and -2 ---- */

/* Values at the points 1, -1, 2 and -2, whose even and odd powers have these sums. */
INLINE void at_points(vec *t, vec even, vec odd, vec even2, vec odd2)
{
    t[0] = even + odd;
    t[1] = even - odd;
    t[2] = even2 + odd2;
    t[3] = even2 - odd2;
}

/* B^T d */
INLINE void input_line(vec *t, const vec *d, int side)
{
    if (side == 4) {
        t[0] = d[0] - d[2];
        t[1] = d[1] + d[2];
        t[2] = d[2] - d[1];
        t[3] = d[1] - d[3];
    } else {
        vec even = d[4] - 4.0F * d[2], odd = d[3] - 4.0F * d[1], even2 = d[4] - d[2], odd2 = 2.0F * (d[3] - d[1]);
        t[0] = d[4] + (4.0F * d[0] - 5.0F * d[2]);
        at_points(t + 1, even, odd, even2, odd2);
        t[5] = d[5] + (4.0F * d[1] - 5.0F * d[3]);
    }
}

/* A d */
INLINE void gradient_line(vec *t, const vec *d, int side)
{
    if (side == 4) {
        t[0] = d[0];
        t[1] = d[0] + d[1];
        t[2] = d[0] - d[1];
        t[3] = -d[1];
    } else {
        vec even = d[0] + d[2], odd = d[1] + d[3], even2 = d[0] + 4.0F * d[2], odd2 = 2.0F * d[1] + 8.0F * d[3];
        t[0] = d[0];
        at_points(t + 1, even, odd, even2, odd2);
        t[5] = d[3];
    }
}

/* A^T m */
INLINE void output_line(vec *y, const vec *m, int side)
{
    if (side == 4) {
        y[0] = m[0] + m[1] + m[2];
        y[1] = m[1] - m[2] - m[3];
    } else {
        vec even = m[1] + m[2], odd = m[1] - m[2], even2 = m[3] + m[4], odd2 = m[3] - m[4];
        y[0] = m[0] + even + even2;
        y[1] = odd + 2.0F * odd2;
        y[2] = even + 4.0F * even2;
        y[3] = m[5] + (odd + 8.0F * odd2);
    }
}

/* G g */
INLINE void weights_line(vec *u, const vec *g, int side)
{
    if (side == 4) {
        u[0] = g[0];
        u[1] = 0.5F * (g[0] + g[1] + g[2]);
        u[2] = 0.5F * (g[0] - g[1] + g[2]);
        u[3] = g[2];
    } else {
        vec even = (-1.0F / 6) * (g[0] + g[2]), odd = (-1.0F / 6) * g[1];
        vec even2 = (1.0F / 24) * g[0] + (1.0F / 6) * g[2], odd2 = (1.0F / 12) * g[1];
        u[0] = 0.25F * g[0];
        at_points(u + 1, even, odd, even2, odd2);
        u[5] = g[2];
    }
}

/* G^T u */
INLINE void sums_line(vec *g, const vec *u, int side)
{
    if (side == 4) {
        vec half = 0.5F * (u[1] + u[2]);
        g[0] = u[0] + half;
        g[1] = 0.5F * (u[1] - u[2]);
        g[2] = half + u[3];
    } else {
        vec even = (-1.0F / 6) * (u[1] + u[2]), odd = (1.0F / 6) * (u[2] - u[1]);
        vec even2 = u[3] + u[4], odd2 = u[3] - u[4];
        g[0] = 0.25F * u[0] + even + (1.0F / 24) * even2;
        g[1] = odd + (1.0F / 12) * odd2;
        g[2] = u[5] + even + (1.0F / 6) * even2;
    }
}

/* to = L from L^T, for the L of `line`: from has n_from x n_from values, to n_to x n_to. Inlined, with constants. */
typedef void line_fn(vec *to, const vec *from, int side);
INLINE void both_ways(line_fn *line, vec (*to)[SIDE_MOST], vec (*from)[SIDE_MOST], int n_to, int n_from, int side)
{
    vec t[SIDE_MOST][SIDE_MOST];
#pragma GCC unroll 6
    for (int j = 0; j < n_from; j++) {
        vec column[SIDE_MOST], out[SIDE_MOST];
#pragma GCC unroll 6
        for (int i = 0; i < n_from; i++) {
            column[i] = from[i][j];
        }
        line(out, column, side);
#pragma GCC unroll 6
        for (int i = 0; i < n_to; i++) {
            t[i][j] = out[i];
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < n_to; i++) {
        line(to[i], t[i], side);
    }
}

/* Value p of side x side goes to to[p * step]. */
INLINE void store_values(float *to, int64_t step, vec (*from)[SIDE_MOST], int64_t n, int side)
{
#pragma GCC unroll 36
    for (int p = 0; p < side * side; p++) {
        vec_store_n(to + p * step, from[p / side][p % side], n);
    }
}

INLINE void load_values(vec (*to)[SIDE_MOST], const float *from, int64_t step, int64_t n, int side)
{
#pragma GCC unroll 36
    for (int p = 0; p < side * side; p++) {
        to[p / side][p % side] = vec_load_n(from + p * step, n);
    }
}

/* ---- values of a tile ---- */

/* Channels [c, c + n) of side x side pixels. */
INLINE void load_pixels(vec (*to)[SIDE_MOST], const char *const *pixel, int64_t c, int64_t n, enum dt_dtype type,
                        int side)
{
#pragma GCC unroll 36
    for (int p = 0; p < side * side; p++) {
        to[p / side][p % side] = vec_get(pixel[p], c, n, type);
    }
}

/* B^T d B of channels [c, c + n) */
INLINE void transform_input(float *to, int64_t step, const char *const *pixel, int64_t c, int64_t n, enum dt_dtype type,
                            int side)
{
    vec d[SIDE_MOST][SIDE_MOST], v[SIDE_MOST][SIDE_MOST];
    load_pixels(d, pixel, c, n, type, side);
    both_ways(input_line, v, d, side, side, side);
    store_values(to, step, v, n, side);
}

/* A dy A^T */
INLINE void transform_gradient(float *to, int64_t step, const char *const *pixel, int64_t c, int64_t n,
                               enum dt_dtype type, int side)
{
    vec d[SIDE_MOST][SIDE_MOST], v[SIDE_MOST][SIDE_MOST];
    load_pixels(d, pixel, c, n, type, side - 2);
    both_ways(gradient_line, v, d, side, side - 2, side);
    store_values(to, step, v, n, side);
}

/* A^T m A of channels [o, o + n) of one tile */
INLINE void transform_output(const struct winograd *w, struct tile at, const float *m, int64_t step, int64_t o,
                             int64_t n, enum dt_dtype type, int side)
{
    vec values[SIDE_MOST][SIDE_MOST], y[SIDE_MOST][SIDE_MOST];
    load_values(values, m, step, n, side);
    both_ways(output_line, y, values, side - 2, side, side);
#pragma GCC unroll 4
    for (int i = 0; i < side - 2; i++) {
        for (int j = 0; j < side - 2 && at.y + i < w->height; j++) {
            if (at.x + j < w->width) {
                int64_t to = ((at.b * w->height + at.y + i) * w->width + at.x + j) * w->out + o;
                vec_put(w->to, to, w->accumulate ? y[i][j] + vec_get(w->to, to, n, type) : y[i][j], n, type);
            }
        }
    }
}

/* ---- weights ---- */

/* Rows of channels, each with its 9 weights, as 9 rows of channels: g[k * step + c]. */
static void taps_of(float *g, int64_t step, float *room, const struct winograd *w, int64_t at, int64_t channels)
{
    const float *from = vec_floats(room, w->weights, at * TAPS, channels * TAPS, w->type);
    dt_transpose(g, step, from, TAPS, channels, TAPS);
}

/* G g G^T. Tap k is at g[k * g_step], or from the last one on, after half a turn. */
INLINE void transform_weights(float *to, int64_t step, const float *g, int64_t g_step, int64_t n, bool turned, int side)
{
    vec taps[SIDE_MOST][SIDE_MOST], u[SIDE_MOST][SIDE_MOST];
#pragma GCC unroll 9
    for (int k = 0; k < TAPS; k++) {
        taps[k / 3][k % 3] = vec_load_n(g + (turned ? TAPS - 1 - k : k) * g_step, n);
    }
    both_ways(weights_line, u, taps, side, 3, side);
    store_values(to, step, u, n, side);
}

static int64_t matrix_of(const struct winograd *w)
{
    return apart(w->in * DT_PACKED(w->out));
}

/* Panel `part` of the forward pass: its columns are outputs, its rows channels. */
INLINE void pack_forward(const struct winograd *w, int64_t part, int side)
{
    int64_t C = w->in, first = part * DT_PANEL, cols = min64(DT_PANEL, w->out - first), step = apart(DT_PANEL * C);
    float *t = dt_cpu_work(DT_WORK_KERNEL, (size_t)(w->values * step + 2 * TAPS * C) * sizeof(float));
    float *g = t + w->values * step, *room = g + TAPS * C;
    for (int64_t o = 0; o < cols; o++) {
        taps_of(g, C, room, w, (first + o) * C, C);
        for (int64_t c = 0; c < C; c += VEC) {
            transform_weights(t + o * C + c, step, g + c, C, min64(VEC, C - c), false, side);
        }
    }
    for (int p = 0; p < w->values; p++) {
        ISA_BASE(dt_gemm_pack)(w->u + p * matrix_of(w) + first * C, t + p * step, 1, C, cols, C);
    }
}

/* The same of the backward pass: columns are channels of the images (w->out), rows outputs (w->in). */
INLINE void pack_backward(const struct winograd *w, int64_t part, int side)
{
    int64_t first = part * DT_PANEL, cols = min64(DT_PANEL, w->out - first);
    float g[TAPS * DT_PANEL] = {0}, room[TAPS * DT_PANEL];
    float *panel = w->u + first * w->in;
    for (int64_t o = 0; o < w->in; o++) {
        taps_of(g, DT_PANEL, room, w, o * w->out + first, cols);
        for (int64_t c = 0; c < DT_PANEL; c += VEC) {
            transform_weights(panel + o * DT_PANEL + c, matrix_of(w), g + c, DT_PANEL, VEC, true, side);
        }
    }
}

/* The side as a constant; the copy for F16 has one alone. */
#define BY_SIDE(w, function, ...)                                                                                      \
    do {                                                                                                               \
        if (DT_IS_HALF((w)->type)) {                                                                                   \
            function(w, __VA_ARGS__, 6);                                                                               \
        } else {                                                                                                       \
            function(w, __VA_ARGS__, 4);                                                                               \
        }                                                                                                              \
    } while (0)

static void forward_panel(void *context, int64_t part)
{
    const struct winograd *w = context;
    BY_SIDE(w, pack_forward, part);
}

static void backward_panel(void *context, int64_t part)
{
    const struct winograd *w = context;
    BY_SIDE(w, pack_backward, part);
}

/* ---- images ---- */

/* m (count, out) = v (count, in) by the packed weights of one value. */
static void multiply(const struct winograd *w, float *m, const float *v, const float *u, int64_t count)
{
    for (int64_t l = 0; l < w->in; l += K_BLOCK) {
        ISA_BASE(dt_gemm_packed)
        (&(struct dt_gemm){.c = m,
                           .a = v + l,
                           .m = count,
                           .n = w->out,
                           .k = min64(K_BLOCK, w->in - l),
                           .a_row = w->in,
                           .a_col = 1,
                           .ldc = w->out,
                           .accumulate = l > 0},
         u + l * DT_PANEL, w->in);
    }
}

INLINE void chunk_of_images(const struct winograd *w, int64_t first, int64_t count, int side)
{
    enum dt_dtype type = side == 6 ? DT_HALF : DT_F32;
    int64_t values = (int64_t)side * side;
    int64_t v_step = apart(w->chunk * w->in), m_step = apart(w->chunk * w->out), u_step = matrix_of(w);
    float *v = dt_cpu_work(DT_WORK_KERNEL, (size_t)(values * (v_step + m_step) + w->in) * sizeof(float));
    float *m = v + values * v_step, *zeros = m + values * m_step;
    const char *pixel[SIDE_MOST * SIDE_MOST];
    memset(zeros, 0, (size_t)w->in * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        struct tile at = tile_of(w, first + i);
        pixels_of(pixel, w->from, w, at.b, at.y - 1, at.x - 1, side, w->in, zeros, dt_dtype_size(type));
        int64_t c = 0;
        for (; c + VEC <= w->in; c += VEC) {
            transform_input(v + i * w->in + c, v_step, pixel, c, VEC, type, side);
        }
        if (c < w->in) {
            transform_input(v + i * w->in + c, v_step, pixel, c, w->in - c, type, side);
        }
    }
    for (int p = 0; p < values; p++) {
        multiply(w, m + p * m_step, v + p * v_step, w->u + p * u_step, count);
    }
    for (int64_t i = 0; i < count; i++) {
        struct tile at = tile_of(w, first + i);
        int64_t o = 0;
        for (; o + VEC <= w->out; o += VEC) {
            transform_output(w, at, m + i * w->out + o, m_step, o, VEC, type, side);
        }
        if (o < w->out) {
            transform_output(w, at, m + i * w->out + o, m_step, o, w->out - o, type, side);
        }
    }
}

static void images_part(void *context, int64_t part)
{
    const struct winograd *w = context;
    int64_t first = part * w->chunk, count = min64(w->chunk, w->tiles - first);
    BY_SIDE(w, chunk_of_images, first, count);
}

/* Tiles are alone, so the chunk may depend on the number of threads: each gets some. */
static int run_images(struct dt_pool *pool, struct winograd *w, dt_pool_fn *pack)
{
    int64_t each = parts_of(w->tiles, dt_pool_size(pool) * CHUNK_PARTS) * CHUNK_PARTS;
    w->chunk = min64(w->chunk, each);
    dt_pool_run(pool, parts_of(w->out, DT_PANEL), pack, w);
    dt_pool_run(pool, parts_of(w->tiles, w->chunk), images_part, w);
    return 0;
}

/* ---- the gradient of the weights ---- */

static int64_t x_matrix(const struct winograd *w)
{
    return apart(w->chunk * DT_PACKED(w->in));
}

static int64_t dy_matrix(const struct winograd *w)
{
    return apart(w->chunk * w->out);
}

/* Values of the tiles of one part of the chunk: of x as panels of channels, of dy as rows. */
INLINE void transform_part(const struct winograd *w, int64_t part, int side)
{
    enum dt_dtype type = side == 6 ? DT_HALF : DT_F32;
    float *v = w->tiles_at, *m = v + side * side * x_matrix(w);
    int64_t most = w->in > w->out ? w->in : w->out, begin = part * CHUNK_PARTS;
    int64_t end = min64(min64(begin + CHUNK_PARTS, w->chunk), w->tiles - w->first);
    float *zeros = dt_cpu_work(DT_WORK_KERNEL, (size_t)most * sizeof(float));
    const char *pixel[SIDE_MOST * SIDE_MOST];
    memset(zeros, 0, (size_t)most * sizeof(float));
    for (int64_t i = begin; i < end; i++) {
        struct tile at = tile_of(w, w->first + i);
        pixels_of(pixel, w->from, w, at.b, at.y - 1, at.x - 1, side, w->in, zeros, dt_dtype_size(type));
        for (int64_t c = 0; c < w->in; c += VEC) {
            float *to = v + c / DT_PANEL * DT_PANEL * w->chunk + i * DT_PANEL + c % DT_PANEL;
            transform_input(to, x_matrix(w), pixel, c, min64(VEC, w->in - c), type, side);
        }
        pixels_of(pixel, w->dy, w, at.b, at.y, at.x, side - 2, w->out, zeros, dt_dtype_size(type));
        for (int64_t o = 0; o < w->out; o += VEC) {
            transform_gradient(m + i * w->out + o, dy_matrix(w), pixel, o, min64(VEC, w->out - o), type, side);
        }
    }
}

static void gradient_tiles(void *context, int64_t part)
{
    const struct winograd *w = context;
    BY_SIDE(w, transform_part, part);
}

/* Adds the chunk's product of one value and O_BLOCK outputs to the sums. */
static void gradient_product(void *context, int64_t part)
{
    const struct winograd *w = context;
    int64_t p = part % w->values, o = part / w->values * O_BLOCK;
    const float *v = w->tiles_at + p * x_matrix(w), *m = w->tiles_at + w->values * x_matrix(w) + p * dy_matrix(w);
    ISA_BASE(dt_gemm_packed)
    (&(struct dt_gemm){.c = w->u + p * apart(w->out * w->in) + o * w->in,
                       .a = m + o,
                       .m = min64(O_BLOCK, w->out - o),
                       .n = w->in,
                       .k = min64(w->chunk, w->tiles - w->first),
                       .a_row = 1,
                       .a_col = w->out,
                       .ldc = w->in,
                       .accumulate = w->first > 0},
     v, w->chunk);
}

/* G^T u G of channels [c, c + n); tap k goes to to[k * step]. */
INLINE void transform_sums(float *to, int64_t step, const float *u, int64_t u_step, int64_t n, int side)
{
    vec sums[SIDE_MOST][SIDE_MOST], taps[SIDE_MOST][SIDE_MOST];
    load_values(sums, u, u_step, n, side);
    both_ways(sums_line, taps, sums, 3, side, side);
#pragma GCC unroll 9
    for (int k = 0; k < TAPS; k++) {
        vec_store_n(to + k * step, taps[k / 3][k % 3], n);
    }
}

/* The gradient of the weights of output `part`. */
INLINE void sum_weights(const struct winograd *w, int64_t part, int side)
{
    int64_t C = w->in, all = TAPS * C;
    float *taps = dt_cpu_work(DT_WORK_KERNEL, (size_t)(2 * all) * sizeof(float)), *row = taps + all;
    for (int64_t c = 0; c < C; c += VEC) {
        transform_sums(taps + c, C, w->u + part * C + c, apart(w->out * C), min64(VEC, C - c), side);
    }
    dt_transpose(row, TAPS, taps, C, TAPS, C);
    for (int64_t i = 0; i < all; i += VEC) {
        int64_t n = min64(VEC, all - i), at = part * all + i;
        vec sum = vec_load_n(row + i, n);
        sum = w->accumulate ? sum + vec_get(w->to, at, n, w->grad_type) : sum;
        vec_put(w->to, at, sum, n, w->grad_type);
    }
}

static void gradient_weights(void *context, int64_t part)
{
    const struct winograd *w = context;
    BY_SIDE(w, sum_weights, part);
}

static int run_gradient(struct dt_pool *pool, struct winograd *w)
{
    w->tiles_at = w->u + w->values * apart(w->out * w->in);
    for (; w->first < w->tiles; w->first += w->chunk) {
        dt_pool_run(pool, parts_of(min64(w->chunk, w->tiles - w->first), CHUNK_PARTS), gradient_tiles, w);
        dt_pool_run(pool, w->values * parts_of(w->out, O_BLOCK), gradient_product, w);
    }
    dt_pool_run(pool, w->out, gradient_weights, w);
    return 0;
}

/* ---- the rows ---- */

static int run_forward(struct dt_stream *s, void *args, struct dt_error *err)
{
    const struct dt_convolution_args *a = args;
    struct winograd w = winograd_of(&a->windows, a->windows.channels, a->out, a->type, a->work);
    (void)err;
    w.from = a->x;
    w.to = a->y;
    w.weights = a->weights;
    return run_images(dt_cpu_pool(s), &w, forward_panel);
}

static int run_input(struct dt_stream *s, void *args, struct dt_error *err)
{
    const struct dt_convolution_input_args *a = args;
    struct winograd w = winograd_of(&a->windows, a->out, a->windows.channels, a->type, a->work);
    (void)err;
    w.from = a->dy;
    w.to = a->dx;
    w.weights = a->weights;
    w.accumulate = a->accumulate;
    return run_images(dt_cpu_pool(s), &w, backward_panel);
}

static int run_weights(struct dt_stream *s, void *args, struct dt_error *err)
{
    const struct dt_convolution_weights_args *a = args;
    struct winograd w = winograd_of(&a->windows, a->windows.channels, a->out, a->type, a->work);
    (void)err;
    w.from = a->x;
    w.dy = a->dy;
    w.to = a->dweights;
    w.accumulate = a->accumulate;
    w.grad_type = DT_IS_HALF(a->type) ? a->grad_type : a->type;
    return run_gradient(dt_cpu_pool(s), &w);
}

/* Calls of F16 go to the other copy. */
#ifdef DT_FOR_F16
#define WHERE(row)
#else
#define WHERE(row)                                                                                                     \
    if (a->type == DT_F16) {                                                                                           \
        return ISA_F16(row)(s, a);                                                                                     \
    }
#endif

bool ISA(dt_convolution)(struct dt_stream *s, const struct dt_convolution_args *a)
{
    WHERE(dt_convolution)
    bool takes = dt_convolution_is_winograd(&a->windows, a->out, a->planar);
    if (takes) {
        dt_stream_call(s, run_forward, a, sizeof *a);
    }
    return takes;
}

bool ISA(dt_convolution_input)(struct dt_stream *s, const struct dt_convolution_input_args *a)
{
    WHERE(dt_convolution_input)
    bool takes = dt_convolution_is_winograd(&a->windows, a->out, false);
    if (takes) {
        dt_stream_call(s, run_input, a, sizeof *a);
    }
    return takes;
}

bool ISA(dt_convolution_weights)(struct dt_stream *s, const struct dt_convolution_weights_args *a)
{
    WHERE(dt_convolution_weights)
    bool takes = dt_convolution_is_winograd(&a->windows, a->out, a->planar);
    if (takes) {
        dt_stream_call(s, run_weights, a, sizeof *a);
    }
    return takes;
}
