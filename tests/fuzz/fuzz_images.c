/* Image files: the first byte says which reader gets the rest. What a decoder accepts has the size
 * that the header says, and can be resized; each image of an accepted IDX or CIFAR file can be
 * read. */
#include "driver.h"

#include "worker/data/images/image.h"
#include "worker/data/images/raw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DECODE_GRAY, DECODE_RGB, IDX, IDX_LABELS, CIFAR_10, CIFAR_100, KINDS, RESIZED = 7, SIDE_MAX = 512 };

static char images_path[64], labels_path[64];

static void try_decode(const uint8_t *bytes, size_t size, int channels)
{
    struct image im = {0}, between = {0}, out = {0};
    struct dt_error err = {0};
    int64_t width = 0, height = 0;
    bool measured = image_measure(bytes, size, &width, &height, &err) == 0;
    /* a valid file may be a bomb of pixels, which takes seconds without teaching anything */
    if (measured && width <= SIDE_MAX && height <= SIDE_MAX && image_decode(bytes, size, channels, &im, &err) == 0) {
        if (im.width != width || im.height != height || im.channels != channels) {
            abort();
        }
        image_resize(&im, &(struct image_box){0, 0, width, height}, RESIZED, RESIZED, &between, &out);
    } else if (!measured && (image_decode(bytes, size, channels, &im, &err) == 0 || err.text[0] == 0)) {
        abort();
    }
    image_clear(&im);
    image_clear(&between);
    image_clear(&out);
}

static void try_raw(struct raw *r, int rc, const struct dt_error *err)
{
    struct image im = {0};
    if (rc != 0) {
        if (err->text[0] == 0) {
            abort();
        }
        return;
    }
    for (int64_t i = 0; i < r->count; i++) {
        raw_read(r, i, 1 + 2 * (int)(i % 2), &im);
        if (raw_label(r, i) > r->largest_label) {
            abort();
        }
    }
    image_clear(&im);
    raw_close(r);
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    static const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4},
                         labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 7, 9};
    struct raw r;
    struct dt_error err = {0};
    if (images_path[0] == 0) {
        (void)snprintf(images_path, sizeof images_path, "%s/x-images", dt_fuzz_folder());
        (void)snprintf(labels_path, sizeof labels_path, "%s/x-labels", dt_fuzz_folder());
    }
    int kind = size > 0 ? data[0] % KINDS : KINDS;
    if (kind == DECODE_GRAY || kind == DECODE_RGB) {
        try_decode(data + 1, size - 1, kind == DECODE_GRAY ? 1 : 3);
    } else if (kind == IDX || kind == IDX_LABELS) {
        bool of_labels = kind == IDX_LABELS;
        dt_fuzz_write(images_path, of_labels ? images : data + 1, of_labels ? sizeof images : size - 1);
        dt_fuzz_write(labels_path, of_labels ? data + 1 : labels, of_labels ? size - 1 : sizeof labels);
        (void)idx_recognise(images_path);
        try_raw(&r, idx_open(&r, images_path, &err), &err);
    } else if (kind < KINDS) {
        dt_fuzz_write(images_path, data + 1, size - 1);
        try_raw(&r, cifar_open(&r, images_path, kind == CIFAR_100, &err), &err);
    }
    return 0;
}
