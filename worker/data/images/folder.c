/* See the header. */
#include "worker/data/images/folder.h"

#include "base/text.h"
#include "worker/data/images/image.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEPTH_MAX = 32, CLASSES_MAX = 1 << 20 };

struct names { /* of entries in a folder, sorted */
    char **of;
    size_t count;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_close(struct names *n)
{
    for (size_t i = 0; i < n->count; i++) {
        free(n->of[i]);
    }
    free(n->of);
}

static int names_open(struct names *n, const char *path, struct dt_error *err)
{
    *n = (struct names){0};
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return dt_fail_errno(err, "%s", path);
    }
    size_t room = 0;
    for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (e->d_name[0] != '.') {
            if (n->count == room) {
                room = 2 * room + 16;
                n->of = dt_realloc(n->of, room * sizeof *n->of);
            }
            n->of[n->count++] = dt_strdup(e->d_name);
        }
    }
    (void)closedir(dir);
    if (n->count > 0) {
        qsort(n->of, n->count, sizeof *n->of, by_name);
    }
    return 0;
}

static int add_folder(struct folder *f, const char *path, int depth, struct dt_error *err);

static int add_entry(struct folder *f, const char *folder, const char *name, int depth, struct dt_error *err)
{
    struct stat st;
    char *path = dt_format("%s/%s", folder, name);
    int rc = stat(path, &st) == 0 ? 0 : dt_fail_errno(err, "%s", path);
    if (rc == 0 && S_ISDIR(st.st_mode)) {
        rc = add_folder(f, path, depth + 1, err);
    } else if (rc == 0 && image_has_name(name)) {
        if ((f->count & (f->count - 1)) == 0) { /* at powers of two the room doubles */
            f->images = dt_realloc(f->images, (size_t)(f->count > 0 ? 2 * f->count : 1) * sizeof *f->images);
        }
        f->images[f->count++] = (struct folder_image){path, strlen(folder), st.st_size};
        return 0;
    }
    free(path);
    return rc;
}

static int add_folder(struct folder *f, const char *path, int depth, struct dt_error *err)
{
    struct names names;
    if (depth > DEPTH_MAX) {
        return dt_fail(err, DT_INVALID, "%s: folders within folders deeper than %d: is one a link to itself?", path,
                       (int)DEPTH_MAX);
    }
    int rc = names_open(&names, path, err);
    for (size_t i = 0; rc == 0 && i < names.count; i++) {
        rc = add_entry(f, path, names.of[i], depth, err);
    }
    names_close(&names);
    return rc;
}

/* As Python sorts what os.walk gives: folders as whole texts, then the names in them. */
static int by_folder(const void *a, const void *b)
{
    const struct folder_image *x = a, *y = b;
    size_t least = x->folder_size < y->folder_size ? x->folder_size : y->folder_size;
    int order = memcmp(x->path, y->path, least);
    if (order == 0 && x->folder_size != y->folder_size) {
        return x->folder_size < y->folder_size ? -1 : 1;
    }
    return order != 0 ? order : strcmp(x->path + x->folder_size, y->path + y->folder_size);
}

static int add_class(struct folder *f, const char *root, const char *name, struct dt_error *err)
{
    struct stat st;
    char *path = dt_format("%s/%s", root, name);
    int64_t first = f->count;
    bool is_class = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    int rc = is_class ? add_folder(f, path, 0, err) : 0;
    if (rc == 0 && is_class && f->count == first) {
        rc = dt_fail(err, DT_INVALID,
                     "%s: has no image (.png, .jpg, .ppm, ...), and each folder in %s is a class; "
                     "remove it, or put images in it",
                     path, root);
    } else if (rc == 0 && is_class && f->class_count == CLASSES_MAX) {
        rc = dt_fail(err, DT_INVALID, "%s: more than %d classes", root, (int)CLASSES_MAX);
    } else if (rc == 0 && is_class) {
        qsort(f->images + first, (size_t)(f->count - first), sizeof *f->images, by_folder);
        f->classes = dt_realloc(f->classes, (size_t)(f->class_count + 1) * sizeof *f->classes);
        f->classes[f->class_count++] = (struct folder_class){dt_strdup(name), first, f->count - first};
    }
    free(path);
    return rc;
}

int folder_open(struct folder *f, const char *path, struct dt_error *err)
{
    struct names names;
    *f = (struct folder){0};
    int rc = names_open(&names, path, err);
    for (size_t i = 0; rc == 0 && i < names.count; i++) {
        rc = add_class(f, path, names.of[i], err);
    }
    names_close(&names);
    if (rc == 0 && f->class_count == 0) {
        rc = dt_fail(err, DT_INVALID, "%s: has no folder in it; each class is a folder of images", path);
    }
    if (rc != 0) {
        folder_close(f);
    }
    return rc;
}

void folder_close(struct folder *f)
{
    for (int64_t i = 0; i < f->count; i++) {
        free(f->images[i].path);
    }
    for (int i = 0; i < f->class_count; i++) {
        free(f->classes[i].name);
    }
    free(f->images);
    free(f->classes);
    *f = (struct folder){0};
}

static bool has_image(const char *path, int depth)
{
    struct names names;
    struct stat st;
    bool found = false;
    if (names_open(&names, path, NULL) != 0) {
        return false;
    }
    for (size_t i = 0; i < names.count && !found && depth > 0; i++) {
        found = image_has_name(names.of[i]);
    }
    for (size_t i = 0; i < names.count && !found && depth < DEPTH_MAX; i++) {
        char *sub = dt_format("%s/%s", path, names.of[i]);
        found = stat(sub, &st) == 0 && S_ISDIR(st.st_mode) && has_image(sub, depth + 1);
        free(sub);
    }
    names_close(&names);
    return found;
}

bool folder_recognise(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode) && has_image(path, 0);
}

int folder_class_of(const struct folder *f, int64_t image)
{
    int low = 0, high = f->class_count; /* the class is in [low, high); none is empty */
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        *(image < f->classes[middle].first ? &high : &low) = middle;
    }
    return low;
}
