/* Collecting and reading text. */
#include "cmd/dtdata/corpus.h"

#include "base/text.h"
#include "cmd/dtdata/records.h"
#include "cmd/dtdata/source.h"
#include "cmd/dtdata/unpack.h"
#include "worker/data/shards_set.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { MARK_BYTES = 4, LOOK_BYTES = 8192, DEPTH_MAX = 64, FILES_MAX = 10000000 };

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

static void count(struct corpus_left_out *x, const char *where)
{
    if (x->count++ == 0) {
        (void)snprintf(x->first, sizeof x->first, "%s", where);
    }
}

/* A set of files by a hash of device, inode, size and time of change: a hard link or a link to a file is that file. */
struct corpus_seen {
    XXH128_hash_t *at; /* all zero: free */
    size_t count, capacity;
};

static XXH128_hash_t *seen_place(const struct corpus_seen *s, XXH128_hash_t key)
{
    size_t i = key.low64 & (s->capacity - 1);
    while ((s->at[i].low64 | s->at[i].high64) != 0 && !XXH128_isEqual(s->at[i], key)) {
        i = (i + 1) & (s->capacity - 1);
    }
    return &s->at[i];
}

/* Notes a file. True: it was there already. */
static bool see(struct corpus *c, const struct stat *st)
{
    const uint64_t facts[] = {(uint64_t)st->st_dev, (uint64_t)st->st_ino, (uint64_t)st->st_size,
                              (uint64_t)st->st_mtim.tv_sec, (uint64_t)st->st_mtim.tv_nsec};
    XXH128_hash_t key = XXH3_128bits(facts, sizeof facts);
    struct corpus_seen *s = c->seen = c->seen != NULL ? c->seen : dt_alloc(sizeof *s);
    if (2 * s->count >= s->capacity) {
        struct corpus_seen more = {.capacity = s->capacity > 0 ? 2 * s->capacity : 64};
        more.at = dt_alloc(more.capacity * sizeof *more.at);
        for (size_t i = 0; i < s->capacity; i++) {
            if ((s->at[i].low64 | s->at[i].high64) != 0) {
                *seen_place(&more, s->at[i]) = s->at[i];
                more.count++;
            }
        }
        free(s->at);
        *s = more;
    }
    XXH128_hash_t *place = seen_place(s, key);
    bool is = XXH128_isEqual(*place, key);
    *place = key;
    s->count += !is;
    return is;
}

/* st: null for what can be read once. named: not met in a folder. */
static int add_file(struct corpus *c, const char *path, const struct stat *st, bool named, struct dt_error *err)
{
    enum content content = CONTENT_TEXT;
    if (st != NULL && see(c, st)) {
        count(&c->again, path);
        return 0;
    }
    if (st != NULL && !c->names_only && look(path, &content, err) != 0) {
        return -1;
    }
    if (content != CONTENT_TEXT) {
        count(content == CONTENT_BINARY ? &c->binary : &c->empty, path);
        return 0;
    }
    if (c->count == FILES_MAX) {
        return dt_fail(err, DT_INVALID, "%s: more than %d files", path, FILES_MAX);
    }
    if ((c->count & (c->count - 1)) == 0) { /* a power of two: full */
        c->files = dt_realloc(c->files, (c->count == 0 ? 1 : c->count * 2) * sizeof *c->files);
    }
    c->files[c->count++] =
        (struct corpus_file){.path = dt_strdup(path),
                             .size_bytes = st != NULL ? st->st_size : 0,
                             .kind = named && source_is_array(path) ? SOURCE_JSON : source_kind(path)};
    return 0;
}

static int add_path(struct corpus *c, const char *path, int depth, struct dt_error *err);

/* alphasort would ask the locale */
static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* True for the files that dtdata writes beside shards: the list of a set, NAME.bin.json beside NAME.bin, and, while
 * a run writes, NAME.bin.json.tmp-PID beside NAME.bin.tmp-PID. The shards themselves are binary. */
static bool is_sidecar(const char *path)
{
    if (shard_set_is_list(path)) {
        return true;
    }
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
    const char *folders[] = {c->output, c->counts};
    bool is = false;
    for (int i = 0; i < 2 && !is; i++) {
        struct stat output;
        is = folders[i] != NULL && stat(folders[i], &output) == 0 && output.st_dev == st->st_dev &&
             output.st_ino == st->st_ino;
    }
    return is;
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
        return add_file(c, path, NULL, false, err);
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
    return add_file(c, path, S_ISREG(st.st_mode) ? &st : NULL, depth == 0 && S_ISREG(st.st_mode), err);
}

int corpus_add(struct corpus *c, const char *path, struct dt_error *err)
{
    return add_path(c, path, 0, err);
}

int corpus_check(const struct corpus *c, char *const *paths, size_t count, struct dt_error *err)
{
    return c->count > 0 ? 0
                        : dt_fail(err, DT_INVALID,
                                  "%s%s: no text: %lld binary and %lld empty files; give text files or folders of them",
                                  paths[0], count > 1 ? " and others" : "", c->binary.count, c->empty.count);
}

void corpus_say_no_records(const struct corpus *c, enum source_kind format, const char *option, const char *hint)
{
    for (size_t i = 0; i < c->count; i++) {
        if ((format != SOURCE_AUTO ? format : c->files[i].kind) != SOURCE_TEXT) {
            return;
        }
    }
    if (option != NULL && c->count > 0) {
        dt_text_say(stderr, "dtdata: %s: no effect: it is for records, and %s is text%s", option, c->files[0].path,
                    hint);
    }
}

void corpus_say_left_out(const struct corpus *c, const char *who)
{
    const struct {
        const struct corpus_left_out *x;
        const char *one, *many;
    } rows[] = {{&c->binary, "binary file", "binary files"},
                {&c->empty, "empty file", "empty files"},
                {&c->again, "file that was read already", "files that were read already"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].x->count > 0) {
            dt_text_say(stderr, "%s: left out %lld %s; the first is %s", who, rows[i].x->count,
                        rows[i].x->count == 1 ? rows[i].one : rows[i].many, rows[i].x->first);
        }
    }
}

int corpus_is_text(const char *path, struct dt_error *err)
{
    enum content content = CONTENT_BINARY;
    if (look(path, &content, err) != 0) {
        return -1;
    }
    return content == CONTENT_EMPTY ? dt_fail(err, DT_INVALID, "%s: is empty", path) : content == CONTENT_TEXT;
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

int corpus_read(const char *path, corpus_sink *sink, void *context, struct corpus_left_out *marks, struct dt_error *err)
{
    struct source *in;
    struct text_block b = {0};
    if (source_open(&in, path, SOURCE_TEXT, NULL, NULL, err) != 0) {
        return -1;
    }
    int more;
    while ((more = source_next(in, &b, err)) > 0) {
        if (b.marked) {
            count(marks, path);
        }
        if (b.size > 0 && sink(context, (const unsigned char *)b.text, b.size, err) != 0) {
            more = -1;
            break;
        }
    }
    source_close(in);
    block_clear(&b);
    return more;
}

static void join(struct corpus_left_out *x, const struct corpus_left_out *later)
{
    if (x->count == 0) {
        (void)snprintf(x->first, sizeof x->first, "%s", later->first);
    }
    x->count += later->count;
}

struct give {
    corpus_sink *sink;
    void *context;
};

static int give_text(void *context, const struct record *r, struct dt_error *err)
{
    const struct give *g = context;
    return g->sink(g->context, (const unsigned char *)r->text, r->text_size, err);
}

int corpus_read_records(const char *path, enum source_kind kind, const char *key, corpus_sink *sink, void *context,
                        struct corpus_left_out *no_text, struct corpus_left_out *marks, struct dt_error *err)
{
    const struct record_form form = {.text_key = key};
    struct give g = {sink, context};
    struct source *in;
    struct text_block b = {0};
    struct record_columns columns = {0};
    struct tally *tally = dt_alloc(sizeof *tally);
    if (source_open(&in, path, kind, NULL, NULL, err) != 0) {
        free(tally);
        return -1;
    }
    int more;
    while ((more = source_next(in, &b, err)) > 0) {
        if (b.marked) {
            tally_add(tally, TALLY_MARKS, 1, path);
        }
        const struct dt_text *header = source_header(in);
        if ((header->size > 0 && record_columns_find(&columns, &form, kind, path, header, err) != 0) ||
            records_of(&form, kind, path, &columns, &b, tally, give_text, &g, err) != 0) {
            more = -1;
            break;
        }
    }
    join(no_text, &tally->of[TALLY_NO_TEXT]);
    join(marks, &tally->of[TALLY_MARKS]);
    source_close(in);
    block_clear(&b);
    free(tally);
    return more;
}

void corpus_close(struct corpus *c)
{
    for (size_t i = 0; i < c->count; i++) {
        free(c->files[i].path);
    }
    free(c->files);
    if (c->seen != NULL) {
        free(c->seen->at);
        free(c->seen);
    }
    *c = (struct corpus){0};
}
