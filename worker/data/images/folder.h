/* A folder of images by class, as torchvision's ImageFolder reads it: each folder in it is a class,
 * numbered in the order of names; images in deeper folders belong to the class, too. Files with
 * other names than those of images are passed over, and so is what begins with a dot. */
#ifndef DT_WORKER_DATA_IMAGES_FOLDER_H
#define DT_WORKER_DATA_IMAGES_FOLDER_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct folder_image {
    char *path;
    size_t folder_size; /* length of the folder's part of it */
    int64_t bytes;
};

struct folder_class {
    char *name;
    int64_t first, count; /* of its images */
};

struct folder {
    struct folder_class *classes;
    int class_count;
    struct folder_image *images; /* by class, then by folder, then by name */
    int64_t count;
};

/* DT_INVALID: no class, a class without an image, or folders in a circle. */
int folder_open(struct folder *f, const char *path, struct dt_error *err);
void folder_close(struct folder *f);
/* True for a folder that has folders with images in them. */
bool folder_recognise(const char *path);
int folder_class_of(const struct folder *f, int64_t image);

#endif
