/* Windows over images: unfolding for convolutions and its backward, and the largest values. Parts are
 * lines of the output, or of the image where this is the output. Sums are F32, in the order of the
 * pixels of a window. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"

#include <math.h>
#include <string.h>

/* Line `part` of all images: its image, and its number there. */
struct line {
    int64_t b, y;
};

INLINE struct line line_of(int64_t part, int64_t height)
{
    return (struct line){part / height, part % height};
}

/* The window in which pixel `at` has place k of its side; -1: there is none. */
INLINE int64_t window_at(int64_t at, int64_t k, const struct dt_windows *w, int64_t count)
{
    int64_t first = at + w->padding - k;
    return first >= 0 && first % w->stride == 0 && first / w->stride < count ? first / w->stride : -1;
}

/* ---- unfold ---- */

/* Window (y, x) of image b. size: w->size, as a constant where it is one. */
INLINE void unfold_window(const struct dt_unfold_args *a, int64_t b, int64_t y, int64_t x, char *out, int64_t size,
                          size_t bytes)
{
    const struct dt_windows *w = &a->windows;
    int64_t C = w->channels, all = size * size;
    for (int64_t k = 0; k < all; k++) {
        int64_t at_y = y * w->stride - w->padding + k / size, at_x = x * w->stride - w->padding + k % size;
        bool inside = at_y >= 0 && at_y < w->height && at_x >= 0 && at_x < w->width;
        const char *from = (const char *)a->x + (size_t)(((b * w->height + at_y) * w->width + at_x) * C) * bytes;
        if (!inside) {
            for (int64_t c = 0; c < C; c++) {
                memset(out + (size_t)(c * all + k) * bytes, 0, bytes);
            }
            continue;
        }
        for (int64_t c = 0; c < C; c++) {
            memcpy(out + (size_t)(c * all + k) * bytes, from + (size_t)c * bytes, bytes);
        }
    }
}

/* The same of an image whose channels come first. */
INLINE void unfold_planar(const struct dt_unfold_args *a, int64_t b, int64_t y, int64_t x, char *out,
                          enum dt_dtype type, enum dt_dtype from)
{
    const struct dt_windows *w = &a->windows;
    size_t bytes = dt_dtype_size(type);
    for (int64_t c = 0; c < w->channels; c++) {
        for (int64_t k = 0; k < w->size * w->size; k++, out += bytes) {
            int64_t at_y = y * w->stride - w->padding + k / w->size, at_x = x * w->stride - w->padding + k % w->size;
            bool inside = at_y >= 0 && at_y < w->height && at_x >= 0 && at_x < w->width;
            int64_t at = ((b * w->channels + c) * w->height + at_y) * w->width + at_x;
            vec_put(out, 0, inside ? vec_get(a->x, at, 1, from) : vec_all(0), 1, type);
        }
    }
}

static void unfold_part(void *context, int64_t part)
{
    const struct dt_unfold_args *a = context;
    const struct dt_windows *w = &a->windows;
    struct line l = line_of(part, w->out_height);
    size_t bytes = dt_dtype_size(a->type), row = (size_t)(w->channels * w->size * w->size) * bytes;
    char *out = (char *)a->out + (size_t)(part * w->out_width) * row;
    bool half = DT_IS_HALF(a->type);
    for (int64_t x = 0; x < w->out_width; x++, out += row) {
        if (a->planar && a->x_type == DT_F32) {
            half ? unfold_planar(a, l.b, l.y, x, out, DT_HALF, DT_F32)
                 : unfold_planar(a, l.b, l.y, x, out, DT_F32, DT_F32);
        } else if (a->planar) {
            unfold_planar(a, l.b, l.y, x, out, DT_HALF, DT_HALF);
        } else if (w->size == 1) {
            half ? unfold_window(a, l.b, l.y, x, out, 1, 2) : unfold_window(a, l.b, l.y, x, out, 1, 4);
        } else if (w->size == 3) {
            half ? unfold_window(a, l.b, l.y, x, out, 3, 2) : unfold_window(a, l.b, l.y, x, out, 3, 4);
        } else {
            half ? unfold_window(a, l.b, l.y, x, out, w->size, 2) : unfold_window(a, l.b, l.y, x, out, w->size, 4);
        }
    }
}

static int unfold_now(struct dt_pool *pool, struct dt_unfold_args *a, struct dt_error *err)
{
    if (a->x_type != a->type && !(a->planar && a->x_type == DT_F32)) {
        return dt_fail(err, DT_INTERNAL, "unfold: types %s, %s are not made", dt_dtype_name(a->type),
                       dt_dtype_name(a->x_type));
    }
    dt_pool_run(pool, a->windows.batch * a->windows.out_height, unfold_part, a);
    return 0;
}
DT_ISA_KERNEL(unfold)

/* ---- fold ---- */

/* Adds place k of a window, which begins at element `from` of dout, to the sums of a pixel. Values of 16 bits are
 * gathered for a vector at a time. */
INLINE void fold_window(float *sums, const void *dout, int64_t from, int64_t k, int64_t channels, int64_t all,
                        enum dt_dtype type)
{
    int64_t c = 0;
    if (type == DT_HALF) {
        for (; c + VEC <= channels; c += VEC) {
            uint16_t half[VEC];
            for (int i = 0; i < VEC; i++) {
                half[i] = ((const uint16_t *)dout)[from + (c + i) * all + k];
            }
            vec_store(sums + c, vec_load(sums + c) + vec_get(half, 0, VEC, DT_HALF));
        }
    }
    for (; c < channels; c++) {
        int64_t at = from + c * all + k;
        sums[c] += type == DT_HALF ? vec_get(dout, at, 1, DT_HALF)[0] : ((const float *)dout)[at];
    }
}

INLINE void fold_pixel(const struct dt_fold_args *a, struct line l, int64_t x, float *sums, enum dt_dtype type)
{
    const struct dt_windows *w = &a->windows;
    int64_t C = w->channels, all = w->size * w->size, at = ((l.b * w->height + l.y) * w->width + x) * C;
    memset(sums, 0, (size_t)C * sizeof *sums);
    for (int64_t k = 0; k < all; k++) {
        int64_t oy = window_at(l.y, k / w->size, w, w->out_height), ox = window_at(x, k % w->size, w, w->out_width);
        if (oy >= 0 && ox >= 0) {
            int64_t from = ((l.b * w->out_height + oy) * w->out_width + ox) * C * all;
            if (all == 9) {
                fold_window(sums, a->dout, from, k, C, 9, type);
            } else {
                fold_window(sums, a->dout, from, k, C, all, type);
            }
        }
    }
    for (int64_t c = 0; c < C; c += VEC) {
        vec sum = vec_load_n(sums + c, C - c);
        if (a->accumulate) {
            sum += vec_get(a->dx, at + c, C - c, type);
        }
        vec_put(a->dx, at + c, sum, C - c, type);
    }
}

static void fold_part(void *context, int64_t part)
{
    const struct dt_fold_args *a = context;
    struct line l = line_of(part, a->windows.height);
    float *sums = dt_cpu_work(DT_WORK_KERNEL, (size_t)a->windows.channels * sizeof *sums);
    for (int64_t x = 0; x < a->windows.width; x++) {
        if (DT_IS_HALF(a->type)) {
            fold_pixel(a, l, x, sums, DT_HALF);
        } else {
            fold_pixel(a, l, x, sums, DT_F32);
        }
    }
}

static int fold_now(struct dt_pool *pool, struct dt_fold_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, a->windows.batch * a->windows.height, fold_part, a);
    return 0;
}
DT_ISA_KERNEL(fold)

/* ---- the largest value of each window ---- */

INLINE void pool_window(const struct dt_max_pool_args *a, struct line l, int64_t x, enum dt_dtype type)
{
    const struct dt_windows *w = &a->windows;
    int64_t C = w->channels, out = ((l.b * w->out_height + l.y) * w->out_width + x) * C;
    for (int64_t c = 0; c < C; c += VEC) {
        vec best = vec_all(-INFINITY);
        ivec at = vec_index() * 0 - 1;
        for (int64_t k = 0; k < w->size * w->size; k++) {
            int64_t at_y = l.y * w->stride - w->padding + k / w->size, at_x = x * w->stride - w->padding + k % w->size;
            if (at_y < 0 || at_y >= w->height || at_x < 0 || at_x >= w->width) {
                continue;
            }
            vec value = vec_get(a->x, ((l.b * w->height + at_y) * w->width + at_x) * C + c, C - c, type);
            ivec takes = (value > best) | (value != value) | (at < 0);
            best = vec_pick(takes, value, best);
            at = (takes & (int32_t)k) | (~takes & at);
        }
        vec_put(a->y, out + c, best, C - c, type);
        for (int64_t i = 0; i < min64(VEC, C - c); i++) {
            a->at[out + c + i] = (uint8_t)at[i];
        }
    }
}

static void max_pool_part(void *context, int64_t part)
{
    const struct dt_max_pool_args *a = context;
    struct line l = line_of(part, a->windows.out_height);
    for (int64_t x = 0; x < a->windows.out_width; x++) {
        if (DT_IS_HALF(a->type)) {
            pool_window(a, l, x, DT_HALF);
        } else {
            pool_window(a, l, x, DT_F32);
        }
    }
}

static int max_pool_now(struct dt_pool *pool, struct dt_max_pool_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, a->windows.batch * a->windows.out_height, max_pool_part, a);
    return 0;
}
DT_ISA_KERNEL(max_pool)

INLINE void spread_pixel(const struct dt_max_pool_backward_args *a, struct line l, int64_t x, enum dt_dtype type)
{
    const struct dt_windows *w = &a->windows;
    int64_t C = w->channels, to = ((l.b * w->height + l.y) * w->width + x) * C;
    for (int64_t c = 0; c < C; c += VEC) {
        vec sum = {0};
        for (int64_t k = 0; k < w->size * w->size; k++) {
            int64_t oy = window_at(l.y, k / w->size, w, w->out_height), ox = window_at(x, k % w->size, w, w->out_width);
            if (oy < 0 || ox < 0) {
                continue;
            }
            int64_t from = ((l.b * w->out_height + oy) * w->out_width + ox) * C + c;
            vec dy = vec_get(a->dy, from, C - c, type);
            for (int64_t i = 0; i < min64(VEC, C - c); i++) {
                sum[i] += a->at[from + i] == k ? dy[i] : 0.0F;
            }
        }
        vec_put(a->dx, to + c, sum, C - c, type);
    }
}

static void max_pool_backward_part(void *context, int64_t part)
{
    const struct dt_max_pool_backward_args *a = context;
    struct line l = line_of(part, a->windows.height);
    for (int64_t x = 0; x < a->windows.width; x++) {
        if (DT_IS_HALF(a->type)) {
            spread_pixel(a, l, x, DT_HALF);
        } else {
            spread_pixel(a, l, x, DT_F32);
        }
    }
}

static int max_pool_backward_now(struct dt_pool *pool, struct dt_max_pool_backward_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, a->windows.batch * a->windows.height, max_pool_backward_part, a);
    return 0;
}
DT_ISA_KERNEL(max_pool_backward)
