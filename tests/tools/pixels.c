/* Pixels of an image, to be compared with another decoder's: pixels CHANNELS [HEIGHT WIDTH] reads
 * paths from stdin, one a line, and for each writes a line "WIDTH HEIGHT HASH", or "error: why".
 * HASH is XXH3 (64 bits) of the pixels, after a resize if HEIGHT and WIDTH are given; with --raw as
 * the last argument the pixels follow the line. */
#include "base/file.h"
#include "worker/data/images/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { FILE_BYTES_MAX = 1 << 30 };

static int print_image(const char *path, int channels, int64_t height, int64_t width, bool raw, struct dt_error *err)
{
    struct dt_text bytes;
    struct image image = {0}, between = {0}, resized = {0};
    dt_text_init(&bytes);
    int rc = dt_file_read(path, FILE_BYTES_MAX, &bytes, err);
    rc = rc == 0 ? image_decode(bytes.data, bytes.size, channels, &image, err) : rc;
    if (rc == 0) {
        struct image *x = &image;
        if (height > 0) {
            image_resize(&image, &(struct image_box){0, 0, image.width, image.height}, width, height, &between,
                         &resized);
            x = &resized;
        }
        size_t size = (size_t)(x->width * x->height * x->channels);
        printf("%lld %lld %016llx\n", (long long)x->width, (long long)x->height,
               (unsigned long long)XXH3_64bits(x->pixels, size));
        if (raw) {
            (void)fwrite(x->pixels, 1, size, stdout);
        }
    }
    image_clear(&image);
    image_clear(&between);
    image_clear(&resized);
    dt_text_clear(&bytes);
    return rc;
}

int main(int argc, char **argv)
{
    bool raw = argc > 1 && strcmp(argv[argc - 1], "--raw") == 0;
    int count = argc - raw;
    if (count != 2 && count != 4) {
        (void)fprintf(stderr, "usage: pixels CHANNELS [HEIGHT WIDTH] [--raw] <PATHS\n");
        return 2;
    }
    int64_t height = count > 2 ? atoll(argv[2]) : 0, width = count > 2 ? atoll(argv[3]) : 0;
    char path[4096];
    while (fgets(path, sizeof path, stdin) != NULL) {
        struct dt_error err;
        path[strcspn(path, "\n")] = 0;
        if (print_image(path, atoi(argv[1]), height, width, raw, &err) != 0) {
            printf("error: %s\n", err.text);
        }
    }
    return 0;
}
