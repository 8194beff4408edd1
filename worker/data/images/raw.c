/* What IDX and CIFAR share. */
#include "worker/data/images/raw.h"

#include "base/text.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int map(struct raw_bytes *b, int fd, const char *path, struct dt_error *err)
{
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        return dt_fail_errno(err, "%s", path);
    }
    if (!S_ISREG(st.st_mode)) {
        return dt_fail(err, DT_INVALID, "%s: not a regular file", path);
    }
    if (st.st_size == 0) {
        return dt_fail(err, DT_INVALID, "%s: is empty", path);
    }
    void *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        return dt_fail_errno(err, "%s: cannot map", path);
    }
    *b = (struct raw_bytes){at, (size_t)st.st_size, true};
    return 0;
}

int raw_map(struct raw_bytes *b, const char *path, struct dt_error *err)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int rc = map(b, fd, path, err);
    if (fd >= 0) {
        (void)close(fd);
    }
    return rc;
}

static void close_bytes(struct raw_bytes *b)
{
    if (b->mapped) {
        (void)munmap(b->at, b->size);
    } else {
        free(b->at);
    }
}

void raw_close(struct raw *r)
{
    close_bytes(&r->images);
    close_bytes(&r->labels);
    free(r->path);
    *r = (struct raw){0};
}

int raw_label(const struct raw *r, int64_t i)
{
    return r->first_label[i * r->label_stride];
}

void raw_find_largest(struct raw *r)
{
    r->largest_label = -1;
    for (int64_t i = 0; i < r->count; i++) {
        if (raw_label(r, i) > r->largest_label) {
            r->largest_label = raw_label(r, i);
            r->largest_at = i;
        }
    }
}

void raw_read(const struct raw *r, int64_t i, int channels, struct image *out)
{
    const uint8_t *from = r->images.at + r->head + i * r->stride;
    int64_t count = r->width * r->height;
    image_shape(out, r->width, r->height, channels);
    if (!r->planar) {
        image_convert(from, r->channels, out->pixels, channels, count);
        return;
    }
    for (int64_t k = 0; k < count; k++) {
        const uint8_t pixel[3] = {from[k], from[count + k], from[2 * count + k]};
        image_convert(pixel, r->channels, out->pixels + k * channels, channels, 1);
    }
}
