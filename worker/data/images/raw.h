/* Images that lie in a file as bytes, all of one size, with a label each: IDX (MNIST and its like)
 * and the binary files of CIFAR-10 and CIFAR-100. */
#ifndef DT_WORKER_DATA_IMAGES_RAW_H
#define DT_WORKER_DATA_IMAGES_RAW_H

#include "worker/data/images/image.h"

struct raw_bytes { /* the content of a file: mapped, or in memory where it was compressed */
    uint8_t *at;
    size_t size;
    bool mapped;
};

struct raw {
    char *path;                      /* of the images */
    struct raw_bytes images, labels; /* labels: of IDX, which has them in another file */
    int64_t count, width, height;
    int channels;
    bool planar;          /* a whole channel after the other */
    int64_t head, stride; /* bytes before the first image's pixels, and from one to the next */
    const uint8_t *first_label;
    int64_t label_stride;
    int largest_label;
    int64_t largest_at; /* number of the first image with it, from 0 */
};

/* Opens a file of images and the labels beside it: NAME-images-idx3-ubyte has
 * NAME-labels-idx1-ubyte, and with .gz behind the one name it is behind the other. gzip is told by
 * the first bytes. DT_INVALID: the size is not that of the header, other types than unsigned bytes,
 * another number of labels. After an error nothing is open. */
int idx_open(struct raw *r, const char *path, struct dt_error *err);
/* True if the file begins as IDX does, compressed or not. */
bool idx_recognise(const char *path);
/* True for the file of labels in the notation of IDX: it has one dimension. */
bool idx_is_labels(const char *path);
/* CIFAR-10 (fine: false), or CIFAR-100 by its 100 fine labels. DT_INVALID: no whole number of
 * records, or a label beyond the classes. */
int cifar_open(struct raw *r, const char *path, bool fine, struct dt_error *err);
bool cifar_recognise(const char *path, bool fine);
void raw_close(struct raw *r);
/* The label of image i, and its pixels as `channels` (1 or 3) of them. */
int raw_label(const struct raw *r, int64_t i);
void raw_read(const struct raw *r, int64_t i, int channels, struct image *out);
/* For idx.c and cifar.c: maps a file, and finds the largest label. */
int raw_map(struct raw_bytes *b, const char *path, struct dt_error *err);
void raw_find_largest(struct raw *r);

#endif
