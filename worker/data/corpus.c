/* Collecting and reading text. zlib's reader passes plain files through, so one path serves both. */
#include "worker/data/corpus.h"

#include "base/scan.h"
#include "base/text.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
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

bool corpus_is_records(const char *path)
{
    size_t n = strlen(path), tail = n >= 3 && strcmp(path + n - 3, ".gz") == 0 ? 3 : 0;
    return n >= 6 + tail && strncmp(path + n - tail - 6, ".jsonl", 6) == 0;
}

struct records {
    const char *path, *key;
    corpus_sink *sink;
    void *context;
    struct dt_text line;
    long long number;
};

static int end_line(struct records *r, struct dt_error *err)
{
    char where[512];
    r->number++;
    const char *text = dt_text_str(&r->line);
    if (strspn(text, " \t\r") == r->line.size) {
        dt_text_reset(&r->line);
        return 0;
    }
    (void)snprintf(where, sizeof where, "%s: record %lld", r->path, r->number);
    cJSON *tree = dt_scan_parse(text, r->line.size, where, NULL, err);
    if (tree == NULL) {
        return -1;
    }
    const char *found = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, r->key));
    int result = found != NULL ? r->sink(r->context, (const unsigned char *)found, strlen(found), err)
                               : dt_fail(err, DT_INVALID, "%s: no string under \"%s\"; name the key with --text_key", where, r->key);
    cJSON_Delete(tree);
    dt_text_reset(&r->line);
    return result;
}

static int split_lines(void *context, const unsigned char *text, size_t size, struct dt_error *err)
{
    struct records *r = context;
    while (size > 0) {
        const unsigned char *newline = memchr(text, '\n', size);
        size_t n = newline != NULL ? (size_t)(newline - text) : size;
        dt_text_add(&r->line, text, n);
        if (r->line.size > DT_SCAN_BYTES) {
            return dt_fail(err, DT_INVALID, "%s: record %lld: longer than %zu bytes", r->path, r->number + 1, DT_SCAN_BYTES);
        }
        if (newline != NULL && end_line(r, err) != 0) {
            return -1;
        }
        n += newline != NULL;
        text += n;
        size -= n;
    }
    return 0;
}

int corpus_read_records(const char *path, const char *key, corpus_sink *sink, void *context, struct dt_error *err)
{
    struct records r = {.path = path, .key = key, .sink = sink, .context = context};
    dt_text_init(&r.line);
    int result = corpus_read(path, split_lines, &r, err);
    if (result == 0) {
        result = end_line(&r, err); /* a last line without its newline */
    }
    dt_text_clear(&r.line);
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
