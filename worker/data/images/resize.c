/* Resampling as Pillow 13 does it: weights in fixed point, and bytes between the two passes. Rows
 * come first, unless the height loses more than twice the pixels that the width does. */
#include "worker/data/images/image.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FRACTION_BITS = 32 - 8 - 2 };

struct axis { /* which pixels of a line give each pixel of the new line */
    int64_t taps;
    int64_t *first, *count; /* per new pixel */
    int32_t *weights;       /* (new pixels, taps) */
};

static double triangle(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static int32_t fixed(double weight)
{
    return (int32_t)(0.5 + weight * (1 << FRACTION_BITS)); /* no weight is below 0 */
}

static void open_axis(struct axis *a, int64_t from, int64_t to)
{
    double scale = (double)from / (double)to, support = scale < 1 ? 1 : scale;
    a->taps = (int64_t)ceil(support) * 2 + 1;
    a->first = dt_alloc((size_t)to * 2 * sizeof *a->first);
    a->count = a->first + to;
    a->weights = dt_alloc((size_t)(to * a->taps) * sizeof *a->weights);
    double *w = dt_alloc((size_t)a->taps * sizeof *w);
    for (int64_t i = 0; i < to; i++) {
        double center = ((double)i + 0.5) * scale, sum = 0;
        int64_t first = (int64_t)(center - support + 0.5), end = (int64_t)(center + support + 0.5);
        first = first < 0 ? 0 : first;
        end = end > from ? from : end;
        for (int64_t k = 0; k < end - first; k++) {
            w[k] = triangle(((double)(k + first) - center + 0.5) * (1.0 / support));
            sum += w[k];
        }
        for (int64_t k = 0; k < end - first; k++) {
            a->weights[i * a->taps + k] = fixed(sum != 0 ? w[k] / sum : w[k]);
        }
        a->first[i] = first;
        a->count[i] = end - first;
    }
    free(w);
}

static void close_axis(struct axis *a)
{
    free(a->first);
    free(a->weights);
}

static uint8_t rounded(int32_t sum)
{
    int32_t v = sum >> FRACTION_BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

static void resize_row_gray(const struct axis *a, const uint8_t *in, uint8_t *out, int64_t width)
{
    for (int64_t i = 0; i < width; i++) {
        const int32_t *w = a->weights + i * a->taps;
        const uint8_t *p = in + a->first[i];
        int32_t sum = 1 << (FRACTION_BITS - 1);
        for (int64_t k = 0; k < a->count[i]; k++) {
            sum += p[k] * w[k];
        }
        out[i] = rounded(sum);
    }
}

static void resize_row_rgb(const struct axis *a, const uint8_t *in, uint8_t *out, int64_t width)
{
    for (int64_t i = 0; i < width; i++) {
        const int32_t *w = a->weights + i * a->taps;
        const uint8_t *p = in + 3 * a->first[i];
        int32_t r = 1 << (FRACTION_BITS - 1), g = r, b = r;
        for (int64_t k = 0; k < a->count[i]; k++, p += 3) {
            r += p[0] * w[k];
            g += p[1] * w[k];
            b += p[2] * w[k];
        }
        out[3 * i] = rounded(r);
        out[3 * i + 1] = rounded(g);
        out[3 * i + 2] = rounded(b);
    }
}

/* A part of an image: the first pixel, and the bytes from one row to the next. */
struct view {
    const uint8_t *pixels;
    int64_t stride, width, height;
    int channels;
};

static struct view view_of(const struct image *in, const struct image_box *box)
{
    int64_t stride = in->width * in->channels;
    return (struct view){in->pixels + box->top * stride + box->left * in->channels, stride, box->width, box->height,
                         in->channels};
}

static void resize_columns(const struct view *in, int64_t height, struct image *out)
{
    struct axis a;
    int64_t bytes = in->width * in->channels;
    int32_t *sums = dt_alloc((size_t)bytes * sizeof *sums);
    open_axis(&a, in->height, height);
    image_shape(out, in->width, height, in->channels);
    for (int64_t y = 0; y < height; y++) {
        for (int64_t i = 0; i < bytes; i++) {
            sums[i] = 1 << (FRACTION_BITS - 1);
        }
        for (int64_t k = 0; k < a.count[y]; k++) {
            const uint8_t *p = in->pixels + (a.first[y] + k) * in->stride;
            int32_t w = a.weights[y * a.taps + k];
            for (int64_t i = 0; i < bytes; i++) {
                sums[i] += p[i] * w;
            }
        }
        for (int64_t i = 0; i < bytes; i++) {
            out->pixels[y * bytes + i] = rounded(sums[i]);
        }
    }
    close_axis(&a);
    free(sums);
}

/* With the same width the rows are copied. */
static void resize_rows(const struct view *in, int64_t width, struct image *out)
{
    struct axis a;
    open_axis(&a, in->width, width);
    image_shape(out, width, in->height, in->channels);
    for (int64_t y = 0; y < in->height; y++) {
        const uint8_t *from = in->pixels + y * in->stride;
        uint8_t *to = out->pixels + y * width * in->channels;
        if (width == in->width) {
            memcpy(to, from, (size_t)(width * in->channels));
        } else if (in->channels == 1) {
            resize_row_gray(&a, from, to, width);
        } else {
            resize_row_rgb(&a, from, to, width);
        }
    }
    close_axis(&a);
}

void image_resize(const struct image *in, const struct image_box *box, int64_t width, int64_t height,
                  struct image *between, struct image *out)
{
    struct view view = view_of(in, box);
    bool columns = height != box->height, rows = width != box->width || !columns;
    int64_t lost = box->height - height;
    bool columns_first = lost > 0 && lost > 2 * (box->width - width);
    if (!columns) {
        resize_rows(&view, width, out);
    } else if (!rows) {
        resize_columns(&view, height, out);
    } else if (columns_first) {
        resize_columns(&view, height, between);
        view = view_of(between, &(struct image_box){0, 0, between->width, between->height});
        resize_rows(&view, width, out);
    } else {
        resize_rows(&view, width, between);
        view = view_of(between, &(struct image_box){0, 0, between->width, between->height});
        resize_columns(&view, height, out);
    }
}
