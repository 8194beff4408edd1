/* The binary version of CIFAR: records of a label (CIFAR-100: a coarse one and a fine one) and 32 x
 * 32 pixels, all red ones, then green, then blue. */
#include "worker/data/images/raw.h"

#include "base/text.h"

#include <inttypes.h>

enum { SIDE = 32, CHANNELS = 3, PIXELS = SIDE * SIDE * CHANNELS, COARSE = 20 };

static const char *name_of(bool fine)
{
    return fine ? "CIFAR-100" : "CIFAR-10";
}

static int check_labels(const struct raw *r, bool fine, struct dt_error *err)
{
    int classes = fine ? 100 : 10;
    for (int64_t i = 0; i < r->count; i++) {
        const uint8_t *record = r->images.at + i * r->stride;
        bool coarse = fine && record[0] >= COARSE;
        if (coarse || record[r->head - 1] >= classes) {
            return dt_fail(err, DT_INVALID,
                           "%s: image %" PRId64 " has %slabel %d, and %s has %d: the file is damaged or of another "
                           "format",
                           r->path, i + 1, coarse ? "coarse " : "", coarse ? record[0] : record[r->head - 1],
                           name_of(fine), coarse ? COARSE : classes);
        }
    }
    return 0;
}

static int open_records(struct raw *r, bool fine, struct dt_error *err)
{
    if (raw_map(&r->images, r->path, err) != 0) {
        return -1;
    }
    if (r->images.size % (size_t)r->stride != 0) {
        return dt_fail(err, DT_INVALID,
                       "%s: %zu bytes are no whole number of %s images, of %" PRId64
                       " bytes each: the file is cut off or of another format",
                       r->path, r->images.size, name_of(fine), r->stride);
    }
    r->count = (int64_t)r->images.size / r->stride;
    r->first_label = r->images.at + r->head - 1;
    raw_find_largest(r);
    return check_labels(r, fine, err);
}

int cifar_open(struct raw *r, const char *path, bool fine, struct dt_error *err)
{
    int64_t head = fine ? 2 : 1;
    *r = (struct raw){.path = dt_strdup(path),
                      .width = SIDE,
                      .height = SIDE,
                      .channels = CHANNELS,
                      .planar = true,
                      .head = head,
                      .stride = head + PIXELS,
                      .label_stride = head + PIXELS};
    if (open_records(r, fine, err) != 0) {
        raw_close(r);
        return -1;
    }
    return 0;
}

bool cifar_recognise(const char *path, bool fine)
{
    struct raw r;
    bool known = cifar_open(&r, path, fine, NULL) == 0;
    if (known) {
        raw_close(&r);
    }
    return known;
}
