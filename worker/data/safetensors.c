/* The reader of safetensors files: a scanner for the part of JSON that a header may use (objects of
 * strings, arrays of whole numbers), then checks of names, sizes and coverage. Anything else is an
 * error that names the byte. The writer is in safetensors_write.c. */
#include "worker/data/safetensors.h"

#include "base/arena.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct pair {
    const char *key, *value;
};
struct place { /* a tensor's range in the data */
    int64_t begin, end;
    int tensor;
};

struct st_file {
    char *path;
    void *mapping; /* null for st_open_memory */
    size_t mapping_bytes;
    struct dt_arena arena;
    struct st_tensor *tensors; /* in the order of the header */
    struct place *places;
    int *by_name;
    int count, capacity;
    struct pair *metadata;
    int metadata_count;
};

struct scanner {
    const unsigned char *at, *begin, *end;
    struct st_file *file;
    struct dt_text text; /* the string that was read last */
    struct dt_error *err;
};

static const struct {
    const char *name;
    int bits;
} dtypes[] = {{"F64", 64},        {"I64", 64},    {"U64", 64},    {"C64", 64},    {"F32", 32},    {"I32", 32},
              {"U32", 32},        {"F16", 16},    {"BF16", 16},   {"I16", 16},    {"U16", 16},    {"I8", 8},
              {"U8", 8},          {"BOOL", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
              {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};

static int dtype_bits(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return dtypes[i].bits;
        }
    }
    return 0;
}

static int bad(struct scanner *s, const char *what)
{
    return dt_fail(s->err, DT_INVALID, "%s: not a safetensors file: header byte %lld: %s", s->file->path,
                   (long long)(s->at - s->begin), what);
}

static void skip_space(struct scanner *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t')) {
        s->at++;
    }
}

/* Consumes `c` if it is the next character. */
static bool take(struct scanner *s, char c)
{
    skip_space(s);
    if (s->at < s->end && *s->at == (unsigned char)c) {
        s->at++;
        return true;
    }
    return false;
}

static int expect(struct scanner *s, char c)
{
    char what[16] = "expected 'x'";
    what[10] = c;
    return take(s, c) ? 0 : bad(s, what);
}

/* Length of the UTF-8 sequence at p; 0: invalid. */
static int utf8_length(const unsigned char *p, const unsigned char *end)
{
    int n = *p < 0x80 ? 1 : *p >= 0xC2 && *p < 0xE0 ? 2 : *p >= 0xE0 && *p < 0xF0 ? 3 : *p >= 0xF0 && *p < 0xF5 ? 4 : 0;
    if (n == 0 || end - p < n) {
        return 0;
    }
    for (int i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    bool too_long = (*p == 0xE0 && p[1] < 0xA0) || (*p == 0xF0 && p[1] < 0x90);
    bool no_character = (*p == 0xED && p[1] >= 0xA0) || (*p == 0xF4 && p[1] >= 0x90);
    return too_long || no_character ? 0 : n;
}

static void put_utf8(struct dt_text *out, uint32_t c)
{
    unsigned char b[4];
    size_t n;
    if (c < 0x80) {
        b[0] = (unsigned char)c;
        n = 1;
    } else if (c < 0x800) {
        b[0] = (unsigned char)(0xC0 | c >> 6);
        n = 2;
    } else if (c < 0x10000) {
        b[0] = (unsigned char)(0xE0 | c >> 12);
        n = 3;
    } else {
        b[0] = (unsigned char)(0xF0 | c >> 18);
        n = 4;
    }
    for (size_t i = 1; i < n; i++) {
        b[i] = (unsigned char)(0x80 | ((c >> (6 * (n - 1 - i))) & 0x3F));
    }
    dt_text_add(out, b, n);
}

static int hex4(struct scanner *s, uint32_t *out)
{
    uint32_t v = 0;
    *out = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        unsigned char c = s->at < s->end ? *s->at : 0;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) {
            return bad(s, "expected four hex digits");
        }
        v = v * 16 + (uint32_t)digit;
    }
    *out = v;
    return 0;
}

static int escape(struct scanner *s)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    unsigned char c = s->at < s->end ? *s->at++ : 0;
    const char *simple = c != 0 ? strchr(from, c) : NULL;
    if (simple != NULL) {
        dt_text_add(&s->text, &to[simple - from], 1);
        return 0;
    }
    uint32_t high = 0, low = 0;
    if (c != 'u') {
        return bad(s, "unknown escape in a string");
    }
    if (hex4(s, &high) != 0) {
        return -1;
    }
    if (high >= 0xD800 && high < 0xDC00) {
        if (s->end - s->at < 2 || s->at[0] != '\\' || s->at[1] != 'u') {
            return bad(s, "half of a surrogate pair");
        }
        s->at += 2;
        if (hex4(s, &low) != 0) {
            return -1;
        }
        if (low < 0xDC00 || low > 0xDFFF) {
            return bad(s, "half of a surrogate pair");
        }
        high = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    } else if (high == 0 || (high >= 0xDC00 && high <= 0xDFFF)) {
        return bad(s, "a character that no name may have");
    }
    put_utf8(&s->text, high);
    return 0;
}

/* Reads a string into s->text. */
static int string(struct scanner *s)
{
    if (expect(s, '"') != 0) {
        return -1;
    }
    dt_text_reset(&s->text);
    while (s->at < s->end && *s->at != '"') {
        if (*s->at == '\\') {
            s->at++;
            if (escape(s) != 0) {
                return -1;
            }
            continue;
        }
        int n = *s->at < 0x20 ? 0 : utf8_length(s->at, s->end);
        if (n == 0) {
            return bad(s, "a control character or broken UTF-8 in a string");
        }
        dt_text_add(&s->text, s->at, (size_t)n);
        s->at += n;
    }
    return expect(s, '"');
}

/* A whole number from 0 to about 2^61. */
static int number(struct scanner *s, int64_t *out)
{
    skip_space(s);
    const unsigned char *start = s->at;
    int64_t v = 0;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') {
        if (v > (INT64_C(1) << 58)) {
            return bad(s, "the number is too large");
        }
        v = v * 10 + (*s->at++ - '0');
    }
    if (s->at == start || (*start == '0' && s->at - start > 1)) {
        return bad(s, "expected a whole number of at least 0");
    }
    *out = v;
    return 0;
}

/* [n, n, ...] with at most `most` numbers. */
static int numbers(struct scanner *s, int64_t *out, int most, int *count)
{
    *count = 0;
    if (expect(s, '[') != 0) {
        return -1;
    }
    if (take(s, ']')) {
        return 0;
    }
    do {
        if (*count == most) {
            return bad(s, "too many numbers in an array");
        }
        if (number(s, &out[*count]) != 0) {
            return -1;
        }
        (*count)++;
    } while (take(s, ','));
    return expect(s, ']');
}

static int metadata(struct scanner *s)
{
    struct st_file *f = s->file;
    if (f->metadata != NULL) {
        return bad(s, "__metadata__ twice");
    }
    int capacity = 8;
    f->metadata = dt_alloc((size_t)capacity * sizeof *f->metadata);
    if (expect(s, '{') != 0) {
        return -1;
    }
    if (take(s, '}')) {
        return 0;
    }
    do {
        if (f->metadata_count == capacity) {
            capacity *= 2;
            f->metadata = dt_realloc(f->metadata, (size_t)capacity * sizeof *f->metadata);
        }
        struct pair *pair = &f->metadata[f->metadata_count];
        if (string(s) != 0) {
            return -1;
        }
        pair->key = dt_arena_strdup(&f->arena, dt_text_str(&s->text));
        if (expect(s, ':') != 0 || string(s) != 0) {
            return -1;
        }
        pair->value = dt_arena_strdup(&f->arena, dt_text_str(&s->text));
        f->metadata_count++;
    } while (take(s, ','));
    return expect(s, '}');
}

/* Sets numel and size_bytes by the shape, with bounds. */
static int measure(struct scanner *s, struct st_tensor *t, const struct place *place)
{
    int64_t numel = 1, bits;
    for (int i = 0; i < t->dims; i++) {
        if (__builtin_mul_overflow(numel, t->shape[i], &numel)) {
            return bad(s, "the shape is too large");
        }
    }
    t->numel = numel;
    if (__builtin_mul_overflow(numel, (int64_t)dtype_bits(t->dtype), &bits) || bits % 8 != 0) {
        return bad(s, "the shape is too large, or not a whole number of bytes");
    }
    if (place->begin > place->end || place->end - place->begin != bits / 8) {
        return dt_fail(s->err, DT_INVALID,
                       "%s: tensor %s: data_offsets [%lld, %lld] do not fit dtype and shape (%lld bytes)",
                       s->file->path, t->name, (long long)place->begin, (long long)place->end, (long long)(bits / 8));
    }
    t->size_bytes = (size_t)(bits / 8);
    return 0;
}

static int tensor_field(struct scanner *s, struct st_tensor *t, struct place *place, unsigned *seen)
{
    if (string(s) != 0) {
        return -1;
    }
    const char *key = dt_text_str(&s->text);
    unsigned bit = strcmp(key, "dtype") == 0          ? 1u
                   : strcmp(key, "shape") == 0        ? 2u
                   : strcmp(key, "data_offsets") == 0 ? 4u
                                                      : 0u;
    if (bit == 0 || (*seen & bit) != 0) {
        return bad(s, bit == 0 ? "unknown key of a tensor" : "a key of a tensor twice");
    }
    *seen |= bit;
    if (expect(s, ':') != 0) {
        return -1;
    }
    int64_t offsets[2];
    int count;
    switch (bit) {
    case 1:
        if (string(s) != 0) {
            return -1;
        }
        if (dtype_bits(dt_text_str(&s->text)) == 0) {
            return bad(s, "unknown dtype");
        }
        memcpy(t->dtype, dt_text_str(&s->text), s->text.size + 1);
        return 0;
    case 2:
        return numbers(s, t->shape, ST_DIMS_MAX, &t->dims);
    default:
        if (numbers(s, offsets, 2, &count) != 0) {
            return -1;
        }
        if (count != 2) {
            return bad(s, "data_offsets are two numbers");
        }
        place->begin = offsets[0];
        place->end = offsets[1];
        return 0;
    }
}

static int tensor(struct scanner *s)
{
    struct st_file *f = s->file;
    if (f->count == f->capacity) {
        f->capacity = f->capacity > 0 ? 2 * f->capacity : 64;
        f->tensors = dt_realloc(f->tensors, (size_t)f->capacity * sizeof *f->tensors);
        f->places = dt_realloc(f->places, (size_t)f->capacity * sizeof *f->places);
    }
    struct st_tensor *t = &f->tensors[f->count];
    struct place *place = &f->places[f->count];
    *t = (struct st_tensor){.name = dt_arena_strdup(&f->arena, dt_text_str(&s->text))};
    *place = (struct place){.tensor = f->count};
    unsigned seen = 0;
    if (expect(s, '{') != 0) {
        return -1;
    }
    do {
        if (tensor_field(s, t, place, &seen) != 0) {
            return -1;
        }
    } while (take(s, ','));
    if (expect(s, '}') != 0) {
        return -1;
    }
    if (seen != 7) {
        return bad(s, "a tensor needs dtype, shape and data_offsets");
    }
    if (dt_dtype_parse(t->dtype, &t->type) != 0) {
        t->type = DT_DTYPE_COUNT;
    }
    if (measure(s, t, place) != 0) {
        return -1;
    }
    f->count++;
    return 0;
}

static int header(struct scanner *s)
{
    if (s->at >= s->end || *s->at != '{') {
        return bad(s, "expected '{'");
    }
    s->at++;
    if (!take(s, '}')) {
        do {
            if (string(s) != 0) {
                return -1;
            }
            bool meta = strcmp(dt_text_str(&s->text), "__metadata__") == 0;
            if (expect(s, ':') != 0 || (meta ? metadata(s) : tensor(s)) != 0) {
                return -1;
            }
        } while (take(s, ','));
        if (expect(s, '}') != 0) {
            return -1;
        }
    }
    skip_space(s);
    return s->at == s->end ? 0 : bad(s, "something after the closing brace");
}

static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    int order = (x->begin > y->begin) - (x->begin < y->begin);
    return order != 0 ? order : (x->end > y->end) - (x->end < y->end);
}

static int compare_names(const void *a, const void *b, void *file)
{
    const struct st_file *f = file;
    return strcmp(f->tensors[*(const int *)a].name, f->tensors[*(const int *)b].name);
}

/* Checks that names are unique and that the tensors cover the data without holes. Sets their data
 * pointers. */
static int check(struct st_file *f, const unsigned char *data, size_t size, struct dt_error *err)
{
    f->by_name = dt_alloc(((size_t)f->count + 1) * sizeof *f->by_name);
    for (int i = 0; i < f->count; i++) {
        f->by_name[i] = i;
    }
    qsort_r(f->by_name, (size_t)f->count, sizeof *f->by_name, compare_names, f);
    for (int i = 1; i < f->count; i++) {
        if (compare_names(&f->by_name[i - 1], &f->by_name[i], f) == 0) {
            return dt_fail(err, DT_INVALID, "%s: tensor %s twice", f->path, f->tensors[f->by_name[i]].name);
        }
    }
    int64_t at = 0;
    if (f->count > 0) {
        qsort(f->places, (size_t)f->count, sizeof *f->places, compare_places);
    }
    for (int i = 0; i < f->count; i++) {
        const struct place *p = &f->places[i];
        struct st_tensor *t = &f->tensors[p->tensor];
        if (p->begin != at) {
            return dt_fail(err, DT_INVALID,
                           "%s: tensor %s: data begins at byte %lld, expected %lld (a hole or an overlap)", f->path,
                           t->name, (long long)p->begin, (long long)at);
        }
        if (p->end > (int64_t)size) {
            return dt_fail(err, DT_INVALID, "%s: tensor %s ends at data byte %lld but the file has %zu: cut short?",
                           f->path, t->name, (long long)p->end, size);
        }
        t->data = data + p->begin;
        at = p->end;
    }
    if (at != (int64_t)size) {
        return dt_fail(err, DT_INVALID, "%s: %lld bytes after the last tensor", f->path,
                       (long long)((int64_t)size - at));
    }
    return 0;
}

static int parse(struct st_file *f, const unsigned char *bytes, size_t size, struct dt_error *err)
{
    uint64_t n = 0;
    if (size < 8) {
        return dt_fail(err, DT_INVALID, "%s: not a safetensors file: %zu bytes are too short for a header", f->path,
                       size);
    }
    for (int i = 7; i >= 0; i--) {
        n = n << 8 | bytes[i];
    }
    if (n > ST_HEADER_MAX || n > size - 8) {
        return dt_fail(err, DT_INVALID,
                       "%s: not a safetensors file, or cut short: header of %llu bytes in a file of %zu", f->path,
                       (unsigned long long)n, size);
    }
    struct scanner s = {.at = bytes + 8, .begin = bytes + 8, .end = bytes + 8 + n, .file = f, .err = err};
    dt_text_init(&s.text);
    int rc = header(&s);
    dt_text_clear(&s.text);
    return rc != 0 ? rc : check(f, bytes + 8 + n, size - 8 - (size_t)n, err);
}

int st_open_memory(struct st_file **out, const void *bytes, size_t size, const char *path, struct dt_error *err)
{
    struct st_file *f = dt_alloc(sizeof *f);
    f->path = dt_strdup(path);
    dt_arena_init(&f->arena);
    if (parse(f, bytes, size, err) != 0) {
        st_close(f);
        return -1;
    }
    *out = f;
    return 0;
}

int st_open(struct st_file **out, const char *path, struct dt_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        (void)dt_fail_errno(err, "%s", path);
        if (fd >= 0) {
            (void)close(fd);
        }
        return -1;
    }
    if (!S_ISREG(info.st_mode) || info.st_size == 0) {
        (void)close(fd);
        return dt_fail(err, DT_INVALID, "%s: %s", path,
                       S_ISREG(info.st_mode) ? "the file is empty" : "not a regular file");
    }
    size_t size = (size_t)info.st_size;
    void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    int code = errno;
    (void)close(fd);
    if (bytes == MAP_FAILED) {
        errno = code;
        return dt_fail_errno(err, "%s: mmap", path);
    }
    if (st_open_memory(out, bytes, size, path, err) != 0) {
        (void)munmap(bytes, size);
        return -1;
    }
    (*out)->mapping = bytes;
    (*out)->mapping_bytes = size;
    return 0;
}

void st_in_order(const struct st_file *f)
{
    if (f->mapping != NULL) {
        (void)madvise(f->mapping, f->mapping_bytes, MADV_SEQUENTIAL);
    }
}

void st_leave(const struct st_file *f, const void *data, size_t size_bytes)
{
    size_t in_page = (uintptr_t)data % (size_t)sysconf(_SC_PAGESIZE);
    if (f->mapping != NULL && size_bytes > 0) { /* bytes of st_open_memory are not ours to give up */
        (void)madvise((char *)(uintptr_t)data - in_page, size_bytes + in_page, MADV_DONTNEED);
    }
}

void st_close(struct st_file *f)
{
    if (f == NULL) {
        return;
    }
    if (f->mapping != NULL) {
        (void)munmap(f->mapping, f->mapping_bytes);
    }
    free(f->tensors);
    free(f->places);
    free(f->by_name);
    free(f->metadata);
    free(f->path);
    dt_arena_clear(&f->arena);
    free(f);
}

const char *st_path(const struct st_file *f)
{
    return f->path;
}

int st_count(const struct st_file *f)
{
    return f->count;
}

const struct st_tensor *st_at(const struct st_file *f, int i)
{
    return &f->tensors[i];
}

const struct st_tensor *st_find(const struct st_file *f, const char *name)
{
    int low = 0, high = f->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const struct st_tensor *t = &f->tensors[f->by_name[middle]];
        int order = strcmp(name, t->name);
        if (order == 0) {
            return t;
        }
        low = order > 0 ? middle + 1 : low;
        high = order < 0 ? middle : high;
    }
    return NULL;
}

const char *st_metadata(const struct st_file *f, const char *key)
{
    for (int i = 0; i < f->metadata_count; i++) {
        if (strcmp(f->metadata[i].key, key) == 0) {
            return f->metadata[i].value;
        }
    }
    return NULL;
}
