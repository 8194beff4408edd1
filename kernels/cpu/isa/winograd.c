/* Convolutions of 3 x 3 with stride 1 by Winograd's minimal filtering F(2 x 2, 3 x 3) (Lavin and Gray,
 * 2015): a tile of 2 x 2 outputs takes 16 multiplications per pair of channels instead of 36. Tiles
 * of 4 x 4 inputs, and the weights, become 16 values each by sums and differences. One product of
 * matrices per value follows, and sums make outputs of it:
 *
 *   y = A^T [(G w G^T) * (B^T x B)] A        dw = G^T [sum over tiles of (A dy A^T) * (B^T x B)] G
 *
 * dx is the same convolution of dy, by weights turned by half a turn. Everything in between is F32,
 * also for BF16, and results are rounded once. A tile's bits depend on the tile alone; dw is summed
 * tile by tile, in order. */
#include "kernels/convolution.h"
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"

#include <string.h>

enum { SIDE = 4, VALUES = SIDE * SIDE, OUT_SIDE = 2, TAPS = 9 };
#define CHUNK_PARTS 16 /* tiles of a part when a gradient's chunk is transformed */
#define K_BLOCK 256    /* channels of one product: a panel of weights fits the L1 cache */
#define O_BLOCK 128    /* rows of one product of a gradient */

/* A pass from images (B, height, width, in) to images (B, height, width, out), or to the gradient of
 * the weights between them. */
struct winograd {
    const void *from, *weights;
    void *to;
    const void *dy;  /* of the gradient */
    float *u;        /* 16 matrices: weights as panels, or sums of a gradient */
    float *tiles_at; /* of a gradient: values of a chunk of tiles */
    int64_t height, width, tile_rows, tile_cols, tiles, in, out, chunk, first;
    bool accumulate;
    enum dt_dtype type, grad_type;
};

static struct winograd winograd_of(const struct dt_windows *w, int64_t in, int64_t out, void *work)
{
    struct winograd x = {.height = w->height, .width = w->width, .in = in, .out = out, .u = work};
    x.tile_rows = parts_of(w->height, OUT_SIDE);
    x.tile_cols = parts_of(w->width, OUT_SIDE);
    x.tiles = w->batch * x.tile_rows * x.tile_cols;
    x.chunk = dt_winograd_chunk(in, out);
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
    return (struct tile){line / w->tile_rows, line % w->tile_rows * OUT_SIDE, at % w->tile_cols * OUT_SIDE};
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

/* ---- values of a tile ---- */

/* B^T d B of channels [c, c + n): value p goes to to[p * step]. */
INLINE void transform_input(float *to, int64_t step, const char *const *pixel, int64_t c, int64_t n, enum dt_dtype type)
{
    vec t[SIDE][SIDE];
#pragma GCC unroll 4
    for (int j = 0; j < SIDE; j++) {
        vec d0 = vec_get(pixel[j], c, n, type), d1 = vec_get(pixel[SIDE + j], c, n, type);
        vec d2 = vec_get(pixel[2 * SIDE + j], c, n, type), d3 = vec_get(pixel[3 * SIDE + j], c, n, type);
        t[0][j] = d0 - d2;
        t[1][j] = d1 + d2;
        t[2][j] = d2 - d1;
        t[3][j] = d1 - d3;
    }
#pragma GCC unroll 4
    for (int i = 0; i < SIDE; i++) {
        float *row = to + i * SIDE * step;
        vec_store_n(row, t[i][0] - t[i][2], n);
        vec_store_n(row + step, t[i][1] + t[i][2], n);
        vec_store_n(row + 2 * step, t[i][2] - t[i][1], n);
        vec_store_n(row + 3 * step, t[i][1] - t[i][3], n);
    }
}

/* A dy A^T */
INLINE void transform_gradient(float *to, int64_t step, const char *const *pixel, int64_t c, int64_t n,
                               enum dt_dtype type)
{
    vec t[SIDE][OUT_SIDE];
#pragma GCC unroll 2
    for (int j = 0; j < OUT_SIDE; j++) {
        vec d0 = vec_get(pixel[j], c, n, type), d1 = vec_get(pixel[OUT_SIDE + j], c, n, type);
        t[0][j] = d0;
        t[1][j] = d0 + d1;
        t[2][j] = d0 - d1;
        t[3][j] = -d1;
    }
#pragma GCC unroll 4
    for (int i = 0; i < SIDE; i++) {
        float *row = to + i * SIDE * step;
        vec_store_n(row, t[i][0], n);
        vec_store_n(row + step, t[i][0] + t[i][1], n);
        vec_store_n(row + 2 * step, t[i][0] - t[i][1], n);
        vec_store_n(row + 3 * step, -t[i][1], n);
    }
}

/* A^T m A of channels [o, o + n) of one tile; value p is at m[p * step]. */
INLINE void transform_output(const struct winograd *w, struct tile at, const float *m, int64_t step, int64_t o,
                             int64_t n, enum dt_dtype type)
{
    vec s[OUT_SIDE][SIDE];
#pragma GCC unroll 4
    for (int j = 0; j < SIDE; j++) {
        vec m0 = vec_load_n(m + j * step, n), m1 = vec_load_n(m + (SIDE + j) * step, n);
        vec m2 = vec_load_n(m + (2 * SIDE + j) * step, n), m3 = vec_load_n(m + (3 * SIDE + j) * step, n);
        s[0][j] = m0 + m1 + m2;
        s[1][j] = m1 - m2 - m3;
    }
#pragma GCC unroll 2
    for (int i = 0; i < OUT_SIDE; i++) {
        vec y[OUT_SIDE] = {s[i][0] + s[i][1] + s[i][2], s[i][1] - s[i][2] - s[i][3]};
        for (int j = 0; j < OUT_SIDE && at.y + i < w->height; j++) {
            if (at.x + j < w->width) {
                int64_t to = ((at.b * w->height + at.y + i) * w->width + at.x + j) * w->out + o;
                vec_put(w->to, to, w->accumulate ? y[j] + vec_get(w->to, to, n, type) : y[j], n, type);
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

/* G g G^T; value p, or its place after half a turn, goes to to[p * step]. */
INLINE void transform_weights(float *to, int64_t step, const float *g, int64_t g_step, int64_t n, bool turned)
{
    static const int turn[SIDE] = {3, 1, 2, 0};
    vec t[SIDE][3];
#pragma GCC unroll 3
    for (int j = 0; j < 3; j++) {
        vec g0 = vec_load_n(g + j * g_step, n), g1 = vec_load_n(g + (3 + j) * g_step, n),
            g2 = vec_load_n(g + (6 + j) * g_step, n);
        t[0][j] = g0;
        t[1][j] = 0.5F * (g0 + g1 + g2);
        t[2][j] = 0.5F * (g0 - g1 + g2);
        t[3][j] = g2;
    }
#pragma GCC unroll 4
    for (int i = 0; i < SIDE; i++) {
        vec u[SIDE] = {t[i][0], 0.5F * (t[i][0] + t[i][1] + t[i][2]), 0.5F * (t[i][0] - t[i][1] + t[i][2]), t[i][2]};
#pragma GCC unroll 4
        for (int j = 0; j < SIDE; j++) {
            int p = turned ? turn[i] * SIDE + turn[j] : i * SIDE + j;
            vec_store_n(to + p * step, u[j], n);
        }
    }
}

static int64_t matrix_of(const struct winograd *w)
{
    return apart(w->in * DT_PACKED(w->out));
}

/* Panel `part` of the forward pass: its columns are outputs, its rows channels. */
static void pack_forward(void *context, int64_t part)
{
    const struct winograd *w = context;
    int64_t C = w->in, first = part * DT_PANEL, cols = min64(DT_PANEL, w->out - first), step = apart(DT_PANEL * C);
    float *t = dt_cpu_work(DT_WORK_KERNEL, (size_t)(VALUES * step + 2 * TAPS * C) * sizeof(float));
    float *g = t + VALUES * step, *room = g + TAPS * C;
    for (int64_t o = 0; o < cols; o++) {
        taps_of(g, C, room, w, (first + o) * C, C);
        for (int64_t c = 0; c < C; c += VEC) {
            transform_weights(t + o * C + c, step, g + c, C, min64(VEC, C - c), false);
        }
    }
    for (int p = 0; p < VALUES; p++) {
        ISA_BASE(dt_gemm_pack)(w->u + p * matrix_of(w) + first * C, t + p * step, 1, C, cols, C);
    }
}

/* The same of the backward pass: columns are channels of the images (w->out), rows outputs (w->in). */
static void pack_backward(void *context, int64_t part)
{
    const struct winograd *w = context;
    int64_t first = part * DT_PANEL, cols = min64(DT_PANEL, w->out - first);
    float g[TAPS * DT_PANEL] = {0}, room[TAPS * DT_PANEL];
    float *panel = w->u + first * w->in;
    for (int64_t o = 0; o < w->in; o++) {
        taps_of(g, DT_PANEL, room, w, o * w->out + first, cols);
        for (int64_t c = 0; c < DT_PANEL; c += VEC) {
            transform_weights(panel + o * DT_PANEL + c, matrix_of(w), g + c, DT_PANEL, VEC, true);
        }
    }
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

INLINE void chunk_of_images(const struct winograd *w, int64_t first, int64_t count, enum dt_dtype type)
{
    int64_t v_step = apart(w->chunk * w->in), m_step = apart(w->chunk * w->out), u_step = matrix_of(w);
    float *v = dt_cpu_work(DT_WORK_KERNEL, (size_t)(VALUES * (v_step + m_step) + w->in) * sizeof(float));
    float *m = v + VALUES * v_step, *zeros = m + VALUES * m_step;
    const char *pixel[VALUES];
    memset(zeros, 0, (size_t)w->in * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        struct tile at = tile_of(w, first + i);
        pixels_of(pixel, w->from, w, at.b, at.y - 1, at.x - 1, SIDE, w->in, zeros, dt_dtype_size(type));
        int64_t c = 0;
        for (; c + VEC <= w->in; c += VEC) {
            transform_input(v + i * w->in + c, v_step, pixel, c, VEC, type);
        }
        if (c < w->in) {
            transform_input(v + i * w->in + c, v_step, pixel, c, w->in - c, type);
        }
    }
    for (int p = 0; p < VALUES; p++) {
        multiply(w, m + p * m_step, v + p * v_step, w->u + p * u_step, count);
    }
    for (int64_t i = 0; i < count; i++) {
        struct tile at = tile_of(w, first + i);
        int64_t o = 0;
        for (; o + VEC <= w->out; o += VEC) {
            transform_output(w, at, m + i * w->out + o, m_step, o, VEC, type);
        }
        if (o < w->out) {
            transform_output(w, at, m + i * w->out + o, m_step, o, w->out - o, type);
        }
    }
}

static void images_part(void *context, int64_t part)
{
    const struct winograd *w = context;
    int64_t first = part * w->chunk, count = min64(w->chunk, w->tiles - first);
    if (DT_IS_HALF(w->type)) {
        chunk_of_images(w, first, count, DT_HALF);
    } else {
        chunk_of_images(w, first, count, DT_F32);
    }
}

static int run_images(struct dt_pool *pool, struct winograd *w, dt_pool_fn *pack)
{
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
INLINE void transform_part(const struct winograd *w, int64_t part, enum dt_dtype type)
{
    float *v = w->tiles_at, *m = v + VALUES * x_matrix(w);
    int64_t most = w->in > w->out ? w->in : w->out, begin = part * CHUNK_PARTS;
    int64_t end = min64(min64(begin + CHUNK_PARTS, w->chunk), w->tiles - w->first);
    float *zeros = dt_cpu_work(DT_WORK_KERNEL, (size_t)most * sizeof(float));
    const char *pixel[VALUES];
    memset(zeros, 0, (size_t)most * sizeof(float));
    for (int64_t i = begin; i < end; i++) {
        struct tile at = tile_of(w, w->first + i);
        pixels_of(pixel, w->from, w, at.b, at.y - 1, at.x - 1, SIDE, w->in, zeros, dt_dtype_size(type));
        for (int64_t c = 0; c < w->in; c += VEC) {
            float *to = v + c / DT_PANEL * DT_PANEL * w->chunk + i * DT_PANEL + c % DT_PANEL;
            transform_input(to, x_matrix(w), pixel, c, min64(VEC, w->in - c), type);
        }
        pixels_of(pixel, w->dy, w, at.b, at.y, at.x, OUT_SIDE, w->out, zeros, dt_dtype_size(type));
        for (int64_t o = 0; o < w->out; o += VEC) {
            transform_gradient(m + i * w->out + o, dy_matrix(w), pixel, o, min64(VEC, w->out - o), type);
        }
    }
}

static void gradient_tiles(void *context, int64_t part)
{
    const struct winograd *w = context;
    if (DT_IS_HALF(w->type)) {
        transform_part(w, part, DT_HALF);
    } else {
        transform_part(w, part, DT_F32);
    }
}

/* Adds the chunk's product of one value and O_BLOCK outputs to the sums. */
static void gradient_product(void *context, int64_t part)
{
    const struct winograd *w = context;
    int64_t p = part % VALUES, o = part / VALUES * O_BLOCK;
    const float *v = w->tiles_at + p * x_matrix(w), *m = w->tiles_at + VALUES * x_matrix(w) + p * dy_matrix(w);
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
INLINE void transform_sums(float *to, int64_t step, const float *u, int64_t u_step, int64_t n)
{
    vec t[3][SIDE];
#pragma GCC unroll 4
    for (int j = 0; j < SIDE; j++) {
        vec u0 = vec_load_n(u + j * u_step, n), u1 = vec_load_n(u + (SIDE + j) * u_step, n);
        vec u2 = vec_load_n(u + (2 * SIDE + j) * u_step, n), u3 = vec_load_n(u + (3 * SIDE + j) * u_step, n);
        vec half = 0.5F * (u1 + u2);
        t[0][j] = u0 + half;
        t[1][j] = 0.5F * (u1 - u2);
        t[2][j] = half + u3;
    }
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {
        vec half = 0.5F * (t[i][1] + t[i][2]);
        vec_store_n(to + 3 * i * step, t[i][0] + half, n);
        vec_store_n(to + (3 * i + 1) * step, 0.5F * (t[i][1] - t[i][2]), n);
        vec_store_n(to + (3 * i + 2) * step, half + t[i][3], n);
    }
}

/* The gradient of the weights of output `part`. */
static void gradient_weights(void *context, int64_t part)
{
    const struct winograd *w = context;
    int64_t C = w->in, all = TAPS * C;
    float *taps = dt_cpu_work(DT_WORK_KERNEL, (size_t)(2 * all) * sizeof(float)), *row = taps + all;
    for (int64_t c = 0; c < C; c += VEC) {
        transform_sums(taps + c, C, w->u + part * C + c, apart(w->out * C), min64(VEC, C - c));
    }
    dt_transpose(row, TAPS, taps, C, TAPS, C);
    for (int64_t i = 0; i < all; i += VEC) {
        int64_t n = min64(VEC, all - i), at = part * all + i;
        vec sum = vec_load_n(row + i, n);
        sum = w->accumulate ? sum + vec_get(w->to, at, n, w->grad_type) : sum;
        vec_put(w->to, at, sum, n, w->grad_type);
    }
}

static int run_gradient(struct dt_pool *pool, struct winograd *w)
{
    w->tiles_at = w->u + VALUES * apart(w->out * w->in);
    for (; w->first < w->tiles; w->first += w->chunk) {
        dt_pool_run(pool, parts_of(min64(w->chunk, w->tiles - w->first), CHUNK_PARTS), gradient_tiles, w);
        dt_pool_run(pool, VALUES * parts_of(w->out, O_BLOCK), gradient_product, w);
    }
    dt_pool_run(pool, w->out, gradient_weights, w);
    return 0;
}

/* ---- the rows ---- */

static int run_forward(struct dt_stream *s, void *args, struct dt_error *err)
{
    const struct dt_convolution_args *a = args;
    struct winograd w = winograd_of(&a->windows, a->windows.channels, a->out, a->work);
    (void)err;
    w.from = a->x;
    w.to = a->y;
    w.weights = a->weights;
    w.type = a->type;
    return run_images(dt_cpu_pool(s), &w, pack_forward);
}

static int run_input(struct dt_stream *s, void *args, struct dt_error *err)
{
    const struct dt_convolution_input_args *a = args;
    struct winograd w = winograd_of(&a->windows, a->out, a->windows.channels, a->work);
    (void)err;
    w.from = a->dy;
    w.to = a->dx;
    w.weights = a->weights;
    w.accumulate = a->accumulate;
    w.type = a->type;
    return run_images(dt_cpu_pool(s), &w, pack_backward);
}

static int run_weights(struct dt_stream *s, void *args, struct dt_error *err)
{
    const struct dt_convolution_weights_args *a = args;
    struct winograd w = winograd_of(&a->windows, a->windows.channels, a->out, a->work);
    (void)err;
    w.from = a->x;
    w.dy = a->dy;
    w.to = a->dweights;
    w.accumulate = a->accumulate;
    w.type = a->type;
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
