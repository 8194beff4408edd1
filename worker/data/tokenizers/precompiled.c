/* Precompiled: SentencePiece's map from texts to texts. It is a double-array trie (Darts) of bytes,
 * whose values are offsets of strings that end with NUL:
 *     uint32 bytes of the trie, uint32[] trie, strings
 * The map is applied as the library does: a grapheme cluster of less than 6 bytes that begins with a
 * text of the map is replaced as a whole, by what the shortest such text stands for. Otherwise the
 * same is done with each of its characters. */
#include "worker/data/tokenizers/normalizers.h"

#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { CLUSTER_MOST = 5 };

struct precompiled {
    uint32_t *units;
    size_t unit_count;
    struct dt_text strings;
};

void precompiled_close(void *state)
{
    struct precompiled *p = state;
    free(p->units);
    dt_text_clear(&p->strings);
    free(p);
}

/* ---- base64 ---- */

static int digit_of(char c)
{
    if (c >= 'A' && c <= 'Z') {
        return c - 'A';
    }
    if (c >= 'a' && c <= 'z') {
        return c - 'a' + 26;
    }
    return c >= '0' && c <= '9' ? c - '0' + 52 : c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool base64_read(const char *text, size_t size, struct dt_text *out)
{
    if (size % 4 != 0) {
        return false;
    }
    for (size_t at = 0; at < size; at += 4) {
        size_t digits = 4;
        if (at + 4 == size && text[at + 3] == '=') {
            digits = text[at + 2] == '=' ? 2 : 3;
        }
        uint32_t bits = 0;
        for (size_t i = 0; i < 4; i++) {
            int digit = i < digits ? digit_of(text[at + i]) : 0;
            if (digit < 0) {
                return false;
            }
            bits = bits << 6 | (uint32_t)digit;
        }
        const unsigned char bytes[3] = {(unsigned char)(bits >> 16), (unsigned char)(bits >> 8), (unsigned char)bits};
        if ((digits < 4 && bytes[2] != 0) || (digits < 3 && bytes[1] != 0)) {
            return false; /* bits that stand for nothing */
        }
        dt_text_add(out, bytes, digits - 1);
    }
    return true;
}

/* ---- the trie ---- */

static uint32_t unit_offset(uint32_t unit)
{
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

static bool unit_has_value(uint32_t unit)
{
    return (unit >> 8 & 1) != 0;
}

/* The byte of a unit; values have a bit that no byte has. */
static uint32_t unit_byte(uint32_t unit)
{
    return unit & (1u << 31 | 0xff);
}

/* What a text that begins with one of the map stands for; null: nothing does. */
static const char *find(const struct precompiled *p, const char *text, size_t size)
{
    size_t at = unit_offset(p->units[0]);
    for (size_t i = 0; i < size && text[i] != 0; i++) {
        unsigned char byte = (unsigned char)text[i];
        at ^= byte;
        if (at >= p->unit_count || unit_byte(p->units[at]) != byte) {
            return NULL;
        }
        uint32_t unit = p->units[at];
        at ^= unit_offset(unit);
        if (unit_has_value(unit)) { /* precompiled_open has checked both places */
            return dt_text_str(&p->strings) + (p->units[at] & ~(1u << 31));
        }
    }
    return NULL;
}

/* Values lie inside the trie, and lead to the beginning of a character. */
static int check_values(const struct precompiled *p, struct dt_error *err)
{
    for (size_t i = 0; i < p->unit_count; i++) {
        if (!unit_has_value(p->units[i]) || unit_byte(p->units[i]) > 0xff) {
            continue;
        }
        size_t at = i ^ unit_offset(p->units[i]);
        size_t offset = at < p->unit_count ? p->units[at] & ~(1u << 31) : SIZE_MAX;
        if (at >= p->unit_count || offset > p->strings.size ||
            ((unsigned char)dt_text_str(&p->strings)[offset] & 0xc0) == 0x80) {
            return dt_fail(err, DT_INVALID, "unit %zu of the trie leads outside of the map", i);
        }
    }
    return 0;
}

static int read_map(struct precompiled *p, const struct dt_text *bytes, struct dt_error *err)
{
    uint32_t trie_bytes = 0;
    if (bytes->size < sizeof trie_bytes) {
        return dt_fail(err, DT_INVALID, "%zu bytes; too short for a map", bytes->size);
    }
    memcpy(&trie_bytes, bytes->data, sizeof trie_bytes);
    p->unit_count = trie_bytes / sizeof *p->units;
    size_t strings = sizeof trie_bytes + p->unit_count * sizeof *p->units;
    if (p->unit_count == 0 || strings > bytes->size) {
        return dt_fail(err, DT_INVALID, "a trie of %zu units in %zu bytes; damaged", p->unit_count, bytes->size);
    }
    p->units = dt_alloc(p->unit_count * sizeof *p->units);
    memcpy(p->units, bytes->data + sizeof trie_bytes, p->unit_count * sizeof *p->units);
    dt_text_add(&p->strings, bytes->data + strings, bytes->size - strings);
    if (utf8_valid(dt_text_str(&p->strings), p->strings.size) != p->strings.size) {
        return dt_fail(err, DT_INVALID, "texts that are not UTF-8; damaged");
    }
    return check_values(p, err);
}

int precompiled_open(void **state, const cJSON *json, struct dt_error *err)
{
    const char *map = NULL;
    struct dt_text bytes = {0};
    if (part_text(json, "precompiled_charsmap", NULL, &map, err) != 0) {
        return -1;
    }
    if (map == NULL) {
        return dt_fail(err, DT_INVALID, "precompiled_charsmap: missing; must be a text");
    }
    struct precompiled *p = dt_alloc(sizeof *p);
    int result =
        base64_read(map, strlen(map), &bytes) ? read_map(p, &bytes, err) : dt_fail(err, DT_INVALID, "not base64");
    dt_text_clear(&bytes);
    if (result != 0) {
        precompiled_close(p);
        return dt_wrap(err, "precompiled_charsmap");
    }
    *state = p;
    return 0;
}

int precompiled_apply(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err)
{
    (void)err;
    const struct precompiled *p = state;
    for (size_t at = 0, n = 0; at < size; at += n) {
        n = unicode_cluster(text + at, size - at);
        const char *whole = n <= CLUSTER_MOST ? find(p, text + at, n) : NULL;
        if (whole != NULL) {
            dt_text_puts(out, whole);
            continue;
        }
        for (size_t i = at, k = 0; i < at + n; i += k) {
            (void)utf8_read(text + i, &k);
            const char *one = find(p, text + i, k);
            if (one != NULL) {
                dt_text_puts(out, one);
            } else {
                dt_text_add(out, text + i, k);
            }
        }
    }
    return 0;
}
