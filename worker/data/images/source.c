/* Sources of images with a label each: folders by class, IDX, CIFAR. Opening looks at all that is
 * cheap to look at. An image that turns out to be damaged when it is decoded is refused or skipped,
 * as the job says: in training the next good image stands in for it, so each batch is full on each
 * rank; in an evaluation it does not count. */
#include "worker/data/images/source.h"

#include "base/log.h"
#include "base/text.h"
#include "worker/data/images/folder.h"
#include "worker/data/images/raw.h"
#include "worker/data/images/transforms.h"
#include "worker/data/rows.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define FILE_BYTES_MAX ((int64_t)1 << 31)
/* A folder of at most so many bytes is read through when it is opened. */
#define READ_THROUGH_BYTES ((int64_t)1 << 30)
enum { SAID_MAX = 20 /* damaged images that one rank names */, CLASSES_SAID = 20, NO_TARGET = -100 };

struct work { /* memory of one call of `read` */
    struct image image, rows, resized;
    uint8_t *file;
    size_t file_room;
    struct work *next;
};

struct size {
    uint32_t width, height; /* 0: not known */
};

struct images {
    struct raw *raws; /* IDX and CIFAR */
    int64_t *first;   /* per raw: its first sample */
    size_t raw_count;
    struct folder folder; /* otherwise */
    struct size *sizes;   /* per image of the folder; null: they were not read through */
    const char **classes;
    atomic_bool *bad;  /* per image of the folder: it cannot be decoded */
    int64_t bad_count; /* found when the folder was opened */
    struct dt_error first_bad;
    struct transforms transforms;
    bool skips;
    atomic_llong skipped;     /* found later, by this rank */
    atomic_llong *skipped_of; /* of these, per class of the folder */
    int pixels, labels;       /* fields of the layout */
    pthread_mutex_t lock;     /* of `idle` */
    struct work *idle;
};

/* ---- memory ---- */

static struct work *take_work(struct images *im)
{
    (void)pthread_mutex_lock(&im->lock);
    struct work *w = im->idle;
    im->idle = w != NULL ? w->next : NULL;
    (void)pthread_mutex_unlock(&im->lock);
    return w != NULL ? w : dt_alloc(sizeof *w);
}

static void give_work(struct images *im, struct work *w)
{
    (void)pthread_mutex_lock(&im->lock);
    w->next = im->idle;
    im->idle = w;
    (void)pthread_mutex_unlock(&im->lock);
}

static void free_work(struct work *w)
{
    image_clear(&w->image);
    image_clear(&w->rows);
    image_clear(&w->resized);
    free(w->file);
    free(w);
}

/* Damaged images of a class: found when the folder was opened, or later. */
static long long bad_of(const struct images *im, int class)
{
    const struct folder_class *of = &im->folder.classes[class];
    long long count = 0;
    for (int64_t i = of->first; i < of->first + of->count; i++) {
        count += im->bad[i];
    }
    return count;
}

static long long skipped_of(const struct images *im, int class)
{
    return im->skipped_of[class];
}

/* "3 of cat, 1 of dog": the classes that have such images. */
static void list_classes(const struct images *im, long long (*of)(const struct images *im, int class),
                         struct dt_text *out)
{
    dt_text_init(out);
    struct dt_list list = {.text = out, .most = CLASSES_SAID};
    for (int c = 0; c < im->folder.class_count; c++) {
        long long count = of(im, c);
        if (count > 0) {
            dt_list_add(&list, "%lld of %s", count, im->folder.classes[c].name);
        }
    }
}

static void close_images(struct data_source *s)
{
    struct images *im = s->state;
    if (im == NULL) {
        return;
    }
    if (im->skipped > 0) {
        struct dt_text classes;
        list_classes(im, skipped_of, &classes);
        dt_log(DT_LOG_WARN, "data", "damaged images that this rank skipped: %lld (%s)", (long long)im->skipped,
               dt_text_str(&classes));
        dt_text_clear(&classes);
    }
    while (im->idle != NULL) {
        struct work *w = im->idle;
        im->idle = w->next;
        free_work(w);
    }
    for (size_t i = 0; i < im->raw_count; i++) {
        raw_close(&im->raws[i]);
    }
    folder_close(&im->folder);
    (void)pthread_mutex_destroy(&im->lock);
    free(im->raws);
    free(im->first);
    free(im->sizes);
    free(im->classes);
    free(im->bad);
    free(im->skipped_of);
    free(im);
    s->state = NULL;
}

/* ---- opening ---- */

static int open_state(struct data_source *s, const char *what, struct images **out, struct dt_error *err)
{
    int pixels = batch_find(&s->layout, "pixel_values"), labels = batch_find(&s->layout, "labels");
    bool fits = pixels >= 0 && s->layout.field[pixels].dims == 4 && s->layout.field[pixels].type == DT_F32 &&
                labels >= 0 && s->layout.field[labels].dims == 1 && s->layout.field[labels].type == DT_I32;
    if (!fits) {
        return dt_fail(err, DT_INVALID, "%s: has images with a class each, and the model reads %s", what,
                       pixels >= 0 ? "images without one" : s->layout.field[0].name);
    }
    struct images *im = dt_alloc(sizeof *im);
    im->pixels = pixels;
    im->labels = labels;
    (void)pthread_mutex_init(&im->lock, NULL);
    s->state = *out = im;
    return 0;
}

static int open_raw(struct data_source *s, struct raw *r, struct dt_error *err, const char *path)
{
    return s->ops == &data_idx ? idx_open(r, path, err) : cifar_open(r, path, s->ops == &data_cifar100, err);
}

static void note_raw(struct data_source *s, struct images *im, const struct raw *r, XXH3_state_t *all)
{
    XXH3_state_t *own = XXH3_createState();
    const struct raw_bytes *const parts[] = {&r->images, &r->labels};
    const char *name = data_base_name(r->path);
    (void)XXH3_64bits_reset(own);
    (void)XXH3_64bits_update(all, name, strlen(name) + 1);
    for (int i = 0; i < 2 && parts[i]->size > 0; i++) {
        (void)XXH3_64bits_update(own, parts[i]->at, parts[i]->size);
    }
    uint64_t hash = XXH3_64bits_digest(own);
    (void)XXH3_64bits_update(all, &hash, sizeof hash);
    (void)XXH3_freeState(own);
    struct data_largest *most = &s->largest[im->labels];
    if (most->path == NULL || r->largest_label > most->value) {
        *most = (struct data_largest){r->largest_label, r->path, r->largest_at + 1};
    }
    data_list_file(s, r->path, r->count, hash);
    im->first[im->raw_count++] = s->sample_count;
    s->sample_count += r->count;
}

/* torchvision leaves FILE.gz beside the FILE that it unpacks: one glob would take the images twice. */
static int check_twice(const struct data_files *files, struct dt_error *err)
{
    for (size_t i = 0; i + 1 < files->count; i++) {
        const char *a = files->paths[i], *b = files->paths[i + 1];
        if (strncmp(a, b, strlen(a)) == 0 && strcmp(b + strlen(a), ".gz") == 0) {
            return dt_fail(err, DT_INVALID, "%s and %s.gz have the same images; name one of them", a,
                           data_base_name(a));
        }
    }
    return 0;
}

static int open_raws(struct data_source *s, const char *glob, struct dt_error *err)
{
    struct data_files files;
    struct images *im;
    if (data_files_open(&files, glob, true, err) != 0) {
        return -1;
    }
    int rc = check_twice(&files, err);
    rc = rc == 0 ? open_state(s, files.paths[0], &im, err) : rc;
    XXH3_state_t *h = XXH3_createState();
    (void)XXH3_64bits_reset(h);
    if (rc == 0) {
        im->raws = dt_alloc(files.count * sizeof *im->raws);
        im->first = dt_alloc(files.count * sizeof *im->first);
    }
    for (size_t i = 0; rc == 0 && i < files.count; i++) {
        if (s->ops == &data_idx && files.count > 1 && idx_is_labels(files.paths[i])) {
            continue; /* they are opened with their images */
        }
        rc = open_raw(s, &im->raws[im->raw_count], err, files.paths[i]);
        if (rc == 0) {
            note_raw(s, im, &im->raws[im->raw_count], h);
        }
    }
    if (rc == 0 && im->raw_count == 0) {
        rc = dt_fail(err, DT_INVALID, "%s: only files of labels; name those of the images", glob);
    }
    s->token_count = s->sample_count;
    s->hash = XXH3_64bits_digest(h);
    (void)XXH3_freeState(h);
    data_files_close(&files);
    if (rc != 0) {
        close_images(s);
    }
    return rc;
}

static int read_open(struct work *w, int fd, const char *path, size_t *size, struct dt_error *err)
{
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        return dt_fail_errno(err, "%s", path);
    }
    if (!S_ISREG(st.st_mode) || st.st_size > FILE_BYTES_MAX) {
        return dt_fail(err, DT_INVALID, S_ISREG(st.st_mode) ? "%s: is larger than 2 GiB" : "%s: is not a regular file",
                       path);
    }
    if ((size_t)st.st_size > w->file_room) {
        w->file_room = (size_t)st.st_size + (size_t)st.st_size / 2;
        free(w->file);
        w->file = dt_realloc(NULL, w->file_room);
    }
    for (*size = 0; *size < (size_t)st.st_size;) {
        ssize_t n = read(fd, w->file + *size, (size_t)st.st_size - *size);
        if (n < 0) {
            return dt_fail_errno(err, "%s", path);
        }
        if (n == 0) { /* it became shorter */
            break;
        }
        *size += (size_t)n;
    }
    return 0;
}

static int read_file(struct work *w, const char *path, size_t *size, struct dt_error *err)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int rc = read_open(w, fd, path, size, err);
    if (fd >= 0) {
        (void)close(fd);
    }
    return rc;
}

/* Adds the content of image i to the hash, and looks at its header. */
static int read_through(struct images *im, struct work *w, int64_t i, XXH3_state_t *h, struct dt_error *err)
{
    size_t size;
    int64_t width, height;
    struct dt_error bad;
    const char *path = im->folder.images[i].path;
    if (read_file(w, path, &size, err) != 0) {
        return -1;
    }
    (void)XXH3_64bits_update(h, &size, sizeof size);
    (void)XXH3_64bits_update(h, w->file, size);
    if (image_measure(w->file, size, &width, &height, &bad) == 0) {
        im->sizes[i] = (struct size){(uint32_t)width, (uint32_t)height};
        return 0;
    }
    im->bad[i] = true;
    if (im->bad_count++ == 0) {
        im->first_bad = bad;
        (void)dt_wrap(&im->first_bad, "%s", path);
    }
    return 0;
}

/* Where the folder is too large to be read through, names and sizes stand for the contents. */
static void hash_name(const struct folder_image *image, const char *root, XXH3_state_t *h)
{
    const char *name = image->path + strlen(root);
    (void)XXH3_64bits_update(h, name, strlen(name) + 1);
    (void)XXH3_64bits_update(h, &image->bytes, sizeof image->bytes);
}

static int list_class(struct data_source *s, struct images *im, const char *root, int c, struct work *w,
                      struct dt_error *err)
{
    const struct folder_class *of = &im->folder.classes[c];
    XXH3_state_t *h = XXH3_createState();
    (void)XXH3_64bits_reset(h);
    int rc = 0;
    for (int64_t i = of->first; rc == 0 && i < of->first + of->count; i++) {
        if (im->sizes != NULL) {
            rc = read_through(im, w, i, h, err);
        } else {
            hash_name(&im->folder.images[i], root, h);
        }
    }
    data_list_file(s, of->name, of->count, XXH3_64bits_digest(h));
    (void)XXH3_freeState(h);
    return rc;
}

static int open_classes(struct data_source *s, struct images *im, const char *root, struct dt_error *err)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < im->folder.count; i++) {
        bytes += im->folder.images[i].bytes;
    }
    int classes = im->folder.class_count;
    size_t count = (size_t)im->folder.count;
    im->bad = dt_alloc(count * sizeof *im->bad);
    im->skipped_of = dt_alloc((size_t)classes * sizeof *im->skipped_of);
    im->sizes = bytes <= READ_THROUGH_BYTES ? dt_alloc(count * sizeof *im->sizes) : NULL;
    im->classes = dt_alloc((size_t)classes * sizeof *im->classes);
    struct work *w = take_work(im);
    int rc = 0;
    for (int c = 0; rc == 0 && c < classes; c++) {
        im->classes[c] = im->folder.classes[c].name;
        rc = list_class(s, im, root, c, w, err);
    }
    give_work(im, w);
    s->classes = im->classes;
    s->class_count = classes;
    s->sample_count = s->token_count = im->folder.count;
    s->largest[im->labels] =
        (struct data_largest){classes - 1, im->folder.images[im->folder.count - 1].path, im->folder.count};
    s->hash = data_content(s);
    return rc;
}

static int open_folder(struct data_source *s, const char *path, struct dt_error *err)
{
    struct images *im;
    if (open_state(s, path, &im, err) != 0) {
        return -1;
    }
    int rc = folder_open(&im->folder, path, err);
    rc = rc == 0 ? open_classes(s, im, path, err) : rc;
    if (rc != 0) {
        close_images(s);
    }
    return rc;
}

/* ---- before the first sample ---- */

static int check_sizes(const struct images *im, struct dt_error *err)
{
    for (size_t i = 0; i < im->raw_count; i++) {
        if (transforms_check(&im->transforms, im->raws[i].width, im->raws[i].height, err) != 0) {
            return dt_wrap(err, "%s", im->raws[i].path);
        }
    }
    for (int64_t i = 0; im->sizes != NULL && i < im->folder.count; i++) {
        const struct size *size = &im->sizes[i];
        if (!im->bad[i] && transforms_check(&im->transforms, size->width, size->height, err) != 0) {
            return dt_wrap(err, "%s", im->folder.images[i].path);
        }
    }
    return 0;
}

static int prepare(struct data_source *s, const struct job *job, bool training, struct dt_error *err)
{
    struct images *im = s->state;
    const int64_t *shape = s->layout.field[im->pixels].most;
    im->skips = job->data.on_bad_image == BAD_IMAGE_SKIP;
    if (transforms_open(&im->transforms, &job->transforms, training, (uint64_t)job->training.seed, (int)shape[1],
                        shape[2], shape[3], err) != 0) {
        return -1;
    }
    if (im->bad_count > 0 && (!im->skips || im->bad_count == im->folder.count)) {
        return dt_fail(err, DT_INVALID, "%.380s (damaged: %" PRId64 " of %" PRId64 " images); %s", im->first_bad.text,
                       im->bad_count, im->folder.count,
                       im->skips ? "there is no other" : "remove it, or set data.on_bad_image to \"skip\"");
    }
    if (im->bad_count > 0) {
        struct dt_text classes;
        list_classes(im, bad_of, &classes);
        dt_log(DT_LOG_WARN, "data", "%" PRId64 " of %" PRId64 " images are skipped (%s); the first: %s", im->bad_count,
               im->folder.count, dt_text_str(&classes), im->first_bad.text);
        dt_text_clear(&classes);
    }
    return check_sizes(im, err);
}

/* ---- reading ---- */

static const struct raw *raw_of(const struct images *im, int64_t sample, int64_t *at)
{
    size_t low = 0, high = im->raw_count; /* the sample is in a file of [low, high); no file is empty */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(sample < im->first[middle] ? &high : &low) = middle;
    }
    *at = sample - im->first[low];
    return &im->raws[low];
}

/* Writes the pixels of sample i as the job wants them. DT_INVALID: the image is damaged, or its
 * size does not fit (*damaged is false then). */
static int read_pixels(struct images *im, struct work *w, int64_t i, int64_t epoch, float *out, bool *damaged,
                       struct dt_error *err)
{
    int64_t at;
    size_t size;
    *damaged = false;
    const struct raw *r = im->raw_count > 0 ? raw_of(im, i, &at) : NULL;
    const char *path = r != NULL ? r->path : im->folder.images[i].path;
    if (r != NULL) {
        raw_read(r, at, im->transforms.channels, &w->image);
    } else {
        if (read_file(w, path, &size, err) != 0) {
            return -1;
        }
        if (image_decode(w->file, size, im->transforms.channels, &w->image, err) != 0) {
            *damaged = err->status == DT_INVALID;
            return dt_wrap(err, "%s", path);
        }
    }
    if (transforms_apply(&im->transforms, &w->image, epoch, i, &w->rows, &w->resized, out, err) != 0) {
        return dt_wrap(err, "%s", path);
    }
    return 0;
}

static void note_bad(struct images *im, int64_t i, const struct dt_error *err)
{
    if (!atomic_exchange(&im->bad[i], true)) {
        long long before = atomic_fetch_add(&im->skipped, 1);
        atomic_fetch_add(&im->skipped_of[folder_class_of(&im->folder, i)], 1);
        if (before < SAID_MAX) {
            dt_log(DT_LOG_WARN, "data", "skipped: %s%s", err->text,
                   before == SAID_MAX - 1 ? "; further ones are only counted" : "");
        }
    }
}

static int label_of(const struct images *im, int64_t i)
{
    int64_t at;
    const struct raw *r = im->raw_count > 0 ? raw_of(im, i, &at) : NULL;
    return r != NULL ? raw_label(r, at) : folder_class_of(&im->folder, i);
}

static int say_remedy(struct dt_error *err)
{
    const struct dt_error was = *err;
    return dt_fail(err, DT_INVALID, "%.400s; remove it, or set data.on_bad_image to \"skip\"", was.text);
}

/* Reads sample i, or the next one that is not damaged; *label is NO_TARGET where none counts. */
static int read_next(const struct data_source *s, struct work *w, int64_t i, int64_t epoch, float *out, int32_t *label,
                     struct dt_error *err)
{
    struct images *im = s->state;
    bool damaged = false;
    for (int64_t tries = 0; tries < s->sample_count; tries++, i = (i + 1) % s->sample_count) {
        bool known = im->bad != NULL && im->bad[i];
        if (!known && read_pixels(im, w, i, epoch, out, &damaged, err) == 0) {
            *label = label_of(im, i);
            return 0;
        }
        if (!known && (!damaged || !im->skips)) {
            return damaged ? say_remedy(err) : -1;
        }
        if (!known) {
            note_bad(im, i, err);
        }
        if (!im->transforms.training) {
            *label = NO_TARGET;
            return 0;
        }
    }
    return dt_fail(err, DT_INVALID, "none of %" PRId64 " images can be decoded", s->sample_count);
}

static int read_image(const struct data_source *s, int64_t sample, int64_t epoch, const struct batch *b, int64_t row,
                      struct dt_error *err)
{
    struct images *im = s->state;
    int64_t count = batch_sample_elements(&s->layout, im->pixels);
    float *out = (float *)b->at[im->pixels] + row * count;
    int32_t *label = (int32_t *)b->at[im->labels] + row;
    struct work *w = take_work(im);
    int rc = read_next(s, w, sample, epoch, out, label, err);
    if (rc == 0 && *label == NO_TARGET) {
        memset(out, 0, (size_t)count * sizeof *out);
    }
    give_work(im, w);
    return rc;
}

static void expect_image(const struct data_source *s, int64_t sample)
{
    const struct images *im = s->state;
    int64_t at;
    if (im->raw_count > 0) {
        const struct raw *r = raw_of(im, sample, &at);
        data_expect_bytes(r->images.at + r->head + at * r->stride, (size_t)r->stride);
        return;
    }
    int fd = open(im->folder.images[sample].path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
        (void)close(fd);
    }
}

/* ---- the rows ---- */

static bool recognise_cifar10(const char *path)
{
    return cifar_recognise(path, false);
}

static bool recognise_cifar100(const char *path)
{
    return cifar_recognise(path, true);
}

#define ROW(format, is, opens)                                                                                         \
    {                                                                                                                  \
        .name = (format), .recognise = (is), .open = (opens), .prepare = prepare, .read = read_image,                  \
        .expect = expect_image, .close = close_images                                                                  \
    }
const struct data_ops data_imagefolder = ROW("imagefolder", folder_recognise, open_folder);
const struct data_ops data_idx = ROW("idx", idx_recognise, open_raws);
const struct data_ops data_cifar10 = ROW("cifar10", recognise_cifar10, open_raws);
const struct data_ops data_cifar100 = ROW("cifar100", recognise_cifar100, open_raws);
