/* IDX: two zeros, the type, the number of dimensions, each dimension as 4 bytes (the highest
 * first), the values. */
#include "worker/data/images/raw.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { UNSIGNED_BYTES = 8, DIMS_MAX = 3, HEAD_MAX = 4 + 4 * DIMS_MAX, READ_BYTES = 1 << 20 };
#define VALUES_MAX ((int64_t)1 << 40)

struct header {
    int dims;
    int64_t shape[DIMS_MAX];
    int64_t head_bytes, bytes; /* bytes: of the whole file */
};

static int parse_header(struct header *h, const uint8_t *b, size_t size, const char *path, struct dt_error *err)
{
    if (size < 4 || b[0] != 0 || b[1] != 0) {
        return dt_fail(err, DT_INVALID, "%s: is no IDX file: it does not begin with two zeros", path);
    }
    if (b[2] != UNSIGNED_BYTES) {
        return dt_fail(err, DT_INVALID, "%s: IDX of type 0x%02x; images and labels are unsigned bytes (0x08)", path,
                       b[2]);
    }
    *h = (struct header){.dims = b[3], .head_bytes = 4 + 4 * (int64_t)b[3]};
    if (h->dims != 1 && h->dims != DIMS_MAX) {
        return dt_fail(err, DT_INVALID, "%s: IDX of %d dimensions; images have 3, labels 1", path, h->dims);
    }
    if ((int64_t)size < h->head_bytes) {
        return dt_fail(err, DT_INVALID, "%s: the file is cut off", path);
    }
    int64_t values = 1;
    for (int i = 0; i < h->dims; i++) {
        const uint8_t *d = b + 4 + 4 * i;
        h->shape[i] = (int64_t)d[0] << 24 | (int64_t)d[1] << 16 | (int64_t)d[2] << 8 | d[3];
        if (h->shape[i] == 0 || values > VALUES_MAX / h->shape[i]) {
            return dt_fail(err, DT_INVALID, "%s: dimension %d of IDX is %" PRId64 ": %s", path, i + 1, h->shape[i],
                           h->shape[i] == 0 ? "there is nothing in it" : "the file cannot be that large");
        }
        values *= h->shape[i];
    }
    h->bytes = h->head_bytes + values;
    return 0;
}

static bool is_compressed(const uint8_t *b, size_t size)
{
    return size > 2 && b[0] == 0x1f && b[1] == 0x8b;
}

/* The next bytes, at most `size`; fewer at the end of the file. -1: the stream is damaged or cut
 * off. */
static int64_t inflate_bytes(gzFile f, uint8_t *out, int64_t size)
{
    int64_t done = 0;
    while (done < size) {
        int n = gzread(f, out + done, (unsigned)(size - done < READ_BYTES ? size - done : READ_BYTES));
        if (n < 0) {
            return -1;
        }
        if (n == 0) {
            break;
        }
        done += n;
    }
    int status;
    (void)gzerror(f, &status);
    return status == Z_OK || status == Z_STREAM_END ? done : -1;
}

static int inflate_file(struct raw_bytes *b, gzFile f, const char *path, struct dt_error *err)
{
    uint8_t head[HEAD_MAX], more;
    struct header h;
    int64_t have = inflate_bytes(f, head, HEAD_MAX);
    if (have < 0) {
        return dt_fail(err, DT_INVALID, "%s: the gzip stream is damaged or cut off", path);
    }
    if (parse_header(&h, head, (size_t)have, path, err) != 0) {
        return -1;
    }
    uint8_t *all = malloc((size_t)(h.bytes > have ? h.bytes : have));
    if (all == NULL) {
        return dt_fail(err, DT_NO_MEMORY, "%s: no memory for its %" PRId64 " bytes", path, h.bytes);
    }
    memcpy(all, head, (size_t)have);
    int64_t rest = h.bytes > have ? inflate_bytes(f, all + have, h.bytes - have) : 0;
    int64_t end = rest >= 0 ? inflate_bytes(f, &more, 1) : -1;
    if (rest < 0 || end < 0) {
        free(all);
        return dt_fail(err, DT_INVALID, "%s: the gzip stream is damaged or cut off", path);
    }
    b->at = all;
    b->size = (size_t)(have + rest + (end > 0));
    b->mapped = false;
    return 0;
}

static int load(struct raw_bytes *b, struct header *h, const char *path, struct dt_error *err)
{
    if (raw_map(b, path, err) != 0) {
        return -1;
    }
    if (is_compressed(b->at, b->size)) {
        struct raw_bytes mapped = *b;
        gzFile f = gzopen(path, "rb");
        int rc = f != NULL ? inflate_file(b, f, path, err) : dt_fail_errno(err, "%s", path);
        if (f != NULL) {
            (void)gzclose(f);
        }
        struct raw gone = {.images = mapped};
        raw_close(&gone);
        if (rc != 0) {
            *b = (struct raw_bytes){0};
            return -1;
        }
    }
    if (parse_header(h, b->at, b->size, path, err) != 0) {
        return -1;
    }
    if ((int64_t)b->size != h->bytes) {
        return dt_fail(err, DT_INVALID, "%s: %zu bytes%s, but its header says %" PRId64 "; fetch it again", path,
                       b->size, (int64_t)b->size > h->bytes ? " or more" : "", h->bytes);
    }
    return 0;
}

/* Replaces the last `from` in the name by `to`; false: there is none. */
static bool replace(char **path, const char *from, const char *to)
{
    char *at = NULL, *slash = strrchr(*path, '/');
    for (char *p = strstr(slash != NULL ? slash : *path, from); p != NULL; p = strstr(p + 1, from)) {
        at = p;
    }
    if (at == NULL) {
        return false;
    }
    char *result = dt_format("%.*s%s%s", (int)(at - *path), *path, to, at + strlen(from));
    free(*path);
    *path = result;
    return true;
}

/* The file of labels of a file of images; the caller frees it. */
static char *labels_of(const char *path, struct dt_error *err)
{
    char *labels = dt_strdup(path);
    if (!replace(&labels, "images", "labels")) {
        free(labels);
        (void)dt_fail(err, DT_INVALID,
                      "%s: its labels are not found, as its name has no \"images\"; name the files "
                      "NAME-images-idx3-ubyte and NAME-labels-idx1-ubyte",
                      path);
        return NULL;
    }
    (void)replace(&labels, "idx3", "idx1");
    return labels;
}

static int open_both(struct raw *r, const char *labels, struct dt_error *err)
{
    struct header images, own;
    if (load(&r->images, &images, r->path, err) != 0) {
        return -1;
    }
    if (images.dims != DIMS_MAX) {
        return dt_fail(err, DT_INVALID, "%s: has labels and no images; name the file of images", r->path);
    }
    if (image_check_size(images.shape[2], images.shape[1], err) != 0) {
        return dt_wrap(err, "%s", r->path);
    }
    if (load(&r->labels, &own, labels, err) != 0) {
        return dt_wrap(err, "%s: its labels", r->path);
    }
    if (own.dims != 1 || own.shape[0] != images.shape[0]) {
        return dt_fail(err, DT_INVALID, "%s: %" PRId64 " labels, but %s has %" PRId64 " images", labels,
                       own.dims == 1 ? own.shape[0] : 0, r->path, images.shape[0]);
    }
    r->count = images.shape[0];
    r->height = images.shape[1];
    r->width = images.shape[2];
    r->channels = 1;
    r->head = images.head_bytes;
    r->stride = r->height * r->width;
    r->first_label = r->labels.at + own.head_bytes;
    r->label_stride = 1;
    raw_find_largest(r);
    return 0;
}

int idx_open(struct raw *r, const char *path, struct dt_error *err)
{
    *r = (struct raw){.path = dt_strdup(path)};
    char *labels = labels_of(path, err);
    int rc = labels != NULL ? open_both(r, labels, err) : -1;
    free(labels);
    if (rc != 0) {
        raw_close(r);
    }
    return rc;
}

/* The first four bytes, of what is compressed. Returns the number of dimensions; 0: no IDX file. */
static int dims_of(const char *path)
{
    uint8_t head[4] = {1};
    gzFile f = gzopen(path, "rb");                           /* reads what is not compressed as it is */
    int have = f != NULL ? gzread(f, head, sizeof head) : 0; /* also of a stream that is cut off */
    if (f != NULL) {
        (void)gzclose(f);
    }
    bool known = have == (int)sizeof head && head[0] == 0 && head[1] == 0 && head[2] >= UNSIGNED_BYTES && head[2] <= 14;
    return known && head[3] > 0 && head[3] <= 4 ? head[3] : 0;
}

bool idx_recognise(const char *path)
{
    return dims_of(path) > 0;
}

bool idx_is_labels(const char *path)
{
    return dims_of(path) == 1;
}
