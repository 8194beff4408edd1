/* Collecting and reading text. */
#include "cmd/dtdata/corpus.h"

#include "base/scan.h"
#include "base/text.h"
#include "cmd/dtdata/unpack.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { MARK_BYTES = 4, LOOK_BYTES = 8192, PIECE_BYTES = 65536, DEPTH_MAX = 64, FILES_MAX = 10000000 };

enum content { CONTENT_TEXT, CONTENT_BINARY, CONTENT_EMPTY };

/* The first bytes of a file: a NUL among them makes it binary. *mark: how many of them are its
 * byte order mark. */
static int read_head(struct unpack *in, const char *path, unsigned char *head, size_t room, size_t *size, size_t *mark,
                     enum content *out, struct dt_error *err)
{
    const char *other;
    size_t n = 0;
    *size = 0;
    do { /* a pipe gives what it has */
        if (unpack_read(in, head + *size, room - *size, &n, err) != 0) {
            return -1;
        }
        *size += n;
    } while (n > 0 && *size < MARK_BYTES);
    *mark = dt_text_mark(head, *size, &other);
    if (other != NULL) {
        return dt_fail(err, DT_INVALID, "%s: begins with the byte order mark of %s; convert it: iconv -f %s -t UTF-8",
                       path, other, other);
    }
    bool binary = memchr(head, 0, *size < LOOK_BYTES ? *size : LOOK_BYTES) != NULL;
    *out = *size == *mark ? CONTENT_EMPTY : binary ? CONTENT_BINARY : CONTENT_TEXT;
    return 0;
}

static int look(const char *path, enum content *out, struct dt_error *err)
{
    struct unpack *in;
    unsigned char head[LOOK_BYTES];
    size_t n, mark;
    if (unpack_open(&in, path, err) != 0) {
        return -1;
    }
    int result = read_head(in, path, head, sizeof head, &n, &mark, out, err);
    unpack_close(in);
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

/* alphasort would ask the locale */
static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* True for the files that dtdata writes beside shards: NAME.bin.json beside NAME.bin, and, while
 * a run writes, NAME.bin.json.tmp-PID beside NAME.bin.tmp-PID. The shards themselves are binary. */
static bool is_sidecar(const char *path)
{
    const char *mark = strstr(strrchr(path, '/') != NULL ? strrchr(path, '/') : path, ".bin.json");
    const char *tail = mark != NULL ? mark + strlen(".bin.json") : NULL;
    if (mark == NULL || (*tail != 0 && strncmp(tail, ".tmp-", 5) != 0)) {
        return false;
    }
    /* dt_file_write adds another .tmp-PID */
    int id = *tail == 0 ? 0 : 5 + (int)strspn(tail + 5, "0123456789");
    int size = (int)(mark - path) + (int)strlen(".bin");
    char *shard = dt_format("%.*s", size, path), *growing = dt_format("%.*s%.*s", size, path, id, tail);
    struct stat st;
    bool is = stat(shard, &st) == 0 || stat(growing, &st) == 0;
    free(shard);
    free(growing);
    return is;
}

static bool is_output(const struct corpus *c, const struct stat *st)
{
    struct stat output;
    return c->output != NULL && stat(c->output, &output) == 0 && output.st_dev == st->st_dev &&
           output.st_ino == st->st_ino;
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
            bool link_to_folder =
                lstat(inner, &st) == 0 && S_ISLNK(st.st_mode) && (stat(inner, &st) != 0 || S_ISDIR(st.st_mode));
            bool special = !link_to_folder && stat(inner, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
            bool output = !link_to_folder && stat(inner, &st) == 0 && S_ISDIR(st.st_mode) && is_output(c, &st);
            c->output_met |= output;
            if (!link_to_folder && !special && !output && !is_sidecar(inner)) {
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
    struct stat input;
    /* /dev/stdin */
    bool is_input = isatty(0) && fstat(0, &input) == 0 && input.st_dev == st.st_dev && input.st_ino == st.st_ino;
    if ((S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode)) && !is_input) {
        return dt_fail(err, DT_INVALID, "%s: is a device; give text files, folders of them, or - for standard input",
                       path);
    }
    /* a pipe can be read only once */
    return add_file(c, path, st.st_size, S_ISREG(st.st_mode), err);
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
        return dt_fail(err, DT_INVALID,
                       "--val: whole files are held out, and there is only one; give more files, or --val 0");
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
        /* a huge file is for training */
        bool too_much = (double)(held + f->size_bytes) > 2 * fraction * (double)all;
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

static void count(struct corpus_left_out *x, const char *where)
{
    if (x->count++ == 0) {
        (void)snprintf(x->first, sizeof x->first, "%s", where);
    }
}

int corpus_read(const char *path, corpus_sink *sink, void *context, struct corpus_left_out *marks, struct dt_error *err)
{
    struct unpack *in;
    if (unpack_open(&in, path, err) != 0) {
        return -1;
    }
    unsigned char *piece = dt_alloc(PIECE_BYTES);
    enum content content = CONTENT_EMPTY;
    size_t n = 0, mark = 0;
    int result = read_head(in, path, piece, PIECE_BYTES, &n, &mark, &content, err);
    if (result == 0 && content == CONTENT_BINARY) { /* a pipe; nobody could look into it before */
        result = dt_fail(err, DT_INVALID, "%s: binary, not text: a NUL among its first bytes", path);
    }
    if (result == 0 && mark > 0) {
        count(marks, path);
    }
    while (result == 0 && n > 0) {
        result = sink(context, piece + mark, n - mark, err);
        result = result == 0 ? unpack_read(in, piece, PIECE_BYTES, &n, err) : result;
        mark = 0;
    }
    unpack_close(in);
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
    struct dt_text line, found;
    long long number;
    struct corpus_left_out *no_text, *marks;
};

static int end_line(struct records *r, struct dt_error *err)
{
    char where[512];
    r->number++;
    (void)snprintf(where, sizeof where, "%s: record %lld", r->path, r->number);
    const char *text = dt_text_str(&r->line), *other;
    size_t size = r->line.size, mark = dt_text_mark(text, size, &other);
    if (mark > 0) { /* of a file that was put behind another one */
        count(r->marks, where);
        text += mark;
        size -= mark;
    }
    if (strspn(text, " \t\r") == size) {
        dt_text_reset(&r->line);
        return 0;
    }
    enum dt_scan_found state;
    int result = dt_scan_record(text, size, where, r->key, &r->found, &state, err);
    dt_text_reset(&r->line);
    if (result == 0 && state == DT_SCAN_NONE) {
        result = dt_fail(err, DT_INVALID, "%s: no string under \"%s\"; name the key with --text_key", where, r->key);
    } else if (result == 0 && state == DT_SCAN_FOUND) {
        result = r->sink(r->context, (const unsigned char *)dt_text_str(&r->found), r->found.size, err);
    } else if (result == 0) {
        count(r->no_text, where);
    }
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
            return dt_fail(err, DT_INVALID, "%s: record %lld: longer than %zu bytes", r->path, r->number + 1,
                           DT_SCAN_BYTES);
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

int corpus_read_records(const char *path, const char *key, corpus_sink *sink, void *context,
                        struct corpus_left_out *no_text, struct corpus_left_out *marks, struct dt_error *err)
{
    struct records r = {.path = path, .key = key, .sink = sink, .context = context, .no_text = no_text, .marks = marks};
    dt_text_init(&r.line);
    dt_text_init(&r.found);
    int result = corpus_read(path, split_lines, &r, marks, err);
    if (result == 0) {
        result = end_line(&r, err); /* a last line without its newline */
    }
    dt_text_clear(&r.found);
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
