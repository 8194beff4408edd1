/* Readers of host lists. A SLURM name is a row of pieces, text or bracket; its hosts are counted
 * before any is made, then the pieces turn like the wheels of a counter. */
#include "launcher/options/hostlist.h"

#include "base/text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { max_wheels = 16, max_digits = 9 };
static const char separators[] = " \t\r\n,";

void hostlist_init(struct hostlist *l)
{
    *l = (struct hostlist){0};
}

void hostlist_clear(struct hostlist *l)
{
    for (size_t i = 0; i < l->count; i++) {
        free(l->hosts[i].name);
        free(l->hosts[i].chosen);
    }
    free(l->hosts);
    *l = (struct hostlist){0};
}

static int wrong(struct dt_error *err, const char *text, const char *what)
{
    char near[44]; /* of its first line */
    return dt_fail(err, DT_INVALID, "%s: %s", dt_text_excerpt(text, strcspn(text, "\r\n"), near, sizeof near), what);
}

static bool is_name_byte(char c)
{
    return isalnum((unsigned char)c) || (c != '\0' && strchr("_.:-", c) != NULL);
}

/* Appends a host whose name is size bytes of text. */
static int add(struct hostlist *l, const char *text, size_t size, int slots, struct dt_error *err)
{
    if (size == 0 || size > HOSTLIST_MAX_NAME || text[0] == '-') {
        return wrong(err, text,
                     size == 0                  ? "a name is empty"
                     : size > HOSTLIST_MAX_NAME ? "a name is longer than 255 bytes"
                                                : "a name begins with -");
    }
    for (size_t i = 0; i < size; i++) {
        if (!is_name_byte(text[i])) {
            return wrong(err, text, "a host name has letters, digits and _ . : - only");
        }
    }
    if (l->count == HOSTLIST_MAX_HOSTS) {
        return wrong(err, text, "more than 65536 hosts");
    }
    if (l->count == l->capacity) {
        l->capacity = l->capacity > 0 ? 2 * l->capacity : 16;
        l->hosts = dt_realloc(l->hosts, l->capacity * sizeof *l->hosts);
    }
    char *name = dt_alloc(size + 1);
    memcpy(name, text, size);
    l->hosts[l->count++] = (struct hostlist_host){.name = name, .slots = slots};
    return 0;
}

static int find_exact(const struct hostlist *l, const char *text, size_t size)
{
    /* Lists of slots name the same host in a row, so the last one is asked first. */
    for (size_t i = l->count; i-- > 0;) {
        if (strlen(l->hosts[i].name) == size && memcmp(l->hosts[i].name, text, size) == 0) {
            return (int)i;
        }
    }
    return -1;
}

/* A host once more with so many slots, or a new one. */
static int add_slots(struct hostlist *l, const char *text, size_t size, int slots, struct dt_error *err)
{
    int i = find_exact(l, text, size);
    if (i < 0) {
        return add(l, text, size, slots, err);
    }
    if (slots > HOSTLIST_MAX_SLOTS - l->hosts[i].slots) {
        return wrong(err, text, "more than 65536 slots on one host");
    }
    l->hosts[i].slots += slots;
    return 0;
}

/* A decimal number of at most nine digits at *p, which moves behind it; -1 for anything else. */
static long read_number(const char **p, int *digits)
{
    long value = 0;
    int n = 0;
    for (; isdigit((unsigned char)(*p)[n]); n++) {
        if (n == max_digits) {
            return -1;
        }
        value = 10 * value + ((*p)[n] - '0');
    }
    *p += n;
    *digits = n;
    return n > 0 ? value : -1;
}

/* ---- SLURM ---- */

/* A bracket while it turns: `at` is the beginning of the current range in its text. */
struct wheel {
    const char *first, *at;
    long value, end;
    int width;
};

/* The range at w->at becomes the current one; its syntax has been checked. Returns where the
 * next one begins, or null. */
static const char *open_range(struct wheel *w)
{
    const char *p = w->at;
    int digits;
    w->value = w->end = read_number(&p, &w->width);
    if (*p == '-') {
        p++;
        w->end = read_number(&p, &digits);
    }
    return *p == ',' ? p + 1 : NULL;
}

static const char *next_range(const struct wheel *w)
{
    struct wheel copy = *w;
    return open_range(&copy);
}

/* One step; false when the wheel came round to its beginning. */
static bool turn(struct wheel *w)
{
    if (w->value < w->end) {
        w->value++;
        return true;
    }
    const char *next = next_range(w);
    w->at = next != NULL ? next : w->first;
    (void)open_range(w);
    return next != NULL;
}

/* Checks the bracket whose '[' is at *p, moves *p behind ']', counts its numbers. */
static int check_bracket(const char **p, const char *name, long *count, struct dt_error *err)
{
    const char *q = *p + 1;
    *count = 0;
    for (;;) {
        int digits;
        long lo = read_number(&q, &digits);
        long hi = lo;
        if (lo < 0) {
            return wrong(err, name, "a bracket holds numbers and ranges of at most nine digits; example: a[1-3,7]");
        }
        if (*q == '-') {
            q++;
            hi = read_number(&q, &digits);
        }
        if (hi < lo) {
            return wrong(err, name, "a range must be LO-HI with LO <= HI");
        }
        *count += hi - lo + 1;
        if (*count > HOSTLIST_MAX_HOSTS) {
            return wrong(err, name, "more than 65536 hosts");
        }
        if (*q == ']') {
            *p = q + 1;
            return 0;
        }
        if (*q != ',') {
            return wrong(err, name, *q == '\0' ? "a bracket is not closed" : "a bracket holds numbers, - and , only");
        }
        q++;
    }
}

/* The name that begins at *p: checks it, makes its hosts, moves *p behind it. */
static int read_pattern(struct hostlist *l, const char **p, struct dt_error *err)
{
    const char *name = *p;
    const char *q = name;
    struct wheel wheels[max_wheels];
    int wheel_count = 0;
    long total = 1;
    while (*q != '\0' && strchr(separators, *q) == NULL) {
        if (*q != '[') {
            if (!is_name_byte(*q)) {
                return wrong(err, name,
                             *q == ']' ? "a bracket is not open" : "a host name has letters, digits and _ . : - only");
            }
            q++;
            continue;
        }
        long count;
        if (wheel_count == max_wheels) {
            return wrong(err, name, "more than 16 brackets in one name");
        }
        wheels[wheel_count] = (struct wheel){.first = q + 1, .at = q + 1};
        if (check_bracket(&q, name, &count, err) != 0) {
            return -1;
        }
        (void)open_range(&wheels[wheel_count++]);
        total *= count; /* both at most 65536 */
        if (total > HOSTLIST_MAX_HOSTS - (long)l->count) {
            return wrong(err, name, "more than 65536 hosts");
        }
    }
    *p = q;
    for (bool more = true; more;) {
        char text[HOSTLIST_MAX_NAME + 16];
        size_t size = 0;
        int w = 0;
        for (const char *s = name; s < q && size <= HOSTLIST_MAX_NAME;) {
            if (*s != '[') {
                text[size++] = *s++;
                continue;
            }
            size += (size_t)snprintf(text + size, sizeof text - size, "%0*ld", wheels[w].width, wheels[w].value);
            w++;
            s = strchr(s, ']') + 1;
        }
        text[size] = '\0';
        if (add(l, text, size, 0, err) != 0) {
            return -1;
        }
        more = false;
        for (int i = wheel_count - 1; i >= 0 && !more; i--) {
            more = turn(&wheels[i]);
        }
    }
    return 0;
}

/* ---- readers ---- */

static int finish(struct hostlist *l, int result, struct dt_error *err)
{
    if (result == 0 && l->count == 0) {
        result = dt_fail(err, DT_INVALID, "the list of hosts is empty");
    }
    if (result != 0) {
        hostlist_clear(l);
    }
    return result;
}

int hostlist_read_slurm(struct hostlist *l, const char *text, struct dt_error *err)
{
    int result = 0;
    const char *p = text + strspn(text, separators);
    while (*p != '\0' && result == 0) {
        result = read_pattern(l, &p, err);
        p += result == 0 ? strspn(p, separators) : 0;
    }
    return finish(l, result, err);
}

/* Some editors write a byte order mark. */
static const char *behind_mark(const char *text)
{
    const char *other;
    return text + dt_text_mark(text, strlen(text), &other);
}

int hostlist_read_words(struct hostlist *l, const char *text, struct dt_error *err)
{
    int result = 0;
    text = behind_mark(text);
    for (const char *p = text + strspn(text, separators); *p != '\0' && result == 0;) {
        size_t size = strcspn(p, separators);
        result = add_slots(l, p, size, 1, err);
        p += size;
        p += strspn(p, separators);
    }
    return finish(l, result, err);
}

int hostlist_read_counts(struct hostlist *l, const char *text, struct dt_error *err)
{
    int result = 0;
    for (const char *p = text + strspn(text, separators); *p != '\0' && result == 0;) {
        const char *name = p;
        size_t size = strcspn(p, separators);
        int digits;
        p += size;
        p += strspn(p, separators);
        long count = read_number(&p, &digits);
        if (count < 1 || count > HOSTLIST_MAX_SLOTS || (*p != '\0' && strchr(separators, *p) == NULL)) {
            result = wrong(err, name, "after a host its number of slots is wanted, from 1 to 65536");
        } else {
            result = add_slots(l, name, size, (int)count, err);
        }
        p += strspn(p, separators);
    }
    return finish(l, result, err);
}

void hostlist_drop_first_slot(struct hostlist *l)
{
    if (l->count > 0 && --l->hosts[0].slots <= 0) {
        free(l->hosts[0].name);
        free(l->hosts[0].chosen);
        l->count--;
        memmove(l->hosts, l->hosts + 1, l->count * sizeof *l->hosts);
    }
}

/* "slots=4" or "max_slots=4" (also with blanks around the =) at *p, which moves behind it. */
static int read_setting(const char **p, int *slots, struct dt_error *err)
{
    const char *word = *p;
    size_t key = strspn(word, "abcdefghijklmnopqrstuvwxyz_-");
    const char *q = word + key + strspn(word + key, " \t");
    bool is_slots = key == 5 && memcmp(word, "slots", 5) == 0;
    bool is_max = key == 9 && (memcmp(word, "max_slots", 9) == 0 || memcmp(word, "max-slots", 9) == 0);
    if ((!is_slots && !is_max) || *q != '=') {
        return wrong(err, word, "after a host only slots=N is known; example: node1 slots=8");
    }
    int digits;
    q += 1 + strspn(q + 1, " \t");
    long value = read_number(&q, &digits);
    if (value < 1 || value > HOSTLIST_MAX_WORKERS || (*q != '\0' && strchr(" \t\r\n#", *q) == NULL)) {
        return wrong(err, word, "slots must be a number from 1 to 4096");
    }
    if (is_slots && *slots != 0) {
        return wrong(err, word, "slots is given twice");
    }
    *slots = is_slots ? (int)value : *slots;
    *p = q;
    return 0;
}

static int read_line(struct hostlist *l, const char *line, struct dt_error *err)
{
    const char *p = line + strspn(line, " \t\r");
    size_t size = strcspn(p, " \t\r\n#");
    int slots = 0;
    if (size == 0) {
        return 0;
    }
    const char *at = memchr(p, '@', size), *colon = memchr(p, ':', size);
    if (at != NULL) {
        return wrong(err, p, "a user is said to ssh: --ssh='ssh -l USER', or in its configuration");
    }
    /* two are an IPv6 address */
    if (colon != NULL && memchr(colon + 1, ':', size - (size_t)(colon + 1 - p)) == NULL) {
        return wrong(err, p, "a port is said to ssh: --ssh='ssh -p PORT', or in its configuration");
    }
    const char *q = p + size;
    for (q += strspn(q, " \t\r"); *q != '\0' && *q != '\n' && *q != '#'; q += strspn(q, " \t\r")) {
        if (read_setting(&q, &slots, err) != 0) {
            return -1;
        }
    }
    if (find_exact(l, p, size) >= 0) {
        return wrong(err, p, "this host is there twice; write it once with all its slots");
    }
    return add(l, p, size, slots, err);
}

int hostlist_check_text(const struct dt_text *text, struct dt_error *err)
{
    size_t length = strlen(dt_text_str(text)), line = 1;
    for (size_t i = 0; i < length; i++) {
        line += text->data[i] == '\n';
    }
    const char *other;
    (void)dt_text_mark(text->data, text->size, &other);
    if (other != NULL) {
        return dt_fail(err, DT_INVALID, "looks like %s; save it as UTF-8", other);
    }
    return length == text->size ? 0 : dt_fail(err, DT_INVALID, "line %zu: a byte 0: no text file; write it anew", line);
}

int hostlist_read_hostfile(struct hostlist *l, const char *text, struct dt_error *err)
{
    int result = 0;
    int number = 1;
    for (const char *line = behind_mark(text); result == 0; number++) {
        result = read_line(l, line, err);
        if (result != 0) {
            return finish(l, dt_wrap(err, "line %d", number), err);
        }
        line = strchr(line, '\n');
        if (line == NULL) {
            break;
        }
        line++;
    }
    return finish(l, result, err);
}

int hostlist_find(const struct hostlist *l, const char *name)
{
    for (size_t i = 0; i < l->count; i++) {
        if (strcasecmp(l->hosts[i].name, name) == 0) {
            return (int)i;
        }
    }
    size_t size = strcspn(name, ".");
    bool number = strspn(name, "0123456789.") == strlen(name); /* addresses are the same in full
                                                                * or not at all */
    for (size_t i = 0; i < l->count && size > 0 && !number; i++) {
        const char *known = l->hosts[i].name;
        /* a.x and a.y are two hosts */
        bool one_is_short = name[size] == '\0' || strchr(known, '.') == NULL;
        if (one_is_short && strcspn(known, ".") == size && strncasecmp(known, name, size) == 0) {
            return (int)i;
        }
    }
    return -1;
}

int hostlist_count_at(const char *text, int index)
{
    for (const char *p = text; index >= 0;) {
        int digits;
        long count = read_number(&p, &digits);
        long times = 1;
        if (strncmp(p, "(x", 2) == 0) {
            p += 2;
            times = read_number(&p, &digits);
            if (*p++ != ')') {
                return -1;
            }
        }
        if (count < 0 || count > HOSTLIST_MAX_SLOTS || times < 1) {
            return -1;
        }
        if (index < times) {
            return (int)count;
        }
        index -= (int)times;
        if (*p++ != ',') {
            return -1;
        }
    }
    return -1;
}
