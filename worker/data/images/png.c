/* PNG, by libpng. */
#include "worker/data/images/image.h"

#include <png.h>
#include <stdlib.h>
#include <string.h>

enum { IHDR_AT = 12, SIZE_AT = 16, HEAD_BYTES = 24, LINES_MAX = 1 << 30 };

struct reader {
    png_structp png;
    png_infop info;
    const uint8_t *at;
    size_t left;
    uint8_t *line; /* one row as the file has it, where the image has other channels */
    char text[128];
};

static void on_error(png_structp png, png_const_charp text)
{
    struct reader *r = png_get_error_ptr(png);
    size_t size = strnlen(text, sizeof r->text - 1);
    memcpy(r->text, text, size);
    r->text[size] = 0;
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void read_bytes(png_structp png, png_bytep out, size_t size)
{
    struct reader *r = png_get_io_ptr(png);
    if (size > r->left) {
        png_error(png, "the file is cut off");
    }
    memcpy(out, r->at, size);
    r->at += size;
    r->left -= size;
}

/* Samples of 8 bits, gray or RGB. What libpng would change beyond that, as gamma, stays. */
static int set_up(struct reader *r)
{
    png_byte type = png_get_color_type(r->png, r->info);
    if (type == PNG_COLOR_TYPE_PALETTE) {
        png_set_palette_to_rgb(r->png);
    } else if (type == PNG_COLOR_TYPE_GRAY) {
        png_set_expand_gray_1_2_4_to_8(r->png);
    }
    png_set_strip_16(r->png);
    png_set_strip_alpha(r->png);
    int passes = png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    return passes;
}

static void read_rows(struct reader *r, struct image *out, int channels)
{
    int64_t width = png_get_image_width(r->png, r->info), height = png_get_image_height(r->png, r->info);
    int passes = set_up(r), own = png_get_channels(r->png, r->info);
    if (png_get_rowbytes(r->png, r->info) != (size_t)width * (size_t)own || (own != 1 && own != 3)) {
        png_error(r->png, "unexpected channels");
    }
    bool whole = own != channels && passes > 1; /* passes fill in the pixels of rows bit by bit */
    image_shape(out, width, height, channels);
    if (own != channels) {
        r->line = malloc((size_t)width * (size_t)own * (whole ? (size_t)height : 1));
        if (r->line == NULL) {
            png_error(r->png, "no memory");
        }
    }
    for (int pass = 0; pass < passes; pass++) {
        for (int64_t y = 0; y < height; y++) {
            uint8_t *row = r->line != NULL ? r->line + (whole ? y * width * own : 0) : out->pixels + y * width * own;
            png_read_row(r->png, row, NULL);
            if (r->line != NULL && pass == passes - 1) {
                image_convert(row, own, out->pixels + y * width * channels, channels, width);
            }
        }
    }
}

static int decode(struct reader *r, int channels, struct image *out, struct dt_error *err)
{
    if (setjmp(png_jmpbuf(r->png)) != 0) {
        return dt_fail(err, DT_INVALID, "damaged PNG: %s", r->text);
    }
    png_set_read_fn(r->png, r, read_bytes);
    png_set_user_limits(r->png, LINES_MAX, LINES_MAX); /* image_check_size has the limit */
    png_set_benign_errors(r->png, 1);
    png_read_info(r->png, r->info);
    read_rows(r, out, channels);
    return 0;
}

int png_decode(const void *bytes, size_t size, int channels, struct image *out, struct dt_error *err)
{
    int64_t width, height;
    struct reader r = {.at = bytes, .left = size};
    if (png_measure(bytes, size, &width, &height, err) != 0) {
        return -1;
    }
    r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
    r.info = r.png != NULL ? png_create_info_struct(r.png) : NULL;
    int rc = r.info != NULL ? decode(&r, channels, out, err) : dt_fail(err, DT_NO_MEMORY, "no memory for libpng");
    png_destroy_read_struct(&r.png, &r.info, NULL);
    free(r.line);
    return rc;
}

int png_measure(const void *bytes, size_t size, int64_t *width, int64_t *height, struct dt_error *err)
{
    const uint8_t *b = bytes;
    if (size < HEAD_BYTES || memcmp(b + IHDR_AT, "IHDR", 4) != 0) {
        return dt_fail(err, DT_INVALID, "damaged PNG: %s",
                       size < HEAD_BYTES ? "the file is cut off" : "it does not begin with IHDR");
    }
    *width = png_get_uint_32(b + SIZE_AT);
    *height = png_get_uint_32(b + SIZE_AT + 4);
    return image_check_size(*width, *height, err);
}
