/* Images: from the bytes of a file to pixels, and to another size. All functions may be called by
 * several threads at once, each with images of its own. */
#ifndef DT_WORKER_DATA_IMAGES_IMAGE_H
#define DT_WORKER_DATA_IMAGES_IMAGE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* PIL refuses larger ones, too: a few bytes may claim to be a picture of terabytes. */
#define IMAGE_PIXELS_MAX 178956970

struct image {
    int64_t width, height;
    int channels;    /* 1: gray, 3: red, green, blue */
    uint8_t *pixels; /* (height, width, channels) */
    size_t room;     /* bytes at pixels; the memory is used again for the next image */
};

/* Gives `im` this shape and room for its pixels, whose values are undefined. */
void image_shape(struct image *im, int64_t width, int64_t height, int channels);
void image_clear(struct image *im);

/* True if a name ends as those of image files do, in any case: .png .jpg .jpeg .ppm .pgm, and .bmp
 * .tif .tiff .webp, which image_decode refuses by name. Other files in a folder are no images. */
bool image_has_name(const char *name);

/* Decodes PNG, JPEG, PPM or PGM (binary or text), whichever the first bytes say, to `channels`: 1
 * or 3. The pixels are those of PIL's Image.convert("L" or "RGB"): alpha, EXIF and color profiles
 * are ignored. Of 16 bits PNG keeps the high byte, and PPM and PGM round to 255 steps. DT_INVALID:
 * no such file, damaged or cut off, or more than IMAGE_PIXELS_MAX. The error does not name the
 * file. */
int image_decode(const void *bytes, size_t size, int channels, struct image *out, struct dt_error *err);
/* Width and height as the file's header says. */
int image_measure(const void *bytes, size_t size, int64_t *width, int64_t *height, struct dt_error *err);
/* The parts of these two for one kind of file; png_measure needs no more than the first 24 bytes. */
int png_decode(const void *bytes, size_t size, int channels, struct image *out, struct dt_error *err);
int jpeg_decode(const void *bytes, size_t size, int channels, struct image *out, struct dt_error *err);
int pnm_decode(const void *bytes, size_t size, int channels, struct image *out, struct dt_error *err);
int png_measure(const void *bytes, size_t size, int64_t *width, int64_t *height, struct dt_error *err);
int jpeg_measure(const void *bytes, size_t size, int64_t *width, int64_t *height, struct dt_error *err);
int pnm_measure(const void *bytes, size_t size, int64_t *width, int64_t *height, struct dt_error *err);
/* DT_INVALID if an image of this size is empty or has too many pixels. */
int image_check_size(int64_t width, int64_t height, struct dt_error *err);
/* Copies `count` pixels between channel counts of 1 and 3: gray is (19595 R + 38470 G + 7471 B +
 * 2^15) / 2^16, as PIL has it. */
void image_convert(const uint8_t *from, int from_channels, uint8_t *to, int to_channels, int64_t count);

struct image_box { /* a part of an image, within it */
    int64_t left, top, width, height;
};
/* Resizes a part of `in` to width x height with a triangle filter that is as wide as the step
 * between pixels, so smaller images do not alias. Bit for bit Pillow 13's
 * Image.crop(box).resize(BILINEAR). `between`, which is scratch, and `out` are other images than
 * `in`. */
void image_resize(const struct image *in, const struct image_box *box, int64_t width, int64_t height,
                  struct image *between, struct image *out);

#endif
