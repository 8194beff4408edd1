/* Which kind of file the bytes are, and what all kinds share. */
#include "worker/data/images/image.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void image_shape(struct image *im, int64_t width, int64_t height, int channels)
{
    size_t bytes = (size_t)width * (size_t)height * (size_t)channels;
    if (bytes > im->room) {
        free(im->pixels);
        im->pixels = dt_realloc(NULL, bytes);
        im->room = bytes;
    }
    im->width = width;
    im->height = height;
    im->channels = channels;
}

void image_clear(struct image *im)
{
    free(im->pixels);
    *im = (struct image){0};
}

bool image_has_name(const char *name)
{
    static const char *const ends[] = {".png", ".jpg", ".jpeg", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp"};
    const char *dot = strrchr(name, '.');
    bool found = false;
    for (size_t i = 0; dot != NULL && i < sizeof ends / sizeof ends[0]; i++) {
        found = found || strcasecmp(dot, ends[i]) == 0;
    }
    return found;
}

int image_check_size(int64_t width, int64_t height, struct dt_error *err)
{
    if (width < 1 || height < 1) {
        return dt_fail(err, DT_INVALID, "the image is %" PRId64 " x %" PRId64 ", which is empty", width, height);
    }
    if (height > IMAGE_PIXELS_MAX / width) {
        return dt_fail(err, DT_INVALID, "the image is %" PRId64 " x %" PRId64 "; at most %d pixels are read", width,
                       height, IMAGE_PIXELS_MAX);
    }
    return 0;
}

void image_convert(const uint8_t *from, int from_channels, uint8_t *to, int to_channels, int64_t count)
{
    if (from_channels == to_channels) {
        memcpy(to, from, (size_t)(count * to_channels));
    } else if (from_channels == 1) {
        for (int64_t i = 0; i < count; i++) {
            to[3 * i] = to[3 * i + 1] = to[3 * i + 2] = from[i];
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            const uint8_t *p = from + 3 * i;
            to[i] = (uint8_t)((p[0] * 19595u + p[1] * 38470u + p[2] * 7471u + 0x8000u) >> 16);
        }
    }
}

/* ---- kinds of files ---- */

static const struct kind {
    const char *first; /* bytes at offset `at` */
    size_t at, size;
    const char *name; /* of a kind that is not read */
    int (*decode)(const void *bytes, size_t size, int channels, struct image *out, struct dt_error *err);
    int (*measure)(const void *bytes, size_t size, int64_t *width, int64_t *height, struct dt_error *err);
} kinds[] = {
    {"\x89PNG\r\n\x1a\n", 0, 8, NULL, png_decode, png_measure},
    {"\xff\xd8\xff", 0, 3, NULL, jpeg_decode, jpeg_measure},
    {"P2", 0, 2, NULL, pnm_decode, pnm_measure},
    {"P3", 0, 2, NULL, pnm_decode, pnm_measure},
    {"P5", 0, 2, NULL, pnm_decode, pnm_measure},
    {"P6", 0, 2, NULL, pnm_decode, pnm_measure},
    {"P1", 0, 2, "a PBM file", NULL, NULL},
    {"P4", 0, 2, "a PBM file", NULL, NULL},
    {"GIF8", 0, 4, "a GIF file", NULL, NULL},
    {"BM", 0, 2, "a BMP file", NULL, NULL},
    {"II*\0", 0, 4, "a TIFF file", NULL, NULL},
    {"MM\0*", 0, 4, "a TIFF file", NULL, NULL},
    {"WEBP", 8, 4, "a WebP file", NULL, NULL},
    {"ftyp", 4, 4, "a HEIF or AVIF file", NULL, NULL},
};

static const struct kind *find_kind(const void *bytes, size_t size, struct dt_error *err)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const struct kind *k = &kinds[i];
        if (size < k->at + k->size || memcmp((const char *)bytes + k->at, k->first, k->size) != 0) {
            continue;
        }
        if (k->decode == NULL) {
            (void)dt_fail(err, DT_INVALID, "is %s, which is not read; convert it to PNG or JPEG", k->name);
            return NULL;
        }
        return k;
    }
    (void)dt_fail(err, DT_INVALID, size == 0 ? "is empty" : "is no PNG, JPEG, PPM or PGM file");
    return NULL;
}

int image_decode(const void *bytes, size_t size, int channels, struct image *out, struct dt_error *err)
{
    const struct kind *k = find_kind(bytes, size, err);
    return k != NULL ? k->decode(bytes, size, channels, out, err) : -1;
}

int image_measure(const void *bytes, size_t size, int64_t *width, int64_t *height, struct dt_error *err)
{
    const struct kind *k = find_kind(bytes, size, err);
    return k != NULL ? k->measure(bytes, size, width, height, err) : -1;
}
