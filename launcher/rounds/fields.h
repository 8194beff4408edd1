/* Encodes a struct as bytes by a list of its fields. The same list writes the struct, reads it, and
 * refuses every value that no agent sends, so the three cannot disagree. Tests and the fuzzer use
 * the same lists. */
#ifndef DT_LAUNCHER_ROUNDS_FIELDS_H
#define DT_LAUNCHER_ROUNDS_FIELDS_H

#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FIELDS_TERM_MAX ((uint64_t)1 << 63) /* leaves room for a later term */
#define FIELDS_SECONDS_MAX 1e12

/* Numbers take 8 bytes, little-endian. A string takes 2 bytes of length and its characters. */
enum field_type {
    FIELD_END,     /* the last row of a list */
    FIELD_U64,     /* any uint64_t */
    FIELD_TERM,    /* uint64_t up to FIELDS_TERM_MAX */
    FIELD_I64,     /* int64_t from low to high */
    FIELD_INT,     /* int or enum from low to high */
    FIELD_BOOL,    /* bool */
    FIELD_SECONDS, /* double: a clock's time */
    FIELD_NAME,    /* a string without control characters; the sender has checked it */
    /* like NAME, but made harmless before it is sent, because a worker may have written it */
    FIELD_LINE,
    FIELD_LINES,  /* like LINE, with newlines */
    FIELD_CHARS,  /* a string of `characters` only */
    FIELD_BODY,   /* struct field_body of at most `high` bytes */
    FIELD_STRUCT, /* a struct with the fields `of` */
    /* an array of structs with the fields `of`; the int at `count_at` is its length */
    FIELD_LIST,
    FIELD_CHECK /* no bytes: `check` judges the value at `at`, whose fields were read before */
};

struct field_body { /* after reading, `bytes` points into the input; nothing is copied */
    const char *bytes;
    size_t size;
};

/* Returns false for a value that no agent sends, with the reason in `why`. */
typedef bool field_check(const void *value, char *why, size_t why_bytes);

struct field {
    enum field_type type;
    const char *name; /* the name in errors */
    size_t at;        /* offset in the struct */
    size_t bytes;     /* size of a string's buffer; size of a list's element */
    size_t count_at;
    int64_t low, high; /* LIST: high is the largest length */
    const struct field *of;
    const char *characters;
    field_check *check;
};

/* Appends the encoding of *value. */
void fields_write(const struct field *list, const void *value, struct dt_text *out);
/* Fills *value, which must be zero, from exactly `size` bytes. If it returns false, `why` names the
 * first refused field and what that field must be. `why` is empty if the bytes end too early or too
 * late. */
bool fields_read(const struct field *list, void *value, const void *bytes, size_t size, char *why, size_t why_bytes);

/* Rows of a list. BASE is the struct that holds the member; define it before the list. A member
 * whose type differs from the row's does not compile. */
#define FIELDS(...)                                                                                                    \
    (const struct field[])                                                                                             \
    {                                                                                                                  \
        __VA_ARGS__,                                                                                                   \
        {                                                                                                              \
            .type = FIELD_END                                                                                          \
        }                                                                                                              \
    }
#define FIELD_AT(member) .at = offsetof(BASE, member)
#define FIELD_OF_TYPE(member, type_)                                                                                   \
    .at = offsetof(BASE, member) + 0 * sizeof(_Generic(&((BASE *)0)->member, type_ * : 0))
#define FIELD_STRING(member) FIELD_AT(member), .bytes = sizeof((BASE *)0)->member
#define U64(member)                                                                                                    \
    {                                                                                                                  \
        .type = FIELD_U64, .name = #member, FIELD_OF_TYPE(member, uint64_t)                                            \
    }
#define TERM(member, name_)                                                                                            \
    {                                                                                                                  \
        .type = FIELD_TERM, .name = name_, FIELD_OF_TYPE(member, uint64_t)                                             \
    }
#define I64(member, name_, low_, high_)                                                                                \
    {                                                                                                                  \
        .type = FIELD_I64, .name = name_, FIELD_OF_TYPE(member, int64_t), .low = low_, .high = high_                   \
    }
#define INT(member, name_, low_, high_)                                                                                \
    {                                                                                                                  \
        .type = FIELD_INT, .name = name_, FIELD_OF_TYPE(member, int), .low = low_, .high = high_                       \
    }
#define ENUM(member, enum_, name_, low_, high_)                                                                        \
    {                                                                                                                  \
        .type = FIELD_INT, .name = name_, FIELD_OF_TYPE(member, enum enum_), .low = low_, .high = high_                \
    }
#define BOOL(member, name_)                                                                                            \
    {                                                                                                                  \
        .type = FIELD_BOOL, .name = name_, FIELD_OF_TYPE(member, bool), .high = 1                                      \
    }
#define SECONDS(member, name_)                                                                                         \
    {                                                                                                                  \
        .type = FIELD_SECONDS, .name = name_, FIELD_OF_TYPE(member, double)                                            \
    }
#define NAME(member, name_)                                                                                            \
    {                                                                                                                  \
        .type = FIELD_NAME, .name = name_, FIELD_STRING(member)                                                        \
    }
#define LINE(member, name_)                                                                                            \
    {                                                                                                                  \
        .type = FIELD_LINE, .name = name_, FIELD_STRING(member)                                                        \
    }
#define LINES(member, name_)                                                                                           \
    {                                                                                                                  \
        .type = FIELD_LINES, .name = name_, FIELD_STRING(member)                                                       \
    }
#define CHARS(member, name_, characters_)                                                                              \
    {                                                                                                                  \
        .type = FIELD_CHARS, .name = name_, FIELD_STRING(member), .characters = characters_                            \
    }
#define BODY(member, name_, most)                                                                                      \
    {                                                                                                                  \
        .type = FIELD_BODY, .name = name_, FIELD_OF_TYPE(member, struct field_body), .high = most                      \
    }
/* name: precedes the names of the inner fields in errors; "": nothing does */
#define STRUCT(member, struct_, name_, fields)                                                                         \
    {                                                                                                                  \
        .type = FIELD_STRUCT, .name = name_, FIELD_OF_TYPE(member, struct struct_), .of = fields                       \
    }
#define LIST(member, count_, struct_, name_, most, fields)                                                             \
    {                                                                                                                  \
        .type = FIELD_LIST, .name = name_, FIELD_AT(member), .bytes = sizeof(struct struct_),                          \
        .count_at = offsetof(BASE, count_), .high = most, .of = fields                                                 \
    }
#define CHECK(member, check_)                                                                                          \
    {                                                                                                                  \
        .type = FIELD_CHECK, .name = "", FIELD_AT(member), .check = check_                                             \
    }

#endif
