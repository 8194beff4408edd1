/* Collecting and reading text. zlib's reader passes plain files through, so one path serves both. */
#include "worker/data/corpus.h"

#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>

enum { LOOK_BYTES = 8192, PIECE_BYTES = 65536, DEPTH_MAX = 64, FILES_MAX = 10000000 };

enum content { CONTENT_TEXT, CONTENT_BINARY, CONTENT_EMPTY };

static int open_input(const char *path, gzFile *out, struct dt_error *err)
{
    int fd = strcmp(path, "-") == 0 ? fcntl(0, F_DUPFD_CLOEXEC, 3) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return dt_fail_errno(err, "%s", path);
    }
    *out = gzdopen(fd, "rb");
    if (*out == NULL) {
        (void)close(fd);
        return dt_fail(err, DT_NO_MEMORY, "%s: no memory to read it", path);
    }
    return 0;
}

/* After a read that returned n < 0, or at the end of the file. */
static int check_end(const char *path, gzFile in, int n, struct dt_error *err)
{
    int code = Z_OK;
    const char *text = gzerror(in, &code);
    if (code == Z_ERRNO) {
        return dt_fail_errno(err, "%s", path);
    }
    if (n < 0 || code != Z_OK) {
        return dt_fail(err, DT_INVALID, "%s: damaged or cut short (%s)", path, code == Z_BUF_ERROR ? "unexpected end" : text);
    }
    return 0;
}

/* A NUL among the first bytes makes a file binary. */
static int look(const char *path, enum content *out, struct dt_error *err)
{
    gzFile in;
    unsigned char head[LOOK_BYTES];
    if (open_input(path, &in, err) != 0) {
        return -1;
    }
    int n = gzread(in, head, sizeof head);
    int result = n <= 0 ? check_end(path, in, n, err) : 0;
    (void)gzclose_r(in);
    if (result == 0) {
        *out = n == 0 ? CONTENT_EMPTY : memchr(head, 0, (size_t)n) != NULL ? CONTENT_BINARY : CONTENT_TEXT;
    }
    return result;
}

static int add_file(struct corpus *c, const char *path, int64_t size_bytes, bool check, struct dt_error *err)
{
    enum content content = CONTENT_TEXT;
    if (check && look(path, &content, err) != 0) {
        return -1;
    }
    c->binary_count += content == CONTENT_BINARY;
    c->empty_count += content == CONTENT_EMPTY;
    if (content != CONTENT_TEXT) {
        return 0;
    }
    if (c->count == FILES_MAX) {
        return dt_fail(err, DT_INVALID, "%s: more than %d files", path, FILES_MAX);
    }
    if ((c->count & (c->count - 1)) == 0) { /* a power of two: full */
        c->files = dt_realloc(c->files, (c->count == 0 ? 1 : c->count * 2) * sizeof *c->files);
    }
    c->files[c->count++] = (struct corpus_file){.path = dt_strdup(path), .size_bytes = size_bytes};
    return 0;
}

static int add_path(struct corpus *c, const char *path, int depth, struct dt_error *err);

static int by_bytes(const struct dirent **a, const struct dirent **b) /* alphasort would ask the locale */
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int add_folder(struct corpus *c, const char *path, int depth, struct dt_error *err)
{
    struct dirent **names = NULL;
    if (depth > DEPTH_MAX) {
        return dt_fail(err, DT_INVALID, "%s: folders nested deeper than %d", path, DEPTH_MAX);
    }
    int count = scandir(path, &names, NULL, by_bytes), result = 0;
    if (count < 0) {
        return dt_fail_errno(err, "%s", path);
    }
    for (int i = 0; i < count; i++) {
        if (result == 0 && names[i]->d_name[0] != '.') {
            size_t size = strlen(path);
            char *inner = dt_format("%s%s%s", path, size > 0 && path[size - 1] == '/' ? "" : "/", names[i]->d_name);
            struct stat st;
            bool link_to_folder = lstat(inner, &st) == 0 && S_ISLNK(st.st_mode) && (stat(inner, &st) != 0 || S_ISDIR(st.st_mode));
            bool special = !link_to_folder && stat(inner, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
            if (!link_to_folder && !special) {
                result = add_path(c, inner, depth + 1, err);
            }
            free(inner);
        }
        free(names[i]);
    }
    free(names);
    return result;
}

static int add_path(struct corpus *c, const char *path, int depth, struct dt_error *err)
{
    struct stat st;
    if (strcmp(path, "-") == 0) {
        return add_file(c, path, 0, false, err);
    }
    if (stat(path, &st) != 0) {
        return dt_fail_errno(err, "%s", path);
    }
    if (S_ISDIR(st.st_mode)) {
        return add_folder(c, path, depth, err);
    }
    return add_file(c, path, st.st_size, S_ISREG(st.st_mode), err); /* a pipe can be read only once */
}

int corpus_add(struct corpus *c, const char *path, struct dt_error *err)
{
    return add_path(c, path, 0, err);
}

struct ticket {
    uint64_t hash;
    size_t index;
};

static int by_hash(const void *a, const void *b)
{
    const struct ticket *x = a, *y = b;
    return x->hash != y->hash ? (x->hash < y->hash ? -1 : 1) : x->index < y->index ? -1 : x->index > y->index;
}

int corpus_hold_out(struct corpus *c, double fraction, struct dt_error *err)
{
    if (c->count < 2) {
        return dt_fail(err, DT_INVALID, "--val: whole files are held out, and there is only one; give more files, or --val 0");
    }
    struct ticket *order = dt_alloc(c->count * sizeof *order);
    int64_t all = 0, held = 0;
    for (size_t i = 0; i < c->count; i++) {
        order[i] = (struct ticket){XXH3_64bits(c->files[i].path, strlen(c->files[i].path)), i};
        all += c->files[i].size_bytes;
    }
    qsort(order, c->count, sizeof *order, by_hash);
    size_t smallest = 0, held_count = 0;
    for (size_t i = 0; i < c->count; i++) {
        struct corpus_file *f = &c->files[order[i].index];
        smallest = f->size_bytes < c->files[order[smallest].index].size_bytes ? i : smallest;
        bool enough = (double)held >= fraction * (double)all || held_count + 1 == c->count;
        bool too_much = (double)(held + f->size_bytes) > 2 * fraction * (double)all; /* a huge file is for training */
        if (!enough && !too_much) {
            f->held_out = true;
            held += f->size_bytes;
            held_count++;
        }
    }
    c->files[order[smallest].index].held_out |= held_count == 0;
    free(order);
    return 0;
}

int corpus_read(const char *path, corpus_sink *sink, void *context, struct dt_error *err)
{
    gzFile in;
    if (open_input(path, &in, err) != 0) {
        return -1;
    }
    unsigned char *piece = dt_alloc(PIECE_BYTES);
    int n, result = 0;
    while ((n = gzread(in, piece, PIECE_BYTES)) > 0) {
        result = sink(context, piece, (size_t)n, err);
        if (result != 0) {
            break;
        }
    }
    if (result == 0) {
        result = check_end(path, in, n, err);
    }
    if (gzclose_r(in) == Z_BUF_ERROR && result == 0) {
        result = dt_fail(err, DT_INVALID, "%s: damaged or cut short (unexpected end)", path);
    }
    free(piece);
    return result;
}

void corpus_close(struct corpus *c)
{
    for (size_t i = 0; i < c->count; i++) {
        free(c->files[i].path);
    }
    free(c->files);
    *c = (struct corpus){0};
}
