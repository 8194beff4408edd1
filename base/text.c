#include "base/text.h"

#include "base/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static void out_of_memory(size_t size_bytes)
{
    (void)fprintf(stderr, "dtrun: out of memory for %zu bytes\n", size_bytes);
    abort();
}

void *dt_alloc(size_t size_bytes)
{
    void *p = calloc(1, size_bytes > 0 ? size_bytes : 1);
    if (p == NULL) {
        out_of_memory(size_bytes);
    }
    return p;
}

void *dt_realloc(void *p, size_t size_bytes)
{
    void *grown = realloc(p, size_bytes > 0 ? size_bytes : 1);
    if (grown == NULL) {
        out_of_memory(size_bytes);
    }
    return grown;
}

char *dt_strdup(const char *s)
{
    size_t size = strlen(s) + 1;
    return memcpy(dt_alloc(size), s, size);
}

char *dt_format(const char *fmt, ...)
{
    struct dt_text t;
    dt_text_init(&t);
    va_list args;
    va_start(args, fmt);
    dt_text_vprintf(&t, fmt, args);
    va_end(args);
    return t.data;
}

void dt_text_init(struct dt_text *t)
{
    *t = (struct dt_text){0};
}

void dt_text_clear(struct dt_text *t)
{
    free(t->data);
    dt_text_init(t);
}

void dt_text_reset(struct dt_text *t)
{
    t->size = 0;
    if (t->data != NULL) {
        t->data[0] = 0;
    }
}

static void reserve(struct dt_text *t, size_t more)
{
    if (more >= SIZE_MAX / 4 || t->size >= SIZE_MAX / 4) {
        out_of_memory(more);
    }
    size_t needed = t->size + more + 1;
    if (needed <= t->capacity) {
        return;
    }
    size_t capacity = t->capacity * 2 > needed ? t->capacity * 2 : needed + 31;
    t->data = dt_realloc(t->data, capacity);
    t->capacity = capacity;
}

void dt_text_add(struct dt_text *t, const void *bytes, size_t size)
{
    reserve(t, size);
    if (size > 0) {
        memcpy(t->data + t->size, bytes, size);
    }
    t->size += size;
    t->data[t->size] = 0;
}

void dt_text_puts(struct dt_text *t, const char *s)
{
    dt_text_add(t, s, strlen(s));
}

void dt_text_vprintf(struct dt_text *t, const char *fmt, va_list args)
{
    va_list again;
    va_copy(again, args);
    int size = vsnprintf(NULL, 0, fmt, args);
    if (size >= 0) {
        reserve(t, (size_t)size);
        (void)vsnprintf(t->data + t->size, (size_t)size + 1, fmt, again);
        t->size += (size_t)size;
    }
    va_end(again);
}

void dt_text_printf(struct dt_text *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    dt_text_vprintf(t, fmt, args);
    va_end(args);
}

size_t dt_text_character(const void *at, size_t size)
{
    const unsigned char *s = at;
    unsigned char a = s[0];
    size_t length = a < 0x80                ? 1
                    : a >= 0xc2 && a < 0xe0 ? 2
                    : a >= 0xe0 && a < 0xf0 ? 3
                    : a >= 0xf0 && a < 0xf5 ? 4
                                            : 0;
    if (length == 0 || length > size) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if ((a == 0xe0 && s[1] < 0xa0) || (a == 0xed && s[1] >= 0xa0) || (a == 0xf0 && s[1] < 0x90) ||
        (a == 0xf4 && s[1] >= 0x90)) {
        return 0;
    }
    return length;
}

/* The code point of a valid sequence of 2 or 3 bytes. 0 for others: no character above U+FFFF
 * misleads. */
static unsigned code_point(const unsigned char *s, size_t length)
{
    return length == 2   ? (s[0] & 0x1fU) << 6 | (s[1] & 0x3fU)
           : length == 3 ? (s[0] & 0xfU) << 12 | (s[1] & 0x3fU) << 6 | (s[2] & 0x3fU)
                         : 0;
}

/* True for a control character beyond ASCII, and for characters that change the direction of
 * writing or begin a line: with them a line could look like another one. */
static bool misleads(unsigned c)
{
    return (c >= 0x80 && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069);
}

size_t dt_text_visible(const char *s, size_t size)
{
    const unsigned char *bytes = (const unsigned char *)s;
    size_t length = dt_text_character(bytes, size);
    return dt_text_is_control(*s) || misleads(code_point(bytes, length)) ? 0 : length;
}

bool dt_text_is_harmless(const char *s, size_t size, bool lines)
{
    for (size_t i = 0, length; i < size; i += length) {
        length = lines && s[i] == '\n' ? 1 : dt_text_visible(s + i, size - i);
        if (length == 0) {
            return false;
        }
    }
    return true;
}

void dt_text_make_harmless(char *s, bool lines)
{
    for (size_t size = strlen(s), i = 0, length; i<size; i += length> 0 ? length : 1) {
        length = lines && s[i] == '\n' ? 1 : dt_text_visible(s + i, size - i);
        s[i] = length > 0 ? s[i] : '?';
    }
}

char *dt_text_excerpt(const char *s, size_t size, char *out, size_t out_bytes)
{
    static const char none[] = "(empty)", more[] = "...";
    bool whole = size < out_bytes;
    size_t shown = whole ? size : out_bytes - sizeof more;
    (void)memcpy(out, size > 0 ? s : none, size > 0 ? shown : sizeof none);
    if (size > 0) {
        out[shown] = '\0';
        dt_text_make_harmless(out, false);
        (void)strcat(out, whole ? "" : more);
    }
    return out;
}

void dt_list_add(struct dt_list *l, const char *fmt, ...)
{
    va_list args;
    bool shown = l->most == 0 || l->count < l->most;
    if (l->count > 0 && (shown || l->count == l->most)) {
        dt_text_puts(l->text, shown ? ", " : ", ...");
    }
    l->count++;
    va_start(args, fmt);
    if (shown) {
        dt_text_vprintf(l->text, fmt, args);
    }
    va_end(args);
}

void dt_text_add_visible(struct dt_text *t, const char *s, size_t size, bool lines)
{
    for (size_t i = 0, length; i < size; i += length) {
        length = lines && s[i] == '\n' ? 1 : dt_text_visible(s + i, size - i);
        if (length > 0) {
            dt_text_add(t, s + i, length);
        } else if (s[i] == '\n' || s[i] == '\t') {
            dt_text_puts(t, s[i] == '\n' ? "\\n" : "\\t");
        } else {
            dt_text_printf(t, "\\x%02x", (unsigned char)s[i]);
        }
        length = length > 0 ? length : 1;
    }
}

/* Bytes of s without an incomplete character at its end. */
static size_t whole_characters(const char *s, size_t size)
{
    size_t begin = size;
    while (begin > 0 && size - begin < 3 && ((unsigned char)s[begin - 1] & 0xc0) == 0x80) {
        begin--;
    }
    unsigned char first = begin > 0 ? (unsigned char)s[begin - 1] : 0;
    return first >= 0xc2 && size - begin + 1 < (first >= 0xf0 ? 4U : first >= 0xe0 ? 3U : 2U) ? begin - 1 : size;
}

void dt_text_make_visible(char *out, size_t out_bytes)
{
    size_t size = strlen(out);
    size = size + 1 == out_bytes ? whole_characters(out, size) : size;
    out[size] = '\0';
    if (dt_text_is_harmless(out, size, false)) {
        return;
    }
    struct dt_text t;
    dt_text_init(&t);
    dt_text_add_visible(&t, out, size, false);
    size = t.size < out_bytes ? t.size : whole_characters(t.data, out_bytes - 1);
    memcpy(out, t.data, size);
    out[size] = '\0';
    dt_text_clear(&t);
}

void dt_text_say(FILE *to, const char *fmt, ...)
{
    struct dt_text line, shown;
    va_list args;
    dt_text_init(&line);
    dt_text_init(&shown);
    va_start(args, fmt);
    dt_text_vprintf(&line, fmt, args);
    va_end(args);
    dt_text_add_visible(&shown, dt_text_str(&line), line.size, false);
    dt_text_puts(&shown, "\n");
    (void)fwrite(shown.data, 1, shown.size, to);
    dt_text_clear(&shown);
    dt_text_clear(&line);
}

void dt_text_json(struct dt_text *t, const char *s, size_t size)
{
    const unsigned char *bytes = (const unsigned char *)s;
    dt_text_puts(t, "\"");
    for (size_t i = 0; i < size;) {
        unsigned char c = bytes[i];
        size_t length = dt_text_character(bytes + i, size - i);
        if (length == 0) {
            dt_text_puts(t, "\xef\xbf\xbd");
            i++;
            continue;
        }
        if (c == '"' || c == '\\') {
            dt_text_printf(t, "\\%c", c);
        } else if (c == '\n') {
            dt_text_puts(t, "\\n");
        } else if (c == '\t') {
            dt_text_puts(t, "\\t");
        } else if (c == '\r') {
            dt_text_puts(t, "\\r");
        } else if (dt_text_visible(s + i, size - i) == 0) {
            dt_text_printf(t, "\\u%04x", length == 1 ? c : code_point(bytes + i, length));
        } else {
            dt_text_add(t, bytes + i, length);
        }
        i += length;
    }
    dt_text_puts(t, "\"");
}

void dt_text_shell(struct dt_text *t, const char *s)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
    if (s[0] != '\0' && s[strspn(s, plain)] == '\0') {
        dt_text_puts(t, s);
        return;
    }
    dt_text_puts(t, "'");
    for (; *s != '\0'; s++) {
        dt_text_add(t, *s == '\'' ? "'\\''" : s, *s == '\'' ? 4 : 1);
    }
    dt_text_puts(t, "'");
}

size_t dt_text_mark(const void *text, size_t size, const char **other)
{
    static const struct {
        const char *bytes;
        size_t size;
        const char *encoding;
    } marks[] = {{"\xff\xfe\0\0", 4, "UTF-32"},
                 {"\0\0\xfe\xff", 4, "UTF-32"},
                 {"\xff\xfe", 2, "UTF-16"},
                 {"\xfe\xff", 2, "UTF-16"}};
    *other = NULL;
    for (size_t i = 0; i < sizeof marks / sizeof marks[0] && *other == NULL; i++) {
        *other = size >= marks[i].size && memcmp(text, marks[i].bytes, marks[i].size) == 0 ? marks[i].encoding : NULL;
    }
    return size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

const char *dt_text_str(const struct dt_text *t)
{
    return t->data != NULL ? t->data : "";
}

bool dt_parse_int64(const char *s, long long *out)
{
    char *end = NULL;
    if (s == NULL || *s == 0 || *s == ' ' || *s == '\t' || *s == '\n' || *s == '+') {
        return false;
    }
    errno = 0;
    long long value = strtoll(s, &end, 10);
    if (errno != 0 || *end != 0) {
        return false;
    }
    *out = value;
    return true;
}

bool dt_parse_double(const char *s, double *out)
{
    char *end = NULL;
    if (s == NULL || *s == 0 || strspn(s, "0123456789+-.eE") != strlen(s)) {
        return false;
    }
    errno = 0;
    double value = strtod(s, &end);
    if (*end != 0 || !isfinite(value)) {
        return false;
    }
    *out = value;
    return true;
}

size_t dt_text_distance(const char *a, const char *b, size_t limit)
{
    enum { MAX = 64 };
    size_t n = strlen(a), m = strlen(b);
    if (n > MAX || m > MAX) {
        return limit + 1;
    }
    size_t rows[3][MAX + 1]; /* of a's prefixes, by their length modulo 3 */
    for (size_t i = 0; i <= n; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *second = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = i == 0 ? j : above[j - 1] + (a[i - 1] != b[j - 1]);
            best = i > 0 && above[j] + 1 < best ? above[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            row[j] = swapped && second[j - 2] + 1 < best ? second[j - 2] + 1 : best;
        }
    }
    return rows[n % 3][m] <= limit ? rows[n % 3][m] : limit + 1;
}

void dt_text_wrap(struct dt_text *out, const char *text, int column)
{
    for (int at = column; *text != '\0'; text += strspn(text, " ")) {
        int word = (int)strcspn(text, " ");
        if (at > column && at + 1 + word > 80) {
            dt_text_printf(out, "\n%*s", column, "");
            at = column;
        } else if (at > column) {
            dt_text_puts(out, " ");
            at++;
        }
        dt_text_add(out, text, (size_t)word);
        at += word;
        text += word;
    }
    dt_text_puts(out, "\n");
}

size_t dt_text_near(const char *word)
{
    size_t size = strlen(word);
    return size <= 3 ? 1 : size < 9 ? 2 : size / 3;
}

const char *dt_text_nearest(const char *word, const char *const *candidates, size_t count)
{
    size_t limit = dt_text_near(word);
    const char *nearest = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t distance = dt_text_distance(word, candidates[i], limit);
        if (distance <= limit && distance < strlen(word)) {
            nearest = candidates[i];
            limit = distance > 0 ? distance - 1 : 0;
            if (distance == 0) {
                break;
            }
        }
    }
    return nearest;
}

char *dt_text_bytes(double size_bytes, char *out, size_t out_bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    while (fabs(size_bytes) >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        size_bytes /= 1024;
        unit++;
    }
    (void)snprintf(out, out_bytes, unit == 0 || fabs(size_bytes) >= 100 ? "%.0f %s" : "%.1f %s", size_bytes,
                   units[unit]);
    return out;
}

void dt_text_random(char out[33])
{
    uint64_t words[2];
    /* the kernel forbids it; no other process has our pid at this time */
    if (getrandom(words, sizeof words, 0) != (ssize_t)sizeof words) {
        double now_s = dt_wall_s();
        memcpy(&words[0], &now_s, sizeof words[0]);
        words[1] = (uint64_t)getpid() ^ (uint64_t)(dt_now_s() * 1e9) << 22;
    }
    (void)snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, words[0], words[1]);
}

bool dt_text_ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}
