/* Images per second of one core: decoded, beside what libjpeg-turbo or libpng alone does, and as
 * samples of a training job, which are read from a folder, decoded, cropped at random, resized to
 * 224 x 224, mirrored and made numbers. Peer: PIL with NumPy, which does the same. Times are those
 * of the processor, so a loaded machine gives the same numbers. */
#include "cmd/bench/decode.h"

#include "base/bench.h"
#include "base/file.h"
#include "base/text.h"
#include "cmd/bench/cold.h"
#include "cmd/bench/shards.h"
#include "worker/data/data.h"
#include "worker/data/images/image.h"

#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jpeglib.h>

enum { COUNT = 24, CHANNELS = 3, SIDE = 224, GRAIN = 6, QUALITY = 90, REPEATS_MOST = 101, KINDS = 2, MEASURES = 3 };

struct file {
    void *bytes;
    size_t size;
};

struct set { /* images of one kind, in memory and in a folder with one class */
    const char *kind;
    char folder[64];
    struct file files[COUNT];
    struct data_source source;
    struct batch_layout layout;
};

static double cpu_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Colored clouds: noise is as hard to compress as nothing that a camera sees. */
static void make_image(struct image *out, int number, int64_t width, int64_t height)
{
    struct image noise = {0}, between = {0};
    uint64_t x = (uint64_t)number + 1;
    image_shape(&noise, width / GRAIN + 2, height / GRAIN + 2, CHANNELS);
    for (int64_t i = 0; i < noise.width * noise.height * CHANNELS; i++) {
        x = x * 6364136223846793005ULL + 1442695040888963407ULL;
        noise.pixels[i] = (uint8_t)(x >> 56);
    }
    image_resize(&noise, &(struct image_box){0, 0, noise.width, noise.height}, width, height, &between, out);
    image_clear(&noise);
    image_clear(&between);
}

static struct file encode_jpeg(const struct image *im)
{
    struct jpeg_compress_struct j;
    struct jpeg_error_mgr errors;
    unsigned char *out = NULL;
    unsigned long size = 0;
    j.err = jpeg_std_error(&errors);
    jpeg_create_compress(&j);
    jpeg_mem_dest(&j, &out, &size);
    j.image_width = (JDIMENSION)im->width;
    j.image_height = (JDIMENSION)im->height;
    j.input_components = CHANNELS;
    j.in_color_space = JCS_RGB;
    jpeg_set_defaults(&j);
    jpeg_set_quality(&j, QUALITY, TRUE);
    jpeg_start_compress(&j, TRUE);
    while (j.next_scanline < j.image_height) {
        JSAMPROW row = im->pixels + (int64_t)j.next_scanline * im->width * CHANNELS;
        (void)jpeg_write_scanlines(&j, &row, 1);
    }
    jpeg_finish_compress(&j);
    jpeg_destroy_compress(&j);
    return (struct file){out, size};
}

static struct file encode_png(const struct image *im)
{
    png_image png = {.version = PNG_IMAGE_VERSION,
                     .width = (png_uint_32)im->width,
                     .height = (png_uint_32)im->height,
                     .format = PNG_FORMAT_RGB};
    png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
    void *out = dt_alloc(size);
    (void)png_image_write_to_memory(&png, out, &size, 0, im->pixels, 0, NULL);
    return (struct file){out, size};
}

static int open_source(struct set *s, struct dt_error *err)
{
    struct job job = {.transforms = {.random_resized_crop = {1, {SIDE}},
                                     .scale = {2, {0.08, 1}},
                                     .ratio = {2, {0.75, 4.0 / 3}},
                                     .random_horizontal_flip = 0.5,
                                     .mean = {3, {0.485, 0.456, 0.406}},
                                     .std = {3, {0.229, 0.224, 0.225}}}};
    s->layout =
        (struct batch_layout){2,
                              {{.name = "pixel_values", .type = DT_F32, .dims = 4, .most = {1, CHANNELS, SIDE, SIDE}},
                               {.name = "labels", .type = DT_I32, .dims = 1, .most = {1}, .targets = true}}};
    return data_open(&s->source, s->folder, "imagefolder", &s->layout, err) != 0
               ? -1
               : data_prepare(&s->source, &job, true, err);
}

static int open_set(struct set *s, const char *kind, int64_t width, int64_t height, struct dt_error *err)
{
    struct image im = {0};
    *s = (struct set){.kind = kind, .folder = "/tmp/dtrun-bench-XXXXXX"};
    if (mkdtemp(s->folder) == NULL) {
        return dt_fail_errno(err, "%s", s->folder);
    }
    char *of_class = dt_format("%s/class", s->folder);
    int rc = dt_file_mkdirs(of_class, err);
    for (int i = 0; rc == 0 && i < COUNT; i++) {
        make_image(&im, i, width, height);
        s->files[i] = strcmp(kind, "jpeg") == 0 ? encode_jpeg(&im) : encode_png(&im);
        char *path = dt_format("%s/%02d.%s", of_class, i, strcmp(kind, "jpeg") == 0 ? "jpg" : kind);
        rc = dt_file_write(path, s->files[i].bytes, s->files[i].size, err);
        free(path);
    }
    free(of_class);
    image_clear(&im);
    return rc == 0 ? open_source(s, err) : rc;
}

static void close_set(struct set *s)
{
    data_close(&s->source);
    for (int i = 0; i < COUNT; i++) {
        free(s->files[i].bytes);
    }
    (void)dt_file_remove_tree(s->folder, NULL);
}

/* ---- what is measured: images per second ---- */

/* The library alone, into one buffer. */
static void decode_bare(const struct set *s, const struct file *f, uint8_t *out)
{
    if (strcmp(s->kind, "png") == 0) {
        png_image png = {.version = PNG_IMAGE_VERSION};
        (void)png_image_begin_read_from_memory(&png, f->bytes, f->size);
        png.format = PNG_FORMAT_RGB;
        (void)png_image_finish_read(&png, NULL, out, 0, NULL);
        return;
    }
    struct jpeg_decompress_struct j;
    struct jpeg_error_mgr errors;
    j.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&j);
    jpeg_mem_src(&j, f->bytes, f->size);
    (void)jpeg_read_header(&j, TRUE);
    (void)jpeg_start_decompress(&j);
    while (j.output_scanline < j.output_height) {
        JSAMPROW row = out + (size_t)j.output_scanline * j.output_width * CHANNELS;
        (void)jpeg_read_scanlines(&j, &row, 1);
    }
    (void)jpeg_finish_decompress(&j);
    jpeg_destroy_decompress(&j);
}

static double rate_bare(struct set *s, struct image *im)
{
    double begin = cpu_s();
    for (int i = 0; i < COUNT; i++) {
        decode_bare(s, &s->files[i], im->pixels);
    }
    return COUNT / (cpu_s() - begin);
}

static double rate_decode(struct set *s, struct image *im, struct dt_error *err)
{
    double begin = cpu_s();
    for (int i = 0; i < COUNT; i++) {
        if (image_decode(s->files[i].bytes, s->files[i].size, CHANNELS, im, err) != 0) {
            return -1;
        }
    }
    return COUNT / (cpu_s() - begin);
}

static double rate_samples(struct set *s, struct dt_error *err)
{
    static float pixels[CHANNELS * SIDE * SIDE];
    int32_t label;
    struct sampler order = {.sample_count = COUNT};
    struct batch b = {.layout = &s->layout, .at = {pixels, &label}, .samples = 1};
    double begin = cpu_s();
    for (int i = 0; i < COUNT; i++) {
        if (data_batch(&s->source, &order, 0, i, 0, 1, &b, err) != 0) {
            return -1;
        }
    }
    return COUNT / (cpu_s() - begin);
}

static int run_set(struct set *s, size_t repeats, struct dt_bench_peer *peer, int64_t width, int64_t height,
                   struct dt_error *err)
{
    double rates[MEASURES][REPEATS_MOST], peers[MEASURES][REPEATS_MOST] = {{0}};
    struct image im = {0};
    image_shape(&im, width, height, CHANNELS);
    int rc = 0;
    for (size_t r = 0; r < repeats && rc == 0; r++) {
        rates[0][r] = rate_bare(s, &im);
        rates[1][r] = rate_decode(s, &im, err);
        rates[2][r] = rate_samples(s, err);
        rc = rates[1][r] < 0 || rates[2][r] < 0 ? -1 : 0;
        for (int m = 1; m < MEASURES && peer != NULL; m++) {
            peers[m][r] = COUNT / dt_bench_peer_ask(peer, "%s %s", m == 1 ? "decode" : "sample", s->folder);
        }
    }
    double floor = dt_bench_median(rates[0], repeats);
    for (int m = 1; m < MEASURES && rc == 0; m++) {
        char name[64];
        double of_peer = dt_bench_median(peers[m], repeats);
        (void)snprintf(name, sizeof name, "%s %s %lldx%lld", s->kind, m == 1 ? "decoded" : "samples", (long long)height,
                       (long long)width);
        dt_bench_print(&(struct dt_bench_case){.bench = "data",
                                               .name = name,
                                               .unit = "images/s",
                                               .floor = m == 1 ? floor : 0,
                                               .peer = of_peer > 0 ? of_peer : 0,
                                               .peer_name = of_peer > 0 ? "PIL" : NULL},
                       rates[m], repeats);
    }
    image_clear(&im);
    return rc;
}

static int run_cold(const char *folder, size_t repeats)
{
    struct dt_error err;
    int rc = bench_cold_shards(folder, repeats, &err);
    if (rc != 0) {
        (void)fprintf(stderr, "bench data: %s\n", err.text);
    }
    return rc == 0 ? 0 : 1;
}

int bench_data(int argc, char **argv)
{
    const char *const kinds[KINDS] = {"jpeg", "png"};
    const char *folder = dt_bench_option(argc, argv, "folder", NULL);
    size_t repeats = (size_t)dt_bench_number(argc, argv, "repeats", 5);
    if (folder != NULL) {
        return run_cold(folder, repeats);
    }
    int64_t width = dt_bench_number(argc, argv, "width", 500), height = dt_bench_number(argc, argv, "height", 375);
    char *python = dt_bench_flag(argc, argv, "peer") ? dt_bench_peer_program("python") : NULL;
    struct dt_bench_peer peer;
    char *script = dt_strdup(dt_bench_option(argc, argv, "script", "tests/peers/images.py"));
    bool has_peer = python != NULL && dt_bench_peer_open(&peer, (char *[]){python, script, NULL}) == 0;
    struct dt_error err = {.status = DT_OK};
    int rc = 0;
    for (int i = 0; i < KINDS && rc == 0; i++) {
        struct set s;
        rc = open_set(&s, kinds[i], width, height, &err);
        rc = rc == 0 ? run_set(&s, repeats, has_peer ? &peer : NULL, width, height, &err) : rc;
        close_set(&s);
    }
    rc = rc == 0 ? bench_shards(repeats, &err) : rc;
    if (has_peer) {
        dt_bench_peer_close(&peer);
    }
    free(python);
    free(script);
    if (rc != 0) {
        (void)fprintf(stderr, "bench data: %s\n", err.text);
    }
    return rc == 0 ? 0 : 1;
}
