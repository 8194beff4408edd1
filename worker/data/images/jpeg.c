/* JPEG, by libjpeg-turbo: its default methods, which PIL uses, too. What libjpeg only warns about
 * is an error here where pixels are missing or wrong. */
#include "worker/data/images/image.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

/* A progressive file of a few kilobytes may ask for hours of work by its scans; real ones have ten.
 * */
enum { SCANS_MAX = 500 };

struct reader {
    struct jpeg_error_mgr errors; /* first, since libjpeg knows only this */
    struct jpeg_progress_mgr progress;
    struct jpeg_decompress_struct jpeg;
    jmp_buf back;
    uint8_t *line; /* one row as the file has it, where the image has other channels */
    char text[JMSG_LENGTH_MAX];
};

static void on_error(j_common_ptr jpeg)
{
    struct reader *r = (struct reader *)jpeg->err;
    jpeg->err->format_message(jpeg, r->text);
    longjmp(r->back, 1);
}

/* level -1: a warning; others are for traces. */
static void on_message(j_common_ptr jpeg, int level)
{
    static const int damage[] = {JWRN_HIT_MARKER, JWRN_HUFF_BAD_CODE, JWRN_JPEG_EOF, JWRN_MUST_RESYNC};
    for (size_t i = 0; level < 0 && i < sizeof damage / sizeof damage[0]; i++) {
        if (jpeg->err->msg_code == damage[i]) {
            on_error(jpeg);
        }
    }
}

static void on_progress(j_common_ptr jpeg)
{
    struct reader *r = (struct reader *)jpeg->err;
    if (r->jpeg.input_scan_number > SCANS_MAX) {
        (void)snprintf(r->text, sizeof r->text, "more than %d scans", (int)SCANS_MAX);
        longjmp(r->back, 1);
    }
}

/* (a * b) / 255, rounded, as PIL has it. */
static unsigned scaled(unsigned a, unsigned b)
{
    unsigned x = a * b + 128;
    return (x + (x >> 8)) >> 8;
}

/* CMYK as Adobe writes it, inverted, to RGB in place: rows of four bytes become rows of three. */
static void convert_cmyk(uint8_t *row, int64_t width)
{
    for (int64_t i = 0; i < width; i++) {
        unsigned light = row[4 * i + 3];
        for (int c = 0; c < 3; c++) {
            row[3 * i + c] = (uint8_t)(light - scaled(255u - row[4 * i + c], light));
        }
    }
}

static void read_rows(struct reader *r, struct image *out, int channels)
{
    struct jpeg_decompress_struct *j = &r->jpeg;
    int own = j->num_components;
    j->out_color_space = own == 1 ? JCS_GRAYSCALE : own == 4 ? JCS_CMYK : JCS_RGB;
    (void)jpeg_start_decompress(j);
    int64_t width = j->output_width;
    image_shape(out, width, j->output_height, channels);
    if (own != channels) {
        r->line = malloc((size_t)width * (size_t)own);
        if (r->line == NULL) {
            ERREXIT1(j, JERR_OUT_OF_MEMORY, 0);
        }
    }
    while (j->output_scanline < j->output_height) {
        uint8_t *to = out->pixels + (int64_t)j->output_scanline * width * channels;
        JSAMPROW row = r->line != NULL ? r->line : to;
        (void)jpeg_read_scanlines(j, &row, 1);
        if (own == 4) {
            convert_cmyk(r->line, width);
        }
        if (r->line != NULL) {
            image_convert(r->line, own == 4 ? 3 : own, to, channels, width);
        }
    }
}

/* Reads the header, and the pixels if `out` is not null. */
static int work(struct reader *r, const void *bytes, size_t size, int channels, struct image *out, struct dt_error *err)
{
    if (setjmp(r->back) != 0) {
        return dt_fail(err, DT_INVALID, "damaged JPEG: %s", r->text);
    }
    jpeg_create_decompress(&r->jpeg);
    r->jpeg.progress = &r->progress;
    jpeg_mem_src(&r->jpeg, bytes, size);
    (void)jpeg_read_header(&r->jpeg, TRUE);
    int own = r->jpeg.num_components;
    if (own != 1 && own != 3 && own != 4) {
        return dt_fail(err, DT_INVALID, "JPEG of %d channels; gray, RGB and CMYK are read", own);
    }
    if (image_check_size(r->jpeg.image_width, r->jpeg.image_height, err) != 0) {
        return -1;
    }
    if (out != NULL) {
        read_rows(r, out, channels);
    }
    return 0;
}

static void open_reader(struct reader *r)
{
    memset(r, 0, sizeof *r);
    r->jpeg.err = jpeg_std_error(&r->errors);
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    r->progress.progress_monitor = on_progress;
}

int jpeg_decode(const void *bytes, size_t size, int channels, struct image *out, struct dt_error *err)
{
    struct reader r;
    open_reader(&r);
    int rc = work(&r, bytes, size, channels, out, err);
    jpeg_destroy_decompress(&r.jpeg);
    free(r.line);
    return rc;
}

int jpeg_measure(const void *bytes, size_t size, int64_t *width, int64_t *height, struct dt_error *err)
{
    struct reader r;
    open_reader(&r);
    int rc = work(&r, bytes, size, 0, NULL, err);
    *width = r.jpeg.image_width;
    *height = r.jpeg.image_height;
    jpeg_destroy_decompress(&r.jpeg);
    return rc;
}
