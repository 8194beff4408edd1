#include "launcher/rounds/fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { STRING_MAX = 2048 }; /* size of the longest string in any list */

struct reading {
    const uint8_t *p, *end;
    char path[128]; /* names of the structs around the field: "record: council 2: " */
    char *why;
    size_t why_bytes;
};

static int refuse(struct reading *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int refuse(struct reading *r, const char *fmt, ...)
{
    va_list args;
    size_t used = (size_t)snprintf(r->why, r->why_bytes, "%s", r->path);
    va_start(args, fmt);
    if (used < r->why_bytes) {
        (void)vsnprintf(r->why + used, r->why_bytes - used, fmt, args);
    }
    va_end(args);
    return false;
}

/* ---- writing ---- */

static void write_u64(struct dt_text *out, uint64_t x)
{
    char b[8];
    for (int i = 0; i < 8; i++) {
        b[i] = (char)(x >> (8 * i));
    }
    dt_text_add(out, b, sizeof b);
}

static void write_string(const struct field *f, const char *s, struct dt_text *out)
{
    char copy[STRING_MAX];
    size_t size = strnlen(s, f->bytes - 1);
    memcpy(copy, s, size);
    copy[size] = '\0';
    if (f->type == FIELD_LINE || f->type == FIELD_LINES) {
        dt_text_make_harmless(copy, f->type == FIELD_LINES);
    }
    char length[2] = {(char)size, (char)(size >> 8)};
    dt_text_add(out, length, sizeof length);
    dt_text_add(out, copy, size);
}

static void write_body(const struct field_body *body, struct dt_text *out)
{
    write_u64(out, body->size);
    if (body->size > 0) {
        dt_text_add(out, body->bytes, body->size);
    }
}

static int64_t number_at(const struct field *f, const void *value)
{
    const char *at = (const char *)value + f->at;
    int64_t x = 0;
    int i = 0;
    if (f->type == FIELD_BOOL) {
        return *(const bool *)at;
    }
    if (f->type == FIELD_INT) {
        memcpy(&i, at, sizeof i);
        return i;
    }
    memcpy(&x, at, sizeof x);
    return x;
}

static int count_at(const struct field *f, const void *value)
{
    int count;
    memcpy(&count, (const char *)value + f->count_at, sizeof count);
    return count;
}

void fields_write(const struct field *f, const void *value, struct dt_text *out)
{
    for (; f->type != FIELD_END; f++) {
        const char *at = (const char *)value + f->at;
        switch (f->type) {
        case FIELD_U64:
        case FIELD_TERM:
        case FIELD_I64:
        case FIELD_INT:
        case FIELD_BOOL:
        case FIELD_SECONDS:
            write_u64(out, (uint64_t)number_at(f, value));
            break;
        case FIELD_NAME:
        case FIELD_LINE:
        case FIELD_LINES:
        case FIELD_CHARS:
            write_string(f, at, out);
            break;
        case FIELD_BODY:
            write_body((const struct field_body *)at, out);
            break;
        case FIELD_STRUCT:
            fields_write(f->of, at, out);
            break;
        case FIELD_LIST:
            write_u64(out, (uint64_t)count_at(f, value));
            for (int i = 0; i < count_at(f, value) && i < f->high; i++) {
                fields_write(f->of, at + (size_t)i * f->bytes, out);
            }
            break;
        case FIELD_CHECK:
        case FIELD_END:
            break;
        }
    }
}

/* ---- reading ---- */

static bool read_u64(struct reading *r, uint64_t *x)
{
    *x = 0;
    if (r->end - r->p < 8) {
        return false;
    }
    for (int i = 0; i < 8; i++) {
        *x |= (uint64_t)r->p[i] << (8 * i);
    }
    r->p += 8;
    return true;
}

static bool read_term(struct reading *r, const struct field *f, void *at)
{
    uint64_t x;
    if (!read_u64(r, &x)) {
        return false;
    }
    memcpy(at, &x, sizeof x);
    return x <= FIELDS_TERM_MAX || refuse(r, "%s %llu: more than there can be", f->name, (unsigned long long)x);
}

static bool read_between(struct reading *r, const char *name, int64_t low, int64_t high, int64_t *x)
{
    uint64_t u;
    if (!read_u64(r, &u)) {
        return false;
    }
    *x = (int64_t)u;
    return (*x >= low && *x <= high) ||
           refuse(r, "%s %lld: must be from %lld to %lld", name, (long long)*x, (long long)low, (long long)high);
}

static bool read_number(struct reading *r, const struct field *f, void *at)
{
    int64_t x;
    if (!read_between(r, f->name, f->low, f->high, &x)) {
        return false;
    }
    if (f->type == FIELD_BOOL) {
        *(bool *)at = x != 0;
    } else if (f->type == FIELD_INT) {
        memcpy(at, &(int){(int)x}, sizeof(int));
    } else {
        memcpy(at, &x, sizeof x);
    }
    return true;
}

static bool read_seconds(struct reading *r, const struct field *f, void *at)
{
    uint64_t u;
    double s;
    if (!read_u64(r, &u)) {
        return false;
    }
    memcpy(&s, &u, sizeof s);
    memcpy(at, &u, sizeof u);
    return (s >= 0 && s <= FIELDS_SECONDS_MAX && !signbit(s)) || refuse(r, "%s %g: no time of a clock", f->name, s);
}

/* Text from peers reaches terminals, files and the workers' environment, so only harmless
 * characters pass. */
static bool read_string(struct reading *r, const struct field *f, char *s)
{
    size_t left = (size_t)(r->end - r->p), size = left < 2 ? 0 : (size_t)r->p[0] | (size_t)r->p[1] << 8;
    if (left >= 2 && size >= f->bytes) {
        return refuse(r, "%s of %zu bytes: at most %zu", f->name, size, f->bytes - 1);
    }
    if (left < 2 + size) {
        return false;
    }
    memcpy(s, r->p + 2, size);
    s[size] = '\0';
    r->p += 2 + size;
    if (strlen(s) != size) {
        return refuse(r, "%s: a NUL inside", f->name);
    }
    if (f->type == FIELD_CHARS) {
        return s[strspn(s, f->characters)] == '\0' || refuse(r, "%s: none, by its characters", f->name);
    }
    return dt_text_is_harmless(s, size, f->type == FIELD_LINES) ||
           refuse(r, "%s: control characters, or no UTF-8", f->name);
}

static bool read_body(struct reading *r, const struct field *f, struct field_body *body)
{
    uint64_t size;
    if (!read_u64(r, &size) || size > (uint64_t)f->high || size > (uint64_t)(r->end - r->p)) {
        return false;
    }
    *body = (struct field_body){(const char *)r->p, (size_t)size};
    r->p += size;
    return true;
}

static bool read_list(struct reading *r, const struct field *f, void *value);

/* index: position in a list; -1: not in a list. */
static bool read_struct(struct reading *r, const struct field *f, int index, void *at)
{
    size_t used = strlen(r->path);
    if (index >= 0) {
        (void)snprintf(r->path + used, sizeof r->path - used, "%s %d: ", f->name, index);
    } else if (f->name[0] != '\0') {
        (void)snprintf(r->path + used, sizeof r->path - used, "%s: ", f->name);
    }
    bool good = read_list(r, f->of, at);
    r->path[used] = '\0';
    return good;
}

static bool read_array(struct reading *r, const struct field *f, void *value)
{
    int64_t count;
    if (!read_between(r, f->name, 0, f->high, &count)) {
        return false;
    }
    memcpy((char *)value + f->count_at, &(int){(int)count}, sizeof(int));
    for (int i = 0; i < count; i++) {
        if (!read_struct(r, f, i, (char *)value + f->at + (size_t)i * f->bytes)) {
            return false;
        }
    }
    return true;
}

static bool check_value(struct reading *r, const struct field *f, const void *at)
{
    char why[256];
    return f->check(at, why, sizeof why) || refuse(r, "%s", why);
}

static bool read_field(struct reading *r, const struct field *f, void *value)
{
    char *at = (char *)value + f->at;
    switch (f->type) {
    case FIELD_U64:
        return read_u64(r, (uint64_t *)(void *)at);
    case FIELD_TERM:
        return read_term(r, f, at);
    case FIELD_I64:
    case FIELD_INT:
    case FIELD_BOOL:
        return read_number(r, f, at);
    case FIELD_SECONDS:
        return read_seconds(r, f, at);
    case FIELD_NAME:
    case FIELD_LINE:
    case FIELD_LINES:
    case FIELD_CHARS:
        return read_string(r, f, at);
    case FIELD_BODY:
        return read_body(r, f, (struct field_body *)(void *)at);
    case FIELD_STRUCT:
        return read_struct(r, f, -1, at);
    case FIELD_LIST:
        return read_array(r, f, value);
    case FIELD_CHECK:
        return check_value(r, f, at);
    case FIELD_END:
        break;
    }
    return true;
}

static bool read_list(struct reading *r, const struct field *f, void *value)
{
    for (; f->type != FIELD_END; f++) {
        if (!read_field(r, f, value)) {
            return false;
        }
    }
    return true;
}

bool fields_read(const struct field *list, void *value, const void *bytes, size_t size, char *why, size_t why_bytes)
{
    struct reading r = {.p = bytes, .end = (const uint8_t *)bytes + size, .why = why, .why_bytes = why_bytes};
    why[0] = '\0';
    return read_list(&r, list, value) && r.p == r.end;
}
