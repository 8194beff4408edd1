/* Convolutions in parts, by rows that every device has, and the memory that calls take. */
#include "kernels/convolution.h"

/* Bytes of unfolded images at a time: what a cache holds, and enough rows for a GPU. */
#define UNFOLDED_BYTES ((int64_t)8 << 20)
#define UNFOLDED_BYTES_DEVICE ((int64_t)128 << 20)
/* The sums of weights in front of unfolded images end on a multiple of this. */
#define ALIGNMENT 256

enum {
    WINOGRAD_CHANNELS = 16, /* fewer leave more work with the sums around the products than these save */
    WINOGRAD_BYTES = 640 << 10,
    WINOGRAD_LEAST = 64,
    WINOGRAD_STEP = 16,
    WINOGRAD_PANEL = 48 /* columns of panels are a divisor of it (DT_PACKED) */
};

static int64_t more(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- sizes ---- */

static int64_t rows_of(const struct dt_windows *w, int64_t samples)
{
    return samples * w->out_height * w->out_width;
}

/* Values below a window. */
static int64_t columns_of(const struct dt_windows *w)
{
    return w->channels * w->size * w->size;
}

bool dt_convolution_is_plain(const struct dt_windows *w, bool planar)
{
    return w->size == 1 && w->stride == 1 && !planar;
}

int64_t dt_convolution_at_once(const struct dt_windows *w, bool planar, enum dt_dtype type, bool own_memory)
{
    int64_t bytes = rows_of(w, 1) * columns_of(w) * (int64_t)dt_dtype_size(type);
    int64_t count = more((own_memory ? UNFOLDED_BYTES_DEVICE : UNFOLDED_BYTES) / bytes, 1);
    return dt_convolution_is_plain(w, planar) || count > w->batch ? w->batch : count;
}

bool dt_convolution_is_winograd(const struct dt_windows *w, int64_t out, bool planar)
{
    return w->size == 3 && w->stride == 1 && w->padding == 1 && !planar && w->channels >= WINOGRAD_CHANNELS &&
           out >= WINOGRAD_CHANNELS;
}

int dt_winograd_side(enum dt_dtype type)
{
    return dt_dtype_half(type) ? 6 : 4;
}

int64_t dt_winograd_chunk(int64_t in, int64_t out, int side)
{
    int64_t tiles = WINOGRAD_BYTES / ((int64_t)sizeof(float) * side * side * (in + out));
    return more(tiles / WINOGRAD_STEP * WINOGRAD_STEP, WINOGRAD_LEAST);
}

static int64_t padded(int64_t columns)
{
    return (columns + WINOGRAD_PANEL - 1) / WINOGRAD_PANEL * WINOGRAD_PANEL;
}

/* Weights as panels of either pass, or sums of their gradient and a chunk of tiles behind them. */
static int64_t winograd_bytes(const struct dt_windows *w, int64_t out, int side)
{
    int64_t in = w->channels, apart = DT_WINOGRAD_APART, packed = more(in * padded(out), out * padded(in)) + apart;
    int64_t gradient = in * out + dt_winograd_chunk(in, out, side) * (padded(in) + out) + 3 * apart;
    return side * side * more(packed, gradient) * (int64_t)sizeof(float);
}

/* Gradients in 16 bits would be rounded for each piece of the batch: then the sum of the pieces is F32. */
static int64_t weight_sum_bytes(const struct dt_windows *w, int64_t out, enum dt_dtype type)
{
    int64_t bytes = out * columns_of(w) * (int64_t)sizeof(float);
    return dt_dtype_half(type) ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : 0;
}

int64_t dt_convolution_work(const struct dt_windows *w, int64_t out, bool planar, enum dt_dtype type, bool own_memory)
{
    int64_t samples = dt_convolution_at_once(w, planar, type, own_memory);
    int64_t unfolded =
        dt_convolution_is_plain(w, planar) ? 0 : rows_of(w, samples) * columns_of(w) * (int64_t)dt_dtype_size(type);
    int64_t parts = unfolded + (samples < w->batch ? weight_sum_bytes(w, out, type) : 0);
    return dt_convolution_is_winograd(w, out, planar) ? more(parts, winograd_bytes(w, out, dt_winograd_side(type)))
                                                      : parts;
}

/* ---- parts ---- */

/* Element `at` of a tensor. */
static void *element(const void *x, int64_t at, enum dt_dtype type)
{
    return (char *)(uintptr_t)x + (size_t)at * dt_dtype_size(type);
}

/* The windows of fewer samples. */
static struct dt_windows windows_of(const struct dt_windows *w, int64_t samples)
{
    struct dt_windows some = *w;
    some.batch = samples;
    return some;
}

/* The samples of the next part. */
static int64_t samples_from(const struct dt_windows *w, int64_t first, int64_t at_once)
{
    return w->batch - first < at_once ? w->batch - first : at_once;
}

/* Images in their own unfolded form, or unfolded to `to`. */
struct images {
    void *to;
    const void *x;
    const struct dt_windows *windows;
    bool planar;
    enum dt_dtype type, x_type;
};

static const void *unfold(const struct dt_kernels *k, struct dt_stream *s, const struct images *i, int64_t first,
                          int64_t count)
{
    const struct dt_windows *w = i->windows;
    const void *x = element(i->x, first * w->height * w->width * w->channels, i->x_type);
    if (dt_convolution_is_plain(w, i->planar)) {
        return x;
    }
    k->unfold(s, &(struct dt_unfold_args){.out = i->to,
                                          .x = x,
                                          .windows = windows_of(w, count),
                                          .planar = i->planar,
                                          .type = i->type,
                                          .x_type = i->x_type});
    return i->to;
}

void dt_convolution_parts(const struct dt_kernels *k, struct dt_stream *s, const struct dt_convolution_args *a)
{
    const struct dt_windows *w = &a->windows;
    const struct images images = {a->work, a->x, w, a->planar, a->type, a->x_type};
    for (int64_t first = 0, n; first < w->batch; first += n) {
        n = samples_from(w, first, a->at_once);
        k->matmul(s, &(struct dt_matmul_args){.c = element(a->y, rows_of(w, first) * a->out, a->type),
                                              .a = unfold(k, s, &images, first, n),
                                              .b = a->weights,
                                              .m = rows_of(w, n),
                                              .n = a->out,
                                              .k = columns_of(w),
                                              .b_transposed = true,
                                              .type = a->type,
                                              .c_type = a->type,
                                              .busy_sms = a->busy_sms});
    }
}

void dt_convolution_input_parts(const struct dt_kernels *k, struct dt_stream *s,
                                const struct dt_convolution_input_args *a)
{
    const struct dt_windows *w = &a->windows;
    bool plain = dt_convolution_is_plain(w, false);
    for (int64_t first = 0, n; first < w->batch; first += n) {
        n = samples_from(w, first, a->at_once);
        void *to = element(a->dx, first * w->height * w->width * w->channels, a->type);
        void *columns = plain ? to : a->work;
        k->matmul(s, &(struct dt_matmul_args){.c = columns,
                                              .a = element(a->dy, rows_of(w, first) * a->out, a->type),
                                              .b = a->weights,
                                              .m = rows_of(w, n),
                                              .n = columns_of(w),
                                              .k = a->out,
                                              .accumulate = plain && a->accumulate,
                                              .type = a->type,
                                              .c_type = a->type,
                                              .busy_sms = a->busy_sms});
        if (!plain) {
            k->fold(s, &(struct dt_fold_args){.dx = to,
                                              .dout = columns,
                                              .windows = windows_of(w, n),
                                              .accumulate = a->accumulate,
                                              .type = a->type});
        }
    }
}

void dt_convolution_weights_parts(const struct dt_kernels *k, struct dt_stream *s,
                                  const struct dt_convolution_weights_args *a)
{
    const struct dt_windows *w = &a->windows;
    bool apart = dt_dtype_half(a->type) && a->grad_type == a->type && w->batch > a->at_once && !a->accumulate;
    struct images images = {a->work, a->x, w, a->planar, a->type, a->x_type};
    if (w->batch > a->at_once) {
        images.to = element(a->work, weight_sum_bytes(w, a->out, a->type), DT_U8);
    }
    for (int64_t first = 0, n; first < w->batch; first += n) {
        n = samples_from(w, first, a->at_once);
        k->matmul(s, &(struct dt_matmul_args){.c = apart ? a->work : a->dweights,
                                              .a = element(a->dy, rows_of(w, first) * a->out, a->type),
                                              .b = unfold(k, s, &images, first, n),
                                              .m = a->out,
                                              .n = columns_of(w),
                                              .k = rows_of(w, n),
                                              .a_transposed = true,
                                              .accumulate = a->accumulate || first > 0,
                                              .type = a->type,
                                              .c_type = apart ? DT_F32 : a->grad_type,
                                              .busy_sms = a->busy_sms});
    }
    if (apart) {
        k->cast(s, &(struct dt_cast_args){a->dweights, a->work, a->out * columns_of(w), a->grad_type, DT_F32});
    }
}

/* ---- the choice ---- */

#define CONVOLUTION(name)                                                                                              \
    void dt_##name(const struct dt_kernels *k, struct dt_stream *s, const struct dt_##name##_args *a)                  \
    {                                                                                                                  \
        if (k->name == NULL || !k->name(s, a)) {                                                                       \
            dt_##name##_parts(k, s, a);                                                                                \
        }                                                                                                              \
    }
#include "kernels/convolutions.def"
