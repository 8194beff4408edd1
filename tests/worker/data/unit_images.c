/* covers: worker/data/images */
/* Images: decoders and their errors, IDX, CIFAR, folders by class, transforms by counter, damaged
 * images refused or skipped. */
#include "base/file.h"
#include "base/text.h"
#include "tests/lib/folder.h"
#include "worker/data/data.h"
#include "worker/data/images/folder.h"
#include "worker/data/images/image.h"
#include "worker/data/images/raw.h"
#include "worker/data/images/transforms.h"

#include <math.h>
#include <png.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <cmocka.h>

#include <jpeglib.h>

static const char *in(const char *name)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t size)
{
    struct dt_error err = {0};
    char *parent = dt_strdup(in(name));
    dt_file_strip(parent);
    if (dt_file_mkdirs(parent, &err) != 0 || dt_file_write(in(name), data, size, &err) != 0) {
        fail_msg("%s", err.text);
    }
    free(parent);
}

static void write_gz(const char *name, const void *data, size_t size)
{
    gzFile f = gzopen(in(name), "wb");
    assert_int_equal(gzwrite(f, data, (unsigned)size), size);
    assert_int_equal(gzclose(f), Z_OK);
}

static void assert_says(const struct dt_error *err, const char *text)
{
    if (strstr(err->text, text) == NULL) {
        fail_msg("\"%s\" says nothing of \"%s\"", err->text, text);
    }
}

/* ---- files that the tests make ---- */

static void add_bytes(png_structp png, png_bytep data, size_t size)
{
    dt_text_add(png_get_io_ptr(png), data, size);
}

/* A PNG of these samples, which lie as the file has them. */
static void make_png(struct dt_text *out, int width, int height, int type, int depth, int interlace,
                     const uint8_t *rows, size_t row_bytes)
{
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    assert_int_equal(setjmp(png_jmpbuf(png)), 0);
    png_set_write_fn(png, out, add_bytes, NULL);
    png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, depth, type, interlace, PNG_COMPRESSION_TYPE_BASE,
                 PNG_FILTER_TYPE_BASE);
    if (type == PNG_COLOR_TYPE_PALETTE) {
        static const png_color palette[] = {{1, 2, 3}, {40, 50, 60}, {255, 0, 9}};
        static const png_byte alpha[] = {0, 128};
        png_set_PLTE(png, info, palette, 3);
        png_set_tRNS(png, info, alpha, 2, NULL);
    }
    png_write_info(png, info);
    int passes = png_set_interlace_handling(png);
    for (int i = 0; i < passes * height; i++) {
        png_write_row(png, rows + (size_t)(i % height) * row_bytes);
    }
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
}

/* A PNG of one color. */
static void write_png(const char *name, int width, int height, uint8_t r, uint8_t g, uint8_t b)
{
    struct dt_text png;
    uint8_t *rows = malloc((size_t)(width * height * 3));
    for (int i = 0; i < width * height; i++) {
        memcpy(rows + 3 * i, (uint8_t[]){r, g, b}, 3);
    }
    dt_text_init(&png);
    make_png(&png, width, height, PNG_COLOR_TYPE_RGB, 8, PNG_INTERLACE_NONE, rows, (size_t)width * 3);
    write_file(name, png.data, png.size);
    dt_text_clear(&png);
    free(rows);
}

/* A gray JPEG of one shade. */
static unsigned char *make_jpeg(int width, int height, bool progressive, uint8_t shade, unsigned long *size)
{
    struct jpeg_compress_struct j;
    struct jpeg_error_mgr errors;
    unsigned char *out = NULL;
    j.err = jpeg_std_error(&errors);
    jpeg_create_compress(&j);
    *size = 0;
    jpeg_mem_dest(&j, &out, size);
    j.image_width = (JDIMENSION)width;
    j.image_height = (JDIMENSION)height;
    j.input_components = 1;
    j.in_color_space = JCS_GRAYSCALE;
    jpeg_set_defaults(&j);
    if (progressive) {
        jpeg_simple_progression(&j);
    }
    jpeg_start_compress(&j, TRUE);
    uint8_t *row = malloc((size_t)width);
    for (int x = 0; x < width; x++) {
        row[x] = (uint8_t)(shade + x % 7);
    }
    while (j.next_scanline < j.image_height) {
        (void)jpeg_write_scanlines(&j, &row, 1);
    }
    free(row);
    jpeg_finish_compress(&j);
    jpeg_destroy_compress(&j);
    return out;
}

static void put_be(uint8_t *at, uint32_t v)
{
    for (int i = 0; i < 4; i++) {
        at[i] = (uint8_t)(v >> (24 - 8 * i));
    }
}

/* IDX with `count` images of 2 x 3 pixels: pixel p of image i is 10 * i + p; or with labels. */
static size_t make_idx(uint8_t *out, uint32_t count, bool labels)
{
    memcpy(out, (uint8_t[]){0, 0, 8, labels ? 1 : 3}, 4);
    put_be(out + 4, count);
    size_t at = 8;
    if (!labels) {
        put_be(out + 8, 2);
        put_be(out + 12, 3);
        at = 16;
    }
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t p = 0; p < (labels ? 1 : 6); p++) {
            out[at++] = (uint8_t)(labels ? i % 4 : 10 * i + p);
        }
    }
    return at;
}

/* ---- decoders ---- */

static void test_png(void **state)
{
    (void)state;
    const struct {
        int type, depth, interlace, channels;
        size_t row_bytes;
        uint8_t rows[16], want[12]; /* 2 x 2 pixels */
    } cases[] = {
        {PNG_COLOR_TYPE_GRAY, 16, 0, 1, 4, {1, 99, 2, 0, 3, 255, 4, 1}, {1, 2, 3, 4}},
        {PNG_COLOR_TYPE_GRAY, 1, 0, 1, 1, {0x80, 0x40}, {255, 0, 0, 255}},
        {PNG_COLOR_TYPE_GRAY, 4, 0, 1, 1, {0x1f, 0x20}, {17, 255, 34, 0}},
        {PNG_COLOR_TYPE_GRAY_ALPHA, 8, 0, 1, 4, {5, 0, 6, 9, 7, 255, 8, 1}, {5, 6, 7, 8}},
        {PNG_COLOR_TYPE_PALETTE, 8, 0, 3, 2, {0, 1, 2, 0}, {1, 2, 3, 40, 50, 60, 255, 0, 9, 1, 2, 3}},
        {PNG_COLOR_TYPE_RGB_ALPHA,
         8,
         0,
         3,
         8,
         {1, 2, 3, 0, 4, 5, 6, 7, 8, 9, 10, 255, 11, 12, 13, 14},
         {1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13}},
        {PNG_COLOR_TYPE_RGB, 8, 1, 1, 6, {255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9}, {76, 150, 29, 9}},
        {PNG_COLOR_TYPE_GRAY, 8, 1, 3, 2, {1, 2, 3, 4}, {1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4}},
    };
    struct image im = {0};
    struct dt_error err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dt_text png;
        int64_t width, height;
        dt_text_init(&png);
        make_png(&png, 2, 2, cases[i].type, cases[i].depth, cases[i].interlace, cases[i].rows, cases[i].row_bytes);
        assert_int_equal(image_decode(png.data, png.size, cases[i].channels, &im, &err), 0);
        assert_true(im.width == 2 && im.height == 2 && im.channels == cases[i].channels);
        assert_memory_equal(im.pixels, cases[i].want, (size_t)cases[i].channels * 4);
        assert_int_equal(image_measure(png.data, png.size, &width, &height, &err), 0);
        assert_true(width == 2 && height == 2);
        /* cut off behind the header, in the header, and with a byte of the pixels changed */
        assert_int_equal(image_decode(png.data, 50, 3, &im, &err), -1);
        assert_says(&err, "damaged PNG: ");
        assert_int_equal(image_decode(png.data, 20, 3, &im, &err), -1);
        assert_says(&err, "damaged PNG: the file is cut off");
        png.data[png.size - 18] ^= 1;
        assert_int_equal(image_decode(png.data, png.size, 3, &im, &err), -1);
        assert_says(&err, "damaged PNG: ");
        dt_text_clear(&png);
    }
    image_clear(&im);
}

static void test_jpeg(void **state)
{
    (void)state;
    struct image im = {0};
    struct dt_error err;
    int64_t width, height;
    for (int progressive = 0; progressive < 2; progressive++) {
        unsigned long size;
        unsigned char *jpeg = make_jpeg(40, 30, progressive, 100, &size);
        assert_int_equal(image_decode(jpeg, size, 3, &im, &err), 0);
        assert_true(im.width == 40 && im.height == 30);
        for (int64_t i = 0; i < 40L * 30 * 3; i++) {
            assert_in_range(im.pixels[i], 97, 109);
        }
        assert_int_equal(image_measure(jpeg, size, &width, &height, &err), 0);
        assert_true(width == 40 && height == 30);
        assert_int_equal(image_measure(jpeg, 30, &width, &height, &err), -1);
        for (unsigned long cut = size / 2; cut < size - 4; cut += 7) { /* part of the pixels is missing */
            assert_int_equal(image_decode(jpeg, cut, 1, &im, &err), -1);
            assert_says(&err, "damaged JPEG: ");
        }
        free(jpeg);
    }
    unsigned long size;
    unsigned char *jpeg = make_jpeg(8, 8, false, 1, &size);
    for (unsigned long i = 0; i + 9 < size; i++) { /* the frame's header claims 65500 x 65500 */
        if (jpeg[i] == 0xff && jpeg[i + 1] == 0xc0) {
            memcpy(jpeg + i + 5, (uint8_t[]){0xff, 0xdc, 0xff, 0xdc}, 4);
        }
    }
    assert_int_equal(image_decode(jpeg, size, 1, &im, &err), -1);
    assert_says(&err, "65500 x 65500; at most 178956970 pixels are read");
    free(jpeg);
    image_clear(&im);
}

static void test_pnm(void **state)
{
    (void)state;
    const struct {
        const char *bytes;
        size_t size;
        int channels;
        const char *want; /* two pixels, or the error */
        bool bad;
    } cases[] = {
        {"P5 2 1 255\nAB", 13, 1, "AB", false},
        {"P5 2 1 255\nAB", 13, 3, "AAABBB", false},
        {"P5\n# c 7\n2 # w\n1\n255\nAB", 24, 1, "AB", false},
        {"P6 2 1 255\nabcdef", 17, 3, "abcdef", false},
        {"P6 1 2 65535\n\x40\x00\x80\x00\xff\xff\x00\x00\x01\x00\x41\x41", 25, 3, "\x40\x80\xff\x00\x01\x41", false},
        {"P5 2 1 2\n\x01\x02", 11, 1, "\x80\xff", false}, /* 127.5 rounds to 128 */
        {"P5 2 1 6\n\x01\x03", 11, 1, "\x2a\x80", false}, /* 42.5 to 42: to even */
        {"P2 2 1 255 65 66", 16, 1, "AB", false},
        {"P3 2 1 255\n1 2 3\n4 5 6\n", 22, 3, "\1\2\3\4\5\6", false},
        {"P5 2 1 255\nA", 12, 1, "the file is cut off", true},
        {"P3 2 1 255\n1 2 3\n4 5", 19, 3, "the file is cut off", true},
        {"P2 2 1 9 10 10", 14, 1, "larger than its header says", true},
        {"P5 2 1 2\n\x01\x03", 11, 1, "larger than its header says", true},
        {"P5 2 1 70000\nAB", 15, 1, "no width, height and largest value", true},
        {"P5 2 1", 6, 1, "no width, height and largest value", true},
        {"P5 0 1 255\n", 11, 1, "which is empty", true},
        {"P5 999999 999999 255\n", 21, 1, "at most 178956970 pixels", true},
        {"GIF89a", 6, 1, "is a GIF file, which is not read; convert it to PNG or JPEG", true},
        {"RIFF\1\1\1\1WEBPVP8 ", 16, 1, "is a WebP file", true},
        {"", 0, 1, "is empty", true},
        {"text", 4, 1, "is no PNG, JPEG, PPM or PGM file", true},
    };
    struct image im = {0};
    struct dt_error err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int rc = image_decode(cases[i].bytes, cases[i].size, cases[i].channels, &im, &err);
        if (cases[i].bad) {
            assert_int_equal(rc, -1);
            assert_says(&err, cases[i].want);
        } else {
            assert_int_equal(rc, 0);
            assert_memory_equal(im.pixels, cases[i].want, (size_t)cases[i].channels * 2);
        }
    }
    image_clear(&im);
}

/* ---- IDX and CIFAR ---- */

static void test_idx(void **state)
{
    (void)state;
    uint8_t images[16 + 6 * 5 + 1], labels[8 + 5 + 1];
    size_t images_size = make_idx(images, 5, false), labels_size = make_idx(labels, 5, true);
    struct raw r;
    struct image im = {0};
    struct dt_error err;
    write_file("a-images-idx3-ubyte", images, images_size);
    write_file("a-labels-idx1-ubyte", labels, labels_size);
    write_gz("b-images-idx3-ubyte.gz", images, images_size);
    write_gz("b-labels-idx1-ubyte.gz", labels, labels_size);
    const char *const good[] = {"a-images-idx3-ubyte", "b-images-idx3-ubyte.gz"};
    for (int i = 0; i < 2; i++) {
        assert_true(idx_recognise(in(good[i])));
        assert_false(idx_is_labels(in(good[i])));
        assert_int_equal(idx_open(&r, in(good[i]), &err), 0);
        assert_true(r.count == 5 && r.height == 2 && r.width == 3 && r.largest_label == 3 && r.largest_at == 3);
        raw_read(&r, 4, 1, &im);
        assert_memory_equal(im.pixels, ((uint8_t[]){40, 41, 42, 43, 44, 45}), 6);
        assert_int_equal(raw_label(&r, 2), 2);
        raw_close(&r);
    }
    assert_true(idx_is_labels(in("a-labels-idx1-ubyte")) && idx_is_labels(in("b-labels-idx1-ubyte.gz")));
    assert_int_equal(idx_open(&r, in("a-labels-idx1-ubyte"), &err), -1);
    assert_says(&err, "its name has no \"images\"");

    const struct {
        const char *text;
        size_t size, at;
        uint8_t value;
        bool labels;
    } bad[] = {
        {"45 bytes, but its header says 46; fetch it again", images_size - 1, 0, 0, false},
        {"47 bytes or more, but its header says 46", images_size + 1, 0, 0, false},
        {"it does not begin with two zeros", images_size, 0, 1, false},
        {"IDX of type 0x0d", images_size, 2, 13, false},
        {"IDX of 4 dimensions", images_size, 3, 4, false},
        {"dimension 1 of IDX is 0: there is nothing in it", images_size, 7, 0, false},
        {"c-labels-idx1-ubyte: 12 bytes, but its header says 13", labels_size - 1, 0, 0, true},
        {"4 labels, but ", labels_size - 1, 7, 4, true},
        {"the file is cut off", 10, 0, 0, false},
        {"is empty", 0, 0, 0, true},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint8_t x[sizeof images] = {0}, y[sizeof labels] = {0};
        memcpy(x, images, images_size);
        memcpy(y, labels, labels_size);
        (bad[i].labels ? y : x)[bad[i].at] = bad[i].value;
        for (int gz = 0; gz < 2; gz++) {
            (gz ? write_gz : write_file)(gz ? "c-images-idx3-ubyte.gz" : "c-images-idx3-ubyte", x,
                                         bad[i].labels ? images_size : bad[i].size);
            (gz ? write_gz : write_file)(gz ? "c-labels-idx1-ubyte.gz" : "c-labels-idx1-ubyte", y,
                                         bad[i].labels ? bad[i].size : labels_size);
            assert_int_equal(idx_open(&r, in(gz ? "c-images-idx3-ubyte.gz" : "c-images-idx3-ubyte"), &err), -1);
            if (gz == 0) {
                assert_says(&err, bad[i].text);
            }
        }
    }
    /* gzip that is cut off */
    struct dt_text whole;
    dt_text_init(&whole);
    assert_int_equal(dt_file_read(in("b-images-idx3-ubyte.gz"), 4096, &whole, &err), 0);
    write_file("b-images-idx3-ubyte.gz", whole.data, whole.size - 10);
    assert_int_equal(idx_open(&r, in("b-images-idx3-ubyte.gz"), &err), -1);
    assert_says(&err, "the gzip stream is damaged or cut off");
    assert_true(idx_recognise(in("b-images-idx3-ubyte.gz")));
    dt_text_clear(&whole);
    image_clear(&im);
}

enum { CIFAR10 = 3073, CIFAR100 = 3074 };

static void test_cifar(void **state)
{
    (void)state;
    static uint8_t ten[2 * CIFAR10], hundred[2 * CIFAR100];
    struct raw r;
    struct image im = {0};
    struct dt_error err;
    ten[CIFAR10] = 9;
    memcpy(ten + CIFAR10 + 1, (uint8_t[]){1, 2}, 2);
    memcpy(ten + CIFAR10 + 1 + 1024, (uint8_t[]){3, 4}, 2);
    memcpy(ten + CIFAR10 + 1 + 2048, (uint8_t[]){5, 6}, 2);
    hundred[0] = 19;
    hundred[1] = 99;
    hundred[2] = 77;
    write_file("ten.bin", ten, sizeof ten);
    write_file("hundred.bin", hundred, sizeof hundred);
    assert_true(cifar_recognise(in("ten.bin"), false) && !cifar_recognise(in("ten.bin"), true));
    assert_true(cifar_recognise(in("hundred.bin"), true) && !cifar_recognise(in("hundred.bin"), false));
    assert_int_equal(cifar_open(&r, in("ten.bin"), false, &err), 0);
    assert_true(r.count == 2 && raw_label(&r, 0) == 0 && raw_label(&r, 1) == 9);
    raw_read(&r, 1, 3, &im);
    assert_memory_equal(im.pixels, ((uint8_t[]){1, 3, 5, 2, 4, 6}), 6);
    raw_close(&r);
    assert_int_equal(cifar_open(&r, in("hundred.bin"), true, &err), 0);
    raw_read(&r, 0, 3, &im);
    assert_true(raw_label(&r, 0) == 99 && im.pixels[0] == 77 && im.pixels[1] == 0);
    raw_close(&r);
    ten[0] = 10;
    write_file("ten.bin", ten, sizeof ten);
    assert_int_equal(cifar_open(&r, in("ten.bin"), false, &err), -1);
    assert_says(&err, "image 1 has label 10, and CIFAR-10 has 10");
    write_file("ten.bin", ten, sizeof ten - 1);
    assert_int_equal(cifar_open(&r, in("ten.bin"), false, &err), -1);
    assert_says(&err, "6145 bytes are no whole number of CIFAR-10 images");
    image_clear(&im);
}

/* ---- folders ---- */

static void test_folder(void **state)
{
    (void)state;
    struct folder f;
    struct dt_error err;
    static const char *const files[] = {"r/b/x.png",      "r/b/deep/a.JPG",  "r/b/deep-er/b.ppm", "r/b/deep/er/c.pgm",
                                        "r/b/notes.txt",  "r/b/.hidden.png", "r/a/2.png",         "r/a/10.png",
                                        "r/.cache/z.png", "r/file.png"};
    static const char *const want[] = {"r/a/10.png",     "r/a/2.png",         "r/b/x.png",
                                       "r/b/deep/a.JPG", "r/b/deep-er/b.ppm", "r/b/deep/er/c.pgm"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        write_file(files[i], "x", 1);
    }
    assert_true(folder_recognise(in("r")));
    assert_false(folder_recognise(in("r/a")));
    assert_int_equal(folder_open(&f, in("r"), &err), 0);
    assert_true(f.class_count == 2 && f.count == 6);
    assert_string_equal(f.classes[0].name, "a");
    for (int64_t i = 0; i < f.count; i++) {
        assert_string_equal(f.images[i].path + strlen(folder) + 1, want[i]);
        assert_int_equal(folder_class_of(&f, i), i >= 2);
    }
    folder_close(&f);
    assert_int_equal(mkdir(in("r/empty"), 0755), 0);
    assert_int_equal(folder_open(&f, in("r"), &err), -1);
    assert_says(&err, "r/empty: has no image (.png, .jpg, .ppm, ...)");
    assert_int_equal(rmdir(in("r/empty")), 0);
    assert_int_equal(symlink("..", in("r/a/up")), 0);
    assert_int_equal(folder_open(&f, in("r"), &err), -1);
    assert_says(&err, "is one a link to itself?");
    assert_int_equal(folder_open(&f, in("r/b/deep/er"), &err), -1);
    assert_says(&err, "has no folder in it; each class is a folder of images");
}

/* ---- transforms ---- */

static struct job_transforms nothing(void)
{
    return (struct job_transforms){.scale = {2, {0.08, 1}}, .ratio = {2, {0.75, 4.0 / 3}}};
}

/* A gray image whose pixel (y, x) is 16 * y + x. */
static void make_ramp(struct image *im, int64_t width, int64_t height)
{
    image_shape(im, width, height, 1);
    for (int64_t i = 0; i < width * height; i++) {
        im->pixels[i] = (uint8_t)(i / width * 16 + i % width);
    }
}

struct applied {
    struct image im, rows, resized;
    float out[64];
};

static void apply(struct applied *a, const struct transforms *t, int64_t epoch, int64_t sample)
{
    struct dt_error err;
    if (transforms_apply(t, &a->im, epoch, sample, &a->rows, &a->resized, a->out, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

static void applied_close(struct applied *a)
{
    image_clear(&a->im);
    image_clear(&a->rows);
    image_clear(&a->resized);
}

/* The byte that stands at place i of what comes out. */
static int byte_at(const struct applied *a, int i)
{
    return (int)lrintf(a->out[i] * 255);
}

static void test_crops(void **state)
{
    (void)state;
    struct applied a = {.im = {0}};
    struct transforms t;
    struct dt_error err;
    struct job_transforms job = nothing();
    make_ramp(&a.im, 7, 6);
    job.center_crop = (struct dt_numbers){2, {3, 2}};
    assert_int_equal(transforms_open(&t, &job, false, 1, 1, 3, 2, &err), 0);
    apply(&a, &t, 0, 0);
    assert_int_equal(byte_at(&a, 0), 2 * 16 + 2); /* 1.5 and 2.5 round to 2, as Python's round() */
    assert_int_equal(byte_at(&a, 5), 4 * 16 + 3);
    make_ramp(&a.im, 1, 2); /* smaller than the crop: zeros around it */
    apply(&a, &t, 0, 0);
    assert_memory_equal(a.out, ((float[]){0, 0, 16 / 255.0F, 0, 0, 0}), 6 * sizeof(float));

    job = nothing();
    job.random_crop = (struct dt_numbers){1, {4}};
    job.padding = 2;
    assert_int_equal(transforms_open(&t, &job, true, 1, 1, 4, 4, &err), 0);
    make_ramp(&a.im, 4, 4);
    bool seen[5][5] = {{false}};
    for (int64_t sample = 0; sample < 400; sample++) {
        apply(&a, &t, 0, sample);
        int top = -1, left = -1; /* of the crop, from one of the four middle pixels in it */
        for (int i = 0; i < 16; i++) {
            int y = byte_at(&a, i) / 16, x = byte_at(&a, i) % 16;
            if ((y == 1 || y == 2) && (x == 1 || x == 2)) {
                top = y - i / 4 + 2;
                left = x - i % 4 + 2;
            }
        }
        assert_true(top >= 0 && top <= 4 && left >= 0 && left <= 4);
        seen[top][left] = true;
        for (int i = 0; i < 16; i++) {
            int y = i / 4 + top - 2, x = i % 4 + left - 2;
            assert_int_equal(byte_at(&a, i), y < 0 || y > 3 || x < 0 || x > 3 ? 0 : 16 * y + x);
        }
    }
    for (int i = 0; i < 25; i++) {
        assert_true(seen[i / 5][i % 5]);
    }
    assert_int_equal(transforms_check(&t, 3, 3, &err), 0); /* 7 x 7 with padding */
    t.job.padding = 20;                                    /* the window may lie beside the image */
    float *out = calloc(16, sizeof *out);
    for (int64_t sample = 0; sample < 200; sample++) {
        assert_int_equal(transforms_apply(&t, &a.im, 0, sample, &a.rows, &a.resized, out, &err), 0);
        for (int i = 0; i < 16; i++) {
            assert_in_range(lrintf(out[i] * 255), 0, 3 * 16 + 3);
        }
    }
    free(out);
    t.job.padding = 0;
    assert_int_equal(transforms_check(&t, 3, 4, &err), -1);
    assert_says(&err, "is 4 x 3 with padding, smaller than transforms.random_crop (4 x 4)");
    applied_close(&a);
}

/* Functions of seed, epoch and sample; in an evaluation nothing is random. */
static void test_counter(void **state)
{
    (void)state;
    struct applied a = {.im = {0}}, b = {.im = {0}};
    struct transforms t, other;
    struct dt_error err;
    struct job_transforms job = nothing();
    make_ramp(&a.im, 8, 8);
    make_ramp(&b.im, 8, 8);
    job.random_resized_crop = (struct dt_numbers){1, {4}};
    job.resize = (struct dt_numbers){1, {6}};
    job.center_crop = (struct dt_numbers){1, {4}};
    job.random_horizontal_flip = 0.5;
    assert_int_equal(transforms_open(&t, &job, true, 1, 1, 4, 4, &err), 0);
    int differ[3] = {0}, mirrored = 0;
    for (int64_t sample = 0; sample < 200; sample++) {
        apply(&a, &t, 3, sample);
        apply(&b, &t, 3, sample);
        assert_memory_equal(a.out, b.out, 16 * sizeof(float));
        mirrored += a.out[0] > a.out[3];
        apply(&b, &t, 4, sample);
        differ[0] += memcmp(a.out, b.out, 16 * sizeof(float)) != 0;
        apply(&b, &t, 3, sample + 1);
        differ[1] += memcmp(a.out, b.out, 16 * sizeof(float)) != 0;
        other = t;
        other.seed = 2;
        apply(&b, &other, 3, sample);
        differ[2] += memcmp(a.out, b.out, 16 * sizeof(float)) != 0;
    }
    assert_true(differ[0] > 150 && differ[1] > 150 && differ[2] > 150);
    assert_in_range(mirrored, 70, 130);
    assert_int_equal(transforms_open(&t, &job, false, 1, 1, 4, 4, &err), 0);
    for (int64_t sample = 0; sample < 20; sample++) {
        apply(&a, &t, 0, 0);
        apply(&b, &t, sample, sample);
        assert_memory_equal(a.out, b.out, 16 * sizeof(float));
    }
    applied_close(&a);
    applied_close(&b);
}

static void test_numbers_of_pixels(void **state)
{
    (void)state;
    struct applied a = {.im = {0}};
    struct transforms t;
    struct dt_error err;
    struct job_transforms job = nothing();
    image_shape(&a.im, 1, 1, 3);
    memcpy(a.im.pixels, (uint8_t[]){51, 102, 255}, 3);
    assert_int_equal(transforms_open(&t, &job, true, 1, 3, 1, 1, &err), 0);
    apply(&a, &t, 0, 0);
    assert_memory_equal(a.out, ((float[]){51 / 255.0F, 102 / 255.0F, 1}), 3 * sizeof(float));
    job.mean = (struct dt_numbers){3, {0.5, 0.25, 0}};
    job.std = (struct dt_numbers){1, {0.5}};
    assert_int_equal(transforms_open(&t, &job, true, 1, 3, 1, 1, &err), 0);
    apply(&a, &t, 0, 0);
    assert_memory_equal(a.out, ((float[]){(51 / 255.0F - 0.5F) / 0.5F, (102 / 255.0F - 0.25F) / 0.5F, 2}),
                        3 * sizeof(float));
    assert_int_equal(transforms_open(&t, &job, true, 1, 1, 1, 1, &err), -1);
    assert_says(&err, "transforms.mean: has 3 numbers; give one, or one for each of 1 channels");
    assert_int_equal(transforms_open(&t, &job, true, 1, 4, 1, 1, &err), -1);
    assert_says(&err, "model.num_channels: is 4, and images have 1 or 3");
    applied_close(&a);
}

/* ---- sources ---- */

enum { SIDE = 4 };

static struct batch_layout layout_of(int64_t samples)
{
    return (struct batch_layout){2,
                                 {{.name = "pixel_values", .type = DT_F32, .dims = 4, .most = {samples, 3, SIDE, SIDE}},
                                  {.name = "labels", .type = DT_I32, .dims = 1, .most = {samples}, .targets = true}}};
}

static struct job job_of(void)
{
    struct job job = {.training.seed = 5};
    job.transforms = nothing();
    return job;
}

/* Twelve images in three classes; image i has the shade 20 * i. */
static void make_folder(const char *name)
{
    for (int i = 0; i < 12; i++) {
        char path[64];
        (void)snprintf(path, sizeof path, "%s/class%d/%02d.png", name, i / 4, i);
        write_png(path, SIDE, SIDE, (uint8_t)(20 * i), (uint8_t)(20 * i), (uint8_t)(20 * i));
    }
}

enum { SAMPLES = 12, PIXELS = 3 * SIDE * SIDE };
static struct read_all {
    float pixels[SAMPLES][PIXELS];
    int32_t labels[SAMPLES];
} first_read, second_read;

/* One epoch by so many ranks, in the order of positions. */
static int read_epoch(const struct data_source *s, int ranks, struct read_all *out, struct dt_error *err)
{
    struct sampler order = {.sample_count = s->sample_count, .seed = 5, .shuffle = true};
    struct batch_layout l = layout_of(2);
    for (int64_t at = 0; at < SAMPLES; at += 2L * ranks) {
        for (int rank = 0; rank < ranks; rank++) {
            float pixels[2][PIXELS];
            int32_t labels[2];
            struct batch b = {.layout = &l, .at = {pixels, labels}, .samples = 2};
            if (data_batch(s, &order, 1, at, rank, ranks, &b, err) != 0) {
                return -1;
            }
            for (int k = 0; k < 2; k++) {
                memcpy(out->pixels[at + k * ranks + rank], pixels[k], sizeof pixels[k]);
                out->labels[at + k * ranks + rank] = labels[k];
            }
        }
    }
    return 0;
}

static void *read_in_thread(void *source)
{
    struct read_all *all = dt_alloc(sizeof *all);
    (void)read_epoch(source, 2, all, NULL);
    return all;
}

/* The same samples for any number of ranks, and from several threads at once. */
static void test_source(void **state)
{
    (void)state;
    struct data_source s;
    struct dt_error err;
    struct job job = job_of();
    struct batch_layout l = layout_of(2);
    make_folder("set");
    job.transforms.random_crop = (struct dt_numbers){1, {SIDE}};
    job.transforms.padding = 2;
    assert_int_equal(data_open(&s, in("set"), "auto", &l, &err), 0);
    assert_int_equal(data_prepare(&s, &job, true, &err), 0);
    assert_true(s.sample_count == SAMPLES && s.class_count == 3 && s.file_count == 3);
    assert_string_equal(s.classes[2], "class2");
    assert_int_equal(s.largest[1].value, 2);
    assert_int_equal(read_epoch(&s, 1, &first_read, &err), 0);
    for (int ranks = 2; ranks <= 3; ranks++) {
        assert_int_equal(read_epoch(&s, ranks, &second_read, &err), 0);
        assert_memory_equal(&first_read, &second_read, sizeof first_read);
    }
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, read_in_thread, &s), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *all;
        (void)pthread_join(threads[i], &all);
        assert_memory_equal(&first_read, all, sizeof first_read);
        free(all);
    }
    data_close(&s);
    /* a folder with one image changed is other data; a renamed one is not */
    uint64_t was, is;
    assert_int_equal(data_open(&s, in("set"), "imagefolder", &l, &err), 0);
    was = data_content(&s);
    data_close(&s);
    assert_int_equal(rename(in("set/class0/00.png"), in("set/class0/0.png")), 0);
    assert_int_equal(data_open(&s, in("set"), "imagefolder", &l, &err), 0);
    is = data_content(&s);
    assert_true(was == is);
    data_close(&s);
    write_png("set/class0/0.png", SIDE, SIDE, 1, 2, 3);
    assert_int_equal(data_open(&s, in("set"), "imagefolder", &l, &err), 0);
    assert_true(data_content(&s) != was);
    data_close(&s);
}

/* An image without a header is found at opening, one with damaged pixels when it is read. */
static void test_damaged(void **state)
{
    (void)state;
    struct data_source s;
    struct dt_error err;
    struct batch_layout l = layout_of(2);
    for (int late = 0; late < 2; late++) {
        struct job job = job_of();
        make_folder("bad");
        struct dt_text png;
        dt_text_init(&png);
        assert_int_equal(dt_file_read(in("bad/class1/05.png"), 4096, &png, &err), 0);
        write_file("bad/class1/05.png", png.data, late ? 45 : 10);
        dt_text_clear(&png);
        assert_int_equal(data_open(&s, in("bad"), "auto", &l, &err), 0);
        if (late) {
            assert_int_equal(data_prepare(&s, &job, true, &err), 0);
            assert_int_equal(read_epoch(&s, 2, &first_read, &err), -1);
        } else {
            assert_int_equal(data_prepare(&s, &job, true, &err), -1);
            assert_says(&err, "(damaged: 1 of 12 images)");
        }
        assert_says(&err, "bad/class1/05.png: damaged PNG: ");
        assert_says(&err, "remove it, or set data.on_bad_image to \"skip\"");
        data_close(&s);

        job.data.on_bad_image = BAD_IMAGE_SKIP;
        assert_int_equal(data_open(&s, in("bad"), "auto", &l, &err), 0);
        assert_int_equal(data_prepare(&s, &job, true, &err), 0);
        assert_int_equal(read_epoch(&s, 1, &first_read, &err), 0);
        assert_int_equal(read_epoch(&s, 2, &second_read, &err), 0);
        assert_memory_equal(&first_read, &second_read, sizeof first_read);
        int twice = 0, none = 0;
        for (int i = 0; i < SAMPLES; i++) {
            twice += lrintf(first_read.pixels[i][0] * 255) == 6 * 20;
            none += lrintf(first_read.pixels[i][0] * 255) == 5 * 20;
        }
        assert_true(twice == 2 && none == 0); /* the next one stands in */
        data_close(&s);

        assert_int_equal(data_open(&s, in("bad"), "auto", &l, &err), 0);
        assert_int_equal(data_prepare(&s, &job, false, &err), 0);
        assert_int_equal(read_epoch(&s, 1, &first_read, &err), 0);
        twice = none = 0;
        for (int i = 0; i < SAMPLES; i++) {
            twice += lrintf(first_read.pixels[i][0] * 255) == 6 * 20;
            none += first_read.labels[i] == -100;
        }
        assert_true(twice == 1 && none == 1); /* it does not count */
        data_close(&s);
    }
}

/* A folder of more than 1 GiB is known by names and sizes; damage shows when an image is read. */
static void test_large_folder(void **state)
{
    (void)state;
    struct data_source s;
    struct dt_error err;
    struct job job = job_of();
    struct batch_layout l = layout_of(1);
    float pixels[PIXELS];
    int32_t label;
    struct batch b = {.layout = &l, .at = {pixels, &label}, .samples = 1};
    make_folder("large");
    write_file("large/class0/00.png", "no image", 8);
    write_png("large/class0/01.png", SIDE, 9, 1, 1, 1);
    write_file("large/class2/99.png", "", 0);
    assert_int_equal(truncate(in("large/class2/99.png"), (off_t)1 << 30), 0); /* takes no room on the disk */
    uint64_t was = 0;
    for (int renamed = 0; renamed < 2; renamed++) {
        assert_int_equal(data_open(&s, in("large"), "auto", &l, &err), 0);
        assert_int_equal(data_prepare(&s, &job, true, &err), 0);
        assert_true(s.sample_count == SAMPLES + 1 && data_content(&s) != was);
        was = data_content(&s);
        assert_int_equal(s.ops->read(&s, 0, 0, &b, 0, &err), -1);
        assert_says(&err, "00.png: is no PNG, JPEG, PPM or PGM file; remove it, or set data.on_bad_image");
        assert_int_equal(s.ops->read(&s, 1, 0, &b, 0, &err), -1);
        assert_says(&err, ".png: is 9 x 4 (height x width), but the model reads 4 x 4");
        assert_int_equal(s.ops->read(&s, 2, 0, &b, 0, &err), 0);
        assert_true(label == 0 && lrintf(pixels[0] * 255) == 40);
        data_close(&s);
        assert_int_equal(rename(in("large/class0/01.png"), in("large/class0/01b.png")), renamed ? -1 : 0);
    }
    assert_int_equal(unlink(in("large/class2/99.png")), 0);
}

static void test_refused_sources(void **state)
{
    (void)state;
    struct data_source s, t;
    struct dt_error err;
    struct job job = job_of();
    struct batch_layout l = layout_of(2), tokens = batch_tokens(1, 4, 0, NULL);
    make_folder("small");
    write_png("small/class2/99.png", 9, SIDE, 1, 1, 1);
    assert_int_equal(data_open(&s, in("small"), "auto", &l, &err), 0);
    assert_int_equal(data_prepare(&s, &job, true, &err), -1);
    assert_says(&err, "small/class2/99.png: is 4 x 9 (height x width), but the model reads 4 x 4; set "
                      "transforms.resize to [4, 4]");
    job.transforms.resize = (struct dt_numbers){2, {SIDE, SIDE}};
    assert_int_equal(data_prepare(&s, &job, true, &err), 0);
    assert_int_equal(data_open(&t, in("small"), "auto", &tokens, &err), -1);
    assert_says(&err, "has images with a class each, and the model reads input_ids");
    assert_int_equal(data_open(&t, in("small"), "idx", &l, &err), -1);
    make_folder("other");
    assert_int_equal(rename(in("other/class1"), in("other/class9")), 0);
    assert_int_equal(data_open(&t, in("other"), "auto", &l, &err), 0);
    assert_int_equal(data_check(&job.data, &s, "small", &t, "data.val.two", "other", &err), -1);
    assert_says(&err, "data.val.two: other: class 1 is class2, but in small it is class1; both need the same classes");
    assert_int_equal(data_check(&job.data, &s, "small", &s, "data.val", "small", &err), 0);
    data_close(&s);
    data_close(&t);
    /* labels beyond the model's classes */
    uint8_t images[16 + 6 * 5], labels[8 + 5];
    write_file("n-images-idx3-ubyte", images, make_idx(images, 5, false));
    write_file("n-labels-idx1-ubyte", labels, make_idx(labels, 5, true));
    l.field[1].below = 3;
    l.field[1].below_key = "num_labels";
    l.field[1].value = "class";
    l.field[1].values = "classes";
    write_gz("n-images-idx3-ubyte.gz", images, sizeof images);
    assert_int_equal(data_open(&s, in("n-*"), "auto", &l, &err), -1);
    assert_says(&err, "n-images-idx3-ubyte and n-images-idx3-ubyte.gz have the same images; name one of them");
    assert_int_equal(unlink(in("n-images-idx3-ubyte.gz")), 0);
    assert_int_equal(data_open(&s, in("n-*"), "auto", &l, &err), 0);
    assert_int_equal(s.sample_count, 5);
    assert_int_equal(data_check_range(&s, &job, "data.train", &err), -1);
    assert_says(&err, "n-images-idx3-ubyte: labels: sample 4 has class 3, but the model has 3 classes; raise "
                      "model.num_labels to 4 or more");
    data_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_png),          cmocka_unit_test(test_jpeg),    cmocka_unit_test(test_pnm),
        cmocka_unit_test(test_idx),          cmocka_unit_test(test_cifar),   cmocka_unit_test(test_folder),
        cmocka_unit_test(test_crops),        cmocka_unit_test(test_counter), cmocka_unit_test(test_numbers_of_pixels),
        cmocka_unit_test(test_source),       cmocka_unit_test(test_damaged), cmocka_unit_test(test_refused_sources),
        cmocka_unit_test(test_large_folder),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
