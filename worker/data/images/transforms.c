/* See the header. An image is resized, or a random part of it is; then a window of it, which may
 * reach beyond its edges, is mirrored or not and becomes numbers. */
#include "worker/data/images/transforms.h"

#include "base/mix.h"

#include <inttypes.h>
#include <math.h>

#define AUGMENTATION UINT64_C(0x6175676d656e74) /* a stream of its own among those of the job's seed */
enum { BYTES = 256, TRIES = 10 };

struct draws { /* random numbers of one sample in one epoch */
    uint64_t key, count;
};

static uint64_t draw(struct draws *d)
{
    return dt_mix64(d->key + d->count++);
}

/* From [0, 1). */
static double draw_share(struct draws *d)
{
    return (double)(draw(d) >> 11) * 0x1p-53;
}

/* From [0, below). */
static int64_t draw_below(struct draws *d, int64_t below)
{
    return (int64_t)((draw(d) >> 32) * (uint64_t)below >> 32);
}

static int64_t size_of(const struct dt_numbers *size, int i)
{
    return (int64_t)size->of[size->count > 1 ? i : 0]; /* height, width */
}

static double number_of(const struct dt_numbers *of, int channel, double fallback)
{
    return of->count == 0 ? fallback : of->of[of->count > 1 ? channel : 0];
}

int transforms_open(struct transforms *t, const struct job_transforms *job, bool training, uint64_t seed, int channels,
                    int64_t height, int64_t width, struct dt_error *err)
{
    *t = (struct transforms){
        .job = *job, .training = training, .seed = seed, .channels = channels, .width = width, .height = height};
    if (channels != 1 && channels != 3) {
        return dt_fail(err, DT_INVALID,
                       "model.num_channels: is %d, and images have 1 or 3; safetensors may have others", channels);
    }
    const struct dt_numbers *const lists[] = {&job->mean, &job->std};
    for (int i = 0; i < 2; i++) {
        if (lists[i]->count > 1 && lists[i]->count != channels) {
            return dt_fail(err, DT_INVALID, "transforms.%s: has %d numbers; give one, or one for each of %d channels",
                           i == 0 ? "mean" : "std", lists[i]->count, channels);
        }
    }
    for (int c = 0; c < channels; c++) {
        float mean = (float)number_of(&job->mean, c, 0), deviation = (float)number_of(&job->std, c, 1);
        for (int i = 0; i < BYTES; i++) { /* as torchvision's ToTensor and Normalize, in fp32 */
            t->value[c][i] = ((float)i / 255.0F - mean) / deviation;
        }
    }
    return 0;
}

static bool crops_randomly(const struct transforms *t)
{
    return t->training && (t->job.random_crop.count > 0 || t->job.random_resized_crop.count > 0);
}

/* The size after `resize`, whose one number is that of the shorter side. */
static void resized_size(const struct transforms *t, int64_t *width, int64_t *height)
{
    const struct dt_numbers *to = &t->job.resize;
    if (to->count == 2) {
        *height = size_of(to, 0);
        *width = size_of(to, 1);
    } else if (to->count == 1) {
        int64_t *shorter = *width <= *height ? width : height, *longer = shorter == width ? height : width;
        *longer = (int64_t)((double)(size_of(to, 0) * *longer) / (double)*shorter);
        *shorter = size_of(to, 0);
    }
}

/* The size of the crop, or false: there is none. */
static bool crop_size(const struct transforms *t, int64_t *width, int64_t *height)
{
    const struct dt_numbers *to =
        t->training && t->job.random_crop.count > 0 ? &t->job.random_crop : &t->job.center_crop;
    if (to->count == 0) {
        return false;
    }
    *height = size_of(to, 0);
    *width = size_of(to, 1);
    return true;
}

int transforms_check(const struct transforms *t, int64_t width, int64_t height, struct dt_error *err)
{
    int64_t was_width = width, was_height = height, padding = 2 * t->job.padding;
    if (t->training && t->job.random_resized_crop.count > 0) {
        height = size_of(&t->job.random_resized_crop, 0);
        width = size_of(&t->job.random_resized_crop, 1);
    } else {
        resized_size(t, &width, &height);
        if (image_check_size(width, height, err) != 0) {
            return dt_wrap(err, "transforms.resize");
        }
        int64_t crop_width, crop_height;
        bool crops = crop_size(t, &crop_width, &crop_height);
        if (crops && crops_randomly(t) && (crop_width > width + padding || crop_height > height + padding)) {
            return dt_fail(err, DT_INVALID,
                           "is %" PRId64 " x %" PRId64 " with padding, smaller than transforms.random_crop (%" PRId64
                           " x %" PRId64 "); resize it first, or give more padding",
                           height + padding, width + padding, crop_height, crop_width);
        }
        width = crops ? crop_width : width;
        height = crops ? crop_height : height;
    }
    if (width == t->width && height == t->height) {
        return 0;
    }
    return dt_fail(err, DT_INVALID,
                   "is %" PRId64 " x %" PRId64 " (height x width)%s, but the model reads %" PRId64 " x %" PRId64
                   "; set transforms.resize to [%" PRId64 ", %" PRId64 "], or change model.image_size",
                   height, width, width != was_width || height != was_height ? " after the transforms" : "", t->height,
                   t->width, t->height, t->width);
}

/* torchvision's RandomResizedCrop. */
static struct image_box random_box(const struct transforms *t, const struct image *in, struct draws *d)
{
    const double *scale = t->job.scale.of, *ratio = t->job.ratio.of;
    double area = (double)(in->width * in->height), low = log(ratio[0]), high = log(ratio[1]);
    for (int i = 0; i < TRIES; i++) {
        double target = area * (scale[0] + (scale[1] - scale[0]) * draw_share(d));
        double aspect = exp(low + (high - low) * draw_share(d));
        int64_t width = (int64_t)nearbyint(sqrt(target * aspect)), height = (int64_t)nearbyint(sqrt(target / aspect));
        if (width > 0 && width <= in->width && height > 0 && height <= in->height) {
            int64_t top = draw_below(d, in->height - height + 1), left = draw_below(d, in->width - width + 1);
            return (struct image_box){left, top, width, height};
        }
    }
    double own = (double)in->width / (double)in->height; /* the middle, as much of it as the ratio allows */
    struct image_box box = {0, 0, in->width, in->height};
    if (own < ratio[0]) {
        box.height = (int64_t)nearbyint((double)in->width / ratio[0]);
    } else if (own > ratio[1]) {
        box.width = (int64_t)nearbyint((double)in->height * ratio[1]);
    }
    box.left = (in->width - box.width) / 2;
    box.top = (in->height - box.height) / 2;
    return box;
}

/* Where the middle `part` of `whole` begins; below 0 if it is larger. */
static int64_t middle(int64_t whole, int64_t part)
{
    return part > whole ? -((part - whole) / 2) : (int64_t)nearbyint((double)(whole - part) / 2.0);
}

static int64_t between(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}

/* Writes one channel of one row of a window that begins at `left`: pixels from `from` on, one in
 * `step` bytes, and zeros beyond the image's edges. */
static void write_row(const struct transforms *t, const uint8_t *from, int64_t step, int64_t width, int64_t left,
                      const float *value, bool mirror, float *out)
{
    int64_t begin = between(-left, 0, t->width), end = between(width - left, begin, t->width);
    int64_t by = mirror ? -1 : 1;
    float *to = mirror ? out + t->width - 1 : out;
    for (int64_t x = 0; x < begin; x++) {
        to[by * x] = value[0];
    }
    for (int64_t x = begin; x < end; x++) {
        to[by * x] = value[from[(left + x) * step]];
    }
    for (int64_t x = end; x < t->width; x++) {
        to[by * x] = value[0];
    }
}

/* Writes the window of the image that begins at (left, top). */
static void write_window(const struct transforms *t, const struct image *in, int64_t left, int64_t top, bool mirror,
                         float *out)
{
    for (int c = 0; c < t->channels; c++) {
        for (int64_t y = 0; y < t->height; y++) {
            bool inside = top + y >= 0 && top + y < in->height;
            const uint8_t *row = in->pixels + (inside ? (top + y) * in->width * in->channels : 0) + c;
            write_row(t, row, in->channels, inside ? in->width : 0, inside ? left : 0, t->value[c], mirror,
                      out + ((int64_t)c * t->height + y) * t->width);
        }
    }
}

int transforms_apply(const struct transforms *t, const struct image *in, int64_t epoch, int64_t sample,
                     struct image *rows, struct image *resized, float *out, struct dt_error *err)
{
    if (transforms_check(t, in->width, in->height, err) != 0) {
        return -1;
    }
    struct draws d = {dt_mix64(dt_mix64(dt_mix64(t->seed ^ AUGMENTATION) ^ (uint64_t)epoch) ^ (uint64_t)sample), 0};
    int64_t left = 0, top = 0, width = in->width, height = in->height;
    struct image_box box = {0, 0, width, height};
    bool whole = !t->training || t->job.random_resized_crop.count == 0;
    if (whole) {
        resized_size(t, &width, &height);
    } else {
        box = random_box(t, in, &d);
        width = t->width;
        height = t->height;
    }
    const struct image *x = in;
    if (!whole || width != in->width || height != in->height) {
        image_resize(in, &box, width, height, rows, resized);
        x = resized;
    }
    if (whole && crops_randomly(t)) {
        top = draw_below(&d, height + 2 * t->job.padding - t->height + 1) - t->job.padding;
        left = draw_below(&d, width + 2 * t->job.padding - t->width + 1) - t->job.padding;
    } else if (whole) {
        top = middle(height, t->height);
        left = middle(width, t->width);
    }
    bool mirror = t->training && draw_share(&d) < t->job.random_horizontal_flip;
    write_window(t, x, left, top, mirror, out);
    return 0;
}
